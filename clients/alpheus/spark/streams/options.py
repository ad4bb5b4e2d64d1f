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
from alpheus_journal.urls import redact_input, redact_url

NO_LIMIT = 2**31 - 1
ON_DELETE = ("fail", "skip")
ON_EXPIRED = ("fail", "snapshot")

Feed = Literal["rows", "changes", "events"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a frame, checked as far as possible without the catalog."""

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
    """A table as it is when a frame is made, for all readers and writers of the frame."""

    table: Table
    storage: str  # the storage's URL
    catalog_id: str
    checksums: bool = False  # whether data files are listed with their checksums
    transaction_id: str = ""
    """A writer has these two: its transaction, and the path of the lease that keeps its files, or an empty path."""
    lease_path: str = ""


_KNOWN = frozenset(
    {
        "catalog", "storage", "table", "feed", "at", "after", "until", "start", "startingversion", "ondelete",
        "onexpired", "maxfilespertrigger", "maxversionspertrigger", "outageseconds", "namespaces", "names", "kinds",
        "actions",
    }
)  # fmt: skip
_OTHER_AT = ("versionAsOf", "timestampAsOf")
"""Other names of the option `at`."""
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
"""Options that have an effect in each use, besides those that name the catalog and the table."""
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "mode"})
_VERSION = re.compile(r"-?[0-9]+")
_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)
_OFFSET = re.compile(r"[+-]\d\d:\d\d", re.ASCII)

_INSTEAD = {
    "replacewhere": "lake.overwrite(name, df, where=...) replaces the rows that meet a condition",
    "partitionoverwritemode": "lake.overwrite(name, df, partitions=...) replaces whole partitions",
    "mergeschema": "catalog.update_table(name, add_columns=...) adds columns, before the rows that have them",
    "overwriteschema": "catalog.update_table(name, ...) changes columns; drop_table and create_table start afresh",
    "txnappid": "catalog.transaction(key=...) and lake.batch_writer commit once, however often they are retried",
    "txnversion": "catalog.transaction(key=...) and lake.batch_writer commit once, however often they are retried",
    "readchangefeed": "feed=changes reads inserted and deleted rows",
    "readchangedata": "feed=changes reads inserted and deleted rows",
    "endingversion": "use until=VERSION with feed=changes",
    "endingtimestamp": "use until=TIME with feed=changes",
    "startingtimestamp": "use start=TIME for a stream, after=TIME for feed=changes read once",
    "ignoredeletes": "onDelete=skip skips commits that remove rows",
    "ignorechanges": "onDelete=skip skips commits that remove rows, and feed=changes shows them",
    "skipchangecommits": "onDelete=skip skips commits that remove rows",
    "maxbytespertrigger": "maxFilesPerTrigger limits a batch",
    "branch": "at=VERSION reads an older version; there are no branches",
    "tag": "at=NAME reads the version of a tag",
    "snapshot-id": "use at=VERSION",
    "as-of-timestamp": "use at=TIME",
    "paths": "load one table at a time, and union the frames",
}  # fmt: skip
"""Options of other table formats, and what has the same effect here."""
_OF_TABLES = (
    "CREATE TABLE ... USING alpheus, saveAsTable and toTable register a table in Spark's own catalog, without options:"
    " nothing could read it"
)
_NO_TABLES = (
    "lake.create_table creates a table. lake.append, or df.write.format('alpheus').mode('append')"
    ".save('namespace.name'), writes to it; lake.write_stream, or writeStream...start(), writes a stream."
    " lake.temp_view, or CREATE TEMPORARY VIEW v USING alpheus OPTIONS (...), makes a view of it"
)


def options_of(given: Mapping[str, str]) -> Options:
    """Return the checked options. Raises InvalidInput that names the option which is unknown, missing or wrong."""
    options = _translate({key.lower(): value for key, value in given.items()})
    unknown = sorted(options.keys() - _KNOWN - _OF_SPARK)
    if unknown:
        raise InvalidInput(
            f"there is no option {redact_input(unknown[0])!r}",
            hint=f"the options are {', '.join(sorted(_KNOWN))}",
        )
    url = options.get("catalog") or os.environ.get("ALPHEUS_CATALOG", "")
    if not url:
        raise InvalidInput(
            "the option catalog is missing",
            kind="bad_url",
            hint=f"give the URL of a catalog. {_OF_TABLES}. {_NO_TABLES}",
        )
    if url.startswith("memory:"):
        raise InvalidInput(
            f"the catalog {redact_url(url)} is in the memory of one process, which Spark's processes cannot reach",
            kind="storage_unreachable",
            hint="use a catalog on storage, for example file:///lake",
        )
    feed = one_of(options, "feed", ("rows", "changes", "events"))
    table = options.get("table") or options.get("path", "")
    if bool(table) == (feed == "events"):
        reason = "is missing" if not table else "has no effect with feed=events"
        hint = (
            "leave it out; names= filters events"
            if table
            else f'give "namespace.name". {_OF_TABLES}. {_NO_TABLES}'
        )
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
    """Replace other spellings of an option. Raises InvalidInput for an option of another table format, with what has
    its effect here."""
    if "provider" in options or any(key.startswith("option.") for key in options):
        raise refused_table()
    for key in sorted(options.keys() & _INSTEAD.keys()):
        raise InvalidInput(f"there is no option {key!r}", kind="not_supported", hint=_INSTEAD[key])
    path = options.get("path")
    if path:
        if "/" in path or ":" in path:
            raise InvalidInput(
                f"{redact_url(path)!r} is a location, but tables are found by name",
                hint="use load('namespace.name') or save('namespace.name'), and the option catalog for the location",
            )
        if (options.get("table") or path) != path:
            raise InvalidInput(
                f"the option table={redact_input(options['table'])!r} and {redact_input(path)!r} name two tables",
                hint="name one table",
            )
    given = [key for key in ("at", "versionasof", "timestampasof") if key in options]
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)} both name a version", hint="leave one out")
    version, time = options.pop("versionasof", None), options.pop("timestampasof", None)
    zone = options.pop("timezone", None)
    if zone is not None and time is None:
        raise InvalidInput("the option timeZone has no effect without timestampAsOf", hint="leave it out")
    if version is not None:
        if not _VERSION.fullmatch(version):
            raise InvalidInput(
                f"the option versionAsOf={redact_input(version)!r} is not a version",
                hint="give a version, or a time in timestampAsOf",
            )
        options["at"] = version
    if time is not None:
        if _VERSION.fullmatch(time):
            raise InvalidInput(
                f"the option timestampAsOf={redact_input(time)!r} is not a time",
                hint="give a time, or a version in versionAsOf",
            )
        options["at"] = _with_zone(time.strip(), zone)
    return options


def _with_zone(time: str, zone: str | None) -> str:
    """Return a time in Spark's notation as a moment. `zone` is the option timeZone; a source cannot read the time zone
    of Spark's session."""
    if not _WITHOUT_ZONE.fullmatch(time):
        return time
    if zone is None:
        whole = time + (" 00:00:00", ":00", "")[time.count(":")]
        raise InvalidInput(
            f"the option timestampAsOf={time!r} has no time zone, and Spark does not pass on that of its session",
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
            f"the option timeZone={redact_input(zone)!r} is not a time zone",
            hint="give for example UTC, Europe/Amsterdam or +01:00",
        )
    try:
        return dt.datetime.fromisoformat(time).replace(tzinfo=known).astimezone(dt.UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"the option timestampAsOf={time!r} is not a time: {error}", kind="bad_version"
        ) from None


def refused_table() -> InvalidInput:
    """Return the error for statements that would register a table in Spark's own catalog."""
    return InvalidInput(_OF_TABLES, kind="not_supported", hint=_NO_TABLES)


def check_use(given: Mapping[str, str], use: Literal["read", "stream", "write"], feed: Feed) -> None:
    """Raise InvalidInput that names an option without effect in this use: the rows would not be those that its user
    expects."""
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
            hint=f"leave it out: it is for {', '.join(elsewhere)}; {where} takes {', '.join(sorted(fits)) or 'none'}",
        )
    if {"after", "start"} <= options or {"after", "startingversion"} <= options:
        raise InvalidInput("after and start both say where to begin", hint="leave one out")


