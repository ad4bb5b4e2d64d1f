"""The two dialects, byte for byte: the contents of the files in catalogs of 32 and of 64 digits."""

from __future__ import annotations

import base64
import re
from typing import Any

import pyarrow as pa
import pytest

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.journal import Journal
from alpheus_journal.model.answers import Committed
from alpheus_journal.model.operations import AdvancePipeline
from alpheus_journal.testing import Lake, listed, raises
from alpheus_pb.v1 import actions_pb2 as pb

Row = tuple[str | None, str | None, str | None]
NULLS: Row = (None, None, None)


def rows_of(data: bytes) -> list[Row]:
    """Return the rows as any Arrow reader sees them."""
    table = pa.ipc.open_file(data).read_all()
    columns = [table.column(name).to_pylist() for name in ("key", "value", "pnode")]
    return list(zip(*columns, strict=True))


async def root_rows(journal: Journal, version: int, digits: int) -> list[Row]:
    return rows_of(await journal.storage.read(fmt.version_file(version, digits), size_max=1 << 26))


@pytest.mark.parametrize(
    ("digits", "version", "file"),
    [
        (32, 0, "vn/" + "0" * 32),
        (32, 1, "vn/1" + "0" * 31),
        (32, 100, "vn/00100110000000000000000000000000"),
        (32, 2**32 - 1, "vn/" + "1" * 32),
        (64, 0, "vn/" + "0" * 64),
        (64, 6, "vn/011" + "0" * 61),
        (64, 100, "vn/0010011" + "0" * 57),
        (64, 2**32 - 1, "vn/" + "1" * 32 + "0" * 32),
    ],
)
def test_version_file_names(digits: int, version: int, file: str) -> None:
    assert fmt.version_file(version, digits) == file
    assert fmt.parse_version_file(file) == (version, digits)


@pytest.mark.parametrize(("digits", "dot"), [(32, ""), (64, ".")])
async def test_every_row_of_a_root(digits: int, dot: str) -> None:
    lake = Lake()
    journal = await lake.create(order=5, version_digits=digits, name_size_max=12)
    await lake.commit(journal, lake.namespace("größe"), lake.table("größe", "日😀"))
    rows = await root_rows(journal, 1, digits)
    system = {key: value for key, value, pnode in rows[:11] if pnode is None}
    assert list(system) == [
        "created_at_millis",
        "n_keys",
        "catalog_def",
        "previous_root",
        ".previous_commit_id",
        ".catalog_id",
        ".commit_id",
        ".version",
        ".format_revision",
        ".crc32",
        f"{dot}n_actions",
    ]
    first = {key: value for key, value, _ in (await root_rows(journal, 0, digits))[:9]}
    assert system[".previous_commit_id"] == first[".commit_id"]
    assert system[".catalog_id"] == first[".catalog_id"] == journal.catalog_id
    assert system["n_keys"] == "2"
    assert system[".version"] == "1"
    assert system[".format_revision"] == "2"
    assert system[f"{dot}n_actions"] == "3"
    assert system["previous_root"] == "vn/" + "0" * digits
    assert system["created_at_millis"] == str(lake.clock.millis)
    # In bytes: 7 and 5 to 12, 7 and 5. In UTF-16 units: 5 and 7, 3 and 9.
    space = "größe" + " " * (5 if digits == 32 else 7)
    table = "日😀" + " " * (5 if digits == 32 else 9)
    leftmost, *pivots = rows[11:14]
    assert leftmost == NULLS
    assert [key for key, _, _ in pivots] == [f"B==={space}", f"C==={space}{table}"]
    for _, value, pnode in pivots:
        assert re.fullmatch(r"def/(ns|table)/[0-9a-f-]{36}-gr__e(-__)?\.binpb", value or "")
        assert pnode is None
    assert rows[14:16] == [NULLS, NULLS], "padded to five rows of pivot table"
    actions = rows[16:]
    assert [key for key, _, _ in actions] == [
        f"{dot}catalog_def",
        f"{dot}B==={space}",
        f"{dot}C==={space}{table}",
    ]
    messages = [
        pb.ActionDef.FromString(base64.b64decode(value or "", validate=True)) for _, value, _ in actions
    ]
    assert [pb.ActionType.Name(message.type) for message in messages] == [
        "TRANSACTION",
        "NAMESPACE_CREATE",
        "TABLE_CREATE",
    ]
    assert messages[2].object_def.namespace_name == "größe"
    assert messages[2].object_def.namespace_object_name == "日😀"
    if digits == 64:
        # The Java reader takes an unknown row that sorts above B=== for an object.
        own = [
            key
            for key in system
            if key not in {"created_at_millis", "n_keys", "catalog_def", "previous_root"}
        ]
        assert all(key < "B===" for key in [*own, *(key or "" for key, _, _ in actions)])


