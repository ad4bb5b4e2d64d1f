"""Every setting of the daemon: one frozen struct, from flags, environment and one TOML file, checked as a whole.

Twelve-factor: the flag `--group-count-max` is the variable `ALPHEUS_GROUP_COUNT_MAX` and the key `group_count_max`. The
catalog's URL is the argument, `ALPHEUS_CATALOG`, or the key `catalog`. A flag wins over the environment, the
environment over the file, and the file over the default. Names end in their unit and bound.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alpheus_daemon.tag_rules import parse_rules
from alpheus_journal.clock import parse_span
from alpheus_journal.errors import InvalidInput
from alpheus_journal.tree.reader import DEFINITION_CACHE_BYTES_DEFAULT, NODE_CACHE_BYTES_DEFAULT
from alpheus_journal.urls import redact_url
from alpheus_journal.wire.messages import REPLY_BYTES_MAX

MIB = 1 << 20
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "json", "text")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. Descriptions are the help texts. Bounds are inclusive."""

    url: Annotated[str, Meta(description="Storage of the catalog: file:///abs/path, a path, memory://name.")]
    listen: Annotated[
        str, Meta(description="HOST:PORT to serve on (port 0: any free one), or unix:///abs/path.sock.")
    ] = "127.0.0.1:7480"
    create: Annotated[bool, Meta(description="Create the catalog when there is none.")] = False
    port_file: Annotated[
        str, Meta(description="Write the served address to this file once the daemon answers.")
    ] = ""
    sole_writer: Annotated[
        bool,
        Meta(
            description="No other process writes this catalog: reads and watches do not probe for versions."
        ),
    ] = False
    allow_plaintext: Annotated[
        bool, Meta(description="Serve without encryption on an address that is not loopback.")
    ] = False
    log_level: Annotated[str, Meta(description="debug, info, warning or error.")] = "info"
    log_format: Annotated[
        str, Meta(description="json, text, or auto: text where standard error is a terminal, else json.")
    ] = "auto"
    metrics_listen: Annotated[
        str, Meta(description="HOST:PORT for /metrics and /healthz (port 0: any free one); empty: off.")
    ] = ""
    trace_endpoint: Annotated[
        str, Meta(description="Send traces to this OTLP collector (http://host:4317, gRPC); empty: off.")
    ] = ""

    group_count_max: Annotated[int, Meta(ge=1, le=100_000, description="Transactions in one version.")] = 4096
    group_bytes_max: Annotated[
        int,
        Meta(
            ge=1024, le=16 * MIB, description="Bytes of requests in one version; a single one may be larger."
        ),
    ] = 8 * MIB
    queue_count_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Waiting transactions; more are refused as queue_full.")
    ] = 16_384
    queue_bytes_max: Annotated[
        int, Meta(ge=1024, le=4096 * MIB, description="Bytes of waiting requests; more are refused.")
    ] = 64 * MIB
    commit_timeout_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=600,
            description="A commit that waits longer is not applied; one that is stored longer has an unknown outcome.",
        ),
    ] = 30.0
    group_ahead_count_min: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Waiting transactions at which the next version is prepared while one is stored; 0: never.",
        ),
    ] = 64
    group_ahead_seconds: Annotated[
        float,
        Meta(ge=0, le=600, description="Waiting time of the first transaction at which it is prepared, too."),
    ] = 0.01
    commit_stream_count_max: Annotated[
        int,
        Meta(
            ge=1, le=1_000_000, description="Unanswered commits of one stream; at this number it is not read."
        ),
    ] = 4096
    commit_stream_bytes_max: Annotated[
        int,
        Meta(
            ge=1024, le=4096 * MIB, description="Bytes of these commits; at this size the stream is not read."
        ),
    ] = 16 * MIB

    poll_interval_min_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=60_000,
            description="Time between probes for other writers' versions while versions arrive.",
        ),
    ] = 50
    poll_interval_max_ms: Annotated[
        int, Meta(ge=1, le=600_000, description="Time between probes while no versions arrive.")
    ] = 1000

    subscribers_max: Annotated[
        int, Meta(ge=0, le=100_000, description="Concurrent event streams; more are refused.")
    ] = 4096
    subscriber_write_timeout_seconds: Annotated[
        float,
        Meta(ge=0.05, le=600, description="A subscriber that takes no message for this long is cut off."),
    ] = 30.0
    subscriber_heartbeat_seconds: Annotated[
        float, Meta(ge=0.05, le=600, description="Time between progress marks while nothing happens.")
    ] = 15.0
    event_batch_count_max: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Events in one message, which is what a subscriber buffers here."),
    ] = 256
    event_batch_bytes_max: Annotated[
        int, Meta(ge=1024, le=16 * MIB, description="Bytes of these events; a single event may be larger.")
    ] = MIB // 4
    event_ring_bytes_max: Annotated[
        int, Meta(ge=0, le=16_384 * MIB, description="Bytes of encoded events kept for all subscribers.")
    ] = 64 * MIB
    event_scan_count_max: Annotated[
        int, Meta(ge=1, le=100_000, description="Versions without a match between progress marks.")
    ] = 1000

    request_bytes_max: Annotated[
        int, Meta(ge=64 * 1024, le=REPLY_BYTES_MAX // 2, description="The largest request.")
    ] = 4 * MIB
    requests_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Concurrent requests, streams included; more are refused.")
    ] = 20_000
    requests_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=65_536 * MIB,
            description="Bytes that decoding all concurrent requests may take; more are refused.",
        ),
    ] = 256 * MIB
    connection_streams_max: Annotated[
        int,
        Meta(
            ge=1, le=1_000_000, description="Concurrent requests on one connection; more wait in the client."
        ),
    ] = 4096
    load_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=16_384 * MIB, description="Bytes of cached answers to lookups.")
    ] = 64 * MIB
    node_cache_bytes_max: Annotated[
        int,
        Meta(ge=0, le=16_384 * MIB, description="Bytes of cached tree nodes, for reads below the head."),
    ] = NODE_CACHE_BYTES_DEFAULT
    definition_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=16_384 * MIB, description="Bytes of cached definitions, for reads below the head.")
    ] = DEFINITION_CACHE_BYTES_DEFAULT
    checkpoints_kept: Annotated[
        int, Meta(ge=1, le=1000, description="Checkpoints on the storage; older ones are deleted.")
    ] = 3
    symbol_journal_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Added and removed names after which the symbol list is compacted.",
        ),
    ] = 500
    cache_dir: Annotated[
        str,
        Meta(
            description="Folder for mapped checkpoints and index runs of remote stores; empty: the system's."
        ),
    ] = ""
    checkpoint_versions: Annotated[
        int, Meta(ge=1, le=100_000_000, description="Versions after which the state is stored.")
    ] = 10_000
    checkpoint_minutes: Annotated[
        float,
        Meta(
            ge=0.01,
            le=100_000,
            description="Minutes after which the state is stored if there was any commit.",
        ),
    ] = 15.0
    drift_check_seconds: Annotated[
        float,
        Meta(ge=0, le=1_000_000, description="Time between comparisons of memory with the tree; 0: never."),
    ] = 60.0
    comparison_reads_per_second: Annotated[
        int,
        Meta(
            ge=10,
            le=1_000_000,
            description="Tree nodes and definitions read per second to compare a loaded checkpoint with the tree.",
        ),
    ] = 500
    tag_rules: Annotated[
        str,
        Meta(
            description='Tags to make by the calendar, such as "daily keep=30 zone=Europe/Berlin; weekly",'
            " or by a text of cron: nightly cron='30 2 * * *'; empty: none."
        ),
    ] = ""
    expire_every: Annotated[
        str, Meta(description='Time between expiries of old versions, such as "1d"; empty: never.')
    ] = ""
    expire_older_than: Annotated[
        str, Meta(description="A version expires this long after it was replaced by a newer one.")
    ] = "7d"
    expire_keep: Annotated[
        int, Meta(ge=1, le=1_000_000_000, description="The newest versions, which never expire.")
    ] = 100
    expire_pipeline_hold: Annotated[
        str, Meta(description="How long a job of a pipeline holds back versions that it has not read.")
    ] = "30d"
    collect_every: Annotated[
        str, Meta(description='Time between deletions of unreferenced files, such as "1d"; empty: never.')
    ] = ""
    collect_minimum_age: Annotated[
        str, Meta(description="Younger files are not deleted; longer than the longest write, at least 1h.")
    ] = "72h"
    keepalive_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="Time between pings of a silent connection.")
    ] = 30.0
    keepalive_timeout_seconds: Annotated[
        float,
        Meta(ge=1, le=600, description="A connection that does not answer a ping for this long is closed."),
    ] = 10.0
    shutdown_grace_seconds: Annotated[
        float, Meta(ge=0.5, le=10, description="The longest time from SIGTERM to the end.")
    ] = 8.0

    def public(self) -> dict[str, Any]:
        """Return every setting for printing: URLs without user, password and option values."""
        secret = {name: redact_url(getattr(self, name)) for name in URLS}
        return {**msgspec.structs.asdict(self), **secret}


