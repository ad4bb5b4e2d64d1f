"""Declare a pipeline: its jobs with their inputs and outputs, and the methods that run, test and inspect them."""

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
    """Declare an input that delivers all changes of the table since the last run.

    `run.read` returns the changed rows with the columns `_change_type` ("insert", "delete", "update_preimage",
    "update_postimage"), `_commit_version`, `_commit_timestamp` and `_transaction_id`. Changes are not netted: a row
    that was inserted and then overwritten appears twice.

    `start` says what the input delivers to the first run, to a full refresh, and to the first run after the input was
    added to the job:

    * "snapshot": all rows of the version that the run reads, as inserts of that version, without a transaction;
    * "now": nothing; the next run receives what changed since;
    * a version, or a time (aware datetime, RFC 3339 text with a zone): what changed after it, as if the job had
      processed everything up to there. All rows, if the table was created later. If that part of history has expired,
      the run raises Expired and the job is parked.
    """
    return _input("changes", table, start, trigger=True)


def appends(table: Name, start: Start = "snapshot") -> Input:
    """Declare an input that delivers the rows added to the table since the last run. `start` is as in `changes`.

    Rows that left the table meanwhile are an error (InvalidInput that names the version), because the job has processed
    them already. Rows that were appended and removed again by a restore, both since the last run, are not delivered.
    """
    return _input("appends", table, start, trigger=True)


def table(name: Name, trigger: bool = False) -> Input:
    """Declare an input that delivers the whole table at the run's version. Changes of the table give the job work only
    with `trigger`."""
    if not isinstance(trigger, bool):
        raise InvalidInput(f"trigger={trigger!r} is neither True nor False")
    return _input("table", name, "snapshot", trigger=trigger)


def _input(mode: Literal["changes", "appends", "table"], name: Name, start: Start, *, trigger: bool) -> Input:
    found = _table_name(name)
    if start not in ("snapshot", "now"):
        if start is None or start == "latest":
            raise InvalidInput(f'start={start!r}: write "now" to begin with later commits')
        try:
            parse_when(start)
        except InvalidInput as error:
            error.hint = (
                'give "snapshot", "now", a version, a tag, or a time with a zone such as 2026-03-01T12:00:00Z'
            )
            raise
    return Input(mode=mode, namespace=found[0], name=found[1], trigger=trigger, start=start)


def _table_name(name: Name) -> tuple[str, str]:
    found = parse_name(Kind.TABLE, name)
    fmt.check_name(found.namespace, fmt.NAME_SIZE_BYTES_MAX, "namespace")
    fmt.check_name(found.name, fmt.NAME_SIZE_BYTES_MAX, "table")
    return found.namespace, found.name


_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds_of(every: object) -> float | None:
    """Return a period in seconds. A period is given as seconds, a timedelta, or text such as "90s", "15m", "1h30m",
    "1d". Raise InvalidInput for anything else, and for periods that are not between 0 and 366 days."""
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
            f"every={every!r} is not a period",
            hint='give seconds, a timedelta, or text such as "90s", "15m", "1h30m", "1d"; at most 366 days',
        )
    return found


