"""A read in a table's sort order gives all rows, sorted, whatever the files hold and however little memory is free."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import functools
import gc
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpheus
from alpheus import Catalog, Scan, aio
from alpheus.errors import Corrupt, Exhausted, InvalidInput, Unavailable
from alpheus.rows import file_reader
from alpheus.rows import merge_sorted as ordered
from alpheus.rows.merge_sorted import Merge
from alpheus.rows.plan import Plan
from alpheus.rows.scan import AsyncScan
from alpheus.sync.portal import run
from alpheus_journal.model.definitions import SortField

NUMBERS = itertools.count()
POOLS: list[pa.MemoryPool] = []  # a pool must outlive its contents
NAN = float("nan")
WIDE: dict[str, Any] = {"memory_max": 1 << 30, "small_max": 0, "runs_max": 64}
LIMITS: list[dict[str, Any]] = [
    WIDE,
    WIDE | {"small_max": 1 << 20},  # files are sorted together
    WIDE | {"memory_max": 0},  # all rows wait on disk
    WIDE | {"memory_max": 0, "runs_max": 2},  # and are merged in several rounds
    {"memory_max": 4000, "small_max": 2000, "runs_max": 3},
    # a few rows of each file in memory
    {"memory_max": 5000, "small_max": 0, "runs_max": 3, "piece_max": 300},
    {"memory_max": 0, "small_max": 0, "runs_max": 2, "piece_max": 1},  # one row of each file in memory
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
    """Compare two rows by the order, value by value."""
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
    """Yield the steps of a merge, and give the merge the files that it asks for."""
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
    return repr(found.to_pylist()) == repr(expected)  # in text, NaN equals NaN, and -0.0 is not 0.0


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


@contextlib.contextmanager
def batches_of(rows: int) -> Iterator[None]:
    """Read files in batches of `rows` rows, and store sorted rows in batches of that size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reader, "BATCH_ROWS_MAX", rows)
        patch.setattr(ordered, "BATCH_ROWS_MAX", rows)
        yield


batch_rows = st.sampled_from([1, 3, 7, 1 << 16])


@settings(max_examples=3 if settings().max_examples < 100 else 8, deadline=None)
@given(seed=st.integers(0, 1 << 30), order=orders, files=st.integers(0, 6), rows=batch_rows)
def test_it_is_the_whole_sorted(
    catalog: Catalog, seed: int, order: list[tuple[str, str]], files: int, rows: int
) -> None:
    rng = random.Random(seed)
    name = filled(catalog, rng, [key + rest for key, rest in order], files)
    scan = catalog.scan(name)
    expected = sorted_whole(scan, scan.plan)
    for limits in LIMITS:
        with batches_of(rows):
            assert same(merged(catalog, scan.plan, **limits), expected), limits
    assert same(scan.ordered().to_arrow(), expected)
    some = catalog.scan(name, where="i >= 0 OR s = 'a'", columns=["n"])
    narrow = [
        {"n": row["n"]} for row in expected if row["s"] == "a" or (row["i"] is not None and row["i"] >= 0)
    ]
    assert same(some.ordered().to_arrow(), narrow), "sorted by columns that were not asked for"


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 30), order=orders, rows=batch_rows)
def test_files_that_are_not_sorted(
    catalog: Catalog, seed: int, order: list[tuple[str, str]], rows: int
) -> None:
    """Unsorted files are sorted first, large ones in pieces, and are then merged with sorted files."""
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
        with batches_of(rows):
            assert same(merged(catalog, plan, **limits), expected), limits


