"""The names that columns have inside files, under which Spark has to read them.

Spark finds columns by id, with two exceptions. It looks up a file's statistics by name. So after a rename, or for a
column with the name of a dropped one, it would skip rows. And when it reads only some fields of a struct, it loses the
struct's id, and reads a struct with another name as NULL. So a scan names columns as its files do, and its result is
renamed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus.rows.file_reader import damaged_file
from alpheus.spark.files.schemas import quoted
from alpheus.sync.portal import run
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.model.definitions import Column
from alpheus_journal.storage import Storage
from alpheus_journal.tables.checksums import find_changed_footer
from alpheus_journal.tables.columns import field_id, is_list
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.parquet_guard import TAIL_SIZE_BYTES, footer_of_end, footer_size

FILES_KEPT_MAX = 200
_END_SIZE_BYTES = 64 << 10
"""Read first of a file's end. Few footers are larger."""


class Damaged(Corrupt):
    """A file is not the one that was committed. `lake.name_missing_files` adds which table and segment list it."""

    def __init__(self, file: DataFile, reason: str) -> None:
        told = damaged_file(file, reason)
        super().__init__(told.message, kind=told.kind, path=told.path, hint=told.hint)
        self.file = file
        self.reason = reason


class ColumnNames(msgspec.Struct, frozen=True):
    """The names of columns in files of one schema. `own` maps column ids to names. `taken` has all names in lower case,
    by the id of the column that contains them; 0 stands for the top level."""

    own: dict[int, str] = {}
    taken: dict[int, set[str]] = {}

    def of(self, columns: Iterable[Column], parent: int = 0) -> tuple[Column, ...]:
        """Return the columns under their names in the files. Columns that the files lack get unused names."""
        return tuple(
            msgspec.structs.replace(self._inside(column, column.id), name=self._name(column, parent))
            for column in columns
        )

    def _name(self, column: Column, parent: int) -> str:
        name = self.own.get(column.id, column.name)
        while column.id not in self.own and name.lower() in self.taken.get(parent, ()):
            name = f"_alpheus_{name}"
        return name

    def _inside(self, column: Column, parent: int) -> Column:
        return msgspec.structs.replace(
            column,
            fields=self.of(column.fields, parent),
            key=column.key and self._inside(column.key, parent),
            value=column.value and self._inside(column.value, parent),
            element=column.element and self._inside(column.element, parent),
        )

    def add(self, fields: Iterable[pa.Field], parent: int = 0) -> None:
        """Add the columns of a file. List elements, keys and values have no names of their own."""
        for field in fields:
            number = field_id(field)
            self.taken.setdefault(parent, set()).add(field.name.lower())
            if number is not None:
                self.own[number] = field.name
            self._add_type(field.type, parent if number is None else number)

    def _add_type(self, kind: pa.DataType, parent: int) -> None:
        if pa.types.is_struct(kind):
            self.add([kind.field(place) for place in range(kind.num_fields)], parent)
        elif pa.types.is_map(kind):
            self._add_type(kind.key_type, parent)
            self._add_type(kind.item_type, parent)
        elif is_list(kind):
            self._add_type(kind.value_type, parent)


_known: dict[str, ColumnNames] = {}
"""Names by a file's address, because files never change."""


def read_names(storage: Storage, file: DataFile) -> ColumnNames:
    """Return the names in a file. A file that is missing has none: Spark will find that it is missing. Raises Damaged,
    and Corrupt (`corrupt_manifest`)."""
    place = storage.uri(file.path)
    if place in _known:
        return _known[place]
    names = ColumnNames({}, {})
    try:
        names.add(read_footer_of(storage, file).schema.to_arrow_schema())
    except NotFound:
        return names
    except InvalidInput as error:
        raise Corrupt(error.message, kind="corrupt_manifest", path=file.path) from None
    while len(_known) >= FILES_KEPT_MAX:
        del _known[next(iter(_known))]
    _known[place] = names
    return names


def read_footer_of(storage: Storage, file: DataFile) -> pq.FileMetaData:
    """Return the footer of a file, mostly by one request. Raises NotFound, Damaged for another footer than was
    committed, and the errors of `parquet_guard`."""
    size = min(file.size_bytes, _END_SIZE_BYTES)

    async def read() -> bytes:
        end = await storage.read_part(file.path, start=file.size_bytes - size, size=size)
        wanted = footer_size(end[-TAIL_SIZE_BYTES:], file.size_bytes, file.path) + TAIL_SIZE_BYTES
        if wanted <= size:
            return end[-wanted:]
        return await storage.read_part(file.path, start=file.size_bytes - wanted, size=wanted)

    end = run(read())
    reason = find_changed_footer(file, end)
    if reason:
        raise Damaged(file, reason)
    return footer_of_end(end, file.path)


def rename_columns(df: DataFrame, schema: t.StructType) -> list[SparkColumn]:
    """Return the frame's columns under the names of `schema`, which has the same columns, names in structs included."""
    selected = []
    for have, want in zip(df.schema.fields, schema.fields, strict=True):
        column = f.col(quoted(have.name))
        if have.dataType.simpleString() != want.dataType.simpleString():
            column = column.cast(want.dataType)
        selected.append(column.alias(want.name, metadata=want.metadata))
    return selected
