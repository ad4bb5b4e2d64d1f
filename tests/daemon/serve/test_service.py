"""The service over a real loopback connection and the real journal, with storage in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.serve import service
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import CATALOG, namespace_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed, Event, Finding
from alpheus_journal.model.operations import CreateNamespace, Operation, Transaction, UpdateNamespace
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()


def transaction(*operations: Operation, begin: int = 0, id: str = "") -> Transaction:
    return Transaction(
        id=id or IDENTITIES.uuid7(), begin_version=begin, operations=operations, principal="me"
    )


def namespace(name: str, **properties: str) -> CreateNamespace:
    return CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4(), properties=properties)


class Client:
    """The raw stub. Its calls raise the exceptions that the daemon sent."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = service_pb2_grpc.CatalogStub(channel)

    async def call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, method)(request)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error

    async def commit(self, value: Transaction) -> Committed:
        reply = await self.call("Commit", wire.encode_transaction_request(value))
        return wire.decode_committed(reply, value.id)

    async def stream(self, method: str, request: Any) -> list[Any]:
        try:
            return [message async for message in getattr(self.stub, method)(request)]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error

    async def events(self, **query: Any) -> list[Event]:
        messages = await self.stream("Events", wire.encode_events_request(wire.EventsQuery(**query)))
        return [wire.decode_event(event) for message in messages for event in message.events]


async def drain(call: Any) -> None:
    """Read a stream to its end."""
    while await call.read() is not grpc.aio.EOF:
        pass


def error_of(error: grpc.aio.AioRpcError) -> Exception:
    detail = dict(error.trailing_metadata() or ()).get(errors.ERROR_METADATA_KEY)
    if not isinstance(detail, bytes):
        return error
    told = errors.error_of_detail(detail)
    assert error.code().name == errors.grpc_status_code_name(told)
    return told


class Daemon:
    def __init__(self, address: str, journal: Journal, storage: Storage) -> None:
        self.address = address
        self.journal = journal
        self.storage = storage

    @asynccontextmanager
    async def client(self, **options: int) -> AsyncIterator[Client]:
        target = self.address.replace("unix://", "unix:")
        pairs = [(f"grpc.{key}", value) for key, value in options.items()]
        async with grpc.aio.insecure_channel(target, options=pairs) as channel:
            yield Client(channel)


@asynccontextmanager
async def daemon_of(storage: Storage | None = None, **settings: Any) -> AsyncIterator[Daemon]:
    storage = storage or MemoryStorage()
    config = Config(url="memory://test", **{"listen": "127.0.0.1:0", "poll_interval_max_ms": 50, **settings})
    try:
        journal = await Journal.open(storage)
    except NotFound:
        journal = await Journal.create(storage)
    await journal.load_state()
    async with running(config, journal) as address:
        yield Daemon(address, journal, storage)
    await journal.close()


