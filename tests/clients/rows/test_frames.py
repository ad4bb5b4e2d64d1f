"""Frames of pandas, NumPy and polars, in and out, and the first rows of a table, over both ways to a catalog."""

from __future__ import annotations

import datetime as dt
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpheus import Catalog, aio
from alpheus.errors import InvalidInput
from alpheus.rows import scan as scan_module
from alpheus.rows.arrow.cast import CastError
from alpheus.rows.arrow.input_data import cast_data
from alpheus_journal.tables.columns import columns_of_schema

REMOTE = {
    "test_nullable_integers_of_pandas_go_in", "test_floats_are_not_taken_for_integers",
    "test_whole_microseconds_go_in_by_every_verb", "test_nanoseconds_are_refused_by_name_by_every_verb",
    "test_the_first_rows", "test_limited_reads_open_no_more_files_than_needed", "test_frames_of_polars",
    "test_without_await_and_with_it",
}  # fmt: skip

_numbers = itertools.count(1)


@pytest.fixture
def name(catalog: Catalog) -> str:
    """Create a namespace, and return a fresh table name in it."""
    space = f"s{next(_numbers)}"
    catalog.create_namespace(space)
    return f"{space}.t"


# --- integers --------------------------------------------------------------------------------------


def test_nullable_integers_of_pandas_go_in(catalog: Catalog, name: str) -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([2**53 + 1, None], dtype="Int64"),
            "small": pd.array([1, None], dtype="Int16"),
            "ok": pd.array([True, None], dtype="boolean"),
            "text": pd.array(["a", None], dtype="string"),
            "x": pd.array([0.5, None], dtype="Float64"),
        }
    )
    rows = [
        {"n": 2**53 + 1, "small": 1, "ok": True, "text": "a", "x": 0.5},
        dict.fromkeys(["n", "small", "ok", "text", "x"]),
    ]
    catalog.create_table(name, frame)
    assert catalog.read(name).to_pylist() == rows
    assert catalog.load_table(name).schema.field("n").type == pa.int64()
    catalog.append(name, frame)
    catalog.append(name, frame.to_dict("records"))  # pandas.NA stands for NULL here
    assert catalog.read(name).to_pylist() == 3 * rows
    catalog.merge(name, pd.DataFrame({"n": pd.array([2**53 + 1], dtype="Int64"), "x": [0.25]}), on="n")
    assert catalog.read(name, where="x = 0.25").num_rows == 3


@pytest.mark.parametrize("values", [[1, None], [1.0, 2.0], [1.5, None]])
def test_floats_are_not_taken_for_integers(catalog: Catalog, name: str, values: list[Any]) -> None:
    """Floats are not taken for integers, even whole ones. pandas turns integers with a hole into floats."""
    frame = pd.DataFrame({"n": pd.Series(values, dtype="float64")})
    catalog.create_table(name, pa.schema([("n", pa.int64())]))
    for write in (catalog.append, catalog.overwrite):
        with pytest.raises(InvalidInput, match="column 'n' has type double, the table int64") as caught:
            write(name, frame)
        assert caught.value.kind == "bad_data"
        assert 'astype("Int64")' in caught.value.hint
    if values[0] == 1:
        catalog.append(name, frame.astype("Int64"))
        assert catalog.read(name)["n"].to_pylist() == [None if v is None else int(v) for v in values]


