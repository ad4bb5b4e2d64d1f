"""Kills real processes at failpoints under load, for `test_kill_points.py`.

    python kill_points_driver.py library|daemon FOLDER SEED POINT@N...

The driver imports everything once, then forks. For each point it makes a small new catalog and kills a process at the
N-th hit of the point. A second process sends again what was in flight, and checks everything. The driver prints one
JSON line for each point. No gRPC or Arrow code runs in the parent, so forking is safe.

- library: two journals of one process compete on the same directory, and one of them loses replies.
- daemon: `alpheus-daemon` serves two clients and a subscriber over gRPC, and a library writer runs beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow  # noqa: F401  (imported before the forks)

import alpheus_daemon.main
from alpheus.aio import connect
from alpheus.errors import AlpheusError
from alpheus_daemon import maintenance
from alpheus_journal import failpoints
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import open_storage
from alpheus_journal.testing.faults import Fault, FaultyStorage, seeded

UPKEEP = [
    name
    for name in failpoints.POINTS
    if name.startswith(("commit.ahead_", "checkpoint.", "index.", "symbols."))
]
"""Points that a daemon with these settings reaches soon."""
UPKEEP_SETTINGS = {
    "--checkpoint-versions": "1",
    "--checkpoints-kept": "1",
    "--symbol-journal-max": "1",
    "--group-ahead-count-min": "1",
    "--group-ahead-seconds": "0",
}
BASE_VERSIONS = 5
PATIENCE_SECONDS = 60
COMMITS_MAX = 60
"""The commits of the library writer beside a daemon. The check after the kill sends each of them again."""


class Sent(msgspec.Struct):
    """One line of the protocol, written before the transaction is sent and again, with `version`, when it is
    acknowledged."""

    id: str
    begin: int
    name: str
    namespace_id: str
    version: int = -1

    def transaction(self) -> Transaction:
        operation = CreateNamespace(name=self.name, namespace_id=self.namespace_id)
        return Transaction(id=self.id, begin_version=self.begin, operations=(operation,))


class Protocol:
    """The transactions that this process sent and the answers, in a file that survives a kill."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, sent: Sent) -> None:
        os.write(self._fd, msgspec.json.encode(sent) + b"\n")

    @staticmethod
    def read(path: Path) -> dict[str, Sent]:
        lines = [msgspec.json.decode(line, type=Sent) for line in path.read_bytes().splitlines()]
        return {sent.id: sent for sent in lines}  # the later line of an id has the version


def fork(what: Callable[[], int], log: Path) -> int:
    """Run `what` in a child process and return its process id. The exit status is 0 if `what` returns 0."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        status = what()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def finished(pid: int, seconds: float = PATIENCE_SECONDS) -> int | None:
    """Return the wait status of a child, or None if the child still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    return None


def was_killed(status: int | None) -> bool:
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# --- the load


async def write(
    journal: Journal,
    prefix: str,
    protocol: Protocol,
    count: int,
    *,
    look: bool = True,
    stop: Path | None = None,
) -> None:
    """Make `count` commits, or fewer if the file `stop` appears. Without `look` at the head, the slot may be taken."""
    identities = RandomIdentities()
    for number in range(count):
        if stop is not None and stop.exists():
            return
        sent = Sent(identities.uuid7(), journal.head.version, f"{prefix}{number}", identities.uuid4())
        protocol.note(sent)
        with suppress(AlpheusError):
            if not look:
                await journal.commit_group([sent.transaction()], deadline_seconds=5)
            committed = await journal.commit(sent.transaction(), timeout_seconds=5)
            protocol.note(msgspec.structs.replace(sent, version=committed.version))


