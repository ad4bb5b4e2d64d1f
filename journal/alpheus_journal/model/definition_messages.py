"""Convert definitions to the format's protobuf messages and back (FORMAT.md, "Definitions").

This is one of the few modules that convert between protobuf and values. Decoding checks everything that later code
relies on and raises Corrupt. Encoding is deterministic, so equal values give equal bytes.

The module is long because every definition spells its fields twice, once for each direction.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import (
    GIVEN_UP_MAX,
    CatalogDef,
    Column,
    DeclaredTable,
    Definition,
    DeletePredicate,
    InputPosition,
    JobDeclaration,
    JobDef,
    NamespaceDef,
    PartitionField,
    PipelineDef,
    Reference,
    Segment,
    SortField,
    SubscriptionDef,
    TableDef,
    TagDef,
    TagObject,
    TimeMark,
    VersionRange,
    ViewDef,
    WriterMark,
    walk_columns,
)
from alpheus_pb.v1 import objects_pb2 as pb


def _serialize(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


_DATA_TYPES: dict[str, int] = dict(pb.DataType.items())


def encode_column(column: Column) -> pb.Column:
    """Build the message of a column. Raises ValueError for a type that the format does not have."""
    message = pb.Column()
    _fill(message, column)
    return message


def encode_schema(columns: Iterable[Column], message: pb.Schema) -> None:
    """Fill the message of a schema, which is part of another message. Columns are made in place, because protobuf would
    copy a finished column. Raises the errors of `encode_column`."""
    message.SetInParent()
    for column in columns:
        _fill(message.columns.add(), column)


def _fill(message: Any, column: Column) -> None:
    message.id = column.id
    message.name = column.name
    message.type = _DATA_TYPES.get(column.type) or pb.DataType.Value(column.type)
    message.nullable = column.nullable
    if column.properties:
        put_texts(column.properties, message.properties)
    for field in column.fields:
        _fill(message.struct_fields.add(), field)
    if column.key is not None:
        message.map_key.SetInParent()
        _fill(message.map_key, column.key)
    if column.value is not None:
        message.map_value.SetInParent()
        _fill(message.map_value, column.value)
    if column.element is not None:
        message.list_element.SetInParent()
        _fill(message.list_element, column.element)
    if column.initial_default is not None:
        message.initial_default = column.initial_default
    if column.write_default is not None:
        message.write_default = column.write_default


def put_texts(texts: Mapping[str, str], map: Any) -> None:
    """Put the entries into a message's map. The map's own `update` takes several times as long."""
    for key, text in texts.items():
        map[key] = text


def texts_of(map: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a message's map. An empty map, which is common, costs almost nothing."""
    return {key: map[key] for key in map} if map else {}


