"""Functions of users that do their work when they are called. One that is async, or has a `yield`, has not begun then:
that it wrote nothing would count as done."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator

from alpheus_journal.errors import InvalidInput

_PLAIN = "write it as a plain function that returns when everything is written"
_UNRUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_plain(what: str, function: object) -> None:
    """InvalidInput for what cannot be called, or would do nothing then."""
    if not callable(function):
        raise InvalidInput(f"{what} is {type(function).__name__}, which cannot be called")
    if any(check(function) for check in _UNRUN):
        raise InvalidInput(
            f"{what} would do nothing when it is called: it is async, or has a yield", hint=_PLAIN
        )


def refuse_unrun(what: str, returned: object) -> None:
    """InvalidInput when what a function returned is its work, not begun."""
    if isinstance(returned, Awaitable | Generator | AsyncGenerator):
        if isinstance(returned, Coroutine):
            returned.close()  # else Python warns of it at some other place
        raise InvalidInput(
            f"{what} gave a {type(returned).__name__} and did nothing: it is async, or has a yield",
            hint=_PLAIN,
        )
