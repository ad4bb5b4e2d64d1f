"""Real processes are killed at each failpoint under load (`kill_points_driver.py`).

Acknowledged commits survive, commits in flight happen once when they are sent again, and the catalog is sound. Rows 15,
16 and 17 of FAULTS.md.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kill_points_driver import UPKEEP

from alpheus_journal import failpoints
from alpheus_journal.failpoints import POINTS

DRIVER = Path(__file__).parent / "drivers" / "kill_points_driver.py"
ROOT = DRIVER.parents[3]

COPIES = [name for name in POINTS if name.startswith(("lease.", "pin."))]
"""Failpoints of copies of roots, tested in test_lease_faults.py and test_pins.py."""
LIFE_CYCLE = [name for name in POINTS if name.startswith(("expiry.", "collect."))]
"""Failpoints of expiry and collection, tested in test_collection_kills.py."""
ELSEWHERE = {*UPKEEP, *COPIES, *LIFE_CYCLE}
LIBRARY = [name for name in POINTS if not name.startswith(("writer.", "watch.")) and name not in ELSEWHERE]
DAEMON = [name for name in POINTS if name.startswith(("writer.", "watch."))]
DAEMON_TOO = ["commit.root_answered"]
"""The points shared with a library writer at which `make test` kills a daemon."""
NOT_IN_A_DAEMON = ("journal.ack", "commit.resend")
SELDOM = ("commit.root_unanswered", "commit.slot_lost")
"""Points that a daemon on a quick disk reaches less often than random hits need."""
HITS_MAX = 12


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in memory if possible: a kill loses no page of the kernel, and a disk only takes time."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="alpheus-kills-", dir=place))
    yield path
    shutil.rmtree(path)


def drive(folder: Path, seed: int, points: dict[str, list[str]]) -> list[dict[str, str]]:
    """Run both roles concurrently, and return one result for each point."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(DRIVER), role, str(folder), str(seed), *some],
            stdout=subprocess.PIPE,
            text=True,
        )
        for role, some in points.items()
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return [json.loads(line) for output in outputs for line in output.splitlines()]


def test_killed_at_every_point(folder: Path) -> None:
    points = {
        "library": [f"{name}@1" for name in LIBRARY],
        "daemon": [f"{name}@2" for name in DAEMON_TOO + DAEMON],
    }
    results = drive(folder, 1, points)
    assert not [result for result in results if result["problem"]], results
    killed = {result["point"].partition("@")[0] for result in results}
    assert killed == set(POINTS) - ELSEWHERE, "a point that no lane reaches"


def test_killed_again_and_again(folder: Path, lane_count: Callable[[int, int], int]) -> None:
    """Kills at random hits of random points."""
    seed = random.randrange(1 << 30)
    rounds = lane_count(2, 120)
    print(f"seed {seed}, {rounds} rounds")
    rng = random.Random(seed)
    everywhere = [name for name in POINTS if name not in {*NOT_IN_A_DAEMON, *SELDOM, *ELSEWHERE}]
    points = {
        "library": [f"{rng.choice(LIBRARY)}@{rng.randint(1, HITS_MAX)}" for _ in range(rounds)],
        "daemon": [f"{rng.choice(everywhere)}@{rng.randint(1, HITS_MAX)}" for _ in range(rounds // 2)],
    }
    if rounds > 100:  # two seconds each; `make test` uses a daemon without network: test_upkeep_faults.py
        points["daemon"] += [f"{name}@{at}" for name in UPKEEP for at in (1, 2)]
    results = drive(folder, seed, points)
    problems = [result for result in results if result["problem"] not in ("", "not reached")]
    assert not problems, problems
    killed = sum(not result["problem"] for result in results)
    print(f"{killed} of {len(results)} were killed, the others never came by so often")
    assert killed >= len(results) // 2


def test_armed_by_the_environment(tmp_path: Path) -> None:
    """An environment variable kills a process that does not know the test, and an unknown name is refused."""
    code = (
        "import asyncio\n"
        "from alpheus_journal.journal import Journal\n"
        "from alpheus_journal.storage.local import LocalStorage\n"
        f"asyncio.run(Journal.create(LocalStorage({str(tmp_path / 'lake')!r}, create=True)))\n"
    )

    def run(points: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {failpoints.VARIABLE: points},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("local.fsync=kill@2; local.link = sleep:1").returncode == -9
    wrong = run("local.lunk=kill")
    assert wrong.returncode == 1
    assert "'local.lunk' is not a failpoint" in wrong.stderr
    assert all(name in wrong.stderr for name in POINTS)
    assert "sleep:MILLISECONDS" in run("local.link=explode").stderr


def test_every_use_is_declared_and_every_point_is_used() -> None:
    call = re.compile(r"failpoints\.(?:hit|reached)\(([^)]*)\)")
    used = set()
    for package in ("journal/alpheus_journal", "daemon/alpheus_daemon", "clients/alpheus"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if (
                re.search(r"^(?:from|import) .*\bfailpoints\b", text, re.MULTILINE)
                and path.name != "failpoints.py"
            ):
                assert call.search(text) or "testing" in path.parts, f"{path} imports failpoints and has none"
                names = {
                    name
                    for arguments in call.findall(text)
                    for name in re.findall(r'"([a-z_]+\.[a-z_]+)"', arguments)
                }
                if "_STAGED_POINTS" in text:
                    names |= set(re.findall(r'"(local\.[a-z]+_staged)"', text))
                assert names <= POINTS.keys(), f"{path}: {names - POINTS.keys()} are not declared"
                used |= names
    assert used == POINTS.keys(), f"declared and nowhere used: {POINTS.keys() - used}"
