"""The code that Spark's tasks run: it travels without the package, and its files hold exactly the rows of the task."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from alpheus_test_servers import S3Server
from pyspark import cloudpickle

from alpheus.rows import encoder
from alpheus.rows.arrow import input_data
from alpheus.spark.files import task_writer, writes
from alpheus.spark.files.locations import task_place
from alpheus.spark.files.task_writer import Task
from alpheus_journal.storage import open_storage

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("x", pa.float64(), metadata={"PARQUET:field_id": "2"}),
        pa.field("s", pa.string(), metadata={"PARQUET:field_id": "3"}),
    ]
)


def task_into(folder: Path, **changed: Any) -> Task:
    values: dict[str, Any] = {
        "folder": f"{folder}/",
        "filesystem": None,
        "profile": "",
        "schema": SCHEMA.serialize().to_pybytes(),
        "footer": {"alpheus.table_id": "t"},
        "codec": "snappy",
        "file_size_target": encoder.FILE_SIZE_TARGET,
        "has_key": False,
        "first_columns": (2,),
    }
    return Task(**values | changed)


def batches_of(rows: list[dict[str, Any]], rng: random.Random, *, key: bool) -> list[pa.RecordBatch]:
    """Cut rows into batches, some of them empty."""
    schema = SCHEMA.append(pa.field("k", pa.int32())) if key else SCHEMA
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(6)))
    ends = [0, *cuts, len(rows)]
    return [
        pa.RecordBatch.from_pylist(rows[begin:end], schema=schema) for begin, end in itertools.pairwise(ends)
    ]


def write(task: Task, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for found in task_writer.write_rows(task, iter(batches)) for row in found.to_pylist()]


def checksums_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    return zlib.crc32(data), zlib.crc32(data[-8 - int.from_bytes(data[-8:-4], "little") :])


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_files_hold_the_rows_of_the_task(tmp_path: Path, keyed: bool) -> None:
    """Files hold the rows in their order. With a key each file has the rows of one value, and files end at the target
    size."""
    for seed in range(20):
        rng = random.Random(seed)
        rows = [
            {
                "id": n,
                "x": rng.choice([None, float("nan"), 1.5]),
                "s": rng.choice([None, "", "ä" * 300]),
                "k": n // 9,
            }
            for n in range(rng.randrange(60))
        ]
        if not keyed:
            rows = [{name: row[name] for name in SCHEMA.names} for row in rows]
        folder = tmp_path / str(seed)
        target = rng.choice([1, 700, 1 << 20])
        task = task_into(folder, has_key=keyed, file_size_target=target)
        reports = write(task, batches_of(rows, rng, key=keyed))
        found: list[dict[str, Any]] = []
        for report in reports:
            path = folder / report["path"]
            assert report["size"] == path.stat().st_size
            assert (report["crc32"], report["footer_crc32"]) == checksums_of(path)
            table = pq.read_table(path)
            footer = pq.read_metadata(pa.BufferReader(zlib.decompress(report["footer"])))
            assert footer.num_rows == table.num_rows > 0
            nans = sum(value != value for value in table["x"].to_pylist() if value is not None)
            assert json.loads(report["nans"]) == {"2": nans}
            with pa.ipc.open_stream(report["first"]) as first:
                assert first.read_all().to_pylist() == [{"s": table["s"][0].as_py()}]
            if keyed:
                assert len({row // 9 for row in table["id"].to_pylist()}) == 1
            found += table.to_pylist()
        wanted = [{name: row[name] for name in SCHEMA.names} for row in rows]
        assert str(found) == str(wanted), seed
        assert len({report["path"] for report in reports}) == len(reports)
        stored = list(folder.iterdir()) if folder.exists() else []
        assert len(stored) == len(reports), "a file that no task reports"


def test_two_attempts_share_no_name(tmp_path: Path) -> None:
    rows = [{"id": 1, "x": 1.0, "s": "a"}]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    first, second = (write(task_into(tmp_path), [batch]) for _ in range(2))
    assert first[0]["path"] != second[0]["path"]
    assert len(list(tmp_path.iterdir())) == 2


def without_offsets(kind: pa.DataType) -> pa.Array:
    """Return an empty array as Spark 4.1 sends it: with no offset, and other bytes behind the buffer."""
    nothing = pa.py_buffer(b"\x7f" * 64).slice(32, 0)
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, 0, [None, nothing], children=[without_offsets(kind.value_type)])
    if pa.types.is_map(kind):
        parts = [without_offsets(kind.key_type), without_offsets(kind.item_type)]
        entries = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, 0, [None, nothing], children=[entries])
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([without_offsets(field.type) for field in kind], fields=list(kind))
    buffers = [None, nothing, nothing] if pa.types.is_string(kind) else [None, nothing]
    return pa.Array.from_buffers(kind, 0, buffers)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.string())),
        pa.list_(pa.map_(pa.string(), pa.list_(pa.int32()))),
        pa.list_(pa.struct([("a", pa.list_(pa.list_(pa.string()))), ("b", pa.float64())])),
        pa.map_(pa.string(), pa.list_(pa.list_(pa.int64()))),
    ],
    ids=str,
)
def test_empty_arrays_without_offsets(tmp_path: Path, kind: pa.DataType) -> None:
    """Rows of NULL, in slices too. pyarrow would read the offset that is not there, and crash."""
    offsets = pa.array([0] * 5, pa.int32()).buffers()[1]
    validity = pa.array([True, False, True, False]).buffers()[1]  # two empty lists, two NULLs
    if pa.types.is_map(kind):
        parts = [without_offsets(kind.key_type), without_offsets(kind.item_type)]
        inner = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
    else:
        inner = without_offsets(kind.value_type)
    column = pa.Array.from_buffers(kind, 4, [validity, offsets], children=[inner])
    ids = pa.array(range(4), pa.int64())
    struct = pa.StructArray.from_arrays([column], names=["c"])
    batch = pa.RecordBatch.from_arrays([ids, column, struct], names=["id", "c", "s"])
    numbers = itertools.count(1)

    def numbered(field: pa.Field) -> pa.Field:
        inside = field.type
        if pa.types.is_list(inside):
            inside = pa.list_(numbered(inside.value_field))
        elif pa.types.is_map(inside):
            inside = pa.map_(numbered(inside.key_field), numbered(inside.item_field))
        elif pa.types.is_struct(inside):
            inside = pa.struct([numbered(inside.field(place)) for place in range(inside.num_fields)])
        return field.with_type(inside).with_metadata({"PARQUET:field_id": str(next(numbers))})

    schema = pa.schema([numbered(field) for field in batch.schema])
    task = task_into(tmp_path, schema=schema.serialize().to_pybytes(), first_columns=())
    expected = [[], None, [], None]
    for rows in ([batch], [batch.slice(1, 2), batch.slice(3)], [batch.slice(0, 0), batch]):
        (report,) = write(task, rows)
        found = pq.read_table(tmp_path / report["path"])
        kept = [number for piece in rows for number in piece["id"].to_pylist()]
        assert found["id"].to_pylist() == kept
        assert found["c"].to_pylist() == [expected[number] for number in kept]
        assert found["s"].to_pylist() == [{"c": expected[number]} for number in kept]
    library = input_data._pieces(batch, 1 << 20)
    assert [row["id"] for piece in library for row in piece.to_pylist()] == [0, 1, 2, 3]


def test_it_needs_nothing_of_ours_on_a_worker(tmp_path: Path) -> None:
    """A worker that has pyarrow and PySpark alone unpickles the function and runs it."""
    work = functools.partial(task_writer.write_rows, task_into(tmp_path / "out"))
    assert writes.Task is Task, "importing `writes` makes the code travel by value"
    (tmp_path / "work").write_bytes(cloudpickle.dumps(work))  # type: ignore[no-untyped-call]
    code = (
        "import sys, pyarrow as pa\n"
        "from pyspark import cloudpickle\n"
        "sys.modules['alpheus'] = sys.modules['alpheus_journal'] = None\n"  # an import of them fails
        f"work = cloudpickle.loads(open({str(tmp_path / 'work')!r}, 'rb').read())\n"
        "rows = pa.table({'id': [1], 'x': [2.0], 's': ['a']}).to_batches()\n"
        "print([row['path'] for found in work(iter(rows)) for row in found.to_pylist()])\n"
        "assert not [name for name in sys.modules if name.startswith('alpheus_')][1:]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").iterdir())) == 1


ONE_TASK = """
import resource, sys
import pyarrow as pa
import pyspark.worker
from pyspark import cloudpickle

