"""Merges a DataFrame into a table by key: rows that match are updated or deleted, all others are inserted."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from alpheus.spark.files.schemas import check_texts, quoted
from alpheus.spark.files.writes import Staged
from alpheus.spark.tables.row_changes import Hits, Match, Rows, check_updated, is_small, where_match
from alpheus.transactions.merge import (
    KEYS_MAX,
    KeyIndex,
    Matched,
    Unmatched,
    check_choices,
    keys_predicate,
    keys_range,
)
from alpheus.transactions.row_changes import Mode
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import ChangeMode
from alpheus_journal.model.type_names import type_text
from alpheus_journal.predicate import FALSE, Or, Predicate
from alpheus_journal.tables.data_file import DataFile

_KEY = "_alpheus_key_"
_GIVEN = "_alpheus_given_"
_COUNT = "_alpheus_count"


def merge(
    rows: Rows,
    df: DataFrame,
    on: str | Sequence[str],
    matched: Matched,
    unmatched: Unmatched,
    mode: Mode | None,
) -> None:
    """See `SparkCatalog.merge`."""
    check_choices(matched, unmatched)
    given = _given_columns(df, rows.table.columns)
    keys = _key_columns([on] if isinstance(on, str) else list(on), rows.table.columns, given)
    aside = rows.write_aside(check_texts(df, given), given)
    try:
        _Merge(rows, aside, given, keys, matched, unmatched).run(mode)
    finally:
        rows.discard(aside)


class _Merge:
    """A merge of rows that were written to files."""

    def __init__(
        self,
        rows: Rows,
        aside: list[DataFile],
        given: tuple[Column, ...],
        keys: tuple[Column, ...],
        matched: Matched,
        unmatched: Unmatched,
    ) -> None:
        self._rows = rows
        self._given = given
        self._keys = keys
        self._matched = matched
        self._unmatched = unmatched
        self._source = rows.read_back(aside, given)
        self._row_count = sum(file.row_count for file in aside)

    def run(self, mode: Mode | None) -> None:
        match = self._match()
        hits = self._rows.find_hits(match) if match.sought != FALSE else Hits()
        came: list[tuple[Staged, str]] = []
        if self._matched == "update" and hits.files:
            updated = self._rows.stage(self._updated_rows(hits))
            check_updated(hits, updated)
            came.append((updated, "update_postimage"))
        if self._unmatched == "insert":
            came.append((self._rows.stage(self._inserted_rows(hits)), "insert"))
        self._rows.change(
            ChangeMode.MERGE,
            match,
            hits if self._matched != "ignore" else Hits(),
            how=mode,
            went="update_preimage" if self._matched == "update" else "delete",
            came=came,
        )

    # -- keys

    def _names(self) -> list[str]:
        return [quoted(key.name) for key in self._keys]

    def _with_key(self) -> DataFrame:
        """Return the rows of the source that have a key, with no NULL in any part of it."""
        return self._source.where(" AND ".join(f"{name} IS NOT NULL" for name in self._names()))

    def _match(self) -> Match:
        """Return the match of the rows with a key of the source. Raises InvalidInput that names a duplicate key."""
        found = self._read_keys()
        if found is None:
            return self._match_by_join(self._bounds(), None)
        if not len(found[0]):
            return where_match(FALSE, self._rows.table.columns)
        exact = keys_predicate(self._keys, found)
        if not is_small(exact):
            return self._match_by_join(keys_range(self._keys, found), None)
        if isinstance(exact, Or):  # to compile so many comparisons would cost Spark more than a join
            return self._match_by_join(exact, exact)
        return where_match(exact, self._rows.table.columns)

    def _read_keys(self) -> list[pa.Array] | None:
        """Return each column of the keys, or None if there are more than KEYS_MAX keys. Raises InvalidInput that names
        a duplicate key."""
        if self._row_count > KEYS_MAX and self._count_keys() > KEYS_MAX:
            return None
        table = self._with_key().select(*self._names()).toArrow()
        found = [column.combine_chunks() for column in table.columns]
        KeyIndex(self._keys, found)  # refuses a duplicate key
        return found

    def _count_keys(self) -> int:
        """Return the number of keys. Raises InvalidInput that names a duplicate key."""
        grouped = self._with_key().groupBy(*self._names()).agg(f.count(f.lit(1)).alias(_COUNT))
        [(count, twice)] = grouped.agg(
            f.count(f.lit(1)), f.max(f.when(f.col(_COUNT) > 1, f.struct(*self._names())))
        ).collect()
        if twice is not None:
            key = ", ".join(f"{name}={str(value)[:80]!r}" for name, value in twice.asDict().items())
            raise InvalidInput(
                f"the key {key} occurs twice in the data to merge",
                kind="bad_data",
                hint="keep one row of each key, for example the newest",
            )
        return int(count)

    def _bounds(self) -> Predicate:
        """Return a predicate that is TRUE for the rows with a key of the source, and for others between them."""
        bounds = self._with_key().agg(
            *[
                end(name).alias(f"{place}_{end.__name__}")
                for place, name in enumerate(self._names())
                for end in (f.min, f.max)
            ]
        )
        ends = [column.combine_chunks() for column in bounds.toArrow().columns]
        return keys_range(
            self._keys, [pa.concat_arrays(ends[start : start + 2]) for start in range(0, len(ends), 2)]
        )

    def _match_by_join(self, sought: Predicate, predicate: Predicate | None) -> Match:
        """Return the match of the rows with a key of the source, found by joins with the source."""
        keys = self._with_key().select(
            *[f.col(name).alias(f"{_KEY}{place}") for place, name in enumerate(self._names())]
        )

        def choose(df: DataFrame, how: str) -> DataFrame:
            return df.join(keys, self._same_key(df, keys), how)

        return Match(
            sought=sought,
            chosen=functools.partial(choose, how="left_semi"),
            others=functools.partial(choose, how="left_anti"),
            predicate=predicate,
        )

    def _same_key(self, df: DataFrame, keys: DataFrame) -> SparkColumn:
        same = [df[name] == keys[f"{_KEY}{place}"] for place, name in enumerate(self._names())]
        return functools.reduce(lambda one, other: one & other, same)

    # -- rows

    def _updated_rows(self, hits: Hits) -> DataFrame:
        """Return the rows that match, with the source's values in the columns that the source has."""
        source = self._with_key().select(
            *[
                f.col(quoted(column.name)).alias(f"{_GIVEN}{place}")
                for place, column in enumerate(self._given)
            ]
        )
        places = {column.id: f"{_GIVEN}{place}" for place, column in enumerate(self._given)}
        old = self._rows.visible(hits.files)
        same = [old[quoted(key.name)] == source[places[key.id]] for key in self._keys]
        both = old.join(source, functools.reduce(lambda one, other: one & other, same))
        return both.select(
            *[
                f.col(places.get(column.id, quoted(column.name))).alias(column.name)
                for column in self._rows.table.columns
            ]
        )

    def _inserted_rows(self, hits: Hits) -> DataFrame:
        """Return the rows of the source that match no row. Columns that the source lacks get their default later."""
        if not hits.files:
            return self._source
        old = self._rows.visible(hits.files).select(
            *[f.col(name).alias(f"{_KEY}{place}") for place, name in enumerate(self._names())]
        )
        return self._source.join(old, self._same_key(self._source, old), "left_anti")


