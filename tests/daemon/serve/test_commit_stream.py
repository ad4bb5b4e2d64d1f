"""CommitMany: answers by id, back-pressure, the state after a broken stream, and the client's end of the stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from alpheus.session.commit_stream import CommitStream as ClientStream
from alpheus.session.remote import RemoteAccess
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.serve.calls import Calls
from alpheus_daemon.serve.commit_stream import CommitStream
from alpheus_daemon.serve.requests import read
from alpheus_daemon.serve.writer import Writer
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.commit.committer import Answer
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb
from alpheus_pb.v1 import service_pb2_grpc

IDENTITIES = RandomIdentities()


def transaction(number: int, name: str = "ns") -> Transaction:
    return Transaction(
        id=f"01920000-0000-7000-8000-{number:012d}",
        begin_version=0,
        operations=(CreateNamespace(name=name, namespace_id="x"),),
    )


def asked(*numbers: int, withdrawn: Sequence[int] = (), millis: int = 0) -> bytes:
    return pb.CommitManyRequest(
        transactions=[wire.encode_transaction_request(transaction(number)) for number in numbers],
        withdrawn=[transaction(number).id for number in withdrawn],
        timeout_millis=millis,
    ).SerializeToString()


class HeldCommitter:
    """Holds each group until the gate opens. Commits odd numbers, and refuses even ones with a Conflict that has all
    fields."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = asyncio.Event()

    async def commit_group(
        self,
        transactions: Sequence[Transaction],
        *,
        deadline_seconds: float | None = None,
        on_publish: Callable[[], None] | None = None,
    ) -> list[Answer]:
        self.groups.append([int(t.id[-12:]) for t in transactions])
        await self.gate.wait()
        version = len(self.groups)
        return [
            Committed(version=version, transaction_id=t.id, created_at_millis=7, token="t")
            if int(t.id[-12:]) % 2
            else refusal(t.id)
            for t in transactions
        ]


def refusal(id: str) -> Conflict:
    return Conflict(
        f"{id}: mine against theirs", mine="mine", theirs="theirs", transaction_id="x", principal="p",
        committed_at_millis=5, retryable=True, version=3, hint="again",
    )  # fmt: skip


def open_calls() -> Calls:
    return Calls(count_max=100, bytes_max=1 << 30, one_bytes_max=1 << 30)


class Rig:
    def __init__(self, committer: HeldCommitter, writer: Writer, stream: CommitStream, calls: Calls) -> None:
        self.committer = committer
        self.writer = writer
        self.stream = stream
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.ending = asyncio.Event()
        self.calls = calls
        self.reads = 0
        self.task: asyncio.Task[None] | None = None

    async def read(self) -> bytes | None:
        self.reads += 1
        return await self.requests.get()

    def start(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.stream.run(self.read, self.written.put, self.ending))
        return self.task

    async def answers(self, count: int) -> dict[int, Committed | AlpheusError]:
        found: dict[int, Committed | AlpheusError] = {}
        while len(found) < count:
            for answer in pb.CommitManyResponse.FromString(await self.written.get()).answers:
                found[int(answer.transaction_id[-12:])] = wire.decode_commit_answer(answer)
        return found


@contextlib.asynccontextmanager
async def rig(
    *, count_max: int = 100, bytes_max: int = 1 << 20, queue_count_max: int = 100
) -> AsyncIterator[Rig]:
    committer = HeldCommitter()
    writer = Writer(
        committer,
        group_count_max=100,
        group_bytes_max=1 << 20,
        queue_count_max=queue_count_max,
        queue_bytes_max=1 << 20,
        timeout_seconds=60.0,
    )
    running = asyncio.create_task(writer.run())
    calls = open_calls()
    stream = CommitStream(
        writer, source="s", count_max=count_max, bytes_max=bytes_max, calls=calls,
        refused=lambda error, transaction_id: None,
    )  # fmt: skip
    r = Rig(committer, writer, stream, calls)
    r.start()
    yield r
    committer.gate.set()
    r.requests.put_nowait(None)
    assert r.task is not None
    await asyncio.gather(r.task, return_exceptions=True)
    writer.close()
    await running
    assert (r.calls.count, r.calls.bytes) == (0, 0)
    assert writer.in_flight_count == 0


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_each_transaction_has_its_answer_under_its_id() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        r.requests.put_nowait(asked(2, 3))
        await turns()
        assert r.calls.bytes > 0
        r.committer.gate.set()
        answers = await r.answers(3)
        assert r.committer.groups == [[1], [2, 3]]
        assert isinstance(answers[1], Committed)
        assert (answers[1].version, answers[3].version) == (1, 2)
        error, whole = answers[2], refusal(transaction(2).id)
        assert isinstance(error, Conflict)
        assert vars(error) == vars(whole), "all that Commit would have raised"