def test_missing_values_in_dicts(catalog: Catalog, name: str) -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us")),
            ("l", pa.list_(pa.int64())),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("st", pa.struct([("q", pa.int64())])),
            pa.field("id", pa.int64(), nullable=False),
        ]
    )
    catalog.create_table(name, schema)
    catalog.append(name, [{"id": 1, "t": pd.NA, "l": [1, pd.NA], "m": {"a": pd.NA}, "st": {"q": pd.NA}}])
    catalog.append(name, [{"id": 2, "t": pd.NaT, "l": pd.NA, "m": pd.NA, "st": pd.NA}])
    assert catalog.read(name).to_pylist() == [
        {"id": 1, "t": None, "l": [1, None], "m": [("a", None)], "st": {"q": None}},
        {"id": 2, "t": None, "l": None, "m": None, "st": None},
    ]
    with pytest.raises(InvalidInput, match="'id' is required"):
        catalog.append(name, [{"id": pd.NA}])
    with pytest.raises(InvalidInput, match="'id' of type int64 cannot hold 'nan'") as caught:
        catalog.append(name, [{"id": float("nan")}])
    assert "None" in caught.value.hint


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.sampled_from(["SMALLINT", "INT", "BIGINT"]),
)
@settings(max_examples=60, deadline=None)
def test_any_integers_arrive_whole_or_not_at_all(values: list[int | None], kind: str) -> None:
    target = {"SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()}[kind]
    columns = columns_of_schema(pa.schema([("n", target)]))
    frame = pd.DataFrame({"n": pd.array(values, dtype="Int64")})
    low, high = -(2 ** (target.bit_width - 1)), 2 ** (target.bit_width - 1) - 1
    if all(value is None or low <= value <= high for value in values):
        assert rows_of(frame, columns) == values
        assert rows_of([{"n": value} for value in frame["n"]], columns) == values
    else:
        with pytest.raises(CastError, match="'n' holds a value"):
            rows_of(frame, columns)


def rows_of(data: Any, columns: Any) -> list[Any]:
    return [value for batch in cast_data(data, columns, 1 << 20) for value in batch.column(0).to_pylist()]


# --- times -----------------------------------------------------------------------------------------

AT = "2026-03-01T12:00:00.123456"
MADE: dict[str, Callable[[str], Any]] = {
    "pandas": lambda text: pd.DataFrame({"id": [1], "at": pd.to_datetime([text]).astype("datetime64[ns]")}),
    "numpy": lambda text: pd.DataFrame({"id": [1], "at": np.array([text], dtype="datetime64[ns]")}),
    "arrow": lambda text: pa.table({"id": [1], "at": pa.array([pd.Timestamp(text).value], pa.timestamp("ns"))}),
    "polars": lambda text: pl.DataFrame(
        {"id": [1], "at": [pd.Timestamp(text).value]}, schema={"id": pl.Int64, "at": pl.Datetime("ns")}
    ),
    "dicts": lambda text: [{"id": 1, "at": pd.Timestamp(text)}],
}  # fmt: skip
ZONED: dict[str, Callable[[str], Any]] = {
    "pandas": lambda text: pd.DataFrame(
        {"id": [1], "at": pd.to_datetime([text]).astype("datetime64[ns]").tz_localize("UTC").tz_convert("Asia/Tokyo")}
    ),
    "arrow": lambda text: pa.table(
        {"id": [1], "at": pa.array([pd.Timestamp(text).value], pa.timestamp("ns", "Asia/Tokyo"))}
    ),
    "dicts": lambda text: [{"id": 1, "at": pd.Timestamp(text, tz="UTC").tz_convert("Asia/Tokyo")}],
}  # fmt: skip
TIMES = [(made, None) for made in MADE.items()] + [(made, dt.UTC) for made in ZONED.items()]


@pytest.mark.parametrize(
    ("made", "zone"), TIMES, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_whole_microseconds_go_in_by_every_verb(
    catalog: Catalog, name: str, made: tuple[str, Callable[[str], Any]], zone: dt.tzinfo | None
) -> None:
    data, at = made[1](AT), dt.datetime(2026, 3, 1, 12, 0, 0, 123456, zone)
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("at", pa.timestamp("ns", zone and "UTC"))]))
    assert catalog.load_table(name).schema.field("at").type == pa.timestamp("us", zone and "UTC")
    if not isinstance(data, list):
        catalog.create_table(name + "2", data)
        assert catalog.load_table(name + "2").schema == catalog.load_table(name).schema
        assert catalog.read(name + "2")["at"].to_pylist() == [at]
    catalog.append(name, data)
    catalog.overwrite(name, data)
    catalog.overwrite(name, data, where="id = 1")
    catalog.merge(name, data, on="id")
    catalog.merge(name, data, on="at")
    with catalog.transaction() as tx:
        tx.append(name, data)
    assert catalog.read(name)["at"].to_pylist() == [at, at]


