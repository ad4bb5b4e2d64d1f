"""Reads in a table's sort order are the whole, sorted: whatever the files hold, and however little memory there is."""

from __future__ import annotations

import datetime as dt
import errno
import functools
import itertools
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpheus
from alpheus import Catalog, Scan, aio
from alpheus.errors import Corrupt, Exhausted, InvalidInput
from alpheus.ordered import Merge
from alpheus.plan import Plan
from alpheus.sync import run
from alpheus_journal.objects import SortField

NUMBERS = itertools.count()
NAN = float("nan")
WIDE: dict[str, Any] = {"memory_max": 1 << 30, "small_max": 0, "runs_max": 64}
LIMITS: list[dict[str, Any]] = [
    WIDE,
    WIDE | {"small_max": 1 << 20},  # files are sorted together
    WIDE | {"memory_max": 0},  # all wait on disk
    WIDE | {"memory_max": 0, "runs_max": 2},  # and are merged in several rounds
    {"memory_max": 4000, "small_max": 2000, "runs_max": 3},
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-(2**31), -1, 0, 1, 7, 2**31 - 1]),
    "f": (pa.float32(), [NAN, -0.0, 0.0, -1.5, 1.5, float("inf"), float("-inf")]),
    "d": (pa.float64(), [NAN, -0.0, 0.0, 1e-300, -1e300]),
    "p": (pa.decimal128(9, 2), [Decimal("-1.10"), Decimal("1.10"), Decimal("1.09"), Decimal("9999999.99")]),
    "s": (pa.string(), ["", "a", "ab", "b", "\uffff", "\U0001f600", "x" * 70, "x" * 70 + "y"]),
    "b": (pa.binary(), [b"", b"\x00", b"a", b"\xff"]),
    "t": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 2)]),
    "z": (pa.timestamp("us", "UTC"), [dt.datetime(1890, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]),
    "l": (pa.timestamp("us"), [dt.datetime(1890, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 2)]),
    "o": (pa.bool_(), [True, False]),
}  # fmt: skip
SCHEMA = pa.schema([pa.field("n", pa.int64()), *(pa.field(name, kind) for name, (kind, _) in VALUES.items())])


@pytest.fixture(scope="module")
def catalog() -> Iterator[Catalog]:
    with alpheus.create("memory://ordered") as made:
        made.create_namespace("a")
        yield made


def rows_of(rng: random.Random, count: int, start: int) -> pa.Table:
    columns = {
        name: [rng.choice([None, *values]) for _ in range(count)] for name, (_, values) in VALUES.items()
    }
    return pa.table({"n": range(start, start + count), **columns}, schema=SCHEMA)


def compared(
    order: Sequence[SortField], names: dict[int, str], one: dict[str, Any], other: dict[str, Any]
) -> int:
    """What the order says, value by value."""
    for field in order:
        mine, its = one[names[field.column_id]], other[names[field.column_id]]
        if mine is None or its is None:
            found = ((mine is None) - (its is None)) * (1 if field.nulls_last else -1)
        else:
            mine, its = ((value != value, 0 if value != value else value) for value in (mine, its))
            found = ((mine > its) - (mine < its)) * (-1 if field.descending else 1)
        if found:
            return found
    return 0


def sorted_whole(scan: Scan, plan: Plan) -> list[dict[str, Any]]:
    names = {column.id: column.name for column in plan.table.columns}
    compare = functools.partial(compared, plan.table.sort_order, names)
    return sorted(scan.to_arrow().to_pylist(), key=functools.cmp_to_key(compare))


def driven(catalog: Catalog, merge: Merge, plan: Plan) -> Iterator[int | pa.RecordBatch]:
    """The steps of a merge, with the files that it asks for."""
    steps = merge.steps()
    data: bytes | None = None
    while True:
        try:
            step = next(steps) if data is None else steps.send(data)
        except StopIteration:
            return
        data = None
        yield step
        if isinstance(step, int):
            path = plan.files[step].file.path
            data = run(catalog.storage().read(path, size_max=1 << 30))


def merged(catalog: Catalog, plan: Plan, columns: Sequence[str] | None = None, **limits: Any) -> pa.Table:
    chosen = [column for column in plan.table.columns if columns is None or column.name in columns]
    merge = Merge(plan, chosen, **limits)
    batches = [step for step in driven(catalog, merge, plan) if isinstance(step, pa.RecordBatch)]
    return pa.Table.from_batches(batches, schema=merge.schema)


def same(found: pa.Table, expected: list[dict[str, Any]]) -> bool:
    return repr(found.to_pylist()) == repr(expected)  # NaN equals NaN there, and -0.0 is not 0.0


def filled(catalog: Catalog, rng: random.Random, sort_by: list[str], files: int) -> str:
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, SCHEMA, sort_by=sort_by)
    for number in range(files):
        catalog.append(name, rows_of(rng, rng.choice([0, 1, 5, 40]), number * 1000))
        if rng.random() < 0.3:
            catalog.delete(name, f"n < {number * 500}", "predicate")
    return name


