"""The log for our own feeds: events and recorded transactions with their operations as classes.

`Catalog.events` and `Catalog.log` give the same to users, as plain dicts and names.
"""

from __future__ import annotations

from collections.abc import Iterable

from alpheus.aio import session_of
from alpheus.catalog import Catalog, async_of
from alpheus.events.events import filter_of, stored_events, stored_log
from alpheus.sync.portal import Iteration
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Event, LogEntry


def read_events(
    catalog: Catalog,
    *,
    after: int,
    until: int,
    names: Iterable[tuple[str, str]] = (),
    kinds: Iterable[str] = (),
    actions: Iterable[str] = (),
) -> Iteration[Event]:
    """The events of (after, until] that match; see `Catalog.events`. Raises Expired."""
    wanted = filter_of(None, list(names), list(kinds), list(actions))
    session = session_of(async_of(catalog))
    return Iteration(
        stored_events(session, after=after, until=until, follow=False, filter=wanted, details=False)
    )


def read_log(catalog: Catalog, table: tuple[str, str], until: int) -> Iteration[LogEntry]:
    """The recorded transactions up to `until` that acted on what has a table's name, newest first."""
    session = session_of(async_of(catalog))
    return Iteration(stored_log(session, name=ObjectName(Kind.TABLE, *table), after=None, until=until))
