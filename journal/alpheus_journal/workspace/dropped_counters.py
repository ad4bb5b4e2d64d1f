"""The last counters of dropped tables (FORMAT.md, "What operations do").

A column id is assigned only once, because the data files of every version name their columns by id. So an undropped
table continues from the highest counters that it ever had, under any name, and through earlier drops and undrops.
Counters never decrease. So the table's last definition has the highest ones, and the last action that dropped the table
names this definition. Where the versions back to that drop have expired, the search does not find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

from alpheus_journal.conflicts.rules import recorded_of_changes
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Event, StoredObject
from alpheus_journal.model.definitions import TableDef, walk_columns
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    CreateTable,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    RestoreTable,
    UpdateTable,
)
from alpheus_journal.workspace.workspace import Counters, decode_readable

VERSIONS_READ_AT_ONCE_MAX = 16
DECODED_AT_ONCE_MAX = 100

Stored = Callable[[Mapping[str, Kind]], Awaitable[Mapping[str, StoredObject]]]


async def actions_down(
    read_event: Callable[[int], Awaitable[Event]], versions: range
) -> AsyncGenerator[Action, None]:
    """Yield the recorded actions of descending versions, the last action first.

    A version without recorded actions yields its differences. Raises the error of reading a version.
    """

    async def outcome_of(version: int) -> Event | AlpheusError:
        try:
            return await read_event(version)
        except AlpheusError as error:
            return error

    start, count = 0, 1
    while start < len(versions):
        async with asyncio.TaskGroup() as tasks:
            batch = [tasks.create_task(outcome_of(v)) for v in versions[start : start + count]]
        for task in batch:
            event = task.result()
            if isinstance(event, AlpheusError):
                raise event
            for recorded in reversed(event.transactions or (recorded_of_changes(event),)):
                for action in reversed(recorded.actions):
                    yield action
        start, count = start + count, min(2 * count, VERSIONS_READ_AT_ONCE_MAX)


class Search:
    """The search for the counters of dropped tables by table id, as the last drop of each table found them."""

    def __init__(self, ids: frozenset[str], stored: Stored) -> None:
        self._ids = ids
        self._stored = stored
        self._damaged: dict[str, tuple[Operation, ...]] = {}
        """The operations since, last first, by the path of a definition that a drop found damaged or that precedes a
        damaged one."""
        self.found: dict[str, Counters] = {}

    @property
    def missing(self) -> frozenset[str]:
        """The tables whose counters are not found, or may be higher than those that are found."""
        return self._ids if self._damaged else self._ids - self.found.keys()

    async def run(self, actions: AsyncIterator[Action]) -> None:
        """Look through `actions`, which come last first, until nothing is missing.

        Tables that were not dropped stay missing. Where the last definition is damaged, the counters follow from the
        definition before it and the operations since. Raises Corrupt where that is impossible, and the errors of
        reading actions.
        """
        async for action in actions:
            await self._step(action)
            if len(self.found) == len(self._ids) and not self._damaged:
                break

    async def _step(self, action: Action) -> None:
        operation = action.operation
        if isinstance(operation, RenameObject):
            return  # the table continues with the same definition
        tables = [effect for effect in action.effects if effect.name.kind is Kind.TABLE]
        came = [effect for effect in tables if effect.path_after in self._damaged]
        ended = [effect for effect in tables if effect.path_before and not effect.path_after]
        wanted = {effect.path_before: effect.name for effect in came + ended if effect.path_before}
        if not wanted and not came:
            return
        found = await self._stored(dict.fromkeys(wanted, Kind.TABLE))
        for effect in came:
            since = self._damaged.pop(effect.path_after)
            if isinstance(operation, CreateTable | RegisterTable):
                continue  # the table did not exist before
            if operation is None or not effect.path_before:
                raise Corrupt(
                    f"it is not known how many column ids {effect.name} has assigned:"
                    f" its last definition {effect.path_after} is damaged",
                    kind="corrupt_definition",
                    path=effect.path_after,
                    hint="restore the damaged file from a copy, or create a new table",
                )
            self._note(effect.name, found[effect.path_before], (*since, operation))
        for count, effect in enumerate(ended):
            self._note(effect.name, found[effect.path_before], ())
            if count % DECODED_AT_ONCE_MAX == DECODED_AT_ONCE_MAX - 1:
                await asyncio.sleep(0)  # a large cascade shares the event loop

    def _note(self, name: ObjectName, stored: StoredObject, since: tuple[Operation, ...]) -> None:
        try:
            definition = decode_readable(name, stored)
        except InvalidInput:
            return  # newer software wrote this definition; this release neither writes nor undrops such a table
        if definition is None:
            self._damaged[stored.path] = since
            return
        assert isinstance(definition, TableDef)
        if definition.id in self._ids:
            counters = _after(Counters.of(definition), since)
            self.found[definition.id] = counters.max(self.found.get(definition.id))


def _after(counters: Counters, since: Sequence[Operation]) -> Counters:
    """Return the counters after recorded operations, or slightly higher ones. `since` has the last operation first."""
    for operation in reversed(since):
        column_id, sequence, schema_id = counters.next_column_id, counters.sequence, counters.schema_id
        match operation:
            case AppendFiles() | OverwriteFiles() | ChangeRows():
                sequence += 1
            case RestoreTable():
                sequence, schema_id = sequence + 1, schema_id + 1
            case UpdateTable() if operation.changes_columns:
                schema_id += 1
                added = walk_columns(add.column for add in operation.add_columns)
                column_id = max([column_id, *(column.id + 1 for column in added)])
        counters = Counters(next_column_id=column_id, sequence=sequence, schema_id=schema_id)
    return counters
