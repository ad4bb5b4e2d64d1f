"""Four writers on one store in a simulated world, for many seeds; and proof that broken writers are found.

    python tests/faults/test_simulation.py SEED            replay one seed
    python tests/faults/test_simulation.py FIRST:END       a range; --done FILE: skip and record the seeds that passed

The simulated world is in `alpheus_journal/testing/simulation/loop.py`. Beside it, `world.py` has the clients and
`verdict.py` the checks. This file has the daemon's writer and hub as one of the fronts, the lanes, and the broken
variants.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

from alpheus_daemon.serve.watch import Hub, Poller
from alpheus_daemon.serve.writer import Writer, settle
from alpheus_daemon.telemetry import logs as telemetry
from alpheus_journal import format as fmt
from alpheus_journal.collect import collection
from alpheus_journal.collect.candidates import Candidates
from alpheus_journal.collect.collection import _Run
from alpheus_journal.collect.reach import Reach
from alpheus_journal.commit import judge
from alpheus_journal.commit.committer import Answer, Committer
from alpheus_journal.commit.idempotency import Load, Retries
from alpheus_journal.commit.publish import Publisher
from alpheus_journal.conflicts import rules as conflicts
from alpheus_journal.conflicts.facets import Aspect, Stake
from alpheus_journal.conflicts.rules import Rule, Stakes
from alpheus_journal.errors import AlpheusError, Expired, OutcomeUnknown, Unavailable
from alpheus_journal.execute.rules import rows as row_operations
from alpheus_journal.execute.rules.row_changes import RowExecution
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Collection, Committed, Event, Outcome, StoredObject
from alpheus_journal.model.definition_messages import decode_definition, encode_definition
from alpheus_journal.model.definitions import Segment
from alpheus_journal.model.operations import (
    ChangeMode,
    CreateCatalog,
    Operation,
    Read,
    Repair,
    Transaction,
    UpgradeCatalog,
)
from alpheus_journal.replay.follower import Follower
from alpheus_journal.replay.state import Head
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.testing.simulation import requests
from alpheus_journal.testing.simulation.clients import PATIENCE_SECONDS, GroupFront, LibraryFront
from alpheus_journal.testing.simulation.loop import LaxStorage, SimulatedLoop
from alpheus_journal.testing.simulation.world import Parts, Plan, Report, simulate
from alpheus_journal.wire.messages import EventsQuery, decode_event
from alpheus_journal.workspace.workspace import Workspace
from alpheus_pb.v1 import service_pb2 as pb

SCRIPT = Path(__file__)
SEEDS_SMALL, SEEDS_FULL = 10, 2000
WORKERS = 2
BROKEN_SEEDS_MAX = 60


class DaemonFront:
    """The daemon's writer as a front, with its hub and its poller. One task commits all that is queued in one
    version."""

    def __init__(self, journal: Journal, loop: SimulatedLoop) -> None:
        self._journal = journal
        self._writer = Writer(
            journal,
            group_count_max=4,
            group_bytes_max=1 << 20,
            queue_count_max=16,
            queue_bytes_max=1 << 20,
            timeout_seconds=PATIENCE_SECONDS,
            ahead_count_min=2,
            monotonic=loop.time,
        )
        self._hub = Hub(
            journal,
            subscribers_max=4,
            batch_count_max=3,
            batch_bytes_max=1 << 20,
            scan_count_max=5,
            ring_bytes_max=1 << 13,
            heartbeat_seconds=1.0,
        )
        poller = Poller(
            journal, interval_min_seconds=0.02, interval_max_seconds=0.5, randomness=random.Random(0)
        )
        for running in (self._writer.run(), self._hub.run(), poller.run()):
            loop.create_task(running).add_done_callback(loop.must_succeed)

    async def commit(self, transactions: Sequence[Transaction]) -> list[Committed | AlpheusError]:
        answers = await asyncio.gather(
            *(self._writer.submit(transaction, size_bytes=100) for transaction in transactions),
            return_exceptions=True,
        )
        for answer in answers:
            if not isinstance(answer, Committed | AlpheusError):
                assert isinstance(answer, BaseException)
                raise answer
        return answers  # type: ignore[return-value]

    async def settle(self, transaction_id: str, since: int) -> Outcome:
        return await settle(self._journal, self._writer, transaction_id, since)

    async def events(self, after: int | str) -> AsyncGenerator[Event, None]:
        async with contextlib.aclosing(self._hub.stream(EventsQuery(after=after, follow=True))) as deliveries:
            async for delivery in deliveries:
                response = pb.EventsResponse.FromString(delivery.message)
                assert response.progress_token == delivery.token
                for message in response.events:
                    event = decode_event(message)
                    assert event.version <= response.progress_version == delivery.version
                    yield event


FRONTS = (LibraryFront, GroupFront, DaemonFront)
PARTS = Parts(fronts=FRONTS)


def replay_hint(seed: int) -> str:
    return f"replay: python tests/faults/{SCRIPT.name} {seed}"


def run(seed: int, parts: Parts = PARTS) -> Report:
    telemetry.configure("error")
    return simulate(seed, parts=parts)


# --- the lanes

COUNTED = (
    "versions",
    "expired",
    "collected",
    "commits",
    "refused",
    "unknown",
    "reads",
    "events",
    "skipped",
    "kills",
    "serializable",
    "keyed",
    "streamed",
    "overruled",
    "linearized",
)
LEASES = ("lease_readers", "lease_writers", "lease_lost", "lease_kept")
OPERATIONS = [
    operation.__name__
    for operation in get_args(Operation)
    if operation not in (CreateCatalog, Repair, UpgradeCatalog)
]
CHANGES = (
    "append", "overwrite_all", "restore", "undrop", "rename", "add_level", "compact", "overtaken", "merged", "hiding",
    "delete_on_read", "update_on_read", "merge_on_read", "overwrite_on_read",
    "delete_mixed", "update_mixed", "merge_mixed", "overwrite_mixed",
    "delete_rewriting", "update_rewriting", "merge_rewriting", "overwrite_rewriting",
)  # fmt: skip
"""Changes of rows that have a model (`lakeside`)."""
CHANGES_SMALL = ("append", "merged", "hiding")
"""The changes that occur even in few seeds. There, some changes hide rows and others rewrite them (`MODES`)."""
MODES = ("_on_read", "_rewriting")
RARE = ("CommitIceberg", "ReplaceView", "DropView", "ReplaceTag", "DropSubscription")
OPERATIONS_SMALL = [name for name in OPERATIONS if name not in RARE]
"""The operations that occur even in few seeds."""


def line_of(report: Report) -> str:
    counts = {name: int(getattr(report, name)) for name in COUNTED}
    counts |= {f"lease_{name}": count for name, count in sorted(report.leases.items())}
    counts |= {**dict(sorted(report.operations.items())), **dict(sorted(report.changes.items()))}
    return f"{report.seed} trace={report.trace} " + " ".join(f"{k}={v}" for k, v in counts.items())


def totals_of(lines: Sequence[str]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for line in lines:
        for part in line.split()[2:]:
            name, _, count = part.partition("=")
            totals[name] += int(count)
    return totals


def test_simulated_catalogs(lane_count: Callable[[int, int], int], tmp_path: Path) -> None:
    """Seeds from 0, in two processes. With ALPHEUS_SIMULATION_DONE=FILE a stopped run resumes after the seeds that
    passed."""
    count = lane_count(SEEDS_SMALL, SEEDS_FULL)
    done = Path(os.environ.get("ALPHEUS_SIMULATION_DONE", tmp_path / "done"))
    commands = [
        [
            sys.executable,
            str(SCRIPT),
            f"0:{count}",
            "--share",
            f"{first}/{WORKERS}",
            "--done",
            f"{done}.{first}",
        ]
        for first in range(WORKERS)
    ]
    # Output goes to files: a process whose pipe is full would wait until the earlier processes have ended.
    told = [Path(f"{done}.{first}.told") for first in range(WORKERS)]
    processes = []
    for command, path in zip(commands, told, strict=True):
        with path.open("w") as file:
            processes.append(subprocess.Popen(command, stdout=file))
    for process, path in zip(processes, told, strict=True):
        assert process.wait() == 0, path.read_text()[-6000:]
    reports = [line for first in range(WORKERS) for line in Path(f"{done}.{first}").read_text().splitlines()]
    assert len({line.split()[0] for line in reports}) == count
    totals = totals_of(reports)
    print(dict(totals))
    # If an operation never occurs in a lane, the lane does not test it.
    expected = (*OPERATIONS, *CHANGES) if count == SEEDS_FULL else (*OPERATIONS_SMALL, *CHANGES_SMALL)
    assert not {name for name in (*COUNTED, *LEASES, *expected) if not totals[name]}, totals
    assert all(any(totals[name] for name in CHANGES if name.endswith(mode)) for mode in MODES), totals
    assert totals["commits"] > 12 * count


def test_a_seed_repeats_in_any_process() -> None:
    """A seed gives the same trace in any process, whatever the hash seed."""
    traces = set()
    for hash_seed in ("1", "2"):
        output = subprocess.run(
            [sys.executable, str(SCRIPT), "4"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        traces.add(output)
    assert len(traces) == 1, traces
    assert "trace=" in traces.pop()


# --- broken variants: the simulation must find each

LONG_TO_FIND = {
    "goes on over expired versions",
    "trusts the hint",
    "compacts too late",
    "hides additions of others",
    "moves rows that were hidden",
    "ignores files that went",
    "ignores that all rows were replaced",
    "writes rows again that were hidden",
    "ignores hidden rows that were read",
    "restores without predicates",
    "forgets predicates too early",
}
"""The variants that take ten seconds or more to find, in the world of today. A short run leaves them out."""


def opening(break_it: Callable[[Journal], None]) -> Parts:
    async def open_broken(storage: Any, *, clock: Any, identities: Any) -> Journal:
        journal = await Journal.open(storage, clock=clock, identities=identities)
        break_it(journal)
        return journal

    return Parts(fronts=FRONTS, open=open_broken)


class Hasty(Publisher):
    """Continues after an unknown outcome without settling it."""

    async def settle(self, deadline_millis: int | None) -> bool:
        with contextlib.suppress(AlpheusError):
            await self._follower.refresh()
        self._unsettled = None
        return False


class Pessimist(Committer):
    """Reports an unknown outcome as a failure."""

    async def commit_group(self, transactions: Sequence[Transaction], **options: Any) -> list[Answer]:
        answers = await super().commit_group(transactions, **options)
        return [
            Unavailable(answer.message) if isinstance(answer, OutcomeUnknown) else answer
            for answer in answers
        ]


class Forgetful(Publisher):
    """Does not recognize its own root in the slot."""

    async def _find_holder(self, staged: Any) -> str | None:
        holder = await super()._find_holder(staged)
        return None if holder is None else "somebody else"


class Trusting(Follower):
    """Trusts a hint that names nothing newer, three times in a row."""

    believed = 0

    async def _advance(self) -> None:
        hint = await self.log.hint(fmt.LATEST_HINT)
        if hint is not None and hint <= self.head.version and self.believed < 3:
            self.believed += 1
            return
        self.believed = 0
        await super()._advance()


class Skipping(Follower):
    """Takes the newest version and skips those between."""

    async def _advance(self) -> None:
        newest = await self.log.head(self.head.version)
        while self.head.version < newest:
            root = await self.log.read(newest)
            record = await self.record_of(root, self.head.root, self.head.catalog_def)
            definitions = await self.definitions_of(record)
            if self.head.version >= newest:
                return
            self.state = None  # the state would notice
            self.head = self._head_of(await self.log.read(newest - 1)) if newest else self.head
            self.accept(self._head_of(root), record, definitions)


class Hushing(Follower):
    """Skips expired events silently."""

    async def event(self, version: int, *, details: bool = False) -> Event:
        try:
            return await super().event(version, details=details)
        except Expired as error:
            if error.oldest is None or error.oldest >= self.head.version:
                raise
            return await self.event(error.oldest + 1, details=details)


class Keyless(Follower):
    """Never finds a retry key."""

    async def find_by_key(self, key: str) -> None:
        return None


class Unread(Retries):
    """Forgets what serializable transactions read."""

    async def answer(self, stakes: Stakes, head: Head, load: Load) -> Answer:
        stakes.claims = [claim for claim in stakes.claims if not isinstance(claim.cause, Read)]
        return await super().answer(stakes, head, load)


class Unmarked(Retries):
    """Does not look at the writer marks of tables."""

    async def _answer_from_writer(self, transaction: Transaction, load: Load) -> None:
        return None


class Careless(Retries):
    """Continues when versions that it would have to look at have expired."""

    async def _answer_since_begin(self, stakes: Stakes) -> Answer:
        answer = await super()._answer_since_begin(stakes)
        return None if isinstance(answer, Expired) else answer


def retries(broken: type[Retries]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal._committer._judge._retries = broken(journal.follower)

    return opening(break_it)


def committer(broken: type[Committer]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal._committer = broken(journal.follower, journal._clock, journal._identities)

    return opening(break_it)


def publisher(broken: type[Publisher]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal._committer._publisher.__class__ = broken

    return opening(break_it)


def follower(broken: type[Follower]) -> Parts:
    def break_it(journal: Journal) -> None:
        journal.follower.__class__ = broken

    return opening(break_it)


HARSH = Plan(
    writers=3, steps=10, disasters=8, fault_rate=0.1, names_fresh_rate=0.1, reads_rate=0.7, key_rate=0.3
)
EXPIRING = msgspec.structs.replace(
    HARSH, disasters=24, fault_rate=0.0, reads_rate=0.9, key_rate=0.0, collect_weight=0
)
CALM = msgspec.structs.replace(HARSH, disasters=0)
LOSING = msgspec.structs.replace(HARSH, disasters=0, fault_rate=0.3, reads_rate=0.0)
STREAMING = msgspec.structs.replace(HARSH, rows_rate=0.8, reads_rate=0.0, key_rate=0.0, fault_rate=0.0)
PLANS = {
    "hides expired events": EXPIRING,
    "goes on over expired versions": EXPIRING,
    "reports an unknown outcome as a failure": LOSING,
    "ignores its own commit id": LOSING,
    "skips writer marks": STREAMING,
    "skips versions": CALM,
}
"""The plans in which a variant's mistake matters often. The other variants use the plan that is harsh in every way."""

