"""Wire the parts, and run until a signal: the command `alpheus-daemon`, which `alpheus serve` starts.

The start opens the storage, the journal, the state and the listener, and only then writes the port file. SIGTERM or
SIGINT ends the daemon in order: no new calls are taken, the group in flight is finished, waiting transactions are
refused as not applied, and streams end with a resume token. All this takes at most `--shutdown-grace-seconds`. SIGHUP
reads the settings again, and applies those that can change. The module is long because all parts are joined here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from alpheus_daemon.config import (
    ARGUMENTS,
    Config,
    Settings,
    flag_name,
    read_settings,
    reload_settings,
    variable_name,
)
from alpheus_daemon.gauges import register_gauges
from alpheus_daemon.instrumented import CommitMeter, TimedStorage, TracedCommitter
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.retention import Retention, RetentionUpkeep, Schedule
from alpheus_daemon.serve.server import Server
from alpheus_daemon.serve.service import CatalogService
from alpheus_daemon.serve.watch import Hub, Poller
from alpheus_daemon.serve.writer import Writer
from alpheus_daemon.tag_rules import parse_rules
from alpheus_daemon.tag_upkeep import TagUpkeep
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_daemon.telemetry.logs import logger
from alpheus_daemon.telemetry.metrics import Health, Metrics, expose
from alpheus_daemon.telemetry.supervision import Notifier, Pulse
from alpheus_daemon.telemetry.tracing import Tracer, open_tracer
from alpheus_journal.clock import RandomIdentities, SystemClock, claimed_principal, parse_span
from alpheus_journal.errors import AlpheusError, AlreadyExists, InvalidInput, NotFound
from alpheus_journal.journal import Journal, software_version
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.storage import open_storage
from alpheus_journal.urls import redact_text, redact_url

log = logger()

STOP_RESERVE_SECONDS = 1.0
"""The end of the grace time, which is kept for sending the last answers and closing the storage."""
SLOTS_RETRY_SECONDS = 60.0

COLLECTED_COUNTS = (20_000, 10, 10)
"""The thresholds of the cycle collector: some milliseconds of work for each 20,000 new objects."""

FILES_MAX = 65_536
"""The open files that the process allows itself within the hard limit. Each connection is one."""


class Live:
    """The current settings, and the parts that follow their changes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._followers: list[Callable[[Config], None]] = []

    def follow(self, apply: Callable[[Config], None]) -> None:
        """Call `apply` with every later configuration."""
        self._followers.append(apply)

    def change(self, config: Config) -> None:
        self.config = config
        for apply in self._followers:
            apply(config)


async def open_journal(
    config: Config, *, metrics: Metrics | None = None, tracer: Tracer | None = None
) -> Journal:
    """Open the catalog at the configured URL, and load its head into memory. Create the catalog if so configured.

    The store has passed its self-test afterwards. Raises NotFound (`no_catalog`), InvalidInput (`bad_url`,
    `storage_unsuitable`), Denied if nothing can be written, and any error of the storage and of loading.
    """
    storage = await asyncio.to_thread(open_storage, config.url, create=config.create)
    if metrics is not None:
        storage = TimedStorage(storage, metrics, tracer or Tracer())
    try:
        try:
            journal = await Journal.open(storage)
        except NotFound:
            if not config.create:
                raise
            try:
                journal = await Journal.create(storage, principal=claimed_principal())
                log.info("catalog_created", url=storage.url)
            except AlreadyExists:  # another process was faster
                journal = await Journal.open(storage)
        await storage.prove()
        journal.replay.serves_unverified = True  # maintenance compares it with the tree
        journal.replay.checkpoints_kept = config.checkpoints_kept
        journal.replay.symbol_journal_max = config.symbol_journal_max
        journal.replay.cache_dir = journal.index.cache_dir = config.cache_dir
        _size_caches(journal, config)
        await journal.load_state()
    except BaseException:
        await storage.close()
        raise
    # The loaded objects stay, so full collections need not walk them.
    gc.collect()
    gc.freeze()
    # A transaction leaves about a hundred objects without cycles. At the default threshold of 700 every second
    # transaction would pay for a collection, a fifth of its time.
    gc.set_threshold(*COLLECTED_COUNTS)
    return journal


