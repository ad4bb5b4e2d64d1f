"""A sorted table of one version, flat in memory or in a mapped file. Pure and immutable.

The table has three columns: packed key, definition path, definition. Each column is one run of bytes with offsets
(Arrow `large_binary`). An object costs its bytes and no Python object. Every `MARK_ROWS`th key is held as `bytes`; a
search halves over these keys, and then over the slice between two of them.

A *packed* key is a stored key in which every run of spaces is cut to at most three characters (FORMAT.md,
"Checkpoints"). Packing keeps the order of keys for all characters and both kinds of padding, and loses nothing.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.model.answers import StoredObject

MARK_ROWS = 32
"""Rows between two keys of the sparse index."""
GROUP_ROWS_MIN = 24
"""From this many rows with a common prefix on, a column is cut as a whole instead of row by row (measured)."""
_CHUNK_ROWS = 8192

# --- packed keys -----------------------------------------------------------------------------------

_DIGITS = [chr(code) for code in range(0x21, 0x7F)]  # no space: a space is always the beginning of a run
_CODES = len(_DIGITS) ** 2
RUN_MAX = _CODES // 2 - 1
"""The longest run of spaces. The longest key has less than half as many characters."""


def _code(value: int) -> str:
    return " " + _DIGITS[value // len(_DIGITS)] + _DIGITS[value % len(_DIGITS)]


_BEFORE_LESS = ["", *(_code(count) for count in range(1, RUN_MAX + 1))]
"""Codes, by length, of runs that end the key or precede a character below a space. A longer run sorts later."""
_BEFORE_MORE = ["", *(_code(_CODES - 1 - count) for count in range(1, RUN_MAX + 1))]
"""Codes, by length, of runs before any other character. A longer run sorts earlier. All sort after those above."""
_COUNTS = {text: count for runs in (_BEFORE_LESS, _BEFORE_MORE) for count, text in enumerate(runs) if text}
_RUN = re.compile(r" +")
_PACKED_RUN = re.compile(r" .{0,2}", re.DOTALL)


def pack(key: str) -> bytes:
    """Return the packed form of any text. The smaller of two texts has the smaller packed form."""

    text = key.rstrip(" ")

    def cut(run: re.Match[str]) -> str:
        end = run.end()
        return (_BEFORE_MORE if text[end] > " " else _BEFORE_LESS)[end - run.start()]

    ended = _BEFORE_LESS[len(key) - len(text)]
    start = text.find(" ")
    if start >= 0:
        rest = text[start:].lstrip(" ")
        if " " in rest:
            text = _RUN.sub(cut, text)
        else:  # nearly all keys have one such run, which needs no regular expression
            runs = _BEFORE_MORE if rest[0] > " " else _BEFORE_LESS
            text = text[:start] + runs[len(text) - start - len(rest)] + rest
    return (text + ended).encode("utf-8", "surrogatepass")


def pack_name(keys: fmt.Keys, name: ObjectName) -> bytes:
    """Return `pack(keys.key(name))`, but faster."""
    first, last, kind = name.namespace, name.name, name.kind
    if not (first.isascii() and last.isascii()) or " " in first or " " in last:
        return pack(keys.key(name))
    if kind is Kind.TABLE or kind is Kind.VIEW:
        gap, rest = keys.namespace_size_max - len(first), keys.size_max(kind) - len(last)
        if gap >= 0 <= rest and last > " ":
            return f"{fmt.TYPE_IDS[kind]}{first}{_BEFORE_MORE[gap]}{last}{_BEFORE_LESS[rest]}".encode()
    return pack(keys.key(name))


def unpack(packed: bytes) -> Key:
    """Return the stored key. Raises Corrupt for bytes that `pack` did not make."""

    def spaces(run: re.Match[str]) -> str:
        return " " * _COUNTS[run.group()]

    try:
        text = packed.decode()
        key = Key(_PACKED_RUN.sub(spaces, text))
    except (UnicodeDecodeError, KeyError):
        raise Corrupt(f"{packed[:200]!r} is not a packed key", kind="corrupt_tree") from None
    return key


def parse_packed(keys: fmt.Keys, packed: bytes) -> ObjectName:
    """Return the name of the object under a packed key. Raises Corrupt as `format.Keys.parse`."""
    return keys.parse(unpack(packed))


# --- columns ---------------------------------------------------------------------------------------


def column_of(values: Iterable[bytes | None]) -> pa.LargeBinaryArray:
    """Make a column without `pa.array`, which would import an installed pandas: half a second in an event loop."""
    listed = list(values)
    offsets = array("q", accumulate((len(value or b"") for value in listed), initial=0))
    data = pa.py_buffer(b"".join(value or b"" for value in listed))
    validity = None
    if None in listed:
        bits = bytearray((len(listed) + 7) // 8)
        for row, value in enumerate(listed):
            if value is not None:
                bits[row >> 3] |= 1 << (row & 7)
        validity = pa.py_buffer(bytes(bits))
    buffers = [validity, pa.py_buffer(offsets), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(listed), buffers)


def join_columns(columns: Sequence[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    return pa.concat_arrays(columns) if columns else column_of([])


class Column:
    """A run of values by row. The array begins at row 0 of its buffers."""

    __slots__ = ("_data", "_offsets", "array")

    def __init__(self, values: pa.LargeBinaryArray) -> None:
        if values.offset:
            values = pa.concat_arrays([values])
        self.array = values
        _, offsets, data = values.buffers()
        # An empty array may come without offsets.
        counts = memoryview(offsets)[: 8 * (len(values) + 1)] if len(values) else memoryview(bytes(8))
        self._offsets = counts.cast("q")
        self._data = memoryview(data if data is not None else b"")

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, row: int) -> bytes:
        offsets = self._offsets
        return bytes(self._data[offsets[row] : offsets[row + 1]])

    def text(self, row: int) -> str:
        offsets = self._offsets
        return str(self._data[offsets[row] : offsets[row + 1]], "utf-8")

    def bytes_of(self, start: int, end: int) -> bytes:
        """Return the values of rows [start, end), concatenated."""
        return bytes(self._data[self._offsets[start] : self._offsets[end]])

    def slice(self, start: int, end: int) -> list[bytes]:
        """Return the values of rows [start, end), cut out of one copy."""
        low = self._offsets[start]
        offsets = self._offsets[start : end + 1].tolist()
        run = bytes(self._data[low : offsets[-1]])
        return [run[a - low : b - low] for a, b in pairwise(offsets)]


class KeyRows(Column):
    """Packed keys, strictly ascending, with their sparse index."""

    __slots__ = ("_count", "_marks")

    def __init__(self, values: pa.LargeBinaryArray) -> None:
        super().__init__(values)
        self._count = len(values)
        self._marks = [self[row] for row in range(0, self._count, MARK_ROWS)]

    def key(self, row: int) -> Key:
        """Return the stored key of a row. Raises Corrupt as `unpack`."""
        return unpack(self[row])

    def position(self, key: bytes) -> int:
        """Return the number of smaller keys."""
        mark = bisect_right(self._marks, key) - 1
        if mark < 0:
            return 0
        start = mark * MARK_ROWS
        return start + bisect_left(self.slice(start, min(start + MARK_ROWS, self._count)), key)

    def find(self, key: bytes) -> int:
        """Return the row of a key, or -1 if there is none."""
        mark = bisect_right(self._marks, key) - 1
        if mark < 0:
            return -1
        low = mark * MARK_ROWS
        high = min(low + MARK_ROWS, self._count)
        offsets = self._offsets
        start = offsets[low]
        # Search the bytes of all these rows in one call, then check that the match is a whole key.
        block = bytes(self._data[start : offsets[high]])
        place = block.find(key)
        while place >= 0:
            row = bisect_left(offsets, start + place, low, high)
            if offsets[row] == start + place and offsets[row + 1] == start + place + len(key):
                return row
            place = block.find(key, place + 1)
        return -1

    def is_ascending(self) -> bool:
        count = len(self)
        return count < 2 or bool(pc.all(pc.less(self.array.slice(0, count - 1), self.array.slice(1))).as_py())


NO_ROWS = KeyRows(column_of([]))


class Flat:
    """Every object of one version: key, definition path, definition. The definition is null if it is damaged."""

    __slots__ = ("definitions", "keys", "paths", "size_bytes")

    def __init__(
        self, keys: pa.LargeBinaryArray, paths: pa.LargeBinaryArray, definitions: pa.LargeBinaryArray
    ) -> None:
        self.keys = KeyRows(keys)
        self.paths = Column(paths)
        self.definitions = Column(definitions)
        self.size_bytes = keys.nbytes + paths.nbytes + definitions.nbytes

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, StoredObject]]) -> Flat:
        """Make a table of packed keys and objects, keys ascending. Damaged objects get no definition."""
        builder = FlatBuilder()
        builder.extend(entries)
        return builder.build()

    def __len__(self) -> int:
        return len(self.keys)

    def between(self, above: Key, below: Key | None) -> list[tuple[Key, str]]:
        """Return the keys strictly between two keys, with their definition paths, in order.

        A `below` of None means the end.
        """
        start = self.keys.position(pack(Key(above + "\0")))
        end = len(self) if below is None else self.keys.position(pack(below))
        return [(self.keys.key(row), self.path(row)) for row in range(start, end)]

    @property
    def missing(self) -> list[int]:
        """The rows without a definition."""
        found = self.definitions.array
        return pc.indices_nonzero(found.is_null()).to_pylist() if found.null_count else []

    def path(self, row: int) -> str:
        return self.paths.text(row)

    def stored(self, row: int) -> StoredObject:
        """Return the object of a row that is not `missing`."""
        return StoredObject(self.paths.text(row), self.definitions[row])

    def merged(self, changes: Sequence[tuple[bytes, StoredObject | None]]) -> Flat:
        """Return a table with `changes` applied, which ascend by packed key. None removes a row. Copies everything."""
        plan = merge_plan(self.keys, [(key, stored is not None) for key, stored in changes])
        added = [(key, stored) for key, stored in changes if stored is not None]
        new = Flat.of(added)
        columns = [
            join_columns([*pieces(old.array, fresh.array, plan)])
            for old, fresh in (
                (self.keys, new.keys),
                (self.paths, new.paths),
                (self.definitions, new.definitions),
            )
        ]
        return Flat(*columns)


class FlatBuilder:
    """Builds a Flat from entries in order, holding a few thousand Python objects at a time."""

    def __init__(self) -> None:
        self._columns: tuple[list[pa.LargeBinaryArray], ...] = ([], [], [])

    def extend(self, entries: Iterable[tuple[bytes, StoredObject]]) -> None:
        chunk: list[tuple[bytes, StoredObject]] = []
        for entry in entries:
            chunk.append(entry)
            if len(chunk) == _CHUNK_ROWS:
                self._add(chunk)
                chunk = []
        if chunk:
            self._add(chunk)

    def _add(self, chunk: Sequence[tuple[bytes, StoredObject]]) -> None:
        keys, paths, definitions = self._columns
        keys.append(column_of(key for key, _ in chunk))
        paths.append(column_of(stored.path.encode() for _, stored in chunk))
        definitions.append(column_of(None if stored.damage else stored.definition for _, stored in chunk))

    def build(self) -> Flat:
        return Flat(*(join_columns(column) for column in self._columns))


# --- base and changes ------------------------------------------------------------------------------


def merge_plan(rows: KeyRows, changes: Sequence[tuple[bytes, bool]]) -> list[tuple[int, int] | None]:
    """Plan how to merge keys (ascending) into a base. True adds or replaces a key, False removes it.

    The plan is a list of row ranges of the base; None stands for the next added key.
    """
    plan: list[tuple[int, int] | None] = []
    start = 0
    for key, lives in changes:
        row = rows.position(key)
        if row > start:
            plan.append((start, row))
        if lives:
            plan.append(None)
        start = row + (row < len(rows) and rows[row] == key)
    if start < len(rows):
        plan.append((start, len(rows)))
    return plan


def pieces(
    old: pa.LargeBinaryArray, new: pa.LargeBinaryArray, plan: Sequence[tuple[int, int] | None]
) -> Iterator[pa.LargeBinaryArray]:
    taken = 0
    for step in plan:
        if step is None:
            yield new.slice(taken, 1)
            taken += 1
        else:
            yield old.slice(step[0], step[1] - step[0])


Run = tuple[int, int] | bytes
"""A range of rows of a base, or one packed key that is not in the base."""


def runs(
    rows: KeyRows, order: Sequence[bytes], lives: Callable[[bytes], bool], low: bytes, high: bytes
) -> Iterator[Run]:
    """Yield the keys of [low, high) in order.

    `order` holds the keys that differ from the base, ascending. Of these, `lives` selects the ones that exist.
    """
    row, end = rows.position(low), rows.position(high)
    for index in range(bisect_left(order, low), bisect_left(order, high)):
        key = order[index]
        place = rows.position(key)
        if place > row:
            yield row, place
        if lives(key):
            yield key
        row = place + (place < end and rows[place] == key)
    if row < end:
        yield row, end


# --- names -----------------------------------------------------------------------------------------

Group = tuple[Kind, str, list[str], bytes]
"""Kind, namespace, last names of some objects in key order, and the packed key if the group has a single object.

