"""Collection: it deletes exactly what a second implementation does not reach, whatever happens beside it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import msgspec
import pytest
from upkeep_lake import (
    T,
    append,
    check,
    collect,
    collectable,
    commit_rows,
    expire,
    files_of,
    keep_up,
    make_lake,
    make_table,
    reachable,
    tag,
)

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.collect import expiry
from alpheus_journal.collect.candidates import Candidates
from alpheus_journal.collect.reach import Reach
from alpheus_journal.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Expired,
    InvalidInput,
    NotEmpty,
    NotFound,
)
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.log.copies import snapshot_of
from alpheus_journal.log.leases import take
from alpheus_journal.model.answers import Committed, PinObject, Tag
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import InputPosition, TableDef
from alpheus_journal.model.expiry_rules import HOUR_MILLIS, ExpiryRules
from alpheus_journal.model.operations import (
    AdvancePipeline,
    AppendFiles,
    ChangeMode,
    ChangeRows,
    CreateNamespace,
    CreateSubscription,
    CreateTag,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropTag,
    FenceCollection,
    Operation,
    OverwriteFiles,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.testing import (
    InterleavedStorage,
    Lake,
    Model,
    ModelTable,
    model_of,
    put_rows,
    raises,
    random_operation,
)
from alpheus_journal.testing.simulation.history import canonical
from alpheus_journal.tree.node import encode_node

REFUSALS = (AlreadyExists, Conflict, Expired, InvalidInput, NotEmpty, NotFound)
"""What random operations may hear. Corrupt would show a file that was deleted too early."""


async def test_what_nothing_reaches_goes_and_the_rest_stays() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    first = await commit_rows(lake, journal)
    await tag(lake, journal, "kept", first)
    rows = await commit_rows(lake, journal, kind=OverwriteFiles)
    before = canonical(await model_of(journal, first))
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    last = (await lake.commit(journal, lake.namespace("b"))).version
    orphan = f"node/{lake.identities.uuid4()}.arrow"
    await lake.storage.put(orphan, b"left by a writer that was killed")
    expiry = await expire(journal)
    assert (expiry.first, expiry.oldest, expiry.expired) == (0, last, last)
    assert (await collect(journal)).unreferenced == {}  # everything is young
    lake.clock.millis += 2 * HOUR_MILLIS
    plan = await collect(journal, dry_run=True)
    assert plan.fence_version is None
    assert plan.unreferenced["data"].files == 1  # of the overwrite
    assert plan.kept_by["tag kept"].files >= 4
    done = await collect(journal)
    assert done.deleted == done.unreferenced == plan.unreferenced
    assert await files_of(lake) == await reachable(lake, journal)
    assert canonical(await model_of(journal, Tag("kept"))) == before
    assert not await lake.storage.exists(orphan)
    assert (await raises(Expired, model_of(journal, rows))).oldest == last
    await check(journal)
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    await collect(journal)
    again = await collect(journal)
    assert (again.unreferenced, again.fence_version) == ({}, None)  # nothing to do makes no version
    reopened = await lake.open()
    assert canonical(await model_of(reopened, Tag("kept"))) == before
    await reopened.close()
    await journal.close()


def draw_choice(rng: random.Random, model: Model) -> dict[str, tuple[PinObject, ...]]:
    """Draw the arguments of a tag of chosen objects; nothing in a third of the cases, and in an empty catalog."""
    kinds = ("namespace", "table", "view")
    names = [key.partition(" ")[2] for key in model if key.startswith(kinds)]
    if not names or rng.random() < 0.3:
        return {}
    drawn = tuple(
        PinObject(*name.split(".")) for name in rng.sample(sorted(names), rng.randint(1, min(3, len(names))))
    )
    return {rng.choice(("only", "without")): drawn}


def choose_from(model: Model, choice: dict[str, tuple[PinObject, ...]]) -> Model:
    """Return what a tag of chosen objects has of a version."""
    only, without = choice.get("only", ()), choice.get("without", ())
    if not choice:
        return model

    def holds(namespace: str, name: str) -> bool:
        def is_in(objects: tuple[PinObject, ...]) -> bool:
            return any(o.namespace == namespace and o.name in ("", name) for o in objects)

        if only:
            return is_in(only) or (not name and any(o.namespace == namespace for o in only))
        return not is_in(without)

    found: Model = {}
    for key, value in model.items():
        kind, _, full = key.removeprefix("id ").partition(" ")
        namespace, _, name = full.partition(".")
        if kind in ("namespace", "table", "view", "bound"):
            if holds(namespace, name):
                found[key] = value
        elif kind not in ("tag", "pipeline", "subscription"):
            found[key] = value
    return found


async def test_random_histories_lose_nothing_live_and_keep_nothing_else(
    lane_count: Callable[[int, int], int],
) -> None:
    counts: dict[str, int] = {"expired": 0, "collected": 0, "tags": 0, "chosen": 0}
    for seed in range(lane_count(5, 2000)):
        rng = random.Random(seed)
        lake = make_lake(seed)
        journal = await lake.create(order=rng.choice((3, 4, 16)), version_digits=rng.choice((32, 64)))
        past: dict[int, Model] = {0: await model_of(journal, 0)}
        tags: dict[str, tuple[int, dict[str, tuple[PinObject, ...]]]] = {}
        oldest = 0
        for _ in range(40):
            model = past[journal.head.version]
            lake.clock.millis += rng.choice((0, 1, HOUR_MILLIS))
            match rng.choices(range(5), weights=(10, 6, 2, 2, 2))[0]:
                case 0:
                    try:
                        usable = {v: m for v, m in past.items() if v >= oldest}
                        await lake.commit(journal, random_operation(rng, model, lake.identities, usable))
                    except REFUSALS:
                        pass
                case 1:
                    natives = [
                        key
                        for key, value in model.items()
                        if isinstance(value, ModelTable) and not value.location
                    ]
                    if natives:
                        _, _, full = rng.choice(natives).partition(" ")
                        namespace, _, name = full.partition(".")
                        try:
                            kind = rng.choice((AppendFiles, OverwriteFiles))
                            await commit_rows(lake, journal, fmt.table_name(namespace, name), kind=kind)
                        except REFUSALS:
                            pass
                case 2:
                    name = rng.choice("gh")
                    if name in tags and rng.random() < 0.5:
                        await lake.commit(journal, DropTag(name=name))
                        del tags[name]
                    else:
                        version = rng.randrange(oldest, journal.head.version + 1)
                        own = random.Random(f"{seed} {version}")  # so that other draws do not depend on it
                        choice = draw_choice(own, past[version]) if version in past else {}
                        wanted = choose_from(past.get(version, {}), choice)
                        if choice and not any(key.startswith("namespace") for key in wanted):
                            await raises(InvalidInput, tag(lake, journal, name, version, **choice))
                            continue
                        await tag(lake, journal, name, version, **choice)
                        tags[name] = version, choice
                        counts["tags"] += 1
                        counts["chosen"] += bool(choice)
                case 3:
                    expiry = await expire(
                        journal, keep=rng.choice((1, 2, 5)), older_than_millis=rng.choice((0, HOUR_MILLIS))
                    )
                    oldest = expiry.oldest
                    counts["expired"] += expiry.expired
                case 4:
                    done = await collect(journal, age=rng.choice((0, 1, 3)) * HOUR_MILLIS)
                    counts["collected"] += done.deleted_count
            if journal.head.version not in past:
                past[journal.head.version] = await model_of(journal, journal.head.version)
        lake.clock.millis += 3 * HOUR_MILLIS
        await collect(journal)
        journal = await lake.open()
        assert await files_of(lake) == await reachable(lake, journal), f"seed {seed}"
        for version in range(oldest, journal.head.version + 1):
            expected = past.get(version)
            found = canonical(await model_of(journal, version))
            assert expected is None or found == canonical(expected), f"seed {seed}, version {version}"
        for name, (version, choice) in tags.items():
            found = canonical(await model_of(journal, Tag(name)))
            wanted = canonical(choose_from(past[version], choice))
            assert found == wanted, f"seed {seed}, tag {name} {choice}"
        await check(journal)
        await journal.close()
    assert counts.pop("chosen") > 2, counts
    assert min(counts.values()) > 10, counts


# --- beside others


async def test_files_of_before_a_collection_are_refused() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    slow = lake.transaction(journal)
    late = await append(lake, journal, T, id=slow.id)
    pin = await journal.create_pin(2)
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    done = await collect(journal)
    assert {"data", "pin"} <= done.deleted.keys()  # of the slow transaction, too
    transaction = Transaction(id=slow.id, begin_version=journal.head.version, operations=(late,))
    error = await raises(Expired, journal.commit(transaction), kind="upload_expired")
    assert "begin a new transaction" in error.hint
    fields = {"version": 2, "commit_id": pin.commit_id, "pin_path": pin.path}
    made = CreateTag(
        name="g",
        tag_id=lake.identities.uuid4(),
        version_created_at_millis=pin.version_created_at_millis,
        **fields,  # type: ignore[arg-type]
    )
    await raises(InvalidInput, lake.commit(journal, made), kind="bad_version")  # the pin is gone
    # A new id is in time, but a file of before is not, whatever clock made the id.
    fresh = lake.transaction(journal)
    operation = await append(lake, journal, T, id=fresh.id)
    assert isinstance(operation, AppendFiles)
    (path,) = [info.path async for info in lake.storage.list(f"data/{operation.table_id}/{fresh.id}/")]
    lake.storage._files[path] = msgspec.structs.replace(  # type: ignore[attr-defined]
        lake.storage._files[path],  # type: ignore[attr-defined]
        modified_at_millis=lake.clock.millis - 2 * HOUR_MILLIS,
    )
    transaction = Transaction(id=fresh.id, begin_version=journal.head.version, operations=(operation,))
    await raises(Expired, journal.commit(transaction), kind="upload_expired")
    assert await commit_rows(lake, journal) == journal.head.version
    await journal.close()


async def test_a_commit_that_the_collection_did_not_see_is_safe() -> None:
    """A writer has judged on the version below the fence, and its root comes after the marks."""
    lake = make_lake()
    journal = await collectable(lake)
    await lake.commit(journal, lake.table("a", "t"))
    other = await lake.open()
    await expire(journal)
    with failpoints.armed("commit.staged", "pause@1") as staged:
        writing = asyncio.ensure_future(commit_rows(lake, other))
        await staged.wait_for_hit()
        lake.clock.millis += 1
        steps = journal.collect(minimum_age_millis=0)
        plan = await anext(steps)
        assert plan.fence_version == journal.head.version
        staged.release()
        with pytest.raises(Expired, match="from before"):
            await writing
        assert [step async for step in steps][-1].deleted_count
    await check(journal)
    lake.clock.millis += 1
    await collect(journal, age=0)  # what the refused commit had uploaded
    assert await files_of(lake) == await reachable(lake, journal)
    await check(journal)
    await journal.close()
    await other.close()


@pytest.mark.parametrize("brings_back", ["restore", "undrop", "undrop_namespace"])
@pytest.mark.parametrize("tagged", [True, False])
async def test_what_comes_back_stays(brings_back: str, tagged: bool) -> None:
    """From a tag whose version has expired, and from a version that expires while it is restored."""
    lake = make_lake()
    journal = await make_table(lake)
    then = await commit_rows(lake, journal)
    before = (await model_of(journal, then))[str(T)]
    if tagged:
        await tag(lake, journal, "kept", then)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    if brings_back == "undrop":
        await lake.commit(journal, DropTable(namespace="a", name="t"))
    if brings_back == "undrop_namespace":
        await lake.commit(journal, DropNamespace(name="a", cascade=True))
    await lake.commit(journal, lake.namespace("b"))
    kind = Kind.NAMESPACE if brings_back == "undrop_namespace" else Kind.TABLE
    operation: Operation = (
        RestoreTable(namespace="a", name="t", version=then)
        if brings_back == "restore"
        else Undrop(
            kind=kind,
            namespace="a",
            name="" if kind is Kind.NAMESPACE else "t",
            version=then,
            new_namespace="a",
            new_name="" if kind is Kind.NAMESPACE else "t",
        )
    )
    lake.clock.millis += 2 * HOUR_MILLIS
    if tagged:
        await expire(journal)
        await collect(journal)
        await lake.commit(journal, operation)
    else:
        other = await lake.open()
        with failpoints.armed("commit.root_answered", "pause@1") as staged:
            writing = asyncio.ensure_future(lake.commit(other, operation))
            await staged.wait_for_hit()
            staged.release()
            await writing
        await journal.refresh()
        await expire(journal, keep=2)
        await collect(journal)
        await other.close()
    for _ in range(2):
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(journal)
        await collect(journal)
    assert (await model_of(journal, journal.head.version))[str(T)] == before
    assert await files_of(lake) == await reachable(lake, journal)
    await check(journal)
    again = RestoreTable(namespace="a", name="t", version=then) if not tagged else DropTag(name="kept")
    if tagged:
        await lake.commit(journal, again)
        again = RestoreTable(namespace="a", name="t", version=then)
    assert (await raises(Expired, lake.commit(journal, again))).oldest is not None
    await journal.close()


async def test_a_pin_holds_a_version_that_expires_before_the_restore_commits() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    then = await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    other = await lake.open()
    with failpoints.armed("pin.written", "pause@1") as pinned:
        writing = asyncio.ensure_future(
            lake.commit(other, RestoreTable(namespace="a", name="t", version=then))
        )
        await pinned.wait_for_hit()
        await expire(journal)
        pinned.release()
        await raises(Expired, writing)  # the tombstone came before the second look
    lake.clock.millis += 2 * HOUR_MILLIS
    await collect(journal)
    assert await files_of(lake) == await reachable(lake, journal)
    await journal.close()
    await other.close()


async def test_a_member_of_a_group_that_read_an_expired_version_keeps_nothing_for_others() -> None:
    """A restore is refused although another member has read the expired version, from events in memory."""
    lake = make_lake()
    journal = await make_table(lake)
    then = await commit_rows(lake, journal)
    (stored,) = (await journal.load(then, [T])).objects
    assert stored is not None
    table = decode_definition(Kind.TABLE, stored.definition, stored.path)
    assert isinstance(table, TableDef)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await lake.commit(journal, lake.namespace("b"))
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    assert (await collect(journal)).deleted["data"].files == 1
    lake.clock.millis += 2 * HOUR_MILLIS
    hide = ChangeRows(
        namespace="a",
        name="t",
        table_id=table.id,
        base_sequence=table.sequence,
        mode=ChangeMode.DELETE,
        predicates=(b"broken",),
    )
    reader = lake.transaction(journal, hide, begin=then)
    restore = lake.transaction(journal, RestoreTable(namespace="a", name="t", version=then))
    answers = await journal.commit_group([reader, restore])
    assert [type(answer) for answer in answers][1] is Expired, answers
    await check(journal)
    await journal.close()


async def test_leases_and_saved_transactions_keep_what_they_need() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    then = await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    saved = lake.transaction(journal, lake.namespace("s"))
    await journal.save_transaction(saved)
    await lake.commit(journal, lake.namespace("b"))
    held = await take(
        journal.follower.log, then, lease_millis=86_400_000, holder="me", new_id=lake.identities.uuid4
    )
    lake.clock.millis += 2 * HOUR_MILLIS
    expiry = await expire(journal)
    assert [(hold.kind, hold.version) for hold in expiry.holds] == [("transaction", saved.begin_version)]
    assert expiry.oldest == saved.begin_version == expiry.wanted - 1
    plan = await collect(journal)
    assert plan.kept_by["leases"].files
    lease = await snapshot_of(held.lease.copy, lake.storage, journal.keys)
    (stored,) = await lease.load([T])
    assert stored is not None
    assert stored.error() is None
    assert (await journal.load_transaction(saved.id)).operation_count == 1
    assert await journal.commit((await journal.load_transaction(saved.id)).transaction)
    await held.release()
    lake.clock.millis += 80 * HOUR_MILLIS
    await expire(journal)
    done = await collect(journal)
    assert {"saved", "data"} <= done.deleted.keys()
    assert await files_of(lake) == await reachable(lake, journal)
    await journal.close()


async def test_a_saved_transaction_that_cannot_be_read_whole_hides_nothing_from_its_commit() -> None:
    """Its running root names a segment that is missing when it is marked; then it commits, before the fence."""
    lake = make_lake()
    journal = await make_table(lake)
    other = lake.table("a", "u")
    await lake.commit(journal, other)
    begun = lake.transaction(journal)
    first = await append(lake, journal, T, id=begun.id)
    second = await append(lake, journal, other.target, id=begun.id)
    assert isinstance(second, AppendFiles)
    saved = msgspec.structs.replace(begun, operations=(first, second))
    await journal.save_transaction(saved)
    lake.clock.millis += 2 * HOUR_MILLIS
    path = second.segments[0].path
    data = await lake.storage.read(path, size_max=1 << 20)
    await lake.storage.delete(path)
    await lake.storage.put(f"node/{lake.identities.uuid4()}.arrow", b"something to collect")
    lake.clock.millis += 2 * HOUR_MILLIS

    async def commit_both(fence: Transaction) -> Committed:
        await lake.storage.put(path, data)
        await journal.commit(saved)
        return await journal.commit(fence)

    steps = journal.collect(minimum_age_millis=HOUR_MILLIS, commit=commit_both)
    assert [step async for step in steps][-1].deleted_count
    await check(journal)
    await journal.close()


async def test_a_root_with_a_bad_pointer_hides_nothing_from_others() -> None:
    """The nodes below it are read again for a root that has them, too."""
    lake = make_lake()
    journal = await make_table(lake, order=3)
    for number in range(9):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await commit_rows(lake, journal)
    root = await journal.follower.root(journal.head.version)
    assert any(root.node.children)

    async def put_root(values: tuple[str, ...]) -> str:
        data = encode_node(
            msgspec.structs.replace(root.node, values=values),
            order=3,
            created_at_millis=root.created_at_millis,
            size_max=1 << 20,
            system={fmt.ROW_CATALOG_DEF: root.catalog_def},
        )
        path = f"node/{lake.identities.uuid4()}.arrow"
        await lake.storage.put(path, data)
        return path

    good = await put_root(tuple(root.node.values))
    bad = await put_root(tuple("def/somewhere" for _ in root.node.values))
    left = []
    for first in ((), (bad,)):
        candidates = Candidates()
        for path in await files_of(lake):
            candidates.own.add(path, 1, fmt.kind_of_file(path), 0)
        await candidates.own.seal()
        reach = Reach(journal.follower.log, journal.keys, candidates)
        for path in first:
            await raises(Corrupt, reach.add_root_file(path, "transactions"))
        await reach.add_root_file(good, "exports")
        parts = [part for kind in fmt.COLLECTED_KINDS async for part in candidates.own.left_of(kind)]
        left.append({path for part in parts for path, _ in part} - {bad})
    assert left[0] == left[1]
    await journal.close()


async def test_other_files_are_left_alone() -> None:
    lake = make_lake()
    journal = await collectable(lake)
    id = lake.identities.uuid4()
    foreign = [
        "README", f"node/{id}.arrow.bak", f"nodes/{id}.arrow", f"def/other/{id}-x.binpb", "def/table/x.binpb",
        f"data/{id}.parquet", f"data/x/{id}/{id}/a.parquet", f"manifest/{id}.arrow", f"pin/{id}", "vn/other",
        f"def/branch/{id}-x.binpb", f"data/{id}/{id}/README.md", f"data/{id}/{id}/sub/mine.csv",
        f"data/{id}/{id}/{id}/_SUCCESS", f"data/{id}/{id}/{id}/mine.csv", f"data/{id}/{id}/{id}/sub/x.parquet",
    ]  # fmt: skip
    for path in foreign:
        await lake.storage.put(path, b"?")
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    assert (await collect(journal)).deleted_count
    assert {path for path in foreign if await lake.storage.exists(path)} == set(foreign)
    await journal.close()


@pytest.mark.parametrize("damage", ["node", "definition", "manifest", "pin", "lease", "root"])
@pytest.mark.parametrize("missing", [True, False])
async def test_where_something_cannot_be_read_nothing_is_deleted(damage: str, missing: bool) -> None:
    lake = make_lake()
    journal = await make_table(lake, order=3)
    for number in range(5):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    then = await commit_rows(lake, journal)
    await tag(lake, journal, "kept", then)
    await take(journal.follower.log, then, lease_millis=86_400_000, holder="me", new_id=lake.identities.uuid4)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal, keep=2)
    reached = await reachable(lake, journal)
    chosen = {
        "node": "node/", "definition": "def/table/", "manifest": "manifest/", "pin": "pin/", "lease": "lease/",
        "root": "vn/",
    }[damage]  # fmt: skip
    paths = sorted(path for path in reached if path.startswith(chosen))
    if damage == "root":
        paths = [journal.follower.log.path(journal.head.version - 1)]
    before = await files_of(lake)
    for path in paths:
        await (lake.storage.delete(path) if missing else lake.storage.put(path, b"damaged"))
    fresh = await lake.open()
    if damage == "lease" and missing:
        await collect(fresh)  # a lease that is not there holds nothing
    else:
        error = await raises(Corrupt, collect(fresh))
        assert await files_of(lake) >= before - set(paths)
        assert ("if no reader or writer holds it" in error.hint) == (damage == "lease")
    await fresh.close()
    await journal.close()


POINTS = ("collect.listed", "collect.fenced", "collect.marked", "collect.deleting", "expiry.hint_written")


@pytest.mark.parametrize("point", [*POINTS, "expiry.tombstone@1", "expiry.tombstone@3"])
async def test_upkeep_that_was_killed_is_finished_by_the_next(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "TOMBSTONES_AT_ONCE", 1)
    lake = make_lake()
    journal = await collectable(lake)
    name, _, at = point.partition("@")
    with failpoints.armed(name, f"raise@{at or 1}"), pytest.raises(failpoints.FailpointError):
        await keep_up(journal)
    await check(await lake.open())
    again = await lake.open()
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(again)
    await collect(again)
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(again)
    await collect(again)
    assert await files_of(lake) == await reachable(lake, again)
    await check(again)
    await again.close()
    await journal.close()


async def test_two_upkeeps_at_once_do_no_harm(lane_count: Callable[[int, int], int]) -> None:
    for seed in range(lane_count(3, 10)):
        lake = make_lake(seed)
        journal = await collectable(lake)
        await tag(lake, journal, "kept", 3)
        lake.clock.millis += 2 * HOUR_MILLIS
        others = [await lake.open(InterleavedStorage(lake.storage, 7 * seed + n)) for n in range(3)]

        async def keep_on(other: Journal) -> None:
            for _ in range(3):
                await expire(other)
                with contextlib.suppress(Conflict):
                    await collect(other)

        await asyncio.gather(*(keep_on(other) for other in others), commit_namespaces(lake, journal))
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(others[0])
        await collect(others[0])
        assert await files_of(lake) == await reachable(lake, journal)
        await check(await lake.open())


async def commit_namespaces(lake: Lake, journal: Journal) -> None:
    for number in range(10):
        await lake.commit(journal, lake.namespace(f"c{number}"))
        await asyncio.sleep(0)


async def test_data_roots_lose_only_files_of_tables_of_the_catalog() -> None:
    lake = make_lake()
    journal = await lake.create()
    root = "memory://elsewhere"
    id = lake.identities.uuid4()
    await lake.commit(journal, CreateNamespace(name="a", namespace_id=id, data_root=root))
    table = lake.table("a", "t")
    await lake.commit(journal, table)
    store = journal.follower.data_roots.of(root)
    store._clock = lake.clock.now_millis  # type: ignore[attr-defined]
    paths = []
    for kind in (AppendFiles, OverwriteFiles):
        transaction = lake.transaction(journal)
        segment = await put_rows(
            lake.storage, lake.identities, table_id=table.table_id, transaction_id=transaction.id
        )
        moved = [info.path async for info in lake.storage.list(f"data/{table.table_id}/{transaction.id}/")]
        for path in moved:
            await store.put(path, await lake.storage.read(path, size_max=1 << 20))
            await lake.storage.delete(path)
        operation = kind(
            namespace="a", name="t", table_id=table.table_id, segments=(segment,), data_root=root
        )
        await journal.commit(
            Transaction(id=transaction.id, begin_version=transaction.begin_version, operations=(operation,))
        )
        paths += moved
    other = f"data/{lake.identities.uuid4()}/{lake.identities.uuid4()}/{lake.identities.uuid4()}/x.parquet"
    await store.put(other, b"of another catalog")
    lake.clock.millis += 2 * HOUR_MILLIS
    await lake.commit(journal, lake.namespace("b"))
    await expire(journal)
    done = await collect(journal)
    assert done.deleted["data"].files == 1
    assert [await store.exists(path) for path in (*paths, other)] == [False, True, True]
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    await lake.commit(journal, lake.namespace("c"))
    lake.clock.millis += 2 * HOUR_MILLIS
    await expire(journal)
    await collect(journal)
    assert [await store.exists(path) for path in (*paths, other)] == [False, False, True]
    await journal.close()


# --- expiry


async def test_what_holds_expiry_back() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    subscription = CreateSubscription(
        name="s", subscription_id=lake.identities.uuid4(), lease_millis=3_600_000, next_version=2
    )
    await lake.commit(journal, subscription)
    job = AdvancePipeline(
        name="p", job="j", expected_transaction_id="", pinned_version=3, state="running",
        inputs={"a.t": InputPosition(table_id=lake.identities.uuid4(), version=3)},
    )  # fmt: skip
    await lake.commit(journal, job)
    for number in range(8):
        lake.clock.millis += HOUR_MILLIS // 4
        await lake.commit(journal, lake.namespace(f"n{number}"))
    head = journal.head.version
    plan = [
        step async for step in journal.expire(ExpiryRules(keep_versions=3, older_than_millis=0), dry_run=True)
    ]
    assert len(plan) == 1
    assert (plan[0].wanted, plan[0].oldest) == (head - 2, 3)  # the subscription ran out, the job holds
    assert [(hold.kind, hold.name, hold.let_go) for hold in plan[0].holds] == [("pipeline", "p.j", False)]
    lake.clock.millis -= 7 * HOUR_MILLIS // 4
    held = (await expire(journal, keep=3)).holds
    assert [(hold.kind, hold.version) for hold in held] == [("subscription", 1), ("pipeline", 3)]
    lake.clock.millis += 7 * HOUR_MILLIS // 4
    let_go = await expire(journal, keep=3, pipeline_hold_millis=HOUR_MILLIS)
    assert [(hold.name, hold.let_go) for hold in let_go.holds] == [("p.j", True)]
    assert let_go.oldest == let_go.wanted == head - 2
    assert (await journal.info()).oldest_version == head - 2
    await journal.close()


@pytest.mark.parametrize("kind", ["subscription", "pipeline"])
@pytest.mark.parametrize("missing", [True, False])
async def test_where_it_is_unknown_what_holds_expiry_back_no_version_expires(
    kind: str, missing: bool
) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    made: Operation = CreateSubscription(
        name="mine", subscription_id=lake.identities.uuid4(), lease_millis=3_600_000, next_version=2
    )
    if kind == "pipeline":
        made = AdvancePipeline(
            name="mine", job="j", expected_transaction_id="", pinned_version=1, state="running",
            inputs={"a.t": InputPosition(table_id=lake.identities.uuid4(), version=1)},
        )  # fmt: skip
    await lake.commit(journal, made)
    for number in range(5):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    await journal.close()
    (path,) = [info.path async for info in lake.storage.list(f"def/{kind}/")]
    data = await lake.storage.read(path, size_max=1 << 20)
    await (lake.storage.delete(path) if missing else lake.storage.put(path, b"damaged"))
    journal = await lake.open()
    rules = ExpiryRules(keep_versions=1, older_than_millis=0)
    for dry_run in (True, False):
        error = await raises(
            Corrupt, anext(journal.expire(rules, dry_run=dry_run)), kind="corrupt_definition"
        )
        assert f"unknown which versions {kind} mine needs" in error.message
        assert error.path == path
        assert error.hint.startswith(f"restore {path} from a copy, or ")
    assert (await journal.info()).oldest_version == 0
    await lake.storage.put(path, data)
    assert (await expire(journal)).oldest == 1
    await lake.storage.delete(path)
    journal = await lake.open()
    if kind == "subscription":
        await lake.commit(journal, DropSubscription(name="mine"))
        assert (await expire(journal)).oldest == journal.head.version
    else:  # whatever the pipeline needs, it is let go
        assert (await expire(journal, pipeline_hold_millis=0)).oldest == journal.head.version
    await journal.close()


async def test_expiry_goes_by_age_and_count() -> None:
    lake = make_lake()
    journal = await lake.create()
    for number in range(20):
        lake.clock.millis += HOUR_MILLIS
        await lake.commit(journal, lake.namespace(f"n{number}"))
    assert (await expire(journal, keep=1, older_than_millis=100 * HOUR_MILLIS)).expired == 0
    assert (await expire(journal, keep=18, older_than_millis=0)).oldest == 3
    # Version 15 was the head until 16 came, five hours less one ago.
    found = await expire(journal, keep=1, older_than_millis=5 * HOUR_MILLIS)
    assert found.oldest == 15
    assert (await expire(journal, keep=1, older_than_millis=0)).oldest == 20  # the head stays
    for keep, age in ((0, 0), (1, -1)):
        await raises(InvalidInput, expire(journal, keep=keep, older_than_millis=age))
    await raises(InvalidInput, collect(journal, age=-1))
    await check(journal)
    await journal.close()


async def test_a_catalog_of_revision_1_neither_expires_nor_collects() -> None:
    lake = make_lake()
    journal = await lake.create(format_revision=1)
    await raises(InvalidInput, expire(journal), kind="upgrade_needed")
    await raises(InvalidInput, collect(journal), kind="upgrade_needed")
    fence = FenceCollection(cutoff_millis=1)
    await raises(InvalidInput, lake.commit(journal, fence), kind="upgrade_needed")
    await journal.close()


async def test_a_fence_in_the_future_is_refused() -> None:
    lake = make_lake()
    journal = await lake.create()
    ahead = FenceCollection(cutoff_millis=lake.clock.millis + 2 * fmt.CLOCK_SKEW_MILLIS_MAX)
    await raises(InvalidInput, lake.commit(journal, ahead), kind="clock_skew")
    cutoff = lake.clock.millis
    await lake.commit(journal, FenceCollection(cutoff_millis=cutoff))
    definition = (await journal.info()).definition
    assert definition.collected_before_millis == cutoff
    await lake.commit(journal, FenceCollection(cutoff_millis=5))  # never goes down
    assert (await journal.info()).definition == definition
    await journal.close()


@pytest.mark.parametrize("expires", [True, False])
async def test_a_process_that_slept_follows_where_the_next_version_is_kept(expires: bool) -> None:
    """The head that the process knows has expired, and its files are gone. The version after it is kept."""
    lake = make_lake()
    journal = await lake.create(order=3)
    for number in range(9):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    slept = await lake.open()
    for number in range(9):
        await lake.commit(journal, DropNamespace(name=f"n{number}"), lake.namespace(f"m{number}"))
    if expires:
        await expire(journal, keep=journal.head.version - slept.head.version)
        assert await journal.follower.oldest() == slept.head.version + 1
        lake.clock.millis += 2 * HOUR_MILLIS
        await collect(journal)
        await slept.refresh()
        assert slept.head == journal.head
        await lake.commit(slept, lake.namespace("next"))
    else:
        async for info in lake.storage.list("node/"):
            await lake.storage.delete(info.path)
        with pytest.raises(Corrupt, match="a node that is missing"):
            await slept.refresh()


@pytest.mark.parametrize("expires", [True, False])
async def test_a_process_that_slept_loads_the_newest_version(expires: bool) -> None:
    lake = make_lake()
    journal = await lake.create(order=3)
    for number in range(9):
        await lake.commit(journal, lake.namespace(f"n{number}"))
    slept = await lake.open()
    for number in range(9):
        await lake.commit(journal, DropNamespace(name=f"n{number}"), lake.namespace(f"m{number}"))
    if expires:
        await expire(journal)
        lake.clock.millis += 2 * HOUR_MILLIS
        await collect(journal)
        assert (await slept.load_state()).entries() == (await journal.load_state()).entries()
        assert slept.head.version == journal.head.version
    else:
        async for info in lake.storage.list("node/"):
            await lake.storage.delete(info.path)
        with pytest.raises(Corrupt, match="a node that is missing"):
            await slept.load_state()
