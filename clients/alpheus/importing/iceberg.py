"""Read Iceberg tables. The package `pyiceberg` reads metadata, manifests and deletes.

This module reads the rows, by field id, as every reader of a native table does: the reader of pyiceberg (0.12) turns
NULL lists and NULL maps of structs into empty ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from alpheus.importing.schemas import table_schema
from alpheus.importing.sources import Source, SourceFile
from alpheus.rows.arrow.cast import Caster, CastError
from alpheus.rows.foreign_file import Place, changed_error, locate, parquet_batches, read_error
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.model.definitions import Column
from alpheus_journal.tables.columns import FIELD_ID, columns_of_schema, field_id, is_list, leaf_arrow_type

_METADATA = re.compile(r"v?(\d+)(?:-[^/]*)?(?:\.gz)?\.metadata\.json")
_TRANSFORMS = {"identity": "`{}`", "day": "day(`{}`)", "month": "month(`{}`)", "year": "year(`{}`)"}


class IcebergSource(Source):
    """One snapshot of an Iceberg table, found by a metadata file or the newest one in the table's folder."""

    format = "iceberg"

    def __init__(self, path: str, version: str = "") -> None:
        try:
            from pyiceberg.exceptions import NotInstalledError, ValidationError
            from pyiceberg.table import StaticTable
        except ImportError:
            raise InvalidInput(
                "pyiceberg is not installed", kind="not_supported", hint='run pip install "alpheus[iceberg]"'
            ) from None
        place = locate(path)
        self.location = _metadata_file(place)
        options = _options(place.text)
        try:
            table = StaticTable.from_metadata(_without_query(self.location)[0], options)
            snapshot = _snapshot(table, version, self.location)
            self.version = str(snapshot.snapshot_id) if snapshot else ""
            current = table.current_snapshot()
            is_current = snapshot is None or (current and snapshot.snapshot_id == current.snapshot_id)
            scan = table.scan(snapshot_id=snapshot.snapshot_id if snapshot else None)
            # Use the current columns even if no rows were added since the columns changed, as every reader does.
            schema = table.schema() if is_current else scan.projection()
            tasks = list(scan.plan_files()) if snapshot else []
        except FileNotFoundError as error:
            raise NotFound(f"{path}: {str(error)[:300]}", kind="no_file") from None
        except (ValueError, NotInstalledError, ValidationError, NotImplementedError) as error:
            raise InvalidInput(f"{path}: {str(error)[:300]}", kind="not_supported") from None
        except (pa.ArrowException, OSError) as error:
            raise read_error(place, path, error) from None
        self._place = _TableFiles(place.text, place.system, place.path, table.io)
        self._specs = table.specs()
        self._mapping = table.name_mapping()
        self._read_schema(schema)
        self.partition_by = tuple(_partition_texts(table.spec(), schema))
        self._tasks = sorted(tasks, key=lambda task: task.file.file_path)
        gone = self._read_deletes()
        self._gone = [gone.get(task.file.file_path, pa.array([], pa.int64())) for task in self._tasks]
        self.files = tuple(
            SourceFile(file.file_path, file.file_size_in_bytes, "", file.record_count - len(gone))
            for file, gone in zip((task.file for task in self._tasks), self._gone, strict=True)
        )

    def _read_schema(self, schema: Any) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            arrow = schema_to_pyarrow(schema, include_field_ids=True)
        except (ValueError, NotImplementedError, TypeError) as error:
            raise InvalidInput(f"{self.location}: {str(error)[:300]}", kind="bad_schema") from None
        self.schema = table_schema(arrow)
        columns = columns_of_schema(self.schema)
        self._columns = tuple(_with_ids(column, field) for column, field in zip(columns, arrow, strict=True))
        self._caster = Caster(self._columns, by_id=True)
        by_id = {column.id: column for column in self._columns}
        self._defaults: dict[int, pa.Scalar] = {}
        for number in schema.field_ids:
            field = schema.find_field(number)
            if field.initial_default is not None:
                if number not in by_id or not isinstance(field.initial_default, bool | int | float | str):
                    raise InvalidInput(
                        f"{self.location}: the initial default of column {field.name!r} is not supported",
                        kind="not_supported",
                        hint="rewrite the table's data files so that all of them have the column",
                    )
                self._defaults[number] = _scalar(by_id[number], field.initial_default)

    def _read_deletes(self) -> dict[str, pa.Array]:
        """Read the positions of deleted rows, each once, by data file. Refuse files that cannot be read."""
        from pyiceberg.io.pyarrow import _read_all_delete_files

        together: dict[frozenset[Any], list[Any]] = {}
        for task in self._tasks:
            file = task.file
            kind = file.file_format.value if hasattr(file.file_format, "value") else str(file.file_format)
            if kind != "PARQUET" or file.key_metadata is not None:
                what = f"of format {kind}" if kind != "PARQUET" else "encrypted"
                raise InvalidInput(
                    f"{file.file_path[:300]} is {what}, which is not supported", kind="not_supported"
                )
            if task.delete_files:
                together.setdefault(frozenset(task.delete_files), []).append(task)
        gone: dict[str, pa.Array] = {}
        for tasks in together.values():
            try:
                found = _read_all_delete_files(self._place.io, tasks)
            except (ValueError, NotImplementedError, LookupError, pa.ArrowException, OSError) as error:
                raise InvalidInput(
                    f"deletes of {tasks[0].file.file_path[:300]} cannot be read: {str(error)[:300]}",
                    kind="not_supported",
                ) from None
            for file in (task.file for task in tasks):
                gone[file.file_path] = _merge_positions(found.get(file.file_path, []), file)
        return gone

    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        task, gone = self._tasks[index], self._gone[index]
        name, count = task.file.file_path, task.file.record_count
        start = 0
        for batch in parquet_batches(self._place, name, name, count, keep_ids=True):
            rows = batch.num_rows
            batch = self._with_ids(batch, name)
            batch = self._complete(batch, task.file)
            try:
                fitted = self._caster.cast(batch)
            except CastError as error:
                raise InvalidInput(f"{name[:300]}: {error}", kind="bad_data", hint=error.hint) from None
            if len(gone):
                numbers = pa.array(range(start, start + rows), pa.int64())
                fitted = fitted.filter(pc.invert(pc.is_in(numbers, value_set=gone)))
            start += rows
            yield fitted
        if start != count:
            raise changed_error(name, f"{start} rows were read, but the manifest lists {count}")

    def _with_ids(self, batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
        """Add field ids to a batch whose file has none, from the table's name mapping."""
        if any(field_id(field) is not None for field in batch.schema):
            return batch
        if self._mapping is None:
            raise InvalidInput(
                f"{name[:300]} has no field ids, and the table has no name mapping", kind="not_supported"
            )
        schema = pa.schema(_map_ids(list(batch.schema), list(self._mapping)))
        return pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)],
            schema=schema,
        )

    def _complete(self, batch: pa.RecordBatch, file: Any) -> pa.RecordBatch:
        """Add columns that the file lacks and whose value is known, from its partition or from a default."""
        have = {field_id(field) for field in batch.schema}
        spec = self._specs.get(file.spec_id)
        values = dict(self._defaults)
        by_id = {column.id: column for column in self._columns}
        for place, field in enumerate(spec.fields if spec else ()):
            if str(field.transform) == "identity" and field.source_id in by_id:
                value = file.partition[place]
                if value is not None and field.source_id not in have:
                    values[field.source_id] = _scalar(by_id[field.source_id], value)
        missing = {number: value for number, value in values.items() if number not in have}
        if not missing:
            return batch
        fields = [
            pa.field(by_id[number].name, value.type, metadata={FIELD_ID: str(number)})
            for number, value in missing.items()
        ]
        arrays = [*batch.columns, *(pa.repeat(value, batch.num_rows) for value in missing.values())]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *fields]))


