"""The writing half of the data source without a Spark session.

The tests show what a batch commits, however often it comes, and what is refused before anything is written.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import alpheus
from alpheus.errors import InvalidInput, OutcomeUnknown, Unavailable
from alpheus.spark.streams import sink
from alpheus.spark.streams.sink import write_once, writer_name
from alpheus.spark.streams.source import AlpheusSource
from alpheus_journal.collect import collection
from alpheus_journal.collect.store_time import read_store_time

SCHEMA = pa.schema([pa.field("id", pa.int64())])
_numbers = itertools.count()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def catalog() -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"memory://sinks-{next(_numbers)}") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        yield catalog


def test_a_batch_is_one_unit_whatever_tables_its_tries_write(catalog: alpheus.Catalog) -> None:
    catalog.create_table("s.u", SCHEMA)

    def to(*names: str) -> Callable[[alpheus.Transaction], None]:
        def write(tx: alpheus.Transaction) -> None:
            for name in names:
                tx.append(name, rows(catalog.version()))

        return write

    def nothing(tx: alpheus.Transaction) -> None:
        pass

    def properties(tx: alpheus.Transaction) -> None:
        tx.update_table("s.t", set={"batch": str(tx.version)})

    tries = [
        [to("s.t"), to("s.u"), to("s.t", "s.u")],
        [to("s.t", "s.u"), to("s.u"), to("s.t")],
        [nothing, to("s.u"), nothing, to("s.t")],
        [properties, properties, to("s.t"), nothing],
        [to("s.u"), properties],
    ]
    for batch, writes in enumerate(tries):
        committed = 0
        for write in writes:
            before = catalog.version()
            write_once(catalog, "q", batch, write, attempts=1)
            committed += catalog.version() - before
        assert committed == 1
    write_once(catalog, "other", 0, to("s.t"), attempts=1)
    assert [len(catalog.read(name)) for name in ("s.t", "s.u")] == [3, 3]


def test_a_function_that_only_looks_called_loses_no_batch(catalog: alpheus.Catalog) -> None:
    async def later(tx: alpheus.Transaction) -> None:
        tx.append("s.t", rows(1))

    with pytest.raises(InvalidInput, match="returned a coroutine and did nothing"):
        write_once(catalog, "q", 0, later, attempts=1)
    write_once(catalog, "q", 0, lambda tx: tx.append("s.t", rows(1)), attempts=1)
    assert len(catalog.read("s.t")) == 1


def test_a_batch_that_only_tables_remember_is_not_written_again(catalog: alpheus.Catalog) -> None:
    """A batch that only tables remember is not written again.

    Its version, with the retry key, has expired. Here the version never had a key.
    """
    catalog.create_table("s.u", SCHEMA)

    def both(tx: alpheus.Transaction) -> None:
        tx.append("s.t", rows(1))
        tx.append("s.u", rows(1))

    catalog.retry(lambda tx: tx.append("s.t", rows(1)), writer=(writer_name("q"), 7))
    head = catalog.version()
    for batch in (6, 7):
        write_once(catalog, "q", batch, both, attempts=1)
    assert catalog.version() == head
    write_once(catalog, "q", 8, both, attempts=1)
    assert catalog.version() == head + 1

    def wrong(tx: alpheus.Transaction) -> None:
        raise InvalidInput("of a stream within the batch", kind="sequence_reused")

    with pytest.raises(InvalidInput, match="within the batch"):
        write_once(catalog, "q", 9, wrong, attempts=1)


def test_a_batch_that_was_written_does_not_meet_its_own_effect(catalog: alpheus.Catalog) -> None:
    calls: list[int] = []

    def makes(tx: alpheus.Transaction) -> None:
        calls.append(0)
        tx.create_table("s.day", SCHEMA)
        tx.append("s.day", rows(1))

    def renames(tx: alpheus.Transaction) -> None:
        calls.append(1)
        tx.rename_table("s.day", "s.night")

    for batch, write in enumerate((makes, renames)):
        for _ in range(3):
            write_once(catalog, "q", batch, write, attempts=1)
    assert calls == [0, 1]
    assert catalog.read("s.night")["id"].to_pylist() == [1]

    # The answer was lost, and the batch lands only during the next try: before that try reads, and after.
    def late(tx: alpheus.Transaction) -> None:
        if len(calls) == 2:
            write_once(catalog, "q", 2, late_one, attempts=1)
        tx.create_table("s.late", SCHEMA)

    def late_one(tx: alpheus.Transaction) -> None:
        calls.append(2)
        tx.create_table("s.late", SCHEMA)

    head = catalog.version()
    write_once(catalog, "q", 2, late, attempts=1)
    assert (catalog.version(), calls) == (head + 1, [0, 1, 2])

    def meets(tx: alpheus.Transaction) -> None:
        write_once(catalog, "q", 3, lambda inner: inner.drop_table("s.late"), attempts=1)
        tx.read("s.t")
        raise RuntimeError("what it needs is gone")

    write_once(catalog, "q", 3, meets, attempts=1)
    assert catalog.version() == head + 2
    with pytest.raises(RuntimeError, match="never"):
        write_once(catalog, "q", 4, lambda tx: throws(RuntimeError("never")), attempts=1)
    write_once(catalog, "q", 4, lambda tx: tx.append("s.t", rows(7)), attempts=1)
    assert catalog.read("s.t")["id"].to_pylist() == [7]


def throws(error: Exception) -> None:
    raise error


def test_an_answer_that_is_lost_is_asked_for(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = catalog.retry

    def lost(fn: Any, *args: Any, **options: Any) -> None:
        retry(fn, *args, **options)
        raise OutcomeUnknown("the reply was lost")

    monkeypatch.setattr(catalog, "retry", lost)
    write_once(catalog, "q", 0, lambda tx: tx.append("s.t", rows(1)), attempts=1)
    assert catalog.read("s.t")["id"].to_pylist() == [1]
    # Nothing was committed, so that the query itself has to retry.
    monkeypatch.setattr(catalog, "retry", lambda *args, **options: throws(OutcomeUnknown("nobody knows")))
    with pytest.raises(OutcomeUnknown, match="nobody knows"):
        write_once(catalog, "q", 1, lambda tx: tx.append("s.t", rows(2)), attempts=1)
    session = catalog._core()._session
    asked = session.find_commit_of_key

    async def once(key: str) -> Any:
        monkeypatch.setattr(session, "find_commit_of_key", away)
        return await asked(key)

    async def away(key: str) -> Any:
        raise Unavailable("the daemon is away")

    monkeypatch.setattr(session, "find_commit_of_key", once)
    with pytest.raises(OutcomeUnknown, match="nobody knows"):
        write_once(catalog, "q", 1, lambda tx: tx.append("s.t", rows(2)), attempts=1)


def test_what_tasks_wrote_is_one_commit_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/lake"
    local: dict[str, str] = {}
    context = SimpleNamespace(getLocalProperty=local.get)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        source = AlpheusSource({"catalog": url, "table": "s.t"})
        schema = source.schema()
        assert isinstance(schema, StructType)

        def commit(numbers: Sequence[int], batch: int | None, overwrite: bool = False) -> None:
            """Write each number in a task of its own. One task has no rows, and one task did not end."""
            writer: Any = (
                source.writer(schema, overwrite) if batch is None else source.streamWriter(schema, overwrite)
            )
            tasks = [iter(pa.table({"ID": [number]}).to_batches()) for number in numbers]
            messages = [writer.write(task) for task in [*tasks, iter(())]]
            messages = [*pickle.loads(pickle.dumps(messages)), None]
            writer.commit(messages, *([] if batch is None else [batch]))

        def stored() -> list[int]:
            return sorted(catalog.read("s.t")["id"].to_pylist())

        commit([1, 2], None)
        with pytest.raises(InvalidInput, match="does not say which query"):
            commit([9], 0)
        local[sink.QUERY_ID] = "q"
        for batch in (0, 0, 1, 1):
            commit([10 * batch + 3, 10 * batch + 4], batch)
        commit([9], 0)
        assert stored() == [1, 2, 3, 4, 13, 14]
        head = catalog.version()
        commit([], 2)
        assert catalog.version() == head, "nothing to write, nothing to remember"
        for _ in range(2):
            commit([5], 3, overwrite=True)
        assert (stored(), catalog.version()) == ([5], head + 1)
        commit([], None, overwrite=True)
        assert stored() == []
        # Tasks wrote for a table that another table has replaced when the driver commits.
        writer: Any = source.writer(schema, False)
        message = writer.write(iter(pa.table({"id": [1]}).to_batches()))
        catalog.drop_table("s.t")
        catalog.create_table("s.t", SCHEMA)
        with pytest.raises(InvalidInput, match="written for another table"):
            writer.commit([message])
        assert stored() == []
        with pytest.raises(InvalidInput, match="feed=changes is for reading"):
            AlpheusSource({"catalog": url, "table": "s.t", "feed": "changes"}).writer(schema, False)


def test_what_tasks_wrote_passes_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is taken before the tasks begin, by a process that has ended since, and outlasts the collection."""
    url = f"file://{tmp_path}/lake"

    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + 5_000  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        source = AlpheusSource({"catalog": url, "table": "s.t"})
        schema = source.schema()
        assert isinstance(schema, StructType)
        writer: Any = pickle.loads(pickle.dumps(source.writer(schema, False)))
        message = writer.write(iter(pa.table({"id": [1]}).to_batches()))
        (lease,) = catalog.admin.leases()
        assert lease.transaction_id == message.transaction_id
        (tmp_path / "lake/node").mkdir(exist_ok=True)
        (tmp_path / "lake/node/33f58438-d7c4-4d97-85e2-ec79bb0e1dc5.arrow").write_bytes(b"left")
        assert catalog.admin.collect(minimum_age=0, allow_short=True).fence_version is not None
        writer.commit([message])
        assert catalog.read("s.t")["id"].to_pylist() == [1]
        assert catalog.admin.leases() == []
        source.writer(schema, False).commit([])
        assert catalog.admin.leases() == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": pa.int64()}, ""),
        ({"NAME": pa.string(), "Id": pa.int32(), "raw": pa.binary()}, ""),
        ({"id": pa.int16(), "part": pa.struct([("a", pa.int32())]), "few": pa.list_(pa.null())}, ""),
        ({"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}, ""),
        ({"id": pa.int64(), "x": pa.int32()}, "column 'x' is not in the table"),
        ({"id": pa.string()}, "column 'id' .*string"),
        ({"name": pa.string()}, "column 'id' is required, but missing"),
        ({"id": pa.int64(), "ID": pa.int64()}, "column 'id' occurs twice"),
        ({"id": pa.int64(), "name": pa.timestamp("us", "UTC")}, "column 'name' .*timestamp"),
        ({"id": pa.int64(), "part": pa.struct([("b", pa.int32())])}, "column 'part.b' is not in the table"),
        ({"id": pa.int64(), "few": pa.list_(pa.string())}, "column 'few.element' "),
    ],
)
def test_frames_that_do_not_fit_are_refused_before_a_task_runs(
    tmp_path: Path, fields: dict[str, pa.DataType], says: str
) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        wide = [
            pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()),
            pa.field("raw", pa.binary(4)), pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")), pa.field("part", pa.struct([("a", pa.int64())])),
            pa.field("few", pa.list_(pa.int64())),
        ]  # fmt: skip
        catalog.create_table("s.t", pa.schema(wide))
    # the default of PySpark 4.1 is another
    schema = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    source = AlpheusSource({"catalog": url, "table": "s.t"})
    for writer in (source.writer, source.streamWriter):
        if not says:
            writer(schema, False)
            continue
        with pytest.raises(InvalidInput, match=says) as caught:
            writer(schema, False)
        assert caught.value.kind == "bad_data"


def test_a_batch_is_tried_again_after_a_conflict(catalog: alpheus.Catalog) -> None:
    seen: list[int] = []

    def write(tx: alpheus.Transaction) -> None:
        seen.append(len(tx.read("s.t")))
        if len(seen) == 1:
            catalog.append("s.t", rows(1))
        tx.overwrite("s.t", rows(2))

    write_once(catalog, "q", 0, write, attempts=2)
    assert (seen, catalog.read("s.t")["id"].to_pylist()) == ([0, 1], [2])
