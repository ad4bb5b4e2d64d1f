"""The fuzzed gates: how inputs of each are made, how the gate gets them, and what must be true afterwards.

A gate may refuse with its own error class; every other exception is a flaw. Accepted input must keep the promises that
callers rely on.
"""

from __future__ import annotations

import asyncio
import io
import random
import zlib
from base64 import b64decode
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pyarrow as pa
from fuzz_arrow import (
    Anatomy,
    Row,
    anatomy,
    extreme,
    file_of_rows,
    hostile_text,
    mutate_arrow,
    mutate_bytes,
    mutate_rows,
    rows_of,
)
from fuzz_protobuf import mutate_message, random_message
from fuzz_seeds import (
    DTXN,
    FOOTER_ROWS,
    TABLE,
    Lakes,
    footer_columns,
    footer_files,
    lakes,
    segment_files,
)

from alpheus.rows.file_reader import list_files
from alpheus.rows.scan import scan_of
from alpheus_daemon.serve.request_weights import weigh
from alpheus_daemon.serve.requests import read, transaction_of
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind, NodePath
from alpheus_journal.log.versions import Log
from alpheus_journal.model import action_rows, operation_messages
from alpheus_journal.model import definitions as objects
from alpheus_journal.model import operations as actions
from alpheus_journal.model.answers import Finding, parse_token
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import TableDef, ViewDef
from alpheus_journal.predicate import (
    Verdict,
    absent,
    check,
    columns_of,
    decode,
    encode,
    evaluate,
    judge,
    text,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables import data_file, manifest
from alpheus_journal.tables.parquet_footer import data_file_of_footer
from alpheus_journal.tables.parquet_guard import read_footer
from alpheus_journal.tables.verify_file import footer_differences
from alpheus_journal.testing import Lake
from alpheus_journal.testing.models.predicates import array_of, file_of, random_predicate, random_rows, truth
from alpheus_journal.tree.node import Node, decode_node, encode_node
from alpheus_journal.tree.reader import Reader
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2, objects_pb2, service_pb2

MIB = 1 << 20
T = TypeVar("T")


class Flaw(Exception):
    """Accepted input breaks a promise."""


def require(condition: object, promise: str) -> None:
    if not condition:
        raise Flaw(promise)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def run(work: Coroutine[Any, Any, T]) -> T:
    return _loop().run_until_complete(work)


def storage_of(files: dict[str, bytes]) -> MemoryStorage:
    storage = MemoryStorage()
    for path, data in files.items():
        run(storage.put(path, data))
    return storage


def newer(error: AlpheusError) -> bool:
    """Return whether the error is that of a later release's format. Damaged input gets another class."""
    return isinstance(error, InvalidInput) and error.kind == "newer_format"


class Target:
    """One gate. `name` selects it and its corpus; `weight` is its share of the inputs."""

    name: ClassVar[str] = ""
    weight: ClassVar[float] = 1.0
    memory: ClassVar[int] = 96 * MIB
    """Bytes of address space above the baseline that one input may take."""

    def seeds(self) -> list[bytes]:
        """Return intact inputs. The inputs are made once, before the first fork."""
        raise NotImplementedError

    def make(self, rng: random.Random) -> bytes:
        raise NotImplementedError

    def run(self, data: bytes) -> None:
        """Run the gate. Raise what it raises, or Flaw if it accepts what it must not."""
        raise NotImplementedError

    def allows(self, error: Exception) -> bool:
        return isinstance(error, Corrupt) or (isinstance(error, AlpheusError) and newer(error))

    @cache  # noqa: B019 - one object a process
    def whole(self) -> list[bytes]:
        return self.seeds()


def safe_path(path: str) -> bool:
    """Return whether the path is safe, by rules that do not use the tested grammar."""
    return (
        0 < len(path) <= 4096
        and not path.startswith("/")
        and all(part not in ("", ".", "..") for part in path.split("/"))
        and all(ord(c) >= 0x20 and ord(c) != 0x7F for c in path)
        and path.split("/")[0] in ("node", "def", "vn", "action", "manifest", "data")
    )


# --- node files ------------------------------------------------------------------------------------


class ArrowTarget(Target):
    def __init__(self) -> None:
        self._parts: list[Anatomy] = []
        self._rows: list[list[Row]] = []

    def make(self, rng: random.Random) -> bytes:
        seeds = self.whole()
        if not self._parts:
            self._parts = [anatomy(seed) for seed in seeds]
        index = rng.randrange(len(seeds))
        return mutate_arrow(seeds[index], self._parts[index], rng, seeds)


class NodeTarget(ArrowTarget):
    """Child nodes through `Reader.load_nodes`, as every read of a tree uses it."""

    name = "node"
    weight = 5.0
    memory = 64 * MIB
    path = NodePath("node/00000000-0000-4000-8000-000000000009.arrow")

    def seeds(self) -> list[bytes]:
        return [*lakes().nodes, *odd_arrow_files(lakes().nodes[0])]

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            return super().make(rng)
        if not self._rows:
            self._rows = [rows for rows in map(self.rows, self.whole()) if rows]
        return file_of_rows(mutate_rows(rng.choice(self._rows), rng, self._rows))

    def rows(self, data: bytes) -> list[Row]:
        try:
            return rows_of(data) if decode_node(data, "x", root=self.name != "node", size_max=MIB) else []
        except (AlpheusError, pa.ArrowException, ValueError):
            return []

    def run(self, data: bytes) -> None:
        reader = Reader(storage_of({self.path: data}), fmt.Keys(), node_size_max=MIB)
        self.keeps(run(reader.load_nodes([self.path]))[self.path])

    def keeps(self, node: Node) -> None:
        """Check the properties that a tree relies on."""
        require(list(node.keys) == sorted(set(node.keys)), "keys ascend strictly")
        require(len(node.values) == len(node.keys), "a value for every key")
        require(len(node.children) in (0, len(node.keys) + 1), "one child more than keys, or none")
        for child in node.children:
            require(safe_path(child) and child.startswith("node/"), f"a child's path: {child!r}")
        if "" not in node.values and len(node.keys) < fmt.ORDER_MAX:
            order = max(fmt.ORDER_MIN, len(node.keys) + 1)
            again = encode_node(node, order=order, created_at_millis=0, size_max=64 * MIB)
            require(
                decode_node(again, "again", root=False, size_max=64 * MIB).node == node, "written as read"
            )
        for key, value in zip(node.keys, node.values, strict=True):
            try:
                name = fmt.Keys().parse(key)
                if value:
                    require(safe_path(fmt.check_definition_pointer(value, name.kind)), f"a path: {value!r}")
            except Corrupt:
                continue  # a caller that follows this key is refused


class RootTarget(NodeTarget):
    """Roots through `Log.read`: the slot, the node, the actions. The first byte is the slot."""

    name = "root"
    weight = 4.0
    memory = 96 * MIB

    def seeds(self) -> list[bytes]:
        return [bytes([version]) + data for version, data in lakes().roots]

    def make(self, rng: random.Random) -> bytes:
        seeds = self.whole()
        if not self._rows:
            self._rows = [self.rows(seed[1:]) for seed in seeds]
            self._parts = [anatomy(seed[1:]) for seed in seeds]
        index = rng.randrange(len(seeds))
        slot, data = seeds[index][:1], seeds[index][1:]
        if rng.random() < 0.02:
            slot = bytes([rng.randrange(20)])
        if rng.random() < 0.5:
            return slot + mutate_arrow(data, self._parts[index], rng, seeds)
        rows = mutate_rows(self._rows[index], rng, self._rows)
        for place, (key, value, pnode) in enumerate(rows):
            if value and len(value) > 60 and rng.random() < 0.1:  # an action, most likely
                rows[place] = (key, mutated_action(value, rng), pnode)
        return slot + file_of_rows(rows)

    def allows(self, error: Exception) -> bool:
        return super().allows(error) or isinstance(error, Expired)

    def run(self, data: bytes) -> None:
        version = data[0] if data else 0
        path = fmt.version_file(version, 32)
        log = Log(storage_of(lakes().externals | {path: data[1:]}), 32)
        log.node_size_max = MIB
        root = run(log.read(version))
        self.keeps(root.node)
        require(root.version == version and root.path == path, "the slot's version")
        require(root.commit_id, "a commit id")
        require(root.created_at_millis >= 0, "a time")
        require(safe_path(root.catalog_def), f"a path: {root.catalog_def!r}")
        require(version == 0 or root.previous_root == fmt.version_file(version - 1, 32), "the root below")
        require(not (root.is_foreign and root.transactions), "no actions of other writers")
        for transaction in root.transactions:
            require(transaction.begin_version < max(version, 1), "began before")
            require(fmt.is_uuid(transaction.id), "an id")
            same_transaction(transaction)


class TombstoneTarget(RootTarget):
    """Roots of expired versions must give Expired, and never a version without objects."""

    name = "tombstone"
    weight = 1.0

    def seeds(self) -> list[bytes]:
        return [bytes([version]) + data for version, data in lakes().tombstones]

    def run(self, data: bytes) -> None:
        rows = self.rows(data[1:])
        if any(key == fmt.ROW_EXPIRED_AT_MILLIS for key, _, _ in rows):
            try:
                super().run(data)
            except (Corrupt, Expired):
                raise
            raise Flaw("a tombstone was read as a version")
        super().run(data)


def odd_arrow_files(whole: bytes) -> list[bytes]:
    """Return Arrow files of other kinds. They are material for splices, and are refused when unchanged."""
    table = pa.ipc.open_file(whole).read_all()
    batch = table.combine_chunks().to_batches()[0]
    files = []
    for codec in ("lz4", "zstd"):
        files.append(arrow_file(batch, compression=codec))
        bomb = pa.record_batch(
            [pa.array(["a" * 200 * MIB]), *[pa.nulls(1, pa.utf8())] * 2], schema=table.schema
        )
        files.append(arrow_file(bomb, compression=codec))
        del bomb
    files.append(arrow_file(batch, metadata_version=pa.ipc.MetadataVersion.V4))
    encoded = [column.dictionary_encode() for column in batch.columns]
    files.append(arrow_file(pa.record_batch(encoded, names=["key", "value", "pnode"])))
    for kind in (pa.large_utf8(), pa.string_view(), pa.binary(), pa.null(), pa.list_(pa.utf8())):
        arrays = [pa.nulls(3, kind)] * 3
        files.append(arrow_file(pa.record_batch(arrays, names=["key", "value", "pnode"])))
    return [file for file in files if len(file) < 256 << 10]


def arrow_file(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


# --- actions ---------------------------------------------------------------------------------------


def mutated_action(value: str, rng: random.Random) -> str:
    """Return the value of an action row with a changed message, or with changed base64."""
    try:
        data = b64decode(value, validate=True)
    except ValueError:
        return value
    if rng.random() < 0.1:
        return hostile_text(rng, value) or "A"
    return action_rows.row_value(mutate_message(data, actions_pb2.ActionDef.DESCRIPTOR, rng, lakes().actions))


def same_transaction(transaction: actions.RecordedTransaction) -> None:
    """Check that a decoded transaction survives the wire unchanged."""
    message = wire.encode_recorded(transaction)
    again = wire.decode_recorded(
        service_pb2.RecordedTransaction.FromString(message.SerializeToString(deterministic=True))
    )
    require(again == transaction, "a transaction encodes as it was read")


class ActionTarget(Target):
    """Rows of a root's actions through `parse_row` and `decode_transactions`."""

    name = "action"
    weight = 3.0
    memory = 384 * MIB
    """The room for at most 1 MiB that is decoded, encoded and decoded again."""
    header: ClassVar[bytes] = b""

    def seeds(self) -> list[bytes]:
        return lakes().actions

    def make(self, rng: random.Random) -> bytes:
        seed = rng.choice(self.whole())
        return mutate_message(seed, actions_pb2.ActionDef.DESCRIPTOR, rng, self.whole())

    def run(self, data: bytes) -> None:
        data = data[:MIB]  # more than a root of the default size can hold
        row = action_rows.parse_row(action_rows.row_value(data), "vn/x")
        require(not row.external_path or safe_path(row.external_path), f"a path: {row.external_path!r}")
        messages = [row.message]
        if row.message.type != actions_pb2.TRANSACTION:
            messages.insert(0, action_rows.parse_action(lakes().header_of_one, "vn/x").message)
        for transaction in action_rows.decode_transactions(messages, "vn/x"):
            require(fmt.is_uuid(transaction.id), "an id")
            same_transaction(transaction)


class ExternalTarget(ActionTarget):
    """An action in a separate file, through `Log.read` of the root that points at it."""

    name = "external_action"
    weight = 1.0
    path = "action/00000000-0000-4000-8000-000000000007.binpb"

    def run(self, data: bytes) -> None:
        data = data[:MIB]
        value = action_rows.row_value(action_rows.external_row(self.path, data))
        header = action_rows.row_value(lakes().header_of_one)
        slot = fmt.version_file(5, 32)
        system = {
            fmt.ROW_CATALOG_DEF: "def/catalog/00000000-0000-4000-8000-000000000000.binpb",
            fmt.ROW_PREVIOUS_ROOT: fmt.version_file(4, 32),
            fmt.ROW_COMMIT_ID: "c",
            fmt.ROW_VERSION: "5",
            fmt.ROW_FORMAT_REVISION: "1",
        }
        root = encode_node(
            Node((), ()), order=3, created_at_millis=1, size_max=MIB, system=system,
            actions=[(fmt.ROW_CATALOG_DEF, header), (fmt.ROW_CATALOG_DEF, value)],
        )  # fmt: skip
        log = Log(storage_of({slot: root, self.path: data}), 32)
        for transaction in run(log.read(5)).transactions:
            same_transaction(transaction)


# --- definitions -----------------------------------------------------------------------------------

_DEFINITIONS: dict[Kind, Any] = {
    Kind.CATALOG: objects_pb2.CatalogDef,
    Kind.NAMESPACE: objects_pb2.NamespaceDef,
    Kind.TABLE: objects_pb2.TableDef,
    Kind.VIEW: objects_pb2.ViewDef,
    Kind.PIPELINE: objects_pb2.PipelineDef,
    Kind.TAG: objects_pb2.TagDef,
    Kind.BRANCH: objects_pb2.BranchDef,
    Kind.SUBSCRIPTION: objects_pb2.SubscriptionDef,
}


def _without_checksum(kind: Kind, data: bytes) -> bytes:
    message = _DEFINITIONS[kind].FromString(data)
    if "checksum" in message.DESCRIPTOR.fields_by_name:  # kinds that nothing writes yet have none
        message.ClearField("checksum")
    return bytes(message.SerializeToString(deterministic=True))


class DefinitionTarget(Target):
    """Stored definitions of every kind; the first byte is the kind."""

    name = "definition"
    weight = 4.0
    memory = 384 * MIB

    def seeds(self) -> list[bytes]:
        rng = random.Random(1)
        seeds = list(lakes().definitions)
        for kind, message_type in _DEFINITIONS.items():
            seeds += [
                bytes([kind]) + random_message(message_type, rng).SerializeToString(deterministic=True)
                for _ in range(6)
            ]
        return [seed[:1] + _without_checksum(Kind(seed[0]), seed[1:]) for seed in seeds]

    def make(self, rng: random.Random) -> bytes:
        seed = rng.choice(self.whole())
        descriptor = _DEFINITIONS[Kind(seed[0])].DESCRIPTOR
        mutated = mutate_message(seed[1:], descriptor, rng, self.whole())
        if rng.random() < 0.25:  # a wrong checksum would hide all other faults
            mutated = b"\xbd\x0c" + zlib.crc32(mutated).to_bytes(4, "little") + mutated
        return seed[:1] + mutated

    def allows(self, error: Exception) -> bool:
        reserved = isinstance(error, InvalidInput) and error.kind == "not_supported"
        return super().allows(error) or reserved

    def run(self, data: bytes) -> None:
        kind = Kind(data[0]) if data and data[0] in _DEFINITIONS else Kind.TABLE
        value = decode_definition(kind, data[1:], "def/x")
        require(value.id, "an id")
        require(len(data) - 1 <= MIB, "at most 1 MiB")
        if isinstance(value, ViewDef):
            return
        if isinstance(value, TableDef):
            ids = [column.id for column in objects.walk_columns(value.columns)]
            require(
                len(set(ids)) == len(ids) and all(0 < n < value.next_column_id for n in ids), "column ids"
            )
            for segment in value.segments:
                require(safe_path(segment.path) and value.id in segment.path, f"a path: {segment.path!r}")
            if not value.native:
                value = msgspec.structs.replace(value, columns=())
        try:
            again = encode_definition(value)
        except InvalidInput as error:
            require(error.kind == "too_large" and len(data) > MIB // 8, str(error))
            return
        other = decode_definition(kind, again, "def/x")
        # A map entry with an unknown field is stored whole among the unknown fields, with its own maps in any order.
        require(len(other.unknown) == len(value.unknown), "unknown fields are kept")
        known = [msgspec.structs.replace(each, unknown=b"") for each in (value, other)]
        require(known[0] == known[1], "a definition encodes as it was read")


class PredicateTarget(Target):
    """Stored predicates."""

    name = "predicate"
    weight = 1.5
    memory = 64 * MIB

    def seeds(self) -> list[bytes]:
        rng = random.Random(3)
        predicates = [encode(random_predicate(rng, depth=depth)) for depth in range(5) for _ in range(8)]
        kind = objects_pb2.Predicate
        for predicate in predicates:  # before the forks: Arrow's first kernel takes a second
            self.run(predicate)
        return [
            *predicates,
            *(random_message(kind, rng).SerializeToString(deterministic=True) for _ in range(6)),
        ]

    def make(self, rng: random.Random) -> bytes:
        kind = objects_pb2.Predicate.DESCRIPTOR
        return mutate_message(rng.choice(self.whole()), kind, rng, self.whole())

    def run(self, data: bytes) -> None:
        predicate = decode(data, "def/x")
        require(len(data) <= 64 << 10, "at most 64 KiB")
        check(predicate)
        require(decode(encode(predicate)) == predicate, "a predicate encodes as it was read")
        require(text(predicate), "it has a text")
        columns = columns_of(predicate)
        if any(int(column.properties.get("length", 1)) > 64 for column in columns):
            return  # rows would take as much space
        rows = random_rows(random.Random(len(data)), columns, 3)
        arrays = {column.id: array_of(column, rows) for column in columns}
        for column in columns:
            require(column.id > 0 and not column.children(), "columns are leaves")
            absent(column, 1)
        found = evaluate(predicate, arrays, 3).to_pylist()
        require(found == [truth(predicate, row) for row in rows], "it is on rows what it means")
        verdict = judge(predicate, file_of(random.Random(len(data)), columns, rows))
        wrong = {Verdict.NEVER: True, Verdict.ALWAYS: False, Verdict.MAYBE: "none"}[verdict]
        require(wrong not in found, "it is judged right on files")


class DistributedTransactionTarget(Target):
    """Saved distributed transactions of other writers. No gate uses them yet, so the message itself must refuse bad
    input."""

    name = "dtxn"
    weight = 0.5

    def seeds(self) -> list[bytes]:
        rng = random.Random(2)
        kind = objects_pb2.DistributedTransactionDef
        return [*DTXN, *(random_message(kind, rng).SerializeToString(deterministic=True) for _ in range(5))]

    def make(self, rng: random.Random) -> bytes:
        kind = objects_pb2.DistributedTransactionDef.DESCRIPTOR
        return mutate_message(rng.choice(self.whole()), kind, rng, self.whole())

    def run(self, data: bytes) -> None:
        message = read(objects_pb2.DistributedTransactionDef, data)
        for path in (message.beginning_root_node_file_path, message.running_root_node_file_path):
            require(safe_path(fmt.check_root_pointer(path)), f"a path: {path!r}")

    def allows(self, error: Exception) -> bool:
        return isinstance(error, Corrupt | InvalidInput)


# --- manifests and footers -------------------------------------------------------------------------


class ManifestTarget(ArrowTarget):
    name = "manifest"
    weight = 2.0

    def seeds(self) -> list[bytes]:
        return segment_files()

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.7:
            return super().make(rng)
        table = pa.ipc.open_file(rng.choice(self.whole())).read_all()
        columns = [column.to_pylist() for column in table.columns]
        for _ in range(rng.choice((1, 1, 2, 4))):
            column = rng.choice(columns)
            place = rng.randrange(len(column))
            column[place] = mutated_cell(column[place], rng)
        try:
            arrays = [pa.array(each, field.type) for each, field in zip(columns, table.schema, strict=True)]
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            return super().make(rng)
        return arrow_file(pa.record_batch(arrays, schema=table.schema))

    def run(self, data: bytes) -> None:
        files = manifest.decode_segment(data, "manifest/x", table_id=TABLE)
        require(files, "files")
        for file in files:
            require(safe_path(file.path) and TABLE in file.path, f"a path: {file.path!r}")
        again = manifest.encode_segment(files, table_id=TABLE, schema_id=0)
        require(manifest.decode_segment(again, "again", table_id=TABLE) == files, "written as read")


def mutated_cell(value: Any, rng: random.Random) -> Any:
    """Return another value of about the same type: null, extreme, hostile, repeated, or out of order."""
    if rng.random() < 0.15:
        return None
    match value:
        case str():
            return hostile_text(rng, value)
        case int() | None:
            return rng.choice((0, 1, -1, 2, 7, 8, 900, 901, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)))
        case bytes():
            return rng.choice((b"", b"\xff", value * 2, value[:-1]))
        case list() if value:
            place = rng.randrange(len(value))
            other = list(value)
            match rng.randrange(4):
                case 0:
                    other.insert(place, value[rng.randrange(len(value))])
                case 1:
                    del other[place]
                case 2:
                    other.reverse()
                case _:
                    other[place] = mutated_cell(value[place], rng)
            return other
        case dict():
            name = rng.choice(list(value))
            return value | {name: mutated_cell(value[name], rng)}
    return rng.choice((None, [], [1], [{"id": 0, "value_count": 0}], [{"id": 1, "value": None}]))


class FooterTarget(Target):
    """Parquet footers, as a commit of files that Spark wrote reads them."""

    name = "footer"
    weight = 1.0
    memory = 160 * MIB
    path = f"data/{TABLE}/{TABLE}/{TABLE}/part-0.parquet"

    def seeds(self) -> list[bytes]:
        return footer_files()

    def make(self, rng: random.Random) -> bytes:
        data = bytearray(rng.choice(self.whole()))
        footer = int.from_bytes(data[-8:-4], "little")
        for _ in range(rng.choice((1, 1, 2, 3))):
            if len(data) > footer + 12 and rng.random() < 0.85:
                place = len(data) - 8 - rng.randrange(footer)
                width = rng.choice((1, 1, 1, 2, 5))
                now = int.from_bytes(data[place : place + width], "little")
                data[place : place + width] = extreme(rng, width, now, len(data)).to_bytes(width, "little")
            else:
                mutate_bytes(data, rng, self.whole())
        return bytes(data)

    def run(self, data: bytes) -> None:
        metadata = read_footer(io.BytesIO(data), self.path)
        file = data_file_of_footer(self.path, len(data), metadata, footer_columns())
        require(not manifest.flaw_of(file, TABLE), "a file that a segment can list")
        table = TableDef(id=TABLE, columns=footer_columns(), next_column_id=99)
        require(
            not footer_differences(file, len(data), metadata, table),
            "an entry that says what its footer says",
        )
        again = manifest.encode_segment([file], table_id=TABLE, schema_id=0)
        manifest.decode_segment(again, "again", table_id=TABLE)

    def allows(self, error: Exception) -> bool:
        return isinstance(error, InvalidInput) and error.kind in ("bad_data", "bad_schema")


class RowsTarget(FooterTarget):
    """Data files of a native table, as its rows are read: pages, levels and the Arrow schema in the footer."""

    name = "rows"
    weight = 0.5
    memory = 256 * MIB

    def run(self, data: bytes) -> None:
        data = data or b"\0"
        file = data_file.DataFile(path=self.path, row_count=FOOTER_ROWS, size_bytes=len(data))
        path = fmt.manifest_path(TABLE, TABLE)
        stored, segment = manifest.segment_of([file], path=path, table_id=TABLE, schema_id=0)
        segments = (msgspec.structs.replace(segment, sequence=1),)
        table = TableDef(id=TABLE, columns=footer_columns(), next_column_id=99, segments=segments, sequence=1)
        storage = storage_of({self.path: data, path: stored})
        found = run(scan_of(storage, table, run(list_files(storage, table))).to_arrow())
        found.validate(full=True)
        require(found.num_rows == FOOTER_ROWS, "all rows")
        require(found.schema.names == [column.name for column in footer_columns()], "all columns")

    def allows(self, error: Exception) -> bool:
        return isinstance(error, Corrupt)


# --- texts -----------------------------------------------------------------------------------------


class TextTarget(Target):
    """Texts through every gate that takes text: names, keys, pointers, tokens, file names, hints."""

    name = "text"
    weight = 2.0

    def seeds(self) -> list[bytes]:
        keys = fmt.Keys()
        names = [
            fmt.table_name("ns", "t"),
            fmt.table_name("é", "名𝄞"),
            fmt.namespace_name("n"),
            fmt.pipeline_name("p"),
        ]
        texts = [dialect.key(name) for name in names for dialect in (keys, keys.other_padding())]
        texts += ["table", "12", "4294967295", "node/00000000-0000-4000-8000-000000000001.arrow",
                  "def/table/00000000-0000-4000-8000-000000000001-ns-t.binpb", fmt.version_file(5, 32),
                  fmt.version_file(6, 64), f"manifest/{TABLE}/{TABLE}.arrow", f"action/{TABLE}.binpb",
                  f"data/{TABLE}/{TABLE}/{TABLE}/part-0.parquet", f"{TABLE}.5.{TABLE}",
                  f"{TABLE}.5.sha256-" + "0" * 32]  # fmt: skip
        return [text.encode() for text in texts]

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            data = bytearray(rng.choice(self.whole()))
            mutate_bytes(data, rng, self.whole())
            return bytes(data)
        text: str | None = rng.choice(self.whole()).decode()
        for _ in range(rng.choice((1, 1, 2, 3))):
            text = hostile_text(rng, text)
        return (text or "").encode("utf-8", "surrogatepass")

    def run(self, data: bytes) -> None:
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        self._names(text)
        self._pointers(text)
        with_refusal(InvalidInput, lambda: parse_token(text))
        hint = run(Log(storage_of({fmt.LATEST_HINT: data}), 32).hint(fmt.LATEST_HINT))
        require(hint is None or 0 <= hint < 1 << 32, "a hint is a version")

    def _names(self, text: str) -> None:
        for creating in (False, True):
            if with_refusal(InvalidInput, lambda c=creating: fmt.check_name(text, 100, "table", creating=c)):  # type: ignore[misc]
                require(0 < len(text.encode()) <= 100, "a name has its size")
                require(not any(ord(c) <= 0x20 or ord(c) == 0x7F for c in text), "a name has no controls")
                require(not creating or not set(text) & set("*?%/\\"), "a new name is no glob and no path")
        try:
            text.encode()
        except UnicodeEncodeError:
            return  # no stored key has a lone surrogate: the gate of nodes refuses it
        keys = fmt.Keys()
        if name := with_refusal(Corrupt, lambda: keys.parse(text)):
            require(text in (keys.key(name), keys.other_padding().key(name)), "a name gives its key back")

    def _pointers(self, text: str) -> None:
        gates: list[Callable[[], object]] = [
            lambda: fmt.check_node_pointer(text),
            lambda: fmt.check_root_pointer(text),
            lambda: fmt.check_action_pointer(text),
            lambda: fmt.check_manifest_pointer(text, TABLE),
            lambda: fmt.parse_data_path(text),
            lambda: fmt.parse_version_file(text),
            *(lambda kind=kind: fmt.check_definition_pointer(text, kind) for kind in Kind),  # type: ignore[misc]
        ]
        for gate in gates:
            if with_refusal(Corrupt, gate) is not None:
                require(safe_path(text), f"a path: {text!r}")

    def allows(self, error: Exception) -> bool:
        return False


def with_refusal(refusal: type[AlpheusError], gate: Callable[[], T]) -> T | None:
    """Return the gate's result, or None if the gate refuses with the allowed error."""
    try:
        return gate()
    except refusal:
        return None


# --- messages of the service -----------------------------------------------------------------------


class MessageTarget(Target):
    """Requests as the daemon takes them and answers as the client does; the first byte is the message."""

    name = "message"
    weight = 3.0
    memory = 256 * MIB
    kinds: ClassVar[list[tuple[Any, Callable[[Any], object]]]] = [
        (service_pb2.CommitRequest, wire.decode_transaction_request),
        (service_pb2.EventsRequest, wire.decode_events_request),
        (service_pb2.VersionRef, wire.decode_at),
        (service_pb2.ObjectName, wire.decode_name),
        (service_pb2.GetInfoResponse, wire.decode_info),
        (service_pb2.LoadResponse, wire.decode_loaded),
        (service_pb2.ListResponse, wire.decode_page),
        (service_pb2.CommitResponse, lambda m: wire.decode_committed(m, "id")),
        (service_pb2.GetOutcomeResponse, lambda m: wire.decode_outcome(m, "id")),
        (service_pb2.EventMessage, wire.decode_event),
        (service_pb2.LogResponse, wire.decode_log_entry),
        (service_pb2.CheckResponse, wire.decode_check),
        (service_pb2.ResolveResponse, wire.decode_version_info),
        (service_pb2.SnapshotResponse, wire.decode_part),
    ]

    def seeds(self) -> list[bytes]:
        rng = random.Random(3)
        seeds = [b"\0" + request for request in lakes().requests]
        for index, (message_type, _) in enumerate(self.kinds):
            seeds += [
                bytes([index]) + random_message(message_type, rng).SerializeToString(deterministic=True)
                for _ in range(4)
            ]
        return [*seeds, bytes([255]) + errors.error_detail(NotFound("x", hint="y", path="z", version=3))]

    def make(self, rng: random.Random) -> bytes:
        seed = rng.choice(self.whole())
        message_type = service_pb2.ErrorDetail if seed[0] == 255 else self.kinds[seed[0]][0]
        return seed[:1] + mutate_message(seed[1:], message_type.DESCRIPTOR, rng, self.whole())

    def run(self, data: bytes) -> None:
        if not data or data[0] >= len(self.kinds):
            require(isinstance(errors.error_of_detail(data[1:]), AlpheusError), "any bytes become an error")
            return
        message_type, decode = self.kinds[data[0]]
        value = decode(read(message_type, data[1:]))
        if data[0] == 0:
            assert isinstance(value, actions.Transaction)
            again = wire.decode_transaction_request(wire.encode_transaction_request(value))
            require(again == value, "a request encodes as it was read")
            require(len(operation_messages.operations_digest(value.operations)) == 32, "a digest")

    def allows(self, error: Exception) -> bool:
        return isinstance(error, InvalidInput | Corrupt)


class CommitTarget(Target):
    """Requests that are executed. Each must be refused, or committed so that `check` finds nothing."""

    name = "commit"
    weight = 0.25
    memory = 256 * MIB

    def seeds(self) -> list[bytes]:
        return lakes().requests

    def make(self, rng: random.Random) -> bytes:
        kind = service_pb2.CommitRequest.DESCRIPTOR
        return mutate_message(rng.choice(self.whole()), kind, rng, self.whole())

    def run(self, data: bytes) -> None:
        weigh(service_pb2.CommitRequest, data)
        transaction = transaction_of(data)
        require(transaction_of(data, in_pieces=True) == transaction, "in pieces it is the same")
        run(self._commit(transaction))

    async def _commit(self, transaction: actions.Transaction) -> None:
        lake = Lake(storage=MemoryStorage())
        lake.clock.millis = lakes().millis
        for path, stored in lakes().catalogs[0].items():
            await lake.storage.put(path, stored)
        journal = await lake.open()
        try:
            await journal.commit(transaction)
            async for finding in journal.check(after=journal.head.version - 1):
                require(not isinstance(finding, Finding), f"a commit that check does not like: {finding}")
        finally:
            await journal.close()

    def allows(self, error: Exception) -> bool:
        return isinstance(error, AlpheusError) and not isinstance(error, Corrupt)


# --- whole catalogs --------------------------------------------------------------------------------


class CatalogTarget(Target):
    """Catalogs with one to four damaged files are opened, scanned, replayed and checked. An input is MessagePack of
    path to bytes."""

    name = "catalog"
    weight = 0.15
    memory = 256 * MIB

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Anatomy, list[Row]]] = {}

    def seeds(self) -> list[bytes]:
        return [msgspec.msgpack.encode(files) for files in lakes().catalogs]

    def make(self, rng: random.Random) -> bytes:
        files = dict(rng.choice(lakes().catalogs))
        for _ in range(rng.choice((1, 1, 2, 4))):
            path = rng.choice(list(files))
            choice = rng.random()
            if choice < 0.05:
                del files[path]
                if not files:
                    break
            elif choice < 0.1:
                files[path] = files[rng.choice(list(files))]
            else:
                files[path] = self._mutated(path, files[path], rng, list(files.values()))
        return msgspec.msgpack.encode(files)

    def _mutated(self, path: str, data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        if path.startswith(("def/", "action/")):
            kinds = {
                "catalog": Kind.CATALOG,
                "ns": Kind.NAMESPACE,
                "table": Kind.TABLE,
                "pipeline": Kind.PIPELINE,
            }
            kind = kinds.get(path.split("/")[1])
            message = actions_pb2.ActionDef if kind is None else _DEFINITIONS[kind]
            return mutate_message(data, message.DESCRIPTOR, rng, others)
        if path.startswith(("vn/", "node/", "manifest/")) and data[:6] == b"ARROW1" and rng.random() < 0.9:
            if not self._known:
                for seed in {each for files in lakes().catalogs for each in files.values()}:
                    self._known[seed] = dissected(seed)
            # A file that is already damaged is changed without its structure: reading it here would need the tested
            # gates.
            parts, rows = self._known.get(data, (Anatomy([], []), []))
            if rows and rng.random() < 0.6:
                return file_of_rows(mutate_rows(rows, rng, [rows]))
            return mutate_arrow(data, parts, rng, others)
        changed = bytearray(data)
        mutate_bytes(changed, rng, others)
        return bytes(changed)

    def run(self, data: bytes) -> None:
        files: dict[str, bytes] = msgspec.msgpack.decode(data, type=dict[str, bytes])
        run(self._read(storage_of(files)))

    async def _read(self, storage: MemoryStorage) -> None:
        lake = Lake(storage=storage)
        journal = await lake.open()
        damage: list[Exception] = []
        try:
            found = 0
            async for finding in journal.check():
                found += isinstance(finding, Finding)
            folded: dict[str, str] = {}
            try:
                for version in range(journal.head.version + 1):
                    event = await journal.event(version, details=True)
                    for change in event.changes:
                        folded.pop(str(change.name), None)
                        if change.path_after:
                            folded[str(change.name)] = change.path_after
            except AlpheusError as error:
                damage.append(error)
            state = await journal.load_state()
            if not damage:
                scanned = {str(state.keys.parse(key)): path for key, path in state.entries()}
                scanned[str(fmt.CATALOG)] = journal.head.catalog_def
                require(scanned == folded, "the events add up to the tree")
        finally:
            await journal.close()
        if damage:
            raise damage[0]

    def allows(self, error: Exception) -> bool:
        if isinstance(error, NotFound | InvalidInput):
            return error.kind in ("no_catalog", "newer_format", "two_histories", "not_supported")
        return isinstance(error, Corrupt | Expired)


def dissected(data: bytes) -> tuple[Anatomy, list[Row]]:
    try:
        return anatomy(data), rows_of(data)
    except (pa.ArrowException, ValueError, OSError):
        return anatomy(data), []


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        NodeTarget(), RootTarget(), TombstoneTarget(), ActionTarget(), ExternalTarget(),
        DefinitionTarget(), PredicateTarget(), DistributedTransactionTarget(), ManifestTarget(), RowsTarget(),
        FooterTarget(), TextTarget(), MessageTarget(), CommitTarget(), CatalogTarget(),
    )
}  # fmt: skip

__all__ = ["TARGETS", "Flaw", "Lakes", "Path", "Target"]
