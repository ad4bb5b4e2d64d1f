"""Fences of collections: the cutoff of the files, and the starts of tables (FORMAT.md, "Starts of tables")."""

from __future__ import annotations

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef, TableDef
from alpheus_journal.model.history_rules import HistoryRules, parse_history_rules
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import (
    DISREGARDED_MAX,
    STARTS_RAISED_MAX,
    TABLE_STARTS_MAX,
    Action,
    FenceCollection,
    PlannedStart,
)
from alpheus_journal.workspace.checks import check_revision, decode_as, require
from alpheus_journal.workspace.context import Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, Footprint
from alpheus_journal.workspace.workspace import Workspace


def fence_collection(workspace: Workspace, operation: FenceCollection, context: Context) -> Executed:
    """Raise the catalog's `collected_before_millis`, and the starts of tables that still have the rules of the plan. A
    fence that raises nothing is recorded and changes nothing."""
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    check_revision(definition, 2, "collection")
    if not 0 < operation.cutoff_millis <= fmt.TIME_MILLIS_MAX:
        raise InvalidInput(f"a cutoff of {operation.cutoff_millis} ms is not a time")
    if len(operation.disregarded) > DISREGARDED_MAX or not all(map(fmt.is_uuid, operation.disregarded)):
        raise InvalidInput(f"a fence names at most {DISREGARDED_MAX:,} transactions, by their ids")
    _check_starts(operation, context)
    after = msgspec.structs.replace(
        definition,
        collected_before_millis=max(definition.collected_before_millis, operation.cutoff_millis),
        table_starts=_raise_starts(workspace, operation, definition.table_starts),
    )
    if after == definition:
        return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))
    return simple_change(workspace, operation, context, after)


def _check_starts(operation: FenceCollection, context: Context) -> None:
    """Refuse starts that are invalid whatever the tables are. A start above the head would let the head's files go."""
    if len(operation.starts) > STARTS_RAISED_MAX:
        raise InvalidInput(
            f"a fence raises the starts of at most {STARTS_RAISED_MAX} tables", kind="too_large"
        )
    for start in operation.starts:
        if not fmt.is_uuid(start.table_id):
            raise InvalidInput(f"table id {start.table_id[:80]!r} is not a uuid")
        if not 0 < start.version < context.version:
            raise InvalidInput(
                f"the start of {start.object_name}, version {start.version}, is not a version up to the head,"
                f" {context.version - 1}",
                kind="bad_version",
            )


def _raise_starts(workspace: Workspace, operation: FenceCollection, known: dict[str, int]) -> dict[str, int]:
    """Return the starts after the fence. They only rise, and no entry goes away: files below a start are gone."""
    found = dict(known)
    for start in operation.starts:
        is_counted = start.table_id in found or len(found) < TABLE_STARTS_MAX
        if is_counted and start.version > found.get(start.table_id, 0) and _has_rules(workspace, start):
            found[start.table_id] = start.version
    return found


def _has_rules(workspace: Workspace, start: PlannedStart) -> bool:
    """Return whether the table exists under its name and its rules keep no more than those of the plan. A rule may have
    been unset or lengthened since."""
    table = _decode(workspace, start.object_name)
    if not isinstance(table, TableDef) or table.id != start.table_id or not table.native:
        return False
    space = _decode(workspace, fmt.namespace_name(start.namespace))
    if not isinstance(space, NamespaceDef):
        return False
    try:
        own = parse_history_rules(table.properties, start.name)
        rules = own.or_else(
            HistoryRules() if own.is_whole else parse_history_rules(space.properties, start.namespace)
        )
    except InvalidInput:
        return False
    return (
        rules.age_millis is not None
        and rules.keep_versions is not None
        and rules.age_millis <= start.age_millis
        and rules.keep_versions <= start.keep_versions
    )


def _decode(workspace: Workspace, name: ObjectName) -> object:
    """Return the definition of an object, or None where it does not exist or cannot be read."""
    stored = workspace.get(name) if workspace.has(name) else None
    return None if stored is None else workspace.decode_readable(name, stored)


def _read_for_fence(operation: FenceCollection, workspace: Workspace) -> Footprint:
    named: dict[ObjectName, None] = {}
    for start in operation.starts[:STARTS_RAISED_MAX]:
        named[start.object_name] = named[fmt.namespace_name(start.namespace)] = None
    return Footprint(names=(fmt.CATALOG,), related=tuple(named))


RULES: ExecuteRules = {
    FenceCollection: ExecuteRule(
        fence_collection,
        _read_for_fence,
        lambda operation: None if operation.starts else (operation.target,),
    ),
}
