"""Operations on the rows of native tables (FORMAT.md, "Changing rows"). `row_changes` has the part of ChangeRows."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput
from alpheus_journal.execute.rules.row_changes import RowExecution, segments_size_bytes
from alpheus_journal.execute.rules.tables import table_of
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import (
    DeletePredicate,
    Segment,
    TableDef,
    WriterMark,
)
from alpheus_journal.model.operations import AppendFiles, ChangeMode, ChangeRows, Operation, OverwriteFiles
from alpheus_journal.tables.manifest import ROWS_MAX, bad_file, check_segment
from alpheus_journal.tables.manifest_merge import (
    FANOUT,
    MERGED_SIZE_BYTES_MAX,
    TIERS,
    Content,
    Made,
    Taken,
    due_size_bytes,
    find_due,
    merge_due_segments,
)
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.context import Changes, Context, Executed, Execution, Offloaded
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, Footprint, Stepwise
from alpheus_journal.workspace.workspace import Workspace

PREDICATES_MAX = 1_000
PREDICATES_SIZE_BYTES_MAX = 256 << 10
"""Bounds on the delete predicates of a table: their number, and the bytes of all expressions."""
TABLE_SIZE_BYTES_MAX = 1 << 60
_CLAIMED_MAX = 1 << 63


def write_files(workspace: Workspace, operation: AppendFiles | OverwriteFiles, context: Context) -> Execution:
    """Append or overwrite rows. A trial does not need the segments' content to be fetched."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _require_native(workspace, name, operation)
    _check_numbers(name, operation.segments)
    if isinstance(operation, AppendFiles) and not operation.segments:
        raise InvalidInput(f"an append to {name} has no files")
    sequence = definition.sequence + 1
    appends = isinstance(operation, AppendFiles)
    added, brought = yield from _add_segments(
        workspace, name, definition, operation.segments, sequence, context
    )
    segments, made = yield from _merge_small_segments(
        workspace, definition, (*(definition.segments if appends else ()), *added), len(added), context
    )
    _check_sums(name, segments)
    _check_made(name, made, context)
    after = msgspec.structs.replace(
        definition,
        segments=segments,
        delete_predicates=definition.delete_predicates if appends else (),
        sequence=sequence,
        writer_marks=_record_writer(name, definition, context),
    )
    changes = Changes(workspace, operation, context)
    changes.put(name, after)
    changes.make(made)
    changes.rows_added = sum(segment.row_count for segment in added)
    changes.rows_removed = 0 if appends else definition.row_count
    return _finish(changes, definition.id, brought, context)


