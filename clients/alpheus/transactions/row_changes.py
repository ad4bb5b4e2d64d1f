"""Changing rows of a native table: what is read, what is written, and the one operation that says so (FORMAT.md,
"Changing rows").

Rows go in two ways. By predicate: a delete predicate hides them in the files that are there, and what they become is
added; little is written, and every read pays a little until the table is compacted. By rewriting: the files that hold
them are written anew without them.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.file_reader import PARALLEL_READS_MAX, FileReader, ListedFile, read_data_file
from alpheus.rows.file_writer import FILE_SIZE_TARGET, write_files
from alpheus.rows.plan import Plan, PlannedFile, plan
from alpheus.rows.repeating import segment_id
from alpheus.transactions.core import TransactionCore
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.model.operations import ChangeMode, ChangeRows
from alpheus_journal.predicate import (
    Predicate,
    columns_of,
    encode,
)
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import segment_of

T = TypeVar("T")

Mode = Literal["predicate", "rewrite"]

CHANGE_TYPE = Column(id=2147483546, name="_change_type", type="VARCHAR", nullable=False)
"""The column of change files that says what became of a row."""

REWRITTEN_SHARE_MIN = 0.2
"""Where nobody says how, files are rewritten from this share of their rows on. Below it a predicate costs less than it
saves: a read evaluates it on every row and passes over dead ones, a file written anew costs all its rows."""
STANDING_PREDICATES_MAX = 100
"""Nor is another predicate added to a table that has so many: each costs every read of the files below it."""


class RowVerb(abc.ABC):
    """What one verb does to rows. `sought` finds them, and maybe others; None: all. The change depends on it."""

    mode: ChangeMode
    sought: Predicate | None
    needed: tuple[Column, ...] = ()
    """Columns that `hits_of` looks at, beside those of `sought`."""
    falls_back = False
    """Whether files are rewritten where a predicate was asked for and none can be stored."""

    @abc.abstractmethod
    def hits_of(self, rows: pa.RecordBatch, meant: pa.Array | None) -> pa.Array:
        """Which of the rows, given with the columns `needed`, change. `meant`: where `sought` is TRUE; None: always."""

    def changed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """What rows of all columns become that change; None: they go."""
        return None

    def finish_search(self) -> None:
        """`hits_of` was asked of all rows that may change; from now on it is asked of some of them again."""
        return

    def predicate(self) -> Predicate | None:
        """TRUE of exactly the rows that change; None: there is none that can be stored."""
        return self.sought

    def inserted_rows(self) -> Iterator[pa.RecordBatch]:
        """Rows that come beside those that others become."""
        return iter(())


class _Hit(msgspec.Struct, frozen=True):
    """A file with rows that change."""

    listed: ListedFile
    planned: PlannedFile
    visible: int
    changing: int


class Blocking:
    """Storage for code in a thread that an event loop waits for."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._loop = asyncio.get_running_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def read(self, file: DataFile) -> bytes:
        return self.run(read_data_file(self._storage, file))


async def write_segments(
    tx: TransactionCore,
    table: TableDef,
    rows: Iterator[pa.RecordBatch],
    *,
    file_size_target: int = FILE_SIZE_TARGET,
) -> tuple[Segment, ...]:
    """Data files of the rows, listed in one segment, or none without rows. Raises as `write_files`."""
    files = await write_files(
        await tx.session.storage(),
        table,
        rows,
        transaction_id=tx.id,
        identities=tx.identities,
        catalog_id=tx.session.catalog_id,
        file_size_target=file_size_target,
    )
    return await store_segment(tx, table, files)


async def store_segment(
    tx: TransactionCore, table: TableDef, files: Sequence[DataFile]
) -> tuple[Segment, ...]:
    """One stored segment that lists the files; none of none."""
    if not files:
        return ()
    path = fmt.manifest_path(table.id, segment_id(tx.identities, files))
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    await (await tx.session.storage()).put(path, content)
    return (segment,)


async def store_removed_entries(
    tx: TransactionCore, table: TableDef, listed: Sequence[ListedFile]
) -> tuple[Segment, ...]:
    """What `ChangeRows.removed` is: the files as the table has them."""
    entries = [msgspec.structs.replace(one.file, sequence=one.sequence) for one in listed]
    return await store_segment(tx, table, entries)


