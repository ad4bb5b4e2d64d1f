"""Daemons, clients and subscribers on one prefix, the faults they get under load, and the checks at the end.

The tests in the folder above use this module. Every client records its answers in a `Ledger`. The judge executes the
stored log on a model and checks:

- each acknowledged transaction is in the log once, at its version, and no refused transaction is in the log;
- the order of versions respects real time;
- the stored catalog is what the operations give;
- each subscriber got every version once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import psutil

import alpheus
from alpheus.session.remote import RemoteAccess
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Exhausted,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Event, Outcome
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    DropTable,
    Operation,
    Transaction,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage import open_storage
from alpheus_journal.testing import Called, Model, check_witness, model_of
from alpheus_journal.testing.simulation.history import CatalogState, canonical, catalog_step

IDENTITIES = RandomIdentities()
START_SECONDS_MAX = 60
ANSWER_SECONDS_MAX = 2.0
"""A client that waits longer for a daemon asks another one."""
SILENCE_SECONDS_MAX = 3.0
"""Daemons here send a heartbeat to each subscriber every second."""
STOPPED_SECONDS_MAX = 2.5
END_SECONDS_MAX = 120
SHARED = "shared"
TABLES = tuple("abcdefgh")
CACHES = ("alpheus_cache_bytes", "alpheus_event_ring_bytes")


# --- processes -------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One measurement of a daemon: the known head, resident bytes, bytes of its bounded caches, and counts."""

    at: float
    version: int
    rss: int
    files: int
    tasks: int
    cached: int = 0


class Daemon:
    """A daemon process that can be killed and restarted on its first port. Measurements are kept for each life."""

    def __init__(
        self,
        name: str,
        url: str,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        program: Sequence[str] = ("-m", "alpheus_daemon"),
    ) -> None:
        """Make a stopped daemon. `program` has the arguments of Python."""
        self.name = name
        self.program = program
        self.url = url
        self.folder = folder
        self.settings = dict(settings or {})
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.lives: list[list[Sample]] = []
        self.reloads = 0
        self._metrics_address = ""
        self._read = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def config(self) -> Path:
        return self.folder / "alpheus.toml"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def write_settings(self, **changed: object) -> None:
        self.settings |= changed
        self.config.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items())
        )

    def start(self) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        self.write_settings()
        command = [sys.executable, *self.program, self.url, "--config", str(self.config)]
        command += [
            "--listen",
            self.address,
            "--port-file",
            str(port_file),
            "--metrics-listen",
            "127.0.0.1:0",
        ]
        with self.log.open("ab") as log:
            log.write(b"\n")  # a killed life may have ended in the middle of a line
            self._read = log.tell()
            self.process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{self.name} did not start: {self.log.read_text()[-2000:]}"
            time.sleep(0.01)
        self.address = port_file.read_text().strip()
        self._metrics_address = ""
        self.is_paused = False
        self.lives.append([])

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        self.is_paused = True
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End the process in an orderly way. Raise AssertionError if its status is not 0."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            assert self.process.wait(30) == 0, self.log.read_text()[-2000:]

    def drop(self) -> None:
        """Kill the process in any state."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def look(self) -> None:
        """Record what the process uses, unless it is down."""
        with contextlib.suppress(
            OSError, psutil.Error, TimeoutError, ValueError, KeyError
        ):  # down, or an incomplete answer
            async with asyncio.timeout(1.0):
                assert self.process is not None
                life, process = self.lives[-1], psutil.Process(self.process.pid)
                numbers = await self._metrics()
                taken = process.memory_info().rss, process.num_fds()
                version, tasks = numbers["alpheus_head_version"], numbers["alpheus_event_loop_tasks"]
                cached = sum(size for name, size in numbers.items() if name.startswith(CACHES))
                life.append(Sample(time.monotonic(), int(version), *taken, int(tasks), int(cached)))

    async def _metrics(self) -> dict[str, float]:
        if not self._metrics_address:
            text = self.log.read_bytes()[self._read :].decode()
            started = [json.loads(line) for line in text.splitlines() if '"serving"' in line]
            if not started:
                raise ValueError("not there yet")
            self._metrics_address = started[-1]["metrics_address"]
        host, _, port = self._metrics_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = (await reader.read()).decode()
        finally:
            writer.close()
        pairs = (line.rpartition(" ") for line in text.splitlines() if line.startswith("alpheus_"))
        return {name: float(value) for name, _, value in pairs}


# --- answers to clients ----------------------------------------------------------------------------


class Asked(msgspec.Struct):
    """A transaction that a client sent, and the final answer."""

    client: str
    transaction: Transaction
    invoked: float
    returned: float = math.inf
    version: int | None = None
    is_refused: bool = False
    attempts: int = 0


class Ledger:
    """All transactions and reads of all clients with their answers, by one clock."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.reads: list[Called] = []
        self.committed = 0
        self.shares: Counter[str] = Counter()
        self.failovers = 0
        self.settled = 0
        self._changed = asyncio.Event()

    def ask(self, client: str, transaction: Transaction) -> Asked:
        asked = self.asked[transaction.id] = Asked(client, transaction, time.monotonic())
        return asked

    def answered(self, asked: Asked, version: int) -> None:
        asked.returned, asked.version = time.monotonic(), version
        self.committed += 1
        self.shares[asked.client] += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def read(self, client: str, began: float, version: int) -> None:
        self.reads.append(
            Called(
                client=client,
                is_commit=False,
                argument=None,
                invoked=began,
                returned=time.monotonic(),
                version=version,
            )
        )

    async def more(self, count: int) -> None:
        """Return when `count` more commits have been acknowledged."""
        goal = self.committed + count
        while self.committed < goal:
            await self._changed.wait()


