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
    restore_tag,
    resume,
    settle,
    tag,
    tag_by_name,
    untag,
    write,
    write_again,
    write_leased,
)

Actor = tuple[Callable[..., Any], Any]


class Scenario(NamedTuple):
    rules: Rules
    history: tuple[Any, ...]
    """Versions: a set of files (of a root), a root, or None for a tombstone."""
    actors: dict[str, Any]
    """The function of each actor and its arguments behind the rules."""
    pins: tuple[Any, ...] = ()
    lease_count: int = 0
    unsafe: tuple[tuple[str, int], ...] = ()
    """The unsafe changes that this scenario must catch, with the length of the shortest trace."""
    harmless: tuple[str, ...] = ()
    """Changes that this scenario shows to be safe."""

    def explore(
        self, states_max: int, unsafe: str = "", *, traced: bool = False, deep: bool = False
    ) -> Report:
        rules = self.rules._replace(unsafe=unsafe, leased=self.lease_count > 0)
        actors = {name: (function, (rules, *given)) for name, (function, *given) in self.actors.items()}
        return Exploration(Storage(rules, self.begin()), actors).explore(states_max, traced=traced, deep=deep)

    def begin(self) -> Store:
        """Files of the history have time 0, and the clock shows a tick more than the minimum age: all are old."""
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
            clock=self.rules.age_min + 1,
            files=files,
            born=(0,) * FILE_COUNT,
            slots=tuple(slots),
            oldest=0,
            pins=self.pins,
            leases=(0,) * self.lease_count,
        )

    def settle(self, store: Store) -> str:
        """Return what two collections leave though nothing reaches it."""
        return settle(self.rules._replace(leased=True), store, (make_collector(50), make_collector(51)))


FILE_COUNT = 10


def make_collector(name: int) -> Collector:
    return Collector(Transaction(name, name, fence=True))


def make_writer(name: int, *uploads: int, **given: Any) -> tuple[Any, Writer]:
    """A writer that uploads a node; a file for each time."""
    return write, Writer(Transaction(name, name, nodes=tuple(1 << place for place in uploads), **given))


F = [1 << place for place in range(FILE_COUNT)]
ADD_1 = Transaction(1, 1, add=F[1])
COLLECTOR = (collect, make_collector(8))
COLLECTOR_2 = (collect, make_collector(9))
EXPIRER = (expire,)

