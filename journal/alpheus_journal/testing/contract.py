"""The contract of storage drivers, as a test suite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotFound,
)
from alpheus_journal.storage import ObjectInfo, OpenUpload, Storage, open_storage

_E = TypeVar("_E", bound=AlpheusError)

SIZE_MAX = 64 << 20


async def raises(expected: type[_E], call: Awaitable[object], *, kind: str = "") -> _E:
    """Return the error that `call` raises. Fail unless it is an `expected`, and of `kind` if that is given."""
    raised: _E | None = None
    try:
        await call
    except expected as error:
        raised = error
    assert raised is not None, f"no {expected.__name__} was raised"
    assert not kind or raised.kind == kind, f"kind {raised.kind!r}, expected {kind!r}: {raised}"
    return raised


async def listed(storage: Storage, prefix: str) -> dict[str, ObjectInfo]:
    """Return a complete listing. Fail if a path is listed twice."""
    found: dict[str, ObjectInfo] = {}
    async for info in storage.list(prefix):
        assert info.path not in found, f"{info.path} was listed twice"
        found[info.path] = info
    return found


BAD_PATHS = (
    "", "/", "/x", "x/", "a//b", ".", "..", "../x", "a/../b", "a/..", "./a", "a/./b", "a/.", "a\\b",
    "vn\\..\\x", "a\0b", "a\nb", "a\x1fb", "a\x7fb", "a/\ud800",
)  # fmt: skip
"""Paths that every driver must refuse."""

ODD_PATHS = (
    "def/ns/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-my name.binpb",
    "def/table/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-a%2Fb%-c?d#e*.binpb",
    "def/view/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-Überß/日本語-𝄞.binpb",
    "def/view/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-U\u0308-decomposed.binpb",
    "def/table/6f5c6a2e-0b0e-4d6a-9f6a-6d7a3a1f2b10-back\\slash.binpb",
    "def/table/...-..x-x..",
    "def/table/ leading and trailing ",
    "data/t/x/w/part-00000_a=1+b.parquet",
)
"""Paths that every driver must accept, because the Java SDK puts raw names into definition paths."""

ALIKE_PATHS = (
    ("data/t/a&amp;b", "data/t/a&b"),
    ("data/t/<a>", "data/t/&lt;a&gt;"),
    ("data/t/a+b", "data/t/a b"),
    ("data/t/a%20b", "data/t/a%2520b"),
    ("data/t/a%2Fb", "data/t/a/b"),
    ("data/t/ a ", "data/t/a_"),
    ("data/t/Ü-日本語-𝄞", "data/t/U\u0308-日本語-𝄞"),
    *((path, f"{path}-2") for path in ODD_PATHS if "\\" not in path),
)
"""Pairs of paths. A driver that escapes names wrongly takes one of a pair for the other."""


class StorageContract:
    """The suite that every driver must pass as a whole.

    A subclass makes a store and, if `open_storage` does not know its URLs, opens another store on the same files. It
    overrides nothing else. `has_tags` means that `stat` distinguishes files (`ObjectInfo.tag`).
    """

    has_tags = True

    async def make(self) -> Storage:
        """Make a store without files. The test closes the store."""
        raise NotImplementedError

    async def reopen(self, storage: Storage) -> Storage | None:
        """Open another store on the same files. Return None for a driver whose files exist in one object only."""
        return await asyncio.to_thread(open_storage, storage.url)

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[Storage]:
        storage = await self.make()
        try:
            yield storage
        finally:
            await storage.close()

    # -- create

    async def test_create_then_read(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"root")
            assert await storage.read("vn/000", size_max=4) == b"root"
            assert await storage.exists("vn/000")

    async def test_create_changes_nothing_when_taken(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"first")
            for data in (b"second", b"first", b""):
                error = await raises(AlreadyExists, storage.create("vn/000", data), kind="slot_taken")
                assert "vn/000" in str(error)
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"first"

    async def test_create_is_refused_over_a_put(self) -> None:
        async with self._store() as storage:
            await storage.put("vn/000", b"put")
            await raises(AlreadyExists, storage.create("vn/000", b"created"), kind="slot_taken")
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"put"

    async def test_one_of_racing_creators_wins(self) -> None:
        async with self._store() as storage:
            for slot in (f"vn/{number:03}" for number in range(8)):
                offers = [bytes([number]) * 20_000 for number in range(16)]
                results = await asyncio.gather(
                    *(storage.create(slot, data) for data in offers), return_exceptions=True
                )
                winners = [data for data, result in zip(offers, results, strict=True) if result is None]
                losers = [result for result in results if result is not None]
                assert len(winners) == 1, results
                assert all(isinstance(error, AlreadyExists) for error in losers), results
                assert await storage.read(slot, size_max=SIZE_MAX) == winners[0]

    async def test_absence_is_not_remembered(self) -> None:
        async with self._store() as storage:
            assert not await storage.exists("vn/001")
            await raises(NotFound, storage.read("vn/001", size_max=SIZE_MAX), kind="no_file")
            await storage.create("vn/001", b"now")
            assert await storage.exists("vn/001")
            assert await storage.read("vn/001", size_max=SIZE_MAX) == b"now"

    async def test_cancelled_create_leaves_the_slot_absent_or_whole(self) -> None:
        async with self._store() as storage:
            data = b"whole" * 20_000
            for number in range(12):
                slot = f"vn/{number:03}"
                task = asyncio.ensure_future(storage.create(slot, data))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                try:
                    await storage.create(slot, b"second")
                except AlreadyExists:
                    assert await storage.read(slot, size_max=SIZE_MAX) == data
                else:
                    assert await storage.read(slot, size_max=SIZE_MAX) == b"second"

    # -- put

    async def test_put_replaces(self) -> None:
        async with self._store() as storage:
            for data in (b"10", b"", b"11" * 1000, b"12"):
                await storage.put("vn/latest", data)
                assert await storage.read("vn/latest", size_max=SIZE_MAX) == data

    async def test_put_replaces_a_created_file(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"root")
            await storage.put("vn/000", b"tombstone")
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"tombstone"
            await raises(AlreadyExists, storage.create("vn/000", b"root"), kind="slot_taken")

    async def test_readers_see_the_old_or_the_new_file(self) -> None:
        async with self._store() as storage:
            versions = [bytes([number]) * (10_000 + number) for number in range(20)]
            await storage.put("vn/latest", versions[0])

            async def write() -> None:
                for data in versions:
                    await storage.put("vn/latest", data)

            writer = asyncio.ensure_future(write())
            position = 0
            while not writer.done():
                data = await storage.read("vn/latest", size_max=SIZE_MAX)
                assert data in versions, f"a torn file of {len(data)} bytes"
                assert versions.index(data) >= position, "an older file came back"
                position = versions.index(data)
                await asyncio.sleep(0)
            await writer

    async def test_put_many(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number}.arrow": b"%d" % number for number in range(300)}
            await storage.put_many(files)
            await storage.put_many({})
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files

    async def test_put_in_order(self) -> None:
        """A later file is there only with the earlier ones, also while others read. Existing files are replaced."""
        async with self._store() as storage:
            files = {f"vn/{number}": b"%d" % number for number in range(150)}
            paths = list(files)
            await storage.put_many(dict.fromkeys(paths, b"old"))
            writing = asyncio.ensure_future(storage.put_in_order(files))
            while not writing.done():
                await asyncio.sleep(0)
                if await storage.read(paths[100], size_max=SIZE_MAX) != b"old":
                    earlier = await storage.read_many(paths[:100], size_max=SIZE_MAX)
                    assert earlier == {path: files[path] for path in paths[:100]}
            await writing
            await storage.put_in_order({})
            assert await storage.read_many(paths, size_max=SIZE_MAX) == files

    # -- publish

    async def test_publish(self) -> None:
        async with self._store() as storage:
            files = {"node/a.arrow": b"a" * 20_000, "def/table/b.binpb": b"b", "node/c.arrow": b""}
            await storage.publish(files, "vn/000", b"root")
            await storage.publish({}, "vn/001", b"root 1")
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"root"
            assert await storage.read("vn/001", size_max=SIZE_MAX) == b"root 1"

    async def test_publish_to_a_taken_slot_leaves_it(self) -> None:
        async with self._store() as storage:
            await storage.publish({"node/a.arrow": b"a"}, "vn/000", b"first")
            await raises(
                AlreadyExists, storage.publish({"node/b.arrow": b"b"}, "vn/000", b"second"), kind="slot_taken"
            )
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"first"
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"a"

    async def test_publish_looking(self) -> None:
        """The call stores the same as `publish`. The tags are those of `stat`, and distinguish files."""
        async with self._store() as storage:

            async def tag(path: str) -> str:
                info = await storage.stat(path)
                assert info is not None
                assert bool(info.tag) is self.has_tags
                assert (await storage.stat_many([path]))[path] == info, "the same file, the same tag"
                return info.tag

            found = await storage.publish_looking({"node/a.arrow": b"a"}, "vn/000", b"root 0", [])
            assert found.get("vn/000", "") in ("", await tag("vn/000"))
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"a"
            found = await storage.publish_looking({}, "vn/001", b"root 1", ["vn/000", "vn/999"])
            assert found == {
                "vn/000": await tag("vn/000"),
                "vn/999": None,
                **({"vn/001": await tag("vn/001")} if found.get("vn/001") else {}),
            }
            assert not self.has_tags or await tag("vn/000") != await tag("vn/001")
            assert await storage.read("vn/001", size_max=SIZE_MAX) == b"root 1"
            await raises(
                AlreadyExists,
                storage.publish_looking({}, "vn/001", b"other", ["vn/000"]),
                kind="slot_taken",
            )
            before = await tag("vn/000")
            await storage.put("vn/000", b"root x")  # of the same size
            found = await storage.publish_looking({}, "vn/002", b"root 2", ["vn/000", "vn/001"])
            assert found["vn/000"] == await tag("vn/000")
            assert not self.has_tags or found["vn/000"] != before
            await storage.delete("vn/001")
            found = await storage.publish_looking({}, "vn/003", b"root 3", ["vn/001", "vn/002"])
            assert (found["vn/001"], found["vn/002"]) == (None, await tag("vn/002"))
            for path in ("", "../x", "vn/../y"):
                await raises(InvalidInput, storage.publish_looking({}, path, b"", []), kind="bad_argument")

    async def test_slot_appears_after_its_files(self) -> None:
        async with self._store() as storage:
            for version in range(10):
                slot = f"vn/{version:03}"
                files = {f"node/{version}-{number}.arrow": b"x" * 5_000 for number in range(5)}
                writer = asyncio.ensure_future(storage.publish(files, slot, b"root"))
                while not await storage.exists(slot):
                    if writer.done():
                        await writer
                    await asyncio.sleep(0)
                assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
                await writer

    async def test_racing_publishers(self) -> None:
        async with self._store() as storage:
            results = await asyncio.gather(
                *(
                    storage.publish({f"node/{number}.arrow": b"n%d" % number}, "vn/000", b"%d" % number)
                    for number in range(16)
                ),
                return_exceptions=True,
            )
            (winner,) = (number for number, result in enumerate(results) if result is None)
            assert sum(isinstance(result, AlreadyExists) for result in results) == 15, results
            assert await storage.read("vn/000", size_max=SIZE_MAX) == b"%d" % winner
            assert await storage.read(f"node/{winner}.arrow", size_max=SIZE_MAX) == b"n%d" % winner

    # -- read and stat

    async def test_size_cap(self) -> None:
        async with self._store() as storage:
            await storage.put("node/a.arrow", b"x" * 1000)
            assert len(await storage.read("node/a.arrow", size_max=1000)) == 1000
            error = await raises(Corrupt, storage.read("node/a.arrow", size_max=999))
            assert error.path == "node/a.arrow"
            await raises(Corrupt, storage.read_many(["node/a.arrow"], size_max=0))

    async def test_parts_of_files(self) -> None:
        path, data = "data/t/x/w/part.parquet", bytes(range(256)) * 1000
        async with self._store() as storage:
            for name in (path, "node/a.arrow"):
                await storage.put(name, data)
                for start, size in (
                    (0, 1),
                    (0, len(data)),
                    (255, 258),
                    (len(data) - 8, 8),
                    (len(data) - 1, 1),
                ):
                    assert await storage.read_part(name, start=start, size=size) == data[start : start + size]
                for start, size in (
                    (0, len(data) + 1),
                    (len(data) - 1, 2),
                    (len(data), 1),
                    (len(data) + 7, 3),
                ):
                    short = await raises(Corrupt, storage.read_part(name, start=start, size=size))
                    assert short.path == name
            await storage.put(path, b"")
            await raises(Corrupt, storage.read_part(path, start=0, size=1))
            for absent in ("data/t/x/w/none.parquet", "data/t/x/w", "vn/000", "x" * 300):
                error = await raises(NotFound, storage.read_part(absent, start=0, size=8), kind="no_file")
                assert error.path == absent
            await raises(InvalidInput, storage.read_part("../a", start=0, size=1), kind="bad_argument")

    async def test_absent_files(self) -> None:
        async with self._store() as storage:
            await storage.put("node/a.arrow", b"")
            for path in ("vn/000", "node/b.arrow", "node", "node/a.arrow/below", "x/y/z", "x" * 300):
                error = await raises(NotFound, storage.read(path, size_max=SIZE_MAX), kind="no_file")
                assert error.path == path
                assert error.hint
                assert await storage.stat(path) is None
                assert not await storage.exists(path)
            await raises(NotFound, storage.read_many(["node/a.arrow", "node/b.arrow"], size_max=SIZE_MAX))
            assert await storage.read_many([], size_max=SIZE_MAX) == {}

    async def test_stat_many(self) -> None:
        async with self._store() as storage:
            paths = [f"data/t/x/w/{number}.parquet" for number in range(40)]
            for number, path in enumerate(paths):
                await storage.put(path, b"x" * number)
            await storage.put("vn/000", b"1234")
            wanted = [*reversed(paths), "vn/000", "data/t/x/w/absent.parquet", "vn/001"]
            found = await storage.stat_many(wanted)
            sizes = {path: None if info is None else (info.path, info.size) for path, info in found.items()}
            there = {path: (path, number) for number, path in enumerate(paths)} | {"vn/000": ("vn/000", 4)}
            assert sizes == there | {"data/t/x/w/absent.parquet": None, "vn/001": None}
            assert await storage.stat_many([]) == {}
            await raises(InvalidInput, storage.stat_many([*paths, "../x"]))

    async def test_the_clock_is_not_slandered(self) -> None:
        """A store on this machine has this machine's clock."""
        async with self._store() as storage:
            await storage.put("vn/latest", b"0")
            await storage.stat("vn/latest")
            offset = storage.clock_offset_millis
            assert offset is None or abs(offset) < 2_000

    async def test_stat(self) -> None:
        async with self._store() as storage:
            await storage.create("vn/000", b"x" * 123)
            first = await storage.stat("vn/000")
            assert first is not None
            assert (first.path, first.size) == ("vn/000", 123)
            await storage.put("vn/000", b"y")
            second = await storage.stat("vn/000")
            assert second is not None
            assert second.size == 1
            assert second.modified_at_millis >= first.modified_at_millis > 0

    async def test_listed_times_are_those_of_stat(self) -> None:
        """The two times of a file differ by less than a second, because some stores list milliseconds and look up
        seconds. No later file has an earlier time, beyond that second."""
        async with self._store() as storage:
            paths = ["node/a.arrow", "data/t/x/w/b.parquet", "node/c.arrow"]
            for path in paths:
                await storage.put(path, b"x")
            looked_up = await storage.stat_many(paths)
            earlier = 0
            for path, info in (await listed(storage, "")).items():
                found = looked_up[path]
                assert found is not None
                assert abs(found.modified_at_millis - info.modified_at_millis) < 1000
            for path in paths:
                found = looked_up[path]
                assert found is not None
                assert found.modified_at_millis > max(0, earlier - 1000)
                earlier = found.modified_at_millis

    async def test_empty_and_large_files(self) -> None:
        async with self._store() as storage:
            large = bytes(range(256)) * (8 << 12)
            await storage.create("data/t/x/w/empty.parquet", b"")
            await storage.create("data/t/x/w/large.parquet", large)
            assert await storage.read("data/t/x/w/empty.parquet", size_max=0) == b""
            assert await storage.read("data/t/x/w/large.parquet", size_max=len(large)) == large
            info = await storage.stat("data/t/x/w/large.parquet")
            assert info is not None
            assert info.size == len(large) == 8 << 20

    # -- list and delete

    async def test_list_by_any_text(self) -> None:
        async with self._store() as storage:
            paths = [
                "node/aa.arrow",
                "node/ab.arrow",
                "node/b.arrow",
                "nodes/x",
                "vn/0",
                "data/t/x/w/f.parquet",
            ]
            await storage.put_many({path: path.encode() for path in paths})
            prefixes = (
                "", "n", "node", "node/", "node/a", "node/aa.arrow", "node/c", "data/t/x", "data/t/x/w/f",
                "zzz", "zzz/yyy", "vn/0", "vn/00", "node/aa.arrow/",
            )  # fmt: skip
            for prefix in prefixes:
                found = await listed(storage, prefix)
                assert set(found) == {path for path in paths if path.startswith(prefix)}, prefix
                assert all(info.path == path and info.size == len(path) for path, info in found.items())

    async def test_siblings_of_a_folder(self) -> None:
        async with self._store() as storage:
            files = {"a/b": b"1", "a/bc": b"2", "a/b.c": b"3", "ab/c": b"4"}
            await storage.put_many(files)
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert set(await listed(storage, "a/b")) == {"a/b", "a/bc", "a/b.c"}
            assert set(await listed(storage, "a/")) == {"a/b", "a/bc", "a/b.c"}
            await storage.delete("a/b")
            assert set(await listed(storage, "a")) == {"a/bc", "a/b.c", "ab/c"}

    async def test_list_many(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number % 3}/{number}.arrow": b"" for number in range(2010)}  # three pages of S3
            await storage.put_many(files)
            assert set(await listed(storage, "node/")) == set(files)

    async def test_list_may_be_left_early(self) -> None:
        async with self._store() as storage:
            await storage.put_many({f"node/{number}.arrow": b"" for number in range(10)})
            async with contextlib.aclosing(storage.list("node/")) as listing:  # type: ignore[type-var]
                async for _ in listing:
                    break
            assert len(await listed(storage, "node/")) == 10

    async def test_list_and_delete_together(self) -> None:
        async with self._store() as storage:
            files = {f"node/{number}.arrow": b"" for number in range(50)}
            await storage.put_many(files)
            async for info in storage.list("node/"):
                await storage.delete(info.path)
            assert await listed(storage, "") == {}

    async def test_delete(self) -> None:
        async with self._store() as storage:
            await storage.create("node/a.arrow", b"a")
            for _ in range(3):
                await storage.delete("node/a.arrow")
                assert not await storage.exists("node/a.arrow")
            for path in ("never/was/here", "never", "node/a.arrow/below", "x" * 300):
                await storage.delete(path)
            await storage.create("node/a.arrow", b"again")
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"again"

    async def test_delete_few_together(self) -> None:
        async with self._store() as storage:
            await storage.delete_many([])
            await storage.put_many({f"node/{name}.arrow": b"x" for name in "abcde"})
            await storage.delete_many(["node/a.arrow"])
            assert set(await listed(storage, "")) == {f"node/{name}.arrow" for name in "bcde"}
            await storage.delete_many(["node/b.arrow", "node/none.arrow", "node/c.arrow"])
            assert set(await listed(storage, "")) == {"node/d.arrow", "node/e.arrow"}
            await storage.delete_many(["node/d.arrow", "node/d.arrow"])
            for _ in range(2):
                await storage.delete_many(
                    ["node/a.arrow", "never/was/here", "never", "node/e.arrow/below", "x" * 300]
                )
            assert set(await listed(storage, "")) == {"node/e.arrow"}
            await storage.create("node/a.arrow", b"again")
            assert await storage.read("node/a.arrow", size_max=SIZE_MAX) == b"again"

    async def test_delete_thousands_together(self) -> None:
        """Every second file is missing."""
        async with self._store() as storage:
            names = [
                f"data/t/x/{number % 13}/{number}.parquet" for number in range(2010)
            ]  # three requests to S3
            kept = [f"data/t/x/{number}/kept.parquet" for number in range(5)]
            await storage.put_many(dict.fromkeys([*names[::2], *kept, "node/kept.arrow"], b""))
            await storage.delete_many([*names, "node/none.arrow"])
            assert set(await listed(storage, "")) == {*kept, "node/kept.arrow"}

    async def test_delete_no_other_name_together(self) -> None:
        async with self._store() as storage:
            one, other = ({pair[side] for pair in ALIKE_PATHS} for side in (0, 1))
            for doomed, kept in ((one, other), (other, one)):
                await storage.put_many(dict.fromkeys([*doomed, *kept], b"x"))
                await storage.delete_many(list(doomed))
                assert set(await listed(storage, "")) == kept

    # -- paths

    async def test_uploads_that_ended(self) -> None:
        """An upload that has ended is not listed, and to abort it changes nothing."""
        async with self._store() as storage:
            await storage.put("data/a/large", b"whole")
            async with contextlib.aclosing(storage.list_uploads("data/")) as found:  # type: ignore[type-var]
                assert [upload async for upload in found] == []
            await storage.abort_upload(OpenUpload("data/a/large", "of-no-upload", 1))
            info = await storage.stat("data/a/large")
            assert info is not None
            assert info.size == 5
            await raises(InvalidInput, storage.abort_upload(OpenUpload("../a", "x", 1)), kind="bad_argument")

    async def test_bad_paths_are_refused(self) -> None:
        async with self._store() as storage:
            for path in BAD_PATHS:
                await raises(InvalidInput, storage.read(path, size_max=SIZE_MAX), kind="bad_argument")
                await raises(InvalidInput, storage.read_many([path], size_max=SIZE_MAX), kind="bad_argument")
                await raises(InvalidInput, storage.stat(path), kind="bad_argument")
                await raises(InvalidInput, storage.create(path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.put(path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.put_many({path: b""}), kind="bad_argument")
                await raises(InvalidInput, storage.publish({path: b""}, "vn/000", b""), kind="bad_argument")
                await raises(InvalidInput, storage.publish({}, path, b""), kind="bad_argument")
                await raises(InvalidInput, storage.delete(path), kind="bad_argument")
                await raises(InvalidInput, storage.delete_many(["node/a", path]), kind="bad_argument")
            for prefix in ("/", "../", "a//", "a/../b", "a/\0", "./x"):
                await raises(InvalidInput, listed(storage, prefix), kind="bad_argument")
            assert await listed(storage, "") == {}, "a refused path left something"
            await storage.put("node/a", b"")
            await raises(InvalidInput, storage.delete_many(["node/a", "node//b"]), kind="bad_argument")
            assert await storage.exists("node/a"), "a file was removed before all paths were checked"

    async def test_odd_paths_are_taken(self) -> None:
        async with self._store() as storage:
            files = {path: path.encode() for path in ODD_PATHS}
            for path, data in files.items():
                await storage.create(path, data)
            assert await storage.read_many(list(files), size_max=SIZE_MAX) == files
            assert set(await listed(storage, "")) == set(files)

    # -- together

    async def test_many_calls_at_once(self) -> None:
        async with self._store() as storage:

            async def one(number: int) -> None:
                path = f"node/{number}.arrow"
                await storage.create(path, b"%d" % number)
                assert await storage.read(path, size_max=SIZE_MAX) == b"%d" % number
                if number % 2:
                    await storage.delete(path)

            await asyncio.gather(*(one(number) for number in range(200)))
            assert set(await listed(storage, "")) == {f"node/{number}.arrow" for number in range(0, 200, 2)}

    async def test_another_store_sees_the_same(self) -> None:
        async with self._store() as storage:
            await storage.publish({"node/a.arrow": b"a"}, "vn/000", b"root")
            other = await self.reopen(storage)
            if other is None:
                return
            try:
                assert other.url == storage.url
                assert await other.read("node/a.arrow", size_max=SIZE_MAX) == b"a"
                await raises(AlreadyExists, other.create("vn/000", b"other"), kind="slot_taken")
                await other.create("vn/001", b"root 1")
                assert await storage.read("vn/001", size_max=SIZE_MAX) == b"root 1"
                assert set(await listed(other, "")) == {"node/a.arrow", "vn/000", "vn/001"}
            finally:
                await other.close()

    async def test_close_twice(self) -> None:
        storage = await self.make()
        await storage.put("node/a.arrow", b"a")
        await storage.close()
        await storage.close()
