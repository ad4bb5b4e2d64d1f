"""The output of the command line: answers as aligned text or as JSON, errors, and the exit statuses.

Standard output carries the answer and nothing else. Text from a catalog may contain any characters, so control
characters are escaped in tables. JSON carries text unchanged.

The module stays above 600 lines because it is a flat list: one short function for each kind of answer, all of them on
the helpers at the top.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import click
import msgspec

from alpheus.cli.text.json_rows import json_value
from alpheus.display import count_text as count_text
from alpheus.display import printable as printable
from alpheus.display import size_text as size_text
from alpheus.display import time_text as time_text
from alpheus.errors import AlpheusError, AlreadyExists, Conflict, Corrupt, OutcomeUnknown
from alpheus.importing.results import ImportProgress
from alpheus.models import (
    Action,
    Change,
    CheckReport,
    Commit,
    Dropped,
    Event,
    Info,
    LogEntry,
    Outcome,
    Pipeline,
    SavedTransaction,
    SubscriptionInfo,
    Table,
    Tag,
    Upgraded,
    View,
)
from alpheus.pipeline import RunResult
from alpheus.pipeline.positions import PROPERTY_INPUT, JobStatus
from alpheus_journal.conflicts import text as conflict_words
from alpheus_journal.model.definitions import Column
from alpheus_journal.model.type_names import type_text
from alpheus_journal.urls import redact_text

DONE = 0
FAILED = 1
USAGE = 2
RETRYABLE = 3
UNKNOWN = 4
NOTHING_TO_DO = 99
INTERRUPTED = 130

_SHOWN_MAX = 5  # changes or actions on one line
_WAITING_AFTER_SECONDS = 1.0
_WAITING_STEP_SECONDS = 0.5


class ReaderGone(Exception):
    """The reader of our standard output has closed it."""


# --- text ------------------------------------------------------------------------------------------


def _make_printable(text: str) -> str:
    """Make each line `printable`. All text passes through here before it reaches a terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))


_C1_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def to_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def _encode_json(value: Any, *, indented: bool = False) -> bytes:
    """Return `value` as JSON. For a terminal, also escape the control characters that JSON permits in texts."""
    data = msgspec.json.encode(value)
    if not to_terminal():
        return data
    text = (msgspec.json.format(data) if indented else data).decode()
    return text.translate(_C1_ESCAPES).encode()


