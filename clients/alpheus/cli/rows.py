"""Commands on the rows of tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import click

from alpheus.cli.frame import Settings, at_option, message_option, pass_settings, write
from alpheus.cli.objects import table
from alpheus.cli.text import output
from alpheus.cli.text.json_rows import plain_value
from alpheus.sync.scan import Scan

_SHOWN_ROWS = 100
"""The number of rows that are printed as text without --limit."""
_PIECE_ROWS = 1000
"""The number of rows that are converted to Python values and written at a time."""

_where_option = click.option(
    "--where", metavar="CONDITION", help="Only rows for which this SQL condition is true."
)


@table.command("read")
@click.argument("name")
@_where_option
@click.option("--columns", metavar="A,B,...", help="Only these columns, in this order.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Print at most N rows; 0 prints all. The default is 100 for text, all for JSON.",
)
@at_option
@pass_settings
def table_read(
    settings: Settings, name: str, where: str | None, columns: str | None, limit: int | None, at: str | None
) -> None:
    """Print rows of a table. With --output json, print one row per line, as rows are read.

    \b
    Examples
      alpheus table read sales.orders --where "country = 'DE' and amount > 100" --columns id,amount
      alpheus --output json table read sales.orders > orders.jsonl
    """
    wanted = columns.split(",") if columns is not None else None
    with settings.catalog() as catalog:
        shown_max = _SHOWN_ROWS if limit is None and not settings.out.json else limit or 0
        told_more = 0 if settings.out.json else 1
        scan = catalog.scan(name, at, where, wanted, shown_max + told_more if shown_max else None)
        if settings.out.json:
            for rows in _read_pieces(scan):
                settings.out.lines(plain_value(row) for row in rows)
            return
        rows = list(chain.from_iterable(_read_pieces(scan)))
    more = bool(shown_max) and len(rows) > shown_max
    shown = rows[:shown_max] if shown_max else rows
    header = scan.schema.names
    cells = [["NULL" if value is None else value for value in row.values()] for row in shown]
    settings.out.document(None, output.columns_text(header, cells))
    if more:
        told = output.count_text(shown_max, "row")
        settings.out.note(f"only the first {told}; --limit N prints N rows, --limit 0 all")
    elif not shown:
        settings.out.note("no rows")


def _read_pieces(scan: Scan) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in pieces, as they are read."""
    with scan.to_batches() as batches:
        for batch in batches:
            for start in range(0, batch.num_rows, _PIECE_ROWS):
                yield batch.slice(start, _PIECE_ROWS).to_pylist()


@table.command("explain")
@click.argument("name")
@_where_option
@at_option
@pass_settings
def table_explain(settings: Settings, name: str, where: str | None, at: str | None) -> None:
    """Show which files a read of a table opens.

    It also shows which files the read skips, and why. In JSON, row_count is the number of rows in the files to open.
    exact_count is the number of rows that the read returns, or null if only reading the files can tell.
    """
    with settings.catalog() as catalog:
        scan = catalog.scan(name, at, where)
    plan = scan.plan
    settings.out.document(
        {
            "version": scan.version,
            "files": [one.file.path for one in plan.files],
            "skipped": [{"path": one.file.path, "reason": plan.reason(one)} for one in plan.skipped],
            "row_count": plan.row_count,
            "exact_count": plan.exact_count,
            "size_bytes": plan.size_bytes,
        },
        scan.explain(),
    )


@table.command("compact")
@click.argument("name")
@click.option(
    "--target-size", type=click.IntRange(min=1), metavar="BYTES", help="The size of a file (default 128 MiB)."
)
@click.option("--dry-run", is_flag=True, help="Only show which files would be rewritten, and why.")
@message_option
@pass_settings
def table_compact(
    settings: Settings, name: str, target_size: int | None, dry_run: bool, message: str
) -> None:
    """Merge small files of a table.

    Files with deleted rows are rewritten without them. Readers see the same rows.
    """
    if not dry_run:
        write(settings, message, f"compacted table {name}", lambda to: to.compact(name, target_size))
        return
    with settings.catalog() as catalog:
        plan = catalog.compact(name, target_size, dry_run=True)
    settings.out.document(plan, plan.explain())
