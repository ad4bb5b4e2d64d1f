"""A bounded model of the life cycle: commit, expiry, pins, leases of readers and of writers, collection.

Each protocol is one generator function that reads like the protocol in FORMAT.md. Each `yield` is one request to the
store, and one atomic step. `protocol_explorer` runs every interleaving of the actors of a scenario. An actor that stops
for ever needs no step of its own: the explorer visits every state in which the actor has not gone on.

**Actors.** `write`: a writer, with a lease or without. `write_again`: one of two processes that run a block of work
under one id. `save` and `resume`: a saved transaction and the process that resumes it. `expire`: keeps the head only.
`tag`, `untag`, `restore` (which stands for rollback, undrop and revert, too). `read`: a reader with a lease. `collect`:
a collector. All commits, fences included, go through `commit`. The store may lose the reply to a put, and may delay a
put until later or for ever. A clock of few ticks gives files, pins and leases their ages.

**Promises** (`Storage.check`, in every state):

* A slot that was filled once is never filled again, and tombstones have no gap below them. So no acknowledged commit is
  lost.
* A transaction id is in one version at most.
* Every file that a version names exists, until the version is a tombstone: by its tree, by its recorded actions, and by
  the pins that its tags name. So the files of a commit exist when it succeeds, also for a writer that was slow.
* Every file of a lease exists while its holder may read by it.

A reader without a lease needs no actor: if it misses a file and the slot then still has a root, the third promise was
broken. Two more promises are checked in runs without interleaving, from every store that was reached (`settle`): a
collection ends, and two collections leave no file, pin or lease that nothing reaches.

**Unsafe changes** are names in `Rules.unsafe`. Each one changes the place in the code that tests for it. A scenario
says which changes break a promise there, and which do no harm.

| Change | What is done instead |
| --- | --- |
| freed_slots | expiry deletes roots |
| no_fence, fence_before_listing | the collector commits no fence, or commits it first |
| one_round, two_rounds | the collector reads slots, pins and leases once or twice |
| new_versions_ignored | a round counts as new only if it reaches a candidate that was not reached |
| new_roots_ignored | the same, but a tombstone that was no version in the round before counts as new: no harm |
| paged_listing | pins are listed one by one, the last first: no harm |
| oldest_trusted | the collector reads slots from `vn/oldest` on |
| expiry_from_oldest | the expirer writes tombstones from `vn/oldest` on |
| pin_check_by_oldest, lease_check_by_oldest | `vn/oldest` is read where the slot has to be read again |
| pin_after_check | the slot is read again before the pin is written |
| tag_not_checked | who pins by a tag does not look at the head again |
| unpin_before_commit, unpin_while_unknown | a restore drops its pin too early |
| pin_name_reused | two processes give their pins one name |
| reused_uploads | a writer crosses a fence with the nodes that it has uploaded |
| tombstones_passed | a writer that meets a tombstone behind its begin version goes on from the head |
| revision_1_writer | an old writer does not refuse the revision of the fence |
| id_age_untested, pin_age_untested | a commit rests on an id or a pin of any age |
| no_minimum_age | the collector takes files of any age |
| age_past_minimum | an id or pin is good for the minimum age and a tick |
| age_up_to_minimum | an id or pin is good for all of the minimum age: no harm |
| age_by_file | the age of a file that was uploaded again counts, not that of the id |
| age_by_created_file | the same, but a file that exists is not uploaded again |
| leases_unread | the collector does not read leases |
| lease_untested | a commit does not test its lease or saved transaction |
| lease_time_untested, lease_name_untested | it tests only one of the two: its time, or what fences name |
| renewal_untested | a writer that renews its lease too late goes on |
| leases_end_at_once | the collector waits one time to live, not two: no harm while all read one clock |

**Not in the model.** All read one exact clock; a mistake of a clock is what half of the minimum age and the second time
to live of a lease are for. A tree is a set of files; a node is one file. Requests for a whole set of files (upload,
listing, deletion) are one step each; pages of a listing are tried for pins only. A loser tries the next slot without a
probe for the head first. Finding the head, and the first version kept, is one step. Actions name what they remove. One
expirer keeps no more than the head, and nothing holds expiry back. Branches, exports and merges are not there; their
pins are those of tags and restores. Conflicts are only those that the model needs. There is no repair, no checkpoint,
no group of transactions, and no store that is put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol_explorer import Program

ABSENT = 0


class Root(NamedTuple):
    """One version. Sets of files, pins and leases are bit masks."""

    tree: int
    """Files that the version's entries reach."""
    actions: int
    """Files that only its recorded actions name."""
    pins: int
    """Pins that the tags among its entries name."""
    transaction: int
    commit: int
    """The commit id, unique for each root that a process builds."""
    revision: int = 1
    fence: bool = False
    disregarded: int = 0
    """Leases that this fence disregards."""


