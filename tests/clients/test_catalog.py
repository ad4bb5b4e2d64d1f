"""One suite over both ways to a catalog: storage that this process opens, and a daemon in its own process.

One catalog serves the whole module. Each test works in a namespace of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from both_ways import catalog as catalog
from both_ways import space as space

import alpheus
from alpheus import Catalog
from alpheus.errors import AlreadyExists, Conflict, Expired, InvalidInput, NotEmpty, NotFound
from alpheus_journal.clock import claimed_principal
from alpheus_journal.model.definitions import InputPosition

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
_numbers = itertools.count(1)


# --- objects ---------------------------------------------------------------------------------------


def test_a_namespace_lives_and_dies(catalog: Catalog) -> None:
    commit = catalog.create_namespace("life", {"owner": "ada"})
    assert commit.version == catalog.version()
    assert not commit.duplicate
    loaded = catalog.load_namespace("life")
    assert (loaded.name, loaded.properties) == ("life", {"owner": "ada"})
    assert loaded.version == commit.version
    catalog.update_namespace("life", set={"owner": "bob", "tier": "1"}, unset=[])
    catalog.update_namespace("life", unset="tier")
    assert catalog.load_namespace("life").properties == {"owner": "bob"}
    assert catalog.namespace_exists("life")
    dropped = catalog.drop_namespace("life")
    assert not catalog.namespace_exists("life")
    with pytest.raises(NotFound) as caught:
        catalog.load_namespace("life")
    assert caught.value.kind == "no_namespace"
    # Past versions still have the namespace.
    assert catalog.at(dropped.version - 1).load_namespace("life").properties == {"owner": "bob"}


def test_creating_twice(catalog: Catalog, space: str) -> None:
    with pytest.raises(AlreadyExists) as caught:
        catalog.create_namespace(space)
    assert caught.value.kind == "namespace_exists"
    head = catalog.version()
    commit = catalog.create_namespace(space, {"ignored": "yes"}, exist_ok=True)
    assert (commit.version, commit.transaction_id) == (head, "")
    assert catalog.load_namespace(space).properties == {}
    table = f"{space}.t"
    catalog.create_table(table, ROWS.schema)
    with pytest.raises(AlreadyExists) as caught:
        catalog.create_table(table, ROWS)
    assert caught.value.kind == "table_exists"
    assert catalog.create_table(table, ROWS, exist_ok=True).transaction_id == ""
    assert catalog.read(table).num_rows == 0
    assert catalog.create_table(f"{space}.new", ROWS, exist_ok=True).rows_added == 3


def test_a_table_lives_and_dies(catalog: Catalog, space: str) -> None:
    name = (space, "dotted.name")
    catalog.create_table(name, ROWS.schema, properties={"k": "v"})
    table = catalog.load_table(name)
    assert (table.namespace, table.name, table.format) == (space, "dotted.name", "native")
    assert table.full_name == f"{space}.dotted.name"
    assert [(field.name, field.type) for field in table.schema] == [("id", pa.int64()), ("name", pa.string())]
    assert (table.row_count, table.file_count, table.size_bytes) == (0, 0, 0)
    catalog.update_table(name, set={"k": "w"})
    assert catalog.load_table(name).properties == {"k": "w"}
    catalog.drop_table(name)
    assert not catalog.table_exists(name)
    with pytest.raises(NotFound) as caught:
        catalog.load_table(name)
    assert caught.value.kind == "no_table"
    with pytest.raises(NotFound):
        catalog.drop_table(name)


def test_a_namespace_with_tables_is_kept(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS.schema)
    with pytest.raises(NotEmpty):
        catalog.drop_namespace(space)
    assert catalog.table_exists(f"{space}.t")


def test_a_table_needs_its_namespace(catalog: Catalog) -> None:
    for data in (ROWS.schema, ROWS):
        with pytest.raises(NotFound) as caught:
            catalog.create_table("nowhere.t", data)
        assert caught.value.kind == "no_namespace"
    assert not catalog.table_exists("nowhere.t")
    with pytest.raises(NotFound) as caught:
        catalog.list_tables("nowhere")
    assert caught.value.kind == "no_namespace"


def test_listing(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        for name in ("b", "a", "ab", "c"):
            tx.create_table(f"{space}.{name}", ROWS.schema)
    tables = catalog.list_tables(space)
    assert [table.name for table in tables] == ["a", "ab", "b", "c"]
    assert tables[0].full_name == f"{space}.a"
    assert {table.version for table in tables} == {catalog.version()}
    assert [table.name for table in catalog.list_tables(space, prefix="a")] == ["a", "ab"]
    assert [table.name for table in catalog.list_tables(space, limit=2)] == ["a", "ab"]
    assert [table.name for table in catalog.list_tables(space, limit=2, after="ab")] == ["b", "c"]
    assert space in [namespace.name for namespace in catalog.list_namespaces(prefix="space")]
    assert catalog.list_views(space) == []
    assert not catalog.view_exists(f"{space}.a")
    with pytest.raises(NotFound) as caught:
        catalog.load_view(f"{space}.a")
    assert caught.value.kind == "no_view"
    with pytest.raises(InvalidInput):
        catalog.list_tables(space, limit=0)


def test_loading_many(catalog: Catalog, space: str) -> None:
    names = [f"{space}.t{number}" for number in range(5)]
    with catalog.transaction() as tx:
        for name in names:
            tx.create_table(name, ROWS.schema)
    loaded = catalog.load_tables(reversed(names))
    assert [table.full_name for table in loaded] == names[::-1]
    assert len({table.version for table in loaded}) == 1
    assert catalog.load_tables([]) == []
    with pytest.raises(NotFound, match="absent"):
        catalog.load_tables([names[0], f"{space}.absent"])


def test_properties_of_the_catalog(catalog: Catalog) -> None:
    catalog.update_catalog(set={"team": "data"})
    assert catalog.info().properties["team"] == "data"
    catalog.update_catalog(unset=["team"])
    assert "team" not in catalog.info().properties


def test_names_that_are_none(catalog: Catalog, space: str) -> None:
    for name in ("nodot", "", ".", "a.", ".a", 5, ("a",), ("a", "b", "c"), ("a", 1)):
        with pytest.raises(InvalidInput) as caught:
            catalog.load_table(name)  # type: ignore[arg-type]
        assert caught.value.kind == "bad_name"
    for name in ("with space", "tab\t", "ba/ck", "x" * 101):
        with pytest.raises(InvalidInput) as caught:
            catalog.create_table((space, name), ROWS.schema)
        assert caught.value.kind == "bad_name"
    with pytest.raises(InvalidInput):
        catalog.list_tables(space, prefix="\ud800")


# --- rows ------------------------------------------------------------------------------------------


def test_rows_come_and_go(catalog: Catalog, space: str) -> None:
    name = f"{space}.rows"
    created = catalog.create_table(name, ROWS)
    assert (created.rows_added, created.rows_removed) == (3, 0)
    assert catalog.read(name) == ROWS
    appended = catalog.append(name, [{"id": 4, "name": "d"}])
    assert appended.rows_added == 1
    assert catalog.read(name, columns=["id"]).column("id").to_pylist() == [1, 2, 3, 4]
    table = catalog.load_table(name)
    assert (table.row_count, table.file_count) == (4, 2)
    assert table.size_bytes > 0
    overwritten = catalog.overwrite(name, ROWS.slice(0, 1))
    assert (overwritten.rows_added, overwritten.rows_removed) == (1, 4)
    assert catalog.read(name).num_rows == 1
    assert catalog.read(name, at=appended.version).num_rows == 4
    assert catalog.read(name, at=str(created.version)) == ROWS
    emptied = catalog.overwrite(name, [])
    assert emptied.rows_removed == 1
    assert catalog.read(name).num_rows == 0


def test_appending_nothing_commits_nothing(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS.schema)
    head = catalog.version()
    commit = catalog.append(f"{space}.t", ROWS.slice(0, 0))
    assert (commit.version, commit.transaction_id) == (head, "")
    assert catalog.version() == head


def test_rows_that_do_not_fit(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS.schema)
    head = catalog.version()
    with pytest.raises(InvalidInput) as caught:
        catalog.append(name, pa.table({"id": [1], "unknown": [2]}))
    assert caught.value.kind == "bad_data"
    with pytest.raises(InvalidInput):
        catalog.append(name, 7)
    with pytest.raises(InvalidInput) as caught:
        catalog.create_table(f"{space}.u", {"id": [1]})
    assert caught.value.kind == "bad_schema"
    with pytest.raises(NotFound):
        catalog.append(f"{space}.absent", ROWS)
    with pytest.raises(NotFound):
        catalog.read(f"{space}.absent")
    assert catalog.version() == head


# --- versions --------------------------------------------------------------------------------------


def test_a_snapshot_stays(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    snapshot = catalog.at(None)
    assert snapshot.version == catalog.version()
    catalog.append(name, ROWS)
    catalog.create_table(f"{space}.later", ROWS.schema)
    assert snapshot.read(name).num_rows == 3
    assert snapshot.load_table(name).version == snapshot.version
    assert [table.name for table in snapshot.list_tables(space)] == ["t"]
    assert not snapshot.table_exists(f"{space}.later")
    assert catalog.at(snapshot.version).version == snapshot.version
    assert catalog.at("latest").version == catalog.version()


def test_versions_by_time(catalog: Catalog, space: str) -> None:
    created = catalog.load_namespace(space).version
    moment = catalog.at(created).info.created_at
    assert moment.utcoffset() == timedelta(0)
    found = catalog.at(moment)
    assert found.info.created_at == moment
    assert catalog.at(moment.isoformat()).version == found.version
    with pytest.raises(InvalidInput) as ahead:
        catalog.at(datetime.now(UTC) + timedelta(days=1))
    assert ahead.value.kind == "future_version"
    with pytest.raises(NotFound) as caught:
        catalog.at(datetime(1999, 1, 1, tzinfo=UTC))
    assert caught.value.kind == "no_version"


@pytest.mark.parametrize(
    ("when", "kind"),
    [
        (datetime(2026, 1, 1), "bad_version"),
        ("2026-01-01T00:00:00", "bad_version"),
        ("2026-01-01", "bad_version"),
        ("2026-13-01T00:00:00Z", "bad_version"),
        (-(1 << 33), "bad_version"),
        (1 << 32, "bad_version"),
        (True, "bad_version"),
        (1.5, "bad_version"),
        ("release 1", "bad_version"),
        ("--release", "bad_version"),
    ],
)
def test_references_that_are_none(catalog: Catalog, when: Any, kind: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        catalog.at(when)
    assert caught.value.kind == kind


def test_a_version_that_is_not_there(catalog: Catalog) -> None:
    with pytest.raises(NotFound) as caught:
        catalog.at(catalog.version() + 1000)
    assert caught.value.kind == "no_version"


# --- transactions ----------------------------------------------------------------------------------


def test_several_tables_commit_together(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    with catalog.transaction(message="load", properties={"run": "7"}) as tx:
        tx.create_table(f"{space}.a", ROWS)
        tx.create_table(f"{space}.b", ROWS.schema)
        tx.append(f"{space}.b", ROWS)
        tx.update_namespace(space, set={"loaded": "yes"})
        # The transaction sees its own writes. Other readers do not.
        assert tx.read(f"{space}.b") == ROWS
        assert tx.load_table(f"{space}.b").row_count == 3
        assert [table.name for table in tx.list_tables(space)] == ["a", "b"]
        assert tx.load_namespace(space).properties == {"loaded": "yes"}
        assert not catalog.table_exists(f"{space}.a")
        assert tx.version == head
        assert tx.result is None
    assert tx.result is not None
    assert (tx.result.version, tx.result.transaction_id) == (head + 1, tx.id)
    assert tx.result.rows_added == 6
    assert catalog.read(f"{space}.b") == ROWS
    (entry,) = catalog.log(until=tx.result.version, after=head)
    assert (entry.transaction.message, entry.transaction.properties) == ("load", {"run": "7"})
    assert not entry.transaction.principal_authenticated


def test_an_exception_abandons(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    with pytest.raises(ZeroDivisionError), catalog.transaction() as tx:  # noqa: PT012
        tx.create_table(f"{space}.a", ROWS)
        raise ZeroDivisionError
    assert tx.result is None
    assert catalog.version() == head
    with pytest.raises(InvalidInput, match="is over"):
        tx.create_table(f"{space}.b", ROWS.schema)


def test_an_empty_transaction_commits_nothing(catalog: Catalog) -> None:
    head = catalog.version()
    with catalog.transaction() as tx:
        assert tx.list_namespaces(limit=1)
    assert tx.result is None
    assert catalog.version() == head


def test_mistakes_surface_where_they_are_made(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.a", ROWS.schema)
        with pytest.raises(AlreadyExists):
            tx.create_table(f"{space}.a", ROWS.schema)
        with pytest.raises(NotFound):
            tx.append(f"{space}.absent", ROWS)
        with pytest.raises(NotEmpty):
            tx.drop_namespace(space)
        tx.drop_table(f"{space}.a")
        assert not tx.table_exists(f"{space}.a")
        tx.drop_namespace(space)
    assert tx.result is not None
    assert not catalog.namespace_exists(space)


def test_writes_of_different_tables_do_not_conflict(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.mine", ROWS)
        catalog.create_table(f"{space}.theirs", ROWS)
    assert tx.result is not None
    assert tx.result.version == tx.version + 2
    assert [table.name for table in catalog.list_tables(space)] == ["mine", "theirs"]


def test_a_conflict_names_both_sides(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    with pytest.raises(Conflict) as caught, catalog.transaction() as tx:  # noqa: PT012
        tx.overwrite(name, ROWS)
        other = catalog.append(name, ROWS)
    assert caught.value.retryable
    assert caught.value.transaction_id == other.transaction_id
    assert caught.value.mine
    assert caught.value.theirs
    assert catalog.read(name).num_rows == 6
    assert catalog.outcome(tx.id).state == "unknown"


def test_retry_runs_again_after_a_conflict(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    rounds: list[str] = []

    def replace(tx: alpheus.Transaction) -> int:
        rows: int = tx.read(name).num_rows
        tx.overwrite(name, [{"id": rows}])
        if not rounds:
            catalog.append(name, ROWS)
        rounds.append(tx.id)
        return rows

    assert catalog.retry(replace, message="again") == 6
    assert len(set(rounds)) == 2
    assert catalog.read(name).column("id").to_pylist() == [6]
    rounds.clear()
    with pytest.raises(Conflict):
        catalog.retry(replace, attempts=1)
    with pytest.raises(InvalidInput):
        catalog.retry(replace, attempts=0)


def test_retry_refuses_functions_that_would_do_nothing(catalog: Catalog, space: str) -> None:
    async def later(tx: alpheus.Transaction) -> None:
        tx.create_table(f"{space}.t", ROWS)

    def piecewise(tx: alpheus.Transaction) -> Iterator[None]:
        yield tx.create_table(f"{space}.t", ROWS)

    functions: list[Any] = [later, piecewise, lambda tx: later(tx), lambda tx: piecewise(tx), "later"]
    for function in functions:
        with pytest.raises(InvalidInput, match=r"async, or has a yield|cannot be called"):
            catalog.retry(function)
    assert not catalog.table_exists(f"{space}.t")


async def test_an_async_catalog_tries_what_can_be_awaited() -> None:
    def plain(tx: alpheus.aio.AsyncTransaction) -> Any:
        tx.id.upper()

    async with await alpheus.aio.create("memory://plain_retry") as catalog:
        await catalog.retry(lambda tx: tx.create_namespace("a"))
        with pytest.raises(InvalidInput, match="needs an async function"):
            await catalog.retry(plain)
        assert await catalog.version() == 1


def test_concurrent_writers_of_one_client(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS.schema)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(3):
                catalog.retry(lambda tx: tx.append(name, [{"id": number}]), attempts=50)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(catalog.read(name).column("id").to_pylist()) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_positions_of_pipelines(catalog: Catalog, space: str) -> None:
    pipeline = f"p-{space}"
    with catalog.transaction() as tx:
        tx.advance_pipeline(
            pipeline, "job", "", tx.version, inputs={"x": InputPosition(table_id="t", version=3)}
        )
        assert tx.load_pipeline(pipeline).jobs["job"].last_transaction_id == tx.id
    job = catalog.load_pipeline(pipeline).jobs["job"]
    assert (job.name, job.last_transaction_id, job.pinned_version) == ("job", tx.id, tx.version)
    assert job.inputs["x"].version == 3
    assert [found.name for found in catalog.list_pipelines(prefix=pipeline)] == [pipeline]
    with pytest.raises(Conflict) as caught, catalog.transaction() as second:
        second.advance_pipeline(pipeline, "job", "", second.version)
    assert caught.value.kind == "position_moved"
    with pytest.raises(NotFound):
        catalog.load_pipeline("absent")


def test_a_renamed_pipeline_keeps_its_positions_and_its_id(catalog: Catalog, space: str) -> None:
    with catalog.transaction() as tx:
        tx.advance_pipeline(f"p-{space}", "job", "", tx.version)
        tx.advance_pipeline(f"q-{space}", "job", "", tx.version)
    before = catalog.load_pipeline(f"p-{space}")
    with pytest.raises(AlreadyExists) as caught, catalog.transaction() as tx:
        tx.rename_pipeline(f"p-{space}", f"q-{space}")
    assert caught.value.kind == "pipeline_exists"
    with catalog.replica() as copy, catalog.transaction() as tx:
        tx.rename_pipeline(f"p-{space}", f"r-{space}")
        assert tx.load_pipeline(f"r-{space}").id == before.id
        commit = tx.commit()
        assert commit is not None
        copy.wait_for(commit.version)
        assert copy.load_pipeline(f"r-{space}").jobs == before.jobs
    after = catalog.load_pipeline(f"r-{space}")
    assert (after.id, after.jobs) == (before.id, before.jobs)
    with pytest.raises(NotFound):
        catalog.load_pipeline(f"p-{space}")
    with catalog.events(after=commit.version - 1, until=commit.version) as events:
        [event] = events
    assert [action.type for action in event.transactions[0].actions] == ["PIPELINE_RENAME"]
    assert sorted((change.type, change.name) for change in event.changes) == [
        ("created", f"r-{space}"),
        ("dropped", f"p-{space}"),
    ]
    with pytest.raises(Conflict) as moved, catalog.transaction() as tx:
        tx.advance_pipeline(f"p-{space}", "job", before.jobs["job"].last_transaction_id, tx.version)
    assert moved.value.kind == "position_moved"


def test_segments_of_the_own_transaction(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    segments = catalog.load_table(name).definition.segments
    with catalog.transaction() as tx:
        with pytest.raises(InvalidInput) as caught:
            tx.append_segments(name, segments, table_id="another")
        assert caught.value.kind == "table_replaced"
        tx.overwrite_segments(name, [])
        assert tx.read(name).num_rows == 0
    assert tx.result is not None
    assert tx.result.rows_removed == 3
    with pytest.raises(Expired) as stale, catalog.transaction() as tx:
        tx.append_segments(name, segments)  # files of an earlier transaction
    assert stale.value.kind == "upload_expired"


# --- the log ---------------------------------------------------------------------------------------


def test_events_tell_what_changed(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    catalog.create_table(f"{space}.t", ROWS)
    catalog.update_table(f"{space}.t", set={"k": "v"})
    catalog.drop_table(f"{space}.t")
    events = list(catalog.events(after=head))
    assert [event.version for event in events] == [head + 1, head + 2, head + 3]
    assert [[change.type for change in event.changes] for event in events] == [
        ["created"],
        ["updated"],
        ["dropped"],
    ]
    (change,) = events[0].changes
    assert (change.kind, change.name, change.before, change.after) == ("table", f"{space}.t", None, None)
    assert [action.type for action in events[0].transactions[0].actions] == ["TABLE_CREATE", "TABLE_INSERT"]
    assert events[0].created_at.utcoffset() == timedelta(0)
    # A token resumes exactly after its event, and so does a version.
    assert list(catalog.events(after=events[0].token)) == events[1:]
    assert list(catalog.events(after=head, until=head + 2)) == events[:2]
    assert list(catalog.events(after=events[2].version)) == []


def test_events_from_the_beginning(catalog: Catalog) -> None:
    first = next(catalog.events())
    assert first.version == 0
    assert first.transactions[0].actions[0].type == "CATALOG_CREATE"
    assert next(catalog.events(after=0)).version == 1


def test_events_with_details(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    catalog.update_namespace(space, set={"k": "v"})
    (event,) = catalog.events(after=head, details=True)
    (change,) = event.changes
    assert change.before is not None
    assert change.after is not None
    assert (change.before["properties"], change.after["properties"]) == ({}, {"k": "v"})


def test_events_are_filtered(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    catalog.create_table(f"{space}.a", ROWS.schema)
    catalog.create_table(f"{space}.b", ROWS.schema)
    catalog.update_catalog(set={f"seen-{space}": "1"})

    def versions(**filter: Any) -> list[int]:
        return [event.version - head for event in catalog.events(after=head, **filter)]

    assert versions(namespaces=space) == [1, 2]
    assert versions(names=[(space, "b")]) == [2]
    assert versions(names=f"{space}.a") == [1]
    assert versions(kinds=["catalog"]) == [3]
    assert versions(namespaces=["elsewhere"]) == []
    with pytest.raises(InvalidInput):
        catalog.events(kinds=["tabel"])


def test_following_sees_what_comes(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    with catalog.events(after=head, follow=True, namespaces=[space]) as following:
        for number in range(3):
            commit = catalog.create_table(f"{space}.t{number}", ROWS.schema)
            event = next(following)
            assert (event.version, event.transactions[0].id) == (commit.version, commit.transaction_id)
    with pytest.raises(StopIteration):
        next(following)
    following.close()


def test_following_up_to_a_version_ends(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    following = catalog.events(after=head, until=head + 2, follow=True)
    catalog.create_table(f"{space}.a", ROWS.schema)
    catalog.create_table(f"{space}.b", ROWS.schema)
    assert [event.version for event in following] == [head + 1, head + 2]


def test_positions_that_are_none(catalog: Catalog) -> None:
    with pytest.raises(InvalidInput) as caught:
        list(catalog.events(after=catalog.version() + 1000))
    assert caught.value.kind == "future_version"
    with pytest.raises(InvalidInput) as caught:
        catalog.events(after="nonsense")
    assert caught.value.kind == "bad_token"
    info = catalog.info()
    with pytest.raises(InvalidInput) as caught:
        list(catalog.events(after=f"{info.catalog_id}.{info.version}.another-root"))
    assert caught.value.kind == "bad_token"
    for after in (-1, True, 1.0):
        with pytest.raises(InvalidInput) as caught:
            catalog.events(after=after)  # type: ignore[arg-type]
        assert caught.value.kind == "bad_version"


def test_the_log_is_newest_first(catalog: Catalog, space: str) -> None:
    head = catalog.version()
    for number in range(3):
        with catalog.transaction(message=f"m{number}") as tx:
            tx.create_table(f"{space}.t{number}", ROWS.schema)
    assert [entry.transaction.message for entry in catalog.log(after=head)] == ["m2", "m1", "m0"]
    assert [entry.transaction.message for entry in catalog.log(f"{space}.t1")] == ["m1"]
    assert [entry.transaction.message for entry in catalog.log(after=head, until=head + 1)] == ["m0"]
    (created,) = catalog.log(space)
    assert created.transaction.actions[0].type == "NAMESPACE_CREATE"
    assert created.transaction.actions[0].details["name"] == space


def test_outcomes(catalog: Catalog, space: str) -> None:
    commit = catalog.create_table(f"{space}.t", ROWS)
    outcome = catalog.outcome(commit.transaction_id)
    assert outcome.state == "committed"
    assert outcome.commit is not None
    assert (outcome.commit.version, outcome.commit.rows_added) == (commit.version, 3)
    with catalog.transaction() as tx:
        tx.create_table(f"{space}.never", ROWS.schema)
        assert catalog.outcome(tx.id).state == "unknown"
        assert catalog.outcome(tx.id, since=tx.version, settle=True).state == "cancelled"
        assert catalog.outcome(tx.id).state == "cancelled"
        with pytest.raises(InvalidInput) as caught:
            tx.commit()
        assert caught.value.kind == "id_cancelled"
    assert not catalog.table_exists(f"{space}.never")
    with pytest.raises(InvalidInput):
        catalog.outcome("no-uuid")


def test_the_catalog_checks_out(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    report = catalog.admin.check()
    assert report.ok, report.findings
    assert report.versions == catalog.version() + 1
    assert catalog.admin.check(after=catalog.version() - 1).versions <= report.versions


# --- what this release does not do -----------------------------------------------------------------


def test_what_is_not_supported_is_refused_by_name(catalog: Catalog, space: str) -> None:
    name = f"{space}.t"
    catalog.create_table(name, ROWS)
    head = catalog.version()
    calls: list[tuple[str, Callable[[], object]]] = [
        ("branch", lambda: catalog.transaction(branch="dev")),
        ("branch", lambda: catalog.events(branch="dev")),
        ("branch", lambda: catalog.at(None, branch="dev")),
    ]
    for argument, call in calls:
        with pytest.raises(InvalidInput, match=argument) as caught:
            call()
        assert caught.value.kind == "not_supported"
    assert catalog.version() == head


# --- the client itself -----------------------------------------------------------------------------


def test_results_are_json(catalog: Catalog, space: str) -> None:
    catalog.create_table(f"{space}.t", ROWS)
    results = [
        catalog.info(),
        catalog.load_namespace(space),
        catalog.load_table(f"{space}.t"),
        *catalog.list_tables(space),
        *catalog.events(after=catalog.version() - 1, details=True),
        *catalog.log(space),
        catalog.admin.check(),
    ]
    for result in results:
        assert msgspec.json.decode(msgspec.json.encode(result))


def test_info_says_where_it_is(catalog: Catalog) -> None:
    info = catalog.info()
    assert info.url == catalog.url
    assert info.storage_url.startswith("file:///")
    assert info.version == catalog.version()
    assert info.oldest_version == 0
    assert (info.order, info.version_digits) == (128, 32)


def test_a_forked_child(catalog: Catalog, space: str) -> None:
    # The script has a process of its own, because this one holds a daemon's pipes and gRPC threads.
    script = f"""
