"""Pipelines: jobs that keep output tables up to date with input tables, exactly once.

    from alpheus.pipeline import Pipeline, changes, table

    mart = Pipeline("daily_mart")

    @mart.job(inputs={"orders": changes("sales.orders"), "customers": table("sales.customers")},
              outputs=["mart.daily"])
    def daily(run):
        run.append("mart.daily", summarise(run.read("orders"), run.read("customers")))

    mart.serve(lake)        # lake: an alpheus.spark.SparkCatalog

Nothing here imports Spark, so that a scheduler can read a file of pipelines; `run` and `serve` import
`alpheus.spark.runner` when they are called. All the state of a job is its position in the catalog, which
commits in one transaction with its outputs and only if nobody moved it meanwhile. So whatever is killed, the
outputs are as if each input version had been worked in once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from alpheus.models import Job as StoredJob
from alpheus.session import Name, parse_name, refuse_unsupported, texts
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Kind

if TYPE_CHECKING:
    from alpheus.catalog import Catalog
    from alpheus.spark import SparkCatalog
    from alpheus.spark.job_run import JobRun

F = TypeVar("F", bound="Callable[[JobRun], object]")

RETRIES_MAX = 1000
BACKOFF_SECONDS_MAX = 86_400.0


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a job. `trigger`: new rows in it give the job work."""

    mode: Literal["changes", "appends", "table"]
    namespace: str
    name: str
    trigger: bool

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"


def changes(table: Name, start: str = "snapshot") -> Input:
    """What came into the table and went out of it since the last run.

    `run.read` gives its rows with `_change_type` ("insert", "delete"), `_commit_version`, `_commit_timestamp`
    and `_transaction_id`, not netted: a row that was inserted and then overwritten comes twice. The first run
    gets all rows of its version as inserts, of that version, without a transaction.
    """
    return _input("changes", table, start, trigger=True)


def appends(table: Name, start: str = "snapshot") -> Input:
    """The rows that came into the table since the last run; all of them at the first.

    An overwrite in between is an error (InvalidInput naming the version): what it removed is worked in already.
    """
    return _input("appends", table, start, trigger=True)


def table(name: Name, trigger: bool = False) -> Input:
    """The whole table at the version of the run. Unless `trigger`, changes of it give the job no work."""
    if not isinstance(trigger, bool):
        raise InvalidInput(f"trigger={trigger!r} is neither True nor False")
    return _input("table", name, "snapshot", trigger=trigger)


def _input(mode: Literal["changes", "appends", "table"], name: Name, start: str, *, trigger: bool) -> Input:
    if start != "snapshot":
        raise InvalidInput(
            f"start={start!r} is not supported by this release",
            kind="not_supported",
            hint='a first run begins with all rows: start="snapshot"',
        )
    found = _table_name(name)
    return Input(mode=mode, namespace=found[0], name=found[1], trigger=trigger)


