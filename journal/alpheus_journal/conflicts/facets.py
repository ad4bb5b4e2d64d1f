"""Facets: what committed actions changed, and what a transaction has at stake. Pure (FORMAT.md, "Conflicts").

A committed action *touches* aspects of objects. A transaction *claims* that some aspects stay as they were when it
began. `rules.RULES` says which pairs collide. Touches and claims are both filed under facets, keys that are compared
for equality alone. So pairs that cannot collide are never compared, however many there are. The module is long because
the table of rules and the functions that it names stand together.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import Reference
from alpheus_journal.model.operations import (
    READ_TYPES,
    Action,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    ChangeMode,
    ChangeRows,
    ClaimSubscription,
    CommitIceberg,
    CreateCatalog,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateTag,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropTag,
    DropView,
    Effect,
    FenceCollection,
    Operation,
    OverwriteFiles,
    Read,
    RecordedTransaction,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceTag,
    ReplaceView,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    UpgradeCatalog,
)

Facet = tuple[int, str, str, str, str]
"""The kind, namespace and name of an object, an aspect, and a detail or ""."""

READS_MAX = 10_000
COLUMN_PATH_SIZE_BYTES_MAX = 4096

_CHILDREN_OF_CATALOG = (Kind.NAMESPACE, Kind.PIPELINE)


class Aspect(enum.StrEnum):
    """The part of an object that a committed action changed. Brackets hold the `detail` and `value` of the Touch."""

    CREATED = "created"
    DROPPED = "dropped"  # or renamed away
    WHOLE = "whole"  # its definition; the exact change is not known or does not matter
    PROPERTY = "property"  # [key; value, None when unset]
    COLUMN = "column"  # [path; one of ADDED ... ]
    COLUMN_ORDER = "column order"
    ROWS_ADDED = "rows added"
    ROWS_REPLACED = "rows replaced"  # all of them [NO_ROWS when no row replaces them]
    ROWS_REWRITTEN = (
        "rows rewritten"  # files were removed [a compaction: the sequence of the files that replaced them]
    )
    ROWS_HIDDEN = "rows hidden"  # by predicates
    POINTER = "pointer"  # to the metadata of an Iceberg table
    JOB = "job"  # of a pipeline [the job's name]
    HOLDER = "holder"  # of a subscription
    BOUND = "bound"  # a view with schema binding refers to it from now on
    UNBOUND = "unbound"
    CHILD_ADDED = "child added"  # [kind and name]; the catalog's children are namespaces and pipelines
    CHILD_REMOVED = "child removed"  # [kind and name]
    BROUGHT_BACK = "brought back"  # undropped, perhaps under another name


class Stake(enum.StrEnum):
    """A claim of a transaction. First come the needs of its operations, then the results of its reads."""

    FREE_NAME = "free name"
    OBJECT = "object"  # still exists, with the same definition
    DROP = "drop"  # or rename: any state of the object will do, if it exists and no view is bound to it
    HOME = "home"  # the namespace of an object that is created
    EMPTIED = "emptied"  # a namespace that is dropped
    PROPERTY = "property"  # [key; value, None when unset]
    COLUMN = "column"  # [path; how it changes]
    COLUMN_IDS = "column ids"  # of columns that the transaction adds together with files that have them
    COLUMN_ORDER = "column order"
    FILES = "files"  # that must fit the columns
    SCHEMA_ID = "schema id"  # of files that the transaction brings together with a change of the columns
    ROWS = "rows"  # all rows, which the transaction replaces
    MATCHED_ROWS = "matched rows"  # by its delete predicates, in files up to a sequence [the sequence]
    MOVED_ROWS = "moved rows"  # rows that its delete predicates match and that it adds again, changed
    POINTER = "pointer"
    DEFINITION = "definition"  # replaced as a whole
    BINDING = "binding"  # of a view with schema binding
    JOB = "job"  # [the job's name]
    HOLDER = "holder"  # of a subscription, whose holder the transaction replaces
    LOST_OBJECT = "lost object"  # that the transaction undrops
    SEEN_EXISTENCE = "seen existence"
    SEEN_DEFINITION = "seen definition"
    SEEN_NAMES = "seen names"  # [kind and prefix]
    SEEN_ROWS = "seen rows"  # [column path; "": all columns]


class How(enum.StrEnum):
    """A change of one column."""

    ADDED = "added"
    ADDED_REQUIRED = "added, required"
    DROPPED = "dropped"
    RENAMED = "renamed"  # under both names
    RETYPED = "retyped"
    REQUIRED = "required"
    NULLABLE = "nullable"
    DEFAULT = "default"  # for later inserts


NO_ROWS = "none"
"""The value of a touch of all rows that leaves no row."""


class Touch(msgspec.Struct, frozen=True, gc=False):
    name: ObjectName
    aspect: Aspect
    detail: str = ""
    value: str | None = None

    def facets(self) -> tuple[Facet, ...]:
        whole = _facet(self.name, self.aspect)
        if self.detail and self.aspect in KEYED:
            return whole, _facet(self.name, self.aspect, self.detail)
        return (whole,)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Something that a transaction has at stake. `cause` is the operation or the read with the stake."""

    name: ObjectName
    stake: Stake
    cause: Operation | Read
    detail: str = ""
    value: str | None = None

    def facet(self, aspect: Aspect) -> Facet:
        """Return the facet of every touch of `aspect` that may collide with this claim."""
        name = self.name
        detail = self.detail if KEYED.get(aspect) is self.stake else ""
        return (int(name.kind), name.namespace, name.name, aspect, detail)


