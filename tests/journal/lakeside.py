"""A table whose files hold small sets of ids, and authors that change it: what the tests of changing rows build
upon. Imported by its name (see conftest.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.access import CheckSummary
from alpheus_journal.actions import (
    AppendFiles,
    ChangeMode,
    ChangeRows,
    CreateTable,
    Operation,
    OverwriteFiles,
    RestoreTable,
    Transaction,
)
from alpheus_journal.columns import encode_bound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.manifest import DataFile, decode_segment, segment_of
from alpheus_journal.objects import Column, Segment, TableDef, decode_definition
from alpheus_journal.overlay import Overlay
from alpheus_journal.predicate import Compare, In, IsNull, Predicate, encode, reference
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake

NAME = ObjectName(Kind.TABLE, "a", "t")
ID = Column(id=1, name="id", type="INT8")
TAG = Column(id=2, name="tag", type="VARCHAR")


class Row(NamedTuple):
    """`tag`: which row it is, and how often it was changed; no two versions of rows have the same."""

    id: int | None
    tag: str

    @property
    def lineage(self) -> str:
        return self.tag.split(".")[0]

    def changed(self, id: int | None) -> Row:
        lineage, count = self.tag.split(".")
        return Row(id, f"{lineage}.{int(count) + 1}")


class Where(NamedTuple):
    expression: bytes
    matches: Callable[[Row], bool]


def where(predicate: Predicate, matches: Callable[[int], bool], null: bool = False) -> Where:
    """`null`: whether it is TRUE of NULL."""
    return Where(encode(predicate), lambda row: null if row.id is None else matches(row.id))


def equals(number: int) -> Where:
    return where(Compare(reference(ID), "=", number), lambda id: id == number)


def below(number: int) -> Where:
    return where(Compare(reference(ID), "<", number), lambda id: id < number)


def among(numbers: Iterable[int]) -> Where:
    values = tuple(sorted(set(numbers)))
    return where(In(reference(ID), values), lambda id: id in values)


def unknown() -> Where:
    return where(IsNull(reference(ID)), lambda id: False, null=True)


class Listed(NamedTuple):
    segment: Segment
    file: DataFile
    sequence: int


class Lakeside:
    """A table whose files' rows only the test knows: the journal looks at what manifest segments say of them."""

    def __init__(self, lake: Lake, journal: Journal, table_id: str) -> None:
        self.lake = lake
        self.journal = journal
        self.table_id = table_id
        self.rows: dict[str, tuple[Row, ...]] = {}
        self.meanings: dict[bytes, Callable[[Row], bool]] = {}
        self._count = 0

    @classmethod
    async def make(cls, storage: MemoryStorage | None = None, seed: int = 0, **options: object) -> Lakeside:
        lake = Lake(storage, seed)
        journal = await lake.create(**options)
        create = CreateTable(namespace="a", name="t", table_id=lake.identities.uuid4(), columns=(ID, TAG))
        await lake.commit(journal, lake.namespace("a"), create)
        return cls(lake, journal, create.table_id)

    def new_rows(self, ids: Iterable[int | None]) -> list[Row]:
        found = []
        for id in ids:
            self._count += 1
            found.append(Row(id, f"{self._count}.0"))
        return found

    async def file(self, transaction_id: str, rows: Sequence[Row], *, is_change: bool = False) -> DataFile:
        folder = fmt.data_folder(self.table_id, transaction_id, self.lake.identities.uuid4())
        path = f"{folder}part-0.parquet"
        await self.lake.storage.put(path, b"rows")
        self.rows[path] = tuple(rows)
        ids = [row.id for row in rows if row.id is not None]
        return DataFile(
            path=path,
            row_count=len(rows),
            size_bytes=4,
            value_counts={1: len(rows), 2: len(rows)},
            null_counts={1: len(rows) - len(ids), 2: 0},
            lower_bounds={1: encode_bound(ID, min(ids))} if ids else {},
            upper_bounds={1: encode_bound(ID, max(ids))} if ids else {},
        )

    async def segment(self, files: Sequence[DataFile]) -> Segment:
        path = fmt.manifest_path(self.table_id, self.lake.identities.uuid7())
        data, segment = await asyncio.to_thread(
            segment_of, files, path=path, table_id=self.table_id, schema_id=0
        )
        await self.lake.storage.put(path, data)
        return segment

    async def table(self, journal: Journal | None = None, version: int | None = None) -> TableDef:
        journal = journal or self.journal
        at = journal.head.version if version is None else version
        (stored,) = (await journal.load(at, [NAME])).objects
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        return definition

    async def files(self, table: TableDef, overlay: Overlay | None = None) -> list[Listed]:
        found = []
        for segment in table.segments:
            data = overlay.segment(segment.path) if overlay is not None else None
            if data is None:
                data = await self.lake.storage.read(segment.path, size_max=1 << 24)
            files = decode_segment(data, segment.path, table_id=table.id)
            assert len(files) == segment.file_count
            for file in files:
                sequence = segment.sequence if file.sequence is None else file.sequence
                assert segment.lowest_sequence <= sequence <= segment.sequence
                found.append(Listed(segment, file, sequence))
        return found

    def visible_in(self, table: TableDef, listed: Listed) -> list[Row]:
        hide = [
            self.meanings[predicate.expression]
            for predicate in table.delete_predicates
            if listed.sequence <= predicate.sequence
        ]
        return [row for row in self.rows[listed.file.path] if not any(one(row) for one in hide)]

    async def visible(self, table: TableDef, overlay: Overlay | None = None) -> list[Row]:
        """What a reader sees."""
        files = await self.files(table, overlay)
        return [row for one in files for row in self.visible_in(table, one)]

    async def now(self, journal: Journal | None = None) -> Counter[Row]:
        return Counter(await self.visible(await self.table(journal)))

    async def author(self, begin: int | None = None) -> Author:
        begin = self.journal.head.version if begin is None else begin
        author = Author(self, begin)
        table = await self.table(version=begin)
        author.base_sequence = table.sequence
        author.seen = Counter(await self.visible(table))
        return author

    async def sound(self) -> None:
        found = [item async for item in (await self.lake.open()).check()]
        assert isinstance(found[0], CheckSummary), found


