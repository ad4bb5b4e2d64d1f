"""A bounded model of the life cycle: commit, expiry, pins, leases of readers and of writers, collection.

Each protocol is one generator function that reads like the protocol in FORMAT.md. Each `yield` is one request to the
store, and one atomic step. `protocol_explorer` runs every interleaving of the actors of a scenario. An actor that stops
for ever needs no step of its own: the explorer visits every state in which the actor has not gone on.

**Actors.** `write`: a writer. `write_leased`: a writer with a lease, also one of two of one id. `write_again`: one of
two processes that run a block of work under one id, or that save a transaction, without leases. `resume`: the process
that resumes a saved transaction. `expire`: keeps the head only. `tag`, `untag`, `restore` (which stands for undrop,
too), `restore_tag`. `read`: a reader with a lease. `collect`: a collector. All commits, fences included, go through
`commit`. The store may lose the reply to a put, and may delay a put until later or for ever. A clock of few ticks gives
files, pins, ids and leases their times.

All is what FORMAT.md describes and the journal does.

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

**Changes** of the protocols are names in `Rules.unsafe`; ` + ` joins several. Each one changes the place in the code
that tests for it. A scenario says which changes break a promise there, with the length of the shortest trace, and which
do no harm. The mark before the fence is never needed: each scenario is safe without it. But it hides several mistakes,
which are therefore tried without it, too.

| Change | What is done instead |
| --- | --- |
| freed_slots | expiry deletes roots |
| no_fence, fence_before_listing | the collector commits no fence, or commits it first, with an earlier cutoff |
| listing_after_fence | it commits the fence first, and lists by the cutoff of that fence: no harm |
| no_first_round | it marks after the fence only: no harm |
| no_second_round | it marks before the fence only |
| repeated_rounds | it marks until a round finds nothing new: no harm |
| pins_before_slots | it lists young pins before it reads the slots |
| later_pins_unread, young_pins_unread | after the fence it reads slots only; or it reads pins of tags only |
| paged_listing | pins are listed in two pages, the last first: no harm |
| oldest_trusted | the collector reads slots from `vn/oldest` on |
| expiry_from_oldest | the expirer writes tombstones from `vn/oldest` on |
| pin_check_by_oldest, lease_check_by_oldest | `vn/oldest` is read where the slot has to be read again |
| pin_after_check | the slot is read again before the pin is written |
| tag_not_checked | who pins by a tag does not look at the head again |
| tag_of_begin | a restore looks for the tag at the begin version, and not at each version that it is tried on |
| pinned_once | a restore pins for the begin version only |
| read_before_pin | a restore uses what was read before its pin, although the slot has a tombstone by then |
| unpin_before_commit, unpin_while_unknown | a restore drops its pin too early |
| unpin_after_commit | a restore drops its pin when the outcome is known |
| pin_name_reused | two processes give their pins one name |
| reused_uploads | a writer crosses a fence with the nodes that it has uploaded |
| tombstones_passed | a writer that meets a tombstone behind its begin version goes on from the head |
| revision_1_writer | an old writer does not refuse the revision of the fence |
| id_untested, pin_untested | a commit rests on an id or a pin of any time |
| cutoff_of_begin | a commit compares with the cutoff of its begin version only |
| cutoff_of_met_fences | a commit compares with the cutoffs of fences above its begin version only |
| cutoff_lowered | the cutoff of the last fence counts, not the highest one |
| cutoff_included | the collector takes what is as old as the cutoff |
| refused_at_cutoff | a commit refuses what is as old as the cutoff: no harm |
| no_minimum_age | the collector takes files of any age, whatever the cutoff in its fence |
| zero_minimum_age | the minimum age is 0, in the cutoff, too: no harm |
| age_by_file | the time of a file that was uploaded again counts, not that of the id |
| age_by_created_file | the same, but a file that exists is not uploaded again |
| leases_unread | the collector does not read leases |
| writers_after_slots | after the fence it reads the leases of writers with the others, after the slots |
| names_unfenced | it disregards leases that have run out, and its fence does not name them |
| ended_after_fence | after the fence it also disregards leases that have run out since |
| lease_untested | a commit does not look at its lease |
| lease_name_untested | it looks whether its lease exists, and not what fences name |
| lease_file_untested | it does not look whether its lease exists: no harm, only leases that fences name are deleted |
| lease_of_begin | it looks at its lease and at fences for the version at which it began, and not again |
| lease_late | a writer takes its lease after its first upload |
| lease_late_tested | the same, but it looks at the head, as for an id that is not fresh: no harm |
| head_unread | a process whose id is not fresh takes a lease, and does not look at the head |
| lease_kept | a writer leaves its lease after the commit: no harm |
| drop_while_unknown | a writer drops its lease while the outcome of its commit is unknown |
| leases_end_at_once | the collector waits one time to live, not two: no harm while all read one clock |

**Not in the model.** All read one exact clock; a mistake of a clock is what the 120 s of an id and the second time to
live of a lease are for. So the time of an id is that of the first upload, and the times of data files are not compared.
A tree is a set of files; a node is one file. Requests for a whole set of files (upload, listing, deletion) are one step
each; pages of a listing are tried for pins only. A loser tries the next slot without a probe for the head first.
Finding the head, and the first version kept, is one step. Actions name what they remove. One expirer keeps no more than
the head, and nothing holds expiry back. Branches, exports and merges are not there; their pins are those of tags and
restores. Conflicts are only those that the model needs. A saved transaction does not hold back expiry. There is no
repair, no checkpoint, no group of transactions, and no store that is put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol_explorer import Program

ABSENT = 0
NEVER = 1000
"""A time after all others."""


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
    cutoff: int = 0
    """`collected_before`: the highest cutoff of all fences in the history."""


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
    """The bounds of a scenario, and the changes of a protocol."""

    unsafe: str = ""
    clock_max: int = 0
    age_min: int = 2
    """Minimum age of what is collected, in ticks."""
    lease_time: int = 2
    nodes: int = 0
    """The files that are nodes: a commit replaces the node of the version below."""
    leased: bool = False
    """Whether there are leases. Collectors do not look for leases where there are none."""
    writers: bool = False
    """Whether these are leases of writers, which a collector reads before the slots. Readers' leases come last."""
    candidates: bool = False
    """Whether expirers write candidates."""

    def has(self, change: str) -> bool:
        """Return whether the protocol is changed in this way. ` + ` joins several changes."""
        return bool(self.unsafe) and change in self.unsafe.split(" + ")


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
    cutoff: int = 0
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
            cutoff=self.cutoff
            if self.fence and rules.has("cutoff_lowered")
            else max(self.cutoff, base.cutoff),
        )


