"""What a transaction may newly reference, although unreferenced files are collected.

FORMAT.md, "What a commit may newly reference", has the rules. Nodes, definitions and segments that a commit makes need
no rule: they are uploaded anew for each version that the commit is tried on.
"""

from __future__ import annotations

from alpheus_journal.clock import Identities, uuid7_millis
from alpheus_journal.commit.base import Base
from alpheus_journal.commit.manifest_cache import upload_expired
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.log import leases
from alpheus_journal.log.pins import create_pin, read_pin
from alpheus_journal.log.times import time_text
from alpheus_journal.model.operations import (
    AppendFiles,
    ChangeRows,
    CreateTag,
    Operation,
    OverwriteFiles,
    ReplaceTag,
    RestoreTable,
    Transaction,
    Undrop,
)
from alpheus_journal.replay.follower import ROOTS_READ_AT_ONCE, Follower


class References:
    """Checks transactions for one process and catalog."""

    def __init__(self, follower: Follower, identities: Identities) -> None:
        self._follower = follower
        self._log = follower.log
        self._identities = identities

    async def check(self, transaction: Transaction, base: Base) -> None:
        """Check that no collection up to `base` can delete what the transaction newly references. Pin the versions
        that it restores from.

        Raises Expired (`upload_expired`), InvalidInput (`bad_version`) for a tag whose pin is another version's, and
        Corrupt (`history_replaced`) where another version took the place of one that is restored.
        """
        operations = transaction.operations
        if any(_brings_files(operation) for operation in operations):
            await self._check_id(transaction, base)
        for operation in operations:
            if isinstance(operation, CreateTag | ReplaceTag):
                await self._check_pin(operation, base)
        restored = {
            (o.version, o.target if isinstance(o, RestoreTable) else o.source)
            for o in operations
            if isinstance(o, RestoreTable | Undrop)
        }
        for version, name in sorted(restored):
            if 0 <= version < base.version and base.head.revision >= 2:
                try:
                    await create_pin(self._log, version, new_id=self._identities.uuid4)
                except (Expired, Corrupt) as error:
                    if error.kind == "history_replaced":
                        raise
                    # A tag of the base must name it, even if a member before this one has read the version already.
                    await base.at(version, name)

    async def _check_id(self, transaction: Transaction, base: Base) -> None:
        """Check that the transaction's files are younger than any that a collection deletes, because they were written
        after its id was made; or that a lease keeps them."""
        collected_before = (await base.catalog_definition()).collected_before_millis
        if not leases.is_too_old(transaction.id, collected_before):
            return
        what = (
            f"transaction {transaction.id} began at {time_text(uuid7_millis(transaction.id))}, and brings files of that"
            " time; it has to begin two minutes after the last collected ones"
        )
        if transaction.lease_path:
            flaw = await self._find_flaw_of_lease(transaction, base)
            if not flaw:
                return
            what += f", because its lease keeps its files no more ({flaw})"
        raise upload_expired(what, collected_before)

    async def _find_flaw_of_lease(self, transaction: Transaction, base: Base) -> str:
        """Return why the transaction's lease does not keep its files up to `base`; empty when it does.

        The lease must exist now that `base` is known. No fence after the version of which it is a copy may disregard
        it.
        """
        path = transaction.lease_path
        try:
            lease = await leases.read_lease(self._log.storage, path)
        except NotFound:
            return f"{path} is gone"
        except (Corrupt, InvalidInput) as error:
            return error.message
        if lease.transaction_id != transaction.id:
            return (
                f"{path} is of transaction {lease.transaction_id}"
                if lease.transaction_id
                else f"{path} is a reader's"
            )
        if lease.copy.version > base.version:
            return f"{path} is of version {lease.copy.version}"
        versions = self._follower.find_disregarding(transaction.id, lease.copy.version)
        for start in range(0, len(versions), ROOTS_READ_AT_ONCE):
            for event in await self._follower.recorded_events(versions[start : start + ROOTS_READ_AT_ONCE]):
                if isinstance(event, Expired):
                    return event.message
                if any(transaction.id in recorded.disregards for recorded in event.transactions):
                    return f"it had run out when version {event.version} was made for a collection"
        return ""

    async def _check_pin(self, operation: CreateTag | ReplaceTag, base: Base) -> None:
        """Check that the pin of a tag is there, is the version's, and is too young to be collected."""
        try:
            copy = await read_pin(self._log, operation.pin_path)
        except Corrupt as error:
            raise InvalidInput(f"{operation.target}: {error.message}", kind="bad_version") from None
        found = copy.version, copy.commit_id, copy.created_at_millis
        if found != (operation.version, operation.commit_id, operation.version_created_at_millis):
            raise InvalidInput(
                f"{operation.target}: the pin {operation.pin_path} is of version {copy.version}, made at"
                f" {copy.created_at_millis} as {copy.commit_id}",
                kind="bad_version",
            )
        if copy.is_chosen != bool(operation.chosen or operation.left_out):
            raise InvalidInput(
                f"{operation.target}: the pin {operation.pin_path} is of"
                f" {'chosen' if copy.is_chosen else 'all'} objects, and the tag is not",
                kind="bad_version",
            )
        info = await self._log.storage.stat(operation.pin_path)
        collected_before = (await base.catalog_definition()).collected_before_millis
        if info is None or info.modified_at_millis < collected_before:
            what = f"the pin {operation.pin_path} of {operation.target} is too old"
            raise upload_expired(what, collected_before)


def _brings_files(operation: Operation) -> bool:
    """Return whether an operation names manifest segments that its author stored: of added files, of removed files, or
    of change files. A deletion by predicate and an overwrite without rows bring none."""
    if isinstance(operation, ChangeRows):
        return bool(operation.segments or operation.removed or operation.changes)
    return isinstance(operation, AppendFiles | OverwriteFiles) and bool(operation.segments)
