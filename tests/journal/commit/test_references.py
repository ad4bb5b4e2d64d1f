"""What a commit may newly reference beside expiry and collection."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from upkeep_lake import T, append, collect, commit_rows, make_lake, make_table

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.expiry_rules import HOUR_MILLIS
from alpheus_journal.model.operations import (
    ChangeMode,
    ChangeRows,
    Operation,
    OverwriteFiles,
    RestoreTable,
)
from alpheus_journal.predicate import Compare, encode, reference
from alpheus_journal.testing import raises
from alpheus_journal.tree.node import encode_node


@pytest.mark.parametrize("brings", ["", "segments", "removed", "changes", "rows", "no rows"])
async def test_only_what_brings_files_has_to_begin_after_the_last_collection(brings: str) -> None:
    """A deletion by predicate, and an overwrite without rows, bring none."""
    lake = make_lake()
    journal = await make_table(lake)
    await commit_rows(lake, journal)
    slow = lake.transaction(journal)
    segments = (await append(lake, journal, T, id=slow.id)).segments  # type: ignore[union-attr]
    await lake.storage.put(f"node/{lake.identities.uuid4()}.arrow", b"something to collect")
    lake.clock.millis += 2 * HOUR_MILLIS
    assert (await collect(journal)).fence_version is not None
    (stored,) = (await journal.load(None, [T])).objects
    assert stored is not None
    table = decode_definition(T.kind, stored.definition, stored.path)
    assert isinstance(table, TableDef)
    names = {"namespace": T.namespace, "name": T.name, "table_id": table.id}
    operation: Operation
    if "rows" in brings:
        operation = OverwriteFiles(**names, segments=segments if brings == "rows" else ())
    else:
        operation = ChangeRows(
            **names,
            base_sequence=table.sequence,
            mode=ChangeMode.DELETE,
            predicates=(encode(Compare(reference(table.columns[0]), "=", 1)),),
            **({brings: segments} if brings else {}),  # type: ignore[arg-type]
        )
    asked = journal.commit(msgspec.structs.replace(slow, operations=(operation,)))
    if brings in ("", "no rows"):
        assert (await asked).version == journal.head.version
    else:
        await raises(Expired, asked, kind="upload_expired")
    await journal.close()


async def test_a_version_that_was_replaced_is_not_restored() -> None:
    """The store is put back while the version is pinned for the restore."""
    lake = make_lake()
    journal = await make_table(lake)
    then = await commit_rows(lake, journal)
    await commit_rows(lake, journal, kind=OverwriteFiles)
    root = await journal.follower.root(then)
    with failpoints.armed("pin.written", "pause@1") as pinned:
        restoring = asyncio.ensure_future(
            lake.commit(journal, RestoreTable(namespace="a", name="t", version=then))
        )
        await pinned.wait_for_hit()
        system: dict[str, Any] = {
            fmt.ROW_CATALOG_DEF: root.catalog_def,
            fmt.ROW_PREVIOUS_ROOT: str(root.previous_root),
            fmt.ROW_COMMIT_ID: lake.identities.uuid4(),
            fmt.ROW_VERSION: str(then),
            fmt.ROW_FORMAT_REVISION: "2",
            fmt.ROW_CHECKSUM: "",
        }
        data = encode_node(
            root.node, order=128, created_at_millis=root.created_at_millis, size_max=1 << 20, system=system
        )
        await lake.storage.put(root.path, data)
        pinned.release()
        await raises(Corrupt, restoring, kind="history_replaced")
    await journal.close()
