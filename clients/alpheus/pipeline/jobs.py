"""Values of a declared pipeline: its jobs, their inputs, and the result of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

Start = str | int | datetime


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a job. With `trigger`, changes of the input give the job work. `start` says what the first run
    reads."""

    mode: Literal["changes", "appends", "table"]
    namespace: str
    name: str
    trigger: bool
    start: Start = "snapshot"

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A declared job; its fields are the arguments of `Pipeline.job`. `every` is in seconds."""

    name: str
    function: Callable[[Any], object]
    inputs: dict[str, Input]
    outputs: tuple[tuple[str, str], ...]  # (namespace, table)
    when: Literal["any", "all"]
    every: float | None = None
    max_versions: int | None = None
    serializable: bool = False

    @property
    def triggers(self) -> dict[str, Input]:
        return {key: value for key, value in self.inputs.items() if value.trigger}


class Jobs(Protocol):
    """A declared pipeline for the runner and the planner: the arguments of `Pipeline`, and its jobs."""

    name: str
    retries: int
    backoff: float
    on_expired: str
    lease: float

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Return the jobs by name, in the order of declaration."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of looking at one job once.

    * "committed": the run committed at `version`, having read version `pinned`. `more` says that `max_versions` left
      work for the next run.
    * "nothing": there was no work. `error` says what the job waits for, if anything.
    * "parked": the job failed, and it is not called again until `resume`.

    Times are None where no function ran.
    """

    job: str
    state: Literal["committed", "nothing", "parked"]
    version: int | None = None
    pinned: int | None = None
    transaction_id: str = ""
    error: str = ""
    attempts: int = 0
    input_version: int | None = None  # the newest version that changed a triggering input
    waited_ms: float | None = None  # from the commit of that version to the call of the function
    called_at: datetime | None = None
    finished_at: datetime | None = None  # when the answer to the commit arrived
    more: bool = False
