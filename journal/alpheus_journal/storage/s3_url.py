"""The URL of a store on S3: bucket, prefix and options (STORAGE.md, "S3")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.interface import is_path
from alpheus_journal.storage.object_url import is_endpoint
from alpheus_journal.storage.s3_client import Bucket
from alpheus_journal.urls import SECRET_NAMES, has_bare_option, redact_host, redact_url


class S3Url(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL `s3://bucket/prefix?option=value`. `prefix` has no slash at either end."""

    bucket: Bucket
    prefix: str
    deadline: float
    self_test: bool

    @classmethod
    def parse(cls, url: str) -> S3Url:
        """Parse a URL. Raises InvalidInput (`bad_url`), which names an unknown or wrong option but never repeats a
        value that may be a secret."""
        parts = urlsplit(url)
        _refuse_secrets(parts)
        options = _parse_options(parts.query)
        prefix = unquote(parts.path).strip("/")
        if parts.fragment or (prefix and not is_path(prefix)):
            raise InvalidInput(
                f"{redact_url(url)!r}: the prefix is not a path",
                kind="bad_url",
                hint="join names by single slashes; no name is . or .., and # and ? in a name are %23 and %3F",
            )
        endpoint = _parse_endpoint(options.get("endpoint_url", ""))
        style = options.get("path_style", "true" if endpoint else "")
        return cls(
            bucket=Bucket(
                name=_bucket_name(parts.netloc),
                endpoint_url=endpoint,
                region=_parse_matching("region", options.get("region", ""), "[a-z0-9-]{0,40}"),
                profile=options.get("profile", ""),
                anonymous=_parse_flag("anonymous", options.get("anonymous", "false")),
                path_style=_parse_flag("path_style", style) if style else None,
                connect_timeout=_parse_number("connect_timeout", options, 5, 0.1, 60),
                read_timeout=_parse_number("read_timeout", options, 15, 0.1, 300),
                max_connections=int(_parse_number("max_connections", options, 32, 1, 1000)),
            ),
            prefix=prefix,
            deadline=_parse_number("deadline", options, 30, 0, 600),
            self_test=_parse_flag("self_test", options.get("self_test", "true")),
        )

    def text(self) -> str:
        """Return the URL with its options in a fixed order, without options that have their default value."""
        default = S3Url.parse(f"s3://{self.bucket.name}")
        mine = msgspec.structs.asdict(self.bucket) | msgspec.structs.asdict(self)
        usual = msgspec.structs.asdict(default.bucket) | msgspec.structs.asdict(default)
        if self.bucket.endpoint_url:
            usual["path_style"] = True
        options = {name: _option_text(mine[name]) for name in _OPTIONS if mine.get(name) != usual.get(name)}
        query = urlencode(options, quote_via=quote, safe=":/[]")
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket.name}{path}" + (f"?{query}" if query else "")


_OPTIONS = (
    "endpoint_url", "region", "path_style", "profile", "anonymous", "connect_timeout", "read_timeout", "deadline",
    "max_connections", "self_test", "client",
)  # fmt: skip
_EXAMPLE = "give a URL such as s3://bucket/lake?region=eu-central-1"


def _refuse_secrets(parts: SplitResult) -> None:
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    found = "an access key" if "@" in parts.netloc else ""
    found = found or next((f"the option {name[:40]}" for name in names if SECRET_NAMES.search(name)), "")
    if found:
        raise InvalidInput(
            f"the URL of an S3 store holds {found}, but URLs are stored, logged and shown",
            kind="bad_url",
            hint="give credentials in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), in ~/.aws or by a machine role",
        )


def _parse_options(query: str) -> dict[str, str]:
    if has_bare_option(query):
        raise InvalidInput("an option of an S3 URL has no value", kind="bad_url", hint="write name=value")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS or name in options:
            raise InvalidInput(
                f"the option {name[:40]!r} of an S3 URL is "
                + ("given twice" if name in options else "unknown"),
                kind="bad_url",
                hint=f"use each option once: {', '.join(_OPTIONS)}",
            )
        options[name] = value
    if options.get("client", "aiobotocore") != "aiobotocore":
        raise _bad_option("client", "aiobotocore or obstore")
    return options


def _bad_option(option: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"the option {option} of an S3 URL must be {wanted}", kind="bad_url")


def _bucket_name(name: str) -> str:
    if name.endswith("--x-s3"):
        raise InvalidInput(
            f"{name} is a directory bucket, which can list files only by folder",
            kind="not_supported",
            hint="use a general purpose bucket",
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", name):
        raise InvalidInput(f"{redact_host(name)[:80]!r} is not a bucket name", kind="bad_url", hint=_EXAMPLE)
    return name


def _parse_endpoint(url: str) -> str:
    if not url:
        return ""
    if "@" in url:
        raise _bad_option("endpoint_url", "without user and password")
    if not is_endpoint(url) or urlsplit(url).path.strip("/"):
        raise _bad_option("endpoint_url", "http://host:port or https://host")
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _parse_matching(option: str, value: str, pattern: str) -> str:
    if not re.fullmatch(pattern, value):
        raise _bad_option(option, "a name such as eu-central-1")
    return value


def _parse_flag(option: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise _bad_option(option, "true or false")
    return value == "true"


def _parse_number(
    option: str, options: Mapping[str, str], default: float, least: float, most: float
) -> float:
    text = options.get(option)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) or not least <= float(text) <= most:
        raise _bad_option(option, f"a number from {least} to {most}")
    return float(text)


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
