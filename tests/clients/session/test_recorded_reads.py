"""The recorded reads of a serializable transaction, in events, in the log, and in every other place that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import Catalog, cli

READ = [("CATALOG_SHOW_NAMESPACES", ""), ("NAMESPACE_EXISTS", "there"), ("TABLE_SELECT", "s.t")]


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    """Yield a catalog whose head, version 3, is a serializable transaction with three reads.

    Earlier versions have none.
    """
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("s")
        opened.create_table("s.t", pa.table({"id": [1]}))
        with opened.transaction(isolation="serializable") as tx:
            tx.list_namespaces("s")
            tx.namespace_exists("there")
            tx.read("s.t")
            tx.update_namespace("s", set={"a": "b"})
        yield opened


def test_events_and_log_tell_them(catalog: Catalog) -> None:
    with catalog.events(after=1, until=3) as events:
        told = [transaction for event in events for transaction in event.transactions]
    with catalog.log(after=1) as entries:
        told += [entry.transaction for entry in entries]
    reads = [[(read.type, read.name) for read in transaction.reads] for transaction in told]
    assert reads == [[], READ, READ, []]
    assert {transaction.isolation for transaction in told if transaction.reads} == {"serializable"}


def test_the_system_table_tells_them(catalog: Catalog) -> None:
    rows = catalog.system("log", after=1).to_pylist()
    assert [[(read["type"], read["name"]) for read in row["reads"]] for row in rows] == [[], READ]


def test_the_commands_tell_them(catalog: Catalog) -> None:
    for words, key in (
        (("events", "--after", "2"), "transactions"),
        (("log", "--after", "2"), "transaction"),
    ):
        told = CliRunner().invoke(cli.cli, ["--catalog", catalog.url, "--output", "json", *words])
        found = json.loads(told.stdout.splitlines()[0])[key]
        transaction = found[0] if isinstance(found, list) else found
        assert [(read["type"], read["name"]) for read in transaction["reads"]] == READ
        told = CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words])
        (line,) = told.stdout.splitlines()
        text = "having read: CATALOG_SHOW_NAMESPACES, NAMESPACE_EXISTS there, TABLE_SELECT s.t"
        assert text in line


def test_events_in_spark_have_a_row_for_each(catalog: Catalog) -> None:
    source = pytest.importorskip("alpheus.spark.streams.event_source")
    with catalog.events(after=2, until=3) as events:
        (event,) = events
    rows = list(source.event_rows(event))
    assert [(row["action_type"], row["name"], row["change_type"]) for row in rows] == [
        ("NAMESPACE_ALTER_SET_PROPERTIES", "s", "updated"),
        *((type, name, None) for type, name in READ),
    ]
    assert {row["transaction_id"] for row in rows} == {event.transactions[0].id}
