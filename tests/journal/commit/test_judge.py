"""Judging a group and executing its members: common look-ups, waiting members, turns of the event loop, named
conflicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit.executor import OPERATIONS_AT_ONCE_MAX
from alpheus_journal.errors import AlpheusError, Conflict, InvalidInput
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import (
    AddColumn,
    ChangeRows,
    DropNamespace,
    Operation,
    Transaction,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, raises
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.models.tables import equals, make_lakeside
from alpheus_journal.testing.simulation.loop import SimulatedLoop

_T = TypeVar("_T")


def told(answers: list[Committed | AlpheusError | None]) -> list[object]:
    """Return for each answer its version, the kind of its error, or None."""
    return [a.version if isinstance(a, Committed) else a.kind if a is not None else None for a in answers]


async def turns_while(call: Awaitable[_T]) -> tuple[_T, int]:
    """Return the result of the call, and how many turns the event loop had meanwhile."""
    turns = 0

    async def live() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    living = asyncio.create_task(live())
    try:
        return await call, turns
    finally:
        living.cancel()


# --- members that wait -----------------------------------------------------------------------------


async def test_nobody_after_a_member_that_does_not_fit_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members after it are not even refused: the order of the group stays the same."""
    lake = Lake()
    journal = await lake.create()
    monkeypatch.setattr(fmt, "DEFINITIONS_SIZE_BYTES_MAX", 2_000)
    group = [
        lake.transaction(journal, lake.namespace("a", p="x" * 1_200)),
        lake.transaction(journal, lake.namespace("b", p="x" * 1_200)),
        lake.transaction(journal, DropNamespace(name="nowhere")),
        lake.transaction(journal, lake.namespace("c")),
    ]
    assert told(await journal.commit_group(group)) == [1, None, None, None]
    assert told(await journal.commit_group(group[1:])) == [2, "no_namespace", 2]


async def test_the_first_member_goes_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other members wait for their own version."""
    lake = Lake()
    journal = await lake.create()
    id = lake.identities.uuid7()
    operations = tuple(lake.namespace(f"n{number:03}") for number in range(100))
    monkeypatch.setattr("alpheus_journal.commit.staged.ROOT_RESERVE_BYTES", 10**9)
    group = [Transaction(id=id, begin_version=0, operations=operations)]
    group.append(lake.transaction(journal, lake.namespace("small")))
    assert told(await journal.commit_group(group)) == [1, None]
    assert told(await journal.commit_group(group[1:])) == [2]


# --- look-ups --------------------------------------------------------------------------------------


def test_small_transactions_of_a_group_are_looked_up_together() -> None:
    """Small members share one round of requests for nodes and one for definitions. A large member makes rounds of its
    own."""
    rounds: dict[int, float] = {}

    async def main(loop: SimulatedLoop, operations_count: int) -> None:
        lake = Lake(LatencyStorage(MemoryStorage(), 0.01))
        names = [[f"n{member}x{number:02}" for number in range(operations_count)] for member in range(4)]
        writer = await lake.create()
        await lake.commit(writer, *(lake.namespace(name) for some in names for name in some))
        journal = await lake.open()
        group = [
            lake.transaction(journal, *(UpdateNamespace(name=name, set={"k": "v"}) for name in some))
            for some in names
        ]
        began = loop.time()
        assert told(await journal.commit_group(group)) == [2] * 4
        rounds[operations_count] = round((loop.time() - began) / 0.01)

    for count in (1, OPERATIONS_AT_ONCE_MAX, OPERATIONS_AT_ONCE_MAX + 1):
        loop = SimulatedLoop(1)
        loop.run(main(loop, count))
    assert rounds[OPERATIONS_AT_ONCE_MAX] == rounds[1]
    assert rounds[OPERATIONS_AT_ONCE_MAX + 1] == rounds[1] + 4


# --- turns of the event loop -----------------------------------------------------------------------


async def test_a_group_of_retries_gives_way() -> None:
    """Retries are answered from the log without execution, and the event loop gets its turns all the same."""
    lake = Lake()
    journal = await lake.create()
    count = 8 * OPERATIONS_AT_ONCE_MAX
    group = [lake.transaction(journal, lake.namespace(f"n{number:03}")) for number in range(count)]
    assert told(await journal.commit_group(group)) == [1] * count
    answers, turns = await turns_while(journal.commit_group(group))
    assert told(answers) == [1] * count
    assert turns >= 7


async def test_a_few_small_commits_need_no_turn_of_their_own() -> None:
    """A name that is looked up counts as a part of an operation: seven commits are less than a turn's work."""
    lake = Lake()
    await lake.create()
    journal = await lake.open()
    await lake.commit(journal, lake.namespace("a"))
    journal = await lake.open()
    counts = []
    for number in range(7):
        transaction = lake.transaction(journal, UpdateNamespace(name="a", set={"k": str(number)}))
        answers, turns = await turns_while(journal.commit_group([transaction]))
        assert told(answers) == [2 + number]
        counts.append(turns)
    assert len(set(counts[2:])) == 1, counts  # the first commits read


