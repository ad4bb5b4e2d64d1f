"""A store is put back to an older copy while clients commit, and almost nothing is acknowledged on top of it.

The runs use virtual time, with commits one after another, over a real directory and over a store like an object store.
A group writer, as in a daemon, and writers on storage commit. The section "A store that was put back" of FORMAT.md has
the bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest

from alpheus_daemon.serve.writer import Writer
from alpheus_journal.errors import AlpheusError, Corrupt, OutcomeUnknown, Unavailable
from alpheus_journal.format import LATEST_HINT, OLDEST_HINT
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.operations import Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake
from alpheus_journal.testing.latency import LatencyStorage
from alpheus_journal.testing.simulation.loop import SimulatedClock, SimulatedLoop

_P = ParamSpec("_P")
_T = TypeVar("_T")

PAUSE_SECONDS = 0.2
COPIED_AFTER_VERSIONS = 10
AFTER_SECONDS = 20.0
COMMITS_WHILE_RESTORING = 30
HARMLESS = {"corrupt_history", "history_replaced", "head_missing", "corrupt_index"}
"""Findings about slots. Any other finding would be a broken tree or a missing file."""


@contextlib.contextmanager
def as_in_a_thread() -> Iterator[None]:
    """Allow blocking calls in virtual time, where no thread exists and nothing else is delayed."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