class Tombstone(NamedTuple):
    commit: int
    transaction: int
    """No process reads it: it serves `Storage.check`."""


class Freed(NamedTuple):
    """A slot whose root was deleted. Processes take it for a slot that was never filled."""

    commit: int
    transaction: int


class Pin(NamedTuple):
    files: int
    born: int


class Lease(NamedTuple):
    files: int
    born: int
    held: bool
    """Whether its holder reads by it. No process reads this: it serves `Storage.check`."""


class Store(NamedTuple):
    clock: int
    files: int
    born: tuple[int, ...]
    """The modification time of each file, 0 for a file that does not exist."""
    slots: tuple[Any, ...]
    oldest: int
    pins: tuple[Any, ...]
    leases: tuple[Any, ...]
    delayed: tuple[tuple[int, Root], ...] = ()
    """Puts that may still land, with their slots."""
    candidates: int = 0
    broken: str = ""


class Rules(NamedTuple):
    """The bounds of a scenario, and at most one unsafe change of a protocol."""

    unsafe: str = ""
    clock_max: int = 0
    age_min: int = 2
    """Minimum age of what is collected, in ticks."""
    lease_time: int = 2
    nodes: int = 0
    """The files that are nodes: a commit replaces the node of the version below."""
    pins_left: bool = False
    """Whether restores leave their pin to collection instead of dropping it after the commit."""
    candidates: bool = False
    """Whether expirers write candidates."""

    def is_young(self, born: int, clock: int) -> bool:
        """Return whether a thing is younger than half the minimum age."""
        if self.unsafe == "age_up_to_minimum":
            return clock - born < self.age_min
        if self.unsafe == "age_past_minimum":
            return clock - born <= self.age_min
        return 2 * (clock - born) < self.age_min


class Transaction(NamedTuple):
    """What a process wants to commit."""

    name: int
    """The process; makes commit ids unique."""
    id: int
    """The transaction id. Two processes with one id are a request and its repetition."""
    add: int = 0
    remove: int = 0
    nodes: tuple[int, ...] = ()
    """Fresh names for its uploads of nodes, one for each time that it has to upload."""
    tag: int = 0
    untag: int = 0
    revision: int = 2
    fence: bool = False
    disregarded: int = 0
    faults: str = ""
    """`lost`: the reply to its first put may be lost. `delayed`: the put may also land later, or never."""

    def execute(self, rules: Rules, base: Root, node: int, slot: int) -> Root:
        """Return the root for `slot` on `base`."""
        kept = base.tree & ~self.remove & ~(rules.nodes if node else 0)
        return Root(
            tree=kept | self.add | node,
            actions=self.remove,
            pins=base.pins & ~self.untag | self.tag,
            transaction=self.id,
            commit=self.name * 16 + slot,
            revision=max(self.revision, base.revision),
            fence=self.fence,
            disregarded=self.disregarded,
        )


class Proof(NamedTuple):
    """Why a commit may reference data files that it did not upload since the last fence."""

    kind: str = "none"
    """`none`, `id` (the time in the transaction's id), `pin`, `lease`, `saved` (a saved transaction)."""
    born: int = 0
    lease: int = 0

    def holds(self, rules: Rules, clock: int, disregarded: int) -> bool:
        """Return whether a commit may rest on it at this time, past fences that disregard these leases."""
        if self.kind in ("id", "pin"):
            return rules.is_young(self.born, clock) or rules.unsafe == f"{self.kind}_age_untested"
        if self.kind in ("lease", "saved"):
            alive = clock - self.born < rules.lease_time or rules.unsafe in (
                "lease_time_untested",
                "lease_untested",
            )
            named = disregarded & self.lease and rules.unsafe not in ("lease_name_untested", "lease_untested")
            return alive and not named
        return True


