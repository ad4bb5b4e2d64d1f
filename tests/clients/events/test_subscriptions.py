"""Durable subscriptions: every event at least once, in order within a turn, one turn at a time, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import aio, cli
from alpheus.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus.events.consumer import AsyncSubscription
from alpheus.events.events import filter_of
from alpheus.events.subscriptions import AsyncSubscriptions, terms_of
from alpheus.session.retry import Patience
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Position
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import CreateNamespace
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Fault, Lake, seeded
from alpheus_journal.testing.determinism import SeededIdentities
from alpheus_journal.testing.simulation import Network, Process, SimulatedClock, SimulatedLoop, Weather

# --- both ways, both dialects ----------------------------------------------------------------------


@pytest.fixture(params=["storage-32"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, start_daemon: Callable[..., Any]
) -> Iterator[alpheus.Catalog]:
    way, _, digits = request.param.partition("-")
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url, version_digits=int(digits or 32)) as made:
        made.create_namespace("sales")
        made.create_namespace("hr")
        if way == "storage":
            yield made
    if way == "daemon":
        daemon = start_daemon(url)
        with alpheus.connect(daemon.url) as made:
            yield made
        daemon.stop()


def touch(catalog: alpheus.Catalog, namespace: str, value: int) -> int:
    return catalog.update_namespace(namespace, {"n": str(value)}).version


each_way = pytest.mark.parametrize("catalog", ["storage-32", "storage-64", "daemon"], indirect=True)


@each_way
def test_turns(catalog: alpheus.Catalog) -> None:
    """Created when absent; consumed, acknowledged, left, gone on with; looked at, reset, deleted."""
    with catalog.subscribe("mail", namespaces="sales", lease=60) as mail:
        assert catalog.admin.subscriptions.load("mail").holder == ""
        first = next(mail)
        assert (first.version, [change.name for change in first.changes]) == (1, ["sales"])
        assert mail.epoch == 1
        version = touch(catalog, "sales", 1)
        touch(catalog, "hr", 1)
        second = next(mail)
        assert second.version == version
        mail.acknowledge(first)
        assert mail.position == 1
        shown = catalog.admin.subscriptions.load("mail")
        assert (shown.position, shown.holder, shown.epoch, shown.namespaces) == (
            1,
            mail.holder,
            1,
            ("sales",),
        )
    with pytest.raises(InvalidInput):
        next(mail)
    assert catalog.admin.subscriptions.load("mail").holder == "", "it left"
    assert [(each.holder, each.epoch) for each in catalog.admin.subscriptions.list()] == [("", 1)]
    with catalog.subscribe("mail") as mail:
        again = next(mail)  # at once: the turn was given back
        assert (again.version, mail.epoch) == (second.version, 2)
        mail.acknowledge(again)
        mail.acknowledge(again)
        with pytest.raises(InvalidInput, match="did not deliver"):
            mail.acknowledge(msgspec.structs.replace(again, version=99))
        catalog.admin.subscriptions.reset("mail", after=0)
        with pytest.raises(Conflict, match="since it was reset") as caught:
            next(mail)
        assert caught.value.kind == "subscription_claimed"
        with pytest.raises(Conflict):
            mail.acknowledge(again)
    with catalog.subscribe("mail", namespaces=["sales"]) as mail:
        assert [next(mail).version, next(mail).version] == [1, second.version]
        catalog.admin.subscriptions.delete("mail")
        with pytest.raises(NotFound) as gone:
            next(mail)
        assert gone.value.kind == "no_subscription"
    assert catalog.admin.subscriptions.list() == []
    assert catalog.admin.check().ok


def test_an_interrupted_call_passes_over_nothing(tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        for name in "ab":
            catalog.create_namespace(name)
        with catalog.subscribe("mail", after=0) as mail:
            alpheus.sync.portal.run(
                mail._fetch()
            )  # the thread that waited was interrupted when it was about to return
            assert [next(mail).version, next(mail).version] == [1, 2]


@each_way
def test_another_consumer_takes_over(catalog: alpheus.Catalog) -> None:
    """A consumer that is silent for its lease is replaced and told by whom; what it acknowledges then is refused."""
    silent = catalog.subscribe("mail", lease=0.3, after="latest", names="sales")
    silent.wait_active()
    touch(catalog, "sales", 1)
    event = next(silent)
    signs = silent._inner._signs
    assert signs is not None
    alpheus.sync.portal.background_loop()._loop.call_soon_threadsafe(signs.cancel)
    with catalog.subscribe("mail") as mail:
        assert next(mail).version == event.version
        with pytest.raises(Conflict) as caught:
            silent.acknowledge(event)
        assert caught.value.theirs == mail.holder
        assert mail.holder in caught.value.message
        with pytest.raises(Conflict):
            next(silent)
        mail.acknowledge(event)
    silent.close()


def test_the_filter_is_told_apart(catalog: alpheus.Catalog) -> None:
    catalog.admin.subscriptions.create("mail", names=["sales.*", ("hr", "people")], kinds="table", lease=9)
    for asked, said in [
        ({"names": "sales.*"}, "names"),
        ({"kinds": ["table", "view"]}, r"kinds \['table'\], asked for was \['table', 'view'\]"),
        ({"details": True}, "details"),
        ({"lease": 10}, "lease millis 9000"),
        ({"actions": "table_insert"}, "actions"),
        ({"namespaces": ["hr"]}, "namespaces"),
    ]:
        with pytest.raises(InvalidInput, match=said), catalog.subscribe("mail", **asked):  # type: ignore[arg-type]
            pass
    with catalog.subscribe("mail", names=["hr.people", "sales.*"], kinds="table", details=False):
        pass
    with pytest.raises(AlreadyExists) as caught:
        catalog.admin.subscriptions.create("mail")
    assert caught.value.kind == "subscription_exists"
    for wrong in (
        {"lease": 0.01},
        {"details": 1},
        {"actions": "SLEEP"},
        {"kinds": "door"},
        {"after": "soon"},
    ):
        with pytest.raises(InvalidInput):
            catalog.subscribe("other", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        catalog.admin.subscriptions.create("other", after=99)
    with pytest.raises(InvalidInput, match="name"):
        catalog.admin.subscriptions.create("a*b")


def test_events_of_actions_and_patterns(catalog: alpheus.Catalog) -> None:
    """Pattern and action narrow, and what they pass over is no gap."""
    import pyarrow as pa

    rows = pa.table({"id": [1]})
    catalog.create_table("sales.orders", rows)
    catalog.create_table("sales.lines", rows.schema)
    appended = catalog.append("sales.lines", rows).version
    catalog.update_table("sales.lines", {"k": "v"})
    found = list(catalog.events(names="sales.l*", actions=["TABLE_INSERT"]))
    assert [event.version for event in found] == [appended]
    found = list(catalog.events(names=["sales.?rders"], actions="table_insert"))
    assert [[change.name for change in event.changes] for event in found] == [["sales.orders"]]
    with catalog.subscribe("inserts", actions="TABLE_INSERT", details=True) as mail:
        events = [next(mail), next(mail)]
        assert events[1].version == appended
        after = events[1].changes[0].after
        assert after is not None
        assert after["sequence"] == 1


def test_commands(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    alpheus.create(url).close()

    def run(*words: str, status: int = 0) -> Any:
        result = CliRunner().invoke(cli.cli, ["--catalog", url, "--output", "json", *words])
        assert result.exit_code == status, result.output
        return json.loads(result.stdout or result.stderr)

    run("subscription", "create", "mail", "--name", "sales.*", "--kind", "table", "--action", "TABLE_INSERT")
    run("subscription", "create", "now", "--after", "latest", "--lease", "5")
    assert [each["name"] for each in run("subscription", "list")] == ["mail", "now"]
    shown = run("subscription", "show", "now")
    assert (shown["position"], shown["lease_seconds"], shown["holder"]) == (1, 5, "")
    assert run("subscription", "show", "mail")["names"] == ["sales.*"]
    run("subscription", "reset", "mail", "--after", "2")
    assert run("subscription", "show", "mail")["position"] == 2
    run("subscription", "delete", "now")
    missing = run("subscription", "show", "now", status=1)
    assert missing["kind"] == "no_subscription"
    assert "alpheus subscription create now" in missing["hint"]
    assert run("subscription", "create", "mail", status=1)["kind"] == "subscription_exists"
    text = CliRunner().invoke(cli.cli, ["--catalog", url, "subscription", "list"]).stdout
    assert "mail" in text
    assert "POSITION" in text
    assert "nobody" in text
    actions = run("events", "--action", "SUBSCRIPTION_DROP")
    assert actions["changes"][0]["type"] == "dropped"


# --- one process, in detail ------------------------------------------------------------------------


def session_on(journal: Journal, lake: Lake, seed: int = 0) -> Session:
    async def storage() -> Any:
        return journal.storage

    return Session(
        journal,
        url="memory://",
        principal="ann",
        patience=Patience(5),
        identities=SeededIdentities(seed + 1000, lake.clock),
        open_storage=storage,
        outage="storage_unavailable",
    )


def consumer(session: Session, name: str = "mail", **terms: Any) -> AsyncSubscription:
    given = {"namespaces": None, "names": None, "kinds": None, "actions": None, "details": None} | terms
    return AsyncSubscription(session, name, terms_of(after=given.pop("after", None), lease=None, **given))


async def last_of(mail: AsyncSubscription) -> None:
    """Read until it ends."""
    async for _ in mail:
        pass


async def test_a_cancelled_reader_loses_nothing() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    async with consumer(session, after="latest", kinds="namespace") as mail:
        await mail.wait_active()
        for number in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001 * (number % 3)):
                    event = await anext(mail)
                    raise AssertionError(f"version {event.version} came from nowhere")
        await lake.commit(journal, lake.namespace("a"))
        await lake.commit(journal, lake.namespace("b"))
        seen = []
        while len(seen) < 2:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.002):
                    seen.append((await anext(mail)).version)
        assert seen == [journal.head.version - 1, journal.head.version]


class Gate:
    """An `Access` whose acknowledgements wait until it is open."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acknowledge(self, *values: Any) -> None:
        self.reached.set()
        await self.open.wait()
        await self._inner.acknowledge(*values)