BROKEN: dict[str, Parts] = {
    "rebases without settling": publisher(Hasty),
    "reports an unknown outcome as a failure": committer(Pessimist),
    "ignores its own commit id": publisher(Forgetful),
    "trusts the hint": follower(Trusting),
    "skips versions": follower(Skipping),
    "hides expired events": follower(Hushing),
    "forgets the retry keys": follower(Keyless),
    "ignores reads of serializable transactions": retries(Unread),
    "skips writer marks": retries(Unmarked),
    "goes on over expired versions": retries(Careless),
    "the store ignores the condition": Parts(fronts=FRONTS, store=LaxStorage),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_variants_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    if name in LONG_TO_FIND and not lane_count(0, 1):
        pytest.skip("ten seconds or more: make slow LANE=broken_variants")
    if name == "skips writer marks":  # a group looks at the marks by itself, and would wait forever
        monkeypatch.setattr(judge, "_was_written", lambda transaction, workspace: False)
        monkeypatch.setattr(row_operations, "_check_not_written", lambda name, mark, context: None)
    find(name, PLANS.get(name, HARSH), BROKEN[name])


SHORT = Plan(
    writers=2,
    steps=30,
    disasters=24,
    fault_rate=0.02,
    names_fresh_rate=0.02,
    rows_rate=0.6,
    reads_rate=0.1,
    key_rate=0.0,
    short_rate=0.3,
    collect_weight=200,
)
"""Tables lose data files before the versions that list them, and tags are made of these versions."""


def test_tables_with_short_rules_lose_only_what_their_starts_say(
    lane_count: Callable[[int, int], int],
) -> None:
    lacking = sum(simulate(seed, SHORT).lacking for seed in range(lane_count(4, 400)))
    assert lacking > 20


@pytest.mark.parametrize("name", ["tags hide what they lack", "marks before the fence alone"])
def test_collections_that_break_promises_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "tags hide what they lack":
        monkeypatch.setattr(requests, "find_lacking", lambda starts, version: {})
    else:
        mark, marked = collection._Run.mark, set[int]()

        async def mark_once(run: collection._Run, cutoff_millis: int) -> None:
            if id(run) not in marked:
                marked.add(id(run))
                await mark(run, cutoff_millis)

        monkeypatch.setattr(collection._Run, "mark", mark_once)
    find(name, SHORT, Parts())


def find(name: str, plan: Plan, parts: Parts) -> None:
    """Fail unless some seed finds the variant."""
    telemetry.configure("error")
    for seed in range(BROKEN_SEEDS_MAX):
        try:
            simulate(seed, plan, parts)
        except (AssertionError, AlpheusError, ExceptionGroup) as error:
            reason = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            assert isinstance(reason, AssertionError | AlpheusError), repr(reason)
            print(f"{name}: found after {seed + 1} seeds: {reason!r}"[:300])
            return
    pytest.fail(f"{name}: not found in {BROKEN_SEEDS_MAX} seeds")


# --- broken executions of row changes: the simulation must find each

Break = Callable[[pytest.MonkeyPatch], None]


def method(owner: type, name: str, broken: Callable[..., Any]) -> Break:
    """Replace a method by `broken`, which gets the real method and its arguments."""
    real = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, lambda *given: broken(real, *given))


