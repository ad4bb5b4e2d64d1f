"""Positions of pipelines that the catalog stores: show them, resume, rename and rewind jobs.

All functions work from the stored positions and the log. They need neither the pipeline's code nor Spark.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from alpheus.catalog import Catalog, Snapshot, Transaction
from alpheus.feed.log import read_events, split_name
from alpheus.models import EPOCH, Commit, Table, time_of
from alpheus.models import Job as StoredJob
from alpheus.session.arguments import When
from alpheus_journal.errors import Conflict, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import READ_TYPES, AdvancePipeline, RecordedTransaction, RenameObject

_T = TypeVar("_T")

PROPERTY_PIPELINE = "alpheus.pipeline"
PROPERTY_JOB = "alpheus.job"
PROPERTY_REWIND = "alpheus.rewind"
PROPERTY_INPUT = "alpheus.input."
"""Properties of pipelines' transactions; see `alpheus.pipeline`. The input's key follows the last one."""

ROWS_CHANGED = frozenset(
    {
        "TABLE_INSERT", "TABLE_OVERWRITE", "TABLE_RESTORE", "TABLE_UNDROP", "TABLE_UPDATE", "TABLE_DELETE",
        "TABLE_MERGE", "TABLE_OVERWRITE_WHERE",
    }
)  # fmt: skip
_HARMLESS = READ_TYPES | {"TABLE_COMPACT"}
ATTEMPTS_MAX = 5
"""Attempts of a rename or a rewind when other commits conflict."""
FOREIGN_SHOWN_MAX = 5


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job. `position` is the version that the job read last, None before its first run.

    `lag_versions` counts the catalog's versions since `position` that changed rows of a triggering input. `lag_seconds`
    is the age of the oldest of these versions, 0 when there are none. Both are None when they are not known: before the
    first run, or when that part of history has expired.
    """

    job: str
    position: int | None
    lag_versions: int | None
    lag_seconds: float | None
    state: Literal["new", "running", "parked"]
    error: str = ""
    called_at: datetime | None = None


# --- status ------------------------------------------------------------------------------


def status(
    catalog: Catalog, name: str, triggers: Mapping[str, Mapping[str, str]] | None = None
) -> list[JobStatus]:
    """Return the status of the jobs in `triggers` (job → key → table of its triggering inputs), whether they ran or
    not.

    Without `triggers`, return the status of every job that ran. Changes of all inputs count then, because the catalog
    does not know which inputs trigger. Raise NotFound (`no_object`) when no job ran.
    """
    with catalog.transaction() as tx:
        stored: Mapping[str, StoredJob] = {}
        try:
            stored = tx.load_pipeline(name).jobs
        except NotFound:
            if triggers is None:
                raise
        head = tx.version
    if triggers is None:
        triggers = {
            job: {key: each.table for key, each in found.inputs.items()}
            for job, found in sorted(stored.items())
        }
    return [_status(catalog, job, keys, stored.get(job), head) for job, keys in triggers.items()]


def _status(
    catalog: Catalog, job: str, triggers: Mapping[str, str], stored: StoredJob | None, head: int
) -> JobStatus:
    if stored is None or not stored.inputs:
        parked = stored is not None and stored.state == "parked"
        return JobStatus(
            job=job,
            position=None,
            lag_versions=None,
            lag_seconds=None,
            state="parked" if parked else "new",
            error=stored.error if stored else "",
        )
    by_table = {each.table: each for each in stored.inputs.values()}
    behind = []
    for key, name in triggers.items():
        position = stored.inputs.get(key) or by_table.get(
            name
        )  # an input under another key keeps its position
        if position is None:
            behind.append((name, stored.pinned_version))
        else:
            behind.append((position.table or name, position.version))
    times: list[datetime] | None
    try:
        times = _find_change_times(catalog, behind, head)
    except Expired:
        times = None
    age = (datetime.now(UTC) - times[0]).total_seconds() if times else 0.0
    return JobStatus(
        job=job,
        position=stored.pinned_version,
        lag_versions=None if times is None else len(times),
        lag_seconds=None if times is None else max(0.0, age),
        state="parked" if stored.state == "parked" else "running",
        error=stored.error,
        called_at=stored.called_at,
    )


