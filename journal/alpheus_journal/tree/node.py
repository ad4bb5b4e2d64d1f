"""One tree node as one Arrow file, and the checks of hostile bytes (FORMAT.md, "Node file").

`decode_node` turns any bytes into a `NodeFile` or raises Corrupt. It never crashes the process, never allocates more
than a small multiple of the file, and never takes a part of a node for the whole. `NodeFile.defects` names the
deviations of other software that it tolerates.

This module checks one file alone. Checks that need several files or the catalog's definition are elsewhere: bounds and
levels in `alpheus_journal.tree.btree`, names in keys and definition paths in `alpheus_journal.format`.
"""

from __future__ import annotations

import operator
import re
import struct
import zlib
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from pyarrow.lib import StringBuilder

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Key, NodePath

SCHEMA = pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("pnode", pa.utf8())])

KEY_LENGTH_MAX = 4 + 2 * fmt.NAME_SIZE_BYTES_MAX
"""Characters of the longest key: exact for ASCII names, for other names an upper bound under both paddings."""
SYSTEM_ROWS_MAX = 256
ROWS_MAX = 1 << 20
"""Rows of one file, actions included. Even the largest allowed file has fewer rows with content."""

DELETED = ""
"""Value of a separator whose key is deleted (FORMAT.md, "Node file": a row with a null value)."""

UTF16_ORDER = "utf16_order"
"""The name of a defect and of its finding's kind: keys in the order in which the Java SDK sorts."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """One tree node in memory.

    `values[i]` is the definition path of `keys[i]`, or `DELETED`: such a key is absent but still separates two
    children. Only inner nodes of other software hold deleted keys; the next rewrite of the node removes them.
    """

    keys: tuple[Key, ...]
    """Strictly ascending, padded, as stored."""
    values: tuple[str, ...]
    children: tuple[NodePath, ...] = ()
    """Empty in a leaf, else one more than `keys`; `children[i]` holds the keys below `keys[i]`."""


EMPTY = Node((), ())


class NodeFile(msgspec.Struct, frozen=True):
    """The content of one node file. `decode_node` has checked every value that a property reads."""

    node: Node
    system: dict[str, str]
    """Every system row, known or not."""
    actions: tuple[tuple[str, str], ...] = ()
    """(object key or `catalog_def`, base64 of the action) of a root, in order; the 64-digit dialect's leading
    dot is removed."""
    defects: tuple[str, ...] = ()
    """Tolerated deviations: `n_keys_overstated`, `tombstone_rows`, `utf16_order`. `defects_of_order` finds those that
    depend on the catalog's order."""
    pivot_rows: int = 0
    """Rows between the system rows and the actions, padding included; 0 in a tombstone."""

    def defects_of_order(self, order: int) -> tuple[str, ...]:
        """Return the deviations from a tree of that order: `overfull`, `unpadded`."""
        found = []
        if len(self.node.keys) > order - 1:
            found.append("overfull")
        if not self.is_tombstone and self.pivot_rows < order:
            found.append("unpadded")
        return tuple(found)

    def looks_foreign(self, order: int) -> bool:
        """Return whether other software must have written the node: a node of ours is padded to the order and has no
        defect."""
        return bool(self.defects or self.defects_of_order(order))

    @property
    def is_tombstone(self) -> bool:
        """The root of an expired version (FORMAT.md, "Expiry")."""
        return fmt.ROW_EXPIRED_AT_MILLIS in self.system

    @property
    def catalog_def(self) -> str:
        """Path of the catalog definition; empty in a tombstone and in a child."""
        return self.system.get(fmt.ROW_CATALOG_DEF, "")

    @property
    def previous_root(self) -> str | None:
        return self.system.get(fmt.ROW_PREVIOUS_ROOT)

    @property
    def rollback_from_root(self) -> str | None:
        """The root that this one rolled back; None when this root is not a rollback. The Java SDK copies the row into
        later commits, so the row counts only where it equals `previous_root`."""
        value = self.system.get(fmt.ROW_ROLLBACK_FROM_ROOT)
        return value if value == self.previous_root else None

    @property
    def commit_id(self) -> str | None:
        """The commit id; None in a root of other software."""
        return self.system.get(fmt.ROW_COMMIT_ID)

    @property
    def previous_commit_id(self) -> str:
        """The identity of the root of the version below; empty where this root does not record it."""
        return self.system.get(fmt.ROW_PREVIOUS_COMMIT_ID, "")

    @property
    def catalog_id(self) -> str:
        """The id of the catalog of this version; empty where the root or the tombstone does not record it."""
        return self.system.get(fmt.ROW_CATALOG_ID, "")

    @property
    def version(self) -> int | None:
        return self._number(fmt.ROW_VERSION)

    @property
    def created_at_millis(self) -> int | None:
        """The version's time; None in a tombstone."""
        return self._number(fmt.ROW_CREATED_AT_MILLIS)

    @property
    def expired_at_millis(self) -> int | None:
        return self._number(fmt.ROW_EXPIRED_AT_MILLIS)

    @property
    def format_revision(self) -> int | None:
        return self._number(fmt.ROW_FORMAT_REVISION)

    @property
    def is_chosen(self) -> bool:
        """A pin with a tree of its own (FORMAT.md, "Tags of chosen objects")."""
        return fmt.ROW_CHOSEN in self.system

    def _number(self, row: str) -> int | None:
        text = self.system.get(row)
        return None if text is None else int(text)


