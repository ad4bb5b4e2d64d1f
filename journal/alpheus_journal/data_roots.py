"""Data roots: places outside the catalog's prefix where the data files of a namespace's tables lie (FORMAT.md, "Data
roots"). Pure; `rooted_storage` opens them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

from alpheus_journal.errors import InvalidInput
from alpheus_journal.urls import redact_url

DATA_ROOT_SIZE_BYTES_MAX = 1024
DATA_ROOTS_MAX = 1000
"""The most data roots of one catalog: its definition lists all of them."""
SCHEMES = ("file", "s3", "gs", "az", "memory")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

Place = tuple[str, ...]
"""A scheme, a bucket (empty for local files) and the decoded names of the folders."""


def check_data_root(url: str) -> str:
    """Return the URL of a data root in its one form. Raises InvalidInput (`bad_data_root`).

    A root has a scheme of `SCHEMES`, a bucket or an absolute folder, and neither user, port, options nor fragment: the
    catalog's own URL has the options, and they hold for its roots.
    """

    def refuse(reason: str) -> InvalidInput:
        return InvalidInput(
            f"the data root {redact_url(url)[:200]!r} {reason}",
            kind="bad_data_root",
            hint="give a URL such as s3://bucket/team, in the same kind of store as the catalog",
        )

    if not isinstance(url, str) or len(url.encode("utf-8", "surrogatepass")) > DATA_ROOT_SIZE_BYTES_MAX:
        raise refuse(f"is not a text of at most {DATA_ROOT_SIZE_BYTES_MAX} bytes")
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
    except (ValueError, UnicodeError):
        raise refuse("is not a URL") from None
    if parts.scheme not in SCHEMES:
        raise refuse(f"does not begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise refuse("has options or a fragment; write ? and # in a name as %3F and %23")
    folders = path.strip("/").split("/") if path.strip("/") else []
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not folders:
            raise refuse("names no absolute folder, as in file:///data/team")
    elif not _HOST.fullmatch(parts.netloc):
        raise refuse("names no bucket, or has a user or a port")
    if any(name in ("", ".", "..") or _CONTROL.search(name) or "\\" in name for name in folders):
        raise refuse(
            "has a folder that is empty, . or .., or holds a control character, a surrogate or a backslash"
        )
    host = "" if parts.scheme == "file" else parts.netloc
    return f"{parts.scheme}://{host}" + "".join(f"/{quote(name, safe=_SAFE)}" for name in folders)


_SAFE = "-._~!$&'()*+,;=:@"


def place_of(url: str) -> Place:
    """Return the place that the URL of a data root or of a storage names, without its options. An LMDB store is a
    folder of local files."""
    parts = urlsplit(url)
    scheme = "file" if parts.scheme == "lmdb" else parts.scheme
    folders = [name for name in unquote(parts.path).split("/") if name]
    return (scheme, "" if scheme == "file" else parts.netloc, *folders)


def find_overlap(url: str, others: Iterable[str]) -> str | None:
    """Return the first of `others` that is equal to `url`, inside of it, or around it. None when all lie apart."""
    mine = place_of(url)
    for other in others:
        theirs = place_of(other)
        shorter = min(len(mine), len(theirs))
        if mine[:shorter] == theirs[:shorter]:
            return other
    return None
