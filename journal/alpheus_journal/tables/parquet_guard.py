"""The gate for Parquet footers that other programs wrote: it refuses footers that would harm Arrow's reader.

Arrow's Parquet reader checks parts of a footer only when a column chunk is requested, in a call that cannot report an
error. A histogram of the wrong length, or a row group with fewer columns than the schema, ends the process (seen with
pyarrow 26). A schema nested without end exhausts the stack, a minimum that is too short is read beyond its end, and a
byte of a list can become a kilobyte. So this module first walks over the footer, without building anything from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus_journal.errors import InvalidInput

FOOTER_SIZE_BYTES_MAX = 16 << 20
SCHEMA_DEPTH_MAX = 100
"""The most levels of a file's schema. A table has fewer than half as many, and lists and maps take two each."""

TAIL_SIZE_BYTES = 8
"""The bytes after the footer: its size and the magic."""

_MAGIC = b"PAR1"
_STRUCT_DEPTH_MAX = 16


class _Bad(Exception):
    """The reason why bytes are not a footer that may be read."""


_NO_FOOTER = (_Bad, pa.ArrowException, OSError, ValueError, TypeError, IndexError)


def read_footer(file: BinaryIO, path: str) -> pq.FileMetaData:
    """Read the footer of a Parquet file that is open in binary mode and seekable. `path` is used in errors only.

    Raises InvalidInput (`bad_data`) for a file that is not Parquet, or a footer that would harm a reader. The column
    chunks and statistics of the result are safe to read.
    """
    try:
        end = file.seek(0, 2)
        file.seek(max(0, end - TAIL_SIZE_BYTES))
        size = _footer_size(file.read(TAIL_SIZE_BYTES), end)
        file.seek(end - TAIL_SIZE_BYTES - size)
        return _parse_footer(file.read(size + TAIL_SIZE_BYTES))
    except _NO_FOOTER as error:
        raise _unreadable_error(path, error) from error


def footer_size(tail: bytes, size_bytes: int, path: str) -> int:
    """Return the size of a Parquet file's footer, which is before the last `TAIL_SIZE_BYTES`.

    `tail` ends with these last bytes, and `size_bytes` is the file's size. Raises the errors of `read_footer`.
    """
    try:
        return _footer_size(tail[-TAIL_SIZE_BYTES:], size_bytes)
    except _Bad as error:
        raise _unreadable_error(path, error) from error


def footer_of_end(end: bytes, path: str) -> pq.FileMetaData:
    """Parse the end of a Parquet file: the footer and the bytes after it. Raises the errors of `read_footer`."""
    try:
        return _parse_footer(end)
    except _NO_FOOTER as error:
        raise _unreadable_error(path, error) from error


def _footer_size(tail: bytes, end: int) -> int:
    size = int.from_bytes(tail[:4], "little")
    if end < 12 or tail[4:] != _MAGIC:
        raise _Bad("it does not end as a Parquet file does")
    if not 0 < size <= min(FOOTER_SIZE_BYTES_MAX, end - 12):
        raise _Bad(f"its footer of {size} bytes is longer than the file or than {FOOTER_SIZE_BYTES_MAX}")
    return size


def _parse_footer(end: bytes) -> pq.FileMetaData:
    check_footer(end[:-TAIL_SIZE_BYTES])
    return pq.read_metadata(pa.BufferReader(_MAGIC + end))


def _unreadable_error(path: str, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"data file {path[:300]} has no readable Parquet footer: {str(error)[:200]}",
        kind="bad_data",
        path=path[:300],
    )


def check_footer(footer: bytes) -> None:
    """Check a footer, a serialized FileMetaData. Raises a private error for one that must not be given to Arrow."""
    reader = _Compact(footer)
    leaves: list[_Leaf] = []
    for number, kind in reader.fields():
        if number == 2:
            leaves = _read_schema(reader, kind)
        elif number == 4:
            for _ in reader.elements(kind, _STRUCT):
                _check_row_group(reader, leaves)
        elif number == 5:
            for _ in reader.elements(kind, _STRUCT):
                _require_fields(reader, {1})
        elif number in (8, 9):
            raise _Bad("it is encrypted")
        else:
            reader.skip(kind)
    if reader.place != len(footer):
        raise _Bad("something follows the footer")


