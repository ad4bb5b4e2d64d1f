"""Folders of Parquet files, with or without partition folders (`key=value/`)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from alpheus.importing.schemas import table_schema, union
from alpheus.importing.sources import FOOTERS_AT_ONCE, GLOB, Source, SourceFile, with_constants
from alpheus.rows.foreign_file import (
    Place,
    below,
    changed_error,
    files_below,
    locate,
    open_parquet,
    parquet_batches,
    read_error,
    schema_of,
    stamp_of,
)
from alpheus_journal.errors import InvalidInput, NotFound

_NULL = "__HIVE_DEFAULT_PARTITION__"
_NUMBER = re.compile(r"-?[0-9]+")

_Texts = dict[str, str | None]
"""Partition keys of one file with their values, as texts from the names of its folders."""


class ParquetSource(Source):
    """The Parquet files of a folder, a single file, or the files that match a pattern.

    Columns are matched by name (`schemas.union`). Keys of partition folders are columns too: of the type in
    `partition_types`, otherwise int32 if all their values are such numbers, otherwise text. If a file also contains the
    key as a column, its values must be the folder's value.
    """

    format = "parquet"

    def __init__(self, path: str, partition_types: Mapping[str, pa.DataType] | None = None) -> None:
        self.location = locate(path).text
        self._place, infos = _find_files(self.location)
        if not infos:
            raise NotFound(f"there are no Parquet files at {path}", kind="no_file")
        names = [below(self._place.path, info.path) or info.base_name for info in infos]
        self._paths = [info.path for info in infos]
        files: list[SourceFile] = []
        shapes: dict[pa.Schema, str] = {}  # many files share few schemas
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            footers = pool.map(lambda info: _read_footer(self._place, info), infos)
            for name, info, (schema, rows) in zip(names, infos, footers, strict=True):
                files.append(SourceFile(name, info.size, stamp_of(self._place, info), rows))
                shapes.setdefault(schema, name)
        self.files = tuple(files)
        columns = union([(name, table_schema(schema)) for schema, name in shapes.items()])
        self._texts = _partition_texts(names)
        self._kinds = _partition_kinds(self._texts, names, partition_types or {}, columns)
        added = [pa.field(key, kind) for key, kind in self._kinds.items() if key not in columns.names]
        # A file without the column takes the folder's value, which may be NULL.
        self.schema = pa.schema(
            [field.with_nullable(True) if field.name in self._kinds else field for field in columns] + added
        )
        self.partition_by = tuple(
            f"`{key.replace('`', '``')}`"
            for key, kind in self._kinds.items()
            if not pa.types.is_floating(kind)
        )
        self._values: dict[tuple[str, str | None], pa.Scalar] = {}
        for name, texts in zip(names, self._texts, strict=True):
            self._scalars(name, texts)  # finds values of a wrong type before anything is copied

    def batches(self, index: int) -> Iterator[pa.RecordBatch]:
        file = self.files[index]
        values = self._scalars(file.name, self._texts[index])
        self._check_unchanged(index)
        for batch in parquet_batches(self._place, self._paths[index], file.name, file.rows):
            for key, value in values.items():
                if key in batch.schema.names:
                    _check_equal(file.name, key, batch.column(key), value)
            missing = {key: value for key, value in values.items() if key not in batch.schema.names}
            yield with_constants(batch, missing)
        self._check_unchanged(index)

    def _check_unchanged(self, index: int) -> None:
        file = self.files[index]
        try:
            info = self._place.system.get_file_info(self._paths[index])
        except (pa.ArrowException, OSError) as error:
            raise read_error(self._place, file.name, error) from None
        if info.type is not pafs.FileType.File:
            raise changed_error(file.name, "it was deleted")
        if (info.size, stamp_of(self._place, info)) != (file.size, file.stamp):
            raise changed_error(file.name, f"it was modified (now {info.size} bytes, then {file.size})")

    def _scalars(self, name: str, texts: _Texts) -> dict[str, pa.Scalar]:
        found = {}
        for key, text in texts.items():
            value = self._values.get((key, text))
            if value is None:
                try:
                    value = pa.scalar(text, pa.string()).cast(self._kinds[key])
                except (pa.ArrowException, ValueError) as error:
                    raise InvalidInput(
                        f"{name[:300]}: {key}={text!r} is not a {self._kinds[key]}: {str(error)[:200]}",
                        kind="bad_data",
                        hint="give another type for the key in partition_types",
                    ) from None
                self._values[key, text] = value
            found[key] = value
        return found


def _find_files(text: str) -> tuple[Place, list[pafs.FileInfo]]:
    """Return the folder that file names are relative to, and the files."""
    place = locate(text)
    if GLOB.search(place.path) and place.system.get_file_info(place.path).type is pafs.FileType.NotFound:
        parts = place.path.split("/")
        fixed = next(index for index, part in enumerate(parts) if GLOB.search(part))
        folder = Place(text, place.system, "/".join(parts[:fixed]) or "/")
        pattern = parts[fixed:]
        return folder, [
            info
            for info in files_below(folder)
            if _matches(below(folder.path, info.path).split("/"), pattern)
        ]
    infos = files_below(place)
    _refuse_tables(place)
    if [info.path for info in infos] == [
        place.path
    ]:  # a single file, whose folders are not partition folders
        return Place(text, place.system, place.path.rpartition("/")[0]), infos
    return place, infos


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether the pattern matches a path or a folder above it. `**` matches any number of folders."""
    if not pattern:
        return True
    if not parts:
        return pattern == ["**"]
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _refuse_tables(place: Place) -> None:
    """Refuse the folder of a Delta or Iceberg table: some of its files hold deleted rows or old versions."""
    log, metadata = place.system.get_file_info([f"{place.path}/_delta_log", f"{place.path}/metadata"])
    found = "delta" if log.type is pafs.FileType.Directory else ""
    if metadata.type is pafs.FileType.Directory:
        inside = place.system.get_file_info(pafs.FileSelector(metadata.path))
        if any(info.path.endswith(".metadata.json") for info in inside):
            found = "iceberg"
    if found:
        raise InvalidInput(
            f"{place.text[:300]} is a table of format {found}: not all rows in its Parquet files belong to the table",
            kind="bad_argument",
            hint=f'import it with format="{found}"',
        )


