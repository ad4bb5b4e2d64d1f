"""Fault rows 49 to 51: hostile bytes are refused or keep every promise. The process survives, and memory is capped.

- Row 49: Arrow files that are malformed, are bombs, or give wrong lengths and offsets.
- Row 50: nested or amplified protobuf.
- Row 51: pointers that leave the prefix.

Row 52 (cyclic and endless trees) is in test_hostile_trees.py. The work is done by fuzz_run.py in forked children. The
docstring there explains how to replay a failure. A full run resumes where the last one was stopped, because
`.cache/fuzz/full.progress` records what has passed. A change of the code makes the record invalid.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRESS = HERE.parent.parent / ".cache" / "fuzz" / "full.progress"
FULL_SEED = 20261121


def fuzz(*arguments: str | Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "fuzz_run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def test_hostile_bytes_of_every_kind(lane_count: Callable[[int, int], int], tmp_path: Path) -> None:
    count = lane_count(1_500, 2_000_000)
    arguments: list[str | Path] = ["--count", str(count)]
    if count > 100_000:
        arguments += ["--seed", str(FULL_SEED), "--progress", PROGRESS]
    else:
        arguments += ["--seed", str(random.randrange(1 << 31)), "--out", tmp_path]
    done = fuzz(*arguments, timeout=3_600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert ", 0 flaws" in done.stdout.splitlines()[-1]


LONG_TO_REFUSE = ("amplified-references-of-view.gz", "amplified-short-names.gz")
"""The inputs that take longest. A short run leaves them out, and has another amplified action."""


def test_every_input_that_was_ever_found_stays_harmless(lane_count: Callable[[int, int], int]) -> None:
    left_out = () if lane_count(0, 1) else LONG_TO_REFUSE
    assert {*LONG_TO_REFUSE} < {path.name for path in (HERE / "corpus" / "action").iterdir()}
    done = fuzz("--corpus", *(word for name in left_out for word in ("--leave-out", name)))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(done.stdout.split("corpus: ")[1].split()[0]) > 10


# The gates, or parts of gates, on which a row of the fault matrix relies.
PLANTS = {
    49: (
        "unvalidated", "bomb", "order", "hang", "footer_gate", "segment_nulls", "tombstones", "checkpoint_order",
        "checkpoint_text", "checkpoint_facts", "run_order", "run_bounds",
    ),
    50: ("decode_error", "definition_cap", "column_ids"),
    51: ("pointers",),
}  # fmt: skip


LONG_TO_FIND = ("bomb", "hang", "checkpoint_facts", "run_order", "definition_cap", "column_ids")
"""The plants that take longest to find. A short run leaves them out."""


def test_gates_that_are_broken_on_purpose_are_found(
    tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    passed_over = () if lane_count(0, 1) else LONG_TO_FIND
    left_out = [word for name in passed_over for word in ("--pass-over", name)]
    done = fuzz("--prove", "--seed", "3", "--out", tmp_path, *left_out)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    for plant in (plant for plants in PLANTS.values() for plant in plants):
        assert (f"plant {plant}: found" in done.stdout) == (plant not in passed_over)
    # The failing input is kept, and the file alone shows the fault again. The intact gate accepts or refuses the input.
    (kept,) = (tmp_path / "pointers").iterdir()
    assert fuzz("--plant", "pointers", "--replay", "node", kept).returncode == 1
    assert fuzz("--replay", "node", kept).returncode == 0


def test_inputs_are_the_same_in_every_process(tmp_path: Path) -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        code = (
            "import sys, hashlib; sys.path.insert(0, sys.argv[1]); import fuzz_run as f\n"
            "d = hashlib.sha256()\n"
            "for t in f.TARGETS.values():\n"
            "    for i in range(4): d.update(f.make(t, 5, i))\n"
            "print(d.hexdigest())"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code, str(HERE)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    arguments: list[str | Path] = [
        "--target",
        "text",
        "--count",
        "5000",
        "--seed",
        "4",
        "--progress",
        progress,
    ]
    first = fuzz(*arguments)
    assert "5,000 inputs passed, 0 flaws" in first.stdout
    lines = progress.read_text().splitlines()
    assert len(lines) == 4  # the digest of the code, and three parts
    progress.write_text("\n".join(lines[:2]) + "\n")
    second = fuzz(*arguments)
    assert "5,000 inputs passed, 0 flaws" in second.stdout
    assert sorted(progress.read_text().splitlines()[1:]) == sorted(lines[1:])
    # Results of other code do not count.
    progress.write_text("\n".join(["other", *lines[1:]]) + "\n")
    fuzz(*arguments, "--count", "1")
    assert progress.read_text().splitlines()[0] == lines[0]
