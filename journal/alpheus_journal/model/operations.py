"""Operations as they are asked, transactions as they are asked and as they are recorded.

An operation is a command; an action is the recorded fact: the operation with every id assigned, and the paths
of the definitions before and after. Their messages are in `operation_messages`. No value refers to itself, so the
collector of cycles need not look at them (`gc=False`).
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
    """Recorded in version 0 only: the first definition, limits included."""

    definition: CatalogDef


class UpdateCatalog(_OnCatalog, frozen=True, kw_only=True, gc=False):
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()


class CancelTransaction(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """An id that shall never commit."""

    transaction_id: str


class LostVersion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version that was known and is not there. `commit_id`: empty where nobody knows it. `known_from`: path of the
    file that named it."""

    version: int
    commit_id: str = ""
    known_from: str = ""


class Repair(_OnCatalog, frozen=True, kw_only=True, gc=False):
    """What a person accepted by `alpheus repair`: history goes on above `head_version`, and the versions of `lost` are
    given up. With `times_up_to_millis`, the largest time so far, the times of versions count anew from this one on.
    `given_up`: versions up to the head that are not there, or that the head does not go back to. The catalog's
    definition says the latter two; else no object changes. No client may ask for it."""

    head_version: int
    lost: tuple[LostVersion, ...] = ()
    times_up_to_millis: int = 0
    given_up: tuple[VersionRange, ...] = ()


def given_up_in(transactions: Iterable[RecordedTransaction]) -> Iterator[VersionRange]:
    """The versions that repairs among some transactions gave up."""
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
    """`cascade`: with everything inside; else it must be empty."""

    cascade: bool = False


class CreateTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """A native table. Column ids are assigned by the client, 1 and up, depth first. `partition_spec`, `sort_order`: for
    life."""

    table_id: str
    columns: tuple[Column, ...]
    properties: dict[str, str] = {}
    partition_spec: tuple[PartitionField, ...] = ()
    sort_order: tuple[SortField, ...] = ()


class RegisterTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """An Iceberg table: the catalog holds the pointer to its metadata file."""

    table_id: str
    metadata_location: str
    properties: dict[str, str] = {}


class AddColumn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A new column, last among its siblings. `parent`: path of the struct that it joins, "" at the top. Ids 0 are
    given when the operation is executed, from the table's counter, depth first. A default of the column is both its
    initial and its write default."""

    column: Column
    parent: str = ""


class UpdateTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Properties and columns. Columns are named by path: the names of a struct's fields, "key", "value" and "element",
    joined by dots; the name of a top-level column counts before its reading as a path. All paths are those
    before the operation, and no column may be named in two ways of changing it but `nullable_columns` and, unless its
    type changes, `defaults`."""

    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    add_columns: tuple[AddColumn, ...] = ()
    drop_columns: tuple[str, ...] = ()
    rename_columns: dict[str, str] = {}  # path -> new name, without its parents
    retype_columns: dict[
        str, Column
    ] = {}  # path -> its `type` and type properties; the rest is not looked at
    nullable_columns: dict[str, bool] = {}
    column_order: tuple[str, ...] = ()  # every top-level column, as named afterwards; empty: as it was
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
    """Rows added: manifest segments that are on storage already. `table_id`: the table that the files
    were written for; a table of another id under the same name is refused."""

    table_id: str
    segments: tuple[Segment, ...]


class OverwriteFiles(_OnTable, frozen=True, kw_only=True, gc=False):
    """All rows replaced by those of `segments`, which may be none."""

    table_id: str
    segments: tuple[Segment, ...]


class ChangeMode(enum.StrEnum):
    """What a ChangeRows is for."""

    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"
    OVERWRITE = "overwrite"  # the rows that match, or partitions
    COMPACT = "compact"  # the same rows in other files

    @property
    def verb(self) -> str:
        """Before the name of a table."""
        return _VERBS[self]


_VERBS = {
    ChangeMode.DELETE: "delete from",
    ChangeMode.UPDATE: "update",
    ChangeMode.MERGE: "merge into",
    ChangeMode.OVERWRITE: "overwrite part of",
    ChangeMode.COMPACT: "compact",
}


class ChangeRows(_OnTable, frozen=True, kw_only=True, gc=False):
    """Some rows of a native table changed (FORMAT.md, "Changing rows"): the files of `segments` come; those that
    `removed` lists, as the table has them, go; `predicates` (`predicate.encode`) hide rows of the other files that the
    author saw.

    `base_sequence`: the table's in the version that the transaction began at; 0 where it was not there, and of a table
    that the transaction brought back itself the sequence that it then had. `scan`: the predicate of the rows that
    it looked for; empty: all. `changes`: segments of change files, for feeds. `sources`: segments of the table that
    held the removed files, which is where they are looked for first. `rows_hidden`: by the predicates, as the author
    counted; 0: not counted. `rows_kept`, `rows_dead`: of the files that go, those that were only written again, and
    those deleted before: neither came nor went. Given when it is executed: `outputs_sequence`, at which files come in
    (of a compaction also where none come; 0: none come), and `hides_up_to`, the highest sequence of the files that the
    predicates apply to.
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

    @property
    def moves_rows(self) -> bool:
        """Whether rows that were there go on in other form."""
        return self.mode in (ChangeMode.UPDATE, ChangeMode.MERGE)


class CommitIceberg(_OnTable, frozen=True, kw_only=True, gc=False):
    """A registered table's metadata location moves from `expected` to `metadata_location`."""

    metadata_location: str
    expected: str


