"""Could one catalog have given the answers of a history of concurrent calls, if the calls came one after the other?

A history consists of the clients' calls, each with the times of its invocation and its return, by one clock. Two
checks exist:

`check_witness` uses the versions that the answers name. The versions give an order, in which the calls are replayed
on a model. Real time must agree with this order: a call that began after an answer comes after it. Linear, for all
histories.

`check_linearizable` hides the versions and searches for any order (Wing and Gong, with Lowe's memory of states seen:
"Testing for linearizability", 2017). Exponential at worst, for at most 8 clients and 1,000 calls. This check may find
an order even if the versions are wrong, so a history should pass both.

A call without an answer (lost, cancelled, its client dead) returns at infinity: it may have happened at any time after
its invocation, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from alpheus_journal.model.operations import Operation
from alpheus_journal.testing.models.catalog import Model, Past, apply_to_model

_S = TypeVar("_S", bound=Hashable)

LINEARIZABLE_CLIENTS_MAX = 8
LINEARIZABLE_CALLS_MAX = 1_000
STATES_MAX = 2_000_000


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a client, with its result.

    `version` is the version that the answer names: the one that a commit made, or that a read used. `place` orders the
    commits of one version. A refused call changed nothing and is not part of a history. For a call without an answer
    `returned` is infinite, and `version` is its version in the log, or None if the log does not have the call.
    """

    client: str
    is_commit: bool
    argument: Any
    result: Any = None
    invoked: float
    returned: float = math.inf
    version: int | None = None
    place: int = 0

    @property
    def is_known(self) -> bool:
        return self.returned < math.inf


Step = Callable[[_S, Called], _S | None]
"""Returns the state after a call, or None if a catalog in that state does not give this answer."""


class Violation(AssertionError):
    """No order of the calls explains what the clients saw."""


def check_witness(calls: Iterable[Called], step: Step[_S], initial: _S) -> _S:
    """Return the state after all commits. Raises Violation when the versions do not explain the answers.

    Calls without an answer happened if they have a version, and at that version.
    """
    placed = [call for call in calls if call.version is not None]
    placed.sort(key=lambda call: (call.version, not call.is_commit, call.place))
    _check_real_time(placed)
    state = initial
    for call in placed:
        after = step(state, call)
        if after is None:
            raise Violation(f"version {call.version} does not answer so: {_text(call)}")
        state = after
    return state


def _check_real_time(placed: Sequence[Called]) -> None:
    """Check that a call that began after an answer comes after it: a read at its version or above, a commit above."""
    answered = sorted((call for call in placed if call.returned < math.inf), key=lambda call: call.returned)
    newest: Called | None = None
    position = 0
    for call in sorted(placed, key=lambda call: call.invoked):
        while position < len(answered) and answered[position].returned < call.invoked:
            candidate = answered[position]
            if newest is None or candidate.version > newest.version:  # type: ignore[operator]
                newest = candidate
            position += 1
        if newest is None:
            continue
        assert newest.version is not None
        assert call.version is not None
        if call.version < newest.version or (call.is_commit and call.version == newest.version):
            raise Violation(f"{_text(call)} began after the answer to {_text(newest)}")


def check_linearizable(calls: Sequence[Called], step: Step[_S], initial: _S) -> None:
    """Search an order that respects real time and explains the answers. Versions are ignored.

    Raises Violation when there is no order, and ValueError for a history that is too large to be searched, or whose
    search takes too many states.
    """
    clients = {call.client for call in calls}
    if len(clients) > LINEARIZABLE_CLIENTS_MAX or len(calls) > LINEARIZABLE_CALLS_MAX:
        raise ValueError(f"{len(calls)} calls of {len(clients)} clients are too many to search")
    head = _link_by_time(calls)
    seen: set[tuple[int, _S]] = set()
    stack: list[tuple[_Entry, _S]] = []
    state, done, farthest = initial, 0, 0
    missing = sum(call.is_known for call in calls)
    entry = head.next
    while missing:
        assert entry is not None  # a return of a known call remains
        if entry.is_call:
            after = step(state, entry.call)
            if after is not None and (done | entry.bit, after) not in seen:
                seen.add((done | entry.bit, after))
                if len(seen) > STATES_MAX:
                    raise ValueError(f"{len(calls)} calls: more than {STATES_MAX} states")
                stack.append((entry, state))
                state, done = after, done | entry.bit
                missing -= entry.call.is_known
                farthest = max(farthest, len(stack))
                entry.lift()
                entry = head.next
                continue
            entry = entry.next
            if entry is not None:
                continue
        # A call returns here that the order so far does not include: go back.
        if not stack:
            raise Violation(f"no order explains these {len(calls)} calls; {farthest} of them at most")
        entry, state = stack.pop()
        done &= ~entry.bit
        missing += entry.call.is_known
        entry.unlift()
        entry = entry.next


