"""Repair: its findings, its plan, its steps, and its record in the log."""

from __future__ import annotations

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, OutcomeUnknown
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Latest, Timestamp
from alpheus_journal.model.definitions import VersionRange
from alpheus_journal.model.operations import LostVersion, Repair, Transaction
from alpheus_journal.repair import Asked, Plan, Repaired, Survey, carry_out, plan, survey
from alpheus_journal.testing import Lake, listed, model_of, raises

ACCEPT = Asked(accept_head=True)


async def lake_of(versions: int) -> tuple[Lake, Journal]:
    lake = Lake()
    journal = await lake.create()
    for number in range(versions):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    return lake, journal


async def planned(lake: Lake, asked: Asked = ACCEPT) -> Plan:
    return plan(await survey(lake.storage, clock=lake.clock), asked)


async def done(lake: Lake, made: Plan, principal: str = "") -> Repaired:
    return await carry_out(
        lake.storage, made, principal=principal, clock=lake.clock, identities=lake.identities
    )


async def test_nothing_to_repair() -> None:
    lake, journal = await lake_of(3)
    await journal.checkpoint()
    await journal.write_index()
    await journal.close()
    before = await listed(lake.storage, "")
    found = await survey(lake.storage, clock=lake.clock)
    assert found == Survey(catalog_id=journal.catalog_id, head=3)
    for asked in (Asked(), ACCEPT):
        assert plan(found, asked) == Plan(head_version=3, problems=(), steps=())
        await done(lake, plan(found, asked))
    assert await listed(lake.storage, "") == before


@pytest.mark.parametrize("by", ["hint", "checkpoint", "index"])
async def test_a_deleted_head_is_given_up(by: str) -> None:
    lake, journal = await lake_of(5)
    lost = journal.head
    if by == "checkpoint":
        await journal.checkpoint()
    elif by == "index":
        await journal.write_index()
    await lake.storage.delete(fmt.LATEST_HINT)
    if by == "hint":
        await journal.follower.log.write_latest(5)
    await lake.storage.delete(journal.follower.log.path(5))

    asking = await planned(lake, Asked())
    (problem,) = asking.problems
    assert (problem.kind, problem.version, asking.steps) == ("head_missing", 5, ())
    assert "--accept-head" in problem.mended_by
    error = await raises(Corrupt, done(lake, asking), kind="head_missing")
    assert error.version == 5

    assert (await done(lake, await planned(lake), principal="ann")).version == 5
    fresh = await lake.open()
    (recorded,) = (await fresh.follower.root(5)).transactions
    (action,) = recorded.actions
    known_from = {"hint": fmt.LATEST_HINT}.get(by) or asking.problems[0].path
    commit_id = "" if by == "hint" else lost.commit_id
    expected = LostVersion(version=5, commit_id=commit_id, known_from=known_from)
    assert (action.type, action.name) == ("REPAIR", fmt.CATALOG)
    assert action.operation == Repair(head_version=4, lost=(expected,))
    assert (recorded.principal, recorded.message) == ("ann", "alpheus repair")
    # After the repair no file knows of more versions than exist, and no process refuses.
    assert await planned(lake) == Plan(head_version=5, problems=(), steps=())
    assert await fresh.follower.log.hint(fmt.LATEST_HINT) in (None, 5)
    assert [item async for item in fresh.check() if not isinstance(item, CheckSummary)] == []
    assert (await lake.commit(fresh, lake.namespace("more"))).version == 6
    entries = [entry async for entry in fresh.log()]
    assert [entry.transaction.actions[0].type for entry in entries[:2]] == ["NAMESPACE_CREATE", "REPAIR"]


async def findings(lake: Lake) -> list[tuple[str, int | None]]:
    return [
        (item.kind, item.version)
        async for item in (await lake.open()).check()
        if not isinstance(item, CheckSummary)
    ]


