"""Arrow has many layouts for the same values. Any layout is accepted, or refused with the name of the column.

Hypothesis draws the layouts. The encoded values are known as Python values, and reads return those values.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpheus
from alpheus import Catalog
from alpheus.errors import InvalidInput
from alpheus.rows.arrow.input_data import cast_data
from alpheus.rows.arrow.layouts import is_plain, plain, plain_size
from alpheus_journal.tables.columns import columns_of_schema

# --- drawing ---------------------------------------------------------------------------------------

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2),
}


def _deeper(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        kinds.map(pa.list_),
        st.lists(kinds, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([*zip("xyz", kinds, strict=False)])
        ),
        st.tuples(st.sampled_from([pa.string(), pa.int64()]), kinds).map(lambda pair: pa.map_(*pair)),
    )


KINDS = st.recursive(st.sampled_from(list(LEAVES)), _deeper, max_leaves=4)
"""Types as a table returns them."""


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries(
            {kind.field(index).name: values_of(kind.field(index).type) for index in range(kind.num_fields)}
        )
    if pa.types.is_map(kind):
        pair = st.tuples(LEAVES[kind.key_type], values_of(kind.item_type))
        return st.none() | st.lists(pair, max_size=3, unique_by=lambda pair: pair[0])
    return st.none() | LEAVES[kind]


class Drawer:
    """Arrays of values in layouts that Hypothesis chooses."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def one(self, *choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices))

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return an array of the values, which is sometimes cut out of a longer array."""
        if not self.one(False, False, True):
            return self._encoded(values, kind)
        before, after = (self._data.draw(st.lists(values_of(kind), max_size=2)) for _ in range(2))
        return self._encoded([*before, *values, *after], kind).slice(len(before), len(values))

    def _encoded(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        how = self.one("as it is", "as it is", "dictionary", "runs", "extension")
        if how == "dictionary":
            order = [*range(len(values))]
            # The dictionary holds each value twice, and NULL.
            dictionary = self.array([*values, None, *reversed(values)], kind)
            width = self.one(
                pa.int8(),
                pa.uint8(),
                pa.int16(),
                pa.uint16(),
                pa.int32(),
                pa.uint32(),
                pa.int64(),
                pa.uint64(),
            )
            if len(values) > 127 and width in (pa.int8(), pa.uint8()):
                width = pa.int16()
            places = [None if values[at] is None and self.one(True, False) else at for at in order]
            return pa.DictionaryArray.from_arrays(pa.array(places, width), dictionary)
        if how == "runs" and values:
            runs: list[tuple[int, Any]] = []
            for end, value in enumerate(values, 1):
                same = bool(runs) and runs[-1][1] == value and type(runs[-1][1]) is type(value)
                runs[-1:] = (
                    [(end, value)] if same and str(runs[-1][1]) == str(value) else [*runs[-1:], (end, value)]
                )
            ends = pa.array([end for end, _ in runs], self.one(pa.int16(), pa.int32(), pa.int64()))
            return pa.RunEndEncodedArray.from_arrays(ends, self.array([value for _, value in runs], kind))
        if how == "extension":
            storage = self.array(values, kind)
            while isinstance(storage, pa.ExtensionArray):  # Arrow does not nest extension types
                storage = storage.storage
            return pa.ExtensionArray.from_storage(pa.opaque(storage.type, "thing", "tests"), storage)
        if pa.types.is_list(kind):
            return self._lists(values, kind)
        if pa.types.is_struct(kind):
            children = [
                self.array([None if value is None else value[field.name] for value in values], field.type)
                for field in (kind.field(index) for index in range(kind.num_fields))
            ]
            names = [kind.field(index).name for index in range(kind.num_fields)]
            return pa.StructArray.from_arrays(children, names=names, mask=_nulls(values))
        if pa.types.is_map(kind):
            pairs = [pair for value in values for pair in value or ()]
            keys = self.array([key for key, _ in pairs], kind.key_type)
            items = self.array([item for _, item in pairs], kind.item_type)
            return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, mask=_nulls(values))
        return self._leaf(values, kind)

    def _leaf(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        layouts = {
            pa.string(): (pa.string(), pa.large_string(), pa.string_view()),
            pa.binary(): (pa.binary(), pa.large_binary(), pa.binary_view()),
            pa.binary(3): (pa.binary(3), pa.binary(3), pa.binary(), pa.binary_view()),
            pa.decimal128(10, 2): (pa.decimal128(10, 2), pa.decimal256(10, 2), pa.decimal64(10, 2)),
            pa.int16(): (pa.int16(), pa.int64(), pa.int32()),
            pa.timestamp("us", "UTC"): (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Kolkata")),
        }.get(kind, (kind,))
        return pa.array(
            values,
            self.one(*layouts) if self.widens else layouts[0] if len(layouts) > 3 else self.one(*layouts[:3]),
        )

    widens = True

    def _lists(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        lengths = {len(value) for value in values if value is not None}
        size = lengths.pop() if len(lengths) == 1 else 0
        how = self.one("list", "large", "view", "large view", *["fixed"] * (2 if size else 0))
        if how == "fixed":
            items = [item for value in values for item in (value if value is not None else [None] * size)]
            return pa.FixedSizeListArray.from_arrays(
                self.array(items, kind.value_type), size, mask=_nulls(values)
            )
        width = pa.int64() if how.startswith("large") else pa.int32()
        items = [item for value in values for item in value or ()]
        below = self.array(items, kind.value_type)
        offsets = _offsets(values, width)
        if how == "list":
            return pa.ListArray.from_arrays(offsets, below, mask=_nulls(values))
        if how == "large":
            return pa.LargeListArray.from_arrays(offsets, below, mask=_nulls(values))
        # Views may have any order, and values below NULL.
        sizes = pa.array([min(1, len(items)) if value is None else len(value) for value in values], width)
        starts = pa.array(
            [0 if value is None else start.as_py() for value, start in zip(values, offsets, strict=False)],
            width,
        )
        cls = pa.ListViewArray if how == "view" else pa.LargeListViewArray
        return cls.from_arrays(starts, sizes, below, mask=_nulls(values))


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _offsets(values: list[Any], width: pa.DataType) -> pa.Array:
    found = [0]
    for value in values:
        found.append(found[-1] + len(value or ()))
    return pa.array(found, width)


def comparable(value: Any) -> Any:
    """Return a value for comparison: zeros keep their signs, and structs of Python and of Arrow are alike."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return repr(value) if isinstance(value, float) else value


