"""Commands on a catalog as a whole, on the symbol list, and on readers' leases."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import signal
import sys
from typing import Any

import click

import alpheus
from alpheus.cli.frame import (
    BOUND,
    COMPLETE_VARIABLE,
    SPAN,
    Settings,
    at_option,
    cli,
    confirm,
    mapping,
    pass_settings,
    print_names,
    property_option,
)
from alpheus.cli.text import output
from alpheus.events.events import check_unopened
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.urls import redact_url

NAME_BYTES = click.IntRange(1, fmt.NAME_SIZE_BYTES_MAX)
_DAEMON_NEEDS = (
    "alpheus_daemon",
    "grpc_health",
    "grpc_reflection",
    "prometheus_client",
    "structlog",
    "uvloop",
)
SHELLS = ("bash", "zsh", "fish")

# --- catalogs --------------------------------------------------------------------------------------


@cli.command(short_help="Create a catalog on storage.")
@click.argument("url", required=False)
@click.option(
    "--order",
    type=int,
    default=fmt.ORDER_DEFAULT,
    show_default=True,
    help="The number of entries of a tree node.",
)
@click.option(
    "--version-digits", type=click.Choice(["32", "64"]), default="32", show_default=True,
    help="Choose 64 for the dialect that the format's Java reader understands.",
)  # fmt: skip
@click.option(
    "--format-revision", type=click.IntRange(1, fmt.FORMAT_REVISION), default=fmt.FORMAT_REVISION, show_default=True,
    help="Choose 1 for programs that do not know revision 2 of the format yet.",
)  # fmt: skip
@click.option(
    "--namespace-name-bytes", type=NAME_BYTES, default=fmt.NAME_SIZE_BYTES_DEFAULT, show_default=True,
    help="The longest name of a namespace, in bytes of UTF-8. Each key of the tree is padded to it.",
)  # fmt: skip
@click.option(
    "--table-name-bytes", type=NAME_BYTES, default=fmt.NAME_SIZE_BYTES_DEFAULT, show_default=True,
    help="The longest name of a table.",
)  # fmt: skip
@click.option(
    "--view-name-bytes", type=NAME_BYTES, default=fmt.NAME_SIZE_BYTES_DEFAULT, show_default=True,
    help="The longest name of a view.",
)  # fmt: skip
@click.option(
    "--txn-ttl", type=SPAN, default="3d", show_default=True,
    help="How long a saved transaction lasts from its begin.",
)  # fmt: skip
@click.option(
    "--isolation", type=click.Choice(["snapshot", "serializable"]), default="snapshot", show_default=True,
    help="The isolation of transactions that name none.",
)  # fmt: skip
@property_option
@pass_settings
def create(
    settings: Settings,
    /,
    url: str | None,
    order: int,
    version_digits: str,
    format_revision: int,
    properties: tuple[tuple[str, str], ...],
    **limits: Any,
) -> None:
    """Create a catalog on the storage at URL (or --catalog). Fail if there is one already.

    All but the properties and the revision stay as they are for ever.

    \b
    Example
      alpheus create file:///lake --property owner=data-platform
    """
    url = url or settings.url
    if not url:
        raise click.UsageError("Missing argument 'URL', for example file:///lake.")
    if url.startswith("memory:"):
        raise click.UsageError(
            f"{redact_url(url)} would disappear when this command ends: create the catalog on a disk, for example"
            ' file:///lake, or serve it: "alpheus serve --create memory://name".'
        )
    digits = int(version_digits)
    with alpheus.create(url, order, digits, mapping(properties), format_revision, **limits) as catalog:
        info = catalog.info()
    settings.out.document(info, output.info_text(info))


@cli.command(
    short_help="Run the daemon.",
    options_metavar="",
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
    cls=click.Command,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[URL] [OPTIONS]")
@click.pass_context
def serve(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the daemon for the catalog at URL (or --catalog), until SIGTERM or Ctrl-C.

    \b
    Options (alpheus serve --help-all shows all of them, with every limit)
      --listen HOST:PORT   The address to serve, or unix:///path.sock [default: 127.0.0.1:7480].
      --create             Create the catalog if there is none.
      --config FILE        Read settings from this TOML file.
      --print-config       Print the settings in force and where each comes from, then exit.
      --port-file FILE     Write HOST:PORT to this file once the daemon answers.
      --sole-writer        Assume that no other process writes this catalog, for faster reads.
      --allow-plaintext    Allow an address that other machines can reach, without encryption.
      -h, --help           Show this message.

    \b
    Examples
      alpheus serve file:///lake --create
      alpheus serve file:///lake --listen 127.0.0.1:0 --port-file /run/alpheus.port
    """
    if {"-h", "--help"} & set(arguments):
        click.echo(context.get_help())
        return
    settings = context.ensure_object(Settings)
    missing = [name for name in _DAEMON_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the daemon is not installed completely ({', '.join(missing)} missing):"
            " run pip install 'alpheus[daemon]'"
        )
    words = ["--help" if word == "--help-all" else word for word in arguments]
    environment = dict(os.environ)
    if settings.url:
        environment["ALPHEUS_CATALOG"] = settings.url
    sys.stdout.flush()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # an early request to reload must not end the process
    # The daemon takes over this process: its signals, its process id, its exit status.
    os.execve(sys.executable, [sys.executable, "-m", "alpheus_daemon", *words], environment)


