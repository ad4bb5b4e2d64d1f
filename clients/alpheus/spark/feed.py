"""What became of tables between two versions: the recorded actions in order, and their rows (FORMAT.md, "Feeds").

An append brings in the files of its segments; an overwrite takes out every file that the table had just before
it, and brings in its own; a restore does so with the files that the table then has. Nothing is netted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from alpheus.catalog import Catalog
from alpheus.models import Action, Event
from alpheus.spark import files
from alpheus.spark.catalog import SparkCatalog
from alpheus.spark.schemas import quoted
from alpheus.sync import run
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.manifest import DataFile
from alpheus_journal.objects import Segment, TableDef, decode_definition

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_transaction_id")
GROUPS_IN_UNION_MAX = 8
"""Up to so many changes are a union with literals; more are one scan joined with their labels."""

_ROWS_KEPT = frozenset(
    {
        "TABLE_CREATE", "TABLE_DROP", "TABLE_ALTER", "TABLE_ALTER_ADD_COLUMNS", "TABLE_ALTER_REMOVE_COLUMNS",
        "TABLE_EXISTS", "TABLE_DESCRIBE", "TABLE_SELECT",
    }
)  # fmt: skip


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """One action that changed the rows of a table. `path_before`: the table's definition before it. `path_after`, of a
    restore: the definition whose segments came in."""

    version: int
    created_at: datetime
    transaction_id: str
    type: Literal["append", "overwrite"]
    segments: tuple[Segment, ...]
    path_before: str
    path_after: str = ""


def row_changes(catalog: Catalog, names: Iterable[str], after: int, until: int) -> dict[str, list[RowChange]]:
    """Per table ("namespace.name"), what changed its rows in (after, until], in order.

    Raises InvalidInput (`not_supported`) for a version that changed one in a way that left no readable action,
    Expired when history in between is gone.
    """
    found: dict[str, list[RowChange]] = {name: [] for name in names}
    if not found:
        return found
    with catalog.events(after=after, until=until, names=sorted(found)) as events:
        for event in events:
            _collect(event, found)
    return found


def _collect(event: Event, found: dict[str, list[RowChange]]) -> None:
    explained: set[str] = set()
    for transaction in event.transactions:
        for action in transaction.actions:
            if action.kind == "table" and action.name in found:
                explained.add(action.name)
                change = _row_change(event, transaction.id, action)
                if change is not None:
                    found[action.name].append(change)
            for effect in action.details.get("also", ()):
                if effect["kind"] != "table" or effect["name"] not in found:
                    continue
                if effect["type"] != "updated" or action.kind == "table":
                    raise _unreadable(event.version, effect["name"], f"by {action.type} {action.name}")
                # A view that binds to a table, or no longer does, is written into the table's definition.
                explained.add(effect["name"])
    for changed in event.changes:
        if changed.kind == "table" and changed.name in found and changed.name not in explained:
            raise _unreadable(event.version, changed.name, "without saying how")


def _row_change(event: Event, transaction_id: str, action: Action) -> RowChange | None:
    if action.type in _ROWS_KEPT:
        return None
    if action.type == "TABLE_RESTORE" and "path_after" in action.details:
        return RowChange(
            version=event.version,
            created_at=event.created_at,
            transaction_id=transaction_id,
            type="overwrite",
            segments=(),
            path_before=action.details.get("path_before", ""),
            path_after=action.details["path_after"],
        )
    if action.type not in ("TABLE_INSERT", "TABLE_OVERWRITE") or "segments" not in action.details:
        raise _unreadable(event.version, action.name, f"by {action.type}")
    return RowChange(
        version=event.version,
        created_at=event.created_at,
        transaction_id=transaction_id,
        type="append" if action.type == "TABLE_INSERT" else "overwrite",
        segments=msgspec.convert(action.details["segments"], tuple[Segment, ...]),
        path_before=action.details.get("path_before", ""),
    )


def _unreadable(version: int, name: str, how: str) -> InvalidInput:
    return InvalidInput(
        f"version {version} changed table {name} {how}, which this release cannot follow",
        kind="not_supported",
        version=version,
        hint="run the job with full_refresh",
    )


# --- rows ------------------------------------------------------------------------------------------


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Files that one action brought in or took out."""

    change_type: Literal["insert", "delete"]
    version: int
    created_at: datetime
    transaction_id: str | None
    files: list[DataFile]


def appended(lake: SparkCatalog, table: TableDef, changes: Sequence[RowChange]) -> DataFrame:
    """The rows that came in. InvalidInput (`bad_argument`) naming the version of an overwrite among the changes."""
    for change in changes:
        if change.type == "overwrite":
            raise InvalidInput(
                f"version {change.version} overwrote the table, so what was appended before it is gone again",
                version=change.version,
                hint="declare the input with changes(...), or run the job with full_refresh",
            )
    segments = [segment for change in changes for segment in change.segments]
    return _scan(lake, table, lake.lists.of(table.id, segments))


