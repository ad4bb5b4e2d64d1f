"""The code that Spark's tasks run: it travels without the package, and its files hold exactly the rows of the task."""

from __future__ import annotations

import functools
import itertools
import json
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from alpheus.rows import encoder
from alpheus.spark.files import task_writer, writes
from alpheus.spark.files.task_writer import Task

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


def write(task: Task, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for found in task_writer.write_rows(task, iter(batches)) for row in found.to_pylist()]


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
    batch = pa.RecordBatch.from_pylist([{"id": 1, "x": 1.0, "s": "a"}], schema=SCHEMA)
    reports: list[pa.RecordBatch] = []

    def run() -> Iterator[pa.RecordBatch]:
        yield from task_writer.write_rows(task_into(tmp_path, filesystem={}), iter([batch]))

    with pytest.raises(task_writer.StoreError, match="cut"):
        reports.extend(run())
    assert reports == []
    assert list(store.stored.values()) != [0]


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
