"""A reader types the README from top to bottom, and everything prints what the README shows.

The reader has a wheel and no checkout, so that the same test shows whether the wheel is complete. Two things are
stand-ins. The targets of `make` are checked and not run. The package index is replaced by the dependencies of this
environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alpheus_test_servers import S3Server
from programs import ROOT, Program, differs, programs

README = (ROOT / "README.md").read_text()
PACKAGES = (
    "protos/alpheus_pb",
    "journal/alpheus_journal",
    "daemon/alpheus_daemon",
    "clients/alpheus",
    "clients/pyspark_alpheus",
)
WAIT_SECONDS_MAX = 60.0
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?")


# --- the wheel -------------------------------------------------------------------------------------


def build(target: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of `source` into `folder`, as `make wheel` does, without a package index."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel") / "dist")


def code_in(wheel: Path) -> set[str]:
    """Return the files of the packages in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    there = {
        path.relative_to((ROOT / package).parent).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert code_in(wheel) == there
    for package in ("alpheus", "alpheus_journal", "alpheus_daemon", "alpheus_pb", "pyspark_alpheus"):
        assert f"{package}/py.typed" in there
    assert "alpheus_pb/v1/service_pb2_grpc.py" in there
    with zipfile.ZipFile(wheel) as archive:
        [entry_points] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        declared = archive.read(entry_points).decode()
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    assert "alpheus = alpheus.cli:main" in declared
    assert "alpheus-daemon = alpheus_daemon.main:main" in declared


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    packed = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    assert not {".venv", ".git", ".cache", "artifacts", "dist"} & {path.name for path in source.iterdir()}
    assert code_in(build("wheel", source, tmp_path / "dist")) == code_in(wheel)


# --- typing ----------------------------------------------------------------------------------------


class Terminal:
    """A shell in a folder of its own, in which lines are typed one after the other."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._errors = folder / ".errors"
        self._heard = 0
        with self._errors.open("wb") as errors:
            self._shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def close(self) -> None:
        """End the shell and everything that it started."""
        with contextlib.suppress(ProcessLookupError):  # no process is left
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def run(self, program: Program) -> str:
        """Run a program and return its output. A program that is a file is only written, and prints nothing."""
        if program.file_name:
            (self.folder / program.file_name).write_text(program.text)
            return ""
        assert program.language == "sh", f"line {program.line}: a program that is no file, and no command"
        printed = "".join(self._line(line) for line in program.text.splitlines())
        about_the_daemon = re.search(r"&$|^kill ", program.text.strip())
        return self._hear(program.printed.count("\n")) if about_the_daemon else printed

    def _line(self, line: str) -> str:
        """Type one line, check that it succeeds, and return its output."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        print(f"{{\n{line}\n}} </dev/null; echo; echo end of line $?", file=self._shell.stdin, flush=True)
        printed = list[str]()
        for answer in self._shell.stdout:
            if answer.startswith("end of line "):
                assert answer == "end of line 0\n", (
                    f"{line}\n{''.join(printed)}{self._errors.read_text()[-3000:]}"
                )
                return "".join(printed)[:-1]
            printed.append(answer)
        raise AssertionError(f"the shell ended: {line}\n{self._errors.read_text()[-3000:]}")

    def _hear(self, lines_count: int) -> str:
        """Wait for the next lines on standard error, and return them.

        The daemon is a separate process, which may print late.
        """
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while (said := self._errors.read_text()[self._heard :]).count("\n") < lines_count:
            assert time.monotonic() < deadline, said
            time.sleep(0.02)
        self._heard += len(said)
        return said

    def forget_errors(self) -> None:
        """Skip what standard error has said up to now."""
        self._heard = len(self._errors.read_text())


def dependencies(folder: Path) -> Path:
    """Make a folder with all that is installed here except this project, which only the wheel then provides."""
    folder.mkdir()
    for name in {"purelib", "platlib"}:
        for entry in Path(sysconfig.get_path(name)).iterdir():
            link = folder / entry.name
            if "alpheus" not in entry.name and entry.suffix != ".pth" and not link.is_symlink():
                link.symlink_to(entry)
    return folder


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\nset -eu\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def terminal(tmp_path: Path, wheel: Path, port: str) -> Iterator[Terminal]:
    """Yield a shell whose Python makes environments that find the dependencies without an index.

    `make` was run before.
    """
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("python3 -m venv makes no pip here: install python3-venv")
    found, tools, home = dependencies(tmp_path / "installed"), tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    write_script(
        tools / "python3",
        f'{shlex.quote(sys.executable)} "$@"\n'
        f'if [ "$2" = venv ]; then for site in "$3"/lib/python3.*/site-packages; do'
        f' echo {shlex.quote(str(found))} >"$site/index.pth"; done; fi',
    )
    write_script(
        tools / "make",
        f'if [ "$1" = wheel ]; then mkdir dist; cp {shlex.quote(str(wheel))} dist; fi; echo "made $1"',
    )
    hidden = ("ALPHEUS_", "PYTHON", "PYSPARK_", "PIP_", "VIRTUAL_ENV", "PYTEST_")
    of_java = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)} | {
        "ALPHEUS_LISTEN": f"127.0.0.1:{port}",
        "ALPHEUS_LOG_FORMAT": "text",  # a real terminal gets this by default
        "HOME": str(home),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONWARNINGS": "ignore",
        # Spark compiles plans here, as for every user.
        "SPARK_SUBMIT_OPTS": " ".join(option for option in of_java if not option.startswith("-Dspark.")),
    }
    terminal = Terminal(home, environment)
    yield terminal
    terminal.close()


