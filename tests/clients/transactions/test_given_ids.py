"""A transaction with a given id is done once, however often and by whichever caller it is sent.

The tests run over storage and over a daemon. They cover what a block reads and writes when it runs again.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from both_ways import catalog as catalog

import alpheus
from alpheus import Catalog, Commit
from alpheus.cli.text import document
from alpheus.errors import Conflict, Expired, InvalidInput
from alpheus_journal.clock import RandomIdentities, SystemClock, make_uuid7
from alpheus_journal.format import version_file
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.operations import Transaction, UpdateCatalog
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing.models.tables import Lake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
OTHERS = pa.table({"id": pa.array([4, 5, 6], pa.int64()), "name": ["d", "e", None]})
_numbers = itertools.count(1)


@pytest.fixture
def space(catalog: Catalog) -> str:
    """Create a fresh namespace with a table `t` of three rows, and return its name."""
    name = f"space{next(_numbers)}"
    catalog.create_namespace(name)
    catalog.create_table(f"{name}.t", ROWS)
    return name


def new_id() -> str:
    return RandomIdentities().uuid7()


def run(catalog: Catalog, id: str, *verbs: Callable[[Any], object], **terms: Any) -> Commit | None:
    """Run the verbs in a transaction with this id."""
    with catalog.transaction(id=id, **terms) as tx:
        for verb in verbs:
            verb(tx)
    return tx.result


def is_repeat(first: Commit | None, again: Commit | None) -> bool:
    assert first is not None
    assert again is not None
    assert not first.duplicate
    fields = ("version", "transaction_id", "created_at", "rows_added", "rows_removed", "files_added")
    return again.duplicate and all(getattr(first, field) == getattr(again, field) for field in fields)


def test_the_same_append_under_one_id_is_done_once(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    first = run(catalog, id, lambda tx: tx.append(table, ROWS))
    again = run(catalog, id, lambda tx: tx.append(table, ROWS))
    assert is_repeat(first, again)
    assert catalog.read(table).num_rows == 6
    with catalog.log(name=table) as entries:
        assert [entry.transaction.id for entry in entries].count(id) == 1


def test_a_block_that_runs_again_sees_what_it_saw(catalog: Catalog, space: str) -> None:
    """A block that runs again sees what its first run saw.

    On top of the first run's result, its verbs would fail or do something else.
    """
    id, table, new = new_id(), f"{space}.t", f"{space}.new"
    seen = []

    def body(tx: Any) -> None:
        seen.append((tx.read(table).num_rows, tx.table_exists(new)))
        tx.create_table(new, ROWS, {"made": "once"})
        tx.append(new, OTHERS)
        tx.update(table, {"name": "x"}, "id = 1")
        tx.delete(table, "name = 'b'", mode="rewrite")
        tx.merge(table, ROWS.slice(2), "id")
        tx.create_view(f"{space}.v", f"SELECT * FROM {new}")
        tx.create_namespace(f"{space}_more")
        tx.compact(new)

    first = run(catalog, id, body)
    catalog.append(table, OTHERS)
    assert is_repeat(first, run(catalog, id, body))
    assert seen == [(3, False)] * 2
    assert catalog.read(new).num_rows == 6
    assert catalog.read(table).num_rows == 5


def test_what_was_dropped_comes_back_once(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    catalog.drop_table(table)
    first = run(catalog, id, lambda tx: tx.undrop(table))
    assert is_repeat(first, run(catalog, id, lambda tx: tx.undrop(table)))
    catalog.drop_table(table)
    assert is_repeat(first, run(catalog, id, lambda tx: tx.undrop(table)))
    assert not catalog.table_exists(table)


def test_versions_that_count_back_mean_the_same_when_it_runs_again(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    catalog.append(table, OTHERS)
    first = run(catalog, id, lambda tx: tx.restore_table(table, at=-2))
    assert catalog.read(table).num_rows == 3
    catalog.append(table, OTHERS)
    assert is_repeat(first, run(catalog, id, lambda tx: tx.restore_table(table, at=-2)))
    catalog.drop_table(table)
    id = new_id()
    again = run(catalog, id, lambda tx: tx.undrop(table, at=-2))
    catalog.append(table, OTHERS)
    assert is_repeat(again, run(catalog, id, lambda tx: tx.undrop(table, at=-2)))


def test_work_that_runs_again_on_another_host_is_a_repeat(
    catalog: Catalog, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, table = new_id(), f"{space}.t"
    first = run(catalog, id, lambda tx: tx.append(table, ROWS))
    monkeypatch.setenv("ALPHEUS_PRINCIPAL", "pod-2")
    with alpheus.connect(catalog.url) as elsewhere:
        assert is_repeat(first, run(elsewhere, id, lambda tx: tx.append(table, ROWS)))
        with pytest.raises(InvalidInput) as caught:
            run(elsewhere, id, lambda tx: tx.append(table, OTHERS))
    assert first is not None
    assert f"version {first.version} has committed" in caught.value.hint
    assert catalog.read(table).num_rows == 6


@pytest.mark.parametrize(
    "other",
    [
        lambda table: lambda tx: tx.append(table, OTHERS),
        lambda table: lambda tx: tx.append(table, ROWS.slice(1)),
        lambda table: lambda tx: tx.overwrite(table, ROWS),
        lambda table: lambda tx: tx.drop_table(table),
        lambda table: lambda tx: None,
    ],
)
def test_other_operations_under_the_id_are_refused(catalog: Catalog, space: str, other: Any) -> None:
    id, table = new_id(), f"{space}.t"
    first = run(catalog, id, lambda tx: tx.append(table, ROWS))
    before = sorted(catalog.read(table).to_pylist(), key=str)
    with pytest.raises(InvalidInput, match=f"transaction id {id} was used in version") as caught:
        run(catalog, id, other(table))
    assert caught.value.kind == "id_reused"
    # The refused transaction did not overwrite anything either.
    assert sorted(catalog.read(table).to_pylist(), key=str) == before
    commit = catalog.outcome(id).commit
    assert first is not None
    assert commit is not None
    assert commit.version == first.version


def test_another_isolation_or_key_under_the_id_is_refused(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    run(catalog, id, lambda tx: tx.append(table, ROWS))
    for terms in ({"key": f"{space}-key"}, {"isolation": "serializable"}, {"writer": (space, 1)}):
        with pytest.raises(InvalidInput) as caught:
            run(catalog, id, lambda tx: tx.append(table, ROWS), **terms)  # type: ignore[arg-type]
        assert caught.value.kind == "id_reused"


def test_a_cancelled_id_stays_cancelled(catalog: Catalog, space: str) -> None:
    id = new_id()
    assert catalog.outcome(id, settle=True).state == "cancelled"
    with pytest.raises(InvalidInput) as caught:
        run(catalog, id, lambda tx: tx.append(f"{space}.t", ROWS))
    assert caught.value.kind == "id_cancelled"
    assert catalog.read(f"{space}.t").num_rows == 3


def test_a_block_that_failed_may_run_again_under_its_id(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    with pytest.raises(InvalidInput):
        run(catalog, id, lambda tx: tx.append(table, ROWS), lambda tx: tx.append(table, {"id": 1}))
    result = run(catalog, id, lambda tx: tx.append(table, OTHERS))
    assert result is not None
    assert not result.duplicate
    assert sorted(catalog.read(table)["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_an_id_that_was_saved_and_committed_is_done(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    with catalog.transaction(id=id) as tx:
        tx.append(table, ROWS)
        tx.save()
    with catalog.resume(id) as resumed:
        pass
    again = run(catalog, id, lambda tx: tx.append(table, ROWS))
    assert is_repeat(resumed.result, again)
    # A caller that does not know of the commit saves the block once more: it is the same, and is committed already.
    with catalog.transaction(id=id) as tx:
        tx.append(table, ROWS)
        tx.save()
    with catalog.resume(id) as resumed_again:
        pass
    assert is_repeat(resumed.result, resumed_again.result)
    assert catalog.read(table).num_rows == 6


def test_a_document_and_a_block_share_their_ids(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"
    text = f'{{"id": "{id}", "operations": [{{"append": {{"name": "{table}", "rows": [{{"id": 9}}]}}}}]}}'
    first = document.apply(catalog, document.parse_document(text.encode(), "it"))
    again = document.apply(catalog, document.parse_document(text.encode(), "it"))
    assert is_repeat(first, again)
    with pytest.raises(InvalidInput) as caught:
        run(catalog, id, lambda tx: tx.append(table, ROWS))
    assert caught.value.kind == "id_reused"
    assert catalog.read(table).num_rows == 4


def test_asynchronously_too(catalog: Catalog, space: str) -> None:
    id, table = new_id(), f"{space}.t"

    async def go() -> list[Commit | None]:
        async with await alpheus.aio.connect(catalog.url) as opened:
            results = []
            for _ in range(2):
                async with opened.transaction(id=id) as tx:
                    await tx.append(table, ROWS)
                results.append(tx.result)
            return results

    first, again = asyncio.run(go())
    assert is_repeat(first, again)


def _append(url: str, id: str, table: str, gate: Any, told: Callable[[tuple[int, bool]], None]) -> None:
    with alpheus.connect(url) as catalog:
        gate.wait()
        result = run(catalog, id, lambda tx: tx.append(table, ROWS))
        assert result is not None
        told((result.version, result.duplicate))


def test_clients_that_race_with_one_id(catalog: Catalog, space: str) -> None:
    """Clients race with one id. The first one writes, and the others get its version."""
    id, before, gate = new_id(), catalog.read(f"{space}.t").num_rows, threading.Barrier(3)
    told: list[tuple[int, bool]] = []
    arguments = (catalog.url, id, f"{space}.t", gate, told.append)
    racers = [threading.Thread(target=_append, args=arguments) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    # A client that asks a daemon while the first commit is under way shares the answer of that commit.
    assert not all(duplicate for _, duplicate in told)
    assert len({version for version, _ in told}) == 1
    assert catalog.read(f"{space}.t").num_rows == before + 3


def test_processes_that_race_with_one_id(
    catalog: Catalog, space: str, lane_count: Callable[[int, int], int]
) -> None:
    spawn = multiprocessing.get_context("spawn")
    for number in range(1, 1 + lane_count(1, 5)):
        id, answers, gate = new_id(), spawn.Queue(), spawn.Barrier(2)
        arguments = (catalog.url, id, f"{space}.t", gate, answers.put)
        racers = [spawn.Process(target=_append, args=arguments) for _ in range(2)]
        for racer in racers:
            racer.start()
        told = [answers.get(timeout=120) for _ in racers]
        for racer in racers:
            racer.join()
        assert not all(duplicate for _, duplicate in told)
        assert len({version for version, _ in told}) == 1
        assert catalog.read(f"{space}.t").num_rows == 3 + 3 * number


def test_an_id_of_another_age(catalog: Catalog, space: str) -> None:
    """The time in an id bounds the search: the whole log for an id older than the catalog.

    An id of the future is refused.
    """
    old = make_uuid7(1, 12345)
    table = f"{space}.t"
    first = run(catalog, old, lambda tx: tx.append(table, ROWS))
    assert is_repeat(first, run(catalog, old, lambda tx: tx.append(table, ROWS)))
    with pytest.raises(InvalidInput) as caught:
        run(catalog, make_uuid7(SystemClock().now_millis() + 600_000, 1), lambda tx: tx.append(table, ROWS))
    assert caught.value.kind == "clock_skew"
    with pytest.raises(InvalidInput, match="not a version 7 uuid"):
        catalog.transaction(id=RandomIdentities().uuid4())


# --- what is underneath ----------------------------------------------------------------------------


def property_set(id: str, begin: int, value: str, **more: Any) -> Transaction:
    return Transaction(id=id, begin_version=begin, operations=(UpdateCatalog(set={"k": value}),), **more)


async def test_a_commit_that_asks_is_told_of_versions_before_its_begin() -> None:
    journal = await Journal.create(MemoryStorage())
    id = new_id()
    first = await journal.commit(property_set(id, 0, "a"))
    await journal.commit(property_set(new_id(), 1, "b"))
    again = await journal.commit(property_set(id, 2, "a", id_was_given=True))
    assert (again.version, again.duplicate) == (first.version, True)
    with pytest.raises(InvalidInput) as caught:
        await journal.commit(property_set(id, 2, "c", id_was_given=True))
    assert caught.value.kind == "id_reused"
    gone = new_id()
    assert (await journal.outcome(gone, settle=True)).state == "cancelled"
    with pytest.raises(InvalidInput) as caught:
        await journal.commit(property_set(gone, 3, "c", id_was_given=True))
    assert caught.value.kind == "id_cancelled"
    await journal.close()


def test_expired_history_refuses_what_it_may_hold(tmp_path: Path) -> None:
    id, early = new_id(), make_uuid7(1, 7)
    with alpheus.connect(f"file://{tmp_path}/lake", create=True) as catalog:
        run(catalog, id, lambda tx: tx.update_catalog(set={"k": "a"}))
        for number in range(3):
            catalog.update_catalog(set={"k": str(number)})
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        asyncio.run(Lake(LocalStorage(f"{tmp_path}/lake")).expire(below=2))
        for used in (id, early):
            with pytest.raises(Expired, match=f"whether transaction {used} has committed") as caught:
                run(catalog, used, lambda tx: tx.update_catalog(set={"k": "a"}))
            assert caught.value.oldest == 2
        assert catalog.version() == 4
        with catalog.transaction() as tx:  # an id that the client makes still works
            tx.update_catalog(set={"k": "z"})


@pytest.mark.parametrize("given", [False, True])
def test_a_saved_transaction_is_resumed_where_only_versions_before_its_begin_are_gone(
    tmp_path: Path, given: bool
) -> None:
    """Also where the last version that is gone was made a moment before the id."""
    with alpheus.connect(f"file://{tmp_path}/lake", create=True) as catalog:
        catalog.update_catalog(set={"k": "a"})
        catalog.update_catalog(set={"k": "b"})
        with catalog.transaction(id=new_id() if given else None) as tx:
            tx.create_namespace("later")
            id = tx.save()
        catalog.create_namespace("other")
        assert catalog.admin.expire(older_than=0, keep=1).oldest_version == tx.version
    with alpheus.connect(f"file://{tmp_path}/lake") as catalog:
        kept = (tmp_path / f"lake/def/dtxn/{id}.binpb").read_bytes()
        with catalog.resume(id) as resumed:
            pass
        assert resumed.result is not None
        assert not resumed.result.duplicate
        (tmp_path / f"lake/def/dtxn/{id}.binpb").write_bytes(kept)
        with catalog.resume(id) as again:
            pass
        assert is_repeat(resumed.result, again.result)


async def test_a_commit_that_asks_is_refused_where_history_is_gone() -> None:
    storage = MemoryStorage()
    journal = await Journal.create(storage)
    id = new_id()
    for number in range(4):
        await journal.commit(property_set(id if not number else new_id(), number, str(number)))
    await Lake(storage).expire(below=2)
    await journal.close()
    journal = await Journal.open(storage)
    with pytest.raises(Expired, match=f"whether transaction {id} has committed"):
        await journal.commit(property_set(id, 4, "0", id_was_given=True))
    await journal.commit(property_set(new_id(), 4, "0"))
    assert journal.head.version == 5
    await journal.close()


async def test_ids_sent_again_and_again(lane_count: Callable[[int, int], int]) -> None:
    """An id that is sent again and again is in the log once.

    Other writers, expiry, restarts and index runs come in between. A caller that sends an id again learns its version,
    or that the version is not known any more.
    """
    rng = random.Random(11)
    for _ in range(lane_count(1, 200)):
        lake = Lake()
        journals = [await lake.create(), await lake.open()]
        sent: dict[str, tuple[str, int]] = {}  # by id: the value, and the version
        oldest = 0
        for number in range(60):
            lake.clock.millis += rng.choice((0, 1, 1000, 100_000))
            journal = rng.choice(journals)
            head = (await journal.refresh()).version
            dice = rng.random()
            if dice < 0.5 or not sent:
                id = lake.identities.uuid7()
                transaction = property_set(
                    id, rng.randrange(oldest, head + 1), str(number), id_was_given=True
                )
                try:
                    sent[id] = (str(number), (await journal.commit(transaction)).version)
                except Expired:
                    assert oldest
                except Conflict:
                    pass  # another value was written since its begin
            elif dice < 0.9:
                id, (value, version) = rng.choice(list(sent.items()))
                asked = property_set(id, rng.randrange(oldest, head + 1), value, id_was_given=True)
                try:
                    again = await journal.commit(asked)
                except Expired:
                    assert version < oldest
                else:
                    assert (again.version, again.duplicate) == (version, True)
                with pytest.raises((InvalidInput, Expired)):
                    await journal.commit(property_set(id, head, f"not {value}", id_was_given=True))
            elif dice < 0.93:
                oldest = max(oldest, rng.randrange(head + 1))
                await lake.expire(below=oldest)
            elif dice < 0.96:
                await journal.write_index()
            else:
                journals[rng.randrange(2)] = await lake.open()
        journal = await lake.open()
        for id, (_, version) in sent.items():
            if version >= oldest:
                outcome = await journal.outcome(id)
                assert outcome.commit is not None
                assert outcome.commit.version == version
        assert not [item for item in [one async for one in journal.check()] if getattr(item, "kind", "")]


class CountedStorage(MemoryStorage):
    """Records what is asked of the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def read(self, path: str, *, size_max: int) -> bytes:
        self.asked.append(f"read {path}")
        return await super().read(path, size_max=size_max)

    async def exists(self, path: str) -> bool:
        self.asked.append(f"exists {path}")
        return await super().exists(path)

    async def list(self, prefix: str) -> Any:  # type: ignore[override]
        self.asked.append(f"list {prefix}")
        async for info in super().list(prefix):
            yield info


