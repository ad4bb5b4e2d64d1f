"""Sessions and consumers of a lake in memory, for tests that need one process only."""

from __future__ import annotations

from typing import Any

from alpheus.events.consumer import AsyncSubscription
from alpheus.events.subscriptions import terms_of
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import Session
from alpheus_journal.journal import Journal
from alpheus_journal.testing import Lake
from alpheus_journal.testing.simulation.ids import SeededIdentities


def session_on(journal: Journal, lake: Lake, seed: int = 0) -> Session:
    async def storage() -> Any:
        return journal.storage

    return Session(
        journal,
        url="memory://",
        principal="ann",
        retry_policy=RetryPolicy(5),
        identities=SeededIdentities(seed + 1000, lake.clock),
        open_storage=storage,
        outage="storage_unavailable",
    )


def consumer(session: Session, name: str = "mail", **terms: Any) -> AsyncSubscription:
    given = {"namespaces": None, "names": None, "kinds": None, "actions": None, "details": None} | terms
    return AsyncSubscription(session, name, terms_of(after=given.pop("after", None), lease=None, **given))
