"""What a job is called with: its inputs at one version, and outputs that commit when it returns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from alpheus.catalog import Transaction
from alpheus.models import Job as StoredJob
from alpheus.models import Table
from alpheus.pipeline import Job
from alpheus.session import Name, parse_name, refuse_unsupported
from alpheus.spark import feed, files
from alpheus.spark.catalog import SparkCatalog
from alpheus.spark.feed import RowChange
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.objects import TableDef


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has to do at one version."""

    version: int
    created_at: datetime
    stored: StoredJob | None
    inputs: dict[str, Table]
    outputs: dict[tuple[str, str], Table]
    changes: dict[str, list[RowChange] | None]  # of the triggering inputs; None: never worked in, so all rows
    first: bool
    full: bool

    @property
    def newest(self) -> RowChange | None:
        """The last change that a run will work in."""
        found = [change for changes in self.changes.values() for change in changes or ()]
        return max(found, key=lambda change: change.version, default=None)


class JobRun:
    """One call of a job: its inputs as of `version`, its outputs until it returns.

    `previous`: the version pinned by the run before it, None when there was none; `is_full`: all rows of the
    inputs are to be worked in, and the outputs hold nothing of this job. `attempt` counts calls for this work in
    this process, from 1. `params` as given to `Pipeline.run`.
    """

    def __init__(
        self,
        lake: SparkCatalog,
        job: Job,
        work: Work,
        tx: Transaction,
        *,
        attempt: int,
        params: Mapping[str, str],
    ) -> None:
        self._lake = lake
        self._job = job
        self._work = work
        self._tx = tx
        self._over = False
        self.version = work.version
        self.previous = None if work.first or work.full or work.stored is None else work.stored.pinned_version
        self.is_full = work.first or work.full
        self.attempt = attempt
        self.params = dict(params)

    def __repr__(self) -> str:
        return f"<JobRun {self._job.name} at {self.version}>"

    @property
    def spark(self) -> SparkSession:
        return self._lake.spark

    @property
    def transaction_id(self) -> str:
        """Of the transaction that this run commits."""
        return self._tx.id

    def read(self, input: str) -> DataFrame:
        """What the input was declared to give: see `changes`, `appends`, `table`."""
        table = self._table(input)
        declared = self._job.inputs[input]
        if declared.mode == "table":
            return self._lake.frame(table)
        changes = None if self.is_full else self._work.changes[input]
        if declared.mode == "appends":
            return self._lake.frame(table) if changes is None else feed.appended(self._lake, table, changes)
        if changes is None:
            return feed.everything(self._lake, table, self.version, self._work.created_at)
        return feed.changed(self._lake, table, changes)

    def whole(self, input: str) -> DataFrame:
        """All rows of the input's table at `version`."""
        return self._lake.frame(self._table(input))

    def append(self, output: Name, df: DataFrame) -> None:
        """Add the rows of `df` to a declared output; its files are written when this returns."""
        table = self._output(output)
        staged = self._stage(table, df)
        if staged.segments:
            self._tx.append_segments((table.namespace, table.name), staged.segments, table.id)

    def overwrite(
        self, output: Name, df: DataFrame, where: str | None = None, partitions: Any = None
    ) -> None:
        """Replace all rows of a declared output by those of `df`."""
        refuse_unsupported(where=where, partitions=partitions)
        table = self._output(output)
        staged = self._stage(table, df)
        self._tx.overwrite_segments((table.namespace, table.name), staged.segments, table.id)

    def _table(self, input: str) -> TableDef:
        self._check_running()
        if input not in self._work.inputs:
            names = ", ".join(self._work.inputs)
            raise InvalidInput(f"job {self._job.name} has no input {input!r}", hint=f"it has {names}")
        return self._work.inputs[input].definition

    def _output(self, name: Name) -> Table:
        self._check_running()
        parsed = parse_name(Kind.TABLE, name)
        found = self._work.outputs.get((parsed.namespace, parsed.name))
        if found is None:
            raise InvalidInput(
                f"job {self._job.name} did not declare the output {parsed.full_name}",
                kind="undeclared_output",
                hint=f"it declared {', '.join('.'.join(key) for key in self._work.outputs) or 'none'}",
            )
        return found

    def _stage(self, table: Table, df: DataFrame) -> files.Staged:
        if not isinstance(df, DataFrame):
            raise InvalidInput(f"a DataFrame is needed, not {type(df).__name__}", kind="bad_data")
        lake = self._lake
        return files.stage(df, lake.storage, lake.lists, table.definition, transaction_id=self._tx.id)

    def end(self) -> None:
        """Refuse everything from now on: what is written later would be in no commit."""
        self._over = True

    def _check_running(self) -> None:
        if self._over:
            raise InvalidInput(f"the run of {self._job.name} at {self.version} is over")