@cli.command(short_help="Show the catalog's identity and newest version.")
@pass_settings
def info(settings: Settings) -> None:
    """Show the catalog's id, where it is stored, and its newest and oldest version."""
    with settings.catalog() as catalog:
        found = catalog.info()
    settings.out.document(found, output.info_text(found))


@cli.command(short_help="Verify every invariant of the stored catalog.")
@click.option("--after", type=BOUND, metavar="V", help="Check only versions above this one.")
@click.option("--footers", is_flag=True, help="Also compare the footers of the newest version's data files.")
@click.option(
    "--values", is_flag=True, help="Read these files completely, to find damaged pages and wrong statistics."
)
@pass_settings
def check(settings: Settings, after: int | None, footers: bool, values: bool) -> int:
    """Verify every invariant of the stored catalog. Change nothing.

    Each finding is one line; a summary comes last. The exit status is 1 if anything is wrong.

    By default only the existence and the size of data files are checked. --footers reads the footer of each data
    file of the newest version and compares rows, columns, types, NULLs and bounds with the catalog. --values also
    reads the whole files: it verifies page checksums, if the file has them (this library and Spark write them), and
    compares values with the catalog; values in lists and maps only have to be readable. No option finds a file that
    was replaced by another of the same size and statistics.

    This command reads the files itself, even if the catalog is a daemon. On storage it works on any prefix, even
    where no catalog can be opened: with a damaged newest version, a missing version 0, or files of two catalogs.
    """
    try:
        with settings.catalog() as catalog, output.show_waiting("checking"):
            report = catalog.admin.check(after, footers, values)
    except (Corrupt, InvalidInput) as error:
        if settings.is_daemon or not (isinstance(error, Corrupt) or error.kind == "two_histories"):
            raise
        assert settings.url is not None
        report = asyncio.run(check_unopened(settings.url, after))  # also for a prefix that cannot be opened
        if footers or values:
            settings.out.note("the data files were not read, because the newest version cannot be read")
    settings.out.status_if_cut = status = output.DONE if report.ok else output.FAILED
    plain = {
        "ok": report.ok,
        "findings": report.findings,
        "versions": report.versions,
        "nodes": report.nodes,
        "definitions": report.definitions,
        "manifests": report.manifests,
        "files": report.files,
        "given_up": report.given_up,
    }
    settings.out.document(plain, output.report_text(report))
    return status


