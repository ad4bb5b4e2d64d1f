"""The results of the client: frozen values, which msgspec writes as JSON.

Every result of a read carries the `version` at which it was read. Times are aware datetimes in UTC.
The module is long because it lists every result that a user can hold.
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
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.definitions import (
    Column,
    InputPosition,
    JobDeclaration,
    TableDef,
)
from alpheus_journal.tables.columns import decode_default, paths_of, python_value, schema_of_columns
from alpheus_journal.tables.partitions import partition_text, sort_text
from alpheus_journal.urls import redact_url

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(millis: int) -> datetime:
    """The time of epoch milliseconds. Raises Corrupt for a time outside the years 1 to 9999."""
    try:
        return EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        raise Corrupt(
            f"a version claims to be created at {millis} ms since 1970, outside the years 1 to 9999",
            kind="corrupt_history",
        ) from None


# --- the catalog and its objects -------------------------------------------------------------------


class Info(ShownStruct, frozen=True, kw_only=True):
    """The identity of a catalog, its location and its versions."""

    catalog_id: str
    url: str  # the one that this client connected to
    storage_url: str  # never holds secrets
    version: int  # the head
    oldest_version: int
    token: str  # of the head
    version_digits: int
    order: int
    properties: dict[str, str]
    software_version: str  # of the daemon or, without a daemon, of this library
    namespace_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT
    """The longest name of a namespace in UTF-8. The next two: of tables and of views."""
    table_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT
    view_name_bytes: int = fmt.NAME_SIZE_BYTES_DEFAULT
    txn_ttl: timedelta = timedelta(milliseconds=fmt.TXN_TTL_MILLIS_DEFAULT)
    """How long a saved transaction lasts from its begin."""
    isolation: str = "snapshot"
    """The isolation of transactions that name none: "snapshot" or "serializable"."""
    format_revision: int = 1
    """The revision of the format in which new versions are written."""
    unverified_since: datetime | None = None
    """When a daemon that started from a checkpoint began to answer without having compared the whole checkpoint with
    the tree. None means that the comparison is done. Until then commits rest on the tree."""
    head_ahead: timedelta = timedelta()
    """How far the head's time is ahead of the clock of the daemon or, without a daemon, of this process. More than zero
    means that a clock is, or was, wrong. A difference of up to a minute counts as zero."""
    table_starts: dict[str, int] = {}  # noqa: RUF012
    """The oldest version with the data files of a table, by table id. Tables without an entry have the data files of
    all kept versions."""

    @property
    def kept_versions(self) -> int:
        """The number of versions that can be read and whose events are in the log."""
        return self.version + 1 - self.oldest_version

    def _title(self) -> str:
        return f"{self.catalog_id} at version {self.version} of {redact_url(self.storage_url)}"


class Upgraded(ShownStruct, frozen=True, kw_only=True):
    """What an upgrade of a catalog did, or in a dry run would do."""

    before: int
    """The revision of the format before."""
    revision: int
    """The revision afterwards. Programs that do not know it refuse the catalog."""
    commit: Commit | None = None
    """The commit that upgraded. None when the catalog has the revision already, and in a dry run."""
    tag: str = ""
    """The tag of the last version in the revision before. Empty when there is nothing to upgrade."""

    def _title(self) -> str:
        return f"revision {self.before} to {self.revision}"


class Hold(ShownStruct, frozen=True, kw_only=True):
    """Who still needs the log from `version` on, and so keeps versions from expiring: a "subscription", a job of a
    "pipeline" (`name` is "pipeline.job"), a saved "transaction", or the `history.expire` properties of a "table" or a
    "namespace". With `let_go` it waited for too long: what it needs expires all the same."""

    kind: Literal["subscription", "pipeline", "transaction", "table", "namespace"]
    name: str
    version: int
    let_go: bool = False

    def _title(self) -> str:
        does = "is let go: it needs" if self.let_go else "needs"
        return f"{self.kind} {self.name} {does} version {self.version} and later"


class Expiry(ShownStruct, frozen=True, kw_only=True):
    """What an expiry of old versions did, or in a dry run would do.

    - `first_version`: the oldest kept version before; `oldest_version`: the oldest kept version afterwards.
    - `wanted_version`: the oldest version that would be kept if nobody held versions back.
    - `expired`: the number of versions that have expired; 0 in a dry run.
    - `holds`: who needs versions below `wanted_version`. Of tables and namespaces at most the 100 that reach back
      farthest.
    """

    dry_run: bool
    version: int  # the head
    first_version: int
    oldest_version: int
    wanted_version: int
    expired: int = 0
    holds: tuple[Hold, ...] = ()

    @property
    def planned(self) -> int:
        """The number of versions that expire, or would."""
        return self.oldest_version - self.first_version

    def _title(self) -> str:
        does = "would expire" if self.dry_run else "expired"
        kept = f"{self.oldest_version} to {self.version} are kept"
        if not self.planned:
            return f"nothing to expire; versions {kept}"
        return f"{count_text(self.planned, 'version')} {does}; {kept}"

    _hidden = ("holds",)

    def _cells(self) -> Cells:
        held = [(each.kind, each.name, each.version, "yes" if each.let_go else "") for each in self.holds]
        return [("held by", "name", "from version", "let go"), *held] if held else []


class FileTotals(ShownStruct, frozen=True, kw_only=True):
    """A number of files, and their bytes."""

    files: int = 0
    size_bytes: int = 0

    def _title(self) -> str:
        return f"{count_text(self.files, 'file')}, {size_text(self.size_bytes)}"


class UploadTotals(ShownStruct, frozen=True, kw_only=True):
    """Numbers of uploads in parts that were begun and have not ended. Nobody counts their bytes.

    - `abandoned`: those that nobody will end; `aborted`: those of them that are gone.
    - `kept`: old ones that leases of writers keep. `young`: those that are too young to judge, or have no time.
    - `skipped`: texts that say which uploads were not looked at or not aborted, and why.
    """

    abandoned: int = 0
    aborted: int = 0
    kept: int = 0
    young: int = 0
    skipped: tuple[str, ...] = ()

    def _title(self) -> str:
        return f"{count_text(self.aborted, 'open upload')} of {self.abandoned} abandoned aborted"


class EarlierFiles(ShownStruct, frozen=True, kw_only=True):
    """The data files of a table that go although kept versions below `start_version` list them, by the table's rules of
    history. Reads of the table at these versions raise Expired (`files_expired`)."""

    table: str
    table_id: str
    start_version: int
    files: FileTotals = FileTotals()

    def _title(self) -> str:
        return f"{self.files._title()} of {self.table} below version {self.start_version}"


class Collection(ShownStruct, frozen=True, kw_only=True):
    """What a collection of unreferenced files did, or in a dry run would do. Times are those of the store.

    - `cutoff`: only files that were written before this time were judged. `young` counts the others.
    - `fence_version`: the version that the collection committed. None when nothing could be deleted or aborted, and in
      a dry run.
    - `first_version`, `last_version`: the kept versions, whose files stay.
    - `unreferenced`, `deleted`: the files to delete, and those that are gone, by kind: data, manifest, definition,
      node, action, pin, lease, position, saved, scratch.
    - `kept_by`: the old files that stay, by what needs them: `versions`, then what only a `tag NAME` keeps, then
      `pins`, `leases`, `transactions`, `exports`. A file counts once, at the first that needs it. An entry
      `data root URL, …` without files says that this root was skipped, and why.
    - `uploads`: the open uploads, on stores that have such uploads.
    - `earlier`: the tables whose own rules let data files go before the versions that list them.
    """

    dry_run: bool
    cutoff: datetime
    fence_version: int | None
    first_version: int
    last_version: int
    unreferenced: dict[str, FileTotals]
    deleted: dict[str, FileTotals]
    kept_by: dict[str, FileTotals]
    young: FileTotals
    uploads: UploadTotals = UploadTotals()
    earlier: tuple[EarlierFiles, ...] = ()

    @property
    def unreferenced_total(self) -> FileTotals:
        return _add_up(self.unreferenced)

    @property
    def deleted_total(self) -> FileTotals:
        return _add_up(self.deleted)

    def _title(self) -> str:
        if self.dry_run:
            return f"{self.unreferenced_total._title()} would be deleted"
        return f"{self.deleted_total._title()} deleted"

    _hidden = ("unreferenced", "deleted", "kept_by", "young", "uploads", "earlier")

    def _cells(self) -> Cells:
        shown = self.unreferenced if self.dry_run else self.deleted
        what = "would be deleted" if self.dry_run else "deleted"
        gone = [(what, kind, each.files, size_text(each.size_bytes)) for kind, each in shown.items()]
        kept = [
            ("kept", f"by {by}", each.files, size_text(each.size_bytes)) for by, each in self.kept_by.items()
        ]
        count = self.uploads.abandoned if self.dry_run else self.uploads.aborted
        uploads = [("would be aborted" if self.dry_run else "aborted", "open uploads", count, "")]
        return [("", "files", "number", "size"), *gone, *kept, *(uploads if count else [])]


def _add_up(totals: dict[str, FileTotals]) -> FileTotals:
    return FileTotals(
        files=sum(each.files for each in totals.values()),
        size_bytes=sum(each.size_bytes for each in totals.values()),
    )


class VersionInfo(ShownStruct, frozen=True, kw_only=True):
    """A version, the time when it was created, and the token with which events after it can be resumed."""

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
    data_root: str = ""
    """The URL of the place of the data files of tables that are created in the namespace; empty: with the catalog."""

    def _title(self) -> str:
        return f"{self.name} at version {self.version}"


class Table(ShownStruct, frozen=True, kw_only=True):
    """A table at one version. An "iceberg" table keeps its rows and columns in its own metadata, so its counts are 0.

    `row_count` is the number of rows in the data files. Unless `is_row_count_exact`, the table has at most this number.
    """

    name: str  # without the namespace
    namespace: str
    id: str
    format: Literal["native", "iceberg"]
    properties: dict[str, str]
    columns: tuple[Column, ...]
    row_count: int
    file_count: int
    size_bytes: int  # of all data files together
    version: int
    definition: TableDef
    data_root: str = ""
    """The URL of the place where the data files lie; empty: with the catalog."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def is_row_count_exact(self) -> bool:
        """False while delete predicates hide rows that are still in the files. Until the table is compacted, only a
        read counts the visible rows (`scan(name).count()`)."""
        return self.definition.native and not self.definition.delete_predicates

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition fields in the form that `create_table` takes, with the column names of this version."""
        return tuple(partition_text(field, self.columns) for field in self.definition.partition_spec)

    @property
    def sort_by(self) -> tuple[str, ...]:
        """The sort fields in the form that `create_table` takes, with the column names of this version."""
        return tuple(sort_text(field, self.columns) for field in self.definition.sort_order)

    @property
    def defaults(self) -> dict[str, Any]:
        """The values that an insert gives to columns that it leaves out, by path."""
        return {
            path: python_value(column, decode_default(column, column.write_default))
            for path, column in paths_of(self.columns)
            if column.write_default is not None
        }

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a native table. Raises InvalidInput (`not_native`) for another table."""
        if self.format != "native":
            raise InvalidInput(
                f"table {self.full_name} keeps its schema in Iceberg metadata",
                kind="not_native",
                hint=f"read {self.definition.iceberg_metadata_location}",
            )
        return schema_of_columns(self.columns)

    def _title(self) -> str:
        columns = count_text(len(self.columns), "column")
        what = f"{columns}, {self._rows_text()} in {count_text(self.file_count, 'file')}"
        return (
            f"{self.full_name} at version {self.version}: {what if self.format == 'native' else self.format}"
        )

    def _rows_text(self) -> str:
        rows = count_text(self.row_count, "row")
        return rows if self.is_row_count_exact else f"at most {rows}"

    def _facts(self) -> Facts:
        native = self.format == "native"
        return [
            ("id", self.id),
            ("metadata", self.definition.iceberg_metadata_location),
            ("rows", self._rows_text() if native else ""),
            ("files", f"{self.file_count}, {size_text(self.size_bytes)}" if native else ""),
            ("partitions", self.partition_by),
            ("sorted by", self.sort_by),
            ("properties", self.properties),
        ]

    def _cells(self) -> Cells:
        return columns_table(self.columns)


