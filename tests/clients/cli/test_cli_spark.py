"""The commands that run a pipeline, as processes with real Spark over a daemon: their output and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import alpheus

MARTS = """
from alpheus.pipeline import Pipeline, appends

mart = Pipeline("cli_mart", retries=0)


@mart.job(inputs={"a": appends("n.a")}, outputs=["n.b"])
def copy(run):
    rows = run.read("a")
    if not run.params.get("negative") and rows.where("id < 0").count():
        raise ValueError("a negative id")
    run.append("n.b", rows)
"""
SCHEMA = pa.schema([("id", pa.int64())])


def test_a_pipeline_is_run_and_looked_after_by_the_command_line(
    tmp_path: Path, start_daemon: Callable[..., Any], lane_count: Callable[[int, int], int]
) -> None:
    """The command line runs a pipeline and manages it.

    A short run starts Spark for `serve` only. `make slow LANE=cli_spark` starts Spark for each `run`, too.
    """
    url = start_daemon(f"file://{tmp_path}/lake", "--create").url
    (tmp_path / "marts.py").write_text(MARTS)
    words = [sys.executable, "-m", "alpheus", "--output", "json", "pipeline"]
    environment = os.environ | {"ALPHEUS_CATALOG": url}

    def told(status: int, *command: str) -> list[Any]:
        """Run a command, check its exit status, and return its lines."""
        done = subprocess.run(
            [*words, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == status, done.stdout + done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    with alpheus.connect(url) as catalog:

        def stored() -> list[int]:
            return sorted(catalog.read("n.b")["id"].to_pylist())

        catalog.create_namespace("n")
        catalog.create_table("n.a", pa.table({"id": [1]}, SCHEMA))
        catalog.create_table("n.b", SCHEMA)
        if lane_count(0, 1):
            [result] = told(0, "run", "marts:mart")
            assert (result["job"], result["state"], result["pinned"]) == ("copy", "committed", 3)
            [result] = told(99, "run", "marts:mart")
            assert result["state"] == "nothing"
            good = catalog.version()
            catalog.append("n.a", [{"id": -1}])
            [result] = told(1, "run", "marts:mart")
            assert result["state"] == "parked"
            assert "a negative id" in result["error"]
            told(0, "resume", "cli_mart")
            told(99, "resume", "cli_mart")
            [[status]] = told(0, "status", "marts:mart")
            assert status["state"] == "running"
            [result] = told(0, "run", "marts:mart", "--param", "negative=yes")
            assert stored() == [-1, 1]
            told(0, "rewind", "cli_mart", str(good))
            told(99, "rewind", "cli_mart", str(good))
            assert stored() == [1]
            [result] = told(0, "run", "marts:mart", "--full-refresh", "--param", "negative=yes")
            assert (result["state"], stored()) == ("committed", [-1, 1])
        else:
            good = catalog.version()
        before = stored()
        catalog.append("n.a", [{"id": 2}])
        with subprocess.Popen(
            [*words, "serve", "marts:mart"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as serving:
            try:
                assert serving.stdout is not None
                assert json.loads(serving.stdout.readline())["state"] == "committed"
                after = stored()
                catalog.append("n.a", [{"id": -2}])
                assert json.loads(serving.stdout.readline())["state"] == "parked"
                serving.terminate()
                assert serving.wait(timeout=60) == 0
                assert serving.stdout.read() == ""
            finally:
                serving.kill()
        assert after == stored() == sorted({*before, 1, 2})
        [[status]] = told(1, "status", "marts:mart")
        assert (status["job"], status["state"], status["lag_versions"]) == ("copy", "parked", 1)
        assert [line["job"] for line in told(0, "resume", "cli_mart")] == ["copy"]
        told(0, "rewind", "cli_mart", str(good))
        assert stored() == ([1] if lane_count(0, 1) else [])
        assert catalog.admin.check().ok
