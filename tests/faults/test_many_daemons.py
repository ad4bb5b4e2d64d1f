"""Three daemons and two library writers on one prefix at full rate, while daemons are killed or stopped at any time.

A client whose daemon does not answer sends the same transaction to another one. The checks are those of fleet.py. In
addition, all make progress: while no daemon is disturbed, each of the five has its share of the versions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from fleet import (
    IDENTITIES,
    SHARED,
    Client,
    Daemon,
    Ledger,
    Subscriber,
    Writer,
    finish,
    fleet,
    judge,
    library,
    plan_of,
    remote,
    rotated,
    torment,
)

from alpheus_journal.model.operations import CreateNamespace

ACTS = ("kill", "stop", "stop")
SETTINGS = {"subscriber_heartbeat_seconds": 1.0, "poll_interval_max_ms": 200}
SHARE_MIN = 1 / 50
"""The least share of the versions for each of five writing processes. Chance would give a fifth. The two library
writers run in the process of the test, which is the busiest, and among few versions their share depends on luck."""
SHARE_COUNT_MIN = 1_000


async def run(
    url: str, daemons: list[Daemon], rounds: int, fair: int, seed: int
) -> tuple[Ledger, list[Subscriber], int]:
    rng, ledger = random.Random(seed), Ledger()
    ways = [await remote(daemon) for daemon in daemons]
    journals = [await library(url) for _ in range(2)]
    first = Client("first", ways, ledger, rng)
    await first.commit(CreateNamespace(name=SHARED, namespace_id=IDENTITIES.uuid4()))
    writers = [
        Writer(f"daemon{n}-{m}", rotated(ways, n), ledger, random.Random(rng.random()))
        for n in range(3)
        for m in range(2)
    ]
    writers += [
        Writer(f"library{n}", [journal], ledger, random.Random(rng.random()))
        for n, journal in enumerate(journals)
    ]
    # One for each daemon, one that changes daemons, and one on storage.
    following = [await remote(daemon) for daemon in daemons]
    subscribers = [Subscriber([way], rng) for way in following]
    subscribers += [Subscriber(following, rng), Subscriber(journals[:1], rng)]
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    kill, *_ = plan_of(rng, len(daemons), ("kill",), 60)  # without a kill no client has to ask another daemon
    stop = asyncio.Event()
    plan = [kill, *plan_of(random.Random(rng.random()), len(daemons), ACTS, 60)]
    async with asyncio.TaskGroup() as group:
        for subscriber in subscribers:
            group.create_task(subscriber.run(last))
        writing = [group.create_task(writer.run(stop)) for writer in writers]
        await verify_shares(ledger, fair)
        print(await torment(daemons, plan, ledger, lambda done: done >= rounds))
        await ledger.more(20)
        stop.set()
        await asyncio.gather(*writing)
        await finish(ledger, [first], last)
    for way in [*ways, *following, *journals]:
        await way.close()
    return ledger, subscribers, last.result()


async def verify_shares(ledger: Ledger, count: int) -> None:
    """Check that no process is shut out by the others: each has a version among the next `count`, or among ten times
    as many if a busy machine lets one process run late. Among many versions each process has its share."""
    known = set(ledger.asked)
    before = max(asked.version or 0 for asked in ledger.asked.values())
    seen, versions = 0, dict[str, set[int]]()
    while seen < count or (len(versions) < 5 and seen < 10 * count):
        await ledger.more(20)
        seen = max(asked.version or 0 for asked in ledger.asked.values()) - before
        for id, asked in ledger.asked.items():
            if id not in known and asked.version is not None:
                versions.setdefault(asked.client.partition("-")[0], set()).add(asked.version)
    shares = {process: len(of_it) / seen for process, of_it in sorted(versions.items())}
    print(f"{seen} versions, shares", {process: round(share, 3) for process, share in shares.items()})
    assert len(shares) == 5, f"kept out: {shares}"
    if count >= SHARE_COUNT_MIN:
        assert min(shares.values()) >= SHARE_MIN, shares


async def test_many_daemons(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    rounds, fair, seed = lane_count(1, 200), lane_count(60, 2000), random.randrange(1 << 30)
    print(f"seed {seed}, {rounds} rounds")
    async with fleet(tmp_path, 3, SETTINGS) as (url, daemons):
        ledger, subscribers, last = await run(url, daemons, rounds, fair, seed)
    log = await judge(url, ledger, subscribers, last)
    assert ledger.failovers, "nobody ever asked another daemon"
    resumed = [subscriber.resumed for subscriber in subscribers]
    print(f"{len(log)} versions, {ledger.committed} commits, {ledger.failovers} failovers, {resumed} resumed")
