"""Declaring a pipeline: its jobs with their inputs and outputs, and what they are run, tried and looked at with."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import msgspec

from alpheus.callables import check_plain
from alpheus.catalog import Catalog
from alpheus.models import Commit
from alpheus.pipeline import declarations, positions
from alpheus.pipeline.jobs import Input, Job, RunResult, Start
from alpheus.pipeline.lake import JobLake
from alpheus.pipeline.positions import JobStatus
from alpheus.pipeline.runner import Runner
from alpheus.session.arguments import Name, When, parse_name, parse_when, texts, words
from alpheus_journal import format as fmt
from alpheus_journal.errors import Conflict, InvalidInput, NotFound
from alpheus_journal.format import Kind

F = TypeVar("F", bound=Callable[[Any], object])
Frame = TypeVar("Frame")

RETRIES_MAX = 1000
BACKOFF_SECONDS_MAX = 86_400.0
EVERY_SECONDS_MAX = 366 * 86_400.0
LEASE_SECONDS_DEFAULT = 10.0
LEASE_SECONDS_MAX = 3600.0
VERSIONS_MAX = 1_000_000
RECORD_ATTEMPTS = 5


def changes(table: Name, start: Start = "snapshot") -> Input:
    """What came into the table and went out of it since the last run.

    `run.read` gives its rows with `_change_type` ("insert", "delete", "update_preimage", "update_postimage"),
    `_commit_version`, `_commit_timestamp` and `_transaction_id`, not netted: a row that was inserted and then
    overwritten comes twice.

    `start` says what the first run gets, and a full refresh, and the first run after the input was declared:

    * "snapshot": all rows of the version that it reads, as inserts of that version, without a transaction;
    * "now": nothing; the next run gets what changed since;
    * a version, or a time (aware datetime, RFC 3339 text with a zone): what changed after it, as if the job had
      worked in everything up to there. All rows, when the table was made later. `Expired`, and the job is parked,
      when that part of history is gone.
    """
    return _input("changes", table, start, trigger=True)


def appends(table: Name, start: Start = "snapshot") -> Input:
    """The rows that came into the table since the last run. `start` as of `changes`.

    Rows that went out in between are an error (InvalidInput naming the version): they are worked in already. But what
    was appended and taken back by a restore, all since the last run, was never there.
    """
    return _input("appends", table, start, trigger=True)


def table(name: Name, trigger: bool = False) -> Input:
    """The whole table at the version of the run. Unless `trigger`, changes of it give the job no work."""
    if not isinstance(trigger, bool):
        raise InvalidInput(f"trigger={trigger!r} is neither True nor False")
    return _input("table", name, "snapshot", trigger=trigger)


def _input(mode: Literal["changes", "appends", "table"], name: Name, start: Start, *, trigger: bool) -> Input:
    found = _table_name(name)
    if start not in ("snapshot", "now"):
        if start is None or start == "latest":
            raise InvalidInput(f'start={start!r}: write "now" for what is committed from now on')
        try:
            parse_when(start)
        except InvalidInput as error:
            error.hint = '"snapshot", "now", a version, or a time with a zone such as 2026-03-01T12:00:00Z'
            raise
    return Input(mode=mode, namespace=found[0], name=found[1], trigger=trigger, start=start)


def _table_name(name: Name) -> tuple[str, str]:
    found = parse_name(Kind.TABLE, name)
    fmt.check_name(found.namespace, fmt.NAME_SIZE_BYTES_MAX, "namespace")
    fmt.check_name(found.name, fmt.NAME_SIZE_BYTES_MAX, "table")
    return found.namespace, found.name


_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds_of(every: object) -> float | None:
    """The period that a user gave: seconds, a timedelta, or text such as "90s", "15m", "1h30m", "1d". InvalidInput."""
    found: float | None = None
    if every is None:
        return None
    if isinstance(every, timedelta):
        found = every.total_seconds()
    elif isinstance(every, str):
        match = _SPAN.fullmatch(every.strip())
        if match is not None and any(match.groups()):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            found = float(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
    elif isinstance(every, int | float) and not isinstance(every, bool):
        found = float(every)
    if found is None or not 0 < found <= EVERY_SECONDS_MAX:
        raise InvalidInput(
            f"every={every!r} is no period",
            hint='seconds, a timedelta, or text such as "90s", "15m", "1h30m", "1d"; at most 366 days',
        )
    return found


class Pipeline:
    """A named set of jobs; the name is that of the entry in the catalog that holds their positions.

    `retries` and `backoff`: a job whose function raises is called again so often, after so many seconds, twice
    as many after the next failure and so on; then it is parked. `Unavailable` and `OutcomeUnknown` count as no
    failure: the job waits until the catalog is back.

    `on_expired`: when the history since a job's position is gone, "fail" parks it, "full" makes that run a full one
    (see `run`); so it is parked all the same when others wrote to its outputs.

    `lease`: seconds. A process that calls a job's function says so in an object beside the catalog, three times a
    lease, and others that find work in the same job meanwhile wait; when it falls silent they go on. So a step is
    rarely computed twice when several processes run one pipeline. That is all it does: what commits is decided by
    the position in the catalog alone, with or without a lease. 0: none, for a pipeline that one process runs.

    Positions go by the job's name and its tables: an input may get another key and goes on where it was, and a
    table that is renamed is followed. An input that is new to a job that ran before is begun as its `start` says;
    a key that is declared with another table, of which the job read nothing yet, parks it, and so do tables of
    which it read none, and an output that was dropped and made anew, without the rows that it had.

    The catalog records the tables that a job is declared with, by id. A job that does not read or write one of them
    any more is taken for another one (of another pipeline of this name, perhaps) and is not called until it is
    adopted (`run`, `adopt`); one that writes more is not called until a full run, or until `from_now` is asked for.
    A job that is new begins anew; but one with the very tables of a recorded one that is not declared any more was
    renamed: give it the old `name`, or rename the position (`alpheus.pipeline.positions.rename`, `alpheus pipeline
    rename`).
    """

    def __init__(
        self,
        name: str,
        retries: int = 3,
        backoff: float = 30,
        on_failure: str = "park",
        on_expired: str = "fail",
        lease: float = LEASE_SECONDS_DEFAULT,
    ) -> None:
        fmt.check_name(name, fmt.EXTENSION_NAME_SIZE_BYTES, "pipeline", creating=True)
        if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
            raise InvalidInput(f"retries={retries!r}: 0 to {RETRIES_MAX}")
        if isinstance(backoff, bool) or not isinstance(backoff, int | float):
            raise InvalidInput(f"backoff={backoff!r} is no number of seconds")
        if not 0 <= backoff <= BACKOFF_SECONDS_MAX:
            raise InvalidInput(f"backoff={backoff!r}: 0 to {BACKOFF_SECONDS_MAX:g} seconds")
        if on_failure != "park":
            raise InvalidInput(f'on_failure={on_failure!r}: "park" is all that can be done about it')
        if on_expired not in ("fail", "full"):
            raise InvalidInput(f'on_expired={on_expired!r}: "fail" or "full"')
        if isinstance(lease, bool) or not isinstance(lease, int | float):
            raise InvalidInput(f"lease={lease!r} is no number of seconds")
        if lease != 0 and not 1 <= lease <= LEASE_SECONDS_MAX:
            raise InvalidInput(f"lease={lease!r}: 1 to {LEASE_SECONDS_MAX:g} seconds, or 0 for none")
        self.name = name
        self.retries = retries
        self.backoff = float(backoff)
        self.on_expired = on_expired
        self.lease = float(lease)
        self._jobs: dict[str, Job] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self._jobs) or 'no jobs'}>"

    @property
    def jobs(self) -> Mapping[str, Job]:
        """In the order of declaration."""
        return dict(self._jobs)

    # -- declaring

    def job(
        self,
        *,
        inputs: Mapping[str, Input],
        outputs: Sequence[Name],
        when: str = "any",
        every: object = None,
        max_versions: int | None = None,
        serializable: bool = False,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Declare the decorated function as a job, named like it (or `name`).

        It is called with a `JobRun`, and returns when everything is written that shall commit. It may be called
        again for the same versions, so whatever else it does must bear repetition.

        `when`: whether "any" of the triggering inputs must have something new, or "all" of them.

        `every`: seconds, a timedelta, or text such as "15m" or "1h". The job is called when it has work and so much
        time has passed since it was called for its last run (by the clocks of who called it). A job without
        triggering inputs must have it, and is called each period. A first run and a full refresh wait for neither.

        `max_versions`: a run works in at most so many versions that changed its triggering inputs, and reads the
        catalog as of the last of them (not back behind what the run before it read; with `when="all"` on to where
        each input has something new); outputs commit at the head as ever. A job's own outputs, read as `table`, are
        always as they are now.

        `serializable`: the commit conflicts, and the function is called again, when an input advanced meanwhile, so
        that at the version of the commit the outputs follow from the inputs of that same version. A busy input
        starves such a job.

        Raises InvalidInput for a job that could never be right: a name taken, neither a triggering input nor `every`,
        an output that would trigger the job itself, or other jobs in a circle.
        """
        if when not in ("any", "all"):
            raise InvalidInput(f'when={when!r}: "any" or "all"')
        seconds = seconds_of(every)
        checked_inputs = _check_inputs(inputs, periodic=seconds is not None)
        checked_outputs = _check_outputs(outputs)
        _check_bounds(checked_inputs, max_versions, serializable)

        def declare(function: F) -> F:
            job = Job(
                name=name if name is not None else getattr(function, "__name__", ""),
                function=function,
                inputs=checked_inputs,
                outputs=checked_outputs,
                when=cast(Literal["any", "all"], when),
                every=seconds,
                max_versions=max_versions,
                serializable=serializable,
            )
            self._add(job)
            return function

        return declare

    def _add(self, job: Job) -> None:
        fmt.check_name(job.name, fmt.EXTENSION_NAME_SIZE_BYTES, "job", creating=True)
        check_plain(f"job {job.name}", job.function)
        if job.name in self._jobs:
            raise InvalidInput(f"pipeline {self.name} has a job {job.name} already", kind="bad_name")
        circle = _find_cycle([*self._jobs.values(), job])
        if circle:
            raise InvalidInput(
                f"job {job.name} would give itself work for ever: {' → '.join(circle)}",
                hint="read the table with trigger=False",
            )
        self._jobs[job.name] = job

    # -- running

    def run(
        self,
        lake: JobLake,
        params: Mapping[str, str] | None = None,
        full_refresh: bool = False,
        jobs: str | Sequence[str] | None = None,
        adopt: bool = False,
        from_now: bool = False,
    ) -> list[RunResult]:
        """Call every job that has work, once, in the order of declaration; one result a job. `jobs`: only these.

        So a job sees what the ones before it wrote. Each commits by itself. `params` reach the functions and are
        recorded with the position. `full_refresh` calls every job as if for the first time: its outputs are
        emptied in the transaction that fills them; Conflict, before anything runs, when others wrote to them
        (or once their job is due, for rows that came meanwhile; jobs before it have committed then).

        A job that is declared with other tables than the catalog has recorded of it is not called: its result is
        "parked", nothing is written, and the job as it is recorded may go on elsewhere (see `job`). `adopt`: this
        declaration takes the place of the recorded one. `from_now`: an output that is new to a job gets only what its
        runs bring from now on.

        A job that another process is calling is waited for. When Spark ends under a job, what the job raised comes out
        of here and of `serve`, and nothing is parked.
        """
        chosen = self._choose_jobs(jobs)
        runner = Runner(lake, self, params=texts("params", params), jobs=chosen)
        self._record(lake, chosen, adopt=adopt, from_now=from_now)
        return runner.run(full_refresh=full_refresh)

    def serve(
        self,
        lake: JobLake,
        params: Mapping[str, str] | None = None,
        on_result: Callable[[RunResult], object] | None = None,
        stop: threading.Event | None = None,
        jobs: str | Sequence[str] | None = None,
        adopt: bool = False,
        from_now: bool = False,
    ) -> None:
        """Call jobs whenever their inputs have something new, until SIGTERM, Ctrl-C or `stop`. `jobs`: only these.
        `adopt` and `from_now` as of `run`, once, at the beginning.

        The first SIGTERM lets the call that runs finish; a second one, like Ctrl-C, abandons it, which loses
        nothing. `on_result` is called with each result but "nothing". Several processes may serve one
        pipeline: one of them commits each step, the others drop theirs, or wait (`lease`). InvalidInput without jobs.
        """
        chosen = self._choose_jobs(jobs)
        if not chosen:
            raise InvalidInput(f"pipeline {self.name} has no jobs to serve")
        runner = Runner(lake, self, params=texts("params", params), jobs=chosen)
        self._record(lake, chosen, adopt=adopt, from_now=from_now)
        runner.serve(on_result=on_result, stop=stop)

    def adopt(
        self,
        lake: JobLake | Catalog,
        jobs: str | Sequence[str] | None = None,
        from_now: bool = False,
    ) -> Commit | None:
        """Let this declaration take the place of the one that the catalog has recorded, at the recorded positions;
        None: it has it already. `jobs`: only of these. Inputs of which the recorded job worked in nothing begin as
        their `start` says. Outputs that it did not have still wait for a full run, or get what comes `from_now` on."""
        return self._record(lake, self._choose_jobs(jobs), adopt=True, from_now=from_now)

    def _record(
        self, lake: JobLake | Catalog, jobs: Sequence[Job], *, adopt: bool, from_now: bool
    ) -> Commit | None:
        if not adopt and not from_now:
            return None
        for left in range(RECORD_ATTEMPTS - 1, -1, -1):
            try:
                chosen = [job.name for job in jobs]
                return declarations.record(
                    _catalog_of(lake), self.name, self._jobs, chosen, adopt=adopt, from_now=from_now
                )
            except Conflict as conflict:  # a run moved the position meanwhile
                if not conflict.retryable or not left:
                    raise
        raise AssertionError("an attempt ends or raises")

    def _choose_jobs(self, jobs: str | Sequence[str] | None) -> list[Job]:
        """NotFound (`no_job`) for one that is not declared."""
        wanted = None if jobs is None else words("jobs", jobs)
        for name in wanted or ():
            self._find_job(name)
        return [job for job in self._jobs.values() if wanted is None or job.name in wanted]

    def _find_job(self, job: str) -> Job:
        if job not in self._jobs:
            names = ", ".join(self._jobs)
            raise NotFound(
                f"pipeline {self.name} has no job {job!r}", kind="no_job", hint=f"it has {names or 'none'}"
            )
        return self._jobs[job]

    def test(
        self,
        spark: Any,
        job: str,
        inputs: Mapping[str, Frame],
        params: Mapping[str, str] | None = None,
        outputs: Mapping[str, Frame] | None = None,
        whole: Mapping[str, Frame] | None = None,
        full: bool | None = None,
    ) -> dict[str, Frame]:
        """Call a job's function with given rows, without a catalog; what the outputs hold then, by full name, of those
        that it wrote to.

        `inputs`: what `run.read` gives of each. Frames of `changes` inputs may have `_change_type`, and come as inserts
        without it; the other columns of changes are filled in. `outputs`: rows that are there before, and the columns
        of their tables; of others those of what is written to them. `whole`: what `run.whole` gives where that is not
        the frame itself. `full`: whether it is a full run (`run.is_full`), for which outputs hold nothing; None: when
        no frame has `_change_type` and no output holds rows.

        Every verb does what it does to a table without required columns and defaults, whose partition keys are those
        that `overwrite(partitions=)` names. Raises what the function raises, and as a run does for names that were not
        declared.
        """
        # By name, so that no module here depends on Spark: whoever gives a session has imported it.
        trial: Any = importlib.import_module("alpheus.spark.job_trial")
        return trial.tried(  # type: ignore[no-any-return]
            spark,
            self._find_job(job),
            inputs,
            params=texts("params", params),
            outputs=outputs or {},
            whole=whole or {},
            full=full,
        )

    # -- looking after it; these take a plain Catalog too

    def status(self, lake: JobLake | Catalog) -> list[JobStatus]:
        """Where each declared job stands. Of one that is new `error` says which of its tables is not there. One that
        would not be called, as it is declared otherwise than the catalog has recorded, is "parked"."""
        catalog = _catalog_of(lake)
        triggers = {
            job.name: {key: value.full_name for key, value in job.triggers.items()}
            for job in self._jobs.values()
        }
        found = positions.status(catalog, self.name, triggers)
        refused = declarations.refusals(catalog, self.name, self._jobs)
        found = [
            msgspec.structs.replace(each, state="parked", error=refused[each.job])
            if each.job in refused
            else each
            for each in found
        ]
        return [
            _name_missing_tables(catalog, self._jobs[each.job], each) if each.state == "new" else each
            for each in found
        ]

    def resume(self, lake: JobLake | Catalog, job: str) -> None:
        """Unpark a job: it goes on from where it was. Nothing happens to one that is not parked.

        NotFound (`no_job`) for one that is not declared or never ran, Conflict when it moved meanwhile.
        """
        self._find_job(job)
        positions.resume(_catalog_of(lake), self.name, job)

    def rewind(
        self, lake: JobLake | Catalog, to: When, jobs: str | Sequence[str] | None = None
    ) -> Commit | None:
        """Outputs and positions back to what they were at version (or time) `to`, in one commit; see
        `alpheus.pipeline.positions.rewind`. `jobs`: only of these; all that ever ran by default."""
        wanted = None if jobs is None else words("jobs", jobs)
        for name in wanted or ():
            self._find_job(name)
        return positions.rewind(_catalog_of(lake), self.name, to, wanted)


