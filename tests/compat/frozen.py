"""Frozen catalogs, a folder each with `catalog.tar.gz` and `expected.json`. The files are written once."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from alpheus_journal.storage import Storage
from alpheus_journal.testing import listed

HERE = Path(__file__).parent

Files = dict[str, bytes]
Described = dict[str, Any]  # of JSON


async def files_of(storage: Storage) -> Files:
    return {path: await storage.read(path, size_max=1 << 30) for path in sorted(await listed(storage, ""))}


def pack(files: Files, below: str = "") -> bytes:
    """Return a tar.gz without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(below + path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def freeze(
    target: Path,
    catalogs: Mapping[str, Callable[[], Coroutine[Any, Any, tuple[Files, Described]]]],
    *,
    below: str = "",
) -> None:
    """Write each catalog whose folder in `target` does not exist. Existing folders stay as they are."""
    for name, make in catalogs.items():
        folder = target / name
        if folder.exists():
            print(f"{folder} is there and stays as it is")
            continue
        files, expected = asyncio.run(make())
        folder.mkdir()
        (folder / "catalog.tar.gz").write_bytes(pack(files, below))
        text = json.dumps(expected, ensure_ascii=False, indent=1, sort_keys=True)
        (folder / "expected.json").write_text(text + "\n")
        digest = hashlib.sha256(b"".join(files[path] for path in sorted(files))).hexdigest()
        print(f"{folder}: {len(files)} files, sha256 {digest[:16]}")


def thaw(name: str) -> tuple[Files, Described]:
    """Return the files of a catalog beside this file, and the contents that they must give."""
    files: Files = {}
    with tarfile.open(HERE / name / "catalog.tar.gz") as archive:
        for member in archive.getmembers():
            data = archive.extractfile(member)
            assert data is not None
            files[member.name] = data.read()
    return files, json.loads((HERE / name / "expected.json").read_text())
