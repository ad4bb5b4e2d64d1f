"""What all commands share: options, arguments, errors, exit statuses."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import click
import pyarrow as pa

import alpheus
from alpheus.cli import output
from alpheus.cli.column_types import parse_column
from alpheus.errors import InvalidInput
from alpheus.models import Commit
from alpheus.session.connections import DAEMON_SCHEMES, scheme_of
from alpheus.sync.reads import SyncReads
from alpheus.sync.writes import SyncWrites
from alpheus_journal.format import Kind
from alpheus_journal.urls import shown

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
        """The one that runs, without "alpheus", and the options that it has."""
        self.options: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def catalog(self) -> Iterator[alpheus.Catalog]:
        """The catalog asked for, open while the block runs."""
        if not self.url:
            raise click.UsageError(
                "No catalog is named: pass --catalog URL or set ALPHEUS_CATALOG,"
                " for example grpc://127.0.0.1:7480 or file:///lake."
            )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            with output.waiting(f"connecting to {shown(self.url)}"):
                catalog = alpheus.connect(self.url, timeout=self.timeout)
        for warning in told:
            click.echo(f"warning: {output.printable(str(warning.message))}", err=True)
        with catalog:
            yield catalog

    @property
    def is_daemon(self) -> bool:
        """Whether the catalog asked for is a daemon, and no storage."""
        return scheme_of(self.url or "") in (*DAEMON_SCHEMES, "grpcs")

    @contextlib.contextmanager
    def reader(self, at: str | None) -> Iterator[SyncReads]:
        """The catalog pinned at one version, so that everything a command prints agrees."""
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
    """They may stand before the command's name or after it; after it wins."""
    return [
        click.Option(
            ["--catalog"], metavar="URL", expose_value=False, callback=_set_url,
            envvar="ALPHEUS_CATALOG" if top else None, show_envvar=top,
            help="The catalog: grpc://host:port, unix:///path.sock (a daemon), file:///path, s3://bucket/p (storage)."
        ),
        click.Option(
            ["--output"], type=click.Choice(["table", "json"]), expose_value=False, callback=_set_output,
            envvar="ALPHEUS_OUTPUT" if top else None, show_envvar=top,
            help="Text for people (the default), or JSON.",
        ),
        click.Option(
            ["--timeout"], type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", expose_value=False,
            callback=_set_timeout, envvar="ALPHEUS_TIMEOUT" if top else None, show_envvar=top,
            help="Try so long while the catalog is unavailable (default 30).",
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
    """A command whose arguments are versions: a minus and digits are no option. They come with a blank before them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {word}" if re.fullmatch(r"-\d+", word) else word for word in args])


class Bound(click.ParamType[int]):
    """A version that bounds what is looked at."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if re.fullmatch(r"-\d+", text, re.ASCII):
            self.fail(
                f"{text} would count from the head, as versions to read may; a bound of the log is a number from 0 on"
                ' ("alpheus info" tells the newest).',
                param,
                ctx,
            )
        if not (text.isascii() and text.isdecimal()):
            self.fail(f"{text!r} is no version: a number from 0 on is needed.", param, ctx)
        return int(text)


BOUND = Bound()


class Group(click.Group):
    command_class = Command


class Root(Group):
    """The whole command. `main` never returns and never shows a traceback that was not asked for."""

    group_class = Group

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        settings = Settings()
        settings.out.json = _asks_for_json(words)
        extra |= {"standalone_mode": False, "complete_var": COMPLETE_VARIABLE, "obj": settings}
        extra["prog_name"] = "alpheus"
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names may hold what a terminal's encoding lacks.
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
    """Whether a usage error, found before all options are read, is to be reported as JSON."""
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
  3    a conflict with another transaction: run it again
  4    the outcome is unknown: ask for it with "alpheus outcome"
  99   there was nothing to do
  130  interrupted
A closed pipe ("| head -1") ends a command quietly, with status 0.

\b
Examples
  alpheus create file:///lake
  alpheus serve file:///lake &
  export ALPHEUS_CATALOG=grpc://127.0.0.1:7480
  alpheus namespace create sales
  alpheus table create sales.orders --column id:int64:required --column amount:"decimal(10,2)"
  alpheus events --follow --output json

Completion of commands and options: "alpheus completion --help".""",
)
@click.version_option(package_name="alpheus", prog_name="alpheus", message="%(prog)s %(version)s")
def cli() -> None:
    """Work with an Alpheus catalog: its namespaces and tables, what happened to them, and its daemon.

    Answers go to standard output, everything else to standard error. With --output json the answer is one
    JSON document, and of streams one line an item.
    """


def main() -> NoReturn:
    """The entry point of the `alpheus` script."""
    cli.main()


# --- arguments -------------------------------------------------------------------------------------


class Pair(click.ParamType[tuple[str, str]]):
    """`key=value`; the value may be empty and may hold more equal signs."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is no KEY=VALUE.", param, ctx)
        return key, rest


class ColumnType(click.ParamType[pa.Field]):
    """`name:type[:required]`."""

    name = "column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pa.Field:
        try:
            return parse_column(str(value))
        except InvalidInput as error:
            self.fail(f"{error.message}\n{error.hint}".strip(), param, ctx)


PAIR = Pair()


def mapping(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Pairs as a dict; a usage error for a key that comes twice."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{key!r} is given twice.")
        found[key] = value
    return found


def changes(
    pairs: Iterable[tuple[str, str]], unset: Sequence[str], *, or_else: bool = False
) -> tuple[dict[str, str], list[str]]:
    """What `set` commands are asked to do, checked. `or_else`: they are asked for something else as well."""
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
        help="As it stood then: a version (-1: the newest, -2: the one before), or a time with a zone such as"
        " 2026-03-01T12:00:00Z.",
    )(command)


