"""A transaction's view of its own writes."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, Expired, InvalidInput, NotFound
from alpheus_journal.execute.execute import execute
from alpheus_journal.execute.prefetch import fetch
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Damage, Page, StoredObject, Tag
from alpheus_journal.model.definitions import Segment, TableDef, TagDef
from alpheus_journal.model.operations import Operation
from alpheus_journal.tables.manifest import is_content_of, open_segment
from alpheus_journal.tables.manifest_merge import Content
from alpheus_journal.workspace.checks import no_namespace
from alpheus_journal.workspace.context import Executed, ExecutionContext
from alpheus_journal.workspace.workspace import Unfetched, Workspace, decode_readable

list_ = list  # `Overlay.list` hides the type inside its class

LoadAt = Callable[[int | Tag, list_[ObjectName]], Awaitable[Sequence[StoredObject | None]]]
ListAt = Callable[..., Awaitable[Page]]
ReadSegments = Callable[[Sequence[Segment]], Awaitable[Sequence[bytes]]]


class Overlay:
    """A catalog at one version with operations executed on top, for reading inside a transaction.

    - `load(version, names)` and `list(version, kind, ...)` read like `Access`, at `begin` or at an earlier version
      that an operation names. `load` also reads at a tag.
    - `read_segments(segments)` returns the stored bytes of manifest segments. Only changes of rows need it.

    Two checks are left to the commit: that data files match their manifest segments, and that an undropped object does
    not exist under another name.
    """

    def __init__(
        self,
        load: LoadAt,
        list: ListAt,
        keys: fmt.Keys,
        transaction_id: str,
        *,
        begin: int,
        read_segments: ReadSegments | None = None,
    ) -> None:
        self._load = load
        self._read_segments = read_segments
        self._made: dict[str, bytes] = {}
        self._list = list
        self._begin = begin
        self._base = Workspace()
        self._mine = self._base.fork()
        self._keys = keys
        self._context = ExecutionContext(
            keys, transaction_id, lambda: str(uuid.uuid4()), is_trial=True, records=True
        )

    async def execute(self, operation: Operation) -> Executed:
        """Execute an operation on top. Raises the error of a commit at this version, and then changes nothing.

        The caller must commit `action.operation`, which has the ids of new columns and the counters of undropped
        tables; the transaction's files follow them.
        """
        drops: dict[str, int] = {}
        for name in self._mine.changed():
            drops[name.namespace] = drops.get(name.namespace, 0) + 1
        source = _Version(self, self._begin)
        await fetch(self._base, [operation], source, _History(self), self._keys, top=self._mine, drops=drops)
        while True:
            fork = self._mine.fork()
            try:
                executed = execute(fork, operation, self._context)
                break
            except Unfetched as needed:
                await self._fetch_segments(needed.segments)
        self._mine.absorb(fork)
        for made in executed.made:
            self._made[made.segment.path] = made.data
        return executed

    def segment(self, path: str) -> bytes | None:
        """Return the bytes of a manifest segment that this transaction made, by removing files from another one.

        None means that the segment is on storage.
        """
        return self._made.get(path)

    async def _fetch_segments(self, needed: Sequence[tuple[str, Segment]]) -> None:
        assert self._read_segments is not None, "this overlay reads no manifest segments"
        segments = [segment for _, segment in needed]
        for (table_id, segment), data in zip(needed, await self._read_segments(segments), strict=True):
            if not is_content_of(segment, data):
                raise Corrupt(
                    f"manifest segment {segment.path} differs from its recorded SHA-256",
                    kind="corrupt_manifest",
                    path=segment.path,
                )
            batch = open_segment(data, segment.path, table_id=table_id)
            self._base.add_segment(segment.path, Content(batch, segment.path, table_id))

    async def load(self, names: Sequence[ObjectName]) -> list_[StoredObject | None]:
        found = await self._find(names)
        for stored in found:
            error = stored.error() if stored is not None else None
            if error is not None:
                raise error
        return found

    async def list(
        self, kind: Kind, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> tuple[list_[str], bool]:
        """Return names in key order, with the transaction's creations and drops, and whether there are more."""
        mine = {
            (name.namespace if kind is Kind.NAMESPACE else name.name): stored is not None
            for name, stored in self._mine.changed().items()
            if name.kind is kind and (kind is Kind.NAMESPACE or name.namespace == namespace)
        }
        if limit < 0:
            raise InvalidInput(f"a limit of {limit} is negative")
        if kind in (Kind.TABLE, Kind.VIEW):
            parent = fmt.check_object_name(fmt.namespace_name(namespace), self._keys)
            if (await self._find([parent]))[0] is None:
                raise no_namespace(parent)
        # This many names suffice: at most those that this transaction dropped are left out.
        wanted = limit + len(mine) if limit else 0
        base: list_[str] = []
        more = not self._created_here(fmt.namespace_name(namespace)) or kind is Kind.NAMESPACE
        position = after
        while more and (not wanted or len(base) < wanted):
            page = await self._list(
                self._begin,
                kind,
                namespace=namespace,
                prefix=prefix,
                limit=wanted and wanted - len(base),
                after=position,
            )
            base.extend(page.names)
            more = page.more
            position = page.names[-1] if page.names else position
        created = {name for name, lives in mine.items() if lives and name.startswith(prefix) and name > after}
        names = sorted({name for name in base if mine.get(name, True)} | created)
        if more:
            names = [name for name in names if name <= base[-1]]
        return (names[:limit], True) if limit and len(names) > limit else (names, more)

    def _created_here(self, name: ObjectName) -> bool:
        return name in self._mine.changed() and name in self._base.changed() and self._base.get(name) is None

    async def _find(self, names: Sequence[ObjectName]) -> list_[StoredObject | None]:
        """Return objects like `load`, but with damaged objects instead of an error."""
        missing = [name for name in names if not self._mine.has(name)]
        if missing:
            loaded = await self._load_all(self._begin, missing)
            for name, stored in zip(missing, loaded, strict=True):
                self._base.add_object(name, stored)
        return [self._mine.get(name) for name in names]

    async def _load_all(
        self, version: int | Tag, names: Sequence[ObjectName]
    ) -> Sequence[StoredObject | None]:
        """Load objects, damaged ones too, because an operation may drop a damaged object."""
        try:
            return await self._load(version, list_(names))
        except Corrupt as error:
            if not error.path.startswith("def/"):
                raise
            if len(names) == 1:
                return [StoredObject(error.path, b"", Damage(error.kind, error.message, error.hint))]
        half = len(names) // 2
        first = await self._load_all(version, names[:half])
        return [*first, *await self._load_all(version, names[half:])]