async def test_a_hole_is_given_up() -> None:
    """While versions 11 to 20 are missing, nothing is written. A repair above the newest version gives the missing
    versions up. After that they stop no process, however it looks for the head."""
    lake, journal = await lake_of(30)
    model = await model_of(journal, 30)
    token, gone = (await journal.resolve(10)).token, (await journal.resolve(11)).token
    old_id = (await journal.follower.log.read(15)).transactions[0].id
    times = [(await journal.resolve(version)).created_at_millis for version in range(31)]
    waiting, listing = await lake.open(), await lake.open()
    for version in range(11, 21):
        await lake.storage.delete(journal.follower.log.path(version))
    await listing.follower.look_at_slots()
    assert listing.doubt is not None
    found = await survey(lake.storage, clock=lake.clock)
    assert (found.head, found.holes, found.head_lacks) == (30, (VersionRange(11, 20),), "")
    before = await listed(lake.storage, "")
    asking = plan(found, Asked())
    (problem,) = asking.problems
    assert (problem.kind, problem.version, asking.steps) == ("history_replaced", 11, ())
    assert "versions 11 to 20" in problem.message
    assert "--accept-head" in problem.mended_by
    await raises(Corrupt, done(lake, asking), kind="history_replaced")
    assert await listed(lake.storage, "") == before

    assert (await done(lake, plan(found, ACCEPT))).version == 31
    for hint in (b"31", b"5", b"10", None):
        await lake.storage.delete(fmt.LATEST_HINT)
        if hint is not None:
            await lake.storage.put(fmt.LATEST_HINT, hint)
        fresh = await lake.open()
        assert (fresh.head.version, fresh.doubt) == (31, None), hint
        await fresh.follower.look_at_slots()
        assert fresh.doubt is None
    assert (await fresh.follower.root(31)).transactions[0].actions[0].operation == Repair(
        head_version=30, given_up=(VersionRange(11, 20),)
    )
    assert await planned(lake) == Plan(head_version=31, problems=(), steps=())
    assert await findings(lake) == []
    # A process that refused continues. A client that had seen the missing versions gets an error.
    for number, one in enumerate((listing, waiting, fresh)):
        assert (await lake.commit(one, lake.namespace(f"more{number}"))).version == 32 + number
    assert await model_of(fresh, 30) == model
    assert (await fresh.latest(Latest(session_token=token))).version == 34
    again = await lake.open()
    await raises(Corrupt, again.latest(Latest(session_token=gone)), kind="history_replaced")
    await raises(Corrupt, again.event(15), kind="history_replaced")
    await raises(Corrupt, again.resolve(15), kind="history_replaced")
    # The versions around the hole are unchanged.
    assert [entry.version async for entry in again.log()] == [*range(34, 20, -1), *range(10, -1, -1)]
    for version in range(31):
        expected = version if not 11 <= version <= 20 else 10
        assert times[version] <= times[30]
        found_at = (await again.resolve(Timestamp(times[version]))).version
        assert times[found_at] <= times[version], version
        assert found_at >= expected
    # Whether an id committed in the hole is unknown. Retry keys are lost with their versions.
    await raises(Expired, again.outcome(old_id, certain=True))
    assert (await again.outcome((await again.follower.root(25)).transactions[0].id)).state == "committed"
    keyed = [
        msgspec.structs.replace(lake.transaction(again, lake.namespace(name)), key="k")
        for name in ("k1", "k2")
    ]
    key = await again.commit(keyed[0])
    again = await lake.open()
    assert (await again.commit(keyed[1])).version == key.version
    await again.write_index()
    assert (await again.checkpoint()).version == key.version
    assert await findings(lake) == []


async def test_a_hole_below_the_version_of_a_running_writer() -> None:
    """The head is deleted by hand under a writer, whose next version lands above the hole."""
    lake, journal = await lake_of(10)
    await journal.checkpoint()
    await lake.storage.delete(journal.follower.log.path(10))
    below = await lake.open()
    assert below.head.version == 9
    await raises(OutcomeUnknown, lake.commit(journal, lake.namespace("x")), kind="history_replaced")
    await raises(Corrupt, lake.commit(below, lake.namespace("y")))
    made = await planned(lake)
    assert [problem.version for problem in made.problems] == [10]
    assert (await done(lake, made)).version == 12
    operation = (await below.follower.log.read(12)).transactions[0].actions[0].operation
    assert isinstance(operation, Repair)
    assert operation.given_up == (VersionRange(10, 10),)
    assert [one.version for one in operation.lost] == [10], "the checkpoint knew its commit id"
    assert not list(await listed(lake.storage, "checkpoint/"))
    # A process below the hole continues above the hole, but a transaction that began below is refused.
    error = await raises(Corrupt, lake.commit(below, lake.namespace("y")), kind="history_replaced")
    assert "version 10 was given up by a repair" in error.message
    assert (await lake.commit(below, lake.namespace("y"))).version == 13
    assert {"n9", "x", "y"} <= set((await below.list(None, Kind.NAMESPACE)).names), "the tree had it"
    assert await findings(lake) == []
    # Another hole adds one range. Adjacent ranges become one.
    for version in (8, 9):
        await lake.storage.delete(journal.follower.log.path(version))
    assert (await done(lake, await planned(lake))).version == 14
    assert (await lake.open()).follower.log.given_up == (VersionRange(8, 10),)
    assert await findings(lake) == []


