"""Metrics: each source of numbers reaches the text, under names that the manual explains; and the HTTP server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from alpheus.session.remote import RemoteAccess
from alpheus_daemon.config import Config
from alpheus_daemon.instrumented import TimedStorage
from alpheus_daemon.main import running
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_daemon.telemetry.metrics import COMMIT_CALLS, CONNECTIONS_MAX, Health, Metrics, expose
from alpheus_daemon.telemetry.tracing import Tracer
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.errors import AlreadyExists, Exhausted, Unavailable
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import CreateNamespace, Transaction
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage

IDENTITIES = RandomIdentities()
MANUAL = Path(__file__).parents[3] / "deploy" / "OPERATIONS.md"
OF_THE_LIBRARY = re.compile("^(process|python)_")


async def values_of(metrics: Metrics) -> dict[str, float]:
    """Return the values by name and labels, as in the text."""
    text = (await metrics.text()).decode()
    return {
        name + "".join(f"[{key}={value}]" for key, value in sorted(labels.items())): number
        for family in text_string_to_metric_families(text)
        for name, labels, number, *_ in family.samples
    }


@asynccontextmanager
async def daemon_of(
    metrics: Metrics, storage: Storage | None = None, **settings: int
) -> AsyncIterator[tuple[str, Journal]]:
    storage = TimedStorage(storage or MemoryStorage(), metrics, Tracer())
    journal = await Journal.create(storage)
    await journal.load_state()
    config = Config(url="memory://x", listen="127.0.0.1:0", **settings)  # type: ignore[arg-type]
    async with running(config, journal, metrics=metrics) as address:
        yield address, journal
    await journal.close()


async def test_what_a_daemon_does_is_counted() -> None:
    from alpheus.aio import connect

    metrics = Metrics()
    async with daemon_of(metrics) as (address, journal):
        before = await values_of(metrics)
        async with await connect(f"grpc://{address}") as catalog:
            await catalog.create_namespace("sales")
            other = await Journal.open(journal.storage)
            await other.commit(
                Transaction(
                    id=IDENTITIES.uuid7(),
                    begin_version=1,
                    operations=(CreateNamespace(name="x", namespace_id=IDENTITIES.uuid4()),),
                    principal="another",
                )
            )
            assert (await catalog.info()).version == 2
        after = await values_of(metrics)
    assert before["alpheus_head_version"] == 0
    assert after["alpheus_head_version"] == 2
    assert after["alpheus_versions_accepted_total[origin=own]"] == 1
    assert after["alpheus_versions_accepted_total[origin=foreign]"] == 1
    assert after["alpheus_request_seconds_count[method=GetInfo][status=OK]"] >= 1
    assert after["alpheus_commit_stage_seconds_count[stage=root]"] == 1
    assert after["alpheus_commit_stage_seconds_count[stage=total]"] == 1
    assert after["alpheus_commit_group_transactions_sum"] == 1
    assert after["alpheus_storage_request_seconds_count[operation=publish][outcome=ok]"] >= 1
    assert after["alpheus_requests_running"] == 0
    assert after["process_resident_memory_bytes"] > 1 << 20
    assert after["process_open_fds"] > 0


def _namespace(name: str) -> Transaction:
    operation = CreateNamespace(name=name, namespace_id=IDENTITIES.uuid4())
    return Transaction(id=IDENTITIES.uuid7(), begin_version=0, operations=(operation,))


class Held(MemoryStorage):
    """Holds the storing of versions while it is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.opened.set()

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        await self.opened.wait()
        await super().publish(files, slot, root)


@pytest.mark.parametrize("call", COMMIT_CALLS)
async def test_refused_commits_are_counted(call: str) -> None:
    """Refused commits are counted by kind, whether they came in the stream or in single calls."""
    metrics, storage = Metrics(), Held()
    bounds = {"queue_count_max": 1, "group_ahead_count_min": 0}
    async with daemon_of(metrics, storage, **bounds) as (address, journal):
        access = RemoteAccess(f"grpc://{address}", timeout=30)
        access._commits._is_supported = call == "stream"  # else as with a daemon without streams
        before = await values_of(metrics)
        storage.opened.clear()
        asked = [asyncio.create_task(access.commit(_namespace(f"n{number}"))) for number in range(5)]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        storage.opened.set()
        answers = await asyncio.gather(*done, *waiting, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Exhausted)]
        assert {error.kind for error in refused} == {"queue_full"}
        await access.commit(_namespace("a"))
        with pytest.raises(AlreadyExists):
            await access.commit(msgspec.structs.replace(_namespace("a"), begin_version=journal.head.version))
        after = await values_of(metrics)
        await access.close()
    name = f"alpheus_commit_refusals_total[call={call}][kind=%s]"
    # An alarm on growth needs the series before the first refusal.
    assert before[name % "queue_full"] == 0
    assert after[name % "queue_full"] == len(refused)
    assert after[name % "namespace_exists"] == 1
    other = {"stream": "unary", "unary": "stream"}[call]
    assert not sum(number for key, number in after.items() if f"_refusals_total[call={other}]" in key)


async def test_the_window_of_events_is_shown() -> None:
    metrics = Metrics()
    async with daemon_of(metrics) as (_, journal):
        assert (await values_of(metrics))["alpheus_event_window_versions"] == 0
        await journal.commit(_namespace("a"))
        assert (await values_of(metrics))["alpheus_event_window_versions"] == 1


