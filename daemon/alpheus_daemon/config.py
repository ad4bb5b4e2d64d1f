"""Every setting of the daemon: one frozen struct, from flags and environment, checked at start.

Twelve-factor: the flag `--group-count-max` is the variable `ALPHEUS_GROUP_COUNT_MAX` (the catalog's URL is
the argument or `ALPHEUS_CATALOG`). A flag wins over the environment. Names end in their unit and bound.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta

from alpheus_daemon.telemetry import LEVELS
from alpheus_journal.errors import InvalidInput
from alpheus_journal.wire import REPLY_BYTES_MAX

MIB = 1 << 20


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Descriptions are the help texts; bounds are inclusive."""

    url: Annotated[str, Meta(description="Storage of the catalog: file:///abs/path, a path, memory://name.")]
    listen: Annotated[
        str, Meta(description="HOST:PORT to serve on (port 0: any free one), or unix:///abs/path.sock.")
    ] = "127.0.0.1:7480"
    create: Annotated[bool, Meta(description="Create the catalog when there is none.")] = False
    port_file: Annotated[
        str, Meta(description="Write the address served on to this file, once the daemon answers.")
    ] = ""
    sole_writer: Annotated[
        bool,
        Meta(description="Nobody else writes this catalog: reads and watches skip probing for versions."),
    ] = False
    allow_plaintext: Annotated[
        bool, Meta(description="Serve without encryption on an address that is not loopback.")
    ] = False
    log_level: Annotated[str, Meta(description="debug, info, warning or error.")] = "info"

    group_count_max: Annotated[int, Meta(ge=1, le=100_000, description="Transactions in one version.")] = 4096
    group_bytes_max: Annotated[
        int, Meta(ge=1024, le=16 * MIB, description="Bytes of requests in one version; one may pass it.")
    ] = 8 * MIB
    queue_count_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Transactions that wait; more are refused as queue_full.")
    ] = 16_384
    queue_bytes_max: Annotated[
        int, Meta(ge=1024, le=4096 * MIB, description="Bytes of requests that wait; more are refused.")
    ] = 64 * MIB
    commit_timeout_seconds: Annotated[
        float,
        Meta(ge=0.1, le=600, description="Waiting longer: not applied; being stored longer: unknown."),
    ] = 30.0

    poll_interval_min_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="Between probes for other writers' versions while they come.")
    ] = 50
    poll_interval_max_ms: Annotated[
        int, Meta(ge=1, le=600_000, description="Between probes while none come.")
    ] = 1000

    subscribers_max: Annotated[
        int, Meta(ge=0, le=100_000, description="Event streams at a time; more are refused.")
    ] = 4096
    subscriber_write_timeout_seconds: Annotated[
        float, Meta(ge=0.05, le=600, description="A subscriber that takes no message for so long is cut off.")
    ] = 30.0
    subscriber_heartbeat_seconds: Annotated[
        float, Meta(ge=0.05, le=600, description="A progress mark at least so often while nothing happens.")
    ] = 15.0
    event_batch_count_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Events in one message: what one subscriber buffers here.")
    ] = 256
    event_batch_bytes_max: Annotated[
        int, Meta(ge=1024, le=16 * MIB, description="Bytes of them; one event may pass it.")
    ] = MIB // 4
    event_ring_bytes_max: Annotated[
        int, Meta(ge=0, le=16_384 * MIB, description="Encoded events kept for all subscribers together.")
    ] = 64 * MIB
    event_scan_count_max: Annotated[
        int, Meta(ge=1, le=100_000, description="Versions passed over between progress marks.")
    ] = 1000

    request_bytes_max: Annotated[
        int, Meta(ge=64 * 1024, le=REPLY_BYTES_MAX // 2, description="The largest request.")
    ] = 4 * MIB
    requests_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Requests at a time, streams included; more are refused.")
    ] = 20_000
    load_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=16_384 * MIB, description="Encoded answers of lookups that are kept.")
    ] = 64 * MIB
    keepalive_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="Between pings of a silent connection.")
    ] = 30.0
    keepalive_timeout_seconds: Annotated[
        float,
        Meta(ge=1, le=600, description="A connection that does not answer a ping for so long is closed."),
    ] = 10.0
    shutdown_grace_seconds: Annotated[
        float, Meta(ge=0.5, le=10, description="From SIGTERM to the end, at most.")
    ] = 8.0

    def public(self) -> dict[str, Any]:
        """Every setting, to be printed: the URL without user, password and option values."""
        return {**msgspec.structs.asdict(self), "url": redacted(self.url)}


