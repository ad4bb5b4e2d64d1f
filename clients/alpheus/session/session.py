"""One client's way to one catalog: how names and versions are written, how calls are tried again, and the
reading verbs that catalog, snapshot and transaction share.

Everything here is asynchronous and rests on an `Access`; `aio` and `transaction` build on it, `catalog` wraps
the result for synchronous use.
"""

from __future__ import annotations

import abc
import asyncio
import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TypeVar, cast

from alpheus.models import (
    EPOCH,
    Commit,
    Namespace,
    NamespaceName,
    Pipeline,
    PipelineName,
    Table,
    TableName,
    View,
    ViewName,
    commit_of,
    namespace_of,
    pipeline_of,
    table_of,
    view_of,
)
from alpheus_journal import access
from alpheus_journal import format as fmt
from alpheus_journal.access import Access, At, Back, Committed, Latest, Loaded, Page, StoredObject, Timestamp
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
from alpheus_journal.model.definitions import (
    CatalogDef,
    Definition,
    NamespaceDef,
    PipelineDef,
    TableDef,
    ViewDef,
    decode_definition,
)
from alpheus_journal.model.operations import DropSubscription, Operation, Transaction
from alpheus_journal.storage import Storage, each_of
from alpheus_journal.urls import has_scheme, typed

T = TypeVar("T")

Name = str | tuple[str, str] | TableName | ViewName
"""`"namespace.name"` (the last dot splits), `("namespace", "name")`, or what `list_tables` and `list_views` give: by
its name, at whatever version it is looked for."""

NamespaceText = str | NamespaceName
"""A namespace by its name, or as `list_namespaces` gives it."""

PipelineText = str | PipelineName
"""A pipeline by its name, or as `list_pipelines` gives it."""

AnyName = str | tuple[str, ...] | NamespaceName | TableName | ViewName
"""A namespace (text without a dot, or a 1-tuple), or what lives in one; or as the listings give it."""

When = int | datetime | str | None
"""Which version: None (the head), a number, an aware datetime, an RFC 3339 text with a zone, a decimal text,
or "latest". A negative number counts from the head: -1 is the head, -2 the version before it."""


# --- what people write -----------------------------------------------------------------------------


def parse_name(kind: Kind, name: Name) -> ObjectName:
    """The table or view that a user names. InvalidInput (`bad_name`) for text without a dot."""
    if isinstance(name, TableName if kind is Kind.TABLE else ViewName):
        return ObjectName(kind, name.namespace, name.name)
    if isinstance(name, tuple | list) and len(name) == 2 and all(isinstance(part, str) for part in name):
        return ObjectName(kind, name[0], name[1])
    if isinstance(name, str) and not has_scheme(name):
        namespace, dot, last = name.rpartition(".")
        if dot and namespace and last:
            return ObjectName(kind, namespace, last)
    raise InvalidInput(
        f"{typed(name)[:120]!r} names no {kind.label}",
        kind="bad_name",
        hint="write namespace.name, for example sales.orders",
    )


def any_name(name: AnyName) -> ObjectName:
    """A namespace (text without a dot, or a 1-tuple), or what lives in one: "namespace.name", given as a table."""
    if isinstance(name, NamespaceName):
        return fmt.namespace_name(name.name)
    if isinstance(name, ViewName):
        return ObjectName(Kind.TABLE, name.namespace, name.name)
    if isinstance(name, tuple | list) and len(name) == 1 and isinstance(name[0], str):
        return fmt.namespace_name(name[0])
    if isinstance(name, str) and name and "." not in name:
        return fmt.namespace_name(name)
    return parse_name(Kind.TABLE, cast(Name, name))


def namespace_text(name: NamespaceText) -> str:
    """The namespace that a user names. InvalidInput (`bad_name`) for what is no text: a daemon would be told
    bytes as text, and None as an empty one."""
    if isinstance(name, NamespaceName):
        return name.name
    if not isinstance(name, str):
        raise InvalidInput(f"namespace name must be text, not {type(name).__name__}", kind="bad_name")
    return name


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_LIKE_A_TIME = re.compile(r"\d{4}-\d\d(-\d\d.*)?")


