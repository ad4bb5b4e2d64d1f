"""The requests of clients of a simulated catalog: random transactions over few names, and the results of their reads.

In addition to the operations of `random_operation` there are: rows, changes of rows (`models.tables`), reads of
serializable transactions, idempotency keys, and writers with sequences. All of these collide often.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import AlreadyExists, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.log.pins import create_pin
from alpheus_journal.log.versions import Log
from alpheus_journal.model.definitions import PartitionField, SortField
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    CreateNamespace,
    CreateTable,
    CreateTag,
    DropTable,
    DropTag,
    Operation,
    OverwriteFiles,
    Read,
    RenameObject,
    ReplaceTag,
    Transaction,
    Undrop,
    UpdateNamespace,
    UpdateTable,
    Writer,
)
from alpheus_journal.model.table_starts import find_lacking
from alpheus_journal.storage import Storage
from alpheus_journal.testing.models.catalog import Model, ModelTable, Past, put_rows
from alpheus_journal.testing.models.random_operations import random_operation
from alpheus_journal.testing.models.reachable import starts_at
from alpheus_journal.testing.models.tables import (
    ID,
    LETTERS,
    LEVEL,
    PART,
    TAG,
    Author,
    Contents,
    Meant,
    columns_of_rows,
    random_change,
)
from alpheus_journal.testing.simulation.history import apply_operations

WRITER_RATE = 0.6
"""The share of transactions with rows that have a writer."""

_KEYS_COUNT = 6
_SHORT = "short"
_UNDROP_RATE = 0.3
"""The share of undrops among operations if an object was dropped since a version that the client knows."""
_TAG_RATE = 0.04
"""The share of changes of tags among operations without rows."""
_WRITERS = ("w0", "w1", "w2")
_NAMESPACES = ("a", "b", "ü-é")
_NAMES = ("x", "y", "名𝄞")
_LAKE = "lake"
_LAKE_NAMES = ("r", "s")
"""The names of tables whose rows change, unless they were renamed."""
_OF_NAMES = ("no_table", "no_namespace", "table_exists", "object_exists", "object_bound", "table_replaced")


TakeLease = Callable[[str, int], Awaitable[str]]
"""Takes a lease for a transaction of this id, on a version. Returns its path; nothing without a lease."""


class Requests:
    """Makes the transactions of one world.

    Data files go to `storage` directly and without faults, because clients are responsible for their existence.
    """

    def __init__(
        self,
        rng: random.Random,
        identities: Identities,
        storage: Storage,
        *,
        names_fresh_rate: float,
        rows_rate: float,
        reads_rate: float,
        key_rate: float,
        changes: str = LETTERS,
        short_rate: float = 0.0,
    ) -> None:
        self._rng = rng
        self._identities = identities
        self._storage = storage
        self._names_fresh_rate = names_fresh_rate
        self._rows_rate = rows_rate
        self._reads_rate = reads_rate
        self._key_rate = key_rate
        self._changes = changes
        self._short_rate = short_rate
        self._sequences = dict.fromkeys(_WRITERS, 0)
        self.contents = Contents(storage, identities)
        self.lake_ids: set[str] = set()
        """The ids of tables whose rows change. Only authors write to these."""
        self.meant: dict[str, Meant] = {}
        """The intents of authors, by id of the transaction."""

    async def transaction(
        self, model: Model, begin: int, past: Past, lease: TakeLease | None = None
    ) -> Transaction:
        """Make a transaction that began at version `begin`, which held `model`. `lease` may take a lease for it."""
        rng = self._rng
        id = self._identities.uuid7()
        lease_path = await lease(id, begin) if lease is not None else ""
        operations: list[Operation] = []
        running: Model = dict(model)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            operation = await self._operation(running, past, id)
            operations.append(operation)
            running = apply_operations(running, id, [operation], past) or running
        made = self._make_transaction(id, begin, operations, model)
        return msgspec.structs.replace(made, lease_path=lease_path)

    def _make_transaction(
        self,
        id: str,
        begin: int,
        operations: Sequence[Operation],
        model: Model,
        changed: ObjectName | None = None,
    ) -> Transaction:
        """Make a transaction. It may have read rows of the table `changed`."""
        rng = self._rng
        serializable = rng.random() < self._reads_rate
        reads = tuple(random_read(rng, model) for _ in range(rng.choice((1, 2)))) if serializable else ()
        if serializable and changed is not None and rng.random() < 0.5:
            reads = (*reads, Read(type="TABLE_SELECT", name=changed))
        writes_rows = any(isinstance(o, AppendFiles | OverwriteFiles | ChangeRows) for o in operations)
        return Transaction(
            id=id,
            begin_version=begin,
            operations=tuple(operations),
            principal="sim",
            serializable=serializable,
            reads=reads,
            key=f"job/{rng.randrange(_KEYS_COUNT)}" if rng.random() < self._key_rate else "",
            writer=self._writer() if writes_rows and rng.random() < WRITER_RATE else None,
        )

    # -- tables whose rows change

    def lake_table(self) -> CreateTable:
        """Make a new table, at random with partitions, a sort order, or levels from the beginning."""
        rng = self._rng
        create = CreateTable(
            namespace=_LAKE,
            name=rng.choice(_LAKE_NAMES),
            table_id=self._identities.uuid4(),
            columns=(ID, TAG, PART, msgspec.structs.replace(LEVEL, initial_default=None))
            if rng.random() < 0.3
            else (ID, TAG, PART),
            partition_spec=(PartitionField(PART.id, "IDENTITY"),) if rng.random() < 0.5 else (),
            sort_order=(SortField(ID.id, descending=False, nulls_last=False),) if rng.random() < 0.3 else (),
        )
        self.lake_ids.add(create.table_id)
        return create

    def lake(self) -> tuple[Operation, ...]:
        """Make the first such table and its namespace."""
        return CreateNamespace(name=_LAKE, namespace_id=self._identities.uuid4()), self.lake_table()

    def short_tables(self) -> tuple[Operation, ...]:
        """Make a namespace with short rules of history, and two tables in it."""
        rules = {MAX_AGE: "0", MIN_VERSIONS: "1"}
        id = self._identities.uuid4
        return (
            CreateNamespace(name=_SHORT, namespace_id=id(), properties=rules),
            *(CreateTable(namespace=_SHORT, name=name, table_id=id(), columns=(ID,)) for name in ("t", "u")),
        )

    async def change(self, journal: Journal, model: Model, begin: int, past: Past) -> Transaction | None:
        """Make a transaction that changes rows, or creates a table if there is none. Return None for nothing to do.

        Raises any error of reading at `begin` and at versions of `past`.
        """
        rng = self._rng
        there = [name for name, table in model.items() if self._is_lake(table)]
        id = self._identities.uuid7()
        if not there and f"namespace {_LAKE}" in model and rng.random() < 0.5:
            return self._make_transaction(id, begin, [self.lake_table()], model)
        alive = {table.id for table in model.values() if isinstance(table, ModelTable)}
        lost = [
            (version, name)
            for version, then in past.items()
            for name, table in then.items()
            if isinstance(table, ModelTable) and table.id in self.lake_ids - alive and name not in model
        ]
        undrops = bool(lost) and (not there or rng.random() < 0.3)
        if not undrops and not there:
            return None
        if not undrops and rng.random() < 0.03:
            namespace, gone = rng.choice(there).removeprefix("table ").split(".")
            return self._make_transaction(id, begin, [DropTable(namespace=namespace, name=gone)], model)
        version, key = rng.choice(lost) if undrops else (begin, rng.choice(there))
        name = ObjectName(Kind.TABLE, *key.removeprefix("table ").split("."))
        author = Author(self.contents, journal, name, id=id, begin=begin)
        if undrops:
            try:
                await author.undrop(version)
            except (AlreadyExists, NotFound, InvalidInput):
                return None  # its namespace was dropped, too, or another object has its name
        else:
            await author.look()
        for place in range(rng.choice((1, 1, 2, 3))):
            await self._change(author, past, corrects=place == 0 and rng.random() < 0.2)
        if not author.operations:
            return None
        self.meant[id] = await author.meant()
        operations = list(author.operations)
        running = apply_operations(model, id, operations, past)
        if running is not None and rng.random() < 0.15:
            operations.append(await self._operation(running, past, id))
        return self._make_transaction(id, begin, operations, model, name)

    def _is_lake(self, value: object) -> bool:
        return isinstance(value, ModelTable) and value.id in self.lake_ids

    async def _change(self, author: Author, past: Past, *, corrects: bool) -> None:
        """Add changes to the author's transaction. With `corrects` it adds rows and then changes them."""
        rng = self._rng
        table = await author.table()
        columns = columns_of_rows(table)
        has_levels = LEVEL.id in columns
        # Others may have dropped a column, and rewritten rows would lose its values.
        if ID.id not in columns or not (has_levels or await author.is_plain()):
            return
        try:
            if not has_levels and table.next_column_id == LEVEL.id and rng.random() < 0.15:
                await author.add_level()
            elif rng.random() < 0.04:
                others = [n for n in _LAKE_NAMES if author.name != ObjectName(Kind.TABLE, _LAKE, n)]
                await author.rename(ObjectName(Kind.TABLE, _LAKE, rng.choice(others)))
            elif corrects:
                await random_change(rng, author, (), "a")
                await random_change(rng, author, (), "du")
            else:
                await random_change(rng, author, sorted(past), self._changes)
        except (AlreadyExists, NotFound, InvalidInput) as error:
            if error.kind not in _OF_NAMES:
                raise

    async def _operation(self, model: Model, past: Past, transaction_id: str) -> Operation:
        rng = self._rng
        if rng.random() < self._rows_rate:
            rows = await self._rows(model, transaction_id)
            if rows is not None:
                return rows
        if rng.random() < self._names_fresh_rate:
            name = f"n{rng.randrange(40)}"
            return CreateNamespace(name=name, namespace_id=self._identities.uuid4())
        tag_rate = max(_TAG_RATE, self._short_rate)
        if past and random.Random(f"tag {transaction_id}").random() < tag_rate:
            tag = await self._tag(model, past, transaction_id)
            if tag is not None:
                return tag
        if self._short_rate and random.Random(f"short {transaction_id}").random() < self._short_rate:
            rules = self._rules(model, transaction_id)
            if rules is not None:
                return rules
        if rng.random() < _UNDROP_RATE:
            undrop = self._undrop(model, past)
            if undrop is not None:
                return undrop
        for _ in range(rng.choice((1, 3, 5))):  # most of these are possible
            operation = random_operation(rng, model, self._identities, past)
            if apply_operations(model, transaction_id, [operation], past) is not None:
                break
        return operation

    def _rules(self, model: Model, transaction_id: str) -> Operation | None:
        """Give a namespace or a table rules of history, most of the time short ones, or unset a rule."""
        rng = random.Random(f"rules {transaction_id}")
        named = [
            key
            for key, value in sorted(model.items())
            if (key.startswith("namespace ") and key != f"namespace {_LAKE}")
            or (isinstance(value, ModelTable) and value.id not in self.lake_ids)
        ]
        if not named:
            return None
        label, _, full = rng.choice(named).partition(" ")
        namespace, _, name = full.partition(".")
        rules = {MAX_AGE: rng.choice(("0", "0", "0", "1000")), MIN_VERSIONS: rng.choice("1123")}
        fields: dict[str, Any] = {"set": rules}
        if rng.random() < 0.2:
            fields = {"set": {"r": "1"}, "unset": (MAX_AGE,)}
        if label == "namespace":
            return UpdateNamespace(name=namespace, **fields)
        return UpdateTable(namespace=namespace, name=name, **fields)

    def _undrop(self, model: Model, past: Past) -> Operation | None:
        lost = [
            (version, key)
            for version, then in past.items()
            for key in then
            if key not in model and key.startswith(("table ", "view ", "namespace "))
        ]
        if not lost:
            return None
        version, key = self._rng.choice(lost)
        label, _, path = key.partition(" ")
        namespace, _, name = path.partition(".")
        return Undrop(
            kind=Kind[label.upper()],
            namespace=namespace,
            name=name,
            version=version,
            new_namespace=namespace,
            new_name=name,
        )

    async def _tag(self, model: Model, past: Past, transaction_id: str) -> Operation | None:
        """Change one of two tags. A new or replaced tag names a version that the client knows, and has a pin."""
        rng = random.Random(
            transaction_id
        )  # of its own, so that the other operations of a seed do not change
        name, version = rng.choice("tu"), rng.choice(sorted(past))
        if self._short_rate:  # versions below the starts of tables
            version = max(0, version - rng.randrange(20))
        tag = model.get(f"tag {name}")
        if tag is not None and rng.random() < 0.3:
            return DropTag(name=name)
        if tag is not None and rng.random() < 0.3:
            other = rng.choice("tuv")
            return RenameObject(kind=Kind.TAG, namespace="", name=name, new_namespace="", new_name=other)
        try:
            log = Log(self._storage, digits=32)
            path, copy = await create_pin(log, version, new_id=self._identities.uuid4)
        except (Corrupt, Expired, NotFound):  # a disaster took the version away
            return None
        lacking = find_lacking(await starts_at(self._storage, fmt.Keys(version_digits=32)), version)
        fields: dict[str, Any] = {
            "name": name,
            "version": version,
            "commit_id": copy.commit_id,
            "version_created_at_millis": copy.created_at_millis,
            "pin_path": path,
            "message": str(rng.randrange(9)),
            "lacking": lacking,
        }
        if tag is None:
            return CreateTag(tag_id=self._identities.uuid4(), **fields)
        return ReplaceTag(**fields)

    async def _rows(self, model: Model, transaction_id: str) -> Operation | None:
        rng = self._rng
        tables = [(key, table) for key, table in model.items() if isinstance(table, ModelTable)]
        native = [
            (key, table.id) for key, table in tables if not table.location and table.id not in self.lake_ids
        ]
        if not native:
            return None
        key, table_id = rng.choice(native)
        namespace, name = key.removeprefix("table ").split(".")
        appends = rng.random() < (0.2 if self._short_rate else 0.7)  # overwrites leave files to collect
        segments = [
            await put_rows(
                self._storage,
                self._identities,
                table_id=table_id,
                transaction_id=transaction_id,
                row_count=rng.randrange(1, 1 << 40),
            )
            for _ in range(1 if appends else rng.randrange(2))
        ]
        made = AppendFiles if appends else OverwriteFiles
        return made(namespace=namespace, name=name, table_id=table_id, segments=tuple(segments))

    def _writer(self) -> Writer:
        """Return the next sequence of some writer, or sometimes an earlier sequence, as after a crash."""
        name = self._rng.choice(_WRITERS)
        if self._rng.random() < 0.7:
            self._sequences[name] += 1
        back = self._rng.choice((0, 0, 0, 1, 2))
        return Writer(name=name, sequence=max(0, self._sequences[name] - back))


