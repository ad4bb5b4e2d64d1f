"""`check(footers=True)` and `check(values=True)` compare data files with their entries in the manifest."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import aio
from alpheus.admin import data_check
from alpheus.aio import AsyncCatalog
from alpheus.cli import cli
from alpheus.rows.file_reader import ListedFile, list_files
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.columns import encode_bound
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.parquet_guard import read_footer
from alpheus_journal.tables.verify_file import footer_differences, value_differences

LONG = "ü" * 100
ROWS = {
    "id": [3, None, 7],
    "amount": [1.5, math.nan, -0.0],
    "price": [Decimal("12.30"), Decimal("-7.00"), None],
    "name": ["b", LONG, ""],
    "blob": [b"\xff" * 80, None, b""],
    "day": [dt.date(2026, 1, 2), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "at": [dt.datetime(2026, 1, 2, 3, 4, 5), None, dt.datetime(1900, 1, 1)],
    "ok": [True, None, True],
    "place": [{"x": 1, "label": None}, None, {"x": 9, "label": "z"}],
    "tags": [["a", None], [], None],
    "marks": [[("k", 1)], None, []],
}
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("amount", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("name", pa.string()),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("ok", pa.bool_()),
        ("place", pa.struct([("x", pa.int64()), ("label", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("marks", pa.map_(pa.string(), pa.int32())),
    ]
)
NAME = ObjectName(Kind.TABLE, "s", "t")


@pytest.fixture
async def catalog() -> AsyncIterator[AsyncCatalog]:
    async with await aio.connect("memory://data-check", create=True) as opened:
        await opened.create_namespace("s")
        yield opened
    MemoryStorage.forget("data-check")


async def table_of(catalog: AsyncCatalog) -> TableDef:
    (stored,) = (await catalog._session.load(None, [NAME])).objects
    assert stored is not None
    table = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(table, TableDef)
    return table


async def listed(catalog: AsyncCatalog) -> list[ListedFile]:
    return await list_files(await catalog.storage(), await table_of(catalog))


async def read(catalog: AsyncCatalog, file: DataFile) -> bytes:
    return await (await catalog.storage()).read(file.path, size_max=1 << 30)


async def one_file(catalog: AsyncCatalog) -> tuple[TableDef, DataFile, bytes]:
    await catalog.create_table("s.t", SCHEMA)
    await catalog.append("s.t", pa.table(ROWS, schema=SCHEMA))
    (one,) = await listed(catalog)
    return await table_of(catalog), one.file, await read(catalog, one.file)


def both(file: DataFile, data: bytes, table: TableDef) -> tuple[list[str], list[str]]:
    """Return the differences that the footer shows, and those that the values show."""
    footer = footer_differences(file, len(data), read_footer(BytesIO(data), file.path), table)
    return footer, value_differences(file, pq.ParquetFile(BytesIO(data)).iter_batches(batch_size=2), table)


async def test_a_table_with_a_past_has_no_differences(catalog: AsyncCatalog) -> None:
    await catalog.create_table("s.t", SCHEMA)
    await catalog.append("s.t", pa.table(ROWS, schema=SCHEMA))
    await catalog.update_table("s.t", retype_columns={"id": pa.int64(), "amount": pa.float64()})
    await catalog.update_table("s.t", drop_columns=["name", "tags", "place.x", "marks"])
    await catalog.update_table("s.t", rename_columns={"blob": "name", "price": "cost"})
    await catalog.update_table("s.t", add_columns={"tags": pa.list_(pa.int32()), "n": pa.int64()})
    await catalog.append("s.t", pa.table({"id": [1 << 40, None], "n": [None, 5], "tags": [[1], None]}))
    await catalog.delete("s.t", "id = 3")
    await catalog.create_table("s.empty", pa.schema([("a", pa.int32())]))
    await catalog.create_table(
        "s.p", pa.schema([("d", pa.date32()), ("k", pa.string())]), partition_by=["month(d)", "k"]
    )
    days = [dt.date(2026, month, 3) for month in (1, 2, 2)]
    await catalog.append("s.p", pa.table({"d": days, "k": ["x", LONG, None]}))
    for options in ({"footers": True}, {"values": True}):
        report = await catalog.admin.check(**options)
        assert (report.findings, report.files) == ((), 5)
    assert (await catalog.admin.check()).files == 0


def changes(file: DataFile, table: TableDef) -> dict[str, tuple[dict[str, Any], bool]]:
    """Return changed fields of an entry by what is wrong with it, and whether the file's values show the error."""
    ids = {column.name: column.id for column in table.columns}
    number, name, price = ids["id"], ids["name"], ids["price"]
    columns = {column.id: column for column in table.columns}

    def told(field: str, key: int, value: object) -> dict[str, Any]:
        return {field: {**getattr(file, field), key: value}}

    def bound(field: str, key: int, value: Any) -> dict[str, Any]:
        return told(field, key, encode_bound(columns[key], value))

    repeated = max(file.value_counts)
    return {
        "has 3 rows, not 4": ({"row_count": 4}, True),
        "has 3 values in column 'id' (id 1), not 4": (told("value_counts", number, 4), False),
        "has 1 NULLs in column 'id' (id 1), not 0": (told("null_counts", number, 0), True),
        "in column 'marks.value'": (told("null_counts", repeated, 0), False),
        "bytes in column 'id' (id 1), not 1": (told("column_sizes", number, 1), False),
        "has 3 in column 'id' (id 1), below the bound 4": (bound("lower_bounds", number, 4), True),
        "has 7 in column 'id' (id 1), above the bound 6": (bound("upper_bounds", number, 6), True),
        "has -7.00 in column 'price' (id 3), below the bound -6.99": (
            bound("lower_bounds", price, -699),
            True,
        ),
        "above the bound 'c'": (bound("upper_bounds", name, "c"), True),
        "below the bound 'a'": (bound("lower_bounds", name, "a"), True),
        "cannot be understood": (told("lower_bounds", number, b"123"), True),
        "lacks the column ids 99": (told("value_counts", 99, 3), False),
        "has column 'id' (id 1), which its entry does not name": (
            {
                field: {key: value for key, value in getattr(file, field).items() if key != number}
                for field in ("value_counts", "null_counts", "column_sizes", "lower_bounds", "upper_bounds")
            },
            False,
        ),
        "has row groups at": ({"split_offsets": (5,)}, False),
        "bytes, not 1": ({"size_bytes": 1}, False),
    }


