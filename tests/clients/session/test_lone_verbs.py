"""A lone verb makes one call where that is safe, and ends as if it had asked for the head first.

`Behind` is a daemon in one object. It looks for versions of others only when it has to, like a daemon that has just
answered. Several of them on one store are several daemons. Time is a number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from alpheus.aio import AsyncCatalog, connect
from alpheus.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus.session import session
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import HEAD_KNOWN_SECONDS, Session
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage

SCHEMA = pa.schema([("a", pa.int32())])
ONCE = ["commit"]
ASKED_FIRST = ["resolve", "commit"]
BEGUN_AGAIN = ["commit", "resolve", "commit"]


class Behind:
    """A journal as daemons use it: a commit alone does not look for versions of others.

    `calls` holds the calls that came.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.calls: list[str] = []
        self.sent: list[Transaction] = []
        self.refusals: list[AlpheusError] = []  # errors of the next commits, which are not applied

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)

    async def commit(self, transaction: Transaction) -> Committed:
        self.calls.append("commit")
        self.sent.append(transaction)
        if self.refusals:
            raise self.refusals.pop(0)
        while True:
            (answer,) = await self.journal.commit_group([transaction])
            if isinstance(answer, Committed):
                return answer
            if answer is not None:
                raise answer

    async def resolve(self, at: Any) -> Any:
        self.calls.append("resolve")
        return await self.journal.resolve(at)


class Client:
    """A catalog over one `Behind`, and the catalog's clock."""

    def __init__(self, access: Behind, *, staleness: float | None = None, memory: bool = True) -> None:
        self.now = 1000.0
        self.is_connected = True
        self.access = access
        self.session = Session(
            access,
            url="memory://test",
            principal="tester@here",
            retry_policy=RetryPolicy(
                10, monotonic=lambda: self.now, sleep=self._sleep, jitter=random.Random(1)
            ),
            identities=RandomIdentities(),
            open_storage=self._storage,
            outage="daemon_unavailable",
            is_connected=lambda: memory and self.is_connected,
            staleness=staleness,
        )
        self.catalog = AsyncCatalog(self.session)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    async def _storage(self) -> Storage:
        return self.access.journal.storage

    def move_to(self, access: Behind) -> None:
        """Let another daemon answer from now on."""
        self.access = self.session.access = access

    async def calls(self, verb: Awaitable[object]) -> list[str]:
        """Return the calls that a verb made."""
        self.access.calls.clear()
        await verb
        return list(self.access.calls)


@pytest.fixture
async def storage() -> AsyncIterator[MemoryStorage]:
    storage = MemoryStorage()
    await Journal.create(storage)
    yield storage
    await storage.close()


@pytest.fixture
async def client(storage: MemoryStorage) -> Client:
    """Return a client of a catalog with the namespace n and the table n.t. It knows the head, version 2."""
    client = Client(Behind(await Journal.open(storage)))
    await client.catalog.create_namespace("n")
    await client.catalog.create_table("n.t", SCHEMA)
    return client


@pytest.fixture
async def other(storage: MemoryStorage, client: Client) -> Client:
    """Return another client, over another daemon, which has seen all versions."""
    other = Client(Behind(await Journal.open(storage)))
    await other.catalog.version()
    return other


# --- one call --------------------------------------------------------------------------------------


async def test_blind_verbs_are_one_call(client: Client) -> None:
    catalog = client.catalog
    verbs: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: catalog.update_catalog(set={"a": "b"}),
        lambda: catalog.create_namespace("m"),
        lambda: catalog.update_namespace("m", set={"a": "b"}),
        lambda: catalog.create_table("m.t", SCHEMA),
        lambda: catalog.update_table("m.t", set={"a": "b"}),
        lambda: catalog.rename_table("m.t", "m.u"),
        lambda: catalog.create_view("m.v", "select 1"),
        lambda: catalog.replace_view("m.v", "select 2"),
        lambda: catalog.drop_view("m.v"),
        lambda: catalog.register_table("m.i", "file:///x/1.metadata.json"),
        lambda: catalog.commit_iceberg(
            "m.i", "file:///x/2.metadata.json", expected="file:///x/1.metadata.json"
        ),
        lambda: catalog.drop_table("m.u"),
        lambda: catalog.drop_namespace("m", cascade=True),
    )
    for verb in verbs:
        assert await client.calls(verb()) == ONCE
    assert await catalog.version() == 15
    begins = [sent.begin_version for sent in client.access.sent]
    assert begins == list(range(15)), "own commits are what the next verb begins at"


