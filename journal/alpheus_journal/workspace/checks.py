"""Lookups and checks that many operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlreadyExists, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definitions import CatalogDef, Definition, Reference, TableDef, ViewDef
from alpheus_journal.model.table_starts import files_expired
from alpheus_journal.urls import redact_input
from alpheus_journal.workspace.context import Changes
from alpheus_journal.workspace.workspace import Workspace, definition_of

D = TypeVar("D", bound=Definition)

TEXT_SIZE_BYTES_MAX = 64 << 10
PROPERTIES_SIZE_BYTES_MAX = 256 << 10

_NOT_THERE = {
    Kind.NAMESPACE: "no_namespace",
    Kind.TABLE: "no_table",
    Kind.VIEW: "no_view",
    Kind.SUBSCRIPTION: "no_subscription",
    Kind.TAG: "no_tag",
}


def no_namespace(name: ObjectName) -> NotFound:
    return NotFound(f"there is no {name}", kind="no_namespace", hint="list the namespaces to see the names")


def not_there(name: ObjectName, reason: str = "", hint: str = "") -> NotFound:
    """Return the error for an object that does not exist. `reason` follows the name in the message."""
    return NotFound(
        f"there is no {name}{reason}",
        kind=_NOT_THERE.get(name.kind, "no_object"),
        hint=hint or f"list the {name.kind.label}s to see the names",
    )


def check_start(workspace: Workspace, name: ObjectName, table_id: str, version: int) -> None:
    """Check that the data files of a table at a version are kept, so that they may be referenced again. The catalog's
    definition must be fetched. Raises Expired (`files_expired`)."""
    definition = decode_as(fmt.CATALOG, require(workspace, fmt.CATALOG), CatalogDef, workspace)
    start = definition.table_starts.get(table_id, 0)
    if version < start:
        raise files_expired(name.full_name, version, start)


def require(workspace: Workspace | Changes, name: ObjectName) -> StoredObject:
    stored = workspace.get(name)
    if stored is None:
        raise not_there(name)
    return stored


def decode_as(name: ObjectName, stored: StoredObject, kind: type[D], workspace: Workspace | None = None) -> D:
    """Return the definition of an object whose kind has definitions of the class `kind`.

    `workspace` may have decoded the definition already.
    """
    definition = definition_of(name, stored) if workspace is None else workspace.definition(name, stored)
    assert isinstance(definition, kind)
    return definition


def check_revision(definition: CatalogDef, revision: int, what: str) -> None:
    """Refuse what came with a later revision of the format than the catalog's. Raises InvalidInput
    (`upgrade_needed`)."""
    if definition.format_revision < revision:
        raise InvalidInput(
            f"the catalog is in revision {definition.format_revision} of the format, which has no {what}",
            kind="upgrade_needed",
            hint=f"run alpheus upgrade once all programs know revision {revision}",
        )


def other_kind(name: ObjectName) -> ObjectName:
    """Return the view with a table's name, or the table with a view's name: they share one space of names."""
    kind = Kind.VIEW if name.kind is Kind.TABLE else Kind.TABLE
    return ObjectName(kind, name.namespace, name.name)


def require_vacant(workspace: Workspace | Changes, name: ObjectName, hint: str = "") -> None:
    """Check that no table and no view has the name of a new one. Raises AlreadyExists."""
    if workspace.get(name) is not None:
        kind = "table_exists" if name.kind is Kind.TABLE else "view_exists"
        raise AlreadyExists(f"there is a {name} already", kind=kind, hint=hint)
    other = other_kind(name)
    if workspace.get(other) is not None:
        raise AlreadyExists(f"there is a {other} of that name", kind="object_exists", hint=hint)


def objects_of(reference: Reference) -> tuple[ObjectName, ObjectName]:
    """Return the two objects that a reference may name: a table and a view."""
    return (
        ObjectName(Kind.TABLE, reference.namespace, reference.name),
        ObjectName(Kind.VIEW, reference.namespace, reference.name),
    )


def reference_to(name: ObjectName) -> Reference:
    return Reference(name.namespace, name.name)


def find_bound_views(
    workspace: Workspace | Changes, name: ObjectName, definition: Definition, *, apart_from: str = ""
) -> list[ObjectName]:
    """Return the views that are bound to the schema of a table or view, in order.

    Skips views in the namespace `apart_from`. Also skips listed views that were dropped or no longer refer to the
    object: another writer may have changed them without changing the list. Raises Corrupt for a damaged view, because
    it may still be bound.
    """
    binding = []
    for reference in definition.bound_views if isinstance(definition, TableDef | ViewDef) else ():
        view = objects_of(reference)[1]
        if apart_from and view.namespace == apart_from:
            continue
        stored = workspace.get(view)
        if stored is None:
            continue
        found = decode_as(view, stored, ViewDef)
        if found.schema_binding and reference_to(name) in found.references:
            binding.append(view)
    return sorted(binding)


def refuse_bound(what: str, name: ObjectName, views: Sequence[ObjectName]) -> None:
    """Refuse to change an object that views are bound to. Raises InvalidInput (`object_bound`).

    `what` is the verb of the message, such as "drop" or "rename".
    """
    if views:
        others = f" and {len(views) - 1} more" if len(views) > 1 else ""
        raise InvalidInput(
            f"cannot {what} {name}: {views[0]}{others} is bound to its schema",
            kind="object_bound",
            hint="drop that view first, or replace that view without schema binding",
        )


def count_rows_between(before: TableDef | None, after: TableDef | None) -> tuple[int, int]:
    """Count the rows added and removed, by manifest segments. Both numbers are upper bounds.

    A new segment may list files that an old one listed, and files may hold rows that are deleted.
    """
    old = {segment.path: segment.row_count for segment in before.segments} if before else {}
    new = {segment.path: segment.row_count for segment in after.segments} if after else {}
    added = sum(count for path, count in new.items() if path not in old)
    return added, sum(count for path, count in old.items() if path not in new)


def check_text(text: str, what: str, size_max: int = TEXT_SIZE_BYTES_MAX) -> None:
    """Refuse text with a lone surrogate or of more than `size_max` bytes. Raises InvalidInput."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate") from None
    if size > size_max:
        raise InvalidInput(f"{what} takes {size} bytes, at most {size_max} are allowed", kind="too_large")


