from alpheus_pb.v1 import objects_pb2 as _objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATALOG_SHOW_NAMESPACES: _ClassVar[ActionType]
    NAMESPACE_EXISTS: _ClassVar[ActionType]
    NAMESPACE_DESCRIBE: _ClassVar[ActionType]
    NAMESPACE_CREATE: _ClassVar[ActionType]
    NAMESPACE_ALTER: _ClassVar[ActionType]
    NAMESPACE_ALTER_SET_PROPERTIES: _ClassVar[ActionType]
    NAMESPACE_ALTER_UNSET_PROPERTIES: _ClassVar[ActionType]
    NAMESPACE_DROP: _ClassVar[ActionType]
    NAMESPACE_SHOW_TABLES: _ClassVar[ActionType]
    NAMESPACE_SHOW_VIEWS: _ClassVar[ActionType]
    TABLE_EXISTS: _ClassVar[ActionType]
    TABLE_DESCRIBE: _ClassVar[ActionType]
    TABLE_SELECT: _ClassVar[ActionType]
    TABLE_CREATE: _ClassVar[ActionType]
    TABLE_ALTER: _ClassVar[ActionType]
    TABLE_ALTER_ADD_COLUMNS: _ClassVar[ActionType]
    TABLE_ALTER_REMOVE_COLUMNS: _ClassVar[ActionType]
    TABLE_INSERT: _ClassVar[ActionType]
    TABLE_UPDATE: _ClassVar[ActionType]
    TABLE_DELETE: _ClassVar[ActionType]
    TABLE_DROP: _ClassVar[ActionType]
    VIEW_EXISTS: _ClassVar[ActionType]
    VIEW_DESCRIBE: _ClassVar[ActionType]
    VIEW_CREATE: _ClassVar[ActionType]
    VIEW_REPLACE: _ClassVar[ActionType]
    VIEW_DROP: _ClassVar[ActionType]
    TRANSACTION: _ClassVar[ActionType]
    CATALOG_CREATE: _ClassVar[ActionType]
    CATALOG_ALTER: _ClassVar[ActionType]
    TABLE_OVERWRITE: _ClassVar[ActionType]
    PIPELINE_ADVANCE: _ClassVar[ActionType]
    TRANSACTION_CANCEL: _ClassVar[ActionType]
    TABLE_RENAME: _ClassVar[ActionType]
    VIEW_RENAME: _ClassVar[ActionType]
    TABLE_REGISTER: _ClassVar[ActionType]
    TABLE_COMMIT_ICEBERG: _ClassVar[ActionType]
    TABLE_RESTORE: _ClassVar[ActionType]
    NAMESPACE_UNDROP: _ClassVar[ActionType]
    TABLE_UNDROP: _ClassVar[ActionType]
    VIEW_UNDROP: _ClassVar[ActionType]
    CATALOG_DESCRIBE: _ClassVar[ActionType]
    CATALOG_SHOW_PIPELINES: _ClassVar[ActionType]
    PIPELINE_DESCRIBE: _ClassVar[ActionType]
    SUBSCRIPTION_CREATE: _ClassVar[ActionType]
    SUBSCRIPTION_DROP: _ClassVar[ActionType]
    SUBSCRIPTION_CLAIM: _ClassVar[ActionType]
    TABLE_MERGE: _ClassVar[ActionType]
    TABLE_OVERWRITE_WHERE: _ClassVar[ActionType]
    TABLE_COMPACT: _ClassVar[ActionType]
    REPAIR: _ClassVar[ActionType]
    PIPELINE_RENAME: _ClassVar[ActionType]
    UPGRADE: _ClassVar[ActionType]
    TAG_CREATE: _ClassVar[ActionType]
    TAG_REPLACE: _ClassVar[ActionType]
    TAG_DROP: _ClassVar[ActionType]
    TAG_RENAME: _ClassVar[ActionType]
    CATALOG_FENCE: _ClassVar[ActionType]

class ChangeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_DELETE: _ClassVar[ChangeMode]
    CHANGE_UPDATE: _ClassVar[ChangeMode]
    CHANGE_MERGE: _ClassVar[ChangeMode]
    CHANGE_OVERWRITE: _ClassVar[ChangeMode]
    CHANGE_COMPACT: _ClassVar[ChangeMode]
