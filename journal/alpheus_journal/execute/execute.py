"""Execute operations: a pure function from objects and a request to definitions and actions.

`execute` reads a `Workspace` of objects that were fetched beforehand (`alpheus_journal.execute.prefetch`). It returns
the new definitions and the action, or raises the error for the client. A rebase executes again on a newer workspace.
Replay checks and a transaction's view of its own writes run the same code. `EXECUTE_RULES` names the function, and so
the module, that executes an operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import InvalidInput
from alpheus_journal.execute.rules import (
    catalog,
    collection,
    lifecycle,
    pipelines,
    rows,
    subscriptions,
    tables,
    tags,
    views,
)
from alpheus_journal.execute.rules.rows import count_changed_rows
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import (
    TableDef,
)
from alpheus_journal.model.history_rules import check_history_rules
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    DropNamespace,
    DropTable,
    FenceCollection,
    Operation,
    OverwriteFiles,
    Repair,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.workspace.checks import check_properties, check_text, count_rows_between, decode_as
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
"""The operations of one transaction that may each concern thousands of objects."""


def check_transaction(
    transaction: Transaction, now_millis: int, *, may_be_empty: bool = False, may_repair: bool = False
) -> None:
    """Refuse a transaction that is invalid whatever the catalog holds. Raises InvalidInput."""
    if not fmt.is_uuid(transaction.id) or transaction.id[14] != "7":
        raise InvalidInput(
            f"transaction id {transaction.id[:80]!r} is not a version 7 uuid", hint="give one in lower case"
        )
    if uuid7_millis(transaction.id) > now_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
        raise InvalidInput(
            f"the time in transaction id {transaction.id} is more than a minute in the future",
            kind="clock_skew",
            hint="set the clocks of this machine and of the catalog's writers",
        )
    if not transaction.operations and not may_be_empty:
        raise InvalidInput(f"transaction {transaction.id} has no operation")
    if len(transaction.operations) > OPERATIONS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} has {len(transaction.operations)} operations,"
            f" at most {OPERATIONS_MAX} are allowed",
            kind="too_large",
            hint="split the transaction into several ones",
        )
    wide = 0
    for o in transaction.operations:
        if isinstance(o, Undrop) or (isinstance(o, DropNamespace) and o.cascade):
            wide += 1
    if wide > WIDE_OPERATIONS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} has {wide} undrops and drops of whole namespaces,"
            f" at most {WIDE_OPERATIONS_MAX} are allowed",
            kind="too_large",
            hint="split the transaction into several ones",
        )
    if not may_repair and any(isinstance(o, Repair) for o in transaction.operations):
        raise InvalidInput(
            f"transaction {transaction.id} has a repair, which clients may not ask for",
            kind="not_supported",
            hint="run alpheus repair on the storage",
        )
    for o in transaction.operations:
        if isinstance(o, FenceCollection) and o.cutoff_millis > now_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
            raise InvalidInput(
                f"transaction {transaction.id} has a fence for files older than a time in the future",
                kind="clock_skew",
                hint="set the clocks of this machine and of the store",
            )
    if transaction.lease_path and not fmt.is_lease_path(transaction.lease_path):
        raise InvalidInput(f"{transaction.lease_path[:80]!r} is not the path of a lease", kind="bad_argument")
    if transaction.begin_version < 0:
        raise InvalidInput(f"begin version {transaction.begin_version} is negative", kind="bad_version")
    for what, text in (("message", transaction.message), ("principal", transaction.principal)):
        check_text(text, what)
    check_properties(transaction.properties, "transaction properties")


def check_rules_set(transaction: Transaction) -> None:
    """Refuse rules of history that are none. Raises InvalidInput.

    An earlier release committed such transactions, so a writer first looks whether this one has committed.
    """
    for operation in transaction.operations:
        check_history_rules(operation)


def tables_written(operations: Iterable[Operation]) -> frozenset[str]:
    """Return the ids of the tables that operations bring files for."""
    return frozenset(
        [o.table_id for o in operations if isinstance(o, AppendFiles | OverwriteFiles | ChangeRows)]
    )


def brings_back(transaction: Transaction) -> bool:
    """Return whether the transaction undrops objects, so that a name may mean another object than when it began."""
    return any(isinstance(operation, Undrop) for operation in transaction.operations)


def context_of(
    transaction: Transaction, keys: fmt.Keys, uuid4: Callable[[], str], version: int, *, revision: int
) -> ExecutionContext:
    """Return the context for executing a transaction in the new version `version`, on a version of `revision`."""
    return ExecutionContext(
        keys,
        transaction.id,
        uuid4,
        writes=tables_written(transaction.operations),
        writer=transaction.writer,
        version=version,
        begin_version=-1 if brings_back(transaction) else transaction.begin_version,
        checksums=revision >= 2,
        principal=transaction.principal,
        records=True,
    )


EXECUTE_RULES: ExecuteRules = {
    **catalog.RULES,
    **collection.RULES,
    **tables.RULES,
    **rows.RULES,
    **views.RULES,
    **lifecycle.RULES,
    **pipelines.RULES,
    **subscriptions.RULES,
    **tags.RULES,
}
"""The rule of each class of operation."""


def execute(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """Execute one operation, and apply its changes to `workspace`.

    Raises the error for the client, and then leaves the workspace unchanged: NotFound, AlreadyExists, NotEmpty or
    InvalidInput; Conflict for a position, metadata or column ids that moved; Expired for another transaction's uploads.
    """
    run = EXECUTE_RULES[type(operation)].run
    if isinstance(run, Stepwise):
        return _run_to_end(run.run(workspace, operation, context))
    return run(workspace, operation, context)


async def execute_async(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """Execute one operation; see `execute`. A long execution lets the event loop take turns; no other code may touch
    the workspace meanwhile."""
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
    """Return the paths of the definitions that `rows_of` needs."""
    if not isinstance(action.operation, OverwriteFiles | DropTable | DropNamespace | RestoreTable | Undrop):
        return {}
    return {
        path: Kind.TABLE
        for effect in action.effects
        if effect.name.kind is Kind.TABLE
        for path in (effect.path_before, effect.path_after)
        if path
    }


def count_files_added(operation: Operation | None) -> int:
    """Return the number of data files that the author of an operation lists as new."""
    if isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
        return sum(segment.file_count for segment in operation.segments)
    return 0


def rows_of(action: Action, definitions: Mapping[str, StoredObject]) -> tuple[int, int]:
    """Return the numbers of rows that an action added and removed, as in `Executed`. `definitions` are by path."""
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
        return decode_as(name, definitions[path], TableDef)

    added = removed = 0
    for effect in action.effects:
        if effect.name.kind is Kind.TABLE:
            before, after = table(effect.name, effect.path_before), table(effect.name, effect.path_after)
            plus, minus = count_rows_between(before, after)
            added, removed = added + plus, removed + minus
    return added, removed
