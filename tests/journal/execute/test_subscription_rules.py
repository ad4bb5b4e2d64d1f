"""Subscriptions without consumers: the entry and its claims, the file of an epoch, and the time to claim."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import (
    AlpheusError,
    AlreadyExists,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed, Position, make_token
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import SubscriptionDef
from alpheus_journal.model.operations import ClaimSubscription, CreateSubscription, DropSubscription
from alpheus_journal.testing import Fault, FaultyStorage, Lake, listed, raises
from alpheus_journal.wire.positions import (
    POSITION_SIZE_BYTES_MAX,
    StandBy,
    claim,
    decode_position,
    encode_position,
    newest,
    position_paths,
    reset,
)
from alpheus_pb.v1 import objects_pb2 as pb

ID = "85d62cf3-0000-4000-8000-000000000001"
OTHER = "85d62cf3-0000-4000-8000-000000000002"
TOKEN = make_token("cat", 6, "c6")
POSITION = Position(subscription_id=ID, epoch=1, beat=3, next_version=7, token=TOKEN)
PATHS = [fmt.position_path(f"85d62cf3-0000-4000-8000-00000000010{n}") for n in range(5)]


def created(name: str = "mail", **fields: Any) -> CreateSubscription:
    return CreateSubscription(**({"name": name, "subscription_id": ID, "lease_millis": 1000} | fields))  # type: ignore[arg-type]


def claimed(epoch: int, expected: str, path: str, **fields: Any) -> ClaimSubscription:
    given: dict[str, Any] = {"name": "mail", "subscription_id": ID, "next_version": 0, "holder": "ann"}
    given |= {"expected_epoch": epoch, "expected_position_path": expected, "position_path": path}
    return ClaimSubscription(**(given | fields))


async def entry(journal: Journal) -> SubscriptionDef:
    (stored,) = (await journal.load(None, [fmt.subscription_name("mail")])).objects
    assert stored is not None
    found = decode_definition(Kind.SUBSCRIPTION, stored.definition, stored.path)
    assert isinstance(found, SubscriptionDef)
    return found


# --- the file of an epoch --------------------------------------------------------------------------


def test_the_bytes_of_a_position() -> None:
    data = encode_position(msgspec.structs.replace(POSITION, token=""))
    assert data == b"\x0a\x24" + ID.encode() + bytes([0x10, 1, 0x18, 3, 0x20, 7])
    assert decode_position(encode_position(POSITION), PATHS[0]) == POSITION


@pytest.mark.parametrize(
    "fields",
    [
        {"subscription_id": "x"}, {"epoch": 0}, {"beat": 0}, {"next_version": (1 << 32) + 1},
        {"token": "nonsense"}, {"token": make_token("cat", 7, "c")}, {"next_version": 0},
    ],
)  # fmt: skip
def test_positions_that_cannot_be(fields: dict[str, Any]) -> None:
    wrong = msgspec.structs.replace(POSITION, **fields)
    with pytest.raises(InvalidInput):
        encode_position(wrong)
    with pytest.raises(Corrupt) as caught:
        decode_position(
            pb.SubscriptionPosition(**msgspec.structs.asdict(wrong)).SerializeToString(), PATHS[0]
        )
    assert (caught.value.kind, caught.value.path) == ("corrupt_history", PATHS[0])
    assert "reset" in caught.value.hint


@given(st.binary(max_size=80))
def test_hostile_positions(data: bytes) -> None:
    for hostile in (data, encode_position(POSITION)[: len(data)] + data):
        try:
            decode_position(hostile, PATHS[0])
        except Corrupt:
            continue
    with pytest.raises(Corrupt, match="the limit is"):
        decode_position(bytes(POSITION_SIZE_BYTES_MAX + 1), PATHS[0])


# --- when to claim ---------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


HELD = SubscriptionDef(id=ID, lease_millis=6000, holder="ann", epoch=1, position_path=PATHS[0])


def test_a_lease_runs_out_when_nothing_changed_between_two_looks() -> None:
    time = Time()
    watch = StandBy(time)
    assert watch.wait_seconds(HELD, POSITION, time()) == 1.0
    time.now += 5.5
    assert watch.wait_seconds(HELD, POSITION, time()) == 0.5
    time.now += 0.4
    asked = time()
    time.now += 10  # the look itself took long: its result may be old
    assert watch.wait_seconds(HELD, POSITION, asked) > 0
    assert watch.wait_seconds(HELD, POSITION, time()) == 0.0


def test_any_change_is_a_sign_of_life() -> None:
    time = Time()
    watch = StandBy(time)
    for seen in (
        (HELD, POSITION),
        (HELD, msgspec.structs.replace(POSITION, beat=4)),
        (HELD, POSITION),  # a late older write
        (msgspec.structs.replace(HELD, epoch=2, position_path=PATHS[1]), None),
        (msgspec.structs.replace(HELD, id=OTHER), None),
    ):
        assert watch.wait_seconds(*seen, time()) == 1.0
        time.now += 5.9
        assert watch.wait_seconds(*seen, time()) > 0
        time.now += 50
    assert watch.wait_seconds(msgspec.structs.replace(HELD, id=OTHER), None, time()) == 0.0


def test_what_is_free_is_claimed_at_once() -> None:
    watch = StandBy(Time())
    assert watch.wait_seconds(msgspec.structs.replace(HELD, holder="", position_path=""), None, 0) == 0.0
    assert watch.wait_seconds(HELD, msgspec.structs.replace(POSITION, released=True), 0) == 0.0
    stranger = msgspec.structs.replace(POSITION, released=True, subscription_id=OTHER)
    assert watch.wait_seconds(HELD, stranger, 0) > 0


def test_the_newest_position_counts() -> None:
    definition = msgspec.structs.replace(HELD, next_version=5, token="t")
    assert newest(definition, []) == (5, "t")
    assert newest(definition, [None, msgspec.structs.replace(POSITION, next_version=4)]) == (5, "t")
    assert newest(definition, [None, POSITION]) == (7, TOKEN)
    assert newest(definition, [msgspec.structs.replace(POSITION, subscription_id=OTHER)]) == (5, "t")
    operation = claim("mail", definition, (POSITION,), holder="bob", position_path=PATHS[1])
    assert (operation.next_version, operation.token) == (7, TOKEN)
    assert operation.previous_position_path == PATHS[0]
    again = reset("mail", definition, 3, "")
    assert (again.holder, again.position_path, again.previous_position_path) == ("", "", "")


# --- the entry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [32, 64])
async def test_the_life_of_an_entry(digits: int) -> None:
    """An entry is created, claimed, reset, claimed again and dropped. A `check` of the recorded operations gives the
    same entry."""
    lake = Lake()
    journal = await lake.create(version_digits=digits)
    fields = {
        "namespaces": ("a", "ü"),
        "name_patterns": ("a.*",),
        "kinds": (Kind.TABLE, Kind.VIEW),
        "details": True,
    }
    await lake.commit(journal, created(**fields))
    made = await entry(journal)
    assert (made.epoch, made.holder, made.namespaces, made.kinds) == (
        0,
        "",
        ("a", "ü"),
        (Kind.TABLE, Kind.VIEW),
    )
    assert 0 < made.created_at_millis <= lake.clock.millis
    await lake.commit(journal, claimed(0, "", PATHS[0], next_version=3))
    await lake.commit(journal, claimed(1, PATHS[0], PATHS[1], holder="bob", previous_position_path=PATHS[0]))
    held = await entry(journal)
    assert (held.epoch, held.holder, held.position_path) == (2, "bob", PATHS[1])
    assert position_paths(held) == [PATHS[1], PATHS[0]]
    await lake.commit(journal, reset("mail", held, 9, ""))
    free = await entry(journal)
    assert (free.epoch, free.holder, free.next_version, position_paths(free)) == (3, "", 9, [])
    again = await lake.open()
    assert (await again.list(None, Kind.SUBSCRIPTION)).names == ("mail",)
    await lake.commit(again, claimed(3, "", PATHS[2]), DropSubscription(name="mail"))
    assert (await again.list(None, Kind.SUBSCRIPTION)).names == ()
    actions = [action.type async for found in again.log() for action in found.transaction.actions]
    assert actions[0:2] == ["SUBSCRIPTION_CLAIM", "SUBSCRIPTION_DROP"]
    assert [item async for item in again.check()][-1].findings == 0  # type: ignore[union-attr]


async def test_what_is_refused() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, created())
    many = tuple(f"n{number:04}" for number in range(1001))
    for wrong, error in [
        (created(), AlreadyExists),
        (created("other", subscription_id="x"), InvalidInput),
        (created("other", lease_millis=1), InvalidInput),
        (created("other", namespaces=("b", "a")), InvalidInput),
        (created("other", names=("a", "a")), InvalidInput),
        (created("other", names=many), InvalidInput),
        (created("other", name_patterns=("x" * 5000,)), InvalidInput),
        (created("other", token=TOKEN, next_version=6), InvalidInput),
        (created("a b"), InvalidInput),
        (claimed(1, "", PATHS[0]), Conflict),
        (claimed(0, PATHS[0], PATHS[1]), Conflict),
        (claimed(0, "", PATHS[0], subscription_id=OTHER), Conflict),
        (claimed(0, "", PATHS[0], holder=""), InvalidInput),
        (claimed(0, "", ""), InvalidInput),
        (claimed(0, "", "vn/latest"), InvalidInput),
        (claimed(0, "", PATHS[0], previous_position_path="../x"), InvalidInput),
        (claimed(0, "", PATHS[0], previous_position_path=PATHS[0]), InvalidInput),
        (claimed(0, "", PATHS[0], next_version=-1), InvalidInput),
        (claimed(0, "", PATHS[0], name="other"), NotFound),
        (DropSubscription(name="other"), NotFound),
    ]:
        caught = await raises(error, lake.commit(journal, wrong))
        if error is NotFound:
            assert caught.kind == "no_subscription"
    assert journal.head.version == 1


async def test_of_several_claims_one_wins() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, created())
    claims = [
        lake.transaction(journal, claimed(0, "", path, holder=f"h{number}"), begin=1)
        for number, path in enumerate(PATHS)
    ]
    others = [await lake.open() for _ in claims]
    answers = await asyncio.gather(
        *(other.commit(one) for other, one in zip(others, claims, strict=True)), return_exceptions=True
    )
    (won,) = [answer for answer in answers if isinstance(answer, Committed)]
    lost = [answer for answer in answers if isinstance(answer, Conflict)]
    assert len(lost) == 4
    assert {conflict.kind for conflict in lost} == {"subscription_claimed"}
    assert claims[answers.index(won)].operations[0].holder == (await entry(await lake.open())).holder  # type: ignore[union-attr]
    group = [lake.transaction(others[0], claimed(1, "", path), begin=1) for path in PATHS[:2]]
    await others[0].refresh()
    assert all(isinstance(answer, Conflict) for answer in await others[0].commit_group(group))


# --- acknowledging ---------------------------------------------------------------------------------


async def test_an_acknowledgement_is_of_the_epoch_that_holds() -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, created())
    await lake.commit(journal, claimed(0, "", PATHS[0]))
    first = Position(subscription_id=ID, epoch=1, beat=1, next_version=2)
    assert await journal.position(PATHS[0]) is None
    await journal.acknowledge("mail", PATHS[0], first)
    assert await journal.position(PATHS[0]) == first
    other = await lake.open()
    await lake.commit(other, claimed(1, PATHS[0], PATHS[1], holder="bob", previous_position_path=PATHS[0]))
    for late in (msgspec.structs.replace(first, beat=2), msgspec.structs.replace(first, epoch=2)):
        error = await raises(
            Conflict, journal.acknowledge("mail", PATHS[0], late), kind="subscription_claimed"
        )
        assert "bob" in error.message
        assert error.theirs == "bob"
    assert await journal.position(PATHS[0]) == first, "nothing was written"
    await other.acknowledge("mail", PATHS[1], msgspec.structs.replace(first, epoch=2))
    assert set(await listed(lake.storage, "sub/")) == {PATHS[1]}, "the file of the epoch before is gone"
    await lake.commit(other, DropSubscription(name="mail"))
    await raises(
        NotFound,
        journal.acknowledge("mail", PATHS[1], msgspec.structs.replace(first, epoch=2)),
        kind="no_subscription",
    )
    for wrong in ("vn/latest", "sub/../x", "sub/x"):
        await raises(InvalidInput, journal.position(wrong))
        await raises(InvalidInput, journal.acknowledge("mail", wrong, first))
    await lake.storage.put(PATHS[3], b"\xff")
    await raises(Corrupt, journal.position(PATHS[3]), kind="corrupt_history")


@pytest.mark.parametrize(
    "fault", [Fault.FAIL_BEFORE, Fault.APPLIED_BUT_LOST, Fault.APPLIED_LATE, Fault.ANSWERED_503]
)
@pytest.mark.parametrize("method", ["put", "delete"])
async def test_an_acknowledgement_that_fails_can_be_repeated(fault: Fault, method: str) -> None:
    lake = Lake()
    journal = await lake.create()
    await lake.commit(journal, created())
    await lake.commit(journal, claimed(0, "", PATHS[0], previous_position_path=PATHS[4]))
    await lake.storage.put(PATHS[4], encode_position(POSITION))
    struck: list[str] = []

    def plan(call: Any) -> Fault | None:
        if call.path.startswith("sub/") and call.method == method and not struck:
            struck.append(call.method)
            return fault
        return None

    faulty = FaultyStorage(lake.storage, plan)
    journal = await lake.open(faulty)
    position = Position(subscription_id=ID, epoch=1, beat=1, next_version=2)
    try:
        await journal.acknowledge("mail", PATHS[0], position)
        assert method == "delete", "a file that stays costs its bytes alone"
    except (Unavailable, OutcomeUnknown):
        assert method == "put"
        await journal.acknowledge("mail", PATHS[0], position)
    assert struck
    await faulty.release()
    assert await journal.position(PATHS[0]) == position


async def test_a_damaged_entry_is_refused() -> None:
    for fields in (
        {"id": "x"}, {"holder": "ann"}, {"position_path": PATHS[0]}, {"holder": "a", "position_path": "vn/latest"},
        {"next_version": 1 << 40}, {"kinds": [99]},
    ):  # fmt: skip
        message = pb.SubscriptionDef(**({"id": ID, "lease_millis": 1} | fields))  # type: ignore[arg-type]
        with pytest.raises(AlpheusError) as caught:
            decode_definition(Kind.SUBSCRIPTION, message.SerializeToString(), "def/subscription/x.binpb")
        assert caught.value.kind == "corrupt_definition", fields
