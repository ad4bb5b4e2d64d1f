"""A catalog on a local disk after a writer with a clock in the future: daemons, clients, commands, and the repair."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_answers import answer
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli
from alpheus.errors import NotFound
from alpheus_journal.clock import RandomIdentities, SystemClock
from alpheus_journal.journal import Journal
from alpheus_journal.model.operations import Transaction, UpdateCatalog
from alpheus_journal.storage.local import LocalStorage

AHEAD = timedelta(days=400)


class FutureClock(SystemClock):
    def now_millis(self) -> int:
        return super().now_millis() + AHEAD // timedelta(milliseconds=1)


def commit_from_the_future(folder: Path) -> None:
    storage, clock = LocalStorage(str(folder)), FutureClock()

    async def go() -> None:
        identities = RandomIdentities(clock)
        journal = await Journal.open(storage, clock=clock, identities=identities)
        operation = UpdateCatalog(set={"from": "the future"})
        begin = journal.head.version
        await journal.commit(Transaction(id=identities.uuid7(), begin_version=begin, operations=(operation,)))
        await journal.close()

    asyncio.run(go())


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.cli, list(words))


def test_work_goes_on_and_a_repair_mends_time_travel(
    tmp_path: Path, start_daemon: Callable[..., Any]
) -> None:
    folder, url = tmp_path / "lake", f"file://{tmp_path}/lake"
    with alpheus.create(url) as catalog:
        first = catalog.create_namespace("before")
    commit_from_the_future(folder)
    daemon = start_daemon(url)
    with alpheus.connect(daemon.url) as catalog:
        late = [catalog.create_namespace(f"late{number}") for number in range(5)]
        assert late[0].created_at - datetime.now(UTC) > AHEAD - timedelta(days=1)
        steps = [b.created_at - a.created_at for a, b in itertools.pairwise(late)]
        assert set(steps) == {timedelta(milliseconds=1)}
        assert catalog.info().head_ahead > AHEAD - timedelta(days=1)
        assert catalog.at(datetime.now(UTC)).version == 1
        # Leases and keys use other clocks.
        with catalog.transaction(key="once") as tx:
            tx.create_namespace("keyed")
        with catalog.transaction(key="once") as tx:
            tx.create_namespace("keyed2")
        assert tx.result is not None
        assert tx.result.duplicate
        with catalog.at(3, lease=True) as snapshot:
            assert snapshot.namespace_exists("late0")
    assert "in the future; see alpheus repair --times" in run("info", "--catalog", daemon.url).stdout
    assert daemon.stop() == 0
    assert b"head_time_in_future" in b"".join(daemon._log)
    # A writer on storage continues as well.
    with alpheus.connect(url) as catalog:
        catalog.create_namespace("direct")
        head = catalog.version()

    asked = json.loads(run("repair", "--catalog", url, "--output", "json").stdout)
    assert [problem["kind"] for problem in asked["problems"]] == ["clock_skew"]
    assert asked["steps"] == []
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    done = answer(run("repair", "--times", "--yes", "--catalog", url, "--output", "json"))
    assert done["version"] == head + 1
    assert run("repair", "--times", "--yes", "--catalog", url).exit_code == 99

    daemon = start_daemon(url)
    with alpheus.connect(daemon.url) as catalog:
        after = catalog.create_namespace("after")
        assert before <= after.created_at <= datetime.now(UTC)
        assert catalog.info().head_ahead == timedelta()
        assert catalog.at(after.created_at).version == after.version == catalog.version()
        assert catalog.at(before).version == first.version
        assert catalog.at(late[2].created_at - AHEAD).version == first.version
        with pytest.raises(NotFound):
            catalog.at(first.created_at - timedelta(days=1))
        assert catalog.admin.check().findings == ()
        with catalog.log(after=head) as entries:
            types = [[action.type for action in entry.transaction.actions] for entry in entries]
        assert types == [["NAMESPACE_CREATE"], ["REPAIR"]]
    assert daemon.stop() == 0
    assert b"head_time_in_future" not in b"".join(daemon._log)