class Way(Protocol):
    """How a client reaches the catalog."""

    async def commit(self, transaction: Transaction) -> Committed: ...

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False
    ) -> Outcome: ...

    async def close(self) -> None: ...


async def remote(daemon: Daemon, *, streamed: bool = True) -> RemoteAccess:
    access = RemoteAccess(f"grpc://{daemon.address}", timeout=ANSWER_SECONDS_MAX)
    access._commits._is_supported = (
        streamed  # False: as with a daemon of an older release, one call for each commit
    )
    return access


async def library(url: str) -> Journal:
    return await Journal.open(await asyncio.to_thread(open_storage, url))


class Client:
    """Commits one transaction after the other. Without an answer it sends the same transaction to the next daemon."""

    def __init__(self, name: str, ways: Sequence[Way], ledger: Ledger, rng: random.Random) -> None:
        self.name = name
        self.ways = ways
        self.ledger = ledger
        self.rng = rng
        self.seen = 0
        """The newest version that the client knows."""
        self._at = 0

    async def commit(self, *operations: Operation) -> int | None:
        """Commit and return the version, or None if the transaction was definitely refused."""
        transaction = Transaction(
            id=IDENTITIES.uuid7(), begin_version=self.seen, operations=operations, principal=self.name
        )
        asked = self.ledger.ask(self.name, transaction)
        is_in_doubt = False
        while True:
            asked.attempts += 1
            try:
                committed = await self._ask(lambda way: way.commit(transaction))
            except (OutcomeUnknown, TimeoutError):
                is_in_doubt = True
            except (Unavailable, Exhausted):
                pass  # not through this daemon
            except AlpheusError as refused:
                return await self._refused(asked, refused, is_in_doubt)
            else:
                return self._committed(asked, committed)
            await self._go_elsewhere()

    async def _ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(2 * ANSWER_SECONDS_MAX):
            return await question(self.ways[self._at % len(self.ways)])

    async def _go_elsewhere(self) -> None:
        if len(self.ways) > 1:
            self.ledger.failovers += 1
        self._at += 1
        await asyncio.sleep(0.02)

    async def _refused(self, asked: Asked, refused: AlpheusError, is_in_doubt: bool) -> int | None:
        """Return the version or None. An earlier attempt may still be running, and then only settling is final."""
        outcome = Outcome(state="cancelled")
        while is_in_doubt:
            try:
                outcome = await self._ask(
                    lambda way: way.outcome(
                        asked.transaction.id, since=asked.transaction.begin_version, settle=True
                    )
                )
            except (OutcomeUnknown, Unavailable, Exhausted, TimeoutError):
                await self._go_elsewhere()
                continue
            self.ledger.settled += 1
            break
        if outcome.state == "committed" and outcome.commit is not None:
            return self._committed(asked, outcome.commit)
        assert outcome.state == "cancelled", outcome
        assert isinstance(refused, Conflict | NotFound | AlreadyExists), f"{self.name}: {refused!r}"
        asked.is_refused = True
        if isinstance(refused, Conflict) and refused.version is not None:
            self.seen = max(self.seen, refused.version)
        return None

    def _committed(self, asked: Asked, committed: Committed) -> int:
        self.ledger.answered(asked, committed.version)
        self.seen = max(self.seen, committed.version)
        return committed.version


