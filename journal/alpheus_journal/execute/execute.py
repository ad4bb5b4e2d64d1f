"""Executing operations: a pure function from what stands and what is asked to definitions and actions.

`execute` reads a `Workspace` (objects fetched beforehand, `alpheus_journal.execute.prefetch`) and either raises what
the client is told or returns the new definitions and the action. Rebase is executing again on a newer workspace; replay
checks and a transaction's view of its own writes run the same code. `EXECUTE_RULES` says which function executes an
operation, and so in which module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import InvalidInput
from alpheus_journal.execute import (
    catalog,
    lifecycle,
    pipelines,
    rows,
    subscriptions,
    tables,
    views,
)
from alpheus_journal.execute.rows import count_changed_rows
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import (
    TableDef,
)
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Repair,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.workspace.checks import check_properties, check_text, count_rows_between, typed
from alpheus_journal.workspace.context import (
    OFFLOADED_SIZE_BYTES_MIN,
    Context,
    Executed,
    Execution,
    ExecutionContext,
)
from alpheus_journal.workspace.execute_rule import ExecuteRules, Stepwise
from alpheus_journal.workspace.workspace import Workspace, decode_readable

OPERATIONS_MAX = 10_000
WIDE_OPERATIONS_MAX = 100
"""Of one transaction, that each may concern thousands of objects."""


def check_transaction(
    transaction: Transaction, now_millis: int, *, may_be_empty: bool = False, may_repair: bool = False
) -> None:
    """What can be refused without reading the catalog. Raises InvalidInput."""
    if not fmt.is_uuid(transaction.id) or transaction.id[14] != "7":
        raise InvalidInput(f"transaction id {transaction.id[:80]!r} is no version 7 uuid", hint="lower case")
    if uuid7_millis(transaction.id) > now_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} was made more than a minute in the future",
            kind="clock_skew",
            hint="set the clocks of this machine and of the catalog's writers",
        )
    if not transaction.operations and not may_be_empty:
        raise InvalidInput(f"transaction {transaction.id} holds no operation")
    if len(transaction.operations) > OPERATIONS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} holds {len(transaction.operations)} operations,"
            f" {OPERATIONS_MAX} at most",
            kind="too_large",
            hint="split it into several transactions",
        )
    wide = 0
    for o in transaction.operations:
        if isinstance(o, Undrop) or (isinstance(o, DropNamespace) and o.cascade):
            wide += 1
    if wide > WIDE_OPERATIONS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} drops namespaces with all inside, or undrops, {wide} times,"
            f" {WIDE_OPERATIONS_MAX} at most",
            kind="too_large",
            hint="split it into several transactions",
        )
    if not may_repair and any(isinstance(o, Repair) for o in transaction.operations):
        raise InvalidInput(
            f"transaction {transaction.id} holds a repair, which clients may not ask for",
            kind="not_supported",
            hint="alpheus repair, on the storage",
        )
    if transaction.begin_version < 0:
        raise InvalidInput(f"begin version {transaction.begin_version} is negative", kind="bad_version")
    for what, text in (("message", transaction.message), ("principal", transaction.principal)):
        check_text(text, what)
    check_properties(transaction.properties, "transaction properties")


def tables_written(operations: Iterable[Operation]) -> frozenset[str]:
    """Ids of the tables for which operations bring files."""
    return frozenset(
        [o.table_id for o in operations if isinstance(o, AppendFiles | OverwriteFiles | ChangeRows)]
    )


def brings_back(transaction: Transaction) -> bool:
    """Whether what it names may be another object than at its begin version."""
    return any(isinstance(operation, Undrop) for operation in transaction.operations)


def context_of(
    transaction: Transaction, keys: fmt.Keys, uuid4: Callable[[], str], version: int
) -> ExecutionContext:
    """`version`: the one that is being made."""
    return ExecutionContext(
        keys,
        transaction.id,
        uuid4,
        writes=tables_written(transaction.operations),
        writer=transaction.writer,
        version=version,
        begin_version=-1 if brings_back(transaction) else transaction.begin_version,
    )


EXECUTE_RULES: ExecuteRules = {
    **catalog.RULES,
    **tables.RULES,
    **rows.RULES,
    **views.RULES,
    **lifecycle.RULES,
    **pipelines.RULES,
    **subscriptions.RULES,
}
"""By class of operation: what executes it, and what it reads."""


def execute(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """Execute one operation on `workspace`, which then stands as after it.

    Raises what the client is told (NotFound, AlreadyExists, NotEmpty, InvalidInput, Conflict for a position, metadata
    or column ids that moved, Expired for uploads of another transaction); the workspace is then unchanged.
    """
    run = EXECUTE_RULES[type(operation)].run
    if isinstance(run, Stepwise):
        return _run_to_end(run.run(workspace, operation, context))
    return run(workspace, operation, context)


async def execute_async(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """As `execute`; the event loop has its turns during what takes long. Nobody else may touch the workspace."""
    run = EXECUTE_RULES[type(operation)].run
    if not isinstance(run, Stepwise):
        return run(workspace, operation, context)
    steps = run.run(workspace, operation, context)
    done: Any = None
    while True:
        try:
            asked = steps.send(done)
        except StopIteration as end:
            executed: Executed = end.value
            return executed
        done = None
        if asked is None:
            await asyncio.sleep(0)
        elif asked.size_bytes < OFFLOADED_SIZE_BYTES_MIN:
            done = asked.work()
        else:
            done = await asyncio.to_thread(asked.work)


def _run_to_end(steps: Execution) -> Executed:
    done: Any = None
    while True:
        try:
            asked = steps.send(done)
        except StopIteration as end:
            executed: Executed = end.value
            return executed
        done = asked.work() if asked is not None else None


# --- rows of a recorded action ---------------------------------------------------------------------


def paths_counted(action: Action) -> dict[str, Kind]:
    """Paths of the definitions that `rows_of` needs."""
    if not isinstance(action.operation, OverwriteFiles | DropTable | DropNamespace | RestoreTable | Undrop):
        return {}
    return {
        path: Kind.TABLE
        for effect in action.effects
        if effect.name.kind is Kind.TABLE
        for path in (effect.path_before, effect.path_after)
        if path
    }


def rows_of(action: Action, definitions: Mapping[str, StoredObject]) -> tuple[int, int]:
    """Rows that an action added and removed, as `Executed` says. `definitions`: by path."""
    if isinstance(action.operation, AppendFiles):
        return sum(segment.row_count for segment in action.operation.segments), 0
    if isinstance(action.operation, ChangeRows):
        return count_changed_rows(action.operation)
    if not paths_counted(action):
        return 0, 0

    drops = isinstance(
        action.operation, DropTable | DropNamespace
    )  # the rows of a damaged table are not known

    def table(name: ObjectName, path: str) -> TableDef | None:
        if not path:
            return None
        if drops and decode_readable(name, definitions[path]) is None:
            return None
        return typed(name, definitions[path], TableDef)

    added = removed = 0
    for effect in action.effects:
        if effect.name.kind is Kind.TABLE:
            before, after = table(effect.name, effect.path_before), table(effect.name, effect.path_after)
            plus, minus = count_rows_between(before, after)
            added, removed = added + plus, removed + minus
    return added, removed
