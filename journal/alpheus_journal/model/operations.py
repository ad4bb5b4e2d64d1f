"""Operations as clients request them, and transactions as requested and as recorded.

An operation is a command. An action is the recorded fact: the operation with every id assigned, and the paths
of the definitions before and after. The messages of both are in `operation_messages`. No value refers to itself, so the
garbage collector need not track the values (`gc=False`). The module is long because every operation is a class here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import (
    CatalogDef,
    Column,
    InputPosition,
    JobDeclaration,
    PartitionField,
    Reference,
    Segment,
    SortField,
    TagObject,
    VersionRange,
)

# --- operations: what a client asks ----------------------------------------------------------------


class _OnCatalog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    @property
    def target(self) -> ObjectName:
        return fmt.CATALOG


class _OnNamespace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str

    @property
    def target(self) -> ObjectName:
        return ObjectName(Kind.NAMESPACE, self.name)


class _OnTable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    namespace: str
    name: str

    @property
    def target(self) -> ObjectName:
        return ObjectName(Kind.TABLE, self.namespace, self.name)


class _OnView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    namespace: str
    name: str

    @property
    def target(self) -> ObjectName:
        return ObjectName(Kind.VIEW, self.namespace, self.name)


class CreateCatalog(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """Recorded only in version 0: the first definition of the catalog, with its limits."""

    definition: CatalogDef


class UpdateCatalog(_OnCatalog, frozen=True, kw_only=True, gc=False):
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()


class CancelTransaction(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """Cancels a transaction: its id can never commit."""

    transaction_id: str


class LostVersion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version that was known and is missing. `commit_id` is empty when unknown. `known_from` is the path of the file
    that named the version."""

    version: int
    commit_id: str = ""
    known_from: str = ""


