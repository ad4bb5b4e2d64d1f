"""Steps of the verbs that change rows: delete, update, merge, and overwrite of some rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from alpheus.rows.arrow.cast import CastError
from alpheus.rows.file_writer import bad_data
from alpheus.rows.scan import Where, predicate_of
from alpheus.transactions.core import TransactionCore
from alpheus.transactions.merge import Matched, Merge, Unmatched, check_choices
from alpheus.transactions.row_changes import Mode, RowChanger, RowVerb
from alpheus.transactions.steps import Step
from alpheus.transactions.update_delete import Delete, Overwrite, Update, check_set, partitions_predicate
from alpheus_journal.clock import Identities
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import TableDef
from alpheus_journal.model.operations import Read
from alpheus_journal.predicate import TRUE, Predicate


class ChangeStep(Step):
    """A verb that changes some rows of a table."""

    def __init__(self, name: ObjectName, mode: Mode | None) -> None:
        if mode is not None and mode not in get_args(Mode):
            raise InvalidInput(
                f"mode={mode!r} does not exist",
                kind="bad_argument",
                hint=f"use one of {', '.join(get_args(Mode))}",
            )
        self._name = name
        self._mode: Mode | None = mode

    def operation(self, identities: Identities) -> None:
        return None

    async def run(self, tx: TransactionCore) -> None:
        table = await tx.table(self._name)
        try:
            change = await self._change(table)
            tx.keep(Read(type="TABLE_SELECT", name=self._name))
            await RowChanger(tx, self._name, table, await tx.session.data_storage(table), change).run(
                self._mode
            )
        except CastError as error:
            raise bad_data(error) from None

    async def _change(self, table: TableDef) -> RowVerb:
        raise NotImplementedError


class DeleteStep(ChangeStep):
    def __init__(self, name: ObjectName, where: Where, mode: Mode) -> None:
        super().__init__(name, mode)
        self._where = where

    async def _change(self, table: TableDef) -> RowVerb:
        return Delete(_require_where(self._where, table, "delete"))


class UpdateStep(ChangeStep):
    def __init__(
        self, name: ObjectName, set: Mapping[str, Any], where: Where | None, mode: Mode | None
    ) -> None:
        super().__init__(name, mode)
        check_set(set)
        self._set = set
        self._where = where

    async def _change(self, table: TableDef) -> RowVerb:
        return Update(_require_where(self._where, table, "update"), self._set, table.columns)


class OverwriteStep(ChangeStep):
    """Replaces some rows. `RowsStep` replaces all rows."""

    def __init__(self, name: ObjectName, data: Any, where: Where | None, partitions: Any) -> None:
        super().__init__(name, "predicate")
        if where is not None and partitions is not None:
            raise InvalidInput(
                "overwrite takes where or partitions, not both",
                kind="bad_argument",
                hint="write the whole condition in where",
            )
        self._data = data
        self._where = where
        self._partitions = partitions

    async def _change(self, table: TableDef) -> RowVerb:
        if self._partitions is not None:
            where: Predicate = partitions_predicate(table, self._partitions)
        else:
            where = _require_where(self._where, table, "overwrite")
        return Overwrite(where, self._data, table)


class MergeStep(ChangeStep):
    def __init__(
        self,
        name: ObjectName,
        data: Any,
        on: Sequence[str],
        matched: Matched,
        unmatched: Unmatched,
        mode: Mode | None,
    ) -> None:
        super().__init__(name, mode)
        check_choices(matched, unmatched)
        self._data = data
        self._on = on
        self._matched = matched
        self._unmatched = unmatched

    async def _change(self, table: TableDef) -> RowVerb:
        return await asyncio.to_thread(
            Merge, table.columns, self._data, self._on, self._matched, self._unmatched
        )


def _require_where(where: Where | None, table: TableDef, verb: str) -> Predicate:
    if where is None:
        raise InvalidInput(
            f"{verb} needs a where", kind="bad_argument", hint='pass where="true" to mean all rows'
        )
    return predicate_of(where, table.columns) or TRUE
