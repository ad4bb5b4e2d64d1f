"""Changing rows of a native table by Spark: the verbs, and the one operation that says so (FORMAT.md, "Changing rows").

As in `alpheus.transactions.row_changes`, rows are removed by a delete predicate, or by rewriting their files without
them. A user's frame is run once, into files. All later steps read these files and files of the table, which do not
change. So a frame that returns other rows each time it runs does no harm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from alpheus.catalog import Transaction, core_of
from alpheus.rows.encoder import FILE_SIZE_TARGET
from alpheus.rows.file_reader import ListedFile
from alpheus.rows.plan import Plan, PlannedFile, plan
from alpheus.session.arguments import Name, parse_name
from alpheus.spark.files import file_scan, writes
from alpheus.spark.files.schemas import check_texts, fit_frame, quoted
from alpheus.spark.files.scratch import delete_scratch
from alpheus.spark.files.writes import Owner, Staged
from alpheus.spark.tables import scan
from alpheus.spark.tables.assignments import (
    DATA_EXCEPTION,
    SHOWN_MAX,
    assign_columns,
    check_assignments,
    name_columns,
    read_assignments,
    spark_reason,
)
from alpheus.spark.tables.lake import Lake
from alpheus.spark.tables.scan import Where
from alpheus.sync.portal import run
from alpheus.transactions.compaction import CompactionPlan, choose_groups, describe_group
from alpheus.transactions.row_changes import CHANGE_TYPE, Mode, is_rewritten
from alpheus.transactions.update_delete import partitions_predicate
from alpheus.where.conditions import as_predicate
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Kind
from alpheus_journal.model.definitions import Column, Segment, TableDef
from alpheus_journal.model.operations import ChangeMode, ChangeRows
from alpheus_journal.predicate import Predicate, Verdict, encode, judge, text
from alpheus_journal.tables.data_file import DataFile

_FILE = "_alpheus_file"
_BIN_ID = CHANGE_TYPE.id - 1  # of no column that is written

Select = Callable[[DataFrame], DataFrame]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table that a verb changes.

    - `sought`: a predicate that is TRUE for these rows, and maybe for others. None means unknown.
    - `chosen`, `others`: filter a frame with the table's columns for the rows that change, and for those that do not.
    - `predicate`: TRUE for exactly the rows that change. None means that no such predicate can be stored.
    """

    sought: Predicate | None
    chosen: Select
    others: Select
    predicate: Predicate | None


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """The files with rows that change. In files of `whole` all rows change, as their statistics tell. In files of
    `partial` the given number of rows changes, which may be all."""

    whole: tuple[PlannedFile, ...] = ()
    partial: tuple[tuple[PlannedFile, int], ...] = ()

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        return (*self.whole, *(file for file, _ in self.partial))

    @property
    def rows(self) -> int:
        """The number of rows that change."""
        return sum(each.file.row_count for each in self.whole) + self.rows_partial

    @property
    def rows_partial(self) -> int:
        """The number of rows that change in the files of `partial`."""
        return sum(changing for _, changing in self.partial)


def owner_of(tx: Transaction) -> Owner:
    """Return the owner of the files that the transaction writes."""
    core = core_of(tx)
    return Owner(
        transaction_id=core.id, catalog_id=core.session.catalog_id, checksums=run(core.lists_checksums())
    )


