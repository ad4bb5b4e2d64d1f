"""The scenarios of the protocol model: small sets of actors with a history, and the unsafe changes they must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from protocol_explorer import Exploration, Report
from protocol_model import (
    Collector,
    Pin,
    Pinner,
    Reader,
    Root,
    Rules,
    Storage,
    Store,
    Tombstone,
    Transaction,
    Writer,
    collect,
    expire,
    read,
    restore,
    resume,
    save,
    tag,
    untag,
    write,
    write_again,
)

Actor = tuple[Callable[..., Any], Any]


class Scenario(NamedTuple):
    rules: Rules
    history: tuple[Any, ...]
    """Versions: a set of files (of a root), a root, or None for a tombstone."""
    actors: dict[str, Any]
    """The function of each actor and its arguments behind the rules."""
    file_count: int
    pins: tuple[Any, ...] = ()
    lease_count: int = 0
    unsafe: tuple[str, ...] = ()
    """The unsafe changes that this scenario must catch."""

    def explore(self, states_max: int, unsafe: str = "", *, traced: bool = False) -> Report:
        rules = self.rules._replace(unsafe=unsafe)
        actors = {name: (function, (rules, *given)) for name, (function, *given) in self.actors.items()}
        return Exploration(Storage(rules, self.begin()), actors).explore(states_max, traced=traced)

    def begin(self) -> Store:
        """Files of the history have time 0, and the clock shows the minimum age: all of them are old."""
        slots: list[Any] = []
        files = 0
        for version, given in enumerate(self.history):
            if given is None:
                slots.append(Tombstone(1000 + version, 1000 + version))
                continue
            root = given if isinstance(given, Root) else Root(given, 0, 0, 0, 0)
            slots.append(root._replace(transaction=1000 + version, commit=1000 + version))
            files |= root.tree | root.actions
        for pin in self.pins:
            files |= pin.files if pin else 0
        return Store(
            clock=self.rules.age_min,
            files=files,
            born=(0,) * self.file_count,
            slots=tuple(slots),
            oldest=0,
            pins=self.pins,
            leases=(0,) * self.lease_count,
        )


def fence(name: int) -> Collector:
    return Collector(Transaction(name, name, fence=True))


def _bits(*places: int) -> int:
    return sum(1 << place for place in places)


SCENARIOS = {
    # Three writers, of which two have one id; a put lands late, a reply is lost.
    "commits": Scenario(
        Rules(clock_max=1, age_min=1, nodes=_bits(0, 2, 3, 4, 5)),
        (_bits(0),),
        {
            "writer": (write, Writer(Transaction(1, 1, nodes=(_bits(2), _bits(3)), faults="delayed"))),
            "request": (
                write_again,
                Writer(Transaction(2, 2, add=_bits(1), faults="delayed"), data=_bits(1), begin=0),
                1,
            ),
            "again": (write_again, Writer(Transaction(3, 2, add=_bits(1), faults="lost"), data=_bits(1), begin=0), 1),
            "expirer": (expire,),
            "expirer 2": (expire,),
        },
        6,
        unsafe=("freed_slots",),
    ),
    # Nodes are safe by fences alone, with minimum age 0.
    "fences": Scenario(
        Rules(age_min=0, nodes=_bits(0, 1, 2, 3, 4, 5, 6, 7)),
        (_bits(0), _bits(1)),
        {
            "writer": (write, Writer(Transaction(1, 1, nodes=(_bits(2), _bits(3), _bits(4)), faults="lost"))),
            "writer 2": (write, Writer(Transaction(2, 2, nodes=(_bits(5), _bits(6), _bits(7))))),
            "expirer": (expire,),
            "collector": (collect, fence(8)),
        },
        8,
        unsafe=("no_fence", "fence_before_listing", "reused_uploads", "tombstones_passed", "oldest_trusted"),
    ),
    "revision 1": Scenario(
        Rules(age_min=0, nodes=_bits(0, 1, 2, 3, 4, 5)),
        (_bits(0), _bits(1)),
        {
            "old writer": (write, Writer(Transaction(1, 1, nodes=(_bits(2), _bits(3)), revision=1))),
            "writer": (write, Writer(Transaction(2, 2, nodes=(_bits(4), _bits(5))))),
            "collector": (collect, fence(8)),
        },
        6,
        unsafe=("revision_1_writer",),
    ),
    # A data file is uploaded before its writer looks at the head: the time in the id protects it.
    "age": Scenario(
        Rules(age_min=1, clock_max=3, nodes=_bits(0, 2, 3, 4)),
        (_bits(0),),
        {
            "writer": (
                write,
                Writer(Transaction(1, 1, add=_bits(1), nodes=(_bits(2), _bits(3), _bits(4))), data=_bits(1)),
            ),
            "collector": (collect, fence(8)),
            "collector 2": (collect, fence(9)),
        },
        5,
        unsafe=("id_age_untested", "no_minimum_age"),
    ),
    "same name": Scenario(
        Rules(age_min=1, clock_max=3, nodes=_bits(0)),
        (_bits(0),),
        {
            "request": (write_again, Writer(Transaction(1, 1, add=_bits(1)), data=_bits(1), begin=0), 1),
            "again": (write_again, Writer(Transaction(2, 1, add=_bits(1)), data=_bits(1), begin=0), 1),
            "collector": (collect, fence(8)),
        },
        2,
        unsafe=("age_by_file",),
    ),
    "pins": Scenario(
        Rules(age_min=1, clock_max=1, nodes=_bits(0, 1, 2, 3)),
        (_bits(0), _bits(1)),
        {
            "tagger": (tag, Pinner(Transaction(1, 1, tag=1), pin=0, version=1)),
            "writer": (write, Writer(Transaction(2, 2, nodes=(_bits(2), _bits(3))))),
            "expirer": (expire,),
            "expirer 2": (expire,),
            "collector": (collect, fence(8)),
        },
        4,
        pins=(0,),
        unsafe=("pin_check_by_oldest", "pin_after_check"),
    ),
    "hand-over": Scenario(
        Rules(age_min=1, clock_max=2, nodes=_bits(0, 1)),
        (_bits(0), _bits(1)),
        {
            "restorer": (restore, Pinner(Transaction(1, 1, add=_bits(0)), pin=0, version=0)),
            "expirer": (expire,),
            "collector": (collect, fence(8)),
        },
        2,
        pins=(0,),
        unsafe=("one_round", "unpin_before_commit", "pin_age_untested"),
    ),
    "hand-over twice": Scenario(
        Rules(age_min=1, clock_max=1, nodes=_bits(0, 1, 2, 3)),
        (None, _bits(1)),
        {
            "restorer": (restore, Pinner(Transaction(1, 1, add=_bits(0)), pin=0, born=1)),
            "restorer 2": (restore, Pinner(Transaction(2, 2, add=_bits(0)), pin=1, version=2)),
            "writer": (write, Writer(Transaction(3, 3, nodes=(_bits(2), _bits(3))))),
            "expirer": (expire,),
            "collector": (collect, fence(8)),
        },
        4,
        pins=(Pin(_bits(0), 1), 0),
        unsafe=("two_rounds",),
    ),
    "leases": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=5, nodes=_bits(0, 1)),
        (_bits(0), _bits(1)),
        {
            "reader": (read, Reader(version=0, lease=0, renewals=1)),
            "expirer": (expire,),
            "collector": (collect, fence(8)),
        },
        2,
        lease_count=1,
        unsafe=("leases_unread",),
    ),
    "lease check": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=1, nodes=_bits(0, 1, 2, 3)),
        (_bits(0), _bits(1)),
        {
            "reader": (read, Reader(version=1, lease=0)),
            "writer": (write, Writer(Transaction(2, 2, nodes=(_bits(2), _bits(3))))),
            "expirer": (expire,),
            "expirer 2": (expire,),
            "collector": (collect, fence(8)),
        },
        4,
        lease_count=1,
        unsafe=("lease_check_by_oldest",),
    ),
    "long writers": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=6, nodes=_bits(0)),
        (_bits(0),),
        {
            "writer": (
                write,
                Writer(Transaction(1, 1, add=_bits(1)), data=_bits(1), lease=0, renewals=1),
            ),
            "collector": (collect, fence(8)),
            "collector 2": (collect, fence(9)),
        },
        2,
        lease_count=1,
        unsafe=("leases_unread", "lease_untested", "lease_time_untested", "lease_name_untested"),
    ),
    "saved": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=6, nodes=_bits(0)),
        (_bits(0),),
        {
            "saver": (save, Writer(Transaction(1, 1, add=_bits(1)), data=_bits(1), lease=0, begin=0)),
            "resumer": (resume, Writer(Transaction(2, 1, add=_bits(1)), data=_bits(1), lease=0, begin=0)),
            "collector": (collect, fence(8)),
            "collector 2": (collect, fence(9)),
        },
        2,
        lease_count=1,
        unsafe=("leases_unread", "lease_untested", "lease_time_untested", "lease_name_untested"),
    ),
    "tags": Scenario(
        Rules(age_min=1, clock_max=2, nodes=_bits(0, 1)),
        (None, Root(_bits(1), 0, 1, 0, 0)),
        {
            "untagger": (untag, Pinner(Transaction(1, 1, untag=1), pin=0)),
            "restorer": (restore, Pinner(Transaction(2, 2, add=_bits(0)), pin=1, source=0)),
            "expirer": (expire,),
            "collector": (collect, fence(8)),
        },
        2,
        pins=(Pin(_bits(0), 0), 0),
        unsafe=("tag_not_checked",),
    ),
}
