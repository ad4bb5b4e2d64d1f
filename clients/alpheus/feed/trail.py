"""What became of a table between two versions: the recorded actions in order (FORMAT.md, "Feeds").

A `Trail` reads events into `RowChange`s, one for each action that changed rows. It follows the table by its id, under
the names that the table has. `alpheus.feed.change_sets` then says of each `RowChange` which rows of which files came or
went. Spark's Parquet reader (`alpheus.spark.streams.frames`) or Python workers (`alpheus.spark.streams.source`) read
those; neither needs more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeGuard

import msgspec

from alpheus.model_conversions import effect_type
from alpheus.models import time_of
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event
from alpheus_journal.model.definitions import Segment
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