def optional_number(message: Any, field: str) -> int | None:
    """Return an optional number of a message; None where it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def decode_column(message: pb.Column) -> Column:
    """Decode a column. Raises ValueError for a type number that the format does not have, and for fields without a
    name."""
    return Column(
        id=message.id,
        name=message.name,
        type=pb.DataType.Name(message.type),
        nullable=message.nullable,
        properties=texts_of(message.properties),
        fields=decode_columns(message.struct_fields) if message.struct_fields else (),
        key=decode_column(message.map_key) if message.HasField("map_key") else None,
        value=decode_column(message.map_value) if message.HasField("map_value") else None,
        element=decode_column(message.list_element) if message.HasField("list_element") else None,
        initial_default=message.initial_default if message.HasField("initial_default") else None,
        write_default=message.write_default if message.HasField("write_default") else None,
    )


def decode_columns(messages: Iterable[pb.Column]) -> tuple[Column, ...]:
    """Decode columns. Raises ValueError for a column without a name, because an empty column takes two bytes of a
    message and hundreds of bytes in memory."""
    columns = []
    for message in messages:
        if not message.name:
            raise ValueError("a column has no name")
        columns.append(decode_column(message))
    return tuple(columns)


def encode_partition_spec(spec: Iterable[PartitionField]) -> list[pb.PartitionField]:
    """Build the messages of a partition spec. Raises ValueError for a transform that the format does not have."""
    numbers: dict[str, Any] = dict(pb.PartitionTransform.items())
    messages = []
    for field in spec:
        if field.transform not in numbers:
            raise ValueError(f"there is no partition transform {field.transform[:80]!r}")
        messages.append(pb.PartitionField(column_id=field.column_id, transform=numbers[field.transform]))
    return messages


def decode_partition_spec(messages: Sequence[pb.PartitionField]) -> tuple[PartitionField, ...]:
    """Decode a partition spec. Raises ValueError for too many keys, and InvalidInput (`newer_format`) for an unknown
    transform."""
    _check_keys(messages, "partition")
    spec = []
    for message in messages:
        if message.transform not in pb.PartitionTransform.values():
            raise InvalidInput(
                f"the partition transform {message.transform} is not known to this release",
                kind="newer_format",
                hint="use a newer release",
            )
        spec.append(PartitionField(message.column_id, pb.PartitionTransform.Name(message.transform)))
    return tuple(spec)


def encode_sort_order(order: Iterable[SortField]) -> list[pb.SortField]:
    return [
        pb.SortField(column_id=field.column_id, descending=field.descending, nulls_last=field.nulls_last)
        for field in order
    ]


def decode_sort_order(messages: Sequence[pb.SortField]) -> tuple[SortField, ...]:
    """Decode a sort order. Raises ValueError for too many keys."""
    _check_keys(messages, "sort")
    return tuple(SortField(m.column_id, m.descending, m.nulls_last) for m in messages)


def _check_keys(messages: Sequence[object], what: str) -> None:
    """Raise ValueError for too many keys, before any is decoded: an empty key takes two bytes of a message and
    hundreds of bytes in memory."""
    if len(messages) > fmt.KEYS_COUNT_MAX:
        raise ValueError(f"{len(messages)} {what} keys, {fmt.KEYS_COUNT_MAX} at most")


def encode_segment(segment: Segment) -> pb.ManifestSegment:
    return pb.ManifestSegment(
        path=segment.path,
        file_count=segment.file_count,
        row_count=segment.row_count,
        size_bytes=segment.size_bytes,
        sequence=segment.sequence,
        sha256=segment.sha256,
        segment_size_bytes=segment.segment_size_bytes,
        min_sequence=segment.min_sequence,
    )


def decode_segment(message: pb.ManifestSegment) -> Segment:
    """Decode a segment. Raises ValueError for a segment without a path."""
    if not message.path:
        raise ValueError("a manifest segment has no path")
    return Segment(
        path=message.path,
        file_count=message.file_count,
        row_count=message.row_count,
        size_bytes=message.size_bytes,
        sequence=message.sequence,
        sha256=message.sha256,
        segment_size_bytes=message.segment_size_bytes,
        min_sequence=message.min_sequence,
    )


def encode_delete_predicate(predicate: DeletePredicate) -> pb.DeletePredicate:
    return pb.DeletePredicate(
        sequence=predicate.sequence,
        expression=predicate.expression,
        transaction_id=predicate.transaction_id,
        committed_sequence=predicate.committed_sequence,
        moves=predicate.moves,
    )


def decode_delete_predicate(message: pb.DeletePredicate) -> DeletePredicate:
    return DeletePredicate(
        sequence=message.sequence,
        expression=message.expression,
        transaction_id=message.transaction_id,
        committed_sequence=message.committed_sequence,
        moves=message.moves,
    )


def encode_input(position: InputPosition) -> pb.InputPosition:
    return pb.InputPosition(table_id=position.table_id, version=position.version, table=position.table)


def decode_input(message: pb.InputPosition) -> InputPosition:
    return InputPosition(table_id=message.table_id, version=message.version, table=message.table)


def encode_declaration(declaration: JobDeclaration | None) -> pb.JobDeclaration | None:
    if declaration is None:
        return None
    return pb.JobDeclaration(
        inputs=[pb.DeclaredTable(table=each.table, table_id=each.table_id) for each in declaration.inputs],
        outputs=[pb.DeclaredTable(table=each.table, table_id=each.table_id) for each in declaration.outputs],
        open=declaration.open,
    )


def decode_declaration(message: pb.JobDeclaration) -> JobDeclaration:
    """Decode a job's declaration. Raises ValueError for too many tables before any is decoded, because an empty table
    takes two bytes of a message and hundreds of bytes in memory."""
    for tables, what in ((message.inputs, "inputs"), (message.outputs, "outputs")):
        if len(tables) > fmt.JOB_TABLES_MAX:
            raise ValueError(f"a job's declaration of {len(tables)} {what}, {fmt.JOB_TABLES_MAX} at most")
    return JobDeclaration(
        inputs=tuple(DeclaredTable(table=each.table, table_id=each.table_id) for each in message.inputs),
        outputs=tuple(DeclaredTable(table=each.table, table_id=each.table_id) for each in message.outputs),
        open=message.open,
    )


def encode_reference(reference: Reference) -> pb.NamespaceObjectFullName:
    return pb.NamespaceObjectFullName(namespace_name=reference.namespace, name=reference.name)


def decode_reference(message: pb.NamespaceObjectFullName) -> Reference:
    return Reference(message.namespace_name, message.name)


def encode_kinds(kinds: Iterable[Kind]) -> list[Any]:
    return [pb.ObjectType.Name(int(kind)) for kind in kinds]


def decode_kinds(numbers: Iterable[int]) -> tuple[Kind, ...]:
    """Decode object kinds. Raises ValueError for a kind that this revision does not know."""
    return tuple(Kind(number) for number in numbers)


def catalog_message(value: CatalogDef) -> pb.CatalogDef:
    return pb.CatalogDef(
        id=value.id,
        major_version=fmt.MAJOR_VERSION,
        order=value.order,
        namespace_name_max_size_bytes=value.namespace_name_size_max,
        table_name_max_size_bytes=value.table_name_size_max,
        view_name_max_size_bytes=value.view_name_size_max,
        node_file_max_size_bytes=value.node_file_size_max,
        properties=value.properties,
        txn_ttl_millis=value.txn_ttl_millis,
        txn_isolation_level=pb.SERIALIZABLE if value.serializable_default else pb.SNAPSHOT,
        exported_snapshots=value.exported_snapshots,
        time_marks=[pb.TimeMark(**msgspec.structs.asdict(mark)) for mark in value.time_marks],
        given_up=[pb.VersionRange(first=one.first, last=one.last) for one in value.given_up],
        format_revision=value.format_revision if value.format_revision > 1 else 0,
        data_roots=[
            pb.DataRoot(url=url, namespace_name=name) for url, name in sorted(value.data_roots.items())
        ],
        collected_before_millis=value.collected_before_millis,
        table_starts=value.table_starts,
    )


def _table_message(value: TableDef) -> pb.TableDef:
    message = pb.TableDef(
        id=value.id,
        table_format=pb.NATIVE if value.native else pb.ICEBERG,
        next_column_id=value.next_column_id,
        schema_id=value.schema_id,
        sequence=value.sequence,
    )
    if value.properties:
        put_texts(value.properties, message.properties)
    if value.native:
        encode_schema(value.columns, message.schema)
    if value.iceberg_metadata_location:
        message.iceberg_metadata_location = value.iceberg_metadata_location
    if value.iceberg_previous_metadata_location:
        message.iceberg_previous_metadata_location = value.iceberg_previous_metadata_location
    if value.data_root:
        message.data_root = value.data_root
    if value.partition_spec:
        message.partition_spec.extend(encode_partition_spec(value.partition_spec))
    if value.sort_order:
        message.sort_order.extend(encode_sort_order(value.sort_order))
    if value.segments:
        message.manifests.extend([encode_segment(segment) for segment in value.segments])
    if value.delete_predicates:
        message.delete_predicates.extend(map(encode_delete_predicate, value.delete_predicates))
    for name, mark in value.writer_marks.items():
        message.writer_marks[name].CopyFrom(
            pb.WriterMark(sequence=mark.sequence, transaction_id=mark.transaction_id, version=mark.version)
        )
    if value.bound_views:
        message.bound_views.extend([encode_reference(view) for view in value.bound_views])
    return message


def _namespace_message(value: NamespaceDef) -> pb.NamespaceDef:
    return pb.NamespaceDef(id=value.id, properties=value.properties or None, data_root=value.data_root)


def _job_message(job: JobDef) -> pb.JobDef:
    return pb.JobDef(
        last_transaction_id=job.last_transaction_id,
        pinned_version=job.pinned_version,
        inputs={key: encode_input(position) for key, position in job.inputs.items()},
        state=job.state,
        error=job.error,
        params=job.params,
        called_at_millis=job.called_at_millis,
        declaration=encode_declaration(job.declaration),
    )


def _pipeline_message(value: PipelineDef) -> pb.PipelineDef:
    return pb.PipelineDef(id=value.id, jobs={name: _job_message(job) for name, job in value.jobs.items()})


def _subscription_message(value: SubscriptionDef) -> pb.SubscriptionDef:
    return pb.SubscriptionDef(
        id=value.id,
        namespaces=value.namespaces,
        names=value.names,
        name_patterns=value.name_patterns,
        kinds=encode_kinds(value.kinds),
        actions=value.actions,
        details=value.details,
        lease_millis=value.lease_millis,
        holder=value.holder,
        epoch=value.epoch,
        position_path=value.position_path,
        next_version=value.next_version,
        token=value.token,
        previous_position_path=value.previous_position_path,
        created_at_millis=value.created_at_millis,
    )


def _tag_message(value: TagDef) -> pb.TagDef:
    return pb.TagDef(
        id=value.id,
        version=value.version,
        pin_path=value.pin_path,
        creator=value.creator,
        created_at_millis=value.created_at_millis,
        expire_at_millis=value.expire_at_millis,
        commit_id=value.commit_id,
        version_created_at_millis=value.version_created_at_millis,
        message=value.message,
        properties=value.properties,
        object_count=value.object_count,
        table_count=value.table_count,
        row_count=value.row_count,
        chosen=[encode_tag_object(each) for each in value.chosen],
        left_out=[encode_tag_object(each) for each in value.left_out],
        lacking=value.lacking,
    )


def encode_tag_object(value: TagObject) -> pb.TagObject:
    return pb.TagObject(namespace_name=value.namespace, name=value.name, version=value.version)


def decode_tag_objects(messages: Iterable[pb.TagObject]) -> tuple[TagObject, ...]:
    return tuple(TagObject(m.namespace_name, m.name, m.version) for m in messages)


def _view_message(value: ViewDef) -> pb.ViewDef:
    number: Any = value.view_format  # proto3 keeps numbers that it does not know
    message = pb.ViewDef(
        id=value.id,
        view_format=number,
        schema_binding=value.schema_binding,
        default_namespace_name=value.default_namespace,
        referenced_object_full_names=[encode_reference(reference) for reference in value.references],
        properties=value.properties,
        substrait_read_rel=value.substrait,
        sql=value.sql,
        dialect=value.dialect,
        bound_views=[encode_reference(view) for view in value.bound_views],
    )
    if value.columns:
        encode_schema(value.columns, message.schema)
    return message


_ENCODERS: dict[type[Any], Callable[[Any], Message]] = {
    CatalogDef: catalog_message,
    NamespaceDef: _namespace_message,
    TableDef: _table_message,
    PipelineDef: _pipeline_message,
    SubscriptionDef: _subscription_message,
    TagDef: _tag_message,
    ViewDef: _view_message,
}


_CHECKSUM_TAG = b"\xbd\x0c"
"""The bytes of a message before the value of its field `checksum`, number 199 of type fixed32."""
_CHECKSUM_SIZE = len(_CHECKSUM_TAG) + 4


def encode_definition(value: Definition, *, checksum: bool = False) -> bytes:
    """Return the stored bytes of a definition, from revision 2 on with their checksum. Raises InvalidInput
    (`too_large`) above the format's limit."""
    message = _ENCODERS[type(value)](value)
    data = _serialize(message) + value.unknown
    if checksum:
        data = _CHECKSUM_TAG + zlib.crc32(data).to_bytes(4, "little") + data
    if len(data) > fmt.DEFINITION_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"the definition of {type(value).__name__} {value.id} would take {len(data)} bytes,"
            f" {fmt.DEFINITION_SIZE_BYTES_MAX} at most",
            kind="too_large",
            hint="shorten the properties of the object, or compact the table",
        )
    return data


