"""The symbol list: the same answer from memory and from the tree at any version, also during compactions and
reloads.
"""

from __future__ import annotations

import asyncio
import fnmatch
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, InvalidInput, Unavailable
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.event_filter import pattern_of
from alpheus_journal.model.operations import DropNamespace, DropTable, RenameObject, Transaction
from alpheus_journal.replay import symbols as module
from alpheus_journal.replay.flat import KeyRows, column_of, pack, unpack
from alpheus_journal.replay.symbols import Comparison, SymbolPage, SymbolQuery, Symbols
from alpheus_journal.testing import Lake, raises

KEYS = fmt.Keys(namespace_size_max=8, table_size_max=8, view_size_max=8)
NAMES = ["a", "a.b", "a.b.c", "ab", "b", "ü", "x" * 8]


def names_of(page: SymbolPage) -> list[ObjectName]:
    return [
        ObjectName(group.kind, name)
        if group.kind is Kind.NAMESPACE
        else ObjectName(group.kind, group.namespace, name)
        for group in page.groups
        for name in group.names
    ]


def fits(name: ObjectName, query: SymbolQuery) -> bool:
    """Return whether a name meets the conditions."""
    if query.namespace and name.namespace != query.namespace:
        return False
    glob = fnmatch.translate(query.pattern.replace("[", "[[]"))
    return (
        (query.kind is None or name.kind is query.kind)
        and name.full_name.startswith(query.prefix)
        and (not query.pattern or module.re.fullmatch(glob, name.full_name) is not None)
    )


