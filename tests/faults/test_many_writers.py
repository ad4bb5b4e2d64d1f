"""Three daemons and two library writers on one prefix at full rate, killed, stopped and continued at random.

The checks:

- every acknowledged commit is in the log exactly once;
- a call that begins after an answer, at any place, sees at least the version of that answer;
- every subscriber, through a daemon or from storage, gets the same versions in order, without gaps or repeats;
- `check` finds nothing.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import alpheus
from alpheus.aio import AsyncCatalog, connect

DAEMONS = 3
WRITERS_A_DAEMON = 2
LIBRARY_WRITERS = 2
START_SECONDS_MAX = 60
STOPPED_SECONDS_MAX = 3

Sequence = list[tuple[int, str, tuple[str, ...]]]


class Daemon:
    """A daemon process that restarts on its first port."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "alpheus_daemon", self.url, "--listen", self.address]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--port-file", str(port_file)], stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the daemon did not start"
            time.sleep(0.01)
        self.address = port_file.read_text().strip()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def restart(self) -> None:
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.start()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            assert self.process.wait(30) == 0


class Witness:
    """All answers with their times, by one clock. Every answer names a version."""

    def __init__(self) -> None:
        self.commits: dict[str, tuple[int, str]] = {}  # message: version, transaction id
        self.intervals: list[tuple[float, float, int, bool]] = []  # began, ended, version, is a commit
        self._changed = asyncio.Event()

    def committed(self, began: float, message: str, version: int, transaction_id: str) -> None:
        self.commits[message] = (version, transaction_id)
        self.intervals.append((began, time.monotonic(), version, True))
        self._changed.set()
        self._changed = asyncio.Event()

    def read(self, began: float, version: int) -> None:
        self.intervals.append((began, time.monotonic(), version, False))

    async def more(self, count: int) -> None:
        """Return when `count` more commits have been acknowledged."""
        goal = len(self.commits) + count
        while len(self.commits) < goal:
            await self._changed.wait()

    def verify_order(self) -> None:
        """Check real time: a call that began after an answer saw at least its version, and a commit got a higher
        one."""
        ended = sorted((end, version) for _, end, version, _ in self.intervals)
        newest = position = 0
        for began, _, version, is_commit in sorted(self.intervals):
            while position < len(ended) and ended[position][0] < began:
                newest = max(newest, ended[position][1])
                position += 1
            if is_commit:
                assert version > newest, f"version {version} committed after {newest} was known"
            else:
                assert version >= newest, f"version {version} read after {newest} was known"


async def write(
    name: str,
    catalog: AsyncCatalog,
    others: list[AsyncCatalog],
    witness: Witness,
    stop: asyncio.Event,
    rng: random.Random,
) -> None:
    """Count up a property of the writer's own namespace, and now and then read it through another client."""
    number = 0
    while not stop.is_set():
        message, began = f"{name}/{number}", time.monotonic()
        async with catalog.transaction(message=message) as tx:
            if number == 0:
                await tx.create_namespace(name)
            else:
                await tx.update_namespace(name, set={"number": str(number)})
        assert tx.result is not None
        witness.committed(began, message, tx.result.version, tx.result.transaction_id)
        if number and rng.random() < 0.5:
            began = time.monotonic()
            other = rng.choice(others)
            found = await other.load_namespace(name)
            assert found.properties["number"] == str(number), "a read misses an acknowledged commit"
            witness.read(began, found.version)
            began = time.monotonic()
            witness.read(began, await rng.choice(others).version())
        number += 1


async def subscribe(catalog: AsyncCatalog, seen: Sequence, last: asyncio.Future[int]) -> None:
    """Follow every event from version 0 until the last one is known and has arrived."""
    async for event in catalog.events(follow=True):
        seen.append((event.version, event.token, tuple(t.id for t in event.transactions)))
        if last.done() and event.version >= last.result():
            return


async def torment(daemons: list[Daemon], rounds: int, witness: Witness, rng: random.Random) -> None:
    """Kill and restart a daemon, or stop it while the others continue, `rounds` times."""
    for _ in range(rounds):
        await witness.more(rng.randrange(1, 40))
        # Wait a random moment, so that signals do not fall on quiet points only.
        await asyncio.sleep(rng.random() * 0.01)
        daemon = rng.choice(daemons)
        if rng.random() < 0.5:
            await asyncio.to_thread(daemon.restart)
        else:
            daemon.signal(signal.SIGSTOP)
            with suppress(TimeoutError):  # all clients may be waiting for the stopped daemon
                async with asyncio.timeout(STOPPED_SECONDS_MAX):
                    await witness.more(rng.randrange(5, 60))
            daemon.signal(signal.SIGCONT)
    await witness.more(50)


async def run(
    url: str, daemons: list[Daemon], rounds: int, rng: random.Random
) -> tuple[Witness, list[Sequence]]:
    witness, stop = Witness(), asyncio.Event()
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    remote = [await connect(f"grpc://{daemon.address}", timeout=120) for daemon in daemons]
    direct = [await connect(url, timeout=120) for _ in range(LIBRARY_WRITERS)]
    everybody = remote + direct
    sequences: list[Sequence] = [[] for _ in range(DAEMONS + 1)]
    async with asyncio.TaskGroup() as group:
        for catalog, sequence in zip([*remote, direct[0]], sequences, strict=True):
            group.create_task(subscribe(catalog, sequence, last))
        writers = [
            group.create_task(write(f"w{n}", catalog, everybody, witness, stop, random.Random(rng.random())))
            for n, catalog in enumerate([*remote * WRITERS_A_DAEMON, *direct])
        ]
        await torment(daemons, rounds, witness, rng)
        stop.set()
        await asyncio.gather(*writers)
        last.set_result(await direct[0].version())
        # A subscriber that has already seen the last version needs one more event to learn that it was the last.
        async with direct[0].transaction(message="end") as tx:
            await tx.create_namespace("end")
    for catalog in everybody:
        await catalog.close()
    return witness, sequences


def verify(url: str, witness: Witness, sequences: list[Sequence]) -> None:
    witness.verify_order()
    longest = max(sequences, key=len)
    assert [version for version, _, _ in longest] == list(range(len(longest)))
    for sequence in sequences:
        assert sequence == longest[: len(sequence)]
        assert len(longest) - len(sequence) <= 1, (
            "the subscribers end at the last version, or at the one after it"
        )
    with alpheus.connect(url) as catalog:
        found: dict[str, list[tuple[int, str]]] = {}
        for entry in catalog.log():
            found.setdefault(entry.transaction.message, []).append((entry.version, entry.transaction.id))
        assert {message: [answer] for message, answer in witness.commits.items()} == {
            message: answers for message, answers in found.items() if message not in ("", "end")
        }
        assert not catalog.admin.check().findings


async def test_many_writers(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    rounds = lane_count(1, 200)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {rounds} rounds")
    url = (tmp_path / "lake").as_uri()
    (await asyncio.to_thread(alpheus.create, url)).close()
    daemons = []
    for number in range(DAEMONS):
        folder = tmp_path / f"daemon{number}"
        folder.mkdir()
        daemons.append(Daemon(url, folder))
    try:
        for daemon in daemons:
            await asyncio.to_thread(daemon.start)
        witness, sequences = await run(url, daemons, rounds, random.Random(seed))
    finally:
        for daemon in daemons:
            await asyncio.to_thread(daemon.stop)
    print(f"{len(witness.commits)} commits, {len(witness.intervals)} answers, {len(sequences[0])} versions")
    await asyncio.to_thread(verify, url, witness, sequences)
