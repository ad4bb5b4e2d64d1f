"""Replicas answer as the catalog does at the same version, whatever is committed and whatever breaks."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpheus
from alpheus import aio
from alpheus.aio import AsyncCatalog, AsyncReplica
from alpheus.events import replica
from alpheus.session.connections import direct_session
from alpheus.session.retry import RetryPolicy
from alpheus.sync.replica import Replica
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Event, Latest, Progress
from alpheus_journal.testing import Lake, model_of, raises, random_operation

SCHEMA = pa.schema([("id", pa.int64())])
_numbers = itertools.count()


@asynccontextmanager
async def catalog_on(lake: Lake) -> AsyncIterator[AsyncCatalog]:
    """Yield a client that opened the lake's storage itself."""
    journal = await lake.open()
    catalog = AsyncCatalog(direct_session(journal, "memory://lake", RetryPolicy(30)))
    try:
        yield catalog
    finally:
        await catalog.close()


def access_of(catalog: AsyncCatalog) -> Any:
    return catalog._session.access


# --- the same as the catalog -----------------------------------------------------------------------


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except AlpheusError as error:
        return type(error), error.kind, error.message, error.hint, error.version, error.path


NAMESPACES = ["a", "b", "c", "ä", "nowhere", "", " ", "x\x00"]
TABLES = [
    "a.s",
    "a.t",
    "b.t",
    "c.u",
    ("b", "s"),
    ["b", "s"],
    "nowhere.t",
    "a.none",
    "nodot",
    ("a", "b", "c"),
    5,
]


def questions(rng: random.Random) -> list[tuple[str, tuple[Any, ...]]]:
    """Return questions of every reading verb, with good and bad arguments."""
    asked: list[tuple[str, tuple[Any, ...]]] = [("list_namespaces", ()), ("list_pipelines", ())]
    for verb in ("list_namespaces", "list_pipelines"):
        asked += [
            (
                verb,
                (rng.choice(["", "a", "zz", "%"]), rng.choice([None, 1, 2, 0]), rng.choice([None, "a", "b"])),
            )
        ]
    for namespace in NAMESPACES:
        asked += [("load_namespace", (namespace,)), ("namespace_exists", (namespace,))]
        for verb in ("list_tables", "list_views"):
            asked.append((verb, (namespace,)))
            page = (rng.choice(["", "s", "t"]), rng.choice([None, 1, 2]), rng.choice([None, "s", "t", "u"]))
            asked.append((verb, (namespace, *page)))
    for name in TABLES:
        asked += [(verb, (name,)) for verb in ("load_table", "table_exists", "load_view", "view_exists")]
    for count in (0, 1, 3):
        asked.append(("load_tables", (rng.sample(TABLES[:6], count),)))
    asked += [
        ("load_tables", ("a.t",)),
        ("load_tables", (5,)),
        ("load_pipeline", ("m",)),
        ("load_pipeline", ("q",)),
    ]
    return asked


def is_copied(verb: str, arguments: tuple[Any, ...], namespaces: frozenset[str]) -> bool:
    """Return whether a question is about objects that a replica of these namespaces certainly has."""
    if "pipeline" in verb or verb == "load_tables":
        return False
    name = arguments[0]
    if "namespace" not in verb and not verb.startswith("list"):
        name = name.rpartition(".")[0] if isinstance(name, str) else name[0]
    return name in namespaces


async def compare(catalog: AsyncCatalog, copy: AsyncReplica, seed: int) -> None:
    version = copy.version
    pinned = await catalog.at(version)
    front = Replica(copy)
    for verb, arguments in questions(random.Random(seed)):
        question = f"{verb}{arguments}"
        expected = await outcome(getattr(pinned, verb)(*arguments))
        found = await outcome(getattr(copy, verb)(*arguments))
        if copy.namespaces and isinstance(found, tuple) and found[1] == "not_replicated":
            assert not is_copied(verb, arguments, copy.namespaces), question
            continue
        if copy.namespaces and "list_namespaces" in question and isinstance(found, list):
            assert {one.name for one in found} <= copy.namespaces
            continue
        assert found == expected, question
    # The synchronous front gives the same answers by its own fast ways: first fresh, then from its cache.
    for name in TABLES[:6]:
        for _ in range(2):
            try:
                theirs = await pinned.load_table(name)  # type: ignore[arg-type]
            except AlpheusError:
                continue
            if copy.namespaces and theirs.namespace not in copy.namespaces:
                continue
            assert front.load_table(name) == theirs  # type: ignore[arg-type]
            assert front.load_tables([name, name]) == [theirs, theirs]  # type: ignore[list-item]
            assert front.table_exists(name)  # type: ignore[arg-type]


