"""Executing operations on the rows of native tables (FORMAT.md, "Changing rows")."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Conflict, Corrupt, Expired, InvalidInput
from alpheus_journal.execute.schema import widened
from alpheus_journal.execute.tables import table_of
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import (
    Column,
    DeletePredicate,
    Segment,
    TableDef,
    WriterMark,
    walk_columns,
)
from alpheus_journal.model.operations import AppendFiles, ChangeMode, ChangeRows, Operation, OverwriteFiles
from alpheus_journal.predicate import (
    FLOATS,
    And,
    Compare,
    In,
    Predicate,
    Value,
    Verdict,
    columns_of,
    decode,
    encode_value,
    judge_of,
    rebind,
    walk,
)
from alpheus_journal.tables.data_file import DataFile
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
    int64,
    merged,
    without,
)
from alpheus_journal.workspace.context import Aside, Changes, Context, Executed, Steps
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules, Footprint, Stepwise
from alpheus_journal.workspace.workspace import Workspace

PREDICATES_MAX = 1_000
PREDICATES_SIZE_BYTES_MAX = 256 << 10
"""Delete predicates of a table: their number, and their expressions together."""
JUDGED_FILES_MAX = 10_000
"""Of more files nobody looks which of them a predicate may match: some do. Execution is no work for minutes."""
LOOKS_MAX = 200_000
"""Likewise of more looks: one is that of one term of a predicate at one file, about 1.5 us."""
COMPARED_MAX = 200_000
"""Of more looks of terms at other predicates nobody asks whether a row can match both."""
PREDICATE_BYTE_WEIGHT = 16
"""A byte of a predicate is so much more work than one of a manifest segment."""
TABLE_SIZE_BYTES_MAX = 1 << 60
_CLAIMED_MAX = 1 << 63


def write_files(workspace: Workspace, operation: AppendFiles | OverwriteFiles, context: Context) -> Steps:
    """In a trial the segments' content is not looked at, and need not be fetched."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _native(workspace, name, operation.table_id)
    _check_numbers(name, operation.segments)
    if isinstance(operation, AppendFiles) and not operation.segments:
        raise InvalidInput(f"an append to {name} without files")
    sequence = definition.sequence + 1
    appends = isinstance(operation, AppendFiles)
    added, brought = yield from _added(workspace, name, definition, operation.segments, sequence, context)
    segments, made = yield from _merged(
        workspace, definition, (*(definition.segments if appends else ()), *added), len(added), context
    )
    _check_sums(name, segments)
    _check_made(name, made, context)
    after = msgspec.structs.replace(
        definition,
        segments=segments,
        delete_predicates=definition.delete_predicates if appends else (),
        sequence=sequence,
        writer_marks=_marked(name, definition, context),
    )
    changes = Changes(workspace, operation, context)
    changes.put(name, after)
    changes.make(made)
    changes.rows_added = sum(segment.row_count for segment in added)
    changes.rows_removed = 0 if appends else definition.row_count
    return _finished(changes, definition.id, brought, context)


def change_rows(workspace: Workspace, operation: ChangeRows, context: Context) -> Steps:
    """Raises Unfetched for contents of the table's segments that it needs."""
    name = fmt.check_object_name(operation.target, context.keys)
    definition = _native(workspace, name, operation.table_id)
    _check_numbers(
        name,
        (*operation.segments, *operation.removed, *operation.changes),
        operation.outputs_sequence,
        operation.hides_up_to,
    )
    _check_asked(name, definition, operation)
    _check_base(workspace, name, definition, operation, context)
    change = _Change(workspace, operation, context, name, definition)
    sequence = definition.sequence + 1
    yield Aside(change.refuse_rivals, change.rivals_size_bytes)
    taken: Taken = yield Aside(change.take_out, change.removed_size_bytes)
    outputs_sequence = change.outputs_sequence(taken)
    added, brought = yield from _added(
        workspace, name, definition, operation.segments, outputs_sequence, context
    )
    yield Aside(lambda: _check_change_files(workspace, operation, context), _size_bytes(operation.changes))
    segments, made = yield from _merged(
        workspace, definition, (*taken.segments, *added), 1 + len(added), context, taken.made
    )
    if added:
        _check_sums(name, segments)
    _check_made(name, made, context)
    predicates = (*definition.delete_predicates, *change.new_predicates(sequence))
    after = msgspec.structs.replace(
        definition,
        segments=segments,
        delete_predicates=_needed(name, predicates, segments, is_longer=bool(operation.predicates)),
        sequence=sequence,
        writer_marks=_marked(name, definition, context),
    )
    recorded = msgspec.structs.replace(
        operation,
        outputs_sequence=outputs_sequence,
        hides_up_to=change.hides_up_to if operation.predicates else 0,
    )
    changes = Changes(workspace, recorded, context)
    changes.put(name, after)
    changes.make(made)
    changes.rows_added, changes.rows_removed = rows_changed(operation)
    return _finished(changes, definition.id, brought, context)