def _find_change_times(catalog: Catalog, behind: Iterable[tuple[str, int]], until: int) -> list[datetime]:
    """Return the times of the versions up to `until` that changed rows of the tables in `behind`. Each table is given
    by its name at a version, counts from after that version, and is followed through renames."""
    followed = list(behind)
    after = min((version for _, version in followed), default=until)
    times = []
    while after < until:
        names = sorted({name for name, _ in followed})
        with read_events(
            catalog, after=after, until=until, names=[split_name(name) for name in names]
        ) as events:
            for event in events:
                after = event.version
                steps = [
                    _follow_name(event, name) if after > begin else (name, False) for name, begin in followed
                ]
                if any(is_changed for _, is_changed in steps):
                    times.append(time_of(event.created_at_millis))
                followed = [(name, begin) for (name, _), (_, begin) in zip(steps, followed, strict=True)]
                if sorted({name for name, _ in followed}) != names:
                    break  # continue under the new names
            else:
                break
    return times


def _follow_name(event: Event, name: str) -> tuple[str, bool]:
    """Return a table's name after an event, and whether the event changed the table's rows."""
    is_changed = False
    for transaction in event.transactions:
        for action in transaction.actions:
            if action.name.kind is Kind.TABLE and action.name.full_name == name:
                is_changed |= action.type in ROWS_CHANGED
                if isinstance(action.operation, RenameObject):
                    name = action.operation.new_target.full_name
    return name, is_changed


# --- resume, rename, rewind -----------------------------------------------------------------------------------


def millis_of(moment: datetime | None) -> int:
    """Return epoch milliseconds; 0 for None."""
    return 0 if moment is None else round((moment - EPOCH).total_seconds() * 1000)


def is_of_job(transaction: RecordedTransaction, pipeline: str, job: str) -> bool:
    """Return whether a transaction moved the job's position under these names: what it wrote is the job's own then."""
    return job in _moved_jobs(transaction, pipeline)


def _moved_jobs(transaction: RecordedTransaction, pipeline: str) -> set[str]:
    return {
        action.operation.job
        for action in transaction.actions
        if isinstance(action.operation, AdvancePipeline) and action.name.full_name == pipeline
    }


def moved_any(transaction: RecordedTransaction) -> bool:
    """Return whether a transaction moved any job's position."""
    return any(isinstance(action.operation, AdvancePipeline) for action in transaction.actions)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline at an earlier version, and what moved its jobs since.

    `name` is the pipeline's name then. `jobs` maps current names of jobs to their names then. `moved` maps ids of
    transactions to the jobs that they moved, under the current names.
    """

    name: str
    jobs: dict[str, str]
    moved: dict[str, set[str]]
    tables: dict[str, set[str]]
    """By transaction id: the tables whose rows the transaction changed."""
    names: set[str] = set()
    """All earlier names of the pipeline."""

    def then(self, job: str) -> str:
        """Return a job's name then. An empty text means that another job had this job's name."""
        return self.jobs.get(job, "" if job in self.jobs.values() else job)


def read_past(catalog: Catalog, name: str, after: int, until: int) -> Past:
    """Read a pipeline's past in the versions of (after, until], following renames of the pipeline and its jobs. Raise
    Expired when history is not kept that far."""
    if after >= until:
        return Past(name=name, jobs={}, moved={}, tables={})
    with read_events(catalog, after=after, until=until, kinds=["pipeline"]) as events:
        seen = [transaction for event in events for transaction in event.transactions]
    jobs: dict[str, str] = {}  # name then → name now
    moved: dict[str, set[str]] = {}
    tables: dict[str, set[str]] = {}
    names: set[str] = set()
    for transaction in reversed(seen):
        for action in reversed(transaction.actions):
            match action.operation:
                case RenameObject(kind=Kind.PIPELINE, new_name=new_name) if new_name == name:
                    name = action.name.full_name
                    names.add(name)
                case AdvancePipeline(job=job, former_job=former) if action.name.full_name == name:
                    now = jobs.pop(job, job) if former else jobs.get(job, job)
                    if former:
                        jobs[former] = now
                    moved.setdefault(transaction.id, set()).add(now)
        if transaction.id in moved:
            tables[transaction.id] = {
                action.name.full_name for action in transaction.actions if action.type in ROWS_CHANGED
            }
    return Past(
        name=name, jobs={now: then for then, now in jobs.items()}, moved=moved, tables=tables, names=names
    )


def resume(catalog: Catalog, name: str, job: str) -> Commit | None:
    """Unpark a job, so that it continues at its position. Return None when the job is not parked.

    Raise NotFound (`no_job`) when the job never ran, Conflict (`position_moved`) when its position moved meanwhile.
    """
    with catalog.transaction(message=f"resume {name}.{job}") as tx:
        stored = None
        with contextlib.suppress(NotFound):
            stored = tx.load_pipeline(name).jobs.get(job)
        if stored is None:
            raise NotFound(f"job {name}.{job} never ran", kind="no_job")
        if stored.state == "parked":
            _move(tx, name, stored, stored)
    return tx.result


def _move(tx: Transaction, name: str, stored: StoredJob, to: StoredJob | None) -> None:
    """Move a job, unparked, to the position and declaration of `to`. None means as if the job never ran."""
    tx.advance_pipeline(
        name,
        stored.name,
        stored.last_transaction_id,
        to.pinned_version if to else 0,
        to.inputs if to else {},
        "running",
        "",
        to.params if to else {},
        millis_of(to.called_at if to else None),
        declaration=to.declaration if to else None,
    )


def rename(catalog: Catalog, old: str, new: str, jobs: Mapping[str, str] | None = None) -> Commit:
    """Rename a pipeline and its `jobs` (old name → new name), with their positions, in one commit.

    The pipeline keeps its id. `old` and `new` may be equal, to rename only jobs. Jobs may exchange their names. Runs
    that are in progress under the old names drop their work.

    Raise NotFound (`no_object`, `no_job`), AlreadyExists (`pipeline_exists`), or InvalidInput when a name is taken or
    nothing is to be renamed.
    """
    if old == new and not jobs:
        raise InvalidInput(
            f"pipeline {old} already has this name, and no jobs are to be renamed", kind="bad_name"
        )

    def attempt() -> Commit:
        with catalog.transaction(message=f"rename {old} to {new}") as tx:
            stored = tx.load_pipeline(old).jobs
            if old != new:
                tx.rename_pipeline(old, new)
            _rename_jobs(tx, new, jobs or {}, stored)
        assert tx.result is not None
        return tx.result

    return _retry(attempt)


def _retry(attempt: Callable[[], _T]) -> _T:
    """Make the attempt again after a retryable conflict, `ATTEMPTS_MAX` times in all. Returns its result."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return attempt()
        except Conflict as conflict:
            if not conflict.retryable:
                raise
    return attempt()