def random_read(rng: random.Random, model: Model) -> Read:
    """Make a read, most of the time of something that exists."""
    there = [key.removeprefix("namespace ") for key in model if key.startswith("namespace ")]
    namespace = rng.choice(there or _NAMESPACES)
    kind = rng.choice((Kind.TABLE, Kind.TABLE, Kind.VIEW))
    inside = [key.rpartition(".")[2] for key in model if key.startswith(f"{kind.label} {namespace}.")]
    name = rng.choice(inside if inside and rng.random() < 0.8 else _NAMES)
    prefix = rng.choice(("", "", "x"))
    match rng.randrange(8):
        case 0:
            return Read(type=f"{kind.name}_EXISTS", name=ObjectName(kind, namespace, name))
        case 1 | 2:
            return Read(type=f"{kind.name}_DESCRIBE", name=ObjectName(kind, namespace, name))
        case 3:
            listing = f"NAMESPACE_SHOW_{kind.name}S"
            return Read(type=listing, name=fmt.namespace_name(namespace), prefix=prefix)
        case 4 | 5:
            columns = rng.choice(((), ("c",), ("d", "e")))
            return Read(type="TABLE_SELECT", name=fmt.table_name(namespace, name), columns=columns)
        case 6:
            verb = rng.choice(("EXISTS", "DESCRIBE"))
            return Read(type=f"NAMESPACE_{verb}", name=fmt.namespace_name(namespace))
    if rng.random() < 0.3:
        return Read(type="PIPELINE_DESCRIBE", name=fmt.pipeline_name(rng.choice("mn")))
    verb = rng.choice(("SHOW_NAMESPACES", "SHOW_PIPELINES", "DESCRIBE"))
    return Read(type=f"CATALOG_{verb}", name=fmt.CATALOG)