_MESSAGES: dict[Kind, Any] = {
    Kind.CATALOG: pb.CatalogDef,
    Kind.NAMESPACE: pb.NamespaceDef,
    Kind.TABLE: pb.TableDef,
    Kind.VIEW: pb.ViewDef,
    Kind.PIPELINE: pb.PipelineDef,
    Kind.SUBSCRIPTION: pb.SubscriptionDef,
    Kind.TAG: pb.TagDef,
}


def is_message(kind: Kind, data: bytes) -> bool:
    """Return whether protobuf accepts the stored bytes as a message of `kind`. This takes microseconds, and rejects
    most files that were cut."""
    if kind not in _MESSAGES:
        return True
    try:
        _MESSAGES[kind].FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return False
    return True


def decode_definition(kind: Kind, data: bytes, path: str) -> Definition:
    """Decode the definition in stored bytes. Raises Corrupt (`corrupt_definition`) with `path`."""

    def corrupt(reason: str) -> Corrupt:
        return Corrupt(f"{kind.label} definition {path}: {reason}", kind="corrupt_definition", path=path)

    if kind not in _MESSAGES:
        raise InvalidInput(f"this version does not read {kind.label} definitions", kind="not_supported")
    if len(data) > fmt.DEFINITION_SIZE_BYTES_MAX:
        raise corrupt(f"{len(data)} bytes, {fmt.DEFINITION_SIZE_BYTES_MAX} at most")
    try:
        message = _MESSAGES[kind].FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"it is not a {_MESSAGES[kind].__name__} message ({error})") from None
    if message.HasField("checksum"):
        if not has_checksum(data):
            raise corrupt("its checksum differs")
        message.ClearField("checksum")
    elif len(UnknownFieldSet(message)) and _begins_with_crc(data):
        raise corrupt("the field of its checksum is damaged")
    if not message.id:
        raise corrupt("it has no id")
    decode: Callable[[Any], Definition] = _DECODERS[kind]
    try:
        value = decode(message)
        unknown = _unknown_fields(message)
        return msgspec.structs.replace(value, unknown=unknown) if unknown else value
    except ValueError as error:
        raise corrupt(str(error)) from None
    except InvalidInput as error:
        error.path = path
        raise


