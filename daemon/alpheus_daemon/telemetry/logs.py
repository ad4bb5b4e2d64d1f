"""Logs of the daemon: one JSON object a line on standard error, or one line of text for a person at a terminal.

`at` is UTC, `event` a short constant name; other keys carry their unit. The ids of a request and its transaction
(`request_id`, `transaction_id`) are bound in context variables, and are on every line written on the request's behalf.
The levels are: debug for detail, info for rare facts, warning for problems that pass by themselves, error for lost
work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

VALUE_LENGTH_MAX = 1000
"""The characters of one text in a line, except tracebacks. Names and messages come from callers."""


def _cut(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_LENGTH_MAX and key != "exception":
            event[key] = value[:VALUE_LENGTH_MAX] + "…"
    return event


def _serving_sentence(event: EventDict) -> str:
    address = event["address"] if event["address"].startswith("unix:") else f"grpc://{event['address']}"
    metrics = f" (metrics http://{event['metrics_address']}/metrics)" if event["metrics_address"] else ""
    return f"Alpheus {event['release']} serves {event['url']} at {address}{metrics}"


_SENTENCES: dict[str, Callable[[EventDict], str]] = {
    "catalog_created": lambda event: f"There was no catalog at {event['url']}: created one",
    "serving": _serving_sentence,
    "shutting_down": lambda event: "Shutting down",
    "stopped": lambda event: "Stopped",
}
"""Sentences for events that a person reads every day."""


def _escape(text: str) -> str:
    """Replace everything that a terminal would not simply display: control and invisible characters, line ends."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _quote(value: object) -> str:
    """Return `value` as one word: text with spaces or quotes becomes a JSON string."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    if isinstance(value, str) and (not text or any(mark in text for mark in ' "=')):
        text = json.dumps(text, ensure_ascii=False)
    return _escape(text)


def _render_text(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Return a line of text: a sentence for events of every start and end, else time, level, event, keys."""
    sentence = _SENTENCES.get(event["event"])
    if sentence is not None:
        return _escape(sentence(event))
    at, level, name = event.pop("at"), event.pop("level"), event.pop("event")
    exception = event.pop("exception", "")
    words = [at, level, name, *(f"{key}={_quote(value)}" for key, value in event.items())]
    return "\n".join([" ".join(words), *(_escape(line) for line in exception.splitlines())])


class _Forward(logging.Handler):
    """Writes records of libraries (grpc, asyncio) in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library_log",
            library=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or False,
        )


class _StandardError:
    """Writes lines to the current standard error.

    A line that cannot be written is dropped. There is no other place to complain, and no caller may fail for it.
    """

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Logger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """The class of all loggers of the process. `set_level` changes its methods, so cached loggers follow, too."""


def set_level(level: str) -> None:
    """Write only lines of `level` and above from now on. Lower levels cost an empty call."""
    filtering = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    for name, method in vars(filtering).items():
        if callable(method) and not name.startswith("__"):
            setattr(_Logger, name, method)


def configure_unless_done() -> None:
    """Configure logs for failures before the settings are known.

    By default structlog would show local variables, among them the environment with its secrets.
    """
    if not structlog.is_configured():
        configure("info")


def configure(level: str, log_format: str = "json") -> None:
    """Send this process's logs of `level` and above to standard error. To be called once, at start.

    `log_format` is one of `config.FORMATS`; "auto" is text if standard error is a terminal, else JSON.
    """
    set_level(level)
    as_text = log_format == "text" or (log_format == "auto" and _is_terminal())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            _cut,
            _render_text if as_text else structlog.processors.JSONRenderer(ensure_ascii=True),
        ],
        wrapper_class=_Logger,
        logger_factory=lambda *_: _StandardError(),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def logger() -> FilteringBoundLogger:
    """Return a logger of this process. Values bound with `structlog.contextvars` are on its lines."""
    log: Any = structlog.get_logger()
    return log  # type: ignore[no-any-return]
