"""Properties by which tables keep history for longer, or data files for less long. FORMAT.md: "Rules of namespaces and
tables"."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    CreateView,
    Operation,
    RegisterTable,
    ReplaceView,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)

HISTORY_PREFIX = "history.expire."
MAX_AGE = "history.expire.max-snapshot-age-ms"
MIN_VERSIONS = "history.expire.min-snapshots-to-keep"
_WITHOUT_EFFECT = "history.expire.max-ref-age-ms"
"""Iceberg's rule for branches and tags. Tables that come from Iceberg may have it."""
_VALUE_MAX = (1 << 63) - 1
_LOWEST = {MAX_AGE: 0, MIN_VERSIONS: 1}
_GIVEN: dict[type[Operation], str] = {
    CreateNamespace: "properties",
    CreateTable: "properties",
    CreateView: "properties",
    RegisterTable: "properties",
    ReplaceView: "properties",
    UpdateCatalog: "set",
    UpdateNamespace: "set",
    UpdateTable: "set",
}
"""The field in which an operation sets properties."""


class HistoryRules(msgspec.Struct, frozen=True):
    """What an object says of its history. None: it says nothing."""

    age_millis: int | None = None
    keep_versions: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the object says both."""
        return self.age_millis is not None and self.keep_versions is not None

    def or_else(self, other: HistoryRules) -> HistoryRules:
        """Return these rules, with those of `other` where these say nothing."""
        return HistoryRules(
            other.age_millis if self.age_millis is None else self.age_millis,
            other.keep_versions if self.keep_versions is None else self.keep_versions,
        )


def parse_history_rules(properties: Mapping[str, str], what: str) -> HistoryRules:
    """Return the rules in the properties of an object. Raises InvalidInput for a value that is no rule; `what` names
    the object."""
    return HistoryRules(*(_parse_rule(properties, name, what) for name in (MAX_AGE, MIN_VERSIONS)))


def _parse_rule(properties: Mapping[str, str], name: str, what: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else -1
    if not _LOWEST[name] <= value <= _VALUE_MAX:
        unit = "milliseconds" if name == MAX_AGE else "versions"
        raise InvalidInput(
            f"property {name} of {what} is {text[:80]!r}, which is no number of {unit}",
            hint=f"give digits alone, at least {_LOWEST[name]} and at most {_VALUE_MAX}; or unset the property",
        )
    return value


def check_history_rules(operation: Operation) -> None:
    """Check the rules that an operation sets. Raises InvalidInput for a value that is no rule, for a misspelled
    property, and for a rule on the catalog or a view, which keep nothing."""
    field = _GIVEN.get(type(operation))
    if field is None:
        return
    given: dict[str, str] = getattr(operation, field)
    names = [name for name in given if name.strip().lower().startswith(HISTORY_PREFIX)]
    if not names:
        return
    what = str(operation.target)
    if isinstance(operation, UpdateCatalog | CreateView | ReplaceView):
        raise InvalidInput(
            f"property {names[0][:200]} belongs to a namespace or a table, and {what} is none",
            hint="set it there; the catalog's own rules are given to each expiry, or to the daemon (expire_older_than,"
            " expire_keep)",
        )
    for name in names:
        if name not in (*_LOWEST, _WITHOUT_EFFECT):
            raise InvalidInput(
                f"property {name[:200]} of {what} is no rule of history",
                hint=f"the rules are {MAX_AGE} and {MIN_VERSIONS}",
            )
    parse_history_rules(given, what)
