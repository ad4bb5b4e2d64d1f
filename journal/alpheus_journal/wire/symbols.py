"""The symbol list and checkpoints as messages of the service, both directions; see `wire.messages`."""

from __future__ import annotations

from collections.abc import Iterable

from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At
from alpheus_journal.replay.loader import CheckpointInfo, SymbolsInfo
from alpheus_journal.replay.symbols import Drift, SymbolGroup, SymbolPage, SymbolQuery
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import objects_pb2
from alpheus_pb.v1 import service_pb2 as pb


def encode_symbols_request(at: At, query: SymbolQuery) -> pb.ListSymbolsRequest:
    return pb.ListSymbolsRequest(
        at=wire.encode_at(at),
        type=objects_pb2.ObjectType.Name(int(query.kind or Kind.CATALOG)),
        namespace_name=query.namespace,
        prefix=query.prefix,
        pattern=query.pattern,
        limit=query.limit,
        cursor=query.cursor,
    )


def decode_symbols_request(message: pb.ListSymbolsRequest) -> tuple[At, SymbolQuery]:
    kind = wire.decode_kind(message.type) if message.type else None
    return wire.decode_at(message.at), SymbolQuery(
        kind=kind,
        namespace=message.namespace_name,
        prefix=message.prefix,
        pattern=message.pattern,
        limit=message.limit,
        cursor=message.cursor,
    )


def encode_symbol_page(value: SymbolPage) -> pb.ListSymbolsResponse:
    groups = [
        pb.SymbolGroupMessage(
            type=objects_pb2.ObjectType.Name(int(group.kind)),
            namespace_name=group.namespace,
            names=group.names,
        )
        for group in value.groups
    ]
    return pb.ListSymbolsResponse(version=value.version, groups=groups, cursor=value.cursor)


def decode_symbol_page(message: pb.ListSymbolsResponse) -> SymbolPage:
    return SymbolPage(
        version=message.version,
        groups=tuple(
            SymbolGroup(wire.decode_kind(group.type), group.namespace_name, tuple(group.names))
            for group in message.groups
        ),
        cursor=message.cursor,
    )


def encode_symbols_info(value: SymbolsInfo) -> pb.SymbolsInfoMessage:
    return pb.SymbolsInfoMessage(
        version=value.version,
        symbols=value.symbols,
        journal_length=value.journal_length,
        compactions=value.compactions,
        failures=value.failures,
        last_failure=value.last_failure,
    )


def decode_symbols_info(message: pb.SymbolsInfoMessage) -> SymbolsInfo:
    return SymbolsInfo(
        version=message.version,
        symbols=message.symbols,
        journal_length=message.journal_length,
        compactions=message.compactions,
        failures=message.failures,
        last_failure=message.last_failure,
    )


def encode_drift(value: Drift) -> pb.CheckSymbolsResponse:
    return pb.CheckSymbolsResponse(
        version=value.version,
        checked=value.checked,
        sampled=value.sampled,
        missing=[wire.encode_name(name) for name in value.missing],
        surplus=[wire.encode_name(name) for name in value.surplus],
        changed=[wire.encode_name(name) for name in value.changed],
        differences=value.differences,
    )


def decode_drift(message: pb.CheckSymbolsResponse) -> Drift:
    def names(found: Iterable[pb.ObjectName]) -> tuple[ObjectName, ...]:
        return tuple(wire.decode_name(name) for name in found)

    return Drift(
        version=message.version,
        checked=message.checked,
        sampled=message.sampled,
        missing=names(message.missing),
        surplus=names(message.surplus),
        changed=names(message.changed),
        differences=message.differences,
    )


def encode_checkpoint_info(value: CheckpointInfo) -> pb.CheckpointResponse:
    return pb.CheckpointResponse(
        version=value.version,
        path=value.path,
        objects=value.objects,
        size_bytes=value.size_bytes,
        created_at_millis=value.created_at_millis,
        deleted=value.deleted,
    )


def decode_checkpoint_info(message: pb.CheckpointResponse) -> CheckpointInfo:
    if not message.path:
        raise Corrupt("the answer of the daemon names no checkpoint")
    return CheckpointInfo(
        version=message.version,
        path=message.path,
        objects=message.objects,
        size_bytes=message.size_bytes,
        created_at_millis=message.created_at_millis,
        deleted=message.deleted,
    )
