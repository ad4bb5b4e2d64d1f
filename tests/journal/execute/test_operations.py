"""Executing operations: refusals and their words, and a transaction's view of its own writes, which must equal a commit
of the same operations.
"""

from __future__ import annotations

import asyncio
import random
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Conflict, InvalidInput, NotEmpty, NotFound
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.execute.rules.schema import check_columns
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import LATEST, CheckSummary
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import (
    CatalogDef,
    Column,
    DeclaredTable,
    InputPosition,
    JobDeclaration,
    PipelineDef,
    Segment,
)
from alpheus_journal.model.operations import (
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    CreateCatalog,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    RenameObject,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.testing import (
    Lake,
    Model,
    apply_to_model,
    model_of,
    raises,
    random_operation,
)
from alpheus_journal.workspace.workspace import definition_of

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def column(id: int, name: str = "c", type: str = "INT8", **rest: object) -> Column:
    return Column(id=id, name=name, type=type, **rest)  # type: ignore[arg-type]


# --- columns ---------------------------------------------------------------------------------------

NESTED = column(1)
for _ in range(40):
    NESTED = column(1, type="LIST", element=NESTED)

BAD_COLUMNS = [
    ((), "at least one column"),
    ((column(0),), "count from 1"),
    ((column(2),), "count from 1"),
    ((column(1), column(1, "d")), "count from 1"),
    ((column(2, "x"), column(1, "y")), "count from 1"),
    ((column(1, ""),), "empty"),
    ((column(1, "a\nb"),), "control"),
    ((column(1, "Ab"), column(2, "aB")), "same name"),
    ((column(1, "a"), column(2, "a")), "same name"),
    ((column(1, type="NONSENSE"),), "NONSENSE"),
    ((column(1, type="TIME3"),), "TIME3"),
    ((column(1, type="DECIMAL"),), "precision"),
    ((column(1, type="DECIMAL", properties={"precision": "39", "scale": "0"}),), "precision"),
    ((column(1, type="STRUCT"),), "lacks its fields"),
    ((column(1, type="LIST"),), "lacks its element"),
    ((column(1, type="MAP", key=column(2)),), "lacks its key and value"),
    ((column(1, element=column(2)),), "do not fit"),
    ((column(1, type="LIST", element=column(2), fields=(column(3),)),), "do not fit"),
    ((column(1, type="STRUCT", fields=(column(2, "a"), column(3, "A"))),), "same name"),
    ((NESTED,), "levels deep"),
    (tuple(column(n, f"c{n}") for n in range(1, 10_002)), "at most 10000"),
]


@pytest.mark.parametrize(
    ("columns", "reason"), BAD_COLUMNS, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_bad_columns(columns: tuple[Column, ...], reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_columns(columns)
    assert caught.value.kind == "bad_schema"
    assert reason in str(caught.value)
    lake = Lake()
    journal = await lake.create()
    operation = CreateTable(namespace="a", name="t", table_id=lake.identities.uuid4(), columns=columns)
    await raises(InvalidInput, lake.commit(journal, lake.namespace("a"), operation), kind="bad_schema")


def test_good_columns() -> None:
    decimal = column(3, "b", "DECIMAL", properties={"precision": "9", "scale": "2"})
    check_columns(
        (
            column(1, "s", "STRUCT", fields=(column(2, "a"), decimal)),
            column(4, "m", "MAP", key=column(5, "key", nullable=False), value=column(6, "value")),
            column(7, "l", "LIST", element=column(8, "element", "VARCHAR")),
        )
    )  # fmt: skip
    check_columns(tuple(column(n, f"c{n}") for n in range(1, 10_001)))  # the time is not quadratic


# --- refusals --------------------------------------------------------------------------------------


async def base() -> tuple[Lake, Journal]:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, lake.namespace("a", p="1"), lake.table("a", "t"), lake.namespace("empty"))
    return lake, journal


SEGMENT = Segment(
    path="manifest/x", file_count=1, row_count=1, size_bytes=1, sha256=b"", segment_size_bytes=1
)
REFUSED: list[tuple[Operation, str]] = [
    (CreateNamespace(name="a", namespace_id=ID), "namespace_exists"),
    (CreateNamespace(name="b", namespace_id="x"), "bad_argument"),
    (CreateNamespace(name="b", namespace_id=ID, data_root="s3://x"), "bad_data_root"),
    (CreateNamespace(name="b", namespace_id=ID, properties={"k": "v" * 70_000}), "too_large"),
    (CreateNamespace(name="b", namespace_id=ID, properties={f"k{n}": "v" * 60_000 for n in range(5)}), "too_large"),
    (CreateNamespace(name="b", namespace_id=ID, properties={"\ud800": ""}), "bad_argument"),
    (UpdateNamespace(name="none", set={"a": "b"}), "no_namespace"),
    (UpdateNamespace(name="a"), "bad_argument"),
    (UpdateNamespace(name="a", set={"k": "v"}, unset=("k",)), "bad_argument"),
    (UpdateNamespace(name="a", unset=("\ud800",)), "bad_argument"),
    (DropNamespace(name="none"), "no_namespace"),
    (DropNamespace(name="a"), "namespace_not_empty"),
    (DropNamespace(name="x" * 101), "bad_name"),
    (CreateTable(namespace="none", name="t", table_id=ID, columns=(column(1),)), "no_namespace"),
    (CreateTable(namespace="a", name="t", table_id=ID, columns=(column(1),)), "table_exists"),
    (CreateTable(namespace="a", name="u", table_id="x", columns=(column(1),)), "bad_argument"),
    (CreateTable(namespace="a b", name="u", table_id=ID, columns=(column(1),)), "bad_name"),
    (UpdateTable(namespace="a", name="none", set={"a": "b"}), "no_table"),
    (UpdateTable(namespace="none", name="t", set={"a": "b"}), "no_table"),
    (UpdateTable(namespace="a", name="t", set={"": "b"}), "bad_argument"),
    (DropTable(namespace="a", name="none"), "no_table"),
    (DropTable(namespace="", name="t"), "bad_name"),
    (AppendFiles(namespace="a", name="none", table_id=ID, segments=()), "no_table"),
    (AppendFiles(namespace="a", name="t", table_id=ID, segments=()), "table_replaced"),
    (OverwriteFiles(namespace="a", name="t", table_id="", segments=()), "table_replaced"),
    (AppendFiles(namespace="a", name="t", table_id=ID, segments=(SEGMENT,)), "bad_data"),
    (UpdateCatalog(), "bad_argument"),
    (CreateCatalog(definition=CatalogDef(id=ID)), "not_supported"),
    (CancelTransaction(transaction_id="x"), "bad_argument"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id=ID, pinned_version=0), "position_moved"),
    (AdvancePipeline(name="m", job="", expected_transaction_id="", pinned_version=0), "bad_name"),
    (AdvancePipeline(name="m/n", job="j", expected_transaction_id="", pinned_version=0), "bad_name"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=-1), "bad_version"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=1 << 64), "bad_version"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0, state="x"), "bad_argument"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="\ud800", pinned_version=0), "bad_argument"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0,
                     inputs={"o": InputPosition(table_id=ID, version=-5)}), "bad_version"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0, params={"": ""}), "bad_argument"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0, called_at_millis=-1),
     "bad_argument"),
    (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0, called_at_millis=1 << 60),
     "bad_argument"),
]  # fmt: skip