async def test_every_part_of_an_entry_is_compared(catalog: AsyncCatalog) -> None:
    table, file, data = await one_file(catalog)
    assert both(file, data, table) == ([], [])
    for expected, (fields, by_values) in changes(file, table).items():
        footer, values = both(msgspec.structs.replace(file, **fields), data, table)
        assert any(expected in each for each in footer), (expected, footer)
        assert len(footer) == 1, footer
        assert any(expected in each for each in values) == by_values, (expected, values)
    nans = msgspec.structs.replace(file, nan_counts={**file.nan_counts, 2: 0})
    assert both(nans, data, table) == ([], ["has 1 NaNs in column 'amount' (id 2), not 0"])


async def test_an_entry_may_say_less_than_its_file(catalog: AsyncCatalog) -> None:
    table, file, data = await one_file(catalog)
    silent = msgspec.structs.replace(
        file,
        column_sizes={},
        null_counts={},
        nan_counts={},
        lower_bounds={},
        upper_bounds={},
        split_offsets=(),
    )
    assert both(silent, data, table) == ([], [])
    columns = {column.id: column for column in table.columns}
    wider = msgspec.structs.replace(
        file,
        lower_bounds={1: encode_bound(columns[1], -5), 4: b""},
        upper_bounds={1: encode_bound(columns[1], 500), 4: "\U0010ffff".encode()},
    )
    assert both(wider, data, table) == ([], [])


async def test_columns_of_other_types_and_without_ids(catalog: AsyncCatalog) -> None:
    table, file, data = await one_file(catalog)

    def as_if(**types: str) -> TableDef:
        columns = tuple(
            msgspec.structs.replace(column, type=types.get(column.name, column.type), element=None)
            if column.name in types
            else column
            for column in table.columns
        )
        return msgspec.structs.replace(table, columns=columns)

    footer, _ = both(file, data, as_if(id="INT2"))
    assert footer == ["has column 'id' (id 1) of type int32, which does not read as int16"]
    footer, _ = both(file, data, as_if(tags="VARCHAR"))
    assert "has column 'tags' (id 12) of type list<element: string" in footer[0]
    for name, inner in (
        ("place", "place.x"),
        ("tags", "tags.element"),
    ):  # the file has another column, which was dropped
        columns = tuple(
            msgspec.structs.replace(column, id=99) if column.name == name else column
            for column in table.columns
        )
        footer, _ = both(file, data, msgspec.structs.replace(table, columns=columns))
        assert f"has column '{inner}'" in footer[0]
        assert footer[0].endswith("in another column than the table")
    sink = BytesIO()
    pq.write_table(pa.table({"id": [3, None, 7]}), sink)
    footer, _ = both(file, sink.getvalue(), table)
    assert "has column 'id' without a field id" in footer
    assert any(each.startswith("lacks the column ids") for each in footer)


