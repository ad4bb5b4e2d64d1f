"""The log of versions: find the head, read a root, keep the hints (FORMAT.md, "Versions").

Slots are permanent, so "not found" means "never written", and existing versions have no gap: a galloping search from
any start finds the head. Hints only choose the start. Lost, stale or wrong hints cost requests and never a wrong
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shlex
from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlpheusError, Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.format import Kind
from alpheus_journal.model.action_rows import decode_transactions, parse_action, parse_row
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import CatalogDef, VersionRange
from alpheus_journal.model.operations import CreateCatalog, RecordedTransaction
from alpheus_journal.storage import Storage
from alpheus_journal.tree.node import Node, NodeFile, decode_node

DECODED_AT_ONCE_MAX = 64
"""The most actions that are decoded in the event loop; more are decoded in a thread."""


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """One version, as recorded in its root.

    For a root of other software, `commit_id` is `sha256-` and 32 hex digits of the file, and `transactions` is empty;
    the structural diff shows what happened in such a version.
    """

    version: int
    path: str
    node: Node
    commit_id: str
    is_foreign: bool
    created_at_millis: int
    catalog_def: str
    previous_root: str | None
    previous_commit_id: str
    """The commit id of the version below, as the writer knew it; empty when the root does not record it."""
    catalog_id: str
    """The id of the catalog; empty when the root does not record it."""
    revision: int
    """The revision of the format in which it is written; 0 for a root of other software."""
    has_checksum: bool
    """Whether the root has a checksum, which then matches its rows."""
    transactions: tuple[RecordedTransaction, ...]
    defects: tuple[str, ...]
    action_files: tuple[str, ...] = ()
    """The files of actions that are too large for a row of the root."""


class Log:
    """The versions of one catalog on one store. Its only state is about the catalog: the width of file names, the
    catalog's id and limits, and the versions given up."""

    def __init__(self, storage: Storage, digits: int) -> None:
        self.storage = storage
        self.digits = digits
        self.node_size_max = fmt.NODE_FILE_SIZE_BYTES_MAX
        """The size of the largest root that is read, in bytes; `bind_definition` lowers it."""
        self.catalog_id = ""
        """The catalog's id; empty until the catalog's definition is known."""
        self.given_up: tuple[VersionRange, ...] = ()
        """Versions that repairs gave up: they may be missing, and the next version need not be based on them."""

    @classmethod
    async def open(cls, storage: Storage) -> Log:
        """Open the log of an existing catalog, found by version 0 under either width of file names.

        Raises NotFound (`no_catalog`), and InvalidInput (`two_histories`) when version 0 exists in both widths.
        """
        slots = {digits: fmt.version_file(0, digits) for digits in (32, 64)}
        found = await storage.stat_many(list(slots.values()))
        widths = [digits for digits, slot in slots.items() if found[slot] is not None]
        if len(widths) == 2:
            raise InvalidInput(
                f"{storage.url} holds two histories: version 0 exists with 32 and with 64 digits",
                kind="two_histories",
                hint="move one of them to another prefix",
            )
        if widths:
            return cls(storage, widths[0])
        async with contextlib.aclosing(storage.list("vn/")) as entries:  # type: ignore[type-var]
            async for entry in entries:
                if entry.path not in (fmt.LATEST_HINT, fmt.OLDEST_HINT):
                    raise Corrupt(
                        f"{storage.url} has versions but no version 0: another tool deleted old versions",
                        kind="corrupt_history",
                        path=entry.path,
                        hint="restore the deleted files; this release cannot open such a catalog",
                    )
        raise NotFound(
            f"there is no catalog at {storage.url}",
            kind="no_catalog",
            hint=f"create one: alpheus create {shlex.quote(storage.url)}",
        )

    def bind_definition(self, definition: CatalogDef, root: Root) -> None:
        """Set the catalog's id, limits and given-up versions from the definition that `root` names. Raises Corrupt when
        root and definition name different catalogs."""
        if root.catalog_id not in ("", definition.id):
            raise Corrupt(
                f"version {root.version} is of catalog {root.catalog_id}, its definition {root.catalog_def} of catalog"
                f" {definition.id}",
                kind="corrupt_definition",
                path=root.catalog_def,
                version=root.version,
                hint=f"restore {root.catalog_def} from a copy",
            )
        self.catalog_id = definition.id
        self.node_size_max = fmt.node_size_read_max(definition.node_file_size_max)
        self.given_up = definition.given_up

    def given_up_range(self, version: int) -> VersionRange | None:
        """Return the range of given-up versions that holds a version, or None."""
        index = bisect_right(self.given_up, version, key=lambda one: one.first) - 1
        return self.given_up[index] if index >= 0 and version <= self.given_up[index].last else None

    def kept_below(self, version: int) -> int:
        """Return a version, or the next lower version that was not given up."""
        given_up = self.given_up_range(version)
        return version if given_up is None else given_up.first - 1

    def given_up_error(self, version: int) -> Corrupt:
        """Build the error for a version that was given up, which cannot be read or is not an ancestor of the head."""
        given_up = self.given_up_range(version)
        others = f", as one of {given_up}" if given_up and given_up.first < given_up.last else ""
        return Corrupt(
            f"version {version} was given up by a repair{others}",
            kind="history_replaced",
            path=self.path(version),
            version=version,
            hint="restart from a later version; the content of this version is unknown",
        )

    def path(self, version: int) -> str:
        return fmt.version_file(version, self.digits)

    async def exists(self, version: int) -> bool:
        return await self.storage.exists(self.path(version))

    async def hint(self, path: str) -> int | None:
        """Return the version that a hint names, or None when the hint is missing or malformed."""
        try:
            text = (await self.storage.read(path, size_max=fmt.HINT_SIZE_BYTES_MAX)).decode(
                "ascii", "replace"
            )
        except (NotFound, Corrupt):
            return None
        text = text.strip()
        if not text.isdecimal() or not text.isascii() or int(text) >= fmt.VERSION_MAX_EXCLUSIVE:
            return None
        return int(text)

    async def hints(self) -> tuple[int | None, int | None]:
        """Return the versions that `vn/latest` and `vn/oldest` name. These versions need not exist."""
        latest, oldest = await asyncio.gather(self.hint(fmt.LATEST_HINT), self.hint(fmt.OLDEST_HINT))
        return latest, oldest

    async def head(self, known: int | None = None, *, hints: Collection[int] | None = None) -> int:
        """Find the newest version. The search starts at `known`, a version that exists. Without `known` the hints
        choose the start; they are read unless the caller gives them.

        Costs one request beyond the head when the start is the head, else about 2·log2(distance) requests.
        """
        start = known
        if start is None:
            start = 0
            found = await self.hints() if hints is None else hints
            for hint in sorted({hint for hint in found if hint}, reverse=True):
                if await self.exists(hint):
                    start = hint
                    break
        low, step = start, 1
        while await self.exists(low + step):
            low += step
            step *= 2
        high = low + step  # does not exist
        while high - low > 1:
            middle = (low + high) // 2
            if await self.exists(middle):
                low = middle
            else:
                high = middle
        return low

    async def newest(self, known: int | None = None, *, hints: Collection[int] | None = None) -> Root:
        """Read the root of the head, which `head` finds. Raises Expired when the newest version has expired, which no
        writer does."""
        version = await self.head(known, hints=hints)
        while True:
            try:
                return await self.read(version)
            except Expired:
                # The head never expires. So other writers committed newer versions since, and expired this one.
                newer = await self.head(version)
                if newer == version:
                    raise
                version = newer

    async def read(self, version: int, *, bare: bool = False) -> Root:
        """Read the root of a version with its actions. With `bare`, skip the actions, so that `transactions` is empty.

        Raises NotFound (`no_version`) for a slot that was never written, Expired for a tombstone, and Corrupt for a
        file that is not a root of this version.
        """
        path = self.path(version)
        await failpoints.reached("log.slot_get")
        try:
            data = await self.storage.read(path, size_max=self.node_size_max)
        except NotFound:
            raise _no_version(version) from None
        return await self._decode(version, data, bare=bare)

    async def read_many(self, versions: Sequence[int]) -> list[Root | AlpheusError]:
        """Read the roots of several versions together. The result has NotFound, Corrupt or Expired in the place of a
        root for which `read` raises it. Raises Unavailable, and other errors of the storage."""
        await failpoints.reached("log.slot_get")
        paths = [self.path(version) for version in versions]
        try:
            stored = await self.storage.read_many(paths, size_max=self.node_size_max)
        except (NotFound, Corrupt):  # one of them is missing or too large
            stored = {}
        found: list[Root | AlpheusError] = []
        for version, path in zip(versions, paths, strict=True):
            try:
                if path in stored:
                    found.append(await self._decode(version, stored.pop(path)))
                else:
                    found.append(await self.read(version))
            except (NotFound, Corrupt, Expired) as error:
                found.append(error)
            await asyncio.sleep(0)
        return found

    async def _decode(self, version: int, data: bytes, *, bare: bool = False) -> Root:
        path = self.path(version)
        file = decode_node(data, path, root=True, size_max=self.node_size_max)
        self._check(file, version, path)
        transactions, action_files = ((), ()) if bare else await self._transactions(file, path)
        for transaction in transactions:
            if transaction.begin_version >= max(version, 1):
                raise Corrupt(
                    f"transaction {transaction.id} in {path} began at version {transaction.begin_version}",
                    kind="corrupt_history",
                    path=path,
                    version=version,
                )
        assert file.created_at_millis is not None  # the gate demands it of a root
        return Root(
            version=version,
            path=path,
            node=file.node,
            commit_id=_identity(file, data),
            is_foreign=is_foreign(file),
            created_at_millis=file.created_at_millis,
            catalog_def=fmt.check_definition_pointer(file.catalog_def, Kind.CATALOG),
            previous_root=file.previous_root,
            previous_commit_id="" if is_foreign(file) else file.previous_commit_id,
            catalog_id="" if is_foreign(file) else file.catalog_id,
            revision=0 if is_foreign(file) else file.format_revision or 0,
            has_checksum=fmt.ROW_CHECKSUM in file.system,
            transactions=transactions,
            defects=file.defects,
            action_files=action_files,
        )

    def _check(self, file: NodeFile, version: int, path: str) -> None:
        if file.version is not None and file.version != version:
            raise Corrupt(
                f"the root at {path} records version {file.version}, but its slot is {version}",
                kind="corrupt_history",
                path=path,
                version=version,
            )
        missing = [row for row in _OWN_ROWS if row not in file.system]
        is_half = 0 < len(missing) < len(_OWN_ROWS) and not file.is_tombstone
        if is_half and (file.actions or fmt.ROW_COMMIT_ID in missing):
            # The root has some of our rows. Treating it as a root of other software would hide its actions.
            raise Corrupt(
                f"the root at {path} lacks the row {missing[0]!r}",
                kind="corrupt_history",
                path=path,
                version=version,
            )
        if self.catalog_id and (file.is_tombstone or not is_foreign(file)):
            _check_catalog_id(self.catalog_id, file.catalog_id, version, path)
        if file.is_tombstone:
            raise Expired(f"version {version} has expired", version=version, path=path)
        before = self.path(version - 1) if version else None
        if file.previous_root != before:
            raise Corrupt(
                f"the root at {path} names {file.previous_root!r} as the previous root, not {before!r}",
                kind="corrupt_history",
                path=path,
                version=version,
            )
        if not version and file.previous_commit_id:
            raise Corrupt(
                f"the root at {path} is the first one and names a previous commit, {file.previous_commit_id}",
                kind="corrupt_history",
                path=path,
                version=version,
            )

    async def _transactions(
        self, file: NodeFile, path: str
    ) -> tuple[tuple[RecordedTransaction, ...], tuple[str, ...]]:
        """Return the transactions of a root, and the files of its large actions."""
        if is_foreign(file):
            return (
                (),
                (),
            )  # actions of other software are not understood; the structural diff shows the changes
        messages = []
        files = []
        left = fmt.EXTERNAL_ACTIONS_SIZE_BYTES_MAX
        for _, value in file.actions:
            row = parse_row(value, path)
            if row.external_path:
                files.append(row.external_path)
                try:
                    data = await self.storage.read(row.external_path, size_max=left)
                except NotFound:
                    raise Corrupt(
                        f"the action {row.external_path} of {path} is missing",
                        kind="corrupt_action",
                        path=row.external_path,
                    ) from None
                left -= len(data)
                if hashlib.sha256(data).digest() != row.external_sha256:
                    raise Corrupt(
                        f"{row.external_path} does not have the SHA-256 that {path} records",
                        kind="corrupt_action",
                        path=row.external_path,
                    )
                stored_at = row.external_path
                row = parse_action(data, stored_at)
                if row.external_path:
                    raise Corrupt(
                        f"the action {stored_at} points at another file",
                        kind="corrupt_action",
                        path=stored_at,
                    )
            messages.append(row.message)
        if len(messages) > DECODED_AT_ONCE_MAX:
            return await asyncio.to_thread(decode_transactions, messages, path), tuple(files)
        return decode_transactions(messages, path), tuple(files)

    async def commit_id(self, version: int) -> str:
        """Return the identity of a version's root, or of its tombstone. Raises NotFound (`no_version`) and Corrupt."""
        path = self.path(version)
        try:
            data = await self.storage.read(path, size_max=self.node_size_max)
        except NotFound:
            raise _no_version(version) from None
        file = decode_node(data, path, root=True, size_max=self.node_size_max)
        return _identity(file, data)

    async def commit_ids(self, versions: Sequence[int]) -> list[str]:
        """Return `commit_id` of several versions, which are read together. Raises the errors of `commit_id`."""
        paths = [self.path(version) for version in versions]
        try:
            stored = await self.storage.read_many(paths, size_max=self.node_size_max)
        except NotFound:
            return [await self.commit_id(version) for version in versions]  # it names the version
        found = []
        for path in paths:
            file = decode_node(stored[path], path, root=True, size_max=self.node_size_max)
            found.append(_identity(file, stored[path]))
            await asyncio.sleep(0)
        return found

    async def read_catalog_id(self, version: int) -> str:
        """Return the id of the catalog to which a version or its tombstone belongs. The id is empty for a tombstone of
        an earlier release, which does not record it. Raises NotFound and Corrupt."""
        path = self.path(version)
        data = await self.storage.read(path, size_max=self.node_size_max)
        file = decode_node(data, path, root=True, size_max=self.node_size_max)
        if file.is_tombstone or (file.catalog_id and not is_foreign(file)):
            return file.catalog_id
        for transaction in (await self._transactions(file, path))[0]:
            for action in transaction.actions:
                if isinstance(action.operation, CreateCatalog):
                    return action.operation.definition.id
        stored = await self.storage.read(file.catalog_def, size_max=fmt.DEFINITION_SIZE_BYTES_MAX)
        definition = decode_definition(Kind.CATALOG, stored, file.catalog_def)
        assert isinstance(definition, CatalogDef)
        return definition.id

    async def write_latest(self, version: int) -> None:
        """Overwrite the hint, as a best effort: a failure costs the next reader a few probes. Skip this when the
        version no longer exists, because a hint above the head stops all writers."""
        with contextlib.suppress(AlpheusError):
            if await self.exists(version):
                await self.storage.put(fmt.LATEST_HINT, str(version).encode())


