"""Options of the data source "alpheus" (`alpheus.spark.streams.source`), checked."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

import msgspec

import alpheus
from alpheus.catalog import Catalog
from alpheus.feed.stream_position import OUTAGE_SECONDS
from alpheus.models import Table
from alpheus.session.arguments import When
from alpheus_journal.errors import InvalidInput
from alpheus_journal.urls import shown, typed

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
_OTHER_AT = ("versionAsOf", "timestampAsOf")
"""Other words for the option `at`."""
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
_VERSION = re.compile(r"-?[0-9]+")
_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)
_OFFSET = re.compile(r"[+-]\d\d:\d\d", re.ASCII)

_INSTEAD = {
    "replacewhere": "lake.overwrite(name, df, where=...) replaces the rows that meet a condition",
    "partitionoverwritemode": "lake.overwrite(name, df, partitions=...) replaces whole partitions",
    "mergeschema": "catalog.update_table(name, add_columns=...) adds columns, before the rows that have them",
    "overwriteschema": "catalog.update_table(name, ...) changes columns; drop_table and create_table begin anew",
    "txnappid": "catalog.transaction(key=...) and lake.batch_writer commit once whatever is tried again",
    "txnversion": "catalog.transaction(key=...) and lake.batch_writer commit once whatever is tried again",
    "readchangefeed": "feed=changes gives what came and went",
    "readchangedata": "feed=changes gives what came and went",
    "endingversion": "until=VERSION, with feed=changes",
    "endingtimestamp": "until=TIME, with feed=changes",
    "startingtimestamp": "start=TIME for a stream, after=TIME for feed=changes read once",
    "ignoredeletes": "onDelete=skip passes over commits that remove rows",
    "ignorechanges": "onDelete=skip passes over commits that remove rows, and feed=changes tells of them",
    "skipchangecommits": "onDelete=skip passes over commits that remove rows",
    "maxbytespertrigger": "maxFilesPerTrigger bounds a batch",
    "branch": "at=VERSION reads an older version; there are no branches",
    "tag": "at=VERSION reads an older version; there are no tags",
    "snapshot-id": "at=VERSION",
    "as-of-timestamp": "at=TIME",
    "paths": "load one table at a time, and union the frames",
}  # fmt: skip
"""Options of other tables that are given to this one, and what does here what they do there."""
_OF_TABLES = (
    "CREATE TABLE ... USING alpheus, saveAsTable and toTable register a table of Spark's, to which Spark hands no"
    " options: nothing could read it"
)
_NO_TABLES = (
    "lake.create_table makes a table; lake.append, or df.write.format('alpheus').mode('append').save('namespace.name'),"
    " writes to it, lake.write_stream, or writeStream...start(), a stream; lake.temp_view, or CREATE TEMPORARY VIEW v"
    " USING alpheus OPTIONS (...), makes a view of it"
)


def options_of(given: Mapping[str, str]) -> Options:
    """InvalidInput naming the option that is not known, missing or wrong."""
    options = _translate({key.lower(): value for key, value in given.items()})
    unknown = sorted(options.keys() - _KNOWN - _OF_SPARK)
    if unknown:
        raise InvalidInput(
            f"there is no option {typed(unknown[0])!r}", hint=f"one of {', '.join(sorted(_KNOWN))}"
        )
    url = options.get("catalog") or os.environ.get("ALPHEUS_CATALOG", "")
    if not url:
        raise InvalidInput(
            "the option catalog is missing",
            kind="bad_url",
            hint=f"the URL of a catalog. {_OF_TABLES}: {_NO_TABLES}",
        )
    if url.startswith("memory:"):
        raise InvalidInput(
            f"the catalog {shown(url)} lives in the memory of one process, which Spark's cannot reach",
            kind="storage_unreachable",
            hint="use a catalog on storage, for example file:///lake",
        )
    feed = one_of(options, "feed", ("rows", "changes", "events"))
    table = options.get("table") or options.get("path", "")
    if bool(table) == (feed == "events"):
        reason = "is missing" if not table else "does not go with feed=events"
        hint = "names= filters events" if table else f'"namespace.name". {_OF_TABLES}: {_NO_TABLES}'
        raise InvalidInput(f"the option table {reason}", hint=hint)
    return Options(
        catalog=url,
        storage=options.get("storage"),
        table=table,
        feed=cast(Feed, feed),
        at=options.get("at"),
        after=options.get("after"),
        until=options.get("until"),
        start=_start(options),
        on_delete=cast(Any, one_of(options, "ondelete", ON_DELETE)),
        on_expired=cast(Any, one_of(options, "onexpired", ON_EXPIRED)),
        max_files=count_of(options, "maxfilespertrigger"),
        max_versions=count_of(options, "maxversionspertrigger"),
        outage_seconds=_seconds(options, "outageseconds", OUTAGE_SECONDS),
        namespaces=_split_list(options, "namespaces"),
        names=_split_list(options, "names"),
        kinds=_split_list(options, "kinds"),
        actions=_split_list(options, "actions"),
    )


def _translate(options: dict[str, str]) -> dict[str, str]:
    """Other words for the same. InvalidInput naming what does what an option of other tables asks for."""
    if "provider" in options or any(key.startswith("option.") for key in options):
        raise refused_table()
    for key in sorted(options.keys() & _INSTEAD.keys()):
        raise InvalidInput(f"there is no option {key!r}", kind="not_supported", hint=_INSTEAD[key])
    path = options.get("path")
    if path:
        if "/" in path or ":" in path:
            raise InvalidInput(
                f"{shown(path)!r} is a place, and tables go by name",
                hint="load('namespace.name') and save('namespace.name'); the place is the option catalog",
            )
        if (options.get("table") or path) != path:
            raise InvalidInput(
                f"the option table={typed(options['table'])!r} and {typed(path)!r} are two tables",
                hint="name one",
            )
    given = [key for key in ("at", "versionasof", "timestampasof") if key in options]
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)} say which version twice", hint="leave one out")
    version, time = options.pop("versionasof", None), options.pop("timestampasof", None)
    zone = options.pop("timezone", None)
    if zone is not None and time is None:
        raise InvalidInput("the option timeZone does nothing without timestampAsOf", hint="leave it out")
    if version is not None:
        if not _VERSION.fullmatch(version):
            raise InvalidInput(
                f"the option versionAsOf={typed(version)!r} is no version", hint="timestampAsOf takes a time"
            )
        options["at"] = version
    if time is not None:
        if _VERSION.fullmatch(time):
            raise InvalidInput(
                f"the option timestampAsOf={typed(time)!r} is no time", hint="versionAsOf takes a version"
            )
        options["at"] = _with_zone(time.strip(), zone)
    return options


def _with_zone(time: str, zone: str | None) -> str:
    """A time as Spark's manuals write it, as a moment. `zone`: the option timeZone; Spark does not tell a source the
    zone of its session."""
    if not _WITHOUT_ZONE.fullmatch(time):
        return time
    if zone is None:
        whole = time + (" 00:00:00", ":00", "")[time.count(":")]
        raise InvalidInput(
            f"the option timestampAsOf={time!r} has no zone, and Spark does not tell that of its session",
            kind="bad_version",
            hint=f"add one, as in '{whole}Z' or +01:00; or give the option timeZone, as in"
            ' .option("timeZone", spark.conf.get("spark.sql.session.timeZone"))',
        )
    try:
        offset = _OFFSET.fullmatch(zone)
        known = dt.datetime.fromisoformat(f"2000-01-01T00:00:00{zone}").tzinfo if offset else ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        known = None
    if known is None:
        raise InvalidInput(
            f"the option timeZone={typed(zone)!r} is no time zone",
            hint="for example UTC, Europe/Amsterdam or +01:00",
        )
    try:
        return dt.datetime.fromisoformat(time).replace(tzinfo=known).astimezone(dt.UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"the option timestampAsOf={time!r} is no time: {error}", kind="bad_version"
        ) from None


def refused_table() -> InvalidInput:
    """For what would register a table in Spark's own catalog."""
    return InvalidInput(_OF_TABLES, kind="not_supported", hint=_NO_TABLES)


