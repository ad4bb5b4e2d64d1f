"""The soak: all parts run together for a given time, for test_soak.py and as a command.

    python tests/faults/drivers/soak_driver.py --seed 7 --seconds 60

The command repeats the plan of a seed: which daemon is killed, stopped, ended or reloaded after how many commits, and
what each client asks for. The timing inside each process depends on the machine. The checks are those of fleet.py and
these:

- a version that was acknowledged to a durable subscription does not come again;
- replicas and symbol lists agree with the catalog;
- memory, descriptors and tasks of a daemon do not grow with its age.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleet import (
    END_SECONDS_MAX,
    IDENTITIES,
    SHARED,
    Client,
    Daemon,
    Ledger,
    Life,
    Subscriber,
    Writer,
    course_of,
    finish,
    fleet,
    judge,
    library,
    life_of,
    lives_of,
    plan_of,
    remote,
    rests_of,
    rotated,
    torment,
)

from alpheus.aio import AsyncCatalog, connect
from alpheus.events.replica import AsyncReplica
from alpheus_journal.errors import (
    Conflict,
    Exhausted,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import (
    CreateNamespace,
)

# --- durable subscriptions -------------------------------------------------------------------------


class Turns:
    """Deliveries to the consumers of one durable subscription. `delivered` and `acknowledged`: (time, epoch,
    version)."""

    def __init__(self, name: str, namespaces: frozenset[str]) -> None:
        self.name = name
        self.namespaces = namespaces
        self.delivered: list[tuple[float, int, int]] = []
        self.acknowledged: list[tuple[float, int, int]] = []
        self.killed = 0
        self.superseded = 0

    @property
    def done(self) -> int:
        """Return the newest acknowledged version."""
        return max((version for _, _, version in self.acknowledged), default=-1)

    async def consume(
        self, catalogs: Sequence[AsyncCatalog], rng: random.Random, last: asyncio.Future[int]
    ) -> None:
        """Run one consumer after the other until the last version is acknowledged. Some consumers leave, some are
        killed."""
        filtered = sorted(self.namespaces) or None
        while not (last.done() and self.done >= last.result()):
            consumer = rng.choice(catalogs).subscribe(self.name, namespaces=filtered, after=0, lease=1.0)
            is_killed, turn = rng.random() < 0.5, asyncio.create_task(self._turn(consumer, rng))
            try:
                await asyncio.wait({turn}, timeout=rng.uniform(0.5, 4.0) if not last.done() else 10.0)
            finally:
                turn.cancel()
                await asyncio.gather(turn, return_exceptions=True)
                if is_killed and consumer.epoch:
                    self.killed += 1
                    await consumer._stop()  # a killed process does not say that it leaves
                else:
                    await consumer.close()

    async def _turn(self, consumer: Any, rng: random.Random) -> None:
        try:
            async for event in consumer:
                self.delivered.append((time.monotonic(), consumer.epoch, event.version))
                if rng.random() < 0.2 or event.version >= self.done + 50:
                    await consumer.acknowledge(event)
                    self.acknowledged.append((time.monotonic(), consumer.epoch, event.version))
        except (Unavailable, Exhausted, OutcomeUnknown):
            pass
        except Conflict as conflict:
            if conflict.kind != "subscription_claimed":
                raise
            self.superseded += 1

    def judge(self, wanted: Sequence[int], last: int) -> None:
        """Check that every version of `wanted` up to `last` came, once and in order within a turn. A version that was
        acknowledged must not come in turns that began later."""
        came = {version for _, _, version in self.delivered}
        missing, surplus = {version for version in wanted if version <= last} - came, came - set(wanted)
        assert not missing | surplus, (
            f"{self.name}: {sorted(missing)} did not come, {sorted(surplus)} should not"
        )
        turns: dict[int, list[int]] = {}
        for _, epoch, version in self.delivered:
            turns.setdefault(epoch, []).append(version)
        wanted_set = sorted(wanted)
        for epoch, versions in turns.items():
            first = wanted_set.index(versions[0])
            assert versions == wanted_set[first : first + len(versions)], f"{self.name}, epoch {epoch}"
        acknowledged: dict[int, int] = {}
        for _, epoch, version in self.acknowledged:
            acknowledged[epoch] = max(acknowledged.get(epoch, -1), version)
        done = -1
        for epoch in sorted({*turns, *acknowledged}):
            assert turns[epoch][0] > done, (
                f"{self.name}: {turns[epoch][0]} again in epoch {epoch}, {done} was done"
            )
            done = max(done, acknowledged.get(epoch, -1))


# --- replicas and symbols --------------------------------------------------------------------------


async def contents(reads: Any) -> dict[str, object]:
    """Return all that a reader of namespaces and tables finds. A replica shows one version, because its reads never
    wait."""
    found: dict[str, object] = {}
    for namespace in [listed.name for listed in await reads.list_namespaces()]:
        found[namespace] = (await reads.load_namespace(namespace)).properties
        names = [(namespace, name.name) for name in await reads.list_tables(namespace)]
        for table in await reads.load_tables(names):
            found[f"{namespace}.{table.name}"] = (table.id, table.properties)
    return found


class Comparer:
    """Compares replicas and symbol lists with the catalog at the same version, read in another way."""

    def __init__(self, replicas: Sequence[AsyncReplica], catalogs: Sequence[AsyncCatalog]) -> None:
        self.compared = 0
        self.listed = 0
        self._replicas = replicas
        self._catalogs = catalogs
        self._versions = dict.fromkeys(range(len(replicas)), -1)

    async def run(self, rng: random.Random, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.compare(rng.randrange(len(self._replicas)), rng)
            await asyncio.sleep(rng.uniform(0.2, 1.0))

    async def compare(self, number: int, rng: random.Random) -> None:
        replica = self._replicas[number]
        version, copy = replica.version, await contents(replica)
        assert replica.version == version, "a read of a replica waited"
        assert version >= self._versions[number], "a replica went back"
        self._versions[number] = version
        other = rng.choice(self._catalogs)
        try:
            there = await contents(await other.at(version))
            assert copy == there, f"the replica of {replica!r} differs from {other.url} at {version}"
            self.compared += 1
            symbols = await rng.choice(self._catalogs).admin.symbols.list(at=version)
        except (Unavailable, Exhausted):
            return
        listed = {
            symbol.name if symbol.kind == "namespace" else f"{symbol.namespace}.{symbol.name}"
            for symbol in symbols
            if symbol.kind in ("namespace", "table")
        }
        assert listed == set(there), f"the symbols at {version} are not those of the tree"
        self.listed += 1


# --- a whole run -----------------------------------------------------------------------------------

SOAK_SETTINGS = {
    "checkpoint_versions": 150,
    "drift_check_seconds": 1.0,
    "symbol_journal_max": 20,
    "subscriber_heartbeat_seconds": 1.0,
    "event_ring_bytes_max": 1 << 20,
    "load_cache_bytes_max": 1 << 20,
    "node_cache_bytes_max": 1 << 16,
    "definition_cache_bytes_max": 1 << 16,
    "poll_interval_max_ms": 200,
    "commit_timeout_seconds": 10.0,
}
SOAK_ACTS = ("kill", "kill", "stop", "stop", "restart", "reload")
PAUSE_SECONDS = 0.02
QUIET_SHARE = 0.4
"""The share of the run, at its end, in which the load continues undisturbed, so that each daemon has one long life."""
GROWTH_MIB_MAX = 12.0
"""The allowed growth of resident memory in one life after its beginning, independent of load: pools of the
allocators."""
KIB_A_VERSION_MAX = 4.0
"""The additional growth allowed while the window of events and pools fill."""
WINDOW_VERSIONS = 200
"""The versions whose events a daemon keeps here, instead of the default 10,000. Memory grows until the window is
full."""
FULL_VERSIONS = 30 * WINDOW_VERSIONS
"""After so many versions the bounded stores are full: the window, ids of 8,192 transactions, undo data of the symbol
list, definitions, and pools of the allocators. A daemon grew from 118 to 150 MiB in 6,000 versions, and by nothing in
the next 1,800."""
FULL_KIB_A_VERSION_MAX = 2.75
"""The growth allowed after that. With a leak of 2 KiB a version the growth was 4.0 while the stores still filled."""
FULL_SECONDS_MIN = 60.0
LONG_SECONDS = 600.0
"""In a run of at least this length each daemon has a life of FULL_SECONDS_MIN after its stores are full. On a slow
machine the quiet time is longer, at most by the length of the run."""
DAEMON = Path(__file__).parent / "soak_daemon.py"
COUNTED_MAX = 15
"""The allowed increase of descriptors and tasks from the first to the second half of the quiet time: consumers take
turns."""


class Soak:
    """One run of a seed."""

    def __init__(self, folder: Path, seed: int, seconds: float, leak_bytes: int = 0) -> None:
        self.folder = folder
        self.leak_bytes = leak_bytes
        self.seconds = seconds
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.lives: list[Life] = []
        self.full_lives: list[Life] = []
        """The parts of those lives after the window of events was full."""
        self.lines: list[str] = []

    async def run(self) -> None:
        program = (str(DAEMON), str(WINDOW_VERSIONS), str(self.leak_bytes))
        async with fleet(self.folder, 3, SOAK_SETTINGS, program) as (url, daemons):
            self.url, self.daemons = url, daemons
            await self._load()
        log = await judge(url, self.ledger, self.subscribers, self.last)
        for turns in self.turns:
            turns.judge([event.version for event in log[1:] if _in(event, turns)], self.last)
        for daemon in daemons:
            self._judge_daemon(daemon)
        self._tell(log)

    async def _load(self) -> None:
        daemons, url = self.daemons, self.url
        streamed = [await remote(daemon) for daemon in daemons]
        unary = [await remote(daemon, streamed=False) for daemon in daemons]
        following = [await remote(daemon) for daemon in daemons]
        journals = [await library(url) for _ in range(2)]
        catalogs = [await connect(f"grpc://{daemon.address}", timeout=5) for daemon in daemons]
        direct = await connect(url)
        replicas = [await catalog.replica() for catalog in [*catalogs, direct]]
        rngs = (random.Random(self.rng.random()) for _ in itertools.count())
        ledger = self.ledger
        writers = [
            *(Writer(f"many{n}", rotated(streamed, n), ledger, next(rngs)) for n in range(3)),
            *(Writer(f"one{n}", rotated(unary, n), ledger, next(rngs)) for n in range(3)),
            *(Writer(f"library{n}", [journal], ledger, next(rngs)) for n, journal in enumerate(journals)),
        ]
        first = Client("first", streamed, ledger, next(rngs))
        await first.commit(CreateNamespace(name=SHARED, namespace_id=IDENTITIES.uuid4()))
        self.subscribers = [
            Subscriber(rotated(following, n % 3), next(rngs), slow=n > 2) for n in range(5)
        ] + [Subscriber(journals[:1], next(rngs))]
        self.turns = [Turns("all", frozenset()), Turns("some", frozenset({SHARED, "many0"}))]
        self.comparer = Comparer(replicas, [*catalogs, direct])
        last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stop, plan = asyncio.Event(), plan_of(next(rngs), len(daemons), SOAK_ACTS)
        async with asyncio.TaskGroup() as group:
            for subscriber in self.subscribers:
                group.create_task(subscriber.run(last))
            for turns, _ in itertools.product(self.turns, range(2)):
                group.create_task(turns.consume(catalogs, next(rngs), last))
            looking = group.create_task(self._look())
            comparing = group.create_task(self.comparer.run(next(rngs), stop))
            writing = [group.create_task(writer.run(stop, PAUSE_SECONDS)) for writer in writers]
            deadline = time.monotonic() + self.seconds * (1 - QUIET_SHARE)
            self.acts = await torment(daemons, plan, ledger, lambda _: time.monotonic() > deadline)
            self.calm_since = time.monotonic()
            await asyncio.sleep(self.seconds * QUIET_SHARE)
            await self._wait_for_full_lives()
            stop.set()
            await asyncio.gather(*writing, comparing)
            looking.cancel()
            await finish(ledger, [first], last)
            self.last = last.result()
        for number, replica in enumerate(replicas):
            await replica.wait_for(self.last, timeout=END_SECONDS_MAX)
            await self.comparer.compare(number, next(rngs))
        for catalog in catalogs:
            drift = await catalog.admin.symbols.check()
            assert not drift.differences, drift
        for way in [*streamed, *unary, *following, *journals, *catalogs, direct]:
            await way.close()

    async def _wait_for_full_lives(self) -> None:
        """Let a long run go on until each daemon has lived for long with full stores, at most as long again."""
        end = time.monotonic() + (self.seconds if self.seconds >= LONG_SECONDS else 0)
        while time.monotonic() < end:
            if all(rests_of(daemon, FULL_VERSIONS, FULL_SECONDS_MIN) for daemon in self.daemons):
                break
            await asyncio.sleep(1.0)

    async def _look(self) -> None:
        while True:
            for daemon in self.daemons:
                if not daemon.is_paused:
                    await daemon.look()
            await asyncio.sleep(0.25)

    def _judge_daemon(self, daemon: Daemon) -> None:
        wrong = [line for line in daemon.lines() if line["level"] in ("error", "critical")]
        assert not wrong, f"{daemon.name}: {wrong}"
        assert "Traceback" not in daemon.log.read_text()
        lives = lives_of(daemon, self.seconds * QUIET_SHARE * 0.5)
        assert lives, f"{daemon.name} was not looked at in its last life"
        self.lives += lives
        for life in lives:
            grown_mib = life.kib_a_version * life.versions / 1024
            assert grown_mib < GROWTH_MIB_MAX + KIB_A_VERSION_MAX * life.versions / 1024, life
        # Only the quiet time counts: before, clients moved between daemons as other daemons restarted.
        calm = life_of(daemon.name, [sample for sample in daemon.lives[-1] if sample.at > self.calm_since])
        for first, second in (calm.files, calm.tasks):
            assert second <= first + COUNTED_MAX, calm
        for life in rests_of(daemon, FULL_VERSIONS, FULL_SECONDS_MIN):
            self.full_lives.append(life)
            assert life.kib_a_version < FULL_KIB_A_VERSION_MAX, (life, course_of(daemon))

    def _tell(self, log: Sequence[Event]) -> None:
        events = Counter(line["event"] for daemon in self.daemons for line in daemon.lines())
        refused = sum(asked.is_refused for asked in self.ledger.asked.values())
        self.lines += [
            f"{len(log)} versions, {self.ledger.committed} commits, {refused} refused,"
            f" {self.ledger.failovers} times to another daemon, {self.ledger.settled} settled",
            f"acts: {dict(self.acts)}",
            f"shares: {dict(self.ledger.shares)}",
            f"streams resumed: {[subscriber.resumed for subscriber in self.subscribers]}",
            f"turns: {[(t.name, len(t.delivered), len({e for _, e, _ in t.delivered}), t.killed) for t in self.turns]}",
            f"replicas compared {self.comparer.compared} times, symbols {self.comparer.listed}",
            f"daemons logged: {dict(events)}",
            *(f"{life}" for life in self.lives),
            *(f"full: {life}" for life in self.full_lives),
        ]


def _in(event: Event, turns: Turns) -> bool:
    return not turns.namespaces or any(change.name.namespace in turns.namespaces for change in event.changes)


async def soak(folder: Path, seed: int, seconds: float, leak_bytes: int = 0) -> Soak:
    run = Soak(folder, seed, seconds, leak_bytes)
    await run.run()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="One run of a soak.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--leak-bytes", type=int, default=0, help="of each version, to be found")
    parser.add_argument("--folder", type=Path, help="kept; without it a temporary one")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.seconds:g} s", flush=True)
    with contextlib.ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        for line in asyncio.run(soak(folder, asked.seed, asked.seconds, asked.leak_bytes)).lines:
            print(line)


if __name__ == "__main__":
    main()