@contextmanager
def held_publish(daemon: Daemon) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Hold the storing of versions. Yield two events: one is set when a version waits, the other lets all continue."""
    publish, entered, gate = daemon.storage.publish, asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any, **others: Any) -> None:
        entered.set()
        await gate.wait()
        await publish(*arguments, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon.storage, "publish", held)
        yield entered, gate


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with daemon_of() as made:
        yield made


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as made:
        yield made


# --- calls -----------------------------------------------------------------------------------------


async def test_a_transaction_and_all_that_can_be_read_of_it(daemon: Daemon, client: Client) -> None:
    asked = transaction(namespace("sales", owner="me"), namespace("ref"))
    committed = await client.commit(asked)
    assert (committed.version, committed.duplicate) == (1, False)
    again = await client.commit(asked)
    assert again == msgspec.structs.replace(committed, duplicate=True)

    info = wire.decode_info(await client.call("GetInfo", pb.GetInfoRequest()))
    assert (info.version, info.oldest_version, info.token) == (1, 0, committed.token)
    assert info.catalog_id == daemon.journal.catalog_id

    for at in (None, 1):
        request = pb.ResolveRequest(at=wire.encode_at(at))
        resolved = wire.decode_version_info(await client.call("Resolve", request))
        assert (resolved.version, resolved.token) == (1, committed.token)

    names = [namespace_name("sales"), namespace_name("none"), CATALOG, namespace_name("sales")]
    request = pb.LoadRequest(names=[wire.encode_name(name) for name in names])
    for _ in range(2):  # the second time from the cache
        loaded = wire.decode_loaded(await client.call("Load", request))
        assert loaded == await daemon.journal.load(None, names)
        assert loaded.objects[1] is None
        assert loaded.objects[0] is not None
    before = wire.decode_loaded(
        await client.call("Load", pb.LoadRequest(at=wire.encode_at(0), names=request.names))
    )
    assert (before.version, before.objects[0]) == (0, None)

    pages = []
    for after in ("", "ref"):
        message = pb.ListRequest(type=1, limit=1, after=after)  # type: ignore[arg-type]
        pages.append(wire.decode_page(await client.call("List", message)))
    assert [(page.names, page.more) for page in pages] == [(("ref",), True), (("sales",), False)]

    (event,) = await client.events(after=0)
    assert event == await daemon.journal.event(1)
    assert event.transactions[0].id == asked.id
    (detailed,) = await client.events(after=0, details=True)
    assert detailed == await daemon.journal.event(1, details=True)
    assert len(await client.events()) == 2

    entries = [wire.decode_log_entry(m) for m in await client.stream("Log", pb.LogRequest())]
    assert [entry.version for entry in entries] == [1, 0]
    only = pb.LogRequest(object=wire.encode_name(namespace_name("ref")), after_version=0)
    assert [m.version for m in await client.stream("Log", only)] == [1]

    outcome = pb.GetOutcomeRequest(transaction_id=asked.id)
    answer = wire.decode_outcome(await client.call("GetOutcome", outcome), asked.id)
    assert answer.state == "committed"
    assert answer.commit is not None
    assert answer.commit.version == 1

    found = [wire.decode_check(m) for m in await client.stream("Check", pb.CheckRequest())]
    assert not [item for item in found if isinstance(item, Finding)]
    assert isinstance(found[-1], CheckSummary)
    assert found[-1].versions == 2


async def test_many_commits_at_once_share_versions(daemon: Daemon, client: Client) -> None:
    asked = [transaction(namespace(f"n{number}")) for number in range(60)]
    asked.append(transaction(UpdateNamespace(name="missing", set={"a": "b"})))
    with held_publish(daemon) as (entered, gate):
        tasks = [asyncio.create_task(client.commit(item)) for item in asked]
        await entered.wait()
        await client.call("GetInfo", pb.GetInfoRequest())  # they are queued when this is answered
        gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[-1], NotFound)
    committed = [answer for answer in answers if isinstance(answer, Committed)]
    assert len(committed) == 60
    versions = {answer.version for answer in committed}
    assert versions <= {1, 2, 3}, "what waited went together, or ahead of that"
    events = await client.events(after=0)
    assert [event.version for event in events] == sorted(versions)
    logged = {recorded.id: event.version for event in events for recorded in event.transactions}
    assert logged == {answer.transaction_id: answer.version for answer in committed}


async def test_other_writers_are_seen_at_once(daemon: Daemon, client: Client) -> None:
    other = await Journal.open(daemon.storage)
    await other.commit(transaction(namespace("theirs")))
    request = pb.LoadRequest(names=[wire.encode_name(namespace_name("theirs"))])
    loaded = wire.decode_loaded(await client.call("Load", request))
    assert loaded.objects[0] is not None
    # A follower gets the other writer's versions without any request, and a commit here builds on them.
    query = wire.EventsQuery(after=1, follow=True)
    call = client.stub.Events(wire.encode_events_request(query))
    first = await call.read()
    assert (first.progress_version, len(first.events)) == (1, 0)
    await other.commit(transaction(namespace("more"), begin=1))
    assert [event.version for event in (await call.read()).events] == [2]
    call.cancel()
    with pytest.raises(Conflict):
        await client.commit(transaction(namespace("more"), begin=1))
    assert (await client.commit(transaction(namespace("ours"), begin=1))).version == 3


async def test_the_only_writer_does_not_probe() -> None:
    async with daemon_of(sole_writer=True) as daemon, daemon.client() as client:
        await client.commit(transaction(namespace("a")))
        other = await Journal.open(daemon.storage)
        await other.commit(transaction(namespace("b"), begin=1))
        request = pb.ListRequest(type=1)  # type: ignore[arg-type]
        assert list((await client.call("List", request)).names) == ["a"], "told so, and lied to"


async def test_settling_goes_through_the_writer(daemon: Daemon, client: Client) -> None:
    lost = transaction(namespace("lost"))
    request = pb.GetOutcomeRequest(transaction_id=lost.id, settle=True)
    busy = [asyncio.create_task(client.commit(transaction(namespace(f"b{n}")))) for n in range(20)]
    reply = await client.call("GetOutcome", request)
    assert wire.decode_outcome(reply, lost.id).state == "cancelled"
    await asyncio.gather(*busy)
    with pytest.raises(InvalidInput) as caught:
        await client.commit(lost)
    assert caught.value.kind == "id_cancelled"


async def test_a_key_is_looked_for_without_a_commit(daemon: Daemon, client: Client) -> None:
    asked = msgspec.structs.replace(transaction(namespace("keyed")), key="load-1")
    request = pb.GetOutcomeRequest(key="load-1")
    assert wire.decode_outcome(await client.call("GetOutcome", request), "").state == "unknown"
    assert daemon.journal.head.version == 0, "the call writes nothing"
    committed = await client.commit(asked)
    await client.commit(transaction(namespace("later")))
    found = wire.decode_outcome(await client.call("GetOutcome", request), "")
    assert found.commit == msgspec.structs.replace(committed, duplicate=True)
    for wrong in (
        pb.GetOutcomeRequest(key="load-1", transaction_id=asked.id),
        pb.GetOutcomeRequest(key="load-1", settle=True),
        pb.GetOutcomeRequest(key="k" * 2000),
        pb.GetOutcomeRequest(),
    ):
        with pytest.raises(InvalidInput):
            await client.call("GetOutcome", wrong)


async def test_settling_and_committing_at_once_agree(daemon: Daemon, client: Client) -> None:
    """A settling call and a commit agree, whether they are sent one after the other, staggered or concurrently."""
    states = []
    for is_committed_first, turns in itertools.product((True, False), (None, 0, 1, 2, 5, 10)):
        asked = transaction(namespace(f"race{len(states)}"))
        request = pb.GetOutcomeRequest(transaction_id=asked.id, settle=True)
        calls = [client.commit(asked), client.call("GetOutcome", request)]
        first, second = calls if is_committed_first else reversed(calls)
        one = asyncio.ensure_future(first)
        if turns is None:
            await asyncio.wait([one])
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        answers = await asyncio.gather(one, second, return_exceptions=True)
        answer, reply = answers if is_committed_first else reversed(answers)
        outcome = wire.decode_outcome(reply, asked.id)
        states.append(outcome.state)
        again = wire.decode_outcome(await client.call("GetOutcome", request), asked.id)
        assert again == outcome, "final is final"
        name = namespace_name(f"race{len(states) - 1}")
        (stored,) = (await daemon.journal.load(None, [name])).objects
        if outcome.state == "committed":
            assert isinstance(answer, Committed)
            assert stored is not None
        else:
            assert outcome.state == "cancelled"
            assert isinstance(answer, InvalidInput | Conflict), answer
            assert stored is None
    assert (states[0], states[6]) == ("committed", "cancelled"), "with certainty where one is answered before"


async def test_settling_across_expired_versions_is_honest() -> None:
    """A settled transaction is cancelled, but its outcome stays unknown if its version may have expired."""
    async with daemon_of() as daemon, daemon.client() as client:
        asked = transaction(namespace("a"))
        await client.commit(asked)
        await client.commit(transaction(namespace("b"), begin=1))
        lake = Lake(daemon.storage)
        await lake.expire(below=2)
    async with daemon_of(daemon.storage) as daemon, daemon.client() as client:
        request = pb.GetOutcomeRequest(transaction_id=asked.id, settle=True, since_version=0)
        for _ in range(2):
            with pytest.raises(Expired) as caught:
                await client.call("GetOutcome", request)
            assert caught.value.oldest == 2
            assert asked.id in caught.value.message
        assert daemon.journal.head.version == 3, "the cancellation was committed, once"
        with pytest.raises(InvalidInput) as cancelled:
            await client.commit(transaction(namespace("a"), begin=2, id=asked.id))
        assert cancelled.value.kind == "id_cancelled"


async def test_a_repeated_key_is_answered_with_the_first_transaction(client: Client) -> None:
    first = msgspec.structs.replace(transaction(namespace("a")), key="dag/1")
    again = msgspec.structs.replace(transaction(namespace("b")), key="dag/1")
    answers = await asyncio.gather(client.commit(first), client.commit(again))
    assert sorted(answer.duplicate for answer in answers) == [False, True]
    (winner,) = [answer.transaction_id for answer in answers if not answer.duplicate]
    assert winner in (first.id, again.id)
    assert {answer.transaction_id for answer in answers} == {winner}


async def test_a_conflict_names_the_other_side(client: Client) -> None:
    theirs = transaction(namespace("a"))
    await client.commit(theirs)
    with pytest.raises(Conflict) as caught:
        await client.commit(transaction(namespace("a")))
    conflict = caught.value
    assert (conflict.mine, conflict.theirs) == ("create namespace a", "create namespace a")
    assert (conflict.transaction_id, conflict.version) == (theirs.id, 1)
    assert conflict.principal == "me"
    assert conflict.committed_at_millis > 1_700_000_000_000
    assert not conflict.retryable


# --- refusals --------------------------------------------------------------------------------------


def _many_names() -> pb.LoadRequest:
    return pb.LoadRequest(names=[wire.encode_name(CATALOG)] * (wire.NAMES_COUNT_MAX + 1))


def _unknown_kind() -> pb.ListRequest:
    request = pb.ListRequest()
    request.type = 99  # type: ignore[assignment]
    return request


@pytest.mark.parametrize(
    ("method", "request_of", "kind"),
    [
        ("Load", _many_names, "too_large"),
        ("List", _unknown_kind, "not_supported"),
        ("List", lambda: pb.ListRequest(type=2, namespace_name="no such"), "bad_name"),  # type: ignore[arg-type]
        ("List", lambda: pb.ListRequest(type=2, namespace_name="none"), "no_namespace"),  # type: ignore[arg-type]
        ("Resolve", lambda: pb.ResolveRequest(at=wire.encode_at(9)), "no_version"),
        ("Commit", lambda: pb.CommitRequest(transaction_id="mine"), "bad_argument"),
        ("Commit", lambda: pb.CommitRequest(transaction_id="0" * 8), "bad_argument"),
        ("GetOutcome", lambda: pb.GetOutcomeRequest(transaction_id="x"), "bad_argument"),
    ],
)
async def test_refusals(client: Client, method: str, request_of: Callable[[], Any], kind: str) -> None:
    with pytest.raises(AlpheusError) as caught:
        await client.call(method, request_of())
    assert caught.value.kind == kind


async def test_refused_streams(client: Client) -> None:
    with pytest.raises(InvalidInput) as caught:
        await client.events(after=7)
    assert caught.value.kind == "future_version"
    with pytest.raises(InvalidInput) as caught:
        await client.events(after="not a token")
    assert caught.value.kind == "bad_token"
    with pytest.raises((NotFound, InvalidInput)):
        await client.stream("Log", pb.LogRequest(until_version=9))


@pytest.mark.parametrize("method", ["GetInfo", "Resolve", "Load", "List", "Commit", "GetOutcome"])
async def test_bytes_that_are_no_request(client: Client, method: str) -> None:
    raw = client.channel.unary_unary(f"/alpheus.v1.Catalog/{method}")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(b"\xff\xff\xff\xff")
    assert isinstance(error_of(caught.value), InvalidInput)


async def test_a_bug_is_internal_with_its_id_in_the_log(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*arguments: Any, **others: Any) -> Any:
        raise RuntimeError("a bug")

    telemetry.configure("info")
    monkeypatch.setattr(daemon.journal, "info", broken)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call("GetInfo", pb.GetInfoRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "request_failed"]
    assert line["request_id"] in (caught.value.details() or "")
    assert "a bug" in line["exception"]
    assert (line["method"], line["level"]) == ("GetInfo", "error")

    monkeypatch.setattr(daemon.journal, "commit_group", broken)
    asked = transaction(namespace("x"))
    with pytest.raises(OutcomeUnknown) as unknown:
        await client.commit(asked)
    assert unknown.value.transaction_id == asked.id


async def test_too_large_a_request_leaves_the_service_alive() -> None:
    async with daemon_of(request_bytes_max=65536) as daemon, daemon.client() as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.commit(transaction(namespace("big", p="x" * 70_000)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.commit(transaction(namespace("small")))).version == 1


async def test_storage_that_is_away_is_unavailable(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: Any, **others: Any) -> Any:
        raise Unavailable("the store is away")

    with monkeypatch.context() as broken:
        for method in ("publish", "stat", "exists"):
            broken.setattr(daemon.storage, method, away)
        asked = transaction(namespace("x"))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await client.commit(asked)
        with pytest.raises(Unavailable):
            await client.call("Resolve", pb.ResolveRequest())
    assert isinstance(await client.commit(asked), Committed)


# --- streams ---------------------------------------------------------------------------------------


async def test_a_subscriber_that_stops_reading_is_cut_off_with_a_token() -> None:
    bounds = {"subscriber_write_timeout_seconds": 0.2, "event_batch_bytes_max": 64 * 1024}
    async with (
        daemon_of(**bounds) as daemon,
        daemon.client(**{"http2.bdp_probe": 0}) as slow,
        daemon.client() as client,
    ):
        for number in range(30):
            await client.commit(transaction(namespace(f"n{number}", p="x" * 50_000)))
        call = slow.stub.Events(wire.encode_events_request(wire.EventsQuery(details=True, follow=True)))
        seen = [event.version for event in (await call.read()).events]
        # All other calls continue meanwhile.
        assert [event.version for event in await client.events()] == list(range(31))
        while daemon.journal.head.version < 31:
            await client.commit(transaction(namespace("late"), begin=30))
        health = health_pb2_grpc.HealthStub(client.channel)
        await health.Check(health_pb2.HealthCheckRequest())
        await asyncio.sleep(0.5)  # the test needs a real delay
        told: Exception | None = None
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                seen += [event.version for event in message.events]
        except grpc.aio.AioRpcError as error:
            told = error_of(error)
        assert isinstance(told, Exhausted)
        assert told.kind == "subscriber_too_slow"
        assert seen == list(range(len(seen))), "whole, in order, up to the cut"
        assert len(seen) < 31
        rest = [event.version for event in await client.events(after=told.resume_token)]
        assert rest[-1] == 31
        assert rest[0] <= len(seen), "no gap: the token is at or before the last event that came"


async def test_a_subscriber_that_goes_away_is_forgotten(daemon: Daemon, client: Client) -> None:
    async with daemon.client() as leaving:
        call = leaving.stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await call.read()
        call.cancel()
    assert (await client.commit(transaction(namespace("x")))).version == 1
    assert [event.version for event in await client.events()] == [0, 1]


async def test_subscribers_are_bounded() -> None:
    async with daemon_of(subscribers_max=1) as daemon, daemon.client() as client:
        call = client.stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await call.read()
        with pytest.raises(Exhausted) as caught:
            await client.events()
        assert caught.value.kind == "too_many_subscribers"
        assert caught.value.retry_after == 5.0
        call.cancel()


async def test_shutdown_ends_streams_and_answers_what_is_in_flight() -> None:
    storage = MemoryStorage()
    stack = daemon_of(storage, group_ahead_count_min=0)  # so that "b" waits until "a" is stored
    daemon = await stack.__aenter__()
    async with daemon.client() as client:
        call = client.stub.Events(wire.encode_events_request(wire.EventsQuery(follow=True)))
        await call.read()
        with held_publish(daemon) as (entered, gate):
            in_flight = asyncio.create_task(client.commit(transaction(namespace("a"))))
            await entered.wait()
            waiting = asyncio.create_task(client.commit(transaction(namespace("b"))))
            info = await client.call("GetInfo", pb.GetInfoRequest())  # queued when this is answered
            assert info.version == 0
            leaving = asyncio.create_task(stack.__aexit__(None, None, None))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await drain(call)
            ended = error_of(caught.value)
            assert isinstance(ended, Unavailable)
            assert ended.kind == "shutting_down"
            gate.set()
            assert (await in_flight).version == 1
            with pytest.raises(Unavailable) as refused:
                await waiting
            assert refused.value.kind == "shutting_down"
            await leaving
    reopened = await Journal.open(storage)
    assert reopened.head.version == 1


# --- listeners -------------------------------------------------------------------------------------


async def test_health(daemon: Daemon, client: Client) -> None:
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", "alpheus.v1.Catalog"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_taken_port_is_said(daemon: Daemon) -> None:
    with pytest.raises(Unavailable) as caught:
        async with daemon_of(daemon.storage, listen=daemon.address):
            pass
    assert daemon.address in caught.value.message


async def test_a_socket_and_a_taken_one(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/a.sock"
    storage = MemoryStorage()
    async with daemon_of(storage, listen=address) as daemon, daemon.client() as client:
        assert daemon.address == address
        assert (await client.commit(transaction(namespace("x")))).version == 1
        with pytest.raises(Unavailable):
            async with daemon_of(storage, listen=address):
                pass
        assert (await client.call("GetInfo", pb.GetInfoRequest())).version == 1
    async with daemon_of(storage, listen=address) as daemon, daemon.client() as client:
        assert (await client.call("GetInfo", pb.GetInfoRequest())).version == 1


@pytest.mark.parametrize("error", [Unavailable("no"), ValueError("a bug")])
async def test_a_status_for_a_peer_that_is_gone_ends_the_call(error: Exception) -> None:
    """If the peer is gone, sending a status cancels the call, and gRPC does not report an error of the daemon."""

    class Gone:
        async def abort(self, *arguments: object) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")

    with pytest.raises(asyncio.CancelledError):
        await service._abort(Gone(), error, "1")  # type: ignore[arg-type]
