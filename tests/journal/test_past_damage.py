"""Reading and checking a catalog whose head, catalog definition or first version is damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from alpheus_journal import format as fmt
from alpheus_journal.check.catalog import check_storage
from alpheus_journal.errors import Corrupt, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import CheckSummary, Finding, Timestamp
from alpheus_journal.model.operations import UpdateCatalog
from alpheus_journal.repair import Asked, carry_out, plan, survey
from alpheus_journal.storage.memory import MemoryStorage
from alpheus_journal.testing import Lake, listed, model_of, raises

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "zeroes": lambda data: bytes(len(data)),
}


async def lake_of(versions: int = 6) -> tuple[Lake, Journal]:
    """Make a catalog in which each odd version writes a namespace, and each even version the catalog's definition."""
    lake = Lake()
    journal = await lake.create()
    for number in range(1, versions + 1):
        lake.clock.millis += 1000
        if number % 2:
            await lake.commit(journal, lake.namespace(f"n{number}"))
        else:
            await lake.commit(journal, UpdateCatalog(set={"p": str(number)}))
    await journal.close()
    return lake, journal


async def damage(lake: Lake, path: str, how: str) -> None:
    data = await lake.storage.read(path, size_max=1 << 20)
    damaged = DAMAGES[how](data)
    assert damaged is not None
    await lake.storage.put(path, damaged)


async def past(lake: Lake) -> Journal:
    return await Journal.open(lake.storage, clock=lake.clock, identities=lake.identities, past_damage=True)


async def checked(lake: Lake) -> tuple[list[Finding], CheckSummary]:
    found = [item async for item in check_storage(lake.storage)]
    assert isinstance(found[-1], CheckSummary)
    findings = [item for item in found if isinstance(item, Finding)]
    assert found[-1].findings == len(findings)
    return findings, found[-1]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_damaged_head(how: str, count: int) -> None:
    lake, journal = await lake_of()
    models = [await model_of(journal, version) for version in range(7)]
    times = [(await journal.resolve(version)).created_at_millis for version in range(7)]
    log = journal.follower.log
    for version in range(7 - count, 7):
        await damage(lake, log.path(version), how)
    await raises(Corrupt, lake.open(), kind="corrupt_node")

    before = await listed(lake.storage, "")
    opened = await past(lake)
    assert opened.damage is not None
    assert opened.damage.path == log.path(6)
    for version in range(7 - count):
        assert await model_of(opened, version) == models[version]
        if version < 6 - count:  # a later time may mean an unreadable version
            assert (await opened.resolve(Timestamp(times[version]))).version == version
    # Reads of the head, and of versions above the newest whole version, are refused, and so is every write.
    for call in (
        opened.resolve(None),
        opened.resolve(6),
        opened.resolve(Timestamp(times[6])),
        opened.refresh(),
        lake.commit(opened, lake.namespace("new")),
        opened.checkpoint(),
    ):
        await raises(Corrupt, call, kind="corrupt_node")
    await opened.close()
    assert await listed(lake.storage, "") == before

    findings, summary = await checked(lake)
    assert {finding.path for finding in findings} == {log.path(v) for v in range(7 - count, 7)}
    assert summary.versions >= 7 - count


@pytest.mark.parametrize("how", [*DAMAGES, "gone"])
async def test_a_damaged_catalog_definition(how: str) -> None:
    lake, journal = await lake_of()
    models = [await model_of(journal, version) for version in range(6)]
    path = journal.head.catalog_def
    if how == "gone":
        await lake.storage.delete(path)
    else:
        await damage(lake, path, how)
    await raises(Corrupt, lake.open(), kind="corrupt_definition")
    opened = await past(lake)
    for version in range(6):
        assert await model_of(opened, version) == models[version]
    error = await raises(Corrupt, lake.commit(opened, lake.namespace("new")), kind="corrupt_definition")
    assert error.path == path
    assert path in error.hint
    findings, _ = await checked(lake)
    assert path in {finding.path for finding in findings}
    assert {finding.version for finding in findings} == {6}


@pytest.mark.parametrize("how", [*DAMAGES, "gone"])
async def test_the_first_catalog_definition_is_known_from_version_0(how: str) -> None:
    """A catalog whose definition never changed has one file of it. If this file is damaged, the log still has its
    bytes."""
    lake = Lake()
    journal = await lake.create(properties={"a": "b"}, order=5)
    for number in range(8):
        await lake.commit(journal, lake.namespace(f"n{number}"))

    async def named(opened: Journal) -> list[tuple[str, ...]]:
        return [tuple((await opened.list(version, Kind.NAMESPACE)).names) for version in range(8)]

    names = await named(journal)
    path, log = journal.head.catalog_def, journal.follower.log
    if how == "gone":
        await lake.storage.delete(path)
    else:
        await damage(lake, path, how)
    await raises(Corrupt, lake.open(), kind="corrupt_definition")
    opened = await past(lake)
    assert opened.damage is not None
    assert (opened.damage.path, opened.head.version) == (path, 8)
    assert await named(opened) == names
    assert (await opened.list(None, Kind.NAMESPACE)).names == tuple(f"n{number}" for number in range(8))
    error = await raises(Corrupt, lake.commit(opened, lake.namespace("new")), kind="corrupt_definition")
    assert "alpheus repair" in error.hint
    # Other damage is reported too, even that of the head's root.
    await damage(lake, log.path(4), "torn")
    findings, summary = await checked(lake)
    assert {finding.path for finding in findings} >= {path, log.path(4)}
    assert summary.versions == 9
    await damage(lake, log.path(8), "torn")
    findings, summary = await checked(lake)
    assert {finding.path for finding in findings} >= {path, log.path(4), log.path(8)}
    below = await past(lake)
    assert below.head.version == 7
    assert (await below.list(7, Kind.NAMESPACE)).names == names[7]


