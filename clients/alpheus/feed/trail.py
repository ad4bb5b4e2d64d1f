"""What became of a table between two versions: the recorded actions in order (FORMAT.md, "Feeds").

A `Trail` reads events into `RowChange`s, one for each action that changed rows. It follows the table by its id, under
the names that the table has. `alpheus.feed.change_sets` then says of each `RowChange` which rows of which files came or
went. Spark's Parquet reader (`alpheus.spark.streams.frames`) or Python workers (`alpheus.spark.streams.source`) read
those; neither needs more.
"""

from __future__ import annotations

import contextlib
import copy
import heapq
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeGuard

import msgspec

from alpheus.catalog import Catalog, Snapshot
from alpheus.feed.log import read_events
from alpheus.model_conversions import effect_type
from alpheus.models import Table, time_of
from alpheus.session.arguments import Name, When
from alpheus.sync.portal import run
from alpheus_journal import format as fmt
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeMode,
    ChangeRows,
    CreateTable,
    DropTable,
    Operation,
    OverwriteFiles,
    RenameObject,
    RestoreTable,
    Undrop,
    UpdateTable,
)
from alpheus_journal.storage import Storage

_ROWS_KEPT = frozenset(
    {
        "TABLE_ALTER", "TABLE_ALTER_ADD_COLUMNS", "TABLE_ALTER_REMOVE_COLUMNS", "TABLE_EXISTS", "TABLE_DESCRIBE",
        "TABLE_SELECT", "TABLE_COMPACT",
    }
)  # fmt: skip
"""Types of actions that leave the rows as they are, where another writer recorded no operation."""


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One action that changed the rows of a table, or a version that does not say how it did (no transaction).

    `path_before`: the table's definition before it, "" when there was none. `path_after`, of a difference: the one
    whose rows the table then had; `back_to`: the version at which it had had just these, -1 if that is not told.
    `segments`: what an append, overwrite or change of rows brought in. The rest, of a
    change of rows, is what its operation says (`ChangeRows`); `is_update`: of an update.
    """

    version: int
    created_at: datetime
    transaction_id: str | None
    type: Literal["append", "overwrite", "rows", "difference"]
    segments: tuple[Segment, ...] = ()
    path_before: str = ""
    path_after: str = ""
    back_to: int = -1
    removed: tuple[Segment, ...] = ()
    predicates: tuple[bytes, ...] = ()
    hides_up_to: int = 0
    changes: tuple[Segment, ...] = ()
    is_update: bool = False


IdAt = Callable[[str], str]


class Trail:
    """One table's way through the log. Give it every event that concerns the table's names, in order.

    `name` is what the table is called after the events taken. Without `table_id` whatever table has the name is
    followed. `is_there`: whether it exists; `gone_version`: the last version that dropped it. `altered`: the last
    version that may have changed its columns. `id_at`: the table's id in the definition at a path (see `ids_in`);
    without it, a table that comes back is known by the names that it had.
    """

    def __init__(
        self, name: str, table_id: str = "", *, is_there: bool = True, id_at: IdAt | None = None
    ) -> None:
        self.name = name
        self.table_id = table_id
        self.is_there = is_there
        self.gone_version = -1
        self.altered = -1
        self._gone = ""  # the definition with which it was dropped
        self._names = {name}  # all that it had
        self.id_at = id_at

    def copy(self) -> Trail:
        """One that goes its own way from here."""
        found = copy.copy(self)
        found._names = set(self._names)
        return found

    def take(self, event: Event) -> list[RowChange]:
        """What the event did to the table's rows. InvalidInput: `table_replaced` when another table took the name,
        `not_supported` for what left nothing to read it from."""
        found: list[RowChange] = []
        explained = swept = False
        for transaction in event.transactions:
            for action in transaction.actions:
                is_of_namespace = action.name.kind is Kind.NAMESPACE
                if action.name.kind is Kind.TABLE and (
                    isinstance(action.operation, Undrop) or action.name.full_name in self._names
                ):
                    explained |= self._act(event, transaction.id, action, found)
                if is_of_namespace and isinstance(action.operation, Undrop) and not self.is_there:
                    self._look_in(event)
                for effect in action.also:
                    if effect.name.full_name != self.name:
                        continue
                    if not is_of_namespace and effect.name.kind is Kind.TABLE:
                        # Another table that takes the name; or a view that binds to this one, or no longer does, which
                        # is written into the table's definition.
                        explained |= action.name.kind is Kind.TABLE or effect_type(effect) == "updated"
                    # With its namespace a table goes and comes back, without its rows being told.
                    swept |= is_of_namespace
        if swept:
            found.clear()
        if swept or not explained:
            self._differ(event, found)
        return found

    def _act(self, event: Event, transaction_id: str, action: Action, found: list[RowChange]) -> bool:
        """Take in an action on a table; False when it concerns another table."""
        operation, before, after = action.operation, action.path_before, action.path_after
        if isinstance(operation, Undrop):
            if self.is_there or not self._is_back(operation, after):
                return False
            self._called(action.name.full_name)
            self._back(event, transaction_id, self._gone, after, found, operation.version)
            return True
        if action.name.full_name != self.name:
            return False
        if not self.is_there and not _creates(action):
            return True  # of another one that has the name meanwhile
        match operation:
            case RenameObject():
                self._called(operation.new_target.full_name)
            case DropTable():
                self._dropped(event.version, before)
            case CreateTable():
                self.is_there = self.is_there or not self.table_id or operation.table_id == self.table_id
            case UpdateTable():
                self.altered = event.version
            case ChangeRows(mode=ChangeMode.COMPACT):
                pass
            case AppendFiles() | OverwriteFiles() | ChangeRows():
                self._check_id(event.version, operation.table_id)
                found.append(_row_change(event, transaction_id, operation, before))
            case RestoreTable():
                self._back(event, transaction_id, before, after, found, operation.version)
            case None:
                self._act_by_type(event, transaction_id, action, found)
            case _:
                self._back(event, transaction_id, before, after, found, -1)
        return True

    def _act_by_type(self, event: Event, transaction_id: str, action: Action, found: list[RowChange]) -> None:
        """Take in an action of another writer, of which nothing but its type and its paths can be read."""
        if action.type == "TABLE_DROP":
            self._dropped(event.version, action.path_before)
        elif action.type == "TABLE_CREATE":
            self.is_there = self.is_there or not self.table_id
        elif action.type not in _ROWS_KEPT:
            self._back(event, transaction_id, action.path_before, action.path_after, found, -1)
        elif action.type.startswith("TABLE_ALTER"):
            self.altered = event.version

    def _is_back(self, undrop: Undrop, path: str) -> bool:
        """Whether it is this table that comes back: under any of its names, at any of its versions."""
        if self.id_at is None or not self.table_id or not path:
            return undrop.source.full_name in self._names
        return self.id_at(path) == self.table_id

    def _look_in(self, event: Event) -> None:
        """Whether the table came back with a namespace that is called otherwise."""
        if self.id_at is None or not self.table_id:
            return
        for changed in event.changes:
            if (
                changed.name.kind is Kind.TABLE
                and changed.path_after
                and self.id_at(changed.path_after) == self.table_id
            ):
                self._called(changed.name.full_name)

    def _called(self, name: str) -> None:
        self.name = name
        self._names.add(name)

    def _check_id(self, version: int, table_id: str) -> None:
        if self.table_id and table_id != self.table_id:
            raise InvalidInput(
                f"at version {version} table {self.name} is another one, of id {table_id}; this was {self.table_id}",
                kind="table_replaced",
                version=version,
                hint="a feed follows one table: begin where the one of today was made, or start the stream anew",
            )

    def _differ(self, event: Event, found: list[RowChange]) -> None:
        """A version that changed the table without an action on it: its definitions tell."""
        transaction_id = event.transactions[0].id if len(event.transactions) == 1 else None
        operations = [action.operation for each in event.transactions for action in each.actions]
        version = -1
        if len(operations) == 1 and _is_namespace_undrop(operations[0]):
            version = operations[0].version
        for changed in event.changes:
            if changed.name.kind is not Kind.TABLE or changed.name.full_name != self.name:
                continue
            if changed.type == "dropped":
                self._dropped(event.version, changed.path_before)
            else:
                before = changed.path_before or self._gone
                self._back(event, transaction_id, before, changed.path_after, found, version)

    def _dropped(self, version: int, path: str) -> None:
        self.is_there, self.gone_version, self._gone = False, version, path

    def _back(
        self,
        event: Event,
        transaction_id: str | None,
        before: str,
        after: str,
        found: list[RowChange],
        version: int,
    ) -> None:
        """The table has another state, with all that belongs to it: as of `version`, if that is told."""
        if not after:
            raise InvalidInput(
                f"version {event.version} changed table {self.name} without saying how",
                kind="not_supported",
                version=event.version,
                hint="read the table as a whole: full_refresh of a job, a new checkpoint of a stream",
            )
        self.is_there, self.altered = True, event.version
        found.append(
            RowChange(
                version=event.version,
                created_at=time_of(event.created_at_millis),
                transaction_id=transaction_id,
                type="difference",
                path_before=before,
                path_after=after,
                back_to=version,
            )
        )


def _row_change(
    event: Event, transaction_id: str, operation: AppendFiles | OverwriteFiles | ChangeRows, path_before: str
) -> RowChange:
    common = RowChange(
        version=event.version,
        created_at=time_of(event.created_at_millis),
        transaction_id=transaction_id,
        type="overwrite" if isinstance(operation, OverwriteFiles) else "append",
        segments=operation.segments,
        path_before=path_before,
    )
    if not isinstance(operation, ChangeRows):
        return common
    return msgspec.structs.replace(
        common,
        type="rows",
        removed=operation.removed,
        predicates=operation.predicates,
        hides_up_to=operation.hides_up_to,
        changes=operation.changes,
        is_update=operation.mode is ChangeMode.UPDATE,
    )


def _creates(action: Action) -> bool:
    return isinstance(action.operation, CreateTable) or (
        action.operation is None and action.type == "TABLE_CREATE"
    )


def _is_namespace_undrop(operation: Operation | None) -> TypeGuard[Undrop]:
    return isinstance(operation, Undrop) and operation.kind is Kind.NAMESPACE


def follow(
    catalog: Catalog, trail: Trail, after: int, until: int
) -> Generator[tuple[Event, list[RowChange]], None, None]:
    """Events of (after, until] on the trail's table, under all its names, and what each changed in its rows.

    Raises what `Trail.take` does, and Expired when history in between is gone.
    """
    if trail.id_at is None:
        trail.id_at = ids_in(catalog)
    while after < until:
        name, was_there = trail.name, trail.is_there
        wanted: dict[str, Any] = {"names": [pair(name)]}
        if not was_there:  # it may come back under any name
            wanted = {"kinds": ["table", "namespace"], "actions": _BRING_BACK}
        with read_events(catalog, after=after, until=until, **wanted) as events:
            for event in events:
                after = event.version
                yield event, trail.take(event)
                if (trail.name, trail.is_there) != (name, was_there):
                    break  # go on with what it is now
            else:
                return


_BRING_BACK = ("TABLE_UNDROP", "NAMESPACE_UNDROP", "TABLE_CREATE", "TABLE_REGISTER", "TABLE_RENAME")


def pair(name: str) -> tuple[str, str]:
    """A name that is never taken for a pattern."""
    namespace, _, last = name.rpartition(".")
    return namespace, last


def ids_in(catalog: Catalog) -> IdAt:
    """For a `Trail`. Reads the definition."""
    return lambda path: load_definition(catalog.storage(), path).id


def name_at(catalog: Catalog, name: str, after: int, until: int) -> str:
    """What the table that is called `name` at version `until` was called at `after`, as far as the log tells. Where it
    was not there, some name that it had: a `Trail` that is told so knows it by its id."""
    for former in names_before(catalog, name, after, until):
        name = former
    return name


def names_before(catalog: Catalog, name: str, after: int, until: int) -> Iterator[str]:
    """What the table that is called `name` at version `until` was called before that, going back to `after`."""
    if after >= until:
        return
    with read_events(
        catalog, after=after, until=until, kinds=["table", "namespace"], actions=_MOVES
    ) as events:
        found = list(events)
    id_at = ids_in(catalog)
    sought = ""  # id of the table, going back over the time in which it was dropped
    for event in reversed(found):
        actions = [action for transaction in event.transactions for action in transaction.actions]
        for action in reversed(actions):
            if sought:
                former = _dropped_as(event, action, sought, id_at)
                if former:
                    name, until, sought = former, event.version, ""
                    yield name
            if event.version > until:
                continue  # while it was dropped
            match action.operation:
                case RenameObject(kind=Kind.TABLE) as rename if rename.new_target.full_name == name:
                    name = action.name.full_name
                    yield name
                case Undrop(kind=Kind.TABLE) as undrop if action.name.full_name == name:
                    sought = id_at(action.path_after)
                    name, until = undrop.source.full_name, undrop.version
                    yield name
                case Undrop(kind=Kind.NAMESPACE) as undrop:
                    back = [
                        each.path_after
                        for each in event.changes
                        if each.name.kind is Kind.TABLE and each.name.full_name == name
                    ]
                    if back and back[0]:
                        sought, until = id_at(back[0]), undrop.version


_MOVES = ("TABLE_RENAME", "TABLE_UNDROP", "TABLE_DROP", "NAMESPACE_DROP", "NAMESPACE_UNDROP")


def _dropped_as(event: Event, action: Action, table_id: str, id_at: IdAt) -> str:
    """What the table was called when the action dropped it; "" when it did not."""
    if action.type == "TABLE_DROP":
        path = action.path_before
        return action.name.full_name if path and id_at(path) == table_id else ""
    if action.type == "NAMESPACE_DROP":
        for changed in event.changes:
            if (
                changed.name.kind is Kind.TABLE
                and changed.type == "dropped"
                and id_at(changed.path_before) == table_id
            ):
                return changed.name.full_name
    return ""


def moved(catalog: Catalog, name: Name) -> Table | None:
    """The table that was called `name` last, under the name that it has now; None: it is gone, or history is."""
    head = catalog.version()
    with catalog.log(name=name, until=head) as entries:
        last = next(iter(entries), None)
    # What took the name away says so itself, and was the last to act on it; or it went with its namespace, later.
    for version in () if last is None else (last.version, last.version - 1):
        with contextlib.suppress(NotFound, Expired):
            then = catalog.at(version).load_table(name)
            trail = Trail(then.full_name, then.id)
            for _ in follow(catalog, trail, version, head):
                pass
            return catalog.at(head).load_table(pair(trail.name)) if trail.is_there else None
    return None


_Kept = tuple["_Kept", RowChange] | None
"""A list that shares its beginning with others."""


def lasting(changes: Sequence[RowChange], begin: int, is_as_begun: Callable[[int], bool]) -> list[RowChange]:
    """The changes after version `begin` without those that a later one took back: with the state of a version the
    table has what had come by then. `is_as_begun`: whether its rows at an older version were those of `begin`; a state
    of before that with other rows is a change itself."""
    kept: _Kept = None
    then: list[tuple[int, _Kept]] = [(begin, None)]  # what was kept as of each version
    for change in changes:
        if change.type != "difference" or change.back_to < 0:
            kept = kept, change
        elif change.back_to >= begin:
            kept = then[bisect_right(then, change.back_to, key=lambda one: one[0]) - 1][1]
        else:
            kept = None if is_as_begun(change.back_to) else (kept, change)
        then.append((change.version, kept))
    found = []
    while kept is not None:
        kept, change = kept
        found.append(change)
    return found[::-1]


class Past:
    """At which versions one table, called `name` at version `named`, had the same rows, as its recorded actions tell.
    Reads no part of the log twice, whatever goes back to what."""

    def __init__(self, catalog: Catalog, table_id: str, name: str, named: int) -> None:
        self._catalog = catalog
        self._table_id = table_id
        self._name, self._named = name, named
        self._low = self._high = -1  # what is read: (low, high]
        self._floor = 0  # nothing below is kept, or can be followed from there
        self._trail: Trail | None = None  # at `high`
        self._changes: list[
            tuple[int, int]
        ] = []  # version, and to which it went back or -1: what is read, in order
        self._backs: list[int] = []  # a heap of those below `low`
        self._states: list[
            tuple[int, int]
        ] = []  # from which version on it was in which state; of the first changes
        self._folded = 0

    def same(self, older: int, newer: int) -> bool:
        """Whether the table, which was there at `older`, had just the same rows at `newer`. False where that is not
        kept. Calls with a `newer` above all before are cheap one after the other."""
        self._reach_up(newer)
        self._reach_down(older)
        while self._backs and self._backs[0] < self._low:
            self._reach_down(heapq.heappop(self._backs))
        self._backs.clear()
        self._fold()
        return older >= self._low and newer <= self._high and self._state(older) == self._state(newer)

    def _reach_up(self, newer: int) -> None:
        if self._trail is None:
            self._low = self._high = newer
            self._states = [(newer, 0)]
        elif newer > self._high:
            trail = self._trail.copy()
            with contextlib.suppress(Expired, InvalidInput):
                self._changes += self._followed(trail, self._high, newer)
                self._trail, self._high = trail, newer

    def _reach_down(self, older: int) -> None:
        if not self._floor <= older < self._low:
            return
        try:
            name = name_at(self._catalog, self._name, older, self._named)
            if not check_same_table(self._catalog.at(older), name, self._table_id):
                raise InvalidInput(f"the log does not tell what table {self._name} was called at {older}")
            trail = Trail(name, self._table_id)
            found = self._followed(trail, older, self._low)
        except Expired as error:
            self._floor = max(older + 1, error.oldest or 0)
        except InvalidInput as error:
            self._floor = max(older + 1, error.version or 0)
        else:
            self._changes = found + self._changes
            self._trail = self._trail or trail
            self._name, self._named, self._low = name, older, older
            self._states, self._folded = [(older, 0)], 0

    def _followed(self, trail: Trail, after: int, until: int) -> list[tuple[int, int]]:
        steps = follow(self._catalog, trail, after, until)
        changes = [change for _, found in steps for change in found]
        backs = [change.back_to if change.type == "difference" else -1 for change in changes]
        for back in backs:
            if back >= 0:
                heapq.heappush(self._backs, back)
        return [(change.version, back) for change, back in zip(changes, backs, strict=True)]

    def _fold(self) -> None:
        """A state has a number of its own, one of before `low`, where it is not known what that was, that version."""
        for number in range(self._folded, len(self._changes)):
            version, back = self._changes[number]
            state = number + 1
            if back >= 0:
                state = self._state(back) if back >= self._low else -1 - back
            self._states.append((version, state))
        self._folded = len(self._changes)

    def _state(self, version: int) -> int:
        return self._states[bisect_right(self._states, version, key=lambda one: one[0]) - 1][1]


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed of one table is asked for: `table` at `until`, called `name` at `after`, if it was there."""

    table: Table
    name: str
    is_there: bool
    after: int
    until: int

    def trail(self) -> Trail:
        return Trail(self.name, self.table.id, is_there=self.is_there)