def check_use(given: Mapping[str, str], use: Literal["read", "stream", "write"], feed: Feed) -> None:
    """InvalidInput naming an option that would do nothing: whoever gave it would get other rows than he asked for."""
    typed_keys = {key.lower() for key in given}
    options = set(_translate({key.lower(): value for key, value in given.items()}))
    where = {"read": f"reading {feed} once", "stream": f"a stream of {feed}", "write": "writing"}[use]
    fits = _IN_USE[use, feed]
    for key in sorted(options & (_KNOWN - {"catalog", "storage", "table", "feed"}) - fits):
        elsewhere = [
            f"{'a stream of ' if other[0] == 'stream' else ''}feed={other[1]}"
            for other, keys in _IN_USE.items()
            if key in keys
        ]
        name = next((other for other in _OTHER_AT if key == "at" and other.lower() in typed_keys), key)
        raise InvalidInput(
            f"the option {name} does nothing in {where}",
            hint=f"it is of {', '.join(elsewhere)}; here go {', '.join(sorted(fits)) or 'none'}",
        )
    if {"after", "start"} <= options or {"after", "startingversion"} <= options:
        raise InvalidInput("after and start say the same twice", hint="leave one out")


def one_of(options: Mapping[str, str], key: str, values: Sequence[str]) -> str:
    """The first of them where nothing is told. InvalidInput."""
    value = options.get(key, values[0]).lower()
    if value not in values:
        raise InvalidInput(f"the option {key}={typed(value)!r} is none of {', '.join(values)}")
    return value


def _start(options: Mapping[str, str]) -> When:
    if "startingversion" not in options:
        return options.get("start", "snapshot")
    if "start" in options:
        raise InvalidInput("start and startingVersion say the same twice", hint="leave one out")
    value = options["startingversion"]
    if not (value.isascii() and value.isdecimal()):
        raise InvalidInput(f"the option startingVersion={typed(value)!r} is no version")
    return max(0, int(value) - 1)


def count_of(options: Mapping[str, str], key: str) -> int | None:
    """InvalidInput."""
    value = options.get(key)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or not 0 < int(value) < NO_LIMIT:
        raise InvalidInput(f"the option {key}={typed(value)!r} is no positive number")
    return int(value)


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(options.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InvalidInput(f"the option {key}={typed(options[key])!r} is no number of seconds")
    return value


def _split_list(options: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(key, "").split(",") if part.strip())
