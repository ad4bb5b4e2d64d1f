"""Publish a staged version: send its root, and settle a root whose reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from alpheus_journal import failpoints
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.contention import Contention
from alpheus_journal.commit.manifest_cache import SegmentReader
from alpheus_journal.commit.staged import Staged
from alpheus_journal.conflicts.facets import Facet
from alpheus_journal.errors import AlpheusError, AlreadyExists, NotFound, OutcomeUnknown
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.replay.follower import Follower

SETTLE_DELAY_MIN_SECONDS = 0.05
SETTLE_DELAY_MAX_SECONDS = 2.0


class PublishOutcome(msgspec.Struct, frozen=True):
    """The outcome of publishing a staged version."""

    is_won: bool = False
    """True when the staged version is a version now. False without an error means that another root has its slot."""
    error: AlpheusError | None = None
    """OutcomeUnknown when the version may or may not exist. Any other error means that the store applied nothing."""


WON = PublishOutcome(is_won=True)
LOST = PublishOutcome()


class InFlight:
    """A version whose root is being sent. The result of `won` says whether it became a version."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged
        self.won: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, is_won: bool) -> None:
        if not self.won.done():
            self.won.set_result(is_won)

    @property
    def is_lost(self) -> bool:
        return self.won.done() and not self.won.result()


