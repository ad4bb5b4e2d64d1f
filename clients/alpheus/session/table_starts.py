"""Which tables lack data files at a version: their rules let the files go earlier (FORMAT.md, "Starts of tables")."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Tag, VersionInfo
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.table_starts import files_expired, find_lacking
from alpheus_journal.rooted_storage import DATA_FOLDER


async def starts_at_head(session: Session) -> Mapping[str, int]:
    """Return the starts of tables, by table id, at a head that is looked for now."""
    (stored,) = (await session.load(None, [fmt.CATALOG])).objects
    assert stored is not None
    definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
    assert isinstance(definition, CatalogDef)
    return definition.table_starts


@asynccontextmanager
async def expired_files_instead(session: Session, version: int) -> AsyncIterator[None]:
    """Raise Expired (`files_expired`) instead of Corrupt for a data file that a collection may have taken from a
    version."""
    try:
        yield
    except Corrupt as error:
        table_id = table_of_file(error.path)
        if table_id:
            await check_files_kept(session, table_id, table_id, version)
        raise


def table_of_file(path: str) -> str:
    """Return the id of the table whose data file has a path, or "" for another path."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == DATA_FOLDER.rstrip("/") else ""


async def check_files_kept(session: Session, name: str, table_id: str, version: int) -> None:
    """Check that no collection may have taken data files of a table at a version. Raises Expired (`files_expired`)."""
    check_not_lacking(find_lacking(await starts_at_head(session), version), name, table_id, version)


def check_not_lacking(lacking: Mapping[str, int], name: str, table_id: str, version: int) -> None:
    """Check that a table is not among those that lack data files. Raises Expired (`files_expired`)."""
    start = lacking.get(table_id)
    if start is not None:
        raise files_expired(name, version, start)


async def lacking_of_copy(session: Session, at: VersionInfo, tag: Tag | None) -> Mapping[str, int]:
    """Return what a lease's copy of a version lacks. Call it when the lease is durable: a collection that raises a
    start later finds the lease. A tag that still has the same pin has kept what it does not lack."""
    starts = await starts_at_head(session)
    if tag is not None:
        found = await session.resolve(tag)
        if found.pin_path == at.pin_path:
            return found.lacking
    return find_lacking(starts, at.version)