limit = int(sys.argv[2]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # as spark.executor.pyspark.memory does
work, kind = cloudpickle.loads(open(sys.argv[1], "rb").read())


def rows():
    if kind == "cells of 10 MB":
        for number in range(16):
            yield pa.RecordBatch.from_pydict({"c0": [bytes([number]) * (10 << 20)]})
    elif kind == "2,000 columns":
        for number in range(10):
            cells = [pa.array([f"{number} {column} {row}".encode() for row in range(200)]) for column in range(2_000)]
            yield pa.RecordBatch.from_arrays(cells, names=[f"c{column}" for column in range(2_000)])
    elif kind == "5,000 partitions":
        for number in range(50):
            keys = pa.array([number * 100 + row // 10 for row in range(1_000)], pa.int32())
            yield pa.RecordBatch.from_pydict({"c0": [b"%d" % row for row in range(1_000)], "key": keys})
    else:
        for number in range(40):
            yield pa.RecordBatch.from_pydict({"c0": [b"%d %d a row" % (number, row) for row in range(100_000)]})


print(sum(found.num_rows for found in work(rows())))
"""


@pytest.mark.parametrize(
    ("kind", "limit", "files"),
    [
        ("rows", 512, 1),
        ("cells of 10 MB", 768, 1),
        ("2,000 columns", 512, 1),
        ("5,000 partitions", 512, 5_000),
    ],
)
def test_a_worker_of_few_addresses(tmp_path: Path, kind: str, limit: int, files: int) -> None:
    """A worker whose addresses are limited to 512 MiB writes its rows, where the C library reserves one arena."""
    names = [f"c{number}" for number in range(2_000 if kind == "2,000 columns" else 1)]
    fields = [
        pa.field(name, pa.binary(), metadata={"PARQUET:field_id": str(number)})
        for number, name in enumerate(names, 1)
    ]
    task = task_into(
        tmp_path / "out",
        schema=pa.schema(fields).serialize().to_pybytes(),
        has_key=kind == "5,000 partitions",
        first_columns=(),
    )
    (tmp_path / "work").write_bytes(
        cloudpickle.dumps((functools.partial(task_writer.write_rows, task), kind))
    )  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-c", ONE_TASK, tmp_path / "work", str(limit)],
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},  # Spark sets the second
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(list((tmp_path / "out").iterdir())) == files


class _Failing:
    """A store whose streams fail at the second write, and complete what they have, as pyarrow's do."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = {}

    def open_output_stream(self, path: str) -> _Failing:
        self.stored[path] = 0
        return self

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        if self.stored[next(iter(self.stored))]:
            raise OSError("the connection was cut")
        self.stored[next(iter(self.stored))] += len(data)


def test_a_file_that_was_cut_short_is_reported_by_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Failing()
    monkeypatch.setattr(task_writer, "open_store", lambda *_: store)
    monkeypatch.setattr(task_writer, "PART_SIZE_BYTES", 100)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "x": 1.0, "s": "a"}], schema=SCHEMA)
    reports: list[pa.RecordBatch] = []

    def run() -> Iterator[pa.RecordBatch]:
        yield from task_writer.write_rows(task_into(tmp_path, filesystem={}), iter([batch]))

    with pytest.raises(task_writer.StoreError, match="cut"):
        reports.extend(run())
    assert reports == []
    assert list(store.stored.values()) != [0]


