"""Where are bytes stored, and what may the journal rely on? This module opens a store by its URL.

    interface           the contract of a driver; other packages import these names from `alpheus_journal.storage`
    suitability         the self-test before the first write: does this store keep the contract?
    memory              a store in the memory of this process
    local               a directory of a local file system
    posix, syncfs       the system calls of `local`; one `syncfs` for many files
    lmdb                a store in one LMDB file
    lmdb_environment    an LMDB file as one process has it open
    s3, s3_client       S3 through aiobotocore: the store, and single requests
    object_store        gs://, az:// and s3:// through obstore
    object_url          URLs of the stores behind obstore

STORAGE.md explains to the author of a driver which promises to keep and how to test them.
"""

from __future__ import annotations

import os
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage.interface import (
    FILE_SIZE_BYTES_MAX,
    ObjectInfo,
    OpenUpload,
    Storage,
    check_part,
    check_path,
    check_paths,
    check_prefix,
    check_size,
    each_of,
    file_not_there,
    files_not_stored,
    folders_above,
    is_path,
    slot_taken,
    split_items,
    unreadable,
)
from alpheus_journal.urls import redact_url

__all__ = [
    "FILE_SIZE_BYTES_MAX",
    "ObjectInfo",
    "OpenUpload",
    "S3_CLIENT",
    "SCHEMES",
    "Storage",
    "check_part",
    "check_path",
    "check_paths",
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
    "split_items",
    "unreadable",
]


def normal_url(url: str) -> str:
    """Return the storage URL with its scheme: a bare path becomes `file:///abs/path`. Raises InvalidInput."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidInput("the catalog URL is empty", kind="bad_url", hint="give a URL such as file:///lake")
    if "://" not in url:
        if ":" in url.split("/")[0]:
            raise InvalidInput(
                f"{redact_url(url)!r} is not a catalog URL",
                kind="bad_url",
                hint="give a URL such as file:///lake",
            )
        url = "file://" + quote(os.path.abspath(url), errors="surrogateescape")
    return url


S3_CLIENT = "aiobotocore"
"""The library that talks to S3 unless the URL has the option `client=`: aiobotocore or obstore."""

SCHEMES = ("file", "memory", "s3", "gs", "az", "lmdb")


def open_storage(url: str, *, create: bool = False) -> Storage:
    """Open the store behind a URL; a bare path is a directory.

    On local disks this blocks for a few system calls; to object stores it sends nothing. `create` makes a missing
    directory. Raises InvalidInput for an unknown scheme, a malformed URL, or a driver whose library is not
    installed, and NotFound for a missing directory. Opening writes nothing, so a store that cannot keep the
    contract is refused by the first write (InvalidInput, `storage_unsuitable`).
    """
    url = normal_url(url)
    try:
        parts = urlsplit(url)
        unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{redact_url(url)!r} is not a catalog URL: its path is not UTF-8",
            kind="bad_url",
            hint="choose another name",
        ) from None
    except ValueError:  # brackets that enclose no IPv6 address; Python's message may quote a password
        raise InvalidInput(
            f"{redact_url(url)!r} is not a catalog URL",
            kind="bad_url",
            hint="give a URL such as file:///lake",
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
            f"{redact_url(url)!r}: opening {parts.scheme}:// needs the library {error.name}, which is not installed",
            kind="bad_url",
            hint=f"pip install 'alpheus[{extra}]'",
        ) from error
    raise InvalidInput(
        f"{redact_url(url)!r} has the scheme {parts.scheme!r}, which this version cannot open",
        kind="bad_url",
        hint=f"use one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}; a daemon is grpc://host:port",
    )


def _open_local(url: str, parts: SplitResult, create: bool) -> Storage:
    from alpheus_journal.storage.local import LocalStorage

    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(
            f"{redact_url(url)!r} names a host",
            kind="bad_url",
            hint="write three slashes: file:///absolute/path",
        )
    if parts.query or parts.fragment:
        raise InvalidInput(f"{redact_url(url)!r}: a file URL takes no options", kind="bad_url")
    return LocalStorage(unquote(parts.path), create=create)


def _open_memory(url: str, parts: SplitResult) -> Storage:
    from alpheus_journal.storage.memory import MemoryStorage

    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(f"{redact_url(url)!r}: a memory URL takes a name and nothing else", kind="bad_url")
    return MemoryStorage.named(unquote(parts.netloc + parts.path))
