"""Tags: names for versions, over storage and over a daemon, in Python and on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_answers import failed
from click.testing import CliRunner, Result

import alpheus
from alpheus import Catalog, Tag, cli
from alpheus.errors import AlpheusError, AlreadyExists, Conflict, Expired, InvalidInput, NotFound
from alpheus.feed.table_range import range_of
from alpheus.pipeline.positions import rewind
from alpheus_journal import failpoints
from alpheus_journal.journal import Journal
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.testing import Lake

ROWS = pa.table({"id": [1, 2]})


BY_DAEMON = {
    "test_a_tag_reads_as_its_version_was",
    "test_a_tag_of_chosen_objects",
    "test_an_expired_version_is_read_by_its_tag",
    "test_commands",
}
"""Tests that run over a daemon in every run. Others do so in slow runs: all client code but the commit is shared."""


@pytest.fixture(params=["direct", "remote"])
def catalog(
    request: pytest.FixtureRequest, lake_by: Callable[..., str], lane_count: Callable[[int, int], int]
) -> Iterator[Catalog]:
    if request.param == "remote" and request.function.__name__ not in BY_DAEMON and not lane_count(0, 1):
        pytest.skip("make slow LANE=tags")
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("a")
        opened.create_table("a.t", ROWS)
        yield opened


def run(catalog: Catalog, *words: str) -> Result:
    return CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words])


def test_a_tag_reads_as_its_version_was(catalog: Catalog) -> None:
    tagged = catalog.version()
    made = catalog.tags.create("v1", message="first", properties={"a": "b"})
    catalog.append("a.t", ROWS)
    catalog.create_namespace("b")
    tag = catalog.tags.load("v1")
    assert (tag.name, tag.version, tag.message, tag.properties) == ("v1", tagged, "first", {"a": "b"})
    assert tag.created_at <= made.created_at
    assert tag.version_created_at == catalog.at(tagged).info.created_at
    assert tag.expires_at is None
    assert tag.creator
    assert (tag.object_count, tag.table_count, tag.row_count) == (2, 1, 2)
    (row,) = catalog.system("tags").to_pylist()
    assert (row["object_count"], row["table_count"], row["row_count"]) == (2, 1, 2)
    assert catalog.read("a.t", at="v1") == ROWS
    assert catalog.scan("a.t", at="v1", where="id = 1").count() == 1
    with catalog.at("v1") as snapshot:
        assert snapshot.version == tagged
        assert [space.name for space in snapshot.list_namespaces()] == ["a"]
        catalog.tags.replace("v1")
        assert snapshot.read("a.t") == ROWS, "a snapshot keeps the version that the tag named"
    assert catalog.read("a.t", at="v1").num_rows == 4
    assert catalog.properties(at="v1") == {}
    assert catalog.system("objects", at="v1").num_rows == catalog.system("objects").num_rows
    assert catalog.system("tags").to_pylist()[0]["version"] == catalog.tags.load("v1").version
    assert catalog.at("v1").version == catalog.version() - 1


def test_a_tag_of_a_time_a_number_and_a_tag(catalog: Catalog) -> None:
    version = catalog.version()
    created_at = catalog.at(version).info.created_at
    catalog.append("a.t", ROWS)
    for name, at in (
        ("number", version),
        ("text", str(version)),
        ("time", created_at),
        ("tag", "number"),
        ("back", -1),
    ):
        catalog.tags.create(name, at)
    versions = {tag.name: tag.version for tag in catalog.tags.list()}
    assert versions == {
        "number": version,
        "text": version,
        "time": version,
        "tag": version,
        "back": version + 5,
    }
    assert [tag.name for tag in catalog.tags.list("t")] == ["tag", "text", "time"]
    previous, following = catalog.tags.previous("back"), catalog.tags.next("number")
    assert isinstance(previous, Tag)
    assert previous.name == "time"
    assert following is not None
    assert following.name == "back"
    assert catalog.tags.next("back") is None
    assert catalog.tags.previous("text") is None


def test_past_states_by_their_tags(catalog: Catalog) -> None:
    catalog.tags.create("before")
    catalog.overwrite("a.t", pa.table({"id": [9]}))
    catalog.restore_table("a.t", at="before")
    assert catalog.read("a.t") == ROWS
    catalog.drop_table("a.t")
    catalog.undrop("a.t", at="before")
    assert catalog.read("a.t") == ROWS
    with catalog.diff("before") as changes:
        assert [(change.type, change.kind) for change in changes] == [
            ("created", "tag"),
            ("updated", "table"),
        ]
    kinds = [
        (action.type, action.kind, action.name)
        for event in catalog.events(kinds=["tag"])
        for transaction in event.transactions
        for action in transaction.actions
    ]
    assert kinds == [("TAG_CREATE", "tag", "before")]


def test_tags_that_cannot_be(catalog: Catalog) -> None:
    catalog.tags.create("v1")
    head = catalog.version()

    def refused(kind: type[AlpheusError], word: str, call: Callable[[], object]) -> None:
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.kind == word, caught.value

    tags = catalog.tags
    for name in ("7", "2026-11-28", "latest", "HEAD", "-x", "a/b", "a b", "a\u202eb", "x" * 101, ""):
        refused(InvalidInput, "bad_name", lambda name=name: tags.create(name))
        refused(InvalidInput, "bad_name", lambda name=name: tags.rename("v1", name))
    for retain in (timedelta(), timedelta(days=-1), timedelta(days=9_999_999)):
        refused(InvalidInput, "bad_argument", lambda retain=retain: tags.create("v2", retain=retain))
    refused(InvalidInput, "bad_argument", lambda: tags.create("v2", retain=30))  # type: ignore[arg-type]
    refused(AlreadyExists, "tag_exists", lambda: tags.create("v1"))
    refused(NotFound, "no_version", lambda: tags.create("v2", at=99))
    refused(NotFound, "no_tag", lambda: tags.create("v2", at="v3"))
    refused(InvalidInput, "future_version", lambda: tags.create("v2", at=datetime(9000, 1, 1, tzinfo=UTC)))
    for call in (tags.load, tags.delete, tags.replace, tags.previous, tags.next, catalog.at):
        refused(NotFound, "no_tag", lambda call=call: call("nix"))
    refused(NotFound, "no_tag", lambda: tags.rename("nix", "v2"))
    assert catalog.version() == head
    tags.create("v2")
    refused(AlreadyExists, "tag_exists", lambda: tags.rename("v1", "v2"))


def test_of_racing_creators_one_succeeds(catalog: Catalog) -> None:
    def create(number: int) -> int | AlpheusError:
        try:
            return catalog.tags.create("v1", message=str(number)).version
        except (AlreadyExists, Conflict) as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(create, range(4)))
    assert sum(isinstance(answer, int) for answer in answers) == 1, answers
    (place,) = (place for place, answer in enumerate(answers) if isinstance(answer, int))
    assert catalog.tags.load("v1").message == str(place)


def expire(catalog: Catalog, below: int) -> None:
    storage = catalog.storage()
    assert isinstance(storage, LocalStorage)
    asyncio.run(Lake(LocalStorage(storage.url.removeprefix("file://"))).expire(below=below))


def test_an_expired_version_is_read_by_its_tag(catalog: Catalog) -> None:
    tagged = catalog.version()
    catalog.tags.create("v1")
    catalog.append("a.t", ROWS)
    with catalog.at("v1") as begun:
        expire(catalog, tagged + 2)
        with pytest.raises(Expired) as caught:
            catalog.at(tagged).read("a.t")
        assert f"tag v1 names version {tagged}" in str(caught.value)
        with alpheus.connect(catalog.url) as another, another.at("v1") as fresh:
            for snapshot in (begun, fresh):
                assert snapshot.version == tagged
                assert snapshot.read("a.t") == ROWS
                assert [table.full_name for table in snapshot.list_tables("a")] == ["a.t"]
                assert snapshot.load_table("a.t").row_count == 2
    assert catalog.read("a.t", at="v1") == ROWS
    with catalog.diff("v1") as changes:
        assert [change.name for change in changes] == ["v1", "a.t"]
    assert [row["name"] for row in catalog.system("objects", at="v1").to_pylist() if row["name"]] == ["t"]
    assert catalog.system("files", at="v1").num_rows == 1
    assert catalog.system("tags", at="v1").num_rows == 0
    assert [symbol.name for symbol in catalog.admin.symbols.list(kind="table", at="v1")] == ["t"]
    catalog.tags.create("v2", at="v1")
    catalog.tags.delete("v1")
    assert catalog.read("a.t", at="v2") == ROWS
    assert catalog.tags.load("v2").version == tagged


def test_what_an_expired_version_had_comes_back_by_its_tag(catalog: Catalog) -> None:
    catalog.append("a.t", ROWS)
    tagged = catalog.version()
    before = catalog.read("a.t")
    catalog.tags.create("v1")
    catalog.overwrite("a.t", ROWS)
    expire(catalog, catalog.version())
    catalog.restore_table("a.t", at="v1")
    assert catalog.read("a.t") == before
    catalog.drop_table("a.t")
    catalog.create_table("a.t", ROWS.schema)
    expire(catalog, catalog.version())
    catalog.undrop("a.t", at="v1", as_name="a.u")
    assert catalog.read("a.u") == before
    catalog.drop_table("a.u")
    catalog.drop_namespace("a", cascade=True)
    catalog.create_namespace("b")
    expire(catalog, catalog.version())
    with catalog.transaction() as tx:
        tx.undrop("a", at="v1")
        tx.append("a.t", ROWS)
    assert catalog.read("a.t").num_rows == before.num_rows + ROWS.num_rows
    catalog.restore_table("a.t", at="v1")
    assert catalog.read("a.t") == before
    with pytest.raises(Expired, match=f"tag v1 names version {tagged}"):
        catalog.restore_table("a.t", at=tagged)


def test_a_transaction_undrops_where_the_drop_has_expired(catalog: Catalog) -> None:
    """The transaction finds the counters that the commit decides, so new columns and files have the right ids."""
    catalog.tags.create("v1")
    catalog.update_table("a.t", add_columns=pa.schema([("email", pa.string())]))
    catalog.append("a.t", pa.table({"id": [3], "email": ["c"]}))
    catalog.tags.create("v2")
    catalog.drop_table("a.t")
    catalog.create_namespace("b")
    expire(catalog, catalog.version())
    with alpheus.connect(catalog.url) as other, other.transaction() as tx:
        tx.undrop("a.t", at="v1")
        tx.update_table("a.t", add_columns=pa.schema([("x", pa.string())]))
        tx.append("a.t", pa.table({"id": [4], "x": ["d"]}))
        tx.delete("a.t", "id = 1")
    with alpheus.connect(catalog.url) as other:
        rows = [{"id": 2, "x": None}, {"id": 4, "x": "d"}]
        assert other.read("a.t").sort_by("id").to_pylist() == rows
        assert max(column.id for column in other.load_table("a.t").definition.columns) > 1_000_000
        other.restore_table("a.t", at="v2")
        other.append("a.t", pa.table({"id": [5], "email": ["e"]}))
        assert other.read("a.t").num_rows == 4
        assert other.admin.check().ok


def test_a_lease_on_an_expired_version(catalog: Catalog) -> None:
    """The lease is made of the tag's pin, and outlasts the tag."""
    tagged = catalog.version()
    catalog.tags.create("v1")
    catalog.append("a.t", ROWS)
    expire(catalog, tagged + 2)
    with pytest.raises(Expired):
        catalog.at(tagged, lease=True)
    assert not catalog.admin.leases()
    with catalog.at("v1", lease=True) as held:
        (lease,) = catalog.admin.leases()
        assert (lease.version, lease.state) == (tagged, "held")
        catalog.tags.delete("v1")
        for pin in Path(catalog.storage().url.removeprefix("file://")).glob("pin/*"):
            pin.unlink()
        assert held.read("a.t") == ROWS
        assert [space.name for space in held.list_namespaces()] == ["a"]
    assert not catalog.admin.leases()


