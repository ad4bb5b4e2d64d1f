"""Requests: from bytes to messages, whole or not at all.

A client of a newer release may send fields that this one does not know. Left out, they would change what was asked: a
commit would lose a condition, a read its version, a stream its filter. So a request that has any is refused by name
(ARCHITECTURE.md, "Releases side by side"). Answers are not like that: clients pass over what they do not know in them.
"""

from __future__ import annotations

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


def read(message_type: type[Request], data: bytes) -> Request:
    """The message in `data`, with whatever else it has; InvalidInput when it is none."""
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the request is no {message_type.DESCRIPTOR.name}: {error}") from None


def parse(message_type: type[Request], data: bytes) -> Request:
    """The request in `data`; InvalidInput when it is none, or has fields that are not known here (`not_supported`)."""
    request = read(message_type, data)
    if not is_known(request):
        raise newer_error(newer_field(read(message_type, data)))
    return request


def is_known(message: Message) -> bool:
    """Whether every field of it, and of all messages in it, is known here. Those that are not are gone then."""
    # In C, to whatever depth: a microsecond for a small commit.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() == size


def has_own_unknown(message: Message) -> bool:
    """Whether the message itself has fields that are not known here: those in it are not looked at."""
    return len(UnknownFieldSet(message)) > 0


def newer_field(message: Message, path: str = "") -> str:
    """The first field of `message`, which is at `path` of the request, that is not known here; empty: all are. Slow,
    for refusals."""
    path = path or message.DESCRIPTOR.name
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"field {unknown[0].field_number} of {path}"
    for field, value in message.ListFields():
        for place, inner in _messages_in(field, value):
            found = newer_field(inner, f"{path}.{field.name}{place}")
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
    for place, item in value.items() if is_map else enumerate(value):
        if isinstance(item, Message):
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
        not has_own_unknown(request)
        and all(is_known(operation) for operation in request.operations)
        and all(is_known(item) for item in request.reads)
    )
