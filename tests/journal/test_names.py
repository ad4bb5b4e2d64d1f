"""Names that no new object may have: one rule for all kinds refuses them on creation and on rename. Objects of older
releases, or of other writers, with such names can be read, renamed and dropped.
"""

from __future__ import annotations

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Finding
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Column, PipelineDef
from alpheus_journal.model.operations import (
    AdvancePipeline,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropView,
    Operation,
    RenameObject,
    Undrop,
    UpdateTable,
)
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, raises

COLUMNS = (Column(id=1, name="id", type="INT8"),)
UNSEEN = ["t\u200b", "\u2060t", "t\x85", "t\U000e0041", "\ufe0f", "t\u2028"]


def table(lake: Lake, name: str, namespace: str = "a") -> CreateTable:
    return CreateTable(namespace=namespace, name=name, table_id=lake.identities.uuid4(), columns=COLUMNS)


def view(lake: Lake, name: str) -> CreateView:
    return CreateView(
        namespace="a", name=name, view_id=lake.identities.uuid4(), sql="select 1", dialect="spark"
    )


def subscription(lake: Lake, name: str) -> CreateSubscription:
    return CreateSubscription(
        name=name, subscription_id=lake.identities.uuid4(), lease_millis=30_000, next_version=1
    )


def advance(name: str, job: str, expected: str = "") -> AdvancePipeline:
    return AdvancePipeline(name=name, job=job, expected_transaction_id=expected, pinned_version=0, inputs={})


def rename(kind: Kind, name: str, new: str) -> RenameObject:
    return RenameObject(kind=kind, namespace="a", name=name, new_namespace="a", new_name=new)


def all_of(lake: Lake, name: str) -> list[Operation]:
    """Return operations that create an object of each kind."""
    namespace = CreateNamespace(name=name, namespace_id=lake.identities.uuid4())
    other = name + "v"
    return [namespace, table(lake, name), view(lake, other), subscription(lake, name), advance(name, "job")]


async def made() -> tuple[Lake, Journal]:
    lake = Lake(storage=MemoryStorage())
    journal = await lake.create()
    await lake.commit(journal, CreateNamespace(name="a", namespace_id=lake.identities.uuid4()))
    return lake, journal


@pytest.mark.parametrize("name", UNSEEN)
async def test_a_name_with_what_nobody_sees_is_refused(name: str) -> None:
    lake, journal = await made()
    await lake.commit(journal, table(lake, "t"))
    await lake.commit(journal, view(lake, "v"))
    version = journal.head.version
    wrong = [
        CreateNamespace(name=name, namespace_id=lake.identities.uuid4()), table(lake, name), view(lake, name),
        subscription(lake, name), advance(name, "job"), advance("p", name), rename(Kind.TABLE, "t", name),
        rename(Kind.VIEW, "v", name),
    ]  # fmt: skip
    for operation in wrong:
        error = await raises(InvalidInput, lake.commit(journal, operation), kind="bad_name")
        assert "invisible character" in error.message
        error.message.encode()
        assert error.message.isprintable()
    await lake.commit(journal, DropTable(namespace="a", name="t"))
    undrop = Undrop(
        kind=Kind.TABLE, namespace="a", name="t", version=version, new_namespace="a", new_name=name
    )
    await raises(InvalidInput, lake.commit(journal, undrop), kind="bad_name")
    assert journal.head.version == version + 1
    await journal.close()


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Apply the rule of an older release, until the patch is undone."""
    monkeypatch.setattr(fmt, "unseen_places", lambda name: iter(()))
    return monkeypatch


@pytest.mark.parametrize("name", UNSEEN)
async def test_objects_that_have_such_a_name_are_used_renamed_and_dropped(
    name: str, older: pytest.MonkeyPatch
) -> None:
    lake, journal = await made()
    for operation in all_of(lake, name):
        await lake.commit(journal, operation)
    await lake.commit(journal, table(lake, "inside", name))
    older.undo()
    await journal.close()
    journal = await lake.open()
    found = await journal.load(
        None, [ObjectName(Kind.TABLE, "a", name), ObjectName(Kind.TABLE, name, "inside")]
    )
    assert all(found.objects)
    page = await journal.list(None, Kind.TABLE, namespace="a")
    assert page.names == (name,)
    assert (await journal.list(None, Kind.PIPELINE)).names == (name,)

    # The existing objects can be used: a table created in the namespace, a table changed, a job advanced.
    await lake.commit(journal, table(lake, "more", name))
    await lake.commit(journal, UpdateTable(namespace="a", name=name, set={"k": "v"}))
    last = await _job_of(journal, name)
    await lake.commit(journal, advance(name, "job", last))
    await lake.commit(journal, rename(Kind.TABLE, name, "seen"))
    await lake.commit(journal, rename(Kind.VIEW, name + "v", "seen_too"))
    version = journal.head.version
    await lake.commit(journal, DropNamespace(name=name, cascade=True))
    await lake.commit(
        journal,
        Undrop(
            kind=Kind.NAMESPACE, namespace=name, name="", version=version, new_namespace=name, new_name=""
        ),
    )
    await lake.commit(journal, DropNamespace(name=name, cascade=True))
    await lake.commit(journal, DropSubscription(name=name))
    await lake.commit(journal, DropTable(namespace="a", name="seen"))
    await lake.commit(journal, DropView(namespace="a", name="seen_too"))
    assert (await journal.list(None, Kind.NAMESPACE)).names == ("a",)
    # The names are gone, and cannot be created again.
    with pytest.raises(AlpheusError):
        await lake.commit(journal, table(lake, name))
    async for finding in journal.check():
        assert not isinstance(finding, Finding), finding
    await journal.close()


async def _job_of(journal: Journal, pipeline: str) -> str:
    loaded = await journal.load(None, [fmt.pipeline_name(pipeline)])
    assert loaded.objects[0] is not None
    definition = decode_definition(Kind.PIPELINE, loaded.objects[0].definition, "here")
    assert isinstance(definition, PipelineDef)
    return definition.jobs["job"].last_transaction_id


async def test_a_job_that_has_such_a_name_goes_on(older: pytest.MonkeyPatch) -> None:
    lake, journal = await made()
    first = await lake.commit(journal, advance("p", "job\u200b"))
    older.undo()
    await lake.commit(journal, advance("p", "job\u200b", first.transaction_id))
    await raises(InvalidInput, lake.commit(journal, advance("p", "job\u200b\u200b")), kind="bad_name")
    await journal.close()
