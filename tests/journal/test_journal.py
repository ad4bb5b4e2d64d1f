"""A catalog through its public calls: creating, opening, reading, time travel, tokens, events, and histories of several
concurrent writers, which must equal a serial execution.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal import journal as journal_module
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
    Unavailable,
)
from alpheus_journal.format import Key, Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import (
    CheckSummary,
    Committed,
    Event,
    Finding,
    Progress,
    Timestamp,
    make_token,
)
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operation_messages import operations_digest
from alpheus_journal.model.operations import (
    DropNamespace,
    DropTable,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
)
from alpheus_journal.replay.follower import Follower
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    FakeClock,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    Lake,
    Model,
    apply_to_model,
    listed,
    model_of,
    raises,
    random_operation,
    scripted,
)
from alpheus_journal.testing.faults import FITTING


@pytest.fixture
def lake() -> Lake:
    return Lake()


async def findings(journal: Journal, after: int | None = None) -> list[Finding]:
    found = [item async for item in journal.check(after=after)]
    assert isinstance(found[-1], CheckSummary)
    assert found[-1].findings == len(found) - 1
    return [item for item in found if isinstance(item, Finding)]


async def all_events(journal: Journal, **options: object) -> list[Event | Progress]:
    return [event async for event in journal.events(**options)]  # type: ignore[arg-type]


# --- histories -------------------------------------------------------------------------------------


async def verify_history(storage: Storage, accepted: dict[str, tuple[Transaction, int]]) -> None:
    """Check all rules that any catalog, and the answers to its writers, must keep."""
    journal = await Journal.open(storage, clock=FakeClock(1 << 42))
    assert await findings(journal) == []
    head = journal.head.version
    # The log holds exactly the acknowledged transactions, once each, at their versions, and as they were requested.
    logged: dict[str, int] = {}
    model: Model = {}
    models: dict[int, Model] = {}
    folded: dict[Key, str] = {}
    created_at = 0
    events = await all_events(journal)
    assert [event.version for event in events] == list(range(head + 1))
    for event in events:
        assert isinstance(event, Event)
        assert event.created_at_millis >= created_at
        created_at = event.created_at_millis
        for transaction in event.transactions:
            assert transaction.id not in logged, "committed twice"
            logged[transaction.id] = event.version
            for action in transaction.actions:
                assert action.operation is not None
                apply_to_model(model, action.operation, transaction.id, models)
            if event.version:
                asked = accepted[transaction.id][0]
                done = [action.operation for action in transaction.actions if action.operation is not None]
                assert operations_digest(done) == operations_digest(asked.operations)
        for change in event.changes:
            if change.name.kind is Kind.CATALOG:
                continue
            key = journal.keys.key(change.name)
            assert folded.get(key, "") == change.path_before
            if change.path_after:
                folded[key] = change.path_after
            else:
                del folded[key]
        assert await model_of(journal, event.version) == model, f"version {event.version}"
        models[event.version] = dict(model)
        snapshot = await journal.follower.snapshot(event.version)
        assert await snapshot.entries() == sorted(folded.items())
    assert {id: version for id, (_, version) in accepted.items()} == {
        id: version for id, version in logged.items() if version
    }
    await verify_state_equals_tree(storage, head)
    await journal.close()


async def verify_state_equals_tree(storage: Storage, head: int) -> None:
    """Check that memory, replayed from version 0, equals the tree at every version."""
    journal = await Journal.open(storage)
    follower = journal.follower
    root = await follower.root(0)
    follower = Follower(follower.log, follower.reader, follower.catalog_id, root, follower.definition)
    state = await follower.load_state()
    for version in range(1, head + 1):
        await follower.take(version)
        snapshot = await follower.snapshot(version)
        assert follower.head.version == state.version == version
        assert state.entries() == await snapshot.entries()
        names = [journal.keys.parse(key) for key, _ in state.entries()] + [fmt.CATALOG]
        assert state.load(names) == await snapshot.load(names)


async def write_at_random(
    journal: Journal, lake: Lake, rng: random.Random, count: int, accepted: dict[str, tuple[Transaction, int]]
) -> None:
    begin, model = journal.head.version, await model_of(journal, journal.head.version)
    past = {begin: model}
    refused: Counter[str] = Counter()
    for _ in range(count):
        if rng.random() < 0.6:  # otherwise from an older version
            begin = (await journal.refresh()).version
            model = past[begin] = await model_of(journal, begin)
        mine = dict(model)
        operations = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            operation = random_operation(rng, mine, lake.identities, past)
            operations.append(operation)
            if rng.random() < 0.9:
                try:
                    apply_to_model(mine, operation, "", past)
                except (AssertionError, KeyError):
                    operations.pop()
        if not operations:
            continue
        transaction = lake.transaction(journal, *operations, begin=begin)
        lake.clock.millis += rng.choice((0, 1, 5, -3))
        try:
            committed = await journal.commit(transaction)
        except (Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput) as error:
            if "refers to itself" not in error.message:
                refused[error.kind] += 1
            continue
        assert not committed.duplicate
        accepted[transaction.id] = (transaction, committed.version)
        if rng.random() < 0.2:
            again = await journal.commit(transaction)
            assert again.duplicate
            assert (again.version, again.token) == (committed.version, committed.token)
    assert not refused["bad_argument"]


@pytest.mark.parametrize("digits", [32, 64])
async def test_random_histories_of_several_writers(
    digits: int, lane_count: Callable[[int, int], int]
) -> None:
    for seed in range(lane_count(8, 1000)):
        rng = random.Random(seed)
        lake = Lake(seed=seed)
        await lake.create(order=rng.choice((3, 4, 16)), version_digits=digits)
        accepted: dict[str, tuple[Transaction, int]] = {}
        writers = [await lake.open(InterleavedStorage(lake.storage, seed * 10 + n)) for n in range(3)]
        if rng.random() < 0.5:
            await writers[0].load_state()
        await asyncio.gather(
            *(
                write_at_random(journal, lake, random.Random(seed * 100 + n), 12, accepted)
                for n, journal in enumerate(writers)
            )
        )
        assert len(accepted) >= 5, "the history is too tame"
        await verify_history(lake.storage, accepted)
        for journal in writers:
            await journal.close()


async def test_history_on_local_disk(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(1, 50)):
        path = str(tmp_path / str(seed))
        first = await asyncio.to_thread(LocalStorage, path, create=True)
        lake = Lake(first, seed=seed)
        await lake.create(order=4)
        accepted: dict[str, tuple[Transaction, int]] = {}
        stores = [await asyncio.to_thread(LocalStorage, path) for _ in range(3)]
        writers = [await lake.open(storage) for storage in stores]
        await asyncio.gather(
            *(
                write_at_random(journal, lake, random.Random(seed * 100 + n), 8, accepted)
                for n, journal in enumerate(writers)
            )
        )
        await verify_history(first, accepted)
        for journal in writers:
            await journal.close()


@pytest.mark.parametrize("state", [False, True])
async def test_groups_of_several_writers(state: bool, lane_count: Callable[[int, int], int]) -> None:
    """Writers act like daemons: they commit groups, and a refusal that depends on unpublished members goes first into
    the next group."""
    seeds, accepted_count = lane_count(5, 500), 0
    for seed in range(seeds):
        lake = Lake(seed=seed)
        await lake.create(order=4)
        accepted: dict[str, tuple[Transaction, int]] = {}

        async def daemon(journal: Journal, rng: random.Random) -> None:
            if state:
                await journal.load_state()
            waiting: list[Transaction] = []
            past: dict[int, Model] = {}
            for _ in range(6):
                model = past[journal.head.version] = await model_of(journal, journal.head.version)
                for _ in range(rng.randint(1, 6)):
                    operations = [
                        random_operation(rng, model, lake.identities, past)  # noqa: B023
                        for _ in range(rng.choice((1, 1, 1, 2)))
                    ]
                    waiting.append(lake.transaction(journal, *operations))  # noqa: B023
                while waiting:
                    answers = await journal.commit_group(waiting)
                    for transaction, answer in zip(waiting, answers, strict=True):
                        if isinstance(answer, Committed):
                            assert not answer.duplicate
                            accepted[transaction.id] = (transaction, answer.version)  # noqa: B023
                    waiting = [t for t, answer in zip(waiting, answers, strict=True) if answer is None]

        writers = [await lake.open(InterleavedStorage(lake.storage, seed * 10 + n)) for n in range(2)]
        await asyncio.gather(
            *(daemon(journal, random.Random(seed * 100 + n)) for n, journal in enumerate(writers))
        )
        accepted_count += len(accepted)
        await verify_history(lake.storage, accepted)
    assert accepted_count >= 5 * seeds


# --- creating and opening --------------------------------------------------------------------------


async def test_create(lake: Lake) -> None:
    journal = await lake.create(properties={"owner": "me"}, principal="root")
    info = await journal.info()
    assert (info.version, info.oldest_version, info.version_digits) == (0, 0, 32)
    assert info.definition.properties == {"owner": "me"}
    (event,) = await all_events(journal)
    assert isinstance(event, Event)
    assert [(str(c.name), c.type, c.path_before) for c in event.changes] == [("the catalog", "created", "")]
    assert event.transactions[0].principal == "root"
    assert [action.type for action in event.transactions[0].actions] == ["CATALOG_CREATE"]
    assert await findings(journal) == []
    for digits in (32, 64):
        await raises(AlreadyExists, lake.create(version_digits=digits), kind="catalog_exists")


async def test_create_beside_other_files_changes_nothing() -> None:
    lake = Lake()
    await lake.storage.put("notes/readme", b"mine")
    error = await raises(NotEmpty, lake.create(), kind="directory_not_empty")
    assert "notes/readme" in str(error)
    assert error.hint
    assert list(await listed(lake.storage, "")) == ["notes/readme"]


async def test_large_properties_of_a_new_catalog_go_to_a_file_of_their_own(lake: Lake) -> None:
    properties = {"doc": "d" * 20_000}
    journal = await lake.create(properties=properties)
    assert len(await listed(lake.storage, "action/")) == 1
    assert await findings(await lake.open()) == []
    assert (await journal.info()).definition.properties == properties


@pytest.mark.parametrize(
    "options",
    [
        {"order": 2},
        {"order": 2000},
        {"version_digits": 16},
        {"node_file_size_max": 10},
        {"name_size_max": 0},
        {"name_size_max": 5000},
        {"order": 1024, "name_size_max": 1024},
        {"properties": {"": "x"}},
        {"properties": {"x": "y" * 100_000}},
        {"properties": {"x": "\ud800"}},
        {"principal": "\ud800"},
    ],
)
async def test_create_refuses_what_does_not_fit(lake: Lake, options: dict[str, object]) -> None:
    await raises(InvalidInput, lake.create(**options))
    assert await listed(lake.storage, "") == {}


async def test_one_of_two_creators_wins(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(12, 1000)):
        lake = Lake(seed=seed)

        async def create(number: int, lake: Lake = lake, seed: int = seed) -> Journal:
            storage = InterleavedStorage(lake.storage, seed * 10 + number)
            return await Journal.create(storage, clock=lake.clock, identities=lake.identities)

        results = await asyncio.gather(*(create(n) for n in range(3)), return_exceptions=True)
        journals = [result for result in results if isinstance(result, Journal)]
        assert len(journals) == 1
        assert all(isinstance(r, AlreadyExists | NotEmpty) for r in results if not isinstance(r, Journal))
        assert (await lake.open()).catalog_id == journals[0].catalog_id


@pytest.mark.parametrize("fault", sorted(FITTING["create"], key=lambda fault: fault.value))
async def test_create_is_settled_when_its_reply_is_lost(lake: Lake, fault: Fault) -> None:
    plain = FaultyStorage(MemoryStorage())
    await Journal.create(plain, clock=lake.clock, identities=lake.identities)
    slot = next(r.call.number for r in plain.log if r.call.method == "create")
    storage = FaultyStorage(MemoryStorage(), scripted({slot: fault}), late_after=1)
    try:
        journal = await Journal.create(storage, clock=lake.clock, identities=lake.identities)
    except Unavailable:
        assert fault is Fault.FAIL_BEFORE
        assert not await storage.exists("vn/" + "0" * 32)
        return
    assert fault is not Fault.FAIL_BEFORE
    assert await findings(journal) == []


async def test_there_is_no_catalog(lake: Lake) -> None:
    error = await raises(NotFound, lake.open(), kind="no_catalog")
    assert lake.storage.url in str(error)
    await lake.storage.put("vn/latest", b"0")
    await raises(NotFound, lake.open(), kind="no_catalog")
    await lake.storage.put("vn/1" + "0" * 31, b"x")
    await raises(AlpheusError, lake.open(), kind="corrupt_history")


async def test_two_histories_are_refused(lake: Lake) -> None:
    await lake.create()
    await lake.storage.put("vn/" + "0" * 64, b"x")
    error = await raises(InvalidInput, lake.open(), kind="two_histories")
    assert error.hint


# --- names -----------------------------------------------------------------------------------------

NAMES = ["a", "ab", "a-b", "a_b", "b", "b+", "z", "ä", "äö", "ß", "名前", "𝄞", "𝄞𝄞", "名𝄞", "+x", "!", "~"]


@pytest.mark.parametrize("digits", [32, 64])
@pytest.mark.parametrize("with_state", [False, True])
async def test_names_of_all_sorts(lake: Lake, digits: int, with_state: bool) -> None:
    journal = await lake.create(order=3, version_digits=digits)
    if with_state:
        await journal.load_state()
    for name in NAMES:
        await lake.commit(journal, lake.namespace(name))
    await lake.commit(journal, *(lake.table("名𝄞", name) for name in NAMES))
    expected = sorted(NAMES)
    fresh = await lake.open()
    for reader in (journal, fresh):
        assert (await reader.list(None, Kind.NAMESPACE)).names == tuple(expected)
        assert (await reader.list(None, Kind.TABLE, namespace="名𝄞")).names == tuple(expected)
        assert (await reader.list(None, Kind.TABLE, namespace="𝄞")).names == ()
        for prefix in (*NAMES, "zz", "名", "\U0010ffff", "*", "%", "a*", "é"):
            page = await reader.list(None, Kind.TABLE, namespace="名𝄞", prefix=prefix)
            assert page.names == tuple(n for n in expected if n.startswith(prefix)), prefix
        for limit in (1, 2, 5, 17):
            for after in ("", *NAMES, "m", "名"):
                page = await reader.list(None, Kind.NAMESPACE, limit=limit, after=after)
                rest = [n for n in expected if n > after]
                assert page.names == tuple(rest[:limit])
                assert page.more == (len(rest) > limit)
        loaded = await reader.load(None, [fmt.table_name("名𝄞", name) for name in [*NAMES, "none"]])
        assert [stored is not None for stored in loaded.objects] == [True] * len(NAMES) + [False]
    await lake.commit(journal, *(DropTable(namespace="名𝄞", name=name) for name in NAMES[::2]))
    await lake.commit(journal, *(DropTable(namespace="名𝄞", name=name) for name in NAMES[1::2]))
    await lake.commit(journal, *(DropNamespace(name=name) for name in NAMES))
    assert (await fresh.list(None, Kind.NAMESPACE)).names == ()
    assert await findings(fresh) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "empty"), ("a b", "U+0020"), ("x" * 101, "101 bytes"), ("\ud800", "surrogate"), ("a/b", "'/'"),
     ("..", "dot"), ("e\u0301", "normal form"), ("a\u202eb", "U+202E"), ("ä" * 51, "102 bytes")],
)  # fmt: skip
async def test_forbidden_names_change_nothing(lake: Lake, name: str, reason: str) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    for operation in (lake.namespace(name), lake.table("a", name)):
        error = await raises(InvalidInput, lake.commit(journal, operation), kind="bad_name")
        assert reason in str(error)
        assert error.hint
    assert journal.head.version == 1


async def test_bad_listings(lake: Lake) -> None:
    journal = await lake.create()
    await raises(NotFound, journal.list(None, Kind.TABLE, namespace="a"), kind="no_namespace")
    await raises(InvalidInput, journal.list(None, Kind.TABLE, namespace=""), kind="bad_name")
    await raises(InvalidInput, journal.list(None, Kind.CATALOG))
    await raises(InvalidInput, journal.list(None, Kind.NAMESPACE, limit=-1))
    await lake.commit(journal, lake.namespace("a"))
    for text in ("a ", " ", "\0", "x" * 101, "\ud800"):  # "a " would match the padding of "a"
        await raises(InvalidInput, journal.list(None, Kind.NAMESPACE, after=text), kind="bad_name")
        await raises(InvalidInput, journal.list(None, Kind.NAMESPACE, prefix=text), kind="bad_name")
    await raises(NotFound, journal.list(7, Kind.NAMESPACE), kind="no_version")
    await raises(InvalidInput, journal.list(-1, Kind.NAMESPACE), kind="bad_version")


# --- time travel -----------------------------------------------------------------------------------


async def test_versions_by_time(lake: Lake) -> None:
    journal = await lake.create()
    start = lake.clock.millis
    times = [start]
    for number, step in enumerate((0, 0, 10, -5, 1000, 0, -3000, 7)):
        lake.clock.millis += step
        await lake.commit(journal, lake.namespace(f"n{number}"))
        times.append(max(times[-1], lake.clock.millis))
    for version, time in enumerate(times):
        assert (await journal.resolve(version)).created_at_millis == time
    for millis in range(start, start + 1020):
        expected = max(version for version, time in enumerate(times) if time <= millis)
        if millis in times or millis + 1 in times or millis - 1 in times:
            assert (await journal.resolve(Timestamp(millis))).version == expected
    newest = max(times[-1], lake.clock.millis) + 60_000
    assert (await journal.resolve(Timestamp(newest))).version == len(times) - 1
    for millis in (newest + 1, 1 << 60):
        await raises(InvalidInput, journal.resolve(Timestamp(millis)), kind="future_version")
    await raises(NotFound, journal.resolve(Timestamp(start - 1)), kind="no_version")
    await lake.expire(below=4)
    assert (await journal.resolve(Timestamp(times[4]))).version == 4
    error = await raises(Expired, journal.resolve(Timestamp(start)), kind="version_expired")
    assert error.oldest == 4
    assert "4" in str(error)


async def test_a_clock_behind_the_head_goes_on_after_it(lake: Lake) -> None:
    journal = await lake.create()
    lake.clock.millis += 100_000
    first = await lake.commit(journal, lake.namespace("a"))
    for _ in range(5):
        await asyncio.sleep(0)  # the hint, for which the clock moves on
    lake.clock.millis = first.created_at_millis - 60_000
    second = await lake.commit(journal, lake.namespace("b"))
    assert second.created_at_millis == first.created_at_millis
    assert journal.head_ahead_millis == 0
    for _ in range(5):
        await asyncio.sleep(0)
    lake.clock.millis = first.created_at_millis - 60_001
    assert journal.head_ahead_millis == 60_001
    lake.clock.millis -= 100_000
    for number in range(1, 4):
        committed = await lake.commit(journal, lake.namespace(f"c{number}"))
        assert committed.created_at_millis == first.created_at_millis + number
    assert (await lake.open()).head.version == 5


async def test_ids_from_the_future_are_refused(lake: Lake) -> None:
    journal = await lake.create()
    lake.clock.millis += 60_001
    transaction = lake.transaction(journal, lake.namespace("a"))
    lake.clock.millis -= 60_001
    await raises(InvalidInput, journal.commit(transaction), kind="clock_skew")


async def test_old_versions_stay_as_they_were(lake: Lake) -> None:
    journal = await lake.create(order=3)
    models = [await model_of(journal)]
    for number in range(12):
        await lake.commit(journal, lake.namespace(f"n{number}"), UpdateCatalog(set={"n": str(number)}))
        models.append(await model_of(journal))
    for reader in (journal, await lake.open()):
        for version, model in enumerate(models):
            assert await model_of(reader, version) == model


# --- expired versions ------------------------------------------------------------------------------


async def test_expired_versions(lake: Lake) -> None:
    journal = await lake.create()
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    tokens = [(await journal.resolve(version)).token for version in range(7)]
    await lake.expire(below=4)
    fresh = await lake.open()
    assert (await fresh.info()).oldest_version == 4
    for version in range(4):
        for call in (fresh.resolve(version), fresh.load(version, [fmt.CATALOG]), fresh.event(version)):
            error = await raises(Expired, call, kind="version_expired")
            assert error.oldest == 4
            assert "4" in error.hint
    await raises(Expired, fresh.event(4))  # version 3, needed for the difference, is gone
    assert [e.version for e in await all_events(fresh)] == [5, 6]
    for after in (-1, 0, 2, 3, tokens[1], tokens[3]):
        await raises(Expired, all_events(fresh, after=after))
    assert [e.version for e in await all_events(fresh, after=tokens[4])] == [5, 6]
    assert [entry.version async for entry in fresh.log()] == [6, 5, 4]
    with pytest.raises(Expired):
        _ = [entry async for entry in fresh.log(after=1)]
    assert [entry.version async for entry in fresh.log(after=4, until=5)] == [5]
    assert await findings(fresh) == []
    # A transaction that began below the kept versions cannot be judged.
    stale = lake.transaction(fresh, lake.namespace("late"), begin=2)
    await raises(Expired, fresh.commit(stale))
    await raises(AlreadyExists, lake.create(), kind="catalog_exists")


@pytest.mark.parametrize("hint", [b"0", b"2", b"4", b"5", b"6", b"99", b"x", None])
async def test_the_oldest_version_whatever_the_hint_says(lake: Lake, hint: bytes | None) -> None:
    journal = await lake.create()
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await lake.expire(below=4)
    if hint is not None:
        await lake.storage.put(fmt.OLDEST_HINT, hint)
    assert (await journal.info()).oldest_version == 4


# --- tokens ----------------------------------------------------------------------------------------


async def test_tokens(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    info = await journal.info()
    assert info.token == (await journal.resolve(None)).token == (await journal.resolve(1)).token
    assert await all_events(journal, after=info.token) == []
    other = await Lake(seed=1).create()
    bad = [
        "", "x", "a.b.c", f"{info.catalog_id}.-1.x", f"{info.catalog_id}.1.", "x" * 500, "..",
        (await other.info()).token,
        make_token(info.catalog_id, 1, lake.identities.uuid4()),
        make_token(info.catalog_id, 2, lake.identities.uuid4()),
        make_token(info.catalog_id, 1 << 70, lake.identities.uuid4()),
    ]  # fmt: skip
    for reader in (journal, await lake.open()):
        for token in bad:
            await raises(InvalidInput, all_events(reader, after=token), kind="bad_token")


async def test_a_replaced_history_is_noticed() -> None:
    """A bucket was restored to an older state, and then written to."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    copy = MemoryStorage()
    for path in await listed(lake.storage, ""):
        await copy.put(path, await lake.storage.read(path, size_max=1 << 20))
    lost = await lake.commit(journal, lake.namespace("b"))
    restored = await lake.open(copy)
    error = await raises(InvalidInput, all_events(restored, after=lost.token), kind="bad_token")
    assert error.hint
    await lake.commit(restored, lake.namespace("c"))
    await raises(InvalidInput, all_events(restored, after=lost.token), kind="bad_token")


