"""`Lake`: a Spark session, a catalog and its storage. Feeds, readers and transactions need nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from alpheus.catalog import Catalog, starts_of
from alpheus.models import Table
from alpheus.rows.file_reader import damaged_file
from alpheus.rows.manifest_files import FileLists, Made
from alpheus.rows.scan import choose_columns
from alpheus.session.arguments import words
from alpheus.spark.files import file_scan, store_errors
from alpheus.spark.files.column_names import Damaged
from alpheus.spark.files.locations import set_up_store
from alpheus.spark.files.schemas import quoted
from alpheus.spark.tables import scan
from alpheus.spark.tables.scan import Where
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.table_starts import files_expired
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile


class Lake:
    """Gives Spark access to the native tables of a catalog. `lists` holds the files of their manifest segments."""

    spark: SparkSession
    catalog: Catalog
    storage: Storage
    roots: DataRoots
    lists: FileLists

    def store_of(self, table: TableDef) -> Storage:
        """Return the store of a table's data files, and tell Spark how to reach it. Raises what `set_up_store` does."""
        store = self.roots.of(table.data_root)
        if table.data_root:
            set_up_store(self.spark, store)
        return store

    def frame(
        self,
        table: TableDef,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        made: Made | None = None,
    ) -> DataFrame:
        """Return the rows of a table as `table` defines it. `made`: see `FileLists.of`."""
        require_native(table)
        wanted = None if columns is None else choose_columns(table, words("columns", columns))
        file_scan.check_session(self.spark)
        df = scan.rows_of(self.spark, self.store_of(table), scan.plan_of(self.lists, table, where, made))
        return df if wanted is None else df.select(*[quoted(column.name) for column in wanted])


def require_native(table: TableDef) -> TableDef:
    """Return the table. Raises InvalidInput (`not_native`) for an Iceberg table."""
    if not table.native:
        raise InvalidInput(
            "the table is an Iceberg table",
            kind="not_native",
            hint=f"read it through Iceberg, with the metadata {table.iceberg_metadata_location}",
        )
    return table


@contextmanager
def name_missing_files(lake: Lake, table: Callable[[], Table] | None = None) -> Iterator[None]:
    """Raise Corrupt (`corrupt_manifest`) where a data file is missing or was replaced, with the file and the segment
    that lists it. `table` returns the table that the file probably belongs to; if it does, the error names that
    table.

    Where the store refuses a request of Spark, or cannot be reached, the errors of `store_errors.error_of` replace
    Spark's.
    """
    try:
        yield
    except Damaged as error:
        file, reason, cause = error.file, error.reason, None
    except (PySparkException, Py4JJavaError) as error:
        told = str(error)
        path = next(filter(None, (file_scan.find_missing(store, told) for store in lake.roots.all())), "")
        if not path:
            refused = [store_errors.error_of(store, told) for store in lake.roots.all()]
            first = next(filter(None, refused), None)
            if first is None:
                raise
            raise first from error
        file, reason, cause = DataFile(path=path, row_count=0, size_bytes=0), "is missing", error
    else:
        return
    _check_kept(lake, table, file.path)
    segment = lake.lists.segment_of(file.path)
    raise damaged_file(file, reason, table=_name_of(table, file.path), segment=segment) from cause


def _check_kept(lake: Lake, table: Callable[[], Table] | None, path: str) -> None:
    """Raise Expired (`files_expired`) where a collection has taken the file of a table at an older version."""
    with contextlib.suppress(AlpheusError):
        found = None if table is None else table()
        start = 0 if found is None else starts_of(lake.catalog).get(found.id, 0)
        if found is not None and f"/{found.id}/" in path and found.version < start:
            expired = files_expired(found.full_name, found.version, start)
        else:
            return
    raise expired


def _name_of(table: Callable[[], Table] | None, path: str) -> str:
    """Return the table's full name if the file belongs to it, else ""."""
    try:
        found = None if table is None else table()
    except AlpheusError:
        return ""
    return found.full_name if found is not None and f"/{found.id}/" in path else ""
