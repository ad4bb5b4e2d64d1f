"""Options, arguments, errors and exit statuses that all commands share."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import click
import pyarrow as pa

import alpheus
from alpheus.cli.text import output
from alpheus.cli.text.column_types import parse_column
from alpheus.errors import InvalidInput
from alpheus.models import Commit
from alpheus.session.connections import DAEMON_SCHEMES, scheme_of
from alpheus.sync.reads import SyncReads
from alpheus.sync.writes import SyncWrites
from alpheus_journal.clock import parse_span
from alpheus_journal.format import Kind
from alpheus_journal.urls import redact_url

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

COMPLETE_VARIABLE = "_ALPHEUS_COMPLETE"


# --- the frame: options that every command takes, errors, exit statuses ----------------------------


class Settings:
    """The options that every command takes. Commands print through `out`."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.timeout: float = 30
        self.out = output.Printer()
        self.command = ""
        """The command that runs, without "alpheus". `options` are the options that it has."""
        self.options: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def catalog(self) -> Iterator[alpheus.Catalog]:
        """Open the catalog that the user named, while the block runs."""
        if not self.url:
            raise click.UsageError(
                "No catalog is given: pass --catalog URL or set ALPHEUS_CATALOG,"
                " for example grpc://127.0.0.1:7480 or file:///lake."
            )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            with output.show_waiting(f"connecting to {redact_url(self.url)}"):
                catalog = alpheus.connect(self.url, timeout=self.timeout)
        for warning in caught:
            click.echo(f"warning: {output.printable(str(warning.message))}", err=True)
        with catalog:
            yield catalog

    @property
    def is_daemon(self) -> bool:
        """Return whether the catalog's URL names a daemon rather than storage."""
        return scheme_of(self.url or "") in (*DAEMON_SCHEMES, "grpcs")

    @contextlib.contextmanager
    def reader(self, at: str | None) -> Iterator[SyncReads]:
        """Open the catalog pinned at one version, so that everything a command prints is consistent."""
        with self.catalog() as catalog:
            yield catalog.at(at)


def _set_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).url = value


def _set_output(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).out.json = value == "json"


def _set_timeout(context: click.Context, parameter: click.Parameter, value: float | None) -> None:
    if value is not None:
        context.ensure_object(Settings).timeout = value


def _shared_options(*, top: bool) -> list[click.Parameter]:
    """Return the shared options. They may stand before or after the command's name; the value after it wins."""
    return [
        click.Option(
            ["--catalog"], metavar="URL", expose_value=False, callback=_set_url,
            envvar="ALPHEUS_CATALOG" if top else None, show_envvar=top,
            help="The catalog: a daemon (grpc://host:port, unix:///path.sock) or storage (file:///path, s3://bucket/p)."
        ),
        click.Option(
            ["--output"], type=click.Choice(["table", "json"]), expose_value=False, callback=_set_output,
            envvar="ALPHEUS_OUTPUT" if top else None, show_envvar=top,
            help="Print text for people (the default), or JSON.",
        ),
        click.Option(
            ["--timeout"], type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", expose_value=False,
            callback=_set_timeout, envvar="ALPHEUS_TIMEOUT" if top else None, show_envvar=top,
            help="How long to retry while the catalog is unavailable (default 30).",
        ),
    ]  # fmt: skip


class Command(click.Command):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params.extend(_shared_options(top=False))

    def invoke(self, ctx: click.Context) -> Any:
        settings = ctx.ensure_object(Settings)
        settings.command = ctx.command_path.partition(" ")[2]
        settings.options = frozenset(option for each in self.params for option in each.opts)
        return super().invoke(ctx)


class VersionsCommand(Command):
    """A command whose arguments are versions, so that a minus and digits are not an option. Such an argument arrives
    with a leading blank."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {word}" if re.fullmatch(r"-\d+", word) else word for word in args])


class Bound(click.ParamType[int]):
    """A version as a bound of a search: a number from 0 on."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if re.fullmatch(r"-\d+", text, re.ASCII):
            self.fail(
                f"{text} would count from the head; a bound of the log must be a number from 0 on"
                ' ("alpheus info" shows the newest version).',
                param,
                ctx,
            )
        if not (text.isascii() and text.isdecimal()):
            self.fail(f"{text!r} is not a version: give a number from 0 on.", param, ctx)
        return int(text)


