"""Rules of tags: which periods are due, and what their tags are called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_daemon.tag_rules import KEEP_MAX, MISSED_MAX, Rule, parse_rules
from alpheus_journal.errors import InvalidInput

ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Asia/Beirut",
)
KINDS = ("hourly", "daily", "weekly", "monthly")


def rule_of(text: str) -> Rule:
    (rule,) = parse_rules(text)
    return rule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_rules_are_parsed() -> None:
    assert parse_rules("") == parse_rules(" ; ") == ()
    daily, weekly = parse_rules("daily keep=30 zone=Europe/Berlin delay=10m; weekly")
    assert (daily.kind, daily.keep, daily.delay, str(daily.zone)) == (
        "daily", 30, timedelta(minutes=10), "Europe/Berlin",
    )  # fmt: skip
    assert weekly == Rule(kind="weekly")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nightly", "'nightly' is not a kind of rule"),
        ("daily; daily", "two rules daily"),
        ("daily keep=0", "'keep=0' is not a term"),
        (f"daily keep={KEEP_MAX + 1}", "is not a term"),
        ("daily keep=x", "is not a term"),
        ("daily keep=\u0661", "is not a term"),
        ("daily delay=10", "is not a term"),
        ("daily delay=8d", "longer than 7 days"),
        ("daily zone=Europe/Atlantis", "no time zone"),
        ("daily zone=../../etc/passwd", "no time zone"),
        ("daily zone=", "no time zone"),
        ("hourly zone=Europe/Berlin", "is not a term"),
        ("daily when=noon", "is not a term"),
        ("daily cron='30 2 * * *'", "is not a term of the rule daily"),
        ("Nightly cron='30 2 * * *'", "'Nightly' is not a kind of rule"),
        ("nightly keep=3", "'nightly' is not a kind of rule"),
        ("nightly cron='61 2 * * *'", "cron='61 2 [*] [*] [*]' of the rule nightly: '61' is no minute"),
        ("nightly cron='30 2-x * * *'", "'2-x' is no hour"),
        ("nightly cron='30 2 32 * *'", "'32' is no day-of-month"),
        ("nightly cron='30 2 * 13 *'", "'13' is no month"),
        ("nightly cron='30 2 * * monday'", "'monday' is no day-of-week"),
        ("nightly cron='30 2 31 2 *'", "'31' is no day-of-month"),
        ("nightly cron='30 2 * *'", "has 4 fields, not the five minute, hour"),
        ("nightly cron='0 30 2 * * *'", "has 6 fields"),
        ("nightly cron=''", "has 0 fields"),
        ("nightly cron=30 2 * * *", "has 1 fields"),
        ("nightly cron='30 2 * * *", "has 1 fields"),
        ("nightly cron='*/0 * * * *'", "'[*]/0' is no minute"),
        (f"nightly cron='{'1' * 5000} * * * *'", "has a number that is too long"),
        ("nightly cron='@daily'", "has 1 fields"),
        ("nightly cron='0 1 * * *' zone=Mars", "no time zone"),
        ("a cron='0 1 * * *'; a cron='0 2 * * *'", "two rules a"),
    ],
)
def test_rules_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        parse_rules(text)
    assert caught.value.kind == "bad_configuration"
    assert "daily keep=30" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "now", "name", "moment"),
    [
        ("hourly", "2026-11-23T05:00:00", "hourly-2026-11-23T04", "2026-11-23T04:59:59.999"),
        ("hourly delay=10m", "2026-11-23T05:09:59", "hourly-2026-11-23T03", "2026-11-23T04:09:59.999"),
        ("hourly delay=10m", "2026-11-23T05:10:00", "hourly-2026-11-23T04", "2026-11-23T05:09:59.999"),
        ("daily", "2026-11-24T00:00:00", "daily-2026-11-23", "2026-11-23T23:59:59.999"),
        ("daily zone=Europe/Berlin", "2026-11-23T23:00:00", "daily-2026-11-23", "2026-11-23T22:59:59.999"),
        ("daily zone=Europe/Berlin", "2026-07-23T22:00:00", "daily-2026-07-23", "2026-07-23T21:59:59.999"),
        (
            "daily zone=Europe/Berlin delay=2h",
            "2026-10-25T12:00:00",
            "daily-2026-10-24",
            "2026-10-24T23:59:59.999",
        ),
        ("weekly", "2026-11-23T00:00:00", "weekly-2026-W47", "2026-11-22T23:59:59.999"),
        ("weekly", "2027-01-04T00:00:00", "weekly-2026-W53", "2027-01-03T23:59:59.999"),
        ("monthly", "2026-12-01T00:00:00", "monthly-2026-11", "2026-11-30T23:59:59.999"),
        ("monthly", "2027-01-15T00:00:00", "monthly-2026-12", "2026-12-31T23:59:59.999"),
    ],
)
def test_the_period_that_ended_last(text: str, now: str, name: str, moment: str) -> None:
    rule = rule_of(text)
    assert list(rule.due(at(now), "")) == [(name, at(moment))]
    assert rule.has_made(name)
    assert not list(rule.due(at(now), name))


def test_missed_periods_come_later_up_to_what_the_rule_keeps() -> None:
    now = at("2026-11-24T10:00:00")
    names = [name for name, _ in rule_of("daily").due(now, "daily-2026-11-20")]
    assert names == ["daily-2026-11-23", "daily-2026-11-22", "daily-2026-11-21"]
    assert [name for name, _ in rule_of("daily keep=2").due(now, "daily-2026-11-20")] == names[:2]
    assert len(list(rule_of("hourly").due(now, "hourly-2020-01-01T00"))) == MISSED_MAX


@given(
    st.sampled_from(KINDS), st.sampled_from(ZONES), st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)),
    st.integers(0, 7 * 24 * 60),
)  # fmt: skip
def test_periods_follow_each_other_with_names_in_order(
    kind: str, zone: str, now: datetime, delay: int
) -> None:
    rule = (
        rule_of(f"{kind} delay={delay}m" if delay else kind)
        if kind == "hourly"
        else rule_of(f"{kind} zone={zone}")
    )
    now = now.replace(tzinfo=UTC)
    ends = [rule.last_end(now)]
    for _ in range(40):
        ends.append(rule.before(ends[-1]))
    assert ends[0] <= now - rule.delay < ends[0] + timedelta(days=32)
    names = [rule.name(end) for end in ends]
    assert all(rule.has_made(name) for name in names)
    assert all(later > earlier for later, earlier in pairwise(names)), (
        "names are in the order of their periods"
    )
    assert all(later > earlier for later, earlier in pairwise(ends))
    # Wherever the clock stands within a period, the same period has ended last.
    assert rule.last_end(ends[3] + rule.delay) == ends[3]
    assert rule.last_end(ends[2].astimezone(UTC) + rule.delay - timedelta(milliseconds=1)) == ends[3]


@pytest.mark.parametrize(
    ("text", "now", "name", "moment"),
    [
        ("x cron='30 2 * * *'", "2026-11-23T02:30:00", "x-2026-11-23T0230", "2026-11-23T02:29:59.999"),
        ("x cron='30 2 * * *'", "2026-11-23T02:29:59", "x-2026-11-22T0230", "2026-11-22T02:29:59.999"),
        ("x cron='30 2 * * *' delay=5m", "2026-11-23T02:34:59", "x-2026-11-22T0230", "2026-11-22T02:34:59.999"),
        ("x cron='30 2 * * *' delay=5m", "2026-11-23T02:35:00", "x-2026-11-23T0230", "2026-11-23T02:34:59.999"),
        ('x cron="30 2 * * mon-fri"', "2026-11-22T12:00:00", "x-2026-11-20T0230", "2026-11-20T02:29:59.999"),
        ("x cron='0 0 L * *'", "2026-11-22T12:00:00", "x-2026-10-31T0000", "2026-10-30T23:59:59.999"),
        (
            "x cron='30 2 * * *' zone=Europe/Berlin", "2026-11-23T01:30:00",
            "x-2026-11-23T0130", "2026-11-23T01:29:59.999",
        ),
    ],
)  # fmt: skip
def test_the_last_moment_of_cron(text: str, now: str, name: str, moment: str) -> None:
    rule = rule_of(text)
    assert list(rule.due(at(now), "")) == [(name, at(moment))]
    assert rule.has_made(name)
    assert not rule.has_made(name + "0")
    assert not rule_of("y" + text[1:]).has_made(name)


def test_missed_moments_of_cron_are_made_up_for() -> None:
    rule = rule_of("x cron='0 */6 * * *' keep=3")
    due = [name for name, _ in rule.due(at("2026-11-23T13:00:00"), "x-2026-11-20T0000")]
    assert due == ["x-2026-11-23T1200", "x-2026-11-23T0600", "x-2026-11-23T0000"]
    assert list(rule.due(at("2026-11-23T13:00:00"), due[0])) == []
    every = rule_of("x cron='* * * * *'")
    assert len(list(every.due(at("2026-11-23T13:00:00"), "x-2026-11-20T0000"))) == MISSED_MAX


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC", "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 3 * * sun", "15 1-3 * * *", "*/30 * * * *", "0 0 1 * *"])
def test_moments_of_cron_do_not_depend_on_when_the_daemon_looks(cron: str, zone: str) -> None:
    """Across the changes of the clock, too: each name is made once, in order."""
    rule = rule_of(f"x cron='{cron}' zone={zone}")
    for start in ("2026-03-01T00:00:00", "2026-09-20T00:00:00"):
        newest, names = "", []
        now = at(start)
        for _ in range(60 * 24):
            now += timedelta(minutes=60)
            for name, moment in reversed(list(rule.due(now, newest))):
                names.append(name)
                assert moment < now
            newest = names[-1] if names else ""
        assert names == sorted(set(names))
        again = []
        end = rule.last_end(now)
        while rule.name(end) >= names[0]:
            again.append(rule.name(end))
            end = rule.before(end)
        assert again[::-1] == names
