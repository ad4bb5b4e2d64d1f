"""The reads of feeds: events, recorded transactions and table definitions, with operations as classes.

`Catalog.events` and `Catalog.log` return the same to users, as plain dicts and names.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from alpheus.aio import session_of
from alpheus.catalog import Catalog, async_of
from alpheus.events.events import filter_of, stored_events, stored_log
from alpheus.feed.trail import IdAt, RowChange, TableTrail
from alpheus.sync.portal import Iteration, run
from alpheus_journal import format as fmt
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Event, LogEntry
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.storage import Storage


def read_events(
    catalog: Catalog,
    *,
    after: int,
    until: int,
    names: Iterable[tuple[str, str]] = (),
    kinds: Iterable[str] = (),
    actions: Iterable[str] = (),
) -> Iteration[Event]:
    """Return the matching events of (after, until]; see `Catalog.events`. Raises Expired."""
    wanted = filter_of(None, list(names), list(kinds), list(actions))
    session = session_of(async_of(catalog))
    return Iteration(
        stored_events(session, after=after, until=until, follow=False, filter=wanted, details=False)
    )


def read_log(catalog: Catalog, table: tuple[str, str], until: int) -> Iteration[LogEntry]:
    """Return the recorded transactions up to `until` that acted on a table's name, newest first."""
    session = session_of(async_of(catalog))
    return Iteration(stored_log(session, name=ObjectName(Kind.TABLE, *table), after=None, until=until))


def follow(
    catalog: Catalog, trail: TableTrail, after: int, until: int
) -> Generator[tuple[Event, list[RowChange]], None, None]:
    """Yield the events of (after, until] on the trail's table, under all its names, each with its row changes.

    Raises what `TableTrail.take` does, and Expired when history in between has expired.
    """
    if trail.id_at is None:
        trail.id_at = id_reader(catalog)
    while after < until:
        name, was_there = trail.name, trail.exists
        wanted: dict[str, Any] = {"names": [split_name(name)]}
        if not was_there:  # the table may come back under any name
            wanted = {"kinds": ["table", "namespace"], "actions": _BRING_BACK}
        with read_events(catalog, after=after, until=until, **wanted) as events:
            for event in events:
                after = event.version
                yield event, trail.take(event)
                if (trail.name, trail.exists) != (name, was_there):
                    break  # read on with the filter for the table's new name or state
            else:
                return


_BRING_BACK = ("TABLE_UNDROP", "NAMESPACE_UNDROP", "TABLE_CREATE", "TABLE_REGISTER", "TABLE_RENAME")


def split_name(name: str) -> tuple[str, str]:
    """Return a name as a pair, which is never read as a pattern."""
    namespace, _, last = name.rpartition(".")
    return namespace, last


def id_reader(catalog: Catalog) -> IdAt:
    """Return the `id_at` of a `TableTrail`. Each call of it reads a definition from storage."""
    return lambda path: load_definition(catalog.storage(), path).id


def load_definition(storage: Storage, pointer: str) -> TableDef:
    path = fmt.check_definition_pointer(pointer, Kind.TABLE)
    data = run(storage.read(path, size_max=fmt.DEFINITION_SIZE_BYTES_MAX))
    definition = decode_definition(Kind.TABLE, data, path)
    assert isinstance(definition, TableDef)
    return definition
