"""Who conflicts with whom: every pair of operations, both ways round, and other writers' versions."""

from __future__ import annotations

import itertools

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.access import Change, Event
from alpheus_journal.actions import (
    Action,
    AdvancePipeline,
    AppendFiles,
    CancelTransaction,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    Operation,
    OverwriteFiles,
    RecordedTransaction,
    Transaction,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
    action_type,
)
from alpheus_journal.conflicts import conflict_with_event, conflict_with_transaction, describe
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.objects import Column

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"
COLUMNS = (Column(id=1, name="c", type="INT8"),)

# (operation, path before, path after) by a name; two namespaces, two tables in the first.
FACTS: dict[str, tuple[Operation, str, str]] = {
    "catalog": (UpdateCatalog(set={"a": "b"}), "c0", "c1"),
    "+a": (CreateNamespace(name="a", namespace_id=ID), "", "n1"),
    "=a": (UpdateNamespace(name="a", set={"a": "b"}), "n1", "n2"),
    "-a": (DropNamespace(name="a"), "n1", ""),
    "+b": (CreateNamespace(name="b", namespace_id=ID), "", "n1"),
    "-b": (DropNamespace(name="b"), "n1", ""),
    "+a.t": (CreateTable(namespace="a", name="t", table_id=ID, columns=COLUMNS), "", "t1"),
    "=a.t": (UpdateTable(namespace="a", name="t", set={"a": "b"}), "t1", "t2"),
    "-a.t": (DropTable(namespace="a", name="t"), "t1", ""),
    ">a.t": (AppendFiles(namespace="a", name="t", table_id=ID, segments=()), "t1", "t2"),
    "!a.t": (OverwriteFiles(namespace="a", name="t", table_id=ID, segments=()), "t1", "t2"),
    "+a.u": (CreateTable(namespace="a", name="u", table_id=ID, columns=COLUMNS), "", "t1"),
    "-a.u": (DropTable(namespace="a", name="u"), "t1", ""),
    "m.j": (AdvancePipeline(name="m", job="j", expected_transaction_id="", pinned_version=0), "", "p1"),
    "m.k": (AdvancePipeline(name="m", job="k", expected_transaction_id="", pinned_version=0), "p1", "p2"),
    "n.j": (AdvancePipeline(name="n", job="j", expected_transaction_id="", pinned_version=0), "", "p1"),
}


def recorded(*names: str, id: str = OTHER) -> RecordedTransaction:
    actions = tuple(
        Action(type=action_type(o), name=o.target, operation=o, path_before=before, path_after=after)
        for o, before, after in (FACTS[name] for name in names)
    )
    return RecordedTransaction(
        id=id, operations_digest=b"", principal="ann", principal_authenticated=True, message="",
        properties={}, serializable=False, branch="", begin_version=0, committed_at_millis=0, actions=actions,
    )  # fmt: skip


def mine(*names: str) -> Transaction:
    return Transaction(id=ID, begin_version=0, operations=tuple(FACTS[name][0] for name in names))


OBJECT = {name: name.lstrip("+=->!") for name in FACTS} | {"m.j": "m.j", "m.k": "m.k"}


def expected(me: str, they: str) -> bool:
    """The rule, said again: one object, or a namespace dropped and something created inside it."""
    if OBJECT[me] == OBJECT[they]:
        return True
    dropped, created = (me, they) if me.startswith("-") else (they, me)
    return (
        dropped.startswith("-")
        and "." not in dropped
        and created.startswith("+")
        and OBJECT[created].startswith(OBJECT[dropped] + ".")
    )


