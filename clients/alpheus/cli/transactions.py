"""Commands on transactions and the log."""

from __future__ import annotations

from itertools import islice
from typing import BinaryIO

import click

from alpheus.cli.frame import (
    BOUND,
    Settings,
    VersionsCommand,
    cli,
    count_option,
    filter_options,
    pass_settings,
)
from alpheus.cli.text import document, output
from alpheus_journal.clock import RandomIdentities

# --- transactions ----------------------------------------------------------------------------------


@cli.command(short_help="Commit a JSON document of operations as one transaction.")
@click.argument("file", type=click.File("rb"))
@pass_settings
def apply(settings: Settings, file: BinaryIO) -> int:
    """Commit the operations of a JSON document (FILE, or - for standard input) as one transaction.

    Either all operations take effect or none. An error names its place in the document.

    \b
    Keys of a document
      operations   a list; each is an object with one key, see below
      message      the reason for the change; the log keeps it
      properties   texts that the log keeps with the transaction
      isolation    "snapshot" or "serializable"; without it the catalog's default
      key          retry key: only the first transaction with a key is applied; later ones get "duplicate"
      writer       [name, sequence] of an idempotent writer: a sequence that is not above the writer's last one
                   is not applied again
      id           the transaction id ("alpheus new-id" prints one). A document with an id is never applied
                   twice: run again, it returns the first commit with "duplicate": true

    \b
    Operations
      create_namespace   name, properties, exist_ok
      update_namespace   name, set, unset
      drop_namespace     name, cascade
      create_table       name, columns: [{"name", "type", "nullable"}], properties, exist_ok
      update_table       name, set, unset, add_columns, drop_columns: [path], rename_columns: {path: name},
                         retype_columns: {path: type}, nullable_columns: {path: bool}, column_order
      rename_table       name, new_name
      restore_table      name, at
      drop_table         name, purge
      register_table     name, metadata_location, properties
      commit_iceberg     name, metadata_location, expected
      create_view        name, sql, dialect, references: [name], schema_binding, columns, default_namespace,
                         properties; replace_view takes the same keys
      rename_view        name, new_name
      drop_view          name
      undrop             name, at, as_name, kind
      update_catalog     set, unset
      append             name, rows: [{column: value}]
      overwrite          name, rows
    For types see "alpheus table create --help". In rows, times are ISO 8601 text and bytes are base64.

    \b
    Example
      echo '{"message": "new region", "operations": [
        {"create_namespace": {"name": "emea"}},
        {"create_table": {"name": "emea.sites", "columns": [{"name": "id", "type": "int64"}]}},
        {"append": {"name": "emea.sites", "rows": [{"id": 1}, {"id": 2}]}}]}' | alpheus apply -

    The exit status is 99 if the document leaves nothing to do.
    """
    name = getattr(file, "name", "-")
    source = "standard input" if name in ("-", "<stdin>", 0) else str(name)
    asked = document.parse_document(file.read(), source)
    with settings.catalog() as catalog:
        commit = document.apply(catalog, asked)
    if commit is None:
        settings.out.note("nothing to do")
        return output.NOTHING_TO_DO
    settings.out.document(commit, output.commit_text(commit))
    return output.DONE


@cli.command("new-id", short_help="Print a new transaction id for a document of apply.")
@pass_settings
def new_id(settings: Settings) -> None:
    """Print a new transaction id, for the key "id" of a document of "alpheus apply"."""
    found = RandomIdentities().uuid7()
    settings.out.document({"id": found}, found)


@cli.command(short_help="Show the outcome of a transaction.")
@click.argument("transaction")
@click.option(
    "--since", type=BOUND, metavar="V", help="The version at which the transaction began: search from there."
)
@click.option(
    "--settle", is_flag=True, help="If the transaction is not found, cancel it, which makes the answer final."
)
@pass_settings
def outcome(settings: Settings, transaction: str, since: int | None, settle: bool) -> int:
    """Show the outcome of a transaction: committed, cancelled or unknown.

    The exit status is 0 for a definite answer, 4 if the outcome is unknown. Unknown does not mean "not applied".
    """
    with settings.catalog() as catalog:
        found = catalog.outcome(transaction, since=since, settle=settle)
    settings.out.status_if_cut = status = output.UNKNOWN if found.state == "unknown" else output.DONE
    settings.out.document(found, output.outcome_text(found))
    if found.state == "unknown":
        settings.out.note("hint: pass --settle to make the answer final")
    return status


# --- the log ---------------------------------------------------------------------------------------


