"""Committed transactions of one object each, compared with etcd, Nessie and PyIceberg's SqlCatalog.

    make bench BENCH=peers                            five rounds, about ten minutes
    make bench BENCH=peers ARGS="--rounds 1 --seconds 1 --only Alpheus,etcd"
    make bench BENCH=peers ARGS="--profile"           also a profile of the daemon

Every server is a separate process on a temporary directory, and so is every client. `--directory` chooses the
directory, and so the disk. A cell is one server, one operation and one number of clients. A round runs every cell once,
in random order. The output has the median over the rounds, ratios first. It has the CPU of both sides, and the share of
the machine that other programs took. A cell with more than FOREIGN_MAX of that share is marked, because its figure is
of a busy machine. The clients of etcd and of the daemon's bare calls have the same style and library, so that the
servers are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import pstats
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from peers import Cell, Client, Server, alpheus_daemon, etcd, missing, nessie, sqlcatalog

CLIENTS = (1, 64, 256)
THREADS = (1, 4, 64, 256)
FOREIGN_MAX = 0.10
WARM_UP_SECONDS, WARM_UP_CLIENTS, WARM_UP_TURNS_MAX = 5.0, 16, 12
SQLCATALOG_RATIO_MIN, NESSIE_RATIO_MIN = 20, 5

OPERATIONS = {"create": "creations", "update": "updates", "exists": "`table_exists`"}
ALPHEUS, BARE = "Alpheus", "Alpheus, bare calls"
ETCD, SQLCATALOG = "etcd", "PyIceberg SqlCatalog"
NESSIES = {"Nessie, in memory": "IN_MEMORY", "Nessie, RocksDB": "ROCKSDB"}


class Key(NamedTuple):
    """The key of a cell: the peer, the operation, the number of clients."""

    peer: str
    operation: str
    clients: int


class Asked(NamedTuple):
    """How a peer is measured."""

    client: Client
    server: Server
    load: str
    operations: tuple[str, ...]
    clients: tuple[int, ...] = CLIENTS


@contextlib.contextmanager
def all_started(directory: Path, only: list[str]) -> Iterator[dict[str, Asked]]:
    """Start every peer that is installed and wanted, and yield them by name."""
    lacking = missing()

    def wanted(name: str) -> bool:
        product = next((product for product in lacking if name.startswith(product)), "")
        if product:
            print(f"{name.upper()} IS LEFT OUT: it is not here; {lacking[product]}")
        return not product and (not only or any(name.startswith(one) for one in only))

    with contextlib.ExitStack() as stack:
        client = Client("peer_client.py")
        stack.callback(client.close)
        asked = {}
        if wanted(ALPHEUS):
            daemon = stack.enter_context(alpheus_daemon(directory / "alpheus"))
            asked[ALPHEUS] = Asked(client, daemon, "library", ("create", "update", "exists"))
            asked[BARE] = Asked(client, daemon, "bare", ("create", "update"))
        if wanted(ETCD):
            server = stack.enter_context(etcd(directory / "etcd"))
            asked[ETCD] = Asked(client, server, "etcd", ("create", "update"))
        for name, store in NESSIES.items():
            if wanted(name):
                server = stack.enter_context(nessie(directory / store, store))
                asked[name] = Asked(client, server, "nessie", ("create",))
        if wanted(SQLCATALOG):
            threads = Client("peer_sqlcatalog.py")
            stack.callback(threads.close)
            server = sqlcatalog(directory / "sqlcatalog")
            asked[SQLCATALOG] = Asked(threads, server, "", ("create", "exists"), THREADS)
        yield asked


def measure(asked: dict[str, Asked], rounds: int, seconds: float) -> dict[Key, Cell]:
    """Return the median of every figure over the rounds."""
    tags = itertools.count()
    found: dict[Key, list[Cell]] = {
        Key(name, operation, clients): []
        for name, peer in asked.items()
        for operation in peer.operations
        for clients in peer.clients
    }

    def run(key: Key, duration: float) -> Cell:
        peer = asked[key.peer]
        return peer.client.measure(
            peer.server, load=peer.load, operation=key.operation, clients=key.clients, seconds=duration,
            tag=f"t{next(tags)}",
        )  # fmt: skip

    for name in asked:
        warm_up(name, run)
    for number in range(rounds):
        for key in random.sample(list(found), len(found)):
            found[key].append(run(key, seconds))
        print(
            f"round {number + 1} of {rounds}, load average {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
            flush=True,
        )
    return {
        key: Cell(*(statistics.median(column) for column in zip(*cells, strict=True)))._replace(
            best=max(cell.rate for cell in cells)
        )
        for key, cells in found.items()
    }


def warm_up(peer: str, run: Callable[[Key, float], Cell]) -> None:
    """Warm the peer up. A virtual machine compiles for a minute, until its rate stops growing."""
    key = Key(peer, "create", WARM_UP_CLIENTS if peer in NESSIES else 1)
    rates = [run(key, WARM_UP_SECONDS if peer in NESSIES else 0.5).rate]
    while peer in NESSIES and len(rates) < WARM_UP_TURNS_MAX:
        rates.append(run(key, WARM_UP_SECONDS).rate)
        if len(rates) > 3 and max(rates[-2:]) < 1.1 * max(rates[:-2]):
            break
    print(f"{peer} is warm after rates of {', '.join(f'{rate:.0f}' for rate in rates)}", file=sys.stderr)


# --- output ----------------------------------------------------------------------------------------


def ratio_table(cells: dict[Key, Cell], operation: str) -> list[str]:
    """Return a table with the daemon's rate divided by each peer's, at each number of clients."""
    lines = [
        f"| {OPERATIONS[operation]} a second | 1 client | 64 clients | 256 clients | best to best |",
        "| --- " * 5 + "|",
    ]
    for ours, peer in itertools.product((ALPHEUS, BARE), (ETCD, *NESSIES, SQLCATALOG)):
        if Key(ours, operation, 1) not in cells or Key(peer, operation, 1) not in cells:
            continue
        ratios = [
            ratio(cells[Key(ours, operation, clients)], cells[Key(peer, operation, clients)])
            if Key(peer, operation, clients) in cells
            else "-"
            for clients in CLIENTS
        ]
        best_to_best = ratio(best(cells, ours, operation), best(cells, peer, operation))
        lines.append(f"| {ours} : {peer} | {' | '.join(ratios)} | **{best_to_best}** |")
    return lines


def ratio(ours: Cell, theirs: Cell) -> str:
    if not theirs.rate:
        return "-"
    mark = "*" if max(ours.foreign, theirs.foreign) > FOREIGN_MAX else ""
    return f"{ours.rate / theirs.rate:.3g}{mark}"


def best(cells: dict[Key, Cell], peer: str, operation: str) -> Cell:
    """Return the cell with the number of clients at which the peer was fastest."""
    return max(
        (cell for key, cell in cells.items() if (key.peer, key.operation) == (peer, operation)),
        key=lambda cell: cell.rate,
    )


def figure_table(cells: dict[Key, Cell], asked: dict[str, Asked]) -> list[str]:
    lines = [
        "| | operation | clients | a second | best round | p50 ms | p99 ms | CPU us, server + client (of a core)"
        " | others' CPU | load |",
        "| --- " * 10 + "|",
    ]
    for key, cell in cells.items():
        mark = "*" if cell.foreign > FOREIGN_MAX else ""
        served = busy(cell.rate, cell.server_cpu) if asked[key.peer].server.process is not None else "-"
        failed = f" ({cell.failed:.0f} clients failed)" if cell.failed else ""
        lines.append(
            f"| {key.peer} | {key.operation} | {key.clients}{failed} | {cell.rate:.0f}{mark} | {cell.best:.0f}"
            f" | {cell.p50:.2f} | {cell.p99:.2f} | {served} + {busy(cell.rate, cell.client_cpu)} | {cell.foreign:.0%}"
            f" | {cell.load:.1f} |"
        )
    return lines


def busy(rate: float, cpu: float) -> str:
    """Return the CPU of a transaction and the share of a core that it uses. Near 100 %, this CPU limits the rate."""
    return f"{cpu:.0f} ({rate * cpu / 1e6:.0%})"


def bounds(cells: dict[Key, Cell]) -> bool:
    """Print the project's required ratios. Return whether all that could be measured were met."""
    ok = True
    for peer, least in ((SQLCATALOG, SQLCATALOG_RATIO_MIN), *((name, NESSIE_RATIO_MIN) for name in NESSIES)):
        if Key(ALPHEUS, "create", 1) not in cells or Key(peer, "create", 1) not in cells:
            continue
        ours, theirs = best(cells, ALPHEUS, "create"), best(cells, peer, "create")
        met = ours.rate >= least * theirs.rate
        ok &= met
        print(
            f"creates a second at the best number of clients, Alpheus : {peer}: {ratio(ours, theirs)}"
            f"   at least {least}: {'met' if met else 'MISSED'}"
        )
    return ok


