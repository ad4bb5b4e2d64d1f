"""Checkpoints: the flat table of one version as a file that opens by mapping (FORMAT.md, "Checkpoints").

A checkpoint is a hint. It is used if it is intact, belongs to this history, and a sample of it agrees with the tree.
Otherwise it is skipped with a reason, and costs only time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import mmap
import os
import random
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import IO, Any

import msgspec
import pyarrow as pa

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.format import Kind
from alpheus_journal.log.versions import Log
from alpheus_journal.mmap_file import map_file, nameless_copy, open_plain
from alpheus_journal.replay.flat import Flat, unpack
from alpheus_journal.replay.symbols import Comparison
from alpheus_journal.storage import Storage
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Malformed, rows_claimed
from alpheus_journal.tree.reader import Reader

FOLDER = "checkpoint/"
REVISION = 1
FETCHED_SIZE_BYTES_MAX = 16 << 30
"""The largest checkpoint that is copied to this machine to be mapped."""
MAPPED_SIZE_BYTES = 1 << 20
METADATA_SIZE_BYTES_MAX = 4 << 20
SAMPLE_KEYS = 16
SAMPLE_DEFINITIONS = 4
SAMPLE_LEAVES = 16
_PIECE_BYTES = 1 << 20

SCHEMA = pa.schema(
    [
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("path", pa.large_binary(), nullable=False),
        pa.field("definition", pa.large_binary()),
    ]
)
_PATH = re.compile(r"checkpoint/([01]{32}|[01]{64})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.arrow")


def checkpoint_path(version: int, digits: int, uuid: str) -> str:
    return f"{FOLDER}{fmt.version_file(version, digits).removeprefix('vn/')}-{uuid}.arrow"


def parse_checkpoint_path(path: str) -> tuple[int, int] | None:
    """(version, digits) of a checkpoint's path; None for another file of the folder."""
    match = _PATH.fullmatch(path)
    return fmt.parse_version_file(f"vn/{match.group(1)}") if match else None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a checkpoint. `catalog_def_bytes` is None if the catalog's definition was damaged."""

    catalog_id: str
    version: int
    commit_id: str
    created_at_millis: int
    """The creation time of the file, by its writer's clock."""
    version_created_at_millis: int
    """The latest creation time of any version up to this one."""
    catalog_def: str
    catalog_def_bytes: bytes | None
    objects: int


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that can be used."""

    path: str
    facts: Facts
    flat: Flat
    size_bytes: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was not used. `reason` is one of REASONS."""

    path: str
    reason: str
    message: str


REASONS = ("gone", "unreadable", "damaged", "newer_format", "other_catalog", "other_history", "disagrees")


# --- bytes -----------------------------------------------------------------------------------------

_REVISION = "alpheus.checkpoint"
_CHECKSUMS = "alpheus.crc32"
_METADATA_CHECKSUM = "alpheus.metadata_crc32"


class _Pieces(io.RawIOBase):
    """Copies Arrow's output a megabyte at a time, because a longer copy in one thread would hold up all others."""

    def __init__(self) -> None:
        self.data = io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            self.data.write(view[start : start + _PIECE_BYTES])
        return len(view)


def encode_checkpoint(flat: Flat, facts: Facts) -> bytes:
    """Return the bytes of the file. Takes time and a copy of everything, so it must not run in an event loop."""
    batch = pa.record_batch(
        [flat.keys.array, flat.paths.array, flat.definitions.array],
        schema=SCHEMA.with_metadata(_metadata(facts, _checksums(flat, len(flat)))),
    )
    sink = _Pieces()
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    return sink.data.getvalue()


def _metadata(facts: Facts, checksums: str) -> dict[str, str]:
    definition = facts.catalog_def_bytes
    found = {
        _REVISION: str(REVISION),
        "alpheus.catalog_id": facts.catalog_id,
        "alpheus.version": str(facts.version),
        "alpheus.commit_id": facts.commit_id,
        "alpheus.created_at_millis": str(facts.created_at_millis),
        "alpheus.version_created_at_millis": str(facts.version_created_at_millis),
        "alpheus.catalog_def": facts.catalog_def,
        "alpheus.catalog_def_bytes": "" if definition is None else base64.b64encode(definition).decode(),
        "alpheus.objects": str(facts.objects),
        _CHECKSUMS: checksums,
    }
    return {**found, _METADATA_CHECKSUM: _metadata_checksum(found)}


