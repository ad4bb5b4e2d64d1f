"""Operations on the catalog and on namespaces: properties, repairs, cancelled ids. `lifecycle` drops namespaces."""

from __future__ import annotations

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.data_roots import DATA_ROOTS_MAX, check_data_root, find_overlap
from alpheus_journal.errors import AlreadyExists, InvalidInput
from alpheus_journal.model.definitions import (
    GIVEN_UP_MAX,
    CatalogDef,
    NamespaceDef,
    TimeMark,
    merge_ranges,
)
from alpheus_journal.model.operation_messages import action_type
from alpheus_journal.model.operations import (
    Action,
    CancelTransaction,
    CreateCatalog,
    CreateNamespace,
    Repair,
    UpdateCatalog,
    UpdateNamespace,
    UpgradeCatalog,
)
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.checks import (
    check_properties,
    check_revision,
    decode_as,
    edit_properties,
    refuse_nothing,
    require,
)
from alpheus_journal.workspace.context import Changes, Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import (
    ExecuteRule,
    ExecuteRules,
    Footprint,
    name_target,
    read_nothing,
)
from alpheus_journal.workspace.workspace import Workspace


def update_catalog(workspace: Workspace, operation: UpdateCatalog, context: Context) -> Executed:
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    what = "catalog properties"
    refuse_nothing(bool(operation.set or operation.unset), what)
    properties = edit_properties(definition.properties, operation.set, operation.unset, what)
    return simple_change(
        workspace, operation, context, msgspec.structs.replace(definition, properties=properties)
    )


def _repair_definition(workspace: Workspace, operation: Repair, context: Context) -> Executed:
    if context.version != operation.head_version + 1:
        raise InvalidInput(
            f"the head is now version {context.version - 1}, but the repair is for version {operation.head_version}",
            hint="stop all writers and run alpheus repair again",
        )
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    marks, given_up = definition.time_marks, definition.given_up
    collected_before = definition.collected_before_millis
    if operation.times_up_to_millis:
        # A wrong clock may have given a time to come, and then no upload would be young enough. A collection that is
        # still deleting rests on a time that has passed.
        collected_before = min(collected_before, uuid7_millis(context.transaction_id))
        reach = max([operation.times_up_to_millis, *(mark.up_to_millis for mark in marks)])
        marks = (*marks, TimeMark(version=context.version, up_to_millis=reach))
    if operation.given_up:
        given_up = merge_ranges([*given_up, *operation.given_up])
        if (
            len(given_up) > GIVEN_UP_MAX
            or given_up[0].first < 1
            or given_up[-1].last > operation.head_version
        ):
            raise InvalidInput(
                f"{len(given_up)} ranges of versions would be given up; at most {GIVEN_UP_MAX} are allowed, within"
                f" version 1 to the head, {operation.head_version}",
                hint="restore the missing roots from a copy",
            )
    return simple_change(
        workspace,
        operation,
        context,
        msgspec.structs.replace(
            definition, time_marks=marks, given_up=given_up, collected_before_millis=collected_before
        ),
    )


def upgrade_catalog(workspace: Workspace, operation: UpgradeCatalog, context: Context) -> Executed:
    """Set the catalog's revision. The root of this version has it already. An upgrade to the revision that the catalog
    has is recorded and changes nothing, so that two programs may upgrade at once."""
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    if not 1 <= operation.revision <= fmt.FORMAT_REVISION:
        raise InvalidInput(
            f"there is no revision {operation.revision} of the format; this program knows 1 to {fmt.FORMAT_REVISION}",
            kind="not_supported",
        )
    if operation.revision < definition.format_revision:
        raise InvalidInput(
            f"the catalog is in revision {definition.format_revision} of the format, and no catalog goes back to"
            f" revision {operation.revision}",
            kind="not_supported",
        )
    if operation.revision == definition.format_revision:
        return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))
    after = msgspec.structs.replace(definition, format_revision=operation.revision)
    return simple_change(workspace, operation, context, after)


def repair(workspace: Workspace, operation: Repair, context: Context) -> Executed:
    """Execute a repair. Only `alpheus repair` may ask for one; see `check_transaction`."""
    if operation.times_up_to_millis or operation.given_up:
        return _repair_definition(workspace, operation, context)
    return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))


def cancel_transaction(workspace: Workspace, operation: CancelTransaction, context: Context) -> Executed:
    if not fmt.is_uuid(operation.transaction_id):
        raise InvalidInput(f"transaction id {operation.transaction_id[:80]!r} is not a uuid")
    return Executed(action=Action(type=action_type(operation), name=fmt.CATALOG, operation=operation))


