"""Operations on tables: create, register, update, drop, commit Iceberg metadata, restore."""

from __future__ import annotations

import re

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, InvalidInput, NotFound
from alpheus_journal.execute.rules.schema import change_columns, check_columns, only_adds
from alpheus_journal.format import ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import NamespaceDef, TableDef
from alpheus_journal.model.operations import (
    CommitIceberg,
    CreateTable,
    DropTable,
    RegisterTable,
    RestoreTable,
    UpdateTable,
)
from alpheus_journal.tables.partitions import check_partition_spec, check_sort_order
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.checks import (
    check_properties,
    check_start,
    check_text,
    count_rows_between,
    decode_as,
    edit_properties,
    find_bound_views,
    other_kind,
    refuse_bound,
    refuse_nothing,
    require,
    require_vacant,
)
from alpheus_journal.workspace.context import Changes, Context, Executed
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, Footprint, read_bound
from alpheus_journal.workspace.workspace import Workspace, decode_readable

LOCATION_SIZE_BYTES_MAX = 4096
_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,3}[^/].*|/[^/].*")


def table_of(workspace: Workspace, name: ObjectName) -> tuple[StoredObject, TableDef]:
    stored = require(workspace, name)
    return stored, decode_as(name, stored, TableDef, workspace)


def _new_table(workspace: Workspace, operation: CreateTable | RegisterTable, context: Context) -> ObjectName:
    """Check the name, id and properties of a new table."""
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    require(workspace, fmt.namespace_name(operation.namespace))
    require_vacant(workspace, name)
    if not fmt.is_uuid(operation.table_id):
        raise InvalidInput(f"table id {operation.table_id[:80]!r} is not a uuid")
    if operation.properties:
        check_properties(operation.properties, f"properties of {name}")
    return name


def create_table(workspace: Workspace, operation: CreateTable, context: Context) -> Executed:
    name = _new_table(workspace, operation, context)
    columns_count = check_columns(operation.columns)
    if operation.partition_spec:
        check_partition_spec(operation.partition_spec, operation.columns)
    if operation.sort_order:
        check_sort_order(operation.sort_order, operation.columns)
    home = fmt.namespace_name(operation.namespace)
    changes = Changes(workspace, operation, context)
    after = TableDef(
        id=operation.table_id,
        data_root=decode_as(home, require(workspace, home), NamespaceDef).data_root,
        properties=dict(operation.properties),
        columns=operation.columns,
        next_column_id=columns_count + 1,
        partition_spec=operation.partition_spec,
        sort_order=operation.sort_order,
    )
    changes.put(name, after)
    return changes.finish()