def broken_rows(count: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of texts that do not compress, and fail after `count` of them."""
    rng = random.Random(1)
    for number in range(count):
        texts = [rng.randbytes(1 << 19).hex() for _ in range(8)]
        yield pa.RecordBatch.from_pylist([{"id": number, "x": 1.0, "s": text} for text in texts], SCHEMA)
    raise RuntimeError("the rows broke off")


def test_an_error_in_the_middle_of_a_file_stores_nothing(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No object and no upload remain where the rows end with an error after several parts of an upload; nor does a
    local file."""
    monkeypatch.setattr(encoder, "ROW_GROUP_SIZE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(task_writer, "PART_SIZE_BYTES", 5 << 20)  # no S3 takes smaller parts
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/gone,{tmp_path}")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(s3_server.url())
    place, filesystem, profile = task_place(storage, "data/t")
    prefix = place.partition("/")[2]
    task = task_into(tmp_path, filesystem=filesystem, profile=profile, codec="none")._replace(folder=place)
    with s3_server.client() as s3:
        with pytest.raises(RuntimeError, match="broke off"):
            write(task, broken_rows(2))
        assert s3.list_objects_v2(Bucket=s3_server.bucket, Prefix=prefix)["KeyCount"] == 0
        assert not s3.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=prefix).get("Uploads")
        whole = write(task, list(itertools.islice(broken_rows(2), 2)))
        listed = s3.list_objects_v2(Bucket=s3_server.bucket, Prefix=prefix)["Contents"]
        assert [(one["Key"].removeprefix(prefix), one["Size"]) for one in listed] == [
            (report["path"], report["size"]) for report in whole
        ]
        data = s3.get_object(Bucket=s3_server.bucket, Key=listed[0]["Key"])["Body"].read()
        assert len(data) > 2 * task_writer.PART_SIZE_BYTES
        assert pq.read_table(pa.BufferReader(data)).num_rows == 16
    assert list(tmp_path.iterdir()) == [], "the file on a local disk has no name"
    with pytest.raises(RuntimeError, match="broke off"):
        write(task_into(tmp_path / "local"), broken_rows(2))
    assert list((tmp_path / "local").iterdir()) == []


def test_pyarrow_has_no_way_to_abandon_an_upload(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this fails, tasks may encode straight into an upload."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    place, filesystem, profile = task_place(open_storage(s3_server.url()), "data/t")
    store = task_writer.open_store(filesystem, profile)
    with contextlib.suppress(RuntimeError), store.open_output_stream(place + "left") as stream:
        stream.write(b"a")
        assert not hasattr(stream, "abort")
        raise RuntimeError
    assert store.get_file_info([place + "left"])[0].size == 1


def sizes_of_groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def test_a_large_batch_is_cut_into_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group holds what its size allows, and one piece more. A row that is larger is a piece."""
    monkeypatch.setattr(encoder, "ROW_GROUP_SIZE_BYTES_MAX", 4000)
    monkeypatch.setattr(encoder, "PIECE_SIZE_BYTES_MAX", 1000)
    cells = ["a" * 500] * 64 + ["b" * 9000] + ["c" * 500] * 3
    batch = pa.RecordBatch.from_pylist([{"id": 1, "x": 1.0, "s": cell} for cell in cells], SCHEMA)
    reports = write(task_into(tmp_path), [batch])
    groups = sizes_of_groups(tmp_path / reports[0]["path"])
    assert sum(groups) == len(cells)
    assert max(groups) <= 10
    assert pq.read_table(tmp_path / reports[0]["path"])["s"].to_pylist() == cells


NESTED = {
    "top": (pa.int32(), None, "c"),
    "field": (pa.struct([pa.field("q", pa.int32(), False)]), {"q": None}, "c.q"),
    "element": (pa.list_(pa.field("element", pa.string(), False)), ["a", None], "c.element"),
    "value": (pa.map_(pa.string(), pa.field("value", pa.int32(), False)), [("a", 1), ("b", None)], "c.value"),
    "deep": (
        pa.struct(
            [pa.field("l", pa.list_(pa.field("element", pa.struct([pa.field("q", pa.int32(), False)]))))]
        ),
        {"l": [{"q": 1}, None, {"q": None}]},
        "c.l.element.q",
    ),
    "struct in a struct": (
        pa.struct([pa.field("s", pa.struct([pa.field("q", pa.int32())]), False)]),
        {"s": None},
        "c.s",
    ),
}
GOOD = {
    "field": [{"q": 1}, None],
    "element": [["a", "b"], None, []],
    "value": [[("a", 1)], None, []],
    "deep": [{"l": [{"q": 1}, None]}, None, {"l": None}, {"l": []}],
    "struct in a struct": [{"s": {"q": None}}, None, {"s": {"q": 1}}],
}


def loose(kind: pa.DataType) -> pa.DataType:
    """Return the type as Spark sends a nullable frame."""
    return task_writer._as_nullable(kind)


@pytest.mark.parametrize("depth", NESTED)
def test_null_in_a_required_column(tmp_path: Path, depth: str) -> None:
    """A NULL at each depth is refused with its path. A NULL parent is none."""
    kind, bad, path = NESTED[depth]
    schema = pa.schema([pa.field("c", kind, depth != "top")])
    task = task_into(tmp_path, schema=schema.serialize().to_pybytes(), first_columns=())
    good = GOOD.get(depth, [1, 2])

    def batch(values: list[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(values, loose(kind))], ["x"])

    reports = write(task, [batch(good), batch(good * 3).slice(1, len(good))])
    found = pq.read_table(tmp_path / reports[0]["path"])
    assert str(found["c"].to_pylist()) == str(good + (good * 3)[1 : 1 + len(good)])
    assert found.schema.field("c").type.equals(kind)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(task_writer.RequiredNull) as caught:
        write(task, [batch(good), batch([*good, bad])])
    assert str(caught.value) == f"column '{path}' is required, but holds NULL"
    assert sorted(tmp_path.iterdir()) == before


class OldS3FileSystem:
    """An S3FileSystem that takes no newer arguments than `region`."""

    def __init__(self, *, region: str) -> None:
        self.region = region


def test_an_older_pyarrow_opens_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", OldS3FileSystem)
    arguments = {"region": "eu-central-1", "allow_delayed_open": True}
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    assert task_writer.open_store(arguments, "").region == "eu-central-1"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/ca.pem")
    with pytest.raises(ValueError, match="AWS_CA_BUNDLE is set, which pyarrow"):
        task_writer.open_store(arguments, "")
