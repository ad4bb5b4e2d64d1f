"""Who conflicts with whom: pure rules over what was asked and what was recorded.

The test behind every rule: run after the committed transaction, would it still do what its author asked,
having seen what it saw? The rules of this revision (FORMAT.md, "Conflicts"):

* two transactions that touch one object conflict; jobs of one pipeline are told apart;
* dropping a namespace conflicts with anything created inside it, and the other way round;
* a version without actions (another writer's) touches every object of its structural diff.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpheus_journal.access import Event
from alpheus_journal.actions import (
    Action,
    AdvancePipeline,
    CancelTransaction,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    Operation,
    RecordedTransaction,
    Transaction,
)
from alpheus_journal.errors import Conflict
from alpheus_journal.format import Kind, ObjectName


def describe(operation: Operation) -> str:
    """An operation as a person reads it: `drop table sales.orders`."""
    words = {
        "CreateNamespace": "create",
        "UpdateNamespace": "update",
        "DropNamespace": "drop",
        "CreateTable": "create",
        "UpdateTable": "update",
        "DropTable": "drop",
        "AppendFiles": "append to",
        "OverwriteFiles": "overwrite",
        "UpdateCatalog": "update",
        "CreateCatalog": "create",
    }
    if isinstance(operation, AdvancePipeline):
        return f"advance job {operation.name}.{operation.job}"
    if isinstance(operation, CancelTransaction):
        return f"cancel transaction {operation.transaction_id}"
    return f"{words[type(operation).__name__]} {operation.target}"


def _creates(operation: Operation | None) -> bool:
    return isinstance(operation, CreateNamespace | CreateTable)


def _same_object(mine: Operation, action: Action) -> bool:
    theirs = action.operation
    if isinstance(mine, CancelTransaction) or isinstance(theirs, CancelTransaction):
        return False
    if isinstance(mine, AdvancePipeline) and isinstance(theirs, AdvancePipeline):
        return (mine.name, mine.job) == (theirs.name, theirs.job)
    return mine.target == action.name


def _inside(name: ObjectName, namespace: str) -> bool:
    return name.kind in (Kind.TABLE, Kind.VIEW) and name.namespace == namespace


def conflict_with_transaction(
    mine: Transaction, theirs: RecordedTransaction, version: int
) -> Conflict | None:
    """The first conflict of `mine` with a committed transaction of `version`, or None."""
    if theirs.cancels == mine.id:
        return Conflict(f"transaction {mine.id} was cancelled", retryable=False, version=version)
    for operation in mine.operations:
        if isinstance(operation, CancelTransaction) and theirs.id == operation.transaction_id:
            return Conflict(
                f"transaction {theirs.id} has committed, in version {version}",
                mine=describe(operation),
                theirs=f"transaction {theirs.id}",
                transaction_id=theirs.id,
                retryable=False,
                version=version,
            )
        for action in theirs.actions:
            if _same_object(operation, action):
                return _conflict(operation, action, theirs, version)
            if (
                isinstance(operation, DropNamespace)
                and _inside(action.name, operation.name)
                and not action.path_before
                and action.path_after
            ):
                return _conflict(operation, action, theirs, version, kind="namespace_changed")
            if (
                isinstance(action.operation, DropNamespace)
                and isinstance(operation, CreateTable)
                and _inside(operation.target, action.operation.name)
            ):
                return _conflict(
                    operation, action, theirs, version, kind="namespace_changed", retryable=False
                )
    return None


Facet = tuple[str, str, str]


class Touched:
    """Which transactions of a group touch what, so that only possible rivals are compared in full."""

    def __init__(self) -> None:
        self._holders: dict[Facet, list[RecordedTransaction]] = {}

    def add(self, recorded: RecordedTransaction) -> None:
        operations = [action.operation for action in recorded.actions if action.operation is not None]
        for facet in _facets(recorded.id, operations, sought=False):
            self._holders.setdefault(facet, []).append(recorded)

    def rivals(self, transaction: Transaction) -> list[RecordedTransaction]:
        """Every transaction added that `conflict_with_transaction` could object to, in the order added."""
        found: dict[str, RecordedTransaction] = {}
        for facet in _facets(transaction.id, transaction.operations, sought=True):
            found.update((rival.id, rival) for rival in self._holders.get(facet, ()))
        return list(found.values())


def sought_facets(transaction: Transaction) -> set[Facet]:
    """What of committed transactions concerns this one: its rivals, its cancellation, and itself."""
    own: Facet = ("committed", transaction.id, "")
    return _facets(transaction.id, transaction.operations, sought=True) | {own}


def event_facets(event: Event) -> set[Facet]:
    """What a version touches. A version concerns a transaction only if it has a facet that this one seeks."""
    facets: set[Facet] = set()
    for recorded in event.transactions:
        operations = [action.operation for action in recorded.actions if action.operation is not None]
        facets |= _facets(recorded.id, operations, sought=False)
    for change in event.changes:
        name = change.name
        facets.add((name.kind.label, name.namespace, name.name))
        if change.type == "created" and name.kind in (Kind.TABLE, Kind.VIEW):
            facets.add(("inside", name.namespace, ""))
        if change.type == "dropped" and name.kind is Kind.NAMESPACE:
            facets.add(("dropped", name.namespace, ""))
    return facets


def _facets(transaction_id: str, operations: Sequence[Operation], *, sought: bool) -> set[Facet]:
    """What a transaction touches; `sought`: what of others it may collide with. Equal but for the pairs that
    collide crosswise: creating inside a namespace with dropping it, committing with cancelling."""
    inside, dropped = ("dropped", "inside") if sought else ("inside", "dropped")
    committed, cancelled = ("cancelled", "committed") if sought else ("committed", "cancelled")
    facets: set[Facet] = {(committed, transaction_id, "")}
    for operation in operations:
        if isinstance(operation, CancelTransaction):
            facets.add((cancelled, operation.transaction_id, ""))
            continue
        facets.add((operation.target.kind.label, operation.target.namespace, operation.target.name))
        if isinstance(operation, CreateTable):
            facets.add((inside, operation.namespace, ""))
        elif isinstance(operation, DropNamespace):
            facets.add((dropped, operation.name, ""))
    return facets


def _conflict(
    operation: Operation,
    action: Action,
    theirs: RecordedTransaction,
    version: int,
    *,
    kind: str = "",
    retryable: bool | None = None,
) -> Conflict:
    done = describe(action.operation) if action.operation else f"{action.type} on {action.name}"
    # By the paths, which tell it of other writers' versions too.
    created = not action.path_before and bool(action.path_after)
    dropped = bool(action.path_before) and not action.path_after
    both_create = _creates(operation) and created
    if retryable is None:
        # After a drop, what needs the object finds nothing; after a create, another create finds it.
        retryable = not both_create and not dropped
    if not kind:
        kind = (
            "position_moved"
            if isinstance(operation, AdvancePipeline)
            else "already_exists_now"
            if both_create
            else "object_changed"
        )
    who = theirs.principal or "an unnamed principal"
    by = f"transaction {theirs.id}" if theirs.id else "a version without actions"
    what = f"{done}, by {by} of {who} in version {version}"
    return Conflict(
        f"cannot {describe(operation)}: since it began, another transaction committed: {what}",
        kind=kind,
        mine=describe(operation),
        theirs=what,
        transaction_id=theirs.id,
        retryable=retryable,
        version=version,
        hint="run it again from the newest version" if retryable else "it cannot succeed as it is",
    )


def conflict_with_event(mine: Transaction, event: Event) -> Conflict | None:
    """The first conflict of `mine` with a committed version, or None."""
    for theirs in event.transactions:
        conflict = conflict_with_transaction(mine, theirs, event.version)
        if conflict is not None:
            return conflict
    if event.transactions:
        return None
    return conflict_with_transaction(mine, recorded_of_changes(event), event.version)


def recorded_of_changes(event: Event) -> RecordedTransaction:
    """A version without actions, as if it had recorded its structural diff as one transaction without id."""
    actions = tuple(
        Action(
            type={"created": "CREATE", "updated": "ALTER", "dropped": "DROP"}[change.type],
            name=change.name,
            operation=DropNamespace(name=change.name.namespace)
            if change.type == "dropped" and change.name.kind is Kind.NAMESPACE
            else None,
            path_before=change.path_before,
            path_after=change.path_after,
        )
        for change in event.changes
    )
    return RecordedTransaction(
        id="",
        operations_digest=b"",
        principal="another writer",
        principal_authenticated=False,
        message="",
        properties={},
        serializable=False,
        branch="",
        begin_version=event.version - 1,
        committed_at_millis=event.created_at_millis,
        actions=actions,
    )
