"""Every root names its catalog and the root below it. A reader of two roots that do not fit refuses them."""

from __future__ import annotations

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary, Finding
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, raises
from alpheus_journal.tree.node import EMPTY, NodeFile, decode_node, encode_node


@pytest.fixture
def lake() -> Lake:
    return Lake()


async def root_file(lake: Lake, version: int, digits: int = 32) -> NodeFile:
    path = fmt.version_file(version, digits)
    return decode_node(await lake.storage.read(path, size_max=1 << 20), path, root=True, size_max=1 << 20)


async def grown(lake: Lake, versions: int, **options: object) -> Journal:
    journal = await lake.create(**options)
    for number in range(versions):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    return journal


async def forked(versions: int = 5, at: int = 3) -> tuple[Lake, MemoryStorage]:
    """Make a catalog and another history of it. The other history shares the files up to version `at` and continues
    with other versions. Its new names come from another source, so that no two files share a name."""
    lake = Lake()
    await grown(lake, versions)
    copy = MemoryStorage()
    for path in await listed(lake.storage, ""):
        await copy.put(path, await lake.storage.read(path, size_max=1 << 20))
    for version in range(at + 1, versions + 1):
        await copy.delete(fmt.version_file(version, 32))
    await copy.delete(fmt.LATEST_HINT)
    other = Lake(copy, seed=1)
    journal = await other.open()
    assert journal.head.version == at
    for number in range(versions - at):
        await other.commit(journal, other.namespace(f"m{number}"))
    return lake, copy


async def take_over(lake: Lake, copy: MemoryStorage, version: int) -> None:
    """Copy version `version`, and all files except roots, from the other history."""
    for path in await listed(copy, ""):
        if not path.startswith("vn/") or path == fmt.version_file(version, 32):
            await lake.storage.put(path, await copy.read(path, size_max=1 << 20))


async def findings(journal: Journal) -> list[Finding]:
    found = [item async for item in journal.check()]
    assert isinstance(found[-1], CheckSummary)
    return [item for item in found if isinstance(item, Finding)]


@pytest.mark.parametrize("digits", [32, 64])
async def test_every_root_names_the_one_before_and_its_catalog(digits: int) -> None:
    lake = Lake()
    journal = await grown(lake, 3, version_digits=digits)
    log = await Log.open(lake.storage)
    below = ""
    for version in range(4):
        file = await root_file(lake, version, digits)
        assert file.previous_commit_id == below
        assert (fmt.ROW_PREVIOUS_COMMIT_ID in file.system) is (version > 0)
        assert file.catalog_id == journal.catalog_id
        assert file.commit_id is not None
        found = await log.read(version)
        assert (found.previous_commit_id, found.catalog_id) == (below, journal.catalog_id)
        below = file.commit_id
    await lake.expire(below=2)
    assert (await root_file(lake, 1, digits)).catalog_id == journal.catalog_id
    assert await findings(await lake.open()) == []


async def test_the_root_of_another_writer_is_named_by_its_stand_in(lake: Lake) -> None:
    journal = await lake.create()
    log = await Log.open(lake.storage)
    # Some writers copy all rows that they do not know. Our rows in such a root say nothing about it.
    system = {
        fmt.ROW_CATALOG_DEF: journal.head.catalog_def,
        fmt.ROW_PREVIOUS_ROOT: log.path(0),
        fmt.ROW_PREVIOUS_COMMIT_ID: "whatever",
        fmt.ROW_CATALOG_ID: "another",
    }
    await lake.storage.put(
        log.path(1), encode_node(EMPTY, order=128, created_at_millis=1, size_max=1 << 20, system=system)
    )
    committed = await lake.commit(journal, lake.namespace("a"))
    assert committed.version == 2
    assert (await root_file(lake, 2)).previous_commit_id == await log.commit_id(1)
    assert (await log.commit_id(1)).startswith("sha256-")
    assert {f.kind for f in await findings(await lake.open())} == {"foreign_write"}


async def test_a_root_of_another_history_is_refused() -> None:
    """Version 5 of one history is stored above version 4 of the other. Every reader's error names both ids."""
    lake, copy = await forked()
    token = (await lake.open()).head.token
    five = fmt.version_file(5, 32)
    await lake.storage.delete(five)
    follower = await lake.open()
    assert follower.head.version == 4
    known = follower.head.commit_id
    await take_over(lake, copy, 5)
    made_on = (await root_file(lake, 5)).previous_commit_id
    assert made_on != known

    def named(text: str) -> None:
        for part in (known, made_on, "version 5", "version 4"):
            assert part in text

    error = await raises(Corrupt, follower.refresh(), kind="history_replaced")
    assert (error.version, follower.head.version) == (5, 4)
    named(error.message)
    # The error stays: no version is written, and version 5 is never read as the newest.
    await raises(Corrupt, lake.commit(follower, lake.namespace("x")), kind="history_replaced")
    opened = await lake.open()
    error = await raises(Corrupt, opened.event(5), kind="history_replaced")
    named(error.message)
    events = opened.events(after=4, until=5)
    await raises(Corrupt, anext(events), kind="history_replaced")
    (finding,) = [f for f in await findings(opened) if f.kind == "history_replaced"]
    assert (finding.path, finding.version) == (five, 5)
    named(finding.message)
    assert token != opened.head.token
    # The version below may have expired since. Its tombstone has its id.
    await lake.expire(below=5)
    assert "history_replaced" in {f.kind for f in await findings(await lake.open())}


