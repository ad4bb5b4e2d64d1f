"""A native table's columns: the columns of a new table, and their changes (FORMAT.md, "Native tables").

Pure. A column keeps its id for life, and files name columns by id. So adding, dropping, renaming and reordering columns
never touches files, and a type only changes to one that holds every value of the old type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from alpheus_journal.errors import Conflict, InvalidInput, NotFound
from alpheus_journal.model.definitions import COLUMN_ID_MAX, Column, TableDef, walk_columns, with_ids
from alpheus_journal.model.operations import AddColumn, UpdateTable
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import check_defaults, check_types
from alpheus_journal.workspace.checks import check_properties, check_text

COLUMNS_MAX = 10_000
COLUMN_DEPTH_MAX = 32

WIDER = {
    "INT2": ("INT4", "INT8"),
    "INT4": ("INT8",),
    "FLOAT4": ("FLOAT8",),
}
"""For each type, the types that hold all its values. DECIMAL, VARCHAR and CHAR grow by their properties."""
WIDENING_HINT = (
    "choose a wider type: int16 to int32 or int64, int32 to int64, float to double, decimal(P,S) to more digits P"
    " with the same S after the point; otherwise add a column and fill it"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TYPE_PROPERTIES = ("precision", "scale", "length")
_TYPE_CHILDREN = {"STRUCT": "fields", "MAP": "key and value", "LIST": "element"}


def _schema_error(reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(reason, kind="bad_schema", hint=hint)


# --- columns of a new table ------------------------------------------------------------------------


def check_columns(columns: Sequence[Column]) -> int:
    """Check the schema of a new native table. Return the number of columns, nested ones too.

    Raises InvalidInput (`bad_schema`) naming the column.
    """
    count = check_structure(columns)
    if [column.id for column in walk_columns(columns)] != list(range(1, count + 1)):
        raise _schema_error("column ids must count from 1, depth first")
    check_types(columns)
    check_defaults(columns)
    if any(column.initial_default is not None for column in walk_columns(columns)):
        raise _schema_error(
            "a column of a new table cannot have an initial default: no file lacks the column"
        )
    return count


def count_of(columns: Sequence[Column]) -> int:
    """Return the number of columns, nested ones too."""
    return sum(1 for _ in walk_columns(columns))


def check_structure(columns: Sequence[Column]) -> int:
    """Check the names, nesting and number of columns of any type. Return the number of columns, nested ones too.

    Raises InvalidInput (`bad_schema`).
    """
    if not columns:
        raise _schema_error("a table needs at least one column")
    count = _check_group(columns, "", 1)
    if count > COLUMNS_MAX:
        raise _schema_error(f"{count} columns, at most {COLUMNS_MAX} are allowed")
    return count


def _check_group(group: Sequence[Column], path: str, depth: int) -> int:
    """Check columns with one parent. Return their number, nested ones too."""
    if depth > COLUMN_DEPTH_MAX:
        raise _schema_error(f"column {path} is nested more than {COLUMN_DEPTH_MAX} levels deep")
    seen: dict[str, str] = {}
    count = len(group)
    for column in group:
        where = f"{path}.{column.name}" if path else column.name
        if not column.name or _CONTROL.search(column.name):
            raise _schema_error(f"column name {where!r} is empty or holds a control character")
        check_text(column.name, "a column name")
        folded = column.name.lower()
        if folded in seen:
            raise _schema_error(f"columns {seen[folded]!r} and {column.name!r} are the same name to Spark")
        seen[folded] = column.name
        if column.type in _TYPE_CHILDREN or column.children():
            _check_nested(column, where)
        if column.properties:
            check_properties(column.properties, f"properties of column {where!r}")
        if (
            column.children() or depth == COLUMN_DEPTH_MAX
        ):  # at the deepest level, the next call refuses children
            count += _check_group(column.fields, where, depth + 1)
            inner = [c for c in (column.key, column.value, column.element) if c is not None]
            count += _check_group(inner, where, depth + 1)
    return count


def _check_nested(column: Column, where: str) -> None:
    has = {
        "STRUCT": bool(column.fields),
        "MAP": column.key is not None and column.value is not None,
        "LIST": column.element is not None,
    }
    if column.type in has and not has[column.type]:
        raise _schema_error(
            f"column {where!r} of type {type_text(column)} lacks its {_TYPE_CHILDREN[column.type]}"
        )
    wanted = {"STRUCT": len(column.fields), "MAP": 2, "LIST": 1}.get(column.type, 0)
    if len(column.children()) != wanted:
        raise _schema_error(
            f"column {where!r} of type {type_text(column)} has nested columns that do not fit it"
        )


def only_adds(before: Sequence[Column], after: Sequence[Column]) -> bool:
    """Return whether a reader by name finds all columns of `before` unchanged in `after`."""
    found = {column.name: column for column in after}
    for column in before:
        other = found.get(column.name)
        if other is None or _plain(column) != _plain(other):
            return False
        pairs = ((column.key, other.key), (column.value, other.value), (column.element, other.element))
        if any((a is None) != (b is None) for a, b in pairs):
            return False
        if not all(
            only_adds([_unnamed(a)], [_unnamed(b)]) for a, b in pairs if a is not None and b is not None
        ):
            return False
        if not only_adds(column.fields, other.fields):
            return False
    return True


def _plain(column: Column) -> tuple[object, ...]:
    return (column.type, column.nullable, *(column.properties.get(key) for key in _TYPE_PROPERTIES))


def _unnamed(column: Column) -> Column:
    return msgspec.structs.replace(column, name="")


# --- changes of columns ----------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """A column and its place: `parent` is None at the top, `role` is "field", "element", "key" or "value"."""

    column: Column
    path: str
    parent: Place | None
    role: str

    def up(self) -> Iterator[Place]:
        """Yield this place and the columns around it, from the inside out."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    @property
    def in_map_key(self) -> bool:
        return any(place.role == "key" for place in self.up())