_CHILD_ASPECTS = (Aspect.CHILD_ADDED, Aspect.CHILD_REMOVED)

KEYED: dict[Aspect, Stake] = {Aspect.PROPERTY: Stake.PROPERTY, Aspect.JOB: Stake.JOB}
"""Aspects that an object has very many of. Each concerns only the stake with the same detail."""


def _facet(name: ObjectName, aspect: str, detail: str = "") -> Facet:
    return (int(name.kind), name.namespace, name.name, aspect, detail)


def committed_facet(transaction_id: str) -> Facet:
    return (-1, transaction_id, "", "committed", "")


def cancelled_facet(transaction_id: str) -> Facet:
    return (-1, transaction_id, "", "cancelled", "")


def disregarded_facet(transaction_id: str) -> Facet:
    return (-1, transaction_id, "", "disregarded", "")


def parent_of(name: ObjectName) -> ObjectName | None:
    """Return the object that lists `name`: its namespace or the catalog."""
    if name.kind in (Kind.TABLE, Kind.VIEW):
        return fmt.namespace_name(name.namespace)
    return fmt.CATALOG if name.kind in _CHILDREN_OF_CATALOG else None


def child_text(kind: Kind, name: str) -> str:
    """Return a child's detail in a touch, or the beginning of it."""
    return f"{kind.label} {name}"


def _child(name: ObjectName) -> str:
    return child_text(name.kind, name.namespace if name.kind is Kind.NAMESPACE else name.name)


# --- reads -----------------------------------------------------------------------------------------


