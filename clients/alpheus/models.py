"""What the client returns: frozen values, which msgspec writes as JSON.

Every result of a read carries the `version` that it was read at. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import pyarrow as pa

from alpheus.display import (
    Cells,
    Facts,
    ShownStruct,
    columns_table,
    count_text,
    size_text,
    some_of,
    time_text,
)
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import (
    Column,
    InputPosition,
    JobDeclaration,
    TableDef,
)
from alpheus_journal.tables.columns import decode_default, paths_of, python_value, schema_of_columns
from alpheus_journal.tables.partitions import partition_text, sort_text
from alpheus_journal.urls import shown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(millis: int) -> datetime:
    """The time of epoch milliseconds. Corrupt when no calendar holds it."""
    try:
        return EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        raise Corrupt(
            f"a version claims to be created at {millis} ms, outside all years", kind="corrupt_history"
        ) from None


# --- the catalog and its objects -------------------------------------------------------------------


class Info(ShownStruct, frozen=True, kw_only=True):
    """Which catalog this is, where it lies, how far it is."""

    catalog_id: str
    url: str  # how this client reaches it
    storage_url: str  # never holds secrets
    version: int  # the head
    oldest_version: int
    token: str  # of the head
    version_digits: int
    order: int
    properties: dict[str, str]
    software_version: str  # of what answers: the daemon, or this library
    unverified_since: datetime | None = None
    """Since when a daemon that started from a checkpoint answers before it was compared whole with the tree; None: it
    was. Commits rest on the tree meanwhile."""
    head_ahead: timedelta = timedelta()
    """By so much the head's time is in the future of the clock of what answers: a clock is, or was, wrong. Zero: it is
    not, or within a minute."""

    def _title(self) -> str:
        return f"{self.catalog_id} at version {self.version} of {shown(self.storage_url)}"


class VersionInfo(ShownStruct, frozen=True, kw_only=True):
    """A version: when it was created, and the token from which events can be resumed after it."""

    version: int
    created_at: datetime
    token: str

    def _title(self) -> str:
        return f"{self.version} of {time_text(self.created_at)}"


class NamespaceName(ShownStruct, frozen=True, kw_only=True):
    name: str
    version: int

    def _title(self) -> str:
        return f"{self.name} at version {self.version}"


class TableName(ShownStruct, frozen=True, kw_only=True):
    namespace: str
    name: str
    version: int

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    def _title(self) -> str:
        return f"{self.full_name} at version {self.version}"


class ViewName(ShownStruct, frozen=True, kw_only=True):
    namespace: str
    name: str
    version: int

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    def _title(self) -> str:
        return f"{self.full_name} at version {self.version}"


class PipelineName(ShownStruct, frozen=True, kw_only=True):
    name: str
    version: int

    def _title(self) -> str:
        return f"{self.name} at version {self.version}"


class Namespace(ShownStruct, frozen=True, kw_only=True):
    name: str
    id: str
    properties: dict[str, str]
    version: int

    def _title(self) -> str:
        return f"{self.name} at version {self.version}"


class Table(ShownStruct, frozen=True, kw_only=True):
    """A table at one version. Of an "iceberg" one, rows and columns lie in its own metadata: counts are 0.

    `row_count` is that of the data files: so many rows the table has, or, unless `is_row_count_exact`, at most.
    """

    name: str  # without the namespace
    namespace: str
    id: str
    format: Literal["native", "iceberg"]
    properties: dict[str, str]
    columns: tuple[Column, ...]
    row_count: int
    file_count: int
    size_bytes: int  # of the data files, together
    version: int
    definition: TableDef

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def is_row_count_exact(self) -> bool:
        """False while delete predicates hide rows that are in the files still: how many, only a read tells
        (`scan(name).count()`), until the table is compacted."""
        return self.definition.native and not self.definition.delete_predicates

    @property
    def partition_by(self) -> tuple[str, ...]:
        """As `create_table` takes it; columns by the names that they have at this version."""
        return tuple(partition_text(field, self.columns) for field in self.definition.partition_spec)

    @property
    def sort_by(self) -> tuple[str, ...]:
        """As `partition_by`."""
        return tuple(sort_text(field, self.columns) for field in self.definition.sort_order)

    @property
    def defaults(self) -> dict[str, Any]:
        """What inserts give that leave a column out, by path."""
        return {
            path: python_value(column, decode_default(column, column.write_default))
            for path, column in paths_of(self.columns)
            if column.write_default is not None
        }

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a native table. InvalidInput (`not_native`) of another."""
        if self.format != "native":
            raise InvalidInput(
                f"table {self.full_name} keeps its schema in Iceberg metadata",
                kind="not_native",
                hint=f"read {self.definition.iceberg_metadata_location}",
            )
        return schema_of_columns(self.columns)

    def _title(self) -> str:
        columns = count_text(len(self.columns), "column")
        what = f"{columns}, {self._rows_told()} in {count_text(self.file_count, 'file')}"
        return (
            f"{self.full_name} at version {self.version}: {what if self.format == 'native' else self.format}"
        )

    def _rows_told(self) -> str:
        rows = count_text(self.row_count, "row")
        return rows if self.is_row_count_exact else f"at most {rows}"

    def _facts(self) -> Facts:
        native = self.format == "native"
        return [
            ("id", self.id),
            ("metadata", self.definition.iceberg_metadata_location),
            ("rows", self._rows_told() if native else ""),
            ("files", f"{self.file_count}, {size_text(self.size_bytes)}" if native else ""),
            ("partitions", self.partition_by),
            ("sorted by", self.sort_by),
            ("properties", self.properties),
        ]

    def _cells(self) -> Cells:
        return columns_table(self.columns)


