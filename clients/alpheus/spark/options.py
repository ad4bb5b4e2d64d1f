"""Options of the data source "alpheus" (`alpheus.spark.source`), checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

import alpheus
from alpheus.catalog import Catalog
from alpheus.models import Table
from alpheus.session import When
from alpheus.spark.stream import OUTAGE_SECONDS
from alpheus_journal.errors import InvalidInput

NO_LIMIT = 2**31 - 1
ON_DELETE = ("fail", "skip")
ON_EXPIRED = ("fail", "snapshot")

Feed = Literal["rows", "changes", "events"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, checked as far as it can be without the catalog."""

    catalog: str
    storage: str | None
    table: str
    feed: Feed
    at: str | None
    after: str | None
    until: str | None
    start: When
    on_delete: Literal["fail", "skip"]
    on_expired: Literal["fail", "snapshot"]
    max_files: int | None
    max_versions: int | None
    outage_seconds: float
    namespaces: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    actions: tuple[str, ...]

    def connect(self) -> Catalog:
        return alpheus.connect(self.catalog, storage=self.storage)


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a table where a frame is made, for all who read or write it."""

    table: Table
    storage: str  # its URL
    catalog_id: str


_KNOWN = frozenset(
    {
        "catalog", "storage", "table", "feed", "at", "after", "until", "start", "startingversion", "ondelete",
        "onexpired", "maxfilespertrigger", "maxversionspertrigger", "outageseconds", "namespaces", "names", "kinds",
        "actions",
    }
)  # fmt: skip
_FILTERS = frozenset({"namespaces", "names", "kinds", "actions"})
_STREAMED = frozenset(
    {
        "start",
        "startingversion",
        "maxfilespertrigger",
        "maxversionspertrigger",
        "ondelete",
        "onexpired",
        "outageseconds",
    }
)
_IN_USE: dict[tuple[str, str], frozenset[str]] = {
    ("read", "rows"): frozenset({"at"}),
    ("read", "changes"): frozenset({"after", "until"}),
    ("read", "events"): _FILTERS | {"after", "until"},
    ("stream", "rows"): _STREAMED,
    ("stream", "changes"): _STREAMED,
    ("stream", "events"): _FILTERS
    | {"after", "start", "startingversion", "maxversionspertrigger", "outageseconds"},
    ("write", "rows"): frozenset(),
}
"""What goes with what, besides what says where the table is."""
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "mode"})


def options_of(given: Mapping[str, str]) -> Options:
    """InvalidInput naming the option that is not known, missing or wrong."""
    told = {key.lower(): value for key, value in given.items()}
    unknown = sorted(told.keys() - _KNOWN - _OF_SPARK)
    if unknown:
        raise InvalidInput(f"there is no option {unknown[0]!r}", hint=f"one of {', '.join(sorted(_KNOWN))}")
    url = told.get("catalog") or os.environ.get("ALPHEUS_CATALOG", "")
    if not url:
        raise InvalidInput("the option catalog is missing", kind="bad_url", hint="the URL of a catalog")
    if url.startswith("memory:"):
        raise InvalidInput(
            f"the catalog {url} lives in the memory of one process, which Spark's cannot reach",
            kind="storage_unreachable",
            hint="use a catalog on storage, for example file:///lake",
        )
    feed = one_of(told, "feed", ("rows", "changes", "events"))
    table = told.get("table", "")
    if bool(table) == (feed == "events"):
        reason = "is missing" if not table else "does not go with feed=events"
        raise InvalidInput(f"the option table {reason}", hint='"namespace.name"; names= filters events')
    return Options(
        catalog=url,
        storage=told.get("storage"),
        table=table,
        feed=cast(Feed, feed),
        at=told.get("at"),
        after=told.get("after"),
        until=told.get("until"),
        start=_start(told),
        on_delete=cast(Any, one_of(told, "ondelete", ON_DELETE)),
        on_expired=cast(Any, one_of(told, "onexpired", ON_EXPIRED)),
        max_files=count_of(told, "maxfilespertrigger"),
        max_versions=count_of(told, "maxversionspertrigger"),
        outage_seconds=_seconds(told, "outageseconds", OUTAGE_SECONDS),
        namespaces=_several(told, "namespaces"),
        names=_several(told, "names"),
        kinds=_several(told, "kinds"),
        actions=_several(told, "actions"),
    )


def check_use(given: Mapping[str, str], use: Literal["read", "stream", "write"], feed: Feed) -> None:
    """InvalidInput naming an option that would do nothing: whoever gave it would get other rows than he asked for."""
    told = {key.lower() for key in given}
    where = {"read": f"reading {feed} once", "stream": f"a stream of {feed}", "write": "writing"}[use]
    fits = _IN_USE[use, feed]
    for key in sorted(told & (_KNOWN - {"catalog", "storage", "table", "feed"}) - fits):
        elsewhere = [
            f"{'a stream of ' if other[0] == 'stream' else ''}feed={other[1]}"
            for other, keys in _IN_USE.items()
            if key in keys
        ]
        raise InvalidInput(
            f"the option {key} does nothing in {where}",
            hint=f"it is of {', '.join(elsewhere)}; here go {', '.join(sorted(fits)) or 'none'}",
        )
    if {"after", "start"} <= told or {"after", "startingversion"} <= told:
        raise InvalidInput("after and start say the same twice", hint="leave one out")


def one_of(told: Mapping[str, str], key: str, values: Sequence[str]) -> str:
    """The first of them where nothing is told. InvalidInput."""
    value = told.get(key, values[0]).lower()
    if value not in values:
        raise InvalidInput(f"the option {key}={value!r} is none of {', '.join(values)}")
    return value


def _start(told: Mapping[str, str]) -> When:
    if "startingversion" not in told:
        return told.get("start", "snapshot")
    if "start" in told:
        raise InvalidInput("start and startingVersion say the same twice", hint="leave one out")
    value = told["startingversion"]
    if not (value.isascii() and value.isdecimal()):
        raise InvalidInput(f"the option startingVersion={value!r} is no version")
    return max(0, int(value) - 1)


def count_of(told: Mapping[str, str], key: str) -> int | None:
    """InvalidInput."""
    value = told.get(key)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or not 0 < int(value) < NO_LIMIT:
        raise InvalidInput(f"the option {key}={value!r} is no positive number")
    return int(value)


def _seconds(told: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(told.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InvalidInput(f"the option {key}={told[key]!r} is no number of seconds")
    return value


def _several(told: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in told.get(key, "").split(",") if part.strip())
