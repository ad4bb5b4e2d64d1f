"""The demonstration is a test: real processes, real Spark, both kills, and every comparison at the end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from programs import ROOT, programs


def said_in_the_readme() -> list[str]:
    """Return the lines that the README shows of `make run`."""
    [program] = [found for found in programs((ROOT / "README.md").read_text()) if "make run" in found.text]
    return program.printed.splitlines()


def plain(line: str) -> str:
    """Return a line without what differs between runs: versions, durations, places, times, and notes about calls."""
    line = re.sub(r"version +\d+|\d+ s$|port \d+|\d{4}-\d\d-\d\dT\S+|:\d+$", "#", line)
    return re.sub(r"/tmp/\S+", "/tmp", line.partition("[called")[0].rstrip())


MONTHS_SMALL = 3
"""The README shows what the version reads that has this month."""


def needs_the_year(line: str) -> bool:
    """Return whether a run of `MONTHS_SMALL` months lacks this line: the load of a later month, or the size of the
    whole."""
    loaded = re.search(r"load 2013-(\d\d)|month-(\d\d)", line)
    if loaded:
        return int(loaded[1] or loaded[2]) > MONTHS_SMALL
    return bool(re.search(r"flights loaded|_delays: \d+ rows", line))


def test_the_demonstration_agrees_with_a_recomputation(lane_count: Callable[[int, int], int]) -> None:
    """A short run has three months of the year and short pauses. `make slow LANE=demo` runs what `make run` runs."""
    months = lane_count(MONTHS_SMALL, 12)
    command = [sys.executable, "-m", "alpheus.demo"]
    if months < 12:
        command += ["--months", str(months), "--pause", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "the job killed its process (SIGKILL)" in done.stdout
    assert "the daemon was killed (SIGKILL)" in done.stdout
    assert "WRONG" not in done.stdout
    kept_tags = (months + 1) // 2
    assert done.stdout.count("  ok ") == 7 + 1 + kept_tags + 1
    # The output has each line that the README shows, except lines of jobs: their work depends on when they are called.
    printed = {plain(line) for line in done.stdout.splitlines()}
    shown = [line for line in said_in_the_readme() if line != "..." and " pipeline " not in line]
    assert len(shown) > 20
    if months < 12:
        shown = [line for line in shown if not needs_the_year(line)]
        assert len(shown) > 12
    missing = [line for line in shown if plain(line) not in printed]
    assert not missing, done.stdout