orders = st.lists(
    st.tuples(
        st.sampled_from(sorted(VALUES)),
        st.sampled_from(["", " desc", " nulls last", " desc nulls first", " desc nulls last"]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key[0],
)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 30), order=orders, files=st.integers(0, 6))
def test_it_is_the_whole_sorted(
    catalog: Catalog, seed: int, order: list[tuple[str, str]], files: int
) -> None:
    rng = random.Random(seed)
    name = filled(catalog, rng, [key + rest for key, rest in order], files)
    scan = catalog.scan(name)
    expected = sorted_whole(scan, scan.plan)
    for limits in LIMITS:
        assert same(merged(catalog, scan.plan, **limits), expected), limits
    assert same(scan.ordered().to_arrow(), expected)
    some = catalog.scan(name, where="i >= 0 OR s = 'a'", columns=["n"])
    narrow = [
        {"n": row["n"]} for row in expected if row["s"] == "a" or (row["i"] is not None and row["i"] >= 0)
    ]
    assert same(some.ordered().to_arrow(), narrow), "sorted by columns that were not asked for"


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 30), order=orders)
def test_files_that_are_not_sorted(catalog: Catalog, seed: int, order: list[tuple[str, str]]) -> None:
    """They are sorted first, in pieces where they are large; mixed with those that are."""
    rng = random.Random(seed)
    name = filled(catalog, rng, [], 4)
    sorted_name = filled(catalog, rng, [key + rest for key, rest in order], 1)
    scan = catalog.scan(name)
    table = msgspec.structs.replace(
        scan.plan.table, sort_order=catalog.scan(sorted_name).plan.table.sort_order
    )
    plan = msgspec.structs.replace(scan.plan, table=table)
    expected = sorted_whole(scan, plan)
    for limits in LIMITS:
        assert same(merged(catalog, plan, **limits), expected), limits


def test_columns_that_changed_since(catalog: Catalog) -> None:
    """A key that was widened and renamed, columns that files lack, with and without a default."""
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, pa.schema([("k", pa.int32()), ("f", pa.float32())]), sort_by=["k desc", "f"])
    catalog.append(
        name, pa.table({"k": pa.array([3, 1, None], pa.int32()), "f": pa.array([1, NAN, 2], pa.float32())})
    )
    catalog.update_table(name, rename_columns={"k": "key"}, retype_columns={"f": pa.float64()})
    catalog.update_table(name, retype_columns={"key": pa.int64()}, add_columns=[pa.field("new", pa.string())])
    catalog.append(name, pa.table({"key": [2**40, 2, None], "f": [0.1, 0.2, NAN], "new": ["x", "y", "z"]}))
    catalog.append(name, pa.table({"key": [1, -(2**40)], "f": [5.0, None], "new": [None, "w"]}))
    expected = [
        {"key": 2**40, "f": 0.1, "new": "x"},
        {"key": 3, "f": 1.0, "new": None},
        {"key": 2, "f": 0.2, "new": "y"},
        {"key": 1, "f": 5.0, "new": None},
        {"key": 1, "f": NAN, "new": None},
        {"key": -(2**40), "f": None, "new": "w"},
        {"key": None, "f": 2.0, "new": None},
        {"key": None, "f": NAN, "new": "z"},
    ]
    scan = catalog.scan(name)
    for limits in LIMITS:
        assert same(merged(catalog, scan.plan, **limits), expected), limits
    assert same(scan.ordered().to_arrow(), expected)
    (frame,) = [scan.ordered().to_pandas()]
    assert frame["key"].tolist()[0] == 2**40


# --- what it costs ---------------------------------------------------------------------------------


def ranges(catalog: Catalog, starts: Sequence[int], step: int = 1, rows: int = 1000) -> Plan:
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, pa.schema([("k", pa.int64()), ("text", pa.string())]), sort_by=["k"])
    for start in starts:
        keys = pa.array(range(start, start + rows * step, step))
        catalog.append(name, pa.table({"k": keys, "text": pa.array(["some text"] * rows)}))
    return catalog.scan(name).plan


def test_files_of_different_ranges_are_read_one_after_the_other(catalog: Catalog) -> None:
    plan = ranges(catalog, [5000, 0, 3000, 9000, 1000])
    merge = Merge(plan, plan.table.columns, memory_max=1, small_max=0)
    kinds = [step if isinstance(step, int) else "rows" for step in driven(catalog, merge, plan)]
    assert kinds == [1, "rows", 4, "rows", 2, "rows", 0, "rows", 3, "rows"]


