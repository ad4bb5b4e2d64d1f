"""Convert values of the journal into the values that the client returns (`alpheus.models`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import msgspec

from alpheus.models import (
    Action,
    Change,
    Collection,
    Commit,
    Dropped,
    EarlierFiles,
    Event,
    Expiry,
    FileTotals,
    Hold,
    Info,
    Job,
    LogEntry,
    Namespace,
    Outcome,
    Pipeline,
    SavedTransaction,
    SubscriptionInfo,
    Table,
    Tag,
    TransactionInfo,
    UploadTotals,
    VersionInfo,
    View,
    time_of,
)
from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import (
    CatalogDef,
    NamespaceDef,
    PipelineDef,
    SubscriptionDef,
    TableDef,
    TagDef,
    ViewDef,
)
from alpheus_journal.model.operations import Action as RecordedAction
from alpheus_journal.model.operations import Effect, Read, RecordedTransaction, RenameObject, Undrop

_READABLE = frozenset(
    {Kind.CATALOG, Kind.NAMESPACE, Kind.TABLE, Kind.VIEW, Kind.PIPELINE, Kind.SUBSCRIPTION, Kind.TAG}
)


def expiry_of(value: answers.Expiry, *, dry_run: bool) -> Expiry:
    return Expiry(
        dry_run=dry_run,
        version=value.head,
        first_version=value.first,
        oldest_version=value.oldest,
        wanted_version=value.wanted,
        expired=value.expired,
        holds=tuple(
            Hold(kind=cast(Any, hold.kind), name=hold.name, version=hold.version, let_go=hold.let_go)
            for hold in value.holds
        ),
    )


_KEEPERS = ("versions", "tag", "pins", "leases", "transactions", "exports")


def collection_of(value: answers.Collection, *, dry_run: bool) -> Collection:
    def place(by: str) -> tuple[int, str]:
        word = by.partition(" ")[0]
        return (_KEEPERS.index(word) if word in _KEEPERS else len(_KEEPERS), by)

    return Collection(
        dry_run=dry_run,
        cutoff=time_of(max(value.cutoff_millis, 0)),
        fence_version=value.fence_version,
        first_version=value.first_version,
        last_version=value.last_version,
        unreferenced=_totals_of(value.unreferenced),
        deleted=_totals_of(value.deleted),
        kept_by=_totals_of({by: value.kept_by[by] for by in sorted(value.kept_by, key=place)}),
        young=FileTotals(files=value.young.files, size_bytes=value.young.size_bytes),
        uploads=UploadTotals(**msgspec.structs.asdict(value.uploads)),
        earlier=tuple(
            EarlierFiles(
                table=one.table,
                table_id=one.table_id,
                start_version=one.start,
                files=FileTotals(files=one.files.files, size_bytes=one.files.size_bytes),
            )
            for one in value.earlier
        ),
    )


def _totals_of(values: dict[str, answers.FileTotals]) -> dict[str, FileTotals]:
    return {key: FileTotals(files=each.files, size_bytes=each.size_bytes) for key, each in values.items()}


def namespace_of(name: ObjectName, definition: NamespaceDef, version: int) -> Namespace:
    return Namespace(
        name=name.namespace,
        id=definition.id,
        properties=definition.properties,
        version=version,
        data_root=definition.data_root,
    )


def table_of(name: ObjectName, definition: TableDef, version: int) -> Table:
    return Table(
        name=name.name,
        namespace=name.namespace,
        id=definition.id,
        format="native" if definition.native else "iceberg",
        properties=definition.properties,
        columns=definition.columns,
        row_count=definition.row_count,
        file_count=definition.file_count,
        size_bytes=sum(segment.size_bytes for segment in definition.segments),
        version=version,
        definition=definition,
        data_root=definition.data_root,
    )


def view_of(name: ObjectName, definition: ViewDef, version: int) -> View:
    return View(
        name=name.name,
        namespace=name.namespace,
        id=definition.id,
        sql=definition.sql,
        dialect=definition.dialect,
        properties=definition.properties,
        version=version,
        references=tuple(str(reference) for reference in definition.references),
        schema_binding=definition.schema_binding,
        columns=definition.columns,
        default_namespace=definition.default_namespace,
    )


def pipeline_of(name: ObjectName, definition: PipelineDef, version: int) -> Pipeline:
    jobs = {
        job_name: Job(
            name=job_name,
            last_transaction_id=job.last_transaction_id,
            pinned_version=job.pinned_version,
            inputs=job.inputs,
            state=job.state,
            error=job.error,
            params=job.params,
            called_at=time_of(job.called_at_millis) if job.called_at_millis else None,
            declaration=job.declaration,
        )
        for job_name, job in definition.jobs.items()
    }
    return Pipeline(name=name.name, id=definition.id, jobs=jobs, version=version)


def subscription_of(
    name: ObjectName, definition: SubscriptionDef, next_version: int, version: int
) -> SubscriptionInfo:
    return SubscriptionInfo(
        name=name.name,
        id=definition.id,
        namespaces=definition.namespaces,
        names=tuple(sorted({*definition.names, *definition.name_patterns})),
        kinds=tuple(kind.label for kind in definition.kinds),
        actions=definition.actions,
        details=definition.details,
        lease_seconds=definition.lease_millis / 1000,
        holder=definition.holder,
        epoch=definition.epoch,
        position=next_version - 1 if next_version else None,
        created_at=time_of(definition.created_at_millis),
        version=version,
    )


def tag_of(name: ObjectName, definition: TagDef) -> Tag:
    return Tag(
        name=name.name,
        id=definition.id,
        version=definition.version,
        version_created_at=time_of(definition.version_created_at_millis),
        created_at=time_of(definition.created_at_millis),
        creator=definition.creator,
        message=definition.message,
        properties=definition.properties,
        expires_at=time_of(definition.expire_at_millis) if definition.expire_at_millis else None,
        object_count=definition.object_count,
        table_count=definition.table_count,
        row_count=definition.row_count,
        only={each.full_name: each.version for each in definition.chosen} or None,
        without=tuple(each.full_name for each in definition.left_out),
        lacking=definition.lacking,
    )


def info_of(value: answers.CatalogInfo, url: str) -> Info:
    definition: CatalogDef = value.definition
    return Info(
        catalog_id=value.catalog_id,
        url=url,
        storage_url=value.storage_url,
        version=value.version,
        oldest_version=value.oldest_version,
        token=value.token,
        version_digits=value.version_digits,
        order=definition.order,
        namespace_name_bytes=definition.namespace_name_size_max,
        table_name_bytes=definition.table_name_size_max,
        view_name_bytes=definition.view_name_size_max,
        txn_ttl=timedelta(milliseconds=min(definition.txn_ttl_millis, fmt.TIME_MILLIS_MAX)),
        isolation="serializable" if definition.serializable_default else "snapshot",
        table_starts=definition.table_starts,
        properties=definition.properties,
        software_version=value.software_version,
        format_revision=definition.format_revision,
        unverified_since=time_of(since) if (since := value.unverified_since_millis) else None,
        head_ahead=timedelta(milliseconds=value.head_ahead_millis),
    )


def version_info_of(value: answers.VersionInfo) -> VersionInfo:
    return VersionInfo(version=value.version, created_at=time_of(value.created_at_millis), token=value.token)


def commit_of(value: answers.Committed) -> Commit:
    return Commit(
        version=value.version,
        transaction_id=value.transaction_id,
        created_at=time_of(value.created_at_millis),
        duplicate=value.duplicate,
        rows_added=value.rows_added,
        rows_removed=value.rows_removed,
        files_added=value.files_added,
    )


def outcome_of(value: answers.Outcome) -> Outcome:
    return Outcome(state=value.state, commit=None if value.commit is None else commit_of(value.commit))


def dropped_of(value: answers.Dropped) -> Dropped:
    return Dropped(
        kind=value.name.kind.label,
        name=value.name.full_name,
        version=value.version,
        dropped_version=value.dropped_version,
        dropped_at=time_of(value.dropped_at_millis),
        transaction_id=value.transaction_id,
        principal=value.principal,
    )


def saved_of(value: answers.SavedTransaction) -> SavedTransaction:
    transaction = value.transaction
    return SavedTransaction(
        id=transaction.id,
        begin_version=transaction.begin_version,
        began_at=time_of(value.began_at_millis),
        expires_at=time_of(value.expire_at_millis),
        operations=value.operation_count,
        message=transaction.message,
        principal=transaction.principal,
        isolation="serializable" if transaction.serializable else "snapshot",
        resumable=value.resumable,
        damage=value.damage,
    )


def effect_type(effect: Effect) -> str:
    if not effect.path_before:
        return "created"
    return "updated" if effect.path_after else "dropped"


def action_of(value: RecordedAction) -> Action:
    details: dict[str, Any] = {}
    if value.operation is not None:
        details = msgspec.to_builtins(value.operation)
        if isinstance(value.operation, RenameObject | Undrop):
            details["kind"] = value.operation.kind.label  # not its number
    if value.path_before:
        details["path_before"] = value.path_before
    if value.path_after:
        details["path_after"] = value.path_after
    if value.also:
        details["also"] = [
            {"kind": effect.name.kind.label, "name": effect.name.full_name, "type": effect_type(effect)}
            for effect in value.also
        ]
    return Action(type=value.type, kind=value.name.kind.label, name=value.name.full_name, details=details)


def read_of(value: Read) -> Action:
    details: dict[str, Any] = {}
    if value.columns:
        details["columns"] = list(value.columns)
    if value.prefix:
        details["prefix"] = value.prefix
    return Action(type=value.type, kind=value.name.kind.label, name=value.name.full_name, details=details)


def transaction_of(value: RecordedTransaction) -> TransactionInfo:
    return TransactionInfo(
        id=value.id,
        principal=value.principal,
        principal_authenticated=value.principal_authenticated,
        message=value.message,
        properties=value.properties,
        isolation="serializable" if value.serializable else "snapshot",
        branch=value.branch or "main",
        actions=tuple(action_of(action) for action in value.actions),
        reads=tuple(read_of(read) for read in value.reads),
        key=value.key,
        writer=(value.writer.name, value.writer.sequence) if value.writer else None,
    )


def _plain(kind: Kind, data: bytes | None, path: str) -> dict[str, Any] | None:
    if data is None or kind not in _READABLE:
        return None
    plain: dict[str, Any] = msgspec.to_builtins(decode_definition(kind, data, path))
    return plain


def change_of(value: answers.Change) -> Change:
    kind = value.name.kind
    return Change(
        kind=kind.label,
        name=value.name.full_name,
        type=value.type,
        before=_plain(kind, value.definition_before, value.path_before),
        after=_plain(kind, value.definition_after, value.path_after),
        path_before=value.path_before,
        path_after=value.path_after,
    )


def event_of(value: answers.Event) -> Event:
    return Event(
        version=value.version,
        created_at=time_of(value.created_at_millis),
        transactions=tuple(transaction_of(transaction) for transaction in value.transactions),
        changes=tuple(change_of(change) for change in value.changes),
        token=value.token,
    )


def log_entry_of(value: answers.LogEntry) -> LogEntry:
    return LogEntry(
        version=value.version,
        created_at=time_of(value.created_at_millis),
        transaction=transaction_of(value.transaction),
    )
