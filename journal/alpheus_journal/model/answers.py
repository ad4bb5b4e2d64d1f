"""The plain values in the answers of every way to a catalog: `Journal`, and the client's connection to a daemon.

Clients convert these values to their own classes. This module also makes and parses tokens, which name a version across
processes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.definitions import CatalogDef, TagObject
from alpheus_journal.model.operations import RecordedTransaction, Transaction
from alpheus_journal.urls import redact_input


class Timestamp(msgspec.Struct, frozen=True):
    """A version by time: the last version created at or before `millis` (epoch milliseconds)."""

    millis: int


class Back(msgspec.Struct, frozen=True):
    """A version counted from the head: 1 is the head, 2 the version before it."""

    count: int


class Tag(msgspec.Struct, frozen=True):
    """The version that a tag names at the head."""

    name: str


class Pinned(msgspec.Struct, frozen=True):
    """A version that a tag named when it was resolved. Once the version has expired, it is read from the pin. A tag of
    chosen objects is always read from its pin."""

    version: int
    pin_path: str
    is_chosen: bool = False
    lacking: tuple[tuple[str, int], ...] = ()
    """The tables whose data files the pin may lack, with their starts. Only the process that reads rows uses it."""


class PinObject(msgspec.Struct, frozen=True):
    """A table or view, or a namespace with everything in it (no `name`), to be pinned. `at` is the version whose state
    is pinned; None means the pin's version."""

    namespace: str
    name: str = ""
    at: int | Timestamp | Back | Tag | None = None


class Latest(msgspec.Struct, frozen=True):
    """The head, with the reader's demands.

    `staleness_millis` is the highest accepted age of the probe that found the head; None demands a probe that begins
    after the call. `session_token` names the newest version that the reader has seen (empty for none): the answer is
    never older, from whichever process the reader reads, and is of the same history.
    """

    staleness_millis: int | None = None
    session_token: str = ""


LATEST = Latest()

At = int | Timestamp | Back | Tag | Pinned | Latest | None
"""A version reference: a number, a time, a count from the head, a tag, a version with its pin, or the head. None means
`LATEST` (found by a probe that starts after the call)."""


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
    """The time since which the answering process serves the content of a checkpoint that it has not compared with the
    tree yet; 0 when it does not."""
    head_ahead_millis: int = 0
    """The lead of the head's time over the answering process's clock; 0 when it is not ahead, or less than 60 s."""


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    created_at_millis: int
    token: str
    pin_path: str = ""  # of the tag that was asked for
    is_chosen: bool = False  # that tag holds chosen objects
    lacking: dict[str, int] = {}  # of that tag, as in TagDef

    @property
    def reference(self) -> At:
        """The reference under which this version stays readable as long as it was when it was resolved."""
        if not self.pin_path:
            return self.version
        return Pinned(self.version, self.pin_path, self.is_chosen, tuple(self.lacking.items()))


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that was made of a version. `commit_id` is the version's."""

    path: str
    version: int
    commit_id: str
    version_created_at_millis: int
    object_count: int | None = None
    """The entries of the version's tree. None where counting would have cost too much, as with the other counts."""
    table_count: int | None = None
    row_count: int | None = None
    """The rows in the data files of native tables."""
    chosen: tuple[TagObject, ...] = ()
    """`chosen`, `left_out` and `lacking` mean the same as in TagDef."""
    left_out: tuple[TagObject, ...] = ()
    lacking: dict[str, int] = {}

    @property
    def tag_fields(self) -> dict[str, Any]:
        """The fields of an operation on a tag (`SetTag`) that name the version."""
        return {
            "version": self.version,
            "commit_id": self.commit_id,
            "version_created_at_millis": self.version_created_at_millis,
            "pin_path": self.path,
            "object_count": self.object_count,
            "table_count": self.table_count,
            "row_count": self.row_count,
            "chosen": self.chosen,
            "left_out": self.left_out,
            "lacking": self.lacking,
        }


class Damage(msgspec.Struct, frozen=True):
    """The reason why a definition cannot be read: its file is missing or too large, or its path is not a definition's
    path."""

    kind: str
    message: str
    hint: str = ""


class StoredObject(msgspec.Struct, frozen=True):
    """A live object: the path of its definition, and the stored bytes.

    A damaged object has `damage` and no bytes. Inside the journal it keeps its place, so that it can be listed and
    dropped. Code that needs the definition raises `error`, and `Access.load` returns no damaged object.
    """

    path: str
    definition: bytes
    damage: Damage | None = None

    def error(self) -> Corrupt | None:
        """Build an error for the damage; None when the object is not damaged."""
        if self.damage is None:
            return None
        return Corrupt(self.damage.message, kind=self.damage.kind, hint=self.damage.hint, path=self.path)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The objects in the order of the requested names; None where no such object exists at `version`. `token` names the
    version, when the caller asked for the head."""

    version: int
    objects: tuple[StoredObject | None, ...]
    token: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Names in key order. When `more` is true, ask again at `version` with `after` the last name. `token` is the same
    as in `Loaded`."""

    version: int
    names: tuple[str, ...]
    more: bool
    token: str = ""


class LiveObject(msgspec.Struct, frozen=True):
    """An object of one version, damaged or not."""

    name: ObjectName
    stored: StoredObject


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the live objects of one version. Events resume after the version at `token`."""

    version: int
    created_at_millis: int
    token: str
    objects: tuple[LiveObject, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction in the log. `duplicate` means that it was in the log before this call. `rows_added` and
    `rows_removed` count rows (FORMAT.md, "What operations do"); `files_added` counts the data files of its segments."""

    version: int
    transaction_id: str
    created_at_millis: int
    token: str
    duplicate: bool = False
    rows_added: int = 0
    rows_removed: int = 0
    files_added: int = 0


