"""One event's way into row changes: what the recorded actions did to one table (FORMAT.md, "Feeds").

A `TableTrail` reads events into `RowChange`s, one for each action that changed rows. It follows the table by its id,
under every name that the table has. `TableTrail.take` tells the reading of one event from top to bottom.
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
"""Action types that leave the rows unchanged. Only read where another writer recorded no operation."""


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One action that changed the rows of a table, or a version that changed them without saying how.

    - `type`: "append", "overwrite" and "rows" (an operation `ChangeRows`) say what happened. "difference" means that
      the rows of two definitions have to be compared.
    - `transaction_id`: None for a version whose change belongs to no single transaction.
    - `segments`: the files that an append, overwrite or change of rows added.
    - `path_before`: the table's definition before the action, "" when there was none.
    - `path_after`: for a difference, the definition with the new rows.
    - `back_to`: for a difference, the version whose rows the table got back, -1 if that is not recorded.
    - `is_update`: whether a change of rows is an update. The other fields are those of its `ChangeRows`.
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
"""Returns the table id in the definition at a path."""


class TableTrail:
    """One table's way through the log. Give it every event that concerns the table's names, in order.

    - `name`: the table's name after the events that were taken.
    - `table_id`: the table to follow. Without an id the trail follows whatever table has the name.
    - `exists`: whether the table exists after these events.
    - `dropped_version`: the last version that dropped the table, -1 if none did.
    - `altered_version`: the last version that may have changed the table's columns, -1 if none did.
    - `id_at`: see `id_reader`. Without it, a table that is undropped is recognised by its former names.
    """

    def __init__(
        self, name: str, table_id: str = "", *, exists: bool = True, id_at: IdAt | None = None
    ) -> None:
        self.name = name
        self.table_id = table_id
        self.exists = exists
        self.dropped_version = -1
        self.altered_version = -1
        self.id_at = id_at
        self._dropped_path = ""  # the definition with which the table was dropped
        self._names = {name}  # every name that the table has had

    def copy(self) -> TableTrail:
        """Return an independent trail that begins where this one is."""
        found = copy.copy(self)
        found._names = set(self._names)
        return found

    def take(self, event: Event) -> list[RowChange]:
        """Move past an event, and return what it did to the table's rows, in order.

        1. Each action on the table is read by its operation, or by its type where its writer recorded no operation.
        2. An undropped namespace may bring the table back under another name.
        3. An action on something else may change the table as a side effect. If no action explains the event, or the
           table was dropped or brought back with its namespace, the definitions before and after are compared.

        Raises InvalidInput: `table_replaced` when another table has the name now, `not_supported` for a version after
        which there is nothing to read the rows from.
        """
        changes: list[RowChange] = []
        is_explained = is_with_namespace = False
        for transaction in event.transactions:
            for action in transaction.actions:
                done = self._read_action(event, transaction.id, action)
                if done is not None:
                    changes += done
                    is_explained = True
                if action.name.kind is Kind.NAMESPACE:
                    if isinstance(action.operation, Undrop) and not self.exists:
                        self._find_after_undrop(event)
                    is_with_namespace |= any(each.name.full_name == self.name for each in action.also)
                else:
                    is_explained |= self._explains_effect(action)
        if is_with_namespace or not is_explained:
            return self._compare_definitions(event)
        return changes

    def _read_action(self, event: Event, transaction_id: str, action: Action) -> list[RowChange] | None:
        """Return what an action on a table did to the rows of this one. Return None when the action does not concern
        this table."""
        if action.name.kind is not Kind.TABLE:
            return None
        operation, before, after = action.operation, action.path_before, action.path_after
        if isinstance(operation, Undrop):
            if self.exists or not self._is_undropped(operation, after):
                return None
            self._set_name(action.name.full_name)
            return self._replace_rows(event, transaction_id, self._dropped_path, after, operation.version)
        if action.name.full_name != self.name:
            return None
        if not self.exists and not _creates_table(action):
            return []  # another table has the name meanwhile
        match operation:
            case RenameObject():
                self._set_name(operation.new_target.full_name)
            case DropTable():
                self._note_drop(event.version, before)
            case CreateTable():
                self.exists = self.exists or not self.table_id or operation.table_id == self.table_id
            case UpdateTable():
                self.altered_version = event.version
            case ChangeRows(mode=ChangeMode.COMPACT):
                pass
            case AppendFiles() | OverwriteFiles() | ChangeRows():
                self._check_id(event.version, operation.table_id)
                return [_row_change_of(event, transaction_id, operation, before)]
            case RestoreTable():
                return self._replace_rows(event, transaction_id, before, after, operation.version)
            case None:
                return self._read_action_type(event, transaction_id, action)
            case _:
                return self._replace_rows(event, transaction_id, before, after, -1)
        return []

    def _read_action_type(self, event: Event, transaction_id: str, action: Action) -> list[RowChange]:
        """Read an action of another writer, which recorded only a type and paths."""
        if action.type == "TABLE_DROP":
            self._note_drop(event.version, action.path_before)
        elif action.type == "TABLE_CREATE":
            self.exists = self.exists or not self.table_id
        elif action.type not in _ROWS_KEPT:
            return self._replace_rows(event, transaction_id, action.path_before, action.path_after, -1)
        elif action.type.startswith("TABLE_ALTER"):
            self.altered_version = event.version
        return []

    def _explains_effect(self, action: Action) -> bool:
        """Return whether the action changed this table as a side effect that leaves its rows alone: another table took
        the name, or a view began or ceased to refer to the table."""
        return any(
            action.name.kind is Kind.TABLE or effect_type(effect) == "updated"
            for effect in action.also
            if effect.name.kind is Kind.TABLE and effect.name.full_name == self.name
        )

    def _is_undropped(self, undrop: Undrop, path: str) -> bool:
        """Return whether this table is the one that comes back, from any of its versions and under any of its names."""
        if self.id_at is None or not self.table_id or not path:
            return undrop.source.full_name in self._names
        return self.id_at(path) == self.table_id

    def _find_after_undrop(self, event: Event) -> None:
        """Find the table's name when it came back with a namespace, which may have another name now."""
        if self.id_at is None or not self.table_id:
            return
        for changed in event.changes:
            if (
                changed.name.kind is Kind.TABLE
                and changed.path_after
                and self.id_at(changed.path_after) == self.table_id
            ):
                self._set_name(changed.name.full_name)

    def _set_name(self, name: str) -> None:
        self.name = name
        self._names.add(name)

    def _check_id(self, version: int, table_id: str) -> None:
        if self.table_id and table_id != self.table_id:
            raise InvalidInput(
                f"at version {version} table {self.name} has id {table_id}; the feed follows id {self.table_id}",
                kind="table_replaced",
                version=version,
                hint="begin the feed at the version that created the present table, or restart the stream with a"
                " new checkpoint",
            )

    def _compare_definitions(self, event: Event) -> list[RowChange]:
        """Return the change of a version that no action explains, from the table's definitions before and after."""
        transaction_id = event.transactions[0].id if len(event.transactions) == 1 else None
        operations = [action.operation for each in event.transactions for action in each.actions]
        back_to = -1
        if len(operations) == 1 and _is_namespace_undrop(operations[0]):
            back_to = operations[0].version
        found: list[RowChange] = []
        for changed in event.changes:
            if changed.name.kind is not Kind.TABLE or changed.name.full_name != self.name:
                continue
            if changed.type == "dropped":
                self._note_drop(event.version, changed.path_before)
            else:
                before = changed.path_before or self._dropped_path
                found += self._replace_rows(event, transaction_id, before, changed.path_after, back_to)
        return found

    def _note_drop(self, version: int, path: str) -> None:
        self.exists, self.dropped_version, self._dropped_path = False, version, path

    def _replace_rows(
        self, event: Event, transaction_id: str | None, before: str, after: str, back_to: int
    ) -> list[RowChange]:
        """Return a difference: the table has other rows, and perhaps other columns. See `RowChange` for `back_to`."""
        if not after:
            raise InvalidInput(
                f"version {event.version} changed table {self.name} and does not record how",
                kind="not_supported",
                version=event.version,
                hint="read the whole table: run the job with full_refresh, or give the stream a new checkpoint",
            )
        self.exists, self.altered_version = True, event.version
        return [
            RowChange(
                version=event.version,
                created_at=time_of(event.created_at_millis),
                transaction_id=transaction_id,
                type="difference",
                path_before=before,
                path_after=after,
                back_to=back_to,
            )
        ]


def _row_change_of(
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


def _creates_table(action: Action) -> bool:
    return isinstance(action.operation, CreateTable) or (
        action.operation is None and action.type == "TABLE_CREATE"
    )


def _is_namespace_undrop(operation: Operation | None) -> TypeGuard[Undrop]:
    return isinstance(operation, Undrop) and operation.kind is Kind.NAMESPACE
