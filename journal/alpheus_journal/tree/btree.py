"""The copy-on-write B-tree (FORMAT.md, "The tree"): find, scan, apply, diff, bulk build, verify.

The module is pure. Every function is a generator that yields the paths of the nodes that it needs next, receives a
mapping with all of them, and returns its result. `run` and `run_async` drive a generator. Nodes that can be requested
together are requested together, so a driver that loads in parallel waits once for each level, not for each node.

A tree of order N has values in inner nodes too, at most N-1 keys in a node, all leaves at one level, and at least
ceil(N/2)-1 keys in every node except the root. Trees of other software may have fuller and emptier nodes and deleted
separators (`node.DELETED`). Such nodes are read as they are, and repaired where `apply` rewrites them.

Every loaded node is checked against its place: its keys are strictly between the separators around it, leaves are at
one level, and the tree has at most DEPTH_MAX levels. This also excludes cycles, because a node that holds a key cannot
be below itself. A failed check raises Corrupt (`corrupt_tree`).

The module is long because readers, writers and the verifier share one notion of a node's place.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

import msgspec

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import DEPTH_MAX, Key, NodePath
from alpheus_journal.tree.node import DELETED, KEY_LENGTH_MAX, Node

T = TypeVar("T")
Steps: TypeAlias = Generator[list[NodePath], Mapping[NodePath, Node], T]
"""Yields the paths needed next (each once, never an empty list), receives a mapping with all of them, returns a T."""

_BELOW_ALL = Key("")
_ABOVE_ALL = Key("\U0010ffff" * (KEY_LENGTH_MAX + 1))
"""A key longer than any allowed key, so above all keys."""


class Applied(msgspec.Struct, frozen=True):
    """A new tree. `created` holds only the new nodes below `root`."""

    root: Node
    created: dict[NodePath, Node]


def run(steps: Steps[T], load: Callable[[list[NodePath]], Mapping[NodePath, Node]]) -> T:
    """Drive `steps` and return their result. `load` returns every requested node, or raises."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(load(wanted))
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(
    steps: Steps[T], load: Callable[[list[NodePath]], Awaitable[Mapping[NodePath, Node]]]
) -> T:
    """Drive `steps` and return their result. `load` returns every requested node, or raises."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(await load(wanted))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _run_together(steps: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run several generators in step, so that the nodes that they need at the same time are one request."""
    if len(steps) == 1:
        return [(yield from steps[0])]
    results: dict[int, T] = {}
    waiting: dict[int, list[NodePath]] = {}
    nodes: Mapping[NodePath, Node] | None = None
    active = dict(enumerate(steps))
    while active:
        waiting.clear()
        for index, each in list(active.items()):
            try:
                waiting[index] = next(each) if nodes is None else each.send(nodes)
            except StopIteration as stop:
                results[index] = stop.value
                del active[index]
        if active:
            nodes = yield list(dict.fromkeys(path for paths in waiting.values() for path in paths))
    return [results[index] for index in range(len(steps))]


# --- reading ---------------------------------------------------------------------------------------

_Item = tuple[Key, str]


class _Place(msgspec.Struct, frozen=True, gc=False):
    """A subtree that is not loaded. Its keys are strictly between `low` and `high`. The root has depth 0."""

    path: NodePath
    low: Key
    high: Key
    depth: int


_ROOT = _Place(NodePath(""), _BELOW_ALL, _ABOVE_ALL, 0)


class _Levels:
    """The level of the leaves of one tree, as far as the tree has been read."""

    def __init__(self, root: Node) -> None:
        self.leaf_depth = DEPTH_MAX - 1
        self.leaf_found = False
        self.inner_depth = -1
        self.enter(root, _ROOT)

    def enter(self, node: Node, place: _Place) -> Node:
        """Return `node`, loaded from `place`. Raise Corrupt when the node does not belong there."""
        keys = node.keys
        if keys and not (place.low < keys[0] and keys[-1] < place.high):
            raise _corrupt(place, "holds keys outside the separators around it")
        if node.children:
            self.inner_depth = max(self.inner_depth, place.depth)
        elif not self.leaf_found:
            self.leaf_found, self.leaf_depth = True, place.depth
        if place.depth > self.leaf_depth or (place.depth < self.leaf_depth and not node.children):
            raise _corrupt(place, "is a leaf at another level than the leaves before it, or is below a leaf")
        if self.inner_depth >= self.leaf_depth:
            if self.leaf_found:
                raise _corrupt(
                    place, "is at the level of the leaves and has children, or the other way round"
                )
            raise _corrupt(place, f"is {DEPTH_MAX} levels deep and has children")
        return node


