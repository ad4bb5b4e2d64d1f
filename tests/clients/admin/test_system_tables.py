"""System tables: what the catalog reports about itself, on storage and over a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import alpheus
from alpheus import Catalog
from alpheus.admin import system_tables
from alpheus.admin.system_tables import SCHEMAS
from alpheus.errors import InvalidInput, NotFound
from alpheus_journal.model.definitions import InputPosition

ROWS = pa.table(
    {"id": pa.array([1, 2, None], pa.int64()), "name": ["a", "b", "c"], "price": [0.5, float("nan"), 2.0]}
)


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("sales", {"owner": "me"})
        opened.create_table("sales.orders", ROWS)
        opened.create_view("sales.open", "SELECT 1 AS one")
        opened.register_table("sales.old", "s3://bucket/metadata/v1.metadata.json")
        with opened.transaction(message="nightly", key="load/1", properties={"run": "7"}) as tx:
            tx.append("sales.orders", ROWS)
            inputs = {"sales.orders": InputPosition(table_id="t", version=2, table="sales.orders")}
            tx.advance_pipeline("mart", "daily", "", 2, inputs, params={"day": "1"})
        opened.admin.subscriptions.create("billing", names="sales.*")
        yield opened


def rows(catalog: Catalog, name: str, **options: Any) -> list[dict[str, Any]]:
    found = catalog.system(name, **options)
    assert found.schema.equals(SCHEMAS[name])
    found.validate(full=True)
    return found.to_pylist()


def test_log(catalog: Catalog) -> None:
    log = rows(catalog, "log")
    assert [entry["version"] for entry in log] == list(range(catalog.version() + 1))
    entry = log[5]
    assert (entry["message"], entry["key"], entry["properties"]) == ("nightly", "load/1", [("run", "7")])
    assert [(a["type"], a["kind"], a["name"]) for a in entry["actions"]] == [
        ("TABLE_INSERT", "table", "sales.orders"),
        ("PIPELINE_ADVANCE", "pipeline", "mart"),
    ]
    assert entry["writer_name"] is None
    assert rows(catalog, "log", after=4, at=5) == [entry]
    assert [found["version"] for found in rows(catalog, "log", names="sales.o*")] == [2, 3, 4, 5]


def test_changes(catalog: Catalog) -> None:
    changes = rows(catalog, "changes", names=["sales.orders", "billing"])
    assert [(c["version"], c["name"], c["type"]) for c in changes] == [
        (2, "sales.orders", "created"),
        (5, "sales.orders", "updated"),
        (6, "billing", "created"),
    ]
    assert changes[0]["path_before"] is None
    assert changes[1]["path_before"] == changes[0]["path_after"]
    with pytest.raises(InvalidInput, match="no history"):
        catalog.system("objects", after=1)


def test_objects(catalog: Catalog) -> None:
    objects = rows(catalog, "objects")
    assert [(o["kind"], o["namespace"], o["name"], o["format"]) for o in objects] == [
        ("namespace", "sales", None, None),
        ("table", "sales", "old", "iceberg"),
        ("table", "sales", "orders", "native"),
        ("view", "sales", "open", "spark"),
    ]
    orders = objects[2]
    assert orders["columns"] == ["id", "name", "price"]
    assert (orders["row_count"], orders["file_count"]) == (6, 2)
    assert orders["row_count_exact"] is True
    assert objects[1]["row_count"] is None
    assert objects[1]["row_count_exact"] is None
    assert objects[0]["properties"] == [("owner", "me")]
    assert rows(catalog, "objects", at=2, names="*.orders")[0]["row_count"] == 3
    assert rows(catalog, "objects", at=0) == []


def test_counts_that_are_not_exact_say_so(tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", ROWS)
        catalog.delete("s.t", "id = 1", mode="predicate")
        (table,) = rows(catalog, "objects", names="s.t")
        assert (table["row_count"], table["row_count_exact"]) == (3, False)
        assert [(file["row_count"], file["delete_predicates"]) for file in rows(catalog, "files")] == [(3, 1)]
        dropped = catalog.drop_table("s.t")
        assert dropped.rows_removed == 3, "at most"


def test_files(catalog: Catalog) -> None:
    first, second = rows(catalog, "files")
    assert (first["table"], first["row_count"], first["sequence"], second["sequence"]) == ("orders", 3, 1, 2)
    assert first["delete_predicates"] == 0
    id_, name, price = first["columns"]
    assert (id_["name"], id_["null_count"], id_["lower"], id_["upper"]) == ("id", 1, "1", "2")
    assert (name["lower"], name["upper"]) == ("a", "c")
    assert (price["nan_count"], price["value_count"]) == (1, 3)
    assert [file["path"] for file in rows(catalog, "files", at=3)] == [first["path"]]


def test_pipelines(catalog: Catalog) -> None:
    (job,) = rows(catalog, "pipelines")
    assert (job["pipeline"], job["job"], job["state"], job["pinned_version"]) == (
        "mart",
        "daily",
        "running",
        2,
    )
    assert job["inputs"] == [{"table": "sales.orders", "table_id": "t", "version": 2}]
    assert job["params"] == [("day", "1")]
    assert rows(catalog, "pipelines", at=4) == []


def test_subscriptions(catalog: Catalog) -> None:
    (head,) = rows(catalog, "subscriptions")
    (then,) = rows(catalog, "subscriptions", at=catalog.version())
    assert head["names"] == ["sales.*"]
    assert head["lease_seconds"] == 30.0
    assert head["holder"] is None
    assert then == head
    catalog.create_namespace("later")
    (older,) = rows(catalog, "subscriptions", at=6)
    assert older["position"] is None
    assert older["created_at"] == head["created_at"]


def test_bad_input(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="log, changes, objects"):
        catalog.system("logs")
    with pytest.raises(NotFound):
        catalog.system("log", at=10_000)
    with pytest.raises(InvalidInput):
        catalog.system("log", after=-1)
    with pytest.raises(InvalidInput):
        catalog.system("objects", names=[3])  # type: ignore[list-item]


def test_more_than_one_page_and_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_tables, "ROWS_A_BATCH", 7)
    monkeypatch.setattr(system_tables, "OBJECTS_AT_ONCE", 5)
    monkeypatch.setattr("alpheus.session.session.NAMES_AT_ONCE", 5)
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("n")
        with catalog.transaction() as tx:
            for number in range(23):
                tx.create_table(f"n.t{number:04}", ROWS.schema)
        names = catalog.system("objects").column("name").to_pylist()
        assert names == [None, *(f"t{number:04}" for number in range(23))]
        assert len(catalog.system("changes")) == 25
