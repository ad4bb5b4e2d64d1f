"""A table's feed as a stream: where a batch ends, and what it contains."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from alpheus.catalog import Catalog, starts_of
from alpheus.feed.change_sets import ChangeReader, ChangeSet, refuse_removals
from alpheus.feed.former_names import name_at
from alpheus.feed.log import follow, split_name
from alpheus.feed.past import RowHistory
from alpheus.feed.stream import HOLD_SECONDS, Stream
from alpheus.feed.stream_position import StreamPosition, StreamTerms
from alpheus.feed.table_range import check_same_table, open_whole
from alpheus.feed.trail import RowChange, TableTrail
from alpheus.models import Table
from alpheus.rows.manifest_files import FileLists
from alpheus.session.arguments import Name, parse_name
from alpheus.sync.portal import run
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import Column

BATCH_FILES_MAX = 100_000

_log = logging.getLogger(__name__)


class Slice(msgspec.Struct, frozen=True):
    """The files `start` to `stop` (exclusive) of one change set, which a batch reads."""

    source: ChangeSet
    start: int
    stop: int


class VersionStep(msgspec.Struct, frozen=True):
    """The changes of one version to the table. `base` is an earlier version at which the table existed. `is_last` says
    that the table does not exist after this version."""

    version: int
    sets: tuple[ChangeSet, ...]
    base: int
    is_last: bool

    @property
    def files(self) -> int:
        return sum(len(each.files) for each in self.sets)


class TableStream(Stream):
    """Plans batches of one table's feed.

    `columns` are those of `table` that the query reads; `is_whole` says that these are all. When one of them changes,
    the stream ends with InvalidInput (`bad_schema`), and continues from its checkpoint once the query is started again.

    The table is followed by its id under every name. A checkpoint of another table is refused (`table_replaced`). In a
    query that resumes from a checkpoint, the name in `terms` may be a former name of the table.
    """

    def __init__(
        self,
        catalog: Catalog,
        terms: StreamTerms,
        table: Table,
        columns: Sequence[Column],
        *,
        is_whole: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        super().__init__(catalog, terms.outage_seconds, hold_seconds, monotonic, sleep)
        self._terms = terms
        self._started_table = table
        self._own_id = table.id
        self._columns = tuple(columns)
        self._is_whole = is_whole
        self._storage = catalog.storage()
        self._lists = FileLists(self._storage, run)
        self._trail: TableTrail | None = None
        self._past: RowHistory | None = None
        self._steps: list[
            VersionStep
        ] = []  # the versions of (`_begin`, `_scanned`] that changed rows, ascending
        self._begin = 0
        self._scanned = -1
        self._snapshot: tuple[int, list[ChangeSet]] = (-1, [])
        self._known = table.full_name, table.version  # the last known name, and the version at which it held

    # -- the end of the next batch

    def latest(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        """Return the end of the next batch, or `start` when nothing new came within a short wait."""
        self._check_own(start)
        return self._wait_for_news(start, lambda: self._find_end(start, max_files, max_versions))

    def head(self) -> StreamPosition:
        """Return the position at the head. Raises what `_load_table` does where the table does not exist: from a
        position at such a version, all rows would be delivered again when the table comes back."""
        version = self._retry(self._head)
        self._retry(lambda: self._load_table(version))
        return StreamPosition(version, 0, self._own_id)

    def _find_end(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        max_files = BATCH_FILES_MAX if max_files is None else max(1, max_files)
        if start.is_begin:
            return self._find_first_end(max_files)
        try:
            if start.is_snapshot and start.files:
                return self._find_snapshot_end(start, max_files)
            return self._find_log_end(start, max_files, max_versions)
        except Expired as error:
            self._check_may_restart(error)
            return self._begin_snapshot(self._head(), max_files)

    def _check_may_restart(self, error: Expired) -> None:
        if self._terms.on_expired != "snapshot":
            error.hint = 'restart with a new checkpoint, or pass on_expired="snapshot" to get all rows again'
            raise error
        _log.warning("the stream of table %s restarts with all rows: %s", self._terms.table, error)
        self._forget()

    def _find_first_end(self, max_files: int) -> StreamPosition:
        check_present_name(self._started_table, self._terms.table)
        if self._terms.start == "snapshot":
            return self._begin_snapshot(self._head(), max_files)
        head = self._head()
        begin = head if self._terms.start == "now" else open_whole(self._catalog, self._terms.start).version
        self._load_table(head)
        check_same_table(self._catalog.at(begin), self._find_name(begin), self._own_id)
        return StreamPosition(begin, 0, self._own_id)

    # -- a snapshot

    def _begin_snapshot(self, version: int, max_files: int) -> StreamPosition:
        return self._find_snapshot_end(StreamPosition(version, 0, self._own_id, True), max_files)

    def _find_snapshot_end(self, start: StreamPosition, max_files: int) -> StreamPosition:
        total = sum(len(each.files) for each in self._snapshot_sets(start))
        end = start.files + max_files
        return StreamPosition(start.version, 0 if end >= total else end, start.table_id, True)

    def _snapshot_sets(self, position: StreamPosition) -> list[ChangeSet]:
        """Return the whole table at the position's version."""
        if self._snapshot[0] != position.version:
            at = self._catalog.at(position.version)
            table = self._load_table(position.version)
            self._check_columns(table)
            sets = self._reader().read_snapshot(table.definition, at.version, at.info.created_at)
            self._snapshot = (position.version, sets)
        return self._snapshot[1]

    # -- the table and its name

    def _find_name(self, version: int) -> str:
        """Return the table's name at a version. Where the table does not exist, return its last name."""
        name, known = self._known
        if version <= known:
            return name_at(self._catalog, name, version, known)
        with contextlib.suppress(NotFound):
            if self._catalog.at(version).load_table(split_name(name)).id == self._own_id:
                self._known = name, version
                return name
        trail = TableTrail(name, self._own_id)
        for _ in follow(self._catalog, trail, known, version):
            pass
        if trail.exists:
            self._known = trail.name, version
        return trail.name

    def _load_table(self, version: int) -> Table:
        """Return the table at a version. Raises NotFound, or InvalidInput (`table_replaced`), when it does not
        exist."""
        table = self._catalog.at(version).load_table(split_name(self._find_name(version)))
        if table.id != self._own_id:
            raise InvalidInput(
                f"table {table.full_name} was dropped and created again, with id {table.id}; the stream follows id"
                f" {self._own_id}",
                kind="table_replaced",
                hint="start a stream of the new table with a checkpoint of its own",
            )
        return table

    def _check_own(self, position: StreamPosition) -> None:
        if position.table_id not in ("", self._own_id):
            raise InvalidInput(
                f"the checkpoint is for the table of id {position.table_id}; {self._terms.table} has id {self._own_id}",
                kind="table_replaced",
                hint="if the checkpoint's table was renamed, start the query with its new name; if it was dropped,"
                " start the query with a new checkpoint",
            )
        if position.feed not in ("", self._feed):
            raise InvalidInput(
                f"the checkpoint is for a stream of {position.feed}, which delivered {position.files} files of version"
                f" {position.version}; a stream of {self._feed} numbers the files differently",
                version=position.version,
                hint=f"let the query finish that version as a stream of {position.feed}, or use a new checkpoint",
            )

    # -- the log

    def _find_log_end(
        self, start: StreamPosition, max_files: int, max_versions: int | None
    ) -> StreamPosition:
        self._scan(start, max_files, max_versions)
        steps = [step for step in self._steps if step.files > _delivered_files(step, start)]
        taken = 0
        for seen, step in enumerate(steps, 1):
            skipped = _delivered_files(step, start)
            left = step.files - skipped
            if taken + left > max_files:
                return self._position_within(step, skipped + max_files - taken)
            taken += left
            if seen == max_versions or taken == max_files:
                return self._position_after(step, start)
        if steps:
            return self._position_after(steps[-1], start)
        self._check_exists()
        if self._scanned > start.version and self._is_idle():
            return StreamPosition(self._scanned, 0, start.table_id)
        return start

    def _position_after(self, step: VersionStep, start: StreamPosition) -> StreamPosition:
        """Return the position after a step: the head, if the step is the last known one. It is never at a version at
        which the table does not exist."""
        trail = self._trail
        assert trail is not None
        if step.is_last:
            return self._position_within(step, step.files)
        version = step.version
        if step is self._steps[-1]:
            version = self._scanned if trail.exists else trail.dropped_version - 1
        return StreamPosition(version, 0, start.table_id)

    def _position_within(self, step: VersionStep, files: int) -> StreamPosition:
        return StreamPosition(step.version, files, self._own_id, False, step.base, feed=self._feed)

    @property
    def _feed(self) -> str:
        return "changes" if self._terms.changes else "rows"

    def _check_exists(self) -> None:
        trail = self._trail
        if trail is not None and not trail.exists:
            raise NotFound(
                f"table {trail.name} was dropped by version {trail.dropped_version}",
                kind="no_table",
                version=trail.dropped_version,
                hint="undrop the table and start the query again, or end the query",
            )

    def _scan(self, start: StreamPosition, max_files: int, max_versions: int | None) -> None:
        """Extend the window from `start` to the head, or until it holds enough for a batch."""
        self._move_window(start)
        head = self._head()
        self._past = None
        if self._scanned >= head:
            return
        trail = self._trail
        assert trail is not None
        files = sum(step.files for step in self._steps)
        if files > max_files or len(self._steps) > (max_versions or len(self._steps)):
            return
        try:
            with contextlib.closing(follow(self._catalog, trail, self._scanned, head)) as events:
                base = (
                    trail.dropped_version - 1
                    if trail.dropped_version > 0 and not trail.exists
                    else self._scanned
                )
                for event, changes in events:
                    if trail.altered_version == event.version and trail.exists:
                        self._check_columns(
                            self._catalog.at(event.version).load_table(split_name(trail.name))
                        )
                    sets = [
                        each
                        for number, change in enumerate(changes)
                        for each in self._select_sets(change, trail, is_first=number == 0)
                    ]
                    self._scanned = event.version
                    if sets:
                        step = VersionStep(event.version, tuple(sets), base, not trail.exists)
                        self._steps.append(step)
                        files += step.files
                        if files > max_files or (max_versions and len(self._steps) > max_versions):
                            return
                    if trail.exists:
                        base = event.version
            self._scanned = head
            if trail.exists:
                self._known = trail.name, head
        except BaseException:
            self._forget()  # the trail may have taken an event whose step was not stored
            raise

    def _move_window(self, start: StreamPosition) -> None:
        """Let the window begin at `start`, and forget the steps before."""
        begin = start.base if start.files and not start.is_snapshot else start.version
        if self._trail is None or not self._begin <= begin <= self._scanned:
            self._bind(begin)
        if begin > self._begin:
            self._begin = begin
            self._steps = [step for step in self._steps if step.version > begin]

    def _bind(self, begin: int) -> None:
        self._forget()
        former = self._find_name(begin)
        exists = check_same_table(self._catalog.at(begin), former, self._own_id)
        if exists:
            self._check_columns(self._catalog.at(begin).load_table(split_name(former)))
        self._trail = TableTrail(former, self._own_id, exists=exists)
        self._begin = self._scanned = begin

    def _forget(self) -> None:
        self._trail = self._past = None
        self._steps = []

    def _reader(self) -> ChangeReader:
        return ChangeReader(self._storage, self._lists, self._own_id, lambda: starts_of(self._catalog))

    def _select_sets(self, change: RowChange, trail: TableTrail, *, is_first: bool) -> list[ChangeSet]:
        """Return the change sets of one row change that the stream delivers.

        A change feed delivers all. A feed of rows delivers changes that only insert; for one that removed rows, it
        raises InvalidInput or skips the change, as `on_delete` says. `is_first`: the change is the first of its
        version.
        """
        sets = self._reader().read(change)
        if self._terms.changes or all(each.change_type == "insert" for each in sets):
            return sets
        if self._terms.on_delete == "skip":
            return []
        if is_first and change.back_to >= 0:
            if self._past is None:
                self._past = RowHistory(self._catalog, self._own_id, trail.name, change.version)
            if self._past.had_same_rows(change.back_to, change.version - 1):
                return []  # the same rows in other files, from before a compaction
        refuse_removals(sets, 'read with changes=True, or skip such versions with on_delete="skip"')
        raise AssertionError("one of the sets is not an insert")

    def _check_columns(self, table: Table) -> None:
        """Raise InvalidInput when the table's columns, as of a version, differ from those that the query reads."""
        if table.definition.schema_id <= self._started_table.definition.schema_id:
            return  # the columns are not newer than the query
        known = {column.id for column in self._columns}
        now = [column for column in table.columns if self._is_whole or column.id in known]
        if shape_of(now) != shape_of(self._columns):
            raise InvalidInput(
                f"at version {table.version} table {table.full_name} has other columns than the query reads",
                kind="bad_schema",
                version=table.version,
                hint="start the query again with the same checkpoint: it continues with the new columns",
            )

    # -- what a batch contains

    def plan(self, start: StreamPosition, end: StreamPosition) -> list[Slice]:
        """Return the files of a batch, in order. Every call for the same batch returns the same."""
        self._check_own(start)
        self._check_own(end)
        return self._retry(lambda: self._plan(start, end))

    def _plan(self, start: StreamPosition, end: StreamPosition) -> list[Slice]:
        if start == end:
            return []
        try:
            return self._plan_batch(start, end)
        except Expired as error:
            # The batch is repeated, or planned by PySpark 4.1, which asks for the head without saying where to begin.
            self._check_may_restart(error)
            if end.is_snapshot:
                return self._leave_out(error)
            return self._plan_restart(end)

    def _plan_restart(self, end: StreamPosition) -> list[Slice]:
        """Return all rows at `end`; see `_leave_out` where these have expired, too."""
        try:
            if not end.files:
                return _slice_files(self._snapshot_sets(end), 0, 0)
            base = StreamPosition(
                end.base, 0, self._own_id
            )  # all rows there, then the first files of version `end`
            return _slice_files(self._snapshot_sets(base), 0, 0) + self._plan_log(base, end)
        except Expired as error:
            self._forget()
            return self._leave_out(error)

    def _leave_out(self, error: Expired) -> list[Slice]:
        """Return nothing for a batch that cannot be read: the next one, which begins at its end, restarts at the head.

        Raises Expired where the version of the end is kept, and only data files of the table are gone: the next batch
        would go on in the log, and nobody would get the rows of this one.
        """
        if error.kind != "files_expired":
            return []
        raise Expired(
            f"a batch that was begun cannot be repeated: {error.message}",
            kind=error.kind,
            version=error.version,
            oldest=error.oldest,
            hint="start the query with a new checkpoint: it begins with all rows",
        ) from error

    def _plan_batch(self, start: StreamPosition, end: StreamPosition) -> list[Slice]:
        if end.is_snapshot:
            same = start.is_snapshot and start.version == end.version
            return _slice_files(self._snapshot_sets(end), start.files if same else 0, end.files)
        if start.is_begin:
            return self._plan_begin(end)
        rest: list[Slice] = []
        if start.is_snapshot and start.files:
            # PySpark 4.1 asks for the head after a restart, wherever the stream was.
            rest = _slice_files(self._snapshot_sets(start), start.files, 0)
        return rest + self._plan_log(start, end)

    def _plan_begin(self, end: StreamPosition) -> list[Slice]:
        """Return the first batch, which ends at a position of the log. That is where the stream begins, or, with
        PySpark 4.1, which asks for the head first, later."""
        if self._terms.start == "now":
            return []
        if self._terms.start == "snapshot":
            return _slice_files(self._snapshot_sets(end), 0, 0)
        begin = StreamPosition(open_whole(self._catalog, self._terms.start).version, 0, self._own_id)
        if begin.version >= end.version:
            return []
        check_same_table(self._catalog.at(begin.version), self._find_name(begin.version), self._own_id)
        return self._plan_log(begin, end)

    def _plan_log(self, start: StreamPosition, end: StreamPosition) -> list[Slice]:
        self._move_window(start)
        if self._scanned < end.version:
            until, self._until = self._until, end.version
            try:
                self._scan(start, BATCH_FILES_MAX * 1000, None)
            finally:
                self._until = until
        slices = []
        for step in self._steps:
            if step.version > end.version:
                break
            stop = end.files if step.version == end.version else 0
            slices += _slice_files(step.sets, _delivered_files(step, start), stop)
        return slices

    def _watched_events(self) -> tuple[str, dict[str, Any]]:
        assert self._trail is not None
        return self._trail.name, {"names": [split_name(self._trail.name)]}


