"""Intact inputs to start from: small catalogs in both dialects, catalogs of the Java SDK, segments, footers."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind
from alpheus_journal.model.action_rows import encode_transaction
from alpheus_journal.model.definitions import Column, DeclaredTable, InputPosition, JobDeclaration
from alpheus_journal.model.operations import (
    Action,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
    RenameObject,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.tables.columns import columns_of_schema, schema_of_columns
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import encode_segment
from alpheus_journal.testing import Lake, put_rows
from alpheus_journal.tree.node import decode_node
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import objects_pb2

TABLE = "018f0000-0000-7000-8000-0000000000aa"
JAVA = Path(__file__).resolve().parent.parent / "compat" / "olympia-java"
FOOTER_ROWS = 20
JAVA_FILES_MAX = 120
"""Catalogs of the Java SDK with more files than this give only files, and are not opened whole."""
MIB = 1 << 20

_ROOTS = [fmt.version_file(n, 32) for n in (4, 5)]
DTXN = [
    objects_pb2.DistributedTransactionDef(
        id="t",
        isolation_level=level,
        beginning_root_node_file_path=_ROOTS[0],
        running_root_node_file_path=running,
        began_at_millis=1,
        expire_at_millis=2,
    ).SerializeToString(deterministic=True)
    for level, running in ((0, _ROOTS[1]), (1, "node/00000000-0000-4000-8000-000000000001.arrow"))
]


class Lakes(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the seed catalogs, by kind of file."""

    catalogs: list[dict[str, bytes]]
    nodes: list[bytes]
    roots: list[tuple[int, bytes]]
    tombstones: list[tuple[int, bytes]]
    externals: dict[str, bytes]
    actions: list[bytes]
    header_of_one: bytes
    """The message of an action row: the header of a transaction of one action."""
    definitions: list[bytes]
    """The first byte is the kind."""
    requests: list[bytes]
    millis: int


async def _files(lake: Lake) -> dict[str, bytes]:
    paths = [entry.path async for entry in lake.storage.list("")]  # type: ignore[attr-defined]
    return {path: await lake.storage.read(path, size_max=64 * MIB) for path in paths}


async def _catalog(digits: int) -> tuple[Lake, list[Transaction]]:
    """Make a catalog with each kind of operation, file and object, with inner nodes and an external action."""
    lake = Lake()
    journal = await lake.create(order=3, version_digits=digits)
    sent: list[Transaction] = []

    async def commit(*operations: Operation, id: str = "") -> None:
        transaction = lake.transaction(journal, *operations)
        sent.append(msgspec.structs.replace(transaction, id=id or transaction.id))
        await journal.commit(sent[-1])

    columns = (
        Column(id=1, name="c", type="INT8", nullable=False),
        Column(id=2, name="l", type="LIST", element=Column(id=3, name="element", type="DECIMAL",
               properties={"precision": "9", "scale": "2"})),
        Column(id=4, name="m", type="MAP", key=Column(id=5, name="key", type="VARCHAR", nullable=False),
               value=Column(id=6, name="value", type="STRUCT", fields=(Column(id=7, name="f", type="DATE"),))),
    )  # fmt: skip
    t = msgspec.structs.replace(lake.table("a", "t"), columns=columns[:1])
    u = msgspec.structs.replace(lake.table("a", "ü"), columns=columns)
    await commit(lake.namespace("a", p="1"), t, u)
    for operation in (AppendFiles, OverwriteFiles):
        id = lake.identities.uuid7()
        segment = await put_rows(lake.storage, lake.identities, table_id=t.table_id, transaction_id=id)
        name = {"namespace": "a", "name": "t", "table_id": t.table_id}
        try:
            await commit(operation(**name, segments=(segment,)), id=id)
        except Exception:  # a table with a required column refuses files without it
            sent.pop()
    await commit(UpdateCatalog(set={"p": "1"}))
    await commit(UpdateNamespace(name="a", set={"big": "x" * 17_000}))
    await commit(
        AdvancePipeline(
            name="m", job="j", expected_transaction_id="", pinned_version=2, params={"a": "b"},
            inputs={"i": InputPosition(table_id=t.table_id, version=1, table="a.t")}, expected_pipeline_id="",
            declaration=JobDeclaration(inputs=(DeclaredTable(table="a.t", table_id=t.table_id),)),
        )
    )  # fmt: skip
    await commit(
        RenameObject(kind=Kind.PIPELINE, namespace="", name="m", new_namespace="", new_name="mm"),
        AdvancePipeline(
            name="mm", job="jj", former_job="j", expected_transaction_id=sent[-1].id, pinned_version=2
        ),
    )
    await commit(UpdateTable(namespace="a", name="t", set={"k": "v"}, unset=("z",)))
    await commit(DropTable(namespace="a", name="ü"))
    await commit(*(lake.namespace(f"n{n}") for n in range(6)))
    await commit(DropNamespace(name="n3"), UpdateNamespace(name="n4", set={"a": "b"}))
    await journal.close()
    return lake, sent


