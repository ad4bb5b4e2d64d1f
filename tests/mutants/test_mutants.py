"""The program that makes mutants: what it changes, what it leaves alone, and what it reports about the tests."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import equivalents
import mutant_run
import pytest
from mutant_run import MODULES, ROOT, Kept, Module, Runner, is_equivalent, score
from mutations import is_program, mutations_of, sampled

EVERYTHING = '''
"""Words."""
LIMIT = 10

class Thing:
    """Words."""

    size: int = 0

    def __init__(self, one: int, two: int = 1) -> None:
        """Words."""
        self.one = one
        self.two = two

    def grow(self, other: int, hint: str = "") -> int | None:
        assert other > 0, "words"
        log.info("grown", by=other + 1)
        if not other or self.one < other and hint:
            raise ValueError(f"{other - 1} is too much")
        for number in range(other):
            if number in (1, 2):
                continue
            self.one += max(self.two, number)
        try:
            self.put(self.one, other)
        except (KeyError, ValueError):
            return None
        return self.one * 2 if hint else self.one
'''


def test_what_is_changed() -> None:
    found = {
        (m.line, m.what, EVERYTHING.encode()[m.start : m.end].decode(), m.text)
        for m in mutations_of(EVERYTHING)
    }
    assert {(line, what, text) for line, what, _, text in found} == {
        (12, "return early", "return"),
        (12, "statement dropped", "pass"),
        (13, "statement dropped", "pass"),
        (18, "and, or", "(not other and (self.one < other and hint))"),
        (18, "condition dropped", "(self.one < other and hint)"),
        (18, "condition dropped", "(not other)"),
        (18, "condition negated", "(not (not other or (self.one < other and hint)))"),
        (18, "not dropped", "(other)"),
        (18, "and, or", "(self.one < other or hint)"),
        (18, "condition dropped", "(hint)"),
        (18, "condition dropped", "(self.one < other)"),
        (18, "comparison flipped", "self.one <= other"),
        (19, "statement dropped", "pass"),
        (21, "comparison flipped", "number not in (1, 2)"),
        (21, "off by one", "2"),
        (21, "off by one", "3"),
        (22, "left, not gone on", "break"),
        (23, "statement dropped", "pass"),
        (23, "other extreme", "min"),
        (25, "statement dropped", "pass"),
        (25, "arguments swapped", "self.put(other, self.one)"),
        (26, "error not caught", "(ValueError,)"),
        (26, "error not caught", "(KeyError,)"),
        (28, "nothing returned", "None"),
        (28, "operator", "self.one // 2"),
        (28, "off by one", "3"),
        (28, "condition negated", "(not (hint))"),
    }


def test_each_mutant_is_another_program_and_leaves_the_rest() -> None:
    source = (ROOT / MODULES["writer"].path).read_text()
    mutations = mutations_of(source)
    assert len(mutations) > 200
    some = [mutation for mutation in mutations[::24] if is_program(mutation, source)]
    assert len(some) >= len(mutations[::24]) - 1
    programs = {
        ast.dump(ast.parse(text)) for text in (source, *(mutation.applied(source) for mutation in some))
    }
    assert len(programs) == len(some) + 1
    for mutation in some:
        changed = mutation.applied(source)
        assert changed.startswith(source.encode()[: mutation.start].decode())
        assert changed.endswith(source.encode()[mutation.end :].decode())
        assert mutation.diff(source, "x.py").startswith("--- x.py")


def test_a_seed_draws_the_same_ones_and_another_others() -> None:
    source = (ROOT / MODULES["positions"].path).read_text()
    one, again, other = (sampled(source, 6, seed) for seed in ("1", "1", "2"))
    assert one == again != other
    assert len({mutation.line for mutation in one}) == 6, "one a line"
    assert sampled(source, 2, "1") == one[:2], "more of them are those and others"
    assert len(sampled(EVERYTHING, 100, "1")) == len({mutation.line for mutation in mutations_of(EVERYTHING)})


def test_modules_and_equivalents_are_there() -> None:
    for name, module in MODULES.items():
        for path in (module.path, *module.tests):
            assert (ROOT / path).is_file(), path
        assert all(reason for reason in equivalents.REASONS.get(name, {}).values())
    assert equivalents.REASONS.keys() <= MODULES.keys()


CORE = """
def smaller(one: int, two: int) -> bool:
    return one < two

def unasked(one: int) -> int:
    return one + 1
"""
TESTS = '''
import subprocess, sys
from toy.core import smaller

def test_smaller():
    assert smaller(1, 2)
    assert not smaller(2, 2)

def test_in_another_process():
    """As a daemon that tests start."""
    subprocess.run([sys.executable, "-c", "from toy.core import smaller; assert smaller(1, 2)"], check=True)
'''


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for path, text in {
        "lib/toy/__init__.py": "",
        "lib/toy/core.py": CORE,
        "test_toy.py": TESTS,
        "pytest.ini": "[pytest]\npythonpath = lib\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_caught_and_survived(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(toy / "lib"))
    modules = {"core": Module("lib/toy/core.py", ("test_toy.py",))}
    told: list[str] = []
    kept = toy / "kept.jsonl"
    results = Runner(toy, modules, Kept(kept), tell=told.append).run(["core"], count=2, seed=3)
    fates = {result.key.split(" | ")[0]: (result.fate, result.by) for result in results["core"]}
    assert fates["return one < two"][0] == "caught"
    assert "test_toy.py::" in fates["return one < two"][1]
    assert fates["return one + 1"][0] == "survived"
    assert score(results) == 0.5
    printed = "\n".join(told)
    assert "seed 3: 50.0%" in printed
    assert "-    return one + 1" in printed
    assert "-    return one < two" not in printed, "only what survived is shown"
    assert (toy / "lib/toy/core.py").read_text() == CORE

    # A second run repeats no test. An equivalent is shown and does not count.
    monkeypatch.setattr(mutant_run, "tested", None)
    survivor = next(result.key for result in results["core"] if result.fate == "survived")
    monkeypatch.setitem(equivalents.REASONS, "core", {survivor: "nobody calls it"})
    told.clear()
    again = Runner(toy, modules, Kept(kept), tell=told.append).run(["core"], count=2, seed=3)
    assert again == results
    assert is_equivalent("core", survivor)
    assert score(again) == 1.0
    assert "equivalent: nobody calls it" in "\n".join(told)


def test_tests_that_fail_without_a_mutant_are_said(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(toy / "lib"))
    with (toy / "test_toy.py").open("a") as file:
        file.write("\ndef test_wrong():\n    assert smaller(2, 1)\n")
    modules = {"core": Module("lib/toy/core.py", ("test_toy.py",))}
    with pytest.raises(RuntimeError, match="test_wrong: caught without a mutant"):
        Runner(toy, modules, Kept(toy / "kept.jsonl"), tell=str).run(["core"], count=1, seed=1)


def test_a_few_of_the_product(lane_count: Callable[[int, int], int], tmp_path: Path) -> None:
    """With full counts one mutant of each module is tested. With small counts it is only made and shown."""
    if lane_count(0, 1):
        results = Runner(ROOT, MODULES, Kept(tmp_path / "kept.jsonl")).run([*MODULES], count=1, seed=1)
        assert score(results) > 0.7, "few are drawn: two of eight may survive"
        return
    for name, module in MODULES.items():
        source = (ROOT / module.path).read_text()
        (mutation,) = sampled(source, 1, f"1 {name}")
        assert is_program(mutation, source), name
        assert mutation.diff(source, module.path), name
