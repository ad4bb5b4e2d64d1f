"""Tables whose files hold small sets of rows, authors that change these tables, and the effects of the changes.

The files are not Parquet: only `Contents` knows their rows, and the journal uses what manifest segments say about them.
An `Author` makes a transaction as a client does, each operation on the rows that it saw and wrote itself. `Meant` is
the intended effect on a table, whatever others do meanwhile. The visible rows of a table must be the result of the
authors' intents, applied one after the other.

The module is long because contents, authors and intents share one idea of a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from unittest import mock

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.execute.rules import rows as row_operations
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.model.operations import (
    AddColumn,
    AppendFiles,
    ChangeMode,
    ChangeRows,
    CreateTable,
    Operation,
    OverwriteFiles,
    RenameObject,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateTable,
)
from alpheus_journal.predicate import And, Compare, In, IsNull, Predicate, encode, reference
from alpheus_journal.storage import Storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables import manifest_merge as segments_module
from alpheus_journal.tables.columns import encode_bound
from alpheus_journal.tables.data_file import DataFile
from alpheus_journal.tables.manifest import decode_segment, segment_of
from alpheus_journal.testing.models.catalog import Lake

NAME = ObjectName(Kind.TABLE, "a", "t")
ID = Column(id=1, name="id", type="INT8")
TAG = Column(id=2, name="tag", type="VARCHAR")
PART = Column(id=3, name="part", type="INT4")
LEVEL_BEFORE = 7
"""The level of every row that was written before its table had levels."""
LEVEL = Column(
    id=4,
    name="level",
    type="INT4",
    initial_default=encode_bound(PART, LEVEL_BEFORE),
    write_default=encode_bound(PART, LEVEL_BEFORE),
)


class Row(NamedTuple):
    """A version of a row. `tag` names the row and counts its changes; no two versions of rows have the same tag."""

    id: int | None
    tag: str
    level: int = LEVEL_BEFORE

    @property
    def lineage(self) -> str:
        return self.tag.split(".")[0]

    @property
    def part(self) -> int | None:
        return None if self.id is None else self.id % 2

    def with_new_tag(self, id: int | None) -> Row:
        lineage, count = self.tag.split(".")
        return Row(id, f"{lineage}.{int(count) + 1}", self.level)


class Where(NamedTuple):
    expression: bytes
    matches: Callable[[Row], bool]


def where(predicate: Predicate, matches: Callable[[int], bool], null: bool = False) -> Where:
    """Return a condition on the id. `null` says whether it is TRUE for NULL."""
    return Where(encode(predicate), lambda row: null if row.id is None else matches(row.id))


def equals(number: int, column: Column = ID) -> Where:
    return where(Compare(reference(column), "=", number), lambda id: id == number)


def below(number: int, column: Column = ID) -> Where:
    return where(Compare(reference(column), "<", number), lambda id: id < number)


def among(numbers: Iterable[int], column: Column = ID) -> Where:
    values = tuple(sorted(set(numbers)))
    return where(In(reference(column), values), lambda id: id in values)


def unknown(column: Column = ID) -> Where:
    return where(IsNull(reference(column)), lambda id: False, null=True)


def in_part(number: int, column: Column) -> Where:
    return Where(encode(Compare(reference(column), "=", number)), lambda row: row.part == number)


def at_level(number: int, column: Column) -> Where:
    return Where(encode(Compare(reference(column), ">=", number)), lambda row: row.level >= number)


def both_of(id: int, column: Column, level: int, level_column: Column) -> Where:
    one = Compare(reference(column), "=", id)
    other = Compare(reference(level_column), ">=", level)
    return Where(encode(And((one, other))), lambda row: row.id == id and row.level >= level)


@contextlib.contextmanager
def small_tiers() -> Iterator[None]:
    """Merge segments from three on, so that merges are frequent."""
    with (
        mock.patch.object(segments_module, "FANOUT", 3),
        mock.patch.object(row_operations, "FANOUT", 3),
        mock.patch.object(segments_module, "TIERS", (3, 9, 27, 81)),
    ):
        yield


class Listed(NamedTuple):
    segment: Segment
    file: DataFile
    sequence: int


def columns_of_rows(table: TableDef) -> dict[int, Column]:
    """Return the columns of a table for which rows have values."""
    return {
        column.id: column
        for column in table.columns
        if column.id in (ID.id, TAG.id, PART.id) or (column.id, column.name) == (LEVEL.id, LEVEL.name)
    }


class Contents:
    """The content of data files and the meaning of predicates. Files and segments go directly to `storage`."""

    def __init__(self, storage: Storage, identities: Identities) -> None:
        self.storage = storage
        self.identities = identities
        self.rows: dict[str, tuple[Row, ...]] = {}
        """The rows of data files that tables may have, by path."""
        self.meanings: dict[bytes, Callable[[Row], bool]] = {}
        self._count = 0
        self._listed: dict[bytes, tuple[DataFile, ...]] = {}

    def new_rows(self, ids: Iterable[int | None], level: int = LEVEL_BEFORE) -> list[Row]:
        found = []
        for id in ids:
            self._count += 1
            found.append(Row(id, f"{self._count}.0", level))
        return found

    async def put_file(
        self, table: TableDef, transaction_id: str, rows: Sequence[Row], *, is_change: bool = False
    ) -> DataFile:
        """Store rows of one partition. `is_change` makes a change file, which no table lists."""
        folder = fmt.data_folder(table.id, transaction_id, self.identities.uuid4())
        path = f"{folder}part-0.parquet"
        await self.storage.put(path, b"rows")
        if not is_change:
            self.rows[path] = tuple(rows)
        columns = columns_of_rows(table)
        values = {
            ID.id: [row.id for row in rows if row.id is not None],
            PART.id: [row.part for row in rows if row.part is not None],
            LEVEL.id: [row.level for row in rows],
        }
        bounded = {id: column for id, column in columns.items() if values.get(id)}
        return DataFile(
            path=path,
            row_count=len(rows),
            size_bytes=4,
            value_counts=dict.fromkeys(columns, len(rows)),
            null_counts={id: len(rows) - len(values.get(id, rows)) for id in columns},
            lower_bounds={id: encode_bound(column, min(values[id])) for id, column in bounded.items()},
            upper_bounds={id: encode_bound(column, max(values[id])) for id, column in bounded.items()},
            partition={} if is_change else _partition(table, rows[0]),
            sort_order_id=1 if table.sort_order else None,
        )

    async def put_segment(self, table_id: str, files: Sequence[DataFile]) -> Segment:
        path = fmt.manifest_path(table_id, self.identities.uuid7())
        data, segment = await asyncio.to_thread(segment_of, files, path=path, table_id=table_id, schema_id=0)
        await self.storage.put(path, data)
        return segment

    async def files(
        self, table: TableDef, overlay: Overlay | None = None, *, storage: Storage | None = None
    ) -> list[Listed]:
        """Return the files of a table. AssertionError when segments describe themselves wrongly.

        The segments are read from `storage`: of a version that may have expired, from an archive of the store.
        """
        found = []
        for segment in table.segments:
            data = overlay.segment(segment.path) if overlay is not None else None
            files = await self._files_of(segment, table.id, data, storage or self.storage)
            sums = (len(files), sum(f.row_count for f in files), sum(f.size_bytes for f in files))
            assert sums == (segment.file_count, segment.row_count, segment.size_bytes), segment
            for file in files:
                sequence = segment.sequence if file.sequence is None else file.sequence
                assert segment.lowest_sequence <= sequence <= segment.sequence <= table.sequence
                found.append(Listed(segment, file, sequence))
        paths = [one.file.path for one in found]
        assert len(paths) == len(set(paths)), f"a file is listed twice: {paths}"
        return found

    async def _files_of(
        self, segment: Segment, table_id: str, data: bytes | None, storage: Storage
    ) -> tuple[DataFile, ...]:
        known = self._listed.get(segment.sha256)
        if known is None:
            if data is None:
                data = await storage.read(segment.path, size_max=1 << 24)
            known = self._listed[segment.sha256] = decode_segment(data, segment.path, table_id=table_id)
        return known

    def visible_in(self, table: TableDef, listed: Listed) -> list[Row]:
        hide = [
            self.meanings[predicate.expression]
            for predicate in table.delete_predicates
            if listed.sequence <= predicate.sequence
        ]
        return [row for row in self.rows[listed.file.path] if not any(one(row) for one in hide)]

    async def visible(
        self, table: TableDef, overlay: Overlay | None = None, *, storage: Storage | None = None
    ) -> list[Row]:
        """Return the rows that a reader sees."""
        files = await self.files(table, overlay, storage=storage)
        return [row for one in files for row in self.visible_in(table, one)]


def _partition(table: TableDef, row: Row) -> dict[int, bytes | None]:
    return {
        field.column_id: None if row.part is None else encode_bound(PART, row.part)
        for field in table.partition_spec
    }


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """The intended effect of a transaction on the rows of a table, as its author saw them."""

    table_id: str
    labels: tuple[str, ...]
    """A word for each of its operations, which come first in the transaction."""
    seen: Counter[Row]
    wanted: Counter[Row]
    inserted: frozenset[int]
    """Keys that a merge did not find."""
    looked_for: tuple[Callable[[Row], bool], ...]
    compacted_at: Mapping[int, int]
    """The sequence at which a compaction's files have to be added, by the place of the operation (FORMAT.md, "What
    operations do")."""

    def applied_to(self, before: Counter[Row]) -> Counter[Row]:
        """Return the rows after the transaction: without the seen rows that it removes, and with those that it adds.

        AssertionError when the transaction missed rows that it should have seen.
        """
        went, came = self.seen - self.wanted, self.wanted - self.seen
        went_on = {row.lineage for row in went} & {row.lineage for row in came}
        for row in went:
            assert row in before or row.lineage not in went_on, f"{row} was deleted, and comes back changed"
        ended = {row.lineage for row in went} - {row.lineage for row in self.wanted}
        after = (before - went) + came
        assert not ended & {row.lineage for row in after}, "a deleted row continues in another form"
        foreign = before - self.seen
        for row in foreign:
            assert row.id not in self.inserted, f"two merges inserted {row}"
            assert not any(matches(row) for matches in self.looked_for), f"{row} was not seen"
        lineages = [row.lineage for row in after.elements()]
        assert len(set(lineages)) == len(lineages), "a row appears twice"
        return after