class Proof(NamedTuple):
    """Why a commit may reference data files that it did not upload since the last fence."""

    kind: str = "none"
    """`none`, `id` (the time in the transaction's id, or a lease), `pin` (the time of its file)."""
    born: int = 0
    lease: int = -1
    """The place of a writer's lease."""

    def holds(self, rules: Rules, cutoff: int, disregarded: int, *, is_leased: bool) -> bool:
        """Return whether a commit may rest on it now, above fences of this cutoff that disregard these leases.
        `is_leased`: whether the file of the lease exists."""
        if self.kind == "none":
            return True
        if rules.has("refused_at_cutoff"):
            return self.born > cutoff
        if self.born >= cutoff or rules.has(f"{self.kind}_untested"):
            return True
        if self.lease < 0:
            return False
        if rules.has("lease_untested"):
            return True
        is_named = disregarded >> self.lease & 1 and not rules.has("lease_name_untested")
        return (is_leased or rules.has("lease_file_untested")) and not is_named


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
        kind = Freed if self.rules.has("freed_slots") else Tombstone
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

    def _find_cutoff(self, store: Store) -> tuple[Store, int]:
        return store, store.clock - (0 if self.rules.has("zero_minimum_age") else self.rules.age_min)

    def _list(self, store: Store, source: str, cutoff: int) -> tuple[Store, Any]:
        """Reply: the cutoff, and files and pins that are older. `source`: everything, or candidates."""
        if cutoff < 0:
            cutoff = self._find_cutoff(store)[1]
        last = cutoff if self.rules.has("cutoff_included") else cutoff - 1
        if self.rules.has("no_minimum_age"):
            last = store.clock
        files = sum(1 << place for place, born in enumerate(store.born) if born <= last) & store.files
        if source == "candidates":
            files &= store.candidates
        pins = sum(1 << place for place, pin in enumerate(store.pins) if pin and pin.born <= last)
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

    def _read_pins(self, store: Store, cutoff: int, named: int, places: int = -1) -> tuple[Store, int]:
        """Reply: the files of the pins that are named, or not older than the cutoff. `places`: of these pins alone."""
        files = 0
        for place, pin in enumerate(store.pins):
            if pin and places >> place & 1 and (named >> place & 1 or pin.born >= cutoff):
                files |= pin.files
        return store, files

    def _write_lease(self, store: Store, place: int, files: int) -> tuple[Store, int]:
        return store._replace(leases=_set(store.leases, place, Lease(files, store.clock, False))), store.clock

    def _renew_lease(self, store: Store, place: int, files: int) -> tuple[Store, int]:
        """Write the same bytes again. Reply: the new time. A reader that is told that the old time ran out stops."""
        old = store.leases[place]
        held = bool(old) and old.held and store.clock - old.born < self.rules.lease_time
        return store._replace(leases=_set(store.leases, place, Lease(files, store.clock, held))), store.clock

    def _renew_lease_if_there(self, store: Store, place: int, files: int) -> tuple[Store, bool]:
        """Write the same bytes again, unless the file was deleted. Reply: whether it was there."""
        return (self._write_lease(store, place, files)[0], True) if store.leases[place] else (store, False)

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
        grace = 1 if self.rules.has("leases_end_at_once") else 2
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


