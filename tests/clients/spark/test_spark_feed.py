"""Changes of tables, and streams of them, without a Spark session.

The tests read logs, plan batches, and run tasks as Spark would.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

import alpheus
from alpheus.errors import Expired, InvalidInput, NotFound, Unavailable
from alpheus.feed import former_names, log
from alpheus.feed.change_sets import ChangeReader
from alpheus.feed.former_names import name_at
from alpheus.feed.log import follow
from alpheus.feed.past import RowHistory, lasting_changes
from alpheus.feed.stream_position import StreamPosition, StreamTerms, position_of
from alpheus.feed.table_range import range_of
from alpheus.feed.table_stream import Slice, TableStream
from alpheus.feed.trail import TableTrail
from alpheus.rows.manifest_files import FileLists
from alpheus.spark.streams.layout import Layout, feed_schema, parts_of, read_part
from alpheus.spark.streams.source import AlpheusSource
from alpheus.sync.portal import run

SCHEMA = pa.schema([pa.field("id", pa.int64())])
_numbers = itertools.count()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def catalog() -> Iterator[alpheus.Catalog]:
    with fresh() as catalog:
        yield catalog


def fresh() -> alpheus.Catalog:
    catalog = alpheus.create(f"memory://feeds-{next(_numbers)}")
    catalog.create_namespace("s")
    catalog.create_table("s.t", SCHEMA)
    return catalog


def read(catalog: alpheus.Catalog, slices: Sequence[Slice], name: str = "s.t") -> list[dict[str, Any]]:
    """Return the change rows that the tasks of a batch give."""
    table = catalog.load_table(name)
    layout = Layout(table, "changes", feed_schema(table, "changes"))
    return [
        row
        for part in parts_of(slices)
        for batch in read_part(part, catalog.storage().url, table.definition, layout)
        for row in batch.to_pylist()
    ]


def changed(
    catalog: alpheus.Catalog, after: Any = None, until: Any = None, name: str = "s.t"
) -> list[tuple[str, int, int]]:
    """Return (change type, id, version) of each change, sorted within each version."""
    asked = range_of(catalog, name, after, until)
    storage = catalog.storage()
    reader = ChangeReader(storage, FileLists(storage, run), asked.table.id, dict)
    steps = follow(catalog, asked.start_trail(), asked.after, asked.until)
    sets = [one for _, changes in steps for change in changes for one in reader.read(change)]
    found = read(catalog, [Slice(one, 0, len(one.files)) for one in sets], name)
    return [(row["_change_type"], row["id"], row["_commit_version"]) for row in found]


def stream_of(catalog: alpheus.Catalog, **terms: Any) -> TableStream:
    table = catalog.load_table(terms.get("table", "s.t"))
    return TableStream(
        catalog,
        StreamTerms(**({"table": "s.t"} | terms)),
        table,
        table.columns,
        hold_seconds=0.0,
    )


def drained(
    catalog: alpheus.Catalog,
    stream: TableStream,
    start: StreamPosition | None = None,
    files: int | None = None,
    name: str = "s.t",
) -> tuple[list[list[int]], StreamPosition]:
    """Return the ids of each batch until nothing is new, and the position where that ends."""
    position = StreamPosition() if start is None else start
    batches = []
    while (end := stream.latest(position, files, None)) != position:
        # The position goes through JSON, as in Spark.
        position, begin = position_of(json.loads(json.dumps(end.to_offset()))), position
        batches.append([row["id"] for row in read(catalog, stream.plan(begin, position), name)])
    return batches, position


# --- the log ---------------------------------------------------------------------------------------


def test_appends_and_overwrites_come_in_order_and_are_not_netted(catalog: alpheus.Catalog) -> None:
    first = catalog.append("s.t", rows(1, 2)).version
    with catalog.transaction() as tx:
        tx.append("s.t", rows(3))
        tx.overwrite("s.t", rows(4))
    assert tx.result is not None
    second = tx.result.version
    assert changed(catalog) == [
        ("insert", 1, first), ("insert", 2, first), ("insert", 3, second), ("delete", 1, second),
        ("delete", 2, second), ("delete", 3, second), ("insert", 4, second),
    ]  # fmt: skip
    assert changed(catalog, first, second)[0] == ("insert", 3, second)
    assert changed(catalog, second) == []


def test_a_restore_and_an_undrop_give_what_differs(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    before = catalog.append("s.t", rows(2)).version
    catalog.append("s.t", rows(3))
    head = catalog.version()
    restored = catalog.restore_table("s.t", before).version
    assert changed(catalog, head) == [("delete", 3, restored)]
    catalog.drop_table("s.t")
    again = catalog.undrop("s.t", at=before - 1).version
    assert changed(catalog, restored) == [("delete", 2, again)]


def test_a_table_is_followed_under_its_names(catalog: alpheus.Catalog) -> None:
    first = catalog.append("s.t", rows(1)).version
    catalog.rename_table("s.t", "s.u")
    second = catalog.append("s.u", rows(2)).version
    catalog.create_table("s.t", rows(100))  # another table of this name
    catalog.append("s.t", rows(101))
    with catalog.transaction() as tx:
        tx.append("s.u", rows(3))
        tx.rename_table("s.u", "s.v")
        tx.append("s.v", rows(4))
    assert tx.result is not None
    third = tx.result.version
    catalog.drop_table("s.v")
    catalog.undrop("s.v", as_name="s.w")
    fourth = catalog.append("s.w", rows(5)).version
    expected = [
        ("insert", 1, first), ("insert", 2, second), ("insert", 3, third), ("insert", 4, third), ("insert", 5, fourth),
    ]  # fmt: skip
    assert changed(catalog, name="s.w") == expected
    assert changed(catalog, 1, name="s.w") == expected
    assert changed(catalog, first, name="s.w") == expected[1:]
    with pytest.raises(InvalidInput, match="was another table"):
        changed(catalog, 2)
    assert [row[:2] for row in changed(catalog, 1)] == [("insert", 100), ("insert", 101)]


def test_a_table_that_came_back_from_before_a_rename(catalog: alpheus.Catalog) -> None:
    old = catalog.append("s.t", rows(1)).version
    catalog.rename_table("s.t", "s.u")
    middle = catalog.append("s.u", rows(2)).version
    gone = catalog.drop_table("s.u").version
    catalog.create_table("s.w", rows(7))
    catalog.drop_table("s.w")
    catalog.undrop("s.w")  # another table
    back = catalog.undrop("s.t", at=old).version
    last = catalog.append("s.t", rows(3)).version
    after = [("delete", 2, back), ("insert", 3, last)]
    assert changed(catalog, middle) == after
    assert changed(catalog, old) == [("insert", 2, middle), *after]
    assert name_at(catalog, "s.t", middle, last) == "s.u"
    assert changed(catalog, gone) == [("insert", 1, back), ("insert", 3, last)]  # the table did not exist


def test_a_table_that_came_back_in_another_namespace(catalog: alpheus.Catalog) -> None:
    first = catalog.append("s.t", rows(1)).version
    catalog.drop_namespace("s", cascade=True)
    catalog.undrop("s", as_name="z")
    last = catalog.append("z.t", rows(2)).version
    assert changed(catalog, first, name="z.t") == [("insert", 2, last)]


def test_a_namespace_that_went_and_came_back(catalog: alpheus.Catalog) -> None:
    first = catalog.append("s.t", rows(1)).version
    catalog.drop_namespace("s", cascade=True)
    catalog.undrop("s")
    second = catalog.append("s.t", rows(2)).version
    assert changed(catalog) == [("insert", 1, first), ("insert", 2, second)]


def test_a_table_dropped_and_made_anew_is_an_error(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    old = catalog.version()
    catalog.drop_table("s.t")
    gone = catalog.version()
    catalog.create_table("s.t", rows(2))
    with pytest.raises(InvalidInput, match="was another table") as error:
        changed(catalog, old)
    assert error.value.kind == "table_replaced"
    assert [row[:2] for row in changed(catalog, gone)] == [("insert", 2)]
    assert [row[:2] for row in changed(catalog)] == [("insert", 2)]


def test_ranges_that_are_none(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    with pytest.raises(NotFound, match="no version 99"):
        changed(catalog, 0, 99)
    with pytest.raises(NotFound, match="no version 99"):
        changed(catalog, 99)
    for after, until in ((3, 2), (2, 1)):  # in the second case the table did not exist yet
        with pytest.raises(InvalidInput, match=f"version {after}, until=.* the earlier version {until}"):
            changed(catalog, after, until)
    with pytest.raises(NotFound):
        changed(catalog, 0, 1)
    created = catalog.at(2).info.created_at
    assert changed(catalog, created.isoformat()) == changed(catalog, 2)


def test_changes_of_some_rows(catalog: alpheus.Catalog) -> None:
    """Changes of some rows come from predicates, rewrites and change files, even if a predicate's column is gone."""
    catalog.update_table("s.t", add_columns={"n": pa.string()})
    catalog.append("s.t", pa.table({"id": [1, 2, 3, 4], "n": ["a", None, "c", "d"]}))
    head = catalog.version()
    catalog.delete("s.t", "n = 'a'")
    catalog.delete("s.t", "id = 4", mode="rewrite")
    catalog.update("s.t", {"id": 20}, "n IS NULL")
    catalog.merge("s.t", pa.table({"id": [3, 5], "n": ["cc", "e"]}), on=["id"])
    expected = [
        ("delete", 1, head + 1), ("delete", 4, head + 2), ("update_preimage", 2, head + 3),
        ("update_postimage", 20, head + 3), ("update_preimage", 3, head + 4), ("update_postimage", 3, head + 4),
        ("insert", 5, head + 4),
    ]  # fmt: skip
    assert changed(catalog, head) == expected
    catalog.update_table("s.t", drop_columns=["n"])
    assert changed(catalog, head) == expected
    last = catalog.version()
    assert changed(catalog, last) == []
    before = catalog.read("s.t", at=head + 2)["id"].to_pylist()
    catalog.restore_table("s.t", head + 2)
    balance = Counter(catalog.read("s.t", at=last)["id"].to_pylist())
    for change_type, id, _ in changed(catalog, last):
        balance[id] += SIGNS[change_type]
    assert (+balance, -balance) == (Counter(before), Counter())


