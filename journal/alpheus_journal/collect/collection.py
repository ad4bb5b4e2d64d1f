"""Collection: files that nothing reaches are deleted, and abandoned uploads aborted (FORMAT.md, "Collection").

The order makes it safe. List the candidates; commit a fence, which refuses files as old as the candidates from then on;
only then read the leases of writers, after them the versions, and after these the pins and all leases; delete what
none of them reaches. A commit before the fence is among the versions that are read. A commit after it brings only
younger files, files that a writer's lease keeps, and what its base or a pin reaches. What was reached before the fence
counts, too, so most of the reading is done before it, and a collection that finds nothing to delete makes no version.

Data files that only versions below a table's start list are not reached. The marks go by starts that were planned
beforehand; a second plan and the fence confirm them. Where they do not, the table keeps all its files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.collect.candidates import Candidates, FoundFiles
from alpheus_journal.collect.open_uploads import OpenUploads
from alpheus_journal.collect.reach import VERSIONS, Reach
from alpheus_journal.collect.store_time import read_store_time
from alpheus_journal.collect.table_starts import Plan, plan_starts
from alpheus_journal.commit.saved_transactions import SAVED_SIZE_BYTES_MAX, decode_stored
from alpheus_journal.errors import AlpheusError, Corrupt, Denied, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.log import leases
from alpheus_journal.log.copies import Copy
from alpheus_journal.log.leases import Found, leases_in
from alpheus_journal.log.pins import read_pin
from alpheus_journal.log.times import time_text
from alpheus_journal.model.answers import Collection, Committed, EarlierFiles, FileTotals
from alpheus_journal.model.expiry_rules import MINIMUM_AGE_MILLIS_DEFAULT, check_minimum_age
from alpheus_journal.model.operations import (
    DISREGARDED_MAX,
    STARTS_RAISED_MAX,
    FenceCollection,
    Transaction,
)
from alpheus_journal.replay.follower import Follower
from alpheus_journal.rooted_storage import DATA_FOLDER, claim_root, read_owner
from alpheus_journal.storage import Storage
from alpheus_journal.tags.reader import list_tags
from alpheus_journal.urls import redact_url
from alpheus_journal.workspace.checks import check_revision

DELETED_AT_ONCE = 1_000
LISTED_AT_ONCE = 200
"""Other work of the event loop has its turn after so many listed files."""
MANIFEST_FOLDER = "manifest/"
ORDER_OF_DELETION = (
    "data", "manifest", "definition", "node", "action", "pin", "lease", "position", "saved", "scratch",
)  # fmt: skip
"""Data files go before the segments that list them, so that a collection that was stopped still knows their tables."""


async def collect(
    follower: Follower,
    commit: Callable[[Transaction], Awaitable[Committed]],
    identities: Identities,
    *,
    minimum_age_millis: int = MINIMUM_AGE_MILLIS_DEFAULT,
    dry_run: bool = False,
) -> AsyncIterator[Collection]:
    """Delete unreferenced files that are older than the minimum age, and abort open uploads that nobody will end. Yield
    the plan, then the progress after each batch, and the result last. A dry run yields the plan alone, without a fence.

    A collection that was stopped is finished by the next one, and two at once do no harm. Raises Corrupt where
    something that may reach files cannot be read; then nothing is deleted. Raises InvalidInput (`upgrade_needed`) in a
    catalog of revision 1.
    """
    check_minimum_age(minimum_age_millis)
    head = await follower.refresh()
    definition = await follower.catalog_definition(head.catalog_def, follower.reader)
    check_revision(definition, 2, "collection")
    if not dry_run:
        await follower.check_writable()
    run = _Run(follower, identities)
    try:
        cutoff = await read_store_time(follower.log.storage, identities.uuid4) - minimum_age_millis
        await run.list_candidates(cutoff, dry_run=dry_run)
        await failpoints.reached("collect.listed")
        await run.plan_starts(cutoff, minimum_age_millis)
        await failpoints.reached("collect.planned")
        await run.mark(cutoff)
        await failpoints.reached("collect.marked_first")
        plan = await run.confirm_starts(cutoff, minimum_age_millis)
        if dry_run or not (run.candidates or await run.may_abort()):
            yield msgspec.structs.replace(plan, uploads=run.uploads.count())
            return
        await failpoints.reached("collect.confirmed")
        fence = await run.commit_fence(commit, cutoff)
        await failpoints.reached("collect.fenced")
        await run.keep_unrecorded(fence)
        await run.mark(cutoff)
        plan = msgspec.structs.replace(run.answer(cutoff), fence_version=fence)
        yield plan
        await failpoints.reached("collect.marked")
        async for deleted in run.delete():
            yield msgspec.structs.replace(plan, deleted=deleted, uploads=run.uploads.count())
    finally:
        run.candidates.close()
        run.uploads.close()


class _Run:
    """One collection."""

    def __init__(self, follower: Follower, identities: Identities) -> None:
        self._follower = follower
        self._log = follower.log
        self._identities = identities
        self.candidates = Candidates()
        self.uploads = OpenUploads()
        self._reach = Reach(follower.log, follower.reader.keys, self.candidates)
        self._first = self._last = -1  # the versions that were read
        self._young = FileTotals()
        self._disregarded: tuple[str, ...] | None = None
        """The transactions whose leases had run out before the fence, which names them."""
        self._unlisted: dict[str, AlpheusError] = {}
        """The data roots that could not be listed, and why."""
        self._foreign: dict[str, str] = {}
        """The data roots that belong to other catalogs, and the ids of these."""
        self._plan = Plan()
        self._confirmed: dict[str, EarlierFiles] = {}
        """The tables whose starts rise, by id."""

    # --- list

    async def list_candidates(self, cutoff_millis: int, *, dry_run: bool) -> None:
        storage = self._log.storage
        # A program that could not reach the storage may have made the prefix another catalog's root.
        is_foreign = self._note_owner(storage.url, await read_owner(storage))
        for folder in fmt.COLLECTED_FOLDERS:
            if folder != DATA_FOLDER or not is_foreign:
                await self._list(storage, folder, cutoff_millis, self.candidates.own)
        await self.candidates.own.seal()
        folders = [folder for folder in fmt.UPLOADED_FOLDERS if folder != DATA_FOLDER or not is_foreign]
        await self.uploads.find("", storage, folders, cutoff_millis)
        await self._list_roots(cutoff_millis, dry_run=dry_run)

    def _store_of(self, root: str) -> Storage:
        return self._follower.data_roots.of(root) if root else self._log.storage

    def _note_owner(self, url: str, owner: str) -> bool:
        """Return whether a place belongs to another catalog, and remember it then. An empty owner is none."""
        if owner in ("", self._follower.catalog_id):
            return False
        self._foreign[url] = owner
        return True

    async def _list_roots(self, cutoff_millis: int, *, dry_run: bool) -> None:
        """List the data roots, those of dropped namespaces too.

        A root without an owner becomes the catalog's, but not in a dry run. A root of another catalog is skipped: two
        catalogs may have tables with one id, if programs gave their transactions one id. A place may be gone together
        with what used it, so a root that cannot be listed is an error only where a table is reached there
        (`_check_unlisted`).
        """
        definition = await self._follower.catalog_definition(
            self._follower.head.catalog_def, self._follower.reader
        )
        tables = await self._list_table_ids() if definition.data_roots else set()
        if not tables:
            return
        for url in definition.data_roots:
            found = FoundFiles()
            store = self._store_of(url)
            try:
                owner = (
                    await read_owner(store) if dry_run else await claim_root(store, self._follower.catalog_id)
                )
                if self._note_owner(url, owner):
                    continue
                await self._list(store, DATA_FOLDER, cutoff_millis, found, tables=tables)
                await found.seal()
                self.candidates.rooted[url] = found
                await self.uploads.find(url, store, (DATA_FOLDER,), cutoff_millis, tables)
            except (NotFound, Unavailable, Denied, InvalidInput) as error:
                self._unlisted[url] = error

    async def _list(
        self,
        storage: Storage,
        folder: str,
        cutoff_millis: int,
        found: FoundFiles,
        *,
        tables: set[str] | None = None,
    ) -> None:
        """Add the old files of a folder. At a data root only those of known tables count."""
        files = size = seen = 0
        async with contextlib.aclosing(storage.list(folder)) as entries:  # type: ignore[type-var]
            async for entry in entries:
                seen += 1
                if seen % LISTED_AT_ONCE == 0:
                    await found.settle()
                    await asyncio.sleep(0)
                kind = fmt.kind_of_file(entry.path)
                if not kind:
                    continue
                if tables is not None and entry.path.split("/", 2)[1] not in tables:
                    continue
                if entry.modified_at_millis < cutoff_millis:
                    found.add(entry.path, entry.size, kind, entry.modified_at_millis)
                else:
                    files, size = files + 1, size + entry.size
        self._young = FileTotals(files=self._young.files + files, size_bytes=self._young.size_bytes + size)

    async def _list_table_ids(self) -> set[str]:
        """Return the ids of the catalog's tables, past ones too: those that have manifest segments."""
        found = set()
        async with contextlib.aclosing(self._log.storage.list(MANIFEST_FOLDER)) as entries:  # type: ignore[type-var]
            async for entry in entries:
                if fmt.kind_of_file(entry.path):
                    found.add(entry.path.split("/", 2)[1])
        return found

    # --- starts of tables

    async def plan_starts(self, cutoff_millis: int, minimum_age_millis: int) -> None:
        """Plan the starts by which both marks go."""
        self._plan = await plan_starts(self._follower, cutoff_millis + minimum_age_millis, minimum_age_millis)
        self._reach.levels = self._plan.levels

    async def confirm_starts(self, cutoff_millis: int, minimum_age_millis: int) -> Collection:
        """Plan again, after the first mark, and return what the collection would do.

        A start rises if files go thereby and the second plan has it, too, or a later one. Every other table whose start
        was to rise keeps all its files, because the mark does not tell what a lower start keeps.
        """
        if not self._plan.wanted:
            return self.answer(cutoff_millis)
        again = await plan_starts(self._follower, cutoff_millis + minimum_age_millis, minimum_age_millis)
        async with self._unless_expired():
            earlier = await self._reach.find_earlier()
        sizes = sorted(earlier.items(), key=lambda item: (-item[1].size_bytes, item[0]))
        for table_id, files in sizes:
            start, second = self._plan.wanted.get(table_id), again.wanted.get(table_id)
            if start is None or second is None or len(self._confirmed) == STARTS_RAISED_MAX:
                continue
            if second.version >= start.version:
                start = msgspec.structs.replace(second, version=start.version)
                self._plan.wanted[table_id] = start
                name = start.object_name.full_name
                self._confirmed[table_id] = EarlierFiles(
                    table_id=table_id, table=name, start=start.version, files=files
                )
        async with self._unless_expired():
            await self._reach.keep_passed(self._plan.wanted.keys() - self._confirmed.keys())
        return self.answer(cutoff_millis)

    async def keep_unrecorded(self, fence_version: int) -> None:
        """Keep all files of the tables whose starts the fence did not raise as planned. Their rules have changed."""
        if not self._confirmed:
            return
        async with self._unless_expired():
            root = await self._follower.root(fence_version)
        recorded = (
            await self._follower.catalog_definition(root.catalog_def, self._follower.reader)
        ).table_starts
        refused = {
            table_id for table_id, one in self._confirmed.items() if recorded.get(table_id, 0) < one.start
        }
        async with self._unless_expired():
            await self._reach.keep_passed(refused)
        self._confirmed = {id: one for id, one in self._confirmed.items() if id not in refused}

    @contextlib.asynccontextmanager
    async def _unless_expired(self) -> AsyncIterator[None]:
        """Raise Unavailable instead where a segment, or the fence, is gone because versions have expired since the
        mark, and another collection has taken their files."""
        try:
            yield
        except (Corrupt, Expired) as error:
            if await self._follower.oldest() == self._first:
                raise
            raise Unavailable(
                f"nothing was deleted, because versions expired and were collected beside this collection:"
                f" {error.message}",
                path=error.path,
                hint="collect again",
            ) from error

    # --- fence

    async def may_abort(self) -> bool:
        """Return whether there is an upload that may be aborted. Where the permission is missing, each run would
        otherwise make a version for nothing."""
        return bool(self.uploads) and await self.uploads.may_abort(self._store_of)

    async def commit_fence(
        self, commit: Callable[[Transaction], Awaitable[Committed]], cutoff_millis: int
    ) -> int:
        transaction = Transaction(
            id=self._identities.uuid7(),
            begin_version=self._follower.head.version,
            operations=(
                FenceCollection(
                    cutoff_millis=cutoff_millis,
                    disregarded=self._disregarded or (),
                    starts=tuple(self._plan.wanted[table_id] for table_id in sorted(self._confirmed)),
                ),
            ),
            message="collect unreferenced files",
        )
        return (await commit(transaction)).version

    # --- mark

    async def mark(self, cutoff_millis: int) -> None:
        """Take everything that is reached out of the candidates. A second call adds what is new.

        First the leases of writers: a writer gives up its lease once its commit is among the versions. Then the
        versions, then the pins and all leases: a pin or a lease outlives the moment in which its version expires,
        because it was durable before. One round after the fence is enough, because no process deletes a pin when it has
        committed what the pin kept for it.
        """
        reach = self._reach
        if self._first < 0:
            self._first = await self._follower.oldest()
            self._last = self._first - 1
        await self._mark_writers(cutoff_millis)
        head = (await self._follower.refresh()).version
        await reach.add_versions(range(self._last + 1, head + 1))
        self._last = head
        self.candidates.keep(reach.positions, VERSIONS)
        await self._mark_pins(reach, cutoff_millis)
        await self._mark_leases(reach)
        await self._mark_saved(reach)
        for path in sorted(reach.exports):
            await reach.add_root_file(path, "exports")
        self._check_unlisted()
        await self.candidates.keep_elsewhere(reach.places)
        await self.uploads.keep_elsewhere(reach.places)

    def answer(self, cutoff_millis: int) -> Collection:
        """Return what the collection will do, as far as it is known."""
        return Collection(
            cutoff_millis=cutoff_millis,
            first_version=self._first,
            last_version=self._last,
            unreferenced=self.candidates.count(),
            kept_by=self.candidates.kept_by | dict.fromkeys(self._list_skipped(), FileTotals()),
            young=self._young,
            uploads=self.uploads.count(),
            earlier=tuple(sorted(self._confirmed.values(), key=lambda one: one.table)),
        )

    def _check_unlisted(self) -> None:
        """Raise the error of a data root that could not be listed, where a table that is reached has its files."""
        used = {root for roots in self._reach.places.values() for root in roots}
        for url, error in self._unlisted.items():
            if url in used:
                raise type(error)(
                    f"the data root {redact_url(url)}, where tables have their files, cannot be listed:"
                    f" {error.message}",
                    kind=error.kind,
                    hint="make the place reachable; or drop its tables, and let the versions, tags and leases go that"
                    " have them",
                ) from error

    def _list_skipped(self) -> list[str]:
        """Return what says which data roots were skipped, and why."""
        return [
            *(f"data root {redact_url(url)}, which cannot be listed" for url in self._unlisted),
            *(
                f"data root {redact_url(url)}, which belongs to the catalog {owner[:80]}"
                for url, owner in self._foreign.items()
            ),
        ]

    async def _mark_pins(self, reach: Reach, cutoff_millis: int) -> None:
        """Keep what tags and young pins reach. The tags of a pin's own tree keep nothing."""
        named = sorted(reach.tags.values(), key=lambda tag: (tag.version, tag.pin_path))
        names = {tag.pin_path: name async for name, tag in list_tags(await self._follower.snapshot())}
        young = [
            entry.path
            async for entry in self._log.storage.list(fmt.PIN_FOLDER)
            if entry.modified_at_millis >= cutoff_millis and fmt.kind_of_file(entry.path) == "pin"
        ]
        for path in [tag.pin_path for tag in named]:
            by = f"tag {names[path]}" if path in names else VERSIONS  # kept versions have tags, too
            self.candidates.keep((path,), by)
            copy = await self._read_pin(path)
            if copy is not None:
                await reach.add_copy(copy, by, reach.tags[path].lacking)
            elif path in names or await self._follower.oldest() == self._first:
                # It raises: the head has the tag, or a kept version has it and no other collection is under way.
                await read_pin(self._log, path)
        for path in sorted(set(young) - reach.tags.keys()):
            copy = await self._read_pin(path)
            if copy is not None:  # else its maker has deleted it meanwhile
                await reach.add_copy(copy, "pins")

    async def _read_pin(self, path: str) -> Copy | None:
        """Read a pin, or return None where it is missing. Raises Corrupt for a damaged one."""
        try:
            return await read_pin(self._log, path)
        except Corrupt:
            if await self._log.storage.exists(path):
                raise
            return None

    async def _mark_writers(self, cutoff_millis: int) -> None:
        """Keep what writers with leases have uploaded. The first call decides which transactions the fence disregards:
        those whose leases have all run out, and that the time in their ids does not protect. Later calls keep the
        uploads of all others, whether their leases have run out meanwhile or not, because their commits may succeed."""
        now = 0
        held = await self._list_writers()
        if self._disregarded is None and held:  # list again, with the time at which the listing began
            now = await read_store_time(self._log.storage, self._identities.uuid4)
            held = await self._list_writers()
        if self._disregarded is None:
            overdue = [
                id
                for id, theirs in sorted(held.items())
                if leases.is_too_old(id, cutoff_millis)
                and all(now >= one.binds_until_millis for one in theirs)
            ]
            self._disregarded = tuple(overdue[:DISREGARDED_MAX])
        kept = {id: theirs for id, theirs in held.items() if id not in self._disregarded}
        self.candidates.keep((one.path for theirs in kept.values() for one in theirs), "leases")
        await self.candidates.keep_uploads(kept, "leases")
        await self.uploads.keep_transactions(kept)

    async def _list_writers(self) -> dict[str, list[Found]]:
        """Return the leases of writers by their transactions."""
        held: dict[str, list[Found]] = {}
        async for found in leases_in(self._log.storage):
            if found.lease is not None and found.lease.transaction_id:
                held.setdefault(found.lease.transaction_id, []).append(found)
        return held

    async def _mark_leases(self, reach: Reach) -> None:
        now = await read_store_time(self._log.storage, self._identities.uuid4)
        async for found in leases_in(self._log.storage):
            is_disregarded = found.lease is not None and found.lease.transaction_id in (
                self._disregarded or ()
            )
            if is_disregarded or now >= found.binds_until_millis:
                continue
            self.candidates.keep((found.path,), "leases")
            if found.damage is not None:
                found.damage.hint = found.damage.hint or (
                    f"it may keep any file, so nothing is deleted until {time_text(found.binds_until_millis)}; delete"
                    " it earlier if no reader or writer holds it"
                )
                raise found.damage
            assert found.lease is not None
            await reach.add_copy(found.lease.copy, "leases")

    async def _mark_saved(self, reach: Reach) -> None:
        """Keep saved transactions that have not expired, and their running roots for other readers."""
        now = await read_store_time(self._log.storage, self._identities.uuid4)
        async with contextlib.aclosing(self._log.storage.list(fmt.DTXN_FOLDER)) as entries:  # type: ignore[type-var]
            paths = [entry.path async for entry in entries]
        for path in sorted(paths):
            try:
                data = await self._log.storage.read(path, size_max=SAVED_SIZE_BYTES_MAX)
                stored = decode_stored(data, path)
            except NotFound:
                continue
            except Corrupt:
                self.candidates.keep((path,), "transactions")  # a person may want to look at it
                continue
            if now >= stored.expire_at_millis + fmt.CLOCK_SKEW_MILLIS_MAX:
                continue
            self.candidates.keep((path,), "transactions")
            # A running root serves other readers alone. Where a part of it is missing, nobody can use it.
            with contextlib.suppress(Corrupt):
                await reach.add_root_file(stored.running_root, "transactions")

    # --- delete

    async def delete(self) -> AsyncIterator[dict[str, FileTotals]]:
        """Abort what is left of the uploads, and then delete what is left of the candidates. Yield what is gone after
        each batch.

        Raises Corrupt (`history_replaced`) where the store was put back to an older state, which may need these files.
        """
        gone: dict[str, FileTotals] = {}
        async for _ in self.uploads.abort(self._store_of, self._follower.verify_head):
            yield dict(gone)
        for url, files in self.candidates.rooted.items():
            async for batch in _batches(files, "data"):
                await self._follower.verify_head()
                await self._store_of(url).delete_many(list(batch))
                _add(gone, "data", batch)
                yield dict(gone)
        for kind in ORDER_OF_DELETION:
            async for batch in _batches(self.candidates.own, kind):
                await self._follower.verify_head()
                await failpoints.reached("collect.deleting")
                await self._log.storage.delete_many(list(batch))
                _add(gone, kind, batch)
                yield dict(sorted(gone.items()))


async def _batches(files: FoundFiles, kind: str) -> AsyncIterator[dict[str, int]]:
    """Yield the files of a kind that are left, with their bytes, DELETED_AT_ONCE at a time."""
    batch: dict[str, int] = {}
    async for part in files.left_of(kind):
        for path, size in part:
            batch[path] = size
            if len(batch) == DELETED_AT_ONCE:
                yield batch
                batch = {}
    if batch:
        yield batch


def _add(gone: dict[str, FileTotals], kind: str, batch: Mapping[str, int]) -> None:
    before = gone.get(kind, FileTotals())
    gone[kind] = FileTotals(
        files=before.files + len(batch), size_bytes=before.size_bytes + sum(batch.values())
    )
