"""The node codec: exact rows in both dialects, and the checks of hostile bytes."""

from __future__ import annotations

import random
import resource
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput
from alpheus_journal.format import Key, NodePath
from alpheus_journal.tree import node as codec
from alpheus_journal.tree.node import DELETED, Node, NodeFile, decode_node, encode_node, encode_tombstone

SIZE_MAX = 1 << 20
CATALOG_DEF = "def/catalog/00000000-0000-4000-8000-000000000000.binpb"
ROOT_ROWS = {"catalog_def": CATALOG_DEF, ".commit_id": "c", ".version": "7", ".format_revision": "1"}
FUZZ_INPUTS = 2000

Row = tuple[str | None, str | None, str | None]


def child_path(number: int) -> NodePath:
    return fmt.node_path(f"00000000-0000-4000-8000-{number:012x}")


def arrow_file(
    rows: list[Row], *, schema: pa.Schema = codec.SCHEMA, batches: int = 1, **options: Any
) -> bytes:
    """Return an Arrow file written without the code under test."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    arrays = [
        pa.array(column, pa.utf8()).cast(field.type) for column, field in zip(columns, schema, strict=True)
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def rows_of(data: bytes) -> list[Row]:
    table = pa.ipc.open_file(data).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def child_rows(*pivot: Row, n_keys: int | None = None) -> list[Row]:
    count = sum(1 for row in pivot if row[0] is not None) if n_keys is None else n_keys
    return [("created_at_millis", "5", None), ("n_keys", str(count), None), *pivot]


def read(data: bytes, *, root: bool = False) -> NodeFile:
    return decode_node(data, "node/x.arrow", root=root, size_max=SIZE_MAX)


def refused(data: bytes, reason: str, *, root: bool = False) -> None:
    with pytest.raises(Corrupt) as caught:
        read(data, root=root)
    assert reason in str(caught.value)
    assert caught.value.kind == "corrupt_node"
    assert caught.value.path == "node/x.arrow"


NULLS: Row = (None, None, None)
A: Row = ("B===a", "def/ns/a.binpb", None)
B: Row = ("B===b", "def/ns/b.binpb", None)


# --- exact rows ------------------------------------------------------------------------------------


def test_root_rows_of_the_32_digit_dialect() -> None:
    node = Node((Key("B===a"),), ("def/ns/a.binpb",), (child_path(1), child_path(2)))
    data = encode_node(
        node, order=4, created_at_millis=5, size_max=SIZE_MAX, system=ROOT_ROWS,
        actions=[("catalog_def", "AA=="), ("B===a", "AQ==")],
    )  # fmt: skip
    assert rows_of(data) == [
        ("created_at_millis", "5", None),
        ("n_keys", "1", None),
        ("catalog_def", CATALOG_DEF, None),
        (".commit_id", "c", None),
        (".version", "7", None),
        (".format_revision", "1", None),
        ("n_actions", "2", None),
        (None, None, child_path(1)),
        ("B===a", "def/ns/a.binpb", child_path(2)),
        NULLS,
        NULLS,
        ("catalog_def", "AA==", None),
        ("B===a", "AQ==", None),
    ]


def test_root_rows_of_the_64_digit_dialect_sort_below_every_object_key() -> None:
    data = encode_node(
        Node((), ()), order=3, created_at_millis=5, size_max=SIZE_MAX, digits=64,
        system={"catalog_def": CATALOG_DEF}, actions=[("catalog_def", "AA=="), ("B===a", "AQ==")],
    )  # fmt: skip
    assert rows_of(data) == [
        ("created_at_millis", "5", None),
        ("n_keys", "0", None),
        ("catalog_def", CATALOG_DEF, None),
        (".n_actions", "2", None),
        NULLS,
        NULLS,
        NULLS,
        (".catalog_def", "AA==", None),
        (".B===a", "AQ==", None),
    ]
    assert read(data, root=True).actions == (("catalog_def", "AA=="), ("B===a", "AQ=="))


def test_a_child_holds_two_system_rows_and_a_root_always_its_number_of_actions() -> None:
    child = encode_node(Node((), ()), order=3, created_at_millis=5, size_max=SIZE_MAX)
    assert rows_of(child) == child_rows(NULLS, NULLS, NULLS)
    for digits, row in ((32, "n_actions"), (64, ".n_actions")):
        root = encode_node(
            Node((), ()), order=3, created_at_millis=5, size_max=SIZE_MAX, digits=digits, system=ROOT_ROWS
        )
        assert (row, "0", None) in rows_of(root)


def test_the_file_is_one_uncompressed_batch_of_the_exact_schema() -> None:
    reader = pa.ipc.open_file(encode_node(Node((), ()), order=128, created_at_millis=5, size_max=SIZE_MAX))
    assert reader.num_record_batches == 1
    assert reader.schema.equals(
        pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("pnode", pa.utf8())]), check_metadata=True
    )
    assert reader.get_batch(0).num_rows == 2 + 128


def test_a_tombstone_has_system_rows_only() -> None:
    data = encode_tombstone(commit_id="c", catalog_id="k", expired_at_millis=9, version=7)
    assert sorted(rows_of(data), key=str) == [
        (".catalog_id", "k", None),
        (".commit_id", "c", None),
        (".expired_at_millis", "9", None),
        (".version", "7", None),
        ("n_keys", "0", None),
    ]
    file = read(data, root=True)
    assert file.is_tombstone
    assert (file.commit_id, file.expired_at_millis, file.version) == ("c", 9, 7)
    assert (file.catalog_def, file.created_at_millis, file.node) == ("", None, Node((), ()))


def test_a_node_file_above_the_limit_is_refused_in_either_dialect() -> None:
    node = Node((Key("B===a"),), ("def/ns/a.binpb",))
    with pytest.raises(InvalidInput) as caught:
        encode_node(node, order=3, created_at_millis=5, size_max=100)
    assert caught.value.kind == "too_large"
    actions = [("B===a", "A" * 16_000)] * 40
    for digits, fits in ((32, True), (64, False)):

        def encode(digits: int = digits) -> bytes:
            return encode_node(
                node, order=3, created_at_millis=5, size_max=SIZE_MAX, digits=digits, system=ROOT_ROWS,
                actions=actions,
            )  # fmt: skip

        if fits:
            assert read(encode(), root=True).actions == tuple(actions)
        else:
            with pytest.raises(InvalidInput) as caught:
                encode()
            assert caught.value.kind == "too_large"
            assert "split" in caught.value.hint


# --- round trip ------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
keys_of_objects = texts.map(lambda name: Key("B===" + name))


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    keys = sorted(draw(st.sets(keys_of_objects, max_size=12)))
    inner = draw(st.booleans())
    value = st.one_of(texts, st.just(DELETED)) if inner else texts
    values = [draw(value) for _ in keys]
    children = [child_path(number) for number in range(len(keys) + 1)] if inner else []
    return Node(tuple(keys), tuple(values), tuple(children))


@given(
    node=nodes(),
    order_above=st.integers(1, 20),
    digits=st.sampled_from([32, 64]),
    millis=st.integers(0, 2**63 - 1),
    actions=st.lists(st.tuples(st.one_of(keys_of_objects, st.just("catalog_def")), texts), max_size=5),
    is_root=st.booleans(),
)
def test_what_is_written_is_read(
    node: Node, order_above: int, digits: int, millis: int, actions: list[tuple[str, str]], is_root: bool
) -> None:
    order = len(node.keys) + order_above
    system: Mapping[str, str] = ROOT_ROWS if is_root else {}
    data = encode_node(
        node, order=order, created_at_millis=millis, size_max=SIZE_MAX, digits=digits, system=system,
        actions=actions if is_root else (),
    )  # fmt: skip
    file = read(data, root=is_root)
    assert file.node == node
    assert file.actions == (tuple(actions) if is_root else ())
    assert file.created_at_millis == millis
    assert {**file.system, **system} == file.system
    assert file.defects == (("tombstone_rows",) if DELETED in node.values else ())
    assert file.pivot_rows == order
    assert file.defects_of_order(order) == ()
    assert (file.version, file.commit_id) == ((7, "c") if is_root else (None, None))


# --- files of other writers ------------------------------------------------------------------------


def test_an_overstated_n_keys_is_tolerated_and_an_understated_one_is_not() -> None:
    for rest in ([], [NULLS], [NULLS, NULLS]):
        file = read(arrow_file(child_rows(NULLS, A, *rest, n_keys=3)))
        assert file.node.keys == ("B===a",)
        assert file.defects == ("n_keys_overstated",)
    refused(arrow_file(child_rows(NULLS, A, B, n_keys=1)), "n_keys is 1")
    refused(arrow_file(child_rows(NULLS, A, NULLS, B, n_keys=2)), "stands after the last key")


def test_an_overstated_n_keys_does_not_take_actions_for_keys() -> None:
    rows = [
        ("catalog_def", CATALOG_DEF, None), ("n_actions", "1", None),
        *child_rows(NULLS, A, n_keys=2), ("B===b", "AA==", None),
    ]  # fmt: skip
    file = read(arrow_file(rows), root=True)
    assert file.node.keys == ("B===a",)
    assert file.actions == (("B===b", "AA=="),)


def test_rows_of_deleted_keys_vanish_from_a_leaf_and_separate_in_an_inner_node() -> None:
    gone: Row = ("B===b", None, None)
    leaf = read(arrow_file(child_rows(NULLS, A, gone)))
    assert leaf.node == Node((Key("B===a"),), ("def/ns/a.binpb",))
    assert leaf.defects == ("tombstone_rows",)
    inner = read(arrow_file(child_rows((None, None, child_path(0)), ("B===b", None, child_path(1)))))
    assert inner.node == Node((Key("B===b"),), (DELETED,), (child_path(0), child_path(1)))
    again = encode_node(inner.node, order=3, created_at_millis=5, size_max=SIZE_MAX)
    assert ("B===b", None, child_path(1)) in rows_of(again)


def test_a_leaf_in_utf16_order_is_sorted_and_an_inner_node_refused() -> None:
    high, astral = "B===\uff61", "B===\U0001f600"  # by UTF-16 units the second comes first
    leaf = read(arrow_file(child_rows(NULLS, (astral, "2", None), (high, "1", None))))
    assert leaf.node == Node((Key(high), Key(astral)), ("1", "2"))
    assert leaf.defects == ("utf16_order",)
    rows = child_rows((None, None, child_path(0)), (astral, "2", child_path(1)), (high, "1", child_path(2)))
    refused(arrow_file(rows), "UTF-16 order")
    refused(arrow_file(child_rows(NULLS, B, A)), "do not ascend")
    refused(arrow_file(child_rows(NULLS, A, A)), "do not ascend")


def test_deviations_that_depend_on_the_order() -> None:
    file = read(arrow_file(child_rows(NULLS, A, B)))
    assert file.defects_of_order(3) == ()
    assert file.defects_of_order(2) == ("overfull",)
    assert file.defects_of_order(4) == ("unpadded",)


def test_what_we_write_never_looks_like_another_writers() -> None:
    for size in range(4):
        keys = tuple(Key(f"B==={number}") for number in range(size))
        data = encode_node(
            Node(keys, ("def/ns/a.binpb",) * size), order=4, created_at_millis=5, size_max=SIZE_MAX
        )
        assert not read(data).looks_foreign(4)
        assert read(data).looks_foreign(5)
        if size == 3:
            assert read(data).looks_foreign(3)
    deleted = child_rows(NULLS, ("B===a", None, None), B, NULLS, NULLS, NULLS)
    assert read(arrow_file(deleted)).looks_foreign(4)


def test_system_rows_come_in_any_order_and_unknown_ones_are_kept() -> None:
    rows: list[Row] = [
        (".later", "x", None), ("n_keys", "1", None), ("catalog_def", CATALOG_DEF, None),
        ("created_at_millis", "5", None), (".later", "y", None), ("zzz", None, None), NULLS, A,
    ]  # fmt: skip
    file = read(arrow_file(rows), root=True)
    assert file.catalog_def == CATALOG_DEF
    assert ".later" in file.system
    assert file.node.keys == ("B===a",)


def test_a_copied_rollback_row_is_no_rollback() -> None:
    one, two = fmt.version_file(1, 64), fmt.version_file(2, 64)
    for previous, expected in ((one, one), (two, None)):
        rows: list[Row] = [
            ("catalog_def", CATALOG_DEF, None), ("previous_root", previous, None),
            ("rollback_from_root", one, None), *child_rows(NULLS),
        ]  # fmt: skip
        file = read(arrow_file(rows), root=True)
        assert file.previous_root == previous
        assert file.rollback_from_root == expected


def test_schema_metadata_says_nothing() -> None:
    schema = codec.SCHEMA.with_metadata({"pandas": "{}"})
    assert read(arrow_file(child_rows(NULLS, A), schema=schema)).node.keys == ("B===a",)


# --- the gate: containers --------------------------------------------------------------------------


def test_a_file_above_the_size_cap_is_not_looked_at() -> None:
    with pytest.raises(Corrupt, match="at most"):
        decode_node(b"x" * 11, "node/x.arrow", root=False, size_max=10)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when Arrow opens the file."""

    def never(*_: object) -> None:
        raise AssertionError("Arrow opened the file")

    monkeypatch.setattr(pa.ipc, "open_file", never)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("codec_name", ["zstd", "lz4"])