class View(ShownStruct, frozen=True, kw_only=True):
    """A view at one version. One of another writer that is no SQL has an empty `dialect`. `references`: full names."""

    name: str  # without the namespace
    namespace: str
    id: str
    sql: str
    dialect: str
    properties: dict[str, str]
    version: int
    references: tuple[str, ...] = ()
    schema_binding: bool = False
    columns: tuple[Column, ...] = ()
    default_namespace: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    _hidden = ("columns",)

    def _title(self) -> str:
        return f"{self.full_name} at version {self.version}: {self.sql}"

    def _cells(self) -> Cells:
        return columns_table(self.columns) if self.columns else []


class Job(ShownStruct, frozen=True, kw_only=True):
    """The position of one job of a pipeline: all the state that it has. `called_at`: when the function of the run that
    committed last was called, by that process's clock; None: not known."""

    name: str
    last_transaction_id: str
    pinned_version: int
    inputs: dict[str, InputPosition]
    state: str  # running, parked
    error: str
    params: dict[str, str]
    called_at: datetime | None = None
    declaration: JobDeclaration | None = None
    """The tables that it was declared with when it ran last; None: an earlier release ran it."""

    def _title(self) -> str:
        return f"{self.name}: {self.state}, pinned {self.pinned_version}"


class Pipeline(ShownStruct, frozen=True, kw_only=True):
    name: str
    id: str
    jobs: dict[str, Job]
    version: int

    _hidden = ("jobs",)

    def _title(self) -> str:
        return f"{self.name} at version {self.version}: {some_of(list(self.jobs), 'jobs')}"

    def _cells(self) -> Cells:
        jobs = [
            (job.name, job.state, job.pinned_version, job.called_at, job.error) for job in self.jobs.values()
        ]
        return [("job", "state", "pinned", "called", "error"), *jobs]


class SubscriptionInfo(ShownStruct, frozen=True, kw_only=True):
    """A durable subscription. `names` holds patterns too. `position`: every event up to this version was acknowledged;
    None: none yet. `holder`: who has the turn; empty: nobody, as it was created or reset, or its consumer left.
    One that died stays until another takes over."""

    name: str
    id: str
    namespaces: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    actions: tuple[str, ...]
    details: bool
    lease_seconds: float
    holder: str
    epoch: int
    position: int | None
    created_at: datetime
    version: int

    def _title(self) -> str:
        return f"{self.name} at version {self.version}: acknowledged up to {self.position}"


# --- commits, the log, events ----------------------------------------------------------------------


