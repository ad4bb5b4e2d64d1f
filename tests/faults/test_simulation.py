"""Four writers on one store in a simulated world, seed after seed; and proof that broken writers do not get through.

    python tests/faults/test_simulation.py SEED            replay one seed
    python tests/faults/test_simulation.py FIRST:END       a range; --done FILE: skip and record what passed

The simulated world: `alpheus_journal/testing/simulation.py`. What the clients do and what must be true afterwards:
`alpheus_journal/testing/workload.py`. Here: the daemon's writer as one of the fronts, the lanes, the broken variants.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from alpheus_daemon import telemetry
from alpheus_daemon.writer import Writer, settle
from alpheus_journal import format as fmt
from alpheus_journal.access import Committed, Outcome
from alpheus_journal.actions import Transaction
from alpheus_journal.commit import Answer, Committer
from alpheus_journal.errors import AlpheusError, OutcomeUnknown, Unavailable
from alpheus_journal.follower import Follower
from alpheus_journal.journal import Journal
from alpheus_journal.testing.simulation import LaxStorage, SimulatedLoop
from alpheus_journal.testing.workload import (
    PATIENCE_SECONDS,
    GroupFront,
    LibraryFront,
    Parts,
    Report,
    simulate,
)

SCRIPT = Path(__file__)
SEEDS_SMALL, SEEDS_FULL = 60, 2000
WORKERS = 2
BROKEN_SEEDS_MAX = 60


class DaemonFront:
    """The daemon's writer: a queue, and one task that takes all that waits into one version."""

    def __init__(self, journal: Journal, loop: SimulatedLoop) -> None:
        self._journal = journal
        self._writer = Writer(
            journal,
            group_count_max=4,
            group_bytes_max=1 << 20,
            queue_count_max=16,
            queue_bytes_max=1 << 20,
            timeout_seconds=PATIENCE_SECONDS,
            monotonic=loop.time,
        )
        loop.create_task(self._writer.run()).add_done_callback(loop.must_succeed)

    async def commit(self, transactions: Sequence[Transaction]) -> list[Committed | AlpheusError]:
        answers = await asyncio.gather(
            *(self._writer.submit(transaction, size_bytes=100) for transaction in transactions),
            return_exceptions=True,
        )
        for answer in answers:
            if not isinstance(answer, Committed | AlpheusError):
                assert isinstance(answer, BaseException)
                raise answer
        return answers  # type: ignore[return-value]

    async def settle(self, transaction_id: str, since: int) -> Outcome:
        return await settle(self._journal, self._writer, transaction_id, since)


FRONTS = (LibraryFront, GroupFront, DaemonFront)
PARTS = Parts(fronts=FRONTS)


def replay_hint(seed: int) -> str:
    return f"replay: python tests/faults/{SCRIPT.name} {seed}"


def run(seed: int, parts: Parts = PARTS) -> Report:
    telemetry.configure("error")
    return simulate(seed, parts=parts)


# --- the lanes


def test_simulated_catalogs(lane_count: Callable[[int, int], int], tmp_path: Path) -> None:
    """Seeds from 0, in two processes. With ALPHEUS_SIMULATION_DONE=FILE a run that was stopped goes on after the seeds
    that it passed."""
    count = lane_count(SEEDS_SMALL, SEEDS_FULL)
    done = Path(os.environ.get("ALPHEUS_SIMULATION_DONE", tmp_path / "done"))
    commands = [
        [sys.executable, str(SCRIPT), f"{first}:{count}:{WORKERS}", "--done", f"{done}.{first}"]
        for first in range(WORKERS)
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-6000:]
    reports = [line for first in range(WORKERS) for line in Path(f"{done}.{first}").read_text().splitlines()]
    assert len({line.split()[0] for line in reports}) == count
    totals = {
        name: sum(
            int(part.partition("=")[2]) for line in reports for part in line.split() if part.startswith(name)
        )
        for name in (
            "versions=",
            "commits=",
            "refused=",
            "unknown=",
            "reads=",
            "events=",
            "kills=",
            "linearized=",
        )
    }
    print(totals)
    assert all(totals.values()), totals  # a lane in which nothing of a kind happens tests nothing of it
    assert totals["commits="] > 15 * count