# --- the values ------------------------------------------------------------------------------------


@given(KINDS, st.data())
def test_an_array_of_any_layout_becomes_plain(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(values_of(kind), max_size=5))
    array = Drawer(data).array(values, kind)
    found = plain(array)
    assert is_plain(found.type)
    found.validate(full=True)
    [column] = columns_of_schema(pa.schema([("c", kind)]))
    [*batches] = cast_data(pa.record_batch({"c": array}), [column], 1 << 20)
    back = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert comparable(back) == comparable(values)
    assert all(batch.schema.field(0).type.equals(kind) for batch in batches if not kind.num_fields)
    assert plain_size(array) >= 0


@pytest.fixture(scope="module")
def catalog() -> Iterator[Catalog]:
    with alpheus.create("memory://layouts") as catalog:
        yield catalog


@pytest.fixture(scope="module")
def new_name(catalog: Catalog) -> Callable[[], str]:
    catalog.create_namespace("s")
    count = iter(range(1 << 30))
    return lambda: f"s.t{next(count)}"


class Exporter:
    """Exports a table to Arrow as polars, DuckDB and others do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OneBatch:
    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches() or [
            pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)
        ]

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batches[0].__arrow_c_array__(requested_schema)


SOURCES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "stream": Exporter,
    "array": OneBatch,
}


IN_PYARROW = ("table", "batch", "reader")


@given(KINDS, st.data())
def test_rows_of_any_layout_go_in_by_every_verb(
    catalog: Catalog, new_name: Callable[[], str], kind: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(values_of(kind), min_size=1, max_size=4))
    drawer = Drawer(data)
    ids = [*range(len(values))]

    def given_as() -> Any:
        table = pa.table({"id": drawer.array(ids, pa.int64()), "c": drawer.array(values, kind)})
        # Arrow exports nested runs to other libraries, but does not import them. The text of a type hides its storage.
        may_have_runs = "run_end" in str(table.schema) or "extension" in str(table.schema)
        sources = [source for source in SOURCES if not may_have_runs or source in IN_PYARROW]
        return SOURCES[drawer.one(*sources)](table)

    def now(name: str) -> Any:
        return comparable(
            [row["c"] for row in sorted(catalog.read(name).to_pylist(), key=lambda row: row["id"])]
        )

    name = new_name()
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("c", kind)]))
    verb = drawer.one("append", "overwrite", "merge", "replace", "create")
    if verb == "create":
        drawer.widens = False
        catalog.create_table(name := new_name(), given_as())
    elif verb == "append":
        catalog.append(name, given_as())
    else:
        catalog.append(name, [{"id": 0, "c": None}])
        if verb == "overwrite":
            catalog.overwrite(name, given_as())
        elif verb == "replace":
            catalog.overwrite(name, given_as(), where="id >= 0")
        else:
            catalog.merge(name, given_as(), on="id")
    assert now(name) == comparable(values)


# --- some by name ----------------------------------------------------------------------------------

DAY = dt.date(2026, 3, 1)
TEXTS = pa.array(["b", "a", None], pa.string_view())
PLACES = pa.array([1, None, 0, 2], pa.uint64())
AS_POLARS = {
    "categorical": pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2], pa.uint32()), TEXTS),
    "enum": pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2], pa.uint8()), TEXTS, ordered=True),
    "list of categorical": pa.LargeListArray.from_arrays(
        [0, 1, 1, 3, 4], pa.DictionaryArray.from_arrays(PLACES, TEXTS)
    ),
    "array": pa.FixedSizeListArray.from_arrays(
        pa.array(range(8)), 2, mask=pa.array([False, True, False, False])
    ),
    "struct of categorical": pa.StructArray.from_arrays(
        [pa.DictionaryArray.from_arrays(PLACES, TEXTS)],
        names=["f"],
        mask=pa.array([False, True, False, False]),
    ),
    "binary": pa.array([b"b", None, b"a", b"x" * 20], pa.binary_view()),
    "runs below NULL": pa.StructArray.from_arrays(
        [
            pa.RunEndEncodedArray.from_arrays(
                pa.array([2, 4], pa.int32()), pa.array(["p", "q"], pa.string_view())
            )
        ],
        names=["f"],
        mask=pa.array([False, True, False, True]),
    ),
}
"""Arrays as polars exports its types, and one more."""


@pytest.mark.parametrize("array", AS_POLARS.values(), ids=AS_POLARS)
def test_frames_as_polars_has_them(catalog: Catalog, new_name: Callable[[], str], array: pa.Array) -> None:
    frame = Exporter(pa.table({"id": pa.array([1, 2, 3, 4]), "c": array}))
    want = array.to_pylist()

    def now() -> list[Any]:
        return [row["c"] for row in sorted(catalog.read(name).to_pylist(), key=lambda row: row["id"])]

    catalog.create_table(name := new_name(), frame)
    assert now() == want
    catalog.overwrite(name, frame)
    catalog.append(name, pa.table({"id": [5], "c": array[:1]}))
    assert now() == [*want, want[0]]
    catalog.merge(name, frame, on="id")
    assert now() == [*want, want[0]]
    catalog.update(name, {"c": array[2]}, where="id = 1")
    assert now() == [want[2], *want[1:], want[0]]
    if array.type.num_fields == 0 or pa.types.is_dictionary(array.type):
        catalog.overwrite(name, pa.table({"id": [6, 7], "c": array[2:]}))
        commit = catalog.merge(name, pa.table({"c": array[2:3], "id": [8]}), on="c")
        assert (commit.rows_added, commit.rows_removed) == (1, 1)
        assert sorted(row["id"] for row in catalog.read(name).to_pylist()) == [7, 8]


class Email(pa.ExtensionType):  # type: ignore[misc]
    """An extension type as in pyarrow's manual: Python finds no hash for it."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "my.email")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Email:
        return cls()


