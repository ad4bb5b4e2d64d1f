"""What Spark's workers need for the data source "alpheus": who lacks it is told, and one file brings it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.cli import cli
from alpheus.errors import AlreadyExists, Denied, InvalidInput, Unavailable
from alpheus.spark import SparkCatalog
from alpheus.spark.streams.source import AlpheusSource
from alpheus.spark.workers import check, package, unpack
from alpheus.spark.workers.check import check_workers
from alpheus.spark.workers.package import WorkerPackage, default_name, distributions, write_package

FOUND_ON_CLUSTERS = (
    "pyspark",
    "py4j",
    "pyarrow",
    "numpy",
    "numpy.libs",
    "pandas",
    "dateutil",
    "six.py",
    "pytz",
)

pytestmark = SPARK_MARKS


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that imports PySpark and pyarrow, and nothing of ours."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "site").mkdir()
    for name in FOUND_ON_CLUSTERS:
        for place in sys.path:
            if place and (found := Path(place) / name).exists() and "site-packages" in place:
                (folder / "site" / name).symlink_to(found)
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'export PYTHONPATH="{folder}/site${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'exec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    return python


def run_code(python: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WorkerPackage:
    return write_package(tmp_path_factory.mktemp("package") / "workers.zip")


@pytest.fixture
def copied(written: WorkerPackage, tmp_path: Path) -> Path:
    """The file in a folder of its own, not unpacked there."""
    copy = tmp_path / "sent" / "workers.zip"
    copy.parent.mkdir()
    os.link(written.path, copy)
    return copy


IMPORT = "import sys; sys.path.insert(1, sys.argv[1]); "


# -- the file


def test_the_file_brings_what_a_bare_python_lacks(bare_python: Path, copied: Path, tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.table({"id": [1, 2]}))
    code = (
        "from importlib.metadata import version; told = version('alpheus')\n"
        "import pyspark_alpheus, alpheus, alpheus_journal.storage.s3, alpheus_journal.storage.object_store\n"
        "assert pyspark_alpheus.DefaultSource.name() == 'alpheus' and alpheus.__version__ == told\n"
        "with alpheus.connect(sys.argv[2]) as catalog: print(catalog.read('s.t').to_pylist())"
    )
    lacking = run_code(bare_python, code)
    assert "No package metadata was found for alpheus" in lacking.stderr
    done = run_code(bare_python, IMPORT + code, str(copied), f"file://{tmp_path}/lake")
    assert done.stdout == "[{'id': 1}, {'id': 2}]\n", done.stderr


def test_workers_that_start_together_unpack_once(bare_python: Path, copied: Path) -> None:
    command = [bare_python, "-c", IMPORT + "import alpheus_journal; print(alpheus_journal.__file__)"]
    started = [subprocess.Popen([*command, str(copied)], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = {process.communicate()[0].strip() for process in started}
    [place] = told
    [folder] = [path for path in copied.parent.iterdir() if path != copied]
    assert place == f"{folder}/alpheus_journal/__init__.py"


@pytest.mark.parametrize(
    ("key", "other"), [("python", "CPython 3.99"), ("platform", "linux-riscv64"), ("abi", "cpython-311-musl")]
)
def test_another_python_or_platform_is_refused(
    bare_python: Path, written: WorkerPackage, tmp_path: Path, key: str, other: str
) -> None:
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(written.path) as source, zipfile.ZipFile(changed, "w") as sink:
        for name in source.namelist():
            data = source.read(name)
            if name == unpack.RECORD:
                data = json.dumps(json.loads(data) | {key: other}).encode()
            if not name.startswith(unpack.SITE):
                sink.writestr(name, data)
    for name in package.OURS:
        done = run_code(bare_python, f"{IMPORT}import {name}", str(changed))
        last = done.stderr.splitlines()[-1]
        assert last.startswith("ImportError: changed.zip holds packages for "), done.stderr
        assert other in last.partition(", but ")[0]
        assert "alpheus spark package" in last
    assert list(tmp_path.iterdir()) == [changed], "nothing is unpacked"


def test_a_folder_that_cannot_be_written_is_told(bare_python: Path, copied: Path) -> None:
    code = (
        "import tempfile\n"
        "def refuse(*a, **b): raise PermissionError(13, 'Permission denied')\n"
        "tempfile.mkdtemp = refuse\n"
        "import alpheus"
    )
    done = run_code(bare_python, f"{IMPORT}\n{code}", str(copied))
    assert f"ImportError: {copied} cannot be unpacked beside itself on " in done.stderr
    assert "Permission denied" in done.stderr


def test_the_file_tells_what_is_in_it(written: WorkerPackage) -> None:
    assert written.alpheus == alpheus.__version__
    assert {"aiobotocore", "alpheus", "grpcio", "msgspec", "protobuf", "sqlglot"} <= written.packages.keys()
    assert not {*package.LEFT_OUT, "pytest", "ruff"} & written.packages.keys()
    with zipfile.ZipFile(written.path) as archive:
        record = json.loads(archive.read(unpack.RECORD))
        names = archive.namelist()
    assert {key: record[key] for key in unpack.describe_python()} == unpack.describe_python()
    assert record["alpheus"] == alpheus.__version__
    assert not any("__pycache__" in name or name.endswith(".pth") for name in names)
    assert "site/botocore/data/endpoints.json" in names
    assert {
        name.split("/")[3] for name in names if name.startswith("site/botocore/data/") and name.count("/") > 3
    } == {*package.BOTOCORE_SERVICES}
    assert written.size_bytes < 40 << 20


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file be small, because compression takes seconds."""
    monkeypatch.setattr(package, "distributions", lambda: {"six": distribution("six")})
    monkeypatch.setattr(package, "OURS", ("pyspark_alpheus",))


