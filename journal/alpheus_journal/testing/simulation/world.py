"""Writers and readers of one catalog in a simulated world.

`simulate(seed)` runs one seed. Each process opens the catalog over its own network. Clients commit (`requests`), read,
retry, lie and walk away. A tormentor (`disasters`) kills and pauses processes, sets wrong clocks and hints, and lets
old versions expire. Then the faults end, and the answers of clients, the events of subscribers and the store are judged
(`verdict`). A failure is an AssertionError; the seed repeats it.

For a variant that breaks a rule of the product on purpose, pass `Parts`: the checks must find it.

The class is long because one run's processes, clients and checks share one state.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from unittest import mock

import msgspec
import pyarrow as pa

from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.answers import CheckSummary, Committed, Event
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import (
    CreateNamespace,
    Operation,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateCatalog,
)
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.faults import LAWFUL, seeded
from alpheus_journal.testing.models.catalog import Model, model_of
from alpheus_journal.testing.models.reachable import Reachable
from alpheus_journal.testing.models.tables import LETTERS, small_tiers
from alpheus_journal.testing.simulation.clients import Front, GroupFront, LibraryFront, MakeFront, Node
from alpheus_journal.testing.simulation.disasters import DAY_MILLIS, Tormentor
from alpheus_journal.testing.simulation.history import Called, canonical
from alpheus_journal.testing.simulation.ids import SeededIdentities
from alpheus_journal.testing.simulation.leaseholders import Leaseholders
from alpheus_journal.testing.simulation.loop import (
    Audit,
    Network,
    Process,
    SimulatedClock,
    SimulatedLoop,
    Weather,
)
from alpheus_journal.testing.simulation.requests import Requests
from alpheus_journal.testing.simulation.verdict import Asked, Evidence, essence


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one run."""

    writers: int = 4
    clients: int = 2  # of each writer
    steps: int = 10  # of each client
    disasters: int = 12
    fault_rate: float = 0.06
    order: int = 4
    names_fresh_rate: float = 0.3
    rows_rate: float = 0.35
    changes_rate: float = 0.0  # the share of transactions that change rows
    changes: str = LETTERS
    reads_rate: float = 0.4
    key_rate: float = 0.2
    short_rate: float = 0.0  # the share of operations that give tables or namespaces rules of history
    collect_weight: int = 40  # of a collection among the disasters, where an expiry has 40


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run. A broken variant replaces one of them."""

    fronts: tuple[MakeFront, ...] = (LibraryFront, GroupFront)
    open: Callable[..., Awaitable[Journal]] = Journal.open
    store: Callable[[Storage], Storage] = lambda store: store


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run."""

    seed: int
    trace: str
    versions: int
    commits: int
    refused: int
    unknown: int
    reads: int
    events: int
    kills: int
    linearized: bool
    expired: int
    collected: int
    lacking: int
    """The files of kept versions that went by their tables' starts."""
    skipped: int
    serializable: int
    keyed: int
    streamed: int
    overruled: int
    leases: Mapping[str, int]
    """See `Leaseholders`."""
    operations: Mapping[str, int]
    """The committed operations, by type."""
    changes: Mapping[str, int]
    """See `Verdict.changes`."""


