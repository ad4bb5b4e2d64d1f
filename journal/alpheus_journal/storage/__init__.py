"""Where are bytes stored, and what may the journal rely on? Here: opening a store by its URL.

    interface           what a driver owes; a driver elsewhere imports these names from `alpheus_journal.storage`
    suitability         the self-test before the first write: does this store keep the contract?
    memory              a store in this process
    local               a directory of a local file system
    posix, syncfs       its system calls, and many files made durable at once
    lmdb                a store in one LMDB file
    lmdb_environment    that file as one process has it open
    s3, s3_client       S3 through aiobotocore: the store, and single requests
    object_store        gs://, az:// and s3:// through obstore
    object_url          their URLs

STORAGE.md tells the author of a driver what to keep, and how to test it.
"""

from __future__ import annotations

import os
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.interface import (
    FILE_SIZE_BYTES_MAX,
    ObjectInfo,
    Storage,
    check_part,
    check_path,
    check_prefix,
    check_size,
    each_of,
    file_not_there,
    files_not_stored,
    folders_above,
    is_path,
    slot_taken,
    unreadable,
)
from alpheus_journal.urls import shown

__all__ = [
    "FILE_SIZE_BYTES_MAX",
    "ObjectInfo",
    "S3_CLIENT",
    "SCHEMES",
    "Storage",
    "check_part",
    "check_path",
    "check_prefix",
    "check_size",
    "each_of",
    "file_not_there",
    "files_not_stored",
    "folders_above",
    "is_path",
    "normal_url",
    "open_storage",
    "slot_taken",
    "unreadable",
]


def normal_url(url: str) -> str:
    """A storage URL with its scheme: a bare path becomes `file:///abs/path`. Raises InvalidInput."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidInput("the catalog URL is empty", kind="bad_url", hint="for example file:///lake")
    if "://" not in url:
        if ":" in url.split("/")[0]:
            raise InvalidInput(
                f"{shown(url)!r} is no catalog URL", kind="bad_url", hint="for example file:///lake"
            )
        url = "file://" + quote(os.path.abspath(url), errors="surrogateescape")
    return url


S3_CLIENT = "aiobotocore"
"""Which library talks to S3 unless the URL says `client=`: aiobotocore or obstore."""

SCHEMES = ("file", "memory", "s3", "gs", "az", "lmdb")


def open_storage(url: str, *, create: bool = False) -> Storage:
    """The store behind a URL (a bare path is a directory). Blocks for a few calls on local disks; on object
    stores it sends nothing.

    `create` makes a missing directory. Raises InvalidInput for an unknown scheme, a malformed URL, or a driver
    whose library is not installed; NotFound for a directory that is not there. A store that cannot keep the
    contract is refused by the first write (InvalidInput, `storage_unsuitable`): opening writes nothing.
    """
    url = normal_url(url)
    try:
        parts = urlsplit(url)
        unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{shown(url)!r} is no catalog URL: its path is not UTF-8",
            kind="bad_url",
            hint="choose another name",
        ) from None
    except ValueError:  # brackets that enclose no IPv6 address; what Python says of it may quote a password
        raise InvalidInput(
            f"{shown(url)!r} is no catalog URL", kind="bad_url", hint="for example file:///lake"
        ) from None
    try:
        match parts.scheme:
            case "file":
                return _open_local(url, parts, create)
            case "memory":
                return _open_memory(url, parts)
            case "s3" if "obstore" not in parse_qs(parts.query).get("client", [S3_CLIENT]):
                from alpheus_journal.storage.s3 import open_s3

                return open_s3(url)
            case "s3" | "gs" | "az":
                from alpheus_journal.storage.object_store import open_object_store

                return open_object_store(url)
            case "lmdb":
                from alpheus_journal.storage.lmdb import open_lmdb

                return open_lmdb(url, create=create)
    except ModuleNotFoundError as error:
        extra = {"s3": "s3", "lmdb": "lmdb"}.get(parts.scheme, "object-store")
        raise InvalidInput(
            f"{shown(url)!r}: opening {parts.scheme}:// needs the library {error.name}, which is not installed",
            kind="bad_url",
            hint=f"pip install 'alpheus[{extra}]'",
        ) from error
    raise InvalidInput(
        f"{shown(url)!r} has the scheme {parts.scheme!r}, which this version cannot open",
        kind="bad_url",
        hint=f"one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}; daemons are grpc://host:port",
    )


def _open_local(url: str, parts: SplitResult, create: bool) -> Storage:
    from alpheus_journal.storage.local import LocalStorage

    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(
            f"{shown(url)!r} names a host", kind="bad_url", hint="three slashes: file:///absolute/path"
        )
    if parts.query or parts.fragment:
        raise InvalidInput(f"{shown(url)!r}: a file URL takes no options", kind="bad_url")
    return LocalStorage(unquote(parts.path), create=create)


def _open_memory(url: str, parts: SplitResult) -> Storage:
    from alpheus_journal.storage.memory import MemoryStorage

    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(f"{shown(url)!r}: a memory URL is a name alone", kind="bad_url")
    return MemoryStorage.named(unquote(parts.netloc + parts.path))