CATALOG_SHOW_NAMESPACES: ActionType
NAMESPACE_EXISTS: ActionType
NAMESPACE_DESCRIBE: ActionType
NAMESPACE_CREATE: ActionType
NAMESPACE_ALTER: ActionType
NAMESPACE_ALTER_SET_PROPERTIES: ActionType
NAMESPACE_ALTER_UNSET_PROPERTIES: ActionType
NAMESPACE_DROP: ActionType
NAMESPACE_SHOW_TABLES: ActionType
NAMESPACE_SHOW_VIEWS: ActionType
TABLE_EXISTS: ActionType
TABLE_DESCRIBE: ActionType
TABLE_SELECT: ActionType
TABLE_CREATE: ActionType
TABLE_ALTER: ActionType
TABLE_ALTER_ADD_COLUMNS: ActionType
TABLE_ALTER_REMOVE_COLUMNS: ActionType
TABLE_INSERT: ActionType
TABLE_UPDATE: ActionType
TABLE_DELETE: ActionType
TABLE_DROP: ActionType
VIEW_EXISTS: ActionType
VIEW_DESCRIBE: ActionType
VIEW_CREATE: ActionType
VIEW_REPLACE: ActionType
VIEW_DROP: ActionType
TRANSACTION: ActionType
CATALOG_CREATE: ActionType
CATALOG_ALTER: ActionType
TABLE_OVERWRITE: ActionType
PIPELINE_ADVANCE: ActionType
TRANSACTION_CANCEL: ActionType
TABLE_RENAME: ActionType
VIEW_RENAME: ActionType
TABLE_REGISTER: ActionType
TABLE_COMMIT_ICEBERG: ActionType
TABLE_RESTORE: ActionType
NAMESPACE_UNDROP: ActionType
TABLE_UNDROP: ActionType
VIEW_UNDROP: ActionType
CATALOG_DESCRIBE: ActionType
CATALOG_SHOW_PIPELINES: ActionType
PIPELINE_DESCRIBE: ActionType
SUBSCRIPTION_CREATE: ActionType
SUBSCRIPTION_DROP: ActionType
SUBSCRIPTION_CLAIM: ActionType
TABLE_MERGE: ActionType
TABLE_OVERWRITE_WHERE: ActionType
TABLE_COMPACT: ActionType
REPAIR: ActionType
PIPELINE_RENAME: ActionType
UPGRADE: ActionType
TAG_CREATE: ActionType
TAG_REPLACE: ActionType
TAG_DROP: ActionType
TAG_RENAME: ActionType
CATALOG_FENCE: ActionType
CHANGE_DELETE: ChangeMode
CHANGE_UPDATE: ChangeMode
CHANGE_MERGE: ChangeMode
CHANGE_OVERWRITE: ChangeMode
CHANGE_COMPACT: ChangeMode

class ActionDef(_message.Message):
    __slots__ = ("object_def", "type", "external_path", "external_sha256")
    OBJECT_DEF_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEF_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_PATH_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_SHA256_FIELD_NUMBER: _ClassVar[int]
    object_def: ObjectDef
    type: ActionType
    external_path: str
    external_sha256: bytes
    def __init__(self, object_def: _Optional[_Union[ObjectDef, _Mapping]] = ..., type: _Optional[_Union[ActionType, str]] = ..., external_path: _Optional[str] = ..., external_sha256: _Optional[bytes] = ..., **kwargs) -> None: ...

class ObjectDef(_message.Message):
    __slots__ = ("type", "namespace_name", "namespace_object_name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DEF_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_OBJECT_NAME_FIELD_NUMBER: _ClassVar[int]
    type: _objects_pb2.ObjectType
    namespace_name: str
    namespace_object_name: str
    def __init__(self, type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., namespace_object_name: _Optional[str] = ..., **kwargs) -> None: ...

class ActionDetail(_message.Message):
    __slots__ = ("keys", "operation", "path_before", "path_after", "also", "prefix")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PATH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PATH_AFTER_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    operation: Operation
    path_before: str
    path_after: str
    also: _containers.RepeatedCompositeFieldContainer[Effect]
    prefix: str
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., path_before: _Optional[str] = ..., path_after: _Optional[str] = ..., also: _Optional[_Iterable[_Union[Effect, _Mapping]]] = ..., prefix: _Optional[str] = ...) -> None: ...

