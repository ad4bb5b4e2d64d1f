"""The tree against a dict, its invariants after every batch, and the nodes that each function loads."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import DEPTH_MAX, Key, NodePath
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import DELETED, Node

T = TypeVar("T")
LOW, HIGH = Key(""), Key("~")
SEED_BATCHES = 60


class Nodes:
    """Nodes by path, and a record of every request."""

    def __init__(self) -> None:
        self.held: dict[NodePath, Node] = {}
        self.requests: list[list[NodePath]] = []
        self._numbers = itertools.count()

    def new_path(self) -> NodePath:
        return NodePath(f"node/{next(self._numbers)}")

    def load(self, paths: list[NodePath]) -> Mapping[NodePath, Node]:
        assert paths, "an empty request"
        assert len(set(paths)) == len(paths), "a path twice in one request"
        self.requests.append(paths)
        return {path: self.held[path] for path in paths}

    def run(self, steps: tree.Steps[T]) -> T:
        self.requests = []
        return tree.run(steps, self.load)

    @property
    def loaded(self) -> list[NodePath]:
        return [path for request in self.requests for path in request]

    def build(self, items: Iterable[tuple[Key, str]], order: int) -> Node:
        built = tree.build(items, order=order, new_path=self.new_path)
        self.held.update(built.created)
        return built.root

    def apply(self, root: Node, changes: Mapping[Key, str | None], order: int) -> Node:
        applied = self.run(tree.apply(root, changes, order=order, new_path=self.new_path))
        assert not applied.created.keys() & self.held.keys(), "a path was used twice"
        self.held.update(applied.created)
        assert applied.created.keys() <= self.reachable(applied.root).keys(), "an orphan"
        return applied.root

    def add(self, node: Node) -> NodePath:
        path = self.new_path()
        self.held[path] = node
        return path

    def items(self, root: Node) -> dict[Key, str]:
        return dict(self.run(tree.scan(root, LOW, HIGH)))

    def reachable(self, root: Node) -> dict[NodePath, tuple[Key, Key]]:
        """Return the separators around every node below `root`."""
        found: dict[NodePath, tuple[Key, Key]] = {}
        todo = [(root, LOW, HIGH)]
        while todo:
            node, low, high = todo.pop()
            edges = [low, *node.keys, high]
            for index, path in enumerate(node.children):
                found[path] = (edges[index], edges[index + 1])
                todo.append((self.held[path], edges[index], edges[index + 1]))
        return found

    def levels(self, root: Node) -> int:
        count = 1
        while root.children:
            root, count = self.held[root.children[0]], count + 1
        return count


def key(number: int) -> Key:
    return Key(f"B==={number:07}")


def filled(count: int, *, step: int = 1) -> dict[Key, str]:
    return {key(number): f"v{number}" for number in range(0, count * step, step)}


def changed(model: Mapping[Key, str], changes: Mapping[Key, str | None]) -> dict[Key, str]:
    merged = {**model, **changes}
    return {name: value for name, value in sorted(merged.items()) if value is not None}


def difference(
    before: Mapping[Key, str], after: Mapping[Key, str]
) -> list[tuple[Key, str | None, str | None]]:
    names = sorted(before.keys() | after.keys())
    return [
        (name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def check_batch(
    nodes: Nodes, root: Node, model: dict[Key, str], changes: Mapping[Key, str | None], order: int
) -> tuple[Node, dict[Key, str]]:
    """Apply one batch, and check all invariants after it."""
    after_model = changed(model, changes)
    after = nodes.apply(root, changes, order)
    if after_model == model:
        assert after is root
    assert nodes.run(tree.verify(after, order=order)) == []
    assert list(nodes.items(after).items()) == list(after_model.items())
    asked = [*changes, *list(model)[:5]]
    assert nodes.run(tree.find(after, asked)) == {
        name: after_model[name] for name in sorted(asked) if name in after_model
    }
    assert len(nodes.requests) <= nodes.levels(after) - 1
    assert nodes.run(tree.diff(root, after)) == difference(model, after_model)
    check_diff_loads(nodes, root, after)
    return after, after_model


def check_diff_loads(nodes: Nodes, before: Node, after: Node) -> None:
    """Check that shared subtrees were not loaded, and no node was loaded twice. A subtree is shared if both trees hold
    it by one path between the same separators."""
    left, right = nodes.reachable(before), nodes.reachable(after)
    shared = {path for path, bounds in left.items() if right.get(path) == bounds}
    assert not shared & set(nodes.loaded)
    assert len(set(nodes.loaded)) == len(nodes.loaded)


# --- against a dict --------------------------------------------------------------------------------

numbers = st.integers(0, 400)
batches = st.lists(
    st.one_of(
        st.dictionaries(numbers.map(key), st.one_of(st.none(), st.sampled_from("abc")), max_size=80),
        # A run of deletions empties whole subtrees.
        st.tuples(numbers, numbers).map(lambda ends: {key(number): None for number in range(*sorted(ends))}),
        st.tuples(numbers, numbers).map(lambda ends: {key(number): "r" for number in range(*sorted(ends))}),
    ),
    max_size=8,
)


@given(order=st.integers(3, 12) | st.sampled_from([16, 127, 128]), start=st.integers(0, 400), batches=batches)
def test_batches_equal_those_of_a_dict(order: int, start: int, batches: list[dict[Key, str | None]]) -> None:
    nodes, model = Nodes(), filled(start)
    root = nodes.build(model.items(), order)
    assert nodes.run(tree.verify(root, order=order)) == []
    for changes in batches:
        root, model = check_batch(nodes, root, model, changes, order)


@pytest.mark.parametrize("order", [3, 4, 5, 8, 33, 128])
def test_thousands_of_operations(order: int) -> None:
    source = random.Random(order)
    nodes, model = Nodes(), filled(2000)
    root = nodes.build(model.items(), order)
    for _ in range(SEED_BATCHES):
        changes: dict[Key, str | None] = {}
        for _ in range(source.choice([1, 3, 30, 300])):
            number = key(source.randrange(4000))
            changes[number] = None if source.random() < 0.6 else f"v{source.random()}"
        if source.random() < 0.3:
            inner = [name for node in (root, *nodes.held.values()) if node.children for name in node.keys]
            changes.update(dict.fromkeys(source.sample(inner, min(20, len(inner)))))
        root, model = check_batch(nodes, root, model, changes, order)


@pytest.mark.parametrize("order", [3, 4, 128])
def test_growing_and_shrinking_one_by_one(order: int) -> None:
    source = random.Random(1)
    nodes, model = Nodes(), dict[Key, str]()
    root = nodes.build([], order)
    assert root == Node((), ())
    names = [key(number) for number in range(200)]
    for value in ("v", None):
        source.shuffle(names)
        for name in names:
            root, model = nodes.apply(root, {name: value}, order), changed(model, {name: value})
            assert nodes.run(tree.verify(root, order=order)) == []
        assert nodes.items(root) == model
    assert root == Node((), ())


@given(
    count=st.integers(0, 300), order=st.sampled_from([3, 5, 8, 128]), low=st.integers(-2, 310),
    size=st.integers(-2, 310), limit=st.none() | st.integers(0, 320),
)  # fmt: skip
def test_scan_is_half_open_and_bounded(
    count: int, order: int, low: int, size: int, limit: int | None
) -> None:
    nodes, model = Nodes(), filled(count)
    root = nodes.build(model.items(), order)
    low_key, high_key = key(max(low, 0)), key(max(low + size, 0))
    found = nodes.run(tree.scan(root, low_key, high_key, limit=limit))
    assert found == [item for item in model.items() if low_key <= item[0] < high_key][:limit]


@given(
    left=st.sets(numbers), right=st.sets(numbers), orders=st.tuples(st.integers(3, 9), st.integers(3, 128))
)
def test_diff_of_unrelated_shapes(left: set[int], right: set[int], orders: tuple[int, int]) -> None:
    nodes = Nodes()
    before = {key(number): f"v{number % 3}" for number in sorted(left)}
    after = {key(number): f"v{number % 2}" for number in sorted(right)}
    roots = nodes.build(before.items(), orders[0]), nodes.build(after.items(), orders[1])
    assert nodes.run(tree.diff(*roots)) == difference(before, after)


# --- loads -----------------------------------------------------------------------------------------


def test_one_change_among_100_000_loads_a_path_of_each_tree() -> None:
    nodes = Nodes()
    before = nodes.build(filled(100_000).items(), 128)
    depth = nodes.levels(before) - 1
    assert depth == 2
    after = nodes.apply(before, {key(50_000): "new"}, 128)
    assert len(nodes.loaded) <= depth
    assert nodes.run(tree.diff(before, after)) == [(key(50_000), "v50000", "new")]
    assert len(nodes.loaded) == 2 * depth
    assert len(nodes.requests) == depth


def test_a_new_level_does_not_make_diff_load_what_both_trees_hold() -> None:
    nodes, order = Nodes(), 8
    before = nodes.build(filled(8**4 - 1, step=2).items(), order)
    name = key(2 * 8**3 + 1)
    after = nodes.apply(before, {name: "new"}, order)
    assert nodes.levels(after) == nodes.levels(before) + 1
    assert nodes.run(tree.diff(before, after)) == [(name, None, "new")]
    check_diff_loads(nodes, before, after)
    assert len(nodes.loaded) <= 2 * 3 * nodes.levels(after)
    assert nodes.run(tree.diff(after, before)) == [(name, "new", None)]
    check_diff_loads(nodes, after, before)


def test_equal_trees_load_nothing() -> None:
    nodes = Nodes()
    root = nodes.build(filled(1000).items(), 8)
    assert nodes.run(tree.diff(root, root)) == []
    assert nodes.requests == []
    assert nodes.apply(root, {key(5): "v5", key(5000): None}, 8) is root


def test_unchanged_subtrees_keep_their_paths() -> None:
    nodes = Nodes()
    root = nodes.build(filled(10_000).items(), 16)
    before = set(nodes.held)
    nodes.apply(root, {key(4321): "new"}, 16)
    assert len(set(nodes.held) - before) <= nodes.levels(root) - 1


def test_many_keys_descend_together() -> None:
    nodes = Nodes()
    root = nodes.build(filled(5000).items(), 8)
    wanted = [key(number) for number in range(0, 6000, 7)]
    assert len(nodes.run(tree.find(root, wanted))) == len(range(0, 5000, 7))
    assert len(nodes.requests) == nodes.levels(root) - 1
    nodes.run(tree.scan(root, LOW, HIGH))
    assert len(nodes.requests) == nodes.levels(root) - 1
    nodes.apply(root, {key(number): "new" for number in range(0, 5000, 7)}, 8)
    # Replacing needs no sibling.
    assert len(nodes.requests) == nodes.levels(root) - 1


@pytest.mark.parametrize("limit", [1, 7, 100, 900])
def test_a_limited_scan_loads_only_what_it_returns(limit: int) -> None:
    nodes, order = Nodes(), 8
    root = nodes.build(filled(4000).items(), order)
    found = nodes.run(tree.scan(root, key(1003), HIGH, limit=limit))
    assert [name for name, _ in found] == [key(number) for number in range(1003, 1003 + limit)]
    last = found[-1][0]
    needed = {path for path, (low, high) in nodes.reachable(root).items() if low <= last and high > key(1003)}
    assert set(nodes.loaded) <= needed
    if limit == 900:
        assert len(nodes.requests) < len(nodes.loaded) / 3, "no batches"


async def test_the_async_driver_gives_the_same() -> None:
    nodes = Nodes()
    root = nodes.build(filled(500).items(), 5)

    async def load(paths: list[NodePath]) -> Mapping[NodePath, Node]:
        await asyncio.sleep(0)
        return nodes.load(paths)

    assert await tree.run_async(tree.scan(root, LOW, HIGH), load) == list(filled(500).items())
    assert await tree.run_async(tree.find(Node((), ()), [key(1)]), load) == {}


def test_an_error_of_the_loader_passes_through() -> None:
    nodes = Nodes()
    root = nodes.build(filled(500).items(), 5)

    def load(paths: list[NodePath]) -> Mapping[NodePath, Node]:
        raise Corrupt("node gone", path=paths[0])

    with pytest.raises(Corrupt, match="gone"):
        tree.run(tree.scan(root, LOW, HIGH), load)


# --- trees of other writers ------------------------------------------------------------------------


def foreign(nodes: Nodes) -> tuple[Node, dict[Key, str]]:
    """Return a tree of two levels as the Java SDK writes it: an overfull leaf, empty and small leaves, deleted
    separators."""
    model: dict[Key, str] = {}
    children = []
    for index, size in enumerate((40, 0, 1, 3, 0, 2)):
        own = {key(1000 * index + number): f"v{number}" for number in range(size)}
        children.append(nodes.add(Node(tuple(own), tuple(own.values()))))
        model.update(own)
    separators = tuple(key(1000 * index + 999) for index in range(5))
    values = (DELETED, "s", DELETED, DELETED, "t")
    model.update({name: value for name, value in zip(separators, values, strict=True) if value})
    return Node(separators, values, tuple(children)), dict(sorted(model.items()))


def test_a_foreign_tree_is_read_as_it_is() -> None:
    nodes = Nodes()
    root, model = foreign(nodes)
    assert nodes.items(root) == model
    names = [*model, *root.keys]
    assert nodes.run(tree.find(root, names)) == model
    ours = nodes.build(model.items(), 8)
    assert nodes.run(tree.diff(root, ours)) == []
    problems = nodes.run(tree.verify(root, order=8))
    assert len([problem for problem in problems if "7 at most" in problem]) == 1
    assert len([problem for problem in problems if "3 at least" in problem]) == 4
    assert len([problem for problem in problems if "deleted keys" in problem]) == 1
    # The caller says which nodes are another writer's. Faults that no writer may make are found in any node.
    assert nodes.run(tree.verify(root, order=8, is_foreign=lambda _: True)) == []
    full = root.children[0]
    assert len(nodes.run(tree.verify(root, order=8, is_foreign=lambda path: path != full))) == 1
    misplaced = Node(root.keys, root.values, tuple(reversed(root.children)))
    problems = nodes.run(tree.verify(misplaced, order=8, is_foreign=lambda _: True))
    assert {problem.partition(" ")[2] for problem in problems} == {
        "holds keys outside the separators around it"
    }


@given(changes=st.dictionaries(st.integers(0, 5999).map(key), st.none() | st.just("new"), max_size=30))
def test_a_foreign_tree_is_repaired_where_it_is_touched(changes: dict[Key, str | None]) -> None:
    nodes, order = Nodes(), 8
    root, model = foreign(nodes)
    held = set(nodes.held)
    after = nodes.apply(root, changes, order)
    expected = changed(model, changes)
    assert list(nodes.items(after).items()) == list(expected.items())
    assert nodes.run(tree.diff(root, after)) == difference(model, expected)
    assert DELETED not in after.values
    problems = nodes.run(tree.verify(after, order=order))
    assert [problem for problem in problems if problem.split()[0] not in held] == []


@given(changes=st.dictionaries(st.integers(0, 900).map(key), st.none() | st.just("new"), max_size=40))
def test_deleted_separators_and_empty_leaves_everywhere(changes: dict[Key, str | None]) -> None:
    nodes, order = Nodes(), 5
    root = nodes.build(filled(900).items(), order)
    deleted: set[Key] = set()
    for number, (path, node) in enumerate(list(nodes.held.items())):
        if node.children:
            deleted.update(node.keys[::2])
            values = tuple(DELETED if index % 2 == 0 else value for index, value in enumerate(node.values))
            nodes.held[path] = Node(node.keys, values, node.children)
        elif number % 3 == 0:
            deleted.update(node.keys)
            nodes.held[path] = Node((), ())
    values = tuple(DELETED for _ in root.values)
    deleted.update(root.keys)
    root = Node(root.keys, values, root.children)
    model = {name: value for name, value in filled(900).items() if name not in deleted}
    assert deleted
    assert nodes.items(root) == model
    held = set(nodes.held)
    after = nodes.apply(root, changes, order)
    expected = changed(model, changes)
    assert list(nodes.items(after).items()) == list(expected.items())
    problems = nodes.run(tree.verify(after, order=order))
    assert [problem for problem in problems if problem.split()[0] not in held] == []


def test_an_overfull_root_is_split_even_without_a_change() -> None:
    nodes = Nodes()
    root = Node(tuple(filled(100)), tuple(filled(100).values()))
    after = nodes.apply(root, {}, 8)
    assert nodes.run(tree.verify(after, order=8)) == []
    assert nodes.items(after) == filled(100)


# --- malformed trees -------------------------------------------------------------------------------


def everything(root: Node, nodes: Nodes) -> list[object]:
    """Run every reading function on a malformed tree, and return the nodes that their errors name."""
    inside = [*root.keys, key(0), key(5), key(15), key(25)]
    steps: list[tree.Steps[object]] = [
        tree.find(root, inside),
        tree.scan(root, LOW, HIGH),
        tree.scan(root, LOW, HIGH, limit=1000),
        tree.diff(Node((), ()), root),
        tree.apply(root, dict.fromkeys(inside, "x"), order=4, new_path=nodes.new_path),
    ]
    caught: list[object] = []
    for each in steps:
        with pytest.raises(Corrupt) as error:
            nodes.run(each)
        assert error.value.kind == "corrupt_tree"
        caught.append(error.value.path)
    return caught


def test_keys_outside_their_separators_are_refused() -> None:
    nodes = Nodes()
    left = nodes.add(Node((key(5), key(15)), ("a", "b")))
    right = nodes.add(Node((key(25),), ("c",)))
    root = Node((key(10),), ("r",), (left, right))
    assert set(everything(root, nodes)) == {left}
    assert any("outside" in problem for problem in nodes.run(tree.verify(root, order=4)))
    # The separator itself must not occur again below it.
    again = nodes.add(Node((key(10),), ("c",)))
    everything(Node((key(10),), ("r",), (nodes.add(Node((), ())), again)), nodes)


def test_leaves_at_two_levels_are_refused() -> None:
    nodes = Nodes()
    deep = nodes.add(Node((), (), (nodes.add(Node((key(5),), ("a",))),)))
    flat = nodes.add(Node((key(25),), ("c",)))
    everything(Node((key(10),), ("r",), (deep, flat)), nodes)
    root = Node((key(30),), ("r",), (flat, nodes.add(Node((), (), (nodes.add(Node((), ())),)))))
    with pytest.raises(Corrupt, match="level"):
        nodes.items(root)
    assert any("level" in problem for problem in nodes.run(tree.verify(root, order=3)))


def test_a_cycle_is_refused() -> None:
    nodes = Nodes()
    path = nodes.new_path()
    nodes.held[path] = Node((key(5),), ("a",), (path, path))
    everything(Node((key(10),), ("r",), (path, path)), nodes)
    # Without a key no separator shows the loop: the depth does.
    nodes.held[path] = Node((), (), (path,))
    everything(Node((), (), (path,)), nodes)
    assert len(nodes.requests) < DEPTH_MAX
    assert any("below itself" in problem for problem in nodes.run(tree.verify(nodes.held[path], order=3)))


def chain(nodes: Nodes, levels: int) -> Node:
    node = Node((key(5),), ("a",))
    for _ in range(levels - 1):
        node = Node((), (), (nodes.add(node),))
    return node


def test_the_deepest_tree_is_read_and_a_deeper_one_refused() -> None:
    nodes = Nodes()
    assert nodes.items(chain(nodes, DEPTH_MAX)) == {key(5): "a"}
    assert nodes.run(tree.find(chain(nodes, DEPTH_MAX), [key(5)])) == {key(5): "a"}
    everything(chain(nodes, DEPTH_MAX + 1), nodes)
    for levels, expected in ((DEPTH_MAX, 0), (DEPTH_MAX + 1, 1)):
        problems = nodes.run(tree.verify(chain(nodes, levels), order=3))
        assert len([problem for problem in problems if f"level {DEPTH_MAX - 1}" in problem]) == expected


def test_a_tree_that_would_grow_too_deep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "DEPTH_MAX", 3)
    nodes = Nodes()
    root = nodes.build(filled(26).items(), 3)
    assert nodes.levels(root) == 3
    with pytest.raises(InvalidInput) as caught:
        nodes.apply(root, {key(27): "x"}, 3)
    assert caught.value.kind == "too_large"
    with pytest.raises(InvalidInput):
        nodes.build(filled(27).items(), 3)
    assert nodes.items(nodes.apply(root, {key(3): None}, 3)).keys() == filled(26).keys() - {key(3)}


def test_a_tree_in_utf16_order_is_noticed_by_what_is_not_found_in_it() -> None:
    """The separator sorts below U+1F600 in our order, and above U+1F600 in UTF-16 units."""
    astral, low, high = Key("\U0001f600"), Key("\uff61"), Key("\uff70")
    nodes = Nodes()
    theirs = Node(
        (low,), ("s",), (nodes.add(Node((Key("a"), astral), ("v", "v"))), nodes.add(Node((high,), ("v",))))
    )
    assert nodes.run(tree.find(theirs, [astral])) == {}
    with pytest.raises(Corrupt, match="outside the separators"):
        nodes.run(tree.probe_utf16_order(theirs, [astral]))
    ours = Node(
        (low,), ("s",), (nodes.add(Node((Key("a"),), ("v",))), nodes.add(Node((high, astral), ("v", "v"))))
    )
    nodes.run(tree.probe_utf16_order(ours, [astral, low, high]))
    assert nodes.run(tree.find(ours, [astral])) == {astral: "v"}
    assert [tree.sorts_otherwise_in_utf16(key) for key in ("", "a\u0301", "\ud7ff", "\ue000", "b\U00010000")] == [
        False, False, False, True, True,
    ]  # fmt: skip


def test_verify_names_every_broken_invariant() -> None:
    nodes = Nodes()
    shared = nodes.add(Node((), ()))
    root = Node((key(20), key(10)), ("a", DELETED), (shared, shared, nodes.add(Node((key(5),), ("b",)))))
    problems = "\n".join(nodes.run(tree.verify(root, order=3)))
    for text in (
        "do not ascend",
        "deleted keys",
        "child of two nodes",
        "1 at least",
        "outside the separators",
    ):
        assert text in problems
    assert "single child" in "\n".join(nodes.run(tree.verify(Node((), (), (shared,)), order=3)))
    assert "2 children and 2 keys" in "\n".join(
        nodes.run(tree.verify(Node((key(1), key(2)), ("a", "b"), (shared, shared)), order=8))
    )


@given(st.integers(0, 80), st.integers(4, 9), st.integers(0, 2**32))
def test_random_leaves_tell_all_of_their_ranges(count: int, order: int, seed: int) -> None:
    """Enough requests return all leaves."""
    items = [(Key(f"k{number:05}"), f"def/{number}") for number in range(count)]
    nodes = Nodes()
    root = nodes.build(items, order)
    leaves = nodes.run(tree.random_leaves(root, random.Random(seed), 800))
    for leaf in leaves:
        inside = [i for i in items if leaf.above < i[0] and (leaf.below is None or i[0] < leaf.below)]
        assert list(leaf.items) == inside
    all_nodes = [root, *(nodes.held[path] for path in nodes.reachable(root))]
    inner = sum(len(node.keys) for node in all_nodes if node.children)
    assert sum(len(leaf.items) for leaf in leaves) == count - inner