OBJECT = st.one_of(
    st.builds(fmt.namespace_name, st.sampled_from(NAMES)),
    st.builds(fmt.table_name, st.sampled_from(NAMES), st.sampled_from([*NAMES, "c.b", ".x", ".."])),
    st.builds(ObjectName, st.just(Kind.VIEW), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds(fmt.pipeline_name, st.sampled_from(NAMES)),
)
QUERY = st.builds(
    SymbolQuery,
    kind=st.sampled_from([None, Kind.NAMESPACE, Kind.TABLE, Kind.VIEW, Kind.PIPELINE]),
    namespace=st.sampled_from(["", "", "a", "a.b", "ü", "none"]),
    prefix=st.sampled_from(["", "", "a", "a.", "a.b", "a.b.", "a.b.c", "x" * 8 + ".", "ü.a", "a...", "z"]),
    pattern=st.sampled_from(["", "", "*", "a*", "a.?", "*.a", "?.*b", "a.b.*", "[a]*", "ü*", "**b**"]),
    limit=st.integers(0, 4),
)


@given(st.sets(OBJECT), st.sets(OBJECT), st.lists(QUERY, min_size=1, max_size=4), st.sampled_from([32, 64]))
def test_every_query_over_a_base_and_a_journal(
    base: set[ObjectName], other: set[ObjectName], queries: list[SymbolQuery], digits: int
) -> None:
    keys = fmt.Keys(version_digits=digits, namespace_size_max=8, table_size_max=8, view_size_max=8)
    rows = KeyRows(column_of(sorted(pack(keys.key(name)) for name in base)))
    symbols = Symbols(keys, rows, 0)
    changes = [(keys.key(name), None, "p") for name in other - base] + [
        (keys.key(name), "p", None) for name in base - other
    ]
    symbols.apply(1, sorted(changes))
    for version, living in ((1, other), (0, base)):
        view = symbols.view(version)
        assert view is not None
        assert len(view) == len(living)
        assert list(view.between(Key(""), None)) == sorted(keys.key(name) for name in living)
        for query in queries:
            wanted = [name for name in sorted(living, key=keys.key) if fits(name, query)]
            found: list[ObjectName] = []
            while True:
                page = view.list(query.check())
                assert len(page) <= (query.limit or 10**4)
                found += names_of(page)
                if not page.cursor:
                    break
                query = query.after(page.cursor)
            assert found == wanted


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(NAMES), st.booleans(), max_size=4), st.sampled_from("-csS")
        ),
        max_size=25,
    )
)
def test_any_version_while_it_is_compacted(history: list[tuple[dict[str, bool], str]]) -> None:
    symbols = Symbols(KEYS, KeyRows(column_of([])), 0, journal_max=3)
    living: set[Key] = set()
    versions = [set(living)]
    running, touched = None, set[bytes]()
    for version, (wishes, then) in enumerate(history, 1):
        changes = []
        for name, lives in sorted(wishes.items()):
            key = KEYS.key(fmt.namespace_name(name))
            if lives != (key in living):
                changes.append((key, None if lives else "p", "p" if lives else None))
                living ^= {key}
                touched.add(pack(key))
        symbols.apply(version, changes)
        versions.append(set(living))
        if then == "c":  # the running compaction ends, and a new one begins
            if running is not None:
                symbols.adopt(running, running.run())
            running = symbols.compaction()
        elif then in "sS":  # the state was merged meanwhile, at some version
            of = versions[version // 2] if then == "s" else living
            rows = KeyRows(column_of(sorted(map(pack, of))))
            symbols.share(rows, [(key, unpack(key) in living) for key in touched])
        for at, wanted in enumerate(versions):
            view = symbols.view(at)
            assert view is not None
            assert list(view.between(Key(""), None)) == sorted(wanted)
    assert symbols.view(len(versions)) is None


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HISTORY_MAX", 10)
    symbols = Symbols(KEYS, KeyRows(column_of([])), 0)
    keys = [KEYS.key(fmt.namespace_name(f"n{number:03}")) for number in range(40)]
    for version in range(1, 21):
        symbols.apply(version, [(key, None, "p") for key in keys[2 * version - 2 : 2 * version]])
    assert symbols.oldest == 15
    for version in range(21):
        view = symbols.view(version)
        assert (view is None) == (version < 15)
        assert view is None or len(view) == 2 * version


def test_the_threshold_is_jittered() -> None:
    for jitter, due in ((-1.0, 450), (0.0, 500), (1.0, 550)):
        symbols = Symbols(KEYS, KeyRows(column_of([])), 0, jitter=lambda jitter=jitter: jitter)  # type: ignore[misc]
        for version in range(1, due + 2):
            assert not symbols.wants_compaction
            symbols.apply(version, [(KEYS.key(fmt.namespace_name(f"n{version}")), None, "p")])
        assert symbols.wants_compaction
        done = symbols.compaction()
        symbols.apply(due + 2, [(KEYS.key(fmt.namespace_name("late")), None, "p")])
        assert symbols.adopt(done, done.run())
        assert (symbols.journal_length, symbols.compactions, symbols.wants_compaction) == (1, 1, False)
        assert not symbols.adopt(done, done.run()), "another base came meanwhile"


def test_patterns() -> None:
    assert pattern_of("a.*[x]?").fullmatch("a.b[x]y")
    assert not pattern_of("a.*[x]?").fullmatch("a.bxy")
    assert pattern_of("*" * 4000).fullmatch("x")
    assert not pattern_of("*a" * 2000).fullmatch("a" * 1000 + "b")  # would take forever with backtracking


@pytest.mark.parametrize(
    "query",
    [
        SymbolQuery(kind=Kind.CATALOG), SymbolQuery(limit=-1), SymbolQuery(cursor="a b"), SymbolQuery(cursor=" "),
        SymbolQuery(pattern="*" * 5000), SymbolQuery(prefix="\ud800"),
    ],
)  # fmt: skip
def test_queries_that_no_answer_fits(query: SymbolQuery) -> None:
    with pytest.raises(InvalidInput):
        query.check()


def test_a_comparison_names_what_differs() -> None:
    found = Comparison(KEYS)
    a, b, c = (KEYS.key(fmt.namespace_name(name)) for name in "abc")
    found.add([(a, "1"), (b, "2")], [(a, "1"), (b, "2")])
    found.add([(a, "1"), (b, "2")], [(a, None), (b, None)])
    assert found.differences == 0
    found.add([(a, "1"), (b, "2")], [(b, "3"), (c, "1")])
    drift = found.drift(7, sampled=False)
    assert [[name.namespace for name in names] for names in (drift.missing, drift.surplus, drift.changed)] == [
        ["a"], ["c"], ["b"],
    ]  # fmt: skip
    assert (drift.differences, drift.checked, drift.version) == (3, 6, 7)
    assert drift.text() == "missing: namespace a; surplus: namespace c; changed: namespace b"


# --- in a journal ----------------------------------------------------------------------------------


async def all_symbols(journal: Journal, at: int | None = None, **query: object) -> list[ObjectName]:
    found: list[ObjectName] = []
    asked = SymbolQuery(**query)  # type: ignore[arg-type]
    while True:
        page = await journal.symbols(at, asked)
        found += names_of(page)
        if not page.cursor:
            return found
        at, asked = page.version, asked.after(page.cursor)


@pytest.mark.parametrize("digits", [32, 64])
async def test_memory_and_tree_say_the_same_at_every_version(digits: int) -> None:
    lake = Lake()
    journal = await lake.create(order=4, version_digits=digits)
    journal.replay.symbol_journal_max = 7
    await journal.load_state()
    for name in ("a", "ü", "名𝄞"):
        await lake.commit(journal, lake.namespace(name), *(lake.table(name, f"t{n}") for n in range(6)))
    rename = RenameObject(kind=Kind.TABLE, namespace="ü", name="t1", new_namespace="a", new_name="ß")
    await lake.commit(journal, rename, DropTable(namespace="a", name="t0"))
    await lake.commit(journal, DropNamespace(name="名𝄞", cascade=True))
    await asyncio.gather(*journal.replay._tasks.values())
    assert journal.replay.symbol_compactions > 0
    other = await lake.open()  # without a list in memory: this process reads the tree
    for version in range(journal.head.version + 1):
        for query in (
            {}, {"limit": 3}, {"kind": Kind.TABLE, "limit": 2}, {"namespace": "ü"}, {"prefix": "a.t"},
            {"pattern": "*.t?", "limit": 1}, {"kind": Kind.NAMESPACE},
        ):  # fmt: skip
            assert journal.replay.symbols is not None
            assert journal.replay.symbols.view(version) is not None
            assert await all_symbols(journal, version, **query) == await all_symbols(other, version, **query)
    assert other.replay.symbols is None
    drift, _ = await asyncio.gather(other.check_symbols(), lake.commit(journal, lake.table("a", "new")))
    await other.refresh()  # now the list exists
    assert drift.differences == 0
    assert other.replay.symbols is not None
    assert (await other.check_symbols()).version == journal.head.version
    assert await all_symbols(other) == await all_symbols(journal)


async def test_drift_is_found_named_and_healed_by_a_reload() -> None:
    lake = Lake()
    journal = await lake.create(order=4)
    await lake.commit(journal, lake.namespace("a"), *(lake.table("a", f"t{n:03}") for n in range(200)))
    await journal.load_state()
    assert (await journal.check_symbols(sample=3)).differences == 0
    lost, made_up = fmt.table_name("a", "t000"), fmt.table_name("a", "t000x")
    for sample in (None, 20):
        await journal.load_state()
        symbols = journal.replay.symbols
        assert symbols is not None
        for name, lives in ((lost, False), (made_up, True)):
            symbols._pending[pack(journal.keys.key(name))] = lives
        symbols._view = None
        drift = await journal.check_symbols(sample=sample)
        assert (journal.replay.symbols, journal.state) == (None, None)
        assert (drift.missing, drift.surplus, drift.changed, drift.sampled) == (
            (lost,), (made_up,), (), sample is not None,
        )  # fmt: skip
    assert journal.replay.counts.drift_checks == 3
    assert journal.replay.counts.drifts >= 4
    assert journal.replay.last_drift == drift
    await raises(InvalidInput, journal.check_symbols(sample=0))
    assert journal.replay.invalid_reason
    info = await journal.reload_symbols()
    assert (journal.replay.invalid_reason, journal.state is None) == ("", False)
    assert (info.symbols, info.journal_length, info.version) == (201, 0, 1)
    assert (await journal.check_symbols()).differences == 0


async def test_a_reload_aside_while_readers_list() -> None:
    lake = Lake()
    journal = await lake.create(order=4)
    await lake.commit(journal, lake.namespace("a"), *(lake.table("a", f"t{n:03}") for n in range(60)))
    await journal.load_state()
    ended = False

    async def read() -> int:
        count = 0
        while not ended:
            found = await all_symbols(journal, journal.head.version, kind=Kind.TABLE)
            names = {name.name for name in found}
            assert names >= {f"t{n:03}" for n in range(60)}, "a gap"
            count += 1
            await asyncio.sleep(0)
        return count

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    for number in range(10):
        await asyncio.gather(journal.reload_symbols(), lake.commit(journal, lake.table("a", f"u{number}")))
    cut_short = asyncio.ensure_future(journal.reload_symbols())
    await asyncio.sleep(0)
    cut_short.cancel()
    await asyncio.gather(cut_short, return_exceptions=True)
    ended = True
    assert all(await asyncio.gather(*readers))
    assert len(await all_symbols(journal)) == 71
    assert journal.replay.counts.reloads == 10
    assert (await journal.check_symbols()).differences == 0


async def test_a_compaction_that_fails_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake()
    journal = await lake.create(order=4)
    journal.replay.symbol_journal_max = 5
    await journal.load_state()

    def fail(_: object) -> KeyRows:
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(module.Compaction, "run", fail)
        await lake.commit(journal, *(lake.namespace(f"n{number}") for number in range(8)))
        await asyncio.gather(*journal.replay._tasks.values())
        assert (journal.replay.symbol_compaction_failures, journal.replay.symbol_compactions) == (1, 0)
        error = await raises(Unavailable, journal.compact_symbols())
        assert "no room" in error.message
    assert len(await all_symbols(journal)) == 8
    info = await journal.compact_symbols()
    assert (info.failures, info.compactions, info.journal_length) == (2, 1, 0)
    assert "no room" in info.last_failure
    assert (await journal.check_symbols()).differences == 0


async def test_no_symbol_is_lost_by_writers_and_compactions_at_once(
    lane_count: Callable[[int, int], int],
) -> None:
    writers_count, compactions = lane_count(4, 10), lane_count(15, 100)
    lake = Lake()
    first = await lake.create()
    await lake.commit(first, lake.namespace("a"))
    journals = [first, *[await lake.open() for _ in range(writers_count - 1)]]
    for journal in journals:
        journal.replay.symbol_journal_max = 3
        await journal.load_state()
    living = {"a"}
    left = compactions

    async def write(journal: Journal, number: int) -> None:
        rng = random.Random(number)
        mine: list[str] = []
        while left > 0 or not mine:
            name = f"w{number}-{rng.randrange(10**9)}"
            operations = [lake.table("a", name)]
            dropped = mine.pop(rng.randrange(len(mine))) if mine and rng.random() < 0.3 else None
            every = [*operations, *([DropTable(namespace="a", name=dropped)] if dropped else [])]
            await journal.refresh()
            transaction = Transaction(
                id=lake.identities.uuid7(), begin_version=journal.head.version, operations=tuple(every)
            )
            try:
                await journal.commit(transaction)
            except Conflict:
                if dropped:
                    mine.append(dropped)
                continue
            mine.append(name)
            living.add(name)
            living.discard(dropped or "")
            await asyncio.sleep(0)

    async def compact() -> None:
        nonlocal left
        rng = random.Random(99)
        while left > 0:
            before = [journal.replay.symbol_compactions for journal in journals]
            await asyncio.gather(*(journal.compact_symbols() for journal in rng.sample(journals, 2)))
            left -= sum(journal.replay.symbol_compactions for journal in journals) - sum(before)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number, journal in enumerate(journals):
            tasks.create_task(write(journal, number))
        tasks.create_task(compact())
    for journal in journals:
        await journal.refresh()
        await asyncio.gather(*journal.replay._tasks.values())
        assert {name.name or name.namespace for name in await all_symbols(journal)} == living
        assert (await journal.check_symbols()).differences == 0
        assert journal.replay.symbol_compaction_failures == 0
        await journal.replay.close()
