"""The names of column types that people read and type. Stored definitions use the format's names (FORMAT.md, "Native
tables"). Every text for people, errors included, uses the names of this module."""

from __future__ import annotations

import re

from alpheus_journal.model.definitions import Column

SIMPLE_NAMES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("boolean", "bool"),
    "INT2": ("int16", "smallint", "short"),
    "INT4": ("int32", "int", "integer"),
    "INT8": ("int64", "bigint", "long"),
    "FLOAT4": ("float", "float32", "real"),
    "FLOAT8": ("double", "float64"),
    "VARCHAR": ("string", "text", "varchar"),
    "BINARY": ("binary", "bytes"),
    "DATE": ("date", "date32"),
    "TIMESTAMP6": ("timestamp", "timestamp_ntz"),
    "TIMESTAMPTZ6": ("timestamptz", "timestamp_ltz"),
}
"""The names of each type, by stored name. The first name is printed; all names are accepted."""
TYPES = (
    *(names[0] for names in SIMPLE_NAMES.values()),
    "decimal(P,S)",
    "fixed(N)",
    "list<T>",
    "map<K,V>",
    "struct<NAME:T,...>",
)
PLAIN_NAME = re.compile(r"[^\s:,<>()`]+")
_ARGUMENTS = ("length", "precision", "scale")


def type_text(column: Column) -> str:
    """Return the type of a column as `alpheus table create --column` reads it. For a damaged definition the text is as
    complete as possible. A type that this release does not know keeps its stored name."""
    match column.type:
        case "LIST" if column.element is not None:
            return f"list<{_inner_text(column.element)}>"
        case "MAP" if column.key is not None and column.value is not None:
            return f"map<{type_text(column.key)},{_inner_text(column.value)}>"
        case "STRUCT" if column.fields:
            return f"struct<{','.join(f'{quoted_name(f.name)}:{_inner_text(f)}' for f in column.fields)}>"
    name = SIMPLE_NAMES[column.type][0] if column.type in SIMPLE_NAMES else column.type
    if name in ("DECIMAL", "FIXED", "STRUCT", "LIST", "MAP"):
        name = name.lower()
    arguments = ",".join(column.properties[key] for key in _ARGUMENTS if key in column.properties)
    return f"{name}({arguments})" if arguments else name


def _inner_text(column: Column) -> str:
    return type_text(column) + ("" if column.nullable else ":required")


def quoted_name(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
