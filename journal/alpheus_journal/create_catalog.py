"""Create a catalog: version 0 of a history, in an empty place."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from alpheus_journal import format as fmt
from alpheus_journal.clock import Clock, Identities
from alpheus_journal.commit.publish import (
    SETTLE_DELAY_MAX_SECONDS,
    SETTLE_DELAY_MIN_SECONDS,
)
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotEmpty,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind
from alpheus_journal.log.version_bytes import action_rows, written_size_max
from alpheus_journal.log.versions import root_rows
from alpheus_journal.model.action_rows import row_value
from alpheus_journal.model.definition_messages import encode_definition
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.history_rules import check_history_rules
from alpheus_journal.model.operation_messages import action_type, operations_digest
from alpheus_journal.model.operations import Action, CreateCatalog, RecordedTransaction, UpdateCatalog
from alpheus_journal.storage import Storage
from alpheus_journal.storage.suitability import SCRATCH_FOLDER, check_clock
from alpheus_journal.tree.node import EMPTY, decode_node, encode_node
from alpheus_journal.workspace.checks import check_properties, check_text

CREATE_TIMEOUT_SECONDS = 30.0
TXN_TTL_MILLIS_MIN, TXN_TTL_MILLIS_MAX = 60_000, 3_650 * 86_400_000
"""A minute to ten years: how long a saved transaction may be kept before it expires."""
_POINTER_SIZE = len("def/table/") + 36 + 2 * 41 + len(".binpb") + len("node/.arrow") + 36
"""The greatest size of a definition path and a child pointer in one row of a node that we write, in bytes."""


def name_limits(size_max: int | Mapping[Kind, int]) -> dict[str, Any]:
    """Return the fields of a CatalogDef that limit names, from one limit in bytes for all kinds, or limits by kind."""
    if not isinstance(size_max, Mapping):
        size_max = dict.fromkeys((Kind.NAMESPACE, Kind.TABLE, Kind.VIEW), size_max)
    return {f"{kind.label}_name_size_max": size for kind, size in size_max.items()}


async def create_catalog(
    storage: Storage,
    definition: CatalogDef,
    version_digits: int,
    principal: str,
    clock: Clock,
    identities: Identities,
) -> None:
    """Create version 0, with the catalog's definition. Raises the same errors as `Journal.create`."""
    _check_limits(definition, version_digits)
    check_history_rules(UpdateCatalog(set=definition.properties))  # none may be set later, either
    await _check_vacant(storage)
    await storage.prove()
    await check_clock(storage, fmt.version_file(0, version_digits))
    path = fmt.definition_path(fmt.CATALOG, identities.uuid4())
    files, root, commit_id = _first_root(
        definition, path, version_digits, clock.now_millis(), principal, identities
    )
    files[path] = encode_definition(definition, checksum=definition.format_revision >= 2)
    await _publish_first(storage, files, fmt.version_file(0, version_digits), root, commit_id, clock)


def _check_limits(definition: CatalogDef, version_digits: int) -> None:
    """Raise InvalidInput for limits out of range, or too large for the node files."""
    order, node_file_size_max = definition.order, definition.node_file_size_max
    names = (1, fmt.NAME_SIZE_BYTES_MAX)
    ranges = {
        "order": (order, fmt.ORDER_MIN, fmt.ORDER_MAX),
        "the node file limit": (node_file_size_max, 1024, fmt.NODE_FILE_SIZE_BYTES_MAX),
        "the limit of namespace names in bytes": (definition.namespace_name_size_max, *names),
        "the limit of table names in bytes": (definition.table_name_size_max, *names),
        "the limit of view names in bytes": (definition.view_name_size_max, *names),
        "the lifetime of saved transactions in milliseconds": (
            definition.txn_ttl_millis,
            TXN_TTL_MILLIS_MIN,
            TXN_TTL_MILLIS_MAX,
        ),
        "the format's revision": (definition.format_revision, 1, fmt.FORMAT_REVISION),
    }
    for what, (value, low, high) in ranges.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidInput(f"{what} {value!r} is not within {low} to {high}")
    if version_digits not in (32, 64):
        raise InvalidInput(f"version digits must be 32 or 64, not {version_digits!r}")
    row = definition.keys(version_digits).longest_key_size() + _POINTER_SIZE
    size_max = written_size_max(node_file_size_max, version_digits)
    if (order - 1) * row > size_max // 2:
        raise InvalidInput(
            f"a node of order {order} can hold {(order - 1) * row} bytes of keys and pointers,"
            f" more than half of the {size_max} bytes that a node file may have",
            hint="choose a smaller order, shorter names, or a larger node file limit",
        )