class Author:
    """A transaction as a client makes it: each operation on what it saw and wrote itself."""

    def __init__(self, side: Lakeside, begin: int) -> None:
        self.side = side
        self.begin = begin
        self.id = side.lake.identities.uuid7()
        self.operations: list[Operation] = []
        self.labels: set[str] = set()
        self.base_sequence = 0
        self.seen: Counter[Row] = Counter()
        self.inserted: set[int] = set()  # keys that a merge did not find
        self.looked_for: list[Callable[[Row], bool]] = []

        async def load(version: int, names: list[ObjectName]) -> object:
            return (await side.journal.load(version, names)).objects

        async def read_segments(segments: Sequence[Segment]) -> list[bytes]:
            return [await side.lake.storage.read(s.path, size_max=1 << 24) for s in segments]

        self.overlay = Overlay(
            load,  # type: ignore[arg-type]
            side.journal.list,
            side.journal.keys,
            self.id,
            begin=begin,
            read_segments=read_segments,
        )

    async def table(self) -> TableDef:
        (stored,) = await self.overlay.load([NAME])
        assert stored is not None
        definition = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(definition, TableDef)
        return definition

    async def visible(self) -> list[Row]:
        return await self.side.visible(await self.table(), self.overlay)

    async def run(self, operation: Operation, label: str) -> None:
        executed = await self.overlay.execute(operation)
        assert executed.action.operation is not None
        self.operations.append(executed.action.operation)
        self.labels.add(label)

    def transaction(self, **options: object) -> Transaction:
        return Transaction(
            id=self.id,
            begin_version=self.begin,
            operations=tuple(self.operations),
            **options,  # type: ignore[arg-type]
        )

    async def written(self, rows: Sequence[Row], count: int = 1) -> tuple[Segment, ...]:
        parts = [rows[start::count] for start in range(count)] if rows else []
        files = [await self.side.file(self.id, part) for part in parts if part]
        return (await self.side.segment(files),) if files else ()

    async def append(self, ids: Sequence[int | None], files: int = 1) -> None:
        segments = await self.written(self.side.new_rows(ids), files)
        await self.run(
            AppendFiles(namespace="a", name="t", table_id=self.side.table_id, segments=segments), "append"
        )

    async def overwrite_all(self, ids: Sequence[int | None]) -> None:
        segments = await self.written(self.side.new_rows(ids))
        await self.run(
            OverwriteFiles(namespace="a", name="t", table_id=self.side.table_id, segments=segments),
            "overwrite",
        )

    async def restore(self, version: int) -> None:
        await self.run(RestoreTable(namespace="a", name="t", version=version), "restore")

    async def change(
        self, mode: ChangeMode, which: Where, came: Sequence[Row], *, on_read: bool, moved: bool = True
    ) -> None:
        """The matching rows go, others come; by predicate (`on_read`) or by rewriting files."""
        self.side.meanings[which.expression] = which.matches
        table = await self.table()
        removed: list[Listed] = []
        survivors: list[Row] = []
        hidden = 0
        for one in await self.side.files(table, self.overlay):
            rows = self.side.visible_in(table, one)
            hits = [row for row in rows if which.matches(row)]
            hidden += len(hits)
            if hits and not on_read:
                removed.append(one)
                survivors += [row for row in rows if not which.matches(row)]
        if on_read and not hidden and mode is not ChangeMode.DELETE and not came:
            return
        if not on_read and not removed and not came:
            return
        label = f"{mode} {'on read' if on_read else 'rewriting'}"
        await self.run(
            ChangeRows(
                namespace="a",
                name="t",
                table_id=self.side.table_id,
                base_sequence=self.base_sequence,
                mode=mode,
                segments=await self.written([*survivors, *came]),
                removed=await self.removed(removed),
                predicates=(which.expression,) if on_read else (),
                scan=which.expression,
                sources=tuple({one.segment.path for one in removed}),
                rows_hidden=hidden if on_read else 0,
            ),
            label,
        )
        if mode in (ChangeMode.UPDATE, ChangeMode.OVERWRITE):
            self.looked_for.append(which.matches)

    async def removed(self, files: Sequence[Listed]) -> tuple[Segment, ...]:
        if not files:
            return ()
        entries = [msgspec.structs.replace(one.file, sequence=one.sequence) for one in files]
        return (await self.side.segment(entries),)

    async def delete(self, which: Where, *, on_read: bool) -> None:
        await self.change(ChangeMode.DELETE, which, (), on_read=on_read)

    async def update(self, which: Where, id: Callable[[int | None], int | None], *, on_read: bool) -> None:
        hits = [row for row in await self.visible() if which.matches(row)]
        if hits:
            await self.change(
                ChangeMode.UPDATE, which, [row.changed(id(row.id)) for row in hits], on_read=on_read
            )

    async def merge(self, keys: Sequence[int], *, on_read: bool) -> None:
        which = among(keys)
        hits = [row for row in await self.visible() if which.matches(row)]
        absent = sorted(set(keys) - {row.id for row in hits if row.id is not None})
        mine = {row.id for row in self.new_rows_of_mine()}
        self.inserted |= set(absent) - {id for id in mine if id is not None}
        came = [row.changed(row.id) for row in hits] + self.side.new_rows(absent)
        await self.change(ChangeMode.MERGE, which, came, on_read=on_read)

    def new_rows_of_mine(self) -> list[Row]:
        return [row for path, rows in self.side.rows.items() if self.id in path for row in rows]

    async def overwrite(self, which: Where, ids: Sequence[int | None], *, on_read: bool) -> None:
        await self.change(ChangeMode.OVERWRITE, which, self.side.new_rows(ids), on_read=on_read)

    async def compact(self, choose: Callable[[Listed], bool]) -> None:
        table = await self.table()
        chosen = [one for one in await self.side.files(table, self.overlay) if choose(one)]
        if not chosen:
            return
        rows = [row for one in chosen for row in self.side.visible_in(table, one)]
        await self.run(
            ChangeRows(
                namespace="a",
                name="t",
                table_id=self.side.table_id,
                base_sequence=self.base_sequence,
                mode=ChangeMode.COMPACT,
                segments=await self.written(rows),
                removed=await self.removed(chosen),
                sources=tuple({one.segment.path for one in chosen}),
            ),
            "compact",
        )


async def filled(*ids: Sequence[int | None]) -> Lakeside:
    """A table of one file for each group of ids, each from a transaction of its own."""
    side = await Lakeside.make()
    for group in ids:
        author = await side.author()
        await author.append(group)
        await side.journal.commit(author.transaction())
    return side


async def ids_of(side: Lakeside) -> list[int | None]:
    return sorted((row.id for row in (await side.now()).elements()), key=str)