class View(ShownStruct, frozen=True, kw_only=True):
    """A view at one version. `references` holds full names. `dialect` is empty for a view that another writer of the
    format made and that is not SQL."""

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
    """The position of one job of a pipeline, which is all the state of the job. `called_at` is the time, by the clock
    of the process that ran the job, when the last committed run called the job's function; None means unknown."""

    name: str
    last_transaction_id: str
    pinned_version: int
    inputs: dict[str, InputPosition]
    state: str  # running, parked
    error: str
    params: dict[str, str]
    called_at: datetime | None = None
    declaration: JobDeclaration | None = None
    """The tables with which the job was declared at its last run. None means that an earlier release ran it."""

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
    """A durable subscription. `names` holds patterns, too.

    - `position`: every event up to this version was acknowledged; None means that no event was.
    - `holder`: the active consumer. Empty after the subscription was created or reset, and after its consumer left.
      A consumer that died remains the holder until another one takes over.
    """

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


class Tag(ShownStruct, frozen=True, kw_only=True):
    """A name for a version (`catalog.tags`).

    - `version`, `version_created_at`: the version that the tag names, and the time when it was committed.
    - `creator`: who made the tag or replaced it last: a claim, unless the daemon authenticates its clients.
    - `expires_at`: from then on the tag may be deleted. None means never.
    - `object_count`, `table_count`: the objects of all kinds and the tables of the version, as counted when the tag was
      created or replaced. `row_count`: the rows in the data files of native tables; rows that were deleted by a
      predicate count, too. None where counting would have taken long, and in tags of earlier releases.
    - `only`: the objects that the tag holds, with the version whose state of each it holds; None means all. `without`:
      the objects that it leaves out.
    - `lacking`: the tables whose rows the tag may lack, by id, because their rules of history had let data files go
      before the tag was made; the first version that still had them then.
    """

    name: str
    id: str
    version: int
    version_created_at: datetime
    created_at: datetime
    creator: str
    message: str
    properties: dict[str, str]
    expires_at: datetime | None
    object_count: int | None
    table_count: int | None
    row_count: int | None
    only: dict[str, int] | None
    without: tuple[str, ...]
    lacking: dict[str, int] = {}  # noqa: RUF012

    def _title(self) -> str:
        return f"{self.name}: version {self.version} of {time_text(self.version_created_at)}"