def test_a_stream_of_appends_passes_over_compactions_and_not_over_updates(catalog: alpheus.Catalog) -> None:
    for n in range(3):
        catalog.append("s.t", rows(n))
    assert catalog.compact("s.t").version == catalog.version() == 6
    catalog.append("s.t", rows(3))
    stream = stream_of(catalog, start=2)
    batches, position = drained(catalog, stream)
    assert batches == [[], [0, 1, 2, 3]]
    updated = catalog.update("s.t", {"id": 9}, "id = 1").version
    catalog.append("s.t", rows(4))
    with pytest.raises(InvalidInput, match=f"version {updated} overwrote the table or removed rows"):
        stream.latest(position, None, None)
    assert drained(catalog, stream_of(catalog, on_delete="skip"), position)[0] == [[4]]
    assert sorted(drained(catalog, stream_of(catalog))[0][0]) == [0, 2, 3, 4, 9]


def test_a_stream_of_appends_passes_over_a_restore_across_a_compaction(catalog: alpheus.Catalog) -> None:
    """A stream of appends passes over a restore of the same rows in other files.

    A restore that removes rows ends the stream.
    """
    catalog.append("s.t", rows(1))
    old = catalog.append("s.t", rows(2)).version
    _, position = drained(catalog, stream_of(catalog))
    catalog.compact("s.t")
    catalog.restore_table("s.t", old)
    catalog.rename_table("s.t", "s.u")
    last = catalog.append("s.u", rows(3)).version
    stream = stream_of(catalog, table="s.u")
    assert drained(catalog, stream, position, name="s.u")[0] == [[3]]
    catalog.compact("s.u")
    catalog.drop_table("s.u")
    catalog.undrop("s.u", at=last, as_name="s.w")
    catalog.append("s.w", rows(4))
    assert drained(catalog, stream_of(catalog, table="s.w"), position, name="s.w")[0] == [[3, 4]]
    before = catalog.version()
    with catalog.transaction() as tx:
        tx.append("s.w", rows(5))
        tx.restore_table("s.w", before)
    assert tx.result is not None
    with pytest.raises(
        InvalidInput, match=f"version {tx.result.version} overwrote the table or removed rows"
    ):
        drained(catalog, stream_of(catalog, table="s.w"), position, name="s.w")