def change_rows(workspace: Workspace, operation: ChangeRows, context: Context) -> Execution:
    """Change rows. Raises Unfetched when it needs contents of the table's segments."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _require_native(workspace, name, operation)
    _check_numbers(
        name,
        (*operation.segments, *operation.removed, *operation.changes),
        operation.outputs_sequence,
        operation.hides_up_to,
    )
    _check_request(name, definition, operation)
    _check_base(workspace, name, definition, operation, context)
    change = RowExecution(workspace, operation, context, name, definition)
    sequence = definition.sequence + 1
    yield Offloaded(change.refuse_rivals, change.rivals_size_bytes)
    taken: Taken = yield Offloaded(change.take_out, change.removed_size_bytes)
    outputs_sequence = change.outputs_sequence(taken)
    added, brought = yield from _add_segments(
        workspace, name, definition, operation.segments, outputs_sequence, context
    )
    yield Offloaded(
        lambda: _check_change_files(workspace, operation, context), segments_size_bytes(operation.changes)
    )
    segments, made = yield from _merge_small_segments(
        workspace, definition, (*taken.segments, *added), 1 + len(added), context, taken.made
    )
    if added:
        _check_sums(name, segments)
    _check_made(name, made, context)
    predicates = (*definition.delete_predicates, *change.new_predicates(sequence))
    after = msgspec.structs.replace(
        definition,
        segments=segments,
        delete_predicates=_drop_spent_predicates(
            name, predicates, segments, is_longer=bool(operation.predicates)
        ),
        sequence=sequence,
        writer_marks=_record_writer(name, definition, context),
    )
    recorded = msgspec.structs.replace(
        operation,
        outputs_sequence=outputs_sequence,
        hides_up_to=change.hides_up_to if operation.predicates else 0,
    )
    changes = Changes(workspace, recorded, context)
    changes.put(name, after)
    changes.make(made)
    changes.rows_added, changes.rows_removed = count_changed_rows(operation)
    return _finish(changes, definition.id, brought, context)


def count_changed_rows(operation: ChangeRows) -> tuple[int, int]:
    """Return the numbers of rows added and removed.

    They count the rows of files, without rows that were only rewritten or already deleted, and the hidden rows that
    the author counted. A compaction adds and removes none.
    """
    if operation.mode is ChangeMode.COMPACT:
        return 0, 0
    came, went = (sum(s.row_count for s in part) for part in (operation.segments, operation.removed))
    kept, dead = operation.rows_kept, operation.rows_dead
    return came - kept, went - kept - dead + operation.rows_hidden


def find_expected_segments(
    workspace: Workspace, operations: Iterable[Operation]
) -> list[tuple[str, Segment]]:
    """Return segments of tables, with the tables' ids, that executing the operations will need.

    They are the segments that are due for a merge, and those that an operation names as holding removed files. An
    execution that needs more segments raises Unfetched.
    """
    found: dict[str, tuple[str, Segment]] = {}
    for operation in operations:
        if not isinstance(operation, AppendFiles | ChangeRows) or not workspace.has(operation.target):
            continue
        stored = workspace.get(operation.target)
        if stored is None:
            continue
        with contextlib.suppress(AlpheusError):  # the execution raises the error
            definition = workspace.definition(operation.target, stored)
            if isinstance(definition, TableDef) and definition.id == operation.table_id:
                for segment in _find_expected(definition, operation):
                    if not workspace.has_segment(segment.path):
                        found[segment.path] = (definition.id, segment)
    return list(found.values())


def _find_expected(definition: TableDef, operation: AppendFiles | ChangeRows) -> Iterator[Segment]:
    there = {segment.path for segment in definition.segments}
    fresh = definition.sequence + 1
    coming = [msgspec.structs.replace(s, sequence=fresh) for s in operation.segments if s.path not in there]
    for tier in range(len(TIERS)):
        yield from (one for one in find_due((*definition.segments, *coming), tier) if one.path in there)
    if isinstance(operation, ChangeRows):
        named = set(operation.sources)
        yield from (segment for segment in definition.segments if segment.path in named)


# --- shared by all operations on rows --------------------------------------------------------------


def _require_native(
    workspace: Workspace, name: ObjectName, operation: AppendFiles | OverwriteFiles | ChangeRows
) -> TableDef:
    table_id = operation.table_id
    _, definition = table_of(workspace, name)
    if not definition.native:
        raise InvalidInput(
            f"{name} is an Iceberg table: only Iceberg commits change its rows", kind="not_native"
        )
    if table_id != definition.id:
        raise InvalidInput(
            f"the files were written for the {name} with the id {table_id or '(none)'}, which no longer exists",
            kind="table_replaced",
            hint="write the files again for the table that has the name now",
        )
    if operation.data_root != definition.data_root:
        raise InvalidInput(
            f"the files were written to {_place_text(operation.data_root)}, and the data of the {name} lies in"
            f" {_place_text(definition.data_root)}",
            kind="bad_data",
            hint="write the files again with a program of this release",
        )
    return definition


def _place_text(data_root: str) -> str:
    return redact_url(data_root)[:200] or "the catalog's own place"


def _check_numbers(name: ObjectName, segments: Iterable[Segment], *more: int) -> None:
    """Refuse numbers above the format's limits (`bad_data`). An honest writer never reaches them."""
    for segment in segments:
        claimed = (
            segment.file_count,
            segment.row_count,
            segment.size_bytes,
            segment.segment_size_bytes,
            segment.sequence,
            segment.min_sequence,
        )
        if not all(0 <= number < _CLAIMED_MAX for number in claimed):
            raise InvalidInput(
                f"manifest segment {segment.path} of {name} claims impossible numbers: {claimed}",
                kind="bad_data",
                path=segment.path,
            )
    if not all(0 <= number < _CLAIMED_MAX for number in more):
        raise InvalidInput(f"the operation claims impossible sequences of {name}: {more}", kind="bad_data")


