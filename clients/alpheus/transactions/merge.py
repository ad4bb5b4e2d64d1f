"""Merge data into a table by key: update or delete the rows that match, and insert the other rows of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.arrow.cast import Caster, CastError
from alpheus.rows.arrow.input_data import arrow_of, cast_data
from alpheus.rows.file_writer import PIECE_SIZE_BYTES_MAX
from alpheus.transactions.row_changes import RowVerb
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import ChangeMode
from alpheus_journal.model.type_names import type_text
from alpheus_journal.predicate import (
    FALSE,
    FLOATS,
    NAN,
    And,
    Predicate,
    all_of,
    any_of,
    compare,
    encode,
    one_of,
)

Matched = Literal["update", "delete", "ignore"]
Unmatched = Literal["insert", "ignore"]

KEYS_MAX = 1000
"""For more keys the search takes a range of keys, and no predicate hides the matching rows: their files are
rewritten."""


class KeyIndex:
    """Finds the row of a source that has the key of another row. NULL equals nothing, NaN equals NaN, and -0.0 equals
    0.0."""

    def __init__(self, columns: Sequence[Column], keys: Sequence[pa.Array]) -> None:
        """Raises InvalidInput (`bad_data`), which names a key that occurs twice."""
        self._columns = tuple(columns)
        self._levels: list[tuple[pa.Array, pa.Array | None]] = []
        codes: pa.Array | None = None
        for column, array in zip(columns, keys, strict=True):
            array = _plain(column, array)
            values = pc.unique(array).drop_null()
            own = pc.index_in(array, value_set=values).cast(pa.int64())
            if codes is None:
                self._levels.append((values, None))
                codes = own
                continue
            pairs = pc.add(pc.multiply(codes, len(values)), own)
            known = pc.unique(pairs).drop_null()
            self._levels.append((values, known))
            codes = pc.index_in(pairs, value_set=known).cast(pa.int64())
        assert codes is not None, "a merge has keys"
        places = pa.array(range(len(codes)), pa.int64()).filter(codes.is_valid())
        codes = codes.drop_null()
        counted = pc.value_counts(codes)
        twice = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if len(twice):
            raise _duplicate_key(columns, keys, places[pc.index(codes, twice[0]).as_py()].as_py())
        self._row_of = places.take(pc.sort_indices(codes))
        self.with_key = places
        """The rows of the source that have a key, no part of which is NULL."""

    def rows(self, keys: Sequence[pa.Array]) -> pa.Array:
        """For each key the row of the source that has it, or NULL when no row does."""
        codes: pa.Array | None = None
        for column, array, (values, known) in zip(self._columns, keys, self._levels, strict=True):
            own = pc.index_in(_plain(column, array), value_set=values).cast(pa.int64())
            if codes is None:
                codes = own
            else:
                pairs = pc.add(pc.multiply(codes, len(values)), own)
                codes = pc.index_in(pairs, value_set=known).cast(pa.int64())
        assert codes is not None
        return self._row_of.take(codes)


def _plain(column: Column, array: pa.Array) -> pa.Array:
    """The array with one kind of zero and one kind of NaN, because Arrow compares values by their bits. The NaN that
    0 / 0 gives has other bits than Python's."""
    if column.type not in FLOATS:
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(NAN, array.type), pc.add(array, pa.scalar(0.0, array.type)))


def _duplicate_key(columns: Sequence[Column], keys: Sequence[pa.Array], row: int) -> InvalidInput:
    key = ", ".join(
        f"{column.name}={_text(array[row])[:80]!r}" for column, array in zip(columns, keys, strict=True)
    )
    return InvalidInput(
        f"the key {key} occurs twice in the data to merge",
        kind="bad_data",
        hint="keep one row of each key, for example the newest",
    )


def _text(scalar: pa.Scalar) -> str:
    try:
        return str(scalar.as_py())
    except (OverflowError, ValueError):  # a date or time that Python does not have
        return f"{scalar.value} ({scalar.type})"


