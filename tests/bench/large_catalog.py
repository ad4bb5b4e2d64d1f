"""A catalog of any size and age on a disk, made in seconds by writing nodes, slots and a checkpoint as files.

Definitions are not written, because a million files would take most of the time and the space. A process that starts
from a checkpoint reads no definition except a sample of four, which finds nothing and proves nothing here. Slots
between the first version and the last ones are hard links of one root. They are looked for and not read.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

from alpheus_journal import format as fmt
from alpheus_journal.format import Key, NodePath
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import Column, TableDef
from alpheus_journal.replay.checkpoint import Facts, checkpoint_path, encode_checkpoint
from alpheus_journal.replay.flat import FlatBuilder, pack
from alpheus_journal.storage import open_storage
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node, encode_node

ORDER = fmt.ORDER_DEFAULT
LINKS_MAX = 50_000
MILLIS = 1_700_000_000_000


def table_keys(count: int) -> list[Key]:
    """Return keys of `count` tables, 1,000 for each namespace, ascending."""
    keys = fmt.Keys()
    return [keys.key(fmt.table_name(f"ns{n // 1000:06}", f"table{n % 1000:04}")) for n in range(count)]


def definition() -> bytes:
    columns = (Column(id=1, name="id", type="INT8"), Column(id=2, name="amount", type="FLOAT8"))
    return encode_definition(
        TableDef(id=str(uuid.UUID(int=1, version=4)), native=True, columns=columns, next_column_id=3)
    )


class LargeCatalog:
    """A catalog in `folder` that `age` gives any number of versions and a checkpoint."""

    def __init__(self, folder: Path, *, objects: int, changes: int = 100) -> None:
        self.folder, self.objects, self.changes = folder, objects, changes
        self._rng = random.Random(7)
        self.url = f"file://{folder}"

    def make(self) -> None:
        journal = asyncio.run(self._create())
        self._catalog_id, self._catalog_def, self._catalog_bytes = journal
        keys = table_keys(self.objects)
        values = [self._path(key) for key in keys]
        new_path = self._paths()
        applied = tree.build(zip(keys, values, strict=True), order=ORDER, new_path=new_path)
        self._root, self._nodes = applied.root, dict(applied.created)
        self._write(applied.created)
        builder, data = FlatBuilder(), definition()
        builder.extend((pack(key), StoredObject(path, data)) for key, path in zip(keys, values, strict=True))
        self._flat = builder.build()
        changed = {key: self._path(key) for key in self._rng.sample(keys, self.changes)}
        after = tree.run(
            tree.apply(self._root, changed, order=ORDER, new_path=new_path),
            lambda wanted: {path: self._nodes[path] for path in wanted},
        )
        self._write(after.created)
        self._newest = after.root
        for path in changed.values():
            self._put(path, data)

    async def _create(self) -> tuple[str, str, bytes]:
        storage = open_storage(str(self.folder), create=True)
        journal = await Journal.create(storage)
        (stored,) = (await journal.load(None, [fmt.CATALOG])).objects
        assert stored is not None
        found = journal.catalog_id, stored.path, stored.definition
        await journal.close()
        return found

    def age(self, versions: int, *, checkpoint: bool = True) -> None:
        """Make `versions` the newest version, and store a checkpoint of the version before it."""
        for old in self.folder.glob("checkpoint/*"):
            old.unlink()
        filler = self._slot(versions - 1, self._root)
        for version in range(1, versions - 1):
            path = self.folder / fmt.version_file(version, 32)
            if not path.exists():
                if version % LINKS_MAX == 0:
                    (self.folder / "filler").unlink()
                    (self.folder / "filler").write_bytes(filler)
                elif not (self.folder / "filler").exists():
                    (self.folder / "filler").write_bytes(filler)
                os.link(self.folder / "filler", path)
        for version, root in ((versions - 1, self._root), (versions, self._newest)):
            path = self.folder / fmt.version_file(version, 32)
            path.unlink(missing_ok=True)
            path.write_bytes(self._slot(version, root))
        self._put(fmt.LATEST_HINT, str(versions).encode())
        if checkpoint:
            facts = Facts(
                catalog_id=self._catalog_id, version=versions - 1, commit_id=self._commit_id(versions - 1),
                created_at_millis=MILLIS, version_created_at_millis=MILLIS + versions - 1,
                catalog_def=self._catalog_def, catalog_def_bytes=self._catalog_bytes, objects=len(self._flat),
            )  # fmt: skip
            path = checkpoint_path(versions - 1, 32, str(uuid.UUID(int=versions, version=4)))
            self._put(path, encode_checkpoint(self._flat, facts))

    def _commit_id(self, version: int) -> str:
        return str(uuid.UUID(int=version, version=4))

    def _slot(self, version: int, root: Node) -> bytes:
        system = {
            fmt.ROW_CATALOG_DEF: self._catalog_def, fmt.ROW_PREVIOUS_ROOT: fmt.version_file(version - 1, 32),
            fmt.ROW_COMMIT_ID: self._commit_id(version), fmt.ROW_VERSION: str(version), fmt.ROW_FORMAT_REVISION: "1",
        }  # fmt: skip
        return encode_node(
            root, order=ORDER, created_at_millis=MILLIS + version, size_max=1 << 20, system=system
        )

    def _path(self, key: Key) -> str:
        name = fmt.Keys().parse(key)
        return fmt.definition_path(name, str(uuid.UUID(int=self._rng.getrandbits(128), version=4)))

    def _paths(self) -> Iterator[NodePath] | object:
        return lambda: fmt.node_path(str(uuid.UUID(int=self._rng.getrandbits(128), version=4)))

    def _write(self, nodes: dict[NodePath, Node]) -> None:
        for path, node in nodes.items():
            self._put(path, encode_node(node, order=ORDER, created_at_millis=MILLIS, size_max=1 << 20))

    def _put(self, path: str, data: bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
