"""`PinnedReader`: tables of one version as DataFrames and temporary views."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pyspark.sql import DataFrame

from alpheus.catalog import Catalog, Snapshot, check_rows
from alpheus.closing import Closing
from alpheus.models import Table
from alpheus.session.arguments import Name, When, parse_when
from alpheus.spark.files.schemas import quoted
from alpheus.spark.tables.lake import Lake, name_missing_files
from alpheus.spark.tables.scan import Where
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.model.answers import Tag


def open_version(catalog: Catalog, version: int, at: When, *, lease: bool | float | None = False) -> Snapshot:
    """Open a version that was found at `at`. A tag that still names the version serves it, also once the version has
    expired. Raises Expired where no tag does."""
    if isinstance(parse_when(at), Tag):
        with contextlib.suppress(NotFound):
            snapshot = catalog.at(at, lease=lease)
            if snapshot.version == version:
                return snapshot
            snapshot.close()
    return catalog.at(version, lease=lease)


class PinnedReader(Closing):
    """The catalog at one version: all reads see the same version.

    The reader holds a lease where the storage can be written. Until `close`, files that the version needs are not
    collected, though the version itself may expire. If the process was suspended for longer than the lease, the reader
    raises Expired (`lease_expired`), and a frame of it fails when it runs and files have been deleted. It never returns
    other rows.
    """

    def __init__(self, lake: Lake, snapshot: Snapshot) -> None:
        self._lake = lake
        self._snapshot = snapshot
        self._views: list[str] = []
        self._closed = False

    @property
    def version(self) -> int:
        return self._snapshot.version

    @property
    def is_leased(self) -> bool:
        """Whether the reader took a lease, expired or not."""
        return self._snapshot.is_leased

    def has_lost_lease(self) -> bool:
        """Return whether the reader's lease expired; see `alpheus.Snapshot.has_lost_lease`."""
        return self._snapshot.has_lost_lease()

    def read(self, name: Name, where: Where | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """Return what `SparkCatalog.read` does, at this version."""
        [table] = self._load([name])
        with name_missing_files(self._lake, lambda: table):
            return self._lake.frame(table.definition, columns, where)

    def temp_views(self, pattern: str, where: Where | None = None) -> list[str]:
        """Make a temporary view of each native table whose full name matches, and return the names of the views.

        `pattern` takes `*` and `?`, as in "sales.*". A view has the table's name without its namespace, and the rows
        for which `where` is TRUE. `close` drops the views. When two tables would share a view's name, this raises
        InvalidInput and makes no view.
        """
        namespace, dot, table = pattern.rpartition(".")
        if not dot:
            raise InvalidInput(
                f"{pattern!r} has no namespace", kind="bad_name", hint='give one, for example "sales.*"'
            )
        self._check_open()
        names = [
            (found.namespace, found.name)
            for space in self._snapshot.list_namespaces()
            if fnmatchcase(space.name, _plain_brackets(namespace))
            for found in self._snapshot.list_tables(space.name)
            if fnmatchcase(found.name, _plain_brackets(table))
        ]
        tables: dict[str, Table] = {}
        for found in self._load(names):
            if found.format != "native":
                continue
            other = tables.setdefault(found.name.lower(), found)
            if other is not found:
                raise InvalidInput(
                    f"{other.full_name} and {found.full_name} would both be the view {found.name}",
                    kind="bad_name",
                    hint="name one namespace, or use read",
                )
        for found in tables.values():
            self._view(found, where)
        return [found.name for found in tables.values()]

    def _view(self, table: Table, where: Where | None) -> None:
        with name_missing_files(self._lake, lambda: table):
            self._lake.frame(table.definition, where=where).createOrReplaceTempView(quoted(table.name))
        self._views.append(table.name)

    def close(self) -> None:
        """Drop the views, give up the lease, and refuse further reads. DataFrames made before keep working as long as
        the version is kept. Idempotent."""
        self._closed = True
        try:
            while self._views:
                self._lake.spark.catalog.dropTempView(self._views.pop())
        finally:
            self._snapshot.close()

    def _load(self, names: Sequence[Name]) -> list[Table]:
        self._check_open()
        tables = self._snapshot.load_tables(names)
        check_rows(self._snapshot, tables)
        return tables

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the reader of version {self.version} was closed", hint="open a new reader")


def _plain_brackets(pattern: str) -> str:
    return pattern.replace("[", "[[]")
