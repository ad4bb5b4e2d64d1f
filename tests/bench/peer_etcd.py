"""A client of etcd by asynchronous gRPC, with the few messages of its v3 API that the benchmarks need, and the
measurements.

The messages are declared here by field number (etcd's API documentation, rpc.proto and kv.proto). Unused fields are
left out, and protobuf skips them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "etcdserverpb"
_SCALARS = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}
# By message and field: (number, type), in a list if the field is repeated. Enumerations are sent as integers.
_MESSAGES: dict[str, dict[str, Any]] = {
    "KeyValue": {"key": (1, "bytes"), "mod_revision": (3, "int64"), "value": (5, "bytes")},
    "ResponseHeader": {"revision": (3, "int64")},
    "PutRequest": {"key": (1, "bytes"), "value": (2, "bytes")},
    "PutResponse": {"header": (1, "ResponseHeader")},
    "Compare": {
        "result": (1, "int64"), "target": (2, "int64"), "key": (3, "bytes"), "create_revision": (5, "int64"),
        "mod_revision": (6, "int64"),
    },
    "RequestOp": {"request_put": (2, "PutRequest")},
    "TxnRequest": {"compare": (1, ["Compare"]), "success": (2, ["RequestOp"])},
    "TxnResponse": {"header": (1, "ResponseHeader"), "succeeded": (2, "bool")},
    "WatchCreateRequest": {"key": (1, "bytes"), "range_end": (2, "bytes"), "start_revision": (3, "int64")},
    "WatchRequest": {"create_request": (1, "WatchCreateRequest")},
    "Event": {"type": (1, "int64"), "kv": (2, "KeyValue")},
    "WatchResponse": {
        "header": (1, "ResponseHeader"), "created": (3, "bool"), "canceled": (4, "bool"),
        "events": (11, ["Event"]),
    },
}  # fmt: skip
_EQUAL, _CREATED, _MODIFIED = 0, 1, 2  # of Compare: result, and targets CREATE and MOD


def _declare() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="bench/etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, kind = isinstance(kind, list), kind[0] if isinstance(kind, list) else kind
            entry = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in _SCALARS:
                entry.type = _SCALARS[kind]
            else:
                entry.type, entry.type_name = entry.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_T: Any = _declare()


class Etcd:
    """One connection to etcd."""

    def __init__(self, address: str) -> None:
        # With the shared pool, channels to one address would share a connection.
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._txn = self._channel.unary_unary(
            f"/{_PACKAGE}.KV/Txn",
            request_serializer=_T["TxnRequest"].SerializeToString,
            response_deserializer=_T["TxnResponse"].FromString,
        )
        self._put = self._channel.unary_unary(
            f"/{_PACKAGE}.KV/Put",
            request_serializer=_T["PutRequest"].SerializeToString,
            response_deserializer=_T["PutResponse"].FromString,
        )
        self._watch = self._channel.stream_stream(
            f"/{_PACKAGE}.Watch/Watch",
            request_serializer=_T["WatchRequest"].SerializeToString,
            response_deserializer=_T["WatchResponse"].FromString,
        )

    async def close(self) -> None:
        await self._channel.close()

    async def create(self, key: bytes, value: bytes) -> None:
        """Put a key in a transaction if it does not exist. The key must not exist."""
        await self._compare_and_put(key, value, target=_CREATED, create_revision=0)

    async def update(self, key: bytes, value: bytes, revision: int) -> int:
        """Put a key in a transaction if it was last written at `revision`, which must be so. Return the new
        revision."""
        return await self._compare_and_put(key, value, target=_MODIFIED, mod_revision=revision)

    async def _compare_and_put(self, key: bytes, value: bytes, **compare: int) -> int:
        request = _T["TxnRequest"](
            compare=[_T["Compare"](result=_EQUAL, key=key, **compare)],
            success=[_T["RequestOp"](request_put=_T["PutRequest"](key=key, value=value))],
        )
        answer = await self._txn(request)
        if not answer.succeeded:
            raise RuntimeError(f"etcd: the comparison of {key!r} failed")
        return int(answer.header.revision)

    async def put(self, key: bytes, value: bytes) -> int:
        answer = await self._put(_T["PutRequest"](key=key, value=value))
        return int(answer.header.revision)

    async def watch(self, prefix: bytes) -> Any:
        """Return a confirmed stream of all puts below `prefix`. Read it with `events_of`."""
        call = self._watch()
        wanted = _T["WatchCreateRequest"](key=prefix, range_end=prefix[:-1] + bytes([prefix[-1] + 1]))
        await call.write(_T["WatchRequest"](create_request=wanted))
        first: Any = await call.read()
        if not first.created or first.canceled:
            raise RuntimeError("etcd did not make the watch")
        return call


async def etcd_watch(
    address: str,
    *,
    watchers: int,
    events: int,
    burst: int = 0,
    connections: int = 1,
    value_bytes: int = 700,
    prefix: bytes = b"watch/",
) -> dict[str, float]:
    """Measure how long after a put the last of `watchers` streams has its event, and the deliveries a second of a
    burst.

    The first part makes `events` puts, each when all watchers had the last one. It returns the milliseconds from before
    the put to the last delivery (`last_p50`, `last_p99`) and to the median watcher's (`median_p50`). Then `burst` puts
    are made without waiting. The result has `deliveries` a second over all watchers, from the first put to the last
    delivery. The watchers' streams use `connections` channels, all in this process and its loop.
    """
    channels = [Etcd(address) for _ in range(connections)]
    writer = Etcd(address)
    try:
        streams = [await channels[number % connections].watch(prefix) for number in range(watchers)]
        lasts: list[float] = []
        middles: list[float] = []

        async def receive(stream: Any, count: int) -> float:
            while count > 0:
                count -= len((await stream.read()).events)
            return time.perf_counter()

        async def one_round(puts: int) -> tuple[float, list[float]]:
            waiting = [asyncio.create_task(receive(stream, puts)) for stream in streams]
            await asyncio.sleep(0)  # all of them read before the clock starts
            started = time.perf_counter()
            for number in range(puts):
                await writer.put(prefix + b"%d" % number, b"x" * value_bytes)
            return started, list(await asyncio.gather(*waiting))

        for _ in range(events):
            started, arrived = await one_round(1)
            lasts.append((max(arrived) - started) * 1e3)
            middles.append((sorted(arrived)[len(arrived) // 2] - started) * 1e3)
        result = {
            "last_p50": sorted(lasts)[len(lasts) // 2],
            "last_p99": sorted(lasts)[min(len(lasts) - 1, int(len(lasts) * 0.99))],
            "median_p50": sorted(middles)[len(middles) // 2],
        }
        if burst:
            started, arrived = await one_round(burst)
            result["deliveries"] = burst * watchers / (max(arrived) - started)
        for stream in streams:
            stream.cancel()
        return result
    finally:
        for channel in [*channels, writer]:
            await channel.close()