class Commit(ShownStruct, frozen=True, kw_only=True):
    """What became of a transaction that is in the log at `version`.

    `duplicate`: an earlier send of the same transaction had committed; this is its answer. Where a single
    call found nothing to do (`exist_ok`, no rows to append), `version` is the one at which it saw that and
    `transaction_id` is empty.

    `rows_added`, `rows_removed`: what came and what went, an updated row being both. Rows that were appended, and rows
    that an update, delete, merge, or overwrite of some of them changed, are counted one by one, as the transaction saw
    them. Of whole tables (all rows overwritten; dropped, brought back, restored) these are the rows of the data files,
    deleted ones that are in them still included: so many at most. A compaction has neither.
    """

    version: int
    transaction_id: str
    created_at: datetime
    duplicate: bool = False
    rows_added: int = 0
    rows_removed: int = 0

    def _title(self) -> str:
        said = (
            f"version {self.version}, {count_text(self.rows_added, 'row')} added, {self.rows_removed} removed"
        )
        return f"{said}{', duplicate' if self.duplicate else ''}, {time_text(self.created_at)}"


class Outcome(ShownStruct, frozen=True, kw_only=True):
    """What is known of a transaction id. "unknown" never means not applied."""

    state: Literal["committed", "cancelled", "unknown"]
    commit: Commit | None = None

    def _title(self) -> str:
        return self.state if self.commit is None else f"{self.state}, {self.commit._title()}"


class Action(ShownStruct, frozen=True, kw_only=True):
    """One recorded fact of a transaction.

    `type` is the format's name of it ("TABLE_INSERT"), `kind` and `name` the object that it acted on ("table",
    "sales.orders"; the catalog's name is empty). `details`: the operation as it was asked, and the paths of the
    definition before and after.
    """

    type: str
    kind: str
    name: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def _title(self) -> str:
        return f"{self.type} {self.name}".rstrip()


class TransactionInfo(ShownStruct, frozen=True, kw_only=True):
    """A transaction as the log records it. A principal that is not authenticated is a claim of the writer."""

    id: str
    principal: str
    principal_authenticated: bool
    message: str
    properties: dict[str, str]
    isolation: Literal["snapshot", "serializable"]
    branch: str
    actions: tuple[Action, ...]
    reads: tuple[Action, ...] = ()  # of a serializable transaction: what it had read
    key: str = ""
    writer: tuple[str, int] | None = None

    _hidden = ("actions", "reads")

    def _title(self) -> str:
        said = f" ({self.message})" if self.message else ""
        return f"{self.id}: {some_of([action._title() for action in self.actions], 'actions')}{said}"

    def _cells(self) -> Cells:
        return [("action", "on", "name"), *((each.type, each.kind, each.name) for each in self.actions)]