def _rename_jobs(
    tx: Transaction, name: str, jobs: Mapping[str, str], stored: Mapping[str, StoredJob]
) -> None:
    for former, job in sorted(jobs.items()):
        if former not in stored:
            raise NotFound(
                f"job {name}.{former} never ran",
                kind="no_job",
                hint=f"these did: {', '.join(sorted(stored))}",
            )
        if former == job:
            raise InvalidInput(f"job {name}.{job} already has this name", kind="bad_name")
    left = dict(jobs)  # current name → new name
    held: dict[str, StoredJob] = {former: stored[former] for former in jobs}
    while left:
        former = next((each for each in sorted(left) if left[each] not in left), "")
        if former:
            _rename_job(tx, name, former, left.pop(former), held[former])
            continue
        # Each job waits for the name of another: one takes a temporary name.
        former, aside = min(left), f"renamed-{uuid.uuid4().hex}"
        _rename_job(tx, name, former, aside, held[former])
        left[aside] = left.pop(former)
        held[aside] = msgspec.structs.replace(held[former], last_transaction_id=tx.id)


def _rename_job(tx: Transaction, name: str, former: str, job: str, found: StoredJob) -> None:
    tx.advance_pipeline(
        name,
        job,
        found.last_transaction_id,
        found.pinned_version,
        found.inputs,
        found.state,
        found.error,
        found.params,
        millis_of(found.called_at),
        former_job=former,
    )


def rewind(catalog: Catalog, name: str, to: When, jobs: Sequence[str] | None = None) -> Commit | None:
    """Restore outputs and positions of a pipeline's jobs to what they were at `to`, in one commit. Return None when
    nothing differs.

    `jobs` limits the rewind to these jobs; the default is all jobs that ever ran. Outputs are the tables that the jobs'
    runs wrote since `to`; each is restored as by `restore_table`, columns included. Parked jobs are unparked. A job
    that had not run yet at `to` runs next as if for the first time. Runs in progress drop their work.

    Raise Conflict (not retryable) when other transactions changed the outputs since; the message names them. Other jobs
    of the pipeline count, unless they are rewound too. Raise NotFound (`no_object`, `no_job`), or Expired when `to` is
    no longer kept.
    """
    target = catalog.at(to)

    def attempt() -> Commit | None:
        with catalog.transaction(
            message=f"rewind {name} to version {target.version}",
            properties={PROPERTY_PIPELINE: name, PROPERTY_REWIND: str(target.version)},
        ) as tx:
            _rewind(catalog, tx, name, target, jobs)
        return tx.result

    return _retry(attempt)


