"""The list of files that may be deleted: a mark takes out its files and, at worst, one more."""

from __future__ import annotations

import errno
import random
import tempfile
import uuid

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.collect import candidates
from alpheus_journal.collect.candidates import Candidates, FoundFiles
from alpheus_journal.errors import Exhausted
from alpheus_journal.model.answers import FileTotals
from alpheus_journal.testing import raises


def make_paths(rng: random.Random, count: int) -> dict[str, int]:
    """Return paths of two kinds with their sizes. The names of some definitions are not ASCII."""

    def new_id() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    return {
        fmt.node_path(new_id())
        if rng.random() < 0.5
        else f"def/view/{new_id()}-n-größe.binpb": rng.randrange(9)
        for _ in range(count)
    }


async def make_list(paths: dict[str, int]) -> FoundFiles:
    found = FoundFiles()
    for path, size in paths.items():
        found.add(path, size, fmt.kind_of_file(path), 0)
        await found.settle()
    await found.seal()
    return found


async def left_in(found: FoundFiles) -> dict[str, int]:
    return dict(
        [entry for kind in fmt.COLLECTED_KINDS async for part in found.left_of(kind) for entry in part]
    )


@pytest.mark.parametrize("in_memory", [1 << 20, 10])
async def test_marks_take_out_their_files_alone(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "PATHS_SIZE_BYTES_MAX", in_memory)
    monkeypatch.setattr(candidates, "PATHS_AT_ONCE", 7)
    monkeypatch.setattr(candidates, "READ_SIZE_BYTES", 100)
    monkeypatch.setattr(candidates, "SORTED_ASIDE_MIN", 50)
    for count in (0, 1, 30, 300):
        rng = random.Random(count)
        left = make_paths(rng, count)
        others = make_paths(rng, 20)
        found = await make_list(left)
        while left:
            assert await left_in(found) == left
            totals = found.count()
            assert len(found) == len(left) == sum(one.files for one in totals.values())
            assert sum(one.size_bytes for one in totals.values()) == sum(left.values())
            kept = rng.sample(sorted(left), min(len(left), 1 + count // 5))
            again = found.keep([*kept, *others])
            assert again == FileTotals(files=len(kept), size_bytes=sum(map(left.pop, kept)))
            assert found.keep(kept) == FileTotals()
        assert await left_in(found) == {} == found.count()
        found.close()


async def test_files_with_one_hash_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision never deletes a file that is reached."""
    monkeypatch.setattr(candidates, "_hash_path", lambda path: ord(path[0]))
    paths = make_paths(random.Random(1), 20)
    found = await make_list(paths)
    found.keep([next(path for path in paths if path.startswith("node/"))])
    assert (
        await left_in(found) == {path: size for path, size in paths.items() if path.startswith("def/")} != {}
    )


async def test_data_files_of_tables_with_another_place_are_kept() -> None:
    ids = [str(uuid.UUID(int=number, version=4)) for number in range(3)]
    paths = {f"{fmt.data_folder(table, ids[0], ids[0])}f.parquet": 1 for table in ids} | {
        fmt.node_path(ids[1]): 1
    }
    found = Candidates()
    found.own, found.rooted["s3://b/r"] = (
        await make_list(paths),
        await make_list(dict(list(paths.items())[:3])),
    )
    await found.keep_elsewhere({ids[0]: {""}, ids[1]: {"s3://b/r"}})
    assert {path.split("/")[1] for path in await left_in(found.own)} == {ids[0], ids[2], f"{ids[1]}.arrow"}
    assert {path.split("/")[1] for path in await left_in(found.rooted["s3://b/r"])} == {ids[1], ids[2]}


async def test_no_space_for_paths_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(candidates, "PATHS_SIZE_BYTES_MAX", 10)
    error = await raises(Exhausted, make_list(make_paths(random.Random(1), 1)), kind="no_space")
    assert "TMPDIR" in error.hint


async def test_no_folder_for_temporary_files_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    monkeypatch.setattr(candidates, "PATHS_SIZE_BYTES_MAX", 10)
    error = await raises(Exhausted, make_list(make_paths(random.Random(1), 1)), kind="no_space")
    assert "TMPDIR" in error.hint
    assert "/nonexistent" in error.message
