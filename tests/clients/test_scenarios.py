"""Scripts of `alpheus` commands with what they print: tests/scenarios/*.txt, each over storage and over a daemon.

A script is a row of steps, which empty lines separate. A step is a command, maybe with lines for its standard
input, then `----`, then its results. The results are standard output as it is, standard error after `! `, an empty
line as `~`, and the exit status if it is not 0. Ids, times, sizes and places are written as `<id>`, `<time>`,
`<size>`, `<dir>`, `<url>`. Both ways to a catalog must give the same text. A command that fails must leave every
file as it was; files that it changed are listed.

    alpheus WORDS        the command, in this process; `{dir}` is a fresh directory
    open                 reach the catalog at {dir}/lake from here on, through a new daemon or on storage
    close                stop the daemon; ALPHEUS_CATALOG is not set any more
    read NAME            the rows of a table, as Python reads them
    write FILE           standard input becomes the file
    flip FILE TEXT       after `close`: one bit of the first TEXT in the file is flipped
    truncate FILE        the file loses its second half
    remove FILE
    storage VERB ...     a step of the way over storage alone; likewise `daemon VERB ...`
    restore              after `close`: everything under {dir}/lake is as it was before the first damage

FILE is below {dir}; `root N` is the root of a version, `*` stands for any text. ALPHEUS_REWRITE=1 writes the
results into the scripts. Read them before you commit them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

import pytest
from click.testing import CliRunner

import alpheus
from alpheus import cli
from alpheus.errors import AlpheusError, InvalidInput
from alpheus_journal import format as fmt

SCENARIOS = Path(__file__).parents[1] / "scenarios"
SCRIPTS = sorted(SCENARIOS.glob("*.txt"))
REWRITE = os.environ.get("ALPHEUS_REWRITE", "") == "1"
WAYS = ("storage", "daemon")
MANY_DAEMONS = ("damage",)
RULE = "----"


class Daemon(Protocol):
    url: str

    def stop(self) -> int: ...


StartDaemon = Callable[..., Daemon]

# --- scripts ---------------------------------------------------------------------------------------


class Step:
    def __init__(self, lines: list[str]) -> None:
        self.comments = [line for line in lines if line.startswith("#")]
        lines = lines[len(self.comments) :]
        rule = lines.index(RULE) if RULE in lines else len(lines)
        self.words = shlex.split(lines[0]) if lines else []
        self.ways = (self.words.pop(0),) if self.words and self.words[0] in WAYS else WAYS
        self.asked = lines[:rule]
        self.input = "".join(f"{line}\n" for line in lines[1:rule])
        self.expected = lines[rule + 1 :]

    def text(self, came: list[str]) -> str:
        """Return the step as a script has it, with its results."""
        lines = [*self.comments, *self.asked]
        if self.asked:
            lines += [RULE, *came]
        return "\n".join(lines)


def steps_of(text: str) -> list[Step]:
    return [Step(part.splitlines()) for part in re.split(r"\n\n+", text.strip())]


# --- running ---------------------------------------------------------------------------------------

NORMAL: tuple[tuple[str, str], ...] = (
    (r'("sha256":")[^"]+', r"\1<sha256>"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|\+00:00)", "<time>"),
    (r"\b\d+(\.\d+)? ([KMG]i)?B\b", "<size>"),
    (r"CRC-32 [0-9a-f]{8}, [0-9a-f]{8} was", "CRC-32 <sum>, <sum> was"),
    (r"\b(\d+) bytes, (not )?\d+( were committed)?", r"<size>, \2<size>\3"),
    (r'(size_bytes":)\d+', r"\1<size>"),
    (r"(not a (?:valid )?Parquet file): .*", r"\1: <what pyarrow says>"),
    (r"\(Error parsing [^)]*\)", "(<what protobuf says>)"),
    (r'(UNAVAILABLE): [^"\n]*', r"\1: <what gRPC says>"),
    (r'(software *|"software_version":")\d[^\s"]*', r"\1<software>"),
)


class Stage:
    """A script that runs: its folder, and the catalog that it has open."""

    def __init__(self, directory: Path, way: str, start_daemon: StartDaemon) -> None:
        self.directory = directory
        self.way = way
        self.url: str | None = None
        self._start_daemon = start_daemon
        self._daemon: Daemon | None = None
        self._whole: Path | None = None

    def run(self, step: Step) -> list[str]:
        verb, *words = [word.replace("{dir}", str(self.directory)) for word in step.words]
        if verb == "alpheus":
            out = self._alpheus(words, step.input)
        elif verb == "open":
            out = self._open()
        elif verb == "close":
            self.close()
            out = ""
        elif verb == "read":
            out = self._read(*words)
        elif verb == "write":
            (self.directory / words[0]).write_text(step.input)
            out = ""
        elif verb == "restore":
            assert self._whole is not None
            self.close()
            shutil.rmtree(self.lake)
            shutil.move(self._whole, self.lake)
            self._whole, out = None, ""
        else:
            damage = {"flip": flip, "truncate": truncate, "remove": remove}[verb]
            self._damage(damage, words)
            out = ""
        return [line or "~" for line in self._normal(out).splitlines()]

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self._daemon = self.url = None

    def _open(self) -> str:
        self.close()
        storage = self.lake.as_uri()
        try:
            if self.way == "storage":
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    alpheus.connect(storage).close()
                self.url = storage
                return "\n".join(f"warning: {each.message}" for each in warned)
            self._daemon = self._start_daemon(storage)
            self.url = self._daemon.url
        except AlpheusError as error:
            return f"refused: {error}"
        except AssertionError as ended:
            return "\n".join(
                f"refused: {said}" for said in re.findall(r"(?m)^alpheus-daemon: (.*)", str(ended))
            )
        return ""

    def _alpheus(self, words: list[str], given: str) -> str:
        before = files_of(self.directory)
        environment = {"ALPHEUS_PRINCIPAL": "tester", "ALPHEUS_CATALOG": self.url}
        result = CliRunner().invoke(cli.cli, words, input=given, env=environment)
        lines = result.stdout.splitlines() + [f"! {line}" for line in result.stderr.splitlines()]
        if result.exit_code:
            lines.append(f"exit {result.exit_code}")
            after = files_of(self.directory)
            changed = [path for path in before | after if before.get(path) != after.get(path)]
            lines += sorted(f"left {path}" for path in changed)
        return "\n".join(lines)

    def _read(self, name: str) -> str:
        try:
            with alpheus.connect(self.url) as catalog:
                return "\n".join(str(row) for row in catalog.read(name).to_pylist()) or "no rows"
        except AlpheusError as error:
            return f"{type(error).__name__} {error.kind}: {error}"

    def _damage(self, damage: Callable[..., None], words: list[str]) -> None:
        self.close()  # a daemon would write hints meanwhile
        if self._whole is None:
            self._whole = self.directory.with_name(self.directory.name + "-whole")
            shutil.copytree(self.lake, self._whole)
        if words[0] == "root":
            words = [f"lake/{fmt.version_file(int(words[1]), 32)}", *words[2:]]
        found = list(self.directory.glob(words[0]))
        assert found, f"nothing is {words[0]}"
        for path in found:
            damage(path, *words[1:])

    def _normal(self, text: str) -> str:
        if self.url is not None:
            text = text.replace(self.url, "<url>")
        text = text.replace(self.lake.as_uri(), "<url>")
        text = re.sub(r"^storage +<url>\n", "", text, flags=re.MULTILINE)  # shown over a daemon only
        text = text.replace(str(self.directory), "<dir>")
        for pattern, shown in NORMAL:
            text = re.sub(pattern, shown, text)
        return text


def files_of(directory: Path) -> dict[str, bytes]:
    """Return every file by its path, except hints and files that are being written."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("latest", "oldest") and ".staging" not in path.parts
    }