@pytest.mark.parametrize(
    "verb",
    [
        lambda catalog: catalog.undrop("n.gone"),
        lambda catalog: catalog.restore_table("n.t", 2),
        lambda catalog: catalog.create_table("n.u", SCHEMA, exist_ok=True),
        lambda catalog: catalog.create_namespace("m", exist_ok=True),
        lambda catalog: catalog.update_table("n.t", add_columns={"b": pa.int64()}),
    ],
)
async def test_a_verb_that_looks_first_begins_at_the_head(
    client: Client, verb: Callable[[AsyncCatalog], Awaitable[object]]
) -> None:
    await client.catalog.create_table("n.gone", SCHEMA)
    await client.catalog.drop_table("n.gone")
    calls = await client.calls(verb(client.catalog))
    assert "resolve" in calls[: calls.index("commit")]
    assert client.access.sent[-1].begin_version == 4


async def test_the_first_verb_asks_for_the_head(storage: MemoryStorage) -> None:
    client = Client(Behind(await Journal.open(storage)))
    assert await client.calls(client.catalog.create_namespace("n")) == ASKED_FIRST
    assert await client.calls(client.catalog.create_namespace("m")) == ONCE


async def test_memory_is_bounded_in_time(client: Client) -> None:
    client.now += HEAD_KNOWN_SECONDS - 0.001
    assert await client.calls(client.catalog.create_namespace("a")) == ONCE
    client.now += HEAD_KNOWN_SECONDS
    assert await client.calls(client.catalog.create_namespace("b")) == ASKED_FIRST


async def test_what_tells_the_head_and_what_does_not(client: Client) -> None:
    known = client.session
    token = known.token

    async def is_told(call: Awaitable[object]) -> bool:
        client.now += 10
        assert known.known_head is None
        await call
        return known.known_head == 2

    catalog = client.catalog
    assert await is_told(catalog.version())
    assert await is_told(catalog.info())
    assert await is_told(catalog.table_exists("n.t"))
    assert await is_told(catalog.list_tables("n"))
    # An answer about a version by number does not say that this is the head, though it is the newest seen.
    assert not await is_told(known.resolve(2))
    assert not await is_told(known.load(2, []))
    assert known.token == token
    # An answer that a retry finds in the log only says that the version existed.
    assert not await is_told(known.commit(client.access.sent[-1]))
    client.session._staleness_millis = 1_000_000
    assert not await is_told(catalog.version())
    assert not await is_told(catalog.table_exists("n.t"))


async def test_the_bound_counts_from_the_question(client: Client) -> None:
    client.now += 10
    resolve = client.access.resolve

    async def slow(at: Any) -> Any:
        found = await resolve(at)
        client.now += HEAD_KNOWN_SECONDS  # the answer took this long
        return found

    client.access.resolve = slow  # type: ignore[method-assign]
    await client.catalog.version()
    assert client.session.known_head is None


async def test_an_answer_that_was_overtaken_tells_nothing_new(client: Client, other: Client) -> None:
    old = other.session.token
    await client.catalog.create_namespace("m")
    client.now += 10
    client.session._note_head(old, client.now)
    assert client.session.known_head is None


# --- refusals --------------------------------------------------------------------------------------


