"""Hide secrets in URLs before people see them, in errors, hints, logs and settings.

A refused URL may hold a secret: a user's password, a token among its options, a fragment. The user still recognises
the URL by its scheme, host and path. This module handles only text; it does no look-ups and refuses nothing.
"""

from __future__ import annotations

import re

HIDDEN = "…"

SECRET_NAMES = re.compile(
    r"secret|token|password|passwd|credential|signature|access.?key|(^|_)(key|sas|sig|pwd)$", re.I
)
"""Matches names of URL options that would put a secret into the URL."""

_URL_IN_TEXT = (
    r"[A-Za-z][A-Za-z0-9+.-]{0,63}:/+[^\s'\"<>]*[^\s'\"<>().,;:!]"
    r"|\?[A-Za-z0-9_.-]{1,40}+=[^\s'\"<>]*[^\s'\"<>().,;:!]"
)
_URLS = re.compile(_URL_IN_TEXT)
_IN_TEXT = re.compile(
    _URL_IN_TEXT + r"|[^\s'\"():]{1,256}+:[^\s'\"()@]{0,4096}+@[^\s'\"<>]*[^\s'\"<>().,;:!]"
)
"""Bounded and possessive, so that the time for a hostile text is at most its length times these bounds."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)(.*)", re.DOTALL)
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_PLACE = re.compile(r"([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[]*)(?::(.*))?", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}|port")  # or the word, in texts that say what a URL looks like
_PATH_WITH_OPTIONS = re.compile(r"([^?]*)\?([A-Za-z0-9_.-]{1,40}=.*)", re.DOTALL)


def redact_url(url: object) -> str:
    """Return `url` without its possible secrets: user and password, values of options, fragment. Any text is accepted,
    even one that is not a URL. For a value that is not a text, return its type."""
    return _redact_secrets(url) if isinstance(url, str) else f"<{type(url).__name__}>"


def redact_host(netloc: str) -> str:
    """Hide secrets in the part of a URL between `//` and the path; see `redact_url`."""
    return redact_url(f"s3://{netloc}").removeprefix("s3://")


def has_scheme(text: str) -> bool:
    """Return whether `text` begins like a URL, with a scheme and `://`."""
    return _SCHEME.match(text) is not None


def has_bare_option(query: str) -> bool:
    """Return whether the query of a URL holds an item without `=`. Such an item is not an option, may be a secret, and
    must not be repeated."""
    return any("=" not in item for item in query.split("&") if item)


def redact_text(text: str) -> str:
    """Hide secrets in every URL of a foreign text, such as an error of a library; see `redact_url`."""
    return _IN_TEXT.sub(_redact_match, text)


def redact_urls(text: str) -> str:
    """Hide secrets only in URLs with a scheme and in options, because `user:word@host` may be a principal; see
    `redact_text`."""
    return _URLS.sub(_redact_match, text) if ":/" in text or "?" in text else text


def redact_input(text: object) -> str:
    """Prepare for quoting in an error what a user gave as a name, version, number or word. Secrets of a URL are hidden
    (see `redact_url`); any other text stays unchanged."""
    if not isinstance(text, str):
        return redact_text(repr(text))
    scheme, colon, _ = text.strip().lower().partition(":")
    return redact_url(text) if colon and scheme in _SCHEMES else redact_text(text)


def _redact_match(found: re.Match[str]) -> str:
    text = found[0]
    return f"?{_redact_options(text[1:])}" if text.startswith("?") else redact_url(text)


def _redact_secrets(text: str) -> str:
    text = text.lstrip()
    found = _URL.fullmatch(text)
    if found is None:
        if text.startswith(("/", ".", "~")) or "@" not in text:  # a path
            with_options = _PATH_WITH_OPTIONS.fullmatch(text)
            return f"{with_options[1]}?{_redact_options(with_options[2])}" if with_options else text
        return f"{HIDDEN}@{_redact_place(text.rpartition('@')[2])}"
    scheme, slashes, rest = found[1], found[2], found[3]
    if len(scheme) == 1 or (not slashes and scheme.lower() not in _SCHEMES):
        # This is a path with a colon, a drive, or a user and password without a scheme.
        head, at, tail = text.rpartition("@")
        return f"{HIDDEN}{at}{_redact_place(tail)}" if head else f"{scheme}:{HIDDEN}"
    is_path = scheme.lower() in _PATHS and len(slashes) > 2
    user = ""
    # A password may hold characters that end a host: ? # /
    head, at, tail = rest.rpartition("@")
    if at and not is_path and (":" in head or not re.search("[/?#]", head)):
        user, rest = f"{HIDDEN}@", tail
    return f"{scheme}:{slashes}{user}{_redact_place(rest, is_path=is_path)}"


_PATHS = ("file", "lmdb", "unix", "memory")
_SCHEMES = (*_PATHS, "s3", "gs", "az", "grpc", "grpcs", "http", "https")


def _redact_place(text: str, *, is_path: bool = False) -> str:
    """Return host, path and names of options."""
    found = _PLACE.fullmatch(text)
    assert found is not None
    place, query, fragment = found[1], found[2] or "", found[3] or ""
    if not is_path:
        host, slash, path = place.partition("/")
        parts = _HOST.fullmatch(host)
        if parts is None:
            host = HIDDEN
        elif parts[2] and not _PORT.fullmatch(parts[2]):
            host = f"{parts[1]}:{HIDDEN}"
        place = host + slash + path
    if query:
        query = "?" + _redact_options(query[1:])
    return place + query + (f"#{HIDDEN}" if fragment else "")


def _redact_options(query: str) -> str:
    return "&".join(_redact_option(item) for item in query.split("&") if item)


def _redact_option(item: str) -> str:
    name, equals, _ = item.partition("=")
    return f"{name}={HIDDEN}" if equals and re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name) else HIDDEN
