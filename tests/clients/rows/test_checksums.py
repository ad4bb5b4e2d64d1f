"""Manifest entries have checksums of their files: every writer gives them, and every read compares them."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alpheus import aio
from alpheus.aio import AsyncCatalog
from alpheus.rows.file_reader import ListedFile, list_files, read_data_file
from alpheus.rows.repeating import RepeatableIdentities, segment_id
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Loaded
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.checksums import find_changed_bytes, find_changed_footer, with_checksums
from alpheus_journal.tables.data_file import DataFile

ROWS = pa.table(
    {
        "id": pa.array([1, 2, None, 4] * 50, pa.int64()),
        "name": pa.array(["a", None, "b" * 40, "c"] * 50),
        "tags": pa.array([["x"], [], None, ["y", None]] * 50, pa.list_(pa.string())),
    }
)


@pytest.fixture
async def catalog() -> AsyncIterator[AsyncCatalog]:
    async with await aio.connect("memory://checksums", create=True) as opened:
        await opened.create_namespace("s")
        yield opened
    MemoryStorage.forget("checksums")


@pytest.fixture
async def old_catalog() -> AsyncIterator[AsyncCatalog]:
    async with await aio.create("memory://checksums-1", format_revision=1) as opened:
        await opened.create_namespace("s")
        yield opened
    MemoryStorage.forget("checksums-1")


async def listed(catalog: AsyncCatalog, name: str = "t") -> list[ListedFile]:
    (stored,) = (await catalog._session.load(None, [ObjectName(Kind.TABLE, "s", name)])).objects
    assert stored is not None
    table = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(table, TableDef)
    return await list_files(await catalog.storage(), table)


async def bytes_of(catalog: AsyncCatalog, file: DataFile) -> bytes:
    return await (await catalog.storage()).read(file.path, size_max=1 << 30)


async def replace(catalog: AsyncCatalog, file: DataFile, data: bytes) -> None:
    """Store other bytes at the path of a file, as a disk or another program may."""
    storage = await catalog.storage()
    await storage.delete(file.path)
    await storage.put(file.path, data)


def footer_of(data: bytes) -> bytes:
    """The footer and the bytes after it."""
    return data[-8 - int.from_bytes(data[-8:-4], "little") :]


def assert_names(error: Corrupt, one: ListedFile) -> None:
    assert (error.kind, error.path) == ("corrupt_manifest", one.file.path)
    assert error.message.startswith(f"table s.t: {one.file.path}: the data file has bytes with the CRC-32 ")
    assert error.message.endswith(f"manifest segment {one.segment.path} lists it")
    assert "alpheus check --values" in error.hint


async def test_each_flipped_bit_is_an_error(
    catalog: AsyncCatalog, lane_count: Callable[[int, int], int]
) -> None:
    """In pages, headers of pages, page indexes and the footer: also where no reader would look."""
    await catalog.create_table("s.t", ROWS.schema)
    await catalog.append("s.t", ROWS)
    (one,) = await listed(catalog)
    data = await bytes_of(catalog, one.file)
    rng = random.Random(3)
    places = range(len(data))
    for place in sorted(rng.sample(places, min(len(places), lane_count(300, 100_000)))):
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        await replace(catalog, one.file, bytes(damaged))
        with pytest.raises(Corrupt) as caught:
            await catalog.read("s.t")
        assert_names(caught.value, one)
    await replace(catalog, one.file, data)
    assert (await catalog.read("s.t")).equals(ROWS)


async def test_files_that_changed_places_are_an_error(catalog: AsyncCatalog) -> None:
    """The two files have equal sizes, footers, numbers of rows, and statistics; only a value in the middle differs."""
    await catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
    async with catalog.transaction() as tx:
        for middle in (5, 7):
            await tx.append("s.t", [{"id": 1}, {"id": middle}, {"id": 9}])
    two = await listed(catalog)
    contents = [await bytes_of(catalog, one.file) for one in two]
    assert footer_of(contents[0]) == footer_of(contents[1])
    assert contents[0] != contents[1]
    for one, data in zip(two, reversed(contents), strict=True):
        await replace(catalog, one.file, data)
    with pytest.raises(Corrupt) as caught:
        await catalog.read("s.t")
    assert_names(caught.value, two[0])
    verbs: list[Any] = [
        lambda: catalog.read("s.t", where="id > 1"),
        lambda: catalog.update("s.t", {"id": 6}, "id = 5", mode="rewrite"),
        lambda: catalog.delete("s.t", "id = 5", mode="rewrite"),
        lambda: catalog.compact("s.t"),
    ]
    for verb in verbs:
        with pytest.raises(Corrupt, match="has bytes with the CRC-32"):
            await verb()
    assert (await catalog.admin.check(footers=True)).ok, "the footers are equal"
    found = (await catalog.admin.check(values=True)).findings
    assert sorted(finding.path for finding in found) == sorted(one.file.path for one in two)
    assert all("has bytes with the CRC-32" in finding.message for finding in found)


async def test_a_check_of_footers_names_a_footer_that_fits_the_entry(catalog: AsyncCatalog) -> None:
    """The footer of the other file says the same of the rows, and names another transaction."""
    await catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
    for _ in range(2):
        await catalog.append("s.t", [{"id": 1}, {"id": 9}])
    one, other = await listed(catalog)
    data = await bytes_of(catalog, other.file)
    assert len(data) == one.file.size_bytes
    await replace(catalog, one.file, data)
    (finding,) = (await catalog.admin.check(footers=True)).findings
    assert finding.path == one.file.path
    assert "has a footer with the CRC-32" in finding.message
    assert find_changed_footer(one.file, footer_of(data))
    assert not find_changed_footer(other.file, footer_of(data))


async def test_every_writer_gives_the_checksums_of_the_stored_bytes(
    catalog: AsyncCatalog, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    rows = pa.table({"id": range(40), "v": [str(n) for n in range(40)]}, schema)
    await catalog.create_table("s.t", schema, partition_by=["v"], sort_by=["id"])
    await catalog.create_table("s.u", schema)
    for name in ("s.t", "s.u"):
        await catalog.append(name, rows.slice(0, 9))
        await catalog.overwrite(name, rows.slice(0, 7))
        await catalog.update(name, {"v": "new"}, "id < 3")
        await catalog.delete(name, "id = 4", mode="rewrite")
        await catalog.merge(name, rows.slice(6, 5), "id")
    pq.write_table(rows, tmp_path / "other.parquet")
    own = {"id": {"PARQUET:field_id": "1"}, "v": {"PARQUET:field_id": "2"}}
    numbered = pa.schema([schema.field(name).with_metadata(ids) for name, ids in own.items()])
    pq.write_table(rows.cast(numbered), tmp_path / "own.parquet")
    await catalog.append_files("s.u", [tmp_path / "other.parquet", tmp_path / "own.parquet"])
    await catalog.import_table("s.v", tmp_path / "other.parquet")
    for name in ("t", "u", "v"):
        files = await listed(catalog, name)
        assert files
        for one in files:
            assert one.file == with_checksums(one.file, await bytes_of(catalog, one.file)), one.file.path
            assert one.file.crc32 is not None
    before = len(await listed(catalog, "u"))
    await catalog.compact("s.u")
    compacted = await listed(catalog, "u")
    assert len(compacted) < before
    for one in compacted:
        assert one.file == with_checksums(one.file, await bytes_of(catalog, one.file))


# --- revision 1 ------------------------------------------------------------------------------------


async def test_a_catalog_of_revision_1_has_no_checksums_until_it_is_upgraded(
    old_catalog: AsyncCatalog, tmp_path: Path
) -> None:
    catalog = old_catalog
    await catalog.create_table("s.t", ROWS.schema)
    await catalog.append("s.t", ROWS)
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    await catalog.append_files("s.t", tmp_path / "rows.parquet")
    old = await listed(catalog)
    for one in old:
        assert one.file.crc32 is None
        data = await (await catalog.storage()).read(one.segment.path, size_max=1 << 20)
        assert pa.ipc.open_file(data).schema.names[-1] == "name_map"
        assert find_changed_bytes(one.file, b"anything") == ""
        assert find_changed_footer(one.file, b"anything") == ""
    await catalog.admin.upgrade()
    for _ in range(9):  # with the two, enough segments for a merge
        await catalog.append("s.t", ROWS)
    found = {one.file.path: one for one in await listed(catalog)}
    assert len({one.segment.path for one in found.values()}) < len(found), "segments were merged"
    for path, one in found.items():
        if path in {each.file.path for each in old}:
            assert one.file.crc32 is None
        else:
            assert one.file == with_checksums(one.file, await bytes_of(catalog, one.file))
    assert (await catalog.read("s.t")).num_rows == 11 * len(ROWS)
    assert (await catalog.admin.check(values=True)).ok
    page = bytearray(await bytes_of(catalog, old[0].file))
    page[40] ^= 1
    await replace(catalog, old[0].file, bytes(page))
    with pytest.raises(Corrupt, match="not a valid Parquet file"):  # by the page's own checksum
        await catalog.read("s.t")


async def test_revision_1_refuses_checksums(
    old_catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A careless client would store a segment that programs of revision 1 cannot read."""

    async def always(session: Session, at: int) -> bool:
        return True

    await old_catalog.create_table("s.t", ROWS.schema)
    monkeypatch.setattr(Session, "lists_checksums", always)
    with pytest.raises(InvalidInput, match="checksums of files") as caught:
        await old_catalog.append("s.t", ROWS)
    assert caught.value.kind == "upgrade_needed"
    assert (await old_catalog.read("s.t")).num_rows == 0


