"""The names that columns have inside files, under which Spark has to read them.

Spark finds columns by id, with two exceptions. It looks up a file's statistics by name. So after a rename, or for a
column with the name of a dropped one, it would skip rows. And when it reads only some fields of a struct, it loses the
struct's id, and reads a struct with another name as NULL. So a scan names columns as its files do, and its result is
renamed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus.spark.tables.schemas import quoted
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import Column
from alpheus_journal.tables.columns import field_id, is_list
from alpheus_journal.tables.parquet_guard import read_footer

FILES_KEPT_MAX = 200


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


@functools.lru_cache(maxsize=FILES_KEPT_MAX)
def read_names(place: str, path: str) -> ColumnNames:
    """Return the names in the file at `place`, which never changes. Raises FileNotFoundError, and Corrupt
    (`corrupt_manifest`), which calls the file `path`."""
    names = ColumnNames({}, {})
    with open(place, "rb") as file:
        try:
            names.add(read_footer(file, path).schema.to_arrow_schema())
        except InvalidInput as error:
            raise Corrupt(error.message, kind="corrupt_manifest", path=path) from None
    return names


def rename_columns(df: DataFrame, schema: t.StructType) -> list[SparkColumn]:
    """Return the frame's columns under the names of `schema`, which has the same columns, names in structs included."""
    selected = []
    for have, want in zip(df.schema.fields, schema.fields, strict=True):
        column = f.col(quoted(have.name))
        if have.dataType.simpleString() != want.dataType.simpleString():
            column = column.cast(want.dataType)
        selected.append(column.alias(want.name, metadata=want.metadata))
    return selected