@pytest.mark.parametrize("state", [False, True])
async def test_refused_operations_change_nothing(state: bool) -> None:
    lake, journal = await base()
    if state:
        await journal.load_state()
    before = await model_of(journal)
    for operation, kind in REFUSED:
        error = await raises(AlpheusError, lake.commit(journal, operation), kind=kind)
        assert str(error)
        error = await raises(AlpheusError, lake.commit(journal, lake.namespace("new"), operation), kind=kind)
    assert journal.head.version == 1
    assert await model_of(journal) == before


async def test_a_pipelines_position() -> None:
    lake, journal = await base()

    def advance(job: str, expected: str) -> AdvancePipeline:
        return AdvancePipeline(name="m", job=job, expected_transaction_id=expected, pinned_version=1)

    first = await lake.commit(journal, advance("j", ""))
    error = await raises(Conflict, lake.commit(journal, advance("j", "")), kind="position_moved")
    assert error.transaction_id == first.transaction_id
    assert error.hint
    other = await lake.commit(journal, advance("k", ""))
    second = await lake.commit(journal, advance("j", first.transaction_id))
    assert (await model_of(journal))["pipeline m"] == {"j": second.transaction_id, "k": other.transaction_id}


async def test_a_job_under_another_name_takes_its_entry_along() -> None:
    lake, journal = await base()

    def moved(job: str, former: str, expected: str) -> AdvancePipeline:
        return AdvancePipeline(
            name="m", job=job, former_job=former, expected_transaction_id=expected, pinned_version=1
        )

    declaration = JobDeclaration(outputs=(DeclaredTable(table="a.t", table_id=ID),))
    first = await lake.commit(
        journal,
        AdvancePipeline(
            name="m", job="j", expected_transaction_id="", pinned_version=1, declaration=declaration,
            expected_pipeline_id="",
        ),
    )  # fmt: skip
    for expected_id in ("", ID):
        other = AdvancePipeline(
            name="m", job="k", expected_transaction_id="", pinned_version=1, expected_pipeline_id=expected_id
        )
        await raises(Conflict, lake.commit(journal, other), kind="position_moved")
    await raises(NotFound, lake.commit(journal, moved("l", "k", "")), kind="no_job")
    await raises(Conflict, lake.commit(journal, moved("l", "j", "")), kind="position_moved")
    await lake.commit(
        journal, AdvancePipeline(name="m", job="k", expected_transaction_id="", pinned_version=1)
    )
    await raises(InvalidInput, lake.commit(journal, moved("k", "j", first.transaction_id)), kind="bad_name")
    last = await lake.commit(
        journal,
        RenameObject(kind=Kind.PIPELINE, namespace="", name="m", new_namespace="", new_name="n"),
        msgspec.structs.replace(moved("l", "j", first.transaction_id), name="n"),
    )
    (stored,) = (await journal.load(LATEST, [fmt.pipeline_name("n")])).objects
    assert stored is not None
    definition = decode_definition(Kind.PIPELINE, stored.definition, stored.path)
    assert isinstance(definition, PipelineDef)
    assert definition.id == str(uuid.uuid5(uuid.UUID(first.transaction_id), "pipeline m"))
    assert definition.jobs.keys() == {"k", "l"}
    assert definition.jobs["l"].declaration == declaration, "a move without one leaves it"
    assert definition.jobs["l"].last_transaction_id == last.transaction_id
    assert isinstance(await anext(journal.check()), CheckSummary)


