"""For authors of storage drivers and of tests: the contract as a test suite, stores that fail and give way on
demand, a fake clock, seeded identities, and a model of the catalog.

A driver's test module inherits the suite whole (pytest with asyncio_mode=auto collects it):

    class TestMine(StorageContract):
        async def make(self) -> Storage:
            return MyStorage(...)

Nothing here imports pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.access import Access, At, Committed
from alpheus_journal.actions import (
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    CreateCatalog,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.log import Log
from alpheus_journal.manifest import DataFile, segment_of
from alpheus_journal.node import encode_tombstone
from alpheus_journal.objects import Column, PipelineDef, Segment, TableDef, decode_definition
from alpheus_journal.storage import ObjectInfo, Storage, open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.system import Clock, Identities, make_uuid7

_T = TypeVar("_T")
_E = TypeVar("_E", bound=AlpheusError)

SIZE_MAX = 64 << 20


# --- a store that fails ----------------------------------------------------------------------------


class Fault(enum.Enum):
    """What happens to one call. Reads know `FAIL_BEFORE` only."""

    FAIL_BEFORE = "fail_before"
    """Unavailable; nothing was applied."""
    APPLIED_BUT_LOST = "applied_but_lost"
    """Applied, then OutcomeUnknown: the reply was lost. What the store itself refuses is lost as well."""
    NOT_APPLIED_BUT_UNKNOWN = "not_applied_but_unknown"
    """OutcomeUnknown, and never applied."""
    APPLIED_LATE = "applied_late"
    """OutcomeUnknown; applied by `release`, or right before a later call (`late_after`)."""
    DUPLICATE_APPLY = "duplicate_apply"
    """Delivered twice; the caller gets the second reply. So a `create` that won hears AlreadyExists."""


WRITES = frozenset({"create", "put", "delete"})


class Call(msgspec.Struct, frozen=True):
    """One call as the store sees it: `method` is read, stat, list, create, put or delete; `number` counts
    from 0 over all of them."""

    method: str
    path: str
    number: int


class Record(msgspec.Struct, frozen=True):
    """A line of the log: a call and what was done to it."""

    call: Call
    fault: Fault | None


Plan = Callable[[Call], Fault | None]


def no_faults(call: Call) -> Fault | None:
    return None


def scripted(faults: Mapping[int, Fault]) -> Plan:
    """Faults by the number of the call."""
    return lambda call: faults.get(call.number)


def seeded(seed: int, rate: float, *, faults: Collection[Fault] = tuple(Fault), reads: bool = True) -> Plan:
    """Each call fails with probability `rate`, in one of `faults` that fits it; the same seed and the same
    calls in the same order give the same faults."""
    generator = random.Random(seed)
    ordered = sorted(faults, key=lambda fault: fault.value)

    def plan(call: Call) -> Fault | None:
        # Drawn for every call, so that one call more or less does not shift the rest.
        strikes, fault = generator.random() < rate, generator.choice(ordered)
        if not strikes:
            return None
        if call.method in WRITES:
            return fault
        return Fault.FAIL_BEFORE if reads and Fault.FAIL_BEFORE in faults else None

    return plan


class FaultyStorage(Storage):
    """A store in front of `inner` whose calls fail as `plan` says; the log is in `log`.

    `put_many` is a `put` for each file, `read_many` a `read`, and `publish` is `put_many` and `create`: each
    can be hit. A write that is applied late waits for `release()`, or, when `late_after` is given, for the
    call whose number is that much higher. `close` leaves late writes unapplied and closes `inner`.
    """

    def __init__(self, inner: Storage, plan: Plan = no_faults, *, late_after: int | None = None) -> None:
        self.inner = inner
        self.url = inner.url
        self.plan = plan
        self.log: list[Record] = []
        self._late_after = late_after
        self._late: list[tuple[Call, Callable[[], Awaitable[None]]]] = []

    @property
    def late(self) -> tuple[Call, ...]:
        """The writes that are still under way."""
        return tuple(call for call, _ in self._late)

    async def release(self, count: int | None = None) -> None:
        """Apply the first `count` late writes, all by default. What the store refuses by now, it refuses."""
        for _ in range(len(self._late) if count is None else min(count, len(self._late))):
            _, write = self._late.pop(0)
            with contextlib.suppress(AlpheusError):
                await write()

    async def read(self, path: str, *, size_max: int) -> bytes:
        await self._reading("read", path)
        return await self.inner.read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        await self._reading("stat", path)
        return await self.inner.stat(path)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._reading("list", prefix)
        async for info in self.inner.list(prefix):
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._writing("create", path, lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._writing("put", path, lambda: self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._writing("delete", path, lambda: self.inner.delete(path))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def make_durable(self, paths: Sequence[str]) -> None:
        await self.inner.make_durable(paths)

    async def close(self) -> None:
        await self.inner.close()

    async def _begin(self, method: str, path: str) -> tuple[Call, Fault | None]:
        call = Call(method, path, len(self.log))
        fault = self.plan(call)
        self.log.append(Record(call, fault))
        if self._late_after is not None:
            due = sum(1 for late, _ in self._late if late.number + self._late_after <= call.number)
            await self.release(due)
        return call, fault

    async def _reading(self, method: str, path: str) -> None:
        call, fault = await self._begin(method, path)
        if fault is not None:
            if fault is not Fault.FAIL_BEFORE:
                raise AssertionError(f"{fault} does not fit {call}")
            raise Unavailable(f"injected: {call}", path=path)

    async def _writing(self, method: str, path: str, write: Callable[[], Awaitable[None]]) -> None:
        call, fault = await self._begin(method, path)
        unknown = OutcomeUnknown(f"injected: {call}", path=path)
        match fault:
            case None:
                await write()
            case Fault.FAIL_BEFORE:
                raise Unavailable(f"injected: {call}", path=path)
            case Fault.APPLIED_BUT_LOST:
                with contextlib.suppress(AlpheusError):
                    await write()
                raise unknown
            case Fault.NOT_APPLIED_BUT_UNKNOWN:
                raise unknown
            case Fault.APPLIED_LATE:
                self._late.append((call, write))
                raise unknown
            case Fault.DUPLICATE_APPLY:
                with contextlib.suppress(AlpheusError):
                    await write()
                await write()


class InterleavedStorage(Storage):
    """A store in front of `inner` that gives way before and after each call, as often as a seed says: on one event
    loop, other tasks run in between. The same seed gives the same run."""

    def __init__(self, inner: Storage, seed: int, *, pauses_max: int = 3) -> None:
        self.inner = inner
        self.url = inner.url
        self._random = random.Random(seed)
        self._pauses_max = pauses_max

    async def _pause(self) -> None:
        for _ in range(self._random.randint(0, self._pauses_max)):
            await asyncio.sleep(0)

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._pause()
        try:
            return await call()
        finally:
            await self._pause()

    async def read(self, path: str, *, size_max: int) -> bytes:
        return await self._call(lambda: self.inner.read(path, size_max=size_max))

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._call(lambda: self.inner.stat(path))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix):
            await self._pause()
            yield info

    async def create(self, path: str, data: bytes) -> None:
        await self._call(lambda: self.inner.create(path, data))

    async def put(self, path: str, data: bytes) -> None:
        await self._call(lambda: self.inner.put(path, data))

    async def delete(self, path: str) -> None:
        await self._call(lambda: self.inner.delete(path))

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    async def close(self) -> None:
        await self.inner.close()


# --- time and names without the outside world ------------------------------------------------------


class FakeClock:
    """Time that passes only when somebody sleeps, and then at once; `millis` may be set. Counts sleeps."""

    def __init__(self, millis: int = 1_800_000_000_000) -> None:
        self.millis = millis
        self.sleeps = 0

    def now_millis(self) -> int:
        return self.millis

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.millis += int(seconds * 1000)
        await asyncio.sleep(0)


class SeededIdentities:
    """Identities that one seed repeats."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def uuid7(self) -> str:
        return make_uuid7(self._clock.now_millis(), self._random.getrandbits(74))