def test_a_compressed_body_is_refused_before_arrow_sees_it(codec_name: str) -> None:
    refused(arrow_file(child_rows(NULLS, A), compression=codec_name), "compressed")


@pytest.mark.usefixtures("unopened")
def test_a_decompression_bomb_is_refused_before_arrow_sees_it() -> None:
    bomb = arrow_file(child_rows(NULLS, ("B===a", "x" * (64 << 20), None)), compression="zstd")
    assert len(bomb) < 64 << 10
    refused(bomb, "compressed")


@pytest.mark.usefixtures("unopened")
def test_rows_that_the_file_cannot_hold_are_refused_before_arrow_sees_it() -> None:
    nulls = pa.nulls((1 << 31) - 1)
    schema = pa.schema([("key", pa.null()), ("value", pa.null()), ("pnode", pa.null())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([nulls] * 3, schema=schema))
    data = sink.getvalue().to_pybytes()
    assert len(data) < 2000
    refused(data, "claims 2147483647 rows")
    rows = [NULLS] * 1234
    honest = arrow_file(rows)
    for claim in (-1, (1 << 31) - 1, (1 << 63) - 1):
        refused(honest.replace(struct.pack("<q", 1234), struct.pack("<q", claim)), "rows")


@pytest.mark.usefixtures("unopened")
def test_the_old_metadata_version_is_refused_because_it_can_hide_compression() -> None:
    old = arrow_file(child_rows(NULLS, A), metadata_version=pa.ipc.MetadataVersion.V4)
    refused(old, "metadata version")


@pytest.mark.usefixtures("unopened")
def test_dictionaries_and_other_numbers_of_batches_are_refused() -> None:
    encoded = pa.schema([("key", pa.dictionary(pa.int32(), pa.utf8())), *list(codec.SCHEMA)[1:]])
    refused(arrow_file(child_rows(NULLS, A), schema=encoded), "dictionaries")
    for batches in (0, 2):
        refused(arrow_file(child_rows(NULLS, A), batches=batches), f"holds {batches} record batches")


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("key", pa.large_utf8()), ("value", pa.utf8()), ("pnode", pa.utf8())]),
        pa.schema([("key", pa.string_view()), ("value", pa.utf8()), ("pnode", pa.utf8())]),
        pa.schema([("key", pa.binary()), ("value", pa.utf8()), ("pnode", pa.utf8())]),
        pa.schema([("value", pa.utf8()), ("key", pa.utf8()), ("pnode", pa.utf8())]),
        pa.schema(
            [pa.field("key", pa.utf8()), pa.field("value", pa.utf8()), pa.field("pnode", pa.utf8(), False)]
        ),
    ],
)
def test_another_schema_is_refused(schema: pa.Schema) -> None:
    rows: list[Row] = [("a", "b", "c")] * 8
    refused(arrow_file(rows, schema=schema), "columns")


