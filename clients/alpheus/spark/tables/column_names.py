"""Files read under the names that their columns have in them.

Spark finds columns by id. But it asks the statistics of a file by name, so that after a rename, or for a column with
the name of one that was dropped, it would pass over rows; and where it reads some fields of a struct alone, it has lost
the id of that, and takes one of another name for NULL. So a scan names columns as its files do, and its result is
rename_columns.
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
    """What columns are called in files of one schema. `taken`: all names, in lower case, by the id of the column that
    has them in it; 0: of none."""

    own: dict[int, str] = {}
    taken: dict[int, set[str]] = {}

    def of(self, columns: Iterable[Column], parent: int = 0) -> tuple[Column, ...]:
        """The columns as they are called there; those that are not there with names that no other has."""
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
        """Take in what a file has. List elements, keys and values are known by place alone."""
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
    """Of the file at `place`, which never changes. FileNotFoundError; Corrupt (`corrupt_manifest`), which calls it
    `path`."""
    names = ColumnNames({}, {})
    with open(place, "rb") as file:
        try:
            names.add(read_footer(file, path).schema.to_arrow_schema())
        except InvalidInput as error:
            raise Corrupt(error.message, kind="corrupt_manifest", path=path) from None
    return names


def rename_columns(df: DataFrame, schema: t.StructType) -> list[SparkColumn]:
    """The columns of a frame with the names of `schema`, which has the same ones, and with those in it."""
    selected = []
    for have, want in zip(df.schema.fields, schema.fields, strict=True):
        column = f.col(quoted(have.name))
        if have.dataType.simpleString() != want.dataType.simpleString():
            column = column.cast(want.dataType)
        selected.append(column.alias(want.name, metadata=want.metadata))
    return selected
