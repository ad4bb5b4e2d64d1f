"""Changed rows as DataFrames: change sets read by Spark's Parquet reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from alpheus.catalog import starts_of
from alpheus.feed.change_sets import (
    CHANGE_COLUMNS,
    ChangeReader,
    ChangeSet,
    check_column_names,
    refuse_removals,
)
from alpheus.feed.log import follow
from alpheus.feed.table_range import range_of
from alpheus.feed.trail import RowChange
from alpheus.session.arguments import Name, When
from alpheus.spark.files import file_scan
from alpheus.spark.files.schemas import quoted
from alpheus.spark.tables import scan
from alpheus.spark.tables.lake import Lake, name_missing_files
from alpheus.transactions.row_changes import CHANGE_TYPE
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.tables.data_file import DataFile

GROUPS_IN_UNION_MAX = 8
"""Up to this number, change sets are read as a union of scans with literals. More are one scan, joined with labels."""


def inserted_rows(lake: Lake, table: TableDef, changes: Sequence[RowChange]) -> DataFrame:
    """Return the inserted rows. Raises InvalidInput (`bad_argument`) that names a version which removed rows."""
    sets = _sets(lake, table, changes)
    refuse_removals(sets, "declare the input with changes(...), or run the job with full_refresh")
    plain = [file for each in sets if each.is_whole for file in each.files]
    df = _scan(lake, table, table.columns, plain)
    for each in sets:
        if not each.is_whole:
            df = df.union(_scan(lake, table, table.columns, each.files, each))
    return df


def changed_rows(lake: Lake, table: TableDef, changes: Sequence[RowChange]) -> DataFrame:
    """Return the inserted and deleted rows, with `CHANGE_COLUMNS`."""
    return _label_sets(lake, table, _sets(lake, table, changes))


def all_as_inserts(lake: Lake, table: TableDef, version: int, created_at: datetime) -> DataFrame:
    """Return all rows of the table as inserts of `version`, with `CHANGE_COLUMNS`."""
    return _label_sets(lake, table, _reader(lake, table).read_snapshot(table, version, created_at))


def changes_between(lake: Lake, name: Name, after: When, until: When) -> DataFrame:
    """Return what `SparkCatalog.changes` does."""
    asked = range_of(lake.catalog, name, after, until)
    steps = follow(lake.catalog, asked.start_trail(), asked.after, asked.until)
    found = [change for _, changes in steps for change in changes]
    with name_missing_files(lake, lambda: asked.table):
        return changed_rows(lake, asked.table.definition, found)


def _reader(lake: Lake, table: TableDef) -> ChangeReader:
    return ChangeReader(lake.storage, lake.lists, table.id, lambda: starts_of(lake.catalog))


def _sets(lake: Lake, table: TableDef, changes: Sequence[RowChange]) -> list[ChangeSet]:
    reader = _reader(lake, table)
    return [found for change in changes for found in reader.read(change)]


def _scan(
    lake: Lake,
    table: TableDef,
    columns: Sequence[Column],
    found: Sequence[DataFile],
    each: ChangeSet | None = None,
    label: str = "",
) -> DataFrame:
    """Return the rows of files; with `each`, only those of the change set. Its predicates may refer to columns that the
    table no longer has. `label`: see `file_scan.scan`."""
    file_scan.check_session(lake.spark)
    hidden, chosen = (each.hidden, each.chosen) if each is not None else ((), None)
    return scan.without_hidden(lake.spark, lake.store_of(table), columns, found, hidden, chosen, label=label)


def _label_sets(lake: Lake, table: TableDef, sets: Sequence[ChangeSet]) -> DataFrame:
    check_column_names(table, "read it with appends(...) or table(...)")
    if not sets:
        sets = [ChangeSet(change_type="insert", version=0, created_at=_EPOCH, transaction_id=None, files=())]
    if len(sets) <= GROUPS_IN_UNION_MAX:
        frames = [_with_literals(lake, table, each) for each in sets]
    else:
        frames = [_scan_with_labels(lake, table, members) for members in _group_alike(sets)]
    result = frames[0]
    for frame in frames[1:]:
        result = result.union(frame)
    return result


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def millis_of(moment: datetime) -> int:
    return round((moment - _EPOCH).total_seconds() * 1000)


def _columns(table: TableDef, each: ChangeSet) -> tuple[Column, ...]:
    return table.columns if each.change_type is not None else (*table.columns, CHANGE_TYPE)


def _with_literals(lake: Lake, table: TableDef, each: ChangeSet) -> DataFrame:
    df = _scan(lake, table, _columns(table, each), each.files, each)
    values: list[SparkColumn] = [
        f.lit(each.change_type) if each.change_type is not None else f.col(CHANGE_TYPE.name),
        f.lit(each.version).cast("bigint"),
        f.timestamp_millis(f.lit(millis_of(each.created_at)).cast("bigint")),
        f.lit(each.transaction_id).cast("string"),
    ]
    return df.select(
        *[f.col(quoted(column.name)) for column in table.columns],
        *[value.alias(name) for name, value in zip(CHANGE_COLUMNS, values, strict=True)],
    )


def _group_alike(sets: Sequence[ChangeSet]) -> Iterator[list[ChangeSet]]:
    """Group the sets into lists that can be read by one scan each: alike, and with no file twice. A file can be in
    several sets, because a restore may bring it back."""
    alike: dict[tuple[object, ...], list[tuple[list[ChangeSet], set[str]]]] = {}
    for each in sets:
        paths = {file.path for file in each.files}
        rounds = alike.setdefault((each.change_type, each.hidden, each.chosen), [])
        for members, known in rounds:
            if not known & paths:
                members.append(each)
                known |= paths
                break
        else:
            rounds.append(([each], paths))
    return (members for rounds in alike.values() for members, _ in rounds)


def _scan_with_labels(lake: Lake, table: TableDef, sets: Sequence[ChangeSet]) -> DataFrame:
    """Return one scan over the files of many alike sets, joined with the labels of the sets."""
    labels = lake.spark.createDataFrame(
        [
            (file.path, each.version, millis_of(each.created_at), each.transaction_id)
            for each in sets
            for file in each.files
        ],
        "_alpheus_file string, _version bigint, _millis bigint, _transaction string",
    )
    first = sets[0]
    found = [file for each in sets for file in each.files]
    df = _scan(lake, table, _columns(table, first), found, first, "_alpheus_file")
    lost = f.raise_error(
        f.concat(f.lit("Spark read a file that was not requested: "), f.col("_alpheus_file"))
    )
    change_type = f.lit(first.change_type) if first.change_type is not None else f.col(CHANGE_TYPE.name)
    return df.join(f.broadcast(labels), "_alpheus_file", "left").select(
        *[f.col(quoted(column.name)) for column in table.columns],
        change_type.alias(CHANGE_COLUMNS[0]),
        f.coalesce("_version", lost.cast("bigint")).alias(CHANGE_COLUMNS[1]),
        f.timestamp_millis("_millis").alias(CHANGE_COLUMNS[2]),
        f.col("_transaction").alias(CHANGE_COLUMNS[3]),
    )
