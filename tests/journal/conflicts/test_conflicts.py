"""Conflicts between transactions, through the real commit path: a table of pairs that must conflict, a table of pairs
that must not, versions of other writers, and a prefilter that misses no conflict.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.conflicts.facets import Aspect, Stake, claims_of, touches_of
from alpheus_journal.conflicts.rules import (
    RULES,
    Group,
    Stakes,
    Touches,
    conflict_with_event,
    conflict_with_transaction,
    event_facets,
    transactions_of,
)
from alpheus_journal.conflicts.text import describe, describe_read
from alpheus_journal.errors import AlpheusError, Conflict, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Change, CheckSummary, Committed, Event
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Column, Reference, TableDef
from alpheus_journal.model.operations import (
    Action,
    AddColumn,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    ChangeMode,
    ChangeRows,
    ClaimSubscription,
    CommitIceberg,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    Read,
    RecordedTransaction,
    RegisterTable,
    RenameObject,
    ReplaceView,
    RestoreTable,
    Transaction,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.predicate import IsNull, encode, reference
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.tables.manifest import decode_segment, segment_of
from alpheus_journal.testing import Lake, listed, put_rows, raises

# --- a world, and sentences about it ---------------------------------------------------------------

COLUMNS = (
    Column(id=1, name="c", type="INT8"),
    Column(id=2, name="d", type="INT4"),
    Column(id=3, name="s", type="STRUCT", fields=(Column(id=4, name="x", type="INT4"),)),
)
NEXT_COLUMN_ID = 5  # of every table here
_READS = {
    "exists": "EXISTS", "describe": "DESCRIBE", "select": "SELECT", "tables": "SHOW_TABLES", "views": "SHOW_VIEWS",
    "namespaces": "SHOW_NAMESPACES", "pipelines": "SHOW_PIPELINES",
}  # fmt: skip


def location(name: str) -> str:
    return f"s3://bucket/{name}.metadata.json"


class World:
    """A catalog with a few objects of every kind; sentences name operations on it.

    Namespace a holds the tables t, u, e and f (e and f are empty), the Iceberg table i, and the views v, w and x (x is
    bound to f). Namespace b is empty. The table a.gone and the namespace c (with a table c.t) were dropped. The job m.j
    ran once.
    """

    def __init__(self, lake: Lake, journal: Journal) -> None:
        self.lake = lake
        self.journal = journal
        self.ids: dict[str, str] = {}
        self.alive = 0  # a version at which the dropped objects existed
        self.last_run = ""

    @classmethod
    async def make(cls) -> World:
        """Return a copy of the one world that all tests share."""
        if not TEMPLATE:
            first = await cls.first()
            paths = await listed(first.lake.storage, "")
            files = {path: await first.lake.storage.read(path, size_max=1 << 20) for path in paths}
            TEMPLATE.append((first, files))
        template, files = TEMPLATE[0]
        storage = MemoryStorage()
        await storage.put_many(files)
        lake = Lake(storage, seed=1)
        world = cls(lake, await lake.open())
        world.ids, world.alive, world.last_run = dict(template.ids), template.alive, template.last_run
        return world

    @classmethod
    async def first(cls) -> World:
        lake = Lake()
        world = cls(lake, await lake.create())
        await world.commit("create namespace a; create namespace b; create namespace c")
        await world.commit(
            "create table a.t; create table a.u; create table a.e; create table a.gone; create table c.t;"
            "create table a.f; register a.i; create view a.v; create view a.w; create bound view a.x of a.f;"
            "set catalog p=0; set namespace a p=0; set a.t p=0; subscribe s"
        )
        await world.commit("append a.t; append a.u")
        world.alive = (await world.commit("append a.gone")).version
        await world.commit("drop table a.gone; cascade c")
        world.last_run = (await world.commit("advance m.j")).transaction_id
        return world

    async def commit(self, sentences: str) -> Committed:
        return await self.journal.commit(await self.transaction(sentences))

    async def transaction(self, sentences: str, *, begin: int | None = None) -> Transaction:
        id = self.lake.identities.uuid7()
        operations: list[Operation] = []
        reads: list[Read] = []
        for sentence in filter(None, (part.strip() for part in sentences.split(";"))):
            if sentence.startswith("read "):
                reads.append(self.read(*sentence.split()[1:]))
            else:
                operations.append(await self.operation(id, sentence))
        return Transaction(
            id=id,
            begin_version=self.journal.head.version if begin is None else begin,
            operations=tuple(operations),
            principal="ann" if begin is None else "bob",
            serializable=bool(reads),
            reads=tuple(reads),
        )

    def read(self, verb: str, kind: str = "catalog", name: str = "", *rest: str) -> Read:
        kind = {"tables": "namespace", "views": "namespace"}.get(verb, kind)
        kind_of = Kind[kind.upper()]
        first, _, last = name.partition(".")
        target = (
            ObjectName(kind_of, "", first) if kind_of is Kind.PIPELINE else ObjectName(kind_of, first, last)
        )
        is_select = verb == "select"
        return Read(
            type=f"{kind_of.name}_{_READS[verb]}",
            name=target,
            columns=rest if is_select else (),
            prefix="" if is_select else "".join(rest),
        )

    async def operation(self, id: str, sentence: str) -> Operation:
        for pattern, make in SENTENCES:
            match = re.fullmatch(pattern, sentence)
            if match is not None:
                made = make(self, *match.groups())
                if isinstance(made, AppendFiles | OverwriteFiles) and not sentence.startswith("empty"):
                    segment = await put_rows(
                        self.lake.storage, self.lake.identities, table_id=made.table_id, transaction_id=id
                    )
                    return type(made)(
                        namespace=made.namespace, name=made.name, table_id=made.table_id, segments=(segment,)
                    )
                return await self.of_rows(id, made) if isinstance(made, ChangeRows) else made
        raise AssertionError(f"no such sentence: {sentence!r}")

    async def of_rows(self, id: str, made: ChangeRows) -> ChangeRows:
        """Fill in the segments of a change. If `sources` is set, all files of the table are removed. A predicate stays
        as it is. New files are added unless the change deletes rows."""
        (stored,) = (await self.journal.load(None, [made.target])).objects
        assert stored is not None
        table = decode_definition(Kind.TABLE, stored.definition, stored.path)
        assert isinstance(table, TableDef)
        removed, came = [], 0
        for segment in table.segments if made.sources else ():
            data = await self.lake.storage.read(segment.path, size_max=1 << 20)
            files = decode_segment(data, segment.path, table_id=table.id)
            entries = [msgspec.structs.replace(file, sequence=segment.sequence) for file in files]
            path = fmt.manifest_path(table.id, self.lake.identities.uuid7())
            data, listing = segment_of(entries, path=path, table_id=table.id, schema_id=0)
            await self.lake.storage.put(path, data)
            removed.append(listing)
            came += segment.row_count
        if made.mode is not ChangeMode.DELETE:
            coming = (
                await put_rows(
                    self.lake.storage,
                    self.lake.identities,
                    table_id=table.id,
                    transaction_id=id,
                    row_count=max(came, 1),
                ),
            )
        else:
            coming = ()
        return msgspec.structs.replace(
            made, base_sequence=table.sequence, segments=coming, removed=tuple(removed), sources=()
        )

    def new_id(self, name: str) -> str:
        return self.ids.setdefault(name, self.lake.identities.uuid4())


TEMPLATE: list[tuple[World, dict[str, bytes]]] = []


def split(name: str) -> dict[str, str]:
    namespace, _, last = name.partition(".")
    return {"namespace": namespace, "name": last}


def pair(text: str) -> dict[str, dict[str, str]]:
    key, _, value = text.partition("=")
    return {"set": {key: value}}


def update(name: str, **change: object) -> UpdateTable:
    return UpdateTable(**split(name), **change)  # type: ignore[arg-type]


def view(cls: type, world: World, name: str, base: str, bound: str) -> Operation:
    extra = {"view_id": world.new_id("view " + name)} if cls is CreateView else {}
    return cls(  # type: ignore[no-any-return]
        **split(name), **extra, sql=f"select * from {base or 'a.t'}", dialect="spark", schema_binding=bool(bound),
        references=(Reference(*(base or "a.t").split(".")),),
    )  # fmt: skip


def rename(kind: Kind, old: str, new: str) -> RenameObject:
    target = split(new)
    return RenameObject(kind=kind, **split(old), new_namespace=target["namespace"], new_name=target["name"])


def undrop(world: World, kind: Kind, old: str, new: str | None) -> Undrop:
    source, target = split(old), split(new or old)
    return Undrop(
        kind=kind, **source, version=world.alive, new_namespace=target["namespace"], new_name=target["name"]
    )


def added(name: str, column: str, **rest: Any) -> UpdateTable:
    parent, _, last = column.rpartition(".")
    new = Column(id=NEXT_COLUMN_ID, name=last, type="INT4", **rest)
    return update(name, add_columns=(AddColumn(parent=parent, column=new),))


def change(world: World, mode: ChangeMode, name: str, **parts: Any) -> ChangeRows:
    return ChangeRows(**split(name), table_id=world.ids[name], base_sequence=0, mode=mode, **parts)


ALL = encode(IsNull(reference(COLUMNS[0])))
"""The files here hold no column."""
NAME = r"([\w.]+)"
SENTENCES: list[tuple[str, Callable[..., Operation]]] = [
    (r"set catalog (\S+)", lambda w, kv: UpdateCatalog(**pair(kv))),
    (rf"create namespace {NAME}", lambda w, n: CreateNamespace(name=n, namespace_id=w.lake.identities.uuid4())),
    (rf"set namespace {NAME} (\S+)", lambda w, n, kv: UpdateNamespace(name=n, **pair(kv))),
    (rf"unset namespace {NAME} (\S+)", lambda w, n, k: UpdateNamespace(name=n, unset=(k,))),
    (rf"drop namespace {NAME}", lambda w, n: DropNamespace(name=n)),
    (rf"cascade {NAME}", lambda w, n: DropNamespace(name=n, cascade=True)),
    (
        rf"create table {NAME}",
        lambda w, n: CreateTable(**split(n), table_id=w.ids.setdefault(n, w.lake.identities.uuid4()), columns=COLUMNS),
    ),
    (
        rf"create new table {NAME}",
        lambda w, n: CreateTable(**split(n), table_id=w.lake.identities.uuid4(), columns=COLUMNS),
    ),
    (
        rf"register {NAME}",
        lambda w, n: RegisterTable(
            **split(n), table_id=w.lake.identities.uuid4(), metadata_location=location("0")
        ),
    ),
    (rf"set {NAME} (\S+)", lambda w, n, kv: update(n, **pair(kv))),
    (rf"unset {NAME} (\S+)", lambda w, n, k: update(n, unset=(k,))),
    (rf"add column {NAME} {NAME}", added),
    (rf"add required {NAME} {NAME}", lambda w, n, c: added(n, c, nullable=False)),
    (rf"drop column {NAME} {NAME}", lambda w, n, c: update(n, drop_columns=(c,))),
    (rf"rename column {NAME} {NAME} {NAME}", lambda w, n, c, new: update(n, rename_columns={c: new})),
    (
        rf"widen column {NAME} {NAME}",
        lambda w, n, c: update(n, retype_columns={c: Column(id=0, name="", type="INT8")}),
    ),
    (
        rf"add column with default {NAME} {NAME}",
        lambda w, n, c: added(n, c, nullable=False, initial_default=b"\1\0\0\0", write_default=b"\1\0\0\0"),
    ),
    (rf"default {NAME} {NAME} (\d)", lambda w, n, c, v: update(n, defaults={c: int(v).to_bytes(4, "little")})),
    (rf"require column {NAME} {NAME}", lambda w, n, c: update(n, nullable_columns={c: False})),
    (rf"order columns {NAME} (\S+)", lambda w, n, names: update(n, column_order=tuple(names.split(",")))),
    (rf"drop table {NAME}", lambda w, n: DropTable(**split(n))),
    # A table that the sentence before has renamed is a.t.
    (rf"append {NAME}", lambda w, n: AppendFiles(**split(n), table_id=w.ids.get(n, w.ids["a.t"]), segments=())),
    (rf"overwrite {NAME}", lambda w, n: OverwriteFiles(**split(n), table_id=w.ids[n], segments=())),
    (rf"empty {NAME}", lambda w, n: OverwriteFiles(**split(n), table_id=w.ids[n], segments=())),
    (rf"rewrite {NAME}", lambda w, n: change(w, ChangeMode.DELETE, n, sources=("all",))),
    (rf"compact {NAME}", lambda w, n: change(w, ChangeMode.COMPACT, n, sources=("all",))),
    (rf"hide {NAME}", lambda w, n: change(w, ChangeMode.DELETE, n, predicates=(ALL,))),
    (rf"move {NAME}", lambda w, n: change(w, ChangeMode.UPDATE, n, predicates=(ALL,), scan=ALL)),
    (
        rf"iceberg {NAME} (\d) (\d)",
        lambda w, n, old, new: CommitIceberg(**split(n), metadata_location=location(new), expected=location(old)),
    ),
    (rf"restore {NAME}", lambda w, n: RestoreTable(**split(n), version=w.alive)),
    (rf"create (bound )?view {NAME}(?: of {NAME})?", lambda w, b, n, base: view(CreateView, w, n, base, b)),
    (rf"replace (bound )?view {NAME}(?: of {NAME})?", lambda w, b, n, base: view(ReplaceView, w, n, base, b)),
    (rf"drop view {NAME}", lambda w, n: DropView(**split(n))),
    (rf"rename table {NAME} {NAME}", lambda w, old, new: rename(Kind.TABLE, old, new)),
    (rf"rename view {NAME} {NAME}", lambda w, old, new: rename(Kind.VIEW, old, new)),
    (rf"undrop table {NAME}(?: {NAME})?", lambda w, old, new: undrop(w, Kind.TABLE, old, new)),
    (
        rf"undrop namespace {NAME}",
        lambda w, n: Undrop(kind=Kind.NAMESPACE, namespace=n, new_namespace=n, version=w.alive),
    ),
    (
        rf"advance {NAME}",
        lambda w, n: AdvancePipeline(
            name=n.split(".")[0], job=n.split(".")[1], pinned_version=0,
            expected_transaction_id=w.last_run if n == "m.j" else "",
        ),
    ),
    (rf"subscribe {NAME}", lambda w, n: CreateSubscription(name=n, subscription_id=w.new_id(n), lease_millis=1000)),
    (rf"unsubscribe {NAME}", lambda w, n: DropSubscription(name=n)),
    (rf"claim {NAME}", lambda w, n: ClaimSubscription(
        name=n, subscription_id=w.new_id(n), expected_epoch=0, expected_position_path="", next_version=0, holder="ann",
        position_path=fmt.position_path(w.lake.identities.uuid4()),
    )),
]  # fmt: skip
SENTENCES = [
    (pattern, (lambda w, *rest, make=make: make(*rest)) if make is added else make)
    for pattern, make in SENTENCES
]

# --- the two tables --------------------------------------------------------------------------------

AGAIN, NEVER = True, False

CONFLICTS = [
    # mine; theirs, committed since mine began; kind; retryable
    ("create namespace n", "create namespace n", "already_exists_now", NEVER),
    ("subscribe n", "subscribe n", "already_exists_now", NEVER),
    ("claim s", "claim s", "subscription_claimed", AGAIN),
    ("claim s", "unsubscribe s", "object_changed", NEVER),
    ("unsubscribe s", "unsubscribe s", "object_changed", NEVER),
    ("create new table a.n", "create new table a.n", "already_exists_now", NEVER),
    ("create new table a.n", "register a.n", "already_exists_now", NEVER),
    ("register a.n", "create new table a.n", "already_exists_now", NEVER),
    ("create view a.n", "create new table a.n", "already_exists_now", NEVER),
    ("create new table a.n", "create view a.n", "already_exists_now", NEVER),
    ("create new table a.n", "rename table a.t a.n", "already_exists_now", NEVER),
    ("create view a.n", "rename table a.t a.n", "already_exists_now", NEVER),
    ("rename table a.t a.n", "create new table a.n", "already_exists_now", NEVER),
    ("rename table a.t a.n", "rename table a.u a.n", "already_exists_now", NEVER),
    ("rename view a.v a.n", "create new table a.n", "already_exists_now", NEVER),
    ("undrop table a.gone", "create new table a.gone", "already_exists_now", NEVER),
    ("create new table a.gone", "undrop table a.gone", "already_exists_now", NEVER),
    ("undrop table a.gone", "undrop table a.gone", "already_exists_now", NEVER),
    ("undrop table a.gone a.y", "undrop table a.gone b.y", "object_changed", NEVER),
    ("undrop namespace c", "create namespace c", "already_exists_now", NEVER),
    ("drop table a.t", "drop table a.t", "object_changed", NEVER),
    ("drop view a.v", "drop view a.v", "object_changed", NEVER),
    ("drop namespace b", "drop namespace b", "object_changed", NEVER),
    ("drop namespace b", "cascade b", "object_changed", NEVER),
    ("drop table a.t", "cascade a", "object_changed", NEVER),
    ("drop table a.t", "rename table a.t a.n", "object_changed", NEVER),
    ("rename table a.t a.n", "drop table a.t", "object_changed", NEVER),
    ("rename table a.t a.n", "rename table a.t a.m", "object_changed", NEVER),
    ("drop table a.t", "drop table a.t; create new table a.t", "object_changed", NEVER),
    # operations that need the object, after its drop
    ("set a.t q=1", "drop table a.t", "object_changed", NEVER),
    ("set a.t q=1", "rename table a.t a.n", "object_changed", NEVER),
    ("set a.t q=1", "cascade a", "object_changed", NEVER),
    ("append a.t", "drop table a.t", "object_changed", NEVER),
    ("append a.t", "drop table a.t; create new table a.t", "object_changed", NEVER),
    ("append a.t", "rename table a.t b.t", "object_changed", NEVER),
    ("overwrite a.t", "drop table a.t", "object_changed", NEVER),
    ("iceberg a.i 0 1", "drop table a.i", "object_changed", NEVER),
    ("restore a.t", "drop table a.t", "object_changed", NEVER),
    ("replace view a.v", "drop view a.v", "object_changed", NEVER),
    ("replace view a.v", "rename view a.v a.n", "object_changed", NEVER),
    ("set namespace b p=1", "drop namespace b", "object_changed", NEVER),
    ("set a.t q=1", "drop table a.t; rename table a.u a.t", "object_changed", NEVER),
    # children of a namespace
    ("drop namespace b", "create new table b.n", "namespace_changed", AGAIN),
    ("drop namespace b", "create view b.n", "namespace_changed", AGAIN),
    ("drop namespace b", "rename table a.t b.t", "namespace_changed", AGAIN),
    ("drop namespace b", "undrop table a.gone b.t", "namespace_changed", AGAIN),
    ("cascade b", "create new table b.n", "namespace_changed", AGAIN),
    ("cascade a", "rename table a.t a.n", "namespace_changed", AGAIN),
    ("create new table b.n", "drop namespace b", "namespace_changed", NEVER),
    ("create view b.n", "cascade b", "namespace_changed", NEVER),
    ("register b.n", "drop namespace b", "namespace_changed", NEVER),
    ("rename table a.t b.t", "drop namespace b", "namespace_changed", NEVER),
    ("undrop table a.gone b.t", "drop namespace b", "namespace_changed", NEVER),
    ("create new table b.n", "drop namespace b; create namespace b", "namespace_changed", NEVER),
    # the definition as a whole
    ("replace view a.v", "replace view a.v", "object_changed", AGAIN),
    ("restore a.t", "set a.t p=1", "object_changed", AGAIN),
    ("restore a.t", "append a.t", "object_changed", AGAIN),
    ("restore a.t", "restore a.t", "object_changed", AGAIN),
    ("restore a.t", "add column a.t n", "object_changed", AGAIN),
    ("set a.t q=1", "restore a.t", "object_changed", AGAIN),
    ("append a.t", "restore a.t", "object_changed", AGAIN),
    ("drop column a.t d", "restore a.t", "object_changed", AGAIN),
    ("restore a.t", "overwrite a.t", "object_changed", AGAIN),
    ("restore a.t", "order columns a.t s,d,c", "object_changed", AGAIN),
    ("restore a.i", "iceberg a.i 0 1", "object_changed", AGAIN),
    # one property
    ("set a.t p=1", "set a.t p=2", "object_changed", AGAIN),
    ("set a.t p=1", "unset a.t p", "object_changed", AGAIN),
    ("unset a.t p", "set a.t p=1", "object_changed", AGAIN),
    ("set namespace a p=1", "set namespace a p=2", "object_changed", AGAIN),
    ("set catalog p=1", "set catalog p=2", "object_changed", AGAIN),
    # one column
    ("drop column a.t d", "drop column a.t d", "object_changed", AGAIN),
    ("drop column a.t d", "rename column a.t d n", "object_changed", AGAIN),
    ("rename column a.t d n", "drop column a.t d", "object_changed", AGAIN),
    ("rename column a.t d n", "rename column a.t d m", "object_changed", AGAIN),
    ("rename column a.t d n", "add column a.t n", "object_changed", AGAIN),
    ("add column a.t n", "rename column a.t d n", "object_changed", AGAIN),
    ("add column a.t n", "add column a.t n", "object_changed", AGAIN),
    ("add column a.t N", "add column a.t n", "object_changed", AGAIN),
    ("widen column a.t d", "drop column a.t d", "object_changed", AGAIN),
    ("widen column a.t d", "widen column a.t d", "object_changed", AGAIN),
    ("add column a.t s.y", "drop column a.t s", "object_changed", AGAIN),
    ("add column a.t s.y", "rename column a.t s n", "object_changed", AGAIN),
    ("drop column a.t s", "add column a.t s.y", "object_changed", AGAIN),
    ("widen column a.t s.x", "rename column a.t s.x y", "object_changed", AGAIN),
    ("default a.t d 1", "default a.t d 2", "object_changed", AGAIN),
    ("default a.t d 1", "default a.t d 1", "object_changed", AGAIN),
    ("default a.t d 1", "drop column a.t d", "object_changed", AGAIN),
    ("drop column a.t d", "default a.t d 1", "object_changed", AGAIN),
    ("default a.t d 1", "rename column a.t d n", "object_changed", AGAIN),
    ("widen column a.t d", "default a.t d 1", "object_changed", AGAIN),
    ("default a.t s.x 1", "drop column a.t s", "object_changed", AGAIN),
    ("restore a.t", "default a.t d 1", "object_changed", AGAIN),
    ("order columns a.t s,d,c", "add column a.t n", "object_changed", AGAIN),
    ("order columns a.t s,d,c", "drop column a.t d", "object_changed", AGAIN),
    ("order columns a.t s,d,c", "rename column a.t d e", "object_changed", AGAIN),
    ("order columns a.e s,d,c", "add required a.e n", "object_changed", AGAIN),
    ("order columns a.t s,d,c", "order columns a.t d,s,c", "object_changed", AGAIN),
    ("require column a.e d", "append a.e", "object_changed", NEVER),
    ("add required a.e n", "append a.e", "object_changed", NEVER),
    ("add required a.e n", "overwrite a.e", "object_changed", NEVER),
    ("add column a.t n; append a.t", "add column a.t m", "column_ids_moved", AGAIN),
    ("append a.t; add column a.t n", "add column a.t m", "column_ids_moved", AGAIN),
    ("add column a.t n; overwrite a.t", "add column a.t s.m", "column_ids_moved", AGAIN),
    ("rename column a.t d e; append a.t", "rename column a.t c n", "object_changed", AGAIN),
    ("append a.t; rename column a.t d e", "rename column a.t c n", "object_changed", AGAIN),
    ("rename column a.t d e; move a.t", "add column a.t n", "object_changed", AGAIN),
    ("widen column a.t d; overwrite a.t", "default a.t c 1", "object_changed", AGAIN),
    ("drop column a.t d; append a.t", "order columns a.t s,d,c", "object_changed", AGAIN),
    ("add column a.t n; rename table a.t a.m; append a.m", "add column a.t m", "column_ids_moved", AGAIN),
    (
        "rename column a.t d e; rename table a.t a.m; append a.m",
        "rename column a.t c n",
        "object_changed",
        AGAIN,
    ),
    # files
    ("overwrite a.t", "append a.t", "object_changed", AGAIN),
    ("overwrite a.t", "overwrite a.t", "object_changed", AGAIN),
    ("empty a.t", "append a.t", "object_changed", AGAIN),
    ("overwrite a.t", "rewrite a.t", "object_changed", AGAIN),
    ("overwrite a.t", "hide a.t", "object_changed", AGAIN),
    ("hide a.t", "rewrite a.t", "rows_changed", AGAIN),
    ("move a.t", "empty a.t", "rows_changed", AGAIN),
    ("hide a.t", "restore a.t", "object_changed", AGAIN),
    ("restore a.t", "rewrite a.t", "object_changed", AGAIN),
    ("restore a.t", "hide a.t", "object_changed", AGAIN),
    ("restore a.t", "compact a.t", "object_changed", AGAIN),
    ("move a.t", "drop column a.t d", "object_changed", AGAIN),
    ("require column a.e d", "move a.e", "object_changed", NEVER),
    ("append a.t", "drop column a.t d", "object_changed", AGAIN),
    ("append a.t", "widen column a.t d", "object_changed", AGAIN),
    ("append a.e", "require column a.e d", "object_changed", AGAIN),
    ("append a.e", "add required a.e n", "object_changed", AGAIN),
    ("overwrite a.t", "drop column a.t d", "object_changed", AGAIN),
    ("iceberg a.i 0 1", "iceberg a.i 0 2", "metadata_moved", AGAIN),
    # views with schema binding
    ("create bound view a.n of a.t", "drop table a.t", "object_changed", NEVER),
    ("create bound view a.n of a.t", "rename table a.t a.m", "object_changed", NEVER),
    ("create bound view a.n of a.t", "drop column a.t d", "object_changed", AGAIN),
    ("create bound view a.n of a.t", "widen column a.t d", "object_changed", AGAIN),
    ("create bound view a.n of a.t", "order columns a.t s,d,c", "object_changed", AGAIN),
    ("create bound view a.n of a.t", "restore a.t", "object_changed", AGAIN),
    ("create bound view a.n of a.v", "replace view a.v", "object_changed", AGAIN),
    ("create bound view a.n of a.v", "drop view a.v", "object_changed", NEVER),
    ("replace bound view a.v of a.t", "drop column a.t d", "object_changed", AGAIN),
    ("replace bound view a.v of a.t", "drop table a.t", "object_changed", NEVER),
    ("drop table a.t", "create bound view a.n of a.t", "object_changed", NEVER),
    ("rename table a.t a.m", "create bound view a.n of a.t", "object_changed", NEVER),
    ("drop column a.t d", "replace bound view a.v of a.t", "object_changed", NEVER),
    ("order columns a.t s,d,c", "create bound view a.n of a.t", "object_changed", NEVER),
    ("drop view a.v", "create bound view a.n of a.v", "object_changed", NEVER),
    ("replace view a.v", "create bound view a.n of a.v", "object_changed", AGAIN),
    # pipelines
    ("advance m.j", "advance m.j", "position_moved", AGAIN),
    ("advance m.k", "advance m.k", "position_moved", AGAIN),
    # objects that the transaction itself renamed or made
    ("rename table a.t a.n; set a.n p=1", "set a.t p=2", "object_changed", AGAIN),
    ("set a.u q=1; append a.t", "set a.t r=1; drop column a.t d", "object_changed", AGAIN),
    # reads of a serializable transaction
    ("set catalog r=1; read exists table a.t", "drop table a.t", "read_changed", AGAIN),
    ("set catalog r=1; read exists table a.t", "rename table a.t a.n", "read_changed", AGAIN),
    ("set catalog r=1; read exists table a.n", "rename table a.t a.n", "read_changed", AGAIN),
    ("set catalog r=1; read exists table a.n", "create new table a.n", "read_changed", AGAIN),
    ("set catalog r=1; read exists namespace n", "create namespace n", "read_changed", AGAIN),
    ("set catalog r=1; read exists view a.v", "drop view a.v", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "set a.t q=1", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "append a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "add column a.t n", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "create bound view a.n of a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "cascade a", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.f", "drop view a.x", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.f", "replace view a.x of a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "overwrite a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "default a.t d 1", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "order columns a.t s,d,c", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "rewrite a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.t", "hide a.t", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.n", "create new table a.n", "read_changed", AGAIN),
    ("set catalog r=1; read describe table a.i", "iceberg a.i 0 1", "read_changed", AGAIN),
    ("set catalog r=1; read describe namespace a", "set namespace a q=1", "read_changed", AGAIN),
    ("set catalog r=1; read describe view a.v", "replace view a.v", "read_changed", AGAIN),
    ("set a.t q=1; read describe catalog", "set catalog q=1", "read_changed", AGAIN),
    ("set catalog r=1; read describe pipeline m", "advance m.k", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace a", "create new table a.n", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace a", "drop table a.t", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace a", "rename table a.t b.t", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace b", "rename table a.t b.t", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace b", "undrop table a.gone b.t", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace b", "drop namespace b", "read_changed", AGAIN),
    ("set catalog r=1; read tables namespace a n", "create new table a.n1", "read_changed", AGAIN),
    ("set catalog r=1; read views namespace a", "create view a.n", "read_changed", AGAIN),
    ("set catalog r=1; read namespaces", "create namespace n", "read_changed", AGAIN),
    ("set catalog r=1; read namespaces", "drop namespace b", "read_changed", AGAIN),
    ("set catalog r=1; read namespaces", "undrop namespace c", "read_changed", AGAIN),
    ("set catalog r=1; read pipelines", "advance n.j", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "append a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "empty a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "rewrite a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "hide a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "add column a.t n", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "restore a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "order columns a.t s,d,c", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.n", "create new table a.n", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t", "drop table a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t c", "append a.t", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t D", "drop column a.t d", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.t s", "widen column a.t s.x", "read_changed", AGAIN),
    ("set catalog r=1; read select table a.i", "iceberg a.i 0 1", "read_changed", AGAIN),
    ("append a.t; read select table a.t", "append a.t", "read_changed", AGAIN),
    ("rename table a.t a.n; read select table a.n", "append a.t", "read_changed", AGAIN),
    (
        "rename table a.t a.n; rename table a.n b.n; read describe table b.n",
        "set a.t q=1",
        "read_changed",
        AGAIN,
    ),
    ("rename view a.v a.n; read describe view a.n", "replace view a.v", "read_changed", AGAIN),
    ("drop table a.t; read describe table a.t", "append a.t", "read_changed", AGAIN),
]

# Mine names an object that was made after mine began: its author did not see it. In one group the object does not exist
# yet.
MADE_SINCE = [
    ("set a.n q=1", "create new table a.n", "object_changed", AGAIN),
    ("drop table a.n", "create new table a.n", "object_changed", AGAIN),
    ("drop namespace n", "create namespace n", "object_changed", AGAIN),
    ("claim n", "subscribe n", "object_changed", AGAIN),
    ("unsubscribe n", "subscribe n", "object_changed", AGAIN),
    ("rename table a.n a.m", "rename table a.t a.n", "object_changed", AGAIN),
    ("replace view a.n", "create view a.n", "object_changed", AGAIN),
    ("create bound view a.n of a.m", "create new table a.m", "object_changed", AGAIN),
]

NO_CONFLICTS = [
    # mine; theirs
    ("create namespace n", "create namespace m"),
    ("create new table a.n", "create new table a.m"),
    ("create new table a.n", "create new table b.n"),
    ("create new table a.n", "set namespace a q=1"),
    ("create new table a.t", "drop table a.t"),
    ("create new table a.t", "rename table a.t a.n"),
    ("create namespace b", "drop namespace b"),
    ("create new table a.n", "create new table a.n; drop table a.n"),
    ("drop namespace b", "set namespace b q=1"),
    ("drop namespace b", "create new table b.n; drop table b.n"),
    ("cascade a", "append a.t"),
    ("cascade a", "drop table a.t"),
    ("cascade a", "rename table a.t b.t"),
    # a blind drop or rename of an object that another transaction changed
    ("drop table a.t", "set a.t q=1"),
    ("drop table a.t", "append a.t"),
    ("drop table a.t", "drop column a.t d"),
    ("drop table a.t", "restore a.t"),
    ("drop table a.i", "iceberg a.i 0 1"),
    ("drop view a.v", "replace view a.v"),
    ("rename table a.t a.n", "append a.t"),
    ("rename table a.t a.n", "set a.t q=1"),
    ("rename table a.t a.n", "restore a.t"),
    ("rename view a.v a.n", "replace view a.v"),
    # properties and columns
    ("set a.t p=1", "set a.t p=1"),
    ("unset a.t p", "unset a.t p"),
    ("set a.t q=1", "set a.t r=2"),
    ("set a.t q=1", "append a.t"),
    ("set a.t q=1", "drop column a.t d"),
    ("set a.t q=1", "create bound view a.n of a.t"),
    ("set catalog q=1", "set catalog r=1"),
    ("set namespace a q=1", "create new table a.n"),
    ("set namespace a q=1", "set namespace b q=2"),
    ("default a.t d 1", "default a.t s.x 1"),
    ("default a.t d 1", "append a.t"),
    ("default a.t d 1", "order columns a.t s,d,c"),
    ("default a.t d 1", "create bound view a.n of a.t"),
    ("default a.t d 1", "drop column a.t s"),
    ("default a.t d 1", "set a.t q=1"),
    ("append a.t", "default a.t d 1"),
    ("overwrite a.t", "default a.t d 1"),
    ("append a.t", "add column with default a.t n"),
    ("order columns a.t s,d,c", "default a.t d 1"),
    ("order columns a.t s,d,c", "widen column a.t d"),
    ("order columns a.e s,d,c", "require column a.e d"),
    ("create bound view a.n of a.t", "default a.t d 1"),
    ("set catalog r=1; read select table a.t", "default a.t d 1"),
    ("add column with default a.t n", "append a.t"),
    ("add column a.t n", "add column a.t m"),
    ("add column a.t s.n", "add column a.t s.m"),
    ("add column a.t n", "drop column a.t d"),
    ("add column a.t n", "append a.t"),
    ("add column a.t n", "order columns a.t s,d,c"),
    ("add column a.t n", "create bound view a.n of a.t"),
    ("drop column a.t d", "rename column a.t c n"),
    ("drop column a.t d", "append a.t"),
    ("widen column a.t d", "set a.t q=1"),
    ("require column a.e d", "empty a.e"),
    # files
    ("append a.t", "append a.t"),
    ("append a.t", "overwrite a.t"),
    ("append a.t", "empty a.t"),
    ("append a.t", "set a.t p=1"),
    ("append a.t", "add column a.t n"),
    ("append a.t", "rename column a.t d n"),
    ("append a.t", "order columns a.t s,d,c"),
    ("append a.t", "create bound view a.n of a.t"),
    ("append a.t", "drop table a.u"),
    ("overwrite a.t", "set a.t p=1"),
    ("overwrite a.t", "append a.u"),
    ("iceberg a.i 0 1", "set a.i p=1"),
    ("set a.i p=1", "iceberg a.i 0 1"),
    # views
    ("create view a.n of a.t", "drop table a.t"),
    ("create bound view a.n of a.t", "append a.t"),
    ("create bound view a.n of a.t", "add column a.t n"),
    ("create bound view a.n of a.t", "set a.t q=1"),
    ("create bound view a.n of a.t", "create bound view a.m of a.t"),
    ("create bound view a.n of a.t", "drop column a.u d"),
    ("replace view a.v", "replace view a.w"),
    ("replace view a.v of a.t", "drop table a.t"),
    ("drop table a.f", "drop view a.x"),
    ("rename table a.f a.n", "drop view a.x"),
    ("drop column a.f d", "replace view a.x of a.t"),
    # undrop
    ("undrop table a.gone", "append a.t"),
    ("undrop namespace c", "undrop table a.gone"),
    ("append a.t", "hide a.t"),
    ("append a.t", "rewrite a.t"),
    ("append a.t", "compact a.t"),
    ("hide a.t", "hide a.t"),
    ("hide a.t", "append a.t"),
    ("hide a.t", "overwrite a.t"),
    ("hide a.t", "compact a.t"),
    ("overwrite a.t", "compact a.t"),
    ("compact a.t", "append a.t"),
    ("rewrite a.t", "append a.t"),
    ("set a.t q=1", "rewrite a.t"),
    # pipelines
    ("advance m.k", "advance m.j"),
    ("advance n.k", "advance n.j"),
    ("advance m.j", "append a.t"),
    ("subscribe n", "subscribe m"),
    ("unsubscribe s", "claim s"),
    ("subscribe n; claim n", "claim s"),
    # objects that the transaction itself made
    ("drop table a.t; create new table a.t; set a.t p=1", "set a.t p=2"),
    ("create namespace n; create new table n.t", "create new table a.n"),
    # reads
    ("set catalog r=1; read exists table a.t", "append a.t"),
    ("set catalog r=1; read exists table a.t", "set a.t q=1"),
    ("set catalog r=1; read exists view a.n", "create new table a.n"),
    ("set catalog r=1; read exists namespace a", "create new table a.n"),
    ("set catalog r=1; read describe namespace a", "create new table a.n"),
    ("set catalog r=1; read describe table a.t", "append a.u"),
    ("set catalog r=1; read describe table a.t", "create view a.n of a.t"),
    ("set catalog r=1; read describe catalog", "create namespace n"),
    ("set catalog r=1; read tables namespace a", "append a.t"),
    ("set catalog r=1; read tables namespace a", "create view a.n"),
    ("set catalog r=1; read tables namespace a", "create new table b.n"),
    ("set catalog r=1; read tables namespace a", "create new table a.n; drop table a.n"),
    ("set catalog r=1; read tables namespace a n", "create new table a.m"),
    ("set catalog r=1; read namespaces", "advance n.j"),
    ("set catalog r=1; read namespaces", "set namespace a q=1"),
    ("set catalog r=1; read pipelines", "advance m.k"),
    ("set catalog r=1; read select table a.t", "set a.t q=1"),
    ("set catalog r=1; read select table a.t c", "drop column a.t d"),
    ("set catalog r=1; read select table a.t c", "add column a.t n"),
    ("set catalog r=1; read select table a.t c", "order columns a.t s,d,c"),
    ("set catalog r=1; read select table a.t", "append a.u"),
    ("set catalog r=1; read select table a.t", "compact a.t"),
    ("set catalog r=1; read describe table a.t", "compact a.t"),
]


async def told(
    mine: str, theirs: str, ways: tuple[str, ...] = ("journals", "group")
) -> list[Committed | AlpheusError]:
    """Return the answers to mine after theirs committed: from another journal, and in one group."""
    answers: list[Committed | AlpheusError] = []
    for grouped in [way == "group" for way in ways]:
        world = await World.make()
        journal = world.journal
        me = await world.transaction(mine)
        they = await world.transaction(theirs, begin=me.begin_version)
        if grouped:
            first, answer = await journal.commit_group([they, me])
            assert isinstance(first, Committed), first
            if answer is None:
                (answer,) = await journal.commit_group([me])
            assert answer is not None
        else:
            await (await world.lake.open()).commit(they)
            try:
                answer = await journal.commit(me)
            except AlpheusError as error:
                answer = error
        answers.append(answer)
        if grouped:
            found = [item async for item in journal.check(after=me.begin_version)]
            assert isinstance(found[0], CheckSummary), found
    return answers


@pytest.mark.parametrize(("mine", "theirs", "kind", "retryable"), CONFLICTS)
async def test_pairs_that_conflict(mine: str, theirs: str, kind: str, retryable: bool) -> None:
    for answer in await told(mine, theirs):
        assert isinstance(answer, Conflict), answer
        assert (answer.kind, answer.retryable) == (kind, retryable), answer
        assert answer.principal == "bob"
        assert answer.transaction_id in answer.message
        for text in (answer.mine, answer.theirs, "bob", f"version {answer.version}", "2027-01-15T"):
            assert text in answer.message
        assert answer.committed_at_millis


@pytest.mark.parametrize(("mine", "theirs", "kind", "retryable"), MADE_SINCE)
async def test_what_was_made_since_it_began(mine: str, theirs: str, kind: str, retryable: bool) -> None:
    (answer,) = await told(mine, theirs, ("journals",))
    assert isinstance(answer, Conflict), answer
    assert (answer.kind, answer.retryable) == (kind, retryable), answer
    (answer,) = await told(mine, theirs, ("group",))
    assert isinstance(answer, NotFound), answer


@pytest.mark.parametrize(("mine", "theirs"), NO_CONFLICTS)
async def test_pairs_that_do_not_conflict(mine: str, theirs: str) -> None:
    for answer in await told(mine, theirs):
        assert isinstance(answer, Committed), answer


async def recorded_pair(world: World, mine: str, theirs: str) -> tuple[Transaction, RecordedTransaction]:
    me = await world.transaction(mine)
    they = await world.transaction(theirs, begin=me.begin_version)
    committed = await world.journal.commit(they)
    (recorded,) = (await world.journal.event(committed.version)).transactions
    return me, recorded


def rules_that_hit(me: Transaction, recorded: RecordedTransaction) -> set[tuple[Stake, Aspect]]:
    """Return the rules that apply, found by comparing every claim with every touch."""
    return {
        (claim.stake, touch.aspect)
        for claim in claims_of(me)
        for _, touch in touches_of(recorded)
        if claim.name == touch.name
        and (claim.stake, touch.aspect) in RULES
        and RULES[claim.stake, touch.aspect].collides(claim, touch)
    }


async def test_the_rules_that_the_pairs_rest_on_are_all_there_are() -> None:
    """Each rule has a pair above, and the quick way by facets finds every conflict of the full comparison."""
    hit = set()
    for mine, theirs, *expected in [*CONFLICTS, *MADE_SINCE, *NO_CONFLICTS]:
        me, recorded = await recorded_pair(await World.make(), mine, theirs)
        found = rules_that_hit(me, recorded)
        hit |= found
        assert bool(found) == bool(expected), (mine, theirs)
        stakes, touches = Stakes(me), Touches(recorded)
        assert (stakes.conflict(touches, 9) is not None) == bool(expected)
        if expected:
            assert stakes.facets & touches.facets, (mine, theirs)
        group = Group()
        group.add(Touches(recorded))
        assert (group.conflict(stakes, 9) is not None) == bool(expected)
    others = {(Stake.JOB, Aspect.WHOLE), (Stake.JOB, Aspect.DROPPED), (Stake.HOLDER, Aspect.WHOLE)}
    assert set(RULES) - hit == others, "only other writers make these touches"


# --- describing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("set catalog a=b", "update the catalog"),
        ("drop table a.t", "drop table a.t"),
        ("append a.t", "append to table a.t"),
        ("empty a.t", "overwrite table a.t"),
        ("hide a.t", "delete from table a.t"),
        ("move a.t", "update table a.t"),
        ("compact a.t", "compact table a.t"),
        ("rename table a.t b.u", "rename table a.t to b.u"),
        ("undrop table a.gone", "bring back table a.gone"),
        ("undrop table a.gone b.t", "bring back table a.gone as b.t"),
        ("iceberg a.i 0 1", "move the metadata pointer of table a.i"),
        ("advance m.j", "advance job m.j"),
    ],
)
async def test_operations_in_words(sentence: str, text: str) -> None:
    (operation,) = (await (await World.make()).transaction(sentence)).operations
    assert describe(operation) == text


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("read tables namespace a", "listed the tables of namespace a"),
        ("read views namespace a x", "listed the views of namespace a that begin with 'x'"),
        ("read namespaces", "listed the namespaces"),
        ("read pipelines", "listed the pipelines"),
        ("read exists table a.t", "looked for table a.t"),
        ("read describe catalog", "read the definition of the catalog"),
        ("read select table a.t c d", "read rows of table a.t"),
    ],
)
async def test_reads_in_words(sentence: str, text: str) -> None:
    (read,) = (await (await World.make()).transaction(sentence)).reads
    assert describe_read(read) == text


async def test_a_conflict_says_all() -> None:
    me, recorded = await recorded_pair(await World.make(), "append a.t", "set a.t p=9; drop table a.t")
    conflict = conflict_with_transaction(me, recorded, 7)
    assert conflict is not None
    assert str(conflict) == (
        f"cannot append to table a.t: since version 6, where this transaction began, bob committed: drop table a.t"
        f" (version 7, 2027-01-15T08:00:05Z, transaction {recorded.id})"
        " (bring the dropped object back or create it again, then run this again)"
    )
    assert (conflict.mine, conflict.theirs) == ("append to table a.t", "drop table a.t")
    me, recorded = await recorded_pair(
        await World.make(), "set catalog q=1; read tables namespace a", "drop table a.t"
    )
    conflict = conflict_with_transaction(me, recorded, 7)
    assert conflict is not None
    assert str(conflict).startswith(
        "cannot commit: this transaction listed the tables of namespace a, at version 6; since then bob committed:"
        " drop table a.t (version 7, "
    )
    assert conflict.hint == "run it again from the newest version"


@pytest.mark.parametrize(
    ("mine", "theirs", "hint"),
    [
        ("set a.t p=1", "set a.t p=2", "run it again"),
        ("create new table a.n", "create new table a.n", "another name"),
        ("append a.t", "rename table a.t b.n", "use its new name, b.n"),
        ("drop table a.t", "drop table a.t", "dropped already"),
        ("create new table b.n", "drop namespace b", "create the namespace"),
        ("drop table a.t", "create bound view a.n of a.t", "drop the view"),
        ("require column a.e d", "append a.e", "cannot succeed as it is"),
    ],
)
async def test_a_conflict_says_what_to_do(mine: str, theirs: str, hint: str) -> None:
    conflict = conflict_with_transaction(*await recorded_pair(await World.make(), mine, theirs), 7)
    assert conflict is not None
    assert hint in conflict.hint


# --- cancelling ------------------------------------------------------------------------------------

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"


def recorded_of(*actions: Action, id: str = OTHER) -> RecordedTransaction:
    return RecordedTransaction(
        id=id, operations_digest=b"", principal="", principal_authenticated=False, message="", properties={},
        serializable=False, branch="", begin_version=0, committed_at_millis=1 << 62, actions=actions,
    )  # fmt: skip


def test_cancelling() -> None:
    create = CreateNamespace(name="a", namespace_id=ID)
    cancels = recorded_of(
        Action(type="TRANSACTION_CANCEL", name=fmt.CATALOG, operation=CancelTransaction(transaction_id=ID))
    )
    mine = Transaction(id=ID, begin_version=0, operations=(create,))
    conflict = conflict_with_transaction(mine, cancels, 1)
    assert conflict is not None
    assert not conflict.retryable
    cancel = Transaction(id=ID, begin_version=0, operations=(CancelTransaction(transaction_id=OTHER),))
    created = Action(type="NAMESPACE_CREATE", name=create.target, operation=create, path_after="n1")
    conflict = conflict_with_transaction(cancel, recorded_of(created), 1)
    assert conflict is not None
    assert (conflict.transaction_id, conflict.retryable) == (OTHER, False)
    # The two transactions touch neither the catalog's definition nor each other.
    update = UpdateCatalog(set={"a": "b"})
    updated = Action(
        type="CATALOG_ALTER", name=fmt.CATALOG, operation=update, path_before="c0", path_after="c1"
    )
    assert conflict_with_transaction(cancel, recorded_of(updated, id=ID), 1) is None
    other = Transaction(id=OTHER[:-1] + "9", begin_version=0, operations=(update,))
    assert conflict_with_transaction(other, cancels, 1) is None
    for transaction, rival in ((mine, cancels), (cancel, recorded_of(created))):
        group = Group()
        group.add(Touches(rival))
        assert group.conflict(Stakes(transaction), 1) is not None


# --- versions of other writers ---------------------------------------------------------------------


def foreign(
    *changes: tuple[ObjectName, str, str], transactions: tuple[RecordedTransaction, ...] = ()
) -> Event:
    return Event(
        version=3, created_at_millis=1, token="", transactions=transactions,
        changes=tuple(
            Change(
                name=name, path_before=before, path_after=after,
                type="created" if not before else "updated" if after else "dropped",
            )
            for name, before, after in changes
        ),
    )  # fmt: skip


def view_name(namespace: str, name: str) -> ObjectName:
    return ObjectName(Kind.VIEW, namespace, name)


FOREIGN = [
    ("set a.t q=1", (fmt.table_name("a", "t"), "t1", "t2"), "object_changed", True),
    ("set a.t q=1", (fmt.table_name("a", "t"), "t1", ""), "object_changed", False),
    ("append a.t", (fmt.table_name("a", "t"), "t1", "t2"), "object_changed", True),
    ("restore a.t", (fmt.table_name("a", "t"), "t1", "t2"), "object_changed", True),
    ("drop table a.t", (fmt.table_name("a", "t"), "t1", "t2"), "", True),
    ("drop table a.t", (fmt.table_name("a", "t"), "t1", ""), "object_changed", False),
    ("create new table a.t", (fmt.table_name("a", "t"), "", "t1"), "already_exists_now", False),
    ("create new table a.t", (view_name("a", "t"), "", "v1"), "already_exists_now", False),
    ("create new table a.t", (fmt.namespace_name("a"), "n1", ""), "namespace_changed", False),
    ("create new table a.t", (fmt.namespace_name("a"), "n1", "n2"), "", True),
    ("drop namespace a", (fmt.table_name("a", "t"), "", "t1"), "namespace_changed", True),
    ("drop namespace a", (view_name("a", "v"), "", "v1"), "namespace_changed", True),
    ("drop namespace a", (fmt.table_name("a", "t"), "t1", "t2"), "", True),
    ("drop namespace a", (fmt.table_name("ab", "t"), "", "t1"), "", True),
    ("set catalog q=1", (fmt.CATALOG, "c0", "c1"), "object_changed", True),
    ("advance m.j", (fmt.pipeline_name("m"), "p0", "p1"), "position_moved", True),
    ("advance m.j", (fmt.pipeline_name("m"), "p0", ""), "position_moved", True),
    ("create bound view a.n of a.t", (fmt.table_name("a", "t"), "t1", "t2"), "object_changed", True),
    ("set catalog r=1; read describe table a.t", (fmt.table_name("a", "t"), "t1", "t2"), "read_changed", True),
    ("set catalog r=1; read select table a.t c", (fmt.table_name("a", "t"), "t1", "t2"), "read_changed", True),
    ("set catalog r=1; read exists table a.t", (fmt.table_name("a", "t"), "t1", "t2"), "", True),
    ("set catalog r=1; read tables namespace a", (fmt.table_name("a", "n"), "", "t1"), "read_changed", True),
    ("set catalog r=1; read namespaces", (fmt.namespace_name("n"), "", "n1"), "read_changed", True),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "change", "kind", "retryable"), FOREIGN)
async def test_versions_of_other_writers(
    mine: str, change: tuple[ObjectName, str, str], kind: str, retryable: bool
) -> None:
    me = await (await World.make()).transaction(mine)
    unknown = Action(type="UNKNOWN_999", name=fmt.CATALOG, operation=None)
    known = Action(
        type="TRANSACTION_CANCEL", name=fmt.CATALOG, operation=CancelTransaction(transaction_id=OTHER)
    )
    # Versions of another writer, and of a newer revision: none or not all of their operations are known here.
    for transactions in (
        (), (recorded_of(unknown),), (recorded_of(known, unknown),), (recorded_of(unknown, known),),
        (recorded_of(known), recorded_of(unknown)), (recorded_of(unknown), recorded_of(known)),
    ):  # fmt: skip
        event = foreign(change, transactions=transactions)
        conflict = conflict_with_event(me, event)
        touched = Stakes(me).facets & event_facets(event)
        if not kind:
            assert conflict is None
            continue
        assert touched
        assert conflict is not None
        assert (conflict.kind, conflict.retryable, conflict.version) == (kind, retryable, 3)
        assert "version 3" in str(conflict)
        assert conflict.principal == "another writer"
        assert not conflict.transaction_id


# --- the prefilter ---------------------------------------------------------------------------------


async def test_the_prefilter_misses_nothing(lane_count: Callable[[int, int], int]) -> None:
    """Whatever two transactions do, a conflict in the full comparison has a common facet."""
    rng = random.Random(5)
    world = await World.make()
    mines = [pair[0] for pair in [*CONFLICTS, *NO_CONFLICTS, *FOREIGN]]
    transactions = [await world.transaction(sentences) for sentences in mines]
    recorded = []
    for _mine, theirs, *_ in [*CONFLICTS, *MADE_SINCE, *NO_CONFLICTS]:
        recorded.append((await recorded_pair(await World.make(), "set catalog z=1", theirs))[1])
    hits = 0
    for _ in range(lane_count(300, 20_000)):
        chosen = rng.sample(transactions, rng.randrange(1, 5))
        me = Transaction(
            id=ID, begin_version=0, serializable=True,
            operations=tuple(o for t in chosen for o in t.operations),
            reads=tuple(r for t in chosen for r in t.reads),
        )  # fmt: skip
        parts = rng.sample(recorded, rng.randrange(1, 4))
        they = recorded_of(*(action for part in parts for action in part.actions))
        expected = bool(rules_that_hit(me, they))
        stakes = Stakes(me)
        hits += expected
        assert (stakes.conflict(Touches(they), 1) is not None) == expected
        if expected:
            assert stakes.facets & event_facets(foreign(transactions=(they,)))
    assert hits


async def test_the_window_names_only_versions_that_concern() -> None:
    """The search skips thousands of unrelated versions between begin and head."""
    world = await World.make()
    journal, begin = world.journal, world.journal.head.version
    for number in range(50):
        await world.commit(f"create namespace z{number}; append a.u; advance z.j{number}")
    await world.commit("set a.t p=5")
    stakes = Stakes(await world.transaction("set a.t p=6", begin=begin))
    assert list(journal.follower.find_concerning(stakes)) == [begin + 51]
    stakes = Stakes(await world.transaction("set a.t q=6; create new table a.n", begin=begin))
    assert list(journal.follower.find_concerning(stakes)) == []
    stakes = Stakes(await world.transaction("advance z.j3; append a.u", begin=begin))
    assert list(journal.follower.find_concerning(stakes)) == [begin + 4]
    stakes = Stakes(await world.transaction("set catalog z=1; read namespaces", begin=begin))
    assert len(journal.follower.find_concerning(stakes)) == 50


# --- reads that are not possible -------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        Read(type="TABLE_DROP", name=fmt.table_name("a", "t")),
        Read(type="TABLE_EXISTS", name=fmt.namespace_name("a")),
        Read(type="TABLE_EXISTS", name=fmt.table_name("a", "x" * 101)),
        Read(type="TABLE_EXISTS", name=fmt.table_name("a", "t"), prefix="p"),
        Read(type="TABLE_EXISTS", name=fmt.table_name("a", "t"), columns=("c",)),
        Read(type="TABLE_SELECT", name=fmt.table_name("a", "t"), columns=("",)),
        Read(type="TABLE_SELECT", name=fmt.table_name("a", "t"), columns=("c" * 5000,)),
        Read(type="TABLE_SELECT", name=fmt.table_name("a", "t"), columns=("\ud800",)),
        Read(type="CATALOG_DESCRIBE", name=ObjectName(Kind.CATALOG, "a")),
        Read(type="NAMESPACE_SHOW_TABLES", name=fmt.namespace_name("a"), prefix="p" * 101),
    ],
)
async def test_reads_that_cannot_be(read: Read) -> None:
    world = await World.make()
    id = world.lake.identities.uuid7()
    transaction = Transaction(
        id=id, begin_version=0, operations=(UpdateCatalog(set={"a": "b"}),), serializable=True, reads=(read,)
    )
    await raises(InvalidInput, world.journal.commit(transaction))


async def test_reads_belong_to_serializable_transactions_and_are_bounded() -> None:
    world = await World.make()
    read = Read(type="TABLE_EXISTS", name=fmt.table_name("a", "t"))
    set_ = UpdateCatalog(set={"a": "b"})
    begin = world.journal.head.version
    for serializable, reads in ((False, (read,)), (True, (read,) * 10_001)):
        id = world.lake.identities.uuid7()
        transaction = Transaction(
            id=id, begin_version=begin, operations=(set_,), serializable=serializable, reads=reads
        )
        await raises(InvalidInput, world.journal.commit(transaction))
    transaction = await world.transaction(
        "set catalog r=1; read exists table a.t; read select table a.t c; read tables namespace a x"
    )
    committed = await world.journal.commit(transaction)
    (recorded,) = (await (await world.lake.open()).event(committed.version)).transactions
    assert (recorded.serializable, recorded.reads) == (True, transaction.reads)


async def test_transactions_of_an_event_with_known_actions_are_its_own() -> None:
    world = await World.make()
    committed = await world.commit("set a.t q=1")
    event = await world.journal.event(committed.version)
    assert list(transactions_of(event)) == list(event.transactions)