import os, alpheus
catalog = alpheus.connect({catalog.url!r})
snapshot = catalog.at(None)
assert catalog.namespace_exists({space!r})
tx = catalog.transaction()
tx.__enter__()
child = os.fork()
if child == 0:
    status = 1
    try:
        try:
            tx.list_namespaces()
        except alpheus.errors.InvalidInput:
            status = 2
        if {catalog.url.startswith("file:")!r}:
            catalog.create_namespace({space!r} + "-child")
            assert snapshot.version < catalog.version()
            assert not snapshot.namespace_exists({space!r} + "-child")
        else:
            for call in (catalog.version, lambda: alpheus.connect({catalog.url!r})):
                try:
                    call()
                except alpheus.errors.InvalidInput as error:
                    assert error.kind == "not_supported"
                else:
                    status = 3
        status -= 2
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
assert catalog.namespace_exists({space!r} + "-child") == {catalog.url.startswith("file:")!r}
catalog.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_programs_are_started_while_calls_run(catalog: Catalog, space: str) -> None:
    # Spark starts its JVM like this. One in six programs crashed where gRPC's fork support was on.
    script = f"""
import subprocess, threading, alpheus
catalog = alpheus.connect({catalog.url!r})
ended = threading.Event()
def call():
    while not ended.is_set():
        assert catalog.namespace_exists({space!r})
threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    statuses = {{subprocess.Popen(["true"], preexec_fn=lambda: None).wait() for _ in range(40)}}
finally:
    ended.set()
    for thread in threads:
        thread.join()
catalog.close()
assert statuses == {{0}}, statuses
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_an_interrupt_ends_the_wait(catalog: Catalog) -> None:
    script = f"""