ARGUMENTS = ("url",)
"""Settings that are positional on the command line."""


def redacted(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    query = "&".join(f"{item.split('=')[0]}=…" for item in parts.query.split("&") if item)
    host = ("…@" if "@" in parts.netloc else "") + parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def flag_name(setting: str) -> str:
    return "URL" if setting in ARGUMENTS else "--" + setting.replace("_", "-")


def variable_name(setting: str) -> str:
    return "ALPHEUS_CATALOG" if setting == "url" else f"ALPHEUS_{setting.upper()}"


def read_config(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    """The settings of `flags` (by setting name; None: not given), then of `environment`, then the defaults.

    Raises InvalidInput (`bad_configuration`) that names the flag or variable.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for field in msgspec.structs.fields(Config):
        name = field.name
        value: Any = flags.get(name)
        origin = flag_name(name)
        if value is None and environment.get(variable_name(name), "") != "":
            value, origin = environment[variable_name(name)], variable_name(name)
        if value is None:
            continue
        try:
            values[name] = msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise _bad(origin, f"{error}, not {value!r}") from None
        origins[name] = origin
    if "url" not in values:
        raise _bad("URL", "it is missing", "for example: alpheus serve file:///lake, or set ALPHEUS_CATALOG")
    config = Config(**values)
    _check(config, origins)
    return config


def _bad(origin: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"{origin}: {reason}", kind="bad_configuration", hint=hint)


def _check(config: Config, origins: Mapping[str, str]) -> None:
    """What types and bounds cannot say: settings that contradict each other."""

    def origin(name: str) -> str:
        return origins.get(name, flag_name(name))

    if config.log_level not in LEVELS:
        raise _bad(origin("log_level"), f"{config.log_level!r} is none of {', '.join(LEVELS)}")
    if config.poll_interval_min_ms > config.poll_interval_max_ms:
        raise _bad(
            origin("poll_interval_min_ms"),
            f"{config.poll_interval_min_ms} is above --poll-interval-max-ms {config.poll_interval_max_ms}",
        )
    for name in ("poll_interval_min_ms", "poll_interval_max_ms"):
        if config.sole_writer and name in origins:
            raise _bad(
                origins[name],
                "it contradicts --sole-writer, which never looks for other writers' versions",
                "leave one of them out",
            )
    if config.queue_bytes_max < config.request_bytes_max:
        raise _bad(
            origin("queue_bytes_max"),
            f"{config.queue_bytes_max} is below --request-bytes-max {config.request_bytes_max}",
        )
    parse_listen(config.listen, origin("listen"))
    if not config.allow_plaintext and not is_local(config.listen):
        raise _bad(
            origin("listen"),
            f"{config.listen} is not loopback, and connections are not encrypted",
            "listen on 127.0.0.1 or a unix:// socket, or say --allow-plaintext",
        )


def parse_listen(listen: str, origin: str = "--listen") -> tuple[str, int]:
    """(host, port), or (socket path, -1). InvalidInput (`bad_configuration`) when it is neither."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:").removeprefix("//")
        if not listen.startswith("unix://") or not path.startswith("/"):
            raise _bad(origin, f"{listen!r} is no socket", "for example unix:///run/alpheus.sock")
        if len(os.fsencode(path)) > 107:
            raise _bad(origin, f"the socket path takes {len(os.fsencode(path))} bytes, 107 at most")
        return path, -1
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise _bad(origin, f"{listen!r} is no HOST:PORT", "for example 127.0.0.1:7480 or unix:///run/a.sock")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _bad(origin, f"{listen!r}: an IPv6 address goes in brackets", "for example [::1]:7480")
    return host, int(port)


def is_local(listen: str) -> bool:
    """A listener that other machines cannot reach."""
    host, port = parse_listen(listen)
    if port < 0 or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