# --- events and the log ----------------------------------------------------------------------------


async def test_events_with_details_and_filters(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a", p="1"))
    await lake.commit(journal, lake.table("a", "t"), lake.namespace("b"))
    await lake.commit(journal, UpdateNamespace(name="a", set={"p": "2"}))
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, UpdateCatalog(set={"x": "y"}))
    for reader in (journal, await lake.open()):
        events = await all_events(reader, details=True)
        told = [[(str(c.name), c.type) for c in e.changes] for e in events if isinstance(e, Event)]
        assert told == [
            [("the catalog", "created")],
            [("namespace a", "created")],
            [("namespace b", "created"), ("table a.t", "created")],
            [("namespace a", "updated")],
            [("table a.t", "dropped")],
            [("the catalog", "updated")],
        ]
        assert isinstance(events[3], Event)
        (change,) = events[3].changes
        before, after = (
            decode_definition(Kind.NAMESPACE, data or b"", "")
            for data in (change.definition_before, change.definition_after)
        )
        assert isinstance(before, NamespaceDef)
        assert isinstance(after, NamespaceDef)
        assert (before.properties, after.properties) == ({"p": "1"}, {"p": "2"})
        assert isinstance(events[4], Event)
        assert events[4].changes[0].definition_before is not None
        assert events[4].changes[0].definition_after is None
        for chosen, versions in (
            (EventFilter(namespaces=frozenset({"a"})), [1, 2, 3, 4]),
            (EventFilter(namespaces=frozenset({"b"})), [2]),
            (EventFilter(kinds=frozenset({Kind.TABLE})), [2, 4]),
            (EventFilter(kinds=frozenset({Kind.CATALOG})), [0, 5]),
            (EventFilter(names=frozenset({"a.t"})), [2, 4]),
            (EventFilter(names=frozenset({"a"}), kinds=frozenset({Kind.TABLE})), []),
        ):
            for until in (None, 3, 9):
                got = await all_events(reader, filter=chosen, until=until)
                end = 5 if until is None else min(until, 5)
                assert [e.version for e in got if isinstance(e, Event)] == [v for v in versions if v <= end]
                assert [e.version for e in got] == sorted({e.version for e in got})
                assert got[-1].version == end, "the end is marked"
        only = (await all_events(reader, filter=EventFilter(namespaces=frozenset({"b"}))))[0]
        assert isinstance(only, Event)
        assert [str(c.name) for c in only.changes] == ["namespace b"]
        assert len(only.transactions[0].actions) == 2, "events are whole"