class Storage:
    """The object store. Each request is one atomic step. `start` is the history at the beginning."""

    def __init__(self, rules: Rules, start: Store) -> None:
        self.rules = rules
        self._start = start

    def start(self) -> Store:
        return self._start

    def apply(self, store: Store, request: tuple[Any, ...]) -> list[tuple[Store, Any]]:
        answer = getattr(self, f"_{request[0].replace(' ', '_')}")(store, *request[1:])
        return answer if isinstance(answer, list) else [answer]

    def drift(self, store: Store) -> list[tuple[str, Store]]:
        """Return the store after a tick of the clock, and after each delayed put that can land."""
        found = []
        if store.clock < self.rules.clock_max:
            found.append(("clock: goes on", store._replace(clock=store.clock + 1)))
        for slot, root in store.delayed:
            found.append((f"store: a delayed put lands in slot {slot}", self._put(store, slot, root, "")[0]))
        return found

    def check(self, store: Store) -> str:
        """Return the promise that this store breaks."""
        if store.broken:
            return store.broken
        seen = set()
        live = False
        for version, entry in enumerate(store.slots):
            if entry.transaction in seen:
                return f"transaction {entry.transaction} was committed twice"
            seen.add(entry.transaction)
            if not isinstance(entry, Root):
                if live:
                    return f"version {version} expired before an older one"
                continue
            live = True
            if missing := (entry.tree | entry.actions) & ~store.files:
                return f"version {version} reaches {_name_files(missing)}, which was deleted"
            place = 0
            while entry.pins >> place:
                if entry.pins >> place & 1:
                    pin = store.pins[place]
                    if not pin:
                        return f"version {version} has a tag of pin {place}, which was deleted"
                    if missing := pin.files & ~store.files:
                        return f"version {version} has a tag of {_name_files(missing)}, which was deleted"
                place += 1
        for lease in store.leases:
            if (
                lease
                and lease.held
                and store.clock - lease.born < self.rules.lease_time
                and lease.files & ~store.files
            ):
                return (
                    f"a reader holds a lease of {_name_files(lease.files & ~store.files)}, which was deleted"
                )
        return ""

    # Requests for versions

    def _find_head(self, store: Store) -> tuple[Store, Any]:
        """Find the head from the hint, or from version 0. Reply: version, root, time."""
        version = store.oldest if _is_filled(store, store.oldest) else 0
        if not _is_filled(store, version):
            return store, (0, ABSENT, store.clock)
        while _is_filled(store, version + 1):
            version += 1
        return store, (version, store.slots[version], store.clock)

    def _find_newest(self, store: Store) -> tuple[Store, int]:
        return store, self._find_head(store)[1][0]

    def _read(self, store: Store, version: int) -> tuple[Store, Any]:
        return store, (store.slots[version] if _is_filled(store, version) else ABSENT, store.clock)

    def _read_slot(self, store: Store, version: int) -> tuple[Store, Any]:
        return store, store.slots[version] if _is_filled(store, version) else ABSENT

    def _put(self, store: Store, slot: int, root: Root, faults: str) -> Any:
        """Put if absent. Reply: created, exists, unknown."""
        if _is_filled(store, slot):
            return [(store, "exists")] + ([(store, "unknown")] if faults else [])
        if slot < len(store.slots):
            broken = f"version {slot} was committed before, and is committed again"
            slots = (*store.slots[:slot], root, *store.slots[slot + 1 :])
            return store._replace(slots=slots, broken=broken), "created"
        delayed = tuple(put for put in store.delayed if put[0] > slot)
        done = store._replace(slots=(*store.slots, root), delayed=delayed)
        outcomes = [(done, "created")]
        if faults:
            outcomes.append((done, "unknown"))
        if faults == "delayed":
            late = tuple(sorted({*store.delayed, (slot, root)}))
            outcomes.append((store._replace(delayed=late), "unknown"))
        return outcomes if faults else outcomes[0]

    def _find_first_kept(self, store: Store) -> tuple[Store, int]:
        """Find the lowest version that is no tombstone, by halving: tombstones have no gaps."""
        version = 0
        while isinstance(store.slots[version], Tombstone | Freed):
            version += 1
        return store, version

    def _write_tombstone(self, store: Store, version: int) -> tuple[Store, str]:
        entry = store.slots[version]
        kind = Freed if self.rules.unsafe == "freed_slots" else Tombstone
        slots = (*store.slots[:version], kind(entry.commit, entry.transaction), *store.slots[version + 1 :])
        return store._replace(slots=slots), "done"

    def _write_oldest(self, store: Store, version: int) -> tuple[Store, str]:
        return store._replace(oldest=version), "done"

    def _read_oldest(self, store: Store) -> tuple[Store, int]:
        return store, store.oldest

    # Requests for files

    def _upload(self, store: Store, files: int) -> tuple[Store, int]:
        """Reply: the time. An upload under an old name gives the file a new time."""
        born = tuple(store.clock if files >> place & 1 else time for place, time in enumerate(store.born))
        return store._replace(files=store.files | files, born=born), store.clock

    def _upload_if_absent(self, store: Store, files: int) -> tuple[Store, int]:
        return self._read_time(store, files) if store.files & files else self._upload(store, files)

    def _read_time(self, store: Store, files: int) -> tuple[Store, int]:
        """Reply: the modification time of one file, -1 if it is absent."""
        return store, store.born[files.bit_length() - 1] if store.files & files else -1

    def _list(self, store: Store, source: str) -> tuple[Store, Any]:
        """Reply: the cutoff, and files and pins that are at or below it. `source`: everything, or candidates."""
        cutoff = store.clock - (0 if self.rules.unsafe == "no_minimum_age" else self.rules.age_min)
        files = sum(1 << place for place, born in enumerate(store.born) if born <= cutoff) & store.files
        if source == "candidates":
            files &= store.candidates
        pins = sum(1 << place for place, pin in enumerate(store.pins) if pin and pin.born <= cutoff)
        return store, (cutoff, files, pins)

    def _delete(self, store: Store, files: int, pins: int, leases: int) -> tuple[Store, str]:
        born = tuple(0 if files >> place & 1 else time for place, time in enumerate(store.born))
        kept_pins = tuple(ABSENT if pins >> place & 1 else pin for place, pin in enumerate(store.pins))
        kept_leases = tuple(
            ABSENT if leases >> place & 1 else lease for place, lease in enumerate(store.leases)
        )
        return store._replace(
            files=store.files & ~files, born=born, pins=kept_pins, leases=kept_leases
        ), "done"

    def _write_candidates(self, store: Store, first: int, end: int) -> Any:
        """Write what versions first..end-1 name and version `end` does not reach. It may be lost, or not written."""
        named = 0
        for entry in store.slots[first:end]:
            if isinstance(entry, Root):
                named |= entry.tree | entry.actions
        if isinstance(store.slots[end], Root):
            named &= ~store.slots[end].tree
        return [(store._replace(candidates=store.candidates | named), "done"), (store, "done")]

    # Requests for pins and leases

    def _write_pin(self, store: Store, place: int, files: int) -> tuple[Store, int]:
        return store._replace(pins=_set(store.pins, place, Pin(files, store.clock))), store.clock

    def _read_pin(self, store: Store, place: int) -> tuple[Store, int]:
        """Reply: the files of the pin, ABSENT if it does not exist."""
        return store, store.pins[place].files if store.pins[place] else ABSENT

    def _drop_pin(self, store: Store, place: int) -> tuple[Store, str]:
        return store._replace(pins=_set(store.pins, place, ABSENT)), "done"

    def _list_pins(self, store: Store, cutoff: int, page: int = -1) -> tuple[Store, Any]:
        """Reply: files of pins above the cutoff, and the files of each other pin. `page`: of one pin."""
        young = 0
        old = []
        for place, pin in enumerate(store.pins):
            if page not in (-1, place):
                old.append(0)
                continue
            if pin and pin.born > cutoff:
                young |= pin.files
            old.append(pin.files if pin and pin.born <= cutoff else 0)
        return store, (young, tuple(old))

    def _write_lease(self, store: Store, place: int, files: int) -> tuple[Store, int]:
        return store._replace(leases=_set(store.leases, place, Lease(files, store.clock, False))), store.clock

    def _renew_lease(self, store: Store, place: int, files: int) -> tuple[Store, int]:
        """Write the same bytes again. Reply: the new time. A reader that is told that the old time ran out stops."""
        old = store.leases[place]
        held = bool(old) and old.held and store.clock - old.born < self.rules.lease_time
        return store._replace(leases=_set(store.leases, place, Lease(files, store.clock, held))), store.clock

    def _read_lease(self, store: Store, place: int) -> tuple[Store, Any]:
        """Reply: the lease's time, ABSENT if it does not exist."""
        return store, (store.leases[place].born,) if store.leases[place] else ABSENT

    def _test_lease(self, store: Store, place: int, version: int) -> tuple[Store, Any]:
        """Read the slot again. If it has a root, the lease holds from here on. Reply: whether, and the time."""
        if not isinstance(store.slots[version], Root):
            return store, (False, store.clock)
        return self._hold_lease(store, place)

    def _test_lease_by_tag(self, store: Store, place: int, source: int) -> tuple[Store, Any]:
        """Read the head again. If a tag of it names the same pin, the lease holds from here on."""
        if not self._find_head(store)[1][1].pins >> source & 1:
            return store, (False, store.clock)
        return self._hold_lease(store, place)

    def _test_lease_by_hint(self, store: Store, place: int, version: int) -> tuple[Store, Any]:
        return (store, (False, store.clock)) if store.oldest > version else self._hold_lease(store, place)

    def _hold_lease(self, store: Store, place: int) -> tuple[Store, Any]:
        lease = store.leases[place]
        if lease and store.clock - lease.born < self.rules.lease_time:
            store = store._replace(leases=_set(store.leases, place, lease._replace(held=True)))
        return store, (True, store.clock)

    def _drop_lease(self, store: Store, place: int) -> tuple[Store, str]:
        return store._replace(leases=_set(store.leases, place, ABSENT)), "done"

    def _list_leases(self, store: Store, disregarded: int) -> tuple[Store, Any]:
        """Reply: the files of the leases that are not disregarded."""
        files = 0
        for place, lease in enumerate(store.leases):
            if lease and not disregarded >> place & 1:
                files |= lease.files
        return store, files

    def _list_expired_leases(self, store: Store) -> tuple[Store, int]:
        """Reply: the leases whose time ran out a lease time ago."""
        grace = 1 if self.rules.unsafe == "leases_end_at_once" else 2
        ended = (
            1 << place
            for place, lease in enumerate(store.leases)
            if lease and store.clock - lease.born >= self.rules.lease_time * grace
        )
        return store, sum(ended)


