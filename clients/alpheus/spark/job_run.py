"""The run that a job's function is called with: inputs at one version, and outputs that commit when it returns."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from alpheus.catalog import Transaction
from alpheus.feed.past import RowHistory, lasting_changes
from alpheus.feed.trail import RowChange
from alpheus.models import Table
from alpheus.pipeline.jobs import Job
from alpheus.pipeline.work import Work
from alpheus.session.arguments import Name, parse_name, words
from alpheus.spark.files.schemas import quoted
from alpheus.spark.files.writes import check_frame
from alpheus.spark.streams import frames
from alpheus.spark.tables.lake import Lake, name_missing_files
from alpheus.spark.tables.scan import Where
from alpheus.spark.tables.transaction import SparkTransaction
from alpheus.transactions.merge import Matched, Unmatched
from alpheus.transactions.row_changes import Mode
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import TableDef


class BaseRun(abc.ABC):
    """The argument of a job's function; see `JobRun`. This class checks names; subclasses read and write."""

    version: int
    previous: int | None
    is_full: bool
    attempt: int
    params: dict[str, str]

    def __init__(self, job: Job, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark
        self._over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._job.name} at {self.version}>"

    @property
    def spark(self) -> SparkSession:
        return self._spark

    # -- reading

    def read(self, input: str) -> DataFrame:
        """Return the rows that the input is declared to give: see `changes`, `appends`, `table`."""
        self._check_input(input)
        return self._read(input)

    def whole(self, input: str) -> DataFrame:
        """Return all rows of the input's table at `version`."""
        self._check_input(input)
        return self._whole(input)

    def touched(self, input: str, keys: str | Sequence[str]) -> DataFrame:
        """Return the distinct values of the columns `keys` in rows that were inserted, deleted or changed since the
        last run: both before and after the change. NULL is one of the values. In a full run, return those of all rows.

        Recomputing an output for these keys from `whole` is correct, however late or often rows change. Raises
        InvalidInput for a `table` input with `trigger=False`, whose changes are not read.
        """
        self._check_input(input)
        names = words("keys", keys)
        if not names:
            raise InvalidInput(
                "keys names no column", hint=f'name at least one, as in run.touched("{input}", ["day"])'
            )
        if input not in self._job.triggers:
            raise InvalidInput(
                f"input {input!r} of job {self._job.name} has trigger=False, so its changes are not known",
                hint="declare the input with changes(...) or table(..., trigger=True)",
            )
        df = self._touched(input)
        known = {column.lower() for column in df.columns}
        for name in names:
            if name.lower() not in known:
                raise InvalidInput(
                    f"input {input!r} has no column {name!r}", hint=f"it has {', '.join(df.columns)[:500]}"
                )
        return df.select(*[quoted(name) for name in names]).distinct()

    @abc.abstractmethod
    def _read(self, input: str) -> DataFrame: ...

    @abc.abstractmethod
    def _whole(self, input: str) -> DataFrame: ...

    @abc.abstractmethod
    def _touched(self, input: str) -> DataFrame:
        """Return the rows that were inserted or deleted; all rows in a full run."""

    # -- writing, with the arguments of `SparkCatalog`

    @abc.abstractmethod
    def append(self, output: Name, df: DataFrame) -> None:
        """Add the rows of `df` to a declared output; its files are written when this returns."""

    @abc.abstractmethod
    def overwrite(
        self, output: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> None:
        """Replace rows of a declared output by those of `df`: all rows, those that meet `where`, or those in
        `partitions`."""

    @abc.abstractmethod
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

    @abc.abstractmethod
    def update(self, output: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> None:
        """Give columns other values in those rows of a declared output that meet `where`."""

    @abc.abstractmethod
    def delete(self, output: Name, where: Where, mode: Mode = "predicate") -> None:
        """Remove those rows of a declared output that meet `where`."""

    # -- checks

    def end(self) -> None:
        """Refuse every later call: its writes would be in no commit."""
        self._over = True

    def _check_running(self) -> None:
        if self._over:
            raise InvalidInput(f"the run of {self._job.name} at {self.version} is over")

    def _check_input(self, input: str) -> None:
        self._check_running()
        if input not in self._job.inputs:
            names = ", ".join(self._job.inputs)
            raise InvalidInput(f"job {self._job.name} has no input {input!r}", hint=f"it has {names}")

    def _output_name(self, name: Name) -> tuple[str, str]:
        self._check_running()
        parsed = parse_name(Kind.TABLE, name)
        found = (parsed.namespace, parsed.name)
        if found not in self._job.outputs:
            raise InvalidInput(
                f"job {self._job.name} did not declare the output {parsed.full_name}",
                kind="undeclared_output",
                hint=f"it declared {', '.join('.'.join(key) for key in self._job.outputs) or 'none'}",
            )
        return found

    def _check_frame(self, df: object) -> None:
        check_frame(df)


class JobRun(BaseRun):
    """One call of a job: its inputs as of `version`, its outputs until it returns.

    - `previous`: the version that the previous run pinned, None for the first run.
    - `is_full`: whether the job starts afresh: its outputs hold none of its rows, and inputs give what their `start`
      says.
    - `attempt`: counts the calls for this work in this process, from 1.
    - `params`: the parameters given to `Pipeline.run`.
    """

    def __init__(
        self,
        lake: Lake,
        job: Job,
        work: Work,
        tx: Transaction,
        *,
        attempt: int,
        params: Mapping[str, str],
    ) -> None:
        super().__init__(job, lake.spark)
        self._lake = lake
        self._work = work
        self._tx = tx
        self.version = work.version
        self.previous = None if work.first or work.full or work.stored is None else work.stored.pinned_version
        self.is_full = work.first or work.full
        self.attempt = attempt
        self.params = dict(params)

    @property
    def transaction_id(self) -> str:
        """The id of the transaction that this run commits."""
        return self._tx.id

    # -- reading

    def _table(self, input: str) -> TableDef:
        return self._work.inputs[input].definition

    def _read(self, input: str) -> DataFrame:
        mode = self._job.inputs[input].mode
        if mode == "table":
            return self._whole(input)
        changes = self._work.changes[input]
        if mode == "changes":
            return self._read_changes(input)
        if changes is None:
            return self._whole(input)
        with self._name_missing_files(input):
            return frames.inserted_rows(self._lake, self._table(input), self._drop_undone(input, changes))

    def _whole(self, input: str) -> DataFrame:
        with self._name_missing_files(input):
            return self._lake.frame(self._table(input))

    def _name_missing_files(self, input: str) -> AbstractContextManager[None]:
        return name_missing_files(self._lake, lambda: self._work.inputs[input])

    def _touched(self, input: str) -> DataFrame:
        return self._whole(input) if self._work.changes[input] is None else self._read_changes(input)

    def _read_changes(self, input: str) -> DataFrame:
        changes = self._work.changes[input]
        with self._name_missing_files(input):
            if changes is None:
                return frames.all_as_inserts(
                    self._lake, self._table(input), self.version, self._work.created_at
                )
            return frames.changed_rows(self._lake, self._table(input), changes)

    def _drop_undone(self, input: str, changes: list[RowChange]) -> list[RowChange]:
        """Return the changes that no later one undid: for the job, rows that came and went never existed."""
        table, begin = self._work.inputs[input], self._work.begins[input]
        past = RowHistory(self._lake.catalog, table.id, table.full_name, self.version)
        return lasting_changes(changes, begin, lambda version: past.had_same_rows(version, begin))

    # -- writing

    def append(self, output: Name, df: DataFrame) -> None:
        """Add the rows of `df` to a declared output; its files are written when this returns."""
        name, table = self._output(output)
        staged = self._writer().stage(table.definition, df)
        if staged.segments:
            self._tx.append_segments(name, staged.segments, table.id)

    def overwrite(
        self, output: Name, df: DataFrame, where: Where | None = None, partitions: Any = None
    ) -> None:
        """Replace rows of a declared output by those of `df`: all rows, those that meet `where`, or those in
        `partitions`."""
        name, table = self._output(output)
        if where is not None or partitions is not None:
            self._writer().overwrite(name, df, where, partitions)
            return
        staged = self._writer().stage(table.definition, df)
        self._tx.overwrite_segments(name, staged.segments, table.id)

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
        name, _ = self._output(output)
        self._writer().merge(name, df, on, matched, unmatched, mode)

    def update(self, output: Name, set: Mapping[str, Any], where: Where, mode: Mode | None = None) -> None:
        """Give columns other values in those rows of a declared output that meet `where`."""
        name, _ = self._output(output)
        self._writer().update(name, set, where, mode)

    def delete(self, output: Name, where: Where, mode: Mode = "predicate") -> None:
        """Remove those rows of a declared output that meet `where`."""
        name, _ = self._output(output)
        self._writer().delete(name, where, mode)

    def _writer(self) -> SparkTransaction:
        return SparkTransaction(self._lake, self._tx)

    def _output(self, name: Name) -> tuple[tuple[str, str], Table]:
        found = self._output_name(name)
        return found, self._work.outputs[found]
