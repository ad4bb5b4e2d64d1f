"""The index of ids and keys answers like a reader of every root, whatever happened to the index files."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import random
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, Unavailable
from alpheus_journal.format import CLOCK_SKEW_MILLIS_MAX, ROW_CATALOG_DEF, ROW_PREVIOUS_ROOT
from alpheus_journal.journal import Journal
from alpheus_journal.log import index as index_module
from alpheus_journal.log import index_runs
from alpheus_journal.log.index import Index
from alpheus_journal.log.index_runs import (
    FOLDER,
    Fingerprint,
    Gathering,
    Part,
    Run,
    clip_run,
    decode_run,
    encode_run,
    fingerprint,
    gaps,
    id_term,
    last_version,
    merge_runs,
    older_to_merge,
    run_path,
    superfluous_runs,
)
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Committed, Outcome
from alpheus_journal.model.operations import CancelTransaction, Operation, Transaction, UpdateCatalog
from alpheus_journal.replay import follower as follower_module
from alpheus_journal.storage import Storage
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import InterleavedStorage, Lake, listed, raises
from alpheus_journal.tree.node import encode_node

CATALOG = "11111111-1111-4111-8111-111111111111"
SOME = "22222222-2222-4222-8222-222222222222"

# --- pure functions --------------------------------------------------------------------------------

Entries = list[tuple[int, int]]


def run_of(entries: Entries, first: int, last: int) -> Run:
    gathering = Gathering(first)
    for version in range(first, last + 1):
        gathering.add(version, [number for number, at in entries if at == version])
    return gathering.run()


def entries_of(run: Run) -> Entries:
    return sorted(zip(run.fingerprints, run.versions, strict=True))


def stored(run: Run, commit_id: str = "c", catalog_id: str = CATALOG) -> tuple[bytes, str]:
    return encode_run(run, catalog_id=catalog_id, commit_id=commit_id), run_path(run.last, 32, SOME)


some_entries = st.lists(
    st.tuples(st.integers(0, 5) | st.integers(0, 2**64 - 1), st.integers(0, 20)), unique=True
)


@given(some_entries, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_runs_say_what_went_in(entries: Entries, split: int, overlap: int, one: int, other: int) -> None:
    whole = run_of(entries, 0, 20)
    assert entries_of(whole) == sorted(entries)
    for number in {number for number, _ in entries} | {3}:
        assert sorted(whole.find(number)) == sorted(at for found, at in entries if found == number)
    low, high = sorted((one, other))
    part = clip_run(whole, low, high)
    assert entries_of(part) == sorted((n, at) for n, at in entries if low <= at <= high)
    lower = run_of([e for e in entries if e[1] <= split], 0, split)
    start = min(split + 1, overlap)
    upper = run_of([e for e in entries if e[1] >= start], start, 20)
    both = merge_runs([upper, lower])
    assert (both.first, both.last, entries_of(both)) == (0, 20, sorted(entries))
    data, path = stored(both)
    decoded = decode_run(data, path, catalog_id=CATALOG)
    assert (decoded.first, decoded.last, decoded.commit_id) == (0, 20, "c")
    assert entries_of(decoded) == sorted(entries)
    assert stored(decoded)[0] == data


def test_a_run_grows_at_both_ends() -> None:
    gathering = Gathering(5)
    for version, numbers in ((5, [1]), (6, [1, 2]), (4, []), (3, [2, 1])):
        gathering.add(version, numbers)
    run = gathering.run()
    assert (run.first, run.last, len(run), len(gathering)) == (3, 6, 5, 5)
    assert entries_of(run) == [(1, 3), (1, 5), (1, 6), (2, 3), (2, 6)]
    assert list(gathering.find(1)) == [5, 6, 3]


@given(st.data())
def test_no_byte_of_a_run_may_change_what_it_says(data: st.DataObject) -> None:
    content, path = stored(run_of([(7, 3), (7, 4), (9, 3), (2**64 - 1, 6)], 3, 6))
    damaged = bytearray(content)
    cut = data.draw(st.booleans())
    position = data.draw(st.integers(0, len(content) - 1))
    if cut:
        del damaged[position:]
    else:
        damaged[position] ^= data.draw(st.integers(1, 255))
    refusal: AlpheusError | None = None
    try:
        run = decode_run(bytes(damaged), path, catalog_id=CATALOG)
    except AlpheusError as error:
        refusal = error
    if refusal is not None:
        assert refusal.kind in ("corrupt_index", "newer_format")
        assert refusal.path == path
        return
    assert not cut
    said = decode_run(content, path, catalog_id=CATALOG)
    assert (run.first, run.last, run.commit_id) == (said.first, said.last, said.commit_id)
    assert entries_of(run) == entries_of(said)


def test_what_a_reader_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of([(7, 3), (9, 4)], 3, 4)
    data, path = stored(run)
    for bad, at, reason in (
        (stored(run, catalog_id=SOME)[0], path, "another catalog"),
        (data, run_path(5, 32, SOME), "are impossible"),
        (stored(run, commit_id="")[0], path, "are impossible"),
        (stored(msgspec.structs.replace(run, first=5))[0], path, "are impossible"),
        (stored(msgspec.structs.replace(run, first=4))[0], path, "outside"),
        (b"", path, "Arrow"),
        (b"ARROW1" * 30, path, "footer"),
    ):
        with pytest.raises(Corrupt, match=reason) as raised:
            decode_run(bad, at, catalog_id=CATALOG)
        assert raised.value.kind == "corrupt_index"
    backwards = memoryview(array("Q", reversed(run.fingerprints)))
    swapped = msgspec.structs.replace(run, fingerprints=backwards)
    with pytest.raises(Corrupt, match="ascend"):
        decode_run(stored(swapped)[0], path, catalog_id=CATALOG)
    with pytest.raises(Corrupt, match="columns"):
        decode_run(data.replace(b"alpheus.index", b"alpheus.indey"), path, catalog_id=CATALOG)
    monkeypatch.setattr(index_runs, "REVISION", 2)
    newer = stored(run)[0]
    monkeypatch.undo()
    with pytest.raises(InvalidInput) as refused:
        decode_run(newer, path, catalog_id=CATALOG)
    assert refused.value.kind == "newer_format"


def test_paths() -> None:
    path = run_path(5, 32, SOME)
    assert path == f"checkpoint/10100000000000000000000000000000-{SOME}.index.arrow"
    assert last_version(path) == 5
    assert last_version(run_path(5, 64, SOME)) == 5
    for other in (path.replace(".index", ""), path + "x", path.replace("1", "2"), f"x/{path}"):
        assert last_version(other) is None


ranges = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


@given(ranges, st.integers(0, 30), st.integers(0, 30))
def test_gaps(parts: list[tuple[int, int]], low: int, high: int) -> None:
    covered = {version for first, last in parts for version in range(first, last + 1)}
    found = gaps([Part(*part) for part in parts], low, high)
    assert [v for gap in found for v in range(gap.first, gap.last + 1)] == [
        version for version in range(low, high + 1) if version not in covered
    ]


@given(ranges, st.integers(0, 20), st.data())
def test_whoever_deletes_leaves_what_is_covered(
    parts: list[tuple[int, int]], oldest: int, data: st.DataObject
) -> None:
    """Several processes decide concurrently which runs to delete, each by the runs that it could open."""
    runs = {str(number): run_of([], *part) for number, part in enumerate(parts)}
    gone: set[str] = set()
    for _ in range(3):
        seen = data.draw(st.sets(st.sampled_from(sorted(runs))) if runs else st.just(set[str]()))
        gone |= superfluous_runs({path: runs[path] for path in seen}, oldest)
    every = superfluous_runs(runs, oldest)
    assert superfluous_runs({path: run for path, run in runs.items() if path not in every}, oldest) == set()
    for removed in (gone, every):
        left = [run for path, run in runs.items() if path not in removed]
        assert gaps(left, oldest, 40) == gaps(runs.values(), oldest, 40)


@pytest.mark.parametrize("batch", [lambda _: 1, lambda n: n % 7, lambda n: 10_000 >> n % 14, lambda _: 0])
def test_what_is_written_in_all_is_n_log_n(batch: Callable[[int], int]) -> None:
    sizes: list[int] = []
    written = total = most = 0
    for number in range(20_000):
        size = batch(number)
        total += size
        count = older_to_merge(sizes, size)
        size += sum(sizes[len(sizes) - count :])
        del sizes[len(sizes) - count :]
        sizes.append(size)
        written += size
        most = max(most, len(sizes))
    assert sum(sizes) == total
    assert written <= 2 * max(total, 1) * math.log2(total + 2)
    assert most <= math.log2(total + 2) + 2
    assert older_to_merge([index_module.PIECE_ENTRIES_MAX * 4], index_module.PIECE_ENTRIES_MAX * 4) == 0


# --- a catalog, its readers, and a reader of everything -------------------------------------------


class Sea:
    """A catalog with keys, cancellations, other writers' versions and tombstones, and answers read from its roots."""

    def __init__(self, lake: Lake, journal: Journal, random: random.Random) -> None:
        self.lake = lake
        self.journal = journal
        self.random = random
        self.ids: list[str] = []
        self.committed: list[Transaction] = []
        self.keys = [f"key {number}" for number in range(6)]
        self.count = itertools.count()

    @classmethod
    async def make(cls, seed: int = 0, storage: MemoryStorage | None = None) -> Sea:
        lake = Lake(storage, seed=seed)
        return cls(lake, await lake.create(order=3), random.Random(seed))

    def transaction(self, key: str = "", id: str = "", begin: int | None = None) -> Transaction:
        operation: Operation = UpdateCatalog(set={f"p{next(self.count) % 5}": "v"})
        if id:
            operation = CancelTransaction(transaction_id=id)
        return Transaction(
            id=self.lake.identities.uuid7(),
            begin_version=self.journal.head.version if begin is None else begin,
            operations=(operation,),
            key=key,
        )

    async def commit(self, key: str = "") -> Committed:
        transaction = self.transaction(key)
        self.ids.append(transaction.id)
        committed = await self.journal.commit(transaction)
        if not committed.duplicate:
            self.committed.append(transaction)
        return committed

    async def foreign(self) -> None:
        """Write a version like another writer, with that writer's clock."""
        head = await self.journal.refresh()
        log = self.journal.follower.log
        root = encode_node(
            head.root,
            order=3,
            created_at_millis=self.random.choice([5, self.lake.clock.millis]),
            size_max=1 << 20,
            system={ROW_CATALOG_DEF: head.catalog_def, ROW_PREVIOUS_ROOT: log.path(head.version)},
        )
        await self.lake.storage.create(log.path(head.version + 1), root)

    async def reader(self, number: Fingerprint = fingerprint, memory: int = 1 << 20) -> Journal:
        storage: Storage = self.lake.storage
        if self.random.random() < 0.5:
            storage = InterleavedStorage(storage, self.random.randrange(1000))
        journal = await self.lake.open(storage)
        follower = journal.follower
        follower.index = Index(
            follower.log,
            follower.catalog_id,
            follower.head.version,
            fingerprint=number,
            memory_entries_max=memory,
        )
        return journal

    async def runs(self) -> list[str]:
        return sorted(await listed(self.lake.storage, FOLDER))

    async def roots(self) -> dict[int, object]:
        """Return for every version its root, or Expired."""
        log = await Log.open(self.lake.storage)
        found: dict[int, object] = {}
        for version in range(await log.head() + 1):
            try:
                found[version] = await log.read(version)
            except Expired as error:
                found[version] = error
        return found

    async def outcome(self, id: str, since: int | None) -> tuple[str, int | None, int | None]:
        """Return by reading everything: the state, the version, and the oldest kept version where expiry hides
        something."""
        made_at = uuid7_millis(id) - 2 * CLOCK_SKEW_MILLIS_MAX if since is None else 0
        state, gap = "unknown", None
        for version, root in sorted((await self.roots()).items(), reverse=True):
            if version <= (-1 if since is None else since):
                break
            if isinstance(root, Expired):
                gap = version + 1
                break
            for recorded in root.transactions:  # type: ignore[attr-defined]
                if recorded.id == id:
                    return "committed", version, None
                if recorded.cancels == id:
                    state = "cancelled"
            if root.transactions and root.created_at_millis < made_at:  # type: ignore[attr-defined]
                break
        return state, None, gap

    async def find_by_key(self, key: str) -> int | None:
        found = None
        for version, root in (await self.roots()).items():
            if not isinstance(root, Expired) and any(t.key == key for t in root.transactions):  # type: ignore[attr-defined]
                found = version
        return found


