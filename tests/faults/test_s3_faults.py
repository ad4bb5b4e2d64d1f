"""Commits on S3 when replies are lost, requests come late, repeated or refused, and the server dies.

These tests cover rows 1 to 6 of the fault matrix with real requests. A proxy between the writer and a real server makes
the faults.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from alpheus_test_servers import S3Server

from alpheus_journal.clock import RandomIdentities, SystemClock
from alpheus_journal.errors import AlpheusError, AlreadyExists, OutcomeUnknown, Unavailable
from alpheus_journal.format import version_file
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.s3 import S3Storage, S3Url, open_s3
from alpheus_journal.testing import SIZE_MAX, TcpProxy, listed, raises
from alpheus_journal.testing.proxy import (
    Action,
    Answer,
    Blackhole,
    CutBefore,
    Hold,
    LoseReply,
    Match,
    Request,
    Twice,
    request,
    s3_error,
)


class QuickClock(SystemClock):
    """A clock whose pauses take no time, so that settling asks again immediately. `between` runs in each pause."""

    def __init__(self) -> None:
        self.pauses = 0
        self.between: Callable[[], Any] | None = None

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        if self.between is not None:
            await self.between()
        await asyncio.sleep(0)


class Rig:
    """A catalog on a real server. `writer` reaches it through the proxy, `other` directly."""

    def __init__(self, server: S3Server, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.clock = QuickClock()
        self.identities = RandomIdentities()
        self.url = server.url(self_test="false")
        near = S3Url.parse(
            server.url(
                _prefix(self.url),
                endpoint=proxy.endpoint,
                deadline="4",
                read_timeout="2",
                self_test="false",
            )
        )
        self.journals: list[Journal] = []
        self.storages: list[Storage] = [open_s3(self.url), S3Storage(near, sleep=self.clock.sleep)]

    async def start(self) -> None:
        direct, near = self.storages
        await Journal.create(direct)
        self.other = await Journal.open(direct)
        self.writer = await Journal.open(near, clock=self.clock)
        self.journals = [self.other, self.writer]
        await self.other.commit(self.transaction("base"))
        await self.writer.refresh()
        self.slot: Match = create_of(2)

    def transaction(self, name: str, begin: int = 0) -> Transaction:
        operation = CreateNamespace(name=name, namespace_id=self.identities.uuid4())
        return Transaction(id=self.identities.uuid7(), begin_version=begin, operations=(operation,))

    async def history(self) -> dict[str, int]:
        """Return the version by transaction id from a new reader. Check that ids are unique and the catalog is
        sound."""
        journal = await Journal.open(open_s3(self.url))
        try:
            entries = [(entry.transaction.id, entry.version) async for entry in journal.log()]
            assert len(dict(entries)) == len(entries), "committed twice"
            (summary,) = [item async for item in journal.check()]
            assert isinstance(summary, CheckSummary)
            return dict(entries)
        finally:
            await journal.close()


def _prefix(url: str) -> str:
    return S3Url.parse(url).prefix


def create_of(version: int) -> Match:
    """Return a match for the conditional PUT of a version's root."""
    name = version_file(version, 32)

    def match(found: Request) -> bool:
        return found.method == "PUT" and found.path.endswith(f"/{name}") and "if-none-match" in found.headers

    return match


@pytest.fixture
async def rig(s3_server: S3Server) -> AsyncIterator[Rig]:
    async with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        rig = Rig(s3_server, proxy)
        try:
            await rig.start()
            yield rig
        finally:
            for journal in rig.journals:
                await journal.close()
            for storage in rig.storages:
                await storage.close()


REFUSALS = [
    s3_error(503, "SlowDown"), s3_error(409, "ConditionalRequestConflict"), s3_error(500, "InternalError"),
]  # fmt: skip


@pytest.mark.parametrize(
    "actions",
    [
        [LoseReply()], [LoseReply(hang=True)], [CutBefore()], [Blackhole()], [Twice()], [Hold()],
        *([refusal] for refusal in REFUSALS),
        [LoseReply(), s3_error(503, "SlowDown"), CutBefore()],
        [s3_error(409, "ConditionalRequestConflict")] * 3 + [LoseReply()],
        [Answer(status=503, applied=True)],
        [Hold(), Hold(), LoseReply()],
    ],
    ids=str,
)  # fmt: skip
async def test_whatever_becomes_of_the_root_it_is_committed_once(rig: Rig, actions: list[Action]) -> None:
    """Rows 1 to 5: every copy of the root has the same bytes and slot, and the writer looks up the slot's holder."""
    rig.proxy.script(rig.slot, *actions)
    transaction = rig.transaction("new")
    committed = await rig.writer.commit(transaction)
    assert (committed.version, committed.duplicate) == (2, False)
    assert rig.writer.is_settled
    roots = [record.request.body for record in rig.proxy.log if rig.slot(record.request)]
    assert len(set(roots)) == 1
    assert len(roots) <= len(actions) + 1
    assert {held.status for held in await rig.proxy.release()} <= {412}
    assert (await rig.history())[transaction.id] == 2
    assert (await rig.writer.commit(transaction)).duplicate


