"""Namespaces and tables keep versions by rules of their own, for longer than an expiry's rules."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest
from upkeep_lake import T, check, collect, commit_rows, expire, files_of, make_lake, make_table, reachable

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.collect import expiry, kept_history
from alpheus_journal.errors import Corrupt, Expired, InvalidInput
from alpheus_journal.execute import execute
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Expiry, StoredObject
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    RegisterTable,
    RenameObject,
    Undrop,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.interface import ObjectInfo
from alpheus_journal.testing import Lake, model_of, raises
from alpheus_journal.testing.simulation.history import canonical
from alpheus_journal.tree.node import Node, encode_node

LONG_MAX = str((1 << 63) - 1)


async def age(lake: Lake, journal: Journal, versions: int) -> None:
    """Commit versions, an hour apart."""
    for _ in range(versions):
        lake.clock.millis += HOUR_MILLIS
        await lake.commit(journal, UpdateNamespace(name="a", set={"at": str(lake.clock.millis)}))


async def plan_of(journal: Journal, keep: int = 1) -> Expiry:
    """Return the plan of an expiry of everything but the newest versions."""
    rules = expiry.ExpiryRules(keep_versions=keep, older_than_millis=0)
    return [step async for step in journal.expire(rules, dry_run=True)][-1]


def table_rule(**properties: str) -> Operation:
    names = {"age": MAX_AGE, "keep": MIN_VERSIONS}
    return UpdateTable(
        namespace="a",
        name="t",
        set={names[name]: text for name, text in properties.items() if text},
        unset=tuple(names[name] for name, text in properties.items() if not text),
    )


def held_of(plan: Expiry) -> list[tuple[str, str, int]]:
    return [(hold.kind, hold.name, hold.version) for hold in plan.holds]


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_longer_rule_keeps_versions_and_what_they_reach(in_memory: bool) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await lake.commit(journal, table_rule(age=str(8 * HOUR_MILLIS)))
    await age(lake, journal, 5)
    if in_memory:
        await journal.load_state()
    head = journal.head.version
    plan = await plan_of(journal)
    assert (plan.wanted, plan.oldest, held_of(plan)) == (head, 0, [("table", "a.t", 0)])
    await age(lake, journal, 5)
    done = await expire(journal)
    oldest = journal.head.version - 8  # it was made exactly eight hours ago
    assert (done.oldest, held_of(done)) == (oldest, [("table", "a.t", oldest)])
    assert (await raises(Expired, model_of(journal, oldest - 1))).oldest == oldest
    assert await model_of(journal, oldest)
    await lake.commit(journal, table_rule(age=LONG_MAX))
    await age(lake, journal, 5)
    assert (await plan_of(journal)).oldest == oldest
    await lake.commit(journal, table_rule(age=""))
    assert held_of(await plan_of(journal)) == []
    await journal.close()


async def test_what_a_rule_keeps_outlives_collections() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    rows = await commit_rows(lake, journal)
    await lake.commit(journal, table_rule(keep="6"))
    await commit_rows(lake, journal, kind=OverwriteFiles)
    await age(lake, journal, 1)
    before = canonical(await model_of(journal, rows))
    assert journal.head.version - rows == 3
    for _ in range(3):
        lake.clock.millis += 2 * HOUR_MILLIS
        await expire(journal)
        await collect(journal)  # may commit a fence
    assert canonical(await model_of(journal, rows)) == before
    assert await files_of(lake) == await reachable(lake, journal)
    await check(journal)
    await age(lake, journal, 6)
    lake.clock.millis += 2 * HOUR_MILLIS
    assert (await expire(journal)).oldest == journal.head.version - 5
    assert (await collect(journal)).deleted["data"].files == 1
    await raises(Expired, model_of(journal, rows))
    await check(journal)
    await journal.close()


async def test_the_table_wins_over_its_namespace_and_each_property_by_itself() -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await age(lake, journal, 20)

    async def oldest(namespace: dict[str, str], table: dict[str, str]) -> tuple[int, list[str]]:
        """Return how many versions an expiry that keeps three would keep."""
        await lake.commit(
            journal, UpdateNamespace(name="a", set={"x": "y"} | namespace, unset=without(namespace))
        )
        await lake.commit(
            journal, UpdateTable(namespace="a", name="t", set={"x": "y"} | table, unset=without(table))
        )
        plan = await plan_of(journal, keep=3)
        return plan.head - plan.oldest + 1, [hold.kind for hold in plan.holds]

    assert await oldest({}, {}) == (3, [])
    assert await oldest({MIN_VERSIONS: "5"}, {}) == (5, ["namespace"])
    assert await oldest({MIN_VERSIONS: "5"}, {MIN_VERSIONS: "7"}) == (7, ["table"])
    assert await oldest({MIN_VERSIONS: "7"}, {MIN_VERSIONS: "5"}) == (5, ["table"])
    assert await oldest({MIN_VERSIONS: "7"}, {MIN_VERSIONS: "1"}) == (3, [])  # shorter has no effect
    assert await oldest({}, {MAX_AGE: "1"}) == (3, [])  # it is longer, and keeps the same versions
    # The age comes from the table, and the number from the namespace. The longer of the two counts.
    assert await oldest({MIN_VERSIONS: "7"}, {MAX_AGE: "0"}) == (7, ["table"])
    kept, kinds = await oldest({MIN_VERSIONS: "7", MAX_AGE: str(HOUR_MILLIS)}, {MAX_AGE: LONG_MAX})
    assert (kept, kinds) == (journal.head.version + 1, ["table"])
    await journal.close()


def without(properties: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name in (MAX_AGE, MIN_VERSIONS) if name not in properties)


async def test_only_tables_at_the_head_keep_history() -> None:
    lake = make_lake()
    journal = await lake.create()
    await lake.commit(
        journal,
        CreateNamespace(name="a", namespace_id=lake.identities.uuid4(), properties={MIN_VERSIONS: "5"}),
    )
    await age(lake, journal, 10)
    assert held_of(await plan_of(journal)) == [], "the namespace has no table"
    await lake.commit(
        journal,
        RegisterTable(
            namespace="a",
            name="t",
            table_id=lake.identities.uuid4(),
            metadata_location="s3://bucket/metadata/1.json",
            properties={MIN_VERSIONS: "7"},
        ),
    )
    assert held_of(await plan_of(journal)) == [("table", "a.t", journal.head.version - 6)]
    await lake.commit(
        journal, RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="a", new_name="u")
    )
    assert held_of(await plan_of(journal)) == [("table", "a.u", journal.head.version - 6)]
    await lake.commit(journal, DropTable(namespace="a", name="u"))
    dropped = journal.head.version
    assert held_of(await plan_of(journal)) == []
    await lake.commit(
        journal,
        Undrop(
            kind=Kind.TABLE, version=dropped - 1, namespace="a", name="u", new_namespace="a", new_name="u"
        ),
    )
    assert held_of(await plan_of(journal)) == [("table", "a.u", journal.head.version - 6)]
    await lake.commit(journal, DropNamespace(name="a", cascade=True))
    assert held_of(await plan_of(journal)) == []
    await journal.close()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_commit_beside_the_search_moves_no_table_past_it(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await lake.commit(journal, lake.namespace("b"))
    await lake.commit(journal, UpdateNamespace(name="a", set={MIN_VERSIONS: "5"}))
    await age(lake, journal, 6)
    if in_memory:
        await journal.load_state()
    search = kept_history._View.each_concerned

    async def search_and_move(
        view: kept_history._View, kind: Kind, *, whatever: bool = False
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        async for found in search(view, kind, whatever=whatever):
            yield found
        if kind is Kind.NAMESPACE:
            await lake.commit(journal, UpdateNamespace(name="b", set={MIN_VERSIONS: "5"}))
            moved = RenameObject(kind=Kind.TABLE, namespace="a", name="t", new_namespace="b", new_name="t")
            await lake.commit(journal, moved)

    head = journal.head.version
    monkeypatch.setattr(kept_history._View, "each_concerned", search_and_move)
    assert held_of(await plan_of(journal)) == [("namespace", "a", head - 4)]
    await journal.close()


async def test_random_rules_keep_what_a_plain_computation_says(
    lane_count: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_history, "OBJECTS_AT_ONCE", 3)
    monkeypatch.setattr(expiry, "TOMBSTONES_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "TABLE_HOLDS_MAX", 1)
    monkeypatch.setattr(expiry, "RULES_AT_ONCE", 2)
    for seed in range(lane_count(6, 500)):
        await play_history(seed)


async def play_history(seed: int) -> None:
    """Expire a random catalog again and again under random rules; some expiries are stopped half-way."""
    random_ = random.Random(seed)
    lake = make_lake(seed)
    journal = await lake.create(order=3)
    rules: dict[ObjectName, dict[str, str]] = {}
    filled_at = [lake.clock.millis] * (journal.head.version + 1)

    def draw() -> dict[str, str]:
        given = {}
        if random_.random() < 0.4:
            given[MAX_AGE] = str(random_.randrange(40) * HOUR_MILLIS // 2)
        if random_.random() < 0.4:
            given[MIN_VERSIONS] = str(random_.randrange(1, 30))
        return given

    async def commit(operation: Operation) -> None:
        lake.clock.millis += random_.choice([0, HOUR_MILLIS // 3, HOUR_MILLIS, 3 * HOUR_MILLIS])
        await lake.commit(journal, operation)
        filled_at.append(lake.clock.millis)

    for number in range(3):
        home = fmt.namespace_name(f"n{number}")
        rules[home] = draw()
        await commit(
            CreateNamespace(name=home.namespace, namespace_id=lake.identities.uuid4(), properties=rules[home])
        )
        for place in range(random_.randrange(6)):
            name = fmt.table_name(home.namespace, f"t{place}")
            rules[name] = draw()
            made = lake.table(name.namespace, name.name)
            assert isinstance(made, CreateTable)
            await commit(made)
            if rules[name]:
                await commit(UpdateTable(namespace=name.namespace, name=name.name, set=rules[name]))
    for _ in range(8):
        if random_.random() < 0.5:
            await journal.load_state()
        for _ in range(random_.randrange(1, 6)):
            name = random_.choice(sorted(rules))
            rules[name] = draw()
            gone = tuple({MAX_AGE, MIN_VERSIONS} - rules[name].keys())
            changes = {"x": str(lake.clock.millis)} | rules[name]
            await commit(
                UpdateNamespace(name=name.namespace, set=changes, unset=gone)
                if name.kind is Kind.NAMESPACE
                else UpdateTable(namespace=name.namespace, name=name.name, set=changes, unset=gone)
            )
        keep, older = random_.randrange(1, 12), random_.randrange(12) * HOUR_MILLIS
        tables = [
            rules[fmt.namespace_name(name.namespace)] | own
            for name, own in rules.items()
            if name.kind is Kind.TABLE
        ]
        ages_and_numbers = [
            (int(each.get(MAX_AGE, older)), int(each.get(MIN_VERSIONS, keep))) for each in tables
        ]
        kept = min(
            oldest_of(filled_at, lake.clock.millis, age_millis, number)
            for age_millis, number in [(older, keep), *ages_and_numbers]
        )
        first = (await journal.info()).oldest_version
        if random_.random() < 0.3:
            point = random_.choice(["expiry.hint_written", "expiry.tombstone"])
            with (
                failpoints.armed(point, f"raise@{random_.randrange(1, 4)}"),
                contextlib.suppress(failpoints.FailpointError),
            ):
                await expire(journal, keep=keep, older_than_millis=older)
            assert first <= (await journal.info()).oldest_version <= max(kept, first), f"seed {seed}"
            if random_.random() < 0.5:
                continue  # the next expiry, by other rules, finds it so
        done = await expire(journal, keep=keep, older_than_millis=older)
        assert done.oldest == max(kept, first), f"seed {seed}"
        assert (await journal.info()).oldest_version == done.oldest, f"seed {seed}"
    await check(journal)
    await journal.close()


def oldest_of(filled_at: list[int], now: int, age_millis: int, number: int) -> int:
    """Return the oldest version that one pair of rules keeps: version by version."""
    head = len(filled_at) - 1
    for version in range(head + 1):
        was_replaced_by = now - age_millis
        if version > head - number or version == head or filled_at[version + 1] > was_replaced_by:
            return version
    raise AssertionError("the head stays")


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("kind", ["namespace", "table"])
async def test_where_a_value_is_no_rule_no_version_expires(
    kind: str, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    bad: Operation = UpdateNamespace(name="a", set={MAX_AGE: "7d"})
    mended: Operation = UpdateNamespace(name="a", unset=(MAX_AGE,))
    if kind == "table":
        bad, mended = table_rule(age="7d"), table_rule(age="")
    error = await raises(InvalidInput, lake.commit(journal, bad))
    assert MAX_AGE in error.message
    assert "'7d'" in error.message
    with monkeypatch.context() as patch:  # as a writer of an earlier release did
        patch.setattr(execute, "check_history_rules", lambda operation: None)
        await lake.commit(journal, bad)
    await age(lake, journal, 3)
    if in_memory:
        await journal.load_state()
    for dry_run in (True, False):
        rules = expiry.ExpiryRules(keep_versions=1, older_than_millis=0)
        error = await raises(InvalidInput, anext(journal.expire(rules, dry_run=dry_run)))
        assert "no version expires" in error.message
        assert f"{kind} a" in error.message
        assert "unset the property" in error.hint
    assert (await journal.info()).oldest_version == 0
    assert (await expire(journal, keep=100)).expired == 0, "no rule is read where nothing may expire"
    await check(journal)  # the recorded action is executed again, whatever it set
    await lake.commit(journal, mended)
    assert (await expire(journal)).oldest == journal.head.version
    await journal.close()


@pytest.mark.parametrize("kind", ["ns", "table"])
@pytest.mark.parametrize("data", [None, b"", b"damaged", b"\xbd\x0c\0\0\0\1"])
async def test_where_a_definition_cannot_be_read_no_version_expires(kind: str, data: bytes | None) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    await age(lake, journal, 3)
    await lake.commit(journal, table_rule(keep="2"))
    await journal.close()
    live = await live_path(lake, kind)
    stored = await lake.storage.read(live, size_max=1 << 20)
    await (lake.storage.delete(live) if data is None else lake.storage.put(live, data))
    journal = await lake.open()
    error = await raises(Corrupt, expire(journal))
    assert "no version expires, because it is unknown which versions" in error.message
    assert error.path == live
    assert data is not None or "missing" in error.message
    assert error.hint.startswith(f"restore {live} from a copy, or drop the ")
    assert (await journal.info()).oldest_version == 0
    await journal.close()
    await lake.storage.put(live, stored)
    journal = await lake.open()
    assert (await expire(journal)).oldest == journal.head.version - 1
    await journal.close()


async def live_path(lake: Lake, kind: str) -> str:
    """Return the path of the definition of the namespace or table at the head."""
    journal = await lake.open()
    name = T if kind == "table" else fmt.namespace_name("a")
    (stored,) = (await journal.load(None, [name])).objects
    await journal.close()
    assert stored is not None
    return stored.path


async def test_a_plan_names_those_that_reach_back_farthest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "TABLE_HOLDS_MAX", 2)
    lake = make_lake()
    journal = await make_table(lake)
    for number in range(4):
        await lake.commit(journal, lake.table("a", f"t{number}"))
        properties = {MIN_VERSIONS: str(3 + number)}
        await lake.commit(journal, UpdateTable(namespace="a", name=f"t{number}", set=properties))
    head = journal.head.version
    plan = await plan_of(journal)
    assert held_of(plan) == [("table", "a.t3", head - 5), ("table", "a.t2", head - 4)]
    assert (plan.wanted, plan.oldest) == (head, head - 5)
    await journal.close()


async def test_the_error_names_all_objects_whose_rules_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_history, "OTHERS_NAMED", 2)
    lake = make_lake()
    journal = await make_table(lake)
    await lake.commit(journal, *(lake.table("a", f"t{number}") for number in range(4)))
    bad = [UpdateTable(namespace="a", name=f"t{number}", set={MIN_VERSIONS: "0"}) for number in range(4)]
    with monkeypatch.context() as patch:  # as a writer of an earlier release did
        patch.setattr(execute, "check_history_rules", lambda operation: None)
        await lake.commit(journal, UpdateNamespace(name="a", set={MAX_AGE: "7d"}), *bad)
    error = await raises(InvalidInput, plan_of(journal))
    assert "which versions namespace a keeps" in error.message
    assert error.message.endswith("; nor is it known of table a.t0, table a.t1 and 2 more")
    await lake.commit(journal, UpdateNamespace(name="a", unset=(MAX_AGE,)), *(undo(each) for each in bad[1:]))
    error = await raises(InvalidInput, plan_of(journal))
    assert "which versions table a.t0 keeps" in error.message
    assert "nor is it known" not in error.message
    await journal.close()


def undo(operation: UpdateTable) -> Operation:
    return UpdateTable(namespace=operation.namespace, name=operation.name, unset=tuple(operation.set))


async def test_what_an_earlier_release_committed_is_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    transaction = lake.transaction(journal, table_rule(age="7d"))
    with monkeypatch.context() as patch:  # as a writer of an earlier release did
        patch.setattr(execute, "check_history_rules", lambda operation: None)
        committed = await journal.commit(transaction)
    for _ in range(2):
        assert (await journal.commit(transaction)).version == committed.version
        await journal.close()
        journal = await lake.open()
    await raises(InvalidInput, lake.commit(journal, table_rule(age="7d")))
    await raises(InvalidInput, journal.save_transaction(lake.transaction(journal, table_rule(age="7d"))))
    await lake.commit(journal, UpdateTable(namespace="a", name="t", set={"owner": "ana"}))
    await journal.close()


async def test_many_different_rules_cost_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that may reach back farthest are searched, and the plan is the same as if all were."""
    monkeypatch.setattr(expiry, "TABLE_HOLDS_MAX", 3)
    lake = make_lake()
    journal = await make_table(lake)
    tables = 40
    ages = [
        UpdateTable(namespace="a", name=f"t{n}", set={MAX_AGE: str(n * HOUR_MILLIS)}) for n in range(tables)
    ]
    await lake.commit(journal, *(lake.table("a", f"t{n}") for n in range(tables)), *ages)
    await lake.commit(journal, table_rule(keep=str(2 * tables - 2)))
    await age(lake, journal, 2 * tables)
    asked = 0
    stat = lake.storage.stat

    async def count(path: str) -> ObjectInfo | None:
        nonlocal asked
        asked += 1
        return await stat(path)

    with monkeypatch.context() as patch:
        patch.setattr(lake.storage, "stat", count)
        plan = await plan_of(journal)
    head = plan.head
    assert held_of(plan) == [
        ("table", "a.t", head - 2 * tables + 3),
        ("table", "a.t39", head - 39),
        ("table", "a.t38", head - 38),
    ]
    assert plan.oldest == head - 2 * tables + 3
    assert asked < 40, "each search takes seven"
    await journal.close()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_large_definitions_let_others_have_their_turn(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    journal = await make_table(lake)
    large = {"text": "x" * (60 << 10)}
    await lake.commit(journal, *(UpdateTable(namespace="a", name="t", set={k: large["text"]}) for k in "ab"))
    for number in range(3):
        await lake.commit(journal, lake.table("a", f"t{number}"))
        await lake.commit(journal, UpdateTable(namespace="a", name=f"t{number}", set=large))
    if in_memory:
        await journal.load_state()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    view = kept_history._View(journal.follower, journal.replay.verified)
    part = await view._read_part(Kind.TABLE, *journal.keys.bounds(Kind.TABLE))
    monkeypatch.setattr(view, "_read_part", lambda *_: asyncio.sleep(0, part))
    other = asyncio.create_task(take_turns())
    seen = [(turns, name.name) async for name, _ in view.each_concerned(Kind.TABLE, whatever=True)]
    other.cancel()
    assert [name for _, name in seen] == ["t", "t0", "t1", "t2"]
    assert len({number for number, _ in seen}) == 4, "each of them had turns before it"
    await journal.close()


async def test_a_page_that_a_tree_in_utf16_order_would_not_have_whole_is_refused() -> None:
    """In the Java SDK's order U+1F600 comes before U+FF61; in ours all tables below it would be passed over."""
    lake = make_lake()
    journal = await lake.create(version_digits=64)
    keys = journal.keys
    first, astral, low, high = (keys.key(fmt.table_name("a", name)) for name in "a\U0001f600\uff61\uff70")
    leaves = Node((first, astral), ("x", "x")), Node((high,), ("x",))
    paths = tuple(fmt.node_path(lake.identities.uuid4()) for _ in leaves)
    for path, leaf in zip(paths, leaves, strict=True):
        data = encode_node(leaf, order=9, created_at_millis=1, size_max=1 << 20, digits=64)
        await lake.storage.put(path, data)
    view = kept_history._View(journal.follower, None)
    view._snapshot.root = Node((low,), ("x",), paths)
    bound = keys.bounds(Kind.TABLE)[1]
    with pytest.raises(Corrupt, match="outside the separators"):
        await view._read_part(Kind.TABLE, Key(astral + "\0"), bound)
    await journal.close()
