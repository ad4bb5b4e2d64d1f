"""Starts of tables: which data files go before the versions that list them (FORMAT.md, "Starts of tables").

A plan gives each table with short rules a start, as an expiry gives the catalog its oldest version. What holds versions
back holds starts back, too.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec

from alpheus_journal.collect.expiry import SlotTimes, find_holds
from alpheus_journal.collect.kept_history import ShortRules, find_short_rules
from alpheus_journal.errors import Corrupt
from alpheus_journal.model.operations import TABLE_STARTS_MAX, PlannedStart
from alpheus_journal.replay.follower import Follower

PLANNED_AT_ONCE = 1_000
"""Other work of the event loop has its turn after so many tables."""


class Levels:
    """The tables whose data files a version passes over, as a mask: one bit for each table with a start."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        self.starts = dict(starts)
        ordered = sorted(self.starts.items(), key=lambda item: item[1])
        self._bits = {table_id: 1 << number for number, (table_id, _) in enumerate(ordered)}
        self._ordered = [start for _, start in ordered]
        self._all = (1 << len(ordered)) - 1

    def mask_of(self, version: int) -> int:
        """Return the tables whose starts are above a version."""
        below = bisect_right(self._ordered, version)
        return self._all >> below << below

    def mask_of_tables(self, table_ids: Iterable[str]) -> int:
        """Return some tables. Those without a start are never passed over."""
        mask = 0
        for table_id in table_ids:
            mask |= self._bits.get(table_id, 0)
        return mask


class Plan(msgspec.Struct, frozen=True):
    """The starts that the tables' rules allow, by table id, and those that the catalog has."""

    wanted: dict[str, PlannedStart] = {}
    known: dict[str, int] = {}

    @property
    def levels(self) -> Levels:
        """Return the starts by which a collection marks."""
        wanted = {table_id: start.version for table_id, start in self.wanted.items()}
        return Levels(self.known | wanted)


async def plan_starts(follower: Follower, now_millis: int, minimum_age_millis: int) -> Plan:
    """Plan the starts of all tables at the head that would rise. A version that is younger than the minimum age keeps
    the files of all tables.

    A subscription, pipeline or saved transaction that needs a version holds all starts at it, however long it waits.
    Where one of them cannot be read, no start rises. A rule that cannot be read gives no start.
    """
    head = await follower.refresh()
    definition = await follower.catalog_definition(head.catalog_def, follower.reader)
    known, first = definition.table_starts, await follower.oldest()
    rules = [found async for found in find_short_rules(follower)]
    if not rules:
        return Plan(known=known)
    try:
        held = [hold.version async for hold in find_holds(follower, now_millis, 0, all_let_go=False)]
    except Corrupt:
        return Plan(known=known)
    lowest = min([head.version, *held])
    times, wanted = SlotTimes(follower.log, first), dict[str, PlannedStart]()
    found_at: dict[tuple[int, int], int] = {}
    for number, found in enumerate(rules, 1):
        if number % PLANNED_AT_ONCE == 0:
            await asyncio.sleep(0)
        asked = max(found.age_millis, minimum_age_millis), found.keep_versions
        if asked not in found_at:
            newest = max(first, head.version - asked[1] + 1)
            found_at[asked] = await times.find_last_before(newest, now_millis - asked[0])
        start = min(found_at[asked], lowest)
        is_counted = found.table_id in known or len(known) + len(wanted.keys() - known) < TABLE_STARTS_MAX
        if start > max(first, known.get(found.table_id, 0)) and is_counted:
            wanted[found.table_id] = _planned(found, start)
    return Plan(wanted, known)


def _planned(rules: ShortRules, version: int) -> PlannedStart:
    return PlannedStart(
        table_id=rules.table_id,
        version=version,
        namespace=rules.name.namespace,
        name=rules.name.name,
        age_millis=rules.age_millis,
        keep_versions=rules.keep_versions,
    )
