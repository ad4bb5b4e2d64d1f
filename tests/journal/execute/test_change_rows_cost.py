"""The cost of changing rows does not grow with the table."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import msgspec

from alpheus_journal.execute import execute as operations
from alpheus_journal.execute.rules.rows import write_files
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateTable,
    Transaction,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables import manifest_merge as segments_module
from alpheus_journal.testing import listed
from alpheus_journal.testing.models.tables import (
    ID,
    NAME,
    TAG,
    Lakeside,
    Row,
    below,
    equals,
    ids_of,
    make_lakeside,
)
from alpheus_journal.workspace.context import Executed


class CountingStorage(MemoryStorage):
    """Count requests and bytes written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.reads: list[str] = []

    async def put(self, path: str, data: bytes) -> None:
        self.written += len(data)
        await super().put(path, data)

    async def create(self, path: str, data: bytes) -> None:
        self.written += len(data)
        await super().create(path, data)

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        self.written += sum(map(len, files.values())) + len(root)
        await super().publish(files, slot, root)

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.reads.append(path)
        return await super().read(path, size_max=size_max)


async def test_the_cost_of_an_append_stays_flat(lane_count: Callable[[int, int], int]) -> None:
    storage = CountingStorage()
    side = await Lakeside.make(storage)
    costs: list[int] = []
    sizes: list[int] = []
    reads: list[int] = []
    count = lane_count(200, 1_500)
    for number in range(count):
        id = side.lake.identities.uuid7()
        segment = await side.segment([await side.file(id, [Row(number, f"{number}.0")])])
        append = AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(segment,))
        storage.written, storage.reads = 0, []
        await side.journal.commit(
            Transaction(id=id, begin_version=side.journal.head.version, operations=(append,))
        )
        costs.append(storage.written)
        reads.append(len([path for path in storage.reads if path.startswith("manifest/")]))
        sizes.append(len((await side.journal.load(None, [NAME])).objects[0].definition))  # type: ignore[union-attr]
    assert max(reads) == 1, "what a table has comes from the cache"
    assert max(sizes) < 8 << 10
    third = count // 3
    assert sum(costs[-third:]) < 1.25 * sum(costs[:third])
    table = await side.table()
    assert (table.file_count, table.row_count, table.sequence) == (count, count, count)
    assert len(table.segments) < 30
    assert [row.id for row in await side.visible(table)] == list(range(count)), (
        "in the order in which they came"
    )
    await side.sound()


async def test_segments_that_nobody_merged_are_merged_in_time() -> None:
    """Catalogs of earlier releases have such segments. The recorded sums stay true, and the backlog shrinks."""
    with mock.patch("alpheus_journal.execute.rules.rows.FANOUT", 1_000_000):
        side = await make_lakeside(*[[number] for number in range(40)])
    assert len((await side.table()).segments) == 40
    await side.sound()
    for number in range(40, 46):
        author = await side.author()
        await author.append([number])
        await side.journal.commit(author.transaction())
    assert [s.file_count for s in (await side.table()).segments] == [10] * 4 + [1] * 6
    assert await ids_of(side) == sorted(range(46), key=str)
    await side.sound()


async def test_merges_of_many_tables_execute_no_operation_twice_but_their_own() -> None:
    side = await Lakeside.make()
    creates = [
        CreateTable(namespace="a", name=f"t{i}", table_id=side.lake.identities.uuid4(), columns=(ID, TAG))
        for i in range(8)
    ]
    await side.lake.commit(side.journal, *creates)
    executed = 0

    def counted(*arguments: Any) -> Executed:
        nonlocal executed
        executed += 1
        return write_files(*arguments)

    for _ in range(11):
        id = side.lake.identities.uuid7()
        appends = []
        for create in creates:
            side.table_id = create.table_id
            segments = (await side.segment([await side.file(id, side.new_rows([1]))]),)
            appends.append(
                AppendFiles(namespace="a", name=create.name, table_id=create.table_id, segments=segments)
            )
        begin, executed = side.journal.head.version, 0
        rule = operations.EXECUTE_RULES[AppendFiles]._replace(run=operations.Stepwise(counted))
        with mock.patch.dict(operations.EXECUTE_RULES, {AppendFiles: rule}):
            await side.journal.commit(Transaction(id=id, begin_version=begin, operations=tuple(appends)))
        assert len(creates) <= executed <= 2 * len(creates)
    await side.sound()


async def test_committing_imports_no_pandas() -> None:
    """The import would take half a second in the event loop of the first commit."""
    side = await Lakeside.make()
    first, second = await side.author(), await side.author()
    for number in range(12):
        await first.append([number])
    await side.journal.commit(first.transaction())
    second = await side.author()
    await second.append([20])
    await second.update(equals(3), lambda id: 4, on_read=True)
    await second.delete(equals(20), on_read=False)
    await second.compact(lambda one: True)
    transaction = second.transaction()
    script = """
import asyncio, pickle, sys
from alpheus_journal.testing import Lake
from alpheus_journal.storage.memory import MemoryStorage

async def main():
    files, transaction = pickle.loads(sys.stdin.buffer.read())
    storage = MemoryStorage()
    await storage.put_many(files)
    await (await Lake(storage, seed=9).open()).commit(transaction)
    print([name for name in sys.modules if name == "pandas"])

asyncio.run(main())
"""
    paths = await listed(side.lake.storage, "")
    files = {path: await side.lake.storage.read(path, size_max=1 << 24) for path in paths}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        input=pickle.dumps((files, transaction)),
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode().strip() == "[]", done.stderr.decode()


