"""The demonstration is a test: real processes, real Spark, both kills, and every comparison at the end."""

from __future__ import annotations

import subprocess
import sys


def test_the_demonstration_agrees_with_a_recomputation() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "alpheus.demo"], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "the job killed its process (SIGKILL)" in done.stdout
    assert "the daemon was killed (SIGKILL)" in done.stdout
    assert "WRONG" not in done.stdout
    assert done.stdout.count("  ok ") == 7
