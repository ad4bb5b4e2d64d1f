"""The `alpheus` command: thin commands over `alpheus.connect`, with the exit statuses that `--help` lists.

A command prints its answer when it is done, so that a failure leaves nothing on standard output; only streams
(`events`, `log`) print as they go. A closed pipe ends a command quietly: whoever read it had enough.
"""

from alpheus.cli import (
    catalogs,
    frame,
    objects,
    pipelines,
    repairs,
    rows,
    subscriptions,
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
    "rows",
    "subscriptions",
    "transactions",
]