def _add_segments(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    segments: Sequence[Segment],
    sequence: int,
    context: Context,
) -> Generator[Offloaded, Any, tuple[list[Segment], set[str]]]:
    """Return the segments as the table will have them, and the paths of the segments and their data files.

    A transaction brings files only in its own folder, so only its own operations can bring a file twice.
    """
    work = partial(_check_segments, workspace, name, definition, segments, context)
    brought: set[str] = yield Offloaded(work, segments_size_bytes(segments))
    return [msgspec.structs.replace(s, sequence=sequence, min_sequence=0) for s in segments], brought


def _check_segments(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    segments: Sequence[Segment],
    context: Context,
) -> set[str]:
    """Check segments that an operation brings. Return their paths and the paths of their data files."""
    before = context.brought.get(definition.id, ())
    known = {segment.path for segment in definition.segments} if segments else ()
    brought: set[str] = set()
    for segment in segments:
        if segment.path in brought or segment.path in known or segment.path in before:
            raise InvalidInput(f"a manifest segment of {name} is named twice", kind="bad_data")
        brought.add(segment.path)
        if not context.is_trial:
            files = workspace.segment(segment.path)
            check_segment(files, segment, definition, transaction_id=context.transaction_id)
            if not context.checksums and any(file.crc32 is not None for file in files):
                raise InvalidInput(
                    f"manifest segment {segment.path} has checksums of files, which revision 1 of the format lacks",
                    kind="upgrade_needed",
                    path=segment.path,
                    hint="run alpheus upgrade once all programs know revision 2, or list the files without checksums",
                )
            for file in files:
                if file.path in brought or file.path in before:
                    raise bad_file(file.path, f"the transaction adds it to {name} twice")
                brought.add(file.path)
    return brought


def _check_sums(name: ObjectName, segments: Sequence[Segment]) -> None:
    """Refuse a table whose rows or bytes exceed the limits. Raises InvalidInput (`too_large`)."""
    rows, size = (sum(s.row_count for s in segments), sum(s.size_bytes for s in segments))
    if rows > ROWS_MAX or size > TABLE_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{name} would have {rows} rows in {size} bytes; at most {ROWS_MAX} rows in {TABLE_SIZE_BYTES_MAX} bytes"
            " are allowed",
            kind="too_large",
        )


def _merge_small_segments(
    workspace: Workspace,
    definition: TableDef,
    segments: tuple[Segment, ...],
    times: int,
    context: Context,
    made: Sequence[Made] = (),
) -> Generator[Offloaded, Any, tuple[tuple[Segment, ...], list[Made]]]:
    """Merge small segments where that is due. Return the table's segments, and those among them that are new.

    `made` are the segments that this operation has made already.
    """
    if context.is_trial or not context.merges or len(segments) < FANOUT:
        return segments, list(made)
    if context.spent.made_size_bytes >= MERGED_SIZE_BYTES_MAX:
        return segments, list(made)  # enough merged: a later transaction may continue
    own = {one.segment.path: one.content for one in made}

    def contents(wanted: Sequence[Segment]) -> list[Content]:
        fetched = iter(workspace.contents([s for s in wanted if s.path not in own], definition.id))
        return [own[s.path] if s.path in own else next(fetched) for s in wanted]

    work = partial(
        merge_due_segments,
        segments,
        contents,
        definition.id,
        lambda: fmt.manifest_path(definition.id, context.uuid4()),
        times=times,
        spared=workspace.is_unreadable,
    )
    segments, newly = yield Offloaded(work, due_size_bytes(segments))
    there = {segment.path for segment in segments}
    return segments, [one for one in (*made, *newly) if one.segment.path in there]


