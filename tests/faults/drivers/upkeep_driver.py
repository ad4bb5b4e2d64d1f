"""Kills or pauses a daemon's upkeep at failpoints, for `test_upkeep_faults.py`.

    python upkeep_driver.py FOLDER SEED POINT@N...

Upkeep is all that a daemon does beside the plain commit: it stages groups ahead, and writes and replaces checkpoints,
index runs and symbol lists. The driver kills a process at the N-th hit of each point, each in a small new catalog, and
prints one JSON line for each point. FOLDER is as in `kill_points_driver.py`, whose `fork` it uses.

The process is a daemon without its network: writer, maintenance and their journal. Beside them run a library writer
that takes slots, and readers that start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from kill_points_driver import Protocol, Sent, finished, fork, was_killed

from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.serve.writer import Writer
from alpheus_journal import failpoints
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, Expired
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.index_runs import gaps, last_version
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.replay.checkpoint import FOLDER, parse_checkpoint_path
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.testing import FaultyStorage, listed

WIDER = ("", "local.link", "commit.root_answered")
"""One of these failpoints is slowed down: a root is slow, or its answer is late, so that more groups are staged
ahead."""
CLIENTS = 5
COMMITS = 20
COMMITS_MAX = 300
KEPT = 2
Note = Callable[[Sent], None]
Opening = Callable[[], Awaitable[Storage]]


def pair(sent: Sent) -> Transaction:
    """Return a transaction of two objects, so that half of a transaction can be detected."""
    names = (sent.name, f"{sent.name}-too")
    ids = (sent.namespace_id, sent.id[:14] + "4" + sent.id[15:])
    operations = tuple(
        CreateNamespace(name=name, namespace_id=id) for name, id in zip(names, ids, strict=True)
    )
    return Transaction(id=sent.id, begin_version=sent.begin, operations=operations)


def keeping(journal: Journal) -> Journal:
    journal.replay.checkpoints_kept = KEPT
    journal.replay.symbol_journal_max = 2
    return journal


async def work(
    open_one: Opening,
    note: Note,
    seed: int,
    *,
    commits: int = COMMITS,
    is_enough: Callable[[], bool] = lambda: True,
) -> None:
    """Make every client's `commits`, and more until `is_enough`, with upkeep all the time. `open_one` opens the
    storage of each process."""
    storage = await open_one()
    if seed % 2:  # it publishes the files before the root, in separate requests
        storage = FaultyStorage(storage)
    journal = keeping(await Journal.open(storage))
    await journal.load_state()
    writer = Writer(
        journal,
        group_count_max=3,
        group_bytes_max=1 << 20,
        queue_count_max=1000,
        queue_bytes_max=1 << 20,
        timeout_seconds=30,
        ahead_count_min=1,
    )
    maintenance = Maintenance(journal, checkpoint_versions=1, checkpoint_minutes=15, drift_check_seconds=0)
    identities, done, moments = RandomIdentities(), asyncio.Event(), random.Random(seed)

    async def client(prefix: str) -> None:
        for number in range(COMMITS_MAX):
            if number >= commits and is_enough():
                break
            sent = Sent(identities.uuid7(), journal.head.version, f"{prefix}{number}", identities.uuid4())
            note(sent)
            with suppress(Expired):  # its begin version expired while the daemon stood still
                committed = await writer.submit(pair(sent), source=prefix)
                note(msgspec.structs.replace(sent, version=committed.version))

    async def maintain() -> None:
        while not done.is_set():
            await maintenance.step()
            await asyncio.sleep(0.001)

    async def rival() -> None:
        """Take slots, so that versions with staged successors are lost. Also store and delete hints."""
        other = keeping(await Journal.open(await open_one()))
        for number in range(COMMITS_MAX):
            if done.is_set():
                break
            sent = Sent(identities.uuid7(), other.head.version, f"r{number}", identities.uuid4())
            note(sent)
            with suppress(Expired):
                committed = await other.commit(pair(sent))
                note(msgspec.structs.replace(sent, version=committed.version))
            if number % 7 == 6:
                await other.checkpoint()
                await other.write_index()
            # At full speed this writer could win every slot, because it does less for each version than the daemon.
            await asyncio.sleep(moments.uniform(0, 0.006 if number < 2 * commits else 0.05))
        await other.close()

    async def starting() -> None:
        while not done.is_set():
            reader = await Journal.open(await open_one())
            await reader.load_state()
            await reader.outcome(identities.uuid7())
            await reader.close()

    async with asyncio.TaskGroup() as group:
        for each in (writer.run, maintain, rival, starting):
            group.create_task(each())
        await asyncio.gather(*(client(f"c{number}x") for number in range(CLIENTS)))
        done.set()
        writer.close()
    assert not (await journal.check_symbols()).differences
    await journal.close()


# --- afterwards ------------------------------------------------------------------------------------


async def verify(
    open_one: Opening, sents: list[Sent], *, tear: Callable[[], bool] = lambda: False, expired: bool = False
) -> None:
    """Check that there is one history, with each transaction whole and once, or absent only if it was not answered.
    Everything in `checkpoint/` must be whole and agree with the tree, also when this function tears some of it.
    Afterwards everything must work."""
    journal = await Journal.open(await open_one())
    log: dict[str, int] = {}
    if not expired:
        async for entry in journal.log():
            assert entry.transaction.id not in log, f"{entry.transaction.id} appears twice"
            log[entry.transaction.id] = entry.version
        await _nothing_is_half_there(journal, sents, log)
    await _hints_are_sound(open_one, journal, log)
    if tear():
        await _hints_are_sound(open_one, journal, log, torn=True)
    await journal.close()
    journal = keeping(await Journal.open(await open_one()))
    await journal.load_state()
    for sent in sents:  # commit what was in flight, once
        committed = await _sent_again(journal, sent, expired)
        if committed is not None:
            assert sent.version in (-1, committed.version), f"{sent} is in version {committed.version}"
            assert committed.duplicate == (sent.id in log) or expired
            assert log.setdefault(sent.id, committed.version) == committed.version
    await _hints_are_made(journal)
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert not findings, findings
    await journal.close()
    if not expired:
        journal = await Journal.open(await open_one())
        again = [entry.transaction.id async for entry in journal.log()]
        assert len(again) == len(set(again)), "a transaction appears twice"
        assert set(again) == log.keys()
        await journal.close()


async def _sent_again(journal: Journal, sent: Sent, expired: bool) -> Committed | None:
    try:
        return await journal.commit(pair(sent))
    except AlpheusError as error:
        # The version at which it began, or the one that contains it, may have expired.
        if expired and (isinstance(error, Expired) or error.kind in ("already_exists", "already_exists_now")):
            return None
        raise


async def _nothing_is_half_there(journal: Journal, sents: list[Sent], log: dict[str, int]) -> None:
    page = await journal.list(None, Kind.NAMESPACE)
    assert not page.more
    there = {name for name in page.names if not name.startswith("base")}
    told = [sent for sent in sents if sent.id in log]
    assert there == {name for sent in told for name in (sent.name, f"{sent.name}-too")}
    for sent in sents:
        assert sent.version == -1 or log.get(sent.id) == sent.version, f"{sent} is in {log.get(sent.id)}"


async def _hints_are_sound(
    open_one: Opening, by_tree: Journal, log: dict[str, int], *, torn: bool = False
) -> None:
    stored = await listed(by_tree.storage, FOLDER)
    journal = await Journal.open(await open_one())
    state = await journal.load_state()
    wanted = await by_tree.replay.load(from_tree=True)
    assert (state.version, state.entries()) == (wanted.version, wanted.entries())
    assert not (await journal.check_symbols()).differences
    for id, version in log.items():
        if not version:
            continue  # the creation of the catalog has no outcome to ask for
        outcome = await journal.outcome(id, since=0)
        assert outcome.commit is not None, f"{id} is not found"
        assert outcome.commit.version == version
    if not torn:
        assert not journal.replay.skipped, journal.replay.skipped
        assert journal.replay.counts.loads_from_checkpoint == any(map(parse_checkpoint_path, stored))
        assert not journal.index.refused, journal.index.refused
    await journal.close()


async def _hints_are_made(journal: Journal) -> None:
    """Check that the next writer tidies up what was left."""
    info = await journal.checkpoint()
    await journal.compact_symbols()
    await journal.write_index()
    stored = await listed(journal.storage, FOLDER)
    assert info.path in stored
    assert len([path for path in stored if parse_checkpoint_path(path)]) <= KEPT
    oldest = (await journal.info()).oldest_version
    assert gaps(journal.index._stored.values(), oldest, journal.head.version) == []
    assert {path for path in stored if last_version(path) is not None} == set(journal.index._stored)
    assert not (await journal.check_symbols()).differences


def tear(lake: Path, rng: random.Random) -> bool:
    """Cut, empty or change some files in `checkpoint/` at random. Return whether any file was changed."""
    touched = False
    if rng.random() < 0.5:
        return touched
    for path in sorted((lake / FOLDER).iterdir()):
        how = rng.randrange(4)
        data = bytearray(path.read_bytes())
        if how == 0:
            del data[rng.randrange(len(data)) :]
        elif how == 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == 2:
            data[:] = bytes(len(data))
        path.write_bytes(data)
        touched = touched or how < 3
    return touched


# --- kills -----------------------------------------------------------------------------------------


def kill(folder: Path, point: str, at: int, seed: int) -> str:
    log, lake, rng = folder / "log", folder / "lake", random.Random(seed)
    wider = rng.choice(WIDER)

    async def open_one() -> Storage:
        return open_storage(lake.as_uri())

    def load() -> int:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        failpoints.arm(point, f"kill@{at}")
        if wider:
            failpoints.arm(wider, "sleep:4")
        asyncio.run(work(open_one, Protocol(folder / "protocol").note, seed))
        return 0

    def look() -> int:
        sents = list(Protocol.read(folder / "protocol").values())
        asyncio.run(verify(open_one, sents, tear=lambda: tear(lake, rng)))
        return 0

    pid = fork(load, log)
    status = finished(pid)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        finished(pid)
    if not was_killed(status):
        return "not reached" if status == 0 else f"the load ended with {status}: {log.read_text()[-3000:]}"
    if not (folder / "protocol").exists():
        (folder / "protocol").touch()
    after = finished(fork(look, log))
    return "" if after == 0 else f"after the kill: {after}: {log.read_text()[-3000:]}"


async def template(storage: Storage) -> None:
    """Make a tree of several nodes, with checkpoints and index runs and some later versions."""
    journal = keeping(await Journal.create(storage, order=3))
    identities = RandomIdentities()
    for number in range(9):
        operation = CreateNamespace(name=f"base{number}", namespace_id=identities.uuid4())
        await journal.commit(
            Transaction(id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,))
        )
        if number in (3, 7):
            await journal.checkpoint()
            await journal.write_index()
    await journal.close()


def main(base: Path, seed: int, points: list[str]) -> None:
    def make() -> int:
        asyncio.run(template(open_storage((base / "upkeep-template/lake").as_uri(), create=True)))
        return 0

    (base / "upkeep-template").mkdir()
    status = finished(fork(make, base / "upkeep.log"))
    assert status == 0, (base / "upkeep.log").read_text()
    rng = random.Random(seed)
    for number, text in enumerate(points):
        point, _, at = text.partition("@")
        folder = base / f"upkeep-{number}"
        shutil.copytree(base / "upkeep-template", folder)
        problem = kill(folder, point, int(at), rng.randrange(1 << 30))
        print(json.dumps({"role": "upkeep", "point": text, "problem": problem}), flush=True)
        if not problem:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
