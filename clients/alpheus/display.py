"""Values as people see them: one short line, and in a notebook a small table of HTML. Pure; reads nothing.

Texts that users wrote (names, properties, messages) are put on one line, cut, and escaped for the terminal or HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.urls import redact_url

LINE_CHARACTERS_MAX = 120
CELL_CHARACTERS_MAX = 200
ROWS_MAX = 20
ITEMS_MAX = 5

_URLS = ("url", "storage_url")

# --- texts -----------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """`text` with a backslash escape for each character that a terminal would not show as itself, so on one line."""
    unseen = frozenset(fmt.unseen_places(text))
    if not unseen and text.isprintable():
        return text
    return "".join(
        c if c.isprintable() and place not in unseen else c.encode("unicode_escape").decode("ascii")
        for place, c in enumerate(text)
    )


def time_text(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def count_text(count: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def one_line(text: str, most: int = LINE_CHARACTERS_MAX) -> str:
    """`text` on one line, as `printable` shows it, cut to `most` characters."""
    line = printable(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def some_of(items: Sequence[object], what: str = "") -> str:
    """The first items, and the number of the others."""
    texts = [str(item) for item in items[:ITEMS_MAX]]
    if len(items) > ITEMS_MAX:
        texts.append(f"{len(items) - ITEMS_MAX} more")
    return ", ".join(texts) or (f"no {what}" if what else "")


def cell_text(value: object) -> str:
    """The text of a field's value."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Mapping):
        return some_of([f"{key} = {cell_text(value[key])}" for key in value])
    if isinstance(value, list | tuple | set | frozenset):
        return some_of([cell_text(item) for item in value])
    return str(value)


def columns_table(columns: Iterable[Column]) -> Cells:
    return [
        ("column", "type", ""),
        *((c.name, type_text(c), "" if c.nullable else "required") for c in columns),
    ]


# --- values that show themselves -------------------------------------------------------------------

Facts = list[tuple[str, object]]
"""Names and values. A fact whose value is None or empty is not shown."""
Cells = list[tuple[object, ...]]
"""Rows of a table, the first row its header. An empty list shows no table."""


class Shown:
    """Shows itself as a line (`repr`), and in a notebook as a table. Subclasses say what is shown."""

    __slots__ = ()

    def _title(self) -> str:
        """The text behind the name of the class."""
        return ", ".join(
            f"{name}={one_line(cell_text(value), 40)}" for name, value in self._facts() if _has_value(value)
        )

    def _facts(self) -> Facts:
        return []

    def _cells(self) -> Cells:
        return []

    def __repr__(self) -> str:
        return f"<{one_line(f'{type(self).__name__} {self._title()}', LINE_CHARACTERS_MAX - 2)}>"

    def _repr_html_(self) -> str:
        heading = f"<b>{_escape(type(self).__name__)}</b> {_escape(self._title())}"
        facts = [(name, value) for name, value in self._facts() if _has_value(value)]
        tables = _html_table([], facts) + _html_table(*_split(self._cells()))
        return f"<div>{heading}{tables}</div>"


class ShownStruct(Shown, msgspec.Struct, frozen=True):
    """A frozen value that shows its fields. `_hidden` names the fields that are left out of the facts."""

    _hidden: ClassVar[tuple[str, ...]] = ()

    def _facts(self) -> Facts:
        return [
            (name, redact_url(value) if name in _URLS else value)
            for name in self.__struct_fields__
            if name not in self._hidden
            for value in [getattr(self, name)]
        ]


def _has_value(value: object) -> bool:
    return value is not None and value != "" and value != {} and value != () and value != []


def _split(cells: Cells) -> tuple[tuple[object, ...], Sequence[tuple[object, ...]]]:
    return (cells[0], cells[1:]) if cells else ((), ())


def _escape(value: object) -> str:
    return html.escape(one_line(cell_text(value), CELL_CHARACTERS_MAX))


def _html_table(header: Sequence[object], rows: Sequence[tuple[object, ...]]) -> str:
    if not rows:
        return ""
    lines = [_html_row("th", header)] if header else []
    lines += [_html_row("td", row) for row in rows[:ROWS_MAX]]
    if len(rows) > ROWS_MAX:
        lines.append(_html_row("td", [f"and {len(rows) - ROWS_MAX} more"]))
    return f"<table>{''.join(lines)}</table>"


def _html_row(tag: str, cells: Sequence[object]) -> str:
    # Notebooks align cells without a style of their own to the right.
    row = "".join(f'<{tag} style="text-align: left">{_escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{row}</tr>"
