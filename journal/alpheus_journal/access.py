"""What every way to a catalog offers: the same calls with the same results.

`Journal` (a prefix on storage, opened by this process) and the client's connection to a daemon both are an
`Access`; the daemon serves its own. Values here are the product's plain results; clients dress them up.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.operations import RecordedTransaction, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.urls import typed

if TYPE_CHECKING:
    from alpheus_journal.replay.loader import CheckpointInfo, SymbolsInfo
    from alpheus_journal.replay.symbols import Drift, SymbolPage, SymbolQuery


class Timestamp(msgspec.Struct, frozen=True):
    """A version by time: the last one created at or before `millis` (epoch milliseconds)."""

    millis: int


class Back(msgspec.Struct, frozen=True):
    """A version counted from the head: 1 is the head, 2 the version before it."""

    count: int


class Latest(msgspec.Struct, frozen=True):
    """The head, as the reader takes it.

    `staleness_millis`: a probe that began at most so long ago is good enough; None: it begins after the call.
    `session_token`: of the newest version that the reader has seen; what it gets is never older, wherever it reads,
    and of the same history. Empty: it has seen none.
    """

    staleness_millis: int | None = None
    session_token: str = ""


LATEST = Latest()

At = int | Timestamp | Back | Latest | None
"""Which version: a number, a time, a count from the head, or the head;
None means `LATEST` (found by a probe that starts after the call)."""


class CatalogInfo(msgspec.Struct, frozen=True, kw_only=True):
    catalog_id: str
    storage_url: str
    version_digits: int
    definition: CatalogDef
    version: int  # the head
    oldest_version: int
    token: str  # of the head
    software_version: str
    unverified_since_millis: int = 0
    """Since when who answers serves what a checkpoint told, before it was compared with the tree; 0: it does not."""
    head_ahead_millis: int = 0
    """By so much the head's time is in the future of the clock of who answers; 0: it is not, or within 60 s."""


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_millis: int
    token: str


class Damage(msgspec.Struct, frozen=True):
    """Why a definition cannot be had: its file is not there, or too large, or its path is none."""

    kind: str
    message: str
    hint: str = ""


class StoredObject(msgspec.Struct, frozen=True):
    """A live object: where its definition lies, and its bytes as stored.

    With `damage` there are no bytes. Inside the journal such an object stands where it is, so that it can be listed
    and dropped; whoever looks into it raises `error`, and `Access.load` gives none.
    """

    path: str
    definition: bytes
    damage: Damage | None = None

    def error(self) -> Corrupt | None:
        """A fresh error for the damage."""
        if self.damage is None:
            return None
        return Corrupt(self.damage.message, kind=self.damage.kind, hint=self.damage.hint, path=self.path)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Answers in the order of the names asked for; None: no such object at `version`. `token`: of the version, where
    the head was asked for."""

    version: int
    objects: tuple[StoredObject | None, ...]
    token: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Names in key order. `more`: ask again at `version` with `after` the last name. `token`: as of `Loaded`."""

    version: int
    names: tuple[str, ...]
    more: bool
    token: str = ""


class LiveObject(msgspec.Struct, frozen=True):
    """An object of one version, damaged or not."""

    name: ObjectName
    stored: StoredObject


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the live objects of one version; `token` is where events go on after it."""

    version: int
    created_at_millis: int
    token: str
    objects: tuple[LiveObject, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is in the log. `duplicate`: it had been before this call. `rows_added`, `rows_removed`: what
    came and went (FORMAT.md, "What operations do")."""

    version: int
    transaction_id: str
    created_at_millis: int
    token: str
    duplicate: bool = False
    rows_added: int = 0
    rows_removed: int = 0