def rule(stake: Stake, aspect: Aspect) -> Break:
    """Remove the collision between this stake and this aspect."""
    off = Rule(retryable=True, collides=lambda claim, touch: False)
    return lambda patch: patch.setitem(conflicts.RULES, (stake, aspect), off)


def _finds_all(real: Any, change: RowExecution, contents: Any, removed: Any, taken: Any) -> None:
    for content, segment in zip(contents, removed, strict=True):
        for file, sequence in zip(content.files, content.sequences(segment).to_pylist(), strict=True):
            taken.entries.setdefault(file.path, (file.row_count, file.size_bytes, sequence))


def _looks_for_nothing(real: Any, change: RowExecution) -> None:
    if change._mine:
        change._refuse_additions()
        change._refuse_hidden()


def _hides_additions(real: Any, change: RowExecution) -> None:
    if change._definition.id in change._context.brought:
        change.hides_up_to = change._definition.sequence


def _compacted_at(by: int) -> Break:
    def broken(real: Any, change: RowExecution, taken: Any) -> int:
        compacts = change._operation.mode is ChangeMode.COMPACT
        return int(max(real(change, taken) + by * compacts, 0))

    return method(RowExecution, "outputs_sequence", broken)


def _hiding_up_to(by: int) -> Break:
    def broken(real: Any, change: RowExecution, sequence: int) -> Any:
        for one in real(change, sequence):
            yield msgspec.structs.replace(one, sequence=max(one.sequence + by, 0))

    return method(RowExecution, "new_predicates", broken)


