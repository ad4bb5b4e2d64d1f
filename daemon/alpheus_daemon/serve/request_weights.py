"""The weight of a request, counted on its bytes before anything is decoded.

Two bytes can encode a message that takes a hundred bytes in protobuf and more in Python. So parts are counted before a
request is decoded. Parts are the fields that hold a text, bytes, a message or an entry of a map, at all depths. Limits
of the format and of the service bound their number, and their total weight bounds how many requests are handled
concurrently. Unknown fields weigh only their bytes, because protobuf keeps these as they are.

Pure. A malformed request is refused with the same error as in `requests.read`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from alpheus_journal.conflicts.facets import READS_MAX
from alpheus_journal.errors import InvalidInput
from alpheus_journal.execute.execute import OPERATIONS_MAX
from alpheus_journal.journal import software_version
from alpheus_journal.model.event_filter import FILTER_TEXTS_MAX
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2

PART_BYTES = 256
"""The memory of one decoded part, in protobuf and Python together. A column of a schema takes 320 and is two parts."""
BYTE_COPIES = 3
"""The copies of the bytes themselves: as received, in protobuf, in Python."""
PARTS_MAX = 400_000
"""The parts of one operation or read. The largest definition has fewer: in 1 MiB of entries, 3 parts take 9 bytes."""
PROPERTIES_MAX = 100_000
"""The properties of a transaction. 256 KiB of the shortest different keys are fewer."""
SMALL_SIZE_BYTES = 128
"""A request up to this size is not examined: it counts as the heaviest of its size."""
SMALL_BYTE_WEIGHT = PART_BYTES // 2 + BYTE_COPIES
REQUEST_BYTE_WEIGHT = 64
"""The weight by the byte that a request of the largest size may have. Definitions of the shortest columns weigh 50."""
DEPTH_MAX = 100
"""The depth of messages in messages, as in protobuf."""

FIELDS_MAX = 1_000
"""The fields of a request itself, known or not, except those of lists. No request needs more than ten."""

_LENGTH_DELIMITED, _VARINT, _FIXED64, _FIXED32 = 2, 0, 1, 5
_KEY_TAG, _VALUE_TAG = 1 << 3 | _LENGTH_DELIMITED, 2 << 3 | _LENGTH_DELIMITED

_COUNTS_MAX: dict[str, dict[str, int]] = {
    "CommitRequest": {"operations": OPERATIONS_MAX, "reads": READS_MAX, "properties": PROPERTIES_MAX},
    "CommitManyRequest": {"transactions": wire.TRANSACTIONS_COUNT_MAX, "withdrawn": wire.TRANSACTIONS_COUNT_MAX},
    "LoadRequest": {"names": wire.NAMES_COUNT_MAX},
    "SnapshotRequest": {"namespaces": wire.NAMES_COUNT_MAX},
    "EventsRequest": dict.fromkeys(
        ("namespaces", "names", "kinds", "name_patterns", "actions", "also"), FILTER_TEXTS_MAX
    ),
}  # fmt: skip
"""The most elements of the lists of a request, by the name of its message."""

_OPAQUE = frozenset({"CommitManyRequest.transactions", "LoadRequest.names"})
"""Messages that are not decoded together with their request: they are weighed alone, or stay bytes."""


class _Shape:
    """The structure of a message type.

    * `below`: by the tag of a length-delimited field, the shape of its content; None for texts and bytes, `_PACKED`
      for packed numbers.
    * `is_pair`: whether the type is an entry of a map of texts.
    """

    __slots__ = ("below", "counts_max", "is_pair", "name", "names", "tags")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_pair = False
        self.below: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.tags: dict[str, int] = {}
        self.counts_max: dict[int, int] = {}


_PACKED = object()
_UNKNOWN = object()


@cache
def _shape(descriptor: Any) -> _Shape:
    return _build_shape(descriptor, {})


def _build_shape(descriptor: Any, made: dict[str, _Shape]) -> _Shape:
    """Build the shape of a type. `made` holds shapes by full name, because types may contain each other."""
    known = made.get(descriptor.full_name)
    if known is not None:
        return known
    made[descriptor.full_name] = shape = _Shape(descriptor.name)
    shape.is_pair = descriptor.GetOptions().map_entry and all(
        field.type == FieldDescriptor.TYPE_STRING for field in descriptor.fields
    )
    for field in descriptor.fields:
        tag = field.number << 3 | _LENGTH_DELIMITED
        shape.names[tag], shape.tags[field.name] = field.name, tag
        if field.name in _COUNTS_MAX.get(descriptor.name, ()):
            shape.counts_max[tag] = _COUNTS_MAX[descriptor.name][field.name]
        if f"{descriptor.name}.{field.name}" in _OPAQUE or field.type in (
            FieldDescriptor.TYPE_STRING,
            FieldDescriptor.TYPE_BYTES,
        ):
            shape.below[tag] = None
        elif field.message_type is not None:
            shape.below[tag] = _build_shape(field.message_type, made)
        elif field.is_repeated:
            shape.below[tag] = _PACKED
    if descriptor is actions_pb2.ActionDef.DESCRIPTOR:
        # The bytes of `def` are decoded as this type once the action is known to be a read.
        shape.below[shape.tags["def"]] = _build_shape(actions_pb2.ActionDetail.DESCRIPTOR, made)
    return shape


def weigh(message_type: type[Message], data: bytes, weight_max: int = sys.maxsize) -> int:
    """Return the bytes that the request in `data` may take when decoded.

    Raises InvalidInput when the request is malformed (`bad_argument`), exceeds one of its limits (`too_large`), or
    weighs more than `weight_max`. In the last case the rest of the request is not examined.
    """
    size = len(data)
    if size <= SMALL_SIZE_BYTES:
        return SMALL_BYTE_WEIGHT * size
    shape = _shape(message_type.DESCRIPTOR)
    room = (weight_max - BYTE_COPIES * size) // PART_BYTES
    parts = number = limit = 0
    get = shape.below.get
    try:
        for tag, count, _, start, stop in _fields(shape, data):
            inner = get(tag, _UNKNOWN)
            if inner is None:
                parts += 1
            else:
                number, limit = count, min(PARTS_MAX, room - parts)
                parts += _count_parts(data, start, stop, inner, 1, limit)
            if parts > room:
                raise too_heavy(weight_max)
    except _TooManyParts:
        if limit < PARTS_MAX:
            raise too_heavy(weight_max) from None
        raise InvalidInput(
            f"{shape.names[tag]}[{max(number - 1, 0)}] of the {shape.name} has more than {PARTS_MAX} parts"
            " (columns, segments, entries of maps, texts)",
            kind="too_large",
            hint="split the work into several transactions",
        ) from None
    except IndexError:
        raise _malformed_error(shape) from None
    except ValueError as error:
        raise _malformed_error(shape, str(error)) from None
    return BYTE_COPIES * size + PART_BYTES * parts


def split(message_type: type[Message], data: bytes, *names: str) -> tuple[bytes, dict[str, list[bytes]]]:
    """Split a request into the rest and the fields called `names`, each field with its bytes as received.

    Raises InvalidInput for malformed fields of the request itself. `weigh` also examines the content of fields.
    """
    shape = _shape(message_type.DESCRIPTOR)
    wanted = {shape.tags[name]: name for name in names}
    found: dict[str, list[bytes]] = {name: [] for name in names}
    rest = []
    kept = 0
    try:
        for tag, _, begin, start, stop in _fields(shape, data):
            if tag in wanted:
                found[wanted[tag]].append(data[start:stop])
                rest.append(data[kept:begin])
                kept = stop
    except IndexError:
        raise _malformed_error(shape) from None
    except ValueError as error:
        raise _malformed_error(shape, str(error)) from None
    return b"".join([*rest, data[kept:]]), found


def text_of(message_type: type[Message], data: bytes, name: str) -> str:
    """Find the text field `name` of a request that is refused, among its first `FIELDS_MAX` fields.

    Returns "" if the field is absent. Clients write fields in the order of their numbers, so an id comes first.
    """
    shape = _shape(message_type.DESCRIPTOR)
    wanted = shape.tags[name]
    text = b""
    place, end = 0, len(data)
    try:
        for _ in range(FIELDS_MAX):
            if place >= end:
                break
            tag, _, start, place = _field(data, place, end)
            if tag == wanted:
                text = data[start:place]
        return text.decode()
    except IndexError:
        raise _malformed_error(shape) from None
    except ValueError as error:
        raise _malformed_error(shape, str(error)) from None


def _fields(shape: _Shape, data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each length-delimited field of a request.

    A field is given by its tag, the number of elements of its list so far, and the offsets of its tag, its content
    and the next field. Raises InvalidInput when a limit is exceeded, IndexError or ValueError for malformed bytes.
    """
    place, end = 0, len(data)
    others = 0
    counts = dict.fromkeys(shape.counts_max, 0)
    while place < end:
        tag, begin, start, place = _field(data, place, end)
        count = counts.get(tag)
        if count is not None:
            counts[tag] = count = count + (place - start if shape.below[tag] is _PACKED else 1)
            if count > shape.counts_max[tag]:
                raise _too_many_error(shape, tag, shape.counts_max[tag])
        else:
            others += 1
            if others > FIELDS_MAX:
                if tag & 7 == _LENGTH_DELIMITED and tag not in shape.below:
                    raise newer_error(f"more than {FIELDS_MAX} fields in {shape.name}")
                raise ValueError(f"more than {FIELDS_MAX} fields in it besides its lists")
        if tag & 7 == _LENGTH_DELIMITED:
            yield tag, count or 0, begin, start, place


