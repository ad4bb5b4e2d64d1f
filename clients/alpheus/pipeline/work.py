"""Find a job's work: its inputs under their current names, what changed in them, and up to which version to read.

Tables are followed by id, so a renamed input is read under its new name.

The module stays above 600 lines because its steps share the trails and positions of one `Planner`.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta

import msgspec

from alpheus.catalog import Catalog, Snapshot, Transaction, core_of
from alpheus.feed.former_names import name_at, names_before
from alpheus.feed.log import follow, id_reader, read_events, split_name
from alpheus.feed.table_range import open_whole
from alpheus.feed.trail import RowChange, TableTrail
from alpheus.models import Job as StoredJob
from alpheus.models import Pipeline as Entry
from alpheus.models import Table, time_of
from alpheus.pipeline.declarations import (
    Misdeclared,
    check_inputs,
    check_new,
    check_outputs,
    declaration_of,
    is_new,
    load_entry,
    load_existing,
)
from alpheus.pipeline.jobs import Input, Job, Jobs
from alpheus.pipeline.output_writers import Outputs, Reader
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.model.answers import Event
from alpheus_journal.model.definitions import InputPosition, JobDeclaration


class Idle(msgspec.Struct, frozen=True):
    """No work for now. `reason` says what the job waits for, if anything; `seconds` for how long, if that is known."""

    reason: str = ""
    seconds: float | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one run. Inputs are read at `version` (committed at `created_at`), outputs at the pinned version."""

    version: int
    created_at: datetime
    stored: StoredJob | None
    inputs: dict[str, Table]
    outputs: dict[tuple[str, str], Table]
    changes: dict[str, list[RowChange] | None]  # by triggering input; None means never processed, so all rows
    begins: dict[str, int]  # by input with a list: the version after which the list begins
    first: bool
    full: bool
    declaration: JobDeclaration
    more: bool = False  # max_versions left work for the next run

    @property
    def newest(self) -> RowChange | None:
        """The last change that the run processes."""
        found = [change for changes in self.changes.values() for change in changes or ()]
        return max(found, key=lambda change: change.version, default=None)


class _IdleMark(msgspec.Struct, frozen=True):
    """A job had nothing to do up to `version`, at the position that `transaction_id` wrote. `trails` are those of its
    inputs at that version."""

    transaction_id: str
    version: int
    trails: dict[str, TableTrail]


