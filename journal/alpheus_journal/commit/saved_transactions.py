"""Distributed transactions: stored under their id, and resumed by any process (FORMAT.md, "Distributed transactions").

The file holds the operations, which are executed when the transaction commits. The running root is a copy of the begin
version's tree with those operations applied. It is written for other readers of the format; no process of ours
publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from google.protobuf.message import DecodeError

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities, uuid7_millis
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.execute.execute import check_rules_set, check_transaction
from alpheus_journal.log.times import time_text
from alpheus_journal.model.action_rows import decode_read, is_read, read_message, requested_header, writer_of
from alpheus_journal.model.answers import Outcome, SavedTransaction
from alpheus_journal.model.operation_messages import decode_operation, encode_operation, operations_digest
from alpheus_journal.model.operations import Operation, Transaction
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head
from alpheus_journal.storage import Storage
from alpheus_journal.tree.node import decode_node
from alpheus_pb.v1 import actions_pb2 as pb
from alpheus_pb.v1 import objects_pb2

SAVED_SIZE_BYTES_MAX = 4 << 20


def began_at_millis(transaction_id: str) -> int:
    """Return when a transaction of ours began: the time in its id."""
    return uuid7_millis(transaction_id)


def encode_saved(saved: SavedTransaction, beginning_root: str, running_root: str) -> bytes:
    """Encode `def/dtxn/<id>.binpb`. Raises InvalidInput (`too_large`) above SAVED_SIZE_BYTES_MAX."""
    transaction = saved.transaction
    isolation = objects_pb2.SERIALIZABLE if transaction.serializable else objects_pb2.SNAPSHOT
    content = pb.SavedTransaction(
        header=requested_header(
            transaction, operations_digest(transaction.operations), len(transaction.operations)
        ),
        operations=[encode_operation(operation) for operation in transaction.operations],
        reads=[read_message(read) for read in transaction.reads],
        lease_path=transaction.lease_path,
    )
    data = objects_pb2.DistributedTransactionDef(
        id=transaction.id,
        isolation_level=isolation,
        beginning_root_node_file_path=beginning_root,
        running_root_node_file_path=running_root,
        began_at_millis=saved.began_at_millis,
        expire_at_millis=saved.expire_at_millis,
        transaction=content.SerializeToString(deterministic=True),
    ).SerializeToString(deterministic=True)
    if len(data) > SAVED_SIZE_BYTES_MAX:
        raise InvalidInput(
            f"transaction {transaction.id} would take {len(data)} bytes, at most {SAVED_SIZE_BYTES_MAX} are allowed",
            kind="too_large",
            hint="split the transaction into several ones",
        )
    return data


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file under `def/dtxn/`, by any writer of the format.

    `transaction` is None for another writer's file, which records no operations.
    """

    id: str
    serializable: bool
    beginning_root: str
    running_root: str
    began_at_millis: int
    expire_at_millis: int
    transaction: Transaction | None

    def to_listing(self) -> SavedTransaction:
        """Return the transaction as a listing shows it: without operations and reads."""
        transaction = self.transaction
        count = len(transaction.operations) if transaction else 0
        return SavedTransaction(
            transaction=msgspec.structs.replace(transaction, operations=(), reads=())
            if transaction
            else Transaction(id=self.id, begin_version=0, operations=(), serializable=self.serializable),
            began_at_millis=self.began_at_millis,
            expire_at_millis=self.expire_at_millis,
            operation_count=count,
            resumable=transaction is not None,
        )


def damaged_entry(path: str, error: Corrupt) -> SavedTransaction:
    """Return how a listing shows a file that cannot be read. The id is that of the file's name."""
    name = path.removeprefix(fmt.DTXN_FOLDER).removesuffix(".binpb")[:80]
    return SavedTransaction(
        transaction=Transaction(id=name, begin_version=0, operations=()),
        began_at_millis=0,
        expire_at_millis=0,
        operation_count=0,
        resumable=False,
        damage=error.message,
    )


