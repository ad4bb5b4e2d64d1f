"""A version that is ready to be published: its members, its bytes, and the limits on its size."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.conflicts.rules import Touches
from alpheus_journal.format import NodePath
from alpheus_journal.model.action_rows import ActionRow
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.replay.state import Head, VersionRecord
from alpheus_journal.tables.manifest_merge import Content, Made
from alpheus_journal.tree.node import Node

ROOT_RESERVE_BYTES = 16 << 10
"""Bytes of a root's file that are kept for the frame, the system rows, the padding and the keys that a group adds."""


class Member(msgspec.Struct):
    """A transaction that is part of a staged version."""

    index: int
    recorded: RecordedTransaction
    touches: Touches
    rows: list[ActionRow]
    uploads: dict[str, bytes]
    definitions_size: int  # bytes of the definitions that it writes
    made_size: int  # bytes of the manifest segments that it makes
    rows_added: int
    rows_removed: int
    files_added: int
    made: list[Made]  # the manifest segments that it makes


class Capacity:
    """The bytes that a version can still take. The root's bytes are an estimate; `encode_node` counts exactly."""

    def __init__(self, root_size_max: int, root: Node) -> None:
        texts = (*root.keys, *root.values, *root.children)
        self._root = root_size_max - ROOT_RESERVE_BYTES - sum(len(text) + 12 for text in texts)
        self._definitions = fmt.DEFINITIONS_SIZE_BYTES_MAX
        self._made = fmt.SEGMENTS_MADE_SIZE_BYTES_MAX
        self._external = fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX

    def admit(self, member: Member) -> bool:
        """Subtract what the member needs. Return whether everything still fits."""
        for key, data in member.rows:
            self._root -= len(key) + 4 * len(data) // 3 + 16
        self._definitions -= member.definitions_size
        self._made -= member.made_size
        for path, data in member.uploads.items():
            if path.startswith("action/"):
                self._external -= len(data)
        return min(self._root, self._definitions, self._made, self._external) >= 0


class Staged(msgspec.Struct, frozen=True):
    """A version that is ready to be published. Its root may have been sent already."""

    head: Head
    parent_commit_id: str
    """The commit id of the version before this one."""
    record: VersionRecord
    definitions: dict[str, bytes]
    nodes: dict[NodePath, Node]
    files: dict[str, bytes]
    """The files that are not uploaded yet, by path."""
    slot: str
    root: bytes
    members: tuple[Member, ...]
    made: Mapping[str, Content]
    """The contents of the manifest segments that the version made, by path."""