# --- a model of the catalog ------------------------------------------------------------------------

Model = dict[str, object]
"""What a catalog holds, as plain values: `str(object name)` -> properties; of a table also its id and segment
paths, of a pipeline the last transaction of each job. See `apply_to_model`."""


def apply_to_model(model: Model, operation: Operation, transaction_id: str) -> None:
    """What an operation means, said a second time without any code of the journal. Raises AssertionError
    when it is not possible as the model stands."""
    name = str(operation.target)
    match operation:
        case CreateCatalog() | UpdateCatalog():
            properties = dict(model.get(name, {}))  # type: ignore[call-overload]
            if isinstance(operation, CreateCatalog):
                assert name not in model, "created twice"
                model[name] = dict(operation.definition.properties)
            else:
                model[name] = _model_properties(properties, operation)
        case CreateNamespace():
            assert name not in model, f"{name} is there"
            model[name] = dict(operation.properties)
        case UpdateNamespace():
            model[name] = _model_properties(model[name], operation)
        case DropNamespace():
            inside = [other for other in model if other.startswith(f"table {operation.name}.")]
            assert not inside, f"{name} holds {inside}"
            del model[name]
        case CreateTable():
            assert f"namespace {operation.namespace}" in model, f"no namespace of {name}"
            assert name not in model, f"{name} is there"
            model[name] = (dict(operation.properties), operation.table_id, ())
        case UpdateTable():
            properties, table_id, segments = _model_table(model, name)
            model[name] = (_model_properties(properties, operation), table_id, segments)
        case DropTable():
            del model[name]
        case AppendFiles() | OverwriteFiles():
            properties, table_id, segments = _model_table(model, name)
            assert table_id == operation.table_id, f"files of another {name}"
            kept = segments if isinstance(operation, AppendFiles) else ()
            model[name] = (properties, table_id, (*kept, *(s.path for s in operation.segments)))
        case AdvancePipeline():
            jobs = dict(model.get(name, {}))  # type: ignore[call-overload]
            assert jobs.get(operation.job, "") == operation.expected_transaction_id, f"{name} has moved"
            model[name] = jobs | {operation.job: transaction_id}
        case CancelTransaction():
            pass