def test_more_and_fewer_columns_are_refused() -> None:
    for width in (2, 4):
        fields = [("key", pa.utf8()), ("value", pa.utf8()), ("pnode", pa.utf8()), ("more", pa.utf8())][:width]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema(fields)) as writer:
            writer.write_batch(pa.record_batch([pa.array(["a"])] * width, schema=pa.schema(fields)))
        refused(sink.getvalue().to_pybytes(), "columns")


@pytest.mark.usefixtures("unopened")
def test_an_offset_to_before_the_file_is_not_taken_from_its_end() -> None:
    whole = bytearray(arrow_file(child_rows(NULLS, A)))
    start = len(whole) - 10 - int(struct.unpack_from("<i", whole, len(whole) - 10)[0])
    table = start + int(struct.unpack_from("<I", whole, start)[0])
    back = int(struct.unpack_from("<i", whole, table)[0])
    struct.pack_into("<i", whole, table, back + len(whole))  # the right place, counted from the end
    refused(bytes(whole), "outside the file")


def test_what_is_no_arrow_file_is_refused() -> None:
    whole = arrow_file(child_rows(NULLS, A))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, codec.SCHEMA):
        pass
    for data in (b"", b"ARROW1", b"ARROW1\0\0ARROW1", stream.getvalue().to_pybytes(), whole[8:], b"x" * 1000):
        with pytest.raises(Corrupt):
            read(data)


