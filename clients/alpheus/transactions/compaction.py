"""Compaction of a native table: choose the files that are rewritten, with reasons, and rewrite them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from alpheus.rows.encoder import FILE_SIZE_TARGET
from alpheus.rows.file_reader import FileReader, ListedFile
from alpheus.rows.plan import Plan, PlannedFile, plan
from alpheus.transactions.core import TransactionCore
from alpheus.transactions.row_changes import Blocking, store_removed_entries, write_segments
from alpheus.transactions.steps import Step
from alpheus_journal.clock import Identities
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import ChangeMode, ChangeRows
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.partitions import describe

SMALL_SHARE = 0.75
"""Files below this share of the target size are joined."""
STANDING_PREDICATES_MAX = 500
"""A table with more delete predicates (the limit is 1,000) gets all files rewritten to which a predicate applies,
because only then the predicates are dropped."""


class CompactedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one partition that are rewritten together."""

    partition: str  # as in "country=DE/day(ts)=2026-03-01"; empty in a table without partitions
    paths: tuple[str, ...]
    row_count: int  # in the files, deleted rows included
    size_bytes: int
    reasons: tuple[str, ...]


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a compaction rewrites, beside the totals of the table."""

    groups: tuple[CompactedFiles, ...]
    file_count: int  # of the table
    size_bytes: int  # of the table
    target_size_bytes: int

    @property
    def compacted_count(self) -> int:
        return sum(len(group.paths) for group in self.groups)

    def explain(self) -> str:
        """The plan as text for people."""
        size = sum(group.size_bytes for group in self.groups)
        lines = [
            f"{self.compacted_count} of {self.file_count} files are rewritten, {size} of {self.size_bytes} bytes;"
            f" the target size of a file is {self.target_size_bytes} bytes"
        ]
        for group in self.groups:
            where = f"{group.partition}: " if group.partition else ""
            lines.append(
                f"{where}{len(group.paths)} files, {group.row_count} rows in them, {group.size_bytes} bytes:"
                f" {'; '.join(group.reasons)}"
            )
        return "\n".join(lines)


class _Candidate(msgspec.Struct, frozen=True):
    listed: ListedFile
    planned: PlannedFile | None  # None when all its rows are deleted
    reasons: tuple[str, ...]

    @property
    def file(self) -> DataFile:
        return self.listed.file

    @property
    def size(self) -> int:
        return self.file.size_bytes if self.planned is not None else 0


_SMALL = "small files"


def _candidates(
    table: TableDef, listed: Sequence[ListedFile], planned: Plan, target: int
) -> Iterator[_Candidate]:
    """The files for which there is a reason to rewrite them."""
    by_path = {one.file.path: one for one in planned.files}
    bounds = [predicate.sequence for predicate in table.delete_predicates]
    highest = max(bounds) if len(bounds) > STANDING_PREDICATES_MAX else -1
    for one in listed:
        found = by_path.get(one.file.path)
        reasons: list[str] = []
        if found is None:
            reasons.append("all rows are deleted")
        elif found.predicates:
            reasons.append("rows are deleted")
        elif one.sequence <= highest:
            reasons.append(f"so that {len(bounds)} delete predicates can go")
        if table.sort_order and found is not None and one.file.sort_order_id != 1:
            reasons.append("not in the table's order")
        if one.file.size_bytes < SMALL_SHARE * target:
            reasons.append(_SMALL)
        if reasons:
            yield _Candidate(one, found, tuple(reasons))


def _bins(candidates: Sequence[_Candidate], target: int) -> Iterator[list[_Candidate]]:
    """Group the candidates of one partition, in order, into groups of about the target size."""
    current: list[_Candidate] = []
    size = 0
    for one in candidates:
        if current and size + one.size > target:
            yield current
            current, size = [], 0
        current.append(one)
        size += one.size
    if current:
        yield current


def choose_groups(
    table: TableDef, listed: Sequence[ListedFile], planned: Plan, target: int
) -> list[tuple[str, list[_Candidate]]]:
    by_partition: dict[tuple[tuple[int, bytes | None], ...], list[_Candidate]] = {}
    for one in _candidates(table, listed, planned, target):
        by_partition.setdefault(tuple(sorted(one.file.partition.items())), []).append(one)
    found = []
    for partition, candidates in by_partition.items():
        name = describe(table.partition_spec, table.columns, dict(partition)) if partition else ""
        for some in _bins(candidates, target):
            if len(some) > 1 or some[0].reasons != (_SMALL,):
                found.append((name, some))
    return found


class CompactStep(Step):
    """See `Writes.compact`. `plan` is set after the step has run."""

    def __init__(self, name: ObjectName, target_size: int | None, dry_run: bool) -> None:
        target = FILE_SIZE_TARGET if target_size is None else target_size
        if not isinstance(target, int) or isinstance(target, bool) or target < 1:
            raise InvalidInput(
                f"target_size={target_size!r} is not a size in bytes",
                kind="bad_argument",
                hint="give a number from 1 up",
            )
        self._name = name
        self._target = target
        self._dry_run = dry_run
        self.plan = CompactionPlan(groups=(), file_count=0, size_bytes=0, target_size_bytes=target)

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        table = await tx.table(self._name)
        listed = await tx.list_files(table)
        planned = plan(table, [(one.file, one.sequence) for one in listed])
        chosen = choose_groups(table, listed, planned, self._target)
        self.plan = CompactionPlan(
            groups=tuple(describe_group(partition, some) for partition, some in chosen),
            file_count=len(listed),
            size_bytes=sum(one.file.size_bytes for one in listed),
            target_size_bytes=self._target,
        )
        if self._dry_run or not chosen:
            return
        storage = await tx.session.data_storage(table)
        files = [one for _, some in chosen for one in some]
        reader, blocking = FileReader(planned, table.columns), Blocking(storage)

        def rows() -> Iterator[pa.RecordBatch]:
            for one in files:
                if one.planned is not None:
                    yield from reader.rows(blocking.read(one.file), one.planned)

        segments = await write_segments(tx, table, rows(), file_size_target=self._target)
        await tx.apply(
            ChangeRows(
                namespace=self._name.namespace,
                name=self._name.name,
                table_id=table.id,
                base_sequence=await tx.base_sequence(self._name, table),
                mode=ChangeMode.COMPACT,
                data_root=table.data_root,
                segments=segments,
                removed=await store_removed_entries(tx, table, [one.listed for one in files]),
                sources=tuple(dict.fromkeys(one.listed.segment.path for one in files)),
            )
        )


def describe_group(partition: str, some: Sequence[_Candidate]) -> CompactedFiles:
    counts: dict[str, int] = {}
    for one in some:
        for reason in one.reasons:
            counts[reason] = counts.get(reason, 0) + 1
    return CompactedFiles(
        partition=partition,
        paths=tuple(one.file.path for one in some),
        row_count=sum(one.file.row_count for one in some),
        size_bytes=sum(one.file.size_bytes for one in some),
        reasons=tuple(f"{reason} ({count})" for reason, count in counts.items()),
    )