async def test_texts_that_other_writers_cut_are_inside_their_bounds(catalog: AsyncCatalog) -> None:
    """Statistics that parquet-rs cut at 64 bytes, with a raised upper bound, are no difference."""
    await catalog.create_table("s.t", pa.schema([("name", pa.string())]))
    cut_low, cut_high = "a" * 64, "b" * 63 + "c"
    await catalog.append("s.t", pa.table({"name": [cut_low, cut_high]}))
    (one,) = await listed(catalog)
    table, data = await table_of(catalog), await read(catalog, one.file)
    true = msgspec.structs.replace(
        one.file, lower_bounds={1: b"a" * 70}, upper_bounds={1: b"b" * 64}, column_sizes={}
    )
    assert both(true, data, table)[0] == []
    for fields in ({"lower_bounds": {1: b"b"}}, {"upper_bounds": {1: b"b" * 62}}):
        assert len(both(msgspec.structs.replace(true, **fields), data, table)[0]) == 1


async def test_a_file_outside_its_partition(catalog: AsyncCatalog) -> None:
    """`check` finds a file outside its partition. A commit only looks at the entry, which may not show the error."""
    await catalog.create_table(
        "s.t", pa.schema([("d", pa.date32()), ("v", pa.int32())]), partition_by=["month(d)"]
    )
    await catalog.append("s.t", pa.table({"d": [dt.date(2026, 1, 2)], "v": pa.array([1], pa.int32())}))
    (one,) = await listed(catalog)
    table, data = await table_of(catalog), await read(catalog, one.file)
    (key,) = one.file.partition
    for value in (encode_bound(table.columns[1], 7), None):
        lying = msgspec.structs.replace(
            one.file, partition={key: value}, lower_bounds={}, upper_bounds={}, null_counts={}
        )
        (found,) = both(lying, data, table)[0]
        assert found.startswith("is not in the partition of its entry: partition month(d)")


# --- through the catalog ---------------------------------------------------------------------------


async def test_a_file_exchanged_for_another_of_its_size(catalog: AsyncCatalog) -> None:
    await catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
    for last in (3, 9):
        await catalog.append("s.t", pa.table({"id": [1, 2, last]}))
    one, other = await listed(catalog)
    await (await catalog.storage()).put(one.file.path, await read(catalog, other.file))
    assert (await catalog.admin.check()).ok, "sizes alone do not tell"
    report = await catalog.admin.check(footers=True)
    assert report.files == 2
    assert {(each.kind, each.path, each.version) for each in report.findings} == {
        ("corrupt_manifest", one.file.path, 4)
    }
    texts = [each.message for each in report.findings]
    start = f"data file {one.file.path} of table s.t (segment {one.segment.path}) "
    assert f"{start}has 9 in column 'id' (id 1), above the bound 3" in texts


async def test_what_is_missing_or_damaged_is_told_once(catalog: AsyncCatalog) -> None:
    storage = await catalog.storage()
    await catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
    for number in range(5):
        await catalog.append("s.t", pa.table({"id": [number]}))
    first, second, third, fourth, fifth = await listed(catalog)
    await storage.delete(first.file.path)
    await storage.put(second.file.path, (await read(catalog, second.file))[:-1])
    await storage.put(third.segment.path, b"no segment")
    data = await read(catalog, fourth.file)
    await storage.put(fourth.file.path, data[:-8] + b"\xff\xff\x00\x00PAR1")
    await storage.put(fifth.file.path, b"x" * fifth.file.size_bytes)
    for options in ({"footers": True}, {"values": True}):
        report = await catalog.admin.check(**options)
        found = sorted(each.path for each in report.findings)
        assert found == sorted(
            [first.file.path, second.file.path, third.segment.path, fourth.file.path, fifth.file.path]
        )
        assert report.files == 4
    # This check skips the versions up to the head, and still reports the same files.
    report = await catalog.admin.check(after=await catalog.version(), footers=True)
    assert sorted(each.path for each in report.findings) == found


