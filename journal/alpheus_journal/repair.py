"""Repair a catalog after a store lost versions: a person has to decide (FORMAT.md, "Actions and transactions").

`survey` looks at a prefix, `plan` makes a plan from the survey alone, and `carry_out` carries it out. The log records
what the person accepts. No slot is freed, and no existing version is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities, RandomIdentities, SystemClock
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.journal import Journal
from alpheus_journal.log.times import duration_text, time_text
from alpheus_journal.log.versions import Log
from alpheus_journal.model.answers import Timestamp
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import VersionRange, merge_ranges, ranges_of
from alpheus_journal.model.operations import LostVersion, Repair
from alpheus_journal.replay import evidence
from alpheus_journal.replay.evidence import Unlinked
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.history import DEFINITIONS_AT_ONCE
from alpheus_journal.replay.opening import open_log, recorded_definition
from alpheus_journal.storage import Storage

RANGES_SHOWN_MAX = 5
TRANSACTIONS_SHOWN_MAX = 20
FOREGONE_MAX = 1000
"""The most versions that are looked at below a head that was not made on them."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a person.

    - `accept_head`: take the newest existing version as the head, and give up versions known above it.
    - `times`: where the head's time is in the future, restart the times of versions.
    """

    accept_head: bool = False
    times: bool = False


class Foregone(msgspec.Struct, frozen=True, kw_only=True):
    """Versions below a head that was not made on them, and of which the head has nothing, ascending."""

    head: Unlinked
    versions: tuple[LostVersion, ...]
    transactions: tuple[str, ...]
    """The transactions of these versions, ascending: a text each, with id, principal and message."""
    is_all: bool
    """False when there may be more such versions below."""

    @property
    def range(self) -> VersionRange:
        return VersionRange(max(self.versions[0].version, 1), self.versions[-1].version)

    def __str__(self) -> str:
        these = self.range
        more = "" if self.is_all else " and perhaps more below"
        shown = "; ".join(self.transactions[:TRANSACTIONS_SHOWN_MAX])
        left = len(self.transactions) - TRANSACTIONS_SHOWN_MAX
        if left > 0:
            shown += f"; and {left} more"
        return f"{these}{more}, of {len(self.transactions)} transactions: {shown}"


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """The damaged file of the catalog's definition, with the bytes that version 0 recorded."""

    path: str
    data: bytes
    damage: str


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a prefix, as far as a repair needs it."""

    catalog_id: str
    head: int
    """The newest existing version."""
    holes: tuple[VersionRange, ...] = ()
    """Free slots below the head that no repair gave up."""
    head_lacks: str = ""
    """A missing or damaged part of the head's tree, where there are holes. Empty when the tree is whole."""
    hint: int | None = None
    """The version that `vn/latest` names, where it is above the head and its slot is free."""
    lost: tuple[LostVersion, ...] = ()
    """Missing versions that files of `checkpoint/` know, ascending."""
    created_at_millis: int = 0
    """The head's time, where it is more than 60 s ahead of this machine's clock, `now_millis`. Otherwise both are 0."""
    now_millis: int = 0
    ahead_since: tuple[int, int] = (0, 0)
    """The number and time of the first version whose time is ahead of this machine's clock, where the head's is."""
    foregone: Foregone | None = None
    """Set where the head was not made on the version below it."""
    definition: Rewritten | None = None
    """Set where the catalog's definition is damaged and can be written again. Nothing else was looked at then."""
    files: tuple[str, ...] = ()
    """Files of `checkpoint/` whose names name a missing version."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a catalog.

    `mended_by` is the option that the plan lacks, or what a person has to do. Empty means that the plan mends it.
    """

    kind: str
    message: str
    version: int
    path: str
    mended_by: str = ""
    is_minor: bool = False
    """True when the other steps can be done without mending this problem."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a repair.

    `do` is "record" (a version with a REPAIR action), "delete" (a file of `checkpoint/`), "hint" (`vn/latest`) or
    "definition" (of the catalog, and nothing else).
    """

    do: str
    path: str
    text: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The problems, and the steps that mend them. There are no steps while a problem needs another remedy."""

    head_version: int
    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    repair: Repair | None = None
    definition: Rewritten | None = None

    @property
    def is_complete(self) -> bool:
        return not any(problem.mended_by and not problem.is_minor for problem in self.problems)

    def check(self) -> None:
        """Raise Corrupt when the plan leaves a problem."""
        for problem in self.problems:
            if problem.mended_by and not problem.is_minor:
                raise Corrupt(
                    problem.message,
                    kind=problem.kind,
                    path=problem.path,
                    version=problem.version,
                    hint=problem.mended_by,
                )


# --- survey ----------------------------------------------------------------------------------------


async def survey(storage: Storage, *, clock: Clock | None = None) -> Survey:
    """Look at all slots and hints. Changes nothing.

    Reads the head's root, and files that know of missing versions. Where slots are free it also reads the head's tree
    and definitions. Raises the errors of `Journal.open`.
    """
    log = await Log.open(storage)
    named = await evidence.named_versions(
        log
    )  # before the slots are listed: a named version was stored earlier
    hint = await log.hint(fmt.LATEST_HINT)
    taken = {version async for version in evidence.list_slots(log)}
    follower = await open_log(storage, past_damage=True, known=max(taken, default=0))
    log, head = follower.log, follower.head.version
    if follower.damage is not None:
        return await _damaged(follower, follower.damage)
    free = [
        version for version in range(head) if version not in taken and log.given_up_range(version) is None
    ]
    holes = ranges_of(
        [version for version in free if not await log.exists(version)]
    )  # other processes may write meanwhile
    clock = clock or SystemClock()
    journal = Journal(follower, clock, RandomIdentities(clock))
    ahead, created = journal.head_ahead_millis, journal.head.created_at_millis
    missing = {path: version for path, version in named.items() if version not in taken and version != head}
    unlinked = None if follower.around is None else follower.around.unlinked
    foregone = None if unlinked is None else await _foregone(follower, unlinked)
    return Survey(
        catalog_id=journal.catalog_id,
        head=head,
        holes=holes,
        head_lacks=await _lacking(follower) if holes else "",
        hint=hint if hint is not None and hint > head and hint not in taken else None,
        lost=await evidence.find_lost(log, journal.catalog_id, missing.items()),
        foregone=foregone,
        files=tuple(sorted(missing)),
        created_at_millis=created if ahead else 0,
        now_millis=created - ahead if ahead else 0,
        ahead_since=await _first_ahead(journal, created - ahead) if ahead else (0, 0),
    )


async def _first_ahead(journal: Journal, now_millis: int) -> tuple[int, int]:
    """Return the oldest version whose time is after `now_millis`, and that time. The head must have such a time."""
    try:
        first = (await journal.resolve(Timestamp(now_millis))).version + 1
    except Expired as error:
        first = error.oldest or 0
    except NotFound:
        first = 0
    return first, (await journal.resolve(first)).created_at_millis


async def _damaged(follower: Follower, damage: Corrupt) -> Survey:
    """Return the survey of a damaged catalog definition whose bytes version 0 recorded. Raises any other damage."""
    path = follower.head.catalog_def
    recorded = await recorded_definition(follower.log, path)
    if recorded is None or damage.path != path:
        raise damage
    data = encode_definition(recorded, checksum=recorded.format_revision >= 2)
    return Survey(
        catalog_id=follower.catalog_id,
        head=follower.head.version,
        definition=Rewritten(path=path, data=data, damage=damage.message),
    )


async def _lacking(follower: Follower) -> str:
    """Return a part of the head's tree that cannot be read, or "". A restore may delete more than roots."""
    try:
        entries = await (await follower.snapshot()).entries()
        for start in range(0, len(entries), DEFINITIONS_AT_ONCE):
            part = entries[start : start + DEFINITIONS_AT_ONCE]
            kinds = {path: follower.reader.keys.parse(key).kind for key, path in part}
            for stored in (await follower.reader.stored(kinds)).values():
                if stored.damage:
                    return str(stored.damage)
    except Corrupt as error:
        return error.message
    return ""


