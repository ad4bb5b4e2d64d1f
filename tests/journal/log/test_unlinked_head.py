"""A head that was not made on the version below it: a store was restored, and two histories share its slots."""

from __future__ import annotations

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, OutcomeUnknown
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Latest
from alpheus_journal.repair import Asked, carry_out, plan, survey
from alpheus_journal.testing import Lake, raises


async def two_histories(*, hole: bool = True, key: str = "") -> tuple[Lake, Journal, list[str]]:
    """Make a store with versions of two histories.

    A writer at version 15 has version 16 in flight when its store is restored to version 10. Another writer makes 11 to
    15, whose tokens are returned. Version 16 lands before this (`hole`: above empty slots) or after it. `key` is the
    retry key of the new version 13.
    """
    lake = Lake()
    old = await lake.create()
    for number in range(15):
        await lake.commit(old, lake.namespace(f"old{number}"))
    for version in range(11, 16):
        await lake.storage.delete(fmt.version_file(version, 32))
    await lake.storage.put(fmt.LATEST_HINT, b"10")
    if hole:
        await raises(OutcomeUnknown, lake.commit(old, lake.namespace("orphan")), kind="history_replaced")
    other = await lake.open()
    assert (other.head.version, other.doubt) == (10, None)
    tokens = []
    for number in range(5):
        new = lake.transaction(other, lake.namespace(f"new{number}"))
        keyed = msgspec.structs.replace(new, key=key if number == 2 else "")
        tokens.append((await other.commit(keyed)).token)
    if not hole:
        await raises(OutcomeUnknown, lake.commit(old, lake.namespace("orphan")), kind="history_replaced")
    await raises(Corrupt, lake.commit(other, lake.namespace("more")), kind="history_replaced")
    return lake, other, tokens


@pytest.mark.parametrize("hole", [True, False])
async def test_nothing_is_written_on_a_head_that_was_not_made_on_the_one_below(hole: bool) -> None:
    lake, other, tokens = await two_histories(hole=hole)
    for _ in range(2):  # the refusal is permanent
        fresh = await lake.open()
        assert fresh.head.version == 16
        assert fresh.doubt is not None
        assert fresh.doubt.kind == "history_replaced"
        assert other.head.commit_id in fresh.doubt.message
        assert "version 16" in fresh.doubt.message
        assert "orphan" in (await fresh.list(None, Kind.NAMESPACE)).names, "reads go on, and warn"
        error = await raises(Corrupt, lake.commit(fresh, lake.namespace("more")), kind="history_replaced")
        assert "alpheus repair" in error.hint
        await raises(Corrupt, fresh.checkpoint(), kind="history_replaced")
        await raises(Corrupt, fresh.write_index(), kind="history_replaced")
        # A client that saw a version that is not below the head gets an error.
        for token in tokens:
            await raises(Corrupt, fresh.latest(Latest(session_token=token)), kind="history_replaced")
            await raises(Corrupt, fresh.verify_after(token), kind="history_replaced")
        assert (await fresh.latest(Latest(session_token=fresh.head.token))).version == 16
    found = [(f.kind, f.version) async for f in fresh.check() if not isinstance(f, CheckSummary)]
    assert found == [("history_replaced", 16)]


async def test_a_token_of_a_version_that_the_next_was_not_made_on() -> None:
    """This holds below a linked head, too: the next version's link shows it."""
    lake, _, tokens = await two_histories()
    fresh = await lake.open()
    fresh.follower.around = None  # as an earlier release opened the catalog, and continued to write
    assert (await lake.commit(fresh, lake.namespace("more"))).version == 17
    later = await lake.open()
    assert later.doubt is None
    error = await raises(Corrupt, later.latest(Latest(session_token=tokens[-1])), kind="history_replaced")
    assert error.version == 16
    head = later.head.token
    await lake.commit(later, lake.namespace("evenmore"))
    again = await lake.open()
    assert (await again.latest(Latest(session_token=head))).version == 18