def _width(text: str) -> int:
    """Return the number of terminal columns that `text` takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def columns_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns, with numbers to the right. Return an empty text if there are no rows."""
    lines = [
        tuple(value if isinstance(value, int) else printable(str(value)) for value in row) for row in rows
    ]
    if not lines:
        return ""
    numeric = [all(isinstance(line[i], int) for line in lines) for i in range(len(header))]
    cells = [tuple(map(printable, header)), *(tuple(str(value) for value in line) for line in lines)]
    widths = [max(_width(line[i]) for line in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )


def fields_text(fields: Iterable[tuple[str, object]]) -> str:
    """Return one `name  value` per line. Fields without a value (None, "") are omitted."""
    given = [
        (printable(name), printable(str(value)))
        for name, value in fields
        if value is not None and value != ""
    ]
    width = max((_width(name) for name, _ in given), default=0)
    return "\n".join(f"{name}{' ' * (width - _width(name))}  {value}" for name, value in given)


def properties_text(properties: dict[str, str]) -> str:
    """Return indented `key = value` lines, sorted by key."""
    return "".join(f"\n  {printable(key)} = {printable(properties[key])}" for key in sorted(properties))


# --- answers ----------------------------------------------------------------------------------------


def _starts_text(starts: dict[str, int]) -> str:
    """Return how many tables lack data files at older versions; empty for none."""
    return f"{count_text(len(starts), 'table')} without data files of older versions" if starts else ""


def info_text(info: Info) -> str:
    text = fields_text(
        [
            ("catalog", info.catalog_id),
            ("url", info.url),
            ("storage", info.storage_url if info.storage_url != info.url else ""),
            ("version", info.version),
            ("oldest version", info.oldest_version),
            ("kept versions", info.kept_versions),
            ("expired versions", info.oldest_version or ""),
            ("shorter history", _starts_text(info.table_starts)),
            ("token", info.token),
            ("order", info.order),
            ("version digits", info.version_digits),
            (
                "longest names",
                f"{info.namespace_name_bytes} bytes for namespaces, {info.table_name_bytes} for tables,"
                f" {info.view_name_bytes} for views",
            ),
            ("transactions", f"{info.isolation}; a saved one lasts {info.txn_ttl}"),
            ("format", f"revision {info.format_revision}"),
            ("software", info.software_version),
            (
                "unverified",
                f"since {time_text(since)}, from a checkpoint" if (since := info.unverified_since) else "",
            ),
            (
                "clock",
                f"the time of version {info.version} is {info.head_ahead} in the future; see alpheus repair --times"
                if info.head_ahead
                else "",
            ),
        ]
    )
    return text + ("\nproperties" + properties_text(info.properties) if info.properties else "")


def upgrade_text(upgraded: Upgraded) -> str:
    if upgraded.before >= upgraded.revision:
        return f"nothing to do: the catalog is in revision {upgraded.before} of the format"
    done = "" if upgraded.commit is None else f"version {upgraded.commit.version}: "
    return (
        f"{done}revision {upgraded.before} of the format becomes {upgraded.revision};"
        f" programs that do not know it refuse the catalog. The version before has the tag {upgraded.tag}"
    )


def report_text(report: CheckReport) -> str:
    lines = []
    for finding in report.findings:
        place = "" if finding.version is None else f" (version {finding.version})"
        lines.append(printable(f"{finding.kind}: {finding.message}{place}"))
    looked = ", ".join(
        count_text(count, what)
        for count, what in (
            (report.versions, "version"),
            (report.nodes, "node"),
            (report.definitions, "definition"),
            (report.manifests, "manifest"),
        )
    )
    for first, last in report.given_up:
        what = f"version {first}" if first == last else f"versions {first} to {last}"
        lines.append(f"given up by a repair: {what}")
    if report.files:
        looked += f", {count_text(report.files, 'data file')}"
    lines.append(f"{'ok' if report.ok else count_text(len(report.findings), 'finding')}: read {looked}")
    return "\n".join(lines)


def column_plain(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": type_text(column),
        "nullable": column.nullable,
    }


def table_plain(table: Table) -> dict[str, Any]:
    """Return a table for JSON. The columns are written as `table create` and `apply` read them."""
    plain: dict[str, Any] = {
        "namespace": table.namespace,
        "name": table.name,
        "id": table.id,
        "format": table.format,
        "version": table.version,
        "row_count": table.row_count,
        "row_count_exact": table.is_row_count_exact,
        "file_count": table.file_count,
        "size_bytes": table.size_bytes,
        "properties": table.properties,
        "columns": [column_plain(column) for column in table.columns],
        "defaults": {path: json_value(value) for path, value in table.defaults.items()},
        "partition_by": list(table.partition_by),
        "sort_by": list(table.sort_by),
    }
    if table.format == "iceberg":
        plain["metadata_location"] = table.definition.iceberg_metadata_location
    return plain


def rows_text(table: Table) -> int | str:
    """Return the number of rows of a table, or an upper bound as text."""
    if table.is_row_count_exact or table.format != "native":
        return table.row_count
    return f"at most {table.row_count}"


def table_text(table: Table) -> str:
    native = table.format == "native"
    text = fields_text(
        [
            ("table", table.full_name),
            ("id", table.id),
            ("format", table.format),
            ("metadata", table.definition.iceberg_metadata_location),
            ("data at", table.data_root),
            ("rows", rows_text(table) if native else ""),
            ("files", table.file_count if native else ""),
            ("delete predicates", len(table.definition.delete_predicates) or ""),
            ("size", size_text(table.size_bytes) if native else ""),
            ("partitions", ", ".join(table.partition_by)),
            ("sorted by", ", ".join(table.sort_by)),
            ("at version", table.version),
        ]
    )
    if table.properties:
        text += "\nproperties" + properties_text(table.properties)
    if table.columns:
        rows = [
            (column.name, type_text(column), "" if column.nullable else "required")
            for column in table.columns
        ]
        text += "\n\n" + columns_text(["COLUMN", "TYPE", ""], rows)
    if table.defaults:
        plain = {path: json_value(value) for path, value in table.defaults.items()}
        texts = {path: v if isinstance(v, str) else json.dumps(v) for path, v in plain.items()}
        text += "\n\ndefaults" + properties_text(texts)
    return text


def view_plain(view: View) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(view)
    plain["columns"] = [column_plain(column) for column in view.columns]
    return plain


def view_text(view: View) -> str:
    text = fields_text(
        [
            ("view", view.full_name),
            ("id", view.id),
            ("dialect", view.dialect),
            ("refers to", ", ".join(view.references)),
            ("bound", "yes" if view.schema_binding else ""),
            ("default namespace", view.default_namespace),
            ("at version", view.version),
        ]
    )
    if view.properties:
        text += "\nproperties" + properties_text(view.properties)
    if view.columns:
        rows = [(c.name, type_text(c), "" if c.nullable else "required") for c in view.columns]
        text += "\n\n" + columns_text(["COLUMN", "TYPE", ""], rows)
    return text + "\n\n" + "\n".join(printable(line) for line in view.sql.splitlines())


def change_text(change: Change) -> str:
    return printable(f"{change.type}  {change.kind} {change.name}".rstrip())


def dropped_text(dropped: Dropped) -> str:
    by = dropped.principal or "unknown"
    return printable(
        f"{dropped.kind} {dropped.name}  dropped in version {dropped.dropped_version} at"
        f" {time_text(dropped.dropped_at)} by {by}; last present at version {dropped.version}"
    )


def saved_text(saved: SavedTransaction) -> str:
    if saved.damage:
        return printable(f"{saved.id}  DAMAGED: {saved.damage}")
    what = count_text(saved.operations, "operation") if saved.resumable else "of another writer"
    text = (
        f"{saved.id}  began {time_text(saved.began_at)} at version {saved.begin_version},"
        f" expires {time_text(saved.expires_at)}  {what}"
    )
    return printable(text + (f"  {saved.message}" if saved.message else ""))


def commit_text(commit: Commit) -> str:
    rows = ""
    if commit.rows_added or commit.rows_removed:
        rows = f", rows +{commit.rows_added} -{commit.rows_removed}"
    before = " before" if commit.duplicate else ""
    return f"committed{before} in version {commit.version}{rows}: transaction {commit.transaction_id}"


def outcome_text(outcome: Outcome) -> str:
    if outcome.commit is None:
        return outcome.state
    return f"{outcome.state} in version {outcome.commit.version} at {time_text(outcome.commit.created_at)}"


def event_text(event: Event) -> str:
    changes = [
        f"{change.kind} {change.name} {change.type}" if change.name else f"{change.kind} {change.type}"
        for change in event.changes[:_SHOWN_MAX]
    ]
    if len(event.changes) > _SHOWN_MAX:
        changes.append(f"{len(event.changes) - _SHOWN_MAX} more")
    messages = "; ".join(each.message for each in event.transactions if each.message)
    parts = [str(event.version), time_text(event.created_at), ", ".join(changes) or "no change"]
    parts += _reads_texts([read for each in event.transactions for read in each.reads])
    return printable("  ".join(parts) + (f"  ({messages})" if messages else ""))


def _reads_texts(reads: Sequence[Action]) -> list[str]:
    """Return what serializable transactions had read, as at most one text."""
    shown = [f"{read.type} {read.name}".rstrip() for read in reads[:_SHOWN_MAX]]
    if len(reads) > _SHOWN_MAX:
        shown.append(f"{len(reads) - _SHOWN_MAX} more")
    return [f"having read: {', '.join(shown)}"] if shown else []


def entry_text(entry: LogEntry) -> str:
    transaction = entry.transaction
    actions = [f"{each.type} {each.name}".rstrip() for each in transaction.actions[:_SHOWN_MAX]]
    if len(transaction.actions) > _SHOWN_MAX:
        actions.append(f"{len(transaction.actions) - _SHOWN_MAX} more")
    principal = transaction.principal or "unknown"
    parts = [
        str(entry.version),
        time_text(entry.created_at),
        transaction.id,
        principal if transaction.principal_authenticated else f"({principal})",
        ", ".join(actions),
        *_reads_texts(transaction.reads),
    ]
    reads = [
        transaction.properties[key]
        for key in sorted(transaction.properties)
        if key.startswith(PROPERTY_INPUT)
    ]
    if reads:
        parts.append(f"from {', '.join(reads)}")
    return printable("  ".join(parts) + (f"  {transaction.message}" if transaction.message else ""))


def pipeline_text(pipeline: Pipeline) -> str:
    rows = []
    for name in sorted(pipeline.jobs):
        job = pipeline.jobs[name]
        inputs = ", ".join(
            f"{key}={each.table or each.table_id}@{each.version}" for key, each in sorted(job.inputs.items())
        )
        declared = job.declaration
        outputs = ", ".join(each.table for each in declared.outputs) if declared is not None else ""
        rows.append((name, job.state, job.pinned_version, inputs, outputs, job.error))
    text = fields_text([("pipeline", pipeline.name), ("id", pipeline.id), ("at version", pipeline.version)])
    jobs = columns_text(["JOB", "STATE", "PINNED", "INPUTS", "OUTPUTS", "ERROR"], rows)
    return f"{text}\n\n{jobs}" if jobs else text


def subscription_text(subscription: SubscriptionInfo) -> str:
    return fields_text(
        [
            ("subscription", subscription.name),
            ("id", subscription.id),
            ("position", "none" if subscription.position is None else subscription.position),
            ("holder", subscription.holder or "nobody"),
            ("epoch", subscription.epoch),
            ("lease", f"{subscription.lease_seconds:g} s"),
            ("namespaces", ", ".join(subscription.namespaces)),
            ("names", ", ".join(subscription.names)),
            ("kinds", ", ".join(subscription.kinds)),
            ("actions", ", ".join(subscription.actions)),
            ("details", "yes" if subscription.details else ""),
            ("created at", time_text(subscription.created_at)),
            ("at version", subscription.version),
        ]
    )


def known_text(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def tag_text(tag: Tag, previous: Tag | None, following: Tag | None) -> str:
    text = fields_text(
        [
            ("tag", tag.name),
            ("id", tag.id),
            ("version", tag.version),
            ("of", time_text(tag.version_created_at)),
            ("created at", time_text(tag.created_at)),
            ("creator", tag.creator),
            ("message", tag.message),
            ("expires at", "never" if tag.expires_at is None else time_text(tag.expires_at)),
            ("only", ", ".join(f"{name} (version {at})" for name, at in (tag.only or {}).items())),
            ("without", ", ".join(tag.without)),
            ("lacking", f"the rows of {count_text(len(tag.lacking), 'table')}" if tag.lacking else ""),
            ("objects", known_text(tag.object_count)),
            ("tables", known_text(tag.table_count)),
            ("rows", known_text(tag.row_count)),
            ("previous tag", "none" if previous is None else f"{previous.name} (version {previous.version})"),
            ("next tag", "none" if following is None else f"{following.name} (version {following.version})"),
        ]
    )
    return text + "\nproperties" + properties_text(tag.properties) if tag.properties else text


def status_text(statuses: list[JobStatus]) -> str:
    rows = [
        (
            each.job,
            each.state,
            "" if each.position is None else each.position,
            "" if each.lag_versions is None else each.lag_versions,
            "" if each.lag_seconds is None else f"{each.lag_seconds:.0f} s",
            "" if each.called_at is None else time_text(each.called_at),
            each.error,
        )
        for each in statuses
    ]
    return columns_text(["JOB", "STATE", "POSITION", "LAG", "SINCE", "CALLED", "ERROR"], rows)


def result_text(result: RunResult) -> str:
    parts = [result.job, result.state]
    if result.version is not None:
        parts.append(f"in version {result.version}")
    if result.pinned is not None:
        parts.append(f"(read version {result.pinned}{', more to do' if result.more else ''})")
    return printable(" ".join(parts) + (f": {result.error}" if result.error else ""))


# --- printing --------------------------------------------------------------------------------------


class Printer:
    """Prints the output of one command, as tables or as `json`.

    `status_if_cut` is the exit status when the reader closes standard output early: 0, unless the command has found an
    error to report.
    """

    def __init__(self) -> None:
        self.json = False
        self.status_if_cut = DONE

    def document(self, value: Any, text: str) -> None:
        """Print the single answer of a command: `value` as one JSON document, or `text`."""
        if not self.json:
            self._write(_make_printable(text) + "\n" if text else "")
            return
        self._write(_encode_json(value, indented=True) + b"\n")

    def line(self, value: Any, text: str) -> None:
        """Print one item of a stream on one line, and flush it."""
        self._write(_encode_json(value) + b"\n" if self.json else _make_printable(text) + "\n")

    def lines(self, values: Iterable[Any]) -> None:
        """Print several items of a stream together, as JSON, one per line."""
        if data := b"".join(_encode_json(value) + b"\n" for value in values):
            self._write(data)

    def note(self, text: str) -> None:
        """Print a note for people to standard error. With JSON, print nothing."""
        if not self.json:
            click.echo(_make_printable(text), err=True)

    def _write(self, text: str | bytes) -> None:
        try:
            click.echo(text, nl=False)  # echo flushes
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            # On some systems a closed pipe shows as EINVAL. Other errors, such as a full disk, are failures.
            if error.errno == errno.EINVAL:
                raise ReaderGone from None
            abandon_output()  # what the interpreter still holds would fail again at its end, with another exit status
            raise


def abandon_output() -> None:
    """Redirect standard output to nowhere, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def show_waiting(what: str) -> Iterator[None]:
    """Show on standard error what is going on and for how long, while the block runs.

    The line appears after a second, only on a terminal, and disappears at the end.
    """
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    what = printable(what)

    def show() -> None:
        seconds, pause = 0.0, _WAITING_AFTER_SECONDS
        while not over.wait(pause):
            seconds += pause
            pause = _WAITING_STEP_SECONDS
            sys.stderr.write(f"\r{what} … {seconds:.0f} s ")
            sys.stderr.flush()
        if seconds:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    ticker = threading.Thread(target=show, name="waiting", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Give the block a function that shows a text on one line of standard error, replacing the text before.

    The line appears only on a terminal and disappears at the end.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{printable(text)}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def import_text(at: ImportProgress) -> str:
    share = 100 * at.size_bytes // max(1, at.size_bytes_total)
    return (
        f"{share} % copied: {at.files} of {at.files_total} files, {at.rows} of {at.rows_total} rows,"
        f" {size_text(at.size_bytes)} of {size_text(at.size_bytes_total)}"
    )


# --- errors ----------------------------------------------------------------------------------------


def status_of(error: BaseException) -> int:
    if isinstance(error, Conflict) and error.retryable:
        return RETRYABLE
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    if isinstance(error, click.UsageError):
        return USAGE
    return FAILED


def report(error: Exception, *, json: bool, command: str = "", options: Set[str] = frozenset()) -> int:
    """Print an error to standard error and return the exit status. ALPHEUS_DEBUG=1 prints the traceback first.

    `command` is the failed command, `options` are the options that it has: hints name no other options.
    """
    if os.environ.get("ALPHEUS_DEBUG", "") not in ("", "0"):
        click.echo(redact_text("".join(traceback.format_exception(error))), err=True, nl=False)
    described = _describe(error, command, options)
    if json:
        click.echo(msgspec.json.encode(described), err=True)
    elif isinstance(error, click.UsageError):
        click.UsageError(redact_text(error.format_message()), error.ctx).show()
    else:
        if isinstance(error, Conflict) and error.mine and error.theirs:
            click.echo(conflict_text(error), err=True)
        else:
            click.echo(f"error: {printable(described['message'])}", err=True)
        if described["hint"]:
            click.echo(f"hint: {printable(described['hint'])}", err=True)
    return status_of(error)


def conflict_text(conflict: Conflict) -> str:
    """Describe a conflict for people: who did what and when, and whether a retry can help."""
    when = f"version {conflict.version}" if conflict.version is not None else ""
    if conflict.committed_at_millis:
        moment = conflict_words.time_text(conflict.committed_at_millis)
        when = f"{when}, {moment}" if when else moment
    return "error: conflict with another transaction, nothing was applied\n" + fields_text(
        [
            ("  yours", conflict.mine),
            ("  theirs", conflict.theirs),
            ("  by", conflict.principal),
            ("  transaction", conflict.transaction_id),
            ("  when", when),
            ("  try again", "yes" if conflict.retryable else "no"),
        ]
    )


# Hints that name commands of the shell in place of the library's calls.
_SHELL_HINTS = {
    "daemon_unavailable": 'check that the daemon runs; "alpheus serve URL" starts one',
    "no_namespace": 'list the namespaces with "alpheus namespace list"',
    "no_table": 'list the tables with "alpheus table list"',
    "no_view": 'list the views with "alpheus view list"',
    "no_version": 'find the newest version with "alpheus info", the times of versions with "alpheus log"',
    "bad_token": 'give a version, or the "token" of a line of "alpheus events --output json"',
    "catalog_exists": "use the existing catalog, or choose another place",
}
_OPTION_HINTS = {
    "namespace_exists": {"--exist-ok": "pass --exist-ok to leave it unchanged"},
    "table_exists": {
        "--exist-ok": "pass --exist-ok to leave it unchanged",
        "--append": "pass --append to add the rows to it",
    },
    "minimum_age_short": {"--allow-short": "give an hour or more, or pass --allow-short when nobody writes"},
    "namespace_not_empty": {"--cascade": "drop its contents first, or pass --cascade"},
}
"""By kind of error: the option of the failed command that avoids the error."""
_DOCUMENT_HINTS = {
    "namespace_exists": 'add "exist_ok": true to the operation to leave it unchanged',
    "table_exists": 'add "exist_ok": true to the operation to leave it unchanged',
    "namespace_not_empty": 'drop its contents first, or add "cascade": true to the operation',
}
_NAME_HINT = "choose another name, or drop the object that has this name"
_CORRUPT_HINT = 'restore the file from a copy; "alpheus check" lists all damage'


def _hint_of(error: AlpheusError, command: str, options: Set[str]) -> str:
    if error.kind in _DOCUMENT_HINTS and command == "apply":
        return _DOCUMENT_HINTS[error.kind]
    for option, hint in _OPTION_HINTS.get(error.kind, {}).items():
        if option in options:
            return hint
    if error.kind in _SHELL_HINTS:
        return _SHELL_HINTS[error.kind]
    if not error.hint and isinstance(error, AlreadyExists):
        return _NAME_HINT
    return error.hint or (_CORRUPT_HINT if isinstance(error, Corrupt) else "")


def _describe(error: Exception, command: str, options: Set[str]) -> dict[str, Any]:
    """Return the four keys that every error has, and further ones that a script can use.

    Messages of libraries and of the argument parser may quote a URL; secrets in it are hidden.
    """
    found = _describe_error(error, command, options)
    return found if isinstance(error, AlpheusError) else found | {"message": redact_text(found["message"])}


def _describe_error(error: Exception, command: str, options: Set[str]) -> dict[str, Any]:
    if isinstance(error, AlpheusError):
        found: dict[str, Any] = {
            "error": type(error).__name__,
            "kind": error.kind,
            "message": error.message,
            "hint": _hint_of(error, command, options),
        }
        if isinstance(error, Conflict):
            found |= {
                "retryable": error.retryable,
                "mine": error.mine,
                "theirs": error.theirs,
                "principal": error.principal,
                "transaction_id": error.transaction_id,
                "version": error.version,
                "committed_at_millis": error.committed_at_millis,
            }
        if isinstance(error, OutcomeUnknown) and error.transaction_id:
            found |= {
                "hint": f"run alpheus outcome {error.transaction_id} --settle to learn the outcome",
                "transaction_id": error.transaction_id,
            }
        return found
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "alpheus"
        return {
            "error": "UsageError",
            "kind": "bad_argument",
            "message": error.format_message(),
            "hint": f"see {command} --help",
        }
    if isinstance(error, click.ClickException | OSError):
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return {"error": type(error).__name__, "kind": "failed", "message": message, "hint": ""}
    return {
        "error": type(error).__name__,
        "kind": "unexpected",
        "message": f"unexpected {type(error).__name__}: {error}",
        "hint": "run the command again with ALPHEUS_DEBUG=1 for the traceback, and report it",
    }