def test_a_type_of_a_user_that_cannot_be_hashed(catalog: Catalog, new_name: Callable[[], str]) -> None:
    mails = pa.ExtensionArray.from_storage(Email(), pa.array(["a@x", "b@x"]))
    with pytest.raises(TypeError):
        hash(mails.type)
    for array in (mails, pa.StructArray.from_arrays([mails], names=["f"]), pa.array([["a"]] * 2)):
        if pa.types.is_list(array.type):
            array = pa.ListArray.from_arrays([0, 1, 2], mails)
        table = pa.table({"id": [1, 2], "c": array})
        catalog.create_table(name := new_name(), table)
        catalog.overwrite(name, table)
        catalog.merge(name, table, on="id")
        catalog.append(name, table)
        assert sorted(str(row["c"]) for row in catalog.read(name).to_pylist()) == sorted(
            map(str, array.to_pylist() * 2)
        )


def _map_of_nothing() -> pa.Array:
    return pa.MapArray.from_arrays(pa.array([0, 0, 0], pa.int32()), pa.nulls(0), pa.array([], pa.int64()))


def _union() -> pa.Array:
    return pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    )


REFUSED = {
    "union": _union(),
    "union in a struct": pa.StructArray.from_arrays([_union()], names=["f"]),
    "union in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), _union()),
    "union in a list view": pa.ListViewArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.array([1, 1], pa.int32()), _union()
    ),
    "time": pa.array([1, 2], pa.time64("us")),
    "durations in a dictionary": pa.array([1, 2], pa.duration("s")).dictionary_encode(),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "an opaque time": pa.ExtensionArray.from_storage(
        pa.opaque(pa.time32("s"), "t", "v"), pa.array([1, 2], pa.time32("s"))
    ),
    "a map of no keys": _map_of_nothing(),
    "maps of no keys in a list": pa.ListArray.from_arrays([0, 1, 2], _map_of_nothing()),
    "maps of no keys in a dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int8()), _map_of_nothing()
    ),
    "digits": pa.array([Decimal(10**50), None], pa.decimal256(60, 0)),
}


