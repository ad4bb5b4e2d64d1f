"""Fault row 52: trees that never end or that contain themselves are refused by limits, without recursion and with
few reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import DEPTH_MAX, Key, NodePath
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import EMPTY, Node

DEPTH = 1_000_000

Load = Callable[[list[NodePath]], Mapping[NodePath, Node]]
Work = Callable[[Node], tree.Steps[object]]


def key(number: int) -> Key:
    return fmt.Keys().key(fmt.namespace_name(f"n{number:09}"))


def path(number: int) -> NodePath:
    return fmt.node_path(f"00000000-0000-4000-8000-{number:012x}")


class Forest:
    """Makes nodes on request, so that a tree of any depth costs nothing, and counts the reads."""

    def __init__(self, make: Callable[[int], Node]) -> None:
        self.make = make
        self.loaded = 0

    def load(self, paths: list[NodePath]) -> Mapping[NodePath, Node]:
        self.loaded += len(paths)
        return {each: self.make(int(each[-18:-6], 16)) for each in paths}


def chain(number: int) -> Node:
    """Return a node with one key, whose right child is the next node, a million times."""
    if number == DEPTH:
        return Node((key(number),), ("def/ns/x.binpb",))
    return Node((key(number),), ("def/ns/x.binpb",), (path(DEPTH + 1 + number), path(number + 1)))


def hollow_chain(number: int) -> Node:
    """Return a node without keys and with one child, so that no bound of keys can be violated."""
    return EMPTY if number == DEPTH else Node((), (), (path(number + 1),))


def itself(number: int) -> Node:
    return Node((), (), (path(number),))


def two_in_a_ring(number: int) -> Node:
    return Node((), (), (path(1 - number),))


def itself_with_a_key(number: int) -> Node:
    return Node((key(5),), ("def/ns/x.binpb",), (path(number), path(number)))


def fan_of_itself(number: int) -> Node:
    """Return a node whose children are all itself: 128 to the power of 16 places, one file."""
    return Node(tuple(key(n) for n in range(127)), ("def/ns/x.binpb",) * 127, (path(number),) * 128)


def hollow_fan(number: int) -> Node:
    """Return a fan of hollow nodes, the only shape in which a node may occur in many places."""
    if number == 0:
        return Node(tuple(key(n) for n in range(127)), ("def/ns/x.binpb",) * 127, (path(1),) * 128)
    return Node((), (), (path(number + 1),))


SHAPES = [chain, hollow_chain, itself, two_in_a_ring, itself_with_a_key, fan_of_itself, hollow_fan]
WORKS: dict[str, Work] = {
    "scan": lambda root: tree.scan(root, Key(""), Key(chr(0x10FFFF))),
    "scan_limited": lambda root: tree.scan(root, key(200), Key(chr(0x10FFFF)), limit=5),
    "find": lambda root: tree.find(root, [key(DEPTH - 1), key(500), Key("A")]),
    "diff": lambda root: tree.diff(EMPTY, root),
    "diff_back": lambda root: tree.diff(root, EMPTY),
    "apply": lambda root: tree.apply(root, {key(DEPTH - 1): "def/ns/y.binpb", Key("A"): None}, order=128,
                                     new_path=lambda: path(1 << 40)),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("work", WORKS)
def test_an_endless_tree_is_refused_after_few_reads(work: str, shape: Callable[[int], Node]) -> None:
    forest = Forest(shape)
    with pytest.raises(Corrupt) as caught:
        tree.run(WORKS[work](shape(0)), forest.load)
    assert caught.value.kind == "corrupt_tree"
    assert forest.loaded <= 3 * DEPTH_MAX * 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_check_of_an_endless_tree_ends_with_findings(shape: Callable[[int], Node]) -> None:
    forest = Forest(shape)
    assert tree.run(tree.verify(shape(0), order=128), forest.load)
    assert forest.loaded <= 16 * DEPTH_MAX


def test_a_tree_of_the_greatest_depth_is_read() -> None:
    # A valid tree passes: a chain of sixteen levels.
    def short(number: int) -> Node:
        if number == DEPTH_MAX - 1:
            return Node((key(number),), ("def/ns/x.binpb",))
        return Node((), (), (path(number + 1),))

    found = tree.run(tree.scan(short(0), Key(""), Key(chr(0x10FFFF))), Forest(short).load)
    assert found == [(key(DEPTH_MAX - 1), "def/ns/x.binpb")]