def _corrupt(place: _Place, reason: str) -> Corrupt:
    return Corrupt(
        f"{place.path or 'the root node'} {reason}",
        kind="corrupt_tree",
        path=place.path,
        hint="restore the file from a copy; earlier versions may still be readable",
    )


def _places(node: Node, place: _Place, start: int = 0, end: int | None = None) -> list[_Place]:
    """Return the places of the children [start, end) of `node`, which was loaded from `place`."""
    keys, depth = node.keys, place.depth + 1
    return [
        _Place(
            node.children[index],
            keys[index - 1] if index else place.low,
            keys[index] if index < len(keys) else place.high,
            depth,
        )
        for index in range(start, len(node.children) if end is None else end)
    ]


def find(root: Node, keys: Iterable[Key]) -> Steps[dict[Key, str]]:
    """Find the values of those `keys` that exist, in ascending order. Makes one request for each level."""
    found: dict[Key, str] = {}
    levels = _Levels(root)
    frontier = [(root, _ROOT, sorted(set(keys)))]
    while frontier:
        below: list[tuple[_Place, list[Key]]] = []
        for node, place, wanted in frontier:
            missed: dict[int, list[Key]] = {}
            for key in wanted:
                index = bisect_left(node.keys, key)
                if index < len(node.keys) and node.keys[index] == key:
                    if node.values[index] != DELETED:
                        found[key] = node.values[index]
                else:
                    missed.setdefault(index, []).append(key)
            if node.children and missed:
                below += [(_places(node, place, index, index + 1)[0], rest) for index, rest in missed.items()]
        if not below:
            break
        nodes = yield _paths(place for place, _ in below)
        frontier = [(levels.enter(nodes[place.path], place), place, rest) for place, rest in below]
    return {key: found[key] for key in sorted(found)}


class Leaf(msgspec.Struct, frozen=True):
    """The entries of a tree strictly between two keys. `below` None means that there is no upper bound."""

    above: Key
    below: Key | None
    items: tuple[_Item, ...]


def random_leaves(root: Node, rng: random.Random, count: int) -> Steps[list[Leaf]]:
    """Return at most `count` leaves, each found by a random path from the root. In a tree that we wrote all leaves are
    about equally likely. Makes one request for each level."""
    levels = _Levels(root)
    ways = [(root, _ROOT)] * count
    while any(node.children for node, _ in ways):
        picked = []
        for node, place in ways:
            index = rng.randrange(len(node.children))
            picked += _places(node, place, index, index + 1)
        nodes = yield _paths(picked)
        ways = [(levels.enter(nodes[place.path], place), place) for place in picked]
    leaves = []
    for place, node in {place: node for node, place in ways}.items():
        items = tuple(item for item in zip(node.keys, node.values, strict=True) if item[1] != DELETED)
        leaves.append(Leaf(place.low, None if place.high == _ABOVE_ALL else place.high, items))
    return leaves


def sorts_otherwise_in_utf16(key: str) -> bool:
    """Return whether a key can sort differently in UTF-16 order than by code points."""
    return bool(key) and max(key) >= "\ue000"


def probe_utf16_order(root: Node, keys: Sequence[Key]) -> Steps[None]:
    """Load the nodes that would hold `keys` if the tree were in UTF-16 order, which the Java SDK writes.

    Raises Corrupt when those nodes are not at their place in our order, because the wanted keys may then exist where we
    do not look. An inner node in UTF-16 order is refused when it is read, so only places of whole subtrees can differ.
    """
    levels = _Levels(root)
    frontier = [(root, _ROOT, key.encode("utf-16-be")) for key in keys]
    while frontier:
        below = []
        for node, place, key in frontier:
            if node.children:
                index = bisect_left(node.keys, key, key=lambda other: other.encode("utf-16-be"))
                below.append((_places(node, place, index, index + 1)[0], key))
        if not below:
            break
        nodes = yield _paths(place for place, _ in below)
        frontier = [(levels.enter(nodes[place.path], place), place, key) for place, key in below]