def _size_caches(journal: Journal, config: Config) -> None:
    journal.follower.reader.caches["nodes"].resize(config.node_cache_bytes_max)
    journal.follower.reader.caches["definitions"].resize(config.definition_cache_bytes_max)


def _writer_bounds(config: Config) -> dict[str, Any]:
    return {
        "group_count_max": config.group_count_max,
        "group_bytes_max": config.group_bytes_max,
        "queue_count_max": config.queue_count_max,
        "queue_bytes_max": config.queue_bytes_max,
        "timeout_seconds": config.commit_timeout_seconds,
        "ahead_count_min": config.group_ahead_count_min,
        "ahead_age_seconds": config.group_ahead_seconds,
    }


def _hub_bounds(config: Config) -> dict[str, Any]:
    return {
        "subscribers_max": config.subscribers_max,
        "batch_count_max": config.event_batch_count_max,
        "batch_bytes_max": config.event_batch_bytes_max,
        "scan_count_max": config.event_scan_count_max,
        "ring_bytes_max": config.event_ring_bytes_max,
        "heartbeat_seconds": config.subscriber_heartbeat_seconds,
    }


def _service_bounds(config: Config) -> dict[str, Any]:
    return {
        "write_timeout_seconds": config.subscriber_write_timeout_seconds,
        "lookup_bytes_max": config.load_cache_bytes_max,
        "requests_bytes_max": config.requests_bytes_max,
    }


def _poller_bounds(config: Config) -> dict[str, Any]:
    return {
        "interval_min_seconds": config.poll_interval_min_ms / 1000,
        "interval_max_seconds": config.poll_interval_max_ms / 1000,
    }


def _maintenance_bounds(config: Config) -> dict[str, Any]:
    return {
        "checkpoint_versions": config.checkpoint_versions,
        "checkpoint_minutes": config.checkpoint_minutes,
        "drift_check_seconds": config.drift_check_seconds,
        "comparison_reads_per_second": config.comparison_reads_per_second,
    }


def _retention_schedule(config: Config) -> Schedule:
    def millis(text: str) -> int:
        return (parse_span(text) or timedelta(0)) // timedelta(milliseconds=1)

    return Schedule(
        expire_every_seconds=millis(config.expire_every) / 1000,
        collect_every_seconds=millis(config.collect_every) / 1000,
        rules=ExpiryRules(
            older_than_millis=millis(config.expire_older_than),
            keep_versions=config.expire_keep,
            pipeline_hold_millis=millis(config.expire_pipeline_hold),
        ),
        minimum_age_millis=millis(config.collect_minimum_age),
    )


async def _look_at_slots(journal: Journal) -> None:
    """List all slots once, which opening does not do, and log the reason if this daemon may not write."""
    if journal.doubt is None:
        while True:
            try:
                await journal.follower.look_at_slots()
                break
            except AlpheusError as error:
                log.warning("slots_not_listed", kind=error.kind, error=str(error))
                await asyncio.sleep(SLOTS_RETRY_SECONDS)
    if journal.doubt is not None:
        log.error("writes_refused", kind=journal.doubt.kind, error=str(journal.doubt))


async def _wait_for_others(journal: Journal, hub: Hub) -> None:
    """Return once another writer's version is found in a catalog whose sole writer this daemon should be.

    From then on every read probes for newer versions, as in any other catalog.
    """
    seen, foreign = journal.head.version, journal.follower.foreign_count
    while journal.follower.foreign_count == foreign:
        await journal.wait_beyond(seen)
        seen = journal.head.version
    log.error(
        "not_sole_writer",
        version=seen,
        hint="another process writes this catalog: start its daemons without --sole-writer",
    )
    journal.sole_writer = False
    hub.look_for_others()


