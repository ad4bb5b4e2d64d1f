"""Requests: from bytes to messages, whole or not at all; weighed before (`weights`).

A client of a newer release may send fields that this one does not know. Left out, they would change what was asked: a
commit would lose a condition, a read its version, a stream its filter. So a request that has any is refused by name
(see `alpheus_daemon.serve`). Answers are not like that: clients pass over what they do not know in them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from alpheus_daemon.serve import weights
from alpheus_daemon.serve.lanes import run_in_lane
from alpheus_daemon.serve.weights import newer_error
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.operations import Transaction
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, objects_pb2
from alpheus_pb.v1 import service_pb2 as pb

Request = TypeVar("Request", bound=Message)

NAMED_SIZE_BYTES_MAX = 48 << 10
"""Of all that is not known, if a field of it is to be named: the library makes an object of each, 1 s for 4 MB."""
SOUGHT_MAX = 10_000
"""Messages in a request that are looked into for a field that is not known."""
WEIGHED_SIZE_BYTES = 16 << 10
"""Of a request that is weighed in the event loop: a millisecond or two."""
LOOKUP_SIZE_BYTES = 64 << 10
"""Of a Load request that is taken as the heaviest of its size: its names stay bytes."""
LOOKUP_BYTE_WEIGHT = 16


def read(message_type: type[Request], data: bytes) -> Request:
    """The message in `data`, with whatever else it has; InvalidInput when it is none."""
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the request is no {message_type.DESCRIPTOR.name}: {error}") from None


def parse(message_type: type[Request], data: bytes) -> Request:
    """The request in `data`; InvalidInput when it is none, or has fields that are not known here (`not_supported`)."""
    request = read(message_type, data)
    unknown = _take_out_unknown(request)
    if unknown:
        raise newer_error(newer_field(read(message_type, data), unknown))
    return request


def is_known(message: Message) -> bool:
    """Whether every field of it, and of all messages in it, is known here. Those that are not are gone then."""
    return not _take_out_unknown(message)


def _take_out_unknown(message: Message) -> int:
    """Bytes of what is not known here, at whatever depth; it is gone then."""
    # In C: a microsecond for a small commit.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return size - message.ByteSize()


def has_own_unknown(message: Message, size_bytes: int) -> bool:
    """Whether the message itself, which takes so many bytes or less, has fields that are not known here: those in it
    are not looked at."""
    if size_bytes <= NAMED_SIZE_BYTES_MAX:
        return len(UnknownFieldSet(message)) > 0
    rest = _copy(message)  # in C, as fast as it was read, whatever it holds
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return rest.ByteSize() > 0


def _copy(message: Request) -> Request:
    return type(message).FromString(message.SerializeToString())


def newer_field(message: Message, unknown_bytes: int | None = None, path: str = "") -> str:
    """The first field of `message`, or of a message in it, that is not known here; empty: all are. For refusals: it is
    sought in Python for some 10 ms at most, and then said how far all is known. `unknown_bytes`: as
    `_take_out_unknown` says of it. `path`: of the message in the request."""
    path = path or message.DESCRIPTOR.name
    if unknown_bytes is None:
        unknown_bytes = _take_out_unknown(_copy(message))
    if not unknown_bytes:
        return ""
    if unknown_bytes > NAMED_SIZE_BYTES_MAX:
        return f"{unknown_bytes} bytes of fields in {path}"
    return _find_newer_field(message, path, itertools.count(1))


def _find_newer_field(message: Message, path: str, looked: Iterator[int]) -> str:
    """As `newer_field`, of a message at `path` of the request. `looked` counts those that were looked into."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"field {unknown[0].field_number} of {path}"
    for field, value in message.ListFields():
        for place, inner in _messages_in(field, value):
            where = f"{path}.{field.name}{place}"
            if next(looked) > SOUGHT_MAX:
                return f"a field in {where}, or in what follows"
            found = _find_newer_field(inner, where, looked)
            if found:
                return found
    return ""


def _messages_in(field: FieldDescriptor, value: Any) -> Iterator[tuple[str, Message]]:
    """The messages that a field holds, each with its place among several."""
    if field.message_type is None:
        return
    if isinstance(value, Message):
        yield "", value
        return
    is_map = field.message_type.GetOptions().map_entry
    if is_map and field.message_type.fields_by_name["value"].message_type is None:
        return
    for place, item in value.items() if is_map else enumerate(value):
        yield f"[{place!r}]", item


async def weigh(message_type: type[Message], data: bytes, weight_max: int = sys.maxsize) -> int:
    """As `weights.weigh`, of a request that just came: of a large one aside."""
    if message_type is pb.LoadRequest and len(data) <= LOOKUP_SIZE_BYTES:
        return LOOKUP_BYTE_WEIGHT * len(data)
    if len(data) <= WEIGHED_SIZE_BYTES:
        return weights.weigh(message_type, data, weight_max)
    return await run_in_lane(len(data), weights.weigh, message_type, data, weight_max)


def transaction_of(data: bytes, *, in_pieces: bool = False) -> Transaction:
    """What a client asks to commit in a CommitRequest that was weighed. InvalidInput, `not_supported` for whatever is
    not known here.

    `in_pieces`: operation by operation, for a thread that reads a large one. No other thread runs while one call is
    in C, and what protobuf makes of an operation is gone before the next one is read.
    """
    if not in_pieces:
        request = read(pb.CommitRequest, data)
        if not is_known(request):
            raise newer_error(newer_field(read(pb.CommitRequest, data)))
        _check_isolation(request)
        transaction = wire.decode_transaction_request(request)
        _check_details(request.reads)
        return transaction
    rest, found = weights.split(pb.CommitRequest, data, "operations", "reads")
    request = _parse_part(pb.CommitRequest, rest, "CommitRequest")
    _check_isolation(request)
    transaction = wire.decode_transaction_parts(
        request,
        _pieces(actions_pb2.Operation, found["operations"], "CommitRequest.operations"),
        _pieces(actions_pb2.ActionDef, found["reads"], "CommitRequest.reads"),
    )
    _check_details(_pieces(actions_pb2.ActionDef, found["reads"], "CommitRequest.reads"))
    return transaction


def _pieces(message_type: type[Request], pieces: Sequence[bytes], path: str) -> Iterator[Request]:
    return (_parse_part(message_type, data, f"{path}[{number}]") for number, data in enumerate(pieces))


def _parse_part(message_type: type[Request], data: bytes, path: str) -> Request:
    """As `parse`, of a message at `path` of a request."""
    message = read(message_type, data)
    unknown = _take_out_unknown(message)
    if unknown:
        raise newer_error(newer_field(read(message_type, data), unknown, path))
    return message


def _check_isolation(request: pb.CommitRequest) -> None:
    if request.isolation not in (objects_pb2.SNAPSHOT, objects_pb2.SERIALIZABLE):
        raise newer_error(f"isolation {request.isolation}")


def _check_details(reads: Iterable[actions_pb2.ActionDef]) -> None:
    """Of reads that were decoded just now."""
    for number, item in enumerate(reads):
        if not is_known(actions_pb2.ActionDetail.FromString(getattr(item, "def"))):
            raise newer_error(f"parts of CommitRequest.reads[{number}]")
