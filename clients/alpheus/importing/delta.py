"""Read Delta tables. The package `deltalake` reads the log; this module reads the Parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from alpheus.importing.schemas import table_schema
from alpheus.importing.sources import FOOTERS_AT_ONCE, Source, SourceFile, with_constants
from alpheus.rows.foreign_file import (
    Place,
    changed_error,
    locate,
    open_parquet,
    parquet_batches,
    read_error,
    schema_of,
)
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.tables.columns import is_bytes

READER_FEATURES = frozenset(
    {
        "timestampNtz",
        "deletionVectors",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Declared by tables that may have such a column; a column of the type itself is refused.
        "variantType",
        "variantType-preview",
    }
)
"""Reader features that this module supports. Deletion vectors are applied; files of a narrower type are widened."""


class DeltaSource(Source):
    """One version of a Delta table, with the columns, partition values and files that its log records."""

    format = "delta"

    def __init__(self, path: str, version: str = "") -> None:
        place = locate(path)
        self.location = place.text
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError
        except ImportError:
            raise InvalidInput(
                "deltalake is not installed", kind="not_supported", hint='run pip install "alpheus[delta]"'
            ) from None
        if version and not (version.isascii() and version.isdigit()):
            raise InvalidInput(f"version={version!r} is not a version of a Delta table", kind="bad_version")
        if "%" in place.path:  # the package (1.6) unescapes the name and looks in another folder
            raise InvalidInput(
                f"{place.text[:300]}: deltalake cannot open a folder with % in its path",
                kind="not_supported",
                hint="rename the folder, or create a link to it",
            )
        try:
            table = DeltaTable(
                _address(place),
                version=int(version) if version else None,
                storage_options=_options(place.text),
            )
            self.version = str(table.version())
            _refuse_features(table, self.location)
            schema = pa.schema(table.schema())
            actions = pa.table(table.get_add_actions())
            masks = _read_masks(table)
        except TableNotFoundError as error:
            raise NotFound(
                f"{path}: {str(error)[:300]}",
                kind="no_file",
                hint='the folder has no Delta log; import a folder of Parquet files with format="parquet"'
                if "No files in log segment" in str(error)
                else "",
            ) from None
        except DeltaError as error:
            newest = _find_newest(place) if version else None
            if newest is not None and int(version) > newest:
                raise NotFound(
                    f"{path} has no version {version}; the newest is {newest}", kind="no_version"
                ) from None
            raise InvalidInput(f"{path}: {str(error)[:300]}", kind="not_supported") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise read_error(place, place.text, error) from None
        self._place = place
        self._partitions = list(table.metadata().partition_columns)
        self._refuse_binary_partitions(schema)
        self.schema = table_schema(schema)
        self._lower = {name.lower(): name for name in schema.names}
        self.partition_by = tuple(
            f"`{name.replace('`', '``')}`"
            for name in self._partitions
            if not pa.types.is_floating(schema.field(name).type)
        )
        self._read_actions(table.table_uri, actions, masks)

    def _refuse_binary_partitions(self, schema: pa.Schema) -> None:
        for name in self._partitions:
            if is_bytes(schema.field(name).type):  # the package (1.6) returns other bytes than the log has
                raise InvalidInput(
                    f"{self.location[:300]}: the partition column {name!r} has type binary, which is not supported",
                    kind="not_supported",
                    hint="read the table with Spark and append the DataFrame",
                )

    def _read_actions(self, uri: str, actions: pa.Table, masks: dict[str, pa.Array]) -> None:
        paths = actions.column("path").to_pylist()
        order = sorted(range(len(paths)), key=lambda index: paths[index])
        partitions = actions.column("partition").combine_chunks() if self._partitions else None
        sizes, times, counts = (
            actions.column(name).to_pylist() for name in ("size_bytes", "modification_time", "num_records")
        )
        for path in paths:
            if "://" in path or path.startswith("/"):
                raise InvalidInput(
                    f"{self.location} lists {path[:300]}, which is outside of the table (a shallow clone)",
                    kind="not_supported",
                    hint="import a deep clone of the table",
                )
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            footers = list(
                pool.map(lambda index: self._count_rows(unquote(paths[index]), counts[index]), order)
            )
        files: list[SourceFile] = []
        self._constants: list[dict[str, pa.Scalar]] = []
        self._masks: list[pa.Array | None] = []
        self._physical: list[int] = []
        for index, rows in zip(order, footers, strict=True):
            path = paths[index]
            name = unquote(path)
            mask = masks.pop(uri.rstrip("/") + "/" + path, None)
            if mask is not None and len(mask) > rows:
                raise InvalidInput(
                    f"{name[:300]} has {rows} rows, but its deletion vector has {len(mask)}", kind="bad_data"
                )
            gone = 0 if mask is None else len(mask) - mask.true_count
            files.append(SourceFile(name, sizes[index], str(times[index]), rows - gone))
            self._physical.append(rows)
            self._masks.append(mask)
            values = {} if partitions is None else {n: partitions.field(n)[index] for n in self._partitions}
            self._constants.append(values)
        if masks:
            raise InvalidInput(
                f"{self.location} has a deletion vector of {min(masks)[:300]}, which is not one of its files",
                kind="bad_data",
            )
        self.files = tuple(files)

    def _count_rows(self, name: str, counted: int | None) -> int:
        """Return the number of rows in a file's footer. Check it against the log, if the log counts rows, and check the
        names of the columns."""
        path = f"{self._place.path}/{name}"
        try:
            with self._place.open(path) as file, open_parquet(file) as parquet:
                rows: int = parquet.metadata.num_rows
                columns = schema_of(parquet).names
        except (pa.ArrowException, OSError) as error:
            raise read_error(self._place, name, error) from None
        if counted is not None and counted != rows:
            raise InvalidInput(
                f"{name[:300]} has {rows} rows, but the table's log says {counted}", kind="bad_data"
            )
        for column in columns:
            known = self._lower.get(column.lower())
            if known is not None and known != column:
                raise InvalidInput(
                    f"{name[:300]} has a column {column!r}, but the table has {known!r}",
                    kind="not_supported",
                    hint="rewrite the file: a column whose name differs in case would count as missing",
                )
        return rows

    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        file, mask, constants = self.files[index], self._masks[index], self._constants[index]
        names = [name for name in self.schema.names if name not in constants]
        start = 0
        info = self._place.system.get_file_info(f"{self._place.path}/{file.name}")
        if info.size is not None and info.size != file.size:
            raise changed_error(file.name, f"it has {info.size} bytes, not {file.size}")
        path = f"{self._place.path}/{file.name}"
        for batch in parquet_batches(self._place, path, file.name, self._physical[index], names):
            rows = batch.num_rows
            batch = with_constants(batch, constants)
            if mask is not None:
                kept = mask.slice(start, rows)
                if len(kept) < rows:  # rows after the end of the vector are not deleted
                    kept = pa.concat_arrays([kept, pa.repeat(pa.scalar(True), rows - len(kept))])
                batch = batch.filter(kept)
            start += rows
            yield batch


def _find_newest(place: Place) -> int | None:
    """Return the newest version of the table, or None if the table cannot be opened."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return int(DeltaTable(_address(place), storage_options=_options(place.text)).version())
    except DeltaError:
        return None