async def test_an_old_root_that_is_lost_keeps_nobody_from_writing_once_it_is_given_up() -> None:
    lake, journal = await lake_of(100)
    await lake.storage.delete(journal.follower.log.path(7))
    daemon = await lake.open()
    await daemon.follower.look_at_slots()
    await raises(Corrupt, lake.commit(daemon, lake.namespace("x")), kind="history_replaced")
    await done(lake, await planned(lake))
    assert (await lake.commit(daemon, lake.namespace("x"))).version == 102
    for number in range(34):  # past the distance at which opening meets the hole
        fresh = await lake.open()
        await lake.commit(fresh, lake.namespace(f"y{number}"))
    await fresh.follower.look_at_slots()
    assert fresh.doubt is None


async def test_a_head_above_a_hole_that_is_not_whole_is_not_accepted() -> None:
    lake, journal = await lake_of(30)
    for version in range(11, 21):
        await lake.storage.delete(journal.follower.log.path(version))
    (stored,) = (await journal.load(None, [fmt.namespace_name("n15")])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    await journal.detach()  # on a slow machine a hint may still come
    before = await listed(lake.storage, "")
    made = await planned(lake)
    (problem,) = made.problems
    assert stored.path in problem.message
    assert "versions up to 10" in problem.mended_by
    await raises(Corrupt, done(lake, made), kind="history_replaced")
    assert await listed(lake.storage, "") == before


async def test_all_of_a_hole_has_to_come_back() -> None:
    """Only a listing sees this hole. When the first of its versions is back, the store is listed again."""
    lake, journal = await lake_of(100)
    log = journal.follower.log
    kept = {
        version: await lake.storage.read(log.path(version), size_max=1 << 20) for version in range(11, 21)
    }
    for version in kept:
        await lake.storage.delete(log.path(version))
    fresh = await lake.open()
    assert fresh.doubt is None
    await fresh.follower.look_at_slots()
    for version, data in kept.items():
        error = await raises(Corrupt, lake.commit(fresh, lake.namespace("x")), kind="history_replaced")
        assert error.version == version
        await lake.storage.put(log.path(version), data)
    assert (await lake.commit(fresh, lake.namespace("x"))).version == 101


async def test_what_others_wrote_since_the_survey_is_not_given_up() -> None:
    lake, journal = await lake_of(2)
    await lake.storage.put(fmt.LATEST_HINT, b"7")
    made = await planned(lake)
    await lake.commit(journal, lake.namespace("meanwhile"))
    error = await raises(InvalidInput, done(lake, made))
    assert "the head is version 3, but it was 2" in error.message


async def test_a_repair_killed_after_any_step_is_finished_by_the_next() -> None:
    for steps_done in range(4):
        lake, journal = await lake_of(4)
        await journal.checkpoint()
        await journal.write_index()
        await lake.commit(journal, lake.namespace("last"))
        await journal.close()
        for version in (4, 5):
            await lake.storage.delete(journal.follower.log.path(version))
        made = await planned(lake)
        assert [step.do for step in made.steps] == ["record", "delete", "delete", "hint"]
        await done(lake, msgspec.structs.replace(made, steps=made.steps[:steps_done]))
        await done(lake, await planned(lake))
        assert (await planned(lake)).problems == ()
        fresh = await lake.open()
        assert (await lake.commit(fresh, lake.namespace("more"))).version == fresh.head.version
        assert [item async for item in fresh.check() if not isinstance(item, CheckSummary)] == []


async def test_a_repair_of_a_hole_killed_after_any_step_is_finished_by_the_next() -> None:
    for steps_done in range(4):
        lake, journal = await lake_of(4)
        await journal.checkpoint()
        await journal.write_index()
        await lake.commit(journal, lake.namespace("last"))
        await journal.close()
        await lake.storage.delete(journal.follower.log.path(4))
        made = await planned(lake)
        assert [step.do for step in made.steps] == ["record", "delete", "delete"]
        await done(lake, msgspec.structs.replace(made, steps=made.steps[:steps_done]))
        assert bool((await planned(lake, Asked())).problems) is (steps_done < 3)
        await done(lake, await planned(lake))
        assert (await planned(lake)).problems == ()
        fresh = await lake.open()
        assert (await lake.commit(fresh, lake.namespace("more"))).version == 7, "one repair is one version"
        assert await findings(lake) == []
        assert not await listed(lake.storage, "checkpoint/")


async def test_no_client_may_ask_for_a_repair() -> None:
    lake, journal = await lake_of(1)
    repair = Repair(head_version=1)
    asked = Transaction(id=lake.identities.uuid7(), begin_version=1, operations=(repair,))
    error = await raises(InvalidInput, journal.commit(asked), kind="not_supported")
    assert "alpheus repair" in error.hint
    await raises(InvalidInput, journal.save_transaction(asked), kind="not_supported")
    assert journal.head.version == 1
