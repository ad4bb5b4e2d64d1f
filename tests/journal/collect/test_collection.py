"""Collection: it deletes exactly what a second implementation does not reach, whatever happens beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from alpheus_journal import format as fmt
from alpheus_journal.collect.collection import HOUR_MILLIS
from alpheus_journal.collect.expiry import ExpiryRules
from alpheus_journal.errors import AlreadyExists, Conflict, Expired, InvalidInput, NotEmpty, NotFound
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Collection, Expiry, Tag
from alpheus_journal.model.operations import (
    AppendFiles,
    CreateTag,
    DropTable,
    DropTag,
    Operation,
    OverwriteFiles,
    ReplaceTag,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, Model, ModelTable, model_of, put_rows, raises, random_operation
from alpheus_journal.testing.models.reachable import Reachable
from alpheus_journal.testing.simulation.history import canonical

T = fmt.table_name("a", "t")
REFUSALS = (AlreadyExists, Conflict, Expired, InvalidInput, NotEmpty, NotFound)
"""What random operations may hear. Corrupt would show a file that was deleted too early."""


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
    made = type(transaction)(
        id=transaction.id, begin_version=transaction.begin_version, operations=(operation,)
    )
    return (await journal.commit(made)).version


async def tag(lake: Lake, journal: Journal, name: str, version: int) -> None:
    pin = await journal.create_pin(version)
    fields: dict[str, Any] = {
        "version": pin.version,
        "commit_id": pin.commit_id,
        "version_created_at_millis": pin.version_created_at_millis,
        "pin_path": pin.path,
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


async def test_what_nothing_reaches_goes_and_the_rest_stays() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    first = await commit_rows(lake, journal)
    await tag(lake, journal, "kept", first)
    rows = await commit_rows(lake, journal, kind=OverwriteFiles)
    before = canonical(await model_of(journal, first))
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    last = (await lake.commit(journal, lake.namespace("b"))).version
    orphan = f"node/{lake.identities.uuid4()}.arrow"
    await lake.storage.put(orphan, b"left by a writer that was killed")
    expiry = await expire(journal)
    assert (expiry.first, expiry.oldest, expiry.expired) == (0, last, last)
    assert (await collect(journal)).unreferenced == {}  # everything is young
    lake.clock.millis += 2 * HOUR_MILLIS
    plan = await collect(journal, dry_run=True)
    assert plan.fence_version is None
    assert plan.unreferenced["data"].files == 1  # of the overwrite
    assert plan.kept_by["tag kept"].files >= 4
    done = await collect(journal)
    assert done.deleted == done.unreferenced == plan.unreferenced
    assert await files_of(lake) == await reachable(lake, journal)
    assert canonical(await model_of(journal, Tag("kept"))) == before
    assert not await lake.storage.exists(orphan)
    assert (await raises(Expired, model_of(journal, rows))).oldest == last
    await check(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    await collect(journal)
    again = await collect(journal)
    assert (again.unreferenced, again.fence_version) == ({}, None)  # nothing to do makes no version
    reopened = await lake.open()
    assert canonical(await model_of(reopened, Tag("kept"))) == before
    await reopened.close()
    await journal.close()


async def test_random_histories_lose_nothing_live_and_keep_nothing_else(
    lane_count: Callable[[int, int], int],
) -> None:
    counts: dict[str, int] = {"expired": 0, "collected": 0, "tags": 0}
    for seed in range(lane_count(12, 2000)):
        rng = random.Random(seed)
        lake = make_lake(seed)
        journal = await lake.create(order=rng.choice((3, 4, 16)), version_digits=rng.choice((32, 64)))
        past: dict[int, Model] = {0: await model_of(journal, 0)}
        tags: dict[str, int] = {}
        oldest = 0
        for _ in range(40):
            model = past[journal.head.version]
            lake.clock.millis += rng.choice((0, 1, HOUR_MILLIS))
            match rng.choices(range(5), weights=(10, 6, 2, 2, 2))[0]:
                case 0:
                    try:
                        usable = {v: m for v, m in past.items() if v >= oldest}
                        await lake.commit(journal, random_operation(rng, model, lake.identities, usable))
                    except REFUSALS:
                        pass
                case 1:
                    natives = [
                        key
                        for key, value in model.items()
                        if isinstance(value, ModelTable) and not value.location
                    ]
                    if natives:
                        _, _, full = rng.choice(natives).partition(" ")
                        namespace, _, name = full.partition(".")
                        try:
                            kind = rng.choice((AppendFiles, OverwriteFiles))
                            await commit_rows(lake, journal, fmt.table_name(namespace, name), kind=kind)
                        except REFUSALS:
                            pass
                case 2:
                    name = rng.choice("gh")
                    if name in tags and rng.random() < 0.5:
                        await lake.commit(journal, DropTag(name=name))
                        del tags[name]
                    else:
                        version = rng.randrange(oldest, journal.head.version + 1)
                        await tag(lake, journal, name, version)
                        tags[name] = version
                        counts["tags"] += 1
                case 3:
                    expiry = await expire(
                        journal, keep=rng.choice((1, 2, 5)), older_than_millis=rng.choice((0, HOUR_MILLIS))
                    )
                    oldest = expiry.oldest
                    counts["expired"] += expiry.expired
                case 4:
                    done = await collect(journal, age=rng.choice((0, 1, 3)) * HOUR_MILLIS)
                    counts["collected"] += done.deleted_count
            if journal.head.version not in past:
                past[journal.head.version] = await model_of(journal, journal.head.version)
        lake.clock.millis += 3 * HOUR_MILLIS
        await collect(journal)
        journal = await lake.open()
        assert await files_of(lake) == await reachable(lake, journal), f"seed {seed}"
        for version in range(oldest, journal.head.version + 1):
            expected = past.get(version)
            found = canonical(await model_of(journal, version))
            assert expected is None or found == canonical(expected), f"seed {seed}, version {version}"
        for name, version in tags.items():
            found = canonical(await model_of(journal, Tag(name)))
            assert found == canonical(past[version]), f"seed {seed}, tag {name}"
        await check(journal)
        await journal.close()
    assert min(counts.values()) > 10, counts
