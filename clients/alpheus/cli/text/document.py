"""The documents of `alpheus apply`: one transaction in JSON.

A document is checked completely before the catalog is touched. Every error names its place, such as
`operations[2].append.rows[5].qty`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import msgspec
import pyarrow as pa

from alpheus.catalog import Catalog, Transaction
from alpheus.cli.text.column_types import parse_type
from alpheus.cli.text.json_rows import arrow_value, rows_of_table
from alpheus.errors import AlpheusError, AlreadyExists, Conflict, InvalidInput, NotEmpty, NotFound
from alpheus.models import Commit
from alpheus.transactions.column_arguments import (
    columns_with_defaults,
    find_default_place,
    parse_added_columns,
)
from alpheus_journal import format as fmt
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.operations import AddColumn
from alpheus_journal.model.type_names import type_text
from alpheus_journal.tables.columns import columns_of_schema, schema_of_columns
from alpheus_journal.tables.partitions import parse_partition_by, parse_sort_by

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

# --- operations of a document ----------------------------------------------------------------------


class ColumnAsked(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    nullable: bool = True


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a document. The fields are the operation's keys."""

    verb: ClassVar[str]

    def check(self, where: str) -> None:
        """Check what the types of the fields do not express. Raise InvalidInput."""

    def run(self, tx: Transaction, where: str) -> None:
        raise NotImplementedError


class CreateNamespace(Asked, frozen=True, kw_only=True):
    verb = "create_namespace"
    name: str
    properties: dict[str, str] = {}
    data_root: str | None = None
    exist_ok: bool = False

    def run(self, tx: Transaction, where: str) -> None:
        tx.create_namespace(self.name, self.properties, self.data_root, exist_ok=self.exist_ok)


class UpdateNamespace(Asked, frozen=True, kw_only=True):
    verb = "update_namespace"
    name: str
    set: dict[str, str] = {}
    unset: list[str] = []

    def check(self, where: str) -> None:
        _check_update(self.set, self.unset, where)

    def run(self, tx: Transaction, where: str) -> None:
        tx.update_namespace(self.name, self.set, self.unset)


class DropNamespace(Asked, frozen=True, kw_only=True):
    verb = "drop_namespace"
    name: str
    cascade: bool = False

    def run(self, tx: Transaction, where: str) -> None:
        tx.drop_namespace(self.name, cascade=self.cascade)


class CreateTable(Asked, frozen=True, kw_only=True):
    verb = "create_table"
    name: str
    columns: list[Any]
    properties: dict[str, str] = {}
    partition_by: list[str] = []
    sort_by: list[str] = []
    defaults: dict[str, Any] = {}
    exist_ok: bool = False

    def check(self, where: str) -> None:
        columns = columns_of_schema(self.schema(where))
        with _place_errors(f"{where}.partition_by"):
            parse_partition_by(self.partition_by, columns)
        with _place_errors(f"{where}.sort_by"):
            parse_sort_by(self.sort_by, columns)
        with _place_errors(where):
            columns_with_defaults(columns, self._defaults(where), f"table {self.name}")

    def schema(self, where: str) -> pa.Schema:
        return _schema(self.columns, where)

    def _defaults(self, where: str) -> dict[str, Any]:
        columns = columns_of_schema(self.schema(where))
        return _default_values(self.defaults, columns, (), self.name, where)

    def run(self, tx: Transaction, where: str) -> None:
        tx.create_table(
            self.name,
            self.schema(where),
            self.properties,
            self.partition_by,
            self.sort_by,
            self.exist_ok,
            self._defaults(where),
        )


class UpdateTable(Asked, frozen=True, kw_only=True):
    verb = "update_table"
    name: str
    set: dict[str, str] = {}
    unset: list[str] = []
    add_columns: list[Any] = []
    drop_columns: list[str] = []
    rename_columns: dict[str, str] = {}
    retype_columns: dict[str, str] = {}
    nullable_columns: dict[str, bool] = {}
    column_order: list[str] = []
    defaults: dict[str, Any] = {}

    def check(self, where: str) -> None:
        if not any(
            getattr(self, field.name) for field in msgspec.structs.fields(self) if field.name != "name"
        ):
            raise InvalidInput(f"{where}: the operation changes nothing")
        self._types(where)
        if self.add_columns:
            _schema(self.add_columns, where, "add_columns")

    def _types(self, where: str) -> dict[str, pa.DataType]:
        found = {}
        for path, text in self.retype_columns.items():
            with _place_errors(f"{where}.retype_columns[{path!r}]"):
                found[path] = parse_type(text)
        return found

    def run(self, tx: Transaction, where: str) -> None:
        new = _schema(self.add_columns, where, "add_columns") if self.add_columns else None
        defaults = None
        if self.defaults:
            columns = tx.load_table(self.name).columns
            defaults = _default_values(self.defaults, columns, parse_added_columns(new), self.name, where)
        tx.update_table(
            self.name,
            self.set,
            self.unset,
            add_columns=new,
            drop_columns=self.drop_columns,
            rename_columns=self.rename_columns,
            retype_columns=self._types(where),
            nullable_columns=self.nullable_columns,
            column_order=self.column_order,
            defaults=defaults,
        )


