"""Operations on views, and the binding of a view to the schema of other objects (FORMAT.md, "What operations do").

The definition of an object lists the views that are bound to its schema. Every operation keeps the views and these
lists in step, so the definition alone says whether an object is bound.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.execute.rules.schema import check_structure, count_of, only_adds
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import (
    VIEW_FORMAT_SQL,
    Column,
    Reference,
    TableDef,
    ViewDef,
    walk_columns,
)
from alpheus_journal.model.operations import CreateView, DropView, ReplaceView
from alpheus_journal.workspace.checks import (
    check_properties,
    check_text,
    decode_as,
    find_bound_views,
    objects_of,
    other_kind,
    reference_to,
    refuse_bound,
    require,
    require_vacant,
)
from alpheus_journal.workspace.context import Changes, Context, Executed
from alpheus_journal.workspace.execute_rule import (
    ExecuteRule,
    ExecuteRules,
    Footprint,
    read_around,
    read_bound,
)
from alpheus_journal.workspace.workspace import Workspace, decode_readable, definition_of

SQL_SIZE_BYTES_MAX = 256 << 10
DIALECT_SIZE_BYTES_MAX = 64
REFERENCES_MAX = 1_000

ChangeOfViews = Callable[[frozenset[Reference]], frozenset[Reference]]


def create_view(workspace: Workspace, operation: CreateView, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    require(workspace, fmt.namespace_name(operation.namespace))
    require_vacant(workspace, name)
    if not fmt.is_uuid(operation.view_id):
        raise InvalidInput(f"view id {operation.view_id[:80]!r} is not a uuid")
    view = _view_of(operation, ViewDef(id=operation.view_id), context)
    changes = Changes(workspace, operation, context)
    changes.put(name, view)
    rebind(changes, name, None, view)
    return changes.finish()


def replace_view(workspace: Workspace, operation: ReplaceView, context: Context) -> Executed:
    """Replace a view, except for its id, the views bound to it, and unknown fields of newer writers."""
    name = fmt.check_object_name(operation.target, context.keys)
    before = decode_as(name, require(workspace, name), ViewDef)
    after = _view_of(operation, before, context)
    if not (before.columns and after.columns and only_adds(before.columns, after.columns)):
        refuse_bound("replace", name, find_bound_views(workspace, name, before))
    changes = Changes(workspace, operation, context)
    changes.put(name, after)
    rebind(changes, name, before, after)
    return changes.finish()


def drop_view(workspace: Workspace, operation: DropView, context: Context) -> Executed:
    """Drop a view. A damaged view stays in the lists of the objects that it was bound to; a dropped view binds
    nothing."""
    name = fmt.check_object_name(operation.target, context.keys)
    view = decode_readable(name, require(workspace, name))
    changes = Changes(workspace, operation, context)
    changes.place(name, None)
    if view is not None:
        assert isinstance(view, ViewDef)
        refuse_bound("drop", name, find_bound_views(workspace, name, view))
        rebind(changes, name, view, None)
    return changes.finish()


def _view_of(operation: CreateView | ReplaceView, base: ViewDef, context: Context) -> ViewDef:
    """Return the definition that an operation asks for. Raises InvalidInput."""
    name = operation.target
    check_text(operation.sql, f"the text of {name}", SQL_SIZE_BYTES_MAX)
    if not operation.sql.strip():
        raise InvalidInput(f"the text of {name} is empty")
    check_text(operation.dialect, f"the dialect of {name}", DIALECT_SIZE_BYTES_MAX)
    if not operation.dialect.isprintable() or not operation.dialect.strip():
        raise InvalidInput(
            f"the dialect {operation.dialect!r} of {name} is not a word", hint='give a word such as "spark"'
        )
    if len(operation.references) > REFERENCES_MAX:
        raise InvalidInput(
            f"{name} refers to {len(operation.references)} objects, at most {REFERENCES_MAX} are allowed",
            kind="too_large",
        )
    for reference in operation.references:
        fmt.check_object_name(objects_of(reference)[0], context.keys)
    if operation.default_namespace:
        fmt.check_object_name(fmt.namespace_name(operation.default_namespace), context.keys)
    if operation.columns:
        _check_result(operation.columns)
    check_properties(operation.properties, f"properties of {name}")
    return msgspec.structs.replace(
        base,
        properties=dict(operation.properties),
        sql=operation.sql,
        dialect=operation.dialect,
        schema_binding=operation.schema_binding,
        references=tuple(dict.fromkeys(operation.references)),
        columns=operation.columns,
        default_namespace=operation.default_namespace,
        view_format=VIEW_FORMAT_SQL,
        substrait=b"",
    )


def _check_result(columns: tuple[Column, ...]) -> None:
    """Check the columns of a view's result: any types, ids from 1 on. Raises InvalidInput (`bad_schema`)."""
    check_structure(columns)
    if [column.id for column in walk_columns(columns)] != list(range(1, count_of(columns) + 1)):
        raise InvalidInput("column ids must count from 1, depth first", kind="bad_schema")