class Paths:
    """The columns of a table by path. The name of a top-level column takes precedence over a path of the same text."""

    def __init__(self, columns: Sequence[Column], table: str) -> None:
        self._table = table
        self._top: dict[str, Place] = {}
        self._all: dict[str, list[Place]] = {}
        for column in columns:
            self._top[column.name] = self._add(column, column.name, None, "field")

    def _add(self, column: Column, path: str, parent: Place | None, role: str) -> Place:
        place = Place(column, path, parent, role)
        self._all.setdefault(path, []).append(place)
        for field in column.fields:
            self._add(field, f"{path}.{field.name}", place, "field")
        for inner, of_role in ((column.key, "key"), (column.value, "value"), (column.element, "element")):
            if inner is not None:
                self._add(inner, f"{path}.{of_role}", place, of_role)
        return place

    def find(self, path: str) -> Place:
        """Return the column at a path. Raises NotFound (`no_column`), or InvalidInput (`bad_schema`) for a path of two
        columns."""
        if path in self._top:
            return self._top[path]
        found = self._all.get(path, [])
        if not found:
            raise NotFound(
                f"{self._table} has no column {path[:200]!r}",
                kind="no_column",
                hint="name a nested column by its path, such as address.street, tags.element or prices.value",
            )
        if len(found) > 1:
            raise _schema_error(
                f"{path[:200]!r} names two columns of {self._table}, because column names have dots"
            )
        return found[0]


class ColumnsChanged(msgspec.Struct, frozen=True):
    columns: tuple[Column, ...]
    next_column_id: int
    add_columns: tuple[AddColumn, ...]  # as requested, with their new ids


def change_columns(
    table: TableDef, operation: UpdateTable, what: str, *, ids_are_used: bool
) -> ColumnsChanged:
    """Return the columns after an operation, which must keep partition and sort keys.

    - `what` names the table.
    - `ids_are_used` says that files of the same transaction may have the ids that it assigns to new columns.

    Raises InvalidInput (`bad_schema`), NotFound (`no_column`) and Conflict (`column_ids_moved`).
    """
    _check_new_defaults(operation)
    edit = _Edit(table, operation, what)
    next_id, added = _assign_ids(table, operation, what, ids_are_used)
    columns = edit.rebuild(added)
    if operation.column_order:
        columns = _reorder(columns, operation.column_order, what)
    check_structure(columns)
    check_types(columns)
    if any(c.initial_default is not None or c.write_default is not None for c in walk_columns(columns)):
        check_defaults(columns)
    return ColumnsChanged(columns, next_id, added)


def _check_new_defaults(operation: UpdateTable) -> None:
    for new in operation.add_columns:
        for column in walk_columns([new.column]):
            if column.initial_default != column.write_default:
                raise _schema_error(
                    f"the new column {column.name!r} has different defaults for existing rows and for inserts",
                    "add the column with one default, and change the default of inserts afterwards",
                )


