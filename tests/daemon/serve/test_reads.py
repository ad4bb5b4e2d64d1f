"""Reads through daemons: linearizable, within a bound, never behind a session; lookups in bytes; snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus.session.remote import RemoteAccess
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.serve.lookups import LoadCache
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, Unavailable
from alpheus_journal.format import CATALOG, Kind, ObjectName, namespace_name, table_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import (
    LATEST,
    Latest,
    LiveObject,
    Loaded,
    SnapshotPart,
    StoredObject,
    Timestamp,
    make_token,
)
from alpheus_journal.model.operations import DropNamespace, DropTable, RenameObject, UpdateNamespace
from alpheus_journal.replay import snapshot_parts as live
from alpheus_journal.replay.flat import pack_name
from alpheus_journal.testing import Lake, model_of, raises, random_operation
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

STALE = Latest(staleness_millis=1_000_000_000)
"""Accepts any version since the start of the test."""


class Daemon:
    def __init__(self, journal: Journal, address: str, access: RemoteAccess) -> None:
        self.journal = journal
        self.address = address
        self.access = access


@asynccontextmanager
async def daemon_on(lake: Lake, *, timeout: float = 30.0, **settings: Any) -> AsyncIterator[Daemon]:  # noqa: ASYNC109
    """Run a daemon with its own journal that polls for versions of other writers only once."""
    quiet = (
        {}
        if settings.get("sole_writer")
        else {"poll_interval_min_ms": 60_000, "poll_interval_max_ms": 60_000}
    )
    config = Config(url="memory://test", **{"listen": "127.0.0.1:0", **quiet, **settings})
    journal = await lake.open()
    await journal.load_state()
    async with running(config, journal) as address:
        access = RemoteAccess(f"grpc://{address}", timeout=timeout)
        try:
            await access.info()
            yield Daemon(journal, address, access)
        finally:
            await access.close()


@pytest.fixture
def lake() -> Lake:
    return Lake()


async def namespaces(daemon: Daemon, at: Any) -> tuple[int, tuple[str, ...]]:
    page = await daemon.access.list(at, Kind.NAMESPACE)
    return page.version, page.names


# --- which version ---------------------------------------------------------------------------------


async def test_the_default_misses_nothing_and_a_bound_is_kept(lake: Lake) -> None:
    journal = await lake.create()
    async with daemon_on(lake) as daemon:
        await daemon.access.resolve(None)  # a probe; the daemon's own probe comes after a minute
        await lake.commit(journal, lake.namespace("a"))
        probes = daemon.journal.follower.probes
        started, spared = probes.started, probes.stale
        assert await namespaces(daemon, STALE) == (0, ())
        assert (await daemon.access.resolve(STALE)).version == 0
        assert (await daemon.access.load(STALE, [namespace_name("a")])).objects == (None,)
        assert (probes.started, probes.stale) == (started, spared + 3)
        assert await namespaces(daemon, Latest(staleness_millis=0)) == (1, ("a",)), "nothing is that fresh"
        assert probes.started == started + 1
        await lake.commit(journal, lake.namespace("b"))
        assert await namespaces(daemon, None) == (2, ("a", "b"))
        await lake.commit(journal, lake.namespace("c"))
        (found,) = (await daemon.access.load(None, [namespace_name("c")])).objects
        assert found is not None


async def test_who_asks_at_once_shares_a_probe(lake: Lake) -> None:
    await lake.create()
    async with daemon_on(lake) as daemon:
        exists, gate, first = daemon.journal.storage.exists, asyncio.Event(), asyncio.Event()
        asked = 0

        async def held(path: str) -> bool:
            nonlocal asked
            asked += 1
            first.set()
            await gate.wait()
            return await exists(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(daemon.journal.storage, "exists", held)
            readers = [asyncio.create_task(daemon.journal.resolve(None)) for _ in range(50)]
            await first.wait()
            assert asked == 1, "one, which began when all of them had asked"
            shared = daemon.journal.follower.probes.shared
            later = [asyncio.create_task(daemon.journal.resolve(None)) for _ in range(50)]
            await asyncio.sleep(0)
            assert daemon.journal.follower.probes.shared == shared + 49
            gate.set()
            await asyncio.gather(*readers, *later)
        assert asked == 2, "and one for all who came while it ran"


async def test_a_session_never_goes_back_across_daemons(lake: Lake) -> None:
    journal = await lake.create()
    async with daemon_on(lake) as one, daemon_on(lake) as other:
        committed = await one.access.commit(lake.transaction(journal, lake.namespace("a")))
        assert await namespaces(other, STALE) == (0, ()), "within its bound, and behind"
        seen = Latest(STALE.staleness_millis, committed.token)
        assert await namespaces(other, seen) == (1, ("a",))
        assert await namespaces(other, STALE) == (1, ("a",))
        for answer in (
            await other.access.list(seen, Kind.NAMESPACE),
            await other.access.load(seen, [CATALOG]),
            await other.access.resolve(seen),
        ):
            assert (answer.version, answer.token) == (1, committed.token)
        pinned = await other.access.load(1, [CATALOG])
        assert pinned.token == "", "who names a version knows it"


@pytest.mark.parametrize("sole_writer", [False, True])
@pytest.mark.parametrize("staleness", [None, STALE.staleness_millis])
async def test_tokens_of_another_history(lake: Lake, staleness: int | None, sole_writer: bool) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.namespace("b"))
    other = "00000000-0000-4000-8000-000000000000"
    async with daemon_on(lake, sole_writer=sole_writer) as daemon:
        await daemon.access.resolve(None)
        id, head = daemon.journal.catalog_id, daemon.journal.head
        for token in (
            make_token(other, 2, head.commit_id),
            make_token(id, 2, other),
            make_token(id, 1, head.commit_id),
            "no token",
        ):
            at = Latest(staleness, token)
            for call in (
                daemon.access.load(at, [CATALOG]),
                daemon.access.list(at, Kind.NAMESPACE),
                daemon.access.resolve(at),
            ):
                await raises(InvalidInput, call, kind="bad_token")
        unseen = Latest(staleness, make_token(id, 3, head.commit_id))
        for call in (
            daemon.access.load(unseen, [CATALOG]),
            daemon.access.list(unseen, Kind.NAMESPACE),
            daemon.access.resolve(unseen),
        ):
            await raises(Corrupt, call, kind="head_missing")
        # Any caller can forge a token, so a forged token must not block other callers.
        await lake.commit(daemon.journal, lake.namespace("c"))
        older = (await daemon.access.resolve(1)).token
        for _ in range(2):
            assert (await daemon.access.resolve(Latest(staleness, older))).version == 3


async def test_the_only_writer_looks_for_nothing_but_what_it_is_told(lake: Lake) -> None:
    journal = await lake.create()
    async with daemon_on(lake, sole_writer=True) as daemon:
        started = daemon.journal.follower.probes.started
        token = (await lake.commit(journal, lake.namespace("a"))).token
        for at in (None, STALE, Latest(0), Timestamp(journal.head.created_at_millis + 60_000)):
            assert await namespaces(daemon, at) == (0, ())
            assert (await daemon.access.load(at, [CATALOG])).version == 0
        assert (await daemon.access.info()).version == 0
        assert daemon.journal.follower.probes.started == started
        # A token of a newer version shows the daemon that it is not the only writer.
        assert await namespaces(daemon, Latest(None, token)) == (1, ("a",))
        assert (await daemon.access.resolve(1)).version == 1


async def test_an_outage(lake: Lake) -> None:
    journal = await lake.create()
    committed = await lake.commit(journal, lake.namespace("a"))
    async with daemon_on(lake) as daemon:
        await daemon.access.resolve(None)

        async def down(*_: object, **__: object) -> bool:
            raise Unavailable("the storage is away")

        with pytest.MonkeyPatch.context() as patch:
            for name in ("exists", "read", "read_many"):
                patch.setattr(daemon.journal.storage, name, down)
            for at in (STALE, Latest(STALE.staleness_millis, committed.token)):
                assert await namespaces(daemon, at) == (1, ("a",))
                (found,) = (await daemon.access.load(at, [namespace_name("a")])).objects
                assert found is not None
            for exact in (None, Latest(0), Latest(None, committed.token)):
                await raises(Unavailable, daemon.access.load(exact, [CATALOG]), kind="storage_unavailable")
        assert await namespaces(daemon, None) == (1, ("a",))


async def test_a_storage_that_hangs_is_told_before_the_deadline(lake: Lake) -> None:
    await lake.create()
    async with daemon_on(lake, timeout=1.0) as daemon:

        async def hang(path: str) -> bool:
            return await asyncio.Future()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(daemon.journal.storage, "exists", hang)
            for call in (daemon.access.load(None, [CATALOG]), daemon.access.list(None, Kind.NAMESPACE)):
                error = await raises(Unavailable, call, kind="storage_unavailable")
                assert "no answer within" in error.message
            assert await namespaces(daemon, STALE) == (0, ())


async def test_a_replaced_history_ends_stale_reads_too(lake: Lake) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    async with daemon_on(lake) as daemon:
        await daemon.access.resolve(None)
        await lake.storage.delete(journal.follower.log.path(1))
        await raises(Corrupt, daemon.journal.follower.verify_head(), kind="history_replaced")
        await raises(Corrupt, daemon.access.load(STALE, [CATALOG]), kind="history_replaced")
        version = daemon.journal.head.version
        await raises(Corrupt, daemon.access.load(version, [CATALOG]), kind="history_replaced")
        await raises(Corrupt, daemon.journal.load(version, [CATALOG]), kind="history_replaced")


async def test_a_library_keeps_the_same_promises(lake: Lake) -> None:
    writer = await lake.create()
    reader = await lake.open()
    await reader.resolve(None)
    token = (await lake.commit(writer, lake.namespace("a"))).token
    assert (await reader.list(STALE, Kind.NAMESPACE)).names == ()
    assert (await reader.list(Latest(STALE.staleness_millis, token), Kind.NAMESPACE)).names == ("a",)
    await lake.commit(writer, lake.namespace("b"))
    page = await reader.list(None, Kind.NAMESPACE)
    assert (page.names, page.token) == (("a", "b"), writer.head.token)
    await raises(
        InvalidInput, reader.load(Latest(None, token.replace(".1.", ".2.")), [CATALOG]), kind="bad_token"
    )
    assert (await reader.load(LATEST, [CATALOG])).token == writer.head.token


async def test_verified_tokens_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.journal.SESSIONS_KNOWN_MAX", 3)
    journal = await lake.create()
    tokens = [(await lake.commit(journal, lake.namespace(f"n{n}"))).token for n in range(8)]
    for token in tokens * 2:
        assert (await journal.resolve(Latest(None, token))).version == 8
    assert len(journal._sessions) <= 3


# --- lookups ---------------------------------------------------------------------------------------

NAMES = [
    CATALOG,
    *(namespace_name(text) for text in ("a", "b", "Ä", "never")),
    *(table_name(namespace, name) for namespace in ("a", "b", "Ä") for name in ("t", "u", "é", "never")),
    *(ObjectName(Kind.VIEW, namespace, name) for namespace in ("a", "b") for name in ("t", "v")),
    ObjectName(Kind.PIPELINE, "", "m"),
]


def request(names: list[ObjectName], at: Any = None, *, odd: bool = False) -> bytes:
    message = pb.RawLoadRequest(at=wire.encode_at(at))
    for name in names:
        raw = wire.encode_name(name).SerializeToString()
        # The same name in other bytes: one field comes twice, and the last value counts.
        message.names.append(b"\x12\x01x" + raw if odd and name.namespace else raw)
    return message.SerializeToString()


async def answered(lookups: LoadCache, data: bytes) -> Loaded:
    return wire.decode_loaded(pb.LoadResponse.FromString(await lookups.answer(data)))


@given(
    seed=st.integers(0, 1 << 32), bytes_max=st.sampled_from([0, 600, 3_000, 1 << 20]), replayed=st.booleans()
)
async def test_kept_answers_are_those_of_the_head(seed: int, bytes_max: int, replayed: bool) -> None:
    """A cached answer is what the journal answers at that version, whatever is committed in between."""
    rng, lake = random.Random(seed), Lake(seed=seed)
    writer = await lake.create()
    journal = await lake.open()
    if replayed:
        await journal.load_state()
    lookups = LoadCache(journal, bytes_max)
    for _ in range(20):
        if rng.random() < 0.6:
            model = await model_of(writer)
            try:
                await lake.commit(writer, random_operation(rng, model, lake.identities))
            except AlpheusError:
                continue  # the random operation was not valid here
        names = rng.choices(NAMES, k=rng.randrange(6))
        at = rng.choice([None, LATEST, Latest(10_000_000), rng.randrange(journal.head.version + 1)])
        loaded = await answered(lookups, request(names, at, odd=rng.random() < 0.3))
        truth = await writer.load(loaded.version, names)
        assert loaded.objects == truth.objects
        assert loaded.token == ("" if isinstance(at, int) else journal.head.token)
        assert lookups.size_bytes <= bytes_max
    assert lookups.size_bytes <= bytes_max


async def test_kept_answers_are_used_and_dropped_by_name(lake: Lake) -> None:
    journal = await lake.create()
    await journal.load_state()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "t"), lake.table("a", "u"))
    lookups = LoadCache(journal, 1 << 20)
    names = [namespace_name("a"), table_name("a", "t"), table_name("a", "u"), table_name("a", "x")]
    first = await answered(lookups, request(names))
    assert (lookups.hits, lookups.misses, lookups.count) == (0, 4, 4)
    assert await answered(lookups, request(names)) == first
    assert (lookups.hits, lookups.misses) == (4, 4)
    await lake.commit(journal, DropTable(namespace="a", name="t"), lake.table("a", "x"))
    changed = await answered(lookups, request(names))
    assert [stored is None for stored in changed.objects] == [False, True, False, False]
    assert (lookups.hits, lookups.misses) == (6, 6), "two are new, two still good"
    size = lookups.size_bytes
    await lake.commit(journal, DropNamespace(name="a", cascade=True))
    assert set((await answered(lookups, request(names))).objects) == {None}
    assert 0 < lookups.size_bytes < size


@pytest.mark.parametrize("how", ["check", "reload"])
async def test_what_was_answered_from_wrong_memory_is_forgotten(lake: Lake, how: str) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "t"))
    state = await journal.load_state()
    key = pack_name(journal.keys, table_name("a", "t"))
    state._overlay[key] = None
    state._order = [key]
    lookups = LoadCache(journal, 1 << 20)
    names = [table_name("a", "t"), namespace_name("a")]
    assert (await answered(lookups, request(names))).objects[0] is None
    if how == "check":
        assert (await journal.check_symbols()).differences == 1
    else:
        await journal.reload_symbols()
    truth = await (await lake.open()).load(LATEST, names)
    assert None not in truth.objects
    for _ in range(2):
        assert (await answered(lookups, request(names))).objects == truth.objects
        await journal.replay.rebuild()
    assert lookups.hits == (0 if how == "check" else 2)


async def test_what_changed_unseen_is_forgotten(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    lookups = LoadCache(journal, 1 << 20)
    (before,) = (await answered(lookups, request([namespace_name("a")]))).objects
    await lake.commit(journal, UpdateNamespace(name="a", set={"p": "1"}))
    monkeypatch.setattr(journal, "changed_names", lambda version: None)
    (after,) = (await answered(lookups, request([namespace_name("a")]))).objects
    assert after not in (None, before)
    monkeypatch.setattr("alpheus_daemon.serve.lookups.VERSIONS_CAUGHT_UP_MAX", 0)
    await lake.commit(journal, UpdateNamespace(name="a", set={"p": "2"}))
    assert (await answered(lookups, request([namespace_name("a")]))).objects[0] not in (None, before, after)


async def test_lookups_are_bounded_and_refuse_what_is_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await lake.create()
    big = {"p": "x" * 5_000}
    await lake.commit(journal, *(lake.namespace(f"n{n}", **big) for n in range(10)))
    lookups = LoadCache(journal, 20_000)
    names = [namespace_name(f"n{n}") for n in range(10)]
    for _ in range(2):
        loaded = await answered(lookups, request(names))
        assert all(loaded.objects)
        assert 0 < lookups.size_bytes <= 20_000
    monkeypatch.setattr(wire, "REPLY_BYTES_MAX", 12_000)
    for many in (names, names[-2:] * 3):  # without and with the cache
        await raises(InvalidInput, lookups.answer(request(many)), kind="too_large")
    assert len((await answered(lookups, request(names[-2:]))).objects) == 2
    await raises(
        InvalidInput, lookups.answer(request([CATALOG] * (wire.NAMES_COUNT_MAX + 1))), kind="too_large"
    )
    for data in (b"\xff", pb.RawLoadRequest(names=[b"\xff"]).SerializeToString()):
        await raises(InvalidInput, lookups.answer(data))
    await raises(InvalidInput, lookups.answer(pb.RawLoadRequest(names=[b"\x08\x63"]).SerializeToString()))


async def test_thousands_of_names_in_one_call(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = await lake.create()
    await lake.commit(journal, *(lake.namespace(f"n{n}") for n in range(50)))
    monkeypatch.setattr("alpheus.session.remote.LOAD_BYTES_MAX", 20_000)
    async with daemon_on(lake) as daemon:
        names = [namespace_name(f"n{n % 60}") for n in range(wire.NAMES_COUNT_MAX + 2_000)]
        answers = 0
        load = daemon.access._load_some

        async def counted(at: Any, some: list[bytes]) -> Loaded:
            nonlocal answers
            answers += 1
            if answers == 2:  # between two requests of one call
                await lake.commit(journal, *(DropNamespace(name=f"n{n}") for n in range(50)))
            return await load(at, some)

        monkeypatch.setattr(daemon.access, "_load_some", counted)
        loaded = await daemon.access.load(None, names)
        assert answers > 3
        assert loaded.version == 1
        assert loaded.token != ""
        assert [stored is not None for stored in loaded.objects] == [n % 60 < 50 for n in range(len(names))]
        assert set((await daemon.access.load(None, names[:5])).objects) == {None}


# --- snapshots -------------------------------------------------------------------------------------


async def everything(
    access: Any, at: Any = None, namespaces: frozenset[str] = frozenset()
) -> list[SnapshotPart]:
    async with aclosing(access.snapshot(at, namespaces=namespaces)) as parts:
        return [part async for part in parts]


def contents(parts: list[SnapshotPart]) -> dict[ObjectName, StoredObject]:
    objects = [live for part in parts for live in part.objects]
    found = {live.name: live.stored for live in objects}
    assert len(found) == len(objects), "each once"
    assert len({(part.version, part.token, part.created_at_millis) for part in parts}) == 1
    return found


async def truth(journal: Journal, version: int) -> dict[ObjectName, StoredObject]:
    snapshot = await journal.follower.snapshot(version)
    names = [CATALOG, *(journal.keys.parse(key) for key, _ in await snapshot.entries())]
    stored = (await journal.load(version, names)).objects
    return {name: one for name, one in zip(names, stored, strict=True) if one is not None}


def moved(before: tuple[str, str], after: tuple[str, str]) -> RenameObject:
    return RenameObject(
        kind=Kind.TABLE, namespace=before[0], name=before[1], new_namespace=after[0], new_name=after[1]
    )


async def filled(lake: Lake) -> Journal:
    journal = await lake.create()
    await lake.commit(journal, *(lake.namespace(text) for text in ("a", "b", "Äb", "c")))
    await lake.commit(journal, *(lake.table(space, f"t{n}") for space in ("a", "Äb") for n in range(40)))
    await lake.commit(
        journal,
        moved(("a", "t3"), ("b", "moved")),
        DropTable(namespace="a", name="t4"),
        UpdateNamespace(name="b", set={"p": "1"}),
    )
    return journal


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_snapshot_is_the_version(lake: Lake, replayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PART_OBJECTS_MAX", 7)
    journal = await filled(lake)
    if replayed:
        await journal.load_state()
    for at, version in ((None, 3), (STALE, 3), (3, 3), (2, 2), (0, 0)):
        parts = await everything(journal, at)
        assert (parts[0].version, parts[0].objects) == (version, ())
        assert parts[0].token == (await journal.resolve(version)).token
        expected = await truth(journal, version)
        assert contents(parts) == expected
        assert max(len(part.objects) for part in parts) <= 7
        for wanted in (frozenset({"a"}), frozenset({"Äb", "b"}), frozenset({"nowhere"})):
            found = contents(await everything(journal, at, wanted))
            assert found == {name: one for name, one in expected.items() if name.namespace in wanted}
    await raises(InvalidInput, anext(journal.snapshot(None, namespaces=frozenset({""}))), kind="bad_name")


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_snapshot_stays_at_its_version(
    lake: Lake, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader of a snapshot gets the version it asked for and does not block commits."""
    monkeypatch.setattr(live, "PART_OBJECTS_MAX", 7)
    journal = await filled(lake)
    if replayed:
        await journal.load_state()
    expected = await truth(journal, 3)
    parts: list[SnapshotPart] = []
    async with aclosing(journal.snapshot(None)) as reading:
        async for part in reading:
            parts.append(part)
            if len(parts) % 3 == 0 and journal.head.version < 9:
                number = journal.head.version
                await lake.commit(
                    journal,
                    DropTable(namespace="a", name=f"t{number + 5}"),
                    moved(("Äb", f"t{number}"), ("a", f"from{number}")),
                    UpdateNamespace(name="c", set={"p": str(number)}),
                )
    assert journal.head.version > 5
    assert contents(parts) == expected


