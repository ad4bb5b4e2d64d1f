"""Requests of a newer client: an unknown field at any depth is refused by name, and nothing is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_daemon.serve import requests
from alpheus_daemon.serve.requests import (
    NAMED_SIZE_BYTES_MAX,
    SOUGHT_MAX,
    has_own_unknown,
    is_known,
    newer_field,
    parse,
)
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.format import namespace_name
from alpheus_journal.journal import Journal, software_version
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import CreateNamespace, Read, Transaction
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, objects_pb2, service_pb2_grpc
from alpheus_pb.v1 import service_pb2 as pb

IDENTITIES = RandomIdentities()
CATALOG = pb.DESCRIPTOR.services_by_name["Catalog"]
UNKNOWN = b"\xa2\x38\x04prod"
"""Field 900 with a string value."""


def with_unknown(message: Message, part: Message | None = None) -> bytes:
    """Return `message` with the unknown field 900 in `part`, or in the message itself."""
    (message if part is None else part).MergeFromString(UNKNOWN)
    return message.SerializeToString()


def commit_request(name: str = "x", *, serializable: bool = False) -> pb.CommitRequest:
    read = Read(type="NAMESPACE_DESCRIBE", name=namespace_name("y"))
    return wire.encode_transaction_request(
        Transaction(
            id=IDENTITIES.uuid7(),
            begin_version=0,
            operations=(CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4()),),
            serializable=serializable,
            reads=(read,) if serializable else (),
        )
    )


class Rig:
    def __init__(self, journal: Journal, channel: grpc.aio.Channel) -> None:
        self.journal = journal
        self.channel = channel
        self.stub: Any = service_pb2_grpc.CatalogStub(channel)

    async def send(self, method: str, data: bytes) -> None:
        """Send the request and raise the error that the daemon returned."""
        path = f"/alpheus.v1.Catalog/{method}"
        try:
            if CATALOG.methods_by_name[method].server_streaming:
                async for _ in self.channel.unary_stream(path)(data):
                    pass
            else:
                await self.channel.unary_unary(path)(data)
        except grpc.aio.AioRpcError as error:
            detail = dict(error.trailing_metadata() or ()).get(errors.ERROR_METADATA_KEY)
            if not isinstance(detail, bytes):
                raise
            raise errors.error_of_detail(detail) from None


@asynccontextmanager
async def served() -> AsyncIterator[Rig]:
    journal = await Journal.create(MemoryStorage())
    await journal.load_state()
    config = Config(url="memory://x", listen="127.0.0.1:0")
    async with running(config, journal) as address, grpc.aio.insecure_channel(address) as channel:
        yield Rig(journal, channel)
    await journal.close()


def _load_name() -> bytes:
    name = wire.encode_name(namespace_name("x"))
    return pb.RawLoadRequest(names=[with_unknown(name)]).SerializeToString()


def _of(message: Message, part: Callable[[Any], Message]) -> Callable[[], bytes]:
    def make() -> bytes:
        copy = type(message).FromString(message.SerializeToString())
        return with_unknown(copy, part(copy))

    return make


def _read_detail() -> bytes:
    request = commit_request(serializable=True)
    detail = actions_pb2.ActionDetail.FromString(getattr(request.reads[0], "def"))
    setattr(request.reads[0], "def", with_unknown(detail))
    return request.SerializeToString()


def _isolation() -> bytes:
    request = commit_request()
    request.isolation = 7  # type: ignore[assignment]
    return request.SerializeToString()


def _many() -> pb.CommitRequest:
    """Return a request with so many operations that a thread decodes it."""
    request = commit_request()
    for number in range(1, 701):
        request.operations.add().create_namespace.name = f"n{number}"
    return request


def _append() -> pb.CommitRequest:
    request = commit_request()
    operation = request.operations.add()
    operation.append_files.segments.add(path="x")
    return request


def _retype() -> pb.CommitRequest:
    request = commit_request()
    request.operations.add().update_table.retype_columns["c"].name = "c"
    return request


CASES: list[tuple[str, Callable[[], bytes], str]] = [
    ("Resolve", _of(pb.ResolveRequest(at=pb.VersionRef()), lambda r: r.at), "900 of ResolveRequest.at"),
    ("Load", _of(pb.LoadRequest(at=pb.VersionRef()), lambda r: r.at), "900 of LoadRequest.at"),
    ("Load", _load_name, "900 of ObjectName"),
    ("List", _of(pb.ListRequest(at=pb.VersionRef()), lambda r: r.at), "900 of ListRequest.at"),
    ("Events", _of(pb.EventsRequest(also=[pb.ObjectName()]), lambda r: r.also[0]), "900 of EventsRequest.also[0]"),
    ("Diff", _of(pb.DiffRequest(to=pb.VersionRef()), lambda r: r.to), "900 of DiffRequest.to"),
    ("Acknowledge", _of(pb.AcknowledgeRequest(position=objects_pb2.SubscriptionPosition()), lambda r: r.position),
     "900 of AcknowledgeRequest.position"),
    ("Commit", _of(commit_request(), lambda r: r.operations[0]), "900 of CommitRequest.operations[0]"),
    ("Commit", _of(commit_request(), lambda r: r.operations[0].create_namespace),
     "900 of CommitRequest.operations[0].create_namespace"),
    ("Commit", _of(_append(), lambda r: r.operations[1].append_files.segments[0]),
     "900 of CommitRequest.operations[1].append_files.segments[0]"),
    ("Commit", _of(_retype(), lambda r: r.operations[1].update_table.retype_columns["c"]),
     "900 of CommitRequest.operations[1].update_table.retype_columns['c']"),
    ("Commit", _of(_many(), lambda r: r.operations[700].create_namespace),
     "900 of CommitRequest.operations[700].create_namespace"),
    ("Commit", _of(_many(), lambda r: r), "900 of CommitRequest"),
    ("Commit", _read_detail, "parts of CommitRequest.reads[0]"),
    ("Commit", _isolation, "isolation 7"),
    ("SaveTransaction", _of(commit_request(), lambda r: r.operations[0].create_namespace),
     "900 of CommitRequest.operations[0].create_namespace"),
    ("SaveTransaction", _isolation, "isolation 7"),
]  # fmt: skip


async def test_a_field_of_a_newer_client_is_refused_by_name() -> None:
    async with served() as rig:
        for method, make, what in CASES:
            with pytest.raises(InvalidInput) as caught:
                await rig.send(method, make())
            assert caught.value.kind == "not_supported", method
            assert what in caught.value.message, method
            assert "upgrade the daemon" in caught.value.hint
        assert rig.journal.head.version == 0, "nothing was done"


def _asked_alone(*, streaming: bool) -> list[str]:
    """Return the names of the methods with one request, without GetInfo, which reports the release."""
    return [
        method.name
        for method in CATALOG.methods
        if method.server_streaming is streaming and not method.client_streaming and method.name != "GetInfo"
    ]


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_a_newer_client_asks_of_streams_is_refused(streaming: bool) -> None:
    """Every method, also one that streams its answer, refuses an unknown field."""
    methods = _asked_alone(streaming=streaming)
    assert len(methods) > 5
    async with served() as rig:
        for method in methods:
            request = CATALOG.methods_by_name[method].input_type
            with pytest.raises(InvalidInput) as caught:
                await rig.send(method, with_unknown(getattr(pb, request.name)()))
            assert caught.value.kind == "not_supported", method
            assert f"field 900 of {request.name}" in caught.value.message
        assert rig.journal.head.version == 0


async def test_whoever_asks_is_told_the_release() -> None:
    """GetInfo answers a request with unknown fields too, because a newer client needs the release that it reports."""
    async with served() as rig:
        for request in (with_unknown(pb.GetInfoRequest()), b""):
            reply = await rig.channel.unary_unary("/alpheus.v1.Catalog/GetInfo")(request)
            told = pb.GetInfoResponse.FromString(reply)
            assert told.software_version == software_version()
            assert told.protocol_version == wire.PROTOCOL_VERSION
            assert (told.catalog_id, told.version) == (rig.journal.catalog_id, rig.journal.head.version)


async def test_a_name_of_a_newer_client_finds_no_kept_answer() -> None:
    async with served() as rig:
        whole = pb.LoadRequest(names=[wire.encode_name(namespace_name("x"))])
        await rig.send("Load", whole.SerializeToString())
        for _ in range(2):
            with pytest.raises(InvalidInput) as caught:
                await rig.send("Load", _load_name())
            assert caught.value.kind == "not_supported"
        await rig.send("Load", whole.SerializeToString())


async def answers_of(call: Any, count: int) -> dict[str, Committed | AlpheusError]:
    found: dict[str, Committed | AlpheusError] = {}
    while len(found) < count:
        for answer in (await call.read()).answers:
            found[answer.transaction_id] = wire.decode_commit_answer(answer)
    return found


async def test_a_commit_of_a_newer_client_is_refused_alone() -> None:
    async with served() as rig:
        call = rig.stub.CommitMany()
        known, newer, last = (commit_request(name) for name in "abc")
        newer.operations[0].create_namespace.MergeFromString(UNKNOWN)
        await call.write(pb.CommitManyRequest(transactions=[known, newer]))
        answers = await answers_of(call, 2)
        assert isinstance(answers[known.transaction_id], Committed)
        refused = answers[newer.transaction_id]
        assert isinstance(refused, InvalidInput)
        assert refused.kind == "not_supported"
        assert "900 of CommitRequest.operations[0].create_namespace" in refused.message
        # An unknown field of the message itself may concern every transaction in it, so all are refused.
        strange = pb.CommitManyRequest(transactions=[newer, last])
        strange.MergeFromString(UNKNOWN)
        await call.write(strange)
        for answer in (await answers_of(call, 2)).values():
            assert isinstance(answer, InvalidInput)
            assert "900 of CommitManyRequest" in answer.message
        await call.write(pb.CommitManyRequest(transactions=[last]))
        assert isinstance((await answers_of(call, 1))[last.transaction_id], Committed)
        assert rig.journal.head.version == 2
        nobody = pb.CommitManyRequest(withdrawn=[last.transaction_id])
        nobody.MergeFromString(UNKNOWN)
        await call.write(nobody)  # without a transaction to refuse, the stream ends with the error
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_answers_may_say_more() -> None:
    """A client ignores unknown fields in an answer of a newer daemon."""
    answer = wire.encode_committed(Committed(version=3, transaction_id="t", created_at_millis=7, token="x"))
    answer.MergeFromString(UNKNOWN)
    assert wire.decode_committed(answer, "t").version == 3


def _many(count: int) -> pb.EventsRequest:
    return pb.EventsRequest(also=[pb.ObjectName()] * count)


def test_a_search_for_what_is_not_known_ends() -> None:
    """The search for an unknown field stops after a fixed number of messages, and the answer says where it stopped."""
    request = _many(2 * SOUGHT_MAX)
    with_unknown(request, request.also[SOUGHT_MAX - 1])
    assert newer_field(request) == f"field 900 of EventsRequest.also[{SOUGHT_MAX - 1}]"
    request = _many(2 * SOUGHT_MAX)
    with_unknown(request, request.also[-1])
    assert newer_field(request) == f"a field in EventsRequest.also[{SOUGHT_MAX}], or in what follows"
    with pytest.raises(InvalidInput, match="does not know: a field in EventsRequest") as caught:
        parse(pb.EventsRequest, request.SerializeToString())
    assert caught.value.kind == "not_supported"


@pytest.mark.parametrize("is_inside", [False, True])
def test_of_very_much_that_is_not_known_nothing_is_named(
    is_inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large unknown part is refused by size alone, because protobuf would build an object for each field in it."""
    monkeypatch.setattr(requests, "UnknownFieldSet", None)
    request = _many(1)
    part = request.also[0] if is_inside else request
    part.MergeFromString(NAMED_SIZE_BYTES_MAX * UNKNOWN)
    size = NAMED_SIZE_BYTES_MAX * len(UNKNOWN)
    if not is_inside:
        assert has_own_unknown(request, request.ByteSize())
    found = newer_field(request)
    assert found.endswith(" bytes of fields in EventsRequest")
    assert size <= int(found.split()[0]) <= size + 8


@pytest.mark.parametrize("size", [0, 2 * NAMED_SIZE_BYTES_MAX])
def test_what_is_not_known_of_the_message_itself(size: int) -> None:
    request = pb.CommitManyRequest(transactions=[commit_request()], withdrawn=["x" * size])
    assert not has_own_unknown(request, request.ByteSize())
    inside = pb.CommitManyRequest.FromString(with_unknown(request, request.transactions[0].operations[0]))
    assert not has_own_unknown(inside, inside.ByteSize())
    own = pb.CommitManyRequest.FromString(with_unknown(inside))
    before = own.SerializeToString()
    assert has_own_unknown(own, own.ByteSize())
    assert own.SerializeToString() == before


def test_what_is_known_is_found_whole() -> None:
    for request in (commit_request(serializable=True), _append(), _retype(), pb.EventsRequest()):
        before = request.SerializeToString()
        assert is_known(request)
        assert not newer_field(request)
        assert request.SerializeToString() == before
