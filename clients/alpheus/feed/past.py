"""Find row changes that a later one undid, and versions at which a table had the same rows."""

from __future__ import annotations

import contextlib
import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence

from alpheus.catalog import Catalog
from alpheus.feed.former_names import name_at
from alpheus.feed.log import follow
from alpheus.feed.table_range import check_same_table
from alpheus.feed.trail import RowChange, TableTrail
from alpheus_journal.errors import Expired, InvalidInput

_Kept = tuple["_Kept", RowChange] | None
"""A linked list, newest change first. Lists share their tails."""


def lasting_changes(
    changes: Sequence[RowChange], begin: int, is_as_begun: Callable[[int], bool]
) -> list[RowChange]:
    """Return the changes after version `begin` without those that a later change undid.

    When the table gets the rows of an earlier version back, only the changes up to that version remain.
    `is_as_begun(v)` says whether the rows at a version `v` before `begin` were those at `begin`. If they were not,
    going back to `v` is a change itself.
    """
    kept: _Kept = None
    then: list[tuple[int, _Kept]] = [(begin, None)]  # (version, what remained as of that version)
    for change in changes:
        if change.type != "difference" or change.back_to < 0:
            kept = kept, change
        elif change.back_to >= begin:
            kept = then[bisect_right(then, change.back_to, key=lambda one: one[0]) - 1][1]
        else:
            kept = None if is_as_begun(change.back_to) else (kept, change)
        then.append((change.version, kept))
    found = []
    while kept is not None:
        kept, change = kept
        found.append(change)
    return found[::-1]


class RowHistory:
    """Tells at which versions a table had the same rows, from the table's recorded actions.

    The table is called `name` at version `named`. No part of the log is read twice, whichever versions are restored.
    """

    def __init__(self, catalog: Catalog, table_id: str, name: str, named: int) -> None:
        self._catalog = catalog
        self._table_id = table_id
        self._name, self._named = name, named
        self._low = self._high = -1  # the versions that were read: (low, high]
        self._floor = 0  # the table cannot be followed from versions below this one, or they have expired
        self._trail: TableTrail | None = None  # the trail at version `high`
        self._changes: list[
            tuple[int, int]
        ] = []  # (version of a change, version whose rows it brought back or -1), in order
        self._backs: list[int] = []  # a heap of the latter versions that are below `low`
        self._states: list[
            tuple[int, int]
        ] = []  # (version, number of the state that begins there), for the first `_folded` changes
        self._folded = 0

    def had_same_rows(self, older: int, newer: int) -> bool:
        """Return whether the table had exactly the same rows at `newer` as at `older`, where it existed.

        Return False where the history in between has expired. A call whose `newer` is above all before it reads only
        the new part of the log.
        """
        self._reach_up(newer)
        self._reach_down(older)
        while self._backs and self._backs[0] < self._low:
            self._reach_down(heapq.heappop(self._backs))
        self._backs.clear()
        self._fold()
        return older >= self._low and newer <= self._high and self._state(older) == self._state(newer)

    def _reach_up(self, newer: int) -> None:
        if self._trail is None:
            self._low = self._high = newer
            self._states = [(newer, 0)]
        elif newer > self._high:
            trail = self._trail.copy()
            with contextlib.suppress(Expired, InvalidInput):
                self._changes += self._read_changes(trail, self._high, newer)
                self._trail, self._high = trail, newer

    def _reach_down(self, older: int) -> None:
        if not self._floor <= older < self._low:
            return
        try:
            name = name_at(self._catalog, self._name, older, self._named)
            if not check_same_table(self._catalog.at(older), name, self._table_id):
                raise InvalidInput(f"the log does not tell the name of table {self._name} at version {older}")
            trail = TableTrail(name, self._table_id)
            found = self._read_changes(trail, older, self._low)
        except Expired as error:
            self._floor = max(older + 1, error.oldest or 0)
        except InvalidInput as error:
            self._floor = max(older + 1, error.version or 0)
        else:
            self._changes = found + self._changes
            self._trail = self._trail or trail
            self._name, self._named, self._low = name, older, older
            self._states, self._folded = [(older, 0)], 0

    def _read_changes(self, trail: TableTrail, after: int, until: int) -> list[tuple[int, int]]:
        steps = follow(self._catalog, trail, after, until)
        changes = [change for _, found in steps for change in found]
        backs = [change.back_to if change.type == "difference" else -1 for change in changes]
        for back in backs:
            if back >= 0:
                heapq.heappush(self._backs, back)
        return [(change.version, back) for change, back in zip(changes, backs, strict=True)]

    def _fold(self) -> None:
        """Number the states of the changes that were read since the last call.

        Each change begins a new state, unless it brings an earlier one back. A state from before `low`, which is not
        known, is numbered by its version: -1 - version.
        """
        for number in range(self._folded, len(self._changes)):
            version, back = self._changes[number]
            state = number + 1
            if back >= 0:
                state = self._state(back) if back >= self._low else -1 - back
            self._states.append((version, state))
        self._folded = len(self._changes)

    def _state(self, version: int) -> int:
        return self._states[bisect_right(self._states, version, key=lambda one: one[0]) - 1][1]
