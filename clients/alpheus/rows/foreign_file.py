"""Files of other writers: locate them by path or URL, and read the rows of Parquet files. All functions block, so they
run in threads."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from alpheus.rows.file_reader import BATCH_ROWS_MAX
from alpheus_journal.errors import InvalidInput, NotFound, Unavailable
from alpheus_journal.tables.columns import is_list, strip_field_ids
from alpheus_journal.urls import (
    SECRET_NAMES,
    has_bare_option,
    has_scheme,
    redact_input,
    redact_text,
    redact_url,
)

# --- places ----------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """A path or URL in one of Arrow's file systems."""

    text: str  # as messages show it
    system: pafs.FileSystem
    path: str

    def open(self, path: str) -> Any:
        return self.system.open_input_file(path)


def locate(path: str | os.PathLike[str]) -> Place:
    """Locate a path on this machine, or a URL (`s3://bucket/path?endpoint_url=...&region=...`).

    Raises InvalidInput (`bad_argument`), also for a URL with a password, which the log would keep.
    """
    text = absolute(path)
    if not has_scheme(text):
        return Place(text, pafs.LocalFileSystem(), text)
    if text.startswith("file://") and os.path.exists(text.removeprefix("file://")):
        # Iceberg's writers make such URLs, without escapes.
        return Place(text, pafs.LocalFileSystem(), text.removeprefix("file://").rstrip("/"))
    try:
        parts = urlsplit(text)
    except ValueError:  # for brackets that enclose no IPv6 address
        raise _open_error(text, "it is not a URL") from None
    if parts.username or parts.password:
        raise InvalidInput(
            f"the URL of {parts.hostname or 'the source'} holds credentials, which must not be recorded",
            kind="bad_argument",
            hint="leave the credentials out: they are found by the usual AWS chain",
        )
    if parts.fragment or has_bare_option(parts.query) or _may_hold_secret(parts.query):
        raise InvalidInput(
            f"{redact_url(text)!r} may hold a secret, which must not be recorded",
            kind="bad_argument",
            hint="leave the secret out: credentials are found by the usual AWS chain; write # in a path as %23",
        )
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if endpoint := query.pop("endpoint_url", ""):  # URLs of catalogs have this option, too
        query["scheme"], _, query["endpoint_override"] = endpoint.rpartition("://")
    try:
        address = urlunsplit(parts._replace(query=urlencode({k: v for k, v in query.items() if v})))
        system, place = pafs.FileSystem.from_uri(address)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _open_error(text, redact_text(str(error))[:200]) from None
    place = place.rstrip("/") or place
    return Place(place if parts.scheme == "file" else text, system, place)


def absolute(path: object) -> str:
    """A URL unchanged, or the absolute path of a file on this machine. Raises InvalidInput (`bad_argument`)."""
    if not isinstance(path, str | os.PathLike) or not (text := os.fspath(path)) or not isinstance(text, str):
        raise InvalidInput(f"{redact_input(path)} is not a path", kind="bad_argument")
    if has_scheme(text):
        return text
    if redact_url(text) != text and not os.path.lexists(text):
        raise _open_error(text, "it is neither an existing file nor a URL")
    return os.path.abspath(text)


def _may_hold_secret(query: str) -> bool:
    """Return whether a query may hold a secret, also inside a URL that is the value of an option and is escaped once
    more."""
    texts = [query, *(text for option in parse_qsl(query, keep_blank_values=True) for text in option)]
    for text in texts:
        while (decoded := unquote(text)) != text:
            text = decoded
        if "@" in text or SECRET_NAMES.search(text):
            return True
    return False


def _open_error(text: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{redact_url(text)[:300]!r} cannot be opened: {reason}",
        kind="bad_argument",
        hint="give a path, file:///path, s3://bucket/path or gs://bucket/path",
    )


def files_below(place: Place) -> list[pafs.FileInfo]:
    """List the file itself, or all files below a folder, by path. Names that begin with `_` or `.` are hidden, unless
    they are partition folders (`key=value`). Raises NotFound (`no_file`) when nothing exists at the place."""
    try:
        info = place.system.get_file_info(place.path)
        if info.type is pafs.FileType.File:
            return [info]
        if info.type is pafs.FileType.NotFound:
            raise NotFound(f"there is no file or folder at {redact_url(place.text)[:300]}", kind="no_file")
        found = place.system.get_file_info(pafs.FileSelector(place.path, recursive=True))
    except (pa.ArrowException, OSError) as error:
        raise read_error(place, place.text, error) from None
    files = [one for one in found if one.type is pafs.FileType.File]
    return sorted(
        (one for one in files if not _is_hidden(below(place.path, one.path))), key=lambda one: one.path
    )


def _is_hidden(relative: str) -> bool:
    return any(part[0] in "_." and "=" not in part for part in relative.split("/") if part)


def below(folder: str, path: str) -> str:
    return path[len(folder) :].lstrip("/") if path.startswith(folder) else path


