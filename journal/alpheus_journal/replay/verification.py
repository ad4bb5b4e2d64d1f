"""Comparing a checkpoint with the tree: all keys and paths, and a sample of definitions (FORMAT.md, "Checkpoints").

A load looks at only a few rows of a checkpoint, so that a start is quick. This module compares the rest, part by part,
while the catalog moves on. A range of keys that was right at one version stays right, because every version that is
applied to the state says what the tree had before.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from alpheus_journal.errors import AlpheusError
from alpheus_journal.format import Key, NodePath
from alpheus_journal.log.versions import Log
from alpheus_journal.replay.checkpoint import list_checkpoints, open_checkpoint, parse_checkpoint_path
from alpheus_journal.replay.flat import Flat, unpack
from alpheus_journal.replay.state import Head, State
from alpheus_journal.replay.symbols import Comparison
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node
from alpheus_journal.tree.reader import Reader

DEFINITIONS_COMPARED = 1000
"""The definitions of at most this many random objects are compared."""
DEFINITIONS_AT_ONCE = 64
ROWS_AT_ONCE = 1024
"""Rows of the tree in one part: about ten nodes of the usual order, and a millisecond to compare."""

_LAST = Key(chr(0x10FFFF))


class Verification:
    """Compares one state, which came from a checkpoint, with the tree. A call that raised may be repeated.

    `head_of` returns the head while the state is the one in memory, and None after another state took its place.
    """

    def __init__(
        self, reader: Reader, state: State, rng: random.Random, head_of: Callable[[State], Head | None]
    ) -> None:
        self._reader = reader
        self._state = state
        self._head_of = head_of
        self._low: Key | None = Key("")  # where the comparison of keys continues; None: all keys are compared
        flat = state.flat
        count = min(DEFINITIONS_COMPARED, len(flat))
        self._covers_all = count == len(flat)
        self._sample = [flat.keys[row] for row in sorted(rng.sample(range(len(flat)), count))]
        self._reads = 0
        self.differences = 0

    @property
    def is_done(self) -> bool:
        return self._low is None and not self._sample

    async def resume(self, reads_max: int | None) -> str:
        """Compare until done, or until about `reads_max` nodes and definitions were read.

        Returns a text about the difference for a person; empty means that nothing differs so far. Stops early when
        another state has taken this state's place.
        """
        self._reads = 0
        while reads_max is None or self._reads < reads_max:
            head = self._head_of(self._state)
            if head is None:
                break
            if self._low is not None:
                what = await self._compare_keys(head, self._low)
            elif self._sample:
                what = await self._compare_definitions()
            else:
                if self._covers_all:
                    self._state.trusts_checkpoint = False  # every definition was compared
                break
            if what:
                return what
        return ""

    async def _load(self, paths: Sequence[NodePath]) -> Mapping[NodePath, Node]:
        self._reads += len(paths)
        return await self._reader.load_nodes(paths)

    async def _compare_keys(self, head: Head, low: Key) -> str:
        state = self._state.copy()
        assert state.version == head.version, "head and state move together"
        steps = tree.scan(head.root, low, _LAST, limit=ROWS_AT_ONCE)
        truth = await tree.run_async(steps, self._load)
        self._reads += 1  # each part costs something, even if its nodes are cached
        high = Key(truth[-1][0] + "\0") if len(truth) == ROWS_AT_ONCE else None
        found = Comparison(self._reader.keys)
        found.add(truth, state.between(low, high))
        self.differences += found.differences
        self._low = high
        return found.drift(head.version, sampled=False).text() if found.differences else ""

    async def _compare_definitions(self) -> str:
        reader = self._reader
        part, rest = self._sample[:DEFINITIONS_AT_ONCE], self._sample[DEFINITIONS_AT_ONCE:]
        held = {
            key: stored for key in part if (stored := self._state.from_checkpoint(key)) and not stored.damage
        }
        names = {key: reader.keys.parse(unpack(key)) for key in held}
        read = await reader.stored({stored.path: names[key].kind for key, stored in held.items()})
        self._reads += len(part)
        for key, stored in held.items():
            there = read[stored.path]
            # A file that is missing was dropped and collected since, or is damaged. Memory is as good or better then.
            if there.damage is None and there.definition != stored.definition:
                self.differences += 1
                return f"memory has another definition of {names[key]} than {stored.path}"
        self._sample = rest
        return ""


async def find_misleading_checkpoints(
    log: Log, reader: Reader, catalog_id: str, head_version: int
) -> AsyncIterator[tuple[str, int, str]]:
    """Yield (path, version, difference) for each intact checkpoint of this history that differs from its tree.

    All keys and paths are compared, and about 1,000 definitions, evenly spread. Checkpoints that are damaged or
    missing are skipped, as they mislead no reader.
    """
    for path in await list_checkpoints(log.storage, log, head_version):
        try:
            opened = await open_checkpoint(log.storage, path)
            facts = opened.facts
            claimed = (facts.catalog_id, facts.commit_id, facts.version)
            version = facts.version
            if claimed != (
                catalog_id,
                await log.commit_id(version),
                (parse_checkpoint_path(path) or (-1,))[0],
            ):
                continue
            root = await log.read(version)
        except AlpheusError:
            continue
        what = await _difference(opened.flat, root.node, reader)
        if what:
            yield path, version, what


async def _difference(flat: Flat, root: Node, reader: Reader) -> str:
    found, low = Comparison(reader.keys), Key("")
    while not found.differences:
        truth = await tree.run_async(tree.scan(root, low, _LAST, limit=ROWS_AT_ONCE), reader.load_nodes)
        high = Key(truth[-1][0] + "\0") if len(truth) == ROWS_AT_ONCE else None
        found.add(truth, flat.between(low, high))
        if high is None:
            break
        low = high
    if found.differences:
        return found.drift(0, sampled=False).text()
    missing = set(flat.missing)
    rows = [
        row for row in range(0, len(flat), max(1, len(flat) // DEFINITIONS_COMPARED)) if row not in missing
    ]
    for start in range(0, len(rows), DEFINITIONS_AT_ONCE):
        part = {flat.path(row): row for row in rows[start : start + DEFINITIONS_AT_ONCE]}
        names = {path: reader.keys.parse(flat.keys.key(row)) for path, row in part.items()}
        for path, stored in (await reader.stored({path: name.kind for path, name in names.items()})).items():
            if stored.damage is None and stored.definition != flat.definitions[part[path]]:
                return f"another definition of {names[path]} than {path}"
    return ""