ChangeType = Literal["created", "updated", "dropped"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between a version and the one before it, for one object (structural diff).

    Definitions, as stored, are there when details were asked for.
    """

    name: ObjectName
    type: ChangeType
    path_before: str = ""
    path_after: str = ""
    definition_before: bytes | None = None
    definition_after: bytes | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One version: its transactions in order, and the changes that they made together."""

    version: int
    created_at_millis: int
    token: str
    transactions: tuple[RecordedTransaction, ...]
    changes: tuple[Change, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Every event up to `version` was delivered or did not match."""

    version: int
    token: str


FILTER_TEXTS_MAX = 1000
"""Names, patterns and so on of one kind in one filter."""


def pattern_of(pattern: str) -> re.Pattern[str]:
    """`*` stands for any text, `?` for one character, all else for itself. What fnmatch makes of it never goes back
    more than once a star, so that nobody's pattern can hold up the others."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


_filter_pattern = lru_cache(maxsize=10_000)(pattern_of)
"""Filters match every event: theirs are kept."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes matter; empty: all. An event without a matching change is passed over.

    `names` are full names ("namespace.name"), `name_patterns` globs of them ("sales.*"): one of both has to fit. With
    `actions`, names of action types ("TABLE_INSERT"), those objects count which such an action of the event is on or
    changed; in a version that does not record what it did, every object. `also`: objects whose changes match whatever
    the rest says. Events are whole: a match delivers all its transactions, and the changes that match.
    """

    namespaces: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    name_patterns: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    actions: frozenset[str] = frozenset()
    also: frozenset[ObjectName] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Everything matches. (`also` adds to the rest, and nothing to everything.)"""
        return not (self.namespaces or self.names or self.name_patterns or self.kinds or self.actions)

    def matches(self, name: ObjectName) -> bool:
        """Whether the object may matter, actions and `also` aside."""
        return (
            (not self.namespaces or name.namespace in self.namespaces)
            and (not self.kinds or name.kind in self.kinds)
            and (not (self.names or self.name_patterns) or self._names(name.full_name))
        )

    def _names(self, full_name: str) -> bool:
        return full_name in self.names or any(
            _filter_pattern(pattern).match(full_name) is not None for pattern in self.name_patterns
        )

    def select(self, event: Event) -> Event | None:
        """The event with only its matching changes; None when there is none. An action that asks for nothing but
        itself to be told (it changed nothing, or its change was undone within the version) counts as well."""
        if self.is_empty:
            return event
        acted = self._acted_on(event) if self.actions else None
        changes = tuple(
            change
            for change in event.changes
            if change.name in self.also
            or (self.matches(change.name) and (acted is None or change.name in acted))
        )
        if not changes and not (acted and any(self.matches(name) for name in acted)):
            return None
        return msgspec.structs.replace(event, changes=changes)

    def _acted_on(self, event: Event) -> set[ObjectName] | None:
        """The objects that an action of the types asked for is on or changed; None: that is not recorded."""
        if not event.transactions:
            return None
        found: set[ObjectName] = set()
        for transaction in event.transactions:
            for action in transaction.actions:
                if action.operation is None:
                    return None  # of a newer writer: it may be anything
                if action.type in self.actions:
                    found.add(action.name)
                    found.update(effect.name for effect in action.also)
        return found


EVERYTHING = EventFilter()


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_millis: int
    transaction: RecordedTransaction


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a transaction. "unknown" never means not applied. `begin_version`: of one that has committed."""

    state: Literal["committed", "cancelled", "unknown"]
    commit: Committed | None = None
    begin_version: int = 0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is not there any more, and how it went. `version`: the last one at which it lived."""

    name: ObjectName
    version: int
    dropped_version: int
    dropped_at_millis: int
    transaction_id: str  # empty: a version of another writer
    principal: str


class SavedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A distributed transaction as it lies on storage, to be gone on with by any process (FORMAT.md, "Distributed
    transactions"). In a listing `transaction` has neither operations nor reads. Not `resumable`: another writer
    saved it, and its operations are not recorded; or its file cannot be read: `damage` says why, and only the id is
    known. A begin version of 0 there may mean that none is known."""

    transaction: Transaction
    began_at_millis: int
    expire_at_millis: int
    operation_count: int
    resumable: bool = True
    damage: str = ""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far one epoch of a subscription is (FORMAT.md, "Subscriptions"). `beat` goes up with each write; `token` is
    of the version before `next_version`, empty where it is not known. `released`: its holder has left."""

    subscription_id: str
    epoch: int
    beat: int
    next_version: int
    token: str = ""
    released: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant. `kind` is an error kind."""

    kind: str
    message: str
    path: str = ""
    version: int | None = None


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: how much was looked at."""

    versions: int
    nodes: int
    definitions: int
    manifests: int
    findings: int
    given_up: tuple[tuple[int, int], ...] = ()
    """Versions that repairs gave up, first and last of each range: they may be missing."""


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


# --- tokens ----------------------------------------------------------------------------------------


def make_token(catalog_id: str, version: int, commit_id: str) -> str:
    """A resume token: catalog id, version, and what identifies the root at that version: its commit id,
    or of a foreign root `sha256-` and 32 hex digits."""
    return f"{catalog_id}.{version}.{commit_id}"


def parse_token(token: str) -> tuple[str, int, str]:
    """(catalog id, version, commit id). InvalidInput (`bad_token`) for other text."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3 or not all(parts) or not parts[1].isdecimal() or len(token) > 200:
        raise InvalidInput(f"{typed(token)[:80]!r} is no resume token", kind="bad_token")
    return parts[0], int(parts[1]), parts[2]
