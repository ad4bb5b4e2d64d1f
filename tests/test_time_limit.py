"""The time limit of a test: a test that hangs anywhere fails under its own name, and the others run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import alpheus_time_limit as time_limit
import pytest

ROOT = Path(__file__).resolve().parent.parent

HANGING = '''
import asyncio, ctypes, socket, threading
import pytest
from hypothesis import given, settings, strategies as st

def test_lock():
    threading.Event().wait()

async def test_loop():
    await asyncio.Event().wait()

async def test_busy_loop():
    while True:
        await asyncio.sleep(0)

async def test_other_task():
    """The alarm rings in the other task, which keeps it to itself."""
    async def spin():
        while True:
            await asyncio.sleep(0)
    task = asyncio.create_task(spin())
    await asyncio.Event().wait()

def test_socket():
    """As Py4J waits for the JVM."""
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)

@settings(database=None, max_examples=2)
@given(st.integers())
def test_examples(number):
    threading.Event().wait()

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

@pytest.mark.timeout(2)
def test_teardown(stuck):
    assert False, "and then its fixture hangs"

@pytest.mark.timeout(60)
def test_others():
    """The timer of those before is off."""
'''

DEAF = '''
import ctypes
import pytest

@pytest.mark.timeout(0.2)
def test_deaf():
    """A library that is stuck: it keeps the interpreter's lock, and no signal comes through."""
    libc = ctypes.PyDLL(None)
    libc.sigprocmask(0, (ctypes.c_ulong * 16)(*[2**64 - 1] * 16), None)
    libc.pause()

def test_others():
    pass
'''


def run(folder: Path, text: str, *options: str) -> str:
    """Run pytest with the project's settings on a file of `text`. Return the printed output."""
    (folder / "conftest.py").write_text(
        "from alpheus_time_limit import *\n"
        "import alpheus_time_limit\n"
        "alpheus_time_limit.AGAIN_SECONDS = 0.2\n"
    )
    (folder / "test_hanging.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    # pytest's own tracebacks parse the sources. In Python 3.11 two threads may not parse concurrently (SystemError).
    command.append("--tb=native")
    done = subprocess.run(
        [*command, "--rootdir", str(folder), *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_what_hangs_fails_by_name_and_the_others_run(tmp_path: Path) -> None:
    printed = run(tmp_path, HANGING, "--timeout=0.2")
    failed = set(re.findall(r"^FAILED \S*::(\w+) - .*Hung: Timeout", printed, re.MULTILINE))
    assert failed - {"test_teardown"} == {
        "test_lock", "test_loop", "test_busy_loop", "test_other_task", "test_socket", "test_examples",
    }, printed  # fmt: skip
    assert re.search(r"^ERROR \S*::test_teardown - .*Hung: Timeout", printed, re.MULTILINE), printed
    assert "7 failed, 1 passed" in printed


def test_what_hears_no_alarm_ends_its_process_and_is_named(tmp_path: Path) -> None:
    printed = run(tmp_path, DEAF, "-n", "1", "-o", "faulthandler_timeout=2", "--timeout=60")
    assert re.search(r"worker 'gw0' crashed while running '\S*::test_deaf'", printed), printed
    assert "1 failed, 1 passed" in printed


def test_every_run_has_a_limit(pytestconfig: pytest.Config) -> None:
    chosen = pytestconfig.getoption("timeout")
    assert chosen, "pytest-timeout is not installed, or was turned off"
    ini = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert ini["faulthandler_exit_on_timeout"]
    assert ini["faulthandler_timeout"] > time_limit.SMALL_SECONDS
    full = re.search(r"-m slow -o faulthandler_timeout=(\d+)", (ROOT / "Makefile").read_text())
    assert full
    assert int(full[1]) > time_limit.FULL_SECONDS
