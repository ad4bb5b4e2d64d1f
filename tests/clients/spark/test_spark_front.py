"""Methods that `SparkCatalog` passes on to the catalog, without Spark."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from spark_marks import SPARK_MARKS

import alpheus
from alpheus.errors import InvalidInput
from alpheus.spark import SparkCatalog
from alpheus_journal.clock import RandomIdentities

pytestmark = SPARK_MARKS

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SparkCatalog]:
    """Yield a lake without a session, for verbs that need none."""
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", ROWS.schema)
        lake = object.__new__(SparkCatalog)
        lake.catalog = catalog
        yield lake


@pytest.mark.parametrize("verb", ["transaction", "retry", "resume"])
def test_the_arguments_are_those_of_the_catalog(verb: str) -> None:
    ours, theirs = (inspect.signature(getattr(cls, verb)) for cls in (SparkCatalog, alpheus.Catalog))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]


def test_what_a_transaction_says_of_itself_is_committed(lake: SparkCatalog) -> None:
    id = RandomIdentities().uuid7()
    with lake.transaction(
        "serializable", "why", {"team": "blue"}, "main", "nightly/1", ("loader", 3), id
    ) as tx:
        assert tx.id == id
        tx.catalog.read("sales.orders")
        tx.catalog.append("sales.orders", ROWS)
    [entry] = lake.catalog.log(after=2)
    told = entry.transaction
    assert (told.id, told.isolation, told.message, told.properties) == (
        id, "serializable", "why", {"team": "blue"},
    )  # fmt: skip
    assert (told.key, told.writer) == ("nightly/1", ("loader", 3))
    assert [read.type for read in told.reads] == ["TABLE_SELECT"]
    with pytest.raises(InvalidInput, match="chaos"):
        lake.transaction(isolation="chaos")


def test_what_a_retried_transaction_says_of_itself_is_committed(lake: SparkCatalog) -> None:
    for _ in range(2):
        lake.retry(
            lambda tx: tx.catalog.append("sales.orders", ROWS),
            isolation="serializable",
            key="nightly/2",
            writer=("loader", 4),
        )
    [entry] = lake.catalog.log("sales.orders", after=2)
    assert (entry.transaction.key, entry.transaction.isolation) == ("nightly/2", "serializable")
    assert entry.transaction.writer == ("loader", 4)


def test_a_transaction_is_put_aside_and_gone_on_with(lake: SparkCatalog) -> None:
    with lake.transaction() as tx:
        tx.catalog.append("sales.orders", ROWS)
        id = tx.save()
    assert tx.result is None
    with lake.resume(id) as tx:
        assert tx.catalog.load_table("sales.orders").row_count == 3
        tx.catalog.append("sales.orders", ROWS)
    assert tx.result is not None
    assert tx.result.transaction_id == id
    assert lake.catalog.read("sales.orders").num_rows == 6