@pytest.mark.parametrize(
    ("declaration", "kind"),
    [
        (JobDeclaration(outputs=(DeclaredTable(table="b"), DeclaredTable(table="a"))), "bad_argument"),
        (JobDeclaration(inputs=(DeclaredTable(table="a"), DeclaredTable(table="a"))), "bad_argument"),
        (JobDeclaration(inputs=(DeclaredTable(table="\ud800"),)), "bad_argument"),
        (JobDeclaration(inputs=tuple(DeclaredTable(table=f"{n:04}") for n in range(1001))), "too_large"),
    ],
)
async def test_declarations_that_cannot_be(declaration: JobDeclaration, kind: str) -> None:
    lake, journal = await base()
    operation = AdvancePipeline(
        name="m", job="j", expected_transaction_id="", pinned_version=1, declaration=declaration
    )
    await raises(InvalidInput, lake.commit(journal, operation), kind=kind)


@pytest.mark.parametrize(
    ("new", "kind"), [("m", "bad_name"), ("a/b", "bad_name"), ("", "bad_name"), ("n", "pipeline_exists")]
)
async def test_names_that_a_pipeline_cannot_get(new: str, kind: str) -> None:
    lake, journal = await base()
    for name in "mn":
        await lake.commit(
            journal, AdvancePipeline(name=name, job="j", expected_transaction_id="", pinned_version=1)
        )
    rename = RenameObject(kind=Kind.PIPELINE, namespace="", name="m", new_namespace="", new_name=new)
    await raises(AlpheusError, lake.commit(journal, rename), kind=kind)
    strange = msgspec.structs.replace(rename, new_name="o", new_namespace="a")
    await raises(InvalidInput, lake.commit(journal, strange), kind="bad_name")


