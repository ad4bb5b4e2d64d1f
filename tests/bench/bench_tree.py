"""The speed of reading a node and of changing, building and comparing a tree, beside peers in the same run.

    make bench BENCH=tree                       the lines, the table, the plot
    make bench BENCH=tree ARGS="--quick"        trees of 10^5 keys at most

The plot in tests/bench/diff_cost.svg shows that the cost of a structural diff depends on the size of the change and not
on that of the catalog.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import platform
import random
import statistics
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from log_plot import log_plot

from alpheus_journal import format as fmt
from alpheus_journal.format import Key, NodePath
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.node import Node, decode_node, encode_node

HERE = Path(__file__).resolve().parent
ORDER = fmt.ORDER_DEFAULT
CHANGES = (1, 10, 100, 1_000)

LEAF_MICROSECONDS_MAX = 100
APPLY_SECONDS_MAX = 0.5
BUILD_SECONDS_MAX = 15.0


def names(count: int) -> list[Key]:
    """Return keys of `count` tables, 1,000 for each namespace, ascending."""
    keys = fmt.Keys()
    return [
        keys.key(fmt.table_name(f"ns{number // 1000:06}", f"table{number % 1000:04}"))
        for number in range(count)
    ]


def value(rng: random.Random, key: str) -> str:
    return fmt.definition_path(fmt.Keys().parse(key), str(uuid.UUID(int=rng.getrandbits(128), version=4)))


def paths() -> Callable[[], NodePath]:
    numbers = itertools.count()
    return lambda: fmt.node_path(f"00000000-0000-4000-8000-{next(numbers):012x}")


def seconds(work: Callable[[], object], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return found


def line(
    what: str, found: float, unit: str, most: float | None, peer: str = "", peer_value: float = 0.0
) -> bool:
    """Print one result. Return whether it is within its limit."""
    bound = "" if most is None else f"   at most {most:g}: {'met' if found <= most else 'MISSED'}"
    beside = f"   {peer} {peer_value:.3g} {unit}, ratio {found / peer_value:.1f}" if peer else ""
    print(f"{what:46} {found:10.4g} {unit}{bound}{beside}")
    return most is None or found <= most


class Built:
    """A tree in memory with every node that it ever had."""

    def __init__(self, items: list[tuple[Key, str]]) -> None:
        self.new_path = paths()
        self.started = time.process_time()
        applied = tree.build(items, order=ORDER, new_path=self.new_path)
        self.build_seconds = time.process_time() - self.started
        self.root, self.nodes = applied.root, dict(applied.created)
        self.loaded = 0

    def load(self, wanted: list[NodePath]) -> Mapping[NodePath, Node]:
        self.loaded += len(wanted)
        return {path: self.nodes[path] for path in wanted}

    def changed(self, changes: dict[Key, str | None]) -> tuple[Node, float]:
        started = time.process_time()
        applied = tree.run(tree.apply(self.root, changes, order=ORDER, new_path=self.new_path), self.load)
        took = time.process_time() - started
        self.nodes.update(applied.created)
        return applied.root, took


def leaf_line() -> bool:
    rng = random.Random(1)
    keys = tuple(names(ORDER - 1))
    leaf = Node(keys, tuple(value(rng, key) for key in keys))
    data = encode_node(leaf, order=ORDER, created_at_millis=1, size_max=1 << 20)

    def ours() -> None:
        decode_node(data, "node/x.arrow", root=False, size_max=1 << 20)

    def bare() -> None:
        batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
        [column.to_pylist() for column in batch.columns]

    pairs = [(min(seconds(ours, 50)), min(seconds(bare, 50))) for _ in range(40)]
    us, peer = (statistics.median(pair[side] for pair in pairs) * 1e6 for side in (0, 1))
    what = f"leaf of {len(keys)} keys, {len(data) / 1e3:.0f} kB: decode, all checks"
    return line(what, us, "us", LEAF_MICROSECONDS_MAX, "pyarrow unchecked", peer)


def big_lines(count: int) -> bool:
    rng = random.Random(2)
    keys = names(count)
    items = [(key, value(rng, key)) for key in keys]
    built = Built(items)
    started = time.process_time()
    peer = dict(items)
    order = sorted(peer)
    peer_seconds = time.process_time() - started
    what = f"bulk build of {count:,} keys"
    ok = line(what, built.build_seconds, "s", BUILD_SECONDS_MAX, "dict and sort", peer_seconds)
    gc.freeze()  # leave this script's own lists of a million entries out of the measurement
    for spread, start in (("spread evenly", 0), ("in a row", count // 3)):
        step = max(1, count // 10_000) if not start else 1
        touched = keys[start::step][:10_000]
        changes: dict[Key, str | None] = {}
        for index, key in enumerate(touched):
            other = Key(key[:-1] + "x") if index % 3 == 1 else key  # a third each: replaced, new, deleted
            changes[other] = None if index % 3 == 2 else value(rng, key)
        found = min(built.changed(changes)[1] for _ in range(7))

        def in_place(changes: dict[Key, str | None] = changes) -> None:
            state, listed = dict(peer), list(order)
            for key, new in changes.items():
                place = bisect_left(listed, key)
                there = place < len(listed) and listed[place] == key
                if new is None:
                    del state[key]
                    del listed[place]
                else:
                    state[key] = new
                    if not there:
                        listed.insert(place, key)

        beside = min(seconds(in_place, 5))
        ok &= line(
            f"apply {len(changes):,} sorted keys, {spread}", found, "s", APPLY_SECONDS_MAX,
            "new dict and list", beside,
        )  # fmt: skip
    return ok


def diff_table(sizes: list[int]) -> dict[int, list[tuple[int, float, int]]]:
    """Return for each size of change: (keys of the catalog, seconds of a diff, nodes that the diff loads)."""
    table: dict[int, list[tuple[int, float, int]]] = {change: [] for change in CHANGES}
    print(
        "\nstructural diff, changed keys in a row: milliseconds (nodes loaded); beside it, two dicts compared"
    )
    print(f"{'keys':>10} " + "".join(f"{change:>18,}" for change in CHANGES) + f"{'dicts':>12}")
    for size in sizes:
        rng = random.Random(size)
        keys = names(size)
        items = [(key, value(rng, key)) for key in keys]
        built = Built(items)
        gc.freeze()
        cells = []
        for change in CHANGES:
            took, loaded = [], []
            for _ in range(9):
                first = rng.randrange(size - min(change, size) + 1)
                after, _ = built.changed({key: value(rng, key) for key in keys[first : first + change]})
                built.loaded = 0
                started = time.process_time()
                found = tree.run(tree.diff(built.root, after), built.load)
                took.append(time.process_time() - started)
                loaded.append(built.loaded)
                assert len(found) == min(change, size)
            table[change].append((size, min(took), int(statistics.median(loaded))))
            cells.append(f"{min(took) * 1e3:10.3f} ({statistics.median(loaded):5.0f})")
        before, after_items = dict(items), dict(items)
        started = time.process_time()
        assert not [key for key in after_items if before.get(key) != after_items[key]]
        print(f"{size:>10,} " + "".join(cells) + f"{(time.process_time() - started) * 1e3:12.3f}")
    return table


def plot(table: dict[int, list[tuple[int, float, int]]], machine: str) -> str:
    """Return a plot of milliseconds against keys in the catalog, one line for each size of change."""
    return log_plot(
        {
            f"{change:,} key{'s' if change > 1 else ''}": [(size, took * 1e3) for size, took, _ in points]
            for change, points in table.items()
        },
        title="Structural diff: cost follows the change, not the catalog",
        subtitle=machine,
        x_label="keys in the catalog",
        y_label="milliseconds",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path, default=HERE / "diff_cost.svg")
    options = parser.parse_args()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    machine = f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, pyarrow {pa.__version__}"
    print(f"{machine}; order {ORDER}, one thread, nodes in memory; CPU time, best of several")
    ok = leaf_line()
    ok &= big_lines(100_000 if options.quick else 1_000_000)
    table = diff_table([1_000, 10_000, 100_000] if options.quick else [1_000, 10_000, 100_000, 1_000_000])
    options.plot.write_text(plot(table, f"order {ORDER}, {machine}, nodes in memory, CPU time"))
    print(f"\nplot: {options.plot}")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