def _paths(places: Iterable[_Place]) -> list[NodePath]:
    return list(dict.fromkeys(place.path for place in places))


def scan(root: Node, low: Key, high: Key, *, limit: int | None = None) -> Steps[list[_Item]]:
    """Return the entries of [low, high), ascending, at most `limit`.

    Without a limit a whole level is one request. With a limit, a request holds only subtrees that must be read. The
    node sizes seen so far tell how many entries a subtree can hold at most: in a tree that we wrote no node except the
    root holds more than twice as many keys as another node, plus one. In other trees the scan may read a few more
    nodes.
    """
    if low >= high or (limit is not None and limit <= 0):
        return []
    levels = _Levels(root)
    size_seen = 0
    # The answer in reverse order: runs of entries, and between them subtrees not read yet.
    todo: list[list[_Item] | _Place] = []
    todo += reversed(_expand(root, _ROOT, low, high))
    result: list[_Item] = []
    while todo and (limit is None or len(result) < limit):
        head = todo.pop()
        if isinstance(head, list):
            result += head
            continue
        todo.append(head)
        room = None if limit is None else limit - len(result)
        capacity = (2 * size_seen + 2) ** (levels.leaf_depth - head.depth + 1) if levels.leaf_found else None
        start, batch = _next_batch(todo, head.depth, room, capacity)
        nodes = yield _paths(batch)
        tail: list[list[_Item] | _Place] = []
        for element in reversed(todo[start:]):
            if isinstance(element, _Place) and element.depth == head.depth:
                node = levels.enter(nodes[element.path], element)
                size_seen = max(size_seen, len(node.keys))
                tail += _expand(node, element, low, high)
            else:
                tail.append(element)
        todo[start:] = reversed(tail)
    return result if limit is None else result[:limit]


def _next_batch(
    todo: Sequence[list[_Item] | _Place], depth: int, room: int | None, capacity: int | None
) -> tuple[int, list[_Place]]:
    """Return the subtrees at `depth` that must be read to fill `room`, and the index in `todo` at which they begin.

    `room` None means no bound. Each subtree holds fewer than `capacity` entries; None means unknown.
    """
    batch: list[_Place] = []
    start = len(todo)
    while start and (room is None or room > 0):
        element = todo[start - 1]
        if isinstance(element, list):
            room = None if room is None else room - len(element)
        elif element.depth != depth:
            break
        else:
            batch.append(element)
            if room is not None:
                room = room - capacity + 1 if capacity else 0
        start -= 1
    return start, batch


def _expand(node: Node, place: _Place, low: Key, high: Key) -> list[list[_Item] | _Place]:
    """Return the content of `node` in [low, high) in order: runs of entries, and subtrees between them."""
    keys, values = node.keys, node.values
    start, end = bisect_left(keys, low), bisect_left(keys, high)
    if not node.children:
        items = list(zip(keys[start:end], values[start:end], strict=True))
        return [[item for item in items if item[1] != DELETED] if DELETED in values else items]
    places = _places(node, place, start, end + 1)
    # When the first separator is `low` itself, the subtree on its left is below `low`.
    parts: list[list[_Item] | _Place] = [] if start < end and keys[start] == low else [places[0]]
    for index, below in zip(range(start, end), places[1:], strict=True):
        if values[index] != DELETED:
            parts.append([(keys[index], values[index])])
        parts.append(below)
    return parts


