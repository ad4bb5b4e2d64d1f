"""Recorded declarations of jobs: compare them with the declared jobs, refuse differences, and adopt new declarations.

The entry of a pipeline stores with each job the ids of the tables that the job was declared with, inputs and outputs. A
job's positions hold for these tables only: a job that is declared with other tables and resumes at these positions
would skip rows that never reached its outputs. So such a job is refused before it reads anything. The refusal writes
nothing, because the recorded declaration may be running in another process. Works without Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from alpheus.feed.log import read_events
from alpheus.models import Commit
from alpheus.models import Job as StoredJob
from alpheus.models import Pipeline as Entry
from alpheus.pipeline.positions import ROWS_CHANGED, millis_of, read_past
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.model.definitions import DeclaredTable, JobDeclaration

if TYPE_CHECKING:
    from alpheus.catalog import Catalog, Snapshot, Transaction
    from alpheus.models import Table
    from alpheus.pipeline.jobs import Job

    Reader = Transaction | Snapshot | Catalog

Pair = tuple[str, str]


class Misdeclared(InvalidInput):
    """A job's declaration differs from the recorded one. The caller who declared the job receives the error; the
    catalog records nothing, and the recorded job can keep running."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two declarations. `removed_*` names the tables that only the recorded declaration has,
    `added_*` those that only the new one has. `kept_*` holds the recorded tables that both have."""

    removed_inputs: tuple[str, ...]
    added_inputs: tuple[str, ...]
    removed_outputs: tuple[str, ...]
    added_outputs: tuple[str, ...]
    kept_inputs: tuple[DeclaredTable, ...]
    kept_outputs: tuple[DeclaredTable, ...]

    def __bool__(self) -> bool:
        return bool(self.removed_inputs or self.added_inputs or self.removed_outputs or self.added_outputs)


def compare(recorded: JobDeclaration, declared: JobDeclaration) -> Difference:
    """Compare two declarations. Tables with one id are the same, whatever their names. Other tables are the same when
    the declared names are equal: whether such a table was replaced is found where the table is read."""
    kept_inputs, removed_inputs, added_inputs = _compare(recorded.inputs, declared.inputs)
    kept_outputs, removed_outputs, added_outputs = _compare(recorded.outputs, declared.outputs)
    return Difference(
        removed_inputs=removed_inputs,
        added_inputs=added_inputs,
        removed_outputs=removed_outputs,
        added_outputs=added_outputs,
        kept_inputs=kept_inputs,
        kept_outputs=kept_outputs,
    )


def _compare(
    recorded: Sequence[DeclaredTable], declared: Sequence[DeclaredTable]
) -> tuple[tuple[DeclaredTable, ...], tuple[str, ...], tuple[str, ...]]:
    """Return (kept, removed, added)."""
    ids = {each.table_id for each in recorded if each.table_id} & {each.table_id for each in declared}
    removed = {each.table: each for each in recorded if each.table_id not in ids}
    added = {each.table: each for each in declared if each.table_id not in ids}
    kept = [each for each in recorded if each.table_id in ids or each.table in added]
    return (
        tuple(kept),
        tuple(sorted(removed.keys() - added.keys())),
        tuple(sorted(added.keys() - removed.keys())),
    )


def declaration_of(job: Job, tables: Mapping[Pair, Table | None]) -> JobDeclaration:
    """Return the job's declaration. `tables` holds the tables that now exist under the declared names."""

    def declared(names: Iterable[Pair]) -> tuple[DeclaredTable, ...]:
        found = []
        for text, name in sorted((_table_text(name), name) for name in set(names)):
            table = tables.get(name)
            found.append(DeclaredTable(table=text, table_id=table.id if table is not None else ""))
        return tuple(found)

    return JobDeclaration(
        inputs=declared((each.namespace, each.name) for each in job.inputs.values()),
        outputs=declared(job.outputs),
    )


def _table_text(name: Pair) -> str:
    """Return the full name as text, split at the last dot as all names are. A last part that contains a dot is quoted,
    so that no two tables have the same text."""
    namespace, last = name
    if "." in last or '"' in last:
        last = '"' + last.replace('"', '""') + '"'
    return f"{namespace}.{last}"


def has_run(job: StoredJob) -> bool:
    """Return whether a committed run of the job is in effect. A job that only failed, or was rewound to before its
    first run, has processed no rows that another declaration could miss."""
    return bool(job.inputs or job.pinned_version)


def names_of(job: Job) -> list[Pair]:
    """Return the names of all tables that a job declares."""
    return list(dict.fromkeys([*((each.namespace, each.name) for each in job.inputs.values()), *job.outputs]))


