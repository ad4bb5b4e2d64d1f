"""Definitions of objects, as frozen values (FORMAT.md, "Definitions"). Their messages are in `definition_messages`.

No value refers to itself, so the garbage collector need not track the values (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_pb.v1 import objects_pb2 as pb

VIEW_FORMAT_SUBSTRAIT = int(pb.SUBSTRAIT)
VIEW_FORMAT_SQL = int(pb.SQL)


class TimeMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """From `version` on the times of versions may begin again lower; before, they reach up to `up_to_millis`."""

    version: int
    up_to_millis: int


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """A range of versions, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"version {self.first}" if self.first == self.last else f"versions {self.first} to {self.last}"


GIVEN_UP_MAX = 1000
"""The most ranges of given-up versions in a catalog's definition."""


def merge_ranges(ranges: Iterable[VersionRange]) -> tuple[VersionRange, ...]:
    """Return the same versions in the fewest ranges, ascending."""
    found: list[VersionRange] = []
    for one in sorted(ranges, key=lambda one: one.first):
        if found and one.first <= found[-1].last + 1:
            found[-1] = VersionRange(found[-1].first, max(found[-1].last, one.last))
        else:
            found.append(one)
    return tuple(found)


def ranges_of(versions: Iterable[int]) -> tuple[VersionRange, ...]:
    return merge_ranges(VersionRange(version, version) for version in versions)


class CatalogDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The catalog itself: limits that never change, properties, the default isolation."""

    id: str
    order: int = fmt.ORDER_DEFAULT
    namespace_name_size_max: int = fmt.NAME_SIZE_BYTES_DEFAULT
    table_name_size_max: int = fmt.NAME_SIZE_BYTES_DEFAULT
    view_name_size_max: int = fmt.NAME_SIZE_BYTES_DEFAULT
    node_file_size_max: int = fmt.NODE_FILE_SIZE_BYTES_DEFAULT
    properties: dict[str, str] = {}
    txn_ttl_millis: int = fmt.TXN_TTL_MILLIS_DEFAULT
    serializable_default: bool = False
    exported_snapshots: dict[str, str] = {}
    time_marks: tuple[TimeMark, ...] = ()
    given_up: tuple[VersionRange, ...] = ()
    format_revision: int = 1
    data_roots: dict[str, str] = {}
    """The last namespace that was created with each data root, by the root's URL."""
    collected_before_millis: int = 0
    """Files older than this, by the store's clock, may have been collected. 0: nothing was collected."""
    table_starts: dict[str, int] = {}
    """The oldest version whose data files of a table are kept, by the table's id. A table without an entry has all."""
    unknown: bytes = b""

    def keys(self, version_digits: int) -> fmt.Keys:
        """Return the rules by which this catalog's names become keys."""
        return fmt.Keys(
            version_digits=version_digits,
            namespace_size_max=self.namespace_name_size_max,
            table_size_max=self.table_name_size_max,
            view_size_max=self.view_name_size_max,
        )


class NamespaceDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    properties: dict[str, str] = {}
    data_root: str = ""
    unknown: bytes = b""