def check_reads(transaction: Transaction, keys: fmt.Keys) -> None:
    """Refuse reads that cannot be judged or recorded. Raises InvalidInput.

    Only a serializable transaction may have reads. Without that isolation they would be stored and have no effect.
    """
    if transaction.reads and not transaction.serializable:
        raise InvalidInput(
            f"transaction {transaction.id} has {len(transaction.reads)} reads and is not serializable",
            hint="send reads with serializable transactions only",
        )
    if len(transaction.reads) > READS_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} has {len(transaction.reads)} reads, at most {READS_MAX} are allowed",
            kind="too_large",
            hint="read less in one transaction: a listing counts as one read",
        )
    for read in transaction.reads:
        if read.type not in READ_TYPES:
            raise InvalidInput(f"{read.type[:80]!r} is not a type of read", kind="not_supported")
        if read.name.kind is not Kind[read.type.partition("_")[0]]:
            raise InvalidInput(f"a read of type {read.type} cannot name {read.name}")
        if read.name.kind is Kind.CATALOG and read.name != fmt.CATALOG:
            raise InvalidInput("a read of the catalog cannot have a name")
        fmt.check_object_name(read.name, keys)
        if read.prefix:  # the prefix is part of a name, so the rules for names apply
            if read.type not in _LISTINGS:
                raise InvalidInput(f"a read of type {read.type} has no prefix")
            fmt.check_known_name(read.prefix, keys, _LISTINGS[read.type])
        for column in read.columns:
            _check_column(column, read)


def _check_column(column: str, read: Read) -> None:
    if read.type != "TABLE_SELECT":
        raise InvalidInput(f"a read of type {read.type} has no columns")
    try:
        size = len(column.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"the path of a column read of {read.name} holds a lone surrogate") from None
    if not 0 < size <= COLUMN_PATH_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"the path of a column read of {read.name} takes {size} bytes,"
            f" 1 to {COLUMN_PATH_SIZE_BYTES_MAX} are allowed"
        )


_LISTINGS: dict[str, Kind] = {
    "CATALOG_SHOW_NAMESPACES": Kind.NAMESPACE,
    "CATALOG_SHOW_PIPELINES": Kind.PIPELINE,
    "NAMESPACE_SHOW_TABLES": Kind.TABLE,
    "NAMESPACE_SHOW_VIEWS": Kind.VIEW,
}


# --- what a committed transaction touched ----------------------------------------------------------


def touches_of(recorded: RecordedTransaction) -> list[tuple[Action, Touch]]:
    """Return what a transaction touched, in order. Skips objects that existed neither before nor after it."""
    found = [(action, touch) for action in recorded.actions for touch in touches_of_action(action)]
    if len(recorded.actions) == 1 and not recorded.actions[0].also:
        return found
    there: dict[ObjectName, tuple[bool, bool]] = {}
    for action in recorded.actions:
        for effect in action.effects:
            before = there[effect.name][0] if effect.name in there else bool(effect.path_before)
            there[effect.name] = (before, bool(effect.path_after))
    fleeting = {name for name, lives in there.items() if lives == (False, False)}
    if not fleeting:
        return found
    children = {(parent_of(name), _child(name)) for name in fleeting}
    return [
        (action, touch)
        for action, touch in found
        if touch.name not in fleeting
        and not (touch.aspect in _CHILD_ASPECTS and (touch.name, touch.detail) in children)
    ]


def touches_of_action(action: Action) -> list[Touch]:
    found: list[Touch] = []
    effects = action.effects
    for effect in effects:
        if bool(effect.path_before) != bool(effect.path_after):
            created = bool(effect.path_after)
            found.append(Touch(effect.name, Aspect.CREATED if created else Aspect.DROPPED))
            parent = parent_of(effect.name)
            if parent is not None:
                aspect = Aspect.CHILD_ADDED if created else Aspect.CHILD_REMOVED
                found.append(Touch(parent, aspect, _child(effect.name)))
    operation = action.operation
    if operation is None:
        return found + [Touch(e.name, Aspect.WHOLE) for e in effects if e.path_before and e.path_after]
    for effect in action.also:
        if effect.path_before and effect.path_after:
            found.append(Touch(effect.name, _binding_aspect(operation, effect)))
    return found + FACET_RULES[type(operation)].touches(operation)


