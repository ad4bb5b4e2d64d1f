"""The symbol list and checkpoints as users see them: on storage, through a daemon, and in commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import Catalog, Symbol
from alpheus.cli import cli
from alpheus.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.replay import checkpoint
from alpheus_journal.replay import loader as replay
from alpheus_journal.replay.flat import Flat

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    url = lake_by(request.param, "--symbol-journal-max", "2", "--checkpoints-kept", "1")
    with alpheus.connect(url, create=True) as opened:
        opened.create_namespace("sales")
        opened.create_namespace("ops")
        for name in ("orders", "orders_2026", "refunds"):
            opened.create_table(f"sales.{name}", SCHEMA)
        opened.create_view("ops.open", "SELECT 1 AS one")
        yield opened


def test_listing(catalog: Catalog) -> None:
    symbols = catalog.admin.symbols
    everything = symbols.list()
    assert everything == [
        Symbol("namespace", "", "ops"), Symbol("namespace", "", "sales"), Symbol("table", "sales", "orders"),
        Symbol("table", "sales", "orders_2026"), Symbol("table", "sales", "refunds"), Symbol("view", "ops", "open"),
    ]  # fmt: skip
    assert symbols.list(limit=2) == everything[:2]
    assert symbols.list("table", limit=2) == everything[2:4]
    assert symbols.list(namespace="sales") == everything[1:5]
    assert symbols.list(prefix="sales.ord") == everything[2:4]
    assert symbols.list(pattern="*s.*_20??") == [everything[3]]
    assert symbols.list("namespace", at=1) == [Symbol("namespace", "", "sales")]
    assert symbols.list(namespace="none") == []
    for wrong in (
        {"kind": "catalog"},
        {"kind": "cable"},
        {"limit": 0},
        {"prefix": 3},
        {"pattern": "*" * 9999},
    ):
        with pytest.raises(InvalidInput):
            symbols.list(**wrong)
    with pytest.raises(NotFound):
        symbols.list(at=10**6)


def test_upkeep(catalog: Catalog) -> None:
    symbols = catalog.admin.symbols
    info = symbols.reload()
    assert (info.symbols, info.version, info.journal_length, info.failures) == (6, catalog.version(), 0, 0)
    catalog.create_table("ops.t", SCHEMA)
    assert symbols.compact().symbols == 7
    drift = symbols.check()
    assert (drift.ok, drift.checked, drift.sampled, drift.missing) == (True, 7, False, ())
    assert symbols.check(sample=2).sampled
    catalog.drop_table("ops.t")
    assert len(symbols.list()) == 6


def test_a_checkpoint_is_what_the_next_start_maps(catalog: Catalog, start_daemon: Callable[..., Any]) -> None:
    catalog.update_catalog({"k": "v"})
    made = catalog.admin.checkpoint()
    assert (made.version, made.objects) == (catalog.version(), 6)
    assert catalog.admin.checkpoint(verify=True) == made
    storage = catalog.storage().url
    lake = Path(storage.removeprefix("file://"))
    assert (lake / made.path).stat().st_size == made.size_bytes
    daemon = start_daemon(storage)
    with alpheus.connect(daemon.url) as other:
        assert len(other.admin.symbols.list()) == 6
        assert other.load_table("sales.orders") == catalog.load_table("sales.orders")
        assert other.admin.symbols.check().ok
    assert daemon.stop() == 0
    assert catalog.admin.check().ok


def test_a_check_in_a_library_leaves_memory_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a check finds wrong memory, a library reads the tree.

    A reload deletes the checkpoint that memory came from.
    """
    monkeypatch.setattr(checkpoint, "SAMPLE_LEAVES", 0)
    monkeypatch.setattr(replay, "VERIFIED_OBJECTS_MAX", 0)
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales")
        for number in range(8):
            catalog.create_table(f"sales.t{number}", SCHEMA)
        made = tmp_path / "lake" / catalog.admin.checkpoint().path
    facts, flat = checkpoint.decode_checkpoint(made.read_bytes())
    kept = [(flat.keys[row], flat.stored(row)) for row in range(len(flat) - 3)]
    less = msgspec.structs.replace(facts, objects=len(kept))
    made.write_bytes(checkpoint.encode_checkpoint(Flat.of(kept), less))
    with alpheus.connect(url) as catalog:
        catalog.update_catalog({"k": "v"})
        with pytest.raises(Corrupt, match=r"sales\.t5.*sales\.t6.*sales\.t7") as caught:
            catalog.admin.checkpoint()  # loads the other checkpoint, and compares it first
        assert caught.value.kind == "state_drift"
        assert len(catalog.list_tables("sales")) == 8
        assert catalog.admin.symbols.check().ok
        assert catalog.admin.symbols.reload().symbols == 9
        assert list((tmp_path / "lake" / "checkpoint").glob("*.arrow")) == []
        catalog.admin.checkpoint()
        assert len(catalog.list_tables("sales")) == 8


def test_the_command(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", SCHEMA)

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["--catalog", url, *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert run("symbols", "list") == "namespace sales\ntable sales.orders\n"
    assert run("symbols", "list", "*.o*", "--kind", "table", "--at", "2") == "table sales.orders\n"
    assert json.loads(run("--output", "json", "symbols", "list", "--prefix", "sal", "--limit", "1")) == [
        {"kind": "namespace", "namespace": "", "name": "sales"}
    ]
    assert run("symbols", "reload") == "reloaded at version 2: 2 names, 0 of them in the journal\n"
    assert run("symbols", "compact").startswith("compacted at version 2: 2 names")
    assert run("symbols", "check", "--sample", "3").startswith("ok: compared ")
    assert run("checkpoint", "--verify").startswith("checkpoint of version 2: 2 objects, checkpoint/01000")
    assert json.loads(run("--output", "json", "checkpoint"))["objects"] == 2