def gated(journal: Journal, lake: Lake, seed: int = 0) -> tuple[Gate, AsyncSubscription]:
    session = session_on(journal, lake, seed)
    gate = Gate(journal)
    session.access = cast(Any, gate)
    return gate, consumer(session, after=0)


async def test_a_turn_that_is_cancelled_while_it_begins() -> None:
    """The claim is committed and its first sign is not written: it goes on with that claim, or gives it back."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    gate, mail = gated(journal, lake)
    waiting = asyncio.ensure_future(anext(mail))
    await gate.reached.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.open.set()
    assert (await anext(mail)).version == 1
    assert mail.epoch == 1
    await mail.close()

    gate, other = gated(journal, lake, 1)
    waiting = asyncio.ensure_future(anext(other))
    await gate.reached.wait()
    closing = asyncio.ensure_future(other.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    with pytest.raises(InvalidInput, match="was closed"):
        await waiting
    assert other._signs is None
    shown = await AsyncSubscriptions(session_on(journal, lake, 2)).load("mail")
    assert (shown.holder, shown.epoch) == ("", 2)


async def test_a_turn_that_is_lost_before_it_begins() -> None:
    """Whoever hears with his first sign that another was faster stands by again."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    gate, mail = gated(journal, lake)
    entries = AsyncSubscriptions(session_on(journal, lake, 1))
    waiting = asyncio.ensure_future(anext(mail))
    await gate.reached.wait()
    await entries.reset("mail", 0)
    gate.open.set()
    assert (await waiting).version == 1
    assert mail.epoch == 3
    await mail.close()


