"""The inside of a transaction: the state and calls that its verbs, and the rooms above, may use.

A transaction gathers operations on top of a version that it pins when it begins. Each operation is checked immediately
against this version and the transaction's earlier writes (`execute.Overlay`), so that a mistake surfaces where it is
made. The commit detects conflicts with transactions that committed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from alpheus.rows.file_reader import ListedFile, list_files
from alpheus.rows.repeating import RepeatableIdentities
from alpheus.session.leases import WriterLease, is_unwritable, lease_transaction, take_over_lease
from alpheus.session.reads import Reads
from alpheus.session.session import Session
from alpheus.transactions.terms import TransactionTerms
from alpheus_journal import format as fmt
from alpheus_journal.clock import Identities
from alpheus_journal.errors import Denied, Expired, InvalidInput, NotFound, Unavailable
from alpheus_journal.execute.execute import tables_written
from alpheus_journal.execute.overlay import Overlay
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import answers
from alpheus_journal.model.answers import Loaded, Page, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import Segment, TableDef, TagDef
from alpheus_journal.model.history_rules import check_history_rules
from alpheus_journal.model.operations import (
    AppendFiles,
    Effect,
    Operation,
    OverwriteFiles,
    Read,
    RenameObject,
    Transaction,
    Undrop,
)


class TransactionCore(Reads):
    """The operations and reads of one transaction, and the version on which they rest.

    The reading verbs see the transaction's own writes. `state` is "new", "open" or "over". `repeats` is the version in
    which the id has committed, or None when it has not.
    """

    def __init__(self, session: Session, terms: TransactionTerms, *, blind: bool = False) -> None:
        self.session = session
        self.terms = terms
        self.state = "new"
        self.operations: list[Operation] = []
        self.repeats: int | None = None
        self.id = terms.id or session.identities.uuid7()
        self.identities: Identities = session.identities
        """The source of ids for objects that the transaction creates."""
        if terms.id and not (terms.saved or terms.is_fresh):
            self.identities = RepeatableIdentities(terms.id)
        self._blind = blind
        self._begin: answers.VersionInfo | None = None
        self._overlay: Overlay | None = None
        self._read: dict[Read, None] = {}  # in order, without repetitions
        self._base_sequences: dict[str, int] = {}  # by table id
        self._past: dict[int, answers.At] = {}  # how to read the versions that were asked for
        self.lease: WriterLease | None = None
        self._left_lease_path = ""
        """The path of a lease that another process left, and that this one cannot renew."""
        self._leasing = asyncio.Lock()
        self._has_uploaded = False
        # The same for objects, and for namespaces with everything in them (no name), of tags of chosen objects.
        self._chosen: dict[tuple[int, str, str], answers.At] = {}

    # -- where it stands

    @property
    def begun(self) -> answers.VersionInfo:
        """The version that reads come from, and against which the commit is checked. Raises InvalidInput before the
        begin."""
        if self._begin is None:
            raise InvalidInput(
                f"transaction {self.id} has not begun", hint='use the transaction in a "with" block'
            )
        return self._begin

    @property
    def has_begun(self) -> bool:
        return self._begin is not None

    @property
    def version(self) -> int:
        return self.begun.version

    async def lists_checksums(self) -> bool:
        """Return whether data files that the transaction adds are listed with their checksums."""
        return await self.session.lists_checksums(self.version)

    @property
    def overlay(self) -> Overlay:
        """The begin version with the transaction's own writes on top. Raises InvalidInput before the begin."""
        if self._overlay is None:
            raise InvalidInput(
                f"transaction {self.id} has not begun", hint='use the transaction in a "with" block'
            )
        return self._overlay

    def check_open(self) -> answers.VersionInfo:
        """Return the begin version. Raises InvalidInput before the begin and after the end."""
        begin = self.begun
        if self.state != "open":
            raise InvalidInput(f"transaction {self.id} is over", hint="begin a new transaction")
        return begin

    async def begin(self, version: answers.VersionInfo) -> None:
        """Pin the version, find the isolation, and open the transaction."""
        if self.terms.serializable is None:
            default = await self.session.is_serializable_by_default(version.version)
            self.terms = msgspec.structs.replace(self.terms, serializable=default)
        self._begin = version
        self._overlay = Overlay(
            self.load_past,
            self._page_past,
            self.session.keys,
            self.id,
            begin=version.version,
            read_segments=self._read_segments,
        )
        self.state = "open"

    async def restore(self, saved: Transaction) -> None:
        """Take over the terms, reads and operations that another process saved."""
        self.terms = msgspec.structs.replace(
            self.terms,
            message=saved.message,
            properties=saved.properties,
            serializable=saved.serializable,
            key=saved.key,
            writer=saved.writer,
        )
        self._read = dict.fromkeys(saved.reads)
        for operation in saved.operations:
            await self.apply(operation)
        if saved.lease_path:
            await self.take_over_lease(saved.lease_path)

    def forget_writer(self) -> None:
        """Commit without the idempotent writer of the terms."""
        self.terms = msgspec.structs.replace(self.terms, writer=None)

    def transaction(self) -> Transaction:
        """The transaction that a commit would send now."""
        return Transaction(
            id=self.id,
            begin_version=self.begun.version,
            operations=tuple(self.operations),
            principal=self.session.principal,
            message=self.terms.message,
            properties=self.terms.properties,
            serializable=bool(self.terms.serializable),
            reads=tuple(self._read) if self.terms.serializable else (),
            key=self.terms.key,
            writer=self.terms.writer,
            lease_path=self._left_lease_path if self.lease is None else self.lease.path,
        )

    # -- its files

    async def hold_lease(self) -> None:
        """Take a lease, if there is none, so that collections keep the files of this transaction until its commit,
        however long it takes. Raises what `lease_transaction` raises."""
        async with self._leasing:
            begun = self.check_open()
            if self.lease is None and self.repeats is None:
                is_fresh = not self.terms.id or self.terms.is_fresh
                has_files = self._has_uploaded or bool(tables_written(self.operations))
                lease = await self._take_lease(begun.version, is_first=is_fresh and not has_files)
                if self.state != "open":  # it was ended meanwhile, and nothing else would end the lease
                    await lease.release()
                    self.check_open()
                self.lease = lease

    async def _take_lease(self, begin_version: int, *, is_first: bool) -> WriterLease:
        """Take a lease on the begin version, or on the head where the begin version has expired. Both keep the
        transaction's files."""
        try:
            return await lease_transaction(self.session, self.id, begin_version, is_first=is_first)
        except Expired as error:
            if error.kind == "upload_expired":
                raise
        head = await self.session.resolve(None)
        return await lease_transaction(self.session, self.id, head.version, is_first=is_first)

    async def take_over_lease(self, path: str) -> None:
        """Hold the lease that another process left with this transaction. Without it, when it is gone, the commit is
        judged by the age of the files. A client of a daemon that may not write the storage names the lease in its
        commit and renews nothing."""
        try:
            self.lease = await take_over_lease(self.session, self.id, path)
        except (Denied, Unavailable, InvalidInput) as error:
            if not is_unwritable(error):
                raise
            self._left_lease_path = path

    def note_upload(self) -> None:
        """Note that a file of this transaction is about to be uploaded. A lease that is taken later covers earlier
        files only as far as collections have left them."""
        self._has_uploaded = True

    async def end_lease(self, *, is_over: bool) -> None:
        """End the lease, if there is one. `is_over` says that the transaction has committed or never can; otherwise the
        lease's file stays."""
        lease, self.lease = self.lease, None
        if lease is not None and is_over:
            await lease.release()
        elif lease is not None:
            lease.leave()

    def hand_over_lease(self) -> None:
        """Note that the lease is about to be named to another process, in a commit or a saved transaction. From now on
        only a known outcome deletes its file: without it, a collection could delete files of a commit in flight."""
        if self.lease is not None:
            self.lease.must_stay = True

    def abandon_lease(self) -> None:
        """End the lease in the background. Its file stays where it was handed over."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end_soon()

    # -- reading

    def keep(self, read: Read) -> None:
        """Record a read. The commit of a serializable transaction is checked against its reads."""
        if self.terms.serializable:
            self._read[read] = None

    def note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        """Record the read of a definition or a listing; see `keep`."""
        self.keep(Read(type=type, name=name, prefix=prefix))

    async def load(self, names: list[ObjectName]) -> Loaded:
        """Load definitions, with the transaction's own writes on top."""
        begin = self.check_open()
        for name in names:
            fmt.check_object_name(name, self.session.keys)
        return Loaded(version=begin.version, objects=tuple(await self.overlay.load(names)))

    async def page(self, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str) -> Page:
        """Load one page of names, with the transaction's own writes on top."""
        begin = self.check_open()
        names, more = await self.overlay.list(
            kind, namespace=namespace, prefix=prefix, limit=limit, after=after
        )
        return Page(version=begin.version, names=tuple(names), more=more)

    async def table(self, name: ObjectName) -> TableDef:
        """Load the definition of a native table. Raises NotFound, and InvalidInput (`not_native`)."""
        return await self._table(name)

    async def list_files(self, table: TableDef) -> list[ListedFile]:
        """List the files of a table, those that this transaction wrote included."""
        self.check_open()
        return await list_files(await self.session.data_storage(table), table, self.overlay.segment)

    async def past_version(self, at: answers.At, name: ObjectName) -> int:
        """Return the version that `at` names, for the sake of the object `name`. A reference that counts back starts at
        the transaction's begin version, so that it means the same when the transaction is repeated.

        A tag of chosen objects names the version whose state of the object it holds. Raises NotFound (`no_object`)
        where it does not hold the object, and of a namespace everything.
        """
        if isinstance(at, answers.Back):
            version = self.version + 1 - at.count
            if version >= 0:
                at = version
        found = await self.session.resolve(at)
        if not found.is_chosen:
            self._past[found.version] = found.reference
            return found.version
        assert isinstance(at, answers.Tag)
        version = await self._chosen_version(at.name, name)
        self._chosen[version, name.namespace, name.name] = found.reference
        return version

    async def load_past(
        self, version: int | answers.Tag, names: list[ObjectName]
    ) -> Sequence[StoredObject | None]:
        """Load objects at a version or tag; at one that `past_version` found by a tag, also when expired."""
        at = self._past.get(version, version) if isinstance(version, int) else version
        try:
            return (await self.session.load(at, names)).objects
        except Expired:
            parts: dict[answers.At, list[ObjectName]] = {}
            for name in names:
                chosen = None if isinstance(version, answers.Tag) else self._find_chosen(version, name)
                if chosen is None:
                    raise
                parts.setdefault(chosen, []).append(name)
            found: dict[ObjectName, StoredObject | None] = {}
            for chosen, part in parts.items():
                found.update(zip(part, (await self.session.load(chosen, part)).objects, strict=True))
            return [found[name] for name in names]

    async def base_sequence(self, name: ObjectName, table: TableDef) -> int:
        """Return the newest sequence of the table that this transaction saw and did not write itself
        (`ChangeRows.base_sequence`)."""
        found = self._base_sequences.get(table.id)
        if found is None:
            for operation in reversed(self.operations):
                if isinstance(operation, RenameObject) and operation.new_target == name:
                    name = operation.target
            (stored,) = await self.load_past(self.version, [name])
            begun = decode_definition(name.kind, stored.definition, stored.path) if stored else None
            same = isinstance(begun, TableDef) and begun.id == table.id
            found = begun.sequence if same and isinstance(begun, TableDef) else 0
            self._base_sequences[table.id] = found
        return found

    def _find_chosen(self, version: int, name: ObjectName) -> answers.At | None:
        """Return the tag of chosen objects that has an object of a version, as `past_version` found it."""
        whole = self._chosen.get((version, name.namespace, ""))
        return self._chosen.get((version, name.namespace, name.name), whole)

    async def _chosen_version(self, tag_name: str, name: ObjectName) -> int:
        (stored,) = (await self.session.load(None, [fmt.tag_name(tag_name)])).objects
        tag = None if stored is None else decode_definition(Kind.TAG, stored.definition, stored.path)
        version = tag.version_of(name) if isinstance(tag, TagDef) else None
        is_whole = name.kind is not Kind.NAMESPACE or (
            isinstance(tag, TagDef) and tag.holds_all_of(name.namespace)
        )
        if version is None or not is_whole:
            raise NotFound(
                f"tag {tag_name} of chosen objects does not hold {name}{'' if is_whole else ' with everything in it'}",
                kind="no_object",
                hint="see load() of the tag for what it holds",
            )
        return version

    # -- writing

    async def apply(self, operation: Operation) -> None:
        """Check an operation on top of the earlier ones, then add it to the transaction."""
        self.check_open()
        check_history_rules(operation)
        if not self._blind:
            executed = await self.overlay.execute(operation)
            operation = executed.action.operation or operation  # with the ids of new columns
            if isinstance(operation, Undrop):
                await self._note_returned(executed.action.effects)
        self.operations.append(operation)

    async def apply_segments(
        self, name: ObjectName, table: TableDef, segments: Sequence[Segment], *, replace: bool
    ) -> None:
        """Add the rows of segments to a table, or replace all its rows by them. Without segments to add, do nothing."""
        operation: Operation
        if replace:
            operation = OverwriteFiles(
                namespace=name.namespace,
                name=name.name,
                table_id=table.id,
                segments=tuple(segments),
                data_root=table.data_root,
            )
        elif segments:
            operation = AppendFiles(
                namespace=name.namespace,
                name=name.name,
                table_id=table.id,
                segments=tuple(segments),
                data_root=table.data_root,
            )
        else:
            return
        await self.apply(operation)

    # -- inside

    async def _note_returned(self, effects: Sequence[Effect]) -> None:
        """Remember the sequences of tables that this transaction undropped."""
        for effect in effects:
            if effect.name.kind is Kind.TABLE and effect.path_after:
                _, definition = await self._definition(effect.name)
                assert isinstance(definition, TableDef)
                self._base_sequences[definition.id] = definition.sequence

    def _note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        self.note(type, name, prefix)

    async def _objects(self, names: list[ObjectName]) -> Loaded:
        return await self.load(names)

    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        return await self.page(kind, namespace=namespace, prefix=prefix, limit=limit, after=after)

    async def _read_segments(self, segments: Sequence[Segment]) -> Sequence[bytes]:
        size_max = max(segment.segment_size_bytes for segment in segments)
        storage = await self.session.storage()
        contents = await storage.read_many([segment.path for segment in segments], size_max=size_max)
        return [contents[segment.path] for segment in segments]

    async def _page_past(
        self, at: answers.At, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        chosen = self._chosen.get((at, namespace, "")) if isinstance(at, int) else None
        if isinstance(at, int):
            at = self._past.get(at, at)

        async def load(at: answers.At) -> Page:
            return await self.session.page(
                at, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
            )

        try:
            return await load(at)
        except Expired:
            if chosen is None:
                raise
            return await load(chosen)