def report(cells: dict[Key, Cell], asked: dict[str, Asked], options: argparse.Namespace) -> None:
    where = filesystem(Path(options.directory or tempfile.gettempdir()).resolve())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    print(
        f"\n{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}; {where}, clients and"
        f" servers on one machine;\nmedians of {options.rounds} rounds of {options.seconds:g} s a cell, in random"
        f" order. *: something else took more than {FOREIGN_MAX:.0%} of the machine.\n"
    )
    for operation in OPERATIONS:
        lines = ratio_table(cells, operation)
        if len(lines) > 2:
            print("\n".join(lines), end="\n\n")
    print("| | an acknowledged transaction is |\n| --- | --- |")
    for name, peer in asked.items():
        print(f"| {name} | {peer.server.durability} |")
    print()
    print("\n".join(figure_table(cells, asked)), end="\n\n")


def filesystem(place: Path) -> str:
    """Return the file system of a directory. On tmpfs nothing is durable, even if it is synced."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    kind = next(mounts[parent] for parent in (place, *place.parents) if parent in mounts)
    return "tmpfs, SO NOTHING IS DURABLE" if kind == "tmpfs" else f"local disk ({kind})"


def profile(directory: Path, seconds: float) -> None:
    """Print the CPU time of the daemon's main thread under load, for each transaction: by file, then by function."""
    client = Client("peer_client.py")
    try:
        for operation, clients in (("create", 1), ("create", 256), ("update", 256)):
            place = directory / f"{operation}-{clients}"
            target = directory / f"{operation}-{clients}.profile"
            with alpheus_daemon(place, profile=target) as server:
                cell = client.measure(
                    server, load="bare", operation=operation, clients=clients, seconds=seconds, tag="p"
                )
            print(
                f"\n{operation}, {clients} clients by bare calls, profiled: {cell.rate:.0f} a second;"
                f" CPU of the whole process {cell.server_cpu:.0f} us a transaction"
            )
            print_profile(pstats.Stats(str(target)), cell.total)
    finally:
        client.close()


