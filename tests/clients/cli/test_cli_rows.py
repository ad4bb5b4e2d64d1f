"""The commands on the rows of tables."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli

Run = Callable[..., Result]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("price", pa.decimal128(6, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name != "ALPHEUS_SLOW":
            monkeypatch.delenv(name)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a command on a catalog whose table has three files of one row each."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", SCHEMA)
        for id in (1, 2, 3):
            catalog.append(
                "s.t",
                [{"id": id, "day": dt.date(2026, 3, id), "price": Decimal(id), "tags": ["x"] * (id - 1)}],
            )
    return lambda *words: CliRunner().invoke(cli.cli, ["--catalog", url, *words])


def test_rows_are_printed(run: Run) -> None:
    done = run("table", "read", "s.t", "--where", "id >= 2", "--columns", "price,id")
    assert done.stdout.split() == ["price", "id", "2.00", "2", "3.00", "3"]
    done = run("--output", "json", "table", "read", "s.t", "--where", "day > '2026-03-01'")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": 2, "day": "2026-03-02", "price": "2.00", "tags": ["x"]},
        {"id": 3, "day": "2026-03-03", "price": "3.00", "tags": ["x", "x"]},
    ]
    done = run("table", "read", "s.t", "--limit", "1")
    assert len(done.stdout.splitlines()) == 2
    assert "only the first 1 row; --limit N" in done.stderr
    assert not run("table", "read", "s.t", "--limit", "3").stderr
    assert len(run("--output", "json", "table", "read", "s.t", "--limit", "2").stdout.splitlines()) == 2
    assert len(run("--output", "json", "table", "read", "s.t", "--limit", "0").stdout.splitlines()) == 3
    assert "no rows" in run("table", "read", "s.t", "--where", "id > 9").stderr
    assert len(run("--output", "json", "table", "read", "s.t", "--at", "3").stdout.splitlines()) == 1


ATTACK = "\x9b31m\u202e\u2028\u200b\ufeff\u3164\ufe0f"
"""Characters that a terminal acts upon, turns round, or does not show."""
ESCAPED = "\\x9b31m\\u202e\\u2028\\u200b\\ufeff\\u3164\\ufe0f"


def test_a_terminal_gets_no_control_of_a_catalog(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text output escapes control characters of names and values.

    JSON keeps them, and escapes them only on a terminal.
    """
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        catalog.create_table(
            "s.x", pa.schema([("c" + ATTACK, pa.string())]), properties={"p" + ATTACK: "q" + ATTACK}
        )
        catalog.append("s.x", [{"c" + ATTACK: "v" + ATTACK + "\x1b]0;x\x07\n"}])
    done = run("table", "read", "s.x")
    assert done.stdout.split("\n") == ["c" + ESCAPED, "v" + ESCAPED + "\\x1b]0;x\\x07\\n", ""]
    for words in (("table", "show"), ("table", "explain"), ("table", "history")):
        told = run(*words, "s.x").output
        assert not set(told) & set(ATTACK.replace("31m", "") + "\x1b\x07"), words
    assert ESCAPED in run("table", "show", "s.x").stdout
    row = {"c" + ATTACK: "v" + ATTACK + "\x1b]0;x\x07\n"}
    read = ("--output", "json", "table", "read", "s.x")
    assert ATTACK in run(*read).stdout
    monkeypatch.setattr("alpheus.cli.text.output.to_terminal", lambda: True)
    told = run(*read).stdout
    assert json.loads(told) == row
    assert "\\u009b31m" in told
    assert not set(told) & {"\x9b", "\x1b", "\x07"}


def test_a_limit_that_nobody_gave_is_for_people_alone(run: Run, tmp_path: Path) -> None:
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        catalog.append("s.t", pa.table({"id": pa.array(range(4, 2501), pa.int64())}))
    done = run("--output", "json", "table", "read", "s.t", "--columns", "id")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"id": id} for id in range(1, 2501)]
    assert not done.stderr
    for limit in (1, 999, 1000, 1001, 2500, 9999):
        done = run("--output", "json", "table", "read", "s.t", "--columns", "id", "--limit", str(limit))
        assert len(done.stdout.splitlines()) == min(limit, 2500)
    done = run("table", "read", "s.t", "--columns", "id")
    assert len(done.stdout.splitlines()) == 101
    assert "only the first 100 rows; --limit N" in done.stderr
    assert len(run("table", "read", "s.t", "--limit", "0").stdout.splitlines()) == 2501


