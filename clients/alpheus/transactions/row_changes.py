"""Change rows of a native table: find them, write new files, and record the change in one operation (FORMAT.md,
"Changing rows").

There are two ways to remove rows. By predicate: a delete predicate hides the rows in the existing files, and the
changed rows are added in new files. This writes little, and every read pays a little until the table is compacted. By
rewriting: the files that hold the rows are written again without them.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from alpheus.rows.encoder import FILE_SIZE_TARGET
from alpheus.rows.file_reader import PARALLEL_READS_MAX, FileReader, ListedFile, read_data_file
from alpheus.rows.file_writer import write_files
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
"""The column of change files that says how a row changed."""

REWRITTEN_SHARE_MIN = 0.2
"""Without a given mode, files are rewritten when at least this share of their rows changes. Below it a predicate is
cheaper: it costs each read an evaluation on every row, while rewriting a file costs writing all its rows."""
STANDING_PREDICATES_MAX = 100
"""Without a given mode, a table with this number of predicates gets no other one, because each predicate costs every
read of the files to which it applies."""


class RowVerb(abc.ABC):
    """The work of one verb on rows. `sought` is TRUE for all rows that change, and maybe for others; None means all
    rows. The recorded operation depends on it."""

    mode: ChangeMode
    sought: Predicate | None
    needed: tuple[Column, ...] = ()
    """Columns that `hits_of` reads, beside those of `sought`."""
    falls_back = False
    """Whether files are rewritten when the caller asked for a predicate and none can be stored."""

    @abc.abstractmethod
    def hits_of(self, rows: pa.RecordBatch, meant: pa.Array | None) -> pa.Array:
        """Return which rows change. `rows` has the columns `needed`. `meant` says for which rows `sought` is TRUE; None
        means for all."""

    def changed_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return what changing rows, given with all columns, become. None means that they are removed."""
        return None

    def finish_search(self) -> None:
        """Called after `hits_of` has seen all rows that may change; `hits_of` may see some of them again later."""
        return

    def predicate(self) -> Predicate | None:
        """Return a predicate that is TRUE for exactly the rows that change, or None when none can be stored."""
        return self.sought

    def inserted_rows(self) -> Iterator[pa.RecordBatch]:
        """Return rows that the verb inserts, beside the changed rows."""
        return iter(())


class _Hit(msgspec.Struct, frozen=True):
    """A file with rows that change."""

    listed: ListedFile
    planned: PlannedFile
    visible: int
    changing: int


class Blocking:
    """A storage for code in a thread, whose event loop goes on running meanwhile."""

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
    """Write data files of the rows, and one segment that lists them; without rows, write nothing. Raises what
    `write_files` raises."""
    tx.note_upload()
    files = await write_files(
        await tx.session.data_storage(table),
        table,
        rows,
        transaction_id=tx.id,
        identities=tx.identities,
        catalog_id=tx.session.catalog_id,
        checksums=await tx.lists_checksums(),
        file_size_target=file_size_target,
    )
    return await store_segment(tx, table, files)


async def store_segment(
    tx: TransactionCore, table: TableDef, files: Sequence[DataFile]
) -> tuple[Segment, ...]:
    """Store one segment that lists the files; without files, store nothing."""
    if not files:
        return ()
    tx.note_upload()
    path = fmt.manifest_path(table.id, segment_id(tx.identities, files))
    content, segment = segment_of(files, path=path, table_id=table.id, schema_id=table.schema_id)
    await (await tx.session.storage()).put(path, content)
    return (segment,)


async def store_removed_entries(
    tx: TransactionCore, table: TableDef, listed: Sequence[ListedFile]
) -> tuple[Segment, ...]:
    """Store the segment for `ChangeRows.removed`, which lists the files as the table has them."""
    entries = [msgspec.structs.replace(one.file, sequence=one.sequence) for one in listed]
    return await store_segment(tx, table, entries)


class RowChanger:
    """Applies one verb to the rows of one table in a transaction."""

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
        """Change the rows, if there are any. `how` None means the cheaper mode."""
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
        """Return whether all rows of the file change, as its statistics tell without a read."""
        return hit.planned.is_whole and hit.changing == hit.planned.file.row_count

    # -- by predicate

    async def _hide(self, planned: Plan, hits: list[_Hit], predicate: Predicate | None) -> None:
        whole = [hit for hit in hits if self._goes_whole(hit)]
        rest = [hit for hit in hits if not self._goes_whole(hit)]
        segments = await self._write(lambda: self._outputs(planned, hits, keeps=False))
        changes: tuple[Segment, ...] = ()
        # For other modes the predicate tells the feed which rows changed.
        if hits and self._change.mode is ChangeMode.MERGE:
            changes = await self._write_changes(planned, hits)
        if not segments and not hits:
            return
        assert not rest or predicate is not None
        await self._apply(
            segments=segments,
            removed=whole,
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
        """Yield the visible rows of the files, with all columns, and which of them change. Blocks."""
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
        """Yield the rows to write: the changed rows and, with `keeps`, the other rows of their files, in place."""
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
        """Write change files for feeds. Without change files a feed would take unchanged rows of rewritten files for
        changes."""
        if any(column.name.lower() == CHANGE_TYPE.name for column in self._table.columns):
            return ()  # nor can a feed of such a table be read
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
                data_root=self._table.data_root,
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
    """Return whether files in which only some rows change, `changing` of `rows`, are rewritten.

    `predicate` is TRUE for the changing rows; None means that no predicate describes them. When `how` asks for a
    predicate that cannot be stored, the result is True with `falls_back`; without it the call raises InvalidInput
    (`bad_predicate`).
    """
    storable = predicate is not None and is_storable(predicate, table)
    if how is not None:
        if how == "predicate" and not storable:
            if falls_back:
                return True
            raise InvalidInput(
                "these rows cannot be hidden by a predicate: it would be too large, or it names a field of a struct"
                " with a default",
                kind="bad_predicate",
                hint='pass mode="rewrite"',
            )
        return how == "rewrite"
    if not storable or len(table.delete_predicates) >= STANDING_PREDICATES_MAX:
        return True
    return changing >= REWRITTEN_SHARE_MIN * rows and rows > 0


def is_storable(predicate: Predicate, table: TableDef) -> bool:
    """Return whether the table can keep the predicate. A predicate on a struct's field that has a default cannot be
    kept: the field is NULL where the struct is NULL, and that is unknown once the struct is dropped."""
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
