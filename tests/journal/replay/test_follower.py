"""Following the log: shared probes, the window, damage by other writers, and races between operations that move the
head.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.conflicts.rules import Stakes
from alpheus_journal.errors import Conflict, Corrupt, Expired, NotFound
from alpheus_journal.format import NodePath
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Event, Finding
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import NamespaceDef
from alpheus_journal.model.operations import (
    CreateNamespace,
    DropNamespace,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
)
from alpheus_journal.replay import follower as follower_module
from alpheus_journal.testing import (
    FaultyStorage,
    InterleavedStorage,
    Lake,
    listed,
    model_of,
    no_faults,
    raises,
)
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import encode_node


async def foreign_commit(lake: Lake, journal: Journal, changes: dict[str, str | None], millis: int) -> None:
    """Write a version like the Java SDK: no commit id, no actions."""
    follower = journal.follower
    head = await journal.refresh()
    keys: dict[fmt.Key, str | None] = {}
    for name, path in changes.items():
        object_name = fmt.namespace_name(name)
        if path is not None:
            path = fmt.definition_path(object_name, lake.identities.uuid4())
            await lake.storage.put(path, encode_definition(NamespaceDef(id=lake.identities.uuid4())))
        keys[journal.keys.key(object_name)] = path
    order = follower.definition.order
    applied = await tree.run_async(
        tree.apply(
            head.root, keys, order=order, new_path=lambda: NodePath(fmt.node_path(lake.identities.uuid4()))
        ),
        follower.reader.load_nodes,
    )
    for path, node in applied.created.items():
        await lake.storage.put(
            path, encode_node(node, order=order, created_at_millis=millis, size_max=1 << 20)
        )
    log = follower.log
    system = {fmt.ROW_CATALOG_DEF: head.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(head.version)}
    root = encode_node(applied.root, order=order, created_at_millis=millis, size_max=1 << 20, system=system)
    await lake.storage.create(log.path(head.version + 1), root)


async def test_versions_of_another_writer_without_actions() -> None:
    lake = Lake()
    journal = await lake.create(order=3)
    reader = await lake.open()
    await reader.load_state()
    await lake.commit(journal, *(lake.namespace(name) for name in "abcdef"))
    await foreign_commit(lake, journal, {"g": "", "a": None, "b": ""}, millis=5)  # its clock is wrong
    event = await reader.event((await reader.refresh()).version)
    assert [(c.name.namespace, c.type) for c in event.changes] == [
        ("a", "dropped"),
        ("b", "updated"),
        ("g", "created"),
    ]
    assert event.transactions == ()
    assert await model_of(reader) == await model_of(await lake.open())
    update = UpdateNamespace(name="b", set={"k": "v"})
    error = await raises(Conflict, journal.commit(lake.transaction(journal, update, begin=1)))
    assert "another writer" in str(error)
    gone = UpdateNamespace(name="a", set={"k": "v"})
    error = await raises(Conflict, journal.commit(lake.transaction(journal, gone, begin=1)))
    assert not error.retryable
    committed = await journal.commit(lake.transaction(journal, update))
    assert committed.created_at_millis >= lake.clock.millis - 10_000
    entries = [entry async for entry in journal.log()]
    assert [entry.transaction.id == "" for entry in entries] == [False, True, False, False]
    # An id made long after that wrong time is still searched for below that version.
    first = entries[2].transaction.id
    assert (await journal.outcome(first, settle=True)).state == "committed"
    (finding,) = [item async for item in journal.check() if isinstance(item, Finding)]
    assert (finding.kind, finding.version) == ("foreign_write", 2)
    assert finding.message.endswith("namespace a dropped, namespace b updated, namespace g created")


@pytest.mark.parametrize("is_replayed", [False, True])
async def test_a_clock_behind_the_one_before_another_writers_version(is_replayed: bool) -> None:
    """A version's time is not before the time of the version below it. That version, of another writer, may have an
    earlier time than the versions below it."""
    lake = Lake()
    journal = await lake.create(order=3)
    reader = await lake.open()
    if is_replayed:
        await reader.load_state()
    await lake.commit(journal, lake.namespace("a"))
    now = lake.clock.millis
    await foreign_commit(lake, journal, {"g": ""}, millis=now - 30_000)
    lake.clock.millis = now - 20_000
    await lake.commit(journal, lake.namespace("b"))
    assert (await reader.refresh()).version == 3
    assert await model_of(reader) == await model_of(await lake.open())


async def test_probes_are_shared_and_start_after_the_call() -> None:
    lake = Lake()
    writer = await lake.create()
    storage = FaultyStorage(lake.storage, no_faults)
    slow = InterleavedStorage(storage, 1, pauses_max=5)
    reader = await lake.open(slow)
    storage.log.clear()
    heads = await asyncio.gather(*(reader.refresh() for _ in range(50)))
    assert {head.version for head in heads} == {0}
    assert len(storage.log) == 1, "one probe, which begins when all of them have asked"
    # A caller that asks during a probe sees the commits made before it asked.
    running = asyncio.ensure_future(reader.refresh())
    await asyncio.sleep(0)
    await lake.commit(writer, lake.namespace("a"))
    assert (await reader.refresh()).version == 1
    await running


async def test_a_shared_probe_outlives_its_caller() -> None:
    lake = Lake()
    writer = await lake.create()
    reader = await lake.open(InterleavedStorage(lake.storage, 1, pauses_max=5))
    await lake.commit(writer, lake.namespace("a"))
    first, second = (asyncio.ensure_future(reader.refresh()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).version == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_who_is_far_behind_reads_many_at_once() -> None:
    lake = Lake()
    writer = await lake.create()
    reader = await lake.open(slow := LatencyStorage(lake.storage, 0.0))
    await reader.load_state()
    for number in range(40):
        await lake.commit(writer, lake.namespace(f"n{number}"))
    rounds = 0
    take = reader.follower.take

    async def count_round(version: int, count: int = 1, *, verify: bool = False) -> None:
        nonlocal rounds
        rounds += 1
        await take(version, count, verify=verify)

    reader.follower.take = count_round  # type: ignore[method-assign]
    assert (await reader.refresh()).version == 40
    assert rounds <= 8, "2, 4, then 8 at once"
    assert slow.requests["read"] <= 2 * 40 + 20, "little is asked for in vain"
    assert (await reader.load_state()).version == 40
    assert reader.follower.foreign_count == 40
    assert [event.version async for event in reader.events(after=0)] == list(range(1, 41))


async def test_damage_ahead_of_one_that_is_behind() -> None:
    lake = Lake()
    writer = await lake.create()
    reader = await lake.open(lake.storage)
    for number in range(12):
        await lake.commit(writer, lake.namespace(f"n{number}"))
    path = reader.follower.log.path(8)
    whole = await lake.storage.read(path, size_max=1 << 20)
    await lake.storage.delete(path)
    await lake.storage.create(path, b"no root")
    await raises(Corrupt, reader.refresh())
    assert reader.head.version == 7
    await lake.storage.delete(path)
    await lake.storage.create(path, whole)
    assert (await reader.refresh()).version == 12


async def test_callers_that_gave_up_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    reader = await lake.create()
    entered, released = asyncio.Event(), asyncio.Event()

    async def hang(_: str) -> None:
        entered.set()
        await released.wait()

    monkeypatch.setattr(reader.follower.log, "exists", hang)  # a storage that does not answer
    running = asyncio.ensure_future(reader.refresh())
    await entered.wait()
    for _ in range(100):
        waiting = asyncio.ensure_future(reader.refresh())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    follower = reader.follower
    assert len(follower._wanted) == 0
    late = asyncio.ensure_future(reader.refresh())
    released.set()
    assert (await running).version == (await late).version == 0


async def test_the_window_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 3)
    lake = Lake()
    journal = await lake.create()
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    follower = journal.follower
    assert [v for v in range(7) if follower.known_event(v)] == [4, 5, 6]
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 100)
    assert follower._weight < 100
    monkeypatch.setattr(follower_module, "WINDOW_WEIGHT_MAX", follower._weight - 3)  # room for two
    await lake.commit(journal, lake.namespace("x"))
    assert [v for v in range(8) if follower.known_event(v)] == [6, 7]
    await lake.commit(journal, *(lake.namespace(f"m{n}") for n in range(20)))
    assert [v for v in range(9) if follower.known_event(v)] == [8], "one is always kept"
    # Versions that left the window are read from storage, and equal their former content.
    fresh = await lake.open()
    for version in range(9):
        assert await journal.event(version) == await fresh.event(version)
    await raises(NotFound, journal.event(9), kind="no_version")


async def test_the_window_weighs_what_one_action_holds() -> None:
    lake = Lake()
    journal = await lake.create()
    follower = journal.follower
    await lake.commit(journal, UpdateCatalog(set={"k": "v"}))
    light = follower._weight
    await lake.commit(journal, UpdateCatalog(set={f"k{n}": "v" for n in range(5000)}))
    assert follower._weight - light > 500, "each property is indexed"


async def test_a_jump_leaves_nothing_of_the_window_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 4)
    lake = Lake()
    journal = await lake.create()
    reader = await lake.open()
    follower = reader.follower
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await reader.refresh()
    assert follower.window_start == 3
    begin = follower.head.version
    for number in range(6, 10):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=10)
    counts = follower.accepted_count, follower.foreign_count
    assert (await reader.refresh()).version == 10
    assert (follower.accepted_count - counts[0], follower.foreign_count - counts[1]) == (1, 1)
    assert [version for version in range(12) if follower.known_event(version)] == []
    assert follower.window_start == 11
    assert follower._weight == 0
    mine = Stakes(lake.transaction(journal, lake.namespace("n3"), begin=begin - 2))
    assert list(follower.find_concerning(mine)) == list(range(begin - 1, 11)), (
        "each once, none is known not to"
    )
    # The window fills up again with new versions.
    for number in range(10, 16):
        await lake.commit(journal, lake.namespace(f"n{number}"))
        assert (await reader.refresh()).version == number + 1
        kept = list(range(max(11, number - 2), number + 2))
        assert [version for version in range(20) if follower.known_event(version)] == kept
    assert follower._weight == journal.follower._weight
    assert list(
        follower.find_concerning(Stakes(lake.transaction(journal, lake.namespace("n15"), begin=12)))
    ) == [16]
    fresh = await lake.open()
    for version in range(11, 17):
        assert await reader.event(version) == await fresh.event(version)


async def test_a_head_is_as_fresh_as_the_beginning_of_the_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe does not see commits made while its answer is on the way. A caller that asked since then probes again."""
    lake = Lake()
    journal, rival = await lake.create(), await lake.open()
    follower = journal.follower
    loop = asyncio.get_running_loop()
    exists, moments = follower.log.exists, list[float]()

    async def slowly(version: int) -> bool:
        found = await exists(version)
        if not moments:
            moments.append(loop.time())
            await lake.commit(rival, lake.namespace("theirs"))
            moments.append(loop.time())
        return found

    before = loop.time()
    assert not follower.is_fresh_since(before)
    monkeypatch.setattr(follower.log, "exists", slowly)
    assert (await journal.refresh()).version == 0
    assert follower.is_fresh_since(before)
    assert [follower.is_fresh_since(moment) for moment in moments] == [False, False]
    assert (await journal.refresh()).version == 1
    assert [follower.is_fresh_since(moment) for moment in moments] == [True, True]