def rows_changed(operation: ChangeRows) -> tuple[int, int]:
    """Rows that came and rows that went: those of files, but what was only written again or gone before, and of what
    predicates hide as many as the author counted. A compaction has neither."""
    if operation.mode is ChangeMode.COMPACT:
        return 0, 0
    came, went = (sum(s.row_count for s in part) for part in (operation.segments, operation.removed))
    kept, dead = operation.rows_kept, operation.rows_dead
    return came - kept, went - kept - dead + operation.rows_hidden


def expected_segments(workspace: Workspace, operations: Iterable[Operation]) -> list[tuple[str, Segment]]:
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
                for segment in _expected(definition, operation):
                    if not workspace.has_segment(segment.path):
                        found[segment.path] = (definition.id, segment)
    return list(found.values())


def _expected(definition: TableDef, operation: AppendFiles | ChangeRows) -> Iterator[Segment]:
    there = {segment.path for segment in definition.segments}
    fresh = definition.sequence + 1
    coming = [msgspec.structs.replace(s, sequence=fresh) for s in operation.segments if s.path not in there]
    for tier in range(len(TIERS)):
        yield from (one for one in due((*definition.segments, *coming), tier) if one.path in there)
    if isinstance(operation, ChangeRows):
        named = set(operation.sources)
        yield from (segment for segment in definition.segments if segment.path in named)


# --- what all of them do ---------------------------------------------------------------------------


def _native(workspace: Workspace, name: ObjectName, table_id: str) -> TableDef:
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


def _added(
    workspace: Workspace,
    name: ObjectName,
    definition: TableDef,
    segments: Sequence[Segment],
    sequence: int,
    context: Context,
) -> Generator[Aside, Any, tuple[list[Segment], set[str]]]:
    """The segments as the table will have them, and the paths of all that they bring. What a transaction brings lies in
    its own folder, so only its own operations can bring the same twice."""
    work = partial(_checked, workspace, name, definition, segments, context)
    brought: set[str] = yield Aside(work, _size_bytes(segments))
    return [msgspec.structs.replace(s, sequence=sequence, min_sequence=0) for s in segments], brought


