"""The `alpheus` command: thin commands over `alpheus.connect`, with the exit statuses that `--help` lists.

A command prints its answer when it is done, so that a failure leaves nothing on standard output; only streams
(`events`, `log`) print as they go. A closed pipe ends a command quietly: whoever read it had enough.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, NoReturn, TypeVar

import click
import pyarrow as pa
import pyarrow.parquet as pq

import alpheus
from alpheus import document, output
from alpheus import pipeline as declared
from alpheus.catalog import SyncReads, SyncWrites
from alpheus.errors import InvalidInput
from alpheus.models import Commit
from alpheus_journal import format as fmt
from alpheus_journal.format import Kind
from alpheus_journal.system import RandomIdentities

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SHELLS = ("bash", "zsh", "fish")
_COMPLETE_VARIABLE = "_ALPHEUS_COMPLETE"
_DAEMON_NEEDS = ("alpheus_daemon", "grpc_health", "structlog", "uvloop")


# --- the frame: options that every command takes, errors, exit statuses ----------------------------


class Settings:
    """The options that every command takes. Commands print through `out`."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.timeout: float = 30
        self.out = output.Printer()

    @contextlib.contextmanager
    def catalog(self) -> Iterator[alpheus.Catalog]:
        """The catalog asked for, open while the block runs."""
        if not self.url:
            raise click.UsageError(
                "No catalog is named: pass --catalog URL or set ALPHEUS_CATALOG,"
                " for example grpc://127.0.0.1:7480 or file:///lake."
            )
        with output.waiting(f"connecting to {self.url}"):
            catalog = alpheus.connect(self.url, timeout=self.timeout)
        with catalog:
            yield catalog

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
            help="The catalog: grpc://host:port, unix:///path.sock (a daemon), file:///path (storage)."
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


class Group(click.Group):
    command_class = Command


class Root(Group):
    """The whole command. `main` never returns and never shows a traceback that was not asked for."""

    group_class = Group

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        settings = Settings()
        settings.out.json = _asks_for_json(words)
        extra |= {"standalone_mode": False, "complete_var": _COMPLETE_VARIABLE, "obj": settings}
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
            status = output.report(error, json=settings.out.json)
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
            return document.parse_column(str(value))
        except InvalidInput as error:
            self.fail(f"{error.message}\n{error.hint}".strip(), param, ctx)


PAIR = Pair()