URLS = ("url", "trace_endpoint")
"""Settings that may hold secrets."""

SPANS = {
    "expire_every": (timedelta(minutes=1), timedelta(days=365)),
    "expire_older_than": (timedelta(0), timedelta(days=36_500)),
    "expire_pipeline_hold": (timedelta(0), timedelta(days=36_500)),
    "collect_every": (timedelta(minutes=1), timedelta(days=365)),
    "collect_minimum_age": (timedelta(hours=1), timedelta(days=36_500)),
}
"""Settings that are time spans, with their bounds."""

ARGUMENTS = ("url",)
"""Settings that are positional on the command line."""

RELOADABLE = frozenset(
    {
        "log_level",
        "group_count_max",
        "group_bytes_max",
        "queue_count_max",
        "queue_bytes_max",
        "commit_timeout_seconds",
        "group_ahead_count_min",
        "group_ahead_seconds",
        "poll_interval_min_ms",
        "poll_interval_max_ms",
        "subscribers_max",
        "subscriber_write_timeout_seconds",
        "subscriber_heartbeat_seconds",
        "event_batch_count_max",
        "event_batch_bytes_max",
        "event_ring_bytes_max",
        "event_scan_count_max",
        "requests_bytes_max",
        "load_cache_bytes_max",
        "node_cache_bytes_max",
        "definition_cache_bytes_max",
        "checkpoint_versions",
        "checkpoint_minutes",
        "drift_check_seconds",
        "comparison_reads_per_second",
        "tag_rules",
        "expire_every",
        "expire_older_than",
        "expire_keep",
        "expire_pipeline_hold",
        "collect_every",
        "collect_minimum_age",
        "shutdown_grace_seconds",
    }
)
"""Settings that SIGHUP changes in a running daemon; all others need a restart."""

