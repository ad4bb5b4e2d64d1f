"""A lake with many versions and data files on a disk, made in minutes by writing every file through the codecs.

Each version appends one segment of `files` empty data files to one table, as an append by a client does: the version
has a root with the recorded action, a new leaf and a new definition. Every OVERWRITTEN_EVERY-th change of a table is an
overwrite, which begins a new list of segments, so that versions that expire leave files that nothing reaches.
Nothing is synced, and every file is older than an hour.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.format import Key, NodePath
from alpheus_journal.journal import Journal
from alpheus_journal.log.version_bytes import encode_root
from alpheus_journal.log.versions import root_rows
from alpheus_journal.model.action_rows import encode_transaction
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Column, NamespaceDef, Segment, TableDef
from alpheus_journal.model.operations import Action, AppendFiles, OverwriteFiles, RecordedTransaction
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import encode_segment
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node, encode_node

OVERWRITTEN_EVERY = 16
TABLES_A_NAMESPACE = 100
COLUMNS = (Column(id=1, name="id", type="INT8"), Column(id=2, name="amount", type="FLOAT8"))
OLD_SECONDS = 7_200
_PLACEHOLDERS = tuple(str(uuid.UUID(int=number << 100, version=4)) for number in (1, 2, 3))
"""Stand for a table, a transaction and a write."""


class Made(NamedTuple):
    """How many files a lake has, slots and hints not counted, and how many of them are data files."""

    versions: int
    files: int
    data_files: int


class _Table(msgspec.Struct):
    key: Key
    name: fmt.ObjectName
    definition: TableDef
    path: str
    changes: int = 0


class AgedLake:
    """Writes the files of a lake through `put`, which is called with a path below the prefix and its bytes."""

    def __init__(self, *, tables: int, seed: int = 7) -> None:
        self._rng = random.Random(seed)
        self._tables_count = tables
        self._millis = int((time.time() - OLD_SECONDS) * 1000)
        self.files: dict[str, bytes] = {}
        """The files that were made since the caller last cleared them."""
        self.made = Made(0, 0, 0)
        self._templates: dict[int, bytes] = {}

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    async def begin(self, storage: Storage) -> None:
        """Create the catalog, and make version 1, which has the tables."""
        journal = await Journal.create(storage)
        head = journal.head
        (stored,) = (await journal.load(None, [fmt.CATALOG])).objects
        assert stored is not None
        self._catalog_id, self._catalog_def = journal.catalog_id, stored.path
        self._commit_id, self._version = head.commit_id, 0
        self._keys = journal.follower.reader.keys
        await journal.close()
        entries: dict[Key, str] = {}
        self._tables: list[_Table] = []
        for number in range(self._tables_count):
            namespace = f"ns{number // TABLES_A_NAMESPACE:04}"
            name = fmt.ObjectName(fmt.Kind.NAMESPACE, namespace)
            if self._keys.key(name) not in entries:
                entries[self._keys.key(name)] = self._define(name, NamespaceDef(id=self._uuid()))
            name = fmt.table_name(namespace, f"table{number % TABLES_A_NAMESPACE:03}")
            definition = TableDef(id=self._uuid(), columns=COLUMNS, next_column_id=3)
            table = _Table(self._keys.key(name), name, definition, self._define(name, definition))
            entries[table.key] = table.path
            self._tables.append(table)
        applied = tree.build(sorted(entries.items()), order=fmt.ORDER_DEFAULT, new_path=self._new_node)
        self._nodes = dict(applied.created)
        self._put_nodes(applied.created.items())
        self._put_root(applied.root, ())

    def _define(self, name: fmt.ObjectName, definition: TableDef | NamespaceDef) -> str:
        path = fmt.definition_path(name, self._uuid())
        self._put(path, encode_definition(definition))
        return path

    def _new_node(self) -> NodePath:
        return fmt.node_path(self._uuid())

    def _put(self, path: str, data: bytes) -> None:
        self.files[path] = data
        self.made = self.made._replace(files=self.made.files + 1)

    def _put_nodes(self, nodes: Iterable[tuple[NodePath, Node]]) -> None:
        for path, node in nodes:
            data = encode_node(
                node, order=fmt.ORDER_DEFAULT, created_at_millis=self._millis, size_max=1 << 20,
                system={fmt.ROW_CHECKSUM: ""},
            )  # fmt: skip
            self._put(path, data)

    def _put_root(self, root: Node, transactions: tuple[RecordedTransaction, ...]) -> None:
        self._root, before = root, self._version
        self._version += 1
        commit_id = self._uuid()
        system = root_rows(
            self._version, catalog_def=self._catalog_def, catalog_id=self._catalog_id, commit_id=commit_id,
            revision=2, previous=(fmt.version_file(before, 32), self._commit_id),
        )  # fmt: skip
        rows = [row for transaction in transactions for row in encode_transaction(transaction, self._keys)]
        self.files[fmt.version_file(self._version, 32)] = encode_root(
            root, rows, order=fmt.ORDER_DEFAULT, created_at_millis=self._millis + self._version,
            size_max=1 << 20, digits=32, system=system,
        )  # fmt: skip
        self._commit_id = commit_id
        self.made = self.made._replace(versions=self._version + 1)

    def append(self, files: int) -> None:
        """Make the next version."""
        table = self._rng.choice(self._tables)
        table.changes += 1
        transaction_id = str(
            uuid.UUID(int=(self._millis + self._version) << 80 | 7 << 76 | 2 << 62 | self._version)
        )
        table_id = table.definition.id
        folder = fmt.data_folder(table_id, transaction_id, self._uuid())
        path = fmt.manifest_path(table_id, self._uuid())
        data = self._template(files)
        for placeholder, text in zip(_PLACEHOLDERS, folder.split("/")[1:4], strict=True):
            data = data.replace(placeholder.encode(), text.encode())
        segment = Segment(
            path=path, file_count=files, row_count=1000 * files, size_bytes=100 * files,
            sha256=hashlib.sha256(data).digest(), segment_size_bytes=len(data),
        )  # fmt: skip
        self._put(path, data)
        for number in range(files):
            self._put(f"{folder}part-{number}.parquet", b"")
        self.made = self.made._replace(data_files=self.made.data_files + files)
        overwrites = table.changes % OVERWRITTEN_EVERY == 0
        self._change(table, segment, transaction_id, overwrites)

    def _template(self, files: int) -> bytes:
        """Return an encoded segment whose ids are placeholders of the same length."""
        if files not in self._templates:
            folder = fmt.data_folder(*_PLACEHOLDERS)
            listed = [
                DataFile(
                    path=f"{folder}part-{number}.parquet", row_count=1000, size_bytes=100,
                    value_counts={1: 1000, 2: 1000}, null_counts={1: 0, 2: 0},
                    lower_bounds={1: b"\0" * 8}, upper_bounds={1: b"\1" * 8},
                )
                for number in range(files)
            ]  # fmt: skip
            self._templates[files] = encode_segment(listed, table_id=_PLACEHOLDERS[0], schema_id=0)
        return self._templates[files]

    def _change(self, table: _Table, segment: Segment, transaction_id: str, overwrites: bool) -> None:
        sequence = table.definition.sequence + 1
        added = msgspec.structs.replace(segment, sequence=sequence)
        before = () if overwrites else table.definition.segments
        table.definition = msgspec.structs.replace(
            table.definition, segments=(*before, added), sequence=sequence
        )
        path_before, table.path = table.path, self._define(table.name, table.definition)
        applied = tree.run(
            tree.apply(self._root, {table.key: table.path}, order=fmt.ORDER_DEFAULT, new_path=self._new_node),
            lambda wanted: {path: self._nodes[path] for path in wanted},
        )
        for old in set(self._root.children) - set(applied.root.children):
            del self._nodes[old]
        self._nodes.update(applied.created)
        self._put_nodes(applied.created.items())
        kind = OverwriteFiles if overwrites else AppendFiles
        operation = kind(
            namespace=table.name.namespace,
            name=table.name.name,
            table_id=table.definition.id,
            segments=(segment,),
        )
        action = Action(
            type="TABLE_OVERWRITE" if overwrites else "TABLE_INSERT", name=table.name, operation=operation,
            path_before=path_before, path_after=table.path,
        )  # fmt: skip
        transaction = RecordedTransaction(
            id=transaction_id, operations_digest=b"\0" * 32, principal="bench", principal_authenticated=False,
            message="", properties={}, serializable=False, branch="", begin_version=self._version,
            committed_at_millis=self._millis + self._version, actions=(action,),
        )  # fmt: skip
        self._put_root(applied.root, (transaction,))

    def take(self) -> dict[str, bytes]:
        """Return the files that were made since the last call."""
        files, self.files = self.files, {}
        return files

    def hint(self) -> bytes:
        return str(self._version).encode()


def make_on_disk(folder: Path, *, versions: int, files: int, tables: int, seed: int = 7) -> Made:
    """Make a lake in `folder`, without syncs."""
    from alpheus_journal.storage import open_storage  # the driver of the folder alone

    lake = AgedLake(tables=tables, seed=seed)

    async def begin() -> None:
        storage = open_storage(str(folder), create=True)
        await lake.begin(storage)

    asyncio.run(begin())
    made: set[str] = set()
    for _ in range(versions):
        for path, data in lake.take().items():
            parent = path.rpartition("/")[0]
            if parent not in made:
                os.makedirs(folder / parent, exist_ok=True)
                if not parent.startswith("data/"):
                    made.add(parent)
            fd = os.open(f"{folder}/{path}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            if data:
                os.write(fd, data)
            os.close(fd)
        lake.append(files)
    for path, data in lake.take().items():
        os.makedirs((folder / path).parent, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / fmt.LATEST_HINT).write_bytes(lake.hint())
    return lake.made