class Rows:
    """The rows of one table, as a transaction sees them, for verbs that change them."""

    def __init__(self, lake: Lake, tx: Transaction, name: Name) -> None:
        self._lake = lake
        self._tx = tx
        self._name = parse_name(Kind.TABLE, name)
        self._owner = owner_of(tx)
        self.table: TableDef = tx.load_table(name).definition
        if not self.table.native:
            raise InvalidInput(
                "the table is an Iceberg table", kind="not_native", hint="write it through Iceberg"
            )
        file_scan.check_session(lake.spark)
        self._store = lake.store_of(self.table)
        found = lake.lists.with_sequences(self.table.id, self.table.segments, core_of(tx).overlay.segment)
        places = (segment for segment in self.table.segments for _ in range(segment.file_count))
        self.listed = [ListedFile(place, *at) for place, at in zip(places, found, strict=True)]
        self._sources = {one.file.path: one.segment.path for one in self.listed}

    # -- reading

    def plan(self, sought: Predicate | None) -> Plan:
        return plan(self.table, [(one.file, one.sequence) for one in self.listed], sought)

    def visible(self, chosen: Sequence[PlannedFile], label: str = "") -> DataFrame:
        return scan.visible_rows(self._lake.spark, self._store, self.table, chosen, label)

    def read_back(self, found: Sequence[DataFile], columns: Sequence[Column] | None = None) -> DataFrame:
        """Return the rows of files that were just written."""
        if columns is not None:
            return file_scan.scan(self._lake.spark, self._store, columns, found)
        table = self.table
        return file_scan.scan(self._lake.spark, self._store, table.columns, found, schema_id=table.schema_id)

    def find_hits(self, match: Match) -> Hits:
        """Find the files with rows that change. Runs one query, over the files whose statistics do not decide."""
        planned = self.plan(match.sought)
        by_predicate = match.predicate is not None and match.predicate is match.sought
        whole: list[PlannedFile] = []
        asked: dict[str, PlannedFile] = {}
        for each in planned.files:
            if by_predicate and each.is_whole:
                whole.append(each)
            else:
                asked[each.file.path] = each
        if not asked:
            return Hits(whole=tuple(whole))
        df = match.chosen(self.visible(list(asked.values()), _FILE))
        counts = {row[0]: row[1] for row in df.groupBy(_FILE).count().collect()}
        return Hits(
            whole=tuple(whole),
            partial=tuple((each, counts[path]) for path, each in asked.items() if counts.get(path)),
        )

    # -- writing

    def stage(self, df: DataFrame) -> Staged:
        """Run a frame into files of the table."""
        self._hold_lease()
        lake = self._lake
        return writes.stage(df, self._store, lake.lists, self.table, owner=self._owner)

    def write_aside(self, df: DataFrame, columns: tuple[Column, ...]) -> list[DataFile]:
        """Run a frame into files that only this transaction reads."""
        file_scan.check_session(df.sparkSession)
        self._hold_lease()
        return writes.write(
            fit_frame(df, columns),
            self._store,
            self.table,
            columns,
            owner=self._owner,
            is_arranged=False,
        )

    def _hold_lease(self) -> None:
        """Keep the transaction's files until its commit, before the first of them is written."""
        run(core_of(self._tx).hold_lease())

    def discard(self, found: Sequence[DataFile]) -> None:
        delete_scratch(self._store, [file.path for file in found])

    def _stage_changes(self, parts: Sequence[tuple[DataFrame, str]], rows: int) -> tuple[Segment, ...]:
        """Write change files, for feeds. `rows` is the number of rows in all parts."""
        if any(column.name.lower() == CHANGE_TYPE.name for column in self.table.columns):
            return ()  # such a table has no readable feed
        labelled = [df.withColumn(CHANGE_TYPE.name, f.lit(kind)) for df, kind in parts]
        both = functools.reduce(DataFrame.unionByName, labelled)
        found = self.write_aside(both, (*self.table.columns, CHANGE_TYPE))
        _check_kept(rows, sum(file.row_count for file in found))
        return writes.list_in_segment(self._store, self._lake.lists, self.table, found).segments

    def is_rewritten(self, how: Mode | None, match: Match, hits: Hits) -> bool:
        """Return whether the files of `hits.partial` are rewritten."""
        return bool(hits.partial) and is_rewritten(
            how,
            match.predicate,
            self.table,
            changing=hits.rows_partial,
            rows=sum(each.file.row_count for each, _ in hits.partial),
        )

    def change(
        self,
        mode: ChangeMode,
        match: Match,
        hits: Hits,
        *,
        how: Mode | None,
        went: str,
        came: Sequence[tuple[Staged, str]] = (),
    ) -> None:
        """Record the operation, if there is anything to do.

        `came` has new rows, each with the change type that a feed gives them. `went` is the change type of the old
        rows.
        """
        came = [(staged, kind) for staged, kind in came if staged.segments]
        if not came and not hits.files:
            return
        segments = [segment for staged, _ in came for segment in staged.segments]
        rewrites = self.is_rewritten(how, match, hits)
        partial = [each for each, _ in hits.partial]
        changes: tuple[Segment, ...] = ()
        if rewrites or (hits.files and mode is ChangeMode.MERGE):  # otherwise a feed uses the predicate
            changes = self._stage_changes(
                [
                    (match.chosen(self.visible(hits.files)), went),
                    *((self.read_back(staged.files), kind) for staged, kind in came),
                ],
                hits.rows + sum(staged.rows for staged, _ in came),
            )
        kept = dead = 0
        if rewrites:
            survivors = self.stage(match.others(self.visible(partial)))
            segments += survivors.segments
            kept = survivors.rows
            dead = _count_dead_rows(partial, hits.rows_partial + kept)
        hides = bool(partial) and not rewrites
        assert not hides or match.predicate is not None
        self._apply(
            mode,
            match.sought,
            segments=tuple(segments),
            removed=hits.files if rewrites else hits.whole,
            predicates=(encode(match.predicate),) if hides and match.predicate is not None else (),
            changes=changes,
            rows_hidden=hits.rows_partial if hides else 0,
            rows_kept=kept,
            rows_dead=dead,
        )

    def compact(self, bins: Sequence[Sequence[ListedFile]], target_size: int) -> None:
        """Rewrite the files of each bin together: into one file, or several of at least the target size in bytes."""
        self._hold_lease()
        lake = self._lake
        numbers = {one.file.path: number for number, some in enumerate(bins) for one in some}
        planned = {each.file.path: each for each in self.plan(None).files}
        shown = [planned[path] for path in numbers if path in planned]
        name = writes.free_name(
            "alpheus_bin", self.table.columns
        )  # of folders, too: Hadoop hides what begins with "_"
        labels = pa.table({_FILE: list(numbers), name: pa.array(list(numbers.values()), pa.int32())})
        found: list[DataFile] = []
        if shown:
            df = self.visible(shown, _FILE).join(
                f.broadcast(lake.spark.createDataFrame(labels)), _FILE, "left"
            )
            columns = (*self.table.columns, Column(id=_BIN_ID, name=name, type="INT4"))
            ready = fit_frame(df.drop(_FILE), columns)
            found = writes.write(
                ready,
                self._store,
                self.table,
                self.table.columns,
                owner=self._owner,
                by=name,
                file_size_target=target_size,
            )
        staged = writes.list_in_segment(self._store, lake.lists, self.table, found)
        _count_dead_rows(shown, staged.rows)
        gone = [PlannedFile(file=one.file, sequence=one.sequence) for some in bins for one in some]
        self._apply(ChangeMode.COMPACT, None, segments=staged.segments, removed=gone)

    def _apply(
        self,
        mode: ChangeMode,
        sought: Predicate | None,
        *,
        segments: tuple[Segment, ...],
        removed: Sequence[PlannedFile],
        predicates: tuple[bytes, ...] = (),
        changes: tuple[Segment, ...] = (),
        rows_hidden: int = 0,
        rows_kept: int = 0,
        rows_dead: int = 0,
    ) -> None:
        lake = self._lake
        if removed:
            self._hold_lease()
        entries = [msgspec.structs.replace(each.file, sequence=each.sequence) for each in removed]
        gone = (writes.put_segment(self._store, lake.lists, self.table, entries),) if entries else ()
        core = core_of(self._tx)
        operation = ChangeRows(
            namespace=self._name.namespace,
            name=self._name.name,
            table_id=self.table.id,
            base_sequence=run(core.base_sequence(self._name, self.table)),
            mode=mode,
            data_root=self.table.data_root,
            segments=segments,
            removed=gone,
            predicates=predicates,
            scan=encode(sought) if sought is not None and is_small(sought) else b"",
            changes=changes,
            sources=tuple(dict.fromkeys(self._sources[each.file.path] for each in removed)),
            rows_hidden=rows_hidden,
            rows_kept=rows_kept,
            rows_dead=rows_dead,
        )
        run(core.apply(operation))


