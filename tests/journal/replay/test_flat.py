"""The flat table: packing keeps the order of keys, and base and changes together equal the dict that they represent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.model.answers import Damage, StoredObject
from alpheus_journal.replay.flat import (
    GROUP_ROWS_MIN,
    MARK_ROWS,
    Flat,
    KeyRows,
    column_of,
    groups,
    merge_plan,
    pack,
    pack_name,
    runs,
    unpack,
)
from alpheus_journal.replay.state import State

KEYS = fmt.Keys(namespace_size_max=8, table_size_max=8, view_size_max=8)
TEXT = st.text(st.sampled_from(" \x00\x1f!aÿ\ue000𝄞~"), max_size=12)
NAME = st.text(st.sampled_from("ab.ü𝄞"), min_size=1, max_size=2)


def stored(path: str) -> StoredObject:
    return StoredObject(path, path.encode() * 2)


@given(TEXT, TEXT)
def test_packing_keeps_order_and_loses_nothing(one: str, other: str) -> None:
    assert unpack(pack(one)) == one
    assert (pack(one) < pack(other)) == (one < other)
    assert (pack(one) == pack(other)) == (one == other)


def test_the_example_of_the_format() -> None:
    key = fmt.Keys().key(fmt.table_name("sales", "t"))
    assert pack(key)[:12] == bytes.fromhex("433d3d3d73616c6573207d7d")


@pytest.mark.parametrize("packed", [b"a ", b"a !", b"a  !", b"a \x80\x80", b"\xff"])
def test_what_is_no_packed_key(packed: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack(packed)


@given(
    st.sampled_from([kind for kind in Kind if kind is not Kind.CATALOG]),
    NAME,
    NAME,
    st.sampled_from([32, 64]),
)
def test_packing_a_name(kind: Kind, first: str, last: str, digits: int) -> None:
    name = ObjectName(kind, first, last) if kind in (Kind.TABLE, Kind.VIEW) else ObjectName(kind, first)
    if kind not in (Kind.TABLE, Kind.VIEW, Kind.NAMESPACE):
        name = ObjectName(kind, "", last)
    keys = fmt.Keys(version_digits=digits)
    assert pack_name(keys, name) == pack(keys.key(name))


@given(
    st.dictionaries(st.binary(min_size=1, max_size=3), st.booleans()),
    st.dictionaries(st.binary(min_size=1, max_size=3), st.booleans()),
    st.binary(max_size=2),
    st.binary(max_size=2),
)
def test_base_and_changes_are_one_sorted_set(
    base: dict[bytes, bool], changes: dict[bytes, bool], low: bytes, high: bytes
) -> None:
    rows = KeyRows(column_of(sorted(base)))
    ordered = sorted(changes.items())
    model = sorted((base.keys() | changes.keys()) - {key for key, lives in ordered if not lives})
    found = []
    for run in runs(rows, sorted(changes), changes.__getitem__, low, high):
        found += [run] if isinstance(run, bytes) else rows.slice(*run)
    assert found == [key for key in model if low <= key < high]
    assert rows.is_ascending()
    assert [rows.find(key) >= 0 for key in changes] == [key in base for key in changes]
    taken = iter([key for key, lives in ordered if lives])
    merged = []
    for step in merge_plan(rows, ordered):
        merged += [next(taken)] if step is None else rows.slice(*step)
    assert merged == model


def test_a_large_table_finds_every_row() -> None:
    rng = random.Random(5)
    packed = sorted({rng.randbytes(rng.randrange(1, 6)) for _ in range(10 * MARK_ROWS + 7)})
    # The keys share beginnings and ends, so that a match among the bytes is often not a whole key.
    packed = sorted({part for key in packed for part in (key, key[:2], key[-2:])})
    rows = KeyRows(column_of(packed))
    for row, key in enumerate(packed):
        assert (rows.find(key), rows.position(key), rows[row]) == (row, row, key)
        assert rows.find(key + b"\0") == (packed.index(key + b"\0") if key + b"\0" in packed else -1)


def test_names_of_many_rows_are_cut_as_a_whole_and_are_the_same() -> None:
    names = [fmt.table_name(ns, f"t{number:03}") for ns in ("a", "a.b", "x" * 8) for number in range(60)]
    names += [fmt.table_name("b", name) for name in ("ü", "𝄞", "y" * 8)]
    names += [fmt.namespace_name(f"n{number:03}") for number in range(2 * GROUP_ROWS_MIN)]
    keys = sorted(KEYS.key(name) for name in names)
    rows = KeyRows(column_of(map(pack, keys)))
    found = list(groups(KEYS, rows, [(0, len(rows))]))
    listed = [
        ObjectName(kind, name) if kind is Kind.NAMESPACE else ObjectName(kind, namespace, name)
        for kind, namespace, those, _ in found
        for name in those
    ]
    assert listed == [KEYS.parse(key) for key in keys]
    assert len(found) < len(names) / 2  # otherwise no group was cut as a whole


def test_a_plain_beginning_with_odd_names_in_it() -> None:
    """Java's names may hold spaces and control characters, which look like padding."""
    java = fmt.Keys(version_digits=64, namespace_size_max=8, table_size_max=8)
    odd = ["a b", "\x01a", "a\x01", " a", "b c d", "plain", "ü", "𝄞"]
    names = [fmt.table_name(ns, name) for ns in ("n", "n m", "n  m") for name in odd]
    names += [fmt.table_name("n", f"t{number}") for number in range(40)]
    keys = sorted(java.key(name) for name in names)
    rows = KeyRows(column_of(map(pack, keys)))
    listed = [
        ObjectName(kind, namespace, name)
        for kind, namespace, those, _ in groups(java, rows, [(0, len(rows))])
        for name in those
    ]
    assert listed == [java.parse(key) for key in keys]


