"""The tree of a tag of chosen objects (FORMAT.md, "Tags of chosen objects"): entries of one or several versions.

Without `only`, the tree is the version's, with entries taken out: it shares the nodes that did not change. With `only`,
it is built of the chosen entries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Key, Kind, NodePath, ObjectName
from alpheus_journal.log.copies import Copy
from alpheus_journal.model.definitions import TagDef, TagObject
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.reader import Snapshot

ENTRIES_MAX = 100_000
"""The most entries that a tag chooses by `only`, and the most that it takes out of a version."""
ENTRIES_READ = 4_096
CHOSEN_KINDS = (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A version that objects are chosen from. `verify` raises where files of the version may have been deleted before
    the new pin was stored. `lacking_of` returns the tables whose data files may have been deleted before, given the
    starts at the head. `tag` is the tag that named the version, if a tag did."""

    copy: Copy
    snapshot: Snapshot
    verify: Callable[[], Awaitable[None]]
    lacking_of: Callable[[Mapping[str, int]], Awaitable[dict[str, int]]]
    tag: TagDef | None = None

    def version_of(self, name: ObjectName) -> int:
        """Return the version whose state of an object this source has."""
        found = None if self.tag is None else self.tag.version_of(name)
        return self.copy.version if found is None else found


class ChosenTree(msgspec.Struct, frozen=True, kw_only=True):
    """A new tree: its root, its other new nodes, and what the tag records. `entries` are all of its keys with their
    definition paths where it was built of them; else `taken` are the keys that were taken out of the version."""

    applied: tree.Applied
    chosen: tuple[TagObject, ...] = ()
    left_out: tuple[TagObject, ...] = ()
    entries: tuple[tuple[Key, str], ...] | None = None
    taken: tuple[Key, ...] = ()


Entries = dict[tuple[str, str], tuple[Key, str]]
"""Keys and definition paths by namespace and name. The name of a namespace is empty."""


async def choose(
    base: Source,
    only: Mapping[TagObject, Source],
    without: Sequence[TagObject],
    *,
    order: int,
    new_path: Callable[[], NodePath],
) -> ChosenTree:
    """Build a tree of the objects `only` (empty: all of `base`), less those of `without`.

    Raises NotFound for a name that the version lacks, InvalidInput (`bad_argument`) where no object is left, and
    InvalidInput (`too_large`) above ENTRIES_MAX.
    """
    if only:
        made = await _choose_only(base, only, without, order, new_path)
    else:
        made = await _take_out(base, without, order, new_path)
    if not made.applied.root.keys:
        raise InvalidInput("the tag would hold no objects", hint="choose some, or leave fewer out")
    return made


async def _choose_only(
    base: Source,
    only: Mapping[TagObject, Source],
    without: Sequence[TagObject],
    order: int,
    new_path: Callable[[], NodePath],
) -> ChosenTree:
    found: Entries = {}
    # A name counts more than its namespace's.
    for each, source in sorted(only.items(), key=lambda item: bool(item[0].name)):
        async for name, key, path in _find(source, each):
            found[name.namespace, name.name] = key, path
            if len(found) > ENTRIES_MAX:
                raise _too_many("chooses")
    chosen, inherited = _record(only)
    for namespace in {each.namespace for each in chosen}:
        if (namespace, "") not in found:
            await _add_namespace(namespace, only, found)
    inside: dict[str, list[tuple[str, str]]] = {}
    for place in found:
        inside.setdefault(place[0], []).append(place)
    gone: set[tuple[str, str]] = set()
    for left_out in without:
        place = left_out.namespace, left_out.name
        covered = (
            inside.get(left_out.namespace, []) if not left_out.name else [place] if place in found else []
        )
        if not covered:
            raise _not_there(left_out, base)
        gone.update(covered)
    for place in gone:
        del found[place]
    entries = tuple(sorted(found.values()))
    applied = tree.build(entries, order=order, new_path=new_path)
    left_out_too = tuple(dict.fromkeys((*inherited, *without)))
    return ChosenTree(applied=applied, chosen=chosen, left_out=left_out_too, entries=entries)


