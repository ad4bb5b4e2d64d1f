"""Files that nothing refers to are deleted, or their place is told."""

from __future__ import annotations

import asyncio
import logging

import pytest

from alpheus.spark.files.scratch import delete_scratch
from alpheus_journal.errors import Denied
from alpheus_journal.storage.memory import MemoryStorage


class Keeping(MemoryStorage):
    """A store that forbids deleting what is named `kept`."""

    async def delete(self, path: str) -> None:
        if "kept" in path:
            raise Denied("not allowed")
        await super().delete(path)


def test_what_cannot_be_deleted_is_told(caplog: pytest.LogCaptureFixture) -> None:
    storage = Keeping()
    paths = ["data/a", "data/kept-1", "data/b", "data/kept-2"]
    for path in paths:
        asyncio.run(storage.put(path, b""))
    with caplog.at_level(logging.WARNING):
        delete_scratch(storage, paths)
    for path in ("data/a", "data/b"):
        with pytest.raises(Exception, match=path):
            asyncio.run(storage.read(path, size_max=1))
    assert asyncio.run(storage.read("data/kept-1", size_max=1)) == b""
    assert "2 scratch files are left behind" in caplog.text
    assert "data/kept-1: not allowed" in caplog.text


def test_nothing_is_told_when_all_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    delete_scratch(MemoryStorage(), [])
    delete_scratch(MemoryStorage(), ["data/gone"])
    assert caplog.text == ""
