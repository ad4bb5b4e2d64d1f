"""One catalog for each module, reached in both ways: on storage that this process opens, and over a daemon."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import alpheus
from alpheus import Catalog

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        yield opened


@pytest.fixture
def space(catalog: Catalog) -> str:
    """Create a fresh namespace, and return its name."""
    name = f"space{next(_numbers)}"
    catalog.create_namespace(name)
    return name