def _metadata_checksum(metadata: Mapping[str, str]) -> str:
    lines = (f"{key}={value}\n" for key, value in sorted(metadata.items()) if key != _METADATA_CHECKSUM)
    return f"{zlib.crc32(''.join(lines).encode()):08x}"


def _checksums(flat: Flat, rows: int) -> str:
    """Return the CRC-32 of validity, offsets and data of each column, as far as `rows` rows use them."""
    found = []
    for column in (flat.keys, flat.paths, flat.definitions):
        found += [zlib.crc32(part) for part in _parts(column.array, rows)]
    return ",".join(f"{number:08x}" for number in found)


def _parts(array: pa.LargeBinaryArray, rows: int) -> list[memoryview]:
    validity, offsets, data = (memoryview(buffer or b"") for buffer in array.buffers())
    if not array.null_count:
        validity = memoryview(b"")
    offsets = offsets[: 8 * (rows + 1)] if rows else memoryview(bytes(8))
    end = struct.unpack_from("<q", offsets, 8 * rows)[0]
    return [validity[: (rows + 7) // 8], offsets, data[:end]]


def decode_checkpoint(data: Any) -> tuple[Facts, Flat]:
    """Return the table in a buffer, without a copy. Reads the whole buffer once.

    Raises Malformed for a file that is not intact, and InvalidInput (`newer_format`).
    """
    view = memoryview(data)
    try:
        rows = rows_claimed(view)
    except struct.error:
        raise Malformed("an offset leads outside the file") from None
    if not 0 <= rows <= len(view) // 24:
        raise Malformed(f"it claims {rows} rows, more than the file can hold")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = _text_metadata(reader.schema.metadata)
        if not reader.schema.equals(SCHEMA):
            raise Malformed("the columns are not key, path and definition")
        facts = _facts(metadata)
        if rows != facts.objects:
            raise Malformed(f"it holds {rows} objects, but its metadata says {facts.objects}")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != rows or any(column.offset for column in batch.columns):
            raise Malformed("the header contradicts itself")
        columns = [
            pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, column.buffers())
            for column in batch.columns
        ]
        if columns[0].null_count or columns[1].null_count:
            raise Malformed("a key or a path is null")
        for column in columns[:2]:
            column.cast(pa.large_string())  # refuses bytes that are not UTF-8
        if rows and any(memoryview(column.buffers()[1])[:8] != bytes(8) for column in columns):
            raise Malformed("the values of a column do not begin at 0")  # as ours do
        flat = Flat(*columns)
        if _checksums(flat, rows) != metadata[_CHECKSUMS]:
            raise Malformed("a checksum differs")
    except (
        pa.ArrowException, OSError, ValueError, TypeError, LookupError, EOFError, struct.error,
    ) as error:  # fmt: skip
        raise Malformed(f"no valid Arrow file: {str(error)[:200]}") from error
    if not flat.keys.is_ascending() or (rows and not flat.keys[0]):
        raise Malformed("the keys do not ascend")
    return facts, flat


def _text_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    if sum(len(key) + len(value) for key, value in (metadata or {}).items()) > METADATA_SIZE_BYTES_MAX:
        raise Malformed("its metadata is too large")
    found = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    revision = found.get(_REVISION, "")
    if not re.fullmatch("[1-9][0-9]{0,8}", revision):
        raise Malformed("it is not a checkpoint")
    if int(revision) > REVISION:
        raise InvalidInput(f"it is written in revision {revision} of the format", kind="newer_format")
    if found.get(_METADATA_CHECKSUM) != _metadata_checksum(found):
        raise Malformed("the checksum of its metadata differs")
    return found


def _facts(metadata: Mapping[str, str]) -> Facts:
    """Decode the metadata. Raises ValueError and KeyError."""
    numbers = {}
    for name in ("version", "created_at_millis", "version_created_at_millis", "objects"):
        text = metadata[f"alpheus.{name}"]
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ValueError(f"{name} is not a number")
        numbers[name] = int(text)
    try:
        definition = base64.b64decode(metadata["alpheus.catalog_def_bytes"], validate=True)
        path = fmt.check_definition_pointer(metadata["alpheus.catalog_def"], Kind.CATALOG)
    except (binascii.Error, Corrupt) as error:
        raise ValueError(f"its catalog definition: {error}") from error
    return Facts(
        catalog_id=metadata["alpheus.catalog_id"],
        commit_id=metadata["alpheus.commit_id"],
        catalog_def=path,
        catalog_def_bytes=definition or None,
        **numbers,
    )


# --- opening ---------------------------------------------------------------------------------------


async def list_checkpoints(storage: Storage, log: Log, head: int) -> list[str]:
    """Return the paths of checkpoints at or below a version, newest first."""
    found: list[tuple[int, str]] = []
    async with aclosing(storage.list(FOLDER)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            parsed = parse_checkpoint_path(entry.path)
            if parsed is not None and parsed[1] == log.digits and parsed[0] <= head:
                found.append((parsed[0], entry.path))
    return [path for _, path in sorted(found, reverse=True)]


async def open_checkpoint(storage: Storage, path: str, cache_dir: str = "") -> Opened:
    """Map a checkpoint, after checking that the file is intact.

    A file of a remote store is copied to `cache_dir` first (empty means the system's folder for temporary files). The
    copy has no name. Small files are held in memory instead. Nothing but intactness is checked.
    Raises NotFound, Corrupt, Unavailable, InvalidInput (`newer_format`).
    """
    local = storage.local_path(path)
    try:
        if local is not None:
            return await asyncio.to_thread(_open_local, local, path)
        data = await storage.read(path, size_max=FETCHED_SIZE_BYTES_MAX)
        return await asyncio.to_thread(_open_copy, data, path, cache_dir)
    except Malformed as error:
        raise Corrupt(f"checkpoint {path}: {error}", kind="corrupt_index", path=path) from error
    except OSError as error:
        if local is None:
            raise Unavailable(
                f"checkpoint {path} cannot be copied to this machine: {error}",
                path=path,
                hint=f"check the folder for such copies, {cache_dir or tempfile.gettempdir()}",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"there is no file {path}", kind="no_file", path=path) from None
        raise Corrupt(f"checkpoint {path}: {error}", kind="corrupt_index", path=path) from error


def _open_local(local: str, path: str) -> Opened:
    with open_plain(local) as file:
        return _map(file, path)


def _open_copy(data: bytes, path: str, cache_dir: str) -> Opened:
    if len(data) < MAPPED_SIZE_BYTES:
        facts, flat = decode_checkpoint(data)
        return Opened(path=path, facts=facts, flat=flat, size_bytes=len(data))
    with nameless_copy(data, cache_dir) as file:
        return _map(file, path)


def _map(file: IO[bytes], path: str) -> Opened:
    size = os.fstat(file.fileno()).st_size
    if not size:
        raise Malformed("it is empty")
    pages = map_file(file)
    facts, flat = decode_checkpoint(pages)
    if hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)  # the check read every page; few pages are needed from now on
    return Opened(path=path, facts=facts, flat=flat, size_bytes=size)


async def newest_checkpoint(
    storage: Storage, log: Log, reader: Reader, *, catalog_id: str, head_version: int, head_commit_id: str,
    draw: Callable[[], random.Random], cache_dir: str = "",
) -> tuple[Opened | None, list[Skipped]]:  # fmt: skip
    """Open the newest usable checkpoint at or below the head. Also return the checkpoints that were skipped."""
    skipped: list[Skipped] = []
    paths = await list_checkpoints(storage, log, head_version)
    await failpoints.reached("checkpoint.listed")
    for path in paths:
        try:
            opened = await open_checkpoint(storage, path, cache_dir)
            await _check(opened, log, reader, catalog_id, head_version, head_commit_id, draw)
        except _Unusable as error:
            skipped.append(Skipped(path=path, reason=error.reason, message=str(error)))
        except AlpheusError as error:
            reason = "unreadable"
            if isinstance(error, NotFound):
                reason = "gone"
            elif isinstance(error, Corrupt):
                reason = "damaged"
            elif error.kind == "newer_format":
                reason = "newer_format"
            skipped.append(Skipped(path=path, reason=reason, message=error.message))
        else:
            await failpoints.reached("checkpoint.opened")
            return opened, skipped
    return None, skipped


class _Unusable(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def _check(
    opened: Opened, log: Log, reader: Reader, catalog_id: str, head_version: int, head_commit_id: str,
    draw: Callable[[], random.Random],
) -> None:  # fmt: skip
    """Check that an intact checkpoint belongs to this history, and compare a sample of it with the tree.

    Raises _Unusable, and any error of reading the log.
    """
    facts, path = opened.facts, opened.path
    if facts.catalog_id != catalog_id:
        raise _Unusable("other_catalog", f"checkpoint {path} belongs to catalog {facts.catalog_id}")
    if parse_checkpoint_path(path) != (facts.version, log.digits):
        raise _Unusable("damaged", f"the metadata of checkpoint {path} names version {facts.version}")
    commit_id = head_commit_id if facts.version == head_version else await log.commit_id(facts.version)
    if facts.commit_id != commit_id:
        raise _Unusable(
            "other_history",
            f"checkpoint {path} belongs to {facts.commit_id}, but version {facts.version} is {commit_id}",
        )
    try:
        root = await log.read(facts.version)
    except Expired:
        return  # the tree may be collected; only the commit id can be compared
    if facts.catalog_def != root.catalog_def:
        raise _Unusable("disagrees", f"checkpoint {path} names another catalog definition")
    flat, rng = opened.flat, draw()
    rows = sorted(rng.sample(range(len(flat)), min(SAMPLE_KEYS, len(flat))))
    keys = {unpack(flat.keys[row]): row for row in rows}
    found = await tree.run_async(tree.find(root.node, keys), reader.load_nodes)
    for key, row in keys.items():
        if found.get(key) != flat.path(row):
            name = reader.keys.parse(key)
            raise _Unusable(
                "disagrees",
                f"checkpoint {path} has {flat.path(row)} for {name}, but the tree has {found.get(key)}",
            )
    # Keys that the checkpoint lacks are found only by reading leaves of the tree.
    for leaf in await tree.run_async(tree.random_leaves(root.node, rng, SAMPLE_LEAVES), reader.load_nodes):
        comparison = Comparison(reader.keys)
        comparison.add(leaf.items, flat.between(leaf.above, leaf.below))
        if comparison.differences:
            found_there = comparison.drift(facts.version, sampled=True).text()
            raise _Unusable("disagrees", f"checkpoint {path} differs from the tree ({found_there})")
    known = [(key, row) for key, row in keys.items() if row not in set(flat.missing)]
    picked = rng.sample(known, min(SAMPLE_DEFINITIONS, len(known)))
    stored = await reader.stored({flat.path(row): reader.keys.parse(key).kind for key, row in picked})
    for key, row in picked:
        there = stored[flat.path(row)]
        if there.damage is None and there.definition != flat.definitions[row]:
            raise _Unusable(
                "disagrees", f"checkpoint {path} has another definition of {reader.keys.parse(key)}"
            )


# --- writing ---------------------------------------------------------------------------------------


async def write_checkpoint(storage: Storage, path: str, flat: Flat, facts: Facts) -> int:
    """Store the table of one version, and return its size in bytes."""
    data = await asyncio.to_thread(encode_checkpoint, flat, facts)
    await failpoints.reached("checkpoint.put")
    await storage.put(path, data)
    await failpoints.reached("checkpoint.written")
    return len(data)


async def drop_old(storage: Storage, log: Log, *, below: int, kept: int, own: str = "") -> list[str]:
    """Delete all checkpoints at or below a version except the newest `kept`, and return the deleted paths.

    Another process may delete concurrently. `own` counts as the newest, because other processes may have written
    checkpoints of the same version.
    """
    paths = sorted(await list_checkpoints(storage, log, below), key=lambda path: path != own)
    for path in paths[kept:]:
        await failpoints.reached("checkpoint.drop")
        with suppress(NotFound):
            await storage.delete(path)
    return paths[kept:]
