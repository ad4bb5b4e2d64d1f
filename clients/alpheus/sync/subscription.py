"""Durable subscriptions for synchronous code."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from alpheus.closing import Closing
from alpheus.events.consumer import AsyncSubscription, check_running
from alpheus.events.events import After
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.models import Commit, Event, SubscriptionInfo
from alpheus.session.arguments import Name
from alpheus.sync.portal import run
from alpheus_journal.errors import InvalidInput


class Subscription(Iterator[Event], Closing):
    """A consumer of a durable subscription: an iterator of events, and a context manager.

    The consumer stands by until it is its turn, and leaving the block gives the turn to the next consumer. Events that
    were delivered but not acknowledged are delivered again in the next turn. Iterating and acknowledging raise

    - Conflict (`subscription_claimed`), which names the other consumer, when another consumer took over because this
      one was silent for the lease;
    - NotFound (`no_subscription`) when the subscription was deleted;
    - Expired when events that were not acknowledged have expired.
    """

    def __init__(self, make: Callable[[], AsyncSubscription]) -> None:
        async def create() -> AsyncSubscription:
            return make()

        self._inner = run(create())
        self._fetched: Event | None = None  # an event that may not have reached the caller
        self._pid = os.getpid()

    def _core(self) -> AsyncSubscription:
        if self._pid != os.getpid():
            raise InvalidInput(
                "a consumer cannot be used in a forked process", hint="subscribe again in this process"
            )
        return self._inner

    def __enter__(self) -> Self:
        run(self._core().__aenter__())
        return self

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        self._core()
        event = run(self._fetch())
        self._fetched = None
        return event

    async def _fetch(self) -> Event:
        """Return the next event. An event that an interrupted call (Ctrl-C) was about to return comes again: if it were
        skipped, the next acknowledgement would count it as done."""
        if self._fetched is not None:
            check_running(self._inner)
            return self._fetched
        event = self._fetched = await anext(self._inner)
        return event

    def close(self) -> None:
        """Give up the turn. The next consumer continues immediately, behind the last acknowledged event. Idempotent."""
        if self._pid == os.getpid():
            run(self._inner.close())

    # -- generated from AsyncSubscription by `python -m alpheus.sync`

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def holder(self) -> str:
        """The name that this consumer writes into the entry when it takes its turn."""
        return self._inner.holder

    @property
    def epoch(self) -> int:
        """The epoch of this consumer's turn; 0 while the consumer stands by."""
        return self._inner.epoch

    @property
    def position(self) -> int | None:
        """The version up to which every event was acknowledged, as far as this consumer knows. None means that no event
        was, or that it is not this consumer's turn."""
        return self._inner.position

    def wait_active(self) -> None:
        """Return once it is this consumer's turn."""
        run(self._core().wait_active())

    def acknowledge(self, event: Event) -> None:
        """Store that this event and all before it are done, so that the next consumer does not get them again.

        The acknowledgement is stored when this returns. Raises Conflict (`subscription_claimed`) when it is another
        consumer's turn: nothing was stored, and that consumer gets the event again.
        """
        run(self._core().acknowledge(event))


class Subscriptions:
    """The catalog's durable subscriptions. `catalog.subscribe` consumes one of them."""

    def __init__(self, core: Callable[[], AsyncSubscriptions]) -> None:
        self._core = core

    # -- generated from AsyncSubscriptions by `python -m alpheus.sync`

    def list(self, prefix: str = "") -> builtins.list[SubscriptionInfo]:
        """Return the subscriptions whose name begins with `prefix`, in order of names, all at one version."""
        return run(self._core().list(prefix))

    def load(self, name: str) -> SubscriptionInfo:
        """Return one subscription. Raises NotFound (`no_subscription`)."""
        return run(self._core().load(name))

    def create(
        self,
        name: str,
        namespaces: str | Iterable[str] | None = None,
        names: Name | Iterable[Name] | None = None,
        kinds: str | Iterable[str] | None = None,
        actions: str | Iterable[str] | None = None,
        details: bool | None = None,
        after: After = None,
        lease: float | None = None,
    ) -> Commit:
        """Create a subscription without consuming it; the arguments are those of `catalog.subscribe`.

        Raises AlreadyExists (`subscription_exists`).
        """
        return run(self._core().create(name, namespaces, names, kinds, actions, details, after, lease))

    def delete(self, name: str) -> Commit:
        """Delete a subscription. Its consumers end with NotFound (`no_subscription`)."""
        return run(self._core().delete(name))

    def reset(self, name: str, after: After) -> Commit:
        """Move the subscription to another position, earlier or later.

        This is also how to continue when events between have expired. The present consumer ends, and the next one
        begins at the new position. `after="latest"` means events that are committed from now on.
        """
        return run(self._core().reset(name, after))