def test_a_tag_that_is_replaced_while_its_version_is_leased(catalog: Catalog) -> None:
    tagged = catalog.version()
    catalog.tags.create("v1")
    catalog.append("a.t", ROWS)
    expire(catalog, tagged + 2)
    with (
        alpheus.connect(catalog.url) as other,
        failpoints.armed("lease.written", "pause") as written,
        ThreadPoolExecutor(1) as pool,
    ):
        leasing = pool.submit(catalog.at, "v1", lease=True)
        asyncio.run(written.wait_for_hit())
        other.tags.replace("v1")
        written.release()
        with pytest.raises(Expired, match="tag v1 was replaced"):
            leasing.result()
    assert not catalog.admin.leases()


def test_commands(catalog: Catalog) -> None:
    assert run(catalog, "tag", "list").stdout == ""
    tagged = catalog.version()
    told = run(catalog, "tag", "create", "v1", "-m", "why", "--retain", "1d12h", "--property", "a=b")
    assert told.stdout == f"created tag v1 of version {tagged} in version {tagged + 1}\n"
    catalog.append("a.t", ROWS)
    run(catalog, "tag", "create", "v2", "--at", "v1")
    assert run(catalog, "tag", "replace", "v2").stdout.startswith(
        f"replaced tag v2, now of version {tagged + 3}"
    )
    (first, second) = json.loads(run(catalog, "--output", "json", "tag", "list").stdout)
    assert (first["name"], first["version"], first["message"]) == ("v1", tagged, "why")
    expires = datetime.fromisoformat(first["expires_at"]) - datetime.fromisoformat(first["created_at"])
    assert abs(expires - timedelta(hours=36)) < timedelta(minutes=5)
    assert second["expires_at"] is None
    listed = run(catalog, "tag", "list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "VERSION", "OF", "OBJECTS", "TABLES", "ROWS", "EXPIRES", "MESSAGE"]
    assert listed[1].endswith("why")
    assert [first[count] for count in ("object_count", "table_count", "row_count")] == [2, 1, 2]
    assert listed[1].split()[3:6] == ["2", "1", "2"]
    shown = run(catalog, "tag", "show", "v1").stdout
    assert "tables        1\nrows          2" in shown
    assert f"next tag      v2 (version {tagged + 3})" in shown
    assert "a = b" in shown
    assert "previous tag  none" in shown
    assert run(catalog, "table", "show", "a.t", "--at", "v1").exit_code == 0
    assert run(catalog, "tag", "rename", "v2", "w").exit_code == 0
    assert run(catalog, "tag", "delete", "w").stdout.startswith("deleted tag w in version ")
    assert "there is no tag w" in failed(run(catalog, "tag", "show", "w"))
    assert "reads as the number of a version" in failed(run(catalog, "tag", "create", "12"))
    for span in ("5", "1d5", "d", "1y", ""):
        assert "is not a time such as 30d" in failed(run(catalog, "tag", "create", "x", "--retain", span), 2)


def test_a_tag_of_chosen_objects(catalog: Catalog) -> None:
    catalog.create_table("a.u", ROWS)
    catalog.create_namespace("b")
    catalog.create_table("b.t", ROWS)
    first = catalog.version()
    catalog.append("a.t", ROWS)
    catalog.tags.create("some", only=["a"], without=["a.u"])
    tag = catalog.tags.load("some")
    assert (tag.only, tag.without, tag.version) == ({"a": tag.version}, ("a.u",), catalog.version() - 1)
    assert (tag.object_count, tag.table_count, tag.row_count) == (2, 1, 4)
    catalog.tags.create("mixed", only={"a.t": first, "a.u": None, "b": -1})
    catalog.tags.create("less", at=first, without=["b", "a.u"])
    assert catalog.read("a.t", at="some").num_rows == 4
    assert catalog.read("a.t", at="mixed").num_rows == 2
    assert catalog.read("a.t", at="less").num_rows == 2
    with catalog.at("some", lease=True) as snapshot:
        assert snapshot.is_chosen
        assert snapshot.is_leased
        assert [table.name for table in snapshot.list_tables("a")] == ["t"]
        assert [space.name for space in snapshot.list_namespaces()] == ["a"]
        assert snapshot.read("a.t").num_rows == 4
        with pytest.raises(NotFound):
            snapshot.load_table("a.u")
    assert not catalog.at(first).is_chosen
    objects = catalog.system("objects", at="mixed").to_pylist()
    assert {(o["namespace"], o["name"]) for o in objects} == {
        ("a", None), ("a", "t"), ("a", "u"), ("b", None), ("b", "t"),
    }  # fmt: skip
    assert {".".join(filter(None, (s.namespace, s.name))) for s in catalog.admin.symbols.list(at="less")} == {
        "a",
        "a.t",
    }
    previous, following = catalog.tags.previous("some"), catalog.tags.next("less")
    assert previous is not None
    assert previous.name == "less"
    assert following is not None
    assert following.name == "some"
    rows = {row["name"]: row for row in catalog.system("tags").to_pylist()}
    assert dict(rows["mixed"]["only"])["a.t"] == first
    assert rows["some"]["without"] == ["a.u"]
    catalog.restore_table("a.t", at="mixed")
    assert catalog.read("a.t").num_rows == 2
    with pytest.raises(NotFound, match=r"tag some of chosen objects does not hold table a\.u"):
        catalog.restore_table("a.u", at="some")


def test_chosen_objects_of_expired_versions_come_back(lake_url: str) -> None:
    with alpheus.connect(lake_url, create=True) as catalog:
        catalog.create_namespace("a")
        catalog.create_table("a.t", ROWS)
        catalog.create_namespace("b")
        catalog.create_table("b.t", ROWS)
        first = catalog.version()
        catalog.append("a.t", ROWS)
        catalog.tags.create("v", only={"a.t": first, "b": None})
        catalog.delete("a.t", where="TRUE")
        catalog.drop_table("b.t")
        catalog.drop_namespace("b")
        catalog.admin.expire(keep=1, older_than=timedelta(0))
        with catalog.at("v", lease=True) as snapshot:
            assert snapshot.read("a.t").num_rows == 2
        with pytest.raises(Expired):
            catalog.at(first)
        catalog.restore_table("a.t", at="v")
        assert catalog.read("a.t") == ROWS
        catalog.undrop("b", kind="namespace", at="v")
        assert catalog.read("b.t") == ROWS
        with pytest.raises(NotFound, match="does not hold namespace a with everything in it"):
            catalog.undrop("a", kind="namespace", at="v", as_name="c")
        with pytest.raises(NotFound, match="does not hold"):
            catalog.undrop("c.t", at="v")
        assert [found.message for found in catalog.admin.check().findings] == []


def test_one_transaction_restores_by_two_tags_of_one_version(lake_url: str) -> None:
    """Each of the tags has one of the tables at that version, and a third table is there at another version."""
    with alpheus.connect(lake_url, create=True) as catalog:
        catalog.create_namespace("a")
        for name in ("a.t", "a.u", "a.w"):
            catalog.create_table(name, ROWS)
        first = catalog.version()
        catalog.append("a.w", ROWS)
        catalog.tags.create("t", at=first, only=["a.t"])
        catalog.tags.create("u", only={"a.u": first, "a.w": None})
        for name in ("a.t", "a.u", "a.w"):
            catalog.delete(name, where="TRUE")
        catalog.admin.expire(keep=1, older_than=timedelta(0))
        with catalog.transaction() as tx:
            tx.restore_table("a.t", at="t")
            tx.restore_table("a.u", at="u")
            with pytest.raises(Expired):
                tx.restore_table("a.w", at=first)
        assert catalog.read("a.t") == catalog.read("a.u") == ROWS
        assert catalog.read("a.w").num_rows == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"only": "a"}, "is not a list of names"),
        ({"only": []}, "only= is empty"),
        ({"only": 5}, "is not a list of names"),
        ({"only": [5]}, "only: '5' names no table"),
        ({"only": {"a": "2026-01-01"}}, "is not an RFC 3339 time"),
        ({"only": {"a": "none"}}, "there is no tag none"),
        ({"only": ["a.x"]}, "there is no table or view a.x in version"),
        ({"only": [("a", "")]}, "only: ('a', '') has no name in its namespace"),
        ({"without": [("a", "")]}, "without: ('a', '') has no name in its namespace"),
        ({"only": {"a.t": 1, ("a", "t"): 2}}, "only= names a.t at two versions"),
        ({"without": {"a": 1}}, "takes names, and no versions"),
        ({"without": ["a"]}, "the tag would hold no objects"),
        ({"without": ["x"]}, "there is no namespace x in version"),
    ],
)
def test_a_bad_choice_is_refused(catalog: Catalog, given: dict[str, Any], words: str) -> None:
    version = catalog.version()
    with pytest.raises(AlpheusError) as caught:
        catalog.tags.create("v", **given)
    assert words in caught.value.message
    assert catalog.version() == version