def check_updated(hits: Hits, staged: Staged) -> None:
    """Raise InvalidInput (`bad_data`) unless there is exactly one new row for each updated row."""
    if staged.rows != hits.rows:
        raise InvalidInput(
            f"{hits.rows} rows are updated, but {staged.rows} were written for them; nothing of it is kept",
            kind="bad_data",
            hint="give each row one new value in each column: an update neither adds nor removes rows",
        )


def _count_dead_rows(before: Sequence[PlannedFile], now: int) -> int:
    """Return how many rows of rewritten files were deleted before. Raises what `_check_kept` does."""
    rows = sum(each.file.row_count for each in before)
    if now > rows or not any(each.predicates for each in before):
        _check_kept(rows, now)
    return rows - now


def _check_kept(rows: int, written: int) -> None:
    """Raise Corrupt when Spark wrote another number of rows: Spark or the counts of the files cannot be trusted."""
    if rows != written:
        raise Corrupt(
            f"files with {rows} rows were rewritten with {written} rows; nothing of it is kept",
            kind="corrupt_manifest",
            hint="run `alpheus check`",
        )


def is_small(predicate: Predicate) -> bool:
    """Return whether the predicate is small enough to be stored."""
    try:
        encode(predicate)
    except InvalidInput:
        return False
    return True


def where_match(where: Predicate, columns: Sequence[Column]) -> Match:
    sql = scan.condition(where, columns)
    return Match(
        sought=where,
        chosen=lambda df: df.where(sql),
        others=lambda df: df.where(f"NOT coalesce({sql}, FALSE)"),
        predicate=where,
    )


def require_where(where: Where | None, table: TableDef, verb: str) -> Predicate:
    found = as_predicate(where, table.columns)
    if found is None:
        raise InvalidInput(f"{verb} needs a where", hint='give a condition; where="TRUE" means all rows')
    return found