# --- recorded transactions -------------------------------------------------------------------------


@pytest.mark.parametrize("column_id", [0, 2])
async def test_a_column_that_is_added_is_the_same_work_whoever_gave_its_id(column_id: int) -> None:
    """The catalog gives the id of a column. A retry is recognized with the id and without it."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "t"))

    def adding(id: int) -> Operation:
        column = AddColumn(column=Column(id=id, name="x", type="INT8"))
        return UpdateTable(namespace="a", name="t", add_columns=(column,))

    first = lake.transaction(journal, adding(column_id))
    assert (await journal.commit(first)).version == 2
    for id in (0, 2):
        again = Transaction(id=first.id, begin_version=1, operations=(adding(id),))
        answer = await (await lake.open()).commit(again)
        assert (answer.version, answer.duplicate) == (2, True)
    other = Transaction(id=first.id, begin_version=1, operations=(adding(2), lake.namespace("b")))
    await raises(InvalidInput, journal.commit(other), kind="id_reused")


# --- named conflicts -------------------------------------------------------------------------------


async def test_a_conflict_that_executing_finds_names_who_took_the_file() -> None:
    side = await make_lakeside([1, 2], [3, 4])
    late, first, bystander = [await side.author() for _ in range(3)]
    await late.delete(equals(1), on_read=False)
    await first.delete(equals(2), on_read=False)
    await bystander.delete(equals(3), on_read=False)
    done = await side.journal.commit(first.transaction(principal="ann", principal_authenticated=True))
    await side.journal.commit(bystander.transaction(principal="bob", principal_authenticated=True))
    error = await raises(Conflict, side.journal.commit(late.transaction()), kind="rows_changed")
    assert (error.transaction_id, error.version, error.principal) == (first.id, done.version, "ann")
    assert error.theirs.startswith("delete from table ")
    assert error.retryable


async def test_nobody_may_claim_to_have_read_what_came_after_he_began() -> None:
    """Such a claim would avoid conflicts, so the table is looked up at the begin version."""
    side = await make_lakeside([1, 2])
    late, first = await side.author(), await side.author()
    await late.delete(equals(1), on_read=True)
    await first.append([3])
    await side.journal.commit(first.transaction())
    honest = late.transaction()
    (operation,) = honest.operations
    assert isinstance(operation, ChangeRows)
    claim = msgspec.structs.replace(operation, base_sequence=operation.base_sequence + 1)
    for journal in (side.journal, await side.lake.open()):
        error = await raises(
            InvalidInput,
            journal.commit(msgspec.structs.replace(honest, operations=(claim,))),
            kind="bad_argument",
        )
        assert error.version == late.begin
    await side.journal.commit(honest)