@pytest.mark.parametrize("digits", [32, 64])
async def test_children_and_extension_entries(digits: int) -> None:
    lake = Lake()
    journal = await lake.create(order=3, version_digits=digits)
    await lake.commit(journal, *(lake.namespace(f"n{n}") for n in range(9)))
    await lake.commit(
        journal, AdvancePipeline(name="tägl", job="j", expected_transaction_id="", pinned_version=0)
    )
    pipelines = [key for key, _ in (await journal.load_state()).entries() if key.startswith("Bm==")]
    assert pipelines == ["Bm==tägl" + " " * (95 if digits == 32 else 96)]
    for path in await listed(lake.storage, "node/"):
        rows = rows_of(await lake.storage.read(path, size_max=1 << 20))
        assert [key for key, _, _ in rows[:3]] == ["created_at_millis", "n_keys", ".crc32"]
        assert len(rows) == 3 + 3
    slots = {path for path in await listed(lake.storage, "vn/") if path != fmt.LATEST_HINT}
    assert slots == {fmt.version_file(version, digits) for version in range(3)}


@pytest.mark.parametrize("digits", [32, 64])
async def test_hints_hold_digits_only(digits: int) -> None:
    lake = Lake()
    journal = await lake.create(version_digits=digits)
    for n in range(11):
        await lake.commit(journal, lake.namespace(f"n{n}"))
    await journal.close()
    assert await lake.storage.read(fmt.LATEST_HINT, size_max=64) == b"11"
    assert fmt.OLDEST_HINT not in await listed(lake.storage, "vn/")


async def test_no_node_file_of_the_64_digit_dialect_exceeds_512_kib() -> None:
    """The limit holds for any limit of the catalog, with actions included, because the Java reader's lookups fail
    above it."""
    answers: dict[int, list[Any]] = {}
    for digits in (32, 64):
        lake = Lake()
        journal = await lake.create(version_digits=digits, node_file_size_max=1 << 20)
        transactions = [lake.transaction(journal, lake.namespace(f"n{n}", k="x" * 11_000)) for n in range(40)]
        answers[digits] = await journal.commit_group(transactions)
        size = len(await lake.storage.read(fmt.version_file(1, digits), size_max=1 << 26))
        assert (size > 512 << 10) == (digits == 32)
        assert size <= 1 << 20
        if digits == 64:
            big = lake.transaction(journal, *(lake.namespace(f"big{n}", k="x" * 11_000) for n in range(60)))
            error = await raises(InvalidInput, journal.commit(big))
            assert error.kind == "too_large"
            assert str(512 << 10) in error.message
    assert all(isinstance(answer, Committed) for answer in answers[32])
    committed = [isinstance(answer, Committed) for answer in answers[64]]
    assert any(committed)
    assert not all(committed), "the rest goes into the next version"


@pytest.mark.parametrize(
    ("name", "in_bytes", "in_units"),
    [
        ("plain", 95, 95),
        ("größe", 93, 95),
        ("日本", 94, 98),
        ("😀", 96, 98),
        ("e\u0301", 97, 98),
        ("x" * 100, 0, 0),
        ("ü" * 50, 0, 50),
    ],
)
def test_padding_of_names(name: str, in_bytes: int, in_units: int) -> None:
    for digits, spaces in ((32, in_bytes), (64, in_units)):
        keys = fmt.Keys(version_digits=digits)
        key = keys.key(fmt.namespace_name(name))
        assert key == "B===" + name + " " * spaces
        for reader in (keys, keys.other_padding()):
            assert reader.parse(key) == fmt.namespace_name(name)


async def test_a_new_name_is_limited_in_bytes_in_either_dialect() -> None:
    for digits in (32, 64):
        lake = Lake()
        journal = await lake.create(version_digits=digits, name_size_max=12)
        await lake.commit(journal, lake.namespace("ü" * 6))
        error = await raises(InvalidInput, lake.commit(journal, lake.namespace("ü" * 7)))
        assert error.kind == "bad_name"
        error = await raises(InvalidInput, lake.commit(journal, lake.table("ü" * 6, "日" * 5)))
        assert error.kind == "bad_name"


async def test_a_name_that_is_only_another_writers_is_asked_for_where_there_is_one() -> None:
    """A catalog of 64 digits, which the Java SDK may have written, is searched for any name that the SDK accepts. A
    catalog of 32 digits refuses such a name."""
    for text in ("two words", " lead", "tab\there", "\x7f", "ü" * 100):
        name = fmt.namespace_name(text)
        lake = Lake()
        journal = await lake.create(version_digits=64)
        assert (await journal.load(None, [name])).objects == (None,)
        assert not (await journal.list(None, fmt.Kind.NAMESPACE, after=text)).names
        error = await raises(InvalidInput, lake.commit(journal, lake.namespace(text)))
        assert error.kind == "bad_name"
        strict = await Lake().create(version_digits=32)
        assert (await raises(InvalidInput, strict.load(None, [name]))).kind == "bad_name"
    for text in ("", "trail ", " ", "ü" * 101, "\ud800"):
        assert (await raises(InvalidInput, journal.load(None, [fmt.namespace_name(text)]))).kind == "bad_name"