async def asked(journal: Journal, id: str, since: int | None) -> tuple[str, int | None, int | None]:
    head = await journal.refresh()
    outcome, gap = await journal._search(id, since, head.version)
    version = outcome.commit.version if outcome.commit is not None else None
    return outcome.state, version, gap.oldest if gap is not None else None


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set bounds that a short history exceeds."""
    for name, value in {
        "SEALED_ENTRIES": 4,
        "SORTED_ENTRIES_MAX": 12,
        "GATHERINGS_MAX": 2,
        "PIECE_VERSIONS_MAX": 9,
        "PIECE_ENTRIES_MAX": 10,
        "ROOTS_READ_AT_ONCE": 4,
        "MAPPED_SIZE_BYTES": 900,
    }.items():
        monkeypatch.setattr(index_module, name, value)
    monkeypatch.setattr(follower_module, "WINDOW_VERSIONS_MAX", 0)  # else it remembers expired versions


async def damaged(sea: Sea, path: str, how: int | None = None) -> None:
    """Make a run useless in some way. A process that trusts the run would miss everything that the run claims to
    cover."""
    storage = sea.lake.storage
    data = await storage.read(path, size_max=1 << 20)
    how = sea.random.randrange(5) if how is None else how
    if how == 0:
        await storage.put(path, data[: sea.random.randrange(len(data))])
        return
    if how == 1:
        broken = bytearray(data)
        broken[sea.random.randrange(len(data))] ^= 1 << sea.random.randrange(8)
        await storage.put(path, bytes(broken))
        return
    try:
        run = decode_run(data, path, catalog_id=sea.journal.catalog_id)
    except AlpheusError:
        return  # the run is broken already
    nothing = Gathering(run.first)
    for version in range(run.first, run.last + 1):
        nothing.add(version, ())
    ours = sea.journal.catalog_id
    catalog_id, commit_id = (SOME, run.commit_id) if how == 2 else (ours, SOME)
    if how == 4:
        # No checksum shows this damage: the run has lost the entries of its last version. A reader trusts it if that
        # version has no entries.
        root = (await sea.roots())[run.last]
        if isinstance(root, Expired) or not root.transactions:  # type: ignore[attr-defined]
            return
        catalog_id, commit_id = ours, run.commit_id
    data = encode_run(nothing.run(), catalog_id=catalog_id, commit_id=commit_id)
    await storage.put(path, data)


@pytest.mark.usefixtures("small_bounds")
async def test_it_says_what_reading_everything_says(lane_count: Callable[[int, int], int]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(lane_count(15, 800)):
        await random_life(seed, seen)
    for what in (
        "committed",
        "cancelled",
        "unknown",
        "gap",
        "key",
        "no key",
        "refused",
        "written",
        "collisions",
    ):
        assert seen[what], f"{what} never came up: {seen}"


async def random_life(seed: int, seen: Counter[str]) -> None:
    sea = await Sea.make(seed)
    dice = sea.random
    bits = dice.choice([64, 64, 2])
    number: Fingerprint = lambda term: fingerprint(term) >> (64 - bits)  # noqa: E731
    readers = [await sea.reader(number) for _ in range(2)]
    oldest = 0
    for _ in range(dice.randrange(20, 60)):
        reader = dice.choice(readers)
        match dice.choice(["commit"] * 8 + ["keyed"] * 4 + ["write", "damage", "open"] * 2 + [
            "foreign", "cancel", "tick", "expire", "write both", "delete", "check",
        ] + ["outcome"] * 5 + ["key"] * 4):  # fmt: skip
            case "commit":
                await sea.commit()
            case "keyed":
                await sea.commit(dice.choice(sea.keys))
            case "foreign":
                await sea.foreign()
            case "cancel":
                sea.ids.append(sea.lake.identities.uuid7())
                await sea.journal.commit(sea.transaction(id=sea.ids[-1]))
            case "tick":
                sea.lake.clock.millis += dice.choice([1000, 200_000])
            case "expire" if dice.random() < 0.4:
                head = (await sea.journal.refresh()).version
                oldest = max(oldest, dice.randrange(head + 1))
                await sea.lake.expire(below=oldest)
            case "write":
                await reader.refresh()
                seen["written"] += await reader.write_index()
            case "write both":
                await asyncio.gather(*(reader.write_index() for reader in readers))
            case "delete" if runs := await sea.runs():
                await sea.lake.storage.delete(dice.choice(runs))
            case "damage" if runs := await sea.runs():
                await damaged(sea, dice.choice(runs))
                readers[dice.randrange(2)] = await sea.reader(number)
            case "open":
                readers[dice.randrange(2)] = await sea.reader(number, memory=dice.choice([0, 10, 1000]))
            case "check":
                newest = (await reader.refresh()).version
                if newest > oldest:
                    assert await reader.index.check(dice.randrange(oldest, newest)) == ""
            case "outcome" if sea.ids:
                id = dice.choice([*sea.ids, sea.lake.identities.uuid7()])
                since = dice.choice([None, None, dice.randrange((await reader.refresh()).version + 1)])
                answer = await asked(reader, id, since)
                assert answer == await sea.outcome(id, since), f"seed {seed}"
                seen.update([answer[0]], gap=answer[2] is not None)
            case "key":
                await reader.refresh()
                key = dice.choice([*sea.keys, "none"])
                found = await reader.follower.find_by_key(key)
                assert (found[0] if found else None) == await sea.find_by_key(key), f"seed {seed}"
                seen["key" if found else "no key"] += 1
        seen["refused"] += len(reader.index.refused)
        seen["collisions"] += reader.index.counts.collisions


# --- costs -----------------------------------------------------------------------------------------


class CountingStorage(MemoryStorage):
    """Count requests by the first folder of their path."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.fails = False
        self.roots_left: int | None = None  # after so many roots the storage is unavailable

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.requests[path.split("/")[0]] += 1
        if self.fails and path.startswith(FOLDER):
            raise Unavailable(f"{path} cannot be reached")
        if self.roots_left is not None and path.startswith("vn/"):
            if not self.roots_left:
                raise Unavailable(f"{path} cannot be reached")
            self.roots_left -= 1
        return await super().read(path, size_max=size_max)


