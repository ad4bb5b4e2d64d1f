"""The bytes of a version: its action rows, its root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ParamSpec, TypeVar

from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.model.action_rows import ActionRow, encode_transaction, external_row, row_value
from alpheus_journal.model.operations import RecordedTransaction
from alpheus_journal.tree.node import Node, encode_node
from alpheus_pb.v1 import actions_pb2

_P = ParamSpec("_P")
_T = TypeVar("_T")

OPERATIONS_ASIDE_MIN = 500
"""Work on more operations than this runs in a thread; it takes some 10 ms."""


def action_rows(
    recorded: RecordedTransaction,
    keys: fmt.Keys,
    identities: Identities,
    encoded: Sequence[actions_pb2.Operation | None] = (),
) -> Iterator[tuple[ActionRow, dict[str, bytes]]]:
    """Yield a transaction's rows in the root, each with the file of an action that is too large for a row. `encoded`
    is the same as for `encode_transaction`."""
    for key, data in encode_transaction(recorded, keys, encoded):
        if len(data) > fmt.ACTION_ROW_SIZE_BYTES_MAX:
            path = fmt.action_path(identities.uuid4())
            yield (key, external_row(path, data)), {path: data}
        else:
            yield (key, data), {}


def written_size_max(node_file_size_max: int, digits: int) -> int:
    """Return the size of the largest node file that is written. In the Java SDK's dialect the Java reader's limit
    counts too."""
    return min(node_file_size_max, fmt.NODE_FILE_SIZE_BYTES_JAVA) if digits == 64 else node_file_size_max


async def run_aside(weight: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run pure work on `weight` operations. Above OPERATIONS_ASIDE_MIN the work runs in a thread, so that the event
    loop stays responsive."""
    if weight <= OPERATIONS_ASIDE_MIN:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def encode_root(
    node: Node,
    rows: Sequence[ActionRow],
    *,
    order: int,
    created_at_millis: int,
    size_max: int,
    digits: int,
    system: Mapping[str, str],
) -> bytes:
    return encode_node(
        node,
        order=order,
        created_at_millis=created_at_millis,
        size_max=size_max,
        digits=digits,
        system=system,
        actions=[(key, row_value(data)) for key, data in rows],
    )