# --- commits, the log, events ----------------------------------------------------------------------


class Commit(ShownStruct, frozen=True, kw_only=True):
    """A transaction that is in the log at `version`.

    `duplicate` means that an earlier request of the same transaction had committed, and that this is its answer.
    Where a single verb found nothing to do (`exist_ok`, no rows to append), `version` is the version at which the verb
    found that, and `transaction_id` is empty.

    `rows_added` and `rows_removed` count the rows that the transaction added and removed; an updated row counts as
    both. Appended rows, and rows that an update, a delete, a merge, or an overwrite of some rows changed, are counted
    one by one, as the transaction saw them. An operation on a whole table (all rows overwritten; the table dropped,
    undropped, restored) counts the rows of the data files, which may still hold deleted rows, so these counts are
    upper bounds. A compaction adds and removes no rows.

    `files_added` counts the data files that the transaction's writes brought, those of a compaction included. Many
    files with few rows each are slow to read; see `compact`.
    """

    version: int
    transaction_id: str
    created_at: datetime
    duplicate: bool = False
    rows_added: int = 0
    rows_removed: int = 0
    files_added: int = 0

    def _title(self) -> str:
        text = (
            f"version {self.version}, {count_text(self.rows_added, 'row')} added, {self.rows_removed} removed"
        )
        return f"{text}{', duplicate' if self.duplicate else ''}, {time_text(self.created_at)}"