async def history(length: int, storage: MemoryStorage, *, runs: int) -> Sea:
    """Make versions of one transaction each, every tenth with a key. Runs are written in between."""
    sea = await Sea.make(storage=storage)
    for number in range(1, length + 1):
        await sea.commit(f"k{number}" if number % 10 == 0 else "")
        sea.lake.clock.millis += 1000
        if runs and number % (length // runs) == 0:
            await sea.journal.write_index()
    return sea


async def test_the_oldest_outcome_costs_a_few_requests() -> None:
    storage = CountingStorage()
    sea = await history(300, storage, runs=20)
    first, keyed = sea.committed[0], sea.committed[9]
    runs = len(await sea.runs())
    assert 1 <= runs <= 8
    for ask in ("outcome", "since", "retry", "key", "unknown"):
        reader = await sea.lake.open()
        storage.requests.clear()
        match ask:
            case "outcome" | "since":
                since = None if ask == "outcome" else 0
                outcome = await reader.outcome(first.id, since=since)
                assert outcome.commit is not None
                assert outcome.commit.version == 1
            case "retry":
                assert (await reader.commit(first)).version == 1
            case "key":
                again = await reader.commit(sea.transaction("k10", begin=reader.head.version))
                assert (again.version, again.transaction_id) == (10, keyed.id)
            case "unknown":
                never = "00000000-0000-7000-8000-000000000000"
                assert await reader.outcome(never) == Outcome(state="unknown")
        assert storage.requests["checkpoint"] == runs
        assert storage.requests["vn"] <= 2 * runs + 5, ask
    for path in await sea.runs():
        await storage.delete(path)
    reader = await sea.lake.open()
    storage.requests.clear()
    outcome = await reader.outcome(first.id)
    assert outcome.commit is not None
    assert outcome.commit.version == 1
    assert storage.requests["vn"] > 300


async def test_a_recent_outcome_fetches_no_old_run() -> None:
    storage = CountingStorage()
    sea = await history(60, storage, runs=1)
    sea.lake.clock.millis += 10 * CLOCK_SKEW_MILLIS_MAX
    for _ in range(3):
        await sea.commit()
    reader = await sea.lake.open()
    storage.requests.clear()
    assert (await reader.outcome(sea.lake.identities.uuid7())).state == "unknown"
    assert (await reader.outcome(sea.committed[-1].id)).state == "committed"
    assert storage.requests["checkpoint"] == 0
    assert storage.requests["vn"] <= 12


async def test_memory_is_bounded_where_nobody_writes_runs() -> None:
    storage = CountingStorage()
    sea = await history(100, storage, runs=0)
    follower = sea.journal.follower
    index = follower.index = Index(follower.log, follower.catalog_id, 100, memory_entries_max=40)
    assert await follower.find_by_key("none") is None
    assert index.memory_entries_count <= 40 + index_module.ROOTS_READ_AT_ONCE * 2
    held = index.memory_entries_count
    for _ in range(3):
        storage.requests.clear()
        found = await follower.find_by_key("k10")
        assert found is not None
        assert found[0] == 10
        assert index.memory_entries_count == held
        assert 40 <= storage.requests["vn"] <= 100, "what memory does not hold is read again"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "SEALED_ENTRIES", 8)
        for number in range(40):
            await sea.commit(f"new {number}")
            assert index.memory_entries_count <= 40 + index_module.ROOTS_READ_AT_ONCE * 2 + 8
        assert index.memory_entries_count <= 48
    found = await follower.find_by_key("new 7")
    assert found is not None
    assert found[0] == 108
    # Another process stores runs: from then on the runs give the answer.
    await (await sea.lake.open()).write_index()
    for _ in range(2):
        storage.requests.clear()
        found = await follower.find_by_key("k10")
        assert found is not None
        assert found[0] == 10
    assert storage.requests["vn"] <= 1
    assert index.memory_entries_count == 0


