"""Every verb is tried over both ways to a catalog, its storage and a daemon.

Cases here try the verbs. A verb without a case is listed with the file that tries it on both ways.
"""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from spark_marks import SPARK_MARKS

import alpheus
from alpheus import Catalog, Snapshot, Transaction
from alpheus.pipeline import Pipeline, RunResult, changes
from alpheus.spark import PinnedReader, SparkCatalog, SparkTransaction

pytestmark = SPARK_MARKS

Row = tuple[int, str, int]
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int32())])
DDL = "id BIGINT, k STRING, n INT"
ROWS: list[Row] = [(i, "ab"[i % 2], 10 * i) for i in range(6)]
"""Rows of each fresh table, which is partitioned by k and has two files."""

_numbers = itertools.count(1)

ELSEWHERE: dict[type, dict[str, str]] = {
    Catalog: {
        "test_object_verbs.py": """register_table commit_iceberg rename_table rename_view restore_table undrop
            create_view replace_view drop_view diff list_dropped list_saved discard outcome""",
        "test_catalog.py": """update_catalog create_namespace update_namespace drop_namespace update_table
            drop_table list_namespaces load_namespace namespace_exists list_tables load_table load_tables
            table_exists list_views load_view view_exists list_pipelines load_pipeline info log events version""",
        "test_subscriptions.py": "subscribe",
        "test_notebook.py": "properties",
    },
    Snapshot: {
        "test_notebook.py": "properties",
        "test_catalog.py": """list_namespaces load_namespace namespace_exists list_tables load_table load_tables
            table_exists list_views load_view view_exists list_pipelines load_pipeline info version""",
    },
    Transaction: {
        "test_notebook.py": "properties",
        "test_object_verbs.py": """register_table commit_iceberg rename_table rename_view restore_table undrop
            create_view replace_view drop_view abandon""",
        "test_catalog.py": """update_catalog create_namespace update_namespace drop_namespace update_table
            drop_table list_namespaces load_namespace namespace_exists list_tables load_table load_tables
            table_exists list_views load_view view_exists list_pipelines load_pipeline append_segments
            overwrite_segments advance_pipeline rename_pipeline""",
    },
    SparkCatalog: {"test_spark_changes.py": "delete update merge"},
}
"""The verbs that a file tries on both ways, by file."""

NO_VERBS = {
    "url", "id", "operations", "result", "catalog", "close", "is_up", "is_leased", "has_lost_lease",
    "is_chosen", "add_properties",
    "admin", "tags", "storage", "store_of", "job", "jobs", "job_run", "check_can_serve", "test",
}  # fmt: skip
"""Attributes, and methods that ask neither storage nor a daemon."""

Case = Callable[[Any, str], None]
CASES: list[tuple[type, Case]] = []
COVERED: dict[type, set[str]] = {}


def case(owner: type, *verbs: str) -> Callable[[Case], Case]:
    """Register a case, which takes a catalog (or a SparkCatalog) and the name of a fresh table.

    `verbs` are tried by the case.
    """

    def taken(fn: Case) -> Case:
        CASES.append((owner, fn))
        return also(owner, *verbs)(fn)

    return taken


def also(owner: type, *verbs: str) -> Callable[[Case], Case]:
    """Record the verbs of another class that a case tries."""

    def taken(fn: Case) -> Case:
        COVERED.setdefault(owner, set()).update(verbs)
        return fn

    return taken


# --- both ways -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["storage", "daemon"])
def catalog(
    request: pytest.FixtureRequest, make_lake_url: Callable[[], str], start_daemon: Callable[..., Any]
) -> Iterator[Catalog]:
    url = make_lake_url()
    if request.param == "daemon":
        url = start_daemon(url, "--create").url
    with alpheus.connect(url, create=True) as opened:
        yield opened
        assert opened.admin.check().ok


@pytest.fixture
def table(catalog: Catalog) -> str:
    """Create a fresh table, and return its name."""
    space = f"s{next(_numbers)}"
    catalog.create_namespace(space)
    catalog.create_table(f"{space}.t", SCHEMA, partition_by=["k"])
    catalog.append(f"{space}.t", arrow(ROWS))
    return f"{space}.t"