def flip(path: Path, text: str) -> None:
    data = path.read_bytes()
    assert text.encode() in data, f"{path} holds no {text}"
    place = data.index(text.encode())
    path.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("ALPHEUS_") and name not in ("ALPHEUS_SLOW", "ALPHEUS_REWRITE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ALPHEUS_PRINCIPAL", "tester")
    return


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_it_says(
    script: Path, way: str, tmp_path: Path, start_daemon: StartDaemon, lane_count: Callable[[int, int], int]
) -> None:
    if script.stem in MANY_DAEMONS and way == "daemon" and not (REWRITE or lane_count(0, 1)):
        pytest.skip("starts a daemon for each damage: make slow LANE=scenarios")
    directory = tmp_path / "work"
    directory.mkdir()
    stage = Stage(directory, way, start_daemon)
    steps = steps_of(script.read_text())
    told = []
    for step in steps:
        if not step.words or way not in step.ways:
            told.append(step.expected)
            continue
        came = stage.run(step)
        # In a rewrite, the way over storage runs first, and the other way must agree with it.
        if not (REWRITE and way == step.ways[0]):
            assert came == step.expected, "\n".join(step.asked)
        told.append(came)
    stage.close()
    if REWRITE:
        parts = [step.text(lines) for step, lines in zip(steps, told, strict=True)]
        script.write_text("\n\n".join(parts) + "\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_namespace_is_named_by_text(way: str, tmp_path: Path, start_daemon: StartDaemon) -> None:
    url = (tmp_path / "lake").as_uri()
    alpheus.create(url).close()
    daemon = start_daemon(url) if way == "daemon" else None
    with alpheus.connect(daemon.url if daemon else url) as catalog:
        for verb in (catalog.create_namespace, catalog.update_namespace, catalog.drop_namespace):
            for name in (None, 7, b"bytes", [], ("a", "b")):
                with pytest.raises(InvalidInput, match="must be text"):
                    verb(cast(str, name))
        assert catalog.version() == 0
    if daemon is not None:
        daemon.stop()


def test_there_are_scripts() -> None:
    assert SCRIPTS
