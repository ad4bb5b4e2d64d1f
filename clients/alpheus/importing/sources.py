"""Where rows come from: what a source is."""

from __future__ import annotations

import abc
import re
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

FOOTERS_AT_ONCE = 8
GLOB = re.compile(r"[*?\[]")


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a source. `stamp` and `size` change when it does; `rows` is what the source itself says that it gives,
    without those that it deleted."""

    name: str
    size: int
    stamp: str
    rows: int


class Source(abc.ABC):
    """A table somewhere else, as it is at one moment. Its files stay the same, or are refused."""

    format: str
    location: str
    """Where it is, and `version` which state of it: with both it is opened again."""
    version: str = ""
    schema: pa.Schema
    """Of the rows of all files, with types that a native table holds (`schemas.table_schema`)."""
    partition_by: tuple[str, ...] = ()
    """The source's own partitions, as far as a native table has such: texts as of `create_table`."""
    files: tuple[SourceFile, ...]

    @abc.abstractmethod
    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file, columns named as in `schema`; types may still be narrower, columns be left out.

        Raises InvalidInput naming the file (`source_changed` when it is not what it was), Unavailable.
        """


def with_constants(batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """`batch` with a column more for each of `constants`."""
    if not constants:
        return batch
    arrays = [*batch.columns, *(pa.repeat(value, batch.num_rows) for value in constants.values())]
    fields = [*batch.schema, *(pa.field(name, value.type) for name, value in constants.items())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
