"""Revisions of the format: a catalog goes over to revision 2, and from then on its nodes and definitions have
checksums (FORMAT.md, "Revisions")."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Committed
from alpheus_journal.model.definition_messages import decode_definition, encode_definition, has_checksum
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef
from alpheus_journal.model.operations import UpdateCatalog, UpdateNamespace, UpgradeCatalog
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, model_of, raises
from alpheus_journal.tree.node import decode_node

SIZE_MAX = 1 << 30
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


async def system_of(lake: Lake, path: str) -> dict[str, str]:
    data = await lake.storage.read(path, size_max=SIZE_MAX)
    return decode_node(data, path, root=path.startswith("vn/"), size_max=SIZE_MAX).system


async def revision_at(lake: Lake, journal: Journal, version: int) -> str:
    return (await system_of(lake, journal.follower.log.path(version)))[fmt.ROW_FORMAT_REVISION]


async def read_everything(storage: MemoryStorage) -> list[object]:
    """Read each version with its log. Returns plain values that can be compared."""
    journal = await Lake(storage).open()
    found: list[object] = [await model_of(journal, version) for version in range(journal.head.version + 1)]
    found += [
        (event.version, event.changes, event.transactions)
        async for event in journal.events(details=True)
        if not isinstance(event, Committed)
    ]
    info = await journal.info()
    found.append((info.definition, info.catalog_id, info.version))
    return found


async def findings_of(journal: Journal) -> list[object]:
    return [item async for item in journal.check() if not isinstance(item, CheckSummary)]


@pytest.mark.parametrize("digits", [32, 64])
async def test_a_catalog_goes_over_to_revision_2(digits: int) -> None:
    lake = Lake()
    journal = await lake.create(order=3, version_digits=digits, format_revision=1)
    await lake.commit(journal, *(lake.namespace(f"n{number}") for number in range(20)))
    before = set(await listed(lake.storage, ""))
    for path in before:
        if path.startswith("node/"):
            assert fmt.ROW_CHECKSUM not in await system_of(lake, path)
        if path.startswith("def/"):
            assert not has_checksum(await lake.storage.read(path, size_max=SIZE_MAX))
    assert (await journal.info()).definition.format_revision == 1
    await lake.commit(journal, UpgradeCatalog(revision=2), lake.namespace("with_the_upgrade"))
    assert journal.head.revision == 2
    assert (await journal.info()).definition.format_revision == 2
    await lake.commit(journal, UpdateNamespace(name="n3", set={"a": "b"}), UpdateCatalog(set={"c": "d"}))
    revisions = [await revision_at(lake, journal, version) for version in range(4)]
    assert revisions == ["1", "1", "2", "2"]
    made = set(await listed(lake.storage, "")) - before
    assert len([path for path in made if path.startswith("node/")]) > 3
    for path in made:
        if path.startswith("node/"):
            assert fmt.ROW_CHECKSUM in await system_of(lake, path)
    last = {change.path_after for change in (await journal.event(3, details=True)).changes}
    last.add(journal.head.catalog_def)
    assert len(last) == 2
    for path in last:
        assert has_checksum(await lake.storage.read(path, size_max=SIZE_MAX)), path
    again = await lake.open()
    assert again.head.revision == 2
    await lake.commit(again, lake.namespace("after"))
    assert await revision_at(lake, again, 4) == "2"
    assert await findings_of(again) == []
    state = await again.load_state()
    assert len(state) == 22


async def test_an_upgrade_that_was_made_changes_nothing_and_none_goes_back() -> None:
    lake = Lake()
    journal = await lake.create()
    path = journal.head.catalog_def
    await lake.commit(journal, UpgradeCatalog(revision=2))
    assert (journal.head.version, journal.head.catalog_def) == (1, path)
    await raises(InvalidInput, lake.commit(journal, UpgradeCatalog(revision=1)), kind="not_supported")
    await raises(InvalidInput, lake.commit(journal, UpgradeCatalog(revision=0)), kind="not_supported")
    newer = UpgradeCatalog(revision=fmt.FORMAT_REVISION + 1)
    await raises(InvalidInput, lake.commit(journal, newer), kind="not_supported")
    assert journal.head.version == 1
    assert await findings_of(journal) == []
    for revision in (0, fmt.FORMAT_REVISION + 1):
        await raises(InvalidInput, Lake().create(format_revision=revision))


async def test_two_programs_upgrade_at_once() -> None:
    lake = Lake()
    await lake.create(format_revision=1)
    first, second = await lake.open(), await lake.open()
    upgrades = [lake.transaction(one, UpgradeCatalog(revision=2)) for one in (first, second)]
    await first.commit(upgrades[0])
    await second.commit(upgrades[1])
    assert second.head.version == 2
    assert await findings_of(await lake.open()) == []


async def test_a_version_that_is_staged_on_an_upgrade_has_its_revision() -> None:
    """The second group is staged while the first, which upgrades, is on its way."""
    lake = Lake()
    journal = await lake.create(format_revision=1)
    published = asyncio.Event()
    first = [lake.transaction(journal, UpgradeCatalog(revision=2))]
    second = [lake.transaction(journal, lake.namespace("a"))]
    one = asyncio.create_task(journal.commit_group(first, on_publish=published.set))
    await published.wait()
    answers = await asyncio.gather(one, journal.commit_group(second))
    assert all(isinstance(answer, Committed) for group in answers for answer in group)
    assert [await revision_at(lake, journal, version) for version in range(3)] == ["1", "2", "2"]
    (stored,) = (await journal.load(None, [fmt.namespace_name("a")])).objects
    assert stored is not None
    assert has_checksum(stored.definition)
    assert await findings_of(await lake.open()) == []


async def test_a_program_of_revision_1_refuses_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses the slot to the upgrade, reads the root, and neither reads nor writes from then on."""
    lake = Lake()
    journal = await lake.create(format_revision=1)
    old = await lake.open()
    await lake.commit(old, lake.namespace("by_the_old_program"))
    await journal.refresh()
    await lake.commit(journal, UpgradeCatalog(revision=2))
    monkeypatch.setattr(fmt, "FORMAT_REVISION", 1)
    await raises(InvalidInput, lake.commit(old, lake.namespace("lost")), kind="newer_format")
    await raises(InvalidInput, old.info(), kind="newer_format")
    await raises(InvalidInput, lake.open(), kind="newer_format")
    monkeypatch.undo()
    assert (await lake.open()).head.version == 2


