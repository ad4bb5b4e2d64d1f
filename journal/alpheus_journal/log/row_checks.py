"""Check the rows of a root that readers skip, for roots without a checksum: find impossible rows."""

from __future__ import annotations

from collections.abc import Iterator

from alpheus_journal import format as fmt
from alpheus_journal.format import Keys, Kind, ObjectName
from alpheus_journal.log.versions import Root
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.tree.node import NodeFile


def strange_rows(file: NodeFile, root: Root, keys: Keys) -> Iterator[str]:
    """Yield the faults in the rows of a root of ours, each as the end of a sentence."""
    if root.catalog_id or root.previous_commit_id:
        yield f"lacks the row {fmt.ROW_CHECKSUM!r}, which came with {fmt.ROW_CATALOG_ID!r}"
    if not fmt.is_uuid(root.commit_id) or root.commit_id[14] != "4":
        yield f"has the commit id {root.commit_id[:80]!r}, which is not a version 4 UUID"
    if file.format_revision == 0:
        yield "has the format revision 0, which does not exist"
    expected = [names for transaction in root.transactions for names in _keys_of(transaction, keys)]
    found = [key for key, _ in file.actions]
    if len(found) != len(expected):
        yield f"has {len(found)} action rows, of which {len(expected)} belong to transactions"
    for number, (key, names) in enumerate(zip(found, expected, strict=False)):
        if key not in names:
            yield f"has the key {key[:80]!r} at action row {number}, whose action is on {names[0]!r}"
    for transaction in root.transactions:
        if transaction.committed_at_millis > root.created_at_millis:
            yield f"has a time after its own in the header of transaction {transaction.id}"


def _keys_of(transaction: RecordedTransaction, keys: Keys) -> Iterator[tuple[str, ...]]:
    """Yield the keys that each action row may have, in order. A name outside ASCII has one key for each padding."""
    yield (fmt.ROW_CATALOG_DEF,)
    for action in transaction.actions:
        yield _keys_of_name(action.name, keys)
    for read in transaction.reads:
        yield _keys_of_name(read.name, keys)


def _keys_of_name(name: ObjectName, keys: Keys) -> tuple[str, ...]:
    if name.kind is Kind.CATALOG:
        return (fmt.ROW_CATALOG_DEF,)
    return keys.key(name), keys.other_padding().key(name)
