"""Commits on top of catalogs of the Java SDK: the history continues, old files stay, and touched parts are repaired."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput, NotEmpty
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Event, Finding
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef, Reference, TableDef
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    RenameObject,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, raises
from alpheus_journal.tree.node import UTF16_ORDER, decode_node
from alpheus_pb.v1 import objects_pb2 as pb

Golden = Any  # of conftest.py
Copy = Callable[[Golden], Awaitable[MemoryStorage]]
Properties = dict[ObjectName, dict[str, str]]

# The number of tables with which the workload makes the tree grow and shrink.
WRITABLE = {
    "g1-small": 180,
    "g2-tall-tree": 60,
    "g2b-two-levels": 60,
    "g3-rollback": 20,
    "g4-export": 20,
    "g5-dtxn": 20,
    "g6-names": 40,
    "g6b-names-outside-the-rules": 20,
    "x2-utf16-order": 20,
}
UNREADABLE = "g6b-names-outside-the-rules"


def has_control(text: str) -> bool:
    return any(ord(character) < 0x20 or character == "\x7f" for character in text)


async def names_of(journal: Journal, at: int | None = None) -> list[ObjectName]:
    """Return every namespace, table and view, without namespaces whose definition's path has control characters."""
    names = [fmt.namespace_name(n) for n in (await journal.list(at, Kind.NAMESPACE)).names]
    names = [name for name in names if not has_control(name.namespace)]
    for namespace in tuple(names):
        for kind in (Kind.TABLE, Kind.VIEW):
            page = await journal.list(at, kind, namespace=namespace.namespace)
            assert not page.more
            names += [ObjectName(kind, namespace.namespace, n) for n in page.names]
    return names


async def content_of(journal: Journal, at: int | None = None) -> dict[ObjectName, tuple[str, bytes]]:
    names = await names_of(journal, at)
    stored = (await journal.load(at, names)).objects
    return {n: (s.path, s.definition) for n, s in zip(names, stored, strict=True) if s is not None}


async def properties_of(journal: Journal, at: int | None = None) -> Properties:
    found: Properties = {}
    for name, (path, data) in (await content_of(journal, at)).items():
        definition = decode_definition(name.kind, data, path)
        found[name] = dict(definition.properties)  # type: ignore[union-attr]
    return found


async def commit_in_parts(
    lake: Lake, journal: Journal, operations: Iterable[Operation], size: int = 40
) -> None:
    rest = list(operations)
    for start in range(0, len(rest), size):
        await lake.commit(journal, *rest[start : start + size])


