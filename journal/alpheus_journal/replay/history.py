"""Questions about the past: the differences between two versions, and the dropped objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from alpheus_journal.format import CATALOG, Kind, ObjectName
from alpheus_journal.model.answers import Change, Dropped, StoredObject
from alpheus_journal.model.operations import RecordedTransaction, RenameObject
from alpheus_journal.tree import btree as tree
from alpheus_journal.tree.reader import Reader, Snapshot

Transactions = Callable[[int], Awaitable[tuple[int, tuple[RecordedTransaction, ...]]]]
"""Returns the creation time and the recorded transactions of a version. A foreign version's diff counts as one
transaction."""

DEFINITIONS_AT_ONCE = 500


async def changes_between(
    reader: Reader, before: Snapshot, after: Snapshot, *, details: bool = False
) -> AsyncIterator[Change]:
    """Yield the changes from `before` to `after` in key order, after a change of the catalog's own definition."""
    changes: list[Change] = []
    if before.catalog_def != after.catalog_def:
        changes.append(
            Change(name=CATALOG, type="updated", path_before=before.catalog_def, path_after=after.catalog_def)
        )
    for key, old, new in await tree.run_async(tree.diff(before.root, after.root), reader.load_nodes):
        changes.append(
            Change(
                name=reader.keys.parse(key),
                type="created" if old is None else "dropped" if new is None else "updated",
                path_before=old or "",
                path_after=new or "",
            )
        )
    for start in range(0, len(changes), DEFINITIONS_AT_ONCE):
        part = changes[start : start + DEFINITIONS_AT_ONCE]
        for change in await with_definitions(reader, part) if details else part:
            yield change


async def with_definitions(reader: Reader, changes: Sequence[Change]) -> list[Change]:
    """Return the changes with their definitions before and after, read together."""
    data = await reader.definitions(
        {
            path: change.name.kind
            for change in changes
            for path in (change.path_before, change.path_after)
            if path
        }
    )
    return [
        msgspec.structs.replace(
            change,
            definition_before=data[change.path_before] if change.path_before else None,
            definition_after=data[change.path_after] if change.path_after else None,
        )
        for change in changes
    ]


async def dropped_objects(
    versions: range,
    transactions: Transactions,
    load: Callable[[list[ObjectName]], Awaitable[Sequence[StoredObject | None]]],
    *,
    namespace: str | None,
    name: ObjectName | None,
) -> AsyncIterator[Dropped]:
    """Yield the dropped objects, the last dropped first.

    Each object comes once, and none that `load` finds at the head. `versions` descend. The search ends with Expired
    at the first version that is not kept.
    """
    seen: set[ObjectName] = set()
    for version in versions:
        created_at, recorded = await transactions(version)
        gone: dict[ObjectName, RecordedTransaction] = {}
        for transaction, names in reversed(_gone(recorded)):
            for one in names:
                if (
                    one not in seen
                    and one.kind in (Kind.NAMESPACE, Kind.TABLE, Kind.VIEW)
                    and (namespace is None or one.namespace == namespace)
                    and (name is None or one == name)
                ):
                    seen.add(one)
                    gone[one] = transaction
        for (one, transaction), stored in zip(
            gone.items(), await load(list(gone)) if gone else (), strict=True
        ):
            if stored is None:
                yield Dropped(
                    name=one,
                    version=version - 1,
                    dropped_version=version,
                    dropped_at_millis=created_at,
                    transaction_id=transaction.id,
                    principal=transaction.principal,
                )


def _gone(
    recorded: Sequence[RecordedTransaction],
) -> list[tuple[RecordedTransaction, list[ObjectName]]]:
    """Find the objects that each action of a version dropped, under their names in the version before.

    A rename drops nothing. An object that was created and dropped within the version existed in no version.
    """
    names_before: dict[
        ObjectName, ObjectName | None
    ] = {}  # of the objects that the version touched; None: the object did not exist before
    found = []
    for transaction in recorded:
        for action in transaction.actions:
            if isinstance(action.operation, RenameObject):
                old, new = action.operation.target, action.operation.new_target
                names_before[new] = names_before.pop(old, old)
                continue
            ended = []
            for effect in action.effects:
                if not effect.path_before:
                    names_before[effect.name] = None
                elif not effect.path_after:
                    before = names_before.pop(effect.name, effect.name)
                    ended.extend([] if before is None else [before])
            if ended:
                found.append((transaction, ended))
    return found
