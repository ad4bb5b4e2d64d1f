"""What every way to a catalog offers: the same calls with the same results.

`Journal` (a prefix on storage, opened by this process) and the client's connection to a daemon both are an
`Access`; the daemon serves its own. What the calls answer with is in `model/answers.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import (
    At,
    CatalogInfo,
    Change,
    CheckSummary,
    Committed,
    Dropped,
    Event,
    Finding,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Position,
    Progress,
    SavedTransaction,
    SnapshotPart,
    VersionInfo,
)
from alpheus_journal.model.event_filter import EVERYTHING, EventFilter
from alpheus_journal.model.operations import Transaction
from alpheus_journal.replay.loader import CheckpointInfo, SymbolsInfo
from alpheus_journal.replay.symbols import Drift, SymbolPage, SymbolQuery
from alpheus_journal.storage import Storage


class Access(Protocol):
    """One catalog, however reached. Errors: `alpheus_journal.errors`."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def storage(self) -> Storage:
        """Where data files and manifests go, directly. InvalidInput when this process cannot reach it."""
        ...

    async def info(self) -> CatalogInfo: ...

    async def resolve(self, at: At) -> VersionInfo:
        """NotFound (`no_version`) above the head, Expired below the oldest; InvalidInput (`future_version`) for a time
        that is ahead of the head and of the clock of who answers."""
        ...

    async def load(self, at: At, names: list[ObjectName]) -> Loaded:
        """Definitions of many objects, all at one version. CATALOG is always there."""
        ...

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        """Names of a kind: of namespaces, or of tables and views below one. `after` is exclusive;
        `limit` 0: as many as one page holds. NotFound (`no_namespace`) for a namespace that is not there."""
        ...

    def snapshot(self, at: At, *, namespaces: frozenset[str] = frozenset()) -> AsyncIterator[SnapshotPart]:
        """Every live object of one version, in parts; the first comes at once and says the version. `namespaces`: only
        those namespaces and what is in them. Objects come grouped by kind, each kind in key order, damaged ones with
        their damage said.

        A part is made when the one before it was taken, so that a slow reader costs no more than one. Expired when
        the version's nodes went while it was read.
        """
        ...

    async def commit(self, transaction: Transaction) -> Committed:
        """Whole or not at all. The same again gives the recorded answer (`duplicate`): the same id with the same
        request, a retry key that another transaction has, or a writer's sequence that its tables remember. The
        answer then names the transaction that did it; where its version has expired, without time and rows (0).

        Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput, Expired, Unavailable, Exhausted: this call
        did not apply it and never will; of an earlier call that ended in OutcomeUnknown, Expired, Unavailable
        and Exhausted say nothing. OutcomeUnknown: ask `outcome`, or send the same again.
        """
        ...

    def events(
        self,
        *,
        after: int | str | None = None,
        until: int | None = None,
        follow: bool = False,
        filter: EventFilter = EVERYTHING,
        details: bool = False,
    ) -> AsyncIterator[Event | Progress]:
        """Versions in order, no gap, none twice, and progress marks in between.

        `after`: a version (exclusive), a token (verified), or None for all that is kept. `until` is inclusive;
        without it and without `follow` the stream ends at the head of the time of the call. Expired when
        history between is gone; InvalidInput for a version above the head or another history's token.
        """
        ...

    def log(
        self, *, name: ObjectName | None = None, after: int | None = None, until: int | None = None
    ) -> AsyncIterator[LogEntry]:
        """Recorded transactions, newest first; `name`: only those that acted on it. `after` exclusive,
        `until` inclusive."""
        ...

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False, certain: bool = False
    ) -> Outcome:
        """Search the kept versions from `since` (exclusive) on. Of a transaction and a cancellation of it, what comes
        first in the log holds. A repetition (by retry key or writer) leaves no trace: its id stays "unknown".

        `settle` commits a cancellation of the id when it is not found, so that the answer is final; across versions
        that have expired, it cancels and raises Expired: perhaps it had committed, from now on it does not.

        `certain`: Expired instead of "unknown" where a version is gone that may hold it. So "unknown" means that it is
        in no version up to the head.
        """
        ...

    def diff(self, before: At, after: At, *, details: bool = False) -> AsyncIterator[Change]:
        """What differs between two versions, in key order (structural diff: its cost follows the difference).
        `before` may be the newer one. With `details`, definitions before and after."""
        ...

    def dropped(
        self, *, namespace: str | None = None, name: ObjectName | None = None, version: int | None = None
    ) -> AsyncIterator[Dropped]:
        """Objects that were dropped and are not there at a version (None: the head), the last dropped first;
        `namespace`: itself and what was in it. Reads one root a kept version, so leave early (`aclose`)."""
        ...

    async def save_transaction(self, transaction: Transaction) -> SavedTransaction:
        """Keep a transaction on storage under its id; the last save of it wins. Its operations, which may be none,
        are executed at its begin version. Expired (`transaction_expired`) after its time."""
        ...

    async def load_transaction(self, transaction_id: str) -> SavedTransaction:
        """NotFound (`no_transaction`), Expired (`transaction_expired`), InvalidInput (`not_supported`) for one that is
        not resumable."""
        ...

    def saved_transactions(self) -> AsyncIterator[SavedTransaction]:
        """All that are saved, expired and damaged ones too, in no order."""
        ...

    async def discard_transaction(self, transaction_id: str) -> Outcome:
        """Settle the outcome of a saved transaction and remove its file: "cancelled", or "committed" when it had.
        Expired as `outcome` with `settle`: the file is removed all the same. One that another writer saved is
        "unknown": its versions do not name their transactions. A damaged one is discarded like any other."""
        ...

    async def position(self, path: str) -> Position | None:
        """How far the epoch of a subscription whose position lies at `path` is; None: it has said nothing yet, or was
        followed by others. Corrupt (`corrupt_history`)."""
        ...

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        """Write how far the own epoch of a subscription is. Safe to repeat; what comes late only repeats events.

        NotFound (`no_subscription`) when it was dropped, Conflict (`subscription_claimed`) when another epoch began:
        nothing was written then.
        """
        ...

    def check(self, *, after: int | None = None) -> AsyncIterator[Finding | CheckSummary]:
        """Every invariant of the stored catalog; the summary comes last. `after`: only versions above it."""
        ...

    async def symbols(self, at: At, query: SymbolQuery) -> SymbolPage:
        """A page of the symbol list: names of live objects of every kind, damaged ones too. InvalidInput for what is no
        cursor of a page."""
        ...

    async def reload_symbols(self) -> SymbolsInfo:
        """Make the list, and what else is in memory, anew from the tree of the head. Readers never see a gap. A process
        that had the catalog in memory deletes all checkpoints, too."""
        ...

    async def compact_symbols(self) -> SymbolsInfo:
        """Make a new base of the list now. Unavailable when that fails; the list is as good as before."""
        ...

    async def check_symbols(self, *, sample: int | None = None) -> Drift:
        """Compare what is in memory with the tree: all of it, or `sample` random ranges of keys. Memory that differs
        is left, and the tree read instead."""
        ...

    async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
        """Store the state of the head, so that the next process opens it by mapping. With `verify` it is compared with
        the tree first, however large. Corrupt (`state_drift`) when memory and tree differ."""
        ...

    async def close(self) -> None: ...
