"""Operations to their protobuf messages, and back; the digest of operations, and the type that records each.

`CODECS` is the registry, with one row for each operation. The module is long because every operation spells its fields
twice, once for each direction.

This is one of the few modules that convert between protobuf and values (FORMAT.md, "Actions and transactions").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    decode_tag_objects,
    encode_column,
    encode_declaration,
    encode_input,
    encode_kinds,
    encode_partition_spec,
    encode_reference,
    encode_schema,
    encode_segment,
    encode_sort_order,
    encode_tag_object,
    optional_number,
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
    CreateTag,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropTag,
    DropView,
    FenceCollection,
    LostVersion,
    Operation,
    OverwriteFiles,
    PlannedStart,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceTag,
    ReplaceView,
    RestoreTable,
    TableCounters,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    UpgradeCatalog,
)
from alpheus_pb.v1 import actions_pb2 as pb
from alpheus_pb.v1 import objects_pb2


def operations_digest(operations: Sequence[Operation]) -> bytes:
    """Return the SHA-256 over the operations as requested, each encoded deterministically with a length prefix.

    Ids of added columns and sequences of changed rows count as 0, and counters of undropped tables as absent, because
    the execution of an operation assigns them.
    """
    digest = hashlib.sha256()
    for operation in operations:
        digest.update(operation_bytes(operation))
    return digest.digest()


def operation_bytes(operation: Operation) -> bytes:
    """Return the bytes of one operation that go into the digest."""
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
    if isinstance(operation, Undrop) and operation.counters:
        operation = msgspec.structs.replace(operation, counters=())
    return operation_bytes_of_message(encode_operation(operation))


def operation_bytes_of_message(message: pb.Operation) -> bytes:
    """Return the bytes for the digest from an operation's message, which assigns no ids of added columns."""
    data = message.SerializeToString(deterministic=True)
    return len(data).to_bytes(8, "big") + data


class Codec(NamedTuple):
    """One row of `CODECS`: everything about the message of one operation."""

    member: str
    """The member of the `oneof` of `pb.Operation`."""
    encode: Callable[[Any, Any], None]
    """Fill the member's empty message from the operation."""
    decode: Callable[[Any], Operation]
    """Decode the operation of the member's message. Raises ValueError for a value that the format does not have."""
    action_type: str | Callable[[Any], str]
    """The name of the ActionType that records the operation."""


def encode_operation(operation: Operation) -> pb.Operation:
    """Build the message of an operation, for a request or an action row."""
    message = pb.Operation()
    codec = CODECS[type(operation)]
    member = getattr(message, codec.member)
    member.SetInParent()
    codec.encode(operation, member)
    return message


def decode_operation(message: pb.Operation) -> Operation | None:
    """Decode the operation of a message. Return None when this revision does not know the operation.

    Raises ValueError for a column type or an object kind that the format does not have.
    """
    which = message.WhichOneof("operation")
    if which is None:
        return None
    return _BY_MEMBER[which].decode(getattr(message, which))


def action_type(operation: Operation) -> str:
    """Return the name of the ActionType that records an operation."""
    named = CODECS[type(operation)].action_type
    return named if isinstance(named, str) else named(operation)


# --- each operation --------------------------------------------------------------------------------


def _encode_create_catalog(operation: CreateCatalog, message: pb.CreateCatalog) -> None:
    message.CopyFrom(pb.CreateCatalog(definition=catalog_message(operation.definition)))


def _decode_create_catalog(m: Any) -> CreateCatalog:
    return CreateCatalog(definition=catalog_of_message(m.definition))


def _encode_update_catalog(operation: UpdateCatalog, message: pb.UpdateCatalog) -> None:
    message.CopyFrom(pb.UpdateCatalog(set=operation.set or None, unset=operation.unset))


def _decode_update_catalog(m: Any) -> UpdateCatalog:
    return UpdateCatalog(set=dict(m.set), unset=tuple(m.unset))