class Pipeline:
    """A named set of jobs. The catalog stores the jobs' positions in an entry of this name.

    * `retries`, `backoff`: a job whose function raises is called again up to `retries` times, the first time after
      `backoff` seconds, then after twice as many, and so on. Then the job is parked. `Unavailable` and `OutcomeUnknown`
      do not count as failures: the job waits until the catalog is available again.
    * `on_expired`: what happens when the history since a job's position has expired. "fail" parks the job; "full" makes
      that run a full one (see `run`), and parks the job if others wrote to its outputs.
    * `lease`: seconds, or 0 for none. A process that calls a job's function renews an object beside the catalog three
      times per lease. Other processes that find work in the same job wait, and continue when the object is not renewed.
      So a run is rarely computed twice when several processes run one pipeline. A lease does not affect correctness:
      the position in the catalog alone decides what commits. Use 0 for a pipeline that one process runs.

    A position belongs to the job's name and its tables. An input may get another key and keeps its position; a renamed
    table is followed. An input that is new to a job begins at its `start`. A job is parked when a key is declared with
    another table of which the job has read nothing, when the job has read none of its declared tables, and when an
    output was dropped and created again without the rows that it held.

    The catalog records the ids of the tables that a job is declared with. A job that no longer reads or writes one of
    these tables counts as another job, perhaps of another pipeline of this name, and is not called until it is adopted
    (`run`, `adopt`). A job that writes an additional table is not called until a full run, or until `from_now` is
    given. A new job starts from the beginning. But a new job with exactly the tables of a recorded job that is no
    longer declared counts as renamed: give it the old `name`, or rename the position
    (`alpheus.pipeline.positions.rename`, `alpheus pipeline rename`).
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
            raise InvalidInput(f"backoff={backoff!r} is not a number of seconds")
        if not 0 <= backoff <= BACKOFF_SECONDS_MAX:
            raise InvalidInput(f"backoff={backoff!r}: 0 to {BACKOFF_SECONDS_MAX:g} seconds")
        if on_failure != "park":
            raise InvalidInput(f'on_failure={on_failure!r}: only "park" is supported')
        if on_expired not in ("fail", "full"):
            raise InvalidInput(f'on_expired={on_expired!r}: "fail" or "full"')
        if isinstance(lease, bool) or not isinstance(lease, int | float):
            raise InvalidInput(f"lease={lease!r} is not a number of seconds")
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
        """The jobs by name, in the order of declaration."""
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
        """Declare the decorated function as a job, with the function's name or `name`.

        The function is called with a `JobRun` and returns when it has written everything that shall commit. It may be
        called again for the same versions, so its other effects must tolerate repetition.

        * `when`: whether "any" or "all" of the triggering inputs must have changes.
        * `every`: seconds, a timedelta, or text such as "15m" or "1h". The job is called when it has work and this much
          time has passed since the call of its last run, by the clocks of the callers. A job without triggering inputs
          needs `every` and is called each period. A first run and a full refresh do not wait.
        * `max_versions`: the number of versions with changes of triggering inputs that a run processes at most. The run
          reads the catalog at the last of them, but never at an older version than the run before; with `when="all"` it
          reads up to where each input has a change. Outputs commit at the head as usual. The job's own outputs, read as
          `table`, are always current.
        * `serializable`: the commit conflicts, and the function is called again, when an input changed during the run.
          So the outputs follow from the inputs of the very version that the commit creates. Such a job may never finish
          while an input changes constantly.

        Raise InvalidInput for a job that could never work: its name is taken, it has neither a triggering input nor
        `every`, or its outputs would trigger the job itself, directly or through other jobs.
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
            raise InvalidInput(f"pipeline {self.name} already has a job {job.name}", kind="bad_name")
        circle = _find_cycle([*self._jobs.values(), job])
        if circle:
            raise InvalidInput(
                f"job {job.name} would trigger itself forever: {' → '.join(circle)}",
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
        """Call every job that has work once, in the order of declaration. Return one result per job.

        A job reads what the jobs before it wrote. Each job commits by itself. If another process is calling a job, wait
        for that process.

        * `jobs`: call only these jobs.
        * `params`: texts that the functions receive. They are recorded with the position.
        * `full_refresh`: call every job as if for the first time. Its outputs are emptied in the transaction that fills
          them. Raise Conflict before any job runs if others wrote to the outputs. If others write while jobs run, raise
          Conflict at the job concerned; the jobs before it have committed then.
        * `adopt`: replace recorded declarations that name other tables by these declarations. Without it such a job is
          not called: its result is "parked", nothing is written, and the recorded job may continue elsewhere (see
          `job`).
        * `from_now`: outputs that are new to a job receive only what later runs write.

        If Spark ends during a job, `run` and `serve` raise the job's error and park nothing.
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
        """Call jobs whenever their inputs change, until SIGTERM, Ctrl-C or `stop`.

        `jobs` and `params` are as in `run`; `adopt` and `from_now` apply once, at the start. `on_result` is called with
        each result except "nothing".

        The first SIGTERM lets the current call finish. A second SIGTERM, like Ctrl-C, abandons it; no data is lost.
        Several processes may serve one pipeline: one of them commits each run, the others wait (`lease`) or drop their
        run. Raise InvalidInput if there are no jobs.
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
        """Replace the recorded declaration by this one, at the recorded positions. Return None if it is recorded
        already.

        `jobs` limits this to these jobs. Inputs that the recorded job never processed begin at their `start`. Outputs
        that the recorded job did not have need a full run; with `from_now`, they receive only what later runs write.
        """
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
        """Return the named jobs, or all. Raise NotFound (`no_job`) for a job that is not declared."""
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
        """Call a job's function with given rows, without a catalog. Return the contents of the outputs that the
        function wrote to, by full name.

        * `inputs`: for each input the frame that `run.read` returns. Frames of `changes` inputs may have
          `_change_type`; without it all rows are inserts. The other columns of changes are filled in.
        * `outputs`: the rows that outputs hold before, which also give the columns of their tables. Other outputs start
          empty, with the columns of what is written to them.
        * `whole`: what `run.whole` returns, where it differs from the input's frame.
        * `full`: whether this is a full run (`run.is_full`), for which outputs start empty. None means a full run if no
          frame has `_change_type` and no output holds rows.

        Every verb acts as on a table without required columns and defaults, whose partition keys are the ones that
        `overwrite(partitions=)` names. Raise what the function raises, and the error of a run for undeclared names.
        """
        # Imported by name, so that no module here depends on Spark. A caller that has a session has imported Spark.
        trial: Any = importlib.import_module("alpheus.spark.job_trial")
        return trial.try_job(  # type: ignore[no-any-return]
            spark,
            self._find_job(job),
            inputs,
            params=texts("params", params),
            outputs=outputs or {},
            whole=whole or {},
            full=full,
        )

    # -- operating; these methods take a plain Catalog too

    def status(self, lake: JobLake | Catalog) -> list[JobStatus]:
        """Return the status of each declared job. For a new job `error` names the tables that are missing. A job whose
        recorded declaration differs, so that it would not be called, is "parked"."""
        catalog = _catalog_of(lake)
        triggers = {
            job.name: {key: value.full_name for key, value in job.triggers.items()}
            for job in self._jobs.values()
        }
        found = positions.status(catalog, self.name, triggers)
        refused = declarations.find_refusals(catalog, self.name, self._jobs)
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
        """Unpark a job, so that it continues at its position. Do nothing if the job is not parked.

        Raise NotFound (`no_job`) if the job is not declared or never ran, Conflict if its position moved meanwhile.
        """
        self._find_job(job)
        positions.resume(_catalog_of(lake), self.name, job)

    def rewind(
        self, lake: JobLake | Catalog, to: When, jobs: str | Sequence[str] | None = None
    ) -> Commit | None:
        """Restore outputs and positions to what they were at version, tag or time `to`, in one commit; see
        `alpheus.pipeline.positions.rewind`. `jobs` limits this to these jobs; the default is all that ever ran."""
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
            "max_versions with serializable: a run that reads an older version would always conflict",
            hint="omit one of them",
        )
    if not any(value.trigger for value in inputs.values()):
        raise InvalidInput("max_versions has no effect on a job without triggering inputs")


