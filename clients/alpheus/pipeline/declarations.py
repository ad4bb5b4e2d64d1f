"""Who declared a pipeline's jobs: what a declaration is, when it is taken for another one, and how a person lets it be.

The entry of a pipeline keeps with each job the tables that it was declared with, inputs and outputs, by id. Positions
belong to those: who declares a job otherwise would go on behind rows that never came into its outputs. So it is
refused before anything is read, and nothing is written, for the declaration that is recorded may be running. Works
without Spark.
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
from alpheus.pipeline.positions import ROWS_CHANGED, millis_of, past_of
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.model.definitions import DeclaredTable, JobDeclaration

if TYPE_CHECKING:
    from alpheus.catalog import Catalog, Snapshot, Transaction
    from alpheus.models import Table
    from alpheus.pipeline.jobs import Job

    Reader = Transaction | Snapshot | Catalog

Pair = tuple[str, str]


class Misdeclared(InvalidInput):
    """A job is declared otherwise than the catalog has it recorded. It is told to who declared it so, and not recorded:
    the job as it is recorded goes on."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Of two declarations, tables by name: those that only the recorded one has, and those that only the other has.
    `kept`: tables of the recorded one that both have."""

    removed_inputs: tuple[str, ...]
    added_inputs: tuple[str, ...]
    removed_outputs: tuple[str, ...]
    added_outputs: tuple[str, ...]
    kept_inputs: tuple[DeclaredTable, ...]
    kept_outputs: tuple[DeclaredTable, ...]

    def __bool__(self) -> bool:
        return bool(self.removed_inputs or self.added_inputs or self.removed_outputs or self.added_outputs)


def compare(recorded: JobDeclaration, declared: JobDeclaration) -> Difference:
    """Tables are the same by id, whatever they are called; else by the name in the declaration, since what became of
    the table of that name is seen where it is read."""
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
    """(kept, removed, added)."""
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
    """`tables`: what is there now under the names of the declaration."""

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
    """The last dot splits it, as it does in all names; a last part that has a dot is quoted, so that no two tables have
    one text."""
    namespace, last = name
    if "." in last or '"' in last:
        last = '"' + last.replace('"', '""') + '"'
    return f"{namespace}.{last}"


def has_run(job: StoredJob) -> bool:
    """Whether a run of the job has committed and stands. One that only failed, or was put back to before its first
    run, has worked in nothing that another declaration could miss."""
    return bool(job.inputs or job.pinned_version)


def names_of(job: Job) -> list[Pair]:
    """Of all tables that a job declares."""
    return list(dict.fromkeys([*((each.namespace, each.name) for each in job.inputs.values()), *job.outputs]))


def load_existing(reader: Reader, names: Sequence[Pair]) -> dict[Pair, Table]:
    """Those of the tables that are there, by name."""
    wanted = list(dict.fromkeys(names))
    try:
        found = reader.load_tables(wanted)
    except NotFound:
        found = []
        for name in wanted:
            with contextlib.suppress(NotFound):
                found.append(reader.load_table(name))
    return {(table.namespace, table.name): table for table in found}


def entry_of(reader: Reader, pipeline: str) -> Entry | None:
    try:
        return reader.load_pipeline(pipeline)
    except NotFound:
        return None


def declaration_text(job: str, declaration: JobDeclaration) -> str:
    """`job daily (sales.orders → mart.daily)`."""

    def listed(tables: Sequence[DeclaredTable]) -> str:
        return ", ".join(each.table for each in tables) or "nothing"

    return f"job {job} ({listed(declaration.inputs)} → {listed(declaration.outputs)})"


# --- what is refused --------------------------------------------------------------------------------


def check_outputs(pipeline: str, stored: StoredJob, declared: JobDeclaration, *, full: bool) -> None:
    """Misdeclared for a job that writes other tables than it is recorded with, and for one that writes more
    (`output_added`): in a `full` run, and in a first one, that is right."""
    recorded = stored.declaration
    if recorded is None or not has_run(stored):
        return
    found = compare(recorded, declared)
    if found.removed_outputs and not recorded.open:
        raise _other_declaration(pipeline, stored.name, recorded, declared)
    if found.added_outputs and not full and stored.inputs:
        names = ", ".join(found.added_outputs)
        raise Misdeclared(
            f"output {names} is new to job {pipeline}.{stored.name}, and what the job worked in up to version"
            f" {stored.pinned_version} is not in it: recorded is {declaration_text(stored.name, recorded)}, declared is"
            f" {declaration_text(stored.name, declared)}",
            kind="output_added",
            hint=f"run the job with full_refresh (--job {stored.name} --full-refresh) to fill all its outputs anew, or"
            " with from_now=True (--from-now), so that the new one gets what comes from now on",
        )


def check_inputs(pipeline: str, stored: StoredJob, declared: JobDeclaration) -> None:
    """Misdeclared for a job that does not read a table any more that it is recorded with. One that reads more is as it
    was: what is new begins as its `start` says."""
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
        hint="if this is another pipeline, give it a name of its own. If it takes the place of the recorded one, run it"
        f" with adopt=True, or first alpheus pipeline adopt {pipeline}: it goes on from the recorded position",
    )


def is_new(stored: StoredJob | None, declared: JobDeclaration) -> bool:
    """Whether `check_new` has to look at a job: it never ran, and nobody let it run as it is declared."""
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
    """Misdeclared for a job that never ran, when the pipeline is recorded with other tables under all the names of jobs
    that both have, or when the tables are those of a recorded job that is not declared any more: that one was renamed,
    and its position with it. In other pipelines a job counts that has the same name, or whose pipeline had this one's:
    jobs may well share their tables.
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
            f"another pipeline is recorded as {pipeline}: {shown}; this one has {declaration_text(job.name, declared)},"
            " and shares no job with it",
            kind="other_declaration",
            hint="give this pipeline a name of its own. If it takes the place of the recorded one, run it with"
            f" adopt=True, or first alpheus pipeline adopt {pipeline}",
        )
    for other in catalog.list_pipelines():
        found = entry_of(reader, other.name) if other.name != pipeline else None
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
    """Whether a pipeline had another name, as far as history is kept: who still runs it so has the code of before."""
    try:
        return name in past_of(catalog, pipeline, catalog.info().oldest_version, catalog.version()).names
    except Expired:
        return False


