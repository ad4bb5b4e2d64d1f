"""`alpheus serve` is killed again and again under load: nothing acknowledged is lost, nothing is done twice.

Real daemon processes are killed with SIGKILL after a random number of acknowledgements and restarted on the same port.
Writers survive this: the client sends the same transaction under the same id until it has an answer.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import alpheus
from alpheus.aio import AsyncCatalog
from alpheus.aio import connect as aconnect
from alpheus.errors import AlpheusError

WRITERS = 8
START_SECONDS_MAX = 60


class Daemon:
    """A daemon process that can be killed and restarted on its first port."""

    def __init__(self, url: str, directory: Path) -> None:
        self.storage_url = url
        self.directory = directory
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "alpheus", "serve", self.storage_url, "--listen", self.address]
        with (self.directory / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--port-file", str(port_file)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            assert self.process.poll() is None, (self.directory / "daemon.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the daemon did not start"
            time.sleep(0.01)
        self.address = port_file.read_text().strip()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(30) == 0


class Tally:
    """The answers that the writers got."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, tuple[int, str]] = {}  # message -> (version, transaction id)
        self.unknown: set[str] = set()
        self.waiters: list[tuple[int, asyncio.Event]] = []
        self.silent: set[str] = set()  # writers without an answer since the last `hear_all`
        self.all_heard = asyncio.Event()

    def acknowledge(self, message: str, version: int, transaction_id: str) -> None:
        self.acknowledged[message] = (version, transaction_id)
        for count, event in self.waiters:
            if len(self.acknowledged) >= count:
                event.set()
        self.silent.discard(message.partition("/")[0])
        if not self.silent:
            self.all_heard.set()

    async def hear_all(self) -> None:
        """Wait until each writer has had an answer."""
        self.silent = {f"w{writer}" for writer in range(WRITERS)}
        self.all_heard.clear()
        await self.all_heard.wait()

    async def reach(self, count: int) -> None:
        event = asyncio.Event()
        self.waiters.append((count, event))
        if len(self.acknowledged) < count:
            await event.wait()


async def write(catalog: AsyncCatalog, writer: int, tally: Tally, stop: asyncio.Event) -> None:
    """Create, change and drop namespaces and tables, one transaction each, until told to stop."""
    number = 0
    namespace = f"w{writer}"
    while not stop.is_set():
        message = f"{namespace}/{number}"
        try:
            async with catalog.transaction(message=message) as tx:
                if number == 0:
                    await tx.create_namespace(namespace)
                elif number % 3 == 1:
                    import pyarrow as pa

                    await tx.create_table(f"{namespace}.t{number}", pa.schema([("n", pa.int64())]))
                elif number % 3 == 2:
                    await tx.update_table(f"{namespace}.t{number - 1}", set={"number": str(number)})
                else:
                    await tx.drop_table(f"{namespace}.t{number - 2}")
        except AlpheusError as error:
            # Only a time-out may end here: the client could not learn the outcome in time.
            raise AssertionError(f"{message}: {error!r}") from error
        assert tx.result is not None
        tally.acknowledge(message, tx.result.version, tx.result.transaction_id)
        number += 1


async def run_load(daemon: Daemon, kills: int, seed: int) -> Tally:
    rng = random.Random(seed)
    tally = Tally()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        catalogs = [await aconnect(f"grpc://{daemon.address}", timeout=120) for _ in range(WRITERS)]
        writers = [
            group.create_task(write(catalog, index, tally, stop)) for index, catalog in enumerate(catalogs)
        ]
        for number in range(kills):
            if number % 5 == 0:
                # On a slow machine a daemon lives shorter than a writer pauses. Each writer must meet one in time.
                await tally.hear_all()
            await tally.reach(len(tally.acknowledged) + rng.randrange(1, 40))
            # Wait a random moment, so that kills do not fall on quiet points only.
            await asyncio.sleep(rng.random() * 0.01)
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
        await tally.reach(len(tally.acknowledged) + 20)
        stop.set()
        await asyncio.gather(*writers)
        for catalog in catalogs:
            await catalog.close()
    return tally


async def test_kills_lose_and_double_nothing(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    kills = lane_count(1, 100)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {kills} kills")
    lake = tmp_path / "lake"
    (await asyncio.to_thread(alpheus.create, lake.as_uri())).close()
    daemon = Daemon(lake.as_uri(), tmp_path)
    await asyncio.to_thread(daemon.start)
    try:
        tally = await run_load(daemon, kills, seed)
    finally:
        await asyncio.to_thread(daemon.stop)
    await asyncio.to_thread(verify, lake.as_uri(), tally)


def verify(url: str, tally: Tally) -> None:
    with alpheus.connect(url) as catalog:
        found: dict[str, list[tuple[int, str]]] = {}
        for entry in catalog.log():
            found.setdefault(entry.transaction.message, []).append((entry.version, entry.transaction.id))
        for message, answer in tally.acknowledged.items():
            assert found.pop(message) == [answer], message
        assert set(found) == {""}, "a transaction that nobody was told of"  # version 0
        for writer in range(WRITERS):
            done = len([message for message in tally.acknowledged if message.startswith(f"w{writer}/")])
            # The tables that remain if the writer's operations were executed once each and in order.
            expected = (
                {f"t{done - 1}"} if done % 3 == 2 else {f"t{done - 2}"} if done and done % 3 == 0 else set()
            )
            assert {table.name for table in catalog.list_tables(f"w{writer}")} == expected
        report = catalog.admin.check()
        assert not report.findings
