"""The checksums that a data file's entry has: of the whole file, and of its footer (FORMAT.md, "Checksums of data
files").

Pure: the caller reads the bytes. An entry that was listed without checksums shows no flaw.
"""

from __future__ import annotations

import zlib

import msgspec

from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.parquet_guard import TAIL_SIZE_BYTES


def with_checksums(file: DataFile, data: bytes) -> DataFile:
    """Return the entry with the checksums of the file's bytes, which must be a whole Parquet file."""
    size = int.from_bytes(data[-TAIL_SIZE_BYTES:-4], "little") + TAIL_SIZE_BYTES
    assert TAIL_SIZE_BYTES < size <= len(data), "the caller has read the footer"
    end = memoryview(data)[-size:]
    return msgspec.structs.replace(file, crc32=zlib.crc32(data), footer_crc32=zlib.crc32(end))


def find_changed_bytes(file: DataFile, data: bytes) -> str:
    """Say how the bytes of a data file differ from those that were committed, or return ""."""
    return "" if file.crc32 is None else _difference("bytes", zlib.crc32(data), file.crc32)


def find_changed_footer(file: DataFile, end: bytes) -> str:
    """Say how a footer, given with the bytes after it, differs from the one that was committed, or return ""."""
    return "" if file.footer_crc32 is None else _difference("a footer", zlib.crc32(end), file.footer_crc32)


def _difference(what: str, found: int, committed: int) -> str:
    if found == committed:
        return ""
    return f"has {what} with the CRC-32 {found:08x}, {committed:08x} was committed"