def answer(model: Model, read: Read, rows: Mapping[str, object] | None = None) -> object:
    """Return the result of a read in a catalog like `model`.

    `rows` has the visible rows by table id, for tables where the sums of the files do not suffice.
    """
    name = str(read.name)
    verb = read.type.partition("_")[2]
    if verb == "EXISTS":
        return name in model
    if verb == "DESCRIBE":
        if name not in model:
            return None
        found = model[name]
        if rows and isinstance(found, ModelTable) and found.id in rows:
            return found._replace(rows=(0, 0, 0)), rows[found.id], model.get(f"bound {read.name.full_name}")
        return found, model.get(f"id {name}"), model.get(f"bound {read.name.full_name}")
    if verb == "SELECT":
        table = model.get(name)
        if not isinstance(table, ModelTable):
            return None
        columns = [column for column in table.columns if not read.columns or column[0] in read.columns]
        return table.id, (rows or {}).get(table.id, table.rows), table.location, columns
    kind = Kind[verb.removeprefix("SHOW_").removesuffix("S")]
    if kind in (Kind.TABLE, Kind.VIEW):
        within = f"{kind.label} {read.name.namespace}."
        return name in model, _list_names(model, within, read.prefix)
    return _list_names(model, f"{kind.label} ", read.prefix)


def _list_names(model: Model, within: str, prefix: str) -> Sequence[str]:
    return sorted(key for key in model if key.startswith(within + prefix))