def diff(before: Node, after: Node) -> Steps[list[tuple[Key, str | None, str | None]]]:
    """Return (key, value before, value after) of every key whose value differs, ascending. None means absent.

    A subtree that both trees hold under one path between the same separators is never loaded, whatever the heights of
    the trees. Where a separator beside the subtree moved, the nodes along that edge may be loaded. No node is loaded
    twice, and each round is one request.
    """
    if before == after:
        return []
    gone: dict[Key, str] = {}
    come: dict[Key, str] = {}
    sides = ((_Levels(before), gone), (_Levels(after), come))
    known: dict[NodePath, Node] = {}
    frontiers = [
        _collect(root, _ROOT, items) for root, (_, items) in zip((before, after), sides, strict=True)
    ]
    while True:
        # Equal paths mean equal content, so subtrees that both sides hold cancel out, at whatever place they are.
        shared = {place.path for place in frontiers[0]} & {place.path for place in frontiers[1]}
        frontiers = [[place for place in frontier if place.path not in shared] for frontier in frontiers]
        if not any(frontiers):
            break
        waiting = _find_covered(*frontiers)
        ready = _paths(place for frontier in frontiers for place in frontier if place not in waiting)
        wanted = [path for path in ready if path not in known]
        if wanted:
            nodes = yield wanted
            known.update((path, nodes[path]) for path in wanted)
        for side, (levels, items) in enumerate(sides):
            rest: list[_Place] = []
            for place in frontiers[side]:
                if place in waiting:
                    rest.append(place)
                else:
                    rest += _collect(levels.enter(known[place.path], place), place, items)
            frontiers[side] = rest
    keys = sorted(gone.keys() | come.keys())
    pairs = ((key, gone.get(key), come.get(key)) for key in keys)
    return [(key, old, new) for key, old, new in pairs if old != new]


def _collect(node: Node, place: _Place, items: dict[Key, str]) -> list[_Place]:
    """Put the entries of `node` into `items`, and return its children in order."""
    items.update(zip(node.keys, node.values, strict=True))
    if DELETED in node.values:
        for key, value in zip(node.keys, node.values, strict=True):
            if value == DELETED:
                del items[key]
    return _places(node, place) if node.children else []


def _find_covered(left: Sequence[_Place], right: Sequence[_Place]) -> set[_Place]:
    """Return the subtrees of either side whose range is strictly within the range of a subtree of the other side. They
    wait, because the other subtree may turn out to hold the same path. Each side is ascending and disjoint."""
    covered: set[_Place] = set()
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = left[i], right[j]
        if max(a.low, b.low) < min(a.high, b.high) and (a.low, a.high) != (b.low, b.high):
            if a.low <= b.low and b.high <= a.high:
                covered.add(b)
            elif b.low <= a.low and a.high <= b.high:
                covered.add(a)
        if a.high <= b.high:
            i += 1
        if b.high <= a.high:
            j += 1
    return covered


def _never(_: NodePath) -> bool:
    return False


def verify(root: Node, *, order: int, is_foreign: Callable[[NodePath], bool] = _never) -> Steps[list[str]]:
    """Describe every broken invariant of the tree; the list is empty for a tree that we wrote. Reads the whole tree.

    Unlike the other functions, `verify` does not stop at the first fault. It continues wherever that is safe, and below
    no node twice. `is_foreign` is called for every node after it is loaded (the root has an empty path). A node of
    other software may hold any number of keys and deleted keys, but its keys and its place must be correct.
    """
    problems: list[str] = []
    seen: set[NodePath] = set()
    leaf_depth: int | None = None
    frontier = [(root, _ROOT)]
    while frontier:
        below: list[_Place] = []
        for node, place in frontier:
            name = place.path or "the root"
            problems += [
                f"{name} {problem}" for problem in _node_problems(node, place, order, is_foreign(place.path))
            ]
            if not node.children:
                leaf_depth = place.depth if leaf_depth is None else leaf_depth
                if place.depth != leaf_depth:
                    problems.append(
                        f"{name} is a leaf at level {place.depth}, others are at level {leaf_depth}"
                    )
            elif len(node.children) != len(node.keys) + 1:
                problems.append(f"{name} has {len(node.children)} children and {len(node.keys)} keys")
            elif place.depth + 1 >= DEPTH_MAX:
                problems.append(f"{name} has children below level {DEPTH_MAX - 1}")
            else:
                for child in _places(node, place):
                    if child.path in seen:
                        problems.append(f"{child.path} is the child of two nodes, or is below itself")
                    else:
                        seen.add(child.path)
                        below.append(child)
        if not below:
            break
        nodes = yield _paths(below)
        frontier = [(nodes[place.path], place) for place in below]
    return problems