async def test_a_repair_writes_the_first_catalog_definition_anew() -> None:
    lake = Lake()
    journal = await lake.create(properties={"a": "b"})
    await lake.commit(journal, lake.namespace("n"))
    path = journal.head.catalog_def
    whole = await lake.storage.read(path, size_max=1 << 20)
    await damage(lake, path, "torn")
    made = plan(await survey(lake.storage, clock=lake.clock), Asked())
    (problem,), (step,) = made.problems, made.steps
    assert (problem.kind, problem.path, step.do) == ("corrupt_definition", path, "definition")
    assert (await carry_out(lake.storage, made, clock=lake.clock, identities=lake.identities)).version is None
    assert await lake.storage.read(path, size_max=1 << 20) == whole
    assert (await checked(lake))[0] == []
    assert plan(await survey(lake.storage, clock=lake.clock), Asked()).problems == ()
    assert (await lake.commit(await lake.open(), lake.namespace("m"))).version == 2
    # For a definition that changed since, the log does not give the bytes.
    journal = await lake.open()
    await lake.commit(journal, UpdateCatalog(set={"p": "1"}))
    await damage(lake, journal.head.catalog_def, "torn")
    await raises(Corrupt, survey(lake.storage, clock=lake.clock), kind="corrupt_definition")


async def test_a_missing_first_version() -> None:
    lake, journal = await lake_of()
    first = fmt.version_file(0, 32)
    data = await lake.storage.read(first, size_max=1 << 20)
    await lake.storage.delete(first)
    await raises(Corrupt, lake.open(), kind="corrupt_history")
    findings, summary = await checked(lake)
    assert first in {finding.path for finding in findings}
    assert {finding.kind for finding in findings} == {"corrupt_history"}
    assert summary.versions == 7
    # If the head is damaged too, both are reported.
    await damage(lake, fmt.version_file(6, 32), "torn")
    findings, _ = await checked(lake)
    assert {first, fmt.version_file(6, 32)} <= {finding.path for finding in findings}
    await lake.storage.put(first, data)
    assert journal.head.version == 6


async def test_nothing_can_be_read() -> None:
    lake, _ = await lake_of(2)
    for version in range(3):
        await damage(lake, fmt.version_file(version, 32), "torn")
    findings, summary = await checked(lake)
    assert findings
    assert summary.versions == 0
    empty = MemoryStorage()
    with pytest.raises(NotFound):
        _ = [item async for item in check_storage(empty)]


async def test_two_catalogs_in_one_prefix() -> None:
    lake, journal = await lake_of(3)
    other = Lake(seed=1)
    theirs = await other.create()
    for number in range(6):
        await other.commit(theirs, other.namespace(f"n{number}"))
    for path in await listed(other.storage, ""):
        if not await lake.storage.exists(path):
            await lake.storage.put(path, await other.storage.read(path, size_max=1 << 20))
    await raises(InvalidInput, lake.open(), kind="two_histories")
    findings, _ = await checked(lake)
    assert findings[0].kind == "two_histories"
    # The findings name each version of the other catalog.
    named = {finding.version for finding in findings if finding.kind == "history_replaced"}
    assert named == {0, 1, 2, 3, 4}, "4 was made on another version 3"
    for finding in findings:
        if finding.kind == "history_replaced" and finding.version < 4:
            assert f"is of catalog {journal.catalog_id}" in finding.message


async def test_both_widths() -> None:
    lake, _ = await lake_of(1)
    other = Lake(seed=1)
    await other.create(version_digits=64)
    for path in await listed(other.storage, ""):
        await lake.storage.put(path, await other.storage.read(path, size_max=1 << 20))
    findings, _ = await checked(lake)
    assert findings[0].kind == "two_histories"


async def test_a_whole_catalog_is_opened_past_nothing() -> None:
    lake, journal = await lake_of()
    opened = await past(lake)
    assert opened.damage is None
    assert opened.head == journal.head
    assert (await lake.commit(opened, lake.namespace("new"))).version == 7
    assert (await checked(lake))[0] == []
