"""Plans: which data files of a native table a read must open, and how it must filter the rows of each.

Pure; uses statistics only. Arrow reads, Spark reads and `explain` use the same plan. A delete predicate hides the rows
for which it is TRUE, in files at or below its sequence (FORMAT.md, "Native tables").
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, DeletePredicate, TableDef
from alpheus_journal.predicate import (
    And,
    Compare,
    In,
    Or,
    Path,
    Predicate,
    Verdict,
    columns_of,
    decode,
    decode_value,
    explain,
    judge_of,
    leaf_paths,
    text,
)
from alpheus_journal.predicate.terms import FLOATS
from alpheus_journal.tables.data_file import DataFile

FileAt = tuple[DataFile, int]
"""A data file of a table, and the sequence at which its rows were added."""

_DECODED_MAX = 2048

INDEXED_MIN = 16
"""From this number of delete predicates on, an index finds those that may apply. Fewer are judged one by one."""


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that may hold selected rows: those that none of `predicates` hides and, with `is_filtered`, for which the
    plan's `where` is TRUE. Without `is_filtered` the plan has no `where`, or it is TRUE for every row of the file."""

    file: DataFile
    sequence: int
    predicates: tuple[Predicate, ...] = ()
    is_filtered: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the file are selected, so that counting them takes no read."""
        return not self.predicates and not self.is_filtered


class SkippedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file without selected rows. `hidden_by` is the delete predicate that is TRUE for all its rows; when it is None,
    `where` is TRUE for no row."""

    file: DataFile
    sequence: int
    hidden_by: Predicate | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Files whose rows need the same filters."""

    predicates: tuple[Predicate, ...]
    is_filtered: bool
    files: tuple[PlannedFile, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a read of a table. `files` and `skipped` keep the order in which the table's files were given."""

    table: TableDef
    where: Predicate | None
    files: tuple[PlannedFile, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The files grouped by the filters that they need. A group has the place of its first file."""
        # Predicates are compared by identity: a plan has one object for each, and comparing large ones is slow.
        found: dict[tuple[bool, tuple[int, ...]], list[PlannedFile]] = {}
        for planned in self.files:
            key = (planned.is_filtered, tuple(map(id, planned.predicates)))
            found.setdefault(key, []).append(planned)
        return tuple(
            Group(predicates=members[0].predicates, is_filtered=is_filtered, files=tuple(members))
            for (is_filtered, _), members in found.items()
        )

    @property
    def row_count(self) -> int:
        """The number of rows in the files to open, deleted and filtered rows included: an upper bound of the result."""
        return sum(planned.file.row_count for planned in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of the files to open."""
        return sum(planned.file.size_bytes for planned in self.files)

    @property
    def where_text(self) -> str:
        """The plan's `where` as SQL. Empty means all rows."""
        return text(self.where, self._names()) if self.where is not None else ""

    @property
    def exact_count(self) -> int | None:
        """The exact number of selected rows, or None when counting takes a read."""
        return self.row_count if all(planned.is_whole for planned in self.files) else None

    def reason(self, skipped: SkippedFile) -> str:
        """Say in words why a file is skipped."""
        if not skipped.file.row_count:
            return "it has no rows"
        names = self._names()
        if skipped.hidden_by is not None:
            return f"all its rows are deleted: {explain(skipped.hidden_by, skipped.file, names)}"
        assert self.where is not None, "a file with rows is skipped for a predicate"
        return explain(self.where, skipped.file, names)

    def left_to_do(self, planned: PlannedFile) -> str:
        """Say in words which rows of a file are selected."""
        names = self._names()
        words = "all rows"
        if planned.is_filtered and self.where is not None:
            words = f"rows where {text(self.where, names)}"
        for predicate in planned.predicates:
            words += f", without those deleted where {text(predicate, names)}"
        return words

    def explain(self, lines_max: int = 1000) -> str:
        """The plan as text for people: totals, then one line for each file, at most `lines_max` lines."""
        files = len(self.files) + len(self.skipped)
        rows = self.row_count + sum(skipped.file.row_count for skipped in self.skipped)
        size = self.size_bytes + sum(skipped.file.size_bytes for skipped in self.skipped)
        lines = [
            f"where {self.where_text}" if self.where is not None else "all rows",
            f"read {len(self.files)} of {files} files, {self.row_count} of {rows} rows in them,"
            f" {self.size_bytes} of {size} bytes",
            f"the result has {self.exact_count} rows"
            if self.exact_count is not None
            else f"the result has at most {self.row_count} rows; only a read counts those that are deleted or filtered",
        ]
        for planned in self.files[:lines_max]:
            lines.append(f"read {planned.file.path}: {self.left_to_do(planned)}")
        for skipped in self.skipped[: max(0, lines_max - len(self.files))]:
            lines.append(f"skip {skipped.file.path}: {self.reason(skipped)}")
        if files > lines_max:
            lines.append(f"and {files - lines_max} more files")
        return "\n".join(lines)

    def _names(self) -> dict[int, Path]:
        return dict(leaf_paths(self.table.columns))


def plan(table: TableDef, files: Sequence[FileAt], where: Predicate | None = None) -> Plan:
    """Plan to read the rows of `table` for which `where` is TRUE; None means all rows. `files` are the table's files.

    Raises Corrupt (`corrupt_definition`) for a delete predicate that cannot be decoded.
    """
    sharp = _sharpener(table, where)
    wanted = judge_of(where) if where is not None else None
    hiding = _Hiding(table.delete_predicates)
    chosen: list[PlannedFile] = []
    skipped: list[SkippedFile] = []
    for file, sequence in files:
        judged = sharp(file) if sharp is not None else file
        verdict = wanted(judged) if wanted is not None else Verdict.ALWAYS
        if verdict is Verdict.NEVER or not file.row_count:
            skipped.append(SkippedFile(file=file, sequence=sequence))
            continue
        left: list[Predicate] = []
        for predicate, verdict_of in hiding.of(sequence, judged):
            hides = verdict_of(judged)
            if hides is Verdict.ALWAYS:
                skipped.append(SkippedFile(file=file, sequence=sequence, hidden_by=predicate))
                break
            if hides is Verdict.MAYBE:
                left.append(predicate)
        else:
            is_filtered = verdict is Verdict.MAYBE
            chosen.append(
                PlannedFile(file=file, sequence=sequence, predicates=tuple(left), is_filtered=is_filtered)
            )
    return Plan(table=table, where=where, files=tuple(chosen), skipped=tuple(skipped))


_Judged = tuple[Predicate, Callable[[DataFile], Verdict]]


class _Hiding:
    """Finds the delete predicates of a table that may hide rows of a file."""

    def __init__(self, predicates: Sequence[DeletePredicate]) -> None:
        highest_first = sorted(predicates, key=lambda predicate: -predicate.sequence)
        self._bounds = [-predicate.sequence for predicate in highest_first]
        terms = [decode_predicate(predicate.expression) for predicate in highest_first]
        self._judges = [(term, judge_of(term)) for term in terms]
        self._index = _Index(terms) if len(terms) >= INDEXED_MIN else None

    def of(self, sequence: int, file: DataFile) -> Sequence[_Judged]:
        """Return the predicates that apply to files of the sequence. Predicates that are certainly TRUE for no row of
        this file may be left out."""
        count = bisect.bisect_right(self._bounds, -sequence)
        applying = (1 << count) - 1
        met = applying if self._index is None else self._index.meeting(file) & applying
        return self._judges[:count] if met == applying else [self._judges[place] for place in _places(met)]


def _places(mask: int) -> Iterator[int]:
    """Yield the numbers of the set bits, in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class _Index:
    """Indexes predicates by the ranges of values outside of which they are not TRUE. Of the hundreds of predicates that
    small corrections leave behind, only a few concern a file. A set of predicates is a number with one bit for each."""

    def __init__(self, terms: Sequence[Predicate]) -> None:
        by_column: dict[_Key, tuple[Column, list[tuple[_Range, int]]]] = {}
        for place, term in enumerate(terms):
            for column, found in _ranges(term).values():
                by_column.setdefault(_key(column), (column, []))[1].append((found, 1 << place))
        self._all = (1 << len(terms)) - 1
        self._columns = [(column, _ColumnIndex(ranges)) for column, ranges in by_column.values()]

    def meeting(self, file: DataFile) -> int:
        """Return the predicates that may be TRUE for a row of the file."""
        mask = self._all
        for column, index in self._columns:
            low, high = _bounds_of(column, file)
            if low is not None or high is not None:
                mask &= ~index.missing(low, high)
        return mask


class _ColumnIndex:
    """Finds the ranges of one column that do not overlap a given range."""

    def __init__(self, ranges: Sequence[tuple[_Range, int]]) -> None:
        lows = sorted(((found.low, bit) for found, bit in ranges if found.low is not None), key=_first)
        highs = sorted(((found.high, bit) for found, bit in ranges if found.high is not None), key=_first)
        self._lows, self._highs = [low for low, _ in lows], [high for high, _ in highs]
        # For each place the ranges that begin there or later, and the ranges that end before it.
        self._later = _sums(bit for _, bit in reversed(lows))[::-1]
        self._earlier = _sums(bit for _, bit in highs)
        points = sorted(((value, bit) for found, bit in ranges for value in found.values or ()), key=_first)
        self._values, self._bits = [value for value, _ in points], [bit for _, bit in points]
        self._pointed = 0
        for found, bit in ranges:
            self._pointed |= bit if found.values is not None else 0

    def missing(self, low: Any, high: Any) -> int:
        mask = 0
        if high is not None:
            mask |= self._later[bisect.bisect_right(self._lows, high)]
        if low is not None:
            mask |= self._earlier[bisect.bisect_left(self._highs, low)]
        start = 0 if low is None else bisect.bisect_left(self._values, low)
        end = len(self._values) if high is None else bisect.bisect_right(self._values, high)
        if self._pointed and end - start <= _POINTS_MAX:
            met = 0
            for bit in self._bits[start:end]:
                met |= bit
            mask |= self._pointed & ~met
        return mask


_POINTS_MAX = 64
"""When more single values are within the bounds of a file, they are not looked up one by one."""


def _first(pair: tuple[Any, int]) -> Any:
    return pair[0]


def _sums(bits: Iterable[int]) -> list[int]:
    """The sets of the first 0, 1, 2, ... bits."""
    return list(itertools.accumulate(bits, operator.or_, initial=0))


_Key = tuple[int, str, str]


def _key(column: Column) -> _Key:
    """The key of a column. Values of columns with equal keys can be compared. A column may have had narrower types
    before, under the same id."""
    return column.id, column.type, column.properties.get("scale", "")


def _bounds_of(column: Column, file: DataFile) -> tuple[Any, Any]:
    """The file's bounds of a column as values. None means that a bound is unknown, for example because the file lacks
    the column."""
    if file.value_counts.get(column.id) != file.row_count:
        return None, None
    found: list[Any] = []
    for bounds in (file.lower_bounds, file.upper_bounds):
        data = bounds.get(column.id)
        try:
            value = None if data is None else decode_value(column, data)
        except InvalidInput:  # a value of a wider type
            value = None
        found.append(None if value != value else value)
    return found[0], found[1]


class _Range(NamedTuple):
    """Values of a column from `low` to `high`, both inclusive. None means no bound. With `values` only these values."""

    low: Any = None
    high: Any = None
    values: frozenset[Any] | None = None

    def and_(self, other: _Range) -> _Range:
        lows = [one.low for one in (self, other) if one.low is not None]
        highs = [one.high for one in (self, other) if one.high is not None]
        values = self.values if other.values is None else other.values
        return _Range(max(lows, default=None), min(highs, default=None), values)

    def or_(self, other: _Range) -> _Range:
        low = None if None in (self.low, other.low) else min(self.low, other.low)
        high = None if None in (self.high, other.high) else max(self.high, other.high)
        both = self.values is not None and other.values is not None
        return _Range(low, high, self.values | other.values if both else None)  # type: ignore[operator]


def _ranges(term: Predicate) -> dict[_Key, tuple[Column, _Range]]:
    """By column: the range of values that a row can have where the predicate is TRUE. Columns that can have any value
    are left out. NaN is in no range and is not a bound; a term that can be TRUE for NaN has no range."""
    match term:
        case In(column, values) if values and not any(value != value for value in values):
            return {_key(column): (column, _Range(min(values), max(values), frozenset(values)))}
        case Compare(column, op, value) if value == value:
            found = _Range()
            if op in ("=", "<=>"):
                found = _Range(value, value, frozenset([value]))
            elif op in ("<", "<="):
                found = _Range(high=value)
            elif op in (">", ">=") and column.type not in FLOATS:
                found = _Range(low=value)
            return {_key(column): (column, found)}
        case And(terms) | Or(terms) if terms:
            whole = isinstance(term, And)
            first, *others = map(_ranges, terms)
            for other in others:
                both = first.keys() & other.keys()
                joined = {
                    key: (column, found.and_(other[key][1]) if whole else found.or_(other[key][1]))
                    for key, (column, found) in first.items()
                    if key in both
                }
                first = {**first, **other, **joined} if whole else joined
            return first
    return {}


@lru_cache(_DECODED_MAX)
def decode_predicate(expression: bytes) -> Predicate:
    """Decode a delete predicate's expression. Raises what `predicate.decode` raises."""
    return decode(expression)


def predicates_at(table: TableDef, sequence: int) -> tuple[Predicate, ...]:
    """The delete predicates that apply to files of a sequence, without regard to statistics."""
    return tuple(decode_predicate(p.expression) for p in table.delete_predicates if p.sequence >= sequence)


def _sharpener(table: TableDef, where: Predicate | None) -> Callable[[DataFile], DataFile] | None:
    """Return a function that improves the bounds of files by their partition values, or None when no predicate names
    such a column.

    Bounds are cut at 64 characters; partition values are not. For an identity key, the partition value is the only
    value that the column has in the file.
    """
    keys = {field.column_id for field in table.partition_spec if field.transform == "IDENTITY"}
    if not keys:
        return None
    asked = [decode_predicate(predicate.expression) for predicate in table.delete_predicates]
    if where is not None:
        asked.append(where)
    named = {column.id for predicate in asked for column in columns_of(predicate)}
    keys &= named
    if not keys:
        return None

    def sharpened(file: DataFile) -> DataFile:
        values = {
            number: value
            for number in keys
            if (value := file.partition.get(number)) is not None
            and number in file.value_counts
            and not (
                file.null_counts.get(number) == 0
                and file.lower_bounds.get(number) == value == file.upper_bounds.get(number)
            )
        }
        if not values:
            return file
        return msgspec.structs.replace(
            file,
            null_counts=file.null_counts | dict.fromkeys(values, 0),
            lower_bounds=file.lower_bounds | values,
            upper_bounds=file.upper_bounds | values,
        )

    return sharpened
