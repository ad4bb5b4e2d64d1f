"""The commands on pipelines, without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_answers import answer, failed, ok
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli
from alpheus.pipeline import Pipeline, RunResult, changes
from alpheus_journal.model.definitions import DeclaredTable, InputPosition, JobDeclaration

Run = Callable[..., Result]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Create a catalog with a namespace and a table, and return its URL."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales", {"owner": "ann"})
        catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    return url


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name != "ALPHEUS_SLOW":
            monkeypatch.delenv(name)


@pytest.fixture
def run(lake: str) -> Run:
    """Return a function that runs a command on the catalog `lake`."""
    return lambda *words: CliRunner().invoke(cli.cli, ["--catalog", lake, *words])


def test_pipelines_and_their_positions(lake: str, run: Run) -> None:
    assert answer(run("--output", "json", "pipeline", "list")) == []
    with alpheus.connect(lake) as catalog, catalog.transaction() as tx:
        tx.advance_pipeline("mart", "daily", "", 2, state="parked", error="boom")
    assert ok(run("pipeline", "list")) == "mart\n"
    shown = answer(run("--output", "json", "pipeline", "show", "mart"))
    assert (shown["jobs"]["daily"]["pinned_version"], shown["jobs"]["daily"]["error"]) == (2, "boom")
    assert ok(run("pipeline", "show", "mart")).splitlines()[-1].split() == ["daily", "parked", "2", "boom"]


class FakePipeline(Pipeline):
    """Returns the given results instead of running Spark."""

    def __init__(self, *states: Any) -> None:
        super().__init__("fake")
        self.results = [RunResult(job=f"j{n}", state=state, version=n) for n, state in enumerate(states)]
        self.asked: list[Any] = []

    def run(
        self, lake: Any, params: Any = None, full_refresh: bool = False, jobs: Any = None
    ) -> list[RunResult]:
        self.asked.append((lake, params, full_refresh, jobs))
        return self.results

    def serve(
        self, lake: Any, params: Any = None, on_result: Any = None, stop: Any = None, jobs: Any = None
    ) -> None:
        self.asked.append((lake, params, jobs))
        for result in self.results:
            on_result(result)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a lake without Spark and a module for pipelines, and return the module."""

    @contextlib.contextmanager
    def lake(settings: cli.frame.Settings, name: str, conf: tuple[tuple[str, str], ...]) -> Iterator[str]:
        yield name

    module = type(sys)("fake_marts")
    monkeypatch.setitem(sys.modules, "fake_marts", module)
    monkeypatch.setattr(cli.pipelines, "open_lake", lake)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module


@pytest.mark.parametrize(
    ("states", "status"),
    [(["committed", "nothing"], 0), (["nothing", "nothing"], 99), (["committed", "parked"], 1)],
)
def test_the_status_of_a_pipeline_run(run: Run, fakes: Any, states: list[str], status: int) -> None:
    fakes.mart = FakePipeline(*states)
    result = run("--output", "json", "pipeline", "run", "fake_marts:mart", "--param", "a=b", "--full-refresh")
    assert result.exit_code == status
    assert [json.loads(line)["state"] for line in result.stdout.splitlines()] == states
    assert fakes.mart.asked == [("fake", {"a": "b"}, True, None)]


def test_serving_a_pipeline_prints_results_as_they_come(run: Run, fakes: Any) -> None:
    fakes.mart = FakePipeline("committed", "parked")
    assert (
        ok(run("pipeline", "serve", "fake_marts:mart"))
        == "j0 committed in version 0\nj1 parked in version 1\n"
    )
    assert fakes.mart.asked == [("fake", {}, None)]


def test_jobs_of_a_pipeline_are_chosen_before_spark_starts(run: Run, fakes: Any) -> None:
    fakes.mart = mart = FakePipeline("committed", "nothing")
    for name in ("daily", "weekly"):
        mart.job(name=name, inputs={"orders": changes("sales.orders")}, outputs=[])(lambda run: None)
    ok(run("pipeline", "run", "fake_marts:mart", "--job", "weekly"))
    ok(run("pipeline", "serve", "fake_marts:mart", "--job", "weekly", "--job", "daily", "--param", "a=b"))
    assert mart.asked == [("fake", {}, False, ("weekly",)), ("fake", {"a": "b"}, ("weekly", "daily"))]
    for command in ("run", "serve"):
        assert "has no job 'hourly'; it has daily, weekly" in failed(
            run("pipeline", command, "fake_marts:mart", "--job", "hourly"), 2
        )
    assert len(mart.asked) == 2