def _model_table(model: Model, name: str) -> tuple[dict[str, str], str, tuple[str, ...]]:
    return model[name]  # type: ignore[return-value]


def _model_properties(
    properties: object, operation: UpdateCatalog | UpdateNamespace | UpdateTable
) -> dict[str, str]:
    assert isinstance(properties, dict)
    return {key: value for key, value in properties.items() if key not in operation.unset} | operation.set


async def model_of(access: Access, at: At = None) -> Model:
    """The same view of a stored catalog, read through its public calls."""
    version = (await access.resolve(at)).version
    names: list[ObjectName] = [fmt.CATALOG]
    for kind in (Kind.NAMESPACE, Kind.PIPELINE):
        page = await access.list(version, kind)
        assert not page.more
        names += [
            ObjectName(kind, n) if kind is Kind.NAMESPACE else ObjectName(kind, "", n) for n in page.names
        ]
    for namespace in [name.namespace for name in names if name.kind is Kind.NAMESPACE]:
        page = await access.list(version, Kind.TABLE, namespace=namespace)
        assert not page.more
        names += [fmt.table_name(namespace, table) for table in page.names]
    model: Model = {}
    for name, stored in zip(names, (await access.load(version, names)).objects, strict=True):
        assert stored is not None, f"{name} is listed and not there"
        definition = decode_definition(name.kind, stored.definition, stored.path)
        match definition:
            case TableDef():
                segments = tuple(segment.path for segment in definition.segments)
                model[str(name)] = (definition.properties, definition.id, segments)
            case PipelineDef():
                model[str(name)] = {job: value.last_transaction_id for job, value in definition.jobs.items()}
            case _:
                model[str(name)] = definition.properties
    return model