async def test_the_oldest_version_is_found_beside_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged versions, and versions deleted by force, do not count as expired."""
    lake = Lake()
    journal = await lake.create()
    for number in range(16):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=5)
    log = journal.follower.log
    for version in (8, 6, 5):
        await lake.storage.put(log.path(version), b"no root")
    assert await (await lake.open()).follower.oldest() == 5
    for version in (8, 6, 5):
        await lake.storage.delete(log.path(version))
    assert await (await lake.open()).follower.oldest() == 5


async def test_versions_on_both_sides_of_the_window_are_told_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 3)
    lake = Lake()
    journal = await lake.create()
    made = [(await lake.commit(journal, lake.namespace(f"n{number}"))) for number in range(8)]
    ids = {committed.version: committed.transaction_id for committed in made}
    await lake.expire(below=3)
    follower = journal.follower
    assert follower.window_start == 6
    for versions in ((6, 7, 8), (5, 6), (4, 5), (8, 5), (2, 3, 6), (1,), ()):
        for version, event in zip(versions, await follower.recorded_events(versions), strict=True):
            if version < 3:
                assert isinstance(event, Expired)
                assert event.oldest == 3
            else:
                assert isinstance(event, Event)
                assert event.version == version
                assert [recorded.id for recorded in event.transactions] == [ids[version]]
    await lake.storage.put(follower.log.path(4), b"no root")
    await raises(Corrupt, follower.recorded_events((4, 6)))


async def test_a_version_below_the_head_that_is_gone() -> None:
    lake = Lake()
    journal = await lake.create()
    for number in range(3):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    path = journal.follower.log.path(1)
    await lake.storage.delete(path)
    error = await raises(Corrupt, journal.load(1, [fmt.CATALOG]), kind="corrupt_history")
    assert error.path == path
    assert error.hint
    assert (await journal.info()).oldest_version == 0
    assert await model_of(journal)


@pytest.mark.parametrize("winner", ["ours", "another"])
async def test_an_own_root_is_waited_for_and_not_read_back(
    winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake()
    await lake.create()
    storage = FaultyStorage(lake.storage, no_faults)
    journal, rival = await lake.open(storage), await lake.open()
    published, answered = asyncio.Event(), asyncio.Event()
    publish = storage.publish

    async def slow(files: dict[str, bytes], slot: str, root: bytes) -> None:
        """Fill the slot well before the writer gets its answer."""
        if winner == "another" and not published.is_set():
            await lake.commit(rival, lake.namespace("theirs"))
        try:
            await publish(files, slot, root)
        finally:
            published.set()
            await answered.wait()

    monkeypatch.setattr(storage, "publish", slow)
    committing = asyncio.create_task(journal.commit(lake.transaction(journal, lake.namespace("mine"))))
    await published.wait()
    before = len(storage.log)
    refreshing = asyncio.create_task(journal.refresh())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not refreshing.done(), "a read that began after the slot was filled sees the version"
    answered.set()
    assert (await refreshing).version >= 1
    committed = await committing
    assert committed.version == (1 if winner == "ours" else 2)
    first = journal.follower.log.path(1)
    reads = [record.call for record in storage.log[before:] if record.call.method == "read"]
    # Another process's root is read twice: by the follower, and as the version below ours once ours is stored.
    assert sum(call.path == first for call in reads) == (0 if winner == "ours" else 2)


async def test_an_own_root_that_is_too_slow_is_read_back_and_accepted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader waits only a limited time for the answer to this process's own write, and the commit gets its answer."""
    monkeypatch.setattr(follower_module, "OWN_PATIENCE_SECONDS", 0.0)
    lake = Lake()
    await lake.create()
    storage = FaultyStorage(lake.storage, no_faults)
    journal = await lake.open(storage)
    await journal.load_state()
    published, answered = asyncio.Event(), asyncio.Event()
    publish = storage.publish

    async def slow(files: dict[str, bytes], slot: str, root: bytes) -> None:
        await publish(files, slot, root)
        published.set()
        await answered.wait()

    monkeypatch.setattr(storage, "publish", slow)
    committing = asyncio.create_task(journal.commit(lake.transaction(journal, lake.namespace("mine"))))
    await published.wait()
    assert (await journal.refresh()).version == 1
    assert not committing.done()
    answered.set()
    assert (await committing).version == 1
    follower = journal.follower
    assert (follower.accepted_count, follower.foreign_count) == (1, 0), "it was its own"
    assert [change.name.namespace for change in (await journal.event(1)).changes] == ["mine"]
    assert (await lake.commit(journal, lake.namespace("more"))).version == 2
    assert await model_of(journal) == await model_of(await lake.open())


