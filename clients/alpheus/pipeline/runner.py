"""Run pipelines: one loop in the driver, with no state except the position in the catalog.

A run is one transaction of the catalog from start to end. The transaction pins a version, the job reads its inputs at
that version, and what the job writes is stored in the transaction's own folders. One commit makes the outputs visible
and moves the position, provided the position is still the one that was read. A process that dies at any moment leaves
only files that no version names. The next process reads the position and does the same work again.

No run begins while the outcome of the run before it is unknown: an unknown outcome is settled first. The module is long
because it tells a run from its first step to its last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import msgspec

from alpheus.aio import session_of
from alpheus.callables import refuse_unrun
from alpheus.catalog import Catalog, Transaction, async_of, core_of
from alpheus.events.events import stored_events
from alpheus.feed.log import split_name
from alpheus.models import Commit
from alpheus.models import Job as StoredJob
from alpheus.pipeline.declarations import Misdeclared, has_run
from alpheus.pipeline.failures import JobFailed, LeaseHeld, Stopped, Tries, error_text, is_passing
from alpheus.pipeline.inbox import Inbox
from alpheus.pipeline.jobs import Job, Jobs, RunResult
from alpheus.pipeline.lake import JobLake
from alpheus.pipeline.lease import Leases
from alpheus.pipeline.positions import (
    PROPERTY_INPUT,
    PROPERTY_JOB,
    PROPERTY_PIPELINE,
    millis_of,
)
from alpheus.pipeline.work import Idle, Planner, Work
from alpheus.sync.portal import run
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName, pipeline_name
from alpheus_journal.model.definitions import InputPosition, JobDeclaration
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import AdvancePipeline, Read

CONFLICTS_MAX = 20
"""The number of retries after a conflict over an output, before the conflict counts as a failure."""
CONFLICT_PAUSE_SECONDS_MAX = 1.0
OUTAGE_PAUSE_SECONDS_MAX = 5.0
BACKOFF_SECONDS_MAX = 3600.0
POLL_SECONDS = 0.2
"""The interval at which `serve` checks its `stop` event, if it has one."""
LEASE_LOOK_SECONDS = 1.0
"""The interval at which a runner that waits for another runner's lease looks again."""
IDLE_MOVE = timedelta(days=1)
"""A job without work commits its position when the version after it is this old."""
IDLE_LOOK = timedelta(hours=1)
"""The interval at which the age of that version is looked at."""
_UNDROPS = frozenset({"TABLE_UNDROP", "NAMESPACE_UNDROP"})