class RegisterTable(Asked, frozen=True, kw_only=True):
    verb = "register_table"
    name: str
    metadata_location: str
    properties: dict[str, str] = {}

    def run(self, tx: Transaction, where: str) -> None:
        tx.register_table(self.name, self.metadata_location, self.properties)


class CommitIceberg(Asked, frozen=True, kw_only=True):
    verb = "commit_iceberg"
    name: str
    metadata_location: str
    expected: str

    def run(self, tx: Transaction, where: str) -> None:
        tx.commit_iceberg(self.name, self.metadata_location, self.expected)


class RenameTable(Asked, frozen=True, kw_only=True):
    verb = "rename_table"
    name: str
    new_name: str

    def run(self, tx: Transaction, where: str) -> None:
        tx.rename_table(self.name, self.new_name)


class RestoreTable(Asked, frozen=True, kw_only=True):
    verb = "restore_table"
    name: str
    at: int | str

    def run(self, tx: Transaction, where: str) -> None:
        tx.restore_table(self.name, self.at)


class Undrop(Asked, frozen=True, kw_only=True):
    verb = "undrop"
    name: str
    at: int | str | None = None
    as_name: str | None = None
    kind: str | None = None

    def run(self, tx: Transaction, where: str) -> None:
        tx.undrop(self.name, self.at, self.as_name, self.kind)


class CreateView(Asked, frozen=True, kw_only=True):
    verb = "create_view"
    name: str
    sql: str
    dialect: str = "spark"
    references: list[str] = []
    schema_binding: bool = False
    columns: list[Any] = []
    default_namespace: str = ""
    properties: dict[str, str] = {}

    def check(self, where: str) -> None:
        if self.columns:
            _schema(self.columns, where)

    def run(self, tx: Transaction, where: str) -> None:
        self._verb(tx)(
            self.name,
            self.sql,
            self.dialect,
            self.references,
            self.schema_binding,
            _schema(self.columns, where) if self.columns else None,
            self.default_namespace,
            self.properties,
        )

    def _verb(self, tx: Transaction) -> Callable[..., None]:
        return tx.create_view


class ReplaceView(CreateView, frozen=True, kw_only=True):
    verb = "replace_view"

    def _verb(self, tx: Transaction) -> Callable[..., None]:
        return tx.replace_view


class RenameView(Asked, frozen=True, kw_only=True):
    verb = "rename_view"
    name: str
    new_name: str

    def run(self, tx: Transaction, where: str) -> None:
        tx.rename_view(self.name, self.new_name)


class DropView(Asked, frozen=True, kw_only=True):
    verb = "drop_view"
    name: str

    def run(self, tx: Transaction, where: str) -> None:
        tx.drop_view(self.name)


class DropTable(Asked, frozen=True, kw_only=True):
    verb = "drop_table"
    name: str
    purge: bool = False

    def run(self, tx: Transaction, where: str) -> None:
        tx.drop_table(self.name, purge=self.purge)


class UpdateCatalog(Asked, frozen=True, kw_only=True):
    verb = "update_catalog"
    set: dict[str, str] = {}
    unset: list[str] = []

    def check(self, where: str) -> None:
        _check_update(self.set, self.unset, where)

    def run(self, tx: Transaction, where: str) -> None:
        tx.update_catalog(self.set, self.unset)


class Append(Asked, frozen=True, kw_only=True):
    verb = "append"
    name: str
    rows: list[Any]

    def run(self, tx: Transaction, where: str) -> None:
        tx.append(self.name, rows_of_table(self.rows, tx.load_table(self.name), where))


class Overwrite(Asked, frozen=True, kw_only=True):
    verb = "overwrite"
    name: str
    rows: list[Any]

    def run(self, tx: Transaction, where: str) -> None:
        tx.overwrite(self.name, rows_of_table(self.rows, tx.load_table(self.name), where))


