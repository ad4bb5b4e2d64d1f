"""One ChangeRows on a table as it stands: its conflicts, the files that it removes, and the predicates that it adds
(FORMAT.md, "Changing rows")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, Corrupt, InvalidInput
from alpheus_journal.execute.rules.schema import widen_column
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import (
    Column,
    DeletePredicate,
    Segment,
    TableDef,
    walk_columns,
)
from alpheus_journal.model.operations import ChangeMode, ChangeRows
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
from alpheus_journal.tables.manifest import bad_file
from alpheus_journal.tables.manifest_merge import (
    Content,
    Taken,
    int64,
    remove_files,
)
from alpheus_journal.workspace.context import Context
from alpheus_journal.workspace.workspace import Workspace

JUDGED_FILES_MAX = 10_000
"""The most files that are judged by predicates. With more files a match is assumed, so that execution stays short."""
LOOKS_MAX = 200_000
"""The most looks at files, with the same effect. One term of a predicate at one file is one look, about 1.5 us."""
COMPARED_MAX = 200_000
"""The most looks of terms at other predicates. Above it, a row is assumed to be able to match both predicates."""
PREDICATE_BYTE_WEIGHT = 16
"""The work for a byte of a predicate, relative to a byte of a manifest segment."""


def segments_size_bytes(segments: Iterable[Segment]) -> int:
    return sum([segment.segment_size_bytes for segment in segments])


class _Near(NamedTuple):
    """A predicate of another transaction that may match the same rows as some of the operation's predicates."""

    rival: DeletePredicate
    verdict: Callable[[DataFile], Verdict]
    up_to: int  # the highest sequence of the files that both apply to
    own: set[int]  # indexes of the operation's predicates