# --- compaction ------------------------------------------------------------------------------------


def plan_compaction(rows: Rows, target_size: int | None) -> tuple[CompactionPlan, list[list[ListedFile]]]:
    """Return what a compaction does, and the bins: files that become about one file together."""
    target = FILE_SIZE_TARGET if target_size is None else target_size
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise InvalidInput(f"target_size={target_size!r} is not a size in bytes")
    bins = choose_groups(rows.table, rows.listed, rows.plan(None), target)
    planned = CompactionPlan(
        groups=tuple(describe_group(partition, some) for partition, some in bins),
        file_count=len(rows.listed),
        size_bytes=sum(one.file.size_bytes for one in rows.listed),
        target_size_bytes=target,
    )
    return planned, [[one.listed for one in some] for _, some in bins]


def compact(rows: Rows, bins: Sequence[Sequence[ListedFile]], target_size: int) -> None:
    """Rewrite the files of each bin together; see `Rows.compact`."""
    if bins:
        rows.compact(bins, target_size)


# --- the verbs -------------------------------------------------------------------------------------


def delete(rows: Rows, where: Where, mode: Mode | None) -> None:
    match = where_match(require_where(where, rows.table, "delete"), rows.table.columns)
    rows.change(ChangeMode.DELETE, match, rows.find_hits(match), how=mode, went="delete")


def update(rows: Rows, set: Mapping[str, Any], where: Where, mode: Mode | None) -> None:
    table = rows.table
    match = where_match(require_where(where, table, "update"), table.columns)
    assigned = read_assignments(set, table.columns)
    check_assignments(rows.visible([]), assigned, table.columns)
    hits = rows.find_hits(match)
    if not hits.files:
        return
    old = match.chosen(rows.visible(hits.files))
    staged = _stage_updated(rows, assign_columns(old, assigned, table.columns), assigned)
    check_updated(hits, staged)
    rows.change(
        ChangeMode.UPDATE,
        match,
        hits,
        how=mode,
        went="update_preimage",
        came=[(staged, "update_postimage")],
    )


def _stage_updated(rows: Rows, new: DataFrame, assigned: Mapping[str, SparkColumn]) -> Staged:
    """Write the updated rows. Raises InvalidInput (`bad_data`) for values that cannot be computed."""
    try:
        return rows.stage(check_texts(new, rows.table.columns))
    except PySparkException as error:
        if not (error.getSqlState() or "").startswith(DATA_EXCEPTION):
            raise
        raise InvalidInput(
            f"set: {name_columns(assigned)}: a value cannot be computed: {spark_reason(error)}",
            kind="bad_data",
            hint="exclude such rows by where, or give them a value by CASE: a number is divided by zero, or too large",
        ) from error


def overwrite(rows: Rows, df: DataFrame, where: Where | None, partitions: Any) -> None:
    """Replace rows. Exactly one of `where` and `partitions` is given."""
    table = rows.table
    if where is not None and partitions is not None:
        raise InvalidInput("overwrite takes where or partitions, not both", hint="leave one out")
    if where is None:
        found = _distinct_values(partitions).toArrow() if isinstance(partitions, DataFrame) else partitions
        meant = partitions_predicate(table, found)
    else:
        meant = require_where(where, table, "overwrite")
    match = where_match(meant, table.columns)
    staged = rows.stage(check_texts(df, table.columns))
    _refuse_outside(rows, staged, match, meant)
    rows.change(
        ChangeMode.OVERWRITE, match, rows.find_hits(match), how=None, went="delete", came=[(staged, "insert")]
    )


def _distinct_values(df: DataFrame) -> DataFrame:
    """Return the distinct rows, with texts compared as tables do, whatever the frame's collation."""
    plain = [
        f.col(quoted(field.name)).cast(t.StringType()).alias(field.name)
        if isinstance(field.dataType, t.StringType)
        else f.col(quoted(field.name))
        for field in df.schema.fields
    ]
    return df.select(*plain).distinct()


def _refuse_outside(rows: Rows, staged: Staged, match: Match, meant: Predicate) -> None:
    """Raise InvalidInput for a written row that is outside the replaced rows. Reads only the files whose statistics do
    not decide."""
    unsure = [file for file in staged.files if judge(meant, file) is not Verdict.ALWAYS]
    strange = match.others(rows.read_back(unsure)).take(1) if unsure else []
    if strange:
        raise InvalidInput(
            f"a row is not one of those that are replaced, where {text(meant)[:SHOWN_MAX]}:"
            f" {str(strange[0].asDict())[:SHOWN_MAX]}",
            kind="bad_data",
            hint="leave the row out, or append it",
        )