def stamp_of(place: Place, info: pafs.FileInfo) -> str:
    """The time of the last write, as text. It has whole seconds for object stores, because only their listings have
    fractions."""
    if info.mtime_ns is None:
        return ""
    is_local = isinstance(place.system, pafs.LocalFileSystem)
    return str(info.mtime_ns if is_local else info.mtime_ns // 1_000_000_000)


def read_error(place: Place, name: str, error: Exception) -> InvalidInput | Unavailable:
    """The error for a failed read. Unavailable means that a retry may succeed."""
    reason = f"{redact_url(name)[:300]} cannot be read: {redact_text(str(error))[:300]}"
    if isinstance(error, FileNotFoundError):
        return changed_error(name, "it was deleted")
    is_local = isinstance(place.system, pafs.LocalFileSystem)
    if isinstance(error, OSError) and (error.errno is not None or not is_local):
        return Unavailable(reason, kind="storage_unavailable")
    return InvalidInput(reason, kind="bad_data")


def changed_error(name: str, how: str) -> InvalidInput:
    return InvalidInput(
        f"{redact_url(name)[:300]} has changed since the import began: {how}",
        kind="source_changed",
        hint="import it again from the beginning, when no process writes to it",
    )


# --- Parquet ---------------------------------------------------------------------------------------


def open_parquet(file: Any) -> pq.ParquetFile:
    """Open a Parquet file. Timestamps of type INT96 become microseconds, whatever the year, without their finer
    digits."""
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def schema_of(parquet: pq.ParquetFile, *, keep_ids: bool = False) -> pa.Schema:
    """The schema of a file's rows, without metadata for other readers. Timestamps of type INT96 are instants with a
    zone, because Spark writes only such timestamps in this type."""
    schema = parquet.schema_arrow.remove_metadata()
    if not keep_ids:
        schema = strip_field_ids(schema)
    leaves = [parquet.schema.column(index).physical_type == "INT96" for index in range(len(parquet.schema))]
    if any(leaves):
        flags = iter(leaves)
        schema = pa.schema([_with_instants(field, flags) for field in schema])
    return schema


def _with_instants(field: pa.Field, flags: Iterator[bool]) -> pa.Field:
    """The field with zoned timestamps for leaves of type INT96. `flags` says for each following leaf whether it has
    this type."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_instants(kind.field(index), flags) for index in range(kind.num_fields)])
    elif is_list(kind):
        kind = pa.list_(_with_instants(kind.value_field, flags))
    elif pa.types.is_map(kind):
        key = _with_instants(kind.key_field, flags)
        kind = pa.map_(key, _with_instants(kind.item_field, flags))
    elif next(flags):
        kind = pa.timestamp("us", "UTC")
    return field.with_type(kind)


def parquet_batches(
    place: Place,
    path: str,
    name: str,
    rows: int,
    columns: Iterable[str] | None = None,
    *,
    keep_ids: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, which must have `rows` rows. `columns` names the wanted columns; names that the
    file lacks are skipped."""
    try:
        with place.open(path) as file, open_parquet(file) as parquet:
            refuse_old_calendar(parquet.metadata, name)
            if parquet.metadata.num_rows != rows:
                raise changed_error(name, f"it has {parquet.metadata.num_rows} rows, not {rows}")
            schema = schema_of(parquet, keep_ids=keep_ids)
            if columns is not None:
                schema = pa.schema([schema.field(column) for column in columns if column in schema.names])
            if not schema.names:
                for start in range(0, rows, BATCH_ROWS_MAX):
                    yield _without_columns(min(BATCH_ROWS_MAX, rows - start))
                return
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS_MAX, columns=_leaves(parquet, schema)):
                batch = batch.select(schema.names)
                yield batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise read_error(place, name, error) from None


def _leaves(parquet: pq.ParquetFile, schema: pa.Schema) -> list[str] | None:
    return None if len(schema) == len(parquet.schema_arrow) else schema.names


def _without_columns(rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows without columns; the caller adds columns that it knows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


# --- old days --------------------------------------------------------------------------------------

_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_OLD_SPARK = re.compile(rb"[012]\.")
_FIRST_DAY = dt.date(1582, 10, 15)
_FIRST_TIME = dt.datetime(1900, 1, 2)  # Spark's own bound is the first day of 1900, in any zone


def refuse_old_calendar(metadata: pq.FileMetaData, path: str) -> None:
    """Refuse a file whose values may follow another calendar than the format says, as far as statistics tell. Raises
    InvalidInput (`bad_data`), which names the column. Timestamps of type INT96, which have no statistics, are accepted.

    Spark 2, and later releases in LEGACY mode, write days before 1582-10-15 by the Julian calendar, and times before
    1900 by local times of cities. The footer says so, and Spark converts such values when it reads them. Other readers
    follow the format, and get values that are some days off.
    """
    footer = metadata.metadata or {}
    if _LEGACY not in footer and not _OLD_SPARK.match(footer.get(_SPARK_VERSION, b"")):
        return
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            kind = metadata.schema.column(place).logical_type.type
            if kind in ("DATE", "TIMESTAMP") and _may_be_old(kind, column):
                raise InvalidInput(
                    f"{path[:300]}: column {column.path_in_schema} may hold days before 1582 or times before 1900 as"
                    " Spark 2 wrote them, by another calendar",
                    kind="bad_data",
                    hint="read the file with Spark, which converts such values, and append the frame",
                )


def _may_be_old(kind: str, column: pq.ColumnChunkMetaData) -> bool:
    found = column.statistics
    if found is None:
        return bool(column.num_values)
    if found.has_min_max:
        try:
            return _is_old(kind, found.min)
        except (ValueError, OverflowError):  # a day that Python cannot represent
            return True
    return not found.has_null_count or found.null_count < column.num_values


def _is_old(kind: str, low: Any) -> bool:
    if kind == "DATE":
        return not isinstance(low, dt.date) or low < _FIRST_DAY
    return not isinstance(low, dt.datetime) or low.replace(tzinfo=None) < _FIRST_TIME