SCENARIOS = {
    # Three writers, two of them with one id; puts land late, a reply is lost.
    "commits": Scenario(
        Rules(age_min=0, nodes=F[0] | F[2] | F[3]),
        (F[0],),
        {
            "writer": make_writer(1, 2, 3, faults="delayed"),
            "request": (write_again, Writer(ADD_1._replace(id=2, faults="delayed"), data=F[1], begin=0), 1),
            "again": (
                write_again,
                Writer(ADD_1._replace(id=2, name=2, faults="lost"), data=F[1], begin=0),
                1,
            ),
            "expirer": EXPIRER,
        },
        unsafe=(
            ("freed_slots", 12),
            ("tombstones_passed", 17),
        ),
    ),
    # Nodes are safe by fences alone, with minimum age 0.
    "fences": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[2] | F[3] | F[4] | F[5] | F[6]),
        (F[0],),
        {
            "writer": make_writer(1, 2, 3, 4, faults="lost"),
            "writer 2": make_writer(2, 5, 6),
            "collector": COLLECTOR,
        },
        unsafe=(
            ("no_fence", 12),
            ("fence_before_listing", 16),
            ("no_second_round", 12),
            ("reused_uploads", 17),
        ),
        harmless=("repeated_rounds", "listing_after_fence"),
    ),
    # A fence may expire before a writer reads it.
    "expired fences": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[2] | F[3]),
        (F[0],),
        {
            "writer": make_writer(1, 2, 3),
            "writer 2": (write, Writer(Transaction(2, 2))),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        unsafe=(
            ("tombstones_passed", 25),
            ("oldest_trusted", 17),
        ),
    ),
    "revision 1": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1] | F[2] | F[3] | F[4] | F[5]),
        (F[0], F[1]),
        {
            "old writer": make_writer(1, 2, 3, revision=1),
            "writer": make_writer(2, 4, 5),
            "collector": COLLECTOR,
        },
        unsafe=(("revision_1_writer", 18),),
    ),
    # A data file is uploaded before its writer looks at the head: the time in the id protects it.
    "age": Scenario(
        Rules(age_min=1, clock_max=4, nodes=F[0] | F[2] | F[3]),
        (F[0],),
        {
            "writer": (write, Writer(ADD_1._replace(nodes=(F[2], F[3])), data=F[1])),
            "writer 2": (write, Writer(Transaction(2, 2))),
            "collector": COLLECTOR,
        },
        unsafe=(
            ("id_untested", 17),
            ("cutoff_of_begin", 20),
            ("cutoff_of_met_fences", 17),
            ("cutoff_included", 16),
            ("no_minimum_age", 15),
        ),
        harmless=("refused_at_cutoff", "zero_minimum_age"),
    ),
    # The second fence may have a lower cutoff than the first. An old pin that no tag names is to be deleted, too.
    "two cutoffs": Scenario(
        Rules(age_min=0, clock_max=3),
        (F[0],),
        {
            "writer": (write, Writer(ADD_1, data=F[1])),
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
        pins=(Pin(0, 0),),
        unsafe=(
            ("cutoff_lowered", 22),
            ("id_untested", 15),
        ),
    ),
    "same name": Scenario(
        Rules(age_min=0, clock_max=2),
        (F[0],),
        {
            "request": (write_again, Writer(ADD_1, data=F[1], begin=0), 1),
            "again": (write_again, Writer(ADD_1._replace(name=2), data=F[1], begin=0), 1),
            "collector": COLLECTOR,
        },
        unsafe=(("age_by_file", 18),),
    ),
    # Each of two collectors deletes what it has listed. Between the two deletions the file is uploaded again.
    "same name, two collectors": Scenario(
        Rules(age_min=0, clock_max=2),
        (F[0],),
        {
            "request": (write_again, Writer(ADD_1, data=F[1], begin=0), 1),
            "again": (write_again, Writer(ADD_1._replace(name=2), data=F[1], begin=0), 1),
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
        unsafe=(("age_by_created_file", 32),),
    ),
    "saved": Scenario(
        Rules(age_min=0, clock_max=2),
        (F[0],),
        {
            "saver": (write_again, Writer(ADD_1, data=F[1], begin=0), 1),
            "resumer": (resume, Writer(ADD_1._replace(name=2), data=F[1], begin=0), 1),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        unsafe=(
            ("id_untested", 17),
            ("cutoff_of_begin", 17),
        ),
    ),
    # The slow expirer chose when version 1 was the head.
    "pins": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1] | F[2]),
        (F[0], F[1], F[2]),
        {
            "tagger": (tag, Pinner(Transaction(1, 1, tag=1), pin=0, version=1)),
            "expirer": EXPIRER,
            "slow expirer": (expire, 1),
            "collector": COLLECTOR,
        },
        pins=(0,),
        unsafe=(
            ("pin_check_by_oldest", 23),
            ("pin_after_check", 21),
            ("young_pins_unread", 21),
            ("expiry_from_oldest", 6),
        ),
    ),
    "old pins": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1]),
        (F[0], F[1]),
        {
            "tagger": (tag, Pinner(Transaction(1, 1, tag=1), pin=0, version=0)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(0,),
        unsafe=(
            ("pin_untested", 18),
            ("cutoff_of_begin", 20),
        ),
    ),
    "restores": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1]),
        (F[0], F[1]),
        {
            "restorer": (restore, Pinner(Transaction(1, 1, add=F[0], faults="delayed"), version=0)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(0, 0),
        unsafe=(
            ("pinned_once", 23),
            ("no_first_round + unpin_before_commit", 20),
            ("no_first_round + unpin_while_unknown", 20),
            ("no_first_round + unpin_after_commit", 20),
            ("no_first_round + read_before_pin", 20),
            ("no_first_round + young_pins_unread", 19),
        ),
    ),
    # The file of version 0 goes from an old pin to version 2, to another pin, and to a version again.
    "hand-over twice": Scenario(
        Rules(age_min=0, nodes=F[0] | F[1] | F[2]),
        (None, F[1]),
        {
            "restorer": (restore, Pinner(Transaction(1, 1, add=F[0]), pin=0, judged=1)),
            "restorer 2": (restore, Pinner(Transaction(2, 2, add=F[0]), pin=1, version=3, pin_count=1)),
            "writer": make_writer(3, 2),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(Pin(F[0], 0), 0),
        unsafe=(
            ("pins_before_slots", 31),
            ("later_pins_unread", 28),
            ("young_pins_unread", 29),
            ("unpin_before_commit", 30),
            ("unpin_after_commit", 30),
            ("read_before_pin", 30),
        ),
        harmless=("paged_listing", "repeated_rounds"),
    ),
    "leases": Scenario(
        Rules(age_min=0, lease_time=2, clock_max=5, nodes=F[0] | F[1]),
        (F[0], F[1]),
        {
            "reader": (read, Reader(version=0, lease=0, renewals=1)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        lease_count=1,
        unsafe=(("leases_unread", 19),),
    ),
    "lease check": Scenario(
        Rules(age_min=0, lease_time=2, clock_max=1, nodes=F[0] | F[1] | F[2]),
        (F[0], F[1], F[2]),
        {
            "reader": (read, Reader(version=1, lease=0)),
            "expirer": EXPIRER,
            "slow expirer": (expire, 1),
            "collector": COLLECTOR,
        },
        lease_count=1,
        unsafe=(("lease_check_by_oldest", 24),),
    ),
    "long writer": Scenario(
        Rules(age_min=0, lease_time=1, clock_max=4, writers=True),
        (F[0],),
        {
            "writer": (
                write_leased,
                Writer(ADD_1._replace(faults="delayed"), data=F[1], lease=0, renewals=1),
            ),
            "collector": COLLECTOR,
        },
        lease_count=1,
        unsafe=(
            ("leases_unread", 22),
            ("names_unfenced", 25),
            ("no_first_round + ended_after_fence", 23),
            ("lease_untested", 25),
            ("lease_name_untested", 25),
            ("lease_of_begin", 24),
            ("lease_late", 24),
            ("no_first_round + drop_while_unknown", 23),
            ("no_first_round + writers_after_slots", 22),
        ),
        harmless=("lease_late_tested", "lease_kept", "lease_file_untested", "leases_end_at_once"),
    ),
    # Two processes run a block of work under one id. Each takes a lease.
    "long block": Scenario(
        Rules(age_min=0, lease_time=1, clock_max=3, writers=True),
        (F[0],),
        {
            "request": (write_leased, Writer(ADD_1, data=F[1], lease=0, begin=0), 1),
            "again": (write_leased, Writer(ADD_1._replace(name=2), data=F[1], lease=1, begin=0), 1),
            "collector": COLLECTOR,
        },
        lease_count=2,
        unsafe=(("head_unread", 27), ("writers_after_slots", 30)),
    ),
    "tags": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1]),
        (None, Root(F[1], 0, 1, 0, 0)),
        {
            "untagger": (untag, Pinner(Transaction(1, 1, untag=1))),
            "restorer": (restore_tag, Pinner(Transaction(2, 2, add=F[0]), source=0, pin=1, pin_count=3)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(Pin(F[0], 0), 0),
        unsafe=(("tag_of_begin", 25),),
    ),
    "copied tags": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1]),
        (None, Root(F[1], 0, 1, 0, 0)),
        {
            "untagger": (untag, Pinner(Transaction(1, 1, untag=1))),
            "tagger": (tag, Pinner(Transaction(2, 2, tag=2), source=0, pin=1)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(Pin(F[0], 0), 0),
        unsafe=(("tag_not_checked", 22),),
    ),
    "reader of a tag": Scenario(
        Rules(age_min=0, clock_max=1, nodes=F[0] | F[1]),
        (None, Root(F[1], 0, 1, 0, 0)),
        {
            "untagger": (untag, Pinner(Transaction(1, 1, untag=1))),
            "reader": (read, Reader(source=0, lease=0)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(Pin(F[0], 0),),
        lease_count=1,
        unsafe=(("tag_not_checked", 24),),
    ),
    # A collector that was slow deletes a pin after another process has written one.
    "names of pins": Scenario(
        Rules(age_min=0, clock_max=2),
        (F[0],),
        {
            "tagger": (tag, Pinner(Transaction(1, 1, tag=1), pin=0)),
            "tagger 2": (tag_by_name, Pinner(Transaction(2, 2, tag=2), pin=1)),
            "collector": COLLECTOR,
        },
        pins=(0, 0),
        unsafe=(("pin_name_reused", 18),),
    ),
    # The collector lists what expirers wrote down, if they did.
    "candidates": Scenario(
        Rules(candidates=True, age_min=0, clock_max=2, nodes=F[0] | F[1] | F[2] | F[3]),
        (F[0], F[1]),
        {
            "writer": make_writer(1, 2, 3),
            "expirer": EXPIRER,
            "collector": (collect, make_collector(8)._replace(source="candidates")),
        },
    ),
}

GROWN = {
    "fences, grown": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[1] | F[2] | F[3] | F[4] | F[5] | F[6] | F[7]),
        (F[0], F[1]),
        {
            "writer": make_writer(1, 2, 3, 4, faults="delayed"),
            "writer 2": make_writer(2, 5, 6, 7, faults="lost"),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
    ),
    "three writers": Scenario(
        Rules(age_min=0, clock_max=2, nodes=F[0] | F[2] | F[3] | F[4] | F[5] | F[6] | F[7]),
        (F[0],),
        {
            "writer": make_writer(1, 2, 3),
            "writer 2": make_writer(2, 4, 5, faults="delayed"),
            "writer 3": make_writer(3, 6, 7),
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
    ),
    "age, grown": Scenario(
        Rules(age_min=1, clock_max=5, nodes=F[0] | F[2] | F[3] | F[4] | F[5]),
        (F[0],),
        {
            "writer": (write, Writer(ADD_1._replace(nodes=(F[2], F[3])), data=F[1])),
            "writer 2": (write, Writer(Transaction(2, 2, add=F[6], nodes=(F[4], F[5])), data=F[6])),
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
    ),
    "pins, grown": Scenario(
        Rules(age_min=1, clock_max=3, nodes=F[0] | F[1] | F[2] | F[3]),
        (F[0], F[1]),
        {
            "tagger": (tag, Pinner(Transaction(1, 1, tag=1), pin=0, version=1)),
            "writer": make_writer(2, 2, 3),
            "expirer": EXPIRER,
            "expirer 2": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(0,),
    ),
    "lease check, grown": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=5, nodes=F[0] | F[1] | F[2] | F[3]),
        (F[0], F[1]),
        {
            "reader": (read, Reader(version=1, lease=0, renewals=1)),
            "writer": make_writer(2, 2, 3),
            "expirer": EXPIRER,
            "expirer 2": EXPIRER,
            "collector": COLLECTOR,
        },
        lease_count=1,
    ),
    "long writer, grown": Scenario(
        Rules(age_min=1, lease_time=1, clock_max=6, writers=True),
        (F[0],),
        {
            "writer": (write_leased, Writer(ADD_1, data=F[1], lease=0, renewals=1)),
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
        lease_count=1,
    ),
    "saved, grown": Scenario(
        Rules(age_min=0, clock_max=3),
        (F[0],),
        {
            "saver": (write_again, Writer(ADD_1._replace(faults="delayed"), data=F[1], begin=0), 1),
            "resumer": (resume, Writer(ADD_1._replace(name=2, faults="lost"), data=F[1], begin=0), 1),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
    ),
    "tags, grown": Scenario(
        Rules(age_min=0, clock_max=2, lease_time=1, nodes=F[0] | F[1]),
        (F[0], Root(F[1], 0, 1, 0, 0)),
        {
            "untagger": (untag, Pinner(Transaction(1, 1, untag=1))),
            "restorer": (restore_tag, Pinner(Transaction(2, 2, add=F[0]), source=0, pin=1, pin_count=3)),
            "reader": (read, Reader(source=0, lease=0)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(Pin(F[0], 0), 0, 0, 0),
        lease_count=1,
    ),
    "two restores": Scenario(
        Rules(age_min=0, clock_max=3, nodes=F[0] | F[1] | F[2]),
        (F[0], F[1]),
        {
            "restorer": (restore, Pinner(Transaction(1, 1, add=F[0]), pin=0, version=0)),
            "restorer 2": (restore, Pinner(Transaction(2, 2, add=F[0]), pin=2, version=2)),
            "writer": make_writer(3, 2),
            "expirer": EXPIRER,
            "expirer 2": EXPIRER,
            "collector": COLLECTOR,
            "collector 2": COLLECTOR_2,
        },
        pins=(0, 0, 0, 0),
    ),
    "everything": Scenario(
        Rules(age_min=1, lease_time=2, clock_max=5, nodes=F[0] | F[1] | F[2] | F[3]),
        (F[0], F[1]),
        {
            "writer": (write, Writer(Transaction(1, 1, add=F[4], nodes=(F[2], F[3])), data=F[4])),
            "restorer": (restore, Pinner(Transaction(2, 2, add=F[0]), pin=0, version=0)),
            "reader": (read, Reader(version=0, lease=0)),
            "expirer": EXPIRER,
            "collector": COLLECTOR,
        },
        pins=(0, 0),
        lease_count=1,
    ),
}
"""Larger sets of the same actors, for the slow lane."""
