"""A store and a committer that are timed: the duration and outcome of each call, spans, outages.

Every call is passed to the driver unchanged, and its result is passed back. An outage of the store is logged once when
it begins and once when it is over, however many calls failed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from alpheus_daemon.serve.writer import Answer, GroupCommitter
from alpheus_daemon.telemetry.logs import logger
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_daemon.telemetry.tracing import Tracer
from alpheus_journal.commit.committer import Observer
from alpheus_journal.errors import AlpheusError, OutcomeUnknown, Unavailable
from alpheus_journal.model.operations import Transaction
from alpheus_journal.storage import ObjectInfo, OpenUpload, Storage
from alpheus_journal.wire.errors import class_name

T = TypeVar("T")

log = logger()

AHEAD_TOLD_SECONDS = 60.0
"""The interval at which the log says, while commits continue, that the times of versions are in the future."""
OUTAGE_QUIET_SECONDS = 1.0
"""An outage is over when a call succeeds and none has failed for this long."""

IDS_SHOWN = 10
"""The transaction ids of a group that its span names."""
GROUP_STAGES = ("execute", "encode", "upload", "turn", "root")


class Outage:
    """Calls that fail because the store is not reachable."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = 0.0
        self._failed_at = 0.0
        self.failed_count = 0
        """The calls that failed in the current outage."""
        self.outages_count = 0
        self.is_read_only = False

    @property
    def is_on(self) -> bool:
        return self.failed_count > 0

    def failed(self, operation: str, error: AlpheusError) -> None:
        if error.kind == "shutting_down":  # this process closed the store
            return
        if error.kind == "storage_read_only":  # lasts until a restart; reads continue
            if not self.is_read_only:
                self.is_read_only = True
                log.error("storage_read_only", operation=operation, error=str(error))
            return
        self._failed_at = self._monotonic()
        self.failed_count += 1
        if self.failed_count == 1:
            self._began = self._failed_at
            self.outages_count += 1
            log.warning("storage_outage_began", operation=operation, kind=error.kind, error=str(error))

    def worked(self) -> None:
        now = self._monotonic()
        if self.failed_count and now - self._failed_at >= OUTAGE_QUIET_SECONDS:
            log.warning(
                "storage_outage_ended",
                failed_count=self.failed_count,
                lasted_seconds=round(now - self._began, 3),
            )
            self.failed_count = 0


class TimedStorage(Storage):
    """Another store, timed. It gives the same guarantees as that store."""

    def __init__(self, inner: Storage, metrics: Metrics, tracer: Tracer) -> None:
        self.inner = inner
        self.url = inner.url
        self.publishes_at_once = inner.publishes_at_once
        self.outage = Outage()
        self._metrics = metrics
        self._tracer = tracer

    async def _call(self, operation: str, call: Awaitable[T]) -> T:
        outcome, started = "cancelled", time.monotonic()
        with self._tracer.span(f"storage.{operation}") as span:
            try:
                result = await call
                outcome = "ok"
            except AlpheusError as error:
                outcome = class_name(error)
                if isinstance(error, Unavailable | OutcomeUnknown):
                    self.outage.failed(operation, error)
                else:
                    self.outage.worked()  # the store answered
                raise
            except Exception:
                outcome = "failed"
                raise
            finally:
                self._metrics.storage(operation, outcome, time.monotonic() - started)
                span.end("OK" if outcome == "ok" else outcome)
        if self.outage.is_on:
            self.outage.worked()
        return result

    @property
    def clock_offset_millis(self) -> int | None:
        return self.inner.clock_offset_millis

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self._call("read", self.inner.read(path, size_max=size_max))

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        return await self._call("read_many", self.inner.read_many(paths, size_max=size_max))

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        return await self._call("read_part", self.inner.read_part(path, start=start, size=size))

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._call("stat", self.inner.stat(path))

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        return await self._call("stat_many", self.inner.stat_many(paths))

    async def exists(self, path: str) -> bool:
        return await self._call("exists", self.inner.exists(path))

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def create(self, path: str, data: bytes) -> None:
        await self._call("create", self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._call("put", self.inner.put(path, data))

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        await self._call("put_many", self.inner.put_many(files))

    async def put_in_order(self, files: Mapping[str, bytes]) -> None:
        await self._call("put_in_order", self.inner.put_in_order(files))

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        await self._call("publish", self.inner.publish(files, slot, root))

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        return await self._call("publish", self.inner.publish_looking(files, slot, root, beside))

    async def delete(self, path: str) -> None:
        await self._call("delete", self.inner.delete(path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        await self._call("delete_many", self.inner.delete_many(paths))

    def list_uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        return self.inner.list_uploads(prefix)

    async def abort_upload(self, upload: OpenUpload) -> None:
        await self._call("abort_upload", self.inner.abort_upload(upload))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self._call("make_durable", self.inner.make_durable(paths))

    async def enclosing(self, paths: Sequence[str]) -> str:
        return await self._call("enclosing", self.inner.enclosing(paths))

    async def prove(self) -> None:
        await self._call("prove", self.inner.prove())

    async def close(self) -> None:
        await self.inner.close()


class CommitMeter(Observer):
    """Passes timings and counts of commits to the metrics, and timings as spans to the tracer."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._tell_at = 0.0

    def now(self) -> float:
        return time.monotonic()

    def on_duration(self, stage: str, seconds: float) -> None:
        self._metrics.commit_stage(stage, seconds)
        if stage in GROUP_STAGES:
            self._tracer.past(f"commit.{stage}", seconds)

    def on_group(self, members_count: int, root_size_bytes: int) -> None:
        self._metrics.commit_group(members_count)

    def on_time_ahead(self, where: str, version: int, ahead_millis: int) -> None:
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + AHEAD_TOLD_SECONDS
            log.error(
                "head_time_in_future",
                version=version,
                ahead_seconds=ahead_millis // 1000,
                hint="the clock of a writer or of this machine is or was wrong; see alpheus repair --times",
            )

    def on_events(self, what: str, count: int = 1) -> None:
        self._metrics.commit_event(what, count)


class TracedCommitter:
    """Another committer, with a span for each group. The group's calls to the storage are below this span."""

    def __init__(self, inner: GroupCommitter, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
    ) -> Sequence[Answer]:
        ids = " ".join(member.id for member in transactions[:IDS_SHOWN])
        with self._tracer.span("commit_group", members_count=len(transactions), transaction_ids=ids):
            return await self._inner.commit_group(
                transactions, deadline_seconds=deadline_seconds, on_publish=on_publish
            )