async def list_saved(storage: Storage, *, node_size_max: int) -> AsyncIterator[SavedTransaction]:
    """Yield all saved transactions as a listing shows them. One that cannot be read has its reason in `damage`."""
    async with contextlib.aclosing(storage.list(fmt.DTXN_FOLDER)) as entries:  # type: ignore[type-var]
        paths = [entry.path async for entry in entries]
    for path in sorted(paths):
        try:
            stored = decode_stored(await storage.read(path, size_max=SAVED_SIZE_BYTES_MAX), path)
        except NotFound:
            continue  # discarded meanwhile
        except Corrupt as error:
            yield damaged_entry(path, error)
            continue
        yield (
            stored.to_listing() if stored.transaction else await _list_foreign(stored, storage, node_size_max)
        )


async def _list_foreign(stored: Stored, storage: Storage, node_size_max: int) -> SavedTransaction:
    """Return another writer's transaction, with the version that it began at.

    The Java SDK stores the running root as the beginning root, too. Then the previous root that the running root names
    is the beginning.
    """
    listed, path = stored.to_listing(), stored.beginning_root
    try:
        if path == stored.running_root:
            data = await storage.read(path, size_max=node_size_max)
            path = decode_node(data, path, root=True, size_max=node_size_max).previous_root or ""
        version, _ = fmt.parse_version_file(path)
    except (NotFound, Corrupt) as error:
        return msgspec.structs.replace(listed, damage=f"its begin version is not known: {error.message}")
    transaction = msgspec.structs.replace(listed.transaction, begin_version=version)
    return msgspec.structs.replace(listed, transaction=transaction)


def decode_stored(data: bytes, path: str) -> Stored:
    """Decode a file under `def/dtxn/`. Raises Corrupt (`corrupt_definition`) with `path`."""

    def corrupt(reason: str) -> Corrupt:
        return Corrupt(f"distributed transaction {path}: {reason}", kind="corrupt_definition", path=path)

    try:
        message = objects_pb2.DistributedTransactionDef.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"it is not a DistributedTransactionDef message ({error})") from None
    if path != fmt.dtxn_path(message.id):
        raise corrupt(f"it holds the transaction id {message.id[:80]!r}")
    for pointer in (message.beginning_root_node_file_path, message.running_root_node_file_path):
        try:
            fmt.check_root_pointer(pointer)
        except Corrupt as error:
            raise corrupt(error.message) from None
    try:
        transaction = _decode_content(message.transaction, path) if message.transaction else None
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise corrupt(str(error)) from None
    if max(message.began_at_millis, message.expire_at_millis) > fmt.TIME_MILLIS_MAX:
        raise corrupt("its times are out of range")
    if transaction is not None and transaction.id != message.id:
        raise corrupt(f"its content belongs to transaction {transaction.id[:80]!r}")
    return Stored(
        id=message.id,
        serializable=message.isolation_level == objects_pb2.SERIALIZABLE,
        beginning_root=message.beginning_root_node_file_path,
        running_root=message.running_root_node_file_path,
        began_at_millis=message.began_at_millis,
        expire_at_millis=message.expire_at_millis,
        transaction=transaction,
    )


def _decode_content(data: bytes, path: str) -> Transaction:
    """Decode the recorded transaction. Raises ValueError for one that this revision does not know, and Corrupt for a
    read that cannot be decoded."""
    content = pb.SavedTransaction.FromString(data)
    header = content.header
    if not fmt.is_uuid(header.id) or header.id[14] != "7":
        raise ValueError(f"transaction id {header.id[:80]!r} is not a version 7 uuid")
    operations: list[Operation] = []
    for item in content.operations:
        operation = decode_operation(item)
        if operation is None:
            raise ValueError("this release does not know the kind of an operation")
        operations.append(operation)
    if operations_digest(operations) != header.operations_digest:
        raise ValueError("its operations do not match their digest")
    if not all(is_read(read) for read in content.reads):
        raise ValueError("this release does not know the type of a read")
    return Transaction(
        id=header.id,
        begin_version=header.begin_version,
        operations=tuple(operations),
        principal=header.principal,  # only a claim: every writer of files could have written this one
        message=header.message,
        properties=dict(header.properties),
        serializable=header.isolation == objects_pb2.SERIALIZABLE,
        reads=tuple(decode_read(read, path) for read in content.reads),
        key=header.key,
        writer=writer_of(header.writer_name, header.writer_sequence),
        lease_path=content.lease_path,
    )


def check_transaction_id(transaction_id: str) -> None:
    if not fmt.is_uuid(transaction_id):
        raise InvalidInput(
            f"{transaction_id[:80]!r} is not a transaction id", hint="give a uuid in lower case"
        )