async def _foregone(follower: Follower, unlinked: Unlinked) -> Foregone:
    """Find the versions below the head that the head does not descend from.

    The search goes down to the first version that left an object which the head has, too. Definitions have random
    names, so the head descends from that version.
    """
    head = unlinked.version
    snapshot = await follower.snapshot(head)
    names = {follower.reader.keys.parse(key): path for key, path in await snapshot.entries()}
    names[fmt.CATALOG] = snapshot.catalog_def
    versions, transactions, is_all = list[LostVersion](), list[str](), False
    for version in range(head - 1, max(head - 1 - FOREGONE_MAX, -1), -1):
        try:
            root = await follower.root(version)
        except AlpheusError:
            break
        effects = [
            effect
            for recorded in root.transactions
            for action in recorded.actions
            for effect in action.effects
        ]
        is_all = not version or any(
            effect.path_after != effect.path_before and names.get(effect.name) == effect.path_after
            for effect in effects
        )
        if is_all and versions:  # the head's link says that it was not made on the version just below
            break
        versions.append(LostVersion(version=version, commit_id=root.commit_id, known_from=root.path))
        transactions += [
            f"{recorded.id} in version {version}"
            + (f" by {recorded.principal}" if recorded.principal else "")
            + (f" ({recorded.message})" if recorded.message else "")
            for recorded in reversed(root.transactions)
        ]
    return Foregone(
        head=unlinked, versions=tuple(versions[::-1]), transactions=tuple(transactions[::-1]), is_all=is_all
    )