def _refuse_features(table: Any, location: str) -> None:
    """Raise InvalidInput (`not_supported`) that names the reader features that this table needs and this module
    lacks."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - READER_FEATURES)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none" and "columnMapping" not in unknown:
        unknown.append("columnMapping")
    fields = json.loads(table.schema().to_json())["fields"]
    if "columnMapping" not in unknown and any("delta.columnMapping" in json.dumps(field) for field in fields):
        unknown.append("columnMapping")
    if protocol.min_reader_version > 3:
        unknown.append(f"reader version {protocol.min_reader_version}")
    if unknown:
        raise InvalidInput(
            f"{location[:300]} needs features that this release does not support: {', '.join(unknown)}",
            kind="not_supported",
            hint="read the table with Spark and append the DataFrame, or rewrite it without these features",
        )
    for field in fields:
        if _names_variant(field["type"]):
            raise InvalidInput(
                f"{location[:300]}: column {field['name']!r} has type variant, which native tables do not support",
                kind="bad_schema",
            )


def _names_variant(kind: Any) -> bool:
    """Return whether a type in Delta's JSON is or contains variant."""
    if isinstance(kind, str):
        return kind == "variant"
    below = [kind.get("elementType"), kind.get("keyType"), kind.get("valueType")]
    below += [field["type"] for field in kind.get("fields", ())]
    return any(_names_variant(one) for one in below if one is not None)


def _read_masks(table: Any) -> dict[str, pa.Array]:
    """Read the deletion vectors: by URI of a file, which rows stay."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    found = pa.table(table.deletion_vectors())
    uris = found.column("filepath").to_pylist()
    vectors = found.column("selection_vector")
    return {uri: vectors[index].values for index, uri in enumerate(uris)}


def _address(place: Place) -> str:
    """Return the table's URI, escaped, because the package interprets escapes in paths."""
    if isinstance(place.system, pafs.LocalFileSystem):
        return Path(place.path).as_uri()
    return urlsplit(place.text)._replace(query="").geturl()


def _options(text: str) -> dict[str, str] | None:
    """Return the storage options of `deltalake` for the parameters in a URL's query."""
    query = (
        {key: values[-1] for key, values in parse_qs(urlsplit(text).query).items()} if "://" in text else {}
    )
    options = {}
    endpoint = query.get("endpoint_url")
    if endpoint is None and "endpoint_override" in query:
        endpoint = f"{query.get('scheme', 'https')}://{query['endpoint_override']}"
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    if "region" in query:
        options["AWS_REGION"] = query["region"]
    return options or None
