"""Positions of streams, and what a stream is asked for.

A position is what Spark keeps in its checkpoint: `{"v": n, "f": m, "t": table id}`.

- `f`: without it, all versions up to `n` are delivered. With it, those before `n` are delivered, and the first `m`
  change files of version `n`. So a large version is cut into several batches.
- `b`, beside `f`: an earlier version at which the table existed. The change of a table that was dropped and came back
  is computed from both versions.
- `r`, beside `f`: whether the files are those of "rows" or of "changes". The two number files differently.
- `"s": true`: the position is within a snapshot, whose files are those of the table at version `n`.
- `c`, in a stream of events: the catalog's id.

A stream begins at a position without a version, and the end of the first batch says where that is. When the first batch
has to be repeated, Spark asks for the beginning again, and only that batch's end tells what the beginning was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from alpheus.session.arguments import Name, When
from alpheus_journal.errors import InvalidInput

OUTAGE_SECONDS = 3600.0


class StreamPosition(msgspec.Struct, frozen=True):
    """See the module. `version` -1 means before everything."""

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
        """Return the position as Spark keeps it. Spark compares the texts, so each position has exactly one form."""
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
    """Return the position in a checkpoint. Raises InvalidInput (`bad_argument`): a checkpoint is input like any
    other."""
    numbers = [offset.get("v"), offset.get("f", 0), offset.get("b", -1)]
    texts = table_id, catalog_id, feed = offset.get("t", ""), offset.get("c", ""), offset.get("r", "")
    if (
        not all(type(n) is int for n in numbers)
        or not all(isinstance(text, str) for text in texts)
        or numbers[1] < 0
    ):
        raise InvalidInput(
            f"{dict(offset)!r} is not a position of an alpheus stream",
            hint="give the query a checkpoint of its own: this one belongs to another source",
        )
    version, files, base = numbers
    return StreamPosition(version, files, table_id, bool(offset.get("s", False)), base, catalog_id, feed)


class StreamTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a stream of a table; see `SparkCatalog.stream`. `start` is "snapshot", "now", or the version or
    time after which the stream begins."""

    table: Name
    start: When = "snapshot"
    on_delete: Literal["fail", "skip"] = "fail"
    on_expired: Literal["fail", "snapshot"] = "fail"
    changes: bool = False
    max_versions: int | None = None
    outage_seconds: float = OUTAGE_SECONDS


class EventTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a stream of events. `start` is None (all events that are kept), "now", or the version, tag or
    time after which the stream begins."""

    start: When = None
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    outage_seconds: float = OUTAGE_SECONDS

    def filter(self) -> dict[str, Any]:
        """Return the filter as arguments of `Catalog.events`."""
        return {
            "namespaces": self.namespaces,
            "names": self.names,
            "kinds": self.kinds,
            "actions": self.actions,
        }
