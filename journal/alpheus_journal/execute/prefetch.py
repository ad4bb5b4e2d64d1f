"""What must be fetched before operations can be executed, and fetching it.

An execution reads only its workspace. What it will read follows in part from what was read: a dropped table's views,
a namespace's children, what they are bound to. So `fetch` asks `footprint` again until nothing is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.execute.execute import EXECUTE_RULES
from alpheus_journal.execute.lifecycle import CHILDREN_MAX
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
from alpheus_journal.workspace.dropped_counters import counters_of_dropped
from alpheus_journal.workspace.execute_rule import Footprint, PastName, PastNamespace
from alpheus_journal.workspace.workspace import Counters, Workspace, decode_readable, definition_of

FETCHED_AT_ONCE_MAX = 1_000
DECODED_AT_ONCE_MAX = 100
FOOTPRINTS_AT_ONCE = 100
"""Found in one turn of the event loop: some milliseconds of work."""


class Source(Protocol):
    """One version of the catalog, to fetch from. A namespace that is asked for its names is there."""

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]: ...

    async def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page: ...


class History(Protocol):
    """The versions at or below the one that operations are executed on."""

    @property
    def version(self) -> int: ...

    async def at(self, version: int) -> Source:
        """Raises Expired."""
        ...

    def changed_since(
        self, version: int, kinds: frozenset[Kind]
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        """Objects, as they stand, that were created or changed since a version: all of them, or none where
        that cannot be known here."""
        ...

    def actions_since(self, version: int) -> AsyncIterator[Action] | None:
        """The actions of the versions above one, the last first; None where they cannot be known here."""
        ...

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        """Definitions by path, damaged ones too. Only where actions are known."""
        ...


# --- what is needed --------------------------------------------------------------------------------


def footprint(operation: Operation, workspace: Workspace) -> Footprint:
    """What `operation` reads; grows while what it names is fetched into `workspace`."""
    rule = EXECUTE_RULES[type(operation)]
    settled = rule.settled(operation)
    return rule.footprint(operation, workspace) if settled is None else Footprint(names=settled)


def settled_names(operation: Operation) -> tuple[ObjectName, ...] | None:
    """See `ExecuteRule.settled`."""
    return EXECUTE_RULES[type(operation)].settled(operation)


def settled_names_of(operations: Sequence[Operation], keys: fmt.Keys) -> list[ObjectName] | None:
    """As `settled_names`, of all of them; None when one has none. Raises InvalidInput for names that cannot be."""
    found: list[ObjectName] = []
    for operation in operations:
        names = settled_names(operation)
        if names is None:
            return None
        for name in names:
            fmt.check_object_name(name, keys)
        found += names
    return found


# --- fetching it -----------------------------------------------------------------------------------


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
    """Put everything that operations read into `base`, which stands at `source`'s version; return the manifest
    segments whose content they need, which the caller reads.

    `top`: a fork of `base` in which some of it may stand already. `drops`: how many objects of a namespace can be
    dropped before the operations are executed. Raises InvalidInput for names that cannot be and for versions
    that are not there, Expired for versions that are gone.
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
                await asyncio.sleep(0)  # many operations share the loop with readers
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
    """Of very many objects, decode those that a wide operation looks into, giving way to others in between."""
    if count <= DECODED_AT_ONCE_MAX:
        return
    for start in range(0, len(names), DECODED_AT_ONCE_MAX):
        for name in names[start : start + DECODED_AT_ONCE_MAX]:
            stored = get(name)
            if stored is not None and name.kind in (Kind.TABLE, Kind.VIEW):
                with contextlib.suppress(AlpheusError):  # whoever needs it is told
                    base.definition(name, stored)
        await asyncio.sleep(0)


