"""The Java SDK and this software read the same in catalogs of 64 digits.

The tests need the jar that prints what the SDK sees, ALPHEUS_OLYMPIA_ORACLE=path, and `java` (17). Without them they
are skipped, and the head of the report says so. The tests call `java -jar JAR DIRECTORY all`, which prints JSON in the
form of expected.json of the catalogs beside this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from upkeep_lake import collect, expire, make_lake, make_table, tag

from alpheus_journal import format as fmt
from alpheus_journal.errors import Expired
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Reference
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import (
    AdvancePipeline,
    CommitIceberg,
    CreateNamespace,
    CreateView,
    DropNamespace,
    DropTable,
    Operation,
    RegisterTable,
    RenameObject,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed

ORACLE = os.environ.get("ALPHEUS_OLYMPIA_ORACLE", "")
JAVA = shutil.which("java") or ""
WHY_NOT = (
    "NOT RUN AGAINST THE JAVA SDK: ALPHEUS_OLYMPIA_ORACLE does not name its jar"
    if not ORACLE
    else "NOT RUN AGAINST THE JAVA SDK: there is no `java` on the PATH"
)
pytestmark = pytest.mark.skipif(not (ORACLE and JAVA), reason=WHY_NOT)

Golden = Any  # of conftest.py
Copy = Callable[[Golden], Awaitable[MemoryStorage]]
Seen = dict[str, Any]

NAMES = (
    "a", "zz", "t-1_x.y", "UPPER", "x" * 24,  # ASCII
    "größe", "日本語", "ｶﾅ", "ﬁ", "\ue000private", "한글",  # of the BMP, also above U+E000
    "😀", "𝄞clef", "a😀b", "😀" * 6,  # above the BMP
)  # fmt: skip
"""Mixed, these names sort differently in UTF-16 units and in bytes. The SDK writes in the former order and searches
in the latter, so it finds everything in trees that are sorted by bytes."""


async def java(place: Path) -> Seen:
    process = await asyncio.create_subprocess_exec(
        JAVA,
        "-jar",
        ORACLE,
        str(place),
        "all",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode(errors="replace")[-2000:]
    seen: Seen = json.loads(out)
    return seen


async def ours(journal: Journal, version: int) -> Seen:
    """Return the version in the form of the jar's output."""
    spaces: Seen = {}
    for space in (await journal.list(version, Kind.NAMESPACE)).names:
        entry: Seen = {}
        for kind, group in ((Kind.TABLE, "tables"), (Kind.VIEW, "views")):
            page = await journal.list(version, kind, namespace=space)
            assert not page.more
            names = [ObjectName(kind, space, name) for name in page.names]
            stored = (await journal.load(version, names)).objects
            entry[group] = {n.name: s.path for n, s in zip(names, stored, strict=True) if s is not None}
            assert len(entry[group]) == len(names)
        (definition,) = (await journal.load(version, [fmt.namespace_name(space)])).objects
        assert definition is not None
        spaces[space] = {"def": definition.path, **entry}
    info = await journal.resolve(version)
    (catalog,) = (await journal.load(version, [fmt.CATALOG])).objects
    assert catalog is not None
    return {
        "root_path": fmt.version_file(version, 64),
        "created_at_millis": info.created_at_millis,
        "previous_root": fmt.version_file(version - 1, 64) if version else None,
        "catalog_def_path": catalog.path,
        "namespaces": spaces,
    }


async def compare(journal: Journal, place: Path, *, expired: int = 0) -> Seen:
    """Compare every version and definition. `expired` is the number of tombstones from version 0 on."""
    seen = await java(place)
    assert seen["head_version"] == journal.head.version
    assert len(seen["versions"]) == journal.head.version + 1
    objects = 0
    for text, version in seen["versions"].items():
        if int(text) < expired:
            assert "error" in version, "the SDK must not take a tombstone for an empty catalog"
            with pytest.raises(Expired):
                await journal.resolve(int(text))
            continue
        assert "error" not in version, version
        assert "sdk_problems" not in version, f"version {text}: {version['sdk_problems']}"
        mine = await ours(journal, int(text))
        assert {field: version[field] for field in mine} == mine, f"version {text}"
        assert version["rollback_from_root"] is None or int(text) <= 6
        objects += len(mine["namespaces"])
    for path, content in seen["definitions"].items():
        kind = {"namespace": Kind.NAMESPACE, "table": Kind.TABLE, "view": Kind.VIEW}[content["kind"]]
        data = await journal.storage.read(path, size_max=1 << 20)
        definition: Any = decode_definition(kind, data, path)
        assert (definition.id, definition.properties) == (content["id"], content["properties"])
    assert objects
    return seen


