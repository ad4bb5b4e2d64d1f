"""Names, look-ups and changes over a catalog of a million objects in memory, beside a dict with a sorted list.

    make bench BENCH=names                      10^6 tables, 1,000 a namespace
    make bench BENCH=names ARGS="--quick"       10^5
    make bench BENCH=names ARGS="--profile"     with a profile

The figures are CPU time in one process. `changed` lines have an overlay of 100 changes all over the catalog; the other
lines have none.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import platform
import pstats
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable

from large_catalog import definition, table_keys

from alpheus_journal import format as fmt
from alpheus_journal.format import Key, Kind
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.replay.flat import FlatBuilder, pack
from alpheus_journal.replay.state import State, VersionRecord
from alpheus_journal.replay.symbols import SymbolQuery, Symbols

WHOLE_SECONDS_MAX = 0.1
PAGE_SECONDS_MAX = 0.002


def cost(work: Callable[[], object], rounds: int, times: int = 1) -> float:
    """Return the median CPU seconds of one call."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - started) / times)
    return statistics.median(found)


def line(what: str, seconds: float, most: float | None = None, peer: str = "", other: float = 0.0) -> bool:
    scale, unit = (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    bound = "" if most is None else f"   at most {most * 1e3:g} ms: {'met' if seconds <= most else 'MISSED'}"
    beside = f"   {peer} {other * scale:.3g} {unit}, ratio {seconds / other:.1f}" if peer else ""
    print(f"{what:54} {seconds * scale:9.3g} {unit}{bound}{beside}")
    return most is None or seconds <= most


def state_of(keys: list[Key]) -> State:
    builder, data = FlatBuilder(), definition()
    builder.extend(
        (pack(key), StoredObject(f"def/table/{row:036}.binpb", data)) for row, key in enumerate(keys)
    )
    return State(
        keys=fmt.Keys(), catalog_id="c", version=0, created_at_millis=0, catalog=StoredObject("cat", b""),
        flat=builder.build(),
    )  # fmt: skip


def record_of(state: State, names: list[fmt.ObjectName]) -> tuple[VersionRecord, dict[str, StoredObject]]:
    """Return the next version: a third of the names changed, a third dropped, and as many new ones added."""
    changes, definitions = [], {}
    for index, name in enumerate(names):
        held = state.get(name)
        after = f"new-{state.version}-{index}"
        made = StoredObject(after, b"x")
        if index % 3 == 2 or held is None:
            other = fmt.table_name(name.namespace, f"{name.name}-{state.version}")
            changes.append((state.keys.key(other), None, after))
        elif index % 3 == 1:
            changes.append((state.keys.key(name), held.path, None))
            continue
        else:
            changes.append((state.keys.key(name), held.path, after))
        definitions[after] = made
    record = VersionRecord(
        version=state.version + 1, commit_id="i", created_at_millis=state.version + 1, transactions=(),
        changes=tuple(sorted(changes)), catalog_def_before="cat", catalog_def_after="cat",
    )  # fmt: skip
    return record, definitions


def measure(count: int, profile: bool) -> bool:
    rng = random.Random(3)
    keys = table_keys(count)
    state = state_of(keys)
    names = [
        fmt.table_name(f"ns{n // 1000:06}", f"table{n % 1000:04}") for n in rng.sample(range(count), 1000)
    ]
    entries = {key: StoredObject("p", b"x") for key in keys}
    order = sorted(entries)
    gc.collect()
    gc.freeze()
    ok = True
    parse = state.keys.parse

    def whole(symbols: Symbols) -> None:
        view = symbols.view()
        assert view is not None
        found = sum(len(names) for _, _, names, _ in view.groups(Key(""), None))
        assert found == len(view)

    def listed(symbols: Symbols, space: str, limit: int = 1000) -> None:
        view = symbols.view()
        assert view is not None
        assert len(view.list(SymbolQuery(kind=Kind.TABLE, namespace=space, limit=limit))) >= 990

    def peer_page() -> None:
        low, high = state.keys.bounds(Kind.TABLE, "ns000050")
        found = [parse(key).name for key in order[bisect_left(order, low) : bisect_left(order, high)]]
        assert len(found) == 1000

    peer = cost(peer_page, 5)
    for changed in ("", ", changed"):
        symbols = Symbols(state.keys, state.flat.keys, 0, changes=state.presence())
        bound = None if count < 1_000_000 else WHOLE_SECONDS_MAX
        ok &= line(
            f"names of {count:,} objects, whole{changed}", cost(lambda: whole(symbols), 7),  # noqa: B023
            bound, "list by parsing keys", peer * count / 1000,
        )  # fmt: skip
        ok &= line(
            f"page of 1,000 names{changed}",
            cost(lambda: state.names(Kind.TABLE, namespace="ns000050"), 7, 20), PAGE_SECONDS_MAX,
            "list by parsing keys", peer,
        )  # fmt: skip
        ok &= line(
            f"page of 1,000 symbols{changed}",
            cost(lambda: listed(symbols, "ns000050"), 7, 20),  # noqa: B023
            PAGE_SECONDS_MAX,
        )
        keyed = [state.keys.key(name) for name in names]
        line(
            f"look-up of one object{changed}", cost(lambda: [state.get(name) for name in names], 9) / 1000, None,
            "dict, key made before", cost(lambda: [entries.get(key) for key in keyed], 9) / 1000,  # noqa: B023
        )  # fmt: skip
        if not changed:
            steps = [record_of(state, rng.sample(names, 100))]
            started = time.process_time()
            state.apply(*steps[0])
            line("applying 100 changes of one version", time.process_time() - started)
    overlay = state.overlay()
    line("new base with 100 changes (aside)", cost(lambda: state.flat.merged(overlay), 5))
    base = Symbols(state.keys, state.flat.keys, 0, changes=state.presence())
    line("compacting 100 names (aside)", cost(lambda: base.compaction().run(), 5))
    view = base.view()
    assert view is not None
    line("pattern *0500 over all names (aside)", cost(lambda: view.list(SymbolQuery(pattern="*0500")), 3))
    if profile:
        profiler = cProfile.Profile()
        profiler.runcall(lambda: [whole(base) for _ in range(5)])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(8)
        profiler = cProfile.Profile()
        profiler.runcall(lambda: [state.get(name) for name in names])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(8)
    return ok


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return 0 if measure(100_000 if asked.quick else 1_000_000, asked.profile) else 1


if __name__ == "__main__":
    raise SystemExit(main())
