"""Operations that drop, move or bring back whole objects: drop a namespace, rename, undrop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, AlreadyExists, InvalidInput, NotEmpty
from alpheus_journal.execute.rules.views import rebind, unbind
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import NamespaceDef, TableDef, ViewDef
from alpheus_journal.model.operations import DropNamespace, RenameObject, TableCounters, Undrop
from alpheus_journal.workspace.checks import (
    check_start,
    check_tag_name,
    find_bound_views,
    not_there,
    objects_of,
    other_kind,
    refuse_bound,
    require,
    require_vacant,
)
from alpheus_journal.workspace.context import Changes, Context, Executed, Execution, simple_change
from alpheus_journal.workspace.execute_rule import (
    ExecuteRule,
    ExecuteRules,
    Footprint,
    PastNamespace,
    Stepwise,
    read_around,
)
from alpheus_journal.workspace.workspace import Counters, Workspace, decode_readable, definition_of

CHILDREN_AT_ONCE_MAX = 100
CHILDREN_MAX = 10_000
"""The most objects of a namespace that one operation drops or brings back."""

# --- dropping a namespace --------------------------------------------------------------------------


def drop_namespace(workspace: Workspace, operation: DropNamespace, context: Context) -> Execution:
    name = fmt.check_object_name(operation.target, context.keys)
    require(workspace, name)
    children = sorted(workspace.children(operation.name))
    if not operation.cascade:
        if children:
            raise NotEmpty(
                f"{name} holds {children[0]}", hint="drop the objects in it first, or pass cascade=True"
            )
        return simple_change(workspace, operation, context, None)
    if len(children) > CHILDREN_MAX or not all(workspace.has(child) for child in children):
        raise InvalidInput(
            f"{name} holds more than {CHILDREN_MAX} tables and views, the most that one operation drops",
            kind="too_large",
            hint="drop some of these objects first",
        )
    changes = Changes(workspace, operation, context)
    changes.place(name, None)
    views: list[tuple[ObjectName, ViewDef]] = []
    for count, child in enumerate(children, 1):
        if not count % CHILDREN_AT_ONCE_MAX:
            yield None
        definition = workspace.decode_readable(child, require(workspace, child))
        if definition is not None:
            refuse_bound(
                "drop", child, find_bound_views(workspace, child, definition, apart_from=operation.name)
            )
        changes.place(child, None)
        if isinstance(definition, TableDef):
            changes.rows_removed += definition.row_count
        if isinstance(definition, ViewDef) and definition.schema_binding:
            views.append((child, definition))
    for view, definition in views:
        for reference in definition.references:
            unbind(changes, reference, view)
    return changes.finish()


# --- renaming --------------------------------------------------------------------------------------


def rename_object(workspace: Workspace, operation: RenameObject, context: Context) -> Executed:
    """Give an object a new name. Its definition stays the same file."""
    if operation.kind in (Kind.PIPELINE, Kind.TAG):
        return _rename_alone(workspace, operation, context)
    if operation.kind not in (Kind.TABLE, Kind.VIEW):
        raise InvalidInput(f"a {operation.kind.label} cannot be renamed", kind="not_supported")
    name, new = operation.target, operation.new_target
    fmt.check_object_name(name, context.keys)
    stored = require(workspace, name)
    if name == new:
        raise InvalidInput(f"{name} has that name already", kind="bad_name")
    fmt.check_object_name(new, context.keys, creating=True)
    require(workspace, fmt.namespace_name(operation.new_namespace))
    require_vacant(workspace, new)
    definition = definition_of(name, stored)
    refuse_bound("rename", name, find_bound_views(workspace, name, definition))
    changes = Changes(workspace, operation, context)
    changes.place(name, None)
    changes.place(new, stored)
    if isinstance(definition, ViewDef):
        rebind(changes, name, definition, None)
        rebind(changes, new, None, definition)
    return changes.finish()


def _rename_alone(workspace: Workspace, operation: RenameObject, context: Context) -> Executed:
    """Rename an object that is in no namespace and that no view refers to: a pipeline or a tag."""
    name, new = operation.target, operation.new_target
    if operation.namespace or operation.new_namespace:
        raise InvalidInput(f"{name}: a {name.kind.label} is in no namespace", kind="bad_name")
    fmt.check_object_name(name, context.keys)
    stored = require(workspace, name)
    if name == new:
        raise InvalidInput(f"{name} has that name already", kind="bad_name")
    fmt.check_object_name(new, context.keys, creating=True)
    if new.kind is Kind.TAG:
        check_tag_name(new.name)
    if workspace.get(new) is not None:
        hint = "the positions of two pipelines cannot be combined" if new.kind is Kind.PIPELINE else ""
        raise AlreadyExists(
            f"there is a {new} already",
            kind=f"{new.kind.label}_exists",
            hint="choose another name" + (f": {hint}" if hint else ""),
        )
    changes = Changes(workspace, operation, context)
    changes.place(name, None)
    changes.place(new, stored)
    return changes.finish()


# --- undropping ------------------------------------------------------------------------------------


def undrop(workspace: Workspace, operation: Undrop, context: Context) -> Execution:
    """Bring objects back as they were at a version, with new definition files.

    Ids stay the same, and the table's old files are referenced again. Counters continue from the highest that are
    known. The operation records them where they are not those of the version, and has them when it is executed again.
    """
    _check_undrop(operation)
    source, target = operation.source, operation.target
    fmt.check_object_name(source, context.keys)
    fmt.check_object_name(target, context.keys, creating=target != source)
    stored = workspace.past(operation.version, source)
    if stored is None:
        raise not_there(
            source,
            f" at version {operation.version}",
            "look at its log, and name a version at which it existed",
        )
    elsewhere = "undrop it under another name"
    if operation.kind is Kind.NAMESPACE:
        if workspace.get(target) is not None:
            raise AlreadyExists(f"there is a {target} already", kind="namespace_exists", hint=elsewhere)
    else:
        require(workspace, fmt.namespace_name(operation.new_namespace))
        require_vacant(workspace, target, elsewhere)
    changes = Changes(workspace, operation, context)
    returning = _find_returning(workspace, operation, source, target, stored)
    _refuse_living(workspace, operation, returning)
    counters_of = _find_counters(workspace, operation, context)
    recorded: list[TableCounters] = []
    views: list[tuple[ObjectName, ViewDef]] = []
    for count, (name, (old_name, then)) in enumerate(returning.items(), 1):
        if not count % CHILDREN_AT_ONCE_MAX:
            yield None
        definition = workspace.definition(old_name, then)
        if isinstance(definition, TableDef):
            check_start(workspace, old_name, definition.id, operation.version)
            counters = counters_of(definition)
            if counters != Counters.of(definition):
                recorded.append(counters.record_for(definition.id))
            definition = _undropped_table(definition, counters)
            changes.rows_added += definition.row_count
        elif isinstance(definition, ViewDef):
            definition = msgspec.structs.replace(definition, bound_views=())
            views.append((name, definition))
        changes.put(name, definition)
    for name, view in views:
        rebind(changes, name, None, view)
    if not context.records or not (recorded or operation.counters):
        return changes.finish()
    recorded.sort(key=lambda one: one.table_id)
    return changes.finish(msgspec.structs.replace(operation, counters=tuple(recorded)))


def _check_undrop(operation: Undrop) -> None:
    """Refuse an undrop that is invalid whatever the catalog holds. Raises InvalidInput."""
    if operation.kind not in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW):
        raise InvalidInput(f"a {operation.kind.label} cannot be undropped", kind="not_supported")
    if operation.kind is Kind.NAMESPACE and (operation.name or operation.new_name):
        raise InvalidInput(
            f"an undropped namespace has no object name, but {operation.name or operation.new_name!r} is given"
        )


def _find_counters(
    workspace: Workspace, operation: Undrop, context: Context
) -> Callable[[TableDef], Counters]:
    """Return what finds the counters of a table that comes back with a definition of the version.

    Counters that a client gives were decided by its trial, and its files follow them. They count if they are at most a
    gap above those that are known.
    """
    known = workspace.tables_known()
    given = {one.table_id: Counters.of(one) for one in operation.counters}

    def counters_of(then: TableDef) -> Counters:
        asked = given.get(then.id)
        if asked is not None and not context.records:
            return asked
        highest = Counters.of(then).max(known.get(then.id))
        highest = highest.max(workspace.counters(operation.version, then.id))
        limit = highest.after_gap()
        return highest.max(asked) if then.native and limit.max(asked) == limit else highest

    return counters_of


def _find_returning(
    workspace: Workspace, operation: Undrop, source: ObjectName, target: ObjectName, stored: StoredObject
) -> Mapping[ObjectName, tuple[ObjectName, StoredObject]]:
    """Return everything that comes back: the old name and the definition at that version, by new name."""
    found = {target: (source, stored)}
    if operation.kind is not Kind.NAMESPACE:
        return found
    children = workspace.past_children(operation.version, operation.namespace)
    if len(children) > CHILDREN_MAX:
        raise InvalidInput(
            f"{source} held more than {CHILDREN_MAX} tables and views, the most that one operation brings back",
            kind="too_large",
            hint="create the namespace, and undrop its objects one by one",
        )
    for child in children:
        then = workspace.past(operation.version, child)
        assert then is not None, f"{child} is listed at version {operation.version} and not there"
        found[ObjectName(child.kind, operation.new_namespace, child.name)] = (child, then)
    return found


def _undropped_table(then: TableDef, counters: Counters) -> TableDef:
    """Return the definition of a table that comes back.

    Rows, columns, properties and writer marks are as they were. No view is bound to the table.
    """
    return msgspec.structs.replace(
        then,
        next_column_id=counters.next_column_id,
        sequence=counters.sequence,
        schema_id=counters.schema_id,
        bound_views=(),
    )


def _refuse_living(
    workspace: Workspace,
    operation: Undrop,
    returning: Mapping[ObjectName, tuple[ObjectName, StoredObject]],
) -> None:
    """Refuse to bring back an object that exists under another name. Raises AlreadyExists.

    Otherwise two tables with one id would share their files, and a reference by id would be ambiguous.
    """
    kinds = {name.kind for name in returning}
    living: dict[tuple[Kind, str], ObjectName] = {}
    for name, stored in workspace.known().items():
        if name.kind in kinds:
            with contextlib.suppress(AlpheusError):  # an operation that needs this object raises the error
                living[name.kind, _id_of(workspace, name, stored)] = name
    for name, (old_name, then) in returning.items():
        holder = living.get((name.kind, _id_of(workspace, old_name, then)))
        if holder is not None:
            raise AlreadyExists(
                f"{old_name} of version {operation.version} exists as {holder}: it was renamed instead of dropped, or"
                " has come back before",
                kind="object_exists",
                hint=f"restore {holder}, or drop it first",
            )


def _id_of(workspace: Workspace, name: ObjectName, stored: StoredObject) -> str:
    definition = workspace.definition(name, stored)
    assert isinstance(definition, NamespaceDef | TableDef | ViewDef)
    return definition.id


def _read_for_drop(operation: DropNamespace, workspace: Workspace) -> Footprint:
    if not operation.cascade:
        return Footprint(names=(operation.target,), emptied=(operation.name,))
    children = sorted(workspace.children(operation.name))
    if len(children) > CHILDREN_MAX:
        children = []  # the execution refuses so many
    around = read_around((operation.target,), workspace, children)
    return msgspec.structs.replace(around, cascaded=(operation.name,))


def _read_for_rename(operation: RenameObject, workspace: Workspace) -> Footprint:
    new = operation.new_target
    if operation.kind in (Kind.PIPELINE, Kind.TAG):
        return Footprint(names=(operation.target, new))
    if operation.kind not in (Kind.TABLE, Kind.VIEW):
        return Footprint()
    parent = fmt.namespace_name(operation.new_namespace)
    return read_around((operation.target, parent, new, other_kind(new)), workspace)


def _read_for_undrop(operation: Undrop, workspace: Workspace) -> Footprint:
    if operation.kind not in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW):
        return Footprint()
    source, target, version = operation.source, operation.target, operation.version
    past, names = [(version, source)], [source, target, fmt.CATALOG]
    past_inside: tuple[PastNamespace, ...] = ()
    if operation.kind is Kind.NAMESPACE:
        lived = workspace.has_past(version, source) and workspace.past(version, source) is not None
        past_inside = ((version, operation.namespace),) if lived else ()
        if workspace.has_past_children(version, operation.namespace):
            children = workspace.past_children(version, operation.namespace)
            if len(children) <= CHILDREN_MAX:
                past += [(version, child) for child in children]
                names += children
                names += [ObjectName(child.kind, operation.new_namespace, child.name) for child in children]
    else:
        names += [fmt.namespace_name(operation.new_namespace), other_kind(target)]
    referred: list[ObjectName] = []
    for _, name in past:
        stored = workspace.past(version, name) if workspace.has_past(version, name) else None
        if stored is not None and name.kind is Kind.VIEW:
            view = decode_readable(name, stored)
            if isinstance(view, ViewDef) and view.schema_binding:
                referred += [found for reference in view.references for found in objects_of(reference)]
    around = read_around(tuple(names), workspace, referred)
    return msgspec.structs.replace(around, past=tuple(past), past_inside=past_inside)


RULES: ExecuteRules = {
    DropNamespace: ExecuteRule(Stepwise(drop_namespace), _read_for_drop),
    RenameObject: ExecuteRule(rename_object, _read_for_rename),
    Undrop: ExecuteRule(Stepwise(undrop), _read_for_undrop),
}
