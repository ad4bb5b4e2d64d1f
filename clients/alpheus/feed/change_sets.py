"""Which rows of which files changed: what `RowChange`s of one table did, as files and predicates; nothing is netted.

An append brings in the files of its segments; an overwrite takes out what was visible, and brings in its own. A change
of some rows says what it did in change files; without them, rows of removed files that were visible go, rows that its
predicates hide go, and those of added files come. A compaction does nothing. What puts back an earlier state (restore,
undrop), and a version that does not say what it did, is the difference of two definitions, by file and by predicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from alpheus_journal.predicate import Or, Predicate
from alpheus_journal.storage import Storage
from alpheus_journal.tables.data_file import DataFile

ChangeType = Literal["insert", "delete", "update_preimage", "update_postimage"]


CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_transaction_id")


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that changed in one way: those of some files that none of `hidden` is TRUE of (they were gone before, or are
    not there after) and that `chosen` is (None: all). `change_type` None: the files say it of each row, in the column
    `CHANGE_TYPE`."""

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
    """What a definition of the table shows; None: there was no table."""

    table: TableDef | None
    files: dict[str, FileAt]


class ChangeReader:
    """Says what `RowChange`s of one table did, from its manifests."""

    def __init__(self, storage: Storage, lists: FileLists, table_id: str) -> None:
        self._storage = storage
        self._lists = lists
        self._table_id = table_id

    def read(self, change: RowChange) -> list[ChangeSet]:
        """In the order in which they took effect; empty ones are left out."""
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
        """All rows of the table as inserts of `version`."""
        whole = RowChange(version=version, created_at=created_at, transaction_id=None, type="append")
        return self._plan_sets(whole, "insert", table, self._list_files(table.segments))

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
        """Of files of a definition the rows that it shows; with `chosen` those of them for which it is TRUE."""
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
                f"the table was replaced by one of id {definition.id}; this is {self._table_id}",
                kind="table_replaced",
                hint="a feed follows one table: begin where the one of today was made, or start the stream anew",
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
    """InvalidInput (`bad_argument`) naming the version that took rows out, for those who read what came in."""
    for each in sets:
        if each.change_type != "insert":
            raise InvalidInput(
                f"version {each.version} overwrote the table or removed rows, so what was appended before it is"
                " gone again in part",
                version=each.version,
                hint=hint,
            )


def check_column_names(table: TableDef, hint: str) -> None:
    """InvalidInput (`bad_schema`) for a column that is called as one of the feed's."""
    for column in table.columns:
        if column.name.lower() in CHANGE_COLUMNS:
            raise InvalidInput(
                f"the table has a column {column.name!r}, which is a name of the change feed",
                kind="bad_schema",
                hint=hint,
            )
