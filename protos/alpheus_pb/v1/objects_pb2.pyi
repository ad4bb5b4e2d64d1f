from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT: _ClassVar[IsolationLevel]
    SERIALIZABLE: _ClassVar[IsolationLevel]

class ObjectType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATALOG: _ClassVar[ObjectType]
    NAMESPACE: _ClassVar[ObjectType]
    TABLE: _ClassVar[ObjectType]
    VIEW: _ClassVar[ObjectType]
    DISTRIBUTED_TRANSACTION: _ClassVar[ObjectType]
    TAG: _ClassVar[ObjectType]
    BRANCH: _ClassVar[ObjectType]
    PIPELINE: _ClassVar[ObjectType]
    SUBSCRIPTION: _ClassVar[ObjectType]

class TableFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ICEBERG: _ClassVar[TableFormat]
    NATIVE: _ClassVar[TableFormat]

class PartitionTransform(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IDENTITY: _ClassVar[PartitionTransform]
    DAY: _ClassVar[PartitionTransform]
    MONTH: _ClassVar[PartitionTransform]
    YEAR: _ClassVar[PartitionTransform]

class ViewFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSTRAIT: _ClassVar[ViewFormat]
    SQL: _ClassVar[ViewFormat]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOOLEAN: _ClassVar[DataType]
    INT2: _ClassVar[DataType]
    INT4: _ClassVar[DataType]
    INT8: _ClassVar[DataType]
    DECIMAL: _ClassVar[DataType]
    FLOAT4: _ClassVar[DataType]
    FLOAT8: _ClassVar[DataType]
    CHAR: _ClassVar[DataType]
    VARCHAR: _ClassVar[DataType]
    DATE: _ClassVar[DataType]
    TIME3: _ClassVar[DataType]
    TIME6: _ClassVar[DataType]
    TIME9: _ClassVar[DataType]
    TIMETZ3: _ClassVar[DataType]
    TIMETZ6: _ClassVar[DataType]
    TIMETZ9: _ClassVar[DataType]
    TIMESTAMP3: _ClassVar[DataType]
    TIMESTAMP6: _ClassVar[DataType]
    TIMESTAMP9: _ClassVar[DataType]
    TIMESTAMPTZ3: _ClassVar[DataType]
    TIMESTAMPTZ6: _ClassVar[DataType]
    TIMESTAMPTZ9: _ClassVar[DataType]
    FIXED: _ClassVar[DataType]
    BINARY: _ClassVar[DataType]
    STRUCT: _ClassVar[DataType]
    MAP: _ClassVar[DataType]
    LIST: _ClassVar[DataType]
SNAPSHOT: IsolationLevel
SERIALIZABLE: IsolationLevel
CATALOG: ObjectType
NAMESPACE: ObjectType
TABLE: ObjectType
VIEW: ObjectType
DISTRIBUTED_TRANSACTION: ObjectType
TAG: ObjectType
BRANCH: ObjectType
PIPELINE: ObjectType
SUBSCRIPTION: ObjectType
ICEBERG: TableFormat
NATIVE: TableFormat
IDENTITY: PartitionTransform
DAY: PartitionTransform
MONTH: PartitionTransform
YEAR: PartitionTransform
SUBSTRAIT: ViewFormat
SQL: ViewFormat
BOOLEAN: DataType
INT2: DataType
INT4: DataType
INT8: DataType
DECIMAL: DataType
FLOAT4: DataType
FLOAT8: DataType
CHAR: DataType
VARCHAR: DataType
DATE: DataType
TIME3: DataType
TIME6: DataType
TIME9: DataType
TIMETZ3: DataType
TIMETZ6: DataType
TIMETZ9: DataType
TIMESTAMP3: DataType
TIMESTAMP6: DataType
TIMESTAMP9: DataType
TIMESTAMPTZ3: DataType
TIMESTAMPTZ6: DataType
TIMESTAMPTZ9: DataType
FIXED: DataType
BINARY: DataType
STRUCT: DataType
MAP: DataType
LIST: DataType

class CatalogDef(_message.Message):
    __slots__ = ("id", "major_version", "order", "namespace_name_max_size_bytes", "table_name_max_size_bytes", "view_name_max_size_bytes", "node_file_max_size_bytes", "properties", "txn_ttl_millis", "txn_isolation_level", "exported_snapshots", "time_marks", "given_up", "format_revision", "data_roots", "collected_before_millis", "table_starts", "checksum")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ExportedSnapshotsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TableStartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    MAJOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VIEW_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NODE_FILE_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    TXN_TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TXN_ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    TIME_MARKS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    FORMAT_REVISION_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOTS_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_BEFORE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TABLE_STARTS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    major_version: int
    order: int
    namespace_name_max_size_bytes: int
    table_name_max_size_bytes: int
    view_name_max_size_bytes: int
    node_file_max_size_bytes: int
    properties: _containers.ScalarMap[str, str]
    txn_ttl_millis: int
    txn_isolation_level: IsolationLevel
    exported_snapshots: _containers.ScalarMap[str, str]
    time_marks: _containers.RepeatedCompositeFieldContainer[TimeMark]
    given_up: _containers.RepeatedCompositeFieldContainer[VersionRange]
    format_revision: int
    data_roots: _containers.RepeatedCompositeFieldContainer[DataRoot]
    collected_before_millis: int
    table_starts: _containers.ScalarMap[str, int]
    checksum: int
    def __init__(self, id: _Optional[str] = ..., major_version: _Optional[int] = ..., order: _Optional[int] = ..., namespace_name_max_size_bytes: _Optional[int] = ..., table_name_max_size_bytes: _Optional[int] = ..., view_name_max_size_bytes: _Optional[int] = ..., node_file_max_size_bytes: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., txn_ttl_millis: _Optional[int] = ..., txn_isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., exported_snapshots: _Optional[_Mapping[str, str]] = ..., time_marks: _Optional[_Iterable[_Union[TimeMark, _Mapping]]] = ..., given_up: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., format_revision: _Optional[int] = ..., data_roots: _Optional[_Iterable[_Union[DataRoot, _Mapping]]] = ..., collected_before_millis: _Optional[int] = ..., table_starts: _Optional[_Mapping[str, int]] = ..., checksum: _Optional[int] = ...) -> None: ...

class DataRoot(_message.Message):
    __slots__ = ("url", "namespace_name")
    URL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    url: str
    namespace_name: str
    def __init__(self, url: _Optional[str] = ..., namespace_name: _Optional[str] = ...) -> None: ...

class VersionRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class TimeMark(_message.Message):
    __slots__ = ("version", "up_to_millis")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UP_TO_MILLIS_FIELD_NUMBER: _ClassVar[int]
    version: int
    up_to_millis: int
    def __init__(self, version: _Optional[int] = ..., up_to_millis: _Optional[int] = ...) -> None: ...

class NamespaceDef(_message.Message):
    __slots__ = ("id", "properties", "data_root", "checksum")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    properties: _containers.ScalarMap[str, str]
    data_root: str
    checksum: int
    def __init__(self, id: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., data_root: _Optional[str] = ..., checksum: _Optional[int] = ...) -> None: ...

class TableDef(_message.Message):
    __slots__ = ("id", "table_format", "properties", "iceberg_metadata_location", "iceberg_previous_metadata_location", "schema", "next_column_id", "partition_spec", "sort_order", "manifests", "delete_predicates", "sequence", "writer_marks", "data_root", "bound_views", "schema_id", "checksum")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class WriterMarksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: WriterMark
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[WriterMark, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ICEBERG_METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    ICEBERG_PREVIOUS_METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NEXT_COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    SORT_ORDER_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    DELETE_PREDICATES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITER_MARKS_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    BOUND_VIEWS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    table_format: TableFormat
    properties: _containers.ScalarMap[str, str]
    iceberg_metadata_location: str
    iceberg_previous_metadata_location: str
    schema: Schema
    next_column_id: int
    partition_spec: _containers.RepeatedCompositeFieldContainer[PartitionField]
    sort_order: _containers.RepeatedCompositeFieldContainer[SortField]
    manifests: _containers.RepeatedCompositeFieldContainer[ManifestSegment]
    delete_predicates: _containers.RepeatedCompositeFieldContainer[DeletePredicate]
    sequence: int
    writer_marks: _containers.MessageMap[str, WriterMark]
    data_root: str
    bound_views: _containers.RepeatedCompositeFieldContainer[NamespaceObjectFullName]
    schema_id: int
    checksum: int
    def __init__(self, id: _Optional[str] = ..., table_format: _Optional[_Union[TableFormat, str]] = ..., properties: _Optional[_Mapping[str, str]] = ..., iceberg_metadata_location: _Optional[str] = ..., iceberg_previous_metadata_location: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., next_column_id: _Optional[int] = ..., partition_spec: _Optional[_Iterable[_Union[PartitionField, _Mapping]]] = ..., sort_order: _Optional[_Iterable[_Union[SortField, _Mapping]]] = ..., manifests: _Optional[_Iterable[_Union[ManifestSegment, _Mapping]]] = ..., delete_predicates: _Optional[_Iterable[_Union[DeletePredicate, _Mapping]]] = ..., sequence: _Optional[int] = ..., writer_marks: _Optional[_Mapping[str, WriterMark]] = ..., data_root: _Optional[str] = ..., bound_views: _Optional[_Iterable[_Union[NamespaceObjectFullName, _Mapping]]] = ..., schema_id: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class WriterMark(_message.Message):
    __slots__ = ("sequence", "transaction_id", "version")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    transaction_id: str
    version: int
    def __init__(self, sequence: _Optional[int] = ..., transaction_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ManifestSegment(_message.Message):
    __slots__ = ("path", "file_count", "row_count", "size_bytes", "sequence", "sha256", "segment_size_bytes", "min_sequence")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    path: str
    file_count: int
    row_count: int
    size_bytes: int
    sequence: int
    sha256: bytes
    segment_size_bytes: int
    min_sequence: int
    def __init__(self, path: _Optional[str] = ..., file_count: _Optional[int] = ..., row_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., sequence: _Optional[int] = ..., sha256: _Optional[bytes] = ..., segment_size_bytes: _Optional[int] = ..., min_sequence: _Optional[int] = ...) -> None: ...

class PartitionField(_message.Message):
    __slots__ = ("column_id", "transform")
    COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    column_id: int
    transform: PartitionTransform
    def __init__(self, column_id: _Optional[int] = ..., transform: _Optional[_Union[PartitionTransform, str]] = ...) -> None: ...

class SortField(_message.Message):
    __slots__ = ("column_id", "descending", "nulls_last")
    COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    NULLS_LAST_FIELD_NUMBER: _ClassVar[int]
    column_id: int
    descending: bool
    nulls_last: bool
    def __init__(self, column_id: _Optional[int] = ..., descending: bool = ..., nulls_last: bool = ...) -> None: ...

class DeletePredicate(_message.Message):
    __slots__ = ("sequence", "expression", "transaction_id", "committed_sequence", "moves")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    expression: bytes
    transaction_id: str
    committed_sequence: int
    moves: bool
    def __init__(self, sequence: _Optional[int] = ..., expression: _Optional[bytes] = ..., transaction_id: _Optional[str] = ..., committed_sequence: _Optional[int] = ..., moves: bool = ...) -> None: ...

class Predicate(_message.Message):
    __slots__ = ("columns", "term")
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NO_OPERATOR: _ClassVar[Predicate.Operator]
        EQUAL: _ClassVar[Predicate.Operator]
        NOT_EQUAL: _ClassVar[Predicate.Operator]
        LESS: _ClassVar[Predicate.Operator]
        LESS_OR_EQUAL: _ClassVar[Predicate.Operator]
        GREATER: _ClassVar[Predicate.Operator]
        GREATER_OR_EQUAL: _ClassVar[Predicate.Operator]
        EQUAL_NULL_SAFE: _ClassVar[Predicate.Operator]
    NO_OPERATOR: Predicate.Operator
    EQUAL: Predicate.Operator
    NOT_EQUAL: Predicate.Operator
    LESS: Predicate.Operator
    LESS_OR_EQUAL: Predicate.Operator
    GREATER: Predicate.Operator
    GREATER_OR_EQUAL: Predicate.Operator
    EQUAL_NULL_SAFE: Predicate.Operator
    class Truth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Predicate.Truth]
        NO: _ClassVar[Predicate.Truth]
        YES: _ClassVar[Predicate.Truth]
    UNKNOWN: Predicate.Truth
    NO: Predicate.Truth
    YES: Predicate.Truth
    class Comparison(_message.Message):
        __slots__ = ("column_id", "operator", "value")
        COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
        OPERATOR_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        column_id: int
        operator: Predicate.Operator
        value: bytes
        def __init__(self, column_id: _Optional[int] = ..., operator: _Optional[_Union[Predicate.Operator, str]] = ..., value: _Optional[bytes] = ...) -> None: ...
    class Membership(_message.Message):
        __slots__ = ("column_id", "values", "with_null")
        COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        WITH_NULL_FIELD_NUMBER: _ClassVar[int]
        column_id: int
        values: _containers.RepeatedScalarFieldContainer[bytes]
        with_null: bool
        def __init__(self, column_id: _Optional[int] = ..., values: _Optional[_Iterable[bytes]] = ..., with_null: bool = ...) -> None: ...
    class Prefix(_message.Message):
        __slots__ = ("column_id", "prefix")
        COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
        PREFIX_FIELD_NUMBER: _ClassVar[int]
        column_id: int
        prefix: str
        def __init__(self, column_id: _Optional[int] = ..., prefix: _Optional[str] = ...) -> None: ...
    class Terms(_message.Message):
        __slots__ = ("terms",)
        TERMS_FIELD_NUMBER: _ClassVar[int]
        terms: _containers.RepeatedCompositeFieldContainer[Predicate.Term]
        def __init__(self, terms: _Optional[_Iterable[_Union[Predicate.Term, _Mapping]]] = ...) -> None: ...
    class Term(_message.Message):
        __slots__ = ("comparison", "membership", "null_column_id", "prefix", "all", "any", "negated", "constant")
        COMPARISON_FIELD_NUMBER: _ClassVar[int]
        MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
        NULL_COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
        PREFIX_FIELD_NUMBER: _ClassVar[int]
        ALL_FIELD_NUMBER: _ClassVar[int]
        ANY_FIELD_NUMBER: _ClassVar[int]
        NEGATED_FIELD_NUMBER: _ClassVar[int]
        CONSTANT_FIELD_NUMBER: _ClassVar[int]
        comparison: Predicate.Comparison
        membership: Predicate.Membership
        null_column_id: int
        prefix: Predicate.Prefix
        all: Predicate.Terms
        any: Predicate.Terms
        negated: Predicate.Term
        constant: Predicate.Truth
        def __init__(self, comparison: _Optional[_Union[Predicate.Comparison, _Mapping]] = ..., membership: _Optional[_Union[Predicate.Membership, _Mapping]] = ..., null_column_id: _Optional[int] = ..., prefix: _Optional[_Union[Predicate.Prefix, _Mapping]] = ..., all: _Optional[_Union[Predicate.Terms, _Mapping]] = ..., any: _Optional[_Union[Predicate.Terms, _Mapping]] = ..., negated: _Optional[_Union[Predicate.Term, _Mapping]] = ..., constant: _Optional[_Union[Predicate.Truth, str]] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    term: Predicate.Term
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., term: _Optional[_Union[Predicate.Term, _Mapping]] = ...) -> None: ...

class ViewDef(_message.Message):
    __slots__ = ("id", "view_format", "schema_binding", "schema", "default_namespace_name", "referenced_object_full_names", "properties", "substrait_read_rel", "sql", "dialect", "bound_views", "checksum")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_BINDING_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_OBJECT_FULL_NAMES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    SUBSTRAIT_READ_REL_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    BOUND_VIEWS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    view_format: ViewFormat
    schema_binding: bool
    schema: Schema
    default_namespace_name: str
    referenced_object_full_names: _containers.RepeatedCompositeFieldContainer[NamespaceObjectFullName]
    properties: _containers.ScalarMap[str, str]
    substrait_read_rel: bytes
    sql: str
    dialect: str
    bound_views: _containers.RepeatedCompositeFieldContainer[NamespaceObjectFullName]
    checksum: int
    def __init__(self, id: _Optional[str] = ..., view_format: _Optional[_Union[ViewFormat, str]] = ..., schema_binding: bool = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., default_namespace_name: _Optional[str] = ..., referenced_object_full_names: _Optional[_Iterable[_Union[NamespaceObjectFullName, _Mapping]]] = ..., properties: _Optional[_Mapping[str, str]] = ..., substrait_read_rel: _Optional[bytes] = ..., sql: _Optional[str] = ..., dialect: _Optional[str] = ..., bound_views: _Optional[_Iterable[_Union[NamespaceObjectFullName, _Mapping]]] = ..., checksum: _Optional[int] = ...) -> None: ...

class DistributedTransactionDef(_message.Message):
    __slots__ = ("id", "isolation_level", "beginning_root_node_file_path", "running_root_node_file_path", "began_at_millis", "expire_at_millis", "transaction")
    ID_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    BEGINNING_ROOT_NODE_FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ROOT_NODE_FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    id: str
    isolation_level: IsolationLevel
    beginning_root_node_file_path: str
    running_root_node_file_path: str
    began_at_millis: int
    expire_at_millis: int
    transaction: bytes
    def __init__(self, id: _Optional[str] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., beginning_root_node_file_path: _Optional[str] = ..., running_root_node_file_path: _Optional[str] = ..., began_at_millis: _Optional[int] = ..., expire_at_millis: _Optional[int] = ..., transaction: _Optional[bytes] = ...) -> None: ...

class NamespaceObjectFullName(_message.Message):
    __slots__ = ("namespace_name", "name")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("id", "name", "type", "nullable", "properties", "struct_fields", "map_key", "map_value", "list_element", "initial_default", "write_default")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    MAP_KEY_FIELD_NUMBER: _ClassVar[int]
    MAP_VALUE_FIELD_NUMBER: _ClassVar[int]
    LIST_ELEMENT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    WRITE_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    type: DataType
    nullable: bool
    properties: _containers.ScalarMap[str, str]
    struct_fields: _containers.RepeatedCompositeFieldContainer[Column]
    map_key: Column
    map_value: Column
    list_element: Column
    initial_default: bytes
    write_default: bytes
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., type: _Optional[_Union[DataType, str]] = ..., nullable: bool = ..., properties: _Optional[_Mapping[str, str]] = ..., struct_fields: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., map_key: _Optional[_Union[Column, _Mapping]] = ..., map_value: _Optional[_Union[Column, _Mapping]] = ..., list_element: _Optional[_Union[Column, _Mapping]] = ..., initial_default: _Optional[bytes] = ..., write_default: _Optional[bytes] = ...) -> None: ...

class PipelineDef(_message.Message):
    __slots__ = ("id", "jobs", "checksum")
    class JobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: JobDef
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[JobDef, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    jobs: _containers.MessageMap[str, JobDef]
    checksum: int
    def __init__(self, id: _Optional[str] = ..., jobs: _Optional[_Mapping[str, JobDef]] = ..., checksum: _Optional[int] = ...) -> None: ...

class JobDef(_message.Message):
    __slots__ = ("last_transaction_id", "pinned_version", "inputs", "state", "error", "params", "called_at_millis", "declaration")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: InputPosition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[InputPosition, _Mapping]] = ...) -> None: ...
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LAST_TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    CALLED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DECLARATION_FIELD_NUMBER: _ClassVar[int]
    last_transaction_id: str
    pinned_version: int
    inputs: _containers.MessageMap[str, InputPosition]
    state: str
    error: str
    params: _containers.ScalarMap[str, str]
    called_at_millis: int
    declaration: JobDeclaration
    def __init__(self, last_transaction_id: _Optional[str] = ..., pinned_version: _Optional[int] = ..., inputs: _Optional[_Mapping[str, InputPosition]] = ..., state: _Optional[str] = ..., error: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., called_at_millis: _Optional[int] = ..., declaration: _Optional[_Union[JobDeclaration, _Mapping]] = ...) -> None: ...

class JobDeclaration(_message.Message):
    __slots__ = ("inputs", "outputs", "open")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[DeclaredTable]
    outputs: _containers.RepeatedCompositeFieldContainer[DeclaredTable]
    open: bool
    def __init__(self, inputs: _Optional[_Iterable[_Union[DeclaredTable, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[DeclaredTable, _Mapping]]] = ..., open: bool = ...) -> None: ...

class DeclaredTable(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: str
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[str] = ...) -> None: ...

class InputPosition(_message.Message):
    __slots__ = ("table_id", "version", "table")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table_id: str
    version: int
    table: str
    def __init__(self, table_id: _Optional[str] = ..., version: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class TagDef(_message.Message):
    __slots__ = ("id", "version", "pin_path", "creator", "created_at_millis", "expire_at_millis", "commit_id", "version_created_at_millis", "message", "properties", "object_count", "table_count", "row_count", "chosen", "left_out", "lacking", "checksum")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LackingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PIN_PATH_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: int
    pin_path: str
    creator: str
    created_at_millis: int
    expire_at_millis: int
    commit_id: str
    version_created_at_millis: int
    message: str
    properties: _containers.ScalarMap[str, str]
    object_count: int
    table_count: int
    row_count: int
    chosen: _containers.RepeatedCompositeFieldContainer[TagObject]
    left_out: _containers.RepeatedCompositeFieldContainer[TagObject]
    lacking: _containers.ScalarMap[str, int]
    checksum: int
    def __init__(self, id: _Optional[str] = ..., version: _Optional[int] = ..., pin_path: _Optional[str] = ..., creator: _Optional[str] = ..., created_at_millis: _Optional[int] = ..., expire_at_millis: _Optional[int] = ..., commit_id: _Optional[str] = ..., version_created_at_millis: _Optional[int] = ..., message: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., object_count: _Optional[int] = ..., table_count: _Optional[int] = ..., row_count: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[TagObject, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[TagObject, _Mapping]]] = ..., lacking: _Optional[_Mapping[str, int]] = ..., checksum: _Optional[int] = ...) -> None: ...

class TagObject(_message.Message):
    __slots__ = ("namespace_name", "name", "version")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    version: int
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class BranchDef(_message.Message):
    __slots__ = ("id", "fork_version", "fork_pin_path", "root_path", "created_at_millis")
    ID_FIELD_NUMBER: _ClassVar[int]
    FORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    FORK_PIN_PATH_FIELD_NUMBER: _ClassVar[int]
    ROOT_PATH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    id: str
    fork_version: int
    fork_pin_path: str
    root_path: str
    created_at_millis: int
    def __init__(self, id: _Optional[str] = ..., fork_version: _Optional[int] = ..., fork_pin_path: _Optional[str] = ..., root_path: _Optional[str] = ..., created_at_millis: _Optional[int] = ...) -> None: ...

class SubscriptionDef(_message.Message):
    __slots__ = ("id", "namespaces", "names", "kinds", "lease_millis", "holder", "epoch", "name_patterns", "actions", "details", "position_path", "next_version", "token", "previous_position_path", "created_at_millis", "checksum")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_PATTERNS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    POSITION_PATH_FIELD_NUMBER: _ClassVar[int]
    NEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_POSITION_PATH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    id: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[ObjectType]
    lease_millis: int
    holder: str
    epoch: int
    name_patterns: _containers.RepeatedScalarFieldContainer[str]
    actions: _containers.RepeatedScalarFieldContainer[str]
    details: bool
    position_path: str
    next_version: int
    token: str
    previous_position_path: str
    created_at_millis: int
    checksum: int
    def __init__(self, id: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[ObjectType, str]]] = ..., lease_millis: _Optional[int] = ..., holder: _Optional[str] = ..., epoch: _Optional[int] = ..., name_patterns: _Optional[_Iterable[str]] = ..., actions: _Optional[_Iterable[str]] = ..., details: bool = ..., position_path: _Optional[str] = ..., next_version: _Optional[int] = ..., token: _Optional[str] = ..., previous_position_path: _Optional[str] = ..., created_at_millis: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class SubscriptionPosition(_message.Message):
    __slots__ = ("subscription_id", "epoch", "beat", "next_version", "token", "released")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    subscription_id: str
    epoch: int
    beat: int
    next_version: int
    token: str
    released: bool
    def __init__(self, subscription_id: _Optional[str] = ..., epoch: _Optional[int] = ..., beat: _Optional[int] = ..., next_version: _Optional[int] = ..., token: _Optional[str] = ..., released: bool = ...) -> None: ...
