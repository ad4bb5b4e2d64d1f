"""Messages to a supervisor, and the pulse that shows whether the event loop still runs.

The protocol is systemd's `sd_notify`: datagrams of `KEY=value` lines to the socket in NOTIFY_SOCKET. Without that
variable nothing is sent. The event loop itself sends the pings, because a process with a blocked event loop is not
alive. Systemd restarts such a process after WatchdogSec.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping

from alpheus_daemon.telemetry.logs import logger

log = logger()

PULSE_SECONDS = 0.5
"""The time between two measurements of the event loop. One measurement costs some microseconds."""
LAG_WARNING_SECONDS = 1.0
"""The delay of the event loop from which on it is logged."""


class Notifier:
    """Sends to the socket that `environment` names, or does nothing without one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        micros = environment.get("WATCHDOG_USEC", "") if ours else ""
        self.watchdog_seconds = int(micros) / 1e6 if micros.isdecimal() and int(micros) else None
        """The time without pings after which the supervisor acts. None means that it does not watch."""

    def send(self, **fields: str | int) -> None:
        """Send one datagram. A failure is logged and does no further harm."""
        if self._socket is None:
            return
        text = "\n".join(f"{key}={value}" for key, value in fields.items())
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._socket.sendto(text.encode(), name)
        except OSError as error:
            log.warning("notify_failed", reason=error.strerror, fields=", ".join(fields))

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self.send(STATUS=text)

    def ready(self, text: str) -> None:
        self.send(READY=1, STATUS=text)

    def reloading(self) -> None:
        """Report a reload. `ready` must follow (Type=notify-reload of systemd 253; older releases ignore the time)."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def stopping(self) -> None:
        self.send(STOPPING=1, STATUS="finishing what is in flight")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Pulse:
    """Measures how late the event loop runs due work, and pings the watchdog at half its interval.

    `lag` receives each measured delay in seconds.
    """

    def __init__(self, notifier: Notifier, lag: Callable[[float], None]) -> None:
        self._notifier = notifier
        self._lag = lag
        self.lag_seconds_max = 0.0

    async def run(self) -> None:
        """Measure and ping until cancelled."""
        loop = asyncio.get_running_loop()
        limit = self._notifier.watchdog_seconds
        interval = PULSE_SECONDS if limit is None else min(PULSE_SECONDS, limit / 2)
        ping_at = loop.time()
        while True:
            if limit is not None and loop.time() >= ping_at:
                self._notifier.send(WATCHDOG=1)
                ping_at = loop.time() + limit / 2 - interval  # the next iteration at or after this is in time
            due = loop.time() + interval
            await asyncio.sleep(interval)
            late = max(loop.time() - due, 0.0)
            self._lag(late)
            self.lag_seconds_max = max(self.lag_seconds_max, late)
            if late >= LAG_WARNING_SECONDS:
                log.warning("event_loop_blocked", lag_seconds=round(late, 3))
