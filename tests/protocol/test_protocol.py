"""The protocol model is explored: the protocols hold, each unsafe change is caught, and each claim can fail.

With ALPHEUS_SLOW=1 the larger scenarios are explored to 3,000,000 states each, more than 10,000,000 together.
ALPHEUS_PROTOCOL_DONE names a file that lists the scenarios already explored, for a run that was interrupted.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protocol_explorer
import pytest
from protocol_explorer import Exploration, Program, Report
from protocol_model import Collector, Transaction, settle
from protocol_scenarios import GROWN, SCENARIOS

SUCCESS = {"committed", "expired", "collected", "read"}
SMALL_STATES_MAX = 1_000_000
"""More than any small scenario has."""
UNSAFE = [(name, change, steps) for name, scenario in SCENARIOS.items() for change, steps in scenario.unsafe]
HARMLESS = [
    (name, change)
    for name, scenario in SCENARIOS.items()
    for change in ("no_first_round", *scenario.harmless)
]
WANTED = {
    "freed_slots",
    "no_fence",
    "fence_before_listing",
    "no_second_round",
    "pins_before_slots",
    "pin_check_by_oldest",
    "pin_after_check",
    "unpin_before_commit",
    "unpin_after_commit",
    "reused_uploads",
    "leases_unread",
    "lease_late",
    "lease_of_begin",
    "lease_untested",
    "head_unread",
    "names_unfenced",
    "revision_1_writer",
    "id_untested",
    "pin_untested",
    "cutoff_of_begin",
    "cutoff_included",
    "tag_of_begin",
    "no_minimum_age",
}
"""The unsafe changes that every release must catch, and those beside them that the protocols speak of."""


def describe(name: str, report: Report, seconds: float) -> str:
    end = "exhausted" if report.exhausted else "bounded"
    return f"{name}: {report.states} states, {end}, {len(report.stores)} stores, {seconds:.1f} s of CPU"


@pytest.mark.parametrize("name", SCENARIOS)
def test_keep_promises(name: str) -> None:
    """Every interleaving keeps the promises, every actor can succeed, and two collections leave nothing behind."""
    began = time.process_time()
    scenario = SCENARIOS[name]
    report = scenario.explore(SMALL_STATES_MAX)
    print(describe(name, report, time.process_time() - began))
    assert report.violation == ""
    assert report.exhausted
    assert [actor for actor, outcomes in report.outcomes.items() if not outcomes & SUCCESS] == []
    assert {scenario.settle(store) for store in report.stores} == {""}


@pytest.mark.parametrize(("name", "change", "steps"), UNSAFE)
def test_catch_unsafe_change(name: str, change: str, steps: int) -> None:
    report = SCENARIOS[name].explore(SMALL_STATES_MAX, change, traced=True)
    print(f"{report.states} states, {len(report.trace)} steps", *report.trace, sep="\n")
    meant = {
        "freed_slots": "committed again",
        "expiry_from_oldest": "expired before an older one",
        "lease_check_by_oldest": "a reader holds a lease",
        ("commits", "tombstones_passed"): "committed twice",
        ("leases", "leases_unread"): "a reader holds a lease",
        ("reader of a tag", "tag_not_checked"): "a reader holds a lease",
    }
    assert meant.get((name, change), meant.get(change, "which was deleted")) in report.violation
    assert len(report.trace) == steps


@pytest.mark.parametrize(("name", "change"), HARMLESS)
def test_pass_harmless_change(name: str, change: str) -> None:
    """The model does without these rules. Some exist for clocks that differ, which the model does not have."""
    report = SCENARIOS[name].explore(SMALL_STATES_MAX, change)
    assert report.violation == ""
    assert report.exhausted


def test_try_every_wanted_change() -> None:
    assert WANTED - {change for _, change, _ in UNSAFE} == set()


def test_explore_larger_scenarios(lane_count: Callable[[int, int], int]) -> None:
    """The search goes deep first, so that a bounded one sees late states, too."""
    done = read_done()
    for name, scenario in GROWN.items():
        if name in done:
            continue
        began = time.process_time()
        report = scenario.explore(lane_count(30_000, 3_000_000), deep=True)
        print(describe(name, report, time.process_time() - began), flush=True)
        assert report.violation == "", f"{name}: explore it with traced=True"
        assert {scenario.settle(store) for store in report.stores[:: lane_count(10, 1)]} == {""}
        assert [actor for actor, outcomes in report.outcomes.items() if not outcomes & SUCCESS] == []
        write_done(done | {name: report.states})
        done[name] = report.states
    print(f"{sum(done.values())} states")
    assert sum(done.values()) >= lane_count(100_000, 10_000_000)


def read_done() -> dict[str, int]:
    path = os.environ.get("ALPHEUS_PROTOCOL_DONE", "")
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


def write_done(done: dict[str, int]) -> None:
    if path := os.environ.get("ALPHEUS_PROTOCOL_DONE", ""):
        Path(path).write_text(json.dumps(done))


def test_leave_files_without_full_listing() -> None:
    """Where an expirer did not write its candidates, only a full listing finds the files. So `settle` can fail."""
    scenario = SCENARIOS["candidates"]
    report = scenario.explore(SMALL_STATES_MAX)
    collectors = tuple(
        Collector(Transaction(name, name, fence=True), source="candidates") for name in (50, 51)
    )
    left = {settle(scenario.rules, store, collectors) for store in report.stores}
    assert any("file 0 is left" in text or "file 0," in text for text in left), left


@pytest.mark.parametrize("name", ["revision 1", "long writer"])
def test_reach_the_same_stores_without_merging(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two histories that lead a program to the same place and variables are one state. That hides nothing."""
    merged = SCENARIOS[name].explore(SMALL_STATES_MAX)
    histories = itertools.count()
    monkeypatch.setattr(protocol_explorer, "_locate", lambda program: next(histories))
    apart = SCENARIOS[name].explore(SMALL_STATES_MAX)
    assert apart.exhausted
    assert apart.states > merged.states
    assert set(apart.stores) == set(merged.stores)
    assert apart.outcomes == merged.outcomes


