"""Which data files of a native table a read has to open, and what is left to do with the rows of each.

Pure, of statistics alone: Arrow reads, Spark reads and `explain` go by the same plan. A delete predicate hides the
rows of files at or below its sequence for which it is TRUE (FORMAT.md, "Native tables").
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.manifest import DataFile
from alpheus_journal.objects import Column, DeletePredicate, TableDef
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
from alpheus_journal.predicate_terms import FLOATS

FileAt = tuple[DataFile, int]
"""A data file of a table, and the sequence at which its rows came in."""

_DECODED_MAX = 2048

PLACES_MIN = 16
"""Fewer delete predicates are judged one by one."""


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that may hold rows. Of its rows those are meant that none of `predicates` hides and for which, where
    `is_filtered`, the plan's `where` is TRUE; without `is_filtered` it is TRUE on every row, or there is none."""

    file: DataFile
    sequence: int
    predicates: tuple[Predicate, ...] = ()
    is_filtered: bool = False

    @property
    def is_whole(self) -> bool:
        """All its rows are meant, and need not be looked at to know how many."""
        return not self.predicates and not self.is_filtered


class SkippedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file without a row that is meant. `hidden_by`: the delete predicate that is TRUE on all its rows; without
    one, `where` is TRUE on none."""

    file: DataFile
    sequence: int
    hidden_by: Predicate | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Files of which the same is left to do."""

    predicates: tuple[Predicate, ...]
    is_filtered: bool
    files: tuple[PlannedFile, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A read of a table. `files` and `skipped` are in the order in which the table's files were given."""

    table: TableDef
    where: Predicate | None
    files: tuple[PlannedFile, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The files by what is left to do, each group where its first file stands."""
        # By identity: the predicates of one plan are the same objects, and comparing large ones costs.
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
        """Of the files to open: rows that are hidden or filtered out are among them."""
        return sum(planned.file.row_count for planned in self.files)

    @property
    def size_bytes(self) -> int:
        """Of the files to open."""
        return sum(planned.file.size_bytes for planned in self.files)

    @property
    def exact_count(self) -> int | None:
        """How many rows are meant; None when that takes a look at rows."""
        return self.row_count if all(planned.is_whole for planned in self.files) else None

    def reason(self, skipped: SkippedFile) -> str:
        """Why a file is skipped, in words."""
        if not skipped.file.row_count:
            return "it has no rows"
        names = self._names()
        if skipped.hidden_by is not None:
            return f"all its rows are deleted: {explain(skipped.hidden_by, skipped.file, names)}"
        assert self.where is not None, "a file with rows is skipped for a predicate"
        return explain(self.where, skipped.file, names)

    def left_to_do(self, planned: PlannedFile) -> str:
        """Which rows of a file are meant, in words."""
        names = self._names()
        said = "all rows"
        if planned.is_filtered and self.where is not None:
            said = f"rows where {text(self.where, names)}"
        for predicate in planned.predicates:
            said += f", but those deleted where {text(predicate, names)}"
        return said

    def explain(self, lines_max: int = 1000) -> str:
        """The plan as a person reads it: sums, then a line a file, `lines_max` at most."""
        files = len(self.files) + len(self.skipped)
        rows = self.row_count + sum(skipped.file.row_count for skipped in self.skipped)
        size = self.size_bytes + sum(skipped.file.size_bytes for skipped in self.skipped)
        lines = [
            f"where {text(self.where, self._names())}" if self.where is not None else "all rows",
            f"read {len(self.files)} of {files} files, {self.row_count} of {rows} rows,"
            f" {self.size_bytes} of {size} bytes",
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
    """The plan of reading rows of `table`, whose files are `files`, for which `where` is TRUE (None: all).

    Raises Corrupt (`corrupt_definition`) for a delete predicate of the table that is none.
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
    """The delete predicates of a table, made ready: which may hide rows of a file."""

    def __init__(self, predicates: Sequence[DeletePredicate]) -> None:
        highest_first = sorted(predicates, key=lambda predicate: -predicate.sequence)
        self._bounds = [predicate.sequence for predicate in highest_first]
        terms = [decoded(predicate.expression) for predicate in highest_first]
        self._judges = [(term, judge_of(term)) for term in terms]
        self._at: dict[int, _Places] = {}

    def of(self, sequence: int, file: DataFile) -> Sequence[_Judged]:
        """Those that apply to files of the sequence, without some that certainly are TRUE of no row of this one."""
        found = self._at.get(sequence)
        if found is None:
            count = sum(bound >= sequence for bound in self._bounds)
            found = self._at[sequence] = _Places(self._judges[:count])
        return found.meeting(file)


class _Places:
    """Predicates by the values of which they are TRUE: of hundreds, as small corrections leave them, a file has to do
    with few."""

    def __init__(self, judges: Sequence[_Judged]) -> None:
        self._judges = judges
        self._rest: list[int] = []
        by_column: dict[int, tuple[Column, list[tuple[Any, int]]]] = {}
        for place, (term, _) in enumerate(judges if len(judges) >= PLACES_MIN else ()):
            found = _values(term)
            if found is None:
                self._rest.append(place)
            else:
                column, values = found
                by_column.setdefault(column.id, (column, []))[1].extend((value, place) for value in values)
        self._columns = [
            (column, [value for value, _ in ordered], [place for _, place in ordered])
            for column, pairs in by_column.values()
            for ordered in [sorted(pairs)]
        ]

    def meeting(self, file: DataFile) -> Sequence[_Judged]:
        if not self._columns:
            return self._judges
        places = set(self._rest)
        for column, values, of_values in self._columns:
            low, high = _known(column, file)
            start = 0 if low is None else bisect.bisect_left(values, low)
            end = len(values) if high is None else bisect.bisect_right(values, high)
            places.update(of_values[start:end])
        return [self._judges[place] for place in sorted(places)]


def _known(column: Column, file: DataFile) -> tuple[Any, Any]:
    """The file's bounds of a column as values; None: not known, as of a column that it lacks."""
    found: list[Any] = []
    for bounds in (file.lower_bounds, file.upper_bounds):
        data = bounds.get(column.id)
        try:
            found.append(None if data is None else decode_value(column, data))
        except InvalidInput:  # of a wider type
            found.append(None)
    return found[0], found[1]


def _values(term: Predicate) -> tuple[Column, Sequence[Any]] | None:
    """A column, and all values of it that a row can have where the predicate is TRUE; None: others, too."""
    match term:
        case In(column, values) if column.type not in FLOATS:
            return column, values
        case Compare(column, "=" | "<=>", value) if column.type not in FLOATS:
            return column, (value,)
        case And(terms):
            return next((found for found in map(_values, terms) if found is not None), None)
        case Or(terms):
            parts = [found for found in map(_values, terms) if found is not None]
            if terms and len(parts) == len(terms) and len({column.id for column, _ in parts}) == 1:
                return parts[0][0], [value for _, values in parts for value in values]
    return None


@lru_cache(_DECODED_MAX)
def decoded(expression: bytes) -> Predicate:
    """A delete predicate's expression. Raises as `predicate.decode`."""
    return decode(expression)


def hiding(table: TableDef, sequence: int) -> tuple[Predicate, ...]:
    """The delete predicates that apply to files of a sequence, whatever their statistics say."""
    return tuple(decoded(p.expression) for p in table.delete_predicates if p.sequence >= sequence)


def _sharpener(table: TableDef, where: Predicate | None) -> Callable[[DataFile], DataFile] | None:
    """Bounds of files are cut at 64 characters, values of partitions are not: of a key that is its column they are the
    one value that the file has. None when no predicate asks for such a column."""
    keys = {field.column_id for field in table.partition_spec if field.transform == "IDENTITY"}
    if not keys:
        return None
    asked = [decoded(predicate.expression) for predicate in table.delete_predicates]
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