# --- kept versions, and what memory knows of them --------------------------------------------------


async def lake_with(versions: int, *, expired_below: int = 0) -> tuple[Lake, Journal]:
    lake = Lake()
    journal = await lake.create()
    for number in range(1, versions + 1):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=expired_below)
    return lake, journal


async def test_what_has_expired_may_hide_what_was_made_at_the_time_of_the_oldest_that_is_kept() -> None:
    """A version is not made before the versions below it. So a transaction made later than a kept version is above this
    version."""
    lake, _ = await lake_with(6, expired_below=3)
    follower = (await lake.open()).follower
    made_at = (await follower.root(3)).created_at_millis
    assert await follower.find_cut(3, 0) is None, "all of that is kept"
    assert await follower.find_cut(2, made_at + 1) is None
    for sought in (made_at, made_at - 1, 0):  # 0 means any time
        hidden = await follower.find_cut(2, sought)
        assert isinstance(hidden, Expired)
        assert (hidden.version, hidden.oldest, hidden.path) == (2, 3, follower.log.path(2))
        assert hidden.hint == "the oldest version that is kept is 3"


@pytest.mark.parametrize("foreign_count", [1, 2])
async def test_the_clock_of_another_writer_does_not_tell_what_has_expired(foreign_count: int) -> None:
    lake, journal = await lake_with(2)
    for number in range(foreign_count):
        await foreign_commit(lake, journal, {f"f{number}": ""}, millis=5)
    await lake.expire(below=3)
    all_foreign = (await lake.open()).follower
    hidden = await all_foreign.find_cut(0, 10**15)
    assert isinstance(hidden, Expired), "nobody's clock tells"
    own = await lake.commit(journal, lake.namespace("own"))
    follower = (await lake.open()).follower
    assert await follower.find_cut(0, own.created_at_millis + 1) is None
    assert isinstance(await follower.find_cut(0, own.created_at_millis), Expired)