async def test_an_event_that_cannot_be_read_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.namespace("b"))
    first = journal.head.version - 1
    async with consumer(session_on(journal, lake), after=first - 1) as mail:

        def damaged(event: Any) -> Any:
            raise Corrupt(f"version {event.version}", kind="corrupt_definition")

        with monkeypatch.context() as patched:
            patched.setattr("alpheus.events.consumer.event_of", damaged)
            for _ in range(2):
                with pytest.raises(Corrupt, match=f"version {first}"):
                    await anext(mail)
        assert (await anext(mail)).version == first


async def test_what_does_not_match_counts_as_done() -> None:
    """Where nothing is open, the position follows the log: history that nobody needs can expire."""
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    await AsyncSubscriptions(session).create("mail", names="a", after="latest")
    mail = consumer(session)
    await mail.wait_active()
    for index in range(20):
        await lake.commit(journal, lake.namespace(f"n{index}"))
    await lake.commit(journal, lake.namespace("a"))
    event = await anext(mail)
    await lake.commit(journal, lake.namespace("z"))
    waiting = asyncio.ensure_future(anext(mail))
    while mail._reached[0] <= journal.head.version:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await mail._write()
    assert mail.position is not None
    assert mail.position < event.version, "an event that is open holds the position"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await mail.acknowledge(event)
    assert mail.position == journal.head.version
    await mail.close()
    assert (await AsyncSubscriptions(session).load("mail")).position == journal.head.version


