"""System tables: a catalog's contents and history at a version, as Arrow tables.

| Table | One row for each | Of |
| --- | --- | --- |
| `log` | transaction | all kept versions up to the one asked for |
| `changes` | object that a version changed | the same |
| `objects` | namespace, table, view | the version |
| `files` | data file of a native table, with the bounds of its columns | the version |
| `pipelines` | job of a pipeline | the version |
| `tags` | tag | the version |
| `subscriptions` | durable subscription | the version; its position only at the head |

Later releases only add columns. Times are microseconds in UTC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa

from alpheus.admin.tags import tags_at
from alpheus.events.events import events, parse_bound
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.model_conversions import pipeline_of, subscription_of, table_of, tag_of, view_of
from alpheus.models import Action, Event, Job, time_of
from alpheus.rows.file_reader import load_files
from alpheus.session.arguments import several
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import (
    Column,
    Definition,
    NamespaceDef,
    PipelineDef,
    SubscriptionDef,
    TableDef,
    ViewDef,
)
from alpheus_journal.model.event_filter import EventFilter, pattern_of
from alpheus_journal.tables.columns import decode_bound, paths_of, python_value
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.partitions import value_text

ROWS_A_BATCH = 4096
OBJECTS_AT_ONCE = 1000

_TIME = pa.timestamp("us", "UTC")
_TEXTS = pa.map_(pa.string(), pa.string())
_DECLARED = pa.list_(pa.struct([("table", pa.string()), ("table_id", pa.string())]))


def _schema(**fields: Any) -> pa.Schema:
    """Return a schema. A name with a trailing underscore is a column that is never NULL."""
    return pa.schema(
        [pa.field(name.rstrip("_"), kind, not name.endswith("_")) for name, kind in fields.items()]
    )


_ACTION = pa.struct([("type", pa.string()), ("kind", pa.string()), ("name", pa.string())])

SCHEMAS: dict[str, pa.Schema] = {
    "log": _schema(
        version_=pa.int64(), created_at_=_TIME, transaction_id_=pa.string(), principal_=pa.string(),
        principal_authenticated_=pa.bool_(), message_=pa.string(), properties_=_TEXTS, isolation_=pa.string(),
        branch_=pa.string(), key=pa.string(), writer_name=pa.string(), writer_sequence=pa.int64(),
        actions_=pa.list_(_ACTION), reads_=pa.list_(_ACTION),
    ),
    "changes": _schema(
        version_=pa.int64(), created_at_=_TIME, kind_=pa.string(), name_=pa.string(), type_=pa.string(),
        path_before=pa.string(), path_after=pa.string(),
    ),
    "objects": _schema(
        version_=pa.int64(), kind_=pa.string(), namespace_=pa.string(), name=pa.string(), id_=pa.string(),
        format=pa.string(), properties_=_TEXTS, columns=pa.list_(pa.string()), partition_by=pa.list_(pa.string()),
        sort_by=pa.list_(pa.string()), row_count=pa.int64(), row_count_exact=pa.bool_(), file_count=pa.int64(),
        size_bytes=pa.int64(),
    ),
    "files": _schema(
        version_=pa.int64(), namespace_=pa.string(), table_=pa.string(), table_id_=pa.string(), path_=pa.string(),
        format_=pa.string(), row_count_=pa.int64(), size_bytes_=pa.int64(), sequence_=pa.int64(),
        schema_id_=pa.int64(), delete_predicates_=pa.int64(), partition_=_TEXTS, sorted_=pa.bool_(),
        columns_=pa.list_(
            pa.struct(
                [
                    ("id", pa.int32()), ("name", pa.string()), ("value_count", pa.int64()),
                    ("null_count", pa.int64()), ("nan_count", pa.int64()), ("size_bytes", pa.int64()),
                    ("lower", pa.string()), ("upper", pa.string()),
                ]
            )
        ),
    ),
    "pipelines": _schema(
        version_=pa.int64(), pipeline_=pa.string(), job_=pa.string(), state_=pa.string(), error_=pa.string(),
        pinned_version_=pa.int64(), last_transaction_id_=pa.string(), called_at=_TIME, params_=_TEXTS,
        inputs_=pa.list_(
            pa.struct([("table", pa.string()), ("table_id", pa.string()), ("version", pa.int64())])
        ),
        declared_inputs=_DECLARED, declared_outputs=_DECLARED,
    ),
    "tags": _schema(
        name_=pa.string(), id_=pa.string(), version_=pa.int64(), version_created_at_=_TIME, created_at_=_TIME,
        creator_=pa.string(), message_=pa.string(), properties_=_TEXTS, expires_at=_TIME,
        object_count=pa.int64(), table_count=pa.int64(), row_count=pa.int64(), only=pa.map_(pa.string(), pa.int64()),
        without_=pa.list_(pa.string()),
    ),
    "subscriptions": _schema(
        version_=pa.int64(), name_=pa.string(), id_=pa.string(), namespaces_=pa.list_(pa.string()),
        names_=pa.list_(pa.string()), kinds_=pa.list_(pa.string()), actions_=pa.list_(pa.string()),
        details_=pa.bool_(), lease_seconds_=pa.float64(), holder=pa.string(), epoch_=pa.int64(),
        position=pa.int64(), created_at_=_TIME,
    ),
}  # fmt: skip
"""The columns of each system table. Counts of rows are those in data files. Where `row_count_exact` is false, or a
file's `delete_predicates` is above 0, some of these rows may be deleted, and the count is an upper bound."""

