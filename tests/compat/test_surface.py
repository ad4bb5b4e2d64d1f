"""The names that users depend on stay: no name goes and no shape changes by accident."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest
from surface import surface

KEPT = Path(__file__).with_name("surface.json")


def test_nothing_that_users_name_has_changed() -> None:
    """After an intended change, run python tests/compat/surface.py > tests/compat/surface.json, and add a line to
    CHANGELOG."""
    before = KEPT.read_text().splitlines()
    now = json.dumps(surface(), indent=1, sort_keys=True).splitlines()
    changed = list(difflib.unified_diff(before, now, "surface.json", "the code", lineterm="", n=4))
    if changed:
        pytest.fail("\n".join(changed[:200]), pytrace=False)


def test_every_part_of_the_surface_is_gathered() -> None:
    """Each gatherer finds names, because one that finds nothing would match any saved document."""
    kept = json.loads(KEPT.read_text())
    counts = {name: len(part) for name, part in kept.items()}
    assert min(counts.values()) > 4, counts
    assert counts["error_kinds"] > 80
    assert counts["log_events"] > 30
    assert counts["settings"] > 40
    assert counts["metrics"] > 40
