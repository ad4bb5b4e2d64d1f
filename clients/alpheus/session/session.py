"""One client's way to one catalog: its calls, tried again, and the newest version that it has seen.

Everything here is asynchronous and rests on an `Access`; `aio` and `transaction` build on it, `catalog` wraps
the result for synchronous use.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from alpheus.model_conversions import commit_of
from alpheus.models import Commit
from alpheus.session.arguments import staleness_millis
from alpheus.session.retry import RetryPolicy
from alpheus_journal import format as fmt
from alpheus_journal.access import Access
from alpheus_journal.clock import Identities
from alpheus_journal.errors import (
    AlpheusError,
    Conflict,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.answers import At, Committed, Latest, Loaded, Page
from alpheus_journal.model.operations import DropSubscription, Operation, Transaction
from alpheus_journal.storage import Storage

T = TypeVar("T")

NAMES_AT_ONCE = 1000
HEAD_KNOWN_SECONDS = 2.0
"""So long a head that was seen is good enough to begin a lone verb at. What a daemon committed in that time it has in
memory (10,000 versions), so an older begin costs it a lookup."""


class Session:
    """An `Access` with retry_policy: every call is tried again while it is `Unavailable`, within the timeout.

    It remembers the newest version that it has seen, in answers and by its own commits, and no head that it is given
    is older, whichever daemon answers. `staleness`: seconds that a head may lag behind where `recent` is asked for.
    It remembers as well when it last asked for the head and was told it (`known_head`).

    `outage` is the error kind for a call that got no answer in time. `open_storage` gives the store where
    this client puts data files; `ready` is awaited before a commit is sent, and what it raises means that
    nothing was; `is_connected` tells whether it would not have to wait.
    """

    def __init__(
        self,
        access: Access,
        *,
        url: str,
        principal: str,
        retry_policy: RetryPolicy,
        identities: Identities,
        open_storage: Callable[[], Awaitable[Storage]],
        outage: str,
        ready: Callable[[], Awaitable[None]] | None = None,
        is_connected: Callable[[], bool] = lambda: True,
        staleness: float | None = None,
    ) -> None:
        self._staleness_millis = staleness_millis(staleness)
        self._token = ""  # of the newest version that this client has seen
        self._seen_version = -1
        self._head_asked = -math.inf  # when the last call began that was told the head
        self._guests: list[Callable[[], Awaitable[None]]] = []
        self.access = access
        self.url = url
        self.principal = principal
        self.retry_policy = retry_policy
        self.identities = identities
        self._open_storage = open_storage
        self._outage = outage
        self._ready = ready
        self._is_connected = is_connected
        self._closed = False
        self.catalog_id = ""  # known once `info` was answered

    @property
    def keys(self) -> fmt.Keys:
        return self.access.keys

    async def storage(self) -> Storage:
        self.check_open()
        return await self._open_storage()

    def check_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the catalog {self.url} was closed", hint="connect again")

    async def close(self) -> None:
        """End what rests on it, then the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                ended = await asyncio.gather(*(end() for end in self._guests), return_exceptions=True)
            finally:
                await self.access.close()
            for error in ended:
                if error is not None:
                    raise error

    def join(self, end: Callable[[], Awaitable[None]]) -> None:
        """Something rests on this session: `end` is awaited when it is closed, unless it has left."""
        self._guests.append(end)

    def leave(self, end: Callable[[], Awaitable[None]]) -> None:
        if end in self._guests:
            self._guests.remove(end)

    async def call(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Something that may be done twice: tried again while the catalog is unavailable. Raises Unavailable
        after the timeout."""
        retry = self.retry_policy.start()
        while True:
            self.check_open()
            limit = asyncio.timeout(retry.remaining)
            try:
                async with limit:
                    return await attempt()
            except TimeoutError:
                if not limit.expired():
                    raise
                self._head_asked = -math.inf
                raise Unavailable(
                    f"{what}: no answer from {self.url} within {self.retry_policy.timeout:g} s",
                    kind=self._outage,
                ) from None
            except AlpheusError as error:
                self._doubt_head(error)
                if not await retry.wait_to_retry(error):
                    raise

    @property
    def recent(self) -> Latest:
        """The head, as far as readers of this client accept one that lags."""
        return Latest(self._staleness_millis, self._token)

    @property
    def token(self) -> str:
        """Of the newest version that was seen; empty: none."""
        return self._token

    @property
    def seen_version(self) -> int:
        """The newest version that was seen; -1: none."""
        return self._seen_version

    @property
    def is_closed(self) -> bool:
        return self._closed

    def note(self, token: str) -> None:
        """A version was seen: no head shall be older from now on."""
        if token and token != self._token:
            version = answers.parse_token(token)[1]
            if version > self._seen_version:
                self._seen_version, self._token = version, token

    @property
    def known_head(self) -> int | None:
        """The newest version that this client has seen, when it is known that it was the head at some moment of the
        last `HEAD_KNOWN_SECONDS`; else None.

        To begin a transaction at, that is all: it may not be the head any more. None also after a call that got no
        answer, and while there is no connection: what answers next may be of a storage that was put back to an older
        state, which only the token of a question for the head finds out.
        """
        if self.retry_policy.now() - self._head_asked < HEAD_KNOWN_SECONDS and self._is_connected():
            return self._seen_version
        return None

    def _note_head(self, token: str, asked: float) -> None:
        """`note` of a version that was the head at some moment after `asked`."""
        self.note(token)
        if token and token == self._token:  # else a newer one was seen meanwhile, or another history
            self._head_asked = max(self._head_asked, asked)

    def _note_answer(self, reference: At, token: str, asked: float) -> None:
        if isinstance(reference, Latest) and reference.staleness_millis is None:
            self._note_head(token, asked)
        else:
            self.note(token)

    def _doubt_head(self, error: AlpheusError) -> None:
        if isinstance(error, Unavailable | OutcomeUnknown):
            self._head_asked = -math.inf

    def _reference(self, at: At) -> At:
        return Latest(None, self._token) if at is None else at

    async def info(self) -> answers.CatalogInfo:
        asked = self.retry_policy.now()
        info = await self.call("info", self.access.info)
        self.catalog_id = info.catalog_id
        self._note_head(info.token, asked)
        return info

    async def resolve(self, at: At) -> answers.VersionInfo:
        asked, reference = self.retry_policy.now(), self._reference(at)
        found = await self.call("resolve a version", lambda: self.access.resolve(reference))
        self._note_answer(reference, found.token, asked)
        return found

    async def load(self, at: At, names: list[ObjectName]) -> Loaded:
        asked, keys, reference = self.retry_policy.now(), self.keys, self._reference(at)
        for name in names:
            fmt.check_object_name(name, keys)
        loaded = await self.call("load", lambda: self.access.load(reference, names))
        self._note_answer(reference, loaded.token, asked)
        return loaded

    def check_page(self, kind: Kind, namespace: str, prefix: str, after: str) -> None:
        """What a listing is asked for. Raises InvalidInput (`bad_name`) for what no daemon can be told."""
        if kind in (Kind.TABLE, Kind.VIEW):
            fmt.check_object_name(fmt.namespace_name(namespace), self.keys)
        for what, text in (("prefix", prefix), ("after", after)):
            if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
                raise InvalidInput(f"{what}={text!r} is not text", kind="bad_name")

    async def page(self, at: At, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str) -> Page:
        self.check_page(kind, namespace, prefix, after)
        asked, reference = self.retry_policy.now(), self._reference(at)
        page = await self.call(
            "list",
            lambda: self.access.list(
                reference, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
            ),
        )
        self._note_answer(reference, page.token, asked)
        return page

    async def all_names(self, at: At, kind: Kind, namespace: str = "") -> AsyncIterator[str]:
        """The names of a kind, in order, page by page: `at` a version, so that all pages are of one."""
        after = ""
        while True:
            page = await self.page(at, kind, namespace=namespace, prefix="", limit=NAMES_AT_ONCE, after=after)
            for name in page.names:
                yield name
            if not page.more or not page.names:
                return
            after = page.names[-1]

    async def outcome(
        self, transaction_id: str, *, since: int | None = None, settle: bool = False, certain: bool = False
    ) -> answers.Outcome:
        return await self.call(
            "outcome",
            lambda: self.access.outcome(transaction_id, since=since, settle=settle, certain=certain),
        )

    async def last_drop(self, name: ObjectName, version: int | None = None) -> answers.Dropped | None:
        """How an object that is not there at a version (None: the head) went, where a kept version tells it."""

        async def attempt() -> answers.Dropped | None:
            found = self.access.dropped(name=name, version=version)
            stream = cast("AsyncGenerator[answers.Dropped, None]", found)
            async with aclosing(stream):
                async for dropped in stream:
                    return dropped
            return None

        return await self.call("look for a drop", attempt)

    async def save_transaction(self, transaction: Transaction) -> answers.SavedTransaction:
        return await self.call("save a transaction", lambda: self.access.save_transaction(transaction))

    async def load_transaction(self, transaction_id: str) -> answers.SavedTransaction:
        return await self.call(
            "load a saved transaction", lambda: self.access.load_transaction(transaction_id)
        )

    async def discard_transaction(self, transaction_id: str) -> answers.Outcome:
        is_again = False

        async def attempt() -> answers.Outcome:
            nonlocal is_again
            was_tried, is_again = is_again, True
            try:
                return await self.access.discard_transaction(transaction_id)
            except NotFound:
                if not was_tried:
                    raise
                return await self.access.outcome(transaction_id)  # the attempt whose answer was lost did it

        return await self.call("discard a saved transaction", attempt)

    async def commit(self, transaction: Transaction) -> Committed:
        """The same transaction, under its one id, until there is an answer or the time is over; what this client reads
        from then on is not older than it.

        Raises what `Access.commit` raises; OutcomeUnknown when any attempt may have been applied and no
        later one could tell. An error other than OutcomeUnknown means: not applied, and never will be.
        """
        asked = self.retry_policy.now()
        committed = await self._commit(transaction)
        if committed.duplicate:  # perhaps of long ago
            self.note(committed.token)
        else:
            self._note_head(committed.token, asked)
        return committed

    async def commit_operation(self, operation: Operation, begin_version: int) -> Commit:
        """`commit` of a transaction of one operation that begins at `begin_version`."""
        transaction = Transaction(
            id=self.identities.uuid7(),
            begin_version=begin_version,
            operations=(operation,),
            principal=self.principal,
        )
        return commit_of(await self.commit(transaction))

    async def find_commit_of_key(self, key: str) -> Commit | None:
        """The commit under a retry key, if there is one and its version is kept; none that was acknowledged before the
        call is missed. Nothing is written.

        It is asked for by an operation that can never succeed: of a key that is in the log the answer is its commit,
        and nothing is executed. Raises Unavailable.
        """
        begin = await self.resolve(None)
        probe = Transaction(
            id=self.identities.uuid7(),
            begin_version=begin.version,
            operations=(DropSubscription(name=f"none-{self.identities.uuid4()}"),),
            principal=self.principal,
            key=key,
        )
        try:
            return commit_of(await self.commit(probe))
        except (NotFound, Conflict):
            return None
        except OutcomeUnknown as error:  # of nothing
            raise Unavailable(f"whether key {key!r} has committed is not known: {error.message}") from None

    async def _commit(self, transaction: Transaction) -> Committed:
        retry = self.retry_policy.start()
        doubt: OutcomeUnknown | None = None
        while True:
            self.check_open()
            limit = asyncio.timeout(retry.remaining)
            error: AlpheusError
            sent = False
            try:
                async with limit:
                    if self._ready is not None:
                        await self._ready()
                    sent = True
                    return await self.access.commit(transaction)
            except TimeoutError:
                if not limit.expired():
                    raise
                reason = f"no answer from {self.url} within {self.retry_policy.timeout:g} s"
                error = Unavailable(reason, kind=self._outage)
                if sent:
                    error = doubt = self._unknown(transaction, reason)
            except OutcomeUnknown as unknown:
                error = doubt = unknown
                doubt.transaction_id = doubt.transaction_id or transaction.id
            except AlpheusError as refused:
                error = refused
            self._doubt_head(error)
            if await retry.wait_to_retry(error):
                continue
            if doubt is None:
                raise error
            if error is doubt or isinstance(error, Unavailable | Exhausted):
                raise doubt
            return await self._settle(transaction, error)

    async def _settle(self, transaction: Transaction, refused: AlpheusError) -> Committed:
        """A send of the transaction was lost, and another one was refused. Behind one address there may be
        several daemons, and the lost send may still be under way in another: only settling is final."""
        try:
            outcome = await self.outcome(transaction.id, since=transaction.begin_version, settle=True)
        except AlpheusError as error:
            raise self._unknown(transaction, f"it was refused ({refused}), settling failed") from error
        if outcome.state == "committed" and outcome.commit is not None:
            return outcome.commit
        raise refused

    def _unknown(self, transaction: Transaction, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"transaction {transaction.id}: {reason}",
            transaction_id=transaction.id,
            hint="outcome(transaction_id, since=begin version, settle=True) tells what became of it",
        )