async def test_a_collision_costs_a_read() -> None:
    storage = CountingStorage()
    sea = await history(30, storage, runs=0)
    one = sea.committed[4].id
    same = {id_term(t.id) for t in sea.committed[:3]} | {id_term(one)}

    def colliding(term: str) -> int:
        return 7 if term in same else fingerprint(term)

    writer, reader = await sea.reader(colliding), await sea.reader(colliding)
    await writer.write_index()
    outcome = await reader.outcome(sea.committed[0].id)
    assert outcome.commit is not None
    assert outcome.commit.version == 1
    assert reader.index.counts.collisions == 3
    assert reader.index.counts.roots_read <= 2


@pytest.mark.usefixtures("small_bounds")
async def test_retries_by_id_over_a_damaged_index() -> None:
    """The roots in a gap between runs are read, and a cancelled id is refused."""
    storage = CountingStorage()
    sea = await history(80, storage, runs=4)
    cancelled = sea.transaction()
    assert (await sea.journal.outcome(cancelled.id, settle=True)).state == "cancelled"
    for _ in range(40):
        await sea.commit()
    await sea.journal.write_index()
    for path in [None, *await sea.runs()]:
        if path is not None:
            await storage.put(path, b"no run")
        reader = await sea.lake.open()
        for transaction in sea.committed[::25]:
            again = await reader.commit(transaction)
            assert again.duplicate
            assert again.transaction_id == transaction.id
        await raises(InvalidInput, reader.commit(cancelled), kind="id_cancelled")
        other = msgspec.structs.replace(sea.committed[0], key="other")
        await raises(InvalidInput, reader.commit(other), kind="id_reused")


