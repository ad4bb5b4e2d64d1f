"""A daemon behind a proxy that loses messages: row 9 of the fault matrix with real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alpheus import aio
from alpheus.errors import OutcomeUnknown
from alpheus_journal.testing import TcpProxy
from alpheus_journal.testing.proxy import Action, Blackhole, CutBefore, LoseReply, request


@pytest.mark.parametrize(
    "actions", [[LoseReply()], [CutBefore()], [LoseReply(), LoseReply(), CutBefore()]], ids=str
)
async def test_a_commit_whose_answer_is_lost_is_one_commit(
    start_daemon: Callable[..., Any], tmp_path: Path, actions: list[Action]
) -> None:
    daemon = await asyncio.to_thread(start_daemon, f"file://{tmp_path}/lake", "--create")
    host, _, port = daemon.address.rpartition(":")
    async with TcpProxy(host, int(port), raw=True) as proxy:
        catalog = await aio.connect(f"grpc://127.0.0.1:{proxy.port}", timeout=60)
        try:
            commit = request(body=b"a-name-that-stands-out")
            proxy.script(commit, *actions)
            await catalog.create_namespace("a-name-that-stands-out")
            assert proxy.count(commit) == len(actions) + 1
            assert proxy.connection_count == len(actions) + 1
            entries = [entry async for entry in catalog.log()]
            assert [entry.version for entry in entries] == [1, 0]
        finally:
            await catalog.close()


async def test_a_daemon_that_is_not_heard_of_any_more(
    start_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    daemon = await asyncio.to_thread(start_daemon, f"file://{tmp_path}/lake", "--create")
    host, _, port = daemon.address.rpartition(":")
    async with TcpProxy(host, int(port), raw=True) as proxy:
        catalog = await aio.connect(f"grpc://127.0.0.1:{proxy.port}", timeout=1)
        try:
            proxy.always(request(body=b"a-name-that-stands-out"), Blackhole())
            with pytest.raises(OutcomeUnknown) as caught:
                await catalog.create_namespace("a-name-that-stands-out")
            assert caught.value.transaction_id
        finally:
            await catalog.close()