def check_present_name(table: Table, name: Name) -> None:
    """Raise NotFound when a table that was found by a former name is asked for by that name."""
    asked = parse_name(Kind.TABLE, name).full_name
    if asked != table.full_name:
        raise NotFound(
            f"there is no table {asked}: it is called {table.full_name} now",
            kind="no_table",
            version=table.version,
            hint="use the new name; only a stream that resumes from a checkpoint finds a table by a former name",
        )


def shape_of(columns: Sequence[Column]) -> list[Any]:
    """Return what values the columns hold, by id. Names, order and nullability do not count."""
    return sorted(
        (column.id, column.type, sorted(column.properties.items()), shape_of(column.children()))
        for column in columns
    )


def _delivered_files(step: VersionStep, start: StreamPosition) -> int:
    """Return how many files of a step were delivered before `start`."""
    if step.version == start.version:
        return start.files
    return step.files if step.version < start.version else 0


def _slice_files(sets: Sequence[ChangeSet], start: int, stop: int) -> list[Slice]:
    """Return the files numbered `start` to `stop` (exclusive; 0 means all), counted over all sets."""
    slices = []
    begin = 0
    for each in sets:
        count = len(each.files)
        first, last = max(0, start - begin), min(count, stop - begin) if stop else count
        if first < last:
            slices.append(Slice(each, first, last))
        begin += count
    return slices