def test_equal_environments_write_equal_files(few: None, tmp_path: Path) -> None:
    first, second = (Path(write_package(tmp_path / name).path) for name in ("a.zip", "b.zip"))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InvalidInput, match=r"does not end in \.zip"):
        write_package(tmp_path / "workers.tar.gz")
    with pytest.raises(InvalidInput, match="a character that has a meaning"):
        write_package(tmp_path / "a,b.zip")
    with pytest.raises(InvalidInput, match="no-such cannot be written: No such file"):
        write_package(tmp_path / "no-such" / "workers.zip")
    (tmp_path / "there.zip").symlink_to("nowhere")
    with pytest.raises(AlreadyExists, match=r"there\.zip exists"):
        write_package(tmp_path / "there.zip")
    (tmp_path / "there.zip").unlink()
    monkeypatch.setattr(package, "_write", fail)
    with pytest.raises(InvalidInput, match="cannot be written: No space left"):
        write_package(tmp_path / "workers.zip")
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(missing: str) -> Callable[[str], Any]:
        def find(name: str) -> Any:
            if name == missing:
                raise PackageNotFoundError(name)
            return distribution(name)

        return find

    monkeypatch.setattr("importlib.metadata.distribution", lack("msgspec"))
    with pytest.raises(InvalidInput, match="msgspec is not installed here"):
        distributions()
    monkeypatch.setattr("importlib.metadata.distribution", lack("lmdb"))
    assert "lmdb" not in distributions(), "storage that is not installed is left out"


def test_the_command_prints_the_setting(few: None, tmp_path: Path) -> None:
    def call(*words: str) -> Any:
        return CliRunner().invoke(cli, ["spark", "package", *words])

    path = tmp_path / "workers.zip"
    done = call(str(path), "--output", "json")
    assert json.loads(done.stdout)["path"] == str(path)
    refused = call(str(path))
    assert refused.exit_code == 1
    assert "exists" in refused.stderr
    path.unlink()
    done = call(str(path))
    assert done.stdout == f"spark.submit.pyFiles={path}\n"
    assert call("a.zip", "b.zip").exit_code == 2
    assert default_name().endswith(".zip")
    assert alpheus.__version__ in default_name()


# -- the check


