"""A catalog in a notebook: names of all objects, the catalog's own properties, and how values are shown.

The tests run over both ways to a catalog.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpheus
from alpheus import Catalog, aio, display
from alpheus.errors import Conflict, InvalidInput, NotFound
from alpheus.models import EPOCH

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64())])
NAMES = ["nb1.a", "nb1.b", "nb1.b2", "nb3.a", "nb3.c", "nb4.x"]
"""Names of tables, and of views with `_v` added. The namespace nb2 is empty."""


@pytest.fixture(scope="module", params=["direct", "remote"])
def lake(request: pytest.FixtureRequest, lake_by: Callable[[str], str]) -> Iterator[Catalog]:
    with alpheus.connect(lake_by(request.param), create=request.param == "direct") as catalog:
        with catalog.transaction() as tx:
            for number in range(1, 5):
                tx.create_namespace(f"nb{number}")
            for name in NAMES:
                tx.create_table(name, SCHEMA)
                tx.create_view(f"{name}_v", "select 1")
        yield catalog


def full(found: list[Any]) -> list[str]:
    return [each.full_name for each in found]


def test_names_of_all_namespaces(lake: Catalog) -> None:
    views = sorted(f"{name}_v" for name in NAMES)
    with lake.replica() as copy, lake.transaction() as tx:
        for reader in (lake, lake.at(-1), copy, tx):
            assert full(reader.list_tables()) == NAMES
            assert full(reader.list_views()) == views
            assert full(reader.list_tables(prefix="b")) == ["nb1.b", "nb1.b2"]
            assert full(reader.list_tables("nb1", after="a")) == ["nb1.b", "nb1.b2"]
            assert len({found.version for found in reader.list_tables()}) == 1
            for after, limit in itertools.product(
                [None, *NAMES, "nb2.q", "nb0.q", "nb9.q"], [None, 1, 2, 4, 9]
            ):
                wanted = [name for name in NAMES if after is None or name > after][:limit]
                assert full(reader.list_tables(after=after, limit=limit)) == wanted
            last: Any = None
            pages = []
            while page := reader.list_tables(limit=2, after=last):
                pages.append(full(page))
                last = page[-1]
            assert pages == [NAMES[:2], NAMES[2:4], NAMES[4:]]
            assert full(reader.list_views(after=reader.list_views()[3])) == views[4:]
            assert full(reader.list_tables("nb1", after=reader.list_tables()[0])) == NAMES[1:3]
            with pytest.raises(InvalidInput, match="names no table") as caught:
                reader.list_tables(after="nb1")
            assert caught.value.kind == "bad_name"
            with pytest.raises(InvalidInput, match="limit="):
                reader.list_tables(limit=0)
            with pytest.raises(NotFound):
                reader.list_tables("nb0")
        tx.abandon()


def test_a_transaction_lists_what_it_made(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.create_table("nb2.new", SCHEMA)
        tx.drop_table("nb3.c")
        tx.create_namespace("nb0")
        tx.create_table("nb0.t", SCHEMA)
        wanted = sorted([*(name for name in NAMES if name != "nb3.c"), "nb2.new", "nb0.t"])
        assert full(tx.list_tables()) == wanted
        assert full(tx.list_tables(limit=3)) == wanted[:3]
        tx.abandon()


def test_a_partial_replica_lists_what_it_copies(lake: Catalog) -> None:
    with lake.replica(namespaces=["nb1", "nb2"]) as copy:
        assert full(copy.list_tables()) == NAMES[:3]
        with pytest.raises(InvalidInput) as caught:
            copy.properties()
        assert caught.value.kind == "not_replicated"


def test_names_that_a_serializable_transaction_listed_count_as_read(tmp_path: Path) -> None:
    with alpheus.create(f"file://{tmp_path}/lake") as there:
        there.create_namespace("a")
        there.create_namespace("b")

        def listing_and(meanwhile: Callable[[], Any]) -> None:
            with there.transaction("serializable") as tx:
                tx.list_tables()
                tx.properties()
                meanwhile()
                tx.update_namespace("a", {"n": "1"})

        for meanwhile in (
            lambda: there.create_table("b.t", SCHEMA),
            lambda: there.create_namespace("c"),
            lambda: there.update_catalog({"n": "1"}),
        ):
            with pytest.raises(Conflict):
                listing_and(meanwhile)
        listing_and(lambda: there.append("b.t", [{"id": 1}]))


async def test_more_namespaces_than_are_asked_for_at_once(tmp_path: Path) -> None:
    async with await aio.create(f"file://{tmp_path}/lake") as there:
        names = [f"n{number:02}.t" for number in range(30)]
        async with there.transaction() as tx:
            for name in names:
                await tx.create_namespace(name[:3])
                await tx.create_table(name, SCHEMA)
            assert full(await tx.list_tables()) == names
        assert full(await there.list_tables()) == names
        assert full(await there.list_tables(limit=17)) == names[:17]


def test_properties_of_the_catalog_then_and_now(lake: Catalog) -> None:
    before = lake.properties()
    first = lake.update_catalog({"owner": "ada", "tier": "gold"})
    second = lake.update_catalog({"owner": "grace"}, unset=["tier"])
    assert lake.properties() == lake.properties(at=None) == before | {"owner": "grace"}
    assert lake.info().properties == lake.properties()
    was = before | {"owner": "ada", "tier": "gold"}
    for at in (first.version, -2, first.created_at, str(first.version)):
        assert lake.properties(at=at) == was
    assert lake.at(first.version).properties() == was
    with lake.transaction() as tx:
        tx.update_catalog({"owner": "joan"})
        assert tx.properties() == before | {"owner": "joan"}
        tx.abandon()
    with lake.replica() as copy:
        copy.wait_for(second.version)
        assert copy.properties() == lake.properties()
    with pytest.raises(NotFound) as caught:
        lake.properties(at=second.version + 1000)
    assert caught.value.kind == "no_version"


def test_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert alpheus.__version__ == project["version"]


# --- what values look like -------------------------------------------------------------------------

HOSTILE = "<script>alert('x')</script>&amp;\"\u202e\n" + "y" * 300


def words_of(markup: str) -> list[str]:
    """Return what a browser shows of markup.

    Check that the markup has only a few elements, without attributes that act.
    """
    root = ElementTree.fromstring(markup)
    for element in root.iter():
        assert element.tag in {"div", "b", "table", "tr", "th", "td"}
        assert set(element.attrib) <= {"style"}
    return [text for text in root.itertext() if text]


def check_shown(value: Any, *said: str) -> None:
    line, markup = repr(value), value._repr_html_()
    assert line.isprintable()
    assert len(line) <= 120
    assert line.startswith(f"<{type(value).__name__} ")
    assert "<script" not in markup
    shown = words_of(markup)
    assert all(len(text) <= 202 and text.isprintable() for text in shown)
    assert markup.count("<tr>") <= 50
    for text in said:
        assert text in line or any(text in word for word in shown), (text, line, shown)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with alpheus.create(f"file://{tmp_path_factory.mktemp('hostile')}/lake") as there:
        columns = [("<script>alert(1)</script>", pa.int64()), *((f"c{n}", pa.string()) for n in range(500))]
        message = HOSTILE.replace("\n", " ")
        with there.transaction(message=message, properties={"<script>": HOSTILE}) as tx:
            tx.create_namespace("<script>", {"<b>": HOSTILE})
            tx.create_table("<script>.<i>t", pa.schema(columns), {"<b>": HOSTILE})
            tx.create_view("<script>.v", HOSTILE, schema=pa.schema(columns[:2]))
            for number in range(40):
                tx.create_namespace(f"n{number:02}")
            check_shown(tx, "CreateTable", "and 23 more", tx.id, "43 operations")
        yield there


def test_values_show_themselves_in_a_line_and_a_table(hostile: Catalog) -> None:
    name = "<script>.<i>t"
    check_shown(hostile, "newest version seen", "1", hostile.url)
    check_shown(hostile.info(), "storage_url", hostile.info().catalog_id)
    check_shown(hostile.at(1), "1 of file://", "lease")
    check_shown(hostile.at(1).info, "1 of 20")
    check_shown(hostile.load_namespace("<script>"), "<script> at version 1", "<b> = <script>")
    check_shown(
        hostile.load_table(name), "501 columns, 0 rows in 0 files", "and 481 more", "<script>alert(1)"
    )
    check_shown(hostile.load_view("<script>.v"), "c0", "alert('x')")
    check_shown(
        hostile.scan(name, where="c1 = '<b>'", limit=3), "0 of 0 files, at most 3 rows", "`c1` = '<b>'"
    )
    (zeroth, event) = hostile.events()
    check_shown(zeroth, "catalog created")
    check_shown(event, "namespace <script> created", "38 more", "and 23 more")
    for value in (*event.changes[:5], event.transactions[0], *event.transactions[0].actions[:5]):
        check_shown(value)
    for entry in hostile.log():
        check_shown(entry, entry.transaction.id)
    for value in (*hostile.list_tables(), *hostile.list_views(), *hostile.list_namespaces()):
        check_shown(value, "at version")
    with hostile.replica() as copy:
        check_shown(copy, "1 of file://", "all")
    check_shown(hostile.admin.check(), "all is well")
    assert repr([hostile.list_views()[0]]) == "[<ViewName <script>.v at version 1>]"


def test_commits_and_the_rest_show_themselves(tmp_path: Path) -> None:
    there = alpheus.create(f"file://{tmp_path}/lake")
    there.create_namespace("a")
    commit = there.create_table("a.t", pa.table({"id": [1, 2]}))
    assert repr(commit).startswith("<Commit version 2, 2 rows added, 0 removed, 20")
    check_shown(commit, commit.transaction_id)
    there.delete("a.t", "id = 1")
    assert repr(there.load_table("a.t")) == "<Table a.t at version 3: 1 column, at most 2 rows in 1 file>"
    check_shown(there.outcome(commit.transaction_id), "committed, version 2")
    there.drop_table("a.t")
    check_shown(there.list_dropped()[0], "table a.t at version 3, dropped")
    with there.at(2, lease=True) as snapshot:
        check_shown(snapshot, "held")
        check_shown(there.admin.leases()[0], "held", "version")
    with there.transaction() as tx:
        tx.create_namespace("b")
        tx.save()
    check_shown(there.list_saved()[0], tx.id)
    check_shown(there.transaction(), "0 operations, new", "it has not begun")
    check_shown(tx, "1 operation")
    there.close()
    check_shown(there, "closed")  # the catalog is not asked


def test_no_url_shows_a_secret() -> None:
    url = "s3://joe:hunter2@host/bucket?secret_key=hunter3#hunter4"
    session = SimpleNamespace(url=url, seen_version=-1, is_closed=False)
    core = aio.AsyncCatalog(cast(Any, session))
    at = alpheus.VersionInfo(version=1, created_at=EPOCH, token="")
    there = Catalog(core, cast(Any, None))
    for value in (core, there, aio.snapshot_of(core, at), alpheus.Snapshot(there, aio.snapshot_of(core, at))):
        check_shown(value, "host/bucket")
        assert "hunter" not in repr(value) + value._repr_html_()
    info = alpheus.Info(
        catalog_id="c", url=url, storage_url=url, version=1, oldest_version=0, token="", version_digits=32, order=128,
        properties={}, software_version="1",
    )  # fmt: skip
    check_shown(info, "host/bucket")
    assert "hunter" not in repr(info) + info._repr_html_()


@given(st.text(), st.dictionaries(st.text(), st.text()), st.integers(), st.text())
def test_whatever_a_value_holds_it_is_shown(
    name: str, properties: dict[str, str], version: int, sql: str
) -> None:
    check_shown(alpheus.Namespace(name=name, id=sql, properties=properties, version=version))
    check_shown(alpheus.View(
        name=name, namespace=sql, id="", sql=sql, dialect=name, properties=properties, version=version,
    ))  # fmt: skip
    check_shown(alpheus.Finding(kind=name, message=sql, path=name, version=version))


def test_each_result_is_made_to_be_shown() -> None:
    for name in alpheus.__all__:
        value = getattr(alpheus, name)
        if (
            isinstance(value, type)
            and issubclass(value, msgspec.Struct)
            and value.__module__ == "alpheus.models"
        ):
            assert issubclass(value, display.ShownStruct), name
    for value in (Catalog, alpheus.Snapshot, alpheus.Transaction, alpheus.Replica, alpheus.Scan):
        assert issubclass(value, display.Shown)