def _given_columns(df: DataFrame, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the table's columns that the data has."""
    by_name = {column.name.lower(): column for column in columns}
    found: list[Column] = []
    for name in df.columns:
        column = by_name.get(name.lower())
        if column is None or column in found:
            raise InvalidInput(
                f"column {name!r} {'appears twice' if column else 'is not in the table'}",
                kind="bad_data",
                hint=f"the table has {', '.join(column.name for column in columns)[:500]}",
            )
        found.append(column)
    return tuple(found)


def _key_columns(on: Sequence[str], columns: Sequence[Column], given: Sequence[Column]) -> tuple[Column, ...]:
    by_name = {column.name.lower(): column for column in columns}
    if not on or len({name.lower() for name in on}) != len(on):
        raise InvalidInput(
            f"on={list(on)!r} names no column, or a column twice",
            hint='name each key column once, as in on=["id"]',
        )
    for name in on:
        column = by_name.get(name.lower())
        if column is None:
            raise InvalidInput(
                f"the key {name!r} is not a column of the table",
                hint=f"the table has {', '.join(by_name)[:500]}",
            )
        if column.children():
            raise InvalidInput(
                f"the key {name!r} is of type {type_text(column)}, which cannot be compared",
                hint="use top-level columns of simple types as keys",
            )
        if column not in given:
            raise InvalidInput(f"the data to merge lacks the key column {name!r}", kind="bad_data")
    return tuple(by_name[name.lower()] for name in on)
