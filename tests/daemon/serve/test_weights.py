"""Weights of requests: the largest valid requests pass, and small requests that decode to much are refused early.

A refusal leaves nothing behind, and the daemon answers other calls meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from alpheus_daemon.serve import request_weights, requests
from alpheus_daemon.serve.calls import Calls
from alpheus_daemon.serve.commit_stream import (
    DECODED_AT_ONCE_BYTES,
    CommitStream,
    decode_commit,
    transaction_id_of,
)
from alpheus_daemon.serve.lanes import SMALL_SIZE_BYTES, Lane, lanes_of, run_in_lane
from alpheus_daemon.serve.request_weights import (
    BYTE_COPIES,
    FIELDS_MAX,
    PART_BYTES,
    PARTS_MAX,
    REQUEST_BYTE_WEIGHT,
    SMALL_BYTE_WEIGHT,
    split,
    weigh,
)
from alpheus_daemon.serve.requests import WEIGHED_SIZE_BYTES, transaction_of
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import CLASSES, AlpheusError, Exhausted, InvalidInput
from alpheus_journal.format import namespace_name, table_name
from alpheus_journal.model import operation_messages
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import CreateNamespace, CreateTable, Read, Transaction
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, objects_pb2
from alpheus_pb.v1 import service_pb2 as pb

IDENTITIES = RandomIdentities()
CATALOG = pb.DESCRIPTOR.services_by_name["Catalog"]
REQUEST_BYTES_MAX = 4 << 20
DRIVER = Path(__file__).with_name("refusals_driver.py")


def requests_of_all() -> list[type[Message]]:
    names = {method.input_type.name for method in CATALOG.methods}
    return [getattr(pb, name) for name in sorted(names)]


def field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


# --- counting --------------------------------------------------------------------------------------


def test_parts_are_counted_at_every_depth() -> None:
    request = pb.CommitRequest(transaction_id="t" * 200)  # 1
    request.properties["k"] = "v"  # 3
    table = request.operations.add().create_table  # 2
    table.name = "t"  # 1
    column = table.schema.columns.add(id=1, name="c")  # the schema, the column, its name: 3
    column.struct_fields.add().list_element.name = "x"  # 3
    column.properties["precision"] = "9"  # 3
    request.reads.add(
        object_def=read_object("n"), **{"def": actions_pb2.ActionDetail(keys=["a", "b"]).SerializeToString()}
    )
    parts = 1 + 3 + 2 + 1 + 3 + 3 + 3
    parts += 1 + 2 + 3  # the read, its object with a name, its detail with two keys
    data = request.SerializeToString()
    assert weigh(pb.CommitRequest, data) == BYTE_COPIES * len(data) + PART_BYTES * parts


def read_object(namespace: str) -> actions_pb2.ObjectDef:
    return actions_pb2.ObjectDef(type=objects_pb2.NAMESPACE, namespace_name=namespace)


PAIRS = {
    "key and value": (field(1, b"k") + field(2, b"v"), 3),
    "of no length": (field(1, b"") + field(2, b""), 3),
    "a long value": (field(1, b"k") + field(2, b"v" * 200), 3),
    "a long key": (field(1, b"k" * 200) + field(2, b"v"), 3),
    "value and key": (field(2, b"v") + field(1, b"k"), 3),
    "a key": (field(1, b"k"), 2),
    "nothing": (b"", 1),
    "keys": (field(1, b"k") + field(2, b"v") + field(1, b""), 4),
    "values behind one whose size takes two bytes": (
        field(1, b"k") + b"\x12\x81\x00v" + b"\x12\x00" * 63,
        66,
    ),
    "a value that is not known": (field(1, b"k") + field(3, b"v"), 2),
}


@pytest.mark.parametrize("what", PAIRS)
def test_an_entry_counts_in_whatever_form_it_is_written(what: str) -> None:
    content, parts = PAIRS[what]
    data = field(7, field(6, field(5, content) * 100)) + field(4, b"x" * 200)
    assert pb.CommitRequest.FromString(data).operations[0].HasField("create_table")
    assert weigh(pb.CommitRequest, data) == BYTE_COPIES * len(data) + PART_BYTES * (2 + 100 * parts + 1)


def test_packed_numbers_count_one_by_one_and_what_is_not_known_by_its_bytes() -> None:
    kinds = pb.EventsRequest(kinds=[objects_pb2.TABLE] * 500).SerializeToString()
    assert weigh(pb.EventsRequest, kinds) == BYTE_COPIES * len(kinds) + 500 * PART_BYTES
    unknown = b"\xa2\x38\x04prod" * 100
    assert weigh(pb.ListRequest, unknown) == BYTE_COPIES * len(unknown)


def test_a_small_request_counts_as_the_heaviest_of_its_size() -> None:
    for kind in requests_of_all():
        assert weigh(kind, b"") == 0
    drops = pb.CommitRequest(operations=[actions_pb2.Operation(drop_table=actions_pb2.DropTable())] * 30)
    data = drops.SerializeToString()
    assert weigh(pb.CommitRequest, data) == SMALL_BYTE_WEIGHT * len(data)
    assert BYTE_COPIES * len(data) + 60 * PART_BYTES <= SMALL_BYTE_WEIGHT * len(data)


MALFORMED = [b"\x3a", b"\x3a\x05", b"\x3a\x80", b"\x80" * 12, b"\x0c", b"\x0b", b"\x0f", b"\x39\x00", b"\x3d\x00",
             b"\x3a\x04\x32\x05ab", b"\x3a\x03\x32\x01\x22", b"\x3a\x04\x32\x02\x10\x80"]  # fmt: skip


@pytest.mark.parametrize("tail", MALFORMED)
def test_what_is_no_message_is_refused(tail: bytes) -> None:
    data = pb.CommitRequest(message="x" * 200).SerializeToString() + tail
    with pytest.raises(InvalidInput, match="is not a CommitRequest") as caught:
        weigh(pb.CommitRequest, data)
    assert caught.value.kind == "bad_argument"


def create_table(columns: bytes) -> bytes:
    """Return a CommitRequest with the encoded columns of one table."""
    return field(7, field(6, field(4, columns)))


@pytest.mark.parametrize(("depth", "is_refused"), [(60, False), (300, True)])
def test_messages_in_messages_have_an_end(depth: int, is_refused: bool) -> None:
    column = b""
    for _ in range(depth):
        column = field(9, column)  # a list of the one before
    data = create_table(field(1, column)) + field(5, b"x" * 200)
    if not is_refused:
        assert weigh(pb.CommitRequest, data) > depth * PART_BYTES
        return
    with pytest.raises(InvalidInput, match="more than 100 deep"):
        weigh(pb.CommitRequest, data)


def test_a_request_splits_into_what_it_was() -> None:
    """The parts of a split request are those it was built of, in any order of fields."""
    rng = random.Random(5)
    request = honest_request(7, reads=3)
    pieces = [field(7, item.SerializeToString()) for item in request.operations]
    pieces += [field(8, item.SerializeToString()) for item in request.reads]
    pieces += [
        field(1, request.transaction_id.encode()),
        b"\x10\x05",
        b"\xf8\x3f\x01",
        field(900, b"new"),
        field(4, b"ana"),
    ]
    for _ in range(20):
        rng.shuffle(pieces)
        data = b"".join(pieces)
        whole = pb.CommitRequest.FromString(data)
        rest, found = split(pb.CommitRequest, data, "operations", "reads")
        again = pb.CommitRequest.FromString(rest)
        assert not again.operations
        again.operations.extend(actions_pb2.Operation.FromString(item) for item in found["operations"])
        again.reads.extend(actions_pb2.ActionDef.FromString(item) for item in found["reads"])
        assert again.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


# --- the largest valid requests --------------------------------------------------------------------


def honest_request(operations: int, *, reads: int = 0) -> pb.CommitRequest:
    return wire.encode_transaction_request(
        Transaction(
            id=IDENTITIES.uuid7(),
            begin_version=0,
            principal="ana",
            operations=tuple(
                CreateNamespace(name=f"n{number}", namespace_id=IDENTITIES.uuid4())
                for number in range(operations)
            ),
            serializable=bool(reads),
            reads=tuple(
                Read(type="NAMESPACE_DESCRIBE", name=namespace_name(f"r{number}")) for number in range(reads)
            ),
        )
    )


def many_operations() -> pb.CommitRequest:
    return honest_request(10_000)


def many_reads() -> pb.CommitRequest:
    return honest_request(1, reads=10_000)


def many_columns() -> pb.CommitRequest:
    """Return a definition of one megabyte with the shortest columns and properties."""
    columns = [
        Column(id=number, name=f"c{number}", type="DECIMAL", properties={"precision": "9", "scale": "2"})
        for number in range(1, 10_001)
    ]
    operation = CreateTable(
        namespace="n",
        name="t",
        table_id=IDENTITIES.uuid4(),
        columns=tuple(columns),
        properties=short_properties(30_000),
    )
    request = honest_request(1)
    del request.operations[:]
    request.operations.append(operation_messages.encode_operation(operation))
    return request


def many_properties() -> pb.CommitRequest:
    request = honest_request(1)
    request.properties.update(short_properties(87_000))
    request.operations[0].create_namespace.properties.update(short_properties(87_000))
    return request


def short_properties(count: int) -> dict[str, str]:
    """Return properties with distinct keys of at most three bytes: 256 KiB have room for 87,000."""
    letters = [chr(number) for number in range(33, 127)]
    return {letters[n % 94] + letters[n // 94 % 94] + letters[n // 94**2]: "" for n in range(count)}


def many_columns_read() -> pb.CommitRequest:
    read = Read(
        type="TABLE_SELECT",
        name=table_name("n", "t"),
        columns=tuple(f"c{number}" for number in range(10_000)),
    )
    return wire.encode_transaction_request(
        Transaction(
            id=IDENTITIES.uuid7(), begin_version=0, operations=(), serializable=True, reads=(read,) * 30
        )
    )


@pytest.mark.parametrize(
    "make",
    [many_operations, many_reads, many_columns, many_properties, many_columns_read],
    ids=lambda make: make.__name__,
)
async def test_the_largest_honest_transactions_pass(make: Callable[[], pb.CommitRequest]) -> None:
    data = make().SerializeToString()
    assert len(data) <= REQUEST_BYTES_MAX
    weight = weigh(pb.CommitRequest, data)
    calls = Calls(count_max=1, bytes_max=256 << 20, one_bytes_max=REQUEST_BYTE_WEIGHT * REQUEST_BYTES_MAX)
    with calls.running(weight):
        calls.check(weight)
    whole = transaction_of(data)
    assert await decode_commit(data, weight) == whole
    assert transaction_of(data, in_pieces=True) == whole
    assert wire.encode_transaction_request(whole).SerializeToString(
        deterministic=True
    ) == pb.CommitRequest.FromString(data).SerializeToString(deterministic=True)


def test_the_largest_honest_questions_pass() -> None:
    names = [wire.encode_name(table_name(f"namespace{number}", "t" * 90)) for number in range(10_000)]
    weigh(pb.LoadRequest, pb.LoadRequest(names=names).SerializeToString())
    texts = [f"namespace{number}" for number in range(10_000)]
    weigh(pb.SnapshotRequest, pb.SnapshotRequest(namespaces=texts).SerializeToString())
    kinds = [objects_pb2.TABLE] * 1000
    weigh(
        pb.EventsRequest,
        pb.EventsRequest(
            namespaces=texts[:1000], names=texts[:1000], name_patterns=texts[:1000], actions=texts[:1000], kinds=kinds,
            also=names[:1000],
        ).SerializeToString(),
    )  # fmt: skip
    weigh(
        pb.CommitManyRequest,
        pb.CommitManyRequest(transactions=[honest_request(1)] * 10_000).SerializeToString(),
    )


# --- small requests that decode to much ------------------------------------------------------------

SPREAD = 350_000
"""The number of empty columns, spread over operations so that no single operation has too many."""


def amplified(size: int) -> dict[str, tuple[str, bytes]]:
    """Return requests of about `size` bytes that decode to far more: method and bytes, by a description."""
    empties = size // 2
    detail = field(8, field(3, b"\xba\x06\x00" * (size // 3)) + b"\x10\x01")
    return {
        "operations of nothing": ("Commit", b"\x3a\x00" * empties),
        "reads of nothing": ("Commit", b"\x42\x00" * empties),
        "properties of nothing": ("Commit", b"\x32\x00" * empties),
        "columns of nothing": ("Commit", create_table(b"\x0a\x00" * empties)),
        "segments of nothing": ("Commit", field(7, field(9, b"\x22\x00" * empties))),
        "effects of nothing, in a read": ("Commit", detail),
        "numbers": ("Commit", b"\x10\x00" * empties),
        "operations to save": ("SaveTransaction", b"\x3a\x00" * empties),
        "columns to save": ("SaveTransaction", create_table(b"\x0a\x00" * empties)),
        "transactions of nothing": ("CommitMany", b"\x0a\x00" * empties),
        "withdrawn ones": ("CommitMany", b"\x1a\x00" * empties),
        "names": ("Load", b"\x12\x00" * empties),
        "namespaces": ("Snapshot", b"\x12\x00" * empties),
        "kinds": ("Events", field(7, b"\x02" * size)),
        "names of events": ("Events", b"\x32\x00" * empties),
        "objects of events": ("Events", b"\x5a\x00" * empties),
    }


@pytest.mark.parametrize("what", amplified(0))
def test_what_is_small_and_takes_much_is_refused_before_it_is_made(what: str) -> None:
    method, data = amplified(2 << 20)[what]
    with pytest.raises(InvalidInput, match="more than") as caught:
        weigh(getattr(pb, CATALOG.methods_by_name[method].input_type.name), data)
    assert caught.value.kind == ("bad_argument" if what == "numbers" else "too_large")


def test_what_is_spread_over_many_operations_is_refused_by_its_weight() -> None:
    one = field(7, field(6, field(4, b"\x0a\x00" * SPREAD)))
    data = one * (REQUEST_BYTES_MAX // len(one))
    weight = weigh(pb.CommitRequest, data)
    calls = Calls(count_max=1, bytes_max=256 << 20, one_bytes_max=REQUEST_BYTE_WEIGHT * REQUEST_BYTES_MAX)
    assert SPREAD < PARTS_MAX
    with calls.running(weight), pytest.raises(InvalidInput, match="bytes when decoded") as caught:
        calls.check(weight)
    assert caught.value.kind == "too_large"
    assert "--request-bytes-max" in caught.value.hint


def test_requests_that_weigh_much_wait_for_each_other() -> None:
    calls = Calls(count_max=100, bytes_max=256 << 20, one_bytes_max=256 << 20)
    weight = 100 << 20
    with calls.running(weight), calls.running(weight):
        calls.check(weight)
        with calls.running(weight), pytest.raises(Exhausted) as caught:
            calls.check(weight)
    assert caught.value.retry_after


async def test_nothing_large_is_worked_on_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request holds the event loop only for a bounded number of weighed bytes and decoded items."""
    worked: list[tuple[str, int, int]] = []

    def weighing(kind: Any, data: bytes, *limit: int) -> int:
        worked.append(("weigh", threading.get_ident(), len(data)))
        return weigh(kind, data, *limit)

    def decoding(data: bytes, **options: bool) -> Transaction:
        worked.append(("decode", threading.get_ident(), weigh(pb.CommitRequest, data)))
        return transaction_of(data, **options)

    monkeypatch.setattr(request_weights, "weigh", weighing)
    monkeypatch.setattr("alpheus_daemon.serve.commit_stream.transaction_of", decoding)
    for count in (1, 50, 100, 10_000):
        data = honest_request(count).SerializeToString()
        assert (
            len((await decode_commit(data, await requests.weigh(pb.CommitRequest, data))).operations) == count
        )
    own = threading.get_ident()
    assert {what for what, thread, _ in worked if thread == own} == {"weigh", "decode"}
    assert {what for what, thread, _ in worked if thread != own} == {"weigh", "decode"}
    bounds = {"weigh": WEIGHED_SIZE_BYTES, "decode": DECODED_AT_ONCE_BYTES}
    assert all(size <= bounds[what] for what, thread, size in worked if thread == own)


