"""Operations as they are asked, transactions as they are recorded, and the action rows of a root.

An operation is a command; an action is the recorded fact: the operation with every id assigned, and the paths
of the definition before and after. One of the few places where protobuf and values meet (FORMAT.md, "Actions
and transactions in a root").
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from google.protobuf.message import DecodeError

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.objects import (
    CatalogDef,
    Column,
    InputPosition,
    Segment,
    catalog_message,
    catalog_of_message,
    decode_column,
    decode_input,
    decode_segment,
    encode_column,
    encode_input,
    encode_segment,
)
from alpheus_pb.v1 import actions_pb2 as pb
from alpheus_pb.v1 import objects_pb2

# --- operations: what a client asks ----------------------------------------------------------------


class CreateCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded in version 0 only: the first definition, limits included."""

    definition: CatalogDef

    @property
    def target(self) -> ObjectName:
        return fmt.CATALOG


class UpdateCatalog(msgspec.Struct, frozen=True, kw_only=True):
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()

    @property
    def target(self) -> ObjectName:
        return fmt.CATALOG


class CreateNamespace(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace_id: str
    properties: dict[str, str] = {}
    data_root: str = ""

    @property
    def target(self) -> ObjectName:
        return fmt.namespace_name(self.name)


class UpdateNamespace(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()

    @property
    def target(self) -> ObjectName:
        return fmt.namespace_name(self.name)


class DropNamespace(msgspec.Struct, frozen=True, kw_only=True):
    name: str

    @property
    def target(self) -> ObjectName:
        return fmt.namespace_name(self.name)


class CreateTable(msgspec.Struct, frozen=True, kw_only=True):
    """A native table. Column ids are assigned by the client, 1 and up, depth first."""

    namespace: str
    name: str
    table_id: str
    columns: tuple[Column, ...]
    properties: dict[str, str] = {}

    @property
    def target(self) -> ObjectName:
        return fmt.table_name(self.namespace, self.name)


class UpdateTable(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()

    @property
    def target(self) -> ObjectName:
        return fmt.table_name(self.namespace, self.name)


class DropTable(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    purge: bool = False

    @property
    def target(self) -> ObjectName:
        return fmt.table_name(self.namespace, self.name)


class AppendFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Rows added: manifest segments that are on storage already. `table_id`: the table that the files
    were written for; a table of another id under the same name is refused."""

    namespace: str
    name: str
    table_id: str
    segments: tuple[Segment, ...]

    @property
    def target(self) -> ObjectName:
        return fmt.table_name(self.namespace, self.name)


class OverwriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """All rows replaced by those of `segments`, which may be none."""

    namespace: str
    name: str
    table_id: str
    segments: tuple[Segment, ...]

    @property
    def target(self) -> ObjectName:
        return fmt.table_name(self.namespace, self.name)


class AdvancePipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A job's new position, if its last transaction is still `expected_transaction_id` ("": never ran)."""

    name: str
    job: str
    expected_transaction_id: str
    pinned_version: int
    inputs: dict[str, InputPosition] = {}
    state: str = "running"
    error: str = ""
    params: dict[str, str] = {}

    @property
    def target(self) -> ObjectName:
        return fmt.pipeline_name(self.name)


class CancelTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """An id that shall never commit."""

    transaction_id: str

    @property
    def target(self) -> ObjectName:
        return fmt.CATALOG


Operation = (
    CreateCatalog | UpdateCatalog | CreateNamespace | UpdateNamespace | DropNamespace | CreateTable
    | UpdateTable | DropTable | AppendFiles | OverwriteFiles | AdvancePipeline | CancelTransaction
)  # fmt: skip


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks to commit, whole or not at all.

    `id` is a uuid7 made by the client; `begin_version` a version that it has seen, fixed before the first
    send. The same id with other operations is refused.
    """

    id: str
    begin_version: int
    operations: tuple[Operation, ...]
    principal: str = ""
    principal_authenticated: bool = False
    message: str = ""
    properties: dict[str, str] = {}
    serializable: bool = False


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded fact. `type` is a name of ActionType ("TABLE_INSERT"). `operation` is None in actions of other
    writers that this revision cannot read; their effect is in the structural diff."""

    type: str
    name: ObjectName
    operation: Operation | None
    path_before: str = ""
    path_after: str = ""


class RecordedTransaction(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def cancels(self) -> str:
        """The transaction id that this one cancels, or empty."""
        for action in self.actions:
            if isinstance(action.operation, CancelTransaction):
                return action.operation.transaction_id
        return ""


def operations_digest(operations: Sequence[Operation]) -> bytes:
    """SHA-256 over the operations as asked, each length-prefixed, encoded deterministically."""
    digest = hashlib.sha256()
    for operation in operations:
        data = encode_operation(operation).SerializeToString(deterministic=True)
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


# --- operations and their messages -----------------------------------------------------------------


def encode_operation(operation: Operation) -> pb.Operation:
    """The message of an operation, for a request or an action row."""
    message = pb.Operation()
    match operation:
        case CreateCatalog():
            message.create_catalog.CopyFrom(
                pb.CreateCatalog(definition=catalog_message(operation.definition))
            )
        case UpdateCatalog():
            message.update_catalog.CopyFrom(pb.UpdateCatalog(set=operation.set, unset=operation.unset))
        case CreateNamespace():
            message.create_namespace.CopyFrom(
                pb.CreateNamespace(
                    name=operation.name,
                    namespace_id=operation.namespace_id,
                    properties=operation.properties,
                    data_root=operation.data_root,
                )
            )
        case UpdateNamespace():
            message.update_namespace.CopyFrom(
                pb.UpdateNamespace(name=operation.name, set=operation.set, unset=operation.unset)
            )
        case DropNamespace():
            message.drop_namespace.CopyFrom(pb.DropNamespace(name=operation.name))
        case CreateTable():
            message.create_table.CopyFrom(
                pb.CreateTable(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    table_id=operation.table_id,
                    schema=objects_pb2.Schema(columns=[encode_column(c) for c in operation.columns]),
                    properties=operation.properties,
                )
            )
        case UpdateTable():
            message.update_table.CopyFrom(
                pb.UpdateTable(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    set=operation.set,
                    unset=operation.unset,
                )
            )
        case DropTable():
            message.drop_table.CopyFrom(
                pb.DropTable(namespace_name=operation.namespace, name=operation.name, purge=operation.purge)
            )
        case AppendFiles():
            message.append_files.CopyFrom(
                pb.AppendFiles(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    table_id=operation.table_id,
                    segments=[encode_segment(s) for s in operation.segments],
                )
            )
        case OverwriteFiles():
            message.overwrite_files.CopyFrom(
                pb.OverwriteFiles(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    table_id=operation.table_id,
                    segments=[encode_segment(s) for s in operation.segments],
                )
            )
        case AdvancePipeline():
            message.advance_pipeline.CopyFrom(
                pb.AdvancePipeline(
                    name=operation.name,
                    job=operation.job,
                    expected_transaction_id=operation.expected_transaction_id,
                    pinned_version=operation.pinned_version,
                    inputs={name: encode_input(p) for name, p in operation.inputs.items()},
                    state=operation.state,
                    error=operation.error,
                    params=operation.params,
                )
            )
        case CancelTransaction():
            message.cancel_transaction.CopyFrom(pb.CancelTransaction(transaction_id=operation.transaction_id))
    return message


_DECODERS: dict[str, Callable[[Any], Operation]] = {
    "create_catalog": lambda m: CreateCatalog(definition=catalog_of_message(m.definition)),
    "update_catalog": lambda m: UpdateCatalog(set=dict(m.set), unset=tuple(m.unset)),
    "create_namespace": lambda m: CreateNamespace(
        name=m.name, namespace_id=m.namespace_id, properties=dict(m.properties), data_root=m.data_root
    ),
    "update_namespace": lambda m: UpdateNamespace(name=m.name, set=dict(m.set), unset=tuple(m.unset)),
    "drop_namespace": lambda m: DropNamespace(name=m.name),
    "create_table": lambda m: CreateTable(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        columns=tuple(decode_column(c) for c in m.schema.columns),
        properties=dict(m.properties),
    ),
    "update_table": lambda m: UpdateTable(
        namespace=m.namespace_name, name=m.name, set=dict(m.set), unset=tuple(m.unset)
    ),
    "drop_table": lambda m: DropTable(namespace=m.namespace_name, name=m.name, purge=m.purge),
    "append_files": lambda m: AppendFiles(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        segments=tuple(decode_segment(s) for s in m.segments),
    ),
    "overwrite_files": lambda m: OverwriteFiles(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        segments=tuple(decode_segment(s) for s in m.segments),
    ),
    "advance_pipeline": lambda m: AdvancePipeline(
        name=m.name,
        job=m.job,
        expected_transaction_id=m.expected_transaction_id,
        pinned_version=m.pinned_version,
        inputs={name: decode_input(p) for name, p in m.inputs.items()},
        state=m.state,
        error=m.error,
        params=dict(m.params),
    ),
    "cancel_transaction": lambda m: CancelTransaction(transaction_id=m.transaction_id),
}


def decode_operation(message: pb.Operation) -> Operation | None:
    """The operation of a message; None when it holds none that this revision knows.

    Raises ValueError for a column type that the format does not have.
    """
    which = message.WhichOneof("operation")
    if which is None:
        return None
    return _DECODERS[which](getattr(message, which))


# --- action rows of a root -------------------------------------------------------------------------

ActionRow = tuple[str, bytes]
"""Object key (`catalog_def` for the catalog) and serialized ActionDef."""


def action_type(operation: Operation) -> str:
    """The name of the ActionType that records an operation."""
    match operation:
        case CreateCatalog():
            return "CATALOG_CREATE"
        case UpdateCatalog():
            return "CATALOG_ALTER"
        case CreateNamespace():
            return "NAMESPACE_CREATE"
        case UpdateNamespace():
            if not operation.unset:
                return "NAMESPACE_ALTER_SET_PROPERTIES"
            return "NAMESPACE_ALTER" if operation.set else "NAMESPACE_ALTER_UNSET_PROPERTIES"
        case DropNamespace():
            return "NAMESPACE_DROP"
        case CreateTable():
            return "TABLE_CREATE"
        case UpdateTable():
            return "TABLE_ALTER"
        case DropTable():
            return "TABLE_DROP"
        case AppendFiles():
            return "TABLE_INSERT"
        case OverwriteFiles():
            return "TABLE_OVERWRITE"
        case AdvancePipeline():
            return "PIPELINE_ADVANCE"
        case CancelTransaction():
            return "TRANSACTION_CANCEL"


def _object_def(name: ObjectName) -> pb.ObjectDef:
    return pb.ObjectDef(
        type=objects_pb2.ObjectType.Name(int(name.kind)),
        namespace_name=name.namespace,
        namespace_object_name=name.name,
    )


def header_message(transaction: RecordedTransaction) -> pb.TransactionHeader:
    return pb.TransactionHeader(
        id=transaction.id,
        operations_digest=transaction.operations_digest,
        principal=transaction.principal,
        principal_authenticated=transaction.principal_authenticated,
        message=transaction.message,
        properties=transaction.properties,
        isolation=objects_pb2.SERIALIZABLE if transaction.serializable else objects_pb2.SNAPSHOT,
        branch=transaction.branch,
        begin_version=transaction.begin_version,
        committed_at_millis=transaction.committed_at_millis,
        action_count=len(transaction.actions),
    )


def action_message(action: Action) -> pb.ActionDef:
    detail = pb.ActionDetail(path_before=action.path_before, path_after=action.path_after)
    if action.operation is not None:
        detail.operation.CopyFrom(encode_operation(action.operation))
        if isinstance(action.operation, UpdateNamespace | UpdateTable | UpdateCatalog):
            detail.keys.extend([*action.operation.set, *action.operation.unset])
    return _action_def(action.name, action.type, detail.SerializeToString(deterministic=True))


def _action_def(name: ObjectName, type_name: str, detail: bytes) -> pb.ActionDef:
    # The field is called `def`, which is no Python argument name.
    return pb.ActionDef(object_def=_object_def(name), type=type_name, **cast(Any, {"def": detail}))


def encode_transaction(transaction: RecordedTransaction, keys: fmt.Keys) -> list[ActionRow]:
    """The action rows of one transaction: its header, then its actions, in order."""
    header = _action_def(
        fmt.CATALOG, "TRANSACTION", header_message(transaction).SerializeToString(deterministic=True)
    )
    rows = [(fmt.ROW_CATALOG_DEF, header.SerializeToString(deterministic=True))]
    for action in transaction.actions:
        key = fmt.ROW_CATALOG_DEF if action.name.kind is Kind.CATALOG else keys.key(action.name)
        rows.append((key, action_message(action).SerializeToString(deterministic=True)))
    return rows


def external_row(path: str, action: bytes) -> bytes:
    """The row that stands for an action in a file of its own."""
    return pb.ActionDef(
        external_path=path, external_sha256=hashlib.sha256(action).digest()
    ).SerializeToString(deterministic=True)


def row_value(action: bytes) -> str:
    """The text of an action row's value column."""
    return b64encode(action).decode()


class ParsedRow(msgspec.Struct, frozen=True):
    """An action row's message; `external_path` set: the action lies in that file, with that SHA-256."""

    message: pb.ActionDef
    external_path: str
    external_sha256: bytes


def parse_row(value: str, path: str) -> ParsedRow:
    """Decode the value of an action row of the root at `path`. Raises Corrupt (`corrupt_action`)."""
    try:
        return parse_action(b64decode(value, validate=True), path)
    except (binascii.Error, ValueError) as error:
        raise Corrupt(f"action row of {path}: {error}", kind="corrupt_action", path=path) from None


def parse_action(data: bytes, path: str) -> ParsedRow:
    try:
        message = pb.ActionDef.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"action in {path}: {error}", kind="corrupt_action", path=path) from None
    if message.external_path:
        fmt.check_action_pointer(message.external_path)
    return ParsedRow(message, message.external_path, message.external_sha256)


def decode_action(message: pb.ActionDef, path: str) -> Action:
    """The action of a message that is not a header. Raises Corrupt (`corrupt_action`)."""
    try:
        detail = pb.ActionDetail.FromString(getattr(message, "def"))
        operation = decode_operation(detail.operation) if detail.HasField("operation") else None
        name = decode_object(message.object_def)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"action in {path}: {error}", kind="corrupt_action", path=path) from None
    type_name = (
        pb.ActionType.Name(message.type)
        if message.type in pb.ActionType.values()
        else f"UNKNOWN_{int(message.type)}"
    )
    return Action(
        type=type_name,
        name=name,
        operation=operation,
        path_before=detail.path_before,
        path_after=detail.path_after,
    )


def decode_object(message: pb.ObjectDef) -> ObjectName:
    """Raises ValueError for a kind that this revision does not know."""
    return ObjectName(Kind(message.type), message.namespace_name, message.namespace_object_name)


def decode_header(message: pb.TransactionHeader, actions: tuple[Action, ...]) -> RecordedTransaction:
    return RecordedTransaction(
        id=message.id,
        operations_digest=message.operations_digest,
        principal=message.principal,
        principal_authenticated=message.principal_authenticated,
        message=message.message,
        properties=dict(message.properties),
        serializable=message.isolation == objects_pb2.SERIALIZABLE,
        branch=message.branch,
        begin_version=message.begin_version,
        committed_at_millis=message.committed_at_millis,
        actions=actions,
    )


def decode_transactions(messages: Sequence[pb.ActionDef], path: str) -> tuple[RecordedTransaction, ...]:
    """Group a root's actions (externals already fetched) into transactions by their headers.

    Actions before the first header belong to another writer and are left out: the structural diff covers
    them. Raises Corrupt when a header's count of actions is not what follows it.
    """
    transactions: list[RecordedTransaction] = []
    header: pb.TransactionHeader | None = None
    actions: list[Action] = []

    def close() -> None:
        if header is None:
            return
        if header.action_count != len(actions):
            raise Corrupt(
                f"transaction {header.id} in {path} announces {header.action_count} actions,"
                f" {len(actions)} follow",
                kind="corrupt_action",
                path=path,
            )
        transactions.append(decode_header(header, tuple(actions)))

    for message in messages:
        if message.type == pb.TRANSACTION:
            close()
            try:
                header = pb.TransactionHeader.FromString(getattr(message, "def"))
            except (DecodeError, UnicodeDecodeError) as error:
                raise Corrupt(f"header in {path}: {error}", kind="corrupt_action", path=path) from None
            if not fmt.is_uuid(header.id):
                raise Corrupt(
                    f"header in {path}: transaction id {header.id[:80]!r} is no uuid",
                    kind="corrupt_action",
                    path=path,
                )
            actions = []
        elif header is not None:
            actions.append(decode_action(message, path))
    close()
    return tuple(transactions)