async def workload(lake: Lake, journal: Journal, count: int) -> None:
    """Change every existing object and drop half of them. Create many tables and drop most of them."""
    before = await names_of(journal)
    tables = [name for name in before if name.kind is Kind.TABLE]
    await lake.commit(journal, UpdateCatalog(set={"adopted": "yes"}))
    await commit_in_parts(
        lake, journal, (UpdateTable(namespace=t.namespace, name=t.name, set={"seen": "ja"}) for t in tables)
    )
    spaces = [name.namespace for name in before if name.kind is Kind.NAMESPACE]
    await commit_in_parts(lake, journal, (UpdateNamespace(name=n, set={"seen": "ja"}) for n in spaces))
    await lake.commit(journal, lake.namespace("new"))
    new = [f"t{n:04}" for n in range(count)]
    order = random.Random(count).sample(new, count)
    await commit_in_parts(lake, journal, (lake.table("new", name) for name in order))
    await commit_in_parts(
        lake, journal, (DropTable(namespace=t.namespace, name=t.name) for t in tables[::2] + tables[1::4])
    )
    await commit_in_parts(
        lake, journal, (DropTable(namespace="new", name=n) for n in order[: count * 3 // 4])
    )
    left = {name.namespace for name in await names_of(journal) if name.kind is not Kind.NAMESPACE}
    await commit_in_parts(lake, journal, (DropNamespace(name=n) for n in spaces if n not in left))


def expected_findings(golden: Golden) -> set[tuple[str, int | None]]:
    if golden.name == "x2-utf16-order":
        return {(UTF16_ORDER, 2), (UTF16_ORDER, 3)}
    return set()


@pytest.mark.parametrize("name", WRITABLE)
async def test_a_catalog_of_the_sdk_is_written_on(name: str, goldens: Any, in_memory: Copy) -> None:
    golden = goldens[name]
    lake = Lake(await in_memory(golden), seed=1)
    journal = await lake.open()
    old_files = {path: data async for path, data in files_of(lake.storage) if path != fmt.LATEST_HINT}
    old = {version: await content_of(journal, version) for version in golden.sound}
    expected = await properties_of(journal)
    count = WRITABLE[name]
    await workload(lake, journal, count)
    again = await lake.open()

    # Everything old still exists: every file and every version.
    new_files = {path: data async for path, data in files_of(lake.storage)}
    assert {path: new_files[path] for path in old_files} == old_files
    for version in golden.sound:
        assert await content_of(again, version) == old[version], version

    # The head is as expected.
    tables = [n for n in expected if n.kind is Kind.TABLE]
    for table in tables[::2] + tables[1::4]:
        del expected[table]
    spaces = {n.namespace for n in expected if n.kind is not Kind.NAMESPACE}
    expected = {
        n: properties | ({} if n.kind is Kind.VIEW else {"seen": "ja"})
        for n, properties in expected.items()
        if n.kind is not Kind.NAMESPACE or n.namespace in spaces
    }
    found = await properties_of(again)
    mine = {n for n in found if n.namespace == "new"}
    assert len(mine) == 1 + count - count * 3 // 4
    assert {n: found[n] for n in found if n not in mine} == expected
    (stored,) = (await again.load(None, [fmt.CATALOG])).objects
    assert stored is not None
    assert pb.CatalogDef.FromString(stored.definition).properties["adopted"] == "yes"

    await check_what_was_written(golden, again, set(new_files) - set(old_files))
    replayed = await lake.open()
    state = await replayed.load_state()
    assert await content_of(replayed) == await content_of(again)
    if name != UNREADABLE:
        assert len(state) == len(found)


async def files_of(storage: Any) -> Any:
    for path in await listed(storage, ""):
        yield path, await storage.read(path, size_max=1 << 30)


async def check_what_was_written(golden: Golden, journal: Journal, new_files: set[str]) -> None:
    """Check that the nodes that this software wrote have its own form. `check` must find only known defects."""
    definition = (await journal.info()).definition
    slots = [path for path in new_files if path.startswith("vn/") and path != fmt.LATEST_HINT]
    assert len(slots) == journal.head.version - golden.head
    for path in [*slots, *(path for path in new_files if path.startswith("node/"))]:
        data = await journal.storage.read(path, size_max=1 << 20)
        file = decode_node(data, path, root=path in slots, size_max=fmt.NODE_FILE_SIZE_BYTES_JAVA)
        assert not file.looks_foreign(definition.order), path
    findings = [item async for item in journal.check() if isinstance(item, Finding)]
    if golden.name == UNREADABLE:
        findings = [f for f in findings if not (f.kind == "corrupt_tree" and has_control(f.path))]
    assert {(f.kind, f.version) for f in findings} == expected_findings(golden)


@pytest.mark.parametrize("name", ["g2-tall-tree", "g2b-two-levels", "x2-utf16-order", "g6-names"])
async def test_events_go_on_over_what_others_wrote(name: str, goldens: Any, in_memory: Copy) -> None:
    """The sum of the changes of all versions, the SDK's and this software's, gives the head."""
    golden = goldens[name]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    await workload(lake, journal, 20)
    live: dict[ObjectName, str] = {}
    async for event in journal.events():
        assert isinstance(event, Event)
        assert bool(event.transactions) == (event.version > golden.head)
        for change in event.changes:
            assert live.get(change.name, "") == change.path_before
            if change.path_after:
                live[change.name] = change.path_after
            else:
                del live[change.name]
    del live[fmt.CATALOG]
    assert live == {n: path for n, (path, _) in (await content_of(journal)).items()}


# --- definitions keep unknown fields ---------------------------------------------------------------


async def test_a_table_of_the_sdk_keeps_its_iceberg_metadata(goldens: Any, in_memory: Copy) -> None:
    golden = goldens["g1-small"]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    name = fmt.table_name("sales", "t04")
    (before,) = (await journal.load(None, [name])).objects
    await lake.commit(journal, UpdateTable(namespace="sales", name="t04", set={"k": "v"}, unset=("index",)))
    (after,) = (await journal.load(None, [name])).objects
    assert before is not None
    assert after is not None
    expected = pb.TableDef.FromString(before.definition)
    expected.properties["k"] = "v"
    del expected.properties["index"]
    assert pb.TableDef.FromString(after.definition) == expected
    assert expected.iceberg_metadata_location == "s3://warehouse/sales/t4/metadata/v1.json"


async def test_g4_the_exported_snapshot_stays_named(goldens: Any, in_memory: Copy) -> None:
    golden = goldens["g4-export"]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    await lake.commit(journal, UpdateCatalog(set={"k": "v"}, unset=("team",)))
    (stored,) = (await journal.load(None, [fmt.CATALOG])).objects
    assert stored is not None
    expected = dict(golden.version(golden.head)["catalog_def"])
    assert expected["exported_snapshots"] == {"month-end": fmt.version_file(1, 64)}
    catalog = decode_definition(Kind.CATALOG, stored.definition, stored.path)
    assert isinstance(catalog, CatalogDef)
    assert catalog.exported_snapshots == expected["exported_snapshots"]
    assert catalog.properties == {"k": "v"}
    assert (catalog.id, catalog.txn_ttl_millis) == (expected["id"], expected["txn_ttl_millis"])


# Field 60 as text, field 3000 as a number: of a later revision of the format, and of another extension.
UNKNOWN = b"\xe2\x03\x05later" + b"\xc0\xbb\x01\x07"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (fmt.CATALOG, UpdateCatalog(set={"k": "v"})),
        (fmt.namespace_name("a"), UpdateNamespace(name="a", set={"k": "v"})),
        (fmt.table_name("a", "one"), UpdateTable(namespace="a", name="one", set={"k": "v"})),
    ],
)
async def test_fields_that_nobody_here_knows_are_kept(
    name: ObjectName, operation: Operation, goldens: Any, in_memory: Copy
) -> None:
    storage = await in_memory(goldens["g3-rollback"])
    lake = Lake(storage)
    journal = await lake.open()
    (stored,) = (await journal.load(None, [name])).objects
    assert stored is not None
    await storage.put(stored.path, stored.definition + UNKNOWN)
    journal = await lake.open()
    await lake.commit(journal, operation)
    (after,) = (await journal.load(None, [name])).objects
    assert after is not None
    assert after.path != stored.path
    assert after.definition.endswith(UNKNOWN)
    assert [item for item in await _findings(journal) if item.path == after.path] == []
    value = decode_definition(name.kind, after.definition, after.path)
    assert isinstance(value, CatalogDef | NamespaceDef | TableDef)
    assert value.properties["k"] == "v"


