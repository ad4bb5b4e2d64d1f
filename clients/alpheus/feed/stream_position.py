"""Positions of streams, and what a stream is asked for.

A position is what Spark keeps in its checkpoint: `{"v": n, "f": m, "t": table id}`. Without `f`, versions up to `n` are
delivered; with it those before `n`, and of the change files of version `n` the first `m`: so a large version is cut
into several batches; `b` is a version before it at which the table was there, for a table that went and came back is
told by both, and `r` says whether the files are those of "rows" or of "changes", which count others. `"s": true`:
reached within a snapshot, the files of the table as of `n`. `c`, of a stream of events: the catalog's id. A stream
begins at a position of no version, and the first batch says where it begins: Spark asks anew for the beginning when the
first batch has to be repeated, and nothing but that batch's end says then what the beginning was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from alpheus.session.arguments import Name, When
from alpheus_journal.errors import InvalidInput

OUTAGE_SECONDS = 3600.0


class StreamPosition(msgspec.Struct, frozen=True):
    """See the module. `version` -1: before everything."""

    version: int = -1
    files: int = 0
    table_id: str = ""
    is_snapshot: bool = False
    base: int = -1
    catalog_id: str = ""
    feed: str = ""

    @property
    def is_begin(self) -> bool:
        return self.version < 0

    def to_offset(self) -> dict[str, Any]:
        """As Spark keeps it. It compares the text, so one position has one form."""
        offset: dict[str, Any] = {"v": self.version, "f": self.files}
        if self.table_id:
            offset["t"] = self.table_id
        if self.is_snapshot:
            offset["s"] = True
        if self.base >= 0:
            offset["b"] = self.base
        if self.catalog_id:
            offset["c"] = self.catalog_id
        if self.feed:
            offset["r"] = self.feed
        return offset


def position_of(offset: Mapping[str, Any]) -> StreamPosition:
    """InvalidInput (`bad_argument`) for what is no position: a checkpoint is input."""
    numbers = [offset.get("v"), offset.get("f", 0), offset.get("b", -1)]
    texts = table_id, catalog_id, feed = offset.get("t", ""), offset.get("c", ""), offset.get("r", "")
    if (
        not all(type(n) is int for n in numbers)
        or not all(isinstance(text, str) for text in texts)
        or numbers[1] < 0
    ):
        raise InvalidInput(
            f"{dict(offset)!r} is no position of an alpheus stream",
            hint="the checkpoint belongs to another source; use a new one",
        )
    version, files, base = numbers
    return StreamPosition(version, files, table_id, bool(offset.get("s", False)), base, catalog_id, feed)


class StreamTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream of a table is asked for; see `SparkCatalog.stream`. `start`: "snapshot", "now", a version or time,
    after which it begins."""

    table: Name
    start: When = "snapshot"
    on_delete: Literal["fail", "skip"] = "fail"
    on_expired: Literal["fail", "snapshot"] = "fail"
    changes: bool = False
    max_versions: int | None = None
    outage_seconds: float = OUTAGE_SECONDS


class EventTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream of events is asked for. `start`: None (all that is kept), "now", or after a version or time."""

    start: When = None
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    outage_seconds: float = OUTAGE_SECONDS

    def filter(self) -> dict[str, Any]:
        """For `Catalog.events`."""
        return {
            "namespaces": self.namespaces,
            "names": self.names,
            "kinds": self.kinds,
            "actions": self.actions,
        }