def _sequences_of_segments(real: Any, content: Content, segment: Segment) -> Any:
    return pa.array([segment.sequence] * content.batch.num_rows, pa.int64())


def _past_without_predicates(real: Any, workspace: Workspace, version: int, name: Any) -> Any:
    stored = real(workspace, version, name)
    if stored is None or name.kind is not Kind.TABLE:
        return stored
    table = decode_definition(Kind.TABLE, stored.definition, stored.path)
    bare = msgspec.structs.replace(table, delete_predicates=())
    return StoredObject(stored.path, encode_definition(bare))


BROKEN_ROWS: dict[str, Break] = {
    "takes files out that went": method(RowExecution, "_check_entries", _finds_all),  # rule 1
    "updates rows that it did not see": method(RowExecution, "refuse_rivals", _looks_for_nothing),  # rule 2
    "writes rows again that were hidden": method(  # rule 3
        RowExecution, "_refuse_hidden_in", lambda real, change, contents, taken: None
    ),
    "hides additions of others": method(RowExecution, "_refuse_additions", _hides_additions),  # rule 4
    "moves rows that were hidden": method(
        RowExecution, "_refuse_hidden", lambda real, change: None
    ),  # rule 5
    "compacts too late": _compacted_at(1),
    "compacts too early": _compacted_at(-1),
    "hides too much": _hiding_up_to(1),
    "hides too little": _hiding_up_to(-1),
    "forgets predicates too early": lambda patch: patch.setattr(
        row_operations,
        "_drop_spent_predicates",
        lambda name, predicates, segments, *, is_longer: predicates[-1:],
    ),
    "forgets the sequences of files": method(Content, "sequences", _sequences_of_segments),
    "restores without predicates": method(Workspace, "past", _past_without_predicates),
    "ignores files that went": rule(Stake.MATCHED_ROWS, Aspect.ROWS_REWRITTEN),
    "ignores that all rows were replaced": rule(Stake.MOVED_ROWS, Aspect.ROWS_REPLACED),
    "ignores hidden rows that were read": rule(Stake.SEEN_ROWS, Aspect.ROWS_HIDDEN),
}
CHANGING = msgspec.structs.replace(
    HARSH, changes_rate=0.9, disasters=2, fault_rate=0.02, reads_rate=0.3, key_rate=0.0
)