class Effect(_message.Message):
    __slots__ = ("object", "path_before", "path_after")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PATH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PATH_AFTER_FIELD_NUMBER: _ClassVar[int]
    object: ObjectDef
    path_before: str
    path_after: str
    def __init__(self, object: _Optional[_Union[ObjectDef, _Mapping]] = ..., path_before: _Optional[str] = ..., path_after: _Optional[str] = ...) -> None: ...

class TransactionHeader(_message.Message):
    __slots__ = ("id", "operations_digest", "principal", "principal_authenticated", "message", "properties", "isolation", "branch", "begin_version", "committed_at_millis", "action_count", "key", "writer_name", "writer_sequence")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_AUTHENTICATED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    ACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WRITER_NAME_FIELD_NUMBER: _ClassVar[int]
    WRITER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    operations_digest: bytes
    principal: str
    principal_authenticated: bool
    message: str
    properties: _containers.ScalarMap[str, str]
    isolation: _objects_pb2.IsolationLevel
    branch: str
    begin_version: int
    committed_at_millis: int
    action_count: int
    key: str
    writer_name: str
    writer_sequence: int
    def __init__(self, id: _Optional[str] = ..., operations_digest: _Optional[bytes] = ..., principal: _Optional[str] = ..., principal_authenticated: bool = ..., message: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., isolation: _Optional[_Union[_objects_pb2.IsolationLevel, str]] = ..., branch: _Optional[str] = ..., begin_version: _Optional[int] = ..., committed_at_millis: _Optional[int] = ..., action_count: _Optional[int] = ..., key: _Optional[str] = ..., writer_name: _Optional[str] = ..., writer_sequence: _Optional[int] = ...) -> None: ...