BOUND = Bound()


class Group(click.Group):
    command_class = Command


class Root(Group):
    """The whole command. `main` never returns. It shows a traceback only if ALPHEUS_DEBUG asks for one."""

    group_class = Group

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        settings = Settings()
        settings.out.json = _asks_for_json(words)
        extra |= {"standalone_mode": False, "complete_var": COMPLETE_VARIABLE, "obj": settings}
        extra["prog_name"] = "alpheus"
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names may hold characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            status = int(super().main(words, **extra) or output.DONE)
        except output.ReaderGone:
            output.abandon_output()
            status = settings.out.status_if_cut
        except (click.Abort, KeyboardInterrupt):
            status = output.INTERRUPTED
        except Exception as error:
            status = output.report(
                error, json=settings.out.json, command=settings.command, options=settings.options
            )
        sys.exit(status)


def _asks_for_json(words: Sequence[str]) -> bool:
    """Return whether a usage error that is found before all options are read must be reported as JSON."""
    for index, word in enumerate(words):
        if word.startswith("--output"):
            value = word.partition("=")[2] or (words[index + 1] if index + 1 < len(words) else "")
            return value == "json"
    return os.environ.get("ALPHEUS_OUTPUT", "") == "json"


pass_settings = click.make_pass_decorator(Settings)


