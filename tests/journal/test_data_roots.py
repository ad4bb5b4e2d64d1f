"""Data roots: places outside the catalog's prefix for the data files of a namespace's tables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from alpheus_test_servers import S3Server
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.data_roots import DATA_ROOT_SIZE_BYTES_MAX, check_data_root, find_overlap, place_of
from alpheus_journal.errors import InvalidInput
from alpheus_journal.journal import Journal
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import CatalogDef, NamespaceDef, TableDef
from alpheus_journal.model.operations import CreateNamespace, DropNamespace, Undrop, UpgradeCatalog
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, raises

BAD = [
    "", "x", "s3:bucket", "s3://", "s3:///x", "S3x://b", "http://b/x", "lmdb:///x", "s3://b/x?region=y", "s3://b/x#y",
    "s3://u:p@b/x", "s3://b:9000/x", "s3://b/../x", "s3://b/x//y", "s3://b/./x", "s3://b/%2e%2e/x", "s3://b/a%00b",
    "s3://b/a%5Cb", "s3://b/%ff", "file://host/x", "file:///", "file://", "s3://[b/x", "s3://b/?", "s3://b/x#",
    "s3://b/" + "x" * DATA_ROOT_SIZE_BYTES_MAX, "s3://b/\ud800",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_what_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_data_root(url)
    assert caught.value.kind == "bad_data_root"
    assert "u:p@" not in str(caught.value)


FOLDERS = st.lists(
    st.text(
        st.characters(exclude_characters="/\\\x7f", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6
    ).filter(lambda name: name not in (".", "..")),
    max_size=4,
)


@given(FOLDERS)
def test_each_place_has_one_form(folders: list[str]) -> None:
    for spelled in (
        "s3://bucket/" + "/".join(quote(name, safe="") for name in folders),
        "s3://bucket/" + "/".join(quote(name, safe="+@:=") for name in folders) + "/",
    ):
        url = check_data_root(spelled)
        assert check_data_root(url) == url
        assert place_of(url) == ("s3", "bucket", *folders)
        assert unquote(urlsplit(url).path).strip("/") == "/".join(folders)


@given(FOLDERS, FOLDERS)
def test_places_overlap_when_one_is_the_others_beginning(one: list[str], other: list[str]) -> None:
    first, second = (check_data_root("s3://b/" + "/".join(map(_quoted, names))) for names in (one, other))
    shorter = min(len(one), len(other))
    overlap = one[:shorter] == other[:shorter]
    assert (find_overlap(first, [second]) == second) == overlap
    assert (find_overlap(second, ["s3://c", first]) == first) == overlap
    assert find_overlap(first, [second.replace("s3://b", "s3://c")]) is None


def _quoted(name: str) -> str:
    return quote(name, safe="")


def namespace(lake: Lake, name: str, root: str) -> CreateNamespace:
    return CreateNamespace(name=name, namespace_id=lake.identities.uuid4(), data_root=root)


async def roots_of(journal: Journal) -> dict[str, str]:
    return (await journal.info()).definition.data_roots


async def test_a_table_keeps_the_root_of_the_namespace_in_which_it_was_created() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, namespace(lake, "a", "memory://a"), lake.namespace("b"))
    await lake.commit(journal, lake.table("a", "t"), lake.table("b", "t"))
    found = (await journal.load(None, [fmt.table_name("a", "t"), fmt.table_name("b", "t")])).objects
    definitions = [decode_definition(fmt.Kind.TABLE, s.definition, s.path) for s in found if s is not None]
    assert [d.data_root for d in definitions if isinstance(d, TableDef)] == ["memory://a", ""]
    assert await roots_of(journal) == {"memory://a": "a"}
    assert len([item async for item in (await lake.open()).check()]) == 1


async def test_roots_lie_apart_from_each_other() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, namespace(lake, "a", "memory://x/a"))
    for root in ("memory://x/a", "memory://x", "memory://x/a/b"):
        error = await raises(
            InvalidInput, lake.commit(journal, namespace(lake, "b", root)), kind="bad_data_root"
        )
        assert "namespace a" in error.message
    await lake.commit(journal, namespace(lake, "b", "memory://x/ab"), namespace(lake, "c", "memory://y"))
    assert await roots_of(journal) == {"memory://x/a": "a", "memory://x/ab": "b", "memory://y": "c"}
    both = lake.commit(journal, namespace(lake, "d", "memory://z"), namespace(lake, "e", "memory://z/e"))
    await raises(InvalidInput, both, kind="bad_data_root")
    # A root is free again once its namespace is gone, and the last namespace with it is named.
    await lake.commit(journal, DropNamespace(name="a"))
    for root in ("memory://x", "memory://x/a/b"):
        around = lake.commit(journal, namespace(lake, "d", root))
        assert "namespace a" in (await raises(InvalidInput, around, kind="bad_data_root")).message
    await lake.commit(journal, namespace(lake, "d", "memory://x/a"))
    assert (await roots_of(journal))["memory://x/a"] == "d"
    await lake.commit(journal, DropNamespace(name="d"))
    await lake.commit(journal, Undrop(kind=fmt.Kind.NAMESPACE, namespace="d", name="", version=journal.head.version - 1,
                                      new_namespace="d", new_name=""))  # fmt: skip
    (stored,) = (await journal.load(None, [fmt.namespace_name("d")])).objects
    assert stored is not None
    definition = decode_definition(fmt.Kind.NAMESPACE, stored.definition, stored.path)
    assert isinstance(definition, NamespaceDef)
    assert definition.data_root == "memory://x/a"
    assert len([item async for item in (await lake.open()).check()]) == 1


async def test_two_writers_claim_roots_that_overlap() -> None:
    """One of them commits. The other is executed again on the winner's version, and refused."""
    lake = Lake()
    await lake.create()
    first, second = await lake.open(), await lake.open()
    one = lake.transaction(first, namespace(lake, "a", "memory://x"))
    other = lake.transaction(second, namespace(lake, "b", "memory://x/b"))
    await first.commit(one)
    await raises(InvalidInput, second.commit(other), kind="bad_data_root")
    assert await roots_of(second) == {"memory://x": "a"}


