"""Mutations of serialized protobuf messages that follow their structure.

The mutations drop, double, retype, nest and amplify fields, and insert numbers and texts that decoders often get wrong.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from alpheus_daemon.serve.request_weights import varint_at

VARINT, FIXED64, BYTES, GROUP, FIXED32 = 0, 1, 2, 3, 5
RAW = -1
"""Not a wire type: bytes that are written unchanged."""
SIZE_MAX = 3 << 20
"""The largest input that a mutation makes: three times the limit of a definition."""

NUMBERS = (0, 1, 2, 3, 100, 127, 128, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1)  # fmt: skip
BLOBS = (
    b"", b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"..", b"../../etc/passwd", b"a/b", b"%2e",
    "\u202e".encode(), "e\u0301".encode(), b" ", b"*", b"x" * 101, b"x" * 5000,
    b"00000000-0000-4000-8000-000000000000", b"018f0000-0000-7000-8000-000000000000",
    b"manifest/00000000-0000-4000-8000-000000000000/00000000-0000-4000-8000-000000000000.arrow",
    b"action/00000000-0000-4000-8000-000000000000.binpb", b"precision", b"38", b"-1", b"99999999999", b"running",
)  # fmt: skip


class Part:
    """One field as it is on the wire. `value` is an int, bytes, or the parts of a message."""

    __slots__ = ("number", "value", "wire")

    def __init__(self, number: int, wire: int, value: int | bytes | list[Part]) -> None:
        self.number = number
        self.wire = wire
        self.value = value


def _message_of(descriptor: Descriptor | None, number: int, siblings: Sequence[Part]) -> Descriptor | None:
    field = descriptor.fields_by_number.get(number) if descriptor is not None else None
    if field is None:
        return None
    if descriptor is not None and descriptor.name == "ActionDef" and field.name == "def":
        header = any(part.number == 2 and part.value == 100 for part in siblings)
        return descriptor.file.message_types_by_name["TransactionHeader" if header else "ActionDetail"]
    return field.message_type


def parse(data: bytes, descriptor: Descriptor | None) -> list[Part]:
    """Return the fields of intact bytes. Raise ValueError or IndexError for other bytes."""
    parts: list[Part] = []
    place = 0
    while place < len(data):
        tag, place = varint_at(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, place = varint_at(data, place)
            parts.append(Part(number, wire, value))
        elif wire in (FIXED32, FIXED64):
            width = 4 if wire == FIXED32 else 8
            parts.append(Part(number, wire, int.from_bytes(data[place : place + width], "little")))
            place += width
        elif wire == BYTES:
            size, place = varint_at(data, place)
            piece = data[place : place + size]
            if len(piece) != size:
                raise ValueError("cut")
            place += size
            inner = _message_of(descriptor, number, parts)
            content: bytes | list[Part] = piece
            if inner is not None:
                content = parse(piece, inner)
            parts.append(Part(number, wire, content))
        else:
            raise ValueError("a group")
    return parts


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def serialize(parts: Sequence[Part]) -> bytes:
    """Return the parts as bytes, cut off above SIZE_MAX."""
    out = bytearray()
    for part in parts:
        if len(out) > SIZE_MAX:
            break
        value = serialize(part.value) if isinstance(part.value, list) else part.value
        if part.wire == RAW:
            assert isinstance(value, bytes)
            out += value
            continue
        out += varint(part.number << 3 | part.wire % 8)
        if part.wire == VARINT:
            out += varint(value) if isinstance(value, int) else value[:10]
        elif part.wire in (FIXED32, FIXED64):
            width = 4 if part.wire == FIXED32 else 8
            number = value if isinstance(value, int) else len(value)
            out += (number % (1 << 8 * width)).to_bytes(width, "little")
        elif part.wire == GROUP:
            out += (value if isinstance(value, bytes) else varint(value)) + varint(part.number << 3 | 4)
        else:
            piece = value if isinstance(value, bytes) else varint(value)
            out += varint(len(piece)) + piece
    return bytes(out)


def _messages(parts: list[Part], descriptor: Descriptor | None) -> list[tuple[list[Part], Descriptor | None]]:
    found: list[tuple[list[Part], Descriptor | None]] = [(parts, descriptor)]
    for part in parts:
        if isinstance(part.value, list):
            found += _messages(part.value, _message_of(descriptor, part.number, parts))
    return found


def _recursive(descriptor: Descriptor | None) -> list[FieldDescriptor]:
    return [f for f in descriptor.fields if f.message_type is descriptor] if descriptor is not None else []


def _amplify(parts: list[Part], descriptor: Descriptor | None, rng: random.Random) -> None:
    """Return very many very small pieces of one field, which take far more room in memory than on the wire."""
    fields = [field for field in descriptor.fields if field.is_repeated] if descriptor is not None else []
    if not fields:
        return
    field = rng.choice(fields)
    piece = b"" if rng.random() < 0.6 else b"\x08\x01"
    count = rng.choice((100, 1_000, 20_000)) if rng.random() < 0.9 else SIZE_MAX // (4 + len(piece))
    one = varint(field.number << 3 | BYTES) + varint(len(piece)) + piece
    if len(one) * count <= SIZE_MAX:
        parts.append(Part(0, RAW, one * count))


def _nest(parts: list[Part], descriptor: Descriptor | None, rng: random.Random) -> None:
    """Put a message inside itself, many levels deep."""
    fields = _recursive(descriptor)
    content = serialize(parts)[:200] if fields else b""
    number = rng.choice(fields).number if fields else rng.choice((1, 2, 8, 100))
    for _ in range(rng.choice((5, 31, 33, 60, 95, 99, 101, 150, 2_000))):
        content = varint(number << 3 | BYTES) + varint(len(content)) + content
    parts.insert(rng.randrange(len(parts) + 1), Part(0, RAW, content))


def mutate_message(seed: bytes, descriptor: Descriptor, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a copy of an intact serialized message with one to four changes."""
    try:
        root = parse(seed, descriptor)
    except (ValueError, IndexError):
        return seed
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        parts, kind = rng.choice(_messages(root, descriptor))
        if not parts:
            parts.append(Part(rng.choice((1, 2, 3, 8, 100, 110)), BYTES, rng.choice(BLOBS)))
            continue
        place = rng.randrange(len(parts))
        part = parts[place]
        match rng.randrange(14):
            case 0:
                del parts[place]
            case 1:
                parts.insert(rng.randrange(len(parts) + 1), part)
            case 2:
                parts[place : place + 1] = [part] * rng.choice((2, 3, 50))
            case 3:
                wire = rng.choice((VARINT, FIXED64, BYTES, GROUP, FIXED32, 4, 6, 7))
                value = serialize(part.value) if isinstance(part.value, list) else part.value
                parts[place] = Part(part.number, wire, value)
            case 4:
                number = rng.choice((1, 2, 3, part.number + 1, 100, 101, 110, 536870911, 0))
                parts[place] = Part(number, part.wire, part.value)
            case 5 | 6:
                value = rng.choice(NUMBERS) if rng.random() < 0.8 else rng.getrandbits(64)
                if isinstance(part.value, int):
                    parts[place] = Part(part.number, part.wire, value)
                elif isinstance(part.value, bytes):
                    parts[place] = Part(part.number, part.wire, rng.choice(BLOBS))
            case 7 | 8:
                if isinstance(part.value, bytes):
                    parts[place] = Part(part.number, part.wire, _mutate_blob(part.value, rng))
            case 9:
                rng.shuffle(parts)
            case 10:
                _nest(parts, kind, rng)
            case 11:
                if rng.random() < 0.2:
                    _amplify(parts, kind, rng)
            case 12:
                data = bytes([rng.randrange(256)]) + b"\xff" * rng.choice((8, 9, 10, 11)) + b"\x01"
                parts.insert(place, Part(0, RAW, data))
            case _:
                parts.insert(place, Part(0, RAW, rng.choice(others)[: rng.choice((8, 64, 4096))]))
    return serialize(root)[:SIZE_MAX]


