"""Operations to their protobuf messages, and back; the digest of operations, and the type that records each.

One of the few places where protobuf and values meet (FORMAT.md, "Actions and transactions").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from alpheus_journal.format import Kind
from alpheus_journal.model.definition_messages import (
    catalog_message,
    catalog_of_message,
    decode_column,
    decode_columns,
    decode_declaration,
    decode_input,
    decode_kinds,
    decode_partition_spec,
    decode_reference,
    decode_segment,
    decode_sort_order,
    encode_column,
    encode_declaration,
    encode_input,
    encode_kinds,
    encode_partition_spec,
    encode_reference,
    encode_schema,
    encode_segment,
    encode_sort_order,
    put_texts,
    texts_of,
)
from alpheus_journal.model.definitions import Column, VersionRange, with_ids
from alpheus_journal.model.operations import (
    AddColumn,
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
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    LostVersion,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceView,
    RestoreTable,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_pb.v1 import actions_pb2 as pb
from alpheus_pb.v1 import objects_pb2


def operations_digest(operations: Sequence[Operation]) -> bytes:
    """SHA-256 over the operations as asked, each length-prefixed, encoded deterministically.

    Ids of added columns, and sequences of changed rows, count as 0: they are given when the operation is executed.
    """
    digest = hashlib.sha256()
    for operation in operations:
        digest.update(digested(operation))
    return digest.digest()


def digested(operation: Operation) -> bytes:
    """One operation's part of what the digest is over."""
    if isinstance(operation, UpdateTable) and operation.add_columns:
        operation = msgspec.structs.replace(
            operation,
            add_columns=tuple(
                msgspec.structs.replace(added, column=with_ids(added.column, lambda: 0))
                for added in operation.add_columns
            ),
        )
    if isinstance(operation, ChangeRows):
        operation = msgspec.structs.replace(operation, outputs_sequence=0, hides_up_to=0)
    return digested_message(encode_operation(operation))


