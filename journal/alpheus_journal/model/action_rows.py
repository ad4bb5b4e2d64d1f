"""The messages of actions and transactions, and the action rows of a root (FORMAT.md, "Actions and transactions").

This is one of the few modules that convert between protobuf and values.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.operation_messages import decode_operation, encode_operation
from alpheus_journal.model.operations import (
    READ_TYPES,
    Action,
    Effect,
    Read,
    RecordedTransaction,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    Writer,
)
from alpheus_pb.v1 import actions_pb2 as pb
from alpheus_pb.v1 import objects_pb2

# --- action rows of a root -------------------------------------------------------------------------

ActionRow = tuple[str, bytes]
"""Object key (`catalog_def` for the catalog) and serialized ActionDef."""


def _put_object(name: ObjectName, message: Any) -> None:
    message.SetInParent()
    message.type = int(name.kind)
    message.namespace_name = name.namespace
    message.namespace_object_name = name.name


def header_message(transaction: RecordedTransaction) -> pb.TransactionHeader:
    header = requested_header(transaction, transaction.operations_digest, len(transaction.actions))
    header.branch = transaction.branch
    header.committed_at_millis = transaction.committed_at_millis
    return header


def requested_header(
    transaction: Transaction | RecordedTransaction, digest: bytes, operation_count: int
) -> pb.TransactionHeader:
    """Build the part of a header that is known before the commit."""
    return pb.TransactionHeader(
        id=transaction.id,
        operations_digest=digest,
        principal=transaction.principal,
        principal_authenticated=transaction.principal_authenticated,
        message=transaction.message,
        properties=transaction.properties or None,
        isolation=objects_pb2.SERIALIZABLE if transaction.serializable else objects_pb2.SNAPSHOT,
        begin_version=transaction.begin_version,
        action_count=operation_count + len(transaction.reads),
        key=transaction.key,
        writer_name=transaction.writer.name if transaction.writer else "",
        writer_sequence=transaction.writer.sequence if transaction.writer else 0,
    )


def writer_of(name: str, sequence: int) -> Writer | None:
    """Return the idempotent writer of a message, or None for an empty name."""
    return Writer(name=name, sequence=sequence) if name else None


def read_message(read: Read) -> pb.ActionDef:
    detail = pb.ActionDetail(keys=read.columns, prefix=read.prefix)
    return _action_def(read.name, read.type, detail.SerializeToString(deterministic=True))


def decode_read(message: pb.ActionDef, path: str) -> Read:
    """Decode a read action. Raises Corrupt (`corrupt_action`)."""
    try:
        if not message.HasField("object_def"):
            raise ValueError("it names no object")
        detail = pb.ActionDetail.FromString(getattr(message, "def"))
        name = decode_object(message.object_def)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"read action in {path}: {error}", kind="corrupt_action", path=path) from None
    return Read(
        type=pb.ActionType.Name(message.type),
        name=name,
        columns=tuple(detail.keys),
        prefix=detail.prefix,
    )


def is_read(message: pb.ActionDef) -> bool:
    return message.type in pb.ActionType.values() and pb.ActionType.Name(message.type) in READ_TYPES


def action_message(action: Action, encoded: pb.Operation | None = None) -> pb.ActionDef:
    """Build the message of an action. `encoded` is the message of its operation, when the caller has it."""
    detail = pb.ActionDetail(path_before=action.path_before, path_after=action.path_after)
    if action.operation is not None:
        detail.operation.CopyFrom(encoded if encoded is not None else encode_operation(action.operation))
        if isinstance(action.operation, UpdateNamespace | UpdateTable | UpdateCatalog):
            detail.keys.extend([*action.operation.set, *action.operation.unset])
        if action.type == "TABLE_ALTER_ADD_COLUMNS" and isinstance(action.operation, UpdateTable):
            detail.keys.extend(added.column.name for added in action.operation.add_columns)
        if action.type == "TABLE_ALTER_REMOVE_COLUMNS" and isinstance(action.operation, UpdateTable):
            detail.keys.extend(action.operation.drop_columns)
    for effect in action.also:
        also = detail.also.add(path_before=effect.path_before, path_after=effect.path_after)
        _put_object(effect.name, also.object)
    return _action_def(action.name, action.type, detail.SerializeToString(deterministic=True))


def _action_def(name: ObjectName, type_name: str, detail: bytes) -> pb.ActionDef:
    # The field is called `def`, which cannot be a Python argument.
    fields: Any = {"def": detail}
    message = pb.ActionDef(type=type_name, **fields)
    _put_object(name, message.object_def)
    return message


def encode_transaction(
    transaction: RecordedTransaction, keys: fmt.Keys, encoded: Sequence[pb.Operation | None] = ()
) -> Iterator[ActionRow]:
    """Yield the action rows of one transaction: first its header, then its actions in order. `encoded` holds the
    messages of their operations, where the caller has them."""
    header = _action_def(
        fmt.CATALOG, "TRANSACTION", header_message(transaction).SerializeToString(deterministic=True)
    )
    yield fmt.ROW_CATALOG_DEF, header.SerializeToString(deterministic=True)
    for action, message in zip_longest(transaction.actions, encoded):
        assert action is not None
        key = fmt.ROW_CATALOG_DEF if action.name.kind is Kind.CATALOG else keys.key(action.name)
        yield key, action_message(action, message).SerializeToString(deterministic=True)
    for read in transaction.reads:
        key = fmt.ROW_CATALOG_DEF if read.name == fmt.CATALOG else keys.key(read.name)
        yield key, read_message(read).SerializeToString(deterministic=True)


def external_row(path: str, action: bytes) -> bytes:
    """Build the row for an action that is stored in a separate file."""
    return pb.ActionDef(
        external_path=path, external_sha256=hashlib.sha256(action).digest()
    ).SerializeToString(deterministic=True)


def row_value(action: bytes) -> str:
    """Return the text for the value column of an action row."""
    return b64encode(action).decode()


class ParsedRow(msgspec.Struct, frozen=True):
    """The message of an action row. When `external_path` is set, that file holds the action, with that SHA-256."""

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
    """Decode the action of a message that is not a header. Raises Corrupt (`corrupt_action`)."""
    try:
        detail = pb.ActionDetail.FromString(getattr(message, "def"))
        operation = decode_operation(detail.operation) if detail.HasField("operation") else None
        name = decode_object(message.object_def)
        also = tuple(map(_decode_effect, detail.also))
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
        also=also,
    )


def _decode_effect(message: pb.Effect) -> Effect:
    if not message.HasField("object"):
        raise ValueError("an effect names no object")
    return Effect(
        name=decode_object(message.object), path_before=message.path_before, path_after=message.path_after
    )


def decode_object(message: pb.ObjectDef) -> ObjectName:
    """Decode the name of an object. Raises ValueError for a kind that this revision does not know."""
    return ObjectName(Kind(message.type), message.namespace_name, message.namespace_object_name)


def decode_header(
    message: pb.TransactionHeader, actions: tuple[Action, ...], reads: tuple[Read, ...] = ()
) -> RecordedTransaction:
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
        reads=reads,
        key=message.key,
        writer=writer_of(message.writer_name, message.writer_sequence),
    )


def decode_transactions(messages: Sequence[pb.ActionDef], path: str) -> tuple[RecordedTransaction, ...]:
    """Group a root's actions (external ones already fetched) into transactions by their headers.

    Actions before the first header were written by other software and are skipped, because the structural diff covers
    them. Raises Corrupt when a header announces another number of actions than follow.
    """
    transactions: list[RecordedTransaction] = []
    header: pb.TransactionHeader | None = None
    actions: list[Action] = []
    reads: list[Read] = []

    def close() -> None:
        if header is None:
            return
        if header.action_count != len(actions) + len(reads):
            raise Corrupt(
                f"transaction {header.id} in {path} announces {header.action_count} actions,"
                f" {len(actions) + len(reads)} follow",
                kind="corrupt_action",
                path=path,
            )
        transactions.append(decode_header(header, tuple(actions), tuple(reads)))

    for message in messages:
        if message.type == pb.TRANSACTION:
            close()
            try:
                header = pb.TransactionHeader.FromString(getattr(message, "def"))
            except (DecodeError, UnicodeDecodeError) as error:
                raise Corrupt(f"header in {path}: {error}", kind="corrupt_action", path=path) from None
            if not fmt.is_uuid(header.id):
                raise Corrupt(
                    f"header in {path}: the transaction id {header.id[:80]!r} is not a UUID",
                    kind="corrupt_action",
                    path=path,
                )
            actions, reads = [], []
        elif header is not None and is_read(message):
            reads.append(decode_read(message, path))
        elif header is not None:
            actions.append(decode_action(message, path))
    close()
    return tuple(transactions)
