"""What must be true after a simulated run: the log, the clients' answers and the store, held against each other.

Nothing here asks the code that committed. The log is read from an archive in which nothing has expired; it is executed
a second time on a model, and each commit is judged by what the model held just before it. Rows of tables have a model
of their own: what the authors of changes meant, one after the other.
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
from alpheus_journal.model.answers import Change, CheckSummary, Event
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    CreateTable,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.storage import Storage
from alpheus_journal.testing.models.catalog import Model, ModelTable, model_of
from alpheus_journal.testing.models.tables import Meant, Row
from alpheus_journal.testing.simulation.history import (
    LINEARIZABLE_CLIENTS_MAX,
    Called,
    CatalogState,
    applied,
    canonical,
    catalog_step,
    check_linearizable,
    check_witness,
)
from alpheus_journal.testing.simulation.loop import Audit
from alpheus_journal.testing.simulation.requests import Requests, answer

Essence = tuple[int, tuple[str, ...], tuple[Change, ...]]


def essence(event: Event) -> Essence:
    """What every subscriber must have got of an event."""
    return event.version, tuple(transaction.id for transaction in event.transactions), event.changes


class Asked(msgspec.Struct):
    """A transaction that was sent, and all that was said about it, to anybody."""

    transaction: Transaction
    client: str
    invoked: float
    returned: float = math.inf
    version: int | None = None
    rows: tuple[int, int] | None = None
    """Added and removed, as the first answer says."""
    is_forged: bool = False
    """Somebody sent other operations under its id: as long as these wait in a queue, the honest ones are refused."""
    requests: int = 0
    open: int = 0
    """Requests that were not refused: each refusal speaks for its own request only, since another process may still
    hold an earlier one. When none is open, nothing of it may ever appear."""
    settling: bool = False
    """Somebody asked for a final answer."""
    is_final: bool = False
    """Somebody was told that it is cancelled: it will never appear."""
    version_max: float = math.inf
    """Somebody was told that it does not commit from now on, and that what came before has expired."""
    overruled: list[tuple[int, int]] = []
    """Answers that named another transaction of its key or writer: the version, and what had expired by then."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge counted on the way; his finding is that nothing was wrong."""

    log: Sequence[Event]
    linearized: bool
    serializable: int
    keyed: int
    streamed: int
    operations: Mapping[str, int]
    changes: Mapping[str, int]
    """What was done to rows that have a model: words of `Meant`, and of what the tables then had."""