def _exists_error(storage: Storage) -> AlreadyExists:
    return AlreadyExists(
        f"a catalog already exists at {storage.url}",
        kind="catalog_exists",
        hint="open it, or choose another place",
    )


async def _check_vacant(storage: Storage) -> None:
    """Check that the prefix is empty and not inside another catalog.

    Raises AlreadyExists for a catalog at the prefix, InvalidInput (`nested_catalog`) for one above or below it, and
    NotEmpty for any other file. The scratch files of another process's self-test do not count.
    """
    first_slots = [fmt.version_file(0, digits) for digits in (32, 64)]
    if any([await storage.exists(slot) for slot in first_slots]):
        raise _exists_error(storage)
    async with contextlib.aclosing(storage.list("")) as entries:  # type: ignore[type-var]
        async for entry in entries:
            if entry.path.startswith(SCRATCH_FOLDER):
                continue
            folder = entry.path
            while folder := folder.rpartition("/")[0]:
                if any([await storage.exists(f"{folder}/{slot}") for slot in first_slots]):
                    raise _nested_error(
                        f"{storage.url} holds another catalog in the folder {folder}", entry.path
                    )
            raise NotEmpty(
                f"{storage.url} is not empty: it holds {entry.path}, and no catalog",
                kind="directory_not_empty",
                path=entry.path,
                hint="choose an empty or a new directory",
            )
    if outer := await storage.enclosing(first_slots):
        raise _nested_error(f"{storage.url} is inside another catalog, {outer}")


def _nested_error(message: str, path: str = "") -> InvalidInput:
    return InvalidInput(
        message,
        kind="nested_catalog",
        hint="choose a place outside of that catalog: a catalog owns everything below its prefix",
        path=path,
    )


async def _publish_first(
    storage: Storage, files: Mapping[str, bytes], slot: str, root: bytes, commit_id: str, clock: Clock
) -> None:
    """Publish into slot 0, and settle an unknown outcome by sending the same bytes again.

    Raises AlreadyExists when another catalog has the slot, and OutcomeUnknown when the outcome cannot be settled in
    time.
    """
    deadline = clock.now_millis() + int(CREATE_TIMEOUT_SECONDS * 1000)
    delay = SETTLE_DELAY_MIN_SECONDS
    is_first = True
    while True:
        try:
            await storage.publish(files, slot, root)
            return
        except AlreadyExists:
            # An earlier delivery of this very root may have taken the slot.
            try:
                data = await storage.read(slot, size_max=len(root))
            except Corrupt:
                raise _exists_error(storage) from None  # larger than ours
            except (NotFound, Unavailable) as error:
                failure: AlpheusError = error
            else:
                if (
                    data == root
                    or decode_node(data, slot, root=True, size_max=len(data)).commit_id == commit_id
                ):
                    return
                raise _exists_error(storage) from None
        except OutcomeUnknown as error:
            failure = error
        except AlpheusError as error:
            if is_first:
                raise
            failure = error
        is_first = False
        if clock.now_millis() >= deadline:
            raise OutcomeUnknown(
                f"it is not known whether the catalog at {storage.url} was created: {failure.message}",
                hint="open the catalog; if there is none, create it again",
            )
        await clock.sleep(delay)
        delay = min(delay * 2, SETTLE_DELAY_MAX_SECONDS)


def _first_root(
    definition: CatalogDef, path: str, digits: int, now: int, principal: str, identities: Identities
) -> tuple[dict[str, bytes], bytes, str]:
    """Return the action files, the root and the commit id of version 0."""
    check_properties(definition.properties, "catalog properties")
    check_text(principal, "principal")
    operation = CreateCatalog(definition=definition)
    recorded = RecordedTransaction(
        id=identities.uuid7(),
        operations_digest=operations_digest([operation]),
        principal=principal,
        principal_authenticated=False,
        message="",
        properties={},
        serializable=False,
        branch="",
        begin_version=0,
        committed_at_millis=now,
        actions=(
            Action(type=action_type(operation), name=fmt.CATALOG, operation=operation, path_after=path),
        ),
    )
    encoded = list(action_rows(recorded, definition.keys(digits), identities))
    rows = [row for row, _ in encoded]
    files = {path: data for _, written in encoded for path, data in written.items()}
    commit_id = identities.uuid4()
    root = encode_node(
        EMPTY,
        order=definition.order,
        created_at_millis=now,
        size_max=written_size_max(definition.node_file_size_max, digits),
        digits=digits,
        system=root_rows(
            0,
            catalog_def=path,
            catalog_id=definition.id,
            commit_id=commit_id,
            revision=definition.format_revision,
        ),
        actions=[(key, row_value(data)) for key, data in rows],
    )
    return files, root, commit_id