def has_checksum(data: bytes) -> bool:
    """Return whether stored bytes of a definition begin with their own checksum. A file that was cut off keeps it."""
    return data.startswith(_CHECKSUM_TAG) and _begins_with_crc(data)


def _begins_with_crc(data: bytes) -> bool:
    """Return whether four bytes after the tag of the field `checksum` are the CRC-32 of all bytes that follow."""
    return zlib.crc32(data[_CHECKSUM_SIZE:]) == int.from_bytes(
        data[len(_CHECKSUM_TAG) : _CHECKSUM_SIZE], "little"
    )


def _unknown_fields(message: Message) -> bytes:
    """Return the top-level fields that this revision does not know, serialized. A message that has any is emptied.

    Raises InvalidInput (`newer_format`) when an unknown field has a number that this revision knows: a map entry with a
    field of a newer release, or a value of another type, which the decoded definition would lack.
    """
    if not len(UnknownFieldSet(message)):
        return b""  # nearly all messages: no need to empty them field by field
    for field, _ in message.ListFields():
        message.ClearField(field.name)
    unknown = message.SerializeToString(deterministic=True)
    if not unknown:
        return b""
    known = message.DESCRIPTOR.fields_by_number
    fields = UnknownFieldSet(message)
    for number in sorted({fields[index].field_number for index in range(len(fields))}):
        if number in known:
            raise InvalidInput(
                f"the field {known[number].name} holds a value that this release does not know",
                kind="newer_format",
                hint="use a newer release",
            )
    return unknown