class Directory(LocalStorage):
    """A real directory whose calls take no virtual time."""

    @classmethod
    def at(cls, path: Path, *, create: bool) -> Directory:
        with as_in_a_thread():
            return cls(str(path), create=create, threads=0)

    async def _run(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with as_in_a_thread():
            return job(*args, **kwargs)


class Acknowledged(msgspec.Struct, frozen=True):
    version: int
    name: str
    at: float


class World:
    """A place with a catalog, its writers, and a copy to which the place is put back."""

    def __init__(self, seed: int, folder: Path | None, aged_seconds: float) -> None:
        self.loop = SimulatedLoop(seed)
        self.rng = random.Random(seed)
        self.folder = folder / "lake" if folder is not None else None
        self.backup = folder / "backup" if folder is not None else None
        self.memory = MemoryStorage()
        self.kept: dict[str, bytes] = {}
        self.aged_seconds = aged_seconds
        self.lake = Lake(self.storage(create=True), seed=seed)
        self.lake.clock = SimulatedClock(self.loop)  # type: ignore[assignment]
        self.acknowledged: list[Acknowledged] = []
        self.refusals: list[AlpheusError] = []
        self.ended = 0.0
        """The time when the restore was complete."""
        self.copied_head = 0
        self.enough = 1 << 30
        self.has_enough = asyncio.Event()
        self._number = 0

    def storage(self, *, create: bool = False) -> Storage:
        """Return the store as a separate process opens it."""
        if self.folder is not None:
            return Directory.at(self.folder, create=create)
        return LatencyStorage(self.memory, 0.002)

    # --- the writers

    async def client(self, commit: Callable[[Transaction], Awaitable[int]], journal: Journal) -> None:
        """Commit until the history is reported as replaced, or long enough after the restore."""
        while self.loop.time() < self.ended + AFTER_SECONDS or not self.ended:
            self._number += 1
            name = f"n{self._number}"
            transaction = self.lake.transaction(journal, self.lake.namespace(name))
            try:
                version = await commit(transaction)
            except (Unavailable, Corrupt, OutcomeUnknown) as error:
                self.refusals.append(error)
                if error.kind == "history_replaced" or len(self.refusals) > 50:
                    return
            else:
                self.acknowledged.append(Acknowledged(version, name, self.loop.time()))
                if len(self.acknowledged) >= self.enough:
                    self.has_enough.set()
            await asyncio.sleep(self.rng.random() * PAUSE_SECONDS)

    async def writing(self, who: str, tasks: asyncio.TaskGroup) -> None:
        if who == "daemon":
            journal = await self.lake.open(self.storage())
            writer = Writer(
                journal,
                group_count_max=100,
                group_bytes_max=1 << 20,
                queue_count_max=1000,
                queue_bytes_max=1 << 20,
                timeout_seconds=5.0,
                ahead_count_min=2,
                monotonic=self.loop.time,
            )
            running = tasks.create_task(writer.run())

            async def through(transaction: Transaction) -> int:
                return (await writer.submit(transaction)).version

            async def all_clients() -> None:
                async with asyncio.TaskGroup() as clients:
                    for _ in range(3):
                        clients.create_task(self.client(through, journal))
                writer.close()
                await running

            tasks.create_task(all_clients())
            return
        for _ in range(2):
            journal = await self.lake.open(self.storage())

            async def alone(transaction: Transaction, journal: Journal = journal) -> int:
                return (await journal.commit(transaction, timeout_seconds=5.0)).version

            tasks.create_task(self.client(alone, journal))

    # --- the copy, and putting it back

    @as_in_a_thread()
    def names(self) -> list[str]:
        if self.folder is not None:
            return sorted(f"vn/{path.name}" for path in (self.folder / "vn").iterdir())
        return sorted(path for path in self.memory._files if path.startswith("vn/"))

    @as_in_a_thread()
    def copy(self) -> None:
        if self.folder is not None:
            assert self.backup is not None
            shutil.copytree(self.folder, self.backup, ignore=shutil.ignore_patterns(".staging"))
        self.kept = {path: self.read(path) for path in self.names()}

    def read(self, path: str) -> bytes:
        if self.folder is not None:
            return (self.folder / path).read_bytes()
        return self.memory._files[path].data

    @as_in_a_thread()
    def swap(self, folder: str = "") -> None:
        """Replace the folder, or one in it, by the copy's."""
        assert self.folder is not None
        assert self.backup is not None
        (self.folder / folder).rename(self.folder.parent / "aside")
        (self.backup / folder).rename(self.folder / folder)

    @as_in_a_thread()
    def put_back(self, path: str) -> None:
        """Put one file back as in the copy."""
        kept = self.kept.get(path)
        if self.folder is None:
            if kept is None:
                del self.memory._files[path]
        elif kept is None:
            (self.folder / path).unlink()
        elif path in (LATEST_HINT, OLDEST_HINT):
            (self.folder / path).write_bytes(kept)

    async def restore(self, way: str) -> None:
        match way:
            case "at once" if self.folder is not None:
                self.swap("vn")
            case "at once":
                for path in self.names():
                    self.put_back(path)
            case "listed first":
                await self._restore_slowly()
            case "another folder":
                self.swap()
        self.ended = self.loop.time()

    async def _restore_slowly(self) -> None:
        """Restore as tools do: list the files, and delete them later, when more files have come."""
        listed = self.names()
        self.enough = len(self.acknowledged) + COMMITS_WHILE_RESTORING
        await self.has_enough.wait()
        for path in listed:
            self.put_back(path)
            await asyncio.sleep(0.001)

    # --- a run

    async def main(self, who: str, way: str) -> None:
        journal = await self.lake.create()
        for _ in range(COPIED_AFTER_VERSIONS):
            self._number += 1
            await self.lake.commit(journal, self.lake.namespace(f"n{self._number}"))
        self.copy()
        self.copied_head = journal.head.version
        async with asyncio.TaskGroup() as tasks:
            await self.writing(who, tasks)
            await asyncio.sleep(self.aged_seconds * (1 + self.rng.random()))
            await self.restore(way)

    async def found_later(self) -> None:
        """Check what a new reader sees and what `check` reports."""
        storage = self.storage()
        log = await Log.open(storage)
        visible = set()
        with contextlib.suppress(AlpheusError):
            opened = await Journal.open(storage, clock=self.lake.clock, identities=self.lake.identities)
            findings = [item async for item in opened.check() if not isinstance(item, CheckSummary)]
            assert {item.kind for item in findings} <= HARMLESS, findings  # type: ignore[union-attr]
        for path in self.names():
            if path in (LATEST_HINT, OLDEST_HINT):
                continue
            for version in {item.version for item in self.acknowledged} | set(range(self.copied_head + 1)):
                if log.path(version) == path:
                    visible.add(version)
        assert set(range(self.copied_head + 1)) <= visible, "what the copy has is there"
        interval = 1.0 if self.folder is not None else 5.0
        for item in self.acknowledged:
            if item.at > self.ended + interval:
                assert item.version in visible, f"{item} was acknowledged after the restore, and is gone"


WAYS = [
    ("memory", "at once", "daemon"),
    ("memory", "listed first", "library"),
    ("local", "at once", "library"),
    ("local", "listed first", "daemon"),
    ("local", "another folder", "daemon"),
]


@pytest.mark.parametrize(("store", "way", "who"), WAYS)
def test_a_store_put_back_under_writers(
    tmp_path: Path, store: str, way: str, who: str, lane_count: Callable[[int, int], int]
) -> None:
    for seed in range(lane_count(1, 40)):
        if seed % 2:
            who = "daemon" if who == "library" else "library"
        is_local = store == "local"
        folder = tmp_path / str(seed) if is_local else None
        if folder is not None:
            folder.mkdir()
        # Longer than twice the restore, and longer than the time between two verifications.
        world = World(seed, folder, aged_seconds=5.0 if is_local else 14.0)
        world.loop.run(world.main(who, way))
        after = sorted({item.version for item in world.acknowledged if item.at > world.ended})
        where = f"seed {seed}: acknowledged after the restore: {after}"
        assert len(world.acknowledged) > 30, "clients were busy before"
        if way == "listed first":
            interval = 1.0 if is_local else 5.0
            latest = max(item.at for item in world.acknowledged)
            assert latest <= world.ended + interval + 0.1, where
        else:
            assert len(after) <= (1 if who == "daemon" else 2), where  # one for each process
        told = [error for error in world.refusals if error.kind == "history_replaced"]
        if way == "another folder":
            assert all("another directory" in error.message for error in world.refusals), world.refusals[:3]
        else:
            assert told, world.refusals[:3]
            assert any(" was " in error.message and " is " in error.message for error in told)
            assert len({error.version for error in told}) >= 1
        slots = world.names()
        later = World.__new__(World)
        later.__dict__.update(world.__dict__)
        later.loop = SimulatedLoop(seed)
        later.lake.clock = SimulatedClock(later.loop)  # type: ignore[assignment]
        later.loop.run(later.found_later())
        assert world.names() == slots, "nobody writes any more"