class _Leaf(msgspec.Struct, frozen=True):
    """A leaf column of the schema."""

    kind: int
    width: int  # bytes of a value, or 0 where the size varies
    definition_levels: int
    repetition_levels: int


# Thrift's compact protocol, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
_I32, _I64, _BINARY, _LIST, _SET, _STRUCT = 5, 6, 8, 9, 10, 12


class _Compact:
    """Walks over one struct. Raises IndexError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self._depth = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and type of each field of the struct here. The caller must walk over each field's value."""
        self._depth += 1
        if self._depth > _STRUCT_DEPTH_MAX:
            raise _Bad("its structs are nested too deep")
        last = 0
        while head := self.byte():
            number = last + (head >> 4) if head >> 4 else self.integer()
            if not last < number < 1 << 15:
                raise _Bad("the fields of a struct do not ascend")
            last = number
            yield number, head & 15
        self._depth -= 1

    def elements(self, kind: int, wanted: int = 0) -> Iterator[int]:
        """Yield the type of each element of the list here. The caller must walk over each element."""
        if kind not in (_LIST, _SET):
            raise _Bad("a field is not a list")
        head = self.byte()
        count = head >> 4
        if count == 15:
            count = self.varint()
        if count > len(self.data) - self.place:  # each element takes at least a byte
            raise _Bad("a list claims more elements than there are bytes")
        if wanted and count and head & 15 != wanted:
            raise _Bad("a list holds values of another type")
        for _ in range(count):
            yield head & 15

    def byte(self) -> int:
        value = self.data[self.place]
        self.place += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise _Bad("a number is too long")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def int32(self, kind: int) -> int:
        if kind != _I32:  # Arrow skips a field of another type, and takes it for absent
            raise _Bad("a field is not a number of 32 bits")
        return self.integer()

    def jump(self, size: int) -> int:
        """Walk over `size` bytes, and return `size`."""
        self.place += size
        if self.place > len(self.data):
            raise _Bad("it is cut off")
        return size

    def binary(self, kind: int) -> int:
        """Walk over the bytes or text here, and return the size."""
        if kind != _BINARY:
            raise _Bad("a field is not a text")
        return self.jump(self.varint())

    def skip(self, kind: int, *, element: bool = False) -> None:
        match kind:
            case 1 | 2:
                self.jump(1 if element else 0)  # a boolean field has its value in the type
            case 3:
                self.jump(1)
            case 4 | 5 | 6:
                self.varint()
            case 7:
                self.jump(8)
            case 8:
                self.jump(self.varint())
            case 9 | 10:
                self._depth += 1
                if self._depth > _STRUCT_DEPTH_MAX:
                    raise _Bad("its lists are nested too deep")
                for inner in self.elements(kind):
                    self.skip(inner, element=True)
                self._depth -= 1
            case 12:
                for _, inner in self.fields():
                    self.skip(inner)
            case _:
                raise _Bad(f"it has a value of type {kind}, which no footer has")


def _require_fields(
    reader: _Compact, numbers: set[int], also: Callable[[int, int], bool] | None = None
) -> None:
    """Walk over a struct that must have the fields `numbers`. `also` may walk over a field itself, and returns whether
    it did."""
    missing = set(numbers)
    for number, kind in reader.fields():
        missing.discard(number)
        if also is None or not also(number, kind):
            reader.skip(kind)
    if missing:
        raise _Bad(f"a struct lacks the field {min(missing)}")


_FIXED = 7
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 0}  # by physical type; type 7 has the width of its column


