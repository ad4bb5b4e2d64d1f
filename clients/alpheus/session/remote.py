"""A daemon as an `Access`: the catalog's service over gRPC.

One channel carries calls. Every stream of events has a channel of its own, because a reader that pauses fills the
flow-control window of its connection. The daemon sends details of an error in trailing metadata
(`wire.errors.ERROR_METADATA_KEY`). A status without details is mapped to an error by whether the request may have been
applied.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
import grpc.aio
import msgspec

from alpheus.session.commit_stream import CommitStream
from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import (
    At,
    CatalogInfo,
    Change,
    CheckSummary,
    Collection,
    Committed,
    Dropped,
    Event,
    Expiry,
    Finding,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Pin,
    PinObject,
    Position,
    Progress,
    SavedTransaction,
    SnapshotPart,
    VersionInfo,
)
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import Transaction
from alpheus_journal.replay.loader import CheckpointInfo, SymbolsInfo
from alpheus_journal.replay.symbols import Drift, SymbolPage, SymbolQuery
from alpheus_journal.storage import Storage, normal_url, open_storage
from alpheus_journal.urls import redact_url
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_journal.wire import symbols as symbols_wire
from alpheus_journal.wire.positions import position_message, position_of_message
from alpheus_pb.v1 import objects_pb2, service_pb2_grpc
from alpheus_pb.v1 import service_pb2 as pb

REQUEST_BYTES_MAX = 4 << 20
"""The default limit of a daemon. When a daemon refuses a larger request without details, the client reports that the
request is too large."""

LOAD_BYTES_MAX = 2 << 20
"""Size of the names in one Load request, far below the limit of a daemon."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", wire.REPLY_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Without bandwidth probes a reader that pauses costs the daemon 0.1 MiB of buffers, with them 4 MiB.
    ("grpc.http2.bdp_probe", 0),
    # The client notices within 40 s that a daemon stopped without closing its sockets.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # The session retries, because only the session knows which requests may be sent twice.
    ("grpc.enable_retries", 0),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # the time for one attempt to connect
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Otherwise channels to one address would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def _fit_request(names: list[bytes], start: int) -> list[bytes]:
    """The encoded names from `start` on that fit into one request, at least one."""
    size, end = 0, start
    stop = min(len(names), start + wire.NAMES_COUNT_MAX)
    while end < stop and (size := size + len(names[end]) + 4) <= LOAD_BYTES_MAX:
        end += 1
    return names[start : max(end, start + 1)]


_ALL = EventFilter()


def target_of(url: str) -> str:
    """gRPC's target for a daemon's URL. Raises InvalidInput (`bad_url`) for a URL that names no daemon."""
    refused = InvalidInput(
        f"{redact_url(url)!r} names no daemon",
        kind="bad_url",
        hint="give grpc://host:7480 or unix:///path/to.sock",
    )
    try:
        parts = urlsplit(url)
    except ValueError:  # for brackets that enclose no IPv6 address
        raise refused from None
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if not parts.netloc and path.startswith("/") and not parts.query and not parts.fragment:
            return f"unix:{path}"
    elif parts.scheme == "grpc" and parts.hostname and port:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        if url.rstrip("/") == f"grpc://{host}:{port}":
            return f"{host}:{port}"
    raise refused


_process: int | None = None  # the process that opened the first channel


def _check_process() -> None:
    """Refuse calls in a forked child, because gRPC's threads do not survive a fork and a call would abort the child."""
    global _process
    if _process is None:
        _process = os.getpid()
    if _process != os.getpid():
        raise InvalidInput(
            "gRPC was in use when this process was forked, and cannot be used in it",
            kind="not_supported",
            hint="start processes by spawn (multiprocessing.set_start_method), or fork before connecting",
        )