def range_of(catalog: Catalog, name: Name, after: When, until: When) -> Range:
    """The versions that a user named, and the table there. `after` None: all that is kept; `until` None: the head.

    Raises NotFound (`no_version`, `no_table`), Expired with the oldest version, InvalidInput (`bad_argument` for a
    range that ends before it begins, `table_replaced` when another table had the name at `after`).
    """
    last = catalog.at(until)
    first = None if after is None else catalog.at(after)
    if first is not None and first.version > last.version:  # whether or not the table is at either
        raise InvalidInput(
            f"the range is reversed: after={after!r} is version {first.version}, later than {last.version}, to which"
            f" until={until!r} comes",
            hint="changes are those of versions above after, up to until",
        )
    table = last.load_table(name)
    if table.format != "native":
        raise InvalidInput("an Iceberg table is read through Iceberg", kind="not_native")
    if first is None:
        return _since_creation(catalog, table, last.version)
    former = name_at(catalog, table.full_name, first.version, last.version)
    is_there = check_same_table(first, former, table.id)
    return Range(table=table, name=former, is_there=is_there, after=first.version, until=last.version)


def check_same_table(snapshot: Snapshot, name: str, table_id: str) -> bool:
    """Whether the table is there. InvalidInput (`table_replaced`) when another one has its name."""
    try:
        found = snapshot.load_table(pair(name))
    except NotFound:
        return False
    if found.id != table_id:
        raise InvalidInput(
            f"at version {snapshot.version} table {name} was another one, of id {found.id}, which was dropped since",
            kind="table_replaced",
            version=snapshot.version,
            hint="begin at the version that made the one of today; its log tells",
        )
    return True


def _since_creation(catalog: Catalog, table: Table, until: int) -> Range:
    oldest = catalog.info().oldest_version
    former = name_at(catalog, table.full_name, oldest, until)
    try:
        found = catalog.at(oldest).load_table(pair(former))
    except NotFound:
        return Range(table=table, name=former, is_there=False, after=oldest, until=until)
    raise Expired(
        f"what became of table {found.full_name} before version {oldest} is not kept",
        version=oldest,
        oldest=oldest,
        hint=f"read it at version {oldest}, and its changes after that",
    )


def load_definition(storage: Storage, pointer: str) -> TableDef:
    path = fmt.check_definition_pointer(pointer, Kind.TABLE)
    data = run(storage.read(path, size_max=fmt.DEFINITION_SIZE_BYTES_MAX))
    definition = decode_definition(Kind.TABLE, data, path)
    assert isinstance(definition, TableDef)
    return definition