class Repair(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """A repair that a person accepted by `alpheus repair`. The history continues above `head_version`, and the
    versions of `lost` are given up.

    `times_up_to_millis` is the largest time so far; when it is given, the times of versions may begin again lower from
    this version on. `given_up` are versions up to the head that are missing, or from which the head does not descend.
    The catalog's definition records these two fields; no other object changes. No client may request a repair.
    """

    head_version: int
    lost: tuple[LostVersion, ...] = ()
    times_up_to_millis: int = 0
    given_up: tuple[VersionRange, ...] = ()


class UpgradeCatalog(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """Takes the catalog to a later revision of the format. Programs that do not know the revision refuse it from this
    version on."""

    revision: int


DISREGARDED_MAX = 1_000
"""The most transactions whose leases one fence disregards."""
STARTS_RAISED_MAX = 500
"""The most tables whose starts one fence raises. Others wait for another collection."""
TABLE_STARTS_MAX = 5_000
"""The most tables of a catalog that have a start."""


class PlannedStart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A table's start as a collection planned it: the data files that only versions below `version` list may go. The
    plan rests on the rules that the table had, under its name."""

    table_id: str
    version: int
    namespace: str
    name: str
    age_millis: int
    keep_versions: int

    @property
    def object_name(self) -> ObjectName:
        return ObjectName(Kind.TABLE, self.namespace, self.name)


class FenceCollection(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """Says that a collection deletes files that nothing reaches and that are older than `cutoff_millis` by the store's
    clock. A transaction that brings older files is refused from this version on, unless a lease keeps its files.
    `disregarded` are the ids of transactions whose leases count no more. `starts` take effect where the table still has
    the rules that the plan found."""

    cutoff_millis: int
    disregarded: tuple[str, ...] = ()
    starts: tuple[PlannedStart, ...] = ()


def given_up_in(transactions: Iterable[RecordedTransaction]) -> Iterator[VersionRange]:
    """Yield the versions that the repairs among `transactions` gave up."""
    for recorded in transactions:
        for action in recorded.actions:
            if isinstance(action.operation, Repair):
                yield from action.operation.given_up


class CreateNamespace(_OnNamespace, frozen=True, kw_only=True, gc=False):
    namespace_id: str
    properties: dict[str, str] = {}
    data_root: str = ""


class UpdateNamespace(_OnNamespace, frozen=True, kw_only=True, gc=False):
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()


class DropNamespace(_OnNamespace, frozen=True, kw_only=True, gc=False):
    """Drops a namespace: with `cascade` including everything inside, else it must be empty."""

    cascade: bool = False


class CreateTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Creates a native table. The client assigns column ids from 1 on, depth first. `partition_spec` and `sort_order`
    can never change."""

    table_id: str
    columns: tuple[Column, ...]
    properties: dict[str, str] = {}
    partition_spec: tuple[PartitionField, ...] = ()
    sort_order: tuple[SortField, ...] = ()


class RegisterTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Registers an Iceberg table: the catalog holds the pointer to the table's metadata file."""

    table_id: str
    metadata_location: str
    properties: dict[str, str] = {}


class AddColumn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A new column, last among its siblings. `parent` is the path of the struct that gets the column, "" at the top.
    Where an id is 0, the execution of the operation assigns one from the table's counter, depth first. A default of
    the column is both its initial default and its write default."""

    column: Column
    parent: str = ""


class UpdateTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Changes properties and columns of a table.

    A column is named by its path: names of struct fields, "key", "value" and "element", joined by dots. A text that is
    the name of a top-level column means that column and is not read as a path. All paths are those before the
    operation. One column may be named in one kind of change only. Exceptions are `nullable_columns` and, unless the
    column's type changes, `defaults`.
    """

    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    add_columns: tuple[AddColumn, ...] = ()
    drop_columns: tuple[str, ...] = ()
    rename_columns: dict[str, str] = {}  # path -> new name, without its parents
    retype_columns: dict[
        str, Column
    ] = {}  # path -> a column of which only `type` and the type's properties count
    nullable_columns: dict[str, bool] = {}
    column_order: tuple[str, ...] = ()  # every top-level column by its new name; empty means no change
    defaults: dict[str, bytes | None] = {}  # path -> its `write_default` from now on

    @property
    def changes_columns(self) -> bool:
        return bool(
            self.add_columns
            or self.drop_columns
            or self.rename_columns
            or self.retype_columns
            or self.nullable_columns
            or self.column_order
            or self.defaults
        )


class DropTable(_OnTable, frozen=True, kw_only=True, gc=False):
    purge: bool = False


class AppendFiles(_OnTable, frozen=True, kw_only=True, gc=False):
    """Adds rows, in manifest segments that are already stored. `table_id` is the id of the table for which the files
    were written; a table with another id under the same name is refused. `data_root` says where the data files were
    written; a table with another data root is refused."""

    table_id: str
    segments: tuple[Segment, ...]
    data_root: str = ""


class OverwriteFiles(_OnTable, frozen=True, kw_only=True, gc=False):
    """Replaces all rows by the rows of `segments`, which may be empty. `data_root` means the same as in AppendFiles."""

    table_id: str
    segments: tuple[Segment, ...]
    data_root: str = ""


class ChangeMode(enum.StrEnum):
    """The purpose of a ChangeRows."""

    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"
    OVERWRITE = "overwrite"  # the rows that match, or partitions
    COMPACT = "compact"  # the same rows in other files

    @property
    def verb(self) -> str:
        """The words before the name of a table in a message."""
        return _VERBS[self]


_VERBS = {
    ChangeMode.DELETE: "delete from",
    ChangeMode.UPDATE: "update",
    ChangeMode.MERGE: "merge into",
    ChangeMode.OVERWRITE: "overwrite part of",
    ChangeMode.COMPACT: "compact",
}


class ChangeRows(_OnTable, frozen=True, kw_only=True, gc=False):
    """Changes some rows of a native table (FORMAT.md, "Changing rows"). The files of `segments` are added, the files
    that `removed` lists, as the table has them, are removed, and `predicates` (`predicate.encode`) hide rows of the
    other files that the author saw.

    * `base_sequence`: the table's sequence in the transaction's begin version; 0 when the table did not exist then. For
      a table that the transaction itself brought back, the sequence that the table then had.
    * `scan`: the predicate of the rows that the author read; empty means all rows.
    * `changes`: segments of change files, for feeds.
    * `sources`: segments of the table that held the removed files; the removed files are looked up there first.
    * `rows_hidden`: rows that the predicates hide, as the author counted; 0 when not counted.
    * `rows_kept`, `rows_dead`: rows of the removed files that were only rewritten, and rows that were deleted before.
      Both count neither as added nor as removed.
    * `outputs_sequence`, assigned by the execution: the sequence of the added files (for a compaction also without
      added files); 0 when no files are added.
    * `hides_up_to`, assigned by the execution: the highest sequence of the files to which the predicates apply.
    * `data_root` means the same as in AppendFiles.
    """

    table_id: str
    base_sequence: int
    mode: ChangeMode
    segments: tuple[Segment, ...] = ()
    removed: tuple[Segment, ...] = ()
    predicates: tuple[bytes, ...] = ()
    scan: bytes = b""
    changes: tuple[Segment, ...] = ()
    sources: tuple[str, ...] = ()
    rows_hidden: int = 0
    outputs_sequence: int = 0
    hides_up_to: int = 0
    rows_kept: int = 0
    rows_dead: int = 0
    data_root: str = ""

    @property
    def moves_rows(self) -> bool:
        """Whether existing rows continue in a changed form."""
        return self.mode in (ChangeMode.UPDATE, ChangeMode.MERGE)


class CommitIceberg(_OnTable, frozen=True, kw_only=True, gc=False):
    """Moves a registered table's metadata location from `expected` to `metadata_location`."""

    metadata_location: str
    expected: str


class RestoreTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Restores columns, rows and properties as they were at `version`. Id, counters and writer marks stay."""

    version: int


class CreateView(_OnView, frozen=True, kw_only=True, gc=False):
    """Creates a view. `references` are the tables and views that the SQL text names. With `schema_binding` they must
    exist, and cannot be dropped, renamed, or lose or change columns while this view exists. `columns` are the columns
    of the view's result, when known."""

    view_id: str
    sql: str
    dialect: str
    references: tuple[Reference, ...] = ()
    schema_binding: bool = False
    columns: tuple[Column, ...] = ()
    default_namespace: str = ""
    properties: dict[str, str] = {}


class ReplaceView(_OnView, frozen=True, kw_only=True, gc=False):
    """Replaces everything of a view except its id."""

    sql: str
    dialect: str
    references: tuple[Reference, ...] = ()
    schema_binding: bool = False
    columns: tuple[Column, ...] = ()
    default_namespace: str = ""
    properties: dict[str, str] = {}


class DropView(_OnView, frozen=True, kw_only=True, gc=False):
    pass


class RenameObject(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Renames a table or view, perhaps into another namespace, or a pipeline or tag. The object stays the same."""

    kind: Kind
    namespace: str
    name: str
    new_namespace: str
    new_name: str

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.kind, self.namespace, self.name)

    @property
    def new_target(self) -> ObjectName:
        return ObjectName(self.kind, self.new_namespace, self.new_name)


class TableCounters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The counters that a table has after an undrop."""

    table_id: str
    next_column_id: int
    sequence: int
    schema_id: int


class Undrop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Restores a dropped object as it was at `version`, perhaps under a new name. A namespace (whose `name` and
    `new_name` are empty) returns with the objects inside it.

    `counters` are decided by the execution, in the order of table ids, for tables whose counters are not those of
    `version`.
    """

    kind: Kind
    namespace: str
    version: int
    new_namespace: str
    name: str = ""
    new_name: str = ""
    counters: tuple[TableCounters, ...] = ()

    @property
    def source(self) -> ObjectName:
        return ObjectName(self.kind, self.namespace, self.name)

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.kind, self.new_namespace, self.new_name)


class AdvancePipeline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Stores a job's new position, if the job's last transaction is still `expected_transaction_id` ("" when the job
    never ran).

    `former_job` is the job's earlier name, whose entry is removed. `expected_pipeline_id` is the id of the pipeline's
    entry: "" means that there must be no entry, None accepts any entry.
    """

    name: str
    job: str
    expected_transaction_id: str
    pinned_version: int
    inputs: dict[str, InputPosition] = {}
    state: str = "running"
    error: str = ""
    params: dict[str, str] = {}
    called_at_millis: int = 0
    declaration: JobDeclaration | None = None  # None keeps the earlier declaration
    former_job: str = ""
    expected_pipeline_id: str | None = None

    @property
    def target(self) -> ObjectName:
        return fmt.pipeline_name(self.name)


class _OnSubscription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str

    @property
    def target(self) -> ObjectName:
        return fmt.subscription_name(self.name)


class CreateSubscription(_OnSubscription, frozen=True, kw_only=True, gc=False):
    """Creates a subscription. The fields mean the same as in SubscriptionDef. `next_version` is the first version whose
    event the subscription delivers."""

    subscription_id: str
    lease_millis: int
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    name_patterns: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    actions: tuple[str, ...] = ()
    details: bool = False
    next_version: int = 0
    token: str = ""


class DropSubscription(_OnSubscription, frozen=True, kw_only=True, gc=False):
    pass


class ClaimSubscription(_OnSubscription, frozen=True, kw_only=True, gc=False):
    """Begins a new epoch, if the subscription is still in the expected one. `holder` consumes from `next_version` on
    and stores its position at `position_path`. Without holder and path this is a reset: the next holder begins at
    `next_version`."""

    subscription_id: str
    expected_epoch: int
    expected_position_path: str
    next_version: int
    token: str = ""
    holder: str = ""
    position_path: str = ""
    previous_position_path: str = ""


class _OnTag(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str

    @property
    def target(self) -> ObjectName:
        return fmt.tag_name(self.name)


class SetTag(_OnTag, frozen=True, kw_only=True, gc=False):
    """The fields that creating and replacing a tag share. They mean the same as in TagDef. The pin was durable before
    the transaction was sent, and was made of the version by this catalog."""

    version: int
    commit_id: str
    version_created_at_millis: int
    pin_path: str
    expire_at_millis: int = 0
    message: str = ""
    properties: dict[str, str] = {}
    object_count: int | None = None
    table_count: int | None = None
    row_count: int | None = None
    chosen: tuple[TagObject, ...] = ()
    left_out: tuple[TagObject, ...] = ()
    lacking: dict[str, int] = {}


class CreateTag(SetTag, frozen=True, kw_only=True, gc=False):
    """Gives a version a name."""

    tag_id: str


class ReplaceTag(SetTag, frozen=True, kw_only=True, gc=False):
    """Gives a tag's name to another version, or new properties to the tag. Its id stays."""


class DropTag(_OnTag, frozen=True, kw_only=True, gc=False):
    """Drops a tag. With `expected_pin_path`, only if the tag was not replaced: it still has this pin."""

    expected_pin_path: str = ""


Operation = (
    CreateCatalog | UpdateCatalog | CancelTransaction | CreateNamespace | UpdateNamespace | DropNamespace
    | CreateTable | RegisterTable | UpdateTable | DropTable | AppendFiles | OverwriteFiles | CommitIceberg
    | RestoreTable | CreateView | ReplaceView | DropView | RenameObject | Undrop | AdvancePipeline
    | CreateSubscription | DropSubscription | ClaimSubscription | ChangeRows | Repair | UpgradeCatalog
    | CreateTag | ReplaceTag | DropTag | FenceCollection
)  # fmt: skip


# --- transactions ----------------------------------------------------------------------------------


class Read(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A read of a serializable transaction, as one of the format's read actions. `type` is a name of ActionType:

    * `..._EXISTS`, `..._DESCRIBE`: the object `name` (found, or not);
    * `CATALOG_SHOW_NAMESPACES`, `CATALOG_SHOW_PIPELINES` (of the catalog), `NAMESPACE_SHOW_TABLES`,
      `NAMESPACE_SHOW_VIEWS` (of a namespace): a listing of names that begin with `prefix`;
    * `TABLE_SELECT`: rows of a table, in `columns` (names; empty: all).
    """

    type: str
    name: ObjectName
    columns: tuple[str, ...] = ()
    prefix: str = ""


READ_TYPES = frozenset({
    "CATALOG_SHOW_NAMESPACES", "CATALOG_SHOW_PIPELINES", "CATALOG_DESCRIBE",
    "NAMESPACE_EXISTS", "NAMESPACE_DESCRIBE", "NAMESPACE_SHOW_TABLES", "NAMESPACE_SHOW_VIEWS",
    "TABLE_EXISTS", "TABLE_DESCRIBE", "TABLE_SELECT", "VIEW_EXISTS", "VIEW_DESCRIBE", "PIPELINE_DESCRIBE",
})  # fmt: skip


class Writer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An idempotent writer and its own count, from 0 up. Writes at or below the sequence that a table remembers have
    been applied."""

    name: str
    sequence: int


class Transaction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A transaction that a client asks to commit, whole or not at all.

    The client makes `id`, a uuid7, and fixes `begin_version`, a version that it has seen, before the first send. The
    same id with other operations is refused. `id_was_given` means that the id may have been used before, so versions up
    to the begin version are searched for it too. `key` is the idempotency key: the first transaction with a key is
    applied, and later ones with that key get its answer, whatever they request (FORMAT.md, "Retries"). `lease_path` is
    the lease that keeps its files until the commit, or empty (FORMAT.md, "Leases of writers"). It is not recorded.
    """

    id: str
    begin_version: int
    operations: tuple[Operation, ...]
    principal: str = ""
    principal_authenticated: bool = False
    message: str = ""
    properties: dict[str, str] = {}
    serializable: bool = False
    reads: tuple[Read, ...] = ()
    key: str = ""
    writer: Writer | None = None
    id_was_given: bool = False
    lease_path: str = ""


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object that an operation changed, with the paths of its definition before and after ("" when the object did
    not exist)."""

    name: ObjectName
    path_before: str = ""
    path_after: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recorded fact. `type` is a name of ActionType ("TABLE_INSERT"). `operation` is None in actions of other
    software that this revision cannot read; the structural diff shows their effect. `also` holds the effects of the
    operation on objects other than `name` (a rename's new name, the children of a namespace, tables to which a view is
    bound)."""

    type: str
    name: ObjectName
    operation: Operation | None
    path_before: str = ""
    path_after: str = ""
    also: tuple[Effect, ...] = ()

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All objects that the action changed, `name` first; empty when the action changed nothing."""
        if not self.path_before and not self.path_after:
            return self.also
        first = Effect(name=self.name, path_before=self.path_before, path_after=self.path_after)
        return (first, *self.also)


class RecordedTransaction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transaction of one version, as its root records it."""

    id: str
    operations_digest: bytes
    principal: str
    principal_authenticated: bool
    message: str
    properties: dict[str, str]
    serializable: bool
    branch: str
    begin_version: int
    committed_at_millis: int
    actions: tuple[Action, ...]
    reads: tuple[Read, ...] = ()
    key: str = ""
    writer: Writer | None = None

    @property
    def cancels(self) -> str:
        """The transaction id that this one cancels, or empty."""
        for action in self.actions:
            if isinstance(action.operation, CancelTransaction):
                return action.operation.transaction_id
        return ""

    @property
    def disregards(self) -> tuple[str, ...]:
        """The ids of transactions whose leases this one, a fence, disregards."""
        return tuple(
            id
            for action in self.actions
            if isinstance(action.operation, FenceCollection)
            for id in action.operation.disregarded
        )

    def touches(self, name: ObjectName) -> bool:
        """Return whether an action of this transaction names the object, or changed it as a side effect. A table's name
        also means a view of that name, because tables and views share one space of names."""
        names = {name}
        if name.kind in (Kind.TABLE, Kind.VIEW):
            names = {ObjectName(kind, name.namespace, name.name) for kind in (Kind.TABLE, Kind.VIEW)}
        return any(
            action.name in names or any(effect.name in names for effect in action.also)
            for action in self.actions
        )