async def test_very_many_files(lane_count: Callable[[int, int], int]) -> None:
    count = lane_count(2_000, 10_000)
    side = await Lakeside.make()
    author = await side.author()
    files = [await side.file(author.id, [Row(number, f"{number}.0")]) for number in range(count)]
    segment = await side.segment(files)
    await author.run(
        AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(segment,)), "append"
    )
    await side.journal.commit(author.transaction())
    author = await side.author()
    await author.delete(equals(count // 2), on_read=False)
    await author.delete(below(10), on_read=True)
    await side.journal.commit(author.transaction())
    author = await side.author()
    await author.compact(lambda one: one.sequence == 1)
    await side.journal.commit(author.transaction())
    table = await side.table()
    assert (table.file_count, table.row_count) == (1, count - 11)
    assert table.delete_predicates == ()


def test_the_definition_of_a_hundred_thousand_files_is_small() -> None:
    """After 100,000 single appends a table has at most nine segments of each tier, and the large segments."""
    counts: Counter[int] = Counter()
    segments: list[int] = []
    for _ in range(100_000):
        segments.append(1)
        counts[0] += 1
        for tier in range(len(segments_module.TIERS)):
            if counts[tier] < 10:
                break
            gone = [
                size for size in segments if segments_module.bisect_right(segments_module.TIERS, size) == tier
            ][:10]
            for size in gone:
                segments.remove(size)
            segments.append(sum(gone))
            counts[tier] -= 10
            counts[tier + 1] += 1
    assert len(segments) <= 9 * len(segments_module.TIERS) + 10
    table = TableDef(
        id="85d62cf3-4f4e-4a5e-9f43-3a3a9ba6a4a1",
        columns=(ID, TAG),
        next_column_id=3,
        sequence=100_000,
        segments=tuple(
            Segment(
                path=f"manifest/85d62cf3-4f4e-4a5e-9f43-3a3a9ba6a4a1/85d62cf3-4f4e-4a5e-9f43-{number:012x}.arrow",
                file_count=size,
                row_count=size << 20,
                size_bytes=size << 27,
                sha256=bytes([255]) * 32,
                segment_size_bytes=size << 10,
                sequence=100_000,
                min_sequence=90_000,
            )
            for number, size in enumerate(segments)
        ),
    )
    assert len(encode_definition(table)) < 4 << 10


async def test_the_cost_of_an_append_to_a_large_table_stays_flat(
    lane_count: Callable[[int, int], int],
) -> None:
    """The table is filled a thousand files at a time, so that the test measures only costs that grow with the files."""
    storage = CountingStorage()
    side = await Lakeside.make(storage)

    async def append(count: int) -> int:
        id = side.lake.identities.uuid7()
        one = await side.file(id, [Row(1, "1.0")])
        folder, data = one.path.rpartition("/")[0], await storage.read(one.path, size_max=1 << 20)
        files = [one]
        for number in range(1, count):
            files.append(msgspec.structs.replace(one, path=f"{folder}/{uuid.UUID(int=number)}.parquet"))
            await storage.put(files[-1].path, data)
        segment = await side.segment(files)
        append = AppendFiles(namespace="a", name="t", table_id=side.table_id, segments=(segment,))
        storage.written = 0
        await side.journal.commit(
            Transaction(id=id, begin_version=side.journal.head.version, operations=(append,))
        )
        return storage.written

    async def of_small_ones() -> int:
        return sum([await append(1) for _ in range(20)])

    bulk = [await append(1_000)]
    small = await of_small_ones()
    target = lane_count(12_000, 100_000)
    bulk += [await append(1_000) for _ in range(target // 1_000 - 1)]
    assert await of_small_ones() < 1.25 * small
    table = await side.table()
    assert table.file_count == target + 40
    assert len(table.segments) <= target // 10_000 + 20
    # The rare merge is bounded, and it writes each entry once more.
    entry = max(s.segment_size_bytes / s.file_count for s in table.segments if s.file_count >= 1_000)
    assert max(bulk) < segments_module.LAST_TIER_SIZE_BYTES_MAX
    assert sum(bulk) < target * entry + 20_000 * len(bulk)


def test_the_last_tier_makes_no_segment_that_is_dear_to_change() -> None:
    def listed(count: int, size_bytes: int) -> list[Segment]:
        return [
            Segment(
                path=f"manifest/a/{number}.arrow",
                file_count=count,
                row_count=count,
                size_bytes=count,
                sha256=bytes(32),
                segment_size_bytes=size_bytes,
                sequence=number,
                min_sequence=0,
            )
            for number in range(12)
        ]

    most = segments_module.LAST_TIER_SIZE_BYTES_MAX // 10
    for count, size_bytes, merged in (
        (1_000, most, 10),
        (9_999, most, 10),
        (1_000, most + 1, 0),
        (10_000, 1, 0),
        (999, most + 1, 10),
        (999, segments_module.MERGED_SIZE_BYTES_MAX // 10 + 1, 0),
    ):
        found = [
            one
            for tier in range(len(segments_module.TIERS))
            for one in segments_module.find_due(listed(count, size_bytes), tier)
        ]
        assert [one.sequence for one in found] == list(range(merged)), (count, size_bytes)
