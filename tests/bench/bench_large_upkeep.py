"""Expiry and collection of a large lake: time, CPU, memory, requests to S3, and the latency of commits beside them.

    make bench BENCH=large_upkeep
    make bench BENCH=large_upkeep ARGS="--versions 100000 --expire 10000"
    make bench BENCH=large_upkeep ARGS="--versions 0"        # the requests alone

The lake is made without syncs (`aged_lake`): each version appends 7 data files to one of 1,000 tables, so it has 10
files beside its slot. Each step runs in a process of its own, whose largest memory is shown; an idle process that has
opened the lake shows how much of that is not the step's. The controls, in the same run, do alone what any program has
to do: list all files with `os.scandir` and stat them; write and sync as many tombstones, one after the other; unlink as
many files. Figures of another size follow from these by proportion, except those of processes that only open the lake.

The requests are counted by a proxy in front of a real S3 server. Commits run without a pause in the process of the
collection, as they do in a daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvloop
from aged_lake import AgedLake, make_on_disk
from measured import percentile

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Collection, Expiry
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import open_storage

TESTS = Path(__file__).resolve().parent.parent
FILES = 7
TABLES = 1_000
MILLION = 1_000_000


async def last_of(steps: AsyncIterator[Any]) -> Any:
    return [step async for step in steps][-1]


async def expire(journal: Journal, count: int) -> Expiry:
    """Expire the `count` oldest versions that are kept."""
    keep = journal.head.version - await journal.follower.oldest() - count + 1
    found: Expiry = await last_of(journal.expire(ExpiryRules(keep_versions=keep, older_than_millis=0)))
    return found


async def collect(journal: Journal, *, dry_run: bool = False) -> Collection:
    found: Collection = await last_of(journal.collect(minimum_age_millis=0, dry_run=dry_run))
    return found


# --- a step, in a process of its own


async def run_step(step: str, place: str, count: int) -> dict[str, float]:
    journal = await Journal.open(open_storage(place))
    wall, cpu = time.perf_counter(), time.process_time()
    done = 0
    if step == "mark":
        done = sum(totals.files for totals in (await collect(journal, dry_run=True)).kept_by.values())
    elif step == "expire":
        done = (await expire(journal, count)).expired
    elif step == "collect":
        done = (await collect(journal)).deleted_count
    found = {
        "count": done, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }  # fmt: skip
    await journal.close()
    return found


async def run_commits(place: str, seconds: float) -> dict[str, float]:
    """Commit without a pause, first alone, and then beside a collection that marks everything again and again."""
    journal = await Journal.open(open_storage(place))
    identities = RandomIdentities()

    async def commit_for(seconds: float) -> list[float]:
        found, end = [], time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            operation = CreateNamespace(name=identities.uuid4(), namespace_id=identities.uuid4())
            transaction = Transaction(
                id=identities.uuid7(), begin_version=journal.head.version, operations=(operation,)
            )
            await journal.commit(transaction)
            found.append((time.perf_counter() - began) * 1e3)
        return found

    async def mark_on() -> None:
        while True:
            await collect(journal, dry_run=True)

    figures: dict[str, float] = {}
    await commit_for(seconds / 4)
    for name in ("alone", "beside"):
        marking = asyncio.create_task(mark_on()) if name == "beside" else None
        latencies = await commit_for(seconds)
        if marking is not None:
            marking.cancel()
            await asyncio.gather(marking, return_exceptions=True)
        figures |= {
            f"{name} p{p}": percentile(latencies, p / 100) for p in (50, 99)
        } | {f"{name} count": len(latencies)}  # fmt: skip
    await journal.close()
    return figures


def call_step(step: str, place: Path, amount: float = 0) -> dict[str, float]:
    command = [sys.executable, __file__, "--step", step, "--lake", f"file://{place}", "--amount", str(amount)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


# --- the controls


def list_all(place: Path) -> tuple[int, float, float]:
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    folders = [str(place)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
                    count += 1
    return count, time.perf_counter() - wall, time.process_time() - cpu


def replace_files(place: Path, count: int) -> tuple[int, float, float]:
    """Replace files one after the other, each synced with its folder before the next."""
    place.mkdir()
    for number in range(count):
        (place / str(number)).write_bytes(b"x" * 8192)
    folder = os.open(place, os.O_RDONLY)
    os.fsync(folder)
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        fd = os.open("staged", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
        os.write(fd, b"x" * 1500)
        os.fsync(fd)
        os.close(fd)
        os.rename("staged", str(number), src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    found = count, time.perf_counter() - wall, time.process_time() - cpu
    os.close(folder)
    return found


def unlink_files(place: Path, count: int) -> tuple[int, float, float]:
    place.mkdir()
    for number in range(count):
        (place / str(number)).write_bytes(b"x" * 8192)
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        os.unlink(place / str(number))
    return count, time.perf_counter() - wall, time.process_time() - cpu


# --- what is printed


def show(what: str, count: float, wall: float, cpu: float, mib: float | None = None) -> None:
    memory = "" if mib is None else f", {mib:.0f} MiB"
    print(f"{what:<38} {count:10,.0f} {wall:9.2f} s {cpu:9.2f} s CPU{memory}", flush=True)


def measure_disk(folder: Path, versions: int, expired: int, commit_seconds: float) -> None:
    place = folder / "lake"
    place.mkdir()
    wall, cpu = time.perf_counter(), time.process_time()
    made = make_on_disk(place, versions=versions, files=FILES, tables=TABLES)
    show("made: versions", made.versions, time.perf_counter() - wall, time.process_time() - cpu)
    print(f"{made.files:,} files beside {made.versions:,} slots, {made.data_files:,} of them data files")
    idle = call_step("open", place)
    show("an idle process", 0, 0, 0, idle["mib"])
    if commit_seconds:
        commits = call_step("commits", place, commit_seconds)
        for name in ("alone", "beside"):
            p50, p99, count = (commits[f"{name} {key}"] for key in ("p50", "p99", "count"))
            print(f"{count:.0f} commits {name} a collection: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"p99 beside / alone: {commits['beside p99'] / commits['alone p99']:.2f}")
    listed = list_all(place)
    show("control: list and stat", *listed)
    marked = call_step("mark", place)
    show("listing and marking: files reached", **marked)
    print(
        f"marking / control: {marked['cpu'] / listed[2]:.1f} times the CPU;"
        f" for 1,000,000 files {marked['cpu'] / made.files * MILLION:.0f} s CPU,"
        f" {idle['mib'] + (marked['mib'] - idle['mib']) / made.files * MILLION:.0f} MiB"
    )
    replaced = replace_files(folder / "control-replace", expired)
    show("control: write and sync one by one", *replaced)
    step = call_step("expire", place, expired)
    show("expiry: versions", **step)
    print(
        f"expiry / control: {step['wall'] / replaced[1]:.2f} times the time;"
        f" for 10,000 versions {step['wall'] / expired * 10_000:.1f} s, {step['cpu'] / expired * 10_000:.1f} s CPU"
    )
    step = call_step("collect", place)
    show("collection: files deleted", **step)
    show("control: unlink", *unlink_files(folder / "control-unlink", int(step["count"])))
    show("a collection with nothing to do", **call_step("collect", place))


async def measure_requests(versions: int, expired: int) -> None:
    # Here, because a step's process would take memory for these modules.
    sys.path[:0] = [str(TESTS), str(TESTS / "faults" / "drivers")]
    import alpheus_test_servers as servers
    from store_proxy import StoreProxy

    os.environ.update(servers.ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        if failure := servers.install():
            print(f"left out: {servers.NOT_INSTALLED}: {failure}")
            return
        server = servers.S3Server(servers.default_kind(), Path(folder))
        try:
            with StoreProxy(server.port) as store:
                url = f"s3://{server.bucket}/aged?endpoint_url={quote(store.endpoint, safe=':/')}"
                storage = open_storage(url)
                lake = AgedLake(tables=20)
                await lake.begin(storage)
                for _ in range(versions):
                    await storage.put_many(lake.take())
                    lake.append(FILES)
                await storage.put_many(lake.take())
                print(f"S3: {lake.made.files:,} files beside {lake.made.versions:,} slots")
                journal = await Journal.open(storage)
                store.clear()
                done = (await expire(journal, expired)).expired
                show_requests(f"expiry of {done:,} versions", store.count_kinds())
                store.clear()
                deleted = (await collect(journal)).deleted_count
                show_requests(f"collection that deletes {deleted:,} files", store.count_kinds())
                await journal.close()
        finally:
            server.stop()


def show_requests(what: str, kinds: Mapping[Any, int]) -> None:
    counts = Counter[str]()
    for kind, count in kinds.items():
        counts[kind.verb] += count
    print(f"{what}: " + ", ".join(f"{verb} {count:,}" for verb, count in sorted(counts.items())), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--versions", type=int, default=5_000, help="versions of the lake on disk; 0: no such lake"
    )
    parser.add_argument("--expire", type=int, default=500, help="the oldest versions, which expire")
    parser.add_argument("--commit-seconds", type=float, default=10, help="how long commits run; 0: none")
    parser.add_argument("--s3-versions", type=int, default=300, help="versions of the lake on S3; 0: none")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--lake", help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        work = (
            run_commits(options.lake, options.amount)
            if options.step == "commits"
            else run_step(options.step, options.lake, int(options.amount))
        )
        print(json.dumps(uvloop.run(work)))
        return
    if options.versions:
        with tempfile.TemporaryDirectory(prefix="alpheus-bench-") as folder:
            measure_disk(Path(folder), options.versions, options.expire, options.commit_seconds)
    if options.s3_versions:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(measure_requests(options.s3_versions, options.s3_versions // 3))


if __name__ == "__main__":
    main()