def random_operation(rng: random.Random, model: Model, identities: Identities) -> Operation:
    """An operation over few names, likely but not certain to be possible in `model`; without data files."""
    properties = {rng.choice("pqr"): str(rng.randrange(9))}
    kind = rng.choice(("catalog", "namespace", "namespace", "table", "table", "table", "pipeline"))
    namespace, table = rng.choice(("a", "b", "ü-é")), rng.choice(("x", "y", "名𝄞"))
    unset = tuple(key for key in "pqr" if key not in properties and rng.random() < 0.2)
    if kind == "catalog":
        return UpdateCatalog(set=properties, unset=unset)
    if kind == "pipeline":
        name, job = rng.choice("mn"), rng.choice("jk")
        jobs = model.get(f"pipeline {name}", {})
        assert isinstance(jobs, dict)
        expected = jobs.get(job, "") if rng.random() < 0.9 else identities.uuid7()
        return AdvancePipeline(name=name, job=job, expected_transaction_id=expected, pinned_version=0)
    if kind == "namespace":
        if f"namespace {namespace}" not in model or rng.random() < 0.1:
            return CreateNamespace(name=namespace, namespace_id=identities.uuid4(), properties=properties)
        if rng.random() < 0.5:
            return DropNamespace(name=namespace)
        return UpdateNamespace(name=namespace, set=properties, unset=unset)
    if f"table {namespace}.{table}" not in model or rng.random() < 0.1:
        return CreateTable(
            namespace=namespace,
            name=table,
            table_id=identities.uuid4(),
            columns=(Column(id=1, name="c", type="INT8"),),
            properties=properties,
        )
    if rng.random() < 0.5:
        return DropTable(namespace=namespace, name=table)
    return UpdateTable(namespace=namespace, name=table, set=properties, unset=unset)


async def put_rows(
    storage: Storage, identities: Identities, *, table_id: str, transaction_id: str, row_count: int = 1
) -> Segment:
    """Store a data file (which is no Parquet: the journal never opens one) and its manifest segment."""
    write = identities.uuid4()
    path = fmt.data_folder(table_id, transaction_id, write) + "part-0.parquet"
    content = b"rows" * row_count
    file = DataFile(path=path, row_count=row_count, size_bytes=len(content))
    data, segment = await asyncio.to_thread(
        segment_of,
        [file],
        path=fmt.manifest_path(table_id, identities.uuid7()),
        table_id=table_id,
        schema_id=0,
    )
    await storage.put_many({path: content, segment.path: data})
    return segment


class Lake:
    """A store, a fake clock, and journals on it: what a test of the journal begins with."""

    def __init__(self, storage: Storage | None = None, seed: int = 0) -> None:
        self.storage = storage or MemoryStorage()
        self.clock = FakeClock()
        self.identities = SeededIdentities(seed, self.clock)

    async def create(self, **options: object) -> Journal:
        return await Journal.create(
            self.storage,
            clock=self.clock,
            identities=self.identities,
            **options,  # type: ignore[arg-type]
        )

    async def open(self, storage: Storage | None = None) -> Journal:
        return await Journal.open(storage or self.storage, clock=self.clock, identities=self.identities)

    def transaction(self, journal: Journal, *operations: Operation, begin: int | None = None) -> Transaction:
        begin = journal.head.version if begin is None else begin
        return Transaction(id=self.identities.uuid7(), begin_version=begin, operations=operations)

    async def commit(self, journal: Journal, *operations: Operation) -> Committed:
        return await journal.commit(self.transaction(journal, *operations))

    def namespace(self, name: str, **properties: str) -> CreateNamespace:
        return CreateNamespace(name=name, namespace_id=self.identities.uuid4(), properties=properties)

    def table(self, namespace: str, name: str) -> CreateTable:
        return CreateTable(
            namespace=namespace,
            name=name,
            table_id=self.identities.uuid4(),
            columns=(Column(id=1, name="c", type="INT8"),),
        )

    async def expire(self, *, below: int) -> None:
        """Tombstones over the versions under `below`."""
        log = await Log.open(self.storage)
        for version in range(below):
            tombstone = encode_tombstone(
                commit_id=await log.commit_id(version),
                expired_at_millis=self.clock.millis,
                version=version,
            )
            await self.storage.put(log.path(version), tombstone)


