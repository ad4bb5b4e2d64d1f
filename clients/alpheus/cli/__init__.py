"""The `alpheus` command: thin commands over `alpheus.connect`, with the exit statuses that `--help` lists.

A command prints its answer at the end, so that a failed command leaves nothing on standard output. Only streams
(`events`, `log`) print items as they arrive. A closed pipe ends a command quietly.

A command is a function with `@cli.command` or in a `@cli.group` (both of `frame`), in the module of its topic:

    frame              the program itself: options of all commands, settings, questions, completion
    catalogs           create, serve, info, check, upgrade, checkpoint, symbols, lease, completion
    objects            namespace, table, view
    rows               rows of tables: read, explain, compact
    transactions       apply, outcome, events, log, diff, dropped, transaction
    tags, retention    tag; expire and collect
    pipelines          pipeline
    subscriptions      subscription
    spark_sessions     spark: packages, doctor, package
    repairs            repair

`text` makes text of answers, and values of text.
A new module is imported here, which puts its commands into the program.
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
