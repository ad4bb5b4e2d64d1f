"""Catalogs of the Java SDK are read as the SDK itself reads them. Broken catalogs are never read as if they were whole.

`expected.json` of each catalog has what the SDK saw (README.md beside it).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit.saved_transactions import decode_stored
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.model.answers import Change, CheckSummary, Event, Finding, Timestamp
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef, TableDef, ViewDef
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import raises
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import UTF16_ORDER, Node, decode_node, encode_node
from alpheus_journal.tree.reader import Reader, Snapshot

Golden = Any  # of conftest.py
Copy = Callable[[Golden], Awaitable[MemoryStorage]]

NAMES = (
    "g1-small",
    "g2-tall-tree",
    "g2b-two-levels",
    "g3-rollback",
    "g4-export",
    "g5-dtxn",
    "g6-names",
    "g6b-names-outside-the-rules",
    "x1-dangling-child",
    "x2-utf16-order",
    "x3-sdk-commit-on-three-levels",
)
WHOLE = tuple(name for name in NAMES if not name.startswith("x") or name == "x2-utf16-order")
KINDS = (Kind.TABLE, Kind.VIEW)


def has_control(path: str | None) -> bool:
    return path is not None and any(ord(character) < 0x20 or character == "\x7f" for character in path)


async def versions_of(golden: Golden) -> AsyncIterator[tuple[Root, Snapshot]]:
    """Yield every sound version, read without a Journal: the decoded root and the tree."""
    log = await Log.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    for version in golden.sound:
        root = await log.read(version)
        data = await log.storage.read(root.catalog_def, size_max=1 << 20)
        definition = decode_definition(Kind.CATALOG, data, root.catalog_def)
        assert isinstance(definition, CatalogDef)
        reader = Reader(log.storage, definition.keys(log.digits), node_size_max=log.node_size_max)
        yield root, Snapshot(reader, version, root.node, root.catalog_def)


async def opened(golden: Golden) -> Journal:
    return await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))


async def objects_of(journal: Journal, version: int | None) -> dict[ObjectName, str | None]:
    """Return the answers of the public calls: every listed object, looked up by its name. None: the path of the
    definition has control characters, which is Corrupt for this object alone."""
    names = [fmt.namespace_name(n) for n in (await journal.list(version, Kind.NAMESPACE)).names]
    found: dict[ObjectName, str | None] = {}
    for namespace in tuple(names):
        for kind in KINDS:
            page = await journal.list(version, kind, namespace=namespace.namespace)
            assert not page.more
            names += [ObjectName(kind, namespace.namespace, name) for name in page.names]
    for name in names:
        if has_control(name.full_name):
            error = await raises(Corrupt, journal.load(version, [name]), kind="corrupt_tree")
            assert has_control(error.path)
            found[name] = None
    names = [name for name in names if name not in found]
    for name, stored in zip(names, (await journal.load(version, names)).objects, strict=True):
        assert stored is not None, f"{name} is listed and not found"
        found[name] = stored.path
    return found


def same_objects(found: dict[ObjectName, str | None], expected: dict[ObjectName, str | None]) -> bool:
    """Check that both have the same objects, and the same paths where both know them."""
    assert found.keys() == expected.keys()
    for name, path in expected.items():
        if has_control(path):
            assert found[name] is None, name
        elif path is not None and name in found:
            assert found[name] == path, name
    return True


@pytest.mark.parametrize("name", NAMES)
async def test_system_rows_and_catalog_definitions(name: str, goldens: Any, described: Any) -> None:
    golden = goldens[name]
    count = 0
    async for root, snapshot in versions_of(golden):
        expected = golden.version(root.version)
        assert root.path == expected["root_path"]
        assert root.created_at_millis == expected["created_at_millis"]
        assert root.previous_root == expected["previous_root"]
        assert root.catalog_def == expected["catalog_def_path"]
        assert root.is_foreign
        assert root.transactions == ()
        (stored,) = await snapshot.load([fmt.CATALOG])
        assert stored is not None
        assert described(Kind.CATALOG, stored.definition) == expected["catalog_def"]
        count += 1
    assert count == len(golden.sound) > 0


@pytest.mark.parametrize("name", NAMES)
async def test_every_version_through_the_journal(name: str, goldens: Any) -> None:
    golden = goldens[name]
    journal = await opened(golden)
    assert journal.head.version == golden.head
    assert journal.keys.version_digits == 64
    for version in golden.sound:
        assert same_objects(await objects_of(journal, version), golden.objects(version)), version
    await journal.close()


@pytest.mark.parametrize("name", NAMES)
async def test_every_version_through_a_scan_of_the_tree(name: str, goldens: Any) -> None:
    golden = goldens[name]
    async for root, snapshot in versions_of(golden):
        entries = await snapshot.entries()
        assert entries == sorted(entries)
        keys = snapshot.reader.keys
        expected = {n: path for n, path in golden.objects(root.version).items() if path is not None}
        found = {keys.parse(key): path for key, path in entries}
        assert len(found) == len(entries)
        assert found.keys() == golden.objects(root.version).keys()
        assert {n: found[n] for n in expected} == expected
        if root.version == golden.head and name != "x2-utf16-order":
            assert [list(entry) for entry in entries] == golden.expected["head_key_table"]


@pytest.mark.parametrize("name", NAMES)
async def test_every_version_by_time(name: str, goldens: Any) -> None:
    golden = goldens[name]
    journal = await opened(golden)
    times = [golden.version(version)["created_at_millis"] for version in golden.sound]
    assert times == sorted(times)
    head_time = journal.head.created_at_millis
    for version, millis in zip(golden.sound, times, strict=True):
        last = max(v for v in golden.sound if times[v] <= millis)
        if millis >= head_time:
            last = golden.head
        assert (await journal.resolve(Timestamp(millis))).version == last, version
        if version:
            assert (await journal.resolve(Timestamp(millis - 1))).version < version
    await raises(NotFound, journal.resolve(Timestamp(times[0] - 1)))
    at = Timestamp(times[-1])
    if (await journal.resolve(at)).version in golden.sound:
        page = await journal.list(at, Kind.NAMESPACE)
        assert set(page.names) == {
            n.namespace for n in golden.objects(page.version) if n.kind is Kind.NAMESPACE
        }
    await journal.close()


@pytest.mark.parametrize("name", NAMES)
async def test_the_content_of_every_definition(name: str, goldens: Any, described: Any) -> None:
    """The definitions of every version are as the SDK read them, and as values of this software."""
    golden = goldens[name]
    journal = await opened(golden)
    seen: set[str] = set()
    for version in golden.sound:
        names = [
            n
            for n, path in golden.objects(version).items()
            if path is not None and not has_control(path) and path not in seen
        ]
        for stored, object_name in zip((await journal.load(version, names)).objects, names, strict=True):
            assert stored is not None, object_name
            seen.add(stored.path)
            expected = golden.expected["definitions"][stored.path]
            assert described(object_name.kind, stored.definition) == expected
            value = decode_definition(object_name.kind, stored.definition, stored.path)
            assert isinstance(value, NamespaceDef | TableDef | ViewDef)
            assert (value.id, value.properties) == (expected["id"], expected["properties"])
            if isinstance(value, TableDef):
                assert not value.native
                assert value.iceberg_metadata_location == expected["iceberg_metadata_location"]
            if isinstance(value, ViewDef):
                assert [column.name for column in value.columns] == [c["name"] for c in expected["schema"]]
                assert value.substrait
    lost = {"x1-dangling-child": 4, "x3-sdk-commit-on-three-levels": 1}.get(name, 0)
    readable = {path for path in golden.expected["definitions"] if not has_control(path)}
    assert len(readable - seen) <= lost, "of versions that are not whole"
    await journal.close()


@pytest.mark.parametrize("name", WHOLE)
async def test_the_catalog_in_memory_says_the_same(name: str, goldens: Any) -> None:
    golden = goldens[name]
    journal = await opened(golden)
    before = await objects_of(journal, None)
    state = await journal.load_state()
    assert await objects_of(journal, None) == before
    assert len(state) == len(before)
    for limit, replayed in itertools.product((1, 7), (True, False)):
        at = None if replayed else golden.head - 1
        namespaces = await paged(journal, at, Kind.NAMESPACE, "", limit)
        assert namespaces == list((await journal.list(at, Kind.NAMESPACE)).names)
    await journal.close()


async def paged(journal: Journal, at: int | None, kind: Kind, namespace: str, limit: int) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        page = await journal.list(
            at, kind, namespace=namespace, limit=limit, after=names[-1] if names else ""
        )
        assert len(page.names) == limit or (not page.more and len(page.names) < limit)
        names += page.names
        more = page.more
    return names


@pytest.mark.parametrize("name", WHOLE)
async def test_pages_join_to_the_whole(name: str, goldens: Any) -> None:
    golden = goldens[name]
    journal = await opened(golden)
    for limit in (1, 2, 5):
        namespaces = await paged(journal, golden.head, Kind.NAMESPACE, "", limit)
        assert set(namespaces) == {
            n.namespace for n in golden.objects(golden.head) if n.kind is Kind.NAMESPACE
        }
        for namespace, kind in itertools.product(namespaces, KINDS):
            if limit == 1 and name.startswith("g2"):
                continue  # hundreds of pages show nothing more
            names = await paged(journal, golden.head, kind, namespace, limit)
            assert len(names) == len(set(names))
            assert {ObjectName(kind, namespace, n) for n in names} == {
                n for n in golden.objects(golden.head) if n.kind is kind and n.namespace == namespace
            }
            if names:
                prefix = names[0][:2].rstrip()
                page = await journal.list(golden.head, kind, namespace=namespace, prefix=prefix)
                assert list(page.names) == [n for n in names if n.startswith(prefix)]
    await journal.close()


# --- events ----------------------------------------------------------------------------------------


def differences(golden: Golden, version: int) -> set[tuple[ObjectName, str, str, str]]:
    """Return (name, type, path before, path after) between a version and the one before, from what the SDK saw."""
    before = golden.objects(version - 1) if version else {}
    after = golden.objects(version)
    found = set()
    for name in before.keys() | after.keys():
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            kind = "created" if name not in before else "dropped" if name not in after else "updated"
            found.add((name, kind, old or "", new or ""))
    old = golden.version(version - 1)["catalog_def_path"] if version else ""
    new = golden.version(version)["catalog_def_path"]
    if old != new:
        found.add((fmt.CATALOG, "updated" if version else "created", old, new))
    return found


def as_tuple(change: Change, known: dict[ObjectName, str | None]) -> tuple[ObjectName, str, str, str]:
    paths = (change.path_before, change.path_after)
    if change.name in known and known[change.name] is None:
        paths = ("", "")  # the SDK does not know the paths
    return (change.name, change.type, *paths)


@pytest.mark.parametrize("name", NAMES)
async def test_events_are_the_differences_of_versions(name: str, goldens: Any) -> None:
    golden = goldens[name]
    journal = await opened(golden)
    version = -1
    stopped: Corrupt | None = None
    try:
        async for event in journal.events():
            assert isinstance(event, Event), "a version is an event even if nothing differs"
            version += 1
            assert event.version == version
            assert event.transactions == ()
            known = golden.objects(version)
            assert {as_tuple(change, known) for change in event.changes} == differences(golden, version)
            assert len(event.changes) == len(differences(golden, version))
    except Corrupt as error:
        stopped = error
    assert version == golden.sound[-1]
    assert (stopped is not None) == (golden.sound[-1] < golden.head)
    if stopped is not None:
        assert stopped.path.startswith("node/")
        again = await raises(Corrupt, journal.event(version + 1))
        assert again.path == stopped.path
    await journal.close()


async def test_the_recorded_log_of_another_writer_is_its_differences(goldens: Any) -> None:
    golden = goldens["g1-small"]
    journal = await opened(golden)
    entries = [entry async for entry in journal.log()]
    assert [entry.version for entry in entries] == list(range(16, -1, -1))
    for entry in entries:
        assert entry.transaction.id == ""
        names = {action.name for action in entry.transaction.actions}
        assert names == {name for name, *_ in differences(golden, entry.version)}
    await journal.close()


async def test_a_foreign_root_is_resumed_from_by_its_bytes(goldens: Any) -> None:
    golden = goldens["g1-small"]
    journal = await opened(golden)
    token = (await journal.resolve(3)).token
    assert ".3.sha256-" in token
    event = await anext(journal.events(after=token))
    assert event.version == 4
    await raises(InvalidInput, anext(journal.events(after=token[:-1] + ("0" if token[-1] != "0" else "1"))))
    await journal.close()


# --- defects ---------------------------------------------------------------------------------------


async def test_g2b_more_keys_than_the_order_allows_are_no_damage(goldens: Any) -> None:
    """The SDK ignores the order of the tree, and three of its roots claim more keys than they hold."""
    golden = goldens["g2b-two-levels"]
    defects = {root.version: root.defects async for root, _ in versions_of(golden)}
    assert [v for v in defects if "n_keys_overstated" in defects[v]] == [6, 7, 8]
    async for root, _ in versions_of(golden):
        if root.version == 4:
            assert len(root.node.keys) == 126


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("g") and "g6b" not in name])
async def test_a_sound_catalog_of_the_sdk_has_no_finding(name: str, goldens: Any) -> None:
    journal = await opened(goldens[name])
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    assert summary.versions == goldens[name].head + 1
    await journal.close()


async def test_g3_a_copied_rollback_row_marks_none(goldens: Any) -> None:
    golden = goldens["g3-rollback"]
    log = await Log.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    rollbacks = {}
    for version in golden.sound:
        path = log.path(version)
        data = await log.storage.read(path, size_max=1 << 20)
        file = decode_node(data, path, root=True, size_max=1 << 20)
        assert file.system.get(fmt.ROW_ROLLBACK_FROM_ROOT) == golden.version(version)["rollback_from_root"]
        rollbacks[version] = file.rollback_from_root
    assert [v for v, root in rollbacks.items() if root is not None] == [4]
    assert [v for v in golden.sound if golden.version(v)["rollback_from_root"]] == [4, 5, 6]
    assert golden.objects(4) == golden.objects(1)


async def test_g5_saved_transactions_disturb_nothing(goldens: Any, in_memory: Copy) -> None:
    """Running roots of saved transactions are stored among the nodes and name versions as previous roots, but no
    version points at them."""
    golden = goldens["g5-dtxn"]
    saved = [golden.expected[key]["def_path"] for key in ("dtxn_saved", "dtxn_second")]
    storage = await in_memory(golden)
    with_them = await Journal.open(storage)
    findings = [item async for item in with_them.check()]
    for path in saved:
        await storage.delete(path)
    without = await Journal.open(storage)
    assert [item async for item in without.check()] == findings
    assert await objects_of(without, None) == await objects_of(with_them, None)


@pytest.mark.parametrize("key", ["dtxn_saved", "dtxn_second"])
async def test_g5_what_a_saved_transaction_stands_on_is_told_by_its_running_root(
    key: str, goldens: Any
) -> None:
    """The SDK stores the path of the running root twice. The `previous_root` is the version where the transaction
    began, and the difference between the two is what the transaction has done so far."""
    golden = goldens["g5-dtxn"]
    expected = golden.expected[key]
    storage = await asyncio.to_thread(LocalStorage, str(golden.root))
    stored = decode_stored(await storage.read(expected["def_path"], size_max=1 << 20), expected["def_path"])
    assert (stored.id, stored.transaction) == (expected["id"], None)
    assert stored.serializable == (expected["isolation_level"] == "SERIALIZABLE")
    assert stored.beginning_root == stored.running_root == expected["running_root_node_file_path"]
    assert stored.began_at_millis == expected["began_at_millis"]
    assert stored.expire_at_millis == expected["expire_at_millis"]
    assert not stored.to_listing().resumable
    data = await storage.read(stored.running_root, size_max=1 << 20)
    running = decode_node(data, stored.running_root, root=True, size_max=1 << 20)
    assert running.previous_root == expected["beginning_root_before_saving"]
    version, _ = fmt.parse_version_file(running.previous_root)
    beginning = await (await Log.open(storage)).read(version)
    keys = fmt.Keys(version_digits=64)
    changes = await Reader(storage, keys, node_size_max=1 << 20).diff(beginning.node, running.node)
    before, after = golden.objects(version), expected["running_root"]["namespaces"]["a"]["tables"]
    wanted = {
        fmt.table_name("a", name): (before.get(fmt.table_name("a", name)), table["def"])
        for name, table in after.items()
        if before.get(fmt.table_name("a", name)) != table["def"]
    }
    wanted |= {n: (path, None) for n, path in before.items() if n.name and n.name not in after}
    assert {keys.parse(key): (old, new) for key, old, new in changes} == wanted
    assert wanted


def finding_rows(findings: list[Finding | CheckSummary]) -> set[tuple[str, int | None, str]]:
    return {(f.kind, f.version, f.path) for f in findings if isinstance(f, Finding)}


async def test_x1_a_node_that_was_never_written(goldens: Any) -> None:
    golden = goldens["x1-dangling-child"]
    journal = await opened(golden)
    lost = "node/e6e91e4a-eb2d-4e37-8ffb-59312482b09e.arrow"
    for version in range(6, 10):
        assert lost in golden.version(version)["error"]
        for at in (version, None) if version == golden.head else (version,):
            error = await raises(Corrupt, journal.list(at, Kind.NAMESPACE))
            assert (error.path, error.version, error.kind) == (lost, version, "corrupt_tree")
            assert "earlier versions may still be readable" in error.hint
    await raises(Corrupt, journal.load_state())
    found = finding_rows([item async for item in journal.check()])
    assert {(version, path) for _, version, path in found} == {(v, lost) for v in range(6, 10)}
    # Whole versions stay readable, without any loss, beside the broken ones.
    assert same_objects(await objects_of(journal, 5), golden.objects(5))
    await journal.close()


async def test_x2_keys_in_utf16_order(goldens: Any) -> None:
    """The keys are read, also those that the SDK lists and cannot look up, and the order is reported."""
    golden = goldens["x2-utf16-order"]
    defects = {root.version: root.defects async for root, _ in versions_of(golden)}
    assert [UTF16_ORDER in defects[version] for version in range(4)] == [False, False, True, True]
    journal = await opened(golden)
    found = finding_rows([item async for item in journal.check()])
    paths = [golden.version(version)["root_path"] for version in (2, 3)]
    assert found == {(UTF16_ORDER, 2, paths[0]), (UTF16_ORDER, 3, paths[1])}
    missed = [name for name, path in golden.objects(3).items() if path is None]
    assert [name.name for name in missed] == ["｡half", "｢", "｣"]
    for name, stored in zip(missed, (await journal.load(3, missed)).objects, strict=True):
        assert stored is not None
        assert stored.path.endswith(f"-n-{name.name}.binpb")
    assert (await journal.list(3, Kind.TABLE, namespace="n")).names == (
        "a", "z", "｡half", "｢", "｣", "😀", "😁", "😂",
    )  # fmt: skip
    assert (await journal.list(3, Kind.TABLE, namespace="n", after="｢", limit=2)).names == ("｣", "😀")
    await journal.close()


async def test_x3_a_commit_that_lost_a_subtree(goldens: Any) -> None:
    """The SDK reads the version as an empty catalog. This software reports Corrupt."""
    golden = goldens["x3-sdk-commit-on-three-levels"]
    assert golden.version(2)["namespaces"] == {}
    journal = await opened(golden)
    error = await raises(Corrupt, journal.list(None, Kind.NAMESPACE))
    assert (error.kind, error.version) == ("corrupt_tree", 2)
    assert error.path.startswith("node/")
    await raises(Corrupt, journal.load(2, [fmt.table_name("a", "t00")]))
    found = finding_rows([item async for item in journal.check()])
    assert {version for _, version, _ in found} == {2}
    assert {kind for kind, _, _ in found} == {"corrupt_tree"}
    assert error.path in {path for _, _, path in found}
    await journal.close()


# --- a tree of several levels in UTF-16 order ------------------------------------------------------


async def utf16_tree(objects: Iterable[ObjectName]) -> Snapshot:
    """Return a tree of several levels in files, with its keys in the SDK's order. Raise Corrupt if the root alone
    shows the order."""
    keys = fmt.Keys(version_digits=64)
    stored = sorted((keys.key(name) for name in objects), key=lambda key: key.encode("utf-16-be"))
    # Build the tree with stand-in keys that ascend in byte order, then replace them by the real keys.
    stand_ins = {Key(f"{number:06}"): key for number, key in enumerate(stored)}
    numbers = itertools.count()
    built = tree.build(
        [(key, f"def/table/{key}.binpb") for key in stand_ins],
        order=4,
        new_path=lambda: fmt.node_path(f"00000000-0000-4000-8000-{next(numbers):012}"),
    )

    def file(node: Node, system: dict[str, str]) -> bytes:
        real = Node(tuple(stand_ins[key] for key in node.keys), node.values, node.children)
        return encode_node(real, order=4, created_at_millis=1, size_max=1 << 20, digits=64, system=system)

    storage = MemoryStorage()
    for path, node in built.created.items():
        await storage.put(path, file(node, {}))
    root = file(built.root, {fmt.ROW_CATALOG_DEF: "def/catalog/x.binpb"})
    decoded = decode_node(root, "root", root=True, size_max=1 << 20)
    return Snapshot(Reader(storage, keys, node_size_max=1 << 20), 1, decoded.node, "")


@pytest.mark.parametrize("kind", [Kind.NAMESPACE, Kind.TABLE])
async def test_a_whole_tree_in_utf16_order_never_hides_an_object(kind: Kind) -> None:
    """Every lookup and list gives the object or Corrupt, and never "not there"."""
    refused = served = 0
    for starts in itertools.permutations(("a", "｡", "😀", "\ue000", "中"), 3):
        for count in range(1, 7):
            texts = [f"{start}{n}" for start in starts for n in range(count)]
            names = [
                fmt.namespace_name(text) if kind is Kind.NAMESPACE else ObjectName(kind, "n", text)
                for text in texts
            ]
            try:
                snapshot = await utf16_tree(names)
            except Corrupt:
                refused += 1
                continue
            for name in names:
                try:
                    found = await snapshot.reader.find(snapshot.root, [name])
                except Corrupt:
                    refused += 1
                else:
                    assert name in found, (name, texts)
                    served += 1
            try:
                page = await snapshot.names(kind, namespace="" if kind is Kind.NAMESPACE else "n")
            except Corrupt:
                refused += 1
            else:
                assert list(page.names) == sorted(texts)
    assert refused
    assert served


async def test_a_listing_below_an_odd_namespace_is_whole_or_corrupt() -> None:
    refused = served = 0
    for below, other in itertools.permutations(("｡", "😀", "\uffee", "中", "𝄞", "\ue000"), 2):
        for count, others in itertools.product(range(1, 9), (0, 1, 3, 4, 7)):
            texts = [f"t{n}" for n in range(count)]
            names = [ObjectName(Kind.TABLE, below, text) for text in texts]
            try:
                snapshot = await utf16_tree(
                    [*names, *(ObjectName(Kind.TABLE, other, f"t{n}") for n in range(others))]
                )
                for limit in (0, 2):
                    page = await snapshot.names(Kind.TABLE, namespace=below, limit=limit)
                    assert list(page.names) == texts[: limit or None]
            except Corrupt:
                refused += 1
            else:
                served += 1
    assert refused
    assert served > refused


# --- opening ---------------------------------------------------------------------------------------


async def test_fault_27_both_widths_in_one_place_are_refused(goldens: Any, in_memory: Copy) -> None:
    storage = await in_memory(goldens["g3-rollback"])
    data = await storage.read(fmt.version_file(0, 64), size_max=1 << 20)
    await storage.put(fmt.version_file(0, 32), data)
    error = await raises(InvalidInput, Journal.open(storage))
    assert error.kind == "two_histories"
    assert "32 and with 64 digits" in str(error)
    assert error.hint


async def test_a_catalog_pruned_by_deleting_is_refused_with_what_is_wrong(
    goldens: Any, in_memory: Copy
) -> None:
    storage = await in_memory(goldens["g3-rollback"])
    for version in (0, 1):
        await storage.delete(fmt.version_file(version, 64))
    error = await raises(Corrupt, Journal.open(storage))
    assert error.kind == "corrupt_history"
    assert "no version 0" in error.message
    assert "restore" in error.hint
    assert error.path.startswith("vn/")


async def test_a_folder_that_is_no_catalog(tmp_path: Path) -> None:
    error = await raises(NotFound, Journal.open(await asyncio.to_thread(LocalStorage, str(tmp_path))))
    assert error.kind == "no_catalog"


@pytest.mark.parametrize("damage", ["empty", "torn", "first half", "zeroes"])
async def test_fault_38_a_torn_or_empty_root_fails_closed(damage: str, goldens: Any, in_memory: Copy) -> None:
    storage = await in_memory(goldens["g1-small"])
    slot = fmt.version_file(16, 64)
    data = await storage.read(slot, size_max=1 << 20)
    broken = {
        "empty": b"",
        "torn": data[:-1],
        "first half": data[: len(data) // 2],
        "zeroes": bytes(len(data)),
    }[damage]
    await storage.put(slot, broken)
    error = await raises(Corrupt, Journal.open(storage))
    assert (error.path, error.kind) == (slot, "corrupt_node")
    # A process below the broken version keeps its state, and reports the break each time it looks.
    await storage.put(slot, data)
    journal = await Journal.open(storage)
    await storage.put(fmt.version_file(17, 64), broken)
    error = await raises(Corrupt, journal.refresh())
    assert error.path == fmt.version_file(17, 64)
    assert journal.head.version == 16
    assert same_objects(await objects_of(journal, 16), goldens["g1-small"].objects(16))
    await raises(Corrupt, journal.list(None, Kind.NAMESPACE))


# --- which roots this software wrote ---------------------------------------------------------------


@pytest.mark.parametrize("dropped", ["", "version", "format_revision", "version format_revision", "commit_id",
                                     "commit_id version", "commit_id version format_revision"])  # fmt: skip
@pytest.mark.parametrize("with_actions", [False, True])
async def test_a_root_is_ours_by_its_three_rows(dropped: str, with_actions: bool) -> None:
    """A root counts as this software's if all three rows exist. Without actions a commit id may stand alone, or with
    one of the other two rows."""
    journal = await Journal.create(MemoryStorage())
    path = journal.follower.log.path(0)
    data = await journal.storage.read(path, size_max=1 << 20)
    file = decode_node(data, path, root=True, size_max=1 << 20)
    gone = {f".{name}" for name in dropped.split()}
    system = {key: value for key, value in file.system.items() if key not in gone}
    own = {
        key: value for key, value in system.items() if key not in ("created_at_millis", "n_keys", "n_actions")
    }
    written = encode_node(
        file.node,
        order=128,
        created_at_millis=file.created_at_millis or 0,
        size_max=1 << 20,
        digits=32,
        system=own,
        actions=list(file.actions) if with_actions else [],
    )
    await journal.storage.put(path, written)
    left = {"commit_id", "version", "format_revision"} - set(dropped.split())
    log = await Log.open(journal.storage)
    if len(left) == 3:
        assert not (await log.read(0)).is_foreign
    elif not left or ("commit_id" in left and not with_actions):
        root = await log.read(0)
        assert root.is_foreign
        assert root.transactions == ()
        assert root.commit_id.startswith("sha256-")
    else:
        error = await raises(Corrupt, log.read(0), kind="corrupt_history")
        assert error.version == 0
    await journal.close()
