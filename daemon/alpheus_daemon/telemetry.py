"""Logs of the daemon: one JSON object a line on standard error.

`at` is UTC; `event` a short constant name; other keys carry their unit. What a request is about
(`request_id`, `transaction_id`) is bound in context variables and goes on every line written on its behalf.
Levels: debug detail, info rare facts, warning self-healing, error lost work.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LEVELS = ("debug", "info", "warning", "error")

VALUE_LENGTH_MAX = 1000
"""Characters of one text in a line, tracebacks aside: names and messages come from callers."""


def _cut(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_LENGTH_MAX and key != "exception":
            event[key] = value[:VALUE_LENGTH_MAX] + "…"
    return event


class _Forward(logging.Handler):
    """Records of libraries (grpc, asyncio), in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library_log",
            library=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or False,
        )


class _StandardError:
    """Writes lines to whatever standard error is now. A line that cannot be written is given up: there is no
    other place to complain, and no caller shall fail for it."""

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Logger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """What all loggers of the process are, also those that are kept: `set_level` changes its methods."""


def set_level(level: str) -> None:
    """From now on only lines of `level` and above; what is below costs a call of nothing."""
    filtering = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    for name, method in vars(filtering).items():
        if callable(method) and not name.startswith("__"):
            setattr(_Logger, name, method)


def configure(level: str) -> None:
    """Send this process's logs of `level` and above to standard error. Once, at start."""
    set_level(level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            _cut,
            structlog.processors.JSONRenderer(ensure_ascii=True),
        ],
        wrapper_class=_Logger,
        logger_factory=lambda *_: _StandardError(),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


def logger() -> FilteringBoundLogger:
    """A logger of this process. Values bound with `structlog.contextvars` are on its lines."""
    log: Any = structlog.get_logger()
    return log  # type: ignore[no-any-return]
