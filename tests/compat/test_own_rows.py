"""Frozen catalogs with changes of rows.

The catalogs have partitions, orders, defaults, delete predicates, merged segments, change files, and every mode of
ChangeRows. These features came within revision 1, after the first catalogs of that revision were frozen.

    python tests/compat/test_own_rows.py tests/compat

The command writes the catalogs that do not exist yet, through the client. Their expected contents do not depend on the
classes of a release: every definition, file and action; the rows of every table at every version; files that a scan
reads or skips; rows of feeds.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from frozen import files_of, freeze

import alpheus
from alpheus import Catalog
from alpheus.spark.streams.source import AlpheusSource
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Segment, TableDef, walk_columns
from alpheus_journal.model.operations import Action, ChangeMode, ChangeRows
from alpheus_journal.predicate import decode
from alpheus_journal.predicate.sql import text
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.tables.manifest import decode_segment
from alpheus_journal.tables.partitions import describe, partition_text, sort_text

Golden = Any  # of conftest.py
Said = dict[str, Any]  # of JSON
DIGITS = (32, 64)
NAMES = tuple(sorted(path.name for path in Path(__file__).parent.glob("rows-r*")))

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("country", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(12, 2)),
        ("note", pa.string()),
    ]
)
KINDS = pa.schema(
    [
        ("yes", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("large", pa.int64()),
        ("single", pa.float32()),
        ("real", pa.float64()),
        ("price", pa.decimal128(20, 3)),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("place", pa.struct([("city", pa.string()), ("number", pa.int32())])),
        ("many", pa.list_(pa.int32())),
    ]
)
DELETES = (
    "yes is null",
    "not yes and small = 1",
    "small in (2, 3) or number <=> 4",
    "large > 5000000000 and large < 5000000002",
    "single = cast('NaN' as double)",
    "real >= 8.5 and real <= 8.5",
    "price = 9.001",
    "word like 'größe 10%'",
    "raw = x'0b'",
    "day = date '2026-03-12'",
    "moment = timestamp '2026-03-13 00:00:00.000013'",
    "instant in (timestamp '2026-03-14 00:00:00Z', timestamp '1969-12-31 23:59:59.999999Z')",
    "place.city = 'city 15'",
    "word is not distinct from 'größe 16' and not (number != 16)",
)
"""A few rows each, by every type and shape of predicates."""


# --- writing ---------------------------------------------------------------------------------------


def order(id: int | None, country: str | None = "DE", day: int = 1, note: str | None = None) -> Said:
    at = dt.datetime(2026, 3, day, 12, tzinfo=dt.UTC)
    amount = None if id is None else Decimal(id) / 100
    return {"id": id, "country": country, "at": at, "amount": amount, "note": note}


def kind_of(n: int) -> Said:
    return {
        "yes": None if n == 0 else n != 1,
        "small": n,
        "number": n,
        "large": 5_000_000_000 + (1 if n == 5 else -n),
        "single": float("nan") if n == 7 else float(n),
        "real": n + 0.5,
        "price": Decimal(n) + Decimal("0.001"),
        "word": f"größe {n}" if n != 17 else None,
        "raw": bytes([n]),
        "day": dt.date(2026, 3, n + 1 if n != 12 else 12),
        "moment": dt.datetime(2026 if n < 18 else 2025, 3, max(n, 1), 0, 0, 0, n),
        "instant": dt.datetime(2026, 3, max(n, 1), tzinfo=dt.UTC),
        "place": None if n == 3 else {"city": f"city {n}", "number": n},
        "many": [n, None],
    }


def write(url: str, digits: int) -> None:
    storage = LocalStorage(url.removeprefix("file://"), create=True)
    journal = asyncio.run(
        Journal.create(storage, order=4, version_digits=digits, name_size_max=24, principal="ana")
    )
    asyncio.run(journal.close())
    with alpheus.connect(url) as catalog:
        catalog.create_namespace("lake")
        write_orders(catalog)
        write_changes(catalog)
        write_returns(catalog)
        write_kinds(catalog)


def write_orders(catalog: Catalog) -> None:
    """Write partitions, an order, defaults, and enough appends that segments merge."""
    catalog.create_table(
        "lake.orders",
        ORDERS,
        properties={"owner": "ana"},
        partition_by=["country", "day(at)"],
        sort_by=["id desc nulls first", "at"],
        defaults={"note": "none"},
    )
    catalog.append("lake.orders", [order(1), order(2), order(None, None), order(3, "größe", 2)])
    many = [order(id, "DE" if id < 112 else "US", 1 if id < 112 else 3, f"n{id}") for id in range(100, 120)]
    catalog.append("lake.orders", many)
    for id in range(4, 16):
        catalog.append("lake.orders", [order(id, "FR" if id % 3 else "DE", 1 + id % 2)])
    catalog.append("lake.orders", pa.Table.from_pylist([{"id": 16, "country": "FR"}]))
    catalog.update_table(
        "lake.orders",
        add_columns=pa.schema([pa.field("level", pa.int32())]),
        defaults={"level": 7, "note": "later"},
    )
    catalog.append("lake.orders", [order(17) | {"level": 8}, order(18)])


def write_changes(catalog: Catalog) -> None:
    """Write each mode in both ways, for files with other rows and for whole files."""
    catalog.delete("lake.orders", "id in (1, 100)")
    catalog.delete("lake.orders", "country is null and id is null")
    catalog.delete("lake.orders", "id = 4 or id = 17 or id = 101", mode="rewrite")
    catalog.update("lake.orders", {"note": "hidden", "level": 9}, "id in (2, 5, 102)", mode="predicate")
    catalog.update("lake.orders", {"note": "written"}, "id = 18 or id = 6 or id = 113", mode="rewrite")
    merged = [order(7, note="merged"), order(103, note="merged"), order(30, "US", 3, "merged")]
    catalog.merge("lake.orders", merged, on="id", mode="predicate")
    merged = [order(8, "FR", note="merged") | {"level": 1}, order(114, "US", 3), order(31, "US", 3)]
    catalog.merge("lake.orders", merged, on="id", mode="rewrite")
    catalog.merge("lake.orders", [order(9), order(104)], on="id", matched="delete", unmatched="ignore")
    catalog.overwrite("lake.orders", [order(115, "US", 4)], where="country = 'US' and id = 115")
    catalog.overwrite("lake.orders", [order(41, "größe", 2)], partitions=[{"country": "größe"}])
    # older files lack the column `level`
    catalog.delete("lake.orders", "level = 7 and (id between 13 and 20 or id = 105)")
    with catalog.transaction() as tx:
        tx.append("lake.orders", [order(50, "IT", 5), order(51, "IT", 5), order(52, "IT", 6)])
        tx.delete("lake.orders", "id = 50")
        tx.update("lake.orders", {"amount": Decimal("0.99")}, "id = 51 or id = 106", mode="predicate")
    catalog.compact("lake.orders")
    catalog.delete("lake.orders", "id = 52 or id = 107")


def write_returns(catalog: Catalog) -> None:
    """Write predicates and files that a restore, a drop and a rename take along, and columns that a predicate
    outlives."""
    before = catalog.version()
    catalog.update_table("lake.orders", rename_columns={"level": "rank"})
    catalog.update_table("lake.orders", retype_columns={"rank": pa.int64()})
    catalog.delete("lake.orders", "rank = 8 or rank is null")
    catalog.update_table("lake.orders", drop_columns=["rank"])
    catalog.append("lake.orders", [order(60, "DE", 7)])
    catalog.restore_table("lake.orders", before)
    catalog.drop_table("lake.orders")
    catalog.undrop("lake.orders", as_name="lake.größe")
    catalog.rename_table("lake.größe", "lake.orders")
    catalog.delete("lake.orders", "id = 10 or id = 108")
    catalog.overwrite("lake.orders", [order(70)])
    catalog.append("lake.orders", [order(71), order(72)])
    catalog.delete("lake.orders", "id = 71")


def write_kinds(catalog: Catalog) -> None:
    """Write a predicate of every type."""
    catalog.create_table("lake.kinds", KINDS, partition_by=["month(day)", "year(moment)"])
    catalog.append("lake.kinds", pa.Table.from_pylist([kind_of(n) for n in range(19)], KINDS))
    for where in DELETES:
        catalog.delete("lake.kinds", where)
    catalog.compact("lake.kinds")


# --- expected contents -----------------------------------------------------------------------------


def plain(value: object) -> object:
    """Return the value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return repr(value)
        case bytes():
            return value.hex()
        case dt.datetime() | dt.date():
            return value.isoformat()
        case dict():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
    return str(value)


