"""Requests: from bytes to messages, as a whole or not at all. Requests are weighed before (`request_weights`).

A client of a newer release may send fields that this release does not know. Ignoring a field would change the meaning
of the request: a commit would lose a condition, a read its version, a stream its filter. So a request with unknown
fields is refused, and the error names a field (see `alpheus_daemon.serve`). Clients ignore unknown fields of answers.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from alpheus_daemon.serve import request_weights
from alpheus_daemon.serve.lanes import run_in_lane
from alpheus_daemon.serve.request_weights import newer_error
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.operations import Transaction
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, objects_pb2
from alpheus_pb.v1 import service_pb2 as pb

Request = TypeVar("Request", bound=Message)

NAMED_SIZE_BYTES_MAX = 48 << 10
"""The most unknown bytes among which a field is named. The library makes an object of each field: 1 s for 4 MB."""
SOUGHT_MAX = 10_000
"""The messages of a request that are searched for an unknown field."""
WEIGHED_SIZE_BYTES = 16 << 10
"""The largest request that is weighed in the event loop, which takes a millisecond or two."""
LOOKUP_SIZE_BYTES = 64 << 10
"""The largest Load request that counts as the heaviest of its size without a look: its names stay bytes."""
LOOKUP_BYTE_WEIGHT = 16


def read(message_type: type[Request], data: bytes) -> Request:
    """Decode the message in `data`, unknown fields included. Raises InvalidInput for malformed data."""
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the request is not a {message_type.DESCRIPTOR.name}: {error}") from None


def parse(message_type: type[Request], data: bytes) -> Request:
    """Decode the request in `data`. Raises InvalidInput for malformed data and unknown fields (`not_supported`)."""
    request = read(message_type, data)
    unknown = _take_out_unknown(request)
    if unknown:
        raise newer_error(newer_field(read(message_type, data), unknown))
    return request


def is_known(message: Message) -> bool:
    """Return whether all fields of a message, and of all messages in it, are known. Unknown fields are removed."""
    return not _take_out_unknown(message)


def _take_out_unknown(message: Message) -> int:
    """Remove unknown fields at all depths, and return their size in bytes."""
    # This runs in C: a microsecond for a small commit.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return size - message.ByteSize()


def has_own_unknown(message: Message, size_bytes: int) -> bool:
    """Return whether the message itself has unknown fields. Messages inside are not examined.

    `size_bytes` is the size of the message, or more.
    """
    if size_bytes <= NAMED_SIZE_BYTES_MAX:
        return len(UnknownFieldSet(message)) > 0
    rest = _copy(message)  # in C, as fast as decoding, whatever the content
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return rest.ByteSize() > 0


def _copy(message: Request) -> Request:
    return type(message).FromString(message.SerializeToString())


def newer_field(message: Message, unknown_bytes: int | None = None, path: str = "") -> str:
    """Name the first unknown field of `message` or of a message in it, for a refusal. Return "" if all are known.

    The search runs in Python for at most some 10 ms, and then tells how far all fields are known.

    * `unknown_bytes`: the result of `_take_out_unknown` for the message.
    * `path`: the place of the message in the request.
    """
    path = path or message.DESCRIPTOR.name
    if unknown_bytes is None:
        unknown_bytes = _take_out_unknown(_copy(message))
    if not unknown_bytes:
        return ""
    if unknown_bytes > NAMED_SIZE_BYTES_MAX:
        return f"{unknown_bytes} bytes of fields in {path}"
    return _find_newer_field(message, path, itertools.count(1))


def _find_newer_field(message: Message, path: str, looked: Iterator[int]) -> str:
    """Name the first unknown field of a message at `path`; see `newer_field`. `looked` counts examined messages."""
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
    """Yield the messages that a field holds, each with its index or key if there may be several."""
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
    """Weigh a request that just arrived, a large one in a thread; see `request_weights.weigh`."""
    if message_type is pb.LoadRequest and len(data) <= LOOKUP_SIZE_BYTES:
        return LOOKUP_BYTE_WEIGHT * len(data)
    if len(data) <= WEIGHED_SIZE_BYTES:
        return request_weights.weigh(message_type, data, weight_max)
    return await run_in_lane(len(data), request_weights.weigh, message_type, data, weight_max)


def transaction_of(data: bytes, *, in_pieces: bool = False) -> Transaction:
    """Decode the transaction of a CommitRequest that was weighed.

    Raises InvalidInput, with kind `not_supported` for anything unknown. `in_pieces` decodes operation by operation,
    for a thread that reads a large request: no other thread runs during a call in C, and protobuf's objects for one
    operation are freed before the next is read.
    """
    if not in_pieces:
        request = read(pb.CommitRequest, data)
        if not is_known(request):
            raise newer_error(newer_field(read(pb.CommitRequest, data)))
        _check_isolation(request)
        transaction = wire.decode_transaction_request(request)
        _check_details(request.reads)
        return transaction
    rest, found = request_weights.split(pb.CommitRequest, data, "operations", "reads")
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
    """Decode a message at `path` of a request; see `parse`."""
    message = read(message_type, data)
    unknown = _take_out_unknown(message)
    if unknown:
        raise newer_error(newer_field(read(message_type, data), unknown, path))
    return message


def _check_isolation(request: pb.CommitRequest) -> None:
    if request.isolation not in (objects_pb2.SNAPSHOT, objects_pb2.SERIALIZABLE):
        raise newer_error(f"isolation {request.isolation}")


def _check_details(reads: Iterable[actions_pb2.ActionDef]) -> None:
    """Check that the details of reads, which were just decoded, have no unknown fields."""
    for number, item in enumerate(reads):
        if not is_known(actions_pb2.ActionDetail.FromString(getattr(item, "def"))):
            raise newer_error(f"parts of CommitRequest.reads[{number}]")
