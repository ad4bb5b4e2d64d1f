"""Settings of every test: a time limit, no blocking call in an event loop, and counts that one variable raises.

`make test` runs small counts. With ALPHEUS_SLOW=1 (`make slow LANE=word`) Hypothesis uses its `full` profile, and
`lane_count(small, full)` returns the second number. Tests whose counts this changes carry the mark `slow`, and so do
the cases that `make test` leaves out (alpheus_short.py).
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alpheus_budget as budget
import alpheus_short as short
import alpheus_test_servers as servers
import alpheus_time_limit as time_limit
import pytest
import structlog
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where rich is installed, structlog prints tracebacks with rich by default. rich then reads files: a blocking call.
_plain = [
    structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    if isinstance(processor, structlog.dev.ConsoleRenderer)
    else processor
    for processor in structlog.get_config()["processors"]
]
structlog.configure(processors=_plain)

pytest_timeout_set_timer = time_limit.pytest_timeout_set_timer
pytest_runtest_setup = time_limit.pytest_runtest_setup
pytest_runtest_call = time_limit.pytest_runtest_call
pytest_runtest_teardown = time_limit.pytest_runtest_teardown
pytest_exception_interact = time_limit.pytest_exception_interact
start_s3, shared_s3 = servers.start_s3, servers.shared_s3
s3_server, crash_s3, rclone_server = servers.s3_server, servers.crash_s3, servers.rclone_server
hadoop_aws_jars = servers.hadoop_aws_jars


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time that each part took, and name a part whose tests were all skipped for want of a server."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    if (lines := budget.table_of(reports)) and not FULL:
        terminalreporter.section("budget of make test, in seconds of its processes")
        for line in lines:
            terminalreporter.line(line)
    for reason in (servers.NOT_INSTALLED, servers.NO_JARS):
        left_out = [
            report for report in terminalreporter.stats.get("skipped", []) if reason in str(report.longrepr)
        ]
        if left_out:
            terminalreporter.section("left out", red=True, bold=True)
            terminalreporter.line(f"{reason}: {len(left_out)} of them")
            if reason == servers.NOT_INSTALLED:
                terminalreporter.line(servers.install())


FULL = os.environ.get("ALPHEUS_SLOW", "") == "1"
CLASS_ARCHIVE = Path(__file__).resolve().parent.parent / ".cache" / "spark-classes" / "classes.jsa"
# For every JVM that a test starts. A short run executes little code twice: to compile it well takes longer than to run
# it. So Spark interprets plans, too. Slow runs, and the programs of the README, compile plans as a user's session does.
# A JVM that cannot use the archive ignores it.
INTERPRET = ["-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN"]
JVM_OPTIONS = [] if FULL else ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *INTERPRET]
if CLASS_ARCHIVE.exists():
    JVM_OPTIONS += [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(JVM_OPTIONS))
if not FULL:
    os.environ["PYSPARK_TEST_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", str(Path(__file__).resolve().parent / "spark_python"))

settings.register_profile("small", deadline=None, print_blob=True, max_examples=20)
settings.register_profile(
    "full", deadline=None, print_blob=True, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("full" if FULL else "small")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads it
def pytest_configure(config: pytest.Config) -> None:
    time_limit.set_limit(config, full=FULL)


# Methods of built-in types that are left out of blockbuster's list. blockbuster replaces such methods by writing into
# the types' own dictionaries, and one run in several hundred crashed the interpreter while descriptors were freed. A
# file is caught when it is opened, not when it is read.
BUILT_IN_METHODS = ("io.", "sqlite3.", "threading.", "os.scandir")
NEVER_WAIT = ("os.getcwd", "os.path.abspath")  # they touch no disk
OPENED = ("builtins.open", "io.open", "os.open", "os.fsync", "os.fdatasync", "os.scandir")


@pytest.fixture(autouse=True, scope="session")
def no_blocking_in_the_loop() -> Iterator[None]:
    """Raise BlockingError when a frame of our packages blocks on a file, socket or sleep while a loop runs.

    Only calls that pass through our packages count: a test may read its own files in a coroutine. Work in a thread has
    no running loop and is free. Waiting for a lock is not caught.
    """
    places = []
    for name in ("alpheus_journal", "alpheus_daemon", "alpheus"):
        # blockbuster needs only the place of a module. A bare module object saves each run the import of all three
        # packages.
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations, name
        place = types.ModuleType(name)
        place.__path__ = spec.submodule_search_locations
        places.append(place)
    guards = [
        guard
        for name, guard in BlockBuster(places).functions.items()
        if not name.startswith(BUILT_IN_METHODS + NEVER_WAIT)
    ]
    for name in OPENED:
        guard = BlockBusterFunction(None, name, scanned_modules=places)
        # pipes of a subprocess, not files
        guards.append(guard.can_block_in("asyncio/base_events.py", {"subprocess_exec", "subprocess_shell"}))
    for guard in guards:
        # a loop in its own thread, created because botocore blocks
        guard.can_block_in("storage/s3_client.py", {"_make"})
        guard.activate()
    yield
    for guard in guards:
        guard.deactivate()


@pytest.fixture(scope="session")
def lane_count() -> Callable[[int, int], int]:
    """`lane_count(small, full)` returns how many rounds this run makes. A test that asks for it is marked `slow`."""
    return lambda small, full: full if FULL else small


@pytest.fixture
def only_slow(lane_count: Callable[[int, int], int]) -> None:
    """Skip a test in short runs: other tests of its file run the same code."""
    if not lane_count(0, 1):
        pytest.skip("only in make slow")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a real Spark session, one for all tests: its start takes about ten seconds.

    Where the jars of hadoop-aws are on this machine, the session can reach S3 servers of the tests. Its JVM and its
    workers find the credentials in their environment, as on a cluster.
    """
    from pyspark import SparkContext

    from alpheus.spark import session

    # A refusal of a task is tried twice here, not four times.
    settings = {"spark.driver.memory": "1g", "spark.master": "local[2,2]"}
    if jars := servers.find_jars():
        settings["spark.jars"] = ",".join(map(str, jars))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in servers.ENVIRONMENT.items():
            patch.setenv(name, value)
        spark = session("alpheus tests", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = SparkContext._gateway
    yield spark
    try:
        spark.stop()
    except ConnectionError:
        if (status := jvm.proc.poll()) is None:
            raise
        warnings.warn(f"the JVM of the tests' Spark session ended early, with status {status}", stacklevel=1)


# Files that take long: first one of those that share a Spark session, because together they take as long as half of the
# others, then the longest first. Processes get the files in this order, so that no process ends with a long file while
# the others have nothing left to do.
LONG_FILES = (
    "test_spark_pipeline",
    "test_spark_s3_faults",
    "test_demo",
    "test_soak",
    "test_readme",
    "test_pipeline_kills",
    "test_fuzz",
    "test_storage_s3",
    "test_storage_object_store",
    "test_simulation",
    "test_cli",
    "test_kill_points",
    "test_s3_faults",
    "test_daemon_process",
    "test_cli_spark",
    "test_url_secrets",
    "test_protocol",
    "test_tidy",
    "test_check",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage while tests are collected, because all that is made then stays until the end. Later
    searches leave it out: else each full one goes through a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: position for position, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))  # stable: the others keep their order
    for item in items:
        scaled = isinstance(item, pytest.Function) and (
            "lane_count" in item.fixturenames or getattr(item.function, "is_hypothesis_test", False)
        )
        if scaled:
            item.add_marker("slow")
    for item in short.left_out(items):
        item.add_marker("slow" if FULL else pytest.mark.skip(reason="other cases run the same code"))


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process of a run whole files, and one process all that share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return budget.unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_report_header() -> str:
    counts = f"counts: {'full (ALPHEUS_SLOW=1)' if FULL else 'small'}"
    missing = (
        "" if servers.has_versitygw() else " (versitygw is not built, so no crash of it: make versitygw)"
    )
    return f"{counts}\nS3 server: {servers.default_kind()}{missing}"
