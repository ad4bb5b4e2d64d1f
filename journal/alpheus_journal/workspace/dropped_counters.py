"""How far the counters of dropped tables had got (FORMAT.md, "What operations do").

A column id is given once: data files of any version say by it what they hold. So a table that comes back goes on from
the highest counters that it ever had, under whatever names, and through earlier drops and returns. Counters never go
back, so its last definition has them, which the action that dropped it last names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

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


async def actions_down(told: Callable[[int], Awaitable[Event]], versions: range) -> AsyncIterator[Action]:
    """The recorded actions of descending versions, last first; of a version without any, its differences. Raises what
    reading the version raises."""

    async def outcome_of(version: int) -> Event | AlpheusError:
        try:
            return await told(version)
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


async def counters_of_dropped(
    ids: frozenset[str], actions: AsyncIterator[Action], stored: Stored
) -> dict[str, Counters]:
    """By table id, as the last drop among `actions`, the last of them first, found the table; without those that were
    not dropped. Where that definition is damaged they follow from the one before and what was done to it. Raises
    Corrupt when they do not."""
    search = _Search(ids, stored)
    async for action in actions:
        await search.step(action)
        if search.is_done:
            break
    return search.found


class _Search:
    def __init__(self, ids: frozenset[str], stored: Stored) -> None:
        self._ids = ids
        self._stored = stored
        self._damaged: dict[str, tuple[Operation, ...]] = {}
        """Definitions that a drop found damaged, or that such came from: what was done to them since, last first."""
        self.found: dict[str, Counters] = {}

    @property
    def is_done(self) -> bool:
        return len(self.found) == len(self._ids) and not self._damaged

    async def step(self, action: Action) -> None:
        operation = action.operation
        if isinstance(operation, RenameObject):
            return  # the definition stays, and the table lives on
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
                continue  # no table of before
            if operation is None or not effect.path_before:
                raise Corrupt(
                    f"how many column ids {effect.name} has given away is not known:"
                    f" its last definition {effect.path_after} is damaged",
                    kind="corrupt_definition",
                    path=effect.path_after,
                    hint="restore that file from a copy, or create a new table",
                )
            self._note(effect.name, found[effect.path_before], (*since, operation))
        for count, effect in enumerate(ended):
            self._note(effect.name, found[effect.path_before], ())
            if count % DECODED_AT_ONCE_MAX == DECODED_AT_ONCE_MAX - 1:
                await asyncio.sleep(0)  # of a large cascade

    def _note(self, name: ObjectName, stored: StoredObject, since: tuple[Operation, ...]) -> None:
        try:
            definition = decode_readable(name, stored)
        except InvalidInput:
            return  # of newer software, which this one has not written nor brings back
        if definition is None:
            self._damaged[stored.path] = since
            return
        assert isinstance(definition, TableDef)
        if definition.id in self._ids:
            counters = _after(Counters.of(definition), since)
            self.found[definition.id] = counters.max(self.found.get(definition.id))


def _after(counters: Counters, since: Sequence[Operation]) -> Counters:
    """What recorded operations made of counters, or a little more; `since`: last first."""
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
