"""Definitions: round trips, determinism, and malformed stored bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import (
    VIEW_FORMAT_SQL,
    VIEW_FORMAT_SUBSTRAIT,
    CatalogDef,
    Column,
    DeclaredTable,
    Definition,
    DeletePredicate,
    InputPosition,
    JobDeclaration,
    JobDef,
    NamespaceDef,
    PipelineDef,
    Reference,
    Segment,
    TableDef,
    ViewDef,
    WriterMark,
    walk_columns,
)
from alpheus_pb.v1 import objects_pb2 as pb

ID = "01890a5d-ac96-474b-8cce-b302099a8057"
text = st.text(st.characters(codec="utf-8"), max_size=12)
properties = st.dictionaries(text, text, max_size=4)
counts = st.integers(0, (1 << 63) - 1)
versions = st.integers(0, fmt.VERSION_MAX_EXCLUSIVE - 1)


@st.composite
def column_trees(draw: st.DrawFn) -> tuple[Column, ...]:
    ids = iter(range(1, 1000))

    def column(depth: int) -> Column:
        kinds = ["INT8", "VARCHAR", "DECIMAL"] + (["STRUCT", "MAP", "LIST"] if depth < 3 else [])
        kind = draw(st.sampled_from(kinds))
        base = {
            "id": next(ids),
            "name": draw(text.filter(bool)),
            "type": kind,
            "nullable": draw(st.booleans()),
        }
        if kind == "STRUCT":
            return Column(**base, fields=tuple(column(depth + 1) for _ in range(draw(st.integers(1, 3)))))
        if kind == "MAP":
            return Column(**base, key=column(depth + 1), value=column(depth + 1))
        if kind == "LIST":
            return Column(**base, element=column(depth + 1))
        return Column(**base, properties=draw(properties))

    return tuple(column(0) for _ in range(draw(st.integers(1, 4))))


segments = st.builds(
    Segment,
    path=st.uuids(version=4).map(lambda id: fmt.manifest_path(ID, str(id))),
    file_count=counts, row_count=counts, size_bytes=counts, segment_size_bytes=counts,
    sha256=st.binary(min_size=32, max_size=32), sequence=st.integers(5, 9), min_sequence=st.integers(0, 5),
)  # fmt: skip


predicates = st.builds(
    DeletePredicate,
    sequence=st.integers(0, 4), committed_sequence=st.integers(5, 9), expression=st.binary(max_size=9),
    transaction_id=text, moves=st.booleans(),
)  # fmt: skip
marks = st.builds(WriterMark, sequence=counts, transaction_id=text, version=versions)
references = st.lists(st.builds(Reference, text, text), max_size=3).map(tuple)
unknown = st.sampled_from([b"", b"\xba\x3e\x03abc"])  # field 999, from another writer


@st.composite
def views(draw: st.DrawFn) -> ViewDef:
    columns = draw(st.just(()) | column_trees())
    view_format = draw(st.sampled_from([VIEW_FORMAT_SQL, VIEW_FORMAT_SUBSTRAIT, 77]))
    is_sql = view_format == VIEW_FORMAT_SQL
    return ViewDef(
        id=draw(text.filter(bool)),
        properties=draw(properties),
        sql=draw(text) if is_sql else "",
        dialect=draw(text) if is_sql else "",
        schema_binding=draw(st.booleans()),
        references=draw(references),
        columns=columns,
        default_namespace=draw(text),
        bound_views=draw(references),
        view_format=view_format,
        substrait=b"" if is_sql else draw(st.binary(max_size=9)),
        unknown=draw(unknown),
    )


@st.composite
def tables(draw: st.DrawFn) -> TableDef:
    columns = draw(column_trees())
    return TableDef(
        id=ID,
        properties=draw(properties),
        columns=columns,
        next_column_id=len(list(walk_columns(columns))) + draw(st.integers(1, 5)),
        schema_id=draw(st.integers(0, 9)),
        segments=tuple(draw(st.lists(segments, max_size=3))),
        delete_predicates=tuple(draw(st.lists(predicates, max_size=2))),
        sequence=draw(st.integers(9, 99)),
        writer_marks=draw(st.dictionaries(text, marks, max_size=2)),
        data_root=draw(text),
        bound_views=draw(references),
        unknown=draw(unknown),
    )


declared = st.lists(st.builds(DeclaredTable, table=text, table_id=text), max_size=2).map(tuple)
jobs = st.builds(
    JobDef,
    last_transaction_id=text, pinned_version=versions, state=st.sampled_from(["running", "parked"]), error=text,
    inputs=st.dictionaries(text, st.builds(InputPosition, table_id=text, version=versions, table=text), max_size=3),
    params=properties,
    declaration=st.none() | st.builds(
        JobDeclaration, inputs=declared, outputs=declared, open=st.booleans()
    ),
)  # fmt: skip
definitions: st.SearchStrategy[tuple[Kind, Definition]] = st.one_of(
    st.tuples(st.just(Kind.NAMESPACE), st.builds(
            NamespaceDef, id=st.just(ID), properties=properties, data_root=text, unknown=unknown
        )),
    st.tuples(st.just(Kind.TABLE), tables()),
    st.tuples(st.just(Kind.VIEW), views()),
    st.tuples(
        st.just(Kind.TABLE),
        st.builds(
            TableDef,
            id=text.filter(bool), native=st.just(False), properties=properties, iceberg_metadata_location=text,
            iceberg_previous_metadata_location=text, next_column_id=st.just(1), bound_views=references, unknown=unknown,
        ),
    ),
    st.tuples(
        st.just(Kind.PIPELINE),
        st.builds(PipelineDef, id=st.just(ID), jobs=st.dictionaries(text, jobs, max_size=3)),
    ),
    st.tuples(
        st.just(Kind.CATALOG),
        st.builds(
            CatalogDef,
            id=st.just(ID), order=st.integers(fmt.ORDER_MIN, fmt.ORDER_MAX), properties=properties,
            node_file_size_max=st.integers(1024, fmt.NODE_FILE_SIZE_BYTES_MAX), txn_ttl_millis=counts,
            namespace_name_size_max=st.integers(1, 1024), table_name_size_max=st.integers(1, 1024),
            view_name_size_max=st.integers(1, 1024), serializable_default=st.booleans(), exported_snapshots=properties,
        ),
    ),
)  # fmt: skip


@given(definitions)
def test_round_trip(kind_and_definition: tuple[Kind, Definition]) -> None:
    kind, definition = kind_and_definition
    data = encode_definition(definition)
    assert decode_definition(kind, data, "p") == definition
    assert encode_definition(decode_definition(kind, data, "p")) == data


def test_equal_values_give_equal_bytes() -> None:
    keys = [f"k{n}" for n in range(20)]
    forwards = NamespaceDef(id=ID, properties=dict.fromkeys(keys, "v"))
    backwards = NamespaceDef(id=ID, properties=dict.fromkeys(reversed(keys), "v"))
    assert encode_definition(forwards) == encode_definition(backwards)


@given(definitions, st.data())
def test_damaged_definitions(kind_and_definition: tuple[Kind, Definition], data: st.DataObject) -> None:
    kind, definition = kind_and_definition
    stored = bytearray(encode_definition(definition))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(stored)))
    told: list[AlpheusError] = []
    for damaged in (bytes(stored), bytes(stored[:end])):
        try:
            decode_definition(kind, damaged, "def/x.binpb")
        except AlpheusError as error:
            told.append(error)
    assert all(error.path == "def/x.binpb" for error in told)
    assert all(isinstance(error, Corrupt) or error.kind == "newer_format" for error in told)


def table_message(**changes: object) -> bytes:
    message = pb.TableDef.FromString(
        encode_definition(TableDef(id=ID, columns=(Column(id=1, name="c", type="INT8"),), next_column_id=2))
    )
    for name, value in changes.items():
        setattr(message, name, value)
    return message.SerializeToString()


def segment_message(**changes: object) -> bytes:
    message = pb.TableDef.FromString(table_message(sequence=3))
    segment = pb.ManifestSegment(path=fmt.manifest_path(ID, ID), sequence=1)
    for name, value in changes.items():
        setattr(segment, name, value)
    message.manifests.append(segment)
    return message.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        table_message(id=""),
        table_message(id="../x"),
        table_message(next_column_id=1),
        table_message(table_format=7),
        segment_message(sequence=0),
        segment_message(sequence=4),
        segment_message(path="manifest/../../etc/passwd"),
        segment_message(path=fmt.manifest_path(ID.replace("0", "1"), ID)),
        b"\x0a" * (fmt.DEFINITION_SIZE_BYTES_MAX + 1),
    ],
)
def test_tables_that_cannot_be(data: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_definition(Kind.TABLE, data, "def/table/x.binpb")
    assert (caught.value.kind, caught.value.path) == ("corrupt_definition", "def/table/x.binpb")


def test_what_a_newer_release_wrote_is_refused_not_dropped() -> None:
    message = pb.TableDef.FromString(table_message())
    message.partition_spec.add(column_id=1, transform=99)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as caught:
        decode_definition(Kind.TABLE, message.SerializeToString(), "def/t")
    assert (caught.value.kind, caught.value.path) == ("newer_format", "def/t")
    catalog = pb.CatalogDef.FromString(encode_definition(CatalogDef(id=ID)))
    catalog.major_version = 1
    with pytest.raises(InvalidInput) as caught:
        decode_definition(Kind.CATALOG, catalog.SerializeToString(), "def/c")
    assert (caught.value.kind, caught.value.path) == ("newer_format", "def/c")
    with pytest.raises(InvalidInput):
        decode_definition(Kind.BRANCH, b"", "def/b")


@pytest.mark.parametrize("field", ["order", "namespace_name_max_size_bytes", "node_file_max_size_bytes"])
@pytest.mark.parametrize("value", [0, 1 << 30])
def test_impossible_limits(field: str, value: int) -> None:
    message = pb.CatalogDef.FromString(encode_definition(CatalogDef(id=ID)))
    setattr(message, field, value)
    with pytest.raises(Corrupt) as caught:
        decode_definition(Kind.CATALOG, message.SerializeToString(), "def/c")
    assert caught.value.path == "def/c"


def test_a_definition_that_grows_too_large() -> None:
    with pytest.raises(InvalidInput) as caught:
        encode_definition(NamespaceDef(id=ID, properties={"k": "v" * fmt.DEFINITION_SIZE_BYTES_MAX}))
    assert caught.value.kind == "too_large"
    assert caught.value.hint


def test_views_are_read() -> None:
    message = pb.ViewDef(id=ID, sql="select 1", dialect="spark", properties={"a": "b"}, view_format=pb.SQL)
    view = decode_definition(Kind.VIEW, message.SerializeToString(), "")
    assert view == ViewDef(id=ID, sql="select 1", dialect="spark", properties={"a": "b"})
    assert isinstance(view, ViewDef)
    assert view.is_sql


@pytest.mark.parametrize("number", [0, 1, 99, 101, 2_000_000_000])
@pytest.mark.parametrize("relation", [b"", b"plan"])
def test_a_view_of_another_writer_keeps_its_format(number: int, relation: bytes) -> None:
    message = pb.ViewDef(id=ID, view_format=number, substrait_read_rel=relation)  # type: ignore[arg-type]
    data = message.SerializeToString(deterministic=True)
    view = decode_definition(Kind.VIEW, data, "")
    assert isinstance(view, ViewDef)
    assert not view.is_sql
    assert encode_definition(view) == data
    rewritten = encode_definition(msgspec.structs.replace(view, bound_views=(Reference("a", "v"),)))
    again = pb.ViewDef.FromString(rewritten)
    assert (again.view_format, again.substrait_read_rel) == (number, relation)


def test_what_a_newer_writer_put_into_a_map_is_refused() -> None:
    """protobuf keeps the whole entry among the unknown fields, so a reader that accepted it would lose the job."""
    job = (
        pb.JobDef(last_transaction_id="t", state="running").SerializeToString() + b"\xf8\x3e\x01"
    )  # field 1007
    entry = b"\x0a\x01j\x12" + bytes([len(job)]) + job
    inside = pb.PipelineDef(id="p").SerializeToString() + b"\x12" + bytes([len(entry)]) + entry
    decoded = decode_definition(Kind.PIPELINE, inside, "def/pipeline/x.binpb")
    assert isinstance(decoded, PipelineDef)
    assert list(decoded.jobs) == ["j"], "a field inside the value is only passed over"
    entry = entry + b"\xf8\x3e\x01"
    beside = pb.PipelineDef(id="p").SerializeToString() + b"\x12" + bytes([len(entry)]) + entry
    with pytest.raises(InvalidInput, match="field jobs") as caught:
        decode_definition(Kind.PIPELINE, beside, "def/pipeline/x.binpb")
    assert caught.value.kind == "newer_format"


def test_a_call_outside_all_years_is_refused() -> None:
    data = pb.PipelineDef(
        id=ID, jobs={"daily": pb.JobDef(called_at_millis=fmt.TIME_MILLIS_MAX + 1)}
    ).SerializeToString()
    with pytest.raises(Corrupt, match="outside all years") as caught:
        decode_definition(Kind.PIPELINE, data, "def/pipeline/x.binpb")
    assert caught.value.kind == "corrupt_definition"


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_declaration_of_too_many_tables_is_corrupt(side: str) -> None:
    tables = tuple(DeclaredTable(table=f"{n:04}") for n in range(fmt.JOB_TABLES_MAX + 1))
    declaration = JobDeclaration(inputs=tables) if side == "inputs" else JobDeclaration(outputs=tables)
    job = JobDef(last_transaction_id=ID, pinned_version=1, declaration=declaration)
    data = encode_definition(PipelineDef(id=ID, jobs={"j": job}))
    with pytest.raises(Corrupt, match=f"1001 {side}, 1000 at most"):
        decode_definition(Kind.PIPELINE, data, "def/p")
