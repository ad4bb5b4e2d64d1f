"""What runs of jobs need of a lake, which need not be one of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from alpheus.catalog import Catalog, Transaction
from alpheus.pipeline.jobs import Job
from alpheus.pipeline.planner import Work
from alpheus_journal.storage import Storage


class JobRun(Protocol):
    """What a job's function is called with. `end`: what the function writes later is refused."""

    def end(self) -> None: ...


class JobLake(Protocol):
    """What runs of jobs need: a catalog, its storage, and whoever reads and writes rows of it. An
    `alpheus.spark.SparkCatalog` is one."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def storage(self) -> Storage: ...

    def is_up(self) -> bool:
        """Whether what reads and writes rows still answers."""

    def job_run(
        self, job: Job, work: Work, tx: Transaction, *, attempt: int, params: Mapping[str, str]
    ) -> JobRun:
        """What the job's function is called with, to do `work` in the transaction."""
