"""Row changes of one table as rows of files: files and predicates. Changes are not netted.

- An append inserts the rows of its segments.
- An overwrite deletes the rows that were visible, and inserts those of its segments.
- A change of some rows lists them in change files. Without change files it deletes the visible rows of removed files
  and the rows that its predicates hide, and inserts the rows of added files.
- A compaction changes no rows.
- A restore or undrop, and a version that does not record what it did, is the difference of two definitions, by file
  and by predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Literal

import msgspec

from alpheus.feed.log import load_definition
from alpheus.feed.trail import RowChange
from alpheus.rows.manifest_files import FileLists
from alpheus.rows.plan import FileAt, decode_predicate, plan, predicates_at
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.definitions import Segment, TableDef
from alpheus_journal.model.table_starts import files_expired
from alpheus_journal.predicate import Or, Predicate
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile

ChangeType = Literal["insert", "delete", "update_preimage", "update_postimage"]


CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_transaction_id")


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that changed in one way: rows of `files` for which no predicate of `hidden` is TRUE and `chosen` is TRUE.

    `hidden` excludes rows that were deleted before, or do not exist after. `chosen` None means all other rows.
    `change_type` None means that the column `CHANGE_TYPE` of the files says it for each row.
    """

    change_type: ChangeType | None
    version: int
    created_at: datetime
    transaction_id: str | None
    files: tuple[DataFile, ...]
    hidden: tuple[Predicate, ...] = ()
    chosen: Predicate | None = None

    @property
    def is_whole(self) -> bool:
        return not self.hidden and self.chosen is None


class _State(msgspec.Struct, frozen=True):
    """The table at one definition, and its files by path. `table` None means that there was no table."""

    table: TableDef | None
    files: dict[str, FileAt]