ChangeType = Literal["created", "updated", "dropped"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of one object between a version and the version before (structural diff).

    The stored definitions are included when the caller asked for details.
    """

    name: ObjectName
    type: ChangeType
    path_before: str = ""
    path_after: str = ""
    definition_before: bytes | None = None
    definition_after: bytes | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One version: its transactions in order, and the changes that all of them made together."""

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
    """The outcome of a transaction. "unknown" never means that it was not applied. `begin_version` is known when the
    transaction has committed."""

    state: Literal["committed", "cancelled", "unknown"]
    commit: Committed | None = None
    begin_version: int = 0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped object, and who dropped it when. `version` is the last version in which the object existed."""

    name: ObjectName
    version: int
    dropped_version: int
    dropped_at_millis: int
    transaction_id: str  # empty when other software wrote the version
    principal: str


class SavedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A distributed transaction as stored, which any process may resume (FORMAT.md, "Distributed transactions").

    In a listing `transaction` has neither operations nor reads. A transaction is not `resumable` when other software
    saved it, because its operations are not recorded, or when its file cannot be read. Then `damage` says why and only
    the id is known. The begin version of such a transaction is 0 when it is unknown.
    """

    transaction: Transaction
    began_at_millis: int
    expire_at_millis: int
    operation_count: int
    resumable: bool = True
    damage: str = ""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one epoch of a subscription (FORMAT.md, "Subscriptions"). `beat` grows with each write. `token`
    names the version before `next_version`, empty when unknown. `released` means that the holder has left."""

    subscription_id: str
    epoch: int
    beat: int
    next_version: int
    token: str = ""
    released: bool = False


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """What still needs the log from `version` on: a `subscription`, a `pipeline` job, a saved `transaction`, or the
    rules of history of a `table` or `namespace`. With `let_go`, it waited for too long, and what it needs expires."""

    kind: str
    name: str
    version: int
    let_go: bool = False


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """What an expiry does, or did so far: the versions from `first` to `oldest` - 1 become tombstones, and `oldest` is
    the oldest kept version afterwards. `wanted` is what the rules alone would keep; `holds` keep more."""

    head: int
    first: int
    wanted: int
    oldest: int
    expired: int = 0
    holds: tuple[Hold, ...] = ()


class FileTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A number of files and their bytes."""

    files: int = 0
    size_bytes: int = 0


class UploadTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of open uploads in parts. The store tells their bytes only one by one, so nobody counts them.

    `abandoned` are those to abort, `aborted` those that are gone (some may have ended meanwhile), `kept` the old ones
    that leases of writers keep, `young` those that are too young to judge or have no time. `skipped` are texts that
    say which uploads were not looked at or not aborted, and why.
    """

    abandoned: int = 0
    aborted: int = 0
    kept: int = 0
    young: int = 0
    skipped: tuple[str, ...] = ()


class EarlierFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The data files of a table that go although kept versions below `start` list them, by the table's rules of
    history. `table` is the table's name at the head."""

    table_id: str
    table: str
    start: int
    files: FileTotals = FileTotals()


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection does, or did so far.

    `unreferenced` are the files to delete, `deleted` those that are gone, by kind: data, manifest, definition, node,
    action, pin, lease, position, saved, scratch. `kept_by` counts the old files that are kept, by what reaches them
    first: `versions`, then `tag <name>` in order of the tags' versions, `pins`, `leases`, `transactions`, `exports`.
    An entry `data root <URL>, …` without files says that this root was skipped, and why.
    `young` are files that are too young to judge. `uploads` counts open uploads. Times are the store's. `earlier` tells
    which of the data files go by tables' own rules, before the versions that list them.
    """

    cutoff_millis: int
    fence_version: int | None = None
    first_version: int = 0
    last_version: int = 0
    unreferenced: dict[str, FileTotals] = {}
    deleted: dict[str, FileTotals] = {}
    kept_by: dict[str, FileTotals] = {}
    young: FileTotals = FileTotals()
    uploads: UploadTotals = UploadTotals()
    earlier: tuple[EarlierFiles, ...] = ()

    @property
    def unreferenced_count(self) -> int:
        return sum(totals.files for totals in self.unreferenced.values())

    @property
    def deleted_count(self) -> int:
        return sum(totals.files for totals in self.deleted.values())


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant. `kind` is an error kind."""

    kind: str
    message: str
    path: str = ""
    version: int | None = None


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: how much was checked."""

    versions: int
    nodes: int
    definitions: int
    manifests: int
    findings: int
    given_up: tuple[tuple[int, int], ...] = ()
    """Versions that repairs gave up and that may be missing: first and last of each range."""


# --- tokens ----------------------------------------------------------------------------------------


def make_token(catalog_id: str, version: int, commit_id: str) -> str:
    """Build a resume token from catalog id, version, and the identity of the root at that version: its commit id, or
    `sha256-` and 32 hex digits for a root of other software."""
    return f"{catalog_id}.{version}.{commit_id}"


def parse_token(token: str) -> tuple[str, int, str]:
    """Return (catalog id, version, commit id). Raises InvalidInput (`bad_token`) for any other text."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3 or not all(parts) or not parts[1].isdecimal() or len(token) > 200:
        raise InvalidInput(f"{redact_input(token)[:80]!r} is not a resume token", kind="bad_token")
    return parts[0], int(parts[1]), parts[2]