async def test_ids_of_our_own_cost_no_search() -> None:
    storage = CountedStorage()
    journal = await Journal.create(storage)
    for number in range(40):
        await journal.commit(property_set(new_id(), number, str(number)))
    other = await Journal.open(storage)
    storage.asked.clear()
    await other.commit(property_set(new_id(), 40, "own"))
    own = len(storage.asked)
    # Every writer looks at the two versions below the new one.
    below = {f"read {version_file(version, 32)}" for version in (39, 40)}
    assert not any(asked.startswith(("read vn/", "list")) for asked in storage.asked if asked not in below)
    storage.asked.clear()
    await other.commit(property_set(make_uuid7(1, 5), 41, "given", id_was_given=True))
    assert len(storage.asked) > own + 30
    storage.asked.clear()
    await other.commit(property_set(make_uuid7(1, 6), 42, "given", id_was_given=True))
    assert len(storage.asked) <= own + 3  # earlier reads are remembered
    await journal.close()
    await other.close()


async def test_check_finds_an_id_that_is_in_the_log_twice() -> None:
    journal = await Journal.create(MemoryStorage())
    id = new_id()
    await journal.commit(property_set(id, 0, "a"))
    await journal.commit(property_set(new_id(), 1, "b"))
    found = [item async for item in journal.check()]
    assert found == [item for item in found if isinstance(item, CheckSummary)]
    await journal.commit(property_set(id, 2, "c"))  # the client says that its id is fresh
    findings = [item async for item in journal.check() if not isinstance(item, CheckSummary)]
    assert [(finding.kind, finding.version) for finding in findings] == [("id_reused", 3)]
    await journal.close()


# --- related: keys and sequences -------------------------------------------------------------------


def test_keys_and_sequences_of_before_the_begin_version_hold(catalog: Catalog, space: str) -> None:
    table = f"{space}.t"
    for terms in ({"key": f"{space} load"}, {"writer": (f"{space} stream", 7)}):
        with catalog.transaction(**terms) as first:  # type: ignore[arg-type]
            first.append(table, ROWS)
        catalog.append(table, OTHERS)
        with catalog.transaction(**terms) as again:  # type: ignore[arg-type]
            again.append(table, ROWS)
        assert first.result is not None
        assert again.result is not None
        assert (again.result.version, again.result.duplicate) == (first.result.version, True)
