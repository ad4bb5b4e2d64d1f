"""`PinnedReader`: tables of one version as DataFrames and temporary views."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pyspark.sql import DataFrame

from alpheus.catalog import Snapshot
from alpheus.closing import Closing
from alpheus.models import Table
from alpheus.session.arguments import Name
from alpheus.spark.tables.lake import Lake, name_missing_files
from alpheus.spark.tables.scan import Where
from alpheus.spark.tables.schemas import quoted
from alpheus_journal.errors import InvalidInput


class PinnedReader(Closing):
    """The catalog at one version: two reads of it never see two versions.

    It holds a lease where the storage can be written: until `close` what the version needs is not collected, though
    the version itself may expire. A reader that stood still for longer than its lease raises Expired
    (`lease_expired`); a frame of it then fails when it runs and files are gone, and never gives other rows.
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
        """Whether it holds a lease, run out or not."""
        return self._snapshot.is_leased

    def has_lost_lease(self) -> bool:
        """Whether it held a lease that ran out; see `alpheus.Snapshot.has_lost_lease`."""
        return self._snapshot.has_lost_lease()

    def read(self, name: Name, where: Where | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """As `SparkCatalog.read`, at this version."""
        [table] = self._load([name])
        with name_missing_files(self._lake, lambda: table):
            return self._lake.frame(table.definition, columns, where)

    def temp_views(self, pattern: str, where: Where | None = None) -> list[str]:
        """A temporary view of each native table whose full name matches ("sales.*", `*` and `?` only), named
        as the table without its namespace: of the rows where `where` is TRUE. Returns the names. `close` drops them.

        InvalidInput, and nothing is made, when two tables would share a name.
        """
        namespace, dot, table = pattern.rpartition(".")
        if not dot:
            raise InvalidInput(f"{pattern!r} has no namespace", kind="bad_name", hint='for example "sales.*"')
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
                    f"{other.full_name} and {found.full_name} would be one view",
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
        """Drop the views and give the lease up; further reads are refused. DataFrames taken before stay as they are,
        for as long as the version is kept. Idempotent."""
        self._closed = True
        try:
            while self._views:
                self._lake.spark.catalog.dropTempView(self._views.pop())
        finally:
            self._snapshot.close()

    def _load(self, names: Sequence[Name]) -> list[Table]:
        self._check_open()
        return self._snapshot.load_tables(names)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the reader of version {self.version} was closed", hint="make a new one")


def _plain_brackets(pattern: str) -> str:
    return pattern.replace("[", "[[]")