@settings(max_examples=5 if settings().max_examples < 100 else 300)
@given(seed=st.integers(0, 1 << 32), digits=st.sampled_from([32, 64]))
async def test_a_replica_is_the_catalog(seed: int, digits: int) -> None:
    rng, lake = random.Random(seed), Lake(seed=seed)
    writer = await lake.create(version_digits=digits)
    async with catalog_on(lake) as catalog:
        whole, part = await catalog.replica(), await catalog.replica(namespaces=["a", "ä"])
        await compare(catalog, whole, seed)
        for step in range(4):
            for _ in range(rng.randrange(1, 8)):
                try:
                    await lake.commit(writer, random_operation(rng, await model_of(writer), lake.identities))
                except AlpheusError:
                    continue  # a random operation may be impossible
            if rng.random() < 0.3:
                await whole._take_snapshot()  # a gap in the log causes this
            for copy in (whole, part):
                assert await copy.wait_for(writer.head.version, 30) == writer.head.version
                await compare(catalog, copy, seed + step)
                assert copy.error is None


async def test_namespaces_that_things_come_into_and_leave(tmp_path: Path) -> None:
    async with await aio.create(f"file://{tmp_path}/lake") as catalog:
        for name in ("in", "out"):
            await catalog.create_namespace(name)
            await catalog.create_table(f"{name}.{name}side", SCHEMA)
        async with await catalog.replica("in") as copy:

            async def tables() -> list[str]:
                await copy.wait_for(await catalog.version(), 30)
                return [table.name for table in await copy.list_tables("in")]

            assert await tables() == ["inside"]
            await catalog.rename_table("out.outside", "in.came")
            assert await tables() == ["came", "inside"]
            await catalog.rename_table("in.inside", "out.left")
            assert await tables() == ["came"]
            with pytest.raises(InvalidInput) as caught:
                await copy.load_table("out.left")
            assert caught.value.kind == "not_replicated"
            await catalog.drop_namespace("in", cascade=True)
            await copy.wait_for(await catalog.version(), 30)
            assert not await copy.namespace_exists("in")
            with pytest.raises(NotFound):
                await copy.list_tables("in")
            await catalog.undrop(("in",))
            assert await tables() == ["came"]
            assert await copy.load_table("in.came") == await catalog.load_table("in.came")
        for wrong in ([], [""], [5], "x" * 2000):
            with pytest.raises(InvalidInput):
                await catalog.replica(wrong)  # type: ignore[arg-type]


# --- following, when things break ------------------------------------------------------------------


class Breaking:
    """An `Access` whose streams and calls fail by script.

    Each call takes the next of `errors[method]`; None means success. A stream fails at its start. A slow stream, or one
    whose daemon is gone, fails after its first message.
    """

    def __init__(self, access: Any) -> None:
        self._access = access
        self.errors: dict[str, list[AlpheusError | None]] = {}
        self.calls: dict[str, int] = {}
        self.resolved = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access, name)

    def _next(self, method: str) -> AlpheusError | None:
        self.calls[method] = self.calls.get(method, 0) + 1
        script = self.errors.get(method, [])
        return script.pop(0) if script else None

    async def resolve(self, at: Any) -> Any:
        error = self._next("resolve")
        self.resolved.set()
        if error is not None:
            raise error
        return await self._access.resolve(at)

    async def events(self, **query: Any) -> AsyncIterator[Event | Progress]:
        error = self._next("events" if query["details"] else "plain")
        late = error is not None and error.kind in ("daemon_unavailable", "subscriber_too_slow")
        if error is not None and not late:
            raise error
        async with aclosing(self._access.events(**query)) as items:
            async for item in items:
                yield item
                if error is not None:
                    raise error

    async def snapshot(self, at: Any, **rest: Any) -> AsyncIterator[Any]:
        error = self._next("snapshot")
        async with aclosing(self._access.snapshot(at, **rest)) as parts:
            async for part in parts:
                yield part
                if error is not None:
                    raise error


