"""The verdict on a simulated run reads expired versions in the archive, and finds what was deleted too early."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from upkeep_lake import collect, expire, make_lake

from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import CreateTable, DropTable
from alpheus_journal.testing.models.catalog import model_of
from alpheus_journal.testing.models.tables import Author, Meant, Row, small_tiers
from alpheus_journal.testing.simulation.loop import Audit
from alpheus_journal.testing.simulation.requests import Requests
from alpheus_journal.testing.simulation.verdict import Evidence, Rows


class Small:
    """A catalog with one table, whose last version has a merged segment that no client read."""

    def __init__(self) -> None:
        self.lake = make_lake()
        self.memory = self.lake.storage
        self.audit = self.lake.storage = Audit(self.memory)
        rates = {"names_fresh_rate": 0.0, "rows_rate": 0.0, "reads_rate": 0.0, "key_rate": 0.0}
        self.requests = Requests(random.Random(1), self.lake.identities, self.audit, **rates)

    async def make(self) -> None:
        self.journal = await self.lake.create()
        operations = self.requests.lake()
        await self.lake.commit(self.journal, *operations)
        create = operations[1]
        assert isinstance(create, CreateTable)
        self.name = ObjectName(Kind.TABLE, create.namespace, create.name)
        with small_tiers():
            for number in range(3):
                await self._append(number)

    async def _append(self, number: int) -> None:
        seen = Counter(self._rows())
        id = self.lake.identities.uuid7()
        author = Author(
            self.requests.contents, self.journal, self.name, id=id, begin=self.journal.head.version
        )
        await author.look()
        await author.append([number])
        self.requests.meant[id] = Meant(
            table_id=author.table_id,
            labels=("append",),
            seen=seen,
            wanted=Counter(self._rows()),
            inserted=frozenset(),
            looked_for=(),
            compacted_at={},
        )
        await self.journal.commit(author.transaction())

    def _rows(self) -> list[Row]:
        return [row for rows in self.requests.contents.rows.values() for row in rows]

    async def merged_segment(self) -> str:
        (stored,) = (await self.journal.load(None, [self.name])).objects
        assert stored is not None
        table = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(table, TableDef)
        (segment,) = table.segments
        assert segment.file_count == 3
        return segment.path

    async def archive(self) -> Journal:
        return await self.lake.open(await self.audit.archive())

    async def judge_rows(self) -> None:
        """Execute the log on the model of rows, as the verdict does."""
        archive = await self.archive()
        rows = Rows(self.requests)
        before = await model_of(archive, 0)
        for version in range(1, archive.head.version + 1):
            after = await model_of(archive, version)
            event = await archive.event(version)
            for recorded in event.transactions:
                for place, action in enumerate(recorded.actions):
                    if action.operation is not None:
                        rows.execute(recorded.id, place, action.operation, before, after)
            rows.keep(version, after)
            await rows.compare(event, archive.storage)
            before = after

    def evidence(self) -> Evidence:
        return Evidence(
            asked={},
            reads=(),
            requests=self.requests,
            audit=self.audit,
            clock=self.lake.clock,
            identities=self.lake.identities,
        )


async def test_rows_of_an_expired_version_are_read_in_the_archive() -> None:
    small = Small()
    await small.make()
    segment = await small.merged_segment()
    await small.lake.commit(small.journal, DropTable(namespace=small.name.namespace, name=small.name.name))
    await small.lake.commit(small.journal, small.lake.namespace("after"))
    await expire(small.journal)
    small.lake.clock.millis += 1000
    await collect(small.journal, age=0)
    assert await small.memory.stat(segment) is None
    await small.judge_rows()
    await small.evidence()._judge_deletions(await small.archive())


@pytest.mark.parametrize("expires", [False, True])
async def test_a_deletion_before_the_expiry_is_found_even_after_it(expires: bool) -> None:
    small = Small()
    await small.make()
    segment = await small.merged_segment()
    await small.audit.delete(segment)
    await small.lake.commit(small.journal, DropTable(namespace=small.name.namespace, name=small.name.name))
    await small.lake.commit(small.journal, small.lake.namespace("after"))
    if expires:
        await expire(small.journal)
    with pytest.raises(AssertionError, match=f"deleted before it expired: {{'{segment}'}}"):
        await small.evidence()._judge_deletions(await small.archive())
