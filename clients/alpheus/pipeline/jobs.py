"""What a declared pipeline and its jobs are, and what became of a job when it was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

Start = str | int | datetime


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a job. `trigger`: new rows in it give the job work. `start`: what its first run gets of it."""

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
    """A declared pipeline as its runner and its planner see it: the arguments of `Pipeline`, and its jobs."""

    name: str
    retries: int
    backoff: float
    on_expired: str
    lease: float

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by name, in the order of declaration."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job.

    "committed": at `version`, having read `pinned`; `more`: `max_versions` left work for the next run. "nothing": no
    work; `error` then says what it waits for, if anything. "parked": it failed and stays as it is until `resume`.
    Times are None where no function ran.
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
    more: bool = False
