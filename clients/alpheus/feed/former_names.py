"""The former names of a table, and its name now, as the log records them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from alpheus.catalog import Catalog
from alpheus.feed.log import follow, id_reader, read_events, split_name
from alpheus.feed.trail import IdAt, TableTrail
from alpheus.models import Table
from alpheus.session.arguments import Name
from alpheus_journal.errors import Expired, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import Action, RenameObject, Undrop


def name_at(catalog: Catalog, name: str, after: int, until: int) -> str:
    """Return the name that the table called `name` at version `until` had at version `after`, as far as the log tells.

    Where the table did not exist at `after`, return one of its former names. A `TableTrail` that starts with that name
    recognises the table by its id.
    """
    for former in names_before(catalog, name, after, until):
        name = former
    return name


def names_before(catalog: Catalog, name: str, after: int, until: int) -> Iterator[str]:
    """Yield the former names of the table called `name` at version `until`, newest first, back to version `after`."""
    if after >= until:
        return
    with read_events(
        catalog, after=after, until=until, kinds=["table", "namespace"], actions=_MOVES
    ) as events:
        found = list(events)
    id_at = id_reader(catalog)
    sought = ""  # the table's id, while going back over the time in which it was dropped
    for event in reversed(found):
        actions = [action for transaction in event.transactions for action in transaction.actions]
        for action in reversed(actions):
            if sought:
                former = _name_when_dropped(event, action, sought, id_at)
                if former:
                    name, until, sought = former, event.version, ""
                    yield name
            if event.version > until:
                continue  # the table was dropped then
            match action.operation:
                case RenameObject(kind=Kind.TABLE) as rename if rename.new_target.full_name == name:
                    name = action.name.full_name
                    yield name
                case Undrop(kind=Kind.TABLE) as undrop if action.name.full_name == name:
                    sought = id_at(action.path_after)
                    name, until = undrop.source.full_name, undrop.version
                    yield name
                case Undrop(kind=Kind.NAMESPACE) as undrop:
                    back = [
                        each.path_after
                        for each in event.changes
                        if each.name.kind is Kind.TABLE and each.name.full_name == name
                    ]
                    if back and back[0]:
                        sought, until = id_at(back[0]), undrop.version


_MOVES = ("TABLE_RENAME", "TABLE_UNDROP", "TABLE_DROP", "NAMESPACE_DROP", "NAMESPACE_UNDROP")


def _name_when_dropped(event: Event, action: Action, table_id: str, id_at: IdAt) -> str:
    """Return the table's name when the action dropped the table; "" when the action did not."""
    if action.type == "TABLE_DROP":
        path = action.path_before
        return action.name.full_name if path and id_at(path) == table_id else ""
    if action.type == "NAMESPACE_DROP":
        for changed in event.changes:
            if (
                changed.name.kind is Kind.TABLE
                and changed.type == "dropped"
                and id_at(changed.path_before) == table_id
            ):
                return changed.name.full_name
    return ""


def find_moved(catalog: Catalog, name: Name) -> Table | None:
    """Return the table that had `name` last, under its present name. None means that the table was dropped, or that the
    history has expired."""
    head = catalog.version()
    with catalog.log(name=name, until=head) as entries:
        last = next(iter(entries), None)
    # The last action on the name took it away, or it went with its namespace later. So the table had the name at the
    # version of that action, or at the version before.
    for version in () if last is None else (last.version, last.version - 1):
        with contextlib.suppress(NotFound, Expired):
            then = catalog.at(version).load_table(name)
            trail = TableTrail(then.full_name, then.id)
            for _ in follow(catalog, trail, version, head):
                pass
            return catalog.at(head).load_table(split_name(trail.name)) if trail.exists else None
    return None
