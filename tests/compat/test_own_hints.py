"""Checkpoints and index runs of each revision, frozen in small catalogs, are opened and have their original contents.

    python tests/compat/test_own_hints.py tests/compat

The command writes those of the newest revisions that do not exist yet. A change of the contents of such a file needs a
new revision, support for the earlier ones, and another folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from frozen import HERE, files_of, freeze, thaw

from alpheus_journal import format as fmt
from alpheus_journal.format import Kind
from alpheus_journal.log import index_runs
from alpheus_journal.log.index_runs import Run, decode_run, encode_run, fingerprint, last_version
from alpheus_journal.model.operations import DropTable, Transaction, UpdateCatalog
from alpheus_journal.replay import checkpoint
from alpheus_journal.replay.checkpoint import (
    Facts,
    decode_checkpoint,
    encode_checkpoint,
    parse_checkpoint_path,
)
from alpheus_journal.replay.flat import Flat
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake

DIGITS = (32, 64)
NAMES = tuple(sorted(path.name for path in HERE.glob("hints-r*")))
NEWEST = f"r{checkpoint.REVISION}.{index_runs.REVISION}"


async def write(digits: int) -> Lake:
    """Write names of all kinds, an object without a definition, a retry key and a cancelled id. A checkpoint and a
    run are below the head, and one version is in neither."""
    lake = Lake(seed=digits)
    lake.clock.millis = 1_790_000_000_000
    journal = await lake.create(order=4, version_digits=digits, name_size_max=24, properties={"größe": "1"})
    for name in ("sales", "größe", "日本", "😀"):
        await lake.commit(
            journal, lake.namespace(name), lake.table(name, "t"), lake.table(name, "plain-1_x.y")
        )
    await lake.commit(journal, *(lake.table("sales", f"t{number:02}") for number in range(40)))
    await lake.commit(journal, *(DropTable(namespace="sales", name=f"t{number:02}") for number in (3, 39)))
    cancelled = lake.identities.uuid7()
    await journal.outcome(cancelled, settle=True)
    await journal.commit(
        Transaction(
            id=lake.identities.uuid7(),
            begin_version=journal.head.version,
            operations=(UpdateCatalog(set={"k": "v"}),),
            key="job 7 of größe",
        )
    )
    (lost,) = (await journal.load(None, [fmt.table_name("sales", "t07")])).objects
    assert lost is not None
    await lake.storage.delete(lost.path)
    writer = await lake.open()
    await writer.checkpoint()
    await writer.write_index()
    await lake.storage.put(lost.path, lost.definition)
    await lake.commit(journal, lake.namespace("later"))
    await journal.close()
    return lake


def facts_of(facts: Facts) -> dict[str, Any]:
    found = msgspec.to_builtins(facts)
    assert isinstance(found, dict)
    return found  # with the definition in base64


def rows_of(flat: Flat) -> list[list[Any]]:
    return [
        [
            flat.keys.key(row),
            flat.path(row),
            None if row in flat.missing else hashlib.sha256(flat.definitions[row]).hexdigest(),
        ]
        for row in range(len(flat))
    ]


def entries_of(run: Run) -> list[list[Any]]:
    return [[f"{number:016x}", at] for number, at in zip(run.fingerprints, run.versions, strict=True)]


def of_kind(files: dict[str, bytes]) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    """Return the one checkpoint and the one run, each with its path."""
    ((one, data),) = [item for item in files.items() if parse_checkpoint_path(item[0])]
    ((other, run),) = [item for item in files.items() if last_version(item[0]) is not None]
    return (one, data), (other, run)


def described(files: dict[str, bytes], catalog_id: str, terms: dict[str, int]) -> dict[str, Any]:
    (path, data), (run_path, run_data) = of_kind(files)
    facts, flat = decode_checkpoint(data)
    run = decode_run(run_data, run_path, catalog_id=catalog_id)
    return {
        "catalog_id": catalog_id,
        "checkpoint": {"path": path, "facts": facts_of(facts), "rows": rows_of(flat)},
        "run": {
            "path": run_path, "first": run.first, "last": run.last, "commit_id": run.commit_id,
            "entries": entries_of(run),
        },
        "terms": terms,
    }  # fmt: skip


def test_the_newest_revisions_are_frozen() -> None:
    assert {f"hints-{NEWEST}-{digits}" for digits in DIGITS} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_say_what_they_said(name: str) -> None:
    files, expected = thaw(name)
    assert described(files, expected["catalog_id"], expected["terms"]) == expected
    for term, version in expected["terms"].items():
        assert [f"{fingerprint(term):016x}", version] in expected["run"]["entries"]
    assert len(expected["terms"]) == len(expected["run"]["entries"])


@pytest.mark.parametrize("name", NAMES)
async def test_a_catalog_is_opened_with_them(name: str) -> None:
    """A start reads the checkpoint and no tree. A search reads the run and only the roots that the run proposes."""
    files, expected = thaw(name)
    storage = MemoryStorage()
    await storage.put_many(files)
    journal = await Lake(storage, seed=7).open()
    state = await journal.load_state()
    assert (journal.replay.skipped, journal.replay.counts.loads_from_checkpoint) == ([], 1)
    rows = {key: path for key, path, _ in expected["checkpoint"]["rows"]}
    later = journal.keys.key(fmt.namespace_name("later"))
    assert {key: path for key, path in state.entries() if key != later} == rows
    assert state.names(Kind.NAMESPACE).names == ("größe", "later", "sales", "日本", "😀")
    wanted = await (await Lake(storage).open()).replay.load(from_tree=True)
    assert state.entries() == wanted.entries()
    for term, version in expected["terms"].items():
        word, _, text = term.partition(":")
        if word == "id":
            outcome = await journal.outcome(text, since=0 if version else None)
            assert outcome.commit is not None
            assert outcome.commit.version == version
        elif word == "cancel":
            assert (await journal.outcome(text, since=0)).state == "cancelled"
        else:
            assert (await journal.follower.find_by_key(text) or (0,))[0] == version
    assert journal.index.refused == {}
    assert (journal.index.runs_count, journal.index.counts.roots_read) == (1, 1)


@pytest.mark.parametrize("digits", DIGITS)
def test_the_newest_revisions_are_still_written_so(digits: int) -> None:
    """Columns, metadata and checksums of each are written as before, to the last byte. Only their places in the file
    may differ, which Arrow decides."""
    files, expected = thaw(f"hints-{NEWEST}-{digits}")
    (_, data), (path, run_data) = of_kind(files)
    facts, flat = decode_checkpoint(data)
    run = decode_run(run_data, path, catalog_id=expected["catalog_id"])
    again = encode_run(run, catalog_id=expected["catalog_id"], commit_id=run.commit_id)
    for old, new in ((data, encode_checkpoint(flat, facts)), (run_data, again)):
        one, other = pa.ipc.open_file(old), pa.ipc.open_file(new)
        assert other.schema.equals(one.schema, check_metadata=True)
        assert other.get_batch(0).equals(one.get_batch(0))


async def _terms(lake: Lake) -> dict[str, int]:
    """Return the entries that a run must have for the versions below the head, from the log."""

    def of(transaction: Any) -> Iterator[str]:
        yield f"id:{transaction.id}"
        if transaction.cancels:
            yield f"cancel:{transaction.cancels}"
        if transaction.key:
            yield f"key:{transaction.key}"

    journal = await lake.open()
    return {
        term: entry.version
        async for entry in journal.log()
        if entry.version < journal.head.version
        for term in of(entry.transaction)
    }


async def made(digits: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    lake = await write(digits)
    files = await files_of(lake.storage)
    return files, described(files, (await lake.open()).catalog_id, await _terms(lake))


if __name__ == "__main__":
    freeze(Path(sys.argv[1]), {f"hints-{NEWEST}-{digits}": partial(made, digits) for digits in DIGITS})
