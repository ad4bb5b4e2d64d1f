"""Calls a job's function with rows of a test, without catalog, storage or commit (`Pipeline.test`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from alpheus.callables import refuse_unrun
from alpheus.feed.change_sets import CHANGE_COLUMNS
from alpheus.pipeline.jobs import Job
from alpheus.rows.plan import PlannedFile
from alpheus.session.arguments import Name, parse_name
from alpheus.spark.files.schemas import columns_of, fit_frame, quoted, schema_of_frame
from alpheus.spark.files.writes import Staged
from alpheus.spark.job_run import BaseRun
from alpheus.spark.tables import merge as merging
from alpheus.spark.tables import row_changes as changes
from alpheus.spark.tables.row_changes import Hits, Match
from alpheus.spark.tables.scan import Where
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import Column, PartitionField, Segment, TableDef, walk_columns
from alpheus_journal.model.operations import ChangeMode
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.partitions import parse_partition_by

CHANGE_TYPE = CHANGE_COLUMNS[0]


class TrialRun(BaseRun):
    """Replaces `JobRun` when a job's function is tried. Its version is 1; `previous` is 0, or None in a full run."""

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
        self._given = {key: self._require_frame(f"input {key!r}", frame) for key, frame in inputs.items()}
        self._all = {key: self._require_frame(f"whole {key!r}", frame) for key, frame in whole.items()}
        for key in [*self._given, *self._all]:
            self._check_input(key)
        missing = [key for key in job.inputs if key not in self._given]
        if missing:
            raise InvalidInput(
                f"job {job.name} also reads {', '.join(missing)}", hint="give a frame for each input"
            )
        self._held = {
            self._output_name(name): self._require_frame(f"output {name}", frame)
            for name, frame in outputs.items()
        }
        if full is None:
            full = not any(_has_types(frame) for frame in self._given.values()) and all(
                frame.isEmpty() for frame in self._held.values()
            )
        self.is_full = bool(full)
        self.previous = None if full else 0
        self.attempt = 1
        self.params = dict(params)
        self.written: dict[tuple[str, str], DataFrame] = {}

    def _require_frame(self, what: str, frame: object) -> DataFrame:
        if not isinstance(frame, DataFrame):
            raise InvalidInput(f"{what} is {type(frame).__name__}, not a DataFrame", kind="bad_data")
        return frame

    # -- reading

    def _read(self, input: str) -> DataFrame:
        df = self._given[input]
        return self._add_change_columns(df) if self._job.inputs[input].mode == "changes" else df

    def _whole(self, input: str) -> DataFrame:
        found = self._all.get(input)
        if found is not None:
            return found
        df = self._given[input]
        if self._job.inputs[input].mode == "changes" and _has_types(df):
            raise InvalidInput(
                f"input {input!r} was given as changes, which do not contain its whole table",
                hint=f"give the whole table, too: whole={{{input!r}: df}}",
            )
        return df

    def _touched(self, input: str) -> DataFrame:
        return self._given[input]

    def _add_change_columns(self, df: DataFrame) -> DataFrame:
        """Add those of `CHANGE_COLUMNS` that the frame lacks: its rows are inserts of this version."""
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
        return df.select(*[f.col(quoted(name)) for name in rows], *CHANGE_COLUMNS)

    # -- writing

    def append(self, output: Name, df: DataFrame) -> None:
        """Add the rows of `df` to a declared output."""
        name = self._output_name(output)
        df = self._fit_output(name, df)
        before = self._before(name)
        self.written[name] = df if before is None else before.unionByName(df)

    def overwrite(
        self, output: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> None:
        """Replace rows of a declared output by those of `df`: all, those that meet `where`, or of `partitions`."""
        name = self._output_name(output)
        if where is None and partitions is None:
            self.written[name] = self._fit_output(name, df)
            return
        self._check_frame(df)
        rows = self._rows(name, df, _keys_of(partitions))
        changes.overwrite(rows, df, where, partitions)
        self.written[name] = rows.now()

    def merge(
        self,
        output: Name,
        df: DataFrame,
        on: str | Sequence[str],
        matched: Matched = "update",
        unmatched: Unmatched = "insert",
        mode: Mode | None = None,
    ) -> None:
        """Update, delete or leave rows of a declared output whose key is in `df`; insert those whose key is new."""
        name = self._output_name(output)
        self._check_frame(df)
        rows = self._rows(name, df)
        merging.merge(rows, df, on, matched, unmatched, mode)
        self.written[name] = rows.now()

    def update(self, output: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> None:
        """Give columns other values in those rows of a declared output that meet `where`."""
        name = self._output_name(output)
        rows = self._rows(name)
        changes.update(rows, set, where, mode)
        self.written[name] = rows.now()

    def delete(self, output: Name, where: Where, mode: Mode = "predicate") -> None:
        """Remove those rows of a declared output that meet `where`."""
        name = self._output_name(output)
        rows = self._rows(name)
        changes.delete(rows, where, mode)
        self.written[name] = rows.now()

    def _before(self, name: tuple[str, str]) -> DataFrame | None:
        """Return what an output holds. None means that the test has not said which columns the output has."""
        if name in self.written:
            return self.written[name]
        held = self._held.get(name)
        return held.limit(0) if held is not None and self.is_full else held

    def _fit_output(self, name: tuple[str, str], df: DataFrame) -> DataFrame:
        """Return the frame as the output's table would store it, if the test gave the columns of the output."""
        self._check_frame(df)
        held = self._held.get(name)
        return df if held is None else _without_ids(fit_frame(df, _columns(held)))

    def _rows(
        self, name: tuple[str, str], data: DataFrame | None = None, keys: Iterable[str] = ()
    ) -> TrialRows:
        """Return an output as rows that verbs can change. An output that the test does not describe gets the columns of
        `data`."""
        before = self._before(name)
        if before is None:
            if data is None:
                raise InvalidInput(
                    f"the columns of output {'.'.join(name)} are not known",
                    hint=f'give the rows that it holds before, even none: outputs={{"{".".join(name)}": df}}',
                )
            before = data.limit(0)
        return TrialRows(before, keys)


class TrialRows(changes.Rows):
    """The rows of a frame in place of a table's files. It offers all that the row verbs use of `Rows`, so the verbs do
    here what they do to a table."""

    def __init__(self, df: DataFrame, keys: Iterable[str]) -> None:
        """`keys`: the keys of the partitions to replace. The table gets exactly these partition keys."""
        columns = _columns(df)
        self.table = TableDef(id="trial", columns=columns, partition_spec=_spec(keys, columns))
        self._frames: dict[str, DataFrame] = {}
        self._rows = self._keep(fit_frame(df, columns), columns)

    def now(self) -> DataFrame:
        return _without_ids(self._df)

    @property
    def _df(self) -> DataFrame:
        return self._frames[self._rows.path]

    def _keep(self, df: DataFrame, columns: Sequence[Column]) -> DataFile:
        """Run a frame once, as a write would, and keep its rows."""
        held = df.localCheckpoint()
        count = held.count()
        path = str(len(self._frames))
        self._frames[path] = held
        # These say that the file has the columns, and nothing about their values.
        counts = {column.id: count for column in walk_columns(columns)}
        return DataFile(path=path, row_count=count, size_bytes=0, value_counts=counts)

    # -- what the verbs use

    def visible(self, chosen: Sequence[PlannedFile], label: str = "") -> DataFrame:
        return self._df

    def read_back(self, found: Sequence[DataFile], columns: Sequence[Column] | None = None) -> DataFrame:
        return functools.reduce(DataFrame.union, [self._frames[file.path] for file in found])

    def find_hits(self, match: Match) -> Hits:
        count = match.chosen(self._df).count()
        if not count:
            return Hits()
        return Hits(partial=((PlannedFile(file=self._rows, sequence=0), count),))

    def stage(self, df: DataFrame) -> Staged:
        file = self._keep(fit_frame(df, self.table.columns), self.table.columns)
        if not file.row_count:
            return Staged(segments=(), rows=0)
        segment = Segment(
            path=file.path,
            file_count=1,
            row_count=file.row_count,
            size_bytes=0,
            sha256=b"",
            segment_size_bytes=0,
        )
        return Staged(segments=(segment,), rows=file.row_count, files=(file,))

    def write_aside(self, df: DataFrame, columns: tuple[Column, ...]) -> list[DataFile]:
        return [self._keep(fit_frame(df, columns), columns)]

    def discard(self, found: Sequence[DataFile]) -> None:
        return

    def change(
        self,
        mode: ChangeMode,
        match: Match,
        hits: Hits,
        *,
        how: Mode | None,
        went: str,
        came: Sequence[tuple[Staged, str]] = (),
    ) -> None:
        self.is_rewritten(how, match, hits)  # only to raise what a table would raise
        left = match.others(self._df) if hits.files else self._df
        added = [self.read_back(staged.files) for staged, _ in came if staged.files]
        self._rows = self._keep(functools.reduce(DataFrame.union, added, left), self.table.columns)


def _columns(df: DataFrame) -> tuple[Column, ...]:
    """Return the columns of a table for such rows. All are nullable, because a frame's nullability only reflects how
    the frame was computed."""
    found = columns_of(schema_of_frame(df))
    return tuple(msgspec.structs.replace(column, nullable=True) for column in found)


def _without_ids(df: DataFrame) -> DataFrame:
    """Return the frame without column ids in its metadata."""
    return df.select(*[f.col(quoted(name)).alias(name, metadata={}) for name in df.columns])


def _keys_of(partitions: object) -> list[str]:
    if isinstance(partitions, DataFrame):
        return partitions.columns
    if isinstance(partitions, pa.Table | pa.RecordBatch):
        return list(partitions.schema.names)
    rows = [partitions] if isinstance(partitions, Mapping) else partitions
    if not isinstance(rows, list | tuple):
        return []
    return [key for row in rows if isinstance(row, Mapping) for key in row]


def _spec(keys: Iterable[str], columns: Sequence[Column]) -> tuple[PartitionField, ...]:
    """Return partition fields for the keys, without those that no table could have: the verb refuses these."""
    found: dict[PartitionField, None] = {}
    for key in keys:
        try:
            found.update(dict.fromkeys(parse_partition_by([key], columns)))
        except InvalidInput:
            continue
    return tuple(found)


def _has_types(df: DataFrame) -> bool:
    return CHANGE_TYPE in (name.lower() for name in df.columns)


def try_job(
    spark: SparkSession,
    job: Job,
    inputs: Mapping[str, DataFrame],
    *,
    params: Mapping[str, str],
    outputs: Mapping[str, DataFrame],
    whole: Mapping[str, DataFrame],
    full: bool | None,
) -> dict[str, DataFrame]:
    """Run the job's function and return its outputs by name; see `Pipeline.test`."""
    for name in outputs:
        parse_name(Kind.TABLE, name)
    trial = TrialRun(spark, job, inputs, params=params, outputs=outputs, whole=whole, full=full)
    try:
        refuse_unrun(f"job {job.name}", job.function(trial))
    finally:
        trial.end()
    return {".".join(name): df for name, df in trial.written.items()}