class Merge(RowVerb):
    """See `Writes.merge`. Holds the data in memory."""

    mode = ChangeMode.MERGE

    def __init__(
        self, columns: Sequence[Column], data: Any, on: Sequence[str], matched: Matched, unmatched: Unmatched
    ) -> None:
        """Blocks. Raises InvalidInput (`bad_argument` for a key that is not a column, `bad_data`), CastError."""
        self._columns = tuple(columns)
        self._matched = matched
        self._unmatched = unmatched
        names, data = _names_and_data(data, columns)
        by_name = {column.name: column for column in columns}
        strange = [name for name in names if name not in by_name]
        if strange:
            raise CastError(
                f"column {strange[0]!r} is not in the table", f"it has {', '.join(by_name)[:500]}"
            )
        self._given = tuple(by_name[name] for name in names)
        keys = _key_columns(on, columns, names)
        self.needed = keys
        self._present = _presence(data, names, keys)
        self._source = _table(cast_data(data, self._given, PIECE_SIZE_BYTES_MAX), self._given)
        self._keys = [self._source.column(key.name) for key in keys]
        self._index = KeyIndex(keys, self._keys)
        self.sought = self._sought_predicate()
        self._found: set[int] | None = set()
        self._hit = pa.array([], pa.int64())

    def hits_of(self, rows: pa.RecordBatch, meant: pa.Array | None) -> pa.Array:
        places = self._index.rows([rows.column(key.name) for key in self.needed])
        if self._found is not None:
            self._found.update(places.drop_null().unique().to_pylist())
        if self._matched == "ignore":
            return pa.repeat(pa.scalar(False), rows.num_rows)
        return places.is_valid()

    def changed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        if self._matched != "update":
            return None
        places = self._index.rows([rows.column(key.name) for key in self.needed])
        given = {column.name for column in self._given}
        arrays = [
            self._new(column, old, places) if column.name in given else old
            for column, old in zip(self._columns, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)

    def _new(self, column: Column, old: pa.Array, places: pa.Array) -> pa.Array:
        """The new values of a column in rows that match the rows of the source at `places`."""
        new = self._source.column(column.name).take(places)
        present = self._present.get(column.name)
        if present is None:
            return new
        own = pa.array(range(len(old)), pa.int64())
        return pa.concat_arrays([old, new]).take(pc.if_else(present.take(places), pc.add(own, len(old)), own))

    def finish_search(self) -> None:
        self._hit = pa.array(sorted(self._found or ()), pa.int64())
        self._found = None

    def predicate(self) -> Predicate | None:
        if len(self._hit) > KEYS_MAX:
            return None
        return keys_predicate(self.needed, [array.take(self._hit) for array in self._keys])

    def inserted_rows(self) -> Iterator[pa.RecordBatch]:
        if self._unmatched != "insert":
            return
        places = pa.array(range(self._source.num_rows), pa.int64())
        rest = self._source.filter(pc.invert(pc.is_in(places, value_set=self._hit)))
        caster = Caster(self._columns, by_id=False)
        for batch in pa.Table.from_batches([rest]).to_batches(max_chunksize=1 << 16):
            yield caster.cast(batch)

    def _sought_predicate(self) -> Predicate:
        """A predicate that is TRUE for every row that may match."""
        with_key = self._index.with_key
        if not len(with_key):
            return FALSE
        parts = [array.take(with_key) for array in self._keys]
        if len(with_key) <= KEYS_MAX:
            exact = all_of(
                *(one_of(key, key_values(key, array)) for key, array in zip(self.needed, parts, strict=True))
            )
            if _is_small(exact):
                return exact
        return keys_range(self.needed, parts)


def keys_predicate(keys: Sequence[Column], found: Sequence[pa.Array]) -> Predicate:
    """Return a predicate that is TRUE for exactly the rows with one of the keys. `found` has an array for each column
    of the key, in which no value is NULL."""
    parts = [key_values(key, array) for key, array in zip(keys, found, strict=True)]
    if len(parts) == 1:
        return one_of(keys[0], parts[0])
    varying = [place for place, values in enumerate(parts) if len(set(map(repr, values))) > 1]
    if len(varying) <= 1:
        return all_of(
            *(
                one_of(key, values if place in varying else values[:1])
                for place, (key, values) in enumerate(zip(keys, parts, strict=True))
            )
        )
    return any_of(
        *(
            And(tuple(compare(key, "=", value) for key, value in zip(keys, row, strict=True)))
            for row in zip(*parts, strict=True)
        )
    )


def _is_small(predicate: Predicate) -> bool:
    try:
        encode(predicate)
    except InvalidInput:
        return False
    return True


def keys_range(keys: Sequence[Column], found: Sequence[pa.Array]) -> Predicate:
    """Return a predicate that is TRUE for the rows with one of the keys, and for others between them. `found` is as
    for `keys_predicate`, and not empty."""
    terms: list[Predicate] = []
    for key, array in zip(keys, found, strict=True):
        plain = _plain(key, array)
        order = pc.sort_indices(plain)
        [low, high] = key_values(key, plain.take(pa.array([order[0].as_py(), order[-1].as_py()])))
        terms += [compare(key, ">=", low), compare(key, "<=", high)]
    return all_of(*terms)


def key_values(column: Column, array: pa.Array) -> list[Any]:
    """The values in the form that predicates take."""
    if column.type == "DATE":
        return list(array.cast(pa.int32()).to_pylist())
    if column.type in ("TIMESTAMP6", "TIMESTAMPTZ6"):
        return list(array.cast(pa.int64()).to_pylist())
    return list(array.to_pylist())


def _names_and_data(data: Any, columns: Sequence[Column]) -> tuple[tuple[str, ...], Any]:
    """The names of the data's columns, and the data. A list without rows counts as having all columns."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        if not len(data):
            return tuple(column.name for column in columns), data
        names: dict[str, None] = {}
        for row in data:
            if isinstance(row, Mapping):
                names.update(dict.fromkeys(row))
        return tuple(names), data
    schema, batches = arrow_of(data)
    if len(set(schema.names)) != len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise CastError(f"column {twice!r} occurs twice in the data")
    return tuple(schema.names), pa.RecordBatchReader.from_batches(schema, batches)


def _presence(data: Any, names: Sequence[str], keys: Sequence[Column]) -> dict[str, pa.Array]:
    """For each column that some dicts leave out: which dicts have it. Raises CastError for a dict without the key of
    the merge."""
    if not isinstance(data, Sequence):
        return {}
    found: dict[str, pa.Array] = {}
    for name in names:
        has = [name in row for row in data if isinstance(row, Mapping)]
        if not all(has):
            if any(key.name == name for key in keys):
                raise CastError(
                    f"row {has.index(False)} lacks the key {name!r}",
                    "give the key as None to have the row inserted",
                )
            found[name] = pa.array(has, pa.bool_())
    return found


def _table(batches: Iterable[pa.RecordBatch], columns: Sequence[Column]) -> pa.RecordBatch:
    schema = Caster(columns, by_id=False).schema
    table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
    found = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=schema)


def _key_columns(on: Sequence[str], columns: Sequence[Column], given: Sequence[str]) -> tuple[Column, ...]:
    by_name = {column.name: column for column in columns}
    if not on or len(set(on)) != len(on):
        raise InvalidInput(
            f"on={list(on)!r} names no key, or names a key twice",
            kind="bad_argument",
            hint='name each key once, as in on=["id"]',
        )
    for name in on:
        column = by_name.get(name)
        if column is None:
            raise InvalidInput(
                f"the key {name!r} is not a column of the table",
                kind="bad_argument",
                hint=f"use the table's columns: {', '.join(by_name)[:500]}",
            )
        if column.children():
            raise InvalidInput(
                f"the key {name!r} is of type {type_text(column)}, which cannot be compared",
                kind="bad_argument",
                hint="use top-level columns of simple types as keys",
            )
        if name not in given:
            raise InvalidInput(f"the data to merge lacks the key {name!r}", kind="bad_data")
    return tuple(by_name[name] for name in on)


def check_choices(matched: object, unmatched: object) -> None:
    for what, value, choices in (
        ("matched", matched, get_args(Matched)),
        ("unmatched", unmatched, get_args(Unmatched)),
    ):
        if value not in choices:
            raise InvalidInput(
                f"{what}={value!r} does not exist",
                kind="bad_argument",
                hint=f"use one of {', '.join(choices)}",
            )