async def test_what_is_no_transaction_fails_alone() -> None:
    async with rig() as r:
        message = pb.CommitManyRequest.FromString(asked(1, 3))
        message.transactions.add(transaction_id="nonsense")
        message.transactions.add(
            transaction_id=transaction(5).id, operations=[pb.CommitRequest().operations.add()]
        )
        r.requests.put_nowait(message.SerializeToString())
        r.committer.gate.set()
        found: dict[str, Committed | AlpheusError] = {}
        while len(found) < 4:
            for answer in pb.CommitManyResponse.FromString(await r.written.get()).answers:
                found[answer.transaction_id] = wire.decode_commit_answer(answer)
        assert isinstance(found["nonsense"], InvalidInput)
        assert isinstance(found[transaction(5).id], InvalidInput)
        assert isinstance(found[transaction(3).id], Committed)


async def test_a_message_that_is_none_ends_the_stream() -> None:
    async with rig() as r:
        r.requests.put_nowait(b"\xff\xff")
        assert r.task is not None
        with pytest.raises(InvalidInput):
            await r.task


async def test_at_its_bound_the_stream_is_not_read() -> None:
    for bounds in ({"count_max": 2}, {"bytes_max": 100}):
        async with rig(**bounds) as r:
            for number in (1, 3, 5, 7):
                r.requests.put_nowait(asked(number, number + 100))
            await turns()
            assert r.reads == 1, "the first message fills it"
            r.committer.gate.set()
            assert len(await r.answers(8)) == 8


async def test_a_broken_stream_withdraws_what_waits_and_leaves_what_is_sealed() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        r.requests.put_nowait(asked(3, 5))
        await turns()
        assert (r.writer.queue_count, r.writer.in_flight_count) == (2, 1)
        assert r.task is not None
        r.task.cancel()
        await asyncio.wait([r.task])
        assert (r.writer.queue_count, r.writer.in_flight_count) == (0, 1)
        # The sealed transaction continues: the client finds its outcome by id, on a new stream or with a single call.
        again = asyncio.create_task(r.writer.submit(transaction(1)))
        await turns()
        r.committer.gate.set()
        assert (await again).version == 1
        assert r.committer.groups == [[1]]


async def test_a_peer_that_takes_no_answer_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends with the error of the transport, which tells the service that the peer is gone."""

    def fail(_: bytes) -> None:
        raise TimeoutError

    async with rig() as r:
        monkeypatch.setattr(r.written, "put_nowait", fail)
        r.requests.put_nowait(asked(1))
        await turns()
        r.committer.gate.set()
        assert r.task is not None
        with pytest.raises(TimeoutError):
            await r.task


async def test_what_another_call_waits_for_is_not_withdrawn() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        other = asyncio.create_task(r.writer.submit(transaction(3)))
        r.requests.put_nowait(asked(3, 3))
        await turns()
        assert r.task is not None
        r.task.cancel()
        r.committer.gate.set()
        assert (await other).version == 2


async def test_withdrawn_by_the_client() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        r.requests.put_nowait(asked(3, 5))
        await turns()
        r.requests.put_nowait(asked(withdrawn=(1, 3)))
        await turns()
        assert r.writer.queue_count == 1
        r.committer.gate.set()
        assert list(await r.answers(1)) == [5]
        assert r.committer.groups == [[1], [5]], "what is sealed goes on"


async def test_too_long_in_the_queue() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        r.requests.put_nowait(asked(3, millis=1))
        answer = (await r.answers(1))[3]
        assert isinstance(answer, Unavailable)
        assert "not applied" in answer.message


async def test_the_end_of_the_daemon_answers_what_was_sent() -> None:
    async with rig() as r:
        r.requests.put_nowait(asked(1))
        await turns()
        r.requests.put_nowait(asked(3))
        await turns()
        r.writer.close()
        r.ending.set()
        r.committer.gate.set()
        answers = await r.answers(2)
        assert isinstance(answers[1], Committed)
        assert isinstance(answers[3], Unavailable)
        assert answers[3].kind == "shutting_down"
        assert r.task is not None
        await r.task


async def test_every_line_of_the_log_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Log lines about commits, sent as the clients send them, name the transaction and its answer."""
    telemetry.configure("debug")
    journal = await Journal.create(MemoryStorage())
    await journal.load_state()
    async with running(Config(url="memory://x", listen="127.0.0.1:0"), journal) as address:
        access = RemoteAccess(f"grpc://{address}", timeout=30)
        asked = [_create(name) for name in ("a", "b", "a", "c", "c", "d")]
        done = await asyncio.gather(*map(access.commit, asked[:-1]), return_exceptions=True)
        done.append(await access.commit(asked[-1]))
        await access.close()
    await journal.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    said = {
        line["transaction_id"]: line
        for line in lines
        if line["event"] in ("commit_answered", "request_refused") and line["method"] == "CommitMany"
    }
    assert len(asked) == len(said)
    for sent, answer in zip(asked, done, strict=True):
        line = said[sent.id]
        if isinstance(answer, Committed):
            assert (line["event"], line["version"]) == ("commit_answered", answer.version)
        else:
            assert isinstance(answer, AlpheusError)
            assert (line["event"], line["kind"]) == ("request_refused", answer.kind)
    assert sum(isinstance(answer, AlpheusError) for answer in done) == 2
    # All transactions of one message have one request id: the stream's id and the message's number.
    (stream,) = [
        line["request_id"] for line in lines if line["event"] == "request" and "Many" in line["method"]
    ]
    messages = {line["request_id"] for line in said.values()}
    assert messages == {f"{stream}.{number}" for number in range(1, len(messages) + 1)}
    assert len(messages) > 1
    groups = [line for line in lines if line["event"] == "group_stored"]
    assert {id for line in groups for id in line["transaction_ids"]} == set(said)