def test_every_truncation_is_refused() -> None:
    whole = arrow_file(child_rows(NULLS, A))
    for size in range(len(whole)):
        with pytest.raises(Corrupt):
            read(whole[:size])


def test_text_that_is_no_utf8_is_refused() -> None:
    whole = arrow_file(child_rows(NULLS, A))
    assert whole.count(b"def/ns/a") == 1
    refused(whole.replace(b"def/ns/a", b"def/ns/\xff"), "not a valid Arrow file")


# --- the gate: meaning -----------------------------------------------------------------------------

ROOT: list[Row] = [("catalog_def", CATALOG_DEF, None), *child_rows(NULLS, A)]


def without(name: str) -> list[Row]:
    return [row for row in ROOT if row[0] != name]


def with_row(name: str, value: str | None, pnode: str | None = None) -> list[Row]:
    return [(name, value, pnode), *without(name)]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (without("n_keys"), "'n_keys' is missing"),
        (without("created_at_millis"), "'created_at_millis' is missing"),
        (without("catalog_def"), "'catalog_def' is missing"),
        ([*ROOT[:1], *ROOT], "appears twice"),
        (with_row("n_keys", None), "has no value"),
        (with_row("n_keys", "1", child_path(1)), "points at a node"),
        (with_row(".unknown", "1", child_path(1)), "points at a node"),
        (with_row("B===b", "def/ns/b.binpb"), "stands before the pivot table"),
        (with_row("catalog_def", "def/catalog/../../x.binpb"), "not the path of a catalog definition"),
        (with_row("catalog_def", "def/table/x.binpb"), "not the path of a catalog definition"),
        (with_row("previous_root", "/etc/passwd"), "not the path of a root"),
        (with_row("rollback_from_root", "vn/2"), "not the path of a root"),
        (with_row(".commit_id", "c" * 5000), "too long"),
        ([(".unknown", "", None)] * 300 + ROOT, "303 system rows"),
        ([("n_actions", "0", None), (".n_actions", "0", None), *ROOT], "appears twice"),
        (with_row("n_actions", "1000"), "no pivot table"),
        ([("n_actions", "1", None), *ROOT, ("B===b", "AA==", child_path(1))], "an action points"),
        ([("n_actions", "1", None), *ROOT, ("B===b", None, None)], "no value"),
        ([("n_actions", "1", None), *ROOT, NULLS], "no key"),
        ([*ROOT, ("B===b", "AA==", None)], "n_keys is 1"),
        ([*ROOT, NULLS, ("B===b", "AA==", None)], "after the last key"),
        ([*ROOT, (None, None, child_path(1))], "after the last key"),
        (ROOT[:3], "no pivot table"),
        ([*ROOT[:3], (None, "x", None), A], "leftmost row"),
        ([*ROOT[:3], NULLS, ("B===a", "x", child_path(1))], "children are missing"),
        ([*ROOT[:3], (None, None, child_path(1)), A], "children are missing"),
        ([*ROOT[:3], (None, None, "node/../x"), ("B===a", "x", child_path(1))], "not the path of a node"),
        ([*ROOT[:3], NULLS, ("B===a", "", None)], "empty"),
        ([*ROOT[:3], NULLS, ("", "x", None)], "empty"),
        ([*ROOT[:3], NULLS, ("B===" + "a" * 3000, "x", None)], "key is too long"),
        ([*ROOT[:3], NULLS, ("B===a", "x" * 5000, None)], "value is too long"),
        ([(".expired_at_millis", "5", None), *ROOT], "tombstone"),
        ([(".expired_at_millis", "5", None), ("n_keys", "0", None), (None, None, "x")], "tombstone"),
    ],
)  # fmt: skip
def test_a_malformed_root_is_refused_with_the_reason(rows: list[Row], reason: str) -> None:
    assert read(arrow_file(ROOT), root=True).node.keys == ("B===a",)
    refused(arrow_file(rows), reason, root=True)