CATALOG_ID_SIZE_MAX = 200
"""A longer id, which other software may have made, is not recorded in roots; tokens cannot hold it either."""


def _no_version(version: int) -> NotFound:
    return NotFound(f"there is no version {version}", kind="no_version", version=version)


def root_rows(
    version: int,
    *,
    catalog_def: str,
    catalog_id: str,
    commit_id: str,
    revision: int,
    previous: tuple[str, str] | None = None,
) -> dict[str, str]:
    """Return the system rows of a root that we write, except those that `encode_node` computes. `previous` holds slot
    and commit id of the version below; None for version 0."""
    rows = {fmt.ROW_CATALOG_DEF: catalog_def}
    if previous is not None:
        rows[fmt.ROW_PREVIOUS_ROOT], rows[fmt.ROW_PREVIOUS_COMMIT_ID] = previous
    if len(catalog_id) <= CATALOG_ID_SIZE_MAX:
        rows[fmt.ROW_CATALOG_ID] = catalog_id
    rows[fmt.ROW_COMMIT_ID] = commit_id
    rows[fmt.ROW_VERSION] = str(version)
    rows[fmt.ROW_FORMAT_REVISION] = str(revision)
    rows[fmt.ROW_CHECKSUM] = ""  # computed with the file
    return rows


