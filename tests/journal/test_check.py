"""Every planted damage is found and named, or provably changes no answer of the catalog."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt
from alpheus_journal.format import Kind, parse_version_file
from alpheus_journal.journal import Journal
from alpheus_journal.log.row_checks import strange_rows
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary, Event, Finding
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import NamespaceDef, TableDef
from alpheus_journal.model.operations import (
    AdvancePipeline,
    AppendFiles,
    DropNamespace,
    DropTable,
    OverwriteFiles,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, Model, listed, model_of, put_rows, raises
from alpheus_journal.tree.node import EMPTY, decode_node, encode_node


async def small_catalog(digits: int = 32, format_revision: int = fmt.FORMAT_REVISION) -> Lake:
    """Make a catalog with every kind of operation, file and object, inner nodes included."""
    lake = Lake()
    journal = await lake.create(order=3, version_digits=digits, format_revision=format_revision)
    t, u = lake.table("a", "t"), lake.table("a", "ü")
    await lake.commit(journal, lake.namespace("a"), t, u)
    for begin, more in ((1, [lake.namespace("b")]), (2, [])):
        id = lake.identities.uuid7()
        segment = await put_rows(lake.storage, lake.identities, table_id=t.table_id, transaction_id=id)
        append = AppendFiles(namespace="a", name="t", table_id=t.table_id, segments=(segment,))
        await journal.commit(Transaction(id=id, begin_version=begin, operations=(append, *more)))
    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=u.table_id, transaction_id=id)
    overwrite = OverwriteFiles(namespace="a", name="ü", table_id=u.table_id, segments=(segment,))
    await journal.commit(Transaction(id=id, begin_version=3, operations=(overwrite,)))
    await lake.commit(journal, UpdateCatalog(set={"p": "1"}))
    await lake.commit(journal, UpdateNamespace(name="a", set={"big": "x" * 17_000}))
    await lake.commit(
        journal, AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=2)
    )
    await lake.commit(journal, UpdateTable(namespace="a", name="t", set={"k": "v"}, unset=("z",)))
    await lake.commit(journal, DropTable(namespace="a", name="ü"))
    await lake.commit(journal, *(lake.namespace(f"n{n}") for n in range(6)))
    await lake.commit(journal, DropNamespace(name="n3"), UpdateNamespace(name="n4", set={"a": "b"}))
    return lake


async def copy_of(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage()
    for path in await listed(storage, ""):
        await copy.put(path, await storage.read(path, size_max=1 << 30))
    return copy


async def findings(journal: Journal) -> list[Finding]:
    found = [item async for item in journal.check()]
    assert isinstance(found[-1], CheckSummary)
    return [item for item in found if isinstance(item, Finding)]


async def what_is_found(storage: MemoryStorage) -> list[tuple[str, str, int | None]]:
    """Return (path, kind, version) of every finding; a catalog that does not open is a finding too."""
    try:
        journal = await Journal.open(storage)
    except AlpheusError as error:
        return [(error.path, error.kind, error.version)]
    return [(f.path, f.kind, f.version) for f in await findings(journal)]


async def everything(storage: MemoryStorage) -> tuple[list[Model], list[Event]]:
    """Return the whole content of the catalog: every version's objects, and every event with details."""
    journal = await Journal.open(storage)
    models = [await model_of(journal, version) for version in range(journal.head.version + 1)]
    return models, [e async for e in journal.events(details=True) if isinstance(e, Event)]


def changes_of(events: list[Event]) -> list[object]:
    return [event.changes for event in events]


@pytest.mark.parametrize("digits", [32, 64])
async def test_an_undamaged_catalog(digits: int) -> None:
    lake = await small_catalog(digits)
    journal = await lake.open()
    assert await findings(journal) == []
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    files = await listed(lake.storage, "")
    assert summary.versions == journal.head.version + 1
    assert summary.definitions == sum(path.startswith("def/") for path in files)
    assert summary.manifests == sum(path.startswith("manifest/") for path in files) == 3
    assert summary.nodes == sum(path.startswith("node/") for path in files) > 5
    for after in (-1, 0, 3, summary.versions - 1, summary.versions + 5):
        found = [item async for item in journal.check(after=after)]
        assert len(found) == 1
        assert isinstance(found[0], CheckSummary)
        assert found[0].versions == max(0, min(summary.versions, summary.versions - after - 1))


