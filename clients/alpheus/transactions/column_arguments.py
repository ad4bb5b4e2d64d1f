"""Columns and defaults in the forms that callers give, checked and encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from alpheus.session.arguments import several
from alpheus_journal.errors import InvalidInput
from alpheus_journal.execute.rules.schema import Paths, Place
from alpheus_journal.model.definitions import Column, with_ids
from alpheus_journal.model.operations import AddColumn, UpdateTable
from alpheus_journal.tables.columns import columns_of_schema, encode_default

# --- columns ---------------------------------------------------------------------------------------


def parse_added_columns(value: Any) -> tuple[AddColumn, ...]:
    """Parse new columns. Raises InvalidInput (`bad_schema`).

    `value` is a schema, a field, or a list of fields: then the columns are top-level ones, with the names of the
    fields. Or it maps paths, whose last dot splits off the parent, to types or to fields of the same name.
    """
    if value is None:
        return ()
    if isinstance(value, pa.Field):
        value = [value]
    if isinstance(value, Mapping):
        return tuple(
            _column_to_add(*_split_path(path), _field_of(path, kind)) for path, kind in value.items()
        )
    if isinstance(value, pa.Schema):
        value = list(value)
    fields = several("add_columns", value)
    for field in fields:
        if not isinstance(field, pa.Field):
            raise InvalidInput(
                f"add_columns: {field!r} is not a field",
                kind="bad_schema",
                hint='pass {"name": pyarrow.int64()}, or pyarrow fields',
            )
    return tuple(_column_to_add("", field.name, field) for field in fields)


def _split_path(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition(".")
    return parent, name


def _field_of(path: Any, kind: Any) -> pa.Field:
    if isinstance(path, str) and path and isinstance(kind, pa.Field):
        if kind.name != _split_path(path)[1]:
            raise InvalidInput(
                f"add_columns: the field for {path!r} has another name, {kind.name!r}",
                kind="bad_schema",
                hint=f"give both the same name: pyarrow.field({_split_path(path)[1]!r}, ...)",
            )
        return kind
    if not isinstance(path, str) or not path or not isinstance(kind, pa.DataType):
        raise InvalidInput(
            f"add_columns: {path!r}: {kind!r} is not a name with a type",
            kind="bad_schema",
            hint='pass {"name": pyarrow.int64()}, or pyarrow fields',
        )
    return pa.field(path, kind)


def _column_to_add(parent: str, name: str, field: pa.Field) -> AddColumn:
    column = columns_of_schema(pa.schema([field.with_name(name)]))[0]
    return AddColumn(parent=parent, column=with_ids(column, lambda: 0))


def parse_retyped_columns(value: Mapping[str, pa.DataType] | None) -> dict[str, Column]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"retype_columns: a mapping of paths to types is needed, not {type(value).__name__}"
        )
    found = {}
    for path, kind in value.items():
        if not isinstance(path, str) or not isinstance(kind, pa.DataType):
            raise InvalidInput(
                f"retype_columns: {path!r}: {kind!r} is not a path with a type", kind="bad_schema"
            )
        column = columns_of_schema(pa.schema([pa.field("column", kind)]))[0]
        found[path] = with_ids(column, lambda: 0)
    return found


def check_flags(what: str, value: Mapping[str, bool] | None) -> dict[str, bool]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(path, str) and isinstance(flag, bool) for path, flag in value.items()
    ):
        raise InvalidInput(f"{what}: a mapping of paths to True or False is needed")
    return dict(value)


# --- defaults --------------------------------------------------------------------------------------


def check_defaults(value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(path, str) for path in value):
        raise InvalidInput("defaults: a mapping of paths to values is needed")
    return dict(value)


def find_default_place(path: str, columns: Sequence[Column], added: Sequence[AddColumn], what: str) -> Place:
    """Find the column of a default, among the columns that the same step adds, then among existing ones. `what` names
    the table. Raises NotFound (`no_column`), InvalidInput (`bad_schema`)."""
    for new in added:
        prefix = f"{new.parent}." if new.parent else ""
        name = prefix + new.column.name
        if path == name or path.startswith(f"{name}."):
            return Paths([new.column], what).find(path.removeprefix(prefix))
    return Paths(columns, what).find(path)


def columns_with_defaults(
    columns: tuple[Column, ...], defaults: Mapping[str, Any], what: str
) -> tuple[Column, ...]:
    """The columns of a new table, with the defaults of inserts."""
    for path, value in defaults.items():
        place = find_default_place(path, columns, (), what)
        data = _default_of(place, value, path)
        columns = tuple(_replace_column(column, place.column, {"write_default": data}) for column in columns)
    return columns


def update_with_defaults(
    operation: UpdateTable, defaults: Mapping[str, Any], columns: Sequence[Column]
) -> UpdateTable:
    """The update of a table with these columns, with the defaults. A default of an added column becomes part of the
    column."""
    added, changed = list(operation.add_columns), dict(operation.defaults)
    for path, value in defaults.items():
        place = find_default_place(path, columns, added, str(operation.target))
        data = _default_of(place, value, path)
        top = list(place.up())[-1].column
        index = next((index for index, new in enumerate(added) if new.column is top), None)
        if index is None:
            changed[path] = data
        else:
            both = {"initial_default": data, "write_default": data}
            column = _replace_column(top, place.column, both)
            added[index] = msgspec.structs.replace(added[index], column=column)
    return msgspec.structs.replace(operation, add_columns=tuple(added), defaults=changed)


def _default_of(place: Place, value: Any, path: str) -> bytes | None:
    column = place.column
    if any(up.role != "field" for up in place.up()):
        raise InvalidInput(
            f"column {path!r} is inside a list or map, so it cannot have a default", kind="bad_schema"
        )
    if value is None and not column.nullable:
        raise InvalidInput(
            f"column {path!r} is required, so its default cannot be NULL",
            kind="bad_schema",
            hint="give a value as default, or make the column nullable",
        )
    return None if value is None else encode_default(column, value, path)


def _replace_column(column: Column, old: Column, changes: Mapping[str, Any]) -> Column:
    """`column` with the changes made to `old`, which is `column` itself or one of its fields at any depth."""
    if column is old:
        return msgspec.structs.replace(column, **changes)
    if not column.fields:
        return column
    return msgspec.structs.replace(
        column, fields=tuple(_replace_column(field, old, changes) for field in column.fields)
    )