def _encode_create_namespace(operation: CreateNamespace, message: pb.CreateNamespace) -> None:
    message.CopyFrom(
        pb.CreateNamespace(
            name=operation.name,
            namespace_id=operation.namespace_id,
            properties=operation.properties or None,
            data_root=operation.data_root,
        )
    )


def _decode_create_namespace(m: Any) -> CreateNamespace:
    return CreateNamespace(
        name=m.name, namespace_id=m.namespace_id, properties=texts_of(m.properties), data_root=m.data_root
    )


def _encode_update_namespace(operation: UpdateNamespace, message: pb.UpdateNamespace) -> None:
    message.CopyFrom(
        pb.UpdateNamespace(name=operation.name, set=operation.set or None, unset=operation.unset)
    )


def _decode_update_namespace(m: Any) -> UpdateNamespace:
    return UpdateNamespace(name=m.name, set=dict(m.set), unset=tuple(m.unset))


def _encode_drop_namespace(operation: DropNamespace, message: pb.DropNamespace) -> None:
    message.CopyFrom(pb.DropNamespace(name=operation.name, cascade=operation.cascade))


def _decode_drop_namespace(m: Any) -> DropNamespace:
    return DropNamespace(name=m.name, cascade=m.cascade)


def _encode_create_table(operation: CreateTable, message: pb.CreateTable) -> None:
    message.namespace_name = operation.namespace
    message.name = operation.name
    message.table_id = operation.table_id
    encode_schema(operation.columns, message.schema)
    if operation.properties:
        put_texts(operation.properties, message.properties)
    if operation.partition_spec:
        message.partition_spec.extend(encode_partition_spec(operation.partition_spec))
    if operation.sort_order:
        message.sort_order.extend(encode_sort_order(operation.sort_order))


def _decode_create_table(m: Any) -> CreateTable:
    return CreateTable(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        columns=decode_columns(m.schema.columns),
        properties=texts_of(m.properties),
        partition_spec=decode_partition_spec(m.partition_spec),
        sort_order=decode_sort_order(m.sort_order),
    )


def _encode_update_table(operation: UpdateTable, message: pb.UpdateTable) -> None:
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


def _decode_update_table(m: Any) -> UpdateTable:
    return UpdateTable(
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
    )


def _encode_drop_table(operation: DropTable, message: pb.DropTable) -> None:
    message.CopyFrom(
        pb.DropTable(namespace_name=operation.namespace, name=operation.name, purge=operation.purge)
    )


def _decode_drop_table(m: Any) -> DropTable:
    return DropTable(namespace=m.namespace_name, name=m.name, purge=m.purge)


def _encode_append_files(operation: AppendFiles, message: pb.AppendFiles) -> None:
    message.CopyFrom(
        pb.AppendFiles(
            namespace_name=operation.namespace,
            name=operation.name,
            table_id=operation.table_id,
            segments=[encode_segment(s) for s in operation.segments],
            data_root=operation.data_root,
        )
    )


def _decode_append_files(m: Any) -> AppendFiles:
    return AppendFiles(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        segments=tuple(decode_segment(s) for s in m.segments),
        data_root=m.data_root,
    )


def _encode_overwrite_files(operation: OverwriteFiles, message: pb.OverwriteFiles) -> None:
    message.CopyFrom(
        pb.OverwriteFiles(
            namespace_name=operation.namespace,
            name=operation.name,
            table_id=operation.table_id,
            segments=[encode_segment(s) for s in operation.segments],
            data_root=operation.data_root,
        )
    )


def _decode_overwrite_files(m: Any) -> OverwriteFiles:
    return OverwriteFiles(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        segments=tuple(decode_segment(s) for s in m.segments),
        data_root=m.data_root,
    )


def _encode_change_rows(operation: ChangeRows, message: pb.ChangeRows) -> None:
    message.CopyFrom(
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
            data_root=operation.data_root,
        )
    )


def _decode_change_rows(m: Any) -> ChangeRows:
    return ChangeRows(
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
        data_root=m.data_root,
    )


