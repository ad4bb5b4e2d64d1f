"""The words of a conflict: rows, cancellations, versions of other writers, and the choice among several rivals."""

from __future__ import annotations

import msgspec
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.conflicts.rules import (
    Group,
    Stakes,
    Touches,
    conflict_with_event,
    conflict_with_transaction,
    event_facets,
    transactions_of,
)
from alpheus_journal.conflicts.text import (
    PREDICATE_LENGTH_MAX,
    describe,
    describe_action,
    describe_read,
    describe_rival,
    time_text,
)
from alpheus_journal.format import Kind
from alpheus_journal.model.answers import Change, Event
from alpheus_journal.model.definitions import Column, Segment
from alpheus_journal.model.operations import (
    Action,
    CancelTransaction,
    ChangeMode,
    ChangeRows,
    ClaimSubscription,
    CreateNamespace,
    Operation,
    Read,
    RecordedTransaction,
    RenameObject,
    Repair,
    Transaction,
    UpdateTable,
)
from alpheus_journal.predicate import IsNull, encode, reference

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"
THIRD = "01890a5d-ac96-774b-bcce-b302099a8059"
TABLE = fmt.table_name("a", "t")


def is_null(name: str) -> bytes:
    return encode(IsNull(reference(Column(id=1, name=name, type="INT8"))))


def changed(**parts: object) -> ChangeRows:
    return ChangeRows(
        namespace="a", name="t", table_id=ID, base_sequence=0, mode=ChangeMode.DELETE, **parts  # type: ignore[arg-type]
    )  # fmt: skip


def removed(file_count: int, row_count: int) -> Segment:
    return Segment(
        path="m", file_count=file_count, row_count=row_count, size_bytes=1, sha256=b"", segment_size_bytes=1
    )


def action_of(operation: Operation) -> Action:
    return Action(type="ANY", name=operation.target, operation=operation)


def recorded(*actions: Action, id: str = OTHER, principal: str = "bob") -> RecordedTransaction:
    return RecordedTransaction(
        id=id, operations_digest=b"", principal=principal, principal_authenticated=False, message="",
        properties={}, serializable=False, branch="", begin_version=0, committed_at_millis=0, actions=actions,
    )  # fmt: skip


def altered(key: str, value: str) -> UpdateTable:
    return UpdateTable(namespace="a", name="t", set={key: value})


def version_of(*changes: Change, transactions: tuple[RecordedTransaction, ...] = ()) -> Event:
    return Event(version=3, created_at_millis=1, token="", transactions=transactions, changes=changes)


CHANGE = Change(name=TABLE, path_before="t1", path_after="t2", type="updated")


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (changed(), "delete from table a.t"),
        (changed(predicates=(is_null("c"),)), "delete from table a.t where `c` IS NULL"),
        (changed(scan=is_null("c")), "delete from table a.t where `c` IS NULL"),
        (changed(predicates=(is_null("c"),), scan=is_null("d")), "delete from table a.t where `c` IS NULL"),
        (
            changed(predicates=tuple(map(is_null, "cde"))),
            "delete from table a.t where `c` IS NULL or `d` IS NULL or `e` IS NULL",
        ),
        (
            changed(predicates=tuple(map(is_null, "cdefg"))),
            "delete from table a.t where `c` IS NULL or `d` IS NULL or `e` IS NULL or 2 more",
        ),
        (changed(predicates=(b"of a later revision",)), "delete from table a.t"),
        (changed(removed=(removed(1, 7),)), "delete from table a.t, removing 1 file of 7 rows"),
        (
            changed(removed=(removed(1, 7), removed(2, 5))),
            "delete from table a.t, removing 3 files of 12 rows",
        ),
        (
            changed(predicates=(is_null("c"),), removed=(removed(1, 7),)),
            "delete from table a.t where `c` IS NULL, removing 1 file of 7 rows",
        ),
        (altered("k", "v"), "update table a.t"),
    ],
)
def test_what_a_rival_did_to_rows(operation: Operation, text: str) -> None:
    assert describe_rival(action_of(operation)) == text


def test_a_long_predicate_is_cut() -> None:
    length = PREDICATE_LENGTH_MAX - len("`` IS NULL")
    for more, expected in (("", f"`{'c' * length}` IS NULL"), ("c", f"`{'c' * (length + 1)}` IS NUL...")):
        predicate = is_null(more + "c" * length)
        text = describe_rival(action_of(changed(predicates=(predicate,))))
        assert text == f"delete from table a.t where {expected}"


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (CancelTransaction(transaction_id=ID), f"cancel transaction {ID}"),
        (Repair(head_version=7), "repair the history above version 7"),
        (CreateNamespace(name="a", namespace_id=ID), "create namespace a"),
        (
            RenameObject(kind=Kind.VIEW, namespace="a", name="v", new_namespace="b", new_name="w"),
            "rename view a.v to b.w",
        ),
        (
            ClaimSubscription(
                name="s", subscription_id=ID, expected_epoch=0, expected_position_path="", next_version=1
            ),
            "claim subscription s",
        ),
    ],
)  # fmt: skip
def test_operations_in_words(operation: Operation, text: str) -> None:
    assert describe(operation) == text
    assert describe_action(action_of(operation)) == text
    assert describe_rival(action_of(operation)) == text


def test_an_action_of_another_writer_in_words() -> None:
    assert describe_action(Action(type="ALTER", name=TABLE, operation=None)) == "alter table a.t"
    conflict = conflict_with_event(
        Transaction(id=ID, begin_version=0, operations=(altered("k", "v"),)), version_of(CHANGE)
    )
    assert conflict is not None
    assert conflict.theirs == "alter table a.t"
    assert str(conflict).startswith(
        "cannot update table a.t: since version 0, where this transaction began, another writer committed:"
        " alter table a.t (version 3, 1970-01-01T00:00:00Z, without recorded actions)"
    )