class Author:
    """Makes a transaction as a client does: each operation works on the rows that it saw and wrote itself.

    The first call is `look` or `undrop`.
    """

    def __init__(
        self, contents: Contents, journal: Journal, name: ObjectName, *, id: str, begin: int
    ) -> None:
        self.contents = contents
        self.name = name
        self.begin = begin
        self.id = id
        self.table_id = ""
        self.operations: list[Operation] = []
        self.labels: list[str] = []
        self.base_sequence = 0
        self.seen: Counter[Row] = Counter()
        self.inserted: set[int] = set()
        self.looked_for: list[Callable[[Row], bool]] = []
        self.compacted_at: dict[int, int] = {}

        async def load(version: int, names: list[ObjectName]) -> object:
            return (await journal.load(version, names)).objects

        async def read_segments(segments: Sequence[Segment]) -> list[bytes]:
            return [await contents.storage.read(s.path, size_max=1 << 24) for s in segments]

        self.overlay = Overlay(
            load,  # type: ignore[arg-type]
            journal.list,
            journal.keys,
            self.id,
            begin=begin,
            read_segments=read_segments,
        )

    async def look(self) -> None:
        """Read the current table. AssertionError if there is none."""
        table = await self.table()
        self.table_id = table.id
        self.base_sequence = table.sequence
        self.seen = Counter(await self.visible())

    async def undrop(self, version: int) -> None:
        await self.run(
            Undrop(
                kind=Kind.TABLE,
                namespace=self.name.namespace,
                name=self.name.name,
                version=version,
                new_namespace=self.name.namespace,
                new_name=self.name.name,
            ),
            "undrop",
        )
        await self.look()

    async def table(self) -> TableDef:
        (stored,) = await self.overlay.load([self.name])
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        return definition

    async def visible(self) -> list[Row]:
        return await self.contents.visible(await self.table(), self.overlay)

    async def is_plain(self) -> bool:
        """Return whether no row has a level."""
        return all(row.level == LEVEL_BEFORE for row in await self.visible())

    async def run(self, operation: Operation, label: str) -> None:
        executed = await self.overlay.execute(operation)
        assert executed.action.operation is not None
        self.operations.append(executed.action.operation)
        self.labels.append(label)

    def transaction(self, **options: object) -> Transaction:
        return Transaction(
            id=self.id,
            begin_version=self.begin,
            operations=tuple(self.operations),
            **options,  # type: ignore[arg-type]
        )

    async def meant(self) -> Meant:
        return Meant(
            table_id=self.table_id,
            labels=tuple(self.labels),
            seen=self.seen,
            wanted=Counter(await self.visible()),
            inserted=frozenset(self.inserted),
            looked_for=tuple(self.looked_for),
            compacted_at=self.compacted_at.copy(),
        )

    # -- files

    async def write_segment(self, rows: Sequence[Row], count: int = 1) -> tuple[Segment, ...]:
        """Write a segment of `count` files for each partition."""
        if not rows:
            return ()
        table = await self.table()
        by_partition: dict[int | None, list[Row]] = {}
        for row in rows:
            by_partition.setdefault(row.part if table.partition_spec else None, []).append(row)
        parts = [some[start::count] for some in by_partition.values() for start in range(count)]
        files = [await self.contents.put_file(table, self.id, part) for part in parts if part]
        return (await self.contents.put_segment(self.table_id, files),)

    async def list_segment(self, files: Sequence[Listed]) -> tuple[Segment, ...]:
        if not files:
            return ()
        entries = [msgspec.structs.replace(one.file, sequence=one.sequence) for one in files]
        return (await self.contents.put_segment(self.table_id, entries),)

    async def _write_change_files(self, rows: Sequence[Row]) -> tuple[Segment, ...]:
        if not rows:
            return ()
        file = await self.contents.put_file(await self.table(), self.id, rows, is_change=True)
        return (await self.contents.put_segment(self.table_id, [file]),)

    def _sources(self, files: Sequence[Listed]) -> tuple[str, ...]:
        """Return the segments that other transactions know, too."""
        paths = {one.segment.path: 0 for one in files if self.overlay.segment(one.segment.path) is None}
        return tuple(paths)

    # -- operations

    def _add_files_operation(
        self, operation: type[AppendFiles | OverwriteFiles], segments: tuple[Segment, ...]
    ) -> AppendFiles | OverwriteFiles:
        return operation(
            namespace=self.name.namespace, name=self.name.name, table_id=self.table_id, segments=segments
        )

    async def append(self, ids: Sequence[int | None], files: int = 1, level: int = LEVEL_BEFORE) -> None:
        segments = await self.write_segment(self.contents.new_rows(ids, level), files)
        await self.run(self._add_files_operation(AppendFiles, segments), "append")

    async def overwrite_all(self, ids: Sequence[int | None], level: int = LEVEL_BEFORE) -> None:
        segments = await self.write_segment(self.contents.new_rows(ids, level))
        await self.run(self._add_files_operation(OverwriteFiles, segments), "overwrite_all")

    async def restore(self, version: int) -> None:
        await self.run(
            RestoreTable(namespace=self.name.namespace, name=self.name.name, version=version), "restore"
        )

    async def rename(self, new: ObjectName) -> None:
        await self.run(
            RenameObject(
                kind=Kind.TABLE,
                namespace=self.name.namespace,
                name=self.name.name,
                new_namespace=new.namespace,
                new_name=new.name,
            ),
            "rename",
        )
        self.name = new

    async def add_level(self) -> None:
        """Add the column of levels. Existing rows get the default."""
        added = AddColumn(column=msgspec.structs.replace(LEVEL, id=0))
        await self.run(
            UpdateTable(namespace=self.name.namespace, name=self.name.name, add_columns=(added,)), "add_level"
        )

    async def change(
        self,
        mode: ChangeMode,
        which: Where,
        came: Sequence[Row],
        *,
        on_read: bool,
        whole: bool = False,
        tells: bool = False,
    ) -> None:
        """Remove the matching rows and add others.

        Rows are removed by predicate (`on_read`) or by rewriting files. With `whole`, files whose rows all match are
        removed even then. `tells` adds change files.
        """
        self.contents.meanings[which.expression] = which.matches
        table = await self.table()
        removed: list[Listed] = []
        survivors: list[Row] = []
        gone: list[Row] = []
        hidden = dead = 0
        for one in await self.contents.files(table, self.overlay):
            rows = self.contents.visible_in(table, one)
            hits = [row for row in rows if which.matches(row)]
            goes = not on_read or (whole and len(hits) == one.file.row_count)
            if hits and goes:
                removed.append(one)
                gone += hits
                dead += one.file.row_count - len(rows)
                survivors += [row for row in rows if not which.matches(row)]
            else:
                hidden += len(hits)
        if not removed and not came and (not hidden and mode is not ChangeMode.DELETE):
            return
        if not on_read and not removed and not came:
            return
        hides = on_read and (hidden > 0 or not whole or not (removed or came))
        how = "rewriting" if not on_read else "mixed" if removed else "on_read"
        await self.run(
            ChangeRows(
                namespace=self.name.namespace,
                name=self.name.name,
                table_id=self.table_id,
                base_sequence=self.base_sequence,
                mode=mode,
                segments=await self.write_segment([*survivors, *came]),
                removed=await self.list_segment(removed),
                predicates=(which.expression,) if hides else (),
                scan=which.expression,
                changes=await self._write_change_files([*gone, *came]) if tells and not on_read else (),
                sources=self._sources(removed),
                rows_hidden=hidden if hides else 0,
                rows_kept=len(survivors),
                rows_dead=dead,
            ),
            f"{mode}_{how}",
        )
        if mode in (ChangeMode.UPDATE, ChangeMode.MERGE, ChangeMode.OVERWRITE):
            self.looked_for.append(which.matches)

    async def delete(self, which: Where, **how: bool) -> None:
        await self.change(ChangeMode.DELETE, which, (), **how)

    async def update(self, which: Where, id: Callable[[int | None], int | None], **how: bool) -> None:
        hits = [row for row in await self.visible() if which.matches(row)]
        if hits:
            came = [row.with_new_tag(id(row.id)) for row in hits]
            await self.change(ChangeMode.UPDATE, which, came, **how)

    async def merge(
        self, keys: Sequence[int], *, column: Column = ID, level: int = LEVEL_BEFORE, **how: bool
    ) -> None:
        which = among(keys, column)
        hits = [row for row in await self.visible() if which.matches(row)]
        absent = sorted(set(keys) - {row.id for row in hits if row.id is not None})
        mine = {row.id for row in self.new_rows_of_mine()}
        self.inserted |= set(absent) - {id for id in mine if id is not None}
        came = [row.with_new_tag(row.id) for row in hits] + self.contents.new_rows(absent, level)
        await self.change(ChangeMode.MERGE, which, came, **how)

    def new_rows_of_mine(self) -> list[Row]:
        return [row for path, rows in self.contents.rows.items() if self.id in path for row in rows]

    async def overwrite(
        self, which: Where, ids: Sequence[int | None], level: int = LEVEL_BEFORE, **how: bool
    ) -> None:
        """Add only those of the new rows that match."""
        came = [row for row in self.contents.new_rows(ids, level) if which.matches(row)]
        await self.change(ChangeMode.OVERWRITE, which, came, **how)

    async def compact(self, choose: Callable[[Listed], bool]) -> None:
        table = await self.table()
        files = await self.contents.files(table, self.overlay)
        chosen = [one for one in files if choose(one)]
        if not chosen:
            return
        rows = [row for one in chosen for row in self.contents.visible_in(table, one)]
        sequences = [one.sequence for one in chosen]
        if max(sequences) <= self.base_sequence:  # the sequences of own files are known only at the end
            applied = [p for p in table.delete_predicates if p.sequence >= min(sequences)]
            if all(p.committed_sequence <= self.base_sequence for p in applied):
                last = max([*sequences, *(p.committed_sequence for p in applied)])
                self.compacted_at[len(self.operations)] = last
        await self.run(
            ChangeRows(
                namespace=self.name.namespace,
                name=self.name.name,
                table_id=self.table_id,
                base_sequence=self.base_sequence,
                mode=ChangeMode.COMPACT,
                segments=await self.write_segment(rows),
                removed=await self.list_segment(chosen),
                sources=self._sources(chosen),
            ),
            "compact",
        )


