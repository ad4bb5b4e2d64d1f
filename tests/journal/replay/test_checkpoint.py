"""Checkpoints are hints: whatever files their folder holds, the catalog in memory equals a scan of the tree."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.commit.stage import Stager
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    Unavailable,
)
from alpheus_journal.format import Key, Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import LATEST, StoredObject
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import Reference, TableDef
from alpheus_journal.model.operations import (
    CreateView,
    DropNamespace,
    DropTable,
    RenameObject,
    UpdateCatalog,
    UpdateNamespace,
)
from alpheus_journal.replay import checkpoint as module
from alpheus_journal.replay import loader as replay_module
from alpheus_journal.replay.checkpoint import (
    FOLDER,
    Facts,
    checkpoint_path,
    decode_checkpoint,
    encode_checkpoint,
    parse_checkpoint_path,
)
from alpheus_journal.replay.flat import Flat, column_of, pack
from alpheus_journal.replay.state import State
from alpheus_journal.storage import ObjectInfo, Storage, open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, raises
from alpheus_journal.tree.node import Malformed

FACTS = Facts(
    catalog_id="c", version=3, commit_id="i", created_at_millis=7, version_created_at_millis=6,
    catalog_def="def/catalog/x.binpb", catalog_def_bytes=b"\0\xff", objects=3,
)  # fmt: skip
FLAT = Flat.of(
    [(b"a", StoredObject("p1", b"one")), (b"b", StoredObject("p2", b"")), (b"c", StoredObject("p3", b"3"))]
)


async def contents(journal: Journal) -> dict[Key, StoredObject]:
    state = journal.state
    assert state is not None
    return dict(state.part(Key(""), Key(chr(0x10FFFF)), 10**6))


async def same_as_a_scan(lake: Lake, journal: Journal) -> State:
    """Check that the state of `journal` equals the state of a process without checkpoints. Return the state."""
    fresh = await lake.open()
    wanted = await fresh.replay.load(from_tree=True)
    state = journal.state
    assert state is not None
    assert (state.version, state.entries(), len(state)) == (wanted.version, wanted.entries(), len(wanted))
    assert await contents(journal) == await contents(fresh)
    assert state.get(fmt.CATALOG) == wanted.get(fmt.CATALOG)
    drift = await journal.check_symbols()
    assert (drift.differences, drift.checked) == (0, len(wanted))
    return state


async def loaded(lake: Lake) -> Journal:
    journal = await lake.open()
    await journal.load_state()
    await same_as_a_scan(lake, journal)
    return journal


async def checkpoints(lake: Lake) -> list[str]:
    return sorted([entry.path async for entry in lake.storage.list(FOLDER)])


async def step(lake: Lake, journal: Journal, rng: random.Random) -> None:
    names = ["a", "ab", "ü", "名𝄞"]
    state = journal.state or await journal.load_state()
    living = [name for name in names if state.get(fmt.namespace_name(name))]
    name = rng.choice(names)
    tables = state.names(Kind.TABLE, namespace=name).names if name in living else ()
    operations: list[object] = [UpdateCatalog(set={"k": str(rng.random())})]
    if name not in living:
        operations = [lake.namespace(name), lake.table(name, "t"), lake.table(name, "ß")]
    elif tables and rng.random() < 0.5:
        target = fmt.table_name(name, rng.choice(tables))
        if rng.random() < 0.5:
            operations = [DropTable(namespace=name, name=target.name)]
        else:
            operations = [
                RenameObject(
                    kind=Kind.TABLE, namespace=name, name=target.name, new_namespace=rng.choice(living),
                    new_name=f"r{rng.randrange(10**6)}",
                )
            ]  # fmt: skip
    elif not tables and rng.random() < 0.5:
        operations = [DropNamespace(name=name)]
    elif rng.random() < 0.8:
        operations = [
            UpdateNamespace(name=name, set={"k": str(rng.random())}),
            lake.table(name, f"x{rng.random()}"),
        ]
    await lake.commit(journal, *operations)  # type: ignore[arg-type]


@pytest.mark.parametrize("digits", [32, 64])
async def test_any_history_with_checkpoints_at_any_moment(
    digits: int, lane_count: Callable[[int, int], int]
) -> None:
    for seed in range(lane_count(2, 100)):
        rng, lake = random.Random(seed), Lake(seed=seed)
        writers = [await lake.create(order=4, version_digits=digits), await lake.open()]
        for _ in range(20):
            writer = rng.choice(writers)
            await writer.refresh()
            await step(lake, writer, rng)
            if rng.random() < 0.25:
                info = await rng.choice(writers).checkpoint()
                assert parse_checkpoint_path(info.path) == (info.version, digits)
            if rng.random() < 0.2:
                journal = await loaded(lake)
                known = [parse_checkpoint_path(path) for path in await checkpoints(lake)]
                assert journal.replay.counts.loads_from_checkpoint == bool(known)
                await journal.compact_symbols()
                await journal.replay._merge()
                await step(lake, journal, rng)
                await same_as_a_scan(lake, journal)
        assert len(await checkpoints(lake)) <= 6  # each writer keeps three of the checkpoints that it knows


# --- bytes -----------------------------------------------------------------------------------------


def rows_of(flat: Flat) -> list[tuple[bytes, str, bytes]]:
    return [(flat.keys[row], flat.path(row), flat.definitions[row]) for row in range(len(flat))]


def test_bytes_go_out_and_come_back() -> None:
    data = encode_checkpoint(FLAT, FACTS)
    facts, flat = decode_checkpoint(data)
    assert (facts, rows_of(flat), flat.missing) == (FACTS, rows_of(FLAT), [])
    facts, flat = decode_checkpoint(encode_checkpoint(Flat.of([]), msgspec.structs.replace(FACTS, objects=0)))
    assert len(flat) == 0


def test_a_flip_of_any_bit_is_seen_or_changes_nothing(lane_count: Callable[[int, int], int]) -> None:
    data = bytearray(encode_checkpoint(FLAT, FACTS))
    refused = 0
    bits = range(8 * len(data)) if lane_count(0, 1) else range(3, 8 * len(data), 7)
    for bit in bits:
        data[bit >> 3] ^= 1 << (bit & 7)
        try:
            facts, flat = decode_checkpoint(bytes(data))
        except (Malformed, InvalidInput):
            refused += 1
        else:
            assert (facts, rows_of(flat), flat.missing) == (FACTS, rows_of(FLAT), [])
        data[bit >> 3] ^= 1 << (bit & 7)
    assert refused > len(bits) / 4


def test_a_cut_anywhere_is_seen() -> None:
    data = encode_checkpoint(FLAT, FACTS)
    for length in range(len(data)):
        with pytest.raises(Malformed):
            decode_checkpoint(data[:length])


def forged(columns: list[pa.Array], *, schema: pa.Schema = module.SCHEMA, **options: object) -> bytes:
    """Return a checkpoint with these columns, and with right checksums where they can be computed."""
    rows = len(columns[0])
    try:
        sums = module._checksums(Flat(*columns), rows)
    except (AttributeError, TypeError, ValueError):
        sums = ""
    metadata = module._metadata(msgspec.structs.replace(FACTS, objects=rows), sums)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(columns, schema=schema.with_metadata(metadata))
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


GOOD = [column_of([b"a", b"b"]), column_of([b"p", b"q"]), column_of([b"x", None])]
ONE_MORE = [column_of([b"p"]), column_of([b"x"])]
OTHER = pa.schema([pa.field("key", pa.string()), *list(module.SCHEMA)[1:]])
HOSTILE = {
    "unsorted": (forged([column_of([b"b", b"a"]), *GOOD[1:]]), "ascend"),
    "twice": (forged([column_of([b"a", b"a"]), *GOOD[1:]]), "ascend"),
    "an empty key": (forged([column_of([b"", b"a"]), *GOOD[1:]]), "ascend"),
    "a path that is no text": (forged([GOOD[0], column_of([b"p", b"\xff"]), GOOD[2]]), "Arrow"),
    "no path": (forged([GOOD[0], column_of([b"p", None]), GOOD[2]]), "null"),
    "compressed": (forged([column_of([b"a" * 10**5]), *ONE_MORE], compression="zstd"), "compressed"),
    "another schema": (forged([pa.array(["a", "b"]), *GOOD[1:]], schema=OTHER), "columns"),
    "nothing": (b"", "Arrow"),
    "something else": (b"ARROW1" * 100, "length"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(Malformed, match=reason):
        decode_checkpoint(data)


def test_one_that_is_forged_well_is_read() -> None:
    facts, flat = decode_checkpoint(forged(GOOD))
    assert (facts.objects, flat.missing) == (2, [1])


def test_offsets_that_lead_elsewhere() -> None:
    good = b"".join(number.to_bytes(8, "little") for number in (0, 1, 2, 3))
    data = encode_checkpoint(FLAT, FACTS)
    assert data.count(good) == 1
    for offsets in ([0, 5, 1, 3], [0, 1, 2, 10**12], [-5, 1, 2, 3], [2, 1, 2, 3], [0, 1, 2, 4]):
        wrong = b"".join(number.to_bytes(8, "little", signed=True) for number in offsets)
        with pytest.raises(Malformed):
            decode_checkpoint(data.replace(good, wrong))


@pytest.mark.parametrize("column", [0, 1, 2])
def test_values_that_begin_later_are_refused(column: int) -> None:
    """The checksums are right, but a second encoding would give other checksums, so no process could store it again."""
    columns = list(GOOD)
    late = pa.py_buffer(b"".join(number.to_bytes(8, "little") for number in (1, 2, 3)))
    columns[column] = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2, [None, late, pa.py_buffer(b"_ab")]
    )
    flat = Flat(*columns)
    facts = msgspec.structs.replace(FACTS, objects=2)
    # Arrow writes offsets that begin at 0, so the test replaces the bytes itself.
    metadata = module._metadata(facts, module._checksums(flat, 2))
    plain = [column_of([b"ab", b"b"]) if n == column else other for n, other in enumerate(columns)]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(plain, schema=module.SCHEMA.with_metadata(metadata))
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    placed = b"".join(number.to_bytes(8, "little") for number in (0, 2, 3))
    assert data.count(placed) == 1
    data = data.replace(placed, late.to_pybytes()).replace(b"abb" + bytes(5), b"_ab" + bytes(5))
    with pytest.raises(Malformed, match="begin at 0"):
        decode_checkpoint(data)


def test_metadata_that_says_too_much() -> None:
    data = encode_checkpoint(FLAT, FACTS)
    for row, wrong in (
        ("objects", b"4"),
        ("version", b"x"),
        ("version", b"9" * 30),
        ("catalog_def", b"../x"),
    ):
        metadata = module._metadata(FACTS, module._checksums(FLAT, 3)) | {f"alpheus.{row}": wrong.decode()}
        metadata[module._METADATA_CHECKSUM] = module._metadata_checksum(metadata)
        table = pa.ipc.open_file(data).read_all().replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(Malformed):
            decode_checkpoint(sink.getvalue().to_pybytes())


# --- skipped checkpoints ---------------------------------------------------------------------------


async def lake_of_tables() -> tuple[Lake, Journal]:
    lake = Lake()
    journal = await lake.create(order=4)
    await lake.commit(
        journal, lake.namespace("a"), *(lake.table("a", f"t{number:02}") for number in range(30))
    )
    await journal.load_state()
    return lake, journal


def rewritten(data: bytes, flat: Flat | None = None, **changes: object) -> bytes:
    facts, old = decode_checkpoint(data)
    flat = flat or old
    return encode_checkpoint(flat, msgspec.structs.replace(facts, objects=len(flat), **changes))


def with_another_path(data: bytes) -> bytes:
    """Replace all entries by other entries: any sample meets the difference."""
    _, flat = decode_checkpoint(data)
    entries = [(flat.keys[row], StoredObject("def/table/other.binpb", b"x")) for row in range(len(flat))]
    return rewritten(data, Flat.of(entries))


def with_other_definitions(data: bytes) -> bytes:
    _, flat = decode_checkpoint(data)
    return rewritten(
        data, Flat.of([(flat.keys[row], StoredObject(flat.path(row), b"x")) for row in range(len(flat))])
    )


def newer(data: bytes) -> bytes:
    table = pa.ipc.open_file(data).read_all()
    metadata = dict(table.schema.metadata) | {b"alpheus.checkpoint": b"2"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


WRONGS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-100], "damaged"),
    "flipped": (lambda data: data.replace(b"def/table/", b"dex/table/", 1), "damaged"),
    "empty": (lambda _: b"", "damaged"),
    "of another catalog": (lambda data: rewritten(data, catalog_id="other"), "other_catalog"),
    "of another history": (lambda data: rewritten(data, commit_id="other"), "other_history"),
    "of another version": (lambda data: rewritten(data, version=1), "damaged"),
    "newer": (newer, "newer_format"),
    "another path": (with_another_path, "disagrees"),
    "other definitions": (with_other_definitions, "disagrees"),
    "another catalog definition": (
        lambda data: rewritten(data, catalog_def="def/catalog/x.binpb"),
        "disagrees",
    ),
}


@pytest.mark.parametrize("what", WRONGS)
async def test_what_is_wrong_is_passed_over_with_the_reason(what: str) -> None:
    lake, journal = await lake_of_tables()
    older = await journal.checkpoint()
    await lake.commit(journal, lake.table("a", "later"), DropTable(namespace="a", name="t05"))
    info = await journal.checkpoint()
    await lake.commit(journal, lake.table("a", "last"))
    wrong, reason = WRONGS[what]
    await lake.storage.put(info.path, wrong(await lake.storage.read(info.path, size_max=10**9)))
    reader = await loaded(lake)
    assert [(skipped.path, skipped.reason) for skipped in reader.replay.skipped] == [(info.path, reason)]
    assert reader.replay.counts.skipped[reason] == 1
    assert reader.replay.counts.loads_from_checkpoint == 1
    await lake.storage.delete(older.path)
    reader = await loaded(lake)
    assert reader.replay.counts.loads_from_tree == 1


async def test_other_files_of_the_folder_and_later_versions_are_no_matter() -> None:
    lake, journal = await lake_of_tables()
    info = await journal.checkpoint()
    data = await lake.storage.read(info.path, size_max=10**9)
    uuid = lake.identities.uuid4()
    for path in (
        checkpoint_path(99, 32, uuid), checkpoint_path(1, 64, uuid), f"{FOLDER}x",
        info.path.replace(".arrow", ".index.arrow"),
    ):  # fmt: skip
        await lake.storage.put(path, data)
    reader = await loaded(lake)
    assert (reader.replay.skipped, reader.replay.counts.loads_from_checkpoint) == ([], 1)
    assert parse_checkpoint_path(checkpoint_path(5, 32, uuid)) == (5, 32)


async def test_a_damaged_definition_is_read_again() -> None:
    lake, journal = await lake_of_tables()
    name = fmt.table_name("a", "t07")
    held = (await journal.load(None, [name])).objects[0]
    assert held is not None
    await lake.storage.delete(held.path)
    writer = await lake.open()
    await writer.load_state()
    info = await writer.checkpoint()
    (row,) = decode_checkpoint(await lake.storage.read(info.path, size_max=10**9))[1].missing
    assert writer.state is not None
    assert writer.state.get(name) == StoredObject(held.path, b"", writer.state.get(name).damage)  # type: ignore[union-attr]
    reader = await loaded(lake)
    assert reader.replay.counts.loads_from_checkpoint == 1
    await raises(Corrupt, reader.load(None, [name]))
    assert "t07" in (await reader.list(None, Kind.TABLE, namespace="a")).names
    again = await reader.checkpoint()
    assert decode_checkpoint(await lake.storage.read(again.path, size_max=10**9))[1].missing == [row]
    await lake.storage.put(held.path, held.definition)  # another program restored it
    reader = await loaded(lake)
    assert (await reader.load(None, [name])).objects == (held,)


async def test_a_version_that_expired_still_lends_its_definitions() -> None:
    class Counting(MemoryStorage):
        reads = 0

        async def read(self, path: str, *, size_max: int) -> bytes:
            self.reads += path.startswith("def/table/")
            return await super().read(path, size_max=size_max)

    storage = Counting()
    lake = Lake(storage)
    journal = await lake.create(order=4)
    await lake.commit(
        journal, lake.namespace("a"), *(lake.table("a", f"t{number:02}") for number in range(30))
    )
    await journal.checkpoint()
    await lake.commit(journal, lake.table("a", "new"))
    await lake.expire(below=journal.head.version)
    storage.reads = 0
    reader = await lake.open()
    await reader.load_state()
    assert storage.reads <= 1 + module.SAMPLE_DEFINITIONS
    await same_as_a_scan(lake, reader)
    # The head itself never expires: a checkpoint of the head is enough.
    await reader.checkpoint()
    assert (await loaded(lake)).replay.counts.loads_from_checkpoint == 1


# --- several checkpoints ---------------------------------------------------------------------------


async def test_daemons_that_write_and_delete_at_once(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(2, 50)):
        rng, lake = random.Random(seed), Lake(seed=seed)
        daemons = [await lake.create(order=4), await lake.open(), await lake.open()]
        for number, daemon in enumerate(daemons):
            daemon.replay.checkpoints_kept = 1 + number % 2
            await daemon.load_state()
        await lake.commit(daemons[0], lake.namespace("a"))

        async def work(daemon: Journal, rng: random.Random = rng, lake: Lake = lake) -> None:
            for _ in range(6):
                await daemon.refresh()
                name = f"t{rng.randrange(10**6)}"
                with contextlib.suppress(Conflict):
                    await daemon.commit(lake.transaction(daemon, lake.table("a", name)))
                await asyncio.sleep(0)
                await daemon.checkpoint()
                reader = await lake.open()
                await reader.load_state()

        async with asyncio.TaskGroup() as tasks:
            for daemon in daemons:
                tasks.create_task(work(daemon))
        for daemon in daemons:
            await daemon.refresh()
            await same_as_a_scan(lake, daemon)
        await loaded(lake)


async def test_one_that_is_deleted_while_it_is_opened() -> None:
    class Vanishing(MemoryStorage):
        is_on = False

        async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            async for entry in super().list(prefix):
                yield entry
            if prefix == FOLDER and self.is_on:
                for path in [path for path in self._files if path.startswith(FOLDER)][-1:]:
                    await self.delete(path)

    storage = Vanishing()
    lake = Lake(storage)
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    await journal.checkpoint()
    reader = await lake.open()
    storage.is_on = True
    await reader.load_state()
    assert [skipped.reason for skipped in reader.replay.skipped] == ["gone"]
    assert reader.replay.counts.loads_from_tree == 1


async def test_on_a_disk_it_is_mapped_and_swapped_in(tmp_path: Path) -> None:
    lake = Lake(await asyncio.to_thread(open_storage, str(tmp_path / "lake"), create=True))
    journal = await lake.create()
    await journal.load_state()
    for number in range(5):
        await lake.commit(journal, lake.namespace(f"n{number}"))
        assert journal.state is not None
        assert journal.state.overlay_count > 0
        info = await journal.checkpoint()
        assert journal.state.overlay_count == 0
        assert (info.version, info.objects) == (number + 1, number + 1)
        assert await journal.checkpoint() == info  # it exists already
    kept = await checkpoints(lake)
    assert len(kept) == 3
    assert journal.replay.last_checkpoint is not None
    local = Path(lake.storage.local_path(journal.replay.last_checkpoint.path) or "")
    assert local.stat().st_size == journal.replay.last_checkpoint.size_bytes
    reader = await loaded(lake)
    assert (reader.replay.counts.loads_from_checkpoint, reader.replay.overlay_count) == (1, 0)
    for path in kept:
        await lake.storage.delete(path)  # mapped files stay
    await same_as_a_scan(lake, reader)
    link = Path(lake.storage.local_path(kept[0]) or "")
    link.symlink_to(tmp_path / "elsewhere")
    assert (await loaded(lake)).replay.counts.loads_from_tree == 1
    for each in (journal, reader):
        await each.replay.close()
    await lake.storage.close()


async def test_a_large_one_of_a_remote_store_is_copied_to_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAPPED_SIZE_BYTES", 0)
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    reader = await lake.open()
    reader.replay.cache_dir = str(tmp_path)
    await reader.load_state()
    await same_as_a_scan(lake, reader)
    assert list(tmp_path.iterdir()) == []  # the copy has no name
    nowhere = await lake.open()
    nowhere.replay.cache_dir = str(tmp_path / "missing")
    await nowhere.load_state()
    assert nowhere.replay.counts.loads_from_tree == 1


# --- wrong memory ----------------------------------------------------------------------------------


async def test_a_state_that_drifted_is_not_stored() -> None:
    lake, journal = await lake_of_tables()
    state = journal.state
    assert state is not None
    gone, extra = (pack(journal.keys.key(fmt.table_name("a", name))) for name in ("t03", "zz"))
    state._overlay |= {gone: None, extra: StoredObject("def/table/x.binpb", b"")}
    state._order = sorted(state._overlay)
    error = await raises(Corrupt, journal.checkpoint())
    assert error.kind == "state_drift"
    assert "table a.t03" in error.message
    assert "table a.zz" in error.message
    assert await checkpoints(lake) == []
    assert (journal.replay.counts.checkpoint_failures, journal.replay.counts.drifts) == (1, 2)
    assert (journal.replay.counts.invalidations, journal.state) == (1, None)
    await journal.replay.rebuild()
    await same_as_a_scan(lake, journal)
    await journal.checkpoint()


async def test_symbols_that_were_compacted_while_a_checkpoint_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, journal = await lake_of_tables()
    write = replay_module.write_checkpoint

    async def slowly(storage: Storage, path: str, flat: Flat, facts: Facts) -> int:
        size = await write(storage, path, flat, facts)
        await lake.commit(journal, lake.table("a", "zz"), DropTable(namespace="a", name="t03"))
        await journal.compact_symbols()
        await lake.commit(journal, lake.table("a", "yy"), DropTable(namespace="a", name="t04"))
        return size

    monkeypatch.setattr(replay_module, "write_checkpoint", slowly)
    await journal.checkpoint()
    assert journal.replay.symbol_compactions == 1
    assert not (await journal.check_symbols()).differences
    await same_as_a_scan(lake, journal)
    assert journal.replay.symbols is not None
    assert journal.state is not None
    assert journal.replay.symbols.base is journal.state.flat.keys
    await journal.compact_symbols()
    assert not (await journal.check_symbols()).differences


def forget(journal: Journal, *names: str) -> None:
    """Remove tables of namespace a from memory."""
    state = journal.state
    assert state is not None
    state._overlay |= {pack(journal.keys.key(fmt.table_name("a", name))): None for name in names}
    state._order = sorted(state._overlay)


async def test_memory_that_a_version_contradicts_is_left() -> None:
    """From then on the process reads the tree, until the catalog was loaded into memory again."""
    lake, journal = await lake_of_tables()
    forget(journal, "t03")
    other = await lake.open()
    await lake.commit(other, DropTable(namespace="a", name="t03"))
    assert (await journal.refresh()).version == 2
    assert (journal.state, journal.replay.symbols, journal.replay.counts.invalidations) == (None, None, 1)
    assert "table a.t03" in journal.replay.invalid_reason
    (found,) = (await journal.load(LATEST, [fmt.table_name("a", "t04")])).objects
    assert found is not None
    await journal.replay.rebuild()
    assert journal.replay.invalid_reason == ""
    await same_as_a_scan(lake, journal)


async def test_what_only_memory_believes_is_never_written() -> None:
    """A table that memory lost is not created again over the existing table."""
    lake, journal = await lake_of_tables()
    forget(journal, "t03", "t05")
    names = [fmt.table_name("a", "t03"), fmt.table_name("a", "t05")]
    fresh = await lake.open()
    before, _ = (await fresh.load(LATEST, names)).objects
    error = await raises(AlreadyExists, lake.commit(journal, lake.table("a", "t03")))
    assert "a.t03" in error.message
    assert (journal.head.version, journal.replay.counts.invalidations) == (1, 1)
    await lake.commit(journal, DropTable(namespace="a", name="t05"))
    for each in (fresh, journal):
        assert (await each.load(LATEST, names)).objects == (before, None)
    await journal.replay.rebuild()
    await same_as_a_scan(lake, journal)


async def test_what_a_commit_rests_on_is_asked_of_the_tree_too() -> None:
    """Memory still holds a dropped namespace: no table is created in this namespace."""
    lake, journal = await lake_of_tables()
    await lake.commit(journal, lake.namespace("b"))
    state = journal.state
    assert state is not None
    key = pack(journal.keys.key(fmt.namespace_name("b")))
    held = state._held(key)
    await lake.commit(journal, DropNamespace(name="b"))
    state._overlay[key] = held
    state._order = sorted(state._overlay)
    error = await raises(NotFound, lake.commit(journal, lake.table("b", "t")))
    assert error.kind == "no_namespace"
    assert (journal.head.version, journal.replay.counts.invalidations) == (3, 1)


async def test_memory_that_is_left_again_while_it_heals_is_healed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, journal = await lake_of_tables()
    journal.replay.invalidate("once")

    async def meanwhile(*args: Any) -> list[str]:
        if journal.replay.counts.invalidations == 1:
            journal.replay.invalidate("twice")
        return []

    monkeypatch.setattr(replay_module, "list_checkpoints", meanwhile)
    await journal.replay.rebuild()
    assert (journal.state, journal.replay.invalid_reason) == (None, "twice")
    await journal.replay.rebuild()
    assert (await same_as_a_scan(lake, journal), journal.replay.invalid_reason)[1] == ""


async def test_a_tree_that_contradicts_itself_ends_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a catalog in memory nothing can be invalidated: the commit fails, without a second attempt."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("b"))
    told = Stager._key_changes

    async def otherwise(self: Stager, *args: Any) -> Any:
        changes = await told(self, *args)
        changes.assumed = dict.fromkeys(changes.assumed, "def/ns/other.binpb")
        return changes

    monkeypatch.setattr(Stager, "_key_changes", otherwise)
    error = await raises(Corrupt, lake.commit(journal, UpdateNamespace(name="b", set={"k": "v"})))
    assert error.kind == "state_drift"
    assert journal.head.version == 1


async def without_a_third(lake: Lake) -> None:
    """Remove ten tables from the checkpoint, which stays valid and right in each row."""
    (path,) = await checkpoints(lake)
    data = await lake.storage.read(path, size_max=1 << 30)
    _, flat = decode_checkpoint(data)
    kept = [row for row in range(len(flat)) if not 10 <= row < 20]
    less = Flat.of((flat.keys[row], StoredObject(flat.path(row), flat.definitions[row])) for row in kept)
    await lake.storage.delete(path)
    await lake.storage.put(path, rewritten(data, less))


async def test_a_checkpoint_that_lacks_objects_is_not_taken() -> None:
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    await without_a_third(lake)
    reader = await loaded(lake)
    assert reader.replay.counts.skipped["disagrees"] == 1
    assert "missing: table a.t" in reader.replay.skipped[0].message


async def test_a_checkpoint_that_misled_is_gone_after_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_LEAVES", 0)  # as if no sample met the fault
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    await without_a_third(lake)
    reader = await lake.open()
    await reader.load_state()
    assert reader.replay.objects_count == 21
    drift = await reader.check_symbols(sample=20)
    assert drift.differences
    assert await reader.load_state() is reader.state
    await same_as_a_scan(lake, reader)  # no load believes a checkpoint before it is healed
    await reader.replay.rebuild()
    assert await checkpoints(lake) == []
    await same_as_a_scan(lake, await loaded(lake))


async def misled(monkeypatch: pytest.MonkeyPatch) -> tuple[Lake, Journal]:
    """Return a process whose memory came from a checkpoint without ten tables, as if no sample met the fault."""
    monkeypatch.setattr(module, "SAMPLE_LEAVES", 0)
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    await without_a_third(lake)
    reader = await lake.open()
    reader.replay.serves_unverified = True  # as a daemon
    await reader.load_state()
    return lake, reader


async def test_a_reload_asked_for_leaves_no_checkpoint_that_misled(monkeypatch: pytest.MonkeyPatch) -> None:
    lake, reader = await misled(monkeypatch)
    assert reader.replay.objects_count == 21
    assert (await reader.reload_symbols()).symbols == 31
    assert await checkpoints(lake) == []
    await same_as_a_scan(lake, reader)
    await same_as_a_scan(lake, await loaded(lake))
    assert reader.replay.lacks_checkpoint
    await reader.checkpoint()
    assert not reader.replay.lacks_checkpoint
    assert (await loaded(lake)).replay.counts.loads_from_checkpoint == 1


async def test_a_reload_that_cannot_delete_them_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lake, reader = await misled(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(lake.storage, "delete", away)
        await raises(Unavailable, reader.reload_symbols())
        await same_as_a_scan(lake, reader)  # memory is right
    await reader.reload_symbols()
    assert await checkpoints(lake) == []


async def test_a_list_without_a_state_is_reloaded_and_no_checkpoint_touched() -> None:
    """A process that never had the catalog in memory never read a checkpoint."""
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    reader = await lake.open()
    assert (await reader.reload_symbols()).symbols == 31
    assert reader.replay.symbols is not None
    reader.replay.symbols._pending[pack(journal.keys.key(fmt.table_name("a", "t03")))] = False
    reader.replay.symbols._view = None
    assert (await reader.check_symbols()).differences == 1
    assert (reader.replay.symbols, bool(reader.replay.invalid_reason)) == (None, True)
    assert (await reader.reload_symbols()).symbols == 31
    assert (reader.state, reader.replay.invalid_reason) == (None, "")
    assert len(await checkpoints(lake)) == 1


async def test_a_check_leaves_what_is_wrong_and_the_next_checkpoint_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds also in a library, where no maintenance heals."""
    lake, reader = await misled(monkeypatch)
    assert len((await reader.list(None, Kind.TABLE, namespace="a")).names) == 20
    assert (await reader.check_symbols()).differences == 10
    assert reader.state is None
    assert len((await reader.list(None, Kind.TABLE, namespace="a")).names) == 30
    made = await reader.checkpoint()
    assert await checkpoints(lake) == [made.path], "what misled is gone"
    await same_as_a_scan(lake, await loaded(lake))