ROW_PLANS = {
    "writes rows again that were hidden": msgspec.structs.replace(CHANGING, changes="aaddd"),
    "moves rows that were hidden": msgspec.structs.replace(CHANGING, changes="addum"),
    "ignores files that went": msgspec.structs.replace(CHANGING, changes="aaddd"),
    "ignores that all rows were replaced": msgspec.structs.replace(CHANGING, changes="aAAuum"),
    "ignores hidden rows that were read": msgspec.structs.replace(CHANGING, changes="aadd", reads_rate=1.0),
}


@pytest.mark.parametrize("name", BROKEN_ROWS)
def test_broken_changes_of_rows_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    if name in LONG_TO_FIND and not lane_count(0, 1):
        pytest.skip("ten seconds or more: make slow LANE=broken_changes")
    BROKEN_ROWS[name](monkeypatch)
    find(name, ROW_PLANS.get(name, CHANGING), PARTS)


# --- broken upkeep: the simulation must find each


async def _commit_no_fence(real: Any, run: Any, commit: Any, cutoff: int) -> int:
    return 0


async def _mark_once(real: Any, run: Any, cutoff: int) -> Any:
    if run._first >= 0:
        run._last = (await run._follower.refresh()).version
        return Collection(cutoff_millis=cutoff)
    return await real(run, cutoff)


