"""Find and fetch everything that operations read.

An execution reads only its workspace. Some reads follow from objects that were read before: the views of a dropped
table, the children of a namespace, the objects that these are bound to. So `fetch` calls `footprint` again until
nothing is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput
from alpheus_journal.execute.execute import EXECUTE_RULES
from alpheus_journal.execute.rules.lifecycle import CHILDREN_MAX
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Page, StoredObject
from alpheus_journal.model.definitions import NamespaceDef, Segment, TableDef, ViewDef
from alpheus_journal.model.operations import (
    Action,
    AppendFiles,
    ChangeRows,
    Operation,
    OverwriteFiles,
    Undrop,
)
from alpheus_journal.workspace.dropped_counters import Search
from alpheus_journal.workspace.execute_rule import Footprint, PastName, PastNamespace
from alpheus_journal.workspace.workspace import Counters, Workspace, decode_readable, definition_of

FETCHED_AT_ONCE_MAX = 1_000
DECODED_AT_ONCE_MAX = 100
FOOTPRINTS_AT_ONCE = 100
"""Footprints computed in one turn of the event loop: some milliseconds of work."""


class Source(Protocol):
    """One version of the catalog, to fetch from. `names` is only called for a namespace that exists."""

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]: ...

    async def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page: ...


class History(Protocol):
    """The versions up to the one that operations are executed on."""

    @property
    def version(self) -> int: ...

    async def at(self, version: int, name: ObjectName) -> Source:
        """Return a version. Once it has expired, the source has at least what `name` names, and raises Expired for what
        it lacks. Raises Expired where no tag has the object."""
        ...

    def changed_since(
        self, version: int, kinds: frozenset[Kind], name: ObjectName
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        """Yield the objects, as they stand, that were created or changed since a version. Where it has expired, these
        may be all that differ from what `at` returns.

        Yields all of them, or none where the changes are not known.
        """
        ...

    def actions_since(self, version: int) -> AsyncGenerator[Action, None] | None:
        """Return the actions of the versions above `version`, the last first; None where they are not known.

        They end with Expired at a version that has expired.
        """
        ...

    @property
    def decides_counters(self) -> bool:
        """Whether counters of dropped tables are decided where versions have expired. False where recorded operations
        are executed again."""
        ...

    def tagged_since(self, version: int, names: Sequence[ObjectName]) -> AsyncGenerator[TableDef, None]:
        """Yield tables of later versions that tags name, as far as they differ from those at `version`: at least those
        with these names. Only for a history that decides counters."""
        ...

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        """Return definitions by path, damaged ones too. Only for a history whose actions are known."""
        ...


# --- footprints ------------------------------------------------------------------------------------


def footprint(operation: Operation, workspace: Workspace) -> Footprint:
    """Return what `operation` reads. The footprint grows while its objects are fetched into `workspace`."""
    rule = EXECUTE_RULES[type(operation)]
    settled = rule.settled(operation)
    return rule.footprint(operation, workspace) if settled is None else Footprint(names=settled)


def settled_names(operation: Operation) -> tuple[ObjectName, ...] | None:
    """See `ExecuteRule.settled`."""
    return EXECUTE_RULES[type(operation)].settled(operation)


def settled_names_of(operations: Sequence[Operation], keys: fmt.Keys) -> list[ObjectName] | None:
    """Return the `settled_names` of all operations, or None when one has none. Raises InvalidInput for bad names."""
    found: list[ObjectName] = []
    for operation in operations:
        names = settled_names(operation)
        if names is None:
            return None
        for name in names:
            fmt.check_object_name(name, keys)
        found += names
    return found


# --- fetching --------------------------------------------------------------------------------------


async def fetch(
    base: Workspace,
    operations: Sequence[Operation],
    source: Source,
    history: History,
    keys: fmt.Keys,
    *,
    top: Workspace | None = None,
    drops: Mapping[str, int] | None = None,
) -> list[Segment]:
    """Put everything that operations read into `base`, which is at the version of `source`.

    Return the manifest segments whose content the operations need; the caller must read them.

    - `top` is a fork of `base` that may have some of the objects already.
    - `drops` is the number of objects by namespace that can be dropped before the operations are executed.

    Raises InvalidInput for invalid names and for versions that do not exist, and Expired for expired versions.
    """
    top = top or base
    listed: set[str] = set()
    is_constant = all(
        isinstance(operation, AppendFiles | OverwriteFiles | ChangeRows)
        or settled_names(operation) is not None
        for operation in operations
    )
    while True:
        needs: list[Footprint] = []
        for operation in operations:
            needs.append(footprint(operation, top))
            for name in needs[-1].names:
                fmt.check_object_name(name, keys)
            if not len(needs) % FOOTPRINTS_AT_ONCE:
                await asyncio.sleep(0)  # readers share the event loop
        if not is_constant:
            _note_impossible(base, top, [name for need in needs for name in need.related], keys)
        names = [name for need in needs for name in (*need.names, *need.related)]
        missing = [name for name in dict.fromkeys(names) if not top.has(name)]
        for start in range(0, len(missing), FETCHED_AT_ONCE_MAX):
            part = missing[start : start + FETCHED_AT_ONCE_MAX]
            for name, stored in zip(part, await source.load(part), strict=True):
                base.add_object(name, stored)
            await _decode_ahead(base, len(missing), part, base.get)
        if is_constant:
            break
        past = [at for at in dict.fromkeys(p for need in needs for p in need.past) if not top.has_past(*at)]
        inside = [
            at
            for at in dict.fromkeys(p for need in needs for p in need.past_inside)
            if not top.has_past_children(*at)
        ]
        await _fetch_past(base, past, inside, history)
        newly_listed = await _fetch_children(base, top, needs, source, drops or {}, listed)
        if not (missing or past or inside or newly_listed):
            break
    for operation in operations:
        if isinstance(operation, Undrop):
            await _fetch_undropped(base, top, operation, history)
    return [segment for need in needs for segment in need.segments if not top.has_segment(segment.path)]


async def _decode_ahead(
    base: Workspace, count: int, names: Sequence[ObjectName], get: Callable[[ObjectName], StoredObject | None]
) -> None:
    """Decode the definitions that an operation on very many objects needs, and let the event loop take turns."""
    if count <= DECODED_AT_ONCE_MAX:
        return
    for start in range(0, len(names), DECODED_AT_ONCE_MAX):
        for name in names[start : start + DECODED_AT_ONCE_MAX]:
            stored = get(name)
            if stored is not None and name.kind in (Kind.TABLE, Kind.VIEW):
                with contextlib.suppress(
                    AlpheusError
                ):  # an execution that needs this object raises the error
                    base.definition(name, stored)
        await asyncio.sleep(0)


def _note_impossible(base: Workspace, top: Workspace, names: Iterable[ObjectName], keys: fmt.Keys) -> None:
    """Note that objects with invalid names do not exist. Definitions of other writers may refer to any text."""
    for name in names:
        if not top.has(name):
            try:
                fmt.check_object_name(name, keys)
            except InvalidInput:
                base.add_object(name, None)


async def _fetch_children(
    base: Workspace,
    top: Workspace,
    needs: Sequence[Footprint],
    source: Source,
    drops: Mapping[str, int],
    listed: set[str],
) -> bool:
    """List the children of namespaces, each namespace once. Return whether one was listed."""
    wanted: dict[str, int] = {}
    for need in needs:
        for namespace in need.emptied:
            wanted.setdefault(namespace, drops.get(namespace, 0) + 1)
        for namespace in need.cascaded:
            wanted[namespace] = CHILDREN_MAX + drops.get(namespace, 0) + 1
    for namespace in list(wanted):
        if namespace in listed:
            del wanted[namespace]
            continue
        listed.add(namespace)
        parent = fmt.namespace_name(namespace)
        is_there = (base if base.has(parent) else top).get(parent) is not None
        base.add_children(
            namespace, await children_of(namespace, wanted[namespace], source.names) if is_there else ()
        )
    return bool(wanted)


async def children_of(
    namespace: str, wanted: int, list_page: Callable[..., Awaitable[Page]]
) -> list[ObjectName]:
    """Return the objects of a namespace: all of them, or at least `wanted` of each kind.

    `list_page` reads like `Access.list`, without the version.
    """
    children: list[ObjectName] = []
    for kind in (Kind.TABLE, Kind.VIEW):
        count, after, more = 0, "", True
        while more and count < wanted:
            page = await list_page(kind, namespace=namespace, prefix="", limit=wanted - count, after=after)
            children.extend(ObjectName(kind, namespace, name) for name in page.names)
            count += len(page.names)
            after, more = (page.names[-1], page.more) if page.names else ("", False)
    return children


async def _at(history: History, version: int, name: ObjectName) -> Source:
    if version < 0:
        raise InvalidInput(f"version {version} is negative", kind="bad_version")
    if version > history.version:
        raise InvalidInput(
            f"there is no version {version} yet; the newest is {history.version}", kind="future_version"
        )
    return await history.at(version, name)


async def _fetch_past(
    base: Workspace, past: Sequence[PastName], inside: Sequence[PastNamespace], history: History
) -> None:
    for version in dict.fromkeys(version for version, _ in past):
        names = [name for at, name in past if at == version]
        for start in range(0, len(names), FETCHED_AT_ONCE_MAX):
            part = names[start : start + FETCHED_AT_ONCE_MAX]
            for name, stored in zip(part, await _load_past(history, version, part), strict=True):
                base.add_past(version, name, stored)
            await _decode_ahead(base, len(names), part, partial(base.past, version))
    for version, namespace in inside:
        source = await _at(history, version, fmt.namespace_name(namespace))
        children = await children_of(namespace, CHILDREN_MAX + 1, source.names)
        base.add_past_children(version, namespace, children)


async def _load_past(
    history: History, version: int, names: Sequence[ObjectName]
) -> Sequence[StoredObject | None]:
    """Load objects of a version. Once it has expired, several tags may have one object each."""
    found: list[StoredObject | None] = []
    while True:
        rest = names[len(found) :]
        source = await _at(history, version, rest[0])
        try:
            return found + list(await source.load(rest))
        except Expired:
            if len(rest) == 1:
                raise
            found += await source.load(rest[:1])


async def _fetch_undropped(base: Workspace, top: Workspace, operation: Undrop, history: History) -> None:
    """Fetch objects that may be the undropped ones under other names, and the last counters of undropped tables."""
    version, source = operation.version, operation.source
    if not top.has_past(version, source) or top.past(version, source) is None:
        return
    children: tuple[ObjectName, ...] = ()
    if top.has_past_children(version, operation.namespace) and operation.kind is Kind.NAMESPACE:
        children = top.past_children(version, operation.namespace)
    returning = [source, *children] if len(children) <= CHILDREN_MAX else [source]
    id_of = {name: _id_of(name, top.past(version, name), top) for name in returning}
    ids = set(id_of.values())
    kinds = frozenset(name.kind for name in returning)
    async for name, stored in history.changed_since(version, kinds, source):
        if not top.has(name):
            try:
                found = _id_of(name, stored)
            except AlpheusError:
                continue  # an execution that needs this object raises the error
            if found in ids:
                base.add_object(name, stored)
    if operation.counters and not history.decides_counters:
        return  # recorded for all tables whose counters are not those of the version
    known = top.tables_known()  # the counters of existing tables are known already
    dropped = {
        id: name
        for name, id in id_of.items()
        if name.kind is Kind.TABLE and id not in known and top.counters(version, id) is None
    }
    if not dropped:
        return
    actions = history.actions_since(version)
    if actions is None:
        await _fetch_last_seen(base, version, source, dropped, top, history)
        return
    search, is_cut = Search(frozenset(dropped), history.stored), False
    async with contextlib.aclosing(actions):
        try:
            await search.run(actions)
        except Expired:
            is_cut = True
            if not history.decides_counters:
                raise
    for id, counters in search.found.items():
        base.add_counters(version, id, counters)
    if is_cut:
        missing = {id: dropped[id] for id in search.missing}
        await _decide_counters(base, top, version, missing, history)


async def _decide_counters(
    base: Workspace, top: Workspace, version: int, names: Mapping[str, ObjectName], history: History
) -> None:
    """Decide the counters of tables by id whose drop has expired: a gap above the highest that can be found."""
    highest: dict[str, Counters] = {}
    for id, name in names.items():
        then = _table_at(top, version, name)
        if then is not None:
            highest[id] = Counters.of(then).max(top.counters(version, id))
    async with contextlib.aclosing(history.tagged_since(version, list(names.values()))) as tagged:
        async for table in tagged:
            if table.id in highest:
                highest[table.id] = Counters.of(table).max(highest[table.id])
    for id, counters in highest.items():
        base.add_counters(version, id, counters.after_gap())


def _table_at(space: Workspace, version: int, name: ObjectName) -> TableDef | None:
    """Return a native table as it stood at a version, or None."""
    stored = space.past(version, name)
    table = space.definition(name, stored) if stored is not None else None
    return table if isinstance(table, TableDef) and table.native else None


async def _fetch_last_seen(
    base: Workspace,
    version: int,
    source: ObjectName,
    dropped: Mapping[str, ObjectName],
    top: Workspace,
    history: History,
) -> None:
    """Fetch the counters that the tables had when they last existed under their names. Where that version has expired,
    the counters are decided as a commit decides them.

    Used where actions are not known. A trial outside a commit needs no more.
    """
    seen_at = await _last_seen_at(source, _id_of(source, top.past(version, source)), version, history)
    try:
        last = await history.at(seen_at, source)
        names = list(dropped.values())
        for start in range(0, len(names), FETCHED_AT_ONCE_MAX):
            part = names[start : start + FETCHED_AT_ONCE_MAX]
            for name, stored in zip(part, await last.load(part), strict=True):
                definition = decode_readable(name, stored) if stored is not None else None
                if isinstance(definition, TableDef):
                    base.add_counters(version, definition.id, Counters.of(definition))
    except Expired:
        await _decide_counters(base, top, version, dropped, history)


async def _last_seen_at(name: ObjectName, id: str, version: int, history: History) -> int:
    """Find, by halving, a version from `version` on that is the last one at which the name had the object."""
    low, high = (
        version,
        history.version + 1,
    )  # the newest version lacks the object, or it could not be undropped
    while high - low > 1:
        middle = (low + high) // 2
        try:
            (stored,) = await (await history.at(middle, name)).load([name])
        except Expired:
            low = middle
            continue
        if stored is not None and _id_of(name, stored) == id:
            low = middle
        else:
            high = middle
    return low


def _id_of(name: ObjectName, stored: StoredObject | None, workspace: Workspace | None = None) -> str:
    assert stored is not None
    definition = workspace.definition(name, stored) if workspace else definition_of(name, stored)
    assert isinstance(definition, NamespaceDef | TableDef | ViewDef)
    return definition.id