def load_existing(reader: Reader, names: Sequence[Pair]) -> dict[Pair, Table]:
    """Load the tables that exist, by name; skip the others."""
    wanted = list(dict.fromkeys(names))
    try:
        found = reader.load_tables(wanted)
    except NotFound:
        found = []
        for name in wanted:
            with contextlib.suppress(NotFound):
                found.append(reader.load_table(name))
    return {(table.namespace, table.name): table for table in found}


def load_entry(reader: Reader, pipeline: str) -> Entry | None:
    try:
        return reader.load_pipeline(pipeline)
    except NotFound:
        return None


def declaration_text(job: str, declaration: JobDeclaration) -> str:
    """Return a declaration as text: `job daily (sales.orders → mart.daily)`."""

    def listed(tables: Sequence[DeclaredTable]) -> str:
        return ", ".join(each.table for each in tables) or "nothing"

    return f"job {job} ({listed(declaration.inputs)} → {listed(declaration.outputs)})"


# --- find_refusals --------------------------------------------------------------------------------


def check_outputs(pipeline: str, stored: StoredJob, declared: JobDeclaration, *, full: bool) -> None:
    """Raise Misdeclared when a job no longer writes a recorded output, and when it writes an additional one
    (`output_added`). An additional output is allowed in a first run and in a `full` run."""
    recorded = stored.declaration
    if recorded is None or not has_run(stored):
        return
    found = compare(recorded, declared)
    if found.removed_outputs and not recorded.open:
        raise _other_declaration(pipeline, stored.name, recorded, declared)
    if found.added_outputs and not full and stored.inputs:
        names = ", ".join(found.added_outputs)
        raise Misdeclared(
            f"output {names} is new to job {pipeline}.{stored.name} and lacks what the job processed up to version"
            f" {stored.pinned_version}: recorded is {declaration_text(stored.name, recorded)}, declared is"
            f" {declaration_text(stored.name, declared)}",
            kind="output_added",
            hint=f"run the job with full_refresh (--job {stored.name} --full-refresh) to fill all its outputs again, or"
            " with from_now=True (--from-now) to let the new output receive only what later runs write",
        )


def check_inputs(pipeline: str, stored: StoredJob, declared: JobDeclaration) -> None:
    """Raise Misdeclared when a job no longer reads a recorded input. An additional input is allowed and begins at its
    `start`."""
    recorded = stored.declaration
    if recorded is None or recorded.open or not has_run(stored):
        return
    if compare(recorded, declared).removed_inputs:
        raise _other_declaration(pipeline, stored.name, recorded, declared)


def _other_declaration(
    pipeline: str, job: str, recorded: JobDeclaration, declared: JobDeclaration
) -> Misdeclared:
    return Misdeclared(
        f"another declaration of job {pipeline}.{job} is recorded: {declaration_text(job, recorded)}; this one is"
        f" {declaration_text(job, declared)}",
        kind="other_declaration",
        hint="if this is another pipeline, give it a name of its own. If it replaces the recorded one, run it with"
        f" adopt=True, or first run alpheus pipeline adopt {pipeline}; it then resumes at the recorded position",
    )


def is_new(stored: StoredJob | None, declared: JobDeclaration) -> bool:
    """Return whether `check_new` must check a job: it never ran, and its declaration has not been adopted."""
    if stored is None:
        return True
    recorded = stored.declaration
    return (
        recorded is not None
        and not has_run(stored)
        and not recorded.open
        and bool(compare(recorded, declared))
    )


def check_new(
    catalog: Catalog,
    reader: Reader,
    pipeline: str,
    jobs: Mapping[str, Job],
    job: Job,
    declared: JobDeclaration,
    entry: Entry | None,
) -> None:
    """Check a job that never ran. Raise Misdeclared in two cases:

    * the recorded jobs that share a name with a declared job all have other tables: this is another pipeline;
    * a recorded job that is no longer declared has exactly this job's tables: the job was renamed without its position.

    Recorded jobs of other pipelines count only if they have the same name as this job, or if their pipeline once had
    this pipeline's name, because unrelated jobs may share tables.
    """
    recorded = {name: each for name, each in entry.jobs.items() if has_run(each)} if entry is not None else {}
    if any(each.declaration is not None and each.declaration.open for each in recorded.values()):
        return
    removed = {name: each for name, each in recorded.items() if name not in jobs}
    twin = _find_twin(catalog, removed, declared)
    if twin:
        raise _renamed_job(pipeline, pipeline, twin, job.name, declared)
    if _is_another(reader, recorded, jobs):
        shown = "; ".join(
            declaration_text(name, each.declaration)
            for name, each in sorted(recorded.items())
            if each.declaration
        )
        raise Misdeclared(
            f"another pipeline is recorded as {pipeline}: {shown}; this one has {declaration_text(job.name, declared)}"
            " and shares no job with it",
            kind="other_declaration",
            hint="give this pipeline a name of its own. If it replaces the recorded one, run it with adopt=True, or"
            f" first run alpheus pipeline adopt {pipeline}",
        )
    for other in catalog.list_pipelines():
        found = load_entry(reader, other.name) if other.name != pipeline else None
        theirs = (
            {name: each for name, each in found.jobs.items() if has_run(each)} if found is not None else {}
        )
        same = {name: each for name, each in theirs.items() if name == job.name}
        twin = _find_twin(catalog, same, declared)
        if (
            not twin
            and (twin := _find_twin(catalog, theirs, declared))
            and not _was_called(catalog, other.name, pipeline)
        ):
            continue
        if twin:
            raise _renamed_job(other.name, pipeline, twin, job.name, declared)


