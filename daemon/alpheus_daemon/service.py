"""gRPC to the journal and back: requests are read and checked, answers are written, nothing is decided.

Handlers take and return bytes, so that answers made once (looked up definitions, events) are sent as they
are. Every `AlpheusError` becomes its status code, with an ErrorDetail in the trailing metadata
`alpheus-error-bin`; anything else is a bug: INTERNAL with the request's id, and a traceback in the log under
that id.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Protocol, TypeVar

import grpc
import msgspec
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from alpheus_daemon.config import Config, parse_listen
from alpheus_daemon.telemetry import logger
from alpheus_daemon.watch import EventSource, Hub
from alpheus_daemon.writer import Settling, Writer, settle
from alpheus_journal import format as fmt
from alpheus_journal import wire
from alpheus_journal.access import Access, At, Outcome, StoredObject
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_pb.v1 import service_pb2 as pb

SERVICE_NAME = "alpheus.v1.Catalog"

_STATUS_TEXT_BYTES_MAX = 400
"""Of the status message, which is percent-encoded into metadata; the whole text is in the ErrorDetail."""

QUIET_SECONDS = 0.1
"""At the end: nobody has asked for so long."""
DRAIN_SECONDS_MAX = 1.0
"""At the end: waiting for that quiet, at most."""
HURRY_SECONDS = 0.5
"""At the end: what a peer of a stream may take to accept a message."""
FLUSH_SECONDS = 0.3
"""What is done is handed to gRPC; for the last answers to leave."""

log = logger()

Context = grpc.aio.ServicerContext[bytes, bytes]
Request = TypeVar("Request", bound=Message)


class ServedJournal(Access, EventSource, Settling, Protocol):
    """What the service needs of the journal: every access, and following its log."""

    async def discard_transaction(
        self, transaction_id: str, *, settle: Callable[[int | None], Awaitable[Outcome]] | None = None
    ) -> Outcome:
        """`settle` goes through the writer, as all commits of a daemon do."""
        ...


class LookupAnswers:
    """Stored objects, framed for LoadResponse: the most recently made ones, up to `bytes_max`.

    A definition never changes under its path, so an answer is good for as long as it is kept.
    """

    ABSENT = pb.LoadResponse(objects=[pb.LoadedObject()]).SerializeToString()

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames: dict[str, tuple[bytes, bytes]] = {}  # by path: definition and frame
        self._bytes = 0

    def frame(self, stored: StoredObject | None) -> bytes:
        """The bytes that stand for `stored` in a response; responses of single objects concatenate."""
        if stored is None:
            return self.ABSENT
        kept = self._frames.get(stored.path)
        if kept is not None and kept[0] == stored.definition:
            return kept[1]
        made = pb.LoadedObject(exists=True, path=stored.path, definition=stored.definition)
        frame = pb.LoadResponse(objects=[made]).SerializeToString()
        if kept is None and 2 * len(frame) <= self._bytes_max:
            self._frames[stored.path] = (stored.definition, frame)
            self._bytes += 2 * len(frame)
            while self._bytes > self._bytes_max:
                _, old = self._frames.pop(next(iter(self._frames)))
                self._bytes -= 2 * len(old)
        return frame


class Calls:
    """The calls that run now, so that the end can wait for them and for nothing else."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()
        self._ended = -math.inf  # monotonic seconds, when the last one did

    @contextmanager
    def running(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            self._ended = time.monotonic()
            if not self._count:
                self._none.set()

    async def quiet(self, seconds: float, *, patience_seconds: float) -> None:
        """Return when none has run for `seconds`, or after `patience_seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self._none.wait()
                while not self._none.is_set() or self._ended + seconds > time.monotonic():
                    await asyncio.sleep(max(self._ended + seconds - time.monotonic(), 0))
                    await self._none.wait()


class CatalogService:
    """The handlers of `alpheus.v1.Catalog`."""

    def __init__(
        self,
        journal: ServedJournal,
        writer: Writer,
        hub: Hub,
        *,
        write_timeout_seconds: float,
        lookup_bytes_max: int,
        sole_writer: bool = False,
    ) -> None:
        self._journal = journal
        self._writer = writer
        self._hub = hub
        self._write_timeout_seconds = write_timeout_seconds
        self._sole_writer = sole_writer
        self._lookups = LookupAnswers(lookup_bytes_max)
        self.calls = Calls()
        self._writes: set[asyncio.Timeout] = set()  # of streams, waiting for their peers now
        # Request ids: unique in the logs of all daemons, cheap to make.
        self._instance = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetInfo": self._unary("GetInfo", self._get_info),
                "Resolve": self._unary("Resolve", self._resolve),
                "Load": self._unary("Load", self._load),
                "List": self._unary("List", self._list),
                "Commit": self._unary("Commit", self._commit),
                "GetOutcome": self._unary("GetOutcome", self._get_outcome),
                "Events": self._stream("Events", self._events),
                "Log": self._stream("Log", self._log),
                "Diff": self._stream("Diff", self._diff),
                "ListDropped": self._stream("ListDropped", self._list_dropped),
                "SaveTransaction": self._unary("SaveTransaction", self._save_transaction),
                "LoadTransaction": self._unary("LoadTransaction", self._load_transaction),
                "ListTransactions": self._stream("ListTransactions", self._list_transactions),
                "DiscardTransaction": self._unary("DiscardTransaction", self._discard_transaction),
                "Check": self._stream("Check", self._check),
            },
        )

    # --- calls with one answer

    async def _get_info(self, data: bytes) -> bytes:
        parse(pb.GetInfoRequest, data)
        return wire.encode_info(await self._journal.info()).SerializeToString()

    async def _resolve(self, data: bytes) -> bytes:
        request = parse(pb.ResolveRequest, data)
        resolved = await self._journal.resolve(self._at(request.at))
        return wire.encode_version_info(resolved).SerializeToString()

    async def _load(self, data: bytes) -> bytes:
        request = parse(pb.LoadRequest, data)
        if len(request.names) > wire.NAMES_COUNT_MAX:
            raise InvalidInput(
                f"{len(request.names)} names in one request, {wire.NAMES_COUNT_MAX} at most",
                kind="too_large",
                hint="ask in several requests, at one version",
            )
        names = [wire.decode_name(name) for name in request.names]
        loaded = await self._journal.load(self._at(request.at), names)
        frames = [self._lookups.frame(stored) for stored in loaded.objects]
        frames.append(pb.LoadResponse(version=loaded.version).SerializeToString())
        answer = b"".join(frames)
        if len(answer) > wire.REPLY_BYTES_MAX:
            raise InvalidInput(
                f"the definitions of {len(names)} names take {len(answer)} bytes,"
                f" {wire.REPLY_BYTES_MAX} at most",
                kind="too_large",
                hint="ask for fewer names at a time",
            )
        return answer

    async def _list(self, data: bytes) -> bytes:
        request = parse(pb.ListRequest, data)
        page = await self._journal.list(
            self._at(request.at),
            wire.decode_kind(request.type),
            namespace=request.namespace_name,
            prefix=request.prefix,
            limit=min(request.limit or wire.NAMES_COUNT_MAX, wire.NAMES_COUNT_MAX),
            after=request.after,
        )
        return wire.encode_page(page).SerializeToString()

    async def _commit(self, data: bytes) -> bytes:
        transaction = wire.decode_transaction_request(parse(pb.CommitRequest, data))
        _check_id(transaction.id)
        structlog.contextvars.bind_contextvars(transaction_id=transaction.id)
        try:
            committed = await self._writer.submit(transaction, size_bytes=len(data))
        except AlpheusError:
            raise
        except Exception as error:
            log.exception("commit_failed")
            raise OutcomeUnknown(
                f"the daemon failed; the outcome of transaction {transaction.id} is unknown",
                transaction_id=transaction.id,
                hint="send the same again, or ask for its outcome",
            ) from error
        return wire.encode_committed(committed).SerializeToString()

    async def _get_outcome(self, data: bytes) -> bytes:
        request = parse(pb.GetOutcomeRequest, data)
        _check_id(request.transaction_id)
        since = request.since_version if request.HasField("since_version") else None
        if request.settle:
            outcome = await settle(self._journal, self._writer, request.transaction_id, since)
        else:
            outcome = await self._journal.outcome(request.transaction_id, since=since)
        return wire.encode_outcome(outcome).SerializeToString()

    # --- distributed transactions

    async def _save_transaction(self, data: bytes) -> bytes:
        transaction = wire.decode_transaction_request(parse(pb.CommitRequest, data))
        saved = await self._journal.save_transaction(transaction)
        # The caller knows what it sent.
        brief = msgspec.structs.replace(saved.transaction, operations=(), reads=())
        return wire.encode_saved(msgspec.structs.replace(saved, transaction=brief)).SerializeToString()

    async def _load_transaction(self, data: bytes) -> bytes:
        request = parse(pb.LoadTransactionRequest, data)
        return wire.encode_saved(
            await self._journal.load_transaction(request.transaction_id)
        ).SerializeToString()

    async def _discard_transaction(self, data: bytes) -> bytes:
        request = parse(pb.DiscardTransactionRequest, data)
        _check_id(request.transaction_id)

        async def settled(since: int | None) -> Outcome:
            return await settle(self._journal, self._writer, request.transaction_id, since)

        outcome = await self._journal.discard_transaction(request.transaction_id, settle=settled)
        return wire.encode_outcome(outcome).SerializeToString()

    # --- streams

    async def _events(self, data: bytes, write: Write) -> None:
        query = wire.decode_events_request(parse(pb.EventsRequest, data))
        token = await self._start_token(query.after)
        async with aclosing(self._hub.stream(query)) as deliveries:
            async for delivery in deliveries:
                try:
                    await write(delivery.message)
                except TimeoutError:
                    raise Exhausted(
                        f"the subscriber took no message for {self._write_timeout_seconds:g} s and was cut off"
                        f" before it got to version {delivery.version}",
                        kind="subscriber_too_slow",
                        resume_token=token,
                        hint="go on after the resume token; read faster, or filter more",
                    ) from None
                token = delivery.token

    async def _start_token(self, after: int | str | None) -> str:
        """Where a stream begins, as far as a token can say that."""
        if isinstance(after, int) and 0 <= after <= self._journal.head.version:
            return (await self._journal.resolve(after)).token
        return after if isinstance(after, str) else ""

    async def _log(self, data: bytes, write: Write) -> None:
        request = parse(pb.LogRequest, data)
        entries = self._journal.log(
            name=wire.decode_name(request.object) if request.HasField("object") else None,
            after=request.after_version if request.HasField("after_version") else None,
            until=request.until_version if request.HasField("until_version") else None,
        )
        await self._write_all((wire.encode_log_entry(entry) async for entry in entries), write)

    async def _diff(self, data: bytes, write: Write) -> None:
        request = parse(pb.DiffRequest, data)
        before, after = (self._at(getattr(request, field)) for field in ("from", "to"))
        changes = self._journal.diff(before, after, details=request.details)
        await self._write_all(
            (pb.DiffResponse(changes=[wire.encode_change(change)]) async for change in changes), write
        )

    async def _list_dropped(self, data: bytes, write: Write) -> None:
        request = parse(pb.ListDroppedRequest, data)
        found = self._journal.dropped(
            namespace=request.namespace_name or None,
            name=wire.decode_name(request.object) if request.HasField("object") else None,
        )
        await self._write_all((wire.encode_dropped(item) async for item in found), write)

    async def _list_transactions(self, data: bytes, write: Write) -> None:
        parse(pb.ListTransactionsRequest, data)
        saved = self._journal.saved_transactions()
        await self._write_all((wire.encode_saved(item) async for item in saved), write)

    async def _check(self, data: bytes, write: Write) -> None:
        request = parse(pb.CheckRequest, data)
        found = self._journal.check(
            after=request.after_version if request.HasField("after_version") else None
        )
        await self._write_all((wire.encode_check(item) async for item in found), write)

    async def _write_all(self, messages: AsyncIterator[Message], write: Write) -> None:
        async for message in messages:
            try:
                await write(message.SerializeToString())
            except TimeoutError:
                raise Exhausted(
                    f"the caller took no message for {self._write_timeout_seconds:g} s and was cut off",
                    kind="subscriber_too_slow",
                    hint="ask for a shorter range, or read faster",
                ) from None

    # --- what all of them share

    def hurry(self) -> None:
        """The end is near: peers that do not read are cut off after `HURRY_SECONDS`."""
        self._write_timeout_seconds = min(self._write_timeout_seconds, HURRY_SECONDS)
        until = asyncio.get_running_loop().time() + self._write_timeout_seconds
        for limit in self._writes:
            limit.reschedule(min(limit.when() or until, until))

    def _at(self, message: pb.VersionRef) -> At:
        at = wire.decode_at(message)
        # The only writer knows the head; for all others None means a probe that starts now.
        return self._journal.head.version if at is None and self._sole_writer else at

    def _unary(
        self, method: str, answer: Callable[[bytes], Awaitable[bytes]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: Context) -> bytes:
            started, request_id = time.monotonic(), self._begin(method)
            with self.calls.running():
                try:
                    reply = await answer(data)
                except Exception as error:
                    await _abort(context, error, request_id)
                    raise AssertionError("abort raises") from error
            log.debug("request", took_ms=_took_ms(started), reply_bytes=len(reply))
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    def _stream(
        self, method: str, answer: Callable[[bytes, Write], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: Context) -> None:
            started, request_id = time.monotonic(), self._begin(method)

            async def write(message: bytes) -> None:
                async with asyncio.timeout(self._write_timeout_seconds) as limit:
                    self._writes.add(limit)
                    try:
                        await context.write(message)
                    finally:
                        self._writes.discard(limit)

            with self.calls.running():
                try:
                    # By itself: sent along with a first write that is given up, it would be sent again with
                    # the status, which gRPC refuses, and the call would never end.
                    await context.send_initial_metadata(())
                    await answer(data, write)
                except grpc.aio.InternalError as error:
                    # How a write to a peer that is gone fails: there is nobody to tell.
                    log.debug("peer_gone", took_ms=_took_ms(started), error=str(error))
                    return
                except Exception as error:
                    # A peer that reads nothing gets the status when it reads again; nobody waits for that.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FLUSH_SECONDS):
                            await _abort(context, error, request_id)
            log.debug("request", took_ms=_took_ms(started))

        return grpc.unary_stream_rpc_method_handler(handle)

    def _begin(self, method: str) -> str:
        request_id = f"{self._instance}-{next(self._numbers)}"
        structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
        return request_id


Write = Callable[[bytes], Awaitable[None]]
"""Sends one message of a stream; TimeoutError when the peer does not take it in time."""


def parse(message_type: type[Request], data: bytes) -> Request:
    """The request in `data`; InvalidInput when it is none."""
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the request is no {message_type.DESCRIPTOR.name}: {error}") from None


def _check_id(transaction_id: str) -> None:
    if not fmt.is_uuid(transaction_id):
        raise InvalidInput(
            f"transaction id {transaction_id[:80]!r} is no uuid", hint="a version 7 UUID in lower case"
        )


def _took_ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 3)


async def _abort(context: Context, error: Exception, request_id: str) -> None:
    """End the call with the status that stands for `error`. Always raises."""
    if not isinstance(error, AlpheusError):
        log.error("request_failed", exc_info=error)
        await context.abort(
            grpc.StatusCode.INTERNAL, f"internal error; the daemon's log has it under request {request_id}"
        )
    assert isinstance(error, AlpheusError)
    level = log.debug
    if isinstance(error, Corrupt):
        level = log.error
    elif isinstance(error, OutcomeUnknown) or error.kind in ("storage_unavailable", "subscriber_too_slow"):
        level = log.warning
    level("request_refused", error_class=wire.class_name(error), kind=error.kind, error=str(error))
    await context.abort(
        grpc.StatusCode[wire.grpc_status_code_name(error)],
        wire.cut(error.message, _STATUS_TEXT_BYTES_MAX),
        ((wire.ERROR_METADATA_KEY, wire.error_detail(error)),),
    )


# --- the server ------------------------------------------------------------------------------------


class Server:
    """The listener: the catalog's service and `grpc.health.v1` on one address."""

    def __init__(self, service: CatalogService, config: Config) -> None:
        self._listen = config.listen
        self._service = service
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=config.requests_max,
            options=(
                ("grpc.max_receive_message_length", config.request_bytes_max),
                ("grpc.max_send_message_length", wire.REPLY_BYTES_MAX),
                # A second daemon on the same port must fail, not share it.
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", round(config.keepalive_seconds * 1000)),
                ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_seconds * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ),
        )
        self._server.add_generic_rpc_handlers((service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def bind(self) -> str:
        """Take the address; what clients connect to: `host:port` or `unix:///path`.

        Unavailable (`daemon_unavailable`) when it is taken or cannot be had.
        """
        host, port = parse_listen(self._listen)
        if port < 0:
            _check_socket_free(host)
        try:
            bound = self._server.add_insecure_port(f"unix:{host}" if port < 0 else self._listen)
        except RuntimeError:
            raise _taken(self._listen) from None
        if port < 0:
            return f"unix://{host}"
        return f"{host}:{bound}"

    async def start(self) -> None:
        """Answer requests; health says SERVING."""
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def withdraw(self) -> None:
        """Health says NOT_SERVING; requests are still answered, streams to peers that do not read end."""
        self._service.hurry()
        with suppress(TimeoutError):  # one watcher that reads nothing holds up the word to all of them
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Stop when callers are quiet, or soon; what runs then has the rest of `grace_seconds`."""
        deadline = time.monotonic() + grace_seconds
        # What arrives while gRPC stops is dropped, and its caller cannot know what became of it. So those who
        # send at this moment are answered first, if only by a refusal.
        await self._service.calls.quiet(
            QUIET_SECONDS, patience_seconds=min(DRAIN_SECONDS_MAX, grace_seconds / 2)
        )
        patience = deadline - time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.stop(patience))
            # gRPC also waits for peers that read nothing, that watch the health, that only opened a socket.
            await self._service.calls.quiet(0, patience_seconds=patience - FLUSH_SECONDS)
            await self._server.stop(FLUSH_SECONDS)


def _taken(address: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: it is taken, or not an address of this machine",
        kind="daemon_unavailable",
        hint="choose another with --listen; port 0 takes any free one",
    )


def _check_socket_free(path: str) -> None:
    """gRPC replaces a socket file that is there: one that answers belongs to another process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return
    raise _taken(f"unix://{path}")
