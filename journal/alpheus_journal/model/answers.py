"""The plain values that every way to a catalog answers with: `Journal`, and the client's connection to a daemon.

Clients dress them up. Tokens, which name a version across processes, are made and read here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import CatalogDef
from alpheus_journal.model.operations import RecordedTransaction, Transaction
from alpheus_journal.urls import typed


class Timestamp(msgspec.Struct, frozen=True):
    """A version by time: the last one created at or before `millis` (epoch milliseconds)."""

    millis: int


class Back(msgspec.Struct, frozen=True):
    """A version counted from the head: 1 is the head, 2 the version before it."""

    count: int


class Latest(msgspec.Struct, frozen=True):
    """The head, as the reader takes it.

    `staleness_millis`: a probe that began at most so long ago is good enough; None: it begins after the call.
    `session_token`: of the newest version that the reader has seen; what it gets is never older, wherever it reads,
    and of the same history. Empty: it has seen none.
    """

    staleness_millis: int | None = None
    session_token: str = ""


LATEST = Latest()

At = int | Timestamp | Back | Latest | None
"""Which version: a number, a time, a count from the head, or the head;
None means `LATEST` (found by a probe that starts after the call)."""


class CatalogInfo(msgspec.Struct, frozen=True, kw_only=True):
    catalog_id: str
    storage_url: str
    version_digits: int
    definition: CatalogDef
    version: int  # the head
    oldest_version: int
    token: str  # of the head
    software_version: str
    unverified_since_millis: int = 0
    """Since when who answers serves what a checkpoint told, before it was compared with the tree; 0: it does not."""
    head_ahead_millis: int = 0
    """By so much the head's time is in the future of the clock of who answers; 0: it is not, or within 60 s."""


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_millis: int
    token: str


class Damage(msgspec.Struct, frozen=True):
    """Why a definition cannot be had: its file is not there, or too large, or its path is none."""

    kind: str
    message: str
    hint: str = ""


class StoredObject(msgspec.Struct, frozen=True):
    """A live object: where its definition lies, and its bytes as stored.

    With `damage` there are no bytes. Inside the journal such an object stands where it is, so that it can be listed
    and dropped; whoever looks into it raises `error`, and `Access.load` gives none.
    """

    path: str
    definition: bytes
    damage: Damage | None = None

    def error(self) -> Corrupt | None:
        """A fresh error for the damage."""
        if self.damage is None:
            return None
        return Corrupt(self.damage.message, kind=self.damage.kind, hint=self.damage.hint, path=self.path)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Answers in the order of the names asked for; None: no such object at `version`. `token`: of the version, where
    the head was asked for."""

    version: int
    objects: tuple[StoredObject | None, ...]
    token: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Names in key order. `more`: ask again at `version` with `after` the last name. `token`: as of `Loaded`."""

    version: int
    names: tuple[str, ...]
    more: bool
    token: str = ""


class LiveObject(msgspec.Struct, frozen=True):
    """An object of one version, damaged or not."""

    name: ObjectName
    stored: StoredObject


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the live objects of one version; `token` is where events go on after it."""

    version: int
    created_at_millis: int
    token: str
    objects: tuple[LiveObject, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is in the log. `duplicate`: it had been before this call. `rows_added`, `rows_removed`: what
    came and went (FORMAT.md, "What operations do")."""

    version: int
    transaction_id: str
    created_at_millis: int
    token: str
    duplicate: bool = False
    rows_added: int = 0
    rows_removed: int = 0


ChangeType = Literal["created", "updated", "dropped"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between a version and the one before it, for one object (structural diff).

    Definitions, as stored, are there when details were asked for.
    """

    name: ObjectName
    type: ChangeType
    path_before: str = ""
    path_after: str = ""
    definition_before: bytes | None = None
    definition_after: bytes | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One version: its transactions in order, and the changes that they made together."""

    version: int
    created_at_millis: int
    token: str
    transactions: tuple[RecordedTransaction, ...]
    changes: tuple[Change, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Every event up to `version` was delivered or did not match."""

    version: int
    token: str


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_millis: int
    transaction: RecordedTransaction


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a transaction. "unknown" never means not applied. `begin_version`: of one that has committed."""

    state: Literal["committed", "cancelled", "unknown"]
    commit: Committed | None = None
    begin_version: int = 0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is not there any more, and how it went. `version`: the last one at which it lived."""

    name: ObjectName
    version: int
    dropped_version: int
    dropped_at_millis: int
    transaction_id: str  # empty: a version of another writer
    principal: str


class SavedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A distributed transaction as it lies on storage, to be gone on with by any process (FORMAT.md, "Distributed
    transactions"). In a listing `transaction` has neither operations nor reads. Not `resumable`: another writer
    saved it, and its operations are not recorded; or its file cannot be read: `damage` says why, and only the id is
    known. A begin version of 0 there may mean that none is known."""

    transaction: Transaction
    began_at_millis: int
    expire_at_millis: int
    operation_count: int
    resumable: bool = True
    damage: str = ""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far one epoch of a subscription is (FORMAT.md, "Subscriptions"). `beat` goes up with each write; `token` is
    of the version before `next_version`, empty where it is not known. `released`: its holder has left."""

    subscription_id: str
    epoch: int
    beat: int
    next_version: int
    token: str = ""
    released: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant. `kind` is an error kind."""

    kind: str
    message: str
    path: str = ""
    version: int | None = None


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: how much was looked at."""

    versions: int
    nodes: int
    definitions: int
    manifests: int
    findings: int
    given_up: tuple[tuple[int, int], ...] = ()
    """Versions that repairs gave up, first and last of each range: they may be missing."""


# --- tokens ----------------------------------------------------------------------------------------


def make_token(catalog_id: str, version: int, commit_id: str) -> str:
    """A resume token: catalog id, version, and what identifies the root at that version: its commit id,
    or of a foreign root `sha256-` and 32 hex digits."""
    return f"{catalog_id}.{version}.{commit_id}"


def parse_token(token: str) -> tuple[str, int, str]:
    """(catalog id, version, commit id). InvalidInput (`bad_token`) for other text."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3 or not all(parts) or not parts[1].isdecimal() or len(token) > 200:
        raise InvalidInput(f"{typed(token)[:80]!r} is no resume token", kind="bad_token")
    return parts[0], int(parts[1]), parts[2]
