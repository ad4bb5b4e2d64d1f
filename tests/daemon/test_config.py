"""Settings: flags come before the environment, the file and the defaults; every wrong setting is named."""

from __future__ import annotations

import contextlib
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_daemon.config import (
    CONFIG_FILE_BYTES_MAX,
    RELOADABLE,
    Config,
    Settings,
    flag_name,
    is_local,
    parse_listen,
    read_config,
    read_settings,
    reload_settings,
    variable_name,
)
from alpheus_daemon.main import COMMAND, main
from alpheus_journal.errors import InvalidInput
from alpheus_journal.urls import redact_url


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
        ({"log_format": "xml"}, {}, "--log-format"),
        ({"url": "grpc://127.0.0.1:1"}, {}, "URL"),
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


@pytest.mark.parametrize(
    ("listen", "metrics_listen", "is_refused"),
    [
        ("127.0.0.1:7480", "127.0.0.1:7480", True),
        ("127.0.0.1:7480", "localhost:7480", True),
        ("0.0.0.0:7480", "127.0.0.1:7480", True),
        ("10.0.0.1:7480", "[::]:7480", True),
        ("127.0.0.1:7480", "127.0.0.1:9464", False),
        ("127.0.0.1:7480", "127.0.0.2:7480", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("unix:///run/a.sock", "127.0.0.1:7480", False),
    ],
)
def test_two_listeners_need_two_addresses(listen: str, metrics_listen: str, is_refused: bool) -> None:
    flags = {"url": "/lake", "listen": listen, "metrics_listen": metrics_listen, "allow_plaintext": True}
    if not is_refused:
        assert read_config(flags, {}).metrics_listen == metrics_listen
        return
    error = refused(flags, {})
    assert error.message.startswith("--metrics-listen: ")
    assert listen in error.message


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
    assert redact_url(url) == "s3://…@bucket/lake?endpoint_url=…&secret=…"
    printed = msgspec.json.encode(read_config({"url": url}, {}).public())
    assert b"canary" not in printed
    assert redact_url("file:///lake") == "file:///lake"
    assert redact_url("/lake") == "/lake"


def test_every_setting_has_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for field in msgspec.structs.fields(Config):
        assert flag_name(field.name) in shown
        if field.name != "url":
            assert variable_name(field.name) in shown
    assert len(COMMAND.params) == len(msgspec.structs.fields(Config)) + len(("--config", "--print-config"))


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


# --- the file --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alpheus.toml"


def test_flag_wins_over_environment_wins_over_file_wins_over_default(file: Path) -> None:
    file.write_text("catalog = '/lake'\n\ngroup_count_max = 5\nqueue_count_max = 6\nsubscribers_max = 7\n")
    environment = {
        "ALPHEUS_CONFIG": str(file),
        "ALPHEUS_QUEUE_COUNT_MAX": "60",
        "ALPHEUS_SUBSCRIBERS_MAX": "70",
    }
    settings = read_settings({"subscribers_max": "700"}, environment)
    config = settings.config
    assert (config.url, config.group_count_max, config.queue_count_max, config.subscribers_max) == (
        "/lake",
        5,
        60,
        700,
    )
    assert settings.origins == {
        "url": f"{file}, line 1: catalog",
        "group_count_max": f"{file}, line 3: group_count_max",
        "queue_count_max": "ALPHEUS_QUEUE_COUNT_MAX",
        "subscribers_max": "--subscribers-max",
    }
    other = file.with_name("other.toml")
    other.write_text("group_count_max = 9\n")
    flags = {"config": str(other), "url": "/lake"}
    assert read_config(flags, environment).group_count_max == 9, "the flag --config wins, too"


@pytest.mark.parametrize(
    ("text", "named", "way_out"),
    [
        ("group_count = 5", "line 1: group_count:", "group_count_max"),
        ("\n\ngroup-count-max = 5", "line 3: group-count-max:", "group_count_max"),
        ("url = '/lake'", "line 1: url:", "catalog"),
        ("wholly_unknown_thing = 5", "line 1: wholly_unknown_thing:", "--help-all"),
        ("log_level = 'info'\n[daemon]\nlisten = 'x'", "line 2: daemon:", "tables"),
        ("log_level = 'info'\n[[log_level]]", "at line 2", "for example"),
        ("log_level = 'info'\nlog_level = 'info'\n", "at line 2", "for example"),
        ("group_count_max = '5'", "line 1: group_count_max:", ""),
        ("group_count_max = 5.5", "line 1: group_count_max:", ""),
        ("create = 1", "line 1: create:", ""),
        ("# note\ngroup_count_max = 0", "line 2: group_count_max:", ""),
        ("poll_interval_min_ms = 5000", "line 1: poll_interval_min_ms:", ""),
        ("sole_writer = true\npoll_interval_max_ms = 900", "line 2: poll_interval_max_ms:", "leave one"),
        ("metrics_listen = '0.0.0.0:9464'", "line 1: metrics_listen:", "--allow-plaintext"),
        ("metrics_listen = 'unix:///run/a.sock'", "line 1: metrics_listen:", "9464"),
        ("listen = '[::1]:9464'\nmetrics_listen = '[::1]:9464'", "line 2: metrics_listen:", "two ports"),
        ("trace_endpoint = 'collector:4317'", "line 1: trace_endpoint:", "http://"),
        ("trace_endpoint = 'http://['", "line 1: trace_endpoint:", "http://"),
        ("requests_bytes_max = 70000", "line 1: requests_bytes_max:", ""),
        ("group_count_max = ", "not TOML", "for example"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_key(text: str, named: str, way_out: str, file: Path) -> None:
    file.write_text(text)
    error = refused({"config": str(file), "url": "/lake"}, {})
    assert error.message.startswith(str(file))
    assert named in error.message
    assert way_out in error.hint


def test_a_file_that_cannot_be_read(file: Path) -> None:
    assert "cannot be read" in refused({"config": str(file)}, {}).message
    file.write_bytes(b"\xff")
    assert "UTF-8" in refused({"config": str(file)}, {}).message
    file.write_bytes(b"#" * (CONFIG_FILE_BYTES_MAX + 1))
    assert "bytes" in refused({"config": str(file)}, {}).message


@given(st.binary(max_size=60))
def test_any_file_is_understood_or_refused(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as opened:
        opened.write(data)
        opened.flush()
        with contextlib.suppress(InvalidInput):  # any other exception fails the test
            assert read_config({"config": opened.name, "url": "/lake"}, {}).url == "/lake"


def test_print_config_is_a_file_with_the_same_meaning(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ALPHEUS_")]:
        monkeypatch.delenv(name)
    file.write_text('catalog = "/läke\\u007f"\nsole_writer = true\nkeepalive_seconds = 5\n')
    assert main(["--config", str(file), "--group-count-max", "17", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert f"sole_writer = true  # {file}, line 2: sole_writer\n" in printed
    assert "group_count_max = 17  # --group-count-max\n" in printed
    assert "queue_count_max = 16384  # default\n" in printed
    assert len(printed.splitlines()) == len(msgspec.structs.fields(Config))
    assert tomllib.loads(printed)["catalog"] == "/läke\x7f"
    # If they are given, poll intervals contradict a sole writer.
    other = file.with_name("other.toml")
    other.write_text("".join(line + "\n" for line in printed.splitlines() if "poll_interval" not in line))
    expected = read_config({"config": str(file), "group_count_max": "17"}, {})
    assert read_config({"config": str(other)}, {}) == expected


def test_print_config_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    url = "s3://key:canary@bucket/lake?secret=canary"
    assert main([url, "--trace-endpoint", "http://me:canary@host:4317", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "canary" not in printed
    assert "s3://…@bucket/lake?secret=…" in printed


def test_a_reload_takes_what_can_change_and_names_the_rest() -> None:
    running = Config(url="/lake")
    wanted = Config(url="/lake", group_count_max=5, log_level="debug", listen="127.0.0.1:1")
    config, changed, left = reload_settings(running, Settings(wanted, {}))
    assert config == msgspec.structs.replace(running, group_count_max=5, log_level="debug")
    assert (sorted(changed), left) == (["group_count_max", "log_level"], ["listen"])
    # The reloadable setting would contradict one that cannot change, so nothing changes.
    smaller = Config(url="/lake", request_bytes_max=65536, queue_bytes_max=65536)
    with pytest.raises(InvalidInput, match="queue"):
        reload_settings(running, Settings(smaller, {}))


def test_only_settings_are_reloadable() -> None:
    assert set(Config.__struct_fields__) >= RELOADABLE
