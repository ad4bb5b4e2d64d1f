"""Pins and the tags that name them: making a pin while versions expire, and reading a version from its pin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotFound,
)
from alpheus_journal.execute.rules.tags import EXPIRE_AT_MILLIS_MAX
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.pins import decode_pin, encode_pin
from alpheus_journal.model.answers import At, Finding, Pin, Pinned, Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TagDef
from alpheus_journal.model.operations import (
    CreateTag,
    DropTag,
    RenameObject,
    ReplaceTag,
    Undrop,
    UpgradeCatalog,
)
from alpheus_journal.testing import Lake, listed, raises
from alpheus_journal.tree.node import encode_node, encode_tombstone

PIN = "pin/85d62cf3-0000-4000-8000-000000000001.arrow"


async def tagged_lake(count: int = 4) -> tuple[Lake, Journal]:
    """Make a catalog with the namespaces n1 ... in the versions 1 ..., in a tree of several nodes."""
    lake = Lake()
    journal = await lake.create(order=3)
    for number in range(1, count + 1):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    return lake, journal


def set_to(pin: Pin, name: str = "v", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        **pin.tag_fields,
    } | fields


async def create(lake: Lake, journal: Journal, at: At, name: str = "v", **fields: Any) -> Pin:
    pin = await journal.create_pin(at)
    await lake.commit(journal, CreateTag(tag_id=lake.identities.uuid4(), **set_to(pin, name, **fields)))
    return pin


async def tag(journal: Journal, name: str = "v") -> TagDef:
    (stored,) = (await journal.load(None, [fmt.tag_name(name)])).objects
    assert stored is not None
    found = decode_definition(Kind.TAG, stored.definition, stored.path)
    assert isinstance(found, TagDef)
    return found


async def names_at(journal: Journal, at: At) -> Sequence[str]:
    return (await journal.list(at, Kind.NAMESPACE)).names


# --- the file --------------------------------------------------------------------------------------


async def test_a_pin_holds_the_root_without_what_it_did() -> None:
    lake, journal = await tagged_lake()
    pin = await journal.create_pin(3)
    root = await journal.follower.root(3)
    data = await lake.storage.read(pin.path, size_max=1 << 20)
    copy = decode_pin(data, pin.path, journal.catalog_id)
    assert copy == Copy(
        version=3,
        commit_id=root.commit_id,
        created_at_millis=root.created_at_millis,
        catalog_def=root.catalog_def,
        root=root.node,
    )
    assert encode_pin(copy, journal.catalog_id) == data
    assert (pin.version, pin.commit_id, pin.version_created_at_millis) == (
        3,
        root.commit_id,
        root.created_at_millis,
    )


async def test_each_flipped_byte_of_a_pin_is_an_error_or_changes_nothing() -> None:
    lake, journal = await tagged_lake()
    pin = await journal.create_pin(3)
    data = await lake.storage.read(pin.path, size_max=1 << 20)
    copy = decode_pin(data, pin.path, journal.catalog_id)
    changed = 0
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]
        try:
            assert decode_pin(flipped, pin.path, journal.catalog_id) == copy, place
        except (Corrupt, InvalidInput):
            changed += 1
    assert changed > len(data) // 3


async def test_files_that_are_no_pins_of_this_catalog() -> None:
    lake, journal = await tagged_lake()
    root = await journal.follower.root(3)
    pin = await journal.create_pin(3)
    data = await lake.storage.read(pin.path, size_max=1 << 20)
    wrong = [
        b"",
        await lake.storage.read(root.path, size_max=1 << 20),  # it holds actions
        await lake.storage.read(root.catalog_def, size_max=1 << 20),
        encode_tombstone(commit_id="c", catalog_id="k", expired_at_millis=5, version=1),
        encode_node(
            root.node,
            order=3,
            created_at_millis=1,
            size_max=1 << 20,
            system={fmt.ROW_CATALOG_DEF: root.catalog_def},
        ),
    ]
    for file in wrong:
        with pytest.raises(Corrupt) as caught:
            decode_pin(file, PIN, journal.catalog_id)
        assert caught.value.path == PIN
    with pytest.raises(Corrupt, match="is a pin of catalog"):
        decode_pin(data, PIN, "another")


# --- making a pin while versions expire ------------------------------------------------------------


async def test_a_version_that_expires_under_its_tag_is_read_from_the_pin() -> None:
    lake, journal = await tagged_lake()
    pin = await create(lake, journal, 2)
    before = await names_at(journal, 2)
    assert list(before) == ["n1", "n2"]
    await lake.expire(below=4)
    await raises(Expired, names_at(journal, 2))
    fresh = await lake.open()
    for reader in (journal, fresh):
        assert await names_at(reader, Tag("v")) == before
        assert await names_at(reader, Pinned(2, pin.path)) == before
        resolved = await reader.resolve(Tag("v"))
        assert (resolved.version, resolved.pin_path) == (2, pin.path)
        loaded = await reader.load(Tag("v"), [fmt.namespace_name("n1"), fmt.namespace_name("n3")])
        assert [stored is not None for stored in loaded.objects] == [True, False]
        changes = [str(change.name) async for change in reader.diff(Tag("v"), None)]
        assert changes == ["namespace n3", "namespace n4", "tag v"]
    found = [item async for item in fresh.check() if isinstance(item, Finding)]
    assert not found


async def test_the_error_for_an_expired_version_names_the_nearest_tag() -> None:
    lake, journal = await tagged_lake(6)
    await create(lake, journal, 1, "first")
    await create(lake, journal, 5, "fifth")
    await lake.expire(below=7)
    for ask in (names_at(journal, 2), journal.resolve(2), journal.load(2, [])):
        error = await raises(Expired, ask)
        assert error.hint == "the oldest version that is kept is 7; tag first names version 1"
    error = await raises(Expired, names_at(journal, 4))
    assert error.hint.endswith("; tag fifth names version 5")
    assert error.oldest == 7
    (stored,) = (await journal.load(None, [fmt.tag_name("first")])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    error = await raises(Expired, names_at(await lake.open(), 4))
    assert error.hint == "the oldest version that is kept is 7"


async def test_a_page_after_a_page_of_an_expired_version() -> None:
    lake, journal = await tagged_lake(7)
    pin = await create(lake, journal, 6)
    await lake.expire(below=7)
    at = Pinned(6, pin.path)
    first = await journal.list(at, Kind.NAMESPACE, limit=4)
    assert first.more
    rest = await journal.list(at, Kind.NAMESPACE, after=first.names[-1])
    assert [*first.names, *rest.names] == [f"n{n}" for n in range(1, 7)]


async def test_a_tag_of_a_tag_whose_version_has_expired() -> None:
    lake, journal = await tagged_lake()
    first = await create(lake, journal, 2)
    await lake.expire(below=4)
    await raises(Expired, journal.create_pin(2))
    second = await create(lake, journal, Tag("v"), "w")
    assert second.path != first.path
    await lake.commit(journal, DropTag(name="v"))
    await lake.storage.delete(first.path)
    assert list(await names_at(journal, Tag("w"))) == ["n1", "n2"]
    await raises(NotFound, names_at(journal, Tag("v")), kind="no_tag")


async def test_a_tag_that_is_replaced_while_its_pin_is_copied() -> None:
    """The pin may be deleted by then, and the copy came too late for a collector."""
    lake, journal = await tagged_lake()
    await create(lake, journal, 2)
    await lake.expire(below=4)
    other = await lake.open()
    stored = lake.storage.put

    async def put(path: str, data: bytes) -> None:
        await stored(path, data)
        if path.startswith("pin/"):
            lake.storage.put = stored  # type: ignore[method-assign]
            await lake.commit(other, ReplaceTag(**set_to(await other.create_pin(4))))

    lake.storage.put = put  # type: ignore[method-assign]
    await raises(Expired, journal.create_pin(Tag("v")))


async def test_a_version_that_expired_first_gets_no_pin() -> None:
    lake, journal = await tagged_lake()
    await lake.expire(below=3)
    await raises(Expired, journal.create_pin(2))
    await raises(NotFound, journal.create_pin(9), kind="no_version")
    await raises(NotFound, journal.create_pin(Tag("v")), kind="no_tag")
    assert not await listed(lake.storage, "pin/")


async def test_a_version_that_expires_while_it_is_pinned() -> None:
    """The version expires between the pin and the second look: the pin may have come too late for a collector."""
    lake, journal = await tagged_lake()
    with failpoints.armed("pin.written", "pause") as written:
        pinning = asyncio.ensure_future(journal.create_pin(2))
        await written.wait_for_hit()
        assert len(await listed(lake.storage, "pin/")) == 1
        await lake.expire(below=3)
        written.release()
        await raises(Expired, pinning)
    assert not await listed(lake.storage, "pin/")


async def test_a_store_that_is_put_back_while_a_version_is_pinned() -> None:
    lake, journal = await tagged_lake()
    root = await journal.follower.root(3)
    with failpoints.armed("pin.written", "pause") as written:
        pinning = asyncio.ensure_future(journal.create_pin(3))
        await written.wait_for_hit()
        data = encode_node(
            root.node,
            order=3,
            created_at_millis=root.created_at_millis,
            size_max=1 << 20,
            system={
                fmt.ROW_CATALOG_DEF: root.catalog_def,
                fmt.ROW_PREVIOUS_ROOT: str(root.previous_root),
                fmt.ROW_COMMIT_ID: lake.identities.uuid4(),
                fmt.ROW_VERSION: "3",
                fmt.ROW_FORMAT_REVISION: "1",
            },
        )
        await lake.storage.put(root.path, data)
        written.release()
        await raises(Corrupt, pinning, kind="history_replaced")
    assert not await listed(lake.storage, "pin/")


# --- the entry -------------------------------------------------------------------------------------


async def test_a_tag_is_created_replaced_renamed_and_dropped() -> None:
    lake, journal = await tagged_lake()
    pin = await create(lake, journal, 2, message="why", properties={"a": "b"}, expire_at_millis=1 << 42)
    first = await tag(journal)
    assert (first.version, first.pin_path, first.message) == (2, pin.path, "why")
    assert (first.properties, first.expire_at_millis) == ({"a": "b"}, 1 << 42)
    assert 0 < first.created_at_millis <= lake.clock.millis
    await lake.commit(journal, ReplaceTag(**set_to(await journal.create_pin(4))))
    second = await tag(journal)
    assert (second.id, second.version, second.message, second.properties) == (first.id, 4, "", {})
    rename = RenameObject(kind=Kind.TAG, namespace="", name="v", new_namespace="", new_name="w")
    await lake.commit(journal, rename)
    assert await tag(journal, "w") == second
    await lake.commit(journal, DropTag(name="w"))
    assert not (await journal.list(None, Kind.TAG)).names
    assert [action.type for version in range(5, 9) for action in await actions_of(journal, version)] == [
        "TAG_CREATE",
        "TAG_REPLACE",
        "TAG_RENAME",
        "TAG_DROP",
    ]


async def actions_of(journal: Journal, version: int) -> Sequence[Any]:
    return [action for recorded in (await journal.event(version)).transactions for action in recorded.actions]


async def test_the_creator_is_the_principal_of_the_commit() -> None:
    lake, journal = await tagged_lake()
    pin = await journal.create_pin(2)
    transaction = lake.transaction(journal, CreateTag(tag_id=lake.identities.uuid4(), **set_to(pin)))
    await journal.commit(msgspec.structs.replace(transaction, principal="ana"))
    assert (await tag(journal)).creator == "ana"
    assert not [item async for item in (await lake.open()).check() if isinstance(item, Finding)]


@pytest.mark.parametrize(
    "name",
    [
        "7", "-", "-x", "-7", "2026", "2026-11", "2026-11-28", "2026-11-28T10:00:00Z", "2026-11-28 noon",
        "latest", "Latest",
        "HEAD", "a/b", ".", "..", "a b", "a\tb", "a\u202eb", "a\u200bb", "x" * 101, "",
    ],
)  # fmt: skip
async def test_names_that_are_refused(name: str) -> None:
    lake, journal = await tagged_lake(1)
    await create(lake, journal, 1)
    pin = await journal.create_pin(1)
    new = CreateTag(tag_id=lake.identities.uuid4(), **set_to(pin, name))
    error = await raises(InvalidInput, lake.commit(journal, new))
    assert error.kind == "bad_name"
    rename = RenameObject(kind=Kind.TAG, namespace="", name="v", new_namespace="", new_name=name)
    await raises(InvalidInput, lake.commit(journal, rename), kind="bad_name")


@pytest.mark.parametrize(
    "name", ["v1", "release-2026-03", "daily-2026-11-23", "7up", "2026w", "名", "head-1"]
)
async def test_names_that_are_accepted(name: str) -> None:
    lake, journal = await tagged_lake(1)
    await create(lake, journal, 1, name)
    assert list(await names_at(journal, Tag(name))) == ["n1"]


async def test_fields_that_are_refused() -> None:
    lake, journal = await tagged_lake()
    pin, id = await journal.create_pin(2), lake.identities.uuid4()
    millis = lake.clock.millis
    for fields in (
        {"expire_at_millis": millis},
        {"expire_at_millis": EXPIRE_AT_MILLIS_MAX + 1},
        {"properties": {"": "x"}},
        {"message": "\ud800"},
        {"pin_path": "pin/x.arrow"},
        {"pin_path": PIN},  # there is no such file
        {"version": 3},
        {"version": 99},
        {"commit_id": lake.identities.uuid4()},
        {"commit_id": ""},
        {"version_created_at_millis": 1},
    ):
        wrong = CreateTag(tag_id=id, **set_to(pin, **fields))
        await raises(InvalidInput, lake.commit(journal, wrong))
    await raises(InvalidInput, lake.commit(journal, CreateTag(tag_id="x", **set_to(pin))))
    await raises(NotFound, lake.commit(journal, ReplaceTag(**set_to(pin))), kind="no_tag")
    await raises(NotFound, lake.commit(journal, DropTag(name="v")), kind="no_tag")
    undrop = Undrop(kind=Kind.TAG, namespace="", name="v", version=2, new_namespace="", new_name="v")
    await raises(InvalidInput, lake.commit(journal, undrop), kind="not_supported")
    assert not (await journal.list(None, Kind.TAG)).names


async def test_a_catalog_of_revision_1_has_no_tags() -> None:
    lake = Lake()
    journal = await lake.create(format_revision=1)
    pin = await journal.create_pin(0)
    new = CreateTag(tag_id=lake.identities.uuid4(), **set_to(pin))
    error = await raises(InvalidInput, lake.commit(journal, new), kind="upgrade_needed")
    assert "alpheus upgrade" in error.hint
    await lake.commit(journal, UpgradeCatalog(revision=2))
    await lake.commit(journal, new)
    assert (await tag(journal)).version == 0


async def test_of_two_creators_of_one_name_one_succeeds() -> None:
    lake, journal = await tagged_lake()
    other = await lake.open()
    commits = []
    for writer, at in ((journal, 1), (other, 2)):
        pin = await writer.create_pin(at)
        commits.append(lake.commit(writer, CreateTag(tag_id=lake.identities.uuid4(), **set_to(pin))))
    answers = await asyncio.gather(*commits, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, AlpheusError)]
    assert len(refused) == 1
    assert isinstance(refused[0], AlreadyExists | Conflict)
    assert not isinstance(refused[0], Conflict) or not refused[0].retryable


async def test_a_drop_that_expects_a_pin_spares_a_tag_that_was_replaced() -> None:
    lake, journal = await tagged_lake()
    pin = await create(lake, journal, 1)
    drop = DropTag(name="v", expected_pin_path=pin.path)
    await lake.commit(journal, ReplaceTag(**set_to(await journal.create_pin(2))))
    conflict = await raises(Conflict, lake.commit(journal, drop), kind="object_changed")
    assert conflict.retryable
    assert (await tag(journal)).version == 2
    now = (await tag(journal)).pin_path
    await lake.commit(journal, DropTag(name="v", expected_pin_path=now))
    assert not (await journal.list(None, Kind.TAG)).names


async def test_a_replacement_conflicts_with_a_replacement() -> None:
    lake, journal = await tagged_lake()
    await create(lake, journal, 1)
    begin = journal.head.version
    replacements = [ReplaceTag(**set_to(await journal.create_pin(at))) for at in (2, 3)]
    await journal.commit(lake.transaction(journal, replacements[0], begin=begin))
    late = journal.commit(lake.transaction(journal, replacements[1], begin=begin))
    conflict = await raises(Conflict, late)
    assert conflict.retryable
    assert (await tag(journal)).version == 2


# --- damage ----------------------------------------------------------------------------------------


async def test_a_check_names_pins_that_are_lost_damaged_or_mixed_up() -> None:
    lake, journal = await tagged_lake()
    pin = await create(lake, journal, 2)
    other = await journal.create_pin(3)
    data = await lake.storage.read(pin.path, size_max=1 << 20)
    await lake.storage.delete(pin.path)
    assert await damage_of(lake) == [(pin.path, "missing")]
    await lake.storage.put(pin.path, data[:-40])
    assert [path for path, _ in await damage_of(lake)] == [pin.path]
    await lake.storage.put(pin.path, await lake.storage.read(other.path, size_max=1 << 20))
    assert await damage_of(lake) == [(pin.path, f"is of version 3 as {other.commit_id}")]
    await lake.expire(below=4)
    await raises(InvalidInput, names_at(await lake.open(), Tag("v")), kind="bad_version")
    await lake.storage.put(pin.path, data[:-40])
    await raises(Corrupt, names_at(await lake.open(), Tag("v")), kind="corrupt_node")
    await lake.storage.delete(pin.path)
    await raises(Expired, names_at(await lake.open(), Tag("v")))
    await lake.storage.put(pin.path, data)
    assert not await damage_of(lake)
    assert list(await names_at(await lake.open(), Tag("v"))) == ["n1", "n2"]


async def damage_of(lake: Lake) -> list[tuple[str, str]]:
    found = [item async for item in (await lake.open()).check() if isinstance(item, Finding)]
    words = ("missing", "is of version 3 as", "")
    return [
        (
            item.path,
            next(
                item.message[item.message.index(word) :].split(",")[0] if " as" in word else word
                for word in words
                if word in item.message
            ),
        )
        for item in found
    ]