def _checked(
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


def _merged(
    workspace: Workspace,
    definition: TableDef,
    segments: tuple[Segment, ...],
    times: int,
    context: Context,
    made: Sequence[Made] = (),
) -> Generator[Aside, Any, tuple[tuple[Segment, ...], list[Made]]]:
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
    segments, newly = yield Aside(work, due_size_bytes(segments))
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


def _size_bytes(segments: Iterable[Segment]) -> int:
    return sum([segment.segment_size_bytes for segment in segments])


def _marked(name: ObjectName, definition: TableDef, context: Context) -> dict[str, WriterMark]:
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


def _finished(changes: Changes, table_id: str, brought: set[str], context: Context) -> Executed:
    executed = changes.finish()
    context.spent.made_size_bytes += sum([len(made.data) for made in executed.made])
    if brought:
        context.brought.setdefault(table_id, set()).update(brought)
    return executed


def _needed(
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


def _check_asked(name: ObjectName, definition: TableDef, operation: ChangeRows) -> None:
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
    then = workspace.readable(name, stored) if stored is not None else None
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


class _Near(NamedTuple):
    """A predicate of somebody else that some of these may meet."""

    rival: DeletePredicate
    verdict: Callable[[DataFile], Verdict]
    up_to: int  # the sequence of the files
    own: set[int]  # which of these


class _Change:
    """One ChangeRows on a table as it stands."""

    def __init__(
        self,
        workspace: Workspace,
        operation: ChangeRows,
        context: Context,
        name: ObjectName,
        definition: TableDef,
    ) -> None:
        self._workspace = workspace
        self._operation = operation
        self._context = context
        self._name = name
        self._definition = definition
        self._base = operation.base_sequence
        self._own_folder = f"data/{definition.id}/{context.transaction_id}/"
        self._today = {column.id: column for column in walk_columns(definition.columns)}
        self._known: dict[bytes, Predicate] = {}
        self._rivals = [
            predicate
            for predicate in definition.delete_predicates
            if predicate.committed_sequence > self._base
            and predicate.transaction_id != context.transaction_id
        ]
        self.hides_up_to = self._base

    @property
    def rivals_size_bytes(self) -> int:
        """About what `refuse_rivals` looks at."""
        recent = self._definition.segments
        if not (self._rivals and self._operation.predicates):
            recent = tuple([segment for segment in recent if segment.sequence > self._base])
        terms = (self._operation.scan, *self._operation.predicates, *[r.expression for r in self._rivals])
        return _size_bytes(recent) + PREDICATE_BYTE_WEIGHT * sum(map(len, terms))

    @property
    def removed_size_bytes(self) -> int:
        """About what `take_out` looks at."""
        removed = self._operation.removed
        named = set(self._operation.sources)
        held = [segment for segment in self._definition.segments if segment.path in named]
        if len(held) < len(named):
            held = list(self._definition.segments)
        return _size_bytes(removed) + _size_bytes(held) if removed else 0

    @cached_property
    def _scan(self) -> Predicate | None:
        return self._decoded(self._operation.scan) if self._operation.scan else None

    @cached_property
    def _mine(self) -> list[Predicate]:
        return [self._decoded(expression) for expression in self._operation.predicates]

    def _decoded(self, expression: bytes) -> Predicate:
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = _decoded(expression, self._definition, self._today)
        return known

    def _conflict(self, reason: str, theirs: str, transaction_id: str, path: str = "") -> Conflict:
        mine = f"{self._operation.mode.verb} {self._name}"
        return Conflict(
            f"cannot {mine}: since this transaction began {reason}",
            kind="rows_changed",
            mine=mine,
            theirs=theirs,
            transaction_id=transaction_id,
            retryable=True,
            path=path,
            hint="run it again from the newest version",
        )

    def _recent(self) -> Iterator[tuple[Content, pa.Array, pa.Array]]:
        """What came in after the base: contents, masks of those files, and of the transaction's own."""
        recent = [segment for segment in self._definition.segments if segment.sequence > self._base]
        contents = self._workspace.contents(recent, self._definition.id)
        for segment, content in zip(recent, contents, strict=True):
            late = pc.greater(content.sequences(segment), int64(self._base))
            yield content, late, pc.starts_with(content.paths(), pattern=self._own_folder)

    def refuse_rivals(self) -> None:
        """Raises Conflict when others did what this change would undo, repeat or miss, and InvalidInput
        (`bad_predicate`). Settles `hides_up_to`."""
        scan = self._scan
        if self._operation.mode in (ChangeMode.UPDATE, ChangeMode.MERGE, ChangeMode.OVERWRITE):
            others = [(content, pc.and_not(late, own)) for content, late, own in self._recent()]
            count = sum(pc.sum(mask).as_py() or 0 for _, mask in others)
            verdict = None
            if scan is not None and count <= JUDGED_FILES_MAX and count * _looks([scan]) <= LOOKS_MAX:
                verdict = judge_of(scan)
            for content, mask in others:
                files = [content.first(mask)] if verdict is None else content.some(mask)
                for file in files:
                    if file is not None and (verdict is None or verdict(file) is not Verdict.NEVER):
                        raise self._added_by_other(file)
        if self._mine:
            self._refuse_additions()
            self._refuse_hidden()

    def _added_by_other(self, file: DataFile) -> Conflict:
        owner = fmt.parse_data_path(file.path)[1]
        return self._conflict(
            f"transaction {owner} added rows to {self._name} that it may concern: {file.path}",
            f"rows added to {self._name}",
            owner,
            file.path,
        )

    def _refuse_additions(self) -> None:
        """The predicates apply to what the transaction added itself; then nobody else may have added anything."""
        if self._definition.id not in self._context.brought:
            return
        others: DataFile | None = None
        has_own = False
        for content, late, own in self._recent():
            has_own |= bool(pc.any(pc.and_(late, own)).as_py())
            if others is None:
                others = content.first(pc.and_not(late, own))
        if not has_own:
            return
        if others is not None:
            raise self._added_by_other(others)
        self.hides_up_to = self._definition.sequence

    def _refuse_hidden(self) -> None:
        """Rows that this moves, others have not deleted; rows that this deletes, others have not moved."""
        rivals = [rival for rival in self._rivals if self._operation.moves_rows or rival.moves]
        mine, theirs = self._mine, [self._decoded(rival.expression) for rival in rivals]
        columns = {column.id for predicate in (*mine, *theirs) for column in columns_of(predicate)}
        looks = len(mine) * _looks(theirs) + len(theirs) * _looks(mine)
        is_compared = looks <= COMPARED_MAX
        sides = [_Side.of(predicate, columns) for predicate in mine] if is_compared else []
        all_own = set(range(len(mine)))
        near = []
        for rival, predicate in zip(rivals, theirs, strict=True):
            side = _Side.of(predicate, columns)
            own = {i for i in all_own if not sides[i].is_apart_from(side)} if is_compared else all_own
            if own:
                near.append(_Near(rival, side.verdict, min(rival.sequence, self.hides_up_to), own))
        if near:
            self._refuse_near(near)

    def _refuse_near(self, near: Sequence[_Near]) -> None:
        """Raises Conflict where a row of an old file may match a rival and one of these predicates."""
        up_to = max(one.up_to for one in near)
        met = sorted(set[int]().union(*(one.own for one in near)))
        judges = {index: judge_of(self._mine[index]) for index in met}
        old = [segment for segment in self._definition.segments if segment.lowest_sequence <= up_to]
        count = sum(segment.file_count for segment in old)
        looks = _looks([self._mine[index] for index in met])
        looks += _looks([self._decoded(one.rival.expression) for one in near])
        if count > JUDGED_FILES_MAX or count * looks > LOOKS_MAX:
            raise self._hidden_by_other(near[0].rival)
        for segment, content in zip(old, self._workspace.contents(old, self._definition.id), strict=True):
            sequences = content.sequences(segment)
            mask = pc.less_equal(sequences, int64(up_to))
            for file, sequence in zip(content.some(mask), sequences.filter(mask).to_pylist(), strict=True):
                hits = {index for index, own in judges.items() if own(file) is not Verdict.NEVER}
                for one in near if hits else ():
                    applies = sequence <= one.up_to and not hits.isdisjoint(one.own)
                    if applies and one.verdict(file) is not Verdict.NEVER:
                        raise self._hidden_by_other(one.rival)

    def _hidden_by_other(self, rival: DeletePredicate, file: DataFile | None = None) -> Conflict:
        what = "updated" if rival.moves else "deleted"
        return self._conflict(
            f"transaction {rival.transaction_id} {what} rows of {self._name} that it may concern"
            + (f", in {file.path}" if file is not None else ""),
            f"rows of {self._name} {what}",
            rival.transaction_id,
            file.path if file is not None else "",
        )

    # -- files that go

    def take_out(self) -> Taken:
        """The table's segments without the files that go. Raises Conflict when one is not there any more, or others
        have deleted rows of it since."""
        removed = self._operation.removed
        if not removed:
            return Taken(self._definition.segments, [], {})
        contents = self._workspace.contents(removed, self._definition.id)
        paths = pa.concat_arrays([content.paths() for content in contents])
        if pc.count_distinct(paths).as_py() != len(paths):
            raise InvalidInput(f"a data file of {self._name} is removed twice", kind="bad_data")
        taken = without(
            self._definition.segments,
            self._holding(paths, contents, removed),
            paths,
            lambda segments: self._workspace.contents(segments, self._definition.id),
            self._definition.id,
            lambda: fmt.manifest_path(self._definition.id, self._context.uuid4()),
        )
        self._check_entries(contents, removed, taken)
        self._refuse_hidden_in(contents, taken)
        return taken

    def _holding(self, paths: pa.Array, contents: Sequence[Content], removed: Sequence[Segment]) -> list[str]:
        """The segments that hold the files: those that the operation names, and if that is not all any that can."""
        named = set(self._operation.sources)
        first = [segment for segment in self._definition.segments if segment.path in named]
        found = 0
        for content in self._workspace.contents(first, self._definition.id):
            found += pc.sum(pc.is_in(content.paths(), value_set=paths)).as_py() or 0
        looked = [segment.path for segment in first]
        if found == len(paths):
            return looked
        low, high = 0, self._definition.sequence
        if not pc.any(pc.starts_with(paths, pattern=self._own_folder)).as_py():
            spans = [pc.min_max(c.sequences(s)).as_py() for c, s in zip(contents, removed, strict=True)]
            low, high = min(span["min"] for span in spans), max(span["max"] for span in spans)
        rest = [
            segment
            for segment in self._definition.segments
            if segment.path not in named and segment.lowest_sequence <= high and segment.sequence >= low
        ]
        return [*looked, *(segment.path for segment in rest)]

    def _check_entries(self, contents: Sequence[Content], removed: Sequence[Segment], taken: Taken) -> None:
        """What goes is there, and is what the operation says. The own files' sequences are known only now."""
        for content, segment in zip(contents, removed, strict=True):
            batch = content.batch
            names = ("path", "row_count", "size_bytes")
            columns = [batch.column(name).to_pylist() for name in names]
            sums = [batch.num_rows, sum(columns[1]), sum(columns[2])]
            if sums != [segment.file_count, segment.row_count, segment.size_bytes]:
                raise InvalidInput(
                    f"manifest segment {segment.path}: its files do not add up to what it claims",
                    kind="bad_data",
                    path=segment.path,
                )
            sequences = content.sequences(segment).to_pylist()
            for path, rows, size, sequence in zip(*columns, sequences, strict=True):
                entry = taken.entries.get(path)
                if entry is None:
                    raise self._conflict(
                        f"{path} went from {self._name}", f"rows of {self._name} changed", "", path
                    )
                own = path.startswith(self._own_folder)
                if entry[:2] != (rows, size) or (entry[2] != sequence and not own):
                    raise bad_file(
                        path, f"{self._name} has it with other rows, size or sequence than removed"
                    )

    def _refuse_hidden_in(self, contents: Sequence[Content], taken: Taken) -> None:
        """What others deleted since the base would come back in the files that take the place of these."""
        operation = self._operation
        # With change files a feed tells the rows of these files twice, by the rival's predicate too.
        brings = operation.segments or operation.changes
        only_removes = operation.mode is ChangeMode.DELETE and not brings
        rivals = [rival for rival in self._rivals if rival.moves or not only_removes]
        if not rivals:
            return
        theirs = [self._decoded(rival.expression) for rival in rivals]
        if len(taken.entries) * _looks(theirs) > LOOKS_MAX:
            raise self._hidden_by_other(rivals[0])
        files = [file for content in contents for file in content.files]
        for rival, predicate in zip(rivals, theirs, strict=True):
            verdict = judge_of(predicate)
            for file in files:
                applies = taken.entries[file.path][2] <= rival.sequence
                if applies and verdict(file) is not Verdict.NEVER:
                    raise self._hidden_by_other(rival, file)

    # -- files and predicates that come

    def outputs_sequence(self, taken: Taken) -> int:
        """A compaction's files take the place of older ones: whatever was applied to those while they were written must
        not apply again, and what comes later and has seen the older ones must."""
        if self._operation.mode is not ChangeMode.COMPACT:
            return self._definition.sequence + 1 if self._operation.segments else 0
        sequences = [sequence for _, _, sequence in taken.entries.values()]
        rivals = {id(rival) for rival in self._rivals}
        applied = [
            predicate.committed_sequence
            for predicate in self._definition.delete_predicates
            if id(predicate) not in rivals and predicate.sequence >= min(sequences)
        ]
        return max([*sequences, *applied])

    def new_predicates(self, sequence: int) -> Iterable[DeletePredicate]:
        for expression in self._operation.predicates:
            yield DeletePredicate(
                sequence=self.hides_up_to,
                expression=expression,
                transaction_id=self._context.transaction_id,
                committed_sequence=sequence,
                moves=self._operation.moves_rows,
            )


def _looks(predicates: Iterable[Predicate]) -> int:
    """What judging one file by all of them takes."""
    return sum([sum(1 for _ in walk(predicate)) for predicate in predicates])


class _Side(NamedTuple):
    """A predicate made ready to be compared with others."""

    verdict: Callable[[DataFile], Verdict]
    row: DataFile  # statistics that any row has which matches it

    @staticmethod
    def of(predicate: Predicate, columns: Iterable[int]) -> _Side:
        """`columns`: ids of all that it and the others name."""
        return _Side(judge_of(predicate), _like(predicate, columns))

    def is_apart_from(self, other: _Side) -> bool:
        """Whether it is certain that no row can match both, of any file."""
        return other.verdict(self.row) is Verdict.NEVER or self.verdict(other.row) is Verdict.NEVER


def _like(predicate: Predicate, columns: Iterable[int]) -> DataFile:
    """Statistics that any row has which matches `predicate`, of the columns of these ids."""
    lowers: dict[int, bytes] = {}
    uppers: dict[int, bytes] = {}
    for term in predicate.terms if isinstance(predicate, And) else (predicate,):
        if not isinstance(term, In | Compare) or term.column.type in FLOATS:
            continue
        low, high = _span(term)
        if low is not None:
            lowers.setdefault(term.column.id, encode_value(term.column, low))
        if high is not None:
            uppers.setdefault(term.column.id, encode_value(term.column, high))
    return DataFile(
        path="",
        row_count=1,
        size_bytes=1,
        value_counts=dict.fromkeys(columns, 1),
        null_counts=dict.fromkeys(lowers.keys() | uppers.keys(), 0),
        lower_bounds=lowers,
        upper_bounds=uppers,
    )


def _span(term: In | Compare) -> tuple[Value | None, Value | None]:
    """The least and the greatest value of its column that a row can have where it is TRUE; None: not known."""
    if isinstance(term, In):
        return (term.values[0], term.values[-1]) if term.values else (None, None)
    match term.op:
        case "=" | "<=>":
            return term.value, term.value
        case "<" | "<=":
            return None, term.value
        case ">" | ">=":
            return term.value, None
    return None, None


def _decoded(expression: bytes, definition: TableDef, today: Mapping[int, Column]) -> Predicate:
    """With today's types. Raises InvalidInput (`bad_predicate`) for one that is none, or names columns that the table
    never had, or has with a type to which theirs cannot be widened."""
    try:
        predicate = decode(expression)
    except Corrupt as error:
        raise InvalidInput(error.message, kind="bad_predicate") from error
    for column in columns_of(predicate):
        if column.id >= definition.next_column_id:
            raise InvalidInput(
                f"a predicate names the column {column.name[:80]!r} of id {column.id}, which the table never had",
                kind="bad_predicate",
            )
        current = today.get(column.id)
        if current is None:
            continue  # dropped; older files hold it
        try:
            widened(column, current, repr(column.name[:80]))
        except InvalidInput as error:
            raise InvalidInput(f"a predicate: {error.message}", kind="bad_predicate") from error
    return rebind(predicate, definition.columns)


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