def _read_schema(reader: _Compact, kind: int) -> list[_Leaf]:
    """Return the leaves of the schema, which is a tree stored depth first."""
    leaves: list[_Leaf] = []
    open_groups: list[list[int]] = []  # number of remaining children, definition levels, repetition levels
    first = True
    for _ in reader.elements(kind, _STRUCT):
        values: dict[int, int] = {}

        def take(number: int, kind: int, into: dict[int, int] = values) -> bool:
            if number in (1, 2, 3, 5):
                into[number] = reader.int32(kind)
            return number in (1, 2, 3, 5)

        _require_fields(reader, {4}, take)
        while open_groups and not open_groups[-1][0]:
            open_groups.pop()
        if not first and not open_groups:
            raise _Bad("its schema has more elements than its groups hold")
        definition, repetition = open_groups[-1][1:] if open_groups else (0, 0)
        if not first:
            open_groups[-1][0] -= 1
            repeated = values.get(3, -1)
            if repeated not in (0, 1, 2):
                raise _Bad(f"a column has the repetition {repeated}")
            definition += repeated != 0
            repetition += repeated == 2
        children, physical = values.get(5), values.get(1)
        if first or children is not None:
            if physical is not None or children is None or children < 1:
                raise _Bad("a group has no children, or a type of its own")
            if len(open_groups) >= SCHEMA_DEPTH_MAX:
                raise _Bad(f"its schema is nested more than {SCHEMA_DEPTH_MAX} levels deep")
            open_groups.append([children, definition, repetition])
        else:
            width = (
                values.get(2, 0)
                if physical == _FIXED
                else _WIDTHS.get(-1 if physical is None else physical, -1)
            )
            if width < (physical == _FIXED):
                raise _Bad(f"a column has the physical type {physical} of {width} bytes")
            leaves.append(_Leaf(-1 if physical is None else physical, width, definition, repetition))
        first = False
    if any(group[0] for group in open_groups):
        raise _Bad("its schema has fewer elements than its groups hold")
    return leaves


def _check_row_group(reader: _Compact, leaves: list[_Leaf]) -> None:
    def take(number: int, kind: int) -> bool:
        if number != 1:
            return False
        count = 0
        for _ in reader.elements(kind, _STRUCT):
            if count >= len(leaves):
                raise _Bad("a row group has more columns than the schema")
            _check_chunk(reader, leaves[count])
            count += 1
        if count < len(leaves):
            raise _Bad("a row group has fewer columns than the schema")
        return True

    _require_fields(reader, {1, 2, 3}, take)


def _check_chunk(reader: _Compact, leaf: _Leaf) -> None:
    def take(number: int, kind: int) -> bool:
        if number in (8, 9):
            raise _Bad("a column is encrypted")
        if number == 3:
            if kind != _STRUCT:
                raise _Bad("a column has no metadata")
            _require_fields(reader, {1, 2, 3, 4, 5, 6, 7, 9}, of_metadata)
        return number == 3

    def of_metadata(number: int, kind: int) -> bool:
        if number == 1:
            if reader.int32(kind) != leaf.kind:
                raise _Bad("a column chunk has another type than the schema")
        elif number == 12 and kind == _STRUCT:
            _require_fields(reader, set(), of_statistics)
        elif number == 16 and kind == _STRUCT:
            _require_fields(reader, set(), of_sizes)
        else:
            return False
        return True

    def of_statistics(number: int, kind: int) -> bool:
        if number not in (1, 2, 5, 6):
            return False
        size = reader.binary(kind)
        if leaf.width and size != leaf.width:
            raise _Bad(f"a minimum or maximum takes {size} bytes, its type {leaf.width}")
        return True

    def of_sizes(number: int, kind: int) -> bool:
        if number == 1 and leaf.kind != 6:
            raise _Bad("a column of fixed width claims sizes of texts")
        if number in (2, 3):
            levels = (leaf.repetition_levels if number == 2 else leaf.definition_levels) + 1
            count = 0
            for inner in reader.elements(kind, _I64):
                reader.skip(inner, element=True)
                count += 1
            if count not in (0, levels):
                raise _Bad(f"a histogram has {count} places for {levels} levels")
        return number in (2, 3)

    _require_fields(reader, {3}, take)