# --- a refusal costs little ------------------------------------------------------------------------


class Watched(bytes):
    """Bytes that count how often they are read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


NOTHING = {
    "columns": b"\x0a\x00" * 200,
    "names": b"\x0a\x02\x12\x00" * 100,
    "nested": b"\x0a\x02\x4a\x00" * 100,
}


@pytest.mark.parametrize("content", NOTHING.values(), ids=NOTHING)
def test_what_weighs_too_much_is_looked_at_no_further_than_that(content: bytes) -> None:
    one = field(7, field(6, field(4, content)))
    parts_max = 2_000
    for count in (100, 1_000):
        data = Watched(one * count)
        with pytest.raises(InvalidInput, match="would take more than") as caught:
            weigh(pb.CommitRequest, data, BYTE_COPIES * len(data) + PART_BYTES * parts_max)
        assert caught.value.kind == "too_large"
        assert data.reads < 5 * parts_max
    within = one * 5
    heavy = weigh(pb.CommitRequest, within)
    assert weigh(pb.CommitRequest, within, heavy) == heavy
    with pytest.raises(InvalidInput, match=f"more than {heavy - 1} bytes when decoded"):
        weigh(pb.CommitRequest, within, heavy - 1)


def test_within_one_operation_the_weight_ends_the_look_as_well() -> None:
    data = Watched(create_table(field(1, b"\x4a\x00" * 10_000) * 5))
    with pytest.raises(InvalidInput, match="would take more than"):
        weigh(pb.CommitRequest, data, BYTE_COPIES * len(data) + PART_BYTES * 1_000)
    assert data.reads < 5_000


UNKNOWN = {"of no length": b"\x7a\x00", "with a text": b"\xa2\x38\x04prod", "numbers": b"\xf8\x3f\x01"}


@pytest.mark.parametrize("what", UNKNOWN)
@pytest.mark.parametrize("kind", [pb.CommitRequest, pb.CommitManyRequest, pb.EventsRequest])
def test_a_request_has_so_many_fields_of_its_own(kind: type[Message], what: str) -> None:
    """A message has at most FIELDS_MAX known and unknown fields of its own, and no function reads further."""
    weigh(kind, UNKNOWN[what] * FIELDS_MAX)
    split(kind, UNKNOWN[what] * FIELDS_MAX)
    data = Watched(UNKNOWN[what] * 100_000)
    for look in (weigh, split):
        with pytest.raises(InvalidInput, match=f"more than {FIELDS_MAX} fields in") as caught:
            look(kind, data)
        assert caught.value.kind == ("bad_argument" if what == "numbers" else "not_supported")
    if kind is pb.CommitRequest:
        assert transaction_id_of(data) == ""
    assert data.reads < 3 * 5 * FIELDS_MAX


def test_a_field_that_a_request_has_once_does_not_come_thousands_of_times() -> None:
    data = Watched(field(4, b"ana") * 100_000)
    with pytest.raises(InvalidInput, match=f"more than {FIELDS_MAX} fields in it besides its lists"):
        weigh(pb.CommitRequest, data)
    assert data.reads < 5 * FIELDS_MAX


def test_the_id_of_a_refused_transaction_is_found_at_once() -> None:
    request = honest_request(5_000)
    data = Watched(request.SerializeToString())
    assert transaction_id_of(data) == request.transaction_id
    assert data.reads < 5 * FIELDS_MAX
    late = field(4, b"ana") + field(7, b"") + b"\x10\x05" + field(1, b"late")
    assert transaction_id_of(late) == "late"
    assert transaction_id_of(field(1, b"early") + late) == "late"
    for bad in (field(1, b"\xff"), b"\x0a\x05ab", b"\x0c"):
        with pytest.raises(InvalidInput, match="is not a CommitRequest"):
            transaction_id_of(bad)


# --- turns -----------------------------------------------------------------------------------------


async def test_a_small_request_passes_while_large_ones_are_weighed() -> None:
    gate = threading.Event()
    large = [asyncio.create_task(run_in_lane(REQUEST_BYTES_MAX, gate.wait)) for _ in range(10)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            data = honest_request(1_000).SerializeToString()
            assert WEIGHED_SIZE_BYTES < len(data) <= SMALL_SIZE_BYTES
            weight = await requests.weigh(pb.CommitRequest, data)
            assert weight > DECODED_AT_ONCE_BYTES
            assert len((await decode_commit(data, weight)).operations) == 1_000
        assert not any(task.done() for task in large)
    finally:
        gate.set()
        await asyncio.gather(*large)


async def test_the_smallest_goes_first_and_the_oldest_at_times() -> None:
    lane = Lane()
    served: list[int] = []

    async def take(size: int) -> None:
        await lane.enter(size)
        served.append(size)
        lane.leave()

    await lane.enter(0)
    sizes = [900, 800, 30, 20, 700, 10, 5, 600]
    async with asyncio.TaskGroup() as tasks:
        for size in sizes:
            tasks.create_task(take(size))
        await asyncio.sleep(0)
        assert lane.waiting_count == len(sizes)
        lane.leave()
    assert served == [5, 10, 20, 900, 30, 600, 700, 800]
    async with asyncio.timeout(30):
        await lane.enter(1)  # it is free


async def test_a_turn_that_nobody_waits_for_goes_on() -> None:
    """A turn that is given to a cancelled caller passes to the next one."""
    lane = Lane()
    await lane.enter(0)
    waiting = [asyncio.create_task(lane.enter(size)) for size in (1, 2, 3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait([waiting[0]])
    lane.leave()  # to the second caller, which is cancelled before it runs
    waiting[1].cancel()
    async with asyncio.timeout(30):
        await waiting[2]
    assert [task.cancelled() for task in waiting] == [True, True, False]


async def test_a_caller_that_goes_leaves_its_turn_to_the_thread_that_works() -> None:
    """A cancelled call keeps its turn until its thread ends, so that cancelled calls do not start threads in
    parallel."""
    gate, began = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait()

    first = asyncio.create_task(run_in_lane(1, work))
    try:
        assert await asyncio.to_thread(began.wait, 30)
        first.cancel()
        await asyncio.wait([first])
        next_one = asyncio.create_task(run_in_lane(1, int))
        await asyncio.sleep(0)
        small, _ = lanes_of(asyncio.get_running_loop())
        assert small.waiting_count == 1
    finally:
        gate.set()
    assert await next_one == 0


# --- streams of commits ----------------------------------------------------------------------------


class Streams:
    """Streams of commits that share bounds. Each stream receives `data` once."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.refused: list[tuple[str, str]] = []
        self.told = asyncio.Event()
        self._ending = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def send(self, data: bytes) -> None:
        def refused(error: AlpheusError, transaction_id: str) -> None:
            self.refused.append((error.kind, transaction_id))
            self.told.set()

        async def read() -> bytes | None:
            if sent:
                return sent.pop()
            await asyncio.Event().wait()
            return None

        async def write(_: bytes) -> None:
            pass

        sent = [data]
        writer: Any = SimpleNamespace(limits=SimpleNamespace(timeout_seconds=30.0))
        stream = CommitStream(
            writer, source="x", count_max=100_000, bytes_max=1 << 30, calls=self.calls, refused=refused
        )
        self._running.append(asyncio.create_task(stream.run(read, write, self._ending)))

    async def end(self) -> None:
        self._ending.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*self._running)