CONFIG_FILE_BYTES_MAX = 1 << 20


class Settings(msgspec.Struct, frozen=True):
    """The effective settings, and the origin of each: a flag, a variable, `file, line n: key`, or "default"."""

    config: Config
    origins: dict[str, str]

    def print(self) -> str:
        """Return the settings as TOML for a configuration file, each line with its origin, without secrets."""
        lines = []
        for name, value in self.config.public().items():
            text = f"{value}".lower() if isinstance(value, bool) else f"{value}"
            if isinstance(value, str):
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{key_name(name)} = {text}  # {self.origins.get(name, 'default')}\n")
        return "".join(lines)


def flag_name(setting: str) -> str:
    return "URL" if setting in ARGUMENTS else "--" + setting.replace("_", "-")


def variable_name(setting: str) -> str:
    return "ALPHEUS_CATALOG" if setting == "url" else f"ALPHEUS_{setting.upper()}"


def key_name(setting: str) -> str:
    """Return the key of a setting in the configuration file."""
    return "catalog" if setting == "url" else setting


def read_config(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    """Return the settings of `read_settings` without their origins."""
    return read_settings(flags, environment).config


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Read the settings. Reads a file, so this function blocks.

    A setting comes from `flags` (by setting name; None means not given), else from `environment`, else from the file
    that the flag `config` or `ALPHEUS_CONFIG` names, else from the defaults. Raises InvalidInput (`bad_configuration`),
    which names the flag, the variable, or the file, line and key.
    """
    file = flags.get("config") or environment.get("ALPHEUS_CONFIG", "")
    written, lines = _read_file(file) if file else ({}, {})
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for field in msgspec.structs.fields(Config):
        name = field.name
        value: Any = flags.get(name)
        origin, is_text = flag_name(name), True
        if value is None and environment.get(variable_name(name), "") != "":
            value, origin = environment[variable_name(name)], variable_name(name)
        if value is None and key_name(name) in written:
            value, origin, is_text = written[key_name(name)], lines[key_name(name)], False
        if value is None:
            continue
        try:
            values[name] = msgspec.convert(value, field.type, strict=not is_text)
        except msgspec.ValidationError as error:
            safe = redact_url(value) if name in URLS else str(value)
            raise _bad(origin, f"{error}, not {safe[:100]!r}") from None
        origins[name] = origin
    if "url" not in values:
        raise _bad("URL", "it is missing", "for example: alpheus serve file:///lake, or set ALPHEUS_CATALOG")
    config = Config(**values)
    _check(config, origins)
    return Settings(config, origins)


def reload_settings(running: Config, settings: Settings) -> tuple[Config, list[str], list[str]]:
    """Return the new configuration, the settings that change, and the changed settings that need a restart.

    Raises InvalidInput (`bad_configuration`) when the new values contradict settings that need a restart.
    """
    wanted = settings.config
    differing = [name for name in Config.__struct_fields__ if getattr(wanted, name) != getattr(running, name)]
    changed = [name for name in differing if name in RELOADABLE]
    config = msgspec.structs.replace(running, **{name: getattr(wanted, name) for name in changed})
    _check(config, settings.origins)
    return config, changed, [name for name in differing if name not in RELOADABLE]


def _read_file(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a configuration file and the place of each, both by key. Refuse unknown keys."""
    path, file = Path(file), redact_url(file)
    try:
        with path.open("rb") as opened:
            data = opened.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(data) > CONFIG_FILE_BYTES_MAX:
            raise _bad(file, f"the file has more than {CONFIG_FILE_BYTES_MAX} bytes")
        text = data.decode()
        values = tomllib.loads(text)
    except OSError as error:
        raise _bad(file, f"the configuration file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _bad(file, "the file is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _bad(file, f"the file is not TOML: {error}", "for example: group_count_max = 4096") from None
    known = [key_name(field.name) for field in msgspec.structs.fields(Config)]
    lines = {key: f"{file}, line {_line_of(text, key)}: {key}" for key in values}
    for key in values:
        if key not in known:
            raise _bad(lines[key], "there is no such setting", _nearest(key, known))
    return values, lines


def _line_of(text: str, key: str) -> int:
    """Return the number of the line with a key of the outermost table."""
    spelt = "|".join(re.escape(form) for form in (key, f'"{key}"', f"'{key}'"))
    place = re.compile(rf"\s*\[*\s*(?:{spelt})\s*[=.\]]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if place.match(line)), 1)


def _nearest(key: str, known: list[str]) -> str:
    if key == "url":
        return "the URL of the catalog is the key catalog"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1)
    hint = "alpheus serve --help-all lists them; there are no tables"
    return f"did you mean {near[0]}?" if near else hint


def _bad(origin: str, reason: str, hint: str = "") -> InvalidInput:
    return InvalidInput(f"{origin}: {reason}", kind="bad_configuration", hint=hint)


def _check(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse settings that contradict each other, which types and bounds cannot express."""

    if config.url.partition("://")[0].lower() in ("grpc", "grpcs", "unix"):
        raise _bad(
            _origin("url", origins),
            f"{redact_url(config.url)} names a daemon, but a daemon serves storage",
            "pass the URL of the storage as the argument; ALPHEUS_CATALOG is the clients' variable, too",
        )
    if config.log_level not in LEVELS:
        raise _bad(_origin("log_level", origins), f"{config.log_level!r} is not one of {', '.join(LEVELS)}")
    if config.log_format not in FORMATS:
        raise _bad(
            _origin("log_format", origins), f"{config.log_format!r} is not one of {', '.join(FORMATS)}"
        )
    if config.poll_interval_min_ms > config.poll_interval_max_ms:
        raise _bad(
            _origin("poll_interval_min_ms", origins),
            f"{config.poll_interval_min_ms} is above --poll-interval-max-ms {config.poll_interval_max_ms}",
        )
    for name in ("poll_interval_min_ms", "poll_interval_max_ms"):
        if config.sole_writer and name in origins:
            raise _bad(
                origins[name],
                "it contradicts --sole-writer, which never probes for other writers' versions",
                "leave one of the two out",
            )
    if config.queue_bytes_max < config.request_bytes_max:
        raise _bad(
            _origin("queue_bytes_max", origins),
            f"{config.queue_bytes_max} is below --request-bytes-max {config.request_bytes_max}",
        )
    if config.requests_bytes_max < config.request_bytes_max:
        raise _bad(
            _origin("requests_bytes_max", origins),
            f"{config.requests_bytes_max} is below --request-bytes-max {config.request_bytes_max}",
        )
    if config.cache_dir and not os.path.isdir(config.cache_dir):
        raise _bad(
            _origin("cache_dir", origins),
            f"{config.cache_dir!r} is not a folder",
            "make the folder, or leave the setting out",
        )
    _check_schedules(config, origins)
    _check_listeners(config, origins)
    if config.trace_endpoint and not re.match(r"https?://[^/\[\]]", config.trace_endpoint):
        raise _bad(
            _origin("trace_endpoint", origins),
            "it is not the URL of a collector",
            "for example http://127.0.0.1:4317",
        )


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Return where a setting was given, for an error; its flag where nobody gave it."""
    return origins.get(name, flag_name(name))


def _check_schedules(config: Config, origins: Mapping[str, str]) -> None:
    try:
        parse_rules(config.tag_rules)
    except InvalidInput as error:
        raise _bad(_origin("tag_rules", origins), error.message, error.hint) from None
    for name, (lowest, highest) in SPANS.items():
        text = getattr(config, name)
        span = parse_span(text)
        if text == "" and name.endswith("_every"):
            continue
        if span is None:
            raise _bad(_origin(name, origins), f"{text[:40]!r} is not a time", "for example 7d, 12h or 1d12h")
        if not lowest <= span <= highest:
            raise _bad(
                _origin(name, origins), f"{text} is out of range", f"give {lowest} to {highest.days} days"
            )


def _check_listeners(config: Config, origins: Mapping[str, str]) -> None:
    for name in ("listen", "metrics_listen"):
        address = getattr(config, name)
        if name == "metrics_listen" and not address:
            continue
        _, port = parse_listen(address, _origin(name, origins))
        if name == "metrics_listen" and port < 0:
            raise _bad(
                _origin(name, origins),
                f"{redact_url(address)} is a socket file",
                "for example 127.0.0.1:9464",
            )
        if not config.allow_plaintext and not is_local(address):
            raise _bad(
                _origin(name, origins),
                f"{redact_url(address)} is not loopback, and connections are not encrypted",
                "listen on 127.0.0.1 or a unix:// socket, or add --allow-plaintext",
            )
    if config.metrics_listen and _overlap(config.listen, config.metrics_listen):
        raise _bad(
            _origin("metrics_listen", origins),
            f"{config.metrics_listen} is taken by --listen {config.listen}",
            "use two ports, for example 7480 and 9464",
        )


def parse_listen(listen: str, origin: str = "--listen") -> tuple[str, int]:
    """Return (host, port), or (socket path, -1). Raises InvalidInput (`bad_configuration`) for any other text."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:").removeprefix("//")
        # No client can name a path with ? or #, which have another meaning in a URL.
        if not listen.startswith("unix://") or not path.startswith("/") or "?" in path or "#" in path:
            raise _bad(
                origin, f"{redact_url(listen)!r} is not a socket", "for example unix:///run/alpheus.sock"
            )
        if len(os.fsencode(path)) > 107:
            raise _bad(origin, f"the socket path has {len(os.fsencode(path))} bytes; the limit is 107")
        return path, -1
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise _bad(
            origin,
            f"{redact_url(listen)!r} is not HOST:PORT",
            "for example 127.0.0.1:7480 or unix:///run/a.sock",
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _bad(
            origin, f"{redact_url(listen)!r}: an IPv6 address goes in brackets", "for example [::1]:7480"
        )
    return host, int(port)


def _overlap(listen: str, other: str) -> bool:
    """Return whether a second listener cannot have its address because of the first."""
    (host, port), (other_host, other_port) = parse_listen(listen), parse_listen(other)
    if port != other_port or port <= 0:
        return False
    places = {"127.0.0.1" if name == "localhost" else name for name in (host, other_host)}
    return len(places) == 1 or not places.isdisjoint({"0.0.0.0", "[::]"})


def is_local(listen: str) -> bool:
    """Return whether other machines cannot reach a listener."""
    host, port = parse_listen(listen)
    if port < 0 or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