class _Entry:
    """The call or the return of one `Called`, in a list by time."""

    __slots__ = ("bit", "call", "is_call", "match", "next", "previous")

    def __init__(self, call: Called, bit: int, *, is_call: bool) -> None:
        self.call = call
        self.bit = bit
        self.is_call = is_call
        self.match: _Entry | None = None
        self.previous: _Entry | None = None
        self.next: _Entry | None = None

    def _unlink(self) -> None:
        assert self.previous is not None
        self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def _relink(self) -> None:
        assert self.previous is not None
        self.previous.next = self
        if self.next is not None:
            self.next.previous = self

    def lift(self) -> None:
        """Take a call and its return out of the list."""
        self._unlink()
        if self.match is not None:
            self.match._unlink()

    def unlift(self) -> None:
        if self.match is not None:
            self.match._relink()
        self._relink()


def _link_by_time(calls: Sequence[Called]) -> _Entry:
    """Return the head of the list of all calls and returns by time. At equal times calls come first.

    A call without an answer has no return.
    """
    events: list[tuple[float, bool, int, _Entry]] = []
    for number, call in enumerate(calls):
        entry = _Entry(call, 1 << number, is_call=True)
        events.append((call.invoked, False, number, entry))
        if call.is_known:
            entry.match = _Entry(call, 1 << number, is_call=False)
            events.append((call.returned, True, number, entry.match))
    events.sort(key=lambda event: event[:3])
    head = last = _Entry(Called(client="", is_commit=False, argument=None, invoked=0), 0, is_call=True)
    for _, _, _, entry in events:
        last.next, entry.previous = entry, last
        last = entry
    return head


def _text(call: Called) -> str:
    what = "the commit" if call.is_commit else "the read"
    return (
        f"{what} of {call.client} [{call.invoked:g}, {call.returned:g}] at {call.version}: {call.argument!r}"[
            :2000
        ]
    )


# --- the catalog


class CatalogState:
    """An immutable model, comparable and hashable."""

    __slots__ = ("_key", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self._key: str | None = None

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = canonical(self.model)
        return self._key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CatalogState) and self.key == other.key


def canonical(value: object) -> str:
    """Return a text that equal values of plain types share, whatever the order of their dicts."""
    match value:
        case dict():
            return "{" + ",".join(f"{key!r}:{canonical(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "(" + ",".join(canonical(item) for item in value) + ")"
        case set() | frozenset():
            return "{" + ",".join(sorted(canonical(item) for item in value)) + "}"
        case msgspec.Struct():
            return type(value).__name__ + canonical(msgspec.structs.asdict(value))
    return repr(value)


def catalog_step(past: Past) -> Step[CatalogState]:
    """Return the step of a catalog.

    The argument of a commit is (transaction id, operations). The result of a read is the canonical text of the whole
    model, or None if only the version was read. `past` has the models of versions, for operations that name one.
    """

    def step(state: CatalogState, call: Called) -> CatalogState | None:
        if not call.is_commit:
            return state if call.result is None or call.result == state.key else None
        transaction_id, operations = call.argument
        after = apply_operations(state.model, transaction_id, operations, past)
        return None if after is None else CatalogState(after)

    return step


def apply_operations(
    model: Model, transaction_id: str, operations: Sequence[Operation], past: Past
) -> Model | None:
    """Return a copy of the model after the operations, or None if one of the operations is impossible."""
    after = dict(model)
    try:
        for operation in operations:
            apply_to_model(after, operation, transaction_id, past)
    except (AssertionError, KeyError):
        return None
    return after
