"""The commands that change columns, views and what was dropped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name != "ALPHEUS_SLOW":
            monkeypatch.delenv(name)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The URL of a catalog with a namespace and a table."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales", {"owner": "ann"})
        catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    return url


@pytest.fixture
def run(lake: str) -> Run:
    """Run a command on the catalog `lake`."""
    return lambda *words: CliRunner().invoke(cli.cli, ["--catalog", lake, *words])


def failed(result: Result, status: int = 1) -> str:
    """The standard error of a command that must have failed and printed nothing."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    return result.stderr


def answer(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_columns_are_changed_in_one_step(run: Run) -> None:
    answer(
        run(
            "--output", "json", "table", "set", "sales.orders", "owner=ann", "--add-column", "note:string",
            "--rename-column", "id=key", "--nullable", "id",
        )
    )  # fmt: skip
    shown = answer(run("--output", "json", "table", "show", "sales.orders"))
    names = [(column["name"], column["nullable"]) for column in shown["columns"]]
    assert ("key", True) in names
    assert names[-1] == ("note", True)
    assert shown["properties"]["owner"] == "ann"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--retype-column", "id"), "PATH:TYPE"),
        (("--retype-column", "id:nonsense"), "there is no type 'nonsense'"),
        (("--nullable", "id", "--required", "id"), "both nullable and required"),
        (("--rename-column", "id"), "KEY=VALUE"),
        ((), "Nothing to change"),
    ],
)
def test_wrong_words_for_columns(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in failed(run("table", "set", "sales.orders", *words), 2)


def test_views_by_hand(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "v.sql"
    text.write_text("SELECT id\nFROM sales.orders\n")
    answer(
        run(
            "--output", "json", "view", "create", "sales.v", "--sql", f"@{text}", "--reference", "sales.orders",
            "--bind", "--column", "id:int64", "--property", "owner=ann", "-m", "why",
        )
    )  # fmt: skip
    assert run("view", "list").stdout == "sales.v\n"
    shown = run("view", "show", "sales.v").stdout
    assert "refers to" in shown
    assert shown.endswith("SELECT id\nFROM sales.orders\n")
    plain = answer(run("--output", "json", "view", "show", "sales.v"))
    assert plain["references"] == ["sales.orders"]
    assert plain["columns"] == [{"name": "id", "type": "int64", "nullable": True}]
    assert "sales.v" in failed(run("table", "drop", "sales.orders"))
    answer(run("--output", "json", "view", "replace", "sales.v", "--sql", "SELECT 1"))
    answer(run("--output", "json", "view", "rename", "sales.v", "sales.w"))
    answer(run("--output", "json", "view", "drop", "sales.w"))
    answer(run("--output", "json", "view", "undrop", "sales.w"))
    assert "cannot be read" in failed(run("view", "create", "sales.x", "--sql", "@/does/not/exist"))


def test_what_was_dropped_comes_back(run: Run) -> None:
    assert "nothing" in run("dropped").stderr
    answer(run("--output", "json", "namespace", "drop", "sales", "--cascade"))
    listed = answer(run("--output", "json", "dropped"))
    assert {(one["kind"], one["name"]) for one in listed} == {
        ("namespace", "sales"), ("table", "sales.orders"),
    }  # fmt: skip
    assert "last there at version" in run("dropped", "sales").stdout
    answer(run("--output", "json", "namespace", "undrop", "sales"))
    assert run("table", "list").stdout == "sales.orders\n"
    answer(run("--output", "json", "table", "drop", "sales.orders"))
    answer(run("--output", "json", "table", "undrop", "sales.orders", "--as", "sales.back"))
    assert run("table", "list").stdout == "sales.back\n"
    assert run("diff", "1").exit_code == 0
    assert failed(run("diff", "3", "3"), 99) == "no difference\n"


def test_saved_transactions_by_hand(run: Run, lake: str) -> None:
    with alpheus.connect(lake) as catalog, catalog.transaction(message="half done") as tx:
        tx.create_namespace("later")
        id = tx.save()
    assert id in run("transaction", "list").stdout
    assert answer(run("--output", "json", "transaction", "commit", id))["transaction_id"] == id
    assert "no transaction" in failed(run("transaction", "discard", id))
    assert "no saved transactions" in run("transaction", "list").stderr