def one_of(options: Mapping[str, str], key: str, values: Sequence[str]) -> str:
    """Return the option's value, by default the first of `values`. Raises InvalidInput for any other value."""
    value = options.get(key, values[0]).lower()
    if value not in values:
        raise InvalidInput(
            f"the option {key}={redact_input(value)!r} is none of {', '.join(values)}",
            hint=f"give one of {', '.join(values)}",
        )
    return value


def _start(options: Mapping[str, str]) -> When:
    if "startingversion" not in options:
        return options.get("start", "snapshot")
    if "start" in options:
        raise InvalidInput("start and startingVersion both say where to begin", hint="leave one out")
    value = options["startingversion"]
    if not (value.isascii() and value.isdecimal()):
        raise InvalidInput(
            f"the option startingVersion={redact_input(value)!r} is not a version", hint="give a number"
        )
    return max(0, int(value) - 1)


def count_of(options: Mapping[str, str], key: str) -> int | None:
    """Return the option as a positive number, None when it is not given. Raises InvalidInput."""
    value = options.get(key)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or not 0 < int(value) < NO_LIMIT:
        raise InvalidInput(f"the option {key}={redact_input(value)!r} is not a positive number below 2^31")
    return int(value)


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(options.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InvalidInput(
            f"the option {key}={redact_input(options[key])!r} is not a number of seconds below 1e9"
        )
    return value


def _split_list(options: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(key, "").split(",") if part.strip())
