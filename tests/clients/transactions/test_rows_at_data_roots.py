"""Tables whose data files lie at the data root of their namespace: every verb, over storage and through a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import alpheus
from alpheus import Catalog, aio
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import AppendFiles, Transaction
from alpheus_journal.storage.local import LocalStorage

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [str(number) for number in ids]}, SCHEMA)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(params=["direct", "remote"])
def lake(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> str:
    return lake_by(request.param)


def open_lake(lake: str) -> Catalog:
    return alpheus.connect(lake, create=not lake.startswith("grpc"))


def test_every_verb_keeps_data_files_at_the_root(lake: str, tmp_path: Path) -> None:
    root = tmp_path / "team a"
    root.mkdir()
    with open_lake(lake) as catalog:
        catalog.create_namespace("a", data_root=f"file://{tmp_path}/team%20a/")
        namespace = catalog.load_namespace("a")
        assert namespace.data_root == f"file://{tmp_path}/team%20a"
        catalog.create_table("a.t", rows(1, 2, 3))
        assert catalog.load_table("a.t").data_root == namespace.data_root
        catalog.append("a.t", rows(4, 5, 6))
        catalog.update("a.t", {"text": "x"}, "id = 1", mode="rewrite")
        catalog.delete("a.t", "id = 2")
        catalog.delete("a.t", "id = 3", mode="rewrite")
        catalog.merge("a.t", rows(6, 7), on="id")
        assert sorted(catalog.read("a.t")["id"].to_pylist()) == [1, 4, 5, 6, 7]
        assert [row["text"] for row in catalog.read("a.t", where="id = 1").to_pylist()] == ["x"]
        catalog.compact("a.t")
        assert sorted(catalog.read("a.t")["id"].to_pylist()) == [1, 4, 5, 6, 7]
        catalog.overwrite("a.t", rows(9))
        pq.write_table(rows(10), tmp_path / "ten.parquet")
        catalog.append_files("a.t", [str(tmp_path / "ten.parquet")])
        catalog.import_table("a.imported", str(tmp_path / "ten.parquet"), format="parquet")
        assert sorted(catalog.read("a.t")["id"].to_pylist()) == [9, 10]
        assert sorted(catalog.read("a.t", at=-2)["id"].to_pylist()) == [9, 10]
        assert catalog.read("a.imported")["id"].to_pylist() == [10]
        with catalog.at(catalog.version(), lease=True) as snapshot:
            assert sorted(snapshot.read("a.t")["id"].to_pylist()) == [9, 10]
        catalog.create_namespace("b")
        catalog.rename_table("a.t", "b.t")
        catalog.append("b.t", rows(11))
        assert sorted(catalog.read("b.t")["id"].to_pylist()) == [9, 10, 11]
        assert catalog.load_table("b.t").data_root == namespace.data_root
        catalog.drop_table("b.t")
        catalog.undrop("b.t")
        assert sorted(catalog.read("b.t")["id"].to_pylist()) == [9, 10, 11]
        place = Path(catalog.storage().uri("data").removeprefix("file://"))
        assert not [path for path in files_below(place.parent) if path.endswith(".parquet")]
        listed = {row["path"] for row in catalog.system("files").to_pylist()}
        assert listed
        assert listed <= set(files_below(root))
        assert all(path.startswith("data/") for path in files_below(root))
        assert not [path for path in files_below(root) if path.startswith("data/selftest/")]
        report = catalog.admin.check(footers=True, values=True)
        assert report.ok, report.findings
        assert report.files == len(listed)


def test_one_transaction_makes_namespace_table_and_rows(lake: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_lake(lake) as catalog:
        with catalog.transaction() as tx:
            tx.create_namespace("a", data_root=root.as_uri())
            tx.create_table("a.t", rows(1))
            tx.append("a.t", rows(2))
        assert sorted(catalog.read("a.t")["id"].to_pylist()) == [1, 2]
        assert len(files_below(root)) == 3, "two data files, and the one that names the catalog"


def test_lost_data_at_a_root_is_named(lake: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_lake(lake) as catalog:
        catalog.create_namespace("a", data_root=root.as_uri())
        catalog.create_table("a.t", rows(1))
        (path,) = [path for path in files_below(root) if path.endswith(".parquet")]
        (root / path).unlink()
        with pytest.raises(AlpheusError, match=path):
            catalog.read("a.t")
        report = catalog.admin.check()
        assert [finding.path for finding in report.findings] == [path]


def test_a_root_that_is_not_there_or_cannot_be_written_is_refused(lake: str, tmp_path: Path) -> None:
    with open_lake(lake) as catalog:
        before = catalog.version()
        with pytest.raises(AlpheusError, match="missing"):
            catalog.create_namespace("a", data_root=f"file://{tmp_path}/missing")
        inside = catalog.storage().uri("data").removesuffix("/data")
        for url in (inside, f"{inside}/data", "s3://bucket/x", "relative", "file:///"):
            with pytest.raises(InvalidInput) as caught:
                catalog.create_namespace("a", data_root=url)
            assert caught.value.kind == "bad_data_root"
        assert catalog.version() == before
        assert not catalog.namespace_exists("a")
        assert not (tmp_path / "missing").exists()


def test_a_root_at_another_catalog_is_refused(lake: str, tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/other") as other, open_lake(lake) as catalog:
        other.create_namespace("x")
        with pytest.raises(InvalidInput, match="at or inside a catalog") as caught:
            catalog.create_namespace("a", data_root=f"file://{tmp_path}/other")
        assert caught.value.kind == "bad_data_root"
        assert not catalog.namespace_exists("a")


def test_a_root_belongs_to_one_catalog(lake: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with alpheus.create(f"file://{tmp_path}/other") as other, open_lake(lake) as catalog:
        other.create_namespace("x", data_root=root.as_uri())
        id = other.info().catalog_id
        assert (root / "data" / "catalog").read_text() == f"{id}\n"
        with pytest.raises(InvalidInput, match=f"belongs to the catalog {id}") as caught:
            catalog.create_namespace("a", data_root=root.as_uri())
        assert caught.value.kind == "bad_data_root"
        assert not catalog.namespace_exists("a")
        other.drop_namespace("x")
        other.create_namespace("y", data_root=root.as_uri())


async def test_a_writer_that_puts_files_elsewhere_is_refused(tmp_path: Path) -> None:
    """An older program knows no data roots: it writes into the catalog's place, and announces no root."""
    root = tmp_path / "root"
    root.mkdir()
    catalog = await aio.create(f"file://{tmp_path}/lake")
    await catalog.create_namespace("a", data_root=root.as_uri())
    await catalog.create_table("a.t", rows(1))
    table = (await catalog.load_table("a.t")).definition
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(tmp_path / "lake")))
    for wrong in ("", "file:///elsewhere"):
        operation = AppendFiles(
            namespace="a", name="t", table_id=table.id, segments=table.segments, data_root=wrong
        )
        transaction = Transaction(
            id=RandomIdentities().uuid7(), begin_version=journal.head.version, operations=(operation,)
        )
        with pytest.raises(InvalidInput) as caught:
            await journal.commit(transaction)
        assert caught.value.kind == "bad_data"
    await journal.close()
    await catalog.close()