For namespaces the last names are the namespaces' own. Without a packed key, `pack_name` gives the keys of all names.
"""

_KINDS = {text.encode(): kind for kind, text in fmt.TYPE_IDS.items()}


def groups(
    keys: fmt.Keys, rows: KeyRows, found: Iterable[Run], *, at_once: int = _CHUNK_ROWS
) -> Iterator[Group]:
    """Yield the names of some runs in key order, at most `at_once` in a group.

    Consecutive objects of one namespace come together. Raises Corrupt as `format.Keys.parse`.
    """
    for run in found:
        if isinstance(run, bytes):
            yield _group_of(keys, run)
            continue
        start, end = run
        while start < end:
            group, start = _first_group(keys, rows, start, min(end, start + at_once))
            yield from group


def _first_group(keys: fmt.Keys, rows: KeyRows, start: int, end: int) -> tuple[list[Group], int]:
    """Return the names of the first of the rows [start, end), and the row after them."""
    kind, prefix = _KINDS.get(rows[start][:4]), rows[start][:4]
    namespace: str | None = ""
    if kind is Kind.TABLE or kind is Kind.VIEW:
        namespace, prefix = _namespace_of(keys, rows[start])
    if kind is not None and namespace is not None:
        if not rows[end - 1].startswith(prefix):
            end = rows.position(after(prefix))
        if end - start >= GROUP_ROWS_MIN:
            names = _cut(rows, start, end, prefix)
            if names is not None:
                return [(kind, namespace, names, b"")], end
    end = min(end, start + GROUP_ROWS_MIN)
    return [_group_of(keys, packed) for packed in rows.slice(start, end)], end


def _namespace_of(keys: fmt.Keys, packed: bytes) -> tuple[str | None, bytes]:
    """Return the namespace of a table or view, and the prefix that the keys of its plain names share.

    Returns None where this simple way does not find the namespace.
    """
    prefix = packed[: packed.find(b" ") + 3]
    if not packed.isascii() or len(prefix) < 8 or prefix == packed:
        return None, b""
    text = unpack(prefix)
    # The first run of spaces must be exactly the namespace's padding, which ends where the name begins.
    return (text[4:].rstrip(" "), prefix) if len(text) == 4 + keys.namespace_size_max else (None, b"")


def _group_of(keys: fmt.Keys, packed: bytes) -> Group:
    name = parse_packed(keys, packed)
    if name.kind is Kind.NAMESPACE:
        return name.kind, "", [name.namespace], packed
    return name.kind, name.namespace, [name.name], packed


def _cut(keys: KeyRows, start: int, end: int, prefix: bytes) -> list[str] | None:
    """Return the last names of the packed keys of rows [start, end), which all begin with `prefix`.

    Returns None when one of the names is not plain: not ASCII, with a space inside, or without padding behind it.
    """
    rows, count = keys.array.slice(start, end - start), end - start
    names = pc.binary_slice(rows, len(prefix), -3)
    _, offsets, data = names.buffers()
    texts = bytes(data or b"")
    # The last three bytes of a key hold at most one space, so the sum is right only if each key holds one there.
    spaces = keys.bytes_of(start, end).count(b" ")
    if b" " in texts or not texts.isascii() or spaces != count * (prefix.count(b" ") + 1):
        return None
    listed: list[str] = pa.LargeStringArray.from_buffers(count, offsets, data).to_pylist()
    return listed


def after(prefix: bytes) -> bytes:
    """Return the smallest bytes above all bytes that begin with `prefix`, which is UTF-8."""
    return fmt.after_prefix(prefix.decode()).encode()
