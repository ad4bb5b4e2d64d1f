"""`make_durable`, for files that another program wrote into a directory store."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alpheus_journal.errors import Corrupt, InvalidInput, NotFound, Unavailable
from alpheus_journal.storage.local import LocalStorage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.storage.posix import Syscalls


class Synced(Syscalls):
    """Record which paths are fsynced. `fault` is a path and the errno of its fsync."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.fault: tuple[str, int] | None = None

    def fsync(self, fd: int, path: str) -> None:
        if self.fault is not None and self.fault[0] == path:
            raise OSError(self.fault[1], os.strerror(self.fault[1]))
        super().fsync(fd, path)
        self.paths.append(path)


@pytest.fixture
def system() -> Synced:
    return Synced()


@pytest.fixture
async def storage(tmp_path: Path, system: Synced) -> AsyncIterator[LocalStorage]:
    storage = await asyncio.to_thread(LocalStorage, str(tmp_path), system=system)
    yield storage
    await storage.close()


def written(tmp_path: Path, *paths: str) -> list[str]:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"rows")
    return list(paths)


async def test_contents_then_every_entry_that_leads_to_them(
    storage: LocalStorage, system: Synced, tmp_path: Path
) -> None:
    await storage.make_durable([])
    assert system.paths == []
    await storage.put("other", b"")  # the first steps of the store itself
    system.paths.clear()
    await storage.make_durable(
        written(tmp_path, "data/t/x/a.parquet", "data/t/x/b.parquet", "data/t/y/c.parquet")
    )
    files, folders = system.paths[:3], system.paths[3:]
    assert files == ["data/t/x/a.parquet", "data/t/x/b.parquet", "data/t/y/c.parquet"]
    assert set(folders) == {"", "data", "data/t", "data/t/x", "data/t/y"}
    assert folders.index("data/t/x") > folders.index("")

    system.paths.clear()
    await storage.make_durable(written(tmp_path, "data/t/x/d.parquet"))
    assert system.paths == ["data/t/x/d.parquet", "data/t/x"], "the folders above are durable already"


async def test_what_is_not_there_or_no_file(storage: LocalStorage, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"data/a\.parquet"):
        await storage.make_durable(["data/a.parquet"])
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.parquet").symlink_to("/etc/passwd")
    with pytest.raises(Corrupt, match="symbolic link"):
        await storage.make_durable(["data/a.parquet"])
    with pytest.raises(InvalidInput):
        await storage.make_durable(["../a.parquet"])


@pytest.mark.parametrize("path", ["data/t/a.parquet", "data/t", "data", ""])
async def test_a_failed_fsync_is_never_repeated(
    path: str, storage: LocalStorage, system: Synced, tmp_path: Path
) -> None:
    await storage.put("other", b"")
    paths = written(tmp_path, "data/t/a.parquet")
    system.fault = (path, errno.EIO)
    with pytest.raises(Unavailable):
        await storage.make_durable(paths)
    system.fault = None
    with pytest.raises(Unavailable) as caught:
        await storage.make_durable(paths)
    assert caught.value.kind == "storage_read_only"


async def test_memory_has_nothing_to_do() -> None:
    await MemoryStorage().make_durable(["data/a.parquet"])