def _read_footer(place: Place, info: pafs.FileInfo) -> tuple[pa.Schema, int]:
    try:
        with place.open(info.path) as file, open_parquet(file) as parquet:
            return schema_of(parquet), parquet.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise read_error(place, info.path, error) from None


# --- partition folders -----------------------------------------------------------------------------


def _partition_texts(names: list[str]) -> list[_Texts]:
    found: list[_Texts] = []
    for name in names:
        texts: _Texts = {}
        for part in name.split("/")[:-1]:
            key, equals, value = part.partition("=")
            if equals and key:
                texts[unquote(key)] = None if value == _NULL else unquote(value)
        found.append(texts)
        if texts.keys() != found[0].keys():
            raise InvalidInput(
                f"{names[0][:300]} has partition keys ({', '.join(found[0])}), {name[:300]} has ({', '.join(texts)})",
                kind="bad_schema",
                hint="import only folders with the same partition keys together",
            )
    return found


def _partition_kinds(
    texts: list[_Texts], names: list[str], given: Mapping[str, pa.DataType], columns: pa.Schema
) -> dict[str, pa.DataType]:
    keys = list(texts[0])
    for key, kind in given.items():
        if key not in keys or not isinstance(kind, pa.DataType):
            raise InvalidInput(
                f"partition_types: {key!r}: {kind!r} is not a partition key with a pyarrow type",
                kind="bad_argument",
                hint=f"the folders have {', '.join(keys) or 'no partition keys'}",
            )
    kinds: dict[str, pa.DataType] = {}
    for key in keys:
        if key in columns.names:
            kinds[key] = columns.field(key).type
        elif key in given:
            kinds[key] = given[key]
        else:
            values = {one[key] for one in texts} - {None}
            is_number = bool(values) and all(_is_int32(value) for value in values if value is not None)
            kinds[key] = pa.int32() if is_number else pa.string()
    return kinds


def _is_int32(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and len(text) <= 20 and -(1 << 31) <= int(text) < 1 << 31


def _check_equal(name: str, key: str, array: pa.Array, value: pa.Scalar) -> None:
    if value.is_valid:
        fits = pc.all(pc.fill_null(pc.equal(array.cast(value.type), value), False), min_count=0).as_py()
    else:
        fits = array.null_count == len(array)
    if not fits:
        raise InvalidInput(
            f"{name[:300]}: column {key!r} has values other than {value.as_py()!r}, the value of its folder",
            kind="bad_data",
        )