async def test_memory_knows_what_is_older_than_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 2)
    lake, journal = await lake_with(5)
    follower = journal.follower
    made_at = (await follower.root(4)).created_at_millis
    assert follower.window_start == 4
    assert [follower.known_before(made_at + more) for more in (-1, 0, 1)] == [None, None, 4]
    for number in range(2):
        await foreign_commit(lake, journal, {f"f{number}": ""}, millis=5)
    await journal.refresh()
    assert follower.known_before(10**15) is None, "the clock of another writer says nothing"
    assert (await lake.open()).follower.known_before(10**15) is None, "it has seen none"


@pytest.mark.parametrize("hint", [None, "0", "3", "5", "6", "7", "10", "11", "99"])
async def test_the_oldest_version_is_found_whatever_the_hint_says(hint: str | None) -> None:
    lake, _ = await lake_with(10, expired_below=6)
    await lake.storage.delete(fmt.OLDEST_HINT)
    if hint is not None:
        await lake.storage.put(fmt.OLDEST_HINT, hint.encode())
    storage = FaultyStorage(lake.storage, no_faults)
    follower = (await lake.open(storage)).follower
    storage.log.clear()
    assert await follower.oldest() == 6
    reads = [record.call.path for record in storage.log]
    if hint == "6":
        assert reads == [fmt.OLDEST_HINT, follower.log.path(6), follower.log.path(5)], (
            "one that is right saves the search"
        )
    error = await raises(Expired, follower.root(2))
    assert (error.oldest, error.hint) == (6, "the oldest version that is kept is 6")