def _check_made(name: ObjectName, made: Sequence[Made], context: Context) -> None:
    """Refuse a transaction that rewrites too many bytes of segments. Raises InvalidInput (`too_large`)."""
    size = context.spent.made_size_bytes + sum(len(one.data) for one in made)
    if size > fmt.SEGMENTS_MADE_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"transaction {context.transaction_id} rewrites manifest segments of {size} bytes, the last ones of {name};"
            f" at most {fmt.SEGMENTS_MADE_SIZE_BYTES_MAX} bytes are allowed: removing a file rewrites the segment that"
            " lists it",
            kind="too_large",
            hint="remove all files of a table in one operation, or remove fewer files in one transaction",
        )


def _record_writer(name: ObjectName, definition: TableDef, context: Context) -> dict[str, WriterMark]:
    marks = definition.writer_marks
    if context.writer is None:
        return marks
    _check_not_written(name, marks.get(context.writer.name), context)
    mark = WriterMark(
        sequence=context.writer.sequence,
        transaction_id=context.transaction_id,
        version=context.version,
    )
    return marks | {context.writer.name: mark}


def _check_not_written(name: ObjectName, mark: WriterMark | None, context: Context) -> None:
    """Refuse a sequence that the table already has. Raises InvalidInput.

    Repeated sequences are answered before execution, by table name. So this check only meets tables that the
    transaction itself renames or undrops.
    """
    writer = context.writer
    assert writer is not None
    if mark is None or context.is_trial or mark.transaction_id == context.transaction_id:
        return
    if mark.sequence >= writer.sequence:
        raise InvalidInput(
            f"writer {writer.name}: {name} has sequence {mark.sequence} (transaction {mark.transaction_id},"
            f" version {mark.version}), so {writer.sequence} was written to it, under another name",
            kind="sequence_reused",
            version=mark.version,
            hint="rename the table in a transaction of its own",
        )


def _finish(changes: Changes, table_id: str, brought: set[str], context: Context) -> Executed:
    executed = changes.finish()
    context.spent.made_size_bytes += sum([len(made.data) for made in executed.made])
    if brought:
        context.brought.setdefault(table_id, set()).update(brought)
    return executed


def _drop_spent_predicates(
    name: ObjectName, predicates: tuple[DeletePredicate, ...], segments: Sequence[Segment], *, is_longer: bool
) -> tuple[DeletePredicate, ...]:
    """Return the predicates that may still apply to some file.

    Raises InvalidInput (`too_many_predicates`) when the operation adds predicates (`is_longer`) above the limit.
    """
    if not predicates:
        return ()
    lowest = min((segment.lowest_sequence for segment in segments), default=None)
    kept = tuple(p for p in predicates if lowest is not None and p.sequence >= lowest)
    if is_longer:
        _check_few(f"{name} would have ", [predicate.expression for predicate in kept])
    return kept


def _check_few(what: str, expressions: Sequence[bytes]) -> None:
    """Refuse delete predicates above the limits. Raises InvalidInput (`too_many_predicates`)."""
    size = sum(map(len, expressions))
    if len(expressions) > PREDICATES_MAX or size > PREDICATES_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{what}{len(expressions)} delete predicates of {size} bytes in all; at most {PREDICATES_MAX} of"
            f" {PREDICATES_SIZE_BYTES_MAX} bytes are allowed",
            kind="too_many_predicates",
            hint="compact the table, which applies its delete predicates",
        )


# --- changing rows ---------------------------------------------------------------------------------