class World:
    """One run (see the module)."""

    def __init__(self, seed: int, plan: Plan, parts: Parts) -> None:
        self.seed = seed
        self.plan = plan
        self.parts = parts
        self.loop = SimulatedLoop(seed)  # type: ignore[abstract]
        self.rng = random.Random(seed ^ 0x5EED)
        self.clock = SimulatedClock(self.loop)
        self.identities = SeededIdentities(seed, self.clock)
        self.memory = MemoryStorage(clock=self.clock.now_millis)
        self.audit = Audit(parts.store(self.memory))
        self.networks: list[Network] = []
        self.asked: dict[str, Asked] = {}
        self.reads: list[Called] = []
        self.nodes: list[Node] = []
        self.requests = Requests(
            self.rng,
            self.identities,
            self.audit,
            names_fresh_rate=plan.names_fresh_rate,
            rows_rate=plan.rows_rate,
            reads_rate=plan.reads_rate,
            key_rate=plan.key_rate,
            changes=plan.changes,
            short_rate=plan.short_rate,
        )
        self.models: dict[int, Model] = {}
        """The models that clients read at versions."""
        self.tormentor = Tormentor(
            self, count=plan.disasters, fault_rate=plan.fault_rate, collect_weight=plan.collect_weight
        )
        self.fault_rate = plan.fault_rate
        self.lease_counts: Counter[str] = Counter()
        self._moment = 0
        self._peace = asyncio.Event()
        self._idle = asyncio.Event()

    def moment(self) -> float:
        """Return the next moment of the clock of all histories. No two moments are equal."""
        self._moment += 1
        return float(self._moment)

    # --- the run

    async def run(self) -> Report:
        journal = await Journal.create(
            self.audit, order=self.plan.order, clock=self.clock, identities=self.identities
        )
        if self.plan.changes_rate:
            await self._make_first(journal, self.requests.lake())
        if self.plan.short_rate:
            await self._make_first(journal, self.requests.short_tables())
        self.keys = journal.keys
        del journal
        async with asyncio.TaskGroup() as group:
            for number in range(self.plan.writers + 1):
                node = Node(f"p{number}", number, SimulatedClock(self.loop))
                node.is_reader = number == self.plan.writers
                node.steps_left = {f"{node.name}.{n}": self.plan.steps for n in range(self.plan.clients)}
                if node.is_reader:
                    node.steps_left = {f"{node.name}.0": 0}
                self.nodes.append(node)
                self.start(node)
            await group.create_task(self.tormentor.run())
            await self._until_idle()
        await self._make_peace()
        return await self._verify()

    async def _make_first(self, journal: Journal, operations: tuple[Operation, ...]) -> None:
        """Commit what the clients find when they begin."""
        id = self.identities.uuid7()
        transaction = Transaction(id=id, begin_version=0, operations=operations, principal="sim")
        record = self.asked[id] = Asked(
            transaction=transaction, client="p0.0", invoked=self.moment(), requests=1, open=1
        )
        self._record_commit(record, await journal.commit(transaction))

    def start(self, node: Node) -> None:
        node.process = Process(node.name)
        node.journal = node.front = None
        node.stepping = set()
        self.loop.start(node.process, self._live(node))

    async def open_upkeep(self) -> Journal:
        identities = SeededIdentities(self.rng.getrandbits(64), self.clock)
        network = self._network(UPKEEP_FAULTS)
        return await self.parts.open(network, clock=self.clock, identities=identities)

    def _network(self, share: float = 1.0) -> Network:
        """Make a network with this share of the faults."""
        faults = seeded(self.rng.getrandbits(64), 1.0, faults=LAWFUL_ON_A_NETWORK)
        weather = Weather(late_rate=self.rng.choice((0.0, 0.01, 0.05)), late_seconds_max=20.0)
        network = Network(
            self.loop,
            self.audit,
            weather,
            lambda call: faults(call) if self.loop.random.random() < self.fault_rate * share else None,
        )
        self.networks.append(network)
        return network

    async def _live(self, node: Node) -> None:
        """Live as a process: open the catalog, then run clients and a subscriber until their work is done."""
        network = self._network()
        identities = SeededIdentities(self.rng.getrandbits(64), node.clock)
        while True:
            try:
                journal = await self.parts.open(network, clock=node.clock, identities=identities)
                if self.rng.random() < 0.5:
                    await journal.load_state()
                break
            except Unavailable:
                await asyncio.sleep(0.5)
        node.journal = journal
        node.front = self.parts.fronts[(node.number + self.seed) % len(self.parts.fronts)](journal, self.loop)
        node.leaseholders = Leaseholders(
            random.Random(f"leases {self.rng.random()}"),
            network,
            self.audit,
            self.keys,
            identities,
            self.lease_counts,
            self._must_be_gone,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(node.leaseholders.run(journal))
            group.create_task(self._follow(node, node.front))
            for client in node.steps_left:
                group.create_task(self._client(node, client, journal))

    async def _follow(self, node: Node, front: Front) -> None:
        subscriber = node.subscriber
        while True:
            try:
                async with contextlib.aclosing(front.events(subscriber.after)) as events:
                    async for event in events:
                        subscriber.take(event)
            except Unavailable:
                await asyncio.sleep(0.2)
            except Expired as error:
                subscriber.skip(error, self.audit.expired)

    async def _client(self, node: Node, client: str, journal: Journal) -> None:
        stepping = node.stepping
        while node.steps_left[client] > 0:
            node.steps_left[client] -= 1
            stepping.add(client)
            await asyncio.sleep(self.rng.random() * 0.5)
            await self._step(node, client, journal)
            stepping.discard(client)
        if not any(self._busy(other) for other in self.nodes):
            self._idle.set()

    def _busy(self, node: Node) -> bool:
        return bool(node.stepping) or any(node.steps_left.values())

    async def _until_idle(self) -> None:
        while any(self._busy(node) for node in self.nodes):
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await self._idle.wait()

    # --- what clients do

    async def _step(self, node: Node, client: str, journal: Journal) -> None:
        match self.rng.choices(range(7), weights=(50, 10, 12, 8, 6, 5, 9))[0]:
            case 0:
                await self._commit(node, client, await self._fresh(node, journal, 1))
            case 1:
                await self._commit(node, client, await self._fresh(node, journal, self.rng.randrange(2, 5)))
            case 2:
                await self._read(client, journal)
            case 3:
                await self._again(node, client)
            case 4:
                await self._settle(node, client)
            case 5:
                await self._lie(node)
            case 6:
                fresh = await self._fresh(node, journal, 1)
                await self._walk_away(node, client, fresh)

    async def _fresh(self, node: Node, journal: Journal, count: int) -> list[Transaction]:
        """Make new transactions, based on a version that may be old."""
        rng = self.rng
        begin = journal.head.version
        if rng.random() < (0.3 if self.plan.changes_rate == 0 else 0.5):
            begin = rng.randrange(max(0, begin - rng.choice((3, 3, 1000))), begin + 1)
        past: dict[int, Model] = {}
        older = [rng.randrange(max(0, begin - 8), begin)] if begin and rng.random() < 0.5 else []
        for version in (begin, *older):
            model = await self._model(journal, version)
            if model is not None:
                past[version] = model
        return [await self._request(node, journal, past.get(begin, {}), begin, past) for _ in range(count)]

    async def _request(
        self, node: Node, journal: Journal, model: Model, begin: int, past: Mapping[int, Model]
    ) -> Transaction:
        if self.plan.changes_rate and self.rng.random() < self.plan.changes_rate:
            found = None
            try:
                found = await self.requests.change(journal, model, begin, past)
            except Unavailable:
                pass
            except Expired as error:
                self._must_be_gone(min([begin, *past]), error)
            except NotFound as error:
                # Authors hold no leases, so files of a version that they know may go once it has expired.
                if error.kind != "no_file":
                    raise
                self._must_be_gone(min([begin, *past]), error)
            if found is not None:
                return found
        lease = None if node.leaseholders is None else node.leaseholders.lease_writer
        return await self.requests.transaction(model, begin, past, lease)

    async def _model(self, journal: Journal, version: int) -> Model | None:
        """Return the model of a version, perhaps from an earlier read. Return None if the version cannot be read."""
        if version not in self.models:
            try:
                self.models[version] = await model_of(journal, version)
            except Unavailable:
                return None
            except Expired as error:
                self._must_be_gone(version, error)
                return None
        return self.models[version]

    async def _commit(self, node: Node, client: str, transactions: Sequence[Transaction]) -> None:
        front = node.front
        assert front is not None
        known: list[int | None] = []
        for transaction in transactions:
            record = self.asked.setdefault(
                transaction.id, Asked(transaction=transaction, client=client, invoked=self.moment())
            )
            known.append(record.version)
            record.requests += 1
            record.open += 1  # until the request is refused; it stays open if the process dies
        answers = await front.commit(transactions)
        for transaction, answer, version in zip(transactions, answers, known, strict=True):
            record = self.asked[transaction.id]
            self.loop.note(f"{transaction.id} {type(answer).__name__} {getattr(answer, 'version', None)}")
            if isinstance(answer, Committed):
                self._record_commit(record, answer)
            elif not isinstance(answer, OutcomeUnknown):
                self._record_refusal(record, answer, version)

    def _record_commit(self, record: Asked, answer: Committed) -> None:
        id = record.transaction.id
        if answer.transaction_id != id:
            self._record_overruled(record, answer)
            return
        assert record.version in (None, answer.version), (
            f"{id} in versions {record.version}, {answer.version}"
        )
        assert not record.is_final, f"{id} is in version {answer.version} after it was cancelled for good"
        assert not answer.duplicate or record.requests > 1, (
            f"{id} was sent once, and is said to have been there"
        )
        rows = (answer.rows_added, answer.rows_removed)
        if not (
            answer.duplicate and answer.version < self.audit.expired
        ):  # then a mark may answer: rows unknown
            assert record.rows in (None, rows), f"{id} wrote {record.rows} rows, and {rows}"
            record.rows = rows
        record.version = answer.version
        record.returned = min(record.returned, self.moment())

    def _record_overruled(self, record: Asked, answer: Committed) -> None:
        """Record an answer about another transaction, which has the same key or writer's sequence."""
        winner = self.asked[answer.transaction_id]
        mine, theirs = record.transaction, winner.transaction
        by_key = mine.key != "" and mine.key == theirs.key
        by_writer = (
            mine.writer is not None
            and theirs.writer is not None
            and mine.writer.name == theirs.writer.name
            and mine.writer.sequence <= theirs.writer.sequence
        )
        assert by_key or by_writer, f"{mine.id} is answered by {theirs.id}"
        assert answer.duplicate
        assert record.version is None or record.version < self.audit.expired, (
            f"{mine.id} is in version {record.version} and hears of {theirs.id}"
        )
        assert winner.version in (None, answer.version)
        assert not winner.is_final
        record.open -= 1
        record.overruled.append((answer.version, self.audit.expired))
        winner.version = answer.version
        winner.returned = min(winner.returned, self.moment())

    def _record_refusal(self, record: Asked, error: AlpheusError, version: int | None) -> None:
        """Record a refusal. `version` is the transaction's known version when the request was sent."""
        id = record.transaction.id
        assert not isinstance(error, Corrupt), f"{id}: {error!r}"
        assert error.kind != "future_version", f"{id}: {error!r}"
        beside_a_lie = error.kind == "id_reused" and record.is_forged and error.version is None
        assert error.kind != "id_reused" or beside_a_lie, f"{id}: {error!r}"
        expired = self.audit.expired
        for_now = isinstance(error, TRANSIENT) or error.kind == "clock_skew" or beside_a_lie
        # An expired version answers no more requests. A key or a writer may be answered differently then.
        assert version is None or version < expired or for_now, (
            f"{id} was known to be in version {version}, and is refused: {error!r}"
        )
        if isinstance(error, Expired):
            assert version is None or version < expired, f"{id} is in {version}, {expired} is kept: {error!r}"
            if error.kind == "upload_expired":
                assert self.plan.collect_weight, f"{id}: nothing was collected: {error!r}"
            elif error.kind == "files_expired":
                assert self.plan.short_rate, f"{id}: no table has a short rule: {error!r}"
                assert error.oldest is not None
                assert oldest_needed(record.transaction) < error.oldest, f"{id}: {error!r}"
            else:
                self._must_be_gone(oldest_needed(record.transaction), error)
        if error.kind == "id_cancelled":
            assert record.settling, f"{id}: no client cancelled it"
        record.open -= 1

    async def _again(self, node: Node, client: str) -> None:
        """Send a request again, perhaps to another process, perhaps long after its answer."""
        known = list(self.asked.values())
        if known:
            recent = known if self.rng.random() < 0.3 else known[-20:]
            await self._commit(node, client, [self.rng.choice(recent).transaction])

    async def _settle(self, node: Node, client: str) -> None:
        """Ask for a final answer about a transaction in doubt."""
        candidates = [record for record in self.asked.values() if record.version is None and record.open]
        if not candidates:
            return
        record = self.rng.choice(candidates)
        record.settling = True
        record.requests += 1
        assert node.front is not None
        try:
            outcome = await node.front.settle(record.transaction.id, record.transaction.begin_version)
        except Expired as error:
            self._must_be_gone(record.transaction.begin_version + 1, error)
            if "can no longer commit" in error.message:
                record.version_max = min(record.version_max, len(self.audit.slots) - 1)
            return
        except (OutcomeUnknown, *TRANSIENT):
            return
        except InvalidInput as error:
            if error.kind != "clock_skew":
                raise
            return
        if outcome.state == "committed":
            assert outcome.commit is not None
            self._record_commit(record, outcome.commit)
        else:
            assert outcome.state == "cancelled"
            assert record.version is None, f"{record.transaction.id} is in version {record.version}"
            record.is_final = True

    async def _lie(self, node: Node) -> None:
        """Send other operations under an id that is in the log."""
        known = [record for record in self.asked.values() if record.version is not None]
        if not known:
            return
        record = self.rng.choice(known)
        honest = record.transaction
        forged = msgspec.structs.replace(
            honest,
            operations=(UpdateCatalog(set={"forged": "yes"}),),
            serializable=False,
            reads=(),
            key="",
            writer=None,
        )
        assert node.front is not None
        assert node.journal is not None
        assert record.version is not None
        knew_it = node.journal.head.version >= record.version
        record.is_forged = True
        (answer,) = await node.front.commit([forged])
        assert isinstance(answer, AlpheusError), f"forged {honest.id}: {answer!r}"
        # A process that is behind may refuse the request for another reason.
        assert (
            not knew_it
            or isinstance(answer, (OutcomeUnknown, *TRANSIENT))
            or (answer.kind in ("id_reused", "clock_skew"))
        ), f"forged {honest.id}: {answer!r}"

    async def _walk_away(self, node: Node, client: str, transactions: Sequence[Transaction]) -> None:
        """Commit, and cancel the client at some moment."""
        task = asyncio.ensure_future(self._commit(node, client, transactions))
        await asyncio.wait({task}, timeout=self.rng.random() * 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

    async def _read(self, client: str, journal: Journal) -> None:
        """Read the whole newest version, or only its number."""
        invoked = self.moment()
        try:
            version = (await journal.resolve(None)).version
            returned = self.moment()
            whole = canonical(await model_of(journal, version)) if self.rng.random() < 0.7 else None
        except Unavailable:
            return
        except Expired as error:
            self._must_be_gone(0, error)
            return
        self.loop.note(f"read {version}")
        self.reads.append(
            Called(
                client=client,
                is_commit=False,
                argument="model",
                result=whole,
                invoked=invoked,
                returned=returned,
                version=version,
            )
        )

    def _must_be_gone(self, version: int, error: AlpheusError) -> None:
        """Check that a version reported as expired, or without its files, has expired."""
        assert version < self.audit.expired, f"{self.audit.expired} is kept, {version} needed: {error!r}"

    # --- the end

    async def _make_peace(self) -> None:
        """End all faults, and let every process commit once more, which settles its open transactions."""
        self.fault_rate = 0.0
        clocks = [self.clock, *(node.clock for node in self.nodes)]
        now = max(clock.now_millis() for clock in clocks)
        for clock in clocks:  # the latest time that a clock ever showed, and a day
            clock.set_right()
            clock.offset_millis = now - clock.now_millis() + DAY_MILLIS
        for node in self.nodes:
            if node.leaseholders is not None:
                node.leaseholders.is_over = True
        for node in self.nodes:
            while node.process.is_paused or node.front is None:  # noqa: ASYNC110  (virtual seconds)
                await asyncio.sleep(1)
        for network in self.networks:
            network.weather = Weather(late_rate=0.0)
            await network.arrived()
        for node in self.nodes:
            for _ in range(2):  # the known version may be so old that later ones have expired
                transaction = Transaction(
                    id=self.identities.uuid7(),
                    begin_version=node.journal.head.version if node.journal else 0,
                    operations=(
                        CreateNamespace(name=f"end-{node.name}", namespace_id=self.identities.uuid4()),
                    ),
                    principal="sim",
                )
                await self.loop.start(node.process, self._commit(node, f"{node.name}.0", [transaction]))
                record = self.asked[transaction.id]
                if record.version is not None:
                    break
            assert record.version is not None, f"{node.name} cannot commit in peace"
            assert node.journal is not None
            for _ in range(100):  # requests of clients that walked away may still travel
                if node.journal.is_settled:
                    break
                await asyncio.sleep(0.1)
            assert node.journal.is_settled
        for network in self.networks:
            await network.arrived()

    async def _verify(self) -> Report:
        evidence = Evidence(
            asked=self.asked,
            reads=self.reads,
            requests=self.requests,
            audit=self.audit,
            clock=self.clock,
            identities=self.identities,
        )
        verdict = await evidence.judge(self.memory)
        await self._verify_subscribers(verdict.log)
        await self._verify_states()
        await self._verify_upkeep()
        assert not self.loop.failures, self.loop.failures
        known = [record for record in self.asked.values() if record.version is not None]
        return Report(
            seed=self.seed,
            trace=self.loop.trace,
            versions=len(verdict.log) - 1,
            expired=self.audit.expired,
            collected=self.tormentor.collected,
            lacking=evidence.lacking,
            commits=len(known),
            refused=sum(not record.open for record in self.asked.values()),
            unknown=sum(record.version is None and record.open > 0 for record in self.asked.values()),
            reads=len(self.reads),
            events=sum(len(node.subscriber.seen) for node in self.nodes),
            skipped=sum(len(node.subscriber.skipped) for node in self.nodes),
            kills=self.tormentor.kills,
            serializable=verdict.serializable,
            keyed=verdict.keyed,
            streamed=verdict.streamed,
            overruled=sum(len(record.overruled) for record in self.asked.values()),
            linearized=verdict.linearized,
            leases=self.lease_counts,
            operations=verdict.operations,
            changes=verdict.changes,
        )

    async def _verify_subscribers(self, log: Sequence[Event]) -> None:
        """Check that every subscriber got all events in order, except those that had expired when it asked."""
        for node in self.nodes:
            subscriber = node.subscriber
            for _ in range(600):
                if subscriber.position >= len(log) - 1:
                    break
                await asyncio.sleep(0.5)
            missing = [essence(event) for event in log if event.version not in subscriber.skipped]
            assert subscriber.seen == missing, f"{subscriber.name} did not get the log"

    async def _verify_states(self) -> None:
        """Check that memory equals a scan of the tree."""
        journal = await Journal.open(self.memory, clock=self.clock, identities=self.identities)
        fresh = (await journal.load_state()).entries()
        for node in self.nodes:
            assert node.journal is not None
            await self.loop.start(node.process, node.journal.refresh())
            snapshot = await self.loop.start(node.process, _entries(node.journal))
            assert snapshot == fresh, f"{node.name} sees another tree"
            if node.journal.state is not None:
                assert node.journal.state.entries() == fresh, f"{node.name} holds another catalog in memory"

    async def _verify_upkeep(self) -> None:
        """Check that an expiry and two collections in peace leave what is reached, and nothing else."""
        journal = await Journal.open(self.memory, clock=self.clock, identities=self.identities)
        async for _ in journal.expire(ExpiryRules(older_than_millis=0, keep_versions=3)):
            pass
        for _ in range(2):
            self.clock.offset_millis += DAY_MILLIS
            async for _ in journal.collect(minimum_age_millis=0):
                pass
        reached = await Reachable(self.memory, self.keys).find()
        left = {
            info.path
            async for info in self.memory.list("")
            if not info.path.startswith(("vn/", "checkpoint/"))
        }
        assert left == reached, f"left {sorted(left - reached)}, missing {sorted(reached - left)}"
        findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
        assert not findings, findings


UPKEEP_FAULTS = 0.1
"""The share of faults for upkeep, whose hundreds of requests would hardly ever all succeed."""
TRANSIENT = (Unavailable, Exhausted, Expired)

LAWFUL_ON_A_NETWORK = tuple(fault for fault in LAWFUL if fault.value not in ("slow", "cut_listing"))
"""The network itself is slow, and a listing is one reply."""


def oldest_needed(transaction: Transaction) -> int:
    """Return the oldest version that judging or executing a transaction needs."""
    named = [o.version for o in transaction.operations if isinstance(o, RestoreTable | Undrop)]
    return min([transaction.begin_version + 1, *named])


async def _entries(journal: Journal) -> list[tuple[fmt.Key, str]]:
    snapshot = await journal.follower.snapshot()
    return await snapshot.entries()


def simulate(seed: int, plan: Plan | None = None, parts: Parts | None = None) -> Report:
    """Run one seed. Raises AssertionError when something that must be true is not."""
    pa.array([""], pa.utf8())  # the first array imports an installed pandas, but runs may open no files
    world = World(seed, plan or plan_of(seed), parts or Parts())
    try:
        # Ids and the store have one clock here, so the slack for clocks would only refuse uploads.
        exact = mock.patch.object(leases, "ID_AHEAD_MILLIS_MAX", 0)
        with exact, small_tiers() if world.plan.changes_rate else contextlib.nullcontext():
            return world.loop.run(world.run())
    except BaseException as error:
        error.add_note(f"seed {seed}, step {world.loop.steps}, virtual time {world.loop.time():.3f} s")
        raise


def plan_of(seed: int) -> Plan:
    """Return the size of a seed's run.

    Every fourth is small enough to search an order without versions. Every twentieth is long. Every tenth has tables
    with short rules of history.
    """
    rng = random.Random(seed)
    small, long = seed % 4 == 0, seed % 20 == 19
    return Plan(
        writers=3 if small else 4,
        clients=2,
        steps=7 if small else 30 if long else rng.choice((7, 11)),
        disasters=rng.choice((0, 6, 16)),
        fault_rate=rng.choice((0.0, 0.02, 0.1)),
        order=rng.choice((3, 4, 128)),
        names_fresh_rate=rng.choice((0.05, 0.2)),
        rows_rate=rng.choice((0.2, 0.6)),
        reads_rate=rng.choice((0.1, 0.3, 0.9)),
        key_rate=rng.choice((0.05, 0.2, 0.5)),
        changes_rate=rng.choice((0.0, 0.0, 0.0, 0.4, 0.8)),
        short_rate=0.3 if seed % 10 == 7 else 0.0,
    )