def _binding_aspect(operation: Operation, effect: Effect) -> Aspect:
    """Return how an operation changed an object that a view refers to, which lists the views bound to it."""
    if isinstance(operation, DropView | DropNamespace):
        return Aspect.UNBOUND
    if isinstance(operation, CreateView | ReplaceView):
        reference = Reference(effect.name.namespace, effect.name.name)
        bound = operation.schema_binding and reference in operation.references
        return Aspect.BOUND if bound else Aspect.UNBOUND
    return Aspect.BOUND


def _jobs_of(operation: AdvancePipeline) -> list[str]:
    return [operation.job, *([operation.former_job] if operation.former_job else [])]


def _touch_change(operation: ChangeRows) -> list[Touch]:
    compacts = operation.mode is ChangeMode.COMPACT
    found = []
    if operation.removed:
        value = str(operation.outputs_sequence) if compacts else None
        found.append(Touch(operation.target, Aspect.ROWS_REWRITTEN, value=value))
    if operation.segments and not compacts:
        found.append(Touch(operation.target, Aspect.ROWS_ADDED))
    if operation.predicates:
        found.append(Touch(operation.target, Aspect.ROWS_HIDDEN))
    return found


def _touch_overwrite(operation: OverwriteFiles) -> list[Touch]:
    return [Touch(operation.target, Aspect.ROWS_REPLACED, value=None if operation.segments else NO_ROWS)]


def _touch_jobs(operation: AdvancePipeline) -> list[Touch]:
    return [Touch(operation.target, Aspect.JOB, job) for job in _jobs_of(operation)]


def _touch_undrop(operation: Undrop) -> list[Touch]:
    return [Touch(operation.source, Aspect.BROUGHT_BACK)]


def _touch_update(operation: UpdateTable) -> list[Touch]:
    target = operation.target
    found = _touch_properties(operation)
    if operation.changes_columns:
        found += [Touch(target, Aspect.COLUMN, path, how) for path, how in column_changes(operation)]
        if operation.column_order:
            found.append(Touch(target, Aspect.COLUMN_ORDER))
    return found


def _touch_properties(operation: UpdateCatalog | UpdateNamespace | UpdateTable) -> list[Touch]:
    target = operation.target
    found = [Touch(target, Aspect.PROPERTY, key, value) for key, value in operation.set.items()]
    if operation.unset:
        found += [Touch(target, Aspect.PROPERTY, key, None) for key in operation.unset]
    return found


def column_changes(operation: UpdateTable) -> Iterator[tuple[str, How]]:
    """Yield the path of each changed column, in lower case, and its change.

    Spark takes names that differ only in case for the same name.
    """
    for added in operation.add_columns:
        path = f"{added.parent}.{added.column.name}" if added.parent else added.column.name
        has_value = added.column.nullable or added.column.initial_default is not None
        yield path.lower(), How.ADDED if has_value else How.ADDED_REQUIRED
    for path in operation.drop_columns:
        yield path.lower(), How.DROPPED
    for path, new_name in operation.rename_columns.items():
        yield path.lower(), How.RENAMED
        parent, dot, _ = path.rpartition(".")
        yield (parent + dot + new_name).lower(), How.RENAMED
        if dot:  # of a top-level column with a dot in its name
            yield new_name.lower(), How.RENAMED
    for path in operation.retype_columns:
        yield path.lower(), How.RETYPED
    for path, nullable in operation.nullable_columns.items():
        yield path.lower(), How.NULLABLE if nullable else How.REQUIRED
    for path in operation.defaults:
        yield path.lower(), How.DEFAULT