class Writer(Client):
    """Creates, changes and drops tables in its own namespace, and sometimes in one that all writers share."""

    async def run(self, stop: asyncio.Event, pause_seconds: float = 0.0) -> None:
        tables: set[str] = set()
        for number in itertools.count():
            if stop.is_set():
                return
            if not number:
                await self.commit(CreateNamespace(name=self.name, namespace_id=IDENTITIES.uuid4()))
                continue
            chosen = self.rng.random()
            name, value = self.rng.choice(TABLES), str(number)
            if chosen < 0.1:
                await self.commit(self._shared(name, value))
            elif chosen < 0.5:
                await self.commit(UpdateNamespace(name=self.name, set={"number": value}))
            elif name not in tables:
                if await self.commit(_new_table(self.name, name)) is not None:
                    tables.add(name)
            elif chosen < 0.8:
                await self.commit(UpdateTable(namespace=self.name, name=name, set={"number": value}))
            elif await self.commit(DropTable(namespace=self.name, name=name)) is not None:
                tables.remove(name)
            if pause_seconds:
                await asyncio.sleep(self.rng.uniform(0, 2 * pause_seconds))

    def _shared(self, name: str, value: str) -> Operation:
        match self.rng.randrange(3):
            case 0:
                return _new_table(SHARED, name)
            case 1:
                return DropTable(namespace=SHARED, name=name)
        return UpdateTable(namespace=SHARED, name=name, set={"number": value})


def _new_table(namespace: str, name: str) -> CreateTable:
    return CreateTable(
        namespace=namespace,
        name=name,
        table_id=IDENTITIES.uuid4(),
        columns=(Column(id=1, name="c", type="INT8"),),
    )


# --- subscribers -----------------------------------------------------------------------------------

Essence = tuple[int, str, tuple[str, ...]]


class Subscriber:
    """Follows the log through any daemon that sends signs of life. A `slow` one pauses and asks for definitions."""

    def __init__(self, ways: Sequence[Any], rng: random.Random, *, slow: bool = False) -> None:
        self.seen: list[Essence] = []
        self.resumed = 0
        self._ways = ways
        self._at = 0
        self._rng = rng
        self._slow = slow

    async def run(self, last: asyncio.Future[int]) -> None:
        """Follow until the last version, which `last` names, has arrived."""
        after: str | None = None
        while not (last.done() and self.seen and self.seen[-1][0] >= last.result()):
            stream = self._ways[self._at % len(self._ways)].events(
                after=after, follow=True, details=self._slow
            )
            try:
                async with contextlib.aclosing(stream):
                    while not (last.done() and self.seen and self.seen[-1][0] >= last.result()):
                        async with asyncio.timeout(SILENCE_SECONDS_MAX):
                            item = await anext(stream)
                        after = item.token
                        if isinstance(item, Event):
                            self.seen.append(
                                (item.version, item.token, tuple(t.id for t in item.transactions))
                            )
                            if self._slow and self._rng.random() < 0.02:
                                await asyncio.sleep(self._rng.uniform(0, 1.0))
            except (Unavailable, Exhausted, OutcomeUnknown, TimeoutError):
                self._at += 1
                self.resumed += 1
                await asyncio.sleep(0.05)


# --- faults ----------------------------------------------------------------------------------------


class Act(NamedTuple):
    """Do `what` to that daemon after so many commits. `share` is the length of a pause, from 0 to 1."""

    commits: int
    daemon: int
    what: str
    share: float


