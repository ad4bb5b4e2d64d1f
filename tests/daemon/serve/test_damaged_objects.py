"""A daemon over a catalog with a damaged definition starts, and streams every version."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from alpheus_daemon.serve.watch import Hub
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.model.operations import DropTable
from alpheus_journal.testing import Lake, raises
from alpheus_journal.wire.messages import EventsQuery
from alpheus_pb.v1 import service_pb2 as pb


async def test_streams_go_on_over_a_damaged_definition() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a"), lake.table("a", "t"), lake.table("a", "u"))
    (stored,) = (await journal.load(None, [fmt.table_name("a", "t")])).objects
    assert stored is not None
    await lake.storage.delete(stored.path)
    journal = await lake.open()
    await journal.load_state()
    hub = Hub(
        journal,
        subscribers_max=2,
        batch_count_max=10,
        batch_bytes_max=1 << 20,
        scan_count_max=50,
        ring_bytes_max=1 << 20,
        heartbeat_seconds=3600.0,
    )
    running = asyncio.create_task(hub.run())
    try:
        await raises(Corrupt, journal.load(None, [fmt.table_name("a", "t")]), kind="corrupt_definition")
        await lake.commit(journal, DropTable(namespace="a", name="t"))
        delivered: list[int] = []
        async with aclosing(hub.stream(EventsQuery(follow=True))) as stream:
            async for delivery in stream:
                delivered += [
                    event.version for event in pb.EventsResponse.FromString(delivery.message).events
                ]
                if len(delivered) > journal.head.version:
                    break
        assert delivered == list(range(journal.head.version + 1))
    finally:
        running.cancel()
        await asyncio.wait([running])
