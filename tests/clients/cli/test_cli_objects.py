"""The commands for columns, for views and for dropped objects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from cli_answers import answer, failed
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli
from alpheus_pb.v1 import objects_pb2

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name != "ALPHEUS_SLOW":
            monkeypatch.delenv(name)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Create a catalog with a namespace and a table, and return its URL."""
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales", {"owner": "ann"})
        catalog.create_table("sales.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    return url


@pytest.fixture
def run(lake: str) -> Run:
    """Return a function that runs a command on the catalog `lake`."""
    return lambda *words: CliRunner().invoke(cli.cli, ["--catalog", lake, *words])


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
    assert "last present at version" in run("dropped", "sales").stdout
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


def test_undrop_takes_what_it_says(run: Run) -> None:
    answer(run("--output", "json", "table", "drop", "sales.orders"))
    answer(run("--output", "json", "view", "create", "sales.orders", "--sql", "SELECT 1"))
    answer(run("--output", "json", "view", "drop", "sales.orders"))
    answer(run("--output", "json", "table", "undrop", "sales.orders"))
    assert run("table", "list").stdout == "sales.orders\n"
    answer(run("--output", "json", "view", "undrop", "sales.orders", "--as", "sales.v"))
    assert run("view", "list").stdout == "sales.v\n"
    assert "not the name of a table" in failed(run("table", "undrop", "sales"))
    taken = failed(run("table", "undrop", "sales.orders", "--at", "2"))
    assert "another name" in taken
    assert "exist-ok" not in taken, "undrop has none"
    answer(run("--output", "json", "table", "rename", "sales.orders", "sales.moved"))
    [line] = run("--output", "json", "log", "sales.moved", "--count", "1").stdout.splitlines()
    [action] = json.loads(line)["transaction"]["actions"]
    assert (action["type"], action["details"]["kind"]) == ("TABLE_RENAME", "table")


def test_damaged_and_foreign_saved_transactions(run: Run, lake: str) -> None:
    torn, foreign = "01a20062-30a4-73eb-9949-b750ecfa382a", "0f5c7a52-91a5-4d1c-9a53-0d5b3f6a4c11"
    folder = Path(lake.removeprefix("file://")) / "def" / "dtxn"
    folder.mkdir()
    (folder / f"{torn}.binpb").write_bytes(b"\xff")
    root = "vn/" + 32 * "0"
    (folder / f"{foreign}.binpb").write_bytes(
        objects_pb2.DistributedTransactionDef(
            id=foreign, beginning_root_node_file_path=root, running_root_node_file_path=f"node/{torn}.arrow"
        ).SerializeToString()
    )
    shown = run("transaction", "list").stdout
    assert f"{torn}  DAMAGED" in shown
    assert "of another writer" in shown
    listed = {one["id"]: one for one in answer(run("--output", "json", "transaction", "list"))}
    assert torn in listed[torn]["damage"]
    assert listed[foreign]["resumable"] is False
    assert "restore" in failed(run("transaction", "commit", torn))
    assert answer(run("--output", "json", "transaction", "discard", torn))["state"] == "cancelled"
    gone = run("transaction", "discard", foreign)
    assert (gone.exit_code, gone.stdout) == (0, "unknown\n")
    assert "removed" in gone.stderr
    assert answer(run("--output", "json", "transaction", "list")) == []


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["transaction", "commit"], 2, "Missing argument"),
        (["transaction", "commit", "x"], 1, "not a transaction id"),
        (["transaction", "discard", "x"], 1, "not a transaction id"),
        (["transaction", "resume"], 2, "No such command"),
        (["diff"], 2, "Missing argument"),
        (["diff", "x"], 1, "there is no tag x"),
        (["diff", "0", "99"], 1, "no version 99"),
        (["dropped", "a b"], 1, "U+0020"),
        (["dropped", "--count", "0"], 2, "range"),
        (["table", "undrop", "sales.orders", "--at", "99"], 1, "no version 99"),
        (["table", "set", "sales.orders"], 2, "Nothing to change"),
        (["table", "set", "sales.orders", "--retype-column", "id:nix"], 2, "no type"),
        (["table", "set", "sales.orders", "--nullable", "id", "--required", "id"], 2, "both"),
        (["table", "restore", "sales.orders"], 2, "--at"),
        (["view", "create", "sales.v"], 2, "--sql"),
        (["view", "create", "sales.v", "--sql", "@"], 1, "cannot be read"),
        (["view", "drop", "sales.orders"], 1, "alpheus view list"),
    ],
)
def test_wrong_words(run: Run, words: list[str], status: int, says: str) -> None:
    assert says in failed(run(*words), status)
    told = json.loads(failed(run("--output", "json", *words), status))
    assert told.keys() >= {"error", "kind", "message", "hint"}
