"""Finding the head with hints that are missing or wrong, and reading malformed roots."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.log.versions import Log
from alpheus_journal.model.operations import UpdateCatalog
from alpheus_journal.storage import ObjectInfo
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import InterleavedStorage, Lake, listed, raises
from alpheus_journal.tree.node import EMPTY, decode_node, encode_node


class ManyVersions(MemoryStorage):
    """A store in which slots 0 to `head` exist. It counts requests."""

    def __init__(self, head: int, hints: dict[str, bytes]) -> None:
        super().__init__()
        self.head = head
        self.hints = hints
        self.requests = 0

    async def stat(self, path: str) -> ObjectInfo | None:
        self.requests += 1
        version, _ = fmt.parse_version_file(path)
        return ObjectInfo(path, 1, 1) if version <= self.head else None

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.requests += 1
        if path not in self.hints:
            raise NotFound("no hint")
        return self.hints[path]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        raise AssertionError("a listing finds no head")
        yield


HEADS = (0, 1, 2, 3, 7, 8, 1000, 65_535, 65_536, 999_999, 1_000_000)
HINTS = (
    None, b"", b"x", b"-1", b"1.5", b"\xff\xfe", b"9" * 64, b"0", b"1", b"7\n", b" 8 ", b"1000", b"999999",
    b"1000000", b"1000001", b"4294967295", b"4294967296", "\u0661".encode(),
)  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
async def test_the_head_whatever_the_hints_say(head: int) -> None:
    for latest, oldest in itertools.product(HINTS, HINTS):
        hints = {fmt.LATEST_HINT: latest, fmt.OLDEST_HINT: oldest}
        storage = ManyVersions(head, {path: data for path, data in hints.items() if data is not None})
        assert await Log(storage, 32).head() == head
        assert storage.requests < 60


@given(head=st.integers(0, 1 << 21), known=st.integers(0, 1 << 21))
async def test_the_head_from_a_known_version(head: int, known: int) -> None:
    known = min(head, known)
    storage = ManyVersions(head, {})
    assert await Log(storage, 64).head(known) == head
    distance = head - known
    assert storage.requests <= 2 * (distance + 1).bit_length() + 1, "about twice the logarithm"


async def test_a_right_hint_costs_one_look_past_the_head() -> None:
    storage = ManyVersions(123_456, {fmt.LATEST_HINT: b"123456"})
    await Log(storage, 32).head()
    assert storage.requests == 4  # two hints, the version itself, the next one


async def test_a_lying_hint_does_not_spoil_the_other() -> None:
    storage = ManyVersions(1_000_000, {fmt.LATEST_HINT: b"2000000", fmt.OLDEST_HINT: b"999990"})
    assert await Log(storage, 32).head() == 1_000_000
    assert storage.requests < 16


async def damaged(lake: Lake, version: int, data: bytes) -> None:
    log = await Log.open(lake.storage)
    await lake.storage.put(log.path(version), data)


async def root(lake: Lake, version: int) -> bytes:
    log = await Log.open(lake.storage)
    return await lake.storage.read(log.path(version), size_max=1 << 20)


async def test_roots_in_other_slots() -> None:
    lake = Lake()
    journal = await lake.create()
    for number in range(3):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    log = await Log.open(lake.storage)
    roots = [await root(lake, version) for version in range(4)]
    for slot, content in itertools.product(range(4), range(4)):
        await damaged(lake, slot, roots[content])
        if slot == content:
            assert (await log.read(slot)).version == slot
        else:
            error = await raises(Corrupt, log.read(slot), kind="corrupt_history")
            assert error.path == log.path(slot)
            assert f"version {content}" in str(error)
        await damaged(lake, slot, roots[slot])
    await raises(NotFound, log.read(4), kind="no_version")


async def test_another_writers_root_on_the_wrong_base() -> None:
    lake = Lake()
    journal = await lake.create()
    log = await Log.open(lake.storage)
    for previous in (None, log.path(1), log.path(5), fmt.node_path(lake.identities.uuid4())):
        system = {fmt.ROW_CATALOG_DEF: journal.head.catalog_def}
        if previous:
            system[fmt.ROW_PREVIOUS_ROOT] = previous
        await lake.storage.put(
            log.path(1), encode_node(EMPTY, order=128, created_at_millis=1, size_max=1 << 20, system=system)
        )
        error = await raises(Corrupt, log.read(1), kind="corrupt_history")
        assert error.version == 1


async def test_a_foreign_root_is_known_by_its_bytes() -> None:
    lake = Lake()
    journal = await lake.create()
    log = await Log.open(lake.storage)
    system = {fmt.ROW_CATALOG_DEF: journal.head.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(0)}
    data = encode_node(EMPTY, order=128, created_at_millis=1, size_max=1 << 20, system=system)
    await lake.storage.put(log.path(1), data)
    found = await log.read(1)
    assert found.is_foreign
    assert found.commit_id.startswith("sha256-")
    assert found.commit_id == await log.commit_id(1)
    assert found.transactions == ()


@pytest.mark.parametrize(
    ("rows", "actions", "reading"),
    [
        ((), 0, "foreign"),
        ((), 1, "foreign"),  # roots of another writer of the format: the meaning of their actions is unknown
        ((fmt.ROW_COMMIT_ID,), 0, "foreign"),
        ((fmt.ROW_COMMIT_ID, fmt.ROW_FORMAT_REVISION), 0, "foreign"),
        ((fmt.ROW_COMMIT_ID, fmt.ROW_FORMAT_REVISION), 1, "corrupt"),
        ((fmt.ROW_COMMIT_ID, fmt.ROW_VERSION), 1, "corrupt"),
        ((fmt.ROW_VERSION, fmt.ROW_FORMAT_REVISION), 0, "corrupt"),
        ((fmt.ROW_VERSION,), 0, "corrupt"),
    ],
)
async def test_a_root_with_some_of_our_rows_never_hides_actions(
    rows: tuple[str, ...], actions: int, reading: str
) -> None:
    lake = Lake()
    journal = await lake.create()
    log = await Log.open(lake.storage)
    values = {fmt.ROW_COMMIT_ID: "c", fmt.ROW_VERSION: "1", fmt.ROW_FORMAT_REVISION: "1"}
    system = {fmt.ROW_CATALOG_DEF: journal.head.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(0)}
    system |= {row: values[row] for row in rows}
    data = encode_node(
        EMPTY,
        order=128,
        created_at_millis=1,
        size_max=1 << 20,
        system=system,
        actions=[("catalog_def", "AA==")] * actions,
    )
    await lake.storage.put(log.path(1), data)
    if reading == "corrupt":
        error = await raises(Corrupt, log.read(1), kind="corrupt_history")
        assert "lacks the row" in error.message
        return
    found = await log.read(1)
    assert found.is_foreign
    assert found.transactions == ()
    assert found.commit_id == await log.commit_id(1)
    assert found.commit_id.startswith("sha256-")


async def test_the_first_version_has_none_before_it() -> None:
    lake = Lake()
    journal = await lake.create()
    log = await Log.open(lake.storage)
    system = {fmt.ROW_CATALOG_DEF: journal.head.catalog_def, fmt.ROW_PREVIOUS_ROOT: log.path(0)}
    data = encode_node(EMPTY, order=128, created_at_millis=1, size_max=1 << 20, system=system)
    await lake.storage.put(log.path(0), data)
    error = await raises(Corrupt, log.read(0), kind="corrupt_history")
    assert (error.path, error.version) == (log.path(0), 0)


async def test_a_newer_revision_is_refused() -> None:
    lake = Lake()
    journal = await lake.create()
    system = {
        fmt.ROW_CATALOG_DEF: journal.head.catalog_def,
        fmt.ROW_FORMAT_REVISION: str(fmt.FORMAT_REVISION + 1),
    }
    await damaged(
        lake, 0, encode_node(EMPTY, order=128, created_at_millis=1, size_max=1 << 20, system=system)
    )
    await raises(InvalidInput, lake.open(), kind="newer_format")


async def test_tombstones() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"))
    log = await Log.open(lake.storage)
    before = await log.commit_id(0)
    await lake.expire(below=1)
    error = await raises(Expired, log.read(0), kind="version_expired")
    assert (error.version, error.path) == (0, log.path(0))
    assert await log.commit_id(0) == before
    assert (await lake.open()).head.version == 1


async def test_large_actions_lie_in_files_of_their_own() -> None:
    lake = Lake()
    journal = await lake.create()
    small = await lake.commit(journal, UpdateCatalog(set={"k": "v" * 15_000}))
    assert await listed(lake.storage, "action/") == {}
    large = await lake.commit(journal, UpdateCatalog(set={"k": "v" * 17_000, "l": "w" * 17_000}))
    (path,) = await listed(lake.storage, "action/")
    log = await Log.open(lake.storage)
    for committed in (small, large):
        (transaction,) = (await log.read(committed.version)).transactions
        (action,) = transaction.actions
        assert isinstance(action.operation, UpdateCatalog)
    assert len(action.operation.set) == 2
    assert len(decode_node(await root(lake, 2), "", root=True, size_max=1 << 20).actions[1][1]) < 300
    data = await lake.storage.read(path, size_max=1 << 20)
    for bad in (data[:-1], data[:-1] + b"x", b"", data + b"x"):
        await lake.storage.put(path, bad)
        error = await raises(Corrupt, log.read(2), kind="corrupt_action")
        assert error.path == path
    await lake.storage.delete(path)
    error = await raises(Corrupt, log.read(2), kind="corrupt_action")
    assert error.path == path


async def test_the_newest_version_expires_while_it_is_looked_for() -> None:
    """Other processes commit, and expire the version that was the head when it was found. The search continues from
    there."""
    lake = Lake()
    journal = await lake.create()

    class Slow(InterleavedStorage):
        async def read(self, path: str, *, size_max: int) -> bytes:
            if path == journal.follower.log.path(journal.head.version) and self.moves:
                self.moves -= 1
                await lake.commit(journal, UpdateCatalog(set={"p": str(self.moves)}))
                await lake.expire(below=journal.head.version)
            return await super().read(path, size_max=size_max)

        moves = 3

    opened = await lake.open(Slow(lake.storage, 0))
    assert opened.head.version == journal.head.version == 3
    await lake.expire(below=4)
    await raises(Expired, lake.open())
