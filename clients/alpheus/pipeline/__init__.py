"""Pipelines: jobs that keep output tables up to date with input tables, exactly once.

    from alpheus.pipeline import Pipeline, changes, table

    mart = Pipeline("daily_mart")

    @mart.job(inputs={"orders": changes("sales.orders"), "customers": table("sales.customers")},
              outputs=["mart.daily"])
    def daily(run):
        run.append("mart.daily", summarise(run.read("orders"), run.read("customers")))

    mart.serve(lake)        # lake: an alpheus.spark.SparkCatalog

This package does not import Spark, so that a scheduler can read a file of pipelines. Only `Pipeline.test` imports
`alpheus.spark.job_trial`, when it is called. The whole state of a job is its position in the catalog. The position
commits in one transaction with the outputs, and only if no other transaction moved it meanwhile. So whatever process is
killed, the outputs are as if the job had processed each input version exactly once.

How an event becomes a run: `inbox` wakes the loop of `runner`. `Runner._attempt` begins a transaction and asks `work`
for what there is to do. `Planner._find_work` finds the inputs; `alpheus.feed.trail` reads what changed in them. Under
a `lease`, `Runner._call` moves the position, calls the function with the run that the `lake` makes of the work, and
commits. `declare` holds what users write, `jobs` the values of it, `positions` how far jobs are, `declarations` the
tables that jobs are recorded with, `output_writers` who wrote the rows that jobs would overwrite, and `failures` what
stops a run or counts as an attempt.

**An older version.** With `max_versions` a run reads an older version than the one that its transaction begins at.
Inputs are read there. Outputs, and own outputs among the inputs, are read at the begin version: otherwise a job that
looks up what it wrote would miss its own last run, which committed above the inputs' version.

**The lease** is held for a run, not for a process, so several processes share a pipeline's jobs. It is a plain object
on storage, not an entry of the catalog: claims would cost two more commits a run.

**A rewind** works from the log alone. It restores the tables that were written by transactions which moved the jobs'
positions since. `appends` leaves out rows that came in and were taken back by it, so later stages continue after it.

The properties of a run's transaction record the lineage of its outputs:

    alpheus.pipeline, alpheus.job      the pipeline and the job that ran
    alpheus.input.KEY                  what the run read of input KEY: `sales.orders@12..17` (the changes after version
                                       12, up to 17 inclusive) or `sales.orders@17` (all rows at version 17); the name
                                       is the table's name at version 17

`alpheus log --output json` shows these properties. `alpheus log mart.daily` shows only the transactions that wrote the
table. A rewind records `alpheus.pipeline` and `alpheus.rewind`, the version that the rewind restored.
"""

from __future__ import annotations

from alpheus.pipeline.declare import (
    BACKOFF_SECONDS_MAX,
    EVERY_SECONDS_MAX,
    LEASE_SECONDS_DEFAULT,
    LEASE_SECONDS_MAX,
    RETRIES_MAX,
    VERSIONS_MAX,
    Pipeline,
    appends,
    changes,
    seconds_of,
    table,
)
from alpheus.pipeline.jobs import Input, Job, RunResult, Start
from alpheus.pipeline.positions import JobStatus

__all__ = [
    "BACKOFF_SECONDS_MAX", "EVERY_SECONDS_MAX", "LEASE_SECONDS_DEFAULT", "LEASE_SECONDS_MAX", "RETRIES_MAX",
    "VERSIONS_MAX", "Input", "Job", "JobStatus", "Pipeline", "RunResult", "Start", "appends", "changes", "seconds_of",
    "table",
]  # fmt: skip
