"""Parse URLs of the stores behind obstore: `gs://`, `az://`, and `s3://` with `client=obstore`.

    gs://bucket/prefix?endpoint_url=…
    az://container/prefix?account=…
    s3://bucket/prefix?client=obstore&region=…

The options mean the same as for the other S3 driver (STORAGE.md): `endpoint_url`, `anonymous`, `connect_timeout`,
`read_timeout`, `deadline`, `max_connections`, `self_test`; `region` and `path_style` (s3); `account` (az). No option
holds a secret.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from alpheus_journal import urls
from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.interface import is_path

_COMMON = (
    "endpoint_url",
    "anonymous",
    "connect_timeout",
    "read_timeout",
    "deadline",
    "max_connections",
    "self_test",
)
URL_OPTIONS = {
    "s3": ("client", "region", "path_style", *_COMMON),
    "gs": _COMMON,
    "az": ("account", *_COMMON),
}
_NUMBERS = {
    "connect_timeout": (5.0, 0.1, 60.0),
    "read_timeout": (15.0, 0.1, 300.0),
    "deadline": (30.0, 0.0, 600.0),
    "max_connections": (32.0, 1.0, 1000.0),
}
"""Default, minimum and maximum, in seconds except for `max_connections`."""

PLACE_NAMES = {"s3": "bucket", "gs": "bucket", "az": "container"}
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,221}")
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role is attached (only client=aiobotocore"
    " reads profiles of the AWS command line)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a file, or run where a service account is attached",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or run where an identity is attached",
}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL."""

    scheme: str
    bucket: str
    prefix: str
    """Without a slash at either end; empty for the whole bucket."""
    options: dict[str, str]

    @property
    def bucket_url(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix of this bucket, with the same options."""
        query = f"?{urlencode(self.options, quote_via=quote, safe=':/[]')}" if self.options else ""
        return f"{self.bucket_url}{'/' if prefix else ''}{quote(prefix)}{query}"

    def is_on(self, option: str, *, default: bool) -> bool:
        return self.options.get(option, "true" if default else "false") == "true"

    def number(self, option: str) -> float:
        return float(self.options.get(option, _NUMBERS[option][0]))


def parse_url(url: str) -> Place:
    """Parse a URL. Raises InvalidInput (`bad_url`), whose text never repeats a possible secret."""
    parts = urlsplit(url)
    shown = urls.redact_url(url)
    credentials = CREDENTIALS[parts.scheme]
    if "@" in parts.netloc:
        raise bad_url(shown, "the URL holds a user or password", credentials)
    if parts.fragment:
        raise bad_url(shown, "a storage URL takes no fragment", "write # within a prefix as %23")
    if not _BUCKET.fullmatch(parts.netloc):
        what = PLACE_NAMES[parts.scheme]
        raise bad_url(
            shown,
            f"{urls.redact_host(parts.netloc)!r} is not a {what} name",
            f"write {parts.scheme}://{what}/prefix",
        )
    prefix = unquote(parts.path).strip("/")
    if prefix and not is_path(prefix):
        raise bad_url(shown, f"{prefix[:200]!r} is not a prefix", "join names by single slashes")
    options = _parse_options(parts.scheme, parts.query, shown)
    if parts.scheme == "az" and "account" not in options:
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        if not account:
            raise bad_url(shown, "the storage account is missing", "add ?account=name")
        options["account"] = account
    return Place(scheme=parts.scheme, bucket=parts.netloc, prefix=prefix, options=options)


def _parse_options(scheme: str, query: str, shown: str) -> dict[str, str]:
    """Parse the options and return them in a fixed order, so that one place has one URL."""
    if urls.has_bare_option(query):
        raise bad_url(shown, "an option has no value", "write name=value")
    known, given = URL_OPTIONS[scheme], parse_qsl(query, keep_blank_values=True)
    for name, value in given:
        if name == "profile" and scheme == "s3":
            raise bad_url(shown, "client=obstore reads no profiles", "leave out client=obstore")
        if urls.SECRET_NAMES.search(name):
            raise bad_url(
                shown, f"the option {name[:40]!r} would put a secret into the URL", CREDENTIALS[scheme]
            )
        if name not in known:
            raise bad_url(shown, f"the option {name[:40]!r} is unknown", f"use one of {', '.join(known)}")
        if [other for other, _ in given].count(name) > 1:
            raise bad_url(shown, f"the option {name} is given twice", "give it once")
        if wanted := _expected_value(name, value):
            raise bad_url(
                shown, f"the option {name} must be {wanted}", "correct the value, or leave the option out"
            )
    return {name: value for name in known for given_name, value in given if given_name == name}


def _expected_value(name: str, value: str) -> str:
    """Describe the values that the option accepts; return an empty text when `value` is one of them."""
    if name in ("anonymous", "path_style", "self_test"):
        return "" if value in ("true", "false") else "true or false"
    if name in _NUMBERS:
        _, least, most = _NUMBERS[name]
        is_number = re.fullmatch(r"\d{1,6}(\.\d{1,3})?", value) is not None
        fits = is_number and least <= float(value) <= most
        return "" if fits else f"a number from {least:g} to {most:g}"
    if name == "client":
        return "" if value == "obstore" else "aiobotocore or obstore"
    if name == "endpoint_url":
        return "" if is_endpoint(value) else "http://host:port or https://host, without a password"
    return "" if re.fullmatch("[a-z0-9-]{1,40}", value) else "a name such as eu-central-1"


def is_endpoint(url: str) -> bool:
    """Return whether `url` names a server, perhaps with a path, and nothing else. The client libraries notice a wrong
    URL late, and one of them panics."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", parts.hostname or "") is not None
        and port != 0
        and not (parts.query or parts.fragment or "@" in parts.netloc or re.search(r"[\s\x00-\x1f]", url))
    )


def bad_url(shown: str, message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"{shown}: {message}", kind="bad_url", hint=hint)