def catalog_of_message(message: pb.CatalogDef) -> CatalogDef:
    """Decode the catalog's definition. Raises ValueError for limits outside their ranges, and InvalidInput for a newer
    major version."""
    if message.major_version != fmt.MAJOR_VERSION:
        raise InvalidInput(
            f"the catalog has major version {message.major_version}; this software knows {fmt.MAJOR_VERSION}",
            kind="newer_format",
            hint="use a newer release",
        )
    if message.format_revision > fmt.FORMAT_REVISION:
        raise InvalidInput(
            f"the catalog is written in revision {message.format_revision} of the format, newer than"
            f" {fmt.FORMAT_REVISION}",
            kind="newer_format",
            hint="upgrade this program",
        )
    limits = {
        "order": (message.order, fmt.ORDER_MIN, fmt.ORDER_MAX),
        "namespace name limit": (message.namespace_name_max_size_bytes, 1, fmt.NAME_SIZE_BYTES_MAX),
        "table name limit": (message.table_name_max_size_bytes, 1, fmt.NAME_SIZE_BYTES_MAX),
        "view name limit": (message.view_name_max_size_bytes, 1, fmt.NAME_SIZE_BYTES_MAX),
        "node file limit": (message.node_file_max_size_bytes, 1024, fmt.NODE_FILE_SIZE_BYTES_MAX),
    }
    for what, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise ValueError(f"{what} {value} is outside {low} to {high}")
    marks = tuple(TimeMark(version=m.version, up_to_millis=m.up_to_millis) for m in message.time_marks)
    if any(a.version >= b.version for a, b in itertools.pairwise(marks)) or (marks and not marks[0].version):
        raise ValueError("time marks do not ascend from a version above 0")
    given_up = tuple(VersionRange(one.first, one.last) for one in message.given_up)
    if len(given_up) > GIVEN_UP_MAX or not all(0 < one.first <= one.last for one in given_up):
        raise ValueError(f"ranges of given-up versions are not ranges above 0, or more than {GIVEN_UP_MAX}")
    if any(a.last + 1 >= b.first for a, b in itertools.pairwise(given_up)):
        raise ValueError("ranges of given-up versions do not ascend apart from each other")
    return CatalogDef(
        id=message.id,
        order=message.order,
        namespace_name_size_max=message.namespace_name_max_size_bytes,
        table_name_size_max=message.table_name_max_size_bytes,
        view_name_size_max=message.view_name_max_size_bytes,
        node_file_size_max=message.node_file_max_size_bytes,
        properties=dict(message.properties),
        txn_ttl_millis=message.txn_ttl_millis,
        serializable_default=message.txn_isolation_level == pb.SERIALIZABLE,
        exported_snapshots=dict(message.exported_snapshots),
        time_marks=marks,
        given_up=given_up,
        format_revision=message.format_revision or 1,
        data_roots={root.url: root.namespace_name for root in message.data_roots},
        collected_before_millis=message.collected_before_millis,
        table_starts=dict(message.table_starts),
    )


