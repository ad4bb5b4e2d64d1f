"""The listener: the service of the catalog and those of gRPC itself on one address, and its orderly end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from alpheus_daemon.config import Config, parse_listen
from alpheus_daemon.serve.service import FLUSH_SECONDS, SERVICE_NAME, CatalogService, Context
from alpheus_journal.errors import (
    Unavailable,
)
from alpheus_journal.journal import software_version
from alpheus_journal.wire import messages as wire

QUIET_SECONDS = 0.1
"""The time without calls after which a daemon that shuts down stops listening."""
DRAIN_SECONDS_MAX = 1.0
"""The longest wait for that time without calls."""
BARE_REQUESTS = 1024
"""The calls above `requests_max` that gRPC admits: those refused with an error of ours, and those about health."""


class Server:
    """The listener: the catalog's service and `grpc.health.v1` on one address."""

    def __init__(self, service: CatalogService, config: Config) -> None:
        self._listen = config.listen
        self._service = service
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            # Above this gRPC itself refuses calls, without an error of ours. Health and reflection count, too.
            maximum_concurrent_rpcs=config.requests_max + BARE_REQUESTS,
            options=(
                ("grpc.max_receive_message_length", config.request_bytes_max),
                ("grpc.max_send_message_length", wire.REPLY_BYTES_MAX),
                ("grpc.max_concurrent_streams", config.connection_streams_max),
                # A second daemon on the same port must fail instead of sharing the port.
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", round(config.keepalive_seconds * 1000)),
                ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_seconds * 1000)),
                # The timeout above alone is not respected: gRPC waits a minute for the answer to a ping.
                ("grpc.http2.ping_timeout_ms", round(config.keepalive_timeout_seconds * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ),
        )
        self._server.add_generic_rpc_handlers((service.handlers(),))
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, _ByName(self._server))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names), _ByName(self._server)
        )
        self._server.add_generic_rpc_handlers((_Unknown(),))

    def bind(self) -> str:
        """Take the address, and return the one that clients connect to: `host:port` or `unix:///path`.

        Raises Unavailable (`daemon_unavailable`) when the address is taken or not available.
        """
        host, port = parse_listen(self._listen)
        if port < 0:
            _check_socket_free(host)
        elif port:
            _check_port_free(host.strip("[]"), port)
        try:
            bound = self._server.add_insecure_port(f"unix:{host}" if port < 0 else self._listen)
        except RuntimeError:
            raise _taken_error(self._listen) from None
        if port < 0:
            return f"unix://{host}"
        return f"{host}:{bound}"

    async def start(self) -> None:
        """Answer requests. The health service reports SERVING."""
        await self._server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def withdraw(self) -> None:
        """Report NOT_SERVING. Requests are still answered; streams to peers that do not read end."""
        self._service.shorten_write_timeout()
        with suppress(TimeoutError):  # a health watcher that reads nothing would delay the others
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Stop when no calls arrive, or soon. Calls that are still running have the rest of `grace_seconds`."""
        deadline = time.monotonic() + grace_seconds
        # gRPC drops calls that arrive while it stops, and their callers cannot know the outcome. So callers that
        # send at this moment are answered first, at least with a refusal.
        await self._service.calls.wait_quiet(
            QUIET_SECONDS, patience_seconds=min(DRAIN_SECONDS_MAX, grace_seconds / 2)
        )
        self._service.end_commits()
        patience = deadline - time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.stop(patience))
            # gRPC would also wait for peers that read nothing, watch the health, or merely opened a socket.
            await self._service.calls.wait_quiet(0, patience_seconds=patience - FLUSH_SECONDS)
            await self._server.stop(FLUSH_SECONDS)


class _ByName:
    """A server to which generated code adds a service whose methods are found by name only.

    gRPC waits separately for each registered method, which costs time in each call of every other method.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        pass


class _Unknown(grpc.GenericRpcHandler):
    """Refuses methods that this release does not have, with an error that names the releases. Asked last."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method[:200]

        async def refuse(data: bytes, context: Context) -> bytes:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"this daemon (alpheus {software_version()}, protocol {wire.PROTOCOL_VERSION}) has no method"
                f" {method}: upgrade the daemon, or use a client of its release",
            )
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(refuse)


def _taken_error(address: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: the address is taken, or does not belong to this machine",
        kind="daemon_unavailable",
        hint="choose another with --listen; port 0 takes any free one",
    )


def _check_port_free(host: str, port: int) -> None:
    """Check that a port is free. gRPC would also find out, but would print a line of its own to standard error."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise _taken_error(f"{host}:{port}") from None
    for family, kind, protocol, _, address in places:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(address)
                return  # one address is enough, as it is for gRPC
    raise _taken_error(f"{host}:{port}")


def _check_socket_free(path: str) -> None:
    """Check that no process answers on a socket. gRPC would replace an existing socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return
    raise _taken_error(f"unix://{path}")