def when_option(command: F) -> F:
    return click.option(
        "--at", metavar="WHEN", help="As it was then: a version at which it was there, or a time with a zone."
    )(command)


def as_option(command: F) -> F:
    return click.option("--as", "as_name", metavar="NAME", help="Under this name instead of its own.")(
        command
    )


def message_option(command: F) -> F:
    return click.option("--message", "-m", default="", help="Why; the log keeps it.")(command)


def property_option(command: F) -> F:
    return click.option(
        "--property", "properties", type=PAIR, multiple=True, metavar="K=V", help="A property. Repeat it."
    )(command)


def unset_option(command: F) -> F:
    return click.option("--unset", multiple=True, metavar="KEY", help="Remove a property. Repeat it.")(
        command
    )


def exist_ok_option(command: F) -> F:
    return click.option(
        "--exist-ok", is_flag=True, help="Leave it as it is when it exists already, and succeed."
    )(command)


def write(
    settings: Settings, message: str, did: str, verb: Callable[[SyncWrites[Any]], Commit | None]
) -> None:
    """Commit one verb, and say so."""
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
        # It exists already and that was fine; there is no transaction to show.
        settings.out.document({"version": version, "transaction_id": ""}, f"unchanged at version {version}")
    else:
        settings.out.document(commit, f"{did} in version {commit.version}")


def filter_options(command: F) -> F:
    """Which events: `namespaces`, `names`, `kinds`, `actions`, each a tuple of texts."""
    options = (
        click.option(
            "--namespace", "namespaces", multiple=True, metavar="NS", help="Only changes in it. Repeat it."
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="NAME",
            help="Only this object, or a pattern: 'sales.*'. Repeat it.",
        ),
        click.option(
            "--kind",
            "kinds",
            multiple=True,
            type=click.Choice([kind.label for kind in Kind]),
            help="Only this kind of object. Repeat it.",
        ),
        click.option(
            "--action",
            "actions",
            multiple=True,
            metavar="TYPE",
            help="Only with this action: TABLE_INSERT. Repeat it.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


count_option = click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.")


def list_names(settings: Settings, values: Sequence[Any], names: Sequence[str], none: str) -> None:
    """Names one a line, which shells can loop over."""
    settings.out.document(values, "\n".join(output.printable(name) for name in names))
    if not values:
        settings.out.note(none)