class Counter:
    """A store of one number. Programs read it and write it."""

    def start(self) -> int:
        return 0

    def apply(self, store: int, request: tuple[Any, ...]) -> list[tuple[int, Any]]:
        return [(store, store)] if request[0] == "read" else [(request[1], "done")]

    def drift(self, store: int) -> list[tuple[str, int]]:
        return []

    def check(self, store: int) -> str:
        return "three" if store == 3 else ""


def add(times: int) -> Program:
    while times:
        times -= 1
        number = yield ("read",)
        yield ("write", number + 1)
        del number
    return "added"


def test_find_every_interleaving() -> None:
    """Two programs add one. Either both count, or one update is lost."""
    one = Exploration(Counter(), {"a": (add, (1,)), "b": (add, (1,))}).explore(1000)
    assert one.exhausted
    assert set(one.stores) == {0, 1, 2}  # 1 at the end is the lost update
    brute = {replay(order) for order in ("aabb", "abab", "abba", "bbaa", "baba", "baab")}
    assert brute == {1, 2}


def replay(order: str) -> int:
    store, programs, requests = 0, {"a": add(1), "b": add(1)}, {}
    for name, program in programs.items():
        requests[name] = next(program)
    for name in order:
        store, reply = Counter().apply(store, requests[name])[0]
        try:
            requests[name] = programs[name].send(reply)
        except StopIteration:
            continue
    return store


def test_give_shortest_trace() -> None:
    actors = {"a": (add, (2,)), "b": (add, (3,))}
    report = Exploration(Counter(), actors).explore(1000, traced=True)
    assert report.violation == "three"
    assert len(report.trace) == 6  # b alone
    assert report.trace[-1] == "b: write 3 -> done  ** three"
    deep = Exploration(Counter(), {"a": (add, (2,)), "b": (add, (3,))}).explore(1000, deep=True)
    assert deep.violation == "three"