def overlap(path: str, other: str) -> bool:
    """Return whether two paths name the same column, or one column is nested in the other."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


# --- what a transaction has at stake ---------------------------------------------------------------


def claims_of(transaction: Transaction) -> list[Claim]:
    """Return the needs of a transaction's operations, in order, and then what its reads saw.

    Objects that the transaction itself made have nothing at stake. An object that it renamed is at stake under the
    name that other transactions know.
    """
    claims: list[Claim] = []
    known_as: dict[
        ObjectName, ObjectName | None
    ] = {}  # new name to the name that others know; None for a new object
    once_known_as: dict[ObjectName, list[ObjectName]] = {}  # new name to all names that it has ever stood for
    changed = _changed_columns(transaction)
    for operation in transaction.operations:
        changes = changed.get(known_as.get(operation.target, operation.target), NO_CHANGES)
        for claim in FACET_RULES[type(operation)].claims(operation, changes):
            name = known_as.get(claim.name, claim.name) if known_as else claim.name
            if name is not None:
                claims.append(claim if name is claim.name else msgspec.structs.replace(claim, name=name))
        _follow_names(operation, known_as)
        if isinstance(operation, RenameObject) and (name := known_as[operation.new_target]) is not None:
            once_known_as.setdefault(operation.new_target, []).append(name)
    if transaction.serializable:
        for read in transaction.reads:
            for claim in _claims_of_read(read):
                claims.append(claim)
                # The transaction may have read before or after it renamed.
                others = once_known_as.get(claim.name, ())
                claims.extend(msgspec.structs.replace(claim, name=other) for other in others)
    return claims


def _follow_names(operation: Operation, known_as: dict[ObjectName, ObjectName | None]) -> None:
    """Note under which name other transactions know an object that the operation makes or renames."""
    match operation:
        case (
            CreateNamespace()
            | CreateTable()
            | RegisterTable()
            | CreateView()
            | Undrop()
            | CreateSubscription()
            | CreateTag()
        ):
            known_as[operation.target] = None
        case RenameObject():
            known_as[operation.new_target] = known_as.get(operation.target, operation.target)


class ColumnChanges(NamedTuple):
    """Whether a transaction changes the columns of a table, and whether it adds columns."""

    any: bool
    adds: bool


NO_CHANGES = ColumnChanges(any=False, adds=False)


def _changed_columns(transaction: Transaction) -> dict[ObjectName | None, ColumnChanges]:
    """Return the changes of columns by the name under which other transactions know the table."""
    changed: dict[ObjectName | None, ColumnChanges] = {}
    if any(isinstance(operation, UpdateTable) for operation in transaction.operations):
        known_as: dict[ObjectName, ObjectName | None] = {}
        for operation in transaction.operations:
            if isinstance(operation, UpdateTable) and operation.changes_columns:
                name = known_as.get(operation.target, operation.target)
                adds = bool(operation.add_columns) or changed.get(name, NO_CHANGES).adds
                changed[name] = ColumnChanges(any=True, adds=adds)
            _follow_names(operation, known_as)
    return changed


_STAKES = {
    Aspect.PROPERTY: Stake.PROPERTY,
    Aspect.COLUMN: Stake.COLUMN,
    Aspect.COLUMN_ORDER: Stake.COLUMN_ORDER,
}


def _new_object(operation: Operation, name: ObjectName) -> list[Claim]:
    claims = [Claim(name, Stake.FREE_NAME, operation)]
    if name.kind in (Kind.TABLE, Kind.VIEW):
        # Tables and views share one space of names.
        other = Kind.VIEW if name.kind is Kind.TABLE else Kind.TABLE
        claims.append(Claim(ObjectName(other, name.namespace, name.name), Stake.FREE_NAME, operation))
        claims.append(Claim(fmt.namespace_name(name.namespace), Stake.HOME, operation))
    return claims


def _bindings(operation: CreateView | ReplaceView) -> Iterator[Claim]:
    for reference in operation.references if operation.schema_binding else ():
        for kind in (Kind.TABLE, Kind.VIEW):
            name = ObjectName(kind, reference.namespace, reference.name)
            yield Claim(name, Stake.BINDING, operation)


def _claim_update(
    operation: UpdateTable | UpdateCatalog | UpdateNamespace, changes: ColumnChanges
) -> list[Claim]:
    claims = [Claim(operation.target, Stake.OBJECT, operation)]
    for touch in FACET_RULES[type(operation)].touches(operation):
        claims.append(Claim(operation.target, _STAKES[touch.aspect], operation, touch.detail, touch.value))
    return claims


def _claim_rows(operation: AppendFiles | OverwriteFiles | ChangeRows, changes: ColumnChanges) -> list[Claim]:
    target = operation.target
    claims = [Claim(target, Stake.OBJECT, operation)]
    if operation.segments:
        claims.append(Claim(target, Stake.FILES, operation))
    if changes.adds:
        claims.append(Claim(target, Stake.COLUMN_IDS, operation))
    if operation.segments and changes.any:
        claims.append(Claim(target, Stake.SCHEMA_ID, operation))
    if isinstance(operation, OverwriteFiles):
        claims.append(Claim(target, Stake.ROWS, operation))
    if isinstance(operation, ChangeRows) and operation.predicates:
        seen = str(operation.base_sequence)
        claims.append(Claim(target, Stake.MATCHED_ROWS, operation, value=seen))
        if operation.moves_rows:
            claims.append(Claim(target, Stake.MOVED_ROWS, operation))
    return claims


def _claim_new_object(operation: Operation, changes: ColumnChanges) -> list[Claim]:
    return _new_object(operation, operation.target)


def _claim_new_view(operation: CreateView, changes: ColumnChanges) -> list[Claim]:
    return [*_new_object(operation, operation.target), *_bindings(operation)]


def _claim_replaced_view(operation: ReplaceView, changes: ColumnChanges) -> list[Claim]:
    return [Claim(operation.target, Stake.DEFINITION, operation), *_bindings(operation)]


def _claim_undrop(operation: Undrop, changes: ColumnChanges) -> list[Claim]:
    lost = Claim(operation.source, Stake.LOST_OBJECT, operation)
    return [*_new_object(operation, operation.target), lost]


def _claim_rename(operation: RenameObject, changes: ColumnChanges) -> list[Claim]:
    dropped = Claim(operation.target, Stake.DROP, operation)
    return [dropped, *_new_object(operation, operation.new_target)]


def _claim_jobs(operation: AdvancePipeline, changes: ColumnChanges) -> list[Claim]:
    return [Claim(operation.target, Stake.JOB, operation, job) for job in _jobs_of(operation)]


def _claims(*stakes: Stake) -> Callable[[Operation, ColumnChanges], list[Claim]]:
    """Return a function that claims these stakes in an operation's target alone."""
    return lambda operation, changes: [Claim(operation.target, stake, operation) for stake in stakes]