async def test_a_catalog_of_revision_1_has_no_roots() -> None:
    lake = Lake()
    journal = await lake.create(format_revision=1)
    error = await raises(
        InvalidInput, lake.commit(journal, namespace(lake, "a", "memory://a")), kind="upgrade_needed"
    )
    assert "alpheus upgrade" in error.hint
    await lake.commit(journal, UpgradeCatalog(revision=2), namespace(lake, "a", "memory://a"))


@pytest.mark.parametrize("root", ["s3://b/x", "file:///x", "memory://x/", "MEMORY://x", "memory://x?y=z"])
async def test_a_root_of_another_kind_of_store_or_another_form_is_refused(root: str) -> None:
    lake = Lake()
    journal = await lake.create()
    await raises(InvalidInput, lake.commit(journal, namespace(lake, "a", root)), kind="bad_data_root")


async def test_a_root_lies_apart_from_the_catalog() -> None:
    roots = DataRoots(MemoryStorage(name="lake/main"))
    for url in ("memory://lake/main", "memory://lake", "memory://lake/main/data"):
        with pytest.raises(InvalidInput, match="overlaps the catalog"):
            roots.check_kind(url)
    roots.check_kind("memory://lake/main2")


async def test_a_root_lies_apart_from_the_folder_of_an_lmdb_catalog(tmp_path: Path) -> None:
    storage = await asyncio.to_thread(open_storage, f"lmdb://{tmp_path}/c", create=True)
    for url in (f"file://{tmp_path}/c", f"file://{tmp_path}", f"file://{tmp_path}/c/data"):
        with pytest.raises(InvalidInput, match="overlaps the catalog"):
            DataRoots(storage).check_kind(url)
    DataRoots(storage).check_kind(f"file://{tmp_path}/c2")
    await storage.close()


@pytest.mark.parametrize("scheme", ["file", "lmdb"])
@pytest.mark.parametrize("digits", [32, 64])
async def test_a_root_is_neither_at_nor_inside_another_catalog(
    tmp_path: Path, scheme: str, digits: int
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "beside").mkdir()
    other = await asyncio.to_thread(open_storage, f"{scheme}://{tmp_path}/other", create=True)
    await Journal.create(other, version_digits=digits)
    (tmp_path / "other" / "team").mkdir()
    roots = DataRoots(await asyncio.to_thread(open_storage, f"file://{tmp_path}/mine", create=True))
    for place in ("other", "other/team", "link", "link/team"):
        error = await raises(
            InvalidInput, roots.check_apart((tmp_path / place).as_uri()), kind="bad_data_root"
        )
        assert "at or inside a catalog" in error.message
    await roots.check_apart((tmp_path / "beside").as_uri())
    await roots.check_apart("")
    await roots.close()
    await other.close()


async def test_a_root_in_a_bucket_belongs_to_one_catalog_and_lies_in_none(s3_server: S3Server) -> None:
    mine, other = open_storage(s3_server.url()), open_storage(s3_server.url())
    await Journal.create(other)
    roots = DataRoots(mine)
    for place in ("", "/team"):
        at = other.url.partition("?")[0] + place
        await raises(InvalidInput, roots.check_apart(at), kind="bad_data_root")
    url = s3_server.url().partition("?")[0]
    await roots.check_apart(url)
    await roots.claim(url, "one")
    await roots.claim(url, "one")
    error = await raises(InvalidInput, roots.claim(url, "two"), kind="bad_data_root")
    assert "belongs to the catalog one" in error.message
    await roots.close()
    for store in (mine, other):
        await store.close()


async def test_a_store_with_a_root_keeps_data_files_there_and_all_else_in_the_catalog() -> None:
    catalog = MemoryStorage(name="the-catalog")
    roots = DataRoots(catalog)
    store = roots.of("memory://the-root")
    assert roots.of("") is catalog
    assert roots.of("memory://the-root") is store
    await store.put_many({"data/t/a": b"a", "manifest/m": b"m"})
    await store.put("data/t/b", b"bb")
    await store.create("manifest/n", b"n")
    root = MemoryStorage.named("the-root")
    assert sorted([info.path async for info in root.list("")]) == ["data/t/a", "data/t/b"]
    assert sorted([info.path async for info in catalog.list("")]) == ["manifest/m", "manifest/n"]
    assert sorted([info.path async for info in store.list("data/t/")]) == ["data/t/a", "data/t/b"]
    assert await store.read_many(["manifest/m", "data/t/a"], size_max=9) == {
        "manifest/m": b"m",
        "data/t/a": b"a",
    }
    sizes = {
        path: info and info.size for path, info in (await store.stat_many(["data/t/b", "manifest/m"])).items()
    }
    assert sizes == {"data/t/b": 2, "manifest/m": 1}
    assert await store.read("data/t/b", size_max=9) == b"bb"
    assert await store.read_part("data/t/b", start=1, size=1) == b"b"
    assert await store.exists("data/t/a")
    await store.delete("data/t/a")
    assert not await root.exists("data/t/a")
    await roots.close()
    await roots.close()


def test_the_registry_is_part_of_the_definition() -> None:
    value = CatalogDef(id="x", format_revision=2, data_roots={"s3://a": "n", "s3://b": "m"})
    assert decode_definition(fmt.Kind.CATALOG, encode_definition(value, checksum=True), "p") == value