def commit(rules: Rules, wanted: Transaction, proof: Proof, begin: int = -1, source: Any = None) -> Program:
    """FORMAT.md, "Committing" and "What a commit may newly reference". `begin`: the begin version, if it was fixed
    before. `source`: what it restores from."""
    if begin < 0:
        version, root, clock = yield ("find head",)
    else:
        version = begin
        root, clock = yield ("read", begin)
    if root is ABSENT:
        return "lost track"  # only after slots were freed
    if not isinstance(root, Root):
        return "Expired"
    if root.revision > wanted.revision and not rules.has("revision_1_writer"):
        return "newer_format"
    del clock
    used = node = attempt = disregarded = 0
    fenced = judged = is_leased = False
    cutoff = 0 if rules.has("cutoff_of_met_fences") else root.cutoff
    while True:
        # Judge: at the begin version, and again after each version that won.
        if not (judged and rules.has("lease_of_begin")):
            if proof.lease >= 0 and proof.born < cutoff:
                is_leased = (yield ("read lease", proof.lease)) is not ABSENT
            if not proof.holds(rules, cutoff, disregarded, is_leased=is_leased):
                return "Expired"
            is_leased = False
        judged = True
        if wanted.remove & ~root.tree or wanted.untag & ~root.pins:
            return "Conflict"
        if source is not None:
            refusal = yield from _take(rules, source, root, attempt)
            if refusal:
                return refusal
            del refusal
            attempt += 1
            if rules.has("tag_of_begin"):
                source = source._replace(taken=True)
        # 1. Stage. Past a fence every node is uploaded again, under a fresh name.
        if wanted.nodes and (not node or (fenced and not rules.has("reused_uploads"))):
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
            if rules.has("unpin_while_unknown") or rules.has("drop_while_unknown"):
                return "OutcomeUnknown"
            outcome = yield ("put", version, root, "")
        if outcome == "created":
            return "committed"
        # The slot exists: whose is it?
        winner = (yield ("read", version))[0]
        if winner is ABSENT:
            return "lost track"
        if winner.commit == root.commit:
            return "committed"
        if isinstance(winner, Tombstone):
            # It may have been a fence, and it may have been this very transaction.
            if not rules.has("tombstones_passed"):
                return "Expired"
            version, root, clock = yield ("find head",)
            del clock
            continue
        if winner.transaction == wanted.id:
            return "committed before"
        if winner.revision > wanted.revision:
            if not rules.has("revision_1_writer"):
                return "newer_format"
        elif winner.fence:
            fenced = True
            disregarded |= winner.disregarded
        root = winner
        if not rules.has("cutoff_of_begin") and (root.fence or not rules.has("cutoff_of_met_fences")):
            cutoff = root.cutoff
        del winner