def typed_programs() -> list[Program]:
    """Return the blocks that a reader types, in order: all but the picture."""
    return [program for program in programs(README) if program.language != "text"]


def normal(text: str) -> str:
    """Return a text with ids and times replaced, so that it is the same in every run."""
    return TIME.sub("TIME", UUID.sub("UUID", text))


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def lake(request: pytest.FixtureRequest, tmp_path: Path, lane_count: Callable[[int, int], int]) -> str:
    """Return the place of a catalog that takes the place of /tmp/lake. Nothing else in the README is changed."""
    if request.param == "disk":
        return str(tmp_path / "lake")
    if not lane_count(0, 1):
        pytest.skip("make slow LANE=readme")
    server: S3Server = request.getfixturevalue("s3_server")
    jars = request.getfixturevalue("hadoop_aws_jars")
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(f"spark.jars {','.join(map(str, jars))}\n")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.setenv("SPARK_CONF_DIR", str(folder))  # the jars, which Spark would download
    return server.url()


def test_typed_from_top_to_bottom_it_prints_what_it_says(lake: str, terminal: Terminal, port: str) -> None:
    def here(text: str) -> str:
        if "://" in lake:
            text = text.replace("file:///tmp/lake", lake)
        return text.replace("7480", port).replace("/tmp/lake", lake)

    typed = typed_programs()
    for program in typed:
        terminal.forget_errors()
        mine = Program(program.language, here(program.text), here(program.printed), program.line)
        printed = terminal.run(mine)
        if program.text.startswith("make "):
            continue  # test_demo checks what it prints
        expected = Program(mine.language, mine.text, normal(mine.printed), mine.line)
        difference = differs(expected, normal(printed))
        assert not difference, difference
    # The wheel provided all of that.
    where = terminal.run(Program("sh", 'python -c "import alpheus; print(alpheus.__file__)"\n', "", 0))
    assert Path(where.strip()).is_relative_to(terminal.folder / "lakehouse"), where


def test_each_block_is_typed() -> None:
    """Each block of the README is a command, a file that a later command runs, or the output of the block before."""
    typed = typed_programs()
    fences = [line for line in README.splitlines() if line.startswith("```")]
    assert len(fences) == 2 * (1 + len(typed) + sum(bool(program.printed) for program in typed))
    commands = "".join(program.text for program in typed if program.language == "sh")
    files = [program.file_name for program in typed if program.language != "sh"]
    assert files == ["first.py", "reading.py", "totals.py"]
    for name in files:
        assert f"python {name}\n" in commands
    for said in (
        "make run",
        "alpheus --version",
        "alpheus create",
        "alpheus serve",
        *map("python {}".format, files),
    ):
        [program] = [program for program in typed if program.text.startswith(said)]
        assert program.printed, f"{said}: what it prints is not said"


def test_the_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9]*)", README, re.MULTILINE))
    assert {"run", "test", "setup", "wheel", "spark41", "spark42"} <= named <= targets
    shown = subprocess.run(
        ["make", "--dry-run", "--assume-old=setup", "wheel"], cwd=ROOT, capture_output=True, text=True
    )
    assert "python -m hatchling build --target wheel" in shown.stdout, "as `build` does it here"


def test_links_lead_somewhere() -> None:
    for name in ("README.md", "tests/bench/FIGURES.md"):
        document = ROOT / name
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            assert (document.parent / target).exists(), f"{name}: {target}"
