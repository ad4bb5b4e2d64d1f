"""The client program of bench_peers.py for peers with asynchronous clients: the daemon, etcd, Nessie.

The daemon is measured by the client library and by bare calls. Each process has one connection and uses uvloop, and
each client is an asyncio task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import grpc
import grpc.aio
import pyarrow as pa
import uvloop
from measured import Window, answer_commands
from peer_etcd import Etcd

from alpheus.aio import AsyncCatalog, connect
from alpheus_journal.clock import RandomIdentities
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import CreateTable, Transaction, UpdateTable
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

NAMESPACES = 4
VALUE_BYTES = 700
"""The size of an etcd value: a definition, its share of the tree's nodes and its action as one record."""
SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string())])
COLUMNS = (Column(id=1, name="a", type="INT4"), Column(id=2, name="b", type="VARCHAR"))


class Load(Protocol):
    """The repeated operation of one client. `index` is the client's, and `number` counts its earlier operations."""

    async def prepare(self, clients: int) -> None: ...

    async def once(self, index: int, number: int) -> None: ...

    async def close(self) -> None: ...


class Library:
    """Alpheus by its client library: `create_table` of new names, or `update_table` of the client's own table."""

    def __init__(self, address: str, operation: str, tag: str) -> None:
        self._address, self._operation, self._tag = address, operation, tag
        self._catalog: AsyncCatalog

    async def prepare(self, clients: int) -> None:
        self._catalog = await connect(f"grpc://{self._address}", timeout=60)
        for number in range(NAMESPACES):
            await self._catalog.create_namespace(f"n{number}", exist_ok=True)
        if self._operation != "create":
            async with self._catalog.transaction() as tx:
                for index in range(clients):
                    await tx.create_table(f"n0.{self._tag}_{index}", SCHEMA)

    async def once(self, index: int, number: int) -> None:
        if self._operation == "create":
            await self._catalog.create_table(f"n{number % NAMESPACES}.{self._tag}_{index}_{number}", SCHEMA)
        elif self._operation == "exists":
            assert await self._catalog.table_exists(f"n0.{self._tag}_{index}")
        else:
            await self._catalog.update_table(f"n0.{self._tag}_{index}", set={"n": str(number)})

    async def close(self) -> None:
        await self._catalog.close()