class RowExecution:
    """Executes one ChangeRows on a table as it stands."""

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
        """The estimated bytes that `refuse_rivals` looks at."""
        recent = self._definition.segments
        if not (self._rivals and self._operation.predicates):
            recent = tuple([segment for segment in recent if segment.sequence > self._base])
        terms = (self._operation.scan, *self._operation.predicates, *[r.expression for r in self._rivals])
        return segments_size_bytes(recent) + PREDICATE_BYTE_WEIGHT * sum(map(len, terms))

    @property
    def removed_size_bytes(self) -> int:
        """The estimated bytes that `take_out` looks at."""
        removed = self._operation.removed
        named = set(self._operation.sources)
        held = [segment for segment in self._definition.segments if segment.path in named]
        if len(held) < len(named):
            held = list(self._definition.segments)
        return segments_size_bytes(removed) + segments_size_bytes(held) if removed else 0

    @cached_property
    def _scan(self) -> Predicate | None:
        return self._decode(self._operation.scan) if self._operation.scan else None

    @cached_property
    def _mine(self) -> list[Predicate]:
        return [self._decode(expression) for expression in self._operation.predicates]

    def _decode(self, expression: bytes) -> Predicate:
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = _decode(expression, self._definition, self._today)
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
        """Yield the contents of segments newer than the base, with a mask of the newer files, and one of own files."""
        recent = [segment for segment in self._definition.segments if segment.sequence > self._base]
        contents = self._workspace.contents(recent, self._definition.id)
        for segment, content in zip(recent, contents, strict=True):
            late = pc.greater(content.sequences(segment), int64(self._base))
            yield content, late, pc.starts_with(content.paths(), pattern=self._own_folder)

    def refuse_rivals(self) -> None:
        """Refuse the change when another transaction made changes that it would undo, repeat or miss.

        Raises Conflict, or InvalidInput (`bad_predicate`). Sets `hides_up_to`.
        """
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
                        raise self._added_by_other_error(file)
        if self._mine:
            self._refuse_additions()
            self._refuse_hidden()

    def _added_by_other_error(self, file: DataFile) -> Conflict:
        owner = fmt.parse_data_path(file.path)[1]
        return self._conflict(
            f"transaction {owner} added rows to {self._name} that this one may concern: {file.path}",
            f"rows added to {self._name}",
            owner,
            file.path,
        )

    def _refuse_additions(self) -> None:
        """Let the predicates apply to rows that the transaction itself added before.

        Raises Conflict when another transaction added files, because the predicates would apply to those, too.
        """
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
            raise self._added_by_other_error(others)
        self.hides_up_to = self._definition.sequence

    def _refuse_hidden(self) -> None:
        """Refuse to move rows that another transaction may have deleted, or to delete rows that one may have moved.

        Raises Conflict.
        """
        rivals = [rival for rival in self._rivals if self._operation.moves_rows or rival.moves]
        mine, theirs = self._mine, [self._decode(rival.expression) for rival in rivals]
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
        """Refuse when a row of an old file may match a rival predicate and an own one. Raises Conflict."""
        up_to = max(one.up_to for one in near)
        met = sorted(set[int]().union(*(one.own for one in near)))
        judges = {index: judge_of(self._mine[index]) for index in met}
        old = [segment for segment in self._definition.segments if segment.lowest_sequence <= up_to]
        count = sum(segment.file_count for segment in old)
        looks = _looks([self._mine[index] for index in met])
        looks += _looks([self._decode(one.rival.expression) for one in near])
        if count > JUDGED_FILES_MAX or count * looks > LOOKS_MAX:
            raise self._hidden_by_other_error(near[0].rival)
        for segment, content in zip(old, self._workspace.contents(old, self._definition.id), strict=True):
            sequences = content.sequences(segment)
            mask = pc.less_equal(sequences, int64(up_to))
            for file, sequence in zip(content.some(mask), sequences.filter(mask).to_pylist(), strict=True):
                hits = {index for index, own in judges.items() if own(file) is not Verdict.NEVER}
                for one in near if hits else ():
                    applies = sequence <= one.up_to and not hits.isdisjoint(one.own)
                    if applies and one.verdict(file) is not Verdict.NEVER:
                        raise self._hidden_by_other_error(one.rival)

    def _hidden_by_other_error(self, rival: DeletePredicate, file: DataFile | None = None) -> Conflict:
        what = "updated" if rival.moves else "deleted"
        return self._conflict(
            f"transaction {rival.transaction_id} {what} rows of {self._name} that this one may concern"
            + (f", in {file.path}" if file is not None else ""),
            f"rows of {self._name} {what}",
            rival.transaction_id,
            file.path if file is not None else "",
        )

    # -- removed files

    def take_out(self) -> Taken:
        """Return the table's segments without the removed files.

        Raises Conflict when a file is no longer in the table, or when another transaction has deleted rows of it.
        """
        removed = self._operation.removed
        if not removed:
            return Taken(self._definition.segments, [], {})
        contents = self._workspace.contents(removed, self._definition.id)
        paths = pa.concat_arrays([content.paths() for content in contents])
        if pc.count_distinct(paths).as_py() != len(paths):
            raise InvalidInput(f"a data file of {self._name} is removed twice", kind="bad_data")
        taken = remove_files(
            self._definition.segments,
            self._find_holders(paths, contents, removed),
            paths,
            lambda segments: self._workspace.contents(segments, self._definition.id),
            self._definition.id,
            lambda: fmt.manifest_path(self._definition.id, self._context.uuid4()),
        )
        self._check_entries(contents, removed, taken)
        self._refuse_hidden_in(contents, taken)
        return taken

    def _find_holders(
        self, paths: pa.Array, contents: Sequence[Content], removed: Sequence[Segment]
    ) -> list[str]:
        """Return the paths of the segments that may list the files: those that the operation names, or all possible
        ones if these do not list every file."""
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
        """Check that the removed files are in the table, as the operation describes them.

        The sequences of the transaction's own files are only known now, so they are not compared.
        """
        for content, segment in zip(contents, removed, strict=True):
            batch = content.batch
            names = ("path", "row_count", "size_bytes")
            columns = [batch.column(name).to_pylist() for name in names]
            sums = [batch.num_rows, sum(columns[1]), sum(columns[2])]
            if sums != [segment.file_count, segment.row_count, segment.size_bytes]:
                raise InvalidInput(
                    f"manifest segment {segment.path} claims other totals than its files have",
                    kind="bad_data",
                    path=segment.path,
                )
            sequences = content.sequences(segment).to_pylist()
            for path, rows, size, sequence in zip(*columns, sequences, strict=True):
                entry = taken.entries.get(path)
                if entry is None:
                    raise self._conflict(
                        f"{path} was removed from {self._name}", f"rows of {self._name} changed", "", path
                    )
                own = path.startswith(self._own_folder)
                if entry[:2] != (rows, size) or (entry[2] != sequence and not own):
                    raise bad_file(
                        path, f"{self._name} lists it with other rows, size or sequence than the operation"
                    )

    def _refuse_hidden_in(self, contents: Sequence[Content], taken: Taken) -> None:
        """Refuse to replace files of which another transaction may have deleted rows since the base.

        Those rows would come back in the new files. Raises Conflict.
        """
        operation = self._operation
        # With change files a feed would report the rows of these files twice, once more by the rival's predicate.
        brings = operation.segments or operation.changes
        only_removes = operation.mode is ChangeMode.DELETE and not brings
        rivals = [rival for rival in self._rivals if rival.moves or not only_removes]
        if not rivals:
            return
        theirs = [self._decode(rival.expression) for rival in rivals]
        if len(taken.entries) * _looks(theirs) > LOOKS_MAX:
            raise self._hidden_by_other_error(rivals[0])
        files = [file for content in contents for file in content.files]
        for rival, predicate in zip(rivals, theirs, strict=True):
            verdict = judge_of(predicate)
            for file in files:
                applies = taken.entries[file.path][2] <= rival.sequence
                if applies and verdict(file) is not Verdict.NEVER:
                    raise self._hidden_by_other_error(rival, file)

    # -- added files and predicates

    def outputs_sequence(self, taken: Taken) -> int:
        """Return the sequence of the added files, or 0 when there are none.

        The files of a compaction replace older files. Predicates that the compaction has applied must not apply to the
        new files again. Later predicates that apply to the older files must apply to the new ones.
        """
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
    """Return the number of looks for judging one file by all predicates."""
    return sum([sum(1 for _ in walk(predicate)) for predicate in predicates])