def arrow(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def content(found: pa.Table) -> list[Row]:
    return sorted(tuple(row.values()) for row in found.select(SCHEMA.names).to_pylist())


def rows(catalog: Any, table: str, **options: Any) -> list[Row]:
    return content(catalog.read(table, **options))


FRESH: list[Row] = [(6, "a", 60), (7, "b", 70)]


# --- without Spark ---------------------------------------------------------------------------------


@case(Catalog, "create_table", "append", "read")
def created_and_appended(catalog: Catalog, table: str) -> None:
    catalog.create_table(f"{table}2", arrow(ROWS), sort_by=["n desc"])
    catalog.append(f"{table}2", arrow(FRESH))
    assert rows(catalog, f"{table}2") == ROWS + FRESH
    assert rows(catalog, f"{table}2", where="n > 45", columns=["n", "id", "k"]) == [ROWS[5], *FRESH]


@case(Catalog, "overwrite")
def overwritten(catalog: Catalog, table: str) -> None:
    catalog.overwrite(table, arrow([(1, "b", 0)]), where="id < 2")
    assert rows(catalog, table) == [(1, "b", 0), *ROWS[2:]]
    catalog.overwrite(table, arrow([FRESH[0]]), partitions=[{"k": "a"}])
    assert rows(catalog, table) == [(1, "b", 0), ROWS[3], ROWS[5], FRESH[0]]
    catalog.overwrite(table, arrow(FRESH))
    assert rows(catalog, table) == FRESH


@case(Catalog, "delete")
def deleted(catalog: Catalog, table: str) -> None:
    catalog.delete(table, "id = 0")
    assert rows(catalog, table) == ROWS[1:]
    catalog.delete(table, "id = 1 OR n = 50", mode="rewrite")
    assert rows(catalog, table) == ROWS[2:5]


@case(Catalog, "update")
def updated(catalog: Catalog, table: str) -> None:
    catalog.update(table, {"n": pc.field("n") + 1}, "id = 0", "predicate")
    catalog.update(table, {"k": "c"}, "id = 1", "rewrite")
    assert rows(catalog, table) == [(0, "a", 1), (1, "c", 10), *ROWS[2:]]


@case(Catalog, "merge")
def merged(catalog: Catalog, table: str) -> None:
    for mode in ("predicate", "rewrite"):
        catalog.merge(table, arrow([(5, "b", 0), FRESH[0]]), "id", mode=mode)
        assert rows(catalog, table) == [*ROWS[:5], (5, "b", 0), FRESH[0]]
    catalog.merge(table, arrow([(5, "b", 0), FRESH[1]]), ["id", "k"], matched="delete", unmatched="ignore")
    assert rows(catalog, table) == [*ROWS[:5], FRESH[0]]


@case(Catalog, "compact")
def compacted(catalog: Catalog, table: str) -> None:
    catalog.append(table, arrow(FRESH))
    before = catalog.version()
    assert catalog.compact(table, dry_run=True).compacted_count == 4
    catalog.compact(table)
    assert rows(catalog, table) == rows(catalog, table, at=before) == ROWS + FRESH
    assert len(catalog.scan(table).files) == 2


@case(Catalog, "append_files")
def files_appended(catalog: Catalog, table: str, folder: Path) -> None:
    pq.write_table(arrow(FRESH), folder / "fresh.parquet")
    catalog.append_files(table, folder / "fresh.parquet")
    assert rows(catalog, table) == ROWS + FRESH


@case(Catalog, "import_table")
def imported(catalog: Catalog, table: str, folder: Path) -> None:
    pq.write_table(arrow(ROWS), folder / "old.parquet")
    assert catalog.import_table(f"{table}2", folder).rows == 6
    assert rows(catalog, f"{table}2") == ROWS


@case(Catalog, "scan", "at")
@also(Snapshot, "scan", "read")
def scanned(catalog: Catalog, table: str) -> None:
    before = catalog.at(None)
    catalog.delete(table, "k = 'a'")
    for scan, left in (
        (catalog.scan(table, where="id > 1"), [ROWS[3], ROWS[5]]),
        (before.scan(table, "id > 1"), ROWS[2:]),
    ):
        assert scan.count() == len(left)
        assert content(scan.to_arrow()) == content(pa.table(scan.to_batches().read_all())) == left
        assert sorted(scan.to_pandas()["id"]) == [row[0] for row in left]
        assert sorted(scan.to_duckdb().fetchall()) == left
        assert "rows" in scan.explain()
    assert content(before.read(table)) == ROWS


@case(Catalog, "system")
def told_of_itself(catalog: Catalog, table: str) -> None:
    found = {
        name: catalog.system(name, names=table).num_rows for name in ("log", "changes", "objects", "files")
    }
    assert found == {"log": 2, "changes": 2, "objects": 1, "files": 2}
    assert catalog.system("pipelines").num_rows == catalog.system("subscriptions").num_rows == 0


@case(Catalog, "replica")
def copied(catalog: Catalog, table: str) -> None:
    with catalog.replica() as copy:
        copy.wait_for(catalog.version())
        assert content(copy.read(table)) == ROWS


@case(Catalog, "transaction", "resume", "retry")
@also(Transaction, "save", "commit", "version", "read", "scan", "create_table", "append", "overwrite", "delete",
    "update", "merge", "append_files", "compact")  # fmt: skip
def together(catalog: Catalog, table: str, folder: Path) -> None:
    pq.write_table(arrow(FRESH), folder / "fresh.parquet")
    begin = catalog.version()
    with catalog.transaction() as tx:
        tx.create_table(f"{table}2", SCHEMA)
        tx.append(f"{table}2", arrow(ROWS))
        tx.overwrite(f"{table}2", arrow(FRESH), where="id > 3")
        tx.append_files(table, folder / "fresh.parquet")
        tx.delete(table, "id = 0")
        tx.update(table, {"n": 0}, "id = 1")
        id = tx.save()
    with catalog.resume(id) as tx:
        tx.merge(table, arrow([(2, "a", 0)]), "id")
        tx.compact(table)
        assert (tx.version, tx.scan(f"{table}2").count()) == (begin, 6)
        expected = [(1, "b", 0), (2, "a", 0), *ROWS[3:], *FRESH]
        assert rows(tx, table) == expected
        commit = tx.commit()
    assert commit is not None
    assert (commit.version, rows(catalog, table)) == (begin + 1, expected)
    assert rows(catalog, f"{table}2") == [*ROWS[:4], *FRESH]

    def raced(tx: Transaction) -> int:
        found = tx.read(table, where="id = 1")["n"].to_pylist()[0]
        tx.update(table, {"n": found + 1}, "id = 1")
        if found == 0:
            catalog.update(table, {"n": 40}, "id = 1")
        return found

    assert catalog.retry(raced) == 40
    assert rows(catalog, table, where="id = 1") == [(1, "b", 41)]


# --- Spark -----------------------------------------------------------------------------------------


def frame(lake: SparkCatalog, given: list[Row]) -> DataFrame:
    return lake.spark.createDataFrame(given, DDL).coalesce(1)


def found(df: DataFrame) -> list[Row]:
    return sorted(tuple(row) for row in df.select(*SCHEMA.names).collect())


@case(SparkCatalog, "create_table", "append", "read", "frame", "explain", "temp_view")
def spark_created_appended_and_read(lake: SparkCatalog, table: str) -> None:
    lake.create_table(f"{table}2", frame(lake, ROWS), partition_by=["k"])
    commit = lake.append(f"{table}2", frame(lake, FRESH))
    assert found(lake.read(f"{table}2", where="n > 45")) == [ROWS[5], *FRESH]
    assert found(lake.read(f"{table}2", at=commit.version - 1, columns=["n", "k", "id"])) == ROWS
    assert found(lake.frame(lake.catalog.load_table(table).definition)) == ROWS
    assert "read 1 of 4 files" in lake.explain(f"{table}2", "id = 7")
    assert found(lake.spark.table(lake.temp_view(table, "verbs_view", where="k = 'a'"))) == ROWS[::2]


@case(SparkCatalog, "overwrite")
def spark_overwritten(lake: SparkCatalog, table: str) -> None:
    lake.overwrite(table, frame(lake, [(1, "b", 0)]), where="id < 2")
    assert rows(lake.catalog, table) == [(1, "b", 0), *ROWS[2:]]
    lake.overwrite(table, frame(lake, FRESH[:1]), partitions=[{"k": "a"}])
    assert rows(lake.catalog, table) == [(1, "b", 0), ROWS[3], ROWS[5], FRESH[0]]
    lake.overwrite(table, frame(lake, FRESH))
    assert rows(lake.catalog, table) == FRESH


@case(SparkCatalog, "compact", "append_files", "import_table", "system")
def spark_files(lake: SparkCatalog, table: str, folder: Path) -> None:
    pq.write_table(arrow(FRESH), folder / "fresh.parquet")
    lake.append_files(table, folder / "fresh.parquet")
    assert lake.compact(table, dry_run=True).compacted_count == 4
    lake.compact(table)
    assert found(lake.read(table)) == ROWS + FRESH
    assert lake.system("files", names=table).count() == 2
    assert lake.import_table(f"{table}2", folder / "fresh.parquet").rows == 2


@case(SparkCatalog, "at", "changes")
@also(PinnedReader, "read", "temp_views", "version")
def spark_versions(lake: SparkCatalog, table: str) -> None:
    before = lake.catalog.version()
    lake.catalog.update(table, {"n": 1}, "id = 0")
    with lake.at(before) as reader:
        assert (reader.version, found(reader.read(table))) == (before, ROWS)
        assert reader.temp_views(table) == ["t"]
        assert lake.spark.sql("SELECT sum(n) FROM t").first()[0] == 150
    told = lake.changes(table, after=before).select("_change_type", "n").collect()
    assert sorted(tuple(row) for row in told) == [("update_postimage", 1), ("update_preimage", 0)]


@case(SparkCatalog, "transaction", "resume", "retry")
@also(SparkTransaction, "read", "create_table", "append", "overwrite", "delete", "update", "merge", "append_files",
    "compact", "stage", "save", "version")  # fmt: skip
def spark_together(lake: SparkCatalog, table: str, folder: Path) -> None:
    pq.write_table(arrow(FRESH), folder / "fresh.parquet")
    begin = lake.catalog.version()
    with lake.transaction() as tx:
        tx.create_table(f"{table}2", DDL)
        tx.append(f"{table}2", frame(lake, ROWS))
        tx.overwrite(f"{table}2", frame(lake, FRESH), where="id > 3")
        tx.append_files(table, folder / "fresh.parquet")
        tx.delete(table, "id = 0")
        tx.update(table, {"n": "0"}, "id = 1")
        id = tx.save()
    with lake.resume(id) as tx:
        definition = tx.catalog.load_table(f"{table}2").definition
        tx.catalog.append_segments(f"{table}2", tx.stage(definition, frame(lake, ROWS[4:])).segments)
        tx.merge(table, frame(lake, [(2, "a", 0)]), "id")
        tx.compact(table)
        expected = [(1, "b", 0), (2, "a", 0), *ROWS[3:], *FRESH]
        assert (tx.version, found(tx.read(table))) == (begin, expected)
    assert lake.catalog.version() == begin + 1
    assert rows(lake.catalog, table) == expected
    assert rows(lake.catalog, f"{table}2") == [*ROWS, *FRESH]
    raised = []

    def raced(tx: SparkTransaction) -> None:
        raised.append(len(raised))
        tx.update(table, {"n": "n + 1"}, "id = 1")
        if len(raised) == 1:
            lake.catalog.update(table, {"n": 40}, "id = 1")

    lake.retry(raced)
    assert (raised, rows(lake.catalog, table, where="id = 1")) == ([0, 1], [(1, "b", 41)])


@case(SparkCatalog, "stream", "write_stream", "batch_writer", "events", "source_options")
def spark_streams(lake: SparkCatalog, table: str, folder: Path) -> None:
    lake.catalog.create_table(f"{table}2", SCHEMA)
    lake.catalog.create_table(f"{table}3", pa.schema([("name", pa.string())]))
    begin = lake.catalog.version()
    written = lake.write_stream(
        f"{table}2", lake.stream(table, changes=True).select(*SCHEMA.names), f"{folder}/rows", "available_now"
    )
    written.awaitTermination()
    assert rows(lake.catalog, f"{table}2") == ROWS
    events = lake.events(after=begin).select("name").writeStream.trigger(availableNow=True)
    write = lake.batch_writer(lambda tx, batch: tx.append(f"{table}3", batch))
    events.option("checkpointLocation", f"{folder}/events").foreachBatch(write).start().awaitTermination()
    assert lake.catalog.read(f"{table}3")["name"].to_pylist() == [f"{table}2"]
    source = lake.spark.read.format("alpheus").options(**lake.source_options()).option("table", table)
    assert found(source.load()) == ROWS


@case(Pipeline, "run", "serve", "status", "adopt", "resume", "rewind")
def pipelines(lake: SparkCatalog, table: str) -> None:
    lake.catalog.create_table(f"{table}2", SCHEMA)
    mart = Pipeline(table, retries=0)
    stop = threading.Event()
    told: list[str] = []

    @mart.job(inputs={"rows": changes(table)}, outputs=[f"{table}2"])
    def copy(run: Any) -> None:
        if lake.catalog.version() == bad:
            raise ValueError("this version is not liked")
        run.merge(f"{table}2", run.whole("rows"), "id")

    def states(results: list[RunResult]) -> list[str]:
        return [result.state for result in results]

    def heard(result: RunResult) -> None:
        told.append(result.state)
        stop.set()

    bad = 0
    [first] = mart.run(lake)
    assert (first.state, states(mart.run(lake))) == ("committed", ["nothing"])
    assert mart.adopt(lake) is None
    bad = lake.catalog.append(table, arrow(FRESH)).version
    assert states(mart.run(lake)) == ["parked"]
    assert [(job.state, job.lag_versions) for job in mart.status(lake.catalog)] == [("parked", 1)]
    mart.resume(lake.catalog, "copy")
    mart.serve(lake, on_result=heard, stop=stop)
    assert (told, rows(lake.catalog, f"{table}2")) == (["committed"], ROWS + FRESH)
    assert first.version is not None
    mart.rewind(lake, first.version)
    assert rows(lake.catalog, f"{table}2") == ROWS


# --- the table -------------------------------------------------------------------------------------


LONG_IN_SPARK = {"spark_streams", "spark_together", "spark_overwritten", "pipelines"}
"""A short run tries these over storage alone."""


@pytest.mark.parametrize(
    ("owner", "fn"), CASES, ids=[f"{owner.__name__}-{fn.__name__}" for owner, fn in CASES]
)
def test_a_verb_over_both_ways(
    owner: type,
    fn: Any,
    catalog: Catalog,
    table: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    lane_count: Callable[[int, int], int],
) -> None:
    given: list[Any] = [catalog, table]
    by_daemon = request.node.callspec.params["catalog"] == "daemon"
    if fn.__name__ in LONG_IN_SPARK and by_daemon and not lane_count(0, 1):
        pytest.skip("tried over storage: make slow LANE=every_verb")
    if owner in (SparkCatalog, SparkTransaction, PinnedReader, Pipeline):
        given[0] = SparkCatalog(request.getfixturevalue("spark"), catalog)
    if len(inspect.signature(fn).parameters) == 3:
        given.append(tmp_path)
    fn(*given)


@pytest.mark.parametrize(
    "owner", [Catalog, Snapshot, Transaction, SparkCatalog, SparkTransaction, PinnedReader, Pipeline]
)
def test_no_verb_is_left_out(owner: type) -> None:
    verbs = {name for name in dir(owner) if not name.startswith("_")} - NO_VERBS
    elsewhere = {name for names in ELSEWHERE.get(owner, {}).values() for name in names.split()}
    assert verbs - COVERED[owner] - elsewhere == set()
    assert (COVERED[owner] | elsewhere) - verbs == set(), "of no verb"
    assert COVERED[owner] & elsewhere == set()


@pytest.mark.parametrize("file", sorted({file for files in ELSEWHERE.values() for file in files}))
def test_verbs_that_are_tried_elsewhere(file: str) -> None:
    (path,) = Path(__file__).parents[1].rglob(file)
    text = path.read_text()
    ways = r'^from both_ways import|"direct", "remote"|"storage", "daemon"|"storage-32".*"daemon"'
    assert re.search(ways, text, re.MULTILINE), "on both ways"
    names = {name for files in ELSEWHERE.values() for name in files.get(file, "").split()}
    assert [name for name in sorted(names) if not re.search(rf"\.{name}\b", text)] == []
