"""Catalogs that earlier revisions of this software wrote are read, to the last action, by this one.

Frozen under own-r<revision>-<digits>/. A new revision of the format adds its own with

    python tests/compat/test_own_revisions.py tests/compat

and leaves the earlier ones as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.access import CheckSummary, Committed, Event, StoredObject, Timestamp
from alpheus_journal.actions import (
    AdvancePipeline,
    AppendFiles,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.objects import (
    Column,
    InputPosition,
    PipelineDef,
    TableDef,
    decode_definition,
    walk_columns,
)
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, Model, apply_to_model, listed, model_of, put_rows

Golden = Any  # of conftest.py
DIGITS = (32, 64)
NAMES = tuple(sorted(path.name for path in Path(__file__).parent.glob("own-r*")))
COLUMNS = (
    Column(id=1, name="id", type="INT8"),
    Column(id=2, name="amount", type="DECIMAL", properties={"precision": "12", "scale": "2"}),
    Column(
        id=3,
        name="address",
        type="STRUCT",
        fields=(
            Column(id=4, name="city", type="VARCHAR"),
            Column(id=5, name="codes", type="LIST", element=Column(id=6, name="element", type="INT4")),
        ),
    ),
    Column(
        id=7,
        name="tags",
        type="MAP",
        key=Column(id=8, name="key", type="VARCHAR", nullable=False),
        value=Column(id=9, name="value", type="TIMESTAMPTZ6"),
    ),
)


class Writing:
    """A catalog being written, with what each version must hold, said by the dict model and not by reading."""

    def __init__(self, digits: int) -> None:
        self.lake = Lake(seed=digits)
        self.lake.clock.millis = 1_790_000_000_000
        self.digits = digits
        self.model: Model = {}
        self.history: list[Model] = []

    async def start(self) -> None:
        self.journal = await self.lake.create(
            order=4, version_digits=self.digits, name_size_max=24, properties={"team": "data", "größe": "1"}
        )
        self.model = await model_of(self.journal)
        self.history.append(dict(self.model))

    async def commit(self, *operations: Operation, id: str = "", **more: Any) -> None:
        await self.group([(id, operations, more)])

    async def group(self, asked: list[tuple[str, tuple[Operation, ...], dict[str, Any]]]) -> None:
        self.lake.clock.millis += 1_000
        transactions = [
            Transaction(
                id=id or self.lake.identities.uuid7(),
                begin_version=self.journal.head.version,
                operations=operations,
                **more,
            )
            for id, operations, more in asked
        ]
        answers = await self.journal.commit_group(transactions)
        assert all(isinstance(answer, Committed) for answer in answers), answers
        assert len(self.history) == self.journal.head.version
        for transaction in transactions:
            for operation in transaction.operations:
                apply_to_model(self.model, operation, transaction.id)
        self.history.append(dict(self.model))


async def write(digits: int) -> Writing:
    """Each kind of operation, a tree of three levels and more that shrinks again, names of every sort, a version of
    many transactions, actions in files of their own, native tables with rows, a pipeline."""
    writing = Writing(digits)
    await writing.start()
    lake = writing.lake
    await writing.commit(
        lake.namespace("sales", owner="ana"), lake.namespace("hr"), principal="ana", message="begin"
    )
    spaces = ("größe", "日本", "😀", "plain-1_x.y")
    await writing.group(
        [
            ("", (lake.namespace(text), lake.table(text, "t")), {"principal": f"user {text}"})
            for text in spaces
        ]
    )
    orders = CreateTable(namespace="sales", name="orders", table_id=lake.identities.uuid4(), columns=COLUMNS)
    strict = CreateTable(
        namespace="sales",
        name="表",
        table_id=lake.identities.uuid4(),
        columns=(Column(id=1, name="id", type="INT8", nullable=False),),
        properties={"owner": "ana"},
    )
    await writing.commit(orders, strict, properties={"job": "load", "key": "väl"})
    last = ""
    for cls, count in ((AppendFiles, 3), (AppendFiles, 2), (OverwriteFiles, 1)):
        id = lake.identities.uuid7()
        segments = []
        for row_count in range(1, count):
            segments.append(
                await put_rows(
                    lake.storage,
                    lake.identities,
                    table_id=orders.table_id,
                    transaction_id=id,
                    row_count=row_count,
                )
            )
        rows = cls(namespace="sales", name="orders", table_id=orders.table_id, segments=tuple(segments))
        position = InputPosition(
            table_id=orders.table_id, version=writing.journal.head.version, table="sales.orders"
        )
        advance = AdvancePipeline(
            name="daily",
            job="sum",
            expected_transaction_id=last,
            pinned_version=writing.journal.head.version,
            inputs={"orders": position},
            params={"day": "2026-09-21"},
        )
        await writing.commit(rows, advance, id=id)
        last = id
    await writing.commit(UpdateCatalog(set={"big": "x" * 17_000}, unset=("team",)))
    await writing.commit(UpdateCatalog(unset=("big",)))
    for start in range(0, 60, 20):
        await writing.commit(*(lake.table("hr", f"t{n * 7 % 60:02}") for n in range(start, start + 20)))
    await writing.commit(UpdateTable(namespace="hr", name="t07", set={"k": "v"}))
    await writing.commit(DropTable(namespace="😀", name="t"), DropNamespace(name="😀"))
    await writing.commit(*(DropTable(namespace="hr", name=f"t{n:02}") for n in range(60) if n % 3))
    await writing.commit(lake.table("hr", "t01"), UpdateNamespace(name="日本", set={"a": "b"}))
    await writing.commit(DropTable(namespace="sales", name="orders"))
    cancelled = lake.identities.uuid7()
    await writing.journal.outcome(cancelled, settle=True)
    writing.history.append(dict(writing.model))
    await writing.commit(lake.namespace("last"))
    await writing.journal.close()
    return writing


def content(stored: StoredObject, kind: Kind) -> dict[str, Any]:
    """What a definition says, in words that outlive the classes of a release."""
    definition = decode_definition(kind, stored.definition, stored.path)
    found: dict[str, Any] = {"path": stored.path, "id": definition.id}
    if isinstance(definition, PipelineDef):
        for name, job in definition.jobs.items():
            inputs = {key: [position.table_id, position.version] for key, position in job.inputs.items()}
            found[f"job {name}"] = [job.last_transaction_id, job.pinned_version, inputs, job.params]
    else:
        found["properties"] = dict(definition.properties)
    if isinstance(definition, TableDef):
        found["columns"] = [[c.id, c.name, c.type, c.nullable] for c in walk_columns(definition.columns)]
        found["segments"] = [[s.path, s.sequence, s.file_count, s.row_count] for s in definition.segments]
        found["counters"] = [definition.next_column_id, definition.sequence, definition.schema_id]
    return found


async def objects_of(journal: Journal, version: int | None) -> dict[str, Any]:
    names = [fmt.CATALOG]
    names += [fmt.pipeline_name(name) for name in (await journal.list(version, Kind.PIPELINE)).names]
    for space in (await journal.list(version, Kind.NAMESPACE)).names:
        names.append(fmt.namespace_name(space))
        page = await journal.list(version, Kind.TABLE, namespace=space)
        assert not page.more
        names += [fmt.table_name(space, name) for name in page.names]
    found = {}
    for name, stored in zip(names, (await journal.load(version, names)).objects, strict=True):
        assert stored is not None, name
        found[str(name)] = content(stored, name.kind)
    return found


async def described(journal: Journal) -> dict[str, Any]:
    """All that a catalog says, version by version."""
    versions: dict[str, Any] = {}
    async for event in journal.events():
        assert isinstance(event, Event)
        versions[str(event.version)] = {
            "created_at_millis": event.created_at_millis,
            "token": event.token,
            "objects": await objects_of(journal, event.version),
            "changes": [[str(c.name), c.type, c.path_before, c.path_after] for c in event.changes],
            "transactions": [
                {
                    "id": t.id,
                    "digest": t.operations_digest.hex(),
                    "principal": t.principal,
                    "message": t.message,
                    "properties": t.properties,
                    "begin_version": t.begin_version,
                    "cancels": t.cancels,
                    "actions": [[a.type, str(a.name), a.path_before, a.path_after] for a in t.actions],
                }
                for t in event.transactions
            ],
        }
    return {
        "catalog_id": journal.catalog_id,
        "version_digits": journal.keys.version_digits,
        "head_version": journal.head.version,
        "versions": versions,
    }


async def files_of(storage: Any) -> dict[str, bytes]:
    return {path: await storage.read(path, size_max=1 << 30) for path in await listed(storage, "")}


# --- reading ---------------------------------------------------------------------------------------


def test_each_revision_has_a_catalog_of_either_width() -> None:
    assert set(NAMES) == {f"own-r{r}-{d}" for r in range(1, fmt.FORMAT_REVISION + 1) for d in DIGITS}


@pytest.mark.parametrize("name", NAMES)
async def test_a_catalog_of_an_earlier_revision_says_what_it_said(name: str, own_goldens: Any) -> None:
    golden = own_goldens[name]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    found = await described(journal)
    assert found.keys() == golden.expected.keys()
    for version, expected in golden.expected["versions"].items():
        assert found["versions"][version] == expected, version
    assert found == golden.expected
    state = await journal.load_state()
    head = str(journal.head.version)
    assert await objects_of(journal, None) == golden.expected["versions"][head]["objects"]
    assert len(state) == len(golden.expected["versions"][head]["objects"]) - 1
    for version, expected in golden.expected["versions"].items():
        assert (await journal.resolve(Timestamp(expected["created_at_millis"]))).version == int(version)
    await journal.close()


@pytest.mark.parametrize("name", NAMES)
async def test_its_actions_give_its_definitions_again(name: str, own_goldens: Any) -> None:
    """`check` executes every recorded operation and compares bytes."""
    golden = own_goldens[name]
    journal = await Journal.open(await asyncio.to_thread(LocalStorage, str(golden.root)))
    (summary,) = [item async for item in journal.check()]
    assert isinstance(summary, CheckSummary)
    assert summary.versions == golden.head + 1
    assert summary.nodes > 30
    assert summary.manifests == 3
    await journal.close()


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_written_on(
    name: str, own_goldens: Any, in_memory: Callable[[Golden], Awaitable[MemoryStorage]]
) -> None:
    golden = own_goldens[name]
    lake = Lake(await in_memory(golden), seed=99)
    journal = await lake.open()
    await lake.commit(journal, lake.namespace("more"), *(lake.table("hr", f"u{n}") for n in range(20)))
    await lake.commit(journal, *(DropTable(namespace="hr", name=f"t{n:02}") for n in range(0, 60, 3)))
    again = await lake.open()
    assert len([item async for item in again.check()]) == 1
    for version, expected in golden.expected["versions"].items():
        assert await objects_of(again, int(version)) == expected["objects"]
    # The recorded answer to a transaction that an earlier release committed.
    first = golden.expected["versions"]["1"]["transactions"][0]["id"]
    outcome = await again.outcome(first)
    assert outcome.state == "committed"
    assert outcome.commit is not None
    assert outcome.commit.version == 1


# --- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", DIGITS)
async def test_one_seed_writes_the_same_bytes_and_what_was_asked(digits: int) -> None:
    first, second = await write(digits), await write(digits)
    files = await files_of(first.lake.storage)
    assert files == await files_of(second.lake.storage)
    journal = await first.lake.open()
    for version, model in enumerate(first.history):
        assert await model_of(journal, version) == model, version


def pack(files: dict[str, bytes]) -> bytes:
    """A tar.gz without the time and the owner."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"catalog/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def main(target: Path) -> None:
    for digits in DIGITS:
        folder = target / f"own-r{fmt.FORMAT_REVISION}-{digits}"
        if folder.exists():
            print(f"{folder} is there and stays as it is")
            continue

        async def make(digits: int = digits) -> tuple[dict[str, bytes], dict[str, Any]]:
            writing = await write(digits)
            return await files_of(writing.lake.storage), await described(await writing.lake.open())

        files, expected = asyncio.run(make())
        folder.mkdir()
        (folder / "catalog.tar.gz").write_bytes(pack(files))
        (folder / "expected.json").write_text(
            json.dumps(expected, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        )
        digest = hashlib.sha256(b"".join(files[path] for path in sorted(files))).hexdigest()
        print(f"{folder}: {len(files)} files, sha256 {digest[:16]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