def java_catalogs() -> list[dict[str, bytes]]:
    """Return catalogs that the Java SDK wrote, from the folders where they exist."""
    folders = sorted(path.parent for path in JAVA.glob("*/catalog/vn"))
    return [
        {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        for folder in folders
    ]


@cache
def lakes() -> Lakes:
    return asyncio.run(_lakes())


async def _lakes() -> Lakes:
    small, sent = await _catalog(32)
    java_like, _ = await _catalog(64)
    catalogs = [await _files(small), await _files(java_like)]
    await small.expire(below=3)
    catalogs.append(await _files(small))
    catalogs += [{**catalogs[1], fmt.LATEST_HINT: b"3", fmt.OLDEST_HINT: b"0"}]
    foreign = java_catalogs()
    catalogs += [files for files in foreign if len(files) <= JAVA_FILES_MAX]
    nodes, roots, tombstones, rows, definitions, externals = [], [], [], [], [], {}
    folders = {"catalog": 0, "ns": 1, "table": 2, "view": 3, "pipeline": 102}
    for files in [*catalogs[:3], *foreign]:
        for path, data in files.items():
            kind, _, rest = path.partition("/")
            if kind == "node":
                nodes.append(data)
            elif kind == "action":
                externals[path] = data
            elif kind == "def" and rest.split("/")[0] in folders:
                definitions.append(bytes([folders[rest.split("/")[0]]]) + data)
            elif kind == "vn" and path not in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
                version, digits = fmt.parse_version_file(path)
                file = decode_node(data, path, root=True, size_max=64 * MIB)
                if file.is_tombstone:
                    tombstones.append((version, data))
                elif version < 256:
                    if digits == 32:
                        roots.append((version, data))
                    rows += [b64decode(value) for _, value in file.actions if file.commit_id]
    chosen = {len(data): data for data in definitions}  # those of the Java SDK differ mainly in names
    return Lakes(
        catalogs=catalogs,
        nodes=nodes[:: max(1, len(nodes) // 60)],
        roots=roots[:: max(1, len(roots) // 60)],
        tombstones=tombstones,
        externals=externals,
        actions=rows + list(externals.values()),
        header_of_one=_header_of_one(),
        definitions=list(chosen.values()),
        requests=[
            wire.encode_transaction_request(each).SerializeToString(deterministic=True) for each in sent
        ],
        millis=small.clock.millis,
    )


def _header_of_one() -> bytes:
    cancel = CancelTransaction(transaction_id=TABLE)
    transaction = RecordedTransaction(
        id=TABLE, operations_digest=b"\0" * 32, principal="", principal_authenticated=False, message="",
        properties={}, serializable=False, branch="", begin_version=1, committed_at_millis=2,
        actions=(Action(type="TRANSACTION_CANCEL", name=fmt.CATALOG, operation=cancel),),
    )  # fmt: skip
    return next(iter(encode_transaction(transaction, fmt.Keys())))[1]


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog so small that a sample has all of its objects, with its checkpoints and index runs. Files are bytes
    by path."""

    files: dict[str, bytes]
    catalog_id: str
    ids: list[str]
    """Ids of transactions: the n-th is in version n + 1."""
    objects: dict[str, str]
    """Paths by tree key."""
    checkpoints: dict[str, bytes]
    runs: dict[str, bytes]
    millis: int


@cache
def hints() -> Hints:
    return asyncio.run(_hints())


async def _hints() -> Hints:
    lake = Lake()
    journal = await lake.create(order=3)
    found: dict[str, bytes] = {}
    ids = []
    for number in range(8):
        operations: list[Operation] = [lake.table("n0", f"t{number}")] if number else [lake.namespace("n0")]
        if number == 5:
            operations = [DropTable(namespace="n0", name="t3"), lake.namespace("名𝄞")]
        ids.append((await lake.commit(journal, *operations)).transaction_id)
        if number in (0, 3, 6):
            writer = journal
            if number == 6:  # an object without a definition
                lost, writer = (
                    (await journal.load(None, [fmt.table_name("n0", "t6")])).objects[0],
                    await lake.open(),
                )
                assert lost is not None
                await lake.storage.delete(lost.path)
            await writer.checkpoint()
            await writer.write_index()
            if number == 6:
                await lake.storage.put(lost.path, lost.definition)
            found |= {path: data for path, data in (await _files(lake)).items() if path[:11] == "checkpoint/"}
    state = await journal.load_state()
    await journal.close()
    files = {path: data for path, data in (await _files(lake)).items() if path not in found}
    return Hints(
        files=files,
        catalog_id=journal.catalog_id,
        ids=ids,
        objects=dict(state.entries()),
        checkpoints={path: data for path, data in sorted(found.items()) if "index" not in path},
        runs={path: data for path, data in sorted(found.items()) if "index" in path},
        millis=lake.clock.millis,
    )


def segment_files() -> list[bytes]:
    """Return manifest segments of `TABLE`."""

    def file(number: int, **values: object) -> DataFile:
        path = f"data/{TABLE}/{TABLE}/{TABLE}/part-{number}.parquet"
        return DataFile(path=path, row_count=7, size_bytes=900, schema_id=0, **values)  # type: ignore[arg-type]

    many = [
        file(
            number, value_counts={1: 7, 2: 9}, null_counts={1: 0, 2: 3}, nan_counts={2: 1}, column_sizes={1: 40},
            lower_bounds={1: b"a"}, upper_bounds={1: b"b", 2: b"\x01\x02"}, split_offsets=(4, 100, 500),
            sequence=3 if number % 2 else None, partition={1: b"p", 2: None} if number % 3 else {},
            sort_order_id=1, added_version=number,
        )
        for number in range(12)
    ]  # fmt: skip
    summed = [file(20 + number, crc32=number, footer_crc32=(1 << 32) - 1) for number in range(3)]
    return [
        encode_segment(files, table_id=TABLE, schema_id=0)
        for files in ([file(1)], many[:2], many, [file(2), many[3]], [file(2), *summed])
    ]


@cache
def footer_columns() -> tuple[Column, ...]:
    return columns_of_schema(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("name", pa.string()),
                pa.field("at", pa.timestamp("us", "UTC")),
                pa.field("price", pa.decimal128(9, 2)),
                pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.string())]))),
                pa.field("sizes", pa.map_(pa.string(), pa.float64())),
            ]
        )
    )


def footer_files() -> list[bytes]:
    """Return Parquet files that a table of `footer_columns` accepts."""
    schema = schema_of_columns(footer_columns())
    rows = [
        {"id": n, "name": f"é{n}", "at": n, "price": n, "tags": [{"k": "a"}, None], "sizes": [("a", 1.5)]}
        for n in range(FOOTER_ROWS)
    ]
    table = pa.Table.from_pylist(rows, schema=schema)
    found = []
    for options in (
        {},
        {"store_schema": False, "row_group_size": 5},
        {"compression": "none", "version": "1.0"},
    ):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        found.append(bytes(sink.getvalue().to_pybytes()))
    return found
