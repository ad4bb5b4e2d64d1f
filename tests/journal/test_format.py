"""Keys, names, version files and pointers: exact texts, and refusals."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Keys, Kind, ObjectName

UUID = "6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8"
OTHER = "00000000-0000-4000-8000-00000000000f"

digits = st.sampled_from([32, 64])
LIMIT = 12
# These characters have all lengths in UTF-8 and UTF-16. They include both ends of the code points and the gap of the
# surrogates.
characters = st.sampled_from(
    "ab!~\x80\u00e9\u0416\u20ac\ud7ff\ue000\uff61\uffff\U00010000\U0001f600\U0010ffff"
)
names = st.text(characters, min_size=1, max_size=LIMIT).filter(lambda name: len(name.encode()) <= LIMIT)
kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.CATALOG])


def small_keys(version_digits: int) -> Keys:
    return Keys(version_digits, namespace_size_max=LIMIT, table_size_max=LIMIT + 1, view_size_max=LIMIT + 2)


def object_name(kind: Kind, namespace: str, name: str) -> ObjectName:
    if kind is Kind.NAMESPACE:
        return ObjectName(kind, namespace)
    return ObjectName(kind, namespace if kind in (Kind.TABLE, Kind.VIEW) else "", name)


# --- keys ------------------------------------------------------------------------------------------


def test_type_ids_are_those_of_the_format() -> None:
    assert fmt.TYPE_IDS == {
        Kind.NAMESPACE: "B===", Kind.TABLE: "C===", Kind.VIEW: "D===", Kind.TAG: "Bk==", Kind.BRANCH: "Bl==",
        Kind.PIPELINE: "Bm==", Kind.SUBSCRIPTION: "Bn==",
    }  # fmt: skip


def test_keys_of_the_format_examples() -> None:
    keys = Keys(namespace_size_max=8, table_size_max=8)
    assert keys.key(fmt.namespace_name("default")) == "B===default "
    assert keys.key(fmt.table_name("default", "table")) == "C===default table   "
    assert keys.key(fmt.pipeline_name("p")) == "Bm==p" + " " * 99


def test_the_dialects_count_padding_differently() -> None:
    name = fmt.namespace_name("\u20ac\U0001f600")  # 7 bytes, 3 UTF-16 units
    assert Keys(32, namespace_size_max=8).key(name) == "B===\u20ac\U0001f600 "
    assert Keys(64, namespace_size_max=8).key(name) == "B===\u20ac\U0001f600     "


@given(kind=kinds, namespace=names, name=names, version_digits=digits)
def test_a_key_gives_back_the_name_in_either_dialect(
    kind: Kind, namespace: str, name: str, version_digits: int
) -> None:
    wanted = object_name(kind, namespace, name)
    key = small_keys(version_digits).key(wanted)
    # A reader accepts both paddings, whatever the width of the catalog.
    assert {small_keys(width).parse(key) for width in (32, 64)} == {wanted}
    assert len(key.encode()) <= 2 * small_keys(32).longest_key_size()
    if version_digits == 32:
        assert len(key.encode()) <= small_keys(32).longest_key_size()


@given(
    kind=kinds, name=st.text("ab!~", min_size=1, max_size=LIMIT), version_digits=digits, cut=st.integers(1, 3)
)
def test_a_key_of_another_length_is_corrupt(kind: Kind, name: str, version_digits: int, cut: int) -> None:
    key = small_keys(version_digits).key(object_name(kind, name, name))
    for wrong in (key + " " * cut, key[:-cut]):
        with pytest.raises(Corrupt) as caught:
            small_keys(version_digits).parse(wrong)
        assert caught.value.kind == "corrupt_tree"


@pytest.mark.parametrize("key", ["", "B==", "catalog_def", "A===x", "E===x", "B===" + " " * 100])
def test_a_key_that_names_nothing_is_corrupt(key: str) -> None:
    with pytest.raises(Corrupt):
        Keys().parse(key)


@given(
    kind=kinds, objects=st.lists(st.tuples(kinds, names, names), max_size=30), namespace=names,
    prefix=st.text(characters, max_size=3), version_digits=digits,
)  # fmt: skip
def test_bounds_hold_exactly_the_names_with_the_prefix(
    kind: Kind, objects: list[tuple[Kind, str, str]], namespace: str, prefix: str, version_digits: int
) -> None:
    keys = small_keys(version_digits)
    # Neighbours that a search must find or must not find, whatever was drawn.
    objects = [
        *objects, (kind, namespace, prefix[:LIMIT] or "a"), (kind, prefix or "a", "a"),
        (kind, namespace, "a"), (kind, namespace, "\U0010ffff"), (kind, namespace[:1], namespace),
    ]  # fmt: skip
    fitting = [
        object_name(*each) for each in objects if max(len(part.encode()) for part in each[1:]) <= LIMIT
    ]
    low, high = keys.bounds(kind, namespace, prefix)
    of_namespace = kind in (Kind.TABLE, Kind.VIEW)
    for each in fitting:
        last = each.name or each.namespace
        wanted = (
            each.kind is kind
            and last.startswith(prefix)
            and (not of_namespace or each.namespace == namespace)
        )
        assert (low <= keys.key(each) < high) == wanted, each


@given(
    kind=st.sampled_from([Kind.NAMESPACE, Kind.TABLE, Kind.VIEW, Kind.PIPELINE]), namespace=names,
    others=st.lists(st.tuples(names, names), max_size=12), last=st.lists(names, min_size=1, max_size=8),
    prefix=st.text(characters, max_size=2), version_digits=digits,
)  # fmt: skip
def test_ranges_hold_both_paddings_once_and_in_order(
    kind: Kind,
    namespace: str,
    others: list[tuple[str, str]],
    last: list[str],
    prefix: str,
    version_digits: int,
) -> None:
    keys = small_keys(version_digits)
    wanted = {object_name(kind, namespace, name) for name in last}
    if kind in (Kind.NAMESPACE, Kind.PIPELINE):
        wanted = {fmt.namespace_name(n) if kind is Kind.NAMESPACE else fmt.pipeline_name(n) for n in last}
    crowd = wanted | {object_name(kind, *each) for each in others} | {object_name(kind, namespace + "x", "t")}
    fits = [
        each for each in crowd if all(len(part.encode()) <= LIMIT for part in (each.namespace, each.name))
    ]
    stored = {padding.key(each) for each in fits for padding in (keys, keys.other_padding())}
    for after in ("", *sorted(last)):
        found = [
            [key for key in sorted(stored) if low <= key < high]
            for low, high in keys.ranges(kind, namespace, prefix, after)
        ]
        assert len({key for part in found for key in part}) == sum(map(len, found))
        names_found = []
        for part in found:
            parsed = [keys.parse(key) for key in part]
            if kind in (Kind.TABLE, Kind.VIEW):
                parsed = [each for each in parsed if each.namespace == namespace]
            ordered = [each.name or each.namespace for each in parsed]
            assert ordered == sorted(ordered)
            names_found += ordered
        mine = (each for each in fits if kind not in (Kind.TABLE, Kind.VIEW) or each.namespace == namespace)
        expected = {each.name or each.namespace for each in mine}
        assert set(names_found) == {n for n in expected if n.startswith(prefix) and n > after}, (
            prefix,
            after,
        )


def test_names_that_only_another_writer_gives() -> None:
    """Such names can be asked for in the other writer's dialect. No new object may have such a name."""
    theirs, ours = Keys(version_digits=64), Keys(version_digits=32)
    for name in ("two words", " lead", "tab\there", "del\x7f", "ü" * 100, "😀" * 50, "a\u0301", "a/b", ".."):
        assert fmt.check_known_name(name, theirs, Kind.TABLE) == name
        assert theirs.parse(theirs.key(fmt.table_name(name, name))) == fmt.table_name(name, name)
        with pytest.raises(InvalidInput):
            fmt.check_known_name(name, theirs, Kind.TABLE, creating=True)
    for name in ("two words", " lead", "tab\there", "del\x7f", "ü" * 100):
        with pytest.raises(InvalidInput):
            fmt.check_known_name(name, ours, Kind.TABLE)
    for name in ("", " ", "trail ", "ü" * 101, "😀" * 51, "\ud800"):
        with pytest.raises(InvalidInput):
            fmt.check_known_name(name, theirs, Kind.TABLE)