# --- writing ---------------------------------------------------------------------------------------

_COMPUTED_ROWS = frozenset(
    {fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS, fmt.ROW_N_ACTIONS_64}
)


def encode_node(
    node: Node,
    *,
    order: int,
    created_at_millis: int,
    size_max: int,
    digits: int = 32,
    system: Mapping[str, str] | None = None,
    actions: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Encode the file of `node`: a root when `system` holds `catalog_def`, else a child.

    `system` holds a root's rows except those that are computed here (`created_at_millis`, `n_keys` and the number of
    actions). When `system` has `.crc32`, which a child may have too, its value is computed. `actions` are (object key
    or `catalog_def`, base64 text). `digits` selects the dialect (FORMAT.md, "Dialects"). A root of other software must
    have passed through `tree.apply`, which splits a root that has more keys than `order` allows.

    Raises InvalidInput (`too_large`) when the file would exceed `size_max` bytes or, in the 64-digit dialect, the size
    that the Java SDK can read.
    """
    system = system or {}
    is_root = fmt.ROW_CATALOG_DEF in system
    assert len(node.keys) < order, "a node that is written holds at most order - 1 keys"
    assert len(node.values) == len(node.keys), "a value for every key"
    assert len(node.children) in (0, len(node.keys) + 1), "one more child than keys, or none"
    assert is_root or not (system.keys() - {fmt.ROW_CHECKSUM} or actions), "a root's rows in a child"
    assert not _COMPUTED_ROWS & system.keys(), "computed here"

    keys: list[str | None] = [fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, *system]
    values: list[str | None] = [str(created_at_millis), str(len(node.keys)), *system.values()]
    dot = "." if digits == 64 else ""
    if is_root:
        keys.append(fmt.ROW_N_ACTIONS_64 if dot else fmt.ROW_N_ACTIONS)
        values.append(str(len(actions)))
    padding = [None] * (order - 1 - len(node.keys))
    pnodes: list[str | None] = [None] * len(keys)
    pnodes += node.children or [None] * (len(node.keys) + 1)
    keys += [None, *node.keys, *padding]
    stored = node.values if DELETED not in node.values else [value or None for value in node.values]
    values += [None, *stored, *padding]
    keys += [dot + key for key, _ in actions]
    values += [value for _, value in actions]
    pnodes += [None] * (len(keys) - len(pnodes))
    if fmt.ROW_CHECKSUM in system:
        values[keys.index(fmt.ROW_CHECKSUM)] = _checksum(keys, values, pnodes)

    data = _file(keys, values, pnodes)
    limit = min(size_max, fmt.NODE_FILE_SIZE_BYTES_JAVA) if dot else size_max
    if len(data) > limit:
        raise InvalidInput(
            f"a node file of {len(node.keys)} keys and {len(actions)} actions takes {len(data)} bytes, "
            f"{limit} at most",
            kind="too_large",
            hint="split the transaction" if actions else "use a smaller order or shorter names",
        )
    return data


def _checksum(keys: Sequence[str | None], values: Sequence[str | None], pnodes: Sequence[str | None]) -> str:
    """Compute the checksum over all rows, with an empty value in the checksum's own row (FORMAT.md, "Node file")."""
    values = list(values)
    values[keys.index(fmt.ROW_CHECKSUM)] = ""
    crc = 0
    for column in (keys, values, pnodes):
        text = "\0".join(["\x01" if value is None else value for value in column])
        crc = zlib.crc32(text.encode() + b"\0", crc)
    return f"{crc:08x}"