# --- the contract ----------------------------------------------------------------------------------


async def raises(expected: type[_E], call: Awaitable[object], *, kind: str = "") -> _E:
    """The error that `call` raises, which must be an `expected`, of `kind` when given."""
    raised: _E | None = None
    try:
        await call
    except expected as error:
        raised = error
    assert raised is not None, f"no {expected.__name__} was raised"
    assert not kind or raised.kind == kind, f"kind {raised.kind!r}, expected {kind!r}: {raised}"
    return raised


async def listed(storage: Storage, prefix: str) -> dict[str, ObjectInfo]:
    """A whole listing; a path that is listed twice fails."""
    found: dict[str, ObjectInfo] = {}
    async for info in storage.list(prefix):
        assert info.path not in found, f"{info.path} was listed twice"
        found[info.path] = info
    return found


BAD_PATHS = (
    "", "/", "/x", "x/", "a//b", ".", "..", "../x", "a/../b", "a/..", "./a", "a/./b", "a/.", "a\\b",
    "vn\\..\\x", "a\0b", "a\nb", "a\x1fb", "a\x7fb", "a/\ud800",
)  # fmt: skip
"""No driver may take these."""

ODD_PATHS = (
    "def/ns/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-my name.binpb",
    "def/table/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-a%2Fb%-c?d#e*.binpb",
    "def/view/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-Überß/日本語-𝄞.binpb",
    "def/view/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-U\u0308-decomposed.binpb",
    "def/table/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-back\\slash.binpb",
    "def/table/...-..x-x..",
    "def/table/ leading and trailing ",
    "data/t/x/w/part-00000_a=1+b.parquet",
)
"""Every driver must take these: the Java SDK puts raw names into definition paths."""


