"""Executing what concerns durable subscriptions: creating, claiming, dropping (FORMAT.md, "Subscriptions")."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import AlreadyExists, Conflict, Corrupt, InvalidInput
from alpheus_journal.model.answers import parse_token
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.event_filter import FILTER_TEXTS_MAX
from alpheus_journal.model.operations import ClaimSubscription, CreateSubscription, DropSubscription
from alpheus_journal.workspace.checks import check_text, decode_as, require
from alpheus_journal.workspace.context import Context, Executed, simple_change
from alpheus_journal.workspace.execute_rule import ExecuteRule, ExecuteRules
from alpheus_journal.workspace.workspace import Workspace

LEASE_MILLIS_MIN = 100
LEASE_MILLIS_MAX = 24 * 3600 * 1000
HOLDER_SIZE_BYTES_MAX = 1024
FILTER_TEXT_SIZE_BYTES_MAX = 4096


def create_subscription(workspace: Workspace, operation: CreateSubscription, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys, creating=True)
    if workspace.get(name) is not None:
        raise AlreadyExists(f"there is a {name} already", kind="subscription_exists")
    if not fmt.is_uuid(operation.subscription_id):
        raise InvalidInput(f"subscription id {operation.subscription_id[:80]!r} is not a uuid")
    if not LEASE_MILLIS_MIN <= operation.lease_millis <= LEASE_MILLIS_MAX:
        raise InvalidInput(
            f"{name}: a lease of {operation.lease_millis} ms is outside {LEASE_MILLIS_MIN} to {LEASE_MILLIS_MAX}"
        )
    for what, texts in (
        ("namespaces", operation.namespaces),
        ("names", operation.names),
        ("name patterns", operation.name_patterns),
        ("actions", operation.actions),
    ):
        _check_ordered(texts, f"{name}: {what}")
        for text in texts:
            check_text(text, f"{name}: {what}", FILTER_TEXT_SIZE_BYTES_MAX)
    _check_ordered(operation.kinds, f"{name}: kinds")
    _check_start(operation)
    definition = SubscriptionDef(
        id=operation.subscription_id,
        lease_millis=operation.lease_millis,
        namespaces=operation.namespaces,
        names=operation.names,
        name_patterns=operation.name_patterns,
        kinds=operation.kinds,
        actions=operation.actions,
        details=operation.details,
        next_version=operation.next_version,
        token=operation.token,
        created_at_millis=uuid7_millis(context.transaction_id),  # a replay must give the same time
    )
    return simple_change(workspace, operation, context, definition)


def _check_ordered(values: Iterable[str | int], what: str) -> None:
    """Refuse values that are out of order or repeated, so that equal filters have equal definitions."""
    listed = list(values)
    if listed != sorted(set(listed)):
        raise InvalidInput(f"{what} are not in order, or one is repeated")
    if len(listed) > FILTER_TEXTS_MAX:
        raise InvalidInput(f"{what}: {len(listed)}, at most {FILTER_TEXTS_MAX} are allowed", kind="too_large")


def _check_start(operation: CreateSubscription | ClaimSubscription) -> None:
    version = operation.next_version
    if not 0 <= version <= fmt.VERSION_MAX_EXCLUSIVE:
        raise InvalidInput(
            f"{operation.target}: the version {version} is outside 0 to 2^32", kind="bad_version"
        )
    if operation.token and parse_token(operation.token)[1] != version - 1:
        raise InvalidInput(
            f"{operation.target}: the token {operation.token} does not belong to the version before {version}",
            kind="bad_token",
        )


def claim_subscription(workspace: Workspace, operation: ClaimSubscription, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    definition = decode_as(name, require(workspace, name), SubscriptionDef)
    if (definition.id, definition.epoch, definition.position_path) != (
        operation.subscription_id,
        operation.expected_epoch,
        operation.expected_position_path,
    ):
        raise superseded_error(operation.name, definition, mine=f"claim {name}")
    check_text(operation.holder, f"the holder of {name}", HOLDER_SIZE_BYTES_MAX)
    if bool(operation.holder) != bool(operation.position_path):
        raise InvalidInput(f"{name}: a claim needs both a holder and a position path, or neither")
    for path in (operation.position_path, operation.previous_position_path):
        try:
            fmt.check_position_pointer(path or fmt.position_path(operation.subscription_id))
        except Corrupt as error:
            raise InvalidInput(f"{name}: {error.message}") from None
    if operation.position_path and operation.position_path in (
        definition.position_path,
        definition.previous_position_path,
        operation.previous_position_path,
    ):
        raise InvalidInput(f"{name}: the position {operation.position_path} belongs to another epoch")
    _check_start(operation)
    after = msgspec.structs.replace(
        definition,
        holder=operation.holder,
        epoch=definition.epoch + 1,
        position_path=operation.position_path,
        next_version=operation.next_version,
        token=operation.token,
        previous_position_path=operation.previous_position_path,
    )
    return simple_change(workspace, operation, context, after)


def drop_subscription(workspace: Workspace, operation: DropSubscription, context: Context) -> Executed:
    name = fmt.check_object_name(operation.target, context.keys)
    require(workspace, name)
    return simple_change(workspace, operation, context, None)


def superseded_error(name: str, definition: SubscriptionDef, *, mine: str) -> Conflict:
    """Return the error for an earlier holder, or for a claim that came too late. The message names the holder."""
    who = f"{definition.holder} holds it" if definition.holder else "it was reset and has no holder"
    return Conflict(
        f"subscription {name} is now in epoch {definition.epoch}: {who}",
        kind="subscription_claimed",
        mine=mine,
        theirs=definition.holder or "a reset",
        retryable=True,
        hint="subscribe again, and wait for your turn",
    )


RULES: ExecuteRules = {
    CreateSubscription: ExecuteRule(create_subscription),
    DropSubscription: ExecuteRule(drop_subscription),
    ClaimSubscription: ExecuteRule(claim_subscription),
}
