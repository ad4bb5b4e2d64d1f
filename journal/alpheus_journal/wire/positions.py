"""Durable subscriptions: the stored position of an epoch, and whose turn it is. Pure (FORMAT.md, "Subscriptions").

An entry in the tree names the holder of the subscription (an epoch). Only a commit changes the entry, so that exactly
one of several claims wins. The holder's position is stored in a file of its own epoch, which the holder also overwrites
as a sign of life. A consumer that stands by watches this file for changes, by its own clock. Clocks are never compared.
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
"""The holder writes at least this often during a lease."""
LOOKS_IN_LEASE = 6
"""A consumer that stands by looks this often during a lease."""


# --- the file of an epoch --------------------------------------------------------------------------


def encode_position(position: Position) -> bytes:
    """Encode a position. Raises InvalidInput for a position that decoding would refuse."""
    try:
        check_position(position)
    except ValueError as error:
        raise InvalidInput(f"the position is impossible: {error}") from None
    return position_message(position).SerializeToString(deterministic=True)


def decode_position(data: bytes, path: str) -> Position:
    """Decode a stored position. Raises Corrupt (`corrupt_history`)."""
    try:
        if len(data) > POSITION_SIZE_BYTES_MAX:
            raise ValueError(f"it has {len(data)} bytes; the limit is {POSITION_SIZE_BYTES_MAX}")
        return position_of_message(pb.SubscriptionPosition.FromString(data))
    except (DecodeError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise Corrupt(
            f"the position of a subscription at {path}: {error}",
            kind="corrupt_history",
            path=path,
            hint="reset the subscription; it then continues at the version that you choose",
        ) from None


def position_message(position: Position) -> pb.SubscriptionPosition:
    return pb.SubscriptionPosition(**msgspec.structs.asdict(position))


def position_of_message(message: pb.SubscriptionPosition) -> Position:
    """Decode a position. Raises ValueError for an impossible one."""
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
    """Raise ValueError for an impossible position."""
    if not fmt.is_uuid(position.subscription_id):
        raise ValueError(f"subscription id {position.subscription_id[:80]!r} is not a uuid")
    if position.epoch < 1 or position.beat < 1:
        raise ValueError("epoch and beat have to be at least 1")
    if not 0 <= position.next_version <= fmt.VERSION_MAX_EXCLUSIVE:
        raise ValueError(f"version {position.next_version} is outside 0 to 2^32")
    if position.token:
        try:
            version = parse_token(position.token)[1]
        except InvalidInput as error:
            raise ValueError(error.message) from None
        if version != position.next_version - 1:
            raise ValueError(f"its token does not name the version before {position.next_version}")


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
    """Return the paths of the positions that the next holder has to read, newest epoch first."""
    paths = (definition.position_path, definition.previous_position_path)
    return [path for path in paths if path]


def newest(definition: SubscriptionDef, found: Iterable[Position | None]) -> tuple[int, str]:
    """Return the farthest acknowledged position: the next version and its token.

    Each epoch began at or below the positions that earlier epochs had acknowledged, so no version below is left out.
    A file of another subscription is ignored.
    """
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
    """Return the operation by which `holder` takes over from the epoch of `definition`.

    `found` are the positions at `position_paths(definition)`.
    """
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
        # An acknowledgement in flight may still arrive there after the look.
        previous_position_path=definition.position_path,
    )


def reset(name: str, definition: SubscriptionDef, next_version: int, token: str) -> ClaimSubscription:
    """Return the operation that ends the current hold. The next holder begins at `next_version`."""
    return ClaimSubscription(
        name=name,
        subscription_id=definition.id,
        expected_epoch=definition.epoch,
        expected_position_path=definition.position_path,
        next_version=next_version,
        token=token,
    )


def has_left(definition: SubscriptionDef, position: Position | None) -> bool:
    """Return whether the holder has released the subscription. `position` is the one at `definition.position_path`."""
    return position is not None and position.released and position.subscription_id == definition.id


class StandBy:
    """The observations of a consumer that waits for its turn. `monotonic` returns seconds of its own clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: tuple[str, int, str, Position | None] | None = None
        self._since = 0.0

    def wait_seconds(self, definition: SubscriptionDef, position: Position | None, asked_at: float) -> float:
        """Return the seconds to wait before the next look. 0 means that the subscription is free to claim.

        `position` is the one at `definition.position_path`, read at `asked_at` (by `monotonic`). The lease counts from
        the first look that saw the current position. Only looks that began later can show that it has not changed.
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