async def test_a_conflict_with_an_older_begin_is_not_told(client: Client, other: Client) -> None:
    """A conflict with an older begin version is not reported.

    The verb begins again at the head, and overwrites the other change.
    """
    await other.catalog.update_table("n.t", set={"a": "theirs"})
    assert await client.calls(client.catalog.update_table("n.t", set={"a": "mine"})) == BEGUN_AGAIN
    first, second = client.access.sent[-2:]
    assert (first.begin_version, second.begin_version) == (2, 3)
    assert first.id != second.id
    assert (await other.catalog.load_table("n.t")).properties == {"a": "mine"}
    # The refused transaction is not in the log, and a late copy of it is refused again.
    assert [entry.transaction.id async for entry in client.catalog.log()].index(second.id) == 0
    with pytest.raises(Conflict):
        await client.access.journal.commit(first)


async def test_what_is_there_by_now_is_told_as_such(client: Client, other: Client) -> None:
    await other.catalog.create_table("n.u", SCHEMA)
    with pytest.raises(AlreadyExists):
        await client.catalog.create_table("n.u", SCHEMA)
    await other.catalog.drop_table("n.u")
    with pytest.raises(NotFound):
        await client.catalog.drop_table("n.u")


async def test_a_daemon_that_lags_behind_refuses_nothing(client: Client, other: Client) -> None:
    """A daemon that lags behind does not refuse a verb because of what another daemon acknowledged.

    The client has heard of the other's change, and its own daemon has not seen the change yet.
    """
    await other.catalog.create_namespace("new")
    assert client.session.known_head == client.access.journal.head.version == 2
    assert await client.calls(client.catalog.create_table("new.t", SCHEMA)) == ONCE
    await client.catalog.create_table("n.u", SCHEMA)
    await other.catalog.drop_table("n.u")
    assert await client.calls(client.catalog.create_table("n.u", SCHEMA)) == ONCE


async def test_a_daemon_that_lags_behind_the_client_catches_up(client: Client, other: Client) -> None:
    await client.catalog.create_table("n.u", SCHEMA)
    await client.catalog.drop_table("n.t")
    client.move_to(other.access)
    assert client.access.journal.head.version == 2
    assert await client.calls(client.catalog.update_table("n.u", set={"a": "b"})) == ONCE
    assert client.access.sent[-1].begin_version == 4
    assert await client.catalog.version() == 5


@pytest.mark.parametrize("error", [OutcomeUnknown, Unavailable])
async def test_what_may_have_been_applied_is_not_begun_again(
    client: Client, error: type[AlpheusError]
) -> None:
    client.access.refusals = [error("lost") for _ in range(1000)]
    with pytest.raises(error):
        await client.catalog.create_namespace("m")
    assert len({sent.id for sent in client.access.sent[2:]}) == 1
    client.access.refusals.clear()
    assert await client.calls(client.catalog.create_namespace("m")) == ASKED_FIRST


async def test_only_once_is_begun_again(client: Client) -> None:
    client.access.refusals = [Conflict("one"), Expired("two")]
    client.access.calls.clear()
    with pytest.raises(Expired):
        await client.catalog.create_namespace("m")
    assert client.access.calls == BEGUN_AGAIN


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"id": "019a0000-0000-7000-8000-000000000001"},
        {"key": "nightly"},
        {"writer": ("loader", 7)},
        {"isolation": "serializable"},
    ],
    ids=str,
)
async def test_a_transaction_begins_at_the_head_and_is_told_every_conflict(
    client: Client, terms: dict[str, Any]
) -> None:
    assert client.session.known_head == 2
    client.access.refusals = [Conflict("somebody was first", retryable=True)]
    client.access.calls.clear()
    with pytest.raises(Conflict):
        async with client.catalog.transaction(**terms) as tx:
            await tx.create_namespace("m")
    assert client.access.calls == ASKED_FIRST

    client.access.refusals = [Conflict("somebody was first", retryable=True)]
    client.access.calls.clear()
    with pytest.raises(Conflict):
        await client.catalog.retry(lambda tx: tx.create_namespace("m"), attempts=1)
    assert client.access.calls == ASKED_FIRST