def test_commands_choose_objects(catalog: Catalog) -> None:
    first = catalog.version()
    catalog.create_table("a.u", ROWS)
    told = run(catalog, "tag", "create", "v", "--only", f"a.t={first}", "--only", "a", "--without", "a.u")
    assert told.exit_code == 0, told.output
    shown = run(catalog, "tag", "show", "v").stdout
    assert f"only          a (version {first + 1}), a.t (version {first})" in shown
    assert "without       a.u" in shown
    assert json.loads(run(catalog, "--output", "json", "tag", "show", "v").stdout)["only"]["a.t"] == first
    assert "a.u" not in run(catalog, "table", "list", "a", "--at", "v").stdout
    assert run(catalog, "tag", "replace", "v").exit_code == 0
    assert json.loads(run(catalog, "--output", "json", "tag", "show", "v").stdout)["only"] is None
    assert "there is no namespace x" in failed(run(catalog, "tag", "create", "w", "--only", "x"))
    twice = run(catalog, "tag", "create", "w", "--only", "a.t=1", "--only", "a.t=2")
    assert "--only names a.t at two versions" in failed(twice, 2)


def test_a_daemon_that_knows_no_chosen_objects_makes_no_tag_of_all(
    lake_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a daemon disregards the fields of the request that it does not know."""
    with alpheus.connect(lake_url, create=True) as catalog:
        catalog.create_namespace("a")
        pin = Journal.create_pin
        monkeypatch.setattr(Journal, "create_pin", lambda journal, at, **_: pin(journal, at))
        for given in ({"only": ["a"]}, {"without": ["a"]}):
            with pytest.raises(InvalidInput, match="the daemon is of an earlier version"):
                catalog.tags.create("v", **given)
        assert catalog.tags.list() == []


def test_no_pipeline_is_rewound_to_chosen_objects(catalog: Catalog) -> None:
    """Its state would be missing there, and pass for that of a pipeline that never ran."""
    catalog.tags.create("v", only=["a"])
    with pytest.raises(InvalidInput, match="cannot be rewound to a tag of chosen objects"):
        rewind(catalog, "p", "v")


def test_no_changes_begin_or_end_at_chosen_objects(catalog: Catalog) -> None:
    """The table's state is that of another version, or the table is missing: changes would be missed."""
    catalog.create_table("a.u", ROWS)
    first = catalog.version()
    catalog.append("a.t", ROWS)
    catalog.tags.create("v", only={"a.u": None, "a.t": first})
    catalog.append("a.t", ROWS)
    for after, until in (("v", None), (first, "v")):
        with pytest.raises(InvalidInput, match="names no version at which changes begin or end"):
            range_of(catalog, "a.t", after, until)


def test_a_diff_with_chosen_objects(catalog: Catalog) -> None:
    catalog.create_table("a.u", ROWS)
    catalog.tags.create("v", only=["a.t"])
    with catalog.diff("v", catalog.version() - 1) as changes:
        assert [(change.type, change.name) for change in changes] == [("created", "a.u")]