def changed(lake: SparkCatalog, table: TableDef, changes: Sequence[RowChange]) -> DataFrame:
    """The rows that came in and went out, with `CHANGE_COLUMNS`."""
    groups: list[_Group] = []
    for change in changes:
        parts: list[tuple[Literal["insert", "delete"], list[DataFile]]] = []
        if change.type == "overwrite":
            parts.append(("delete", lake.lists.of(table.id, _segments_at(lake, change.path_before))))
        came = _segments_at(lake, change.path_after) if change.path_after else change.segments
        parts.append(("insert", lake.lists.of(table.id, came)))
        groups.extend(
            _Group(
                change_type=change_type,
                version=change.version,
                created_at=change.created_at,
                transaction_id=change.transaction_id,
                files=found,
            )
            for change_type, found in parts
            if found
        )
    return _labelled(lake, table, groups)


def everything(lake: SparkCatalog, table: TableDef, version: int, created_at: datetime) -> DataFrame:
    """All rows of the table as inserts of `version`, with `CHANGE_COLUMNS`."""
    group = _Group(
        change_type="insert",
        version=version,
        created_at=created_at,
        transaction_id=None,
        files=lake.lists.of(table.id, table.segments),
    )
    return _labelled(lake, table, [group])


def _segments_at(lake: SparkCatalog, pointer: str) -> tuple[Segment, ...]:
    """What the table of a definition held."""
    path = fmt.check_definition_pointer(pointer, Kind.TABLE)
    data = run(lake.storage.read(path, size_max=fmt.DEFINITION_SIZE_BYTES_MAX))
    definition = decode_definition(Kind.TABLE, data, path)
    assert isinstance(definition, TableDef)
    return definition.segments


def _scan(lake: SparkCatalog, table: TableDef, found: Sequence[DataFile]) -> DataFrame:
    files.check_session(lake.spark)
    return files.scan(lake.spark, lake.storage, table.columns, found)


def _labelled(lake: SparkCatalog, table: TableDef, groups: Sequence[_Group]) -> DataFrame:
    for column in table.columns:
        if column.name.lower() in CHANGE_COLUMNS:
            raise InvalidInput(
                f"the table has a column {column.name!r}, which is a name of the change feed",
                kind="bad_schema",
                hint="read it with appends(...) or table(...)",
            )
    if not groups:
        groups = [_Group(change_type="insert", version=0, created_at=_EPOCH, transaction_id=None, files=[])]
    if len(groups) <= GROUPS_IN_UNION_MAX:
        frames = [_with_literals(_scan(lake, table, group.files), group) for group in groups]
    else:
        frames = [
            _joined(lake, table, [group for group in groups if group.change_type == change_type])
            for change_type in ("insert", "delete")
            if any(group.change_type == change_type for group in groups)
        ]
    result = frames[0]
    for frame in frames[1:]:
        result = result.union(frame)
    return result


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _millis(moment: datetime) -> int:
    return round((moment - _EPOCH).total_seconds() * 1000)


def _with_literals(df: DataFrame, group: _Group) -> DataFrame:
    values: list[SparkColumn] = [
        f.lit(group.change_type),
        f.lit(group.version).cast("bigint"),
        f.timestamp_millis(f.lit(_millis(group.created_at)).cast("bigint")),
        f.lit(group.transaction_id).cast("string"),
    ]
    return df.withColumns(dict(zip(CHANGE_COLUMNS, values, strict=True)))


def _joined(lake: SparkCatalog, table: TableDef, groups: Sequence[_Group]) -> DataFrame:
    """One scan over the files of many groups of one type; a file is in one of them only."""
    found = [file for group in groups for file in group.files]
    labels = lake.spark.createDataFrame(
        [
            (file.path, group.version, _millis(group.created_at), group.transaction_id)
            for group in groups
            for file in group.files
        ],
        "_alpheus_file string, _version bigint, _millis bigint, _transaction string",
    )
    names = [column.name for column in table.columns]
    # The last five parts of a file's address are its path below the prefix.
    df = _scan(lake, table, found).select(
        "*", f.substring_index("_metadata.file_path", "/", -5).alias("_alpheus_file")
    )
    lost = f.raise_error(f.concat(f.lit("a file that was not asked for was read: "), f.col("_alpheus_file")))
    return df.join(f.broadcast(labels), "_alpheus_file", "left").select(
        *[f.col(quoted(name)) for name in names],
        f.lit(groups[0].change_type).alias(CHANGE_COLUMNS[0]),
        f.coalesce("_version", lost.cast("bigint")).alias(CHANGE_COLUMNS[1]),
        f.timestamp_millis("_millis").alias(CHANGE_COLUMNS[2]),
        f.col("_transaction").alias(CHANGE_COLUMNS[3]),
    )