class _Version:
    """One version, as a `prefetch.Source`."""

    def __init__(self, overlay: Overlay, version: int) -> None:
        self._overlay = overlay
        self._version = version

    async def load(self, names: Sequence[ObjectName]) -> Sequence[StoredObject | None]:
        return await self._overlay._load_all(self._version, names)

    async def names(
        self, kind: Kind, *, namespace: str = "", prefix: str = "", limit: int = 0, after: str = ""
    ) -> Page:
        return await self._overlay._list(
            self._version, kind, namespace=namespace, prefix=prefix, limit=limit, after=after
        )


class _History:
    """The versions up to the one that the transaction began at, as a `prefetch.History`."""

    decides_counters = True

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self.version = overlay._begin

    async def at(self, version: int, name: ObjectName) -> _Version:
        return _Version(self._overlay, version)

    async def changed_since(
        self, version: int, kinds: frozenset[Kind], name: ObjectName
    ) -> AsyncIterator[tuple[ObjectName, StoredObject]]:
        nothing: tuple[tuple[ObjectName, StoredObject], ...] = ()  # only the trees know the changes
        for found in nothing:
            yield found

    def actions_since(self, version: int) -> None:
        return None

    async def tagged_since(self, version: int, names: Sequence[ObjectName]) -> AsyncGenerator[TableDef, None]:
        now, after, more = _Version(self._overlay, self.version), "", True
        while more:
            page = await now.names(Kind.TAG, after=after)
            after, more = (page.names[-1], page.more) if page.names else ("", False)
            tags = [fmt.tag_name(name) for name in page.names]
            for tag, stored_tag in zip(tags, await now.load(tags), strict=True):
                definition = decode_readable(tag, stored_tag) if stored_tag is not None else None
                if not isinstance(definition, TagDef):
                    continue
                if definition.version <= version and not definition.is_chosen:
                    continue
                # The tag's pin may be damaged or gone.
                with contextlib.suppress(Corrupt, Expired, InvalidInput, NotFound):
                    found = await self._overlay._load_all(Tag(tag.name), names)
                    for name, stored in zip(names, found, strict=True):
                        table = decode_readable(name, stored) if stored is not None else None
                        if isinstance(table, TableDef):
                            yield table

    async def stored(self, paths: Mapping[str, Kind]) -> Mapping[str, StoredObject]:
        raise AssertionError("actions are not known here")
