"""Mutations of Arrow IPC files that follow their structure.

The mutations change lengths, offsets, counts and flags of the flatbuffers, the buffers of the body, and rows of nodes
written again as valid Arrow.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

Row = tuple[str | None, str | None, str | None]
UTF8 = pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("pnode", pa.utf8())])


class Slot(NamedTuple):
    """A number in the file: `width` bytes, little-endian."""

    position: int
    width: int


class Body(NamedTuple):
    """A buffer of the record batch."""

    position: int
    size: int


class Anatomy(NamedTuple):
    slots: list[Slot]
    bodies: list[Body]


# Fields of the flatbuffer tables of Arrow's Schema.fbs, Message.fbs and File.fbs: a width, "t" a table, "s" a string,
# "[x" a vector of x; a tuple is a struct of these widths.
_TABLES: dict[str, list[object]] = {
    "footer": [2, "schema", "", "[block", "[keyvalue"],
    "schema": [2, "[field", "[keyvalue", "[i64"],
    "field": ["s", 1, 1, "type", "dictionary", "[field", "[keyvalue"],
    "type": [4, 4, 4],
    "dictionary": [8, "type", 1, 2],
    "keyvalue": ["s", "s"],
    "message": [2, 1, "batch", 8, "[keyvalue"],
    "schemamessage": [2, 1, "schema", 8, "[keyvalue"],
    "batch": [8, "[node", "[buffer", "compression", "[i64"],
    "compression": [1, 1],
}
_STRUCTS: dict[str, list[int]] = {
    "block": [8, 4, 4, 8],
    "node": [8, 8],
    "buffer": [8, 8],
    "i64": [8],
}
_TABLES["footer"][2] = "[block"


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.slots: list[Slot] = []
        self.buffers: list[tuple[int, int]] = []

    def number(self, position: int, width: int) -> int:
        self.slots.append(Slot(position, width))
        return int.from_bytes(self.data[position : position + width], "little")

    def table(self, position: int, name: str) -> None:
        vtable = position - struct.unpack_from("<i", self.data, position)[0]
        self.slots.append(Slot(position, 4))
        size = self.number(vtable, 2)
        self.number(vtable + 2, 2)
        for index, kind in enumerate(_TABLES[name]):
            entry = 4 + 2 * index
            if entry + 2 > size:
                return
            offset = self.number(vtable + entry, 2)
            if offset:
                self.field(position + offset, kind)

    def field(self, position: int, kind: object) -> None:
        if isinstance(kind, int):
            self.number(position, kind)
            return
        assert isinstance(kind, str)
        target = position + self.number(position, 4)
        if kind == "s":
            length = self.number(target, 4)
            self.slots += [Slot(target + 4 + index, 1) for index in range(min(length, 16))]
        elif kind.startswith("["):
            count = min(self.number(target, 4), 64)
            inner = kind[1:]
            widths = _STRUCTS.get(inner)
            place = target + 4
            for _ in range(count):
                if widths is None:
                    self.field(place, inner)
                    place += 4
                    continue
                if inner == "buffer":
                    self.buffers.append(struct.unpack_from("<qq", self.data, place))
                for width in widths:
                    self.number(place, width)
                    place += width
        else:
            self.table(target, kind)


def anatomy(data: bytes) -> Anatomy:
    """Return the places of the numbers in an intact Arrow file."""
    walk = _Walk(data)
    bodies = []
    try:
        end = len(data) - 10
        length = walk.number(end, 4)
        footer = end - length
        walk.table(footer + walk.number(footer, 4), "footer")
        # The stream part: a schema message, then record batches, each with continuation mark and length.
        place, first = 8, True
        while place < footer and walk.number(place, 4) == 0xFFFFFFFF:
            size = walk.number(place + 4, 4)
            if not size:
                break
            start = place + 8
            walk.buffers = []
            walk.table(start + walk.number(start, 4), "schemamessage" if first else "message")
            body = start + size
            bodies += [Body(body + offset, count) for offset, count in walk.buffers if count]
            place = body + max(
                (offset + (count + 63) // 64 * 64 for offset, count in walk.buffers), default=0
            )
            first = False
    except (struct.error, IndexError):
        pass  # the seed is not whole; the numbers found so far are enough
    return Anatomy(
        [slot for slot in walk.slots if slot.position + slot.width <= len(data)],
        [body for body in bodies if body.position + body.size <= len(data)],
    )


def extreme(rng: random.Random, width: int, now: int, size: int) -> int:
    """Return an unsigned number of `width` bytes that decoders often get wrong."""
    bits = 8 * width
    match rng.randrange(6):
        case 0:
            value = rng.choice((0, 1, 2, 3, 4, -1, -2, -4, -8))
        case 1:
            value = rng.choice(
                (1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 62)
            )
        case 2:
            value = now + rng.choice((-8, -4, -1, 1, 4, 8, 64, -64))
        case 3:
            value = rng.choice((now * 2, now // 2, -now, now ^ (1 << rng.randrange(bits))))
        case 4:
            value = size + rng.choice((-10, -8, -1, 0, 1, 8))
        case _:
            value = rng.getrandbits(bits)
    return value % (1 << bits)


def mutate_bytes(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """Make one change without knowledge of the format."""
    if not data:
        data += b"\0"
    place = rng.randrange(len(data))
    if rng.random() < 0.5:  # near the start or end, where the file's own structures are
        place = rng.choice((place % 900, len(data) - 1 - place % 900)) % len(data)
    match rng.randrange(9):
        case 0 | 1:
            data[place] ^= 1 << rng.randrange(8)
        case 2:
            data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 3:
            data[place : place + 4] = rng.choice(
                (b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", rng.randbytes(4))
            )
        case 4:
            del data[place : place + rng.choice((1, 4, 8, 64, 4096))]
        case 5:
            del data[place:]
        case 6:
            data[place:place] = rng.randbytes(rng.choice((1, 4, 8)))
        case 7:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[place:place] = other[start : start + rng.choice((4, 16, 64, 512))]
        case _:
            other = rng.choice(others)
            data[place:] = other[min(place, len(other)) :]


def mutate_arrow(seed: bytes, parts: Anatomy, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a copy of `seed` with one to four numbers or pieces changed."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        choice = rng.random()
        if choice < 0.6 and parts.slots:
            position, width = rng.choice(parts.slots)
            now = int.from_bytes(data[position : position + width], "little")
            if rng.random() < 0.15:  # copy one number to the place of another
                other = rng.choice(parts.slots)
                value = int.from_bytes(data[other.position : other.position + width], "little")
            else:
                value = extreme(rng, width, now, len(data))
            data[position : position + width] = (value % (1 << (8 * width))).to_bytes(width, "little")
        elif choice < 0.85 and parts.bodies:
            _mutate_body(data, rng.choice(parts.bodies), rng)
        else:
            mutate_bytes(data, rng, others)
            if len(data) != len(seed):
                break  # the known places are wrong now
    return bytes(data)


def _mutate_body(data: bytearray, body: Body, rng: random.Random) -> None:
    """Change a validity bit, an offset, or a byte of text, depending on the buffer."""
    if rng.random() < 0.6 and body.size >= 4:
        place = body.position + 4 * rng.randrange(body.size // 4)
        now = int.from_bytes(data[place : place + 4], "little")
        data[place : place + 4] = extreme(rng, 4, now, body.size).to_bytes(4, "little")
    else:
        place = body.position + rng.randrange(body.size)
        data[place] = rng.choice((0, 0x20, 0x2F, 0x2E, 0x7F, 0x80, 0xC0, 0xED, 0xF4, 0xFF, data[place] ^ 1))


# --- rows ------------------------------------------------------------------------------------------

Text = Callable[[random.Random], str]

HOSTILE_POINTERS = (
    "../node/x.arrow", "node/../../etc/passwd", "/etc/passwd", "node/%2e%2e/x.arrow", "node/..%2fx.arrow",
    "node/\0.arrow", "node//x.arrow", "node/./x.arrow", "", ".", "..", "node/", "node/x.arrow\n", "vn/latest",
    "vn/00000000000000000000000000000000", "def/ns/../../x.binpb", "def/ns/.binpb", "def/ns//x.binpb",
    "def/table/a\\..\\b.binpb", "def/catalog/\u202e.binpb", "def/ns/\ud7ff\U0010ffff.binpb", "file:///etc/passwd",
    "s3://bucket/x", "node/00000000-0000-4000-8000-000000000000.arrow/..", "x" * 5000,
    "NODE/00000000-0000-4000-8000-000000000000.ARROW", "node/00000000-0000-4000-8000-00000000000\u0661.arrow",
    "def/table/" + "d/" * 200 + "x.binpb", "def/ns/" + "n" * 300 + ".binpb", "def/ns/.staging.binpb",
    "node/00000000-0000-4000-8000-000000000001.arrow", "def/ns/00000000-0000-4000-8000-000000000001.binpb",
)  # fmt: skip
HOSTILE_TEXTS = (
    "", " ", "\0", "\x7f", "\u202e", "\ufeff", "é", "e\u0301", "\U0010ffff", "\ue000", "\U00010000",
    "0", "-1", "1", "007", "+1", "1e3", "0x10", "٣", "²", "9" * 18, "9" * 19, "9" * 20, "9" * 5000, "4294967296",
    "2147483648", "None", "B===", "C===", "Bm==", "AAAA", ".", "=", "catalog_def", "n_keys", "n_actions",
    ".n_actions", ".commit_id", ".version", ".format_revision", ".expired_at_millis", "created_at_millis",
    "previous_root", "rollback_from_root", "AAAA====", "A", "x" * 2052, "x" * 2053, "\U0010ffff" * 2053,
)  # fmt: skip


def rows_of(data: bytes) -> list[Row]:
    """Return the rows of a file with the three columns of a node, and none of any other file."""
    table = pa.ipc.open_file(data).read_all()
    if table.schema.names != UTF8.names:
        return []
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def file_of_rows(rows: Sequence[Row]) -> bytes:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(list(column), pa.utf8()) for column in columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, UTF8) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=UTF8))
    return bytes(sink.getvalue().to_pybytes())


def hostile_text(rng: random.Random, now: str | None) -> str | None:
    choice = rng.random()
    if choice < 0.1:
        return None
    if choice < 0.4:
        return rng.choice(HOSTILE_TEXTS)
    if choice < 0.65 or not now:
        return rng.choice(HOSTILE_POINTERS)
    place = rng.randrange(len(now) + 1)
    match rng.randrange(5):
        case 0:
            return now[:place] + now[place + 1 :]
        case 1:
            return (
                now[:place]
                + rng.choice(("\0", "/", "..", "%2f", "é", " ", "\U00010000", "A", "1"))
                + now[place:]
            )
        case 2:
            return now[:place]
        case 3:
            return now + now
        case _:
            return now[:place] + now[place : place + 1].swapcase() + now[place + 1 :]


def mutate_rows(rows: Sequence[Row], rng: random.Random, others: Sequence[Sequence[Row]]) -> list[Row]:
    """Return valid Arrow with wrong content: cells, orders, counts, rows of other nodes."""
    new = list(rows)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not new:
            new = [(None, None, None)]
        place = rng.randrange(len(new))
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                column = rng.randrange(3)
                row = list(new[place])
                row[column] = hostile_text(rng, row[column])
                new[place] = (row[0], row[1], row[2])
            case 4:
                del new[place : place + rng.choice((1, 1, 2, 10))]
            case 5:
                new[place:place] = [new[rng.randrange(len(new))]] * rng.choice((1, 1, 2, 300))
            case 6:
                other = rng.randrange(len(new))
                new[place], new[other] = new[other], new[place]
            case 7:
                source = rng.choice(others)
                new.insert(place, source[rng.randrange(len(source))])
            case 8:
                other = rng.randrange(len(new))  # a cell of another row: repeats a key, a child or a number
                column = rng.randrange(3)
                row = list(new[place])
                row[column] = new[other][column]
                new[place] = (row[0], row[1], row[2])
            case _:
                start = rng.randrange(len(new))
                new[start:] = reversed(new[start:])
    return new