def _table_name(name: Name) -> tuple[str, str]:
    found = parse_name(Kind.TABLE, name)
    fmt.check_name(found.namespace, fmt.NAME_SIZE_BYTES_MAX, "namespace")
    fmt.check_name(found.name, fmt.NAME_SIZE_BYTES_MAX, "table")
    return found.namespace, found.name


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A declared job. `when`: whether any of the triggering inputs must have something new, or all; the first
    run waits for neither."""

    name: str
    function: Callable[[Any], object]
    inputs: dict[str, Input]
    outputs: tuple[tuple[str, str], ...]  # (namespace, table)
    when: Literal["any", "all"]

    @property
    def triggers(self) -> dict[str, Input]:
        return {key: value for key, value in self.inputs.items() if value.trigger}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job.

    "committed": at `version`, having read `pinned`. "nothing": no work; `error` then says what it waits for,
    if anything. "parked": it failed and stays as it is until `resume`. Times are None where no function ran.
    """

    job: str
    state: Literal["committed", "nothing", "parked"]
    version: int | None = None
    pinned: int | None = None
    transaction_id: str = ""
    error: str = ""
    attempts: int = 0
    input_version: int | None = None  # the newest that brought something new
    waited_ms: float | None = None  # from the commit of that version to the call of the function
    called_at: datetime | None = None
    finished_at: datetime | None = None  # when the commit was answered


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands. `position`: the version that it read last, None before its first run.

    `lag_versions` counts the catalog's versions since then that changed the rows of a triggering input;
    `lag_seconds` is the age of the oldest of them, 0 without any, None when it cannot be told: before the
    first run.
    """

    job: str
    position: int | None
    lag_versions: int | None
    lag_seconds: float | None
    state: Literal["new", "running", "parked"]
    error: str = ""


class Pipeline:
    """A named set of jobs; the name is that of the entry in the catalog that holds their positions.

    `retries` and `backoff`: a job whose function raises is called again so often, after so many seconds, twice
    as many after the next failure and so on; then it is parked. `Unavailable` and `OutcomeUnknown` count as no
    failure: the job waits until the catalog is back.
    """

    def __init__(
        self,
        name: str,
        retries: int = 3,
        backoff: float = 30,
        on_failure: str = "park",
        on_expired: str = "fail",
    ) -> None:
        fmt.check_name(name, fmt.EXTENSION_NAME_SIZE_BYTES, "pipeline", creating=True)
        if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
            raise InvalidInput(f"retries={retries!r}: 0 to {RETRIES_MAX}")
        if isinstance(backoff, bool) or not isinstance(backoff, int | float):
            raise InvalidInput(f"backoff={backoff!r} is no number of seconds")
        if not 0 <= backoff <= BACKOFF_SECONDS_MAX:
            raise InvalidInput(f"backoff={backoff!r}: 0 to {BACKOFF_SECONDS_MAX:g} seconds")
        _refuse_other("on_failure", on_failure, "park")
        _refuse_other("on_expired", on_expired, "fail")
        self.name = name
        self.retries = retries
        self.backoff = float(backoff)
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

        Positions go by the job's name and its tables: an input may get another key and goes on where it was.
        One that is new to a job that ran before is worked in whole.

        Raises InvalidInput for a job that could never be right: a name taken, no triggering input, an output
        that would trigger the job itself, or other jobs in a circle.
        """
        refuse_unsupported(every=every, max_versions=max_versions, serializable=serializable)
        if when not in ("any", "all"):
            raise InvalidInput(f'when={when!r}: "any" or "all"')
        checked_inputs = _checked_inputs(inputs)
        checked_outputs = _checked_outputs(outputs)

        def declare(function: F) -> F:
            job = Job(
                name=name if name is not None else getattr(function, "__name__", ""),
                function=function,
                inputs=checked_inputs,
                outputs=checked_outputs,
                when=cast(Literal["any", "all"], when),
            )
            self._add(job)
            return function

        return declare

    def _add(self, job: Job) -> None:
        fmt.check_name(job.name, fmt.EXTENSION_NAME_SIZE_BYTES, "job", creating=True)
        if job.name in self._jobs:
            raise InvalidInput(f"pipeline {self.name} has a job {job.name} already", kind="bad_name")
        circle = _circle([*self._jobs.values(), job])
        if circle:
            raise InvalidInput(
                f"job {job.name} would give itself work for ever: {' → '.join(circle)}",
                hint="read the table with trigger=False",
            )
        self._jobs[job.name] = job

    # -- running

    def run(
        self, lake: SparkCatalog, params: Mapping[str, str] | None = None, full_refresh: bool = False
    ) -> list[RunResult]:
        """Call every job that has work, once, in the order of declaration; one result a job.

        So a job sees what the ones before it wrote. Each commits by itself. `params` reach the functions and are
        recorded with the position. `full_refresh` calls every job as if for the first time: its outputs are
        emptied in the transaction that fills them; Conflict, before anything runs, when others wrote to them
        (or once their job is due, for rows that came meanwhile; jobs before it have committed then).

        When Spark ends under a job, what the job raised comes out of here and of `serve`, and nothing is parked.
        """
        from alpheus.spark.runner import Runner

        return Runner(lake, self, params=texts("params", params)).run(full_refresh=full_refresh)

    def serve(
        self,
        lake: SparkCatalog,
        params: Mapping[str, str] | None = None,
        on_result: Callable[[RunResult], object] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Call jobs whenever their inputs have something new, until SIGTERM, Ctrl-C or `stop`.

        The first SIGTERM lets the call that runs finish; a second one, like Ctrl-C, abandons it, which loses
        nothing. `on_result` is called with each result but "nothing". Several processes may serve one
        pipeline: one of them commits each step, the others drop theirs.
        """
        from alpheus.spark.runner import Runner

        Runner(lake, self, params=texts("params", params)).serve(on_result=on_result, stop=stop)

    # -- looking after it; these take a plain Catalog too

    def status(self, lake: SparkCatalog | Catalog) -> list[JobStatus]:
        """Where each declared job stands."""
        with _catalog(lake).transaction() as tx:
            stored: Mapping[str, StoredJob] = {}
            with contextlib.suppress(NotFound):
                stored = tx.load_pipeline(self.name).jobs
            version = tx.version
        return [_status(_catalog(lake), job, stored.get(job.name), version) for job in self._jobs.values()]

    def resume(self, lake: SparkCatalog | Catalog, job: str) -> None:
        """Unpark a job: it goes on from where it was. Nothing happens to one that is not parked.

        NotFound (`no_job`) for one that is not declared or never ran, Conflict when it moved meanwhile.
        """
        if job not in self._jobs:
            raise NotFound(f"pipeline {self.name} has no job {job!r}", kind="no_job")
        with _catalog(lake).transaction(message=f"resume {self.name}.{job}") as tx:
            try:
                stored = tx.load_pipeline(self.name).jobs.get(job)
            except NotFound:
                stored = None
            if stored is None:
                raise NotFound(f"job {self.name}.{job} never ran", kind="no_job")
            if stored.state != "parked":
                return
            tx.advance_pipeline(
                self.name,
                job,
                stored.last_transaction_id,
                stored.pinned_version,
                stored.inputs,
                "running",
                "",
                stored.params,
            )


def _refuse_other(what: str, value: str, only: str) -> None:
    if value != only:
        raise InvalidInput(
            f"{what}={value!r} is not supported by this release",
            kind="not_supported",
            hint=f"{what}={only!r} is",
        )


def _checked_inputs(inputs: Mapping[str, Input]) -> dict[str, Input]:
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
    if not any(value.trigger for value in inputs.values()):
        raise InvalidInput("no input gives the job work", hint="use changes, appends or table(trigger=True)")
    return dict(inputs)


def _checked_outputs(outputs: Sequence[Name]) -> tuple[tuple[str, str], ...]:
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise InvalidInput(f"outputs={outputs!r}: a list of table names is needed")
    found = tuple(_table_name(name) for name in outputs)
    for name in found:
        if found.count(name) > 1:
            raise InvalidInput(f"output {'.'.join(name)} is named twice", kind="bad_name")
    return found


def _circle(jobs: Sequence[Job]) -> list[str]:
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


def _catalog(lake: SparkCatalog | Catalog) -> Catalog:
    return cast("Catalog", getattr(lake, "catalog", lake))


ROWS_CHANGED = frozenset({"TABLE_INSERT", "TABLE_OVERWRITE", "TABLE_RESTORE", "TABLE_UPDATE", "TABLE_DELETE"})


def _status(catalog: Catalog, job: Job, stored: StoredJob | None, head: int) -> JobStatus:
    if stored is None or not stored.inputs:
        parked = stored is not None and stored.state == "parked"
        return JobStatus(
            job=job.name,
            position=None,
            lag_versions=None,
            lag_seconds=None,
            state="parked" if parked else "new",
            error=stored.error if stored else "",
        )
    behind = min((p.version for key, p in stored.inputs.items() if key in job.triggers), default=head)
    times: list[datetime] = []
    if behind < head:
        names = {value.full_name for value in job.triggers.values()}
        with catalog.events(after=behind, until=head, names=sorted(names)) as events:
            for event in events:
                if any(
                    action.type in ROWS_CHANGED and action.name in names
                    for transaction in event.transactions
                    for action in transaction.actions
                ):
                    times.append(event.created_at)
    age = (datetime.now(UTC) - times[0]).total_seconds() if times else 0.0
    return JobStatus(
        job=job.name,
        position=stored.pinned_version,
        lag_versions=len(times),
        lag_seconds=max(0.0, age),
        state="parked" if stored.state == "parked" else "running",
        error=stored.error,
    )
