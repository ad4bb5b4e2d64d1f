from alpheus_pb.v1 import actions_pb2 as _actions_pb2
from alpheus_pb.v1 import objects_pb2 as _objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChangeType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CREATED: _ClassVar[ChangeType]
    UPDATED: _ClassVar[ChangeType]
    DROPPED: _ClassVar[ChangeType]

class OutcomeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[OutcomeState]
    COMMITTED: _ClassVar[OutcomeState]
    CANCELLED: _ClassVar[OutcomeState]
CREATED: ChangeType
UPDATED: ChangeType
DROPPED: ChangeType
UNKNOWN: OutcomeState
COMMITTED: OutcomeState
CANCELLED: OutcomeState

class VersionRef(_message.Message):
    __slots__ = ("version", "timestamp_millis", "back", "tag", "pin", "chosen", "staleness_millis", "session_token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MILLIS_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MILLIS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    timestamp_millis: int
    back: int
    tag: str
    pin: str
    chosen: bool
    staleness_millis: int
    session_token: str
    def __init__(self, version: _Optional[int] = ..., timestamp_millis: _Optional[int] = ..., back: _Optional[int] = ..., tag: _Optional[str] = ..., pin: _Optional[str] = ..., chosen: bool = ..., staleness_millis: _Optional[int] = ..., session_token: _Optional[str] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("catalog_id", "storage_url", "version_digits", "catalog", "version", "software_version", "protocol_version", "token", "oldest_version", "unverified_since_millis", "head_ahead_millis")
    CATALOG_ID_FIELD_NUMBER: _ClassVar[int]
    STORAGE_URL_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGITS_FIELD_NUMBER: _ClassVar[int]
    CATALOG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_SINCE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    HEAD_AHEAD_MILLIS_FIELD_NUMBER: _ClassVar[int]
    catalog_id: str
    storage_url: str
    version_digits: int
    catalog: _objects_pb2.CatalogDef
    version: int
    software_version: str
    protocol_version: int
    token: str
    oldest_version: int
    unverified_since_millis: int
    head_ahead_millis: int
    def __init__(self, catalog_id: _Optional[str] = ..., storage_url: _Optional[str] = ..., version_digits: _Optional[int] = ..., catalog: _Optional[_Union[_objects_pb2.CatalogDef, _Mapping]] = ..., version: _Optional[int] = ..., software_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., token: _Optional[str] = ..., oldest_version: _Optional[int] = ..., unverified_since_millis: _Optional[int] = ..., head_ahead_millis: _Optional[int] = ...) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ("version", "created_at_millis", "token", "pin", "chosen", "lacking")
    class LackingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at_millis: int
    token: str
    pin: str
    chosen: bool
    lacking: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., token: _Optional[str] = ..., pin: _Optional[str] = ..., chosen: bool = ..., lacking: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CreatePinRequest(_message.Message):
    __slots__ = ("at", "only", "without")
    class Object(_message.Message):
        __slots__ = ("namespace_name", "name", "at")
        NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        AT_FIELD_NUMBER: _ClassVar[int]
        namespace_name: str
        name: str
        at: VersionRef
        def __init__(self, namespace_name: _Optional[str] = ..., name: _Optional[str] = ..., at: _Optional[_Union[VersionRef, _Mapping]] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    only: _containers.RepeatedCompositeFieldContainer[CreatePinRequest.Object]
    without: _containers.RepeatedCompositeFieldContainer[CreatePinRequest.Object]
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., only: _Optional[_Iterable[_Union[CreatePinRequest.Object, _Mapping]]] = ..., without: _Optional[_Iterable[_Union[CreatePinRequest.Object, _Mapping]]] = ...) -> None: ...

class CreatePinResponse(_message.Message):
    __slots__ = ("path", "version", "commit_id", "version_created_at_millis", "object_count", "table_count", "row_count", "chosen", "left_out", "lacking")
    class LackingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    path: str
    version: int
    commit_id: str
    version_created_at_millis: int
    object_count: int
    table_count: int
    row_count: int
    chosen: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    left_out: _containers.RepeatedCompositeFieldContainer[_objects_pb2.TagObject]
    lacking: _containers.ScalarMap[str, int]
    def __init__(self, path: _Optional[str] = ..., version: _Optional[int] = ..., commit_id: _Optional[str] = ..., version_created_at_millis: _Optional[int] = ..., object_count: _Optional[int] = ..., table_count: _Optional[int] = ..., row_count: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[_objects_pb2.TagObject, _Mapping]]] = ..., lacking: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ObjectName(_message.Message):
    __slots__ = ("type", "namespace_name", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: _objects_pb2.ObjectType
    namespace_name: str
    name: str
    def __init__(self, type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("at", "names")
    AT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    names: _containers.RepeatedCompositeFieldContainer[ObjectName]
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., names: _Optional[_Iterable[_Union[ObjectName, _Mapping]]] = ...) -> None: ...

class RawLoadRequest(_message.Message):
    __slots__ = ("at", "names")
    AT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    names: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., names: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LoadedObject(_message.Message):
    __slots__ = ("exists", "path", "definition")
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    path: str
    definition: bytes
    def __init__(self, exists: bool = ..., path: _Optional[str] = ..., definition: _Optional[bytes] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("version", "objects", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    objects: _containers.RepeatedCompositeFieldContainer[LoadedObject]
    token: str
    def __init__(self, version: _Optional[int] = ..., objects: _Optional[_Iterable[_Union[LoadedObject, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("at", "type", "namespace_name", "prefix", "limit", "after")
    AT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    type: _objects_pb2.ObjectType
    namespace_name: str
    prefix: str
    limit: int
    after: str
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., prefix: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("version", "names", "more", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    names: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    token: str
    def __init__(self, version: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., more: bool = ..., token: _Optional[str] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("at", "namespaces")
    AT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("version", "created_at_millis", "token", "objects")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at_millis: int
    token: str
    objects: _containers.RepeatedCompositeFieldContainer[LiveObjectMessage]
    def __init__(self, version: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., token: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[LiveObjectMessage, _Mapping]]] = ...) -> None: ...

class LiveObjectMessage(_message.Message):
    __slots__ = ("object", "path", "definition", "damage_kind", "damage_message", "damage_hint")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_KIND_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_HINT_FIELD_NUMBER: _ClassVar[int]
    object: ObjectName
    path: str
    definition: bytes
    damage_kind: str
    damage_message: str
    damage_hint: str
    def __init__(self, object: _Optional[_Union[ObjectName, _Mapping]] = ..., path: _Optional[str] = ..., definition: _Optional[bytes] = ..., damage_kind: _Optional[str] = ..., damage_message: _Optional[str] = ..., damage_hint: _Optional[str] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("transaction_id", "begin_version", "isolation", "principal", "message", "properties", "operations", "reads", "key", "writer_name", "writer_sequence", "id_was_given", "lease_path")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WRITER_NAME_FIELD_NUMBER: _ClassVar[int]
    WRITER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ID_WAS_GIVEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_PATH_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    begin_version: int
    isolation: _objects_pb2.IsolationLevel
    principal: str
    message: str
    properties: _containers.ScalarMap[str, str]
    operations: _containers.RepeatedCompositeFieldContainer[_actions_pb2.Operation]
    reads: _containers.RepeatedCompositeFieldContainer[_actions_pb2.ActionDef]
    key: str
    writer_name: str
    writer_sequence: int
    id_was_given: bool
    lease_path: str
    def __init__(self, transaction_id: _Optional[str] = ..., begin_version: _Optional[int] = ..., isolation: _Optional[_Union[_objects_pb2.IsolationLevel, str]] = ..., principal: _Optional[str] = ..., message: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., operations: _Optional[_Iterable[_Union[_actions_pb2.Operation, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[_actions_pb2.ActionDef, _Mapping]]] = ..., key: _Optional[str] = ..., writer_name: _Optional[str] = ..., writer_sequence: _Optional[int] = ..., id_was_given: bool = ..., lease_path: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("version", "created_at_millis", "duplicate", "token", "rows_added", "rows_removed", "transaction_id", "files_added")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_ADDED_FIELD_NUMBER: _ClassVar[int]
    ROWS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_ADDED_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at_millis: int
    duplicate: bool
    token: str
    rows_added: int
    rows_removed: int
    transaction_id: str
    files_added: int
    def __init__(self, version: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., duplicate: bool = ..., token: _Optional[str] = ..., rows_added: _Optional[int] = ..., rows_removed: _Optional[int] = ..., transaction_id: _Optional[str] = ..., files_added: _Optional[int] = ...) -> None: ...

class CommitManyRequest(_message.Message):
    __slots__ = ("transactions", "timeout_millis", "withdrawn")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[CommitRequest]
    timeout_millis: int
    withdrawn: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactions: _Optional[_Iterable[_Union[CommitRequest, _Mapping]]] = ..., timeout_millis: _Optional[int] = ..., withdrawn: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitManyResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[CommitAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[CommitAnswer, _Mapping]]] = ...) -> None: ...

class CommitAnswer(_message.Message):
    __slots__ = ("transaction_id", "committed", "error")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    committed: CommitResponse
    error: ErrorDetail
    def __init__(self, transaction_id: _Optional[str] = ..., committed: _Optional[_Union[CommitResponse, _Mapping]] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("after_version", "after_token", "until_version", "follow", "namespaces", "names", "kinds", "details", "name_patterns", "actions", "also")
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNTIL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NAME_PATTERNS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    after_token: str
    until_version: int
    follow: bool
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[_objects_pb2.ObjectType]
    details: bool
    name_patterns: _containers.RepeatedScalarFieldContainer[str]
    actions: _containers.RepeatedScalarFieldContainer[str]
    also: _containers.RepeatedCompositeFieldContainer[ObjectName]
    def __init__(self, after_version: _Optional[int] = ..., after_token: _Optional[str] = ..., until_version: _Optional[int] = ..., follow: bool = ..., namespaces: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[_objects_pb2.ObjectType, str]]] = ..., details: bool = ..., name_patterns: _Optional[_Iterable[str]] = ..., actions: _Optional[_Iterable[str]] = ..., also: _Optional[_Iterable[_Union[ObjectName, _Mapping]]] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("events", "progress_version", "progress_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EventMessage]
    progress_version: int
    progress_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[EventMessage, _Mapping]]] = ..., progress_version: _Optional[int] = ..., progress_token: _Optional[str] = ...) -> None: ...

class EventMessage(_message.Message):
    __slots__ = ("version", "created_at_millis", "token", "transactions", "changes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at_millis: int
    token: str
    transactions: _containers.RepeatedCompositeFieldContainer[RecordedTransaction]
    changes: _containers.RepeatedCompositeFieldContainer[ChangeMessage]
    def __init__(self, version: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., token: _Optional[str] = ..., transactions: _Optional[_Iterable[_Union[RecordedTransaction, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[ChangeMessage, _Mapping]]] = ...) -> None: ...

class RecordedTransaction(_message.Message):
    __slots__ = ("header", "actions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    header: _actions_pb2.TransactionHeader
    actions: _containers.RepeatedCompositeFieldContainer[_actions_pb2.ActionDef]
    def __init__(self, header: _Optional[_Union[_actions_pb2.TransactionHeader, _Mapping]] = ..., actions: _Optional[_Iterable[_Union[_actions_pb2.ActionDef, _Mapping]]] = ...) -> None: ...

class ChangeMessage(_message.Message):
    __slots__ = ("object", "type", "path_before", "path_after", "definition_before", "definition_after")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PATH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PATH_AFTER_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_AFTER_FIELD_NUMBER: _ClassVar[int]
    object: ObjectName
    type: ChangeType
    path_before: str
    path_after: str
    definition_before: bytes
    definition_after: bytes
    def __init__(self, object: _Optional[_Union[ObjectName, _Mapping]] = ..., type: _Optional[_Union[ChangeType, str]] = ..., path_before: _Optional[str] = ..., path_after: _Optional[str] = ..., definition_before: _Optional[bytes] = ..., definition_after: _Optional[bytes] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("object", "after_version", "until_version")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_VERSION_FIELD_NUMBER: _ClassVar[int]
    object: ObjectName
    after_version: int
    until_version: int
    def __init__(self, object: _Optional[_Union[ObjectName, _Mapping]] = ..., after_version: _Optional[int] = ..., until_version: _Optional[int] = ...) -> None: ...

class LogResponse(_message.Message):
    __slots__ = ("version", "created_at_millis", "transaction")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    version: int
    created_at_millis: int
    transaction: RecordedTransaction
    def __init__(self, version: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., transaction: _Optional[_Union[RecordedTransaction, _Mapping]] = ...) -> None: ...

class GetOutcomeRequest(_message.Message):
    __slots__ = ("transaction_id", "since_version", "settle", "certain", "key")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    CERTAIN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    since_version: int
    settle: bool
    certain: bool
    key: str
    def __init__(self, transaction_id: _Optional[str] = ..., since_version: _Optional[int] = ..., settle: bool = ..., certain: bool = ..., key: _Optional[str] = ...) -> None: ...

class GetOutcomeResponse(_message.Message):
    __slots__ = ("state", "commit", "begin_version")
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    state: OutcomeState
    commit: CommitResponse
    begin_version: int
    def __init__(self, state: _Optional[_Union[OutcomeState, str]] = ..., commit: _Optional[_Union[CommitResponse, _Mapping]] = ..., begin_version: _Optional[int] = ...) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ("to", "details")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    to: VersionRef
    details: bool
    def __init__(self, to: _Optional[_Union[VersionRef, _Mapping]] = ..., details: bool = ..., **kwargs) -> None: ...

class DiffResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ChangeMessage]
    def __init__(self, changes: _Optional[_Iterable[_Union[ChangeMessage, _Mapping]]] = ...) -> None: ...

class ListDroppedRequest(_message.Message):
    __slots__ = ("namespace_name", "object", "version")
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace_name: str
    object: ObjectName
    version: int
    def __init__(self, namespace_name: _Optional[str] = ..., object: _Optional[_Union[ObjectName, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class DroppedObject(_message.Message):
    __slots__ = ("object", "version", "dropped_version", "dropped_at_millis", "transaction_id", "principal")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_VERSION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    object: ObjectName
    version: int
    dropped_version: int
    dropped_at_millis: int
    transaction_id: str
    principal: str
    def __init__(self, object: _Optional[_Union[ObjectName, _Mapping]] = ..., version: _Optional[int] = ..., dropped_version: _Optional[int] = ..., dropped_at_millis: _Optional[int] = ..., transaction_id: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class LoadTransactionRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SavedTransactionMessage(_message.Message):
    __slots__ = ("transaction", "began_at_millis", "expire_at_millis", "operation_count", "resumable", "damage")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    transaction: CommitRequest
    began_at_millis: int
    expire_at_millis: int
    operation_count: int
    resumable: bool
    damage: str
    def __init__(self, transaction: _Optional[_Union[CommitRequest, _Mapping]] = ..., began_at_millis: _Optional[int] = ..., expire_at_millis: _Optional[int] = ..., operation_count: _Optional[int] = ..., resumable: bool = ..., damage: _Optional[str] = ...) -> None: ...

class DiscardTransactionRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class LoadPositionRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class LoadPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _objects_pb2.SubscriptionPosition
    def __init__(self, position: _Optional[_Union[_objects_pb2.SubscriptionPosition, _Mapping]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("name", "path", "position")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    position: _objects_pb2.SubscriptionPosition
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., position: _Optional[_Union[_objects_pb2.SubscriptionPosition, _Mapping]] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSymbolsRequest(_message.Message):
    __slots__ = ("at", "type", "namespace_name", "prefix", "pattern", "limit", "cursor")
    AT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    at: VersionRef
    type: _objects_pb2.ObjectType
    namespace_name: str
    prefix: str
    pattern: str
    limit: int
    cursor: str
    def __init__(self, at: _Optional[_Union[VersionRef, _Mapping]] = ..., type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., prefix: _Optional[str] = ..., pattern: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class SymbolGroupMessage(_message.Message):
    __slots__ = ("type", "namespace_name", "names")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    type: _objects_pb2.ObjectType
    namespace_name: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, type: _Optional[_Union[_objects_pb2.ObjectType, str]] = ..., namespace_name: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSymbolsResponse(_message.Message):
    __slots__ = ("version", "groups", "cursor")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    version: int
    groups: _containers.RepeatedCompositeFieldContainer[SymbolGroupMessage]
    cursor: str
    def __init__(self, version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[SymbolGroupMessage, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class ReloadSymbolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactSymbolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SymbolsInfoMessage(_message.Message):
    __slots__ = ("version", "symbols", "journal_length", "compactions", "failures", "last_failure")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    symbols: int
    journal_length: int
    compactions: int
    failures: int
    last_failure: str
    def __init__(self, version: _Optional[int] = ..., symbols: _Optional[int] = ..., journal_length: _Optional[int] = ..., compactions: _Optional[int] = ..., failures: _Optional[int] = ..., last_failure: _Optional[str] = ...) -> None: ...

class CheckSymbolsRequest(_message.Message):
    __slots__ = ("sample",)
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    sample: int
    def __init__(self, sample: _Optional[int] = ...) -> None: ...

class CheckSymbolsResponse(_message.Message):
    __slots__ = ("version", "checked", "sampled", "missing", "surplus", "changed", "differences")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    version: int
    checked: int
    sampled: bool
    missing: _containers.RepeatedCompositeFieldContainer[ObjectName]
    surplus: _containers.RepeatedCompositeFieldContainer[ObjectName]
    changed: _containers.RepeatedCompositeFieldContainer[ObjectName]
    differences: int
    def __init__(self, version: _Optional[int] = ..., checked: _Optional[int] = ..., sampled: bool = ..., missing: _Optional[_Iterable[_Union[ObjectName, _Mapping]]] = ..., surplus: _Optional[_Iterable[_Union[ObjectName, _Mapping]]] = ..., changed: _Optional[_Iterable[_Union[ObjectName, _Mapping]]] = ..., differences: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("verify",)
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    verify: bool
    def __init__(self, verify: bool = ...) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("version", "path", "objects", "size_bytes", "created_at_millis", "deleted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    version: int
    path: str
    objects: int
    size_bytes: int
    created_at_millis: int
    deleted: int
    def __init__(self, version: _Optional[int] = ..., path: _Optional[str] = ..., objects: _Optional[int] = ..., size_bytes: _Optional[int] = ..., created_at_millis: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class ExpireRequest(_message.Message):
    __slots__ = ("older_than_millis", "keep_versions", "pipeline_hold_millis", "dry_run")
    OLDER_THAN_MILLIS_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_HOLD_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    older_than_millis: int
    keep_versions: int
    pipeline_hold_millis: int
    dry_run: bool
    def __init__(self, older_than_millis: _Optional[int] = ..., keep_versions: _Optional[int] = ..., pipeline_hold_millis: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class ExpireResponse(_message.Message):
    __slots__ = ("head", "first", "wanted", "oldest", "expired", "holds")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    head: int
    first: int
    wanted: int
    oldest: int
    expired: int
    holds: _containers.RepeatedCompositeFieldContainer[ExpiryHold]
    def __init__(self, head: _Optional[int] = ..., first: _Optional[int] = ..., wanted: _Optional[int] = ..., oldest: _Optional[int] = ..., expired: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[ExpiryHold, _Mapping]]] = ...) -> None: ...

class ExpiryHold(_message.Message):
    __slots__ = ("kind", "name", "version", "let_go")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    version: int
    let_go: bool
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., let_go: bool = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("minimum_age_millis", "dry_run")
    MINIMUM_AGE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    minimum_age_millis: int
    dry_run: bool
    def __init__(self, minimum_age_millis: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class CollectResponse(_message.Message):
    __slots__ = ("cutoff_millis", "fence_version", "first_version", "last_version", "unreferenced", "deleted", "kept_by", "young", "uploads", "earlier")
    class UnreferencedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FileTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FileTotals, _Mapping]] = ...) -> None: ...
    class DeletedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FileTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FileTotals, _Mapping]] = ...) -> None: ...
    class KeptByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FileTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FileTotals, _Mapping]] = ...) -> None: ...
    CUTOFF_MILLIS_FIELD_NUMBER: _ClassVar[int]
    FENCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNREFERENCED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    KEPT_BY_FIELD_NUMBER: _ClassVar[int]
    YOUNG_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    cutoff_millis: int
    fence_version: int
    first_version: int
    last_version: int
    unreferenced: _containers.MessageMap[str, FileTotals]
    deleted: _containers.MessageMap[str, FileTotals]
    kept_by: _containers.MessageMap[str, FileTotals]
    young: FileTotals
    uploads: UploadTotals
    earlier: _containers.RepeatedCompositeFieldContainer[EarlierFiles]
    def __init__(self, cutoff_millis: _Optional[int] = ..., fence_version: _Optional[int] = ..., first_version: _Optional[int] = ..., last_version: _Optional[int] = ..., unreferenced: _Optional[_Mapping[str, FileTotals]] = ..., deleted: _Optional[_Mapping[str, FileTotals]] = ..., kept_by: _Optional[_Mapping[str, FileTotals]] = ..., young: _Optional[_Union[FileTotals, _Mapping]] = ..., uploads: _Optional[_Union[UploadTotals, _Mapping]] = ..., earlier: _Optional[_Iterable[_Union[EarlierFiles, _Mapping]]] = ...) -> None: ...

class EarlierFiles(_message.Message):
    __slots__ = ("table_id", "table", "start_version", "files")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    table_id: str
    table: str
    start_version: int
    files: FileTotals
    def __init__(self, table_id: _Optional[str] = ..., table: _Optional[str] = ..., start_version: _Optional[int] = ..., files: _Optional[_Union[FileTotals, _Mapping]] = ...) -> None: ...

class UploadTotals(_message.Message):
    __slots__ = ("abandoned", "aborted", "kept", "young", "skipped")
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    YOUNG_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    abandoned: int
    aborted: int
    kept: int
    young: int
    skipped: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, abandoned: _Optional[int] = ..., aborted: _Optional[int] = ..., kept: _Optional[int] = ..., young: _Optional[int] = ..., skipped: _Optional[_Iterable[str]] = ...) -> None: ...

class FileTotals(_message.Message):
    __slots__ = ("files", "size_bytes")
    FILES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    files: int
    size_bytes: int
    def __init__(self, files: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("after_version",)
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    def __init__(self, after_version: _Optional[int] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("kind", "path", "version", "message", "versions_checked", "nodes_checked", "definitions_checked", "manifests_checked", "findings", "given_up")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_CHECKED_FIELD_NUMBER: _ClassVar[int]
    NODES_CHECKED_FIELD_NUMBER: _ClassVar[int]
    DEFINITIONS_CHECKED_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_CHECKED_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    path: str
    version: int
    message: str
    versions_checked: int
    nodes_checked: int
    definitions_checked: int
    manifests_checked: int
    findings: int
    given_up: _containers.RepeatedCompositeFieldContainer[_objects_pb2.VersionRange]
    def __init__(self, kind: _Optional[str] = ..., path: _Optional[str] = ..., version: _Optional[int] = ..., message: _Optional[str] = ..., versions_checked: _Optional[int] = ..., nodes_checked: _Optional[int] = ..., definitions_checked: _Optional[int] = ..., manifests_checked: _Optional[int] = ..., findings: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[_objects_pb2.VersionRange, _Mapping]]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("error", "kind", "message", "hint", "path", "version", "oldest_version", "retry_after_millis", "transaction_id", "retryable", "mine", "theirs", "resume_token", "principal", "committed_at_millis")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    MINE_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    error: str
    kind: str
    message: str
    hint: str
    path: str
    version: int
    oldest_version: int
    retry_after_millis: int
    transaction_id: str
    retryable: bool
    mine: str
    theirs: str
    resume_token: str
    principal: str
    committed_at_millis: int
    def __init__(self, error: _Optional[str] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., path: _Optional[str] = ..., version: _Optional[int] = ..., oldest_version: _Optional[int] = ..., retry_after_millis: _Optional[int] = ..., transaction_id: _Optional[str] = ..., retryable: bool = ..., mine: _Optional[str] = ..., theirs: _Optional[str] = ..., resume_token: _Optional[str] = ..., principal: _Optional[str] = ..., committed_at_millis: _Optional[int] = ...) -> None: ...
