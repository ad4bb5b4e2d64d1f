"""CommitMany: the commits of one connection in one stream (see `alpheus_daemon.serve`).

Each transaction is queued with the writer as if it had come alone. Answers are sent as they arrive, and all available
answers in one message. The number and size of unanswered transactions are bounded; at a bound the stream is not read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, ParamSpec

import structlog

from alpheus_daemon.serve import request_weights
from alpheus_daemon.serve.calls import Calls
from alpheus_daemon.serve.lanes import run_in_lane
from alpheus_daemon.serve.request_weights import newer_error
from alpheus_daemon.serve.requests import (
    WEIGHED_SIZE_BYTES,
    has_own_unknown,
    newer_field,
    read,
    transaction_of,
)
from alpheus_daemon.serve.writer import Ticket, Writer
from alpheus_daemon.telemetry.logs import logger
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, InvalidInput, OutcomeUnknown
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import Transaction
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

ANSWERS_AT_ONCE_MAX = 1_000
"""The answers in one message: at most some 4 MB, if all are the longest errors."""
DECODED_AT_ONCE_MAX = 64
"""The transactions of a message that are decoded in one turn of the event loop."""
DECODED_AT_ONCE_BYTES = 512 << 10
"""The total weight of these transactions. A transaction that weighs more is decoded in a thread."""
USUAL_BYTE_WEIGHT = 16
"""The usual weight of a byte. A transaction that weighs more by the byte queues for a thread as a larger one."""

_P = ParamSpec("_P")

log = logger()


class _Message:
    """The transactions of one message, from the arrival of the message until all are answered."""

    __slots__ = ("count", "expiry", "size_bytes", "tickets", "weight")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.weight = size_bytes  # until the weight is known
        self.count = 0
        self.tickets: dict[str, Ticket] = {}
        self.expiry: asyncio.TimerHandle | None = None


class _Opened(NamedTuple):
    """A message taken apart. `rest` is the message without its transactions."""

    rest: bytes
    transactions: list[bytes]
    weights: list[int | AlpheusError]
    """The weight of each transaction, or the error that refuses this transaction alone."""
    weight: int
    """The total weight. Once it exceeds the limit of one request, the remaining transactions are not weighed."""


class CommitStream:
    """One stream, from `run` to its end.

    Each message is one of the `calls` until all of its transactions are answered. It counts with its bytes from its
    arrival, and with its weight once that is known. In the log each message is a request of its own, with its number
    appended to `request_id`.

    * `source`: the line of the writer's queue for the transactions.
    * `refused`: receives the error and the id of each refused transaction.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        source: str,
        count_max: int,
        bytes_max: int,
        calls: Calls,
        refused: Callable[[AlpheusError, str], None],
        request_id: str = "",
    ) -> None:
        self._writer = writer
        self._source = source
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._calls = calls
        self._refused = refused
        self._request_id = request_id
        self._numbers = itertools.count(1)
        self._messages: set[_Message] = set()
        self._unanswered_count = 0  # includes answers that are not sent yet
        self._unanswered_bytes = 0
        self._answers: list[pb.CommitAnswer] = []
        self._changed = asyncio.Event()  # for the sender
        self._room = asyncio.Event()  # for the reader

    async def run(
        self,
        read: Callable[[], Awaitable[bytes | None]],
        write: Callable[[bytes], Awaitable[None]],
        ending: asyncio.Event,
    ) -> None:
        """Run until the peer has sent its last message, or until `ending`, and everything is answered.

        A stream that fails or is cancelled withdraws its queued transactions, unless other callers wait for them.
        Sealed transactions continue. Raises the errors of `read` and `write`, and InvalidInput for a malformed
        message.
        """
        failures: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._receive_all(read, failures))
                reading.add_done_callback(lambda _: self._changed.set())
                stopping = tasks.create_task(self._stop_reading(ending, reading))
                while not failures:
                    self._changed.clear()
                    if self._answers:
                        try:
                            await self._send(write)
                        except Exception as error:  # raised as it is, not in an exception group
                            failures.append(error)
                        continue
                    if reading.done() and not self._unanswered_count:
                        break
                    await self._changed.wait()
                reading.cancel()
                stopping.cancel()
        finally:
            for message in list(self._messages):
                while message.tickets:
                    message.tickets.popitem()[1].leave()
                self._forget(message)
        if failures:
            raise failures[0]

    async def _stop_reading(self, ending: asyncio.Event, reading: asyncio.Task[None]) -> None:
        await ending.wait()
        reading.cancel()

    # --- requests

    async def _receive_all(
        self, read: Callable[[], Awaitable[bytes | None]], failures: list[Exception]
    ) -> None:
        try:
            while True:
                while self._unanswered_count >= self._count_max or self._unanswered_bytes >= self._bytes_max:
                    self._room.clear()
                    await self._room.wait()
                # No name here holds the bytes, so that they are freed once they are decoded.
                if not await self._receive(await read()):
                    return
        except Exception as error:
            failures.append(error)

    async def _receive(self, data: bytes | None) -> bool:
        """Take one message. Return False after the last."""
        if data is None:
            return False
        # Callbacks that are created below keep this id for their lines in the log.
        structlog.contextvars.bind_contextvars(request_id=f"{self._request_id}.{next(self._numbers)}")
        message = _Message(len(data))
        self._messages.add(message)
        self._unanswered_bytes += message.size_bytes
        self._calls.begin(message.weight)
        refused = _refusal(self._calls.check, message.weight)
        if refused is not None:
            opened = _open_unweighed(data)
        elif len(data) <= WEIGHED_SIZE_BYTES:
            opened = _open_message(data, self._calls.one_bytes_max)
        else:
            opened = await run_in_lane(len(data), _open_message, data, self._calls.one_bytes_max)
        del data
        if refused is None:
            refused = _refusal(self._calls.grow, message.weight, opened.weight)
            if refused is None:
                message.weight = opened.weight
        await self._take_all(message, opened, refused)
        return True

    async def _take_all(self, message: _Message, opened: _Opened, refused: AlpheusError | None) -> None:
        """Queue all transactions of a message, or refuse all with `refused` without decoding them."""
        request = read(pb.CommitManyRequest, opened.rest)
        unknown = ""
        if refused is None and has_own_unknown(request, len(opened.rest)):
            unknown = newer_field(request)
        for transaction_id in request.withdrawn:
            self._withdraw(transaction_id)
        message.count = len(opened.transactions)
        if not message.count:
            self._forget(message)
            if unknown:
                raise newer_error(unknown)
            return
        self._unanswered_count += message.count
        limit = self._writer.limits.timeout_seconds
        timeout = min(request.timeout_millis / 1000 or limit, limit)
        message.expiry = asyncio.get_running_loop().call_later(timeout, self._expire, message)
        count = decoded = 0
        for number, item in enumerate(opened.transactions):
            weight = refused or opened.weights[number]
            await self._take(message, item, weight, timeout, unknown)
            count, decoded = count + 1, decoded + (weight if isinstance(weight, int) else 0)
            if count == DECODED_AT_ONCE_MAX or decoded > DECODED_AT_ONCE_BYTES:
                count = decoded = 0
                await asyncio.sleep(0)

    async def _take(
        self, message: _Message, data: bytes, weight: int | AlpheusError, timeout_seconds: float, unknown: str
    ) -> None:
        """Queue or refuse one transaction. `unknown` names an unknown field of the message; empty means none."""
        if isinstance(weight, AlpheusError):
            self._answer(message, transaction_id_of(data), weight)
            return
        try:
            if unknown:
                raise newer_error(unknown)
            transaction = await decode_commit(data, weight)
            ticket = self._writer.enqueue(
                transaction, size_bytes=len(data), source=self._source, timeout_seconds=timeout_seconds
            )
        except AlpheusError as error:
            self._answer(message, transaction_id_of(data), error)
            if error.kind == "not_supported":
                await asyncio.sleep(0)  # finding the unknown field may have taken some 10 ms
        else:
            if transaction.id in message.tickets:  # the id came twice in one message; one answer serves both
                ticket.leave()
                self._count_down(message)
                return
            message.tickets[transaction.id] = ticket
            ticket.answer.add_done_callback(partial(self._on_answer, message, transaction.id))

    def _withdraw(self, transaction_id: str) -> None:
        """Withdraw a transaction that the peer waits for no longer. A sealed transaction continues unanswered."""
        for message in list(self._messages):
            ticket = message.tickets.pop(transaction_id, None)
            if ticket is not None:
                ticket.leave()
                self._count_down(message)

    def _expire(self, message: _Message) -> None:
        for ticket in list(message.tickets.values()):
            ticket.expire()

    # --- answers

    def _on_answer(self, message: _Message, transaction_id: str, answer: asyncio.Future[Committed]) -> None:
        ticket = message.tickets.pop(transaction_id, None)
        if ticket is None:
            return  # the transaction was withdrawn, or the stream ended
        ticket.leave()
        error = answer.exception()
        if error is None:
            self._answer(message, transaction_id, answer.result())
        elif isinstance(error, AlpheusError):
            self._answer(message, transaction_id, error)
        else:
            log.error("commit_failed", exc_info=error, transaction_id=transaction_id)
            unknown = OutcomeUnknown(
                f"the daemon failed; the outcome of transaction {transaction_id} is unknown",
                transaction_id=transaction_id,
                hint="send the same transaction again, or ask for its outcome",
            )
            self._answer(message, transaction_id, unknown)

    def _answer(self, message: _Message, transaction_id: str, answer: Committed | AlpheusError) -> None:
        if isinstance(answer, AlpheusError):
            self._refused(answer, transaction_id)
        else:
            log.debug("commit_answered", transaction_id=transaction_id, version=answer.version)
        self._answers.append(wire.encode_commit_answer(transaction_id, answer))
        self._changed.set()
        self._done_with_one(message)

    def _count_down(self, message: _Message) -> None:
        """Count one transaction as done without an answer."""
        self._unanswered_count -= 1
        self._room.set()
        self._changed.set()
        self._done_with_one(message)

    def _done_with_one(self, message: _Message) -> None:
        message.count -= 1
        if not message.count:
            self._forget(message)

    def _forget(self, message: _Message) -> None:
        self._messages.discard(message)
        self._unanswered_bytes -= message.size_bytes
        self._calls.end(message.weight)
        if message.expiry is not None:
            message.expiry.cancel()

    async def _send(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        answers = self._answers[:ANSWERS_AT_ONCE_MAX]
        del self._answers[:ANSWERS_AT_ONCE_MAX]
        await write(pb.CommitManyResponse(answers=answers).SerializeToString())
        self._unanswered_count -= len(answers)
        self._room.set()


def _open_message(data: bytes, weight_max: int) -> _Opened:
    """Take a CommitManyRequest apart and weigh its transactions.

    Raises InvalidInput if the request or one of its transactions is malformed, because no answer could name that
    transaction.
    """
    weight = request_weights.weigh(pb.CommitManyRequest, data, weight_max)
    opened = _open_unweighed(data)
    for item in opened.transactions:
        if weight > weight_max:
            break
        try:
            one = request_weights.weigh(pb.CommitRequest, item, weight_max)
        except AlpheusError as error:
            if error.kind not in ("too_large", "not_supported"):
                raise
            opened.weights.append(error.with_traceback(None))
        else:
            opened.weights.append(one)
            weight += one
    return opened._replace(weight=weight)


def _open_unweighed(data: bytes) -> _Opened:
    rest, found = request_weights.split(pb.CommitManyRequest, data, "transactions")
    return _Opened(rest, found["transactions"], [], 0)


def _refusal(check: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> AlpheusError | None:
    """Return the error that `check` raises, or None. The error answers many transactions, so it drops its frames."""
    try:
        check(*args, **kwargs)
    except AlpheusError as error:
        return error.with_traceback(None)
    return None


def transaction_id_of(data: bytes) -> str:
    """Return the id in a CommitRequest that is refused, whatever else the request holds."""
    return request_weights.text_of(pb.CommitRequest, data, "transaction_id")


async def decode_commit(data: bytes, weight: int) -> Transaction:
    """Decode a CommitRequest; see `transaction_of`. A large one is decoded in a thread, outside the event loop."""
    if weight > DECODED_AT_ONCE_BYTES:
        size = max(len(data), weight // USUAL_BYTE_WEIGHT)
        transaction = await run_in_lane(size, transaction_of, data, in_pieces=True)
    else:
        transaction = transaction_of(data)
    check_transaction_id(transaction.id)
    return transaction


def check_transaction_id(transaction_id: str) -> None:
    """Raise InvalidInput for a text that is not a uuid."""
    if not fmt.is_uuid(transaction_id):
        raise InvalidInput(
            f"transaction id {transaction_id[:80]!r} is not a uuid", hint="use a version 7 UUID in lower case"
        )
