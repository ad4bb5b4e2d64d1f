"""The interface of a source of rows."""

from __future__ import annotations

import abc
import re
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

FOOTERS_AT_ONCE = 8
GLOB = re.compile(r"[*?\[]")


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a source. `stamp` and `size` change when the file changes. `rows` is the number of rows according to
    the source, without deleted rows."""

    name: str
    size: int
    stamp: str
    rows: int


class Source(abc.ABC):
    """A table outside the catalog, as of one moment. A file that changes later is refused."""

    format: str
    location: str
    """The place of the source. The place and `version`, the source's state, are enough to open the source again."""
    version: str = ""
    schema: pa.Schema
    """The schema of the rows of all files, with types of native tables (`schemas.table_schema`)."""
    partition_by: tuple[str, ...] = ()
    """The source's own partition keys, as far as native tables support them, as texts for `create_table`."""
    files: tuple[SourceFile, ...]

    @abc.abstractmethod
    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file. Columns are named as in `schema`; types may be narrower, and columns may be
        missing.

        Raise InvalidInput that names the file (`source_changed` if the file has changed), or Unavailable.
        """


def with_constants(batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """Return `batch` with one more column for each of `constants`."""
    if not constants:
        return batch
    arrays = [*batch.columns, *(pa.repeat(value, batch.num_rows) for value in constants.values())]
    fields = [*batch.schema, *(pa.field(name, value.type) for name, value in constants.items())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
