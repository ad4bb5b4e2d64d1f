"""A session: one client's connection to one catalog, with retries and the newest version that the client has seen.

Everything here is asynchronous and rests on an `Access`. `aio` and `transaction` build on the session, and `catalog`
wraps `aio` for synchronous use.
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
    Exhausted,
    Expired,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.log.copies import Copy
from alpheus_journal.model import answers
from alpheus_journal.model.answers import At, Committed, Latest, Loaded, Page
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, TableDef
from alpheus_journal.model.operations import Operation, Transaction
from alpheus_journal.rooted_storage import DataRoots
from alpheus_journal.storage import Storage

T = TypeVar("T")

NAMES_AT_ONCE = 1000
HEAD_KNOWN_SECONDS = 2.0
"""A head that was seen within this time is new enough as the begin of a single verb. A daemon holds the commits of this
time in memory (10,000 versions), so that an older begin costs the daemon only a lookup."""


class Session:
    """An `Access` with retries: every call that raises `Unavailable` is retried within the timeout.

    The session remembers the newest version that it has seen, in answers and by its own commits, and accepts no older
    head from any daemon. It also remembers when it last learned the head (`known_head`).

    - `staleness`: the number of seconds by which the head that `recent` asks for may lag behind.
    - `outage`: the error kind of a call that got no answer in time.
    - `open_storage`: opens the store where this client writes data files.
    - `ready`: is awaited before a commit is sent. When it raises, the commit was not sent.
    - `is_connected`: says whether `ready` would return without a wait.
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
        self._head_asked = -math.inf  # when the last call began whose answer was the head
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
        self._data_roots: DataRoots | None = None
        self._definition: CatalogDef | None = None  # of some version; known after the first question
        self.catalog_id = ""  # known after the first answer of `info`
        self.recall_copy: Callable[[int], Copy | None] = lambda version: None
        """Returns a copy of a version's root from memory, or None where this process does not hold the root."""

    @property
    def keys(self) -> fmt.Keys:
        return self.access.keys

    async def storage(self) -> Storage:
        self.check_open()
        return await self._open_storage()

    async def try_data_root(self, url: str) -> None:
        """Look whether a place may become a data root: write a small file below it and remove it. Then claim the place
        for the catalog. Raises what the store raises, and InvalidInput (`bad_data_root`), for a place of another
        catalog, too. A client that cannot reach the catalog's storage either tries nothing."""
        try:
            roots = DataRoots(await self.storage())
        except InvalidInput as error:
            if error.kind != "storage_unreachable":
                raise
            return
        try:
            await roots.check_apart(url)
            store, path = roots.of(url), f"data/selftest/{self.identities.uuid4()}/root"
            await store.put(path, b"")
            await store.delete(path)
            await roots.claim(url, self.catalog_id or (await self.info()).catalog_id)
        finally:
            await roots.close()

    async def data_storage(self, table: TableDef) -> Storage:
        """Return the store of a table's data files: the catalog's, with the files below `data/` at the table's data
        root."""
        if not table.data_root:
            return await self.storage()
        storage = await self.storage()
        if self._data_roots is None:
            roots = self._data_roots = DataRoots(storage)
            self.join(roots.close)
        return self._data_roots.of(table.data_root)

    def check_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the catalog {self.url} was closed", hint="connect again")

    async def close(self) -> None:
        """End everything that rests on the session, then close the connection. Idempotent."""
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
        """Register a dependent object: `close` awaits `end`, unless the object has left before."""
        self._guests.append(end)

    def leave(self, end: Callable[[], Awaitable[None]]) -> None:
        if end in self._guests:
            self._guests.remove(end)

    async def call(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated, and retry it while the catalog is unavailable. Raises Unavailable after the
        timeout."""
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
        """A reference to the head, with the staleness that this client accepts."""
        return Latest(self._staleness_millis, self._token)

    @property
    def token(self) -> str:
        """The token of the newest version that was seen. Empty when none was seen."""
        return self._token

    @property
    def seen_version(self) -> int:
        """The newest version that was seen, or -1 when none was seen."""
        return self._seen_version

    @property
    def is_closed(self) -> bool:
        return self._closed

    def note(self, token: str) -> None:
        """Record that a version was seen. From now on the session accepts no older head."""
        if token and token != self._token:
            version = answers.parse_token(token)[1]
            if version > self._seen_version:
                self._seen_version, self._token = version, token

    @property
    def known_head(self) -> int | None:
        """The newest version that this client has seen, if it was the head at some moment within the last
        `HEAD_KNOWN_SECONDS`; else None.

        The version is good as the begin of a transaction only, because the head may have moved on. The result is None,
        too, after a call that got no answer, and while there is no connection: the storage may have been put back to an
        older state meanwhile, which only the token in a request for the head detects.
        """
        if self.retry_policy.now() - self._head_asked < HEAD_KNOWN_SECONDS and self._is_connected():
            return self._seen_version
        return None

    def _note_head(self, token: str, asked: float) -> None:
        """Record a version that was the head at some moment after `asked`; see `note`."""
        self.note(token)
        if token and token == self._token:  # otherwise a newer version was seen meanwhile, or another history
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
        self._definition = info.definition
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

    async def is_serializable_by_default(self, at: int) -> bool:
        """Return the catalog's default isolation, which never changes. `at` is a version that is at hand."""
        definition = self._definition or await self._load_definition(at)
        return definition.serializable_default

    async def lists_checksums(self, at: int) -> bool:
        """Return whether manifest entries for a version above `at` may have checksums, which came with revision 2 of
        the format. `at` is a version that is at hand, or has expired."""
        definition = self._definition
        if definition is None or definition.format_revision < 2:
            try:
                definition = await self._load_definition(at)
            except Expired:
                definition = await self._load_definition(None)  # a revision never goes down
        return definition.format_revision >= 2

    async def _load_definition(self, at: int | None) -> CatalogDef:
        (stored,) = (await self.load(at, [fmt.CATALOG])).objects
        assert stored is not None
        definition = decode_definition(Kind.CATALOG, stored.definition, stored.path)
        assert isinstance(definition, CatalogDef)
        self._definition = definition
        return definition

    def check_page(self, kind: Kind, namespace: str, prefix: str, after: str) -> None:
        """Check the arguments of a listing. Raises InvalidInput (`bad_name`) for values that cannot be sent to a
        daemon."""
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
        """Iterate over the names of a kind, in order, page by page. `at` must be a version, so that all pages belong to
        the same version."""
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
        """Find how an object that does not exist at a version was dropped. `version` None means the head. Return None
        when no kept version records the drop."""

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
                # An earlier attempt, whose answer was lost, has discarded the transaction.
                return await self.access.outcome(transaction_id)

        return await self.call("discard a saved transaction", attempt)

    async def commit(self, transaction: Transaction) -> Committed:
        """Send a transaction, with the same id each time, until an answer arrives or the timeout ends. Later reads of
        this client see the committed version or newer ones.

        Raises what `Access.commit` raises, and OutcomeUnknown when an attempt may have been applied and no later
        attempt learned its outcome. Any other error means that the transaction was not applied and never will be.
        """
        asked = self.retry_policy.now()
        committed = await self._commit(transaction)
        if committed.duplicate:  # perhaps an old version
            self.note(committed.token)
        else:
            self._note_head(committed.token, asked)
        return committed

    async def commit_operation(self, operation: Operation, begin_version: int) -> Commit:
        """Commit a transaction of one operation that begins at `begin_version`; see `commit`."""
        return await self.commit_operations((operation,), begin_version)

    async def commit_operations(self, operations: tuple[Operation, ...], begin_version: int) -> Commit:
        """Commit a transaction that begins at `begin_version`; see `commit`."""
        transaction = Transaction(
            id=self.identities.uuid7(),
            begin_version=begin_version,
            operations=operations,
            principal=self.principal,
        )
        return commit_of(await self.commit(transaction))

    async def find_commit_of_key(self, key: str) -> Commit | None:
        """Return the commit with an idempotency key, or None; see `Access.find_commit_of_key`. Raises Unavailable."""
        found = await self.call("look for an idempotency key", lambda: self.access.find_commit_of_key(key))
        if found is None:
            return None
        self.note(found.token)  # later reads see this version or newer ones
        return commit_of(found)

    async def _commit(self, transaction: Transaction) -> Committed:
        retry = self.retry_policy.start()
        doubt: OutcomeUnknown | None = None
        while True:
            if self._closed and doubt is not None:
                raise doubt  # an earlier request may have been applied
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
        """Settle the outcome after one request of the transaction was lost and another one was refused. Several daemons
        may share one address, and another daemon may still work on the lost request, so only settling is final."""
        try:
            outcome = await self.outcome(transaction.id, since=transaction.begin_version, settle=True)
        except AlpheusError as error:
            raise self._unknown(transaction, f"it was refused ({refused}), and settling failed") from error
        if outcome.state == "committed" and outcome.commit is not None:
            return outcome.commit
        raise refused

    def _unknown(self, transaction: Transaction, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"transaction {transaction.id}: {reason}",
            transaction_id=transaction.id,
            hint="call outcome(transaction_id, since=begin version, settle=True) to learn its outcome",
        )
