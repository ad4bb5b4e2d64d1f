"""Values to messages and back: no part is lost on the way, and hostile input gives a named error."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal.errors import (
    CLASSES,
    KINDS,
    AlpheusError,
    Conflict,
    Corrupt,
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
)
from alpheus_journal.format import CATALOG, Kind, ObjectName, namespace_name, table_name
from alpheus_journal.model.answers import (
    Back,
    CatalogInfo,
    Change,
    CheckSummary,
    Committed,
    Event,
    Finding,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Pin,
    Pinned,
    PinObject,
    StoredObject,
    Tag,
    Timestamp,
    VersionInfo,
)
from alpheus_journal.model.definitions import (
    CatalogDef,
    Column,
    DeclaredTable,
    InputPosition,
    JobDeclaration,
    PartitionField,
    Reference,
    Segment,
    SortField,
    TagObject,
)
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operation_messages import operations_digest
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
    CreateCatalog,
    CreateNamespace,
    CreateSubscription,
    CreateTable,
    CreateTag,
    CreateView,
    DropNamespace,
    DropSubscription,
    DropTable,
    DropTag,
    DropView,
    FenceCollection,
    LostVersion,
    OverwriteFiles,
    PlannedStart,
    Read,
    RecordedTransaction,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceTag,
    ReplaceView,
    RestoreTable,
    TableCounters,
    Transaction,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    UpgradeCatalog,
    Writer,
)
from alpheus_journal.wire import errors
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import actions_pb2
from alpheus_pb.v1 import service_pb2 as pb

UUID = "01920000-0000-7000-8000-000000000001"
SEGMENT = Segment(
    path=f"manifest/{UUID}/{UUID}.arrow", file_count=1, row_count=2, size_bytes=3, sha256=b"s" * 32,
    segment_size_bytes=4,
)  # fmt: skip
OPERATIONS = (
    CreateCatalog(definition=CatalogDef(id=UUID, properties={"a": "b"})),
    UpdateCatalog(set={"x": "y"}, unset=("z",)),
    CreateNamespace(name="sales", namespace_id=UUID, properties={"k": "v"}, data_root="s3://x"),
    UpdateNamespace(name="sales", set={"k": "v"}, unset=("u", "w")),
    DropNamespace(name="sales"),
    CreateTable(
        namespace="sales",
        name="orders",
        table_id=UUID,
        columns=(
            Column(id=1, name="id", type="INT8", nullable=False),
            Column(
                id=2,
                name="tags",
                type="LIST",
                element=Column(id=3, name="element", type="VARCHAR"),
            ),
            Column(id=4, name="note", type="VARCHAR", write_default=b""),
        ),
        properties={"p": "q"},
        partition_spec=(PartitionField(1), PartitionField(4, "YEAR")),
        sort_order=(SortField(4, True, False), SortField(1, False, True)),
    ),
    UpdateTable(namespace="sales", name="orders", set={"k": "v"}, unset=("u",)),
    UpdateTable(
        namespace="sales",
        name="orders",
        add_columns=(
            AddColumn(column=Column(id=0, name="d", type="DATE", initial_default=b"1234", write_default=b"")),
        ),
        defaults={"note": b"x", "id": None, "empty": b""},
    ),
    DropTable(namespace="sales", name="orders", purge=True),
    AppendFiles(namespace="sales", name="orders", table_id=UUID, segments=(SEGMENT,)),
    OverwriteFiles(namespace="sales", name="orders", table_id=UUID, segments=()),
    ChangeRows(
        namespace="sales",
        name="orders",
        table_id=UUID,
        base_sequence=7,
        mode=ChangeMode.MERGE,
        segments=(SEGMENT,),
        removed=(SEGMENT,),
        predicates=(b"one", b"two"),
        scan=b"three",
        changes=(SEGMENT,),
        sources=(SEGMENT.path,),
        rows_hidden=4,
        rows_kept=5,
        rows_dead=6,
    ),
    AdvancePipeline(
        name="mart",
        job="daily",
        expected_transaction_id="",
        pinned_version=7,
        inputs={"orders": InputPosition(table_id=UUID, version=6, table="sales.orders")},
        params={"day": "1"},
        called_at_millis=1_767_225_600_000,
        declaration=JobDeclaration(
            inputs=(DeclaredTable(table="sales.orders", table_id=UUID),),
            outputs=(DeclaredTable(table="mart.daily"),),
            open=True,
        ),
        former_job="nightly",
        expected_pipeline_id="",
    ),
    RenameObject(kind=Kind.PIPELINE, namespace="", name="mart", new_namespace="", new_name="house"),
    CreateSubscription(
        name="mail",
        subscription_id=UUID,
        lease_millis=30_000,
        namespaces=("sales",),
        name_patterns=("sales.*",),
        kinds=(Kind.TABLE,),
        actions=("TABLE_INSERT",),
        details=True,
        next_version=7,
    ),
    DropSubscription(name="mail"),
    CreateTag(
        name="v1",
        tag_id=UUID,
        version=7,
        commit_id=UUID,
        version_created_at_millis=1_767_225_600_000,
        pin_path=f"pin/{UUID}.arrow",
        expire_at_millis=1_767_225_700_000,
        message="why",
        properties={"a": "b"},
        object_count=2,
        table_count=1,
        row_count=0,
        chosen=(TagObject("a", "t", 2), TagObject("b", "", 3)),
        left_out=(TagObject("a", "u"),),
        lacking={"7c47ba50-0268-4fa9-8650-2637205c5a84": 2},
    ),
    ReplaceTag(
        name="v1", version=8, commit_id=UUID, version_created_at_millis=9, pin_path=f"pin/{UUID}.arrow"
    ),
    DropTag(name="v1", expected_pin_path=f"pin/{UUID}.arrow"),
    RenameObject(kind=Kind.TAG, namespace="", name="v1", new_namespace="", new_name="v2"),
    ClaimSubscription(
        name="mail",
        subscription_id=UUID,
        expected_epoch=1,
        expected_position_path="sub/" + UUID,
        next_version=8,
        holder="ann",
        position_path="sub/" + UUID,
    ),
    CancelTransaction(transaction_id=UUID),
    Repair(head_version=3, lost=(LostVersion(version=4, commit_id=UUID, known_from="vn/latest"),)),
    UpgradeCatalog(revision=2),
    FenceCollection(
        cutoff_millis=4,
        disregarded=("7c47ba50-0268-4fa9-8650-2637205c5a84",),
        starts=(
            PlannedStart(
                table_id="7c47ba50-0268-4fa9-8650-2637205c5a84",
                version=7,
                namespace="a",
                name="t",
                age_millis=8,
                keep_versions=9,
            ),
        ),
    ),
    RenameObject(kind=Kind.VIEW, namespace="sales", name="v", new_namespace="hr", new_name="w"),
    RegisterTable(
        namespace="sales", name="ice", table_id=UUID, metadata_location="s3://b/1.json", properties={"a": "b"}
    ),
    CommitIceberg(namespace="sales", name="ice", metadata_location="s3://b/2.json", expected="s3://b/1.json"),
    RestoreTable(namespace="sales", name="orders", version=3),
    Undrop(
        kind=Kind.TABLE,
        namespace="sales",
        name="orders",
        version=3,
        new_namespace="sales",
        new_name="again",
        counters=(TableCounters(table_id=UUID, next_column_id=4, sequence=5, schema_id=6),),
    ),
    CreateView(
        namespace="sales",
        name="v",
        view_id=UUID,
        sql="select 1",
        dialect="spark",
        references=(Reference("sales", "orders"),),
        schema_binding=True,
        columns=(Column(id=1, name="one", type="INT4"),),
        default_namespace="sales",
        properties={"a": "b"},
    ),
    ReplaceView(namespace="sales", name="v", sql="select 2", dialect="spark"),
    DropView(namespace="sales", name="v"),
)


def recorded(*actions: Action) -> RecordedTransaction:
    return RecordedTransaction(
        id=UUID,
        operations_digest=b"d" * 32,
        principal="me@host",
        principal_authenticated=False,
        message="why",
        properties={"run": "1"},
        serializable=True,
        branch="",
        begin_version=3,
        committed_at_millis=1_700_000_000_000,
        actions=actions,
    )


RECORDED = recorded(
    Action(type="TABLE_INSERT", name=table_name("sales", "orders"), operation=OPERATIONS[8], path_after="x"),
    Action(type="UNKNOWN_999", name=CATALOG, operation=None, path_before="a"),
)
EVENT = Event(
    version=4,
    created_at_millis=5,
    token="t.4.c",
    transactions=(RECORDED,),
    changes=(
        Change(name=CATALOG, type="updated", path_before="a", path_after="b", definition_before=b"1"),
        Change(name=table_name("s", "t"), type="created", path_after="b", definition_after=b"2"),
        Change(name=namespace_name("s"), type="dropped", path_before="b"),
    ),
)


def test_transaction_round_trip() -> None:
    value = Transaction(
        id=UUID, begin_version=9, operations=OPERATIONS, principal="me", message="m",
        properties={"a": "b"}, serializable=True, key="dag/1", writer=Writer(name="w", sequence=(1 << 63) - 1),
        reads=(
            Read(type="TABLE_SELECT", name=table_name("s", "t"), columns=("a", "b.c")),
            Read(type="NAMESPACE_SHOW_TABLES", name=namespace_name("s"), prefix="p"),
            Read(type="CATALOG_DESCRIBE", name=CATALOG),
        ),
    )  # fmt: skip
    data = wire.encode_transaction_request(value).SerializeToString()
    decoded = wire.decode_transaction_request(pb.CommitRequest.FromString(data))
    assert decoded == value
    assert operations_digest(decoded.operations) == operations_digest(value.operations)


def test_every_operation_is_covered() -> None:
    declared = {field.name for field in actions_pb2.Operation.DESCRIPTOR.fields}
    sent = {
        operation.WhichOneof("operation")
        for operation in wire.encode_transaction_request(
            Transaction(id=UUID, begin_version=0, operations=OPERATIONS)
        ).operations
    }
    assert sent == declared


def test_unknown_operation_is_named() -> None:
    request = pb.CommitRequest(transaction_id=UUID, operations=[actions_pb2.Operation()])
    with pytest.raises(InvalidInput, match="operation 0") as caught:
        wire.decode_transaction_request(request)
    assert caught.value.kind == "not_supported"


def test_unknown_column_type_is_named() -> None:
    request = wire.encode_transaction_request(
        Transaction(id=UUID, begin_version=0, operations=(OPERATIONS[0], OPERATIONS[5]))
    )
    request.operations[1].create_table.schema.columns[0].type = 9999  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="operation 1"):
        wire.decode_transaction_request(request)


@pytest.mark.parametrize("broken", [{"begin_version": -1}, {"message": "\ud800"}, {"properties": {"a": 1}}])
def test_what_no_message_can_hold_is_invalid_input(broken: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"id": UUID, "begin_version": 0, "operations": ()}
    with pytest.raises(InvalidInput, match=UUID):
        wire.encode_transaction_request(Transaction(**{**arguments, **broken}))


def test_event_round_trip() -> None:
    data = wire.encode_event(EVENT).SerializeToString()
    assert wire.decode_event(pb.EventMessage.FromString(data)) == EVENT


def test_recorded_round_trip() -> None:
    value = recorded(
        *(
            Action(type="CATALOG_ALTER", name=ObjectName(kind, "n", "o"), operation=operation)
            for kind, operation in zip([*Kind, *Kind], OPERATIONS, strict=False)
        )
    )
    assert wire.decode_recorded(wire.encode_recorded(value)) == value


def test_hostile_recorded_is_corrupt() -> None:
    message = wire.encode_recorded(RECORDED)
    message.actions[0].object_def.type = 77  # type: ignore[assignment]
    with pytest.raises(Corrupt):
        wire.decode_recorded(message)
    change = pb.ChangeMessage()
    change.type = 9  # type: ignore[assignment]
    with pytest.raises(Corrupt):
        wire.decode_change(change)


PIN = f"pin/{UUID}.arrow"


@pytest.mark.parametrize(
    "at",
    [
        None, 0, 7, (1 << 32) - 1, Timestamp(0), Timestamp(1_700_000_000_000), Pinned(3, PIN), Pinned(3, PIN, True),
    ],
)  # fmt: skip
def test_at_round_trip(at: int | Timestamp | Pinned | None) -> None:
    data = wire.encode_at(at).SerializeToString()
    assert wire.decode_at(pb.VersionRef.FromString(data)) == at


def test_objects_to_pin() -> None:
    only = (
        PinObject("a", "t", 3),
        PinObject("b", "", Tag("v")),
        PinObject("c"),
        PinObject("d", "u", Back(1)),
    )
    request = wire.encode_pin_request(5, only, only[2:3])
    request = pb.CreatePinRequest.FromString(request.SerializeToString())
    assert wire.decode_at(request.at) == 5
    assert (wire.decode_pin_objects(request.only), wire.decode_pin_objects(request.without)) == (
        only,
        only[2:3],
    )
    request.only[0].at.CopyFrom(wire.encode_at(Pinned(3, PIN)))
    with pytest.raises(InvalidInput, match="by a version, time or tag"):
        wire.decode_pin_objects(request.only)
    chosen = (TagObject("a", "t", 3), TagObject("b", "", 4))
    pin = Pin(
        path=PIN, version=4, commit_id="c", version_created_at_millis=5, object_count=2, chosen=chosen,
        left_out=(TagObject("a", "u"),),
        lacking={"7c47ba50-0268-4fa9-8650-2637205c5a84": 2},
    )  # fmt: skip
    message = pb.CreatePinResponse.FromString(wire.encode_pin(pin).SerializeToString())
    assert wire.decode_pin(message) == pin


def test_bad_references() -> None:
    with pytest.raises(InvalidInput):
        wire.encode_at(-1)
    message = pb.ObjectName()
    message.type = 55  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="object type 55"):
        wire.decode_name(message)


@pytest.mark.parametrize("kind", list(Kind))
def test_name_round_trip(kind: Kind) -> None:
    name = ObjectName(kind, "a", "b")
    assert wire.decode_name(wire.encode_name(name)) == name


@pytest.mark.parametrize("after", [None, 0, 12, "cat.12.commit"])
@pytest.mark.parametrize("until", [None, 0, 20])
def test_events_request_round_trip(after: int | str | None, until: int | None) -> None:
    query = wire.EventsQuery(
        after=after,
        until=until,
        follow=True,
        details=True,
        filter=EventFilter(
            namespaces=frozenset({"a", "b"}),
            names=frozenset({"a.t"}),
            kinds=frozenset({Kind.TABLE, Kind.VIEW}),
        ),
    )
    data = wire.encode_events_request(query).SerializeToString()
    assert wire.decode_events_request(pb.EventsRequest.FromString(data)) == query


def test_a_writer_has_a_name_or_is_none() -> None:
    nameless = Transaction(id=UUID, begin_version=0, operations=(), writer=Writer(name="", sequence=0))
    with pytest.raises(InvalidInput):
        wire.encode_transaction_request(nameless)
    with pytest.raises(InvalidInput):
        wire.decode_transaction_request(pb.CommitRequest(transaction_id=UUID, writer_sequence=3))


def test_answers_round_trip() -> None:
    committed = Committed(
        version=1, transaction_id=UUID, created_at_millis=2, token="t", duplicate=True, rows_added=3,
        rows_removed=4, files_added=5,
    )  # fmt: skip
    assert wire.decode_committed(wire.encode_committed(committed), UUID) == committed
    endless = msgspec.structs.replace(
        committed, rows_added=1 << 70, rows_removed=1 << 64, files_added=1 << 65
    )
    told = wire.decode_committed(wire.encode_committed(endless), UUID)
    assert (told.rows_added, told.rows_removed, told.files_added) == ((1 << 63) - 1,) * 3
    other = UUID[:-1] + "0"  # a duplicate by retry key: not the requested id
    assert wire.decode_committed(wire.encode_committed(committed), other) == committed
    assert wire.decode_committed(pb.CommitResponse(version=1), other).transaction_id == other
    for outcome in (
        Outcome(state="committed", commit=committed),
        Outcome(state="cancelled"),
        Outcome(state="unknown"),
    ):
        assert wire.decode_outcome(wire.encode_outcome(outcome), UUID) == outcome
    info = CatalogInfo(
        catalog_id="c",
        storage_url="file:///lake",
        version_digits=32,
        definition=CatalogDef(id="c", order=64, properties={"a": "b"}, serializable_default=True),
        version=5,
        oldest_version=2,
        token="c.5.x",
        software_version="0.1.0",
    )
    assert wire.decode_info(wire.encode_info(info)) == info
    loaded = Loaded(version=3, objects=(None, StoredObject("p", b"d"), StoredObject("q", b"")))
    assert wire.decode_loaded(wire.encode_loaded(loaded)) == loaded
    page = Page(version=3, names=("a", "b"), more=True)
    assert wire.decode_page(wire.encode_page(page)) == page
    resolved = VersionInfo(version=1, created_at_millis=2, token="t")
    assert wire.decode_version_info(wire.encode_version_info(resolved)) == resolved
    entry = LogEntry(version=3, created_at_millis=4, transaction=RECORDED)
    assert wire.decode_log_entry(wire.encode_log_entry(entry)) == entry
    for check in (
        Finding(kind="corrupt_node", message="m", path="p", version=0),
        Finding(kind="corrupt_node", message="m"),
        CheckSummary(versions=1, nodes=2, definitions=3, manifests=4, findings=5),
    ):
        assert wire.decode_check(wire.encode_check(check)) == check


def test_newer_protocol_is_refused() -> None:
    message = pb.GetInfoResponse(protocol_version=wire.PROTOCOL_VERSION + 1)
    with pytest.raises(InvalidInput) as caught:
        wire.decode_info(message)
    assert caught.value.kind == "newer_format"


# --- errors ----------------------------------------------------------------------------------------

ERRORS = [
    Conflict(
        "m",
        mine="a",
        theirs="b",
        transaction_id=UUID,
        principal="ann",
        committed_at_millis=1 << 60,
        retryable=False,
        version=3,
    ),
    Expired("m", oldest=0, hint="h"),
    Exhausted("m", retry_after=0.25, kind="queue_full"),
    Exhausted("m", kind="subscriber_too_slow", resume_token="c.4.x"),
    OutcomeUnknown("m", transaction_id=UUID),
    *(cls("m", hint="h", path="p", version=0) for name, cls in CLASSES.items() if name != "AlpheusError"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__}-{error.kind}")
def test_error_round_trip(error: AlpheusError) -> None:
    back = errors.error_of_detail(errors.error_detail(error))
    assert type(back) is type(error)
    assert back.__dict__ == error.__dict__


def test_every_class_has_its_code() -> None:
    assert set(errors.STATUS_CODES) == set(CLASSES)
    assert all(hasattr(grpc.StatusCode, code) for code in errors.STATUS_CODES.values())

    class Special(NotFound):
        """A subclass is sent as its known parent."""

    assert errors.grpc_status_code_name(Special("m")) == "NOT_FOUND"
    assert type(errors.error_of_detail(errors.error_detail(Special("m")))) is NotFound


def test_newer_and_broken_errors_promise_nothing() -> None:
    newer = pb.ErrorDetail(error="Throttled", kind="brand_new", message="m").SerializeToString()
    error = errors.error_of_detail(newer)
    assert type(error) is OutcomeUnknown
    assert (error.kind, error.message) == ("brand_new", "m")
    known = errors.error_of_detail(pb.ErrorDetail(error="NotFound", kind="brand_new").SerializeToString())
    assert type(known) is NotFound
    assert known.kind == "brand_new"
    assert type(errors.error_of_detail(b"\xff\xff\xff")) is OutcomeUnknown


@given(st.text(max_size=4000), st.sampled_from(sorted(KINDS)))
def test_details_always_fit_into_metadata(text: str, kind: str) -> None:
    error = Conflict(text * 3, hint=text, path=text, mine=text, theirs=text, principal=text, kind=kind)
    data = errors.error_detail(error)
    assert len(data) < 5000
    assert errors.error_of_detail(data).kind == kind


def test_cut_counts_bytes_and_keeps_characters_whole() -> None:
    assert errors.cut("abc", 3) == "abc"
    assert errors.cut("ééé", 5) == "é…"
    assert errors.cut("a\ud800", 9) == "a?"
