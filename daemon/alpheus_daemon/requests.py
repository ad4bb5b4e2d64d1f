"""Requests: from bytes to messages, whole or not at all.

A client of a newer release may send fields that this one does not know. Left out, they would change what was asked: a
commit would lose a condition, a read its version, a stream its filter. So a request that has any is refused by name
(ARCHITECTURE.md, "Releases side by side"). Answers are not like that: clients pass over what they do not know in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from alpheus_journal import wire
from alpheus_journal.actions import Transaction
from alpheus_journal.commit import OPERATIONS_ASIDE_MIN
from alpheus_journal.errors import InvalidInput
from alpheus_journal.journal import software_version
from alpheus_pb.v1 import actions_pb2, objects_pb2
from alpheus_pb.v1 import service_pb2 as pb

Request = TypeVar("Request", bound=Message)

NAMED_SIZE_BYTES_MAX = 48 << 10
"""Of all that is not known, if a field of it is to be named: the library makes an object of each, 1 s for 4 MB."""
SOUGHT_MAX = 10_000
"""Messages in a request that are looked into for a field that is not known."""


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


def newer_field(message: Message, unknown_bytes: int | None = None) -> str:
    """The first field of `message`, or of a message in it, that is not known here; empty: all are. For refusals: it is
    sought in Python for some 10 ms at most, and then said how far all is known. `unknown_bytes`: as
    `_take_out_unknown` says of it."""
    if unknown_bytes is None:
        unknown_bytes = _take_out_unknown(_copy(message))
    if not unknown_bytes:
        return ""
    if unknown_bytes > NAMED_SIZE_BYTES_MAX:
        return f"{unknown_bytes} bytes of fields in {message.DESCRIPTOR.name}"
    return _found(message, message.DESCRIPTOR.name, itertools.count(1))


def _found(message: Message, path: str, looked: Iterator[int]) -> str:
    """As `newer_field`, of a message at `path` of the request. `looked` counts those that were looked into."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"field {unknown[0].field_number} of {path}"
    for field, value in message.ListFields():
        for place, inner in _messages_in(field, value):
            where = f"{path}.{field.name}{place}"
            if next(looked) > SOUGHT_MAX:
                return f"a field in {where}, or in what follows"
            found = _found(inner, where, looked)
            if found:
                return found
    return ""


def newer_error(what: str) -> InvalidInput:
    """For a client whose request has `what` more than this release knows."""
    return InvalidInput(
        f"the request has something that this daemon does not know: {wire.cut(what, 300)}",
        kind="not_supported",
        hint=f"the client is newer than the daemon (alpheus {software_version()}): upgrade the daemon, or use a"
        " client of its release",
    )


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


def is_large(request: pb.CommitRequest) -> bool:
    """Whether decoding it takes so long that the event loop should have turns meanwhile."""
    return len(request.operations) + len(request.reads) > OPERATIONS_ASIDE_MIN


def transaction_of(request: pb.CommitRequest, again: Callable[[], pb.CommitRequest]) -> Transaction:
    """What a client asks to commit. InvalidInput, `not_supported` for whatever is not known here.

    Of a large one in a thread. `again` reads it once more: who finds what is not known has taken it out.
    """
    if not _is_known_transaction(request):
        raise newer_error(newer_field(again()))
    if request.isolation not in (objects_pb2.SNAPSHOT, objects_pb2.SERIALIZABLE):
        raise newer_error(f"isolation {request.isolation}")
    transaction = wire.decode_transaction_request(request)
    for number, item in enumerate(request.reads):
        detail = actions_pb2.ActionDetail.FromString(getattr(item, "def"))  # it was decoded just now
        if not is_known(detail):
            raise newer_error(f"parts of CommitRequest.reads[{number}]")
    return transaction


def _is_known_transaction(request: pb.CommitRequest) -> bool:
    if not is_large(request):
        return is_known(request)
    # Piece by piece: no other thread runs while one call is in C, which for the largest request takes 0.2 s.
    return (
        not has_own_unknown(request, request.ByteSize())
        and all(is_known(operation) for operation in request.operations)
        and all(is_known(item) for item in request.reads)
    )