def _field(data: bytes, place: int, end: int) -> tuple[int, int, int, int]:
    """Read the field at `place`. Return its tag, and the offsets of its tag, its content and the next field."""
    begin = place
    tag = data[place]
    place += 1
    if tag > 127:
        tag, place = varint_at(data, begin)
    if tag & 7 != _LENGTH_DELIMITED:
        start, place = place, _skip_number(data, place, tag & 7)
    else:
        size = data[place]
        place += 1
        if size > 127:
            size, place = varint_at(data, place - 1)
        start, place = place, place + size
    if place > end:
        raise IndexError
    return tag, begin, start, place


def _count_parts(data: bytes, place: int, end: int, below: Any, depth: int, limit: int) -> int:
    """Count the parts of a field whose content is `data[place:end]`, including the field itself, up to `limit`.

    `below` is as in `_Shape`.
    """
    if below is _UNKNOWN:
        return 0
    if below is _PACKED:
        return end - place
    if depth >= DEPTH_MAX:
        raise ValueError(f"messages in messages more than {DEPTH_MAX} deep")
    count = 1
    get = below.below.get
    # The code of `_field`, inlined: this runs for every field of a request.
    while place < end:
        tag = data[place]
        start = place + 2
        if tag > 127:
            tag, start = varint_at(data, place)
            start += 1
        kind = tag & 7
        if kind == 2:  # _LENGTH_DELIMITED
            size = data[start - 1]
            if size > 127:
                size, start = varint_at(data, start - 1)
            place = start + size
            if place > end:
                raise IndexError
            inner = get(tag, _UNKNOWN)
            if inner is None:
                count += 1
            elif inner is _UNKNOWN:
                continue
            elif not size and inner is not _PACKED:
                count += 1  # an empty message
            elif (
                inner is not _PACKED
                and inner.is_pair
                and data[start] == _KEY_TAG
                and data[start + 1] < 128
                and (value := start + 2 + data[start + 1]) < place
                and data[value] == _VALUE_TAG
                and place - value - 2 == data[value + 1] < 128
            ):
                count += 3  # an entry as clients write it; entries in other forms are examined
            else:
                count += _count_parts(data, start, place, inner, depth + 1, limit - count)
            if count > limit:
                raise _TooManyParts
        elif kind == 0:  # _VARINT
            place = start - 1
            while data[place] > 127:
                place += 1
            place += 1
        else:
            place = _skip_number(data, start - 1, kind)
    if place > end:
        raise IndexError
    return count