class Planner:
    """Finds the work of one pipeline's jobs. Caches between calls what it need not read again."""

    def __init__(
        self, catalog: Catalog, pipeline: Jobs, jobs: Sequence[Job], now: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._jobs = jobs
        self._now = now
        self._id_at = id_reader(catalog)
        self._idle: dict[str, _IdleMark] = {}  # by job
        self._outputs = Outputs(catalog, pipeline)
        self._name_checks: dict[tuple[str, InputPosition], bool] = {}  # see `_had_declared_name`
        # Job → input → the current name of its table, where that differs from the declared name.
        self._renamed: dict[str, dict[str, str]] = {job.name: {} for job in jobs}
        self.entry: Entry | None = None
        """The pipeline's entry, as `load_job` read it last."""
        self._declared: dict[str, JobDeclaration] = {}

    def table_name(self, job: Job, key: str) -> str:
        """Return the last known name of an input's table."""
        return self._renamed[job.name].get(key) or job.inputs[key].full_name

    def table_names(self) -> set[str]:
        """Return the names of all input tables, and their declared names, because other tables may take these names."""
        return {
            name
            for job in self._jobs
            for key, value in job.inputs.items()
            for name in (value.full_name, self.table_name(job, key))
        }

    def load_job(self, reader: Reader, job: Job) -> StoredJob | None:
        """Read the pipeline's entry. Return its record of the job, or None when it has none."""
        self.entry = load_entry(reader, self._pipeline.name)
        return self.entry.jobs.get(job.name) if self.entry is not None else None

    def declared(self, job: Job) -> JobDeclaration:
        """Return the job's declaration, with the tables that existed when the job was looked at last."""
        return self._declared.get(job.name) or declaration_of(job, {})

    def find_work(
        self, tx: Transaction, reader: Reader, job: Job, stored: StoredJob | None, full: bool
    ) -> Work | Idle:
        """Find the job's work at the transaction's version.

        When history has expired, plan a full run if the pipeline has `on_expired="full"`; otherwise raise Expired.
        """
        try:
            return self._find_work(tx, reader, job, stored, full)
        except Expired as error:
            if full or stored is None or not stored.inputs:
                raise
            if self._pipeline.on_expired != "full":
                error.hint = 'run the job with full_refresh, or declare the pipeline with on_expired="full"'
                raise
            self.refuse_foreign_rows(reader, job)
            return self._find_work(tx, reader, job, stored, True)

    def _find_work(
        self, tx: Transaction, reader: Reader, job: Job, stored: StoredJob | None, full: bool
    ) -> Work | Idle:
        """Find the job's work at the transaction's version, or what the job waits for."""
        first = stored is None or not stored.inputs
        if stored is not None and not full and not first:
            waiting = self._find_wait(job, stored, tx.version)
            if waiting is not None:
                return waiting
        known: dict[str, InputPosition] = {} if full or stored is None else dict(stored.inputs)
        tables, outputs = self._load_tables(reader, job)
        declared = self._declare(job, tables, outputs)
        if stored is not None:
            check_outputs(self._pipeline.name, stored, declared, full=full)
        former = dict(stored.inputs) if full and stored is not None else {}
        is_open = stored is not None and stored.declaration is not None and stored.declaration.open
        inputs = self._find_inputs(reader, job, tables, known, former, tx.version, is_open=is_open)
        if isinstance(inputs, Idle):
            return inputs
        first = first or not (known or full)  # an adoption dropped all positions
        declared = self._declare(job, inputs, outputs)
        self._check_declared(reader, job, stored, declared, full=full)
        required = {name: _require_output(table, name) for name, table in outputs.items()}
        _refuse_own(job, inputs, required.values())
        if stored is not None and not first and not full:
            self._outputs.refuse_replaced(job, stored, required, tx.version)
        found = self._find_changes(job, stored, inputs, known, tx.version, wait=not first and not full)
        if not first and not full and job.triggers and not self._has_news(job, stored, known, found, tx):
            return Idle()
        pinned = None if found.version >= tx.version else self._load_inputs_at(job, inputs, found.version)
        if found.version < tx.version and pinned is None:
            # Not all inputs existed at the older version: read at the transaction's version.
            found = self._find_changes(job, stored, inputs, known, tx.version, wait=False, bounded=False)
        return Work(
            version=found.version,
            created_at=pinned[0].info.created_at if pinned else _created_at(tx),
            stored=stored,
            inputs=pinned[1] if pinned else inputs,
            outputs=required,
            changes=found.changes,
            begins=found.begins,
            first=first,
            full=full,
            declaration=declared,
            more=found.version < tx.version,
        )

    def _find_wait(self, job: Job, stored: StoredJob, version: int) -> Idle | None:
        """Return why a job that ran before need not be looked at: it is not due yet, or is known to have no work."""
        seconds = self._seconds_until_due(job, stored)
        if seconds > 0:
            moment = self._now() + timedelta(seconds=seconds)
            every = timedelta(seconds=job.every or 0)
            return Idle(f"is called every {every}, next at {moment:%F %T %Z}", seconds)
        if job.triggers and self._idle_mark(job, stored).version >= version:
            return Idle()
        return None

    def _load_tables(
        self, reader: Reader, job: Job
    ) -> tuple[dict[str, Table | None], dict[tuple[str, str], Table | None]]:
        """Load the tables of the job's inputs, by key, and of its outputs, by name. Missing tables are None."""
        names = {key: split_name(self.table_name(job, key)) for key in job.inputs}
        tables = load_existing(reader, [*names.values(), *job.outputs])
        inputs = {key: tables.get(name) for key, name in names.items()}
        return inputs, {name: tables.get(name) for name in job.outputs}

    def _declare(
        self,
        job: Job,
        inputs: Mapping[str, Table | None],
        outputs: Mapping[tuple[str, str], Table | None],
    ) -> JobDeclaration:
        """Return the job's declaration with these tables, and keep it for `declared`."""
        by_name = dict(outputs)
        for key, value in job.inputs.items():
            by_name[value.namespace, value.name] = inputs[key]
        declared = self._declared[job.name] = declaration_of(job, by_name)
        return declared

    def _check_declared(
        self, reader: Reader, job: Job, stored: StoredJob | None, declared: JobDeclaration, *, full: bool
    ) -> None:
        """Raise Misdeclared when the job may not run as it is declared; see `alpheus.pipeline.declarations`."""
        name = self._pipeline.name
        if is_new(stored, declared):
            check_new(self._catalog, reader, name, self._pipeline.jobs, job, declared, self.entry)
        elif stored is not None and not full:
            check_inputs(name, stored, declared)

    def _has_news(
        self,
        job: Job,
        stored: StoredJob | None,
        known: Mapping[str, InputPosition],
        found: _Changes,
        tx: Transaction,
    ) -> bool:
        """Return whether triggering inputs changed, any or all of them according to `when`. Record when none did."""
        # An input that is new to the job counts as changed: the run gives it a position.
        new = [key not in known or bool(found.changes[key]) for key in job.triggers]
        if not any(new):
            last = stored.last_transaction_id if stored else ""
            self._idle[job.name] = _IdleMark(last, tx.version, found.trails)
        return all(new) if job.when == "all" else any(new)

    def _seconds_until_due(self, job: Job, stored: StoredJob) -> float:
        """Return the seconds until a job with a period may be called again, at most the period. A last call that is
        dated more than a period ahead comes from a wrong clock and is ignored."""
        if job.every is None or stored.called_at is None:
            return 0.0
        passed = (self._now() - stored.called_at).total_seconds()
        return min(job.every, job.every - passed) if passed > -job.every else 0.0

    def refuse_foreign_rows(self, reader: Reader, job: Job) -> None:
        """Raise Conflict when an output of a job that ran before holds rows that others wrote; see `Outputs`."""
        self._outputs.refuse_foreign_rows(reader, job, self.load_job(reader, job))

    # -- inputs

    def _find_inputs(
        self,
        reader: Reader,
        job: Job,
        tables: Mapping[str, Table | None],
        known: dict[str, InputPosition],
        former: Mapping[str, InputPosition],
        until: int,
        *,
        is_open: bool,
    ) -> dict[str, Table] | Idle:
        """Find the tables of the inputs: by id those that have a position, by name the others.

        * `tables`: the tables found under the last known names.
        * `known`: the positions, by input. An input that takes the table of another input resumes at its position,
          which is added here. With `is_open`, positions of tables that are no longer inputs are removed.
        * `former`: for a full run, the recorded positions. A full run takes the table with the declared name, or
          follows the former table when no table has that name.
        * `is_open`: a user has adopted another declaration than the recorded one.
        """
        found: dict[str, Table] = {}
        moved: set[str] = set()
        for key, value in job.inputs.items():
            table, position = tables[key], known.get(key)
            if position is None and table is None and key in self._renamed[job.name]:
                table = load_existing(reader, [split_name(value.full_name)]).get(split_name(value.full_name))
            if table is None and key in former and self._had_declared_name(value, former[key]):
                with contextlib.suppress(Expired, InvalidInput):  # in that case the table counts as missing
                    table = self._find_renamed_input(reader, key, value, former[key], until)
            if position is not None and (table is None or table.id != position.table_id):
                if self._had_declared_name(value, position):
                    table = self._find_renamed_input(reader, key, value, position, until)
                else:
                    moved.add(key)
            if table is None:
                return Idle(f"waits for table {value.full_name}{_view_note(reader, value)}")
            self._renamed[job.name].pop(key, None)
            if table.full_name != value.full_name:
                self._renamed[job.name][key] = table.full_name
            found[key] = table
        self._assign_positions(found, known, moved, is_open=is_open)
        return found

    def _assign_positions(
        self, tables: Mapping[str, Table], known: dict[str, InputPosition], moved: Set[str], *, is_open: bool
    ) -> None:
        """Assign positions to inputs by table: an input resumes at the position of another input that had its table and
        has it no longer. `moved` names the inputs that were declared with other tables before.

        Raise InvalidInput (`table_replaced`) when the job has processed nothing of a moved input's table, and when no
        input keeps a position.
        """
        left = {
            position.table_id: position
            for key, position in known.items()
            if key not in tables or key in moved
        }
        for key, table in tables.items():
            if table.id in left and (key in moved or key not in known):
                known[key] = left[table.id]
            elif key in moved and is_open:
                del known[key]
            elif key in moved:
                raise Misdeclared(
                    f"input {key!r} was table {known[key].table} and is now declared as {table.full_name}, of which"
                    " this job has read nothing",
                    kind="table_replaced",
                    hint="run the job with full_refresh to start over with the new table, or with adopt=True to"
                    " continue with it; under another key it is a new input and begins at its start",
                )
        if known and not known.keys() & tables.keys():
            if is_open:
                known.clear()
                return
            raise Misdeclared(
                f"this job has read {', '.join(sorted(position.table for position in known.values()))}, and none of the"
                f" tables that it is declared with: {', '.join(sorted(table.full_name for table in tables.values()))}",
                kind="table_replaced",
                hint="if another pipeline has the same name, give this one a name of its own; otherwise run the job"
                " with full_refresh to start over, or under another name to add to what its outputs hold",
            )

    def _had_declared_name(self, declared: Input, position: InputPosition) -> bool:
        """Return whether the table at a position ever had the input's declared name. If so, it was renamed or dropped
        since; if not, the job was declared with another table when it ran. In doubt return True."""
        if position.table in ("", declared.full_name):
            return True
        asked = declared.full_name, position
        if asked not in self._name_checks:
            self._name_checks[asked] = self._had_name(declared, position)
        return self._name_checks[asked]

    def _had_name(self, declared: Input, position: InputPosition) -> bool:
        oldest = self._catalog.info().oldest_version
        former = position.table
        for former in names_before(self._catalog, position.table, oldest, position.version):
            if former == declared.full_name:
                return True
        then = load_existing(self._catalog.at(oldest), [split_name(former)]).get(split_name(former))
        return then is not None and then.id == position.table_id  # earlier names are not kept

    def _find_renamed_input(
        self, reader: Reader, key: str, declared: Input, position: InputPosition, until: int
    ) -> Table | None:
        """Find an input's table after a rename. Return None when the table was dropped, since it may come back. Raise
        InvalidInput (`table_replaced`) when another table took its place."""
        trail = TableTrail(position.table or declared.full_name, position.table_id)
        for _ in follow(self._catalog, trail, position.version, until):
            pass
        found = load_existing(reader, [split_name(trail.name), split_name(declared.full_name)])
        table = found.get(split_name(trail.name)) if trail.exists else None
        if table is not None and table.id == position.table_id:
            return table
        other = table or found.get(split_name(declared.full_name))
        if other is None:
            return None
        raise InvalidInput(
            f"input {key!r} was table {position.table} of id {position.table_id};"
            f" {other.full_name} is another table, of id {other.id}",
            kind="table_replaced",
            hint="run the job with full_refresh to start over with this table",
        )

    def _load_inputs_at(
        self, job: Job, inputs: Mapping[str, Table], version: int
    ) -> tuple[Snapshot, dict[str, Table]] | None:
        """Load the inputs at an older version; inputs that are the job's own outputs stay current. Return None when an
        input did not exist then."""
        snapshot = self._catalog.at(version)
        then = dict(inputs)
        names = {
            key: split_name(table.full_name)
            for key, table in inputs.items()
            if (table.namespace, table.name) not in job.outputs
        }
        tables = load_existing(snapshot, list(names.values()))
        for key, name in names.items():
            table = tables.get(name)
            if table is None or table.id != inputs[key].id:
                former_name = name_at(self._catalog, inputs[key].full_name, version, inputs[key].version)
                former = split_name(former_name)
                table = load_existing(snapshot, [former]).get(former)
            if table is None or table.id != inputs[key].id:
                return None
            then[key] = table
        return snapshot, then

    # -- changes

    def _find_begins(
        self, job: Job, inputs: Mapping[str, Table], known: Mapping[str, InputPosition], until: int
    ) -> dict[str, tuple[int, TableTrail] | None]:
        """Find for each triggering input the version after which its changes count, and the trail that follows them.
        None means that all rows count."""
        found: dict[str, tuple[int, TableTrail] | None] = {}
        for key, value in job.triggers.items():
            table, position = inputs[key], known.get(key)
            if position is not None:
                found[key] = position.version, TableTrail(position.table or value.full_name, table.id)
            elif value.start == "snapshot":
                found[key] = None
            elif value.start == "now":
                found[key] = until, TableTrail(table.full_name, table.id)
            else:
                found[key] = self._find_start(value, table, until)
        return found

    def _find_start(self, declared: Input, table: Table, until: int) -> tuple[int, TableTrail] | None:
        snapshot = open_whole(self._catalog, declared.start)
        version = min(snapshot.version, until)
        former = name_at(self._catalog, table.full_name, version, until)
        then = load_existing(snapshot, [split_name(former)]).get(split_name(former))
        if then is None or then.id != table.id:
            return None  # the table was created later
        return version, TableTrail(former, table.id)

    def _find_changes(
        self,
        job: Job,
        stored: StoredJob | None,
        inputs: Mapping[str, Table],
        known: Mapping[str, InputPosition],
        until: int,
        *,
        wait: bool,
        bounded: bool = True,
    ) -> _Changes:
        """Find what changed in the triggering inputs, up to the version that the run reads.

        With `wait`, the run needs new changes. Unless `bounded`, `max_versions` is ignored.
        """
        begun = self._find_begins(job, inputs, known, until)
        begins = {key: begin[0] for key, begin in begun.items() if begin is not None}
        trails = {key: begin[1] for key, begin in begun.items() if begin is not None}
        idle = self._idle_mark(job, stored)
        afters = dict(begins)
        for key in known.keys() & idle.trails.keys() & begins.keys():
            if idle.version > begins[key]:  # the versions in between are known to hold no changes
                afters[key], trails[key] = idle.version, idle.trails[key].copy()
        found: dict[str, list[RowChange]] = {key: [] for key in trails}
        limit = job.max_versions if bounded else None
        # Never read an older version than the run before, so that no run goes back in time.
        floor = stored.pinned_version if stored is not None and known else 0
        version = until
        for position in self._read_changes(trails, afters, until, found):
            if limit is not None:
                cut = _find_cut(found, limit, every=job.when == "all" and wait)
                if cut is not None and max(cut, floor) < position:
                    version = max(cut, floor)
                    break
        else:
            _check_seen(trails, inputs, until)
        return _Changes(
            version=version,
            changes={
                key: [change for change in found[key] if change.version <= version] if key in found else None
                for key in begun
            },
            begins=begins,
            trails=trails,
        )

    def _read_changes(
        self,
        trails: Mapping[str, TableTrail],
        afters: Mapping[str, int],
        until: int,
        found: Mapping[str, list[RowChange]],
    ) -> Iterator[int]:
        """Fill `found` with what changed since `afters`. Yield the version of each event after it is processed."""
        position = min(afters.values(), default=until)
        for trail in trails.values():
            trail.id_at = self._id_at
        while position < until:
            if not all(trail.exists for trail in trails.values()):
                yield from self._read_changes_apart(trails, afters, position, until, found)
                return
            names = {trail.name for trail in trails.values()}
            pairs = [split_name(name) for name in sorted(names)]
            with read_events(self._catalog, after=position, until=until, names=pairs) as events:
                for event in events:
                    position = event.version
                    for key, trail in trails.items():
                        if position > afters[key]:
                            found[key].extend(trail.take(event))
                    yield position
                    if {trail.name for trail in trails.values() if trail.exists} != names:
                        break  # continue under the new names
                else:
                    return

    def _read_changes_apart(
        self,
        trails: Mapping[str, TableTrail],
        afters: Mapping[str, int],
        position: int,
        until: int,
        found: Mapping[str, list[RowChange]],
    ) -> Iterator[int]:
        """Do the same as `_read_changes`, following each input by itself: a dropped table may come back under any
        name."""
        with contextlib.ExitStack() as stack:
            ways = []
            for key, trail in trails.items():
                way = follow(self._catalog, trail, max(position, afters[key]), until)
                stack.callback(way.close)
                ways.append(_with_key(key, way))
            for version, key, changes in heapq.merge(*ways, key=lambda step: step[0]):
                found[key].extend(changes)
                yield version

    def idle_positions(
        self, job: Job, stored: StoredJob | None, version: int
    ) -> dict[str, InputPosition] | None:
        """Return the job's positions, moved to a version up to which its inputs are known to hold no changes. None when
        that is not known, or moves nothing."""
        mark = self._idle_mark(job, stored)
        if stored is None or mark.version != version:
            return None
        moved = {
            key: msgspec.structs.replace(position, version=version) if key in mark.trails else position
            for key, position in stored.inputs.items()
        }
        return moved if moved != stored.inputs else None

    def _idle_mark(self, job: Job, stored: StoredJob | None) -> _IdleMark:
        """Return up to which version this process knows that the job has no work; version -1 means not known."""
        found = self._idle.get(job.name)
        if found is None or stored is None or stored.last_transaction_id != found.transaction_id:
            return _IdleMark("", -1, {})
        return found


def _with_key(
    key: str, way: Iterator[tuple[Event, list[RowChange]]]
) -> Iterator[tuple[int, str, list[RowChange]]]:
    for event, changes in way:
        yield event.version, key, changes


class _Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of the triggering inputs, and the `version` that the run reads.

    `changes` has for each input its changes, or None for all rows; `begins` the version after which a list begins;
    `trails` the trails of the tables, as of the last event read.
    """

    version: int
    changes: dict[str, list[RowChange] | None]
    begins: dict[str, int]
    trails: dict[str, TableTrail]


def _check_seen(trails: Mapping[str, TableTrail], inputs: Mapping[str, Table], until: int) -> None:
    """Raise InvalidInput when the log did not lead to the existing table: the table may hold rows that were not seen,
    and a position must not skip them."""
    for key, trail in trails.items():
        table = inputs[key]
        if not trail.exists or trail.name != table.full_name:
            raise InvalidInput(
                f"input {key!r}: the log up to version {until} does not show how table {trail.name} became"
                f" {table.full_name} of id {table.id}",
                kind="not_supported",
                version=until,
                hint="run the job with full_refresh",
            )


def _find_cut(found: Mapping[str, list[RowChange]], limit: int, *, every: bool) -> int | None:
    """Return the version at which a run ends that processes at most `limit` changed versions, and with `every` at least
    one change of each input. Return None when that version is not known yet, or when there is nothing more."""
    versions = sorted({change.version for changes in found.values() for change in changes})
    if len(versions) <= limit or (every and not all(found.values())):
        return None
    return max([versions[limit - 1], *(changes[0].version for changes in found.values() if every)])


def _view_note(reader: Reader, declared: Input) -> str:
    """Return what to add to "waits for table" when the name belongs to a view."""
    try:
        reader.load_view((declared.namespace, declared.name))
    except NotFound:
        return ""
    return ", which is a view: a job reads tables"


def _refuse_own(job: Job, inputs: Mapping[str, Table], outputs: Iterable[Table]) -> None:
    """Raise InvalidInput when renames made a triggering input and an output the same table: the job would trigger
    itself forever."""
    own = {table.id for table in outputs}
    for key in job.triggers:
        if inputs[key].id in own:
            raise InvalidInput(
                f"input {key!r} is now table {inputs[key].full_name}, which is also an output of the job: the job would"
                " trigger itself forever",
                hint="rename the table and resume the job",
            )


def _require_output(table: Table | None, name: tuple[str, str]) -> Table:
    if table is None:
        raise NotFound(
            f"there is no output table {'.'.join(name)}",
            kind="no_table",
            hint="create it before the job runs",
        )
    return table


def _created_at(tx: Transaction) -> datetime:
    """Return when the version was committed that the transaction pinned."""
    return time_of(core_of(tx).begun.created_at_millis)