async def test_what_is_not_reached_is_read_instead() -> None:
    storage = CountingStorage()
    sea = await history(40, storage, runs=2)
    reader = await sea.lake.open()
    storage.fails = True
    assert (await reader.follower.find_by_key("k10") or (0,))[0] == 10
    assert await reader.follower.find_by_key("none") is None
    before = reader.index.counts.runs_written
    await raises(Unavailable, reader.write_index())
    assert reader.index.counts.runs_written == before
    storage.fails = False
    await reader.write_index()
    assert reader.index.refused == {}
    assert reader.index.memory_entries_count == 0


@pytest.mark.usefixtures("small_bounds")
async def test_storage_that_goes_away_while_runs_are_written() -> None:
    storage = CountingStorage()
    sea = await history(80, storage, runs=0)
    writer = await sea.lake.open()
    storage.roots_left = 40
    storage.requests.clear()
    await raises(Unavailable, writer.write_index())
    assert storage.requests["vn"] <= 45
    storage.roots_left = None
    covered = writer.index.stored_version
    assert 9 <= covered < 40, "what was stored stays"
    other = await sea.lake.open()
    storage.requests.clear()
    await other.write_index()
    assert storage.requests["vn"] <= 80 - covered + 40, "and is not read again"
    assert gaps(other.index._stored.values(), 0, 80) == []


