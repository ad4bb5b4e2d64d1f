"""Rows of a table's files as a DataFrame: planned on the driver, read by Spark's own Parquet reader.

Only the caller's arguments choose the files. The filters of Spark's planner do not, because the filter of one query
over a frame must not decide which files another query reads.

A delete predicate becomes `NOT coalesce(predicate, FALSE)` in the plan, which keeps rows where it is NULL. A predicate
may refer to a column that was dropped since. The scan then reads this column, too, and leaves it out of the result.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from alpheus.rows.manifest_files import FileLists, Made
from alpheus.rows.plan import FileAt, Plan, PlannedFile, decode_predicate, plan
from alpheus.spark.files import file_scan
from alpheus.spark.files.column_names import Damaged, read_footer_of
from alpheus.spark.files.schemas import quoted
from alpheus.where.conditions import as_predicate
from alpheus.where.engine_sql import spark_sql
from alpheus_journal.errors import NotFound
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.predicate import (
    Compare,
    In,
    Predicate,
    Value,
    columns_of,
    encode,
    leaf_paths,
    one_of,
    rebind,
)
from alpheus_journal.storage import Storage
from alpheus_journal.tables.columns import field_id
from alpheus_journal.tables.data_file import DataFile

GROUPS_MAX = 16
"""Files are grouped by the delete predicates that apply to them, one scan a group, and at most this number of scans: a
union of these costs little more than one scan.