class ChangeReader:
    """Turns row changes of one table into change sets. Reads the table's definitions and manifests.

    `starts` returns the starts of tables at the head, and is asked once. A change below the table's start raises
    Expired (`files_expired`).
    """

    def __init__(
        self, storage: Storage, lists: FileLists, table_id: str, starts: Callable[[], Mapping[str, int]]
    ) -> None:
        self._start: int | None = None
        self._starts = starts
        self._storage = storage
        self._lists = lists
        self._table_id = table_id

    def read(self, change: RowChange) -> list[ChangeSet]:
        """Return the change sets of a row change in the order in which they took effect, without empty ones."""
        self._check_kept(change.version)
        if change.type == "append":
            return self._insert_sets(change, "insert")
        if change.type == "overwrite":
            before = self._load_state(change.path_before)
            return [
                *self._plan_sets(change, "delete", before.table, before.files.values()),
                *self._insert_sets(change, "insert"),
            ]
        if change.type == "rows":
            return self._row_sets(change)
        return self._compare_states(change)

    def read_snapshot(self, table: TableDef, version: int, created_at: datetime) -> list[ChangeSet]:
        """Return all rows of the table, as inserts of `version`."""
        self._check_kept(version)
        whole = RowChange(version=version, created_at=created_at, transaction_id=None, type="append")
        return self._plan_sets(whole, "insert", table, self._list_files(table.segments))

    def _check_kept(self, version: int) -> None:
        if self._start is None:
            self._start = self._starts().get(self._table_id, 0)
        if version < self._start:
            raise files_expired(self._table_id, version, self._start)

    def _row_sets(self, change: RowChange) -> list[ChangeSet]:
        if change.changes:
            return self._make_sets(change, None, self._files(change.changes))
        before = self._load_state(change.path_before)
        went: ChangeType = "update_preimage" if change.is_update else "delete"
        removed = {file.path for file in self._files(change.removed)}
        sets = self._plan_sets(
            change, went, before.table, [at for path, at in before.files.items() if path in removed]
        )
        if change.predicates:
            left = [
                at for path, at in before.files.items() if path not in removed and at[1] <= change.hides_up_to
            ]
            sets += self._plan_sets(change, went, before.table, left, _decode_any(change.predicates))
        return sets + self._insert_sets(change, "update_postimage" if change.is_update else "insert")

    def _compare_states(self, change: RowChange) -> list[ChangeSet]:
        before, after = self._load_state(change.path_before), self._load_state(change.path_after)
        went = [at for path, at in before.files.items() if path not in after.files]
        came = [at for path, at in after.files.items() if path not in before.files]
        sets = self._plan_sets(change, "delete", before.table, went)
        shown: list[ChangeSet] = []
        if before.table is not None and after.table is not None:
            both: dict[tuple[tuple[Predicate, ...], tuple[Predicate, ...]], list[tuple[FileAt, FileAt]]] = {}
            for path, at in before.files.items():
                if path in after.files:
                    hid, hides = (
                        predicates_at(before.table, at[1]),
                        predicates_at(after.table, after.files[path][1]),
                    )
                    key = (_without(hides, hid), _without(hid, hides))
                    both.setdefault(key, []).append((at, after.files[path]))
            for (new, old), pairs in both.items():
                if new:
                    sets += self._plan_sets(change, "delete", before.table, [at for at, _ in pairs], Or(new))
                if old:
                    shown += self._plan_sets(change, "insert", after.table, [at for _, at in pairs], Or(old))
        return sets + shown + self._plan_sets(change, "insert", after.table, came)

    def _insert_sets(self, change: RowChange, change_type: ChangeType) -> list[ChangeSet]:
        return self._make_sets(change, change_type, self._files(change.segments))

    def _plan_sets(
        self,
        change: RowChange,
        change_type: ChangeType,
        table: TableDef | None,
        files: Iterable[FileAt],
        chosen: Predicate | None = None,
    ) -> list[ChangeSet]:
        """Return the rows of `files` that the table shows; with `chosen`, only those for which it is TRUE."""
        if table is None:
            return []
        return [
            found
            for group in plan(table, list(files), chosen).groups
            for found in self._make_sets(
                change,
                change_type,
                [planned.file for planned in group.files],
                group.predicates,
                chosen if group.is_filtered else None,
            )
        ]

    def _files(self, segments: Sequence[Segment]) -> list[DataFile]:
        return self._lists.of(self._table_id, segments)

    def _list_files(self, segments: Sequence[Segment]) -> list[FileAt]:
        files = iter(self._files(segments))
        return [
            (file, segment.sequence if file.sequence is None else file.sequence)
            for segment in segments
            for file in islice(files, segment.file_count)
        ]

    def _load_state(self, pointer: str) -> _State:
        if not pointer:
            return _State(None, {})
        definition = load_definition(self._storage, pointer)
        if definition.id != self._table_id:
            raise InvalidInput(
                f"the table was replaced by one of id {definition.id}; the feed follows id {self._table_id}",
                kind="table_replaced",
                hint="begin the feed at the version that created the present table, or restart the stream with a"
                " new checkpoint",
            )
        return _State(definition, {at[0].path: at for at in self._list_files(definition.segments)})

    @staticmethod
    def _make_sets(
        change: RowChange,
        change_type: ChangeType | None,
        files: Sequence[DataFile],
        hidden: tuple[Predicate, ...] = (),
        chosen: Predicate | None = None,
    ) -> list[ChangeSet]:
        if not files:
            return []
        return [
            ChangeSet(
                change_type=change_type,
                version=change.version,
                created_at=change.created_at,
                transaction_id=change.transaction_id,
                files=tuple(files),
                hidden=hidden,
                chosen=chosen,
            )
        ]


def _decode_any(expressions: Iterable[bytes]) -> Predicate:
    return Or(tuple(decode_predicate(expression) for expression in expressions))


def _without(some: Sequence[Predicate], others: Sequence[Predicate]) -> tuple[Predicate, ...]:
    known = set(others)
    return tuple(predicate for predicate in some if predicate not in known)


def refuse_removals(sets: Sequence[ChangeSet], hint: str) -> None:
    """Raise InvalidInput (`bad_argument`) that names the first version with deleted rows, for readers of inserts."""
    for each in sets:
        if each.change_type != "insert":
            raise InvalidInput(
                f"version {each.version} overwrote the table or removed rows, so some rows that were appended before"
                " it no longer exist",
                version=each.version,
                hint=hint,
            )


def check_column_names(table: TableDef, hint: str) -> None:
    """Raise InvalidInput (`bad_schema`) for a column that has the name of a column of the feed."""
    for column in table.columns:
        if column.name.lower() in CHANGE_COLUMNS:
            raise InvalidInput(
                f"the table has a column {column.name!r}, which is the name of a column of the change feed",
                kind="bad_schema",
                hint=hint,
            )