def test_columns_that_changed_since(catalog: Catalog) -> None:
    """A merge reads a key that was widened and renamed, and columns that old files lack, with or without a default."""
    name = f"a.t{next(NUMBERS)}"
    catalog.create_table(name, pa.schema([("k", pa.int32()), ("f", pa.float32())]), sort_by=["k desc", "f"])
    catalog.append(
        name, pa.table({"k": pa.array([3, 1, None], pa.int32()), "f": pa.array([1, NAN, 2], pa.float32())})
    )
    catalog.update_table(name, rename_columns={"k": "key"}, retype_columns={"f": pa.float64()})
    catalog.update_table(name, retype_columns={"key": pa.int64()}, add_columns=[pa.field("new", pa.string())])
    catalog.append(name, pa.table({"key": [2**40, 2, None], "f": [0.1, 0.2, NAN], "new": ["x", "y", "z"]}))
    catalog.append(name, pa.table({"key": [1, -(2**40)], "f": [5.0, None], "new": [None, "w"]}))
    expected: list[dict[str, Any]] = [
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


class Disk:
    """The folder for temporary files, and the files that were opened there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.files: list[IO[bytes]] = []
        self.make: Callable[..., IO[bytes]] = tempfile.TemporaryFile
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setattr(tempfile, "TemporaryFile", self._opened)

    def _opened(self, *args: Any, **options: Any) -> IO[bytes]:
        self.files.append(self.make(*args, **options))
        return self.files[-1]

    @property
    def is_used(self) -> bool:
        assert not list(self.folder.iterdir()), "a process that is killed would leave it"
        return any(not file.closed for file in self.files)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_what_overlaps_is_bounded(catalog: Catalog, disk: Disk) -> None:
    """Many overlapping files in little memory wait on disk, and no file stays there."""
    plan = ranges(catalog, range(20), step=20)
    little = {"memory_max": 20_000, "small_max": 0, "runs_max": 4, "piece_max": 2000}
    for limits, spills in ((WIDE, False), (little, True)):
        merge = Merge(plan, plan.table.columns, **limits)
        seen: list[int] = []
        uses = []
        for step in driven(catalog, merge, plan):
            if isinstance(step, pa.RecordBatch):
                seen += step.column(0).to_pylist()
                uses.append(disk.is_used)
        assert seen == list(range(20_000))
        assert bool(merge.spilled_bytes) == spills
        assert not any(uses) if not spills else all(uses[:-20])
        assert not disk.is_used


@contextlib.contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """Yield a memory pool that counts what Arrow allocates in the block."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def memory_of(catalog: Catalog, plan: Plan, limit: int) -> tuple[int, int, int]:
    """Return the most memory that Arrow took, what went to disk, and the number of rows."""
    count = 0
    with arrow_memory() as pool:
        merge = Merge(plan, plan.table.columns, memory_max=limit, small_max=0, piece_max=limit >> 7)
        for step in driven(catalog, merge, plan):
            assert merge.held <= limit
            count += 0 if isinstance(step, int) else step.num_rows
    most = pool.max_memory()
    assert most is not None
    return most, merge.spilled_bytes, count


@pytest.mark.parametrize(
    ("where", "is_sorted"), [(None, True), (None, False), ("rare", True)], ids=["sorted", "unsorted", "where"]
)
def test_rows_that_become_wider_along_a_file(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, where: str | None, is_sorted: bool
) -> None:
    """A merge learns a file's memory when it reads the file, not when it opens the file.

    Rows that are filtered out count, too.
    """
    name = f"a.t{next(NUMBERS)}"
    files, rows, wide = 8, 1 << 13, 300
    monkeypatch.setattr(file_reader, "BATCH_ROWS_MAX", rows)
    schema = pa.schema([("id", pa.int64()), ("rare", pa.bool_()), ("text", pa.string())])
    catalog.create_table(name, schema, sort_by=["id"])
    for start in range(files):
        ids = pa.array(range(start, 2 * rows * files, files))
        rare = pa.array([number % 64 == 0 for number in range(2 * rows)])
        text = pa.array(["x"] * rows + ["y" * wide] * rows)
        catalog.append(name, pa.table({"id": ids, "rare": rare, "text": text}))
    plan = catalog.scan(name, where=where).plan
    if not is_sorted:
        unsorted = (
            msgspec.structs.replace(one, file=msgspec.structs.replace(one.file, sort_order_id=None))
            for one in plan.files
        )
        plan = msgspec.structs.replace(plan, files=tuple(unsorted))
    limit, batch = 3 << 20, rows * (wide + 20)
    most, spilled, count = memory_of(catalog, plan, limit)
    assert count == rows * files * 2 // (1 if where is None else 64)
    assert spilled
    assert batch < most <= limit + 2 * batch + 3 * limit // 4


def test_what_is_sorted_at_once_is_little(catalog: Catalog) -> None:
    """Few rows are sorted together, even if all rows fit in memory.

    Sorting all of them would take three times the memory.
    """
    plan = ranges(catalog, range(16), step=16, rows=20_000)
    limit = 12 << 20
    most, spilled, count = memory_of(catalog, plan, limit)
    assert (spilled, count) == (0, 320_000)
    assert most <= limit + 3 * limit // 4


def test_one_that_is_left_early_leaves_nothing(catalog: Catalog, disk: Disk) -> None:
    plan = ranges(catalog, range(5), step=5)
    steps = driven(catalog, merge := Merge(plan, plan.table.columns, memory_max=0, small_max=0), plan)
    while not isinstance(next(steps), pa.RecordBatch):
        pass
    assert merge.spilled_bytes
    assert disk.is_used
    steps.close()  # type: ignore[attr-defined]
    assert not disk.is_used


async def overlapping(catalog: aio.AsyncCatalog) -> AsyncScan:
    await catalog.create_namespace("a")
    await catalog.create_table("a.t", pa.schema([("k", pa.int64())]), sort_by=["k"])
    for start in range(5):
        await catalog.append("a.t", pa.table({"k": range(start, 2000, 5)}))
    return (await catalog.scan("a.t")).ordered()


@pytest.fixture
def all_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"memory_max": 0, "small_max": 0, "runs_max": 2, "piece_max": 500}
    assert Merge.__init__.__kwdefaults__ is not None
    for name, value in limits.items():
        monkeypatch.setitem(Merge.__init__.__kwdefaults__, name, value)