def _touches(*aspects: Aspect) -> Callable[[Operation], list[Touch]]:
    """Return a function that touches these aspects of an operation's target alone."""
    return lambda operation: [Touch(operation.target, aspect) for aspect in aspects]


def _describe_cancellation(operation: CancelTransaction) -> str:
    return f"cancel transaction {operation.transaction_id}"


def _describe_repair(operation: Repair) -> str:
    return f"repair the history above version {operation.head_version}"


def _describe_upgrade(operation: UpgradeCatalog) -> str:
    return f"upgrade the catalog to revision {operation.revision} of the format"


def _describe_fence(operation: FenceCollection) -> str:
    return "collect unreferenced files"


def _describe_change(operation: ChangeRows) -> str:
    return f"{operation.mode.verb} {operation.target}"


def _describe_rename(operation: RenameObject) -> str:
    return f"rename {operation.target} to {operation.new_target.full_name}"


def _describe_undrop(operation: Undrop) -> str:
    new = f" as {operation.target.full_name}" if operation.target != operation.source else ""
    return f"bring back {operation.source}{new}"


def _describe_jobs(operation: AdvancePipeline) -> str:
    return f"advance job {operation.name}.{operation.job}"


class FacetRule(NamedTuple):
    """The needs of one class of operations, their changes, and their words in messages."""

    words: str | Callable[[Any], str]
    """A verb before the target, or a function that describes an operation."""
    claims: Callable[[Any, ColumnChanges], list[Claim]]
    touches: Callable[[Any], list[Touch]] = _touches()
    """Changes beside the existence of objects, which follows from the paths of an action."""