@click.group(
    cls=Root,
    params=_shared_options(top=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Exit status
  0    done
  1    failed; with --output json the error is one JSON object on standard error
  2    wrong usage
  3    a conflict with another transaction: run the command again
  4    the outcome is unknown: ask for it with "alpheus outcome"
  99   there was nothing to do
  130  interrupted
A closed pipe ("| head -1") ends a command quietly with status 0.

\b
Examples
  alpheus create file:///lake
  alpheus serve file:///lake &
  export ALPHEUS_CATALOG=grpc://127.0.0.1:7480
  alpheus namespace create sales
  alpheus table create sales.orders --column id:int64:required --column amount:"decimal(10,2)"
  alpheus events --follow --output json

To complete commands and options in the shell, see "alpheus completion --help".""",
)
@click.version_option(package_name="alpheus", prog_name="alpheus", message="%(prog)s %(version)s")
def cli() -> None:
    """Work with an Alpheus catalog: its namespaces and tables, its history, and its daemon.

    Answers go to standard output, everything else to standard error. With --output json the answer is one
    JSON document; a stream prints one JSON document per line.
    """


def main() -> NoReturn:
    """The entry point of the `alpheus` script."""
    cli.main()


# --- arguments -------------------------------------------------------------------------------------


class Pair(click.ParamType[tuple[str, str]]):
    """`key=value`. The value may be empty and may contain equal signs."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not KEY=VALUE.", param, ctx)
        return key, rest


class ColumnType(click.ParamType[pa.Field]):
    """`name:type[:required]`."""

    name = "column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pa.Field:
        try:
            return parse_column(str(value))
        except InvalidInput as error:
            self.fail(f"{error.message}\n{error.hint}".strip(), param, ctx)


class Span(click.ParamType[timedelta]):
    """A time such as `30d`, `12h` or `1d12h`."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = parse_span(str(value))
        if found is None:
            self.fail(f"{value!r} is not a time such as 30d, 12h or 1d12h.", param, ctx)
        return found


PAIR = Pair()
SPAN = Span()


def mapping(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dict. Raise a usage error for a key that is given twice."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{key!r} is given twice.")
        found[key] = value
    return found


def check_changes(
    pairs: Iterable[tuple[str, str]], unset: Sequence[str], *, or_else: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Check the arguments of a `set` command and return (values to set, keys to remove). With `or_else` the command has
    other changes to make, so that both may be empty."""
    values = mapping(pairs)
    if not values and not unset and not or_else:
        raise click.UsageError("Nothing to change: give KEY=VALUE or --unset KEY.")
    for key in unset:
        if key in values:
            raise click.UsageError(f"{key!r} is both set and unset.")
    return values, list(unset)


def at_option(command: F) -> F:
    return click.option(
        "--at",
        metavar="WHEN",
        help="Read the catalog at this version (-1 is the newest, -2 the one before), at this tag, or at this time,"
        " with a zone, such as 2026-03-01T12:00:00Z.",
    )(command)


def when_option(command: F) -> F:
    return click.option(
        "--at",
        metavar="WHEN",
        help="Restore the state of this version, tag or time (with a zone), at which the object existed.",
    )(command)


def as_option(command: F) -> F:
    return click.option(
        "--as", "as_name", metavar="NAME", help="Bring it back under this name instead of its own."
    )(command)


def message_option(command: F) -> F:
    return click.option("--message", "-m", default="", help="The reason for the change; the log keeps it.")(
        command
    )


def property_option(command: F) -> F:
    return click.option(
        "--property", "properties", type=PAIR, multiple=True, metavar="K=V", help="A property. Repeatable."
    )(command)


def unset_option(command: F) -> F:
    return click.option("--unset", multiple=True, metavar="KEY", help="Remove a property. Repeatable.")(
        command
    )


def exist_ok_option(command: F) -> F:
    return click.option("--exist-ok", is_flag=True, help="Succeed without a change if it already exists.")(
        command
    )


def write(
    settings: Settings, message: str, did: str, verb: Callable[[SyncWrites[Any]], Commit | None]
) -> None:
    """Commit one operation and print the version."""
    with settings.catalog() as catalog:
        commit: Commit | None
        if message:
            with catalog.transaction(message=message) as tx:
                verb(tx)
            version, commit = tx.version, tx.result
        else:
            commit = verb(catalog)
            assert commit is not None
            version = commit.version
    if commit is None or not commit.transaction_id:
        # The object exists already and the caller allowed that: there is no transaction to show.
        settings.out.document({"version": version, "transaction_id": ""}, f"unchanged at version {version}")
    else:
        settings.out.document(commit, f"{did} in version {commit.version}")


def filter_options(command: F) -> F:
    """Add the options that select events: `namespaces`, `names`, `kinds`, `actions`, each a tuple of texts."""
    options = (
        click.option(
            "--namespace",
            "namespaces",
            multiple=True,
            metavar="NS",
            help="Only changes in this namespace. Repeatable.",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="NAME",
            help="Only this object, or objects that match a pattern: 'sales.*'. Repeatable.",
        ),
        click.option(
            "--kind",
            "kinds",
            multiple=True,
            type=click.Choice([kind.label for kind in Kind]),
            help="Only this kind of object. Repeatable.",
        ),
        click.option(
            "--action",
            "actions",
            multiple=True,
            metavar="TYPE",
            help="Only events with this action, such as TABLE_INSERT. Repeatable.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


count_option = click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N items.")


def print_names(settings: Settings, values: Sequence[Any], names: Sequence[str], none: str) -> None:
    """Print names, one per line, so that shells can loop over them."""
    settings.out.document(values, "\n".join(output.printable(name) for name in names))
    if not values:
        settings.out.note(none)


def confirm(settings: Settings, what: str, plan: str, *, yes: bool) -> None:
    """Show the plan of a command that cannot be undone, and ask. Nothing is asked with `yes`. Raises UsageError where
    nobody can answer, and Abort for a no."""
    if yes:
        return
    if settings.out.json or not sys.stdin.isatty():
        if not settings.out.json:
            click.echo(plan, err=True)
        raise click.UsageError(
            f"A{'n' if what[0] in 'aeiou' else ''} {what} needs confirmation: look at --dry-run, then pass --yes."
        )
    click.echo(plan, err=True)
    click.confirm("Do this?", abort=True, err=True)
