"""The rules of history that properties of namespaces and tables state."""

from __future__ import annotations

import msgspec
import pytest

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.history_rules import (
    MAX_AGE,
    MIN_VERSIONS,
    HistoryRules,
    check_history_rules,
    parse_history_rules,
)
from alpheus_journal.model.operations import (
    CreateNamespace,
    CreateTable,
    CreateView,
    DropTable,
    Operation,
    RegisterTable,
    ReplaceView,
    UpdateCatalog,
    UpdateNamespace,
    UpdateTable,
)
from alpheus_journal.testing import Lake, raises

LONG_MAX = str((1 << 63) - 1)


def test_rules_are_read_and_each_falls_back_by_itself() -> None:
    own = parse_history_rules({MAX_AGE: "0", "owner": "ana"}, "table a.t")
    assert own == HistoryRules(age_millis=0)
    inherited = parse_history_rules({MAX_AGE: LONG_MAX, MIN_VERSIONS: "1"}, "namespace a")
    assert own.or_else(inherited) == HistoryRules(0, 1)
    assert inherited.or_else(own) == inherited == HistoryRules((1 << 63) - 1, 1)
    assert parse_history_rules({}, "table a.t") == HistoryRules()


@pytest.mark.parametrize("value", ["", "7d", "-1", "1.5", " 1", "1_000", "٣", "²", str(1 << 63), "1" * 5000])
@pytest.mark.parametrize("name", [MAX_AGE, MIN_VERSIONS])
def test_a_value_that_is_no_number_is_refused_by_name(name: str, value: str) -> None:
    for operation in operations({name: value}):
        with pytest.raises(InvalidInput) as caught:
            check_history_rules(operation)
        assert caught.value.kind == "bad_argument"
        assert name in caught.value.message
        assert repr(value[:80]) in caught.value.message
        assert str(operation.target) in caught.value.message
        assert "unset the property" in caught.value.hint


def test_at_least_one_version_stays() -> None:
    for operation in operations({MIN_VERSIONS: "0"}):
        with pytest.raises(InvalidInput, match="no number of versions"):
            check_history_rules(operation)


def test_a_misspelled_rule_is_refused_and_others_are_no_rules() -> None:
    for name in (
        "history.expire.max-snapshot-age",
        "history.expire.",
        "history.expire.Max-Snapshot-Age-Ms",
        f" {MAX_AGE}",
        MAX_AGE.upper(),
    ):
        for operation in operations({name: "1"}):
            with pytest.raises(InvalidInput, match=f"property {name} of .* is no rule of history"):
                check_history_rules(operation)
    fine = {
        MAX_AGE: "0",
        MIN_VERSIONS: LONG_MAX,
        "history.expire.max-ref-age-ms": "7d",
        "history": "",
        "x": "y",
    }
    for operation in operations(fine):
        check_history_rules(operation)
    check_history_rules(UpdateTable(namespace="a", name="t", unset=("history.expire.oops",)))
    check_history_rules(DropTable(namespace="a", name="t"))


def test_the_catalog_takes_no_rule() -> None:
    with pytest.raises(InvalidInput, match="belongs to a namespace or a table"):
        check_history_rules(UpdateCatalog(set={MAX_AGE: "1"}))
    check_history_rules(UpdateCatalog(set={"owner": "ana"}))


def test_a_view_takes_no_rule() -> None:
    for name in (MAX_AGE, "history.expire.max-ref-age-ms"):
        for operation in views({name: "1"}):
            with pytest.raises(
                InvalidInput, match=r"belongs to a namespace or a table, and view a\.v is none"
            ):
                check_history_rules(operation)
    for operation in views({"owner": "ana"}):
        check_history_rules(operation)


async def test_a_catalog_is_not_created_with_a_rule() -> None:
    lake = Lake()
    error = await raises(InvalidInput, lake.create(properties={MAX_AGE: "1"}))
    assert "belongs to a namespace or a table" in error.message
    assert [info async for info in lake.storage.list("")] == []
    journal = await lake.create(properties={"owner": "ana"})
    await journal.close()


def views(properties: dict[str, str]) -> list[Operation]:
    fields = {"namespace": "a", "name": "v", "sql": "", "dialect": "spark", "properties": properties}
    return [msgspec.convert({**fields, "view_id": ""}, CreateView), msgspec.convert(fields, ReplaceView)]


def operations(properties: dict[str, str]) -> list[Operation]:
    """Return one operation of each kind that sets properties of a namespace or a table."""
    return [
        CreateNamespace(name="a", namespace_id="", properties=properties),
        UpdateNamespace(name="a", set=properties),
        CreateTable(namespace="a", name="t", table_id="", columns=(), properties=properties),
        RegisterTable(namespace="a", name="t", table_id="", metadata_location="", properties=properties),
        UpdateTable(namespace="a", name="t", set=properties),
    ]