def digested_message(message: pb.Operation) -> bytes:
    """As `digested`, of an operation's message, which gives no ids of added columns."""
    data = message.SerializeToString(deterministic=True)
    return len(data).to_bytes(8, "big") + data


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
            message.update_catalog.CopyFrom(
                pb.UpdateCatalog(set=operation.set or None, unset=operation.unset)
            )
        case CreateNamespace():
            message.create_namespace.CopyFrom(
                pb.CreateNamespace(
                    name=operation.name,
                    namespace_id=operation.namespace_id,
                    properties=operation.properties or None,
                    data_root=operation.data_root,
                )
            )
        case UpdateNamespace():
            message.update_namespace.CopyFrom(
                pb.UpdateNamespace(name=operation.name, set=operation.set or None, unset=operation.unset)
            )
        case DropNamespace():
            message.drop_namespace.CopyFrom(pb.DropNamespace(name=operation.name, cascade=operation.cascade))
        case CreateTable():
            # The commonest two are made in place: a message that is handed over is copied.
            created = message.create_table
            created.namespace_name = operation.namespace
            created.name = operation.name
            created.table_id = operation.table_id
            encode_schema(operation.columns, created.schema)
            if operation.properties:
                put_texts(operation.properties, created.properties)
            if operation.partition_spec:
                created.partition_spec.extend(encode_partition_spec(operation.partition_spec))
            if operation.sort_order:
                created.sort_order.extend(encode_sort_order(operation.sort_order))
        case UpdateTable():
            _encode_update(operation, message.update_table)
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
        case ChangeRows():
            message.change_rows.CopyFrom(
                pb.ChangeRows(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    table_id=operation.table_id,
                    base_sequence=operation.base_sequence,
                    mode=_MODES[operation.mode],
                    segments=[encode_segment(s) for s in operation.segments],
                    removed=[encode_segment(s) for s in operation.removed],
                    predicates=operation.predicates,
                    scan=operation.scan,
                    changes=[encode_segment(s) for s in operation.changes],
                    sources=operation.sources,
                    outputs_sequence=operation.outputs_sequence,
                    rows_hidden=operation.rows_hidden,
                    hides_up_to=operation.hides_up_to,
                    rows_kept=operation.rows_kept,
                    rows_dead=operation.rows_dead,
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
                    called_at_millis=operation.called_at_millis,
                    declaration=encode_declaration(operation.declaration),
                    former_job=operation.former_job,
                    expected_pipeline_id=operation.expected_pipeline_id,
                )
            )
        case CancelTransaction():
            message.cancel_transaction.CopyFrom(pb.CancelTransaction(transaction_id=operation.transaction_id))
        case RenameObject():
            message.rename_object.CopyFrom(
                pb.RenameObject(
                    type=_object_type(operation.kind),
                    namespace_name=operation.namespace,
                    name=operation.name,
                    new_namespace_name=operation.new_namespace,
                    new_name=operation.new_name,
                )
            )
        case RegisterTable():
            message.register_table.CopyFrom(
                pb.RegisterTable(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    table_id=operation.table_id,
                    metadata_location=operation.metadata_location,
                    properties=operation.properties or None,
                )
            )
        case CommitIceberg():
            message.commit_iceberg.CopyFrom(
                pb.CommitIceberg(
                    namespace_name=operation.namespace,
                    name=operation.name,
                    metadata_location=operation.metadata_location,
                    expected_metadata_location=operation.expected,
                )
            )
        case RestoreTable():
            message.restore_table.CopyFrom(
                pb.RestoreTable(
                    namespace_name=operation.namespace, name=operation.name, version=operation.version
                )
            )
        case Undrop():
            message.undrop.CopyFrom(
                pb.Undrop(
                    type=_object_type(operation.kind),
                    namespace_name=operation.namespace,
                    name=operation.name,
                    version=operation.version,
                    new_namespace_name=operation.new_namespace,
                    new_name=operation.new_name,
                )
            )
        case CreateView():
            message.create_view.CopyFrom(pb.CreateView(view_id=operation.view_id, **_view_fields(operation)))
        case ReplaceView():
            message.replace_view.CopyFrom(pb.ReplaceView(**_view_fields(operation)))
        case DropView():
            message.drop_view.CopyFrom(pb.DropView(namespace_name=operation.namespace, name=operation.name))
        case CreateSubscription():
            fields = msgspec.structs.asdict(operation) | {"kinds": encode_kinds(operation.kinds)}
            message.create_subscription.CopyFrom(pb.CreateSubscription(**fields))
        case DropSubscription():
            message.drop_subscription.CopyFrom(pb.DropSubscription(name=operation.name))
        case ClaimSubscription():
            message.claim_subscription.CopyFrom(pb.ClaimSubscription(**msgspec.structs.asdict(operation)))
        case Repair():
            message.repair.SetInParent()
            message.repair.head_version = operation.head_version
            message.repair.times_up_to_millis = operation.times_up_to_millis
            for lost in operation.lost:
                message.repair.lost.add(**msgspec.structs.asdict(lost))
            for one in operation.given_up:
                message.repair.given_up.add(first=one.first, last=one.last)
    return message


def _encode_update(operation: UpdateTable, message: pb.UpdateTable) -> None:
    message.SetInParent()
    message.namespace_name = operation.namespace
    message.name = operation.name
    put_texts(operation.set, message.set)
    if operation.unset:
        message.unset.extend(operation.unset)
    if not operation.changes_columns:
        return
    for added in operation.add_columns:
        message.add_columns.add(parent=added.parent, column=encode_column(added.column))
    message.drop_columns.extend(operation.drop_columns)
    message.rename_columns.update(operation.rename_columns)
    for path, column in operation.retype_columns.items():
        message.retype_columns[path].CopyFrom(encode_column(column))
    message.nullable_columns.update(operation.nullable_columns)
    message.column_order.extend(operation.column_order)
    for path, default in operation.defaults.items():
        message.defaults[path].CopyFrom(pb.DefaultValue(value=default))


def _view_fields(operation: CreateView | ReplaceView) -> dict[str, Any]:
    return {
        "namespace_name": operation.namespace,
        "name": operation.name,
        "sql": operation.sql,
        "dialect": operation.dialect,
        "references": [encode_reference(reference) for reference in operation.references],
        "schema_binding": operation.schema_binding,
        "schema": _schema(operation.columns),
        "default_namespace": operation.default_namespace,
        "properties": operation.properties,
    }


def _schema(columns: Sequence[Column]) -> objects_pb2.Schema:
    message = objects_pb2.Schema()
    encode_schema(columns, message)
    return message


def _values_of_view(m: Any) -> dict[str, Any]:
    return {
        "namespace": m.namespace_name,
        "name": m.name,
        "sql": m.sql,
        "dialect": m.dialect,
        "references": tuple(decode_reference(reference) for reference in m.references),
        "schema_binding": m.schema_binding,
        "columns": decode_columns(m.schema.columns),
        "default_namespace": m.default_namespace,
        "properties": dict(m.properties),
    }