async def test_a_catch_up_of_the_state_looks_at_the_links() -> None:
    """Versions that were accepted while the state was loaded are read again: they may have changed meanwhile."""
    lake, copy = await forked()
    journal = await lake.open()
    state = await (await lake.open()).load_state()
    assert state.version == 5
    head = journal.head
    await take_over(lake, copy, 5)
    before = await Log(lake.storage, 32).read(4)
    older = journal.follower._head_of(before)
    late = await Journal.open(lake.storage, clock=lake.clock, identities=lake.identities)
    empty = await late.replay._from_tree(older)
    assert late.head.version == head.version
    await raises(Corrupt, late.replay._catch_up(empty, older), kind="history_replaced")


async def test_a_follower_that_jumps_over_expired_versions_looks_at_the_link() -> None:
    lake, copy = await forked(versions=6, at=4)
    for version in (5, 6):
        await lake.storage.delete(fmt.version_file(version, 32))
    paused = await lake.open()
    assert paused.head.version == 4
    # Version 5 of one history has expired, below version 6 of the other history.
    other = Lake(copy)
    await other.expire(below=6)
    six = await copy.read(fmt.version_file(6, 32), size_max=1 << 20)
    mixed = decode_node(six, "", root=True, size_max=1 << 20)
    for path in await listed(copy, ""):
        await lake.storage.put(path, await copy.read(path, size_max=1 << 20))
    computed = (fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS)
    system = {key: value for key, value in mixed.system.items() if key not in computed}
    changed = encode_node(
        mixed.node,
        order=fmt.ORDER_DEFAULT,
        created_at_millis=mixed.created_at_millis or 0,
        size_max=1 << 20,
        system=system | {fmt.ROW_PREVIOUS_COMMIT_ID: lake.identities.uuid4()},
        actions=mixed.actions,
    )
    await lake.storage.put(fmt.version_file(6, 32), changed)
    await raises(Corrupt, paused.refresh(), kind="history_replaced")
    assert paused.head.version == 4


async def test_a_version_of_another_catalog_is_refused(lake: Lake) -> None:
    """Files of two catalogs are stored under one prefix, and each file is whole."""
    journal = await grown(lake, 3)
    other = Lake(seed=7)
    stranger = await grown(other, 3)
    for path in await listed(other.storage, ""):
        if not path.startswith("vn/") or path == fmt.version_file(2, 32):
            await lake.storage.put(path, await other.storage.read(path, size_max=1 << 20))
    opened = await lake.open()
    assert opened.catalog_id == journal.catalog_id
    error = await raises(Corrupt, opened.event(2), kind="history_replaced")
    assert (error.version, error.path) == (2, fmt.version_file(2, 32))
    assert journal.catalog_id in error.message
    assert stranger.catalog_id in error.message
    assert "history_replaced" in {f.kind for f in await findings(opened)}
    # A tombstone of the other catalog shows the same.
    await other.expire(below=3)
    await lake.storage.put(
        fmt.version_file(2, 32), await other.storage.read(fmt.version_file(2, 32), size_max=1 << 20)
    )
    await raises(Corrupt, opened.follower.root(2), kind="history_replaced")


async def test_a_root_that_does_not_say_is_read(lake: Lake) -> None:
    """Earlier releases wrote neither row, and may write above roots that have both rows."""
    journal = await grown(lake, 2)
    for version in (1, 2):
        file = await root_file(lake, version)
        system = {
            row: value
            for row, value in file.system.items()
            if row
            not in (
                fmt.ROW_PREVIOUS_COMMIT_ID,
                fmt.ROW_CATALOG_ID,
                fmt.ROW_CREATED_AT_MILLIS,
                fmt.ROW_N_KEYS,
                fmt.ROW_N_ACTIONS,
            )
        }
        old = encode_node(
            file.node,
            order=128,
            created_at_millis=file.created_at_millis or 0,
            size_max=1 << 20,
            system=system,
            actions=file.actions,
        )
        await lake.storage.put(fmt.version_file(version, 32), old)
    opened = await lake.open()
    assert opened.catalog_id == journal.catalog_id
    assert await findings(opened) == []
    await lake.commit(opened, lake.namespace("more"))
    assert (await root_file(lake, 3)).previous_commit_id == (await root_file(lake, 2)).commit_id
    await lake.expire(below=2)
    await raises(Expired, opened.follower.root(1))


async def test_a_first_version_on_another_one_is_refused(lake: Lake) -> None:
    await lake.create()
    file = await root_file(lake, 0)
    own = (fmt.ROW_CREATED_AT_MILLIS, fmt.ROW_N_KEYS, fmt.ROW_N_ACTIONS)
    system = {row: value for row, value in file.system.items() if row not in own}
    await lake.storage.put(
        fmt.version_file(0, 32),
        encode_node(
            EMPTY,
            order=128,
            created_at_millis=file.created_at_millis or 0,
            size_max=1 << 20,
            system=system | {fmt.ROW_PREVIOUS_COMMIT_ID: "c"},
            actions=file.actions,
        ),
    )
    error = await raises(Corrupt, lake.open(), kind="corrupt_history")
    assert "names a previous commit, c" in error.message