@pytest.fixture
async def lake() -> Lake:
    return Lake()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus.session.retry.RetryPolicy.pause", lambda self, failures: 0.001)


@asynccontextmanager
async def broken_replica(lake: Lake, **errors: list[AlpheusError | None]) -> AsyncIterator[tuple[Any, ...]]:
    """Yield (writer, access, replica): the replica reads through an access that fails as `errors` say."""
    writer = await lake.create()
    await lake.commit(writer, lake.namespace("a"), lake.table("a", "t0"))
    async with catalog_on(lake) as catalog:
        access = Breaking(catalog._session.access)
        access.errors = errors
        catalog._session.access = access
        async with await catalog.replica() as copy:
            yield writer, access, copy


async def commit_and_wait(lake: Lake, writer: Journal, copy: AsyncReplica, count: int) -> None:
    for number in range(1, count + 1):
        await lake.commit(writer, lake.table("a", f"t{number}"))
        await copy.wait_for(writer.head.version, 30)
        assert [table.name for table in await copy.list_tables("a")] == [f"t{n}" for n in range(number + 1)]


async def test_a_broken_stream_is_resumed(lake: Lake) -> None:
    away = [
        Unavailable("away"),
        Exhausted("slow", kind="subscriber_too_slow"),
        Unavailable("gone", kind="daemon_unavailable"),
        Unavailable("again"),
    ]
    async with broken_replica(lake, events=away, snapshot=[Unavailable("at first")]) as (
        writer,
        access,
        copy,
    ):
        await commit_and_wait(lake, writer, copy, 5)
        assert access.calls["events"] >= 4
        assert access.calls["snapshot"] == 2, "one that broke at the start, and no more"
        assert copy.error is None


@pytest.mark.parametrize(
    "error", [Expired("gone", oldest=3), InvalidInput("no such token", kind="bad_token")]
)
async def test_a_gap_is_bridged_by_a_snapshot(lake: Lake, error: AlpheusError) -> None:
    again = [None, Unavailable("the snapshot broke"), Expired("its version went")]
    async with broken_replica(
        lake, events=[Unavailable("x", kind="daemon_unavailable"), error], snapshot=again
    ) as (
        writer,
        access,
        copy,
    ):
        await commit_and_wait(lake, writer, copy, 4)
        assert access.calls["snapshot"] == 4
        assert copy.error is None


async def test_what_does_not_continue_the_copy_makes_it_anew(lake: Lake) -> None:
    async with broken_replica(lake) as (writer, access, copy):
        del copy._contents.objects[next(name for name in copy._contents.objects if name.name == "t0")]
        await lake.commit(writer, *[lake.table("a", "t1")])
        await copy.wait_for(2, 30)
        from alpheus_journal.model.operations import DropTable

        await lake.commit(writer, DropTable(namespace="a", name="t0"))
        await copy.wait_for(3, 30)
        assert access.calls["snapshot"] == 2
        assert [table.name for table in await copy.list_tables("a")] == ["t1"]


async def test_a_damaged_definition_harms_nobody_else(lake: Lake) -> None:
    from alpheus_journal.format import table_name
    from alpheus_journal.model.operations import DropTable

    async with broken_replica(lake) as (writer, _, copy):
        held = asyncio.Event()
        events = copy._session.access.events

        async def later(**query: Any) -> AsyncIterator[Any]:
            await held.wait()
            async for item in events(**query):
                yield item

        copy._session.access.events = later
        copy._task.cancel()
        await asyncio.wait([copy._task])
        copy._task = asyncio.create_task(copy._run())
        await lake.commit(writer, lake.table("a", "t1"), lake.table("a", "t2"))
        (lost,) = (await writer.load(None, [table_name("a", "t1")])).objects
        assert lost is not None
        await lake.storage.delete(lost.path)
        held.set()
        await copy.wait_for(2, 30)
        assert (await copy.load_table("a.t2")).version == 2
        assert [table.name for table in await copy.list_tables("a")] == ["t0", "t1", "t2"]
        for call in (copy.load_table("a.t1"), copy.table_exists("a.t1"), copy.load_tables(["a.t2", "a.t1"])):
            error = await raises(Corrupt, call, kind="corrupt_definition")
            assert (error.path, error.version) == (lost.path, 2)
        await lake.commit(writer, DropTable(namespace="a", name="t1"))
        await copy.wait_for(3, 30)
        assert not await copy.table_exists("a.t1")
        assert copy.error is None