BOUNDS = {
    "n_keys": 1 << 31,
    "n_actions": 1 << 31,
    ".n_actions": 1 << 31,
    ".format_revision": 1 << 31,
    "created_at_millis": 1 << 63,
    ".expired_at_millis": 1 << 63,
    ".version": fmt.VERSION_MAX_EXCLUSIVE,
}


@pytest.mark.parametrize("row", BOUNDS)
@pytest.mark.parametrize("text", ["", "abc", "-1", "+1", " 1", "1\n", "1_0", "0x1", "\u0661", "9" * 20])
def test_a_number_that_is_none_is_refused(row: str, text: str) -> None:
    refused(arrow_file(with_row(row, text)), f"{row!r}", root=True)


@pytest.mark.parametrize(("row", "bound"), BOUNDS.items())
def test_a_number_beyond_its_range_is_refused(row: str, bound: int) -> None:
    refused(arrow_file(with_row(row, str(bound))), f"{row!r}", root=True)
    told = ""
    try:
        read(arrow_file(with_row(row, str(bound - 1))), root=True)
    except AlpheusError as error:  # the value is a number, but the file contradicts it
        told = str(error)
    assert f"{row!r}" not in told


def test_a_child_with_the_rows_of_a_root_is_refused() -> None:
    refused(arrow_file([("n_actions", "0", None), *child_rows(NULLS, A)]), "rows of a root")
    refused(encode_tombstone(commit_id="c", catalog_id="k", expired_at_millis=5, version=1), "rows of a root")


