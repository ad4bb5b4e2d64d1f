"""Versions counted from the head, and times in the future: in Python, over a daemon and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cli_answers import failed
from click.testing import CliRunner, Result

import alpheus
from alpheus import Catalog, cli
from alpheus.errors import Expired, InvalidInput
from alpheus_journal.errors import AlpheusError


@pytest.fixture(scope="module", params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    """Yield a catalog of versions 0 to 5. Versions 1 to 5 created the namespaces n1 to n5."""
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        for number in range(1, 6):
            opened.create_namespace(f"n{number}")
        yield opened


def run(catalog: Catalog, *words: str) -> Result:
    return CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words])


@pytest.mark.parametrize("count", range(1, 7))
def test_negative_versions_count_from_the_head(catalog: Catalog, count: int) -> None:
    version = 6 - count
    for when in (-count, str(-count)):
        assert catalog.at(when).version == version
    assert len(catalog.at(-count).list_namespaces()) == version
    listed = run(catalog, "namespace", "list", "--at", f"-{count}").stdout.split()
    assert len(listed) == version


def test_below_the_oldest_is_expired(catalog: Catalog) -> None:
    for when in (-7, "-7", -(2**32)):
        with pytest.raises(Expired) as caught:
            catalog.at(when)
        assert caught.value.oldest == 0
    assert "version -7 would be before version 0" in failed(run(catalog, "namespace", "list", "--at", "-7"))
    for wrong in (-(2**32) - 1, "--1", "-", "-x"):
        with pytest.raises(InvalidInput):
            catalog.at(wrong)


def test_differences_between_versions_counted_from_the_head(catalog: Catalog) -> None:
    with catalog.diff(-3, -1) as changes:
        assert [(change.type, change.name) for change in changes] == [("created", "n4"), ("created", "n5")]
    for words in (("-3", "-1"), ("-3",), ("3", "-1"), ("-3", "5"), ("-3", "5", "--details")):
        told = run(catalog, "diff", *words)
        assert told.exit_code == 0, told.output
        assert "n4" in told.stdout
        assert "n5" in told.stdout
        assert "n3" not in told.stdout
    assert failed(run(catalog, "diff", "-x"), 2)


def test_restoring_and_bringing_back_count_from_the_head(catalog: Catalog) -> None:
    catalog.create_namespace("gone")
    dropped = catalog.drop_namespace("gone")
    catalog.undrop("gone", at=-2)
    assert catalog.namespace_exists("gone")
    catalog.drop_namespace("gone")
    assert catalog.version() == dropped.version + 2


def test_bounds_of_the_log_do_not_count_from_the_head(catalog: Catalog) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("after", lambda: list(catalog.events(after=-2))),
        ("after", lambda: list(catalog.events(after="-2"))),
        ("until", lambda: list(catalog.events(until=-2))),
        ("after", lambda: list(catalog.log(after=-2))),
        ("until", lambda: list(catalog.log(until=-2))),
        ("since", lambda: catalog.outcome(catalog.transaction().id, since=-2)),
        ("after", lambda: catalog.admin.check(after=-2)),
        ("after", lambda: catalog.admin.subscriptions.create("s", after=-2)),
        ("after", lambda: catalog.system("log", after=-2)),
    ]
    for name, call in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.message.startswith(f"{name}=-2: "), name
        assert "does not count from the head" in caught.value.message
    for words in (
        ("events", "--until", "-2"),
        ("log", "--after", "-2"),
        ("log", "--until", "-2"),
        ("outcome", "x", "--since", "-2"),
        ("check", "--after", "-2"),
    ):
        assert "-2 would count from the head" in failed(run(catalog, *words), 2), words
    assert "after=-2: " in failed(run(catalog, "events", "--after", "-2"))
    assert "'x' is not a version" in failed(run(catalog, "log", "--until", "x"), 2)
    assert run(catalog, "log", "--after", "0", "--until", "2").stdout.count("n2") == 1


def test_pipelines_are_rewound_to_versions_counted_from_the_head(catalog: Catalog) -> None:
    def move(expected: str, pinned: int) -> str:
        with catalog.transaction() as tx:
            tx.advance_pipeline("mart", "daily", expected, pinned)
            return tx.id

    move(move("", 1), 2)
    told = run(catalog, "pipeline", "rewind", "mart", "-2")
    assert told.exit_code == 0, told.output
    assert catalog.load_pipeline("mart").jobs["daily"].pinned_version == 1
    assert "before version 0" in failed(run(catalog, "pipeline", "rewind", "mart", "-99"))
    assert "-x" in failed(run(catalog, "pipeline", "rewind", "mart", "-x"), 2)


def test_a_time_that_has_not_come_is_refused(catalog: Catalog) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    assert catalog.at(soon).version == catalog.version()
    later = datetime.now(UTC) + timedelta(seconds=90)
    calls: list[Callable[[], object]] = [
        lambda: catalog.at(later),
        lambda: catalog.at(later.isoformat()),
        lambda: list(catalog.diff(0, later)),
    ]
    for call in calls:
        with pytest.raises(AlpheusError) as caught:
            call()
        assert caught.value.kind == "future_version"
        assert "is in the future" in caught.value.message
    assert "is in the future" in failed(run(catalog, "namespace", "list", "--at", later.isoformat()))