FACET_RULES: dict[type[Any], FacetRule] = {
    CreateCatalog: FacetRule("create", _claims()),
    UpdateCatalog: FacetRule("update", _claim_update, _touch_properties),
    CancelTransaction: FacetRule(_describe_cancellation, _claims()),
    Repair: FacetRule(_describe_repair, _claims()),
    UpgradeCatalog: FacetRule(_describe_upgrade, _claims()),
    FenceCollection: FacetRule(_describe_fence, _claims()),
    CreateNamespace: FacetRule("create", _claims(Stake.FREE_NAME)),
    UpdateNamespace: FacetRule("update", _claim_update, _touch_properties),
    DropNamespace: FacetRule("drop", _claims(Stake.DROP, Stake.EMPTIED)),
    CreateTable: FacetRule("create", _claim_new_object),
    RegisterTable: FacetRule("register", _claim_new_object),
    UpdateTable: FacetRule("update", _claim_update, _touch_update),
    DropTable: FacetRule("drop", _claims(Stake.DROP)),
    AppendFiles: FacetRule("append to", _claim_rows, _touches(Aspect.ROWS_ADDED)),
    OverwriteFiles: FacetRule("overwrite", _claim_rows, _touch_overwrite),
    ChangeRows: FacetRule(_describe_change, _claim_rows, _touch_change),
    CommitIceberg: FacetRule(
        "move the metadata pointer of", _claims(Stake.OBJECT, Stake.POINTER), _touches(Aspect.POINTER)
    ),
    RestoreTable: FacetRule("restore", _claims(Stake.DEFINITION), _touches(Aspect.WHOLE)),
    CreateView: FacetRule("create", _claim_new_view),
    ReplaceView: FacetRule("replace", _claim_replaced_view, _touches(Aspect.WHOLE)),
    DropView: FacetRule("drop", _claims(Stake.DROP)),
    RenameObject: FacetRule(_describe_rename, _claim_rename),
    Undrop: FacetRule(_describe_undrop, _claim_undrop, _touch_undrop),
    AdvancePipeline: FacetRule(_describe_jobs, _claim_jobs, _touch_jobs),
    CreateSubscription: FacetRule("create", _claims(Stake.FREE_NAME)),
    DropSubscription: FacetRule("drop", _claims(Stake.DROP)),
    ClaimSubscription: FacetRule("claim", _claims(Stake.HOLDER), _touches(Aspect.HOLDER)),
    CreateTag: FacetRule("create", _claims(Stake.FREE_NAME)),
    ReplaceTag: FacetRule("replace", _claims(Stake.DEFINITION), _touches(Aspect.WHOLE)),
    DropTag: FacetRule("drop", _claims(Stake.DROP)),
}
"""Rules by class of operation. A class without a row fails at its first commit, so a missing rule is noticed."""


def _claims_of_read(read: Read) -> Iterator[Claim]:
    if read.type in _LISTINGS:
        yield Claim(read.name, Stake.SEEN_EXISTENCE, read)
        yield Claim(read.name, Stake.SEEN_NAMES, read, child_text(_LISTINGS[read.type], read.prefix))
    elif read.type == "TABLE_SELECT":
        for column in read.columns or ("",):
            yield Claim(read.name, Stake.SEEN_ROWS, read, column.lower())
    elif read.type.endswith("_EXISTS"):
        yield Claim(read.name, Stake.SEEN_EXISTENCE, read)
    else:
        yield Claim(read.name, Stake.SEEN_DEFINITION, read)


def facets_of(touches: Iterable[tuple[Action, Touch]]) -> set[Facet]:
    return {facet for _, touch in touches for facet in touch.facets()}