class Change(ShownStruct, frozen=True, kw_only=True):
    """What a version changed in one object (the structural difference to the version before).

    `before` and `after` are its definition as a plain dict when details were asked for; None where the object
    did not exist, without details, and for kinds that this release cannot read (the paths are there always).
    """

    kind: str
    name: str
    type: Literal["created", "updated", "dropped"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    path_before: str = ""
    path_after: str = ""

    _hidden = ("before", "after")

    def _title(self) -> str:
        return " ".join(part for part in (self.kind, self.name, self.type) if part)


class Event(ShownStruct, frozen=True, kw_only=True):
    """One version: its transactions in order, and the changes that they made together. `token` resumes
    after it."""

    version: int
    created_at: datetime
    transactions: tuple[TransactionInfo, ...]
    changes: tuple[Change, ...]
    token: str

    _hidden = ("transactions", "changes")

    def _title(self) -> str:
        changes = some_of([change._title() for change in self.changes], "changes")
        return f"{self.version} of {time_text(self.created_at)}: {changes}"

    def _facts(self) -> Facts:
        return [
            *super()._facts(),
            ("by", [each.principal for each in self.transactions]),
            ("said", [each.message for each in self.transactions if each.message]),
        ]

    def _cells(self) -> Cells:
        return [("kind", "name", "change"), *((each.kind, each.name, each.type) for each in self.changes)]


class LogEntry(ShownStruct, frozen=True, kw_only=True):
    version: int
    created_at: datetime
    transaction: TransactionInfo

    _hidden = ("transaction",)

    def _title(self) -> str:
        return f"{self.version} of {time_text(self.created_at)}: {self.transaction._title()}"

    def _facts(self) -> Facts:
        return [*super()._facts(), *self.transaction._facts()]

    def _cells(self) -> Cells:
        return self.transaction._cells()


class Dropped(ShownStruct, frozen=True, kw_only=True):
    """An object that is not there any more. `name` is its full name; `version`, the last one at which it lived, is
    what `undrop` takes as `at`. The transaction id is empty for a version of another writer."""

    kind: str
    name: str
    version: int
    dropped_version: int
    dropped_at: datetime
    transaction_id: str
    principal: str

    def _title(self) -> str:
        return f"{self.kind} {self.name} at version {self.version}, dropped {time_text(self.dropped_at)}"


class Lease(ShownStruct, frozen=True, kw_only=True):
    """A reader's hold on a version, renewed while it reads. "over": it ran out, its reader is gone or late. "damaged":
    its file cannot be read, and `damage` says why; its version is -1. What it reaches is not collected before
    `binds_until`, of a damaged one nothing at all. Times are the store's."""

    id: str
    version: int
    holder: str
    state: Literal["held", "over", "damaged"]
    renewed_at: datetime
    runs_out_at: datetime
    binds_until: datetime
    damage: str = ""


class SavedTransaction(ShownStruct, frozen=True, kw_only=True):
    """A transaction that was saved for another process. Not `resumable`: another writer of the format saved it, or
    `damage` says why its file cannot be read; then nothing but the id is known."""

    id: str
    begin_version: int
    began_at: datetime
    expires_at: datetime
    operations: int
    message: str
    principal: str
    isolation: Literal["snapshot", "serializable"]
    resumable: bool
    damage: str = ""


class Finding(ShownStruct, frozen=True, kw_only=True):
    """One broken invariant; `kind` is an error kind."""

    kind: str
    message: str
    path: str = ""
    version: int | None = None


class Symbol(ShownStruct, frozen=True, order=True):
    """The name of a live object. `namespace`: of a table or view; empty for the other kinds."""

    kind: str
    namespace: str
    name: str


class SymbolsInfo(ShownStruct, frozen=True, kw_only=True):
    """The symbol list in memory: its version, how many names, how many came or went since its base was made."""

    version: int
    symbols: int
    journal_length: int
    compactions: int
    failures: int
    last_failure: str


class SymbolDrift(ShownStruct, frozen=True, kw_only=True):
    """What memory and the tree of a version said. `differences` counts all; of each sort a thousand are named at most.

    `missing`: in the tree, not in memory; `surplus`: the other way round; `changed`: with another definition.
    """

    version: int
    checked: int
    sampled: bool
    missing: tuple[Symbol, ...]
    surplus: tuple[Symbol, ...]
    changed: tuple[Symbol, ...]
    differences: int

    @property
    def ok(self) -> bool:
        return not self.differences


class Checkpoint(ShownStruct, frozen=True, kw_only=True):
    """A checkpoint on the catalog's storage. `deleted`: old ones that went."""

    version: int
    path: str
    objects: int
    size_bytes: int
    created_at: datetime
    deleted: int


class CheckReport(ShownStruct, frozen=True, kw_only=True):
    """What a check found, and how much it looked at. `files`: data files that were compared with their manifests.
    `given_up`: versions that repairs gave up, first and last of each range; that they are missing is no finding."""

    findings: tuple[Finding, ...]
    versions: int
    nodes: int
    definitions: int
    manifests: int
    files: int = 0
    given_up: tuple[tuple[int, int], ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    _hidden = ("findings",)

    def _title(self) -> str:
        found = "all is well" if self.ok else count_text(len(self.findings), "finding")
        return f"of {count_text(self.versions, 'version')}: {found}"

    def _cells(self) -> Cells:
        found = [(each.kind, each.path, each.version, each.message) for each in self.findings]
        return [("kind", "path", "version", "message"), *found]