def _is_filled(store: Store, version: int) -> bool:
    return version < len(store.slots) and not isinstance(store.slots[version], Freed)


def _set(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _name_files(files: int) -> str:
    return "file " + ", ".join(str(place) for place in range(files.bit_length()) if files >> place & 1)


def commit(rules: Rules, wanted: Transaction, proof: Proof, begin: int = -1) -> Program:
    """Section 7, and "What a commit may newly reference". `begin`: the begin version, if it was fixed before."""
    if begin < 0:
        version, root, clock = yield ("find head",)
    else:
        version = begin
        root, clock = yield ("read", begin)
    if root is ABSENT:
        return "lost track"  # only after slots were freed
    if not isinstance(root, Root):
        return "Expired"
    if root.revision > wanted.revision and rules.unsafe != "revision_1_writer":
        return "newer_format"
    used = 0
    node = 0
    disregarded = 0
    fenced = False
    while True:
        # Judge: at the begin version, and again after each version that won.
        if not proof.holds(rules, clock, disregarded):
            return "Expired"
        del clock
        if wanted.remove & ~root.tree or wanted.untag & ~root.pins:
            return "Conflict"
        # 1. Stage. Past a fence every node is uploaded again, under a fresh name.
        if wanted.nodes and (not node or (fenced and rules.unsafe != "reused_uploads")):
            if used == len(wanted.nodes):
                return "out of names"
            node = wanted.nodes[used]
            used += 1
            yield ("upload", node)
        fenced = False
        # 2. Publish. While the outcome is unknown, put the same bytes into the same slot again.
        version += 1
        root = wanted.execute(rules, root, node, version)
        outcome = yield ("put", version, root, wanted.faults)
        while outcome == "unknown":
            if rules.unsafe == "unpin_while_unknown":
                return "OutcomeUnknown"
            outcome = yield ("put", version, root, "")
        if outcome == "created":
            return "committed"
        # The slot exists: whose is it?
        winner, clock = yield ("read", version)
        if winner is ABSENT:
            return "lost track"
        if winner.commit == root.commit:
            return "committed"
        if isinstance(winner, Tombstone):
            # It may have been a fence, and it may have been this very transaction.
            if rules.unsafe != "tombstones_passed":
                return "Expired"
            version, root, clock = yield ("find head",)
            continue
        if winner.transaction == wanted.id:
            return "committed before"
        if winner.revision > wanted.revision:
            if rules.unsafe != "revision_1_writer":
                return "newer_format"
        elif winner.fence:
            fenced = True
            disregarded |= winner.disregarded & proof.lease
        root = winner
        del winner


class Writer(NamedTuple):
    wanted: Transaction
    data: int = 0
    """Its data file, uploaded before it reads the head: the worst time."""
    lease: int = -1
    renewals: int = 0
    begin: int = -1
    """The begin version, if it was fixed before the first send."""


def write(rules: Rules, me: Writer) -> Program:
    """A writer. With a lease: the lease is durable before the first upload, and is renewed while the upload lasts. The
    writer drops the lease when the outcome is known."""
    if me.lease >= 0:
        born = yield ("write lease", me.lease, me.data)
        yield ("upload", me.data)
        left = me.renewals
        while left:
            left -= 1
            renewed = yield ("renew lease", me.lease, me.data)
            if renewed - born >= rules.lease_time and rules.unsafe != "renewal_untested":
                return "lease ran out"
            born = renewed
            del renewed
        outcome = yield from commit(rules, me.wanted, Proof("lease", born, 1 << me.lease))
        yield ("drop lease", me.lease)
        return outcome
    if me.data:
        born = yield ("upload", me.data)
        return (yield from commit(rules, me.wanted, Proof("id", born)))
    return (yield from commit(rules, me.wanted, Proof()))


def write_again(rules: Rules, me: Writer, id_time: int) -> Program:
    """A block of work that is run under an id and a begin version that are recorded. Its file has a name that follows
    from the id, so each run uploads the same name."""
    if rules.unsafe == "age_by_created_file":
        born = yield ("upload if absent", me.data)
    else:
        born = yield ("upload", me.data)
    if rules.unsafe not in ("age_by_file", "age_by_created_file"):
        born = id_time
    return (yield from commit(rules, me.wanted, Proof("id", born), me.begin))


def save(rules: Rules, me: Writer) -> Program:
    """A process saves a transaction, uploads its data file and commits. The saved file is `lease`."""
    born = yield ("write lease", me.lease, me.data)
    yield ("upload", me.data)
    return (yield from commit(rules, me.wanted, Proof("saved", born, 1 << me.lease), me.begin))


def resume(rules: Rules, me: Writer) -> Program:
    """Another process loads the saved transaction, finds the data file and commits."""
    saved = yield ("read lease", me.lease)
    if saved is ABSENT:
        return "not found"
    found = yield ("read time", me.data)
    if found < 0:
        return "not found"
    del found
    return (yield from commit(rules, me.wanted, Proof("saved", saved[0], 1 << me.lease), me.begin))


def expire(rules: Rules, end: int = -1) -> Program:
    """Section 8, "Expiry". Only the head is kept. `end`: a slow expirer that has chosen already."""
    if end < 0:
        end = yield ("find newest",)
    version = yield (("read oldest",) if rules.unsafe == "expiry_from_oldest" else ("find first kept",))
    if version >= end:
        return "nothing to expire"
    if rules.candidates:
        yield ("write candidates", version, end)
    yield ("write oldest", end)
    while version < end:
        yield ("write tombstone", version)
        version += 1
    return "expired"


class Pinner(NamedTuple):
    wanted: Transaction
    """Its `tag` (a tag) or `add` (a restore) comes from the pin."""
    pin: int
    version: int = 0
    """The version that it pins."""
    source: int = -1
    """The pin of a tag that it pins, in place of a version."""
    born: int = -1
    """The time of its pin, if its pin holds from the beginning."""


def tag(rules: Rules, me: Pinner) -> Program:
    """Section 9, "Tag": pin, then commit the entry that names the pin."""
    born = yield from _pin_version(rules, me)
    if born == "Expired":
        return born
    outcome = yield from commit(rules, me.wanted, Proof("pin", born))
    if outcome == "Expired":
        yield ("drop pin", me.pin)
    return outcome


def tag_by_name(rules: Rules, me: Pinner) -> Program:
    """A tag whose pin has a fresh name, or, unsafe, the name that another process gave its pin."""
    if rules.unsafe == "pin_name_reused":
        me = me._replace(pin=0, wanted=me.wanted._replace(tag=1))
    return (yield from tag(rules, me))


def untag(rules: Rules, me: Pinner) -> Program:
    """Commit the removal of the entry. Collection does the rest."""
    return (yield from commit(rules, me.wanted, Proof()))


def restore(rules: Rules, me: Pinner) -> Program:
    """Restore, rollback, undrop, revert: pin for the duration, commit what the pin reaches, drop the pin."""
    if me.born >= 0:
        born = me.born
    elif me.source < 0:
        born = yield from _pin_version(rules, me)
    else:
        born = yield from _pin_tag(rules, me)
    if born == "Expired":
        return born
    if rules.unsafe == "unpin_before_commit":
        yield ("drop pin", me.pin)
    outcome = yield from commit(rules, me.wanted, Proof("pin", born))
    if not rules.pins_left:
        yield ("drop pin", me.pin)
    return outcome


def _pin_version(rules: Rules, me: Pinner) -> Program:
    """Section 8, "Pins": write the pin with a copy of the root, then read the slot. Return the pin's time."""
    root = yield ("read slot", me.version)
    if not isinstance(root, Root):
        return "Expired"
    if me.wanted.add & ~root.tree:
        return "Expired"
    if rules.unsafe == "pin_after_check":
        again = yield ("read slot", me.version)
        if not isinstance(again, Root):
            return "Expired"
        return (yield ("write pin", me.pin, root.tree))
    born = yield ("write pin", me.pin, root.tree)
    del root
    if rules.unsafe == "pin_check_by_oldest":
        oldest = yield ("read oldest",)
        found = oldest <= me.version
        del oldest
    else:
        again = yield ("read slot", me.version)
        found = isinstance(again, Root)
        del again
    if not found:
        yield ("drop pin", me.pin)
        return "Expired"
    return born


def _pin_tag(rules: Rules, me: Pinner) -> Program:
    """The source is an entry of the head: copy its pin, then look whether the head still names the source's pin."""
    files = yield from _read_tag(me.source)
    if files is ABSENT:
        return "Expired"
    born = yield ("write pin", me.pin, files)
    del files
    if rules.unsafe == "tag_not_checked":
        return born
    root = (yield ("find head",))[1]
    named = root.pins >> me.source & 1
    del root
    if not named:
        yield ("drop pin", me.pin)
        return "Expired"
    return born


def _read_tag(pin: int) -> Program:
    """Return the files of a pin that the head names, else ABSENT."""
    root = (yield ("find head",))[1]
    if not root.pins >> pin & 1:
        return ABSENT
    del root
    return (yield ("read pin", pin))


class Reader(NamedTuple):
    lease: int
    version: int = 0
    renewals: int = 0
    source: int = -1
    """The pin of a tag that it reads, in place of a version."""


def read(rules: Rules, me: Reader) -> Program:
    """FORMAT.md, "Leases": read the root, write the lease, then read the slot again. `Storage.check` looks at what it
    reads: its files exist while the lease lives."""
    if me.source >= 0:
        files = yield from _read_tag(me.source)
        test = ("test lease by tag", me.lease, me.source)
    else:
        root = yield ("read slot", me.version)
        files = root.tree if isinstance(root, Root) else ABSENT
        del root
        test = ("test lease", me.lease, me.version)
    if files is ABSENT:
        return "Expired"
    if rules.unsafe == "lease_check_by_oldest":
        test = ("test lease by hint", me.lease, me.version)
    if rules.unsafe == "tag_not_checked":
        test = ("hold lease", me.lease)
    born = yield ("write lease", me.lease, files)
    holds, clock = yield test
    if not holds:
        yield ("drop lease", me.lease)
        return "Expired"
    if clock - born >= rules.lease_time:
        yield ("drop lease", me.lease)
        return "lease_expired"
    del holds, clock, test
    left = me.renewals
    while left:
        left -= 1
        renewed = yield ("renew lease", me.lease, files)
        if renewed - born >= rules.lease_time:
            yield ("drop lease", me.lease)
            return "lease_expired"
        born = renewed
        del renewed
    yield ("drop lease", me.lease)
    return "read"


class Collector(NamedTuple):
    fence: Transaction
    source: str = "everything"
    """Or `candidates`: it lists what expirers wrote down."""


def collect(rules: Rules, me: Collector) -> Program:
    """Section 8, "Collection"."""
    outcome = ""
    if rules.unsafe == "fence_before_listing":
        outcome = yield from commit(rules, me.fence, Proof())
    # (1) List candidates.
    cutoff, files, pins = yield ("list", me.source)
    ended = yield ("list expired leases",)
    if not files and not pins and not ended:
        return "nothing to collect"
    # (2) Commit a fence. It names the leases that this collection disregards.
    if not outcome and rules.unsafe != "no_fence":
        outcome = yield from commit(rules, me.fence._replace(disregarded=ended), Proof())
        if outcome != "committed":
            return "no fence"
    # (3) Rounds of slots, pins and leases, until a round finds nothing new.
    named, reached = yield from _mark(rules, files, cutoff, ended)
    # (4) Delete what was listed and is not reached.
    files &= ~reached
    pins &= ~named
    del reached, named
    if files or pins or ended:
        yield ("delete", files, pins, ended)
    return "collected"


def _mark(rules: Rules, files: int, cutoff: int, ended: int) -> Program:
    """Return the pins that tags name, and the files that are reached: the union of all rounds."""
    reached = named = young = leased = rounds = 0
    old: tuple[int, ...] = ()
    first = True
    version = yield (("read oldest",) if rules.unsafe == "oldest_trusted" else ("find first kept",))
    while True:
        # Versions count as new even if they reach nothing new: one that has expired meanwhile may have handed over.
        before = _find_reached(files, reached, named, young, old, leased)
        entry = yield ("read slot", version)
        new = first
        while entry is not ABSENT:
            version += 1
            if rules.unsafe == "new_roots_ignored":
                new = new or isinstance(entry, Tombstone)
            else:
                new = first or rules.unsafe != "new_versions_ignored"
            if isinstance(entry, Root):
                reached |= entry.tree | entry.actions
                named |= entry.pins
            entry = yield ("read slot", version)
        del entry
        # A pin that no entry names counts unless it is as old as the cutoff.
        if rules.unsafe == "paged_listing":
            found = yield from _list_pins_in_pages(cutoff)
        else:
            found = yield ("list pins", cutoff)
        young |= found[0]
        old = tuple(was | now for was, now in zip(old or found[1], found[1], strict=True))
        del found
        if rules.unsafe != "leases_unread":
            leased |= yield ("list leases", ended)
        rounds += 1
        first = False
        if not new and before == _find_reached(files, reached, named, young, old, leased):
            break
        if (rules.unsafe, rounds) in (("one_round", 1), ("two_rounds", 2)):
            break
        if rules.unsafe != "two_rounds":
            rounds = 0
    return named, _find_reached(-1, reached, named, young, old, leased)


def _find_reached(files: int, reached: int, named: int, young: int, old: tuple[int, ...], leased: int) -> int:
    """Return which of the files are reached."""
    for place, pinned in enumerate(old):
        if named >> place & 1:
            reached |= pinned
    return files & (reached | young | leased)


def _list_pins_in_pages(cutoff: int) -> Program:
    """List two pins, one a page, the last first."""
    last = yield ("list pins", cutoff, 1)
    first = yield ("list pins", cutoff, 0)
    return last[0] | first[0], (first[1][0], last[1][1])


def settle(rules: Rules, store: Store, collectors: tuple[Collector, Collector]) -> str:
    """Stop every actor, let all times run out, expire, and collect twice. Return what is left though nothing reaches
    it, or nothing. Puts that have not landed never do."""
    storage = Storage(rules._replace(unsafe=""), store)
    store = store._replace(delayed=(), clock=store.clock + 2 * rules.lease_time + rules.age_min)
    store = _run_alone(storage, store, expire(storage.rules))
    for collector in collectors:
        store = _run_alone(storage, store, collect(storage.rules, collector))
        store = store._replace(clock=store.clock + rules.age_min)
    reached = pins = 0
    for entry in store.slots:
        if isinstance(entry, Root):
            reached |= entry.tree | entry.actions
            pins |= entry.pins
    for place, pin in enumerate(store.pins):
        if pins >> place & 1:
            reached |= pin.files
        elif pin:
            return f"pin {place} is left"
    if any(store.leases):
        return "a lease is left"
    return (
        f"{_name_files(store.files & ~reached)} is left" if store.files & ~reached else storage.check(store)
    )


def _run_alone(storage: Storage, store: Store, program: Program) -> Store:
    request = next(program)
    for _ in range(1000):
        store, reply = storage.apply(store, request)[0]
        try:
            request = program.send(reply)
        except StopIteration:
            return store
    raise AssertionError("it does not end")