class SavedTransaction(_message.Message):
    __slots__ = ("header", "operations", "reads", "lease_path")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    LEASE_PATH_FIELD_NUMBER: _ClassVar[int]
    header: TransactionHeader
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    reads: _containers.RepeatedCompositeFieldContainer[ActionDef]
    lease_path: str
    def __init__(self, header: _Optional[_Union[TransactionHeader, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[ActionDef, _Mapping]]] = ..., lease_path: _Optional[str] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("create_catalog", "update_catalog", "create_namespace", "update_namespace", "drop_namespace", "create_table", "update_table", "drop_table", "append_files", "overwrite_files", "advance_pipeline", "cancel_transaction", "rename_object", "register_table", "commit_iceberg", "restore_table", "undrop", "create_view", "replace_view", "drop_view", "create_subscription", "drop_subscription", "claim_subscription", "change_rows", "repair", "upgrade_catalog", "create_tag", "replace_tag", "drop_tag", "fence_collection")
    CREATE_CATALOG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_CATALOG_FIELD_NUMBER: _ClassVar[int]
    CREATE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DROP_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TABLE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TABLE_FIELD_NUMBER: _ClassVar[int]
    DROP_TABLE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FILES_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FILES_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_PIPELINE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    RENAME_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TABLE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ICEBERG_FIELD_NUMBER: _ClassVar[int]
    RESTORE_TABLE_FIELD_NUMBER: _ClassVar[int]
    UNDROP_FIELD_NUMBER: _ClassVar[int]
    CREATE_VIEW_FIELD_NUMBER: _ClassVar[int]
    REPLACE_VIEW_FIELD_NUMBER: _ClassVar[int]
    DROP_VIEW_FIELD_NUMBER: _ClassVar[int]
    CREATE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DROP_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CLAIM_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ROWS_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_CATALOG_FIELD_NUMBER: _ClassVar[int]
    CREATE_TAG_FIELD_NUMBER: _ClassVar[int]
    REPLACE_TAG_FIELD_NUMBER: _ClassVar[int]
    DROP_TAG_FIELD_NUMBER: _ClassVar[int]
    FENCE_COLLECTION_FIELD_NUMBER: _ClassVar[int]
    create_catalog: CreateCatalog
    update_catalog: UpdateCatalog
    create_namespace: CreateNamespace
    update_namespace: UpdateNamespace
    drop_namespace: DropNamespace
    create_table: CreateTable
    update_table: UpdateTable
    drop_table: DropTable
    append_files: AppendFiles
    overwrite_files: OverwriteFiles
    advance_pipeline: AdvancePipeline
    cancel_transaction: CancelTransaction
    rename_object: RenameObject
    register_table: RegisterTable
    commit_iceberg: CommitIceberg
    restore_table: RestoreTable
    undrop: Undrop
    create_view: CreateView
    replace_view: ReplaceView
    drop_view: DropView
    create_subscription: CreateSubscription
    drop_subscription: DropSubscription
    claim_subscription: ClaimSubscription
    change_rows: ChangeRows
    repair: Repair
    upgrade_catalog: UpgradeCatalog
    create_tag: CreateTag
    replace_tag: ReplaceTag
    drop_tag: DropTag
    fence_collection: FenceCollection
    def __init__(self, create_catalog: _Optional[_Union[CreateCatalog, _Mapping]] = ..., update_catalog: _Optional[_Union[UpdateCatalog, _Mapping]] = ..., create_namespace: _Optional[_Union[CreateNamespace, _Mapping]] = ..., update_namespace: _Optional[_Union[UpdateNamespace, _Mapping]] = ..., drop_namespace: _Optional[_Union[DropNamespace, _Mapping]] = ..., create_table: _Optional[_Union[CreateTable, _Mapping]] = ..., update_table: _Optional[_Union[UpdateTable, _Mapping]] = ..., drop_table: _Optional[_Union[DropTable, _Mapping]] = ..., append_files: _Optional[_Union[AppendFiles, _Mapping]] = ..., overwrite_files: _Optional[_Union[OverwriteFiles, _Mapping]] = ..., advance_pipeline: _Optional[_Union[AdvancePipeline, _Mapping]] = ..., cancel_transaction: _Optional[_Union[CancelTransaction, _Mapping]] = ..., rename_object: _Optional[_Union[RenameObject, _Mapping]] = ..., register_table: _Optional[_Union[RegisterTable, _Mapping]] = ..., commit_iceberg: _Optional[_Union[CommitIceberg, _Mapping]] = ..., restore_table: _Optional[_Union[RestoreTable, _Mapping]] = ..., undrop: _Optional[_Union[Undrop, _Mapping]] = ..., create_view: _Optional[_Union[CreateView, _Mapping]] = ..., replace_view: _Optional[_Union[ReplaceView, _Mapping]] = ..., drop_view: _Optional[_Union[DropView, _Mapping]] = ..., create_subscription: _Optional[_Union[CreateSubscription, _Mapping]] = ..., drop_subscription: _Optional[_Union[DropSubscription, _Mapping]] = ..., claim_subscription: _Optional[_Union[ClaimSubscription, _Mapping]] = ..., change_rows: _Optional[_Union[ChangeRows, _Mapping]] = ..., repair: _Optional[_Union[Repair, _Mapping]] = ..., upgrade_catalog: _Optional[_Union[UpgradeCatalog, _Mapping]] = ..., create_tag: _Optional[_Union[CreateTag, _Mapping]] = ..., replace_tag: _Optional[_Union[ReplaceTag, _Mapping]] = ..., drop_tag: _Optional[_Union[DropTag, _Mapping]] = ..., fence_collection: _Optional[_Union[FenceCollection, _Mapping]] = ...) -> None: ...

class CreateCatalog(_message.Message):
    __slots__ = ("definition",)
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    definition: _objects_pb2.CatalogDef
    def __init__(self, definition: _Optional[_Union[_objects_pb2.CatalogDef, _Mapping]] = ...) -> None: ...

class UpdateCatalog(_message.Message):
    __slots__ = ("set", "unset")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateNamespace(_message.Message):
    __slots__ = ("name", "namespace_id", "properties", "data_root")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace_id: str
    properties: _containers.ScalarMap[str, str]
    data_root: str
    def __init__(self, name: _Optional[str] = ..., namespace_id: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., data_root: _Optional[str] = ...) -> None: ...

class UpdateNamespace(_message.Message):
    __slots__ = ("name", "set", "unset")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class DropNamespace(_message.Message):
    __slots__ = ("name", "cascade")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    name: str
    cascade: bool
    def __init__(self, name: _Optional[str] = ..., cascade: bool = ...) -> None: ...

class CreateTable(_message.Message):
    __slots__ = ("namespace_name", "name", "table_id", "schema", "properties", "partition_spec", "sort_order")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    SORT_ORDER_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    table_id: str
    schema: _objects_pb2.Schema
    properties: _containers.ScalarMap[str, str]
    partition_spec: _containers.RepeatedCompositeFieldContainer[_objects_pb2.PartitionField]
    sort_order: _containers.RepeatedCompositeFieldContainer[_objects_pb2.SortField]
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., table_id: _Optional[str] = ..., schema: _Optional[_Union[_objects_pb2.Schema, _Mapping]] = ..., properties: _Optional[_Mapping[str, str]] = ..., partition_spec: _Optional[_Iterable[_Union[_objects_pb2.PartitionField, _Mapping]]] = ..., sort_order: _Optional[_Iterable[_Union[_objects_pb2.SortField, _Mapping]]] = ...) -> None: ...

