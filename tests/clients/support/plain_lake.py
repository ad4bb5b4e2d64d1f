"""A lake without Spark, for tests of the runner.

Jobs read and write rows with pyarrow. Everything else is real, over a catalog in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import alpheus
from alpheus.feed.change_sets import ChangeReader, refuse_removals
from alpheus.pipeline import Job, Pipeline, RunResult, changes, runner
from alpheus.pipeline.work import Work
from alpheus.rows.manifest_files import FileLists
from alpheus.spark.job_run import JobRun
from alpheus.sync.portal import run as in_loop
from alpheus_journal.model.definitions import Segment
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.data_file import DataFile

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("change", pa.int64())])
TABLES = ("sales.orders", "sales.lines", "mart.log", "mart.total", "mart.lines", "mart.copy")

Row = tuple[int, int]


class PlainLake:
    """The part of a SparkCatalog that the runner asks for."""

    def __init__(self, catalog: alpheus.Catalog) -> None:
        self.catalog = catalog
        self.storage = catalog.storage()
        self.lists = FileLists(self.storage, in_loop)
        self.spark = None
        self.up = True

    def is_up(self) -> bool:
        return self.up

    def check_can_serve(self) -> None:
        pass

    def job_run(
        self, job: Job, work: Work, tx: alpheus.Transaction, *, attempt: int, params: Mapping[str, str]
    ) -> PlainRun:
        return PlainRun(cast(Any, self), job, work, tx, attempt=attempt, params=params)

    def ids(self, table_id: str, segments: Sequence[Segment]) -> list[int]:
        return self.ids_of(self.lists.of(table_id, segments))

    def ids_of(self, listed: Iterable[DataFile]) -> list[int]:
        found: list[int] = []
        for file in listed:
            data = in_loop(self.storage.read(file.path, size_max=file.size_bytes))
            found += pq.read_table(pa.BufferReader(data))["id"].to_pylist()
        return found


class PlainRun(JobRun):
    """Gives rows as (id, change): 1 for a row that came in, and -1 for a row that went out."""

    _lake: Any

    def rows(self, input: str) -> list[Row]:
        table = self._work.inputs[input].definition
        found = self._work.changes[input]
        if found is None:
            return [(id_, 1) for id_ in self._lake.ids(table.id, table.segments)]
        reader = ChangeReader(self._lake.storage, self._lake.lists, table.id, dict)
        if self._job.inputs[input].mode == "appends":
            found = self._drop_undone(input, found)
        sets = [each for change in found for each in reader.read(change)]
        if self._job.inputs[input].mode == "appends":
            refuse_removals(sets, "")
        return [
            (id_, 1 if each.change_type == "insert" else -1)
            for each in sets
            for id_ in self._lake.ids_of(each.files)
        ]

    def put(self, output: str, rows: Iterable[Row], *, replace: bool = False) -> None:
        (self._tx.overwrite if replace else self._tx.append)(output, arrow(rows))

    def all(self, input: str) -> list[Row]:
        definition = self._work.inputs[input].definition
        return [(id_, 1) for id_ in self._lake.ids(definition.id, definition.segments)]


def arrow(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([{"id": id_, "change": change} for id_, change in rows], SCHEMA)


def stored(catalog: alpheus.Catalog, name: str, at: int | None = None) -> list[Row]:
    found = catalog.read(name, at=at).to_pydict()
    return sorted(zip(found["id"], found["change"], strict=True))


@pytest.fixture
def catalog() -> Iterator[alpheus.Catalog]:
    with fresh_catalog() as catalog:
        yield catalog


def fresh_catalog() -> alpheus.Catalog:
    MemoryStorage.forget("runner")
    catalog = alpheus.create("memory://runner")
    for namespace in ("sales", "mart"):
        catalog.create_namespace(namespace)
    for name in TABLES:
        catalog.create_table(name, SCHEMA)
    return catalog


def runner_of(
    lake: PlainLake,
    pipeline: Pipeline,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    jobs: list[str] | None = None,
) -> runner.Runner:
    """Return a runner whose pauses take no time."""
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    return runner.Runner(
        lake,
        pipeline,
        jobs=pipeline._choose_jobs(jobs),
        monotonic=lambda: passed[0],
        now=now,
        sleep=sleep,
        jitter=random.Random(0),
    )


def states(results: list[RunResult]) -> list[str]:
    return [result.state for result in results]


def copying(work: Callable[[PlainRun], object] = lambda run: None, **inputs: Any) -> Pipeline:
    """Declare a pipeline of one job, which appends the new rows of its input "orders" to mart.log."""
    pipeline = Pipeline("mart", retries=0, backoff=0, lease=0)

    @pipeline.job(inputs={"orders": changes("sales.orders")} | inputs, outputs=["mart.log"])
    def daily(run: Any) -> None:
        work(run)
        run.put("mart.log", run.rows("orders"))

    return pipeline
