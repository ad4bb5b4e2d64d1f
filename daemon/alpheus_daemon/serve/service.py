"""gRPC to the journal and back: requests are read and checked, answers are written, nothing is decided.

Handlers take and return bytes, so that answers made once (definitions, events) are sent as they are. Every
`AlpheusError` becomes its status code, with an ErrorDetail in the trailing metadata `alpheus-error-bin`. Any other
error is a bug: the status is INTERNAL with the request's id, and the log has a traceback under that id.

The module is long so that every method of the service is seen in one place.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol

import grpc
import msgspec
import structlog
from google.protobuf.message import Message

from alpheus_daemon.retention import Retention
from alpheus_daemon.serve.calls import Calls
from alpheus_daemon.serve.commit_stream import (
    CommitStream,
    check_transaction_id,
    decode_commit,
    transaction_id_of,
)
from alpheus_daemon.serve.deadlines import Deadlines, WriteDeadlines
from alpheus_daemon.serve.lookups import LoadCache, LoadSource
from alpheus_daemon.serve.request_weights import REQUEST_BYTE_WEIGHT
from alpheus_daemon.serve.requests import parse, read, weigh
from alpheus_daemon.serve.watch import EventSource, Hub
from alpheus_daemon.serve.writer import Settling, Writer, settle
from alpheus_daemon.telemetry.logs import logger
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_daemon.telemetry.tracing import Span, Tracer
from alpheus_journal.access import Access
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Exhausted,
    InvalidInput,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.model.answers import Collection, Committed, Outcome
from alpheus_journal.model.operations import Transaction
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_journal.wire import symbols as symbols_wire
from alpheus_journal.wire.positions import position_message, position_of_message
from alpheus_pb.v1 import service_pb2 as pb

SERVICE_NAME = "alpheus.v1.Catalog"
_CATALOG = pb.DESCRIPTOR.services_by_name["Catalog"]

_STATUS_TEXT_BYTES_MAX = 400
"""The size of the status message, which is percent-encoded into metadata. The ErrorDetail has the whole text."""

HURRY_SECONDS = 0.5
"""The write time-out of streams while the daemon shuts down."""
ANSWER_SECONDS = 1.0
"""The time before a caller's deadline at which a hanging read is answered with an error."""
DEADLINE_SECONDS_MAX = 1e6
FLUSH_SECONDS = 0.3
"""The time for the last answers to leave after they were handed to gRPC."""

log = logger()

Context = grpc.aio.ServicerContext[bytes, bytes]

_peer: ContextVar[str] = ContextVar("peer", default="")
"""The peer of a commit call. The commits of one connection form one line in the queue."""
_weight: ContextVar[int] = ContextVar("weight", default=0)
"""The weight of the call's request."""


