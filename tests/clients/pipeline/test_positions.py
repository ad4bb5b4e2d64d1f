"""Positions of jobs, with the catalog alone: how they are shown, unparking, rewinding and renaming."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import alpheus
from alpheus.errors import Conflict, InvalidInput, NotFound
from alpheus.pipeline import positions
from alpheus_journal.format import pipeline_name, table_name
from alpheus_journal.model.definitions import InputPosition
from alpheus_journal.model.operations import Action, AdvancePipeline, RecordedTransaction

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[alpheus.Catalog]:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        for namespace in ("sales", "mart"):
            catalog.create_namespace(namespace)
        for name in ("sales.orders", "sales.lines", "mart.log"):
            catalog.create_table(name, SCHEMA)
        yield catalog


def put(catalog: alpheus.Catalog, name: str) -> int:
    catalog.append(name, pa.table({"id": [1]}))
    return catalog.version()


def advance(
    catalog: alpheus.Catalog,
    job: str = "daily",
    *,
    inputs: dict[str, int] | None = None,
    state: str = "running",
    error: str = "",
    output: str = "",
) -> int:
    """Move a job as a run does, to the head or to the versions of `inputs`, and return the version where it stands."""
    with catalog.transaction() as tx:
        last = ""
        with contextlib.suppress(NotFound):
            if (stored := tx.load_pipeline("mart").jobs.get(job)) is not None:
                last = stored.last_transaction_id
        reads = {
            name.partition(".")[2]: InputPosition(
                table_id=tx.load_table(name).id, version=version, table=name
            )
            for name, version in (inputs or {"sales.orders": tx.version}).items()
        }
        if output:
            tx.append(output, pa.table({"id": [2]}))
        tx.advance_pipeline("mart", job, last, tx.version, reads, state, error)
    return catalog.version()


def states(catalog: alpheus.Catalog) -> dict[str, tuple[str, int | None]]:
    return {each.job: (each.state, each.lag_versions) for each in positions.status(catalog, "mart")}


# --- where they stand ------------------------------------------------------------------------------


def test_the_lag_is_counted_from_each_inputs_own_version(catalog: alpheus.Catalog) -> None:
    """The lag counts each change once, from the version up to which its own input was read."""
    begin = catalog.version()
    orders = put(catalog, "sales.orders")
    lines = put(catalog, "sales.lines")
    advance(catalog, inputs={"sales.orders": begin, "sales.lines": lines})
    assert states(catalog) == {"daily": ("running", 1)}
    advance(catalog, inputs={"sales.orders": orders, "sales.lines": begin})
    assert states(catalog) == {"daily": ("running", 1)}
    advance(catalog, inputs={"sales.orders": begin, "sales.lines": begin})
    assert states(catalog) == {"daily": ("running", 2)}
    advance(catalog, inputs={"sales.orders": orders, "sales.lines": lines})
    assert states(catalog) == {"daily": ("running", 0)}
    put(catalog, "mart.log")
    assert states(catalog) == {"daily": ("running", 0)}, "no input of it"


def test_the_lag_follows_an_input_that_others_rename(catalog: alpheus.Catalog) -> None:
    """The lag counts changes under each name of an input.

    It skips changes of another table that has the old name now.
    """
    advance(catalog)
    put(catalog, "sales.orders")
    catalog.rename_table("sales.orders", "sales.old")
    catalog.create_table("sales.orders", SCHEMA)
    put(catalog, "sales.orders")
    assert states(catalog) == {"daily": ("running", 1)}
    put(catalog, "sales.old")
    catalog.rename_table("sales.old", "mart.oldest")
    assert states(catalog) == {"daily": ("running", 2)}
    with catalog.transaction() as tx:
        tx.rename_table("mart.oldest", "mart.last")
        tx.append("mart.last", pa.table({"id": [1]}))
    assert states(catalog) == {"daily": ("running", 3)}


def test_the_lag_in_seconds_is_the_age_of_the_oldest_change(catalog: alpheus.Catalog) -> None:
    advance(catalog)
    [status] = positions.status(catalog, "mart")
    assert (status.lag_versions, status.lag_seconds) == (0, 0.0)
    before = time.time()
    put(catalog, "sales.orders")
    between = time.time()
    time.sleep(0.002)  # the clock of versions counts milliseconds
    put(catalog, "sales.orders")
    [status] = positions.status(catalog, "mart")
    now = time.time()
    assert status.lag_versions == 2
    assert status.lag_seconds is not None
    assert 0 < status.lag_seconds <= now - before + 0.002
    assert status.lag_seconds > time.time() - between - 5


def test_a_pipeline_that_never_ran_has_no_status_of_its_own(catalog: alpheus.Catalog) -> None:
    with pytest.raises(NotFound):
        positions.status(catalog, "mart")
    [status] = positions.status(catalog, "mart", {"daily": {"orders": "sales.orders"}})
    assert (status.job, status.state, status.position, status.error) == ("daily", "new", None, "")


def test_a_job_that_failed_before_it_read_anything_is_parked(catalog: alpheus.Catalog) -> None:
    with catalog.transaction() as tx:
        tx.advance_pipeline("mart", "daily", "", 0, {}, "parked", "it broke")
    [status] = positions.status(catalog, "mart")
    assert (status.state, status.error, status.position, status.lag_versions, status.lag_seconds) == (
        "parked", "it broke", None, None, None,
    )  # fmt: skip


# --- the jobs of a transaction ---------------------------------------------------------------------


def recorded(*actions: Action) -> RecordedTransaction:
    return RecordedTransaction(
        id="t", operations_digest=b"", principal="", principal_authenticated=False, message="", properties={},
        serializable=False, branch="", begin_version=0, committed_at_millis=0, actions=actions,
    )  # fmt: skip


def moved(pipeline: str, job: str) -> Action:
    operation = AdvancePipeline(
        name=pipeline, job=job, expected_transaction_id="", pinned_version=1, inputs={}
    )
    return Action(type="PIPELINE_ADVANCE", name=pipeline_name(pipeline), operation=operation)


def test_a_transaction_is_of_the_job_that_it_moved() -> None:
    written = Action(type="TABLE_INSERT", name=table_name("a", "mart"), operation=None)
    transaction = recorded(written, moved("mart", "daily"), moved("house", "weekly"))
    assert positions.is_of_job(transaction, "mart", "daily")
    assert positions.is_of_job(transaction, "house", "weekly")
    assert not positions.is_of_job(transaction, "mart", "weekly")
    assert not positions.is_of_job(transaction, "house", "daily")
    assert positions.moved_any(transaction)
    assert not positions.moved_any(recorded(written))


# --- moving them -----------------------------------------------------------------------------------


def test_resuming_says_what_it_committed(catalog: alpheus.Catalog) -> None:
    advance(catalog, state="parked", error="it broke")
    commit = positions.resume(catalog, "mart", "daily")
    assert commit is not None
    assert commit.version == catalog.version()
    [status] = positions.status(catalog, "mart")
    assert (status.state, status.error, status.lag_versions) == ("running", "", 0)
    assert positions.resume(catalog, "mart", "daily") is None
    for name, job in (("mart", "weekly"), ("house", "daily")):
        with pytest.raises(NotFound, match=f"job {name}.{job} never ran") as caught:
            positions.resume(catalog, name, job)
        assert caught.value.kind == "no_job"


def test_renaming_says_what_it_committed_and_what_it_cannot(catalog: alpheus.Catalog) -> None:
    advance(catalog)
    advance(catalog, "weekly")
    commit = positions.rename(catalog, "mart", "house", {"daily": "nightly"})
    assert commit.version == catalog.version()
    assert sorted(catalog.load_pipeline("house").jobs) == ["nightly", "weekly"]
    version = catalog.version()
    with pytest.raises(NotFound, match=r"job house\.daily never ran") as caught:
        positions.rename(catalog, "house", "house", {"daily": "x"})
    assert (caught.value.kind, caught.value.hint) == ("no_job", "these did: nightly, weekly")
    with pytest.raises(InvalidInput, match=r"job house\.weekly already has this name") as refused:
        positions.rename(catalog, "house", "house", {"weekly": "weekly"})
    assert refused.value.kind == "bad_name"
    with pytest.raises(
        InvalidInput, match="pipeline house already has this name, and no jobs are to be renamed"
    ):
        positions.rename(catalog, "house", "house")
    assert catalog.version() == version


def test_rewinding_says_what_it_committed_and_what_it_cannot(catalog: alpheus.Catalog) -> None:
    first = advance(catalog)
    advance(catalog, "weekly")
    put(catalog, "sales.orders")
    stands = catalog.load_pipeline("mart").jobs["daily"].inputs
    advance(catalog)
    with pytest.raises(NotFound, match=r"job mart\.hourly never ran") as caught:
        positions.rewind(catalog, "mart", first, ["daily", "hourly"])
    assert (caught.value.kind, caught.value.hint) == ("no_job", "these did: daily, weekly")
    weekly = catalog.load_pipeline("mart").jobs["weekly"]
    commit = positions.rewind(catalog, "mart", first, ["daily"])
    assert commit is not None
    assert commit.version == catalog.version()
    jobs = catalog.load_pipeline("mart").jobs
    assert jobs["daily"].inputs == stands
    assert jobs["weekly"] == weekly, "it was not asked for"
    assert positions.rewind(catalog, "mart", first, ["daily"]) is None
    commit = positions.rewind(catalog, "mart", first)
    assert commit is not None
    jobs = catalog.load_pipeline("mart").jobs
    assert (jobs["weekly"].pinned_version, jobs["weekly"].inputs) == (0, {}), "it had not run then"


def test_a_rewind_restores_the_outputs_that_are_not_what_they_were(catalog: alpheus.Catalog) -> None:
    """A rewind restores outputs whose rows or columns differ. It does not touch an output whose rows are the same."""
    put(catalog, "mart.log")
    good = advance(catalog)
    advance(catalog, output="mart.log")
    catalog.compact("mart.log")
    advance(catalog, "weekly", output="sales.lines")
    commit = positions.rewind(catalog, "mart", good, ["daily"])
    assert commit is not None
    (entry,) = catalog.log(after=commit.version - 1)
    assert [(action.type, str(action.name)) for action in entry.transaction.actions] == [
        ("PIPELINE_ADVANCE", "mart"),
        ("TABLE_RESTORE", "mart.log"),
    ]
    assert catalog.read("mart.log").to_pylist() == [{"id": 1}]
    assert catalog.read("sales.lines").num_rows == 1, "of a job that is not rewound"
    assert entry.transaction.message == f"rewind mart to version {good}"
    advance(catalog)  # from here on the output does not change
    commit = positions.rewind(catalog, "mart", good, ["daily"])
    assert commit is not None
    (entry,) = catalog.log(after=commit.version - 1)
    assert [action.type for action in entry.transaction.actions] == ["PIPELINE_ADVANCE"]


def test_a_rewind_goes_back_to_the_names_that_jobs_had(catalog: alpheus.Catalog) -> None:
    """A rewind restores the names of jobs: of two that swapped names, and of one that took a removed job's name."""
    good = advance(catalog)
    daily = catalog.load_pipeline("mart").jobs["daily"]
    put(catalog, "sales.orders")
    advance(catalog, "weekly")
    weekly = catalog.load_pipeline("mart").jobs["weekly"]
    both = catalog.version()
    positions.rename(catalog, "mart", "mart", {"daily": "weekly", "weekly": "daily"})
    put(catalog, "sales.orders")
    for job in ("daily", "weekly"):
        advance(catalog, job)
    assert positions.rewind(catalog, "mart", both) is not None
    jobs = catalog.load_pipeline("mart").jobs
    assert (jobs["daily"].inputs, jobs["weekly"].inputs) == (weekly.inputs, daily.inputs)
    positions.rename(catalog, "mart", "mart", {"weekly": "nightly"})
    advance(catalog, "weekly")
    assert positions.rewind(catalog, "mart", good) is not None
    jobs = catalog.load_pipeline("mart").jobs
    assert jobs["nightly"].inputs == daily.inputs
    for job in ("daily", "weekly"):
        assert (jobs[job].pinned_version, jobs[job].inputs) == (0, {}), "it had not run then"