@pytest.mark.parametrize("below", [5, 6, 7, 14])
@pytest.mark.parametrize("hinted", [False, True])
async def test_the_oldest_version_is_found_where_the_known_head_has_expired(below: int, hinted: bool) -> None:
    lake, _ = await lake_with(5)
    idle = (await lake.open()).follower
    journal = await lake.open()
    for number in range(9):
        await lake.commit(journal, lake.namespace(f"late{number}"))
    await lake.expire(below=below)
    if hinted:
        await lake.storage.put(fmt.OLDEST_HINT, str(below).encode())
    assert idle.head.version < below or below == 5
    error = await raises(Expired, idle.root(2))
    assert (error.oldest, error.hint) == (below, f"the oldest version that is kept is {below}")


async def test_nothing_has_expired_and_a_hint_says_so() -> None:
    lake, journal = await lake_with(4)
    assert await (await lake.open()).follower.oldest() == 0
    await lake.storage.put(fmt.OLDEST_HINT, b"0")
    assert await (await lake.open()).follower.oldest() == 0
    assert await journal.follower.oldest() == 0


async def test_reading_the_head_by_its_number_asks_nothing_of_the_storage() -> None:
    lake, _ = await lake_with(3)
    storage = FaultyStorage(lake.storage, no_faults)
    follower = (await lake.open(storage)).follower
    storage.log.clear()
    by_number, by_default = await follower.snapshot(3), await follower.snapshot()
    assert len(storage.log) == 0
    assert (by_number.version, by_default.version) == (3, 3)
    assert await by_number.entries() == await by_default.entries()
    assert len(await (await follower.snapshot(2)).entries()) == len(await by_number.entries()) - 1
    await raises(NotFound, follower.snapshot(4), kind="no_version")