@pytest.mark.parametrize("array", REFUSED.values(), ids=REFUSED)
def test_what_no_table_has_is_refused_by_name(
    catalog: Catalog, new_name: Callable[[], str], array: pa.Array
) -> None:
    table = pa.table({"id": [1, 2], "odd": array})
    catalog.create_table(name := new_name(), pa.schema([("id", pa.int64()), ("odd", pa.string())]))
    catalog.append(name, [{"id": 1, "odd": "x"}])
    version = catalog.version()
    for data in (table, table.to_batches()[0], Exporter(table)):
        for verb in (
            lambda data=data: catalog.create_table(new_name(), data),
            lambda data=data: catalog.append(name, data),
            lambda data=data: catalog.overwrite(name, data),
            lambda data=data: catalog.overwrite(name, data, where="id > 0"),
            lambda data=data: catalog.merge(name, data, on="id"),
        ):
            with pytest.raises(InvalidInput, match="'odd") as caught:
                verb()
            assert caught.value.kind in ("bad_data", "bad_schema")
            assert "has type" in caught.value.message
    assert catalog.version() == version


def test_a_short_dictionary_of_long_texts_is_taken_in_pieces() -> None:
    """A short dictionary of long texts is cast in pieces. A row has 8 bytes before the cast, and 100,000 after it."""
    texts = pa.array(["x" * 100_000, "y"], pa.string_view())
    [column] = columns_of_schema(pa.schema([("c", pa.string())]))
    places = pa.array([0] * 1000, pa.int64())
    for array in (
        pa.DictionaryArray.from_arrays(places, texts),
        pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), texts[:1]),
    ):
        batch = pa.record_batch({"c": array})
        assert batch.nbytes < 1 << 20
        sizes = [piece.nbytes for piece in cast_data(batch, [column], 1 << 20)]
        assert max(sizes) <= 1 << 20
        assert sum(sizes) >= 100_000_000


