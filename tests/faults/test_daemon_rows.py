"""Daemon rows of the fault matrix over real connections: 9 to 14, 48, 56, 57, 59.

The other daemon rows are tested beside the parts that they concern. FAULTS.md names all tests.
"""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from fleet import Client, Ledger, Writer, fleet, judge, remote, rotated

from alpheus.session.remote import RemoteAccess
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.action_rows import row_value
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import CreateNamespace, Operation, Transaction, UpdateNamespace
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Call, Fault, FaultyStorage, TcpProxy
from alpheus_journal.testing.proxy import LoseReply, request
from alpheus_journal.tree.node import decode_node, encode_node
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, service_pb2_grpc

IDENTITIES = RandomIdentities()
BATCH = 50


def transaction(*operations: Operation, begin: int = 0) -> Transaction:
    return Transaction(id=IDENTITIES.uuid7(), begin_version=begin, operations=operations)


def namespace(name: str, **properties: str) -> CreateNamespace:
    return CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4(), properties=properties)


class Gate(MemoryStorage):
    """A store that holds the storing of versions while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.opened.set()

    def shut(self) -> None:
        self.entered.clear()
        self.opened.clear()

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        self.entered.set()
        await self.opened.wait()
        await super().publish(files, slot, root)


class Served:
    """A daemon in this process."""

    def __init__(self, address: str, journal: Journal, metrics: Metrics) -> None:
        self.address = address
        self.journal = journal
        self._metrics = metrics

    async def number(self, name: str) -> float:
        lines = (await self._metrics.text()).decode().splitlines()
        return next(float(line.split(" ")[1]) for line in lines if line.startswith(name + " "))

    async def queued(self, count: int) -> None:
        """Return when `count` transactions are queued."""
        while await self.number("alpheus_commit_queue_transactions") != count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    @asynccontextmanager
    async def client(self, streamed: bool = True) -> AsyncIterator[RemoteAccess]:
        access = RemoteAccess(f"grpc://{self.address}", timeout=30)
        access._commits._is_supported = streamed  # False: as with a daemon of an older release
        await access.info()
        yield access
        await access.close()

    async def logged(self) -> dict[str, int]:
        """Return the version of each transaction, as stored."""
        journal = await Journal.open(self.journal.storage)
        events = [event async for event in journal.events() if isinstance(event, Event)]
        return {recorded.id: event.version for event in events for recorded in event.transactions}


@asynccontextmanager
async def serving(storage: Storage, **settings: Any) -> AsyncIterator[Served]:
    bounds = {"listen": "127.0.0.1:0", "poll_interval_max_ms": 50, "group_ahead_count_min": 0, **settings}
    try:
        journal = await Journal.open(storage)
    except NotFound:
        journal = await Journal.create(storage)
    await journal.load_state()
    metrics = Metrics()
    async with running(Config(url="memory://x", **bounds), journal, metrics=metrics) as address:
        yield Served(address, journal, metrics)
    await journal.close()


async def answers(access: RemoteAccess, asked: Sequence[Transaction]) -> list[Any]:
    """Send all transactions concurrently and return their answers."""
    return await asyncio.gather(*(access.commit(one) for one in asked), return_exceptions=True)


# --- row 9


@pytest.mark.parametrize("streamed", [True, False])
async def test_fault_9_an_answer_that_is_lost_is_got_from_another_daemon(streamed: bool) -> None:
    storage = MemoryStorage()
    async with serving(storage) as first, serving(storage) as second:
        host, _, port = first.address.rpartition(":")
        asked = transaction(namespace("a-name-that-stands-out"))
        async with TcpProxy(host, int(port), raw=True) as proxy, second.client(streamed) as other:
            proxy.script(request(body=b"a-name-that-stands-out"), LoseReply())
            lost = RemoteAccess(f"grpc://127.0.0.1:{proxy.port}", timeout=30)
            lost._commits._is_supported = streamed
            with pytest.raises(OutcomeUnknown) as caught:
                await lost.commit(asked)
            assert caught.value.transaction_id == asked.id
            again = await other.commit(asked)
            assert (again.transaction_id, again.version) == (asked.id, 1)
            assert (await lost.commit(asked)).version == 1, "and from the first, over a new connection"
            await lost.close()
        assert (await second.logged())[asked.id] == 1
        assert second.journal.head.version == 1, "once"


# --- rows 10 and 11


@pytest.mark.parametrize("streamed", [True, False])
async def test_fault_10_cancelled_before_the_seal_it_is_not_applied(streamed: bool) -> None:
    gate = Gate()
    async with serving(gate) as daemon, daemon.client(streamed) as client:
        first, leaving, staying = (transaction(namespace(name)) for name in "abc")
        gate.shut()
        stored = asyncio.create_task(client.commit(first))
        await gate.entered.wait()
        waiting = [asyncio.create_task(client.commit(one)) for one in (leaving, staying)]
        await daemon.queued(2)
        waiting[0].cancel()
        await daemon.queued(1)
        gate.opened.set()
        assert (await stored).version == 1
        assert (await waiting[1]).version == 2
        assert leaving.id not in await daemon.logged()
        assert (await client.outcome(leaving.id, since=0, settle=True)).state == "cancelled"


@pytest.mark.parametrize("streamed", [True, False])
async def test_fault_11_cancelled_after_the_seal_it_commits_and_its_id_tells(streamed: bool) -> None:
    gate = Gate()
    async with serving(gate) as daemon, daemon.client(streamed) as client, daemon.client() as other:
        asked = transaction(namespace("a"))
        gate.shut()
        leaving = asyncio.create_task(client.commit(asked))
        await gate.entered.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        same = asyncio.create_task(other.commit(asked))  # while it is being stored: one answer for both
        await other.info()
        gate.opened.set()
        assert (await same).version == 1
        assert (await client.commit(asked)).version == 1
        outcome = await other.outcome(asked.id, since=0)
        assert outcome.commit is not None
        assert outcome.commit.version == 1
        assert daemon.journal.head.version == 1


# --- rows 12 to 14


def _invalid() -> Transaction:
    return transaction(namespace(""), begin=1)


def _above_the_head() -> Transaction:
    return transaction(namespace("late"), begin=99)


def _conflicting() -> Transaction:
    """Return a transaction whose author did not see the existing object."""
    return transaction(namespace("there"), begin=0)


def _impossible() -> Transaction:
    return transaction(namespace("there"), begin=1)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (_invalid, InvalidInput),
        (_above_the_head, InvalidInput),
        (_conflicting, Conflict),
        (_impossible, AlreadyExists),
    ],
)
async def test_faults_12_and_13_one_of_a_batch_fails_alone(
    bad: Callable[[], Transaction], error: type[AlpheusError], streamed: bool
) -> None:
    gate = Gate()
    async with serving(gate) as daemon, daemon.client(streamed) as client:
        assert (await client.commit(transaction(namespace("there")))).version == 1
        gate.shut()
        first = asyncio.create_task(client.commit(transaction(namespace("first"), begin=1)))
        await gate.entered.wait()
        batch = [transaction(namespace(f"n{number}"), begin=1) for number in range(BATCH - 1)]
        batch.insert(BATCH // 2, bad())
        waiting = asyncio.create_task(answers(client, batch))
        await daemon.queued(BATCH)
        gate.opened.set()
        assert (await first).version == 2
        told = await waiting
        assert isinstance(told.pop(BATCH // 2), error)
        assert {answer.version for answer in told} == {3}, "all others in one version"
        assert batch[BATCH // 2].id not in await daemon.logged()


@pytest.mark.parametrize("fault", [Fault.APPLIED_BUT_LOST, Fault.NOT_APPLIED_BUT_UNKNOWN, Fault.APPLIED_LATE])
@pytest.mark.parametrize("lasts", [False, True])
async def test_fault_14_all_of_a_batch_share_the_outcome_of_its_put(fault: Fault, lasts: bool) -> None:
    """All members of a group share the outcome of its put. With `lasts`, the outcome stays unknown until the
    deadline, else the second attempt learns it."""
    inner = MemoryStorage()
    storage, is_struck = FaultyStorage(inner), False

    def plan(call: Call) -> Fault | None:
        nonlocal is_struck
        if not call.path.startswith("vn/") or call.path.startswith("vn/latest"):
            return None
        if call.method == "create":
            is_struck, struck = True, is_struck
            return fault if lasts or not struck else None
        return Fault.FAIL_BEFORE if lasts and is_struck and call.method == "read" else None

    async with serving(storage, commit_timeout_seconds=0.3) as daemon, daemon.client() as client:
        batch = [transaction(namespace(f"n{number}")) for number in range(20)]
        storage.plan = plan
        told = await answers(client, batch)
        if lasts:
            assert {type(answer) for answer in told} == {OutcomeUnknown}, told
            assert {answer.transaction_id for answer in told} == {one.id for one in batch}
            storage.plan = lambda call: None
            told = await answers(client, batch)  # the same transactions again: each gets its outcome
        assert len({answer.version for answer in told[1:]}) == 1, "those who came together"
        await storage.release()
        logged = await daemon.logged()
        assert [logged[one.id] for one in batch] == [answer.version for answer in told]


# --- row 48


async def test_fault_48_stalled_watchers_cost_little_and_the_others_get_everything(
    tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    watchers = lane_count(60, 1000)
    stalled, versions = watchers // 10, lane_count(100, 500)
    settings = {
        "event_ring_bytes_max": 1 << 20,
        "event_batch_bytes_max": 1 << 16,
        "subscribers_max": watchers,
    }
    async with fleet(tmp_path, 1, settings) as (_, (daemon,)), AsyncExitStack() as peers:
        assert daemon.process is not None
        resident = psutil.Process(daemon.process.pid).memory_info
        client = await remote(daemon)
        peers.push_async_callback(client.close)
        query = wire.encode_events_request(wire.EventsQuery(after=0, follow=True, details=True))

        async def stub() -> Any:
            options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.aio.insecure_channel(daemon.address, options=options)
            return service_pb2_grpc.CatalogStub(await peers.enter_async_context(channel))

        async def read_all(call: Any) -> list[int]:
            seen: list[int] = []
            while not seen or seen[-1] < versions:
                seen += [event.version for event in (await call.read()).events]
            return seen

        # One connection for each stalled stream, ten for all others.
        silent = [(await stub()).Events(query) for _ in range(stalled)]
        shared = [await stub() for _ in range(10)]
        calls = [shared[number % 10].Events(query) for number in range(watchers - stalled)]
        for call in [*silent, *calls]:
            assert not (await call.read()).events  # each stream starts with its position
        before = resident().rss
        readers = [asyncio.create_task(read_all(call)) for call in calls]
        for number in range(versions):
            await client.commit(transaction(namespace(f"n{number}", p="x" * 2000), begin=number))
        for seen in await asyncio.gather(*readers):
            assert seen == list(range(1, versions + 1))
        # 64 KiB of flow control and one message for each stalled stream; the ring, windows and pools for all.
        assert resident().rss - before < (24 << 20) + stalled * (256 << 10)
        for call in [*silent, *calls]:
            call.cancel()


# --- row 56


async def test_fault_56_sigterm_under_load_of_streams(
    tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """Daemons end in an orderly way under load, one after the other. Clients move on, and nothing is lost or
    doubled."""
    rounds, rng, ledger = lane_count(1, 60), random.Random(), Ledger()
    async with fleet(tmp_path, 2) as (url, daemons):
        ways = [[await remote(daemon, streamed=way) for daemon in daemons] for way in (True, False)]
        first = Client("first", ways[0], ledger, rng)
        await first.commit(namespace("shared"))
        writers = [
            Writer(f"w{number}", rotated(ways[number % 2], number % 4 // 2), ledger, random.Random(number))
            for number in range(8)
        ]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(stop))
            for number in range(rounds):
                await ledger.more(50)
                await asyncio.to_thread(daemons[number % 2].end)
                await ledger.more(20)
                await asyncio.to_thread(daemons[number % 2].start)
            stop.set()
        for way in [*ways[0], *ways[1]]:
            await way.close()
    await judge(url, ledger, [], 0)
    assert ledger.failovers


# --- row 57


async def test_fault_57_a_blocked_daemon_says_so_when_it_is_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as (_, (daemon,)):
        await daemon.look()
        daemon.pause()
        await asyncio.sleep(2.0)  # the fault itself
        daemon.go_on()
        while "event_loop_blocked" not in daemon.log.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        numbers = await daemon._metrics()
        assert numbers["alpheus_event_loop_lag_seconds_sum"] > 1.0


# --- row 59


class NewerRelease(MemoryStorage):
    """Acts as a writer of a newer release while `strange` is on. Its operations have an unknown type, and its root
    has an unknown row."""

    strange = False

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        await super().publish(files, slot, _strange(root) if self.strange else root)


def _strange(root: bytes) -> bytes:
    file = decode_node(root, "vn/x", root=True, size_max=1 << 20)
    (place, header), (key, text) = file.actions
    action = actions_pb2.ActionDef.FromString(b64decode(text))
    action.type = 77  # type: ignore[assignment]
    computed = ("created_at_millis", "n_keys")
    system = {
        name: value for name, value in file.system.items() if name not in computed and "n_actions" not in name
    }
    return encode_node(
        file.node,
        order=128,
        created_at_millis=int(file.system["created_at_millis"]),
        size_max=1 << 20,
        system={**system, "a_row_of_a_newer_release": "1"},
        actions=[(place, header), (key, row_value(action.SerializeToString()))],
    )


async def test_fault_59_what_a_newer_daemon_wrote_is_passed_on(tmp_path: Path) -> None:
    storage = NewerRelease()
    async with serving(storage) as daemon, daemon.client() as client:
        stream = client.events(follow=True)
        seen = [await anext(stream)]
        newer = await Journal.open(storage)
        storage.strange = True
        committed = await newer.commit(transaction(namespace("new", k="v")))
        storage.strange = False
        while not (isinstance(seen[-1], Event) and seen[-1].version == committed.version):
            seen.append(await anext(stream))
        event = seen[-1]
        assert [(change.name.namespace, change.type) for change in event.changes] == [("new", "created")]
        assert [action.type for action in event.transactions[0].actions] == ["UNKNOWN_77"]
        await stream.aclose()
        # A transaction that may conflict with an unknown operation is refused; all others continue.
        with pytest.raises(Conflict):
            await client.commit(transaction(UpdateNamespace(name="new", set={"k": "w"})))
        assert (await client.commit(transaction(namespace("other")))).version == 2
        assert (await client.outcome(event.transactions[0].id, since=0)).state == "committed"
        await newer.close()