async def test_messages_of_streams_count_from_their_arrival() -> None:
    """Messages count against the bound before they are weighed, and the excess is refused by transaction id."""
    ids = [IDENTITIES.uuid7() for _ in range(3)]
    data = pb.CommitManyRequest(
        transactions=[pb.CommitRequest(transaction_id=item, message="x" * 100_000) for item in ids]
    ).SerializeToString()
    assert len(data) > SMALL_SIZE_BYTES
    gate = threading.Event()
    busy = asyncio.create_task(run_in_lane(REQUEST_BYTES_MAX, gate.wait))
    try:
        await asyncio.sleep(0)
        streams = Streams(Calls(count_max=100, bytes_max=4 * len(data), one_bytes_max=64 * len(data)))
        for _ in range(10):
            streams.send(data)
        async with asyncio.timeout(30):
            while len(streams.refused) < 6 * len(ids):
                streams.told.clear()
                await streams.told.wait()
        assert streams.refused == [("too_many_requests", item) for item in ids] * 6
        _, large = lanes_of(asyncio.get_running_loop())
        assert large.waiting_count == 4
        assert (streams.calls.count, streams.calls.bytes) == (4, 4 * len(data))
    finally:
        gate.set()
        await busy
    streams.calls.one_bytes_max = 0  # no transaction reaches the writer, which does not exist here
    async with asyncio.timeout(30):
        while len(streams.refused) < 10 * len(ids):
            streams.told.clear()
            await streams.told.wait()
    await streams.end()
    assert (streams.calls.count, streams.calls.bytes) == (0, 0)