def create_catalog(workspace: Workspace, operation: CreateCatalog, context: Context) -> Executed:
    """Refuse: only version 0 creates a catalog, and it is not made by an execution."""
    raise InvalidInput("the catalog exists: only version 0 creates it", kind="not_supported")


def create_namespace(workspace: Workspace, operation: CreateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="namespace_exists")
    if not fmt.is_uuid(operation.namespace_id):
        raise InvalidInput(f"namespace id {operation.namespace_id[:80]!r} is not a uuid")
    check_properties(operation.properties, f"properties of {name}")
    changes = Changes(workspace, operation, context)
    changes.put(
        name,
        NamespaceDef(
            id=operation.namespace_id,
            properties=dict(operation.properties),
            data_root=operation.data_root,
        ),
    )
    if operation.data_root:
        changes.put(fmt.CATALOG, _claim_data_root(workspace, operation))
    return changes.finish()


def _claim_data_root(workspace: Workspace, operation: CreateNamespace) -> CatalogDef:
    """Return the catalog's definition with the data root of a new namespace.

    A root may be used again once no namespace has it, because data files lie in folders of their tables' ids. It never
    lies inside or around another root, not even around one that is used no more: that place still holds files. Raises
    InvalidInput (`bad_data_root`, `upgrade_needed`).
    """
    url = operation.data_root
    if check_data_root(url) != url:
        raise InvalidInput(
            f"the data root {redact_url(url)} is not in its one form, {redact_url(check_data_root(url))}",
            kind="bad_data_root",
        )
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef)
    check_revision(definition, 2, "data roots")
    holder = definition.data_roots.get(url)
    is_free = holder is None or not _holds_root(workspace, holder, url)
    other = find_overlap(url, [root for root in sorted(definition.data_roots) if root != url or not is_free])
    if other is not None:
        raise InvalidInput(
            f"the data root {redact_url(url)} overlaps {redact_url(other)}, the data root of the namespace"
            f" {definition.data_roots[other]}",
            kind="bad_data_root",
            hint="choose a place beside the other roots, those of dropped namespaces too",
        )
    kept = {root: holder for root, holder in definition.data_roots.items() if root != url}
    roots = dict(sorted((kept | {url: operation.name}).items()))
    if len(roots) > DATA_ROOTS_MAX:
        raise InvalidInput(
            f"the catalog has {DATA_ROOTS_MAX} data roots, the most that are allowed", kind="too_large"
        )
    return msgspec.structs.replace(definition, data_roots=roots)


def _holds_root(workspace: Workspace, namespace: str, root: str) -> bool:
    """Return whether a namespace exists with this data root. A damaged namespace may have it."""
    name = fmt.namespace_name(namespace)
    stored = workspace.get(name)
    if stored is None:
        return False
    definition = workspace.decode_readable(name, stored)
    return definition is None or (isinstance(definition, NamespaceDef) and definition.data_root == root)


def _read_for_namespace(operation: CreateNamespace, workspace: Workspace) -> Footprint:
    if not operation.data_root:
        return Footprint(names=(operation.target,))
    stored = workspace.get(fmt.CATALOG) if workspace.has(fmt.CATALOG) else None
    definition = None if stored is None else workspace.decode_readable(fmt.CATALOG, stored)
    holders = definition.data_roots.values() if isinstance(definition, CatalogDef) else ()
    return Footprint(
        names=(operation.target, fmt.CATALOG), related=tuple(fmt.namespace_name(name) for name in holders)
    )


def update_namespace(workspace: Workspace, operation: UpdateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    definition = decode_as(name, require(workspace, name), NamespaceDef, workspace)
    what = f"properties of {name}"
    refuse_nothing(bool(operation.set or operation.unset), what)
    properties = edit_properties(definition.properties, operation.set, operation.unset, what)
    return simple_change(
        workspace, operation, context, msgspec.structs.replace(definition, properties=properties)
    )


def _read_for_repair(operation: Repair, workspace: Workspace) -> Footprint:
    if operation.times_up_to_millis or operation.given_up:
        return Footprint(names=(operation.target,))
    return Footprint()


RULES: ExecuteRules = {
    CreateCatalog: ExecuteRule(create_catalog, read_nothing),
    UpdateCatalog: ExecuteRule(update_catalog, settled=name_target),
    Repair: ExecuteRule(repair, _read_for_repair),
    UpgradeCatalog: ExecuteRule(upgrade_catalog, settled=name_target),
    CancelTransaction: ExecuteRule(cancel_transaction, read_nothing),
    CreateNamespace: ExecuteRule(
        create_namespace,
        _read_for_namespace,
        lambda operation: None if operation.data_root else (operation.target,),
    ),
    UpdateNamespace: ExecuteRule(update_namespace, settled=name_target),
}
