"""What the members of a group are told."""

from __future__ import annotations

from alpheus_journal.commit.staged import Member, Staged
from alpheus_journal.errors import AlpheusError, OutcomeUnknown
from alpheus_journal.model.answers import Committed


def answer_of(staged: Staged, member: Member) -> Committed:
    return Committed(
        version=staged.head.version,
        transaction_id=member.recorded.id,
        created_at_millis=staged.head.created_at_millis,
        token=staged.head.token,
        rows_added=member.rows_added,
        rows_removed=member.rows_removed,
    )


def unknown(transaction_id: str, error: AlpheusError) -> OutcomeUnknown:
    return OutcomeUnknown(
        error.message, transaction_id=transaction_id, kind=error.kind, hint=error.hint, version=error.version
    )


def again(error: AlpheusError) -> AlpheusError:
    """A fresh copy of an error that several members get: each raises its own."""
    copy = type(error).__new__(type(error))
    Exception.__init__(copy, error.message)
    copy.__dict__.update(error.__dict__)
    return copy


def put_back(error: AlpheusError, version: int | None = None) -> OutcomeUnknown:
    """What the members of `version` hear when the store turns out to have been put back while it was written: it may be
    stored, above a hole, and nobody shall take it for committed, nor send it again."""
    where = "" if version is None else f", version {version}"
    return OutcomeUnknown(
        f"this commit{where} may be stored, and was not acknowledged: {error.message}",
        kind="history_replaced",
        hint="do not send it again: stop all writers, see what was restored, run alpheus check and alpheus repair",
        version=version,
    )