class _Side(NamedTuple):
    """A predicate that is ready to be compared with others."""

    verdict: Callable[[DataFile], Verdict]
    row: DataFile  # the statistics of every row that the predicate matches

    @staticmethod
    def of(predicate: Predicate, columns: Iterable[int]) -> _Side:
        """Prepare a predicate. `columns` are the ids of all columns that it and the other predicates name."""
        return _Side(judge_of(predicate), _statistics_of(predicate, columns))

    def is_apart_from(self, other: _Side) -> bool:
        """Return whether no row of any file can match both predicates."""
        return other.verdict(self.row) is Verdict.NEVER or self.verdict(other.row) is Verdict.NEVER


def _statistics_of(predicate: Predicate, columns: Iterable[int]) -> DataFile:
    """Return statistics, of the given column ids, that hold for every row that `predicate` matches."""
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
    """Return the least and the greatest value of the column where the term is TRUE; None where one is not known."""
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


def _decode(expression: bytes, definition: TableDef, today: Mapping[int, Column]) -> Predicate:
    """Decode a predicate and give its columns their present types.

    Raises InvalidInput (`bad_predicate`) for bytes that are not a predicate, a column that the table never had, and
    a column type that cannot be widened to the present one.
    """
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
            continue  # the column was dropped, but older files have it
        try:
            widen_column(column, current, repr(column.name[:80]))
        except InvalidInput as error:
            raise InvalidInput(f"a predicate: {error.message}", kind="bad_predicate") from error
    return rebind(predicate, definition.columns)
