"""A table of two files and twenty rows in a module's catalog, for tests of the verbs that change rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from alpheus import Catalog
from alpheus.errors import AlpheusError

_numbers = itertools.count(1)
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("n", pa.int32())])


@pytest.fixture
def space(catalog: Catalog) -> str:
    name = f"s{next(_numbers)}"
    catalog.create_namespace(name)
    return name


@pytest.fixture
def name(catalog: Catalog, space: str) -> str:
    """Create a table of two files, and return its name.

    The ids are 0 to 9 and 10 to 19. The kinds are a and b in turn, and n is ten times the id.
    """
    catalog.create_table(f"{space}.t", SCHEMA)
    for start in (0, 10):
        catalog.append(f"{space}.t", rows(start, start + 10))
    return f"{space}.t"


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"id": id, "kind": "ab"[id % 2], "n": 10 * id} for id in range(start, end)]


def ids(catalog: Any, name: str, where: str | None = None) -> list[Any]:
    return sorted(
        catalog.read(name, where=where).column("id").to_pylist(), key=lambda id: (id is not None, id)
    )


def refused(kind: type[AlpheusError], call: Callable[[], object], *words: str) -> AlpheusError:
    with pytest.raises(kind) as caught:
        call()
    said = f"{caught.value.kind} {caught.value.message} {caught.value.hint}"
    for word in words:
        assert word in said, (word, said)
    return caught.value
