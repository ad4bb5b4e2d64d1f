"""Pipelines that share a name, or that change: what is refused, what resumes, and what a person can consent to."""

from __future__ import annotations

import random
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from plain_lake import (
    SCHEMA,
    PlainLake,
    PlainRun,
    arrow,
    fresh_catalog,
    runner_of,
    states,
    stored,
)
from plain_lake import catalog as catalog

import alpheus
from alpheus.pipeline import Pipeline, RunResult, changes, declarations, positions
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from alpheus_journal.model.definitions import InputPosition

Jobs = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""By job name: the tables that the job reads, and the tables that it writes new rows to."""


def pipeline_of(
    jobs: Jobs, name: str = "mart", work: Callable[[PlainRun], object] = lambda run: None
) -> Pipeline:
    """Declare jobs that copy the new rows of each input to each output."""
    made = Pipeline(name, retries=0, backoff=0, lease=0)
    for job, (inputs, outputs) in jobs.items():

        def copy(run: Any, outputs: Sequence[str] = outputs) -> None:
            work(run)
            rows = [row for key in run._job.inputs for row in run.rows(key)]
            for output in outputs:
                run.put(output, rows)

        made.job(name=job, inputs={each.split(".")[1]: changes(each) for each in inputs}, outputs=outputs)(
            copy
        )
    return made


ORDERS = {"daily": (["sales.orders"], ["mart.log"])}


def run_of(catalog: alpheus.Catalog, made: Pipeline, **consents: bool) -> list[RunResult]:
    """Run the pipeline as `made.run` does, without Spark."""
    full = consents.pop("full_refresh", False)
    made._record(catalog, list(made.jobs.values()), **{"adopt": False, "from_now": False} | consents)
    return runner_of(PlainLake(catalog), made).run(full_refresh=full)


def put(catalog: alpheus.Catalog, *ids: int, name: str = "sales.orders") -> None:
    catalog.append(name, arrow([(id_, 1) for id_ in ids]))


def ids(catalog: alpheus.Catalog, name: str) -> list[int]:
    return [id_ for id_, _ in stored(catalog, name)]


def test_two_of_one_name_that_write_other_outputs_take_no_rows_from_each_other(
    catalog: alpheus.Catalog,
) -> None:
    ours, theirs = pipeline_of(ORDERS), pipeline_of({"daily": (["sales.orders"], ["mart.copy"])})
    put(catalog, 1)
    assert states(run_of(catalog, ours)) == ["committed"]
    put(catalog, 2)
    version = catalog.version()
    for refresh in (False, True):
        [result] = run_of(catalog, theirs, full_refresh=refresh)
        assert (result.state, result.version) == ("parked", None)
        for part in (
            "job daily (sales.orders → mart.log)",
            "job daily (sales.orders → mart.copy)",
            "adopt mart",
        ):
            assert part in result.error
    assert catalog.version() == version, "nothing is written"
    assert [(each.state, "mart.copy" in each.error) for each in theirs.status(catalog)] == [("parked", True)]
    assert [each.state for each in ours.status(catalog)] == ["running"]
    assert states(run_of(catalog, ours)) == ["committed"]
    assert (ids(catalog, "mart.log"), ids(catalog, "mart.copy")) == ([1, 2], [])


def test_one_whose_jobs_of_the_same_names_are_others_is_another_pipeline(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    other = pipeline_of(
        {"daily": (["sales.orders"], ["mart.copy"]), "weekly": (["sales.lines"], ["mart.lines"])}
    )
    results = run_of(catalog, other)
    assert states(results) == ["parked"] * 2
    assert "another pipeline is recorded as mart: job daily" in results[1].error
    assert [each.state for each in other.status(catalog)] == ["parked"] * 2
    assert states(run_of(catalog, other, adopt=True, from_now=True)) == ["nothing", "committed"]
    assert set(catalog.load_pipeline("mart").jobs) == {"daily", "weekly"}


def test_a_job_that_is_replaced_by_one_of_other_tables_is_none_that_was_renamed(
    catalog: alpheus.Catalog,
) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    for number, jobs in enumerate(
        [{"sums": (["sales.orders"], ["mart.copy"])}, {"lines": (["sales.lines"], ["mart.log"])}]
    ):
        assert states(run_of(catalog, pipeline_of(jobs))) == ["committed"], number
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["nothing"], "it is where it was"
    assert (ids(catalog, "mart.log"), ids(catalog, "mart.copy")) == ([1], [1])


def test_pipelines_share_tables(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    metrics = (["sales.orders"], ["mart.log"])
    for name, job in (("signups", "new"), ("losses", "churn")):
        assert states(run_of(catalog, pipeline_of({job: metrics}, name))) == ["committed"]
    put(catalog, 2)
    for name, job in (("signups", "new"), ("losses", "churn")):
        assert states(run_of(catalog, pipeline_of({job: metrics}, name))) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 1, 2, 2]


def test_jobs_come_and_go(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    lines = {"lines": (["sales.orders"], ["mart.lines"])}
    run_of(catalog, pipeline_of(ORDERS))
    assert states(run_of(catalog, pipeline_of(ORDERS | lines))) == ["nothing", "committed"]
    put(catalog, 2)
    assert states(run_of(catalog, pipeline_of(lines))) == ["committed"]
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["committed"]
    assert ids(catalog, "mart.log") == ids(catalog, "mart.lines") == [1, 2]


def test_renamed_tables_are_the_same(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    catalog.rename_table("mart.log", "mart.journal")
    catalog.rename_table("sales.orders", "sales.bought")
    put(catalog, 2, name="sales.bought")
    later = pipeline_of({"daily": (["sales.bought"], ["mart.journal"])})
    assert later.status(catalog)[0].state == "running"
    assert states(run_of(catalog, later)) == ["committed"]
    catalog.rename_table("sales.bought", "sales.sold")
    put(catalog, 3, name="sales.sold")
    assert states(run_of(catalog, later)) == ["committed"], "an input is followed by itself"
    put(catalog, 4, name="sales.sold")
    assert states(run_of(catalog, later)) == ["committed"]
    assert ids(catalog, "mart.journal") == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["full_refresh", "from_now"])
def test_an_output_that_is_added_waits_for_a_word(catalog: alpheus.Catalog, way: str) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 2)
    more = pipeline_of({"daily": (["sales.orders"], ["mart.log", "mart.copy"])})
    for consents in ({}, {"adopt": True}):
        [result] = run_of(catalog, more, **consents)
        assert (result.state, result.version) == ("parked", None)
        assert "output mart.copy is new to job mart.daily" in result.error
        assert "--from-now" in result.error
    assert states(run_of(catalog, more, **{way: True})) == ["committed"]
    put(catalog, 3)
    assert states(run_of(catalog, more)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2, 3]
    assert ids(catalog, "mart.copy") == ([1, 2, 3] if way == "full_refresh" else [2, 3])
    [result] = run_of(catalog, pipeline_of(ORDERS))
    assert (result.state, "another declaration of job mart.daily" in result.error) == ("parked", True)


def test_an_input_that_is_left_out_is_another_declaration(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    put(catalog, 10, name="sales.lines")
    both = pipeline_of({"daily": (["sales.orders", "sales.lines"], ["mart.log"])})
    run_of(catalog, both)
    put(catalog, 2)
    put(catalog, 11, name="sales.lines")
    one = pipeline_of(ORDERS)
    [result] = run_of(catalog, one)
    assert (result.state, "sales.lines" in result.error) == ("parked", True)
    assert states(run_of(catalog, both)) == ["committed"]
    assert states(run_of(catalog, one, adopt=True)) == ["nothing"]
    put(catalog, 3)
    assert states(run_of(catalog, one)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2, 3, 10, 11]
    # The adopted declaration has no input sales.lines, so that it begins as a new input here.
    assert states(run_of(catalog, both)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2, 3, 10, 10, 11, 11]


def test_an_adopted_one_goes_on_at_the_position(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 2)
    theirs = pipeline_of({"daily": (["sales.orders"], ["mart.copy"])})
    [result] = run_of(catalog, theirs, adopt=True)
    assert "output mart.copy is new" in result.error
    assert states(run_of(catalog, theirs, adopt=True, from_now=True)) == ["committed"]
    assert ids(catalog, "mart.copy") == [2]
    [result] = run_of(catalog, pipeline_of(ORDERS))
    assert (result.state, "mart.copy" in result.error) == ("parked", True)
    assert theirs.adopt(catalog) is None


def test_what_takes_the_place_may_fill_its_outputs(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 2)
    theirs = pipeline_of({"daily": (["sales.orders"], ["mart.copy"])})
    assert states(run_of(catalog, theirs, from_now=True)) == ["parked"], "that is another word"
    lake: Any = PlainLake(catalog)
    assert states(theirs.run(lake, full_refresh=True, adopt=True)) == ["committed"]
    assert (ids(catalog, "mart.copy"), ids(catalog, "mart.log")) == ([1, 2], [1])


def test_serve_takes_the_words_at_its_beginning(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 2)
    theirs = pipeline_of({"daily": (["sales.orders"], ["mart.copy"])})
    stop, told = threading.Event(), []

    def hear(result: RunResult) -> None:
        told.append(result.state)
        stop.set()

    lake: Any = PlainLake(catalog)
    theirs.serve(lake, on_result=hear, stop=stop)
    stop.clear()
    theirs.serve(lake, on_result=hear, stop=stop, adopt=True, from_now=True)
    assert told == ["parked", "committed"]
    assert (ids(catalog, "mart.copy"), ids(catalog, "mart.log")) == ([2], [1])


def test_adopted_by_name_the_next_one_is_recorded(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    before = catalog.load_pipeline("mart")
    commit = declarations.open_all(catalog, "mart")
    assert commit is not None
    assert declarations.open_all(catalog, "mart") is None
    with pytest.raises(NotFound, match="never ran"):
        declarations.open_all(catalog, "mart", ["hourly"])
    put(catalog, 2)
    theirs = pipeline_of({"daily": (["sales.orders"], ["mart.copy"])})
    assert states(run_of(catalog, theirs)) == ["parked"], "what its output lacks is still said"
    assert states(run_of(catalog, theirs, from_now=True)) == ["committed"]
    after = catalog.load_pipeline("mart")
    assert after.id == before.id
    declaration = after.jobs["daily"].declaration
    assert declaration is not None
    assert ([each.table for each in declaration.outputs], declaration.open) == (["mart.copy"], False)


def test_a_renamed_job_or_pipeline_does_not_begin_anew(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    id_ = catalog.load_pipeline("mart").id
    put(catalog, 2)
    copied = {"sums": ORDERS["daily"]}
    for name, jobs, hint in [
        ("mart", copied, "alpheus pipeline rename mart mart --job daily=sums"),
        ("house", ORDERS, "alpheus pipeline rename mart house;"),
    ]:
        [result] = run_of(catalog, pipeline_of(jobs, name))
        assert (result.state, result.version) == ("parked", None)
        assert hint in result.error
    commit = positions.rename(catalog, "mart", "house", {"daily": "sums"})
    assert catalog.load_pipeline("house").id == id_
    assert [each.name for each in catalog.list_pipelines()] == ["house"]
    with pytest.raises(NotFound):
        catalog.load_pipeline("mart")
    entry = next(iter(catalog.log()))
    assert (entry.version, [action.type for action in entry.transaction.actions]) == (
        commit.version,
        ["PIPELINE_RENAME", "PIPELINE_ADVANCE"],
    )
    assert states(run_of(catalog, pipeline_of(copied, "house"))) == ["committed"]
    [result] = run_of(catalog, pipeline_of(ORDERS))
    assert (result.state, "alpheus pipeline rename house mart --job sums=daily" in result.error) == (
        "parked",
        True,
    )
    assert ids(catalog, "mart.log") == [1, 2]
    # The rows that it wrote under the old names are its own.
    assert states(run_of(catalog, pipeline_of(copied, "house"), full_refresh=True)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2]


def test_a_rewind_goes_back_behind_a_rename(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    good = catalog.version()
    put(catalog, 2)
    run_of(catalog, pipeline_of(ORDERS))
    positions.rename(catalog, "mart", "house", {"daily": "sums"})
    put(catalog, 3)
    renamed = pipeline_of({"sums": ORDERS["daily"]}, "house")
    run_of(catalog, renamed)
    assert renamed.rewind(catalog, good) is not None
    assert ids(catalog, "mart.log") == [1]
    assert states(run_of(catalog, renamed)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2, 3]


def test_what_cannot_be_renamed(catalog: alpheus.Catalog) -> None:
    both = ORDERS | {"lines": (["sales.lines"], ["mart.lines"])}
    run_of(catalog, pipeline_of(both))
    run_of(catalog, pipeline_of({"other": (["sales.orders"], ["mart.total"])}, "house"))
    version = catalog.version()
    for error, arguments in [
        (NotFound, ("nothing", "new")),
        (NotFound, ("mart", "new", {"hourly": "x"})),
        (AlreadyExists, ("mart", "house")),
        (InvalidInput, ("mart", "mart")),
        (InvalidInput, ("mart", "new", {"daily": "lines"})),
        (InvalidInput, ("mart", "a/b")),
    ]:
        with pytest.raises(error):
            positions.rename(catalog, *arguments)  # type: ignore[arg-type]
    assert catalog.version() == version


def test_a_run_that_is_under_way_while_it_is_renamed_is_dropped(catalog: alpheus.Catalog) -> None:
    def meanwhile(run: PlainRun) -> None:
        if run.attempt and not renamed:
            renamed.append(positions.rename(catalog, "mart", "house"))

    renamed: list[object] = [None]
    ours = pipeline_of(ORDERS, work=meanwhile)
    put(catalog, 1)
    run_of(catalog, ours)
    put(catalog, 2)
    renamed.clear()
    [result] = run_of(catalog, ours)
    assert (result.state, "alpheus pipeline rename house mart" in result.error) == ("parked", True)
    assert ids(catalog, "mart.log") == [1]
    assert states(run_of(catalog, pipeline_of(ORDERS, "house"))) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2]


RIVALS: list[tuple[Jobs, str]] = [
    ({"daily": (["sales.orders"], ["mart.copy"])}, "parked"),
    ({"hourly": (["sales.orders"], ["mart.log"])}, "parked"),
    ({"hourly": (["sales.orders"], ["mart.copy"])}, "committed"),
]


@pytest.mark.parametrize(("rival", "state"), RIVALS)
def test_of_two_that_start_at_the_same_moment_one_wins(
    catalog: alpheus.Catalog, rival: Jobs, state: str
) -> None:
    """One of two pipelines that start at the same moment wins. Both win if they have nothing to do with each other."""
    put(catalog, 1)
    won: list[list[RunResult]] = []

    def meanwhile(run: PlainRun) -> None:
        if not won:
            won.append(run_of(catalog, pipeline_of(rival)))

    ours = pipeline_of(ORDERS, work=meanwhile)
    [result] = run_of(catalog, ours)
    assert [states(results) for results in won] == [["committed"]]
    assert (result.state, result.version is None) == (state, state == "parked")
    assert set(catalog.load_pipeline("mart").jobs) == set(rival) | (
        {"daily"} if state == "committed" else set()
    )
    assert sum(ids(catalog, "mart.log") + ids(catalog, "mart.copy")) == (1 if state == "parked" else 2)


def declared_otherwise(table: str, key: str, output: str = "mart.log") -> Pipeline:
    """Declare job daily with one input under the given key."""
    made = Pipeline("mart", retries=0, backoff=0, lease=0)
    made.job(name="daily", inputs={key: changes(table)}, outputs=[output])(
        lambda run: run.put(output, run.rows(key))
    )
    return made


@pytest.mark.parametrize("at_once", [True, False])
def test_a_full_run_of_an_adopted_one_empties_the_outputs(catalog: alpheus.Catalog, at_once: bool) -> None:
    put(catalog, 1, 2)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 7, 8, name="sales.lines")
    other = pipeline_of({"daily": (["sales.lines"], ["mart.log"])})
    if not at_once:
        other.adopt(catalog)
    assert states(run_of(catalog, other, adopt=at_once, full_refresh=True)) == ["committed"]
    assert ids(catalog, "mart.log") == [7, 8]


def test_a_full_run_of_an_adopted_one_leaves_rows_of_others(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    put(catalog, 99, name="mart.log")
    other = pipeline_of({"daily": (["sales.lines"], ["mart.log"])})
    with pytest.raises(Conflict, match="holds rows that the job did not write"):
        run_of(catalog, other, adopt=True, full_refresh=True)
    assert ids(catalog, "mart.log") == [1, 99]


def test_a_rewind_brings_the_declaration_back(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    [first] = run_of(catalog, pipeline_of(ORDERS))
    more = pipeline_of({"daily": (["sales.orders"], ["mart.log", "mart.copy"])})
    run_of(catalog, more, full_refresh=True)
    more.rewind(catalog, first.version)
    assert (ids(catalog, "mart.log"), ids(catalog, "mart.copy")) == ([1], [])
    put(catalog, 2)
    [result] = run_of(catalog, more)
    assert (result.state, "output mart.copy is new" in result.error) == ("parked", True)
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["committed"]
    assert states(run_of(catalog, more, full_refresh=True)) == ["committed"]
    assert ids(catalog, "mart.log") == ids(catalog, "mart.copy") == [1, 2]


@pytest.mark.parametrize("moves", [True, False])
def test_a_rewind_goes_back_behind_an_adoption(catalog: alpheus.Catalog, moves: bool) -> None:
    put(catalog, 1)
    [first] = run_of(catalog, pipeline_of(ORDERS))
    other = pipeline_of({"daily": (["sales.lines" if moves else "sales.orders"], ["mart.copy"])})
    assert other.adopt(catalog, from_now=True) is not None
    put(catalog, 2)
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["parked"]
    assert positions.rewind(catalog, "mart", first.version or 0) is not None
    assert positions.rewind(catalog, "mart", first.version or 0) is None
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 2]


def test_an_adopted_one_that_never_ran_is_put_back_to_before_the_first_run(catalog: alpheus.Catalog) -> None:
    begin = catalog.version()
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    other = pipeline_of({"daily": (["sales.lines"], ["mart.log"])})
    other.adopt(catalog)
    positions.rewind(catalog, "mart", begin)
    assert catalog.load_pipeline("mart").jobs["daily"].pinned_version == 0
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["committed"]
    assert ids(catalog, "mart.log") == [1]


def test_several_jobs_that_begin_anew_are_adopted_at_once(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    two = {"a": (["sales.orders"], ["mart.log"]), "b": (["sales.orders"], ["mart.copy"])}
    run_of(catalog, pipeline_of(two, "old"))
    new = pipeline_of(two, "new")
    assert states(run_of(catalog, new)) == ["parked"] * 2
    assert states(run_of(catalog, new, adopt=True)) == ["committed"] * 2
    assert ids(catalog, "mart.log") == ids(catalog, "mart.copy") == [1, 1]


WRONG: list[tuple[list[str], list[str]]] = [
    (["sales.orders"], ["mart.copy"]),
    (["sales.lines"], ["mart.log"]),
    (["sales.orders"], ["mart.nowhere"]),
    (["sales.orders"], []),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_first_run_that_failed_holds_nobody_to_its_tables(
    catalog: alpheus.Catalog, wrong: tuple[list[str], list[str]]
) -> None:
    def fail(run: PlainRun) -> None:
        raise ValueError("wrong")

    put(catalog, 1)
    for name in ("mart", "other"):
        assert states(run_of(catalog, pipeline_of({"daily": wrong}, name, work=fail))) == ["parked"]
    mended = pipeline_of(ORDERS)
    mended.resume(catalog, "daily")
    assert [each.state for each in mended.status(catalog)] == ["new"]
    assert states(run_of(catalog, mended)) == ["committed"]
    assert ids(catalog, "mart.log") == [1]
    [result] = run_of(catalog, pipeline_of({"daily": wrong}, "third", work=fail))
    assert "rename" not in result.error, "what only failed was not renamed either"


def test_a_first_run_that_failed_is_looked_at_anew_with_other_tables(catalog: alpheus.Catalog) -> None:
    def fail(run: PlainRun) -> None:
        raise ValueError("wrong")

    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    run_of(catalog, pipeline_of({"daily": (["sales.orders"], ["mart.copy"])}, "house", work=fail))
    positions.resume(catalog, "house", "daily")
    house = pipeline_of(ORDERS, "house")
    [result] = run_of(catalog, house)
    assert "alpheus pipeline rename mart house" in result.error
    assert [each.state for each in house.status(catalog)] == ["parked"]
    assert states(run_of(catalog, house, adopt=True)) == ["committed"]


def test_put_back_to_before_its_first_run_a_job_may_have_other_tables(catalog: alpheus.Catalog) -> None:
    begin = catalog.version()
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    positions.rewind(catalog, "mart", begin)
    assert states(run_of(catalog, pipeline_of({"daily": (["sales.orders"], ["mart.copy"])}))) == ["committed"]
    assert (ids(catalog, "mart.log"), ids(catalog, "mart.copy")) == ([], [1])


@pytest.mark.parametrize(
    "renamed",
    [
        {"a": "b", "b": "c", "c": "d"},
        {"a": "b", "b": "a"},
        {"a": "b", "b": "c", "c": "a"},
        {"c": "b", "b": "x", "a": "c"},
    ],
)
@pytest.mark.parametrize("new", ["mart", "house"])
def test_jobs_take_each_others_names(catalog: alpheus.Catalog, renamed: dict[str, str], new: str) -> None:
    tables = {"a": "mart.log", "b": "mart.copy", "c": "mart.lines"}
    put(catalog, 1)
    run_of(catalog, pipeline_of({job: (["sales.orders"], [output]) for job, output in tables.items()}))
    first = catalog.version()
    put(catalog, 2)
    positions.rename(catalog, "mart", new, renamed)
    after = pipeline_of(
        {renamed.get(job, job): (["sales.orders"], [output]) for job, output in tables.items()}, new
    )
    assert set(catalog.load_pipeline(new).jobs) == set(after.jobs)
    assert states(run_of(catalog, after)) == ["committed"] * 3
    assert [ids(catalog, output) for output in tables.values()] == [[1, 2]] * 3
    after.rewind(catalog, first)
    assert [ids(catalog, output) for output in tables.values()] == [[1]] * 3
    assert states(run_of(catalog, after)) == ["committed"] * 3
    assert [ids(catalog, output) for output in tables.values()] == [[1, 2]] * 3


def test_the_code_of_before_a_rename_of_pipeline_and_job_does_not_begin_anew(
    catalog: alpheus.Catalog,
) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    positions.rename(catalog, "mart", "house", {"daily": "sums"})
    positions.rename(catalog, "house", "home")
    for name in ("mart", "house"):
        [result] = run_of(catalog, pipeline_of(ORDERS, name))
        assert (result.state, f"alpheus pipeline rename home {name} --job sums=daily" in result.error) == (
            "parked",
            True,
        )
    assert ids(catalog, "mart.log") == [1]


def dotted(catalog: alpheus.Catalog) -> Pipeline:
    """Declare a job for two tables whose joined names are the same text, and one more job."""
    catalog.create_namespace("mart.x")
    pairs = [("mart.x", "y"), ("mart", "x.y")]
    for pair in pairs:
        catalog.create_table(pair, SCHEMA)
    made = Pipeline("mart", retries=0, backoff=0, lease=0)
    made.job(name="dotted", inputs={"orders": changes("sales.orders")}, outputs=pairs)(lambda run: None)
    made.job(name="good", inputs={"orders": changes("sales.orders")}, outputs=["mart.log"])(
        lambda run: run.put("mart.log", run.rows("orders"))
    )
    return made


def test_tables_whose_names_join_alike_are_told_apart(catalog: alpheus.Catalog) -> None:
    made = dotted(catalog)
    put(catalog, 1)
    assert states(run_of(catalog, made)) == ["committed"] * 2
    declaration = catalog.load_pipeline("mart").jobs["dotted"].declaration
    assert declaration is not None
    assert {each.table: each.table_id for each in declaration.outputs} == {
        "mart.x.y": catalog.load_table(("mart.x", "y")).id,
        'mart."x.y"': catalog.load_table(("mart", "x.y")).id,
    }


def test_a_job_whose_tables_cannot_be_recorded_parks_alone(
    catalog: alpheus.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dotted(catalog)
    monkeypatch.setattr(declarations, "_table_text", ".".join)
    put(catalog, 1)
    results = run_of(catalog, made)
    assert states(results) == ["parked", "committed"]
    assert "not in order, or one is repeated" in results[0].error
    assert catalog.load_pipeline("mart").jobs["dotted"].declaration is None
    assert ids(catalog, "mart.log") == [1]


@pytest.mark.parametrize("key", ["orders", "lines"])
def test_adopted_by_name_an_input_may_be_replaced(catalog: alpheus.Catalog, key: str) -> None:
    put(catalog, 1)
    run_of(catalog, declared_otherwise("sales.orders", "orders"))
    put(catalog, 7, name="sales.lines")
    other = declared_otherwise("sales.lines", key)
    assert states(run_of(catalog, other)) == ["parked"]
    declarations.open_all(catalog, "mart")
    assert states(run_of(catalog, other)) == ["committed"]
    put(catalog, 8, name="sales.lines")
    put(catalog, 2)
    assert states(run_of(catalog, other)) == ["committed"]
    assert ids(catalog, "mart.log") == [1, 7, 8]
    assert states(run_of(catalog, declared_otherwise("sales.orders", "orders"))) == ["parked"]


@pytest.mark.parametrize(
    ("pipeline", "job", "tables", "state"),
    [
        ("mart", "sums", (["sales.orders"], ["mart.log"]), "parked"),
        ("house", "daily", (["sales.orders"], ["mart.log"]), "parked"),
        ("house", "sums", (["sales.orders"], ["mart.log"]), "committed"),
        ("mart", "sums", (["sales.orders"], ["mart.copy"]), "committed"),
        ("mart", "sums", (["sales.lines"], ["mart.log"]), "committed"),
    ],
)
def test_what_an_earlier_release_ran_is_known_by_what_it_read_and_wrote(
    catalog: alpheus.Catalog, pipeline: str, job: str, tables: tuple[list[str], list[str]], state: str
) -> None:
    put(catalog, 1)
    with catalog.transaction() as tx:
        position = InputPosition(
            table_id=tx.load_table("sales.orders").id, version=tx.version, table="sales.orders"
        )
        tx.advance_pipeline("mart", "daily", "", tx.version, {"orders": position})
        tx.append("mart.log", arrow([(1, 1)]))
    put(catalog, 2)
    [result] = run_of(catalog, pipeline_of({job: tables}, pipeline))
    assert result.state == state
    assert (f"alpheus pipeline rename mart {pipeline}" in result.error) == (state == "parked")


def test_a_position_that_nobody_declared_is_recorded_by_the_next_run(catalog: alpheus.Catalog) -> None:
    """The next run records a position without a declaration, as earlier releases left it."""
    put(catalog, 1)
    with catalog.transaction() as tx:
        position = InputPosition(
            table_id=tx.load_table("sales.orders").id, version=tx.version, table="sales.orders"
        )
        tx.advance_pipeline("mart", "daily", "", tx.version, {"orders": position})
        tx.append("mart.log", arrow([(1, 1)]))
    put(catalog, 2)
    assert states(run_of(catalog, pipeline_of(ORDERS))) == ["committed"]
    declaration = catalog.load_pipeline("mart").jobs["daily"].declaration
    assert declaration is not None
    assert [(each.table, each.table_id) for each in declaration.outputs] == [
        ("mart.log", catalog.load_table("mart.log").id)
    ]
    [result] = run_of(catalog, pipeline_of({"daily": (["sales.orders"], ["mart.copy"])}))
    assert result.state == "parked"
    assert ids(catalog, "mart.log") == [1, 2]


@pytest.mark.parametrize("digits", [32, 64])
def test_the_first_run_over_a_catalog_of_an_earlier_release_records_who_declared(
    tmp_path: Path, digits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Path(__file__).parents[2] / "compat" / f"own-r1-{digits}" / "catalog.tar.gz"
    with tarfile.open(frozen) as archive:
        archive.extractall(tmp_path, filter="data")
    with alpheus.connect(str(tmp_path / "catalog")) as catalog:
        before = catalog.load_pipeline("daily")
        assert [job.declaration for job in before.jobs.values()] == [None]
        [position] = before.jobs["sum"].inputs.values()
        source = position.table
        catalog.undrop(source)  # the table is dropped at the end of its history
        assert catalog.load_table(source).id == position.table_id
        for output in ("sales.sums", "sales.others"):
            catalog.create_table(output, SCHEMA)
        catalog.append(source, catalog.read(source).slice(0, 1))
        seen: list[bool] = []

        def made(output: str) -> Pipeline:
            pipeline = Pipeline("daily", retries=0, lease=0)
            declare = pipeline.job(name="sum", inputs={"orders": changes(source)}, outputs=[output])
            declare(lambda run: seen.append(run._work.first))
            return pipeline

        assert states(run_of(catalog, made("sales.sums"))) == ["committed"]
        after = catalog.load_pipeline("daily")
        assert (after.id, seen) == (before.id, [False])
        declaration = after.jobs["sum"].declaration
        assert declaration is not None
        assert [each.table_id for each in declaration.inputs] == [position.table_id]
        assert states(run_of(catalog, made("sales.others"))) == ["parked"]


def test_what_an_old_client_writes_leaves_the_declaration(catalog: alpheus.Catalog) -> None:
    begin = catalog.version()
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    job = catalog.load_pipeline("mart").jobs["daily"]
    with catalog.transaction() as tx:
        tx.advance_pipeline("mart", "daily", job.last_transaction_id, tx.version, job.inputs)
    assert catalog.load_pipeline("mart").jobs["daily"].declaration == job.declaration
    positions.rewind(catalog, "mart", begin)
    assert catalog.load_pipeline("mart").jobs["daily"].declaration == job.declaration


def test_an_output_that_is_not_there_yet_is_known_by_its_name(catalog: alpheus.Catalog) -> None:
    later = pipeline_of({"daily": (["sales.orders"], ["mart.later"])})
    put(catalog, 1)
    [result] = run_of(catalog, later)
    assert (result.state, "no output table mart.later" in result.error) == ("parked", True)
    declaration = catalog.load_pipeline("mart").jobs["daily"].declaration
    assert declaration is not None
    assert [(each.table, each.table_id) for each in declaration.outputs] == [("mart.later", "")]
    [result] = run_of(catalog, pipeline_of(ORDERS))
    assert "mart.later" in result.error
    catalog.create_table("mart.later", SCHEMA)
    positions.resume(catalog, "mart", "daily")
    assert states(run_of(catalog, later)) == ["committed"]
    assert ids(catalog, "mart.later") == [1]


def test_system_tables_tell_declarations(catalog: alpheus.Catalog) -> None:
    put(catalog, 1)
    run_of(catalog, pipeline_of(ORDERS))
    [row] = catalog.system("pipelines").to_pylist()
    assert [each["table"] for each in row["declared_inputs"]] == ["sales.orders"]
    assert row["declared_outputs"] == [{"table": "mart.log", "table_id": catalog.load_table("mart.log").id}]


def test_an_entry_of_another_id_is_not_moved(catalog: alpheus.Catalog) -> None:
    with catalog.transaction() as tx:
        tx.advance_pipeline("mart", "daily", "", 1, expected_pipeline_id="")
    for expected in ("", catalog.load_table("mart.log").id):
        with pytest.raises(Conflict) as caught, catalog.transaction() as tx:
            tx.advance_pipeline("mart", "hourly", "", 1, expected_pipeline_id=expected)
        assert caught.value.kind == "position_moved"
    with catalog.transaction() as tx:
        tx.advance_pipeline("mart", "hourly", "", 1, expected_pipeline_id=catalog.load_pipeline("mart").id)


# --- many of one name ------------------------------------------------------------------------------

INPUTS = ("sales.orders", "sales.lines")
OUTPUTS = ("mart.log", "mart.copy", "mart.lines")


class Expected:
    """Holds what the rules say, by names alone: the owner of each job, its position, and the rows of the outputs."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {name: [] for name in INPUTS}
        self.owner: dict[str, tuple[set[str], set[str]]] = {}
        self.position: dict[str, dict[str, int]] = {}
        self.held: dict[str, Counter[int]] = {name: Counter() for name in OUTPUTS}

    def state_of(self, jobs: Jobs, job: str) -> str:
        inputs, outputs = (set(names) for names in jobs[job])
        if job in self.owner:
            were, wrote = self.owner[job]
            if wrote - outputs or outputs - wrote or were - inputs:
                return "parked"
            return "run"
        both = self.owner.keys() & jobs.keys()
        if both and not any(
            self.owner[name][0] & set(jobs[name][0]) and self.owner[name][1] & set(jobs[name][1])
            for name in both
        ):
            return "parked"
        if any(name not in jobs and owned == (inputs, outputs) for name, owned in self.owner.items()):
            return "parked"
        return "run"

    def run(self, jobs: Jobs, job: str) -> str:
        """Run a job in the model, and return its state."""
        if self.state_of(jobs, job) == "parked":
            return "parked"
        inputs, outputs = jobs[job]
        position = self.position.get(job, {})
        new = [row for name in inputs for row in self.rows[name][position.get(name, 0) :]]
        if job in self.owner and not new and set(inputs) == set(position):
            return "nothing"
        self.owner[job] = set(inputs), set(outputs)
        self.position[job] = {name: len(self.rows[name]) for name in inputs}
        for output in outputs:
            self.held[output].update(new)
        return "committed"