async def test_properties_are_edited() -> None:
    lake, journal = await base()
    await lake.commit(journal, UpdateNamespace(name="a", set={"q": "2", "p": ""}, unset=("none",)))
    assert (await model_of(journal))["namespace a"] == {"p": "", "q": "2"}
    await lake.commit(journal, UpdateNamespace(name="a", unset=("q",)))
    assert (await model_of(journal))["namespace a"] == {"p": ""}


# --- a transaction's view of its own writes --------------------------------------------------------


async def overlay_of(journal: Journal, transaction_id: str, begin: int) -> Overlay:
    async def load(version: int, names: list[fmt.ObjectName]) -> object:
        return (await journal.load(version, names)).objects

    return Overlay(load, journal.list, journal.keys, transaction_id, begin=begin)  # type: ignore[arg-type]


@given(seed=st.integers(0, 1 << 32))
def test_reading_inside_a_transaction_is_reading_after_it(seed: int) -> None:
    async def run() -> None:
        rng = random.Random(seed)
        lake = Lake(seed=seed)
        journal = await lake.create(order=3, version_digits=rng.choice((32, 64)))
        past = {0: await model_of(journal)}
        for _ in range(rng.randint(0, 12)):
            try:
                operation = random_operation(rng, past[journal.head.version], lake.identities, past)
                await lake.commit(journal, operation)
                past[journal.head.version] = await model_of(journal)
            except AlpheusError:
                continue
        begin, model = journal.head.version, await model_of(journal)
        id = lake.identities.uuid7()
        overlay = await overlay_of(journal, id, begin)
        accepted: list[Operation] = []
        for _ in range(rng.randint(1, 15)):
            operation = random_operation(rng, model, lake.identities, past)
            mine: Model = dict(model)
            possible = True
            try:
                apply_to_model(mine, operation, id, past)
            except (AssertionError, KeyError) as impossible:
                if "lives elsewhere" in str(impossible):
                    continue  # only the commit can decide
                possible = False
            answer = ""
            try:
                executed = await overlay.execute(operation)
            except AlpheusError as error:
                answer = error.kind
            if possible:
                assert not answer, f"{operation} is possible, and was refused: {answer}"
                model = mine
                accepted.append(executed.action.operation or operation)
            else:
                assert answer, f"{operation} is not possible, and nobody said so"
            if answer and rng.random() < 0.3:
                # The commit refuses the same operation with the same kind.
                again = Transaction(id=id, begin_version=begin, operations=(*accepted, operation))
                await raises(AlpheusError, journal.commit(again), kind=answer)
                assert journal.head.version == begin
            if accepted and rng.random() < 0.3:
                await same_view(overlay, lake, journal, accepted, id, begin, rng)

    asyncio.run(run())


