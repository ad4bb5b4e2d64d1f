"""The cost of the checksums of data files: what a read adds to decoding, and what a write adds to encoding.

    make bench BENCH=checksums
    python tests/bench/bench_checksums.py [--rows 1000000] [--rounds 15]

The output has CPU milliseconds of this process for one file of the library's writer, by codec. The cases of a round run
one after the other, in another order each round, and the medians of all rounds are compared.

- decode: all rows through the reader of scans, which compares nothing.
- pages: the same with the page checksums of Parquet, as in files that were listed without checksums.
- read: the same as decode, after the CRC-32 of all bytes was compared, as scans do.
- sum: the CRC-32 of all bytes alone.
- encode, write: the writer without and with checksums.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import zlib
from collections.abc import Callable
from unittest import mock

import pyarrow as pa

from alpheus.rows import encoder
from alpheus.rows.encoder import FileEncoder, cut
from alpheus.rows.file_reader import FileReader
from alpheus.rows.plan import Plan, PlannedFile
from alpheus_journal import format as fmt
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.tables.checksums import find_changed_bytes, with_checksums
from alpheus_journal.tables.columns import columns_of_schema, schema_of_columns
from alpheus_journal.tables.data_file import DataFile

TABLE = "00000000-0000-4000-8000-000000000001"
PATH = fmt.data_folder(TABLE, "01900000-0000-7000-8000-000000000000", TABLE) + "part-00000.parquet"


class _Unsummed:
    """The writer's stream without checksums."""

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self.crc32 = 0
        self.closed = False

    @property
    def size(self) -> int:
        return self._sink.tell()

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)

    def close(self) -> None:
        pass

    def keep_end(self) -> None:
        pass

    def footer_crc32(self) -> int:
        return 0


def rows_of(count: int) -> pa.Table:
    rng = random.Random(1)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "amount": pa.array([rng.gauss(0, 100) for _ in range(count)]),
            "quantity": pa.array([rng.randrange(1000) for _ in range(count)], pa.int32()),
            "country": pa.array([rng.choice(["de", "fr", "us", "jp"]) for _ in range(count)]),
            "note": pa.array([f"order {n % 9973} of {n}" for n in range(count)]),
        }
    )


def encoded(rows: pa.Table, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    writer = FileEncoder(rows.schema, {}, file_size_target=1 << 30, codec=codec)
    writer.next_file(cut(iter(rows.to_batches())), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def measure(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of each case."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    rng = random.Random(2)
    for number in range(rounds + 1):
        for name in rng.sample(list(cases), len(cases)):
            began = time.process_time()
            cases[name]()
            if number:  # the first round warms up
                taken[name].append((time.process_time() - began) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    columns = columns_of_schema(rows_of(1).schema)
    rows = rows_of(options.rows).cast(schema_of_columns(columns))
    table = TableDef(id=TABLE, columns=columns, next_column_id=99)
    for codec in ("zstd", "snappy", "none"):
        data = encoded(rows, codec)
        plain = DataFile(path=PATH, row_count=len(rows), size_bytes=len(data))
        summed = with_checksums(plain, data)
        reader = FileReader(Plan(table=table, where=None, files=(), skipped=()), columns)

        def decode(file: DataFile, data: bytes = data, reader: FileReader = reader) -> None:
            planned = PlannedFile(file=file, sequence=0, predicates=(), is_filtered=False)
            for _ in reader.rows(data, planned):
                pass

        def read(summed: DataFile = summed, data: bytes = data) -> None:
            assert not find_changed_bytes(summed, data)
            decode(summed)

        def encode_plain(codec: str = codec) -> None:
            with mock.patch.object(encoder, "_Summed", _Unsummed):
                encoded(rows, codec)

        found = measure(
            {
                "decode": lambda summed=summed: decode(summed),
                "pages": lambda plain=plain: decode(plain),
                "read": read,
                "sum": lambda data=data: zlib.crc32(data),
                "encode": encode_plain,
                "write": lambda codec=codec: encoded(rows, codec),
            },
            options.rounds,
        )
        print(f"{codec}, {len(data) / 1e6:.1f} MB:")
        for name, value in found.items():
            base = found["encode" if name in ("encode", "write") else "decode"]
            print(f"  {name:8} {value:7.1f} ms  {value / base:6.1%}")


if __name__ == "__main__":
    main()