class ServedJournal(LoadSource, Access, EventSource, Settling, Protocol):
    """The part of the journal that the service needs: every access, and following the log."""

    sole_writer: bool

    async def discard_transaction(
        self, transaction_id: str, *, settle: Callable[[int | None], Awaitable[Outcome]] | None = None
    ) -> Outcome:
        """Discard a saved transaction. `settle` commits through the writer, as a daemon always does."""
        ...

    def collect(
        self,
        *,
        minimum_age_millis: int,
        dry_run: bool = False,
        commit: Callable[[Transaction], Awaitable[Committed]] | None = None,
    ) -> AsyncIterator[Collection]:
        """Collect unreferenced files. `commit` commits the fence through the writer, as a daemon always does."""
        ...


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
        requests_max: int = 20_000,
        requests_bytes_max: int = 256 << 20,
        request_bytes_max: int = 4 << 20,
        stream_count_max: int = 4096,
        stream_bytes_max: int = 16 << 20,
        sole_writer: bool = False,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._journal = journal
        self._retention = retention or Retention(journal, writer.submit)
        self._metrics = metrics or Metrics()
        self._tracer = tracer or Tracer()
        self._writer = writer
        self._hub = hub
        self._deadlines = WriteDeadlines(write_timeout_seconds)  # for peers to accept messages of streams
        journal.sole_writer = sole_writer
        self.lookups = LoadCache(journal, lookup_bytes_max)
        self._snapshots_count = 0
        self.calls = Calls(
            count_max=requests_max,
            bytes_max=requests_bytes_max,
            one_bytes_max=REQUEST_BYTE_WEIGHT * request_bytes_max,
        )
        self._stream_count_max = stream_count_max
        self._stream_bytes_max = stream_bytes_max
        self._reads = Deadlines()
        self._ending = asyncio.Event()  # set when streams of commits are to be read no more
        # Request ids: unique in the logs of all daemons, cheap to make.
        self._instance = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    def configure(
        self,
        *,
        write_timeout_seconds: float,
        lookup_bytes_max: int,
        requests_bytes_max: int,
    ) -> None:
        """Change the bounds from now on."""
        self._deadlines.configure(write_timeout_seconds)
        self.lookups.resize(lookup_bytes_max)
        self.calls.bytes_max = requests_bytes_max

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetInfo": self._unary("GetInfo", self._get_info, is_read=True),
                "Resolve": self._unary("Resolve", self._resolve, is_read=True),
                "Load": self._unary("Load", self.lookups.answer, is_read=True),
                "List": self._unary("List", self._list, is_read=True),
                "Snapshot": self._stream("Snapshot", self._snapshot),
                "Commit": self._unary("Commit", self._commit, is_commit=True),
                "CommitMany": self._commits(),
                "GetOutcome": self._unary("GetOutcome", self._get_outcome),
                "Events": self._stream("Events", self._events),
                "Log": self._stream("Log", self._log),
                "Diff": self._stream("Diff", self._diff),
                "ListDropped": self._stream("ListDropped", self._list_dropped),
                "SaveTransaction": self._unary("SaveTransaction", self._save_transaction),
                "LoadTransaction": self._unary("LoadTransaction", self._load_transaction),
                "ListTransactions": self._stream("ListTransactions", self._list_transactions),
                "DiscardTransaction": self._unary("DiscardTransaction", self._discard_transaction),
                "CreatePin": self._unary("CreatePin", self._create_pin),
                "LoadPosition": self._unary("LoadPosition", self._load_position),
                "Acknowledge": self._unary("Acknowledge", self._acknowledge),
                "ListSymbols": self._unary("ListSymbols", self._list_symbols, is_read=True),
                "ReloadSymbols": self._unary("ReloadSymbols", self._reload_symbols),
                "CheckSymbols": self._unary("CheckSymbols", self._check_symbols),
                "CompactSymbols": self._unary("CompactSymbols", self._compact_symbols),
                "Checkpoint": self._unary("Checkpoint", self._checkpoint),
                "Expire": self._stream("Expire", self._expire),
                "Collect": self._stream("Collect", self._collect),
                "Check": self._stream("Check", self._check),
            },
        )

    # --- calls with one answer

    async def _get_info(self, data: bytes) -> bytes:
        # Unknown fields are allowed here, because a newer client learns from the answer which release answers.
        read(pb.GetInfoRequest, data)
        return wire.encode_info(await self._journal.info()).SerializeToString()

    async def _resolve(self, data: bytes) -> bytes:
        request = parse(pb.ResolveRequest, data)
        resolved = await self._journal.resolve(wire.decode_at(request.at))
        return wire.encode_version_info(resolved).SerializeToString()

    async def _list(self, data: bytes) -> bytes:
        request = parse(pb.ListRequest, data)
        page = await self._journal.list(
            wire.decode_at(request.at),
            wire.decode_kind(request.type),
            namespace=request.namespace_name,
            prefix=request.prefix,
            limit=min(request.limit or wire.NAMES_COUNT_MAX, wire.NAMES_COUNT_MAX),
            after=request.after,
        )
        return wire.encode_page(page).SerializeToString()

    async def _decode_transaction(self, data: bytes) -> Transaction:
        try:
            transaction = await decode_commit(data, _weight.get())
        except AlpheusError:
            with suppress(InvalidInput):
                _bind_transaction(transaction_id_of(data))
            raise
        _bind_transaction(transaction.id)
        return transaction

    async def _commit(self, data: bytes) -> bytes:
        transaction = await self._decode_transaction(data)
        try:
            committed = await self._writer.submit(transaction, size_bytes=len(data), source=_peer.get())
        except AlpheusError:
            raise
        except Exception as error:
            log.exception("commit_failed")
            raise OutcomeUnknown(
                f"the daemon failed; the outcome of transaction {transaction.id} is unknown",
                transaction_id=transaction.id,
                hint="send the same transaction again, or ask for its outcome",
            ) from error
        return wire.encode_committed(committed).SerializeToString()

    async def _get_outcome(self, data: bytes) -> bytes:
        request = parse(pb.GetOutcomeRequest, data)
        if request.key:
            return await self._find_commit_of_key(request)
        _bind_transaction(request.transaction_id)
        check_transaction_id(request.transaction_id)
        since = request.since_version if request.HasField("since_version") else None
        if request.settle:
            outcome = await settle(self._journal, self._writer, request.transaction_id, since)
        else:
            outcome = await self._journal.outcome(
                request.transaction_id, since=since, certain=request.certain
            )
        return wire.encode_outcome(outcome).SerializeToString()

    async def _find_commit_of_key(self, request: pb.GetOutcomeRequest) -> bytes:
        others = [field.name for field, _ in request.ListFields() if field.name != "key"]
        if others:
            raise InvalidInput(f"a request for the outcome of a key must not have {', '.join(others)}")
        commit = await self._journal.find_commit_of_key(request.key)
        outcome = Outcome(state="unknown" if commit is None else "committed", commit=commit)
        return wire.encode_outcome(outcome).SerializeToString()

    # --- distributed transactions

    async def _save_transaction(self, data: bytes) -> bytes:
        transaction = await self._decode_transaction(data)
        saved = await self._journal.save_transaction(transaction)
        # The caller knows its own operations and reads.
        brief = msgspec.structs.replace(saved.transaction, operations=(), reads=())
        return wire.encode_saved(msgspec.structs.replace(saved, transaction=brief)).SerializeToString()

    async def _load_transaction(self, data: bytes) -> bytes:
        request = parse(pb.LoadTransactionRequest, data)
        _bind_transaction(request.transaction_id)
        return wire.encode_saved(
            await self._journal.load_transaction(request.transaction_id)
        ).SerializeToString()

    async def _discard_transaction(self, data: bytes) -> bytes:
        request = parse(pb.DiscardTransactionRequest, data)
        _bind_transaction(request.transaction_id)
        check_transaction_id(request.transaction_id)

        async def settle_now(since: int | None) -> Outcome:
            return await settle(self._journal, self._writer, request.transaction_id, since)

        outcome = await self._journal.discard_transaction(request.transaction_id, settle=settle_now)
        return wire.encode_outcome(outcome).SerializeToString()

    # --- pins

    async def _create_pin(self, data: bytes) -> bytes:
        request = parse(pb.CreatePinRequest, data)
        pin = await self._journal.create_pin(
            wire.decode_at(request.at),
            only=wire.decode_pin_objects(request.only) or None,
            without=wire.decode_pin_objects(request.without),
        )
        return wire.encode_pin(pin).SerializeToString()

    # --- subscriptions

    async def _load_position(self, data: bytes) -> bytes:
        request = parse(pb.LoadPositionRequest, data)
        position = await self._journal.position(request.path)
        found = None if position is None else position_message(position)
        return pb.LoadPositionResponse(position=found).SerializeToString()

    async def _acknowledge(self, data: bytes) -> bytes:
        request = parse(pb.AcknowledgeRequest, data)
        try:
            position = position_of_message(request.position)
        except ValueError as error:
            raise InvalidInput(f"the position of subscription {request.name[:120]!r}: {error}") from None
        await self._journal.acknowledge(request.name, request.path, position)
        return pb.AcknowledgeResponse().SerializeToString()

    # --- the symbol list, checkpoints

    async def _list_symbols(self, data: bytes) -> bytes:
        at, query = symbols_wire.decode_symbols_request(parse(pb.ListSymbolsRequest, data))
        return symbols_wire.encode_symbol_page(await self._journal.symbols(at, query)).SerializeToString()

    async def _reload_symbols(self, data: bytes) -> bytes:
        parse(pb.ReloadSymbolsRequest, data)
        return symbols_wire.encode_symbols_info(await self._journal.reload_symbols()).SerializeToString()

    async def _check_symbols(self, data: bytes) -> bytes:
        request = parse(pb.CheckSymbolsRequest, data)
        drift = await self._journal.check_symbols(sample=request.sample or None)
        return symbols_wire.encode_drift(drift).SerializeToString()

    async def _compact_symbols(self, data: bytes) -> bytes:
        parse(pb.CompactSymbolsRequest, data)
        return symbols_wire.encode_symbols_info(await self._journal.compact_symbols()).SerializeToString()

    async def _checkpoint(self, data: bytes) -> bytes:
        request = parse(pb.CheckpointRequest, data)
        info = await self._journal.checkpoint(verify=request.verify)
        return symbols_wire.encode_checkpoint_info(info).SerializeToString()

    # --- streams

    async def _snapshot(self, data: bytes, write: Write) -> None:
        request = parse(pb.SnapshotRequest, data)
        parts = self._journal.snapshot(wire.decode_at(request.at), namespaces=frozenset(request.namespaces))
        self._snapshots_count += 1
        try:
            await self._write_all((wire.encode_part(part) async for part in parts), write)
        finally:
            self._snapshots_count -= 1

    async def _events(self, data: bytes, write: Write) -> None:
        query = wire.decode_events_request(parse(pb.EventsRequest, data))
        token = await self._start_token(query.after)
        async with aclosing(self._hub.stream(query)) as deliveries:
            async for delivery in deliveries:
                try:
                    await write(delivery.message)
                except TimeoutError:
                    self._hub.counts.cut_off += 1
                    raise Exhausted(
                        f"the subscriber took no message for {self._deadlines.seconds:g} s and was cut off"
                        f" before it got to version {delivery.version}",
                        kind="subscriber_too_slow",
                        resume_token=token,
                        hint="subscribe again after the resume token; read faster, or filter more",
                    ) from None
                token = delivery.token

    async def _start_token(self, after: int | str | None) -> str:
        """Return the token of a stream's start, or "" if there is none."""
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
        before, after = (wire.decode_at(getattr(request, field)) for field in ("from", "to"))
        changes = self._journal.diff(before, after, details=request.details)
        await self._write_all(
            (pb.DiffResponse(changes=[wire.encode_change(change)]) async for change in changes), write
        )

    async def _list_dropped(self, data: bytes, write: Write) -> None:
        request = parse(pb.ListDroppedRequest, data)
        found = self._journal.dropped(
            namespace=request.namespace_name or None,
            name=wire.decode_name(request.object) if request.HasField("object") else None,
            version=request.version if request.HasField("version") else None,
        )
        await self._write_all((wire.encode_dropped(item) async for item in found), write)

    async def _list_transactions(self, data: bytes, write: Write) -> None:
        parse(pb.ListTransactionsRequest, data)
        saved = self._journal.saved_transactions()
        await self._write_all((wire.encode_saved(item) async for item in saved), write)

    async def _expire(self, data: bytes, write: Write) -> None:
        request = parse(pb.ExpireRequest, data)
        async with aclosing(
            self._retention.expire(wire.decode_expire_request(request), dry_run=request.dry_run)
        ) as found:
            await self._write_all((wire.encode_expiry(item) async for item in found), write)

    async def _collect(self, data: bytes, write: Write) -> None:
        request = parse(pb.CollectRequest, data)
        async with aclosing(
            self._retention.collect(minimum_age_millis=request.minimum_age_millis, dry_run=request.dry_run)
        ) as found:
            await self._write_all((wire.encode_collection(item) async for item in found), write)

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
                    f"the caller took no message for {self._deadlines.seconds:g} s and was cut off",
                    kind="subscriber_too_slow",
                    hint="ask for a shorter range, or read faster",
                ) from None

    def _commits(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of CommitMany.

        Each message counts as a call from its arrival to its last answer. The stream itself does not count, so an idle
        stream does not delay the end of the daemon.
        """

        async def handle(_: AsyncIterator[bytes], context: Context) -> None:
            async def read() -> bytes | None:
                data: object = await context.read()
                return data if isinstance(data, bytes) else None  # gRPC marks the end with another object

            async def write(message: bytes) -> None:
                await self._deadlines.within(context.write(message))

            def refused(error: AlpheusError, transaction_id: str) -> None:
                self._metrics.commit_refused(error.kind, "stream")
                _log_refused(error, transaction_id=transaction_id)

            with self._request("CommitMany", context) as request:
                stream = CommitStream(
                    self._writer,
                    source=context.peer(),
                    count_max=self._stream_count_max,
                    bytes_max=self._stream_bytes_max,
                    calls=self.calls,
                    refused=refused,
                    request_id=request.id,
                )
                try:
                    await context.send_initial_metadata(())
                    await stream.run(read, write, self._ending)
                except (grpc.aio.InternalError, TimeoutError) as error:
                    # The peer is gone or takes no answers. It asks again for transactions without an answer.
                    log.debug("peer_gone", error=str(error))
                except Exception as error:
                    await _abort_stream(context, request, error)
                else:
                    request.end()

        return grpc.stream_stream_rpc_method_handler(handle)

    # --- parts that all handlers share

    def end_commits(self) -> None:
        """End streams of commits once the transactions that they sent are answered."""
        self._ending.set()

    def shorten_write_timeout(self) -> None:
        """Cut off peers that do not read after `HURRY_SECONDS`, as the daemon is about to end."""
        self._deadlines.configure(min(self._deadlines.seconds, HURRY_SECONDS))

    @property
    def sole_writer(self) -> bool:
        """Whether reads use the known head without a probe. This ends when another writer's version is found."""
        return self._journal.sole_writer

    @sole_writer.setter
    def sole_writer(self, value: bool) -> None:
        self._journal.sole_writer = value

    @property
    def snapshots_count(self) -> int:
        """The snapshot streams that are running."""
        return self._snapshots_count

    def _unary(
        self,
        method: str,
        answer: Callable[[bytes], Awaitable[bytes]],
        *,
        is_read: bool = False,
        is_commit: bool = False,
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with one answer.

        `is_read` means that the call may be given up: if the storage hangs, the caller gets an error before its own
        deadline.
        """

        message_type = _request_type(method)

        async def handle(data: bytes, context: Context) -> bytes:
            if is_commit:
                _peer.set(context.peer())
            size_bytes = len(data)
            request = self._begin(method)
            self.calls.begin(size_bytes)
            try:
                with self._tracer.request(method, request.id, context) as span:
                    try:
                        size_bytes = await self._weigh(message_type, data)
                        reply = await (self._in_time(context, answer(data)) if is_read else answer(data))
                        request.end(reply_bytes=len(reply))
                    except Exception as error:
                        request.fail(error)
                        if is_commit and isinstance(error, AlpheusError):
                            self._metrics.commit_refused(error.kind, "unary")
                        await _abort(context, error, request.id)
                        return b""
                    finally:
                        self._end(request, span)
                return reply
            finally:
                self.calls.end(size_bytes)

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _weigh(self, message_type: type[Message], data: bytes) -> int:
        """Weigh the request of a running call, and count the weight. Raises the error that refuses the request."""
        self.calls.check(len(data))
        weight = await weigh(message_type, data, self.calls.one_bytes_max)
        self.calls.grow(len(data), weight)
        _weight.set(weight)
        return weight

    def _stream(
        self, method: str, answer: Callable[[bytes, Write], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        message_type = _request_type(method)

        async def handle(data: bytes, context: Context) -> None:
            async def write(message: bytes) -> None:
                await self._deadlines.within(context.write(message))

            size_bytes = len(data)
            self.calls.begin(size_bytes)
            try:
                with self._request(method, context) as request:
                    try:
                        # Metadata is sent separately. Sent along with a first write that is given up, it would be
                        # sent again with the status, which gRPC refuses, and the call would never end.
                        await context.send_initial_metadata(())
                        size_bytes = await self._weigh(message_type, data)
                        await answer(data, write)
                    except grpc.aio.InternalError as error:
                        # A write to a peer that is gone fails in this way. No peer is left to get an error.
                        log.debug("peer_gone", error=str(error))
                    except Exception as error:
                        await _abort_stream(context, request, error)
                    else:
                        request.end()
            finally:
                self.calls.end(size_bytes)

        return grpc.unary_stream_rpc_method_handler(handle)

    @contextmanager
    def _request(self, method: str, context: Context) -> Iterator[_Request]:
        """Run one call: its id is on every line that it logs, and it has a span and a place in the metrics."""
        request = self._begin(method)
        with self._tracer.request(method, request.id, context) as span:
            try:
                yield request
            finally:
                self._end(request, span)

    def _begin(self, method: str) -> _Request:
        request = _Request(method, f"{self._instance}-{next(self._numbers)}")
        structlog.contextvars.bind_contextvars(request_id=request.id, method=method)
        return request

    def _end(self, request: _Request, span: Span) -> None:
        request.seconds = time.monotonic() - request.started
        self._metrics.request(request.method, request.status, request.seconds)
        span.end(request.status)
        request.log()

    async def _in_time(self, context: Context, answer: Awaitable[bytes]) -> bytes:
        remaining = context.time_remaining()
        if remaining is None or remaining > DEADLINE_SECONDS_MAX:
            return await answer
        patience = max(remaining - min(ANSWER_SECONDS, remaining / 5), 0)
        read = _Read()
        self._reads.add(read, patience)
        try:
            return await answer
        except asyncio.CancelledError:
            if not read.is_over or read.task.cancelling() > read.cancelling + 1:
                raise
            raise Unavailable(
                f"the storage gave no answer within {patience:.1f} s",
                hint="try again; a client that connects with a staleness can read meanwhile, within that bound",
            ) from None
        finally:
            self._reads.discard(read)
            if read.is_over:
                read.task.uncancel()


class _Read:
    """A wait of the current task, which is given up when its time is over."""

    __slots__ = ("cancelling", "is_over", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.cancelling = task.cancelling()
        self.is_over = False

    def expire(self) -> None:
        self.is_over = True
        self.task.cancel()


class _Request:
    """The result of one call. The status is CANCELLED unless the call ends or fails, as when its caller goes away."""

    __slots__ = ("id", "method", "reply_bytes", "seconds", "started", "status")

    def __init__(self, method: str, id: str) -> None:
        self.method = method
        self.id = id
        self.started = time.monotonic()
        self.seconds = 0.0
        self.status = "CANCELLED"
        self.reply_bytes = 0

    def end(self, *, reply_bytes: int = 0) -> None:
        self.status = "OK"
        self.reply_bytes = reply_bytes

    def fail(self, error: Exception) -> None:
        self.status = "INTERNAL"
        if isinstance(error, AlpheusError):
            self.status = errors.grpc_status_code_name(error)

    def log(self) -> None:
        log.debug(
            "request",
            status=self.status,
            took_ms=round(self.seconds * 1000, 3),
            reply_bytes=self.reply_bytes,
        )


Write = Callable[[bytes], Awaitable[None]]
"""Sends one message of a stream. Raises TimeoutError when the peer does not take the message in time."""


def _bind_transaction(transaction_id: str) -> None:
    """Put the transaction's id on all lines that this call logs."""
    structlog.contextvars.bind_contextvars(transaction_id=transaction_id)


def _log_refused(error: AlpheusError, **about: str) -> None:
    level = log.debug
    if isinstance(error, Corrupt):
        level = log.error
    elif isinstance(error, OutcomeUnknown) or error.kind in ("storage_unavailable", "subscriber_too_slow"):
        level = log.warning
    level("request_refused", error_class=errors.class_name(error), kind=error.kind, error=str(error), **about)


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames of an error, so that nothing of a request outlives its refusal.

    An error holds the frames that it passed through, and they hold the request. If one of these frames holds the error,
    too, this cycle would stay until the collector finds it.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        error.__traceback__ = None
        waiting += [error.__cause__, error.__context__]


def _request_type(method: str) -> type[Message]:
    found: type[Message] = getattr(pb, _CATALOG.methods_by_name[method].input_type.name)
    return found


async def _abort_stream(context: Context, request: _Request, error: Exception) -> None:
    """End a stream with an error; see `_abort`.

    A peer that reads nothing gets the status when it reads again. The daemon does not wait for that.
    """
    request.fail(error)
    with suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS):
            await _abort(context, error, request.id)


async def _abort(context: Context, error: Exception, request_id: str) -> None:
    """End the call with the status of `error`. Raises only if the peer is gone."""
    if isinstance(error, AlpheusError):
        _log_refused(error)
        code = grpc.StatusCode[errors.grpc_status_code_name(error)]
        text = errors.cut(error.message, _STATUS_TEXT_BYTES_MAX)
        metadata: tuple[tuple[str, bytes], ...] = ((errors.ERROR_METADATA_KEY, errors.error_detail(error)),)
    else:
        log.error("request_failed", exc_info=error)
        code, metadata = grpc.StatusCode.INTERNAL, ()
        text = f"internal error; the daemon's log has it under request {request_id}"
    forget_frames(error)
    try:
        await context.abort(code, text, metadata)
    except grpc.aio.AbortError as aborted:
        # The call keeps this error, which keeps its frames and so the request, until the collector finds the cycle.
        aborted.__context__ = None
        aborted.__traceback__ = None
    except grpc.aio.InternalError as gone:
        # The peer went away at this moment. gRPC would log an error of ours, but lets a cancelled call end.
        log.debug("peer_gone", error=str(gone))
        raise asyncio.CancelledError from gone
