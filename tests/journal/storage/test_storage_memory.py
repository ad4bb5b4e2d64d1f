"""The store in memory, and the failing store: both against the contract, then their own features."""

from __future__ import annotations

import itertools

import pytest

from alpheus_journal.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, Unavailable
from alpheus_journal.storage import Storage, check_path, normal_url, open_storage
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import (
    Call,
    Fault,
    FaultyStorage,
    StorageContract,
    listed,
    raises,
    scripted,
    seeded,
)
from alpheus_journal.testing.faults import FITTING


class TestMemoryContract(StorageContract):
    async def make(self) -> Storage:
        MemoryStorage.forget("contract")
        return MemoryStorage.named("contract")


class TestFaultyContract(StorageContract):
    """Without a plan the wrapper changes nothing."""

    async def make(self) -> Storage:
        MemoryStorage.forget("contract")
        return FaultyStorage(MemoryStorage.named("contract"))


# -- memory


async def test_named_stores_are_shared_and_others_are_not() -> None:
    MemoryStorage.forget("a b")
    first = open_storage("memory://a%20b")
    await first.create("x", b"1")
    assert await MemoryStorage.named("a b").read("x", size_max=9) == b"1"
    assert await open_storage(first.url).exists("x")
    assert not await MemoryStorage(name="a b").exists("x")
    MemoryStorage.forget("a b")
    assert not await open_storage("memory://a%20b").exists("x")
    assert await first.exists("x")


async def test_time_is_the_given_clock() -> None:
    clock = itertools.count(1000)
    storage = MemoryStorage(clock=lambda: next(clock))
    await storage.put("a", b"")
    await storage.put("b", b"")
    await raises(AlreadyExists, storage.create("a", b"longer"))
    infos = await listed(storage, "")
    assert [infos[path].modified_at_millis for path in "ab"] == [1000, 1001]


async def test_no_other_program_reaches_it() -> None:
    with pytest.raises(InvalidInput) as caught:
        MemoryStorage().uri("data/x")
    assert caught.value.kind == "storage_unreachable"
    assert caught.value.hint


# -- opening by URL


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "memory://",
        "memory://a?b",
        "memory://a#b",
        "file://host/x",
        "file:///x?a",
        "s9://b",
        "c:/x",
        "a:b",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_storage(url)
    assert caught.value.kind == "bad_url"


def test_a_bare_path_is_quoted() -> None:
    assert normal_url("/lake/50%25 #1?") == "file:///lake/50%2525%20%231%3F"


def test_backslashes_belong_to_definitions_only() -> None:
    assert check_path("def/ns/a\\b.binpb")
    for path in ("def\\ns", "node/a\\b", "\\def/ns/x"):
        with pytest.raises(InvalidInput):
            check_path(path)


# -- faults


def faulty(faults: dict[int, Fault], *, late_after: int | None = None) -> FaultyStorage:
    return FaultyStorage(MemoryStorage(), scripted(faults), late_after=late_after)


async def test_fail_before() -> None:
    storage = faulty(dict.fromkeys(range(5), Fault.FAIL_BEFORE))
    await raises(Unavailable, storage.create("a", b""))
    await raises(Unavailable, storage.put("a", b""))
    await raises(Unavailable, storage.stat("a"))
    await raises(Unavailable, storage.read("a", size_max=1))
    await raises(Unavailable, listed(storage, ""))
    assert await listed(storage.inner, "") == {}


async def test_lost_and_unknown_replies() -> None:
    storage = faulty({0: Fault.APPLIED_BUT_LOST, 1: Fault.NOT_APPLIED_BUT_UNKNOWN, 2: Fault.APPLIED_BUT_LOST})
    await raises(OutcomeUnknown, storage.create("a", b"1"))
    await raises(OutcomeUnknown, storage.create("b", b"1"))
    await raises(OutcomeUnknown, storage.create("a", b"2"))  # a refusal that was lost
    assert set(await listed(storage.inner, "")) == {"a"}
    assert await storage.inner.read("a", size_max=1) == b"1"


async def test_a_late_write_lands_on_release_or_not_at_all() -> None:
    storage = faulty({0: Fault.APPLIED_LATE, 1: Fault.APPLIED_LATE})
    await raises(OutcomeUnknown, storage.create("a", b"late"))
    await raises(OutcomeUnknown, storage.create("b", b"late"))
    assert [call.path for call in storage.late] == ["a", "b"]
    assert not await storage.exists("a")
    await storage.create("b", b"first")
    await storage.release(1)
    assert await storage.read("a", size_max=9) == b"late"
    await storage.release()
    assert await storage.read("b", size_max=9) == b"first"
    assert storage.late == ()


async def test_a_late_write_lands_before_a_later_call() -> None:
    storage = faulty({0: Fault.APPLIED_LATE}, late_after=2)
    await raises(OutcomeUnknown, storage.create("a", b"late"))
    assert not await storage.exists("a")
    await raises(AlreadyExists, storage.create("a", b"mine"))


async def test_the_second_delivery_answers() -> None:
    storage = faulty({0: Fault.DUPLICATE_APPLY, 1: Fault.DUPLICATE_APPLY})
    await raises(AlreadyExists, storage.create("a", b"mine"), kind="slot_taken")
    await storage.put("b", b"mine")
    assert await storage.read("a", size_max=9) == b"mine"
    assert await storage.read("b", size_max=9) == b"mine"


async def test_each_write_of_a_publish_can_be_hit() -> None:
    for number, fault in itertools.product(range(3), (Fault.FAIL_BEFORE, Fault.NOT_APPLIED_BUT_UNKNOWN)):
        storage = faulty({number: fault})
        publish = storage.publish({"node/a": b"a", "node/b": b"b"}, "vn/0", b"root")
        # An unknown outcome of a file does not concern the slot: the slot was not tried.
        unknown = fault is Fault.NOT_APPLIED_BUT_UNKNOWN and number == 2
        await raises(OutcomeUnknown if unknown else Unavailable, publish)
        assert not await storage.inner.exists("vn/0")
        assert storage.log[number].fault is fault
    assert [(record.call.method, record.call.path) for record in storage.log] == [
        ("put", "node/a"), ("put", "node/b"), ("create", "vn/0"),
    ]  # fmt: skip


async def test_seeded_faults_repeat() -> None:
    async def run(seed: int) -> list[Fault | None]:
        storage = FaultyStorage(MemoryStorage(), seeded(seed, 0.5))
        for number in range(60):
            for call in (storage.put(f"{number}", b""), storage.stat(f"{number}")):
                try:
                    await call
                except (Unavailable, OutcomeUnknown):
                    continue
        return [record.fault for record in storage.log]

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)
    assert set(await run(1)) == {None, *FITTING["put"]}


async def test_a_write_fault_on_a_read_is_the_test_authors_mistake() -> None:
    storage = faulty({0: Fault.APPLIED_LATE})
    with pytest.raises(AssertionError):
        await storage.stat("a")


async def test_not_found_passes_through() -> None:
    storage = FaultyStorage(MemoryStorage())
    await raises(NotFound, storage.read("a", size_max=1))
    assert storage.log[0].call == Call("read", "a", 0)