def _note_impossible(base: Workspace, top: Workspace, names: Iterable[ObjectName], keys: fmt.Keys) -> None:
    """Definitions of other writers may refer to any text; what is no name is not there."""
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
    """List what namespaces hold, once a call; whether there was one to list."""
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
    """Objects that live in a namespace: all, or of each kind at least `wanted`. `list_page` reads as `Access.list`
    does, without the version."""
    children: list[ObjectName] = []
    for kind in (Kind.TABLE, Kind.VIEW):
        count, after, more = 0, "", True
        while more and count < wanted:
            page = await list_page(kind, namespace=namespace, prefix="", limit=wanted - count, after=after)
            children.extend(ObjectName(kind, namespace, name) for name in page.names)
            count += len(page.names)
            after, more = (page.names[-1], page.more) if page.names else ("", False)
    return children


async def _at(history: History, version: int) -> Source:
    if version < 0:
        raise InvalidInput(f"version {version} is negative", kind="bad_version")
    if version > history.version:
        raise InvalidInput(
            f"there is no version {version} yet; the newest is {history.version}", kind="future_version"
        )
    return await history.at(version)


async def _fetch_past(
    base: Workspace, past: Sequence[PastName], inside: Sequence[PastNamespace], history: History
) -> None:
    for version in dict.fromkeys(version for version, _ in past):
        source = await _at(history, version)
        names = [name for at, name in past if at == version]
        for start in range(0, len(names), FETCHED_AT_ONCE_MAX):
            part = names[start : start + FETCHED_AT_ONCE_MAX]
            for name, stored in zip(part, await source.load(part), strict=True):
                base.add_past(version, name, stored)
            await _decode_ahead(base, len(names), part, partial(base.past, version))
    for version, namespace in inside:
        source = await _at(history, version)
        children = await children_of(namespace, CHILDREN_MAX + 1, source.names)
        base.add_past_children(version, namespace, children)


async def _fetch_undropped(base: Workspace, top: Workspace, operation: Undrop, history: History) -> None:
    """Where the objects that come back may live under other names, and how far the counters of tables had got."""
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
    async for name, stored in history.changed_since(version, kinds):
        if not top.has(name):
            try:
                found = _id_of(name, stored)
            except AlpheusError:
                continue  # of some other object: whoever needs it is told
            if found in ids:
                base.add_object(name, stored)
    known = top.tables_known()  # of those that live nothing has to be found out
    dropped = frozenset(
        id
        for name, id in id_of.items()
        if name.kind is Kind.TABLE and id not in known and top.counters(version, id) is None
    )
    if not dropped:
        return
    actions = history.actions_since(version)
    if actions is None:
        await _fetch_last_seen(base, version, source, returning, top, history)
        return
    async with contextlib.aclosing(actions):  # type: ignore[type-var]
        for id, counters in (await counters_of_dropped(dropped, actions, history.stored)).items():
            base.add_counters(version, id, counters)


async def _fetch_last_seen(
    base: Workspace,
    version: int,
    source: ObjectName,
    returning: Sequence[ObjectName],
    top: Workspace,
    history: History,
) -> None:
    """Where actions are not known: the counters when the tables were last seen under their names, which is enough to
    try things out."""
    seen_at = await _last_seen_at(source, _id_of(source, top.past(version, source)), version, history)
    last = await history.at(seen_at)
    for start in range(0, len(returning), FETCHED_AT_ONCE_MAX):
        part = returning[start : start + FETCHED_AT_ONCE_MAX]
        for name, stored in zip(part, await last.load(part), strict=True):
            definition = decode_readable(name, stored) if stored is not None else None
            if isinstance(definition, TableDef):
                base.add_counters(version, definition.id, Counters.of(definition))


async def _last_seen_at(name: ObjectName, id: str, version: int, history: History) -> int:
    """A version from `version` on at which the name still had the object and in the next had not, by halving."""
    low, high = version, history.version + 1  # at the newest version it is gone, or else nothing is undropped
    while high - low > 1:
        middle = (low + high) // 2
        (stored,) = await (await history.at(middle)).load([name])
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
