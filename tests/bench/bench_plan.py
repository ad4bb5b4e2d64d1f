"""The cost of planning a read: N files of a table, pruned by a condition, under delete predicates.

    make bench BENCH=plan
    python tests/bench/bench_plan.py [--files 10000] [--spark]

The output has CPU seconds of this process: for reading the manifest segments (cold), for the plan alone (warm), and for
`explain`. `--spark` also makes the files, as hard links to one file, and measures the wall clock that Spark adds:
making the frame, and a count over one scan, over two groups, and over many.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from alpheus.rows.plan import FileAt, plan
from alpheus.where.conditions import parse
from alpheus_journal import format as fmt
from alpheus_journal.model.definitions import DeletePredicate, Segment, TableDef
from alpheus_journal.predicate import encode
from alpheus_journal.storage import open_storage
from alpheus_journal.tables.columns import columns_of_schema, encode_bound, schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, segment_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000  # of a file; ids do not overlap
SEGMENT_FILES = 1000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.float64()), ("country", pa.string())]
    + [(f"c{i}", pa.int64()) for i in range(5)]
)


def made(count: int) -> tuple[TableDef, list[tuple[Segment, bytes]], list[DataFile]]:
    columns = columns_of_schema(SCHEMA)
    table_id, transaction = str(uuid.uuid4()), "01900000-0000-7000-8000-000000000000"
    folder = fmt.data_folder(table_id, transaction, str(uuid.uuid4()))
    files = [
        DataFile(
            path=f"{folder}part-{number:05d}.parquet",
            row_count=ROWS,
            size_bytes=1,
            value_counts={column.id: ROWS for column in columns},
            null_counts={column.id: 0 for column in columns},
            lower_bounds={1: encode_bound(columns[0], number * ROWS), 3: b"AT"},
            upper_bounds={1: encode_bound(columns[0], number * ROWS + ROWS - 1), 3: b"ZW"},
        )
        for number in range(count)
    ]
    segments = []
    for start in range(0, count, SEGMENT_FILES):
        path = fmt.manifest_path(table_id, str(uuid.uuid4()))
        data, segment = segment_of(
            files[start : start + SEGMENT_FILES], path=path, table_id=table_id, schema_id=0
        )
        segments.append((segment, data))
    table = TableDef(
        id=table_id, columns=columns, next_column_id=99, sequence=9,
        segments=tuple(segment for segment, _ in segments),
    )  # fmt: skip
    return table, segments, files


def hidden(table: TableDef, wheres: list[tuple[int, str]]) -> TableDef:
    import msgspec

    predicates = tuple(
        DeletePredicate(
            sequence=sequence,
            expression=encode(parse(text, table.columns)),
            transaction_id="t",
            committed_sequence=9,
        )
        for sequence, text in wheres
    )
    return msgspec.structs.replace(table, delete_predicates=predicates)


def timed(label: str, fn: object) -> object:
    cpu = time.process_time()
    result = fn()  # type: ignore[operator]
    print(f"{label:58} {time.process_time() - cpu:7.3f} s CPU")
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--files", type=int, default=10_000)
    arguments.add_argument("--spark", action="store_true")
    given = arguments.parse_args()
    table, segments, files = made(given.files)
    ats: list[FileAt] = [(file, 1 + number * 8 // given.files) for number, file in enumerate(files)]
    where = parse(f"id = {given.files * ROWS // 2} AND country <> 'DE'", table.columns)
    print(f"{given.files} files in {len(segments)} segments")
    timed(
        "read the segments", lambda: [decode_segment(data, s.path, table_id=table.id) for s, data in segments]
    )
    few = hidden(table, [(4, "v < 0"), (8, f"id BETWEEN 10 AND {ROWS * 20}")])
    many = hidden(table, [(1 + n % 8, f"id = {n * 997}") for n in range(500)])
    ranges = hidden(table, [(1 + n % 8, f"id BETWEEN {n * 997} AND {n * 997 + 50}") for n in range(500)])
    for name, shape in (
        ("no delete predicates", table),
        ("2 delete predicates", few),
        ("500 delete predicates", many),
        ("500 ranges deleted", ranges),
    ):
        timed(f"plan, all rows, {name}", lambda shape=shape: plan(shape, ats))
        found = timed(f"plan, one file of them, {name}", lambda shape=shape: plan(shape, ats, where))
        timed(f"explain, {name}", lambda found=found: found.explain())  # type: ignore[attr-defined]
    if given.spark:
        spark_costs(table, few, many, ats)


def spark_costs(plain: TableDef, few: TableDef, many: TableDef, ats: list[FileAt]) -> None:
    from alpheus.spark import session
    from alpheus.spark.files import file_scan
    from alpheus.spark.tables import scan

    spark: SparkSession = session("bench", cores=2, settings={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        storage = asyncio.run(opened(folder))
        file_scan.set_up(spark, storage)
        first = Path(folder) / ats[0][0].path
        first.parent.mkdir(parents=True)
        data = {name: list(range(ROWS)) for name in SCHEMA.names if name not in ("v", "country")}
        rows = pa.table({**data, "v": [1.0] * ROWS, "country": ["DE"] * ROWS}).select(SCHEMA.names)
        pq.write_table(rows.cast(schema_of_columns(plain.columns)), first)
        for file, _ in ats[1:]:
            os.link(first, Path(folder) / file.path)
        for name, shape in (("one scan", plain), ("groups", few), ("many predicates", many)):
            for _ in range(2):
                began = time.monotonic()
                df = scan.rows_of(spark, storage, plan(shape, ats))
                framed = time.monotonic()
                count = df.count()
                print(
                    f"{name:20} frame {framed - began:6.2f} s, count {time.monotonic() - framed:6.2f} s ({count} rows)"
                )
    spark.stop()


async def opened(folder: str):  # type: ignore[no-untyped-def]
    return open_storage(f"file://{folder}")


if __name__ == "__main__":
    main()
