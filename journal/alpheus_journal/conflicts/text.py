"""Conflicts in words: what an operation, a read and a recorded action are called, and what a person is told to do."""

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
    "EXISTS": "looked whether there is",
    "DESCRIBE": "looked at",
    "SELECT": "read rows of",
}


def describe(operation: Operation) -> str:
    """An operation as a person reads it: `drop table sales.orders`."""
    words = FACET_RULES[type(operation)].words
    return f"{words} {operation.target}" if isinstance(words, str) else words(operation)


def describe_read(read: Read) -> str:
    """A read as a person reads it: `listed the tables of namespace sales`."""
    words = _READ_WORDS[read.type.partition("_")[2]]
    text = words if read.name.kind is Kind.CATALOG and "listed" in words else f"{words} {read.name}"
    return f"{text} that begin with {read.prefix!r}" if read.prefix else text


def describe_action(action: Action) -> str:
    """A recorded action as a person reads it."""
    if action.operation is not None:
        return describe(action.operation)
    return f"{action.type.lower()} {action.name}"


def describe_rival(action: Action) -> str:
    """An action as a person reads it, with the rows that it was about."""
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
            f", {count} file{'s' if count > 1 else ''} of {sum(s.row_count for s in done.removed)} rows went"
        )
    return words


def time_text(millis: int) -> str:
    """RFC 3339, to the second; of no time that there is: the number."""
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
    """The conflict of a claim of `mine` with what an action of a committed transaction touched."""
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
    """What to do."""
    if retryable:
        return "run it again from the newest version"
    if touch.aspect is Aspect.CREATED:
        return "use what is there now, or choose another name"
    if touch.aspect is Aspect.BOUND:
        return "drop the view that is bound to it first, or replace it without schema binding"
    if touch.aspect is Aspect.DROPPED and claim.stake is Stake.HOME:
        return "create the namespace again first"
    if touch.aspect is Aspect.DROPPED and isinstance(action.operation, RenameObject):
        return f"it is called {action.operation.new_target.full_name} now"
    if touch.aspect is Aspect.DROPPED and claim.stake is Stake.DROP:
        return "it is gone already"
    if touch.aspect is Aspect.DROPPED:
        return "it is gone: bring it back, or make it anew, and run it again"
    return "it cannot succeed as it is"


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
    """Of a transaction with the cancellation of its id; or of a cancellation (`cancel`, in words) that came too
    late."""
    if not cancel:
        mine, done, hint = f"commit transaction {own_id}", f"cancel transaction {own_id}", "use a new id"
    else:
        mine, done, hint = cancel, f"transaction {theirs.id}", "it has committed"
    return _conflict(f"cannot {mine}:", mine, done, "object_changed", False, hint, theirs, version)