class Publisher:
    """Publishes one version at a time for one process and catalog.

    From the moment a root is sent until a sure answer arrives the version is unsettled, even if the call is cancelled.
    Nothing else is sent until `settle` knows who has the slot.
    """

    def __init__(
        self,
        follower: Follower,
        clock: Clock,
        identities: Identities,
        segments: SegmentReader,
        contention: Contention,
    ) -> None:
        self._follower = follower
        self._clock = clock
        self._identities = identities
        self._segments = segments
        self._contention = contention
        self._unsettled: Staged | None = None
        self._doubted: set[str] = set()  # ids of the version that was in flight when the store was restored
        self.in_flight: InFlight | None = None

    @property
    def is_settled(self) -> bool:
        """False while a root of this process may or may not be in its slot."""
        return self._unsettled is None

    @property
    def doubted_ids(self) -> set[str]:
        """The ids of transactions of which it is not known whether they have committed."""
        members = self._unsettled.members if self._unsettled is not None else ()
        return self._doubted | {member.recorded.id for member in members}

    async def publish(
        self, staged: Staged, deadline_millis: int | None, on_publish: Callable[[], None] | None
    ) -> PublishOutcome:
        """Send the root, and settle a lost reply until the deadline. Calls `on_publish` before the first byte."""
        self.in_flight = flight = InFlight(staged)
        if on_publish is not None:
            on_publish()
        outcome = LOST
        try:
            outcome = await self._send(staged, deadline_millis)
        finally:
            self.in_flight = None
            flight.end(outcome.is_won)
        return outcome

    async def _send(self, staged: Staged, deadline_millis: int | None) -> PublishOutcome:
        # Set before the first byte leaves, because a cancelled call leaves an unknown outcome, too.
        self._unsettled = staged
        sent = asyncio.get_running_loop().time()
        with self._follower.publishing(staged.head.version, staged.head.commit_id):
            problem = None
            try:
                problem = await self._put_root(staged)
            except (AlreadyExists, OutcomeUnknown):
                await failpoints.reached("commit.root_unanswered")
            except AlpheusError as error:
                self._unsettled = None
                return PublishOutcome(error=error)
            else:
                await failpoints.reached("commit.root_answered")
                if problem is None:
                    self._accept(staged)
                    took = asyncio.get_running_loop().time() - sent
                    self._contention.record_published(took, self._follower.foreign_count)
                    return WON
        try:
            self._check_replaced(problem)
            if not await self.settle(deadline_millis):
                return LOST
        except OutcomeUnknown as error:
            return PublishOutcome(error=error)
        self._contention.record_published(None, self._follower.foreign_count)
        return WON

    async def settle(self, deadline_millis: int | None) -> bool:
        """Find out who has the slot of the unsettled root. Return True when this process has it.

        Nothing else is written until then. The same bytes go to the same slot again, so a delayed copy of the first
        request can only land as this very commit. Raises OutcomeUnknown at the deadline; the root stays unsettled.
        """
        staged = self._unsettled
        assert staged is not None
        delay = SETTLE_DELAY_MIN_SECONDS
        read_at_once = True
        while True:
            failure: AlpheusError
            try:
                return await self._try_to_settle(staged)
            except AlreadyExists as error:
                # The slot is taken: read at once who has it. If a reader finds it free (a 409 can race), wait first.
                read_at_once = not read_at_once
                if not read_at_once:
                    continue
                failure = error
            except AlpheusError as error:
                self._check_replaced(error)
                failure = error
            if deadline_millis is not None and self._clock.now_millis() >= deadline_millis:
                raise OutcomeUnknown(
                    f"it is not known whether version {staged.head.version} was written: {failure.message}",
                    hint="ask for the outcome of the transaction id, or send the same transaction again",
                    version=staged.head.version,
                )
            # The jitter comes from the only source of randomness, so that a seed replays it.
            jitter = int(self._identities.uuid4()[:8], 16) / 2**32
            await self._clock.sleep(delay * (0.5 + jitter / 2))
            delay = min(delay * 2, SETTLE_DELAY_MAX_SECONDS)

    async def _try_to_settle(self, staged: Staged) -> bool:
        """Return whether this process has the slot. Raises the error that prevents an answer."""
        if self._follower.head.version < staged.head.version:
            await self._follower.refresh()
        holder = await self._find_holder(staged)
        if holder is not None and holder != staged.head.commit_id:
            self._unsettled = None
            await failpoints.reached("commit.slot_lost")
            return False
        if holder is not None:
            problem = await self._follower.witnesses.look(staged.head.version)
        else:
            await failpoints.reached("commit.resend")
            problem = await self._put_root(staged)
        if problem is not None:
            raise problem
        if holder is None:
            self._accept(staged)
        self._unsettled = None
        self._remember(staged)
        return True

    async def _put_root(self, staged: Staged) -> AlpheusError | None:
        """Store the version. Return an error when the store was restored meanwhile; see `Witnesses.publish`."""
        return await self._follower.witnesses.publish(
            staged.files,
            staged.slot,
            staged.root,
            version=staged.head.version,
            commit_id=staged.head.commit_id,
        )

    async def _find_holder(self, staged: Staged) -> str | None:
        """Return the commit id at the staged version's slot, from its root or tombstone; None when the slot is free."""
        version = staged.head.version
        if self._follower.head.version == version:
            return self._follower.head.commit_id
        try:
            return await self._follower.log.commit_id(version)
        except NotFound:
            return None

    def _check_replaced(self, error: AlpheusError | None) -> None:
        """End writing for good when `error` says that the store was restored to an older state.

        Raises OutcomeUnknown for the members of the unsettled version. Its root may be stored above a gap in the
        history, so a person has to decide what becomes of it.
        """
        staged = self._unsettled
        if error is None or error.kind != "history_replaced" or staged is None:
            return
        self._unsettled = None
        self._doubted.update(member.recorded.id for member in staged.members)
        version = staged.head.version if error.version is None else error.version
        self._follower.end_history(error.message, version)
        raise history_replaced_error(error, staged.head.version)

    def _accept(self, staged: Staged) -> None:
        """Make the won version the head of this process."""
        self._unsettled = None
        self._remember(staged)
        definitions = {path: StoredObject(path, data) for path, data in staged.definitions.items()}
        facets = set[Facet]().union(*(member.touches.facets for member in staged.members))
        self._follower.accept(staged.head, staged.record, definitions, facets)

    def _remember(self, staged: Staged) -> None:
        """Put the files that were just written into the caches of their readers."""
        reader = self._follower.reader
        for path, node in staged.nodes.items():
            reader.remember_node(path, node)
        for definition_path, data in staged.definitions.items():
            reader.remember_definition(definition_path, data)
        for member in staged.members:
            for made in member.made:
                self._segments.remember(made.segment, made.content.batch)


def history_replaced_error(error: AlpheusError, version: int | None = None) -> OutcomeUnknown:
    """Return the error for members of `version` when the store was restored to an older state during the commit.

    The version may be stored above a gap in the history. No client may take it for committed, or send it again.
    """
    where = "" if version is None else f", version {version}"
    return OutcomeUnknown(
        f"this commit{where} may be stored, but it was not acknowledged: {error.message}",
        kind="history_replaced",
        hint="do not send it again: stop all writers, find out what was restored, run alpheus check and alpheus repair",
        version=version,
    )