def _decode_table(message: pb.TableDef) -> TableDef:
    native = message.table_format == pb.NATIVE
    if not native and message.table_format != pb.ICEBERG:
        raise ValueError(f"unknown table format {message.table_format}")
    if native and not fmt.is_uuid(message.id):
        raise ValueError(f"table id {message.id[:80]!r} is not a uuid")
    columns = decode_columns(message.schema.columns)
    ids = [column.id for column in walk_columns(columns)]
    if len(set(ids)) != len(ids) or any(not 0 < number < message.next_column_id for number in ids):
        raise ValueError("column ids repeat or reach the table's counter")
    spec, order = decode_partition_spec(message.partition_spec), decode_sort_order(message.sort_order)
    top = {column.id for column in columns if not column.children()}
    for keys in (spec, order):
        if len({key.column_id for key in keys}) != len(keys) or any(k.column_id not in top for k in keys):
            raise ValueError("its partitions or its order name a column twice, or none of the table")
    segments = tuple(decode_segment(segment) for segment in message.manifests)
    for segment in segments:
        try:
            fmt.check_manifest_pointer(segment.path, message.id)
        except Corrupt as error:
            raise ValueError(error.message) from error
        if not 0 < segment.sequence <= message.sequence:
            raise ValueError(f"segment {segment.path} has sequence {segment.sequence} of {message.sequence}")
        if segment.min_sequence > segment.sequence:
            raise ValueError(
                f"segment {segment.path} has sequences {segment.min_sequence} to {segment.sequence}"
            )
    predicates = tuple(map(decode_delete_predicate, message.delete_predicates))
    for predicate in predicates:
        if not 0 <= predicate.sequence < predicate.committed_sequence <= message.sequence:
            raise ValueError(
                f"a delete predicate of sequence {predicate.committed_sequence} of {message.sequence} applies up to"
                f" {predicate.sequence}"
            )
    return TableDef(
        id=message.id,
        native=native,
        properties=texts_of(message.properties),
        iceberg_metadata_location=message.iceberg_metadata_location,
        iceberg_previous_metadata_location=message.iceberg_previous_metadata_location,
        columns=columns,
        next_column_id=message.next_column_id,
        schema_id=message.schema_id,
        partition_spec=spec,
        sort_order=order,
        segments=segments,
        delete_predicates=predicates,
        sequence=message.sequence,
        writer_marks={
            name: WriterMark(sequence=mark.sequence, transaction_id=mark.transaction_id, version=mark.version)
            for name, mark in message.writer_marks.items()
        }
        if message.writer_marks
        else {},
        data_root=message.data_root,
        bound_views=tuple(decode_reference(view) for view in message.bound_views),
    )


