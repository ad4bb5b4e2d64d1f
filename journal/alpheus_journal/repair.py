"""Repair: what a person has to decide where a store lost versions (FORMAT.md, "Actions and transactions").

`survey` looks at a prefix, `plan` says what would be done about it, without a look at anything else, and `carry_out`
does it. What is accepted is recorded in the log; no slot is freed and no version that is there is touched.
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
from alpheus_journal.model.definitions import VersionRange, ranges_of, united
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
"""Versions below a head that was not made on them that are looked at."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks for. `accept_head`: the newest version that is there is the head, and what is known above it
    is given up. `times`: where the head's time is in the future, the times of versions count anew."""

    accept_head: bool = False
    times: bool = False


class Foregone(msgspec.Struct, frozen=True, kw_only=True):
    """What lies below a head that was not made on it: versions of which the head holds nothing, ascending."""

    head: Unlinked
    versions: tuple[LostVersion, ...]
    transactions: tuple[str, ...]
    """Theirs: id, principal, message, as a text each, ascending."""
    is_all: bool
    """False: they are so many that there may be more below."""

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
    """The file of the catalog's definition, which is damaged, as version 0 recorded it."""

    path: str
    data: bytes
    damage: str


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What lies under a prefix, as far as repair needs it."""

    catalog_id: str
    head: int
    """The newest version that is there."""
    holes: tuple[VersionRange, ...] = ()
    """Free slots below it that no repair gave up."""
    head_lacks: str = ""
    """What of the head's tree is not there or damaged, where there are holes; empty: nothing is."""
    hint: int | None = None
    """What `vn/latest` names, where that is above the head and its slot is free."""
    lost: tuple[LostVersion, ...] = ()
    """What files of `checkpoint/` know of versions that are not there, ascending."""
    created_at_millis: int = 0
    """Of the head, where that is more than 60 s in the future of this machine's clock, `now_millis`; else both 0."""
    now_millis: int = 0
    ahead_since: tuple[int, int] = (0, 0)
    """The first version whose time is ahead of this machine's clock, where the head's is: its number and that time."""
    foregone: Foregone | None = None
    """Where the head was not made on the version below it."""
    definition: Rewritten | None = None
    """Where the catalog's definition is damaged and can be written anew: then nothing else was looked at."""
    files: tuple[str, ...] = ()
    """Files of `checkpoint/` whose names say a version that is not there."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """`mended_by`: the option that this plan lacks, or what a person has to do; empty: the plan mends it."""

    kind: str
    message: str
    version: int
    path: str
    mended_by: str = ""
    is_minor: bool = False
    """It keeps nothing else from being done."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`do`: "record" (a version with a REPAIR action), "delete" (a file of `checkpoint/`), "hint" (`vn/latest`),
    "definition" (the catalog's, alone)."""

    do: str
    path: str
    text: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and what will be done. Nothing is done while a problem needs something else."""

    head_version: int
    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    repair: Repair | None = None
    definition: Rewritten | None = None

    @property
    def is_complete(self) -> bool:
        return not any(problem.mended_by and not problem.is_minor for problem in self.problems)

    def check(self) -> None:
        """Raises Corrupt when it leaves a problem."""
        for problem in self.problems:
            if problem.mended_by and not problem.is_minor:
                raise Corrupt(
                    problem.message,
                    kind=problem.kind,
                    path=problem.path,
                    version=problem.version,
                    hint=problem.mended_by,
                )


# --- looking ---------------------------------------------------------------------------------------


async def survey(storage: Storage, *, clock: Clock | None = None) -> Survey:
    """Look at all slots and hints. Reads the head's root, and files that know of more than there is; where slots are
    free, the head's tree and definitions as well. Changes nothing.

    Raises as `Journal.open`.
    """
    log = await Log.open(storage)
    named = await evidence.named_versions(log)  # what is named was there, if it ever was
    hint = await log.hint(fmt.LATEST_HINT)
    taken = {version async for version in evidence.list_slots(log)}
    follower = await open_log(storage, past_damage=True, known=max(taken, default=0))
    log, head = follower.log, follower.head.version
    if follower.damage is not None:
        return await _damaged(follower, follower.damage)
    free = [version for version in range(head) if version not in taken and log.gave_up(version) is None]
    holes = ranges_of(
        [version for version in free if not await log.exists(version)]
    )  # others may write meanwhile
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
    """The oldest version whose time is after `now_millis`, and that time; the head has such a time."""
    try:
        first = (await journal.resolve(Timestamp(now_millis))).version + 1
    except Expired as error:
        first = error.oldest or 0
    except NotFound:
        first = 0
    return first, (await journal.resolve(first)).created_at_millis


async def _damaged(follower: Follower, damage: Corrupt) -> Survey:
    """What is to be done about a catalog definition of which version 0 tells the bytes. Raises other damage."""
    path = follower.head.catalog_def
    recorded = await recorded_definition(follower.log, path)
    if recorded is None or damage.path != path:
        raise damage
    data = encode_definition(recorded)
    return Survey(
        catalog_id=follower.catalog_id,
        head=follower.head.version,
        definition=Rewritten(path=path, data=data, damage=damage.message),
    )


async def _lacking(follower: Follower) -> str:
    """What of the head's tree cannot be read: a restore deletes more than roots."""
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
    """Down from the version below the head to the first that left an object that the head has, too: definitions have
    random names, so the head goes back to that one."""
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
        if is_all and versions:  # the one just below is another one, as the link says
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


# --- planning --------------------------------------------------------------------------------------


def plan(found: Survey, asked: Asked) -> Plan:
    """What is to be done. Pure."""
    if found.definition is not None:
        return _rewriting(found, found.definition)
    missing = tuple(_missing(found, "" if asked.accept_head else "alpheus repair --accept-head"))
    if found.foregone is not None:
        missing = (_unlinked(found.foregone, asked.accept_head), *missing)
    if found.holes:
        missing = (_hole(found, asked.accept_head), *missing)
    skew = tuple(_skew(found, "" if asked.times else "alpheus repair --times"))
    made = Plan(head_version=found.head, problems=(*missing, *skew), steps=())
    accepts, counts_anew = bool(missing and asked.accept_head), bool(skew and asked.times)
    if not made.is_complete or not (accepts or counts_anew):
        return made
    lost = [one for one in found.lost if one.version > found.head or _lies_in(one.version, found.holes)]
    if found.foregone is not None:
        lost += found.foregone.versions
    if found.hint is not None and found.hint not in [one.version for one in lost]:
        lost.append(LostVersion(version=found.hint, known_from=fmt.LATEST_HINT))
    lost.sort(key=lambda one: one.version)
    repair = None
    given_up = [*found.holes]
    if found.foregone is not None and found.head > 1:  # version 0 is what the catalog is
        given_up.append(found.foregone.range)
    if not accepts:
        given_up = []
    if (lost and accepts) or given_up or counts_anew:
        repair = Repair(
            head_version=found.head,
            lost=tuple(lost) if accepts else (),
            times_up_to_millis=found.created_at_millis if counts_anew else 0,
            given_up=united(given_up),
        )
    return msgspec.structs.replace(made, steps=tuple(_steps(found, repair)), repair=repair)


def _rewriting(found: Survey, definition: Rewritten) -> Plan:
    problem = Problem(
        kind="corrupt_definition", message=definition.damage, version=found.head, path=definition.path
    )
    text = f"write {definition.path} anew, from the action of version 0 that made it, byte for byte"
    return Plan(
        head_version=found.head,
        problems=(problem,),
        steps=(Step(do="definition", path=definition.path, text=f"{text}; then run alpheus repair again"),),
        definition=definition,
    )


def _hole(found: Survey, is_accepted: bool) -> Problem:
    holes = _shown(found.holes)
    restore = "stop all writers and restore the missing roots, or the whole prefix, from a copy"
    message = f"the newest version is {found.head}, and below it are missing: {holes}"
    if found.head_lacks:
        message += f"; nor is version {found.head} whole: {found.head_lacks}"
        mended_by = f"{restore}; up to version {found.holes[0].first - 1} all is readable with --at"
    elif is_accepted:
        mended_by = ""
    else:
        mended_by = (
            f"{restore}; or give them up: alpheus repair --accept-head goes on above version {found.head}"
        )
        mended_by += ", whose tree is whole, and with what that holds of them"
    return Problem(
        kind="history_replaced",
        message=message,
        version=found.holes[0].first,
        path="",
        mended_by=mended_by,
    )


def _lies_in(version: int, ranges: Sequence[VersionRange]) -> bool:
    return any(one.first <= version <= one.last for one in ranges)


def _shown(ranges: Sequence[VersionRange]) -> str:
    shown = ", ".join(str(one) for one in ranges[:RANGES_SHOWN_MAX])
    more = len(ranges) - RANGES_SHOWN_MAX
    return shown if more <= 0 else f"{shown} and {more} more ranges"


def _missing(found: Survey, mended_by: str) -> Iterable[Problem]:
    for one in found.lost:
        if one.version < found.head:
            if not _lies_in(one.version, found.holes):  # else it is told with the hole
                yield Problem(
                    kind="head_missing",
                    message=f"{one.known_from} tells of version {one.version}, which a repair gave up without coming"
                    " to its end",
                    version=one.version,
                    path=one.known_from,
                    mended_by=mended_by,
                )
            continue
        yield Problem(
            kind="head_missing",
            message=f"version {one.version} was {one.commit_id}, says {one.known_from}, and is not there;"
            f" the newest that is there is {found.head}",
            version=one.version,
            path=one.known_from,
            mended_by=mended_by,
        )
    if found.hint is not None:
        yield Problem(
            kind="head_missing",
            message=f"{fmt.LATEST_HINT} names version {found.hint}, which is not there;"
            f" the newest that is there is {found.head}",
            version=found.hint,
            path=fmt.LATEST_HINT,
            mended_by=mended_by,
        )


def _unlinked(found: Foregone, is_accepted: bool) -> Problem:
    version = found.head.version
    return Problem(
        kind="history_replaced",
        message=f"version {version} was made on {found.head.made_on}, and version {version - 1} is {found.head.below}:"
        f" the storage was put back, and written on by two. The head holds nothing of {found}",
        version=version,
        path="",
        mended_by=""
        if is_accepted
        else f"restore the prefix from a copy in which version {version} was not written yet; or alpheus repair"
        f" --accept-head keeps version {version} and gives those below it up: they stay readable with --at"
        f" {version - 1}",
    )


def _skew(found: Survey, mended_by: str) -> Iterable[Problem]:
    if found.created_at_millis:
        ahead = duration_text(found.created_at_millis - found.now_millis)
        first, first_millis = found.ahead_since
        went_on = found.created_at_millis - first_millis
        by_a_clock = (
            f". Versions {first} to {found.head} have times in the future, and these went on for"
            f" {duration_text(went_on)}, as by a clock: if it is right, set this machine's, for what a repair records"
            " cannot be taken back"
            if went_on > fmt.CLOCK_SKEW_MILLIS_MAX
            else ""
        )
        yield Problem(
            kind="clock_skew",
            message=f"the time of version {found.head} is {time_text(found.created_at_millis)}, {ahead} in the future"
            f" of this machine's clock, which says {time_text(found.now_millis)}: the clock of a writer was wrong, or"
            f" this one is{by_a_clock}",
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
            text=f"write version {found.head + 1}, from which on the times of versions count anew: its own is"
            f" {time_text(found.now_millis)} or later, by this machine's clock",
        )
    if repair is not None and found.holes and repair.given_up:
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head and what is"
            f" missing below it is given up: {_shown(found.holes)}",
        )
    if repair is not None and found.foregone is not None and repair.given_up:
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head, though it was"
            f" not made on version {found.head - 1}, and what the head does not hold is lost to it: {found.foregone}",
        )
    above = [one for one in repair.lost if one.version > found.head] if repair is not None else []
    if above:
        given_up = ", ".join(str(one.version) for one in above)
        yield Step(
            do="record",
            path="",
            text=f"write version {found.head + 1}, which records that version {found.head} is the head and what was"
            f" known above it is given up: {given_up}",
        )
    for path in found.files:
        yield Step(do="delete", path=path, text=f"delete {path}")
    if found.hint is not None:
        yield Step(do="hint", path=fmt.LATEST_HINT, text=f"write {fmt.LATEST_HINT} anew")


# --- doing -----------------------------------------------------------------------------------------


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """`version`: the one that records it; None: nothing needed to be recorded."""

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
    """Do what a plan says, in its order: what is killed on the way is found and finished by the next repair.

    Raises Corrupt for a plan that leaves a problem, InvalidInput when others wrote since the survey, and as a commit.
    Nothing was written then, or what was is recorded.
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
            f"the head is version {journal.head.version}, and was {plan.head_version} when this was planned:"
            " others write meanwhile",
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