def check_properties(properties: Mapping[str, str], what: str) -> None:
    """Refuse an empty key, text that cannot be encoded, and too many bytes. Raises InvalidInput."""
    if not properties:
        return
    total = 0
    for key, value in properties.items():
        if not key:
            raise InvalidInput(f"{what}: an empty key")
        size = _size(key, value)
        if size > TEXT_SIZE_BYTES_MAX:
            check_text(key, f"{what}: a key")
            check_text(value, f"{what}: the value of {key[:80]!r}")
        total += size
    if total > PROPERTIES_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{what} take {total} bytes, at most {PROPERTIES_SIZE_BYTES_MAX} are allowed", kind="too_large"
        )


def _size(key: str, value: str) -> int:
    """Return the bytes of both texts. Text that cannot be encoded counts as too large."""
    try:
        return len(key.encode()) + len(value.encode())
    except UnicodeEncodeError:
        return TEXT_SIZE_BYTES_MAX + 1


def edit_properties(
    properties: Mapping[str, str], set_: Mapping[str, str], unset: Sequence[str], what: str
) -> dict[str, str]:
    """Return the properties with some set and some removed. Raises InvalidInput for a key that is both."""
    gone = set(unset)
    both = sorted(gone & set_.keys())
    if both:
        raise InvalidInput(f"{what}: {both[0]!r} is both set and unset")
    for key in unset:
        check_text(key, f"{what}: a key")
    kept = {key: value for key, value in properties.items() if key not in gone} | dict(set_)
    check_properties(kept, what)
    return kept


def check_tag_name(name: str) -> None:
    """Refuse a tag's name that a reader takes for a version's number or time, for the head, for an option of a command,
    or for a URL with a secret. Raises InvalidInput."""
    reads_as = (
        "the number of a version"
        if fmt.reads_as_number(name)
        else "a time"
        if fmt.reads_as_time(name)
        else "the head"
        if name.lower() in (fmt.LATEST, "head")
        else "an option"
        if name.startswith("-")
        else "a URL with a secret"
        if redact_input(name) != name
        else ""
    )
    if reads_as:
        raise InvalidInput(
            f"tag name {redact_input(name)[:80]!r} reads as {reads_as}",
            kind="bad_name",
            hint="begin the name with a word, for example release-2026-03",
        )


def refuse_nothing(changes_anything: bool, what: str) -> None:
    if not changes_anything:
        raise InvalidInput(f"{what}: nothing to set or unset")
