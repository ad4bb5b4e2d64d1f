"""Executing operations on the rows of native tables (FORMAT.md, "Changing rows")."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Expired, InvalidInput
from alpheus_journal.execute.row_changes import RowExecution, segments_size_bytes
from alpheus_journal.execute.tables import table_of
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
    due,
    due_size_bytes,
    merged,
)
from alpheus_journal.workspace.context import Changes, Context, Executed, Execution, Offloaded
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, Footprint, Stepwise
from alpheus_journal.workspace.workspace import Workspace

PREDICATES_MAX = 1_000
PREDICATES_SIZE_BYTES_MAX = 256 << 10
"""Delete predicates of a table: their number, and their expressions together."""
TABLE_SIZE_BYTES_MAX = 1 << 60
_CLAIMED_MAX = 1 << 63


def write_files(workspace: Workspace, operation: AppendFiles | OverwriteFiles, context: Context) -> Execution:
    """In a trial the segments' content is not looked at, and need not be fetched."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _require_native(workspace, name, operation.table_id)
    _check_numbers(name, operation.segments)
    if isinstance(operation, AppendFiles) and not operation.segments:
        raise InvalidInput(f"an append to {name} without files")
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
    """Raises Unfetched for contents of the table's segments that it needs."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _require_native(workspace, name, operation.table_id)
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
    """Rows that came and rows that went: those of files, but what was only written again or gone before, and of what
    predicates hide as many as the author counted. A compaction has neither."""
    if operation.mode is ChangeMode.COMPACT:
        return 0, 0
    came, went = (sum(s.row_count for s in part) for part in (operation.segments, operation.removed))
    kept, dead = operation.rows_kept, operation.rows_dead
    return came - kept, went - kept - dead + operation.rows_hidden


def find_expected_segments(
    workspace: Workspace, operations: Iterable[Operation]
) -> list[tuple[str, Segment]]:
    """Segments of tables, with the tables' ids, that executing the operations will ask for, as far as their definitions
    tell: those that are due to be made one, those in which files that go are said to be. Of what is not here Unfetched
    tells."""
    found: dict[str, tuple[str, Segment]] = {}
    for operation in operations:
        if not isinstance(operation, AppendFiles | ChangeRows) or not workspace.has(operation.target):
            continue
        stored = workspace.get(operation.target)
        if stored is None:
            continue
        with contextlib.suppress(AlpheusError):  # whoever executes it is told
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
        yield from (one for one in due((*definition.segments, *coming), tier) if one.path in there)
    if isinstance(operation, ChangeRows):
        named = set(operation.sources)
        yield from (segment for segment in definition.segments if segment.path in named)


# --- what all of them do ---------------------------------------------------------------------------


def _require_native(workspace: Workspace, name: ObjectName, table_id: str) -> TableDef:
    _, definition = table_of(workspace, name)
    if not definition.native:
        raise InvalidInput(
            f"{name} is an Iceberg table: its rows change by Iceberg commits", kind="not_native"
        )
    if table_id != definition.id:
        raise InvalidInput(
            f"the files were written for the {name} of id {table_id or '(none)'}, which is no longer there",
            kind="table_replaced",
            hint="write them again for the table that has the name now",
        )
    return definition


def _check_numbers(name: ObjectName, segments: Iterable[Segment], *more: int) -> None:
    """What is claimed fits where it is kept: who told the truth has no more. Raises InvalidInput (`bad_data`)."""
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
        raise InvalidInput(f"{name}: impossible sequences are claimed: {more}", kind="bad_data")


def _add_segments(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    segments: Sequence[Segment],
    sequence: int,
    context: Context,
) -> Generator[Offloaded, Any, tuple[list[Segment], set[str]]]:
    """The segments as the table will have them, and the paths of all that they bring. What a transaction brings lies in
    its own folder, so only its own operations can bring the same twice."""
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
    """The paths of all that segments bring, which are as they must be."""
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
            for file in files:
                if file.path in brought or file.path in before:
                    raise bad_file(file.path, f"the transaction adds it to {name} twice")
                brought.add(file.path)
    return brought


def _check_sums(name: ObjectName, segments: Sequence[Segment]) -> None:
    """Raises InvalidInput (`too_large`) for more than sums can tell."""
    rows, size = (sum(s.row_count for s in segments), sum(s.size_bytes for s in segments))
    if rows > ROWS_MAX or size > TABLE_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{name} would have {rows} rows in {size} bytes; {ROWS_MAX} in {TABLE_SIZE_BYTES_MAX} at most",
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
    """The table's segments, small ones made one where it is time; and all that was made of what is among them. `made`:
    by this operation already."""
    if context.is_trial or not context.merges or len(segments) < FANOUT:
        return segments, list(made)
    if context.spent.made_size_bytes >= MERGED_SIZE_BYTES_MAX:
        return segments, list(made)  # another transaction's turn: nobody asked this one for it
    own = {one.segment.path: one.content for one in made}

    def contents(wanted: Sequence[Segment]) -> list[Content]:
        fetched = iter(workspace.contents([s for s in wanted if s.path not in own], definition.id))
        return [own[s.path] if s.path in own else next(fetched) for s in wanted]

    work = partial(
        merged,
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
    """Raises InvalidInput (`too_large`) where the transaction makes too much anew."""
    size = context.spent.made_size_bytes + sum(len(one.data) for one in made)
    if size > fmt.SEGMENTS_MADE_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"transaction {context.transaction_id} makes manifest segments of {size} bytes anew, the last of them for"
            f" {name}; {fmt.SEGMENTS_MADE_SIZE_BYTES_MAX} at most: who takes a file out of a table writes the segment"
            " that lists it again",
            kind="too_large",
            hint="name all files that go from a table in one operation, or change fewer of them in one transaction",
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
    """What the writer has written already is answered before anything is executed, by the names of the tables it
    writes; here comes only what such a transaction itself renames or brings back. Raises InvalidInput."""
    writer = context.writer
    assert writer is not None
    if mark is None or context.is_trial or mark.transaction_id == context.transaction_id:
        return
    if mark.sequence >= writer.sequence:
        raise InvalidInput(
            f"writer {writer.name}: {name} has sequence {mark.sequence} (transaction {mark.transaction_id},"
            f" version {mark.version}), so {writer.sequence} was written there, under another name",
            kind="sequence_reused",
            version=mark.version,
            hint="rename it in a transaction of its own",
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
    """The predicates that some file may be at or below. Raises InvalidInput (`too_many_predicates`) when more came."""
    if not predicates:
        return ()
    lowest = min((segment.lowest_sequence for segment in segments), default=None)
    kept = tuple(p for p in predicates if lowest is not None and p.sequence >= lowest)
    if is_longer:
        _check_few(f"{name} would have ", [predicate.expression for predicate in kept])
    return kept


def _check_few(what: str, expressions: Sequence[bytes]) -> None:
    """Raises InvalidInput (`too_many_predicates`)."""
    size = sum(map(len, expressions))
    if len(expressions) > PREDICATES_MAX or size > PREDICATES_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"{what}{len(expressions)} delete predicates of {size} bytes together; {PREDICATES_MAX} of"
            f" {PREDICATES_SIZE_BYTES_MAX} bytes at most",
            kind="too_many_predicates",
            hint="compact the table: that applies them",
        )


# --- changing rows ---------------------------------------------------------------------------------


def _check_request(name: ObjectName, definition: TableDef, operation: ChangeRows) -> None:
    """What can be refused without looking at a file. Raises InvalidInput."""
    mode = operation.mode
    if not (operation.segments or operation.removed or operation.predicates):
        raise InvalidInput(f"{mode.verb} {name}: neither files nor predicates")
    if not 0 <= operation.base_sequence <= definition.sequence:
        raise InvalidInput(
            f"{mode.verb} {name}: the base sequence {operation.base_sequence} is not within 0 to"
            f" {definition.sequence}, the table's"
        )
    hidden_max = ROWS_MAX if operation.predicates else 0
    if not 0 <= operation.rows_hidden <= hidden_max:
        raise InvalidInput(
            f"{mode.verb} {name}: {operation.rows_hidden} hidden rows by {len(operation.predicates)} predicates"
        )
    _check_few(f"{mode.verb} {name}: ", operation.predicates)
    came, went = (sum(s.row_count for s in part) for part in (operation.segments, operation.removed))
    kept, dead = operation.rows_kept, operation.rows_dead
    if min(kept, dead) < 0 or max(kept, dead) > ROWS_MAX or kept > came or kept + dead > went:
        raise InvalidInput(
            f"{mode.verb} {name}: {kept} rows kept and {dead} deleted before, where {came} come and {went} go"
        )
    if mode is ChangeMode.DELETE and operation.segments and not operation.removed:
        raise InvalidInput(f"delete from {name}: files come, and none go", kind="bad_data")
    if mode is ChangeMode.COMPACT:
        if operation.predicates or operation.changes or not operation.removed:
            raise InvalidInput(f"compact {name}: it takes files that go, and at most files that come")
        if came > went:
            raise InvalidInput(f"compact {name}: {came} rows come in the place of {went}", kind="bad_data")


def _check_base(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    operation: ChangeRows,
    context: Context,
) -> None:
    """Nobody saw what came after the version at which the transaction began: who claims that would be spared conflicts.
    Raises InvalidInput (`bad_argument`)."""
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
            hint="it is the sequence of the table as it was read: read and begin at one version",
        )


def _check_change_files(workspace: Workspace, operation: ChangeRows, context: Context) -> None:
    """Change files are the transaction's own. Whether they say what was done is their reader's to believe."""
    if context.is_trial:
        return
    for segment in operation.changes:
        files = workspace.segment(segment.path)
        counted = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
        if counted != (segment.file_count, segment.row_count, segment.size_bytes):
            raise InvalidInput(
                f"manifest segment {segment.path}: its files do not add up to what it claims",
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
    return Footprint(names=(operation.target,), segments=operation.segments)


def _read_changes(operation: ChangeRows, workspace: Workspace) -> Footprint:
    segments = (*operation.segments, *operation.removed, *operation.changes)
    return Footprint(names=(operation.target,), segments=segments)


RULES: ExecuteRules = {
    AppendFiles: ExecuteRule(Stepwise(write_files), _read_files),
    OverwriteFiles: ExecuteRule(Stepwise(write_files), _read_files),
    ChangeRows: ExecuteRule(Stepwise(change_rows), _read_changes),
}