def _encode_advance_pipeline(operation: AdvancePipeline, message: pb.AdvancePipeline) -> None:
    message.CopyFrom(
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


def _decode_advance_pipeline(m: Any) -> AdvancePipeline:
    return AdvancePipeline(
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
    )


def _encode_cancel_transaction(operation: CancelTransaction, message: pb.CancelTransaction) -> None:
    message.CopyFrom(pb.CancelTransaction(transaction_id=operation.transaction_id))


def _decode_cancel_transaction(m: Any) -> CancelTransaction:
    return CancelTransaction(transaction_id=m.transaction_id)


def _encode_rename_object(operation: RenameObject, message: pb.RenameObject) -> None:
    message.CopyFrom(
        pb.RenameObject(
            type=_object_type(operation.kind),
            namespace_name=operation.namespace,
            name=operation.name,
            new_namespace_name=operation.new_namespace,
            new_name=operation.new_name,
        )
    )


def _decode_rename_object(m: Any) -> RenameObject:
    return RenameObject(
        kind=Kind(m.type),
        namespace=m.namespace_name,
        name=m.name,
        new_namespace=m.new_namespace_name,
        new_name=m.new_name,
    )


def _encode_register_table(operation: RegisterTable, message: pb.RegisterTable) -> None:
    message.CopyFrom(
        pb.RegisterTable(
            namespace_name=operation.namespace,
            name=operation.name,
            table_id=operation.table_id,
            metadata_location=operation.metadata_location,
            properties=operation.properties or None,
        )
    )


def _decode_register_table(m: Any) -> RegisterTable:
    return RegisterTable(
        namespace=m.namespace_name,
        name=m.name,
        table_id=m.table_id,
        metadata_location=m.metadata_location,
        properties=texts_of(m.properties),
    )


def _encode_commit_iceberg(operation: CommitIceberg, message: pb.CommitIceberg) -> None:
    message.CopyFrom(
        pb.CommitIceberg(
            namespace_name=operation.namespace,
            name=operation.name,
            metadata_location=operation.metadata_location,
            expected_metadata_location=operation.expected,
        )
    )


def _decode_commit_iceberg(m: Any) -> CommitIceberg:
    return CommitIceberg(
        namespace=m.namespace_name,
        name=m.name,
        metadata_location=m.metadata_location,
        expected=m.expected_metadata_location,
    )


def _encode_restore_table(operation: RestoreTable, message: pb.RestoreTable) -> None:
    message.CopyFrom(
        pb.RestoreTable(namespace_name=operation.namespace, name=operation.name, version=operation.version)
    )


def _decode_restore_table(m: Any) -> RestoreTable:
    return RestoreTable(namespace=m.namespace_name, name=m.name, version=m.version)


def _encode_undrop(operation: Undrop, message: pb.Undrop) -> None:
    message.CopyFrom(
        pb.Undrop(
            type=_object_type(operation.kind),
            namespace_name=operation.namespace,
            name=operation.name,
            version=operation.version,
            new_namespace_name=operation.new_namespace,
            new_name=operation.new_name,
            counters=[
                pb.TableCounters(
                    table_id=one.table_id,
                    next_column_id=one.next_column_id,
                    sequence=one.sequence,
                    schema_id=one.schema_id,
                )
                for one in operation.counters
            ],
        )
    )


def _decode_undrop(m: Any) -> Undrop:
    return Undrop(
        kind=Kind(m.type),
        namespace=m.namespace_name,
        name=m.name,
        version=m.version,
        new_namespace=m.new_namespace_name,
        new_name=m.new_name,
        counters=tuple(
            TableCounters(
                table_id=one.table_id,
                next_column_id=one.next_column_id,
                sequence=one.sequence,
                schema_id=one.schema_id,
            )
            for one in m.counters
        ),
    )


def _encode_create_view(operation: CreateView, message: pb.CreateView) -> None:
    message.CopyFrom(pb.CreateView(view_id=operation.view_id, **_view_fields(operation)))


def _decode_create_view(m: Any) -> CreateView:
    return CreateView(view_id=m.view_id, **_values_of_view(m))


def _encode_replace_view(operation: ReplaceView, message: pb.ReplaceView) -> None:
    message.CopyFrom(pb.ReplaceView(**_view_fields(operation)))


def _decode_replace_view(m: Any) -> ReplaceView:
    return ReplaceView(**_values_of_view(m))


def _encode_drop_view(operation: DropView, message: pb.DropView) -> None:
    message.CopyFrom(pb.DropView(namespace_name=operation.namespace, name=operation.name))


def _decode_drop_view(m: Any) -> DropView:
    return DropView(namespace=m.namespace_name, name=m.name)


def _encode_create_subscription(operation: CreateSubscription, message: pb.CreateSubscription) -> None:
    fields = msgspec.structs.asdict(operation) | {"kinds": encode_kinds(operation.kinds)}
    message.CopyFrom(pb.CreateSubscription(**fields))


def _decode_create_subscription(m: Any) -> CreateSubscription:
    return CreateSubscription(
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
    )


def _encode_drop_subscription(operation: DropSubscription, message: pb.DropSubscription) -> None:
    message.CopyFrom(pb.DropSubscription(name=operation.name))


def _decode_drop_subscription(m: Any) -> DropSubscription:
    return DropSubscription(name=m.name)


def _encode_create_tag(operation: CreateTag, message: pb.CreateTag) -> None:
    message.CopyFrom(pb.CreateTag(**_encode_tag_fields(operation)))


def _decode_create_tag(m: Any) -> CreateTag:
    return CreateTag(tag_id=m.tag_id, **_tag_fields(m))


def _tag_fields(m: Any) -> dict[str, Any]:
    return {
        "name": m.name,
        "version": m.version,
        "commit_id": m.commit_id,
        "version_created_at_millis": m.version_created_at_millis,
        "pin_path": m.pin_path,
        "expire_at_millis": m.expire_at_millis,
        "message": m.message,
        "properties": texts_of(m.properties),
        "object_count": optional_number(m, "object_count"),
        "table_count": optional_number(m, "table_count"),
        "row_count": optional_number(m, "row_count"),
        "chosen": decode_tag_objects(m.chosen),
        "left_out": decode_tag_objects(m.left_out),
        "lacking": dict(m.lacking),
    }


def _encode_replace_tag(operation: ReplaceTag, message: pb.ReplaceTag) -> None:
    message.CopyFrom(pb.ReplaceTag(**_encode_tag_fields(operation)))


def _encode_tag_fields(operation: CreateTag | ReplaceTag) -> dict[str, Any]:
    return msgspec.structs.asdict(operation) | {
        "chosen": [encode_tag_object(each) for each in operation.chosen],
        "left_out": [encode_tag_object(each) for each in operation.left_out],
    }


def _decode_replace_tag(m: Any) -> ReplaceTag:
    return ReplaceTag(**_tag_fields(m))


def _encode_drop_tag(operation: DropTag, message: pb.DropTag) -> None:
    message.CopyFrom(pb.DropTag(name=operation.name, expected_pin_path=operation.expected_pin_path))


def _decode_drop_tag(m: Any) -> DropTag:
    return DropTag(name=m.name, expected_pin_path=m.expected_pin_path)


def _encode_claim_subscription(operation: ClaimSubscription, message: pb.ClaimSubscription) -> None:
    message.CopyFrom(pb.ClaimSubscription(**msgspec.structs.asdict(operation)))


def _decode_claim_subscription(m: Any) -> ClaimSubscription:
    return ClaimSubscription(
        name=m.name,
        subscription_id=m.subscription_id,
        expected_epoch=m.expected_epoch,
        expected_position_path=m.expected_position_path,
        next_version=m.next_version,
        token=m.token,
        holder=m.holder,
        position_path=m.position_path,
        previous_position_path=m.previous_position_path,
    )


def _encode_upgrade(operation: UpgradeCatalog, message: pb.UpgradeCatalog) -> None:
    message.revision = operation.revision


def _decode_upgrade(m: Any) -> UpgradeCatalog:
    return UpgradeCatalog(revision=m.revision)


def _encode_fence(operation: FenceCollection, message: pb.FenceCollection) -> None:
    message.cutoff_millis = operation.cutoff_millis
    message.disregarded.extend(operation.disregarded)
    for start in operation.starts:
        message.starts.add(
            table_id=start.table_id,
            version=start.version,
            namespace_name=start.namespace,
            name=start.name,
            age_millis=start.age_millis,
            keep_versions=start.keep_versions,
        )


def _decode_fence(m: Any) -> FenceCollection:
    starts = tuple(
        PlannedStart(
            table_id=start.table_id,
            version=start.version,
            namespace=start.namespace_name,
            name=start.name,
            age_millis=start.age_millis,
            keep_versions=start.keep_versions,
        )
        for start in m.starts
    )
    return FenceCollection(cutoff_millis=m.cutoff_millis, disregarded=tuple(m.disregarded), starts=starts)


def _encode_repair(operation: Repair, message: pb.Repair) -> None:
    message.head_version = operation.head_version
    message.times_up_to_millis = operation.times_up_to_millis
    for lost in operation.lost:
        message.lost.add(**msgspec.structs.asdict(lost))
    for one in operation.given_up:
        message.given_up.add(first=one.first, last=one.last)


def _decode_repair(m: Any) -> Repair:
    return Repair(
        head_version=m.head_version,
        lost=tuple(
            LostVersion(version=lost.version, commit_id=lost.commit_id, known_from=lost.known_from)
            for lost in m.lost
        ),
        times_up_to_millis=m.times_up_to_millis,
        given_up=tuple(VersionRange(one.first, one.last) for one in m.given_up),
    )


# --- what several operations share ------------------------------------------------------------------


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


_MODES: dict[ChangeMode, Any] = {
    ChangeMode.DELETE: pb.CHANGE_DELETE,
    ChangeMode.UPDATE: pb.CHANGE_UPDATE,
    ChangeMode.MERGE: pb.CHANGE_MERGE,
    ChangeMode.OVERWRITE: pb.CHANGE_OVERWRITE,
    ChangeMode.COMPACT: pb.CHANGE_COMPACT,
}


def _mode_of(number: int) -> ChangeMode:
    """Return the mode of a message. Raises ValueError for a mode that this revision does not know."""
    for mode, known in _MODES.items():
        if known == number:
            return mode
    raise ValueError(f"{number} is not a mode of changing rows")


def _object_type(kind: Kind) -> Any:
    return objects_pb2.ObjectType.Name(int(kind))


_TYPES_OF_CHANGES = {
    ChangeMode.DELETE: "TABLE_DELETE",
    ChangeMode.UPDATE: "TABLE_UPDATE",
    ChangeMode.MERGE: "TABLE_MERGE",
    ChangeMode.OVERWRITE: "TABLE_OVERWRITE_WHERE",
    ChangeMode.COMPACT: "TABLE_COMPACT",
}


def _type_of_namespace_update(operation: UpdateNamespace) -> str:
    """Return the format's specific type where the operation does only that, else the general type."""
    if not operation.unset:
        return "NAMESPACE_ALTER_SET_PROPERTIES"
    return "NAMESPACE_ALTER" if operation.set else "NAMESPACE_ALTER_UNSET_PROPERTIES"


def _type_of_update(operation: UpdateTable) -> str:
    """Return the format's specific type where the operation does only that, else the general type."""
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


# --- the registry ----------------------------------------------------------------------------------

CODECS: dict[type[Operation], Codec] = {
    CreateCatalog: Codec("create_catalog", _encode_create_catalog, _decode_create_catalog, "CATALOG_CREATE"),
    UpdateCatalog: Codec("update_catalog", _encode_update_catalog, _decode_update_catalog, "CATALOG_ALTER"),
    CreateNamespace: Codec(
        "create_namespace", _encode_create_namespace, _decode_create_namespace, "NAMESPACE_CREATE"
    ),
    UpdateNamespace: Codec(
        "update_namespace", _encode_update_namespace, _decode_update_namespace, _type_of_namespace_update
    ),
    DropNamespace: Codec("drop_namespace", _encode_drop_namespace, _decode_drop_namespace, "NAMESPACE_DROP"),
    CreateTable: Codec("create_table", _encode_create_table, _decode_create_table, "TABLE_CREATE"),
    UpdateTable: Codec("update_table", _encode_update_table, _decode_update_table, _type_of_update),
    DropTable: Codec("drop_table", _encode_drop_table, _decode_drop_table, "TABLE_DROP"),
    AppendFiles: Codec("append_files", _encode_append_files, _decode_append_files, "TABLE_INSERT"),
    OverwriteFiles: Codec(
        "overwrite_files", _encode_overwrite_files, _decode_overwrite_files, "TABLE_OVERWRITE"
    ),
    ChangeRows: Codec(
        "change_rows",
        _encode_change_rows,
        _decode_change_rows,
        lambda operation: _TYPES_OF_CHANGES[operation.mode],
    ),
    AdvancePipeline: Codec(
        "advance_pipeline", _encode_advance_pipeline, _decode_advance_pipeline, "PIPELINE_ADVANCE"
    ),
    CancelTransaction: Codec(
        "cancel_transaction", _encode_cancel_transaction, _decode_cancel_transaction, "TRANSACTION_CANCEL"
    ),
    RenameObject: Codec(
        "rename_object",
        _encode_rename_object,
        _decode_rename_object,
        lambda operation: f"{operation.kind.name}_RENAME",
    ),
    RegisterTable: Codec("register_table", _encode_register_table, _decode_register_table, "TABLE_REGISTER"),
    CommitIceberg: Codec(
        "commit_iceberg", _encode_commit_iceberg, _decode_commit_iceberg, "TABLE_COMMIT_ICEBERG"
    ),
    RestoreTable: Codec("restore_table", _encode_restore_table, _decode_restore_table, "TABLE_RESTORE"),
    Undrop: Codec(
        "undrop", _encode_undrop, _decode_undrop, lambda operation: f"{operation.kind.name}_UNDROP"
    ),
    CreateView: Codec("create_view", _encode_create_view, _decode_create_view, "VIEW_CREATE"),
    ReplaceView: Codec("replace_view", _encode_replace_view, _decode_replace_view, "VIEW_REPLACE"),
    DropView: Codec("drop_view", _encode_drop_view, _decode_drop_view, "VIEW_DROP"),
    CreateSubscription: Codec(
        "create_subscription", _encode_create_subscription, _decode_create_subscription, "SUBSCRIPTION_CREATE"
    ),
    DropSubscription: Codec(
        "drop_subscription", _encode_drop_subscription, _decode_drop_subscription, "SUBSCRIPTION_DROP"
    ),
    ClaimSubscription: Codec(
        "claim_subscription", _encode_claim_subscription, _decode_claim_subscription, "SUBSCRIPTION_CLAIM"
    ),
    CreateTag: Codec("create_tag", _encode_create_tag, _decode_create_tag, "TAG_CREATE"),
    ReplaceTag: Codec("replace_tag", _encode_replace_tag, _decode_replace_tag, "TAG_REPLACE"),
    DropTag: Codec("drop_tag", _encode_drop_tag, _decode_drop_tag, "TAG_DROP"),
    Repair: Codec("repair", _encode_repair, _decode_repair, "REPAIR"),
    UpgradeCatalog: Codec("upgrade_catalog", _encode_upgrade, _decode_upgrade, "UPGRADE"),
    FenceCollection: Codec("fence_collection", _encode_fence, _decode_fence, "CATALOG_FENCE"),
}
"""One row for each operation. Add a new operation here, to `Operation` and to the `.proto`."""

_BY_MEMBER = {codec.member: codec for codec in CODECS.values()}