async def test_a_root_that_cannot_be_read_is_left_out_of_the_runs() -> None:
    storage = CountingStorage()
    sea = await history(50, storage, runs=0)
    path = sea.journal.follower.log.path(20)
    root = await storage.read(path, size_max=1 << 20)
    await storage.put(path, b"damaged")
    for _ in range(2):
        reader = await sea.lake.open()
        error = await raises(Corrupt, reader.write_index())
        assert error.path == path
        assert {(run.first, run.last) for run in reader.index._stored.values()} == {(0, 19), (21, 50)}
    await raises(Corrupt, (await sea.lake.open()).follower.find_by_key("none"))
    assert (await (await sea.lake.open()).follower.find_by_key("k30") or (0,))[0] == 30
    await storage.put(path, root)
    reader = await sea.lake.open()
    assert await reader.follower.find_by_key("none") is None
    assert (await reader.follower.find_by_key("k20") or (0,))[0] == 20
    await reader.write_index()
    assert gaps(reader.index._stored.values(), 0, 50) == []


@pytest.mark.parametrize(
    ("how", "reason"), [(0, ""), (1, ""), (2, "another catalog"), (3, f"not {SOME}"), (4, "lacks id:")]
)
async def test_a_run_that_is_not_of_this_history_is_not_believed(how: int, reason: str) -> None:
    sea = await history(40, MemoryStorage(), runs=1)
    (path,) = await sea.runs()
    await damaged(sea, path, how)
    reader = await sea.lake.open()
    assert (await reader.follower.find_by_key("k10") or (0,))[0] == 10
    assert await reader.follower.find_by_key("none") is None
    assert reader.index.refused[path].kind == "corrupt_index"
    assert reason in reader.index.refused[path].message
    await reader.write_index()
    (other,) = await sea.runs()
    assert other != path
    assert reader.index.refused == {}


