"""Name the rival of a conflict that was found by executing an operation.

A conflict by `rules` knows its rival, the committed transaction. A conflict found by executing an operation on the
newest definition (`execute.rows` and others) knows at most a transaction id. The log says who committed it.
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

ListFiles = Callable[[str, Sequence[Segment]], Awaitable[set[str]]]
"""Takes a table's id and manifest segments; returns the paths of the data files that the segments list."""


async def name_rival(
    conflict: Conflict,
    operation: Operation,
    transaction: Transaction,
    events: AsyncIterator[Event],
    list_files: ListFiles,
) -> None:
    """Add to `conflict` who committed what, in which version and when. Executing `operation` raised the conflict.

    `events` are those of the versions since the transaction began, the newest first. Where none of them explains the
    conflict, it stays as it is.
    """
    if conflict.version is not None and conflict.principal:
        return
    found = None
    async for event in events:
        for recorded in event.transactions:
            action = await _find_action(conflict, operation, recorded, list_files)
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


async def _find_action(
    conflict: Conflict, operation: Operation, recorded: RecordedTransaction, list_files: ListFiles
) -> Action | None:
    """Return the action of a committed transaction that caused the conflict, or None."""
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
            if conflict.path not in await list_files(done.table_id, done.removed):
                continue
        return action
    return None


def _is_kin(conflict: Conflict, operation: Operation, action: Action) -> bool:
    """Return whether such an action can cause such a conflict."""
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
