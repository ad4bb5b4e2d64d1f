"""Opening an existing catalog: its head, its definition, and signs of versions that are missing."""

from __future__ import annotations

from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.log.versions import Log, Root
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.operations import CreateCatalog
from alpheus_journal.replay import evidence
from alpheus_journal.replay.evidence import Clues, gather_all
from alpheus_journal.replay.follower import Follower
from alpheus_journal.storage import Storage
from alpheus_journal.tree.reader import Reader, catalog_def_at

DAMAGED_MAX = 1000
"""The versions below a damaged head that are tried."""


async def open_log(storage: Storage, *, past_damage: bool = False, known: int | None = None) -> Follower:
    """Open the log at its head, and look for signs of lost versions.

    The look costs no round of requests of its own, as it takes place while the catalog's definition is read. It covers
    the slots at head ± 2^k, the slots that files in `checkpoint/` name, version 0, and the version below the head,
    whose id the head has to name. The findings are in `Follower.around`; a disagreement prevents writing. When slots
    below the newest version are free and that version says that a repair gave them up, that version is the head.

    * `known`: an existing version, from which the search for the head starts.
    * `past_damage`: if the head or its definition cannot be read, open at the newest readable version; see
      `Follower.damage`.

    Raises as `Journal.open`.
    """
    log = await Log.open(storage)
    (latest, oldest), named = await gather_all(log.hints(), evidence.try_named_versions(log))
    clues, hints = Clues(hint=latest, named=named), [hint for hint in (latest, oldest) if hint]
    try:
        root = await log.newest(known, hints=hints)
        definition, (taken, (first, unlinked)) = await gather_all(
            catalog_def_at(storage, root.catalog_def, root.version),
            gather_all(
                evidence.find_taken(log, clues.around(root.version)),
                gather_all(_first_catalog_id(log, root.version), evidence.find_unlinked(log, root)),
            ),
        )
        log.bind_definition(definition, root)
    except Corrupt as damage:
        if not past_damage:
            raise
        follower = await _open_at_readable(log, await log.head(known, hints=hints), damage)
        first = await _first_catalog_id(log, follower.head.version)
        _check_first(storage.url, first, follower.definition, follower.head.version)
        return follower
    _check_first(storage.url, first, definition, root.version)
    follower = _make_follower(log, root, definition)
    around = follower.around = await evidence.judge_head(
        log, root.version, definition.id, clues, taken, unlinked
    )
    if around.hole is not None and around.hole[0] > root.version:
        above = await evidence.root_beyond_given_up(log, *around.hole)
        if above is not None:
            return await open_log(storage, past_damage=past_damage, known=above[0].version)
    return follower


async def open_for_check(storage: Storage) -> tuple[Follower | None, list[AlpheusError]]:
    """Open as much as a check can start with, and return the errors that opening would raise.

    The follower is None when no version can be read. Raises NotFound (`no_catalog`) and any error of the requests.
    """
    try:
        return await open_log(storage, past_damage=True), []
    except (Corrupt, InvalidInput) as error:
        problems: list[AlpheusError] = [error]
    try:
        log, head = await _log_of_any(storage)
        return await _open_at(log, head), problems
    except (Corrupt, InvalidInput, Expired) as error:
        if error.path != problems[0].path:
            problems.append(error)
        return None, problems


async def _open_at(log: Log, head: int) -> Follower:
    """Open the log at `head`, or at the newest readable version below."""
    try:
        root = await log.read(head)
        definition = await catalog_def_at(log.storage, root.catalog_def, root.version)
        log.bind_definition(definition, root)
        return _make_follower(log, root, definition)
    except Corrupt as damage:
        return await _open_at_readable(log, head, damage)


async def _log_of_any(storage: Storage) -> tuple[Log, int]:
    """Return the log with the highest listed version, and that version. Raises Corrupt when there is none."""
    found: dict[int, int] = {}
    for digits in (32, 64):
        async for version in evidence.list_slots(Log(storage, digits)):
            found[digits] = max(version, found.get(digits, 0))
    if not found:
        raise Corrupt(f"{storage.url} has no versions", kind="corrupt_history", path="vn/")
    digits = max(found, key=lambda digits: found[digits])
    return Log(storage, digits), found[digits]


async def _open_at_readable(log: Log, head: int, damage: Corrupt) -> Follower:
    """Open the log at the newest readable version up to `head`. Raises `damage` when there is none.

    The definition of that version may be the one that version 0 records.
    """
    definitions: dict[str, CatalogDef | None] = {}
    for version in range(head, max(head - 1 - DAMAGED_MAX, -1), -1):
        try:
            root = await log.read(version)
            if root.catalog_def not in definitions:
                definitions[root.catalog_def] = await _find_definition(log, root)
            definition = definitions[root.catalog_def]
            if definition is None:
                continue
            log.bind_definition(definition, root)
        except (Corrupt, NotFound):
            continue
        except Expired:
            break
        follower = _make_follower(log, root, definition)
        follower.damage = damage
        return follower
    raise damage


async def _find_definition(log: Log, root: Root) -> CatalogDef | None:
    """Return the definition that a version names, from its file or as version 0 recorded it.

    Returns None when neither can be read.
    """
    try:
        return await catalog_def_at(log.storage, root.catalog_def, root.version)
    except Corrupt:
        return await recorded_definition(log, root.catalog_def)


async def recorded_definition(log: Log, path: str) -> CatalogDef | None:
    """Return the catalog's first definition as version 0 recorded it, if `path` is its file.

    Returns None when `path` is another file, or version 0 cannot be read.
    """
    try:
        first = await log.read(0)
    except (Corrupt, Expired, NotFound):
        return None
    for recorded in first.transactions:
        for action in recorded.actions:
            if isinstance(action.operation, CreateCatalog) and action.path_after == path:
                return action.operation.definition
    return None


def _make_follower(log: Log, root: Root, definition: CatalogDef) -> Follower:
    reader = Reader(log.storage, definition.keys(log.digits), node_size_max=log.node_size_max)
    return Follower(log, reader, definition.id, root, definition)


def _check_first(url: str, first: str, definition: CatalogDef, version: int) -> None:
    if first not in ("", definition.id):
        raise _two_catalogs_error(url, first, definition, version)


def _two_catalogs_error(url: str, first: str, definition: CatalogDef, version: int) -> InvalidInput:
    return InvalidInput(
        f"{url} holds two histories: version 0 belongs to catalog {first},"
        f" but version {version} to catalog {definition.id}",
        kind="two_histories",
        hint="files of another catalog were copied into this prefix: restore the prefix from a copy of one of them",
    )


async def _first_catalog_id(log: Log, head: int) -> str:
    """Return the catalog id of version 0.

    The id is empty when version 0 is the head, names no catalog, or cannot be read, which `check` reports.
    """
    if head == 0:
        return ""
    try:
        return await log.read_catalog_id(0)
    except AlpheusError:
        return ""
