"""The time budget of each part of `make test`, and a table of the time taken, printed at the end of a whole run.

Seconds are summed over all processes that ran tests: two processes spend two seconds in one second. A budget is not a
limit: no test fails because a machine is slow. The table shows which part to speed up before tests are added to it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUDGET_SECONDS = {"journal": 200, "daemon": 60, "clients": 230, "spark": 480, "faults": 290, "rest": 80}
"""On 2 idle cores: 12 minutes with two processes, lint and types included."""
STARTS_SPARK = (
    "tests/clients/spark/",
    "tests/clients/cli/test_cli_spark.py",
    "tests/clients/test_demo.py",
    "tests/clients/test_guide.py",
    "tests/clients/test_readme.py",
    "tests/faults/test_pipeline_kills.py",
    "tests/faults/test_spark_s3_faults.py",
)
PARTS = {"tests/journal/": "journal", "tests/daemon/": "daemon", "tests/clients/": "clients"} | dict.fromkeys(
    ("tests/faults/", "tests/fuzz/"), "faults"
)
SHARES_SPARK = ("tests/clients/spark/", "tests/clients/test_guide.py")
SHARED_UNIT = "spark"
"""The unit of all files that share a Spark session. A session takes ten seconds to start and some minutes to become
fast, and its JVM takes more than a gigabyte. So one process of a run starts it, and the others run the rest.
test_spark_s3_faults has a session of its own: after its cut uploads, a later upload to S3 was refused (status 400)."""
WHOLE_RUN_MIN = 3000
"""Tests. A run of fewer tests is a selection, and its times do not describe the parts."""


def part_of(node_id: str) -> str:
    """Return the part of the budget that a test belongs to."""
    if node_id.startswith(STARTS_SPARK):
        return "spark"
    return next((part for place, part in PARTS.items() if node_id.startswith(place)), "rest")


def unit_of(node_id: str) -> str:
    """Return the unit of work that a test belongs to: its file, or the unit of the files that share a Spark session.
    One process runs a whole unit."""
    file = node_id.partition("::")[0]
    return SHARED_UNIT if file.startswith(SHARES_SPARK) else file


def table_of(reports: list[pytest.TestReport]) -> list[str]:
    """Return one line a part: seconds taken, seconds budgeted, tests. Empty for a run of few tests."""
    seconds, counts = Counter[str](), Counter[str]()
    for report in reports:
        seconds[part_of(report.nodeid)] += report.duration
        counts[part_of(report.nodeid)] += report.when == "call"
    if counts.total() < WHOLE_RUN_MIN:
        return []
    lines = [f"{'part':9}{'took':>8}{'budget':>8}{'tests':>8}"]
    for part, budget in BUDGET_SECONDS.items():
        over = "  over" if seconds[part] > budget else ""
        lines.append(f"{part:9}{seconds[part]:7.0f}s{budget:7}s{counts[part]:8}{over}")
    total = f"{'all':9}{seconds.total():7.0f}s{sum(BUDGET_SECONDS.values()):7}s{counts.total():8}"
    return [*lines, total]