def test_a_view_that_binds_is_no_change_of_rows(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    head = catalog.version()
    catalog.create_view("s.v", "SELECT 1", references=["s.t"], schema_binding=True)
    catalog.update_table("s.t", set={"a": "b"})
    assert changed(catalog, head) == []


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append",
                "append",
                "overwrite",
                "restore",
                "undrop",
                "return",
                "rename",
                "both",
                "delete",
                "update",
                "compact",
            ]
        ),
        st.integers(0, 6),
    ),
    max_size=9,
)


def called(catalog: alpheus.Catalog, table_id: str, at: int) -> str:
    """Return the name of a table at a version, or "" if it did not exist."""
    then = catalog.at(at)
    tables = [then.load_table(each) for each in then.list_tables("s")]
    return next((table.full_name for table in tables if table.id == table_id), "")


def act(catalog: alpheus.Catalog, name: str, verb: str, number: int, ids: Iterator[int]) -> str:
    """Do one step of a table's life, and return its name afterwards."""
    match verb:
        case "append":
            catalog.append(name, rows(*itertools.islice(ids, number)))
        case "overwrite":
            catalog.overwrite(name, rows(*itertools.islice(ids, number)))
        case "restore" | "undrop":
            at = max(2, catalog.version() - number)
            if not catalog.at(at).table_exists(name):
                at = catalog.version()
            if verb == "restore":
                catalog.restore_table(name, at)
            else:
                catalog.drop_table(name)
                catalog.undrop(name, at)
        case "return":  # back to its old state and its old name
            at = max(2, catalog.version() - number)
            former = called(catalog, catalog.load_table(name).id, at)
            catalog.drop_table(name)
            if former:
                catalog.undrop(former, at)
                return former
            renamed = f"s.t{next(ids)}"
            catalog.undrop(name, as_name=renamed)
            return renamed
        case "rename":
            renamed = f"s.t{next(ids)}"
            catalog.rename_table(name, renamed)
            return renamed
        case "both":
            with catalog.transaction() as tx:
                tx.append(name, rows(next(ids)))
                tx.overwrite(name, rows(*itertools.islice(ids, number)))
                tx.append(name, rows(next(ids)))
        case "delete":
            catalog.delete(name, f"id > {number * 3}")
        case "update":
            catalog.update(name, {"id": next(ids)}, f"id < {number * 3}")
        case "compact":
            catalog.compact(name)
    return name


SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@given(OPERATIONS, st.integers(0, 9), st.integers(1, 3))
def test_what_came_and_went_is_the_difference(
    operations: list[tuple[str, int]], begin: int, files: int
) -> None:
    """Rows at one version plus the changes since are the rows of any later version.

    A stream in small batches gives the same rows, whichever reader plans a batch.
    """
    with fresh() as catalog:
        ids = itertools.count(1)
        name = "s.t"
        for verb, number in operations:
            name = act(catalog, name, verb, number, ids)
        head = catalog.version()
        begin = min(2 + begin, head)
        former = name_at(catalog, name, begin, head)
        balance: Counter[int] = Counter()
        there = called(catalog, catalog.load_table(name).id, begin)
        assert there in ("", former)
        if there:  # not between a drop and its undrop
            balance += Counter(catalog.read(former, at=begin)["id"].to_pylist())
        found = changed(catalog, begin, name=name)
        for change_type, id, _ in found:
            balance[id] += SIGNS[change_type]
        assert +balance == Counter(catalog.read(name)["id"].to_pylist())
        assert not -balance
        assert [version for *_, version in found] == sorted(version for *_, version in found)

        stream = stream_of(catalog, table=name, start=begin, changes=True)
        position = StreamPosition()
        streamed = []
        while (end := stream.latest(position, files, None)) != position:
            slices = stream.plan(position, end)
            again = stream_of(catalog, table=name, start=begin, changes=True)
            assert again.plan(position, end) == slices
            assert sum(each.stop - each.start for each in slices) <= files
            streamed += read(catalog, slices, name)
            position = end
        assert [(r["_change_type"], r["id"], r["_commit_version"]) for r in streamed] == found


@given(OPERATIONS, st.integers(0, 9))
def test_what_came_in_and_stayed_is_the_difference_to_those_who_only_append(
    operations: list[tuple[str, int]], begin: int
) -> None:
    """Rows at one version plus the lasting appends since are the rows of a later version, unless rows were removed.

    Where the table only goes back to states since the begin version, no change reports removed rows.
    """
    with fresh() as catalog:
        ids = itertools.count(1)
        name = "s.t"
        first = catalog.append(name, rows(next(ids))).version
        begin += first
        is_plain = True
        for verb, number in operations:
            before = catalog.version()
            if verb in ("overwrite", "both", "delete", "update"):
                is_plain &= before < begin
            if verb in ("restore", "undrop", "return"):
                is_plain &= before < begin or before - number >= begin
            name = act(catalog, name, verb, number, ids)
        head = catalog.version()
        begin = min(begin, head)
        asked = range_of(catalog, name, begin, head)
        if not asked.exists:
            return
        steps = follow(catalog, asked.start_trail(), begin, head)
        found = [change for _, changes in steps for change in changes]
        id = asked.table.id
        past = RowHistory(catalog, id, name, head)
        kept = lasting_changes(found, begin, lambda v: past.had_same_rows(v, begin))
        storage = catalog.storage()
        reader = ChangeReader(storage, FileLists(storage, run), id, dict)
        sets = [one for change in kept for one in reader.read(change)]
        if any(one.change_type != "insert" for one in sets):
            assert not is_plain
            return
        came = [row["id"] for row in read(catalog, [Slice(one, 0, len(one.files)) for one in sets], name)]
        there = catalog.read(asked.name, at=begin)["id"].to_pylist()
        assert sorted(there + came) == sorted(catalog.read(name)["id"].to_pylist())


