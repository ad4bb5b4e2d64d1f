"""The names that users meet: which exist, and that both fronts have the same."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import alpheus
from alpheus import aio, catalog, errors, models
from alpheus.admin.symbols import AsyncSymbols
from alpheus.events.consumer import AsyncSubscription
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.sync import __main__ as front
from alpheus.sync.subscription import Subscriptions
from alpheus.sync.symbols import Symbols
from alpheus.transactions.transaction import AsyncTransaction
from alpheus_journal import errors as journal_errors
from alpheus_journal.errors import InvalidInput

READING = {
    "properties", "list_namespaces", "load_namespace", "namespace_exists", "list_tables", "load_table", "load_tables",
    "table_exists", "list_views", "load_view", "view_exists", "list_pipelines", "load_pipeline", "read",
    "scan",
}  # fmt: skip
WRITING = {
    "update_catalog", "create_namespace", "update_namespace", "drop_namespace", "create_table", "update_table",
    "drop_table", "append", "overwrite", "register_table", "commit_iceberg", "rename_table", "rename_view",
    "restore_table", "undrop", "create_view", "replace_view", "drop_view", "delete", "update", "merge", "append_files",
    "compact",
}  # fmt: skip
SURFACE = {
    alpheus.Snapshot: READING | {"version", "info", "close", "is_chosen", "is_leased", "has_lost_lease"},
    alpheus.Transaction: READING
    | WRITING
    | {
        "id", "version", "operations", "result", "commit", "abandon", "save",
        "append_segments", "overwrite_segments", "advance_pipeline", "rename_pipeline",
        "add_properties",
    },
    alpheus.Catalog: READING
    | WRITING
    | {
        "url", "close", "storage", "info", "version", "at", "transaction", "retry", "events", "log", "outcome",
        "admin", "subscribe", "system", "replica", "diff", "list_dropped", "resume", "list_saved", "discard",
        "import_table",
    },
    alpheus.Replica: READING | {"version", "namespaces", "lag", "error", "wait_for", "close"},
    alpheus.Admin: {"check", "checkpoint", "collect", "expire", "leases", "subscriptions", "symbols", "upgrade"},
    Symbols: {"list", "reload", "check", "compact"},
    alpheus.Subscription: {"name", "holder", "epoch", "position", "wait_active", "acknowledge", "close"},
    Subscriptions: {"list", "load", "create", "delete", "reset"},
}  # fmt: skip
PAIRS = [
    (alpheus.Snapshot, aio.AsyncSnapshot),
    (alpheus.Transaction, AsyncTransaction),
    (alpheus.Catalog, aio.AsyncCatalog),
    (alpheus.Replica, aio.AsyncReplica),
    (alpheus.Admin, aio.AsyncAdmin),
    (Symbols, AsyncSymbols),
    (alpheus.Subscription, AsyncSubscription),
    (Subscriptions, AsyncSubscriptions),
]


def public(cls: type) -> set[str]:
    """Return the public names of a class, including attributes that its instances set."""
    source = inspect.getsource(cls)
    given = {
        name
        for name in ("admin", "id", "result")
        if f"self.{name} = " in source or f"self.{name}: " in source
    }
    return {name for name in dir(cls) if not name.startswith("_")} | given


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_both_fronts_are_the_same(sync: type, asynchronous: type) -> None:
    assert public(sync) == public(asynchronous) == SURFACE[sync]
    for name in sorted(public(sync)):
        one, other = (inspect.getattr_static(cls, name, None) for cls in (sync, asynchronous))
        if not inspect.isfunction(one) or not inspect.isfunction(other):
            assert inspect.isfunction(one) == inspect.isfunction(other), name
            continue
        ours, theirs = inspect.signature(one), inspect.signature(other)
        assert list(ours.parameters) == list(theirs.parameters), name
        for parameter in ours.parameters.values():
            twin = theirs.parameters[parameter.name]
            assert (parameter.kind, parameter.default) == (twin.kind, twin.default), (name, parameter.name)
            if parameter.name != "fn":
                assert parameter.annotation == twin.annotation, (name, parameter.name)
        assert inspect.getdoc(one) == inspect.getdoc(other), name


def test_the_synchronous_front_is_as_it_is_generated() -> None:
    assert [path for path, source in front.generate().items() if path.read_text() != source] == []


def test_a_verb_that_is_added_gets_its_synchronous_twin(tmp_path: Path) -> None:
    for name in {name for one in front.FRONTS for name in (one.file, one.twin_file)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(front.ROOT / name, tmp_path / name)
    twin = tmp_path / "admin" / "symbols.py"
    twin.write_text(
        twin.read_text()
        + """
    async def count(self, kind: str = "table", *, exact: bool = False) -> AsyncIterator[int]:
        \"\"\"How many: 'all' of a kind.\"\"\"
        yield 1

    @property
    def size(self) -> int:
        return 1
