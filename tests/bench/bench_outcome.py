"""The cost of learning whether an old transaction committed, with and without the index of ids and keys.

    make bench BENCH=outcome                       histories of 10^3 and 10^5 versions
    make bench BENCH=outcome ARGS="--quick"        10^3 and 10^4

A history has roots of one transaction each, in memory, and every tenth has a key. The question is always about the
oldest transaction, in a process that has just opened the catalog. The result is CPU seconds, the best of three for
quick questions. The last line has the ratio between the largest and the smallest history; the ratio of a scan is that
of their lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from alpheus_journal import format as fmt
from alpheus_journal.clock import RandomIdentities, make_uuid7
from alpheus_journal.journal import Journal
from alpheus_journal.log.index import Index
from alpheus_journal.log.index_runs import FOLDER
from alpheus_journal.log.version_bytes import action_rows
from alpheus_journal.model.action_rows import row_value
from alpheus_journal.model.operation_messages import action_type, operations_digest
from alpheus_journal.model.operations import Action, RecordedTransaction, UpdateCatalog
from alpheus_journal.storage import ObjectInfo
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tree.node import encode_node

REQUESTS_MAX = 60
"""The limit with the index, for any length."""
TRANSACTIONS = 100_000


class Counting(MemoryStorage):
    """Lists a folder without a pass over all files, as real stores do."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self._folder = MemoryStorage()

    async def put(self, path: str, data: bytes) -> None:
        await super().put(path, data)
        if path.startswith(FOLDER):
            await self._folder.put(path, b"")

    async def delete(self, path: str) -> None:
        await super().delete(path)
        await self._folder.delete(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.requests["list"] += 1
        async for info in self._folder.list(prefix) if prefix == FOLDER else super().list(prefix):
            yield info

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.requests[path.split("/")[0]] += 1
        return await super().read(path, size_max=size_max)


def recorded(number: int, millis: int, definition: str) -> RecordedTransaction:
    operation = UpdateCatalog(set={"k": "v"})
    return RecordedTransaction(
        id=make_uuid7(millis, number),
        operations_digest=operations_digest([operation]),
        principal="bench",
        principal_authenticated=False,
        message="",
        properties={},
        serializable=False,
        branch="",
        begin_version=max(number - 1, 0),
        committed_at_millis=millis,
        actions=(
            Action(
                type=action_type(operation),
                name=fmt.CATALOG,
                operation=operation,
                path_before=definition,
                path_after=definition,
            ),
        ),
        reads=(),
        key=f"run {number}" if number % 10 == 0 else "",
    )


async def history(storage: MemoryStorage, length: int) -> list[RecordedTransaction]:
    """Write versions 1 to `length`, with times a second apart that may be in the future. Readers do not need the
    real time."""
    journal = await Journal.create(storage, order=3)
    keys, identities, head = journal.keys, RandomIdentities(), journal.head
    found = []
    for version in range(1, length + 1):
        one = recorded(version, head.created_at_millis + version * 1000, head.catalog_def)
        found.append(one)
        root = encode_node(
            head.root,
            order=3,
            created_at_millis=one.committed_at_millis,
            size_max=1 << 20,
            system={
                fmt.ROW_CATALOG_DEF: head.catalog_def,
                fmt.ROW_PREVIOUS_ROOT: fmt.version_file(version - 1, 32),
                fmt.ROW_COMMIT_ID: str(uuid.uuid4()),
                fmt.ROW_VERSION: str(version),
                fmt.ROW_FORMAT_REVISION: str(fmt.FORMAT_REVISION),
            },
            actions=[(key, row_value(data)) for (key, data), _ in action_rows(one, keys, identities)],
        )
        await storage.put(fmt.version_file(version, 32), root)
    return found


async def cost(
    storage: Counting, ask: Callable[[Journal], Awaitable[object]], rounds: int
) -> tuple[float, Counter[str]]:
    """Return CPU seconds and requests of one question in a process that has just opened the catalog."""
    best, requests = math.inf, Counter[str]()
    for _ in range(rounds):
        journal = await Journal.open(storage)
        storage.requests.clear()
        began = time.process_time()
        await ask(journal)
        best = min(best, time.process_time() - began)
        requests = Counter(storage.requests)
    return best, requests


def show(length: int, what: str, seconds: float, requests: Counter[str]) -> None:
    print(
        f"{length:>9} {what:<28} {seconds * 1000:>11.2f} ms CPU {requests['vn']:>8} roots"
        f" {requests['checkpoint']:>4} runs"
    )


async def measure(length: int) -> tuple[float, float, int]:
    storage = Counting()
    transactions = await history(storage, length)
    first, tenth = transactions[0], transactions[9]

    async def outcome(journal: Journal) -> None:
        found = await journal.outcome(first.id)
        assert found.commit is not None
        assert found.commit.version == 1

    async def key(journal: Journal) -> None:
        found = await journal.follower.find_by_key(tenth.key)
        assert found is not None
        assert found[0] == 10

    without, requests = await cost(storage, outcome, 1)
    show(length, "outcome, no index", without, requests)
    journal = await Journal.open(storage)
    began = time.process_time()
    count = await journal.write_index()
    spent, counts = time.process_time() - began, journal.index.counts
    print(
        f"{length:>9} {'writing the index':<28} {spent * 1000:>11.2f} ms CPU {counts.roots_read:>8} roots"
        f" {count:>4} runs, {counts.bytes_written} bytes in all, {journal.index.runs_count} left"
    )
    with_index, requests = await cost(storage, outcome, 3)
    show(length, "outcome", with_index, requests)
    find_by_key, requests_of_key = await cost(storage, key, 3)
    show(length, "key", find_by_key, requests_of_key)
    warm = await Journal.open(storage)
    await key(warm)
    began = time.process_time()
    for number in range(1000):
        assert await warm.follower.find_by_key(f"new {number}") is None
    each = (time.process_time() - began) / 1000
    print(f"{length:>9} {'new key, index open':<28} {each * 1e6:>11.2f} µs CPU")
    return without, with_index, max(sum(requests.values()), sum(requests_of_key.values()))


def accepting() -> None:
    """Measure the cost of a committed transaction for the process that accepts it."""
    transactions = [recorded(number, 1_700_000_000_000, "d") for number in range(TRANSACTIONS)]
    index = Index(None, "", -1)  # type: ignore[arg-type]  # nothing is read
    began = time.process_time()
    for version in range(TRANSACTIONS // 100):
        index.accepted(version, transactions[version * 100 : version * 100 + 100])
    each = (time.process_time() - began) / TRANSACTIONS
    print(f"accepting a transaction (groups of 100): {each * 1e6:.2f} µs CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick: bool = parser.parse_args().quick
    lengths = [1_000, 10_000 if quick else 100_000]
    results = [asyncio.run(measure(length)) for length in lengths]
    for length, (without, with_index, requests) in zip(lengths, results, strict=True):
        print(
            f"{length:>9} without / with the index: {without / with_index:.0f}; {requests} requests at most"
        )
        assert requests <= REQUESTS_MAX
    print(
        f"{lengths[1] // lengths[0]} times the history: {results[1][0] / results[0][0]:.1f} times the CPU without,"
        f" {results[1][1] / results[0][1]:.1f} with the index"
    )
    accepting()


if __name__ == "__main__":
    main()
