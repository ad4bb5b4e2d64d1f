"""Compare the log, the clients' answers and the store after a simulated run.

Nothing here uses the code that committed. The log is read from an archive without expired versions, and executed
again on a model. Each commit is judged by the state of the model just before. Rows of tables have their own model:
the intents of the authors of changes, one after the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.errors import Expired
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.pins import read_pin
from alpheus_journal.model.answers import Change, CheckSummary, Event, Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    CreateTable,
    FenceCollection,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.storage import Storage
from alpheus_journal.tags.reader import list_tags
from alpheus_journal.testing.models.catalog import Model, ModelTable, ModelTag, model_of
from alpheus_journal.testing.models.reachable import Reachable, starts_at
from alpheus_journal.testing.models.tables import Meant, Row
from alpheus_journal.testing.simulation.history import (
    LINEARIZABLE_CLIENTS_MAX,
    Called,
    CatalogState,
    apply_operations,
    canonical,
    catalog_step,
    check_linearizable,
    check_witness,
)
from alpheus_journal.testing.simulation.loop import Audit
from alpheus_journal.testing.simulation.requests import Requests, answer

Essence = tuple[int, tuple[str, ...], tuple[Change, ...]]


def essence(event: Event) -> Essence:
    """Return the part of an event that every subscriber must have received."""
    return event.version, tuple(transaction.id for transaction in event.transactions), event.changes


class Asked(msgspec.Struct):
    """A transaction that was sent, and all answers about it to any client."""

    transaction: Transaction
    client: str
    invoked: float
    returned: float = math.inf
    version: int | None = None
    rows: tuple[int, int] | None = None
    """The added and removed rows, according to the first answer."""
    is_forged: bool = False
    """A client sent other operations under the same id. While these are queued, the honest ones are refused."""
    requests: int = 0
    open: int = 0
    """The requests that were not refused. A refusal covers only its own request, since another process may still hold
    an earlier one. When no request is open, the transaction may never appear."""
    settling: bool = False
    """A client asked for a final answer."""
    is_final: bool = False
    """A client got the answer that the transaction is cancelled, so it may never appear."""
    version_max: float = math.inf
    """The highest version with the transaction: a client got the answer that it does not commit later, and that earlier
    versions have expired."""
    overruled: list[tuple[int, int]] = []
    """The answers that named another transaction with its key or writer: the version, and `expired` at that time."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a run in which nothing was wrong."""

    log: Sequence[Event]
    linearized: bool
    serializable: int
    keyed: int
    streamed: int
    operations: Mapping[str, int]
    changes: Mapping[str, int]
    """The changes of rows with a model: words of `Meant`, and of the tables afterwards."""


