"""Outputs of jobs: find out from the log which transactions wrote the rows that the outputs hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from alpheus.catalog import Catalog, Snapshot, Transaction
from alpheus.feed.log import read_log, split_name
from alpheus.models import Job as StoredJob
from alpheus.models import Table
from alpheus.pipeline.declarations import (
    has_run,
    load_existing,
)
from alpheus.pipeline.jobs import Job, Jobs
from alpheus.pipeline.positions import ROWS_CHANGED, is_of_job, moved_any, read_past
from alpheus_journal.errors import Conflict, Expired, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import LogEntry
from alpheus_journal.model.operations import RecordedTransaction, RenameObject

Reader = Transaction | Snapshot
"""The reader of a run's entries: the run's transaction, or a snapshot, which records no reads."""


class Outputs:
    """Refuses to run a job whose outputs hold rows that the job did not write. Caches what it need not read again."""

    def __init__(self, catalog: Catalog, pipeline: Jobs) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._known: dict[str, dict[tuple[str, str], str]] = {}  # job → output → id of its table

    def refuse_replaced(
        self, job: Job, stored: StoredJob, outputs: Mapping[tuple[str, str], Table], until: int
    ) -> None:
        """Raise InvalidInput (`table_replaced`) when an output was dropped and created again since the last run: the
        new table lacks what earlier runs wrote, and would never receive it. A new table that already holds rows is
        accepted."""
        known = self._known.setdefault(job.name, {})
        unsure = {name: table for name, table in outputs.items() if known.get(name) != table.id}
        if not unsure:
            return
        with contextlib.suppress(Expired):
            then = load_existing(self._catalog.at(stored.pinned_version), list(unsure))
            for name, table in unsure.items():
                # A full run may read a version older than the table's creation; that run has overwritten the table.
                if (
                    name in then
                    and then[name].id != table.id
                    and not any(types & ROWS_CHANGED for _, types in self._read_history(table, until))
                ):
                    raise InvalidInput(
                        f"output {table.full_name} is not the table of that name at version {stored.pinned_version},"
                        " and lacks what this job processed up to that version",
                        kind="table_replaced",
                        hint="run the job with full_refresh to fill the table, or restore the earlier table",
                    )
        known.update({name: table.id for name, table in unsure.items()})

    def refuse_foreign_rows(self, reader: Reader, job: Job, stored: StoredJob | None) -> None:
        """Raise Conflict when an output of a job that ran before holds rows that other transactions wrote, at the
        reader's version: a full run would remove these rows."""
        if stored is None or not has_run(stored):
            return
        for table in load_existing(reader, job.outputs).values():
            for entry, types in self._read_history(table, reader.version):
                if types & ROWS_CHANGED and not self._is_own(job, entry.transaction, reader.version):
                    raise Conflict(
                        f"output {table.full_name} of job {job.name} holds rows that the job did not write (version"
                        f" {entry.version}, transaction {entry.transaction.id}); a full run would remove them",
                        transaction_id=entry.transaction.id,
                        version=entry.version,
                        retryable=False,
                        hint="give the job an output of its own",
                    )

    def _is_own(self, job: Job, transaction: RecordedTransaction, until: int) -> bool:
        """Return whether a transaction is a run of the job, whatever the job and the pipeline were called then."""
        if is_of_job(transaction, self._pipeline.name, job.name):
            return True
        if not moved_any(transaction):
            return False
        oldest = self._catalog.info().oldest_version
        past = read_past(self._catalog, self._pipeline.name, oldest, until)
        return job.name in past.moved.get(transaction.id, ())

    def _read_history(self, table: Table, until: int) -> Iterator[tuple[LogEntry, set[str]]]:
        """Yield the log entries that concern a table, newest first, each with the types of its actions.

        Follow renames. Stop at the table's creation or last overwrite, because no older rows are left, or where history
        ends."""
        name: str = table.full_name
        while name:
            searched = name
            with read_log(self._catalog, split_name(name), until) as log:
                for entry in log:
                    types = set()
                    for action in reversed(entry.transaction.actions):
                        if action.name.kind is not Kind.TABLE:
                            continue
                        operation = action.operation
                        if isinstance(operation, RenameObject) and operation.new_target.full_name == name:
                            name, until = action.name.full_name, entry.version - 1
                        elif action.name.full_name == name:
                            types.add(action.type)
                            if action.type in ("TABLE_CREATE", "TABLE_REGISTER", "TABLE_OVERWRITE"):
                                name = ""
                                break
                    yield entry, types
                    if name != searched:
                        break
            if name == searched:
                return