@settings(max_examples=40)
@given(OPERATIONS, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_the_past_knows_when_a_table_had_the_same_rows(
    operations: list[tuple[str, int]], asked: list[tuple[int, int]]
) -> None:
    """The history of rows knows when a table had the same rows.

    The test compares with a list of the state at each version.
    """
    with fresh() as catalog:
        ids = itertools.count(1)
        name = "s.t"
        states = dict.fromkeys(range(catalog.version() + 1), 0)
        for verb, number in [*operations, ("append", 1)]:
            before = catalog.version()
            goes_back = max(2, before - number)
            if verb in ("restore", "undrop") and not catalog.at(goes_back).table_exists(name):
                goes_back = before
            if verb == "return" and not called(catalog, catalog.load_table(name).id, goes_back):
                goes_back = before
            name = act(catalog, name, verb, number, ids)
            after = catalog.version()
            # also while the table was dropped
            states |= dict.fromkeys(range(before + 1, after), states[before])
            if verb in ("restore", "undrop", "return"):
                states[after] = states[goes_back]
            elif verb in ("rename", "compact") or after == before:
                states[after] = states[before]
            else:
                states[after] = after
        head = catalog.version()
        id = catalog.load_table(name).id
        past = RowHistory(catalog, id, name, head)
        for older, newer in sorted(asked, key=lambda pair: pair[1]):
            newer = min(2 + newer, head)
            older = min(2 + older, newer)
            expected = states[older] == states[newer]
            if called(catalog, id, older):
                assert past.had_same_rows(older, newer) == expected
                assert RowHistory(catalog, id, name, head).had_same_rows(older, newer) == expected
            if expected and (then := called(catalog, id, newer)) and (first := called(catalog, id, older)):
                rows_then = catalog.read(then, at=newer)["id"].to_pylist()
                assert sorted(rows_then) == sorted(catalog.read(first, at=older)["id"].to_pylist())


class Read:
    """A catalog that counts how often each version's events are read, and forgets the events up to `gone`."""

    def __init__(self, catalog: alpheus.Catalog) -> None:
        self._catalog = catalog
        self.gone = 0
        self.followed: Counter[int] = Counter()
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def at(self, when: Any) -> Any:
        if isinstance(when, int) and when <= self.gone:
            raise Expired(f"version {when} is not kept", oldest=self.gone + 1)
        return self._catalog.at(when)

    def read_events(self, after: int, until: int, **options: Any) -> Any:
        if after < self.gone:
            raise Expired(f"version {after + 1} is not kept", oldest=self.gone + 1)
        self.calls += 1
        if "names" in options:
            self.followed.update(range(after + 1, until + 1))
        return log.read_events(self._catalog, after=after, until=until, **options)


@pytest.fixture
def asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a catalog of this module, which counts or forgets events, read its events itself."""

    original = log.read_events

    def read_events(catalog: Any, **options: Any) -> Any:
        return getattr(type(catalog), "read_events", original)(catalog, **options)

    monkeypatch.setattr(log, "read_events", read_events)
    monkeypatch.setattr(former_names, "read_events", read_events)


@pytest.mark.usefixtures("asked_itself")
def test_states_that_go_back_to_states_that_went_back_are_read_once(catalog: alpheus.Catalog) -> None:
    for number in range(2):
        catalog.append("s.t", rows(number))
    first = catalog.version()
    for _ in range(40):
        catalog.restore_table("s.t", catalog.version() - 1)  # to the state before the last restore
    head = catalog.version()
    table = catalog.load_table("s.t")
    seen: Any = Read(catalog)
    past = RowHistory(seen, table.id, "s.t", head)
    assert past.had_same_rows(head - 2, head)
    assert not past.had_same_rows(head - 1, head)
    assert past.had_same_rows(first, head)
    assert not past.had_same_rows(first - 1, head)
    assert set(seen.followed.values()) == {1}
    assert seen.calls <= 2 * (head - first + 2)
    # A restore to a version that has expired gives the rows of no known version.
    seen.gone = first + 10
    past = RowHistory(seen, table.id, "s.t", head)
    assert not past.had_same_rows(first + 8, head)
    assert past.had_same_rows(head, head)
    assert not past.had_same_rows(first + 11, head)
    assert past.had_same_rows(first + 12, head)


@pytest.mark.usefixtures("asked_itself")
def test_a_stream_asks_for_the_past_once_and_only_where_it_matters(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    catalog.append("s.t", rows(2))
    for _ in range(20):
        catalog.compact("s.t")
        catalog.restore_table("s.t", max(4, catalog.version() - 5))
    begin = catalog.version()
    for _ in range(10):
        catalog.compact("s.t")
        catalog.restore_table("s.t", catalog.version() - 5)
    table = catalog.load_table("s.t")
    for on_delete, most in (("skip", 3), ("fail", 3 + 2 * 31)):
        seen: Any = Read(catalog)
        terms = StreamTerms(table="s.t", start=begin, on_delete=on_delete)  # type: ignore[arg-type]
        stream = TableStream(seen, terms, table, table.columns, hold_seconds=0.0)
        stream.latest(stream.latest(StreamPosition(), None, None), None, None)
        assert max(seen.followed.values()) <= 2
        assert seen.calls <= most, on_delete


def test_a_trail_tells_another_table_from_its_own(catalog: alpheus.Catalog) -> None:
    own = catalog.load_table("s.t").id
    catalog.append("s.t", rows(1))
    catalog.drop_table("s.t")
    catalog.create_table("s.x", rows(2))
    catalog.rename_table("s.x", "s.t")
    catalog.overwrite("s.t", rows(3))
    trail = TableTrail("s.t", own)
    found = [c for _, changes in follow(catalog, trail, 2, catalog.version()) for c in changes]
    assert ([change.version for change in found], trail.exists, trail.dropped_version) == ([3], False, 4)
    catalog.rename_table("s.t", "s.x")
    catalog.undrop("s.t", at=3)
    catalog.append("s.t", rows(4))
    assert changed(catalog, 2) == [("insert", 1, 3), ("insert", 4, catalog.version())]


# --- streams ---------------------------------------------------------------------------------------


def test_a_snapshot_and_then_what_comes(catalog: alpheus.Catalog) -> None:
    for n in range(5):
        catalog.append("s.t", rows(n))
    stream = stream_of(catalog)
    batches, position = drained(catalog, stream, files=2)
    assert batches == [[0, 1], [2, 3], [4]]
    assert stream.latest(position, None, None) == position
    catalog.append("s.t", rows(5))
    catalog.create_namespace("elsewhere")
    batches, position = drained(catalog, stream, position)
    assert batches == [[5]]
    assert position.version == catalog.version()


def test_the_first_batch_can_be_planned_again(catalog: alpheus.Catalog) -> None:
    """The first batch can be planned again, when Spark asks for the beginning again after more was committed."""
    catalog.append("s.t", rows(1))
    ends = {
        start: stream_of(catalog, start=start).latest(StreamPosition(), None, None)
        for start in ("snapshot", "now")
    }
    whole = stream_of(catalog, start=0 + catalog.version() - 1).latest(StreamPosition(), None, None)
    catalog.append("s.t", rows(2))
    for start, expected in (("snapshot", [1]), ("now", [])):
        stream = stream_of(catalog, start=start)
        assert [r["id"] for r in read(catalog, stream.plan(StreamPosition(), ends[start]))] == expected
        assert drained(catalog, stream, ends[start])[0] == [[2]]
    assert drained(catalog, stream_of(catalog), whole)[0] == [[1, 2]]


def test_what_removes_rows_fails_or_is_passed_over(catalog: alpheus.Catalog) -> None:
    catalog.overwrite("s.t", rows(1))  # of an empty table: no row is removed
    catalog.append("s.t", rows(2))
    overwritten = catalog.overwrite("s.t", rows(3)).version
    catalog.append("s.t", rows(4))
    assert drained(catalog, stream_of(catalog, start=2, on_delete="skip"))[0] == [[], [1, 2, 4]]
    stream = stream_of(catalog, start=2)
    position = stream.latest(StreamPosition(), None, None)
    with pytest.raises(InvalidInput, match=f"version {overwritten} overwrote the table"):
        stream.latest(position, None, None)
    [_, all_rows] = drained(catalog, stream_of(catalog, start=2, changes=True))[0]
    assert all_rows == [1, 2, 1, 2, 3, 4]


def test_versions_bound_a_batch(catalog: alpheus.Catalog) -> None:
    for n in range(5):
        catalog.append("s.t", rows(n))
    stream = stream_of(catalog, start=2)
    position = stream.latest(StreamPosition(), None, 2)
    sizes = []
    while (end := stream.latest(position, None, 2)) != position:
        sizes.append(len(stream.plan(position, end)))
        position = end
    assert sizes == [2, 2, 1]


def test_a_run_ends_at_the_head_that_it_began_with(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    stream = stream_of(catalog, start=2)
    stream.pin_head()
    catalog.append("s.t", rows(2))
    batches, position = drained(catalog, stream)
    assert batches == [[], [1]]
    for _ in range(3):
        catalog.create_namespace(f"n{next(_numbers)}")
    later = stream_of(catalog)
    later.pin_head()
    assert drained(catalog, later, position) == (
        [[2]],
        StreamPosition(catalog.version(), 0, position.table_id),
    )
    assert drained(catalog, later, StreamPosition(catalog.version(), 0, position.table_id))[0] == []


def test_a_position_without_news_moves_on_in_the_end(catalog: alpheus.Catalog) -> None:
    clock = itertools.count(0, 400)
    table = catalog.load_table("s.t")
    stream = TableStream(
        catalog,
        StreamTerms(table="s.t", start="now"),
        table,
        table.columns,
        monotonic=lambda: float(next(clock)),
        hold_seconds=0.0,
    )
    position = stream.latest(StreamPosition(), None, None)
    catalog.create_namespace("elsewhere")
    moved = stream.latest(position, None, None)
    assert moved == StreamPosition(catalog.version(), 0, table.id)
    assert stream.plan(position, moved) == []


def test_other_columns_end_a_stream_and_it_goes_on_with_them(catalog: alpheus.Catalog) -> None:
    stream = stream_of(catalog)
    _, position = drained(catalog, stream)
    catalog.update_table("s.t", rename_columns={"id": "number"}, set={"a": "b"})
    catalog.append("s.t", pa.table({"number": [1]}))
    end = stream.latest(position, None, None)
    catalog.update_table("s.t", add_columns={"note": pa.string()})
    altered = catalog.version()
    catalog.append("s.t", pa.table({"number": [2], "note": ["x"]}))
    with pytest.raises(InvalidInput, match=f"at version {altered} table s.t has other columns"):
        stream.latest(end, None, None)
    catalog.update_table("s.t", rename_columns={"number": "id"})
    again = stream_of(catalog)
    assert drained(catalog, again, position)[0] == [[1, 2]]
    [row] = read(catalog, again.plan(end, again.latest(end, None, None)))
    assert (row["id"], row["note"]) == (2, "x")


def test_a_dropped_table_ends_a_stream_and_a_new_one_is_refused(catalog: alpheus.Catalog) -> None:
    stream, late = stream_of(catalog), stream_of(catalog)
    _, position = drained(catalog, stream)
    catalog.append("s.t", rows(1))
    catalog.drop_table("s.t")
    gone = catalog.version()
    end = stream.latest(position, None, None)
    assert len(stream.plan(position, end)) == 1, "what was committed before comes first"
    with pytest.raises(NotFound, match=f"was dropped by version {gone}"):
        stream.latest(end, None, None)
    catalog.create_table("s.t", rows(5))
    for moment in (position, end):
        with pytest.raises(InvalidInput, match=" has id ") as error:
            stream_of(catalog).latest(moment, None, None)
        assert error.value.kind == "table_replaced"
        with pytest.raises(InvalidInput, match=" has id "):
            stream_of(catalog).plan(position, moment)
    with pytest.raises(InvalidInput, match="dropped and created again"):
        late.latest(StreamPosition(), None, None)
    catalog.drop_table("s.t")
    catalog.undrop("s.t", at=gone - 1)
    assert drained(catalog, stream_of(catalog), position)[0] == [[1]]


def test_a_rename_is_followed(catalog: alpheus.Catalog) -> None:
    stream = stream_of(catalog, start="now")
    _, position = drained(catalog, stream)
    catalog.append("s.t", rows(1))
    catalog.rename_table("s.t", "s.u")
    catalog.append("s.u", rows(2))
    end = stream.latest(position, None, None)
    assert [row["id"] for row in read(catalog, stream.plan(position, end), "s.u")] == [1, 2]
    again = stream_of(catalog, table="s.u")
    assert [row["id"] for row in read(catalog, again.plan(position, end), "s.u")] == [1, 2]


def test_a_renamed_table_is_found_again_by_its_id(catalog: alpheus.Catalog) -> None:
    stream = stream_of(catalog, start="now")
    _, position = drained(catalog, stream)
    catalog.append("s.t", rows(1))
    catalog.rename_table("s.t", "s.u")
    end = stream.latest(position, None, None)
    assert [row["id"] for row in read(catalog, stream.plan(position, end), "s.u")] == [1]
    catalog.create_table("s.t", rows(100))  # another table of this name
    catalog.append("s.u", rows(2))
    stream._forget()  # an outage causes this
    last = stream.latest(end, None, None)
    assert [row["id"] for row in read(catalog, stream.plan(end, last), "s.u")] == [2]
    catalog.rename_table("s.u", "s.v")
    again = stream_of(catalog, table="s.v")
    assert [row["id"] for row in read(catalog, again.plan(position, last), "s.v")] == [1, 2]


def test_the_rest_of_a_snapshot_comes_before_a_head(catalog: alpheus.Catalog) -> None:
    for number in range(4):
        catalog.append("s.t", rows(number))
    stream = stream_of(catalog)
    middle = stream.latest(StreamPosition(), 1, None)
    given = [row["id"] for row in read(catalog, stream.plan(StreamPosition(), middle))]
    again = stream_of(catalog)
    head = again.head()
    assert head.version == middle.version
    rest = [row["id"] for row in read(catalog, again.plan(middle, head))]
    assert (len(given), sorted(given + rest)) == (1, [0, 1, 2, 3])
    catalog.append("s.t", rows(4))
    later = again.head()
    assert [row["id"] for row in read(catalog, stream_of(catalog).plan(middle, later))] == [*rest, 4]
    assert [row["id"] for row in read(catalog, again.plan(head, later))] == [4]


def test_a_query_that_is_started_again_under_an_old_name(tmp_path: Path) -> None:
    """A query that restarts under an old table name finds its table.

    Spark makes the frame before it looks at the checkpoint: the source and the reader are tried one after the other.
    """
    url = f"file://{tmp_path}/lake"

    def reader(name: str) -> DataSourceStreamReader:
        source = AlpheusSource({"catalog": url, "table": name})
        schema = source.schema()
        assert isinstance(schema, StructType)
        return source.streamReader(schema)

    def batch(name: str, begin: dict[str, Any] | None = None) -> tuple[list[int], dict[str, Any]]:
        found = reader(name)
        try:
            start = found.initialOffset() if begin is None else begin
            end = found.latestOffset(start)
            batches = [each for part in found.partitions(start, end) for each in found.read(part)]
            return [row["id"] for each in batches for row in each.to_pylist()], end
        finally:
            found.stop()

    with alpheus.create(url) as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", rows(1))
        assert batch("s.t")[0] == [1]
        end = batch("s.t")[1]
        catalog.rename_table("s.t", "s.u")
        catalog.append("s.u", rows(2))
        assert batch("s.t", end)[0] == batch("s.u", end)[0] == [2]
        catalog.drop_table("s.u")
        catalog.undrop("s.u", as_name="s.w")
        catalog.append("s.w", rows(3))
        assert batch("s.u", end)[0] == [2, 3]
        # Other queries cannot use a name of the past.
        with pytest.raises(NotFound, match=r"no table s\.t: it is called s\.w now"):
            batch("s.t")
        source = AlpheusSource({"catalog": url, "table": "s.t"})
        schema = source.schema()
        assert isinstance(schema, StructType)
        with pytest.raises(NotFound, match=r"it is called s\.w now"):
            source.reader(schema)
        with pytest.raises(NotFound):
            source.streamWriter(schema, False)
        with pytest.raises(NotFound):
            AlpheusSource({"catalog": url, "table": "s.t", "at": str(catalog.version())}).schema()
        # Another table has the name, and its columns are not those of the stream.
        catalog.create_table("s.t", rows(100))
        with pytest.raises(InvalidInput, match=r"s\.t has id") as error:
            batch("s.t", end)
        assert (error.value.kind, "renamed" in error.value.hint) == ("table_replaced", True)
        assert batch("s.w", end)[0] == [2, 3]
        catalog.drop_table("s.t")
        with pytest.raises(NotFound):
            reader("s.t")


class Failing:
    """A catalog whose calls fail a few times."""

    def __init__(self, catalog: alpheus.Catalog, error: Callable[[], Exception], times: int) -> None:
        self._catalog = catalog
        self._error = error
        self.left = times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        if name not in ("version", "at", "events"):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                raise self._error()
            return found(*args, **options)

        return call


def test_an_outage_is_waited_for_and_not_for_ever(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    table = catalog.load_table("s.t")
    pauses: list[float] = []
    clock = itertools.count()

    def stream(times: int, seconds: float) -> TableStream:
        failing: Any = Failing(catalog, lambda: Unavailable("the daemon is away"), times)
        terms = StreamTerms(table="s.t", outage_seconds=seconds)
        return TableStream(
            failing,
            terms,
            table,
            table.columns,
            sleep=pauses.append,
            monotonic=lambda: float(next(clock)),
            hold_seconds=0,
        )

    patient = stream(5, 100.0)
    end = patient.latest(StreamPosition(), None, None)
    assert [row["id"] for row in read(catalog, patient.plan(StreamPosition(), end))] == [1]
    assert len(pauses) == 5
    with pytest.raises(Unavailable):
        stream(99, 4.0).latest(StreamPosition(), None, None)


@pytest.mark.usefixtures("asked_itself")
def test_history_that_is_gone_fails_a_stream_or_gives_all_rows_again(catalog: alpheus.Catalog) -> None:
    catalog.append("s.t", rows(1))
    table = catalog.load_table("s.t")
    position = StreamPosition(2, 0, table.id)

    class Forgetful(Failing):
        def read_events(self, *, after: int, **options: Any) -> Any:
            if after < 3:
                raise Expired("version 3 is not kept", oldest=4)
            return log.read_events(self._catalog, after=after, **options)

    def stream(on_expired: Any) -> TableStream:
        old: Any = Forgetful(catalog, Exception, 0)
        terms = StreamTerms(table="s.t", on_expired=on_expired)
        return TableStream(old, terms, table, table.columns, hold_seconds=0.0)

    with pytest.raises(Expired, match="not kept") as error:
        stream("fail").latest(position, None, None)
    assert error.value.oldest == 4
    assert "on_expired" in error.value.hint
    catalog.append("s.t", rows(2))
    batches, last = drained(catalog, stream("snapshot"), position, 1)
    assert (batches, last.version) == ([[1], [2]], catalog.version())


@pytest.mark.usefixtures("asked_itself")
def test_a_batch_that_comes_again_when_history_is_gone_gives_all_rows(catalog: alpheus.Catalog) -> None:
    """A batch that comes again after its history expired gives all rows. Spark asks for a batch until it succeeds."""
    for number in range(4):
        catalog.append("s.t", rows(number))
    with catalog.transaction() as tx:
        tx.append("s.t", rows(4))
        tx.append("s.t", rows(5))
    assert tx.result is not None
    last = tx.result.version
    table = catalog.load_table("s.t")
    forgetful: Any = Read(catalog)

    def stream(on_expired: Any = "snapshot") -> TableStream:
        terms = StreamTerms(table="s.t", on_expired=on_expired)
        return TableStream(forgetful, terms, table, table.columns, hold_seconds=0.0)

    def ids(start: StreamPosition, end: StreamPosition) -> list[int]:
        return sorted(row["id"] for row in read(catalog, stream().plan(start, end)))

    old = StreamPosition(3, 0, table.id)
    middle = StreamPosition(5, 0, table.id)
    within = stream().latest(StreamPosition(last - 1, 0, table.id), 1, None)
    assert (within.version, within.files, within.base) == (last, 1, last - 1)
    part = StreamPosition(last - 1, 2, table.id, is_snapshot=True)
    assert ids(old, middle) == [1, 2]
    forgetful.gone = 3
    with pytest.raises(Expired, match="not kept") as error:
        stream("fail").plan(old, middle)
    assert "on_expired" in error.value.hint
    for start in (old, StreamPosition(2, 3, table.id, is_snapshot=True)):
        assert ids(start, middle) == [0, 1, 2]
        # The next batch has the remaining rows, also of a version in whose middle this batch ends.
        assert ids(start, within) == [0, 1, 2, 3, 4]
        assert drained(catalog, stream(), within)[0] == [[5]]
    # When the end has expired as well, the next batch restarts.
    forgetful.gone = last - 1
    for end in (middle, within, part, StreamPosition(part.version, 0, table.id, is_snapshot=True)):
        assert ids(old, end) == []
        assert [sorted(batch) for batch in drained(catalog, stream(), end)[0]] == [[0, 1, 2, 3, 4, 5]]


def test_other_columns_before_a_batch_begins_end_a_stream(catalog: alpheus.Catalog) -> None:
    """A stream ends if its table got other columns before the first batch: no later event would report them."""
    catalog.append("s.t", rows(1))
    streams = [stream_of(catalog, start=start) for start in ("snapshot", "now")]
    catalog.update_table("s.t", add_columns={"note": pa.string()})
    for stream in streams:
        with pytest.raises(InvalidInput, match="has other columns"):
            drained(catalog, stream)
    assert drained(catalog, stream_of(catalog))[0] == [[1]]


def test_an_offset_of_another_source_is_refused() -> None:
    for offset in ({}, {"v": "x"}, {"v": 1, "f": -1}, {"v": 1, "t": 3}):
        with pytest.raises(InvalidInput, match="not a position"):
            position_of(offset)