async def _skip(real: Any, *given: Any) -> None:
    """Do nothing."""


def _keeping(real: Any, candidates: Any, paths: Any, by: str, root: str = "") -> None:
    real(candidates, [path for path in paths if not path.startswith("manifest/")], by, root)


# A commit of old files must be judged above the fence and reach its slot after the deletion: that is so rare here that
# the bounded model (tests/protocol) tests the rules about ids and about leases that ran out.
BROKEN_UPKEEP: dict[str, Break] = {
    "collects without a fence": method(_Run, "commit_fence", _commit_no_fence),
    "marks before the fence alone": method(_Run, "mark", _mark_once),
    "marks no pins": method(_Run, "_mark_pins", _skip),
    "marks no leases": method(_Run, "_mark_leases", _skip),
    "keeps no uploads of writers": method(_Run, "_mark_writers", _skip),
    "marks what trees reach alone": method(Reach, "_add_action", lambda real, *given: None),
    "marks no segments": method(Candidates, "keep", _keeping),
}
COLLECTING = Plan(
    writers=3, steps=14, disasters=16, fault_rate=0.02, rows_rate=0.6, reads_rate=0.3, collect_weight=200
)


@pytest.mark.parametrize("name", BROKEN_UPKEEP)
def test_broken_upkeep_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, lane_count: Callable[[int, int], int]
) -> None:
    if name != "marks no segments" and not lane_count(0, 1):
        pytest.skip("five seconds or more: make slow LANE=broken_upkeep")
    BROKEN_UPKEEP[name](monkeypatch)
    find(name, COLLECTING, PARTS)


# --- the script


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeds of the simulation.")
    parser.add_argument("seeds", help="SEED or FIRST:END")
    parser.add_argument(
        "--share", default="0/1", help="N/OF: of each OF fours of seeds the N-th, so that shares weigh alike"
    )
    parser.add_argument("--done", default="", help="file of seeds that passed: skipped, and added to")
    options = parser.parse_args()
    numbers = [int(part) for part in options.seeds.split(":")]
    seeds = range(*numbers) if len(numbers) > 1 else range(numbers[0], numbers[0] + 1)
    share, shares = (int(part) for part in options.share.split("/"))
    done = Path(options.done) if options.done else None
    passed = {line.split()[0] for line in done.read_text().splitlines()} if done and done.exists() else set()
    for seed in seeds:
        if seed // 4 % shares != share or str(seed) in passed:
            continue
        try:
            report = run(seed)
        except BaseException:
            print(replay_hint(seed), flush=True)
            import traceback

            traceback.print_exc(file=sys.stdout)
            return 1
        line = line_of(report)
        print(line, flush=True)
        if done:
            with done.open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
