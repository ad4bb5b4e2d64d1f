"""Administration of a catalog: checks, expiry and collection, checkpoints, leases, subscriptions, the symbol list."""

from __future__ import annotations

import msgspec

from alpheus.admin import retention
from alpheus.admin.data_check import compare_files
from alpheus.admin.symbols import AsyncSymbols, checkpoint
from alpheus.admin.tags import pin_fields
from alpheus.events.events import check, parse_bound
from alpheus.events.subscriptions import AsyncSubscriptions
from alpheus.model_conversions import collection_of, expiry_of
from alpheus.models import Checkpoint, CheckReport, Collection, Expiry, Lease, Upgraded
from alpheus.session.arguments import Span, span_millis
from alpheus.session.leases import list_leases
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.errors import AlreadyExists, Conflict, InvalidInput
from alpheus_journal.model.expiry_rules import ExpiryRules
from alpheus_journal.model.operations import CreateTag, UpgradeCatalog


class AsyncAdmin:
    """Administration of a catalog: checks, checkpoints, leases, subscriptions, the symbol list."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """Durable subscriptions: `list`, `load`, `create`, `delete`, `reset`."""
        return AsyncSubscriptions(self._session)

    @property
    def symbols(self) -> AsyncSymbols:
        """The list of all live objects' names: `list`, `reload`, `check`, `compact`."""
        return AsyncSymbols(self._session)

    async def checkpoint(self, verify: bool = False) -> Checkpoint:
        """Store what a daemon holds in memory, so that its next start maps a file instead of reading the tree. With
        `verify`, compare the memory with the tree first, however large the tree is."""
        return await checkpoint(self._session, verify)

    async def check(
        self, after: int | None = None, footers: bool = False, values: bool = False
    ) -> CheckReport:
        """Verify every invariant of the stored catalog. With `after`, check only versions above it.

        By default the check of a data file covers only its existence and size.

        - `footers`: also read the Parquet footer of each data file of the head, and compare it with the manifest: rows,
          columns, NULLs and bounds.
        - `values`: also read the whole files. This finds damaged pages: by checksums where the writer stored them, as
          this library and Spark do, otherwise only if a page cannot be decoded. It also finds wrong counts of NULLs and
          NaNs and wrong bounds. Of values in lists and maps it only checks that they can be read.

        Neither finds a file that was replaced by another with the same size, footer and statistics. This client reads
        the files itself, with a daemon or without, and raises InvalidInput (`storage_unreachable`) when it cannot.
        """
        if footers or values:
            await self._session.storage()  # fail here rather than after the long part
        report = await check(self._session, parse_bound("after", after))
        if not (footers or values):
            return report
        known = frozenset(finding.path for finding in report.findings)
        compared = await compare_files(self._session, values=values, known=known)
        return msgspec.structs.replace(
            report, findings=(*report.findings, *compared.findings), files=compared.files
        )

    async def upgrade(self, dry_run: bool = False) -> Upgraded:
        """Take the catalog to the newest revision of its format that this program knows.

        From the commit on, programs of earlier releases refuse the catalog, to read and to write, with the error
        `newer_format`: upgrade them first. No stored file is rewritten, and no catalog goes back. Repeating the call is
        safe. Through a daemon, the daemon must know the revision, too. With `dry_run` nothing is committed.

        The same commit gives the version before it a tag, `before-revision-2`. Delete the tag when nobody needs to look
        back. Raises AlreadyExists (`tag_exists`) where a tag of that name is another's.
        """
        session = self._session
        info = await session.info()
        before, newest = info.definition.format_revision, fmt.FORMAT_REVISION
        tag = f"before-revision-{newest}"
        if dry_run or before >= newest:
            return Upgraded(before=before, revision=max(before, newest), tag="" if before >= newest else tag)
        named = CreateTag(
            name=tag,
            tag_id=session.identities.uuid4(),
            message=f"the last version in revision {before} of the format",
            **await pin_fields(session, info.version),
        )
        try:
            commit = await session.commit_operations((UpgradeCatalog(revision=newest), named), info.version)
        except (AlreadyExists, Conflict):  # another upgrade was faster
            if (await session.info()).definition.format_revision < newest:
                raise
            return Upgraded(before=newest, revision=newest)
        return Upgraded(before=before, revision=newest, commit=commit, tag=tag)

    async def expire(
        self,
        older_than: Span = "7d",
        keep: int = 100,
        pipeline_hold: Span = "30d",
        dry_run: bool = False,
    ) -> Expiry:
        """Let old versions expire, the lowest first. They can no longer be read by their number or time, and their
        events leave the log. Their files stay until `collect` deletes them.

        - `older_than`: only versions that were replaced by a newer one before this time expire.
        - `keep`: the newest versions never expire, whatever their age. The head never expires.
        - `pipeline_hold`: a job of a pipeline holds back versions that it has not read, but not for longer than this.
        - `dry_run`: change nothing, and return what would happen.

        Versions that a durable subscription in use or a saved transaction needs stay, too. So do versions that a table
        keeps for longer: by its properties `history.expire.max-snapshot-age-ms` and
        `history.expire.min-snapshots-to-keep`, or else by those of its namespace. A tag or a lease keeps its own
        version readable after the version has expired. Time spans are texts such as "7d" or "12h", timedeltas, or
        seconds. Repeating the call is safe. Raises InvalidInput (`bad_argument`; `upgrade_needed` in a catalog of
        revision 1), Corrupt where a subscription, pipeline, namespace or table that may need versions cannot be read
        (no version expires then), and Exhausted (`already_running`) while the daemon expires or collects for somebody
        else.
        """
        if isinstance(keep, bool) or not isinstance(keep, int):
            raise InvalidInput(
                f"keep={keep!r} is not a number of versions", kind="bad_argument", hint="give 1 or more"
            )
        rules = ExpiryRules(
            older_than_millis=span_millis("older_than", older_than),
            keep_versions=keep,
            pipeline_hold_millis=span_millis("pipeline_hold", pipeline_hold),
        )
        return expiry_of(await retention.expire(self._session, rules, dry_run=dry_run), dry_run=dry_run)

    async def collect(
        self,
        minimum_age: Span = "72h",
        dry_run: bool = False,
        allow_short: bool = False,
    ) -> Collection:
        """Delete files that nothing needs: no kept version, tag, lease, or saved transaction. These are files of
        expired versions, and files of writes that failed. Data files of tables whose own rules of history are short go
        before the versions that list them; see `Collection.earlier`.

        - `minimum_age`: younger files stay, and files of writes that hold a lease. It must be longer than the longest
          write without a lease takes, from its first uploaded file to its commit: a write that takes longer is refused
          (`upload_expired`) and must run again.
        - `dry_run`: delete nothing, and return what would happen.
        - `allow_short`: allow a minimum age below an hour. New transactions with new files are then refused for two
          minutes after the collection, so use it only when nobody writes.

        Repeating the call is safe. Raises InvalidInput (`bad_argument`; `minimum_age_short`; `upgrade_needed` in a
        catalog of revision 1), Corrupt where a file that may need others cannot be read (nothing is deleted then), and
        Exhausted (`already_running`) while the daemon expires or collects for somebody else.
        """
        millis = span_millis("minimum_age", minimum_age)
        retention.check_short_age(millis, allow_short=allow_short)
        return collection_of(await retention.collect(self._session, millis, dry_run=dry_run), dry_run=dry_run)

    async def leases(self) -> list[Lease]:
        """Return the leases of readers, by version, including expired and damaged ones."""
        return await list_leases(self._session)