def _check_bounds(inputs: Mapping[str, Input], max_versions: object, serializable: object) -> None:
    if not isinstance(serializable, bool):
        raise InvalidInput(f"serializable={serializable!r} is neither True nor False")
    if max_versions is None:
        return
    if (
        isinstance(max_versions, bool)
        or not isinstance(max_versions, int)
        or not 1 <= max_versions <= VERSIONS_MAX
    ):
        raise InvalidInput(f"max_versions={max_versions!r}: 1 to {VERSIONS_MAX}, or None")
    if serializable:
        raise InvalidInput(
            "max_versions with serializable: a run that reads an older version would conflict for ever",
            hint="leave one of them out",
        )
    if not any(value.trigger for value in inputs.values()):
        raise InvalidInput("max_versions bounds nothing in a job without triggering inputs")


def _name_missing_tables(catalog: Catalog, job: Job, status: JobStatus) -> JobStatus:
    """With what the job waits for."""
    wanted = {value.full_name: (value.namespace, value.name) for value in job.inputs.values()}
    missing = [name for name, parts in wanted.items() if not catalog.table_exists(parts)]
    return (
        msgspec.structs.replace(status, error=f"waits for table {', '.join(missing)}") if missing else status
    )


def _check_inputs(inputs: Mapping[str, Input], *, periodic: bool) -> dict[str, Input]:
    if not isinstance(inputs, Mapping) or not inputs:
        raise InvalidInput("a job needs an input", hint='inputs={"orders": changes("sales.orders")}')
    for key, value in inputs.items():
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"input name {key!r} is no text")
        if not isinstance(value, Input):
            raise InvalidInput(
                f"input {key!r} is {type(value).__name__}",
                hint="write changes(...), appends(...) or table(...)",
            )
    if not periodic and not any(value.trigger for value in inputs.values()):
        raise InvalidInput(
            "no input gives the job work", hint="use changes, appends or table(trigger=True), or every=..."
        )
    return dict(inputs)


def _check_outputs(outputs: Sequence[Name]) -> tuple[tuple[str, str], ...]:
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise InvalidInput(f"outputs={outputs!r}: a list of table names is needed")
    found = tuple(_table_name(name) for name in outputs)
    for name in found:
        if found.count(name) > 1:
            raise InvalidInput(f"output {'.'.join(name)} is named twice", kind="bad_name")
    return found


def _find_cycle(jobs: Sequence[Job]) -> list[str]:
    """Tables that lead back to where they began by way of triggering inputs and outputs; empty without."""
    leads: dict[str, set[str]] = {}
    for job in jobs:
        for value in job.triggers.values():
            leads.setdefault(value.full_name, set()).update(".".join(name) for name in job.outputs)

    done: set[str] = set()

    def visit(table: str, path: list[str]) -> list[str]:
        if table in path:
            return [*path[path.index(table) :], table]
        if table in done:
            return []
        for following in sorted(leads.get(table, ())):
            found = visit(following, [*path, table])
            if found:
                return found
        done.add(table)
        return []

    return next((found for table in sorted(leads) if (found := visit(table, []))), [])


def _catalog_of(lake: JobLake | Catalog) -> Catalog:
    return lake if isinstance(lake, Catalog) else lake.catalog
