"""`alpheus repair`: what the command reports, asks and does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_answers import answer, failed
from click.testing import CliRunner, Result

import alpheus
from alpheus import cli
from alpheus_journal import format as fmt


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Create a catalog, delete its head (version 3), and leave `vn/latest` naming that version."""
    with alpheus.create(f"file://{tmp_path}/lake") as catalog:
        for name in "abc":
            catalog.create_namespace(name)
    place = tmp_path / "lake"
    assert (place / fmt.LATEST_HINT).read_text() == "3"
    os.unlink(place / fmt.version_file(3, 32))
    return place


def repair(place: Path | str, *words: str) -> Result:
    return CliRunner().invoke(cli.cli, ["--catalog", str(place), "repair", *words])


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_dry_run_says_all_and_does_nothing(place: Path) -> None:
    before = files(place)
    result = repair(place, "--dry-run", "--output", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["head_version"], found["done"], found["version"], found["steps"]) == (2, False, None, [])
    (problem,) = found["problems"]
    assert (problem["kind"], problem["version"], problem["path"]) == ("head_missing", 3, "vn/latest")
    assert problem["mended_by"] == "alpheus repair --accept-head"
    planned = answer(repair(place, "--dry-run", "--accept-head", "--output", "json"))
    assert [step["do"] for step in planned["steps"]] == ["record", "hint"]
    assert repair(place).exit_code == 1
    assert files(place) == before


def test_it_asks_before_it_does_anything(place: Path) -> None:
    before = files(place)
    assert "pass --yes" in failed(repair(place, "--accept-head"), 2)
    assert "pass --yes" in failed(repair(place, "--accept-head", "--output", "json"), 2)
    assert files(place) == before


def test_a_head_is_accepted(place: Path) -> None:
    done = answer(repair(place, "--accept-head", "--yes", "--output", "json"))
    assert (done["head_version"], done["done"], done["version"]) == (2, True, 3)
    with alpheus.connect(str(place)) as catalog:
        entry = next(iter(catalog.log()))
        assert (entry.version, entry.transaction.actions[0].type) == (3, "REPAIR")
        assert catalog.create_namespace("d").version == 4
    result = repair(place, "--accept-head", "--yes")
    assert (result.exit_code, result.stdout) == (99, "nothing to repair: the head is version 4\n")


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:7480", "unix:///x.sock"])
def test_a_daemon_is_refused_with_the_way_out(url: str) -> None:
    text = failed(repair(url, "--dry-run"))
    assert "a repair works on the storage" in text
    assert "alpheus info shows its URL" in text


def test_a_hole_is_described_and_given_up(place: Path) -> None:
    os.unlink(place / fmt.version_file(1, 32))
    before = files(place)
    result = repair(place, "--dry-run")
    assert result.exit_code == 1
    assert "the newest version is 2, and versions below it are missing: version 1" in result.stdout
    assert "alpheus repair --accept-head" in result.stdout
    assert files(place) == before
    answer(repair(place, "--accept-head", "--yes", "--output", "json"))
    checked = CliRunner().invoke(cli.cli, ["--catalog", str(place), "check"])
    assert checked.exit_code == 0, checked.output
    assert "given up by a repair: version 1\n" in checked.stdout
    assert repair(place).exit_code == 99


# --- what is damaged -------------------------------------------------------------------------------


def run(place: Path, *words: str) -> Result:
    return CliRunner().invoke(cli.cli, ["--catalog", str(place), *words])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    with alpheus.create(f"file://{tmp_path}/whole") as catalog:
        for name in "abc":
            catalog.create_namespace(name)
    return tmp_path / "whole"


def test_a_damaged_head_is_checked_and_older_versions_are_read(whole: Path) -> None:
    (whole / fmt.version_file(3, 32)).write_bytes(b"damaged")
    result = run(whole, "check", "--output", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert [finding["path"] for finding in report["findings"]] == [fmt.version_file(3, 32)]
    assert "alpheus check" not in result.output
    result = run(whole, "namespace", "list", "--at", "2")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")
    assert result.stderr.startswith("warning: ")
    assert "Versions up to 2 can be read" in result.stderr
    error = json.loads(run(whole, "namespace", "list", "--output", "json").stderr.splitlines()[-1])
    assert error["kind"] == "corrupt_node"
    result = run(whole, "namespace", "create", "d")
    assert result.exit_code == 1
    assert not (whole / fmt.version_file(4, 32)).exists()


@pytest.mark.parametrize("options", [[], ["--footers"], ["--values"]])
def test_a_prefix_that_does_not_open_is_checked(whole: Path, options: list[str]) -> None:
    os.unlink(whole / fmt.version_file(0, 32))
    assert run(whole, "info").exit_code == 1
    result = run(whole, "check", *options)
    assert result.exit_code == 1
    assert "version 0 is below the head and not there" in result.stdout
    assert "alpheus check" not in result.output


def test_a_check_names_what_is_known_above_the_head(place: Path) -> None:
    result = run(place, "check", "--output", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["kind"], finding["path"], finding["version"]) == ("head_missing", "vn/latest", 3)
    assert result.stderr.startswith("warning: ")
    assert "--accept-head" in result.stderr
