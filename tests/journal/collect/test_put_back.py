"""Expiry and collection where the store is put back meanwhile, and where a pin is gone."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from upkeep_lake import check, collect, commit_rows, expire, make_lake, make_table, reachable, tag

from alpheus_journal import format as fmt
from alpheus_journal.collect.expiry import TOMBSTONES_AT_ONCE
from alpheus_journal.errors import Corrupt
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import DropTable
from alpheus_journal.testing import Lake, listed, raises
from alpheus_journal.tree.node import decode_node


async def put_back(lake: Lake, files: dict[str, bytes]) -> None:
    """Put the store back to an older state."""
    for path in await listed(lake.storage, ""):
        if path not in files:
            await lake.storage.delete(path)
    for path, data in files.items():
        await lake.storage.put(path, data)


async def all_files(lake: Lake) -> dict[str, bytes]:
    return {path: await lake.storage.read(path, size_max=1 << 30) for path in await listed(lake.storage, "")}


async def test_a_collection_stops_where_the_store_was_put_back() -> None:
    """The older state needs files that the newer one did not."""
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    before, live = await all_files(lake), await reachable(lake, journal)
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    async with aclosing(journal.collect(minimum_age_millis=HOUR_MILLIS, dry_run=False)) as steps:
        assert (await anext(steps)).unreferenced["data"].files > 0
        await put_back(lake, before)
        with pytest.raises(Corrupt) as caught:
            await anext(steps)
    assert caught.value.kind == "history_replaced"
    assert live <= set(await listed(lake.storage, ""))
    await check(await lake.open())


async def test_an_expiry_stops_where_the_store_was_put_back() -> None:
    """Its next tombstones would stand over the newest versions of the older state."""
    lake = make_lake()
    journal = await lake.create()
    for number in range(1, 2 * TOMBSTONES_AT_ONCE):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    before = await all_files(lake)
    for number in range(20):
        await lake.commit(journal, lake.namespace(f"later{number}"))
    lake.clock.millis += HOUR_MILLIS
    real, second = lake.storage.read, fmt.version_file(TOMBSTONES_AT_ONCE, 32)

    async def read(path: str, **options: Any) -> bytes:
        if path == second:
            first = await real(fmt.version_file(0, 32), **options)
            if not decode_node(first, path, root=True, size_max=1 << 20).is_tombstone:
                return await real(path, **options)
            lake.storage.read = real  # type: ignore[method-assign]
            await put_back(lake, before)
        return await real(path, **options)

    lake.storage.read = read  # type: ignore[method-assign]
    await raises(Corrupt, expire(journal), kind="history_replaced")
    again = await lake.open()
    assert again.head.version == 2 * TOMBSTONES_AT_ONCE - 1
    await check(again)


async def test_a_pin_that_is_gone_stops_a_collection_beside_an_expiry() -> None:
    """The head has the tag: what only its pin reached stays until the pin is put back, or the tag is deleted."""
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    await tag(lake, journal, "kept", journal.head.version)
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    (pin,) = await listed(lake.storage, fmt.PIN_FOLDER)
    kept = await lake.storage.read(pin, size_max=1 << 20)
    await lake.storage.delete(pin)
    for number in range(3):
        await lake.commit(journal, lake.namespace(f"later{number}"))

    real = lake.storage.read

    async def read(path: str, **options: Any) -> bytes:
        if path == pin:
            lake.storage.read = real  # type: ignore[method-assign]
            await expire(await lake.open())
        return await real(path, **options)

    lake.storage.read = read  # type: ignore[method-assign]
    await raises(Corrupt, collect(journal))
    await lake.storage.put(pin, kept)
    await collect(journal)
    assert await reachable(lake, journal) <= set(await listed(lake.storage, ""))