async def test_events_too_large_come_without_definitions(lake: Lake) -> None:
    large = InvalidInput("the event takes too many bytes", kind="too_large")
    async with broken_replica(lake, events=[None, large, large]) as (writer, access, copy):
        access.errors["events"] = [large]
        copy._task.cancel()
        await asyncio.wait([copy._task])
        copy._task = asyncio.create_task(copy._run())
        await commit_and_wait(lake, writer, copy, 3)
        assert access.calls["plain"] >= 1
        assert access.calls["snapshot"] == 1


@pytest.mark.parametrize(
    "last",
    [
        Corrupt("the storage was put back", kind="history_replaced"),
        Denied("no longer"),
        InvalidInput("not that way", kind="not_supported"),
    ],
)
async def test_what_never_ends_well_ends_the_replica(lake: Lake, last: AlpheusError) -> None:
    async with broken_replica(lake, events=[Unavailable("x", kind="daemon_unavailable"), last]) as (
        writer,
        _,
        copy,
    ):
        assert (await copy.load_table("a.t0")).version == 1
        await lake.commit(writer, lake.table("a", "t1"))
        error = await raises(type(last), copy.wait_for(1 << 30, 30), kind=last.kind)
        assert error is not last
        assert copy.error is not None
        for call in (copy.load_table("a.t0"), copy.list_namespaces(), copy.namespace_exists("a")):
            await raises(type(last), call, kind=last.kind)
        with pytest.raises(type(last)):
            Replica(copy).load_tables(["a.t0"])


async def test_another_history_ends_the_replica(tmp_path: Path) -> None:
    """A replica ends when its storage goes back to an older state and others commit there.

    No reader gets a mix of both.
    """
    lake = Lake()
    writer = await lake.create()
    await lake.commit(writer, lake.namespace("a"))
    async with catalog_on(lake) as catalog, await catalog.replica() as copy:
        await lake.commit(writer, lake.namespace("b"))
        await copy.wait_for(2, 30)
        await lake.storage.delete(writer.follower.log.path(2))
        await lake.storage.delete("vn/latest")  # without this, no writer could commit
        other = await lake.open()
        await lake.commit(other, lake.namespace("c"))
        await lake.commit(other, lake.namespace("d"))
        await raises(Corrupt, copy.wait_for(1 << 30, 30), kind="history_replaced")
        await raises(Corrupt, copy.namespace_exists("b"), kind="history_replaced")


