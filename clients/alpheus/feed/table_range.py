"""A range of versions that a feed of one table is asked for."""

from __future__ import annotations

import msgspec

from alpheus.catalog import Catalog, Snapshot
from alpheus.feed.former_names import name_at
from alpheus.feed.log import pair
from alpheus.feed.trail import TableTrail
from alpheus.models import Table
from alpheus.session.arguments import Name, When
from alpheus_journal.errors import Expired, InvalidInput, NotFound


class TableRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed of one table is asked for: `table` at `until`, called `name` at `after`, if it was there."""

    table: Table
    name: str
    exists: bool
    after: int
    until: int

    def start_trail(self) -> TableTrail:
        return TableTrail(self.name, self.table.id, exists=self.exists)


def range_of(catalog: Catalog, name: Name, after: When, until: When) -> TableRange:
    """The versions that a user named, and the table there. `after` None: all that is kept; `until` None: the head.

    Raises NotFound (`no_version`, `no_table`), Expired with the oldest version, InvalidInput (`bad_argument` for a
    range that ends before it begins, `table_replaced` when another table had the name at `after`).
    """
    last = catalog.at(until)
    first = None if after is None else catalog.at(after)
    if first is not None and first.version > last.version:  # whether or not the table is at either
        raise InvalidInput(
            f"the range is reversed: after={after!r} is version {first.version}, later than {last.version}, to which"
            f" until={until!r} comes",
            hint="changes are those of versions above after, up to until",
        )
    table = last.load_table(name)
    if table.format != "native":
        raise InvalidInput("an Iceberg table is read through Iceberg", kind="not_native")
    if first is None:
        return _range_since_creation(catalog, table, last.version)
    former = name_at(catalog, table.full_name, first.version, last.version)
    exists = check_same_table(first, former, table.id)
    return TableRange(table=table, name=former, exists=exists, after=first.version, until=last.version)


def check_same_table(snapshot: Snapshot, name: str, table_id: str) -> bool:
    """Whether the table is there. InvalidInput (`table_replaced`) when another one has its name."""
    try:
        found = snapshot.load_table(pair(name))
    except NotFound:
        return False
    if found.id != table_id:
        raise InvalidInput(
            f"at version {snapshot.version} table {name} was another one, of id {found.id}, which was dropped since",
            kind="table_replaced",
            version=snapshot.version,
            hint="begin at the version that made the one of today; its log tells",
        )
    return True


def _range_since_creation(catalog: Catalog, table: Table, until: int) -> TableRange:
    oldest = catalog.info().oldest_version
    former = name_at(catalog, table.full_name, oldest, until)
    try:
        found = catalog.at(oldest).load_table(pair(former))
    except NotFound:
        return TableRange(table=table, name=former, exists=False, after=oldest, until=until)
    raise Expired(
        f"what became of table {found.full_name} before version {oldest} is not kept",
        version=oldest,
        oldest=oldest,
        hint=f"read it at version {oldest}, and its changes after that",
    )
