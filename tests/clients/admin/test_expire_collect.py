"""Expiry and collection, over storage and over a daemon, in Python and on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from cli_answers import failed, ok
from click.testing import CliRunner, Result

import alpheus
from alpheus import Catalog, cli
from alpheus.admin.retention import collect
from alpheus.cli.text.retention import collection_text, expiry_text
from alpheus.errors import Expired, InvalidInput, Unavailable
from alpheus.model_conversions import collection_of
from alpheus.models import Expiry, Hold
from alpheus.session.retry import RetryPolicy
from alpheus_journal.model.answers import Collection, FileTotals, UploadTotals
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS

ROWS = pa.table({"id": [1, 2]})
VERSIONS = 6
NOW: dict[str, Any] = {"older_than": 0, "keep": 1}


@pytest.fixture(params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    """A catalog of six versions whose first rows are replaced by later ones."""
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("a")
        opened.create_table("a.t", ROWS)
        opened.append("a.t", ROWS)
        opened.overwrite("a.t", ROWS)
        opened.create_namespace("b")
        assert opened.version() == VERSIONS - 1
        yield opened


def run(catalog: Catalog, *words: str) -> Result:
    return CliRunner().invoke(cli.cli, ["--catalog", catalog.url, *words])


def test_old_versions_expire_and_their_files_are_collected(catalog: Catalog) -> None:
    head = catalog.version()
    plan = catalog.admin.expire(**NOW, dry_run=True)
    assert (plan.first_version, plan.oldest_version, plan.version, plan.planned) == (0, head, head, head)
    assert plan.dry_run
    assert plan.expired == 0
    assert catalog.info().oldest_version == 0, "a dry run changes nothing"
    done = catalog.admin.expire(**NOW)
    assert (done.expired, done.oldest_version, done.dry_run) == (head, head, False)
    info = catalog.info()
    assert (info.oldest_version, info.kept_versions) == (head, 1)
    with pytest.raises(Expired):
        catalog.read("a.t", at=head - 2)
    assert not catalog.admin.expire(**NOW).planned, "a second expiry has nothing to do"

    planned = catalog.admin.collect(0, dry_run=True, allow_short=True)
    assert planned.unreferenced["data"].files == 2
    assert not planned.deleted
    assert planned.fence_version is None
    collected = catalog.admin.collect(0, allow_short=True)
    assert collected.fence_version == head + 1
    assert collected.deleted["data"].files == 2
    assert collected.deleted_total.files >= planned.unreferenced_total.files
    assert collected.kept_by["versions"].files
    assert catalog.read("a.t") == ROWS
    assert catalog.admin.check().ok


def test_a_tag_keeps_its_version_and_is_named(catalog: Catalog) -> None:
    catalog.tags.create("release", at=3)
    catalog.admin.expire(**NOW)
    collected = catalog.admin.collect(0, allow_short=True)
    assert list(collected.kept_by) == ["versions", "tag release"]
    assert "data" not in collected.deleted
    assert catalog.read("a.t", at="release").num_rows == 4


def test_young_files_stay(catalog: Catalog) -> None:
    catalog.admin.expire(**NOW)
    collected = catalog.admin.collect()
    assert not collected.unreferenced
    assert not collected.deleted
    assert collected.young.files
    assert collected.fence_version is None


def test_the_newest_versions_and_young_versions_stay(catalog: Catalog) -> None:
    assert catalog.admin.expire(0, 4).oldest_version == catalog.version() - 3
    assert not catalog.admin.expire().planned


def test_a_table_holds_versions_back_by_its_properties(catalog: Catalog) -> None:
    catalog.update_namespace("a", set={MIN_VERSIONS: "4"})
    held = catalog.admin.expire(**NOW, dry_run=True)
    head = catalog.version()
    assert (held.oldest_version, held.wanted_version) == (head - 3, head)
    assert held.holds == (Hold(kind="namespace", name="a", version=head - 3),)
    said = f"held back by the namespace a, whose rules of history keep version {head - 3} and later"
    assert said in expiry_text(held)
    assert said in ok(run(catalog, "expire", "--older-than", "0s", "--keep", "1", "--dry-run"))
    ok(run(catalog, "table", "set", "a.t", f"{MAX_AGE}=7776000000"))
    held = catalog.admin.expire(**NOW)
    assert (held.expired, held.oldest_version) == (0, 0)
    assert held.holds == (Hold(kind="table", name="a.t", version=0),)
    assert catalog.read("a.t", at=3).num_rows == 4
    catalog.update_table("a.t", set={MAX_AGE: "0", MIN_VERSIONS: "1"})
    assert catalog.admin.expire(**NOW).oldest_version == catalog.version(), "shorter has no effect"


def test_a_rule_that_is_none_is_refused_when_it_is_set(catalog: Catalog) -> None:
    for verb in (
        lambda to: to.update_table("a.t", set={MAX_AGE: "7d"}),
        lambda to: to.update_namespace("a", set={MAX_AGE: "7d"}),
        lambda to: to.create_table("a.u", ROWS, properties={MAX_AGE: "7d"}),
        lambda to: to.create_namespace("c", {MAX_AGE: "7d"}),
    ):
        with pytest.raises(InvalidInput, match=f"property {MAX_AGE} of .* is '7d', which is no number of"):
            verb(catalog)
        with catalog.transaction() as tx:
            with pytest.raises(InvalidInput, match=MAX_AGE):
                verb(tx)  # immediately, and not at the commit
            tx.abandon()
    text = failed(run(catalog, "table", "set", "a.t", "history.expire.max-age=1"))
    assert "property history.expire.max-age of table a.t is no rule of history" in text
    assert "the rules are " in text
    with pytest.raises(InvalidInput, match="belongs to a namespace or a table"):
        catalog.update_catalog(set={MIN_VERSIONS: "3"})
    assert catalog.version() == VERSIONS - 1


def test_a_pipeline_holds_versions_back_until_it_is_let_go(catalog: Catalog) -> None:
    from alpheus_journal.model.definitions import InputPosition

    with catalog.transaction() as tx:
        table = catalog.load_table("a.t")
        position = InputPosition(table_id=table.id, version=2, table="a.t")
        tx.advance_pipeline("p", "j", "", 2, {"in": position})
    held = catalog.admin.expire(**NOW, dry_run=True)
    assert (held.oldest_version, held.wanted_version) == (2, catalog.version())
    assert held.holds == (Hold(kind="pipeline", name="p.j", version=2),)
    assert "held back by the job of a pipeline p.j, which needs version 2 and later" in expiry_text(held)
    let_go = catalog.admin.expire(**NOW, pipeline_hold=0, dry_run=True)
    assert let_go.oldest_version == catalog.version()
    assert let_go.holds[0].let_go
    assert "let go: the job of a pipeline p.j needs version 2" in expiry_text(let_go)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"older_than": "7 days"}, "older_than='7 days' is not a time span"),
        ({"older_than": True}, "older_than=True is not a time span"),
        ({"older_than": -1}, "older_than=-1 is out of range"),
        ({"pipeline_hold": ""}, "pipeline_hold='' is not a time span"),
        ({"keep": 0}, "expiry cannot keep 0 versions"),
        ({"keep": True}, "keep=True is not a number"),
    ],
)
def test_wrong_rules_are_refused(catalog: Catalog, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        catalog.admin.expire(**arguments, dry_run=True)
    assert text in caught.value.message
    assert caught.value.hint


def test_a_short_minimum_age_needs_a_flag_and_says_why(catalog: Catalog) -> None:
    for age in (0, "59m", timedelta(minutes=59)):
        with pytest.raises(InvalidInput, match="upload_expired") as caught:
            catalog.admin.collect(age)
        assert caught.value.kind == "minimum_age_short"
    with pytest.raises(InvalidInput, match="is out of range"):
        catalog.admin.collect(timedelta(days=-1), allow_short=True)
    assert not catalog.admin.collect("1h", dry_run=True).unreferenced


def test_a_catalog_of_the_first_revision_is_refused(tmp_path: Any) -> None:
    with alpheus.create(f"file://{tmp_path}", format_revision=1) as old:
        for call in (old.admin.expire, old.admin.collect):
            with pytest.raises(InvalidInput) as caught:
                call(dry_run=True)
            assert caught.value.kind == "upgrade_needed"


def test_a_broken_stream_is_continued_and_its_work_counts() -> None:
    def step(files: int, fence: int) -> Collection:
        deleted = {"data": FileTotals(files=files, size_bytes=10 * files)} if files else {}
        uploads = UploadTotals(abandoned=5, aborted=files, young=fence)
        return Collection(cutoff_millis=1, fence_version=fence, deleted=deleted, uploads=uploads)

    class Access:
        calls = 0

        async def collect(self, *, minimum_age_millis: int, dry_run: bool) -> Any:
            self.calls += 1
            yield step(0, self.calls)
            yield step(3, self.calls)
            if self.calls == 1:
                raise Unavailable("gone")

    class Session:
        access = Access()
        retry_policy = RetryPolicy(5)

        def check_open(self) -> None: ...

    found = asyncio.run(collect(Session(), 0, dry_run=False))  # type: ignore[arg-type]
    assert found.deleted == {"data": FileTotals(files=6, size_bytes=60)}
    assert found.fence_version == 2
    assert found.uploads == UploadTotals(abandoned=8, aborted=6, young=2)


def test_uploads_that_went_before_a_stream_broke_are_told() -> None:
    class Access:
        steps = (UploadTotals(abandoned=3, aborted=3), UploadTotals())

        async def collect(self, *, minimum_age_millis: int, dry_run: bool) -> Any:
            uploads, *self.steps = self.steps  # type: ignore[assignment]
            yield Collection(cutoff_millis=1, uploads=uploads)
            if uploads.aborted:
                raise Unavailable("gone")

    class Session:
        access = Access()
        retry_policy = RetryPolicy(5)

        def check_open(self) -> None: ...

    found = asyncio.run(collect(Session(), 0, dry_run=False))  # type: ignore[arg-type]
    text = collection_text(collection_of(found, dry_run=False))
    assert "3 open uploads aborted" in text
    assert "nothing to do" not in text


# --- the command line ------------------------------------------------------------------------------


def test_commands_show_the_plan_and_ask(catalog: Catalog) -> None:
    rules = ("--older-than", "0d", "--keep", "2")
    text = failed(run(catalog, "expire", *rules), 2)
    assert "4 versions would expire: 0 to 3" in text
    assert "pass --yes" in text
    assert catalog.info().oldest_version == 0
    assert "4 versions would expire: 0 to 3" in ok(run(catalog, "expire", *rules, "--dry-run"))
    done = ok(run(catalog, "expire", *rules, "--yes"))
    assert done.splitlines() == ["4 versions expired: 0 to 3", "versions 4 to 5 stay"]
    again = run(catalog, "expire", *rules, "--yes")
    assert again.exit_code == 99
    assert "nothing to do" in again.stdout
    info = ok(run(catalog, "info"))
    assert "kept versions     2" in info
    assert "expired versions  4" in info

    short = ("--minimum-age", "0h", "--allow-short")
    assert "upload_expired" in failed(run(catalog, "collect", "--minimum-age", "30m"), 1)
    text = failed(run(catalog, "collect", *short), 2)
    assert "would be deleted" in text
    assert "pass --yes" in text
    plain = json.loads(ok(run(catalog, "collect", *short, "--dry-run", "--output", "json")))
    assert plain["dry_run"]
    assert plain["unreferenced"]
    assert plain["deleted"] == {}
    done = ok(run(catalog, "collect", *short, "--yes"))
    assert "deleted\n" in done
    assert "the collection committed version 6" in done
    assert run(catalog, "collect", "--yes").exit_code == 99


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("expire", "--older-than", "7"), "'7' is not a time such as 30d"),
        (("expire", "--keep", "0"), "0 is not in the range"),
        (("expire", "--pipeline-hold", "-1d"), "'-1d' is not a time"),
        (("collect", "--minimum-age", "1week"), "'1week' is not a time"),
        (("collect", "extra"), "unexpected extra argument"),
    ],
)
def test_wrong_arguments_are_usage_errors(words: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(cli.cli, ["--catalog", "memory://x", *words])
    assert text in failed(result, 2)


def test_texts_name_what_goes_and_what_stays() -> None:
    held = Expiry(
        dry_run=True, version=9, first_version=2, oldest_version=3, wanted_version=8,
        holds=(Hold(kind="subscription", name="s\x1b", version=3),),
    )  # fmt: skip
    assert expiry_text(held).splitlines() == [
        "1 version would expire: 2",
        "versions 3 to 9 stay",
        "old enough but held back: versions 3 to 7",
        "held back by the subscription s\\x1b, which needs version 3 and later",
    ]
    assert repr(held) == "<Expiry 1 version would expire; 3 to 9 are kept>"
    assert "held by" in held._repr_html_()


def test_a_collection_shows_itself(catalog: Catalog) -> None:
    catalog.admin.expire(**NOW)
    plan = catalog.admin.collect(0, dry_run=True, allow_short=True)
    assert "would be deleted" in repr(plan)
    assert "<td" in plan._repr_html_()
    assert "  data" in collection_text(plan)


@pytest.mark.parametrize(
    ("uploads", "dry_run", "lines"),
    [
        (UploadTotals(), False, ["nothing to do: every file that is old enough is needed"]),
        (UploadTotals(abandoned=2), True, ["2 open uploads would be aborted"]),
        (
            UploadTotals(abandoned=3, aborted=1, kept=1, young=4, skipped=("open uploads at \x1b: denied",)),
            False,
            [
                "1 open upload aborted",
                "kept for leases of writers: 1 open upload",
                "too young to judge: 4 open uploads",
                "skipped: open uploads at \\x1b: denied",
            ],
        ),
    ],
)
def test_texts_name_open_uploads(uploads: UploadTotals, dry_run: bool, lines: list[str]) -> None:
    found = collection_of(Collection(cutoff_millis=1, uploads=uploads), dry_run=dry_run)
    assert collection_text(found).splitlines() == [*lines, "kept versions: version 0"]
    assert ("open uploads" in found._repr_html_()) == bool(uploads.abandoned)
