"""Collection where the places of data files are not what they seem: links, other catalogs, places that are gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from upkeep_lake import collect, expire, files_of

from alpheus_journal.collect import collection, expiry
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.commit import references
from alpheus_journal.errors import AlpheusError
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    OverwriteFiles,
    Transaction,
)
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
    monkeypatch.setattr(references, "ID_AHEAD_MILLIS_MAX", 0)


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