@pytest.mark.parametrize("hole", [True, False])
async def test_a_repair_names_what_the_head_does_not_hold_and_goes_on(hole: bool) -> None:
    lake, _, _ = await two_histories(hole=hole)
    waiting = await lake.open()
    found = await survey(lake.storage, clock=lake.clock)
    asking = plan(found, Asked())
    (problem,) = asking.problems
    assert (problem.kind, problem.version, asking.steps) == ("history_replaced", 16, ())
    assert "--accept-head" in problem.mended_by
    log = waiting.follower.log
    ids = [(await log.read(version)).transactions[0].id for version in range(11, 16)]
    made = plan(found, Asked(accept_head=True))
    assert made.is_complete
    for text in (problem.message, made.steps[0].text):
        assert "versions 11 to 15, of 5 transactions" in text
        assert [text.index(one) for one in ids] == sorted(text.index(one) for one in ids)
    done = await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)
    assert done.version == 17
    fresh = await lake.open()
    assert fresh.doubt is None
    (action,) = (await log.read(17)).transactions[0].actions
    assert [one.version for one in action.operation.lost] == [11, 12, 13, 14, 15]  # type: ignore[union-attr]
    assert (await lake.commit(fresh, lake.namespace("more"))).version == 18
    assert (await lake.commit(waiting, lake.namespace("evenmore"))).version == 19, "without being opened anew"
    assert "new4" in (await fresh.list(15, Kind.NAMESPACE)).names
    assert plan(await survey(lake.storage, clock=lake.clock), Asked()).problems == ()


async def test_a_repair_under_a_process_that_knew_the_lost_head() -> None:
    """The old process's version in flight lands above the repair. Every process that opens then sees this, and writes
    nothing."""
    lake = Lake()
    old = await lake.create()
    for number in range(15):
        await lake.commit(old, lake.namespace(f"n{number}"))
    await old.follower.log.write_latest(15)
    await lake.storage.delete(fmt.version_file(15, 32))
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(accept_head=True))
    assert (await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)).version == 15
    await raises(OutcomeUnknown, lake.commit(old, lake.namespace("orphan")), kind="history_replaced")
    fresh = await lake.open()
    await raises(Corrupt, lake.commit(fresh, lake.namespace("more")), kind="history_replaced")
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(accept_head=True))
    assert "version 15, of 1 transactions" in made.problems[0].message
    assert "alpheus repair" in made.problems[0].message


async def test_what_the_head_does_not_hold_is_given_up() -> None:
    """A repair gives these versions up: `check` finds nothing wrong, their ids are not answered as committed, their
    tokens are refused."""
    lake, _, tokens = await two_histories()
    log = (await lake.open()).follower.log
    ids = [(await log.read(version)).transactions[0].id for version in range(10, 16)]
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(accept_head=True))
    await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)
    fresh = await lake.open()
    found = [item async for item in fresh.check()]
    assert isinstance(found[-1], CheckSummary)
    assert (len(found), found[-1].given_up) == (1, ((11, 15),))
    for token in tokens:
        await raises(Corrupt, fresh.latest(Latest(session_token=token)), kind="history_replaced")
    assert [(await fresh.outcome(one)).state for one in ids] == ["committed", *["unknown"] * 5]
    assert [entry.version async for entry in fresh.log()] == [17, 16, *range(10, -1, -1)]


@pytest.mark.parametrize("indexed", [True, False])
async def test_a_key_of_a_version_that_a_repair_gave_up_is_free_again(indexed: bool) -> None:
    """The first answer is lost with its version. If the second request were answered as a duplicate, it would be lost
    too."""
    lake, other, _ = await two_histories(key="load-7")
    waiting = await lake.open()
    made = plan(await survey(lake.storage, clock=lake.clock), Asked(accept_head=True))
    await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)
    assert other.follower.known_event(13) is not None, (
        "it lies in its slot, and in the memory of who wrote it"
    )
    for journal in (await lake.open(), waiting):
        if indexed:
            await journal.follower.refresh()
            await journal.write_index()
    for number, journal in enumerate((await lake.open(), waiting)):
        again = msgspec.structs.replace(
            lake.transaction(journal, lake.namespace(f"again{number}")), key="load-7"
        )
        answer = await journal.commit(again)
        assert answer.duplicate == (number == 1), "the first one is applied, and answers those after it"
        assert answer.version == 18
    assert "again0" in (await waiting.list(None, Kind.NAMESPACE)).names