def _node_problems(node: Node, place: _Place, order: int, is_foreign: bool) -> list[str]:
    keys = node.keys
    problems = []
    if not is_foreign:
        if len(keys) > order - 1:
            problems.append(f"holds {len(keys)} keys, {order - 1} at most")
        if place.depth and len(keys) < _keys_min(order):
            problems.append(f"holds {len(keys)} keys, {_keys_min(order)} at least")
        if not place.depth and len(node.children) == 1:
            problems.append("has a single child")
        if DELETED in node.values:
            problems.append("holds rows of deleted keys")
    if any(a >= b for a, b in pairwise(keys)):
        problems.append("holds keys that do not ascend")
    if any(not place.low < key < place.high for key in keys):
        problems.append("holds keys outside the separators around it")
    return problems


# --- writing ---------------------------------------------------------------------------------------


class _Draft:
    """A node that is being rewritten. Its children are drafts too, or paths of unchanged subtrees.

    Between the steps of one rewrite a draft may hold too many or too few keys, and separators marked DELETED.
    """

    __slots__ = ("children", "keys", "values")

    def __init__(self, keys: list[Key], values: list[str], children: list[_Draft | NodePath]) -> None:
        self.keys = keys
        self.values = values
        self.children = children


def _draft(node: Node) -> _Draft:
    return _Draft(list(node.keys), list(node.values), list(node.children))


def _keys_min(order: int) -> int:
    return (order + 1) // 2 - 1


_Change = tuple[Key, str | None]


def apply(
    root: Node, changes: Mapping[Key, str | None], *, order: int, new_path: Callable[[], NodePath]
) -> Steps[Applied]:
    """Return the tree with all `changes` applied: a value puts, None deletes. Deleting an absent key changes nothing.

    Subtrees without a change keep their paths. When no change has an effect, the result is `root` itself and no new
    node. There is one exception: a commit always writes its root, so a root of other software that may not be written
    unchanged (more keys than `order` allows, deleted separators) is repaired.

    Raises InvalidInput (`too_large`) when the tree would get more than DEPTH_MAX levels.
    """
    assert DELETED not in changes.values(), "a value is a path"
    edit = _Edit(root, order)
    place = _ROOT
    draft = yield from edit.change(root, place, sorted(changes.items()))
    if draft is None:
        if len(root.keys) < order and DELETED not in root.values:
            return Applied(root, {})
        draft = _draft(root)
        yield from edit.repair(draft, place)
    while len(draft.children) == 1:
        draft = yield from edit.open(draft.children[0], edit.place(draft, 0, place))
        place = msgspec.structs.replace(place, depth=place.depth + 1)
        yield from edit.repair(draft, place)
    height = edit.levels.leaf_depth - place.depth + 1 if edit.levels.leaf_found else 1
    return _finish(draft, height, order, new_path)


def build(items: Iterable[_Item], *, order: int, new_path: Callable[[], NodePath]) -> Applied:
    """Build the tree of `items`, which ascend strictly. Nodes have equal sizes and are as full as possible."""
    entries = list(items)
    keys = [key for key, _ in entries]
    assert all(a < b for a, b in pairwise(keys)), "keys ascend"
    return _finish(_Draft(keys, [value for _, value in entries], []), 1, order, new_path)


def _finish(root: _Draft, height: int, order: int, new_path: Callable[[], NodePath]) -> Applied:
    """Split the root until it fits, and give every draft its path."""
    while len(root.keys) >= order:
        pieces, keys, values = _split(root, order)
        root = _Draft(keys, values, list(pieces))
        height += 1
    if height > DEPTH_MAX:
        raise InvalidInput(
            f"a tree of order {order} with these entries has {height} levels, {DEPTH_MAX} at most",
            kind="too_large",
            hint="create the catalog with a larger order",
        )
    created: dict[NodePath, Node] = {}

    def freeze(draft: _Draft) -> Node:
        children = []
        for child in draft.children:
            if isinstance(child, _Draft):
                path = new_path()
                created[path] = freeze(child)
                child = path
            children.append(child)
        return Node(tuple(draft.keys), tuple(draft.values), tuple(children))

    return Applied(freeze(root), created)


