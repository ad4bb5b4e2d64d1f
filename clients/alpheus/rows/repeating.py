"""Ids and file names that are the same each time a transaction runs.

A job that does not know whether its transaction committed may run the transaction again, with the id that its user
gave. Its operations can be compared with the recorded ones only if nothing in them is random. So ids are made from the
transaction's id and a count. File names hold a hash of the content, so that other rows never overwrite an earlier file.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from alpheus_journal.clock import Identities, make_uuid7, uuid7_millis
from alpheus_journal.tables.data_file import DataFile

_MASK_74 = (1 << 74) - 1


class RepeatableIdentities:
    """`Identities` of one transaction. The n-th id is the same in each run."""

    def __init__(self, transaction_id: str) -> None:
        self._transaction_id = transaction_id
        self._count = 0

    def uuid4(self) -> str:
        return str(uuid.UUID(bytes=self._next()[:16], version=4))

    def uuid7(self) -> str:
        return self.of_content(self._next())

    def of_content(self, content: bytes) -> str:
        """A version 7 uuid of the transaction's time and a hash of `content`."""
        number = int.from_bytes(hashlib.sha256(content).digest(), "big") & _MASK_74
        return make_uuid7(uuid7_millis(self._transaction_id), number)

    def _next(self) -> bytes:
        self._count += 1
        return hashlib.sha256(f"{self._transaction_id} {self._count}".encode()).digest()


def data_file_name(identities: Identities, number: int, data: bytes) -> str:
    """The name of the `number`-th data file of a write, in the write's own folder."""
    if isinstance(identities, RepeatableIdentities):
        return f"part-{number:05d}-{hashlib.sha256(data).hexdigest()}.parquet"
    return f"part-{number:05d}.parquet"


def segment_id(identities: Identities, files: Sequence[DataFile]) -> str:
    """The id of a manifest segment that lists `files`."""
    if isinstance(identities, RepeatableIdentities):
        return identities.of_content(msgspec.msgpack.encode([_entry(file) for file in files]))
    return identities.uuid7()


def _entry(file: DataFile) -> dict[str, Any]:
    """The fields of a file. Without checksums, they are those of earlier releases, so that the segment's id is the one
    that an earlier release gave it."""
    fields = msgspec.structs.asdict(file)
    return {name: value for name, value in fields.items() if value is not None or "crc32" not in name}