def test_what_overlaps_is_bounded(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files of one range, in little memory: on disk they wait, and nothing stays there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = ranges(catalog, range(20), step=20)
    for limits, spills in ((WIDE, False), ({"memory_max": 20_000, "small_max": 0, "runs_max": 4}, True)):
        merge = Merge(plan, plan.table.columns, **limits)
        seen: list[int] = []
        for step in driven(catalog, merge, plan):
            if isinstance(step, pa.RecordBatch):
                seen += step.column(0).to_pylist()
                assert step.num_rows <= 1 << 16
                if spills and len(seen) < 10_000:
                    assert list(tmp_path.iterdir())
        assert seen == list(range(20_000))
        assert bool(merge.spilled_bytes) == spills
        assert not list(tmp_path.iterdir())


def test_one_that_is_left_early_leaves_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = ranges(catalog, range(5), step=5)
    merge = Merge(plan, plan.table.columns, memory_max=0, small_max=0)
    steps = merge.steps()
    data = None
    while not isinstance(step := steps.send(data) if data is not None else next(steps), pa.RecordBatch):
        data = run(catalog.storage().read(plan.files[step].file.path, size_max=1 << 30))
    assert list(tmp_path.iterdir())
    steps.close()
    assert not list(tmp_path.iterdir())


def test_no_room_for_what_waits(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*rest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pa, "OSFile", full)
    plan = ranges(catalog, range(3), step=3)
    with pytest.raises(Exhausted, match="sorting needs more room") as caught:
        list(driven(catalog, Merge(plan, plan.table.columns, memory_max=0, small_max=0), plan))
    assert caught.value.kind == "no_space"
    assert "TMPDIR" in caught.value.hint


# --- what is refused -------------------------------------------------------------------------------


def test_a_table_without_an_order(catalog: Catalog) -> None:
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, pa.table({"x": [2, 1]}))
    with pytest.raises(InvalidInput, match="no sort order"):
        catalog.scan(name).ordered()


@pytest.mark.parametrize("keys", [range(70_000, 0, -1), [*range(70_000, 70_000 + (1 << 16)), *range(10)]])
@pytest.mark.parametrize("limits", LIMITS[:1] + LIMITS[2:4])
def test_a_file_that_is_not_in_the_order_that_it_claims(
    catalog: Catalog, limits: dict[str, Any], keys: Sequence[int]
) -> None:
    """Within a batch, or from one to the next: what comes is sorted, or it is an error that names the file."""
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, pa.schema([("k", pa.int64())]))
    catalog.append(name, pa.table({"k": keys}))
    catalog.append(name, pa.table({"k": [5, 6, 7]}))
    scan = catalog.scan(name)
    (column,) = scan.plan.table.columns
    order = (SortField(column_id=column.id, descending=False, nulls_last=False),)
    liar, other = scan.plan.files
    lying = msgspec.structs.replace(liar, file=msgspec.structs.replace(liar.file, sort_order_id=1))
    plan = msgspec.structs.replace(
        scan.plan,
        table=msgspec.structs.replace(scan.plan.table, sort_order=order),
        files=(lying, other),
    )
    seen: list[int] = []

    def read() -> None:
        for step in driven(catalog, Merge(plan, plan.table.columns, **limits), plan):
            seen.extend(step.column(0).to_pylist() if isinstance(step, pa.RecordBatch) else [])

    with pytest.raises(Corrupt, match="not in the order that it claims") as caught:
        read()
    assert caught.value.path == liar.file.path
    assert seen == sorted(seen)


async def test_the_asynchronous_front(tmp_path: Path) -> None:
    async with await aio.connect(f"memory://ordered-aio-{next(NUMBERS)}", create=True) as catalog:
        await catalog.create_namespace("a")
        await catalog.create_table("a.t", pa.schema([("k", pa.int64())]), sort_by=["k"])
        for start in (2, 1, 0):
            await catalog.append("a.t", pa.table({"k": range(start, 30, 3)}))
        scan = (await catalog.scan("a.t")).ordered()
        assert scan.ordered() is scan
        assert await scan.count() == 30
        async for batch in scan.to_batches():
            assert batch.column(0)[0].as_py() == 0
            break
        assert (await scan.to_arrow()).column("k").to_pylist() == list(range(30))


def test_nested_columns_and_own_writes(catalog: Catalog) -> None:
    name = f"a.t{next(NUMBERS)}"
    kind = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))])
    schema = pa.schema([("k", pa.int64()), ("m", pa.map_(pa.string(), pa.int64())), ("s", kind)])
    catalog.create_table(name, schema, sort_by=["k"])
    for start in range(3):
        keys = list(range(start, 60, 2))
        maps = [None if key % 5 == 0 else [("k", key)] * (key % 3) for key in keys]
        structs = [None if key % 7 == 0 else {"x": key, "y": [1.5] * (key % 4)} for key in keys]
        catalog.append(name, pa.table({"k": keys, "m": maps, "s": structs}, schema=schema))
    scan = catalog.scan(name)
    expected = sorted(scan.to_arrow().to_pylist(), key=lambda row: row["k"])
    for limits in LIMITS:
        assert same(merged(catalog, scan.plan, **limits), expected), limits
    with catalog.transaction() as tx:
        tx.append(name, pa.table({"k": [-1]}))
        assert tx.scan(name, columns=["k"]).ordered().to_arrow().column("k").to_pylist()[:2] == [-1, 0]
        tx.abandon()