@pytest.mark.usefixtures("all_on_disk")
@pytest.mark.parametrize("times", [1, 2])
async def test_one_that_is_cancelled_leaves_nothing(disk: Disk, times: int) -> None:
    """A cancelled read leaves no file, even while a thread writes.

    The files go immediately, and not when the traceback is freed. If the caller is cancelled twice, it does not wait
    for the thread, which then cleans up itself.
    """
    writes, goes_on = threading.Event(), threading.Event()
    made = disk.make

    class Slow:
        def __init__(self, file: IO[bytes]) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: Any) -> int:
            writes.set()
            assert goes_on.wait(60)
            return self._file.write(data)

    disk.make = lambda *args, **options: Slow(made(*args, **options))  # type: ignore[assignment]
    async with await aio.connect(f"memory://ordered-aio-{next(NUMBERS)}", create=True) as catalog:
        reading = asyncio.create_task((await overlapping(catalog)).to_arrow())
        gc.disable()
        try:
            assert await asyncio.to_thread(writes.wait, 60)
            reading.cancel()
            if times == 2:
                for _ in range(3):  # the reader waits for the thread now
                    await asyncio.sleep(0)
                reading.cancel()
            else:
                asyncio.get_running_loop().call_soon(goes_on.set)
            with pytest.raises(asyncio.CancelledError) as caught:
                await reading
            assert disk.is_used == (times == 2)
            goes_on.set()
            while disk.is_used:
                await asyncio.to_thread(lambda: None)
            assert len(disk.files) == 1, "nothing more was written"
            assert caught.value.__traceback__ is not None, "and is kept until here"
        finally:
            goes_on.set()
            gc.enable()


def test_steps_that_are_closed_while_a_thread_is_in_one() -> None:
    entered, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Fake:
        def steps(self) -> Iterator[int]:
            try:
                entered.set()
                assert goes_on.wait(60)
                yield 1
            finally:
                closed.set()

        def stop(self) -> None:
            pass

    steps = ordered.ThreadedMerge(Fake())  # type: ignore[arg-type]
    thread = threading.Thread(target=steps._advance, args=(None,))
    thread.start()
    assert entered.wait(60)
    steps.close()
    assert not closed.is_set()
    goes_on.set()
    thread.join()
    assert closed.is_set()
    assert steps._advance(None) is None


@pytest.mark.usefixtures("all_on_disk")
async def test_one_whose_reader_fails_leaves_nothing(disk: Disk) -> None:
    async with await aio.connect(f"memory://ordered-aio-{next(NUMBERS)}", create=True) as catalog:
        scan = await overlapping(catalog)

        async def read(batches: AsyncIterator[pa.RecordBatch]) -> None:
            async for _ in batches:
                assert disk.is_used
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await read(scan.to_batches())
        while disk.is_used:  # the event loop closes the file soon
            await asyncio.to_thread(lambda: None)
        async with contextlib.aclosing(scan.to_batches()) as batches:  # type: ignore[type-var]
            with pytest.raises(ZeroDivisionError):
                await read(batches)
            assert disk.is_used
        assert not disk.is_used
        (planned, *_) = scan.files
        await scan._storage.delete(planned.file.path)
        with pytest.raises(Corrupt, match="is missing"):
            await scan.to_arrow()
        assert not disk.is_used


