"""Whose work an operation ran into, where executing it found a conflict: the definition tells what is there now, and
the log who did it.

A conflict by rules (`conflicts`) knows the transaction that it is with. One that is found by executing an operation on
the newest definition (`row_operations` and others) knows at most an id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from alpheus_journal.conflicts.text import describe_rival, time_text
from alpheus_journal.errors import Conflict
from alpheus_journal.model.answers import Event
from alpheus_journal.model.definitions import Segment
from alpheus_journal.model.operations import (
    Action,
    AdvancePipeline,
    ChangeRows,
    ClaimSubscription,
    CommitIceberg,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
    RestoreTable,
    Transaction,
    UpdateTable,
)

Listed = Callable[[str, Sequence[Segment]], Awaitable[set[str]]]
"""Paths of the data files that manifest segments of a table (its id first) list."""


async def name_rival(
    conflict: Conflict,
    operation: Operation,
    transaction: Transaction,
    events: AsyncIterator[Event],
    listed: Listed,
) -> None:
    """Say in `conflict`, which executing `operation` raised, who did what, in which version, and when. `events`: of the
    versions since the transaction began, the newest first. Left as it is where no version of them tells."""
    if conflict.version is not None and conflict.principal:
        return
    found = None
    async for event in events:
        for recorded in event.transactions:
            action = await _matching(conflict, operation, recorded, listed)
            if action is not None and recorded.id != transaction.id:
                found = event.version, recorded, action
        if found is not None:
            break
    if found is None:
        return
    version, recorded, action = found
    conflict.version = version
    conflict.transaction_id = recorded.id
    conflict.principal = recorded.principal or "an unnamed principal"
    conflict.committed_at_millis = recorded.committed_at_millis
    conflict.theirs = describe_rival(action)
    conflict.message += (
        f"; {conflict.principal} committed: {conflict.theirs} (version {version},"
        f" {time_text(recorded.committed_at_millis)}, transaction {recorded.id})"
    )
    conflict.args = (conflict.message,)


async def _matching(
    conflict: Conflict, operation: Operation, recorded: RecordedTransaction, listed: Listed
) -> Action | None:
    """The action of a committed transaction that the conflict is with."""
    of_target = [
        action
        for action in recorded.actions
        if operation.target in {action.name, *(effect.name for effect in action.also)}
    ]
    if conflict.transaction_id:
        if recorded.id != conflict.transaction_id:
            return None
        fitting = [action for action in of_target if _is_kin(conflict, operation, action)]
        return next(iter(fitting or of_target or recorded.actions), None)
    for action in of_target:
        if not _is_kin(conflict, operation, action):
            continue
        done = action.operation
        if conflict.kind == "rows_changed" and conflict.path and isinstance(done, ChangeRows):  # noqa: SIM102
            if conflict.path not in await listed(done.table_id, done.removed):
                continue
        return action
    return None


def _is_kin(conflict: Conflict, operation: Operation, action: Action) -> bool:
    """Whether such an action can lead to such a conflict."""
    done = action.operation
    match conflict.kind:
        case "rows_changed":
            return isinstance(done, ChangeRows | OverwriteFiles | RestoreTable) or (
                bool(conflict.transaction_id) and action.type == "TABLE_INSERT"
            )
        case "column_ids_moved":
            return isinstance(done, RestoreTable) or (
                isinstance(done, UpdateTable) and bool(done.add_columns)
            )
        case "metadata_moved":
            return isinstance(done, CommitIceberg | RestoreTable)
        case "subscription_claimed":
            return isinstance(done, ClaimSubscription)
        case "position_moved":
            jobs = isinstance(done, AdvancePipeline) and isinstance(operation, AdvancePipeline)
            return jobs and done.job == operation.job  # type: ignore[union-attr]
        case _:
            return False
