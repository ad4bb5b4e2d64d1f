"""Tables with short rules of history lose data files before the versions that list them, and readers are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import alpheus
from alpheus import Catalog
from alpheus.cli.text.retention import collection_text
from alpheus.errors import Expired
from alpheus_journal.model.history_rules import MAX_AGE, MIN_VERSIONS

ROWS = [pa.table({"id": [number]}) for number in range(4)]
SHORT = {MAX_AGE: "0", MIN_VERSIONS: "1"}


@pytest.fixture(params=["direct", "remote"])
def catalog(request: pytest.FixtureRequest, lake_by: Callable[..., str]) -> Iterator[Catalog]:
    """A catalog with a table `a.short` and a table `a.long`, both overwritten three times; their first rows are at
    version 4."""
    with alpheus.connect(lake_by(request.param), create=True) as opened:
        opened.create_namespace("a")
        opened.create_table("a.short", ROWS[0].schema, properties=SHORT)
        opened.create_table("a.long", ROWS[0].schema)
        for rows in ROWS:
            with opened.transaction() as tx:
                tx.overwrite("a.short", rows)
                tx.overwrite("a.long", rows)
        yield opened


OLD = 4


def collect(catalog: Catalog) -> alpheus.Collection:
    return catalog.admin.collect(0, allow_short=True)


def refused(catalog: Catalog, at: int | str = OLD, start: int = 7, **options: bool) -> None:
    """Check that the rows of one table have gone, and the rest of the version is there."""
    with catalog.at(at, **options) as snapshot:
        with pytest.raises(Expired) as error:
            snapshot.read("a.short")
        assert (error.value.kind, error.value.oldest) == ("files_expired", start)
        assert "a.short" in error.value.message
        assert snapshot.read("a.long") == ROWS[OLD - 4]
        assert snapshot.load_table("a.short").row_count == 1


def test_readers_below_the_start_are_told(catalog: Catalog) -> None:
    plan = catalog.admin.collect(0, dry_run=True, allow_short=True)
    done = collect(catalog)
    (one,) = done.earlier
    assert (one.table, one.start_version, one.files.files) == ("a.short", 7, 2)
    assert plan.earlier == done.earlier
    assert "of table a.short 2 files" in collection_text(done)
    assert "below version 7" in collection_text(done)
    refused(catalog)
    refused(catalog, lease=True)
    with pytest.raises(Expired, match="from version 7 on"):
        catalog.read("a.short", at=OLD)
    assert catalog.read("a.short", at=7) == catalog.read("a.short") == ROWS[3]
    assert catalog.admin.check().ok
    with pytest.raises(Expired) as error:
        catalog.restore_table("a.short", at=OLD)
    assert error.value.kind == "files_expired"
    catalog.drop_table("a.short")
    with pytest.raises(Expired):
        catalog.undrop("a.short", at=OLD)
    catalog.undrop("a.short", at=7)
    assert catalog.read("a.short") == ROWS[3]


def test_a_tag_has_the_rows_or_says_so(catalog: Catalog) -> None:
    catalog.tags.create("early", at=OLD)
    collect(catalog)
    catalog.tags.create("late", at=OLD)
    catalog.tags.create("chosen", only={"a.short": OLD + 1, "a.long": OLD})
    short = catalog.load_table("a.short").id
    assert [catalog.tags.load(name).lacking for name in ("early", "late")] == [{}, {short: 8}]
    assert catalog.info().table_starts == {short: 8}
    for _ in range(2):
        for lease in (False, True):
            with catalog.at("early", lease=lease) as snapshot:
                assert snapshot.read("a.short") == snapshot.read("a.long") == ROWS[0]
            for name in ("late", "chosen"):
                refused(catalog, name, 8, lease=lease)
        assert catalog.admin.check().ok
        catalog.admin.expire(older_than=0, keep=1)
        catalog.create_namespace(f"b{catalog.version()}")
        collect(catalog)


def test_a_lease_that_was_taken_before_keeps_the_rows(catalog: Catalog) -> None:
    with catalog.at(OLD, lease=True) as held, catalog.at(OLD) as bare:
        scan = bare.scan("a.short")
        collect(catalog)
        assert held.read("a.short") == ROWS[0]
        refused(catalog)
        assert scan.to_arrow() == ROWS[0]  # the lease keeps the files for it, too
    collect(catalog)
    with pytest.raises(Expired) as error:
        scan.to_arrow()
    assert error.value.kind == "files_expired"


def test_a_transaction_that_began_below_the_start_is_told(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx.properties()
        begin = tx.version
        with alpheus.connect(catalog.url) as other:
            other.overwrite("a.short", ROWS[0])
            other.overwrite("a.short", ROWS[1])
            collect(other)
        assert begin < catalog.version()
        with pytest.raises(Expired) as error:
            tx.read("a.short")
        assert error.value.kind == "files_expired"
        with pytest.raises(Expired) as error:
            tx.update("a.short", {"id": 5}, where="id = 3")
        assert error.value.kind == "files_expired"
