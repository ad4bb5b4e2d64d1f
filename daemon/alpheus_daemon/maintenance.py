"""Work of a daemon beside serving, so that the next start and old questions cost little. One task; nothing waits for
it.

- Comparison: each second a part of what the start took from a checkpoint, until all is compared with the tree.
- Checkpoint, index run: after `checkpoint_versions` versions, or `checkpoint_minutes` with any commit. The index
  also when half of its memory is full. Right after the start, when many objects had to be scanned or the history
  has 1,000 versions. At the orderly end, when it is worth it and the last one would have fitted into the time left;
  a thread still at work is waited for.
- Drift check: every `drift_check_seconds` nine ranges of memory against the tree and, after a commit, one random
  version of the index against its root. A sole writer looks for versions of others.
- Healing: whenever memory was invalid_reason or lost, whoever found it. Then a checkpoint is due.

All intervals vary by a tenth, so that daemons on one catalog do not write together; when they do, the better cover
stays. A job that fails is logged once, counted, and tried again after 10 s, doubling to 15 min. What is not done
when the daemon stops is left.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

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
"""Of every interval: daemons started together shall not write together."""

INDEX_ENTRIES_MAX = MEMORY_ENTRIES_MAX // 2
"""So many ids and keys in memory are stored, whatever the number of their versions."""
OBJECTS_MIN = 1000
CHANGED_SHARE = 0.1
"""So many objects that were scanned at the start, or such a share of them that is not in the last checkpoint, are
stored right after the start; the latter at the end, too."""
START_VERSIONS_MIN = 1000
"""In a history of so many it is seen right after the start whether all are indexed."""
STOP_VERSIONS_MIN = 1000
"""So many since the last checkpoint are worth one at the end."""
STOP_HASTE = 1.5
"""Only if the last one, taking so many times as long, would end in time."""
DRIFT_RANGES = 4
REFUSED_MAX = 1000


class Maintained(Protocol):
    """What maintenance needs of the journal."""

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
    """One thing to do again and again. Its attributes are numbers to be shown."""

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], now: Callable[[], float], dice: random.Random
    ) -> None:
        self.name = name
        self.done_count = 0
        self.failures_count = 0
        self.last_seconds = 0.0
        """That the last success took."""
        self.last_version = 0
        """The head when it last succeeded, or at the start."""
        self.last_error = ""
        """Why the last attempt failed; empty: it did not."""
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
        """Whether the last success is about so long ago."""
        return self._now() - self._done_at >= seconds * self._share

    def has_seen(self, count: int, count_max: int) -> bool:
        return count >= max(count_max * self._share, 1)

    @property
    def may_run(self) -> bool:
        """False: it failed a short while ago."""
        return self._now() >= self._retry_at

    async def attempt(self, version: int) -> bool:
        """Do it; whether it succeeded. The first failure of a row is logged, and the success after it."""
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
                log.error(f"{self.name}_failed", exc_info=error)  # a bug; the daemon serves on
            else:
                level = log.error if isinstance(error, Corrupt) else log.warning
                level(f"{self.name}_failed", kind=error.kind, error=str(error))
        self.last_error = str(error) or type(error).__name__
        self._retry_at = self._now() + self._retry_seconds * self._jitter()
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)


class Maintenance:
    """See the module. `run` it beside the server, `finish` it at the end.

    `checkpoint_versions` versions or `checkpoint_minutes` with any commit, whichever comes first, make a checkpoint and
    an index run due; `drift_check_seconds` 0: never.
    """

    def __init__(
        self,
        journal: Maintained,
        *,
        checkpoint_versions: int,
        checkpoint_minutes: float,
        drift_check_seconds: float,
        comparison_reads_per_second: int = 500,
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
        self.healings = Job("healing", self._rebuild, monotonic, self._dice)
        self._index_drifts_count = 0
        self.checkpoints.last_version = self.index_runs.last_version = journal.head.version
        has_scanned = journal.replay.counts.loads_from_tree > 0
        self._is_checkpoint_due = self._is_large() and (has_scanned or self._changed_much())
        self._is_index_due = journal.head.version >= START_VERSIONS_MIN
        self._refused: OrderedDict[str, None] = OrderedDict()
        journal.index.tell_refused = self._refuse

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
        return self.checkpoints, self.index_runs, self.drift_checks, self.comparisons, self.healings

    @property
    def drifts_count(self) -> int:
        """Times that memory was found to be wrong, whatever looked: a check, a commit, the writing of a checkpoint."""
        return self._index_drifts_count + self._journal.replay.counts.invalidations

    def _is_large(self) -> bool:
        return self._journal.replay.objects_count >= OBJECTS_MIN

    def _changed_much(self) -> bool:
        replay = self._journal.replay
        return replay.overlay_count > CHANGED_SHARE * replay.objects_count

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(TICK_SECONDS * self._dice.uniform(1 - JITTER, 1 + JITTER))

    async def step(self) -> None:
        """Do what is due."""
        head = self._journal.head.version
        replay, drift = self._journal.replay, self.drift_checks
        if replay.is_unverified and self.comparisons.may_run:
            await self.comparisons.attempt(head)
        if self._drift_seconds and drift.has_waited(self._drift_seconds) and drift.may_run:
            await drift.attempt(head)
        if replay.needs_rebuild and self.healings.may_run:  # whatever becomes of the checks
            await self.healings.attempt(head)
        self._is_checkpoint_due |= replay.lacks_checkpoint and self._is_large()
        is_wanted = self._is_checkpoint_due or self._is_due(self.checkpoints)
        if self.checkpoints.may_run and is_wanted and not replay.is_unverified:
            self._is_checkpoint_due = not await self.checkpoints.attempt(head)
        has_many = self._journal.index.memory_entries_count >= INDEX_ENTRIES_MAX
        if self.index_runs.may_run and (self._is_index_due or has_many or self._is_due(self.index_runs)):
            self._is_index_due = not await self.index_runs.attempt(head)

    def _is_due(self, job: Job) -> bool:
        """Only where there was any commit since."""
        count = self._journal.head.version - job.last_version
        return count > 0 and (job.has_seen(count, self._versions_max) or job.has_waited(self._seconds_max))

    async def finish(self, seconds: float) -> None:
        """At the orderly end, after the last commit: write what is worth it and fits into the time. Never raises."""
        head = self._journal.head.version
        is_worth_it = head - self.checkpoints.last_version > STOP_VERSIONS_MIN or (
            head > self.checkpoints.last_version and self._is_large() and self._changed_much()
        )
        if is_worth_it and not self._journal.replay.is_unverified:
            seconds = await self._run_within(self.checkpoints, head, seconds)
        if head - self.index_runs.last_version > STOP_VERSIONS_MIN:
            await self._run_within(self.index_runs, head, seconds)

    async def _run_within(self, job: Job, head: int, seconds: float) -> float:
        """The seconds that are left."""
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
        """A random part of the state, which is left when it is wrong, and a random version of the index if there was a
        commit. A sole writer sees here whether it is alone."""
        await self._journal.look_for_others()
        if not self._journal.replay.needs_rebuild:
            await self._journal.check_symbols(sample=DRIFT_RANGES)
        if self._journal.head.version == self.drift_checks.last_version:
            return  # nothing came into the index since: an idle daemon reads no root
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
        """The next part of what a checkpoint told, against the tree."""
        await self._journal.replay.verify(self._comparison_reads)

    async def _rebuild(self) -> None:
        """Bring back what memory was left, whoever found that it differs, or lost."""
        replay, version = self._journal.replay, self._journal.head.version
        if replay.invalid_reason:
            log.error("state_drift", version=version, what=replay.invalid_reason)
        elif replay.lost:
            log.warning("state_lost", version=version, why=replay.lost)
        await self._journal.replay.rebuild()

    def _refuse(self, path: str, error: AlpheusError) -> None:
        """Tell of each stored run that cannot be used, once."""
        if path not in self._refused:
            log.warning("index_run_refused", path=path, kind=error.kind, error=error.message)
        self._refused[path] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