async def library_load(folder: Path, seed: int) -> None:
    """Commit until killed, or until each journal has made its commits. Then close both, which writes the hint."""
    protocol = Protocol(folder / "protocol")
    journals = [
        await Journal.open(open_storage((folder / "lake").as_uri())),
        await Journal.open(FaultyStorage(open_storage((folder / "lake").as_uri()))),
    ]
    unreliable = journals[1].storage
    assert isinstance(unreliable, FaultyStorage)
    plan = seeded(seed, 0.4, faults=(Fault.NOT_APPLIED_BUT_UNKNOWN, Fault.APPLIED_BUT_LOST), reads=False)
    unreliable.plan = lambda call: plan(call) if call.method == "create" else None
    for journal in journals:
        await journal.load_state()
    one, other = journals
    async with asyncio.TaskGroup() as group:  # they compete at random
        group.create_task(write(one, "l0x", protocol, 15))
        group.create_task(write(other, "l1x", protocol, 15))
    for number in range(8):  # they compete for certain: one journal's version takes the other's slot
        await write(one, f"l2x{number}x", protocol, 1)
        await write(other, f"l3x{number}x", protocol, 1, look=False)
    await write(other, "l4x", protocol, 25)  # alone: this journal retries after lost replies
    for journal in journals:
        await journal.close()


async def client_load(folder: Path, address: str) -> None:
    """Run clients that survive the death of their daemon, and a library writer, until told to stop."""
    stop = folder / "stop"
    protocol = Protocol(folder / "protocol")

    async def remote(prefix: str) -> None:
        catalog = await connect(f"grpc://{address}", timeout=PATIENCE_SECONDS)
        number = 0
        while not stop.exists():
            async with catalog.transaction(message=f"{prefix}{number}") as tx:
                await tx.create_namespace(f"{prefix}{number}")
            assert tx.result is not None
            acknowledged = Sent(tx.result.transaction_id, -1, f"{prefix}{number}", "", tx.result.version)
            protocol.note(acknowledged)
            number += 1
        await catalog.close()

    async def subscribe() -> None:
        catalog = await connect(f"grpc://{address}", timeout=PATIENCE_SECONDS)
        expected = 0
        async for event in catalog.events(follow=True):
            assert event.version == expected, f"version {event.version} instead of {expected}"
            expected += 1
            if stop.exists():
                break
        await catalog.close()

    async def subscribe_to_nothing() -> None:
        """Follow a namespace that never exists, and so get only progress."""
        catalog = await connect(f"grpc://{address}", timeout=PATIENCE_SECONDS)
        async for event in catalog.events(follow=True, namespaces=["never-there"]):
            raise AssertionError(f"version {event.version} is not of that namespace")

    async def library() -> None:
        journal = await Journal.open(open_storage((folder / "lake").as_uri()))
        await write(journal, "b", protocol, COMMITS_MAX, stop=stop)
        await journal.close()

    async with asyncio.TaskGroup() as group:
        for prefix in ("x", "y"):
            group.create_task(remote(prefix))
        follower = group.create_task(subscribe())
        idle = group.create_task(subscribe_to_nothing())
        await library()
        while not stop.exists():  # noqa: ASYNC110  (another process makes it)
            await asyncio.sleep(0.01)
        await follower
        idle.cancel()


async def verify(folder: Path) -> None:
    """Check the catalog after a kill: acknowledged commits exist, those in flight commit once, and work continues."""
    journal = await Journal.open(open_storage((folder / "lake").as_uri()))
    for sent in Protocol.read(folder / "protocol").values():
        if sent.begin >= 0:
            committed = await journal.commit(sent.transaction())
            assert isinstance(committed, Committed)
            assert sent.version in (-1, committed.version), f"{sent} is in version {committed.version}"
            assert committed.duplicate or sent.version == -1
    log: dict[str, int] = {}
    async for entry in journal.log():
        assert entry.transaction.id not in log, f"{entry.transaction.id} appears twice"
        log[entry.transaction.id] = entry.version
    for sent in Protocol.read(folder / "protocol").values():
        assert sent.id in log
        assert sent.version in (-1, log[sent.id]), f"{sent} is in version {log[sent.id]}"
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert not findings, findings
    await journal.load_state()
    assert not (await journal.check_symbols()).differences
    assert not journal.replay.skipped
    await journal.close()


# --- one point


