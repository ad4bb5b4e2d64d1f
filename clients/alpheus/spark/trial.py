"""Calling a job's function with rows of a test: no catalog, no storage, no commit (`Pipeline.test`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from alpheus.merging import Matched, Unmatched
from alpheus.pipeline import Job
from alpheus.row_changes import Mode
from alpheus.session import Name, parse_name
from alpheus.spark.feed import CHANGE_COLUMNS
from alpheus.spark.job_run import BaseRun
from alpheus.spark.scan import Where
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind

Frame = DataFrame
Session = SparkSession
"""For `alpheus.pipeline`, which names nothing of Spark's itself."""

CHANGE_TYPE = CHANGE_COLUMNS[0]


class TrialRun(BaseRun):
    """What the function gets instead of a `JobRun`: version 1, after version 0 unless it is a full run."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        inputs: Mapping[str, DataFrame],
        *,
        params: Mapping[str, str],
        outputs: Mapping[str, DataFrame],
        whole: Mapping[str, DataFrame],
        full: bool | None,
    ) -> None:
        super().__init__(job, spark)
        self.version = 1
        self._given = {key: self._frame_of(f"input {key!r}", frame) for key, frame in inputs.items()}
        self._all = {key: self._frame_of(f"whole {key!r}", frame) for key, frame in whole.items()}
        for key in [*self._given, *self._all]:
            self._check_input(key)
        missing = [key for key in job.inputs if key not in self._given]
        if missing:
            raise InvalidInput(
                f"job {job.name} reads {', '.join(missing)} too", hint="give a frame for each input"
            )
        self._held = {
            self._output_name(name): self._frame_of(f"output {name}", frame)
            for name, frame in outputs.items()
        }
        if full is None:
            full = not self._held and not any(_has_types(frame) for frame in self._given.values())
        self.is_full = bool(full)
        self.previous = None if full else 0
        self.attempt = 1
        self.params = dict(params)
        self.written: dict[tuple[str, str], DataFrame] = {}

    def _frame_of(self, what: str, frame: object) -> DataFrame:
        if not isinstance(frame, DataFrame):
            raise InvalidInput(f"{what}: a DataFrame is needed, not {type(frame).__name__}", kind="bad_data")
        return frame

    # -- reading

    def _read(self, input: str) -> DataFrame:
        df = self._given[input]
        return self._labelled(df) if self._job.inputs[input].mode == "changes" else df

    def _whole(self, input: str) -> DataFrame:
        found = self._all.get(input)
        if found is not None:
            return found
        df = self._given[input]
        if self._job.inputs[input].mode == "changes" and _has_types(df):
            raise InvalidInput(
                f"input {input!r} was given as changes, from which its whole table does not follow",
                hint=f"whole={{{input!r}: df}}",
            )
        return df

    def _touched(self, input: str) -> DataFrame:
        return self._given[input]

    def _labelled(self, df: DataFrame) -> DataFrame:
        """With the columns of changes that it lacks: inserts of this version."""
        there = {name.lower() for name in df.columns}
        values = {
            CHANGE_TYPE: f.lit("insert"),
            CHANGE_COLUMNS[1]: f.lit(self.version).cast("bigint"),
            CHANGE_COLUMNS[2]: f.timestamp_millis(f.lit(0).cast("bigint")),
            CHANGE_COLUMNS[3]: f.lit(None).cast("string"),
        }
        for name, value in values.items():
            if name not in there:
                df = df.withColumn(name, value)
        rows = [name for name in df.columns if name not in CHANGE_COLUMNS]
        return df.select(*[f.col(f"`{name.replace('`', '``')}`") for name in rows], *CHANGE_COLUMNS)

    # -- writing

    def append(self, output: Name, df: DataFrame) -> None:
        """Add the rows of `df` to a declared output."""
        name = self._output_name(output)
        self._check_frame(df)
        before = self._before(name)
        self.written[name] = df if before is None else before.unionByName(df)

    def overwrite(
        self, output: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> None:
        """Replace all rows of a declared output by those of `df`."""
        name = self._output_name(output)
        self._check_frame(df)
        if where is not None or partitions is not None:
            raise _not_tried("overwrite with where or partitions")
        self.written[name] = df

    def merge(
        self,
        output: Name,
        df: DataFrame,
        on: str | Sequence[str],
        matched: Matched = "update",
        unmatched: Unmatched = "insert",
        mode: Mode | None = None,
    ) -> None:
        """Not in a test."""
        self._output_name(output)
        raise _not_tried("merge")

    def update(self, output: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> None:
        """Not in a test."""
        self._output_name(output)
        raise _not_tried("update")

    def delete(self, output: Name, where: Where, mode: Mode = "predicate") -> None:
        """Not in a test."""
        self._output_name(output)
        raise _not_tried("delete")

    def _before(self, name: tuple[str, str]) -> DataFrame | None:
        if name in self.written:
            return self.written[name]
        return None if self.is_full else self._held.get(name)


def _not_tried(verb: str) -> InvalidInput:
    return InvalidInput(
        f"Pipeline.test knows no {verb}",
        kind="not_supported",
        hint="run the pipeline over a catalog in a temporary folder",
    )


def _has_types(df: DataFrame) -> bool:
    return CHANGE_TYPE in (name.lower() for name in df.columns)


def tried(
    spark: SparkSession,
    job: Job,
    inputs: Mapping[str, DataFrame],
    *,
    params: Mapping[str, str],
    outputs: Mapping[str, DataFrame],
    whole: Mapping[str, DataFrame],
    full: bool | None,
) -> dict[str, DataFrame]:
    """See `Pipeline.test`."""
    for name in outputs:
        parse_name(Kind.TABLE, name)
    trial = TrialRun(spark, job, inputs, params=params, outputs=outputs, whole=whole, full=full)
    try:
        job.function(trial)
    finally:
        trial.end()
    return {".".join(name): df for name, df in trial.written.items()}
