"""The only operation on pipelines: advance a job, in the commit that writes its outputs."""

from __future__ import annotations

import uuid

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Conflict, InvalidInput, NotFound
from alpheus_journal.model.definitions import (
    JobDef,
    PipelineDef,
)
from alpheus_journal.model.operations import (
    AdvancePipeline,
)
from alpheus_journal.workspace.checks import check_properties, check_text, decode_as
from alpheus_journal.workspace.context import Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules
from alpheus_journal.workspace.workspace import Workspace


def advance_pipeline(workspace: Workspace, operation: AdvancePipeline, context: Context) -> Executed:
    name = operation.target
    stored = workspace.get(name)
    fmt.check_object_name(name, context.keys, creating=stored is None)
    if operation.state not in ("running", "parked"):
        raise InvalidInput(f"a job must be running or parked, not {operation.state!r}")
    check_text(operation.error, "the error of a parked job")
    check_text(operation.expected_transaction_id, "the expected transaction id")
    for key, position in operation.inputs.items():
        for text in (key, position.table, position.table_id):
            check_text(text, "an input")
    versions = [operation.pinned_version, *(position.version for position in operation.inputs.values())]
    if not all(0 <= version < fmt.VERSION_MAX_EXCLUSIVE for version in versions):
        raise InvalidInput(
            f"job {operation.name}.{operation.job}: the versions {versions} are not all within 0 to 2^32 - 1",
            kind="bad_version",
        )
    if not 0 <= operation.called_at_millis <= fmt.TIME_MILLIS_MAX:
        raise InvalidInput(
            f"job {operation.name}.{operation.job}: {operation.called_at_millis} ms since 1970 is not a valid time"
        )
    check_properties(operation.params, "job parameters")
    _check_declaration(operation)
    if stored is None:
        # Replaying the action must give the same definition, so the id follows from the transaction.
        identity = uuid.uuid5(uuid.UUID(context.transaction_id), f"pipeline {operation.name}")
        definition = PipelineDef(id=str(identity))
    else:
        definition = decode_as(name, stored, PipelineDef)
    size_max, takes_unseen = fmt.EXTENSION_NAME_SIZE_BYTES, context.keys.takes_unseen
    is_new = operation.job not in definition.jobs
    fmt.check_name(operation.job, size_max, "job", creating=is_new, takes_unseen=takes_unseen)
    _expect_pipeline(operation, "" if stored is None else definition.id)
    if operation.former_job and not (operation.former_job in definition.jobs and is_new):
        raise _not_renamed_error(operation, definition)
    job = definition.jobs.get(operation.former_job or operation.job)
    found = job.last_transaction_id if job else ""
    if found != operation.expected_transaction_id:
        raise Conflict(
            f"job {operation.name}.{operation.job} has moved: its last run is {found or 'none'},"
            f" but {operation.expected_transaction_id or 'none'} was expected",
            kind="position_moved",
            mine=f"advance job {operation.name}.{operation.job}",
            theirs=f"transaction {found}",
            transaction_id=found,
            retryable=True,
            hint="read the position again; this run's work may be committed already",
        )
    advanced = JobDef(
        last_transaction_id=context.transaction_id,
        pinned_version=operation.pinned_version,
        inputs=dict(operation.inputs),
        state=operation.state,
        error=operation.error,
        params=dict(operation.params),
        called_at_millis=operation.called_at_millis,
        declaration=operation.declaration or (job.declaration if job else None),
    )
    jobs = {name: each for name, each in definition.jobs.items() if name != operation.former_job}
    after = msgspec.structs.replace(definition, jobs=jobs | {operation.job: advanced})
    return simple_change(workspace, operation, context, after)


def _check_declaration(operation: AdvancePipeline) -> None:
    if operation.former_job:
        fmt.check_name(operation.former_job, fmt.EXTENSION_NAME_SIZE_BYTES, "job")
    declaration = operation.declaration
    if declaration is None:
        return
    for tables, what in ((declaration.inputs, "inputs"), (declaration.outputs, "outputs")):
        if len(tables) > fmt.JOB_TABLES_MAX:
            raise InvalidInput(
                f"job {operation.name}.{operation.job}: {len(tables)} {what}, at most {fmt.JOB_TABLES_MAX} are allowed",
                kind="too_large",
            )
        names = [each.table for each in tables]
        if names != sorted(set(names)):
            raise InvalidInput(
                f"job {operation.name}.{operation.job}: its declared {what} are not in order, or one is repeated"
            )
        for each in tables:
            check_text(each.table, "a declared table")
            check_text(each.table_id, "the id of a declared table")


def _expect_pipeline(operation: AdvancePipeline, found: str) -> None:
    """Refuse when the pipeline's entry is not the expected one. Raises Conflict.

    Two programs may declare different jobs under one name and begin at the same time. The entry that the first one
    makes tells them apart.
    """
    expected = operation.expected_pipeline_id
    if expected is None or expected == found:
        return
    raise Conflict(
        f"pipeline {operation.name} {f'has the entry {found}' if found else 'does not exist'},"
        f" but {f'the entry {expected}' if expected else 'no entry'} was expected",
        kind="position_moved",
        mine=f"advance job {operation.name}.{operation.job}",
        theirs=f"pipeline {operation.name}",
        retryable=True,
        hint="read the entry again: another program has made or renamed it",
    )


def _not_renamed_error(operation: AdvancePipeline, definition: PipelineDef) -> AlpheusError:
    if operation.former_job not in definition.jobs:
        return NotFound(
            f"job {operation.name}.{operation.former_job} never ran",
            kind="no_job",
            hint=f"these did: {', '.join(sorted(definition.jobs)) or 'none'}",
        )
    return InvalidInput(
        f"there is a job {operation.name}.{operation.job} already",
        kind="bad_name",
        hint="choose another name: the positions of two jobs cannot be combined",
    )


RULES: ExecuteRules = {AdvancePipeline: ExecuteRule(advance_pipeline)}