async def test_a_jump_brings_back_what_was_in_memory() -> None:
    lake, journal = await lake_with(2)
    reader, bare = await lake.open(), await lake.open()
    await reader.load_state()
    for number in range(3, 8):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=7)
    assert (await reader.refresh()).version == (await bare.refresh()).version == 7
    assert reader.state is not None
    assert reader.state.version == 7
    assert reader.state.entries() == await (await reader.follower.snapshot()).entries()
    assert bare.state is None, "it had none"


async def test_what_was_known_before_a_jump_is_named_once_after_it() -> None:
    lake, journal = await lake_with(3)
    reader = await lake.open()
    for number in range(4, 7):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await reader.refresh()
    for number in range(7, 10):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=9)
    assert (await reader.refresh()).version == 9
    for name in ("n5", "n6", "n8"):
        mine = Stakes(lake.transaction(journal, lake.namespace(name), begin=3))
        assert list(reader.follower.find_concerning(mine)) == list(range(4, 10)), name


async def test_looks_at_the_head_are_counted_by_what_they_cost() -> None:
    lake, journal = await lake_with(1)
    reader = await lake.open()
    counts = reader.follower.probes
    assert (counts.started, counts.shared, counts.stale, counts.sole) == (0, 0, 0, 0)
    await asyncio.gather(*(reader.refresh() for _ in range(5)))
    assert (counts.started, counts.shared) == (1, 4)
    await reader.refresh()
    assert (counts.started, counts.shared, counts.stale, counts.sole) == (2, 4, 0, 0)
    assert (reader.follower.accepted_count, reader.follower.foreign_count) == (0, 0)
    await lake.commit(journal, lake.namespace("theirs"))
    await lake.commit(reader, lake.namespace("mine"))
    assert (reader.follower.accepted_count, reader.follower.foreign_count) == (2, 1)