def parse_when(when: When) -> At:
    """The version reference that a user gave. InvalidInput (`bad_version`) for what is none."""
    if when is None or when == "latest":
        return None
    if isinstance(when, bool) or not isinstance(when, int | str | datetime):
        raise InvalidInput(f"{typed(when)[:120]} names no version", kind="bad_version", hint=_WHEN_HINT)
    if isinstance(when, str):
        if when.isascii() and when.removeprefix("-").isdecimal():
            when = int(when)
        elif _RFC_3339.fullmatch(when):
            try:
                when = datetime.fromisoformat(when.upper())
            except ValueError as error:
                raise InvalidInput(
                    f"{when!r} is no time: {error}", kind="bad_version", hint=_WHEN_HINT
                ) from None
        elif _LIKE_A_TIME.fullmatch(when):
            raise InvalidInput(
                f"{typed(when)[:80]!r} is no RFC 3339 time with a zone", kind="bad_version", hint=_WHEN_HINT
            )
        else:
            raise InvalidInput(
                f"{typed(when)[:120]!r} is no version; this release has no tags",
                kind="not_supported",
                hint=_WHEN_HINT,
            )
    if isinstance(when, int):
        if not -fmt.VERSION_MAX_EXCLUSIVE <= when < fmt.VERSION_MAX_EXCLUSIVE:
            raise InvalidInput(f"version {when} is outside -2^32 to 2^32 - 1", kind="bad_version")
        return when if when >= 0 else Back(-when)
    if when.utcoffset() is None:
        raise InvalidInput(
            f"{when.isoformat()} has no zone",
            kind="bad_version",
            hint="pass an aware datetime, for example datetime.now(timezone.utc)",
        )
    return Timestamp(max(0, (when - EPOCH) // timedelta(milliseconds=1)))


_WHEN_HINT = "a version number (-1: the newest), or a time with a zone such as 2026-03-01T12:00:00Z"


def texts(what: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """Properties as a plain dict. InvalidInput when a key or value is not text."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what}: a mapping of text to text is needed, not {type(values).__name__}")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"{what}: {key!r} = {value!r} is not text to text")
    return dict(values)


def words(what: str, values: str | Iterable[str] | None) -> tuple[str, ...]:
    """Several texts; one alone counts as one, not as its characters."""
    if values is None:
        return ()
    found = (values,) if isinstance(values, str) else several(what, values)
    for value in found:
        if not isinstance(value, str):
            raise InvalidInput(f"{what}: {value!r} is not text")
    return found


def several(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """What an argument lists. InvalidInput when it is no list."""
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{what}: a list is needed, not {type(values).__name__}")
    return tuple(values)


def check_limit(limit: int | None) -> None:
    """How many of a listing are wanted. Raises InvalidInput."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit={limit!r}: a positive number is needed, or None for all")


STALENESS_SECONDS_MAX = 1_000_000.0
NAMES_AT_ONCE = 1000
NAMESPACES_AT_ONCE = 8
HEAD_KNOWN_SECONDS = 2.0
"""So long a head that was seen is good enough to begin a lone verb at. What a daemon committed in that time it has in
memory (10,000 versions), so an older begin costs it a lookup."""


def staleness_millis(staleness: float | None) -> int | None:
    """The bound that `connect` was given, in milliseconds, rounded down. Raises InvalidInput."""
    if staleness is None:
        return None
    if isinstance(staleness, bool) or not isinstance(staleness, int | float):
        raise InvalidInput(f"staleness={staleness!r}: seconds are needed, or None")
    if not 0 <= staleness <= STALENESS_SECONDS_MAX:
        raise InvalidInput(f"staleness={staleness!r}: 0 to {STALENESS_SECONDS_MAX:,.0f} seconds, or None")
    return int(staleness * 1000)


def refuse_unsupported(**given: object) -> None:
    """InvalidInput naming the first argument that was given although this release cannot do it.

    Empty and None count as not given, and so do `branch="main"` and `isolation="snapshot"`.
    """
    defaults = {"branch": "main", "isolation": "snapshot"}
    for argument, value in given.items():
        if value is None or value is False or value == defaults.get(argument):
            continue
        if isinstance(value, list | tuple | dict | str) and not value:
            continue
        raise InvalidInput(
            f"{argument}={value!r} is not supported by this release",
            kind="not_supported",
            hint=f"leave {argument} out",
        )


# --- trying again ----------------------------------------------------------------------------------


class Patience:
    """How long a call is tried again, and the pauses in between (exponential, with jitter).

    Clock, waiting and randomness are arguments, so that tests decide them.
    """

    def __init__(
        self,
        timeout: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
            raise InvalidInput(f"timeout={timeout!r}: a positive number of seconds is needed")
        self.timeout = float(timeout)
        self._monotonic = monotonic
        self._sleep = sleep
        self._random = jitter or random.Random()

    def now(self) -> float:
        """Seconds by the clock that bounds the calls."""
        return self._monotonic()

    def start(self) -> Attempts:
        return Attempts(self)

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (one and up)."""
        return min(2.0, 0.05 * 2.0 ** min(failures - 1, 10)) * self._random.uniform(0.5, 1.0)


class Attempts:
    """The attempts of one call: how much time is left, and waiting before the next."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._deadline = patience._monotonic() + patience.timeout
        self._failures = 0
        self._fresh = False  # the time begins with the next failure

    @property
    def remaining(self) -> float:
        return max(0.0, self._deadline - self._patience._monotonic())

    def succeeded(self) -> None:
        """There was progress: the time begins anew with the next failure. For streams."""
        self._failures = 0
        self._fresh = True

    async def again(self, error: AlpheusError, *, forever: bool = False) -> bool:
        """Wait and say True, when the same may succeed later and there is time for it."""
        if error.kind in ("storage_read_only", "history_replaced") or not isinstance(
            error, Unavailable | Exhausted | OutcomeUnknown
        ):
            return False
        if self._fresh:
            self._fresh = False
            self._deadline = self._patience._monotonic() + self._patience.timeout
        self._failures += 1
        pause = self._patience.pause(self._failures)
        if isinstance(error, Exhausted):
            if error.retry_after is None and error.kind != "subscriber_too_slow":
                return False
            pause = max(pause, error.retry_after or 0.0)
        if not forever and pause >= self.remaining:
            return False
        await self._patience._sleep(pause)
        return True


# --- the session -----------------------------------------------------------------------------------


class Session:
    """An `Access` with patience: every call is tried again while it is `Unavailable`, within the timeout.

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
        patience: Patience,
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
        self.patience = patience
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
        attempts = self.patience.start()
        while True:
            self.check_open()
            limit = asyncio.timeout(attempts.remaining)
            try:
                async with limit:
                    return await attempt()
            except TimeoutError:
                if not limit.expired():
                    raise
                self._head_asked = -math.inf
                raise Unavailable(
                    f"{what}: no answer from {self.url} within {self.patience.timeout:g} s",
                    kind=self._outage,
                ) from None
            except AlpheusError as error:
                self._doubt_head(error)
                if not await attempts.again(error):
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
            version = access.parse_token(token)[1]
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
        if self.patience.now() - self._head_asked < HEAD_KNOWN_SECONDS and self._is_connected():
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

    async def info(self) -> access.CatalogInfo:
        asked = self.patience.now()
        info = await self.call("info", self.access.info)
        self.catalog_id = info.catalog_id
        self._note_head(info.token, asked)
        return info

    async def resolve(self, at: At) -> access.VersionInfo:
        asked, reference = self.patience.now(), self._reference(at)
        found = await self.call("resolve a version", lambda: self.access.resolve(reference))
        self._note_answer(reference, found.token, asked)
        return found

    async def load(self, at: At, names: list[ObjectName]) -> Loaded:
        asked, keys, reference = self.patience.now(), self.keys, self._reference(at)
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
        asked, reference = self.patience.now(), self._reference(at)
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
    ) -> access.Outcome:
        return await self.call(
            "outcome",
            lambda: self.access.outcome(transaction_id, since=since, settle=settle, certain=certain),
        )

    async def last_drop(self, name: ObjectName, version: int | None = None) -> access.Dropped | None:
        """How an object that is not there at a version (None: the head) went, where a kept version tells it."""

        async def attempt() -> access.Dropped | None:
            found = self.access.dropped(name=name, version=version)
            stream = cast("AsyncGenerator[access.Dropped, None]", found)
            async with aclosing(stream):
                async for dropped in stream:
                    return dropped
            return None

        return await self.call("look for a drop", attempt)

    async def save_transaction(self, transaction: Transaction) -> access.SavedTransaction:
        return await self.call("save a transaction", lambda: self.access.save_transaction(transaction))

    async def load_transaction(self, transaction_id: str) -> access.SavedTransaction:
        return await self.call(
            "load a saved transaction", lambda: self.access.load_transaction(transaction_id)
        )

    async def discard_transaction(self, transaction_id: str) -> access.Outcome:
        is_again = False

        async def attempt() -> access.Outcome:
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
        asked = self.patience.now()
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

    async def committed_under(self, key: str) -> Commit | None:
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
        attempts = self.patience.start()
        doubt: OutcomeUnknown | None = None
        while True:
            self.check_open()
            limit = asyncio.timeout(attempts.remaining)
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
                reason = f"no answer from {self.url} within {self.patience.timeout:g} s"
                error = Unavailable(reason, kind=self._outage)
                if sent:
                    error = doubt = self._unknown(transaction, reason)
            except OutcomeUnknown as unknown:
                error = doubt = unknown
                doubt.transaction_id = doubt.transaction_id or transaction.id
            except AlpheusError as refused:
                error = refused
            self._doubt_head(error)
            if await attempts.again(error):
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


# --- reading ---------------------------------------------------------------------------------------

_ABSENT = {
    Kind.NAMESPACE: "no_namespace",
    Kind.TABLE: "no_table",
    Kind.VIEW: "no_view",
    Kind.PIPELINE: "no_object",
}


_LISTED = {Kind.TABLE: "NAMESPACE_SHOW_TABLES", Kind.VIEW: "NAMESPACE_SHOW_VIEWS"}


class Reads(abc.ABC):
    """The reading verbs. Subclasses say at which version, and with which writes on top."""

    @abc.abstractmethod
    async def _objects(self, names: list[ObjectName]) -> Loaded:
        """Definitions, all at one version."""

    @abc.abstractmethod
    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        """One page of names; `version` is that of the page before it, None for the first."""

    def _note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        """What was read; a serializable transaction keeps it."""
        return

    async def properties(self) -> dict[str, str]:
        """The catalog's own properties."""
        self._note("CATALOG_DESCRIBE", fmt.CATALOG)
        _, definition = await self._definition(fmt.CATALOG)
        return cast(CatalogDef, definition).properties

    async def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Names in key order that begin with `prefix`, after (exclusive) `after`, at most `limit`."""
        self._note("CATALOG_SHOW_NAMESPACES", fmt.CATALOG, prefix)
        version, names = await self._names(Kind.NAMESPACE, "", prefix, limit, after)
        return [NamespaceName(name=name, version=version) for name in names]

    async def load_namespace(self, name: NamespaceText) -> Namespace:
        """NotFound (`no_namespace`) when it is not there."""
        key = fmt.namespace_name(namespace_text(name))
        self._note("NAMESPACE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return namespace_of(key, cast(NamespaceDef, definition), version)

    async def namespace_exists(self, name: NamespaceText) -> bool:
        key = fmt.namespace_name(namespace_text(name))
        self._note("NAMESPACE_EXISTS", key)
        return await self._exists(key)

    async def list_tables(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | TableName | None = None,
    ) -> list[TableName]:
        """The tables of a namespace, or of all namespaces (None): names that begin with `prefix`, in key order, at most
        `limit` in all, after (exclusive) `after`: a name, of all namespaces a full one. NotFound (`no_namespace`) when
        the namespace is not there."""
        version, names = await self._full_names(Kind.TABLE, namespace, prefix, limit, after)
        return [TableName(namespace=space, name=name, version=version) for space, name in names]

    async def load_table(self, name: Name) -> Table:
        """NotFound (`no_table`) when it is not there."""
        key = parse_name(Kind.TABLE, name)
        self._note("TABLE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return table_of(key, cast(TableDef, definition), version)

    async def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Many tables in one round trip, all at one version, in the order of their names. NotFound names
        the first that is not there."""
        if isinstance(names, str):
            names = (names,)
        keys = [parse_name(Kind.TABLE, name) for name in several("names", names)]
        if not keys:
            return []
        for key in keys:
            self._note("TABLE_DESCRIBE", key)
        loaded = await self._objects(keys)
        return [
            table_of(key, cast(TableDef, decoded(key, stored, loaded.version)), loaded.version)
            for key, stored in zip(keys, loaded.objects, strict=True)
        ]

    async def table_exists(self, name: Name) -> bool:
        self._note("TABLE_EXISTS", parse_name(Kind.TABLE, name))
        return await self._exists(parse_name(Kind.TABLE, name))

    async def list_views(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | ViewName | None = None,
    ) -> list[ViewName]:
        """As `list_tables`."""
        version, names = await self._full_names(Kind.VIEW, namespace, prefix, limit, after)
        return [ViewName(namespace=space, name=name, version=version) for space, name in names]

    async def load_view(self, name: Name) -> View:
        """NotFound (`no_view`) when it is not there."""
        key = parse_name(Kind.VIEW, name)
        self._note("VIEW_DESCRIBE", key)
        version, definition = await self._definition(key)
        return view_of(key, cast(ViewDef, definition), version)

    async def view_exists(self, name: Name) -> bool:
        self._note("VIEW_EXISTS", parse_name(Kind.VIEW, name))
        return await self._exists(parse_name(Kind.VIEW, name))

    async def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """As `list_namespaces`."""
        self._note("CATALOG_SHOW_PIPELINES", fmt.CATALOG, prefix)
        version, names = await self._names(Kind.PIPELINE, "", prefix, limit, after)
        return [PipelineName(name=name, version=version) for name in names]

    async def load_pipeline(self, name: PipelineText) -> Pipeline:
        """The positions of a pipeline's jobs. NotFound (`no_object`) when no job of it ever ran."""
        key = fmt.pipeline_name(name.name if isinstance(name, PipelineName) else name)
        self._note("PIPELINE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return pipeline_of(key, cast(PipelineDef, definition), version)

    async def _table(self, name: ObjectName) -> TableDef:
        """The definition of a native table. InvalidInput (`not_native`) of another."""
        return (await self._table_at(name))[1]

    async def _table_at(self, name: ObjectName) -> tuple[int, TableDef]:
        """And the version that it was read at."""
        version, definition = await self._definition(name)
        table = cast(TableDef, definition)
        if not table.native:
            raise InvalidInput(
                f"{name} is an Iceberg table; its rows are read and written through Iceberg",
                kind="not_native",
                hint=f"its metadata: {table.iceberg_metadata_location}",
            )
        return version, table

    async def _exists(self, name: ObjectName) -> bool:
        loaded = await self._objects([name])
        return loaded.objects[0] is not None

    async def _definition(self, name: ObjectName) -> tuple[int, Definition]:
        loaded = await self._objects([name])
        return loaded.version, decoded(name, loaded.objects[0], loaded.version)

    async def _full_names(
        self,
        kind: Kind,
        namespace: NamespaceText | None,
        prefix: str,
        limit: int | None,
        after: str | TableName | ViewName | None,
    ) -> tuple[int, list[tuple[str, str]]]:
        """Tables or views of one namespace or of all, as (namespace, name), all at one version."""
        check_limit(limit)
        if namespace is None:
            begin = None if after is None else parse_name(kind, after)
            return await self._names_everywhere(kind, prefix, limit, begin)
        space = namespace_text(namespace)
        self._note(_LISTED[kind], fmt.namespace_name(space), prefix)
        last = after.name if isinstance(after, TableName | ViewName) else after
        version, names = await self._names(kind, space, prefix, limit, last)
        return version, [(space, name) for name in names]

    async def _names_everywhere(
        self, kind: Kind, prefix: str, limit: int | None, after: ObjectName | None
    ) -> tuple[int, list[tuple[str, str]]]:
        self._note("CATALOG_SHOW_NAMESPACES", fmt.CATALOG)
        first = after.namespace if after is not None else None
        version, spaces = await self._names(Kind.NAMESPACE, "", "", None, first)

        async def names_in(space: str, most: int | None = None) -> list[tuple[str, str]]:
            self._note(_LISTED[kind], fmt.namespace_name(space), prefix)
            last = after.name if after is not None and space == first else None
            try:
                names = (await self._names(kind, space, prefix, most, last, version))[1]
            except NotFound:
                if space != first:
                    raise
                names = []  # `after` is only a place in the order: its namespace need not be there
            return [(space, name) for name in names]

        spaces = spaces if first is None else [first, *spaces]
        if limit is None:
            parts = await each_of(spaces, names_in, NAMESPACES_AT_ONCE)
            return version, [name for part in parts for name in part]
        found: list[tuple[str, str]] = []
        for space in spaces:
            found += await names_in(space, limit - len(found))
            if len(found) >= limit:
                break
        return version, found

    async def _names(
        self,
        kind: Kind,
        namespace: str,
        prefix: str,
        limit: int | None,
        after: str | None,
        version: int | None = None,
    ) -> tuple[int, list[str]]:
        """All names, or `limit` of them, in as many pages as it takes, all at one version: the given one, if any."""
        check_limit(limit)
        names: list[str] = []
        position = "" if after is None else after
        while True:
            page = await self._page(
                version,
                kind,
                namespace=namespace,
                prefix=prefix,
                limit=0 if limit is None else limit - len(names),
                after=position,
            )
            version = page.version
            names.extend(page.names)
            if not page.more or not page.names or (limit is not None and len(names) >= limit):
                return version, names if limit is None else names[:limit]
            position = page.names[-1]


def decoded(name: ObjectName, stored: StoredObject | None, version: int) -> Definition:
    if stored is None:
        raise NotFound(
            f"there is no {name} at version {version}",
            kind=_ABSENT.get(name.kind, "no_object"),
            version=version,
            hint=f"list the {name.kind.label}s to see the names",
        )
    return decode_definition(name.kind, stored.definition, stored.path)
