"""An explorer of small concurrent programs that share one store.

A program is a generator function. Each `yield` gives one request to the store and receives the reply, so a protocol is
written from top to bottom. Between two requests any other program may run, and a program may stop for ever.

The state of a program is the place and the variables of its frames. Equal states of one program are one number, and so
are equal stores; a state of the whole is these numbers in one integer. So the set of visited states is exact, without
digests. The same request in the same store is computed once. Programs that are equal in function and arguments may
change places, so their numbers are sorted.

Rules for programs: they are deterministic, their variables are hashable, and they have no `for` loop around a `yield`
(its position is no variable).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, Protocol

Request = tuple[Any, ...]
Program = Generator[Request, Any, Any]

STORE_BITS = 24
NODE_BITS = 18
STORE_MASK = (1 << STORE_BITS) - 1
DEEP_BATCH = 64
NODE_MASK = (1 << NODE_BITS) - 1


class Violation(Exception):
    """A promise was broken. Its text says which one."""


class World(Protocol):
    """The store: its start, its requests, what happens to it by itself, and what must be true of it."""

    def start(self) -> Hashable: ...

    def apply(self, store: Any, request: Request) -> list[tuple[Any, Any]]:
        """Return each possible store after the request, with the reply."""
        ...

    def drift(self, store: Any) -> list[tuple[str, Any]]:
        """Return what may happen without a request: a name and the store after it."""
        ...

    def check(self, store: Any) -> str:
        """Return the promise that the store breaks, or nothing."""
        ...


class Report(NamedTuple):
    """What an exploration found. `trace` has one line a step and is the shortest to the violation."""

    states: int
    exhausted: bool
    violation: str
    trace: list[str]
    outcomes: dict[str, set[str]]
    stores: list[Any]
    depth: int


class _Machine:
    """All states of one program: what each state asks, and where each reply leads."""

    def __init__(self, begin: Callable[[], Program]) -> None:
        self.begin = begin
        self.numbers: dict[Hashable, int] = {}
        self.requests: list[Request | None] = []
        self.histories: list[tuple[Any, ...]] = []
        self.moves: dict[tuple[int, Any], int] = {}
        self.outcomes: set[str] = set()

    def advance(self, history: tuple[Any, ...]) -> int:
        """Return the number of the state that the program reaches by these replies."""
        program = self.begin()
        request: Request | None
        key: Hashable
        try:
            request = next(program)
            for reply in history:
                request = program.send(reply)
            key = _locate(program)
        except StopIteration as end:
            request, key = None, ("end", end.value)
            self.outcomes.add(end.value)
        number = self.numbers.setdefault(key, len(self.requests))
        assert number <= NODE_MASK
        if number == len(self.requests):
            self.requests.append(request)
            self.histories.append(history)
        elif self.requests[number] != request:
            raise AssertionError(f"two requests of one state: {request}, {self.requests[number]}")
        return number

    def move(self, number: int, reply: Any) -> int:
        """Return where a reply leads from a state."""
        found = self.moves.get((number, reply))
        if found is None:
            found = self.moves[number, reply] = self.advance((*self.histories[number], reply))
        return found


def _locate(program: Program) -> Hashable:
    frames = []
    inner: Any = program
    while inner is not None:
        frames.append((inner.gi_code.co_name, inner.gi_frame.f_lasti, tuple(inner.gi_frame.f_locals.items())))
        inner = inner.gi_yieldfrom
    return tuple(frames)


class Exploration:
    """Breadth-first search over all interleavings of the actors. `actors` maps a name to (function, arguments)."""

    def __init__(
        self, world: World, actors: dict[str, tuple[Callable[..., Program], tuple[Any, ...]]]
    ) -> None:
        self.world = world
        self.names = [*actors]
        machines: dict[Any, _Machine] = {}
        for function, arguments in actors.values():
            if (function, arguments) not in machines:
                machines[function, arguments] = _Machine(partial(function, *arguments))
        self.machines = [machines[program] for program in actors.values()]
        self.stores: list[Any] = []
        self.store_numbers: dict[Any, int] = {}
        self.shifts = [STORE_BITS + NODE_BITS * place for place in range(len(self.machines))]
        # The places of equal machines, neighbours in pairs: sorting by these pairs gives one order for each set.
        self.equal = [
            (left, right)
            for right in range(len(self.machines))
            for left in range(right)
            if self.machines[left] is self.machines[right]
        ]

    def explore(self, states_max: int, *, traced: bool = False, deep: bool = False) -> Report:
        """Visit states until none is new, `states_max` are visited, or a violation is found.

        The search goes breadth first, so a trace is the shortest. With `deep` it continues from the states found
        last, in a random order that is always the same, so it comes to late states of all actors although the bound is
        small. `traced` keeps the predecessor of each state;
        without it a violation has an empty trace.
        """
        state = self._number(self.world.start())
        for machine, shift in zip(self.machines, self.shifts, strict=True):
            state |= machine.advance(()) << shift
        parents = {state: state}
        visited = {state}
        frontier = [state]
        steps: list[dict[int, tuple[int, ...]]] = [{} for _ in self.machines]
        drifts: dict[int, tuple[int, ...]] = {}
        places = [*zip(range(len(self.machines)), self.shifts, steps, strict=True)]
        keyed = NODE_MASK << STORE_BITS
        equal, depth, violation = self.equal, 0, ""
        order = Random(0)
        while frontier and len(visited) < states_max and not violation:
            following = []
            depth += 1
            batch = frontier[-DEEP_BATCH:] if deep else frontier
            for state in batch:
                number = state & STORE_MASK
                try:
                    changes = []
                    for place, shift, known in places:
                        key = (state >> (shift - STORE_BITS)) & keyed | number
                        found = known.get(key)
                        if found is None:
                            found = known[key] = self._step(place, key >> STORE_BITS, number)
                        changes.append(found)
                    drift = drifts.get(number)
                    if drift is None:
                        drift = drifts[number] = self._drift(number)
                    changes.append(drift)
                except Violation as broken:
                    violation = str(broken)
                    break
                for found in changes:
                    for change in found:
                        new = state + change
                        if equal:
                            new = self._sort(new)
                        if new not in visited:
                            visited.add(new)
                            following.append(new)
                            if traced:
                                parents[new] = state
                if len(visited) >= states_max:
                    break
            if deep:
                del frontier[-DEEP_BATCH:]
                order.shuffle(following)
                frontier += following
            else:
                frontier = following
        trace = self._trace(parents, state) if violation and traced else []
        outcomes: dict[str, set[str]] = {}
        for name, machine in zip(self.names, self.machines, strict=True):
            outcomes[name] = machine.outcomes
        exhausted = not violation and not frontier
        return Report(len(visited), exhausted, violation, trace, outcomes, self.stores, depth)

    def _number(self, store: Any) -> int:
        number = self.store_numbers.get(store)
        if number is None:
            if broken := self.world.check(store):
                raise Violation(broken)
            number = self.store_numbers[store] = len(self.stores)
            self.stores.append(store)
            assert number <= STORE_MASK
        return number

    def _step(self, place: int, node: int, number: int) -> tuple[int, ...]:
        """Return what one step of one actor adds to the state, for each outcome."""
        machine, shift = self.machines[place], self.shifts[place]
        request = machine.requests[node]
        if request is None:
            return ()
        changes = []
        for store, reply in self.world.apply(self.stores[number], request):
            moved = machine.move(node, reply)
            changes.append(self._number(store) - number + ((moved - node) << shift))
        return tuple(changes)

    def _drift(self, number: int) -> tuple[int, ...]:
        return tuple(self._number(store) - number for _, store in self.world.drift(self.stores[number]))

    def _sort(self, state: int) -> int:
        for left, right in self.equal:
            first, second = self.shifts[left], self.shifts[right]
            difference = ((state >> first) & NODE_MASK) - ((state >> second) & NODE_MASK)
            if difference > 0:
                state += (difference << second) - (difference << first)
        return state

    def _successors(self, state: int) -> list[tuple[str, int, str]]:
        """Return each next step of a state as text, with the next state, or with the violation."""
        number = state & STORE_MASK
        found = []
        for place, machine in enumerate(self.machines):
            node = (state >> self.shifts[place]) & NODE_MASK
            request = machine.requests[node]
            if request is None:
                continue
            for store, reply in self.world.apply(self.stores[number], request):
                text = f"{self.names[place]}: {_show(request)} -> {_show(reply)}"
                try:
                    moved = machine.move(node, reply)
                    change = self._number(store) - number + ((moved - node) << self.shifts[place])
                    found.append((text, self._sort(state + change), ""))
                except Violation as broken:
                    found.append((text, state, str(broken)))
        for name, store in self.world.drift(self.stores[number]):
            try:
                found.append((name, self._sort(state + self._number(store) - number), ""))
            except Violation as broken:
                found.append((name, state, str(broken)))
        return found

    def _trace(self, parents: dict[int, int], last: int) -> list[str]:
        path = [last]
        while parents[path[-1]] != path[-1]:
            path.append(parents[path[-1]])
        path.reverse()
        lines = []
        for state, following in pairwise(path):
            lines.append(next(text for text, new, _ in self._successors(state) if new == following))
        lines.append(next(f"{text}  ** {broken}" for text, _, broken in self._successors(last) if broken))
        return lines


def _show(value: Any) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return " ".join(_show(item) for item in value) or "()"
    return str(value)