async def same_view(
    overlay: Overlay,
    lake: Lake,
    journal: Journal,
    operations: list[Operation],
    id: str,
    begin: int,
    rng: random.Random,
) -> None:
    """Check that the overlay reads like a catalog on which the same operations were committed."""
    from alpheus_journal.storage.memory import MemoryStorage
    from alpheus_journal.testing import listed

    copy = MemoryStorage()
    for path in await listed(lake.storage, ""):
        await copy.put(path, await lake.storage.read(path, size_max=1 << 20))
    after = await lake.open(copy)
    await after.commit(Transaction(id=id, begin_version=begin, operations=tuple(operations)))
    for kind, namespace in (
        (Kind.NAMESPACE, ""), (Kind.PIPELINE, ""),
        *((kind, n) for kind in (Kind.TABLE, Kind.VIEW) for n in ("a", "b", "ü-é", "none")),
    ):  # fmt: skip
        for _ in range(6):
            limit, prefix = rng.choice((0, 1, 2, 3)), rng.choice(("", "", "x", "名", "ü", "a"))
            at = rng.choice(("", "", "a", "x", "y", "b"))
            try:
                page = await after.list(None, kind, namespace=namespace, prefix=prefix, limit=limit, after=at)
            except NotFound:
                await raises(NotFound, overlay.list(kind, namespace, prefix, limit, at), kind="no_namespace")
                continue
            names, more = await overlay.list(kind, namespace, prefix, limit, at)
            # A page may end early; then it says that more names follow.
            assert names == list(page.names)[: len(names)], (kind, namespace, prefix, limit, at)
            assert more or names == list(page.names)
            collected, position = list(names), names[-1] if names else at
            while more:
                names, more = await overlay.list(kind, namespace, prefix, limit, position)
                assert names or not more, "a page without names that says there are more"
                collected += names
                position = names[-1] if names else position
            everything = await after.list(None, kind, namespace=namespace, prefix=prefix, after=at)
            assert collected == list(everything.names)
    view = await model_of(after)
    names_ = [fmt.namespace_name(n) for n in ("a", "b", "ü-é")]
    names_ += [fmt.ObjectName(kind, "a", n) for kind in (Kind.TABLE, Kind.VIEW) for n in ("x", "y")]
    loaded = await overlay.load(names_)
    committed = (await after.load(None, names_)).objects
    # The overlay does not store its definitions, and they have no checksums.
    assert [s and definition_of(n, s) for n, s in zip(names_, loaded, strict=True)] == [
        s and definition_of(n, s) for n, s in zip(names_, committed, strict=True)
    ]
    assert [s is not None for s in loaded] == [str(n) in view for n in names_]


async def test_dropping_what_a_namespace_holds_step_by_step() -> None:
    """Each attempt looks again: after a drop, the next child must be found."""
    lake, journal = await base()
    await lake.commit(journal, lake.table("a", "u"), lake.table("a", "v"))
    overlay = await overlay_of(journal, lake.identities.uuid7(), 2)
    for name in ("t", "u", "v"):
        await raises(NotEmpty, overlay.execute(DropNamespace(name="a")))
        await overlay.execute(DropTable(namespace="a", name=name))
    await overlay.execute(DropNamespace(name="a"))
    assert (await overlay.list(Kind.NAMESPACE))[0] == ["empty"]
    await raises(NotFound, overlay.list(Kind.TABLE, "a"), kind="no_namespace")
    await overlay.execute(lake.namespace("a"))
    assert await overlay.list(Kind.TABLE, "a") == ([], False)


async def test_files_inside_a_transaction() -> None:
    """The overlay cannot open segments, but it makes every other refusal that the commit makes."""
    lake, journal = await base()
    overlay = await overlay_of(journal, lake.identities.uuid7(), 1)
    for operation, kind in REFUSED:
        if isinstance(operation, AppendFiles | OverwriteFiles) and kind != "bad_data":
            await raises(AlpheusError, overlay.execute(operation), kind=kind)