async def test_transactions_that_weigh_too_much_together_are_not_all_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[int] = []

    def weighing(kind: Any, data: bytes, *limit: int) -> int:
        assert threading.get_ident() != own
        if kind is pb.CommitRequest:
            weighed.append(len(data))
        return weigh(kind, data, *limit)

    own = threading.get_ident()
    monkeypatch.setattr(request_weights, "weigh", weighing)
    ids = [IDENTITIES.uuid7() for _ in range(50)]
    one = create_table(b"\x0a\x00" * 1_000)
    data = b"".join(field(1, field(1, item.encode()) + one) for item in ids)
    calls = Calls(count_max=100, bytes_max=1 << 30, one_bytes_max=10 * 1_000 * PART_BYTES)
    streams = Streams(calls)
    streams.send(data)
    async with asyncio.timeout(30):
        while len(streams.refused) < len(ids):
            streams.told.clear()
            await streams.told.wait()
    assert streams.refused == [("too_large", item) for item in ids]
    assert len(weighed) <= 10
    await streams.end()
    assert (calls.count, calls.bytes) == (0, 0)


# --- a daemon that refuses -------------------------------------------------------------------------


class Daemon:
    def __init__(self, process: asyncio.subprocess.Process, channel: grpc.aio.Channel) -> None:
        self._process = process
        self._channel = channel

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode()

    async def memory_bytes(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return int(await self._line())

    async def left_in_cycles(self) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        found: dict[str, int] = json.loads(await self._line())
        return found

    async def send(self, method: str, data: bytes) -> AlpheusError:
        path = f"/alpheus.v1.Catalog/{method}"
        described = CATALOG.methods_by_name[method]
        call: Any
        if described.client_streaming:
            call = self._channel.stream_stream(path)()
            await call.write(data)
            asked = call.read()
        elif described.server_streaming:
            call = self._channel.unary_stream(path)(data)
            asked = call.read()
        else:
            call = asked = self._channel.unary_unary(path)(data)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        detail = dict(caught.value.trailing_metadata() or ())[errors.ERROR_METADATA_KEY]
        assert isinstance(detail, bytes)
        return errors.error_of_detail(detail)

    async def commit(self, data: bytes) -> bytes:
        answer: bytes = await self._channel.unary_unary("/alpheus.v1.Catalog/Commit")(data)
        return answer

    async def wait_seconds(self) -> float:
        """Return how long a caller with a small request waits."""
        started = time.monotonic()
        await self._channel.unary_unary("/alpheus.v1.Catalog/GetInfo")(b"")
        return time.monotonic() - started


@asynccontextmanager
async def daemon() -> AsyncIterator[Daemon]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(DRIVER), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Daemon(process, channel)
    finally:
        if process.returncode is None and process.stdin is not None and not process.stdin.is_closing():
            process.kill()
        await process.wait()


def refused_late() -> list[tuple[str, bytes]]:
    """Return requests that weigh little enough and are refused when they are read, executed or looked up."""
    unknown, empty = honest_request(600), honest_request(600)
    unknown.operations[-1].MergeFromString(b"\xa2\x38\x04prod")
    empty.operations.add()
    twice = honest_request(700)
    twice.operations.add().CopyFrom(twice.operations[0])
    no_id = honest_request(700)
    no_id.transaction_id = "x"
    taken = honest_request(1)
    taken.operations[0].create_namespace.namespace_id = "no id"
    data = [request.SerializeToString() for request in (unknown, empty, twice, no_id, taken)]
    found = [(method, item) for method in ("Commit", "SaveTransaction") for item in data]
    name = field(2, field(900, b"x" * 1000) * 100)
    questions = [("Load", name), ("Diff", field(900, b"x")), ("Events", field(2, b"token")),
                 ("Log", field(1, b"\x08\x63")), ("GetOutcome", field(1, b"x" * 100_000)),
                 ("LoadTransaction", field(1, b"x")), ("LoadPosition", field(1, b"x"))]  # fmt: skip
    return [*found, *questions]


async def test_refusals_leave_nothing_behind_and_others_are_answered(
    lane_count: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the collector of cycles off, memory grows by less than a small multiple of the bytes in flight."""
    callers, size = lane_count(2, 32), lane_count(1 << 20, REQUEST_BYTES_MAX - 100)
    async with daemon() as refusing:
        await asyncio.gather(*[refusing.send(*item) for item in amplified(200_000).values()])
        before = await refusing.memory_bytes()
        done = asyncio.Event()
        waits: list[float] = []

        async def ask() -> None:
            while not done.is_set():
                waits.append(await refusing.wait_seconds())
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())
            for method, data in [*amplified(size).values(), *refused_late()]:
                answers = await asyncio.gather(*[refusing.send(method, data) for _ in range(callers)])
                kinds = {error.kind for error in answers}
                assert not kinds & {"reply_lost", "daemon_unavailable"}, (method, answers)
            done.set()
        grown = await refusing.memory_bytes() - before
        left = await refusing.left_in_cycles()
    with capsys.disabled():
        print(f" [longest wait of others: {max(waits) * 1000:.0f} ms; memory: {grown >> 20} MiB]", end="")
    # gRPC itself leaves a few objects for every call, whatever the call's outcome.
    ours = ("frame", "traceback", "_Request", "Transaction", "CommitRequest", "Operation", "_ServicerContext")
    held = [name for name in left if name in ours or name.endswith("Error") or name in CLASSES]
    assert not held, left
    assert grown < (64 << 20) + 2 * callers * size
    if callers == 32:  # the promise is 250 ms on an idle machine
        assert max(waits) < 2.5


async def test_a_commit_of_20_kib_waits_little_while_large_ones_are_refused(
    lane_count: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    callers = lane_count(2, 32)
    one = create_table(b"\x0a\x00" * 200)
    heavy = one * 10_000
    assert len(heavy) < REQUEST_BYTES_MAX
    honest = honest_request(500).SerializeToString()
    assert len(honest) > 20 << 10
    async with daemon() as refusing:
        async with asyncio.TaskGroup() as tasks:
            large = [tasks.create_task(refusing.send("Commit", heavy)) for _ in range(callers)]
            await refusing.wait_seconds()
            started = time.monotonic()
            answer = pb.CommitResponse.FromString(await refusing.commit(honest))
            waited = time.monotonic() - started
        assert answer.version == 1
        assert all("bytes when decoded" in str(task.result()) for task in large)
        await refusing.left_in_cycles()
    with capsys.disabled():
        print(f" [its wait: {waited * 1000:.0f} ms]", end="")
    if callers == 32:
        assert waited < 2.5