async def test_a_damaged_definition_keeps_no_other_table_from_being_looked_at(catalog: AsyncCatalog) -> None:
    storage = await catalog.storage()
    for name in ("s.t", "s.u"):
        await catalog.create_table(name, pa.table({"id": [1]}))
    (stored,) = (await catalog._session.load(None, [NAME])).objects
    assert stored is not None
    await storage.put(stored.path, b"\xff" * 40)
    async with await aio.connect("memory://data-check") as again:
        report = await again.admin.check(after=await again.version(), footers=True)
        whole = await again.admin.check(footers=True)
        plain = await again.admin.check()
    assert report.files == 1
    assert [(each.kind, each.path) for each in report.findings] == [("corrupt_definition", stored.path)]
    assert whole.findings == plain.findings


async def test_every_flipped_bit_is_found_or_changes_nothing(
    catalog: AsyncCatalog, lane_count: Callable[[int, int], int]
) -> None:
    _, file, data = await one_file(catalog)
    storage = await catalog.storage()
    rows = (await catalog.read("s.t")).to_pylist()
    rng = random.Random(0)
    by_footer = by_values = 0
    for _ in range(lane_count(60, 3_000)):
        position = rng.randrange(len(data))
        await storage.put(
            file.path,
            data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :],
        )
        footers, values = [
            await catalog.admin.check(**options) for options in ({"footers": True}, {"values": True})
        ]
        assert {each.path for each in (*footers.findings, *values.findings)} <= {file.path}
        assert values.findings or footers.ok, "who reads all of a file reads its footer"
        by_footer += not footers.ok
        by_values += not values.ok
        if values.ok:
            assert repr((await catalog.read("s.t")).to_pylist()) == repr(rows)
    assert by_values > by_footer > 0


class Counted(MemoryStorage):
    """Counts the bytes of data files that are read, and the callers that read concurrently."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []
        self.whole: list[str] = []
        self.running = self.most = 0

    async def read(self, path: str, *, size_max: int) -> bytes:
        if path.startswith("data/"):
            self.whole.append(path)
        return await super().read(path, size_max=size_max)

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        self.parts.append(size)
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1
        return self._files[path].data[start : start + size]


async def test_only_ends_of_files_are_read_and_few_at_a_time(
    catalog: AsyncCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
    for number in range(25):
        await catalog.append("s.t", pa.table({"id": [number]}))
    inner = await catalog.storage()
    assert isinstance(inner, MemoryStorage)
    counted = Counted()
    counted._files = inner._files

    async def storage() -> Storage:
        return counted

    monkeypatch.setattr(catalog._session, "storage", storage)
    monkeypatch.setattr(data_check, "END_SIZE_BYTES", 100)
    report = await catalog.admin.check(footers=True)
    assert (report.findings, report.files) == ((), 25)
    assert counted.whole == []
    assert counted.most <= data_check.FOOTERS_AT_ONCE
    assert sorted(counted.parts)[:25] == [100] * 25, "and then the footer, of which the end tells the size"
    assert len(counted.parts) == 50
    monkeypatch.setattr(data_check, "ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr(data_check, "SMALL_SEGMENT_SIZE_BYTES_MAX", 0)
    monkeypatch.setattr(data_check, "TABLES_AT_ONCE", 1)
    monkeypatch.setattr("alpheus.session.session.NAMES_AT_ONCE", 1)
    assert (await catalog.admin.check(footers=True)).files == 25


def test_over_a_daemon(tmp_path: Path, start_daemon: Callable[..., Any]) -> None:
    url = start_daemon(f"file://{tmp_path}/lake", "--create").url
    with alpheus.connect(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.table({"id": [1, 2]}))
        report = catalog.admin.check(footers=True)
        assert (report.ok, report.files) == (True, 1)
    [file] = (tmp_path / "lake").rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[6] ^= 1  # a byte of a page
    file.chmod(0o600)
    file.write_bytes(data)

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["--catalog", url, *words])
        return result.exit_code, result.stdout

    assert run("check")[0] == 0
    status, text = run("check", "--footers")
    assert (status, text.rpartition(", ")[2]) == (0, "1 data file\n")
    status, text = run("--output", "json", "check", "--values")
    found = json.loads(text)
    assert (status, found["ok"], found["files"]) == (1, False, 1)
    assert "has pages that cannot be read" in found["findings"][0]["message"]


def test_a_daemon_whose_files_this_process_cannot_read(start_daemon: Callable[..., Any]) -> None:
    url = start_daemon("memory://far", "--create").url
    with alpheus.connect(url) as catalog:
        assert catalog.admin.check().ok
        for options in ({"footers": True}, {"values": True}):
            with pytest.raises(InvalidInput) as caught:
                catalog.admin.check(**options)
            assert caught.value.kind == "storage_unreachable"
            assert caught.value.hint