def test_a_seed_repeats_in_any_process() -> None:
    """The same trace whatever the hash seed of the process."""
    traces = set()
    for hash_seed in ("1", "2"):
        output = subprocess.run(
            [sys.executable, str(SCRIPT), "4:7"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        traces.add(output)
    assert len(traces) == 1, traces
    assert "trace=" in traces.pop()


# --- broken variants: each must be found


def opening(break_it: Callable[[Journal], None]) -> Parts:
    async def open_broken(storage: Any, *, clock: Any, identities: Any) -> Journal:
        journal = await Journal.open(storage, clock=clock, identities=identities)
        break_it(journal)
        return journal

    return Parts(fronts=FRONTS, open=open_broken)


class Hasty(Committer):
    """Goes on after an unknown outcome without finding out what became of it."""

    async def _settle(self, deadline: int | None) -> bool:
        with contextlib.suppress(AlpheusError):
            await self._follower.refresh()
        self._unsettled = None
        return False


class Pessimist(Committer):
    """Takes an unknown outcome for a failure, and says so."""

    async def commit_group(
        self, transactions: Sequence[Transaction], *, deadline_seconds: float | None = None
    ) -> list[Answer]:
        answers = await super().commit_group(transactions, deadline_seconds=deadline_seconds)
        return [
            Unavailable(answer.message) if isinstance(answer, OutcomeUnknown) else answer
            for answer in answers
        ]


class Forgetful(Committer):
    """Does not know its own root when it meets it in the slot."""

    async def _holder(self, staged: Any) -> str | None:
        holder = await super()._holder(staged)
        return None if holder is None else "somebody else"


class Trusting(Follower):
    """Believes a hint that names nothing newer, three times in a row."""

    believed = 0

    async def _advance(self) -> None:
        hint = await self.log.hint(fmt.LATEST_HINT)
        if hint is not None and hint <= self.head.version and self.believed < 3:
            self.believed += 1
            return
        self.believed = 0
        await super()._advance()


class Skipping(Follower):
    """Takes the newest version and passes over those between."""

    async def _advance(self) -> None:
        newest = await self.log.head(self.head.version)
        while self.head.version < newest:
            root = await self.log.read(newest)
            record = await self._record(root, self.head.root, self.head.catalog_def)
            definitions = await self._definitions(record)
            if self.head.version >= newest:
                return
            self.state = None  # it would notice
            self.head = self._head_of(await self.log.read(newest - 1)) if newest else self.head
            self.accept(self._head_of(root), record, definitions)


def committer(broken: type[Committer]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal._committer = broken(journal._follower, journal._clock, journal._identities)

    return opening(break_it)


def follower(broken: type[Follower]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal._follower.__class__ = broken

    return opening(break_it)


BROKEN: dict[str, Parts] = {
    "rebases without settling": committer(Hasty),
    "reports an unknown outcome as a failure": committer(Pessimist),
    "ignores its own commit id": committer(Forgetful),
    "trusts the hint": follower(Trusting),
    "skips versions": follower(Skipping),
    "the store ignores the condition": Parts(fronts=FRONTS, store=LaxStorage),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_variants_are_found(name: str) -> None:
    for seed in range(BROKEN_SEEDS_MAX):
        try:
            run(seed, BROKEN[name])
        except Exception as error:
            reason = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            print(f"{name}: found after {seed + 1} seeds: {reason!r}"[:300])
            return
    pytest.fail(f"{name}: not found in {BROKEN_SEEDS_MAX} seeds")


# --- the script


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of the simulation.")
    parser.add_argument("seeds", help="SEED, FIRST:END or FIRST:END:STEP")
    parser.add_argument("--done", default="", help="file of seeds that passed: skipped, and added to")
    options = parser.parse_args()
    numbers = [int(part) for part in options.seeds.split(":")]
    seeds = range(*numbers) if len(numbers) > 1 else range(numbers[0], numbers[0] + 1)
    done = Path(options.done) if options.done else None
    passed = {line.split()[0] for line in done.read_text().splitlines()} if done and done.exists() else set()
    for seed in seeds:
        if str(seed) in passed:
            continue
        try:
            report = run(seed)
        except BaseException:
            print(replay_hint(seed), flush=True)
            import traceback

            traceback.print_exc(file=sys.stdout)
            return 1
        line = (
            f"{seed} trace={report.trace} versions={report.versions} commits={report.commits}"
            f" refused={report.refused} unknown={report.unknown} reads={report.reads} events={report.events}"
            f" kills={report.kills} linearized={int(report.linearized)}"
        )
        print(line, flush=True)
        if done:
            with done.open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