import os, signal, threading, alpheus
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
catalog = alpheus.connect({catalog.url!r})
following = catalog.events(after=catalog.version(), follow=True)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    next(following)
except KeyboardInterrupt:
    print("interrupted", catalog.version() >= 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"interrupted True\n", b"")


def test_an_interrupt_at_the_start_of_a_wait_leaves_the_stream_to_be_closed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = asyncio.run_coroutine_threadsafe

    def be_interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        begin(coroutine, loop)
        raise KeyboardInterrupt

    following = catalog.events(after=catalog.version(), follow=True)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(asyncio, "run_coroutine_threadsafe", be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(following)
    closing = threading.Thread(target=following.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive(), "it waits for a call that nobody cancelled"


# --- connecting ------------------------------------------------------------------------------------


def test_creating_and_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/lake"
    with pytest.raises(NotFound):
        alpheus.connect(url)
    with alpheus.create(url, order=16, version_digits=64, properties={"a": "b"}) as created:
        info = created.info()
        assert (info.order, info.version_digits, info.properties) == (16, 64, {"a": "b"})
    with pytest.raises(AlreadyExists) as caught:
        alpheus.create(url)
    assert caught.value.kind == "catalog_exists"
    monkeypatch.setenv("ALPHEUS_CATALOG", str(tmp_path / "lake"))
    with alpheus.connect(create=True) as catalog:
        assert catalog.info().catalog_id == info.catalog_id
    with pytest.raises(InvalidInput, match="was closed"):
        catalog.version()
    catalog.close()
    monkeypatch.delenv("ALPHEUS_CATALOG")
    with pytest.raises(InvalidInput, match="no catalog is named"):
        alpheus.connect()


def test_connect_creates_when_asked(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        alpheus.connect(str(tmp_path))
    with alpheus.connect(f"file://{tmp_path}/new", create=True) as catalog:
        assert catalog.version() == 0


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"url": "grpcs://host:7480"}, "not_supported"),
        ({"url": "grpc://host"}, "bad_url"),
        ({"url": "grpc://host:7480/path"}, "bad_url"),
        ({"url": "grpc://user@host:7480"}, "bad_url"),
        ({"url": "grpc://host:port"}, "bad_url"),
        ({"url": "unix://relative.sock"}, "bad_url"),
        ({"url": "ftp://host/x"}, "bad_url"),
        ({"url": ""}, "bad_url"),
        ({"url": "memory://m", "token": "t"}, "not_supported"),
        ({"url": "memory://m", "tls": True}, "not_supported"),
        ({"url": "memory://m", "staleness": -1}, "bad_argument"),
        ({"url": "memory://m", "staleness": "1"}, "bad_argument"),
        ({"url": "memory://m", "timeout": 0}, "bad_argument"),
        ({"url": "memory://m", "storage": "file:///x"}, "bad_argument"),
    ],
)
def test_connections_that_are_refused(arguments: dict[str, Any], kind: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        alpheus.connect(**arguments)
    assert caught.value.kind == kind


def test_the_principal_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHEUS_PRINCIPAL", "etl@night")
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        catalog.create_namespace("n")
        assert [entry.transaction.principal for entry in catalog.log()] == ["etl@night", "etl@night"]
    monkeypatch.delenv("ALPHEUS_PRINCIPAL")
    assert os.uname().nodename in claimed_principal()


async def test_the_asynchronous_client(tmp_path: Path) -> None:
    async with await alpheus.aio.create(f"file://{tmp_path}/lake") as catalog:
        await catalog.create_namespace("n")
        async with catalog.transaction() as tx:
            await tx.create_table("n.t", ROWS)
        assert (await catalog.read("n.t")) == ROWS

        async def replace(tx: alpheus.aio.AsyncTransaction) -> str:
            await tx.overwrite("n.t", [])
            return "done"

        assert await catalog.retry(replace) == "done"
        assert [event.version async for event in catalog.events(after=0)] == [1, 2, 3]
        snapshot = await catalog.at(2)
        assert (await snapshot.read("n.t")).num_rows == 3
