"""The fold over versions is pure, equals a scan of the tree, and raises when a record does not continue it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt
from alpheus_journal.format import Key, Kind
from alpheus_journal.model.answers import StoredObject
from alpheus_journal.replay.state import State, VersionRecord, change_type, event_of

KEYS = fmt.Keys()
NAMES = ["a", "ab", "b", "ü", "名𝄞"]


def key(name: str) -> Key:
    return KEYS.key(fmt.namespace_name(name))


def stored(path: str) -> StoredObject:
    return StoredObject(path, path.encode())


def state_of(entries: dict[str, str], version: int = 0) -> State:
    return State(
        keys=KEYS, catalog_id="c", version=version, created_at_millis=10, catalog=stored("cat0"),
        entries=[(key(name), stored(path)) for name, path in entries.items()],
    )  # fmt: skip


def record(version: int, *changes: tuple[str, str | None, str | None], **rest: Any) -> VersionRecord:
    fields = {
        "version": version, "commit_id": "id", "created_at_millis": 10 + version, "transactions": (),
        "changes": tuple(sorted((key(n), b, a) for n, b, a in changes)),
        "catalog_def_before": "cat0", "catalog_def_after": "cat0",
    }  # fmt: skip
    return VersionRecord(**(fields | rest))


def definitions_of(record: VersionRecord) -> dict[str, StoredObject]:
    paths = [after for _, _, after in record.changes if after] + [record.catalog_def_after]
    return {path: stored(path) for path in paths}


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.booleans(), max_size=4), max_size=20))
def test_a_fold_over_changes(history: list[dict[str, bool]]) -> None:
    state, model = state_of({}), dict[str, str]()
    for version, changes in enumerate(history, 1):
        wanted = {}
        for name, lives in changes.items():
            before, after = model.get(name), f"{name}{version}" if lives else None
            if before != after:
                wanted[name] = (name, before, after)
        step = record(version, *wanted.values())
        event = state.apply(step, definitions_of(step))
        for name, _, after in wanted.values():
            if after is None:
                del model[name]
            else:
                model[name] = after
        assert event == event_of(step, KEYS, "c")
        assert event.token == f"c.{version}.id"
        assert {(c.name.namespace, c.type) for c in event.changes} == {
            (name, change_type(before, after)) for name, before, after in wanted.values()
        }
        assert state.entries() == sorted((key(name), path) for name, path in model.items())
        assert len(state) == len(model)
        assert state.names(Kind.NAMESPACE).names == tuple(sorted(model))
        loaded = state.load([fmt.namespace_name(name) for name in NAMES])
        assert [o and o.definition for o in loaded] == [
            model[n].encode() if n in model else None for n in NAMES
        ]


BASE = {"a": "a1", "b": "b1"}
WRONG = [
    (record(2), "corrupt_history"),
    (record(0), "corrupt_history"),
    (record(1, ("a", None, "a2")), "state_drift"),
    (record(1, ("a", "other", "a2")), "state_drift"),
    (record(1, ("c", "c1", None)), "state_drift"),
    (record(1, ("c", "c1", "c2")), "state_drift"),
    (record(1, ("b", "b1", "b2"), ("a", "a0", None)), "state_drift"),
    (record(1, created_at_millis=9), "corrupt_history"),
    (record(1, catalog_def_before="other"), "state_drift"),
]


@pytest.mark.parametrize(("wrong", "kind"), WRONG)
def test_a_record_that_does_not_continue_changes_nothing(wrong: VersionRecord, kind: str) -> None:
    state = state_of(BASE)
    with pytest.raises(Corrupt) as caught:
        state.apply(wrong, definitions_of(wrong))
    assert (caught.value.kind, caught.value.version) == (kind, wrong.version)
    assert (state.version, state.entries()) == (0, state_of(BASE).entries())
    good = record(1, ("a", "a1", "a2"))
    state.apply(good, definitions_of(good))
    assert state.get(fmt.namespace_name("a")) == stored("a2")


def test_other_writers_clocks_may_go_back() -> None:
    state = state_of(BASE)
    state.apply(record(1, created_at_millis=1, commit_id="sha256-x"), {})
    state.apply(record(2, created_at_millis=9), {})  # its writer read the version below
    with pytest.raises(Corrupt):
        state.apply(record(3, created_at_millis=8), {})


def test_the_catalog_is_an_object_too() -> None:
    state = state_of(BASE)
    step = record(1, catalog_def_after="cat1")
    event = state.apply(step, definitions_of(step))
    assert [(c.name, c.type) for c in event.changes] == [(fmt.CATALOG, "updated")]
    assert state.get(fmt.CATALOG) == stored("cat1")
    first = event_of(msgspec.structs.replace(step, catalog_def_before=""), KEYS, "c")
    assert first.changes[0].type == "created"


def test_a_name_under_the_other_padding_is_found() -> None:
    other = fmt.Keys(version_digits=64)
    state = State(
        keys=KEYS, catalog_id="c", version=0, created_at_millis=0, catalog=stored("cat0"),
        entries=[(other.key(fmt.namespace_name("ü")), stored("p"))],
    )  # fmt: skip
    assert state.get(fmt.namespace_name("ü")) == stored("p")
    assert state.names(Kind.NAMESPACE).names == ("ü",)


def test_pages() -> None:
    state = state_of({name: name for name in NAMES})
    for limit in range(1, 7):
        for after in ("", *NAMES, "aa"):
            page = state.names(Kind.NAMESPACE, limit=limit, after=after)
            rest = sorted(name for name in NAMES if name > after)
            assert (page.names, page.more) == (tuple(rest[:limit]), len(rest) > limit)