def _check_request(name: ObjectName, definition: TableDef, operation: ChangeRows) -> None:
    """Refuse a request that is wrong whatever the files hold. Raises InvalidInput."""
    mode = operation.mode
    if not (operation.segments or operation.removed or operation.predicates):
        raise InvalidInput(f"{mode.verb} {name}: the operation has neither files nor predicates")
    if not 0 <= operation.base_sequence <= definition.sequence:
        raise InvalidInput(
            f"{mode.verb} {name}: the base sequence {operation.base_sequence} is not within 0 to"
            f" {definition.sequence}, the table's sequence"
        )
    hidden_max = ROWS_MAX if operation.predicates else 0
    if not 0 <= operation.rows_hidden <= hidden_max:
        raise InvalidInput(
            f"{mode.verb} {name}: {len(operation.predicates)} predicates cannot hide {operation.rows_hidden} rows"
        )
    _check_few(f"{mode.verb} {name}: ", operation.predicates)
    came, went = (sum(s.row_count for s in part) for part in (operation.segments, operation.removed))
    kept, dead = operation.rows_kept, operation.rows_dead
    if min(kept, dead) < 0 or max(kept, dead) > ROWS_MAX or kept > came or kept + dead > went:
        raise InvalidInput(
            f"{mode.verb} {name}: {kept} kept and {dead} dead rows do not fit {came} added and {went} removed rows"
        )
    if mode is ChangeMode.DELETE and operation.segments and not operation.removed:
        raise InvalidInput(f"delete from {name}: files are added, but none removed", kind="bad_data")
    if mode is ChangeMode.COMPACT:
        if operation.predicates or operation.changes or not operation.removed:
            raise InvalidInput(
                f"compact {name}: a compaction must remove files, and may only add files besides"
            )
        if came > went:
            raise InvalidInput(f"compact {name}: {came} rows would replace {went}", kind="bad_data")


def _check_base(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    operation: ChangeRows,
    context: Context,
) -> None:
    """Refuse a base sequence that is later than the transaction's begin version (`bad_argument`).

    The author cannot have seen later rows. Such a claim would escape conflicts.
    """
    begin = context.begin_version
    if not operation.base_sequence or not workspace.has_past(begin, name):
        return
    stored = workspace.past(begin, name)
    then = workspace.decode_readable(name, stored) if stored is not None else None
    if not isinstance(then, TableDef) or then.id != definition.id:
        return
    if operation.base_sequence > then.sequence:
        raise InvalidInput(
            f"{operation.mode.verb} {name}: the base sequence {operation.base_sequence} is above {then.sequence}, which"
            f" the table had at version {begin}, at which the transaction began",
            kind="bad_argument",
            version=begin,
            hint="read the table at the version at which the transaction begins, and give its sequence then",
        )


def _check_change_files(workspace: Workspace, operation: ChangeRows, context: Context) -> None:
    """Check that change files belong to this transaction. Whether their content is true is not checked."""
    if context.is_trial:
        return
    for segment in operation.changes:
        files = workspace.segment(segment.path)
        counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
        if counted != (segment.file_count, segment.row_count, segment.size_bytes):
            raise InvalidInput(
                f"manifest segment {segment.path} claims other totals than its files have",
                kind="bad_data",
                path=segment.path,
            )
        for file in files:
            owner = fmt.parse_data_path(file.path)[1]
            if owner != context.transaction_id:
                raise Expired(
                    f"change file {file.path} was written by transaction {owner}, not by {context.transaction_id}",
                    kind="upload_expired",
                    path=file.path,
                    hint="write the rows again in the transaction that commits them",
                )


def _read_files(operation: AppendFiles | OverwriteFiles, workspace: Workspace) -> Footprint:
    return Footprint(names=_names_of(operation), segments=operation.segments)


def _names_of(operation: AppendFiles | OverwriteFiles | ChangeRows) -> tuple[ObjectName, ...]:
    """Return the target, and for data files at a data root the catalog, which lists all roots."""
    return (operation.target, fmt.CATALOG) if operation.data_root else (operation.target,)


def _read_changes(operation: ChangeRows, workspace: Workspace) -> Footprint:
    segments = (*operation.segments, *operation.removed, *operation.changes)
    return Footprint(names=_names_of(operation), segments=segments)


RULES: ExecuteRules = {
    AppendFiles: ExecuteRule(Stepwise(write_files), _read_files),
    OverwriteFiles: ExecuteRule(Stepwise(write_files), _read_files),
    ChangeRows: ExecuteRule(Stepwise(change_rows), _read_changes),
}