# --- plan ------------------------------------------------------------------------------------------


def plan(found: Survey, asked: Asked) -> Plan:
    """Make a plan for a survey and a request. Pure."""
    if found.definition is not None:
        return _plan_rewriting(found, found.definition)
    missing = tuple(_find_missing(found, "" if asked.accept_head else "alpheus repair --accept-head"))
    if found.foregone is not None:
        missing = (_unlinked_problem(found.foregone, asked.accept_head), *missing)
    if found.holes:
        missing = (_hole_problem(found, asked.accept_head), *missing)
    skew = tuple(_find_skew(found, "" if asked.times else "alpheus repair --times"))
    made = Plan(head_version=found.head, problems=(*missing, *skew), steps=())
    accepts, resets_times = bool(missing and asked.accept_head), bool(skew and asked.times)
    if not made.is_complete or not (accepts or resets_times):
        return made
    lost = [one for one in found.lost if one.version > found.head or _lies_in(one.version, found.holes)]
    if found.foregone is not None:
        lost += found.foregone.versions
    if found.hint is not None and found.hint not in [one.version for one in lost]:
        lost.append(LostVersion(version=found.hint, known_from=fmt.LATEST_HINT))
    lost.sort(key=lambda one: one.version)
    repair = None
    given_up = [*found.holes]
    if found.foregone is not None and found.head > 1:  # version 0 cannot be given up
        given_up.append(found.foregone.range)
    if not accepts:
        given_up = []
    if (lost and accepts) or given_up or resets_times:
        repair = Repair(
            head_version=found.head,
            lost=tuple(lost) if accepts else (),
            times_up_to_millis=found.created_at_millis if resets_times else 0,
            given_up=merge_ranges(given_up),
        )
    return msgspec.structs.replace(made, steps=tuple(_steps(found, repair)), repair=repair)


def _plan_rewriting(found: Survey, definition: Rewritten) -> Plan:
    problem = Problem(
        kind="corrupt_definition", message=definition.damage, version=found.head, path=definition.path
    )
    text = f"write {definition.path} again, byte for byte, from the action of version 0 that made it"
    return Plan(
        head_version=found.head,
        problems=(problem,),
        steps=(Step(do="definition", path=definition.path, text=f"{text}; then run alpheus repair again"),),
        definition=definition,
    )


def _hole_problem(found: Survey, is_accepted: bool) -> Problem:
    holes = _list_ranges(found.holes)
    restore = "stop all writers and restore the missing roots, or the whole prefix, from a copy"
    message = f"the newest version is {found.head}, and versions below it are missing: {holes}"
    if found.head_lacks:
        message += f"; version {found.head} is not whole either: {found.head_lacks}"
        mended_by = f"{restore}; versions up to {found.holes[0].first - 1} can be read with --at"
    elif is_accepted:
        mended_by = ""
    else:
        mended_by = (
            f"{restore}; or give them up: alpheus repair --accept-head continues above version {found.head}"
        )
        mended_by += ", whose tree is whole, and keeps what that tree has of them"
    return Problem(
        kind="history_replaced",
        message=message,
        version=found.holes[0].first,
        path="",
        mended_by=mended_by,
    )


def _lies_in(version: int, ranges: Sequence[VersionRange]) -> bool:
    return any(one.first <= version <= one.last for one in ranges)


def _list_ranges(ranges: Sequence[VersionRange]) -> str:
    shown = ", ".join(str(one) for one in ranges[:RANGES_SHOWN_MAX])
    more = len(ranges) - RANGES_SHOWN_MAX
    return shown if more <= 0 else f"{shown} and {more} more ranges"


def _find_missing(found: Survey, mended_by: str) -> Iterable[Problem]:
    for one in found.lost:
        if one.version < found.head:
            if not _lies_in(one.version, found.holes):  # otherwise the hole reports it
                yield Problem(
                    kind="head_missing",
                    message=f"{one.known_from} names version {one.version}, which an unfinished repair gave up",
                    version=one.version,
                    path=one.known_from,
                    mended_by=mended_by,
                )
            continue
        yield Problem(
            kind="head_missing",
            message=f"version {one.version} is missing: {one.known_from} knows it as {one.commit_id};"
            f" the newest existing version is {found.head}",
            version=one.version,
            path=one.known_from,
            mended_by=mended_by,
        )
    if found.hint is not None:
        yield Problem(
            kind="head_missing",
            message=f"{fmt.LATEST_HINT} names version {found.hint}, which is missing;"
            f" the newest existing version is {found.head}",
            version=found.hint,
            path=fmt.LATEST_HINT,
            mended_by=mended_by,
        )