def test_bounds_without_a_prefix_hold_the_whole_kind() -> None:
    keys = Keys()
    low, high = keys.bounds(Kind.TABLE)
    assert (low, high) == ("C===", "C==>")
    assert low <= keys.key(fmt.table_name("\U0010ffff", "\U0010ffff")) < high
    assert not low <= keys.key(ObjectName(Kind.VIEW, "a", "a")) < high


@given(prefix=st.text(min_size=1).filter(lambda text: set(text) != {"\U0010ffff"}), rest=st.text())
def test_what_follows_a_prefix_is_above_all_that_begins_with_it(prefix: str, rest: str) -> None:
    above = fmt.after_prefix(prefix)
    above.encode()
    assert prefix + rest < above
    assert not above.startswith(prefix)


@given(left=names, right=names)
def test_the_order_of_keys_is_the_order_of_their_bytes(left: str, right: str) -> None:
    keys = small_keys(32)
    a, b = keys.key(fmt.namespace_name(left)), keys.key(fmt.namespace_name(right))
    assert (a < b) == (a.encode() < b.encode())


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "is empty"),
        ("x" * 101, "takes 101 bytes, 100 at most"),
        ("\u20ac" * 34, "takes 102 bytes, 100 at most"),
        ("a b", "U+0020 at position 1"),
        ("ab\x00", "U+0000 at position 2"),
        ("\x1fab", "U+001F at position 0"),
        ("abc\x7f", "U+007F at position 3"),
        ("ab\ud800c", "lone surrogate at position 2"),
    ],
)
def test_names_that_no_object_may_have(name: str, what: str) -> None:
    for creating in (False, True):
        with pytest.raises(InvalidInput) as caught:
            fmt.check_name(name, 100, "table", creating=creating)
        assert caught.value.kind == "bad_name"
        assert what in caught.value.message
        assert caught.value.message.startswith("table name ")
        caught.value.message.encode()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (".", "dot segment"),
        ("..", "dot segment"),
        ("a*b", "'*' at position 1"),
        ("ab?", "'?' at position 2"),
        ("%41", "'%' at position 0"),
        ("a/b", "'/' at position 1"),
        ("a\\b", "position 1"),
        ("ab\u202ec", "U+202E at position 2"),
        ("\u2066a", "U+2066 at position 0"),
        ("cafe\u0301", "normal form C (from position 3)"),
        ("a\x85b", "invisible character U+0085 at position 1"),
        ("\x9b31m", "U+009B"),
        ("a\u2028", "U+2028"),
        ("\u2029a", "U+2029"),
        ("ord\u200bers", "invisible character U+200B at position 3"),
        ("a\u2060b", "U+2060"),
        ("\ufefforders", "invisible character U+FEFF at position 0"),
        ("or\u00adders", "U+00AD"),
        ("a\U000e0001\U000e0061", "U+E0001"),
        ("a\U000e0041", "invisible character U+E0041 at position 1"),
        ("\ufe0f", "invisible character U+FE0F at position 0"),
        ("\ufe0f\ufe0e", "position 0"),
        ("\U000e0100", "U+E0100"),
        ("o\ufe0frders", "invisible character U+FE0F at position 1"),
        ("\u2764\ufe0f\ufe0f", "position 2"),
        ("\u200ca", "U+200C"),
        ("a\u200d", "invisible character U+200D at position 1"),
        ("a\u200c\u200cb", "position 1"),
        ("1\u200c2", "position 1"),
        ("\ua4a4\u200d\ufe00", "position 1"),
        ("a\u3164", "U+3164"),
        ("\u2800", "U+2800"),
        ("a\u034fb", "U+034F"),
        ("\ufdd0", "U+FDD0"),
        ("a\U0010ffff", "U+10FFFF"),
        ("a\U000e0fff", "U+E0FFF"),
    ],
)
def test_names_that_no_new_object_may_have(name: str, what: str) -> None:
    assert fmt.check_name(name, 100, "view") == name
    with pytest.raises(InvalidInput) as caught:
        fmt.check_name(name, 100, "view", creating=True)
    assert caught.value.kind == "bad_name"
    assert what in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "x" * 100,
        "\u20ac" * 33,
        "...",
        "a.b",
        "caf\u00e9",
        "\U0001f600",
        "a\u00a0b",
        "Auf\u200clage",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937",
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "\u845b\U000e0100",
        "\u1820\u180b",
        "\ue000",
        "\U000f0000",
        "\u0378",
        "\U0003fffd",
        "\ufffd",
        "\u0600",
        "x\U0001e900\u200c\u0628",
    ],
)
def test_names_that_a_new_object_may_have(name: str) -> None:
    assert fmt.check_name(name, 100, "table", creating=True) == name