async def test_a_check_of_what_was_replaced_meanwhile_leaves_nothing() -> None:
    lake, journal = await lake_of_tables()
    forget(journal, "t03")
    compare = journal.replay._compare

    async def meanwhile(*args: Any) -> Any:
        drift = await compare(*args)
        await journal.replay.load(from_tree=True)
        return drift

    journal.replay._compare = meanwhile  # type: ignore[method-assign]
    assert (await journal.check_symbols()).differences == 1
    journal.replay._compare = compare  # type: ignore[method-assign]
    assert journal.replay.counts.invalidations == 0
    await same_as_a_scan(lake, journal)


async def test_what_is_distrusted_while_a_checkpoint_is_loaded_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, _ = await misled(monkeypatch)
    reader = await lake.open()
    taken = reader.replay._from_checkpoint

    async def meanwhile(*args: Any) -> Any:
        reader.replay.invalidate("the list of names")
        return await taken(*args)

    reader.replay._from_checkpoint = meanwhile  # type: ignore[method-assign]
    await reader.load_state()
    await same_as_a_scan(lake, reader)


async def away(path: str) -> None:
    raise Unavailable(f"{path}: the storage is away")


async def test_healing_goes_on_where_deleting_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is not read again. Another process that deletes checkpoints does no harm."""
    lake, reader = await misled(monkeypatch)
    reader.replay.invalidate("something")
    with monkeypatch.context() as patched:
        patched.setattr(lake.storage, "delete", away)
        for _ in range(3):
            await raises(Unavailable, reader.replay.rebuild())
            assert reader.replay.needs_rebuild
            await same_as_a_scan(lake, reader)
    assert reader.replay.counts.loads_from_tree == 1
    stored = await checkpoints(lake)
    for path in stored:
        await lake.storage.delete(path)

    async def before(*args: Any) -> list[str]:
        return stored

    monkeypatch.setattr(replay_module, "list_checkpoints", before)
    await reader.replay.rebuild()
    assert not reader.replay.needs_rebuild
    await same_as_a_scan(lake, reader)


async def test_a_state_that_could_not_be_loaded_after_a_jump_is_loaded_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, journal = await lake_of_tables()
    other = await lake.open()
    for number in range(6):
        await lake.commit(other, lake.table("a", f"u{number}"))
    await lake.expire(below=6)
    scan = journal.replay._from_tree
    failed: list[bool] = []

    async def fails(*args: Any) -> State:
        if not failed:
            failed.append(True)
            raise Unavailable("the storage is away for a moment")
        return await scan(*args)

    monkeypatch.setattr(journal.replay, "_from_tree", fails)
    assert (await journal.refresh()).version == 7, "reads go on, from the tree"
    assert (failed, journal.state) == ([True], None)
    assert len((await journal.list(None, Kind.TABLE, namespace="a")).names) == 36
    assert journal.replay.needs_rebuild
    assert "away for a moment" in journal.replay.lost
    await lake.commit(journal, lake.table("a", "v"))
    await journal.replay.rebuild()
    assert (journal.replay.lost, journal.replay.needs_rebuild) == ("", False)
    await same_as_a_scan(lake, journal)
    await lake.commit(journal, DropTable(namespace="a", name="v"))
    await same_as_a_scan(lake, journal)
    assert journal.replay.counts.invalidations == 0


async def test_who_never_had_the_catalog_in_memory_does_not_load_it_after_a_jump() -> None:
    lake, journal = await lake_of_tables()
    reader = await lake.open()
    for number in range(6):
        await lake.commit(journal, lake.table("a", f"u{number}"))
    await lake.expire(below=6)
    assert (await reader.refresh()).version == 7
    assert (reader.state, reader.replay.needs_rebuild) == (None, False)


@pytest.mark.parametrize("is_replayed", [False, True])
async def test_what_a_definition_calls_bound_and_is_no_name_refuses_no_commit(is_replayed: bool) -> None:
    """A name that ends with a space has the same key as the name without the space."""
    lake, journal = await lake_of_tables()
    view = CreateView(
        namespace="a", name="w", view_id=lake.identities.uuid4(), sql="s", dialect="spark", references=(),
        schema_binding=False,
    )  # fmt: skip
    await lake.commit(journal, view)
    (stored,) = (await journal.load(LATEST, [fmt.table_name("a", "t00")])).objects
    assert stored is not None
    table = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(table, TableDef)
    bound = (Reference("a", "w "), Reference("a", ""), Reference("a" * 200, "w"))
    await lake.storage.put(stored.path, encode_definition(msgspec.structs.replace(table, bound_views=bound)))
    reader = await lake.open()
    if is_replayed:
        await reader.load_state()
    await lake.commit(reader, DropTable(namespace="a", name="t00"))
    assert reader.replay.counts.invalidations == 0


async def test_a_damaged_tree_of_an_old_version_harms_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_KEYS", 0)
    lake, journal = await lake_of_tables()
    await journal.checkpoint()
    before = {entry.path async for entry in lake.storage.list("node/")}
    await lake.commit(journal, *(DropTable(namespace="a", name=f"t{number:02}") for number in range(30)))
    for path in before:
        await lake.storage.delete(path)
    reader = await loaded(lake)
    assert reader.replay.counts.loads_from_tree + reader.replay.counts.loads_from_checkpoint == 1


async def test_files_that_cannot_be_opened_do_not_gather(tmp_path: Path) -> None:
    lake, journal = await lake_of_tables()
    journal.replay.cache_dir = str(tmp_path / "missing")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MAPPED_SIZE_BYTES", 0)
        for _ in range(5):
            await raises(Unavailable, journal.checkpoint())
    assert await checkpoints(lake) == []
    await journal.checkpoint()
    assert len(await checkpoints(lake)) == 1


async def test_a_merge_that_fails_is_told_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_journal.replay.state.OVERLAY_MIN", 2)
    lake, journal = await lake_of_tables()

    def fail(*_: object) -> Flat:
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(Flat, "merged", fail)
        await lake.commit(journal, *(lake.table("a", f"u{number}") for number in range(9)))
        await asyncio.gather(*journal.replay._tasks.values())
    assert (journal.replay.counts.merge_failures, journal.replay.counts.merges) == (1, 0)
    assert "no room" in journal.replay.last_failure
    await lake.commit(journal, lake.table("a", "v"))
    assert all(task.done() for task in journal.replay._tasks.values()), "not before the overlay has doubled"
    await lake.commit(journal, *(lake.table("a", f"w{number}") for number in range(9)))
    await asyncio.gather(*journal.replay._tasks.values())
    assert (journal.replay.counts.merges, journal.replay.last_failure) == (1, "")
    assert journal.replay.overlay_count == 0
    await same_as_a_scan(lake, journal)


async def test_a_folder_that_cannot_be_listed_costs_time_only() -> None:
    class Closed(MemoryStorage):
        async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            if prefix == FOLDER:
                raise AlpheusError("not now", kind="storage_unavailable")
            async for entry in super().list(prefix):
                yield entry

    lake = Lake(Closed())
    journal = await lake.create()
    await journal.load_state()
    assert journal.replay.counts.skipped["unreadable"] == 1


@pytest.mark.parametrize("times", [1, replay_module.VANISHED_MAX])
async def test_one_that_others_delete_at_once_is_written_anew(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow process writes a checkpoint of a version that is already old."""
    lake = Lake()
    journal, other = await lake.create(), await lake.open()
    written: list[str] = []

    async def slow(storage: Storage, path: str, *arguments: Any) -> int:
        size = await write_checkpoint(storage, path, *arguments)
        written.append(path)
        if len(written) <= times:
            await lake.commit(other, UpdateCatalog(set={"n": str(len(written))}))
            await storage.delete(path)
        return size

    write_checkpoint = replay_module.write_checkpoint
    monkeypatch.setattr(replay_module, "write_checkpoint", slow)
    if times == replay_module.VANISHED_MAX:
        await raises(NotFound, journal.checkpoint(), kind="no_file")
        assert len(written) == times
    else:
        info = await journal.checkpoint()
        assert (info.version, info.path) == (other.head.version, written[1])
    assert await lake.storage.exists(written[-1]) == (times == 1)
    assert journal.replay.counts.checkpoint_failures == (times > 1)
    await journal.refresh()
    await same_as_a_scan(lake, journal)


async def test_one_is_not_deleted_for_others_of_its_version() -> None:
    lake = Lake()
    await lake.create()
    for _ in range(8):
        journal = await lake.open()
        journal.replay.checkpoints_kept = 2
        info = await journal.checkpoint()
        assert await lake.storage.exists(info.path)
        assert len(await module.list_checkpoints(lake.storage, journal.follower.log, info.version)) <= 2