_ASKED: tuple[type[Asked], ...] = (
    CreateNamespace, UpdateNamespace, DropNamespace, CreateTable, RegisterTable, UpdateTable, RenameTable,
    RestoreTable, DropTable, CommitIceberg, CreateView, ReplaceView, RenameView, DropView, Undrop, UpdateCatalog,
    Append, Overwrite,
)  # fmt: skip
VERBS = {asked.verb: asked for asked in _ASKED}


def _schema(columns: Sequence[Any], where: str, key: str = "columns") -> pa.Schema:
    """Return a document's columns as a schema. Raise InvalidInput that names the place."""
    fields = []
    for index, value in enumerate(columns):
        place = f"{where}.{key}[{index}]"
        column = _convert(value, ColumnAsked, place)
        with _place_errors(place):
            fields.append(pa.field(column.name, parse_type(column.type), column.nullable))
    schema = pa.schema(fields)
    with _place_errors(where):
        columns_of_schema(schema)
    return schema


def _default_values(
    given: Mapping[str, Any], columns: Sequence[Column], added: Sequence[AddColumn], name: str, where: str
) -> dict[str, Any]:
    """Convert defaults from JSON to the values that the library takes."""
    found = {}
    for path, value in given.items():
        place = f"{where}.defaults[{path!r}]"
        with _place_errors(place):
            column = find_default_place(path, columns, added, f"table {name}").column
        found[path] = _default_value(value, column, path, place)
    return found


def _default_value(value: Any, column: Column, path: str, place: str) -> Any:
    if column.children():
        raise InvalidInput(
            f"{place}: column {path!r} of type {type_text(column)} cannot have a default", kind="bad_schema"
        )
    return arrow_value(value, schema_of_columns([column]).field(0), place)


def default_of_text(
    text: str, path: str, columns: Sequence[Column], added: Sequence[AddColumn], name: str
) -> Any:
    """Convert a default of the command line: texts, bytes, dates and times are read as text, other types as JSON. Raise
    InvalidInput or NotFound."""
    column = find_default_place(path, columns, added, f"table {name}").column
    value: Any = text
    if column.type not in ("VARCHAR", "BINARY", "FIXED", "DATE", "TIMESTAMP6", "TIMESTAMPTZ6"):
        with contextlib.suppress(ValueError):
            value = json.loads(text, parse_float=Decimal)
    return _default_value(value, column, path, f"the default of {path}")


def _check_update(set: Mapping[str, str], unset: Sequence[str], where: str) -> None:
    if not set and not unset:
        raise InvalidInput(f'{where}: "set" and "unset" are both empty')


