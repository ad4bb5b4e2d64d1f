"""Convert dates and times of `where` texts into the counts that columns store."""

from __future__ import annotations

import re

from alpheus_journal.predicate.sql import civil, days_of

DAY_MICROS = 86_400_000_000
_DATE = re.compile(r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME = re.compile(
    r"(?P<date>[^ T]+)(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,6}))?)?"
    r" ?(?P<zone>Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?",
    re.ASCII | re.IGNORECASE,
)


def read_days(text: str) -> int:
    """Convert a date into days since 1970-01-01. Raises ValueError for a text that is not a date."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("is not a date such as 2026-03-01")
    year, month, day = (int(part) for part in match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31) or civil(days_of(year, month, day)) != (year, month, day):
        raise ValueError("is not a day of the calendar")
    return days_of(year, month, day)


def read_micros(text: str, zoned: bool) -> int:
    """Convert a point in time into microseconds since 1970-01-01. Raises ValueError for a text that is not a point in
    time, and for a text with a zone unless `zoned`."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(
            "is not a time such as 2026-03-01 12:00:00.123456, with Z or +01:00 where the column has a zone"
        )
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is not a time of the day")
    zone = (match["zone"] or "").upper()
    if zone and not zoned:
        raise ValueError("has a zone, but the column has none")
    offset = 0
    if zone not in ("", "Z", "UTC"):
        hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or 0)
        if hours > 18 or minutes > 59:
            raise ValueError("has no zone between -18:00 and +18:00")
        offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    seconds = (hour * 60 + minute - offset) * 60 + second
    return (
        read_days(match["date"]) * DAY_MICROS
        + seconds * 1_000_000
        + int((match["fraction"] or "").ljust(6, "0"))
    )