def test_extension_types_are_what_they_store(catalog: Catalog, new_name: Callable[[], str]) -> None:
    ids = [uuid.uuid4() for _ in range(2)]
    array = pa.array([one.bytes for one in ids], pa.uuid())
    catalog.create_table(name := new_name(), pa.table({"u": array, "j": pa.array(["{}", None], pa.json_())}))
    assert catalog.read(name).to_pylist() == [{"u": ids[0].bytes, "j": "{}"}, {"u": ids[1].bytes, "j": None}]
    catalog.update(name, {"u": array[1], "j": pa.scalar(None, pa.json_())}, where="true")
    assert catalog.read(name).to_pylist() == [{"u": ids[1].bytes, "j": None}] * 2


def test_frames_of_pandas_with_types_of_arrow(catalog: Catalog, new_name: Callable[[], str]) -> None:
    frame = pd.DataFrame(
        {
            "a": pd.array(["x", None], dtype=pd.ArrowDtype(pa.string_view())),
            "b": pd.Categorical(["u", "v"]),
            "c": pd.array([[1], None], dtype=pd.ArrowDtype(pa.large_list(pa.int64()))),
        }
    )
    catalog.create_table(name := new_name(), frame)
    catalog.append(name, frame)
    assert (
        catalog.read(name).to_pylist()
        == [{"a": "x", "b": "u", "c": [1]}, {"a": None, "b": "v", "c": None}] * 2
    )


def test_nested_runs_of_other_libraries_are_refused(catalog: Catalog, new_name: Callable[[], str]) -> None:
    """Nested runs of other libraries are refused, because Arrow itself does not import them."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([1]))
    nested = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), runs[:1])
    for source in (Exporter, OneBatch):
        with pytest.raises(InvalidInput, match="run-end encoded") as caught:
            catalog.create_table(new_name(), source(pa.table({"odd": nested})))
        assert caught.value.kind == "bad_data"


def test_what_is_not_computed_yet_is_refused_with_a_way_out(
    catalog: Catalog, new_name: Callable[[], str]
) -> None:
    class LazyFrame:
        def collect(self) -> None: ...

    catalog.create_table(name := new_name(), pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInput, match="LazyFrame is not data") as caught:
        catalog.append(name, LazyFrame())
    assert ".collect()" in caught.value.hint


def test_columns_of_any_layout_are_declared(catalog: Catalog, new_name: Callable[[], str]) -> None:
    """Columns of any layout can be declared in a schema, or be added to a table."""

    class Schema:
        def __arrow_c_schema__(self) -> object:
            return schema.__arrow_c_schema__()

    kinds = [
        pa.string_view(),
        pa.list_view(pa.binary_view()),
        pa.dictionary(pa.uint8(), pa.string_view()),
        pa.run_end_encoded(pa.int16(), pa.date32()),
        pa.large_list_view(pa.int64()),
        pa.list_(pa.int64(), 2),
    ]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    catalog.create_table(name := new_name(), Schema())
    catalog.update_table(name, add_columns={f"d{number}": kind for number, kind in enumerate(kinds)})
    plain_kinds = [
        pa.string(),
        pa.list_(pa.binary()),
        pa.string(),
        pa.date32(),
        pa.list_(pa.int64()),
        pa.list_(pa.int64()),
    ]
    assert [field.type for field in catalog.read(name).schema] == [
        pa.list_(pa.field("element", kind.value_type)) if pa.types.is_list(kind) else kind
        for kind in plain_kinds * 2
    ]