async def _findings(journal: Journal) -> list[Finding]:
    return [item async for item in journal.check() if isinstance(item, Finding)]


# --- versions of other writers on top of ours ------------------------------------------------------


async def test_fault_34_a_root_of_the_sdk_on_top_of_ours(goldens: Any, in_memory: Copy) -> None:
    """A root of the SDK has no actions. Its differences are events all the same, and `check` reports it."""
    lake = Lake(await in_memory(goldens["g1-small"]))
    journal = await lake.open()
    await lake.commit(journal, lake.namespace("ours"))
    await lake.commit(journal, lake.namespace("second"))
    version = journal.head.version + 1
    # As the SDK writes: without our rows and the padding, n_keys overstated, the clock behind.
    source = await journal.storage.read(fmt.version_file(version - 1, 64), size_max=1 << 20)
    file = decode_node(source, "", root=True, size_max=1 << 20)
    key = journal.keys.key(fmt.namespace_name("second"))
    foreign = foreign_root(file, without=key, previous=fmt.version_file(version - 1, 64))
    await journal.storage.put(fmt.version_file(version, 64), foreign)

    follower = await lake.open()
    event = await follower.event(version)
    assert event.transactions == ()
    assert [(change.name, change.type) for change in event.changes] == [
        (fmt.namespace_name("second"), "dropped")
    ]
    (finding,) = await _findings(follower)
    assert (finding.kind, finding.version, finding.path) == (
        "foreign_write",
        version,
        fmt.version_file(version, 64),
    )
    assert "namespace second dropped" in finding.message
    # A version of this software on top of it.
    await journal.refresh()
    assert journal.head.version == version
    await lake.commit(journal, lake.namespace("second"))
    assert [f.version for f in await _findings(await lake.open())] == [version]
    checked = [f async for f in journal.check(after=version - 1) if isinstance(f, Finding)]
    assert [f.version for f in checked] == [version]