"""
    )
    written = front.generate(tmp_path)[tmp_path / "sync" / "symbols.py"]
    assert written.endswith(
        """
    def count(self, kind: str = "table", *, exact: bool = False) -> Iteration[int]:
        \"\"\"How many: 'all' of a kind.\"\"\"
        return Iteration(self._core().count(kind, exact=exact))

    @property
    def size(self) -> int:
        return self._core().size
"""
    )


def test_what_listings_give_is_taken_where_names_are(tmp_path: Path) -> None:
    """A listed object can be given where a name is expected, at any version, also after it has changed."""
    with alpheus.create(f"file://{tmp_path}/lake") as there, there.replica() as copy:
        there.create_namespace("a")
        (space,) = there.list_namespaces()
        there.create_table("a.t", pa.schema([("x", pa.int64())]))
        there.create_view("a.v", "select 1", references=[*there.list_tables(space)])
        tables, views = there.list_tables(space), there.list_views(space)
        copy.wait_for(tables[0].version)
        for reader in (there, there.at(tables[0].version), copy):
            assert reader.load_namespace(space).name == "a"
            assert reader.namespace_exists(space)
            assert [table.name for table in reader.load_tables(tables)] == ["t"]
            assert [reader.load_table(tables[0]).name for _ in range(2)] == ["t", "t"]
            assert reader.table_exists(tables[0])
            assert reader.load_view(views[0]).name == "v"
            assert reader.view_exists(views[0])
            with pytest.raises(InvalidInput):
                reader.load_table(views[0])
        event = next(iter(there.events(names=tables)))
        assert [change.name for change in event.changes] == ["a.t"]
        there.update_namespace(space, {"n": "1"})
        there.append(tables[0], pa.table({"x": [1]}))
        assert there.read(tables[0]).num_rows == 1
        there.drop_view(views[0])
        there.undrop(views[0], as_name=("a", "w"))
        there.rename_table(tables[0], ("a", "u"))
        assert {entry.version for entry in there.log(space)} >= {1}
        there.drop_namespace(space, cascade=True)
        assert [one.name for one in there.list_dropped(space)] == ["a", "a.u", "a.w", "a.v"]
        there.undrop(space)


@pytest.mark.parametrize("name", ["connect", "create"])
def test_both_ways_in_are_the_same(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (catalog, aio))
    assert ours.parameters == theirs.parameters


def test_what_the_package_exports() -> None:
    assert set(alpheus.__all__) >= {
        "connect",
        "create",
        "Catalog",
        "Snapshot",
        "Transaction",
        "aio",
        "errors",
    }
    for name in alpheus.__all__:
        assert getattr(alpheus, name) is not None
    assert alpheus.__all__ == sorted(alpheus.__all__)


def test_results_are_frozen_and_exported() -> None:
    results = [
        value
        for value in vars(models).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == models.__name__
    ]
    assert len(results) > 15
    for result in results:
        assert result.__struct_config__.frozen, result
        assert getattr(alpheus, result.__name__) is result


def test_fields_that_scripts_rely_on() -> None:
    assert models.Commit.__struct_fields__ == (
        "version", "transaction_id", "created_at", "duplicate", "rows_added", "rows_removed", "files_added",
    )  # fmt: skip
    assert models.Event.__struct_fields__ == ("version", "created_at", "transactions", "changes", "token")
    assert models.LogEntry.__struct_fields__ == ("version", "created_at", "transaction")
    assert models.Outcome.__struct_fields__ == ("state", "commit")
    assert models.Action.__struct_fields__ == ("type", "kind", "name", "details")
    assert set(models.TransactionInfo.__struct_fields__) >= {
        "id", "principal", "message", "properties", "isolation", "branch", "actions",
    }  # fmt: skip
    assert models.Change.__struct_fields__[:5] == ("kind", "name", "type", "before", "after")


def test_errors_are_the_one_tree() -> None:
    assert {name: getattr(errors, name) for name in errors.__all__} == journal_errors.CLASSES


def test_importing_the_client_loads_neither_daemon_nor_spark() -> None:
    script = "import sys, alpheus; print([m for m in sys.modules if m.split('.')[0] in ('alpheus_daemon', 'pyspark')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
