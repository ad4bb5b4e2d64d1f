"""Expiry: old versions become tombstones, the lowest first (FORMAT.md, "Expiry").

Tags, leases and pins hold nothing back, because they keep a version by a copy of its root. The log itself is held back
for those who still need it: durable subscriptions, saved transactions, jobs of pipelines, and tables with rules of
their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.collect.kept_history import find_history_rules
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.commit.saved_transactions import list_saved
from alpheus_journal.errors import Corrupt, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Expiry, Hold
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Definition, PipelineDef, SubscriptionDef
from alpheus_journal.model.expiry_rules import ExpiryRules, check_rules
from alpheus_journal.model.history_rules import HistoryRules
from alpheus_journal.replay.follower import Follower
from alpheus_journal.tree.node import encode_tombstone
from alpheus_journal.wire.positions import POSITION_SIZE_BYTES_MAX, decode_position
from alpheus_journal.workspace.checks import check_revision

TOMBSTONES_AT_ONCE = 64
"""The most versions between two looks at the head."""
PROGRESS_VERSIONS = 1_000
TABLE_HOLDS_MAX = 100
"""The most holds of namespaces and tables that a plan names."""
RULES_AT_ONCE = 1_000
"""Other work of the event loop has its turn after so many rules."""


async def expire(
    follower: Follower, rules: ExpiryRules, *, new_id: Callable[[], str], dry_run: bool = False
) -> AsyncIterator[Expiry]:
    """Expire old versions. Yield the plan, then the progress after each thousand versions, and the result last. A dry
    run yields the plan alone.

    An expiry that was stopped is finished by the next one, and two at once do no harm. Raises InvalidInput
    (`upgrade_needed`) in a catalog of revision 1. Raises Corrupt where nothing may be written, where it is unknown
    which versions are needed (then no version expires), and, with the kind `history_replaced`, where the store was put
    back to an older state meanwhile.
    """
    check_rules(rules)
    head = await follower.refresh()
    check_revision(await follower.catalog_definition(head.catalog_def, follower.reader), 2, "tombstones")
    if not dry_run:
        await follower.check_writable()
    now = await read_store_time(follower.log.storage, new_id)
    plan = await _plan(follower, rules, now)
    yield plan
    if dry_run or plan.oldest <= plan.first:
        return
    log = follower.log
    await log.storage.put(fmt.OLDEST_HINT, str(plan.oldest).encode())
    await failpoints.reached("expiry.hint_written")
    start = plan.first
    while start < plan.oldest:
        end = min(start + PROGRESS_VERSIONS, plan.oldest)
        for first in range(start, end, TOMBSTONES_AT_ONCE):
            await _write_tombstones(follower, range(first, min(first + TOMBSTONES_AT_ONCE, end)), now)
        start = end
        yield msgspec.structs.replace(plan, expired=end - plan.first)


async def _write_tombstones(follower: Follower, versions: Sequence[int], now_millis: int) -> None:
    """Replace the roots of some versions, in order, so that the tombstones never have a gap. The roots are read
    together. A slot that a repair gave up stays empty."""
    log = follower.log
    kept = [v for v in versions if log.given_up_range(v) is None or await log.exists(v)]
    commit_ids = await log.commit_ids(kept)
    await follower.verify_head()  # in a store that was put back, these may be the newest versions
    tombstones = {
        log.path(version): encode_tombstone(
            commit_id=commit_id, catalog_id=log.catalog_id, expired_at_millis=now_millis, version=version
        )
        for version, commit_id in zip(kept, commit_ids, strict=True)
    }
    await failpoints.reached("expiry.tombstone")
    await log.storage.put_in_order(tombstones)


async def _plan(follower: Follower, rules: ExpiryRules, now_millis: int) -> Expiry:
    head, first = follower.head.version, await follower.oldest()
    newest = max(first, head - rules.keep_versions + 1)
    times = SlotTimes(follower.log, first)
    wanted = await times.find_last_before(newest, now_millis - rules.older_than_millis)
    held_since = await times.find_last_before(newest, now_millis - rules.pipeline_hold_millis)
    found = find_holds(follower, now_millis, held_since, all_let_go=held_since >= wanted)
    holds = [hold async for hold in found if hold.version < wanted]
    if wanted > first:  # else nothing expires, whatever the tables keep
        holds += await _holds_of_tables(follower, rules, times, wanted, now_millis)
    oldest = min([wanted, *(hold.version for hold in holds if not hold.let_go)])
    return Expiry(
        head=head,
        first=first,
        wanted=wanted,
        oldest=follower.log.kept_below(max(oldest, first)) if oldest > first else first,
        holds=tuple(sorted(holds, key=lambda hold: (hold.version, hold.kind, hold.name))),
    )


class SlotTimes:
    """When the slots of the kept versions, from `first` on, were filled, by the store."""

    def __init__(self, log: Log, first: int) -> None:
        self._log, self.first = log, first
        self._filled_at: dict[int, int | None] = {}

    async def find_last_before(self, last: int, millis: int) -> int:
        """Return the last version of [first, last] whose slot was filled by a time of the store, else `first`: all
        versions below it had a successor by then.

        A copy of a catalog has new times, so it expires later. Slots are filled in order, so halving finds the version.
        """
        low, high = self.first, last + 1
        while high - low > 1:
            middle = (low + high) // 2
            filled_at = await self._read(middle)
            if filled_at is not None and filled_at <= millis:
                low = middle
            else:
                high = middle
        return low

    async def _read(self, version: int) -> int | None:
        if version not in self._filled_at:
            info = await self._log.storage.stat(self._log.path(self._log.kept_below(version)))
            self._filled_at[version] = None if info is None else info.modified_at_millis
        return self._filled_at[version]


class _Asked:
    """What an object asks an expiry to keep, by its own rules and else by those of the expiry."""

    __slots__ = ("age_millis", "keep_versions", "name")

    def __init__(self, name: ObjectName, own: HistoryRules, rules: ExpiryRules) -> None:
        self.name = name
        self.age_millis = rules.older_than_millis if own.age_millis is None else own.age_millis
        self.keep_versions = rules.keep_versions if own.keep_versions is None else own.keep_versions

    def is_longer(self, rules: ExpiryRules) -> bool:
        return self.age_millis > rules.older_than_millis or self.keep_versions > rules.keep_versions


async def _holds_of_tables(
    follower: Follower, rules: ExpiryRules, times: SlotTimes, wanted: int, now_millis: int
) -> list[Hold]:
    """Return what tables keep below `wanted` by rules of their own: of many holds those that reach farthest back."""
    head = follower.head.version
    # A greater age reaches back at least as far, and so does a greater number. So the holds that reach farthest are
    # among those of the greatest ages and of the greatest numbers, and no other one needs a search.
    oldest: list[_Asked] = []
    most: list[_Asked] = []
    named = iter((await find_history_rules(follower)).items())
    while part := [_Asked(name, own, rules) for name, own in itertools.islice(named, RULES_AT_ONCE)]:
        longer = [each for each in part if each.is_longer(rules)]
        oldest = heapq.nlargest(TABLE_HOLDS_MAX, oldest + longer, key=lambda each: each.age_millis)
        most = heapq.nlargest(TABLE_HOLDS_MAX, most + longer, key=lambda each: each.keep_versions)
        await asyncio.sleep(0)
    holds = []
    for each in {each.name: each for each in oldest + most}.values():
        newest = max(times.first, head - each.keep_versions + 1)
        version = await times.find_last_before(newest, now_millis - each.age_millis)
        if version < wanted:
            holds.append(Hold(kind=each.name.kind.label, name=each.name.full_name, version=version))
    return heapq.nsmallest(TABLE_HOLDS_MAX, holds, key=lambda hold: (hold.version, hold.kind, hold.name))


async def find_holds(
    follower: Follower, now_millis: int, held_since: int, *, all_let_go: bool
) -> AsyncIterator[Hold]:
    """Yield what needs the log. Jobs whose position is below `held_since` are let go.

    Raises Corrupt for a subscription or pipeline that cannot be read. `all_let_go` says that no pipeline holds a
    version back, whatever its position, so a damaged pipeline does no harm.
    """
    async for name, path, definition in _definitions(follower, Kind.SUBSCRIPTION):
        assert isinstance(definition, SubscriptionDef)
        hold = await _hold_of_subscription(follower, name, path, definition, now_millis)
        if hold is not None:
            yield hold
    async for name, _, definition in _definitions(follower, Kind.PIPELINE, skip_damaged=all_let_go):
        assert isinstance(definition, PipelineDef)
        for job_name, job in sorted(definition.jobs.items()):
            if job.inputs:
                version = min(position.version for position in job.inputs.values())
                yield Hold(
                    kind="pipeline",
                    name=f"{name}.{job_name}",
                    version=version,
                    let_go=version < held_since,
                )
    saved = list_saved(follower.log.storage, node_size_max=follower.log.node_size_max)
    async with contextlib.aclosing(saved):  # type: ignore[type-var]
        async for found in saved:
            if not found.damage and now_millis < found.expire_at_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
                yield Hold(
                    kind="transaction", name=found.transaction.id, version=found.transaction.begin_version
                )


async def _definitions(
    follower: Follower, kind: Kind, *, skip_damaged: bool = False
) -> AsyncIterator[tuple[str, str, Definition]]:
    """Yield name, path and definition of each object of a kind at the head. Raises Corrupt for one that cannot be read,
    because it may need any version; `skip_damaged` passes over it."""
    async for name, stored in (await follower.snapshot()).objects(kind):
        try:
            if (damage := stored.error()) is not None:
                raise damage
            definition = decode_definition(kind, stored.definition, stored.path)
        except Corrupt as error:
            if skip_damaged:
                continue
            raise _unknown_hold(kind, name, stored.path, error) from error
        yield name, stored.path, definition


def _unknown_hold(kind: Kind, name: str, path: str, error: Corrupt) -> Corrupt:
    """Build the error for an object that cannot be read, so that nobody knows which versions it needs."""
    other = (
        "delete the subscription"
        if kind is Kind.SUBSCRIPTION
        else "expire with a pipeline hold that is not longer than the age, which lets all pipelines go"
    )
    return Corrupt(
        f"no version expires, because it is unknown which versions {kind.label} {name} needs: {error.message}",
        kind=error.kind,
        path=path,
        hint=f"restore {path} from a copy, or {other}",
    )


async def _hold_of_subscription(
    follower: Follower, name: str, path: str, definition: SubscriptionDef, now_millis: int
) -> Hold | None:
    """Return the hold of a subscription. It ends when the holder has not acknowledged for the time of its lease."""
    storage = follower.log.storage
    next_version, seen_at = definition.next_version, 0
    for position_path in (definition.position_path, definition.previous_position_path):
        if not position_path:
            continue
        info = await storage.stat(position_path)
        if info is None:
            continue
        seen_at = max(seen_at, info.modified_at_millis)
        try:
            position = decode_position(
                await storage.read(position_path, size_max=POSITION_SIZE_BYTES_MAX), position_path
            )
        except (Corrupt, NotFound):
            continue
        if position.subscription_id == definition.id:
            next_version = max(next_version, position.next_version)
    info = await storage.stat(path)
    seen_at = max(seen_at, 0 if info is None else info.modified_at_millis)
    if now_millis >= seen_at + definition.lease_millis:
        return None
    return Hold(kind="subscription", name=name, version=max(next_version - 1, 0))
