"""Checkpoints with correct checksums and mixed-up or forged content.

A daemon that starts from such a checkpoint is correct after it has compared the checkpoint with the tree. Until then no
commit builds on wrong content. A library reads the tree until then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from alpheus.cli.text import output
from alpheus.model_conversions import info_of
from alpheus_daemon.maintenance import Maintenance
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlreadyExists, Conflict, NotFound
from alpheus_journal.format import Key, Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import LATEST, Finding, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.history_rules import MIN_VERSIONS
from alpheus_journal.model.operations import AdvancePipeline, DropTable, UpdateCatalog, UpdateTable
from alpheus_journal.replay import checkpoint as module
from alpheus_journal.replay import verification as verification_module
from alpheus_journal.replay.checkpoint import FOLDER, Facts, decode_checkpoint, encode_checkpoint
from alpheus_journal.replay.flat import Flat, pack, unpack
from alpheus_journal.replay.symbols import SymbolQuery
from alpheus_journal.testing import Lake, raises
from alpheus_journal.wire import messages as wire

TABLES = 120
Rows = dict[bytes, tuple[str, bytes]]
"""Definition path and definition, by packed key."""


def rows_of(flat: Flat) -> Rows:
    return {flat.keys[row]: (flat.path(row), flat.definitions[row]) for row in range(len(flat))}


class Forge:
    """A catalog with a history, the content of two checkpoints, and the places where a checkpoint may be stored."""

    def __init__(self, lake: Lake, keys: fmt.Keys, path: str, old: Rows, new: Rows, facts: Facts) -> None:
        self.lake, self.path, self.facts = lake, path, facts
        self.old, self.new = old, new
        self.keys = keys

    @classmethod
    async def make(cls) -> Forge:
        lake = Lake()
        journal = await lake.create(order=16)
        await lake.commit(journal, lake.namespace("a", owner="ann"), lake.namespace("b", owner="bob"))
        tables = [lake.table(space, f"t{number:03}") for space in "ab" for number in range(TABLES // 2)]
        await lake.commit(journal, *tables)
        first = await lake.commit(
            journal, AdvancePipeline(name="p", job="j", expected_transaction_id="", pinned_version=2)
        )
        old = await cls._content(lake, journal)
        changed = {"k": "new", MIN_VERSIONS: "100"}
        changes = [UpdateTable(namespace="a", name=f"t{number:03}", set=changed) for number in range(20)]
        await lake.commit(journal, *changes, DropTable(namespace="a", name="t050"), lake.table("b", "later"))
        await lake.commit(
            journal,
            AdvancePipeline(
                name="p", job="j", expected_transaction_id=first.transaction_id, pinned_version=4
            ),
            UpdateCatalog(set={"who": "now"}),
        )
        new = await cls._content(lake, journal)
        (path,) = [entry.path async for entry in lake.storage.list(FOLDER)]
        facts, _ = decode_checkpoint(await lake.storage.read(path, size_max=1 << 30))
        return cls(lake, journal.keys, path, old, new, facts)

    @staticmethod
    async def _content(lake: Lake, journal: Journal) -> Rows:
        for entry in [entry.path async for entry in lake.storage.list(FOLDER)]:
            await lake.storage.delete(entry)
        info = await journal.checkpoint()
        _, flat = decode_checkpoint(await lake.storage.read(info.path, size_max=1 << 30))
        return rows_of(flat)

    def table(self, space: str, number: int) -> bytes:
        return pack(self.keys.key(fmt.table_name(space, f"t{number:03}")))

    async def put(self, rows: Rows, **facts: Any) -> None:
        """Store these rows as an intact checkpoint of the head."""
        flat = Flat.of((key, StoredObject(path, data)) for key, (path, data) in sorted(rows.items()))
        changed = msgspec.structs.replace(self.facts, objects=len(flat), **facts)
        await self.lake.storage.delete(self.path)
        await self.lake.storage.put(self.path, encode_checkpoint(flat, changed))


def swapped(forge: Forge, rng: random.Random) -> Rows:
    one, two = (forge.table("a", number) for number in rng.sample(range(40), 2))
    return forge.new | {one: forge.new[two], two: forge.new[one]}


def swapped_paths(forge: Forge, rng: random.Random) -> Rows:
    one, two = (forge.table("b", number) for number in rng.sample(range(40), 2))
    (path, data), (other_path, other) = forge.new[one], forge.new[two]
    return forge.new | {one: (other_path, data), two: (path, other)}


def swapped_definitions(forge: Forge, rng: random.Random) -> Rows:
    one, two = (forge.table("b", number) for number in rng.sample(range(40), 2))
    (path, data), (other_path, other) = forge.new[one], forge.new[two]
    return forge.new | {one: (path, other), two: (other_path, data)}


def definition_of_another(forge: Forge, rng: random.Random) -> Rows:
    one, two = forge.table("a", rng.randrange(40)), forge.table("b", rng.randrange(40))
    return forge.new | {one: (forge.new[one][0], forge.new[two][1])}


def definition_of_before(forge: Forge, rng: random.Random) -> Rows:
    one = forge.table("a", rng.randrange(20))
    return forge.new | {one: (forge.new[one][0], forge.old[one][1])}


def row_of_before(forge: Forge, rng: random.Random) -> Rows:
    one = forge.table("a", rng.randrange(20))
    return forge.new | {one: forge.old[one]}


def all_of_before(forge: Forge, _: random.Random) -> Rows:
    return forge.old


def some_of_before(forge: Forge, _: random.Random) -> Rows:
    return forge.new | {forge.table("a", number): forge.old[forge.table("a", number)] for number in range(20)}


def left_out(forge: Forge, rng: random.Random) -> Rows:
    return {key: row for key, row in forge.new.items() if key != forge.table("b", rng.randrange(40))}


def run_left_out(forge: Forge, rng: random.Random) -> Rows:
    start = rng.randrange(len(forge.new) - 10)
    gone = set(sorted(forge.new)[start : start + 10])
    return {key: row for key, row in forge.new.items() if key not in gone}


def dropped_comes_back(forge: Forge, _: random.Random) -> Rows:
    return forge.new | {forge.table("a", 50): forge.old[forge.table("a", 50)]}


def added(forge: Forge, rng: random.Random) -> Rows:
    return forge.new | {forge.table("a", 500 + rng.randrange(400)): forge.new[forge.table("a", 3)]}


def renamed(forge: Forge, rng: random.Random) -> Rows:
    rows = dict(forge.new)
    rows[forge.table("b", 900)] = rows.pop(forge.table("b", rng.randrange(40)))
    return rows


def namespaces_swapped(forge: Forge, _: random.Random) -> Rows:
    one, two = (pack(forge.keys.key(fmt.namespace_name(name))) for name in "ab")
    return forge.new | {one: forge.new[two], two: forge.new[one]}


def position_of_before(forge: Forge, _: random.Random) -> Rows:
    key = pack(forge.keys.key(fmt.pipeline_name("p")))
    return forge.new | {key: (forge.new[key][0], forge.old[key][1])}


def garbage(forge: Forge, rng: random.Random) -> Rows:
    one = forge.table("a", rng.randrange(40))
    return forge.new | {one: (forge.new[one][0], rng.randbytes(30))}


def as_it_is(forge: Forge, _: random.Random) -> Rows:
    return forge.new


WAYS: dict[str, Callable[[Forge, random.Random], Rows]] = {
    way.__name__: way
    for way in (
        swapped, swapped_paths, swapped_definitions, definition_of_another, definition_of_before, row_of_before,
        all_of_before, some_of_before, left_out, run_left_out, dropped_comes_back, added, renamed, namespaces_swapped,
        position_of_before, garbage, as_it_is,
    )
}  # fmt: skip


async def started(forge: Forge, *, is_daemon: bool = True) -> Journal:
    journal = await forge.lake.open()
    journal.replay.serves_unverified = is_daemon
    await journal.load_state()
    return journal


def maintained(journal: Journal, **bounds: Any) -> Maintenance:
    settings = {"checkpoint_versions": 10**6, "checkpoint_minutes": 10**5, "drift_check_seconds": 0} | bounds
    return Maintenance(journal, **settings)


async def everything(journal: Journal) -> object:
    """Return everything that reads answer."""
    state = journal.state
    assert state is not None
    found: dict[str, object] = {
        unpack(pack(key)): stored for key, stored in state.part(Key(""), Key(chr(0x10FFFF)), 10**6)
    }
    for space in "ab":
        found[f"list {space}"] = (await journal.list(LATEST, Kind.TABLE, namespace=space)).names
    page = await journal.symbols(None, SymbolQuery())
    loaded = await journal.load(
        LATEST, [fmt.CATALOG, fmt.table_name("a", "t050"), fmt.table_name("a", "t000")]
    )
    return found, len(state), page, loaded.objects, (await journal.info()).definition


async def truth(forge: Forge) -> object:
    fresh = await forge.lake.open()
    await fresh.replay.load(from_tree=True)
    return await everything(fresh)


async def table_of(journal: Journal, space: str, number: int) -> TableDef | None:
    (stored,) = (await journal.load(LATEST, [fmt.table_name(space, f"t{number:03}")])).objects
    if stored is None:
        return None
    found = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(found, TableDef)
    return found


async def build(forge: Forge, journal: Journal, rng: random.Random) -> None:
    """Check that commits on a forged checkpoint change the tree as they should."""
    lake, fresh = forge.lake, await forge.lake.open()
    for space, number in [("a", rng.randrange(60)), ("b", rng.randrange(60)), ("a", 50), ("a", 0)]:
        await fresh.refresh()
        before = await table_of(fresh, space, number)
        change = UpdateTable(namespace=space, name=f"t{number:03}", set={"built": "on it"})
        if before is None:
            await raises(NotFound, lake.commit(journal, change))
            continue
        await lake.commit(journal, change)
        await fresh.refresh()
        after = await table_of(fresh, space, number)
        assert after is not None
        assert msgspec.structs.replace(after, properties={}) == msgspec.structs.replace(before, properties={})
        assert after.properties == before.properties | {"built": "on it"}
    await raises(AlreadyExists, lake.commit(journal, lake.table("a", "t001")))
    await lake.commit(journal, DropTable(namespace="a", name=f"t{51 + rng.randrange(8):03}"))
    behind = AdvancePipeline(name="p", job="j", expected_transaction_id="", pinned_version=9)
    await raises(Conflict, lake.commit(journal, behind))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_start_from_a_forged_one(way: str, lane_count: Callable[[int, int], int]) -> None:
    for start in range(lane_count(2, 40)):
        rng = random.Random(f"{way} {start}")
        forge = await Forge.make()
        await forge.put(WAYS[way](forge, rng))
        journal = await started(forge)
        if rng.random() < 0.7:
            await build(forge, journal, rng)
        maintenance = maintained(journal, comparison_reads_per_second=rng.choice([1, 30, 500]))
        while journal.replay.is_unverified or journal.replay.needs_rebuild:
            if rng.random() < 0.2:
                await forge.lake.commit(journal, UpdateCatalog(set={"k": str(rng.random())}))
            await maintenance.step()
            assert not maintenance.comparisons.last_error
        assert await everything(journal) == await truth(forge), (way, start)
        assert (await journal.info()).unverified_since_millis == 0
        found = [item async for item in (await forge.lake.open()).check()]
        kinds = {item.kind for item in found if isinstance(item, Finding)}
        # A checkpoint that the start's first look passed is still stored. So is one that is wrong only about objects
        # that later versions changed, because memory takes nothing from it.
        counts = journal.replay.counts
        left = {"checkpoint_differs"} if counts.skipped["disagrees"] or not counts.invalidations else set()
        assert not kinds - left, found
        # The next daemon starts correctly too, also if the first look of this one saw the checkpoint and left it
        # stored.
        again = await started(forge)
        await again.replay.verify()
        await again.replay.rebuild()
        assert await everything(again) == await truth(forge), (way, start)


async def unseen(monkeypatch: pytest.MonkeyPatch, way: str) -> Forge:
    """Store a forged checkpoint and switch off the samples that could detect it."""
    for name in ("SAMPLE_KEYS", "SAMPLE_DEFINITIONS", "SAMPLE_LEAVES"):
        monkeypatch.setattr(module, name, 0)
    forge = await Forge.make()
    await forge.put(WAYS[way](forge, random.Random(0)))
    return forge


async def test_until_it_is_compared_info_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = await unseen(monkeypatch, "as_it_is")
    journal = await started(forge)
    since = journal.replay.unverified_since_millis
    assert (journal.replay.is_unverified, since) == (True, forge.lake.clock.millis)
    maintenance = maintained(journal, comparison_reads_per_second=10, checkpoint_versions=1)
    for _ in range(3):
        await forge.lake.commit(journal, UpdateCatalog(set={"k": "v"}))
    await maintenance.step()
    info = await journal.info()
    assert info.unverified_since_millis == since
    assert wire.decode_info(wire.encode_info(info)) == info
    shown = output.info_text(info_of(info, "memory://x"))
    assert "unverified" in shown
    assert journal.replay.counts.checkpoints_written == 0  # nothing unverified is stored again
    while journal.replay.is_unverified:
        await maintenance.step()
    info = await journal.info()
    assert info.unverified_since_millis == 0
    assert "unverified" not in output.info_text(info_of(info, "memory://x"))
    assert (journal.replay.counts.verifications, journal.replay.counts.invalidations) == (1, 0)
    assert journal.replay.counts.checkpoints_written == 1


async def test_no_more_is_read_at_once_than_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison reads only nodes for the keys, then definitions, within the limits."""
    monkeypatch.setattr(verification_module, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(verification_module, "DEFINITIONS_AT_ONCE", 8)
    forge = await unseen(monkeypatch, "as_it_is")
    journal = await started(forge)
    read: list[str] = []
    whole = type(forge.lake.storage).read_many

    async def counted(self: Any, paths: list[str], **options: Any) -> Any:
        read.extend(paths)
        return await whole(self, paths, **options)

    monkeypatch.setattr(type(forge.lake.storage), "read_many", counted)
    kinds = []
    while journal.replay.is_unverified:
        del read[:]
        await journal.replay.verify(20)
        assert len(read) <= 20 + 8
        kinds += [path.split("/")[0] for path in read]
    assert kinds == sorted(kinds, reverse=True)
    assert {*kinds} == {"node", "def"}


async def test_until_then_an_expiry_reads_the_rules_of_tables_from_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forge = await unseen(monkeypatch, "all_of_before")
    journal = await started(forge)
    assert journal.replay.is_unverified
    rules = ExpiryRules(keep_versions=1, older_than_millis=0)
    steps = [step async for step in journal.expire(rules)]
    assert {(hold.kind, hold.version) for hold in steps[-1].holds} == {("table", 0)}
    assert (await journal.info()).oldest_version == 0


@pytest.mark.parametrize("way", ["left_out", "dropped_comes_back", "swapped", "definition_of_before"])
async def test_a_library_reads_the_tree_until_then(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    forge = await unseen(monkeypatch, way)
    journal = await started(forge, is_daemon=False)
    fresh = await forge.lake.open()
    for each in ("t003", "t050", "t019"):
        name = [fmt.table_name("a", each)]
        assert (await journal.load(LATEST, name)).objects == (await fresh.load(LATEST, name)).objects
    for space in "ab":
        assert await journal.list(LATEST, Kind.TABLE, namespace=space) == await fresh.list(
            LATEST, Kind.TABLE, namespace=space
        )
    assert await journal.symbols(None, SymbolQuery()) == await fresh.symbols(None, SymbolQuery())


@pytest.mark.parametrize("way", ["left_out", "swapped", "definition_of_before"])
async def test_what_is_copied_out_before_comes_from_the_tree(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A snapshot comes from the tree until the checkpoint is verified, because a replica would keep wrong content."""
    forge = await unseen(monkeypatch, way)
    journal, fresh = await started(forge), await forge.lake.open()
    copies = [
        [live async for part in each.snapshot(LATEST) for live in part.objects] for each in (journal, fresh)
    ]
    assert copies[0] == copies[1]


@pytest.mark.parametrize("way", ["left_out", "definition_of_before"])
async def test_a_checkpoint_asked_for_stores_nothing_that_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("alpheus_journal.replay.loader.VERIFIED_OBJECTS_MAX", 0)
    forge = await unseen(monkeypatch, way)
    journal = await forge.lake.open()
    error = await raises(Exception, journal.checkpoint())
    assert getattr(error, "kind", "") == "state_drift"
    await journal.checkpoint()
    assert await everything(await started(forge)) == await truth(forge)


async def test_a_definition_outside_the_sample_is_right_before_it_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads return the forged definition until a commit changes the object, and that commit builds on the right one."""
    monkeypatch.setattr(verification_module, "DEFINITIONS_COMPARED", 0)
    forge = await unseen(monkeypatch, "definition_of_another")
    (forged,) = [
        key
        for key, row in WAYS["definition_of_another"](forge, random.Random(0)).items()
        if forge.new[key] != row
    ]
    name = forge.keys.parse(unpack(forged))
    journal, fresh = await started(forge), await forge.lake.open()
    maintenance = maintained(journal)
    await maintenance.step()
    assert not journal.replay.is_unverified
    (wrong,), (right,) = [(await each.load(LATEST, [name])).objects for each in (journal, fresh)]
    assert wrong is not None
    assert right is not None
    assert (wrong.path, wrong.definition) == (right.path, forge.new[forged][1]) or wrong != right
    change = UpdateTable(namespace=name.namespace, name=name.name, set={"built": "on it"})
    await forge.lake.commit(journal, change)
    assert journal.replay.counts.invalidations == 1
    await fresh.refresh()
    (now,) = (await fresh.load(LATEST, [name])).objects
    assert now is not None
    before = decode_definition(Kind.TABLE, right.definition, right.path)
    after = decode_definition(Kind.TABLE, now.definition, now.path)
    assert isinstance(before, TableDef)
    assert after == msgspec.structs.replace(before, properties=before.properties | {"built": "on it"})
    await maintenance.step()
    assert await everything(journal) == await truth(forge)


@pytest.mark.parametrize("way", WAYS)
async def test_check_names_it(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    forge = await unseen(monkeypatch, way)
    found = [item async for item in (await forge.lake.open()).check()]
    assert [item.kind for item in found[:-1] if isinstance(item, Finding)] == (
        [] if way == "as_it_is" else ["checkpoint_differs"]
    )
    if way != "as_it_is":
        assert isinstance(found[0], Finding)
        assert (found[0].path, found[0].version) == (forge.path, forge.facts.version)


async def test_a_catalog_definition_is_never_taken_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = await unseen(monkeypatch, "as_it_is")
    assert forge.facts.catalog_def_bytes is not None
    await forge.put(forge.new, catalog_def_bytes=forge.facts.catalog_def_bytes[:-4])
    journal, fresh = await started(forge), await forge.lake.open()
    assert (await journal.info()).definition == (await fresh.info()).definition


async def test_a_comparison_that_fails_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_module, "ROWS_AT_ONCE", 10)
    forge = await unseen(monkeypatch, "run_left_out")
    journal = await started(forge)
    seconds = 0.0
    maintenance = Maintenance(
        journal, checkpoint_versions=10**6, checkpoint_minutes=10**5, drift_check_seconds=0,
        comparison_reads_per_second=10, monotonic=lambda: seconds,
    )  # fmt: skip
    reader = journal.follower.reader
    load = reader.load_nodes

    async def away(paths: Any) -> Any:
        raise ConnectionError("away")

    for _ in range(2):
        monkeypatch.setattr(reader, "load_nodes", away)
        await maintenance.step()
        assert maintenance.comparisons.last_error == "away"
        assert journal.replay.is_unverified
        monkeypatch.setattr(reader, "load_nodes", load)
        seconds += 1000
        await maintenance.step()
    while journal.replay.is_unverified or journal.replay.needs_rebuild:
        await maintenance.step()
    assert journal.replay.counts.invalidations == 1
    assert await everything(journal) == await truth(forge)