class RowChanger:
    """One verb on the rows of one table in a transaction."""

    def __init__(
        self, tx: TransactionCore, name: ObjectName, table: TableDef, storage: Storage, change: RowVerb
    ) -> None:
        self._tx = tx
        self._name = name
        self._table = table
        self._storage = storage
        self._blocking = Blocking(storage)
        self._change = change

    async def run(self, how: Mode | None) -> None:
        """Do it, if there is anything to do. `how` None: as is cheaper."""
        listed = await self._tx.list_files(self._table)
        planned = plan(self._table, [(one.file, one.sequence) for one in listed], self._change.sought)
        by_path = {one.file.path: one for one in listed}
        hits = await self._hits(planned, by_path)
        self._change.finish_search()
        predicate = self._change.predicate() if hits else None
        if self._is_rewritten(how, hits, predicate):
            await self._rewrite(planned, hits)
        else:
            await self._hide(planned, hits, predicate)

    # -- which rows

    async def _hits(self, planned: Plan, by_path: dict[str, ListedFile]) -> list[_Hit]:
        reader = FileReader(planned, self._change.needed)

        def count(data: bytes, one: PlannedFile) -> tuple[int, int]:
            if not self._change.needed:
                return reader.count(data, one)
            visible = changing = 0
            for rows, meant in reader.visible(data, one):
                visible += rows.num_rows
                changing += pc.sum(self._change.hits_of(rows, meant)).as_py() or 0
            return visible, changing

        async def look(one: PlannedFile) -> _Hit:
            listed = by_path[one.file.path]
            if one.is_whole and not self._change.needed:
                return _Hit(listed, one, one.file.row_count, one.file.row_count)
            data = await read_data_file(self._storage, one.file)
            return _Hit(listed, one, *await asyncio.to_thread(count, data, one))

        return [hit for hit in await each_of(planned.files, look, PARALLEL_READS_MAX) if hit.changing]

    def _is_rewritten(self, how: Mode | None, hits: list[_Hit], predicate: Predicate | None) -> bool:
        in_part = [hit for hit in hits if not self._goes_whole(hit)]
        return bool(hits) and is_rewritten(
            how,
            predicate,
            self._table,
            changing=sum(hit.changing for hit in in_part),
            rows=sum(hit.planned.file.row_count for hit in in_part),
            falls_back=self._change.falls_back,
        )

    @staticmethod
    def _goes_whole(hit: _Hit) -> bool:
        """By its statistics, so that nobody has to be asked what is in it."""
        return hit.planned.is_whole and hit.changing == hit.planned.file.row_count

    # -- by predicate

    async def _hide(self, planned: Plan, hits: list[_Hit], predicate: Predicate | None) -> None:
        gone = [hit for hit in hits if self._goes_whole(hit)]
        rest = [hit for hit in hits if not self._goes_whole(hit)]
        segments = await self._write(lambda: self._outputs(planned, hits, keeps=False))
        changes: tuple[Segment, ...] = ()
        if hits and self._change.mode is ChangeMode.MERGE:  # of others the feed tells by the predicate
            changes = await self._write_changes(planned, hits)
        if not segments and not hits:
            return
        assert not rest or predicate is not None
        await self._apply(
            segments=segments,
            removed=gone,
            predicates=(encode(predicate),) if rest and predicate is not None else (),
            changes=changes,
            rows_hidden=sum(hit.changing for hit in rest),
        )

    # -- by rewriting

    async def _rewrite(self, planned: Plan, hits: list[_Hit]) -> None:
        await self._apply(
            segments=await self._write(lambda: self._outputs(planned, hits, keeps=True)),
            removed=hits,
            predicates=(),
            changes=await self._write_changes(planned, hits),
            rows_hidden=0,
            rows_kept=sum(hit.visible - hit.changing for hit in hits),
            rows_dead=sum(hit.planned.file.row_count - hit.visible for hit in hits),
        )

    # -- rows

    def _each(self, planned: Plan, hits: list[_Hit]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """The visible rows of the files, with all columns, and which of them change. Blocks."""
        reader = FileReader(planned, self._table.columns)
        for hit in hits:
            data = self._blocking.read(hit.planned.file)
            for rows, meant in reader.visible(data, hit.planned):
                yield rows, self._change.hits_of(self._select_needed(rows), meant)

    def _select_needed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        places = {column.id: place for place, column in enumerate(self._table.columns)}
        needed = [places[column.id] for column in self._change.needed]
        if not needed:
            return rows
        return rows.select(needed)

    def _outputs(self, planned: Plan, hits: list[_Hit], *, keeps: bool) -> Iterator[pa.RecordBatch]:
        """What is written: what rows become, and where it `keeps` them the others of their files, in place."""
        for rows, mask in self._each(planned, hits):
            become = self._change.changed_rows(rows.filter(mask))
            if not keeps:
                if become is not None:
                    yield become
                continue
            stays = pc.invert(mask)
            if become is None:
                yield rows.filter(stays)
                continue
            places = pa.array(range(rows.num_rows), pa.int64())
            both = pa.Table.from_batches([rows.filter(stays), become]).combine_chunks()
            order = pc.sort_indices(pa.concat_arrays([places.filter(stays), places.filter(mask)]))
            yield from both.take(order).combine_chunks().to_batches()
        yield from self._change.inserted_rows()

    def _change_rows(self, planned: Plan, hits: list[_Hit]) -> Iterator[pa.RecordBatch]:
        for rows, mask in self._each(planned, hits):
            old = rows.filter(mask)
            become = self._change.changed_rows(old)
            yield _add_label(old, "delete" if become is None else "update_preimage")
            if become is not None:
                yield _add_label(become, "update_postimage")
        for rows in self._change.inserted_rows():
            yield _add_label(rows, "insert")

    async def _write(self, rows: Callable[[], Iterator[pa.RecordBatch]]) -> tuple[Segment, ...]:
        return await write_segments(self._tx, self._table, rows())

    async def _write_changes(self, planned: Plan, hits: list[_Hit]) -> tuple[Segment, ...]:
        """For feeds, which would otherwise take the rows that were only written again for changes."""
        if any(column.name.lower() == CHANGE_TYPE.name for column in self._table.columns):
            return ()  # a feed of such a table cannot be read either
        shape = msgspec.structs.replace(
            self._table, columns=(*self._table.columns, CHANGE_TYPE), partition_spec=(), sort_order=()
        )
        return await write_segments(self._tx, shape, self._change_rows(planned, hits))

    # -- the operation

    async def _apply(
        self,
        *,
        segments: tuple[Segment, ...],
        removed: Sequence[_Hit],
        predicates: tuple[bytes, ...],
        changes: tuple[Segment, ...],
        rows_hidden: int,
        rows_kept: int = 0,
        rows_dead: int = 0,
    ) -> None:
        sought = self._change.sought
        await self._tx.apply(
            ChangeRows(
                namespace=self._name.namespace,
                name=self._name.name,
                table_id=self._table.id,
                base_sequence=await self._tx.base_sequence(self._name, self._table),
                mode=self._change.mode,
                segments=segments,
                removed=await store_removed_entries(self._tx, self._table, [hit.listed for hit in removed]),
                predicates=predicates,
                scan=encode(sought) if sought is not None and _is_small(sought) else b"",
                changes=changes,
                sources=tuple(dict.fromkeys(hit.listed.segment.path for hit in removed)),
                rows_hidden=rows_hidden,
                rows_kept=rows_kept,
                rows_dead=rows_dead,
            )
        )


def _add_label(rows: pa.RecordBatch, change_type: str) -> pa.RecordBatch:
    labels = pa.repeat(pa.scalar(change_type, pa.string()), rows.num_rows)
    schema = rows.schema.append(pa.field(CHANGE_TYPE.name, pa.string(), nullable=False))
    return pa.RecordBatch.from_arrays([*rows.columns, labels], schema=schema)


def is_rewritten(
    how: Mode | None,
    predicate: Predicate | None,
    table: TableDef,
    *,
    changing: int,
    rows: int,
    falls_back: bool = False,
) -> bool:
    """Whether files are written anew in which only some rows change: `changing` of `rows`. `predicate`: which rows
    those are, None where that cannot be said. `falls_back`: also where `how` asks for a predicate that cannot be
    stored, which else raises InvalidInput (`bad_predicate`)."""
    storable = predicate is not None and is_storable(predicate, table)
    if how is not None:
        if how == "predicate" and not storable:
            if falls_back:
                return True
            raise InvalidInput(
                "these rows cannot be hidden by a predicate: it would be too large, or asks for a field of a struct"
                " that has a default",
                kind="bad_predicate",
                hint='pass mode="rewrite"',
            )
        return how == "rewrite"
    if not storable or len(table.delete_predicates) >= STANDING_PREDICATES_MAX:
        return True
    return changing >= REWRITTEN_SHARE_MIN * rows and rows > 0


def is_storable(predicate: Predicate, table: TableDef) -> bool:
    """Whether the predicate can hide rows for as long as it takes. A field of a struct with a default is NULL where the
    struct is, which nobody can tell any more once the struct is dropped."""
    top = {column.id for column in table.columns}
    if any(c.initial_default is not None and c.id not in top for c in columns_of(predicate)):
        return False
    return _is_small(predicate)


def _is_small(predicate: Predicate) -> bool:
    try:
        encode(predicate)
    except InvalidInput:
        return False
    return True