def foreign_root(file: Any, *, without: str, previous: str) -> bytes:
    """Return a root as the Java SDK lays it out: unpadded, a null value for a deleted key, no row of this software."""
    import pyarrow as pa

    from alpheus_journal.tree.node import SCHEMA

    node = file.node
    rows: list[tuple[str | None, str | None, str | None]] = [
        ("created_at_millis", "1795281834999", None),
        ("n_keys", str(len(node.keys) + 2), None),
        ("catalog_def", file.catalog_def, None),
        ("previous_root", previous, None),
        (None, None, node.children[0] if node.children else None),
    ]
    for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        child = node.children[index + 1] if node.children else None
        rows.append((key, None if key == without else value, child))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_batch(
            pa.record_batch(
                [pa.array([row[column] for row in rows], pa.utf8()) for column in range(3)], schema=SCHEMA
            )
        )
    data: bytes = sink.getvalue().to_pybytes()
    return data


async def test_a_broken_version_is_not_written_on_where_it_is_broken(goldens: Any, in_memory: Copy) -> None:
    lake = Lake(await in_memory(goldens["x1-dangling-child"]))
    journal = await lake.open()
    error = await raises(
        Corrupt, lake.commit(journal, *(lake.namespace(text) for text in ("a", "m", "ns9", "zz")))
    )
    assert error.path.startswith("node/")
    assert journal.head.version == 9
    assert not await journal.storage.exists(fmt.version_file(10, 64))


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g1-small", "g6-names", "g6b-names-outside-the-rules"])
async def test_every_name_of_the_sdk_can_be_used_renamed_and_dropped(
    name: str, goldens: Any, in_memory: Copy
) -> None:
    golden = goldens[name]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    before = await content_of(journal)
    tables = [n for n in before if n.kind is Kind.TABLE]
    views = [n for n in before if n.kind is Kind.VIEW]
    assert len(tables) > 5
    for table in tables[::3]:
        await lake.commit(journal, UpdateTable(namespace=table.namespace, name=table.name, set={"k": "v"}))
    found = await properties_of(journal)
    assert all((found[table].get("k") == "v") == (table in tables[::3]) for table in tables)
    # Under a new name it is the same object, and its definition is not rewritten.
    renames = {
        n: ObjectName(n.kind, n.namespace, f"renamed{i}") for i, n in enumerate([*tables[1::3], *views])
    }
    for old, new in renames.items():
        await lake.commit(journal, rename(old, new))
    after = await content_of(journal)
    for old, new in renames.items():
        assert old not in after
        assert after[new] == before[old]
    for old, new in renames.items():
        if not name.startswith("g6b") and is_fine(old.name):
            await lake.commit(journal, rename(new, old))
    # Views first: one of the SDK's views is bound to a table.
    rest = sorted(await names_of(journal), key=lambda n: (-n.kind, n))
    await commit_in_parts(
        lake,
        journal,
        (
            (DropTable if n.kind is Kind.TABLE else DropView)(namespace=n.namespace, name=n.name)
            for n in rest
            if n.kind is not Kind.NAMESPACE
        ),
        size=7,
    )
    for space in [n.namespace for n in rest if n.kind is Kind.NAMESPACE]:
        await lake.commit(journal, DropNamespace(name=space))
        (gone,) = (await journal.load(None, [fmt.namespace_name(space)])).objects
        assert gone is None
    assert await names_of(journal) == []
    assert [f for f in await _findings(journal) if not has_control(f.path)] == []


async def test_what_cannot_be_read_is_listed_and_can_be_dropped(goldens: Any, in_memory: Copy) -> None:
    """Namespaces with refused definition paths can be listed and dropped, with and without a replayed state in
    memory."""
    golden = goldens[UNREADABLE]
    for replayed in (False, True):
        lake = Lake(await in_memory(golden))
        journal = await lake.open()
        if replayed:
            await journal.load_state()
        damaged = [n for n in (await journal.list(None, Kind.NAMESPACE)).names if has_control(n)]
        assert len(damaged) == 2
        for space in damaged:
            error = await raises(
                Corrupt, journal.load(None, [fmt.namespace_name(space)]), kind="corrupt_tree"
            )
            assert has_control(error.path)
            assert error.version == golden.head
            for table in (await journal.list(None, Kind.TABLE, namespace=space)).names:
                name = fmt.table_name(space, table)
                await raises(Corrupt, journal.load(None, [name]), kind="corrupt_tree")
            assert (await journal.list(None, Kind.VIEW, namespace=space)).names == ()
            update = UpdateNamespace(name=space, set={"k": "v"})
            await raises(Corrupt, lake.commit(journal, update), kind="corrupt_tree")
        first, second = damaged
        tables = (await journal.list(None, Kind.TABLE, namespace=first)).names
        assert tables
        await raises(NotEmpty, lake.commit(journal, DropNamespace(name=first)))
        drops = [DropTable(namespace=first, name=table) for table in tables]
        committed = await lake.commit(journal, *drops, DropNamespace(name=first))
        assert committed.rows_removed == 0
        await lake.commit(journal, DropNamespace(name=second, cascade=True))
        assert [n for n in (await journal.list(None, Kind.NAMESPACE)).names if has_control(n)] == []
        assert [f async for f in journal.check(after=golden.head) if isinstance(f, Finding)] == []
        again = await lake.open()
        await again.load_state()
        assert await content_of(again) == await content_of(journal)