def _mutate_blob(value: bytes, rng: random.Random) -> bytes:
    data = bytearray(value or b"x")
    place = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            data[place] ^= 1 << rng.randrange(8)
        case 1:
            data[place] = rng.choice((0, 0x20, 0x2E, 0x2F, 0x7F, 0x80, 0xC3, 0xFF))
        case 2:
            del data[place:]
        case 3:
            data[place:place] = rng.choice(BLOBS)
        case _:
            data *= rng.choice((2, 3, 40))
    return bytes(data)


_TEXTS = ("a", "b", "x-1", "ü", "名", "running", "parked", "00000000-0000-4000-8000-000000000001",
          "def/ns/00000000-0000-4000-8000-000000000001-a.binpb")  # fmt: skip


def random_message(message_type: Any, rng: random.Random, depth: int = 0) -> Message:
    """Return a message of that type with most fields set to small values: a seed for types that nothing writes."""
    message: Message = message_type()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3 or depth > 4:
            continue
        if field.is_repeated:
            target = getattr(message, field.name)
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            for _ in range(rng.choice((1, 2))):
                if is_map:
                    key = rng.choice(_TEXTS)
                    inner = field.message_type.fields_by_name["value"]
                    if inner.message_type is not None:
                        target[key].CopyFrom(
                            random_message(inner.message_type._concrete_class, rng, depth + 1)
                        )
                    else:
                        target[key] = _scalar(inner, rng)
                elif field.message_type is not None:
                    target.append(random_message(field.message_type._concrete_class, rng, depth + 1))
                else:
                    target.append(_scalar(field, rng))
        elif field.message_type is not None:
            inner_type = field.message_type._concrete_class
            getattr(message, field.name).CopyFrom(random_message(inner_type, rng, depth + 1))
        else:
            setattr(message, field.name, _scalar(field, rng))
    return message


def _scalar(field: FieldDescriptor, rng: random.Random) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return (
                rng.choice(_TEXTS)
                if field.type == FieldDescriptor.TYPE_STRING
                else rng.randbytes(rng.choice((0, 32)))
            )
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice(field.enum_type.values).number
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice((0.0, 1.5, float("inf")))
    return rng.choice((0, 1, 2, 5, 1000))
