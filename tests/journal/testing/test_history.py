"""The history checkers find planted violations and accept good histories."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from alpheus_journal.testing.simulation.history import (
    Called,
    CatalogState,
    Violation,
    canonical,
    catalog_step,
    check_linearizable,
    check_witness,
)

State = tuple[tuple[str, int], ...]
EMPTY: State = ()


def step(state: State, call: Called) -> State | None:
    """Apply a call to counters by name. A commit (name, expected, new) is a compare and set; a read returns all
    counters."""
    if not call.is_commit:
        return state if call.result == state else None
    name, expected, new = call.argument
    values = dict(state)
    if values.get(name, 0) != expected:
        return None
    values[name] = new
    return tuple(sorted(values.items()))


def history(seed: int, *, clients: int = 6, count: int = 200, overlap: float = 3.0) -> list[Called]:
    """Return a good history: calls take effect one after the other, and each call's interval includes its effect."""
    rng = random.Random(seed)
    state: State = EMPTY
    version = 0
    free = dict.fromkeys([f"c{n}" for n in range(clients)], -1.0)
    calls: list[Called] = []
    for moment in range(count):
        ready = [client for client, until in free.items() if until + 0.01 < moment]
        if not ready:
            continue
        client = rng.choice(ready)
        invoked = max(free[client] + 0.01, moment - rng.random() * overlap)
        returned = moment + rng.random() * overlap
        if rng.random() < 0.5:
            name = rng.choice("abc")
            before = dict(state).get(name, 0)
            argument: Any = (name, before, before + 1)
            version += 1
            is_lost = rng.random() < 0.05
            call = Called(
                client=client, is_commit=True, argument=argument, invoked=invoked, version=version,
                returned=math.inf if is_lost else returned,
            )  # fmt: skip
            after = step(state, call)
            assert after is not None
            state = after
            if is_lost:
                returned = moment + overlap * 2  # the client gives up and continues
        else:
            call = Called(
                client=client, is_commit=False, argument="all", result=state, invoked=invoked, returned=returned,
                version=version,
            )  # fmt: skip
        free[client] = returned
        calls.append(call)
    rng.shuffle(calls)
    return calls


def planted(calls: list[Called], kind: str, rng: random.Random) -> list[Called]:
    """Return the history with one planted violation."""
    commits = [call for call in calls if call.is_commit and call.is_known]
    reads = [call for call in calls if not call.is_commit]
    match kind:
        case "stale read":  # a read of a version that was replaced long before the read began
            for read in sorted(reads, key=lambda call: -call.invoked):
                over = [c for c in commits if c.returned < read.invoked]
                if over and max(c.version or 0 for c in over) > 3:
                    old = next(
                        r
                        for r in sorted(reads, key=lambda call: call.version or 0)
                        if r.result != read.result
                    )
                    return [c for c in calls if c is not read] + [
                        msgspec.structs.replace(read, result=old.result, version=old.version)
                    ]
        case "lost update":  # both commits read the same value before
            known = {c.argument for c in commits}  # a commit without an answer may not have happened
            call = rng.choice(
                [c for c in commits if (c.argument[0], c.argument[1] - 1, c.argument[1]) in known]
            )
            name, expected, new = call.argument
            return [c for c in calls if c is not call] + [
                msgspec.structs.replace(call, argument=(name, expected - 1, new - 1))
            ]
        case "doubled commit":
            call = rng.choice(commits)
            return [*calls, msgspec.structs.replace(call, version=(call.version or 0) + 1)]
        case "reordered":  # two commits of one name change places
            for first in sorted(commits, key=lambda call: call.version or 0):
                later = [
                    c for c in commits if c.argument[0] == first.argument[0] and c.invoked > first.returned
                ]
                if later:
                    second = later[0]
                    rest = [c for c in calls if c is not first and c is not second]
                    return [
                        *rest,
                        msgspec.structs.replace(first, argument=second.argument, version=second.version),
                        msgspec.structs.replace(second, argument=first.argument, version=first.version),
                    ]
        case "torn read":  # half of one version, half of another
            read = rng.choice([r for r in reads if len(r.result) > 1 and r.result[0][0] == "a"])
            torn = (("a", read.result[0][1] + 1000), *read.result[1:])
            return [c for c in calls if c is not read] + [msgspec.structs.replace(read, result=torn)]
    raise AssertionError(f"no place for {kind!r}")


KINDS = ("stale read", "lost update", "doubled commit", "reordered", "torn read")