def test_a_later_revision_of_the_format_asks_for_an_upgrade() -> None:
    with pytest.raises(InvalidInput) as caught:
        read(arrow_file(with_row(".format_revision", str(fmt.FORMAT_REVISION + 1))), root=True)
    assert caught.value.kind == "newer_format"


# --- mutated files ---------------------------------------------------------------------------------


def _mutated(original: bytes, source: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(source.choice([1, 1, 2, 4, 16])):
        near_an_end = source.random() < 0.7  # where Arrow's own structures are stored
        position = source.randrange(min(700, len(data)) if near_an_end else len(data))
        if near_an_end and source.random() < 0.5:
            position = len(data) - 1 - position
        choice = source.random()
        if choice < 0.4:
            data[position] = source.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif choice < 0.8:
            data[position] ^= 1 << source.randrange(8)
        elif choice < 0.95:
            word = source.choice([b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", source.randbytes(4)])
            data[position & ~3 : (position & ~3) + 4] = word
        else:
            del data[position : position + source.randrange(1, 32)]
    return bytes(data)


def _fuzz(seed: int) -> None:
    """Decode mutated files in a separate process, which a crash or a huge allocation ends."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    source = random.Random(seed)

    def encode(node: Node, order: int, digits: int) -> bytes:
        return encode_node(
            node, order=order, created_at_millis=5, size_max=SIZE_MAX, digits=digits, system=ROOT_ROWS,
            actions=[("catalog_def", "AA==")] * 3,
        )  # fmt: skip

    keys = tuple(Key(f"B===n{number:04}") for number in range(20))
    values = tuple(f"def/ns/{number}.binpb" for number in range(20))
    children = tuple(child_path(number) for number in range(21))
    files = [
        encode(Node((), ()), 4, 32),
        encode(Node(keys, values), 32, 64),
        encode(Node(keys, values, children), 21, 32),
        arrow_file(ROOT, compression="lz4"),
    ]
    for number in range(FUZZ_INPUTS):
        data = _mutated(source.choice(files), source)
        try:
            file = decode_node(data, "node/x.arrow", root=True, size_max=SIZE_MAX)
        except (Corrupt, InvalidInput):
            continue
        node = file.node
        assert list(node.keys) == sorted(set(node.keys)), f"seed {seed}, input {number}"
        assert len(node.values) == len(node.keys), f"seed {seed}, input {number}"
        assert len(node.children) in (0, len(node.keys) + 1), f"seed {seed}, input {number}"


def test_mutated_files_never_crash_the_process() -> None:
    seed = 20260117
    done = subprocess.run([sys.executable, __file__, str(seed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: exit {done.returncode}\n{done.stderr[-2000:]}"


if __name__ == "__main__":
    _fuzz(int(sys.argv[1]))