async def test_history_that_is_gone_is_said_with_a_way_on() -> None:
    lake = Lake()
    journal = await lake.create()
    await AsyncSubscriptions(session_on(journal, lake)).create("mail")
    for name in "abcd":
        await lake.commit(journal, lake.namespace(name))
    await lake.expire(below=3)
    journal = await lake.open()
    session = session_on(journal, lake, 1)
    async with consumer(session) as mail:
        with pytest.raises(Expired) as caught:
            await anext(mail)
        assert caught.value.oldest == 3
        assert "reset('mail', after=3)" in caught.value.hint
        with pytest.raises(Expired):
            await anext(mail)
    await AsyncSubscriptions(session).reset("mail", 3)
    async with consumer(session, "mail") as mail:
        assert (await anext(mail)).version == 4
    with pytest.raises(Expired):
        await AsyncSubscriptions(session).reset("mail", 1)


async def test_a_subscription_of_the_same_name_is_another() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    await entries.create("mail")
    mail = consumer(session)
    await anext(mail)
    await entries.delete("mail")
    await entries.create("mail")
    with pytest.raises(NotFound, match="created later"):
        await last_of(mail)
    await mail.close()


async def test_files_of_earlier_turns_go() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    for _ in range(5):
        async with consumer(session) as mail:
            await mail.wait_active()
    left = [info.path async for info in lake.storage.list("sub/")]
    assert len(left) == 1