def plan_of(rng: random.Random, daemons: int, acts: Sequence[str], commits_max: int = 150) -> Sequence[Act]:
    """Return a plan with more acts than any run needs."""
    return [
        Act(rng.randrange(1, commits_max), rng.randrange(daemons), rng.choice(acts), rng.random())
        for _ in range(10_000)
    ]


async def torment(
    daemons: Sequence[Daemon], plan: Sequence[Act], ledger: Ledger, until: Callable[[int], bool]
) -> Counter[str]:
    """Do the acts of the plan until `until(acts done)`. Only one daemon at a time is disturbed."""
    done: Counter[str] = Counter()
    for number, act in enumerate(plan):
        if until(number):
            return done
        await ledger.more(act.commits)
        # Wait a random moment, so that signals do not fall on quiet points only.
        await asyncio.sleep(act.share * 0.01)
        daemon = daemons[act.daemon]
        done[act.what] += 1
        match act.what:
            case "kill":
                await asyncio.to_thread(daemon.kill)
                await ledger.more(round(30 * act.share))  # the others continue meanwhile
                await asyncio.to_thread(daemon.start)
            case "stop":
                daemon.pause()
                with contextlib.suppress(TimeoutError):  # every client may be waiting for the stopped daemon
                    async with asyncio.timeout(STOPPED_SECONDS_MAX):
                        await ledger.more(1 + round(300 * act.share))
                daemon.go_on()
            case "restart":
                await asyncio.to_thread(daemon.end)
                await asyncio.to_thread(daemon.start)
            case "reload":
                daemon.write_settings(
                    group_count_max=1 + round(100 * act.share),
                    checkpoint_versions=50 + round(300 * act.share),
                )
                daemon.signal(signal.SIGHUP)
                daemon.reloads += 1
            case other:
                raise AssertionError(other)
    raise AssertionError("the plan is too short")


# --- the judge -------------------------------------------------------------------------------------


async def judge(url: str, ledger: Ledger, subscribers: Sequence[Subscriber], last: int) -> list[Event]:
    """Check the log as it is on storage and return it. Every subscriber must have got the version `last`. Raise
    AssertionError for any violation."""
    journal = await library(url)
    try:
        log = [event async for event in journal.events() if isinstance(event, Event)]
        _judge_answers(log, ledger)
        await _judge_history(log, ledger, journal)
        for subscriber in subscribers:
            _judge_subscriber(log, subscriber, last)
    finally:
        await journal.close()
    findings = await asyncio.to_thread(_findings, url)
    assert not findings, findings
    return log


def _findings(url: str) -> Sequence[object]:
    with alpheus.connect(url) as catalog:
        return catalog.admin.check().findings


def _judge_answers(log: Sequence[Event], ledger: Ledger) -> None:
    assert [event.version for event in log] == list(range(len(log)))
    found: dict[str, int] = {}
    for event in log:
        for recorded in event.transactions:
            assert recorded.id not in found, f"{recorded.id} in {found[recorded.id]} and {event.version}"
            found[recorded.id] = event.version
    for id, asked in ledger.asked.items():
        if asked.is_refused:
            assert id not in found, f"{id} of {asked.client} was refused and is in version {found[id]}"
        else:
            assert asked.version is not None, f"{id} of {asked.client} was never answered"
            assert found.get(id) == asked.version, f"{id} of {asked.client}: {asked.version}, {found.get(id)}"


async def _judge_history(log: Sequence[Event], ledger: Ledger, journal: Journal) -> None:
    """Check that the versions explain all answers, in real time too, and that the operations give the stored
    catalog."""
    calls = list(ledger.reads)
    for event in log[1:]:
        for place, recorded in enumerate(event.transactions):
            asked = ledger.asked.get(recorded.id)
            operations = [action.operation for action in recorded.actions if action.operation is not None]
            calls.append(
                Called(
                    client=asked.client if asked else "others",
                    is_commit=True,
                    argument=(recorded.id, operations),
                    invoked=asked.invoked if asked else -math.inf,
                    returned=asked.returned if asked else math.inf,
                    version=event.version,
                    place=place,
                )
            )
    first: Model = await model_of(journal, 0)
    end = check_witness(calls, catalog_step({}), CatalogState(first))
    assert end.key == canonical(await model_of(journal)), "the operations give another catalog"