@contextlib.asynccontextmanager
async def running(
    config: Config,
    journal: Journal,
    *,
    live: Live | None = None,
    metrics: Metrics | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[str]:
    """Serve `journal` and yield the address. Leaving the context ends the daemon in order.

    `live` passes new settings to the parts. `metrics` receives their numbers.
    """
    live = live or Live(config)
    metrics, tracer = metrics or Metrics(), tracer or Tracer()
    meter = CommitMeter(metrics, tracer)
    journal.observe_commits(meter)
    writer = Writer(TracedCommitter(journal, tracer), **_writer_bounds(config), observer=meter)
    hub = Hub(journal, **_hub_bounds(config), sole_writer=config.sole_writer)
    clock = SystemClock()
    retention = Retention(journal, writer.submit, clock=clock, principal=claimed_principal())
    service = _service(config, journal, writer, hub, metrics, tracer, retention)
    poller = Poller(journal, **_poller_bounds(config))
    tags, maintenance = _upkeep(config, live, journal, writer, retention, clock)
    _follow(live, journal, writer, hub, service, poller, maintenance)

    register_gauges(metrics, journal, writer, hub, service, maintenance, tags, retention)
    server = Server(service, config)
    address = await asyncio.to_thread(server.bind)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(writer.run(), name="writer")
        followers = [tasks.create_task(hub.run(), name="hub")]

        async def look_for_others() -> None:
            if config.sole_writer:
                await _wait_for_others(journal, hub)
            await poller.run()

        followers.append(tasks.create_task(look_for_others(), name="poller"))
        followers.append(tasks.create_task(_look_at_slots(journal), name="slots"))
        maintaining = tasks.create_task(maintenance.run(), name="maintenance")
        await server.start()
        try:
            yield address
        finally:
            grace_seconds = live.config.shutdown_grace_seconds
            deadline = time.monotonic() + grace_seconds
            maintaining.cancel()
            writer.close()
            journal.stop_yielding()
            hub.close()
            await server.withdraw()
            await _last_group(writer, writing, max(grace_seconds - STOP_RESERVE_SECONDS, 0.1))
            await asyncio.wait({maintaining}, timeout=STOP_RESERVE_SECONDS / 2)
            left_seconds = deadline - STOP_RESERVE_SECONDS - time.monotonic() if maintaining.done() else 0
            finishing = tasks.create_task(maintenance.finish(left_seconds), name="last checkpoint")
            await server.stop(max(deadline - time.monotonic(), 0.1))
            await finishing
            for follower in followers:
                follower.cancel()


def _upkeep(
    config: Config, live: Live, journal: Journal, writer: Writer, retention: Retention, clock: SystemClock
) -> tuple[TagUpkeep, Maintenance]:
    """Return the upkeep of tags, and the maintenance that runs it and the retention. Both follow later settings."""
    tags = TagUpkeep(journal, writer.submit, clock, RandomIdentities(clock), principal=claimed_principal())
    tags.follow(parse_rules(config.tag_rules))
    live.follow(lambda changed: tags.follow(parse_rules(changed.tag_rules)))
    upkeep = RetentionUpkeep(retention, journal, clock)
    upkeep.follow(_retention_schedule(config))
    live.follow(lambda changed: upkeep.follow(_retention_schedule(changed)))
    return tags, Maintenance(journal, tags=tags, retention=upkeep, **_maintenance_bounds(config))


def _service(
    config: Config,
    journal: Journal,
    writer: Writer,
    hub: Hub,
    metrics: Metrics,
    tracer: Tracer,
    retention: Retention,
) -> CatalogService:
    return CatalogService(
        journal,
        writer,
        hub,
        **_service_bounds(config),
        requests_max=config.requests_max,
        request_bytes_max=config.request_bytes_max,
        stream_count_max=config.commit_stream_count_max,
        stream_bytes_max=config.commit_stream_bytes_max,
        sole_writer=config.sole_writer,
        metrics=metrics,
        tracer=tracer,
        retention=retention,
    )


def _follow(
    live: Live,
    journal: Journal,
    writer: Writer,
    hub: Hub,
    service: CatalogService,
    poller: Poller,
    maintenance: Maintenance,
) -> None:
    """Let the parts follow changes of the settings."""

    def configure(changed: Config) -> None:
        writer.configure(**_writer_bounds(changed))
        hub.configure(**_hub_bounds(changed))
        service.configure(**_service_bounds(changed))
        poller.configure(**_poller_bounds(changed))
        maintenance.configure(**_maintenance_bounds(changed))
        _size_caches(journal, changed)

    live.follow(configure)


async def _last_group(writer: Writer, writing: asyncio.Task[None], patience_seconds: float) -> None:
    """Wait until the closed writer has stored what is in flight, or give it up after `patience_seconds`."""
    await asyncio.wait({writing}, timeout=patience_seconds)
    if not writing.done():
        log.error("group_abandoned", members_count=writer.in_flight_count)
        writing.cancel()
    await asyncio.wait({writing})


async def serve(settings: Settings, reread: Callable[[], Settings]) -> None:
    """Open the catalog, serve it, and stop at a signal. `reread` returns the current settings at SIGHUP.

    Raises AlpheusError when the daemon cannot start.
    """
    config = settings.config
    telemetry.configure(config.log_level, config.log_format)
    stop, hangup = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    notifier, metrics, health = Notifier(os.environ), Metrics(), Health()
    log.debug("starting", pid=os.getpid(), files_max=_raise_files_max(), url=redact_url(config.url))
    await asyncio.to_thread(_clear, config.port_file)
    tracer = open_tracer(config.trace_endpoint)
    try:
        async with expose(config.metrics_listen, metrics, health) as metrics_address:
            notifier.status("opening the catalog")
            journal = await _unless(stop, open_journal(config, metrics=metrics, tracer=tracer))
            if journal is None:
                log.info("stopped_while_starting")
                return
            live = Live(config)
            live.follow(lambda changed: telemetry.set_level(changed.log_level))
            try:
                async with (
                    running(config, journal, live=live, metrics=metrics, tracer=tracer) as address,
                    asyncio.TaskGroup() as tasks,
                ):
                    pulse = tasks.create_task(Pulse(notifier, metrics.lag).run(), name="pulse")
                    reloading = tasks.create_task(_reload(hangup, live, reread, notifier), name="reloading")
                    await asyncio.to_thread(_write_whole, config.port_file, address + "\n")
                    health.is_serving, health.text = True, "serving"
                    log.info(
                        "serving",
                        release=software_version(),
                        pid=os.getpid(),
                        url=journal.storage.url,
                        address=address,
                        metrics_address=metrics_address,
                        version=journal.head.version,
                    )
                    notifier.ready(f"serving {address}")
                    await stop.wait()
                    log.info("shutting_down")
                    notifier.stopping()
                    health.is_serving, health.text = False, "shutting down"
                    await asyncio.to_thread(_remove, config.port_file)
                    pulse.cancel()
                    reloading.cancel()
            finally:
                await journal.close()
    finally:
        await asyncio.to_thread(tracer.close)
        notifier.close()
    log.info("stopped")


async def _reload(
    hangup: asyncio.Event, live: Live, reread: Callable[[], Settings], notifier: Notifier
) -> None:
    """At each SIGHUP, read all settings, check them as a whole, and only then apply those that can change."""
    while True:
        await hangup.wait()
        hangup.clear()
        notifier.reloading()
        try:
            settings = await asyncio.to_thread(reread)
            config, changed, left = reload_settings(live.config, settings)
        except AlpheusError as error:
            log.error("reload_refused", error=str(error))
            notifier.ready("serving; the last reload was refused, see the log")
            continue
        try:
            live.change(config)
        except Exception:
            # A bug. Some parts may have the new bounds and some the old, and all continue.
            log.exception("reload_failed", changed=changed)
            notifier.ready("serving; the last reload failed, see the log")
            continue
        log.info("reloaded", changed=changed)
        if left:
            log.warning("restart_needed", settings=left)
        notifier.ready("serving; reloaded")


def _raise_files_max() -> int:
    """Raise the limit of open files to `FILES_MAX` or the hard limit, whichever is lower. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


async def _unless(stop: asyncio.Event, opening: Coroutine[Any, Any, Journal]) -> Journal | None:
    """Return the journal of `opening`, or None if `stop` is set first."""

    async def attempt() -> Journal | Exception:
        try:
            return await opening
        except Exception as error:  # raised later as it is, not in an exception group
            return error

    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(attempt())
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
    if work.cancelled():
        return None
    result = work.result()
    if isinstance(result, Exception):
        raise result
    return result


def _write_whole(path: str, text: str) -> None:
    """Write a small file in one step, so that a reader never sees half of it. Do nothing for an empty path."""
    if not path:
        return
    target = Path(path).absolute()
    descriptor, staging = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(staging, 0o644)
    os.replace(staging, target)


def _clear(path: str) -> None:
    """Remove the file of an earlier run. Raises InvalidInput (`bad_configuration`) if nothing can be written there."""
    try:
        _remove(path)
        if path:
            tempfile.TemporaryFile(dir=Path(path).absolute().parent).close()
    except OSError as error:
        raise InvalidInput(
            f"--port-file: {path} cannot be written: {error.strerror}",
            kind="bad_configuration",
            hint="name a file in an existing, writable folder",
        ) from None


def _remove(path: str) -> None:
    if path:
        Path(path).unlink(missing_ok=True)


# --- command line ----------------------------------------------------------------------------------


_UNITS = {"seconds": "SECONDS", "minutes": "MINUTES", "ms": "MILLISECONDS", "bytes": "BYTES"}


def _metavar(setting: str, kind: type) -> str:
    """Return the unit in the name of a setting, without its bound."""
    if kind is str:
        return "TEXT"
    unit = setting.removesuffix("_max").removesuffix("_min").rpartition("_")[2]
    return _UNITS.get(unit, "N")


def _parameters() -> list[click.Parameter]:
    """Return the command's parameters, from the fields of Config. Values stay text, which `read_config` checks."""
    parameters: list[click.Parameter] = [
        click.Option(
            ["--config"],
            metavar="FILE",
            help="Read settings from this TOML file, and again at SIGHUP. [ALPHEUS_CONFIG]",
        ),
        click.Option(
            ["--print-config"],
            is_flag=True,
            help="Show the effective settings and where each comes from, then end.",
        ),
    ]
    for field in msgspec.structs.fields(Config):
        if field.name in ARGUMENTS:
            parameters.append(click.Argument([field.name], required=False))
            continue
        meta = next(item for item in field.type.__metadata__ if isinstance(item, msgspec.Meta))
        kind = field.type.__origin__
        default = "" if kind is bool or field.default == "" else f" [default: {field.default}]"
        bounds = f" [{meta.ge} to {meta.le}]" if meta.ge is not None else ""
        shape: dict[str, Any] = (
            {"is_flag": True, "flag_value": True} if kind is bool else {"metavar": _metavar(field.name, kind)}
        )
        text = f"{meta.description}{bounds}{default} [{variable_name(field.name)}]"
        parameters.append(click.Option([flag_name(field.name), field.name], help=text, default=None, **shape))
    return parameters


COMMAND = click.Command(
    "alpheus-daemon",
    params=_parameters(),
    callback=lambda **flags: flags,
    help="Serve the catalog at URL (or ALPHEUS_CATALOG) until SIGTERM or SIGINT.\n\n"
    "Every option can be given as the environment variable in brackets, or as a key of the TOML file given by"
    " --config (--group-count-max is the key group_count_max, URL is catalog). The option wins over the variable,"
    " and the variable over the file.",
    epilog="Exit status: 0 stopped in order, 1 could not start or failed, 2 wrong usage.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon, and return the exit status."""
    try:
        flags = COMMAND.main(
            list(sys.argv[1:] if argv is None else argv), standalone_mode=False, prog_name="alpheus-daemon"
        )
    except click.ClickException as error:
        click.UsageError(redact_text(error.message), getattr(error, "ctx", None)).show()
        return error.exit_code
    if not isinstance(flags, dict):  # --help was shown
        return int(flags or 0)
    # A SIGHUP before anything can be reloaded must not end the daemon.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return _run(flags)
    finally:
        signal.signal(signal.SIGHUP, before)


def _run(flags: dict[str, Any]) -> int:
    try:
        environment = dict(os.environ)
        settings = read_settings(flags, environment)
        if flags["print_config"]:
            print(settings.print(), end="")
            return 0
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, lambda: read_settings(flags, environment)))
    except (AlpheusError, OSError) as error:
        text = str(error) if isinstance(error, AlpheusError) else redact_text(str(error))
        print(f"alpheus-daemon: {' '.join(text.split())}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInput) and error.kind == "bad_configuration" else 1
    except Exception:
        telemetry.configure_unless_done()
        log.exception("daemon_failed")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
