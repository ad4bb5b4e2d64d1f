"""Collection where the places of data files are not what they seem: links, other catalogs, places that are gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from upkeep_lake import collect, expire, files_of

from alpheus_journal.collect import collection, expiry
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.errors import AlpheusError
from alpheus_journal.journal import Journal
from alpheus_journal.log import leases
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    OverwriteFiles,
    Transaction,
)
from alpheus_journal.rooted_storage import OWNER_FILE, read_owner
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake, put_rows

LATER_MILLIS = 10_000


@pytest.fixture(autouse=True)
def all_files_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the store's clock ahead of its files."""

    async def read_later(*given: object) -> int:
        return await read_store_time(*given) + LATER_MILLIS  # type: ignore[arg-type]

    monkeypatch.setattr(collection, "read_store_time", read_later)
    monkeypatch.setattr(expiry, "read_store_time", read_later)
    monkeypatch.setattr(leases, "ID_AHEAD_MILLIS_MAX", 0)


async def make_lake_at(prefix: Path) -> tuple[Lake, Journal]:
    storage = await asyncio.to_thread(LocalStorage, str(prefix), create=True)
    lake = Lake(storage)
    journal = await Journal.create(storage)
    lake.clock, lake.identities = journal._clock, journal._identities  # type: ignore[assignment]
    return lake, journal


async def make_table_at(lake: Lake, journal: Journal, name: str, root: str) -> CreateTable:
    """Create a namespace with a data root, and a table in it."""
    id = lake.identities.uuid4()
    table = lake.table(name, "t")
    await lake.commit(journal, CreateNamespace(name=name, namespace_id=id, data_root=root), table)
    return table


async def write_rows_at(
    lake: Lake,
    journal: Journal,
    table: CreateTable,
    root: str,
    kind: type[AppendFiles | OverwriteFiles] = AppendFiles,
) -> str:
    """Commit rows of a table whose data files lie at `root`, and return the path of their file."""
    transaction = lake.transaction(journal)
    store = journal.follower.data_roots.of(root)
    segment = await put_rows(store, lake.identities, table_id=table.table_id, transaction_id=transaction.id)
    operation = kind(
        namespace=table.namespace,
        name=table.name,
        table_id=table.table_id,
        segments=(segment,),
        data_root=root,
    )
    await journal.commit(
        Transaction(id=transaction.id, begin_version=transaction.begin_version, operations=(operation,))
    )
    (path,) = [info.path async for info in store.list(f"data/{table.table_id}/{transaction.id}/")]
    return path


async def data_files(store: Storage) -> set[str]:
    return {info.path async for info in store.list("data/") if info.path.endswith(".parquet")}


@pytest.mark.parametrize(
    "one_place", ["the root is a link to the prefix", "the prefix is a link", "two roots"]
)
async def test_a_place_with_two_names_loses_nothing_that_is_reached(tmp_path: Path, one_place: str) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    prefix, roots = {
        "the root is a link to the prefix": (real, {"a": "", "b": link.as_uri()}),
        "the prefix is a link": (link, {"a": "", "b": real.as_uri()}),
        "two roots": (tmp_path / "lake", {"a": real.as_uri(), "b": link.as_uri()}),
    }[one_place]
    lake, journal = await make_lake_at(prefix)
    live = set()
    for name, root in roots.items():
        table = await make_table_at(lake, journal, name, root)
        await write_rows_at(lake, journal, table, root)
        live.add(await write_rows_at(lake, journal, table, root, OverwriteFiles))
    await lake.commit(journal, lake.namespace("c"))
    await expire(journal)
    place = journal.follower.data_roots.of(roots["b"])
    assert len(await data_files(place)) == 4
    assert (await collect(journal, age=0)).deleted["data"].files == 2
    assert await data_files(place) == live
    await journal.close()


