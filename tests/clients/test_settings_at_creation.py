"""What is set when a catalog is created: limits of names, the life of saved transactions, the default isolation."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_answers import failed, ok
from click.testing import CliRunner

import alpheus
from alpheus import cli
from alpheus.errors import Conflict, InvalidInput


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/lake"


@pytest.fixture(params=["direct", "remote"])
def connect(request: pytest.FixtureRequest, url: str) -> Callable[[], alpheus.Catalog]:
    """Return what opens the catalog that the test created, itself or through a daemon."""
    if request.param == "direct":
        return lambda: alpheus.connect(url)
    start: Callable[[str], Any] = request.getfixturevalue("start_daemon")
    return lambda: alpheus.connect(start(url).url)


def test_each_kind_of_name_has_its_limit(url: str, connect: Callable[[], alpheus.Catalog]) -> None:
    alpheus.create(url, namespace_name_bytes=4, table_name_bytes=6, view_name_bytes=1).close()
    with connect() as catalog:
        info = catalog.info()
        assert (info.namespace_name_bytes, info.table_name_bytes, info.view_name_bytes) == (4, 6, 1)
        for good in ("four", "öö"):
            catalog.create_namespace(good)
        for bad in ("fives", "ööö"):
            with pytest.raises(InvalidInput, match="4 bytes"):
                catalog.create_namespace(bad)
        catalog.create_table("four.sixsix", pa.schema({"id": pa.int64()}))
        with pytest.raises(InvalidInput, match="6 bytes"):
            catalog.create_table("four.sevenup", pa.schema({"id": pa.int64()}))
        with pytest.raises(InvalidInput, match="1 bytes"):
            catalog.create_view("four.vw", "select 1")


def test_the_default_isolation(url: str, connect: Callable[[], alpheus.Catalog]) -> None:
    alpheus.create(url, isolation="serializable").close()
    with connect() as catalog:
        assert catalog.info().isolation == "serializable"
        catalog.create_namespace("a")
        catalog.create_namespace("b")

        def skew(isolation: str | None) -> None:
            """Write what was decided by a read, while another commit changes what was read."""
            with catalog.transaction(isolation) as tx:
                tx.load_namespace("a")
                catalog.update_namespace("a", set={"by": "another"})
                tx.update_namespace("b", set={"by": "this"})

        skew("snapshot")
        for isolation in (None, "serializable"):
            with pytest.raises(Conflict):
                skew(isolation)


def test_saved_transactions_last_as_long_as_was_said(url: str) -> None:
    with alpheus.create(url, txn_ttl="2h") as catalog:
        assert catalog.info().txn_ttl == timedelta(hours=2)
        tx = catalog.transaction().__enter__()
        tx.create_namespace("later")
        tx.save()
        (saved,) = catalog.list_saved()
        assert abs(saved.expires_at - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"namespace_name_bytes": 0}, "limit of namespace names in bytes 0 is not within 1 to 1024"),
        ({"table_name_bytes": 1025}, "limit of table names in bytes 1025"),
        ({"view_name_bytes": True}, "limit of view names in bytes True"),
        ({"txn_ttl": 59}, "lifetime of saved transactions in milliseconds 59000"),
        ({"txn_ttl": "soon"}, "'soon' is not a time span"),
        ({"isolation": "none"}, "'none' is neither"),
        ({"namespace_name_bytes": 1024, "table_name_bytes": 1024, "order": 1024}, "more than half"),
    ],
)
def test_wrong_settings_create_nothing(url: str, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        alpheus.create(url, **wrong)
    alpheus.create(url).close()


def test_the_command_takes_and_shows_them(url: str) -> None:
    words = "--namespace-name-bytes 50 --table-name-bytes 60 --view-name-bytes 70 --txn-ttl 12h"
    words += " --isolation serializable"
    told = ok(CliRunner().invoke(cli.cli, ["create", url, *words.split()]))
    assert "50 bytes for namespaces, 60 for tables, 70 for views" in told
    assert "serializable" in told
    shown = json.loads(ok(CliRunner().invoke(cli.cli, ["--catalog", url, "--output", "json", "info"])))
    assert (shown["namespace_name_bytes"], shown["view_name_bytes"], shown["isolation"]) == (
        50,
        70,
        "serializable",
    )
    wrong = failed(CliRunner().invoke(cli.cli, ["create", url, "--txn-ttl", "soon"]), 2)
    assert "'soon' is not a time" in wrong