class Column(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One column with its nested columns. `type` is a name of the format's DataType ("INT8"). Precision, scale and
    length are properties. In a native table `id` is the Parquet field id."""

    id: int
    name: str
    type: str
    nullable: bool = True
    properties: dict[str, str] = {}
    fields: tuple[Column, ...] = ()  # of a STRUCT
    key: Column | None = None  # of a MAP
    value: Column | None = None  # of a MAP
    element: Column | None = None  # of a LIST
    initial_default: bytes | None = (
        None  # of rows whose files lack it; never changes (columns.decode_default)
    )
    write_default: bytes | None = None  # of inserts that leave it out

    def __hash__(self) -> int:
        return hash((self.id, self.name, self.type))  # the properties are not hashable

    def children(self) -> tuple[Column, ...]:
        """Return nested columns, in the order in which ids are assigned."""
        if self.key is None and self.value is None and self.element is None:
            return self.fields
        return self.fields + tuple(c for c in (self.key, self.value, self.element) if c is not None)


def walk_columns(columns: Iterable[Column]) -> Iterator[Column]:
    """Yield all columns including nested ones, depth first."""
    for column in columns:
        yield column
        nested = column.children()
        if nested:
            yield from walk_columns(nested)


def with_ids(column: Column, next_id: Callable[[], int]) -> Column:
    """Return the column with ids from `next_id` for itself and its nested columns, depth first."""

    def nested(child: Column | None) -> Column | None:
        return with_ids(child, next_id) if child is not None else None

    return msgspec.structs.replace(
        column,
        id=next_id(),
        fields=tuple(with_ids(field, next_id) for field in column.fields),
        key=nested(column.key),
        value=nested(column.value),
        element=nested(column.element),
    )


class Segment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A table's reference to one manifest segment. `sequence` is 0 before the operation is executed."""

    path: str
    file_count: int
    row_count: int
    size_bytes: int  # of the data files, together
    sha256: bytes
    segment_size_bytes: int
    sequence: int = 0  # the highest of its files
    min_sequence: int = 0  # the lowest of its files; 0 means the same as `sequence`

    @property
    def lowest_sequence(self) -> int:
        return self.min_sequence or self.sequence


class DeletePredicate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hides the rows of files at or below `sequence` for which `expression` (`predicate.decode`) is TRUE. `moves` means
    that its operation, at `committed_sequence`, added the hidden rows again in changed form."""

    sequence: int
    expression: bytes
    transaction_id: str
    committed_sequence: int
    moves: bool = False


class PartitionField(msgspec.Struct, frozen=True, gc=False):
    """One key of a table's partitions (`alpheus_journal.tables.partitions`). `transform` is a name of the format's
    PartitionTransform ("IDENTITY", "DAY", "MONTH", "YEAR")."""

    column_id: int
    transform: str = "IDENTITY"


class SortField(msgspec.Struct, frozen=True, gc=False):
    """One key of the sort order of rows in a table's files."""

    column_id: int
    descending: bool = False
    nulls_last: bool = False


class Reference(msgspec.Struct, frozen=True, gc=False):
    """The name of a table or a view. Tables and views share one space of names."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


class WriterMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last transaction of an idempotent writer on a table."""

    sequence: int
    transaction_id: str
    version: int


COLUMN_ID_MAX = (1 << 31) - 1  # Parquet's


class TableDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A table. A `native` table keeps its schema and list of files here; any other table points at Iceberg metadata."""

    id: str
    native: bool = True
    properties: dict[str, str] = {}
    iceberg_metadata_location: str = ""
    iceberg_previous_metadata_location: str = ""
    columns: tuple[Column, ...] = ()
    next_column_id: int = 1
    schema_id: int = 0
    partition_spec: tuple[PartitionField, ...] = ()
    sort_order: tuple[SortField, ...] = ()
    segments: tuple[Segment, ...] = ()
    delete_predicates: tuple[DeletePredicate, ...] = ()
    sequence: int = 0
    writer_marks: dict[str, WriterMark] = {}
    data_root: str = ""
    bound_views: tuple[Reference, ...] = ()  # in order
    unknown: bytes = b""  # fields of newer or other software, written back unchanged

    @property
    def row_count(self) -> int:
        """The number of rows in the data files, including rows that delete predicates hide."""
        return sum(segment.row_count for segment in self.segments)

    @property
    def file_count(self) -> int:
        return sum(segment.file_count for segment in self.segments)


class ViewDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A view: SQL text in a dialect, or the content of another `view_format` by other software, which is kept
    unchanged: a Substrait relation (perhaps empty), or a format of a later revision.

    `bound_views` are the views with schema binding that refer to this view, in order.
    """

    id: str
    properties: dict[str, str] = {}
    sql: str = ""
    dialect: str = ""
    schema_binding: bool = False
    references: tuple[Reference, ...] = ()
    columns: tuple[Column, ...] = ()
    default_namespace: str = ""
    bound_views: tuple[Reference, ...] = ()
    view_format: int = VIEW_FORMAT_SQL
    substrait: bytes = b""
    unknown: bytes = b""

    @property
    def is_sql(self) -> bool:
        return self.view_format == VIEW_FORMAT_SQL


class InputPosition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The progress of a job in one input, by table id, up to and including `version`."""

    table_id: str
    version: int
    table: str = ""


class DeclaredTable(msgspec.Struct, frozen=True, kw_only=True, gc=False, order=True):
    """A table in a job's declaration. `table_id` is empty when the table did not exist."""

    table: str
    table_id: str = ""


class JobDeclaration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The declaration of a job, with tables in order of name. `open` means that a person allowed the next declaration
    to replace this one."""

    inputs: tuple[DeclaredTable, ...] = ()
    outputs: tuple[DeclaredTable, ...] = ()
    open: bool = False


class JobDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The position of one job, which is the job's whole state."""

    last_transaction_id: str
    pinned_version: int
    inputs: dict[str, InputPosition] = {}
    state: str = "running"  # or "parked"
    error: str = ""
    params: dict[str, str] = {}
    called_at_millis: int = 0  # when the last run was called, by its own clock; 0 when unknown
    declaration: JobDeclaration | None = None  # of the last run; None when an earlier release ran it


class PipelineDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    jobs: dict[str, JobDef] = {}
    unknown: bytes = b""


class SubscriptionDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A durable subscription (FORMAT.md, "Subscriptions"): which events it delivers, and to which holder. The filter's
    parts are in order; `actions` are names of action types. The holder's position is stored at `position_path`."""

    id: str
    lease_millis: int
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    name_patterns: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    actions: tuple[str, ...] = ()
    details: bool = False
    holder: str = ""  # empty when no holder came since creation or the last reset
    epoch: int = 0
    position_path: str = ""  # empty without a holder
    next_version: int = 0  # where the epoch began: the first version that was not acknowledged
    token: str = ""  # names the version before `next_version`; empty when unknown
    previous_position_path: str = ""  # of the epoch before; the file may be deleted
    created_at_millis: int = 0
    unknown: bytes = b""


class TagObject(msgspec.Struct, frozen=True, gc=False):
    """A table or view, or a namespace with everything in it (no `name`), that a tag holds or leaves out. `version` is
    the version whose state the tag holds, and 0 of what it leaves out."""

    namespace: str
    name: str = ""
    version: int = 0

    @property
    def object_name(self) -> ObjectName:
        """The name, with the kind of a table for a view, too."""
        kind = Kind.TABLE if self.name else Kind.NAMESPACE
        return ObjectName(kind, self.namespace, self.name)

    @property
    def full_name(self) -> str:
        return self.object_name.full_name


class TagDef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tag (FORMAT.md, "Tags and pins"): a name for a version, which stays readable from the copy of its root at
    `pin_path`. `creator` is the principal of the transaction that made or replaced the tag. From `expire_at_millis` on
    (epoch milliseconds; 0: never) the tag may be deleted. The counts are None where they are not known. With `chosen`
    or `left_out`, the pin has a tree of its own, of chosen namespaces, tables and views."""

    id: str
    version: int
    commit_id: str
    version_created_at_millis: int
    pin_path: str
    creator: str = ""
    created_at_millis: int = 0
    expire_at_millis: int = 0
    message: str = ""
    properties: dict[str, str] = {}
    object_count: int | None = None
    table_count: int | None = None
    row_count: int | None = None
    chosen: tuple[TagObject, ...] = ()
    left_out: tuple[TagObject, ...] = ()
    lacking: dict[str, int] = {}
    """The tables whose data files may have been deleted before the pin was stored, by their ids, with their starts."""
    unknown: bytes = b""

    @property
    def is_chosen(self) -> bool:
        return bool(self.chosen or self.left_out)

    def version_of(self, name: ObjectName) -> int | None:
        """Return the version at which the tag holds an object, if it existed; None where the tag leaves it out.

        Of a namespace, it is the version of its definition. Does not tell whether all its objects are held.
        """
        return TagParts(self).version_of(name)

    def holds_all_of(self, namespace: str) -> bool:
        """Return whether the tag holds a namespace with everything that is in it, all of one version."""
        if any(each.namespace == namespace for each in self.left_out):
            return False
        inside = [each for each in self.chosen if each.namespace == namespace]
        return not self.chosen or [each.name for each in inside] == [""]


class TagParts:
    """Answers `TagDef.version_of` for many objects, each in the same short time."""

    def __init__(self, tag: TagDef) -> None:
        self._tag = tag
        self._left_out = {(each.namespace, each.name) for each in tag.left_out}
        self._chosen: dict[tuple[str, str], int] = {}
        self._newest: dict[str, int] = {}
        for each in tag.chosen:
            self._chosen.setdefault((each.namespace, each.name), each.version)
            self._newest[each.namespace] = max(each.version, self._newest.get(each.namespace, 0))

    def version_of(self, name: ObjectName) -> int | None:
        """Return the version at which the tag holds an object: that of its own name, or else its namespace's. A
        namespace without an entry of its own has the highest version of what was chosen in it."""
        if not self._tag.is_chosen:
            return self._tag.version
        if name.kind not in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW):
            return None
        own, whole = (name.namespace, name.name), (name.namespace, "")
        if own in self._left_out or whole in self._left_out:
            return None
        if not self._tag.chosen:
            return self._tag.version
        newest = self._newest.get(name.namespace) if name.kind is Kind.NAMESPACE else None
        return self._chosen.get(own, self._chosen.get(whole, newest))


Definition = CatalogDef | NamespaceDef | TableDef | ViewDef | PipelineDef | SubscriptionDef | TagDef