async def test_racing_clients_end_as_before(client: Client, other: Client) -> None:
    """Clients that race from one version end as before: one creation wins, one drop wins, the later change holds."""
    results: list[Any] = await asyncio.gather(
        *(one.catalog.create_table("n.u", SCHEMA) for one in (client, other)), return_exceptions=True
    )
    assert sum(isinstance(result, AlreadyExists | Conflict) for result in results) == 1
    results = await asyncio.gather(
        *(one.catalog.drop_table("n.u") for one in (client, other)), return_exceptions=True
    )
    assert sum(isinstance(result, NotFound | Conflict) for result in results) == 1
    commits = await asyncio.gather(
        *(one.catalog.update_table("n.t", set={"by": by}) for by, one in (("a", client), ("b", other)))
    )
    last = max(zip(commits, "ab", strict=True), key=lambda done: done[0].version)[1]
    assert (await client.catalog.load_table("n.t")).properties == {"by": last}


# --- another history -------------------------------------------------------------------------------


async def restored(before: dict[str, Any], versions: int) -> Behind:
    """Start a daemon on a copy of the storage, after others have committed there."""
    storage = MemoryStorage()
    storage._files.update(before)
    stranger = Client(Behind(await Journal.open(storage)))
    for number in range(versions):
        await stranger.catalog.create_namespace(f"other{number}")
    return Behind(await Journal.open(storage))


@pytest.mark.parametrize(("versions", "is_connected"), [(0, True), (2, False), (3, False), (9, False)])
async def test_a_replaced_history_is_found_out(
    storage: MemoryStorage, client: Client, versions: int, is_connected: bool
) -> None:
    before = dict(storage._files)
    for name in ("x", "y", "z"):
        await client.catalog.create_namespace(name)
    client.move_to(await restored(before, versions))
    client.is_connected = is_connected
    with pytest.raises((InvalidInput, Corrupt)) as caught:
        await client.catalog.create_namespace("m")
    # With fewer versions than the client has seen, the newest is missing. Otherwise another has its place.
    assert caught.value.kind == ("head_missing" if versions < 3 else "bad_token")
    assert not await Client(client.access).catalog.namespace_exists("m")


async def test_without_a_connection_the_head_is_asked_for(client: Client) -> None:
    client.is_connected = False
    assert await client.calls(client.catalog.create_namespace("m")) == ASKED_FIRST


async def test_a_call_without_an_answer_ends_the_knowledge(client: Client) -> None:
    async def away(*_: Any) -> Any:
        raise Unavailable("gone", kind="storage_read_only")

    client.access.load = away  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await client.catalog.table_exists("n.t")
    assert await client.calls(client.catalog.create_namespace("m")) == ASKED_FIRST


# --- the same as asking first ----------------------------------------------------------------------

_NAMESPACES, _TABLES = ("a", "b"), ("a.t", "a.u", "b.t")
_TEXT = st.sampled_from(("x", "y"))
_NAMESPACE, _TABLE = st.sampled_from(_NAMESPACES), st.sampled_from(_TABLES)
_SET = st.dictionaries(_TEXT, _TEXT, min_size=1)
VERBS = st.one_of(
    st.tuples(st.just("create_namespace"), _NAMESPACE),
    st.tuples(st.just("drop_namespace"), _NAMESPACE),
    st.tuples(st.just("drop_namespace"), _NAMESPACE, st.just(True)),
    st.tuples(st.just("update_namespace"), _NAMESPACE, _SET),
    st.tuples(st.just("update_catalog"), _SET),
    st.tuples(st.just("create_table"), _TABLE, st.just(SCHEMA)),
    st.tuples(st.just("update_table"), _TABLE, _SET),
    st.tuples(st.just("drop_table"), _TABLE),
    st.tuples(st.just("rename_table"), _TABLE, _TABLE),
    st.tuples(st.just("create_view"), _TABLE, _TEXT),
    st.tuples(st.just("replace_view"), _TABLE, _TEXT),
    st.tuples(st.just("drop_view"), _TABLE),
    st.tuples(st.just("undrop"), _TABLE),
)
TURNS = st.lists(
    st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from((0.0, 0.5, 3.0)), VERBS), max_size=25
)


