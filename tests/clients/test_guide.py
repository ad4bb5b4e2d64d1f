"""The programs of the guide run one after the other, and print what the guide shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from programs import ROOT, Program, Session, differs, programs, sitting
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS

GUIDE = (ROOT / "clients" / "GUIDE.md").read_text()
SPARK_FROM = "With Spark"
STREAMS = "Change feeds and streams"
AGAIN = "Loading old data again"

pytestmark = SPARK_MARKS


class Reader:
    """Types the guide's programs, each only once. `_done` holds the lines of those that were typed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done: set[int] = set()

    def type(self, wanted: list[Program]) -> None:
        for program in wanted:
            if program.line not in self._done:
                self._done.add(program.line)
                difference = differs(program, self._session.run(program))
                assert not difference, difference


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("guide")
    with sitting(folder, str(folder / "lake")) as session:
        yield Reader(session)


def only_slow() -> list[Program]:
    """Return what a short run skips (`make slow LANE=guide`): the streams, which start a dozen Python processes, and
    the pipeline that loads old data again. test_spark_pipeline has runs like those."""
    before, _, after = GUIDE.partition(f"\n### {AGAIN}\n")
    begin = before.count("\n") + 1
    end = begin + after[: after.index("\n### ")].count("\n")
    again = [program for program in programs(GUIDE) if begin < program.line < end]
    return [*programs(GUIDE, STREAMS)[1:], *again]


def of(*, spark: bool) -> list[Program]:
    """Return the guide's programs from the part about Spark on, or those before it."""
    border = GUIDE.count("\n", 0, GUIDE.index(f"\n## {SPARK_FROM}\n"))
    return [program for program in programs(GUIDE) if (program.line > border) == spark]


def test_what_runs_without_spark(reader: Reader) -> None:
    reader.type(of(spark=False))


def test_what_runs_with_spark(
    reader: Reader, spark: SparkSession, lane_count: Callable[[int, int], int]
) -> None:
    reader.type(of(spark=False))
    passed_over = [] if lane_count(0, 1) else only_slow()
    reader.type([program for program in of(spark=True) if program not in passed_over])


def test_each_program_is_run_somewhere() -> None:
    """Each program of the guide runs in `make test`, except those of the streams and of old data."""
    fences = [line for line in GUIDE.splitlines() if line.startswith("```")]
    run = of(spark=False) + of(spark=True)
    printing = [program for program in run if program.printed]
    assert len(fences) == 2 * (len(run) + len(printing)), "each block is a program or what one prints"
    assert {program.language for program in run} == {"python", "sh"}
    streams, file, *again = only_slow()
    assert "lake.write_stream(" in streams.text
    assert file.file_name == "shop_days.py"
    assert [program.text.count("days.run(lake") for program in again] == [3, 2]


def test_a_difference_is_told() -> None:
    said = Program("python", "print(1)", "one ... three\n", 7)
    assert not differs(said, "one two three\n")
    assert differs(said, "one two\n").startswith("line 7\n")
    assert differs(Program("python", "print(1)", "", 1), "1\n")
    assert not differs(Program("sh", "true", "", 1), "anything\n")
