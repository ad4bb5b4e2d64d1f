"""Rules for tags that a daemon makes by the calendar: which periods have ended, and what their tags are called.

Pure: times are given by the caller. A rule is text such as `daily keep=30 zone=Europe/Berlin delay=10m`. The tag of a
period names the last version that was made before the period ended, or before the delay after its end had passed. So a
daemon that was down makes the missed tags later, and they name the same versions.

| Rule | Period | Name |
| --- | --- | --- |
| `hourly` | an hour of UTC | `hourly-2026-11-23T04` |
| `daily` | a day of the zone | `daily-2026-11-23` |
| `weekly` | Monday to Sunday of the zone | `weekly-2026-W47` |
| `monthly` | a month of the zone | `monthly-2026-11` |
| another name, with `cron='30 2 * * *'` | ends at a moment of the zone | `nightly-2026-11-23T0230`, in UTC |

The text of cron is read by cronsim: it knows time zones and their changes, and finds earlier moments as well as later
ones, which missed tags need. croniter, the other library, has its own rules for changes of the clock, and needs two
packages more. Own code would have to repeat both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from alpheus_journal.errors import InvalidInput

KEEP_MAX = 10_000
MISSED_MAX = 100
"""The most periods for which tags are made later, when a daemon was down. Older periods get none."""
DELAY_SECONDS_MAX = 7 * 24 * 3600
PROPERTY = "alpheus.tag.rule"
"""The property that each such tag has: the kind of its rule."""
EXAMPLE = "daily keep=30 zone=Europe/Berlin delay=10m; nightly cron='30 2 * * mon-fri' keep=8"

_NAMES = {
    "hourly": re.compile(r"hourly-\d{4}-\d\d-\d\dT\d\d"),
    "daily": re.compile(r"daily-\d{4}-\d\d-\d\d"),
    "weekly": re.compile(r"weekly-\d{4}-W\d\d"),
    "monthly": re.compile(r"monthly-\d{4}-\d\d"),
}
_CRON_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_CRON_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_CRON_FROM = datetime(2026, 1, 1, tzinfo=UTC)
"""The text of cron must have a moment before this time, or it never comes."""
_MOMENT = r"-\d{4}-\d\d-\d\dT\d{4}"
_TERM = re.compile(r"""\w+=(?:'[^']*'|"[^"]*")|\S+""")
_SPAN = re.compile(r"([1-9]\d{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. `keep` is the number of its newest tags that stay; 0 means all. A rule with the five fields of `cron`
    has a name of its own as its kind."""

    kind: str
    cron: str = ""
    keep: int = 0
    delay: timedelta = timedelta()
    zone: tzinfo = UTC

    def last_end(self, now: datetime) -> datetime:
        """Return the end of the last period that has ended, with the delay, at `now`."""
        at = (now - self.delay).astimezone(self.zone)
        if self.cron:
            minute = at.astimezone(UTC).replace(second=0, microsecond=0)
            return self._moment_before(minute + timedelta(minutes=1))
        if self.kind == "hourly":
            return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return self._midnight(self._first_day(at.date()))

    def before(self, end: datetime) -> datetime:
        """Return the end of the period before the one that ends at `end`, which is also when that one began."""
        if self.cron:
            return self._moment_before(end)
        if self.kind == "hourly":
            return end - timedelta(hours=1)
        return self._midnight(self._first_day(end.astimezone(self.zone).date() - timedelta(days=1)))

    def name(self, end: datetime) -> str:
        """Return the name of the tag of the period that ends at `end`."""
        if self.cron:
            return f"{self.kind}-{end.astimezone(UTC):%Y-%m-%dT%H%M}"
        begin = self.before(end)
        if self.kind == "hourly":
            return f"hourly-{begin:%Y-%m-%dT%H}"
        day = begin.astimezone(self.zone).date()
        if self.kind == "weekly":
            year, week, _ = day.isocalendar()
            return f"weekly-{year}-W{week:02}"
        return f"monthly-{day:%Y-%m}" if self.kind == "monthly" else f"daily-{day:%Y-%m-%d}"

    def has_made(self, name: str) -> bool:
        """Return whether a tag of this name can be one of the rule's."""
        if self.cron:
            return re.fullmatch(re.escape(self.kind) + _MOMENT, name) is not None
        return _NAMES[self.kind].fullmatch(name) is not None

    def due(self, now: datetime, newest: str) -> Iterator[tuple[str, datetime]]:
        """Yield name and last moment of each period that has ended and has no tag yet, the newest first.

        `newest` is the name of the rule's newest tag. Without one only the last period is due.
        """
        end = self.last_end(now)
        for _ in range(min(self.keep or MISSED_MAX, MISSED_MAX) if newest else 1):
            name = self.name(end)
            if name <= newest:
                return
            yield name, end.astimezone(UTC) + self.delay - timedelta(milliseconds=1)
            end = self.before(end)

    def _moment_before(self, end: datetime) -> datetime:
        """Return the last moment of the text of cron before a time. Raises StopIteration where there is none."""
        return next(CronSim(self.cron, end.astimezone(self.zone), reverse=True))

    def _first_day(self, day: date) -> date:
        """Return the first day of the day's period."""
        if self.kind == "weekly":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.kind == "monthly" else day

    def _midnight(self, day: date) -> datetime:
        return datetime.combine(day, time(), self.zone)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the rules of a setting, separated by semicolons. Raises InvalidInput (`bad_configuration`)."""
    rules: dict[str, Rule] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        rule = _parse_rule(part)
        if rule.kind in rules:
            raise _bad(f"there are two rules {rule.kind}")
        rules[rule.kind] = rule
    return tuple(rules.values())


def _parse_rule(text: str) -> Rule:
    kind, *terms = _TERM.findall(text)
    has_cron = any(term.startswith("cron=") for term in terms)
    if kind not in _NAMES and (not has_cron or not _CRON_NAME.fullmatch(kind)):
        raise _bad(
            f"{kind[:40]!r} is not a kind of rule: use {', '.join(_NAMES)}, or another name in small letters with"
            " cron='MINUTE HOUR DAY MONTH WEEKDAY'"
        )
    rule = Rule(kind=kind)
    for term in terms:
        word, _, value = term.partition("=")
        if word == "keep" and value.isascii() and value.isdecimal() and 1 <= int(value) <= KEEP_MAX:
            rule = msgspec.structs.replace(rule, keep=int(value))
        elif word == "delay" and (span := _SPAN.fullmatch(value)):
            delay = timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
            if delay.total_seconds() > DELAY_SECONDS_MAX:
                raise _bad(f"the delay {value} is longer than 7 days")
            rule = msgspec.structs.replace(rule, delay=delay)
        elif word == "cron" and kind not in _NAMES:
            rule = msgspec.structs.replace(rule, cron=_parse_cron(kind, value))
        elif word == "zone" and kind != "hourly":
            rule = msgspec.structs.replace(rule, zone=_zone(value))
        else:
            raise _bad(f"{term[:40]!r} is not a term of the rule {kind}")
    return rule


def _parse_cron(kind: str, value: str) -> str:
    """Check the five fields of a text of cron, which may be quoted. Names the field that is wrong."""
    text = value[1:-1] if value[:1] in ("'", '"') and value[:1] == value[-1:] and len(value) > 1 else value
    shown = f"cron={text[:80]!r} of the rule {kind}"
    fields = text.split()
    if len(fields) != len(_CRON_FIELDS):
        raise _bad(f"{shown} has {len(fields)} fields, not the five {', '.join(_CRON_FIELDS)}")
    try:
        next(CronSim(text, _CRON_FROM, reverse=True))
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        place = _CRON_FIELDS.index(name) if name in _CRON_FIELDS else -1
        raise _bad(
            f"{shown}: {fields[place][:40]!r} is no {name}" if place >= 0 else f"{shown}: {error}"
        ) from None
    except ValueError:  # a number of thousands of digits
        raise _bad(f"{shown} has a number that is too long") from None
    except StopIteration:
        raise _bad(f"{shown} names a moment that never comes") from None
    return " ".join(fields)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise _bad(f"there is no time zone {name[:60]!r}") from None


def _bad(reason: str) -> InvalidInput:
    return InvalidInput(f"tag rules: {reason}", kind="bad_configuration", hint=f"for example: {EXAMPLE}")
