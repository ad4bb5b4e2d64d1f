"""Which changes of the catalog matter to somebody who follows it."""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache

import msgspec

from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Event

FILTER_TEXTS_MAX = 1000
"""Names, patterns and so on of one kind in one filter."""


def pattern_of(pattern: str) -> re.Pattern[str]:
    """`*` stands for any text, `?` for one character, all else for itself. What fnmatch makes of it never goes back
    more than once a star, so that nobody's pattern can hold up the others."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


_filter_pattern = lru_cache(maxsize=10_000)(pattern_of)
"""Filters match every event: theirs are kept."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes matter; empty: all. An event without a matching change is passed over.

    `names` are full names ("namespace.name"), `name_patterns` globs of them ("sales.*"): one of both has to fit. With
    `actions`, names of action types ("TABLE_INSERT"), those objects count which such an action of the event is on or
    changed; in a version that does not record what it did, every object. `also`: objects whose changes match whatever
    the rest says. Events are whole: a match delivers all its transactions, and the changes that match.
    """

    namespaces: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    name_patterns: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    actions: frozenset[str] = frozenset()
    also: frozenset[ObjectName] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Everything matches. (`also` adds to the rest, and nothing to everything.)"""
        return not (self.namespaces or self.names or self.name_patterns or self.kinds or self.actions)

    def matches(self, name: ObjectName) -> bool:
        """Whether the object may matter, actions and `also` aside."""
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
        """The event with only its matching changes; None when there is none. An action that asks for nothing but
        itself to be told (it changed nothing, or its change was undone within the version) counts as well."""
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
        """The objects that an action of the types asked for is on or changed; None: that is not recorded."""
        if not event.transactions:
            return None
        found: set[ObjectName] = set()
        for transaction in event.transactions:
            for action in transaction.actions:
                if action.operation is None:
                    return None  # of a newer writer: it may be anything
                if action.type in self.actions:
                    found.add(action.name)
                    found.update(effect.name for effect in action.also)
        return found


EVERYTHING = EventFilter()
