"""Commands on a catalog as a whole."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import click

import alpheus
from alpheus import output
from alpheus.cli.frame import (
    COMPLETE_VARIABLE,
    Settings,
    cli,
    mapping,
    pass_settings,
    property_option,
)
from alpheus_journal import format as fmt

_DAEMON_NEEDS = ("alpheus_daemon", "grpc_health", "structlog", "uvloop")
SHELLS = ("bash", "zsh", "fish")

# --- catalogs --------------------------------------------------------------------------------------


@cli.command(short_help="Create a catalog on storage.")
@click.argument("url", required=False)
@click.option(
    "--order", type=int, default=fmt.ORDER_DEFAULT, show_default=True, help="Entries of a tree node."
)
@click.option(
    "--version-digits", type=click.Choice(["32", "64"]), default="32", show_default=True,
    help="64 is the dialect that the format's Java reader understands.",
)  # fmt: skip
@property_option
@pass_settings
def create(
    settings: Settings,
    url: str | None,
    order: int,
    version_digits: str,
    properties: tuple[tuple[str, str], ...],
) -> None:
    """Create a catalog on the storage at URL (or --catalog). It fails when there is one.

    \b
    Example
      alpheus create file:///lake --property owner=data-platform
    """
    url = url or settings.url
    if not url:
        raise click.UsageError("Missing argument 'URL', for example file:///lake.")
    if url.startswith("memory:"):
        raise click.UsageError(
            f"{url} would be gone when this command ends: create it on a disk, for example file:///lake,"
            ' or serve it: "alpheus serve --create memory://name".'
        )
    with alpheus.create(url, order, int(version_digits), mapping(properties)) as catalog:
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
    Options (all of them, with every limit: alpheus serve --help-all)
      --listen HOST:PORT   Serve here, or on unix:///path.sock [default: 127.0.0.1:7480].
      --create             Create the catalog when there is none.
      --port-file FILE     Write HOST:PORT to this file once the daemon answers.
      --sole-writer        Nobody else writes this catalog: faster reads.
      --allow-plaintext    Permit an address that other machines can reach, without encryption.
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
            " pip install 'alpheus[daemon]'"
        )
    words = ["--help" if word == "--help-all" else word for word in arguments]
    environment = dict(os.environ)
    if settings.url:
        environment["ALPHEUS_CATALOG"] = settings.url
    sys.stdout.flush()
    # The daemon takes this process over: its signals, its process id, its exit status.
    os.execve(sys.executable, [sys.executable, "-m", "alpheus_daemon", *words], environment)


@cli.command(short_help="Say which catalog this is and how far it is.")
@pass_settings
def info(settings: Settings) -> None:
    """Say which catalog this is, where it lies, and how far it is."""
    with settings.catalog() as catalog:
        found = catalog.info()
    settings.out.document(found, output.info_text(found))


@cli.command(short_help="Verify every invariant of the stored catalog.")
@click.option("--after", type=click.IntRange(0), metavar="V", help="Only versions above this one.")
@pass_settings
def check(settings: Settings, after: int | None) -> int:
    """Verify every invariant of the stored catalog. Changes nothing.

    Each finding is a line; the summary comes last. Exit status 1 when anything is wrong.
    """
    with settings.catalog() as catalog, output.waiting("checking"):
        report = catalog.admin.check(after)
    settings.out.status_if_cut = status = output.DONE if report.ok else output.FAILED
    plain = {
        "ok": report.ok,
        "findings": report.findings,
        "versions": report.versions,
        "nodes": report.nodes,
        "definitions": report.definitions,
        "manifests": report.manifests,
    }
    settings.out.document(plain, output.report_text(report))
    return status


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
