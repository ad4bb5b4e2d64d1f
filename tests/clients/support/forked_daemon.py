"""Daemons as children of one process that has imported them: a start costs a quarter of `python -m alpheus_daemon`.

A child is a process of its own with its own arguments, environment and standard error, which is killed like any other.
The tests of the daemon, of the command line and of faults start the command itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import IO, Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["alpheus_daemon.main"])


def start(arguments: Sequence[str]) -> tuple[BaseProcess, IO[bytes]]:
    """Start a daemon with these arguments and this environment. Return its process and what it writes to its standard
    error."""
    read, write = os.pipe()
    log = os.fdopen(read, "rb")
    try:
        process = _Process(arguments, os.environ, os.getcwd(), write)
        process.start()
    except BaseException:
        log.close()
        raise
    finally:
        os.close(write)
    return process, log


class _Process(_SERVER.Process):  # type: ignore[name-defined, misc]
    """A process that serves. Its standard error is duplicated when it starts."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, error: int
    ) -> None:
        super().__init__(daemon=True)
        self.given = list(arguments), dict(environment), folder
        self.error: Any = error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"error": DupFd(self.error)}

    def run(self) -> None:
        arguments, environment, folder = self.given
        error = self.error.detach()
        os.dup2(error, 2)
        os.close(error)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `python -m alpheus_daemon` does

        from alpheus_daemon.main import main

        raise SystemExit(main(arguments))