def _decode_pipeline(message: pb.PipelineDef) -> PipelineDef:
    for name, job in message.jobs.items():
        if job.called_at_millis > fmt.TIME_MILLIS_MAX:
            raise ValueError(f"job {name!r} was called at {job.called_at_millis} ms, outside all years")
    return PipelineDef(
        id=message.id,
        jobs={
            name: JobDef(
                last_transaction_id=job.last_transaction_id,
                pinned_version=job.pinned_version,
                inputs={key: decode_input(position) for key, position in job.inputs.items()},
                state=job.state,
                error=job.error,
                params=dict(job.params),
                called_at_millis=job.called_at_millis,
                declaration=decode_declaration(job.declaration) if job.HasField("declaration") else None,
            )
            for name, job in message.jobs.items()
        },
    )


def _decode_subscription(message: pb.SubscriptionDef) -> SubscriptionDef:
    if not fmt.is_uuid(message.id):
        raise ValueError(f"subscription id {message.id[:80]!r} is not a uuid")
    if message.next_version > fmt.VERSION_MAX_EXCLUSIVE:
        raise ValueError(f"its next version {message.next_version} is above 2^32")
    if bool(message.holder) != bool(message.position_path):
        raise ValueError("a holder and a place for its position come together")
    for path in (message.position_path, message.previous_position_path):
        if path:
            try:
                fmt.check_position_pointer(path)
            except Corrupt as error:
                raise ValueError(error.message) from error
    return SubscriptionDef(
        id=message.id,
        lease_millis=message.lease_millis,
        namespaces=tuple(message.namespaces),
        names=tuple(message.names),
        name_patterns=tuple(message.name_patterns),
        kinds=decode_kinds(message.kinds),
        actions=tuple(message.actions),
        details=message.details,
        holder=message.holder,
        epoch=message.epoch,
        position_path=message.position_path,
        next_version=message.next_version,
        token=message.token,
        previous_position_path=message.previous_position_path,
        created_at_millis=message.created_at_millis,
    )


def _decode_tag(message: pb.TagDef) -> TagDef:
    if not fmt.is_uuid(message.id):
        raise ValueError(f"tag id {message.id[:80]!r} is not a uuid")
    if message.version >= fmt.VERSION_MAX_EXCLUSIVE:
        raise ValueError(f"its version {message.version} is above 2^32 - 1")
    if not message.commit_id:
        raise ValueError("it has no commit id of its version")
    try:
        fmt.check_pin_pointer(message.pin_path)
    except Corrupt as error:
        raise ValueError(error.message) from error
    return TagDef(
        id=message.id,
        version=message.version,
        commit_id=message.commit_id,
        version_created_at_millis=message.version_created_at_millis,
        pin_path=message.pin_path,
        creator=message.creator,
        created_at_millis=message.created_at_millis,
        expire_at_millis=message.expire_at_millis,
        message=message.message,
        properties=dict(message.properties),
        object_count=optional_number(message, "object_count"),
        table_count=optional_number(message, "table_count"),
        row_count=optional_number(message, "row_count"),
        chosen=decode_tag_objects(message.chosen),
        left_out=decode_tag_objects(message.left_out),
        lacking=dict(message.lacking),
    )


_DECODERS: dict[Kind, Any] = {
    Kind.CATALOG: catalog_of_message,
    Kind.NAMESPACE: lambda message: NamespaceDef(
        id=message.id, properties=dict(message.properties), data_root=message.data_root
    ),
    Kind.TABLE: _decode_table,
    Kind.VIEW: lambda message: ViewDef(
        id=message.id,
        properties=dict(message.properties),
        sql=message.sql,
        dialect=message.dialect,
        schema_binding=message.schema_binding,
        references=tuple(decode_reference(name) for name in message.referenced_object_full_names),
        columns=decode_columns(message.schema.columns),
        default_namespace=message.default_namespace_name,
        bound_views=tuple(decode_reference(view) for view in message.bound_views),
        view_format=message.view_format,
        substrait=message.substrait_read_rel,
    ),
    Kind.PIPELINE: _decode_pipeline,
    Kind.SUBSCRIPTION: _decode_subscription,
    Kind.TAG: _decode_tag,
}
