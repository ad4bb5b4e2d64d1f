"""The measurement of one cell, and the protocol by which a client process reports it.

The client programs of bench_peers.py share this module. One of them runs in an environment without this project's
packages, so the module uses the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

WARM_UP_SECONDS = 0.4


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Window:
    """The time in which completed operations are counted. The window opens after the warm-up."""

    def __init__(self, seconds: float) -> None:
        self.opens = time.perf_counter() + WARM_UP_SECONDS
        self.closes = self.opens + seconds
        self.latencies: list[float] = []
        self._total = 0  # with the warm-up and operations that end too late
        self._at_opening: tuple[float, int] | None = None  # CPU seconds of this process, total

    @property
    def is_open(self) -> bool:
        """Return whether another operation may begin. Ask before every operation."""
        return time.perf_counter() < self.closes

    def done(self, started: float) -> None:
        """Record that an operation that began at `started` (perf_counter) has completed."""
        now = time.perf_counter()
        self._total += 1
        if self.opens <= now < self.closes:
            if self._at_opening is None:
                self._at_opening = time.process_time(), self._total
            self.latencies.append(now - started)

    def result(self) -> dict[str, float]:
        """Return the result; call at the end. Latencies are in milliseconds, and CPU of this process is in microseconds
        an operation.

        If no operation ended in the window, the rate is 0 and the latency is the length of the run.
        """
        known = self.latencies or [time.perf_counter() - self.opens]
        cpu, total = self._at_opening or (0.0, 0)
        return {
            "rate": len(self.latencies) / (self.closes - self.opens),
            "total": self._total,
            "p50": percentile(known, 0.50) * 1e3,
            "p99": percentile(known, 0.99) * 1e3,
            "client_cpu": (time.process_time() - cpu) / max(self._total - total, 1) * 1e6,
        }


def answer_commands(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Answer each line of standard input, one JSON object, by one line on standard output, until the input ends.

    The answer goes to the descriptor that was standard output at the start. Output that libraries print goes to
    standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(handle(json.loads(line))) + "\n")
        answers.flush()
    return 0