async def test_progress_while_nothing_matches(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PROGRESS_VERSIONS_MAX", 3)
    journal = await lake.create()
    for number in range(10):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    chosen = EventFilter(names=frozenset({"n4"}))  # version 5
    marks = [(e.version, type(e).__name__) for e in await all_events(journal, filter=chosen)]
    assert marks == [(2, "Progress"), (5, "Event"), (8, "Progress"), (10, "Progress")]


async def test_events_between_bounds(lake: Lake) -> None:
    journal = await lake.create()
    for number in range(4):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    tokens = [(await journal.resolve(version)).token for version in range(5)]
    for after in (None, *range(-1, 5)):
        for until in (None, *range(-1, 7)):
            start = -1 if after is None else after
            expected = list(range(start + 1, min(4, 4 if until is None else until) + 1))
            assert [e.version for e in await all_events(journal, after=after, until=until)] == expected
            if start >= 0:
                by_token = await all_events(journal, after=tokens[start], until=until)
                assert [e.version for e in by_token] == expected
    await raises(InvalidInput, all_events(journal, after=5), kind="future_version")
    await raises(InvalidInput, all_events(journal, after=-2), kind="bad_version")


async def test_following_another_writer(lake: Lake) -> None:
    writer = await lake.create()
    reader = await lake.open()
    stream = reader.events(follow=True)
    first = await anext(stream)
    assert first.version == 0
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    for number in range(3):
        await lake.commit(writer, lake.namespace(f"n{number}"))
    assert (await waiting).version == 1
    assert [(await anext(stream)).version for _ in range(2)] == [2, 3]
    assert isinstance(stream, AsyncIterator)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_follower_of_events_asks_the_store_no_sooner_than_its_delay(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "POLL_DELAY_MIN_SECONDS", 3600.0)
    writer = await lake.create()
    reader = await lake.open()
    stream = reader.events(after=0, follow=True)
    await lake.commit(writer, lake.namespace("first"))
    assert (await reader.refresh()).version == 1
    asked = reader.follower.probes.started
    assert (await anext(stream)).version == 1
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert reader.follower.probes.started == asked, "the last probe has just found no newer version"
    await lake.commit(writer, lake.namespace("second"))
    await reader.refresh()
    assert (await waiting).version == 2, "a version that another caller finds is handed out at once"
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_follower_paused_over_tombstones_goes_on_at_the_head(lake: Lake) -> None:
    for with_state in (False, True):
        lake = Lake()
        writer = await lake.create()
        reader = await lake.open()
        if with_state:
            await reader.load_state()
        stream = reader.events(after=0, follow=True)
        for number in range(6):
            await lake.commit(writer, lake.namespace(f"n{number}"))
        await lake.expire(below=4)
        with pytest.raises(Expired):
            await anext(stream)
        assert (await reader.refresh()).version == 6
        assert await model_of(reader) == await model_of(writer)
        if with_state:
            assert reader.state is not None
            assert reader.state.version == 6
        assert [e.version for e in await all_events(reader)] == [5, 6]
        await lake.commit(reader, lake.namespace("last"))
        assert await findings(reader) == []


async def test_log(lake: Lake) -> None:
    journal = await lake.create()
    transactions = [lake.transaction(journal, lake.namespace(f"n{n}"), begin=0) for n in range(3)]
    assert all(isinstance(a, Committed) for a in await journal.commit_group(transactions))
    await lake.commit(journal, UpdateNamespace(name="n1", set={"a": "b"}))
    for reader in (journal, await lake.open()):
        entries = [entry async for entry in reader.log()]
        assert [entry.version for entry in entries] == [2, 1, 1, 1, 0]
        assert [e.transaction.id for e in entries[1:4]] == [t.id for t in reversed(transactions)]
        about = [e.version async for e in reader.log(name=fmt.namespace_name("n1"))]
        assert about == [2, 1]
        assert [e.version async for e in reader.log(after=0, until=1)] == [1, 1, 1]
        assert [e.version async for e in reader.log(after=2)] == []
        for bad in (-2, -100):
            with pytest.raises(InvalidInput):
                _ = [entry async for entry in reader.log(after=bad)]
        with pytest.raises(NotFound):
            _ = [entry async for entry in reader.log(until=9)]


# --- hints -----------------------------------------------------------------------------------------


async def test_the_hint_is_written_after_commits_and_on_close(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert await lake.storage.read(fmt.LATEST_HINT, size_max=99) == b"1"
    await lake.commit(journal, lake.namespace("b"))
    await journal.close()
    await journal.close()
    assert await lake.storage.read(fmt.LATEST_HINT, size_max=99) == b"2"


# --- loading the state while others write ----------------------------------------------------------


@given(seed=st.integers(0, 1 << 32))
def test_loading_the_state_while_the_head_moves(seed: int) -> None:
    async def run() -> None:
        lake = Lake(seed=seed)
        writer = await lake.create(order=3)
        for number in range(8):
            await lake.commit(writer, lake.namespace(f"n{number}"))
        reader = await lake.open(InterleavedStorage(lake.storage, seed))

        async def write() -> None:
            for number in range(8, 16):
                await lake.commit(writer, lake.namespace(f"n{number}"), DropNamespace(name=f"n{number - 8}"))
                await asyncio.sleep(0)

        async def follow() -> None:
            for _ in range(10):
                await reader.refresh()
                await asyncio.sleep(0)

        await asyncio.gather(write(), follow(), reader.load_state(), follow(), reader.load_state())
        await reader.refresh()
        state = reader.state
        assert state is not None
        assert state.version == writer.head.version
        assert state.entries() == await (await writer.follower.snapshot()).entries()
        assert all(
            stored is not None for stored in state.load([fmt.namespace_name(f"n{n}") for n in range(8, 16)])
        )

    asyncio.run(run())


async def test_catalog_definition_is_the_versions_own(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, UpdateCatalog(set={"a": "1"}))
    await lake.commit(journal, UpdateCatalog(unset=("a",)))
    found = []
    for version in range(3):
        (stored,) = (await journal.load(version, [fmt.CATALOG])).objects
        assert stored is not None
        definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
        assert isinstance(definition, CatalogDef)
        found.append(definition.properties)
    assert found == [{}, {"a": "1"}, {}]