def _check_catalog_id(expected: str, found: str, version: int, path: str) -> None:
    """Raise Corrupt (`history_replaced`) when a root or tombstone records another catalog's id."""
    if found and found != expected:
        raise Corrupt(
            f"version {version} is of catalog {found}, and this catalog is {expected}",
            kind="history_replaced",
            path=path,
            version=version,
            hint="restore the whole prefix from one copy; files of two catalogs were mixed",
        )


def check_follows(root: Root, below: str) -> None:
    """Raise Corrupt (`history_replaced`) when a root is based on another version than the version below it, whose
    commit id is `below`. A root that does not record its base follows any version."""
    if root.previous_commit_id and root.previous_commit_id != below:
        raise made_on_another_error(root.version, root.path, root.previous_commit_id, below)


def made_on_another_error(version: int, path: str, made_on: str, below: str) -> Corrupt:
    """Build the error `history_replaced`, which names both ids."""
    return Corrupt(
        f"version {version} was made on {made_on}, and version {version - 1} is {below}:"
        " the storage was put back to an older state",
        kind="history_replaced",
        path=path,
        version=version,
        hint="stop all writers, and run alpheus repair --dry-run to see what is there",
    )


_OWN_ROWS = (fmt.ROW_COMMIT_ID, fmt.ROW_VERSION, fmt.ROW_FORMAT_REVISION)


def is_foreign(file: NodeFile) -> bool:
    """Return whether other software wrote a root (not a tombstone): it lacks a row that each of our roots has."""
    return any(row not in file.system for row in _OWN_ROWS)


def _identity(file: NodeFile, data: bytes) -> str:
    own = file.commit_id if file.is_tombstone or not is_foreign(file) else None
    return own or foreign_commit_id(data)


def foreign_commit_id(data: bytes) -> str:
    """Return the identity of a root without a commit id."""
    return f"sha256-{hashlib.sha256(data).hexdigest()[:32]}"