@given(turns=TURNS)
def test_a_verb_ends_as_if_it_had_asked_first(turns: list[tuple[int, bool, float, Any]]) -> None:
    """A verb ends as if it had asked for the head first: versions, errors and the final state are the same.

    Two clients use one daemon or the other, and learn of each other by the log alone.
    """
    assert asyncio.run(played(turns, memory=True)) == asyncio.run(played(turns, memory=False))


async def played(turns: list[tuple[int, bool, float, Any]], *, memory: bool) -> list[object]:
    storage = MemoryStorage()
    await Journal.create(storage)
    daemons = [Behind(await Journal.open(storage)) for _ in range(2)]
    clients = [Client(daemon, memory=memory) for daemon in daemons]
    told: list[object] = []
    for who, is_moving, pause, (verb, *arguments) in turns:
        client = clients[who]
        client.now += pause
        if is_moving:
            client.move_to(daemons[daemons.index(client.access) - 1])
        try:
            told.append((await getattr(client.catalog, verb)(*arguments)).version)
        except AlpheusError as error:
            told.append((type(error), error.kind))
    catalog = clients[0].catalog
    told.append(dict((await catalog.info()).properties))
    for namespace in await catalog.list_namespaces():
        told.append((namespace.name, dict((await catalog.load_namespace(namespace)).properties)))
        for table in await catalog.list_tables(namespace):
            told.append((table.name, dict((await catalog.load_table(table)).properties)))
        for view in await catalog.list_views(namespace):
            told.append((view.name, (await catalog.load_view(view)).sql))
    await storage.close()
    return told


# --- real daemons ----------------------------------------------------------------------------------


@pytest.fixture
def known_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the head known, however long a call takes here."""
    monkeypatch.setattr(session, "HEAD_KNOWN_SECONDS", 1e9)


async def test_calls_that_a_daemon_gets(known_for_ever: None) -> None:
    metrics = Metrics()
    journal = await Journal.create(MemoryStorage())
    await journal.load_state()

    async def count(name: str) -> float:
        families = text_string_to_metric_families((await metrics.text()).decode())
        return sum(
            value
            for family in families
            for sample, labels, value, *_ in family.samples
            if (sample == "alpheus_request_seconds_count" and labels["method"] == name) or sample == name
        )

    try:
        config = Config(url="memory://x", listen="127.0.0.1:0")
        async with (
            running(config, journal, metrics=metrics) as address,
            await connect(f"grpc://{address}") as catalog,
        ):
            await catalog.create_namespace("n")  # connecting to the catalog made the head known
            await asyncio.gather(*(catalog.create_table(f"n.t{number}", SCHEMA) for number in range(20)))
            for number in range(20):
                await catalog.update_table(f"n.t{number}", set={"a": "b"})
            assert await count("Resolve") == 0
            assert await count("alpheus_commit_group_transactions_sum") == 41
            async with catalog.transaction() as tx:
                await tx.drop_table("n.t0")
            assert await count("Resolve") == 1
    finally:
        await journal.close()


async def test_a_daemon_that_ended_is_not_connected(
    start_daemon: Callable[..., Any], tmp_path: Path, known_for_ever: None
) -> None:
    lake = f"file://{tmp_path}/lake"
    daemon = await asyncio.to_thread(start_daemon, lake, "--create")
    catalog = await connect(daemon.url, timeout=60)
    try:
        access: Any = catalog._session.access
        await catalog.create_namespace("n")
        assert catalog._session.known_head == 1
        state = access._channel.get_state()
        await asyncio.to_thread(daemon.kill)
        await access._channel.wait_for_state_change(state)
        assert not access.is_connected()
        assert catalog._session.known_head is None
        await asyncio.to_thread(start_daemon, lake, listen=daemon.address)
        assert (await catalog.create_namespace("m")).version == 2
        assert access.is_connected()
    finally:
        await catalog.close()