class Outcome(ShownStruct, frozen=True, kw_only=True):
    """The outcome of a transaction id. "unknown" does not mean that the transaction was not applied."""

    state: Literal["committed", "cancelled", "unknown"]
    commit: Commit | None = None

    def _title(self) -> str:
        return self.state if self.commit is None else f"{self.state}, {self.commit._title()}"


class Action(ShownStruct, frozen=True, kw_only=True):
    """One recorded action of a transaction.

    `type` is the format's name of the action ("TABLE_INSERT"). `kind` and `name` are those of the object that the
    action changed ("table", "sales.orders"); the catalog's name is empty. `details` holds the operation as the client
    requested it, and the paths of the definition before and after.
    """

    type: str
    kind: str
    name: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def _title(self) -> str:
        return f"{self.type} {self.name}".rstrip()


class TransactionInfo(ShownStruct, frozen=True, kw_only=True):
    """A transaction as the log records it. The writer claims the principal, unless it is authenticated."""

    id: str
    principal: str
    principal_authenticated: bool
    message: str
    properties: dict[str, str]
    isolation: Literal["snapshot", "serializable"]
    branch: str
    actions: tuple[Action, ...]
    reads: tuple[Action, ...] = ()  # what a serializable transaction had read
    key: str = ""
    writer: tuple[str, int] | None = None

    _hidden = ("actions", "reads")

    def _title(self) -> str:
        message = f" ({self.message})" if self.message else ""
        return f"{self.id}: {some_of([action._title() for action in self.actions], 'actions')}{message}"

    def _cells(self) -> Cells:
        return [("action", "on", "name"), *((each.type, each.kind, each.name) for each in self.actions)]


