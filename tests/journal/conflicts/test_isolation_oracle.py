"""Isolation, checked from outside: random small histories run through the real commit path, and a model that does not
know its rules checks them.

Each history begins with the same catalog. One to three journals commit some transactions, prepared on various versions,
one by one or in groups. Then these rules must hold:

1. The model makes every version from the version before it and that version's transactions, in order.
2. A refusal that is not a conflict is a refusal in the model, too.
3. Every committed transaction did the same as it would have done at the version that it began at, as far as its author
   can tell. No other transaction had changed its cells meanwhile, except to the same value (no lost update). A dropped
   object was the one that the author saw. Added files fit the columns. Only write skew remains possible.
4. The reads of a serializable transaction gave the same answers just before it. If all transactions are serializable,
   some serial order that respects real time explains all reads and the last version. All orders are tried.

The last test weakens the rules one by one: the model must detect each weaker set.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.conflicts import rules as conflicts
from alpheus_journal.conflicts.facets import Aspect, Stake
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput, NotEmpty, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Column, NamespaceDef, PipelineDef, Reference, TableDef, ViewDef
from alpheus_journal.model.operations import (
    AddColumn,
    AdvancePipeline,
    AppendFiles,
    CreateNamespace,
    CreateTable,
    CreateView,
    DropNamespace,
    DropTable,
    DropView,
    Operation,
    OverwriteFiles,
    Read,
    RenameObject,
    ReplaceView,
    RestoreTable,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, put_rows

# --- the model -------------------------------------------------------------------------------------

State = Mapping[ObjectName, Any]
"""Object name -> Thing."""


class Thing(msgspec.Struct, frozen=True):
    """One object. `columns` maps a name to (id, type, nullable), and `jobs` a name to the last run. `rows` holds paths
    of segments, `bound` the objects that a view is bound to."""

    id: str = ""
    properties: dict[str, str] = {}
    columns: dict[str, tuple[int, str, bool]] = {}
    next_column: int = 0
    rows: frozenset[str] = frozenset()
    sql: str = ""
    bound: frozenset[str] = frozenset()
    jobs: dict[str, str] = {}

    def but(self, **changes: Any) -> Thing:
        return msgspec.structs.replace(self, **changes)


class Impossible(Exception):
    pass


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Impossible(what)


def bound_to(state: State, name: ObjectName) -> list[ObjectName]:
    return [other for other, thing in state.items() if name.full_name in thing.bound]


def edited(properties: dict[str, str], operation: Any) -> dict[str, str]:
    return {k: v for k, v in properties.items() if k not in operation.unset} | operation.set


def apply(state: State, operation: Operation, transaction_id: str, past: Mapping[int, State]) -> State:
    """Return the state after one operation. Raise Impossible when the operation is impossible. `past` maps versions to
    states."""
    new = dict(state)
    name = operation.target
    home = fmt.namespace_name(name.namespace)
    match operation:
        case UpdateCatalog() | UpdateNamespace():
            need(name in state, f"{name} is not there")
            new[name] = state[name].but(properties=edited(state[name].properties, operation))
        case CreateNamespace():
            need(name not in state, f"{name} is there")
            new[name] = Thing(id=operation.namespace_id, properties=operation.properties)
        case DropNamespace():
            need(name in state, f"{name} is not there")
            inside = [o for o in state if o.kind in (Kind.TABLE, Kind.VIEW) and o.namespace == name.namespace]
            need(operation.cascade or not inside, f"{name} holds something")
            for child in inside:
                outside = [v for v in bound_to(state, child) if v.namespace != name.namespace]
                need(not outside, f"{child} has bound views")
                del new[child]
            del new[name]
        case CreateTable() | CreateView():
            need(home in state, f"{home} is not there")
            need(not {name, twin(name)} & state.keys(), f"{name} is there")
            new[name] = created(state, operation)
        case ReplaceView():
            need(name in state, f"{name} is not there")
            need(not bound_to(state, name), f"{name} has bound views")
            new[name] = created(state, operation).but(id=state[name].id)
        case DropTable() | DropView():
            need(name in state, f"{name} is not there")
            need(not bound_to(state, name), f"{name} has bound views")
            del new[name]
        case RenameObject():
            target = operation.new_target
            need(name in state, f"{name} is not there")
            need(not bound_to(state, name), f"{name} has bound views")
            need(fmt.namespace_name(target.namespace) in state, f"no namespace of {target}")
            need(not {target, twin(target)} & state.keys(), f"{target} is there")
            new[target] = new.pop(name)
        case UpdateTable():
            need(name in state, f"{name} is not there")
            new[name] = altered(state, operation)
        case RestoreTable():
            need(name in state, f"{name} is not there")
            thing, then = state[name], past[operation.version].get(name)
            need(then is not None and then.id == thing.id, f"{name} was not there then")
            assert then is not None
            loses = thing.columns.items() - then.columns.items()
            need(not (loses and bound_to(state, name)), f"{name} has bound views")
            new[name] = then.but(next_column=max(then.next_column, thing.next_column))
        case AppendFiles() | OverwriteFiles():
            need(name in state and state[name].id == operation.table_id, f"{name} is not there")
            old = state[name].rows if isinstance(operation, AppendFiles) else frozenset()
            new[name] = state[name].but(rows=old | {segment.path for segment in operation.segments})
        case AdvancePipeline():
            jobs = state[name].jobs if name in state else {}
            if operation.expected_pipeline_id is not None:
                need((operation.expected_pipeline_id == "") == (name not in state), f"{name} is another")
            former = operation.former_job or operation.job
            is_renamed = former in jobs and operation.job not in jobs
            need(not operation.former_job or is_renamed, "not to be renamed")
            need(jobs.get(former, "") == operation.expected_transaction_id, f"{name} has moved")
            rest = {job: id for job, id in jobs.items() if job != operation.former_job}
            new[name] = Thing(jobs=rest | {operation.job: transaction_id})
        case _:
            raise AssertionError(operation)
    return new


def twin(name: ObjectName) -> ObjectName:
    return ObjectName(Kind.VIEW if name.kind is Kind.TABLE else Kind.TABLE, name.namespace, name.name)


def created(state: State, operation: CreateTable | CreateView | ReplaceView) -> Thing:
    if isinstance(operation, CreateTable):
        columns = {c.name: (c.id, c.type, c.nullable) for c in operation.columns}
        return Thing(id=operation.table_id, columns=columns, next_column=len(columns) + 1)
    need(operation.target.full_name not in map(str, operation.references), "it refers to itself")
    bound = frozenset(str(r) for r in operation.references) if operation.schema_binding else frozenset()
    for other in bound:
        need(any(o.full_name == other for o in state if o.kind in (Kind.TABLE, Kind.VIEW)), f"no {other}")
        need(not any(operation.target.full_name in t.bound for t in state.values()), "a circle")
    id = operation.view_id if isinstance(operation, CreateView) else ""
    return Thing(id=id, sql=operation.sql, bound=bound)


def altered(state: State, operation: UpdateTable) -> Thing:
    thing = state[operation.target]
    columns, counter = dict(thing.columns), thing.next_column
    if operation.drop_columns or operation.rename_columns or operation.retype_columns:
        need(not bound_to(state, operation.target), "it has bound views")
    for path in (*operation.drop_columns, *operation.rename_columns, *operation.retype_columns):
        need(path in columns, f"no column {path}")
    for path in operation.drop_columns:
        del columns[path]
        need(bool(columns), "the last column")
    for path, new_name in operation.rename_columns.items():
        need(new_name not in columns, f"column {new_name} is there")
        columns = {new_name if name == path else name: column for name, column in columns.items()}
    for path, column in operation.retype_columns.items():
        need(columns[path][1] == "INT4", "it is wide already")
        columns[path] = (columns[path][0], column.type, columns[path][2])
    for added in operation.add_columns:
        need(added.column.name not in columns, f"column {added.column.name} is there")
        columns[added.column.name] = (counter, added.column.type, added.column.nullable)
        counter += 1
    properties = edited(thing.properties, operation)
    return thing.but(properties=properties, columns=columns, next_column=counter)


def run(state: State, transaction: Transaction, past: Mapping[int, State]) -> State:
    for operation in transaction.operations:
        state = apply(state, operation, transaction.id, past)
    return state


def answer(state: State, read: Read) -> object:
    """Return the answer to a read at a state."""
    if "SHOW" in read.type:
        listed = {
            "NAMESPACES": Kind.NAMESPACE,
            "PIPELINES": Kind.PIPELINE,
            "TABLES": Kind.TABLE,
            "VIEWS": Kind.VIEW,
        }
        kind = listed[read.type.rpartition("_")[2]]
        if kind in (Kind.TABLE, Kind.VIEW) and read.name not in state:
            return None
        names = [name for name in state if name.kind is kind]
        if kind in (Kind.TABLE, Kind.VIEW):
            names = [name for name in names if name.namespace == read.name.namespace]
        return {
            n for n in names if (n.namespace if kind is Kind.NAMESPACE else n.name).startswith(read.prefix)
        }
    thing = state.get(read.name)
    if read.type.endswith("EXISTS"):
        return thing is not None
    if read.type == "TABLE_SELECT":
        if thing is None:
            return None
        columns = read.columns or tuple(thing.columns)
        return (thing.id, thing.rows, {name: thing.columns.get(name) for name in columns})
    return (thing, bound_to(state, read.name)) if thing is not None else None


# --- the model's state, read from a stored catalog -------------------------------------------------


async def observed(journal: Journal, version: int) -> State:
    names = [fmt.CATALOG]
    for kind in (Kind.NAMESPACE, Kind.PIPELINE):
        page = await journal.list(version, kind)
        names += [ObjectName(kind, *((n, "") if kind is Kind.NAMESPACE else ("", n))) for n in page.names]
    for namespace in [n.namespace for n in names if n.kind is Kind.NAMESPACE]:
        for kind in (Kind.TABLE, Kind.VIEW):
            page = await journal.list(version, kind, namespace=namespace)
            names += [ObjectName(kind, namespace, n) for n in page.names]
    state = {}
    for name, stored in zip(names, (await journal.load(version, names)).objects, strict=True):
        assert stored is not None
        definition = decode_definition(name.kind, stored.definition, stored.path)
        match definition:
            case TableDef():
                state[name] = Thing(
                    id=definition.id,
                    properties=definition.properties,
                    columns={c.name: (c.id, c.type, c.nullable) for c in definition.columns},
                    next_column=definition.next_column_id,
                    rows=frozenset(segment.path for segment in definition.segments),
                )
            case ViewDef():
                bound = (
                    frozenset(map(str, definition.references)) if definition.schema_binding else frozenset()
                )
                state[name] = Thing(id=definition.id, sql=definition.sql, bound=bound)
            case PipelineDef():
                state[name] = Thing(jobs={job: j.last_transaction_id for job, j in definition.jobs.items()})
            case NamespaceDef():
                state[name] = Thing(id=definition.id, properties=definition.properties)
            case _:
                state[name] = Thing(properties=definition.properties)
    return state


# --- random transactions ---------------------------------------------------------------------------

COLUMNS = (Column(id=1, name="c", type="INT4"), Column(id=2, name="d", type="INT4"))


class History:
    """One catalog, the transactions committed on it, and its states by version."""

    def __init__(self, seed: int, lake: Lake, template: Template) -> None:
        self.rng = random.Random(seed)
        self.lake = lake
        self.base = template.version
        self.states: dict[int, State] = {template.version: template.state}
        self.committed: list[tuple[Transaction, Committed]] = []
        self.refused: list[tuple[Transaction, Exception, int]] = []

    async def transaction(self, *, serializable: bool) -> Transaction:
        rng, id = self.rng, self.lake.identities.uuid7()
        begin = rng.choice(list(self.states)) if rng.random() < 0.7 else self.base
        state = self.states[begin]
        operations: list[Operation] = []
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            for _attempt in range(30):
                operation = await self.operation(state, id, begin)
                try:
                    state = apply(state, operation, id, self.states)
                except Impossible:
                    continue
                operations.append(operation)
                break
        reads = tuple(self.read() for _ in range(rng.randrange(1, 4))) if serializable else ()
        return Transaction(
            id=id, begin_version=begin, operations=tuple(operations), serializable=serializable, reads=reads
        )

    async def operation(self, state: State, id: str, begin: int) -> Operation:
        rng, new_id = self.rng, self.lake.identities.uuid4
        namespace = rng.choice("aaab")
        table = {"namespace": namespace, "name": rng.choice("xxy")}
        change: dict[str, Any] = {"set": {rng.choice("pq"): rng.choice("01")}}
        if rng.random() < 0.2:
            change = {"unset": (rng.choice("pq"),)}
        target = state.get(fmt.table_name(**table), Thing())
        match rng.choice(OPERATIONS):
            case "catalog":
                return UpdateCatalog(**change)
            case "namespace":
                return UpdateNamespace(name=namespace, **change)
            case "create namespace":
                return CreateNamespace(name=namespace, namespace_id=new_id())
            case "drop namespace":
                return DropNamespace(name=namespace, cascade=rng.random() < 0.7)
            case "create":
                return CreateTable(**table, table_id=new_id(), columns=COLUMNS)
            case "drop":
                return DropTable(**table)
            case "rename":
                new = rng.choice("ab"), rng.choice("xyz")
                return RenameObject(kind=Kind.TABLE, **table, new_namespace=new[0], new_name=new[1])
            case "update":
                return UpdateTable(**table, **change)
            case "add column":
                column = Column(id=target.next_column, name=rng.choice("def"), type="INT4")
                return UpdateTable(**table, add_columns=(AddColumn(column=column),))
            case "drop column":
                return UpdateTable(**table, drop_columns=(rng.choice("cd"),))
            case "rename column":
                return UpdateTable(**table, rename_columns={rng.choice("cd"): rng.choice("ef")})
            case "widen column":
                return UpdateTable(
                    **table, retype_columns={rng.choice("cd"): Column(id=0, name="", type="INT8")}
                )
            case "restore":
                version = rng.choice([v for v in self.states if v <= begin])
                return RestoreTable(**table, version=version)
            case "append" | "overwrite" as verb:
                cls = AppendFiles if verb == "append" else OverwriteFiles
                segments = []
                if target.id and (verb == "append" or rng.random() < 0.7):
                    storage, identities = self.lake.storage, self.lake.identities
                    segments = [await put_rows(storage, identities, table_id=target.id, transaction_id=id)]
                return cls(**table, table_id=target.id, segments=tuple(segments))
            case "view" | "replace view" as verb:
                view: dict[str, Any] = {"namespace": rng.choice("ab"), "name": rng.choice("vx")}
                reference = Reference(namespace, rng.choice("xxyv"))
                view |= {"sql": f"select {rng.randrange(9)}", "dialect": "spark", "references": (reference,)}
                view |= {"schema_binding": rng.random() < 0.7}
                return CreateView(**view, view_id=new_id()) if verb == "view" else ReplaceView(**view)
            case "drop view":
                return DropView(namespace=rng.choice("ab"), name=rng.choice("vx"))
            case _:
                name, job = rng.choice("mn"), rng.choice("jk")
                pipeline = state.get(fmt.pipeline_name(name), Thing())
                other = random.Random(
                    f"{name} {job} {pipeline.jobs}"
                )  # other choices of a seed stay the same
                former = other.choice("jk") if other.random() < 0.3 else ""
                return AdvancePipeline(
                    name=name,
                    job=job,
                    pinned_version=0,
                    expected_transaction_id=pipeline.jobs.get(former or job, ""),
                    former_job=former,
                    expected_pipeline_id="" if not pipeline.jobs and other.random() < 0.5 else None,
                )

    def read(self) -> Read:
        rng = self.rng
        namespace = fmt.namespace_name(rng.choice("ab"))
        kind = rng.choice((Kind.TABLE, Kind.TABLE, Kind.VIEW))
        name = ObjectName(kind, namespace.namespace, rng.choice("xyzv"))
        prefix = rng.choice(("", "", "x", "y"))
        match rng.randrange(9):
            case 0:
                return Read(type=f"{kind.name}_EXISTS", name=name)
            case 1 | 2:
                return Read(type=f"{kind.name}_DESCRIBE", name=name)
            case 3 | 4:
                return Read(type=f"NAMESPACE_SHOW_{kind.name}S", name=namespace, prefix=prefix)
            case 5 | 6:
                name = fmt.table_name(namespace.namespace, name.name)
                return Read(
                    type="TABLE_SELECT", name=name, columns=rng.choice(((), ("c",), ("d",), ("c", "e")))
                )
            case 7:
                verb = rng.choice(("EXISTS", "DESCRIBE"))
                return Read(type=f"NAMESPACE_{verb}", name=namespace)
        verb = rng.choice(("SHOW_NAMESPACES", "SHOW_PIPELINES", "DESCRIBE"))
        if verb == "DESCRIBE" and rng.random() < 0.5:
            return Read(type="PIPELINE_DESCRIBE", name=fmt.pipeline_name(rng.choice("mn")))
        return Read(type=f"CATALOG_{verb}", name=fmt.CATALOG)

    # --- running it

    async def play(self) -> None:
        rng = self.rng
        journals = [await self.lake.open() for _ in range(rng.choice((1, 1, 2, 3)))]
        levels = rng.choice(((True,), (True,), (False,), (True, False)))
        left = rng.randrange(2, 6)
        while left > 0:
            count = min(left, rng.choice((1, 1, 2, 3)))
            left -= count
            group = [await self.transaction(serializable=rng.choice(levels)) for _ in range(count)]
            await self.commit(rng.choice(journals), [t for t in group if t.operations])

    async def commit(self, journal: Journal, waiting: list[Transaction]) -> None:
        while waiting:
            answers = await journal.commit_group(waiting)
            head = journal.head.version
            for version in range(max(self.states) + 1, head + 1):
                self.states[version] = await observed(journal, version)
            for transaction, answer in zip(waiting, answers, strict=True):
                if isinstance(answer, Committed):
                    self.committed.append((transaction, answer))
                elif answer is not None:
                    # The refused transaction was judged on the version before its neighbours' version.
                    made = any(isinstance(other, Committed) for other in answers)
                    self.refused.append((transaction, answer, head - made))
            waiting = [t for t, a in zip(waiting, answers, strict=True) if a is None]


OPERATIONS = (
    ["update"] * 5 + ["append"] * 4 + ["overwrite"] * 3 + ["create", "drop", "rename", "add column"] * 2
    + ["drop column", "rename column", "widen column", "view", "replace view", "drop view", "catalog", "namespace"]
    + ["create namespace", "drop namespace", "advance", "create namespace", "drop namespace", "add column", "restore"]
)  # fmt: skip


# --- judging it ------------------------------------------------------------------------------------


def judge(history: History) -> str:
    """Return what is wrong with a history, or an empty text."""
    for transaction, error, version in history.refused:
        if isinstance(error, Conflict):
            continue
        if not isinstance(error, NotFound | AlreadyExists | NotEmpty | InvalidInput):
            return f"an improper refusal: {error!r}"
        try:
            run(history.states[version], transaction, history.states)
        except Impossible:
            continue
        return f"{error!r}, but the model can do {transaction.operations}"
    befores: dict[str, State] = {}
    state = history.states[history.base]
    for version, members in itertools.groupby(history.committed, lambda item: item[1].version):
        for transaction, _ in members:
            befores[transaction.id] = state
            try:
                state = run(state, transaction, history.states)
            except Impossible as reason:
                return f"version {version} holds {transaction.operations}, impossible: {reason}"
        if state != history.states[version]:
            return f"version {version} is not its transactions"
        state = history.states[version]
    for transaction, committed in history.committed:
        begin, before = history.states[transaction.begin_version], befores[transaction.id]
        wrong = lost_update(transaction, begin, before, history.states)
        if wrong:
            return f"version {committed.version}: {wrong}: {transaction.operations}"
        for read in transaction.reads:
            if answer(begin, read) != answer(before, read):
                return f"version {committed.version} rests on {read}, which was no longer so"
    if all(transaction.serializable for transaction, _ in history.committed):
        return "" if has_serial_order(history) else "no serial order explains it"
    return ""


def has_serial_order(history: History) -> bool:
    def loose(state: State) -> State:
        # The ids of columns depend on the order, and no read shows them.
        return {
            name: thing.but(columns={c: (0, *rest) for c, (_, *rest) in thing.columns.items()})
            for name, thing in state.items()
        }

    def explains(order: tuple[tuple[Transaction, Committed], ...]) -> bool:
        for (first, _), (_, later) in itertools.combinations(order, 2):
            if later.version <= first.begin_version:
                return False  # the later one was answered before the first began
        state = history.states[history.base]
        for transaction, _ in order:
            begin = history.states[transaction.begin_version]
            if any(answer(begin, read) != answer(state, read) for read in transaction.reads):
                return False
            try:
                state = run(state, transaction, history.states)
            except Impossible:
                return False
        return loose(state) == loose(history.states[max(history.states)])

    return any(explains(order) for order in itertools.permutations(history.committed))


def cells(state: State) -> dict[tuple[str, ...], object]:
    """Split a state into cells that can change independently."""
    found: dict[tuple[str, ...], object] = {}
    for name, thing in state.items():
        key = str(name)
        found[key, "id"] = thing.id
        found[key, "text"] = (thing.sql, thing.bound)
        found |= {(key, "property", k): v for k, v in thing.properties.items()}
        found |= {(key, "column", k): v for k, v in thing.columns.items()}
        found |= {(key, "job", k): v for k, v in thing.jobs.items()}
    return found


def lost_update(transaction: Transaction, begin: State, before: State, past: Mapping[int, State]) -> str:
    """Return how the transaction acted differently than at its begin version, or an empty text."""
    after_begin, after = run(begin, transaction, past), run(before, transaction, past)
    gone = {n for n in before if n not in after or before[n].id != after[n].id}
    for name in gone:
        if name not in begin or begin[name].id != before[name].id:
            return f"it drops another {name} than it saw"
    # Objects that a cascade would have dropped, and that another transaction dropped first.
    gone |= {n for n in begin if n not in after_begin or begin[n].id != after_begin[n].id}
    ids = {thing.id for thing in begin.values()}
    fresh = {n for n in after_begin if n not in begin or begin[n].id != after_begin[n].id}
    moved = {n for n in fresh if after_begin[n].id in ids and n.kind is Kind.TABLE}
    added_columns = {o.target for o in transaction.operations if isinstance(o, UpdateTable) and o.add_columns}
    wrote = {o.target for o in transaction.operations if isinstance(o, AppendFiles | OverwriteFiles)}
    files_go_by_ids = {str(name) for name in added_columns & wrote}
    for name in fresh:
        home = fmt.namespace_name(name.namespace)
        if name.kind not in (Kind.TABLE, Kind.VIEW) or home in fresh:
            continue
        if begin[home].id != before[home].id:
            return f"it creates {name} in another namespace than it saw"
    cells_begin, cells_after_begin = cells(begin), cells(after_begin)
    cells_before, cells_after = cells(before), cells(after)
    passed_over = {str(name) for name in gone | moved}
    for cell in cells_begin | cells_after_begin | cells_before | cells_after:
        if cell[0] in passed_over:
            continue
        old, new = cells_begin.get(cell), cells_after_begin.get(cell)
        old_now, new_now = cells_before.get(cell), cells_after.get(cell)
        if old == new and old_now == new_now:
            continue  # this transaction does not change the cell
        if new_now == old_now == new:
            continue  # another transaction did the same
        if cell[1] == "column" and old == old_now and isinstance(new, tuple) and isinstance(new_now, tuple):
            is_used = cell[0] in files_go_by_ids
            is_new = not isinstance(old, tuple) or old[0] not in (new[0], new_now[0])
            if is_new and (new == new_now if is_used else new[1:] == new_now[1:]):
                continue  # a new column: it may replace a dropped column or have another id
        if (old, new) != (old_now, new_now):
            return f"{cell} was to go from {old} to {new}, and went from {old_now} to {new_now}"
    return lost_rows(transaction, begin, before, passed_over, past) or broken_binding(
        transaction, begin, before
    )


def lost_rows(
    transaction: Transaction, begin: State, before: State, passed_over: set[str], past: Mapping[int, State]
) -> str:
    after_begin, after = run(begin, transaction, past), run(before, transaction, past)
    for name in after_begin:
        if str(name) in passed_over or not all(name in state for state in (begin, before, after)):
            continue
        removed, removed_now = begin[name].rows - after_begin[name].rows, before[name].rows - after[name].rows
        if removed != removed_now and any(
            isinstance(o, OverwriteFiles) and o.target == name for o in transaction.operations
        ):
            return f"it removed {removed_now} from {name}, having seen {removed}"
        added = after_begin[name].rows - begin[name].rows
        if added != after[name].rows - before[name].rows:
            return f"its rows are not in {name}"
        if not added:
            continue
        columns = {c[0]: c[1] for c in after_begin[name].columns.values()}
        columns_now = {c[0]: c[1] for c in after[name].columns.values()}
        mine_to_change = {c[0] for c in begin[name].columns.values()} - columns.keys()
        for id, type in columns.items():
            if id not in mine_to_change and columns_now.get(id) != type:
                return f"its files do not meet column {id} of {name}"
    return ""


def broken_binding(transaction: Transaction, begin: State, before: State) -> str:
    for operation in transaction.operations:
        if not isinstance(operation, CreateView | ReplaceView) or not operation.schema_binding:
            continue
        for reference in operation.references:
            name = fmt.table_name(reference.namespace, reference.name)
            if name not in begin or name not in before or begin[name].id != before[name].id:
                continue  # a table that the transaction itself made, or a view
            for column, what in begin[name].columns.items():
                if before[name].columns.get(column) != what:
                    return f"{operation.target} is bound to column {column} of {name}, which has changed"
    return ""


# --- the tests -------------------------------------------------------------------------------------


class Template(msgspec.Struct):
    """The catalog that all histories begin with."""

    files: dict[str, bytes]
    version: int
    state: State


@pytest.fixture
async def template() -> Template:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a", p="0"), lake.namespace("b"))
    tables = [
        CreateTable(namespace=n, name=t, table_id=lake.identities.uuid4(), columns=COLUMNS)
        for n, t in (("a", "x"), ("a", "y"), ("b", "x"))
    ]
    view = CreateView(
        namespace="a", name="v", view_id=lake.identities.uuid4(), sql="select 1", dialect="spark",
        references=(Reference("a", "y"),), schema_binding=True,
    )  # fmt: skip
    await lake.commit(journal, *tables, view)
    id = lake.identities.uuid7()
    segment = await put_rows(lake.storage, lake.identities, table_id=tables[0].table_id, transaction_id=id)
    append = AppendFiles(namespace="a", name="x", table_id=tables[0].table_id, segments=(segment,))
    await journal.commit(Transaction(id=id, begin_version=2, operations=(append,)))
    await lake.commit(
        journal, AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0)
    )
    files = await listed(lake.storage, "")
    content = {path: await lake.storage.read(path, size_max=1 << 20) for path in files}
    return Template(content, journal.head.version, await observed(journal, journal.head.version))


async def history_of(seed: int, template: Template) -> History:
    storage = MemoryStorage()
    await storage.put_many(template.files)
    history = History(seed, Lake(storage, seed=seed + 1), template)
    await history.play()
    return history


async def test_histories_are_isolated(template: Template, lane_count: Callable[[int, int], int]) -> None:
    conflicts_count = committed = overlapping = 0
    for seed in range(lane_count(80, 20_000)):
        history = await history_of(seed, template)
        wrong = judge(history)
        assert not wrong, f"seed {seed}: {wrong}"
        conflicts_count += sum(isinstance(error, Conflict) for _, error, _ in history.refused)
        committed += len(history.committed)
        overlapping += sum(c.version > t.begin_version + 1 for t, c in history.committed)
    # Some transactions are refused and some commit, and many were executed again on a newer version.
    assert conflicts_count > committed / 10
    assert overlapping > committed / 5


WEAKER = [
    # found within few histories
    (Stake.PROPERTY, Aspect.PROPERTY),
    (Stake.ROWS, Aspect.ROWS_ADDED),
    (Stake.ROWS, Aspect.ROWS_REPLACED),
    (Stake.SEEN_NAMES, Aspect.CHILD_ADDED),
    (Stake.SEEN_ROWS, Aspect.ROWS_ADDED),
    (Stake.SEEN_ROWS, Aspect.COLUMN),
    (Stake.SEEN_EXISTENCE, Aspect.DROPPED),
    (Stake.EMPTIED, Aspect.CHILD_ADDED),
    # found within hundreds of histories
    (Stake.COLUMN, Aspect.COLUMN),
    (Stake.FILES, Aspect.COLUMN),
    (Stake.DEFINITION, Aspect.WHOLE),
    (Stake.BINDING, Aspect.COLUMN),
    (Stake.SEEN_EXISTENCE, Aspect.CREATED),
    (Stake.SEEN_DEFINITION, Aspect.PROPERTY),
    (Stake.SEEN_DEFINITION, Aspect.ROWS_ADDED),
    (Stake.SEEN_NAMES, Aspect.CHILD_REMOVED),
    (Stake.SEEN_ROWS, Aspect.ROWS_REPLACED),
]
"""Rules that no other check replaces. Without the other rules (creating an existing object, using a dropped one) the
execution refuses, or their loss shows only in longer histories."""


async def test_weaker_rules_are_found_out(
    template: Template, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    for rule in WEAKER[: lane_count(2, len(WEAKER))]:
        never = msgspec.structs.replace(conflicts.RULES[rule], collides=lambda claim, touch: False)
        with monkeypatch.context() as patched:
            patched.setitem(conflicts.RULES, rule, never)
            for seed in range(3000):
                if judge(await history_of(seed, template)):
                    break
            else:
                pytest.fail(f"nobody misses the rule {rule}")