async def lay_out(storage: Any, place: Path) -> Path:
    for path in await listed(storage, ""):
        target = place / path
        data = await storage.read(path, size_max=1 << 30)
        await asyncio.to_thread(_put, target, data)
    return place


def _put(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


async def parts(lake: Lake, journal: Journal, operations: list[Operation], size: int) -> None:
    for start in range(0, len(operations), size):
        await lake.commit(journal, *operations[start : start + size])


@pytest.mark.parametrize(
    ("order", "count"), [(128, 60), (128, 300), (16, 150), (4, 40), (4, 120), (3, 60)],
)  # fmt: skip
async def test_trees_of_one_to_five_levels(order: int, count: int, tmp_path: Path) -> None:
    """The tree grows and shrinks, with pipelines in between. A dropped table is gone, and a recreated table is the
    new one."""
    lake = Lake(seed=order)
    journal = await lake.create(order=order, version_digits=64, name_size_max=24)
    await lake.commit(journal, *(lake.namespace(f"n{n}", k="v") for n in range(3)))
    tables = [(f"n{n % 3}", f"t{n * 37 % count:04}") for n in range(count)]
    await parts(lake, journal, [lake.table(*name) for name in tables], size=max(count // 4, 10))
    await lake.commit(
        journal,
        *(
            AdvancePipeline(name=f"{text}{n}", job="j", expected_transaction_id="", pinned_version=0)
            for n in range(8)
            for text in ("A", "m", "z")
        ),
    )
    await lake.commit(journal, *(UpdateTable(namespace=s, name=t, set={"k": t}) for s, t in tables[::5]))
    await parts(
        lake, journal, [DropTable(namespace=s, name=t) for s, t in tables[::2]], size=max(count // 4, 10)
    )
    await lake.commit(journal, *(lake.table(*name) for name in tables[::4]))
    space = "n2"
    mine = (await journal.list(None, Kind.TABLE, namespace=space)).names
    await lake.commit(journal, *(DropTable(namespace=space, name=t) for t in mine), DropNamespace(name=space))
    await journal.close()
    await compare(journal, await lay_out(lake.storage, tmp_path))


@pytest.mark.parametrize("order", [128, 6])
async def test_names(order: int, tmp_path: Path) -> None:
    names = NAMES
    lake = Lake()
    journal = await lake.create(order=order, version_digits=64, name_size_max=24)
    for space in names:
        create: CreateNamespace = lake.namespace(space, größe=space)
        await lake.commit(journal, create, *(lake.table(space, name) for name in names))
    for space in names[::3]:
        await lake.commit(journal, *(DropTable(namespace=space, name=name) for name in names[::2]))
    await lake.commit(journal, UpdateNamespace(name=names[-1], set={"😀": "𝄞"}))
    await journal.close()
    await compare(journal, await lay_out(lake.storage, tmp_path))


async def test_views_iceberg_tables_and_renamed_ones(tmp_path: Path) -> None:
    """A view of this software is SQL text, a format that the SDK does not know and skips."""
    lake = Lake()
    journal = await lake.create(version_digits=64)
    location = "s3://w/n/t/metadata/v{}.json".format
    await lake.commit(journal, lake.namespace("n"), lake.namespace("m"), lake.table("n", "native"))
    iceberg = RegisterTable(
        namespace="n", name="iceberg", table_id=lake.identities.uuid4(), metadata_location=location(1)
    )
    view = CreateView(
        namespace="n",
        name="v",
        view_id=lake.identities.uuid4(),
        sql="select * from n.native",
        dialect="spark",
        references=(Reference("n", "native"),),
        schema_binding=True,
        properties={"k": "v"},
    )
    await lake.commit(journal, iceberg, view)
    await lake.commit(
        journal,
        CommitIceberg(namespace="n", name="iceberg", metadata_location=location(2), expected=location(1)),
    )
    await lake.commit(
        journal,
        RenameObject(kind=Kind.TABLE, namespace="n", name="iceberg", new_namespace="m", new_name="eis"),
        RenameObject(kind=Kind.VIEW, namespace="n", name="v", new_namespace="m", new_name="sicht"),
    )
    await journal.close()
    seen = await compare(journal, await lay_out(lake.storage, tmp_path))
    head = seen["versions"][str(journal.head.version)]["namespaces"]
    table = seen["definitions"][head["m"]["tables"]["eis"]]
    assert table["table_format"] == "ICEBERG"
    assert table["iceberg_metadata_location"] == location(2)
    assert table["iceberg_previous_metadata_location"] == location(1)
    assert seen["definitions"][head["m"]["views"]["sicht"]]["properties"] == {"k": "v"}


async def test_large_groups_and_tombstones(tmp_path: Path) -> None:
    """A version may have many transactions, long lists of actions, and actions in separate files. Then the oldest
    versions expire."""
    lake = Lake()
    journal = await lake.create(version_digits=64)
    for round in range(3):
        group = [
            lake.transaction(
                journal,
                lake.namespace(f"n{round}-{n:02}"),
                *(lake.table(f"n{round}-{n:02}", f"t{k}") for k in range(3)),
            )
            for n in range(40)
        ]
        while group:
            answers = await journal.commit_group(group)
            group = [t for t, answer in zip(group, answers, strict=True) if answer is None]
            assert all(answer is None or isinstance(answer, Committed) for answer in answers)
    await lake.commit(journal, UpdateCatalog(set={"big": "x" * 40_000}))
    await lake.commit(
        journal, *(UpdateTable(namespace="n1-07", name="t1", set={str(n): "v"}) for n in range(400))
    )
    size = len(await lake.storage.read(fmt.version_file(journal.head.version, 64), size_max=1 << 20))
    assert size > 100_000
    await journal.close()
    first = await lay_out(lake.storage, tmp_path / "whole")
    await compare(journal, first)
    await lake.expire(below=3)
    await compare(await lake.open(), await lay_out(lake.storage, tmp_path / "expired"), expired=3)


async def test_a_catalog_that_has_tags_and_was_collected(tmp_path: Path) -> None:
    """The SDK reads each kept version, and takes tags, pins and fences for nothing that it knows."""
    lake = make_lake()
    journal = await make_table(lake, version_digits=64, order=3)
    for number in range(6):
        await lake.commit(journal, lake.namespace(f"n{number}"), lake.table(f"n{number}", "t"))
    await tag(lake, journal, "kept", 4)
    await compare(journal, await lay_out(lake.storage, tmp_path / "tagged"))
    for number in range(6):
        await lake.commit(journal, DropNamespace(name=f"n{number}", cascade=True))
    lake.clock.millis += 2 * HOUR_MILLIS
    done = await expire(journal, keep=3)
    assert (await collect(journal)).deleted_count > 10
    await compare(await lake.open(), await lay_out(lake.storage, tmp_path / "collected"), expired=done.oldest)
    await journal.close()


@pytest.mark.parametrize(
    "name", ["g1-small", "g2-tall-tree", "g2b-two-levels", "g3-rollback", "g4-export", "g5-dtxn", "g6-names"]
)
async def test_its_own_catalogs_after_commits_of_ours(
    name: str, goldens: Any, in_memory: Copy, tmp_path: Path
) -> None:
    golden = goldens[name]
    lake = Lake(await in_memory(golden))
    journal = await lake.open()
    spaces = (await journal.list(None, Kind.NAMESPACE)).names
    old = {s: (await journal.list(None, Kind.TABLE, namespace=s)).names for s in spaces}
    await lake.commit(journal, lake.namespace("new"), UpdateCatalog(set={"k": "v"}))
    count = 40
    await parts(lake, journal, [lake.table("new", f"t{n * 7 % count:02}") for n in range(count)], 20)
    await parts(
        lake,
        journal,
        [UpdateTable(namespace=s, name=t, set={"k": "v"}) for s in spaces for t in old[s][::3]],
        50,
    )
    await parts(lake, journal, [DropTable(namespace=s, name=t) for s in spaces for t in old[s][1::2]], 50)
    await parts(lake, journal, [DropTable(namespace="new", name=f"t{n:02}") for n in range(0, count, 2)], 50)
    await journal.close()
    seen = await compare(journal, await lay_out(lake.storage, tmp_path))
    for version in range(golden.head + 1):
        assert seen["versions"][str(version)] == golden.version(version)


async def test_a_golden_catalog_of_ours(own_goldens: Any) -> None:
    golden = own_goldens["own-r1-64"]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    await compare(journal, golden.root)
    await journal.close()


@pytest.mark.parametrize("revision", [1])
async def test_a_frozen_catalog_with_every_kind_of_operation(revision: int, own_goldens: Any) -> None:
    golden = own_goldens[f"own-r{revision}-64"]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    seen = await compare(journal, golden.root)
    for version in golden.expected["versions"]:
        expected = golden.expected["versions"][version]
        assert seen["versions"][version]["created_at_millis"] == expected["created_at_millis"]
    await journal.close()


async def test_a_frozen_catalog_with_changes_of_rows(own_goldens: Any) -> None:
    """The SDK skips the actions of this software, and its additional fields of tables."""
    golden = own_goldens["rows-r1-64"]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    seen = await compare(journal, golden.root)
    for version, expected in golden.expected["versions"].items():
        tables = seen["versions"][version]["namespaces"].get("lake", {}).get("tables", {})
        assert {f"lake.{name}": path for name, path in tables.items()} == expected["tables"], version
    await journal.close()