def _assign_ids(
    table: TableDef, operation: UpdateTable, what: str, ids_are_used: bool
) -> tuple[int, tuple[AddColumn, ...]]:
    """Return the next free id, and the new columns with their ids."""
    count = sum(count_of([new.column]) for new in operation.add_columns)
    if table.next_column_id + count >= COLUMN_ID_MAX:
        raise _schema_error(f"{what} has used up its column ids", "create a new table")
    counter = iter(range(table.next_column_id, COLUMN_ID_MAX))
    added = tuple(
        msgspec.structs.replace(new, column=with_ids(new.column, lambda: next(counter)))
        for new in operation.add_columns
    )
    asked = [column.id for new in operation.add_columns for column in walk_columns([new.column])]
    given = [column.id for new in added for column in walk_columns([new.column])]
    if any(asked) and asked != given and ids_are_used:
        raise Conflict(
            f"new columns of {what} were given the ids {asked[:5]}, but the next ids are now {given[:5]}: another"
            " transaction has added columns",
            kind="column_ids_moved",
            mine=f"update {what}",
            theirs=f"columns added to {what}",
            hint="run it again from the newest version, and write the files again: they have the old ids",
        )
    return next(counter), added


class _Edit:
    """The changes of an UpdateTable by column id, each checked when it is added."""

    def __init__(self, table: TableDef, operation: UpdateTable, what: str) -> None:
        self._table = table
        self._what = what
        self._paths = Paths(table.columns, what)
        self._dropped: dict[int, Place] = {}
        self._renamed: dict[int, str] = {}
        self._retyped: dict[int, Column] = {}
        self._nullable: dict[int, bool] = {}
        self._defaults: dict[int, bytes | None] = {}
        self._partition_keys = {field.column_id for field in table.partition_spec}
        self._sort_keys = {field.column_id for field in table.sort_order}
        self._touched: dict[int, Place] = {}
        for path in operation.drop_columns:
            self._drop(self._touch(path))
        for path, name in operation.rename_columns.items():
            self._rename(self._touch(path), name)
        for path, column in operation.retype_columns.items():
            self._retype(self._touch(path), column)
        nullables: set[int] = set()
        for path, nullable in operation.nullable_columns.items():
            place = self._paths.find(path)
            if place.column.id in nullables or place.column.id in self._dropped:
                raise _schema_error(f"column {path!r} of {what} is changed in two ways by one operation")
            nullables.add(place.column.id)
            self._touched.setdefault(place.column.id, place)
            self._make_nullable(place, nullable)
        for path, default in operation.defaults.items():
            self._give_default(self._paths.find(path), default)
        for place in self._touched.values():
            above = next((up for up in place.up() if up is not place and up.column.id in self._dropped), None)
            if above is not None:
                raise _schema_error(f"column {place.path!r} of {what} is in {above.path!r}, which is dropped")
        self._parents = [self._parent_of(new) for new in operation.add_columns]

    def _touch(self, path: str) -> Place:
        place = self._paths.find(path)
        if place.column.id in self._touched:
            raise _schema_error(f"column {path!r} of {self._what} is changed in two ways by one operation")
        self._touched[place.column.id] = place
        return place

    def _drop(self, place: Place) -> None:
        if place.role != "field":
            raise _schema_error(
                f"{place.path!r} of {self._what} is part of a list or map: drop the list or map"
            )
        if place.in_map_key:
            raise _in_map_key_error(place, self._what)
        for keys, what in ((self._partition_keys, "partition"), (self._sort_keys, "sort")):
            if place.column.id in keys:
                raise _schema_error(
                    f"column {place.path!r} of {self._what} is a {what} key: it cannot be dropped",
                    "create a new table: partitions and sort order cannot change",
                )
        self._dropped[place.column.id] = place

    def _rename(self, place: Place, name: str) -> None:
        if place.role != "field":
            raise _schema_error(f"{place.path!r} of {self._what} has no name of its own")
        self._renamed[place.column.id] = name

    def _retype(self, place: Place, column: Column) -> None:
        if place.in_map_key:
            raise _in_map_key_error(place, self._what)
        if place.column.id in self._partition_keys:
            raise _schema_error(
                f"column {place.path!r} of {self._what} is a partition key: its type cannot change",
                "create a new table: partitions cannot change",
            )
        self._retyped[place.column.id] = widen_column(place.column, column, f"{place.path!r} of {self._what}")

    def _make_nullable(self, place: Place, nullable: bool) -> None:
        if place.in_map_key:
            raise _in_map_key_error(place, self._what)
        if not nullable and place.column.nullable and self._table.row_count:
            raise _schema_error(
                f"column {place.path!r} of {self._what} cannot become required: the table has rows",
                "make the column required while the table is empty; deleted rows count until the table is compacted",
            )
        self._nullable[place.column.id] = nullable

    def _give_default(self, place: Place, default: bytes | None) -> None:
        number = place.column.id
        if number in self._defaults or number in self._dropped or number in self._retyped:
            raise _schema_error(
                f"column {place.path!r} of {self._what} is changed in two ways by one operation"
            )
        if default is None and not self._nullable.get(number, place.column.nullable):
            raise _schema_error(
                f"column {place.path!r} of {self._what} is required: its default cannot be NULL",
                "give the default a value, or make the column nullable",
            )
        self._defaults[number] = default
        self._touched.setdefault(number, place)

    def _parent_of(self, new: AddColumn) -> int:
        """Return the id of the struct that a new column joins, or 0 for the top level."""
        name = new.column.name
        if not new.column.nullable and new.column.initial_default is None and self._table.row_count:
            raise _schema_error(
                f"the new column {name!r} of {self._what} cannot be required: the table has rows, which lack it",
                "add the column as nullable or with a default",
            )
        if not new.parent:
            return 0
        place = self._paths.find(new.parent)
        if place.in_map_key:
            raise _in_map_key_error(place, self._what)
        column = place.column
        for inner in (column.element, column.value):
            if inner is not None and inner.type == "STRUCT":
                column = inner
        if column.type != "STRUCT":
            raise _schema_error(
                f"no column can be added to {new.parent!r} of {self._what}: it is not a struct"
            )
        if any(up.column.id in self._dropped for up in place.up()):
            raise _schema_error(f"no column can be added to {new.parent!r} of {self._what}: it is dropped")
        return column.id

    def rebuild(self, added: Sequence[AddColumn]) -> tuple[Column, ...]:
        joining: dict[int, list[Column]] = {}
        for parent, new in zip(self._parents, added, strict=True):
            joining.setdefault(parent, []).append(new.column)

        def one(column: Column) -> Column:
            base = self._retyped.get(column.id, column)
            return msgspec.structs.replace(
                base,
                name=self._renamed.get(column.id, column.name),
                nullable=self._nullable.get(column.id, column.nullable),
                fields=group(column.fields, column.id) if column.fields else (),
                key=one(column.key) if column.key is not None else None,
                value=one(column.value) if column.value is not None else None,
                element=one(column.element) if column.element is not None else None,
                write_default=self._defaults.get(column.id, column.write_default),
            )

        def group(columns: Sequence[Column], parent: int) -> tuple[Column, ...]:
            kept = [one(column) for column in columns if column.id not in self._dropped]
            kept += joining.get(parent, [])
            if not kept:
                last = next(place for place in self._dropped.values() if place.column in columns)
                raise _schema_error(
                    f"{last.path!r} of {self._what} cannot be dropped: it is the last column there"
                )
            return tuple(kept)

        return group(self._table.columns, 0)