async def test_a_root_that_is_gone_stops_a_collection_only_while_tables_are_there(tmp_path: Path) -> None:
    lake, journal = await make_lake_at(tmp_path / "lake")
    roots = [tmp_path / "gone", tmp_path / "there"]
    for root in roots:
        root.mkdir()
        table = await make_table_at(lake, journal, root.name, root.as_uri())
        await write_rows_at(lake, journal, table, root.as_uri())
        await write_rows_at(lake, journal, table, root.as_uri(), OverwriteFiles)
    await lake.commit(journal, lake.namespace("c"))
    await expire(journal)
    shutil.rmtree(roots[0])
    before = await files_of(lake)
    with pytest.raises(AlpheusError, match=f"the data root {roots[0].as_uri()}, where tables have their"):
        await collect(journal, age=0)
    assert await files_of(lake) == before
    await journal.detach()

    journal = await Journal.open(lake.storage)  # another process has not seen the place at all
    with pytest.raises(AlpheusError, match=f"the data root {roots[0].as_uri()}, where tables have their"):
        await collect(journal, age=0, dry_run=True)
    await lake.commit(journal, DropNamespace(name="gone", cascade=True))
    await lake.commit(journal, lake.namespace("d"))
    await expire(journal)
    done = await collect(journal, age=0)
    assert done.deleted["data"].files == 1
    assert done.kept_by[f"data root {roots[0].as_uri()}, which cannot be listed"].files == 0
    assert len(await data_files(journal.follower.data_roots.of(roots[1].as_uri()))) == 1
    await journal.close()


async def test_a_root_belongs_to_the_catalog_that_was_there_first(tmp_path: Path) -> None:
    """Two catalogs with one root have a table with one id, as when a job gives one transaction id in both."""
    (tmp_path / "root").mkdir()
    root = (tmp_path / "root").as_uri()
    first, second = [await make_lake_at(tmp_path / name) for name in ("first", "second")]
    table = await make_table_at(*first, "a", root)
    id = second[0].identities.uuid4()
    await second[0].commit(second[1], CreateNamespace(name="a", namespace_id=id, data_root=root), table)
    for lake, journal in (first, second):
        await write_rows_at(lake, journal, table, root)
        await write_rows_at(lake, journal, table, root, OverwriteFiles)
        await lake.commit(journal, lake.namespace("c"))
        await expire(journal)
    store = first[1].follower.data_roots.of(root)
    assert (await collect(second[1], age=0, dry_run=True)).kept_by.keys() == {"versions"}
    assert not await store.exists(OWNER_FILE), "a dry run claims nothing"
    await store.put(OWNER_FILE, f"{first[1].catalog_id}\n".encode())
    before = await data_files(store)
    done = await collect(second[1], age=0)
    assert "data" not in done.deleted
    assert f"data root {root}, which belongs to the catalog {first[1].catalog_id}" in done.kept_by
    assert await data_files(store) == before
    for _, journal in (first, second):
        await journal.close()


async def test_a_collection_claims_a_root_without_an_owner(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = (tmp_path / "root").as_uri()
    lake, journal = await make_lake_at(tmp_path / "lake")
    await write_rows_at(lake, journal, await make_table_at(lake, journal, "a", root), root)
    for _ in range(2):
        await collect(journal, age=0)
        assert await read_owner(journal.follower.data_roots.of(root)) == journal.catalog_id
    await journal.close()


async def test_a_prefix_that_another_catalog_has_claimed_as_its_root_loses_no_data(tmp_path: Path) -> None:
    """A program that cannot reach the storage looks at no place before it creates a namespace."""
    inner, outer = [await make_lake_at(tmp_path / name) for name in ("inner", "outer")]
    root = (tmp_path / "inner").as_uri()
    await write_rows_at(*outer, await make_table_at(*outer, "a", root), root)
    await collect(outer[1], age=0)
    before = await data_files(inner[0].storage)
    assert len(before) == 1
    done = await collect(inner[1], age=0)
    assert f"data root {root}, which belongs to the catalog {outer[1].catalog_id}" in done.kept_by
    assert await data_files(inner[0].storage) == before
    for _, journal in (inner, outer):
        await journal.close()