def _split(draft: _Draft, order: int) -> tuple[list[_Draft], list[Key], list[str]]:
    """Split the draft into as few pieces of equal size as `order` allows; return the pieces and the separators between
    them. Two or more pieces are never too small: each gets at least floor((order + 1) / 2) - 1 keys."""
    total = len(draft.keys) + 1
    count = -(-total // order)
    pieces: list[_Draft] = []
    keys: list[Key] = []
    values: list[str] = []
    start = 0
    for index in range(count):
        end = total * (index + 1) // count - 1
        pieces.append(_Draft(draft.keys[start:end], draft.values[start:end], draft.children[start : end + 1]))
        if index < count - 1:
            keys.append(draft.keys[end])
            values.append(draft.values[end])
        start = end + 1
    return pieces, keys, values


class _Edit:
    """The state of one `apply`. Each draft is passed together with its place: the separators around it, and its
    depth."""

    def __init__(self, root: Node, order: int) -> None:
        self.levels = _Levels(root)
        self.keys_max = order - 1
        self.keys_min = _keys_min(order)
        self.order = order

    def place(self, draft: _Draft, index: int, place: _Place) -> _Place:
        """Return the place of child `index` of `draft`."""
        child = draft.children[index]
        low = draft.keys[index - 1] if index else place.low
        high = draft.keys[index] if index < len(draft.keys) else place.high
        return _Place(NodePath("") if isinstance(child, _Draft) else child, low, high, place.depth + 1)

    def open(self, child: _Draft | NodePath, place: _Place) -> Steps[_Draft]:
        if isinstance(child, _Draft):
            return child
        nodes = yield [child]
        return _draft(self.levels.enter(nodes[child], place))

    def change(self, node: Node, place: _Place, changes: Sequence[_Change]) -> Steps[_Draft | None]:
        """Return a draft of `node` with the changes applied and all nodes below it legal, or None when nothing changes.

        The draft itself may hold too many or too few keys; the rewrite of its parent corrects that.
        """
        if not node.children:
            return _change_leaf(node, changes)
        values = list(node.values)
        below: dict[int, list[_Change]] = {}
        for key, value in changes:
            index = bisect_left(node.keys, key)
            if index < len(values) and node.keys[index] == key:
                values[index] = DELETED if value is None else value
            else:
                below.setdefault(index, []).append((key, value))
        draft = _Draft(list(node.keys), values, list(node.children))
        drafts = yield from _run_together(
            [self._change_child(self.place(draft, index, place), some) for index, some in below.items()]
        )
        for index, child in zip(below, drafts, strict=True):
            if child is not None:
                draft.children[index] = child
        if tuple(values) == node.values and not any(drafts):
            return None
        yield from self.repair(draft, place)
        return draft

    def _change_child(self, place: _Place, changes: Sequence[_Change]) -> Steps[_Draft | None]:
        nodes = yield [place.path]
        return (yield from self.change(self.levels.enter(nodes[place.path], place), place, changes))

    def repair(self, draft: _Draft, place: _Place) -> Steps[None]:
        """Make all drafts directly below `draft` legal: replace deleted separators, merge children with too few keys,
        split children with too many. This may leave a draft without keys above a single child with too few keys; the
        merge one level up then calls `repair` again."""
        if not draft.children:
            if DELETED in draft.values:
                entries = [e for e in zip(draft.keys, draft.values, strict=True) if e[1] != DELETED]
                draft.keys, draft.values = [key for key, _ in entries], [value for _, value in entries]
            return
        yield from self._replace_deleted(draft, place)
        yield from self._merge_small(draft, place)
        self._split_large(draft)

    def _replace_deleted(self, draft: _Draft, place: _Place) -> Steps[None]:
        """Replace each deleted separator by the largest entry to its left. When the subtree to its left is empty,
        remove the separator and the subtree."""
        gaps = [index for index, value in enumerate(draft.values) if value == DELETED]
        if not gaps:
            return
        largest = yield from _run_together([self._pop_child(draft, index, place) for index in gaps])
        for index, entry in reversed(list(zip(gaps, largest, strict=True))):
            if entry is None:
                del draft.keys[index], draft.values[index], draft.children[index]
            else:
                draft.keys[index], draft.values[index] = entry

    def _pop_child(self, draft: _Draft, index: int, place: _Place) -> Steps[_Item | None]:
        """Remove and return the largest entry of child `index`, or return None when the child holds no entry."""
        below = self.place(draft, index, place)
        child = yield from self.open(draft.children[index], below)
        draft.children[index] = child
        return (yield from self._pop(child, below))

    def _pop(self, draft: _Draft, place: _Place) -> Steps[_Item | None]:
        """Remove and return the largest entry of `draft`, and leave all nodes below it legal."""
        yield from self.repair(draft, place)
        if not draft.children:
            return (draft.keys.pop(), draft.values.pop()) if draft.keys else None
        entry = yield from self._pop_child(draft, len(draft.keys), place)
        if entry is None and draft.keys:
            draft.children.pop()
            entry = (draft.keys.pop(), draft.values.pop())
        yield from self.repair(draft, place)
        return entry

    def _merge_small(self, draft: _Draft, place: _Place) -> Steps[None]:
        index = 0
        while index < len(draft.children) and len(draft.children) > 1:
            child = draft.children[index]
            if not isinstance(child, _Draft) or len(child.keys) >= self.keys_min:
                index += 1
                continue
            left = index - 1 if self._prefer_left(draft, index) else index
            yield from self._merge(draft, left, place)
            index = left

    def _prefer_left(self, draft: _Draft, index: int) -> bool:
        """Return whether child `index` merges with its left sibling. It merges with the right sibling where only that
        one is loaded."""
        if index == 0:
            return False
        if index == len(draft.keys):
            return True
        return isinstance(draft.children[index - 1], _Draft) or not isinstance(
            draft.children[index + 1], _Draft
        )

    def _merge(self, draft: _Draft, index: int, place: _Place) -> Steps[None]:
        """Merge children `index` and `index + 1` into one child, which may then hold too many keys."""
        left = yield from self.open(draft.children[index], self.place(draft, index, place))
        right = yield from self.open(draft.children[index + 1], self.place(draft, index + 1, place))
        merged = _Draft(
            [*left.keys, draft.keys[index], *right.keys],
            [*left.values, draft.values[index], *right.values],
            [*left.children, *right.children],
        )
        del draft.keys[index], draft.values[index]
        draft.children[index : index + 2] = [merged]
        yield from self.repair(merged, self.place(draft, index, place))

    def _split_large(self, draft: _Draft) -> None:
        for index in range(len(draft.children) - 1, -1, -1):
            child = draft.children[index]
            if isinstance(child, _Draft) and len(child.keys) > self.keys_max:
                pieces, keys, values = _split(child, self.order)
                draft.children[index : index + 1] = pieces
                draft.keys[index:index] = keys
                draft.values[index:index] = values


def _change_leaf(node: Node, changes: Sequence[_Change]) -> _Draft | None:
    keys, values = list(node.keys), list(node.values)
    if DELETED in values:
        keys = [key for key, value in zip(keys, values, strict=True) if value != DELETED]
        values = [value for value in values if value != DELETED]
    changed = (
        _merge_few(keys, values, changes) if len(changes) <= _FEW else _merge_many(keys, values, changes)
    )
    return _Draft(keys, values, []) if changed else None


_FEW = 32
"""Up to this number of changes of a leaf, applying them one by one is cheaper than sorting again (measured at 127
keys)."""


def _merge_few(keys: list[Key], values: list[str], changes: Sequence[_Change]) -> bool:
    """Apply ascending changes in place. Return whether they had an effect."""
    changed = False
    place = 0
    for key, value in changes:
        place = bisect_left(keys, key, place)
        there = place < len(keys) and keys[place] == key
        if there and value is None:
            del keys[place], values[place]
        elif there and value is not None and values[place] != value:
            values[place] = value
        elif not there and value is not None:
            keys.insert(place, key)
            values.insert(place, value)
        else:
            continue
        changed = True
    return changed


def _merge_many(keys: list[Key], values: list[str], changes: Sequence[_Change]) -> bool:
    entries = dict(zip(keys, values, strict=True))
    changed = False
    for key, value in changes:
        if entries.get(key) == value:
            continue
        changed = True
        if value is None:
            del entries[key]
        else:
            entries[key] = value
    if changed:
        keys[:] = sorted(entries)
        values[:] = [entries[key] for key in keys]
    return changed