class UpdateTable(_message.Message):
    __slots__ = ("namespace_name", "name", "set", "unset", "add_columns", "drop_columns", "rename_columns", "retype_columns", "nullable_columns", "column_order", "defaults")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RenameColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RetypeColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _objects_pb2.Column
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_objects_pb2.Column, _Mapping]] = ...) -> None: ...
    class NullableColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bool
        def __init__(self, key: _Optional[str] = ..., value: bool = ...) -> None: ...
    class DefaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DefaultValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DefaultValue, _Mapping]] = ...) -> None: ...
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    ADD_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DROP_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RENAME_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RETYPE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_ORDER_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    add_columns: _containers.RepeatedCompositeFieldContainer[AddColumn]
    drop_columns: _containers.RepeatedScalarFieldContainer[str]
    rename_columns: _containers.ScalarMap[str, str]
    retype_columns: _containers.MessageMap[str, _objects_pb2.Column]
    nullable_columns: _containers.ScalarMap[str, bool]
    column_order: _containers.RepeatedScalarFieldContainer[str]
    defaults: _containers.MessageMap[str, DefaultValue]
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., add_columns: _Optional[_Iterable[_Union[AddColumn, _Mapping]]] = ..., drop_columns: _Optional[_Iterable[str]] = ..., rename_columns: _Optional[_Mapping[str, str]] = ..., retype_columns: _Optional[_Mapping[str, _objects_pb2.Column]] = ..., nullable_columns: _Optional[_Mapping[str, bool]] = ..., column_order: _Optional[_Iterable[str]] = ..., defaults: _Optional[_Mapping[str, DefaultValue]] = ...) -> None: ...

class DefaultValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class AddColumn(_message.Message):
    __slots__ = ("parent", "column")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    column: _objects_pb2.Column
    def __init__(self, parent: _Optional[str] = ..., column: _Optional[_Union[_objects_pb2.Column, _Mapping]] = ...) -> None: ...

class DropTable(_message.Message):
    __slots__ = ("namespace_name", "name", "purge")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    purge: bool
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., purge: bool = ...) -> None: ...

class AppendFiles(_message.Message):
    __slots__ = ("namespace_name", "name", "table_id", "segments", "data_root")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    table_id: str
    segments: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ManifestSegment]
    data_root: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., table_id: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[_objects_pb2.ManifestSegment, _Mapping]]] = ..., data_root: _Optional[str] = ...) -> None: ...

class OverwriteFiles(_message.Message):
    __slots__ = ("namespace_name", "name", "table_id", "segments", "data_root")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    table_id: str
    segments: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ManifestSegment]
    data_root: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., table_id: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[_objects_pb2.ManifestSegment, _Mapping]]] = ..., data_root: _Optional[str] = ...) -> None: ...

