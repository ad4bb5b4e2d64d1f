"""The range of versions over which a feed of one table is read."""

from __future__ import annotations

import msgspec

from alpheus.catalog import Catalog, Snapshot
from alpheus.feed.former_names import name_at
from alpheus.feed.log import split_name
from alpheus.feed.trail import TableTrail
from alpheus.models import Table
from alpheus.session.arguments import Name, When
from alpheus_journal.errors import Expired, InvalidInput, NotFound


class TableRange(msgspec.Struct, frozen=True, kw_only=True):
    """A table at version `until`, and its name at version `after`. `exists` says whether it existed at `after`."""

    table: Table
    name: str
    exists: bool
    after: int
    until: int

    def start_trail(self) -> TableTrail:
        return TableTrail(self.name, self.table.id, exists=self.exists)


def range_of(catalog: Catalog, name: Name, after: When, until: When) -> TableRange:
    """Return the range that a user named. `after` None means since the table was created, `until` None means the head.

    Raises NotFound (`no_version`, `no_table`), Expired with the oldest version, and InvalidInput (`bad_argument` for a
    range that ends before it begins, `table_replaced` when another table had the name at `after`, `bad_version` for a
    tag of chosen objects).
    """
    last = open_whole(catalog, until)
    first = None if after is None else open_whole(catalog, after)
    if first is not None and first.version > last.version:  # say this even where the table does not exist
        raise InvalidInput(
            f"the range is reversed: after={after!r} is version {first.version}, until={until!r} is the earlier"
            f" version {last.version}",
            hint="give an `after` that is not later than `until`; the changes are those of (after, until]",
        )
    table = last.load_table(name)
    if table.format != "native":
        raise InvalidInput(
            f"table {table.full_name} is an Iceberg table", kind="not_native", hint="read it through Iceberg"
        )
    if first is None:
        return _range_since_creation(catalog, table, last.version)
    former = name_at(catalog, table.full_name, first.version, last.version)
    exists = check_same_table(first, former, table.id)
    return TableRange(table=table, name=former, exists=exists, after=first.version, until=last.version)


def open_whole(catalog: Catalog, when: When) -> Snapshot:
    """Open a version at which changes begin or end. Raises InvalidInput (`bad_version`) for a tag of chosen objects: it
    may have the table as of another version, or lack it, and changes would be missed in silence."""
    snapshot = catalog.at(when)
    if snapshot.is_chosen:
        raise InvalidInput(
            f"tag {when} of chosen objects names no version at which changes begin or end",
            kind="bad_version",
            version=snapshot.version,
            hint="give a version, or a tag of all objects; the tag tells the version of each object that it holds",
        )
    return snapshot


def check_same_table(snapshot: Snapshot, name: str, table_id: str) -> bool:
    """Return whether the table exists. Raises InvalidInput (`table_replaced`) when another table has its name."""
    try:
        found = snapshot.load_table(split_name(name))
    except NotFound:
        return False
    if found.id != table_id:
        raise InvalidInput(
            f"at version {snapshot.version} table {name} was another table, of id {found.id}, which has been dropped",
            kind="table_replaced",
            version=snapshot.version,
            hint="begin at the version that created the present table; `alpheus log` shows it",
        )
    return True


def _range_since_creation(catalog: Catalog, table: Table, until: int) -> TableRange:
    oldest = catalog.info().oldest_version
    former = name_at(catalog, table.full_name, oldest, until)
    try:
        found = catalog.at(oldest).load_table(split_name(former))
    except NotFound:
        return TableRange(table=table, name=former, exists=False, after=oldest, until=until)
    raise Expired(
        f"the changes of table {found.full_name} before version {oldest} have expired",
        version=oldest,
        oldest=oldest,
        hint=f"read the table at version {oldest}, and its changes after that version",
    )