Row = dict[str, Any]


class Names:
    """The full names of the requested objects: all, or those that match, with `*` and `?` as in `events(names=)`."""

    def __init__(self, names: str | Iterable[str] | None) -> None:
        listed = None if names is None else several("names", (names,) if isinstance(names, str) else names)
        for name in listed or ():
            if not isinstance(name, str):
                raise InvalidInput(f"names: {name!r} is not text", hint='give names such as "sales.*"')
        self._patterns = None if listed is None else [pattern_of(name) for name in listed]

    def has(self, full_name: str) -> bool:
        return self._patterns is None or any(pattern.match(full_name) for pattern in self._patterns)


class _Query(NamedTuple):
    session: Session
    at: At
    version: int
    is_head: bool
    names: Names
    after: int | None


async def system_table(
    session: Session,
    name: str,
    *,
    at: At,
    version: int,
    is_head: bool,
    names: str | Iterable[str] | None = None,
    after: int | None = None,
) -> pa.Table:
    """Return the system table `name`, one of `SCHEMAS`, at a version.

    - `names`: return only rows of these objects (`*` and `?` are wildcards).
    - `after`: for `log` and `changes`, return only versions above it.
    - `at`: the reference to the version.
    - `is_head`: whether the version is the head.

    Raises NotFound (`no_table`) for an unknown system table, InvalidInput for `after` with any other table, and Expired
    when history after `after` has expired.
    """
    schema = SCHEMAS.get(name) if isinstance(name, str) else None
    if schema is None:
        raise NotFound(
            f"there is no system table {name!r}", kind="no_table", hint=f"use one of {', '.join(SCHEMAS)}"
        )
    if after is not None and name not in ("log", "changes"):
        raise InvalidInput(
            f"the system table {name} has no history", hint="leave out after=: it is for log and changes"
        )
    query = _Query(session, at, version, is_head, Names(names), parse_bound("after", after))
    batches: list[pa.RecordBatch] = []
    pending: list[Row] = []
    async with aclosing(_TABLES[name](query)) as rows:
        async for row in rows:
            pending.append(row)
            if len(pending) >= ROWS_A_BATCH:
                batches.append(pa.RecordBatch.from_pylist(pending, schema=schema))
                pending.clear()
    batches.append(pa.RecordBatch.from_pylist(pending, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


# --- what happened ---------------------------------------------------------------------------------


async def _events(query: _Query) -> AsyncIterator[Event]:
    stream = events(
        query.session,
        after=query.after,
        until=query.version,
        follow=False,
        filter=EventFilter(),
        details=False,
    )
    async with aclosing(cast(Any, stream)) as found:
        async for event in found:
            yield event


def _action_row(action: Action) -> Row:
    return {"type": action.type, "kind": action.kind, "name": action.name}


async def _log(query: _Query) -> AsyncIterator[Row]:
    async for event in _events(query):
        for transaction in event.transactions:
            if not any(query.names.has(action.name) for action in transaction.actions):
                continue
            name, sequence = transaction.writer or (None, None)
            yield {
                "version": event.version,
                "created_at": event.created_at,
                "transaction_id": transaction.id,
                "principal": transaction.principal,
                "principal_authenticated": transaction.principal_authenticated,
                "message": transaction.message,
                "properties": list(transaction.properties.items()),
                "isolation": transaction.isolation,
                "branch": transaction.branch,
                "key": transaction.key or None,
                "writer_name": name,
                "writer_sequence": sequence,
                "actions": [_action_row(action) for action in transaction.actions],
                "reads": [_action_row(read) for read in transaction.reads],
            }


async def _changes(query: _Query) -> AsyncIterator[Row]:
    async for event in _events(query):
        for change in event.changes:
            if query.names.has(change.name):
                yield {
                    "version": event.version,
                    "created_at": event.created_at,
                    "kind": change.kind,
                    "name": change.name,
                    "type": change.type,
                    "path_before": change.path_before or None,
                    "path_after": change.path_after or None,
                }


# --- what there is ---------------------------------------------------------------------------------


async def _definitions(
    query: _Query, names: Sequence[ObjectName]
) -> AsyncIterator[tuple[ObjectName, Definition]]:
    for start in range(0, len(names), OBJECTS_AT_ONCE):
        part = list(names[start : start + OBJECTS_AT_ONCE])
        loaded = await query.session.load(query.at, part)
        for name, stored in zip(part, loaded.objects, strict=True):
            assert stored is not None, name
            yield name, decode_definition(name.kind, stored.definition, stored.path)


async def _objects_of(query: _Query, kinds: Sequence[Kind]) -> AsyncIterator[tuple[ObjectName, Definition]]:
    """Yield the requested objects of some kinds, namespace by namespace."""
    async for namespace in query.session.all_names(query.at, Kind.NAMESPACE):
        names = [fmt.namespace_name(namespace)] if Kind.NAMESPACE in kinds else []
        for kind in (Kind.TABLE, Kind.VIEW):
            if kind in kinds:
                names += [
                    ObjectName(kind, namespace, name)
                    async for name in query.session.all_names(query.at, kind, namespace)
                ]
        async for found in _definitions(query, [name for name in names if query.names.has(name.full_name)]):
            yield found


async def _objects(query: _Query) -> AsyncIterator[Row]:
    async for name, definition in _objects_of(query, (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW)):
        row: Row = {
            "version": query.version,
            "kind": name.kind.label,
            "namespace": name.namespace,
            "name": name.name or None,
        }
        match definition:
            case NamespaceDef():
                row |= {"id": definition.id, "properties": list(definition.properties.items())}
            case TableDef():
                table = table_of(name, definition, query.version)
                row |= {
                    "id": table.id,
                    "format": table.format,
                    "properties": list(table.properties.items()),
                    "columns": [column.name for column in table.columns] if definition.native else None,
                    "partition_by": list(table.partition_by),
                    "sort_by": list(table.sort_by),
                    "row_count": table.row_count if definition.native else None,
                    "row_count_exact": table.is_row_count_exact if definition.native else None,
                    "file_count": table.file_count if definition.native else None,
                    "size_bytes": table.size_bytes if definition.native else None,
                }
            case ViewDef():
                view = view_of(name, definition, query.version)
                row |= {
                    "id": view.id,
                    "format": view.dialect or None,
                    "properties": list(view.properties.items()),
                    "columns": [column.name for column in view.columns] or None,
                }
        yield row


async def _files(query: _Query) -> AsyncIterator[Row]:
    storage = await query.session.storage()
    async for name, definition in _objects_of(query, (Kind.TABLE,)):
        table = cast(TableDef, definition)
        if not table.native:
            continue
        columns = {column.id: (path, column) for path, column in paths_of(table.columns)}
        for file, sequence in await load_files(storage, table):
            yield {
                "version": query.version,
                "namespace": name.namespace,
                "table": name.name,
                "table_id": table.id,
                "path": file.path,
                "format": file.format,
                "row_count": file.row_count,
                "size_bytes": file.size_bytes,
                "sequence": sequence,
                "schema_id": file.schema_id,
                "delete_predicates": sum(sequence <= p.sequence for p in table.delete_predicates),
                "partition": _partition_values(table, columns, file),
                "sorted": bool(file.sort_order_id),
                "columns": [_statistics(file, number, columns) for number in sorted(file.value_counts)],
            }


_Columns = dict[int, tuple[str, Column]]


def _partition_values(table: TableDef, columns: _Columns, file: DataFile) -> list[tuple[str, str | None]]:
    found = []
    for field in table.partition_spec:
        if field.column_id in file.partition:
            path, column = columns[field.column_id]
            value = file.partition[field.column_id]
            found.append((path, None if value is None else value_text(field, column, value)))
    return found


def _statistics(file: DataFile, number: int, columns: _Columns) -> Row:
    """Return the statistics of one column of a file. A column that was dropped, or that is inside a list or map, comes
    without name and bounds."""
    path, column = columns.get(number, (None, None))
    return {
        "id": number,
        "name": path,
        "value_count": file.value_counts[number],
        "null_count": file.null_counts.get(number),
        "nan_count": file.nan_counts.get(number),
        "size_bytes": file.column_sizes.get(number),
        "lower": _bound_text(column, file.lower_bounds.get(number)),
        "upper": _bound_text(column, file.upper_bounds.get(number)),
    }


def _bound_text(column: Column | None, data: bytes | None) -> str | None:
    if column is None or data is None:
        return None
    value = python_value(column, decode_bound(column, data))
    return value.hex() if isinstance(value, bytes) else str(value)


async def _pipelines(query: _Query) -> AsyncIterator[Row]:
    names = [
        fmt.pipeline_name(name)
        async for name in query.session.all_names(query.at, Kind.PIPELINE)
        if query.names.has(name)
    ]
    async for name, definition in _definitions(query, names):
        pipeline = pipeline_of(name, cast(PipelineDef, definition), query.version)
        for job in pipeline.jobs.values():
            yield _job_row(query.version, pipeline.name, job)


def _job_row(version: int, pipeline: str, job: Job) -> Row:
    return {
        "version": version,
        "pipeline": pipeline,
        "job": job.name,
        "state": job.state,
        "error": job.error,
        "pinned_version": job.pinned_version,
        "last_transaction_id": job.last_transaction_id,
        "called_at": job.called_at,
        "params": list(job.params.items()),
        "inputs": [
            {"table": position.table, "table_id": position.table_id, "version": position.version}
            for position in job.inputs.values()
        ],
        "declared_inputs": job.declaration and msgspec.to_builtins(job.declaration.inputs),
        "declared_outputs": job.declaration and msgspec.to_builtins(job.declaration.outputs),
    }


async def _tags(query: _Query) -> AsyncIterator[Row]:
    for key, definition in await tags_at(query.session, query.at):
        if query.names.has(key.name):
            yield msgspec.structs.asdict(tag_of(key, definition))


async def _subscriptions(query: _Query) -> AsyncIterator[Row]:
    if query.is_head:
        for found in await AsyncSubscriptions(query.session).list():
            if query.names.has(found.name):
                yield {**msgspec.structs.asdict(found), "holder": found.holder or None}
        return
    names = [
        fmt.subscription_name(name)
        async for name in query.session.all_names(query.at, Kind.SUBSCRIPTION)
        if query.names.has(name)
    ]
    async for name, definition in _definitions(query, names):
        entry = cast(SubscriptionDef, definition)
        described = subscription_of(name, entry, entry.next_version, query.version)
        yield {
            **msgspec.structs.asdict(described),
            "holder": entry.holder or None,
            "position": None,  # positions are stored outside the tree, so only the head's are known
            "created_at": time_of(entry.created_at_millis),
        }


_TABLES: dict[str, Callable[[_Query], Any]] = {
    "log": _log,
    "changes": _changes,
    "objects": _objects,
    "files": _files,
    "pipelines": _pipelines,
    "tags": _tags,
    "subscriptions": _subscriptions,
}
