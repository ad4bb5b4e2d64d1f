"""The columns of a frame, and the files that a task reads into them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from alpheus.feed.change_sets import CHANGE_COLUMNS, ChangeSet, check_column_names
from alpheus.feed.table_stream import Slice
from alpheus.models import Table, time_of
from alpheus.rows.file_reader import FileReader, read_data_file
from alpheus.rows.plan import Plan, PlannedFile
from alpheus.spark.files.schemas import spark_schema
from alpheus.spark.streams.frames import millis_of
from alpheus.spark.streams.options import Feed
from alpheus.sync.portal import run
from alpheus.transactions.row_changes import CHANGE_TYPE
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.predicate import Predicate
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import open_storage
from alpheus_journal.tables.data_file import DataFile

IN_UTC: dict[str, Any] = (  # which PySpark 4.1 has always, and takes no word about
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


PARTITION_FILES_MAX = 32


PARTITION_SIZE_BYTES = 64 << 20


_CHANGE_FIELDS = [
    t.StructField(CHANGE_COLUMNS[0], t.StringType()),
    t.StructField(CHANGE_COLUMNS[1], t.LongType()),
    t.StructField(CHANGE_COLUMNS[2], t.TimestampType()),
    t.StructField(CHANGE_COLUMNS[3], t.StringType()),
]


def feed_schema(table: Table, feed: Feed) -> t.StructType:
    schema = spark_schema(table.columns, nullable=True)
    if feed == "rows":
        return schema
    check_column_names(table.definition, "read the rows alone, or rename the column")
    return t.StructType([*schema.fields, *_CHANGE_FIELDS])


class Layout:
    """The columns of a frame. Turns batches from files into exactly these columns. May be pickled.

    Raises InvalidInput (`bad_schema`) that names a declared column which does not exist or has another type.
    """

    def __init__(self, table: Table, feed: Feed, declared: t.StructType) -> None:
        self._declared = declared.json()
        whole = {field.name: field for field in feed_schema(table, feed).fields}
        for field in declared.fields:
            have = whole.get(field.name)
            if have is None:
                raise InvalidInput(
                    f"there is no column {field.name!r}",
                    kind="bad_schema",
                    hint=f"the columns are {', '.join(whole)[:500]}",
                )
            if have.dataType != field.dataType:
                raise InvalidInput(
                    f"column {field.name!r} is declared {field.dataType.simpleString()} but has type"
                    f" {have.dataType.simpleString()}",
                    kind="bad_schema",
                )
        names = {field.name for field in declared.fields}
        # A column that is required now may be missing in older files.
        self.columns = tuple(_make_nullable(column) for column in table.columns if column.name in names)
        self.is_whole = len(self.columns) == len(table.columns)

    @cached_property
    def _arrow(self) -> pa.Schema:
        schema = t.StructType.fromJson(msgspec.json.decode(self._declared))
        return to_arrow_schema(schema, **IN_UTC)

    def batch(self, rows: pa.RecordBatch, label: _Label | None) -> pa.RecordBatch:
        arrays = []
        for field in self._arrow:
            place = rows.schema.get_field_index(field.name)
            if place < 0 and label is not None and field.name in CHANGE_COLUMNS:
                value = label.values[CHANGE_COLUMNS.index(field.name)]
                array = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            else:
                array = rows.column(place)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _make_nullable(column: Column) -> Column:
    return msgspec.structs.replace(
        column,
        nullable=True,
        fields=tuple(_make_nullable(field) for field in column.fields),
        value=None if column.value is None else _make_nullable(column.value),
        element=None if column.element is None else _make_nullable(column.element),
    )


class _Label(msgspec.Struct, frozen=True):
    """The values of `CHANGE_COLUMNS` for the rows of a file."""

    change_type: str | None  # None means that the file has it, for each row
    version: int
    millis: int
    transaction_id: str | None

    @property
    def values(self) -> tuple[Any, ...]:
        return (self.change_type, self.version, time_of(self.millis), self.transaction_id)


class _Task(msgspec.Struct, frozen=True):
    """A file that a task reads."""

    planned: PlannedFile
    chosen: Predicate | None
    label: _Label


class FilePart(InputPartition):
    """Files that one task reads."""

    def __init__(self, tasks: Sequence[_Task]) -> None:
        super().__init__(None)
        self.tasks = tuple(tasks)


def parts_of(slices: Iterable[Slice]) -> list[InputPartition]:
    """Distribute files over tasks of about equal work: many small files, or one large file."""
    parts: list[InputPartition] = []
    tasks: list[_Task] = []
    size = 0
    for each in slices:
        for file in each.source.files[each.start : each.stop]:
            if tasks and (size + file.size_bytes > PARTITION_SIZE_BYTES or len(tasks) == PARTITION_FILES_MAX):
                parts.append(FilePart(tasks))
                tasks, size = [], 0
            tasks.append(_make_task(each.source, file))
            size += file.size_bytes
    if tasks:
        parts.append(FilePart(tasks))
    return parts


def _make_task(source: ChangeSet, file: DataFile) -> _Task:
    # Without statistics: those of many columns would make up most of the task.
    slim = DataFile(
        path=file.path,
        row_count=file.row_count,
        size_bytes=file.size_bytes,
        crc32=file.crc32,
        footer_crc32=file.footer_crc32,
    )
    planned = PlannedFile(
        file=slim, sequence=0, predicates=source.hidden, is_filtered=source.chosen is not None
    )
    label = _Label(source.change_type, source.version, millis_of(source.created_at), source.transaction_id)
    return _Task(planned, source.chosen, label)


def read_part(
    part: InputPartition, storage_url: str, table: TableDef, layout: Layout
) -> Iterator[pa.RecordBatch]:
    """Read a part's rows, in a task. Where there is no part Spark passes one of its own, which has no rows."""
    if not isinstance(part, FilePart):
        return
    storage = open_storage(storage_url)
    roots = DataRoots(storage)
    try:
        for task in part.tasks:
            columns = layout.columns if task.label.change_type is not None else (*layout.columns, CHANGE_TYPE)
            plan = Plan(table=table, where=task.chosen, files=(), skipped=())
            data = run(read_data_file(roots.of(table.data_root), task.planned.file))
            for batch in FileReader(plan, columns).rows(data, task.planned):
                yield layout.batch(batch, task.label)
    finally:
        run(roots.close())
        run(storage.close())