def test_good_histories_are_accepted(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(60, 2000)):
        calls = history(seed, clients=1 + seed % 8, count=30 + seed % 300)
        check_witness(calls, step, EMPTY)
        check_linearizable(calls, step, EMPTY)


@pytest.mark.parametrize("kind", KINDS)
def test_planted_violations_are_found(kind: str, lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(20, 300)):
        calls = planted(history(seed), kind, random.Random(seed))
        with pytest.raises(Violation):
            check_witness(calls, step, EMPTY)
        with pytest.raises(Violation):
            check_linearizable(calls, step, EMPTY)


def called(client: str, invoked: float, returned: float, version: int, **rest: Any) -> Called:
    return Called(client=client, invoked=invoked, returned=returned, version=version, **rest)


def test_a_version_that_the_answers_order_wrongly_is_found_by_the_witness_only() -> None:
    """Two commits of different names have versions in the wrong real order. Without versions, a good order exists."""
    first = called("a", 0, 1, 2, is_commit=True, argument=("a", 0, 1))
    second = called("b", 2, 3, 1, is_commit=True, argument=("b", 0, 1))
    check_linearizable([first, second], step, EMPTY)
    with pytest.raises(Violation, match="began after the answer"):
        check_witness([first, second], step, EMPTY)


def test_a_commit_without_an_answer_may_or_may_not_have_happened() -> None:
    lost = Called(client="a", is_commit=True, argument=("a", 0, 1), invoked=0)
    for result in (EMPTY, (("a", 1),)):
        read = called("b", 5, 6, 1 if result else 0, is_commit=False, argument="all", result=result)
        check_linearizable([lost, read], step, EMPTY)
        check_witness([msgspec.structs.replace(lost, version=1), read], step, EMPTY)
    seen = called("b", 5, 6, 1, is_commit=False, argument="all", result=(("a", 1),))
    gone = called("b", 7, 8, 1, is_commit=False, argument="all", result=EMPTY)
    with pytest.raises(Violation):
        check_linearizable([lost, seen, gone], step, EMPTY)
    early = msgspec.structs.replace(seen, invoked=-2.0, returned=-1.0)
    with pytest.raises(Violation):
        check_linearizable([lost, early], step, EMPTY)


def test_commits_of_one_version_have_their_places() -> None:
    group = [
        called("a", 0, 9, 1, is_commit=True, argument=("a", 1, 2), place=1),
        called("b", 0, 9, 1, is_commit=True, argument=("a", 0, 1), place=0),
    ]
    assert check_witness(group, step, EMPTY) == (("a", 2),)
    with pytest.raises(Violation):
        check_witness([msgspec.structs.replace(call, place=1 - call.place) for call in group], step, EMPTY)


def test_a_commit_of_a_version_that_was_known_before_it_began() -> None:
    read = called("a", 0, 1, 1, is_commit=False, argument="all", result=(("a", 1),))
    commit = called("b", 2, 3, 1, is_commit=True, argument=("a", 0, 1))
    with pytest.raises(Violation):
        check_witness([read, commit], step, EMPTY)


def test_too_large_a_history_is_not_searched() -> None:
    with pytest.raises(ValueError, match="too many"):
        check_linearizable(history(1, clients=9, count=100), step, EMPTY)
    with pytest.raises(ValueError, match="too many"):
        check_linearizable(history(1, clients=8, count=3000), step, EMPTY)


def test_both_checks_read_a_thousand_calls_in_moments() -> None:
    """The test asserts no time. It prints the numbers; the sizes are those that the checks must handle."""
    calls = history(7, clients=8, count=1000)
    started = time.perf_counter()
    check_linearizable(calls, step, EMPTY)
    print(f"linearizable: {len(calls) / (time.perf_counter() - started):,.0f} calls a second")
    many = history(7, clients=8, count=100_000)
    started = time.perf_counter()
    check_witness(many, step, EMPTY)
    print(f"witness: {len(many) / (time.perf_counter() - started):,.0f} calls a second")


def test_states_of_the_catalog_compare_by_content() -> None:
    one, two = {"b": {"x": "1", "y": "2"}, "a": ()}, {"a": (), "b": {"y": "2", "x": "1"}}
    assert CatalogState(one) == CatalogState(two)
    assert hash(CatalogState(one)) == hash(CatalogState(two))
    assert canonical(one) != canonical({"a": ()})
    read = Called(client="a", is_commit=False, argument="model", result=canonical(two), invoked=0, returned=1)
    assert catalog_step({})(CatalogState(one), read) is not None
    assert catalog_step({})(CatalogState({}), read) is None