def _judge_subscriber(log: Sequence[Event], subscriber: Subscriber, last: int) -> None:
    wanted = [(event.version, event.token, tuple(t.id for t in event.transactions)) for event in log]
    assert subscriber.seen == wanted[: len(subscriber.seen)]
    assert wanted[len(subscriber.seen) - 1][0] >= last


class Life(NamedTuple):
    """The growth of a daemon in one life, without its caches: resident KiB for each version and MiB for each minute.
    Descriptors and tasks are counted in the first half and in the second."""

    daemon: str
    seconds: float
    versions: int
    kib_a_version: float
    mib_a_minute: float
    files: tuple[int, int]
    tasks: tuple[int, int]


def lives_of(daemon: Daemon, seconds_min: float) -> list[Life]:
    """Return the daemon's lives of at least that length, without the first quarter, in which caches and pools fill."""
    long = [life for life in daemon.lives if life and life[-1].at - life[0].at >= seconds_min]
    return [life_of(daemon.name, life[len(life) // 4 :]) for life in long]


def rests_of(daemon: Daemon, versions: int, seconds_min: float) -> list[Life]:
    """Return what remains of the daemon's lives after `versions` versions, where that is long enough."""
    rests = [[s for s in life if s.version > life[0].version + versions] for life in daemon.lives]
    return [life_of(daemon.name, rest) for rest in rests if rest and rest[-1].at - rest[0].at >= seconds_min]


def course_of(daemon: Daemon) -> list[list[str]]:
    """Return, of each life, the memory without caches at about twelve of its versions, for the message of a failure."""
    return [
        [
            f"{sample.version}: {(sample.rss - sample.cached) / (1 << 20):.1f} MiB"
            for sample in life[:: max(1, len(life) // 12)]
        ]
        for life in daemon.lives
    ]


def life_of(name: str, samples: Sequence[Sample]) -> Life:
    rss = [(sample.rss - sample.cached) / 1024 for sample in samples]
    first, second = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    return Life(
        daemon=name,
        seconds=samples[-1].at - samples[0].at,
        versions=samples[-1].version - samples[0].version,
        kib_a_version=_slope([sample.version for sample in samples], rss),
        mib_a_minute=_slope([sample.at / 60 for sample in samples], rss) / 1024,
        files=(_middle(s.files for s in first), _middle(s.files for s in second)),
        tasks=(_middle(s.tasks for s in first), _middle(s.tasks for s in second)),
    )


def _middle(values: Iterable[int]) -> int:
    return round(statistics.median(values))


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the slope by Theil and Sen: the median over all pairs, which single jumps do not move."""
    step = max(1, len(xs) // 300)
    points = list(zip(xs, ys, strict=True))[::step]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x2 > x1]
    return statistics.median(slopes) if slopes else 0.0


# --- a whole run -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    count: int,
    settings: Mapping[str, object] | None = None,
    program: Sequence[str] = ("-m", "alpheus_daemon"),
) -> AsyncIterator[tuple[str, list[Daemon]]]:
    """Start `count` daemons on a new catalog. At the end stop all of them in an orderly way."""
    url = (folder / "lake").as_uri()
    (await asyncio.to_thread(alpheus.create, url)).close()
    daemons = [Daemon(f"daemon {n}", url, folder / f"daemon{n}", settings, program) for n in range(count)]
    try:
        for daemon in daemons:
            await asyncio.to_thread(daemon.start)
        yield url, daemons
        for daemon in daemons:
            await asyncio.to_thread(daemon.end)
    finally:
        for daemon in daemons:
            await asyncio.to_thread(daemon.drop)


async def finish(ledger: Ledger, clients: Sequence[Client], last: asyncio.Future[int]) -> None:
    """Commit the last version that subscribers wait for, then one more."""
    version = await clients[0].commit(UpdateNamespace(name=SHARED, set={"end": "1"}))
    assert version is not None
    last.set_result(version)
    # A subscriber that has already seen the last version needs one more event to learn that it was the last.
    assert await clients[0].commit(UpdateNamespace(name=SHARED, set={"end": "2"})) is not None


def rotated(items: Sequence[Any], first: int) -> list[Any]:
    return [*items[first:], *items[:first]]