def test_rows_are_written_as_they_are_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written while they are read.

    When a later file cannot be read, earlier rows stay written, and the command reports the file.
    """
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        first = catalog.scan("s.t").files[0].file.path
        last = catalog.scan("s.t").files[-1].file.path
    monkeypatch.setattr("alpheus.rows.scan.READ_AHEAD_BYTES_MAX", 1)
    assert first != last
    file = tmp_path / "lake" / last
    file.write_bytes(b"?" * file.stat().st_size)
    done = run("--output", "json", "table", "read", "s.t")
    assert done.exit_code == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
    assert last in json.loads(done.stderr)["message"]
    file.unlink()  # the plan notices the missing file before a row is written
    done = run("--output", "json", "table", "read", "s.t")
    assert (done.exit_code, done.stdout) == (1, "")
    assert last in json.loads(done.stderr)["message"]


def test_what_is_printed_as_json_is_taken_as_rows(run: Run, tmp_path: Path) -> None:
    """Printed JSON can be appended as rows. Numbers that are not finite, which JSON lacks, do not become NULL."""
    url = f"file://{tmp_path}/lake"
    schema = pa.schema([("x", pa.float64()), ("xs", pa.list_(pa.float32())), ("b", pa.binary())])
    rows = [
        {"x": float("inf"), "xs": [float("nan"), None, 1.5], "b": b"\0\xff"},
        {"x": None, "xs": None, "b": None},
        {"x": float("nan"), "xs": [float("-inf")], "b": b""},
    ]
    with alpheus.connect(url) as catalog:
        catalog.create_table("s.f", schema)
        catalog.append("s.f", rows)
        catalog.create_table("s.g", schema)
        done = run("--output", "json", "table", "read", "s.f")
        read = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["x"] for row in read] == ["Infinity", None, "NaN"]
        document = tmp_path / "rows.json"
        document.write_text(json.dumps({"operations": [{"append": {"name": "s.g", "rows": read}}]}))
        assert run("apply", str(document)).exit_code == 0
        assert str(catalog.read("s.g").to_pylist()) == str(rows)


def test_what_cannot_be_read_is_named(run: Run) -> None:
    done = run("table", "read", "s.t", "--where", "nope = 1")
    assert done.exit_code == 1
    assert "nope" in done.stderr
    assert done.stdout == ""
    assert run("table", "read", "s.t", "--columns", "nope").exit_code == 1
    assert run("table", "read", "s.t", "--limit", "-1").exit_code == 2


def test_plans_are_explained(run: Run) -> None:
    done = run("table", "explain", "s.t", "--where", "id = 2")
    assert "read 1 of 3 files" in done.stdout
    assert "values of id are at least 1 and at most 1" in done.stdout
    found = json.loads(run("--output", "json", "table", "explain", "s.t", "--where", "id = 2").stdout)
    assert (len(found["files"]), len(found["skipped"]), found["row_count"]) == (1, 2, 1)
    assert found["exact_count"] == 1


def test_counts_say_whether_they_are_exact(run: Run, tmp_path: Path) -> None:
    def shown() -> tuple[int, bool]:
        found = json.loads(run("--output", "json", "table", "show", "s.t").stdout)
        return found["row_count"], found["row_count_exact"]

    assert shown() == (3, True)
    assert "predicates" not in run("table", "show", "s.t").stdout
    assert not run("table", "list", "-l").stdout.count("at most")
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        catalog.append("s.t", [{"id": id} for id in range(7, 13)])
        catalog.delete("s.t", "id = 8", mode="predicate")
        assert catalog.load_table("s.t").is_row_count_exact is False
    assert shown() == (9, False)
    text = run("table", "show", "s.t").stdout
    assert "at most 9" in text
    assert "delete predicates" in text
    assert "at most 9" in run("table", "list", "-l").stdout
    found = json.loads(run("--output", "json", "table", "explain", "s.t").stdout)
    assert (found["row_count"], found["exact_count"]) == (9, None)
    assert "the result has at most 9 rows" in run("table", "explain", "s.t").stdout
    run("table", "compact", "s.t")
    assert shown() == (8, True)


def test_tables_are_compacted(run: Run) -> None:
    plan = json.loads(run("--output", "json", "table", "compact", "s.t", "--dry-run").stdout)
    assert [len(group["paths"]) for group in plan["groups"]] == [3]
    assert "3 of 3 files are rewritten" in run("table", "compact", "s.t", "--dry-run").stdout
    assert "compacted table s.t in version" in run("table", "compact", "s.t", "-m", "nightly").stdout
    assert "unchanged" in run("table", "compact", "s.t").stdout