def test_a_forked_process_takes_nothing_away() -> None:
    """A forked child takes nothing away from its parent's read, whether the child exits or goes on reading."""
    script = """
import gc, os, sys, tempfile
import alpheus, pyarrow as pa
from alpheus.rows.merge_sorted import Merge
from alpheus.sync.portal import run

with alpheus.create("memory://forked") as catalog:
    catalog.create_namespace("a")
    catalog.create_table("a.t", pa.schema([("k", pa.int64())]), sort_by=["k"])
    for start in range(5):
        catalog.append("a.t", pa.table({"k": range(start, 2000, 5)}))
    plan = catalog.scan("a.t").plan
    stored = [run(catalog.storage().read(p.file.path, size_max=1 << 20)) for p in plan.files]
steps = Merge(plan, plan.table.columns, memory_max=0, small_max=0, PIECES).steps()
step = next(steps)
while isinstance(step, int):
    step = steps.send(stored[step])
found = step.column(0).to_pylist()
assert len(found) < 2000

def rest():
    for step in steps:
        found.extend(step.column(0).to_pylist())
    assert found == list(range(2000)), len(found)

for child in (lambda: steps.close(), rest, lambda: None):
    if not (number := os.fork()):
        child()
        del steps
        gc.collect()
        sys.exit(0)
    assert os.waitpid(number, 0)[1] == 0
rest()
""".replace("PIECES", "piece_max=500")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def failing(catalog: Catalog) -> None:
    plan = ranges(catalog, range(3), step=3)
    list(driven(catalog, Merge(plan, plan.table.columns, memory_max=0, small_max=0), plan))


def test_a_full_disk(catalog: Catalog, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.make = lambda *args, **options: open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(Exhausted, match=f"needs more space than {disk.folder} has: No space left") as caught:
        failing(catalog)
    assert caught.value.kind == "no_space"
    assert "TMPDIR" in caught.value.hint
    assert not disk.is_used
    monkeypatch.undo()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(Exhausted, match="File too large"):
            failing(catalog)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("number", "error", "kind"),
    [
        (errno.EDQUOT, Exhausted, "no_space"),
        (errno.EACCES, InvalidInput, "bad_configuration"),
        (errno.EROFS, InvalidInput, "bad_configuration"),
        (errno.EIO, Unavailable, "storage_unavailable"),
        (errno.EMFILE, Unavailable, "storage_unavailable"),
    ],
)
def test_a_disk_that_fails(
    catalog: Catalog, disk: Disk, number: int, error: type[alpheus.errors.AlpheusError], kind: str
) -> None:
    def fail(*args: Any, **options: Any) -> IO[bytes]:
        raise OSError(number, os.strerror(number))

    disk.make = fail
    with pytest.raises(error, match=os.strerror(number)) as caught:
        failing(catalog)
    assert caught.value.kind == kind
    assert str(disk.folder) in caught.value.message
    assert "TMPDIR" in caught.value.hint


def test_a_folder_that_is_not_there(catalog: Catalog, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk.folder / "file").touch()
    for name in ("missing", "file"):
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder / name))
        with pytest.raises(InvalidInput, match=f"cannot be stored in {disk.folder / name}: No") as caught:
            failing(catalog)
        assert caught.value.kind == "bad_configuration"

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(InvalidInput, match=r"temporary files: No usable .* found in \['/tmp'\]"):
        failing(catalog)


def test_a_disk_that_loses_what_was_written(catalog: Catalog, disk: Disk) -> None:
    plan = ranges(catalog, range(3), step=3)
    merge = Merge(plan, plan.table.columns, memory_max=0, small_max=0, piece_max=500)

    def read() -> None:
        for step in driven(catalog, merge, plan):
            if not isinstance(step, int):
                for file in disk.files:
                    if not file.closed:
                        file.truncate(0)

    with pytest.raises(Unavailable, match="shorter"):
        read()
    assert not disk.is_used


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
    """A file that is not in the order that it claims gives sorted rows, or an error with its name.

    The wrong order is within a batch or between batches.
    """
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

    with pytest.raises(Corrupt, match="not in the order that the file claims") as caught:
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