async def test_an_uncovered_stretch_between_runs_is_read_whole() -> None:
    """The reader starts right after the last version of one run and stops right before the first version of the
    next."""
    storage = CountingStorage()
    sea = await history(60, storage, runs=0)
    log, ours = sea.journal.follower.log, sea.journal.catalog_id
    writer = await sea.lake.open()
    await writer.write_index()
    (path,) = await sea.runs()
    whole = decode_run(await storage.read(path, size_max=1 << 20), path, catalog_id=ours)
    await storage.delete(path)
    for first, last in ((0, 19), (30, 39), (51, 60)):
        data = encode_run(clip_run(whole, first, last), catalog_id=ours, commit_id=await log.commit_id(last))
        await storage.put(run_path(last, 32, sea.lake.identities.uuid4()), data)
    for transaction in sea.committed[15:55]:
        reader = await sea.lake.open()
        outcome = await reader.outcome(transaction.id)
        assert outcome.commit is not None
    reader = await sea.lake.open()
    storage.requests.clear()
    assert await reader.follower.find_by_key("none") is None
    assert storage.requests["vn"] == 10 + 11 + 3
    assert storage.requests["checkpoint"] == 3


async def test_versions_without_ids_are_covered_with_the_others() -> None:
    """Another writer's versions have no ids or keys. Runs cover these versions too, between others and alone."""
    sea = await history(12, MemoryStorage(), runs=1)
    for _ in range(30):
        await sea.foreign()
    reader = await sea.lake.open()
    for _ in range(3):
        await sea.commit()
    await reader.refresh()
    assert await reader.write_index() == 1
    assert gaps(reader.index._stored.values(), 0, 45) == []
    # These versions are between those in memory and those to be read.
    for _ in range(9):
        await sea.foreign()
    reader = await sea.lake.open()
    assert await reader.follower.find_by_key("none") is None
    assert await reader.write_index() == 1
    assert gaps(reader.index._stored.values(), 0, 54) == []


async def test_a_process_that_cannot_map_deletes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sea = await history(40, MemoryStorage(), runs=1)
    kept = await sea.runs()

    def fail(*_: object) -> memoryview:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(index_module, "MAPPED_SIZE_BYTES", 0)
    reader = await sea.lake.open()
    with monkeypatch.context() as broken:
        broken.setattr(index_module, "map_file", fail)
        await raises(Unavailable, reader.write_index())
        assert (await reader.follower.find_by_key("k10") or (0,))[0] == 10
    reader.index.cache_dir = "/nowhere"
    for _ in range(2):
        await raises(Unavailable, reader.write_index())
    assert await sea.runs() == kept
    reader.index.cache_dir = ""
    assert await reader.write_index() == 0


async def test_memory_of_a_replaced_history_is_not_stored() -> None:
    """Runs of the old history would carry the slot's present commit id, so readers would trust them."""
    sea = await history(20, MemoryStorage(), runs=0)
    log, head = sea.journal.follower.log, sea.journal.head
    root = encode_node(
        head.root,
        order=3,
        created_at_millis=5,
        size_max=1 << 20,
        system={ROW_CATALOG_DEF: head.catalog_def, ROW_PREVIOUS_ROOT: log.path(head.version - 1)},
    )
    await sea.lake.storage.put(log.path(head.version), root)
    error = await raises(Corrupt, sea.journal.write_index())
    assert error.kind == "history_replaced"
    assert await sea.runs() == []