async def test_a_lost_reply_costs_one_read_and_no_second_root(rig: Rig) -> None:
    """The driver repeats no request below the journal: the server gets exactly the requests that were sent."""
    rig.proxy.script(rig.slot, LoseReply())
    await rig.writer.commit(rig.transaction("new"))
    assert rig.proxy.count(rig.slot) == 1


async def test_a_storm_of_503_while_files_are_uploaded(rig: Rig) -> None:
    """Row 6: repeatable requests are repeated until the deadline; after it, nothing was applied."""
    uploads: Match = lambda r: r.method == "PUT" and "/vn/" not in r.path  # noqa: E731
    rig.proxy.script(uploads, *[s3_error(503, "SlowDown")] * 3)
    assert (await rig.writer.commit(rig.transaction("patient"))).version == 2
    rig.proxy.always(request("PUT"), s3_error(503, "SlowDown"))
    transaction = rig.transaction("refused")
    before = rig.proxy.count(request("PUT"))
    with pytest.raises(AlpheusError) as caught:
        await rig.writer.commit(transaction, timeout_seconds=1)
    assert isinstance(caught.value, Unavailable | OutcomeUnknown)
    assert rig.proxy.count(request("PUT")) > before + 2
    rig.proxy.clear()
    assert (await rig.writer.commit(transaction)).version == 3
    assert (await rig.history())[transaction.id] == 3


@pytest.mark.parametrize("late", ["before", "after"])
async def test_a_root_that_lands_after_its_writer_gave_up(rig: Rig, late: str) -> None:
    """Row 2: the slot is closed before anything else is written, so the late copy changes nothing or is the commit.
    Meanwhile another writer continues."""
    rig.proxy.always(rig.slot, Hold())
    transaction, rival = rig.transaction("new"), rig.transaction("rival")
    error = await raises(OutcomeUnknown, rig.writer.commit(transaction, timeout_seconds=0.2))
    assert error.transaction_id == transaction.id
    assert not rig.writer.is_settled
    rig.proxy.clear()
    if late == "before":
        delivered = await rig.proxy.release()
        assert [held.status for held in delivered] == [200] + [412] * (len(delivered) - 1)
    await rig.other.commit(rival)
    assert {held.status for held in await rig.proxy.release()} <= {412}
    committed = await rig.writer.commit(transaction)
    assert rig.writer.is_settled
    history = await rig.history()
    expected = {"before": (2, 3), "after": (3, 2)}[late]
    assert (history[transaction.id], history[rival.id]) == expected
    assert committed.version == expected[0]


async def test_a_root_that_lands_while_its_writer_settles(rig: Rig) -> None:
    """The rival takes the slot in the pause between the lost request and the next, then the late copy arrives."""
    rig.proxy.script(rig.slot, Hold())
    transaction, rival = rig.transaction("new"), rig.transaction("rival")

    async def between() -> None:
        rig.clock.between = None
        await rig.other.commit(rival)
        assert [held.status for held in await rig.proxy.release()] == [412]

    # The reply is lost, and so is the first lookup of the slot's holder, which ends in a pause.
    def is_look(request: Request) -> bool:
        return request.method in ("GET", "HEAD") and request.path in {held.path for held in rig.proxy.held}

    rig.proxy.script(is_look, *[CutBefore()] * 2)
    rig.clock.between = between
    committed = await rig.writer.commit(transaction)
    history = await rig.history()
    assert (history[rival.id], history[transaction.id]) == (2, 3)
    assert committed.version == 3


async def test_many_faults_in_many_commits(rig: Rig, lane_count: Callable[[int, int], int]) -> None:
    """Two writers commit, one of them behind a proxy that spoils a third of its writes."""
    seed = 7
    chance = random.Random(seed)
    spoil = [LoseReply(), CutBefore(), Twice(), Hold(), *REFUSALS]

    async def faulty(count: int) -> None:
        for number in range(count):
            rig.proxy.clear()
            if chance.random() < 0.7:
                rig.proxy.script(request("PUT"), *[chance.choice(spoil) for _ in range(chance.randint(1, 3))])
            transaction = rig.transaction(f"faulty{number}")
            mine.append((transaction.id, (await rig.writer.commit(transaction)).version))

    async def steady(count: int) -> None:
        for number in range(count):
            transaction = rig.transaction(f"steady{number}")
            mine.append((transaction.id, (await rig.other.commit(transaction)).version))

    mine: list[tuple[str, int]] = []
    rounds = lane_count(8, 150)
    async with asyncio.TaskGroup() as group:
        group.create_task(faulty(rounds))
        group.create_task(steady(rounds))
    await rig.proxy.release()
    history = await rig.history()
    assert {id: history.get(id) for id, _ in mine} == dict(mine), f"seed {seed}"
    assert len(history) == len(mine) + 2  # and those of the catalog and of the rig