class Bare(Library):
    """Alpheus by the Commit call alone, as thin as the etcd client here."""

    async def prepare(self, clients: int) -> None:
        await super().prepare(clients)
        self._version = await self._catalog.version()
        self._identities = RandomIdentities()
        self._channel = grpc.aio.insecure_channel(
            self._address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._commit = self._channel.unary_unary(
            "/alpheus.v1.Catalog/Commit",
            request_serializer=pb.CommitRequest.SerializeToString,
            response_deserializer=pb.CommitResponse.FromString,
        )

    async def once(self, index: int, number: int) -> None:
        operation = (
            CreateTable(
                namespace=f"n{number % NAMESPACES}",
                name=f"{self._tag}_{index}_{number}",
                table_id=self._identities.uuid4(),
                columns=COLUMNS,
            )
            if self._operation == "create"
            else UpdateTable(namespace="n0", name=f"{self._tag}_{index}", set={"n": str(number)})
        )
        transaction = Transaction(
            id=self._identities.uuid7(),
            begin_version=self._version,
            operations=(operation,),
            principal="bench",
        )
        answer = await self._commit(wire.encode_transaction_request(transaction))
        self._version = max(self._version, answer.version)

    async def close(self) -> None:
        await self._channel.close()
        await super().close()


class EtcdLoad:
    """etcd: transactions that put a key if it is absent, or if it is unchanged since the client's last put."""

    def __init__(self, address: str, operation: str, tag: str) -> None:
        self._operation, self._tag = operation, tag
        self._etcd = Etcd(address)
        self._revisions: list[int] = []

    async def prepare(self, clients: int) -> None:
        if self._operation == "update":
            self._revisions = [
                await self._etcd.put(b"n0/%s_%d" % (self._tag.encode(), index), b"x" * VALUE_BYTES)
                for index in range(clients)
            ]

    async def once(self, index: int, number: int) -> None:
        tag = self._tag.encode()
        if self._operation == "create":
            await self._etcd.create(
                b"n%d/%s_%d_%d" % (number % NAMESPACES, tag, index, number), b"x" * VALUE_BYTES
            )
        else:
            key = b"n0/%s_%d" % (tag, index)
            self._revisions[index] = await self._etcd.update(key, b"y" * VALUE_BYTES, self._revisions[index])

    async def close(self) -> None:
        await self._etcd.close()


class NessieLoad:
    """Nessie: API v2 commits of one Iceberg table each, to the main branch."""

    def __init__(self, address: str, operation: str, tag: str) -> None:
        self._operation, self._tag = operation, tag
        self._trees = f"http://{address}/api/v2/trees"
        self._session: aiohttp.ClientSession
        self._contents: list[str] = []

    async def prepare(self, clients: int) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with self._session.get(f"{self._trees}/-") as answer:
            self._hash = (await checked(answer))["reference"]["hash"]
        for name in (f"n{number}" for number in range(NAMESPACES)):
            async with self._session.get(f"{self._trees}/main/contents/{name}") as there:
                if there.status == 200:
                    continue
            content = {"type": "NAMESPACE", "elements": [name], "properties": {}}
            await self._commit([{"type": "PUT", "key": {"elements": [name]}, "content": content}])
        if self._operation == "update":
            made = await self._commit(
                [self._put("n0", f"{self._tag}_{index}", 0) for index in range(clients)]
            )
            by_name = {entry["key"]["elements"][-1]: entry["contentId"] for entry in made["addedContents"]}
            self._contents = [by_name[f"{self._tag}_{index}"] for index in range(clients)]

    @staticmethod
    def _put(namespace: str, name: str, snapshot: int) -> dict[str, Any]:
        location = f"file:///warehouse/{namespace}/{name}/metadata/{snapshot:05}.metadata.json"
        content = {"type": "ICEBERG_TABLE", "metadataLocation": location, "snapshotId": snapshot}
        content |= {"schemaId": 0, "specId": 0, "sortOrderId": 0}
        return {"type": "PUT", "key": {"elements": [namespace, name]}, "content": content}

    async def _commit(self, operations: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"commitMeta": {"message": "bench"}, "operations": operations}
        url = f"{self._trees}/main@{self._hash}/history/commit"
        async with self._session.post(url, json=body) as response:
            answer: dict[str, Any] = await checked(response)
        # The head that this client saw last. Nessie looks for conflicts above it.
        self._hash = answer["targetBranch"]["hash"]
        return answer

    async def once(self, index: int, number: int) -> None:
        if self._operation == "create":
            put = self._put(f"n{number % NAMESPACES}", f"{self._tag}_{index}_{number}", 0)
        else:
            put = self._put("n0", f"{self._tag}_{index}", number + 1)
            put["content"]["id"] = self._contents[index]
        while True:
            try:
                await self._commit([put])
                return
            except NessieConflict:  # Nessie gave up after its own attempts, and its clients retry
                continue

    async def close(self) -> None:
        await self._session.close()


class NessieConflict(Exception):
    """Status 409: another commit was faster, or the table exists already."""


async def checked(answer: aiohttp.ClientResponse) -> Any:
    if answer.status == 409:
        raise NessieConflict(await answer.text())
    if answer.status != 200:
        raise RuntimeError(f"Nessie: {answer.status} {(await answer.text())[:300]}")
    return await answer.json()


LOADS: dict[str, Callable[[str, str, str], Load]] = {
    "library": Library,
    "bare": Bare,
    "etcd": EtcdLoad,
    "nessie": NessieLoad,
}


async def run(command: dict[str, Any]) -> dict[str, Any]:
    load = LOADS[command["load"]](command["address"], command["operation"], command["tag"])
    await load.prepare(command["clients"])
    window = Window(command["seconds"])

    async def client(index: int) -> None:
        number = 0
        while window.is_open:
            started = time.perf_counter()
            await load.once(index, number)
            window.done(started)
            number += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(command["clients"]):
                tasks.create_task(client(index))
    finally:
        await load.close()
    return window.result()


def main() -> int:
    # One loop for all commands, because gRPC reports a closed channel after the command.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return answer_commands(lambda command: runner.run(run(command)))


if __name__ == "__main__":
    raise SystemExit(main())