def test_looking_after_a_pipeline(lake: str, run: Run, fakes: Any) -> None:
    fakes.mart = mart = FakePipeline()
    mart.job(name="daily", inputs={"orders": changes("sales.orders")}, outputs=["mart.daily"])(
        lambda run: None
    )

    def advance(state: str, *rows: int) -> None:
        with alpheus.connect(lake) as catalog, catalog.transaction() as tx:
            table = tx.load_table("sales.orders")
            last = (
                tx.load_pipeline("fake").jobs["daily"].last_transaction_id
                if rows or state == "parked"
                else ""
            )
            place = InputPosition(table_id=table.id, version=tx.version, table="sales.orders")
            tx.advance_pipeline(
                "fake", "daily", last, tx.version, {"orders": place}, state, "boom" * (state == "parked")
            )
            if rows:
                tx.append("mart.daily", pa.table({"id": rows}))

    schema = pa.schema([pa.field("id", pa.int64())])
    with alpheus.connect(lake) as catalog:
        for name in ("sales", "mart"):
            catalog.create_namespace(name, exist_ok=True)
        catalog.create_table("sales.orders", schema, exist_ok=True)
        catalog.create_table("mart.daily", schema)
    [status] = answer(run("--output", "json", "pipeline", "status", "fake_marts:mart"))
    assert (status["state"], status["position"]) == ("new", None)
    advance("running")
    with alpheus.connect(lake) as catalog:
        good = catalog.version()
        catalog.append("sales.orders", pa.table({"id": [1]}))
    for reference in ("fake", "fake_marts:mart"):
        [status] = answer(run("--output", "json", "pipeline", "status", reference))
        assert (status["job"], status["state"], status["lag_versions"]) == ("daily", "running", 1)
    assert run("pipeline", "resume", "fake").exit_code == 99
    advance("running", 7)
    advance("parked")
    result = run("pipeline", "status", "fake")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].split()[:2] == ["daily", "parked"]
    assert "never ran" in failed(run("pipeline", "resume", "fake", "--job", "daily", "--job", "weekly"))
    assert ok(run("pipeline", "resume", "fake_marts:mart")).startswith("daily resumed in version")

    assert "rewound in version" in ok(run("pipeline", "rewind", "fake", str(good)))
    assert run("pipeline", "rewind", "fake_marts:mart", str(good)).exit_code == 99
    with alpheus.connect(lake) as catalog:
        assert catalog.read("mart.daily").num_rows == 0
        head = catalog.version()
        catalog.append("mart.daily", pa.table({"id": [8]}))
    advance("running", 9)
    refused = run("--output", "json", "pipeline", "rewind", "fake", str(head), "--job", "daily")
    assert refused.exit_code == 1
    error = json.loads(refused.stderr.splitlines()[-1])
    assert (error["error"], "TABLE_INSERT" in error["message"]) == ("Conflict", True)


