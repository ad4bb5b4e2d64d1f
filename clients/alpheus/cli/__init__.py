"""The `alpheus` command: thin commands over `alpheus.connect`, with the exit statuses that `--help` lists.

A command prints its answer at the end, so that a failed command leaves nothing on standard output. Only streams
(`events`, `log`) print items as they arrive. A closed pipe ends a command quietly.
"""

from alpheus.cli import (
    catalogs,
    frame,
    objects,
    pipelines,
    repairs,
    retention,
    rows,
    spark_sessions,
    subscriptions,
    tags,
    transactions,
)
from alpheus.cli.frame import cli, main

__all__ = [
    "catalogs",
    "cli",
    "frame",
    "main",
    "objects",
    "pipelines",
    "repairs",
    "retention",
    "rows",
    "spark_sessions",
    "subscriptions",
    "tags",
    "transactions",
]
