"""A `SparkCatalog` on Spark Connect, in a process of its own: it cannot share a JVM with the other tests' session."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_marks import SPARK_MARKS

pytestmark = [
    *SPARK_MARKS,
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None, reason="grpcio-status is not installed"
    ),
]


def test_a_lake_on_connect(tmp_path: Path, lane_count: Callable[[int, int], int]) -> None:
    """A lake works on Spark Connect. Only full runs try it, because it starts a server."""
    if not lane_count(0, 1):
        pytest.skip("starts a server of its own, which takes long: make slow LANE=connect")
    program = Path(__file__).with_name("connect_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1:] == ["all of it"], done.stdout[-2000:] + done.stderr[-6000:]