FORMATS_THAT_ARE_SEEN = {"\u06dd", "\u070f"}
"""Visible format characters: numbers are drawn on them."""


def test_what_nobody_sees_is_the_same_to_every_interpreter() -> None:
    """The tables of Unicode 3.2, which every interpreter has, define the refused characters. All controls, formats and
    separators of lines are refused, and private code points are not. The number of refused characters never changes,
    whatever Unicode assigns later."""
    refused = {c for c in map(chr, range(0x110000)) if list(fmt.unseen_places(c))}
    category = unicodedata.ucd_3_2_0.category
    known = {c for c in map(chr, range(0x110000)) if category(c) in ("Cc", "Cf", "Zl", "Zp")}
    bidirectional = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e")
    assert known - refused == FORMATS_THAT_ARE_SEEN | bidirectional | set(map(chr, range(0x20))) | {"\x7f"}
    assert not {c for c in refused if category(c) == "Co"}
    assert len(refused) == 4270


def test_the_parts_of_an_object_name_have_their_own_limits() -> None:
    keys = Keys(namespace_size_max=3, table_size_max=2, view_size_max=2)
    fmt.check_object_name(fmt.table_name("nsp", "tb"), keys, creating=True)
    for name, part in (
        (fmt.table_name("nspc", "tb"), "namespace"), (fmt.table_name("nsp", "tbl"), "table"),
        (fmt.table_name("", "tb"), "namespace"), (fmt.table_name("nsp", ""), "table"),
        (fmt.pipeline_name("x" * 101), "pipeline"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=f"{part} name"):
            fmt.check_object_name(name, keys)
    # Whoever makes a table asks for the view of that name, which may be longer than a view's name can be.
    keys = Keys(namespace_size_max=3, table_size_max=2, view_size_max=1)
    fmt.check_object_name(ObjectName(Kind.VIEW, "nsp", "tb"), keys)
    with pytest.raises(InvalidInput, match="view name"):
        fmt.check_object_name(ObjectName(Kind.VIEW, "nsp", "tb"), keys, creating=True)
    # A table may be created in a namespace whose old name would be refused today.
    fmt.check_object_name(fmt.table_name("a/b", "t"), keys, creating=True)
    with pytest.raises(InvalidInput):
        fmt.check_object_name(fmt.namespace_name("a/b"), keys, creating=True)


# --- version files ---------------------------------------------------------------------------------


def test_the_version_file_of_the_format_example() -> None:
    assert fmt.version_file(100, 32) == "vn/00100110000000000000000000000000"
    assert fmt.version_file(0, 32) == "vn/" + "0" * 32
    assert fmt.version_file(1, 64) == "vn/1" + "0" * 63


@given(version=st.integers(0, 2**32 - 1), version_digits=digits)
def test_version_files_give_back_the_version(version: int, version_digits: int) -> None:
    path = fmt.version_file(version, version_digits)
    assert len(path) == 3 + version_digits
    assert fmt.parse_version_file(path) == (version, version_digits)


@pytest.mark.parametrize("version", [-1, 2**32, 2**40])
def test_a_version_outside_the_format_is_refused(version: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        fmt.version_file(version, 64)
    assert caught.value.kind == "bad_version"


@pytest.mark.parametrize(
    "path",
    ["vn/latest", "vn/" + "0" * 31, "vn/" + "0" * 33, "vn/" + "2" * 32, "vn/" + "0" * 32 + "\n", "0" * 32],
)
def test_what_is_no_version_file_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt):
        fmt.parse_version_file(path)


# --- pointers --------------------------------------------------------------------------------------

TRAVERSALS = [
    "", ".", "..", "/", "/etc/passwd", "../node/" + UUID + ".arrow", "node/../" + UUID + ".arrow",
    "node//" + UUID + ".arrow", "node/" + UUID + ".arrow/", "node/" + UUID + ".arrow\n", "\nnode/" + UUID + ".arrow",
    "node/" + UUID.upper() + ".arrow", "node\\" + UUID + ".arrow", "node/%2e%2e/" + UUID + ".arrow",
    "def/table/../x.binpb", "def/table/./x.binpb", "def/table//x.binpb", "def/table/a/../../x.binpb",
    "def/table/.binpb",
    "def/table/...binpb", "def/../table/x.binpb", "/def/table/x.binpb", "def/table/x\x00.binpb", "def/table/x\n.binpb",
    "def/table/x.binpb\n", "def/table/x.binpb/", "def/table/x.binpb/..", "s3://bucket/def/table/x.binpb",
]  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_pointer_leaves_its_place(path: str) -> None:
    for check in (
        fmt.check_node_pointer, fmt.check_root_pointer, fmt.check_action_pointer, fmt.parse_data_path,
        lambda text: fmt.check_definition_pointer(text, Kind.TABLE),
        lambda text: fmt.check_manifest_pointer(text, UUID),
    ):  # fmt: skip
        with pytest.raises(Corrupt):
            check(path)


def test_pointers_that_are_taken() -> None:
    node = f"node/{UUID}.arrow"
    assert fmt.check_node_pointer(node) == node == fmt.node_path(UUID)
    assert fmt.check_root_pointer(node) == node
    for width in (32, 64):
        root = fmt.version_file(5, width)
        assert fmt.check_root_pointer(root) == root
        with pytest.raises(Corrupt):
            fmt.check_node_pointer(root)
    assert fmt.check_action_pointer(fmt.action_path(UUID)) == f"action/{UUID}.binpb"
    manifest = fmt.manifest_path(UUID, OTHER)
    assert fmt.check_manifest_pointer(manifest, UUID) == manifest
    with pytest.raises(Corrupt):
        fmt.check_manifest_pointer(manifest, OTHER)


def test_definition_pointers_of_the_java_sdk_are_taken_for_their_kind_only() -> None:
    for path in (f"def/table/{UUID}-ns-t.binpb", "def/table/x-a b/c%2f\\d.binpb", "def/table/\u20ac.binpb"):
        assert fmt.check_definition_pointer(path, Kind.TABLE) == path
        with pytest.raises(Corrupt):
            fmt.check_definition_pointer(path, Kind.VIEW)
    with pytest.raises(Corrupt):
        fmt.check_definition_pointer("def/table/" + "x" * fmt.POINTER_SIZE_BYTES_MAX + ".binpb", Kind.TABLE)


@given(kind=kinds, namespace=st.text(min_size=1, max_size=60), name=st.text(min_size=1, max_size=60))
def test_no_name_steers_a_definition_path(kind: Kind, namespace: str, name: str) -> None:
    path = fmt.definition_path(object_name(kind, namespace, name), UUID)
    assert fmt.check_definition_pointer(path, kind) == path
    assert path.isascii()
    assert path.count("/") == 2
    assert len(path) <= 160


def test_definition_paths() -> None:
    assert fmt.definition_path(fmt.CATALOG, UUID) == f"def/catalog/{UUID}.binpb"
    assert fmt.definition_path(fmt.table_name("ns1", "t/1"), UUID) == f"def/table/{UUID}-ns1-t_1.binpb"
    assert fmt.definition_path(fmt.namespace_name("n" * 50), UUID) == f"def/ns/{UUID}-{'n' * 40}.binpb"


def test_data_paths() -> None:
    folder = fmt.data_folder(UUID, OTHER, UUID)
    assert fmt.parse_data_path(folder + "part-0.c000.parquet") == (UUID, OTHER, UUID, "part-0.c000.parquet")
    # Spark skips names that begin with a dot or an underscore.
    for name in (
        "_x.parquet",
        ".x.parquet",
        "x.orc",
        "a/b.parquet",
        "x*.parquet",
        "x.parquet\n",
        "\u20ac.parquet",
    ):
        with pytest.raises(Corrupt) as caught:
            fmt.parse_data_path(folder + name)
        assert caught.value.kind == "corrupt_manifest"