class StorageContract:
    """What every driver must pass whole. A subclass says how to make a store, and overrides nothing else."""

    async def make(self) -> Storage:
        """A store without files. It is closed by the test."""
        raise NotImplementedError

    async def reopen(self, storage: Storage) -> Storage | None:
        """Another store on the same files; None for a driver whose files live in one object."""
        return await asyncio.to_thread(open_storage, storage.url)

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[Storage]:
        storage = await self.make()
        try:
            yield storage
        finally:
            await storage.close()

    # -- create

    async def test_create_then_read(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"root")
            assert await storage.read("vn/000", size_max=4) == b"root"
            assert await storage.exists("vn/000")

    async def test_create_changes_nothing_when_taken(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"first")
            for data in (b"second", b"first", b""):
                error = await raises(AlreadyExists, storage.create("vn/000", data), kind="slot_taken")
                assert "vn/000" in str(error)
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"first"

    async def test_create_is_refused_over_a_put(self) -> None:
        async with self._store() as storage:
            await storage.put("vn/000", b"put")
            await raises(AlreadyExists, storage.create("vn/000", b"created"), kind="slot_taken")
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"put"

    async def test_one_of_racing_creators_wins(self) -> None:
        async with self._store() as storage:
            for slot in (f"vn/{number:03}" for number in range(8)):
                offers = [bytes([number]) * 20_000 for number in range(16)]
                results = await asyncio.gather(
                    *(storage.create(slot, data) for data in offers), return_exceptions=True
                )
                winners = [data for data, result in zip(offers, results, strict=True) if result is None]
                losers = [result for result in results if result is not None]
                assert len(winners) == 1, results
                assert all(isinstance(error, AlreadyExists) for error in losers), results
                assert await storage.read(slot, size_max=SIZE_MAX) == winners[0]

    async def test_absence_is_not_remembered(self) -> None:
        async with self._store() as storage:
            assert not await storage.exists("vn/001")
            await raises(NotFound, storage.read("vn/001", size_max=SIZE_MAX), kind="no_file")
            await storage.create("vn/001", b"now")
            assert await storage.exists("vn/001")
            assert await storage.read("vn/001", size_max=SIZE_MAX) == b"now"

    async def test_cancelled_create_leaves_the_slot_absent_or_whole(self) -> None:
        async with self._store() as storage:
            data = b"whole" * 20_000
            for number in range(12):
                slot = f"vn/{number:03}"
                task = asyncio.ensure_future(storage.create(slot, data))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                try:
                    await storage.create(slot, b"second")
                except AlreadyExists:
                    assert await storage.read(slot, size_max=SIZE_MAX) == data
                else:
                    assert await storage.read(slot, size_max=SIZE_MAX) == b"second"

    # -- put

    async def test_put_replaces(self) -> None:
        async with self._store() as storage:
            for data in (b"10", b"", b"11" * 1000, b"12"):
                await storage.put("vn/latest", data)
                assert await storage.read("vn/latest", size_max=SIZE_MAX) == data

    async def test_put_replaces_a_created_file(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"root")
            await storage.put("vn/000", b"tombstone")
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"tombstone"
            await raises(AlreadyExists, storage.create("vn/000", b"root"), kind="slot_taken")

    async def test_readers_see_the_old_or_the_new_file(self) -> None:
        async with self._store() as storage:
            versions = [bytes([number]) * (10_000 + number) for number in range(20)]
            await storage.put("vn/latest", versions[0])

            async def write() -> None:
                for data in versions:
                    await storage.put("vn/latest", data)

            writer = asyncio.ensure_future(write())
            position = 0
            while not writer.done():
                data = await storage.read("vn/latest", size_max=SIZE_MAX)
                assert data in versions, f"a torn file of {len(data)} bytes"
                assert versions.index(data) >= position, "an older file came back"
                position = versions.index(data)
                await asyncio.sleep(0)
            await writer

    async def test_put_many(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number}.arrow": b"%d" % number for number in range(300)}
            await storage.put_many(files)
            await storage.put_many({})
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files

    # -- publish

    async def test_publish(self) -> None:
        async with self._store() as storage:
            files = {"node/a.arrow": b"a" * 20_000, "def/table/b.binpb": b"b", "node/c.arrow": b""}
            await storage.publish(files, "vn/000", b"root")
            await storage.publish({}, "vn/001", b"root 1")
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"root"
            assert await storage.read("vn/001", size_max=SIZE_MAX) == b"root 1"

    async def test_publish_to_a_taken_slot_leaves_it(self) -> None:
        async with self._store() as storage:
            await storage.publish({"node/a.arrow": b"a"}, "vn/000", b"first")
            await raises(
                AlreadyExists, storage.publish({"node/b.arrow": b"b"}, "vn/000", b"second"), kind="slot_taken"
            )
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"first"
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"a"

    async def test_slot_appears_after_its_files(self) -> None:
        async with self._store() as storage:
            for version in range(10):
                slot = f"vn/{version:03}"
                files = {f"node/{version}-{number}.arrow": b"x" * 5_000 for number in range(5)}
                writer = asyncio.ensure_future(storage.publish(files, slot, b"root"))
                while not await storage.exists(slot):
                    if writer.done():
                        await writer
                    await asyncio.sleep(0)
                assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
                await writer

    async def test_racing_publishers(self) -> None:
        async with self._store() as storage:
            results = await asyncio.gather(
                *(
                    storage.publish({f"node/{number}.arrow": b"n%d" % number}, "vn/000", b"%d" % number)
                    for number in range(16)
                ),
                return_exceptions=True,
            )
            (winner,) = (number for number, result in enumerate(results) if result is None)
            assert sum(isinstance(result, AlreadyExists) for result in results) == 15, results
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"%d" % winner
            assert await storage.read(f"node/{winner}.arrow", size_max=SIZE_MAX) == b"n%d" % winner

    # -- read and stat

    async def test_size_cap(self) -> None:
        async with self._store() as storage:
            await storage.put("node/a.arrow", b"x" * 1000)
            assert len(await storage.read("node/a.arrow", size_max=1000)) == 1000
            error = await raises(Corrupt, storage.read("node/a.arrow", size_max=999))
            assert error.path == "node/a.arrow"
            await raises(Corrupt, storage.read_many(["node/a.arrow"], size_max=0))

    async def test_absent_files(self) -> None:
        async with self._store() as storage:
            await storage.put("node/a.arrow", b"")
            for path in ("vn/000", "node/b.arrow", "node", "node/a.arrow/below", "x/y/z", "x" * 300):
                error = await raises(NotFound, storage.read(path, size_max=SIZE_MAX), kind="no_file")
                assert error.path == path
                assert error.hint
                assert await storage.stat(path) is None
                assert not await storage.exists(path)
            await raises(NotFound, storage.read_many(["node/a.arrow", "node/b.arrow"], size_max=SIZE_MAX))
            assert await storage.read_many([], size_max=SIZE_MAX) == {}

    async def test_stat(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"x" * 123)
            first = await storage.stat("vn/000")
            assert first is not None
            assert (first.path, first.size) == ("vn/000", 123)
            await storage.put("vn/000", b"y")
            second = await storage.stat("vn/000")
            assert second is not None
            assert second.size == 1
            assert second.modified_at_millis >= first.modified_at_millis > 0

    async def test_empty_and_large_files(self) -> None:
        async with self._store() as storage:
            large = bytes(range(256)) * (8 << 12)
            await storage.create("data/t/x/w/empty.parquet", b"")
            await storage.create("data/t/x/w/large.parquet", large)
            assert await storage.read("data/t/x/w/empty.parquet", size_max=0) == b""
            assert await storage.read("data/t/x/w/large.parquet", size_max=len(large)) == large
            info = await storage.stat("data/t/x/w/large.parquet")
            assert info is not None
            assert info.size == len(large) == 8 << 20

    # -- list and delete

    async def test_list_by_any_text(self) -> None:
        async with self._store() as storage:
            paths = [
                "node/aa.arrow",
                "node/ab.arrow",
                "node/b.arrow",
                "nodes/x",
                "vn/0",
                "data/t/x/w/f.parquet",
            ]
            await storage.put_many({path: path.encode() for path in paths})
            prefixes = (
                "", "n", "node", "node/", "node/a", "node/aa.arrow", "node/c", "data/t/x", "data/t/x/w/f",
                "zzz", "zzz/yyy", "vn/0", "vn/00", "node/aa.arrow/",
            )  # fmt: skip
            for prefix in prefixes:
                found = await listed(storage, prefix)
                assert set(found) == {path for path in paths if path.startswith(prefix)}, prefix
                assert all(info.path == path and info.size == len(path) for path, info in found.items())

    async def test_siblings_of_a_folder(self) -> None:
        async with self._store() as storage:
            files = {"a/b": b"1", "a/bc": b"2", "a/b.c": b"3", "ab/c": b"4"}
            await storage.put_many(files)
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert set(await listed(storage, "a/b")) == {"a/b", "a/bc", "a/b.c"}
            assert set(await listed(storage, "a/")) == {"a/b", "a/bc", "a/b.c"}
            await storage.delete("a/b")
            assert set(await listed(storage, "a")) == {"a/bc", "a/b.c", "ab/c"}

    async def test_list_many(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number % 3}/{number}.arrow": b"" for number in range(2500)}
            await storage.put_many(files)
            assert set(await listed(storage, "node/")) == set(files)

    async def test_list_may_be_left_early(self) -> None:
        async with self._store() as storage:
            await storage.put_many({f"node/{number}.arrow": b"" for number in range(10)})
            async with contextlib.aclosing(storage.list("node/")) as listing:  # type: ignore[type-var]
                async for _ in listing:
                    break
            assert len(await listed(storage, "node/")) == 10

    async def test_list_and_delete_together(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number}.arrow": b"" for number in range(50)}
            await storage.put_many(files)
            async for info in storage.list("node/"):
                await storage.delete(info.path)
            assert await listed(storage, "") == {}

    async def test_delete(self) -> None:
        async with self._store() as storage:
            await storage.create("node/a.arrow", b"a")
            for _ in range(3):
                await storage.delete("node/a.arrow")
                assert not await storage.exists("node/a.arrow")
            await storage.delete("never/was/here")
            await storage.create("node/a.arrow", b"again")
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"again"

    # -- paths

    async def test_bad_paths_are_refused(self) -> None:
        async with self._store() as storage:
            for path in BAD_PATHS:
                await raises(InvalidInput, storage.read(path, size_max=SIZE_MAX), kind="bad_argument")
                await raises(InvalidInput, storage.read_many([path], size_max=SIZE_MAX), kind="bad_argument")
                await raises(InvalidInput, storage.stat(path), kind="bad_argument")
                await raises(InvalidInput, storage.create(path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.put(path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.put_many({path: b""}), kind="bad_argument")
                await raises(InvalidInput, storage.publish({path: b""}, "vn/000", b""), kind="bad_argument")
                await raises(InvalidInput, storage.publish({}, path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.delete(path), kind="bad_argument")
            for prefix in ("/", "../", "a//", "a/../b", "a/\0", "./x"):
                await raises(InvalidInput, listed(storage, prefix), kind="bad_argument")
            assert await listed(storage, "") == {}, "a refused path left something"

    async def test_odd_paths_are_taken(self) -> None:
        async with self._store() as storage:
            files = {path: path.encode() for path in ODD_PATHS}
            for path, data in files.items():
                await storage.create(path, data)
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert set(await listed(storage, "")) == set(files)

    # -- together

    async def test_many_calls_at_once(self) -> None:
        async with self._store() as storage:

            async def one(number: int) -> None:
                path = f"node/{number}.arrow"
                await storage.create(path, b"%d" % number)
                assert await storage.read(path, size_max=SIZE_MAX) == b"%d" % number
                if number % 2:
                    await storage.delete(path)

            await asyncio.gather(*(one(number) for number in range(200)))
            assert set(await listed(storage, "")) == {f"node/{number}.arrow" for number in range(0, 200, 2)}

    async def test_another_store_sees_the_same(self) -> None:
        async with self._store() as storage:
            await storage.publish({"node/a.arrow": b"a"}, "vn/000", b"root")
            other = await self.reopen(storage)
            if other is None:
                return
            try:
                assert other.url == storage.url
                assert await other.read("node/a.arrow", size_max=SIZE_MAX) == b"a"
                await raises(AlreadyExists, other.create("vn/000", b"other"), kind="slot_taken")
                await other.create("vn/001", b"root 1")
                assert await storage.read("vn/001", size_max=SIZE_MAX) == b"root 1"
                assert set(await listed(other, "")) == {"node/a.arrow", "vn/000", "vn/001"}
            finally:
                await other.close()

    async def test_close_twice(self) -> None:
        storage = await self.make()
        await storage.put("node/a.arrow", b"a")
        await storage.close()
        await storage.close()
