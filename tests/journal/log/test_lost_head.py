"""A deleted head, holes, and files of another catalog: the processes that notice them, and the work that continues."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from alpheus.aio import connect, create
from alpheus_daemon.config import Config
from alpheus_daemon.main import running
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput
from alpheus_journal.journal import Journal
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import CheckSummary, Finding, Latest
from alpheus_journal.repair import Asked, carry_out, plan, survey
from alpheus_journal.replay import evidence
from alpheus_journal.storage import ObjectInfo, Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, model_of, raises

BY = ("hint", "checkpoint", "index", "all")


async def lake_of(
    versions: int, seed: int = 0, *, storage: Storage | None = None, digits: int = 32
) -> tuple[Lake, Journal]:
    """Make a catalog of `versions` versions above the first. Return also the journal that wrote it, detached."""
    lake = Lake(storage, seed=seed)
    journal = await lake.create(version_digits=digits)
    for number in range(versions):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await journal.detach()
    await lake.storage.delete(fmt.LATEST_HINT)
    return lake, journal


async def told_of(journal: Journal, by: str) -> None:
    """Record the head in a checkpoint, the index, the hint, or all of them."""
    if by in ("checkpoint", "all"):
        await journal.checkpoint()
    if by in ("index", "all"):
        await journal.write_index()
    if by in ("hint", "all"):
        await journal.follower.log.write_latest(journal.head.version)


async def delete(lake: Lake, *versions: int) -> None:
    log = await Log.open(lake.storage)
    for version in versions:
        await lake.storage.delete(log.path(version))


async def findings(journal: Journal) -> list[Finding]:
    return [item async for item in journal.check() if not isinstance(item, CheckSummary)]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_deleted_head_keeps_writers_from_taking_its_number(by: str, count: int) -> None:
    lake, journal = await lake_of(12)
    lost = journal.head
    await told_of(journal, by)
    kept = await model_of(journal, 12 - count)
    await delete(lake, *range(13 - count, 13))
    before = await listed(lake.storage, "")

    fresh = await lake.open()
    assert fresh.doubt is not None
    assert await model_of(fresh) == kept, "reads go on"
    error = await raises(Corrupt, lake.commit(fresh, lake.namespace("new")), kind="head_missing")
    assert error.version == 12
    assert "alpheus repair --accept-head" in error.hint
    assert by == "hint" or lost.commit_id in error.message
    # Nothing is written or deleted that would hide the loss.
    await raises(Corrupt, fresh.write_index(), kind="head_missing")
    await raises(Corrupt, fresh.checkpoint(), kind="head_missing")
    assert ("head_missing", 12) in {(finding.kind, finding.version) for finding in await findings(fresh)}
    await fresh.close()
    assert await listed(lake.storage, "") == before

    done = await carry_out(
        lake.storage,
        plan(await survey(lake.storage), Asked(accept_head=True)),
        clock=lake.clock,
        identities=lake.identities,
    )
    assert done.version == 13 - count
    # A process that refused before continues after the repair, without reopening.
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 14 - count
    assert (await lake.open()).doubt is None
    assert await findings(fresh) == []


@pytest.mark.slow
async def test_deleted_heads_of_every_length_on_every_store(
    tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """The test covers stores in files and in memory, both widths, each record of the head, and one to all of the
    catalog's versions deleted."""
    cases = [*itertools.product(BY, range(1, 13), (32, 64), (False, True))]
    for number in range(0, len(cases), lane_count(11, 1)):
        by, count, digits, in_files = cases[number]
        storage: Storage = MemoryStorage()
        if in_files:
            storage = await asyncio.to_thread(LocalStorage, str(tmp_path / str(number)), create=True)
        lake, journal = await lake_of(12, storage=storage, digits=digits)
        await told_of(journal, by)
        await delete(lake, *range(13 - count, 13))
        fresh = await lake.open()
        error = await raises(Corrupt, lake.commit(fresh, lake.namespace("new")), kind="head_missing")
        assert error.version == 12, (by, count, digits)
        made = plan(await survey(lake.storage), Asked(accept_head=True))
        await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)
        assert (await lake.commit(fresh, lake.namespace("new"))).version == 14 - count, (by, count, digits)
        assert await findings(fresh) == []
        await fresh.close()