LETTERS = "aaaadddduuuummmmooocccc" * 2 + "AAAr"


async def random_change(
    rng: random.Random,
    author: Author,
    versions: Sequence[int],
    letters: str = LETTERS,
) -> None:
    """Make a random operation on the rows of the author's table, or none if there is nothing to do.

    `versions` can be restored. `letters` weights the operations: append, delete, update, merge, overwrite, compact,
    restore, and A for overwriting all rows.
    """
    columns = columns_of_rows(await author.table())
    ids = [rng.choice((None, 0, 1, 2, 3, 4)) for _ in range(rng.randrange(1, 4))]
    if not columns[ID.id].nullable:
        ids = [id or 0 for id in ids]
    known = [id for id in ids if id is not None] or [3]
    level = rng.choice((5, LEVEL_BEFORE, 9)) if LEVEL.id in columns else LEVEL_BEFORE
    which = _random_where(rng, columns, known)
    how = {"on_read": rng.random() < 0.6, "whole": rng.random() < 0.3, "tells": rng.random() < 0.3}
    match rng.choice(letters):
        case "a":
            await author.append(ids, rng.randrange(1, 3), level)
        case "d":
            await author.delete(which, **how)
        case "u":
            shift = rng.choice((0, 0, 1, -3))
            await author.update(which, lambda id: None if id is None else id + shift, **how)
        case "m":
            await author.merge(known, column=columns[ID.id], level=level, **how)
        case "o":
            await author.overwrite(which, ids, level, **how)
        case "c":
            share = rng.choice((0.4, 1))
            await author.compact(lambda one: rng.random() < share)
        case "A":
            await author.overwrite_all(ids[1:] if rng.random() < 0.5 else (), level)
        case "r":
            await author.restore(rng.choice(versions))


