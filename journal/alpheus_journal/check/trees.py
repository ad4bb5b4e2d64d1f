"""Check the nodes of each version."""

from __future__ import annotations

from collections.abc import AsyncIterator

from alpheus_journal.check.findings import Findings
from alpheus_journal.format import Key, NodePath, ObjectName
from alpheus_journal.log.row_checks import strange_rows
from alpheus_journal.log.versions import Root
from alpheus_journal.model.answers import Finding
from alpheus_journal.replay.follower import Follower
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import UTF16_ORDER, Node, NodeFile, decode_node
from alpheus_journal.tree.reader import KeyChange, Reader


class TreeCheck:
    """Checks the tree of each version. `reader` has caches of its own, because the process's caches prove nothing about
    the stored bytes."""

    def __init__(self, follower: Follower, findings: Findings) -> None:
        self._order = follower.definition.order
        self._findings = findings
        self.reader = Reader(
            follower.reader.storage,
            follower.reader.keys,
            node_size_max=follower.reader.node_size_max,
            on_node=self._note,
        )
        self.nodes: set[NodePath] = set()
        """The paths of nodes that were read."""
        self._foreign_nodes: set[NodePath] = set()
        self._utf16_nodes: set[NodePath] = set()

    def _note(self, path: NodePath, file: NodeFile) -> None:
        if file.looks_foreign(self._order):
            self._foreign_nodes.add(path)
        if UTF16_ORDER in file.defects:
            self._utf16_nodes.add(path)

    async def check(self, root: Root) -> AsyncIterator[Finding]:
        """Check the tree of one version, and the rows of its root."""

        def is_foreign(path: NodePath) -> bool:
            return path in self._foreign_nodes if path else root.is_foreign

        seen = len(self._utf16_nodes)
        steps = tree.verify(root.node, order=self._order, is_foreign=is_foreign)
        for problem in await tree.run_async(steps, self.load):
            yield self._findings.add("corrupt_tree", problem, root.path, root.version)
        if UTF16_ORDER in root.defects or len(self._utf16_nodes) > seen:
            yield self._findings.add(
                "utf16_order",
                f"version {root.version} has keys in UTF-16 order, which the Java SDK writes but cannot look up; this"
                " software reads them, and the next commit that touches them puts them in order",
                root.path,
                root.version,
            )
        async for finding in self._check_rows(root):
            yield finding

    async def diff(self, before: Node, after: Node) -> list[KeyChange]:
        return await tree.run_async(tree.diff(before, after), self.load)

    async def _check_rows(self, root: Root) -> AsyncIterator[Finding]:
        """Check the parts of a root of ours that reading it skips, unless a checksum covers its rows. A bit may have
        flipped there."""
        if root.is_foreign or root.has_checksum:
            return
        path = root.path
        data = await self.reader.storage.read(path, size_max=self.reader.node_size_max)
        file = decode_node(data, path, root=True, size_max=self.reader.node_size_max)
        for problem in strange_rows(file, root, self.reader.keys):
            yield self._findings.add("corrupt_node", f"version {root.version} {problem}", path, root.version)

    async def key_of(self, before: Node, after: Node, name: ObjectName) -> Key:
        """Return the key of a name that a commit on `before` finds, where two paddings are possible."""
        if name.full_name.isascii():
            return self.reader.keys.key(name)
        for root in (before, after):
            found = await self.reader.find(root, [name])
            if name in found:
                return found[name][0]
        return self.reader.keys.key(name)

    async def load(self, paths: list[NodePath]) -> dict[NodePath, Node]:
        self.nodes.update(paths)
        return dict(await self.reader.load_nodes(paths))