def print_profile(stats: pstats.Stats, transactions: float) -> None:
    """Print the own time of the heaviest files, then of the heaviest functions with their callees, in microseconds."""
    files: dict[str, float] = {}
    functions: list[tuple[float, float, str]] = []
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, function), (_, _, own, total, _) in entries.items():
        part = "/".join(Path(file).parts[-2:]) if file != "~" else f"built in: {function}"
        files[part] = files.get(part, 0.0) + own
        functions.append((total, own, f"{part}:{function}"))
    for part, own in sorted(files.items(), key=lambda item: -item[1])[:15]:
        print(f"{own / transactions * 1e6:8.1f} us  {part}")
    print(f"{'with calls':>11}{'own':>9}")
    for total, own, what in sorted(functions, reverse=True)[:30]:
        print(f"{total / transactions * 1e6:8.1f} us{own / transactions * 1e6:6.1f} us  {what}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="0: none, for --profile alone")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a cell, after its warm-up")
    parser.add_argument(
        "--only", default="", help="peers, by the beginnings of their names, with commas between"
    )
    parser.add_argument("--directory", help="where the servers write; a temporary directory by default")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # every server ends with this process
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        ok = True
        if options.rounds:
            only = [name for name in options.only.split(",") if name]
            with all_started(Path(directory) / "peers", only) as asked:
                cells = measure(asked, options.rounds, options.seconds)
            report(cells, asked, options)
            ok = bounds(cells)
        if options.profile:
            profile(Path(directory), options.seconds * 4)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
