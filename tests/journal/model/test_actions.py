"""Action rows of a root: round trips, digests, and malformed rows."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.conflicts.facets import FACET_RULES
from alpheus_journal.errors import Corrupt
from alpheus_journal.execute.execute import EXECUTE_RULES
from alpheus_journal.format import Kind
from alpheus_journal.model.action_rows import (
    action_message,
    decode_transactions,
    encode_transaction,
    external_row,
    parse_row,
    row_value,
)
from alpheus_journal.model.definitions import (
    CatalogDef,
    Column,
    DeclaredTable,
    InputPosition,
    JobDeclaration,
    Reference,
    Segment,
    TagObject,
)
from alpheus_journal.model.operation_messages import (
    CODECS,
    action_type,
    decode_operation,
    encode_operation,
    operations_digest,
)
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
    Effect,
    FenceCollection,
    LostVersion,
    Operation,
    OverwriteFiles,
    PlannedStart,
    RecordedTransaction,
    RegisterTable,
    RenameObject,
    Repair,
    ReplaceTag,
    ReplaceView,
    RestoreTable,
    TableCounters,
    Undrop,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    UpgradeCatalog,
)
from alpheus_pb.v1 import actions_pb2 as pb

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
text = st.text(st.characters(codec="utf-8"), max_size=8)
name = st.sampled_from(["a", "ü", "名𝄞"])
props = st.dictionaries(text, text, max_size=3)
texts = st.lists(text, max_size=3).map(tuple)
segment = st.builds(
    Segment,
    path=text.filter(bool), file_count=st.integers(0, 9), row_count=st.integers(0, 9), size_bytes=st.integers(0, 9),
    sha256=st.binary(max_size=32), segment_size_bytes=st.integers(0, 9),
)  # fmt: skip
segments = st.lists(segment, max_size=2).map(tuple)
columns = st.just((Column(id=1, name="c", type="LIST", element=Column(id=2, name="element", type="INT8")),))
inputs = st.dictionaries(
    text, st.builds(InputPosition, table_id=text, version=st.integers(0, 99), table=text), max_size=2
)
new_columns = st.builds(
    Column, id=st.integers(0, 9), name=text.filter(bool), type=st.just("INT8"), nullable=st.booleans()
)
view_fields: dict[str, Any] = {
    "namespace": name, "name": name, "sql": text, "dialect": text, "schema_binding": st.booleans(),
    "references": st.lists(st.builds(Reference, text, text), max_size=2).map(tuple),
    "columns": st.just(()) | columns, "default_namespace": text, "properties": props,
}  # fmt: skip
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(CreateCatalog, definition=st.builds(CatalogDef, id=text, order=st.integers(3, 1024), properties=props)),
    st.builds(UpdateCatalog, set=props, unset=texts),
    st.builds(CreateNamespace, name=name, namespace_id=text, properties=props, data_root=text),
    st.builds(UpdateNamespace, name=name, set=props, unset=texts),
    st.builds(DropNamespace, name=name, cascade=st.booleans()),
    st.builds(CreateTable, namespace=name, name=name, table_id=text, columns=columns, properties=props),
    st.builds(
        UpdateTable, namespace=name, name=name, set=props, unset=texts, drop_columns=texts, column_order=texts,
        add_columns=st.lists(st.builds(AddColumn, column=new_columns, parent=text), max_size=2).map(tuple),
        rename_columns=props, retype_columns=st.dictionaries(text, new_columns, max_size=2),
        nullable_columns=st.dictionaries(text, st.booleans(), max_size=2),
    ),
    st.builds(RegisterTable, namespace=name, name=name, table_id=text, metadata_location=text, properties=props),
    st.builds(CommitIceberg, namespace=name, name=name, metadata_location=text, expected=text),
    st.builds(RestoreTable, namespace=name, name=name, version=st.integers(0, 99)),
    st.builds(
        RenameObject, kind=st.sampled_from([Kind.TABLE, Kind.VIEW]), namespace=name, name=name, new_namespace=name,
        new_name=name,
    ),
    st.builds(Undrop, kind=st.just(Kind.NAMESPACE), namespace=name, version=st.integers(0, 99), new_namespace=name),
    st.builds(
        Undrop, kind=st.sampled_from([Kind.TABLE, Kind.VIEW]), namespace=name, name=name, version=st.integers(0, 99),
        new_namespace=name, new_name=name,
    ),
    st.builds(CreateView, view_id=text, **view_fields),
    st.builds(ReplaceView, **view_fields),
    st.builds(DropView, namespace=name, name=name),
    st.builds(DropTable, namespace=name, name=name, purge=st.booleans()),
    st.builds(AppendFiles, namespace=name, name=name, table_id=text, segments=segments),
    st.builds(OverwriteFiles, namespace=name, name=name, table_id=text, segments=segments),
    st.builds(
        ChangeRows, namespace=name, name=name, table_id=text, base_sequence=st.integers(0, 99),
        mode=st.sampled_from(ChangeMode), segments=segments, removed=segments,
        predicates=st.tuples(st.binary(max_size=9)),
        scan=st.binary(max_size=9), changes=segments, sources=st.tuples(text), rows_hidden=st.integers(0, 99),
        rows_kept=st.integers(0, 99), rows_dead=st.integers(0, 99),
    ),
    st.builds(
        AdvancePipeline, name=name, job=text, expected_transaction_id=text, pinned_version=st.integers(0, 99),
        inputs=inputs, state=text, error=text, params=props, former_job=text,
        declaration=st.none() | st.builds(
            JobDeclaration,
            outputs=st.lists(st.builds(DeclaredTable, table=text, table_id=text), max_size=2).map(tuple),
            open=st.booleans(),
        ),
        expected_pipeline_id=st.none() | text,
    ),
    st.builds(CancelTransaction, transaction_id=text),
    st.builds(
        Repair, head_version=st.integers(0, 99),
        lost=st.lists(
            st.builds(LostVersion, version=st.integers(0, 99), commit_id=text, known_from=text), max_size=2
        ).map(tuple),
    ),
    st.builds(
        CreateSubscription, name=name, subscription_id=text, lease_millis=st.integers(0, 99),
        namespaces=st.tuples(text), names=st.tuples(name), name_patterns=st.tuples(text),
        kinds=st.sampled_from([(), (Kind.TABLE,), (Kind.VIEW, Kind.SUBSCRIPTION)]), actions=st.tuples(text),
        details=st.booleans(), next_version=st.integers(0, 99), token=text,
    ),
    st.builds(DropSubscription, name=name),
    st.builds(
        ClaimSubscription, name=name, subscription_id=text, expected_epoch=st.integers(0, 99),
        expected_position_path=text, next_version=st.integers(0, 99), token=text, holder=text, position_path=text,
        previous_position_path=text,
    ),
)  # fmt: skip


def effects_of(operation: Operation) -> tuple[Effect, ...]:
    if isinstance(operation, RenameObject):
        return (Effect(name=operation.new_target, path_after="y"),)
    if isinstance(operation, DropNamespace) and operation.cascade:
        return (Effect(name=fmt.table_name(operation.name, "t"), path_before="z"),)
    return ()


def recorded(*operations: Operation, id: str = ID, **changes: object) -> RecordedTransaction:
    fields: dict[str, object] = {
        "id": id, "operations_digest": operations_digest(operations), "principal": "ann",
        "principal_authenticated": True, "message": "m", "properties": {"a": "b"}, "serializable": False,
        "branch": "", "begin_version": 3, "committed_at_millis": 17,
        "actions": tuple(
            Action(
                type=action_type(o), name=o.target, operation=o, path_before="x", path_after="y", also=effects_of(o)
            )
            for o in operations
        ),
    }  # fmt: skip
    return RecordedTransaction(**(fields | changes))  # type: ignore[arg-type]


def parsed(values: list[bytes]) -> list[pb.ActionDef]:
    return [parse_row(row_value(value), "vn/x").message for value in values]


@given(operations)
def test_operations_round_trip(operation: Operation) -> None:
    assert decode_operation(encode_operation(operation)) == operation
    assert decode_operation(pb.Operation()) is None


@given(st.lists(st.lists(operations, max_size=3), max_size=3), st.sampled_from([32, 64]))
def test_transactions_round_trip(groups: list[list[Operation]], digits: int) -> None:
    keys = fmt.Keys(version_digits=digits)
    transactions = [recorded(*group, serializable=bool(n % 2)) for n, group in enumerate(groups)]
    rows = [row for transaction in transactions for row in encode_transaction(transaction, keys)]
    assert decode_transactions(parsed([value for _, value in rows]), "vn/x") == tuple(transactions)
    for key, value in rows:
        assert key == fmt.ROW_CATALOG_DEF or keys.parse(key) is not None
        assert row_value(value).isascii()


@given(st.lists(operations, min_size=2, max_size=4))
def test_the_digest_tells_operations_apart(some: list[Operation]) -> None:
    digest = operations_digest(some)
    assert digest == operations_digest([decode_operation(encode_operation(o)) for o in some])  # type: ignore[misc]
    assert digest != operations_digest(some[:-1])
    if some != some[::-1]:
        assert digest != operations_digest(some[::-1])


def test_every_operation_has_its_type() -> None:
    types = set()
    for operation in (
        UpdateNamespace(name="a", set={"k": "v"}),
        UpdateNamespace(name="a", unset=("k",)),
        UpdateNamespace(name="a", set={"k": "v"}, unset=("l",)),
        CreateNamespace(name="a", namespace_id=ID),
        DropTable(namespace="a", name="t"),
        CancelTransaction(transaction_id=ID),
    ):
        types.add(action_type(operation))
        message = action_message(
            Action(type=action_type(operation), name=operation.target, operation=operation)
        )
        assert pb.ActionType.Name(message.type) == action_type(operation)
    assert len(types) == 6


def test_the_digest_passes_over_the_ids_of_new_columns() -> None:
    def adding(id: int, name: str = "c") -> Operation:
        column = Column(
            id=id, name=name, type="LIST", element=Column(id=id and id + 1, name="element", type="INT8")
        )
        return UpdateTable(namespace="a", name="t", add_columns=(AddColumn(column=column),))

    assert operations_digest([adding(0)]) == operations_digest([adding(7)])
    assert operations_digest([adding(0)]) != operations_digest([adding(0, "d")])


@pytest.mark.parametrize(
    ("changes", "type", "keys"),
    [
        (
            {"add_columns": (AddColumn(column=Column(id=2, name="d", type="INT8")),)},
            "TABLE_ALTER_ADD_COLUMNS",
            ["d"],
        ),
        ({"drop_columns": ("c", "d")}, "TABLE_ALTER_REMOVE_COLUMNS", ["c", "d"]),
        ({"drop_columns": ("c",), "set": {"k": "v"}}, "TABLE_ALTER", ["k"]),
        ({"rename_columns": {"c": "d"}}, "TABLE_ALTER", []),
    ],
)
def test_columns_in_the_formats_own_words(changes: dict[str, Any], type: str, keys: list[str]) -> None:
    operation = UpdateTable(namespace="a", name="t", **changes)
    assert action_type(operation) == type
    message = action_message(Action(type=type, name=operation.target, operation=operation))
    assert list(pb.ActionDetail.FromString(getattr(message, "def")).keys) == keys


def test_keys_of_updates_are_the_formats_own_detail() -> None:
    operation = UpdateTable(namespace="a", name="t", set={"k": "v"}, unset=("l",))
    message = action_message(Action(type="TABLE_ALTER", name=operation.target, operation=operation))
    assert list(pb.ActionDetail.FromString(getattr(message, "def")).keys) == ["k", "l"]


def test_unknown_actions_are_kept_without_operation() -> None:
    header, *_ = encode_transaction(recorded(DropNamespace(name="a")), fmt.Keys())
    unknown = pb.ActionDef(type=77, object_def=pb.ObjectDef(type=1, namespace_name="a"))  # type: ignore[arg-type]
    (transaction,) = decode_transactions([*parsed([header[1]]), unknown], "vn/x")
    assert (transaction.actions[0].type, transaction.actions[0].operation) == ("UNKNOWN_77", None)


def test_actions_before_the_first_header_are_another_writers() -> None:
    rows = [value for _, value in encode_transaction(recorded(DropNamespace(name="a")), fmt.Keys())]
    assert decode_transactions(parsed([rows[1], *rows]), "vn/x") == decode_transactions(parsed(rows), "vn/x")


def test_external_rows() -> None:
    path = fmt.action_path(ID)
    row = parse_row(row_value(external_row(path, b"content")), "vn/x")
    assert (row.external_path, len(row.external_sha256)) == (path, 32)


TWO = recorded(DropNamespace(name="a"), DropTable(namespace="a", name="t"))
ROWS = [value for _, value in encode_transaction(TWO, fmt.Keys())]
STRANGE = [
    pb.ActionDef(type=3, object_def=pb.ObjectDef(type=4)).SerializeToString(),  # type: ignore[arg-type]
    pb.ActionDef(type=3, **{"def": b"\x01"}).SerializeToString(),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    "values",
    [
        ["!"], ["YQ"], ["\u00e9"], [b64encode(b"\xff\xff").decode()],
        [row_value(external_row("../x", b""))], [row_value(external_row("vn/latest", b""))],
        [row_value(ROWS[0])], [row_value(value) for value in ROWS[:2]],
        [row_value(value) for value in (*ROWS, ROWS[2])],
        [row_value(pb.ActionDef(type=pb.TRANSACTION, **{"def": b"\xff"}).SerializeToString())],
        [row_value(pb.ActionDef(type=pb.TRANSACTION).SerializeToString())],
        [row_value(value) for value in (*ROWS[:2], STRANGE[0])],
        [row_value(value) for value in (*ROWS[:2], STRANGE[1])],
    ],
)  # fmt: skip
def test_damaged_rows(values: list[str]) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_transactions([parse_row(value, "vn/x").message for value in values], "vn/x")
    assert caught.value.path in ("vn/x", "../x", "vn/latest")


@given(st.data())
def test_flipped_rows_never_crash(data: st.DataObject) -> None:
    row = bytearray(data.draw(st.sampled_from(ROWS)))
    for _ in range(data.draw(st.integers(1, 3))):
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Corrupt):
        decode_transactions(parsed([ROWS[0], bytes(row), ROWS[2]]), "vn/x")


SEGMENT = Segment(path="m", file_count=1, row_count=2, size_bytes=3, sha256=b"x", segment_size_bytes=4)
ONE_OF_EACH: tuple[Operation, ...] = (
    CreateCatalog(definition=CatalogDef(id=ID, order=64)),
    UpdateCatalog(set={"k": "v"}, unset=("l",)),
    CancelTransaction(transaction_id=ID),
    CreateNamespace(name="a", namespace_id=ID, properties={"k": "v"}),
    UpdateNamespace(name="a", unset=("k",)),
    DropNamespace(name="a", cascade=True),
    CreateTable(namespace="a", name="t", table_id=ID, columns=(Column(id=1, name="c", type="INT8"),)),
    RegisterTable(namespace="a", name="t", table_id=ID, metadata_location="s3://m"),
    UpdateTable(namespace="a", name="t", drop_columns=("c",)),
    DropTable(namespace="a", name="t", purge=True),
    AppendFiles(namespace="a", name="t", table_id=ID, segments=(SEGMENT,)),
    OverwriteFiles(namespace="a", name="t", table_id=ID, segments=(SEGMENT,)),
    CommitIceberg(namespace="a", name="t", metadata_location="s3://n", expected="s3://m"),
    RestoreTable(namespace="a", name="t", version=3),
    CreateView(namespace="a", name="v", view_id=ID, sql="SELECT 1", dialect="spark"),
    ReplaceView(namespace="a", name="v", sql="SELECT 1", dialect="spark"),
    DropView(namespace="a", name="v"),
    RenameObject(kind=Kind.VIEW, namespace="a", name="v", new_namespace="b", new_name="w"),
    Undrop(
        kind=Kind.TABLE, namespace="a", name="t", version=3, new_namespace="a", new_name="u",
        counters=(TableCounters(table_id=ID, next_column_id=4, sequence=5, schema_id=6),),
    ),
    AdvancePipeline(name="p", job="j", expected_transaction_id=ID, pinned_version=3, inputs={}, state="s"),
    CreateSubscription(name="s", subscription_id=ID, lease_millis=9, kinds=(Kind.TABLE,)),
    DropSubscription(name="s"),
    ClaimSubscription(
        name="s", subscription_id=ID, expected_epoch=1, expected_position_path="o", next_version=3, token="t",
        holder="h", position_path="p", previous_position_path="o",
    ),
    ChangeRows(namespace="a", name="t", table_id=ID, base_sequence=1, mode=ChangeMode.MERGE, segments=(SEGMENT,)),
    Repair(head_version=3, lost=(LostVersion(version=2, commit_id=ID, known_from="x"),)),
    UpgradeCatalog(revision=2),
    FenceCollection(
        cutoff_millis=4,
        disregarded=(ID,),
        starts=(
            PlannedStart(table_id=ID, version=7, namespace="a", name="t", age_millis=8, keep_versions=9),
        ),
    ),
    CreateTag(
        name="g", tag_id=ID, version=3, commit_id=ID, version_created_at_millis=4, pin_path="p", expire_at_millis=5,
        message="m", properties={"k": "v"}, object_count=0, table_count=0, row_count=7,
    ),
    ReplaceTag(name="g", version=3, commit_id=ID, version_created_at_millis=4, pin_path="p", object_count=6,
               chosen=(TagObject("a", "t", 2), TagObject("b", "", 3)), left_out=(TagObject("a", "u"),),
               lacking={ID: 2}),
    DropTag(name="g"),
)  # fmt: skip


def test_the_registry_of_operations_is_complete() -> None:
    assert set(CODECS) == set(get_args(Operation))
    assert set(FACET_RULES) == set(get_args(Operation))
    assert set(EXECUTE_RULES) == set(get_args(Operation))
    members = [codec.member for codec in CODECS.values()]
    assert sorted(members) == sorted(
        field.name for field in pb.Operation.DESCRIPTOR.oneofs_by_name["operation"].fields
    )
    assert {type(operation) for operation in ONE_OF_EACH} == set(CODECS)


@pytest.mark.parametrize("operation", ONE_OF_EACH, ids=lambda operation: type(operation).__name__)
def test_every_row_of_the_registry_round_trips(operation: Operation) -> None:
    message = encode_operation(operation)
    assert message.WhichOneof("operation") == CODECS[type(operation)].member
    assert decode_operation(pb.Operation.FromString(message.SerializeToString())) == operation
    assert action_type(operation) in dict(pb.ActionType.items())