def row_text(row: Said) -> str:
    return json.dumps(plain(row), ensure_ascii=False)


def rows_of(catalog: Catalog, version: int, name: str) -> Counter[str]:
    return Counter(row_text(row) for row in catalog.at(version).read(name).to_pylist())


def segments_said(segments: tuple[Segment, ...]) -> list[Any]:
    return [
        [s.path, s.sequence, s.min_sequence, s.file_count, s.row_count, s.size_bytes, s.sha256.hex()]
        for s in segments
    ]


def predicate_said(expression: bytes) -> list[str]:
    return [expression.hex(), text(decode(expression))]


class Reading:
    """Reads a catalog on a local disk with the journal and with the client."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[str, list[Any]] = {}
        self._files: dict[str, Said] = {}

    def said(self) -> Said:
        return asyncio.run(self._stored()) | {
            "rows": dict(self._rows()),
            "plans": dict(self._plans()),
            "feeds": dict(self._feeds()),
        }

    # -- by the journal

    async def _stored(self) -> Said:
        journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(self.root)))
        versions: Said = {}
        definitions: Said = {}
        self._contents, self._files = {}, {}
        async for entry in journal.log():
            said = versions.setdefault(str(entry.version), {"actions": []})
            said["actions"] += [self._action(action) for action in entry.transaction.actions]
        for number in versions:
            names = (
                (await journal.list(int(number), Kind.TABLE, namespace="lake")).names if number != "0" else ()
            )
            tables = [ObjectName(Kind.TABLE, "lake", name) for name in names]
            found = (await journal.load(int(number), tables)).objects
            versions[number]["tables"] = {}
            for name, stored in zip(tables, found, strict=True):
                assert stored is not None
                definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
                assert isinstance(definition, TableDef)
                versions[number]["tables"][name.full_name] = stored.path
                if stored.path not in definitions:
                    definitions[stored.path] = self._definition(definition)
                    for segment in definition.segments:
                        await self._content(journal, segment, definition)
        said = {
            "catalog_id": journal.catalog_id,
            "head_version": journal.head.version,
            "versions": versions,
            "definitions": definitions,
            "segments": self._contents,
            "files": self._files,
        }
        await journal.close()
        return said

    async def _content(self, journal: Journal, segment: Segment, table: TableDef) -> None:
        if segment.path in self._contents:
            return
        data = await journal.storage.read(segment.path, size_max=1 << 24)
        files = decode_segment(data, segment.path, table_id=table.id)
        self._contents[segment.path] = [f"{file.path} {file.sequence}" for file in files]
        for file in files:
            said: Said = {
                "rows": [file.row_count, file.size_bytes, file.schema_id],
                "partition": plain(file.partition),
                "partition_text": describe(table.partition_spec, table.columns, file.partition),
                "sort_order_id": file.sort_order_id,
                "counts": json.dumps(plain([file.value_counts, file.null_counts, file.nan_counts])),
                "bounds": json.dumps(plain([file.lower_bounds, file.upper_bounds])),
            }
            assert self._files.setdefault(file.path, said) == said, (
                f"{segment.path} says other things of {file}"
            )

    def _definition(self, table: TableDef) -> Said:
        return {
            "id": table.id,
            "properties": table.properties,
            "columns": [
                plain([c.id, c.name, c.type, c.nullable, c.initial_default, c.write_default])
                for c in walk_columns(table.columns)
            ],
            "counters": [table.next_column_id, table.sequence, table.schema_id],
            "partition_by": [partition_text(field, table.columns) for field in table.partition_spec],
            "sort_by": [sort_text(field, table.columns) for field in table.sort_order],
            "segments": segments_said(table.segments),
            "predicates": [
                [*predicate_said(p.expression), p.sequence, p.committed_sequence, p.transaction_id, p.moves]
                for p in table.delete_predicates
            ],
        }

    def _action(self, action: Action) -> Said:
        said: Said = {"type": action.type, "name": str(action.name)}
        operation = action.operation
        said["operation"] = type(operation).__name__
        if isinstance(operation, ChangeRows):
            said |= {
                "mode": str(operation.mode),
                "base_sequence": operation.base_sequence,
                "predicates": [predicate_said(expression) for expression in operation.predicates],
                "scan": predicate_said(operation.scan) if operation.scan else None,
                "segments": segments_said(operation.segments),
                "removed": segments_said(operation.removed),
                "changes": segments_said(operation.changes),
                "sources": list(operation.sources),
                "rows": [operation.rows_hidden, operation.rows_kept, operation.rows_dead],
                "sequences": [operation.outputs_sequence, operation.hides_up_to],
            }
        return said

    # -- by the client

    def _tables(self, catalog: Catalog) -> Iterator[tuple[int, str]]:
        for version in range(1, catalog.version() + 1):
            for name in catalog.at(version).list_tables("lake"):
                yield version, f"lake.{name.name}"

    def _rows(self) -> Iterator[tuple[str, Said]]:
        """Yield by version and table the rows added and removed since the table's last version, under any name."""
        before: dict[str, Counter[str]] = {}
        with alpheus.connect(f"file://{self.root}") as catalog:
            for version, name in self._tables(catalog):
                table_id = catalog.at(version).load_table(name).id
                rows, old = rows_of(catalog, version, name), before.get(table_id, Counter())
                if rows != old:
                    came, went = rows - old, old - rows
                    yield (
                        f"{version} {name}",
                        {"came": sorted(came.elements()), "went": sorted(went.elements())},
                    )
                before[table_id] = rows

    def _plans(self) -> Iterator[tuple[str, Said]]:
        """Yield the files that a scan reads and skips, with the predicates that apply to each, at some versions."""
        with alpheus.connect(f"file://{self.root}") as catalog:
            for version, name in self._tables(catalog):
                if version % 6 and version != catalog.version():
                    continue
                wheres: tuple[str | None, ...] = (
                    "country = 'DE'",
                    "id > 12 and at < date '2026-03-02'",
                    None,
                )
                if name == "lake.kinds":
                    wheres = ("number > 9", "day < date '2026-03-05'", None)
                for where in wheres:
                    scan = catalog.at(version).scan(name, where)
                    yield (
                        f"{version} {name} {where}",
                        {
                            "reads": {
                                one.file.path: [text(predicate) for predicate in one.predicates]
                                for one in scan.files
                            },
                            "skips": sorted(one.file.path for one in scan.skipped),
                            "count": scan.count(),
                        },
                    )

    def _feeds(self) -> Iterator[tuple[str, list[str]]]:
        """Yield by version and table the rows that the feed reports as added and removed."""
        with alpheus.connect(f"file://{self.root}") as catalog:
            head = catalog.version()
        for name in ("lake.orders", "lake.kinds"):
            source = AlpheusSource(
                {
                    "catalog": f"file://{self.root}",
                    "table": name,
                    "feed": "changes",
                    "after": "0",
                    "until": str(head),
                }
            )
            schema = source.schema()
            assert not isinstance(schema, str)
            reader: Any = source.reader(schema)
            rows = [
                row
                for part in reader.partitions()
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            by_version: dict[int, list[str]] = {}
            for row in rows:
                by_version.setdefault(row["_commit_version"], []).append(row_text(row))
            for version, some in by_version.items():
                yield f"{version} {name}", sorted(some)


# --- reading ---------------------------------------------------------------------------------------


def test_both_dialects_are_frozen() -> None:
    assert set(NAMES) == {f"rows-r1-{digits}" for digits in DIGITS}


@pytest.mark.parametrize("name", NAMES)
def test_a_catalog_says_what_it_said(
    name: str, own_goldens: Any, lane_count: Callable[[int, int], int]
) -> None:
    if name.endswith("32") and not lane_count(0, 1):
        pytest.skip("make slow LANE=own_rows")
    golden: Golden = own_goldens[name]
    found = Reading(golden.root).said()
    assert found.keys() == golden.expected.keys()
    for part, expected in golden.expected.items():
        if isinstance(expected, dict):
            assert found[part].keys() == expected.keys(), part
            for key, value in expected.items():
                assert found[part][key] == value, (part, key)
        assert found[part] == expected, part


@pytest.mark.parametrize("name", NAMES)
async def test_its_actions_give_its_definitions_again(name: str, own_goldens: Any) -> None:
    """`check` executes every recorded operation, and looks at every segment and file."""
    golden: Golden = own_goldens[name]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    assert summary.versions == golden.head + 1
    assert summary.manifests >= len(golden.expected["segments"])
    await journal.close()


@pytest.mark.parametrize("name", NAMES)
def test_they_hold_all_that_there_is(name: str, own_goldens: Any) -> None:
    expected: Said = own_goldens[name].expected
    actions = [action for version in expected["versions"].values() for action in version["actions"]]
    changes = [action for action in actions if action["operation"] == "ChangeRows"]
    assert {change["mode"] for change in changes} == {str(mode) for mode in ChangeMode}
    for mode in ("delete", "update", "merge", "overwrite"):
        of_mode = [change for change in changes if change["mode"] == mode]
        assert any(change["predicates"] for change in of_mode), mode
        assert any(change["removed"] for change in of_mode), mode
        assert mode == "overwrite" or any(change["changes"] for change in of_mode), mode
    assert any(change["sequences"][1] > change["base_sequence"] for change in changes), "own additions hidden"
    assert all(any(change["rows"][place] for change in changes) for place in range(3))
    definitions = expected["definitions"].values()
    assert any(segment[3] >= 10 for found in definitions for segment in found["segments"]), "merged"
    assert any(0 < segment[2] < segment[1] for found in definitions for segment in found["segments"])
    assert any(column[4] is not None for found in definitions for column in found["columns"])
    assert {tuple(found["partition_by"]) for found in definitions} == {
        ("country", "day(at)"),
        ("month(day)", "year(moment)"),
    }
    assert any(found["sort_by"] for found in definitions)
    shown = {json.loads(row)["_change_type"] for rows in expected["feeds"].values() for row in rows}
    assert shown == {"insert", "delete", "update_preimage", "update_postimage"}
    went = [rows["went"] for key, rows in expected["rows"].items() if key.endswith("lake.kinds")]
    assert len(list(filter(None, went))) == len(DELETES), "each deletes something"
    shapes = [change for change in changes if change["name"] == "table lake.kinds" and change["predicates"]]
    assert len(shapes) == len(DELETES)


@pytest.mark.parametrize("name", NAMES)
def test_feeds_say_what_became_of_the_rows(name: str, own_goldens: Any) -> None:
    """The net effect of the frozen feeds equals that of the frozen rows."""
    expected: Said = own_goldens[name].expected

    def key_of(row: Said) -> str:
        # Feeds have the last version's columns, so only columns that never changed are compared.
        return row_text({name: row.get(name) for name in ("id", "country", "word", "raw")})

    for place in expected["rows"].keys() | expected["feeds"].keys():
        net: Counter[str] = Counter()
        for row in map(json.loads, expected["feeds"].get(place, ())):
            net[key_of(row)] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
        for part, sign in (("came", -1), ("went", 1)):
            for row in map(json.loads, expected["rows"].get(place, {}).get(part, ())):
                net[key_of(row)] += sign
        assert not any(net.values()), place


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_on(name: str, own_goldens: Any, on_disk: Callable[[Golden], Path]) -> None:
    """Commits work on predicates, partitions and merged segments of an earlier release."""
    golden: Golden = own_goldens[name]
    root = on_disk(golden)
    with alpheus.connect(f"file://{root}") as catalog:
        older = {version: rows_of(catalog, version, "lake.orders") for version in (16, 30, 36, golden.head)}
        assert ids(catalog, "lake.orders") == [70, 72]
        catalog.delete("lake.orders", "id = 72")
        catalog.merge("lake.orders", [order(70, "FR", 3), order(73)], on="id")
        for id in range(80, 90):
            catalog.append("lake.orders", [order(id)])
        catalog.update("lake.orders", {"note": "new"}, "id < 85")
        catalog.compact("lake.orders")
        assert ids(catalog, "lake.orders") == [70, 73, *range(80, 90)]
        catalog.restore_table("lake.orders", 31)
        assert rows_of(catalog, catalog.version(), "lake.orders") == rows_of(catalog, 31, "lake.orders")
        assert catalog.admin.check().findings == ()
        for version, rows in older.items():
            assert rows_of(catalog, version, "lake.orders") == rows


def ids(catalog: Catalog, name: str) -> list[Any]:
    return sorted(catalog.read(name).column("id").to_pylist())


async def made(digits: int) -> tuple[dict[str, bytes], Said]:
    def make() -> tuple[dict[str, bytes], Said]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "lake"
            write(f"file://{root}", digits)
            said = Reading(root).said()
            return asyncio.run(files_of(LocalStorage(str(root)))), said

    return await asyncio.to_thread(make)


if __name__ == "__main__":
    freeze(
        Path(sys.argv[1]),
        {f"rows-r1-{digits}": partial(made, digits) for digits in DIGITS},
        below="catalog/",
    )
