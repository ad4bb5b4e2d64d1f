"""Executing what concerns tags: creating, replacing, dropping (FORMAT.md, "Tags and pins").

`lifecycle` renames them.
"""

from __future__ import annotations

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import AlreadyExists, Conflict, Corrupt, InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import CatalogDef, TagDef
from alpheus_journal.model.operations import TABLE_STARTS_MAX, CreateTag, DropTag, ReplaceTag, SetTag
from alpheus_journal.workspace.checks import (
    check_properties,
    check_revision,
    check_tag_name,
    check_text,
    decode_as,
    require,
)
from alpheus_journal.workspace.context import Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, name_target
from alpheus_journal.workspace.workspace import Workspace

COMMIT_ID_SIZE_BYTES_MAX = 200
EXPIRE_AT_MILLIS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, which every program can show."""


def create_tag(workspace: Workspace, operation: CreateTag, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    check_tag_name(name.name)
    if workspace.get(name) is not None:
        raise AlreadyExists(
            f"there is a {name} already", kind="tag_exists", hint="replace the tag, or choose another name"
        )
    if not fmt.is_uuid(operation.tag_id):
        raise InvalidInput(f"tag id {operation.tag_id[:80]!r} is not a uuid")
    return _set_tag(workspace, operation, context, operation.tag_id)


def replace_tag(workspace: Workspace, operation: ReplaceTag, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    definition = decode_as(name, require(workspace, name), TagDef)
    return _set_tag(workspace, operation, context, definition.id)


def _set_tag(
    workspace: Workspace, operation: CreateTag | ReplaceTag, context: Context, tag_id: str
) -> Executed:
    name = operation.target
    check_revision(decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef), 2, "tags")
    if not 0 <= operation.version < context.version:
        raise InvalidInput(
            f"{name}: version {operation.version} does not exist yet, the head is {context.version - 1}",
            kind="bad_version",
        )
    check_text(operation.commit_id, f"the commit id of {name}", COMMIT_ID_SIZE_BYTES_MAX)
    if not operation.commit_id:
        raise InvalidInput(f"{name}: the commit id of version {operation.version} is missing")
    try:
        fmt.check_pin_pointer(operation.pin_path)
    except Corrupt as error:
        raise InvalidInput(f"{name}: {error.message}") from None
    created_at = uuid7_millis(context.transaction_id)  # a replay must give the same time
    if operation.expire_at_millis and not created_at < operation.expire_at_millis <= EXPIRE_AT_MILLIS_MAX:
        raise InvalidInput(
            f"{name}: the time {operation.expire_at_millis} ms, from which the tag may be deleted, is not between now"
            " and the year 9999",
            hint="keep the tag for less time, or for ever",
        )
    check_text(operation.message, f"the message of {name}")
    check_properties(operation.properties, f"properties of {name}")
    _check_objects(operation, context)
    _check_lacking(operation, context)
    definition = TagDef(
        id=tag_id,
        version=operation.version,
        commit_id=operation.commit_id,
        version_created_at_millis=operation.version_created_at_millis,
        pin_path=operation.pin_path,
        creator=context.principal,
        created_at_millis=created_at,
        expire_at_millis=operation.expire_at_millis,
        message=operation.message,
        properties=dict(operation.properties),
        object_count=operation.object_count,
        table_count=operation.table_count,
        row_count=operation.row_count,
        chosen=operation.chosen,
        left_out=operation.left_out,
        lacking=dict(operation.lacking),
    )
    return simple_change(workspace, operation, context, definition)


def _check_objects(operation: SetTag, context: Context) -> None:
    """Check the names and versions of chosen objects, and of those that are left out."""
    for objects in (operation.chosen, operation.left_out):
        if len(objects) > fmt.TAG_OBJECTS_MAX:
            raise InvalidInput(
                f"{operation.target} names {len(objects)} objects, at most {fmt.TAG_OBJECTS_MAX} are allowed",
                kind="too_large",
                hint="name whole namespaces",
            )
        for each in objects:
            fmt.check_object_name(each.object_name, context.keys)
            if not 0 <= each.version < context.version:
                raise InvalidInput(
                    f"{operation.target}: version {each.version} of {each.full_name} does not exist yet, the head is"
                    f" {context.version - 1}",
                    kind="bad_version",
                )


def _check_lacking(operation: SetTag, context: Context) -> None:
    """Check the form of what the tag lacks. Whether the files have gone is the claim of the process that made the pin:
    a claim too many lets files of this tag alone go."""
    if len(operation.lacking) > TABLE_STARTS_MAX:
        raise InvalidInput(
            f"{operation.target} lacks more than {TABLE_STARTS_MAX:,} tables", kind="too_large"
        )
    for table_id, start in operation.lacking.items():
        if not fmt.is_uuid(table_id) or not 0 < start < context.version:
            raise InvalidInput(
                f"{operation.target} lacks data files of the table {table_id[:80]!r} below version {start}, which is"
                " no table or no version",
                kind="bad_version",
            )


def drop_tag(workspace: Workspace, operation: DropTag, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    stored = require(workspace, name)
    if operation.expected_pin_path:
        definition = decode_as(name, stored, TagDef)
        if definition.pin_path != operation.expected_pin_path:
            raise Conflict(
                f"{name} was replaced, and names version {definition.version}",
                kind="object_changed",
                mine=f"drop {name}",
                theirs=f"replace {name}",
                retryable=True,
                hint="look at the tag again, and drop it if you still want to",
            )
    return simple_change(workspace, operation, context, None)


def _name_target_and_catalog(operation: SetTag) -> tuple[ObjectName, ...]:
    return (operation.target, fmt.CATALOG)


RULES: ExecuteRules = {
    CreateTag: ExecuteRule(create_tag, settled=_name_target_and_catalog),
    ReplaceTag: ExecuteRule(replace_tag, settled=_name_target_and_catalog),
    DropTag: ExecuteRule(drop_tag, settled=name_target),
}