async def test_another_client_learns_of_an_upgrade(old_catalog: AsyncCatalog) -> None:
    """The session has seen revision 1, and asks again while that is all that it knows."""
    async with await aio.connect("memory://checksums-1") as other:
        await other.create_table("s.t", ROWS.schema)
        await other.append("s.t", ROWS)
        await old_catalog.admin.upgrade()
        await other.append("s.t", ROWS)
        assert sorted(one.file.crc32 is None for one in await listed(other)) == [False, True]


async def test_a_begin_version_may_have_expired(
    catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Session.load

    async def expired_load(session: Session, at: At, names: list[ObjectName]) -> Loaded:
        if at is not None:
            raise Expired("version 1 has expired", kind="version_expired")
        return await load(session, at, names)

    session = catalog._session
    assert await session.lists_checksums(1)
    session._definition = None
    monkeypatch.setattr(Session, "load", expired_load)
    assert await session.lists_checksums(1)


def test_a_repeated_transaction_gives_the_segment_its_former_id() -> None:
    """Without checksums the id is the one of earlier releases; checksums tell files apart."""
    table, transaction = "6a1f8f3e-3d55-4f0e-9d3e-0c1f8e9b7a10", "01900000-0000-7000-8000-000000000001"
    file = DataFile(
        path=fmt.data_folder(table, transaction, "1b4e28ba-2fa1-41d2-883f-0016d3cca427")
        + "part-00000.parquet",
        row_count=2,
        size_bytes=100,
        value_counts={1: 2},
        null_counts={1: 0},
        column_sizes={1: 40},
        lower_bounds={1: b"a"},
        upper_bounds={1: b"b"},
        split_offsets=(4,),
        partition={1: b"a"},
        sort_order_id=1,
        sequence=3,
    )

    def named(file: DataFile) -> str:
        return segment_id(RepeatableIdentities(transaction), [file])

    assert named(file) == "01900000-0000-7c2f-af9e-d0e03bb0c56e"
    summed = [msgspec.structs.replace(file, crc32=n, footer_crc32=n) for n in range(2)]
    assert len({named(one) for one in (file, *summed)}) == 3


async def test_a_large_file_is_compared_in_a_thread(
    catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[Any] = []
    in_a_thread = asyncio.to_thread

    async def recorded(function: Any, *arguments: Any) -> Any:
        threads.append(function)
        return await in_a_thread(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", recorded)
    storage = await catalog.storage()
    for size in (1 << 20, (1 << 20) + 1):
        data = bytes(size)
        path = f"data/{'0' * 8}-0000-4000-8000-000000000001/x/y/{size}.parquet"
        await storage.put(path, data)
        file = DataFile(path=path, row_count=1, size_bytes=size, crc32=zlib.crc32(data), footer_crc32=0)
        assert await read_data_file(storage, file) == data
        with pytest.raises(Corrupt, match="CRC-32"):
            await read_data_file(storage, msgspec.structs.replace(file, crc32=zlib.crc32(data) ^ 1))
        assert (find_changed_bytes in threads) == (size > 1 << 20)
