"""Expiry and collection in a daemon: one at a time, whoever asked for it, with its numbers and its lines in the log.
A daemon also does both by a schedule, when it has one.

The fence of a collection is committed by the daemon's writer, as every commit is. A caller that goes away ends the
work; the next expiry or collection finishes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol

import msgspec

from alpheus_daemon.telemetry.logs import logger
from alpheus_journal.clock import Clock, SystemClock
from alpheus_journal.errors import AlpheusError, Exhausted, InvalidInput
from alpheus_journal.format import COLLECTED_KINDS
from alpheus_journal.model.answers import At, Collection, Committed, Expiry, FileTotals, Hold, VersionInfo
from alpheus_journal.model.expiry_rules import DAY_MILLIS, ExpiryRules
from alpheus_journal.model.operations import Transaction

log = logger()

WARNED_SHARE = 0.8
"""The share of a day after which a slow job is named again, because daily work does not come at the same minute."""


class Retained(Protocol):
    """The part of the journal that expiry and collection need."""

    def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncIterator[Expiry]: ...

    def collect(
        self,
        *,
        minimum_age_millis: int,
        dry_run: bool = False,
        commit: Callable[[Transaction], Awaitable[Committed]] | None = None,
    ) -> AsyncIterator[Collection]: ...


class Retention:
    """The expiry and the collection of one daemon. `commit` sends a transaction through the daemon's writer. The
    attributes are numbers for metrics; dry runs do not count."""

    def __init__(
        self,
        journal: Retained,
        commit: Callable[[Transaction], Awaitable[Committed]],
        *,
        clock: Clock | None = None,
        principal: str = "",
    ) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock or SystemClock()
        self._principal = principal
        self._running = ""
        self.expired_count = 0
        self.oldest_version = 0
        """The oldest kept version, as the last expiry left it."""
        self.holds: tuple[Hold, ...] = ()
        """What held versions back at the last expiry, and what was let go."""
        self.let_go_count = 0
        self.deleted_files: Counter[str] = Counter(dict.fromkeys(COLLECTED_KINDS, 0))
        self.deleted_bytes: Counter[str] = Counter(dict.fromkeys(COLLECTED_KINDS, 0))
        self.aborted_uploads_count = 0
        self.kept_bytes: dict[str, int] = {}
        """Bytes of old files that the last collection kept, by what reaches them; all tags together."""
        self.succeeded_at_millis = {"expiry": 0, "collection": 0}
        self._let_go: frozenset[tuple[str, str]] = frozenset()

    async def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncGenerator[Expiry, None]:
        """Expire old versions; see `Access.expire`. Raises Exhausted (`already_running`)."""
        with self._alone("an expiry"):
            done: Expiry | None = None
            async with aclosing(self._journal.expire(rules, dry_run=dry_run)) as found:  # type: ignore[type-var]
                async for step in found:
                    if not dry_run:
                        if done is None:
                            self._note_holds(step)
                        self.expired_count += step.expired - (0 if done is None else done.expired)
                        self.oldest_version = step.first + step.expired
                    done = step
                    yield step
            if done is None or dry_run:
                return
            self.oldest_version = done.oldest
            self.succeeded_at_millis["expiry"] = self._clock.now_millis()
            if done.expired:
                log.info(
                    "versions_expired", versions_count=done.expired, first=done.first, oldest_kept=done.oldest
                )

    async def collect(
        self, *, minimum_age_millis: int, dry_run: bool = False
    ) -> AsyncGenerator[Collection, None]:
        """Delete unreferenced files; see `Access.collect`. Raises Exhausted (`already_running`)."""
        with self._alone("a collection"):
            done: Collection | None = None
            steps = self._journal.collect(
                minimum_age_millis=minimum_age_millis, dry_run=dry_run, commit=self._commit_fence
            )
            async with aclosing(steps) as found:  # type: ignore[type-var]
                async for step in found:
                    if not dry_run:
                        self._count_deleted({} if done is None else done.deleted, step.deleted)
                        self.aborted_uploads_count += step.uploads.aborted - (
                            0 if done is None else done.uploads.aborted
                        )
                    done = step
                    yield step
            if done is None or dry_run:
                return
            self._count_kept(done)
            self.succeeded_at_millis["collection"] = self._clock.now_millis()
            for text in done.uploads.skipped:
                log.warning("uploads_skipped", reason=text)
            for one in done.earlier:
                log.info(
                    "table_files_collected",
                    table=one.table,
                    files_count=one.files.files,
                    size_bytes=one.files.size_bytes,
                    start_version=one.start,
                )
            if done.deleted or done.uploads.aborted:
                log.info(
                    "files_collected",
                    files_count=done.deleted_count,
                    uploads_count=done.uploads.aborted,
                    size_bytes=sum(totals.size_bytes for totals in done.deleted.values()),
                    fence_version=done.fence_version,
                )

    def count_holds(self) -> dict[str, float]:
        """Return the number of holds of the last expiry by kind."""
        kinds = ["let_go" if hold.let_go else hold.kind for hold in self.holds]
        return {
            kind: kinds.count(kind)
            for kind in ("subscription", "pipeline", "transaction", "table", "namespace", "let_go")
        }

    # --- inside

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Run one expiry or collection. Raises Exhausted while another one runs."""
        if self._running:
            raise Exhausted(
                f"{self._running} is running in this daemon already, so {what} cannot begin",
                kind="already_running",
                hint="try again when it has ended; the daemon does one of them at a time",
            )
        self._running = what
        try:
            yield
        finally:
            self._running = ""

    async def _commit_fence(self, transaction: Transaction) -> Committed:
        return await self._commit(msgspec.structs.replace(transaction, principal=self._principal))

    def _note_holds(self, plan: Expiry) -> None:
        """Remember what holds versions back, and log each job that is let go, once."""
        self.holds = plan.holds
        let_go = {(hold.kind, hold.name): hold for hold in plan.holds if hold.let_go}
        for key, hold in let_go.items():
            if key not in self._let_go:
                self.let_go_count += 1
                log.warning(
                    "hold_let_go", holder=hold.kind, name=hold.name, version=hold.version, oldest=plan.oldest
                )
        self._let_go = frozenset(let_go)

    def _count_deleted(self, before: dict[str, FileTotals], after: dict[str, FileTotals]) -> None:
        for kind, totals in after.items():
            last = before.get(kind, FileTotals())
            self.deleted_files[kind] += totals.files - last.files
            self.deleted_bytes[kind] += totals.size_bytes - last.size_bytes

    def _count_kept(self, done: Collection) -> None:
        kept: Counter[str] = Counter()
        for by, totals in done.kept_by.items():
            if by.startswith("data root "):  # it was skipped, which keeps no files
                continue
            kept["tags" if by.startswith("tag ") else by] += totals.size_bytes
        self.kept_bytes = dict(kept)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When a daemon expires and collects by itself, and by which rules. 0 seconds: never."""

    expire_every_seconds: float = 0
    collect_every_seconds: float = 0
    rules: ExpiryRules = ExpiryRules()
    minimum_age_millis: int = 3 * DAY_MILLIS


class Timed(Protocol):
    """The part of the journal that tells the times of versions."""

    async def resolve(self, at: At) -> VersionInfo: ...


class RetentionUpkeep:
    """The expiry and the collection that a daemon does by its schedule."""

    def __init__(self, retention: Retention, journal: Timed, clock: Clock) -> None:
        self._retention = retention
        self._journal = journal
        self._clock = clock
        self._warned: dict[str, int] = {}
        self.schedule = Schedule()

    def follow(self, schedule: Schedule) -> None:
        """Work by this schedule from now on."""
        self.schedule = schedule

    async def expire(self) -> None:
        """Expire old versions, and warn of jobs that have used half of their hold. Does nothing in a catalog of
        revision 1."""
        rules = self.schedule.rules
        with _in_old_catalogs_nothing():
            async with aclosing(self._retention.expire(rules)) as steps:
                async for _ in steps:
                    pass
            await self._warn_of_slow_jobs(rules.pipeline_hold_millis)

    async def collect(self) -> None:
        """Delete unreferenced files. Does nothing in a catalog of revision 1."""
        with _in_old_catalogs_nothing():
            minimum_age_millis = self.schedule.minimum_age_millis
            async with aclosing(self._retention.collect(minimum_age_millis=minimum_age_millis)) as steps:
                async for _ in steps:
                    pass

    async def _warn_of_slow_jobs(self, hold_millis: int) -> None:
        """Log once a day each job of a pipeline that has waited for half of the longest hold or more."""
        now = self._clock.now_millis()
        held = {
            hold.name: hold for hold in self._retention.holds if hold.kind == "pipeline" and not hold.let_go
        }
        self._warned = {name: at for name, at in self._warned.items() if name in held}
        for name, hold in held.items():
            if now - self._warned.get(name, -DAY_MILLIS) < DAY_MILLIS * WARNED_SHARE:
                continue
            try:
                waits_since = (await self._journal.resolve(hold.version + 1)).created_at_millis
            except AlpheusError:
                continue  # the next expiry looks again
            waited_millis = now - waits_since
            if waited_millis >= hold_millis / 2:
                self._warned[name] = now
                log.warning(
                    "pipeline_holds_versions",
                    name=name,
                    version=hold.version,
                    waited_hours=round(waited_millis / 3_600_000, 1),
                    hold_hours=round(hold_millis / 3_600_000, 1),
                )


@contextmanager
def _in_old_catalogs_nothing() -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        if error.kind != "upgrade_needed":
            raise
