"""Durable subscriptions: how far an epoch is, as it lies on storage, and whose turn it is. Pure (FORMAT.md,
"Subscriptions").

An entry in the tree says who holds the subscription (an epoch); only a commit changes that, so that one claim of
several wins. How far the holder is lies in a file of its epoch alone, which it overwrites as a sign of life too.
Whoever stands by watches that file change, by his own clock: no two clocks are ever compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from google.protobuf.message import DecodeError

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.model.answers import Position, parse_token
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.event_filter import EventFilter
from alpheus_journal.model.operations import ClaimSubscription
from alpheus_pb.v1 import objects_pb2 as pb

POSITION_SIZE_BYTES_MAX = 1024
LEASE_MILLIS_DEFAULT = 30_000
SIGNS_IN_LEASE = 3
"""So often the holder writes, at least, while a lease lasts."""
LOOKS_IN_LEASE = 6
"""So often somebody who stands by looks."""


# --- the file of an epoch --------------------------------------------------------------------------


def encode_position(position: Position) -> bytes:
    """Raises InvalidInput for what would not be read back."""
    try:
        check_position(position)
    except ValueError as error:
        raise InvalidInput(f"a position that cannot be: {error}") from None
    return position_message(position).SerializeToString(deterministic=True)


def decode_position(data: bytes, path: str) -> Position:
    """Raises Corrupt (`corrupt_history`)."""
    try:
        if len(data) > POSITION_SIZE_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes, {POSITION_SIZE_BYTES_MAX} at most")
        return position_of_message(pb.SubscriptionPosition.FromString(data))
    except (DecodeError, ValueError) as error:  # UnicodeDecodeError is one
        raise Corrupt(
            f"the position of a subscription at {path}: {error}",
            kind="corrupt_history",
            path=path,
            hint="reset the subscription: it then goes on from where you say",
        ) from None


def position_message(position: Position) -> pb.SubscriptionPosition:
    return pb.SubscriptionPosition(**msgspec.structs.asdict(position))


def position_of_message(message: pb.SubscriptionPosition) -> Position:
    """Raises ValueError for a message that is none."""
    position = Position(
        subscription_id=message.subscription_id,
        epoch=message.epoch,
        beat=message.beat,
        next_version=message.next_version,
        token=message.token,
        released=message.released,
    )
    check_position(position)
    return position


def check_position(position: Position) -> None:
    """Raises ValueError."""
    if not fmt.is_uuid(position.subscription_id):
        raise ValueError(f"subscription id {position.subscription_id[:80]!r} is no uuid")
    if position.epoch < 1 or position.beat < 1:
        raise ValueError("epoch and beat count from 1")
    if not 0 <= position.next_version <= fmt.VERSION_MAX_EXCLUSIVE:
        raise ValueError(f"version {position.next_version} is outside 0 to 2^32")
    if position.token:
        try:
            version = parse_token(position.token)[1]
        except InvalidInput as error:
            raise ValueError(error.message) from None
        if version != position.next_version - 1:
            raise ValueError(f"its token is not of the version before {position.next_version}")


# --- the entry -------------------------------------------------------------------------------------


def filter_of(definition: SubscriptionDef) -> EventFilter:
    return EventFilter(
        namespaces=frozenset(definition.namespaces),
        names=frozenset(definition.names),
        name_patterns=frozenset(definition.name_patterns),
        kinds=frozenset(definition.kinds),
        actions=frozenset(definition.actions),
    )


def position_paths(definition: SubscriptionDef) -> list[str]:
    """Where positions may lie that count for whoever comes next, newest epoch first."""
    paths = (definition.position_path, definition.previous_position_path)
    return [path for path in paths if path]


def newest(definition: SubscriptionDef, found: Iterable[Position | None]) -> tuple[int, str]:
    """(next version, token) to go on from: the farthest that was acknowledged. Each epoch began at or below what those
    before it had acknowledged, so nothing below it is left undone. A file of another subscription says nothing."""
    best = (definition.next_version, definition.token)
    for position in found:
        if (
            position is not None
            and position.subscription_id == definition.id
            and position.next_version > best[0]
        ):
            best = (position.next_version, position.token)
    return best


def claim(
    name: str,
    definition: SubscriptionDef,
    found: tuple[Position | None, ...],
    *,
    holder: str,
    position_path: str,
) -> ClaimSubscription:
    """The operation by which `holder` takes over from the epoch of `definition`. `found`: what lies at
    `position_paths(definition)`."""
    next_version, token = newest(definition, found)
    return ClaimSubscription(
        name=name,
        subscription_id=definition.id,
        expected_epoch=definition.epoch,
        expected_position_path=definition.position_path,
        next_version=next_version,
        token=token,
        holder=holder,
        position_path=position_path,
        # An acknowledgement on its way may still land there, after it was looked at.
        previous_position_path=definition.position_path,
    )


def reset(name: str, definition: SubscriptionDef, next_version: int, token: str) -> ClaimSubscription:
    """The operation after which nobody holds it, and whoever comes next begins at `next_version`."""
    return ClaimSubscription(
        name=name,
        subscription_id=definition.id,
        expected_epoch=definition.epoch,
        expected_position_path=definition.position_path,
        next_version=next_version,
        token=token,
    )


def has_left(definition: SubscriptionDef, position: Position | None) -> bool:
    """Whether the holder said that its turn is over. `position`: what lies at `definition.position_path`."""
    return position is not None and position.released and position.subscription_id == definition.id


class StandBy:
    """What somebody who waits for his turn has seen. `monotonic`: seconds of his own clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: tuple[str, int, str, Position | None] | None = None
        self._since = 0.0

    def wait_seconds(self, definition: SubscriptionDef, position: Position | None, asked_at: float) -> float:
        """How long to wait before looking again; 0: it is free, claim it.

        `position`: what lay at `definition.position_path`, asked for at `asked_at` by `monotonic`: the lease counts
        from the first look that saw it as it is, and only looks that began later can say that it has not changed
        since.
        """
        if not definition.holder or has_left(definition, position):
            return 0.0
        now_seen = (definition.id, definition.epoch, definition.position_path, position)
        if now_seen != self._seen:
            self._seen, self._since = now_seen, self._monotonic()
        lease = definition.lease_millis / 1000
        passed = asked_at - self._since
        if passed >= lease:
            return 0.0
        return min(lease / LOOKS_IN_LEASE, lease - passed)