If statistics lead to more groups, files are grouped by age alone. With more ages than this, the files without
predicates are one scan and all others another, whose rows are joined with their file's age. That costs three times as
much."""

Where = str | Predicate

_Groups = dict[tuple[int, ...], tuple[tuple[Predicate, ...], list[FileAt]]]
"""Files by the delete predicates that apply to their rows. The key is empty where none do."""
_FILE = "_alpheus_file"
_SEQUENCE = "_alpheus_sequence"


def plan_of(
    lists: FileLists,
    table: TableDef,
    where: Where | None = None,
    made: Made | None = None,
) -> Plan:
    """Return the plan of a read. `made`: see `FileLists.of`. Raises InvalidInput (`bad_predicate`) and Corrupt."""
    predicate = as_predicate(where, table.columns)
    return plan(table, lists.with_sequences(table.id, table.segments, made), predicate)


def rows_of(spark: SparkSession, storage: Storage, planned: Plan) -> DataFrame:
    """Return the rows of a plan, with all columns of its table.

    Without delete predicates this is one scan, however many files there are, and one more for each set of columns with
    a default that files lack.
    """
    df = visible_rows(spark, storage, planned.table, planned.files)
    if planned.where is not None and any(file.is_filtered for file in planned.files):
        df = df.where(condition(planned.where, planned.table.columns))
    return df


def condition(where: Predicate, columns: Sequence[Column]) -> str:
    """Return `where` as SQL that Spark evaluates on rows with these columns."""
    return spark_sql(rebind(where, columns), leaf_paths(columns))


def visible_rows(
    spark: SparkSession, storage: Storage, table: TableDef, chosen: Sequence[PlannedFile], label: str = ""
) -> DataFrame:
    """Return all rows of planned files that are not deleted. `label`: see `file_scan.scan`."""
    columns, number = table.columns, table.schema_id
    groups: _Groups = {}
    for each in chosen:
        # Compare by identity: equal predicates of one plan are the same object.
        key = tuple(map(id, each.predicates))
        groups.setdefault(key, (each.predicates, []))[1].append((each.file, each.sequence))
    if len(groups) > GROUPS_MAX:
        groups = _group_by_age(table, groups)
    if len(groups) <= GROUPS_MAX:
        frames = [
            without_hidden(
                spark,
                storage,
                columns,
                [file for file, _ in found],
                predicates,
                schema_id=number,
                label=label,
            )
            for predicates, found in groups.values()
        ]
    else:
        bare = [file for file, _ in groups.pop((), ((), []))[1]]
        frames = []
        if bare:
            frames.append(file_scan.scan(spark, storage, columns, bare, schema_id=number, label=label))
        frames.append(_scan_by_sequence(spark, storage, table, groups, label))
    if not frames:
        return file_scan.scan(spark, storage, columns, [], label=label)
    return functools.reduce(DataFrame.union, frames)


def without_hidden(
    spark: SparkSession,
    storage: Storage,
    columns: Sequence[Column],
    found: Sequence[DataFile],
    hidden: Sequence[Predicate] = (),
    chosen: Predicate | None = None,
    *,
    schema_id: int | None = None,
    label: str = "",
) -> DataFrame:
    """Return the rows of files for which no predicate of `hidden` is TRUE, and `chosen` is TRUE (None means all).

    The predicates may refer to columns that were dropped. `schema_id`, `label`: see `file_scan.scan`.
    """
    if not hidden and chosen is None:
        return file_scan.scan(spark, storage, columns, found, schema_id=schema_id, label=label)
    asked = (*hidden, *(() if chosen is None else (chosen,)))
    reading = _Reading(storage, columns, found, asked)
    df = file_scan.scan(spark, storage, reading.columns, found, schema_id=schema_id, label=label)
    if hidden:
        df = df.where(f"NOT ({reading.any_of(hidden)})")
    if chosen is not None:
        df = df.where(condition(chosen, reading.columns))
    return reading.drop_extra_columns(df, label)


def _used_predicates(table: TableDef, groups: _Groups) -> list[tuple[int, Predicate]]:
    """Return the delete predicates that apply to the groups, each with its sequence, the highest first."""
    asked = {encode(predicate) for predicates, _ in groups.values() for predicate in predicates}
    decided = [(one.sequence, decode_predicate(one.expression)) for one in table.delete_predicates]
    used = [(sequence, predicate) for sequence, predicate in decided if encode(predicate) in asked]
    return sorted(used, key=lambda each: -each[0])


def _group_by_age(table: TableDef, groups: _Groups) -> _Groups:
    """Merge groups: one group for all files of an age, to which the same predicates apply. Statistics, which may rule a
    predicate out for a file, are ignored."""
    used = _used_predicates(table, groups)
    bounds = [-sequence for sequence, _ in used]
    coarse: _Groups = {}
    for key, (_, found) in groups.items():
        for at in found:
            count = bisect_right(bounds, -at[1]) if key else 0
            place = (count,) if count else ()
            if place not in coarse:
                coarse[place] = (tuple(predicate for _, predicate in used[:count]), [])
            coarse[place][1].append(at)
    return coarse


def _scan_by_sequence(
    spark: SparkSession, storage: Storage, table: TableDef, groups: _Groups, label: str
) -> DataFrame:
    """Return all files as one scan, in which each predicate applies to the rows of files up to its sequence."""
    levels: dict[int, list[Predicate]] = {}
    used = _used_predicates(table, groups)
    for sequence, predicate in used:
        levels.setdefault(sequence, []).append(predicate)
    found = [at for _, some in groups.values() for at in some]
    data = [file for file, _ in found]
    reading = _Reading(storage, table.columns, data, [predicate for _, predicate in used])
    highest = max(sequence for _, sequence in found)
    terms = [
        reading.any_of(predicates)
        if level >= highest
        else f"({_SEQUENCE} <= {level}L AND ({reading.any_of(predicates)}))"
        for level, predicates in levels.items()
    ]
    shown = f"NOT ({' OR '.join(terms)})"
    labels = spark.createDataFrame(
        pa.table(
            {
                _FILE: pa.array([file.path for file in data], pa.string()),
                _SEQUENCE: pa.array([sequence for _, sequence in found], pa.int64()),
            }
        )
    )
    df = file_scan.scan(spark, storage, reading.columns, data, schema_id=table.schema_id, label=_FILE)
    lost = f.raise_error(f.concat(f.lit("Spark read a file that was not requested: "), f.col(_FILE)))
    df = df.join(f.broadcast(labels), _FILE, "left")
    df = df.withColumn(_SEQUENCE, f.coalesce(_SEQUENCE, lost.cast("bigint"))).where(shown)
    return reading.drop_extra_columns(df.withColumnRenamed(_FILE, label) if label else df, label)


def any_true(predicates: Iterable[Predicate], names: Mapping[int, str | tuple[str, ...]]) -> str:
    """Return a condition that is TRUE where one of the predicates is, and FALSE elsewhere. Predicates that list values
    of one column are combined, because Spark looks up a long IN by hash."""
    values: dict[int, list[Value]] = {}
    columns: dict[int, Column] = {}
    others: list[Predicate] = []
    for predicate in predicates:
        if isinstance(predicate, In):
            named: tuple[Value, ...] = predicate.values
        elif isinstance(predicate, Compare) and predicate.op in ("=", "<=>"):
            named = (predicate.value,)
        else:
            others.append(predicate)
            continue
        columns[predicate.column.id] = predicate.column
        values.setdefault(predicate.column.id, []).extend(named)
    others += [one_of(column, values[number]) for number, column in columns.items()]
    return " OR ".join(f"coalesce({spark_sql(other, names)}, FALSE)" for other in others)


class _Reading:
    """The columns to read so that predicates can be evaluated: those of the table, and dropped ones."""

    def __init__(
        self,
        storage: Storage,
        columns: Sequence[Column],
        found: Sequence[DataFile],
        predicates: Iterable[Predicate],
    ) -> None:
        self._plain = tuple(columns)
        self.columns = self._plain
        self._dropped: list[tuple[str, ...]] = []
        there = leaf_paths(columns)
        lost = {c.id: c for p in predicates for c in columns_of(p) if c.id not in there}
        for column in lost.values():
            self._add(column, _path_in_files(storage, found, column.id))
        self.names = leaf_paths(self.columns)

    def _add(self, column: Column, path: Sequence[int]) -> None:
        """Add a dropped column. `path` has the ids of the structs that contain it in files, outermost first."""
        leaf = msgspec.structs.replace(column, name=self._free(column.id), nullable=True)
        self.columns, names = self._with(self.columns, leaf, tuple(path))
        self._dropped.append(names)

    def _with(
        self, columns: tuple[Column, ...], leaf: Column, path: tuple[int, ...]
    ) -> tuple[tuple[Column, ...], tuple[str, ...]]:
        if not path:
            return (*columns, leaf), (leaf.name,)
        for place, column in enumerate(columns):
            if column.id == path[0]:
                fields, names = self._with(column.fields, leaf, path[1:])
                changed = msgspec.structs.replace(column, fields=fields)
                return (*columns[:place], changed, *columns[place + 1 :]), (column.name, *names)
        struct = Column(id=path[0], name=self._free(path[0]), type="STRUCT", nullable=True)
        fields, names = self._with((), leaf, path[1:])
        return (*columns, msgspec.structs.replace(struct, fields=fields)), (struct.name, *names)

    def _free(self, number: int) -> str:
        """Return a name that no column of the table has."""
        name = f"_alpheus_{number}"
        while any(column.name.lower() == name for column in self._plain):
            name = f"_{name}"
        return name

    def any_of(self, predicates: Iterable[Predicate]) -> str:
        return any_true([rebind(p, self.columns) for p in predicates], self.names)

    def drop_extra_columns(self, df: DataFrame, label: str) -> DataFrame:
        """Return the frame without the columns that were only read for predicates."""
        inside: dict[str, list[str]] = {}
        for first, *rest in self._dropped:
            if rest and any(column.name == first for column in self._plain):
                inside.setdefault(first, []).append(".".join(map(quoted, rest)))
        return df.select(
            *[
                f.col(quoted(column.name))
                .dropFields(*inside[column.name])
                .alias(column.name, metadata=df.schema[column.name].metadata)
                if column.name in inside
                else f.col(quoted(column.name))
                for column in self._plain
            ],
            *([label] if label else []),
        )


def _path_in_files(storage: Storage, found: Sequence[DataFile], number: int) -> tuple[int, ...]:
    """Return the ids of the structs that contain a column, from the footer of a file that has the column. A column
    never moves. Return nothing when no file has the column: then its place does not matter."""
    for file in found:
        if number in file.value_counts:
            file_scan.check_files(storage, [file])
            try:
                schema = read_footer_of(storage, file).schema.to_arrow_schema()
            except NotFound:
                raise Damaged(file, "is missing") from None
            return _path_to(schema, number) or ()
    return ()


def _path_to(fields: Iterable[pa.Field], number: int) -> tuple[int, ...] | None:
    for field in fields:
        own = field_id(field)
        if own == number:
            return ()
        if pa.types.is_struct(field.type) and own is not None:
            inside = _path_to([field.type.field(i) for i in range(field.type.num_fields)], number)
            if inside is not None:
                return (own, *inside)
    return None