_DECODERS: dict[str, Callable[[Any], Operation]] = {
    "create_catalog": lambda m: CreateCatalog(definition=catalog_of_message(m.definition)),
    "update_catalog": lambda m: UpdateCatalog(set=dict(m.set), unset=tuple(m.unset)),
    "create_namespace": lambda m: CreateNamespace(
        name=m.name, namespace_id=m.namespace_id, properties=texts_of(m.properties), data_root=m.data_root
    ),
    "update_namespace": lambda m: UpdateNamespace(name=m.name, set=dict(m.set), unset=tuple(m.unset)),
    "drop_namespace": lambda m: DropNamespace(name=m.name, cascade=m.cascade),
    "create_table": lambda m: CreateTable(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        columns=decode_columns(m.schema.columns),
        properties=texts_of(m.properties),
        partition_spec=decode_partition_spec(m.partition_spec),
        sort_order=decode_sort_order(m.sort_order),
    ),
    "update_table": lambda m: UpdateTable(
        namespace=m.namespace_name,
        name=m.name,
        set=texts_of(m.set),
        unset=tuple(m.unset),
        add_columns=tuple(
            AddColumn(parent=added.parent, column=decode_columns([added.column])[0])
            for added in m.add_columns
        )
        if m.add_columns
        else (),
        drop_columns=tuple(m.drop_columns),
        rename_columns=texts_of(m.rename_columns),
        retype_columns={path: decode_column(column) for path, column in m.retype_columns.items()}
        if m.retype_columns
        else {},
        nullable_columns=dict(m.nullable_columns) if m.nullable_columns else {},
        column_order=tuple(m.column_order),
        defaults={path: d.value if d.HasField("value") else None for path, d in m.defaults.items()}
        if m.defaults
        else {},
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
    "change_rows": lambda m: ChangeRows(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        base_sequence=m.base_sequence,
        mode=_mode_of(m.mode),
        segments=tuple(decode_segment(s) for s in m.segments),
        removed=tuple(decode_segment(s) for s in m.removed),
        predicates=tuple(m.predicates),
        scan=m.scan,
        changes=tuple(decode_segment(s) for s in m.changes),
        sources=tuple(m.sources),
        outputs_sequence=m.outputs_sequence,
        rows_hidden=m.rows_hidden,
        hides_up_to=m.hides_up_to,
        rows_kept=m.rows_kept,
        rows_dead=m.rows_dead,
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
        called_at_millis=m.called_at_millis,
        declaration=decode_declaration(m.declaration) if m.HasField("declaration") else None,
        former_job=m.former_job,
        expected_pipeline_id=m.expected_pipeline_id if m.HasField("expected_pipeline_id") else None,
    ),
    "cancel_transaction": lambda m: CancelTransaction(transaction_id=m.transaction_id),
    "rename_object": lambda m: RenameObject(
        kind=Kind(m.type),
        namespace=m.namespace_name,
        name=m.name,
        new_namespace=m.new_namespace_name,
        new_name=m.new_name,
    ),
    "register_table": lambda m: RegisterTable(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        metadata_location=m.metadata_location,
        properties=texts_of(m.properties),
    ),
    "commit_iceberg": lambda m: CommitIceberg(
        namespace=m.namespace_name,
        name=m.name,
        metadata_location=m.metadata_location,
        expected=m.expected_metadata_location,
    ),
    "restore_table": lambda m: RestoreTable(namespace=m.namespace_name, name=m.name, version=m.version),
    "undrop": lambda m: Undrop(
        kind=Kind(m.type),
        namespace=m.namespace_name,
        name=m.name,
        version=m.version,
        new_namespace=m.new_namespace_name,
        new_name=m.new_name,
    ),
    "create_view": lambda m: CreateView(view_id=m.view_id, **_values_of_view(m)),
    "replace_view": lambda m: ReplaceView(**_values_of_view(m)),
    "drop_view": lambda m: DropView(namespace=m.namespace_name, name=m.name),
    "create_subscription": lambda m: CreateSubscription(
        name=m.name,
        subscription_id=m.subscription_id,
        lease_millis=m.lease_millis,
        namespaces=tuple(m.namespaces),
        names=tuple(m.names),
        name_patterns=tuple(m.name_patterns),
        kinds=decode_kinds(m.kinds),
        actions=tuple(m.actions),
        details=m.details,
        next_version=m.next_version,
        token=m.token,
    ),
    "drop_subscription": lambda m: DropSubscription(name=m.name),
    "claim_subscription": lambda m: ClaimSubscription(
        name=m.name,
        subscription_id=m.subscription_id,
        expected_epoch=m.expected_epoch,
        expected_position_path=m.expected_position_path,
        next_version=m.next_version,
        token=m.token,
        holder=m.holder,
        position_path=m.position_path,
        previous_position_path=m.previous_position_path,
    ),
    "repair": lambda m: Repair(
        head_version=m.head_version,
        lost=tuple(
            LostVersion(version=lost.version, commit_id=lost.commit_id, known_from=lost.known_from)
            for lost in m.lost
        ),
        times_up_to_millis=m.times_up_to_millis,
        given_up=tuple(VersionRange(one.first, one.last) for one in m.given_up),
    ),
}


_MODES: dict[ChangeMode, Any] = {
    ChangeMode.DELETE: pb.CHANGE_DELETE,
    ChangeMode.UPDATE: pb.CHANGE_UPDATE,
    ChangeMode.MERGE: pb.CHANGE_MERGE,
    ChangeMode.OVERWRITE: pb.CHANGE_OVERWRITE,
    ChangeMode.COMPACT: pb.CHANGE_COMPACT,
}


def _mode_of(number: int) -> ChangeMode:
    """Raises ValueError for one that this revision does not know."""
    for mode, known in _MODES.items():
        if known == number:
            return mode
    raise ValueError(f"{number} is no way of changing rows")


def decode_operation(message: pb.Operation) -> Operation | None:
    """The operation of a message; None when it holds none that this revision knows.

    Raises ValueError for a column type or an object kind that the format does not have.
    """
    which = message.WhichOneof("operation")
    if which is None:
        return None
    return _DECODERS[which](getattr(message, which))


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
            return _type_of_update(operation)
        case DropTable():
            return "TABLE_DROP"
        case AppendFiles():
            return "TABLE_INSERT"
        case OverwriteFiles():
            return "TABLE_OVERWRITE"
        case ChangeRows():
            return _TYPES_OF_CHANGES[operation.mode]
        case AdvancePipeline():
            return "PIPELINE_ADVANCE"
        case CancelTransaction():
            return "TRANSACTION_CANCEL"
        case RenameObject():
            return f"{operation.kind.name}_RENAME"
        case RegisterTable():
            return "TABLE_REGISTER"
        case CommitIceberg():
            return "TABLE_COMMIT_ICEBERG"
        case RestoreTable():
            return "TABLE_RESTORE"
        case Undrop():
            return f"{operation.kind.name}_UNDROP"
        case CreateView():
            return "VIEW_CREATE"
        case ReplaceView():
            return "VIEW_REPLACE"
        case DropView():
            return "VIEW_DROP"
        case CreateSubscription():
            return "SUBSCRIPTION_CREATE"
        case DropSubscription():
            return "SUBSCRIPTION_DROP"
        case ClaimSubscription():
            return "SUBSCRIPTION_CLAIM"
        case Repair():
            return "REPAIR"


_TYPES_OF_CHANGES = {
    ChangeMode.DELETE: "TABLE_DELETE",
    ChangeMode.UPDATE: "TABLE_UPDATE",
    ChangeMode.MERGE: "TABLE_MERGE",
    ChangeMode.OVERWRITE: "TABLE_OVERWRITE_WHERE",
    ChangeMode.COMPACT: "TABLE_COMPACT",
}


def _type_of_update(operation: UpdateTable) -> str:
    """The format's own type where the operation does just what it says; else the general one."""
    parts = [
        bool(operation.add_columns),
        bool(operation.drop_columns),
        bool(operation.set or operation.unset),
        bool(operation.rename_columns or operation.retype_columns),
        bool(operation.nullable_columns or operation.column_order or operation.defaults),
    ]
    if sum(parts) == 1 and parts[0]:
        return "TABLE_ALTER_ADD_COLUMNS"
    if sum(parts) == 1 and parts[1]:
        return "TABLE_ALTER_REMOVE_COLUMNS"
    return "TABLE_ALTER"


def _object_type(kind: Kind) -> Any:
    return objects_pb2.ObjectType.Name(int(kind))