async def test_every_missing_or_truncated_file_is_named(lane_count: Callable[[int, int], int]) -> None:
    lake = await small_catalog()
    journal = await lake.open()
    oldest, newest = (fmt.version_file(version, 32) for version in (0, journal.head.version))
    assert isinstance(lake.storage, MemoryStorage)
    for path, info in (await listed(lake.storage, "")).items():
        if path in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
            continue
        for size in (None, info.size - 1, info.size // 2, 1, 0)[: lane_count(2, 5)]:
            storage = await copy_of(lake.storage)
            if size is None:
                await storage.delete(path)
            else:
                data = await storage.read(path, size_max=1 << 30)
                await storage.put(path, data[:size])
            found = await what_is_found(storage)
            if size is None and path == newest:
                head = (fmt.LATEST_HINT, "head_missing", journal.head.version)
                assert found == [head], "but for the hint history ends before it"
                continue
            if size is None and path == oldest:
                assert [kind for _, kind, _ in found] == ["corrupt_history"]
                continue
            assert found, f"{path} cut to {size}"
            assert path in [named for named, _, _ in found], f"{path} cut to {size}: {found}"


async def test_every_bit_flip_is_named_or_changes_nothing(lane_count: Callable[[int, int], int]) -> None:
    lake = await small_catalog()
    assert isinstance(lake.storage, MemoryStorage)
    models, events = await everything(lake.storage)
    rng = random.Random(0)
    unnoticed = 0
    for path, info in (await listed(lake.storage, "")).items():
        if path in (fmt.LATEST_HINT, fmt.OLDEST_HINT) or path.startswith("data/"):
            continue  # hints may be wrong, and only the size of data files is known
        data = await lake.storage.read(path, size_max=1 << 30)
        for _ in range(min(info.size, lane_count(1, 400))):
            position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            storage = await copy_of(lake.storage)
            flipped = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            await storage.put(path, flipped)
            where = f"{path} at {position} ^ {bit}"
            found = await what_is_found(storage)
            if found:
                named = [named for named, _, _ in found]
                # A changed key or pointer of a node or root shows in the place that it points to: a version whose tree
                # and actions disagree, a node out of bounds, a missing definition. A root's time shows at the version
                # above it. Limits of a catalog definition have their own errors.
                versions = {version for _, _, version in found}
                near = path.startswith("vn/") and versions & {(own := parse_version_file(path)[0]), own + 1}
                led = path.startswith(("node/", "def/catalog/"))
                assert path in named or near or led, f"{where}: {found}"
                continue
            unnoticed += 1
            then_models, then_events = await everything(storage)
            assert then_models == models, where
            assert changes_of(then_events) == changes_of(events), where
            for old, new in zip(events, then_events, strict=True):
                assert [t.actions for t in old.transactions] == [t.actions for t in new.transactions], where
    assert unnoticed, "padding of Arrow files is not checked, so something must have been"


@pytest.mark.parametrize("field", ["file_count", "row_count", "size_bytes", "segment_size_bytes"])
async def test_a_table_that_tells_a_wrong_size_of_a_segment(field: str) -> None:
    lake = await small_catalog()
    assert isinstance(lake.storage, MemoryStorage)
    found = 0
    for path in await listed(lake.storage, "def/table/"):
        table = decode_definition(Kind.TABLE, await lake.storage.read(path, size_max=1 << 20), path)
        assert isinstance(table, TableDef)
        for number, segment in enumerate(table.segments):
            storage = await copy_of(lake.storage)
            wrong = msgspec.structs.replace(segment, **{field: getattr(segment, field) + 1})
            segments = (*table.segments[:number], wrong, *table.segments[number + 1 :])
            await storage.put(path, encode_definition(msgspec.structs.replace(table, segments=segments)))
            assert path in [named for named, _, _ in await what_is_found(storage)]
            found += 1
    assert found > 3


async def test_a_damaged_catalog_definition() -> None:
    lake = await small_catalog()
    journal = await lake.open()
    for version, path in {
        v: (await journal.follower.root(v)).catalog_def for v in (0, journal.head.version)
    }.items():
        data = await lake.storage.read(path, size_max=1 << 20)
        for position in range(len(data)):
            await lake.storage.put(path, data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            try:
                found = await findings(await lake.open())
            except AlpheusError as error:
                assert error.path == path or error.kind == "newer_format"  # noqa: PT017
                assert version
            else:
                assert found, f"{path} at {position}"
                assert any(path in (f.path, *f.message.replace(",", "").split()) for f in found), found
        await lake.storage.put(path, data)


async def test_reading_a_damaged_catalog_raises_only_our_errors(
    lane_count: Callable[[int, int], int],
) -> None:
    lake = await small_catalog()
    assert isinstance(lake.storage, MemoryStorage)
    rng = random.Random(1)
    paths = sorted(path for path in await listed(lake.storage, ""))
    errors = 0
    for _ in range(lane_count(50, 5000)):
        storage = await copy_of(lake.storage)
        for path in rng.sample(paths, 2):
            data = bytearray(await storage.read(path, size_max=1 << 30))
            for _ in range(rng.choice((1, 3, 30))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            await storage.put(path, bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        try:
            journal = await Journal.open(storage, clock=lake.clock, identities=lake.identities)
        except AlpheusError:
            errors += 1
            continue
        for call in (
            lambda j: j.load_state(),
            lambda j: model_of(j),
            lambda j: j.info(),
            lambda j: findings(j),
            lambda j: j.outcome(lake.identities.uuid7()),
            lambda j: lake.commit(j, lake.namespace("new")),
        ):
            try:
                await call(journal)
            except AlpheusError:
                errors += 1
        for version in range(journal.head.version + 1):
            try:
                await journal.event(version, details=True)
            except AlpheusError:
                errors += 1
    assert errors > 100


async def test_a_lost_definition_of_an_old_version_only() -> None:
    lake = await small_catalog()
    journal = await lake.open()
    (before,) = (await journal.load(1, [fmt.namespace_name("a")])).objects
    assert before is not None
    await lake.storage.delete(before.path)
    # This process has the definition in memory. The check reads the stored file.
    found = await findings(journal)
    assert {finding.path for finding in found} == {before.path}
    assert {finding.kind for finding in found} == {"corrupt_definition"}
    fresh = await lake.open()
    assert (await fresh.load(None, [fmt.namespace_name("a")])).objects[0] is not None
    error = await raises(Corrupt, fresh.load(1, [fmt.namespace_name("a")]), kind="corrupt_definition")
    assert error.path == before.path
    assert error.hint


async def test_a_definition_exchanged_for_another_valid_one() -> None:
    lake = await small_catalog()
    journal = await lake.open()
    (stored,) = (await journal.load(None, [fmt.namespace_name("b")])).objects
    assert stored is not None
    await lake.storage.put(
        stored.path, encode_definition(NamespaceDef(id=lake.identities.uuid4(), properties={"x": "y"}))
    )
    (finding,) = await findings(await lake.open())
    assert finding.path == stored.path
    assert "namespace b" in finding.message


async def rewritten(lake: Lake, version: int, **changes: object) -> None:
    """Replace some parts of a version's root."""
    journal = await lake.open()
    path = journal.follower.log.path(version)
    file = decode_node(await lake.storage.read(path, size_max=1 << 20), path, root=True, size_max=1 << 20)
    system = {
        key: value
        for key, value in file.system.items()
        if key not in (fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS)
    }
    await lake.storage.put(
        path,
        encode_node(
            changes.get("node", file.node),  # type: ignore[arg-type]
            order=3,
            created_at_millis=changes.get("created_at", file.created_at_millis),  # type: ignore[arg-type]
            size_max=1 << 20,
            system=system,
            actions=changes.get("actions", file.actions),  # type: ignore[arg-type]
        ),
    )


async def test_actions_and_trees_that_disagree() -> None:
    lake = await small_catalog()
    log = (await lake.open()).follower.log
    root = await log.read(1)
    file = decode_node(
        await lake.storage.read(root.path, size_max=1 << 20), root.path, root=True, size_max=1 << 20
    )
    actions = file.actions
    assert len(actions) == 4
    # With one action dropped, the header's count is wrong. With all actions dropped, the difference has no explanation.
    for kept, kind in (
        (actions[:3], "corrupt_action"),
        (actions[1:], "corrupt_history"),
        ((), "corrupt_history"),
        ((actions[0], *reversed(actions[1:])), "corrupt_action"),
        ((*actions[:3], actions[2]), "corrupt_history"),
        ((*actions[:3], (actions[3][0], "!!!")), "corrupt_action"),
    ):
        await rewritten(lake, 1, actions=kept)
        found = await findings(await lake.open())
        assert kind in [finding.kind for finding in found if finding.version == 1], (kind, found)
        assert {finding.path for finding in found if finding.version == 1} == {root.path}
        await rewritten(lake, 1, actions=actions)
    assert await findings(await lake.open()) == []
    # A tree that lost the objects that its actions created.
    empty = (await log.read(0)).node
    await rewritten(lake, 1, node=empty)
    found = await findings(await lake.open())
    assert {(f.kind, f.version) for f in found} == {("corrupt_history", 1), ("corrupt_history", 2)}
    await rewritten(lake, 1, node=root.node)
    # Time that goes backwards.
    await rewritten(lake, 1, created_at=1)
    found = await findings(await lake.open())
    assert [(f.kind, f.version, f.path) for f in found] == [("corrupt_history", 1, root.path)]


async def test_an_underfull_node_of_ours_is_a_finding_and_of_another_writer_none() -> None:
    """The padding shows which writer made a node."""
    for order, expected in ((3, True), (2, False)):
        lake = await small_catalog()
        (path, *_) = await listed(lake.storage, "node/")
        data = encode_node(EMPTY, order=order, created_at_millis=1, size_max=1 << 20)
        await lake.storage.put(path, data)
        texts = [f.message for f in await findings(await lake.open()) if f.kind == "corrupt_tree"]
        assert any(path in text and "at least" in text for text in texts) == expected


async def test_a_check_goes_on_past_a_damaged_version() -> None:
    lake = await small_catalog()
    log = (await lake.open()).follower.log
    for version in (2, 5):
        await lake.storage.put(log.path(version), b"garbage")
    found = await findings(await lake.open())
    assert [(f.version, f.path, f.kind) for f in found] == [
        (version, log.path(version), "corrupt_node") for version in (2, 5)
    ]
    after = [item async for item in (await lake.open()).check(after=2)]
    assert {f.path for f in after if isinstance(f, Finding)} == {log.path(2), log.path(5)}


async def test_a_damaged_next_version_is_a_finding_of_a_running_process() -> None:
    lake = await small_catalog()
    journal = await lake.open()
    path = journal.follower.log.path(journal.head.version + 1)
    await lake.storage.put(path, b"garbage")
    assert [(f.path, f.kind) for f in await findings(journal)] == [(path, "corrupt_node")]
    error = await raises(Corrupt, journal.load(None, [fmt.CATALOG]), kind="corrupt_node")
    assert error.path == path
    # Versions below the damage stay readable.
    assert await model_of(journal, journal.head.version)


# --- rows of roots ---------------------------------------------------------------------------------

NEW_ROWS = (fmt.ROW_CHECKSUM, fmt.ROW_CATALOG_ID, fmt.ROW_PREVIOUS_COMMIT_ID)


async def root_bytes(lake: Lake, version: int) -> bytes:
    return await lake.storage.read(fmt.version_file(version, 32), size_max=1 << 30)


def flips_of(data: bytes, count: int | None) -> list[tuple[int, int]]:
    every = [(position, 1 << bit) for position in range(len(data)) for bit in range(8)]
    return every if count is None else random.Random(len(data)).sample(every, count)


async def test_every_bit_of_a_root_is_refused_or_named_or_says_nothing(
    lane_count: Callable[[int, int], int],
) -> None:
    lake = await small_catalog(format_revision=1)
    journal = await lake.open()
    log = Log(MemoryStorage(), 32)
    for path in await listed(lake.storage, "action/"):
        await log.storage.put(path, await lake.storage.read(path, size_max=1 << 30))
    count = lane_count(400, 0) or None
    refused = named = same = 0
    for version in range(journal.head.version + 1):
        data = await root_bytes(lake, version)
        await log.storage.put(log.path(version), data)
        good, file = await log.read(version), decode_node(data, "", root=True, size_max=1 << 30)
        for position, bit in flips_of(data, count):
            flipped = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            await log.storage.put(log.path(version), flipped)
            try:
                read = await log.read(version)
            except AlpheusError:
                refused += 1
                continue
            now = decode_node(flipped, "", root=True, size_max=1 << 30)
            if not read.has_checksum:
                assert list(strange_rows(now, read, journal.keys)), (version, position, bit)
                named += 1
                continue
            assert (read, now) == (good, file), (version, position, bit)
            same += 1
    assert refused > named > 0
    assert same, "padding of Arrow files is not compared"


async def of_an_earlier_release(lake: Lake, version: int, **changes: object) -> None:
    """Store the root of a version without the rows of later releases, with some parts replaced."""
    path = fmt.version_file(version, 32)
    file = decode_node(await root_bytes(lake, version), path, root=True, size_max=1 << 30)
    computed = (fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS)
    system = {key: value for key, value in file.system.items() if key not in (*computed, *NEW_ROWS)}
    data = encode_node(
        file.node,
        order=3,
        created_at_millis=changes.get("created_at", file.created_at_millis),  # type: ignore[arg-type]
        size_max=1 << 20,
        system=system | changes.get("system", {}),  # type: ignore[operator]
        actions=changes.get("actions", file.actions),  # type: ignore[arg-type]
    )
    await lake.storage.put(path, data)


async def earlier_catalog() -> Lake:
    lake = await small_catalog(format_revision=1)
    for version in range((await lake.open()).head.version + 1):
        await of_an_earlier_release(lake, version)
    assert await findings(await lake.open()) == []
    return lake


@pytest.mark.parametrize("version", [1, 4, 11])
async def test_what_a_root_of_an_earlier_release_says_wrongly_is_named(version: int) -> None:
    lake = await earlier_catalog()
    path = fmt.version_file(version, 32)
    data = await root_bytes(lake, version)
    file = decode_node(data, path, root=True, size_max=1 << 30)
    keys = [key for key, _ in file.actions]
    changes: list[dict[str, object]] = [
        {"system": {fmt.ROW_COMMIT_ID: "50f24455-6f25-42a2-9a92-118719c78df"}},
        {"system": {fmt.ROW_COMMIT_ID: "50f2$455-6f25-42a2-9a92-118719c78df4"}},
        {"system": {fmt.ROW_FORMAT_REVISION: "0"}},
        {"system": {fmt.ROW_CATALOG_ID: (await lake.open()).catalog_id}},
        {"created_at": (file.created_at_millis or 0) - 1},
    ]
    for number, key in enumerate(keys):
        flipped = key[:-1] + chr(ord(key[-1]) ^ 1)
        rows = [(k if i != number else flipped, v) for i, (k, v) in enumerate(file.actions)]
        changes.append({"actions": rows})
    for change in changes:
        await of_an_earlier_release(lake, version, **change)
        found = await findings(await lake.open())
        assert path in {finding.path for finding in found}, change
        await lake.storage.put(path, data)
    assert await findings(await lake.open()) == []


@pytest.mark.parametrize("digits", [32, 64])
async def test_the_checksum_is_what_the_format_says(digits: int) -> None:
    lake = await small_catalog(digits)
    for version in range((await lake.open()).head.version + 1):
        data = await lake.storage.read(fmt.version_file(version, digits), size_max=1 << 30)
        rows = pa.ipc.open_file(data).read_all().to_pydict()
        at = rows["key"].index(fmt.ROW_CHECKSUM)
        told, rows["value"][at] = rows["value"][at], ""
        texts = [text for column in ("key", "value", "pnode") for text in rows[column]]
        crc = zlib.crc32(b"".join(b"\x01\0" if text is None else text.encode() + b"\0" for text in texts))
        assert told == f"{crc:08x}"