class RemoteAccess:
    """The catalog of a daemon. `info` must have been answered once before `keys` and `storage` are used.

    `timeout` is the number of seconds that one call may take; streams may take longer. `storage` is the storage for
    data files, instead of the one that the daemon names.
    """

    def __init__(self, url: str, *, timeout: float, storage: str | Storage | None = None) -> None:
        _check_process()
        self._url = url
        self._target = target_of(url)
        self._timeout = timeout
        self._storage_wanted = storage
        self._storage: Storage | None = None
        self._storage_lock = asyncio.Lock()
        self._info: CatalogInfo | None = None
        self._channel = self._open_channel()
        self._stub = service_pb2_grpc.CatalogStub(self._channel)
        self._commits = CommitStream(
            lambda: self._stub.CommitMany(),
            timeout_seconds=timeout,
            failure=lambda error, transaction_id: self._bare_failure(error, transaction_id, 0),
        )
        self._load_names = self._channel.unary_unary(
            "/alpheus.v1.Catalog/Load",
            request_serializer=pb.RawLoadRequest.SerializeToString,
            response_deserializer=pb.LoadResponse.FromString,
        )
        self._closed = False

    # -- the catalog

    @property
    def keys(self) -> fmt.Keys:
        info = self._require_info()
        return info.definition.keys(info.version_digits)

    @property
    def storage(self) -> Storage:
        """The storage that `open_storage` opened, which must have been awaited before."""
        if self._storage is None:
            raise AssertionError("open_storage() comes first")
        return self._storage

    async def open_storage(self) -> Storage:
        """Return the store for data files, which is opened at the first call.

        Raises InvalidInput (`storage_unreachable`) when this process cannot reach the store, or finds another catalog
        there.
        """
        async with self._storage_lock:
            if self._storage is None:
                self._storage = await self._reach_storage()
            return self._storage

    async def _reach_storage(self) -> Storage:
        info = self._require_info()
        wanted = self._storage_wanted
        if isinstance(wanted, Storage):
            return wanted
        if wanted is not None and not isinstance(wanted, str):
            raise InvalidInput(f"storage={redact_url(wanted)} is neither a URL nor a Storage", kind="bad_url")
        url = normal_url(wanted or info.storage_url)
        hint = "pass storage=, the URL under which this process reaches the catalog's storage"
        if url.startswith("memory:"):
            raise InvalidInput(
                f"the storage {redact_url(url)} is in the memory of another process",
                kind="storage_unreachable",
                hint="use a catalog on a storage that both processes can reach",
            )
        try:
            store = await asyncio.to_thread(open_storage, url)
        except NotFound as missing:
            raise InvalidInput(
                f"this process cannot find the storage {redact_url(url)}: {missing.message}",
                kind="storage_unreachable",
                hint=hint,
            ) from None
        head = fmt.version_file(info.version, info.version_digits)
        if not await store.exists(head):
            await store.close()
            raise InvalidInput(
                f"the storage {redact_url(url)} does not hold version {info.version} of the daemon's catalog",
                kind="storage_unreachable",
                hint=hint,
            )
        return store

    def _require_info(self) -> CatalogInfo:
        if self._info is None:
            raise AssertionError("info() comes first")
        return self._info

    async def info(self) -> CatalogInfo:
        info = wire.decode_info(await self._call(self._stub.GetInfo, pb.GetInfoRequest()))
        self._info = info
        return info

    async def resolve(self, at: At) -> VersionInfo:
        request = pb.ResolveRequest(at=wire.encode_at(at))
        return wire.decode_version_info(await self._call(self._stub.Resolve, request))

    async def load(self, at: At, names: builtins.list[ObjectName]) -> Loaded:
        encoded = [wire.encode_name(name).SerializeToString() for name in names]
        loaded = await self._load_some(at, _fit_request(encoded, 0))
        if len(loaded.objects) == len(names):
            return loaded
        objects = list(loaded.objects)
        while len(objects) < len(names):
            # All requests ask for the version of the first answer, so that all answers agree.
            objects.extend(
                (await self._load_some(loaded.version, _fit_request(encoded, len(objects)))).objects
            )
        return Loaded(version=loaded.version, objects=tuple(objects), token=loaded.token)

    async def _load_some(self, at: At, names: builtins.list[bytes]) -> Loaded:
        """Load the first of some encoded names, as many as fit into one answer."""
        while True:
            request = pb.RawLoadRequest(at=wire.encode_at(at), names=names)
            try:
                loaded = wire.decode_loaded(await self._call(self._load_names, request))
            except InvalidInput as error:
                if error.kind != "too_large" or len(names) == 1:
                    raise
                names = names[: len(names) // 2]
                continue
            if len(loaded.objects) != len(names):
                raise Unavailable(
                    f"the daemon answered {len(loaded.objects)} of {len(names)} names",
                    kind="daemon_unavailable",
                )
            return loaded

    async def list(
        self, at: At, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        request = pb.ListRequest(
            at=wire.encode_at(at),
            type=objects_pb2.ObjectType.Name(int(kind)),
            namespace_name=namespace,
            prefix=prefix,
            limit=limit,
            after=after,
        )
        return wire.decode_page(await self._call(self._stub.List, request))

    async def snapshot(
        self, at: At, *, namespaces: frozenset[str] = frozenset()
    ) -> AsyncGenerator[SnapshotPart, None]:
        request = wire.encode_snapshot_request(at, namespaces)
        async with self._open_channel() as channel:
            stub = service_pb2_grpc.CatalogStub(channel)
            async with aclosing(self._stream(stub.Snapshot(request))) as messages:
                async for message in messages:
                    yield wire.decode_part(message)

    async def commit(self, transaction: Transaction) -> Committed:
        request = wire.encode_transaction_request(transaction)
        # The request is sent only over an open connection, so that an absent daemon is a definite answer. From then on
        # a missing answer means that the transaction may have been applied.
        await self.ready()
        committed = await self._commits.commit(request)
        if committed is not None:
            return committed
        try:
            reply = await self._stub.Commit(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, commit=transaction.id, size=request.ByteSize()) from None
        return wire.decode_committed(reply, transaction.id)

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False, certain: bool = False
    ) -> Outcome:
        request = pb.GetOutcomeRequest(
            transaction_id=transaction_id, since_version=since, settle=settle, certain=certain
        )
        return wire.decode_outcome(await self._call(self._stub.GetOutcome, request), transaction_id)

    async def find_commit_of_key(self, key: str) -> Committed | None:
        reply = await self._call(self._stub.GetOutcome, pb.GetOutcomeRequest(key=key))
        return wire.decode_outcome(reply, "").commit

    # -- streams

    async def events(
        self,
        *,
        after: int | str | None = None,
        until: int | None = None,
        follow: bool = False,
        filter: EventFilter = _ALL,
        details: bool = False,
    ) -> AsyncGenerator[Event | Progress, None]:
        """Yield the events of one stream until the stream ends or breaks; `alpheus.events.events` resumes it."""
        query = wire.EventsQuery(after=after, until=until, follow=follow, filter=filter, details=details)
        request = wire.encode_events_request(query)
        async with self._open_channel() as channel:
            stub = service_pb2_grpc.CatalogStub(channel)
            async with aclosing(self._stream(stub.Events(request))) as messages:
                async for message in messages:
                    for event in message.events:
                        yield wire.decode_event(event)
                    if message.progress_token:
                        yield Progress(version=message.progress_version, token=message.progress_token)

    async def log(
        self, *, name: ObjectName | None = None, after: int | None = None, until: int | None = None
    ) -> AsyncGenerator[LogEntry, None]:
        request = pb.LogRequest(
            object=None if name is None else wire.encode_name(name),
            after_version=after,
            until_version=until,
        )
        async with aclosing(self._stream(self._stub.Log(request))) as messages:
            async for message in messages:
                yield wire.decode_log_entry(message)

    async def diff(self, before: At, after: At, *, details: bool = False) -> AsyncGenerator[Change, None]:
        # `from` is a keyword, so the field cannot be a keyword argument.
        request = pb.DiffRequest(to=wire.encode_at(after), details=details)
        getattr(request, "from").CopyFrom(wire.encode_at(before))
        async with aclosing(self._stream(self._stub.Diff(request))) as messages:
            async for message in messages:
                for change in message.changes:
                    yield wire.decode_change(change)

    async def dropped(
        self, *, namespace: str | None = None, name: ObjectName | None = None, version: int | None = None
    ) -> AsyncGenerator[Dropped, None]:
        request = pb.ListDroppedRequest(
            namespace_name=namespace or "",
            object=None if name is None else wire.encode_name(name),
            version=version,
        )
        async with aclosing(self._stream(self._stub.ListDropped(request))) as messages:
            async for message in messages:
                yield wire.decode_dropped(message)

    # -- distributed transactions

    async def save_transaction(self, transaction: Transaction) -> SavedTransaction:
        request = wire.encode_transaction_request(transaction)
        saved = wire.decode_saved(await self._call(self._stub.SaveTransaction, request))
        return msgspec.structs.replace(saved, transaction=transaction)

    async def load_transaction(self, transaction_id: str) -> SavedTransaction:
        request = pb.LoadTransactionRequest(transaction_id=transaction_id)
        return wire.decode_saved(await self._call(self._stub.LoadTransaction, request))

    async def saved_transactions(self) -> AsyncGenerator[SavedTransaction, None]:
        call = self._stub.ListTransactions(pb.ListTransactionsRequest())
        async with aclosing(self._stream(call)) as messages:
            async for message in messages:
                yield wire.decode_saved(message)

    async def discard_transaction(self, transaction_id: str) -> Outcome:
        request = pb.DiscardTransactionRequest(transaction_id=transaction_id)
        reply = await self._call(self._stub.DiscardTransaction, request)
        return wire.decode_outcome(reply, transaction_id)

    # -- pins

    async def create_pin(
        self, at: At, *, only: Sequence[PinObject] | None = None, without: Sequence[PinObject] = ()
    ) -> Pin:
        request = wire.encode_pin_request(at, only, without)
        return wire.decode_pin(await self._call(self._stub.CreatePin, request))

    # -- subscriptions

    async def position(self, path: str) -> Position | None:
        reply = await self._call(self._stub.LoadPosition, pb.LoadPositionRequest(path=path))
        if not reply.HasField("position"):
            return None
        try:
            return position_of_message(reply.position)
        except ValueError as error:
            raise Corrupt(
                f"the position {path} that the daemon sent: {error}", kind="corrupt_history", path=path
            ) from None

    async def acknowledge(self, name: str, path: str, position: Position) -> None:
        request = pb.AcknowledgeRequest(name=name, path=path, position=position_message(position))
        await self._call(self._stub.Acknowledge, request)

    # -- the symbol list, checkpoints

    async def symbols(self, at: At, query: SymbolQuery) -> SymbolPage:
        request = symbols_wire.encode_symbols_request(at, query)
        return symbols_wire.decode_symbol_page(await self._call(self._stub.ListSymbols, request))

    async def reload_symbols(self) -> SymbolsInfo:
        reply = await self._call(self._stub.ReloadSymbols, pb.ReloadSymbolsRequest())
        return symbols_wire.decode_symbols_info(reply)

    async def compact_symbols(self) -> SymbolsInfo:
        reply = await self._call(self._stub.CompactSymbols, pb.CompactSymbolsRequest())
        return symbols_wire.decode_symbols_info(reply)

    async def check_symbols(self, *, sample: int | None = None) -> Drift:
        request = pb.CheckSymbolsRequest(sample=sample or 0)
        return symbols_wire.decode_drift(await self._call(self._stub.CheckSymbols, request))

    async def checkpoint(self, *, verify: bool = False) -> CheckpointInfo:
        reply = await self._call(self._stub.Checkpoint, pb.CheckpointRequest(verify=verify))
        return symbols_wire.decode_checkpoint_info(reply)

    # -- expiry, collection, checks

    async def expire(self, rules: ExpiryRules, *, dry_run: bool = False) -> AsyncGenerator[Expiry, None]:
        request = wire.encode_expire_request(rules, dry_run=dry_run)
        async with aclosing(self._stream(self._stub.Expire(request))) as messages:
            async for message in messages:
                yield wire.decode_expiry(message)

    async def collect(
        self, *, minimum_age_millis: int, dry_run: bool = False
    ) -> AsyncGenerator[Collection, None]:
        request = wire.encode_collect_request(minimum_age_millis, dry_run=dry_run)
        async with aclosing(self._stream(self._stub.Collect(request))) as messages:
            async for message in messages:
                yield wire.decode_collection(message)

    async def check(self, *, after: int | None = None) -> AsyncGenerator[Finding | CheckSummary, None]:
        request = pb.CheckRequest(after_version=after)
        async with aclosing(self._stream(self._stub.Check(request))) as messages:
            async for message in messages:
                yield wire.decode_check(message)

    async def _stream(self, call: Any) -> AsyncGenerator[Any, None]:
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._commits.close()
        await self._channel.close()
        if self._storage is not None and self._storage is not self._storage_wanted:
            await self._storage.close()

    # -- the connection

    def _open_channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._target, options=_OPTIONS)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, size=request.ByteSize()) from None

    def is_connected(self) -> bool:
        """Return whether the connection is open, as far as this process knows."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def ready(self) -> None:
        """Wait until the connection is open. Raises Unavailable when an attempt to connect fails."""
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                raise Unavailable(
                    f"no connection to the daemon at {self._url}",
                    kind="daemon_unavailable",
                    hint="check that the daemon is running there",
                )
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    def _failure(self, error: grpc.aio.AioRpcError, *, commit: str = "", size: int = 0) -> AlpheusError:
        """Convert the error of a call. `commit` is the id of the transaction that the call was to commit."""
        for key, value in error.trailing_metadata() or ():
            if key == errors.ERROR_METADATA_KEY and isinstance(value, bytes):
                sent = errors.error_of_detail(value)
                if isinstance(sent, OutcomeUnknown) and not sent.transaction_id:
                    sent.transaction_id = commit
                return sent
        return self._bare_failure(error, commit, size)

    def _bare_failure(self, error: grpc.aio.AioRpcError, commit: str, size: int) -> AlpheusError:
        """Convert a status without details. It came from gRPC itself, or from a proxy between client and daemon."""
        code = error.code()
        text = f"the daemon at {self._url}: {code.name}: {(error.details() or '')[:300]}"
        match code:
            case grpc.StatusCode.RESOURCE_EXHAUSTED if size > REQUEST_BYTES_MAX:
                return InvalidInput(
                    f"{text}; the request takes {size} bytes",
                    kind="too_large",
                    hint="split the work into several transactions",
                )
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return Exhausted(text, retry_after=0.5)
            case grpc.StatusCode.UNIMPLEMENTED:
                return InvalidInput(
                    text,
                    kind="not_supported",
                    hint="check that it is an Alpheus daemon, and upgrade it if it is old",
                )
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                return Denied(text)
            case _ if commit:
                return OutcomeUnknown(
                    f"transaction {commit}: {text}",
                    transaction_id=commit,
                    hint="call outcome(transaction_id) to learn its outcome",
                )
            case _:
                return Unavailable(text, kind="daemon_unavailable")
