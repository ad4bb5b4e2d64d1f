"""Operations on namespaces: create, change properties. What drops them is in `lifecycle`."""

from __future__ import annotations

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlreadyExists, InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import (
    NamespaceDef,
)
from alpheus_journal.model.operations import (
    CreateNamespace,
    UpdateNamespace,
)
from alpheus_journal.workspace.checks import check_properties, edited, refuse_nothing, require, typed
from alpheus_journal.workspace.context import Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules
from alpheus_journal.workspace.workspace import Workspace


def create_namespace(workspace: Workspace, operation: CreateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="namespace_exists")
    if not fmt.is_uuid(operation.namespace_id):
        raise InvalidInput(f"namespace id {operation.namespace_id[:80]!r} is no uuid")
    if operation.data_root:
        raise InvalidInput("a data root of a namespace is not supported yet", kind="not_supported")
    check_properties(operation.properties, f"properties of {name}")
    after = NamespaceDef(id=operation.namespace_id, properties=dict(operation.properties))
    return simple_change(workspace, operation, context, after)


def update_namespace(workspace: Workspace, operation: UpdateNamespace, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    definition = typed(name, require(workspace, name), NamespaceDef, workspace)
    what = f"properties of {name}"
    refuse_nothing(bool(operation.set or operation.unset), what)
    properties = edited(definition.properties, operation.set, operation.unset, what)
    return simple_change(
        workspace, operation, context, msgspec.structs.replace(definition, properties=properties)
    )


def _names_of(operation: CreateNamespace | UpdateNamespace) -> tuple[ObjectName, ...]:
    return (operation.target,)


RULES: ExecuteRules = {
    CreateNamespace: ExecuteRule(create_namespace, settled=_names_of),
    UpdateNamespace: ExecuteRule(update_namespace, settled=_names_of),
}