class _TableFiles(Place, frozen=True):
    """Opens files by the locations in Iceberg's metadata."""

    io: Any

    def open(self, path: str) -> Any:
        return self.io.new_input(path).open()


def _metadata_file(place: Place) -> str:
    """Return the named metadata file, or the newest one of the folder. Raise InvalidInput if two files are newest."""
    if place.path.endswith(".metadata.json"):
        return place.text
    folder = f"{place.path}/metadata"
    try:
        found = place.system.get_file_info(pafs.FileSelector(folder))
    except (pa.ArrowException, OSError):
        found = []
    numbered = [
        (int(match.group(1)), info.base_name)
        for info in found
        if (match := _METADATA.fullmatch(info.base_name))
    ]
    if not numbered:
        raise NotFound(
            f"there is no Iceberg metadata below {place.text[:300]}",
            kind="no_file",
            hint="give a metadata file (*.metadata.json), or the folder that contains metadata/",
        )
    newest = max(number for number, _ in numbered)
    names = sorted(name for number, name in numbered if number == newest)
    if len(names) > 1:
        raise InvalidInput(
            f"{place.text[:300]} has several newest metadata files: {', '.join(names)[:300]}",
            kind="bad_argument",
            hint="give the metadata file that the table's catalog points to",
        )
    text, query = _without_query(place.text)
    return f"{text.rstrip('/')}/metadata/{names[0]}{query}"


def _without_query(text: str) -> tuple[str, str]:
    """Split a URL into its address and its query with the question mark. Return a path unchanged."""
    if "://" not in text:
        return text, ""
    address, question, query = text.partition("?")
    return address, question + query


