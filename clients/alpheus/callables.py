"""Checks that functions of users do their work when they are called. A call of a function that is async, or has a
`yield`, only returns an object: the function would write nothing, and would still count as done."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator

from alpheus_journal.errors import InvalidInput

_PLAIN = "write it as a plain function that returns after it has written everything"
_UNRUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_plain(what: str, function: object) -> None:
    """Refuse a value that cannot be called, and a function that would do nothing when called. Raises InvalidInput."""
    if not callable(function):
        raise InvalidInput(f"{what} is of type {type(function).__name__}, which cannot be called")
    if any(check(function) for check in _UNRUN):
        raise InvalidInput(
            f"{what} would do nothing when it is called, because it is async, or has a yield", hint=_PLAIN
        )


def refuse_unrun(what: str, returned: object) -> None:
    """Refuse a returned coroutine or generator, whose work has not begun. Raises InvalidInput."""
    if isinstance(returned, Awaitable | Generator | AsyncGenerator):
        if isinstance(returned, Coroutine):
            returned.close()  # otherwise Python warns about the coroutine at some other place
        raise InvalidInput(
            f"{what} returned a {type(returned).__name__} and did nothing, because it is async, or has a yield",
            hint=_PLAIN,
        )