def _random_where(rng: random.Random, columns: dict[int, Column], known: Sequence[int]) -> Where:
    id = columns[ID.id]
    found = [equals(known[0], id), equals(known[0], id), below(known[0], id), among(known, id), unknown(id)]
    if PART.id in columns:
        found += [in_part(known[0] % 2, columns[PART.id])] * 2
    if LEVEL.id in columns:
        level = rng.choice((LEVEL_BEFORE, LEVEL_BEFORE + 1))
        found += [
            at_level(level, columns[LEVEL.id]),
            both_of(known[0], id, level, columns[LEVEL.id]),
        ]
    return rng.choice(found)


class Lakeside(Contents):
    """One such table, `NAME`, in its own catalog."""

    def __init__(self, lake: Lake, journal: Journal, table_id: str) -> None:
        super().__init__(lake.storage, lake.identities)
        self.lake = lake
        self.journal = journal
        self.table_id = table_id

    @classmethod
    async def make(cls, storage: MemoryStorage | None = None, seed: int = 0, **options: object) -> Lakeside:
        lake = Lake(storage, seed)
        journal = await lake.create(**options)
        create = CreateTable(namespace="a", name="t", table_id=lake.identities.uuid4(), columns=(ID, TAG))
        await lake.commit(journal, lake.namespace("a"), create)
        return cls(lake, journal, create.table_id)

    async def file(self, transaction_id: str, rows: Sequence[Row]) -> DataFile:
        return await self.put_file(TableDef(id=self.table_id, columns=(ID, TAG)), transaction_id, rows)

    async def segment(self, files: Sequence[DataFile]) -> Segment:
        return await self.put_segment(self.table_id, files)

    async def table(self, journal: Journal | None = None, version: int | None = None) -> TableDef:
        journal = journal or self.journal
        at = journal.head.version if version is None else version
        (stored,) = (await journal.load(at, [NAME])).objects
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        return definition

    async def now(self, journal: Journal | None = None) -> Counter[Row]:
        return Counter(await self.visible(await self.table(journal)))

    async def author(self, begin: int | None = None) -> Author:
        begin = self.journal.head.version if begin is None else begin
        author = Author(self, self.journal, NAME, id=self.identities.uuid7(), begin=begin)
        await author.look()
        return author

    async def sound(self) -> None:
        found = [item async for item in (await self.lake.open()).check()]
        assert isinstance(found[0], CheckSummary), found


async def make_lakeside(*ids: Sequence[int | None]) -> Lakeside:
    """Make a table with one file for each group of ids, each from its own transaction."""
    side = await Lakeside.make()
    for group in ids:
        author = await side.author()
        await author.append(group)
        await side.journal.commit(author.transaction())
    return side


async def ids_of(side: Lakeside) -> list[int | None]:
    return sorted((row.id for row in (await side.now()).elements()), key=str)