def test_reads_in_words() -> None:
    assert (
        describe_read(Read(type="CATALOG_DESCRIBE", name=fmt.CATALOG)) == "read the definition of the catalog"
    )
    assert (
        describe_read(Read(type="CATALOG_SHOW_NAMESPACES", name=fmt.CATALOG, prefix="a"))
        == "listed the namespaces that begin with 'a'"
    )
    assert (
        describe_read(Read(type="NAMESPACE_SHOW_VIEWS", name=fmt.namespace_name("a")))
        == "listed the views of namespace a"
    )


def test_times_in_words() -> None:
    assert time_text(1_999) == "1970-01-01T00:00:01Z"
    assert time_text(1 << 62) == f"{1 << 62} ms"


def test_a_cancellation_in_words() -> None:
    """The conflict's hint for a cancelled transaction is to use another id. A late cancellation learns that the
    transaction has committed."""
    create = CreateNamespace(name="a", namespace_id=ID)
    cancels = recorded(action_of(CancelTransaction(transaction_id=ID)))
    mine = Transaction(id=ID, begin_version=0, operations=(create,))
    conflict = conflict_with_transaction(mine, cancels, 4)
    assert conflict is not None
    assert (conflict.mine, conflict.theirs) == (f"commit transaction {ID}", f"cancel transaction {ID}")
    assert (conflict.kind, conflict.retryable, conflict.hint) == ("object_changed", False, "use a new id")
    assert str(conflict).startswith(
        f"cannot commit transaction {ID}: bob committed: cancel transaction {ID} (version 4, "
        f"1970-01-01T00:00:00Z, transaction {OTHER})"
    )
    late = Transaction(id=ID, begin_version=0, operations=(CancelTransaction(transaction_id=OTHER),))
    conflict = conflict_with_transaction(late, recorded(action_of(create), principal=""), 4)
    assert conflict is not None
    assert (conflict.mine, conflict.theirs) == (f"cancel transaction {OTHER}", f"transaction {OTHER}")
    assert (conflict.kind, conflict.retryable, conflict.hint) == (
        "object_changed",
        False,
        "undo the changes in a new transaction: this one has committed",
    )
    assert conflict.principal == "an unnamed principal"


def test_what_concerns_a_transaction_contains_itself_and_its_cancellation() -> None:
    mine = Transaction(id=ID, begin_version=0, operations=(CreateNamespace(name="a", namespace_id=ID),))
    itself = version_of(transactions=(recorded(action_of(altered("k", "v")), id=ID),))
    cancelled = version_of(transactions=(recorded(action_of(CancelTransaction(transaction_id=ID))),))
    other = version_of(transactions=(recorded(action_of(altered("k", "v"))),))
    for event, concerns in ((itself, True), (cancelled, True), (other, False)):
        assert bool(Stakes(mine).sought & event_facets(event)) is concerns
    # A version without ids concerns no transaction by its id.
    nameless = recorded(action_of(CancelTransaction(transaction_id=ID)), id="")
    assert not Touches(nameless).facets & Stakes(mine).sought


def test_a_version_without_actions_stands_for_one_transaction_of_its_diff() -> None:
    changes = (
        Change(name=TABLE, path_before="", path_after="t1", type="created"),
        Change(name=fmt.table_name("a", "u"), path_before="u1", path_after="u2", type="updated"),
        Change(name=fmt.table_name("a", "w"), path_before="w1", path_after="", type="dropped"),
    )
    types = ("CREATE", "ALTER", "DROP")
    whole = RecordedTransaction(
        id="", operations_digest=b"", principal="another writer", principal_authenticated=False, message="",
        properties={}, serializable=False, branch="", begin_version=2, committed_at_millis=1,
        actions=tuple(
            Action(
                type=type, name=change.name, operation=None, path_before=change.path_before,
                path_after=change.path_after,
            )
            for type, change in zip(types, changes, strict=True)
        ),
    )  # fmt: skip
    assert list(transactions_of(version_of(*changes))) == [whole]
    known, unknown = action_of(altered("k", "v")), Action(type="LATER", name=TABLE, operation=None)
    for transactions, expected in (
        ((recorded(known),), []),
        ((recorded(known, unknown),), [whole]),
        ((recorded(unknown), recorded(known)), [whole]),
    ):
        event = version_of(*changes, transactions=transactions)
        assert list(transactions_of(event)) == [*transactions, *expected]


def test_the_first_of_several_rivals_is_named() -> None:
    """A group is searched in the order of its additions, a version in the order of its transactions."""
    mine = Transaction(id=ID, begin_version=0, operations=(altered("k", "mine"),))
    elsewhere = CreateNamespace(name="b", namespace_id=ID)
    rivals = [
        recorded(action_of(elsewhere), id=THIRD),
        recorded(action_of(altered("k", "one")), id=OTHER),
        recorded(action_of(altered("k", "two")), id=THIRD),
    ]
    group = Group()
    assert group.conflict(Stakes(mine), 5) is None
    for rival in rivals:
        group.add(Touches(rival))
    conflict = group.conflict(Stakes(mine), 5)
    assert conflict is not None
    assert (conflict.transaction_id, conflict.version, conflict.retryable) == (OTHER, 5, True)
    conflict = conflict_with_event(mine, version_of(CHANGE, transactions=tuple(rivals)))
    assert conflict is not None
    assert (conflict.transaction_id, conflict.version) == (OTHER, 3)
    same = msgspec.structs.replace(mine, operations=(altered("k", "one"),))
    conflict = group.conflict(Stakes(same), 5)
    assert conflict is not None
    assert conflict.transaction_id == THIRD, "the same value is no conflict"
