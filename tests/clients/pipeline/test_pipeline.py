"""Declaring and managing pipelines, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import alpheus
from alpheus.errors import InvalidInput, NotFound
from alpheus.pipeline import Input, Pipeline, appends, changes, table
from alpheus_journal.model.definitions import InputPosition


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64())]))
        yield catalog


def declared(pipeline: Pipeline, name: str = "daily", **changed: Any) -> None:
    arguments: dict[str, Any] = {"inputs": {"orders": changes("sales.orders")}, "outputs": ["mart.daily"]}
    pipeline.job(name=name, **(arguments | changed))(lambda run: None)


def test_importing_it_imports_no_spark() -> None:
    code = "import sys, alpheus.pipeline; assert not {'pyspark', 'py4j'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_inputs_say_what_they_read_and_whether_they_wake() -> None:
    assert changes("sales.orders") == Input(mode="changes", namespace="sales", name="orders", trigger=True)
    assert appends(("a.b", "c")).full_name == "a.b.c"
    assert not table("ref.products").trigger
    assert table("ref.products", trigger=True).trigger


def test_a_job_is_named_after_its_function_which_stays_callable() -> None:
    mart = Pipeline("mart")

    @mart.job(inputs={"orders": appends("sales.orders")}, outputs=["mart.daily"], when="all")
    def daily(run: Any) -> str:
        return f"called with {run}"

    assert daily(1) == "called with 1"
    job = mart.jobs["daily"]
    assert (job.outputs, job.when, list(job.triggers)) == ((("mart", "daily"),), "all", ["orders"])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Pipeline(""), "name '' is empty"),
        (lambda: Pipeline("a b"), "U\\+0020"),
        (lambda: Pipeline("m", retries=-1), "retries=-1"),
        (lambda: Pipeline("m", retries=True), "retries=True"),
        (lambda: Pipeline("m", backoff=float("nan")), "backoff=nan"),
        (lambda: Pipeline("m", backoff="1"), "backoff='1'"),  # type: ignore[arg-type]
        (lambda: Pipeline("m", on_failure="skip"), "on_failure='skip'"),
        (lambda: Pipeline("m", on_expired="skip"), "on_expired='skip'"),
        (lambda: Pipeline("m", lease=0.5), "lease=0.5: 1 to 3600 seconds"),
        (lambda: Pipeline("m", lease=True), "lease=True"),
        (lambda: changes("orders"), "names no table"),
        (lambda: changes("sales.orders", start="so on"), '\'so on\' is neither.*"snapshot", "now"'),
        (lambda: changes("sales.orders", start="latest"), "start='latest': write \"now\""),
        (lambda: changes("sales.orders", start=None), "start=None"),  # type: ignore[arg-type]
        (lambda: appends("sales.orders", start=-(1 << 33)), "outside -2"),
        (lambda: appends("sales.orders", start=datetime(2026, 1, 1)), "has no zone"),
        (lambda: table("sales.orders", trigger=1), "trigger=1"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_by_name(build: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        build()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"inputs": {}}, "needs an input"),
        ({"inputs": {"orders": "sales.orders"}}, "'orders' is str"),
        ({"inputs": {"": table("a.b")}}, "input name"),
        ({"inputs": {"products": table("ref.products")}}, "no input triggers the job"),
        ({"outputs": "mart.daily"}, "a list of table names"),
        ({"outputs": ["daily"]}, "names no table"),
        ({"outputs": ["mart.daily", ("mart", "daily")]}, "mart.daily is named twice"),
        ({"when": "some"}, "when='some'"),
        ({"name": "a/b"}, "holds '/'"),
        ({"every": 0}, "every=0 is not a period"),
        ({"every": True}, "every=True is not a period"),
        ({"every": ""}, "every='' is not a period"),
        ({"every": "1 week"}, "every='1 week' is not a period"),
        ({"every": "400d"}, "at most 366 days"),
        ({"max_versions": 0}, "max_versions=0: 1 to"),
        ({"max_versions": True}, "max_versions=True"),
        ({"max_versions": 5, "serializable": True}, "would always conflict"),
        ({"max_versions": 5, "inputs": {"p": table("ref.p")}, "every": 1}, "has no effect"),
        ({"serializable": 1}, "serializable=1"),
    ],
)
def test_a_job_that_could_never_be_right_is_refused(changed: dict[str, Any], says: str) -> None:
    mart = Pipeline("mart")
    with pytest.raises(InvalidInput, match=says):
        declared(mart, **changed)
    assert not mart.jobs


@pytest.mark.parametrize(
    ("every", "seconds"),
    [
        (60, 60.0),
        (0.5, 0.5),
        (timedelta(hours=1), 3600.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        (" 2d ", 172_800.0),
    ],
)
def test_a_period_is_written_in_several_ways(every: object, seconds: float) -> None:
    mart = Pipeline("mart")
    declared(mart, every=every, inputs={"products": table("ref.products")})
    assert mart.jobs["daily"].every == seconds


def test_a_name_is_taken_once() -> None:
    mart = Pipeline("mart")
    declared(mart)
    with pytest.raises(InvalidInput, match="already has a job daily"):
        declared(mart)


def test_jobs_that_would_wake_each_other_for_ever_are_refused() -> None:
    mart = Pipeline("mart")
    with pytest.raises(InvalidInput, match=r"forever: mart\.daily → mart\.daily"):
        declared(mart, inputs={"own": appends("mart.daily")})
    declared(mart, inputs={"orders": appends("sales.orders"), "own": table("mart.daily")})
    declared(mart, "weekly", inputs={"daily": appends("mart.daily")}, outputs=["mart.weekly"])
    with pytest.raises(InvalidInput, match=r"mart\.daily → mart\.weekly → mart\.daily"):
        declared(mart, "back", inputs={"weekly": changes("mart.weekly")}, outputs=["mart.daily"])
    assert list(mart.jobs) == ["daily", "weekly"]


# --- positions -------------------------------------------------------------------------------------


def advanced(catalog: alpheus.Catalog, state: str = "running", error: str = "") -> int:
    """Write a position of mart.daily at the head, as a run does."""
    with catalog.transaction() as tx:
        last = ""
        if tx.version > 2:
            last = tx.load_pipeline("mart").jobs["daily"].last_transaction_id
        source = tx.load_table("sales.orders")
        position = InputPosition(table_id=source.id, version=tx.version, table="sales.orders")
        tx.advance_pipeline("mart", "daily", last, tx.version, {"orders": position}, state, error)
    assert tx.result is not None
    return tx.version


def test_status_counts_versions_that_brought_rows(catalog: alpheus.Catalog) -> None:
    mart = Pipeline("mart")
    declared(mart)
    [status] = mart.status(catalog)
    assert (status.job, status.state, status.position, status.lag_versions) == ("daily", "new", None, None)

    position = advanced(catalog)
    [status] = mart.status(catalog)
    assert (status.state, status.position) == ("running", position)
    assert (status.lag_versions, status.lag_seconds) == (0, 0.0)

    catalog.append("sales.orders", pa.table({"id": [1]}))
    catalog.update_table("sales.orders", set={"owner": "me"})
    catalog.create_namespace("other")
    catalog.overwrite("sales.orders", pa.table({"id": [2]}))
    [status] = mart.status(catalog)
    assert status.lag_versions == 2
    assert status.lag_seconds is not None
    assert status.lag_seconds >= 0


def test_status_counts_under_the_names_that_a_table_gets(catalog: alpheus.Catalog) -> None:
    mart = Pipeline("mart")
    declared(mart)
    advanced(catalog)
    catalog.rename_table("sales.orders", "sales.moved")
    catalog.append("sales.moved", pa.table({"id": [1]}))
    catalog.create_table("sales.orders", pa.table({"id": [2]}))
    catalog.append("sales.orders", pa.table({"id": [3]}))
    catalog.rename_table("sales.moved", "sales.again")
    catalog.append("sales.again", pa.table({"id": [4]}))
    assert [status.lag_versions for status in mart.status(catalog)] == [2]
    under_another_key = Pipeline("mart")
    declared(under_another_key, inputs={"fresh": changes("sales.orders")})
    assert [status.lag_versions for status in under_another_key.status(catalog)] == [2]


def test_a_rewind_unparks_where_a_job_stands_already(catalog: alpheus.Catalog) -> None:
    advanced(catalog)
    position = advanced(catalog, "parked", "it broke")
    mart = Pipeline("mart")
    declared(mart)
    assert mart.rewind(catalog, catalog.version()) is not None
    [status] = mart.status(catalog)
    assert (status.state, status.error, status.position) == ("running", "", position)
    assert mart.rewind(catalog, catalog.version()) is None


def test_a_parked_job_goes_on_after_resume_from_where_it_was(catalog: alpheus.Catalog) -> None:
    mart = Pipeline("mart")
    declared(mart)
    with pytest.raises(NotFound, match="never ran"):
        mart.resume(catalog, "daily")
    with pytest.raises(NotFound, match="has no job 'weekly'"):
        mart.resume(catalog, "weekly")
    advanced(catalog)
    position = advanced(catalog, "parked", "it broke")
    [status] = mart.status(catalog)
    assert (status.state, status.error, status.position) == ("parked", "it broke", position)

    mart.resume(catalog, "daily")
    [status] = mart.status(catalog)
    assert (status.state, status.error, status.position) == ("running", "", position)
    head = catalog.version()
    mart.resume(catalog, "daily")
    assert catalog.version() == head, "nothing to resume, nothing committed"