async def test_refusals_of_any_call_say_of_which_transaction(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("debug")
    journal = await Journal.create(MemoryStorage())
    await journal.load_state()
    newer = wire.encode_transaction_request(transaction(3))
    newer.MergeFromString(b"\xa2\x38\x01x")  # of field 900
    async with (
        running(Config(url="memory://x", listen="127.0.0.1:0"), journal) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub: Any = service_pb2_grpc.CatalogStub(channel)
        for call, request in (
            (stub.Commit, newer),
            (stub.GetOutcome, pb.GetOutcomeRequest(transaction_id="mine", settle=True)),
            (stub.LoadTransaction, pb.LoadTransactionRequest(transaction_id="mine")),
            (stub.DiscardTransaction, pb.DiscardTransactionRequest(transaction_id="mine")),
            (stub.SaveTransaction, pb.CommitRequest(transaction_id="mine")),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request)
    await journal.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    refused = {line["method"]: line for line in lines if line["event"] == "request_refused"}
    assert len(refused) == 5
    for method, line in refused.items():
        assert line["transaction_id"] == (newer.transaction_id if method == "Commit" else "mine")
        assert line["request_id"]


def _create(name: str) -> Transaction:
    operation = CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4())
    return Transaction(id=IDENTITIES.uuid7(), begin_version=0, operations=(operation,), principal="me")


# --- the client's end


class FakeCall:
    """The client's side of one stream."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[pb.CommitManyRequest] = asyncio.Queue()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.slow = asyncio.Event()
        self.slow.set()

    async def write(self, message: pb.CommitManyRequest) -> None:
        self.sent.put_nowait(message)
        await self.slow.wait()

    async def read(self) -> Any:
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def answer(self, *numbers: int) -> None:
        answers = [
            wire.encode_commit_answer(
                transaction(n).id,
                Committed(version=n, transaction_id=transaction(n).id, created_at_millis=0, token=""),
            )
            for n in numbers
        ]
        self.replies.put_nowait(pb.CommitManyResponse(answers=answers))

    def break_off(self, code: grpc.StatusCode) -> None:
        empty = grpc.aio.Metadata()
        self.replies.put_nowait(grpc.aio.AioRpcError(code, empty, empty, "broken"))

    def cancel(self) -> None:
        return


class Client:
    def __init__(self, timeout_seconds: float = 60.0) -> None:
        self.calls: list[FakeCall] = []
        self.stream = ClientStream(
            self._open,
            timeout_seconds=timeout_seconds,
            failure=lambda error, id: OutcomeUnknown(f"{error.code()}", transaction_id=id),
        )

    def _open(self) -> FakeCall:
        self.calls.append(FakeCall())
        return self.calls[-1]

    def commit(self, number: int) -> asyncio.Task[Committed | None]:
        request = wire.encode_transaction_request(transaction(number))
        return asyncio.create_task(self.stream.commit(request))


async def test_a_commit_goes_at_once_and_those_after_it_together() -> None:
    client = Client()
    first = client.commit(1)
    await turns()
    (call,) = client.calls
    call.slow.clear()
    assert [t.transaction_id[-1] for t in call.sent.get_nowait().transactions] == ["1"]
    second = client.commit(2)  # its message is being sent, slowly
    await turns()
    rest = [client.commit(number) for number in (3, 4, 5)]
    await turns()
    assert call.sent.qsize() == 1
    call.slow.set()
    await turns()
    assert [len(call.sent.get_nowait().transactions) for _ in range(2)] == [1, 3]
    call.answer(5, 4, 3)
    call.answer(1, 2)
    answers = await asyncio.gather(first, second, *rest)
    assert [a.version for a in answers if a] == [1, 2, 3, 4, 5]
    await client.stream.close()


async def test_no_message_holds_more_than_a_daemon_takes() -> None:
    """Thousands of commits are withdrawn while a message is being sent, and no message exceeds the daemon's limit."""
    client = Client()
    tasks = [client.commit(number) for number in range(2_500)]
    await turns()
    (call,) = client.calls
    sent = [call.sent.get_nowait() for _ in range(call.sent.qsize())]
    assert sum(len(message.transactions) for message in sent) == 2_500
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await turns()
    sent += [call.sent.get_nowait() for _ in range(call.sent.qsize())]
    assert sum(len(message.withdrawn) for message in sent) == 2_500
    assert max(len(message.withdrawn) for message in sent) <= wire.TRANSACTIONS_COUNT_MAX // 10
    await client.stream.close()


async def test_a_stream_that_breaks_leaves_doubt_and_the_next_commit_opens_another() -> None:
    client = Client()
    task = client.commit(1)
    await turns()
    client.calls[0].break_off(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(OutcomeUnknown) as caught:
        await task
    assert caught.value.transaction_id == transaction(1).id
    again = client.commit(1)
    await turns()
    client.calls[1].answer(1)
    answer = await again
    assert answer is not None
    assert answer.version == 1
    await client.stream.close()


async def test_what_was_not_sent_when_it_broke_is_not_in_doubt() -> None:
    client = Client()
    first = client.commit(1)
    await turns()
    call = client.calls[0]
    call.slow.clear()
    second = client.commit(2)
    await turns()
    third = client.commit(3)
    await turns()
    call.break_off(grpc.StatusCode.UNAVAILABLE)
    answers = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [type(a) for a in answers] == [OutcomeUnknown, OutcomeUnknown, Unavailable]
    await client.stream.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_stream_that_is_not_taken_sends_its_commits_alone(code: grpc.StatusCode) -> None:
    client = Client()
    task = client.commit(1)
    await turns()
    client.calls[0].break_off(code)
    assert await task is None
    later = client.commit(2)
    await turns()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        assert await later is None
        assert len(client.calls) == 1, "asked once"
    else:
        client.calls[1].answer(2)
        assert await later is not None
    await client.stream.close()


async def test_a_caller_that_leaves_withdraws() -> None:
    client = Client(timeout_seconds=0.01)
    kept, left = client.commit(1), client.commit(2)
    await turns()
    left.cancel()
    await turns()
    (call,) = client.calls
    call.sent.get_nowait()
    assert list(call.sent.get_nowait().withdrawn) == [transaction(2).id]
    with pytest.raises(OutcomeUnknown):
        await kept
    await turns()
    assert list(call.sent.get_nowait().withdrawn) == [transaction(1).id]
    await client.stream.close()


async def test_a_large_transaction_goes_alone() -> None:
    client = Client()
    request = wire.encode_transaction_request(transaction(1))
    request.message = "x" * (300 << 10)
    assert await client.stream.commit(request) is None
    assert not client.calls


async def test_a_newer_clients_message_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a message grows only linearly with the number of transactions that have unknown fields."""
    reads, refused = Counter[str](), Counter[str]()

    def reading(kind: Any, data: bytes) -> Any:
        reads[kind.DESCRIPTOR.name] += 1
        return read(kind, data)

    for module in ("serve.commit_stream", "serve.requests"):
        monkeypatch.setattr(f"alpheus_daemon.{module}.read", reading)
    unknown = b"\xc0\x3e\x01"
    items = [
        pb.CommitRequest.FromString(
            pb.CommitRequest(transaction_id=str(uuid.uuid4()), isolation=1).SerializeToString() + unknown
        )
        for _ in range(50)
    ]
    stream = CommitStream(
        SimpleNamespace(limits=SimpleNamespace(timeout_seconds=30.0)),  # type: ignore[arg-type]
        source="x",
        count_max=100,
        bytes_max=1 << 20,
        calls=open_calls(),
        refused=lambda error, _: refused.update([error.kind]),
    )
    await stream._receive(pb.CommitManyRequest(transactions=items).SerializeToString())
    assert refused == {"not_supported": 50}
    # The message is read without its transactions, then each transaction twice: the second time to name the unknown
    # field.
    assert reads == {"CommitManyRequest": 1, "CommitRequest": 50 * 2}
