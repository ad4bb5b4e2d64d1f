"""Wire the parts, run until signalled: the command `alpheus-daemon`, which `alpheus serve` starts.

Start: storage, journal, replay, listener; only then does the port file appear. End, on SIGTERM or SIGINT: no
new calls, the group in flight is finished, what waits is refused as not applied, streams end with a place to
go on from; all within `--shutdown-grace-seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from alpheus_daemon import telemetry
from alpheus_daemon.config import (
    ARGUMENTS,
    Config,
    flag_name,
    read_config,
    variable_name,
)
from alpheus_daemon.service import CatalogService, Server
from alpheus_daemon.telemetry import logger
from alpheus_daemon.watch import Hub, Poller
from alpheus_daemon.writer import Writer
from alpheus_journal.errors import AlpheusError, AlreadyExists, InvalidInput, NotFound
from alpheus_journal.journal import Journal
from alpheus_journal.storage import open_storage
from alpheus_journal.system import claimed_principal

log = logger()

STOP_RESERVE_SECONDS = 1.0
"""Of the grace, at the end: to send the last answers and close the storage."""


async def open_journal(config: Config) -> Journal:
    """The catalog at the configured URL, replayed to its head; created when there is none and that was asked.

    The store has passed its self-test then. Raises NotFound (`no_catalog`), InvalidInput (`bad_url`,
    `storage_unsuitable`), Denied where nothing can be written, and what storage and replay raise.
    """
    storage = await asyncio.to_thread(open_storage, config.url, create=config.create)
    try:
        try:
            journal = await Journal.open(storage)
        except NotFound:
            if not config.create:
                raise
            try:
                journal = await Journal.create(storage, principal=claimed_principal())
                log.info("catalog_created")
            except AlreadyExists:  # somebody was faster
                journal = await Journal.open(storage)
        await storage.prove()
        await journal.load_state()
    except BaseException:
        await storage.close()
        raise
    # What was loaded stays: full collections need not walk it again and again.
    gc.collect()
    gc.freeze()
    return journal


@contextlib.asynccontextmanager
async def running(config: Config, journal: Journal) -> AsyncIterator[str]:
    """Serve `journal`; yields the address. On leaving, the orderly end."""
    writer = Writer(
        journal,
        group_count_max=config.group_count_max,
        group_bytes_max=config.group_bytes_max,
        queue_count_max=config.queue_count_max,
        queue_bytes_max=config.queue_bytes_max,
        timeout_seconds=config.commit_timeout_seconds,
    )
    hub = Hub(
        journal,
        subscribers_max=config.subscribers_max,
        batch_count_max=config.event_batch_count_max,
        batch_bytes_max=config.event_batch_bytes_max,
        scan_count_max=config.event_scan_count_max,
        ring_bytes_max=config.event_ring_bytes_max,
        heartbeat_seconds=config.subscriber_heartbeat_seconds,
        sole_writer=config.sole_writer,
    )
    service = CatalogService(
        journal,
        writer,
        hub,
        write_timeout_seconds=config.subscriber_write_timeout_seconds,
        lookup_bytes_max=config.load_cache_bytes_max,
        sole_writer=config.sole_writer,
    )
    server = Server(service, config)
    address = await asyncio.to_thread(server.bind)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(writer.run(), name="writer")
        followers = [tasks.create_task(hub.run(), name="hub")]
        if not config.sole_writer:
            poller = Poller(
                journal,
                interval_min_seconds=config.poll_interval_min_ms / 1000,
                interval_max_seconds=config.poll_interval_max_ms / 1000,
            )
            followers.append(tasks.create_task(poller.run(), name="poller"))
        await server.start()
        try:
            yield address
        finally:
            deadline = time.monotonic() + config.shutdown_grace_seconds
            writer.close()
            hub.close()
            await server.withdraw()
            patience = max(config.shutdown_grace_seconds - STOP_RESERVE_SECONDS, 0.1)
            await asyncio.wait({writing}, timeout=patience)
            if not writing.done():
                log.error("group_abandoned", members_count=writer.in_flight_count)
                writing.cancel()
            await asyncio.wait({writing})
            await server.stop(max(deadline - time.monotonic(), 0.1))
            for follower in followers:
                follower.cancel()


async def serve(config: Config) -> None:
    """Open, serve, stop on a signal. Raises AlpheusError when it cannot start."""
    telemetry.configure(config.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log.info("starting", pid=os.getpid(), **config.public())
    await asyncio.to_thread(_remove, config.port_file)
    journal = await _unless(stop, open_journal(config))
    if journal is None:
        log.info("stopped_while_starting")
        return
    try:
        async with running(config, journal) as address:
            await asyncio.to_thread(_write_whole, config.port_file, address + "\n")
            log.info("serving", address=address, version=journal.head.version)
            await stop.wait()
            log.info("shutting_down")
            await asyncio.to_thread(_remove, config.port_file)
    finally:
        await journal.close()
    log.info("stopped")


async def _unless(stop: asyncio.Event, opening: Coroutine[Any, Any, Journal]) -> Journal | None:
    """The journal that `opening` gives; None when `stop` comes first."""

    async def attempt() -> Journal | Exception:
        try:
            return await opening
        except Exception as error:  # to be raised by itself, not in a group
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
    """Write a small file in one step; a reader never sees half of it. No path: nothing."""
    if not path:
        return
    target = Path(path).absolute()
    descriptor, staging = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(staging, 0o644)
    os.replace(staging, target)


def _remove(path: str) -> None:
    if path:
        Path(path).unlink(missing_ok=True)


# --- command line ----------------------------------------------------------------------------------


def _parameters() -> list[click.Parameter]:
    """The command's parameters, from the fields of Config. Values stay text: `read_config` checks them."""
    parameters: list[click.Parameter] = []
    for field in msgspec.structs.fields(Config):
        if field.name in ARGUMENTS:
            parameters.append(click.Argument([field.name], required=False))
            continue
        meta = next(item for item in field.type.__metadata__ if isinstance(item, msgspec.Meta))
        kind = field.type.__origin__
        default = "" if kind is bool or field.default == "" else f" [default: {field.default}]"
        bounds = f" [{meta.ge} to {meta.le}]" if meta.ge is not None else ""
        shape: dict[str, Any] = (
            {"is_flag": True, "flag_value": True}
            if kind is bool
            else {"metavar": {int: "N", float: "SECONDS", str: "TEXT"}[kind]}
        )
        text = f"{meta.description}{bounds}{default} [{variable_name(field.name)}]"
        parameters.append(click.Option([flag_name(field.name), field.name], help=text, default=None, **shape))
    return parameters


COMMAND = click.Command(
    "alpheus-daemon",
    params=_parameters(),
    callback=lambda **flags: flags,
    help="Serve the catalog at URL (or ALPHEUS_CATALOG) until SIGTERM or SIGINT.\n\n"
    "Every option can be given as the environment variable in brackets; the option wins.",
    epilog="Exit status: 0 stopped in order, 1 it could not start or failed, 2 wrong usage.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the exit status."""
    try:
        flags = COMMAND.main(
            list(sys.argv[1:] if argv is None else argv), standalone_mode=False, prog_name="alpheus-daemon"
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    if not isinstance(flags, dict):  # --help was shown
        return int(flags or 0)
    try:
        config = read_config(flags, os.environ)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except (AlpheusError, OSError) as error:
        print(f"alpheus-daemon: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInput) and error.kind == "bad_configuration" else 1
    except Exception:
        log.exception("daemon_failed")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