def _was_called(catalog: Catalog, pipeline: str, name: str) -> bool:
    """Return whether a pipeline once had the name, as far as history is kept. A process that still uses the old name
    runs the code from before the rename."""
    try:
        return name in read_past(catalog, pipeline, catalog.info().oldest_version, catalog.version()).names
    except Expired:
        return False


def _is_another(reader: Reader, recorded: Mapping[str, StoredJob], jobs: Mapping[str, Job]) -> bool:
    """Return whether jobs share a name with recorded ones and none is the recorded job. A job counts as the recorded
    one if it shares at least one input and one output with it, or if an earlier release recorded no tables."""
    both = jobs.keys() & recorded.keys()
    for name in both:
        before = recorded[name].declaration
        if before is None:
            return False  # an earlier release recorded no tables
        now = declaration_of(jobs[name], load_existing(reader, names_of(jobs[name])))
        found = compare(before, now)
        if (found.kept_inputs or not before.inputs) and (found.kept_outputs or not before.outputs):
            return False
    return bool(both)


def _find_twin(catalog: Catalog, recorded: Mapping[str, StoredJob], declared: JobDeclaration) -> str:
    """Return the name of a recorded job that has exactly the declared tables, or an empty text."""
    if declared.outputs:
        for name, each in sorted(recorded.items()):
            if each.declaration is None:
                if _looks_alike(catalog, each, declared):
                    return name
            elif not each.declaration.open and not compare(each.declaration, declared):
                return name
    return ""


def _looks_alike(catalog: Catalog, job: StoredJob, declared: JobDeclaration) -> bool:
    """Return whether a job that an earlier release recorded without its tables seems to have the declared ones: it
    reads the same tables, and its last run, if the log still has it, wrote only to declared outputs."""
    if {each.table_id for each in job.inputs.values()} != {each.table_id for each in declared.inputs}:
        return False
    try:
        outcome = catalog.outcome(job.last_transaction_id, since=job.pinned_version)
        if outcome.commit is None:
            return False
        version = outcome.commit.version
        with read_events(catalog, after=version - 1, until=version) as events:
            written = {
                action.name.full_name
                for event in events
                for transaction in event.transactions
                if transaction.id == job.last_transaction_id
                for action in transaction.actions
                if action.type in ROWS_CHANGED
            }
    except (Expired, InvalidInput, NotFound):
        return False
    return bool(written) and written <= {each.table for each in declared.outputs}


def _renamed_job(old: str, new: str, old_job: str, job: str, declared: JobDeclaration) -> Misdeclared:
    return Misdeclared(
        f"job {old}.{old_job} is recorded with the tables of {declaration_text(f'{new}.{job}', declared)}, which"
        " never ran: the new job would start from the beginning and add all rows to its outputs a second time",
        kind="other_declaration",
        hint=_rename_hint(old, new, old_job, job),
    )


def _rename_hint(old: str, new: str, old_job: str, job: str) -> str:
    if not old_job:
        return ""
    jobs = f" --job {old_job}={job}" if old_job != job else ""
    return (
        f"if the job was renamed, run alpheus pipeline rename {old} {new}{jobs}; it then resumes at its position. To"
        " start from the beginning, run it with adopt=True (--adopt)"
    )


# --- adoption ----------------------------------------------------------------------------------