class Evidence:
    """All that was asked and answered in a run, and the auditor of its store."""

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

    async def judge(self, store: Storage) -> Verdict:
        """AssertionError when something that must be true is not."""
        assert not self._audit.violations, self._audit.violations
        stored = await self._open(store)
        await self._judge_store(stored)
        archive = await self._open(await self._audit.archive())
        log = [await archive.event(version) for version in range(archive.head.version + 1)]
        self._judge_answers(log)
        self._judge_keys(log)
        first, last = await model_of(archive, 0), await model_of(stored)
        past = await self._judge_execution(log, first, archive.storage)
        assert canonical(past[stored.head.version]) == canonical(last), (
            "the recorded operations give another catalog"
        )
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
        """Every version once; what is kept is whole, and what is not says so."""
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

    def _judge_answers(self, log: Sequence[Event]) -> None:
        """Every id once; who was told that it committed did, and once; who was told that it did not did not."""
        times = [event.created_at_millis for event in log]
        assert times == sorted(times), "a version is older than the one below it"
        found: dict[str, int] = {}
        for event in log[1:]:
            for recorded in event.transactions:
                id = recorded.id
                assert id not in found, f"{id} in versions {found[id]}, {event.version}"
                assert id in self._asked or recorded.cancels, f"nobody asked for {id}"
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
        """A retry key commits again only where the version that had it was gone."""
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
        """Execute the log on the model: each transaction is possible where it stands, read what it says, and no
        writer's sequence comes twice; and every table has the rows that it should. What the catalog held at each
        version."""
        model = first
        past = {0: first}
        marks = Marks()
        for event in log[1:]:
            for recorded in event.transactions:
                self._judge_reads(recorded, past[recorded.begin_version], model, event.version)
                operations = [a.operation for a in recorded.actions if a.operation is not None]
                for place, operation in enumerate(operations):
                    after = applied(model, recorded.id, [operation], past)
                    assert after is not None, f"version {event.version} cannot do {operation!r}"
                    if isinstance(operation, Undrop):
                        marks.brought_back(model, after, operation.version)
                    self._rows.execute(recorded.id, place, operation, model, after)
                    model = after
                marks.write(recorded, model, event.version)
            past[event.version] = model
            marks.keep(event.version, model)
            self._rows.keep(event.version, model)
            await self._rows.compare(event, store)
        return past

    def _judge_reads(self, recorded: RecordedTransaction, begin: Model, model: Model, version: int) -> None:
        """What a serializable transaction read where it began is what it would read just before its commit."""
        for read in recorded.reads:
            seen = answer(begin, read, self._rows.seen_at(recorded.begin_version))
            now = answer(model, read, self._rows.seen_at(None))
            assert canonical(seen) == canonical(now), (
                f"{recorded.id} read {read!r} at {recorded.begin_version}: {seen!r}; before {version}: {now!r}"
            )

    def _judge_history(self, log: Sequence[Event], past: Mapping[int, Model]) -> bool:
        """The clients' history has an order, by versions and, where it is small enough, without."""
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
    """The last sequence of each writer that tables remember, by table id. It lives as long as the table, stays where
    rows are restored, and is again what it was where a table comes back."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[str, int]] = {}
        self._past: dict[int, dict[str, dict[str, int]]] = {0: {}}

    def write(self, recorded: RecordedTransaction, model: Model, version: int) -> None:
        """AssertionError for a sequence that a table has already. `model`: after the transaction."""
        writer = recorded.writer
        if writer is None:
            return
        for table_id in {
            action.operation.table_id
            for action in recorded.actions
            if isinstance(action.operation, AppendFiles | OverwriteFiles | ChangeRows)
        }:
            marks = self._marks.get(table_id, {})
            assert marks.get(writer.name, -1) < writer.sequence, (
                f"version {version}: {writer} was written to table {table_id} before: {marks}"
            )
            self._marks[table_id] = marks | {writer.name: writer.sequence}

    def brought_back(self, before: Model, after: Model, version: int) -> None:
        then = self._past[version]
        for table_id in _table_ids(after) - _table_ids(before):
            self._marks[table_id] = then.get(table_id, {})

    def keep(self, version: int, model: Model) -> None:
        """Note what stands at a version; what was dropped is forgotten."""
        there = _table_ids(model)
        self._marks = {table_id: marks for table_id, marks in self._marks.items() if table_id in there}
        self._past[version] = self._marks.copy()


class Rows:
    """What the tables hold whose rows change, by table id: what each commit's author meant, on what was there. Where
    tables come back or are restored, their rows do."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._rows: dict[str, Counter[Row]] = {}
        self._past: dict[int, dict[str, Counter[Row]]] = {0: {}}
        self._seen: dict[int | None, dict[str, object]] = {}
        self.counts: Counter[str] = Counter()

    def execute(
        self, transaction_id: str, place: int, operation: Operation, before: Model, after: Model
    ) -> None:
        """The operation of that place in its transaction. AssertionError when the author's intent is not possible."""
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
                self._rows[meant.table_id] = self._applied(meant)
            return
        if isinstance(operation, RestoreTable):
            table = after[str(operation.target)]
            assert isinstance(table, ModelTable)
            if table.id in self._rows:
                self._rows[table.id] = self._past[operation.version][table.id]
        elif isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows):
            assert operation.table_id not in self._rows, f"nobody meant {operation!r}"

    def _applied(self, meant: Meant) -> Counter[Row]:
        self.counts.update(meant.labels)
        before = self._rows[meant.table_id]
        self.counts["overtaken"] += before != meant.seen
        return meant.applied_to(before)

    def keep(self, version: int, model: Model) -> None:
        there = _table_ids(model)
        self._rows = {table_id: rows for table_id, rows in self._rows.items() if table_id in there}
        self._past[version] = self._rows.copy()

    def seen_at(self, version: int | None) -> Mapping[str, object]:
        """What a reader sees of each table; None: after all that was executed so far."""
        found = self._seen.get(version)
        if found is None:
            rows = self._rows if version is None else self._past[version]
            found = {table_id: sorted(map(str, some.elements())) for table_id, some in rows.items()}
            self._seen[version] = found
        return found

    async def compare(self, event: Event, store: Storage) -> None:
        """AssertionError when a table that a version changed holds other rows than it should."""
        for change in event.changes:
            if change.name.kind is not Kind.TABLE or not change.path_after or not self._rows:
                continue
            data = await store.read(change.path_after, size_max=1 << 24)
            table = decode_definition(Kind.TABLE, data, change.path_after)
            assert isinstance(table, TableDef)
            if table.id not in self._rows:
                continue
            stored, wanted = Counter(await self._requests.contents.visible(table)), self._rows[table.id]
            assert stored == wanted, (
                f"{change.name} at version {event.version}: lost {wanted - stored}, too many {stored - wanted}"
            )
            self.counts["merged"] += any(segment.file_count > 2 for segment in table.segments)
            self.counts["hiding"] += bool(table.delete_predicates)


def _table_ids(model: Model) -> set[str]:
    return {value.id for value in model.values() if isinstance(value, ModelTable)}