async def test_every_name_is_in_the_manual_and_none_besides() -> None:
    metrics = Metrics()
    async with daemon_of(metrics):
        metrics.sample()
        found = await asyncio.to_thread(metrics.names)
        names = {name for name in found if not OF_THE_LIBRARY.match(name)}
    assert all(name.startswith("alpheus_") for name in names)
    explained = set(re.findall(r"^\| `(alpheus_[a-z_]+)", MANUAL.read_text(), re.MULTILINE))
    assert explained == names


async def test_labels_are_bounded() -> None:
    """No request creates a new series: the labels are methods and outcomes that the daemon defines."""
    import grpc

    metrics = Metrics()
    async with daemon_of(metrics) as (address, _), grpc.aio.insecure_channel(address) as channel:
        before = set(await values_of(metrics))
        for number in range(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/alpheus.v1.Catalog/Method{number}")(b"")
        assert set(await values_of(metrics)) == before


async def test_a_reading_that_fails_hides_no_other() -> None:
    telemetry.configure("info")
    metrics = Metrics()
    metrics.gauge("alpheus_broken", "Fails.", lambda: 1 / 0)
    metrics.gauge("alpheus_whole", "Works.", lambda: {"a": 1, "b": 2}, label="part")
    metrics.counter("alpheus_grown_total", "Grows.", lambda: 3)
    values = await values_of(metrics)
    assert "alpheus_broken" not in values
    assert values["alpheus_whole[part=b]"] == 2
    assert values["alpheus_grown_total"] == 3


# --- over HTTP -------------------------------------------------------------------------------------


async def ask(address: str, head: bytes) -> tuple[str, bytes]:
    """Return the status line and the body."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    answer = await reader.read()
    writer.close()
    head_part, _, body = answer.partition(b"\r\n\r\n")
    return head_part.decode().split("\r\n")[0], body


async def get(address: str, path: str) -> tuple[str, bytes]:
    return await ask(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_metrics_and_health_over_http() -> None:
    metrics, health = Metrics(), Health()
    async with expose("127.0.0.1:0", metrics, health) as address:
        assert await get(address, "/healthz") == ("HTTP/1.1 503 Service Unavailable", b"starting\n")
        health.is_serving, health.text = True, "serving"
        assert await get(address, "/healthz") == ("HTTP/1.1 200 OK", b"serving\n")
        status, body = await get(address, "/metrics?x=1")
        assert status == "HTTP/1.1 200 OK"
        assert b"# HELP alpheus_event_loop_lag_seconds" in body
        assert await ask(address, b"HEAD /healthz HTTP/1.0\r\n\r\n") == ("HTTP/1.1 200 OK", b"")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"\xff\xfe\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", ""),
    ],
)
async def test_bad_requests_harm_nobody(head: bytes, status: str) -> None:
    async with expose("127.0.0.1:0", Metrics(), Health(True, "serving")) as address:
        try:
            assert (await ask(address, head))[0] == status
        except ConnectionResetError:
            assert not status
        assert (await get(address, "/healthz"))[0] == "HTTP/1.1 200 OK"


async def test_connections_that_ask_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpheus_daemon.telemetry.metrics.HEAD_SECONDS_MAX", 0.2)
    async with expose("127.0.0.1:0", Metrics(), Health(True, "serving")) as address:
        host, port = address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
        for reader, _ in silent:
            assert await reader.read() == b"", "it was closed"
        assert (await get(address, "/healthz"))[0] == "HTTP/1.1 200 OK"
        for _, writer in silent:
            writer.close()


async def test_slow_clients_keep_nobody_from_the_health_page() -> None:
    """Twice the maximum of clients begin a request and never end it: the server closes the slowest connections."""
    async with expose("127.0.0.1:0", Metrics(), Health(True, "serving")) as address:
        host, port = address.split(":")
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(2 * CONNECTIONS_MAX)]
        for _, writer in slow:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
        for _ in range(3):
            assert await get(address, "/healthz") == ("HTTP/1.1 200 OK", b"serving\n")
        cut = slow[: CONNECTIONS_MAX + 1]
        answers = await asyncio.gather(*[reader.read() for reader, _ in cut], return_exceptions=True)
        assert all(answer == b"" or isinstance(answer, ConnectionResetError) for answer in answers)
        for _, writer in slow:
            writer.close()


async def test_a_request_when_the_daemon_ends_is_no_error() -> None:
    """The end of the server cancels open requests quietly, as `asyncio.run` does."""
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    others = asyncio.all_tasks()
    async with expose("127.0.0.1:0", Metrics(), Health()) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await get(address, "/healthz") == ("HTTP/1.1 503 Service Unavailable", b"starting\n")
        handling = asyncio.all_tasks() - others
        assert handling, "the first connection was accepted before the second"
    for task in handling:
        task.cancel()
    assert await reader.read() == b"", "it was closed"
    writer.close()
    assert not wrong


async def test_a_taken_metrics_port_is_said() -> None:
    async with expose("127.0.0.1:0", Metrics(), Health()) as address:
        with pytest.raises(Unavailable, match="for metrics") as caught:
            async with expose(address, Metrics(), Health()):
                pass
    assert "--metrics-listen" in caught.value.hint


async def test_off_by_default() -> None:
    assert Config(url="/lake").metrics_listen == ""
    async with expose("", Metrics(), Health()) as address:
        assert address == ""