class Runner:
    """Runs the jobs of one pipeline on one lake. Used by one thread.

    `jobs` are jobs of the pipeline in the order of declaration, by default all of them. `monotonic`, `now`, `sleep` and
    `jitter` are arguments so that tests can control time and chance.
    """

    def __init__(
        self,
        lake: JobLake,
        pipeline: Jobs,
        *,
        params: Mapping[str, str] | None = None,
        jobs: Sequence[Job] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        if not hasattr(lake, "catalog"):
            raise InvalidInput(
                f"jobs run on Spark: a SparkCatalog is needed, not a {type(lake).__name__}",
                hint="pass alpheus.spark.SparkCatalog(spark, catalog)",
            )
        self._lake = lake
        self._catalog: Catalog = lake.catalog
        self._pipeline = pipeline
        self._params = dict(params or {})
        self._jobs = list(pipeline.jobs.values()) if jobs is None else list(jobs)
        self._monotonic = monotonic
        self._now = now
        self._sleep = sleep or self._interruptible_sleep
        self._random = jitter or random.Random()
        self._stopping = False
        self._stop: threading.Event | None = None
        self._inbox = Inbox()
        self._leases = Leases(lake.storage, pipeline.name, pipeline.lease, monotonic=monotonic)
        self._planner = Planner(self._catalog, pipeline, self._jobs, now)
        self._idle_looks: dict[str, datetime] = {}  # when the age of each idle job's position was looked at

    # -- once

    def run(self, *, full_refresh: bool = False) -> list[RunResult]:
        """See `Pipeline.run`."""
        if full_refresh:
            with self._catalog.transaction() as tx:
                for job in self._jobs:
                    self._planner.refuse_foreign_rows(tx, job)
        results = []
        for job in self._jobs:
            tries = Tries()
            while (result := self._step(job, tries, full_refresh)) is None:
                self._sleep(max(0.0, tries.not_before - self._monotonic()))
            results.append(result)
        return results

    # -- forever

    def serve(
        self, *, on_result: Callable[[RunResult], object] | None = None, stop: threading.Event | None = None
    ) -> None:
        """See `Pipeline.serve`."""
        self._lake.check_can_serve()
        self._stop = stop
        with contextlib.suppress(Stopped):
            self._serve(on_result)

    def _serve(self, on_result: Callable[[RunResult], object] | None) -> None:
        reported: dict[str, str] = {}  # parked jobs → the error that was reported
        due: dict[str, Tries] = {}
        with self._stop_signals():
            while not self._should_stop():
                names = self._planner.table_names()
                with self._follow_tables(names):
                    for job in self._jobs:  # earlier commits do not arrive as events
                        due.setdefault(job.name, Tries())
                    while names == self._planner.table_names() and not self._should_stop():
                        self._round(due, reported, on_result)
                        self._wait_for_work(due)
                        self._wake(due)

    def _round(
        self, due: dict[str, Tries], reported: dict[str, str], on_result: Callable[[RunResult], object] | None
    ) -> None:
        """Try every job that is due once."""
        for job in self._jobs:
            tries = due.get(job.name)
            if tries is None or tries.not_before > self._monotonic() or self._should_stop():
                continue
            result = self._step(job, tries, False)
            if result is not None:
                del due[job.name]
                if tries.retry_in is not None:
                    due[job.name] = Tries(not_before=self._monotonic() + tries.retry_in)
                # A parked result with a version was parked just now, perhaps again with the same error.
                if result.state != "parked" or result.version or reported.get(job.name) != result.error:
                    reported.pop(job.name, None)
                    if result.state == "parked":
                        reported[job.name] = result.error
                    if on_result is not None and result.state != "nothing":
                        on_result(result)
            self._wake(due)

    def _wait_for_work(self, due: Mapping[str, Tries]) -> None:
        """Wait until something changes, the next job is due, or it is time to check `stop`."""
        timeout: float | None = None
        if due:
            timeout = max(0.0, min(tries.not_before for tries in due.values()) - self._monotonic())
        if self._stop is not None:
            timeout = POLL_SECONDS if timeout is None else min(timeout, POLL_SECONDS)
        if timeout != 0 and not self._should_stop():
            self._inbox.wait(timeout)

    def _wake(self, due: dict[str, Tries]) -> None:
        """Make the jobs due that the received changes may concern."""
        changed, created = self._inbox.take()
        if not changed:
            return
        # An object came back under another name, perhaps the table that an input waits for.
        is_back = not created <= self._planner.table_names()
        for job in self._jobs:
            rows = {self._planner.table_name(job, key) for key in job.triggers}
            shape = {self._planner.table_name(job, key) for key in job.inputs}
            if is_back or self._pipeline.name in changed or changed & rows or created & shape:
                due.setdefault(job.name, Tries())

    @contextlib.contextmanager
    def _follow_tables(self, names: set[str]) -> Iterator[None]:
        """Run a task on the client's loop that puts events into the inbox: events of the pipeline and the named tables,
        and undrops of any object."""
        while True:
            try:
                after = self._catalog.version()
                break
            except AlpheusError as error:
                if not is_passing(error):
                    raise
                self._sleep(self._random.uniform(0.5, 1.0) * OUTAGE_PAUSE_SECONDS_MAX)
        wanted = {ObjectName(Kind.TABLE, *split_name(name)) for name in names} | {
            pipeline_name(self._pipeline.name)
        }
        task = run(_start_task(self._follow(after, EventFilter(actions=_UNDROPS, also=frozenset(wanted)))))
        try:
            yield
        finally:
            run(_stop_task(task))

    async def _follow(self, after: int, filter: EventFilter) -> None:
        try:
            session = session_of(async_of(self._catalog))
            async for event in stored_events(
                session, after=after, until=None, follow=True, filter=filter, details=False
            ):
                self._inbox.put(event, self._pipeline.name)
        except Exception as error:
            self._inbox.fail(error)

    @contextlib.contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Handle SIGTERM: the first ends the loop after the current run, the second interrupts that run."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._stopping:
                raise KeyboardInterrupt
            self._stopping = True
            self._inbox.poke()

        before = signal.signal(signal.SIGTERM, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _should_stop(self) -> bool:
        return self._stopping or (self._stop is not None and self._stop.is_set())

    def _interruptible_sleep(self, seconds: float) -> None:
        """Sleep. Raise Stopped as soon as the loop should stop."""
        end = time.monotonic() + seconds
        while True:
            if self._should_stop():
                raise Stopped
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, POLL_SECONDS))

    # -- one step

    def _step(self, job: Job, tries: Tries, full: bool) -> RunResult | None:
        """Try a job once. Return None when it must be tried again, not before `tries.not_before`."""
        last: str | None = None

        def on_load(stored: StoredJob | None) -> None:
            nonlocal last
            last = stored.last_transaction_id if stored else ""

        try:
            return self._attempt(job, tries, full, on_load)
        except Conflict as error:
            if error.kind == "position_moved":
                return None  # by another process, or by our own commit whose reply was lost: read the position again
            if full and not error.retryable:
                raise
            if error.retryable and tries.conflicts < CONFLICTS_MAX:
                tries.conflicts += 1
                self._pause(tries, CONFLICT_PAUSE_SECONDS_MAX, tries.conflicts)
                return None
            return self._retry_or_park(job, tries, error, last, final=not error.retryable)
        except LeaseHeld:
            tries.not_before = self._monotonic() + LEASE_LOOK_SECONDS
            return None
        except JobFailed as failed:
            return self._retry_or_park(job, tries, failed.error, last, final=False)
        except Misdeclared as error:
            # Write nothing: the recorded job may be running elsewhere and must not be parked because of this one.
            return RunResult(job=job.name, state="parked", error=error_text(error))
        except AlpheusError as error:
            if is_passing(error):
                tries.outages += 1
                self._pause(tries, OUTAGE_PAUSE_SECONDS_MAX, tries.outages)
                return None
            if isinstance(error, Unavailable):
                raise  # this process can no longer write
            return self._retry_or_park(job, tries, error, last, final=True)

    def _retry_or_park(
        self, job: Job, tries: Tries, error: Exception, last: str | None, *, final: bool
    ) -> RunResult | None:
        if last is None:
            raise error  # not even the position could be read
        tries.failures += 1
        if not final and tries.failures <= self._pipeline.retries:
            seconds = min(self._pipeline.backoff * 2.0 ** (tries.failures - 1), BACKOFF_SECONDS_MAX)
            tries.not_before = self._monotonic() + seconds
            return None
        try:
            return self._park(job, tries, error_text(error), last)
        except Conflict:
            return None
        except AlpheusError as trouble:
            if not is_passing(trouble):
                raise
            # The catalog is unavailable, so parking cannot be recorded: the job fails once more first.
            tries.outages += 1
            self._pause(tries, OUTAGE_PAUSE_SECONDS_MAX, tries.outages)
            return None

    def _pause(self, tries: Tries, seconds_max: float, count: int) -> None:
        seconds = min(seconds_max, 0.05 * 2.0 ** min(count - 1, 10)) * self._random.uniform(0.5, 1.0)
        tries.not_before = self._monotonic() + seconds

    def _attempt(
        self, job: Job, tries: Tries, full: bool, on_load: Callable[[StoredJob | None], None]
    ) -> RunResult:
        with self._catalog.transaction(
            "serializable" if job.serializable else "snapshot",
            message=f"{self._pipeline.name}.{job.name}",
            properties={PROPERTY_PIPELINE: self._pipeline.name, PROPERTY_JOB: job.name},
        ) as tx:
            # A serializable run records reads of its inputs' rows only, not of the positions of other jobs.
            reader = self._catalog.at(tx.version) if job.serializable else tx
            stored = self._planner.load_job(reader, job)
            on_load(stored)
            if stored is not None and stored.state == "parked" and not full:
                tx.abandon()
                return RunResult(job=job.name, state="parked", error=stored.error)
            if full:
                self._planner.refuse_foreign_rows(
                    reader, job
                )  # includes rows that arrived after the check in `run`
            work = self._planner.find_work(tx, reader, job, stored, full)
            if isinstance(work, Idle):
                if not self._move_idle(tx, job, stored):
                    tx.abandon()
                tries.retry_in = work.seconds
                return RunResult(job=job.name, state="nothing", pinned=tx.version, error=work.reason)
            # The transaction's lease, too: the function may take longer than a collection waits for uploads.
            lease = self._leases.take(job.name, beside=core_of(tx).hold_lease)
            if lease is None:
                tx.abandon()
                raise LeaseHeld
            try:
                return self._call(tx, job, work, tries)
            finally:
                lease.end()

    def _move_idle(self, tx: Transaction, job: Job, stored: StoredJob | None) -> bool:
        """Commit the position of a job that has had no work for a day, so that the log behind it can expire. Return
        whether a commit was needed."""
        positions = self._planner.idle_positions(job, stored, tx.version)
        looked_at = self._idle_looks.get(job.name)
        if positions is None or (looked_at is not None and self._now() - looked_at < IDLE_LOOK):
            return False
        self._idle_looks[job.name] = self._now()
        assert stored is not None
        oldest = min(position.version for position in stored.inputs.values())
        try:
            waits_since = self._catalog.at(oldest + 1).info.created_at
        except (Expired, Corrupt):
            return False
        if self._now() - waits_since < IDLE_MOVE:
            return False
        self._advance(tx, job, stored, stored.pinned_version, positions, declaration=stored.declaration)
        self._commit(tx)
        return True

    def _call(self, tx: Transaction, job: Job, work: Work, tries: Tries) -> RunResult:
        """Call the job's function with its work. Commit what it wrote together with the new position."""
        called_at = self._now()
        work = self._prepare(tx, job, work, called_at)
        self._call_function(tx, job, work, tries)
        self._refuse_undeclared(tx, job)
        commit = self._commit(tx)
        if work.more:
            tries.retry_in = 0.0
        elif job.every is not None and not job.triggers:
            tries.retry_in = max(0.0, job.every - (self._now() - called_at).total_seconds())
        newest = work.newest
        return RunResult(
            job=job.name,
            state="committed",
            version=commit.version,
            pinned=work.version,
            transaction_id=commit.transaction_id,
            attempts=tries.attempt,
            input_version=newest.version if newest else None,
            waited_ms=(called_at - newest.created_at).total_seconds() * 1000 if newest else None,
            called_at=called_at,
            finished_at=self._now(),
            more=work.more,
        )

    def _prepare(self, tx: Transaction, job: Job, work: Work, called_at: datetime) -> Work:
        """Add to the transaction what a run commits besides the function's writes: the position, empty outputs of a
        full run, lineage, and reads of a serializable job. Return the work as the function sees it."""
        # The position comes first, so that the loser of two runs of the same work gets a conflict over the position.
        self._advance(
            tx,
            job,
            work.stored,
            work.version,
            self._positions_after(job, work),
            called_at=called_at,
            declaration=work.declaration,
        )
        if work.full and work.stored is not None and has_run(work.stored):
            for namespace, name in job.outputs:
                tx.overwrite_segments((namespace, name), [], work.outputs[namespace, name].id)
            work = _reload_own_outputs(tx, job, work)
        tx.add_properties(_lineage_of(job, work))
        if job.serializable:
            for key in job.inputs:
                table = work.inputs[key]
                core_of(tx).keep(
                    Read(type="TABLE_SELECT", name=ObjectName(Kind.TABLE, table.namespace, table.name))
                )
        return work

    def _positions_after(self, job: Job, work: Work) -> dict[str, InputPosition]:
        """Return the position of each input after a run that does `work`."""
        return {
            key: InputPosition(
                table_id=table.id,
                version=max(work.version, work.begins.get(key, 0)),
                # For an input that begins after the version that is read: its name at that later version.
                table=table.full_name
                if work.begins.get(key, 0) <= work.version
                else self._planner.table_name(job, key),
            )
            for key, table in work.inputs.items()
        }

    def _call_function(self, tx: Transaction, job: Job, work: Work, tries: Tries) -> None:
        """Call the function. Raise JobFailed with the function's error, unless the job is not at fault."""
        job_run = self._lake.job_run(job, work, tx, attempt=tries.attempt, params=self._params)
        try:
            refuse_unrun(f"job {job.name}", job.function(job_run))
        except Exception as error:
            if isinstance(error, AlpheusError) and (is_passing(error) or isinstance(error, Conflict)):
                raise
            if not self._lake.is_up():
                error.add_note("Spark has ended in this process: restart the process")
                raise  # whatever error the job raised, the job is not at fault
            raise JobFailed(error) from error
        finally:
            job_run.end()

    def _refuse_undeclared(self, tx: Transaction, job: Job) -> None:
        """Raise InvalidInput when the transaction changes anything but declared outputs and the position, however the
        function got hold of the transaction."""
        declared = {ObjectName(Kind.TABLE, namespace, name) for namespace, name in job.outputs}
        for operation in tx.operations:
            target = getattr(operation, "target", None)
            moves = isinstance(operation, AdvancePipeline) and operation.job == job.name
            if target not in declared and not moves:
                raise InvalidInput(
                    f"job {job.name} did {type(operation).__name__} on {target}, which is not a declared output",
                    kind="undeclared_output",
                    hint="write with run.append and similar methods; make other changes in separate transactions",
                )

    def _advance(
        self,
        tx: Transaction,
        job: Job,
        stored: StoredJob | None,
        pinned: int,
        inputs: Mapping[str, InputPosition],
        state: str = "running",
        error: str = "",
        called_at: datetime | None = None,
        declaration: JobDeclaration | None = None,
    ) -> None:
        last = stored.last_transaction_id if stored else ""
        called = called_at or (stored.called_at if stored else None)
        entry = self._planner.entry
        tx.advance_pipeline(
            self._pipeline.name,
            job.name,
            last,
            pinned,
            inputs,
            state,
            error,
            self._params,
            millis_of(called),
            declaration=declaration,
            expected_pipeline_id=entry.id if entry is not None else "",
        )

    def _advance_to_parked(
        self,
        tx: Transaction,
        job: Job,
        stored: StoredJob | None,
        error: str,
        declaration: JobDeclaration | None,
    ) -> None:
        position = stored.inputs if stored else {}
        pinned = stored.pinned_version if stored else 0
        self._advance(tx, job, stored, pinned, position, "parked", error, declaration=declaration)

    def _commit(self, tx: Transaction) -> Commit:
        """Commit, and settle an unknown outcome. Raise Unavailable when the commit was not applied and never will
        be."""
        try:
            commit = tx.commit()
            assert commit is not None
            return commit
        except OutcomeUnknown:
            pass
        tries = Tries()
        while True:
            try:
                outcome = self._catalog.outcome(tx.id, since=tx.version, settle=True)
            except AlpheusError as error:
                if not is_passing(error):
                    raise
                tries.outages += 1
                self._pause(tries, OUTAGE_PAUSE_SECONDS_MAX, tries.outages)
                self._sleep(max(0.0, tries.not_before - self._monotonic()))
                continue
            if outcome.state == "committed" and outcome.commit is not None:
                return outcome.commit
            if outcome.state == "cancelled":
                raise Unavailable(f"the commit of transaction {tx.id} was lost and is now cancelled")

    def _park(self, job: Job, tries: Tries, error: str, last: str) -> RunResult | None:
        """Record that the job is parked, at its present position. Return None, or raise Conflict, when the position
        moved."""
        with self._catalog.transaction(message=f"park {self._pipeline.name}.{job.name}") as tx:
            stored = self._planner.load_job(tx, job)
            if (stored.last_transaction_id if stored else "") != last:
                tx.abandon()
                return None
            declaration = None if stored and stored.declaration else self._planner.declared(job)
            try:
                self._advance_to_parked(tx, job, stored, error, declaration)
            except InvalidInput:  # the declaration itself may be invalid: park without it
                if declaration is None:
                    raise
                self._advance_to_parked(tx, job, stored, error, None)
            commit = self._commit(tx)
        return RunResult(
            job=job.name,
            state="parked",
            version=commit.version,
            transaction_id=commit.transaction_id,
            error=error,
            attempts=tries.failures,
        )


def _reload_own_outputs(tx: Transaction, job: Job, work: Work) -> Work:
    """Reload the inputs that are the job's own outputs, which are empty now."""
    inputs = {
        key: tx.load_table((table.namespace, table.name))
        if (table.namespace, table.name) in job.outputs
        else table
        for key, table in work.inputs.items()
    }
    return msgspec.structs.replace(work, inputs=inputs)


def _lineage_of(job: Job, work: Work) -> dict[str, str]:
    """Return the transaction properties that say what a run reads; see `alpheus.pipeline`."""
    found = {}
    for key, table in work.inputs.items():
        begin = work.begins.get(key) if job.inputs[key].mode != "table" else None
        span = f"{work.version}" if begin is None else f"{begin}..{max(work.version, begin)}"
        found[PROPERTY_INPUT + key] = f"{table.full_name}@{span}"
    return found


async def _start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(coroutine, name="pipeline-events")


async def _stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