def record(
    catalog: Catalog,
    pipeline: str,
    jobs: Mapping[str, Job],
    chosen: Iterable[str],
    *,
    adopt: bool,
    from_now: bool,
) -> Commit | None:
    """Record the declarations of the `chosen` jobs whose runs would be refused. Return None when nothing is to record.

    * `adopt`: the declarations replace the recorded ones, at the recorded positions. Inputs that the recorded job never
      processed begin at their `start`.
    * `from_now`: new outputs receive only what later runs write.
    """
    with catalog.transaction(message=f"adopt {pipeline}") as tx:
        entry = load_entry(tx, pipeline)
        for name in chosen:
            declared = declaration_of(jobs[name], load_existing(tx, names_of(jobs[name])))
            stored = entry.jobs.get(name) if entry is not None else None
            if stored is None:
                if adopt and _is_refused(catalog, tx, pipeline, jobs, jobs[name], declared, entry):
                    _write(tx, pipeline, name, None, declared, {})
            elif stored.declaration is not None:
                _record(tx, pipeline, stored, declared, adopt=adopt, from_now=from_now)
    return tx.result


def find_refusals(catalog: Catalog, pipeline: str, jobs: Mapping[str, Job]) -> dict[str, str]:
    """Return the declared jobs that a run would refuse to call, each with the reason."""
    found = {}
    snapshot = catalog.at(catalog.version())
    entry = load_entry(snapshot, pipeline)
    for name, job in jobs.items():
        declared = declaration_of(job, load_existing(snapshot, names_of(job)))
        stored = entry.jobs.get(name) if entry is not None else None
        try:
            if is_new(stored, declared):
                check_new(catalog, snapshot, pipeline, jobs, job, declared, entry)
            elif stored is not None:
                check_outputs(pipeline, stored, declared, full=False)
                check_inputs(pipeline, stored, declared)
        except Misdeclared as error:
            found[name] = str(error)
    return found


def _is_refused(
    catalog: Catalog,
    reader: Reader,
    pipeline: str,
    jobs: Mapping[str, Job],
    job: Job,
    declared: JobDeclaration,
    entry: Entry | None,
) -> bool:
    try:
        check_new(catalog, reader, pipeline, jobs, job, declared, entry)
    except Misdeclared:
        return True
    return False


def _record(
    tx: Transaction,
    pipeline: str,
    stored: StoredJob,
    declared: JobDeclaration,
    *,
    adopt: bool,
    from_now: bool,
) -> None:
    recorded = stored.declaration
    assert recorded is not None
    found = compare(recorded, declared)
    is_other = bool(found.removed_inputs or found.removed_outputs or (found and not has_run(stored)))
    if (is_other and not (adopt or recorded.open)) or not (
        is_other or recorded.open or (from_now and found.added_outputs)
    ):
        return
    ids = {each.table_id for each in (*declared.inputs, *found.kept_inputs)}
    inputs = {key: each for key, each in stored.inputs.items() if each.table_id in ids or not is_other}
    # A first run fills all outputs.
    new = found.added_outputs if inputs and not from_now else ()
    after = msgspec.structs.replace(
        declared, outputs=tuple(each for each in declared.outputs if each.table not in new)
    )
    _write(tx, pipeline, stored.name, stored, after, inputs)


def _write(
    tx: Transaction,
    pipeline: str,
    job: str,
    stored: StoredJob | None,
    declaration: JobDeclaration,
    inputs: Mapping[str, object],
) -> None:
    """Write the declaration and keep the job's position and state."""
    entry = load_entry(tx, pipeline)  # another job of the same transaction may have created the entry
    tx.advance_pipeline(
        pipeline,
        job,
        stored.last_transaction_id if stored else "",
        stored.pinned_version if stored else 0,
        inputs,  # type: ignore[arg-type]
        stored.state if stored else "running",
        stored.error if stored else "",
        stored.params if stored else {},
        millis_of(stored.called_at if stored else None),
        declaration=declaration,
        expected_pipeline_id=entry.id if entry is not None else "",
    )


def open_all(catalog: Catalog, pipeline: str, jobs: Sequence[str] | None = None) -> Commit | None:
    """Allow the next declaration to replace the recorded one, of all jobs or only of `jobs`. The first runner to come
    adopts its declaration. Return None when nothing is recorded or replacement is already allowed. Raise NotFound
    (`no_object`, `no_job`)."""
    with catalog.transaction(message=f"adopt {pipeline}") as tx:
        entry = tx.load_pipeline(pipeline)
        for name in sorted(entry.jobs) if jobs is None else jobs:
            stored = entry.jobs.get(name)
            if stored is None:
                raise NotFound(
                    f"job {pipeline}.{name} never ran",
                    kind="no_job",
                    hint=f"these did: {', '.join(sorted(entry.jobs))}",
                )
            if stored.declaration is not None and not stored.declaration.open:
                opened = msgspec.structs.replace(stored.declaration, open=True)
                _write(tx, pipeline, name, stored, opened, stored.inputs)
    return tx.result
