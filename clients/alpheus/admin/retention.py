"""Expiry of old versions, and collection of files that nothing reaches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar, cast

import msgspec

from alpheus.session.session import Session
from alpheus_journal.errors import AlpheusError, InvalidInput, Unavailable
from alpheus_journal.model.answers import Collection, Expiry, FileTotals
from alpheus_journal.model.expiry_rules import HOUR_MILLIS, ExpiryRules

T = TypeVar("T")


async def expire(session: Session, rules: ExpiryRules, *, dry_run: bool) -> Expiry:
    """Expire old versions, and return the result. When the stream breaks, another expiry finishes the work."""

    def add(gone: Expiry, found: Expiry) -> Expiry:
        expired = gone.expired + found.expired
        return msgspec.structs.replace(found, first=min(gone.first, found.first), expired=expired)

    return await _run_to_end(session, lambda: session.access.expire(rules, dry_run=dry_run), add)


async def collect(session: Session, minimum_age_millis: int, *, dry_run: bool) -> Collection:
    """Delete unreferenced files, and return the result. When the stream breaks, another collection finishes the
    work."""

    def add(gone: Collection, found: Collection) -> Collection:
        deleted = {**gone.deleted}
        for kind, totals in found.deleted.items():
            before = deleted.get(kind, FileTotals())
            deleted[kind] = FileTotals(
                files=before.files + totals.files, size_bytes=before.size_bytes + totals.size_bytes
            )
        fence = gone.fence_version if found.fence_version is None else found.fence_version
        aborted = gone.uploads.aborted + found.uploads.aborted
        abandoned = gone.uploads.aborted + found.uploads.abandoned
        uploads = msgspec.structs.replace(found.uploads, abandoned=abandoned, aborted=aborted)
        earlier = {one.table_id: one for one in (*gone.earlier, *found.earlier)}
        return msgspec.structs.replace(
            found,
            deleted=deleted,
            fence_version=fence,
            uploads=uploads,
            earlier=tuple(sorted(earlier.values(), key=lambda one: one.table)),
        )

    return await _run_to_end(
        session,
        lambda: session.access.collect(minimum_age_millis=minimum_age_millis, dry_run=dry_run),
        add,
    )


def check_short_age(minimum_age_millis: int, *, allow_short: bool) -> None:
    """Refuse a minimum age below an hour unless the caller allows it. Raises InvalidInput (`minimum_age_short`)."""
    if minimum_age_millis < HOUR_MILLIS and not allow_short:
        raise InvalidInput(
            f"a minimum age of {minimum_age_millis / 1000:g} s is short: a write that takes longer loses the files that"
            " it has uploaded and is refused (upload_expired), and for two minutes after the collection new"
            " transactions with new files are refused, too",
            kind="minimum_age_short",
            hint="give an hour or more, or pass allow_short=True when nobody writes",
        )


async def _run_to_end(session: Session, start: Callable[[], AsyncIterator[T]], add: Callable[[T, T], T]) -> T:
    """Read a stream of results whose last item counts. When the stream breaks, start it again; `add` then adds what
    was done before."""
    attempts = session.retry_policy.start()
    gone: T | None = None
    while True:
        session.check_open()
        last: T | None = None
        try:
            async with aclosing(cast(AsyncGenerator[T, None], start())) as found:
                async for step in found:
                    if last is not None:
                        attempts.note_progress()  # the first step is only the plan
                    last = step
            if last is None:
                raise Unavailable("the work ended without a result")
            return last if gone is None else add(gone, last)
        except AlpheusError as error:
            if last is not None:
                gone = last if gone is None else add(gone, last)
            if not await attempts.wait_to_retry(error):
                raise
