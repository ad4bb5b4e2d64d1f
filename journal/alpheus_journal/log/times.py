"""Times of versions where clocks are wrong (FORMAT.md, "Times").

A version's time is its writer's clock, and never below the time of the version before. So one writer with a clock in
the future pushes the times of all later versions ahead, until a repair resets the times. The repair puts a **time
mark** into the catalog's definition. Between two marks times ascend.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput, NotFound
from alpheus_journal.model.definitions import TimeMark
from alpheus_journal.model.operations import Operation, RecordedTransaction, Repair

log = logging.getLogger("alpheus")
_told: set[str] = set()


def is_ahead(created_at_millis: int, now_millis: int) -> bool:
    """Return whether a head's time is so far in the future that a clock must be wrong: its writer's clock or this
    machine's."""
    return created_at_millis > now_millis + fmt.CLOCK_SKEW_MILLIS_MAX


def next_time(head_millis: int, now_millis: int, operations: Iterable[Operation] = ()) -> int:
    """Return the time of the version after a head with the time `head_millis`."""
    if not is_ahead(head_millis, now_millis):
        return max(head_millis, now_millis)
    if any(isinstance(operation, Repair) and operation.times_up_to_millis for operation in operations):
        return now_millis
    return head_millis + 1


def resets_times(transactions: Iterable[RecordedTransaction]) -> bool:
    """Return whether a version with these transactions may have a time before that of the version below it."""
    return any(
        isinstance(action.operation, Repair) and action.operation.times_up_to_millis
        for recorded in transactions
        for action in recorded.actions
    )


def tell_ahead(where: str, version: int, ahead_millis: int) -> None:
    """Log that the times of versions are in the future, once for each process and catalog."""
    if where not in _told:
        _told.add(where)
        log.warning(
            "%s: version %d has a time %s ahead of this machine's clock; commits continue with times after it."
            " See alpheus info; alpheus repair --times resets the times",
            where,
            version,
            duration_text(ahead_millis),
        )


def duration_text(millis: int) -> str:
    try:
        return str(timedelta(seconds=millis // 1000))
    except OverflowError:
        return f"{millis // 1000} s"


def time_text(millis: int) -> str:
    """Return epoch milliseconds as an RFC 3339 text, or as a number when they are outside the calendar."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)).isoformat()
    except OverflowError:
        return f"{millis} ms after 1970"


def epochs(marks: Sequence[TimeMark], head: int) -> list[tuple[int, int]]:
    """Return the ranges of versions within which times ascend, both ends included, the newest first."""
    firsts = [0, *(mark.version for mark in marks if mark.version <= head), head + 1]
    return [(first, after - 1) for first, after in itertools.pairwise(firsts)][::-1]


async def version_at(
    millis: int,
    marks: Sequence[TimeMark],
    oldest: int,
    head: int,
    created_at: Callable[[int], Awaitable[int]],
) -> int:
    """Find the last version created at or before a time, in the newest epoch that has one, by bisection.

    When all kept versions are newer, raises Expired, or NotFound (`no_version`) when no version has expired.
    """
    for first, last in epochs(marks, head):
        low, high = max(first, oldest), last + 1
        if low >= high or await created_at(low) > millis:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if await created_at(middle) <= millis:
                low = middle
            else:
                high = middle
        return low
    raise _too_old(millis, oldest)


async def version_back(count: int, head: int, oldest: Callable[[], Awaitable[int]]) -> int:
    """Return the version counted back from the head, which is 1. Raises Expired before version 0, and InvalidInput for
    a count below 1."""
    if count < 1:
        raise InvalidInput(
            f"{count} versions back is not a version",
            kind="bad_version",
            hint="count from 1, which is the head",
        )
    if count > head + 1:
        kept = await oldest()
        raise Expired(
            f"version -{count} would be before version 0; the oldest that is kept is {kept}", oldest=kept
        )
    return head + 1 - count


def check_not_future(millis: int, head: int, head_millis: int, now_millis: int) -> None:
    """Raise InvalidInput (`future_version`) for a time in the future, at which the catalog's content is not known
    yet."""
    if is_ahead(millis, max(head_millis, now_millis)):
        raise InvalidInput(
            f"{time_text(millis)} is in the future: the newest version, {head}, was created at"
            f" {time_text(head_millis)}, and it is {time_text(now_millis)}",
            kind="future_version",
            hint="leave out the time to get the newest version",
        )


def _too_old(millis: int, oldest: int) -> AlpheusError:
    text = f"no version is as old as {time_text(millis)}"
    if oldest:
        return Expired(f"{text}; the oldest that is kept is {oldest}", oldest=oldest)
    return NotFound(f"{text}: the catalog was created later", kind="no_version")