def _record(only: Mapping[TagObject, Source]) -> tuple[tuple[TagObject, ...], list[TagObject]]:
    """Return what is chosen with its versions, in order, and what it lacks of its namespaces.

    Of a namespace in a tag of chosen objects, that is what this tag has of it.
    """
    chosen: list[TagObject] = []
    lacking: list[TagObject] = []
    for each, source in only.items():
        tag = source.tag
        if tag is not None and not each.name:
            lacking += [left_out for left_out in tag.left_out if left_out.namespace == each.namespace]
        inside = [] if tag is None else [held for held in tag.chosen if held.namespace == each.namespace]
        if inside and not each.name:
            chosen += [
                held for held in inside if TagObject(held.namespace, held.name) not in only or not held.name
            ]
        else:
            version = source.version_of(each.object_name)
            chosen.append(TagObject(each.namespace, each.name, version))
    ordered = sorted(chosen, key=lambda each: (each.namespace, each.name))
    return tuple(ordered), [left_out for left_out in lacking if left_out not in only]


async def _add_namespace(namespace: str, only: Mapping[TagObject, Source], found: Entries) -> None:
    """Add the namespace of chosen objects, as it was in the newest of their versions."""
    inside = [source for each, source in only.items() if each.namespace == namespace]
    name = fmt.namespace_name(namespace)
    source = max(inside, key=lambda source: source.version_of(name))
    ((key, stored),) = await source.snapshot.load_with_keys([name])
    if key is not None and stored is not None:
        found[namespace, ""] = key, stored.path


async def _take_out(
    base: Source, without: Sequence[TagObject], order: int, new_path: Callable[[], NodePath]
) -> ChosenTree:
    taken: dict[Key, str | None] = {}
    for each in without:
        async for _, key, _ in _find(base, each):
            taken[key] = None
    for kind in fmt.TYPE_IDS:
        if kind not in CHOSEN_KINDS:
            async for key, _ in _scan(base, [base.snapshot.reader.keys.bounds(kind)]):
                taken[key] = None
    if len(taken) > ENTRIES_MAX:
        raise _too_many("takes out")
    snapshot = base.snapshot
    steps = tree.apply(snapshot.root, taken, order=order, new_path=new_path)
    applied = await tree.run_async(steps, snapshot.reader.load_nodes)
    before = (base.tag.chosen, base.tag.left_out) if base.tag is not None else ((), ())
    left_out = tuple(dict.fromkeys((*before[1], *without)))
    return ChosenTree(applied=applied, chosen=before[0], left_out=left_out, taken=tuple(taken))


async def _find(source: Source, each: TagObject) -> AsyncIterator[tuple[ObjectName, Key, str]]:
    """Yield an object of a source, and of a namespace everything in it. Raises NotFound."""
    snapshot, keys = source.snapshot, source.snapshot.reader.keys
    kinds = (Kind.TABLE, Kind.VIEW) if each.name else (Kind.NAMESPACE,)
    names = [fmt.check_object_name(ObjectName(kind, each.namespace, each.name), keys) for kind in kinds]
    is_there = False
    for name, (key, stored) in zip(names, await snapshot.load_with_keys(names), strict=True):
        if key is not None and stored is not None:
            is_there = True
            yield name, key, stored.path
    if not is_there:
        raise _not_there(each, source)
    if each.name:
        return
    for kind in (Kind.TABLE, Kind.VIEW):
        async for key, path in _scan(source, keys.ranges(kind, each.namespace)):
            name = keys.parse(key)
            if name.namespace == each.namespace:
                yield name, key, path


async def _scan(source: Source, ranges: Iterable[tuple[Key, Key]]) -> AsyncIterator[tuple[Key, str]]:
    snapshot = source.snapshot
    for low, high in ranges:
        await snapshot.reader.rule_out_utf16_order(snapshot.root, [low, high])
        start = low
        while True:
            rows = await snapshot.rows(start, high, ENTRIES_READ)
            for row in rows:
                yield row
            if len(rows) < ENTRIES_READ:
                break
            start = Key(rows[-1][0] + "\0")


def _not_there(each: TagObject, source: Source) -> NotFound:
    what = f"table or view {each.full_name}" if each.name else f"namespace {each.full_name}"
    where = f"version {source.copy.version}"
    if source.tag is not None and source.tag.is_chosen:
        where = f"the tag of {where}, which holds chosen objects"
    return NotFound(
        f"there is no {what} in {where}",
        kind="no_table" if each.name else "no_namespace",
        version=source.copy.version,
        hint="list the objects of that version to see the names",
    )


def _too_many(what: str) -> InvalidInput:
    return InvalidInput(
        f"the tag {what} more than {ENTRIES_MAX:,} entries",
        kind="too_large",
        hint="tag the whole version, or fewer objects",
    )