def _mapping(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{key!r} is given twice.")
        found[key] = value
    return found


def _changes(pairs: Iterable[tuple[str, str]], unset: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What `set` commands are asked to do, checked."""
    values = _mapping(pairs)
    if not values and not unset:
        raise click.UsageError("Nothing to change: give KEY=VALUE or --unset KEY.")
    for key in unset:
        if key in values:
            raise click.UsageError(f"{key!r} is both set and unset.")
    return values, list(unset)


def at_option(command: F) -> F:
    return click.option(
        "--at",
        metavar="WHEN",
        help="As it stood then: a version, or a time with a zone such as 2026-03-01T12:00:00Z.",
    )(command)


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


def _write(
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
    with alpheus.create(url, order, int(version_digits), _mapping(properties)) as catalog:
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


# --- namespaces ------------------------------------------------------------------------------------


@cli.group()
def namespace() -> None:
    """List, show and change namespaces.

    \b
    Examples
      alpheus namespace create sales --property owner=ann
      alpheus namespace set sales owner=bob --unset draft
    """


@namespace.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@at_option
@pass_settings
def namespace_list(settings: Settings, prefix: str, at: str | None) -> None:
    """List the namespaces, one name a line."""
    with settings.reader(at) as reader:
        found = reader.list_namespaces(prefix)
    _list(settings, found, [name.name for name in found], "no namespaces")


@namespace.command("show")
@click.argument("name")
@at_option
@pass_settings
def namespace_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the properties of a namespace."""
    with settings.reader(at) as reader:
        found = reader.load_namespace(name)
    text = output.fields_text([("namespace", found.name), ("id", found.id), ("at version", found.version)])
    if found.properties:
        text += "\nproperties" + output.properties_text(found.properties)
    settings.out.document(found, text)


@namespace.command("create")
@click.argument("name")
@property_option
@exist_ok_option
@message_option
@pass_settings
def namespace_create(
    settings: Settings, name: str, properties: tuple[tuple[str, str], ...], exist_ok: bool, message: str
) -> None:
    """Create a namespace."""
    given = _mapping(properties)
    _write(
        settings,
        message,
        f"created namespace {name}",
        lambda to: to.create_namespace(name, given, exist_ok=exist_ok),
    )


@namespace.command("set")
@click.argument("name")
@click.argument("pairs", type=PAIR, nargs=-1, metavar="[K=V]...")
@unset_option
@message_option
@pass_settings
def namespace_set(
    settings: Settings, name: str, pairs: tuple[tuple[str, str], ...], unset: tuple[str, ...], message: str
) -> None:
    """Set and remove properties of a namespace."""
    values, keys = _changes(pairs, unset)
    _write(settings, message, f"updated namespace {name}", lambda to: to.update_namespace(name, values, keys))


@namespace.command("drop")
@click.argument("name")
@message_option
@pass_settings
def namespace_drop(settings: Settings, name: str, message: str) -> None:
    """Drop a namespace. It must be empty."""
    _write(settings, message, f"dropped namespace {name}", lambda to: to.drop_namespace(name))


def _list(settings: Settings, values: Sequence[Any], names: Sequence[str], none: str) -> None:
    """Names one a line, which shells can loop over."""
    settings.out.document(values, "\n".join(output.printable(name) for name in names))
    if not values:
        settings.out.note(none)


# --- tables ----------------------------------------------------------------------------------------


@cli.group()
def table() -> None:
    """List, show and change tables. A table is named NAMESPACE.NAME.

    \b
    Examples
      alpheus table create sales.orders --column id:int64:required --column at:timestamptz
      alpheus table create sales.lines --like lines.parquet
      alpheus table show sales.orders --at 12
    """


@table.command("list")
@click.argument("namespace", required=False)
@click.option("--prefix", default="", help="Only names (without the namespace) that begin with this.")
@click.option("--long", "-l", "long_", is_flag=True, help="Format, rows, files and size of each, too.")
@at_option
@pass_settings
def table_list(settings: Settings, namespace: str | None, prefix: str, long_: bool, at: str | None) -> None:
    """List the tables of NAMESPACE, or of all namespaces."""
    with settings.reader(at) as reader:
        namespaces = [namespace] if namespace else [name.name for name in reader.list_namespaces()]
        found = [name for each in namespaces for name in reader.list_tables(each, prefix)]
        tables = reader.load_tables([(name.namespace, name.name) for name in found]) if long_ else []
    if not long_:
        _list(settings, found, [name.full_name for name in found], "no tables")
        return
    settings.out.document(
        [output.table_plain(each) for each in tables],
        output.columns_text(
            ["NAME", "FORMAT", "ROWS", "FILES", "SIZE"],
            [
                (t.full_name, t.format, t.row_count, t.file_count, output.size_text(t.size_bytes))
                for t in tables
            ],
        ),
    )
    if not tables:
        settings.out.note("no tables")


@table.command("show")
@click.argument("name")
@at_option
@pass_settings
def table_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the schema, properties, rows and files of a table."""
    with settings.reader(at) as reader:
        found = reader.load_table(name)
    settings.out.document(output.table_plain(found), output.table_text(found))


@table.command("create")
@click.argument("name")
@click.option(
    "--column", "columns", type=ColumnType(), multiple=True, metavar="NAME:TYPE[:required]",
    help="A column. Repeat it, in the order of the columns.",
)  # fmt: skip
@click.option("--like", type=click.Path(exists=True, dir_okay=False), metavar="FILE.parquet",
              help="Take the columns of a Parquet file; its rows are not read.")  # fmt: skip
@property_option
@exist_ok_option
@message_option
@pass_settings
def table_create(
    settings: Settings, name: str, columns: tuple[pa.Field, ...], like: str | None,
    properties: tuple[tuple[str, str], ...], exist_ok: bool, message: str,
) -> None:  # fmt: skip
    """Create an empty table.

    \b
    Types
      boolean, int16, int32, int64, float, double, string, binary, date
      timestamp            without a zone
      timestamptz          an instant
      decimal(P,S)         P digits, S of them after the point
      fixed(N)             N bytes
      list<T>, map<K,V>, struct<NAME:T,...>
    A name with special characters stands in backquotes. T:required forbids NULL.

    \b
    Examples
      alpheus table create sales.orders --column id:int64:required --column "price:decimal(10,2)"
      alpheus table create sales.events --column "tags:map<string,list<string>>"
      alpheus table create sales.lines --like lines.parquet --property owner=ann
    """
    if bool(columns) == bool(like):
        raise click.UsageError("Give either --column (repeated) or --like FILE.parquet.")
    schema = _parquet_schema(like) if like else pa.schema(columns)
    given = _mapping(properties)
    _write(
        settings,
        message,
        f"created table {name}",
        lambda to: to.create_table(name, schema, given, exist_ok=exist_ok),
    )


def _parquet_schema(path: str) -> pa.Schema:
    try:
        schema: pa.Schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: no Parquet file: {error}", kind="bad_data") from None
    return schema.remove_metadata()


@table.command("set")
@click.argument("name")
@click.argument("pairs", type=PAIR, nargs=-1, metavar="[K=V]...")
@unset_option
@message_option
@pass_settings
def table_set(
    settings: Settings, name: str, pairs: tuple[tuple[str, str], ...], unset: tuple[str, ...], message: str
) -> None:
    """Set and remove properties of a table."""
    values, keys = _changes(pairs, unset)
    _write(settings, message, f"updated table {name}", lambda to: to.update_table(name, values, keys))


@table.command("drop")
@click.argument("name")
@click.option("--purge", is_flag=True, help="Its data need not be kept for restoring it.")
@message_option
@pass_settings
def table_drop(settings: Settings, name: str, purge: bool, message: str) -> None:
    """Drop a table. Older versions of the catalog still have it."""
    _write(settings, message, f"dropped table {name}", lambda to: to.drop_table(name, purge=purge))


# --- transactions ----------------------------------------------------------------------------------


@cli.command(short_help="Commit a JSON document of operations as one transaction.")
@click.argument("file", type=click.File("rb"))
@pass_settings
def apply(settings: Settings, file: BinaryIO) -> int:
    """Commit the operations of a JSON document (FILE, or - for standard input) as one transaction.

    All of them take effect together or none does. A mistake is reported with its place in the document.

    \b
    Keys of a document
      operations   a list; each is an object with one key, see below
      message      why; the log keeps it
      properties   texts that the log keeps with the transaction
      isolation    "snapshot" (the default)
      id           the transaction id ("alpheus new-id" prints one). Run again, a document with an id is not
                   applied twice: the answer is the first commit, with "duplicate": true

    \b
    Operations
      create_namespace   name, properties, exist_ok
      update_namespace   name, set, unset
      drop_namespace     name
      create_table       name, columns: [{"name", "type", "nullable"}], properties, exist_ok
      update_table       name, set, unset
      drop_table         name, purge
      update_catalog     set, unset
      append             name, rows: [{column: value}]
      overwrite          name, rows
    Types are those of "alpheus table create --help". In rows, times are ISO 8601 text, bytes base64.

    \b
    Example
      echo '{"message": "new region", "operations": [
        {"create_namespace": {"name": "emea"}},
        {"create_table": {"name": "emea.sites", "columns": [{"name": "id", "type": "int64"}]}},
        {"append": {"name": "emea.sites", "rows": [{"id": 1}, {"id": 2}]}}]}' | alpheus apply -

    Exit status 99 when the document leaves nothing to do.
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