# --- documents -------------------------------------------------------------------------------------


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One checked transaction. `operations` holds each operation with its place in the document; `digest` is the
    SHA-256 of the content."""

    id: str
    isolation: str | None
    message: str
    properties: dict[str, str]
    key: str | None
    writer: tuple[str, int] | None
    operations: tuple[tuple[str, Asked], ...]
    digest: str


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    operations: list[Any]
    id: str = ""
    isolation: Literal["snapshot", "serializable"] | None = None
    message: str = ""
    properties: dict[str, str] = {}
    key: str | None = None
    writer: tuple[str, int] | None = None


DIGEST_PROPERTY = "alpheus.document_sha256"
"""The transaction property that identifies a document that is applied again under its id."""


def parse_document(data: bytes, source: str) -> Document:
    """Parse a document of `alpheus apply`. Raise InvalidInput that names line and column, or the key and its place."""
    value = _parse_json(data, source)
    keys = _convert(value, _Keys, source)
    if keys.id and not (fmt.is_uuid(keys.id) and keys.id[14] == "7"):
        raise InvalidInput(
            f"{source}: id: {keys.id[:80]!r} is not a version 7 UUID in lower case",
            hint='create one with "alpheus new-id"',
        )
    if keys.key == "":
        raise InvalidInput(f"{source}: the key is empty", hint="omit the key, or give it a text")
    if DIGEST_PROPERTY in keys.properties:
        raise InvalidInput(f"{source}: properties: {DIGEST_PROPERTY} is reserved for apply")
    operations = tuple(
        _parse_operation(value, f"operations[{index}]") for index, value in enumerate(keys.operations)
    )
    return Document(
        id=keys.id,
        isolation=keys.isolation,
        message=keys.message,
        properties=keys.properties,
        key=keys.key,
        writer=keys.writer,
        operations=operations,
        digest=hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest(),
    )


def _parse_operation(value: Any, where: str) -> tuple[str, Asked]:
    if not isinstance(value, dict) or len(value) != 1:
        raise InvalidInput(
            f"{where} is not an object with one key, the operation",
            hint='write for example {"drop_table": {"name": "sales.orders"}}',
        )
    [(verb, asked)] = value.items()
    if verb not in VERBS:
        raise InvalidInput(
            f"{where}: there is no operation {verb[:80]!r}", hint=f"operations: {', '.join(VERBS)}"
        )
    where = f"{where}.{verb}"
    operation = _convert(asked, VERBS[verb], where)
    operation.check(where)
    return where, operation


def _parse_json(data: bytes, source: str) -> Any:
    # Unlike msgspec, the standard library's parser reports line and column, and duplicate keys.
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{source}: byte {error.start} is not UTF-8", kind="bad_data") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidInput(
                    f"{source}: the key {key[:80]!r} occurs twice in one object", kind="bad_data"
                )
            found[key] = value
        return found

    def constant(name: str) -> NoReturn:
        raise InvalidInput(
            f"{source}: {name} is not valid JSON", kind="bad_data", hint=f'write it as text: "{name}"'
        )

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_float=Decimal)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{source}: line {error.lineno} column {error.colno}: {error.msg}", kind="bad_data"
        ) from None
    except RecursionError:
        raise InvalidInput(f"{source}: nested too deeply", kind="bad_data") from None
    except ValueError as error:  # a number of too many digits
        raise InvalidInput(f"{source}: {error}", kind="bad_data") from None


def _convert(value: Any, kind: type[_StructT], where: str) -> _StructT:
    """Convert `value` to a struct. Raise InvalidInput that names an unknown or missing key, or one of a wrong type."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} is not an object", kind="bad_data")
    known = [field.name for field in msgspec.structs.fields(kind)]
    unknown = [key for key in value if key not in known]
    if unknown:
        raise InvalidInput(
            f"{where}: unknown key {unknown[0][:80]!r}", kind="bad_data", hint=f"keys: {', '.join(known)}"
        )
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        reason = reason.replace("Object missing required field", "missing key").replace("`", "")
        raise InvalidInput(f"{where}{place.rstrip('`')}: {reason}", kind="bad_data") from None


@contextlib.contextmanager
def _place_errors(where: str) -> Iterator[None]:
    """Add the place in the document to errors of the block."""
    try:
        yield
    except AlpheusError as error:
        if not error.message.startswith("operations["):
            error.message = f"{where}: {error.message}"
        raise


# --- applying --------------------------------------------------------------------------------------


def apply(catalog: Catalog, document: Document) -> Commit | None:
    """Commit a document as one transaction. Return None if the document leaves nothing to do.

    A document with an id is applied exactly once. If any process committed it before under its id, return that commit
    with `duplicate`. Raise InvalidInput (`id_reused`) if another document was committed under the id.
    """
    properties = dict(document.properties)
    if document.id:
        properties[DIGEST_PROPERTY] = document.digest
    tx = catalog.transaction(
        document.isolation,
        document.message,
        properties,
        key=document.key,
        writer=document.writer,
        id=document.id or None,
    )
    try:
        with tx:
            # Look once the begin version is fixed: the commit itself looks for the id in later versions only.
            if document.id and (done := _find_applied(catalog, document)) is not None:
                tx.abandon()
                return done
            for where, asked in document.operations:
                with _place_errors(where):
                    asked.run(tx, where)
    except (Conflict, AlreadyExists, NotFound, NotEmpty, InvalidInput):
        # Another process may have committed the same document first: return that commit.
        if document.id and (done := _find_applied(catalog, document)) is not None:
            return done
        raise
    return tx.result


def _find_applied(catalog: Catalog, document: Document) -> Commit | None:
    """Return the commit of this document under its id, or None. Raise InvalidInput (`id_reused`, `id_cancelled`) if the
    id was used otherwise."""
    outcome = catalog.outcome(document.id)
    if outcome.state == "cancelled":
        raise InvalidInput(
            f"transaction {document.id} was cancelled", kind="id_cancelled", hint="give the document a new id"
        )
    commit = outcome.commit
    if commit is None:
        return None
    with catalog.log(after=commit.version - 1, until=commit.version) as entries:
        for entry in entries:
            recorded = entry.transaction
            if recorded.id == document.id and recorded.properties.get(DIGEST_PROPERTY) == document.digest:
                return msgspec.structs.replace(commit, duplicate=True)
    raise InvalidInput(
        f"transaction id {document.id} was used in version {commit.version} for another transaction",
        kind="id_reused",
        version=commit.version,
        hint='give each document an id of its own; create one with "alpheus new-id"',
    )