def _merge_positions(found: Sequence[pa.ChunkedArray], file: Any) -> pa.Array:
    chunks = [chunk.cast(pa.int64()) for chunked in found for chunk in chunked.chunks]
    gone = pc.unique(pa.concat_arrays(chunks)) if chunks else pa.array([], pa.int64())
    if len(gone) and not 0 <= pc.min(gone).as_py() <= pc.max(gone).as_py() < file.record_count:
        raise InvalidInput(f"{file.file_path[:300]} has deletes of rows that do not exist", kind="bad_data")
    return gone


def _snapshot(table: Any, version: str, location: str) -> Any:
    if not version:
        return table.current_snapshot()
    found = (
        table.snapshot_by_id(int(version))
        if version.isascii() and version.isdigit()
        else table.snapshot_by_name(version)
    )
    if found is None:
        raise NotFound(f"{location} has no snapshot {version[:80]!r}", kind="no_version")
    return found


def _partition_texts(spec: Any, schema: Any) -> Iterator[str]:
    """Yield the partition keys that native tables support: no buckets, truncated values, hours, or fields of
    structs."""
    top = {field.field_id: field.name for field in schema.fields}
    seen = set()
    for field in spec.fields:
        form = _TRANSFORMS.get(str(field.transform))
        name = top.get(field.source_id)
        if form is None or name is None or name in seen:
            continue
        kind = str(schema.find_type(field.source_id))
        if kind in ("float", "double") or (form != "`{}`" and not kind.startswith(("date", "timestamp"))):
            continue
        seen.add(name)
        yield form.format(name.replace("`", "``"))


def _with_ids(column: Column, field: pa.Field) -> Column:
    """Return a column with the ids of an Arrow field of the same structure."""
    number = field_id(field)
    assert number is not None, "pyiceberg gives every field an id"
    kind = field.type
    changes: dict[str, Any] = {"id": number}
    if column.fields:
        inner = [kind.field(index) for index in range(kind.num_fields)]
        changes["fields"] = tuple(_with_ids(c, f) for c, f in zip(column.fields, inner, strict=True))
    if column.element is not None:
        changes["element"] = _with_ids(column.element, kind.value_field)
    if column.key is not None and column.value is not None:
        changes["key"] = _with_ids(column.key, kind.key_field)
        changes["value"] = _with_ids(column.value, kind.item_field)
    return msgspec.structs.replace(column, **changes)


def _map_ids(fields: Sequence[pa.Field], mapping: Sequence[Any]) -> list[pa.Field]:
    """Return fields with the ids of a name mapping. Fields that the mapping does not name get no id."""
    by_name = {name: mapped for mapped in mapping for name in mapped.names}
    found = []
    for field in fields:
        mapped = by_name.get(field.name)
        kind, inner = field.type, list(mapped.fields) if mapped is not None else []
        if pa.types.is_struct(kind):
            kind = pa.struct(_map_ids([kind.field(index) for index in range(kind.num_fields)], inner))
        elif is_list(kind):
            kind = pa.list_(_map_ids([kind.value_field.with_name("element")], inner)[0])
        elif pa.types.is_map(kind):
            key, value = _map_ids(
                [kind.key_field.with_name("key"), kind.item_field.with_name("value")], inner
            )
            kind = pa.map_(key, value)
        metadata = {FIELD_ID: str(mapped.field_id)} if mapped is not None and mapped.field_id else None
        found.append(pa.field(field.name, kind, field.nullable, metadata=metadata))
    return found


def _scalar(column: Column, value: Any) -> pa.Scalar:
    """Convert a partition value of pyiceberg, where days and microseconds are numbers, to a scalar of the column."""
    kind = leaf_arrow_type(column, column.name)
    if isinstance(value, int) and column.type in ("DATE", "TIMESTAMP6", "TIMESTAMPTZ6"):
        return pa.scalar(value, pa.int32() if column.type == "DATE" else pa.int64()).cast(kind)
    if hasattr(value, "bytes"):  # a UUID
        value = value.bytes
    return pa.scalar(value if not isinstance(value, Decimal) else Decimal(value), kind)


def _options(text: str) -> dict[str, str]:
    """Return the options of pyiceberg for the parameters in a URL's query."""
    query = (
        {key: values[-1] for key, values in parse_qs(urlsplit(text).query).items()} if "://" in text else {}
    )
    options = {}
    if "endpoint_url" in query:
        options["s3.endpoint"] = query["endpoint_url"]
    elif "endpoint_override" in query:
        options["s3.endpoint"] = f"{query.get('scheme', 'https')}://{query['endpoint_override']}"
    if "region" in query:
        options["s3.region"] = query["region"]
    return options