@cli.command("new-id", short_help="Print a fresh transaction id for a document of apply.")
@pass_settings
def new_id(settings: Settings) -> None:
    """Print a fresh transaction id, for the "id" of a document of "alpheus apply"."""
    found = RandomIdentities().uuid7()
    settings.out.document({"id": found}, found)


@cli.command(short_help="Say what became of a transaction.")
@click.argument("transaction")
@click.option(
    "--since", type=click.IntRange(0), metavar="V", help="It began at this version: search from there."
)
@click.option(
    "--settle", is_flag=True, help="If it is not there, cancel it for good: only then the answer is final."
)
@pass_settings
def outcome(settings: Settings, transaction: str, since: int | None, settle: bool) -> int:
    """Say what became of a transaction: committed, cancelled or unknown.

    Exit status 0 for a definite answer, 4 when it is unknown. Unknown never means not applied.
    """
    with settings.catalog() as catalog:
        found = catalog.outcome(transaction, since=since, settle=settle)
    settings.out.status_if_cut = status = output.UNKNOWN if found.state == "unknown" else output.DONE
    settings.out.document(found, output.outcome_text(found))
    if found.state == "unknown":
        settings.out.note("hint: --settle makes the answer final")
    return status


# --- the log ---------------------------------------------------------------------------------------

count_option = click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.")


@cli.command(short_help="Print versions as they were committed, or follow them.")
@click.option(
    "--after", metavar="V|TOKEN", help="Begin behind this version or token; without it, at the oldest."
)
@click.option("--until", type=click.IntRange(0), metavar="V", help="End with this version.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is committed from now on, until Ctrl-C.")
@click.option("--namespace", "namespaces", multiple=True, metavar="NS", help="Only changes in it. Repeat it.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this object. Repeat it.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice([kind.label for kind in Kind]),
    help="Only this kind of object. Repeat it.",
)  # fmt: skip
@count_option
@click.option("--details", is_flag=True, help="With --output json: definitions before and after each change.")
@pass_settings
def events(
    settings: Settings, after: str | None, until: int | None, follow: bool, namespaces: tuple[str, ...],
    names: tuple[str, ...], kinds: tuple[str, ...], count: int | None, details: bool,
) -> None:  # fmt: skip
    """Print versions as they were committed, oldest first: one line each.

    With --output json each line is one JSON object. Its "token" (or "version") given to --after goes on
    behind it, so that no event is missed and none comes twice.

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
        )
        event = None
        with stream:
            for event in islice(stream, count):
                settings.out.line(event, output.event_text(event))
    if event is None:
        settings.out.note("no events")


@cli.command(short_help="Print transactions, newest first.")
@click.argument("name", required=False)
@click.option("--after", type=click.IntRange(0), metavar="V", help="Only versions above this one.")
@click.option(
    "--until", type=click.IntRange(0), metavar="V", help="Begin with this version instead of the head."
)
@count_option
@pass_settings
def log(
    settings: Settings, name: str | None, after: int | None, until: int | None, count: int | None
) -> None:
    """Print transactions, newest first; with NAME only those that acted on that table or namespace.

    A principal in (brackets) is what the writer claimed, nobody checked it.

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