@cli.command(short_help="Go over to the newest revision of the format.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_settings
def upgrade(settings: Settings, dry_run: bool, yes: bool) -> int:
    """Take the catalog to the newest revision of its format that this program knows.

    From then on, programs of earlier releases refuse the catalog, to read and to write. So upgrade all programs first:
    daemons, Spark jobs and libraries. No stored file is rewritten, and no catalog goes back to an earlier revision. The
    exit status is 99 if there is nothing to do.

    \b
    Example
      alpheus --catalog file:///lake upgrade --dry-run
    """
    with settings.catalog() as catalog:
        plan = catalog.admin.upgrade(dry_run=True)
        if plan.before < plan.revision and not dry_run:
            confirm(settings, "upgrade", output.upgrade_text(plan), yes=yes)
            plan = catalog.admin.upgrade()
    settings.out.document(plan, output.upgrade_text(plan))
    return output.DONE if plan.before < plan.revision else output.NOTHING_TO_DO


@cli.command(short_help="Store a checkpoint of the state, for a fast start.")
@click.option("--verify", is_flag=True, help="Compare the state with the tree first, however large it is.")
@pass_settings
def checkpoint(settings: Settings, verify: bool) -> None:
    """Store the catalog's state as a checkpoint. A daemon then starts from the checkpoint instead of reading the tree.

    A daemon writes checkpoints by itself from time to time, and when it ends.
    """
    with settings.catalog() as catalog, output.show_waiting("writing a checkpoint"):
        found = catalog.admin.checkpoint(verify)
    text = (
        f"checkpoint of version {found.version}: {output.count_text(found.objects, 'object')}, {found.path}"
    )
    settings.out.document(found, text)


# --- the symbol list -------------------------------------------------------------------------------


@cli.group(short_help="Work with the list of all live objects' names.")
def symbols() -> None:
    """Work with the symbol list: the names of all live objects by kind and namespace. A daemon holds it in memory."""


@symbols.command("list", short_help="List names.")
@click.argument("pattern", required=False, default="")
@click.option("--kind", metavar="KIND", help="Only names of this kind: namespace, table, view, pipeline, ...")
@click.option("--namespace", metavar="NS", help="Only this namespace and the objects in it.")
@click.option("--prefix", default="", metavar="TEXT", help="Only full names that begin with this text.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N names.")
@at_option
@pass_settings
def symbols_list(
    settings: Settings,
    pattern: str,
    kind: str | None,
    namespace: str | None,
    prefix: str,
    limit: int | None,
    at: str | None,
) -> None:
    """List names in key order. PATTERN matches full names: `*` is any text, `?` one character.

    \b
    Examples
      alpheus symbols list "sales.*_2026"
      alpheus symbols list --kind table --namespace sales
    """
    with settings.catalog() as catalog:
        found = catalog.admin.symbols.list(kind, namespace, prefix, pattern, at, limit)
    names = [
        f"{one.kind} {one.namespace}.{one.name}" if one.namespace else f"{one.kind} {one.name}"
        for one in found
    ]
    print_names(settings, found, names, "no such names")


def _show_symbols(settings: Settings, info: alpheus.SymbolsInfo, did: str) -> None:
    text = (
        f"{did} at version {info.version}: {output.count_text(info.symbols, 'name')},"
        f" {info.journal_length} of them in the journal"
    )
    settings.out.document(info, text)


@symbols.command("reload", short_help="Rebuild the list from the tree.")
@pass_settings
def symbols_reload(settings: Settings) -> None:
    """Rebuild the list from the tree of the head, then replace the old list. Readers never see a gap.

    A daemon rebuilds everything that it holds in memory. It uses no checkpoint, deletes all of them and writes a
    new one.
    """
    with settings.catalog() as catalog, output.show_waiting("reading the tree"):
        info = catalog.admin.symbols.reload()
    _show_symbols(settings, info, "reloaded")


@symbols.command("check", short_help="Compare the list with the tree.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Compare only N random ranges of keys.")
@pass_settings
def symbols_check(settings: Settings, sample: int | None) -> int:
    """Compare the list in memory with the tree. The exit status is 1 if anything differs.

    A daemon stops using memory that differs immediately: it reads the tree instead, and reloads the catalog from it.
    """
    with settings.catalog() as catalog, output.show_waiting("comparing"):
        drift = catalog.admin.symbols.check(sample)
    lines = []
    for what, names in (("missing", drift.missing), ("surplus", drift.surplus), ("changed", drift.changed)):
        for one in names:
            full = f"{one.namespace}.{one.name}" if one.namespace else one.name
            lines.append(output.printable(f"{what}: {one.kind} {full}"))
    count = output.count_text(drift.differences, "difference")
    verdict = "ok" if drift.ok else count
    lines.append(
        f"{verdict}: compared {output.count_text(drift.checked, 'object')} at version {drift.version}"
    )
    settings.out.status_if_cut = status = output.DONE if drift.ok else output.FAILED
    settings.out.document(drift, "\n".join(lines))
    return status


@symbols.command("compact", short_help="Compact the list's journal now.")
@pass_settings
def symbols_compact(settings: Settings) -> None:
    """Merge added and removed names into the base of the list now. Otherwise this happens in the background."""
    with settings.catalog() as catalog:
        info = catalog.admin.symbols.compact()
    _show_symbols(settings, info, "compacted")


# --- completion ------------------------------------------------------------------------------------


@cli.command(short_help="Print the script for a shell's completion.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
    In the shell's start file
      bash   eval "$(alpheus completion bash)"
      zsh    eval "$(alpheus completion zsh)"
      fish   alpheus completion fish | source
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "alpheus", COMPLETE_VARIABLE).source())


@cli.group(short_help="Show which versions readers hold.")
def lease() -> None:
    """Show leases: versions that readers keep readable even if the versions expire.

    A reader takes a lease if it can write to the storage (catalog.at(..., lease=True); Spark does so by itself),
    renews the lease while it reads, and releases it at the end. The lease of a killed reader runs out by itself.
    Imports, writes by Spark and runs of pipelines hold leases, too: a collection keeps the files of their transaction.
    Leases are stored on the storage and are read from there, even if the catalog is a daemon.
    """


def _writer_text(transaction_id: str) -> str:
    return f"for transaction {transaction_id}" if transaction_id else ""


@lease.command("list")
@pass_settings
def lease_list(settings: Settings) -> None:
    """List the leases.

    Each line shows the version that a lease holds, and when the lease runs out.
    """
    with settings.catalog() as catalog:
        found = catalog.admin.leases()
    rows = [
        (
            "?" if each.state == "damaged" else each.version,
            each.state,
            output.time_text(each.renewed_at),
            output.time_text(each.runs_out_at),
            each.damage or ", ".join(filter(None, (each.holder, _writer_text(each.transaction_id)))),
            each.id,
        )
        for each in found
    ]
    settings.out.document(
        found, output.columns_text(["VERSION", "STATE", "RENEWED", "RUNS OUT", "HOLDER", "ID"], rows)
    )
    if not found:
        settings.out.note("no leases")
