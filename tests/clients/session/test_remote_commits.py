"""Commits of one connection share a stream: with a daemon that knows no such stream, and from many threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alpheus
from alpheus import aio
from alpheus.errors import NotFound
from alpheus_pb.v1 import service_pb2 as pb


async def test_an_older_daemon_gets_each_commit_by_itself(
    start_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    """A daemon without CommitMany gets each commit by itself. Here the client asks for a method that no daemon has."""
    daemon = await asyncio.to_thread(start_daemon, f"file://{tmp_path}/lake", "--create")
    catalog = await aio.connect(f"grpc://{daemon.address}", timeout=30)
    try:
        access: Any = catalog._session.access
        access._commits._open_call = access._channel.stream_stream(
            "/alpheus.v1.Catalog/CommitLots",
            request_serializer=pb.CommitManyRequest.SerializeToString,
            response_deserializer=pb.CommitManyResponse.FromString,
        )
        await asyncio.gather(*(catalog.create_namespace(f"n{number}") for number in range(5)))
        assert not access._commits._is_supported
        with pytest.raises(NotFound):
            await catalog.drop_namespace("nowhere")
    finally:
        await catalog.close()


def test_threads_share_the_stream(start_daemon: Callable[..., Any], tmp_path: Path) -> None:
    daemon = start_daemon(f"file://{tmp_path}/lake", "--create")
    with alpheus.connect(f"grpc://{daemon.address}", timeout=60) as catalog:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(3):
                    catalog.create_namespace(f"n{number}-{turn}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(list(catalog.log())) == 25
