"""Copies of a version's root, without what the version did: leases and pins (FORMAT.md, "Leases", "Tags and pins").

A copy is made durable first, and only then the slot of its version is read again: a tombstone that comes later does no
harm, because whoever deletes files because of it looks for copies afterwards.
"""

from __future__ import annotations

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.storage import Storage
from alpheus_journal.tree.node import Node, NodeFile
from alpheus_journal.tree.reader import Reader, Snapshot, catalog_def_at


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to read one version: its root without the actions. `commit_id` means the same as in
    `versions.Root`. `is_chosen` is a pin with a tree of its own, of chosen objects."""

    version: int
    commit_id: str
    created_at_millis: int
    catalog_def: str
    root: Node
    is_chosen: bool = False


def copy_of(root: Root) -> Copy:
    return Copy(
        version=root.version,
        commit_id=root.commit_id,
        created_at_millis=root.created_at_millis,
        catalog_def=root.catalog_def,
        root=root.node,
    )


def copy_in(file: NodeFile, path: str, what: str) -> Copy:
    """Return the copy in a decoded file. Raises Corrupt (`corrupt_node`) for a file that is not `what`."""
    flaw = (
        "it is a tombstone"
        if file.is_tombstone
        else "it does not record its version"
        if file.version is None or not file.commit_id
        else "it holds actions"
        if file.actions
        else ""
    )
    if flaw:
        raise Corrupt(f"{path} is not {what}: {flaw}", kind="corrupt_node", path=path)
    assert file.version is not None
    assert file.commit_id
    assert file.created_at_millis is not None  # the gate demands it of a root
    return Copy(
        version=file.version,
        commit_id=file.commit_id,
        created_at_millis=file.created_at_millis,
        catalog_def=fmt.check_definition_pointer(file.catalog_def, Kind.CATALOG),
        root=file.node,
        is_chosen=file.is_chosen,
    )


async def verify_kept(log: Log, copy: Copy) -> None:
    """Read the slot of a copy that is durable. Raises Expired when the version expired before, and Corrupt
    (`history_replaced`) when the slot has another version by now."""
    again = await log.read(copy.version, bare=True)
    if again.commit_id != copy.commit_id:
        raise Corrupt(
            f"version {copy.version} was {copy.commit_id} and is {again.commit_id}: the storage was put back to an"
            " older state",
            kind="history_replaced",
            path=again.path,
            version=copy.version,
            hint="stop all writers, and find out what was restored",
        )


async def snapshot_of(copy: Copy, storage: Storage, keys: fmt.Keys) -> Snapshot:
    """Return the version of a copy as a snapshot that reads only files that the copy reaches, because the version's
    slot may have expired."""
    definition = await catalog_def_at(storage, copy.catalog_def, copy.version)
    reader = Reader(storage, keys, node_size_max=fmt.node_size_read_max(definition.node_file_size_max))
    return Snapshot(reader, copy.version, copy.root, copy.catalog_def)
