"""The interface that runs of jobs need of a lake. The lake need not use Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from alpheus.catalog import Catalog, Transaction
from alpheus.pipeline.jobs import Job
from alpheus.pipeline.work import Work
from alpheus_journal.storage import Storage


class JobRun(Protocol):
    """The argument of a job's function."""

    def end(self) -> None:
        """Refuse whatever the function writes from now on."""


class JobLake(Protocol):
    """The environment of runs of jobs: a catalog, its storage, and an engine that reads and writes rows.
    `alpheus.spark.SparkCatalog` implements it."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def storage(self) -> Storage: ...

    def is_up(self) -> bool:
        """Return whether the engine that reads and writes rows still answers."""

    def check_can_serve(self) -> None:
        """Raise InvalidInput where runs work now, but would fail after some hours."""

    def job_run(
        self, job: Job, work: Work, tx: Transaction, *, attempt: int, params: Mapping[str, str]
    ) -> JobRun:
        """Return the argument for the job's function, which does `work` in the transaction."""
