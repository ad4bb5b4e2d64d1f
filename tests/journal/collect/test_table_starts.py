"""Tables with short rules lose data files before the versions that list them. Everything else stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from upkeep_lake import (
    T,
    check,
    collect,
    commit_rows,
    expire,
    files_of,
    make_lake,
    make_table,
    reachable,
    tag,
)

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.collect import collection
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput, Unavailable
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.answers import At, CheckSummary, Collection, PinObject, Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, TableDef, TagDef
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateNamespace,
    CreateSubscription,
    DropTable,
    FenceCollection,
    Operation,
    OverwriteFiles,
    PlannedStart,
    RenameObject,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.model.table_starts import find_lacking
from alpheus_journal.repair import Asked, carry_out, plan, survey
from alpheus_journal.tables.manifest import decode_segment
from alpheus_journal.testing import InterleavedStorage, Lake, put_rows, raises

SHORT = {MAX_AGE: "0", MIN_VERSIONS: "1"}


def set_rules(set: dict[str, str] | None = None, unset: tuple[str, ...] = ()) -> Operation:
    return UpdateTable(namespace="a", name="t", set=SHORT if set is None else set, unset=unset)


async def catalog_of(journal: Journal) -> CatalogDef:
    (stored,) = (await journal.load(None, [fmt.CATALOG])).objects
    assert stored is not None
    definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
    assert isinstance(definition, CatalogDef)
    return definition


async def table_of(journal: Journal, at: At, name: fmt.ObjectName = T) -> TableDef | None:
    (stored,) = (await journal.load(at, [name])).objects
    if stored is None:
        return None
    definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(definition, TableDef)
    return definition


async def tag_of(journal: Journal, name: str) -> TagDef:
    (stored,) = (await journal.load(None, [fmt.tag_name(name)])).objects
    assert stored is not None
    definition = decode_definition(Kind.TAG, stored.definition, stored.path)
    assert isinstance(definition, TagDef)
    return definition


async def lost_of(journal: Journal, table: TableDef) -> set[str]:
    """Return the data files of a table that are missing."""
    lost = set()
    for segment in table.segments:
        data = await journal.storage.read(segment.path, size_max=1 << 20)
        for file in decode_segment(data, segment.path, table_id=table.id):
            if not await journal.storage.exists(file.path):
                lost.add(file.path)
    return lost


async def start_of(journal: Journal, name: fmt.ObjectName = T) -> int:
    table = await table_of(journal, None, name)
    assert table is not None
    return (await catalog_of(journal)).table_starts.get(table.id, 0)


async def judge(journal: Journal, tables: tuple[fmt.ObjectName, ...] = (T,)) -> int:
    """Check that every data file is there that the starts and tags promise. Return the number of table versions below
    the starts that lack files."""
    lacking = 0
    starts = (await catalog_of(journal)).table_starts
    for version in range((await journal.info()).oldest_version, journal.head.version + 1):
        for name in tables:
            table = await table_of(journal, version, name)
            if table is not None:
                lost = await lost_of(journal, table)
                assert not lost or version < starts.get(table.id, 0), (
                    f"version {version} of {name} lost {lost}"
                )
                lacking += bool(lost)
    page = await journal.list(None, Kind.TAG)
    for tag_name in page.names:
        found = await tag_of(journal, tag_name)
        for name in tables:
            table = await table_of(journal, Tag(tag_name), name)
            if table is not None:
                lost = await lost_of(journal, table)
                assert not lost or table.id in found.lacking, f"tag {tag_name} lost {lost}"
    return lacking


async def overwritten(lake: Lake, times: int = 3) -> Journal:
    """Make a table with short rules that was overwritten: versions 3 and later have other rows each."""
    journal = await make_table(lake)
    await lake.commit(journal, set_rules())
    for _ in range(times):
        lake.clock.millis += HOUR_MILLIS
        await commit_rows(lake, journal, kind=OverwriteFiles)
    lake.clock.millis += 2 * HOUR_MILLIS
    return journal


async def test_data_files_go_before_their_versions_and_the_head_keeps_all() -> None:
    lake = make_lake()
    journal = await overwritten(lake)
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    plan = await collect(journal, dry_run=True)
    head = journal.head.version
    assert [(one.table, one.start, one.files.files) for one in plan.earlier] == [("a.t", head, 2)]
    done = await collect(journal)
    (one,) = done.earlier
    assert (one.table, one.files.files, one.start) == ("a.t", 2, head)
    assert done.deleted["data"].files == 2
    assert await start_of(journal) == head
    assert await judge(journal) == 2
    assert await files_of(lake) == await reachable(lake, journal)
    await check(journal)
    again = await collect(journal)
    assert (again.earlier, again.fence_version) == ((), None)
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    assert await start_of(journal) == head  # entries never go away
    await judge(journal)
    await journal.close()


async def test_a_table_needs_both_rules_and_a_start_above_the_oldest_version() -> None:
    lake = make_lake()
    journal = await overwritten(lake)
    for rules in ({MAX_AGE: "0"}, {MIN_VERSIONS: "1"}):
        await lake.commit(journal, set_rules(unset=(MAX_AGE, MIN_VERSIONS), set={"x": "y"}))
        await lake.commit(journal, set_rules(rules))
        lake.clock.millis += 2 * HOUR_MILLIS
        assert (await collect(journal)).earlier == ()
    await lake.commit(journal, UpdateNamespace(name="a", set=SHORT))
    lake.clock.millis += 2 * HOUR_MILLIS
    assert [one.table for one in (await collect(journal, dry_run=True)).earlier] == ["a.t"]
    await expire(journal)
    done = await collect(journal)
    assert (done.earlier, await start_of(journal)) == ((), 0)  # the versions themselves have gone
    await judge(journal)
    await journal.close()


async def test_young_versions_keep_all() -> None:
    lake = make_lake()
    journal = await overwritten(lake, 3)
    first = journal.head.version
    await commit_rows(lake, journal, kind=OverwriteFiles)
    lake.clock.millis += HOUR_MILLIS // 2
    await collect(journal)
    assert await start_of(journal) == first  # it was replaced half an hour ago
    assert await judge(journal) == 1
    await journal.close()


@pytest.mark.parametrize("behind", [0, 1, 2])
async def test_a_subscription_keeps_its_files(behind: int) -> None:
    """It needs the version before its next one. `behind` 0: it is exactly at the oldest kept version."""
    lake = make_lake()
    journal = await overwritten(lake, 4)
    await expire(journal, keep=3)
    oldest = (await journal.info()).oldest_version
    await lake.commit(
        journal,
        CreateSubscription(
            name="s",
            subscription_id=lake.identities.uuid4(),
            lease_millis=10 * HOUR_MILLIS // 200,
            next_version=oldest + behind,
        ),
    )
    lake.clock.millis += HOUR_MILLIS // 100
    await collect(journal, age=0)
    assert await start_of(journal) == (oldest + 1 if behind == 2 else 0)
    await judge(journal)
    lake.clock.millis += HOUR_MILLIS  # its lease has run out
    await collect(journal, age=0)
    assert await start_of(journal) > oldest + 1
    await judge(journal)
    await journal.close()


POINTS = (
    "collect.listed", "collect.planned", "collect.marked_first", "collect.confirmed", "collect.fenced",
    "collect.marked", "collect.deleting",
)  # fmt: skip
BEFORE_FENCE = POINTS[:4]


async def collect_around(lake: Lake, point: str, during: Callable[[Journal], object]) -> Collection:
    """Collect, and do something else when the collection has come to a point."""
    journal, other = await lake.open(), await lake.open()
    with failpoints.armed(point, "pause@1") as paused:
        running = asyncio.ensure_future(collect(journal, age=HOUR_MILLIS))
        await paused.wait_for_hit()
        await during(other)  # type: ignore[misc]
        paused.release()
        done = await running
    await journal.close()
    await other.close()
    return done


@pytest.mark.parametrize("unset", [False, True])
@pytest.mark.parametrize("point", POINTS)
async def test_an_expiry_and_a_collection_beside_another_collection(point: str, unset: bool) -> None:
    """They may take manifest segments that the first collection has seen and not read. That is no damage."""
    lake = make_lake()
    journal = await overwritten(lake, 5)
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS

    async def beside(other: Journal) -> None:
        if unset:
            await lake.commit(other, set_rules({}, unset=(MAX_AGE,)))
        await expire(other)
        assert (await collect(other)).deleted

    if point == "collect.marked_first" or (unset and point in ("collect.confirmed", "collect.fenced")):
        error = await raises(Unavailable, collect_around(lake, point, beside))
        assert error.hint == "collect again"
    else:
        await collect_around(lake, point, beside)
    again = await lake.open()
    await judge(again)
    await again.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("chosen", [False, True])
async def test_a_tag_that_is_made_beside_a_collection_has_its_files_or_says_so(
    point: str, chosen: bool
) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    old = journal.head.version - 2

    async def make(other: Journal) -> None:
        if chosen:
            await tag(lake, other, "g", None, only=(PinObject("a", "t", old),))
        else:
            await tag(lake, other, "g", old)

    await collect_around(lake, point, make)
    assert await start_of(journal) > old
    found = await tag_of(journal, "g")
    assert bool(found.lacking) == (point not in BEFORE_FENCE)
    for _ in range(3):
        await judge(journal)
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(journal)
        await collect(journal)
    await judge(journal)
    await check(journal)
    assert await files_of(lake) == await reachable(lake, journal)
    await journal.close()


@pytest.mark.parametrize("place", ["pin.written", "pin.starts"])
@pytest.mark.parametrize("until", [*POINTS, ""])
async def test_a_tag_whose_maker_pauses_has_its_files_or_says_so(place: str, until: str) -> None:
    """The pin is stored before the collection begins, and the rest comes when the collection is at `until`, or over."""
    lake = make_lake()
    journal = await overwritten(lake, 4)
    maker, collector = await lake.open(), await lake.open()
    old = journal.head.version - 2
    with failpoints.armed(place, "pause@1") as pinned:
        making = asyncio.ensure_future(tag(lake, maker, "g", old))
        await pinned.wait_for_hit()
        if not until:
            await collect(collector)
            pinned.release()
            await making
        else:
            with failpoints.armed(until, "pause@1") as paused:
                running = asyncio.ensure_future(collect(collector))
                await paused.wait_for_hit()
                pinned.release()
                await making
                paused.release()
                await running
    await judge(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    await judge(journal)
    await check(journal)
    await journal.close()


async def test_a_tag_of_a_tag_has_what_that_one_has() -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    old = journal.head.version - 2
    await tag(lake, journal, "whole", old)
    await collect(journal)
    assert await start_of(journal) > old
    for name, at, only in (
        ("copy", Tag("whole"), None), ("part", Tag("whole"), (PinObject("a", "t"),)),
        ("again", Tag("part"), None),
    ):  # fmt: skip
        await tag(lake, journal, name, at, **({} if only is None else {"only": only}))
        assert (await tag_of(journal, name)).lacking == {}
    await tag(lake, journal, "late", old - 1)
    await tag(lake, journal, "mixed", None, only=(PinObject("a", "t", old - 1),))
    await tag(lake, journal, "newest", None, only=(PinObject("a"),))
    for name in ("late", "mixed"):
        assert list((await tag_of(journal, name)).lacking.values()) == [await start_of(journal)]
    assert (await tag_of(journal, "newest")).lacking == {}
    for _ in range(2):
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(journal)
        await collect(journal)
        await judge(journal)
        await check(journal)
    await tag(lake, journal, "later", Tag("late"))
    assert (await tag_of(journal, "later")).lacking == (await tag_of(journal, "late")).lacking
    await journal.close()


@pytest.mark.parametrize("point", POINTS)
async def test_a_lease_that_is_taken_beside_a_collection_keeps_what_it_does_not_lack(point: str) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    old = journal.head.version - 2
    table = await table_of(journal, old)
    assert table is not None
    lacking: dict[str, int] = {}

    async def take(other: Journal) -> None:
        log, new_id = other.follower.log, lake.identities.uuid4
        await leases.take(log, old, new_id=new_id, lease_millis=leases.LEASE_MILLIS_MAX)
        await other.refresh()
        lacking.update(find_lacking((await catalog_of(other)).table_starts, old))

    await collect_around(lake, point, take)
    assert bool(lacking) == (point not in BEFORE_FENCE)
    assert not await lost_of(journal, table) or lacking
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    await collect(journal)  # raises starts further, and the lease still binds
    assert not await lost_of(journal, table) or lacking
    await journal.close()


async def test_files_at_a_data_root_go_earlier_too() -> None:
    lake = make_lake()
    journal = await lake.create()
    root, id = "memory://elsewhere-too", lake.identities.uuid4()
    await lake.commit(journal, CreateNamespace(name="a", namespace_id=id, data_root=root, properties=SHORT))
    made = lake.table("a", "t")
    await lake.commit(journal, made)
    store = journal.follower.data_roots.of(root)
    store._clock = lake.clock.now_millis  # type: ignore[attr-defined]
    for _ in range(4):
        lake.clock.millis += HOUR_MILLIS
        transaction = lake.transaction(journal)
        segment = await put_rows(
            lake.storage, lake.identities, table_id=made.table_id, transaction_id=transaction.id
        )
        async for info in lake.storage.list(f"data/{made.table_id}/{transaction.id}/"):
            await store.put(info.path, await lake.storage.read(info.path, size_max=1 << 20))
            await lake.storage.delete(info.path)
        operation = OverwriteFiles(
            namespace="a", name="t", table_id=made.table_id, segments=(segment,), data_root=root
        )
        fields = {"id": transaction.id, "begin_version": transaction.begin_version}
        await journal.commit(Transaction(operations=(operation,), **fields))  # type: ignore[arg-type]
    lake.clock.millis += 2 * HOUR_MILLIS
    done = await collect(journal)
    assert [one.files.files for one in done.earlier] == [2]
    assert len([info async for info in store.list("data/") if info.path.endswith(".parquet")]) == 2
    await check(journal)
    await journal.close()


async def test_a_repair_that_loses_a_fence_is_named_where_files_are_missing() -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    done = await collect(journal)
    assert done.fence_version == journal.head.version
    await journal.follower.log.write_latest(done.fence_version)
    await journal.close()
    await lake.storage.delete(fmt.version_file(done.fence_version, 32))
    asked = plan(await survey(lake.storage, clock=lake.clock), Asked(accept_head=True))
    await carry_out(lake.storage, asked, principal="", clock=lake.clock, identities=lake.identities)
    journal = await lake.open()
    assert (await catalog_of(journal)).table_starts == {}
    found = [item.message async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert len(found) == 2
    assert all("a repair gave up later versions" in message for message in found)
    await journal.close()


CHANGES = {
    "unset": set_rules(set={"x": "y"}, unset=(MAX_AGE,)),
    "longer": set_rules({MIN_VERSIONS: "1000"}),
    "dropped": DropTable(namespace="a", name="t"),
    "renamed": RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="u"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("point", POINTS)
async def test_a_rule_that_changes_before_the_fence_keeps_all_files(point: str, change: str) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    table = await table_of(journal, None)
    assert table is not None
    await collect_around(lake, point, lambda other: lake.commit(other, CHANGES[change]))
    await journal.refresh()
    raised = table.id in (await catalog_of(journal)).table_starts
    if point not in BEFORE_FENCE or change == "renamed":
        assert raised or point in BEFORE_FENCE[2:]
    else:
        assert not raised
    lost = await judge(journal, (T, fmt.table_name("a", "u")))
    assert bool(lost) == raised
    await check(journal)
    await journal.close()


@pytest.mark.parametrize("next_version", [0, 7])
@pytest.mark.parametrize("point", ["collect.planned", "collect.marked_first"])
async def test_a_subscription_that_comes_before_the_second_plan_keeps_its_files(
    point: str, next_version: int
) -> None:
    """The first plan has a start above it. The second one has a lower start, or none."""
    lake = make_lake()
    journal = await overwritten(lake, 5)
    made = CreateSubscription(
        name="s",
        subscription_id=lake.identities.uuid4(),
        lease_millis=80_000_000,
        next_version=next_version,
    )
    await collect_around(lake, point, lambda other: lake.commit(other, made))
    await journal.refresh()
    assert await start_of(journal) == 0
    assert await judge(journal) == 0
    await collect(journal)
    assert await start_of(journal) == max(next_version - 1, 0)
    await judge(journal)
    await journal.close()


@pytest.mark.parametrize("own", [False, True])
async def test_a_rule_of_the_namespace_that_is_unset_before_the_fence(own: bool) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    if not own:
        await lake.commit(journal, set_rules(set={"x": "y"}, unset=(MAX_AGE, MIN_VERSIONS)))
    await lake.commit(journal, UpdateNamespace(name="a", set=SHORT))
    lake.clock.millis += 2 * HOUR_MILLIS
    unset = UpdateNamespace(name="a", set={"x": "y"}, unset=(MAX_AGE,))
    await collect_around(lake, "collect.confirmed", lambda other: lake.commit(other, unset))
    await journal.refresh()
    assert (await start_of(journal) > 0) == own
    assert bool(await judge(journal)) == own
    await journal.close()


@pytest.mark.parametrize("by", ["restore", "undrop"])
async def test_nothing_comes_back_from_below_a_start(by: str) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    old, last = journal.head.version - 2, journal.head.version
    await tag(lake, journal, "whole", old)
    await collect(journal)
    if by == "undrop":
        await lake.commit(journal, DropTable(namespace="a", name="t"))

    def bring_back(version: int) -> Operation:
        if by == "restore":
            return RestoreTable(namespace="a", name="t", version=version)
        return Undrop(
            kind=Kind.TABLE, namespace="a", name="t", version=version, new_namespace="a", new_name="t"
        )

    error = await raises(Expired, lake.commit(journal, bring_back(old)), kind="files_expired")
    assert error.oldest == last
    await lake.commit(journal, bring_back(last))
    await judge(journal)
    await journal.close()


@pytest.mark.parametrize("point", POINTS)
async def test_a_restore_beside_a_collection_has_its_files_or_is_refused(point: str) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    old = journal.head.version - 2

    async def restore(other: Journal) -> None:
        operation = RestoreTable(namespace="a", name="t", version=old)
        if point in BEFORE_FENCE:
            await lake.commit(other, operation)
        else:
            await raises(Expired, lake.commit(other, operation), kind="files_expired")

    await collect_around(lake, point, restore)
    await judge(journal)
    await check(journal)
    await journal.close()


async def test_a_restore_that_waits_over_the_fence_is_judged_again() -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    writer = await lake.open()
    with failpoints.armed("commit.staged", "pause@1") as staged:
        operation = RestoreTable(namespace="a", name="t", version=journal.head.version - 2)
        restoring = asyncio.ensure_future(lake.commit(writer, operation))
        await staged.wait_for_hit()
        await collect(journal)
        staged.release()
        await raises(Expired, restoring, kind="files_expired")
    await judge(journal)
    await check(journal)
    await journal.close()
    await writer.close()


@pytest.mark.parametrize("point", POINTS)
async def test_a_collection_that_is_killed_is_finished_by_the_next(point: str) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    with failpoints.armed(point, "raise@1"), pytest.raises(failpoints.FailpointError):
        await collect(journal)
    await judge(journal)
    again = await lake.open()
    if point not in BEFORE_FENCE:  # what has a start goes, whatever the rules are now
        await lake.commit(again, CHANGES["unset"])
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(again)
    assert await judge(again)
    assert await files_of(lake) == await reachable(lake, again)
    await check(again)
    await again.close()
    await journal.close()


async def test_a_version_above_the_start_keeps_what_older_ones_list_too() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    first = await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=first))
    await lake.commit(journal, set_rules())
    lake.clock.millis += 2 * HOUR_MILLIS
    done = await collect(journal)
    assert [one.files.files for one in done.earlier] == [1]  # of the overwrite alone
    table = await table_of(journal, first)
    assert table is not None
    assert await lost_of(journal, table) == set()
    await judge(journal)
    await journal.close()


async def test_a_fence_takes_no_start_that_the_catalog_does_not_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = make_lake()
    journal = await overwritten(lake, 4)
    table = await table_of(journal, None)
    assert table is not None

    def fence(version: int = 4, **fields: object) -> FenceCollection:
        given: dict[str, object] = {
            "table_id": table.id, "version": version, "namespace": "a", "name": "t", "age_millis": 0,
            "keep_versions": 1,
        } | fields  # fmt: skip
        return FenceCollection(cutoff_millis=5, starts=(PlannedStart(**given),))  # type: ignore[arg-type]

    for version in (0, journal.head.version + 1):
        await raises(InvalidInput, lake.commit(journal, fence(version)), kind="bad_version")
    await raises(InvalidInput, lake.commit(journal, fence(table_id="x")))
    for other in ({"name": "u"}, {"namespace": "?"}, {"table_id": lake.identities.uuid4()}):
        await lake.commit(journal, fence(**other))
        assert await start_of(journal) == 0
    await lake.commit(journal, fence(4))
    assert await start_of(journal) == 4
    await lake.commit(journal, fence(3))  # it only rises
    assert await start_of(journal) == 4
    monkeypatch.setattr("alpheus_journal.execute.rules.collection.TABLE_STARTS_MAX", 1)
    await lake.commit(journal, lake.table("a", "u"), UpdateTable(namespace="a", name="u", set=SHORT))
    other = await table_of(journal, None, fmt.table_name("a", "u"))
    assert other is not None
    await lake.commit(journal, fence(5, table_id=other.id, name="u"))
    assert (await catalog_of(journal)).table_starts == {table.id: 4}
    await check(journal)
    await journal.close()


async def test_a_fence_raises_some_starts_and_the_next_one_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "STARTS_RAISED_MAX", 1)
    lake = make_lake()
    journal = await overwritten(lake)
    await lake.commit(journal, lake.table("a", "u"), UpdateTable(namespace="a", name="u", set=SHORT))
    u = fmt.table_name("a", "u")
    for _ in range(2):
        await commit_rows(lake, journal, u, kind=OverwriteFiles)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    lake.clock.millis += 2 * HOUR_MILLIS
    tables = [[one.table for one in (await collect(journal)).earlier] for _ in range(2)]
    assert sorted(name for names in tables for name in names) == ["a.t", "a.u"]
    assert await judge(journal, (T, u))
    await check(journal)
    await journal.close()


async def test_random_histories_keep_what_the_starts_promise(lane_count: Callable[[int, int], int]) -> None:
    """Tables with and without short rules, tags at old versions, restores, undrops, expiries, collections at once."""
    counts = {"lost": 0, "lacking": 0, "whole": 0, "refused": 0}
    for seed in range(lane_count(8, 1000)):
        rng = random.Random(seed)
        lake = make_lake(seed)
        journal = await make_table(lake, order=rng.choice((3, 4, 16)))
        await lake.commit(journal, lake.table("a", "u"))
        tables = (T, fmt.table_name("a", "u"), fmt.table_name("a", "w"))
        for _ in range(50):
            lake.clock.millis += rng.choice((0, 1, HOUR_MILLIS))
            name = rng.choice(tables)
            oldest = (await journal.info()).oldest_version
            version = rng.randrange(oldest, journal.head.version + 1)
            try:
                await random_step(rng, lake, journal, name, version)
            except Expired as error:
                counts["refused"] += error.kind == "files_expired"
            except AlpheusError:
                pass
        lake.clock.millis += 3 * HOUR_MILLIS
        await collect(journal)
        lake.clock.millis += 3 * HOUR_MILLIS
        await collect(journal)
        counts["lost"] += await judge(journal, tables)
        for name in (await journal.list(None, Kind.TAG)).names:
            counts["lacking" if (await tag_of(journal, name)).lacking else "whole"] += 1
        journal = await lake.open()
        assert await files_of(lake) == await reachable(lake, journal), f"seed {seed}"
        await check(journal)
        await journal.close()
    assert min(counts.values()) > 0, counts


async def race(rng: random.Random, lake: Lake, head: int) -> None:
    """Collect, tag, restore, expire and change rules, each begun after some turns of the others."""
    old = head - rng.randrange(1, 5)
    others = [await lake.open(InterleavedStorage(lake.storage, rng.randrange(1000))) for _ in range(5)]
    longer = rng.random() < 0.3

    async def do(other: Journal, *steps: Callable[[Journal], Awaitable[object]]) -> None:
        for step in steps:
            for _ in range(rng.choice((0, 10, 100, 500, 1000))):
                await asyncio.sleep(0)
            with contextlib.suppress(AlpheusError):
                await step(other)
        await other.close()

    async def choose(other: Journal) -> None:
        await tag(lake, other, "i", None, only=(PinObject("a", "t", old),))

    async def restore(other: Journal) -> None:
        await lake.commit(other, RestoreTable(namespace="a", name="t", version=old))

    async def change(other: Journal) -> None:
        await lake.commit(other, set_rules({MIN_VERSIONS: "9"} if longer else {}))

    await asyncio.gather(
        do(others[0], collect, collect),
        do(
            others[1], lambda other: tag(lake, other, "g", old), lambda other: tag(lake, other, "h", Tag("g"))
        ),
        do(others[2], choose, restore),
        do(others[3], collect if rng.random() < 0.5 else partial(expire, keep=4)),
        do(others[4], change),
    )


async def test_whatever_runs_at_once_keeps_what_the_starts_promise(
    lane_count: Callable[[int, int], int],
) -> None:
    counts = {"lost": 0, "lacking": 0, "whole": 0}
    for seed in range(lane_count(15, 2000)):
        rng, lake = random.Random(seed), make_lake(seed)
        journal = await overwritten(lake, 6)
        if rng.random() < 0.5:
            await tag(lake, journal, "first", journal.head.version - 2)
        lake.clock.millis += 2 * HOUR_MILLIS
        await race(rng, lake, journal.head.version)
        await journal.refresh()
        counts["lost"] += await judge(journal)
        for _ in range(2):
            lake.clock.millis += 2 * HOUR_MILLIS
            await collect(journal)
            await judge(journal)
        for name in (await journal.list(None, Kind.TAG)).names:
            counts["lacking" if (await tag_of(journal, name)).lacking else "whole"] += 1
        await check(journal)
        assert await files_of(lake) == await reachable(lake, journal), f"seed {seed}"
        await journal.close()
    assert min(counts.values()) > 0, counts


async def random_step(
    rng: random.Random, lake: Lake, journal: Journal, name: fmt.ObjectName, version: int
) -> None:
    at, full = version, (name.namespace, name.name)
    match rng.choices(range(9), weights=(10, 3, 2, 5, 1, 6, 2, 6, 2))[0]:
        case 0 if await table_of(journal, None, name) is not None:
            await commit_rows(lake, journal, name, kind=rng.choice((OverwriteFiles, AppendFiles)))
        case 1:
            rules = rng.choice(({MAX_AGE: "0"}, {MIN_VERSIONS: rng.choice("125")}, SHORT))
            await lake.commit(journal, UpdateTable(namespace=full[0], name=full[1], set=rules))
        case 2:
            rules = rng.choice((SHORT, {MAX_AGE: str(9 * HOUR_MILLIS)}))
            await lake.commit(journal, UpdateNamespace(name="a", set=rules, unset=()))
        case 3:
            await lake.commit(journal, RestoreTable(namespace=full[0], name=full[1], version=at))
        case 4:
            await lake.commit(journal, DropTable(namespace=full[0], name=full[1]))
        case 5:
            choice = rng.choice(({}, {"only": (PinObject(*full, at),)}, {"without": (PinObject("a", "u"),)}))
            old = rng.choice("ghi")
            where: At = Tag(old) if rng.random() < 0.2 else at
            await tag(lake, journal, rng.choice("ghi"), where, **choice)  # type: ignore[arg-type]
        case 6:
            await expire(journal, keep=rng.choice((2, 10)), older_than_millis=rng.choice((0, HOUR_MILLIS)))
        case 7:
            others = [await lake.open() for _ in range(rng.choice((1, 1, 2)))]
            runs = [collect(other, age=rng.choice((0, 1)) * HOUR_MILLIS) for other in others]
            with contextlib.suppress(AlpheusError):
                await asyncio.gather(*runs)
            for other in others:
                await other.close()
            await journal.refresh()
        case 8:
            new = rng.choice("tuw")
            operations = (
                Undrop(
                    kind=Kind.TABLE, namespace="a", name=full[1], version=at, new_namespace="a", new_name=new
                ),
                RenameObject(kind=Kind.TABLE, namespace="a", name=full[1], new_namespace="a", new_name=new),
            )
            await lake.commit(journal, rng.choice(operations))