# --- binding ---------------------------------------------------------------------------------------


def rebind(changes: Changes, name: ObjectName, before: ViewDef | None, after: ViewDef | None) -> None:
    """List the view in exactly the objects that it is bound to after the changes so far.

    Raises NotFound for a binding to an object that does not exist. Raises InvalidInput for a view that refers to
    itself, bound or not, and for a circle of bindings.
    """
    if after is not None and reference_to(name) in after.references:
        raise InvalidInput(
            f"{name} refers to itself", hint="choose another name, or leave out that reference"
        )
    wanted = _bindings(after)
    for reference in _bindings(before):
        if reference not in wanted:
            unbind(changes, reference, name)
    missing = [str(reference) for reference in wanted if _bound_object(changes, reference) is None]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotFound(
            f"{name} cannot be bound to {missing[0]}{others}: there is no such object",
            kind="no_object",
            hint="create that object first, or leave out schema binding",
        )
    for reference in wanted:
        _refuse_circle(changes, name, reference)
    for reference in wanted:
        target = _bound_object(changes, reference)
        assert target is not None
        _list_view(changes, target, lambda views: views | {reference_to(name)})


def unbind(changes: Changes, reference: Reference, view: ObjectName) -> None:
    """Remove the view from the list of the object that a reference names, unless that list is damaged."""
    target = _bound_object(changes, reference)
    stored = changes.get(target) if target is not None else None
    if target is not None and stored is not None and decode_readable(target, stored) is not None:
        _list_view(changes, target, lambda views: views - {reference_to(view)})


def _bindings(view: ViewDef | None) -> tuple[Reference, ...]:
    return view.references if view is not None and view.schema_binding else ()


def _bound_object(changes: Changes, reference: Reference) -> ObjectName | None:
    return next((name for name in objects_of(reference) if changes.get(name) is not None), None)


def _list_view(changes: Changes, target: ObjectName, change: ChangeOfViews) -> None:
    stored = changes.get(target)
    assert stored is not None
    definition = definition_of(target, stored)
    assert isinstance(definition, TableDef | ViewDef)
    views = frozenset(definition.bound_views)
    changed = change(views)
    if changed != views:
        ordered = tuple(sorted(changed, key=lambda view: (view.namespace, view.name)))
        changes.put(target, msgspec.structs.replace(definition, bound_views=ordered))


def _refuse_circle(changes: Changes, view: ObjectName, start: Reference) -> None:
    """Refuse a circle of bindings from `start` back to the view, because none of its objects could ever be dropped.

    Raises InvalidInput (`object_bound`).
    """
    waiting, seen = [start], {start}
    while waiting:
        name = objects_of(waiting.pop())[1]
        stored = changes.get(name)
        if stored is None:
            continue
        if name == view:
            raise InvalidInput(
                f"{view} refers to {start}, which is bound to {view} itself",
                kind="object_bound",
                hint="leave out schema binding",
            )
        for reference in _bindings(decode_as(name, stored, ViewDef)):
            if reference not in seen:
                seen.add(reference)
                waiting.append(reference)


def _read_for_view(operation: CreateView | ReplaceView, workspace: Workspace) -> Footprint:
    referred = [name for reference in operation.references for name in objects_of(reference)]
    name = operation.target
    names = (fmt.namespace_name(operation.namespace), name, other_kind(name))
    return read_around(names, workspace, referred if operation.schema_binding else ())


RULES: ExecuteRules = {
    CreateView: ExecuteRule(create_view, _read_for_view),
    ReplaceView: ExecuteRule(replace_view, _read_for_view),
    DropView: ExecuteRule(drop_view, read_bound),
}
