"""Select the changes of a catalog that a follower wants."""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache

import msgspec

from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Event

FILTER_TEXTS_MAX = 1000
"""The most entries in one field of a filter, such as names or patterns."""


def pattern_of(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: `*` matches any text, `?` one character, every other character itself. The regular expression
    from fnmatch backtracks at most once for each star, so no pattern can slow down other followers."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


_filter_pattern = lru_cache(maxsize=10_000)(pattern_of)
"""A cache, because a filter matches its patterns with every event."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a follower wants; an empty filter wants all. An event without a matching change is skipped.

    `names` are full names ("namespace.name") and `name_patterns` globs ("sales.*"); an object must fit one of both.
    `actions` are names of action types ("TABLE_INSERT"): an object matches when such an action of the event names or
    changed it. In a version that does not record its actions every object matches. Changes of the objects in `also`
    always match. A matching event is delivered with all its transactions and the matching changes.
    """

    namespaces: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    name_patterns: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    actions: frozenset[str] = frozenset()
    also: frozenset[ObjectName] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether every change matches. (`also` only adds matches, so it does not count here.)"""
        return not (self.namespaces or self.names or self.name_patterns or self.kinds or self.actions)

    def matches(self, name: ObjectName) -> bool:
        """Return whether the object matches, without regard to `actions` and `also`."""
        return (
            (not self.namespaces or name.namespace in self.namespaces)
            and (not self.kinds or name.kind in self.kinds)
            and (not (self.names or self.name_patterns) or self._names(name.full_name))
        )

    def _names(self, full_name: str) -> bool:
        return full_name in self.names or any(
            _filter_pattern(pattern).match(full_name) is not None for pattern in self.name_patterns
        )

    def select(self, event: Event) -> Event | None:
        """Return the event with only its matching changes, or None when nothing matches. A matching action counts even
        without a change: it changed nothing, or its change was undone within the version."""
        if self.is_empty:
            return event
        acted = self._acted_on(event) if self.actions else None
        changes = tuple(
            change
            for change in event.changes
            if change.name in self.also
            or (self.matches(change.name) and (acted is None or change.name in acted))
        )
        if not changes and not (acted and any(self.matches(name) for name in acted)):
            return None
        return msgspec.structs.replace(event, changes=changes)

    def _acted_on(self, event: Event) -> set[ObjectName] | None:
        """Return the objects that an action of the filter's types names or changed. None means that the version does
        not record its actions."""
        if not event.transactions:
            return None
        found: set[ObjectName] = set()
        for transaction in event.transactions:
            for action in transaction.actions:
                if action.operation is None:
                    return None  # an action of a newer release, which may be of any type
                if action.type in self.actions:
                    found.add(action.name)
                    found.update(effect.name for effect in action.also)
        return found


EVERYTHING = EventFilter()
