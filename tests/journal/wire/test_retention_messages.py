"""Messages of expiry and collection, both ways."""

from __future__ import annotations

import pytest

from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.answers import Collection, EarlierFiles, Expiry, FileTotals, Hold, UploadTotals
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb


def test_requests_keep_their_rules() -> None:
    rules = ExpiryRules(older_than_millis=1, keep_versions=2, pipeline_hold_millis=3)
    message = wire.encode_expire_request(rules, dry_run=True)
    assert message.dry_run
    assert wire.decode_expire_request(message) == rules
    collect = wire.encode_collect_request(5, dry_run=True)
    assert (collect.minimum_age_millis, collect.dry_run) == (5, True)


@pytest.mark.parametrize(
    "rules",
    [
        ExpiryRules(keep_versions=0),
        ExpiryRules(keep_versions=-1),
        ExpiryRules(keep_versions=1 << 70),
        ExpiryRules(older_than_millis=-1),
        ExpiryRules(pipeline_hold_millis=1 << 64),
    ],
)
def test_rules_that_make_no_sense_are_not_sent(rules: ExpiryRules) -> None:
    with pytest.raises(InvalidInput):
        wire.encode_expire_request(rules, dry_run=False)
    with pytest.raises(InvalidInput, match="is not a time span"):
        wire.encode_collect_request(-1, dry_run=False)


def test_answers_come_back_whole() -> None:
    holds = (
        Hold(kind="pipeline", name="p.j", version=3, let_go=True),
        Hold(kind="subscription", name="s", version=4),
    )
    expiry = Expiry(head=9, first=1, wanted=8, oldest=4, expired=3, holds=holds)
    assert (
        wire.decode_expiry(pb.ExpireResponse.FromString(wire.encode_expiry(expiry).SerializeToString()))
        == expiry
    )
    totals = {kind: FileTotals(files=1, size_bytes=2) for kind in ("data", "node")}
    for fence in (None, 0, 7):
        collection = Collection(
            cutoff_millis=5, fence_version=fence, first_version=1, last_version=2, unreferenced=totals,
            deleted={"data": FileTotals(files=1)}, kept_by={"tag a": FileTotals(files=3, size_bytes=4)},
            young=FileTotals(files=9, size_bytes=8),
            uploads=UploadTotals(abandoned=5, aborted=4, kept=3, young=2, skipped=("one", "two")),
            earlier=(EarlierFiles(table_id="i", table="a.t", start=2, files=FileTotals(files=1, size_bytes=3)),),
        )  # fmt: skip
        sent = wire.encode_collection(collection).SerializeToString()
        assert wire.decode_collection(pb.CollectResponse.FromString(sent)) == collection


def test_a_cutoff_before_all_times_is_sent_as_none() -> None:
    message = wire.encode_collection(Collection(cutoff_millis=-5, last_version=-1))
    assert wire.decode_collection(message).cutoff_millis == 0