async def test_each_flipped_bit_is_an_error_or_changes_nothing(lane_count: Callable[[int, int], int]) -> None:
    lake = Lake()
    journal = await lake.create(order=3, properties={"a": "b"})
    await lake.commit(journal, *(lake.namespace(f"n{number}", x="y") for number in range(9)))
    await lake.commit(journal, lake.table("n3", "t"), UpdateNamespace(name="n4", set={"größe": "1"}))
    await journal.close()
    assert isinstance(lake.storage, MemoryStorage)
    whole = await read_everything(lake.storage)
    rng, refused = random.Random(3), 0
    for path in await listed(lake.storage, ""):
        if path in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
            continue
        data = await lake.storage.read(path, size_max=SIZE_MAX)
        for _ in range(lane_count(4, 300)):
            position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            flipped = bytearray(data)
            flipped[position] ^= bit
            await lake.storage.put(path, bytes(flipped))
            try:
                found = await read_everything(lake.storage)
            except (Corrupt, InvalidInput):
                refused += 1
            else:
                assert found == whole, f"{path} at {position} ^ {bit}"
        await lake.storage.put(path, data)
    assert refused > 20


async def test_two_definitions_that_were_swapped_are_not_taken_for_damaged_ones() -> None:
    """A checksum tells a damaged file, not another file's content: `check` compares what the actions say."""
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a", x="1"), lake.namespace("b", x="2"))
    (one, two) = await listed(lake.storage, "def/ns/")
    first, second = [await lake.storage.read(path, size_max=SIZE_MAX) for path in (one, two)]
    await lake.storage.put(one, second)
    await lake.storage.put(two, first)
    assert len(await findings_of(await lake.open())) >= 2


def test_the_checksum_of_a_definition() -> None:
    value = NamespaceDef(id=ID, properties={"a": "b"})
    plain, data = encode_definition(value), encode_definition(value, checksum=True)
    assert (data[6:], has_checksum(data), has_checksum(plain)) == (plain, True, False)
    assert decode_definition(Kind.NAMESPACE, data, "p") == value
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises((Corrupt, InvalidInput)):
                decode_definition(Kind.NAMESPACE, bytes(flipped), "p")
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            decode_definition(Kind.NAMESPACE, data[:end], "p")
    assert decode_definition(Kind.NAMESPACE, data[6:], "p") == value, "revision 1 has no checksums"
    with pytest.raises(Corrupt, match="checksum"):
        decode_definition(Kind.NAMESPACE, data + plain, "p")


def test_a_definition_of_a_later_revision_is_refused() -> None:
    value = CatalogDef(id=ID, format_revision=fmt.FORMAT_REVISION + 1)
    with pytest.raises(InvalidInput) as caught:
        decode_definition(Kind.CATALOG, encode_definition(value), "def/c")
    assert (caught.value.kind, caught.value.path) == ("newer_format", "def/c")