def _rewind(
    catalog: Catalog, tx: Transaction, name: str, target: Snapshot, jobs: Sequence[str] | None
) -> None:
    if target.is_chosen:
        raise InvalidInput(
            f"pipeline {name} cannot be rewound to a tag of chosen objects, which holds no pipelines",
            kind="bad_version",
            hint="rewind to a version, or to a tag of all objects",
        )
    stored = tx.load_pipeline(name).jobs
    chosen = set(stored if jobs is None else jobs)
    for job in sorted(chosen - set(stored)):
        raise NotFound(
            f"job {name}.{job} never ran", kind="no_job", hint=f"these did: {', '.join(sorted(stored))}"
        )
    past = read_past(catalog, name, target.version, tx.version)
    before: Mapping[str, StoredJob] = {}
    with contextlib.suppress(NotFound):
        before = target.load_pipeline(past.name).jobs
    own, outputs = _find_own(past, chosen)
    if outputs:
        _refuse_foreign(catalog, own, outputs, target.version, tx.version)
    # Positions come first, so that the loser of two rewinds gets a conflict over the position, not over an output.
    for job in sorted(chosen):
        then = before.get(past.then(job))
        if (
            stored[job].state == "parked"
            or _position_of(stored[job]) != _position_of(then)
            or _is_other(stored[job], then)
        ):
            _move(tx, name, stored[job], then)
    for output in sorted(outputs):
        table = split_name(output)
        if _content_of(tx.load_table(table)) != _content_of(target.load_table(table)):
            tx.restore_table(table, target.version)


def _position_of(job: StoredJob | None) -> object:
    """Return what a rewind restores of a job. A job that never ran equals one that was rewound to its start."""
    return (0, {}) if job is None else (job.pinned_version, job.inputs)


def _is_other(job: StoredJob, then: StoredJob | None) -> bool:
    """Return whether the job was recorded with other tables then."""
    return then is not None and then.declaration is not None and then.declaration != job.declaration


def _content_of(table: Table) -> object:
    """Return the parts of a table's definition that determine its rows and columns."""
    definition = table.definition
    return definition.segments, definition.delete_predicates, definition.columns


def _find_own(past: Past, jobs: set[str]) -> tuple[set[str], set[str]]:
    """Return (ids of transactions that moved only these jobs, tables whose rows transactions moving these jobs
    changed)."""
    ids: set[str] = set()
    tables: set[str] = set()
    for id_, moved in past.moved.items():
        if moved & jobs:
            tables |= past.tables[id_]
            if moved <= jobs:
                ids.add(id_)
    return ids, tables


def _refuse_foreign(catalog: Catalog, own: set[str], tables: set[str], after: int, until: int) -> None:
    found: list[tuple[str, int, str, str]] = []  # (table, version, what, transaction)
    names = [split_name(name) for name in sorted(tables)]
    with read_events(catalog, after=after, until=until, names=names) as events:
        for event in events:
            found += _find_foreign(event, own, tables)
    if not found:
        return
    shown = [
        f"{table} in version {version} ({what}{f', transaction {id_}' if id_ else ''})"
        for table, version, what, id_ in found[:FOREIGN_SHOWN_MAX]
    ]
    if len(found) > FOREIGN_SHOWN_MAX:
        shown.append(f"{len(found) - FOREIGN_SHOWN_MAX} more")
    raise Conflict(
        f"others changed outputs since version {after}, which a rewind would undo: {'; '.join(shown)}",
        transaction_id=found[0][3],
        version=found[0][1],
        retryable=False,
        hint="rewind to a later version, or rewind jobs that share outputs together; restore_table restores one table",
    )


def _find_foreign(event: Event, own: set[str], tables: set[str]) -> list[tuple[str, int, str, str]]:
    found = []
    explained: set[str] = set()
    for transaction in event.transactions:
        for action in transaction.actions:
            kind = action.name.kind
            names = {action.name.full_name} if kind is Kind.TABLE else set()
            if kind is Kind.TABLE and isinstance(action.operation, RenameObject):
                names.add(action.operation.new_target.full_name)
            if kind is Kind.VIEW:  # a view that binds to a table is written into the table's definition
                explained |= {
                    effect.name.full_name for effect in action.also if effect.name.kind is Kind.TABLE
                }
            explained |= names
            if transaction.id not in own and action.type not in _HARMLESS:
                found += [
                    (name, event.version, action.type, transaction.id) for name in sorted(names & tables)
                ]
    changed = {change.name.full_name for change in event.changes if change.name.kind is Kind.TABLE}
    unexplained = changed & tables - explained
    return found + [(name, event.version, "by an unrecorded action", "") for name in sorted(unexplained)]