class RestoreTable(_OnTable, frozen=True, kw_only=True, gc=False):
    """Columns, rows and properties as they were at `version`; id, counters and writer marks stay."""

    version: int


class CreateView(_OnView, frozen=True, kw_only=True, gc=False):
    """`references`: tables and views that the text names. `schema_binding`: those must be there, and cannot be dropped,
    renamed, or lose or change columns while this view is there. `columns`: of its result, when known."""

    view_id: str
    sql: str
    dialect: str
    references: tuple[Reference, ...] = ()
    schema_binding: bool = False
    columns: tuple[Column, ...] = ()
    default_namespace: str = ""
    properties: dict[str, str] = {}


class ReplaceView(_OnView, frozen=True, kw_only=True, gc=False):
    """Everything but the id."""

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
    """A table or view under a new name, perhaps in another namespace, or a pipeline. It stays the same object."""

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


class Undrop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A dropped object again, as it was at `version`, perhaps under a new name. A namespace (whose `name` and
    `new_name` are empty) brings what was inside."""

    kind: Kind
    namespace: str
    version: int
    new_namespace: str
    name: str = ""
    new_name: str = ""

    @property
    def source(self) -> ObjectName:
        return ObjectName(self.kind, self.namespace, self.name)

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.kind, self.new_namespace, self.new_name)


class AdvancePipeline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job's new position, if its last transaction is still `expected_transaction_id` ("": never ran).

    `former_job`: the name that the job had; its entry goes. `expected_pipeline_id`: of the pipeline's entry; "": there
    is none yet; None: whichever it is.
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
    declaration: JobDeclaration | None = None  # None: it stays what it was
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
    """Fields as in SubscriptionDef. `next_version`: the first version whose event it is to get."""

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
    """A new epoch, if the subscription is still in the expected one: `holder` consumes from `next_version` on and
    writes how far it is to `position_path`. Without holder and path a reset: whoever comes next begins there."""

    subscription_id: str
    expected_epoch: int
    expected_position_path: str
    next_version: int
    token: str = ""
    holder: str = ""
    position_path: str = ""
    previous_position_path: str = ""


Operation = (
    CreateCatalog | UpdateCatalog | CancelTransaction | CreateNamespace | UpdateNamespace | DropNamespace
    | CreateTable | RegisterTable | UpdateTable | DropTable | AppendFiles | OverwriteFiles | CommitIceberg
    | RestoreTable | CreateView | ReplaceView | DropView | RenameObject | Undrop | AdvancePipeline
    | CreateSubscription | DropSubscription | ClaimSubscription | ChangeRows | Repair
)  # fmt: skip


# --- transactions ----------------------------------------------------------------------------------


class Read(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a serializable transaction read, as one of the format's read actions. `type` is a name of ActionType:

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
    """An idempotent writer and its own count, from 0 up: what is at or below the sequence that a table remembers
    has been written."""

    name: str
    sequence: int


class Transaction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a client asks to commit, whole or not at all.

    `id` is a uuid7 made by the client; `begin_version` a version that it has seen, fixed before the first
    send. The same id with other operations is refused. `id_was_given`: the id may have been used before, so versions
    up to the begin version are searched for it, too. `key`: the first transaction with it wins, whatever
    the others ask (FORMAT.md, "Retries").
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


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object that an operation changed: its definition before and after ("": not there)."""

    name: ObjectName
    path_before: str = ""
    path_after: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recorded fact. `type` is a name of ActionType ("TABLE_INSERT"). `operation` is None in actions of other
    writers that this revision cannot read; their effect is in the structural diff. `also`: what the operation did
    to objects beside `name` (a rename's new name, the children of a namespace, tables that a view is bound to)."""

    type: str
    name: ObjectName
    operation: Operation | None
    path_before: str = ""
    path_after: str = ""
    also: tuple[Effect, ...] = ()

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All objects that it changed, `name` first; none when it changed nothing."""
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

    def touches(self, name: ObjectName) -> bool:
        """Whether one of its actions is on the object, or changed it along the way. A table's name means a view's
        too: they share one space of names."""
        names = {name}
        if name.kind in (Kind.TABLE, Kind.VIEW):
            names = {ObjectName(kind, name.namespace, name.name) for kind in (Kind.TABLE, Kind.VIEW)}
        return any(
            action.name in names or any(effect.name in names for effect in action.also)
            for action in self.actions
        )