def encode_tombstone(*, commit_id: str, catalog_id: str, expired_at_millis: int, version: int) -> bytes:
    """Encode the file that replaces an expired version in its slot (FORMAT.md, "Expiry"), with system rows only. The
    file has neither `catalog_def` nor `created_at_millis`, so that the Java SDK fails on it instead of reading an
    empty catalog."""
    rows: dict[str, str] = {
        fmt.ROW_N_KEYS: "0",
        fmt.ROW_COMMIT_ID: commit_id,
        fmt.ROW_CATALOG_ID: catalog_id,
        fmt.ROW_EXPIRED_AT_MILLIS: str(expired_at_millis),
        fmt.ROW_VERSION: str(version),
    }
    return _file(list(rows), list(rows.values()), [None] * len(rows))


_WRITE_OPTIONS = pa.ipc.IpcWriteOptions()  # the defaults, which pyarrow would otherwise build for each file


def _file(keys: Sequence[str | None], values: Sequence[str | None], pnodes: Sequence[str | None]) -> bytes:
    arrays = []
    for column in (keys, values, pnodes):
        # `pa.array` would import pandas where it is installed, and block the event loop for half a second.
        builder = StringBuilder()
        builder.append_values(column)
        arrays.append(builder.finish())
    sink = pa.BufferOutputStream()
    with pa.ipc.RecordBatchFileWriter(sink, SCHEMA, options=_WRITE_OPTIONS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


# --- reading ---------------------------------------------------------------------------------------


class Malformed(Exception):
    """The reason why bytes are not a node. `decode_node` turns it into Corrupt with the path."""


_Column = list[str | None]


def decode_node(data: bytes, path: str, *, root: bool, size_max: int) -> NodeFile:
    """Decode the node in `data`. `path` only names it in errors. With `root`, the node is the root of a version, a pin
    or a branch, and must hold `catalog_def` unless it is a tombstone.

    Raises Corrupt (`corrupt_node`) for anything that is not a node file of the format, and InvalidInput
    (`newer_format`) for a root of a later revision of the extensions.
    """
    try:
        keys, values, pnodes = _columns(data, size_max)
        return _interpret(keys, values, pnodes, root)
    except Malformed as error:
        raise Corrupt(f"node {path}: {error}", kind="corrupt_node", path=path) from error


def _columns(data: bytes, size_max: int) -> tuple[_Column, _Column, _Column]:
    """Return the three columns, after every check that the bytes need before a value may be touched, in the order of
    FORMAT.md, "Untrusted input"."""
    if len(data) > size_max:
        raise Malformed(f"{len(data)} bytes, {size_max} at most")
    try:
        rows = rows_claimed(data)
    except struct.error:
        raise Malformed("an offset leads outside the file") from None
    # A row takes at least an offset of 4 bytes in each column.
    if not 0 <= rows <= min(ROWS_MAX, len(data) // 12):
        raise Malformed(f"claims {rows} rows, which the file cannot hold")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        # The schema's metadata has no meaning in this format and is not compared. The comparison finds a dictionary, a
        # view type, a field that is not nullable, and an additional column.
        if not reader.schema.equals(SCHEMA):
            raise Malformed("the columns are not key, value and pnode, nullable and utf8")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != rows:
            raise Malformed("the header contradicts itself")
        keys, values, pnodes = (column.to_pylist() for column in batch.columns)
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise Malformed(f"it is not a valid Arrow file: {str(error)[:200]}") from error
    return keys, values, pnodes


_MAGIC = b"ARROW1"
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_BLOCK = struct.Struct("<qi4xq")
_CONTINUATION = 0xFFFFFFFF
_METADATA_V5 = 4
_HEADER_RECORD_BATCH = 3


def rows_claimed(data: bytes | memoryview) -> int:
    """Return the number of rows of the only record batch, as its header claims.

    The two flatbuffers (Arrow's File.fbs and Message.fbs) are read by hand, because Arrow's reader would decompress a
    body before the caller could refuse it: 25 KB of zstd became 805 MB in a test. Metadata version 5 is required,
    because version 4 can announce compression in a second place. Raises struct.error when an offset leads outside the
    file.
    """
    end = len(data) - 10
    if end < 8 or data[:6] != _MAGIC or data[-6:] != _MAGIC:
        raise Malformed("it is not an Arrow IPC file")
    start = end - _I32.unpack_from(data, end)[0]
    if not 8 <= start < end:
        raise Malformed("the footer's length is impossible")
    footer = start + _U32.unpack_from(data, start)[0]
    dictionaries = _field(data, footer, 2)
    if dictionaries and _vector(data, dictionaries)[1]:
        raise Malformed("holds dictionaries")
    batches = _field(data, footer, 3)
    block, count = _vector(data, batches) if batches else (0, 0)
    if count != 1:
        raise Malformed(f"holds {count} record batches instead of one")
    offset, metadata_size, body_size = _BLOCK.unpack_from(data, block)
    if offset < 8 or metadata_size < 8 or body_size < 0 or offset + metadata_size + body_size > start:
        raise Malformed("the record batch is outside the file")
    if _U32.unpack_from(data, offset)[0] != _CONTINUATION:
        raise Malformed("the message has no continuation mark")
    message = offset + 8 + _U32.unpack_from(data, offset + 8)[0]
    version, header_type, header = (_field(data, message, index) for index in range(3))
    if not version or _I16.unpack_from(data, version)[0] != _METADATA_V5:
        raise Malformed("the Arrow metadata version is not 5")
    if not header_type or not header or data[header_type : header_type + 1] != bytes([_HEADER_RECORD_BATCH]):
        raise Malformed("the message is not a record batch")
    batch = header + _U32.unpack_from(data, header)[0]
    if _field(data, batch, 3):
        raise Malformed("the body is compressed")
    length = _field(data, batch, 0)
    rows: int = _I64.unpack_from(data, length)[0] if length else 0
    return rows


def _field(data: bytes | memoryview, table: int, index: int) -> int:
    """Return the position of a flatbuffer table's field, or 0 when the field is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:  # struct would count it from the end
        raise Malformed("an offset leads outside the file")
    entry = 4 + 2 * index
    if entry + 2 > _U16.unpack_from(data, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(data, vtable + entry)[0]
    return table + offset if offset else 0


def _vector(data: bytes | memoryview, field: int) -> tuple[int, int]:
    """Return (position of the first element, number of elements) of a flatbuffer vector."""
    start = field + _U32.unpack_from(data, field)[0]
    return start + 4, _U32.unpack_from(data, start)[0]


_KNOWN_ROWS = frozenset(
    {
        fmt.ROW_CATALOG_DEF, fmt.ROW_PREVIOUS_ROOT, fmt.ROW_ROLLBACK_FROM_ROOT, fmt.ROW_CREATED_AT_MILLIS,
        fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS, fmt.ROW_N_ACTIONS_64, fmt.ROW_COMMIT_ID, fmt.ROW_VERSION,
        fmt.ROW_FORMAT_REVISION, fmt.ROW_EXPIRED_AT_MILLIS, fmt.ROW_PREVIOUS_COMMIT_ID, fmt.ROW_CATALOG_ID,
        fmt.ROW_CHECKSUM, fmt.ROW_CHOSEN,
    }
)  # fmt: skip
_DECIMAL_BOUNDS = {
    fmt.ROW_N_KEYS: 1 << 31,
    fmt.ROW_N_ACTIONS: 1 << 31,
    fmt.ROW_N_ACTIONS_64: 1 << 31,
    fmt.ROW_CREATED_AT_MILLIS: 1 << 63,
    fmt.ROW_EXPIRED_AT_MILLIS: 1 << 63,
    fmt.ROW_FORMAT_REVISION: 1 << 31,
    fmt.ROW_VERSION: fmt.VERSION_MAX_EXCLUSIVE,
}
_DECIMAL = re.compile(r"[0-9]{1,19}")
_TYPE_IDS = tuple(fmt.TYPE_IDS.values())


def _interpret(keys: _Column, values: _Column, pnodes: _Column, root: bool) -> NodeFile:
    try:
        first = keys.index(None)
    except ValueError:
        first = len(keys)
    system = _system_rows(keys[:first], values, pnodes)
    _check_system(system, root)
    if fmt.ROW_CHECKSUM in system and system[fmt.ROW_CHECKSUM] != _checksum(keys, values, pnodes):
        raise Malformed("the checksum of its rows differs")
    if fmt.ROW_CHECKSUM not in system and int(system.get(fmt.ROW_FORMAT_REVISION, "0")) >= 2:
        raise Malformed("it lacks its checksum")
    n_actions = int(system.get(fmt.ROW_N_ACTIONS) or system.get(fmt.ROW_N_ACTIONS_64) or 0)
    if fmt.ROW_EXPIRED_AT_MILLIS in system:
        if int(system[fmt.ROW_N_KEYS]) or n_actions or keys[first:].count(None) != len(keys) - first:
            raise Malformed("a tombstone that holds keys")
        if pnodes.count(None) != len(pnodes) or values[first:].count(None) != len(values) - first:
            raise Malformed("a tombstone that holds children")
        return NodeFile(EMPTY, system)
    end = len(keys) - n_actions
    if end <= first:
        raise Malformed(f"has no pivot table before its {n_actions} actions")
    node, defects = _pivot_table(
        keys[first:end], values[first:end], pnodes[first:end], int(system[fmt.ROW_N_KEYS])
    )
    actions = _actions(keys[end:], values[end:], pnodes[end:]) if n_actions else ()
    return NodeFile(node, system, actions, defects, end - first)


def _system_rows(keys: _Column, values: _Column, pnodes: _Column) -> dict[str, str]:
    """Return the rows before the first null key, in any order. Unknown rows are kept without meaning."""
    if len(keys) > SYSTEM_ROWS_MAX:
        raise Malformed(f"has {len(keys)} system rows, {SYSTEM_ROWS_MAX} at most")
    system: dict[str, str] = {}
    for key, value, pnode in zip(keys, values, pnodes, strict=False):
        assert key is not None
        if key.startswith(_TYPE_IDS):
            raise Malformed(f"the object key {key[:80]!r} stands before the pivot table")
        if pnode is not None:
            raise Malformed(f"the system row {key[:80]!r} points at a node")
        if key in _KNOWN_ROWS:
            if key in system:
                raise Malformed(f"the system row {key!r} appears twice")
            if value is None:
                raise Malformed(f"the system row {key!r} has no value")
            if len(value) > fmt.POINTER_SIZE_BYTES_MAX:
                raise Malformed(f"the system row {key!r} is too long")
        system[key] = value or ""
    return system


def _check_system(system: dict[str, str], root: bool) -> None:
    for row, bound in _DECIMAL_BOUNDS.items():
        text = system.get(row)
        if text is not None and (_DECIMAL.fullmatch(text) is None or int(text) >= bound):
            raise Malformed(f"the system row {row!r} is {text[:40]!r}, not a number in its range")
    revision = int(system.get(fmt.ROW_FORMAT_REVISION, "0"))
    if revision > fmt.FORMAT_REVISION:
        raise InvalidInput(
            f"the catalog is written in revision {revision} of the format, newer than {fmt.FORMAT_REVISION}",
            kind="newer_format",
            hint="upgrade this program",
        )
    tombstone = fmt.ROW_EXPIRED_AT_MILLIS in system
    needed = [fmt.ROW_N_KEYS]
    if not tombstone:
        needed.append(fmt.ROW_CREATED_AT_MILLIS)
        if root:
            needed.append(fmt.ROW_CATALOG_DEF)
    for row in needed:
        if row not in system:
            raise Malformed(f"the system row {row!r} is missing")
    if fmt.ROW_N_ACTIONS in system and fmt.ROW_N_ACTIONS_64 in system:
        raise Malformed("the number of actions appears twice")
    if not root and (tombstone or fmt.ROW_N_ACTIONS in system or fmt.ROW_N_ACTIONS_64 in system):
        raise Malformed("a child node with the rows of a root")
    try:
        if fmt.ROW_CATALOG_DEF in system:
            fmt.check_definition_pointer(system[fmt.ROW_CATALOG_DEF], fmt.Kind.CATALOG)
        for row in (fmt.ROW_PREVIOUS_ROOT, fmt.ROW_ROLLBACK_FROM_ROOT):
            if row in system:
                fmt.check_root_pointer(system[row])
    except Corrupt as error:
        raise Malformed(error.message) from error


def _pivot_table(
    keys: _Column, values: _Column, pnodes: _Column, n_keys: int
) -> tuple[Node, tuple[str, ...]]:
    """Return the node and its defects. The first row has a null key. `n_keys` rows follow, or fewer (the Java SDK
    overstates `n_keys`). After them only padding may follow."""
    defects: list[str] = []
    try:
        end = keys.index(None, 1)
    except ValueError:
        end = len(keys)
    if end - 1 > n_keys:
        raise Malformed(f"n_keys is {n_keys}, and {end - 1} keys or more follow")
    if end - 1 < n_keys:
        defects.append("n_keys_overstated")
    rest = len(keys) - end
    for column in (keys, values, pnodes):
        if column[end:].count(None) != rest:
            raise Malformed("something stands after the last key")
    if values[0] is not None:
        raise Malformed("the leftmost row has a value")
    own = keys[1:end]
    stored = values[1:end]
    if "" in own or "" in stored:
        raise Malformed("a key or its value is empty")
    if max(map(len, own), default=0) > KEY_LENGTH_MAX:  # type: ignore[arg-type]
        raise Malformed("a key is too long")
    if None in stored:
        defects.append("tombstone_rows")
        stored = [value or DELETED for value in stored]
    if max(map(len, stored), default=0) > fmt.POINTER_SIZE_BYTES_MAX:  # type: ignore[arg-type]
        raise Malformed("a value is too long")
    children = _children(pnodes[:end])
    if not all(map(operator.lt, own, own[1:])):  # type: ignore[arg-type]
        own, stored = _sort_by_code_point(own, stored, bool(children))  # type: ignore[arg-type]
        defects.append(UTF16_ORDER)
    if not children and DELETED in stored:
        # A key of a leaf separates nothing, so a deleted key is left out.
        own = [key for key, value in zip(own, stored, strict=True) if value]
        stored = [value for value in stored if value]
    return Node(tuple(own), tuple(stored), children), tuple(defects)  # type: ignore[arg-type]


def _children(pnodes: _Column) -> tuple[NodePath, ...]:
    missing = pnodes.count(None)
    if missing == len(pnodes):
        return ()
    if missing:
        raise Malformed(f"{missing} of {len(pnodes)} children are missing")
    try:
        return tuple(map(fmt.check_node_pointer, pnodes))  # type: ignore[arg-type]
    except Corrupt as error:
        raise Malformed(error.message) from error


def _sort_by_code_point(
    keys: list[str], values: list[str], inner: bool
) -> tuple[list[str | None], list[str | None]]:
    """Sort keys that the Java SDK wrote in UTF-16 order into our order. Any other disorder is refused.

    An inner node in UTF-16 order cannot be read, because its children hold ranges of that order, which are not ranges
    in our order.
    """
    units = [key.encode("utf-16-be") for key in keys]
    if not all(map(operator.lt, units, units[1:])):
        raise Malformed("the keys do not ascend")
    if inner:
        raise Malformed("an inner node in UTF-16 order, which cannot be read in the order of the format")
    pairs = sorted(zip(keys, values, strict=True))
    return [key for key, _ in pairs], [value for _, value in pairs]


def _actions(keys: _Column, values: _Column, pnodes: _Column) -> tuple[tuple[str, str], ...]:
    if pnodes.count(None) != len(pnodes):
        raise Malformed("an action points at a node")
    rows = []
    for key, value in zip(keys, values, strict=True):
        if not key or not value:
            raise Malformed("an action has no key or no value")
        # No object key begins with a dot, so the dialects cannot be confused.
        rows.append((key.removeprefix("."), value))
    return tuple(rows)
