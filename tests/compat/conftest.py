"""Fixtures with catalogs that other programs and earlier revisions wrote, unpacked, and their known contents."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_pb.v1 import objects_pb2 as pb

HERE = Path(__file__).parent
ORACLE = os.environ.get("ALPHEUS_OLYMPIA_ORACLE", "")

CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Described = dict[str, Any]


def java_reader() -> str:
    if ORACLE:
        return f"Java reader: {ORACLE}"
    return "Java reader: NOT RUN, set ALPHEUS_OLYMPIA_ORACLE to the jar that prints what the Java SDK sees"


def pytest_report_header() -> str:
    return java_reader()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which Java reader is used. In a run of all tests this file is loaded too late for the head of the
    report."""
    terminalreporter.write_line(java_reader())


class Golden(msgspec.Struct, frozen=True):
    """One catalog as its writer left it. All tests share `root`, so it is only read."""

    name: str
    root: Path
    expected: Described

    @property
    def head(self) -> int:
        head: int = self.expected["head_version"]
        return head

    @property
    def sound(self) -> range:
        """Return the versions that are whole."""
        return range(
            {"x1-dangling-child": 6, "x3-sdk-commit-on-three-levels": 2}.get(self.name, self.head + 1)
        )

    def version(self, version: int) -> Described:
        """Return the system rows and objects of a version, as the Java SDK sees them."""
        described: Described = self.expected["versions"][str(version)]
        return described

    def objects(self, version: int) -> dict[ObjectName, str | None]:
        """Return every object of a version with the path of its definition. None: the writer lists the object and
        cannot look it up."""
        found: dict[ObjectName, str | None] = {}
        for namespace, content in self.version(version)["namespaces"].items():
            if self.name == "g6b-names-outside-the-rules" and namespace == "lead":
                # The SDK strips the leading space when it lists, and then finds nothing in the namespace.
                namespace = " lead"
                if version >= 9:
                    found[fmt.table_name(namespace, "t")] = None
                    found[fmt.table_name(namespace, "two  spaces")] = None
                content = {"def": None}
            found[fmt.namespace_name(namespace)] = content["def"]
            for kind, group in ((Kind.TABLE, "tables"), (Kind.VIEW, "views")):
                for name, path in content.get(group, {}).items():
                    found[ObjectName(kind, namespace, name)] = path
        return found

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


class Goldens:
    """`goldens[name]` unpacks a catalog on first use."""

    def __init__(self, folder: Path, unpacked: Path) -> None:
        self._folder = folder
        self._unpacked = unpacked
        self._known: dict[str, Golden] = {}

    def __getitem__(self, name: str) -> Golden:
        if name not in self._known:
            source, target = self._folder / name, self._unpacked / name
            if (source / "catalog").is_dir():
                shutil.copytree(source / "catalog", target / "catalog")
            else:
                with tarfile.open(source / "catalog.tar.gz") as archive:
                    archive.extractall(target, filter="data")
            expected = json.loads((source / "expected.json").read_text())
            self._known[name] = Golden(name, target / "catalog", expected)
        return self._known[name]


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Goldens:
    """Return the catalogs that the Java SDK wrote."""
    return Goldens(HERE / "olympia-java", tmp_path_factory.mktemp("olympia-java"))


@pytest.fixture(scope="session")
def own_goldens(tmp_path_factory: pytest.TempPathFactory) -> Goldens:
    """Return the catalogs that earlier revisions of this software wrote."""
    return Goldens(HERE, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def in_memory() -> Callable[[Golden], Awaitable[MemoryStorage]]:
    """Return a function that makes a writable copy in memory, without files whose names have control characters."""

    async def copy(golden: Golden) -> MemoryStorage:
        storage = MemoryStorage(name=golden.name)
        await storage.put_many(
            {path: data for path, data in golden.files().items() if not CONTROL.search(path)}
        )
        return storage

    return copy


@pytest.fixture
def on_disk(tmp_path: Path) -> Callable[[Golden], Path]:
    """Return a function that makes a writable copy in a folder."""

    def copy(golden: Golden) -> Path:
        return Path(shutil.copytree(golden.root, tmp_path / golden.name))

    return copy


@pytest.fixture(scope="session")
def described() -> Callable[[Kind, bytes], Described]:
    """Return a function that describes a stored definition as expected.json does."""
    return _described


def _described(kind: Kind, data: bytes) -> Described:
    if kind is Kind.CATALOG:
        catalog = pb.CatalogDef.FromString(data)
        sizes = (
            "order", "namespace_name_max_size_bytes", "table_name_max_size_bytes", "view_name_max_size_bytes",
            "node_file_max_size_bytes", "txn_ttl_millis",
        )  # fmt: skip
        return {
            "id": catalog.id,
            "major_version": catalog.major_version,
            **{field: getattr(catalog, field) for field in sizes},
            "properties": dict(catalog.properties),
            "txn_isolation_level": pb.IsolationLevel.Name(catalog.txn_isolation_level),
            "exported_snapshots": dict(catalog.exported_snapshots),
        }
    if kind is Kind.NAMESPACE:
        namespace = pb.NamespaceDef.FromString(data)
        return {"kind": "namespace", "id": namespace.id, "properties": dict(namespace.properties)}
    if kind is Kind.TABLE:
        table = pb.TableDef.FromString(data)
        return {
            "kind": "table",
            "id": table.id,
            "table_format": pb.TableFormat.Name(table.table_format),
            "properties": dict(table.properties),
            "iceberg_metadata_location": table.iceberg_metadata_location,
            "iceberg_previous_metadata_location": table.iceberg_previous_metadata_location,
        }
    view = pb.ViewDef.FromString(data)
    return {
        "kind": "view",
        "id": view.id,
        "view_format": pb.ViewFormat.Name(view.view_format),
        "schema_binding": view.schema_binding,
        "schema": [_column(column) for column in view.schema.columns],
        "default_namespace_name": view.default_namespace_name,
        "referenced_object_full_names": [
            [name.namespace_name, name.name] for name in view.referenced_object_full_names
        ],
        "properties": dict(view.properties),
        "substrait_read_rel_base64": base64.b64encode(view.substrait_read_rel).decode(),
    }


def _column(column: pb.Column) -> Described:
    found: Described = {
        "id": column.id,
        "name": column.name,
        "type": pb.DataType.Name(column.type),
        "nullable": column.nullable,
    }
    if column.properties:
        found["properties"] = dict(column.properties)
    if column.struct_fields:
        found["struct_fields"] = [_column(field) for field in column.struct_fields]
    for part in ("map_key", "map_value", "list_element"):
        if column.HasField(part):
            found[part] = _column(getattr(column, part))
    return found