class Evidence:
    """All requests and answers of a run, and the audit of its store."""

    def __init__(
        self,
        *,
        asked: Mapping[str, Asked],
        reads: Sequence[Called],
        requests: Requests,
        audit: Audit,
        clock: Clock,
        identities: Identities,
    ) -> None:
        self._asked = asked
        self._reads = reads
        self._rows = Rows(requests)
        self._audit = audit
        self._clock = clock
        self._identities = identities
        self._starts: dict[int, dict[str, int]] = {}
        self.lacking = 0
        """The files that versions lack because of their tables' starts."""

    async def judge(self, store: Storage) -> Verdict:
        """Judge the run. Raises AssertionError when something that must be true is not."""
        assert not self._audit.violations, self._audit.violations
        stored = await self._open(store)
        await self._judge_store(stored)
        archive = await self._open(await self._audit.archive())
        await self._judge_deletions(archive)
        log = [await archive.event(version) for version in range(archive.head.version + 1)]
        self._judge_answers(log)
        self._judge_keys(log)
        first, last = await model_of(archive, 0), await model_of(stored)
        past = await self._judge_execution(log, first, archive.storage)
        assert canonical(past[stored.head.version]) == canonical(last), (
            "the recorded operations give another catalog"
        )
        await self._judge_tags(stored, last, past)
        linearized = self._judge_history(log, past)
        committed = [recorded for event in log for recorded in event.transactions]
        return Verdict(
            log=log,
            linearized=linearized,
            serializable=sum(bool(recorded.reads) for recorded in committed),
            keyed=sum(bool(recorded.key) for recorded in committed),
            streamed=sum(recorded.writer is not None for recorded in committed),
            operations=Counter(
                type(action.operation).__name__ for recorded in committed for action in recorded.actions
            ),
            changes=self._rows.counts,
        )

    async def _open(self, store: Storage) -> Journal:
        return await Journal.open(store, clock=self._clock, identities=self._identities)

    async def _judge_store(self, journal: Journal) -> None:
        """Check that every version exists once, that kept versions are intact, and that expired ones raise Expired."""
        head, expired = journal.head.version, self._audit.expired
        paths = [fmt.version_file(v, journal.keys.version_digits) for v in range(head + 1)]
        assert list(self._audit.slots) == paths
        findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
        assert not findings, findings
        assert (await journal.info()).oldest_version == expired
        if expired:
            refusal: Expired | None = None
            try:
                await journal.resolve(expired - 1)
            except Expired as error:
                refusal = error
            assert refusal is not None, f"version {expired - 1} has a tombstone and is read"
            assert refusal.oldest == expired

    async def _judge_deletions(self, archive: Journal) -> None:
        """Check that nothing was deleted that a version reaches which was kept then or was committed later."""
        for version, slot in enumerate(self._audit.slots):
            deleted = {path for path, expired in self._audit.deleted.items() if expired <= version}
            if deleted:
                lost = deleted & await Reachable(archive.storage, archive.keys).find_of(slot)
                lost = {path for path in lost if not await self._may_lack(archive, path, version)}
                assert not lost, f"version {version} reaches what was deleted before it expired: {lost}"

    async def _may_lack(self, archive: Journal, path: str, version: int) -> bool:
        """Return whether a file is a data file of a table whose start was above a version when the file was deleted."""
        folder, _, rest = path.partition("/")
        if folder != "data":
            return False
        head = self._audit.deleted_below[path]
        if head not in self._starts:
            self._starts[head] = await starts_at(archive.storage, archive.keys, head)
        start = self._starts[head].get(rest.partition("/")[0], 0)
        self.lacking += version < start
        return version < start

    async def _judge_tags(self, journal: Journal, last: Model, past: Mapping[int, Model]) -> None:
        """Check that each tag reads as its version was, also where the version has expired, and that it has the data
        files of all tables that it does not lack."""
        async for name, tag_def in list_tags(await journal.follower.snapshot()):
            copy = await read_pin(journal.follower.log, tag_def.pin_path)
            reached = await Reachable(journal.storage, journal.keys).find_of_copy(copy, tag_def.lacking)
            missing = [path for path in sorted(reached) if not await journal.storage.exists(path)]
            assert not missing, f"tag {name} of version {tag_def.version} has lost {missing}"
        for key, tag in last.items():
            if isinstance(tag, ModelTag):
                found = await model_of(journal, Tag(key.removeprefix("tag ")))
                assert canonical(found) == canonical(past[tag.version]), (
                    f"{key} is not as version {tag.version}"
                )

    def _judge_answers(self, log: Sequence[Event]) -> None:
        """Check that every id committed at most once, and as the answers say."""
        times = [event.created_at_millis for event in log]
        assert times == sorted(times), "a version is older than the one below it"
        found: dict[str, int] = {}
        for event in log[1:]:
            for recorded in event.transactions:
                id = recorded.id
                assert id not in found, f"{id} in versions {found[id]}, {event.version}"
                is_fence = any(isinstance(action.operation, FenceCollection) for action in recorded.actions)
                assert id in self._asked or recorded.cancels or is_fence, f"no client requested {id}"
                found[id] = event.version
        for id, record in self._asked.items():
            version = found.get(id)
            if record.version is not None:
                assert version == record.version, f"{id} is acknowledged in {record.version}: {version}"
            if version is None:
                continue
            assert not record.is_final, f"{id} is in version {version}, and was cancelled for good"
            assert version <= record.version_max, f"{id} is in {version}, not above {record.version_max}"
            assert record.open, f"{id} is in version {version}, and each request for it was refused"
            for other, expired in record.overruled:
                assert not expired <= version <= other, f"{id} is in {version}, and heard of {other} instead"

    def _judge_keys(self, log: Sequence[Event]) -> None:
        """Check that an idempotency key committed again only after the version that had it expired."""
        holders: dict[str, int] = {}
        for event in log:
            for recorded in event.transactions:
                if recorded.key:
                    before = holders.get(recorded.key)
                    assert before is None or before < self._audit.expired_before(event.version), (
                        f"the key {recorded.key} won in version {before}, and again in {event.version}"
                    )
                    holders[recorded.key] = event.version

    async def _judge_execution(self, log: Sequence[Event], first: Model, store: Storage) -> dict[int, Model]:
        """Execute the log on the model, and return the model at each version.

        Each transaction has to be possible at its place, and its reads have to be right. No sequence of a writer may
        come twice, and every table has to have the right rows.
        """
        model = first
        past = {0: first}
        marks = Marks()
        for event in log[1:]:
            for recorded in event.transactions:
                self._judge_reads(recorded, past[recorded.begin_version], model, event.version)
                operations = [a.operation for a in recorded.actions if a.operation is not None]
                written: set[str] = set()
                for place, operation in enumerate(operations):
                    after = apply_operations(model, recorded.id, [operation], past)
                    assert after is not None, f"version {event.version} cannot do {operation!r}"
                    if isinstance(operation, Undrop):
                        marks.brought_back(model, after, operation.version)
                    elif isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
                        marks.write(recorded, operation.table_id, event.version, again=written)
                    self._rows.execute(recorded.id, place, operation, model, after)
                    model = after
            past[event.version] = model
            marks.keep(event.version, model)
            self._rows.keep(event.version, model)
            await self._rows.compare(event, store)
        return past

    def _judge_reads(self, recorded: RecordedTransaction, begin: Model, model: Model, version: int) -> None:
        """Check that a serializable transaction would read the same just before its commit as where it began."""
        for read in recorded.reads:
            seen = answer(begin, read, self._rows.seen_at(recorded.begin_version))
            now = answer(model, read, self._rows.seen_at(None))
            assert canonical(seen) == canonical(now), (
                f"{recorded.id} read {read!r} at {recorded.begin_version}: {seen!r}; before {version}: {now!r}"
            )

    def _judge_history(self, log: Sequence[Event], past: Mapping[int, Model]) -> bool:
        """Check that the clients' history has an order: by versions, and if it is small enough also without."""
        calls = list(self._reads)
        for event in log[1:]:
            for place, recorded in enumerate(event.transactions):
                record = self._asked.get(recorded.id)
                if record is not None:
                    call = Called(
                        client=record.client,
                        is_commit=True,
                        argument=(recorded.id, record.transaction.operations),
                        invoked=record.invoked,
                        returned=record.returned,
                        version=event.version,
                        place=place,
                    )
                    calls.append(call)
        step, first = catalog_step(past), CatalogState(past[0])
        end = check_witness(calls, step, first)
        assert end.key == canonical(past[len(log) - 1]), "the clients' operations give another catalog"
        if len({call.client for call in calls}) > LINEARIZABLE_CLIENTS_MAX:
            return False
        check_linearizable(calls, step, first)
        return True