class ChangeRows(_message.Message):
    __slots__ = ("namespace_name", "name", "table_id", "base_sequence", "mode", "segments", "removed", "predicates", "scan", "changes", "sources", "outputs_sequence", "rows_hidden", "hides_up_to", "rows_kept", "rows_dead", "data_root")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    PREDICATES_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    HIDES_UP_TO_FIELD_NUMBER: _ClassVar[int]
    ROWS_KEPT_FIELD_NUMBER: _ClassVar[int]
    ROWS_DEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOT_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    table_id: str
    base_sequence: int
    mode: ChangeMode
    segments: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ManifestSegment]
    removed: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ManifestSegment]
    predicates: _containers.RepeatedScalarFieldContainer[bytes]
    scan: bytes
    changes: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ManifestSegment]
    sources: _containers.RepeatedScalarFieldContainer[str]
    outputs_sequence: int
    rows_hidden: int
    hides_up_to: int
    rows_kept: int
    rows_dead: int
    data_root: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., table_id: _Optional[str] = ..., base_sequence: _Optional[int] = ..., mode: _Optional[_Union[ChangeMode, str]] = ..., segments: _Optional[_Iterable[_Union[_objects_pb2.ManifestSegment, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[_objects_pb2.ManifestSegment, _Mapping]]] = ..., predicates: _Optional[_Iterable[bytes]] = ..., scan: _Optional[bytes] = ..., changes: _Optional[_Iterable[_Union[_objects_pb2.ManifestSegment, _Mapping]]] = ..., sources: _Optional[_Iterable[str]] = ..., outputs_sequence: _Optional[int] = ..., rows_hidden: _Optional[int] = ..., hides_up_to: _Optional[int] = ..., rows_kept: _Optional[int] = ..., rows_dead: _Optional[int] = ..., data_root: _Optional[str] = ...) -> None: ...

class AdvancePipeline(_message.Message):
    __slots__ = ("name", "job", "expected_transaction_id", "pinned_version", "inputs", "state", "error", "params", "called_at_millis", "declaration", "former_job", "expected_pipeline_id")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _objects_pb2.InputPosition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_objects_pb2.InputPosition, _Mapping]] = ...) -> None: ...
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    CALLED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DECLARATION_FIELD_NUMBER: _ClassVar[int]
    FORMER_JOB_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    job: str
    expected_transaction_id: str
    pinned_version: int
    inputs: _containers.MessageMap[str, _objects_pb2.InputPosition]
    state: str
    error: str
    params: _containers.ScalarMap[str, str]
    called_at_millis: int
    declaration: _objects_pb2.JobDeclaration
    former_job: str
    expected_pipeline_id: str
    def __init__(self, name: _Optional[str] = ..., job: _Optional[str] = ..., expected_transaction_id: _Optional[str] = ..., pinned_version: _Optional[int] = ..., inputs: _Optional[_Mapping[str, _objects_pb2.InputPosition]] = ..., state: _Optional[str] = ..., error: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., called_at_millis: _Optional[int] = ..., declaration: _Optional[_Union[_objects_pb2.JobDeclaration, _Mapping]] = ..., former_job: _Optional[str] = ..., expected_pipeline_id: _Optional[str] = ...) -> None: ...