# --- pipelines -------------------------------------------------------------------------------------


@cli.group(short_help="Run pipelines, and see how far they have worked.")
def pipeline() -> None:
    """Run pipelines, and see how far they have worked: their position lies in the catalog."""


@pipeline.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@at_option
@pass_settings
def pipeline_list(settings: Settings, prefix: str, at: str | None) -> None:
    """List the pipelines that ever ran, one name a line."""
    with settings.reader(at) as reader:
        found = reader.list_pipelines(prefix)
    _list(settings, found, [name.name for name in found], "no pipelines")


@pipeline.command("show")
@click.argument("name")
@at_option
@pass_settings
def pipeline_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the jobs of a pipeline: state, position, inputs, and the error of a parked one."""
    with settings.reader(at) as reader:
        found = reader.load_pipeline(name)
    settings.out.document(found, output.pipeline_text(found))


def _declared_pipeline(reference: str) -> declared.Pipeline:
    """The pipeline that MODULE:OBJECT names. The working directory comes first among the places to look."""
    name, colon, attribute = reference.partition(":")
    if not colon or not name or not attribute:
        raise click.UsageError(f"{reference!r} is no MODULE:OBJECT, for example marts.daily:mart.")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"There is no module {name!r} here or on Python's path.") from None
        raise click.ClickException(f"importing {name} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, declared.Pipeline):
        raise click.UsageError(f"{name} has no pipeline {attribute!r}.")
    return found


@contextlib.contextmanager
def _lake(settings: Settings, name: str) -> Iterator[Any]:
    """The catalog with a Spark session of this process. This is all that the command line knows of Spark."""
    try:
        from alpheus.spark import SparkCatalog, session
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"Spark is not installed ({error.name} is missing): pip install 'alpheus[spark]'"
        ) from error
    with settings.catalog() as catalog:
        with output.waiting("starting Spark"):
            spark = session(name)
        try:
            yield SparkCatalog(spark, catalog)
        finally:
            spark.stop()


def param_option(command: F) -> F:
    return click.option(
        "--param",
        "params",
        type=PAIR,
        multiple=True,
        metavar="K=V",
        help="For the jobs' run.params. Repeat it.",
    )(command)


@pipeline.command("run")
@click.argument("reference", metavar="MODULE:OBJECT")
@click.option(
    "--full-refresh", is_flag=True, help="As if for the first time: outputs are emptied and filled."
)
@param_option
@pass_settings
def pipeline_run(
    settings: Settings, reference: str, full_refresh: bool, params: tuple[tuple[str, str], ...]
) -> int:
    """Call every job of a pipeline that has work, once. Needs Spark.

    Prints one line a job. Exit status 1 when a job is parked, 99 when none had work, so that a scheduler can
    skip what comes after.

    \b
    Example
      alpheus pipeline run marts.daily:mart --param day=2026-03-01
    """
    given = _mapping(params)
    found = _declared_pipeline(reference)
    with _lake(settings, found.name) as lake:
        results = found.run(lake, given, full_refresh)
    states = {result.state for result in results}
    status = (
        output.FAILED
        if "parked" in states
        else output.DONE
        if "committed" in states
        else output.NOTHING_TO_DO
    )
    settings.out.status_if_cut = status
    for result in results:
        settings.out.line(result, output.result_text(result))
    return status


@pipeline.command("serve")
@click.argument("reference", metavar="MODULE:OBJECT")
@param_option
@pass_settings
def pipeline_serve(settings: Settings, reference: str, params: tuple[tuple[str, str], ...]) -> None:
    """Call a pipeline's jobs whenever their inputs have something new, until SIGTERM. Needs Spark.

    Prints one line for each call that committed or was parked. SIGTERM lets the call that runs finish.
    """
    given = _mapping(params)
    found = _declared_pipeline(reference)
    with _lake(settings, found.name) as lake:
        found.serve(
            lake, given, on_result=lambda result: settings.out.line(result, output.result_text(result))
        )


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
    click.echo(found(cli, {}, "alpheus", _COMPLETE_VARIABLE).source())