async def test_a_view_of_the_sdk_stays_what_it_is(goldens: Any, in_memory: Copy) -> None:
    """A view of the SDK that is renamed, or bound to by another view, keeps its format and every field."""
    golden = goldens["g1-small"]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    views = [n for n in await names_of(journal) if n.kind is Kind.VIEW]
    assert views
    for count, name in enumerate(views):
        (before,) = (await journal.load(None, [name])).objects
        assert before is not None
        new = ObjectName(Kind.VIEW, name.namespace, f"moved{count}")
        await lake.commit(journal, rename(name, new))
        await lake.commit(
            journal,
            CreateView(
                namespace=name.namespace,
                name=f"bound{count}",
                view_id=lake.identities.uuid4(),
                sql="select 1",
                dialect="spark",
                references=(Reference(new.namespace, new.name),),
                schema_binding=True,
            ),
        )
        (after,) = (await journal.load(None, [new])).objects
        assert after is not None
        assert after.path != before.path
        expected, found = pb.ViewDef.FromString(before.definition), pb.ViewDef.FromString(after.definition)
        assert [(v.namespace_name, v.name) for v in found.bound_views] == [(name.namespace, f"bound{count}")]
        del found.bound_views[:]
        assert found == expected
        assert found.view_format == pb.SUBSTRAIT
    assert await _findings(journal) == []


def rename(old: ObjectName, new: ObjectName) -> RenameObject:
    return RenameObject(
        kind=old.kind,
        namespace=old.namespace,
        name=old.name,
        new_namespace=new.namespace,
        new_name=new.name,
    )


def is_fine(name: str) -> bool:
    """Return whether a new object may have this name."""
    try:
        fmt.check_name(name, 32, "table", creating=True)
    except InvalidInput:
        return False
    return True


async def test_names_under_the_other_padding(goldens: Any, in_memory: Copy) -> None:
    """In a catalog of 64 digits with keys padded in bytes, objects are found, listed in pages, changed and dropped,
    and none occurs twice."""
    from alpheus_journal.tree.node import Node, encode_node

    lake = Lake()
    await lake.create(version_digits=64, order=64)
    own, other = fmt.Keys(version_digits=64), fmt.Keys(version_digits=32)
    texts = ["é", "ü", "日本", "😀", "plain"]
    names = [fmt.namespace_name(t) for t in texts]
    names += [fmt.table_name(space, t) for space in texts for t in texts]
    entries = {}
    for name in names:
        definition: Any = pb.NamespaceDef(id="n") if name.kind is Kind.NAMESPACE else pb.TableDef(id="t")
        path = fmt.definition_path(name, lake.identities.uuid4())
        await lake.storage.put(path, definition.SerializeToString())
        entries[other.key(name)] = path
    keys = sorted(entries)
    root = encode_node(
        Node(tuple(keys), tuple(entries[key] for key in keys)),
        order=64,
        created_at_millis=lake.clock.millis,
        size_max=1 << 20,
        digits=64,
        system={
            fmt.ROW_CATALOG_DEF: (await lake.open()).head.catalog_def,
            fmt.ROW_PREVIOUS_ROOT: fmt.version_file(0, 64),
        },
    )
    await lake.storage.put(fmt.version_file(1, 64), root)
    journal = await lake.open()
    assert sorted(await names_of(journal)) == sorted(names)
    # One more table under the usual padding in each of these namespaces.
    await lake.commit(journal, *(lake.table(space, "ß") for space in texts))
    names += [fmt.table_name(space, "ß") for space in texts]
    for replayed in (False, True):
        if replayed:
            await journal.load_state()
        assert sorted(await names_of(journal)) == sorted(names)
        for space in texts:
            wanted = sorted([*texts, "ß"])
            for limit in (1, 2, 5, 6, 7):
                found: list[str] = []
                more = True
                while more:
                    page = await journal.list(
                        None, Kind.TABLE, namespace=space, limit=limit, after=found[-1] if found else ""
                    )
                    found += page.names
                    more = page.more
                assert found == wanted, (space, limit)
            page = await journal.list(None, Kind.TABLE, namespace=space, prefix="日")
            assert page.names == ("日本",)
    await raises(NotEmpty, lake.commit(journal, DropNamespace(name="é")))
    await lake.commit(
        journal, *(UpdateTable(namespace=n.namespace, name=n.name, set={"k": "v"}) for n in names[5:])
    )
    found_properties = await properties_of(journal)
    assert len(found_properties) == len(names)
    kept = {key for key, _ in (await journal.load_state()).entries() if "ß" not in key}
    assert kept == set(entries), "an object keeps the key that it has"
    await lake.commit(journal, *(DropTable(namespace=n.namespace, name=n.name) for n in names[5:]))
    await lake.commit(journal, *(DropNamespace(name=t) for t in texts))
    assert await names_of(await lake.open()) == []
    assert own.key(names[0]) != other.key(names[0])