def some_jobs(rng: random.Random) -> Jobs:
    jobs: dict[str, tuple[list[str], list[str]]] = {}
    for name in rng.sample(["daily", "hourly", "weekly"], rng.choice([1, 1, 2])):
        jobs[name] = (
            rng.sample(INPUTS, rng.choice([1, 1, 2])),
            rng.sample(OUTPUTS, rng.choice([1, 1, 2])),
        )
    return jobs


@pytest.mark.slow
def test_many_pipelines_of_one_name(
    monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    """Pipelines of one name may run in any order: each row comes into each output once for each recorded job.

    Runs are refused exactly when the rules say so, also when two runs begin at the same moment.
    """
    for seed in range(lane_count(3, 150)):
        rng = random.Random(seed)
        expected = Expected()
        with fresh_catalog() as catalog:
            rivals = [some_jobs(rng) for _ in range(4)]
            for number in range(14):
                if rng.random() < 0.4:
                    name = rng.choice(INPUTS)
                    put(catalog, number, name=name)
                    expected.rows[name].append(number)
                jobs = rng.choice(rivals)
                job = rng.choice(sorted(jobs))
                other = rng.choice(rivals) if rng.random() < 0.3 else None
                rival_job = rng.choice(sorted(other)) if other is not None else ""
                ran: list[str] = []

                def meanwhile(
                    run: PlainRun, other: Any = other, rival: str = rival_job, ran: Any = ran
                ) -> None:
                    if other is not None and not ran:
                        ran.append("")
                        [result] = runner_of(PlainLake(catalog), pipeline_of(other), jobs=[rival]).run()
                        ran.append(result.state)

                [result] = runner_of(PlainLake(catalog), pipeline_of(jobs, work=meanwhile), jobs=[job]).run()
                if ran and other is not None:
                    assert ran[1] == expected.run(other, rival_job), (seed, number)
                assert result.state == expected.run(jobs, job), (seed, number, result.error)
                assert {name: Counter(ids(catalog, name)) for name in OUTPUTS} == expected.held, (
                    seed,
                    number,
                )
                entry = catalog.load_pipeline("mart")
                assert {
                    name: (
                        {each.table for each in found.declaration.inputs},
                        {each.table for each in found.declaration.outputs},
                    )
                    for name, found in entry.jobs.items()
                    if found.declaration is not None
                } == expected.owner
