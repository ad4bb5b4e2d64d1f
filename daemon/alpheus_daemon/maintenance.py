"""Work of a daemon besides serving, which keeps the next start and questions about the past cheap.

One task does all of it, and nothing waits for this task.

- Comparison: each second, compare a part of the loaded checkpoint with the tree, until all parts are compared.
- Checkpoint, index run: after `checkpoint_versions` versions, or after `checkpoint_minutes` with any commit. An index
  run is also due when half of the index's memory is full. After the start, a checkpoint is due if many objects had to
  be scanned, and an index run if the history has 1,000 versions. At the orderly end both are written if they are worth
  it and the last one would have fitted into the remaining time; a thread still at work is waited for.
- Drift check: every `drift_check_seconds`, compare nine ranges of memory with the tree. After a commit also compare
  one random version of the index with its root. A sole writer looks for versions of other writers.
- Tags: every minute, delete the tags whose time is over, and make and delete tags by the rules (`tag_upkeep`).
- Expiry, collection: every `expire_every` and `collect_every`, when these are set (`retention`), first at a random
  moment of the first hour. A task of its own does them, one at a time, because they may take long.
- Healing: whenever memory was invalidated or lost, rebuild it. Then a checkpoint is due.

All intervals vary by a tenth, so that daemons on one catalog do not write together; when they do, the better cover
stays. A job that fails is logged once, counted, and tried again after 10 s, doubling to 15 min. Work that is not
finished when the daemon stops is abandoned.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

from alpheus_daemon.retention import RetentionUpkeep
from alpheus_daemon.tag_upkeep import TagUpkeep
from alpheus_daemon.telemetry.logs import logger
from alpheus_journal.errors import AlpheusError, Corrupt, Expired
from alpheus_journal.log.index import MEMORY_ENTRIES_MAX, Index
from alpheus_journal.replay.loader import CheckpointInfo, Replay
from alpheus_journal.replay.state import Head
from alpheus_journal.replay.symbols import Drift

log = logger()

TICK_SECONDS = 1.0
RETRY_SECONDS_MIN = 10.0
RETRY_SECONDS_MAX = 900.0
JITTER = 0.1
"""The share by which every interval varies, so that daemons that started together do not write together."""

INDEX_ENTRIES_MAX = MEMORY_ENTRIES_MAX // 2
"""The ids and keys in memory at which an index run is due, whatever the number of their versions."""
OBJECTS_MIN = 1000
"""The objects from which on a checkpoint is worth writing right after the start or at the end."""
CHANGED_SHARE = 0.1
"""The share of objects missing in the last checkpoint from which on a new one is worth writing then."""
START_VERSIONS_MIN = 1000
"""The length of a history from which on an index run is due right after the start."""
STOP_VERSIONS_MIN = 1000
"""The versions since the last checkpoint or index run that are worth a new one at the end."""
STOP_HASTE = 1.5
"""At the end a job runs only if this many times the duration of its last run fits into the remaining time."""
DRIFT_RANGES = 4
REFUSED_MAX = 1000
TAGS_SECONDS = 60.0
"""The time between looks for tags that are due."""
FIRST_RETENTION_SECONDS = 3600.0
"""The time after the start within which the first expiry and the first collection begin."""


class Maintained(Protocol):
    """The part of the journal that maintenance needs."""

    @property
    def head(self) -> Head: ...

    @property
    def index(self) -> Index: ...

    @property
    def replay(self) -> Replay: ...

    async def checkpoint(self) -> CheckpointInfo: ...

    async def write_index(self) -> int: ...

    async def check_symbols(self, *, sample: int | None = None) -> Drift: ...

    async def look_for_others(self) -> None: ...


class Job:
    """A repeated job. Its attributes are numbers for metrics."""

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], now: Callable[[], float], dice: random.Random
    ) -> None:
        self.name = name
        self.done_count = 0
        self.failures_count = 0
        self.last_seconds = 0.0
        """The duration of the last success."""
        self.last_version = 0
        """The head at the last success, or at the start."""
        self.last_error = ""
        """The reason why the last attempt failed. Empty means that it succeeded."""
        self._work = work
        self._now = now
        self._dice = dice
        self._done_at = now()
        self._retry_at = 0.0
        self._retry_seconds = RETRY_SECONDS_MIN
        self._share = self._jitter()

    def _jitter(self) -> float:
        return self._dice.uniform(1 - JITTER, 1 + JITTER)

    def has_waited(self, seconds: float) -> bool:
        """Return whether the last success is about `seconds` ago or longer."""
        return self._now() - self._done_at >= seconds * self._share

    def has_seen(self, count: int, count_max: int) -> bool:
        return count >= max(count_max * self._share, 1)

    @property
    def may_run(self) -> bool:
        """Whether the job may run. It may not shortly after a failure."""
        return self._now() >= self._retry_at

    async def attempt(self, version: int) -> bool:
        """Run the job once, and return whether it succeeded.

        The first of several failures in a row is logged, and so is the success after them.
        """
        began = self._now()
        try:
            await self._work()
        except Exception as error:
            self._failed(error)
            return False
        if self.last_error:
            log.info(f"{self.name}_works_again", version=version)
        self.done_count += 1
        self.last_version, self.last_error = version, ""
        self._done_at = self._now()
        self.last_seconds = self._done_at - began
        self._retry_at, self._retry_seconds = 0.0, RETRY_SECONDS_MIN
        self._share = self._jitter()
        return True

    def _failed(self, error: Exception) -> None:
        self.failures_count += 1
        if not self.last_error:
            if not isinstance(error, AlpheusError):
                log.error(f"{self.name}_failed", exc_info=error)  # a bug; the daemon continues to serve
            else:
                level = log.error if isinstance(error, Corrupt) else log.warning
                level(f"{self.name}_failed", kind=error.kind, error=str(error))
        self.last_error = str(error) or type(error).__name__
        self._retry_at = self._now() + self._retry_seconds * self._jitter()
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)


class Maintenance:
    """All jobs (see the module). `run` goes beside the server, `finish` comes at the end.

    A checkpoint and an index run are due after `checkpoint_versions` versions or after `checkpoint_minutes` with any
    commit, whichever comes first. `drift_check_seconds` of 0 disables drift checks.
    """

    def __init__(
        self,
        journal: Maintained,
        *,
        checkpoint_versions: int,
        checkpoint_minutes: float,
        drift_check_seconds: float,
        comparison_reads_per_second: int = 500,
        tags: TagUpkeep | None = None,
        retention: RetentionUpkeep | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        randomness: random.Random | None = None,
    ) -> None:
        self._journal = journal
        self._dice = randomness or random.Random()
        self.configure(
            checkpoint_versions=checkpoint_versions,
            checkpoint_minutes=checkpoint_minutes,
            drift_check_seconds=drift_check_seconds,
            comparison_reads_per_second=comparison_reads_per_second,
        )
        self.checkpoints = Job("checkpoint", self._checkpoint, monotonic, self._dice)
        self.index_runs = Job("index_run", self._write_index, monotonic, self._dice)
        self.drift_checks = Job("drift_check", self._check_drift, monotonic, self._dice)
        self.comparisons = Job("comparison", self._compare, monotonic, self._dice)
        self._upkeep = tags
        self.tags = Job("tags", self._keep_tags, monotonic, self._dice)
        self._retention = retention
        self._retaining: asyncio.Task[object] | None = None
        self.expiries = Job("expiry", self._expire, monotonic, self._dice)
        self.collections = Job("collection", self._collect, monotonic, self._dice)
        self._first_share = self._dice.random()
        self.healings = Job("healing", self._rebuild, monotonic, self._dice)
        self._index_drifts_count = 0
        self.checkpoints.last_version = self.index_runs.last_version = journal.head.version
        has_scanned = journal.replay.counts.loads_from_tree > 0
        self._is_checkpoint_due = self._is_large() and (has_scanned or self._changed_much())
        self._is_index_due = journal.head.version >= START_VERSIONS_MIN
        self._refused: OrderedDict[str, None] = OrderedDict()
        journal.index.on_refused = self._refuse

    def configure(
        self,
        *,
        checkpoint_versions: int,
        checkpoint_minutes: float,
        drift_check_seconds: float,
        comparison_reads_per_second: int = 500,
    ) -> None:
        self._versions_max = checkpoint_versions
        self._seconds_max = checkpoint_minutes * 60
        self._drift_seconds = drift_check_seconds
        self._comparison_reads = max(int(comparison_reads_per_second * TICK_SECONDS * (1 - JITTER)), 1)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return (
            self.checkpoints,
            self.index_runs,
            self.drift_checks,
            self.comparisons,
            self.tags,
            self.expiries,
            self.collections,
            self.healings,
        )

    @property
    def drifts_count(self) -> int:
        """The times that memory was found to be wrong: by a check, by a commit, or when writing a checkpoint."""
        return self._index_drifts_count + self._journal.replay.counts.invalidations

    def _is_large(self) -> bool:
        return self._journal.replay.objects_count >= OBJECTS_MIN

    def _changed_much(self) -> bool:
        replay = self._journal.replay
        return replay.overlay_count > CHANGED_SHARE * replay.objects_count

    async def run(self) -> None:
        """Run the jobs that are due, until cancelled."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(TICK_SECONDS * self._dice.uniform(1 - JITTER, 1 + JITTER))
        finally:
            if self._retaining is not None:
                self._retaining.cancel()
                await asyncio.wait({self._retaining})

    async def step(self) -> None:
        """Run the jobs that are due now."""
        head = self._journal.head.version
        replay, drift = self._journal.replay, self.drift_checks
        if replay.is_unverified and self.comparisons.may_run:
            await self.comparisons.attempt(head)
        if self._drift_seconds and drift.has_waited(self._drift_seconds) and drift.may_run:
            await drift.attempt(head)
        if replay.needs_rebuild and self.healings.may_run:  # whether or not the checks succeed
            await self.healings.attempt(head)
        if self._upkeep is not None and self.tags.has_waited(TAGS_SECONDS) and self.tags.may_run:
            await self.tags.attempt(head)
        if self._retention is not None and (self._retaining is None or self._retaining.done()):
            self._begin_retention(head)
        self._is_checkpoint_due |= replay.lacks_checkpoint and self._is_large()
        is_wanted = self._is_checkpoint_due or self._is_due(self.checkpoints)
        if self.checkpoints.may_run and is_wanted and not replay.is_unverified:
            self._is_checkpoint_due = not await self.checkpoints.attempt(head)
        has_many = self._journal.index.memory_entries_count >= INDEX_ENTRIES_MAX
        if self.index_runs.may_run and (self._is_index_due or has_many or self._is_due(self.index_runs)):
            self._is_index_due = not await self.index_runs.attempt(head)

    def _begin_retention(self, head: int) -> None:
        """Begin the expiry or the collection that is due."""
        assert self._retention is not None
        schedule = self._retention.schedule
        for job, seconds in (
            (self.expiries, schedule.expire_every_seconds),
            (self.collections, schedule.collect_every_seconds),
        ):
            wait = seconds if job.done_count else min(seconds, FIRST_RETENTION_SECONDS) * self._first_share
            if seconds and job.may_run and job.has_waited(wait):
                self._retaining = asyncio.create_task(job.attempt(head), name=job.name)
                return

    async def wait_for_retention(self) -> None:
        """Wait for the expiry or collection that is running."""
        if self._retaining is not None:
            await self._retaining

    def _is_due(self, job: Job) -> bool:
        """Return whether a job is due. No job is due without a commit since its last success."""
        count = self._journal.head.version - job.last_version
        return count > 0 and (job.has_seen(count, self._versions_max) or job.has_waited(self._seconds_max))

    async def finish(self, seconds: float) -> None:
        """Write what is worth it and fits into the time, at the orderly end after the last commit. Never raises."""
        head = self._journal.head.version
        is_worth_it = head - self.checkpoints.last_version > STOP_VERSIONS_MIN or (
            head > self.checkpoints.last_version and self._is_large() and self._changed_much()
        )
        if is_worth_it and not self._journal.replay.is_unverified:
            seconds = await self._run_within(self.checkpoints, head, seconds)
        if head - self.index_runs.last_version > STOP_VERSIONS_MIN:
            await self._run_within(self.index_runs, head, seconds)

    async def _run_within(self, job: Job, head: int, seconds: float) -> float:
        """Run a job at the end if it fits into `seconds`, and return the remaining seconds."""
        began = time.monotonic()
        if seconds <= 0 or STOP_HASTE * job.last_seconds > seconds or not job.may_run:
            log.info(f"{job.name}_left_at_stop", version=head, last_version=job.last_version)
            return seconds
        try:
            async with asyncio.timeout(seconds):
                await job.attempt(head)
        except TimeoutError:
            log.warning(f"{job.name}_abandoned_at_stop", version=head, last_version=job.last_version)
        return seconds - (time.monotonic() - began)

    # --- the work

    async def _checkpoint(self) -> None:
        began = time.monotonic()
        written = await self._journal.checkpoint()
        log.info(
            "checkpoint_written",
            version=written.version,
            objects_count=written.objects,
            size_bytes=written.size_bytes,
            deleted_count=written.deleted,
            took_ms=round((time.monotonic() - began) * 1000),
        )

    async def _write_index(self) -> None:
        began = time.monotonic()
        written = await self._journal.write_index()
        if written:
            index = self._journal.index
            log.info(
                "index_run_written",
                version=index.stored_version,
                written_count=written,
                runs_count=index.runs_count,
                entries_count=index.entries_count,
                took_ms=round((time.monotonic() - began) * 1000),
            )

    async def _check_drift(self) -> None:
        """Check a random part of memory, and after a commit a random version of the index.

        Memory that is wrong is dropped. A sole writer finds out here whether it is alone.
        """
        await self._journal.look_for_others()
        if not self._journal.replay.needs_rebuild:
            await self._journal.check_symbols(sample=DRIFT_RANGES)
        if self._journal.head.version == self.drift_checks.last_version:
            return  # nothing was added to the index since, so an idle daemon reads no root
        version = self._dice.randint(0, self._journal.head.version)
        try:
            lacks = await self._journal.index.check(version)
        except Expired:
            return
        if lacks:
            self._index_drifts_count += 1
            self._is_index_due = True
            log.error("index_drift", version=version, what=lacks)

    async def _compare(self) -> None:
        """Compare the next part of the loaded checkpoint with the tree."""
        await self._journal.replay.verify(self._comparison_reads)

    async def _keep_tags(self) -> None:
        assert self._upkeep is not None
        await self._upkeep.work()

    async def _expire(self) -> None:
        assert self._retention is not None
        await self._retention.expire()

    async def _collect(self) -> None:
        assert self._retention is not None
        await self._retention.collect()

    async def _rebuild(self) -> None:
        """Bring memory back after it was dropped because it differs, or lost."""
        replay, version = self._journal.replay, self._journal.head.version
        if replay.invalid_reason:
            log.error("state_drift", version=version, what=replay.invalid_reason)
        elif replay.lost:
            log.warning("state_lost", version=version, why=replay.lost)
        await self._journal.replay.rebuild()

    def _refuse(self, path: str, error: AlpheusError) -> None:
        """Log each stored index run that cannot be used, once."""
        if path not in self._refused:
            log.warning("index_run_refused", path=path, kind=error.kind, error=error.message)
        self._refused[path] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
