"""The overhead of a storage driver over the bare calls that it uses, and the cost of a commit on each driver.

    make bench BENCH=storage
    make bench BENCH=storage ARGS="--drivers local,s3-obstore --seconds 1"

Every driver runs put-if-absent, put, read and list, one call at a time and 64 concurrently. Its rounds alternate with
the bare equivalent on the same store: os calls with the same fsyncs, a dict, an LMDB transaction, the S3 library's own
client. The ratio is ours to bare, and 1.00 means no overhead. Then one client commits small transactions through a
whole Journal, beside the same files written bare. The S3 server runs on this machine, on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from alpheus_journal.clock import RandomIdentities
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.storage.suitability import REQUESTS

AT_ONCE = (1, 64)
SIZE = 20_000
DATA = os.urandom(SIZE)
READ_FROM = 200
LISTED = 200
OPERATIONS = ("read", "list", "create", "put")
"""The operations that add files come last."""
COMMITS = 60

numbers = itertools.count()

Call = Callable[[], Awaitable[object]]
Blocking = Callable[[], object]


class Bare(NamedTuple):
    """The same work without this project: asynchronous calls, or blocking calls in as many threads as there are
    calls."""

    calls: Mapping[str, Call | Blocking]
    commit: Callable[[list[int]], Awaitable[object]] | Callable[[list[int]], object]
    """Writes files of these sizes as safely as the driver does. The last file is the slot."""
    is_blocking: bool


class Subject(NamedTuple):
    name: str
    durability: str
    storage: Storage
    bare: Bare


def fresh() -> str:
    return f"node/{next(numbers)}.arrow"


# --- the drivers and their bare equivalents


def bare_local(root: Path) -> Bare:
    (root / "node").mkdir(parents=True)
    (root / "staging").mkdir()
    (root / "many").mkdir()
    for number in range(READ_FROM):
        (root / "many" / str(number)).write_bytes(DATA)

    def staged(data: bytes) -> Path:
        path = root / "staging" / str(next(numbers))
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        return path

    def sync() -> None:
        descriptor = os.open(root / "node", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def create() -> None:
        path = staged(DATA)
        os.link(path, root / fresh())
        os.unlink(path)
        sync()

    def put() -> None:
        os.rename(staged(DATA), root / fresh())
        sync()

    def read() -> bytes:
        descriptor = os.open(root / "many" / str(next(numbers) % READ_FROM), os.O_RDONLY)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def list_() -> int:
        with os.scandir(root / "many") as entries:
            return sum(entry.stat().st_size for entry in entries)

    def commit(sizes: list[int]) -> None:
        *files, slot = [staged(DATA[:1] * size) for size in sizes]
        for path in files:
            os.rename(path, root / fresh())
        sync()
        os.link(slot, root / fresh())
        os.unlink(slot)
        sync()

    return Bare({"create": create, "put": put, "read": read, "list": list_}, commit, is_blocking=True)


def bare_memory() -> Bare:
    files: dict[str, bytes] = {}
    many = {f"many/{number}": DATA for number in range(READ_FROM)}

    def create() -> None:
        if files.setdefault(fresh(), DATA) is not DATA:
            raise AssertionError

    def put() -> None:
        files[fresh()] = DATA

    def commit(sizes: list[int]) -> None:
        for size in sizes:
            files[fresh()] = DATA[:1] * size

    return Bare(
        {
            "create": create,
            "put": put,
            "read": lambda: many[f"many/{next(numbers) % READ_FROM}"],
            "list": lambda: sum(len(data) for path, data in sorted(many.items()) if path.startswith("many/")),
        },
        commit,
        is_blocking=True,
    )


def bare_lmdb(root: Path) -> Bare:
    import lmdb

    root.mkdir()
    environment = lmdb.open(str(root), map_size=8 << 30, max_spare_txns=128)
    with environment.begin(write=True) as transaction:
        for number in range(READ_FROM):
            transaction.put(b"many/%d" % number, DATA)

    def put(*, overwrite: bool) -> None:
        with environment.begin(write=True) as transaction:
            assert transaction.put(fresh().encode(), DATA, overwrite=overwrite)

    def read() -> bytes:
        with environment.begin() as transaction:
            return transaction.get(b"many/%d" % (next(numbers) % READ_FROM)) or b""

    def list_() -> int:
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            cursor.set_range(b"many/")
            return sum(len(value) for _, value in itertools.islice(cursor, LISTED))

    def commit(sizes: list[int]) -> None:
        with environment.begin(write=True) as transaction:
            for size in sizes:
                transaction.put(fresh().encode(), DATA[:1] * size, overwrite=False)

    calls = {
        "create": lambda: put(overwrite=False),
        "put": lambda: put(overwrite=True),
        "read": read,
        "list": list_,
    }
    return Bare(calls, commit, is_blocking=True)


@contextlib.asynccontextmanager
async def bare_boto(server: Any) -> AsyncIterator[Bare]:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    config = AioConfig(
        max_pool_connections=max(AT_ONCE),
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
    )
    top = f"bare/{next(numbers)}/"
    async with get_session().create_client("s3", endpoint_url=server.endpoint, config=config) as s3:

        async def put(data: bytes = DATA, **condition: str) -> None:
            await s3.put_object(Bucket=server.bucket, Key=top + fresh(), Body=data, **condition)

        async def read() -> bytes:
            answer = await s3.get_object(Bucket=server.bucket, Key=f"{top}many/{next(numbers) % READ_FROM}")
            async with answer["Body"] as body:
                data: bytes = await body.read()
                return data

        async def list_() -> int:
            answer = await s3.list_objects_v2(Bucket=server.bucket, Prefix=f"{top}many/")
            return len(answer["Contents"])

        async def commit(sizes: list[int]) -> None:
            await asyncio.gather(*(put(DATA[:1] * size) for size in sizes[:-1]))
            await put(DATA[:1] * sizes[-1], IfNoneMatch="*")

        for number in range(READ_FROM):
            await s3.put_object(Bucket=server.bucket, Key=f"{top}many/{number}", Body=DATA)
        yield Bare(
            {"create": lambda: put(IfNoneMatch="*"), "put": put, "read": read, "list": list_},
            commit,
            is_blocking=False,
        )


async def bare_obstore(server: Any) -> Bare:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        server.bucket,
        config={"endpoint": server.endpoint, "region": server.region},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    top = f"bare/{next(numbers)}/"

    async def create(data: bytes = DATA) -> None:
        await obstore.put_async(store, top + fresh(), data, mode="create")

    async def put(data: bytes = DATA) -> None:
        await obstore.put_async(store, top + fresh(), data)

    async def read() -> bytes:
        answer = await obstore.get_async(store, f"{top}many/{next(numbers) % READ_FROM}")
        return bytes(await answer.bytes_async())

    async def list_() -> int:
        return sum([len(page) async for page in obstore.list(store, f"{top}many", chunk_size=1000)])

    async def commit(sizes: list[int]) -> None:
        await asyncio.gather(*(put(DATA[:1] * size) for size in sizes[:-1]))
        await create(DATA[:1] * sizes[-1])

    for number in range(READ_FROM):
        await obstore.put_async(store, f"{top}many/{number}", DATA)
    return Bare({"create": create, "put": put, "read": read, "list": list_}, commit, is_blocking=False)


def ours(storage: Storage) -> dict[str, Call]:
    async def list_() -> int:
        return sum([info.size async for info in storage.list("many/")])

    return {
        "create": lambda: storage.create(fresh(), DATA),
        "put": lambda: storage.put(fresh(), DATA),
        "read": lambda: storage.read(f"many/{next(numbers) % READ_FROM}", size_max=1 << 20),
        "list": list_,
    }


# --- measuring


async def rate(call: Call, at_once: int, seconds: float) -> tuple[int, float]:
    """Return the number of calls and the seconds until the last one ended."""
    count = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await call()
            count += 1

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(client())
    return count, time.perf_counter() - begun


async def rate_blocking(call: Blocking, at_once: int, seconds: float) -> tuple[int, float]:
    """Measure blocking calls in threads without an event loop, and wait for the threads."""
    counts = [0] * at_once
    end = time.perf_counter() + seconds

    def client(index: int) -> None:
        while time.perf_counter() < end:
            call()
            counts[index] += 1

    begun = time.perf_counter()
    if at_once == 1:
        client(0)
    else:
        threads = [threading.Thread(target=client, args=(index,)) for index in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts), time.perf_counter() - begun


async def burning(calls: Awaitable[tuple[int, float]]) -> tuple[float, float]:
    """Return calls a second, and the CPU seconds of all threads of this process for each call."""
    burnt = time.process_time()
    count, elapsed = await calls
    return count / elapsed, (time.process_time() - burnt) / count


async def measure(subject: Subject, rounds: int, seconds: float) -> None:
    for operation, at_once in itertools.product(OPERATIONS, AT_ONCE):
        mine, theirs = [], []
        call, bare = ours(subject.storage)[operation], subject.bare.calls[operation]
        for _ in range(rounds):
            mine.append(await burning(rate(call, at_once, seconds)))
            peer = rate_blocking if subject.bare.is_blocking else rate
            theirs.append(await burning(peer(bare, at_once, seconds)))  # type: ignore[arg-type]
        (own, own_cpu), (other, other_cpu) = (
            [statistics.median(column) for column in zip(*rows, strict=True)] for rows in (mine, theirs)
        )
        print(
            f"{subject.name:<15}{operation:<7}{at_once:>3} at once {own:>10,.0f}/s   bare {other:>10,.0f}/s"
            f"   {own / other:5.2f} of bare   CPU {own_cpu * 1e6:>7,.0f} us, bare {other_cpu * 1e6:>7,.0f} us",
            flush=True,
        )


async def measure_commit(subject: Subject) -> None:
    """Measure one client that sends one transaction after the other."""
    sizes: list[int] = []
    storage = subject.storage
    publish = storage.publish

    async def watched(files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        sizes[:] = [*map(len, files.values()), len(root)]
        await publish(files, slot, root)

    storage.publish = watched  # type: ignore[method-assign]
    journal = await Journal.create(storage)
    identities = RandomIdentities()
    mine, theirs = [], []
    for number in range(COMMITS):
        operation = CreateNamespace(name=f"n{number}", namespace_id=identities.uuid4())
        transaction = Transaction(
            id=identities.uuid7(),
            begin_version=journal.head.version,
            operations=(operation,),
            principal="bench",
        )
        begun = time.perf_counter()
        await journal.commit(transaction)
        mine.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        written = subject.bare.commit(sizes)
        if not subject.bare.is_blocking:
            await written  # type: ignore[misc]
        theirs.append(time.perf_counter() - begun)
    own, other = statistics.median(mine), statistics.median(theirs)
    print(
        f"{subject.name:<15}commit   1 at once  p50 {own * 1e3:7.2f} ms   bare p50 {other * 1e3:7.2f} ms"
        f"   {own / other:5.2f} times bare   {len(sizes)} files, {sum(sizes):,} bytes",
        flush=True,
    )
    await journal.close()


async def measure_self_test(name: str, storage: Storage) -> None:
    from alpheus_journal.clock import SystemClock
    from alpheus_journal.storage.suitability import prove

    begun = time.perf_counter()
    await prove(storage, RandomIdentities(), SystemClock())
    print(f"{name:<15}self-test: {REQUESTS} requests in {time.perf_counter() - begun:.2f} s", flush=True)


# --- the selected drivers


def load_servers() -> Any:
    """Import tests/alpheus_test_servers.py, which is not in a package."""
    place = Path(__file__).resolve().parents[1] / "alpheus_test_servers.py"
    spec = importlib.util.spec_from_file_location("alpheus_test_servers", place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


S3_DURABILITY = {
    "versitygw": "versitygw over its posix backend: acknowledged before any fsync",
    "ministack": "ministack with files: acknowledged before any fsync",
}


@contextlib.asynccontextmanager
async def subjects(name: str, directory: Path, server: Any) -> AsyncIterator[Subject]:
    async with contextlib.AsyncExitStack() as stack:
        if name.startswith("s3-"):
            client = name.removeprefix("s3-")
            url = server.url(client=client, max_connections=str(max(AT_ONCE)))
            bare = (
                await stack.enter_async_context(bare_boto(server))
                if client == "aiobotocore"
                else await bare_obstore(server)
            )
            durability = S3_DURABILITY[server.kind]
        elif name == "memory":
            url, bare, durability = "memory://bench", bare_memory(), "none"
        elif name == "lmdb":
            url, bare = (
                f"lmdb://{directory}/lmdb",
                await asyncio.to_thread(bare_lmdb, directory / "bare-lmdb"),
            )
            durability = "one fdatasync a transaction, both"
        else:
            url, bare = (
                f"file://{directory}/lake",
                await asyncio.to_thread(bare_local, directory / "bare-local"),
            )
            durability = "fsync of the file and its folder, both"
        storage = await asyncio.to_thread(open_storage, url, create=True)
        stack.push_async_callback(storage.close)
        await storage.put_many({f"many/{number}": DATA for number in range(READ_FROM)})
        yield Subject(name, durability, storage, bare)


@contextlib.asynccontextmanager
async def empty(name: str, directory: Path, server: Any) -> AsyncIterator[Subject]:
    """Yield the subject with nothing below its prefix, for a catalog."""
    async with subjects(name, directory, server) as subject:
        async for info in subject.storage.list(""):
            await subject.storage.delete(info.path)
        yield subject


async def run(names: list[str], rounds: int, seconds: float, server: Any) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            async with subjects(name, directory, server) as subject:
                print(f"\n{name}: {subject.durability}; objects of {SIZE:,} bytes, listings of {LISTED}")
                await measure(subject, rounds, seconds)
                if name.startswith("s3-"):
                    await measure_self_test(name, subject.storage)
        with tempfile.TemporaryDirectory() as place:
            async with empty(name, Path(place), server) as subject:
                await measure_commit(subject)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = ["memory", "local", "lmdb", "s3-aiobotocore", "s3-obstore"]
    parser.add_argument("--drivers", default=",".join(every), help="of: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.7, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="", help="versitygw or ministack; what is there by default")
    options = parser.parse_args()
    names = [name for name in options.drivers.split(",") if name in every]
    if "lmdb" in names and importlib.util.find_spec("lmdb") is None:
        print("lmdb is not installed: left out")
        names.remove("lmdb")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    print(
        f"{os.cpu_count()} cores, {memory} GiB, Python {sys.version.split()[0]}, uvloop, load {os.getloadavg()[0]:.1f}"
    )
    server = None
    with tempfile.TemporaryDirectory() as folder:
        if any(name.startswith("s3-") for name in names):
            servers = load_servers()
            kind = options.server or servers.default_kind()
            if kind != "versitygw":
                servers.install()
            server = servers.S3Server(kind, Path(folder))
            os.environ.update(server.environment)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(names, options.rounds, options.seconds, server))
        finally:
            if server is not None:
                server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