class Marks:
    """The last sequence of each writer that tables remember, by table id.

    A mark lives as long as the table. It stays when rows are restored, and comes back with an undropped table.
    """

    def __init__(self) -> None:
        self._marks: dict[str, dict[str, int]] = {}
        self._past: dict[int, dict[str, dict[str, int]]] = {0: {}}

    def write(self, recorded: RecordedTransaction, table_id: str, version: int, *, again: set[str]) -> None:
        """Record the sequence of a transaction that writes to a table. AssertionError if the table has it already,
        unless the same transaction wrote it: `again` has the tables to which it has written.

        An undrop in the same transaction takes back what the transaction wrote to the table before, and the mark."""
        writer = recorded.writer
        if writer is None:
            return
        marks = self._marks.get(table_id, {})
        assert table_id in again or marks.get(writer.name, -1) < writer.sequence, (
            f"version {version}: {writer} was written to table {table_id} before: {marks}"
        )
        again.add(table_id)
        self._marks[table_id] = marks | {writer.name: writer.sequence}

    def brought_back(self, before: Model, after: Model, version: int) -> None:
        then = self._past[version]
        for table_id in _table_ids(after) - _table_ids(before):
            self._marks[table_id] = then.get(table_id, {})

    def keep(self, version: int, model: Model) -> None:
        """Record the marks at a version, without those of dropped tables."""
        there = _table_ids(model)
        self._marks = {table_id: marks for table_id, marks in self._marks.items() if table_id in there}
        self._past[version] = self._marks.copy()


