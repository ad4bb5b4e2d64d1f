"""The costs of operations of a Spark driver, side by side: wall clock, and CPU seconds of all processes that take part.

Other programs on the machine affect the CPU seconds least.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import psutil


class Cost(NamedTuple):
    """Times in seconds."""

    wall: float
    cpu: float


class Meter:
    """Measures the costs of process trees, by default of this process and all that it started.

    - `spent_beside`: CPU seconds that do not count, such as those of a thread of this process.
    - `outside`: processes of the trees that do not count, such as a server.
    """

    def __init__(
        self,
        *roots: psutil.Process,
        spent_beside: Callable[[], float] = lambda: 0.0,
        outside: Collection[int] = (),
    ) -> None:
        self._roots = roots or (psutil.Process(),)
        self._spent_beside = spent_beside
        self._outside = frozenset(outside)

    def measure(self, operation: Callable[[], object]) -> Cost:
        known = self._tree()
        before = sum(map(_cpu_seconds, known)) - self._spent_beside()
        started = time.perf_counter()
        operation()
        wall = time.perf_counter() - started
        after = sum(map(_cpu_seconds, known)) - self._spent_beside()  # before the next walk, which costs time
        return Cost(wall, after + sum(map(_cpu_seconds, self._tree() - known)) - before)

    def _tree(self) -> set[psutil.Process]:
        found = {each for root in self._roots for each in (root, *root.children(recursive=True))}
        return {each for each in found if each.pid not in self._outside}


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class Costs(NamedTuple):
    """The costs of one arm over the rounds."""

    all: Sequence[Cost]

    @property
    def median(self) -> Cost:
        return Cost(*(statistics.median(column) for column in zip(*self.all, strict=True)))

    @property
    def best(self) -> Cost:
        return Cost(*(min(column) for column in zip(*self.all, strict=True)))

    def __str__(self) -> str:
        median, best = self.median, self.best
        return f"{median.cpu:7.2f} ({best.cpu:6.2f})  {median.wall:7.2f} ({best.wall:6.2f})"


HEADINGS = f"{'':58} CPU s   (best)   wall s   (best)     CPU    wall, to the first (best to best)"


def compare(
    what: str,
    arms: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int,
    meter: Meter,
    after: Callable[[], object] = lambda: None,
) -> dict[str, Costs]:
    """Run each arm once a round in random order, and print a line for each. The others are compared with the first
    arm. `after` runs after each arm and is not measured."""
    found: dict[str, list[Cost]] = {name: [] for name in arms}
    for number in range(warm_up + rounds):
        for name in random.sample(list(arms), len(arms)):
            cost = meter.measure(arms[name])
            after()
            if number >= warm_up:
                found[name].append(cost)
    costs = {name: Costs(all) for name, all in found.items()}
    first = next(iter(costs.values()))
    for name, one in costs.items():
        to_first = (
            f"   {ratio(one.median, first.median)}  ({ratio(one.best, first.best)})"
            if one is not first
            else ""
        )
        print(f"{what + ', ' + name:54} {one}{to_first}", flush=True)
    return costs


def ratio(ours: Cost, theirs: Cost) -> str:
    return f"{ours.cpu / max(theirs.cpu, 0.005):5.2f}x {ours.wall / theirs.wall:5.2f}x"


def verdict(what: str, ours: Costs, theirs: Costs, at_most: float) -> bool:
    """Print whether the required ratio of median CPU seconds was met, and return it."""
    found = ours.median.cpu / max(theirs.median.cpu, 0.005)
    met = found <= at_most
    print(
        f"{what}: {found:.2f}x of the CPU, {ours.median.wall / theirs.median.wall:.2f}x of the time"
        f"   at most {at_most:g}x of the CPU: {'met' if met else 'MISSED'}"
    )
    return met


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def load() -> str:
    return f"load average {os.getloadavg()[0]:.1f}"


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