def test_a_pipeline_that_is_not_there(
    run: Run, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.mart = object()
    assert "has no pipeline 'mart'" in failed(run("pipeline", "run", "fake_marts:mart"), 2)
    assert "There is no module 'no.such'" in failed(run("pipeline", "run", "no.such:mart"), 2)
    for name in ("./fake_marts.py", "fake_marts.py", "/srv/fake_marts.py", ".fake_marts"):
        told = " ".join(failed(run("pipeline", "resume", f"{name}:mart"), 2).split())
        assert "not a module; write fake_marts:mart" in told
    (tmp_path / "broken_marts.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    assert "importing broken_marts failed: ZeroDivisionError" in failed(
        run("pipeline", "run", "broken_marts:x")
    )


def test_the_log_tells_what_a_run_read(lake: str, run: Run) -> None:
    with alpheus.connect(lake) as catalog, catalog.transaction(message="mart.daily") as tx:
        tx.advance_pipeline("mart", "daily", "", tx.version)
        tx.add_properties({"alpheus.input.orders": "sales.orders@1..2", "alpheus.input.days": "ref.days@2"})
        tx.add_properties({"alpheus.input.days": "ref.days@3"})
    assert "  from ref.days@3, sales.orders@1..2  mart.daily\n" in ok(run("log"))
    entry = json.loads(ok(run("--output", "json", "log")).splitlines()[0])
    assert entry["transaction"]["properties"]["alpheus.input.orders"] == "sales.orders@1..2"


def test_adopting_and_renaming(lake: str, run: Run, fakes: Any) -> None:
    fakes.mart = mart = FakePipeline()
    mart.job(name="daily", inputs={"orders": changes("sales.orders")}, outputs=["mart.daily"])(
        lambda run: None
    )
    schema = pa.schema([pa.field("id", pa.int64())])
    with alpheus.connect(lake) as catalog:
        for name in ("sales", "mart"):
            catalog.create_namespace(name, exist_ok=True)
        catalog.create_table("sales.orders", schema, exist_ok=True)
        catalog.create_table("mart.daily", schema)
        with catalog.transaction() as tx:
            other = JobDeclaration(
                inputs=(DeclaredTable(table="sales.orders", table_id=tx.load_table("sales.orders").id),),
                outputs=(DeclaredTable(table="mart.other"),),
            )
            tx.advance_pipeline("fake", "daily", "", tx.version, declaration=other)
    result = run("pipeline", "status", "fake_marts:mart")
    assert (result.exit_code, "alpheus pipeline adopt fake" in result.stdout) == (1, True)
    shown = answer(run("--output", "json", "pipeline", "show", "fake"))
    assert [each["table"] for each in shown["jobs"]["daily"]["declaration"]["outputs"]] == ["mart.other"]
    assert "mart.other" in ok(run("pipeline", "show", "fake"))
    assert "adopted in version" in ok(run("pipeline", "adopt", "fake"))
    assert run("pipeline", "adopt", "fake", "--job", "daily").exit_code == 99
    assert "never ran" in failed(run("pipeline", "adopt", "fake", "--job", "weekly"))
    assert "adopted in version" in ok(run("pipeline", "adopt", "fake_marts:mart"))
    assert run("pipeline", "adopt", "fake_marts:mart").exit_code == 99
    [status] = answer(run("--output", "json", "pipeline", "status", "fake_marts:mart"))
    assert status["state"] == "new", "its first run fills all its outputs"
    assert "renamed in version" in ok(run("pipeline", "rename", "fake", "real", "--job", "daily=nightly"))
    assert "no pipeline fake" in failed(run("pipeline", "rename", "fake", "real"))
    assert answer(run("--output", "json", "pipeline", "show", "real"))["jobs"].keys() == {"nightly"}
    assert "PIPELINE_RENAME" in ok(run("log"))
    result = run("pipeline", "status", "fake_marts:mart")
    assert result.exit_code == 1
    assert "alpheus pipeline rename real fake --job nightly=daily" in result.stdout


def test_consents_reach_the_pipeline(lake: str, run: Run, fakes: Any) -> None:
    asked: list[dict[str, object]] = []

    class Consenting(FakePipeline):
        def run(self, *arguments: Any, **consents: Any) -> Any:
            asked.append(consents)
            return super().run(*arguments)

        def serve(self, *arguments: Any, adopt: bool = False, from_now: bool = False, **others: Any) -> Any:
            asked.append({"adopt": adopt, "from_now": from_now})
            return super().serve(*arguments, **others)

    fakes.mart = Consenting()
    fakes.mart.results = [RunResult(job="j", state="committed", version=1)]
    ok(run("pipeline", "run", "fake_marts:mart", "--adopt"))
    ok(run("pipeline", "run", "fake_marts:mart", "--from-now", "--adopt"))
    ok(run("pipeline", "serve", "fake_marts:mart", "--from-now"))
    assert asked == [{"adopt": True}, {"adopt": True, "from_now": True}, {"adopt": False, "from_now": True}]