class Writer(NamedTuple):
    wanted: Transaction
    data: int = 0
    """Its data file, uploaded before it reads the head: the worst time."""
    lease: int = -1
    renewals: int = 0
    begin: int = -1
    """The begin version, if it was fixed before the first send."""


def write_leased(rules: Rules, me: Writer, id_time: int = -1) -> Program:
    """FORMAT.md, "Leases of writers": the lease is durable before the first upload, is renewed while the upload lasts,
    and is dropped when the outcome is known. `id_time`: another process may have begun to work under this id then, so
    the writer looks at the head once its lease is durable."""
    begin, root, born = yield ("find head",)
    is_late = rules.has("lease_late") or rules.has("lease_late_tested")
    if is_late:
        yield ("upload", me.data)
    yield ("write lease", me.lease, me.data)
    if (id_time >= 0 and not rules.has("head_unread")) or rules.has("lease_late_tested"):
        root = (yield ("find head",))[1]
        if root.cutoff > (born if id_time < 0 else id_time):
            yield ("drop lease", me.lease)
            return "Expired"
    del root
    if not is_late:
        yield ("upload", me.data)
    left = me.renewals
    while left:
        left -= 1
        renewed = yield ("renew lease if there", me.lease, me.data)
        if not renewed:
            left = 0
        del renewed
    wanted = me.wanted
    proof = Proof("id", born if id_time < 0 else id_time, me.lease)
    outcome = yield from commit(rules, wanted, proof, me.begin if me.begin >= 0 else begin)
    if not rules.has("lease_kept"):
        yield ("drop lease", me.lease)
    return outcome


def write(rules: Rules, me: Writer) -> Program:
    """A writer without a lease."""
    if me.data:
        born = yield ("upload", me.data)
        return (yield from commit(rules, me.wanted, Proof("id", born)))
    return (yield from commit(rules, me.wanted, Proof()))


def write_again(rules: Rules, me: Writer, id_time: int) -> Program:
    """A block of work that is run under an id and a begin version that are recorded. Its file has a name that follows
    from the id, so each run uploads the same name."""
    if rules.has("age_by_created_file"):
        born = yield ("upload if absent", me.data)
    else:
        born = yield ("upload", me.data)
    if not rules.has("age_by_file") and not rules.has("age_by_created_file"):
        born = id_time
    return (yield from commit(rules, me.wanted, Proof("id", born), me.begin))


def resume(rules: Rules, me: Writer, id_time: int) -> Program:
    """Another process resumes a saved transaction: it finds the data file and commits under the same id."""
    born = yield ("read time", me.data)
    if born < 0:
        return "not found"
    if not rules.has("age_by_file"):
        born = id_time
    return (yield from commit(rules, me.wanted, Proof("id", born), me.begin))


def expire(rules: Rules, end: int = -1) -> Program:
    """Section 8, "Expiry". Only the head is kept. `end`: a slow expirer that has chosen already."""
    if end < 0:
        end = yield ("find newest",)
    version = yield (("read oldest",) if rules.has("expiry_from_oldest") else ("find first kept",))
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
    pin: int = 0
    """Its pin; a restore has the places from here on for its pins."""
    version: int = 0
    """The version that it pins."""
    source: int = -1
    """The pin of a tag that it takes, in place of a version, or where the version has expired."""
    pin_count: int = 2
    judged: int = -1
    """A restore that has pinned already, and that will be tried on this version."""
    taken: bool = False


