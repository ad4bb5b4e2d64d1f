"""A replica for synchronous code."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar, cast

from alpheus.closing import Closing
from alpheus.display import Facts, Shown
from alpheus.events.replica import AsyncReplica, direct_reads
from alpheus.models import Table
from alpheus.session.arguments import Name
from alpheus.sync.portal import run
from alpheus.sync.scan import SyncPinnedReads
from alpheus_journal.errors import AlpheusError

T = TypeVar("T")


def _run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a read of a replica without an event loop. Such a read never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    coroutine.close()
    raise AssertionError("a read of a replica waited")


class Replica(Shown, SyncPinnedReads, Closing):
    """A copy of the catalog in this process, kept up to date in the background.

    Reads see `version`, which only goes up. They return what the catalog returns at that version, in microseconds. The
    catalog object that made the replica never reads an older version than the replica has. All readers share the
    values, so do not change the dicts in them. A replica is a context manager; otherwise call `close`.
    """

    _run = staticmethod(_run_now)

    def __init__(self, core: AsyncReplica) -> None:
        self._core = core
        self._direct = direct_reads(core)
        self._pid = os.getpid()

    def _title(self) -> str:
        return self._core._title()

    def _facts(self) -> Facts:
        return self._core._facts()

    def wait_for(self, version: int, timeout: float | None = None) -> int:
        """Wait until reads see `version` or a newer one, and return the version that they see.

        Raises Unavailable (`replica_behind`) after `timeout` seconds. Without a timeout, a version that is never
        committed is waited for without end.
        """
        if type(version) is int and self._direct.has_reached(version):
            return self._core.version
        return run(self._core.wait_for(version, timeout))

    def close(self) -> None:
        """Stop following. Later reads raise InvalidInput; further calls of `close` do nothing."""
        if self._pid == os.getpid():
            run(self._core.close())

    def load_table(self, name: Name) -> Table:
        """Return one table. Raises NotFound (`no_table`)."""
        return self._direct.load_table(name)

    def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Return many tables, all at one version, in the order of `names`. Raises NotFound, which names the first
        missing table."""
        return self._direct.load_tables(names)

    def table_exists(self, name: Name) -> bool:
        return self._direct.table_exists(name)

    def _reads(self) -> AsyncReplica:
        return self._core

    # -- generated from AsyncReplica by `python -m alpheus.sync`

    @property
    def version(self) -> int:
        """The version that reads see."""
        return self._core.version

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that are copied; empty means all."""
        return self._core.namespaces

    @property
    def lag(self) -> float:
        """Seconds since the last moment at which `version` was certainly the newest. About one second in normal
        operation, because the replica asks for the head once a second."""
        return self._core.lag

    @property
    def error(self) -> AlpheusError | None:
        """The reason why the replica does not follow the log now; None while it follows. Unless the replica has ended,
        reads continue with what was copied."""
        return self._core.error
