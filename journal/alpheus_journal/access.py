"""The protocol that every way to a catalog offers: the same calls with the same results.

`Journal` (a prefix on storage, opened by this process) and the client's connection to a daemon are both an
`Access`; the daemon serves its own. The classes of the answers are in `model/answers.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import (
    At,
    CatalogInfo,
    Change,
    CheckSummary,
    Collection,
    Committed,
    Dropped,
    Event,
    Expiry,
    Finding,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Pin,
    PinObject,
    Position,
    Progress,
    SavedTransaction,
    SnapshotPart,
    VersionInfo,
)
from alpheus_journal.model.event_filter import EVERYTHING, EventFilter
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import Transaction
from alpheus_journal.replay.loader import CheckpointInfo, SymbolsInfo
from alpheus_journal.replay.symbols import Drift, SymbolPage, SymbolQuery
from alpheus_journal.storage import Storage


class Access(Protocol):
    """One catalog, whichever way it is reached. Errors are those of `alpheus_journal.errors`."""

    @property
    def keys(self) -> fmt.Keys: ...

    @property
    def storage(self) -> Storage:
        """The store for data files and manifests. Raises InvalidInput when this process cannot reach the store."""
        ...

    async def info(self) -> CatalogInfo: ...

    async def resolve(self, at: At) -> VersionInfo:
        """Find the version at `at`. Raises NotFound (`no_version`) above the head and Expired below the oldest version;
        InvalidInput (`future_version`) for a time ahead of the head and of the answering process's clock."""
        ...

    async def load(self, at: At, names: list[ObjectName]) -> Loaded:
        """Return the definitions of many objects, all at one version. CATALOG is always included."""
        ...

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        """List names of a kind: namespaces, or the tables or views of one namespace. `after` is exclusive; `limit` 0
        means as many names as one page holds. Raises NotFound (`no_namespace`) for a missing namespace."""
        ...

    def snapshot(self, at: At, *, namespaces: frozenset[str] = frozenset()) -> AsyncIterator[SnapshotPart]:
        """Yield every live object of one version, in parts. The first part comes immediately and names the version.

        When `namespaces` is not empty, yield only those namespaces and the objects in them. Objects come grouped by
        kind, each kind in key order; a damaged object comes with a description of its damage. A part is made after the
        previous part was taken, so a slow reader holds one part in memory. Raises Expired when the version's nodes were
        deleted during the read.
        """
        ...

    async def commit(self, transaction: Transaction) -> Committed:
        """Commit the transaction whole or not at all.

        A repetition gets the recorded answer (`duplicate`): the same id with the same request, a retry key that another
        transaction has, or a writer's sequence that its tables remember. The answer then names the transaction that was
        applied. When the version of that transaction has expired, its time and rows are unknown (0).

        After Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput, Expired, Unavailable or Exhausted, this call
        has not applied the transaction and never will. Expired, Unavailable and Exhausted say nothing about an earlier
        call that ended in OutcomeUnknown. After OutcomeUnknown, ask `outcome` or send the same transaction again.
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
        """Yield versions in order, without a gap or a repetition, and progress marks in between.

        `after` is a version (exclusive), a token (verified), or None for all kept versions. `until` is inclusive.
        Without `until` and `follow` the stream ends at the head at the time of the call. Raises Expired when versions
        in between have expired, and InvalidInput for a version above the head or a token of another history.
        """
        ...

    def log(
        self, *, name: ObjectName | None = None, after: int | None = None, until: int | None = None
    ) -> AsyncIterator[LogEntry]:
        """Yield recorded transactions, newest first. With `name`, only transactions that acted on that object. `after`
        is exclusive, `until` inclusive."""
        ...

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False, certain: bool = False
    ) -> Outcome:
        """Search the kept versions after `since` for a transaction or its cancellation; the first of the two in the log
        counts. A repetition (by retry key or writer) is not recorded, so its id stays "unknown".

        With `settle`, commit a cancellation of an id that is not found, so that the answer is final. When versions have
        expired that may hold the transaction, `settle` cancels and raises Expired: the transaction may have committed
        before, and cannot commit from now on.

        With `certain`, raise Expired instead of answering "unknown" when an expired version may hold the transaction.
        So "unknown" means that no version up to the head holds it.
        """
        ...

    async def find_commit_of_key(self, key: str) -> Committed | None:
        """Return the commit with an idempotency key, or None when no kept version has the key.

        The call writes nothing, and finds every commit that was acknowledged before it. After None, a commit that was
        sent earlier and has no answer yet may still come. Raises InvalidInput for a key that no commit can have.
        """
        ...

    def diff(self, before: At, after: At, *, details: bool = False) -> AsyncIterator[Change]:
        """Yield the differences between two versions, in key order. The diff is structural: its cost grows with the
        difference. `before` may be the newer version. With `details`, include the definitions before and after."""
        ...

    def dropped(
        self, *, namespace: str | None = None, name: ObjectName | None = None, version: int | None = None
    ) -> AsyncIterator[Dropped]:
        """Yield objects that were dropped and do not exist at `version` (None means the head), the last dropped first.
        With `namespace`, only that namespace and its objects. Reads one root for each kept version, so close the
        iterator early (`aclose`)."""
        ...

    async def save_transaction(self, transaction: Transaction) -> SavedTransaction:
        """Keep a transaction on storage under its id; a later save replaces an earlier one. Its operations (perhaps
        none) are executed at its begin version. Raises Expired (`transaction_expired`) after its time to live."""
        ...

    async def load_transaction(self, transaction_id: str) -> SavedTransaction:
        """Load a saved transaction. Raises NotFound (`no_transaction`), Expired (`transaction_expired`), and
        InvalidInput (`not_supported`) for a transaction that cannot be resumed."""
        ...

    def saved_transactions(self) -> AsyncIterator[SavedTransaction]:
        """Yield all saved transactions in no order, including expired and damaged ones."""
        ...

    async def discard_transaction(self, transaction_id: str) -> Outcome:
        """Settle the outcome of a saved transaction and remove its file. Return "committed" for a transaction that had
        committed, else "cancelled".

        Raises Expired like `outcome` with `settle`; the file is removed nevertheless. A transaction that other software
        saved is "unknown", because its versions do not name their transactions. A damaged file is removed
        like any other.
        """
        ...

    async def create_pin(
        self, at: At, *, only: Sequence[PinObject] | None = None, without: Sequence[PinObject] = ()
    ) -> Pin:
        """Copy the root of a version to a pin. Everything that the version reaches stays from now on, if a tag soon
        names the pin. Raises the errors of `resolve`, and those of writing to the storage.

        With `only` or `without`, the pin has a tree of its own: of the namespaces, tables and views in `only` (None
        means all), less those of `without`. Raises NotFound for a name that the version lacks, InvalidInput
        (`bad_argument`) where nothing is left, InvalidInput (`too_large`), and Expired (`upload_expired`) where a
        collection may have deleted the tree meanwhile."""
        ...

    async def position(self, path: str) -> Position | None:
        """Return the position stored at `path`, of one epoch of a subscription. None means that the epoch has stored no
        position yet, or that later epochs followed. Raises Corrupt (`corrupt_history`)."""
        ...

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        """Store the position of the caller's epoch of a subscription. Repeating the call is safe; a late call only
        causes events to be repeated.

        Raises NotFound (`no_subscription`) for a dropped subscription, and Conflict (`subscription_claimed`) when
        another epoch began; nothing was written then.
        """
        ...

    def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncIterator[Expiry]:
        """Expire old versions, the lowest first, so that their files can be collected.

        Yield the plan, then the progress after each thousand versions. The last item is the result. A dry run yields
        the plan alone and changes nothing. The head never expires, and tags and leases keep what they name readable.
        An expiry that was stopped is finished by the next one; two at once do no harm.

        Raises InvalidInput for rules that make no sense, and (`upgrade_needed`) in a catalog of revision 1; Corrupt
        where nothing may be written, and where a subscription or pipeline that may need versions cannot be read (then
        no version expires); Exhausted (`already_running`) while a daemon does such work for somebody else.
        """
        ...

    def collect(self, *, minimum_age_millis: int, dry_run: bool = False) -> AsyncIterator[Collection]:
        """Delete files that nothing reaches and that are older than the minimum age.

        Yield the plan, then the progress after each thousand files. The last item is the result. A dry run yields the
        plan alone, and changes nothing. Otherwise, if there is anything to delete, one version is committed first. From
        then on commits that bring files as old as the deleted ones are refused. A collection that was stopped is
        finished by the next one; two at once do no harm.

        Raises InvalidInput for an age that is no time span, and (`upgrade_needed`) in a catalog of revision 1; Corrupt
        where something that may reach files cannot be read (then nothing is deleted); the errors of `commit`;
        Exhausted (`already_running`) while a daemon does such work for somebody else.
        """
        ...

    def check(self, *, after: int | None = None) -> AsyncIterator[Finding | CheckSummary]:
        """Verify every invariant of the stored catalog. The summary comes last. With `after`, only versions above
        it."""
        ...

    async def symbols(self, at: At, query: SymbolQuery) -> SymbolPage:
        """Return a page of the symbol list: names of live objects of every kind, including damaged ones. Raises
        InvalidInput for a wrong page cursor."""
        ...

    async def reload_symbols(self) -> SymbolsInfo:
        """Rebuild the symbol list, and everything else in memory, from the tree of the head. Readers never see a gap. A
        process that had the catalog in memory also deletes all checkpoints."""
        ...

    async def compact_symbols(self) -> SymbolsInfo:
        """Make a new base of the symbol list now. Raises Unavailable when that fails; the list then stays usable."""
        ...

    async def check_symbols(self, *, sample: int | None = None) -> Drift:
        """Compare the catalog in memory with the tree: all of it, or `sample` random ranges of keys. When they differ,
        the process stops using its memory and reads the tree."""
        ...

    async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
        """Store the state of the head as a checkpoint, which the next process opens by mapping. With `verify`, first
        compare the whole state with the tree, whatever its size. Raises Corrupt (`state_drift`) when they differ."""
        ...

    async def close(self) -> None: ...
