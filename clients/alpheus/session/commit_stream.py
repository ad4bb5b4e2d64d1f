"""Commits of one connection in one stream (`CommitMany`): concurrent commits travel together.

A single commit is sent immediately. Commits that arrive while a message is being sent go into the next message. When a
stream breaks, its commits end as those of broken calls: the outcome of a sent commit is unknown, and an unsent commit
was not applied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from alpheus_journal.clock import retrieve_error
from alpheus_journal.errors import AlpheusError, OutcomeUnknown, Unavailable
from alpheus_journal.model.answers import Committed
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

STREAMED_BYTES_MAX = 256 << 10
"""A larger transaction takes a call of its own: it would delay the others, and a daemon may refuse its size."""
MESSAGE_BYTES_MAX = 1 << 20
MESSAGE_COUNT_MAX = 1_000

NOT_BEGUN = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""A stream that ends with one of these codes before its first answer was never read by the daemon."""


class CommitStream:
    """The stream of one connection. It is opened at the first commit, and again after it broke."""

    def __init__(
        self,
        open_call: Callable[[], Any],
        *,
        timeout_seconds: float,
        failure: Callable[[grpc.aio.AioRpcError, str], AlpheusError],
    ) -> None:
        """`failure` maps a gRPC status to the error of a transaction id that was sent and not answered."""
        self._open_call = open_call
        self._timeout_seconds = timeout_seconds
        self._failure = failure
        self._link: _Link | None = None
        self._is_supported = True

    async def commit(self, request: pb.CommitRequest) -> Committed | None:
        """Commit through the stream; see `Access.commit`. Return None when the request was not sent and needs a call of
        its own."""
        if not self._is_supported or request.ByteSize() > STREAMED_BYTES_MAX:
            return None
        link = self._link
        if link is None or not link.is_open:
            self._link = link = _Link(self._open_call(), self._timeout_seconds, self._failure)
        if request.transaction_id in link.waiting:
            return None
        try:
            return await link.commit(request)
        finally:
            self._is_supported = self._is_supported and link.is_supported

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


class _Link:
    """One gRPC stream, from its first message until it breaks."""

    def __init__(
        self, call: Any, timeout_seconds: float, failure: Callable[[grpc.aio.AioRpcError, str], AlpheusError]
    ) -> None:
        self._call = call
        self._timeout_seconds = timeout_seconds
        self._failure = failure
        self.is_open = True
        self.is_supported = True
        self.waiting: dict[str, asyncio.Future[Committed | None]] = {}
        self._outbox: OrderedDict[str, pb.CommitRequest] = OrderedDict()  # the waiting requests not sent yet
        self._withdrawn: list[str] = []
        self._was_answered = False
        self._more = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._send_all()), asyncio.ensure_future(self._receive_all())]

    async def commit(self, request: pb.CommitRequest) -> Committed | None:
        transaction_id = request.transaction_id
        answer: asyncio.Future[Committed | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(retrieve_error)
        self.waiting[transaction_id] = answer
        self._outbox[transaction_id] = request
        self._more.set()
        limit = asyncio.timeout(self._timeout_seconds)
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise _unknown(transaction_id, f"no answer within {self._timeout_seconds:g} s") from None
        finally:
            is_unanswered = self.waiting.pop(transaction_id, None) is not None
            was_sent = self._outbox.pop(transaction_id, None) is None
            if is_unanswered and was_sent:
                self._withdrawn.append(transaction_id)
                self._more.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_all(self) -> None:
        # The error of a failed write says less than the status, which the receiving task gets.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            while True:
                await self._more.wait()
                self._more.clear()
                while self._outbox or self._withdrawn:
                    await self._call.write(self._next_message())

    def _next_message(self) -> pb.CommitManyRequest:
        # A message stays far below the number that a daemon accepts (`wire.TRANSACTIONS_COUNT_MAX`).
        withdrawn = self._withdrawn[:MESSAGE_COUNT_MAX]
        del self._withdrawn[:MESSAGE_COUNT_MAX]
        message = pb.CommitManyRequest(
            timeout_millis=max(1, int(self._timeout_seconds * 1000)), withdrawn=withdrawn
        )
        size = 0
        while self._outbox and len(message.transactions) < MESSAGE_COUNT_MAX:
            request = next(iter(self._outbox.values()))
            size += request.ByteSize()
            if size > MESSAGE_BYTES_MAX and message.transactions:
                break
            message.transactions.append(request)
            del self._outbox[request.transaction_id]
        return message

    async def _receive_all(self) -> None:
        broken: grpc.aio.AioRpcError | None = None
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._was_answered = True
                for answer in response.answers:
                    self._take(answer)
        except grpc.aio.AioRpcError as error:
            broken = error
        finally:
            self._end(broken)

    def _take(self, message: pb.CommitAnswer) -> None:
        waiting = self.waiting.pop(message.transaction_id, None)
        if waiting is None or waiting.done():
            return
        answer = wire.decode_commit_answer(message)
        if isinstance(answer, AlpheusError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _end(self, broken: grpc.aio.AioRpcError | None) -> None:
        """Answer all waiting commits, with what is known about each."""
        self.is_open = False
        self._tasks[0].cancel()
        was_begun = self._was_answered or broken is None or broken.code() not in NOT_BEGUN
        if not was_begun and broken is not None:
            self.is_supported = broken.code() is not grpc.StatusCode.UNIMPLEMENTED
        while self.waiting:
            transaction_id, waiting = self.waiting.popitem()
            if waiting.done():
                continue
            if not was_begun:
                waiting.set_result(None)
            elif transaction_id in self._outbox:
                waiting.set_exception(
                    Unavailable(
                        f"transaction {transaction_id} was not sent: the connection to the daemon broke",
                        kind="daemon_unavailable",
                    )
                )
            elif broken is not None:
                waiting.set_exception(self._failure(broken, transaction_id))
            else:
                waiting.set_exception(_unknown(transaction_id, "the daemon ended the stream of commits"))
        self._outbox.clear()


def _unknown(transaction_id: str, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"transaction {transaction_id}: {reason}",
        transaction_id=transaction_id,
        hint="call outcome(transaction_id) to learn its outcome",
    )