RACER = """
import asyncio, json, sys
from alpheus_journal.errors import AlreadyExists
from alpheus_journal.storage import open_storage

async def main(url, name, slots):
    storage = open_storage(url)
    won = []
    await storage.exists("vn/0")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for slot in range(slots):
        try:
            await storage.create(f"vn/{slot}", name.encode() * 1000)
            won.append(slot)
        except AlreadyExists:
            pass
    await storage.close()
    print(json.dumps(won))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_two_processes_race_for_every_slot(
    s3_server: S3Server, lane_count: Callable[[int, int], int]
) -> None:
    url, slots = s3_server.url(), lane_count(40, 2000)
    async with processes(*([sys.executable, "-c", RACER, url, name, str(slots)] for name in "ab")) as racers:
        for racer in racers:
            assert await racer.stdout.readline() == b"ready\n"
        for racer in racers:
            racer.stdin.write(b"\n")
        won = [set(json.loads(await racer.stdout.readline())) for racer in racers]
    assert won[0] | won[1] == set(range(slots))
    assert not won[0] & won[1]
    storage = open_s3(url)
    try:
        files = await storage.read_many([f"vn/{slot}" for slot in range(slots)], size_max=2000)
        for slot in range(slots):
            assert files[f"vn/{slot}"] == (b"a" if slot in won[0] else b"b") * 1000
    finally:
        await storage.close()


@asynccontextmanager
async def processes(*commands: list[str]) -> AsyncIterator[list[Any]]:
    pipe = asyncio.subprocess.PIPE
    running = [await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe) for words in commands]
    try:
        yield running
        for process in running:
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                await process.wait()


class Storm:
    """Eight loops of puts and creates that end when the server does."""

    def __init__(self, storage: Storage, kill_after: int) -> None:
        self.acknowledged: dict[str, bytes] = {}
        self.unknown: dict[str, bytes] = {}
        self.enough = asyncio.Event()
        self._storage = storage
        self._kill_after = kill_after

    async def lane(self, lane: int) -> None:
        for number in range(10_000):
            path, data = f"vn/{lane}-{number}", b"%d-%d " % (lane, number) * (number % 7 * 500 + 1)
            try:
                await (self._storage.create if number % 2 else self._storage.put)(path, data)
            except (OutcomeUnknown, Unavailable):
                self.unknown[path] = data
                return
            self.acknowledged[path] = data
            if len(self.acknowledged) >= self._kill_after:
                self.enough.set()


async def test_what_was_acknowledged_survives_a_killed_server(
    crash_s3: S3Server, lane_count: Callable[[int, int], int]
) -> None:
    """After kill -9 during puts and creates, acknowledged writes survive and unanswered ones are whole or absent."""
    for round_number in range(lane_count(2, 30)):
        storage = open_s3(crash_s3.url(deadline="0", read_timeout="5"))
        storm = Storm(storage, kill_after=60 + 23 * (round_number % 5))
        async with asyncio.TaskGroup() as group:
            for lane in range(8):
                group.create_task(storm.lane(lane))
            await storm.enough.wait()
            crash_s3.kill()
        await asyncio.to_thread(crash_s3.start)
        try:
            found = await storage.read_many(list(storm.acknowledged), size_max=SIZE_MAX)
            assert found == storm.acknowledged
            assert set(await listed(storage, "")) <= set(storm.acknowledged) | set(storm.unknown)
            for path, data in storm.unknown.items():
                try:
                    await storage.create(path, data)
                except AlreadyExists:
                    assert await storage.read(path, size_max=SIZE_MAX) == data
        finally:
            await storage.close()


async def test_commits_survive_a_killed_server(
    crash_s3: S3Server, lane_count: Callable[[int, int], int]
) -> None:
    """The journal recovers by itself when the server is back, and every acknowledged commit is in the log."""
    storage = open_s3(crash_s3.url(deadline="1", read_timeout="5", self_test="false"))
    await Journal.create(storage)
    writer = await Journal.open(storage)
    committed: dict[str, int] = {}
    identities = RandomIdentities()
    try:
        for round_number in range(lane_count(2, 20)):
            for number in range(4):
                operation = CreateNamespace(name=f"n{round_number}x{number}", namespace_id=identities.uuid4())
                transaction = Transaction(id=identities.uuid7(), begin_version=0, operations=(operation,))
                task = asyncio.ensure_future(writer.commit(transaction))
                if number == 2:
                    for _ in range(round_number % 6 * 4):
                        await asyncio.sleep(0)
                    crash_s3.kill()
                    await asyncio.to_thread(crash_s3.start)
                try:
                    committed[transaction.id] = (await task).version
                except (OutcomeUnknown, Unavailable):
                    committed[transaction.id] = (await writer.commit(transaction)).version
    finally:
        await writer.close()
    reader = await Journal.open(open_s3(storage.url))
    try:
        log = {entry.transaction.id: entry.version async for entry in reader.log() if entry.version}
        assert log == committed
        (summary,) = [item async for item in reader.check()]
        assert isinstance(summary, CheckSummary)
    finally:
        await reader.close()