@pytest.fixture
def bare_workers(spark: SparkSession, bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks of the session run in the bare Python."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare_python))
    monkeypatch.setattr(check, "_passed", set())


def test_workers_without_the_library_are_told_before_the_first_task(
    spark: SparkSession, bare_workers: None, tmp_path: Path
) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("s")
        catalog.create_table("s.t", pa.table({"id": [1]}))
        lake = SparkCatalog(spark, catalog)
        for start in (lambda: lake.stream("s.t"), lake.events, lake.source_options):
            with pytest.raises(InvalidInput, match=r"No module named 'alpheus'") as caught:
                start()
            assert caught.value.kind == "bad_configuration"
            assert "Python worker" in caught.value.message
            assert "alpheus spark package" in caught.value.hint
        assert [row.id for row in lake.read("s.t").collect()] == [1], "other reads need nothing of ours"
        lake.append("s.t", spark.createDataFrame([(2,)], "id BIGINT"))
        assert lake.read("s.t").count() == 2
        lake.close()


def test_workers_are_asked_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = SparkSession.range

    def count(self: SparkSession, *arguments: Any, **options: Any) -> Any:
        asked.append(1)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(check, "_passed", set())
    monkeypatch.setattr(SparkSession, "range", count)
    with monkeypatch.context() as patch:
        patch.setattr(check, "software_version", lambda: "9.9")
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"has alpheus .*, but this process has 9\.9"):
                check_workers(spark)
    assert len(asked) == 2, "what failed is tried again"
    check_workers(spark)
    check_workers(spark)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("told", "kind", "message"),
    [
        ("Job aborted: Connection refused", Unavailable, "Connection refused"),
        ("Job aborted: Permission denied", Denied, "Permission denied"),
        (
            "Traceback\nModuleNotFoundError: No module named 'pyarrow'",
            InvalidInput,
            "No module named 'pyarrow'",
        ),
    ],
)
def test_a_job_that_fails_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, told: str, kind: type[Exception], message: str
) -> None:
    def fail(*_: Any) -> None:
        raise Py4JError(told)

    monkeypatch.setattr(check, "_passed", set())
    monkeypatch.setattr(SparkSession, "range", fail)
    with pytest.raises(kind, match=f"could not be asked .*{message}"):
        check_workers(spark)


def test_an_object_tells_a_worker_what_it_needs(bare_python: Path, copied: Path, tmp_path: Path) -> None:
    """What Spark sends to workers says by name what is missing, also without a `SparkCatalog`."""
    source = AlpheusSource({"catalog": "file:///lake", "table": "s.t"})
    sent = tmp_path / "sent.pickle"
    sent.write_bytes(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
    code = "import pickle, sys; print(type(pickle.load(open(sys.argv[1], 'rb'))))"
    done = run_code(bare_python, code, str(sent))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the data source needs the package alpheus"), done.stderr
    assert "No module named 'alpheus'" in last
    assert "alpheus spark package" in last
    wrong = (
        copied.parent / "streaming_job" / copied.name
    )  # where Spark looks for the file when it plans a stream
    for place in (copied, wrong):
        found = code.replace("sys;", f"sys; sys.path.insert(1, {str(place)!r});")
        done = run_code(bare_python, found, str(sent))
        assert "AlpheusSource" in done.stdout, done.stderr


# -- a session of its own

PROGRAM = """
import sys
from pathlib import Path

import pyarrow as pa

import alpheus
from alpheus.spark import SparkCatalog, session

folder, setting = sys.argv[1:]
spark = session("workers", settings=dict([setting.split("=", 1)]))
catalog = alpheus.create(f"file://{folder}/lake")
catalog.create_namespace("s")
catalog.create_table("s.t", pa.table({"id": [1, 2]}))
catalog.create_table("s.u", pa.schema([("id", pa.int64())]))
lake = SparkCatalog(spark, catalog)

def is_bare(batches):
    for batch in batches:
        import alpheus
        yield pa.RecordBatch.from_pylist([{"file": alpheus.__file__}])

[row] = spark.range(0, 1, 1, 1).mapInArrow(is_bare, "file STRING").collect()
assert "/.alpheus-" in row.file, row.file
writer = lake.stream("s.t").writeStream.format("alpheus").options(**lake.source_options())
writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
writer.start("s.u").awaitTermination()
plain = spark.read.format("alpheus").option("catalog", catalog.url)
print(sorted(row.id for row in plain.load("s.u").collect()))
frame = spark.createDataFrame([(5,)], "id BIGINT")
frame.write.format("alpheus").option("catalog", catalog.url).mode("append").save("s.u")
print(sorted(catalog.read("s.u")["id"].to_pylist()))
print(plain.option("feed", "events").load().where("name = 's.u'").count())
"""


def test_a_stream_runs_on_workers_that_got_the_file(
    bare_python: Path, written: WorkerPackage, tmp_path: Path, lane_count: Callable[[int, int], int]
) -> None:
    """The feed and the sink run on workers that have nothing but PySpark, pyarrow and the file."""
    if not lane_count(0, 1):
        pytest.skip("starts a session of its own, which takes long: make slow LANE=worker_package")
    [setting] = [f"{name}={value}" for name, value in written.settings.items()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), setting],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment | {"PYSPARK_PYTHON": str(bare_python)},
    )
    assert done.stdout.splitlines() == ["[1, 2]", "[1, 2, 5]", "3"], done.stdout + done.stderr[-6000:]