class Heart:
    """The sleeping and the clock of a consumer, and what becomes of its acknowledgements."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.now = 0.0
        self.pauses: list[float] = []
        self.asleep = asyncio.Event()
        self._go_on = asyncio.Event()
        self.written: list[Position] = []
        self.failures: list[AlpheusError] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._go_on.clear()
        self.asleep.set()
        await self._go_on.wait()
        self.now += seconds

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        if self.failures:
            raise self.failures.pop(0)
        await self._inner.acknowledge(name, path, position)
        self.written.append(position)

    async def beat(self) -> None:
        """Until it sleeps again."""
        await self.asleep.wait()
        self.asleep.clear()
        self._go_on.set()
        await self.asleep.wait()


@contextlib.asynccontextmanager
async def beating(
    lake: Lake, *, lease: float = 12.0
) -> AsyncIterator[tuple[Journal, Heart, AsyncSubscription]]:
    """A consumer whose turn it is, of a lease that asks for a sign every four seconds."""
    journal = await lake.create()
    session = session_on(journal, lake)
    heart = Heart(journal)
    session.access = cast(Any, heart)
    call = session.call

    async def call_once(what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """As after the time in which a call is tried again."""
        return await (attempt() if what == "acknowledge" else call(what, attempt))

    session.call = call_once  # type: ignore[method-assign]
    terms = terms_of(None, None, "namespace", None, None, 0, lease)
    mail = AsyncSubscription(session, "mail", terms, monotonic=lambda: heart.now, sleep=heart.sleep)
    await mail.wait_active()
    try:
        yield journal, heart, mail
    finally:
        await mail.close()


async def test_a_consumer_that_left_gives_no_more_signs() -> None:
    lake = Lake()
    async with beating(lake) as (_, heart, mail):
        await heart.beat()
        signs = mail._signs
        assert signs is not None
        await mail.close()
        assert signs.cancelled()
        assert heart.written[-1].released
        said = len(heart.written)
        heart._go_on.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(heart.written) == said, "a sign after its release would take the turn from the next one"
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert "signs of mail" not in names


@pytest.mark.parametrize(
    "outage",
    [Unavailable("away"), Exhausted("full"), OutcomeUnknown("lost", transaction_id="")],
    ids=lambda error: error.kind,
)
async def test_an_outage_during_a_sign_costs_no_turn(outage: AlpheusError) -> None:
    """It is given again after a quarter of the time, and the next ones at the pace of before."""
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        await heart.beat()
        assert heart.pauses == [4.0, 4.0]
        heart.failures = [outage]
        await heart.beat()
        await heart.beat()
        await heart.beat()
        assert heart.pauses == [4.0, 4.0, 1.0, 4.0, 4.0]
        assert [position.beat for position in heart.written] == [1, 2, 4, 5]
        await lake.commit(journal, lake.namespace("a"))
        event = await anext(mail)
        await mail.acknowledge(event)
        assert mail.position == event.version


async def test_a_sign_that_is_refused_ends_the_turn() -> None:
    lake = Lake()
    async with beating(lake) as (_, heart, mail):
        signs = mail._signs
        assert signs is not None
        heart.failures = [Conflict("another has it", transaction_id="", kind="subscription_claimed")]
        await heart.asleep.wait()
        heart._go_on.set()
        await signs
        for _ in range(2):
            with pytest.raises(Conflict, match="another has it"):
                await anext(mail)


async def test_an_acknowledgement_is_a_sign() -> None:
    lake = Lake()
    async with beating(lake) as (journal, heart, mail):
        await heart.asleep.wait()
        await lake.commit(journal, lake.namespace("a"))
        event = await anext(mail)
        heart.now = 3.0
        await mail.acknowledge(event)
        said = len(heart.written)
        heart.now = 0.0  # the four seconds of its sleep are added to this
        await heart.beat()
        assert (len(heart.written), heart.pauses[-1]) == (said, 3.0), "four less the one since"
        await heart.beat()
        assert (len(heart.written), heart.pauses[-1]) == (said + 1, 4.0)


async def test_acknowledging_an_older_event_takes_nothing_back() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    mail = consumer(session, kinds="namespace", after="latest")
    await mail.wait_active()
    for name in "abc":
        await lake.commit(journal, lake.namespace(name))
    first, second, third = [await anext(mail) for _ in range(3)]
    await mail.acknowledge(second)
    assert mail.position == second.version
    await mail.acknowledge(first)
    assert mail.position == second.version
    await mail._write()  # a sign of life says where it is
    await mail.close()
    shown = await AsyncSubscriptions(session).load("mail")
    assert shown.position == second.version
    async with consumer(session_on(journal, lake, 1)) as following:
        assert (await anext(following)).version == third.version


async def test_a_list_of_several_pages() -> None:
    lake = Lake()
    journal = await lake.create()
    session = session_on(journal, lake)
    entries = AsyncSubscriptions(session)
    made = [f"m{number}" for number in range(5)] + ["other"]
    for name in made:
        await entries.create(name)
    asked: list[tuple[int | None, str]] = []
    whole = session.page

    async def paged(version: int | None, *args: Any, **kwargs: Any) -> Any:
        asked.append((version, kwargs["after"]))
        return await whole(version, *args, **kwargs | {"limit": 2})

    session.page = paged  # type: ignore[method-assign]
    assert [each.name for each in await entries.list()] == made
    head = journal.head.version
    assert asked == [(None, ""), (head, "m1"), (head, "m3")], "all pages at one version"
    assert [each.name for each in await entries.list("m")] == made[:5]


async def test_the_filter_that_a_user_gives() -> None:
    found = filter_of("a", ["a.*", ("b", "x*"), "c.d"], ["table"], ["table_insert"])
    assert found == EventFilter(
        namespaces=frozenset({"a"}),
        names=frozenset({"b.x*", "c.d"}),
        name_patterns=frozenset({"a.*"}),
        kinds=frozenset({Kind.TABLE}),
        actions=frozenset({"TABLE_INSERT"}),
    )


# --- many consumers, a simulated world -------------------------------------------------------------

CONSUMERS = 3
VERSIONS = 40


class World:
    """Writers and consumers of one subscription, each in a process of its own that may die or stand still; and what
    every consumer saw."""

    def __init__(self, seed: int, *, calm: bool) -> None:
        self.loop = SimulatedLoop(seed)
        self.store = MemoryStorage()
        self.random = random.Random(seed)
        self.calm = calm
        self.lease = 6.0
        self.number = 0
        self.processed: set[int] = set()
        self.acknowledged: dict[
            str, set[str]
        ] = {}  # epoch's file to the consumers that wrote it and were told so
        self.done: dict[int, int] = {}  # epoch to the version up to which acknowledgements were answered
        self.began: dict[int, int] = {}  # epoch to the version after which it began
        self.takeovers = self.losses = self.unanswered = 0

    def network(self) -> Network:
        rate = 0.0 if self.calm else 0.04
        weather = Weather(
            fault_rate=rate,
            late_rate=0.0 if self.calm else 0.01,
            late_seconds_max=15.0,
            timeout_seconds=1.0,
        )
        faults = [fault for fault in Fault if fault not in (Fault.TRUNCATED, Fault.STALE_404, Fault.SLOW)]
        return Network(
            self.loop, self.store, weather, seeded(self.random.getrandbits(32), rate, faults=faults)
        )

    async def session(self) -> Session:
        self.number += 1
        clock = SimulatedClock(self.loop)
        identities = SeededIdentities(self.number, clock)
        network = self.network()
        while True:
            with contextlib.suppress(AlpheusError):
                journal = await Journal.open(network, clock=clock, identities=identities)
                break

        async def storage() -> Any:
            return network

        patience = Patience(
            20, monotonic=self.loop.time, sleep=asyncio.sleep, jitter=random.Random(self.number)
        )
        return Session(
            journal,
            url="memory://",
            principal=f"p{self.number}",
            patience=patience,
            identities=identities,
            open_storage=storage,
            outage="storage_unavailable",
        )

    async def write(self) -> None:
        session = await self.session()
        catalog = aio.AsyncCatalog(session)
        for index in range(VERSIONS):
            await asyncio.sleep(self.random.random() * 3)
            name = "mine" if index % 3 else "other"
            while True:
                try:
                    await catalog.update_namespace(name, {"n": str(index)})
                    break
                except (Conflict, Unavailable, alpheus.errors.OutcomeUnknown):
                    continue

    async def consume(self, until: Callable[[], bool]) -> None:
        """One consumer's life: subscribe, again whenever the turn is lost."""
        session = await self.session()
        while not until():
            mail = AsyncSubscription(
                session,
                "mail",
                terms_of("mine", None, None, None, None, 1, self.lease),
                monotonic=self.loop.time,
                sleep=asyncio.sleep,
            )
            try:
                async with mail:
                    await self.follow(mail, until)
            except Conflict as error:
                if error.kind != "subscription_claimed":
                    raise
                self.losses += 1
            except (Unavailable, alpheus.errors.OutcomeUnknown):
                self.unanswered += 1

    async def follow(self, mail: AsyncSubscription, until: Callable[[], bool]) -> None:
        await mail.wait_active()
        self.takeovers += 1
        assert mail._definition is not None
        epoch, path = mail.epoch, mail._definition.position_path
        begin = mail.position if mail.position is not None else -1
        assert epoch not in self.began, f"two turns have epoch {epoch}"
        self.began[epoch] = begin
        if self.calm:
            assert begin >= max([-1, *(done for other, done in self.done.items() if other < epoch)])
        last = begin
        while not until():
            try:
                async with asyncio.timeout(self.lease):
                    event = await anext(mail)
            except TimeoutError:
                continue
            assert event.version > last, "out of order, or twice in one turn"
            last = event.version
            await asyncio.sleep(self.random.random() * 3)
            self.processed.add(event.version)  # who dies before has not done it
            if self.random.random() < 0.7:
                await mail.acknowledge(event)
                self.acknowledged.setdefault(path, set()).add(mail.holder)
                self.done[epoch] = max(self.done.get(epoch, -1), event.version)

    async def live(self) -> None:
        """Consumers die, stand still and come back while versions are written; then one drains the rest."""
        lake = Lake(self.store)
        journal = await lake.create()
        for name in ("mine", "other"):
            await journal.commit(
                lake.transaction(journal, CreateNamespace(name=name, namespace_id=lake.identities.uuid4()))
            )
        writer = asyncio.create_task(self.write())
        over = False
        places: list[tuple[Process, asyncio.Task[None]]] = []

        def start() -> tuple[Process, asyncio.Task[None]]:
            process = Process(f"consumer-{self.number}")
            return process, self.loop.start(process, self.consume(lambda: over))

        places = [start() for _ in range(CONSUMERS)]
        while not writer.done():
            await asyncio.sleep(self.random.random() * 8)
            place = self.random.randrange(CONSUMERS)
            process, task = places[place]
            if self.random.random() < 0.5:
                self.loop.kill(process)
                places[place] = start()
            else:
                self.loop.pause(process, self.random.random() * 4 * self.lease)
        await writer
        wanted = await self.wanted()
        deadline = self.loop.time() + 600
        while wanted - self.processed and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(1)
        over = True
        assert not wanted - self.processed, "events were lost"
        await asyncio.sleep(4 * self.lease)
        for process, task in places:
            if task.done():
                task.result()
            self.loop.kill(process)
        for path, holders in self.acknowledged.items():
            assert len(holders) == 1, f"{path} was acknowledged by {holders}"
        checked = await lake.open()
        assert [item async for item in checked.check()][-1].findings == 0  # type: ignore[union-attr]

    async def wanted(self) -> set[int]:
        journal = await Journal.open(self.store)
        mine = fmt.namespace_name("mine")
        found = set()
        async for event in journal.events(after=1, filter=EventFilter(names=frozenset({"mine"}))):
            if any(change.name == mine for change in getattr(event, "changes", ())):
                found.add(event.version)
        return found


@pytest.mark.parametrize("calm", [True, False])
def test_consumers_that_die_and_stand_still(calm: bool, lane_count: Callable[[int, int], int]) -> None:
    totals = {"takeovers": 0, "losses": 0, "unanswered": 0}
    for seed in range(lane_count(3, 600)):
        world = World(seed, calm=calm)
        try:
            world.loop.run(world.live())
        except BaseException as error:
            error.add_note(f"seed {seed}, calm {calm}")
            raise
        for name in totals:
            totals[name] += getattr(world, name)
    assert totals["takeovers"] > 5
    assert totals["losses"] > 0, totals