@pytest.mark.parametrize(
    ("made", "zone"), TIMES, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_nanoseconds_are_refused_by_name_by_every_verb(
    catalog: Catalog, name: str, made: tuple[str, Callable[[str], Any]], zone: dt.tzinfo | None
) -> None:
    data = made[1](AT + "789")
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", zone and "UTC"))]))
    verbs: list[Callable[[], Any]] = [
        lambda: catalog.append(name, data),
        lambda: catalog.overwrite(name, data),
        lambda: catalog.overwrite(name, data, where="id = 1"),
        lambda: catalog.merge(name, data, on="id"),
    ]
    if not isinstance(data, list):
        verbs.append(lambda: catalog.create_table(name + "2", data))
    for verb in verbs:
        with pytest.raises(InvalidInput, match="column 'at'") as caught:
            verb()
        assert caught.value.kind == "bad_data"
        assert "microsecond" in caught.value.hint
    with catalog.transaction() as tx:
        with pytest.raises(InvalidInput, match="column 'at'"):
            tx.append(name, data)
        tx.abandon()
    assert not catalog.table_exists(name + "2")
    assert catalog.read(name).num_rows == 0


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1), max_size=10))
@settings(max_examples=60, deadline=None)
def test_any_times_of_nanoseconds_arrive_whole_or_not_at_all(values: list[int | None]) -> None:
    columns = columns_of_schema(pa.schema([("t", pa.timestamp("ns"))]))
    series = pd.Series(np.array(["NaT" if v is None else v for v in values], dtype="datetime64[ns]"))
    for data in (pd.DataFrame({"t": series}), pa.table({"t": pa.array(values, pa.timestamp("ns"))})):
        if all(value is None or value % 1000 == 0 for value in values):
            (batch,) = cast_data(data, columns, 1 << 20) if values else [None]
            if batch is not None:
                micros = batch.column(0).cast(pa.int64()).to_pylist()
                assert micros == [None if value is None else value // 1000 for value in values]
        else:
            with pytest.raises(CastError, match="column 't' holds a value"):
                list(cast_data(data, columns, 1 << 20))


# --- the first rows --------------------------------------------------------------------------------


@pytest.fixture
def files(catalog: Catalog, name: str) -> str:
    """Create a table of five files of ten rows each (ids 0 to 49), and return its name."""
    catalog.create_table(name, pa.schema([("id", pa.int64()), ("s", pa.string())]), sort_by=["id desc"])
    for start in range(0, 50, 10):
        catalog.append(name, pa.table({"id": range(start, start + 10), "s": ["a", "b"] * 5}))
    return name


def test_the_first_rows(catalog: Catalog, files: str) -> None:
    everything = catalog.read(files)
    there = catalog.at(-1)
    for limit in (0, 1, 9, 10, 11, 49, 50, 1000, None):
        first = everything.slice(0, limit)
        assert catalog.read(files, limit=limit).equals(first)
        assert there.read(files, limit=limit).equals(first)
        assert catalog.read(files, at=-1, limit=limit).equals(first)
        assert catalog.scan(files, limit=limit).count() == first.num_rows
        assert catalog.scan(files, limit=limit).to_batches().read_all().equals(first)
        assert len(catalog.scan(files, limit=limit).to_pandas()) == first.num_rows
        in_order = catalog.scan(files).ordered().to_arrow().slice(0, limit)
        assert catalog.scan(files, limit=limit).ordered().to_arrow().equals(in_order)
    some = catalog.read(files, where="s = 'b' and id > 12", columns=["s"], limit=7)
    assert (some.num_rows, some.schema.names, set(some["s"].to_pylist())) == (7, ["s"], {"b"})
    catalog.delete(files, "id < 25")
    assert catalog.read(files, limit=30).num_rows == 25
    assert catalog.scan(files, where="s = 'a'", limit=3).count() == 3
    assert "at most 3 rows" in catalog.scan(files, limit=3).explain()
    with catalog.transaction() as tx:
        tx.append(files, [{"id": 1000}])
        assert tx.read(files, where="id = 1000", limit=2).num_rows == 1
        tx.abandon()
    with catalog.replica() as copy:
        assert copy.read(files, limit=2).num_rows == 2


@pytest.mark.parametrize("limit", [-1, True, 1.0, "1", np.float64(1)])
def test_what_is_no_limit_is_refused(catalog: Catalog, files: str, limit: Any) -> None:
    for read in (catalog.read, catalog.scan, catalog.at(-1).read):
        with pytest.raises(InvalidInput, match="limit="):
            read(files, limit=limit)


def test_limited_reads_open_no_more_files_than_needed(
    catalog: Catalog, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = scan_module.read_data_file

    async def counted(storage: Any, file: Any, *rest: Any) -> bytes:
        opened.append(file.path)
        return await read(storage, file, *rest)

    monkeypatch.setattr(scan_module, "read_data_file", counted)
    for limit, most in ((0, 0), (1, 1), (10, 1), (11, 2), (25, 3), (50, 5)):
        opened.clear()
        assert catalog.read(files, limit=limit).num_rows == limit
        assert len(opened) == most, limit
    opened.clear()
    assert catalog.read(files, where="s = 'a'", limit=6).num_rows == 6
    assert len(opened) == 2
    opened.clear()
    assert catalog.scan(files, where="s = 'a'", limit=5).count() == 5
    assert len(opened) == 1


# --- polars ----------------------------------------------------------------------------------------


def test_frames_of_polars(catalog: Catalog, name: str) -> None:
    frame = pl.DataFrame(
        {
            "id": [1, 2],
            "at": [dt.datetime(2026, 3, 1), None],
            "tags": [["a"], []],
            "amount": pl.Series(["1.50", None]).cast(pl.Decimal(10, 2)),
        }
    )
    catalog.create_table(name, frame)
    catalog.append(name, frame)
    found = catalog.scan(name, limit=2).to_polars()
    assert isinstance(found, pl.DataFrame)
    assert found.equals(frame)
    assert catalog.scan(name, columns=["id"], where="id = 2").to_polars().rows() == [(2,), (2,)]
    assert pl.from_arrow(catalog.read(name)).equals(pl.concat([frame, frame]))


def test_polars_that_is_not_installed_is_named(
    catalog: Catalog, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidInput, match="polars is not installed") as caught:
        catalog.scan(files).to_polars()
    assert (caught.value.kind, "pip install" in caught.value.hint) == ("not_supported", True)


@pytest.mark.parametrize("way", ["direct", "remote"])
async def test_without_await_and_with_it(lake_by: Callable[[str], str], way: str) -> None:
    async with await aio.connect(lake_by(way), create=way == "direct") as there:
        await there.create_namespace("a")
        await there.create_table("a.t", pa.table({"id": range(10)}))
        for reader in (there, await there.at(-1)):
            assert (await reader.read("a.t", limit=3))["id"].to_pylist() == [0, 1, 2]
            assert (await (await reader.scan("a.t", limit=3)).to_polars()).height == 3