def test_a_table_that_others_put_in_the_place_of_an_output_is_named(catalog: alpheus.Catalog) -> None:
    good = advance(catalog)
    advance(catalog, output="mart.log")
    away = catalog.rename_table("mart.log", "mart.away")
    back = catalog.rename_table("sales.lines", "mart.log")
    with pytest.raises(Conflict, match="others changed outputs") as caught:
        positions.rewind(catalog, "mart", good)
    shown = [
        f"mart.log in version {commit.version} (TABLE_RENAME, transaction {commit.transaction_id})"
        for commit in (away, back)
    ]
    assert caught.value.message.endswith(f"would undo: {'; '.join(shown)}")
    assert caught.value.version == away.version


@pytest.mark.parametrize("count", [positions.FOREIGN_SHOWN_MAX, positions.FOREIGN_SHOWN_MAX + 2])
def test_a_rewind_names_the_first_of_those_whose_writes_it_would_undo(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    good = advance(catalog)
    advance(catalog, output="mart.log")
    versions = [put(catalog, "mart.log") for _ in range(count)]
    begin, attempts = catalog.transaction, list[dict[str, Any]]()
    monkeypatch.setattr(catalog, "transaction", lambda **given: attempts.append(given) or begin(**given))
    with pytest.raises(Conflict, match="others changed outputs since version") as caught:
        positions.rewind(catalog, "mart", good)
    error = caught.value
    assert len(attempts) == 1, "another attempt would meet the same"
    assert not error.retryable
    assert error.version == versions[0]
    ids = {entry.version: entry.transaction.id for entry in catalog.log()}
    assert error.transaction_id == ids[versions[0]]
    shown = [
        f"mart.log in version {version} (TABLE_INSERT, transaction {ids[version]})"
        for version in versions[: positions.FOREIGN_SHOWN_MAX]
    ]
    more = [f"{count - len(shown)} more"] if count > len(shown) else []
    assert error.message.endswith(f"which a rewind would undo: {'; '.join(shown + more)}")


@pytest.mark.parametrize("rivals", [1, positions.ATTEMPTS_MAX - 1, positions.ATTEMPTS_MAX])
@pytest.mark.parametrize("move", ["rename", "rewind"])
def test_who_comes_before_a_move_makes_it_begin_again(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch, move: str, rivals: int
) -> None:
    """A move restarts when others advance the job meanwhile. The move gives up after a few attempts."""
    good = advance(catalog)
    advance(catalog)
    moves: dict[str, Callable[[], Any]] = {
        "rename": lambda: positions.rename(catalog, "mart", "mart", {"daily": "nightly"}),
        "rewind": lambda: positions.rewind(catalog, "mart", good),
    }
    begin, attempts = catalog.transaction, 0

    @contextlib.contextmanager
    def raced(**given: Any) -> Iterator[Any]:
        nonlocal attempts
        attempts += 1
        with begin(**given) as tx:
            yield tx
            if attempts <= rivals:
                with monkeypatch.context() as meanwhile:
                    meanwhile.setattr(catalog, "transaction", begin)
                    advance(catalog)

    monkeypatch.setattr(catalog, "transaction", raced)
    if rivals < positions.ATTEMPTS_MAX:
        assert moves[move]().version == catalog.version()
        assert attempts == rivals + 1
    else:
        with pytest.raises(Conflict) as caught:
            moves[move]()
        assert caught.value.kind == "position_moved"
        assert attempts == positions.ATTEMPTS_MAX