def tag(rules: Rules, me: Pinner) -> Program:
    """FORMAT.md, "Tags and pins": pin, then commit the entry that names the pin."""
    if me.source < 0:
        born = yield from _pin_version(rules, me)
    else:
        born = yield from _pin_tag(rules, me)
    if born == "Expired":
        return born
    outcome = yield from commit(rules, me.wanted, Proof("pin", born))
    if outcome == "Expired":
        yield ("drop pin", me.pin)
    return outcome


def tag_by_name(rules: Rules, me: Pinner) -> Program:
    """A tag whose pin has a fresh name, or, unsafe, the name that another process gave its pin."""
    if rules.has("pin_name_reused"):
        me = me._replace(pin=0, wanted=me.wanted._replace(tag=1))
    return (yield from tag(rules, me))


def untag(rules: Rules, me: Pinner) -> Program:
    """Commit the removal of the entry. Collection does the rest."""
    return (yield from commit(rules, me.wanted, Proof()))


def restore(rules: Rules, me: Pinner) -> Program:
    """Restore, rollback, undrop, revert: for each version that the commit is tried on, pin the version, or read the pin
    of a tag. Each pin is left to collection."""
    outcome = yield from commit(rules, me.wanted, Proof(), me.judged, me)
    if rules.has("unpin_after_commit") or rules.has("unpin_while_unknown"):
        yield ("drop pin", me.pin)
    return outcome


def restore_tag(rules: Rules, me: Pinner) -> Program:
    """Restore from a version that a tag names and that may have expired."""
    return (yield from restore(rules, me))


def _take(rules: Rules, me: Pinner, base: Root, attempt: int) -> Program:
    """Make sure that what is restored stays until the commit that is tried on `base`. Return a refusal, or nothing."""
    if (me.judged >= 0 and not attempt) or me.taken or (attempt and rules.has("pinned_once")):
        return ""
    if attempt == me.pin_count:
        return "out of names"
    born = yield from _pin_version(rules, me._replace(pin=me.pin + attempt))
    if born != "Expired":
        if rules.has("unpin_before_commit"):
            yield ("drop pin", me.pin + attempt)
        return ""
    if me.source < 0 or not base.pins >> me.source & 1:
        return "Expired"
    files = yield ("read pin", me.source)
    return "Expired" if me.wanted.add & ~files else ""


def _pin_version(rules: Rules, me: Pinner) -> Program:
    """Write the pin with a copy of the root, then read the slot. Return the pin's time."""
    root = yield ("read slot", me.version)
    if not isinstance(root, Root):
        return "Expired"
    if me.wanted.add & ~root.tree:
        return "Expired"
    if rules.has("pin_after_check"):
        again = yield ("read slot", me.version)
        if not isinstance(again, Root):
            return "Expired"
        return (yield ("write pin", me.pin, root.tree))
    born = yield ("write pin", me.pin, root.tree)
    del root
    if rules.has("pin_check_by_oldest"):
        oldest = yield ("read oldest",)
        found = oldest <= me.version
        del oldest
    else:
        again = yield ("read slot", me.version)
        found = isinstance(again, Root)
        del again
    if not found:
        yield ("drop pin", me.pin)
        return born if rules.has("read_before_pin") else "Expired"
    return born