async def test_a_running_process_does_not_delete_what_tells_of_a_lost_head() -> None:
    """The process was opened below the deleted head, and keeps the run that knows of this head."""
    lake, journal = await lake_of(12)
    await told_of(journal, "index")
    (path,) = await listed(lake.storage, "checkpoint/")
    await delete(lake, 12)
    below = await lake.open()
    below.follower.around = None  # as if the process had been opened before the head was deleted
    await below.write_index()
    assert below.index.refused[path].kind == "head_missing"
    assert path in await listed(lake.storage, "checkpoint/")


async def test_a_process_in_doubt_leaves_what_tells_of_a_lost_head() -> None:
    """The process deletes no hint or checkpoint, neither when it ends after another process continued, nor when it
    heals its memory."""
    lake, journal = await lake_of(10)
    await journal.checkpoint()
    await delete(lake, 9, 10)
    unknowing = await lake.open()
    unknowing.follower.around = None
    await lake.storage.put(fmt.LATEST_HINT, b"10")
    doubting = await lake.open()
    assert doubting.doubt is not None
    await doubting.load_state()
    before = await listed(lake.storage, "checkpoint/")
    doubting.replay.invalidate("a test says so")
    await raises(Corrupt, doubting.replay.rebuild(), kind="head_missing")
    await raises(Corrupt, doubting.reload_symbols(), kind="head_missing")
    assert await listed(lake.storage, "checkpoint/") == before
    assert doubting.state is not None, "it is served from the tree that was read"

    await lake.commit(unknowing, lake.namespace("x"))
    await unknowing.detach()
    await doubting.refresh()
    await lake.storage.put(fmt.LATEST_HINT, b"10")
    await doubting.close()
    assert await lake.storage.read(fmt.LATEST_HINT, size_max=64) == b"10"
    assert (await lake.open()).doubt is not None


async def test_without_a_trace_there_is_nothing_to_notice() -> None:
    lake, _ = await lake_of(3)
    await delete(lake, 3)
    fresh = await lake.open()
    assert fresh.doubt is None
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 3


@pytest.mark.parametrize("hint", [b"", b"x", b"-1", b"1.5", b"4294967296", b"9" * 64, b"0", b"2", b"3", None])
async def test_a_hint_that_is_malformed_or_not_above_the_head_is_passed_over(hint: bytes | None) -> None:
    lake, _ = await lake_of(3)
    if hint is not None:
        await lake.storage.put(fmt.LATEST_HINT, hint)
    fresh = await lake.open()
    assert fresh.doubt is None
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 4