class CancelTransaction(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class RenameObject(_message.Message):
    __slots__ = ("type", "namespace_name", "name", "new_namespace_name", "new_name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    type: _objects_pb2.ObjectType
    namespace_name: str
    name: str
    new_namespace_name: str
    new_name: str
    def __init__(self, type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., new_namespace_name: _Optional[str] = ..., new_name: _Optional[str] = ...) -> None: ...

class RegisterTable(_message.Message):
    __slots__ = ("namespace_name", "name", "table_id", "metadata_location", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    table_id: str
    metadata_location: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., table_id: _Optional[str] = ..., metadata_location: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CommitIceberg(_message.Message):
    __slots__ = ("namespace_name", "name", "metadata_location", "expected_metadata_location")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    metadata_location: str
    expected_metadata_location: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., metadata_location: _Optional[str] = ..., expected_metadata_location: _Optional[str] = ...) -> None: ...

class RestoreTable(_message.Message):
    __slots__ = ("namespace_name", "name", "version")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    version: int
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Undrop(_message.Message):
    __slots__ = ("type", "namespace_name", "name", "version", "new_namespace_name", "new_name", "counters")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEW_NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    type: _objects_pb2.ObjectType
    namespace_name: str
    name: str
    version: int
    new_namespace_name: str
    new_name: str
    counters: _containers.RepeatedCompositeFieldContainer[TableCounters]
    def __init__(self, type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., new_namespace_name: _Optional[str] = ..., new_name: _Optional[str] = ..., counters: _Optional[_Iterable[_Union[TableCounters, _Mapping]]] = ...) -> None: ...

class TableCounters(_message.Message):
    __slots__ = ("table_id", "next_column_id", "sequence", "schema_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: str
    next_column_id: int
    sequence: int
    schema_id: int
    def __init__(self, table_id: _Optional[str] = ..., next_column_id: _Optional[int] = ..., sequence: _Optional[int] = ..., schema_id: _Optional[int] = ...) -> None: ...

class CreateView(_message.Message):
    __slots__ = ("namespace_name", "name", "view_id", "sql", "dialect", "references", "schema_binding", "schema", "default_namespace", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_BINDING_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    view_id: str
    sql: str
    dialect: str
    references: _containers.RepeatedCompositeFieldContainer[_objects_pb2.NamespaceObjectFullName]
    schema_binding: bool
    schema: _objects_pb2.Schema
    default_namespace: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., view_id: _Optional[str] = ..., sql: _Optional[str] = ..., dialect: _Optional[str] = ..., references: _Optional[_Iterable[_Union[_objects_pb2.NamespaceObjectFullName, _Mapping]]] = ..., schema_binding: bool = ..., schema: _Optional[_Union[_objects_pb2.Schema, _Mapping]] = ..., default_namespace: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplaceView(_message.Message):
    __slots__ = ("namespace_name", "name", "sql", "dialect", "references", "schema_binding", "schema", "default_namespace", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_BINDING_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    sql: str
    dialect: str
    references: _containers.RepeatedCompositeFieldContainer[_objects_pb2.NamespaceObjectFullName]
    schema_binding: bool
    schema: _objects_pb2.Schema
    default_namespace: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., sql: _Optional[str] = ..., dialect: _Optional[str] = ..., references: _Optional[_Iterable[_Union[_objects_pb2.NamespaceObjectFullName, _Mapping]]] = ..., schema_binding: bool = ..., schema: _Optional[_Union[_objects_pb2.Schema, _Mapping]] = ..., default_namespace: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DropView(_message.Message):
    __slots__ = ("namespace_name", "name")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    name: str
    def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Repair(_message.Message):
    __slots__ = ("head_version", "lost", "times_up_to_millis", "given_up")
    HEAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TIMES_UP_TO_MILLIS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    head_version: int
    lost: _containers.RepeatedCompositeFieldContainer[LostVersion]
    times_up_to_millis: int
    given_up: _containers.RepeatedCompositeFieldContainer[_objects_pb2.VersionRange]
    def __init__(self, head_version: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[LostVersion, _Mapping]]] = ..., times_up_to_millis: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[_objects_pb2.VersionRange, _Mapping]]] = ...) -> None: ...

class LostVersion(_message.Message):
    __slots__ = ("version", "commit_id", "known_from")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FROM_FIELD_NUMBER: _ClassVar[int]
    version: int
    commit_id: str
    known_from: str
    def __init__(self, version: _Optional[int] = ..., commit_id: _Optional[str] = ..., known_from: _Optional[str] = ...) -> None: ...

class UpgradeCatalog(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class FenceCollection(_message.Message):
    __slots__ = ("cutoff_millis", "disregarded", "starts")
    CUTOFF_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DISREGARDED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    cutoff_millis: int
    disregarded: _containers.RepeatedScalarFieldContainer[str]
    starts: _containers.RepeatedCompositeFieldContainer[PlannedStart]
    def __init__(self, cutoff_millis: _Optional[int] = ..., disregarded: _Optional[_Iterable[str]] = ..., starts: _Optional[_Iterable[_Union[PlannedStart, _Mapping]]] = ...) -> None: ...

class PlannedStart(_message.Message):
    __slots__ = ("table_id", "version", "namespace_name", "name", "age_millis", "keep_versions")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    table_id: str
    version: int
    namespace_name: str
    name: str
    age_millis: int
    keep_versions: int
    def __init__(self, table_id: _Optional[str] = ..., version: _Optional[int] = ..., namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., age_millis: _Optional[int] = ..., keep_versions: _Optional[int] = ...) -> None: ...

class CreateSubscription(_message.Message):
    __slots__ = ("name", "subscription_id", "namespaces", "names", "name_patterns", "kinds", "actions", "details", "lease_millis", "next_version", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NAME_PATTERNS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    NEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    subscription_id: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    name_patterns: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[_objects_pb2.ObjectType]
    actions: _containers.RepeatedScalarFieldContainer[str]
    details: bool
    lease_millis: int
    next_version: int
    token: str
    def __init__(self, name: _Optional[str] = ..., subscription_id: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., name_patterns: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[_objects_pb2.ObjectType, str]]] = ..., actions: _Optional[_Iterable[str]] = ..., details: bool = ..., lease_millis: _Optional[int] = ..., next_version: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class DropSubscription(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateTag(_message.Message):
    __slots__ = ("name", "tag_id", "version", "commit_id", "version_created_at_millis", "pin_path", "expire_at_millis", "message", "properties", "object_count", "table_count", "row_count", "chosen", "left_out", "lacking")
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
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    PIN_PATH_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    tag_id: str
    version: int
    commit_id: str
    version_created_at_millis: int
    pin_path: str
    expire_at_millis: int
    message: str
    properties: _containers.ScalarMap[str, str]
    object_count: int
    table_count: int
    row_count: int
    chosen: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    left_out: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    lacking: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., tag_id: _Optional[str] = ..., version: _Optional[int] = ..., commit_id: _Optional[str] = ..., version_created_at_millis: _Optional[int] = ..., pin_path: _Optional[str] = ..., expire_at_millis: _Optional[int] = ..., message: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., object_count: _Optional[int] = ..., table_count: _Optional[int] = ..., row_count: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., lacking: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ReplaceTag(_message.Message):
    __slots__ = ("name", "version", "commit_id", "version_created_at_millis", "pin_path", "expire_at_millis", "message", "properties", "object_count", "table_count", "row_count", "chosen", "left_out", "lacking")
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
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    PIN_PATH_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    commit_id: str
    version_created_at_millis: int
    pin_path: str
    expire_at_millis: int
    message: str
    properties: _containers.ScalarMap[str, str]
    object_count: int
    table_count: int
    row_count: int
    chosen: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    left_out: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    lacking: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., commit_id: _Optional[str] = ..., version_created_at_millis: _Optional[int] = ..., pin_path: _Optional[str] = ..., expire_at_millis: _Optional[int] = ..., message: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., object_count: _Optional[int] = ..., table_count: _Optional[int] = ..., row_count: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., lacking: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DropTag(_message.Message):
    __slots__ = ("name", "expected_pin_path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PIN_PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    expected_pin_path: str
    def __init__(self, name: _Optional[str] = ..., expected_pin_path: _Optional[str] = ...) -> None: ...

class ClaimSubscription(_message.Message):
    __slots__ = ("name", "subscription_id", "expected_epoch", "expected_position_path", "holder", "position_path", "next_version", "token", "previous_position_path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_POSITION_PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    POSITION_PATH_FIELD_NUMBER: _ClassVar[int]
    NEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_POSITION_PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    subscription_id: str
    expected_epoch: int
    expected_position_path: str
    holder: str
    position_path: str
    next_version: int
    token: str
    previous_position_path: str
    def __init__(self, name: _Optional[str] = ..., subscription_id: _Optional[str] = ..., expected_epoch: _Optional[int] = ..., expected_position_path: _Optional[str] = ..., holder: _Optional[str] = ..., position_path: _Optional[str] = ..., next_version: _Optional[int] = ..., token: _Optional[str] = ..., previous_position_path: _Optional[str] = ...) -> None: ...