def varint_at(data: bytes, place: int) -> tuple[int, int]:
    """Read the number at `place`, and return it with the offset behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")


def _skip_number(data: bytes, place: int, kind: int) -> int:
    """Return the offset behind the number of wire type `kind` at `place`."""
    if kind == _VARINT:
        return varint_at(data, place)[1]
    if kind == _FIXED64:
        return place + 8
    if kind == _FIXED32:
        return place + 4
    raise ValueError(f"a field has wire type {kind}, which no message uses")


class _TooManyParts(Exception):
    pass


def too_heavy(weight_max: int) -> InvalidInput:
    """Return the error for a request that weighs more than `weight_max`."""
    return InvalidInput(
        f"the request would take more than {weight_max} bytes when decoded, the limit of one request",
        kind="too_large",
        hint="send fewer operations or names at a time, or raise --request-bytes-max",
    )


def newer_error(what: str) -> InvalidInput:
    """Return the error for a client whose request contains `what`, which this release does not know."""
    return InvalidInput(
        f"the request contains something that this daemon does not know: {errors.cut(what, 300)}",
        kind="not_supported",
        hint=f"the client is newer than the daemon (alpheus {software_version()}): upgrade the daemon, or use a"
        " client of its release",
    )


def _too_many_error(shape: _Shape, tag: int, limit: int) -> InvalidInput:
    hints = {"LoadRequest": "ask in several requests, at one version",
             "EventsRequest": "ask for whole namespaces, for a pattern, or for everything",
             "SnapshotRequest": "ask for everything"}  # fmt: skip
    return InvalidInput(
        f"one {shape.name} has more than {limit} {shape.names[tag]}",
        kind="too_large",
        hint=hints.get(shape.name, "split the request into several"),
    )


def _malformed_error(shape: _Shape, reason: str = "a field goes beyond its end") -> InvalidInput:
    return InvalidInput(f"the request is not a {shape.name}: {reason}")
