"""Executing operations: a pure function from what stands and what is asked to definitions and actions.

`execute` reads a `Workspace` (objects fetched beforehand, `alpheus_journal.execute.prefetch`) and either raises what
the client is told or returns the new definitions and the action. Rebase is executing again on a newer workspace; replay
checks and a transaction's view of its own writes run the same code. Tables, views, and what ends or moves objects
have modules of their own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import AlpheusError, AlreadyExists, Conflict, InvalidInput, NotFound
from alpheus_journal.execute.lifecycle import drop_namespace, rename_object, undrop
from alpheus_journal.execute.rows import change_rows, rows_changed, write_files
from alpheus_journal.execute.subscriptions import (
    claim_subscription,
    create_subscription,
    drop_subscription,
)
from alpheus_journal.execute.tables import (
    commit_iceberg,
    create_table,
    drop_table,
    register_table,
    restore_table,
    update_table,
)
from alpheus_journal.execute.views import create_view, drop_view, replace_view
from alpheus_journal.execute.workspace import (
    ASIDE_SIZE_BYTES_MIN,
    Context,
    Executed,
    ExecutionContext,
    Steps,
    Workspace,
    check_properties,
    check_text,
    edited,
    readable,
    refuse_nothing,
    require,
    rows_between,
    simple_change,
    typed,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import (
    GIVEN_UP_MAX,
    CatalogDef,
    JobDef,
    NamespaceDef,
    PipelineDef,
    TableDef,
    TimeMark,
    united,
)
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import (
    Action,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    ChangeRows,
    ClaimSubscription,
    CommitIceberg,
    CreateCatalog,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceView,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)

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


def execute(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """Execute one operation on `workspace`, which then stands as after it.

    Raises what the client is told (NotFound, AlreadyExists, NotEmpty, InvalidInput, Conflict for a position, metadata
    or column ids that moved, Expired for uploads of another transaction); the workspace is then unchanged.
    """
    match operation:
        case CreateNamespace():
            return _create_namespace(workspace, operation, context)
        case UpdateNamespace():
            return _update_namespace(workspace, operation, context)
        case DropNamespace() | AppendFiles() | OverwriteFiles() | ChangeRows() | Undrop():
            return _drained(_steps(workspace, operation, context))
        case CreateTable():
            return create_table(workspace, operation, context)
        case RegisterTable():
            return register_table(workspace, operation, context)
        case UpdateTable():
            return update_table(workspace, operation, context)
        case DropTable():
            return drop_table(workspace, operation, context)
        case CommitIceberg():
            return commit_iceberg(workspace, operation, context)
        case RestoreTable():
            return restore_table(workspace, operation, context)
        case CreateView():
            return create_view(workspace, operation, context)
        case ReplaceView():
            return replace_view(workspace, operation, context)
        case DropView():
            return drop_view(workspace, operation, context)
        case RenameObject():
            return rename_object(workspace, operation, context)
        case UpdateCatalog():
            return _update_catalog(workspace, operation, context)
        case AdvancePipeline():
            return _advance_pipeline(workspace, operation, context)
        case CreateSubscription():
            return create_subscription(workspace, operation, context)
        case ClaimSubscription():
            return claim_subscription(workspace, operation, context)
        case DropSubscription():
            return drop_subscription(workspace, operation, context)
        case CancelTransaction():
            if not fmt.is_uuid(operation.transaction_id):
                raise InvalidInput(f"transaction id {operation.transaction_id[:80]!r} is no uuid")
            return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))
        case Repair() if operation.times_up_to_millis or operation.given_up:
            return _repair_definition(workspace, operation, context)
        case Repair():  # asked for by `alpheus repair` alone: see `check_transaction`
            return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))
        case CreateCatalog():
            raise InvalidInput("a catalog is created once, by version 0", kind="not_supported")


async def execute_giving_way(workspace: Workspace, operation: Operation, context: Context) -> Executed:
    """As `execute`; the event loop has its turns during what takes long. Nobody else may touch the workspace."""
    if not isinstance(operation, _Stepwise):
        return execute(workspace, operation, context)
    steps = _steps(workspace, operation, context)
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
        elif asked.size_bytes < ASIDE_SIZE_BYTES_MIN:
            done = asked.work()
        else:
            done = await asyncio.to_thread(asked.work)


_Stepwise = DropNamespace | Undrop | AppendFiles | OverwriteFiles | ChangeRows


def _steps(workspace: Workspace, operation: _Stepwise, context: Context) -> Steps:
    match operation:
        case DropNamespace():
            return drop_namespace(workspace, operation, context)
        case Undrop():
            return undrop(workspace, operation, context)
        case ChangeRows():
            return change_rows(workspace, operation, context)
        case _:
            return write_files(workspace, operation, context)


def _drained(steps: Steps) -> Executed:
    done: Any = None
    while True:
        try:
            asked = steps.send(done)
        except StopIteration as end:
            executed: Executed = end.value
            return executed
        done = asked.work() if asked is not None else None


# --- rows of a recorded action ---------------------------------------------------------------------


def definitions_counted(action: Action) -> dict[str, Kind]:
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
        return rows_changed(action.operation)
    if not definitions_counted(action):
        return 0, 0

    drops = isinstance(
        action.operation, DropTable | DropNamespace
    )  # the rows of a damaged table are not known

    def table(name: ObjectName, path: str) -> TableDef | None:
        if not path:
            return None
        if drops and readable(name, definitions[path]) is None:
            return None
        return typed(name, definitions[path], TableDef)

    added = removed = 0
    for effect in action.effects:
        if effect.name.kind is Kind.TABLE:
            before, after = table(effect.name, effect.path_before), table(effect.name, effect.path_after)
            plus, minus = rows_between(before, after)
            added, removed = added + plus, removed + minus
    return added, removed


# --- catalog, namespaces, pipelines ----------------------------------------------------------------


def _update_catalog(workspace: Workspace, operation: UpdateCatalog, context: Context) -> Executed:
    definition = typed(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    what = "catalog properties"
    refuse_nothing(bool(operation.set or operation.unset), what)
    properties = edited(definition.properties, operation.set, operation.unset, what)
    return simple_change(
        workspace, operation, context, msgspec.structs.replace(definition, properties=properties)
    )


def _repair_definition(workspace: Workspace, operation: Repair, context: Context) -> Executed:
    if context.version != operation.head_version + 1:
        raise InvalidInput(
            f"version {context.version - 1} is the head by now, and the repair is of version {operation.head_version}",
            hint="stop all writers and run alpheus repair again",
        )
    definition = typed(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    marks, given_up = definition.time_marks, definition.given_up
    if operation.times_up_to_millis:
        reach = max([operation.times_up_to_millis, *(mark.up_to_millis for mark in marks)])
        marks = (*marks, TimeMark(version=context.version, up_to_millis=reach))
    if operation.given_up:
        given_up = united([*given_up, *operation.given_up])
        if (
            len(given_up) > GIVEN_UP_MAX
            or given_up[0].first < 1
            or given_up[-1].last > operation.head_version
        ):
            raise InvalidInput(
                f"{len(given_up)} ranges of versions would be given up, {GIVEN_UP_MAX} at most, from version 1 up to"
                f" the head, {operation.head_version}",
                hint="restore the missing roots from a copy",
            )
    return simple_change(
        workspace,
        operation,
        context,
        msgspec.structs.replace(definition, time_marks=marks, given_up=given_up),
    )


def _create_namespace(workspace: Workspace, operation: CreateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="namespace_exists")
    if not fmt.is_uuid(operation.namespace_id):
        raise InvalidInput(f"namespace id {operation.namespace_id[:80]!r} is no uuid")
    if operation.data_root:
        raise InvalidInput("a data root of a namespace is not supported yet", kind="not_supported")
    check_properties(operation.properties, f"properties of {name}")
    after = NamespaceDef(id=operation.namespace_id, properties=dict(operation.properties))
    return simple_change(workspace, operation, context, after)


def _update_namespace(workspace: Workspace, operation: UpdateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    definition = typed(name, require(workspace, name), NamespaceDef, workspace)
    what = f"properties of {name}"
    refuse_nothing(bool(operation.set or operation.unset), what)
    properties = edited(definition.properties, operation.set, operation.unset, what)
    return simple_change(
        workspace, operation, context, msgspec.structs.replace(definition, properties=properties)
    )


def _advance_pipeline(workspace: Workspace, operation: AdvancePipeline, context: Context) -> Executed:
    name = operation.target
    stored = workspace.get(name)
    fmt.check_object_name(name, context.keys, creating=stored is None)
    if operation.state not in ("running", "parked"):
        raise InvalidInput(f"a job is running or parked, not {operation.state!r}")
    check_text(operation.error, "the error of a parked job")
    check_text(operation.expected_transaction_id, "the expected transaction id")
    for key, position in operation.inputs.items():
        for text in (key, position.table, position.table_id):
            check_text(text, "an input")
    versions = [operation.pinned_version, *(position.version for position in operation.inputs.values())]
    if not all(0 <= version < fmt.VERSION_MAX_EXCLUSIVE for version in versions):
        raise InvalidInput(
            f"job {operation.name}.{operation.job}: the versions {versions} are not all within 0 to 2^32 - 1",
            kind="bad_version",
        )
    if not 0 <= operation.called_at_millis <= fmt.TIME_MILLIS_MAX:
        raise InvalidInput(
            f"job {operation.name}.{operation.job}: {operation.called_at_millis} ms since 1970 are no time"
        )
    check_properties(operation.params, "job parameters")
    _check_declaration(operation)
    if stored is None:
        # Replaying the action must give the same definition, so the id follows from the transaction.
        identity = uuid.uuid5(uuid.UUID(context.transaction_id), f"pipeline {operation.name}")
        definition = PipelineDef(id=str(identity))
    else:
        definition = typed(name, stored, PipelineDef)
    size_max, takes_unseen = fmt.EXTENSION_NAME_SIZE_BYTES, context.keys.takes_unseen
    is_new = operation.job not in definition.jobs
    fmt.check_name(operation.job, size_max, "job", creating=is_new, takes_unseen=takes_unseen)
    _expect_pipeline(operation, "" if stored is None else definition.id)
    if operation.former_job and not (operation.former_job in definition.jobs and is_new):
        raise _not_renamed(operation, definition)
    job = definition.jobs.get(operation.former_job or operation.job)
    found = job.last_transaction_id if job else ""
    if found != operation.expected_transaction_id:
        raise Conflict(
            f"job {operation.name}.{operation.job} has moved: its last run is {found or 'none'},"
            f" expected was {operation.expected_transaction_id or 'none'}",
            kind="position_moved",
            mine=f"advance job {operation.name}.{operation.job}",
            theirs=f"transaction {found}",
            transaction_id=found,
            retryable=True,
            hint="read the position again; this run's work may be committed already",
        )
    advanced = JobDef(
        last_transaction_id=context.transaction_id,
        pinned_version=operation.pinned_version,
        inputs=dict(operation.inputs),
        state=operation.state,
        error=operation.error,
        params=dict(operation.params),
        called_at_millis=operation.called_at_millis,
        declaration=operation.declaration or (job.declaration if job else None),
    )
    jobs = {name: each for name, each in definition.jobs.items() if name != operation.former_job}
    after = msgspec.structs.replace(definition, jobs=jobs | {operation.job: advanced})
    return simple_change(workspace, operation, context, after)


def _check_declaration(operation: AdvancePipeline) -> None:
    if operation.former_job:
        fmt.check_name(operation.former_job, fmt.EXTENSION_NAME_SIZE_BYTES, "job")
    declaration = operation.declaration
    if declaration is None:
        return
    for tables, what in ((declaration.inputs, "inputs"), (declaration.outputs, "outputs")):
        if len(tables) > fmt.JOB_TABLES_MAX:
            raise InvalidInput(
                f"job {operation.name}.{operation.job}: {len(tables)} {what}, {fmt.JOB_TABLES_MAX} at most",
                kind="too_large",
            )
        names = [each.table for each in tables]
        if names != sorted(set(names)):
            raise InvalidInput(
                f"job {operation.name}.{operation.job}: its declared {what} are not in order, or one comes twice"
            )
        for each in tables:
            check_text(each.table, "a declared table")
            check_text(each.table_id, "the id of a declared table")


def _expect_pipeline(operation: AdvancePipeline, found: str) -> None:
    """Two that declare other jobs under one name, and begin at the same time, are told apart by the entry that the
    first of them makes."""
    expected = operation.expected_pipeline_id
    if expected is None or expected == found:
        return
    raise Conflict(
        f"pipeline {operation.name} is {f'entry {found}' if found else 'not there'},"
        f" expected was {f'entry {expected}' if expected else 'none'}",
        kind="position_moved",
        mine=f"advance job {operation.name}.{operation.job}",
        theirs=f"pipeline {operation.name}",
        retryable=True,
        hint="read the entry again: somebody else has made it, or renamed it",
    )


def _not_renamed(operation: AdvancePipeline, definition: PipelineDef) -> AlpheusError:
    if operation.former_job not in definition.jobs:
        return NotFound(
            f"job {operation.name}.{operation.former_job} never ran",
            kind="no_job",
            hint=f"these did: {', '.join(sorted(definition.jobs)) or 'none'}",
        )
    return InvalidInput(
        f"job {operation.name}.{operation.job} is there already",
        kind="bad_name",
        hint="positions of two jobs are not put together: choose another name",
    )