def _pin_tag(rules: Rules, me: Pinner) -> Program:
    """The source is an entry of the head: copy its pin, then look whether the head still names the source's pin."""
    files = yield from _read_tag(me.source)
    if files is ABSENT:
        return "Expired"
    born = yield ("write pin", me.pin, files)
    del files
    if rules.has("tag_not_checked"):
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
    if rules.has("lease_check_by_oldest"):
        test = ("test lease by hint", me.lease, me.version)
    if rules.has("tag_not_checked"):
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
    """FORMAT.md, "Collection"."""
    outcome = ""
    cutoff = -1
    if rules.has("fence_before_listing") or rules.has("listing_after_fence"):
        cutoff = yield ("find cutoff",)
        outcome = yield from commit(rules, me.fence._replace(cutoff=cutoff), Proof())
        if rules.has("fence_before_listing"):
            cutoff = -1
    # (1) List candidates.
    cutoff, files, pins = yield ("list", me.source, cutoff)
    ended = 0
    if rules.leased:
        ended = yield ("list expired leases",)
    # (2) Mark once without a fence. What is marked counts.
    version = yield (("read oldest",) if rules.has("oldest_trusted") else ("find first kept",))
    named = 0
    if not rules.has("no_first_round"):
        version, named, files = yield from _mark(rules, version, named, files, cutoff, ended)
    pins &= ~named
    if not files and not pins and not ended:
        return "nothing to collect"
    # (3) Commit a fence. It names the cutoff, and the leases that this collection disregards.
    if not outcome and not rules.has("no_fence"):
        named_too = 0 if rules.has("names_unfenced") else ended
        outcome = yield from commit(rules, me.fence._replace(disregarded=named_too, cutoff=cutoff), Proof())
        del named_too
        if outcome != "committed":
            return "no fence"
    if rules.has("ended_after_fence"):
        ended = yield ("list expired leases",)
    # (4) Mark once more: leases of writers, the slots above those that were read, then pins and leases.
    while not rules.has("no_second_round"):
        before = (version, files) if rules.has("repeated_rounds") else None
        again = not rules.has("no_first_round")
        version, named, files = yield from _mark(rules, version, named, files, cutoff, ended, again=again)
        if not rules.has("repeated_rounds") or before == (version, files):
            break
    # (5) Delete what was listed and is not reached.
    before = None
    pins &= ~named
    named = version = 0
    if files or pins or ended:
        yield ("delete", files, pins, ended)
    return "collected"


def _mark(
    rules: Rules, version: int, named: int, files: int, cutoff: int, ended: int, *, again: bool = False
) -> Program:
    """Read the leases of writers, the slots from `version` on, then pins, then other leases.

    Return the next version, the pins that tags name, and the files that are left.
    """
    is_leased = rules.leased and not rules.has("leases_unread")
    is_first = rules.writers and not rules.has("writers_after_slots")
    if is_leased and is_first:
        files &= ~(yield ("list leases", ended))
    if rules.has("pins_before_slots"):
        files &= ~(yield ("read pins", cutoff, 0))
    entry = yield ("read slot", version)
    while entry is not ABSENT:
        version += 1
        if isinstance(entry, Root):
            files &= ~(entry.tree | entry.actions)
            named |= entry.pins
        entry = yield ("read slot", version)
    del entry
    if again and rules.has("later_pins_unread"):
        return version, named, files
    # A pin that no entry names counts unless it is older than the cutoff.
    if rules.has("paged_listing"):
        files &= ~(yield ("read pins", cutoff, named, -2))
        files &= ~(yield ("read pins", cutoff, named, 1))
    else:
        is_named_only = rules.has("pins_before_slots") or rules.has("young_pins_unread")
        files &= ~(yield ("read pins", NEVER if is_named_only else cutoff, named))
        del is_named_only
    if is_leased and not is_first:
        files &= ~(yield ("list leases", ended))
    return version, named, files


def settle(rules: Rules, store: Store, collectors: tuple[Collector, Collector]) -> str:
    """Stop every actor, let all times run out, expire, and collect twice. Return what is left though nothing reaches
    it, or nothing. Puts that have not landed never do."""
    storage = Storage(rules._replace(unsafe=""), store)
    store = store._replace(delayed=(), clock=store.clock + 2 * rules.lease_time + rules.age_min + 1)
    store = _run_alone(storage, store, expire(storage.rules))
    for collector in collectors:
        store = _run_alone(storage, store, collect(storage.rules, collector))
        store = store._replace(clock=store.clock + rules.age_min + 1)
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
