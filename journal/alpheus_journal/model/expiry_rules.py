"""The rules by which old versions expire, and the shortest age of files that a collection deletes."""

from __future__ import annotations

import msgspec

from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput

HOUR_MILLIS = 3_600_000
DAY_MILLIS = 24 * HOUR_MILLIS
OLDER_THAN_MILLIS_DEFAULT = 7 * DAY_MILLIS
KEEP_VERSIONS_DEFAULT = 100
PIPELINE_HOLD_MILLIS_DEFAULT = 30 * DAY_MILLIS
MINIMUM_AGE_MILLIS_DEFAULT = 72 * HOUR_MILLIS


class ExpiryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions may expire: those that were not the head for `older_than_millis`, except the newest
    `keep_versions`. A job of a pipeline holds back what it has not worked in for `pipeline_hold_millis`."""

    older_than_millis: int = OLDER_THAN_MILLIS_DEFAULT
    keep_versions: int = KEEP_VERSIONS_DEFAULT
    pipeline_hold_millis: int = PIPELINE_HOLD_MILLIS_DEFAULT


def check_rules(rules: ExpiryRules) -> None:
    """Raise InvalidInput for rules that make no sense."""
    if not 1 <= rules.keep_versions < 1 << 63:
        raise InvalidInput(
            f"expiry cannot keep {rules.keep_versions} versions",
            hint="keep at least 1: the head never expires",
        )
    for what, millis in (
        ("age", rules.older_than_millis),
        ("hold of a pipeline", rules.pipeline_hold_millis),
    ):
        if not 0 <= millis <= fmt.TIME_MILLIS_MAX:
            raise InvalidInput(f"the {what} of {millis} ms is not a time span")


def check_minimum_age(millis: int) -> None:
    """Raise InvalidInput for a minimum age that makes no sense."""
    if not 0 <= millis <= fmt.TIME_MILLIS_MAX:
        raise InvalidInput(f"the minimum age of {millis} ms is not a time span")
