"""Settings: flags over environment over defaults; whatever is wrong is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_daemon.config import (
    Config,
    flag_name,
    is_local,
    parse_listen,
    read_config,
    redacted,
    variable_name,
)
from alpheus_daemon.main import COMMAND, main
from alpheus_journal.errors import InvalidInput


def refused(flags: dict[str, Any], environment: dict[str, str]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read_config(flags, environment)
    assert caught.value.kind == "bad_configuration"
    return caught.value


def test_flag_wins_over_environment_wins_over_default() -> None:
    environment = {"ALPHEUS_CATALOG": "/lake", "ALPHEUS_GROUP_COUNT_MAX": "7", "ALPHEUS_SOLE_WRITER": "true"}
    config = read_config({"group_count_max": None}, environment)
    assert (config.url, config.group_count_max, config.sole_writer) == ("/lake", 7, True)
    assert config.queue_count_max == Config(url="x").queue_count_max
    config = read_config({"url": "/other", "group_count_max": "9"}, environment)
    assert (config.url, config.group_count_max) == ("/other", 9)


def test_empty_variables_and_variables_of_others_count_as_unset() -> None:
    environment = {"ALPHEUS_CATALOG": "/lake", "ALPHEUS_LISTEN": "", "ALPHEUS_PRINCIPAL": "me"}
    assert read_config({}, environment) == Config(url="/lake")


def test_missing_url() -> None:
    error = refused({}, {})
    assert error.message.startswith("URL: ")
    assert "ALPHEUS_CATALOG" in error.hint


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        ({"group_count_max": "many"}, {}, "--group-count-max"),
        ({"group_count_max": "0"}, {}, "--group-count-max"),
        ({}, {"ALPHEUS_GROUP_COUNT_MAX": "-1"}, "ALPHEUS_GROUP_COUNT_MAX"),
        ({}, {"ALPHEUS_SOLE_WRITER": "perhaps"}, "ALPHEUS_SOLE_WRITER"),
        ({"shutdown_grace_seconds": "11"}, {}, "--shutdown-grace-seconds"),
        ({"log_level": "loud"}, {}, "--log-level"),
        ({"poll_interval_min_ms": "5000"}, {}, "--poll-interval-min-ms"),
        ({"sole_writer": True, "poll_interval_max_ms": "900"}, {}, "--poll-interval-max-ms"),
        ({"queue_bytes_max": "2048"}, {}, "--queue-bytes-max"),
        ({"listen": "7480"}, {}, "--listen"),
        ({}, {"ALPHEUS_LISTEN": "127.0.0.1:99999"}, "ALPHEUS_LISTEN"),
        ({"listen": "unix:relative.sock"}, {}, "--listen"),
        ({"listen": "unix:///" + "x" * 120}, {}, "--listen"),
        ({"listen": "::1:7480"}, {}, "--listen"),
        ({"listen": "0.0.0.0:7480"}, {}, "--listen"),
        ({"listen": "lake.example:7480"}, {}, "--listen"),
    ],
)
def test_whatever_is_wrong_is_named(flags: dict[str, Any], environment: dict[str, str], named: str) -> None:
    assert refused({"url": "/lake", **flags}, environment).message.startswith(f"{named}: ")


def test_plaintext_beyond_loopback_needs_a_word() -> None:
    error = refused({"url": "/lake", "listen": "0.0.0.0:7480"}, {})
    assert "--allow-plaintext" in error.hint
    assert read_config(
        {"url": "/lake", "listen": "0.0.0.0:7480", "allow_plaintext": True}, {}
    ).allow_plaintext


@pytest.mark.parametrize(
    ("listen", "parsed", "local"),
    [
        ("127.0.0.1:7480", ("127.0.0.1", 7480), True),
        ("127.8.8.8:0", ("127.8.8.8", 0), True),
        ("localhost:1", ("localhost", 1), True),
        ("[::1]:7480", ("[::1]", 7480), True),
        ("[::]:7480", ("[::]", 7480), False),
        ("10.0.0.1:7480", ("10.0.0.1", 7480), False),
        ("unix:///run/a.sock", ("/run/a.sock", -1), True),
    ],
)
def test_listen(listen: str, parsed: tuple[str, int], local: bool) -> None:
    assert parse_listen(listen) == parsed
    assert is_local(listen) is local


@given(st.text(max_size=30))
def test_any_listen_is_understood_or_refused(listen: str) -> None:
    try:
        host, port = parse_listen(listen)
    except InvalidInput:
        return  # any other exception fails the test
    else:
        assert host
        assert -1 <= port <= 65535


def test_no_secret_is_printed() -> None:
    url = "s3://key:canary@bucket/lake?endpoint_url=http://x&secret=canary"
    assert redacted(url) == "s3://…@bucket/lake?endpoint_url=…&secret=…"
    printed = msgspec.json.encode(read_config({"url": url}, {}).public())
    assert b"canary" not in printed
    assert redacted("file:///lake") == "file:///lake"
    assert redacted("/lake") == "/lake"


def test_every_setting_has_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for field in msgspec.structs.fields(Config):
        assert flag_name(field.name) in shown
        if field.name != "url":
            assert variable_name(field.name) in shown
    assert len(COMMAND.params) == len(msgspec.structs.fields(Config))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["/lake", "--no-such-option"],
        ["/lake", "more"],
        ["/lake", "--group-count-max"],
        ["/lake", "--listen", "nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALPHEUS_CATALOG", raising=False)
    assert main(argv) == 2
    assert capsys.readouterr().err.strip()
