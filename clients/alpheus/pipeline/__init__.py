"""Pipelines: jobs that keep output tables up to date with input tables, exactly once.

    from alpheus.pipeline import Pipeline, changes, table

    mart = Pipeline("daily_mart")

    @mart.job(inputs={"orders": changes("sales.orders"), "customers": table("sales.customers")},
              outputs=["mart.daily"])
    def daily(run):
        run.append("mart.daily", summarise(run.read("orders"), run.read("customers")))

    mart.serve(lake)        # lake: an alpheus.spark.SparkCatalog

Nothing here imports Spark, so that a scheduler can read a file of pipelines; only `Pipeline.test` imports
`alpheus.spark.job_trial`, when it is called. All the state of a job is its position in the catalog, which commits in
one transaction with its outputs and only if nobody moved it meanwhile. So whatever is killed, the outputs are as if
each input version had been worked in once.

How an event becomes a run: `inbox` wakes the loop of `runner`. `Runner._attempt` begins a transaction and asks
`planner` for the work. `Planner._find_work` finds the inputs; `alpheus.feed.trail` reads what changed in them. Under a
`lease`, `Runner._call` moves the position, calls the function with the run that the `lake` makes of the work, and
commits. `declare` holds what users write, `jobs` the values of it, `positions` how far jobs are, `declarations` the
tables that jobs are recorded with, and `outputs` who wrote the rows that jobs would overwrite.

The transaction of a run says in its properties what was computed from what:

    alpheus.pipeline, alpheus.job      whose run it was
    alpheus.input.KEY                  what input KEY gave: `sales.orders@12..17` (what changed after version 12, up to
                                       17 inclusive), or `sales.orders@17` (all rows at 17); the table's name at 17

`alpheus log --output json` shows them, `alpheus log mart.daily` only those transactions that wrote the table. A
rewind has `alpheus.pipeline` and `alpheus.rewind`, the version that it went back to.
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