def kill_library(folder: Path, point: str, at: int, seed: int) -> str:
    log = folder / "log"

    def load() -> int:
        failpoints.arm(point, f"kill@{at}")
        return _run(library_load(folder, seed))

    status = finished(fork(load, log))
    if not was_killed(status):
        return "not reached" if status == 0 else f"the load ended with {status}: {log.read_text()[-3000:]}"
    after = finished(fork(lambda: _run(verify(folder)), log))
    return "" if after == 0 else f"after the kill: {after}: {log.read_text()[-3000:]}"


def _run(work: Coroutine[Any, Any, None]) -> int:
    asyncio.run(work)
    return 0


def kill_daemon(folder: Path, point: str, at: int, seed: int) -> str:
    log, port_file = folder / "log", folder / "port"
    url = (folder / "lake").as_uri()

    def serve(listen: str, armed: bool) -> int:
        settings: list[str] = []
        if point in UPKEEP:
            maintenance.TICK_SECONDS = 0.02
            settings = [word for setting in UPKEEP_SETTINGS.items() for word in setting]
            failpoints.arm("local.link", "sleep:5")  # more commits wait meanwhile
        if armed:
            failpoints.arm(point, f"kill@{at}")
        return alpheus_daemon.main.main([url, "--listen", listen, "--port-file", str(port_file), *settings])

    def start(listen: str, armed: bool) -> tuple[int, int | None]:
        """Return the process id, and the wait status if the process died before it served."""
        port_file.unlink(missing_ok=True)
        pid = fork(lambda: serve(listen, armed), log)
        while not port_file.exists():
            status = finished(pid, 0.01)
            if status is not None:
                return pid, status
        return pid, None

    daemon, status = start("127.0.0.1:0", True)
    if status is not None:
        if not was_killed(status):
            return f"the daemon did not start: {log.read_text()[-3000:]}"
        daemon, status = start("127.0.0.1:0", False)
        listen = port_file.read_text().strip()
        client = fork(lambda: _run(client_load(folder, listen)), log)
    else:
        listen = port_file.read_text().strip()
        client = fork(lambda: _run(client_load(folder, listen)), log)
        status = finished(daemon, 20)
        if not was_killed(status):
            os.kill(daemon, signal.SIGKILL)
            os.kill(client, signal.SIGKILL)
            finished(daemon)
            finished(client)
            return "not reached" if status is None else f"the daemon ended: {log.read_text()[-3000:]}"
        daemon, _ = start(listen, False)
    before = _size(folder)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _size(folder) < before + 600 and time.monotonic() < deadline:
        time.sleep(0.01)
    (folder / "stop").touch()
    status = finished(client)
    os.kill(daemon, signal.SIGKILL)
    finished(daemon)
    if status != 0:
        return f"the clients ended with {status}: {log.read_text()[-3000:]}"
    after = finished(fork(lambda: _run(verify(folder)), log))
    return "" if after == 0 else f"after the kill: {after}: {log.read_text()[-3000:]}"


def _size(folder: Path) -> int:
    path = folder / "protocol"
    return path.stat().st_size if path.exists() else 0


async def template(folder: Path) -> None:
    """Make a catalog with a tree of several nodes."""
    folder.mkdir()
    storage = open_storage((folder / "lake").as_uri(), create=True)
    journal = await Journal.create(storage, order=3)
    identities = RandomIdentities()
    for number in range(BASE_VERSIONS):
        operation = CreateNamespace(name=f"base{number}", namespace_id=identities.uuid4())
        await journal.commit(
            Transaction(id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,))
        )
    await journal.checkpoint()
    await journal.close()


def main(role: str, base: Path, seed: int, points: list[str]) -> None:
    status = finished(fork(lambda: _run(template(base / f"{role}-template")), base / f"{role}.log"))
    assert status == 0, (base / f"{role}.log").read_text()
    kill = {"library": kill_library, "daemon": kill_daemon}[role]
    rng = random.Random(seed)
    for number, text in enumerate(points):
        point, _, at = text.partition("@")
        folder = base / f"{role}-{number}"
        shutil.copytree(base / f"{role}-template", folder)
        problem = kill(folder, point, int(at), rng.randrange(1 << 30))
        print(json.dumps({"role": role, "point": text, "problem": problem}), flush=True)
        if not problem:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
