"""A catalog whose versions expire and whose files are collected, for tests."""

from __future__ import annotations

from typing import Any

from alpheus_journal import format as fmt
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import At, CheckSummary, Collection, Expiry
from alpheus_journal.model.expiry_rules import HOUR_MILLIS, ExpiryRules
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateTag,
    DropTable,
    Operation,
    OverwriteFiles,
    ReplaceTag,
    Transaction,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, ModelTable, model_of, put_rows
from alpheus_journal.testing.models.reachable import Reachable

T = fmt.table_name("a", "t")


def make_lake(seed: int = 0) -> Lake:
    """Make a lake whose store has the lake's clock."""
    lake = Lake(seed=seed)
    lake.storage = MemoryStorage(clock=lake.clock.now_millis)
    return lake


async def expire(journal: Journal, *, keep: int = 1, **rules: int) -> Expiry:
    rules.setdefault("older_than_millis", 0)
    return [step async for step in journal.expire(ExpiryRules(keep_versions=keep, **rules))][-1]


async def collect(journal: Journal, *, age: int = HOUR_MILLIS, dry_run: bool = False) -> Collection:
    return [step async for step in journal.collect(minimum_age_millis=age, dry_run=dry_run)][-1]


async def keep_up(journal: Journal) -> None:
    await expire(journal)
    await collect(journal)


async def files_of(lake: Lake) -> set[str]:
    """Return all files except slots, hints, and what only helps to start."""
    paths = {info.path async for info in lake.storage.list("")}
    return {path for path in paths if not path.startswith(("vn/", "checkpoint/"))}


async def reachable(lake: Lake, journal: Journal, **options: bool) -> set[str]:
    return await Reachable(lake.storage, journal.keys).find(**options)


async def append(lake: Lake, journal: Journal, name: fmt.ObjectName, **fields: Any) -> Operation:
    """Store rows, and return the operation that appends them. Its transaction is `fields['id']`."""
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    model = await model_of(journal, journal.head.version)
    table = model[str(name)]
    assert isinstance(table, ModelTable)
    segment = await put_rows(
        lake.storage, lake.identities, table_id=table.id, transaction_id=fields["id"], row_count=3
    )
    kind = fields.get("kind", AppendFiles)
    return kind(namespace=name.namespace, name=name.name, table_id=table.id, segments=(segment,))


async def commit_rows(lake: Lake, journal: Journal, name: fmt.ObjectName = T, **fields: Any) -> int:
    transaction = lake.transaction(journal)
    operation = await append(lake, journal, name, id=transaction.id, **fields)
    made = Transaction(id=transaction.id, begin_version=transaction.begin_version, operations=(operation,))
    return (await journal.commit(made)).version


async def tag(lake: Lake, journal: Journal, name: str, version: At, **chosen: Any) -> None:
    """Create or replace a tag. `chosen` are the arguments of `create_pin`."""
    pin = await journal.create_pin(version, **chosen)
    fields: dict[str, Any] = {
        **pin.tag_fields,
    }
    there = (await journal.load(None, [fmt.tag_name(name)])).objects[0] is not None
    operation = (
        ReplaceTag(name=name, **fields)
        if there
        else CreateTag(name=name, tag_id=lake.identities.uuid4(), **fields)
    )
    await lake.commit(journal, operation)


async def make_table(lake: Lake, **options: object) -> Journal:
    journal = await lake.create(**options)
    await lake.commit(journal, lake.namespace("a"))
    await lake.commit(journal, lake.table("a", "t"))
    return journal


async def check(journal: Journal) -> None:
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert findings == []


async def collectable(lake: Lake) -> Journal:
    """Make a catalog with something to expire and to collect: a table that was overwritten and dropped."""
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    return journal
