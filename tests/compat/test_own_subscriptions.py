"""Frozen catalogs with durable subscriptions, whose operations came within revision 1 after its first catalogs.

    python tests/compat/test_own_subscriptions.py tests/compat

The command writes the catalogs that do not exist yet. Software of revision 1 that does not know subscriptions takes
these operations for changes of objects whose kind it cannot read.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from frozen import files_of, freeze, thaw

from alpheus_journal.format import Kind, position_path, subscription_name
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Position
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.operations import ClaimSubscription, CreateSubscription, DropSubscription
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake
from alpheus_journal.wire.positions import newest, position_paths, reset

DIGITS = (32, 64)


async def write(digits: int) -> Lake:
    lake = Lake(seed=digits)
    lake.clock.millis = 1_790_000_000_000
    journal = await lake.create(order=4, version_digits=digits, name_size_max=24)
    await lake.commit(journal, lake.namespace("sales"), lake.table("sales", "orders"))
    made = CreateSubscription(
        name="größe",
        subscription_id=lake.identities.uuid4(),
        lease_millis=30_000,
        namespaces=("sales",),
        names=("sales.orders",),
        name_patterns=("sales.*",),
        kinds=(Kind.TABLE, Kind.SUBSCRIPTION),
        actions=("TABLE_DROP", "TABLE_INSERT"),
        details=True,
        next_version=1,
        token=(await journal.resolve(0)).token,
    )
    plain = CreateSubscription(name="mail", subscription_id=lake.identities.uuid4(), lease_millis=1000)
    await lake.commit(journal, made, plain)
    before = ""
    for epoch in (1, 2):
        path = position_path(lake.identities.uuid4())
        operation = ClaimSubscription(
            name="größe",
            subscription_id=made.subscription_id,
            expected_epoch=epoch - 1,
            expected_position_path=before,
            next_version=epoch,
            holder=f"ana {epoch}",
            position_path=path,
            previous_position_path=before,
        )
        await lake.commit(journal, operation)
        position = Position(
            subscription_id=made.subscription_id,
            epoch=epoch,
            beat=2,
            next_version=epoch + 1,
            token=(await journal.resolve(epoch)).token,
        )
        await journal.acknowledge("größe", path, position)
        before = path
    (stored,) = (await journal.load(None, [subscription_name("mail")])).objects
    assert stored is not None
    found = cast(SubscriptionDef, decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path))
    await lake.commit(journal, reset("mail", found, 3, (await journal.resolve(2)).token))
    await lake.commit(journal, DropSubscription(name="mail"))
    await journal.close()
    return lake


async def described(journal: Journal) -> dict[str, Any]:
    """Return every subscription of every version, the next consumer's start at the head, and the recorded actions."""
    versions: dict[str, Any] = {}
    for version in range(journal.head.version + 1):
        names = (await journal.list(version, Kind.SUBSCRIPTION)).names
        loaded = await journal.load(version, [subscription_name(name) for name in names])
        found = {}
        for name, stored in zip(names, loaded.objects, strict=True):
            assert stored is not None
            found[name] = msgspec.to_builtins(
                decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
            )
            found[name]["unknown"] = ""
        transactions = (await journal.event(version)).transactions
        versions[str(version)] = {
            "subscriptions": found,
            "actions": [[action.type, str(action.name)] for t in transactions for action in t.actions],
        }
    goes_on = {}
    for name in (await journal.list(None, Kind.SUBSCRIPTION)).names:
        (stored,) = (await journal.load(None, [subscription_name(name)])).objects
        assert stored is not None
        definition = cast(
            SubscriptionDef, decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
        )
        positions = [await journal.position(path) for path in position_paths(definition)]
        goes_on[name] = list(newest(definition, positions))
    return {"versions": versions, "goes_on": goes_on}


@pytest.mark.parametrize("digits", DIGITS)
async def test_frozen_subscriptions(digits: int) -> None:
    """Frozen subscriptions are read unchanged, pass the checks, and can be claimed."""
    files, expected = thaw(f"subscriptions-r1-{digits}")
    storage = MemoryStorage()
    await storage.put_many(files)
    lake = Lake(storage, seed=7)
    lake.clock.millis = 1_800_000_000_000
    journal = await lake.open()
    assert json.loads(json.dumps(await described(journal))) == expected
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    held = expected["versions"][str(journal.head.version)]["subscriptions"]["größe"]
    path = position_path(lake.identities.uuid4())
    operation = ClaimSubscription(
        name="größe",
        subscription_id=held["id"],
        expected_epoch=held["epoch"],
        expected_position_path=held["position_path"],
        next_version=3,
        holder="bob",
        position_path=path,
        previous_position_path=held["position_path"],
    )
    await lake.commit(journal, operation)
    await journal.acknowledge(
        "größe", path, Position(subscription_id=held["id"], epoch=3, beat=1, next_version=3)
    )
    assert len([item async for item in (await lake.open()).check()]) == 1


@pytest.mark.parametrize("digits", DIGITS)
async def test_one_seed_writes_the_same_bytes(digits: int) -> None:
    first, second = await write(digits), await write(digits)
    assert await files_of(first.storage) == await files_of(second.storage)


async def made(digits: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    lake = await write(digits)
    return await files_of(lake.storage), await described(await lake.open())


if __name__ == "__main__":
    freeze(Path(sys.argv[1]), {f"subscriptions-r1-{digits}": partial(made, digits) for digits in DIGITS})