async def test_a_bug_is_seen_by_readers(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broken_replica(lake) as (writer, _, copy):

        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(copy, "_apply", fail)
        await lake.commit(writer, lake.table("a", "t1"))
        error = await raises(Unavailable, copy.wait_for(2, 30), kind="replica_behind")
        assert "a bug" in error.message
        await raises(Unavailable, copy.load_table("a.t0"), kind="replica_behind")


# --- how old it may be -----------------------------------------------------------------------------


async def test_lag_is_measured_and_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(replica, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(replica, "MEASURE_SECONDS", 0.001)
    writer = await lake.create()
    await lake.commit(writer, lake.namespace("a"), lake.table("a", "t"))
    async with catalog_on(lake) as catalog:
        access = Breaking(catalog._session.access)
        catalog._session.access = access
        free, bound = await catalog.replica(), await catalog.replica(staleness=5)
        front = Replica(bound)

        async def measured() -> None:
            for _ in range(6):
                access.resolved.clear()
                await access.resolved.wait()

        now += 4
        await measured()
        assert free.lag <= replica.MEASURE_STALENESS_SECONDS
        assert front.load_table("a.t") == await free.load_table("a.t")
        access.errors["resolve"] = [Unavailable("where is the head?") for _ in range(1 << 16)]
        await measured()
        now += 5
        assert free.lag >= 5
        assert (await free.load_table("a.t")).version == 1, "no limit was set"
        assert "where is the head" in str(free.error)
        for call in (bound.load_table("a.t"), bound.list_tables("a"), bound.table_exists("a.t")):
            await raises(Unavailable, call, kind="replica_behind")
        for read in (front.load_table, front.table_exists, lambda name: front.load_tables([name])):
            with pytest.raises(Unavailable) as caught:
                read("a.t")
            assert caught.value.kind == "replica_behind"
        access.errors["resolve"] = []
        await measured()
        assert front.load_table("a.t").version == 1
        assert (free.error, bound.error) == (None, None)
        # A head that the replica has not reached yet says nothing about its freshness.
        bound._task.cancel()
        await asyncio.wait([bound._task])
        bound._heads.append((99, now + 50))
        bound._note_progress()
        now += 50
        assert bound.lag >= 50


async def test_waiting(lake: Lake) -> None:
    async with broken_replica(lake) as (writer, _, copy):
        assert await copy.wait_for(0) == 1
        error = await raises(Unavailable, copy.wait_for(2, 0.01), kind="replica_behind")
        assert "did not reach 2" in error.message
        for wrong in (True, "2", None):
            await raises(InvalidInput, copy.wait_for(wrong), kind="bad_version")
        waiting = asyncio.create_task(copy.wait_for(2))
        await lake.commit(writer, lake.namespace("b"))
        assert await waiting == 2
        waiting = asyncio.create_task(copy.wait_for(99))
        await asyncio.sleep(0)
        await copy.close()
        await raises(InvalidInput, waiting)


async def test_the_catalog_never_reads_behind_its_replica(lake: Lake) -> None:
    writer = await lake.create()
    journal = await lake.open()
    catalog = AsyncCatalog(direct_session(journal, "memory://lake", RetryPolicy(30), staleness=100_000))
    async with (
        catalog,
        catalog_on(lake) as other,
        await other.replica() as apart,
        await catalog.replica() as own,
    ):
        await lake.commit(writer, lake.namespace("a"))
        await apart.wait_for(1, 30)
        await own.wait_for(1, 30)
        assert await catalog.version() == 1
        assert catalog._session.token == own._token == apart._token


# --- sessions --------------------------------------------------------------------------------------


async def test_a_client_tells_what_it_has_seen(lake: Lake) -> None:
    await lake.create()
    asked: list[Any] = []
    journal = await lake.open()
    for method in ("load", "list", "resolve"):
        call: Callable[..., Awaitable[Any]] = getattr(journal, method)

        def recorded(at: Any, *rest: Any, _call: Any = call, **others: Any) -> Awaitable[Any]:
            asked.append(at)
            return _call(at, *rest, **others)

        setattr(journal, method, recorded)
    async with AsyncCatalog(
        direct_session(journal, "memory://lake", RetryPolicy(30), staleness=2.5)
    ) as catalog:
        await catalog.list_namespaces()
        token = journal.head.token
        assert (asked.pop(), catalog._session.token) == (Latest(2500, ""), token)
        commit = await catalog.create_namespace("a")
        assert journal.head.version == commit.version
        asked.clear()
        await catalog.load_namespace("a")
        await catalog.list_tables("a")
        await catalog.version()
        await catalog.at(None)
        assert asked == [Latest(2500, journal.head.token)] * 4
        await catalog.at(0)
        assert catalog._session.token == journal.head.token, "an older one does not count"
        for first in (True, False):
            asked.clear()
            async with catalog.transaction():
                default = [commit.version] if first else []  # the isolation is asked for once
                assert asked == [Latest(None, journal.head.token), *default], "it begins at the head"
        await lake.commit(await lake.open(), lake.namespace("b"))
        async with aclosing(catalog.events(after=commit.version)) as events:  # type: ignore[type-var]
            async for event in events:
                assert catalog._session.token == event.token
    for wrong in (-1, "1", True, float("nan"), 1e12):
        await raises(InvalidInput, aio.connect("memory://lake", staleness=wrong))  # type: ignore[arg-type]


# --- synchronous, and over a daemon ----------------------------------------------------------------


@pytest.fixture(params=["direct", "remote"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, start_daemon: Callable[..., Any]
) -> Iterator[alpheus.Catalog]:
    url = f"file://{tmp_path}/lake"
    daemon = start_daemon(url, "--create") if request.param == "remote" else None
    with alpheus.connect(daemon.url if daemon else url, create=True) as opened:
        yield opened
    if daemon:
        daemon.stop()


def test_threads_never_see_a_mix(catalog: alpheus.Catalog) -> None:
    """Readers in threads never see a mix of two versions.

    Two tables are always changed together. Readers run while the replica follows the log and swaps snapshots in.
    """
    catalog.create_namespace("a")
    names = ["a.one", "a.two"]
    for name in names:
        catalog.create_table(name, SCHEMA, properties={"n": "0"})
    over, seen, wrong = threading.Event(), set(), []

    def reader() -> None:
        newest = 0
        while not over.is_set():
            one, two = copy.load_tables(names)
            alone = copy.load_table("a.one")
            listed = copy.list_tables("a")
            if one.properties["n"] != two.properties["n"] or one.version != two.version:
                wrong.append((one, two))
            if not newest <= one.version <= alone.version <= listed[0].version:
                wrong.append((newest, one.version, alone.version, listed))
            if int(one.properties["n"]) != one.version - first:
                wrong.append(one)
            newest = listed[0].version
            seen.add(one.version)

    with catalog.replica() as copy:
        first = copy.version
        threads = [threading.Thread(target=reader) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 17):
                with catalog.transaction() as tx:
                    for name in names:
                        tx.update_table(name, set={"n": str(number)})
                if number % 5 == 0:
                    from alpheus.sync.portal import run

                    run(copy._core._take_snapshot())
            assert tx.result is not None
            copy.wait_for(tx.result.version, 30)
            while tx.result.version not in seen and not wrong:
                time.sleep(0.001)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert not wrong, wrong[:3]
    assert len(seen) > 1


def test_a_replica_of_a_catalog_lives_and_ends(catalog: alpheus.Catalog) -> None:
    catalog.create_namespace("a")
    rows = pa.table({"id": [1, 2, 3]})
    commit = catalog.create_table("a.t", rows)
    with catalog.replica() as copy:
        assert copy.version >= commit.version
        assert (copy.namespaces, copy.error) == (frozenset(), None)
        assert copy.read("a.t", columns=["id"]).num_rows == 3
        assert copy.load_table("a.t") is copy.load_tables(["a.t"])[0]
        assert copy.load_tables([]) == []
        version = catalog.append("a.t", rows).version
        assert copy.wait_for(version, 30) == version
        assert copy.load_table("a.t") == catalog.load_table("a.t")
        assert copy.read("a.t").num_rows == 6
        assert str(version) in repr(copy)
        child = os.fork()
        if not child:  # the child does not follow the log
            status = 1
            try:
                copy.load_table("a.t")
            except InvalidInput:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert copy.load_table("a.t").row_count == 6
    copy.close()
    with pytest.raises(InvalidInput):
        copy.load_table("a.t")
    other = catalog.replica("a")
    catalog.close()
    with pytest.raises(InvalidInput):
        other.table_exists("a.t")
    with pytest.raises(InvalidInput):
        catalog.replica()


def test_a_daemon_that_comes_back(tmp_path: Path, start_daemon: Callable[..., Any]) -> None:
    url = f"file://{tmp_path}/lake"
    daemon = start_daemon(url, "--create")
    with alpheus.connect(daemon.url, timeout=30) as catalog:
        catalog.create_namespace("a")
        with catalog.replica() as copy:
            daemon.kill()
            with alpheus.connect(url) as direct:
                version = direct.create_namespace("b").version
            assert copy.namespace_exists("a")
            assert not copy.namespace_exists("b"), "it cannot know"
            start_daemon(url, listen=daemon.address)
            copy.wait_for(version, 60)
            assert copy.namespace_exists("b")