async def test_what_nobody_needs_is_deleted() -> None:
    sea = await history(60, MemoryStorage(), runs=6)
    storage = sea.lake.storage
    kept = await sea.runs()
    run = next(iter(sea.journal.index._stored.values()))
    small = run_of([], run.first + 1, run.last - 1)
    log = sea.journal.follower.log
    commit_id = await log.commit_id(small.last)
    spare = run_path(small.last, 32, sea.lake.identities.uuid4())
    await storage.put(spare, encode_run(small, catalog_id=sea.journal.catalog_id, commit_id=commit_id))
    broken = run_path(30, 32, sea.lake.identities.uuid4())
    await storage.put(broken, b"?")
    await storage.put(f"{FOLDER}something-else", b"?")
    reader = await sea.lake.open()
    assert await reader.write_index() == 0
    assert await sea.runs() == sorted([*kept, f"{FOLDER}something-else"])
    assert reader.index.counts.runs_deleted == 2
    other = (await sea.lake.open()).follower
    assert await other.find_by_key("none") is None
    newest = max(run.first for run in reader.index._stored.values())
    await sea.lake.expire(below=newest)
    await reader.write_index()
    assert len(await sea.runs()) == 2
    # Processes that had opened the deleted runs still use them.
    assert (await other.find_by_key("k60") or (0,))[0] == 60
    assert await other.find_by_key("k10") is None


@pytest.mark.parametrize("mapped_from", [0, 1 << 20])
async def test_runs_on_a_local_disk(
    tmp_path: Path, mapped_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MAPPED_SIZE_BYTES", mapped_from)
    storage = await asyncio.to_thread(LocalStorage, str(tmp_path))
    lake = Lake(storage)
    sea = Sea(lake, await lake.create(order=3), random.Random(0))
    for number in range(20):
        await sea.commit(f"k{number}")
    await sea.journal.write_index()
    reader = await sea.lake.open()
    assert (await reader.follower.find_by_key("k4") or (0,))[0] == 5
    (path,) = await listed(storage, FOLDER)
    file = tmp_path / path
    moved = tmp_path / "elsewhere"
    await asyncio.to_thread(file.rename, moved)  # the file moves while the reader has it open
    assert (await reader.follower.find_by_key("k5") or (0,))[0] == 6
    assert reader.index.counts.roots_read == 0
    await asyncio.to_thread(file.symlink_to, moved)
    other = await sea.lake.open()
    assert (await other.follower.find_by_key("k5") or (0,))[0] == 6
    assert other.index.runs_count == 0
    await sea.journal.close()


async def test_what_somebody_deleted_is_stored_again() -> None:
    storage = CountingStorage()
    sea = await history(60, storage, runs=6)
    for path in await sea.runs():
        await storage.delete(path)
    storage.requests.clear()
    assert await sea.journal.write_index() == 1
    assert storage.requests["vn"] < 15
    (path,) = await sea.runs()
    assert last_version(path) == 60
    assert (await (await sea.lake.open()).follower.find_by_key("k10") or (0,))[0] == 10


async def test_drift_is_found_and_not_believed_any_more() -> None:
    sea = await history(40, MemoryStorage(), runs=1)
    (path,) = await sea.runs()
    data = await sea.lake.storage.read(path, size_max=1 << 20)
    run = decode_run(data, path, catalog_id=sea.journal.catalog_id)
    lost = [(n, at) for n, at in entries_of(run) if at != 10]
    wrong = encode_run(
        run_of(lost, run.first, run.last), catalog_id=sea.journal.catalog_id, commit_id=run.commit_id
    )
    await sea.lake.storage.put(path, wrong)
    reader = await sea.lake.open()
    assert await reader.follower.find_by_key("k10") is None, "a run that lies is believed"
    assert await reader.index.check(11) == ""
    assert "version 10 has id:" in await reader.index.check(10)
    assert (await reader.follower.find_by_key("k10") or (0,))[0] == 10
    assert await reader.index.check(10) == ""
    await reader.write_index()
    fresh = await sea.lake.open()
    assert (await fresh.follower.find_by_key("k10") or (0,))[0] == 10
