"""The budget table at the end of a whole run."""

from __future__ import annotations

import alpheus_budget as budget
import pytest


def report(node_id: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(node_id, ("", 0, ""), {}, "passed", None, "call", duration=seconds)


def test_each_test_counts_for_its_part() -> None:
    reports = [report("tests/journal/log/test_log.py::test_a", 0.1)] * budget.WHOLE_RUN_MIN
    reports += [report("tests/faults/test_pipeline_kills.py::test_b[part0]", 500.0)]
    reports += [
        report("tests/clients/spark/test_java.py::test_c", 2.0),
        report("tests/test_tidy.py::test_d", 3.0),
    ]
    lines = budget.table_of(reports)
    assert [line.split()[0] for line in lines] == ["part", *budget.BUDGET_SECONDS, "all"]
    took = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert took["journal"] == ["300s", f"{budget.BUDGET_SECONDS['journal']}s", "3000", "over"]
    assert took["spark"] == ["502s", f"{budget.BUDGET_SECONDS['spark']}s", "2", "over"]
    assert took["rest"] == ["3s", f"{budget.BUDGET_SECONDS['rest']}s", "1"]
    assert took["all"][0] == "805s"


def test_a_few_tests_print_no_table() -> None:
    assert budget.table_of([report("tests/test_tidy.py::test_d", 3.0)]) == []


def test_one_process_runs_all_that_shares_a_spark_session() -> None:
    files = sorted((budget.ROOT / "tests/clients/spark").glob("test_*.py"))
    units = {budget.unit_of(f"{file.relative_to(budget.ROOT)}::test_x") for file in files}
    assert units == {budget.SHARED_UNIT}
    assert budget.unit_of("tests/faults/test_spark_s3_faults.py::test_x") not in units
    assert budget.unit_of("tests/test_tidy.py::test_d[x::y]") == "tests/test_tidy.py"


def test_the_places_of_the_budget_exist() -> None:
    for place in (*budget.STARTS_SPARK, *budget.PARTS):
        assert (budget.ROOT / place).exists(), place
