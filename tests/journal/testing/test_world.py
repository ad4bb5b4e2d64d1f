"""The clients of a simulated world know which errors come from expiry and collection."""

from __future__ import annotations

import pyarrow as pa
import pytest

from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import CreateNamespace, CreateTable, DropTable, Operation, Transaction
from alpheus_journal.testing.models.catalog import model_of
from alpheus_journal.testing.models.tables import Author
from alpheus_journal.testing.simulation.clients import Node
from alpheus_journal.testing.simulation.world import Parts, Plan, World


async def commit(world: World, journal: Journal, *operations: Operation) -> None:
    id = world.identities.uuid7()
    await journal.commit(Transaction(id=id, begin_version=journal.head.version, operations=operations))


async def request_of_a_process_behind(world: World, *, expires: bool) -> Transaction:
    """Let a process change rows at a version whose segment another process has deleted."""
    options = {"clock": world.clock, "identities": world.identities}
    journal = await Journal.create(world.audit, **options)
    operations = world.requests.lake()
    create = operations[1]
    assert isinstance(create, CreateTable)
    await commit(world, journal, *operations)
    name = ObjectName(Kind.TABLE, create.namespace, create.name)
    author = Author(
        world.requests.contents, journal, name, id=world.identities.uuid7(), begin=journal.head.version
    )
    await author.look()
    await author.append([1])
    await journal.commit(author.transaction())

    behind = await Journal.open(world.audit, **options)
    begin = behind.head.version
    model = await model_of(behind, begin)
    if expires:
        await commit(world, journal, DropTable(namespace=create.namespace, name=create.name))
        await commit(world, journal, CreateNamespace(name="after", namespace_id=world.identities.uuid4()))
        async for _ in journal.expire(ExpiryRules(older_than_millis=0, keep_versions=1)):
            pass
        world.clock.offset_millis += 1000
        async for _ in journal.collect(minimum_age_millis=0):
            pass
    else:
        async for info in world.memory.list("manifest/"):
            await world.memory.delete(info.path)
    assert not [info async for info in world.memory.list("manifest/")]
    return await world._request(Node("behind", 0, world.clock), behind, model, begin, {})


@pytest.mark.parametrize("expires", [True, False])
def test_only_files_of_expired_versions_may_be_missing(expires: bool) -> None:
    pa.array([""], pa.utf8())  # as in `simulate`
    world = World(0, Plan(changes_rate=1.0, changes="a"), Parts())
    request = request_of_a_process_behind(world, expires=expires)
    if expires:
        assert world.loop.run(request).operations
    else:
        with pytest.raises(AssertionError, match="is kept"):
            world.loop.run(request)