# --- random operations against a dict --------------------------------------------------------------


@pytest.mark.parametrize("name", ["g1-small", "g2-tall-tree", "g2b-two-levels", "g6-names", "x2-utf16-order"])
async def test_random_operations_equal_those_on_a_dict(
    name: str, goldens: Any, in_memory: Copy, lane_count: Callable[[int, int], int]
) -> None:
    golden = goldens[name]
    for seed in range(lane_count(2, 60)):
        rng = random.Random(f"{name} {seed}")
        lake = Lake(await in_memory(golden), seed=seed)
        journal = await lake.open()
        if rng.random() < 0.5:
            await journal.load_state()
        model = await properties_of(journal)
        views = {n.namespace for n in model if n.kind is Kind.VIEW}
        history = {journal.head.version: dict(model)}
        for _ in range(12):
            operations = []
            for _ in range(rng.choice((1, 3, 30))):
                operation = random_change(rng, lake, model, views)
                if operation is not None:
                    operations.append(operation)
            if not operations:
                continue
            committed = await lake.commit(journal, *operations)
            history[committed.version] = dict(model)
        reader = await lake.open()
        for version, expected in rng.sample(sorted(history.items()), min(3, len(history))):
            assert await properties_of(reader, version) == expected, f"seed {seed}, version {version}"
        assert await properties_of(journal) == model, f"seed {seed}"
        findings = {(f.kind, f.version) for f in await _findings(reader)}
        assert findings == expected_findings(golden), f"seed {seed}"


def random_change(rng: random.Random, lake: Lake, model: Properties, views: set[str]) -> Operation | None:
    """Return a random operation that is possible on the model, and apply it to the model."""
    spaces = sorted(n.namespace for n in model if n.kind is Kind.NAMESPACE)
    tables = sorted(n for n in model if n.kind is Kind.TABLE)
    what = rng.choices(("create", "drop", "update", "namespace", "empty"), (5, 5, 3, 1, 1))[0]
    if what == "create" and spaces:
        space = rng.choice(spaces)
        text = rng.choice(("t", "é", "日", "😀", "｡")) + str(rng.randrange(10_000))
        name = fmt.table_name(space, text)
        if name not in model and ObjectName(Kind.VIEW, space, text) not in model:
            model[name] = {}
            operation: CreateTable = lake.table(space, text)
            return operation
    if what == "drop" and tables:
        name = rng.choice(tables)
        del model[name]
        return DropTable(namespace=name.namespace, name=name.name)
    if what == "update" and tables:
        name = rng.choice(tables)
        value = str(rng.random())
        model[name] = model[name] | {"r": value}
        return UpdateTable(namespace=name.namespace, name=name.name, set={"r": value})
    if what == "namespace":
        text = f"s{rng.randrange(1000)}"
        if fmt.namespace_name(text) not in model:
            model[fmt.namespace_name(text)] = {}
            created: CreateNamespace = lake.namespace(text)
            return created
    if what == "empty":
        for space in spaces:
            if space not in views and not any(t.namespace == space for t in tables):
                del model[fmt.namespace_name(space)]
                return DropNamespace(name=space)
    return None
