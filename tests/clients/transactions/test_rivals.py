"""Two writers of the same rows: the conflict reports who was first, when, in which version, and with which rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import alpheus
from alpheus import Catalog, cli
from alpheus.errors import Conflict

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("s")
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> str:
    name = f"s.t{next(_numbers)}"
    catalog.create_table(name, ROWS)
    return name


Verb = Callable[[Any, str], object]

DELETE: Verb = lambda tx, name: tx.delete(name, "id = 1")  # noqa: E731
REWRITE: Verb = lambda tx, name: tx.delete(name, "id = 1", mode="rewrite")  # noqa: E731
UPDATE: Verb = lambda tx, name: tx.update(name, {"name": "x"}, "id = 1")  # noqa: E731
UPDATE_ALL: Verb = lambda tx, name: tx.update(name, {"name": "y"}, "true", mode="rewrite")  # noqa: E731
MERGE: Verb = lambda tx, name: tx.merge(name, ROWS.slice(0, 1), "id")  # noqa: E731
APPEND: Verb = lambda tx, name: tx.append(name, ROWS)  # noqa: E731
OVERWRITE: Verb = lambda tx, name: tx.overwrite(name, ROWS)  # noqa: E731


@pytest.mark.parametrize(
    ("first", "second", "done"),
    [
        (DELETE, UPDATE, "delete from table {} where `id` = 1"),
        (UPDATE, DELETE, "update table {} where `id` = 1"),
        (UPDATE, UPDATE, "update table {} where `id` = 1"),
        (REWRITE, REWRITE, "delete from table {} where `id` = 1, removing 1 file of 3 rows"),
        (UPDATE_ALL, REWRITE, "update table {} where TRUE, removing 1 file of 3 rows"),
        (MERGE, UPDATE_ALL, "merge into table {} where"),
        (APPEND, MERGE, "append to table {}"),
        (OVERWRITE, UPDATE, "overwrite table {}"),
    ],
)
def test_the_loser_is_told_by_whom(
    catalog: Catalog, table: str, first: Verb, second: Verb, done: str
) -> None:
    with pytest.raises(Conflict) as caught, catalog.transaction() as late:  # noqa: PT012
        second(late, table)
        with catalog.transaction() as early:
            first(early, table)
        catalog.update_namespace("s", set={"in": "between"})
        with catalog.transaction() as bystander:
            bystander.update_table(table, set={"k": "v"})
    error, result = caught.value, early.result
    assert result is not None
    assert error.version == result.version
    assert error.transaction_id == result.transaction_id
    assert error.principal == catalog._core()._session.principal != ""
    committed_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=error.committed_at_millis)
    assert abs(committed_at - result.created_at) < timedelta(minutes=1)
    assert error.theirs.startswith(done.format(table))
    assert error.mine
    assert error.retryable
    for word in (error.principal, error.theirs, f"version {result.version}", result.transaction_id):
        assert word in error.message, error.message


def test_of_several_the_one_that_took_the_file_is_named(catalog: Catalog, table: str) -> None:
    catalog.append(table, pa.table({"id": pa.array([7], pa.int64()), "name": ["g"]}))
    with pytest.raises(Conflict) as caught, catalog.transaction() as late:  # noqa: PT012
        late.delete(table, "id = 7", mode="rewrite")
        catalog.delete(table, "id = 1", mode="rewrite")
        taken = catalog.delete(table, "id = 7", mode="rewrite")
        catalog.delete(table, "id = 2", mode="rewrite")
    assert caught.value.version == taken.version
    assert caught.value.theirs == f"delete from table {table} where `id` = 7, removing 1 file of 1 rows"


def test_moved_metadata_names_who_moved_it(catalog: Catalog) -> None:
    name = f"s.t{next(_numbers)}"
    catalog.register_table(name, "file:///m/v1.json")
    moved = catalog.commit_iceberg(name, "file:///m/v2.json", "file:///m/v1.json")
    with pytest.raises(Conflict) as caught:
        catalog.commit_iceberg(name, "file:///m/v3.json", "file:///m/v1.json")
    assert caught.value.kind == "metadata_moved"
    # A lone verb that names what it expects begins at the newest version, with no other commit in between.
    with pytest.raises(Conflict) as caught, catalog.transaction() as late:  # noqa: PT012
        late.commit_iceberg(name, "file:///m/v3.json", "file:///m/v2.json")
        moved = catalog.commit_iceberg(name, "file:///m/v4.json", "file:///m/v2.json")
    assert caught.value.version == moved.version
    assert caught.value.principal


def test_the_command_says_it_in_json(catalog: Catalog, table: str) -> None:
    with catalog.transaction() as late:
        late.update(table, {"name": "x"}, "id = 1")
        id = late.save()
    first = catalog.delete(table, "id = 1")
    told = CliRunner().invoke(
        cli.cli, ["--output", "json", "--catalog", catalog.url, "transaction", "commit", id]
    )
    assert told.exit_code == 3
    failure = json.loads(told.stderr)
    assert failure["error"] == "Conflict"
    assert failure["version"] == first.version
    assert failure["transaction_id"] == first.transaction_id
    assert failure["principal"]
    assert failure["committed_at_millis"]
    assert failure["theirs"] == f"delete from table {table} where `id` = 1"
    assert failure["mine"] == f"update table {table}"


def test_files_of_one_schema_have_the_same_names(catalog: Catalog, table: str) -> None:
    """A transaction changes the columns and appends. Its files carry a schema id that another writer takes first."""
    with pytest.raises(Conflict) as caught, catalog.transaction() as late:  # noqa: PT012
        late.update_table(table, rename_columns={"name": "label"})
        late.append(table, ROWS.rename_columns(["id", "label"]))
        catalog.update_table(table, rename_columns={"id": "number"})
    assert caught.value.retryable
    with catalog.transaction() as again:
        again.update_table(table, rename_columns={"name": "label"})
        again.append(table, ROWS.rename_columns(["number", "label"]))
    rows = catalog.read(table)
    assert rows.column_names == ["number", "label"]
    assert sorted(rows["number"].to_pylist()) == [1, 1, 2, 2, 3, 3]
    assert {file["schema_id"] for file in catalog.system("files", names=table).to_pylist()} == {0, 2}