@cli.command(short_help="Print committed versions, or follow them.")
@click.option(
    "--after", metavar="V|TOKEN", help="Begin after this version or token (default: at the oldest version)."
)
@click.option("--until", type=BOUND, metavar="V", help="End with this version.")
@click.option("--follow", "-f", is_flag=True, help="Continue with new versions as they commit, until Ctrl-C.")
@filter_options
@count_option
@click.option("--details", is_flag=True, help="With --output json: definitions before and after each change.")
@pass_settings
def events(
    settings: Settings, after: str | None, until: int | None, follow: bool, namespaces: tuple[str, ...],
    names: tuple[str, ...], kinds: tuple[str, ...], actions: tuple[str, ...], count: int | None, details: bool,
) -> None:  # fmt: skip
    """Print committed versions, oldest first, one per line.

    With --output json each line is one JSON object. To resume without missing or repeating an event, pass the "token"
    (or "version") of the last line to --after.

    \b
    Examples
      alpheus events --after 120 --kind table
      alpheus --output json events --follow --namespace sales
      alpheus events --follow --count 1 --name sales.orders    (wait for one change)
    """
    with settings.catalog() as catalog:
        stream = catalog.events(
            after=after,
            until=until,
            follow=follow,
            namespaces=namespaces,
            names=names,
            kinds=kinds,
            details=details,
            actions=actions,
        )
        event = None
        with stream:
            for event in islice(stream, count):
                settings.out.line(event, output.event_text(event))
    if event is None:
        settings.out.note("no events")


@cli.command(short_help="Print transactions, newest first.")
@click.argument("name", required=False)
@click.option("--after", type=BOUND, metavar="V", help="Only versions above this one.")
@click.option("--until", type=BOUND, metavar="V", help="Begin with this version instead of the head.")
@count_option
@pass_settings
def log(
    settings: Settings, name: str | None, after: int | None, until: int | None, count: int | None
) -> None:
    """Print transactions, newest first. With NAME, print only those that acted on that table or namespace.

    A principal in (brackets) is the writer's own claim and was not verified.

    \b
    Examples
      alpheus log --count 10
      alpheus log sales.orders --output json
    """
    entry = None
    with settings.catalog() as catalog, catalog.log(name, after, until) as stream:
        for entry in islice(stream, count):
            settings.out.line(entry, output.entry_text(entry))
    if entry is None:
        settings.out.note("no transactions")


@cli.command(cls=VersionsCommand, short_help="Show what differs between two versions.")
@click.argument("a")
@click.argument("b", required=False)
@click.option("--details", is_flag=True, help="With --output json: definitions before and after each change.")
@pass_settings
def diff(settings: Settings, a: str, b: str | None, details: bool) -> int:
    """Show what differs between versions (or times) A and B, or between A and the head, one object per line.

    Version -1 is the head, -2 the version before it.

    The exit status is 99 if nothing differs.

    \b
    Examples
      alpheus diff 10 12
      alpheus diff -2
      alpheus diff 2026-03-01T00:00:00Z
    """
    change = None
    with settings.catalog() as catalog, catalog.diff(a.strip(), b and b.strip(), details) as stream:
        for change in stream:
            settings.out.line(change, output.change_text(change))
    if change is None:
        settings.out.note("no difference")
        return output.NOTHING_TO_DO
    return output.DONE


@cli.command(short_help="List dropped objects that can be brought back.")
@click.argument("namespace", required=False)
@count_option
@pass_settings
def dropped(settings: Settings, namespace: str | None, count: int | None) -> None:
    """List dropped namespaces, tables and views, the last dropped first, as far back as history is kept.

    With NAMESPACE, list only that namespace and the objects in it. "alpheus table undrop NAME" brings a table back.
    """
    with settings.catalog() as catalog:
        found = catalog.list_dropped(namespace, count)
    settings.out.document(found, "\n".join(output.dropped_text(one) for one in found))
    if not found:
        settings.out.note("nothing was dropped")


# --- saved transactions ----------------------------------------------------------------------------


@cli.group()
def transaction() -> None:
    """Manage saved transactions.

    A program can save a transaction so that another program continues it.
    """


@transaction.command("list")
@pass_settings
def transaction_list(settings: Settings) -> None:
    """List the saved transactions, oldest first. A damaged one is marked as such; discard removes it."""
    with settings.catalog() as catalog:
        found = catalog.list_saved()
    settings.out.document(found, "\n".join(output.saved_text(one) for one in found))
    if not found:
        settings.out.note("no saved transactions")


@transaction.command("commit")
@click.argument("id")
@pass_settings
def transaction_commit(settings: Settings, id: str) -> int:
    """Commit a saved transaction as it is."""
    with settings.catalog() as catalog, catalog.resume(id) as tx:
        commit = tx.commit()
    if commit is None:
        settings.out.note("the transaction holds no operation")
        return output.NOTHING_TO_DO
    settings.out.document(commit, output.commit_text(commit))
    return output.DONE


@transaction.command("discard")
@click.argument("id")
@pass_settings
def transaction_discard(settings: Settings, id: str) -> None:
    """Remove a saved transaction and make sure that it never commits.

    Prints "committed" if the transaction committed before, "unknown" if another writer of the format saved it.
    """
    with settings.catalog() as catalog:
        found = catalog.discard(id)
    settings.out.document(found, output.outcome_text(found))
    if found.state == "unknown":
        settings.out.note("removed; it is not known whether the writer that saved it has committed it")
