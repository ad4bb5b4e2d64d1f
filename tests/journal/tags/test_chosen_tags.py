"""Tags of chosen objects: what they hold, what they keep, and what comes in between while one is made."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from upkeep_lake import check, collect, commit_rows, expire, files_of, make_lake, make_table, reachable, tag

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.pins import encode_pin, read_pin
from alpheus_journal.model.answers import At, Finding, Pin, PinObject, Tag
from alpheus_journal.model.definitions import TagDef, TagObject, TagParts
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import (
    CreateTag,
    DropNamespace,
    DropTable,
    DropTag,
    OverwriteFiles,
    RestoreTable,
    Undrop,
)
from alpheus_journal.replay.symbols import SymbolQuery
from alpheus_journal.tags import chosen
from alpheus_journal.tags.reader import load_tag
from alpheus_journal.testing import Lake, model_of, raises
from alpheus_journal.tree.node import decode_node


def name_objects(*names: str, at: Any = None) -> tuple[PinObject, ...]:
    return tuple(PinObject(*name.split("."), at=at) for name in names)


async def make_tables(**options: object) -> tuple[Lake, Journal]:
    """Make a catalog with the tables a.t (rows in versions 3 and 4), a.u, b.t and b.u, and an empty namespace c."""
    lake = make_lake()
    journal = await make_table(lake, **options)
    await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, lake.table("a", "u"), lake.namespace("b"), lake.namespace("c"))
    await lake.commit(journal, lake.table("b", "t"), lake.table("b", "u"))
    await commit_rows(lake, journal, fmt.table_name("b", "u"))
    return lake, journal


async def names_at(journal: Journal, at: At) -> set[str]:
    spaces = (await journal.list(at, Kind.NAMESPACE)).names
    tables = [(await journal.list(at, Kind.TABLE, namespace=space)).names for space in spaces]
    return set(spaces) | {f"{s}.{t}" for s, found in zip(spaces, tables, strict=True) for t in found}


async def findings(journal: Journal) -> Sequence[Finding]:
    return [found async for found in journal.check() if isinstance(found, Finding)]


CHOICES: list[tuple[dict[str, Any], set[str]]] = [
    ({"only": name_objects("a.t")}, {"a", "a.t"}),
    ({"only": name_objects("a")}, {"a", "a.t", "a.u"}),
    ({"only": name_objects("a", "b.u")}, {"a", "a.t", "a.u", "b", "b.u"}),
    ({"only": name_objects("c")}, {"c"}),
    ({"only": name_objects("a", "b"), "without": name_objects("a.t")}, {"a", "a.u", "b", "b.t", "b.u"}),
    ({"only": name_objects("a", "b"), "without": name_objects("b", "b.u", "a.t")}, {"a", "a.u"}),
    ({"without": name_objects("b.u", "c")}, {"a", "a.t", "a.u", "b", "b.t"}),
    ({"without": name_objects("b", "b.u", "c")}, {"a", "a.t", "a.u"}),
    ({"without": name_objects("a")}, {"b", "b.t", "b.u", "c"}),
]


@pytest.mark.parametrize(("given", "held"), CHOICES)
@pytest.mark.parametrize("order", [3, 128])
async def test_a_tag_shows_what_was_chosen(given: dict[str, Any], held: set[str], order: int) -> None:
    lake, journal = await make_tables(order=order)
    await tag(lake, journal, "old", 2)
    version = journal.head.version
    before = await model_of(journal, version)
    await journal.load_state()
    await tag(lake, journal, "v", version, **given)
    found = await load_tag(journal, "v")
    tables = sum("." in name for name in held)
    assert (found.version, found.object_count, found.table_count) == (version, len(held), tables)
    for reader in (journal, await lake.open()):
        assert await names_at(reader, Tag("v")) == held
        model = await model_of(reader, Tag("v"))
        for name, value in model.items():
            if name.startswith(("namespace", "table")):
                assert before[name] == value
        page = await reader.symbols(Tag("v"), SymbolQuery())
        assert sum(len(group.names) for group in page.groups) == len(held)
        loaded = await reader.load(Tag("v"), [fmt.table_name("a", "t"), fmt.namespace_name("c")])
        assert [stored is not None for stored in loaded.objects] == ["a.t" in held, "c" in held]
        assert (await reader.list(Tag("v"), Kind.TAG)).names == ()
    await check(journal)
    pin = await read_pin(journal.follower.log, found.pin_path)
    assert pin.is_chosen
    file = decode_node(
        await lake.storage.read(found.pin_path, size_max=1 << 24), found.pin_path, root=True, size_max=1 << 24
    )
    assert {"n_keys", "catalog_def", "created_at_millis"} <= file.system.keys(), (
        "an ordinary root for other readers"
    )
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    await collect(journal)
    assert await files_of(lake) == await reachable(lake, journal)
    assert await names_at(journal, Tag("v")) == held
    await check(journal)
    await lake.commit(journal, DropTag(name="v"))
    await raises(NotFound, names_at(journal, Tag("v")), kind="no_tag")


async def test_what_a_tag_leaves_out_is_collected() -> None:
    lake, journal = await make_tables()
    first = 3
    await tag(lake, journal, "v", first, only=name_objects("a.t"))
    await lake.commit(journal, DropTable(namespace="b", name="u"), DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.namespace("d"))
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    done = await collect(journal)
    assert done.deleted["data"].files == 2, "of a.t at version 4, and of b.u"
    assert await names_at(journal, Tag("v")) == {"a", "a.t"}
    undrop = Undrop(kind=Kind.TABLE, namespace="a", name="t", version=first, new_namespace="a", new_name="t")
    await lake.commit(journal, undrop)
    assert await names_at(journal, None) == {"a", "a.t", "a.u", "b", "b.t", "c", "d"}
    for name in ("u", "t"):
        other = Undrop(
            kind=Kind.TABLE, namespace="b", name=name, version=first, new_namespace="b", new_name="x"
        )
        await raises(Expired, lake.commit(journal, other))
    whole = Undrop(kind=Kind.NAMESPACE, namespace="a", name="", version=first, new_namespace="z", new_name="")
    await raises(Expired, lake.commit(journal, whole))
    await check(journal)


async def test_objects_of_several_versions() -> None:
    lake, journal = await make_tables()
    await tag(lake, journal, "early", 3)
    await lake.commit(journal, lake.namespace("d"))
    head = journal.head.version
    only = (PinObject("a", "t", Tag("early")), PinObject("a", "u"), PinObject("b", "", head - 1))
    await tag(lake, journal, "v", head, only=only)
    found = await load_tag(journal, "v")
    versions = {each.full_name: each.version for each in found.chosen}
    assert versions == {"a.t": 3, "a.u": head, "b": head - 1}
    assert found.version_of(fmt.namespace_name("a")) == head
    assert found.version_of(fmt.table_name("b", "x")) == head - 1
    assert found.version_of(fmt.table_name("c", "x")) is None
    at_3 = (await journal.load(3, [fmt.table_name("a", "t")])).objects
    assert (await journal.load(Tag("v"), [fmt.table_name("a", "t")])).objects == at_3
    await lake.commit(journal, DropTag(name="early"))
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    await lake.commit(journal, RestoreTable(namespace="a", name="t", version=3))
    await raises(Expired, lake.commit(journal, RestoreTable(namespace="a", name="u", version=3)))
    assert at_3[0] is not None
    await check(journal)
    await lake.commit(journal, lake.namespace("e"))
    await expire(journal)
    await check(journal)


async def test_a_namespace_comes_back_from_a_tag_that_has_all_of_it() -> None:
    lake, journal = await make_tables()
    head = journal.head.version
    await tag(lake, journal, "v", head, only=name_objects("b"))
    await lake.commit(journal, DropNamespace(name="b", cascade=True))
    await lake.commit(journal, lake.namespace("d"))
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    undrop = Undrop(kind=Kind.NAMESPACE, namespace="b", name="", version=head, new_namespace="b", new_name="")
    await lake.commit(journal, undrop)
    assert {"b", "b.t", "b.u"} <= await names_at(journal, None)
    await check(journal)


async def test_a_tag_of_a_tag_of_chosen_objects() -> None:
    lake, journal = await make_tables()
    await tag(
        lake, journal, "v", journal.head.version, only=name_objects("a", "b.u"), without=name_objects("a.u")
    )
    first = await load_tag(journal, "v")
    await tag(lake, journal, "same", Tag("v"))
    await tag(lake, journal, "less", Tag("v"), without=name_objects("b"))
    await tag(lake, journal, "some", Tag("v"), only=name_objects("a", "b"))
    await raises(NotFound, journal.create_pin(Tag("v"), only=name_objects("b.t")), kind="no_table")
    same, less, some = [await load_tag(journal, name) for name in ("same", "less", "some")]
    assert (same.chosen, same.left_out, same.object_count) == (
        first.chosen,
        first.left_out,
        first.object_count,
    )
    assert await names_at(journal, Tag("same")) == {"a", "a.t", "b", "b.u"}
    assert await names_at(journal, Tag("less")) == {"a", "a.t"}
    assert less.version_of(fmt.table_name("b", "u")) is None
    assert await names_at(journal, Tag("some")) == {"a", "a.t", "b", "b.u"}
    for held in (first, some):
        assert not held.holds_all_of("a")
        assert not held.holds_all_of("b")
        assert held.version_of(fmt.table_name("a", "u")) is None
    reference = (await journal.resolve(Tag("v"))).reference
    await raises(InvalidInput, journal.create_pin(reference), kind="bad_version")
    await raises(InvalidInput, journal.create_pin(reference, only=name_objects("a")), kind="bad_version")
    await lake.commit(journal, DropTag(name="v"))
    await expire(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    error = await raises(Expired, journal.load(first.version, [fmt.table_name("b", "t")]))
    assert error.hint.endswith(f"tag less holds chosen objects as of version {first.version}")
    assert await names_at(journal, Tag("less")) == {"a", "a.t"}
    await check(journal)


@pytest.mark.parametrize(
    ("given", "error", "kind"),
    [
        ({"only": ()}, InvalidInput, "bad_argument"),
        ({"only": name_objects("x")}, NotFound, "no_namespace"),
        ({"only": name_objects("a.x")}, NotFound, "no_table"),
        ({"only": name_objects("x.t")}, NotFound, "no_table"),
        ({"without": name_objects("x")}, NotFound, "no_namespace"),
        ({"only": name_objects("a.t"), "without": name_objects("b")}, NotFound, "no_namespace"),
        ({"only": name_objects("a.t"), "without": name_objects("a")}, InvalidInput, "bad_argument"),
        ({"without": name_objects("a", "b", "c")}, InvalidInput, "bad_argument"),
        ({"only": name_objects("a.u", at=3)}, NotFound, "no_table"),
        ({"only": name_objects("a.t", at=Tag("none"))}, NotFound, "no_tag"),
        ({"only": name_objects("a.t", at=999)}, NotFound, "no_version"),
        ({"only": name_objects("a.t", at=3) + name_objects("a.t")}, InvalidInput, "bad_argument"),
        ({"only": name_objects("a.")}, NotFound, "no_namespace"),
        ({"only": name_objects(*(f"n{n}" for n in range(1_001)))}, InvalidInput, "too_large"),
    ],
)  # fmt: skip
async def test_a_bad_choice_changes_nothing(given: dict[str, Any], error: Any, kind: str) -> None:
    lake, journal = await make_tables()
    before = await files_of(lake)
    if given.get("only") == name_objects("a."):
        given = {"only": (PinObject("a.", ""),)}
    await raises(error, journal.create_pin(journal.head.version, **given), kind=kind)
    assert await files_of(lake) == before


def test_the_names_of_a_tag_are_found_at_once() -> None:
    """A tag has up to 1,000 names of each kind, and a daemon asks for each of its entries while others wait."""
    names = range(fmt.TAG_OBJECTS_MAX)
    tag = TagDef(
        id="",
        version=9,
        commit_id="",
        version_created_at_millis=0,
        pin_path="",
        creator="",
        created_at_millis=0,
        chosen=(
            *tuple(TagObject(f"n{n}", "", n) for n in names),
            TagObject("n1", "t", 7),
            TagObject("m", "t", 3),
        ),
        left_out=(*tuple(TagObject(f"n{n}", "x") for n in names), TagObject("n2")),
    )
    parts = TagParts(tag)
    began = time.process_time()
    for n in names:
        for _ in range(20):
            assert parts.version_of(fmt.table_name(f"n{n}", "t")) == (7 if n == 1 else None if n == 2 else n)
        assert parts.version_of(fmt.table_name(f"n{n}", "x")) is None
    assert time.process_time() - began < 2, "one look for each, not two thousand"
    for name in (
        fmt.namespace_name("n1"),
        fmt.namespace_name("m"),
        fmt.namespace_name("o"),
        fmt.tag_name("n1"),
    ):
        assert parts.version_of(name) == tag.version_of(name) == {"n1": 1, "m": 3}.get(name.namespace)


async def test_too_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "ENTRIES_MAX", 2)
    _, journal = await make_tables()
    await raises(InvalidInput, journal.create_pin(None, only=name_objects("a")), kind="too_large")
    await raises(InvalidInput, journal.create_pin(None, without=name_objects("a")), kind="too_large")
    assert (await journal.create_pin(None, only=name_objects("a.t"))).object_count == 2


# --- races -----------------------------------------------------------------------------------------


async def commit_tag(lake: Lake, journal: Journal, pin: Pin) -> None:
    await lake.commit(journal, CreateTag(name="v", tag_id=lake.identities.uuid4(), **pin.tag_fields))


@pytest.mark.parametrize("place", ["pin.nodes", "pin.written"])
@pytest.mark.parametrize("source", [3, None])
async def test_a_version_that_expires_while_its_objects_are_chosen(place: str, source: int | None) -> None:
    """Also where only one of the versions expires that the objects come from."""
    lake, journal = await make_tables(order=3)
    other = await lake.open()
    only = (PinObject("a", "t", source), PinObject("b"))
    at = None if source else 3
    with failpoints.armed(place, "pause@1") as paused:
        if at == 3:
            making = asyncio.ensure_future(journal.create_pin(3, only=name_objects("a")))
        else:
            making = asyncio.ensure_future(journal.create_pin(None, only=only))
        await paused.wait_for_hit()
        await expire(other)
        lake.clock.millis += 2 * HOUR_MILLIS
        await collect(other)
        paused.release()
        with pytest.raises(Expired):
            await making
    assert not [path for path in await files_of(lake) if path.startswith("pin/")]
    await check(journal)


async def test_a_collection_before_the_pin_is_durable() -> None:
    """The nodes may be deleted, so the pin is refused, though the version is kept."""
    lake, journal = await make_tables(order=3)
    other = await lake.open()
    version = journal.head.version
    with failpoints.armed("pin.nodes", "pause@1") as paused:
        making = asyncio.ensure_future(journal.create_pin(version, only=name_objects("a", "b")))
        await paused.wait_for_hit()
        lake.clock.millis += 2 * HOUR_MILLIS
        assert (await collect(other)).deleted["node"].files
        paused.release()
        with pytest.raises(Expired, match="nodes of the tag are too old"):
            await making
    assert not [path for path in await files_of(lake) if path.startswith("pin/")]
    pin = await journal.create_pin(version, only=name_objects("a", "b"))
    await commit_tag(lake, journal, pin)
    await check(journal)


async def test_a_collection_after_the_pin_is_durable() -> None:
    """The nodes are older than the cutoff, and the pin that reaches them is not."""
    lake, journal = await make_tables(order=3)
    other = await lake.open()
    with failpoints.armed("pin.nodes", "pause@1") as paused:
        making = asyncio.ensure_future(journal.create_pin(None, only=name_objects("a", "b")))
        await paused.wait_for_hit()
        lake.clock.millis += HOUR_MILLIS
        paused.release()
        pin = await making
    lake.clock.millis += HOUR_MILLIS // 2
    done = await collect(other)
    assert "node" not in done.deleted or done.kept_by["pins"].files
    await commit_tag(lake, journal, pin)
    await expire(other)
    await collect(other)
    assert await names_at(journal, Tag("v")) == {"a", "a.t", "a.u", "b", "b.t", "b.u"}
    await check(journal)


async def test_a_pin_that_is_older_than_a_fence_makes_no_tag() -> None:
    lake, journal = await make_tables(order=3)
    pin = await journal.create_pin(None, only=name_objects("a", "b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    await raises(InvalidInput, commit_tag(lake, journal, pin), kind="bad_version")


async def test_a_tag_and_its_pin_say_the_same() -> None:
    lake, journal = await make_tables()
    part, whole = await journal.create_pin(None, only=name_objects("a")), await journal.create_pin(None)
    await raises(
        InvalidInput, commit_tag(lake, journal, msgspec.structs.replace(part, chosen=())), kind="bad_version"
    )
    lying = msgspec.structs.replace(whole, chosen=part.chosen)
    await raises(InvalidInput, commit_tag(lake, journal, lying), kind="bad_version")
    later = tuple(msgspec.structs.replace(each, version=99) for each in part.chosen)
    lying = msgspec.structs.replace(part, chosen=later)
    await raises(InvalidInput, commit_tag(lake, journal, lying), kind="bad_version")
    await commit_tag(lake, journal, part)


async def test_check_reads_the_tree_of_a_tag() -> None:
    lake, journal = await make_tables(order=3)
    head = journal.head.version
    await tag(lake, journal, "v", head, only=name_objects("a", "b"))
    assert await findings(journal) == []
    found = await load_tag(journal, "v")
    copy = await read_pin(journal.follower.log, found.pin_path)
    (node, *_) = copy.root.children
    whole = msgspec.structs.replace(copy, is_chosen=False)
    await lake.storage.put(found.pin_path, encode_pin(whole, journal.catalog_id))
    assert ["says otherwise" in finding.message for finding in await findings(journal)] == [True]
    more = msgspec.structs.replace(copy, root=journal.head.root)
    await lake.storage.put(found.pin_path, encode_pin(more, journal.catalog_id))
    kinds = Counter(finding.kind for finding in await findings(journal))
    assert kinds["corrupt_tree"] >= 1, "it has what the tag leaves out"
    await lake.storage.put(found.pin_path, encode_pin(copy, journal.catalog_id))
    await lake.storage.delete(node)
    assert any(
        node in finding.message or finding.path == node for finding in await findings(await lake.open())
    )