# --- the state on top of it ------------------------------------------------------------------------

OBJECTS = [
    *(fmt.namespace_name(name) for name in ("a", "ab", "ü", "名𝄞")),
    *(fmt.table_name(ns, name) for ns in ("a", "ü") for name in ("t", "tt", "ß")),
    fmt.pipeline_name("p"),
]
STEP = st.dictionaries(st.sampled_from(OBJECTS), st.sampled_from(["put", "gone", "damaged"]), max_size=4)


@given(
    st.sampled_from([32, 64]),
    st.booleans(),
    st.lists(st.tuples(STEP, st.sampled_from(["", "merge", "late merge", "copy"])), max_size=12),
)
def test_a_state_that_is_merged_at_any_moment_is_a_dict(
    digits: int, foreign: bool, steps: list[tuple[dict[ObjectName, str], str]]
) -> None:
    from alpheus_journal.replay.state import VersionRecord

    keys = fmt.Keys(version_digits=digits)
    stored_keys = keys.other_padding() if foreign else keys
    state = State(keys=keys, catalog_id="c", version=0, created_at_millis=0, catalog=stored("cat"))
    model: dict[Key, StoredObject] = {}
    late = None
    for version, (wishes, then) in enumerate(steps, 1):
        changes, definitions = [], {}
        for name, wish in wishes.items():
            key = stored_keys.key(name)
            before = model.get(key)
            if wish == "gone":
                if before is None:
                    continue
                changes.append((key, before.path, None))
                del model[key]
                continue
            path = f"{name}-{version}"
            damage = Damage("corrupt_definition", "gone") if wish == "damaged" else None
            made = StoredObject(path, b"" if damage else path.encode(), damage)
            changes.append((key, before.path if before else None, path))
            definitions[path] = model[key] = made
        record = VersionRecord(
            version=version, commit_id="i", created_at_millis=version, transactions=(),
            changes=tuple(sorted(changes)), catalog_def_before="cat", catalog_def_after="cat",
        )  # fmt: skip
        state.apply(record, definitions)
        if then == "late merge":
            late = (state.flat, state.overlay())
        elif then == "merge":
            base, overlay = late or (state.flat, state.overlay())
            state.rebase(base.merged(overlay), overlay)
            late = None
        elif then == "copy":
            state, late = state.copy(), None
        assert state.entries() == sorted((key, held.path) for key, held in model.items())
        assert len(state) == len(model)
        for name in OBJECTS:
            assert state.get(name) == model.get(stored_keys.key(name))
        assert state.part(Key(""), Key(chr(0x10FFFF)), 3) == sorted(model.items())[:3]
        for namespace in ("a", "ü"):
            wanted = sorted(
                keys.parse(key).name for key in model
                if keys.parse(key).kind is Kind.TABLE and keys.parse(key).namespace == namespace
            )  # fmt: skip
            assert list(state.names(Kind.TABLE, namespace=namespace).names) == wanted


def test_a_merge_for_another_base_is_not_lost_on_a_copy() -> None:
    state = State(
        keys=KEYS, catalog_id="c", version=0, created_at_millis=0, catalog=stored("cat"),
        entries=[(KEYS.key(fmt.namespace_name(f"n{number}")), stored(f"p{number}")) for number in range(5)],
    )  # fmt: skip
    kept = state.copy()
    overlay = [(pack(KEYS.key(fmt.namespace_name("n1"))), None)]
    state._overlay, state._order = dict(overlay), [overlay[0][0]]
    state.rebase(state.flat.merged(overlay), overlay)
    assert kept.get(fmt.namespace_name("n1")) == stored("p1")
    assert state.get(fmt.namespace_name("n1")) is None
    assert state.overlay_count == 0


def test_a_damaged_definition_is_never_good_bytes() -> None:
    damage = Damage("corrupt_definition", "it is not there")
    flat = Flat.of([(b"a", StoredObject("pa", b"x")), (b"b", StoredObject("pb", b"", damage))])
    assert flat.missing == [1]
    assert flat.merged([(b"c", StoredObject("pc", b""))]).missing == [1]
    with pytest.raises(AssertionError):
        State(keys=KEYS, catalog_id="c", version=0, created_at_millis=0, catalog=stored("cat"), flat=flat)
