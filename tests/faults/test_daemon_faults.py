"""A daemon on a store that fails, loses replies, delays and breaks at any call, with clients that leave at any time.

The daemon stays up, no answer is wrong, its streams have no gap, and it works again when the store does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc

from alpheus.aio import connect
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import OutcomeUnknown
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Call, Fault, FaultyStorage, Plan, no_faults, seeded
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()
CLIENTS = 6
COMMITS_A_CLIENT = 6
ATTEMPTS_MAX = 100


def breaking(seed: int) -> Plan:
    """Return faults of a store, with a rare exception that no store may raise."""
    faults, rng = seeded(seed, 0.1), random.Random(seed + 1)

    def plan(call: Call) -> Fault | None:
        if rng.random() < 0.02:
            raise RuntimeError(f"injected: {call}")
        return faults(call)

    return plan


class Answers:
    """The answers that callers got, by transaction id."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()

    async def commit(self, stub: Any, *, leave_after: float | None = None) -> None:
        id = IDENTITIES.uuid7()
        operation = CreateNamespace(name="n" + id.replace("-", ""), namespace_id=IDENTITIES.uuid4())
        value = Transaction(id=id, begin_version=0, operations=(operation,))
        await self.send(stub, value, leave_after=leave_after)

    async def send(self, stub: Any, value: Transaction, *, leave_after: float | None = None) -> bool:
        """Send once, without retries. Return whether the transaction was committed."""
        call = stub.Commit(wire.encode_transaction_request(value))
        try:
            if leave_after is not None:
                await asyncio.sleep(leave_after)
                call.cancel()
            self.committed[value.id] = int((await call).version)
            return True
        except asyncio.CancelledError:
            self.unknown.add(value.id)
        except grpc.aio.AioRpcError as error:
            # A KeyError here means an answer that is neither definite nor OutcomeUnknown.
            told = errors.error_of_detail(dict(error.trailing_metadata() or ())[errors.ERROR_METADATA_KEY])
            (self.unknown if isinstance(told, OutcomeUnknown) else self.refused).add(value.id)
        return False

    def verify(self, logged: dict[str, int]) -> None:
        assert {id: logged.get(id) for id in self.committed} == self.committed
        assert not self.refused & logged.keys(), "not applied, and in the log"


async def one_run(seed: int) -> None:
    rng = random.Random(seed)
    inner, answers = MemoryStorage(), Answers()
    await (await Journal.create(inner)).close()
    storage = FaultyStorage(inner, late_after=5)
    journal = await Journal.open(storage)
    await journal.load_state()
    config = Config(
        url="memory://test", listen="127.0.0.1:0", commit_timeout_seconds=0.3, poll_interval_max_ms=50
    )
    seen: list[int] = []
    operation = CreateNamespace(name="last", namespace_id=IDENTITIES.uuid4())
    value = Transaction(id=IDENTITIES.uuid7(), begin_version=0, operations=(operation,))

    async with running(config, journal) as address, grpc.aio.insecure_channel(address) as channel:
        stub = service_pb2_grpc.CatalogStub(channel)
        watcher = await connect(f"grpc://{address}", storage=inner)

        async def follow() -> None:
            async for event in watcher.events(follow=True):
                seen.append(event.version)
                if value.id in {recorded.id for recorded in event.transactions}:
                    return

        async def client() -> None:
            for _ in range(COMMITS_A_CLIENT):
                leaves = rng.random() < 0.3
                await answers.commit(stub, leave_after=rng.random() * 0.01 if leaves else None)

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            storage.plan = breaking(seed)
            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS):
                    clients.create_task(client())
            storage.plan = no_faults
            await storage.release()
            for _ in range(ATTEMPTS_MAX):  # an unsettled earlier commit comes first
                if await answers.send(stub, value):
                    break
        await watcher.close()
    await journal.close()
    answers.refused.discard(value.id)
    assert seen == list(range(answers.committed[value.id] + 1))
    reopened = await Journal.open(inner)
    entries = [(entry.transaction.id, entry.version) async for entry in reopened.log()]
    assert len(dict(entries)) == len(entries), "committed twice"
    answers.verify(dict(entries))
    (summary,) = [item async for item in reopened.check()]
    assert isinstance(summary, CheckSummary)


async def test_a_store_that_fails_anywhere(lane_count: Callable[[int, int], int]) -> None:
    first = random.randrange(1 << 30)
    for seed in range(first, first + lane_count(5, 300)):
        print(f"seed {seed}")
        await one_run(seed)