def _is_another(reader: Reader, recorded: Mapping[str, StoredJob], jobs: Mapping[str, Job]) -> bool:
    """Whether there are jobs of the same names, and none of them is the recorded one as far as that can be told: with a
    table that it reads, and one that it writes."""
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
    """One of the recorded jobs that has the same tables."""
    if declared.outputs:
        for name, each in sorted(recorded.items()):
            if each.declaration is None:
                if _looks_alike(catalog, each, declared):
                    return name
            elif not each.declaration.open and not compare(each.declaration, declared):
                return name
    return ""


def _looks_alike(catalog: Catalog, job: StoredJob, declared: JobDeclaration) -> bool:
    """Whether a job that an earlier release recorded, without its tables, has these: it reads the same, and its last
    run, where that is still known, wrote to outputs among these."""
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
        " never ran: it would begin anew, and add all rows to its outputs once more",
        kind="other_declaration",
        hint=_rename_hint(old, new, old_job, job),
    )


def _rename_hint(old: str, new: str, old_job: str, job: str) -> str:
    if not old_job:
        return ""
    jobs = f" --job {old_job}={job}" if old_job != job else ""
    return (
        f"if it was renamed: alpheus pipeline rename {old} {new}{jobs}, and it goes on where it was; if it shall begin"
        " anew, run it with adopt=True (--adopt)"
    )


# --- letting it be ----------------------------------------------------------------------------------


def record(
    catalog: Catalog,
    pipeline: str,
    jobs: Mapping[str, Job],
    chosen: Iterable[str],
    *,
    adopt: bool,
    from_now: bool,
) -> Commit | None:
    """Record jobs as they are declared, where their runs would be refused for it; None: there is nothing to record.

    `adopt`: they take the place of those that are recorded, at their positions; inputs of which those worked in nothing
    begin as their `start` says. `from_now`: outputs that are new get what comes from now on.
    """
    with catalog.transaction(message=f"adopt {pipeline}") as tx:
        entry = entry_of(tx, pipeline)
        for name in chosen:
            declared = declaration_of(jobs[name], load_existing(tx, names_of(jobs[name])))
            stored = entry.jobs.get(name) if entry is not None else None
            if stored is None:
                if adopt and _is_refused(catalog, tx, pipeline, jobs, jobs[name], declared, entry):
                    _write(tx, pipeline, name, None, declared, {})
            elif stored.declaration is not None:
                _record(tx, pipeline, stored, declared, adopt=adopt, from_now=from_now)
    return tx.result


def refusals(catalog: Catalog, pipeline: str, jobs: Mapping[str, Job]) -> dict[str, str]:
    """Of the declared jobs that a run would not call as they are declared: why."""
    found = {}
    snapshot = catalog.at(catalog.version())
    entry = entry_of(snapshot, pipeline)
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
    # A first run fills all of them.
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
    """The job where it was, with this declaration."""
    entry = entry_of(tx, pipeline)  # which another job of the same transaction may have made
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
    """Let the next declaration take the place of the recorded one, whoever comes first, of all jobs or only `jobs`.
    None: nothing is recorded, or it may already. NotFound (`no_object`, `no_job`)."""
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
