"""Passes the names of changed objects to the thread that runs the jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from queue import Empty, SimpleQueue

from alpheus.pipeline.positions import (
    PROPERTY_JOB,
    PROPERTY_PIPELINE,
    PROPERTY_REWIND,
)
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event


class Inbox:
    """Names of changed objects, on their way from the client's event loop to the thread that runs the jobs.

    The inbox holds each name once, so its size is bounded by the number of followed names. It needs no locks: it uses
    single operations of dict, which the interpreter makes atomic, and `SimpleQueue`, which a signal handler may use.
    """

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}
        self._created: dict[str, None] = {}
        self._error: Exception | None = None
        self._poked = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def put(self, event: Event, pipeline: str) -> None:
        """Add the names of what an event changed. The entry of `pipeline` counts unless a run of one of its jobs moved
        it."""
        for change in event.changes:
            if change.name.kind is Kind.PIPELINE and all(
                _is_run_of(pipeline, transaction.properties) for transaction in event.transactions
            ):
                continue
            if change.type == "created":
                self._created[change.name.full_name] = None
            self._changed[change.name.full_name] = None
        if self._changed:
            self.poke()

    def fail(self, error: Exception) -> None:
        """Report that the events ended with an error. `take` raises the error."""
        self._error = error
        self.poke()

    def poke(self) -> None:
        """End a `wait`."""
        if not self._poked:
            self._poked = True
            self._queue.put(None)

    def wait(self, timeout: float | None) -> None:
        with contextlib.suppress(Empty):
            self._queue.get(timeout=timeout)

    def take(self) -> tuple[set[str], set[str]]:
        """Return the names that changed since the last call, and those of them that were created."""
        # This comes first: names that arrive from now on poke again.
        self._poked = False
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()
        if self._error is not None:
            raise self._error
        return _drain(self._changed), _drain(self._created)


def _is_run_of(pipeline: str, properties: Mapping[str, str]) -> bool:
    """Return whether a transaction is a run of one of the pipeline's jobs. A rewind is not a run."""
    return (
        properties.get(PROPERTY_PIPELINE) == pipeline
        and PROPERTY_JOB in properties
        and PROPERTY_REWIND not in properties
    )


def _drain(names: dict[str, None]) -> set[str]:
    found = set()
    with contextlib.suppress(KeyError):
        while True:
            found.add(names.popitem()[0])
    return found