async def test_a_snapshot_over_the_wire(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PART_OBJECTS_MAX", 20)
    journal = await filled(lake)
    (lost,) = (await journal.load(None, [table_name("a", "t7")])).objects
    assert lost is not None
    await lake.storage.delete(lost.path)
    async with daemon_on(lake) as daemon:
        for at in (None, 2):
            parts = await everything(daemon.access, at)
            assert contents(parts) == contents(await everything(daemon.journal, at))
            damaged = contents(parts)[table_name("a", "t7")]
            assert (damaged.path, damaged.definition) == (lost.path, b"")
            assert damaged.damage is not None
            assert damaged.damage.kind == "corrupt_definition"
        only = contents(await everything(daemon.access, None, frozenset({"b"})))
        assert set(only) == {namespace_name("b"), table_name("b", "moved")}
        await raises(InvalidInput, everything(daemon.access, 99, frozenset({"*" * 2000})), kind="bad_name")
        await raises(AlpheusError, everything(daemon.access, 99), kind="no_version")


async def test_a_snapshot_whose_version_expires_meanwhile(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PART_OBJECTS_MAX", 7)
    await filled(lake)
    journal = await lake.open()  # with empty caches
    async with aclosing(journal.snapshot(2)) as parts:
        first = await anext(parts)
        assert first.version == 2
        await lake.expire(below=3)
        snapshot = await (await lake.open()).follower.snapshot(3)
        kept = {path for _, path in await snapshot.entries()}
        for path in [entry.path async for entry in lake.storage.list("def/")]:
            if path not in kept:
                await lake.storage.delete(path)
        with pytest.raises(Expired) as caught:
            async for _ in parts:
                pass
        assert caught.value.version == 2


def test_a_damaged_object_travels() -> None:
    plain = LiveObject(namespace_name("a"), StoredObject("def/ns/x", b"bytes"))
    assert wire.decode_live(wire.encode_live(plain)) == plain
    message = pb.LiveObjectMessage(path="p", damage_kind="of_a_newer_release", damage_message="m")
    message.object.CopyFrom(wire.encode_name(namespace_name("a")))
    damage = wire.decode_live(message).stored.damage
    assert damage is not None
    assert (damage.kind, damage.message) == ("corrupt_definition", "m")


@pytest.mark.parametrize("at", [None, 3, Timestamp(5), Latest(0), Latest(None, "t"), Latest(7, "t")])
def test_references_travel(at: Any) -> None:
    assert wire.decode_at(wire.encode_at(at)) == at


def test_the_default_is_one_reference() -> None:
    assert wire.decode_at(wire.encode_at(LATEST)) is None