@pytest.mark.parametrize("damage", ["torn", "another catalog's", "of another width"])
async def test_a_file_that_is_no_good_tells_nothing(damage: str) -> None:
    lake, _ = await lake_of(3)
    other = Lake(seed=1)
    theirs = await other.create(version_digits=64 if "width" in damage else 32)
    for number in range(9):
        await other.commit(theirs, other.namespace(f"n{number}"))
    await theirs.checkpoint()
    await theirs.write_index()
    for path in await listed(other.storage, "checkpoint/"):
        data = await other.storage.read(path, size_max=1 << 20)
        await lake.storage.put(path, data[: len(data) // 2] if damage == "torn" else data)
    fresh = await lake.open()
    assert fresh.doubt is None
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 4


async def test_a_session_that_saw_a_lost_version_writes_nothing() -> None:
    lake, journal = await lake_of(5)
    token = journal.head.token
    await delete(lake, 5)
    fresh = await lake.open()
    error = await raises(Corrupt, fresh.resolve(Latest(session_token=token)), kind="head_missing")
    assert error.version == 5
    assert journal.head.commit_id in error.message
    assert "alpheus repair" in error.hint
    # A client's token binds this client alone: other clients continue.
    assert (await lake.commit(fresh, lake.namespace("new"))).version == 5
    await raises(InvalidInput, fresh.resolve(Latest(session_token=token)), kind="bad_token")


async def test_a_head_that_moves_while_it_is_looked_for_is_no_doubt() -> None:
    """Other processes commit between any two requests of an opening."""

    class Busy(MemoryStorage):
        turn = 0
        at = -1

        async def _tick(self) -> None:
            self.turn += 1
            if self.turn == self.at:
                self.at = -1
                for number in range(9):
                    await lake.commit(journal, lake.namespace(f"m{number}"))
                await told_of(journal, "all")

        async def stat_many(self, paths: object) -> object:  # type: ignore[override]
            await self._tick()
            found = await super().stat_many(paths)  # type: ignore[arg-type]
            await self._tick()
            return found

        async def read(self, path: str, *, size_max: int) -> bytes:
            await self._tick()
            return await super().read(path, size_max=size_max)

    for at in range(1, 40):
        storage = Busy()
        lake = Lake(storage)
        journal = await lake.create()
        for number in range(5):
            await lake.commit(journal, lake.namespace(f"n{number}"))
        await told_of(journal, "all")
        storage.turn, storage.at = 0, at
        fresh = await lake.open()
        if storage.at != -1:
            break
        assert fresh.doubt is None, at
    else:
        pytest.fail("opening never ended")
    assert at > 8


# --- holes -----------------------------------------------------------------------------------------


async def test_holes_that_opening_sees() -> None:
    """Opening sees holes at head ± 2^k, whether the hints point below or above the hole. Reads continue, and nothing is
    written."""
    lake, _ = await lake_of(40)
    assert isinstance(lake.storage, MemoryStorage)
    files = dict(lake.storage._files)
    for hint, (first, last) in itertools.product((b"40", b"5", None), [(11, 20), (39, 39), (9, 36), (1, 3)]):
        lake.storage._files = dict(files)
        if hint is not None:
            await lake.storage.put(fmt.LATEST_HINT, hint)
        await delete(lake, *range(first, last + 1))
        fresh = await lake.open()
        if fresh.doubt is None:  # the hole is not at a power of two from the head
            await fresh.follower.look_at_slots()
        assert fresh.doubt is not None, (hint, first, last)
        error = await raises(Corrupt, lake.commit(fresh, lake.namespace("new")), kind="history_replaced")
        assert error.version is not None
        assert first <= error.version <= last
        assert (await fresh.resolve(None)).version == fresh.head.version
        kinds = [finding.kind for finding in await findings(fresh)]
        assert kinds


async def test_any_hole_is_seen_by_a_listing() -> None:
    lake, _ = await lake_of(20)
    log = await Log.open(lake.storage)
    assert isinstance(lake.storage, MemoryStorage)
    files = dict(lake.storage._files)
    for version in range(1, 20):
        lake.storage._files = dict(files)
        await delete(lake, version)
        for head in (20, version - 1):
            assert await evidence.find_hole(log, head) == (version, 20)
    lake.storage._files = dict(files)
    for head in range(21):
        assert await evidence.find_hole(log, head) is None
    # A strange name does no harm.
    await lake.storage.put("vn/" + "1" * 32, b"")
    await lake.storage.put("vn/strange", b"")
    assert await evidence.find_hole(log, 20) == (21, (1 << 32) - 1)


class Rounds(MemoryStorage):
    """Record which requests run concurrently: each request waits until no other task has work."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[str]] = []
        self._waiting: asyncio.Future[None] | None = None

    async def _together(self, what: str) -> None:
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().create_future()
            self.rounds.append([])
            asyncio.get_running_loop().call_later(0, self._answer, self._waiting, 10)
        self.rounds[-1].append(what)
        await self._waiting

    def _answer(self, waiting: asyncio.Future[None], turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._answer, waiting, turns - 1)
        else:
            waiting.set_result(None)

    async def read(self, path: str, *, size_max: int) -> bytes:
        await self._together(path)
        return await super().read(path, size_max=size_max)

    async def stat(self, path: str) -> ObjectInfo | None:
        await self._together(path)
        return await super().stat(path)

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        await asyncio.gather(*map(self._together, paths))
        return {path: await MemoryStorage.stat(self, path) for path in paths}

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._together(prefix)
        async for info in super().list(prefix):
            yield info


async def test_opening_costs_one_round_of_requests_at_once() -> None:
    """The looks around the head, the catalog's definition, version 0 and the version below the head are requested
    together."""
    lake, journal = await lake_of(37)
    await told_of(journal, "all")
    storage = Rounds()
    for path in await listed(lake.storage, ""):
        await storage.put(path, await lake.storage.read(path, size_max=1 << 20))
    fresh = await lake.open(storage)
    assert fresh.doubt is None
    log = fresh.follower.log
    around = [log.path(version) for version in evidence.probes(37)]
    assert len(around) == 6 + 32
    assert [sorted(requests) for requests in storage.rounds] == [
        sorted([fmt.version_file(0, 32), fmt.version_file(0, 64)]),
        sorted([fmt.LATEST_HINT, fmt.OLDEST_HINT, "checkpoint/"]),
        [log.path(37)],
        [log.path(38)],
        [log.path(37)],
        sorted([*around, log.path(36), log.path(0), fresh.head.catalog_def]),
    ]


# --- two catalogs in one prefix --------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs", "overwrites"), [(3, 9, False), (9, 3, True), (3, 9, True)])
async def test_files_of_another_catalog(ours: int, theirs: int, overwrites: bool) -> None:
    """The cases are `cp -rn other/. this/` and `cp -r`."""
    lake, journal = await lake_of(ours)
    other, another = await lake_of(theirs, seed=1)
    for path in await listed(other.storage, ""):
        if overwrites or not await lake.storage.exists(path):
            await lake.storage.put(path, await other.storage.read(path, size_max=1 << 20))
    if overwrites and ours < theirs:
        fresh = await lake.open()  # only the other catalog is left
        assert fresh.catalog_id == another.catalog_id
        return
    before = await listed(lake.storage, "")
    error = await raises(InvalidInput, lake.open(), kind="two_histories")
    assert journal.catalog_id in error.message
    assert another.catalog_id in error.message
    assert await listed(lake.storage, "") == before


async def test_foreign_and_swapped_roots_are_refused() -> None:
    lake, _ = await lake_of(6)
    other, _ = await lake_of(6, seed=1)
    log = await Log.open(lake.storage)
    data = {version: await lake.storage.read(log.path(version), size_max=1 << 20) for version in range(7)}
    for version in range(1, 7):
        strange = await other.storage.read(log.path(version), size_max=1 << 20)
        swapped = data[version - 1]
        for bytes_there in (strange, swapped):
            await lake.storage.put(log.path(version), bytes_there)
            try:
                fresh = await lake.open()
            except AlpheusError as error:
                assert version == 6, error  # noqa: PT017
            else:
                assert version in {finding.version for finding in await findings(fresh)}
        await lake.storage.put(log.path(version), data[version])
    assert await findings(await lake.open()) == []


# --- clients and daemons ---------------------------------------------------------------------------


async def test_a_daemon_serves_and_writes_nothing() -> None:
    lake, journal = await lake_of(6)
    await told_of(journal, "checkpoint")
    await delete(lake, 6)
    fresh = await lake.open()
    await fresh.load_state()
    async with (
        running(Config(url="memory://test", listen="127.0.0.1:0"), fresh) as address,
        await connect(f"grpc://{address}") as catalog,
    ):
        assert len(await catalog.list_namespaces()) == 5
        error = await raises(Corrupt, catalog.create_namespace("new"), kind="head_missing")
        assert error.version == 6
        assert "--accept-head" in error.hint
    assert (await lake.open()).head.version == 5


async def test_a_daemon_finds_a_hole_by_itself() -> None:
    lake, _ = await lake_of(30)
    await delete(lake, 11)
    fresh = await lake.open()
    assert fresh.doubt is None, "head - 19 is no power of two"
    async with (
        running(Config(url="memory://test", listen="127.0.0.1:0"), fresh) as address,
        await connect(f"grpc://{address}") as catalog,
    ):
        while fresh.doubt is None:
            await catalog.list_namespaces()
        await raises(Corrupt, catalog.create_namespace("new"), kind="history_replaced")


async def test_a_library_reader_is_warned(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    async with await create(url):
        pass
    (tmp_path / "lake" / fmt.LATEST_HINT).write_bytes(b"7")
    with pytest.warns(UserWarning, match="version 7 existed.*--accept-head"):
        catalog = await connect(url)
    async with catalog:
        assert await catalog.list_namespaces() == []
        await raises(Corrupt, catalog.create_namespace("new"), kind="head_missing")