async def test_a_store_that_was_put_back_is_refused_by_the_look_that_sees_it() -> None:
    lake, journal = await lake_with(2)
    before = {
        path: await lake.storage.read(path, size_max=1 << 20) for path in await listed(lake.storage, "")
    }
    await lake.commit(journal, lake.namespace("lost"))
    waiting = asyncio.create_task(journal.follower.wait_beyond(3))
    await asyncio.sleep(0)
    for path in await listed(lake.storage, ""):
        if path not in before:
            await lake.storage.delete(path)
    rival = await lake.open()
    for name in ("x", "y"):
        await lake.commit(rival, lake.namespace(name))
    error = await raises(Corrupt, journal.refresh(), kind="history_replaced")
    assert (error.version, error.path) == (3, journal.follower.log.path(3))
    assert journal.follower.is_replaced
    assert journal.head.version == 3, "nothing of the other history was taken"
    await raises(Corrupt, journal.refresh(), kind="history_replaced")
    waiting.cancel()


async def test_an_event_needs_the_version_before_it_and_the_first_one_needs_none() -> None:
    lake, journal = await lake_with(5)
    fresh = await lake.open()
    created = await fresh.event(0)
    assert [(change.type, change.name) for change in created.changes] == [("created", fmt.CATALOG)]
    assert [change.name.namespace for change in (await fresh.event(3)).changes] == ["n3"]
    await lake.expire(below=3)
    fresh = await lake.open()
    assert [change.name.namespace for change in (await fresh.event(4)).changes] == ["n4"]
    error = await raises(Expired, fresh.event(3))
    assert error.oldest == 3
    told = await fresh.follower.recorded_event(3)
    assert (told.version, told.changes) == (3, ()), "what it says itself did not go with the one before"
    assert told.token == (await journal.event(3)).token
    assert [recorded.id for recorded in told.transactions] == [
        recorded.id for recorded in (await journal.event(3)).transactions
    ]


# --- everything concurrently -----------------------------------------------------------------------


async def test_everything_at_once(lane_count: Callable[[int, int], int]) -> None:
    """Commits, refreshes, replays and readers interleave. Each reader sees every version once and in order."""
    for seed in range(lane_count(15, 2000)):
        lake = Lake(seed=seed)
        writer = await lake.create(order=3)
        journal = await lake.open(InterleavedStorage(lake.storage, seed, pauses_max=4))
        rng = random.Random(seed)
        done = asyncio.Event()

        async def commit(writer: Journal, names: str, lake: Lake = lake) -> None:
            for name in names:
                create = CreateNamespace(name=name, namespace_id=lake.identities.uuid4())
                begin = writer.head.version
                await writer.commit(
                    Transaction(id=lake.identities.uuid7(), begin_version=begin, operations=(create,))
                )
                await lake.commit(writer, DropNamespace(name=name))

        async def watch(journal: Journal = journal) -> list[int]:
            seen = []
            async for event in journal.events(after=0, follow=True):
                assert isinstance(event, Event)
                seen.append(event.version)
                if event.version == 16:
                    return seen
            raise AssertionError("the stream ended")

        async def disturb(journal: Journal = journal, done: asyncio.Event = done) -> None:
            while not done.is_set():
                await (journal.refresh() if rng.random() < 0.7 else journal.load_state())  # noqa: B023
                await asyncio.sleep(0)

        async def work(
            writer: Journal = writer, journal: Journal = journal, done: asyncio.Event = done
        ) -> None:
            await asyncio.gather(commit(writer, "abcd"), commit(journal, "wxyz"))
            done.set()

        watched, *_ = await asyncio.gather(watch(), work(), disturb(), disturb())
        assert watched == list(range(1, 17))
        await journal.refresh()
        state = journal.state or await journal.load_state()  # a quick run may have disturbed by probes only
        assert state.version == journal.head.version == 16
        assert state.entries() == await (await journal.follower.snapshot()).entries() == []