def update_table(workspace: Workspace, operation: UpdateTable, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    _, definition = table_of(workspace, name)
    what = f"properties of {name}"
    changes_columns = operation.changes_columns
    refuse_nothing(bool(operation.set or operation.unset or changes_columns), what)
    after = msgspec.structs.replace(
        definition, properties=edit_properties(definition.properties, operation.set, operation.unset, what)
    )
    if changes_columns:
        if not definition.native:
            raise InvalidInput(
                f"{name} is an Iceberg table: its columns change by Iceberg commits", kind="not_native"
            )
        changed = change_columns(
            definition, operation, str(name), ids_are_used=definition.id in context.writes
        )
        adds_only = not (
            operation.drop_columns
            or operation.rename_columns
            or operation.retype_columns
            or operation.nullable_columns
            or operation.column_order
        )
        if not adds_only:
            refuse_bound("change columns of", name, find_bound_views(workspace, name, definition))
        after = msgspec.structs.replace(
            after,
            columns=changed.columns,
            next_column_id=changed.next_column_id,
            schema_id=definition.schema_id + (changed.columns != definition.columns),
        )
        operation = msgspec.structs.replace(operation, add_columns=changed.add_columns)
    changes = Changes(workspace, operation, context)
    changes.put(name, after)
    return changes.finish()


def drop_table(workspace: Workspace, operation: DropTable, context: Context) -> Executed:
    """Drop a table. A damaged table can be dropped although its rows and bound views are unknown."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = decode_readable(name, require(workspace, name))
    changes = Changes(workspace, operation, context)
    changes.place(name, None)
    if definition is not None:
        assert isinstance(definition, TableDef)
        refuse_bound("drop", name, find_bound_views(workspace, name, definition))
        changes.rows_removed = definition.row_count
    return changes.finish()


# --- Iceberg tables --------------------------------------------------------------------------------


def _check_location(location: str, what: str) -> None:
    """Refuse a location that is not a URL or an absolute path in one line. Raises InvalidInput."""
    check_text(location, what, LOCATION_SIZE_BYTES_MAX)
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in location):
        raise InvalidInput(f"{what} {redact_url(location)[:200]!r} holds a control character", kind="bad_url")
    if _LOCATION.fullmatch(location) is None or location != location.strip():
        raise InvalidInput(
            f"{what} {redact_url(location)[:200]!r} is neither a URL nor an absolute path",
            kind="bad_url",
            hint="give a location such as s3://bucket/path/metadata/00001-....metadata.json",
        )


def register_table(workspace: Workspace, operation: RegisterTable, context: Context) -> Executed:
    _new_table(workspace, operation, context)
    _check_location(operation.metadata_location, f"the metadata location of {operation.target}")
    after = TableDef(
        id=operation.table_id,
        native=False,
        properties=dict(operation.properties),
        iceberg_metadata_location=operation.metadata_location,
    )
    changes = Changes(workspace, operation, context)
    changes.put(operation.target, after)
    return changes.finish()


def commit_iceberg(workspace: Workspace, operation: CommitIceberg, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    _, definition = table_of(workspace, name)
    if definition.native:
        raise InvalidInput(
            f"{name} is a native table: it has no Iceberg metadata",
            kind="not_iceberg",
            hint="append or overwrite rows instead",
        )
    _check_location(operation.metadata_location, f"the metadata location of {name}")
    check_text(operation.expected, "the expected metadata location", LOCATION_SIZE_BYTES_MAX)
    if operation.expected != definition.iceberg_metadata_location:
        raise Conflict(
            f"the metadata of {name} is at {definition.iceberg_metadata_location or '(nowhere)'},"
            f" but {operation.expected or '(nowhere)'} was expected",
            kind="metadata_moved",
            mine=f"commit Iceberg metadata of {name}",
            theirs=f"metadata at {definition.iceberg_metadata_location}",
            retryable=True,
            hint="read the newer metadata, and base the commit on it",
        )
    changes = Changes(workspace, operation, context)
    after = msgspec.structs.replace(
        definition,
        iceberg_metadata_location=operation.metadata_location,
        iceberg_previous_metadata_location=definition.iceberg_metadata_location,
    )
    changes.put(name, after)
    return changes.finish()


# --- restore ---------------------------------------------------------------------------------------


def restore_table(workspace: Workspace, operation: RestoreTable, context: Context) -> Executed:
    """Restore a table's rows, columns and properties of an earlier version.

    The id, name, writer marks and bound views stay as they are. Segments keep their sequences. The counters continue
    from the larger ones of both definitions.
    """
    name = fmt.check_object_name(operation.target, context.keys)
    _, definition = table_of(workspace, name)
    stored = workspace.past(operation.version, name)
    if stored is None:
        raise NotFound(
            f"there was no {name} at version {operation.version}",
            kind="no_table",
            version=operation.version,
            hint="look at its log: it was made later, or had another name at that version",
        )
    then = decode_as(name, stored, TableDef)
    if then.id != definition.id or then.native != definition.native:
        raise InvalidInput(
            f"{name} was another table at version {operation.version}, with the id {then.id}",
            kind="table_replaced",
            version=operation.version,
            hint="undrop that other table under another name",
        )
    check_start(workspace, name, then.id, operation.version)
    columns_differ = then.columns != definition.columns
    if columns_differ and not only_adds(definition.columns, then.columns):
        refuse_bound("change columns of", name, find_bound_views(workspace, name, definition))
    previous = definition.iceberg_previous_metadata_location
    if then.iceberg_metadata_location != definition.iceberg_metadata_location:
        previous = definition.iceberg_metadata_location
    after = msgspec.structs.replace(
        definition,
        properties=then.properties,
        columns=then.columns,
        next_column_id=max(definition.next_column_id, then.next_column_id),
        schema_id=max(definition.schema_id, then.schema_id) + columns_differ,
        segments=then.segments,
        delete_predicates=then.delete_predicates,
        sequence=max(definition.sequence, then.sequence) + definition.native,
        iceberg_metadata_location=then.iceberg_metadata_location,
        iceberg_previous_metadata_location=previous,
    )
    changes = Changes(workspace, operation, context)
    changes.put(name, after)
    changes.rows_added, changes.rows_removed = count_rows_between(definition, after)
    return changes.finish()


def _names_of_new(operation: CreateTable | RegisterTable) -> tuple[ObjectName, ...]:
    name = operation.target
    return fmt.namespace_name(operation.namespace), name, other_kind(name)


def _names_of_update(operation: UpdateTable) -> tuple[ObjectName, ...] | None:
    return None if operation.changes_columns else (operation.target,)


def _read_for_restore(operation: RestoreTable, workspace: Workspace) -> Footprint:
    around = read_bound(operation, workspace)
    return msgspec.structs.replace(
        around, names=(*around.names, fmt.CATALOG), past=((operation.version, operation.target),)
    )


RULES: ExecuteRules = {
    CreateTable: ExecuteRule(create_table, settled=_names_of_new),
    RegisterTable: ExecuteRule(register_table, settled=_names_of_new),
    UpdateTable: ExecuteRule(update_table, read_bound, _names_of_update),
    DropTable: ExecuteRule(drop_table, read_bound),
    CommitIceberg: ExecuteRule(commit_iceberg),
    RestoreTable: ExecuteRule(restore_table, _read_for_restore),
}
