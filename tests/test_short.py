"""The cases that `make test` leaves out."""

from __future__ import annotations

from types import SimpleNamespace

import alpheus_short as short
from alpheus_budget import ROOT


def left_out(*names: str) -> list[str]:
    return [item.nodeid for item in short.left_out([SimpleNamespace(nodeid=name) for name in names])]


def test_each_third_case_stays() -> None:
    test = next(test for test, step in short.EVERY.items() if step == 3)
    names = [f"{test}[{number}]" for number in range(5)]
    assert left_out("other[0]", *names, "other[1]") == [names[1], names[2], names[4]]


def test_the_named_cases_stay() -> None:
    test = next(test for test, kept in short.CASES.items() if kept == ("direct",))
    names = [f"{test}[{way}-{number}]" for way in ("direct", "remote") for number in range(2)]
    assert left_out(*names, "other[remote]") == names[2:]


def test_what_is_asked_for_by_its_name_runs() -> None:
    test = next(test for test, kept in short.CASES.items() if kept == ("direct",))
    assert not left_out(f"{test}[remote]")
    assert not left_out(short.ELSEWHERE[0])
    assert left_out(*short.ELSEWHERE) == list(short.ELSEWHERE)


def test_every_test_of_the_tables_is_there() -> None:
    for test in (*short.EVERY, *short.CASES):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test
    for test in short.ELSEWHERE:
        file, name, _ = test.split("::")
        assert f"class {name}(" in (ROOT / file).read_text(), test
