"""The time and memory that a process needs to load a catalog from a checkpoint, by the age of the log.

    make bench BENCH=start                      10^6 objects, 10^3 and 10^5 versions: two minutes, 2 GiB of disk
    make bench BENCH=start ARGS="--quick"       10^5 objects
    make bench BENCH=start ARGS="--profile"     with a profile

Each figure is of a new process that has imported everything. The measurement goes from opening the storage to the
complete state, with the last version's changes applied. The figures are the CPU time of that process, its peak of
resident memory with mapped pages, and the part of the memory that is its own. The peer is the same process building a
dict of the same objects from the same file, in the same run. The docstring of `large_catalog` explains which parts of
the catalog are real.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import mmap
import os
import platform
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from large_catalog import LargeCatalog

from alpheus_journal.journal import Journal
from alpheus_journal.replay.checkpoint import decode_checkpoint
from alpheus_journal.storage import open_storage

SECONDS_MAX = 0.6
RESIDENT_MIB_MAX = 400
ROUNDS = 5


def memory() -> dict[str, float]:
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmHWM", "RssAnon"):
            found[name] = int(rest.split()[0]) / 1024
    return found


async def opened(url: str) -> Journal:
    journal = await Journal.open(open_storage(url))
    await journal.load_state()
    gc.collect()
    gc.freeze()
    return journal


def child(url: str, profile: bool) -> None:
    """Run one start and print its cost."""
    before = memory()["RssAnon"]
    profiler = cProfile.Profile()
    started, wall = time.process_time(), time.monotonic()
    if profile:
        profiler.enable()
    with asyncio.Runner() as runner:
        journal = runner.run(opened(url))
        took, waited = time.process_time() - started, time.monotonic() - wall
        profiler.disable()
        after = memory()
        assert journal.state is not None
        assert journal.replay.counts.loads_from_checkpoint == 1, journal.replay.skipped
        found = {
            "cpu": took, "wall": waited, "peak": after["VmHWM"], "own": after["RssAnon"] - before,
            "objects": len(journal.state), "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        }  # fmt: skip
        runner.run(journal.close())
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(14)
    print(json.dumps(found))


def peer(path: str) -> None:
    """Build and measure a dict of the same objects: key to path and definition."""
    started = time.process_time()
    with open(path, "rb") as file:
        _, flat = decode_checkpoint(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    held = {
        key: (place, data)
        for key, place, data in zip(
            flat.keys.array.to_pylist(),
            flat.paths.array.to_pylist(),
            flat.definitions.array.to_pylist(),
            strict=True,
        )
    }
    gc.collect()
    print(json.dumps({"cpu": time.process_time() - started, "peak": memory()["VmHWM"], "objects": len(held)}))


def run(*words: str, rounds: int = ROUNDS) -> dict[str, float]:
    """Return medians over new processes."""
    results = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True, text=True
        )
        results.append(json.loads(done.stdout))
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--child")
    parser.add_argument("--peer")
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.profile)
        return 0
    if asked.peer:
        peer(asked.peer)
        return 0
    objects = 100_000 if asked.quick else 1_000_000
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {objects:,} objects"
    )
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        lake = LargeCatalog(Path(folder) / "lake", objects=objects)
        lake.make()
        flat = []
        for versions in (1_000, 100_000):
            lake.age(versions)
            (path,) = lake.folder.glob("checkpoint/*")
            found = run("--child", lake.url)
            dict_ = run("--peer", str(path), rounds=2)
            flat.append(found["cpu"])
            met = found["cpu"] < SECONDS_MAX and found["peak"] < RESIDENT_MIB_MAX
            ok &= met
            print(
                f"{versions:>8,} versions: {found['cpu']:.3f} s CPU, {found['wall']:.3f} s wall, peak"
                f" {found['peak']:.0f} MiB, own {found['own']:.0f} MiB ({path.stat().st_size / 2**20:.0f} MiB mapped)"
                f"   {'met' if met else 'MISSED'}   dict of it: {dict_['cpu']:.2f} s,"
                f" peak {dict_['peak']:.0f} MiB, ratio {dict_['cpu'] / found['cpu']:.1f}"
            )
        print(f"the hundredfold history costs {flat[1] / flat[0]:.2f} times as much")
        if asked.profile:
            run("--child", lake.url, "--profile", rounds=1)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
