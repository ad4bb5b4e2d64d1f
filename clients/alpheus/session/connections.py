"""Open sessions by URL, with a daemon or with storage itself."""

from __future__ import annotations

import asyncio
import os
import warnings
from functools import partial

from alpheus.session.remote import RemoteAccess
from alpheus.session.retry import RetryPolicy
from alpheus.session.session import Session
from alpheus_journal.clock import RandomIdentities, claimed_principal
from alpheus_journal.errors import AlreadyExists, InvalidInput, NotFound
from alpheus_journal.journal import Journal
from alpheus_journal.log.copies import Copy
from alpheus_journal.storage import Storage, normal_url, open_storage

DAEMON_SCHEMES = ("grpc", "unix")


async def journal_session(
    url: str, retry_policy: RetryPolicy, *, create: bool, staleness: float | None
) -> Session:
    """Open a catalog on storage in this process. With `create`, create the catalog where the storage has none."""
    store = await asyncio.to_thread(open_storage, url, create=create)
    try:
        try:
            journal = await Journal.open(store, past_damage=True)
        except NotFound as missing:
            if not create or missing.kind != "no_catalog":
                raise
            try:
                journal = await Journal.create(store, principal=claimed_principal())
            except AlreadyExists:
                journal = await Journal.open(store)  # another process was first
    except BaseException:
        await store.close()
        raise
    if journal.damage is not None:
        warnings.warn(
            f"{journal.damage.message}. Versions up to {journal.head.version} can be read by their numbers.",
            stacklevel=2,
        )
    if journal.doubt is not None:
        warnings.warn(f"{journal.doubt} Reads continue; nothing can be written.", stacklevel=2)
    return direct_session(journal, url, retry_policy, staleness)


def direct_session(
    journal: Journal, url: str, retry_policy: RetryPolicy, staleness: float | None = None
) -> Session:
    """Make a session with a catalog that this process has opened."""

    async def storage() -> Storage:
        return journal.storage

    session = Session(
        journal,
        url=url,
        principal=claimed_principal(),
        retry_policy=retry_policy,
        identities=RandomIdentities(),
        open_storage=storage,
        outage="storage_unavailable",
        staleness=staleness,
    )
    session.catalog_id = journal.catalog_id
    session.recall_copy = partial(_copy_of_head, journal)
    return session


def _copy_of_head(journal: Journal, version: int) -> Copy | None:
    head = journal.head
    if head.version != version:
        return None
    return Copy(
        version=head.version,
        commit_id=head.commit_id,
        created_at_millis=head.created_at_millis,
        catalog_def=head.catalog_def,
        root=head.root,
    )


async def daemon_session(
    url: str, retry_policy: RetryPolicy, storage: str | Storage | None, staleness: float | None
) -> Session:
    """Connect to a daemon. Raises Unavailable when no daemon answers."""
    remote = RemoteAccess(url, timeout=retry_policy.timeout, storage=storage)
    session = Session(
        remote,
        url=url,
        principal=claimed_principal(),
        retry_policy=retry_policy,
        identities=RandomIdentities(),
        open_storage=remote.open_storage,
        outage="daemon_unavailable",
        ready=remote.ready,
        is_connected=remote.is_connected,
        staleness=staleness,
    )
    try:
        await session.info()  # raises now when no daemon answers
    except BaseException:
        await session.close()
        raise
    return session


def catalog_url(url: str | None) -> str:
    """The given URL, by default `ALPHEUS_CATALOG`. A bare path gets its scheme. Raises InvalidInput when neither is
    given."""
    if url is None:
        url = os.environ.get("ALPHEUS_CATALOG", "")
        if not url:
            raise InvalidInput(
                "no catalog is named",
                kind="bad_url",
                hint="pass a URL, or set ALPHEUS_CATALOG, for example grpc://127.0.0.1:7480",
            )
    return normal_url(url)


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()