class Change(ShownStruct, frozen=True, kw_only=True):
    """The change of one object in a version: the structural difference to the version before.

    `before` and `after` are the object's definitions as plain dicts. They are None where the object did not exist, when
    the caller did not ask for details, and for kinds that this release cannot read. The paths are always present.
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
    """One version: its transactions in order, and the changes that they made together. With `token` events can be
    resumed after this version."""

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
    """An object that was dropped. `name` is its full name. `version` is the last version at which the object existed,
    and what `undrop` takes as `at`. The transaction id is empty when another writer of the format made the version
    that dropped the object."""

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
    """A lease on a version, which a reader or a writer renews. Times are those of the store.

    - `state`: "held"; "over" when the lease ran out because its reader ended or is late; "damaged" when its file
      cannot be read. `damage` says why, and `version` is -1 then.
    - `binds_until`: the files of the version are not collected before this time. While a damaged lease binds, no file
      at all is collected.
    - `transaction_id`: in the lease of a writer the transaction whose files it keeps, also after it ran out, until a
      collection disregards it.
    """

    id: str
    version: int
    holder: str
    state: Literal["held", "over", "damaged"]
    renewed_at: datetime
    runs_out_at: datetime
    binds_until: datetime
    damage: str = ""
    transaction_id: str = ""


class SavedTransaction(ShownStruct, frozen=True, kw_only=True):
    """A transaction that was saved for another process. It is not `resumable` when another writer of the format saved
    it, and when its file cannot be read. `damage` says why then, and only the id is known."""

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
    """The name of a live object. `namespace` is that of a table or view; other kinds leave it empty."""

    kind: str
    namespace: str
    name: str


class SymbolsInfo(ShownStruct, frozen=True, kw_only=True):
    """The symbol list in memory. `symbols` is the number of names; `journal_length` is the number of names added and
    removed since the base of the list was made."""

    version: int
    symbols: int
    journal_length: int
    compactions: int
    failures: int
    last_failure: str


class SymbolDrift(ShownStruct, frozen=True, kw_only=True):
    """The differences between the symbols in memory and the tree of a version.

    - `missing`: in the tree, but not in memory.
    - `surplus`: in memory, but not in the tree.
    - `changed`: with another definition.
    - `differences` counts all of them; each of the three lists names a thousand at most.
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
    """A checkpoint on the catalog's storage. `deleted` is the number of old checkpoints that were deleted."""

    version: int
    path: str
    objects: int
    size_bytes: int
    created_at: datetime
    deleted: int


class CheckReport(ShownStruct, frozen=True, kw_only=True):
    """The findings of a check, and the amount that it verified.

    - `files`: the number of data files that were compared with their manifests.
    - `given_up`: the versions that repairs gave up, as first and last of each range. A missing one is not a finding.
    """

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
