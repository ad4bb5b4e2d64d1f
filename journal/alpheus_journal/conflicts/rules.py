"""Decide which transactions conflict: pure rules over requested and recorded operations.

The test behind every rule: if this transaction ran after the committed one, would it still do what its author asked,
given what it read? The rules compare claims with touches (`facets`). An operation has no rules of its own; it only says
what it touches and what it has at stake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from alpheus_journal.conflicts.facets import (
    NO_ROWS,
    Aspect,
    Claim,
    Facet,
    How,
    Stake,
    Touch,
    cancelled_facet,
    claims_of,
    committed_facet,
    disregarded_facet,
    facets_of,
    overlap,
    touches_of,
)
from alpheus_journal.conflicts.text import describe, explain_cancellation, explain_conflict
from alpheus_journal.errors import Conflict
from alpheus_journal.model.answers import Event
from alpheus_journal.model.operations import (
    Action,
    CancelTransaction,
    RecordedTransaction,
    Transaction,
)

# --- the rules -------------------------------------------------------------------------------------


def _always(claim: Claim, touch: Touch) -> bool:
    return True


class Rule(msgspec.Struct, frozen=True):
    """One row of the rules: when a stake and a touch of one object collide, and whether a retry from scratch can
    succeed."""

    retryable: bool
    kind: str = "object_changed"
    collides: Callable[[Claim, Touch], bool] = _always


def _same_detail(claim: Claim, touch: Touch) -> bool:
    return claim.detail == touch.detail


def _other_value(claim: Claim, touch: Touch) -> bool:
    return claim.detail == touch.detail and claim.value != touch.value


def _same_column(claim: Claim, touch: Touch) -> bool:
    return overlap(claim.detail, touch.detail)


def _names_columns(claim: Claim, touch: Touch) -> bool:
    return touch.value in (How.ADDED, How.ADDED_REQUIRED, How.DROPPED, How.RENAMED)


def _adds_column(claim: Claim, touch: Touch) -> bool:
    return touch.value in (How.ADDED, How.ADDED_REQUIRED)


def _files_miss_column(claim: Claim, touch: Touch) -> bool:
    """Return whether files written earlier no longer fit the column. They name columns by id: a rename is harmless."""
    return touch.value in (How.DROPPED, How.RETYPED, How.REQUIRED, How.ADDED_REQUIRED)


def _needs_empty_table(claim: Claim, touch: Touch) -> bool:
    return claim.value in (How.REQUIRED, How.ADDED_REQUIRED) and touch.value != NO_ROWS


def _binding_fails(claim: Claim, touch: Touch) -> bool:
    return touch.value not in _HARMLESS_TO_VIEWS


def _changes_bound_column(claim: Claim, touch: Touch) -> bool:
    return claim.value not in _HARMLESS_TO_VIEWS


_HARMLESS_TO_VIEWS = (How.ADDED, How.ADDED_REQUIRED, How.DEFAULT)


def _read_column(claim: Claim, touch: Touch) -> bool:
    return touch.value != How.DEFAULT and (not claim.detail or overlap(claim.detail, touch.detail))


def _reads_all_columns(claim: Claim, touch: Touch) -> bool:
    return not claim.detail


def _other_rows(claim: Claim, touch: Touch) -> bool:
    """Return whether rows have changed. A compaction leaves all rows as they are."""
    return touch.value is None


def _hides_too_little(claim: Claim, touch: Touch) -> bool:
    """Return whether a predicate may miss rows that it matched: a rewrite removed their files, or a compaction moved
    them into files that are newer than those the predicate applies to."""
    return touch.value is None or int(touch.value) > int(claim.value or 0)


def _listed(claim: Claim, touch: Touch) -> bool:
    return touch.detail.startswith(claim.detail)


_AGAIN = Rule(retryable=True)
_NEVER = Rule(retryable=False)
_OTHER_READ = Rule(retryable=True, kind="read_changed")

RULES: dict[tuple[Stake, Aspect], Rule] = {
    (Stake.FREE_NAME, Aspect.CREATED): Rule(retryable=False, kind="already_exists_now"),
    (Stake.OBJECT, Aspect.DROPPED): _NEVER,
    (Stake.OBJECT, Aspect.CREATED): _AGAIN,
    (Stake.OBJECT, Aspect.WHOLE): _AGAIN,
    # Blind: changes of the dropped object do not matter. A new object under its name does: its drop was not asked for.
    (Stake.DROP, Aspect.DROPPED): _NEVER,
    (Stake.DROP, Aspect.CREATED): _AGAIN,
    (Stake.DROP, Aspect.BOUND): _NEVER,
    (Stake.HOME, Aspect.DROPPED): Rule(retryable=False, kind="namespace_changed"),
    (Stake.EMPTIED, Aspect.CHILD_ADDED): Rule(retryable=True, kind="namespace_changed"),
    (Stake.PROPERTY, Aspect.PROPERTY): Rule(retryable=True, collides=_other_value),
    (Stake.COLUMN, Aspect.COLUMN): Rule(retryable=True, collides=_same_column),
    (Stake.COLUMN, Aspect.BOUND): Rule(retryable=False, collides=_changes_bound_column),
    (Stake.COLUMN, Aspect.ROWS_ADDED): Rule(retryable=False, collides=_needs_empty_table),
    (Stake.COLUMN, Aspect.ROWS_REPLACED): Rule(retryable=False, collides=_needs_empty_table),
    (Stake.COLUMN_IDS, Aspect.COLUMN): Rule(retryable=True, kind="column_ids_moved", collides=_adds_column),
    (Stake.COLUMN_ORDER, Aspect.COLUMN): Rule(retryable=True, collides=_names_columns),
    (Stake.COLUMN_ORDER, Aspect.COLUMN_ORDER): _AGAIN,
    (Stake.COLUMN_ORDER, Aspect.BOUND): _NEVER,
    (Stake.FILES, Aspect.COLUMN): Rule(retryable=True, collides=_files_miss_column),
    # All files of one schema id have the same column names, and the id that the files carry is theirs now.
    (Stake.SCHEMA_ID, Aspect.COLUMN): _AGAIN,
    (Stake.SCHEMA_ID, Aspect.COLUMN_ORDER): _AGAIN,
    (Stake.ROWS, Aspect.ROWS_ADDED): _AGAIN,
    (Stake.ROWS, Aspect.ROWS_REPLACED): _AGAIN,
    (Stake.ROWS, Aspect.ROWS_REWRITTEN): Rule(retryable=True, collides=_other_rows),
    (Stake.ROWS, Aspect.ROWS_HIDDEN): _AGAIN,
    (Stake.MATCHED_ROWS, Aspect.ROWS_REWRITTEN): Rule(
        retryable=True, kind="rows_changed", collides=_hides_too_little
    ),
    (Stake.MOVED_ROWS, Aspect.ROWS_REPLACED): Rule(retryable=True, kind="rows_changed"),
    (Stake.POINTER, Aspect.POINTER): Rule(retryable=True, kind="metadata_moved"),
    (Stake.DEFINITION, Aspect.DROPPED): _NEVER,
    **{
        (Stake.DEFINITION, aspect): _AGAIN
        for aspect in (
            Aspect.CREATED, Aspect.WHOLE, Aspect.PROPERTY, Aspect.COLUMN, Aspect.COLUMN_ORDER, Aspect.ROWS_ADDED,
            Aspect.ROWS_REPLACED, Aspect.ROWS_REWRITTEN, Aspect.ROWS_HIDDEN, Aspect.POINTER, Aspect.BOUND,
        )
    },
    (Stake.BINDING, Aspect.DROPPED): _NEVER,
    (Stake.BINDING, Aspect.CREATED): _AGAIN,
    (Stake.BINDING, Aspect.WHOLE): _AGAIN,
    (Stake.BINDING, Aspect.COLUMN): Rule(retryable=True, collides=_binding_fails),
    (Stake.BINDING, Aspect.COLUMN_ORDER): _AGAIN,
    (Stake.JOB, Aspect.JOB): Rule(retryable=True, kind="position_moved", collides=_same_detail),
    (Stake.JOB, Aspect.WHOLE): Rule(retryable=True, kind="position_moved"),
    (Stake.JOB, Aspect.DROPPED): Rule(retryable=True, kind="position_moved"),
    (Stake.HOLDER, Aspect.HOLDER): Rule(retryable=True, kind="subscription_claimed"),
    (Stake.HOLDER, Aspect.WHOLE): Rule(retryable=True, kind="subscription_claimed"),
    (Stake.HOLDER, Aspect.CREATED): _AGAIN,
    (Stake.HOLDER, Aspect.DROPPED): _NEVER,
    (Stake.LOST_OBJECT, Aspect.BROUGHT_BACK): _NEVER,
    (Stake.SEEN_EXISTENCE, Aspect.CREATED): _OTHER_READ,
    (Stake.SEEN_EXISTENCE, Aspect.DROPPED): _OTHER_READ,
    **{
        (Stake.SEEN_DEFINITION, aspect): _OTHER_READ
        for aspect in Aspect
        if aspect not in (
            Aspect.CHILD_ADDED, Aspect.CHILD_REMOVED, Aspect.BROUGHT_BACK, Aspect.HOLDER, Aspect.ROWS_REWRITTEN,
        )
    },
    (Stake.SEEN_DEFINITION, Aspect.ROWS_REWRITTEN): Rule(
        retryable=True, kind="read_changed", collides=_other_rows
    ),
    (Stake.SEEN_NAMES, Aspect.CHILD_ADDED): Rule(retryable=True, kind="read_changed", collides=_listed),
    (Stake.SEEN_NAMES, Aspect.CHILD_REMOVED): Rule(retryable=True, kind="read_changed", collides=_listed),
    **{
        (Stake.SEEN_ROWS, aspect): _OTHER_READ
        for aspect in (
            Aspect.CREATED, Aspect.DROPPED, Aspect.WHOLE, Aspect.ROWS_ADDED, Aspect.ROWS_REPLACED,
            Aspect.ROWS_HIDDEN, Aspect.POINTER,
        )
    },
    (Stake.SEEN_ROWS, Aspect.ROWS_REWRITTEN): Rule(
        retryable=True, kind="read_changed", collides=_other_rows
    ),
    (Stake.SEEN_ROWS, Aspect.COLUMN): Rule(retryable=True, kind="read_changed", collides=_read_column),
    (Stake.SEEN_ROWS, Aspect.COLUMN_ORDER): Rule(
        retryable=True, kind="read_changed", collides=_reads_all_columns
    ),
}  # fmt: skip
"""A pair without a row does not conflict. Examples are two appends, an append after an overwrite, a rename or drop of a
changed object, and the creation of a dropped object."""

_ASPECTS: dict[Stake, tuple[Aspect, ...]] = {
    stake: tuple(aspect for at_stake, aspect in RULES if at_stake is stake) for stake in Stake
}


# --- one transaction against others ----------------------------------------------------------------


class Stakes:
    """The stakes of one transaction, ready to be compared with the touches of committed transactions.

    A committed transaction with none of these `facets` is not a rival: it touched nothing that is at stake, did not
    cancel this transaction, and is not cancelled by it.
    """

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.claims = claims_of(transaction)
        self.facets: set[Facet] = {cancelled_facet(transaction.id)}
        for claim in self.claims:
            for aspect in _ASPECTS[claim.stake]:
                self.facets.add(claim.facet(aspect))
        for operation in transaction.operations:
            if isinstance(operation, CancelTransaction):
                self.facets.add(committed_facet(operation.transaction_id))

    @property
    def sought(self) -> set[Facet]:
        """The facets of every transaction of interest: the rivals, the cancellation, and the transaction itself."""
        return self.facets | {committed_facet(self.transaction.id)}

    def conflict(self, theirs: Touches, version: int) -> Conflict | None:
        """Return the first conflict with a committed transaction of `version`, or None."""
        recorded = theirs.recorded
        if recorded.cancels == self.transaction.id:
            return explain_cancellation(self.transaction.id, "", recorded, version)
        for operation in self.transaction.operations:
            if isinstance(operation, CancelTransaction) and recorded.id == operation.transaction_id:
                return explain_cancellation(self.transaction.id, describe(operation), recorded, version)
        for claim in self.claims:
            for aspect in _ASPECTS[claim.stake]:
                rule = RULES[claim.stake, aspect]
                for action, touch in theirs.at(claim.facet(aspect)):
                    if rule.collides(claim, touch):
                        return explain_conflict(
                            self.transaction, claim, action, touch, recorded, version,
                            kind=rule.kind, retryable=rule.retryable,
                        )  # fmt: skip
        return None

    def conflict_with_event(self, event: Event) -> Conflict | None:
        """Return the first conflict with a committed version, or None."""
        for recorded in transactions_of(event):
            conflict = self.conflict(Touches(recorded), event.version)
            if conflict is not None:
                return conflict
        return None


class Touches:
    """The touches of one committed transaction, by facet."""

    def __init__(self, recorded: RecordedTransaction) -> None:
        self.recorded = recorded
        self._by_facet: dict[Facet, list[tuple[Action, Touch]]] = {}
        for action, touch in touches_of(recorded):
            for facet in touch.facets():
                self._by_facet.setdefault(facet, []).append((action, touch))
        self.facets: set[Facet] = _facets_of_ids(recorded)
        self.facets.update(self._by_facet)

    def at(self, facet: Facet) -> list[tuple[Action, Touch]]:
        return self._by_facet.get(facet, [])


def _facets_of_ids(recorded: RecordedTransaction) -> set[Facet]:
    if not recorded.id:
        return set()
    facets = {committed_facet(recorded.id)}
    for action in recorded.actions:
        if isinstance(action.operation, CancelTransaction):
            facets.add(cancelled_facet(action.operation.transaction_id))
    facets.update(disregarded_facet(id) for id in recorded.disregards)
    return facets


class Group:
    """The members of one version so far, by facet, so that only possible rivals are compared in full."""

    def __init__(self) -> None:
        self._holders: dict[Facet, list[int]] = {}
        self._members: list[Touches] = []

    def add(self, touches: Touches) -> None:
        for facet in touches.facets:
            self._holders.setdefault(facet, []).append(len(self._members))
        self._members.append(touches)

    def conflict(self, stakes: Stakes, version: int) -> Conflict | None:
        """Return the first conflict with a member, in the order in which members were added, or None."""
        rivals: set[int] = set()
        for facet in self._holders.keys() & stakes.facets:
            rivals.update(self._holders[facet])
        for index in sorted(rivals):
            conflict = stakes.conflict(self._members[index], version)
            if conflict is not None:
                return conflict
        return None


def conflict_with_transaction(
    mine: Transaction, theirs: RecordedTransaction, version: int
) -> Conflict | None:
    """Return the first conflict of `mine` with a committed transaction of `version`, or None."""
    return Stakes(mine).conflict(Touches(theirs), version)


def conflict_with_event(mine: Transaction, event: Event) -> Conflict | None:
    """Return the first conflict of `mine` with a committed version, or None."""
    return Stakes(mine).conflict_with_event(event)


def event_facets(event: Event) -> set[Facet]:
    """Return the facets that a version touches. It concerns a transaction only if they share a facet (`sought`)."""
    facets: set[Facet] = set()
    for recorded in transactions_of(event):
        facets |= facets_of(touches_of(recorded)) | _facets_of_ids(recorded)
    return facets


def transactions_of(event: Event) -> Iterator[RecordedTransaction]:
    """Yield the transactions that a version records.

    Where it records none, or an action that this revision does not know, yield its structural diff as a transaction.
    """
    yield from event.transactions
    if not event.transactions or any(
        action.operation is None for recorded in event.transactions for action in recorded.actions
    ):
        yield recorded_of_changes(event)


def recorded_of_changes(event: Event) -> RecordedTransaction:
    """Return a version's structural diff as one transaction without an id.

    Each object in the diff counts as created, dropped, or changed as a whole.
    """
    actions = tuple(
        Action(
            type={"created": "CREATE", "updated": "ALTER", "dropped": "DROP"}[change.type],
            name=change.name,
            operation=None,
            path_before=change.path_before,
            path_after=change.path_after,
        )
        for change in event.changes
    )
    return RecordedTransaction(
        id="",
        operations_digest=b"",
        principal="another writer",
        principal_authenticated=False,
        message="",
        properties={},
        serializable=False,
        branch="",
        begin_version=event.version - 1,
        committed_at_millis=event.created_at_millis,
        actions=actions,
    )