@pytest.mark.parametrize(("me", "they"), list(itertools.product(FACTS, FACTS)))
def test_every_pair(me: str, they: str) -> None:
    conflict = conflict_with_transaction(mine(me), recorded(they), 7)
    assert (conflict is not None) == expected(me, they)
    if conflict is None:
        return
    assert conflict.version == 7
    assert conflict.transaction_id == OTHER
    assert conflict.mine == describe(FACTS[me][0])
    for text in (conflict.mine, describe(FACTS[they][0]), "ann", OTHER, "version 7"):
        assert text in str(conflict)
    both_created = me[0] == they[0] == "+"
    assert conflict.retryable == (not both_created and they[0] != "-")
    assert (conflict.kind == "already_exists_now") == both_created
    if me == they and "." in me and me[0] in "mn":
        assert conflict.kind == "position_moved"
    if OBJECT[me] != OBJECT[they]:
        assert conflict.kind == "namespace_changed"


def test_any_operation_of_many_may_conflict() -> None:
    assert conflict_with_transaction(mine("+b", "=a.t"), recorded("+a.u", "-a.t"), 1) is not None
    assert conflict_with_transaction(mine("+b", "=a.t"), recorded("+a.u", "=a"), 1) is None


def test_cancelling() -> None:
    cancels = RecordedTransaction(
        id=OTHER, operations_digest=b"", principal="", principal_authenticated=False, message="", properties={},
        serializable=False, branch="", begin_version=0, committed_at_millis=0,
        actions=(Action(type="TRANSACTION_CANCEL", name=fmt.CATALOG, operation=CancelTransaction(transaction_id=ID)),),
    )  # fmt: skip
    conflict = conflict_with_transaction(mine("+a"), cancels, 1)
    assert conflict is not None
    assert not conflict.retryable
    cancel = Transaction(id=ID, begin_version=0, operations=(CancelTransaction(transaction_id=OTHER),))
    conflict = conflict_with_transaction(cancel, recorded("+a"), 1)
    assert conflict is not None
    assert (conflict.transaction_id, conflict.retryable) == (OTHER, False)
    # Neither touches the catalog's definition, nor each other.
    assert conflict_with_transaction(cancel, recorded("catalog", id=ID), 1) is None
    other = Transaction(id=OTHER[:-1] + "9", begin_version=0, operations=(FACTS["catalog"][0],))
    assert conflict_with_transaction(other, cancels, 1) is None


def foreign(*changes: tuple[ObjectName, str, str]) -> Event:
    return Event(
        version=3, created_at_millis=1, token="", transactions=(),
        changes=tuple(
            Change(
                name=name, path_before=before, path_after=after,
                type="created" if not before else "updated" if after else "dropped",
            )
            for name, before, after in changes
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("me", "change", "kind", "retryable"),
    [
        ("=a.t", (fmt.table_name("a", "t"), "t1", "t2"), "object_changed", True),
        ("=a.t", (fmt.table_name("a", "t"), "t1", ""), "object_changed", False),
        ("+a.t", (fmt.table_name("a", "t"), "", "t1"), "already_exists_now", False),
        ("+a.t", (fmt.namespace_name("a"), "n1", ""), "namespace_changed", False),
        ("-a", (fmt.table_name("a", "t"), "", "t1"), "namespace_changed", True),
        ("-a", (ObjectName(Kind.VIEW, "a", "v"), "", "v1"), "namespace_changed", True),
        ("-a", (fmt.table_name("a", "t"), "t1", "t2"), "", True),
        ("-a", (fmt.table_name("ab", "t"), "", "t1"), "", True),
        ("+a.t", (fmt.namespace_name("a"), "n1", "n2"), "", True),
        ("catalog", (fmt.CATALOG, "c0", "c1"), "object_changed", True),
        ("m.j", (fmt.pipeline_name("m"), "p0", "p1"), "position_moved", True),
    ],
)
def test_versions_of_other_writers(
    me: str, change: tuple[ObjectName, str, str], kind: str, retryable: bool
) -> None:
    conflict = conflict_with_event(mine(me), foreign(change))
    if not kind:
        assert conflict is None
        return
    assert conflict is not None
    assert (conflict.kind, conflict.retryable, conflict.version) == (kind, retryable, 3)
    assert "version 3" in str(conflict)
