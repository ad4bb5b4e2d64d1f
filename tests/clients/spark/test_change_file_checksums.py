"""Tasks of a feed compare change files with their checksums. Runs tasks as Spark would, without a Spark session."""

from __future__ import annotations

import pyarrow as pa
import pytest

import alpheus
from alpheus.errors import Corrupt
from alpheus.feed.change_sets import ChangeReader
from alpheus.feed.log import follow
from alpheus.feed.table_range import range_of
from alpheus.feed.table_stream import Slice
from alpheus.rows.manifest_files import FileLists
from alpheus.spark.streams.layout import Layout, feed_schema, parts_of, read_part
from alpheus.sync.portal import run


def changed(catalog: alpheus.Catalog, after: int) -> list[tuple[str, int]]:
    """Return (change type, id) of each change, as the tasks of a batch give them."""
    asked = range_of(catalog, "s.t", after, None)
    reader = ChangeReader(catalog.storage(), FileLists(catalog.storage(), run), asked.table.id, dict)
    steps = follow(catalog, asked.start_trail(), asked.after, asked.until)
    sets = [one for _, changes in steps for change in changes for one in reader.read(change)]
    layout = Layout(asked.table, "changes", feed_schema(asked.table, "changes"))
    return [
        (row["_change_type"], row["id"])
        for part in parts_of([Slice(one, 0, len(one.files)) for one in sets])
        for batch in read_part(part, catalog.storage().url, asked.table.definition, layout)
        for row in batch.to_pylist()
    ]


def data_paths(catalog: alpheus.Catalog) -> set[str]:
    storage = catalog.storage()

    async def paths() -> set[str]:
        return {info.path async for info in storage.list("data/")}

    return run(paths())


def test_a_change_file_that_is_not_the_committed_one_is_an_error() -> None:
    """A task has no statistics of its files, and has their checksums."""
    with alpheus.create("memory://change-file-checksums") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.schema([("id", pa.int64())]))
        catalog.append("s.t", [{"id": n} for n in (1, 2, 3)])
        head, before = catalog.version(), data_paths(catalog)
        catalog.update("s.t", {"id": 20}, "id = 2", mode="rewrite")
        assert changed(catalog, head) == [("update_preimage", 2), ("update_postimage", 20)]
        storage, table = catalog.storage(), catalog.load_table("s.t").definition
        listed = {file.path for file in FileLists(storage, run).of(table.id, table.segments)}
        (path,) = data_paths(catalog) - before - listed
        data = bytearray(run(storage.read(path, size_max=1 << 20)))
        data[len(data) // 2] ^= 1
        run(storage.delete(path))
        run(storage.put(path, bytes(data)))
        with pytest.raises(Corrupt, match="has bytes with the CRC-32") as caught:
            changed(catalog, head)
        assert caught.value.path == path