class SavedTransactions:
    """The saved transactions of one catalog.

    `head_at` returns the head that a version was. `preview` returns the node files and the root that executing a
    transaction on that head would make.
    """

    def __init__(
        self,
        follower: Follower,
        clock: Clock,
        identities: Identities,
        head_at: Callable[[int], Awaitable[Head]],
        preview: Callable[[Transaction, Head], Awaitable[tuple[Mapping[str, bytes], bytes]]],
    ) -> None:
        self._follower = follower
        self._storage = follower.log.storage
        self._clock = clock
        self._identities = identities
        self._head_at = head_at
        self._preview = preview

    async def save(self, transaction: Transaction) -> SavedTransaction:
        check_transaction(transaction, self._clock.now_millis(), may_be_empty=True)
        check_rules_set(transaction)
        began = began_at_millis(transaction.id)
        saved = SavedTransaction(
            transaction=transaction,
            began_at_millis=began,
            expire_at_millis=began + self._follower.definition.txn_ttl_millis,
            operation_count=len(transaction.operations),
        )
        self._check_unexpired(transaction.id, saved.expire_at_millis)
        head = await self._head_at(transaction.begin_version)
        files, root = await self._preview(transaction, head)
        running = fmt.node_path(self._identities.uuid4())
        data = await asyncio.to_thread(encode_saved, saved, self._follower.log.path(head.version), running)
        await self._storage.put_many({**files, running: root})
        await self._storage.put(fmt.dtxn_path(transaction.id), data)
        return saved

    def _check_unexpired(self, transaction_id: str, expire_at_millis: int) -> None:
        if self._clock.now_millis() >= expire_at_millis:
            raise Expired(
                f"transaction {transaction_id} expired at {time_text(expire_at_millis)}",
                kind="transaction_expired",
                hint="discard it and begin a new one",
            )

    async def load(self, transaction_id: str) -> SavedTransaction:
        stored = await self._read(transaction_id)
        self._check_unexpired(transaction_id, stored.expire_at_millis)
        if stored.transaction is None:
            raise InvalidInput(
                f"transaction {transaction_id} was saved by another writer, which did not record its operations",
                kind="not_supported",
                path=fmt.dtxn_path(transaction_id),
                hint="resume it with that writer, or discard it",
            )
        return SavedTransaction(
            transaction=stored.transaction,
            began_at_millis=stored.began_at_millis,
            expire_at_millis=stored.expire_at_millis,
            operation_count=len(stored.transaction.operations),
        )

    async def _read(self, transaction_id: str) -> Stored:
        check_transaction_id(transaction_id)
        path = fmt.dtxn_path(transaction_id)
        try:
            data = await self._storage.read(path, size_max=SAVED_SIZE_BYTES_MAX)
        except NotFound:
            raise NotFound(
                f"no transaction {transaction_id} is saved",
                kind="no_transaction",
                path=path,
                hint="call outcome(id): the transaction was committed or discarded, or never saved",
            ) from None
        return decode_stored(data, path)

    async def list_all(self) -> AsyncIterator[SavedTransaction]:
        found = list_saved(self._storage, node_size_max=self._follower.log.node_size_max)
        async with contextlib.aclosing(found):  # type: ignore[type-var]
            async for saved in found:
                yield saved

    async def discard(
        self, transaction_id: str, settle: Callable[[int | None], Awaitable[Outcome]]
    ) -> Outcome:
        """Discard a saved transaction; see `Access.discard_transaction`.

        `settle` makes the transaction's outcome final. It receives the begin version, or None where that is unknown.
        """
        begin = None
        is_ours = transaction_id[14:15] == "7"  # every id that commits here is a version 7 uuid
        try:
            stored = await self._read(transaction_id)
        except Corrupt:
            pass  # the file is deleted all the same; the id alone settles the outcome
        else:
            is_ours = stored.transaction is not None
            begin = stored.transaction.begin_version if stored.transaction else None
        outcome = Outcome(state="unknown")
        try:
            if is_ours:
                outcome = await settle(begin)
        except Expired:
            await self._storage.delete(
                fmt.dtxn_path(transaction_id)
            )  # the transaction was cancelled all the same
            raise
        await self._storage.delete(fmt.dtxn_path(transaction_id))
        return outcome
