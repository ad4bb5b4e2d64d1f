"""The program of revision 1 beside this one: it reads and writes until the upgrade, and nothing after it.

`library-r1.zip` is the library as it was before revision 2 (README.md says how it was made). It runs in a process of
its own, as a rival writer and as a reader, while this program upgrades, expires and collects.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alpheus_test_servers import S3Server

import alpheus

LIBRARY = Path(__file__).parent / "library-r1.zip"
READER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pyarrow as pa
import alpheus
from alpheus.errors import AlpheusError
names = {"alpheus": alpheus, "pa": pa}
print(json.dumps({"value": alpheus.__file__}), flush=True)
for line in sys.stdin:
    try:
        asked = json.loads(line)
        if "let" in asked:
            names[asked["let"]] = eval(asked["be"], names)
            value = None
        else:
            value = eval(asked["be"], names)
        answer = {"value": value}
    except AlpheusError as error:
        answer = {"error": type(error).__name__, "kind": error.kind}
    print(json.dumps(answer), flush=True)
"""


class OldProgram:
    """A process of the old program that evaluates expressions."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, str(LIBRARY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read()["value"].startswith(str(LIBRARY)), "the process runs another library"

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def ask(self, expression: str, name: str = "") -> dict[str, Any]:
        """Evaluate an expression, and keep its value under `name` if one is given. Return the answer."""
        self.begin(expression, name)
        return self._read()

    def begin(self, expression: str, name: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"be": expression} | ({"let": name} if name else {})) + "\n")
        self._process.stdin.flush()

    def evaluate(self, expression: str, name: str = "") -> Any:
        answer = self.ask(expression, name)
        assert "error" not in answer, answer
        return answer["value"]

    def expect_refusal(self, expression: str) -> str:
        """Return the kind of the error."""
        answer = self.ask(expression)
        assert "error" in answer, answer
        return str(answer["kind"])

    def finish(self) -> dict[str, Any]:
        """Return the answer to what was begun."""
        return self._read()

    def close(self) -> None:
        self._process.communicate()  # closes both pipes


@pytest.fixture(scope="module")
def old() -> Iterator[OldProgram]:
    program = OldProgram()
    yield program
    program.close()


@pytest.fixture(params=["disk", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, old: OldProgram) -> str:
    if request.param == "disk":
        return f"file://{tmp_path}/lake"
    server: S3Server = request.getfixturevalue("s3_server")
    old.evaluate(f"__import__('os').environ.update({server.environment!r})")
    return server.url()


def ids_of(catalog: alpheus.Catalog, at: int | None = None) -> list[int]:
    return sorted(catalog.read("a.t", at=at).to_pandas()["id"])


def retire(catalog: alpheus.Catalog) -> None:
    """Upgrade, expire all versions but the head, and collect what only they held."""
    catalog.admin.upgrade()
    catalog.admin.expire(older_than=0, keep=1)
    catalog.admin.collect(minimum_age=0, allow_short=True)


def test_an_old_writer_never_crosses_a_fence(old: OldProgram, url: str) -> None:
    old.evaluate(f"alpheus.create({url!r})", "lake")
    for name in ("create_namespace('a')", "create_table('a.t', pa.table({'id': [1]}))"):
        old.ask(f"lake.{name} and None")
    old.ask("lake.overwrite('a.t', pa.table({'id': [2]})) and None")
    held = old.evaluate("lake.version()")
    old.evaluate("lake.at(None, lease=True)", "leased")
    old.evaluate("lake.overwrite('a.t', pa.table({'id': [3]})) and None")
    old.evaluate("lake.transaction().__enter__()", "tx")
    old.evaluate("tx.append('a.t', pa.table({'id': [4]})) and None")

    with alpheus.connect(url) as catalog:
        assert catalog.info().format_revision == 1
        assert ids_of(catalog) == [3]
        retire(catalog)
        assert catalog.info().format_revision == 2
        assert old.expect_refusal("tx.__exit__(None, None, None)") == "newer_format"
        assert old.expect_refusal("lake.append('a.t', pa.table({'id': [5]}))") == "newer_format"
        assert old.expect_refusal("lake.read('a.t').num_rows") == "newer_format"
        assert old.expect_refusal(f"alpheus.connect({url!r})") == "newer_format"
        assert old.evaluate("leased.read('a.t').to_pydict()") == {"id": [2]}, (
            f"the lease keeps version {held}"
        )
        assert ids_of(catalog) == [3]
        assert not catalog.admin.check().findings
        catalog.create_namespace("b")
        assert [listed.name for listed in catalog.list_namespaces()] == ["a", "b"]


def test_what_an_old_writer_committed_in_the_race_stays(old: OldProgram, url: str) -> None:
    """The old program appends in a loop until it is refused, while this program upgrades, expires and collects.

    Where the slot of its last commit expired before it looked, the old program does not know who took the slot.
    """
    old.evaluate(f"alpheus.connect({url!r}, create=True, timeout=3)", "lake")
    old.ask("lake.create_namespace('a') and None")
    old.ask("lake.create_table('a.t', pa.table({'id': [0]})) and None")
    old.evaluate("[0]", "done")
    forever = "[done.append(n) for n in range(1, 10**9) if lake.append('a.t', pa.table({'id': [n]})) or True]"
    old.begin(forever)
    with alpheus.connect(url) as catalog:
        while catalog.version() < 8:  # each question reads the head
            pass
        retire(catalog)
        answer, done = old.finish(), old.evaluate("done")
        kept = ids_of(catalog)
        assert len(done) >= 6
        if answer["error"] == "OutcomeUnknown":
            assert kept in (done, [*done, len(done)])
        else:
            assert (answer["kind"], kept) == ("newer_format", done)
        assert old.expect_refusal("lake.version()") == "newer_format"
        catalog.admin.collect(minimum_age=0, allow_short=True)
        assert ids_of(catalog) == kept
        assert not catalog.admin.check().findings