def _name_missing_tables(catalog: Catalog, job: Job, status: JobStatus) -> JobStatus:
    """Add to the status of a new job the names of the missing tables."""
    wanted = {value.full_name: (value.namespace, value.name) for value in job.inputs.values()}
    missing = [name for name, parts in wanted.items() if not catalog.table_exists(parts)]
    return (
        msgspec.structs.replace(status, error=f"waits for table {', '.join(missing)}") if missing else status
    )


def _check_inputs(inputs: Mapping[str, Input], *, periodic: bool) -> dict[str, Input]:
    if not isinstance(inputs, Mapping) or not inputs:
        raise InvalidInput("a job needs an input", hint='write inputs={"orders": changes("sales.orders")}')
    for key, value in inputs.items():
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"input name {key!r} is not a text")
        if not isinstance(value, Input):
            raise InvalidInput(
                f"input {key!r} is {type(value).__name__}",
                hint="give changes(...), appends(...) or table(...)",
            )
    if not periodic and not any(value.trigger for value in inputs.values()):
        raise InvalidInput(
            "no input triggers the job", hint="use changes, appends or table(trigger=True), or every=..."
        )
    return dict(inputs)


def _check_outputs(outputs: Sequence[Name]) -> tuple[tuple[str, str], ...]:
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise InvalidInput(f"outputs={outputs!r} is not a list of table names")
    found = tuple(_table_name(name) for name in outputs)
    for name in found:
        if found.count(name) > 1:
            raise InvalidInput(f"output {'.'.join(name)} is named twice", kind="bad_name")
    return found


def _find_cycle(jobs: Sequence[Job]) -> list[str]:
    """Return a cycle of tables that are connected by triggering inputs and outputs, or an empty list."""
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
