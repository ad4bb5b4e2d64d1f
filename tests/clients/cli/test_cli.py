"""The `alpheus` command: its output, its exit statuses, and the transactions of `apply`.

Most tests run in this process through click's runner. Real processes run where exit, signals, pipes or exec matter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_answers import answer, failed, ok
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli
from alpheus.cli.text import document, output
from alpheus.errors import Conflict, OutcomeUnknown, Unavailable
from alpheus_journal.clock import RandomIdentities

COMMAND = [sys.executable, "-m", "alpheus"]

Run = Callable[..., Result]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Create a catalog with a namespace and a table, and return its URL."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales", {"owner": "ann"})
        catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    return url


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name != "ALPHEUS_SLOW":
            monkeypatch.delenv(name)


def invoke(
    *words: str, url: str | None = None, input: str | bytes | None = None, **environment: str
) -> Result:
    options = ["--catalog", url] if url is not None else []
    return CliRunner().invoke(cli.cli, [*options, *words], input=input, env=environment)


@pytest.fixture
def run(lake: str) -> Run:
    """Return a function that runs a command on the catalog `lake`."""
    return lambda *words, **rest: invoke(*words, url=lake, **rest)


def answers(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def transaction_id() -> str:
    return RandomIdentities().uuid7()


def text_of(operations: list[Any], **keys: Any) -> str:
    return json.dumps({**keys, "operations": operations})


# --- catalogs --------------------------------------------------------------------------------------


def test_create_and_info_tell_of_the_same_catalog(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/new"
    made = answer(
        invoke(
            "--output",
            "json",
            "create",
            url,
            "--order",
            "16",
            "--version-digits",
            "64",
            "--property",
            "a=b=c",
        )
    )
    assert (made["version"], made["order"], made["version_digits"]) == (0, 16, 64)
    assert made["properties"] == {"a": "b=c"}
    assert answer(invoke("info", "--output=json", url=url)) == made
    text = ok(invoke("info", ALPHEUS_CATALOG=url))
    assert f"catalog         {made['catalog_id']}\n" in text
    assert text.endswith("properties\n  a = b=c\n")


def test_a_catalog_goes_over_to_the_newest_revision_of_the_format(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    made = answer(invoke("create", url, "--format-revision", "1", "--output", "json"))
    assert (made["version"], made["format_revision"]) == (0, 1)
    plan = answer(invoke("upgrade", "--dry-run", "--output", "json", url=url))
    assert plan == {"before": 1, "revision": 2, "commit": None, "tag": "before-revision-2"}
    assert "pass --yes" in failed(invoke("upgrade", url=url), 2)
    assert answer(invoke("info", "--output", "json", url=url))["version"] == 0
    assert "version 1: revision 1 of the format becomes 2" in ok(invoke("upgrade", "--yes", url=url))
    assert "format          revision 2\n" in ok(invoke("info", url=url))
    for words in (["--yes"], ["--dry-run"]):
        again = invoke("upgrade", *words, url=url)
        assert (again.exit_code, again.stdout) == (
            99,
            "nothing to do: the catalog is in revision 2 of the format\n",
        )
    assert "0 is not in the range" in failed(invoke("create", url, "--format-revision", "0"), 2)


def test_create_refuses_a_place_that_has_a_catalog(lake: str) -> None:
    assert failed(invoke("create", lake)).startswith("error: a catalog already exists at ")


def test_create_takes_the_catalog_option_for_its_url(tmp_path: Path) -> None:
    assert "version" in ok(invoke("create", url=str(tmp_path / "bare path")))
    assert answer(invoke("info", "--output", "json", url=str(tmp_path / "bare path")))["version"] == 0


def test_a_command_without_a_catalog_is_wrong_usage() -> None:
    assert "--catalog URL or set ALPHEUS_CATALOG" in failed(invoke("info"), 2)


def test_an_option_after_the_command_wins(lake: str) -> None:
    result = invoke("--output", "json", "info", "--output", "table", "--catalog", lake, url="file:///nowhere")
    assert ok(result).startswith("catalog ")


def test_settings_come_from_the_environment_too(lake: str) -> None:
    assert (
        answer(invoke("info", ALPHEUS_CATALOG=lake, ALPHEUS_OUTPUT="json", ALPHEUS_TIMEOUT="5"))["version"]
        == 2
    )
    assert "ALPHEUS_OUTPUT" in failed(invoke("info", ALPHEUS_CATALOG=lake, ALPHEUS_OUTPUT="yaml"), 2)


# --- namespaces and tables -------------------------------------------------------------------------


def test_namespaces_from_creation_to_drop(run: Run) -> None:
    assert (
        ok(run("namespace", "create", "emea", "--property", "k=v")) == "created namespace emea in version 3\n"
    )
    assert ok(run("namespace", "list")) == "emea\nsales\n"
    assert ok(run("namespace", "list", "--prefix", "s")) == "sales\n"
    assert ok(run("namespace", "set", "emea", "a=1", "b=", "--unset", "k", "-m", "tidy")).startswith(
        "updated"
    )
    shown = answer(run("namespace", "show", "emea", "--output", "json"))
    assert shown["properties"] == {"a": "1", "b": ""}
    assert ok(run("namespace", "show", "emea", "--at", "3")).endswith("properties\n  k = v\n")
    assert answer(run("namespace", "drop", "emea", "--output", "json"))["version"] == 5
    assert [each["name"] for each in answer(run("--output", "json", "namespace", "list"))] == ["sales"]
    assert "tidy" in ok(run("log", "--count", "2"))


def test_an_existing_namespace_is_an_error_unless_it_is_fine(run: Run) -> None:
    assert "there is a namespace sales already" in failed(run("namespace", "create", "sales"))
    assert ok(run("namespace", "create", "sales", "--exist-ok")) == "unchanged at version 2\n"
    with_message = run("namespace", "create", "sales", "--exist-ok", "-m", "why", "--output", "json")
    assert answer(with_message) == {"version": 2, "transaction_id": ""}


def test_a_namespace_with_tables_is_not_dropped(run: Run) -> None:
    found = json.loads(failed(run("--output", "json", "namespace", "drop", "sales")))
    assert (found["error"], found["kind"]) == ("NotEmpty", "namespace_not_empty")


def test_tables_from_creation_to_drop(run: Run) -> None:
    columns = [
        "id:int64:required",
        "price:decimal(10, 2)",
        "`odd, name`:struct<a:int16:required,b:list<date>>",
    ]
    words = [word for column in columns for word in ("--column", column)]
    assert ok(run("table", "create", "sales.lines", *words, "--property", "a=b")) == (
        "created table sales.lines in version 3\n"
    )
    shown = answer(run("--output", "json", "table", "show", "sales.lines"))
    assert shown["columns"] == [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "price", "type": "decimal(10,2)", "nullable": True},
        {"name": "odd, name", "type": "struct<a:int16:required,b:list<date>>", "nullable": True},
    ]
    text = ok(run("table", "show", "sales.lines"))
    assert "properties\n  a = b\n" in text
    assert "COLUMN     TYPE\n" in text
    assert "id         int64                                  required\n" in text
    assert ok(run("table", "list")) == "sales.lines\nsales.orders\n"
    assert ok(run("table", "list", "sales", "--prefix", "o")) == "sales.orders\n"
    assert ok(run("table", "list", "--at", "2")) == "sales.orders\n"
    assert ok(run("table", "set", "sales.lines", "x=y", "--unset", "a")).startswith(
        "updated table sales.lines"
    )
    assert answer(run("--output", "json", "table", "show", "sales.lines"))["properties"] == {"x": "y"}
    assert ok(run("table", "drop", "sales.lines", "--purge")) == "dropped table sales.lines in version 5\n"
    assert answer(run("--output", "json", "table", "show", "sales.lines", "--at", "4"))["name"] == "lines"
    assert failed(run("table", "show", "sales.lines")).startswith("error: there is no table sales.lines")


def test_what_table_show_prints_creates_the_table_again(run: Run) -> None:
    shown = answer(run("--output", "json", "table", "show", "sales.orders"))
    again = text_of([{"create_table": {"name": "sales.again", "columns": shown["columns"]}}])
    ok(run("apply", "-", input=again))
    assert answer(run("--output", "json", "table", "show", "sales.again"))["columns"] == shown["columns"]


def test_long_lists_line_up_and_count(run: Run) -> None:
    ok(
        run(
            "apply",
            "-",
            input=text_of([{"append": {"name": "sales.orders", "rows": [{"id": 1}, {"id": 2}]}}]),
        )
    )
    header, line = ok(run("table", "list", "--long")).splitlines()
    assert header.split() == ["NAME", "FORMAT", "ROWS", "FILES", "SIZE"]
    assert line.split()[:4] == ["sales.orders", "native", "2", "1"]
    assert header.index("ROWS") + len("ROWS") == line.index("2") + 1


def test_a_table_like_a_parquet_file(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": pa.array(["x"])}), tmp_path / "x.parquet")
    ok(run("table", "create", "sales.like", "--like", str(tmp_path / "x.parquet")))
    shown = answer(run("--output", "json", "table", "show", "sales.like"))
    assert [(each["name"], each["type"]) for each in shown["columns"]] == [("a", "int32"), ("b", "string")]
    assert shown["row_count"] == 0
    (tmp_path / "y.parquet").write_text("no")
    assert "y.parquet is not a Parquet file" in failed(
        run("table", "create", "sales.y", "--like", f"{tmp_path}/y.parquet")
    )


def test_empty_lists_print_nothing_but_a_word_to_people(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/empty"
    ok(invoke("create", url))
    for words, none in ((["namespace", "list"], "no namespaces"), (["table", "list", "-l"], "no tables")):
        result = invoke(*words, url=url)
        assert ok(result) == ""
        assert result.stderr == f"{none}\n"
        assert answer(invoke("--output", "json", *words, url=url)) == []


def test_names_and_texts_of_all_scripts(run: Run) -> None:
    ok(run("namespace", "create", "商品", "--property", "größe=ж"))
    ok(run("table", "create", "商品.Größe", "--column", "π:double", "-m", "日本\x1b[31m"))
    assert ok(run("table", "list", "商品")) == "商品.Größe\n"
    assert "NAME          FORMAT  ROWS" in ok(run("table", "list", "-l"))
    assert answer(run("--output", "json", "table", "show", "商品.Größe"))["columns"][0]["name"] == "π"
    # A character that a terminal would act upon is shown as an escape. JSON keeps the character.
    assert "日本\\x1b[31m" in ok(run("log", "--count", "1"))
    assert (
        answers(run("--output", "json", "log", "--count", "1"))[0]["transaction"]["message"] == "日本\x1b[31m"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: alpheus"),
        (["nonsense"], "No such command 'nonsense'"),
        (["table"], "Usage: alpheus table"),
        (["table", "show"], "Missing argument 'NAME'"),
        (["table", "create", "sales.x"], "Give either --column (repeated) or --like"),
        (["table", "create", "sales.x", "--column", "a:int65"], "there is no type 'int65' at position 3"),
        (["table", "create", "sales.x", "--like", "/nowhere.parquet"], "does not exist"),
        (["table", "set", "sales.orders"], "Nothing to change"),
        (["table", "set", "sales.orders", "novalue"], "'novalue' is not KEY=VALUE"),
        (["table", "set", "sales.orders", "a=1", "a=2"], "'a' is given twice"),
        (["table", "set", "sales.orders", "a=1", "--unset", "a"], "'a' is both set and unset"),
        (["events", "--count", "0"], "--count"),
        (["events", "--kind", "cats"], "--kind"),
        (["log", "--after", "x"], "--after"),
        (["--output", "xml", "info"], "--output"),
        (["--timeout", "0", "info"], "--timeout"),
        (["apply", "/nowhere.json"], "No such file"),
        (["completion", "csh"], "csh"),
        (["pipeline", "run", "module"], "MODULE:OBJECT"),
    ],
)
def test_wrong_usage(run: Run, words: list[str], said: str) -> None:
    assert said in failed(run(*words), 2)


@pytest.mark.parametrize("words", [["nonsense", "--output=json"], ["--output", "json", "table", "show"]])
def test_wrong_usage_is_json_when_json_is_asked_for(run: Run, words: list[str]) -> None:
    found = json.loads(failed(run(*words), 2))
    assert found["error"] == "UsageError"
    assert set(found) == {"error", "kind", "message", "hint"}


@pytest.mark.parametrize(
    ("words", "error", "kind"),
    [
        (["table", "show", "orders"], "InvalidInput", "bad_name"),
        (["table", "show", "sales.nothing"], "NotFound", "no_table"),
        (["table", "list", "nothing"], "NotFound", "no_namespace"),
        (["table", "show", "sales.orders", "--at", "99"], "NotFound", "no_version"),
        (["table", "show", "sales.orders", "--at", "yesterday"], "NotFound", "no_tag"),
        (["table", "set", "sales.nothing", "a=b"], "NotFound", "no_table"),
        (["events", "--after", "a.b"], "InvalidInput", "bad_token"),
        (["outcome", "nonsense"], "InvalidInput", "bad_argument"),
        (["pipeline", "show", "nothing"], "NotFound", "no_object"),
    ],
)
def test_failures_as_json_and_as_text(run: Run, words: list[str], error: str, kind: str) -> None:
    found = json.loads(failed(run("--output", "json", *words)))
    assert (found["error"], found["kind"]) == (error, kind)
    text = failed(run(*words))
    assert text.startswith(f"error: {found['message']}\n")
    assert ("\nhint: " in text) == bool(found["hint"])


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(cli.cli)), ids=" ".join)
def test_help_of_every_command_is_a_sentence_and_describes_every_option(path: tuple[str, ...]) -> None:
    text = ok(invoke(*path, "--help"))
    command: click.Command = cli.cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert command.help
    assert command.help.strip().partition("\n\n")[0].endswith((".", "listed below:"))
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, option.name
    assert text.startswith(f"Usage: alpheus{''.join(f' {name}' for name in path)} ")
    if not isinstance(command, click.Group) and path != ("serve",):  # the daemon has options of its own
        taken = {option for each in command.params for option in each.opts}
        assert {"--catalog", "--output", "--timeout"} <= taken


def test_version() -> None:
    assert ok(invoke("--version")).startswith("alpheus ")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_and_what_they_complete(shell: str) -> None:
    assert "_ALPHEUS_COMPLETE" in ok(invoke("completion", shell))
    result = invoke(_ALPHEUS_COMPLETE="bash_complete", COMP_WORDS="alpheus table cr", COMP_CWORD="2")
    assert ok(result) == "plain,create\n"


# --- errors and exit statuses ----------------------------------------------------------------------


@pytest.mark.parametrize("retryable", [True, False])
def test_a_conflict_says_who_did_what_when_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, retryable: bool
) -> None:
    def connect(*args: object, **rest: object) -> None:
        raise Conflict(
            "not shown", mine="append to table a.t", theirs="drop table a.t", principal="ann@host",
            transaction_id="the-id", version=7, committed_at_millis=1_800_000_000_000, retryable=retryable,
            hint="do this",
        )  # fmt: skip

    monkeypatch.setattr(alpheus, "connect", connect)
    status = 3 if retryable else 1
    assert failed(invoke("info", url="memory://x"), status).splitlines() == [
        "error: conflict with another transaction, nothing was applied",
        "  yours        append to table a.t",
        "  theirs       drop table a.t",
        "  by           ann@host",
        "  transaction  the-id",
        "  when         version 7, 2027-01-15T08:00:00Z",
        f"  try again    {'yes' if retryable else 'no'}",
        "hint: do this",
    ]
    found = json.loads(failed(invoke("--output", "json", "info", url="memory://x"), status))
    assert (found["principal"], found["version"], found["transaction_id"]) == ("ann@host", 7, "the-id")


@pytest.mark.parametrize(
    ("error", "status", "keys"),
    [
        (Conflict("c", theirs="them"), 3, {"retryable": True, "theirs": "them"}),
        (Conflict("c", retryable=False), 1, {"retryable": False}),
        (OutcomeUnknown("u", transaction_id="the-id"), 4, {"transaction_id": "the-id", "kind": "reply_lost"}),
        (Unavailable("x", hint="wait"), 1, {"hint": "wait", "error": "Unavailable"}),
        (OSError(28, "No space left on device"), 1, {"message": "[Errno 28] No space left on device"}),
        (KeyError("k"), 1, {"kind": "unexpected", "message": "unexpected KeyError: 'k'"}),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_exit_status_of_what_a_command_raises(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, keys: dict[str, Any] | None
) -> None:
    def connect(*args: object, **rest: object) -> None:
        raise error

    monkeypatch.setattr(alpheus, "connect", connect)
    said = failed(invoke("--output", "json", "info", url="memory://x"), status)
    assert "Traceback" not in said
    if keys is not None:
        assert keys.items() <= json.loads(said).items()
        assert {"error", "kind", "message", "hint"} <= json.loads(said).keys()
        assert failed(invoke("info", url="memory://x"), status).startswith("error: ")


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*args: object, **rest: object) -> None:
        raise KeyError("k")

    monkeypatch.setattr(alpheus, "connect", connect)
    assert "Traceback" in failed(invoke("info", url="memory://x", ALPHEUS_DEBUG="1"))


def test_an_unknown_outcome_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.report(OutcomeUnknown("u", transaction_id="the-id"), json=False) == output.UNKNOWN
    assert "hint: run alpheus outcome the-id --settle" in capsys.readouterr().err


def test_a_daemon_that_is_not_there_is_unavailable() -> None:
    found = json.loads(
        failed(invoke("--timeout", "0.1", "--output", "json", "info", url="grpc://127.0.0.1:1"))
    )
    assert (found["error"], found["kind"]) == ("Unavailable", "daemon_unavailable")


# --- the log ---------------------------------------------------------------------------------------


def test_events_one_line_each_and_where_they_begin_and_end(run: Run) -> None:
    found = answers(run("--output", "json", "events"))
    assert [each["version"] for each in found] == [0, 1, 2]
    assert found[2]["changes"][0]["name"] == "sales.orders"
    assert (
        answers(run("--output", "json", "events", "--after", found[0]["token"], "--until", "1")) == found[1:2]
    )
    assert answers(run("--output", "json", "events", "--after", "1")) == found[2:]
    assert answers(run("--output", "json", "events", "--count", "1")) == found[:1]
    lines = ok(run("events")).splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert lines[2].endswith("Z  table sales.orders created")
    assert ok(run("events", "--after", "2")) == ""


@pytest.mark.parametrize(
    ("words", "versions"),
    [
        (["--kind", "namespace"], [1]),
        (["--kind", "namespace", "--kind", "catalog"], [0, 1]),
        (["--namespace", "sales"], [1, 2]),
        (["--name", "sales.orders"], [2]),
        (["--name", "other"], []),
    ],
)
def test_events_are_chosen(run: Run, words: list[str], versions: list[int]) -> None:
    assert [each["version"] for each in answers(run("--output", "json", "events", *words))] == versions


def test_details_of_events(run: Run) -> None:
    [event] = answers(run("--output", "json", "events", "--details", "--name", "sales"))
    assert event["changes"][0]["after"]["properties"] == {"owner": "ann"}


def test_following_ends_with_the_count(run: Run) -> None:
    assert len(answers(run("--output", "json", "events", "--follow", "--count", "3"))) == 3


def test_log_newest_first_of_all_or_one_object(run: Run) -> None:
    assert [each["version"] for each in answers(run("--output", "json", "log"))] == [2, 1, 0]
    assert [each["version"] for each in answers(run("--output", "json", "log", "sales.orders"))] == [2]
    assert [
        each["version"] for each in answers(run("--output", "json", "log", "--until", "1", "--after", "0"))
    ] == [1]
    [line] = ok(run("log", "sales")).splitlines()
    assert line.startswith("1  ")
    assert line.endswith(")  NAMESPACE_CREATE sales")


def test_a_long_transaction_is_cut_on_a_line_for_people(run: Run) -> None:
    ok(run("apply", "-", input=text_of([{"create_namespace": {"name": f"n{i}"}} for i in range(8)])))
    assert ok(run("log", "--count", "1")).rstrip().endswith("NAMESPACE_CREATE n4, 3 more")
    assert ok(run("events", "--after", "2")).rstrip().endswith("namespace n4 created, 3 more")


def test_outcomes(run: Run) -> None:
    committed = answers(run("--output", "json", "log", "sales.orders"))[0]["transaction"]["id"]
    assert ok(run("outcome", committed)).startswith("committed in version 2 at ")
    found = answer(run("--output", "json", "outcome", committed, "--since", "1"))
    assert (found["state"], found["commit"]["version"]) == ("committed", 2)
    unknown = transaction_id()
    result = run("outcome", unknown, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (4, {"state": "unknown", "commit": None})
    assert answer(run("outcome", unknown, "--settle", "--output", "json"))["state"] == "cancelled"
    assert ok(run("outcome", unknown)) == "cancelled\n"


def test_check_finds_what_is_broken(run: Run, lake: str) -> None:
    ok(run("apply", "-", input=text_of([{"append": {"name": "sales.orders", "rows": [{"id": 1}]}}])))
    assert ok(run("check")).startswith("ok: read 4 versions, ")
    assert answer(run("--output", "json", "check"))["ok"] is True
    [file] = Path(lake.removeprefix("file://")).rglob("*.parquet")
    file.chmod(0o600)
    file.write_bytes(b"")
    result = run("check")
    assert result.exit_code == 1
    finding, summary = result.stdout.splitlines()
    assert finding.startswith("corrupt_manifest: data file ")
    assert summary.startswith("1 finding: read 4 versions")
    result = run("--output", "json", "check", "--after", "2")
    assert result.exit_code == 1
    assert [each["kind"] for each in json.loads(result.stdout)["findings"]] == ["corrupt_manifest"]


# --- apply -----------------------------------------------------------------------------------------


def test_apply_all_operations_in_one_commit(run: Run, tmp_path: Path) -> None:
    operations = [
        {"create_namespace": {"name": "emea", "properties": {"a": "b"}}},
        {"update_namespace": {"name": "emea", "set": {"c": "d"}, "unset": ["a"]}},
        {"create_table": {"name": "emea.t", "columns": [{"name": "id", "type": "int64", "nullable": False}]}},
        {"create_namespace": {"name": "emea", "exist_ok": True}},
        {"update_table": {"name": "emea.t", "set": {"x": "y"}}},
        {"append": {"name": "emea.t", "rows": [{"id": 1}]}},
        {"overwrite": {"name": "emea.t", "rows": [{"id": 2}, {"id": 3}]}},
        {"update_catalog": {"set": {"k": "v"}}},
        {"drop_table": {"name": "sales.orders", "purge": True}},
        {"drop_namespace": {"name": "sales"}},
    ]
    path = tmp_path / "document.json"
    path.write_text(text_of(operations, message="all", properties={"job": "1"}))
    found = answer(run("--output", "json", "apply", str(path)))
    assert (found["version"], found["duplicate"]) == (3, False)
    [entry] = answers(run("--output", "json", "log", "--count", "1"))
    assert entry["transaction"]["properties"] == {"job": "1"}
    assert entry["transaction"]["message"] == "all"
    assert ok(run("namespace", "list")) == "emea\n"
    shown = answer(run("--output", "json", "table", "show", "emea.t"))
    assert (shown["row_count"], shown["properties"]) == (2, {"x": "y"})
    assert answer(run("--output", "json", "info"))["properties"] == {"k": "v"}


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (
            {"drop_table": {"name": "sales.nothing"}},
            "operations[1].drop_table: there is no table sales.nothing",
        ),
        (
            {"append": {"name": "sales.orders", "rows": [{"id": 1}, {"x": 1}]}},
            "operations[1].append.rows[1]: there",
        ),
        (
            {"append": {"name": "sales.orders", "rows": [{"id": None}]}},
            "operations[1].append.rows[0].id: a value",
        ),
        (
            {"append": {"name": "sales.orders", "rows": [{"id": 1.5}]}},
            "operations[1].append.rows[0].id: a whole",
        ),
    ],
)
def test_nothing_is_applied_when_one_operation_fails(run: Run, operation: dict[str, Any], said: str) -> None:
    text = text_of([{"create_namespace": {"name": "emea"}}, operation])
    assert said in failed(run("apply", "-", input=text))
    assert ok(run("namespace", "list")) == "sales\n"
    assert answer(run("--output", "json", "info"))["version"] == 2


def test_a_wrong_document_is_refused_before_the_catalog_is_touched() -> None:
    assert "operations[0]: there is no operation 'fry'" in failed(
        invoke("apply", "-", url="file:///nowhere", input=text_of([{"fry": {}}]))
    )


def test_nothing_to_do_has_a_status_of_its_own(run: Run) -> None:
    assert failed(run("apply", "-", input=text_of([])), 99) == "nothing to do\n"
    there = [{"create_namespace": {"name": "sales", "exist_ok": True}}]
    assert failed(run("--output", "json", "apply", "-", input=text_of(there)), 99) == ""


def test_a_document_says_its_isolation_and_keys(run: Run) -> None:
    text = text_of(
        [{"append": {"name": "sales.orders", "rows": [{"id": 1}]}}],
        isolation="serializable",
        key="load/1",
        writer=["loader", 7],
    )
    first = answer(run("--output", "json", "apply", "-", input=text))
    again = answer(run("--output", "json", "apply", "-", input=text))
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    [entry] = answers(run("--output", "json", "log", "--count", "1"))
    recorded = entry["transaction"]
    assert (recorded["isolation"], recorded["key"], recorded["writer"]) == (
        "serializable",
        "load/1",
        ["loader", 7],
    )


# --- exactly once ----------------------------------------------------------------------------------

ONE_ROW = [{"append": {"name": "sales.orders", "rows": [{"id": 1}]}}]


def test_a_document_with_an_id_is_applied_once(run: Run) -> None:
    text = text_of([{"create_namespace": {"name": "emea"}}, *ONE_ROW], id=transaction_id())
    first = answer(run("--output", "json", "apply", "-", input=text))
    ok(run("namespace", "drop", "emea"))
    again = answer(run("--output", "json", "apply", "-", input=text))
    assert again == {**first, "duplicate": True}
    assert "committed before in version 3" in ok(run("apply", "-", input=text))
    assert answer(run("--output", "json", "table", "show", "sales.orders"))["row_count"] == 1


def test_an_id_belongs_to_one_document(run: Run) -> None:
    number = transaction_id()
    ok(run("apply", "-", input=text_of(ONE_ROW, id=number)))
    other = text_of(ONE_ROW, id=number, message="another")
    assert json.loads(failed(run("--output", "json", "apply", "-", input=other)))["kind"] == "id_reused"


def test_a_cancelled_id_never_commits(run: Run) -> None:
    number = transaction_id()
    ok(run("outcome", number, "--settle"))
    failure = failed(run("--output", "json", "apply", "-", input=text_of(ONE_ROW, id=number)))
    assert json.loads(failure)["kind"] == "id_cancelled"


@pytest.mark.parametrize("operations", [ONE_ROW, [{"create_namespace": {"name": "emea"}}]])
def test_the_same_document_from_two_processes_at_once_is_applied_once(
    lake: str, monkeypatch: pytest.MonkeyPatch, operations: list[Any]
) -> None:
    """A document is applied once, although another process applies it right after this process looked for its id."""
    text = text_of(operations, id=transaction_id())
    asked = document.parse_document(text.encode(), "here")
    genuine = document._find_applied
    others: list[alpheus.Commit | None] = []

    def looked_too_early(catalog: alpheus.Catalog, doc: document.Document) -> alpheus.Commit | None:
        monkeypatch.setattr(document, "_find_applied", genuine)
        with alpheus.connect(lake) as other:
            others.append(document.apply(other, doc))
        return None

    monkeypatch.setattr(document, "_find_applied", looked_too_early)
    with alpheus.connect(lake) as catalog:
        commit = document.apply(catalog, asked)
        [first] = others
        assert commit is not None
        assert first is not None
        assert (commit.version, commit.duplicate) == (first.version, True)
        assert catalog.version() == 3
        assert catalog.load_table("sales.orders").row_count == (1 if operations == ONE_ROW else 0)


def test_new_ids_are_taken_by_apply(run: Run) -> None:
    number = ok(invoke("new-id")).strip()
    assert (
        answer(run("--output", "json", "apply", "-", input=text_of(ONE_ROW, id=number)))["transaction_id"]
        == number
    )


# --- rows in JSON ----------------------------------------------------------------------------------

EVERY_TYPE = {
    "boolean": (True, True),
    "int16": (-32768, -32768),
    "int32": (7, 7),
    "int64": (2**63 - 1, 2**63 - 1),
    "float": (1.5, 1.5),
    "double": (1, 1.0),
    "string": ("ü", "ü"),
    "binary": ("AAE=", b"\x00\x01"),
    "date": ("2026-03-01", date(2026, 3, 1)),
    "timestamp": ("2026-03-01T12:00:00.000001", datetime(2026, 3, 1, 12, 0, 0, 1)),
    "timestamptz": ("2026-03-01T12:00:00+02:00", datetime(2026, 3, 1, 10, tzinfo=UTC)),
    "decimal(10,2)": (12345678.9, Decimal("12345678.90")),
    "decimal(5,0)": ("1E+4", Decimal(10000)),
    "decimal(38,38)": ("0." + "9" * 38, Decimal("0." + "9" * 38)),
    "fixed(2)": ("AAE=", b"\x00\x01"),
    "list<int16>": ([1, None], [1, None]),
    "map<string,double>": ({"a": 0.5}, [("a", 0.5)]),
    "map<int64,string>": ([[1, "x"]], [(1, "x")]),
    "struct<a:int16:required,b:string>": ({"a": 1}, {"a": 1, "b": None}),
}


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_a_value_of_every_type_arrives(lake: str, run: Run, kind: str) -> None:
    written, read = EVERY_TYPE[kind]
    text = text_of(
        [
            {"create_table": {"name": "sales.t", "columns": [{"name": "v", "type": kind}]}},
            {"append": {"name": "sales.t", "rows": [{"v": written}, {"v": None}, {}]}},
        ]
    )
    ok(run("apply", "-", input=text))
    with alpheus.connect(lake) as catalog:
        assert catalog.read("sales.t").to_pydict()["v"] == [read, None, None]


# --- text that lines up ----------------------------------------------------------------------------


def test_columns_line_up_by_what_a_terminal_shows() -> None:
    assert output.columns_text(["A", "N", "B"], [("商", 5, "x"), ("e\u0301", 10, ""), ("abc", 0, "y\n")]) == (
        "A     N  B\n商    5  x\ne\u0301    10\nabc   0  y\\n"
    )
    assert output.columns_text(["A"], []) == ""


def test_sizes() -> None:
    assert [output.size_text(size) for size in (0, 1023, 1024, 1536 * 1024, 2**60)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 MiB", "1024.0 PiB",
    ]  # fmt: skip


# --- real processes --------------------------------------------------------------------------------


def process(*words: str, url: str, **rest: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *words], env={**os.environ, "ALPHEUS_CATALOG": url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_hear_interrupts, **rest,
    )  # fmt: skip


def _hear_interrupts() -> None:
    # A shell that runs the tests in the background ignores SIGINT, and its children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_closed_pipe_ends_quietly(lake: str) -> None:
    running = process("--output", "json", "events", "--follow", url=lake)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["version"] == 0
    for _ in range(2):
        running.stdout.readline()
    running.stdout.close()
    with alpheus.connect(lake) as catalog:
        catalog.create_namespace("more")
    assert running.stderr is not None
    with running.stderr as said:
        assert said.read() == b""
    assert running.wait() == 0


def test_bad_news_of_check_outlives_a_closed_pipe(lake: str) -> None:
    [root] = Path(lake.removeprefix("file://")).glob("def/table/*")
    root.chmod(0o600)
    root.write_bytes(b"broken")
    reader, writer = os.pipe()
    os.close(reader)
    running = subprocess.run(
        [*COMMAND, "check"],
        env={**os.environ, "ALPHEUS_CATALOG": lake},
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (running.returncode, running.stderr) == (1, b"")


def test_a_full_disk_is_a_failure(lake: str) -> None:
    with open("/dev/full", "wb") as full:
        running = subprocess.run(
            [*COMMAND, "events"],
            env={**os.environ, "ALPHEUS_CATALOG": lake},
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert running.returncode == 1
    assert running.stderr.startswith(b"error: [Errno 28]")


def test_an_interrupt_ends_following_with_130(lake: str) -> None:
    running = process("events", "--follow", url=lake)
    assert running.stdout is not None
    for _ in range(3):
        assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err.strip()) == (130, b"", b"")


def test_what_the_terminal_has_no_letters_for_is_escaped(lake: str) -> None:
    with alpheus.connect(lake) as catalog:
        catalog.create_namespace("größe商")
    running = subprocess.run(
        [*COMMAND, "namespace", "list"],
        env={**os.environ, "ALPHEUS_CATALOG": lake, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )
    assert (running.returncode, running.stdout) == (0, b"gr\xf6\xdfe\\u5546\nsales\n")


def test_serve_answers_and_ends_on_sigterm(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    url, port_file = f"file://{tmp_path}/lake", tmp_path / "port"
    words = ["serve", "--create", "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
    with printed.open("wb") as file:
        running = subprocess.Popen([*COMMAND, "--catalog", url, *words], stdout=file, stderr=subprocess.PIPE)
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if json.loads(line)["event"] == "serving":
                break
        drain = threading.Thread(target=running.stderr.read)
        drain.start()
        # `exec`: the started process itself is the daemon.
        assert b"alpheus_daemon" in Path(f"/proc/{running.pid}/cmdline").read_bytes()
        grpc = f"grpc://{port_file.read_text().strip()}"
        assert answer(invoke("--output", "json", "info", url=grpc))["storage_url"] == url
        ok(invoke("namespace", "create", "sales", url=grpc))
        ok(invoke("table", "create", "sales.orders", "--column", "id:int64", url=grpc))
        text = text_of(ONE_ROW, id=transaction_id())
        first = answer(invoke("--output", "json", "apply", "-", url=grpc, input=text))
        again = answer(invoke("--output", "json", "apply", "-", url=grpc, input=text))
        assert again == {**first, "duplicate": True}
        assert ok(invoke("table", "list", "--at", "3", url=grpc)) == "sales.orders\n"
        assert len(answers(invoke("--output", "json", "events", "--follow", "--count", "4", url=grpc))) == 4
        assert ok(invoke("log", "--count", "1", url=grpc)).startswith("3  ")
        assert ok(invoke("check", url=grpc)).startswith("ok: ")
        assert "NotFound" in failed(invoke("--output", "json", "table", "drop", "sales.x", url=grpc))
        running.terminate()
        drain.join()
        assert running.wait() == 0
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
        assert running.stderr is not None
        running.stderr.close()
    assert printed.read_bytes() == b""
    assert not port_file.exists()


def test_serve_passes_wrong_arguments_to_the_daemon(tmp_path: Path) -> None:
    running = subprocess.run([*COMMAND, "serve", str(tmp_path), "--nonsense"], capture_output=True)
    assert (running.returncode, running.stdout) == (2, b"")
    assert b"--nonsense" in running.stderr


def test_serve_prints_its_settings_and_opens_nothing(tmp_path: Path) -> None:
    url = f"s3://key:canary@nowhere.invalid/{tmp_path.name}?secret=canary"
    words = [*COMMAND, "--catalog", url, "serve", "--create", "--print-config"]
    running = subprocess.run(words, capture_output=True, text=True)
    assert (running.returncode, running.stderr) == (0, "")
    settings = tomllib.loads(running.stdout)
    assert settings["create"] is True
    assert settings["log_format"] == "auto"
    assert "create = true  # --create\n" in running.stdout
    assert "canary" not in running.stdout
    running = subprocess.run([*words, "--group-count-max", "0"], capture_output=True, text=True)
    assert (running.returncode, running.stdout) == (2, "")
    assert "--group-count-max" in running.stderr


def test_serve_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvloop" else genuine(name, *rest)
    )
    said = failed(invoke("serve", "file:///nowhere"))
    assert "uvloop missing" in said
    assert "pip install 'alpheus[daemon]'" in said
