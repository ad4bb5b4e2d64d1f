"""Conflicts in words: texts for operations, reads and recorded actions, and hints for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from alpheus_journal.conflicts.facets import (
    FACET_RULES,
    Aspect,
    Claim,
    Stake,
    Touch,
)
from alpheus_journal.errors import AlpheusError, Conflict
from alpheus_journal.format import Kind
from alpheus_journal.model.operations import (
    Action,
    ChangeRows,
    Operation,
    Read,
    RecordedTransaction,
    RenameObject,
    Transaction,
)
from alpheus_journal.predicate import decode
from alpheus_journal.predicate.sql import text as sql_text

PREDICATES_SHOWN_MAX = 3
PREDICATE_LENGTH_MAX = 200


_READ_WORDS = {
    "SHOW_NAMESPACES": "listed the namespaces",
    "SHOW_PIPELINES": "listed the pipelines",
    "SHOW_TABLES": "listed the tables of",
    "SHOW_VIEWS": "listed the views of",
    "EXISTS": "looked for",
    "DESCRIBE": "read the definition of",
    "SELECT": "read rows of",
}


def describe(operation: Operation) -> str:
    """Describe an operation: `drop table sales.orders`."""
    words = FACET_RULES[type(operation)].words
    return f"{words} {operation.target}" if isinstance(words, str) else words(operation)


def describe_read(read: Read) -> str:
    """Describe a read: `listed the tables of namespace sales`."""
    words = _READ_WORDS[read.type.partition("_")[2]]
    text = words if read.name.kind is Kind.CATALOG and "listed" in words else f"{words} {read.name}"
    return f"{text} that begin with {read.prefix!r}" if read.prefix else text


def describe_action(action: Action) -> str:
    """Describe a recorded action."""
    if action.operation is not None:
        return describe(action.operation)
    return f"{action.type.lower()} {action.name}"


def describe_rival(action: Action) -> str:
    """Describe a recorded action and the rows that it changed."""
    done, words = action.operation, describe_action(action)
    if not isinstance(done, ChangeRows):
        return words
    try:
        expressions = [
            sql_text(decode(data)) for data in done.predicates or ((done.scan,) if done.scan else ())
        ]
    except AlpheusError:
        expressions = []
    if expressions:
        shown = " or ".join(expressions[:PREDICATES_SHOWN_MAX])
        more = len(expressions) - PREDICATES_SHOWN_MAX
        shown = shown if len(shown) <= PREDICATE_LENGTH_MAX else f"{shown[:PREDICATE_LENGTH_MAX]}..."
        words += f" where {shown}" + (f" or {more} more" if more > 0 else "")
    count = sum(segment.file_count for segment in done.removed)
    if count:
        words += (
            f", removing {count} file{'s' if count > 1 else ''}"
            f" of {sum(s.row_count for s in done.removed)} rows"
        )
    return words


def time_text(millis: int) -> str:
    """Return a time as RFC 3339 text, to the second. A value that is no valid time is shown as a number."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    except OverflowError:
        return f"{millis} ms"
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")


def explain_conflict(
    mine: Transaction,
    claim: Claim,
    action: Action,
    touch: Touch,
    theirs: RecordedTransaction,
    version: int,
    *,
    kind: str,
    retryable: bool,
) -> Conflict:
    """Return the conflict between a claim of `mine` and a touch by an action of a committed transaction."""
    hint = _hint(claim, action, touch, retryable)
    done = describe_rival(action)
    if isinstance(claim.cause, Read):
        what = describe_read(claim.cause)
        text = f"cannot commit: this transaction {what}, at version {mine.begin_version}; since then"
    else:
        what = describe(claim.cause)
        text = f"cannot {what}: since version {mine.begin_version}, where this transaction began,"
    return _conflict(text, what, done, kind, retryable, hint, theirs, version)


def _hint(claim: Claim, action: Action, touch: Touch, retryable: bool) -> str:
    """Return what the client can do."""
    if retryable:
        return "run it again from the newest version"
    if touch.aspect is Aspect.CREATED:
        return "use the object that exists now, or choose another name"
    if touch.aspect is Aspect.BOUND:
        return "first drop the view that is bound to it, or replace the view without schema binding"
    if touch.aspect is Aspect.DROPPED and claim.stake is Stake.HOME:
        return "create the namespace again first"
    if touch.aspect is Aspect.DROPPED and isinstance(action.operation, RenameObject):
        return f"use its new name, {action.operation.new_target.full_name}"
    if touch.aspect is Aspect.DROPPED and claim.stake is Stake.DROP:
        return "do nothing: it has been dropped already"
    if touch.aspect is Aspect.DROPPED:
        return "bring the dropped object back or create it again, then run this again"
    return "change the transaction: it cannot succeed as it is"


def _conflict(
    text: str,
    mine: str,
    done: str,
    kind: str,
    retryable: bool,
    hint: str,
    theirs: RecordedTransaction,
    version: int,
) -> Conflict:
    who = theirs.principal or "an unnamed principal"
    which = f"transaction {theirs.id}" if theirs.id else "without recorded actions"
    return Conflict(
        f"{text} {who} committed: {done} (version {version}, {time_text(theirs.committed_at_millis)}, {which})",
        kind=kind,
        mine=mine,
        theirs=done,
        transaction_id=theirs.id,
        principal=who,
        committed_at_millis=theirs.committed_at_millis,
        retryable=retryable,
        version=version,
        hint=hint,
    )


def explain_cancellation(own_id: str, cancel: str, theirs: RecordedTransaction, version: int) -> Conflict:
    """Return the conflict of a transaction with the cancellation of its id.

    With `cancel`, a cancellation in words, return the conflict of that cancellation with a transaction that has
    committed before it.
    """
    if not cancel:
        mine, done, hint = f"commit transaction {own_id}", f"cancel transaction {own_id}", "use a new id"
    else:
        mine, done = cancel, f"transaction {theirs.id}"
        hint = "undo the changes in a new transaction: this one has committed"
    return _conflict(f"cannot {mine}:", mine, done, "object_changed", False, hint, theirs, version)
