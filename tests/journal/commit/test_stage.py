"""Staging a version: memory is compared with the tree, objects keep their keys, and too large transactions are
refused.
"""

from __future__ import annotations

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed, StoredObject
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import NamespaceDef, Reference, TableDef, ViewDef
from alpheus_journal.model.operations import (
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.replay.flat import pack
from alpheus_journal.testing import Lake, listed, raises
from alpheus_journal.testing.simulation.loop import SimulatedLoop
from alpheus_journal.tree.node import Node, encode_node
from alpheus_journal.workspace.workspace import definition_of


def told(answers: list[Committed | AlpheusError | None]) -> list[object]:
    """Return for each answer its version, the kind of its error, or None."""
    return [a.version if isinstance(a, Committed) else a.kind if a is not None else None for a in answers]


def remember(journal: Journal, name: ObjectName, stored: StoredObject | None) -> None:
    """Make the catalog in memory wrong about one object."""
    state = journal.state
    assert state is not None
    state._overlay[pack(journal.keys.key(name))] = stored
    state._order = sorted(state._overlay)


async def held(journal: Journal, name: ObjectName) -> StoredObject:
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    return stored


async def check_sound(lake: Lake) -> None:
    found = [item async for item in (await lake.open()).check()]
    assert isinstance(found[0], CheckSummary), found


# --- sizes -----------------------------------------------------------------------------------------


async def test_actions_outside_the_root_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actions of the catalog's largest properties have files of their own."""
    lake = Lake()
    journal = await lake.create()
    large = [lake.namespace(name, p="x" * 60_000, q="y" * 60_000) for name in ("a", "b")]
    (committed,) = await journal.commit_group([lake.transaction(journal, *large)])
    assert isinstance(committed, Committed)
    files = await listed(lake.storage, "action/")
    assert len(files) == 2
    monkeypatch.setattr(fmt, "EXTERNAL_ACTIONS_SIZE_BYTES_MAX", sum(info.size for info in files.values()))
    large = [lake.namespace(name, p="x" * 60_000, q="y" * 60_000) for name in ("c", "d")]
    committed = await lake.commit(journal, *large)
    assert committed.version == 2, "just as much as there may be"
    too_large = lake.transaction(
        journal, *(lake.namespace(f"e{n}", p="x" * 60_000, q="y" * 60_000) for n in range(3))
    )
    error = await raises(InvalidInput, journal.commit(too_large), kind="too_large")
    assert too_large.id in error.message
    assert "outside the root" in error.message
    assert error.hint.startswith("split the transaction")
    assert len(await listed(lake.storage, "action/")) == 4
    assert journal.head.version == 2


# --- time ------------------------------------------------------------------------------------------


def test_a_commit_takes_no_longer_than_its_requests() -> None:
    """Where requests take no time, a commit takes no time: it yields to other tasks, and never sleeps."""
    loop = SimulatedLoop(1)

    async def main() -> None:
        lake = Lake()
        journal = await lake.create(order=3)
        began = loop.time()
        for number in range(3):
            await lake.commit(journal, lake.namespace(f"n{number}"), lake.table(f"n{number}", "t"))
        assert loop.time() == began

    loop.run(main())


# --- memory and the tree ---------------------------------------------------------------------------


async def test_a_name_that_memory_lost_is_not_taken_again() -> None:
    """Nothing is written and no member is answered. The next group is judged by the tree."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await journal.load_state()
    remember(journal, fmt.namespace_name("a"), None)
    group = [lake.transaction(journal, lake.namespace("a")), lake.transaction(journal, lake.namespace("b"))]
    await lake.storage.put(fmt.LATEST_HINT, b"1")  # on a slow machine it may come at any moment
    files = (await listed(lake.storage, "")).keys()
    assert told(await journal.commit_group(group)) == [None, None]
    assert (await listed(lake.storage, "")).keys() == files
    assert journal.replay.counts.invalidations == 1
    assert told(await journal.commit_group(group)) == ["namespace_exists", 2]
    await check_sound(lake)


@pytest.mark.parametrize("is_catalog_changed", [False, True])
async def test_an_object_that_only_memory_has_is_not_built_upon(is_catalog_changed: bool) -> None:
    """This holds also for an object that is only looked up, whatever else the group looked up before."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await journal.load_state()
    stored = await held(journal, fmt.namespace_name("a"))
    await lake.commit(journal, DropNamespace(name="a"))
    remember(journal, fmt.namespace_name("a"), stored)
    group = [lake.transaction(journal, lake.table("a", "t"))]
    if is_catalog_changed:
        group.insert(0, lake.transaction(journal, UpdateCatalog(set={"k": "v"})))
    assert told(await journal.commit_group(group)) == [None] * len(group)
    assert journal.head.version == 2
    assert told(await journal.commit_group(group)) == [3, "no_namespace"][-len(group) :]


async def test_a_view_that_memory_lost_keeps_its_name() -> None:
    """A table may not have the name of a view. This look-up finds the view in the tree without changing it."""
    lake = Lake()
    journal = await lake.create()
    view = CreateView(
        namespace="a", name="v", view_id=lake.identities.uuid4(), sql="SELECT 1", dialect="duckdb"
    )
    await lake.commit(journal, lake.namespace("a"), view)
    await journal.load_state()
    remember(journal, ObjectName(Kind.VIEW, "a", "v"), None)
    table = lake.transaction(journal, lake.table("a", "v"))
    assert told(await journal.commit_group([table])) == [None]
    assert told(await journal.commit_group([table])) == ["object_exists"]
    await check_sound(lake)


async def test_a_reference_that_is_no_name_stands_for_no_other_object() -> None:
    """Another writer's view is bound to `a.t `, whose padded key is that of the table `a.t`."""
    lake = Lake()
    writer = await lake.create()
    view = CreateView(
        namespace="a",
        name="v",
        view_id=lake.identities.uuid4(),
        sql="SELECT c FROM a.t",
        dialect="duckdb",
        schema_binding=True,
        references=(Reference(namespace="a", name="t"),),
    )
    await lake.commit(writer, lake.namespace("a"), lake.table("a", "t"), view)
    name = ObjectName(Kind.VIEW, "a", "v")
    stored = await held(writer, name)
    definition = definition_of(name, stored)
    assert isinstance(definition, ViewDef)
    other = msgspec.structs.replace(definition, references=(Reference(namespace="a", name="t "),))
    await lake.storage.put(stored.path, encode_definition(other))
    journal = await lake.open()
    assert (await lake.commit(journal, DropView(namespace="a", name="v"))).version == 2


# --- recorded changes ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_replayed", [False, True])
async def test_the_writer_knows_of_its_version_what_every_reader_finds(is_replayed: bool) -> None:
    """These are the created, changed and dropped objects. An object created and dropped in one transaction is not among
    them."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, *(lake.namespace(name) for name in "abc"))
    if is_replayed:
        await journal.load_state()
    committed = await lake.commit(
        journal,
        lake.namespace("new"),
        UpdateNamespace(name="a", set={"k": "v"}),
        DropNamespace(name="b"),
        lake.namespace("brief"),
        DropNamespace(name="brief"),
    )
    event = journal.follower.known_event(committed.version)
    assert event is not None
    assert {(str(change.name), change.type) for change in event.changes} == {
        ("namespace new", "created"),
        ("namespace a", "updated"),
        ("namespace b", "dropped"),
    }
    read = await (await lake.open()).event(committed.version)
    assert sorted(event.changes, key=str) == sorted(read.changes, key=str)


# --- keys ------------------------------------------------------------------------------------------


async def test_an_object_keeps_the_key_under_which_another_writer_stored_it() -> None:
    """One writer pads by bytes, another by characters, so the same name may be stored under either key."""
    lake = Lake()
    await lake.create(version_digits=64)
    own, foreign = fmt.Keys(version_digits=64), fmt.Keys(version_digits=32)
    names = [fmt.namespace_name("é"), fmt.table_name("é", "ü")]
    definitions = [NamespaceDef(id=lake.identities.uuid4()), TableDef(id=lake.identities.uuid4())]
    entries = {}
    for name, definition in zip(names, definitions, strict=True):
        path = fmt.definition_path(name, lake.identities.uuid4())
        await lake.storage.put(path, encode_definition(definition))
        entries[foreign.key(name)] = path
        assert own.key(name) != foreign.key(name)
    keys = sorted(entries)
    system = {
        fmt.ROW_CATALOG_DEF: (await lake.open()).head.catalog_def,
        fmt.ROW_PREVIOUS_ROOT: fmt.version_file(0, 64),
    }
    root = encode_node(
        Node(tuple(keys), tuple(entries[key] for key in keys)),
        order=128,
        created_at_millis=lake.clock.millis,
        size_max=1 << 20,
        digits=64,
        system=system,
    )
    await lake.storage.put(fmt.version_file(1, 64), root)
    for replayed in (False, True):
        journal = await lake.open()
        if replayed:
            await journal.load_state()
        update = UpdateTable(namespace="é", name="ü", set={"replayed": str(replayed)})
        await lake.commit(journal, UpdateNamespace(name="é", set={"replayed": str(replayed)}), update)
        await lake.commit(journal, lake.table("é", f"own{replayed}"))
        stored = {key for key, _ in (await journal.load_state()).entries()}
        assert set(entries) <= stored, "each object is where it was"
        assert len(stored) == len(entries) + 1 + replayed
    journal = await lake.open()
    for name in ("ü", "ownFalse", "ownTrue"):
        await lake.commit(journal, DropTable(namespace="é", name=name))
    await lake.commit(journal, DropNamespace(name="é"))
    assert (await journal.load_state()).entries() == []