def _in_map_key_error(place: Place, what: str) -> InvalidInput:
    return _schema_error(f"{place.path!r} of {what} cannot change: it is the key of a map, or part of one")


def _reorder(columns: Sequence[Column], order: Sequence[str], what: str) -> tuple[Column, ...]:
    by_name = {column.name: column for column in columns}
    if len(order) != len(columns) or set(order) != set(by_name):
        odd = sorted(set(order) ^ set(by_name))
        named = f" (check {odd[0]!r})" if odd else ""
        raise _schema_error(
            f"the order of columns of {what} must name each of its {len(columns)} columns once{named}",
            "use the names after the change, and include new columns",
        )
    return tuple(by_name[name] for name in order)


def widen_column(column: Column, to: Column, what: str) -> Column:
    """Return the column with the type and type properties of `to`, which must hold all values of the column.

    Raises InvalidInput (`bad_schema`) for any other type.
    """
    wanted = {key: to.properties[key] for key in _TYPE_PROPERTIES if key in to.properties}
    present = {key: column.properties[key] for key in _TYPE_PROPERTIES if key in column.properties}
    if not (column.children() or to.children()) and _holds(column.type, present, to.type, wanted):
        rest = {key: value for key, value in column.properties.items() if key not in _TYPE_PROPERTIES}
        return msgspec.structs.replace(column, type=to.type, properties=rest | wanted)
    raise _schema_error(
        f"column {what} cannot change from {type_text(column)} to {type_text(to)}",
        WIDENING_HINT,
    )


def _holds(old: str, present: Mapping[str, str], new: str, wanted: Mapping[str, str]) -> bool:
    if old != new:
        return new in WIDER.get(old, ()) and not wanted
    if present == wanted:
        return True
    if old == "DECIMAL":
        return present.get("scale") == wanted.get("scale") and _less(present, wanted, "precision")
    if old in ("VARCHAR", "CHAR"):
        return "length" not in wanted or _less(present, wanted, "length")
    return False


def _less(present: Mapping[str, str], wanted: Mapping[str, str], key: str) -> bool:
    texts = (present.get(key, ""), wanted.get(key, ""))
    if not all(text.isascii() and text.isdigit() and len(text) <= 10 for text in texts):
        return False
    return int(texts[0]) < int(texts[1])