def _unlinked_problem(found: Foregone, is_accepted: bool) -> Problem:
    version = found.head.version
    return Problem(
        kind="history_replaced",
        message=f"version {version} was made on {found.head.made_on}, but version {version - 1} is {found.head.below}:"
        " the storage was restored to an older state, and two histories were written on it. The head has nothing of"
        f" {found}",
        version=version,
        path="",
        mended_by=""
        if is_accepted
        else f"restore the prefix from a copy without version {version}; or run alpheus repair --accept-head, which"
        f" keeps version {version} and gives up those below it: they stay readable with --at {version - 1}",
    )


def _find_skew(found: Survey, mended_by: str) -> Iterable[Problem]:
    if found.created_at_millis:
        ahead = duration_text(found.created_at_millis - found.now_millis)
        first, first_millis = found.ahead_since
        went_on = found.created_at_millis - first_millis
        by_a_clock = (
            f". Versions {first} to {found.head} have times in the future that span {duration_text(went_on)}, as by a"
            " running clock: if that clock is right, set this machine's clock, because a repair cannot be undone"
            if went_on > fmt.CLOCK_SKEW_MILLIS_MAX
            else ""
        )
        yield Problem(
            kind="clock_skew",
            message=f"the time of version {found.head} is {time_text(found.created_at_millis)}, {ahead} ahead of this"
            f" machine's clock, which says {time_text(found.now_millis)}: a writer's clock was wrong, or this clock"
            f" is{by_a_clock}",
            version=found.head,
            path="",
            mended_by=mended_by,
            is_minor=True,
        )


def _steps(found: Survey, repair: Repair | None) -> Iterable[Step]:
    if repair is not None and repair.times_up_to_millis:
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which restarts the times of versions: its own time is"
            f" {time_text(found.now_millis)} or later, by this machine's clock",
        )
    if repair is not None and found.holes and repair.given_up:
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head, and that the"
            f" missing versions below it are given up: {_list_ranges(found.holes)}",
        )
    if repair is not None and found.foregone is not None and repair.given_up:
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head although it was"
            f" not made on version {found.head - 1}, and that it has nothing of {found.foregone}",
        )
    above = [one for one in repair.lost if one.version > found.head] if repair is not None else []
    if above:
        given_up = ", ".join(str(one.version) for one in above)
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head, and that the"
            f" versions known above it are given up: {given_up}",
        )
    for path in found.files:
        yield Step(do="delete", path=path, text=f"delete {path}")
    if found.hint is not None:
        yield Step(do="hint", path=fmt.LATEST_HINT, text=f"write {fmt.LATEST_HINT} again")


# --- carry out -------------------------------------------------------------------------------------


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that were done. `version` is the version that records the repair; None when it needed no record."""

    version: int | None
    steps: tuple[Step, ...]


async def carry_out(
    storage: Storage,
    plan: Plan,
    *,
    principal: str = "",
    clock: Clock | None = None,
    identities: Identities | None = None,
) -> Repaired:
    """Carry out the steps of a plan, in order. The next repair finishes a repair that was killed on the way.

    Raises Corrupt for a plan that leaves a problem, InvalidInput when another process has written since the survey, and
    the errors of a commit. After an error nothing was written, or the log records what was.
    """
    plan.check()
    if plan.definition is not None:
        await storage.put(plan.definition.path, plan.definition.data)
        return Repaired(version=None, steps=plan.steps)
    journal = await Journal.open(storage, clock=clock, identities=identities, known=plan.head_version)
    try:
        return Repaired(version=await _do(journal, plan, principal), steps=plan.steps)
    finally:
        await journal.detach()


async def _do(journal: Journal, plan: Plan, principal: str) -> int | None:
    version = None
    if plan.steps and journal.head.version != plan.head_version:
        raise InvalidInput(
            f"the head is version {journal.head.version}, but it was {plan.head_version} when this was planned:"
            " another process is writing",
            hint="stop all writers and run alpheus repair again",
        )
    for step in plan.steps:
        match step.do:
            case "record" if version is None:  # one version for all of it
                assert plan.repair is not None
                version = (await journal.commit_repair(plan.repair, principal=principal)).version
            case "delete":
                await journal.storage.delete(step.path)
            case "hint":
                await journal.storage.put(fmt.LATEST_HINT, str(journal.head.version).encode())
    return version
