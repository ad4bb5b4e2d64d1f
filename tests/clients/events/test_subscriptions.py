"""Durable subscriptions deliver every event at least once, in order within a turn, whatever happens.

A subscription has one turn at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import aio, cli
from alpheus.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Unavailable,
)
from alpheus.events.consumer import AsyncSubscription
from alpheus.events.subscriptions import terms_of
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.journal import Journal
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import CreateNamespace
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Fault, Lake, seeded
from alpheus_journal.testing.simulation.ids import SeededIdentities
from alpheus_journal.testing.simulation.loop import Network, Process, SimulatedClock, SimulatedLoop, Weather

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
    """A subscription is created when absent.

    It can be consumed, acknowledged, left, resumed, inspected, reset and deleted.
    """
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
        again = next(mail)  # immediately, because the turn was given back
        assert (again.version, mail.epoch) == (second.version, 2)
        mail.acknowledge(again)
        mail.acknowledge(again)
        with pytest.raises(InvalidInput, match="did not deliver"):
            mail.acknowledge(msgspec.structs.replace(again, version=99))
        catalog.admin.subscriptions.reset("mail", after=0)
        with pytest.raises(Conflict, match="it was reset and has no holder") as caught:
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
            # The waiting thread was interrupted just before it returned.
            alpheus.sync.portal.run(mail._fetch())
            assert [next(mail).version, next(mail).version] == [1, 2]


@each_way
def test_another_consumer_takes_over(catalog: alpheus.Catalog) -> None:
    """A consumer that is silent for its lease is replaced.

    Its next acknowledgement is refused with the name of the new holder.
    """
    silent = catalog.subscribe("mail", lease=0.3, after="latest", names="sales")
    silent.wait_active()
    touch(catalog, "sales", 1)
    event = next(silent)
    signs = silent._inner._sign_task
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
        ({"kinds": ["table", "view"]}, r"kinds \['table'\]; you asked for \['table', 'view'\]"),
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
    """Patterns and actions narrow the events. Events that they skip are no gap."""
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


# --- many consumers, a simulated world -------------------------------------------------------------

CONSUMERS = 3
VERSIONS = 40


class World:
    """Writers and consumers of one subscription, and what every consumer saw.

    Each runs in its own process, which may die or stop.
    """

    def __init__(self, seed: int, *, calm: bool) -> None:
        self.loop = SimulatedLoop(seed)
        self.store = MemoryStorage()
        self.random = random.Random(seed)
        self.calm = calm
        self.lease = 6.0
        self.number = 0
        self.processed: set[int] = set()
        # file of an epoch -> the consumers that wrote the file and got the answer
        self.acknowledged: dict[str, set[str]] = {}
        self.done: dict[int, int] = {}  # epoch -> the version up to which acknowledgements were answered
        self.began: dict[int, int] = {}  # epoch -> the version after which it began
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

        retry_policy = RetryPolicy(
            20, monotonic=self.loop.time, sleep=asyncio.sleep, jitter=random.Random(self.number)
        )
        return Session(
            journal,
            url="memory://",
            principal=f"p{self.number}",
            retry_policy=retry_policy,
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
        """Run one consumer. Subscribe again whenever the turn is lost."""
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
            # a consumer that dies before this line has not processed the event
            self.processed.add(event.version)
            if self.random.random() < 0.7:
                await mail.acknowledge(event)
                self.acknowledged.setdefault(path, set()).add(mail.holder)
                self.done[epoch] = max(self.done.get(epoch, -1), event.version)

    async def live(self) -> None:
        """Write versions while consumers die, stop and return. Then one consumer reads the rest."""
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