class Rows:
    """The rows of the tables whose rows change, by table id: the authors' intents, applied one after the other.

    The rows of tables come back when the tables are undropped or restored.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._rows: dict[str, Counter[Row]] = {}
        self._past: dict[int, dict[str, Counter[Row]]] = {0: {}}
        self._seen: dict[int | None, dict[str, object]] = {}
        self.counts: Counter[str] = Counter()

    def execute(
        self, transaction_id: str, place: int, operation: Operation, before: Model, after: Model
    ) -> None:
        """Execute one operation of a transaction. AssertionError when the author's intent is impossible."""
        self._seen.pop(None, None)
        meant = self._requests.meant.get(transaction_id)
        if isinstance(operation, CreateTable) and operation.table_id in self._requests.lake_ids:
            self._rows[operation.table_id] = Counter()
        elif isinstance(operation, Undrop):
            for table_id in (_table_ids(after) - _table_ids(before)) & self._requests.lake_ids:
                self._rows[table_id] = self._past[operation.version][table_id]
        if meant is not None and place < len(meant.labels):
            if place in meant.compacted_at:
                assert isinstance(operation, ChangeRows)
                at = meant.compacted_at[place]
                assert operation.outputs_sequence == at, f"{operation!r} is to come in at {at}"
            if place == len(meant.labels) - 1:
                self._rows[meant.table_id] = self._apply_intent(meant)
            return
        if isinstance(operation, RestoreTable):
            table = after[str(operation.target)]
            assert isinstance(table, ModelTable)
            if table.id in self._rows:
                self._rows[table.id] = self._past[operation.version][table.id]
        elif isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
            assert operation.table_id not in self._rows, f"no author intended {operation!r}"

    def _apply_intent(self, meant: Meant) -> Counter[Row]:
        self.counts.update(meant.labels)
        before = self._rows[meant.table_id]
        self.counts["overtaken"] += before != meant.seen
        return meant.applied_to(before)

    def keep(self, version: int, model: Model) -> None:
        there = _table_ids(model)
        self._rows = {table_id: rows for table_id, rows in self._rows.items() if table_id in there}
        self._past[version] = self._rows.copy()

    def seen_at(self, version: int | None) -> Mapping[str, object]:
        """Return the visible rows of each table at a version. None means after everything executed so far."""
        found = self._seen.get(version)
        if found is None:
            rows = self._rows if version is None else self._past[version]
            found = {table_id: sorted(map(str, some.elements())) for table_id, some in rows.items()}
            self._seen[version] = found
        return found

    async def compare(self, event: Event, store: Storage) -> None:
        """Compare the tables that a version changed with their rows. AssertionError for a difference.

        `store` is the archive: the version may have expired, and then a collection has deleted what it alone reached.
        """
        for change in event.changes:
            if change.name.kind is not Kind.TABLE or not change.path_after or not self._rows:
                continue
            data = await store.read(change.path_after, size_max=1 << 24)
            table = decode_definition(Kind.TABLE, data, change.path_after)
            assert isinstance(table, TableDef)
            if table.id not in self._rows:
                continue
            rows = await self._requests.contents.visible(table, storage=store)
            stored, wanted = Counter(rows), self._rows[table.id]
            assert stored == wanted, (
                f"{change.name} at version {event.version}: lost {wanted - stored}, too many {stored - wanted}"
            )
            self.counts["merged"] += any(segment.file_count > 2 for segment in table.segments)
            self.counts["hiding"] += bool(table.delete_predicates)


def _table_ids(model: Model) -> set[str]:
    return {value.id for value in model.values() if isinstance(value, ModelTable)}
