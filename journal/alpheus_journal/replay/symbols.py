"""The symbol list: kind, namespace and name of every live object, without definitions. Pure.

The list consists of a sorted base of keys and of a journal of the keys that were added and removed since. The base is
shared with the flat table of the state if there is one. The journal goes by version and never by clock. Past
`journal_max` entries it is compacted into a new base in a thread. Entries of recent versions are kept, and undoing them
answers for earlier versions.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from alpheus_journal import failpoints
from alpheus_journal import format as fmt
from alpheus_journal.errors import Corrupt, InvalidInput
from alpheus_journal.format import Key, Kind, ObjectName
from alpheus_journal.model.event_filter import pattern_of
from alpheus_journal.replay.flat import (
    Group,
    KeyRows,
    column_of,
    groups,
    join_columns,
    merge_plan,
    pack,
    pack_name,
    pieces,
    runs,
    unpack,
)
from alpheus_journal.tree.reader import KeyChange

JOURNAL_MAX_DEFAULT = 500
JITTER = 0.1
"""The share by which the threshold varies either way, so that daemons that follow one log compact at different
times."""
HISTORY_MAX = 100_000
"""The journal entries that are kept to answer for earlier versions."""
PAGE_SYMBOLS_MAX = 10_000
PATTERN_LENGTH_MAX = 4096


class SymbolGroup(msgspec.Struct, frozen=True):
    """Names of one kind in key order, within one namespace if the kind has namespaces."""

    kind: Kind
    namespace: str
    names: tuple[str, ...]


class SymbolPage(msgspec.Struct, frozen=True, kw_only=True):
    """Symbols in key order. Ask again at `version` with `cursor` for the next page; an empty cursor ends the list."""

    version: int
    groups: tuple[SymbolGroup, ...]
    cursor: str = ""

    def __len__(self) -> int:
        return sum(len(group.names) for group in self.groups)


class SymbolQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on symbols, all of which have to hold.

    * `kind`: None means every kind.
    * `namespace`: the namespace itself and the objects in it.
    * `prefix`, `pattern`: these match full names ("namespace.name"). In a pattern `*` is any text, `?` one character.
    * `limit`: the size of one page; 0 means the largest size.
    * `cursor`: the cursor of the page before.
    """

    kind: Kind | None = None
    namespace: str = ""
    prefix: str = ""
    pattern: str = ""
    limit: int = 0
    cursor: str = ""

    def check(self) -> SymbolQuery:
        """Return the query itself. Raises InvalidInput for a query without a possible answer."""
        if self.kind is Kind.CATALOG:
            raise InvalidInput("there is one catalog; it is not listed")
        if self.limit < 0:
            raise InvalidInput(f"the limit {self.limit} is negative")
        for text in (self.namespace, self.prefix, self.pattern):
            if len(text) > PATTERN_LENGTH_MAX or fmt.has_surrogate(text):
                raise InvalidInput(f"{text[:80]!r} cannot be part of a name")
        try:
            unpack(self._cursor())
        except Corrupt:
            raise InvalidInput(
                f"{self.cursor[:80]!r} is not the cursor of a page", kind="bad_token"
            ) from None
        return self

    def after(self, cursor: str) -> SymbolQuery:
        """Return the query of the next page."""
        return msgspec.structs.replace(self, cursor=cursor)

    def _cursor(self) -> bytes:
        return self.cursor.encode("utf-8", "replace")

    @property
    def size(self) -> int:
        return min(self.limit or PAGE_SYMBOLS_MAX, PAGE_SYMBOLS_MAX)

    def ranges(self, keys: fmt.Keys) -> list[tuple[Key, Key]]:
        """Return half-open key ranges, ascending, that hold every wanted symbol after the cursor.

        The ranges may hold other symbols, too.
        """
        literal = max(self.prefix, re.split(r"[*?]", self.pattern, maxsplit=1)[0], key=len)
        found: list[tuple[Key, Key]] = []
        for kind in fmt.TYPE_IDS if self.kind is None else [self.kind]:
            if kind not in (Kind.TABLE, Kind.VIEW):
                if not self.namespace or kind is Kind.NAMESPACE:
                    found.append(keys.bounds(kind, prefix=max(literal, self.namespace, key=len)))
                continue
            if self.namespace:
                within = f"{self.namespace}."
                rest = literal.removeprefix(within) if literal.startswith(within) else ""
                found += keys.ranges(kind, self.namespace, rest)
                continue
            found.append((Key(fmt.TYPE_IDS[kind] + literal), keys.bounds(kind, prefix=literal)[1]))
            for dot in (place for place, character in enumerate(literal) if character == "." and place):
                if len(literal[:dot].encode()) <= keys.namespace_size_max * 4:
                    found += keys.ranges(kind, literal[:dot], literal[dot + 1 :])
        start = Key(unpack(self._cursor()) + "\0") if self.cursor else Key("")
        return _merge_ranges((max(low, start), high) for low, high in found)

    def select(self, group: Group) -> list[str]:
        """Return the names of a group that the query wants, in order."""
        kind, namespace, names, _ = group
        if self.kind is not None and kind is not self.kind:
            return []
        if self.namespace:
            if kind is Kind.NAMESPACE:
                names = [name for name in names if name == self.namespace]
            elif namespace != self.namespace:
                return []
        within = f"{namespace}." if namespace else ""
        if self.prefix and not within.startswith(self.prefix):
            names = [name for name in names if (within + name).startswith(self.prefix)]
        if self.pattern:
            matches = pattern_of(self.pattern).fullmatch
            names = [name for name in names if matches(within + name)]
        return names


def _merge_ranges(found: Iterable[tuple[Key, Key]]) -> list[tuple[Key, Key]]:
    """Sort ranges, unite those that overlap, and leave out empty ones."""
    ranges: list[tuple[Key, Key]] = []
    for low, high in sorted(found):
        if low >= high:
            continue
        if ranges and low <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return ranges


class Gathering:
    """Fills a page from groups in key order."""

    def __init__(self, query: SymbolQuery, keys: fmt.Keys) -> None:
        self._query = query
        self._keys = keys
        self._groups: list[tuple[Kind, str, list[str]]] = []
        self._left = query.size
        self._last: tuple[ObjectName, bytes] | None = None
        self.is_over = False
        """Whether more was found than the page holds."""

    def add(self, found: Iterable[Group]) -> None:
        for group in found:
            kind, namespace, _, packed = group
            names = self._query.select(group)
            if len(names) > self._left:
                self.is_over = True
                names = names[: self._left]
            if names:
                self._left -= len(names)
                if self._groups and self._groups[-1][:2] == (kind, namespace):
                    self._groups[-1][2].extend(names)
                else:
                    self._groups.append((kind, namespace, list(names)))
                of_namespace = kind is Kind.NAMESPACE
                last = ObjectName(
                    kind, names[-1] if of_namespace else namespace, "" if of_namespace else names[-1]
                )
                self._last = (last, packed)
            if self.is_over:
                return

    def page(self, version: int) -> SymbolPage:
        cursor = ""
        if self.is_over and self._last is not None:
            name, packed = self._last
            cursor = (packed or pack_name(self._keys, name)).decode()
        return SymbolPage(
            version=version,
            groups=tuple(
                SymbolGroup(kind, namespace, tuple(names)) for kind, namespace, names in self._groups
            ),
            cursor=cursor,
        )


class SymbolView:
    """The symbols of one version, immutable. `rows` is the base."""

    def __init__(self, keys: fmt.Keys, version: int, rows: KeyRows, changes: dict[bytes, bool]) -> None:
        self.keys = keys
        self.version = version
        self.rows = rows
        self._changes = changes
        self._order = sorted(changes)

    def __len__(self) -> int:
        """Count the symbols, with one lookup for each journal entry."""
        return len(self.rows) + sum(
            lives - (self.rows.find(key) >= 0) for key, lives in self._changes.items()
        )

    def groups(self, low: Key, high: Key | None, *, at_once: int = 8192) -> Iterator[Group]:
        """Yield the names of a half-open range of keys, in order. A `high` of None means the end."""
        found = runs(
            self.rows,
            self._order,
            self._changes.__getitem__,
            pack(low),
            b"\xff" if high is None else pack(high),
        )
        return groups(self.keys, self.rows, found, at_once=at_once)

    def list(self, query: SymbolQuery) -> SymbolPage:
        gathering = Gathering(query, self.keys)
        for low, high in query.ranges(self.keys):
            gathering.add(self.groups(low, high, at_once=min(8192, query.size + 1)))
            if gathering.is_over:
                break
        return gathering.page(self.version)

    def between(self, low: Key, high: Key | None) -> Iterator[Key]:
        """Yield the keys of a half-open range, in order. A `high` of None means the end."""
        found = runs(
            self.rows,
            self._order,
            self._changes.__getitem__,
            pack(low),
            b"\xff" if high is None else pack(high),
        )
        for run in found:
            if isinstance(run, bytes):
                yield unpack(run)
                continue
            for start in range(run[0], run[1], 1024):
                for packed in self.rows.slice(start, min(start + 1024, run[1])):
                    yield unpack(packed)


class Compaction(msgspec.Struct, frozen=True):
    """A base and the journal entries that go into it. `run` may be called in another thread."""

    rows: KeyRows
    changes: dict[bytes, bool]

    def run(self) -> KeyRows:
        failpoints.hit("symbols.compact")
        changes = sorted(self.changes.items())
        plan = merge_plan(self.rows, changes)
        added = column_of(key for key, lives in changes if lives)
        rows = KeyRows(join_columns([*pieces(self.rows.array, added, plan)]))
        failpoints.hit("symbols.compacted")
        return rows


class Symbols:
    """The list of the newest version, and of earlier versions as far back as the kept entries reach.

    Not safe for use from several threads. `changes` are the differences between `rows` and this version: packed keys
    with whether they exist. `jitter` returns a number from -1 to 1, once for each compaction.
    """

    def __init__(
        self,
        keys: fmt.Keys,
        rows: KeyRows,
        version: int,
        *,
        changes: Iterable[tuple[bytes, bool]] = (),
        journal_max: int = JOURNAL_MAX_DEFAULT,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.keys = keys
        self.version = version
        self._rows = rows
        self._pending: dict[bytes, bool] = {
            key: lives for key, lives in changes if lives != (rows.find(key) >= 0)
        }
        self._history: deque[tuple[int, bytes, bool]] = deque()
        self._oldest = version  # the oldest version that can be listed
        self._journal_max = journal_max
        self._jitter = jitter
        self._due: int | None = None
        self._view: SymbolView | None = None
        self.journal_length = len(self._pending)
        self.compactions = 0
        self.failures = 0
        self.last_failure = ""

    @property
    def wants_compaction(self) -> bool:
        if self.journal_length <= self._journal_max * (1 - JITTER):
            return False
        if self._due is None:
            self._due = max(1, round(self._journal_max * (1 + JITTER * self._jitter())))
        return self.journal_length > self._due

    @property
    def oldest(self) -> int:
        """The oldest version that `view` can list."""
        return self._oldest

    def apply(self, version: int, changes: Sequence[KeyChange]) -> None:
        """Move to the next version. `changes` is its structural diff."""
        assert version == self.version + 1, "versions come in order"
        for key, before, after in changes:
            if (before is None) != (after is None):
                packed, lives = pack(key), before is None
                self._pending[packed] = lives
                self._history.append((version, packed, lives))
                self.journal_length += 1
        while len(self._history) > HISTORY_MAX:
            self._oldest = self._history.popleft()[0]
        while self._history and self._history[0][0] <= self._oldest:
            self._history.popleft()
        self.version = version
        self._view = None

    def view(self, version: int | None = None) -> SymbolView | None:
        """Return the list at a version (None means the newest), or None when memory does not reach back that far."""
        if version is None or version == self.version:
            if self._view is None:
                self._view = SymbolView(self.keys, self.version, self._rows, dict(self._pending))
            return self._view
        if not self._oldest <= version < self.version:
            return None
        changes = dict(self._pending)
        for at, packed, lives in reversed(self._history):
            if at <= version:
                break
            changes[packed] = not lives
        return SymbolView(self.keys, version, self._rows, changes)

    # --- compaction

    def compaction(self) -> Compaction:
        """Return a compaction to run. The list may move on meanwhile."""
        return Compaction(self._rows, dict(self._pending))

    def adopt(self, done: Compaction, rows: KeyRows) -> bool:
        """Take the base that `done` made, in one step. Return False, and do nothing, if the base changed meanwhile."""
        if done.rows is not self._rows:
            return False
        self._rows = rows
        # Entries that did not change since are part of the base now. The others are still changes to it.
        self._settle(
            {key: lives for key, lives in self._pending.items() if done.changes.get(key) is not lives}
        )
        self.compactions += 1
        return True

    @property
    def base(self) -> KeyRows:
        return self._rows

    def share(self, rows: KeyRows, changes: Iterable[tuple[bytes, bool]]) -> None:
        """Take another base in one step. `changes` are its differences to this version; see the constructor."""
        self._rows = rows
        self._settle({key: lives for key, lives in changes if lives != (rows.find(key) >= 0)})

    def _settle(self, pending: dict[bytes, bool]) -> None:
        self._pending = pending
        self.journal_length = len(pending)
        self._due = None
        self._view = None

    def failed(self, reason: str) -> None:
        """Record that a compaction failed. The old base and its journal stay.

        The next attempt waits for another `journal_max` entries.
        """
        self.failures += 1
        self.last_failure = reason
        self._due = self.journal_length + self._journal_max

    def succeed(self, other: Symbols) -> None:
        """Take the place of another list, and continue its counters."""
        self.compactions, self.failures = other.compactions, other.failures
        self.last_failure = other.last_failure


# --- drift -----------------------------------------------------------------------------------------


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between memory and the tree of one version.

    Names at most `DRIFT_NAMES_MAX` objects of each sort. The counts are complete.
    """

    version: int
    checked: int
    """The objects of the tree that were compared."""
    sampled: bool
    missing: tuple[ObjectName, ...] = ()
    """Objects that are in the tree but not in memory."""
    surplus: tuple[ObjectName, ...] = ()
    """Objects that are in memory but not in the tree."""
    changed: tuple[ObjectName, ...] = ()
    """Objects that have another definition in memory than in the tree."""
    differences: int = 0

    def text(self) -> str:
        parts = []
        for what, names in (("missing", self.missing), ("surplus", self.surplus), ("changed", self.changed)):
            if names:
                parts.append(f"{what}: {', '.join(map(str, names[:5]))}" + (" …" if len(names) > 5 else ""))
        return "; ".join(parts) or "nothing differs"


DRIFT_NAMES_MAX = 1000


class Comparison:
    """Gathers differences range by range."""

    def __init__(self, keys: fmt.Keys) -> None:
        self._keys = keys
        self._found: tuple[list[ObjectName], list[ObjectName], list[ObjectName]] = ([], [], [])
        self.checked = 0
        self.differences = 0

    def add(self, truth: Sequence[tuple[Key, str]], held: Sequence[tuple[Key, str | None]]) -> None:
        """Compare one key range of the tree with memory. Where a path in memory is None, only the keys are compared."""
        self.checked += len(truth)
        if len(truth) == len(held) and all(
            key == other and path in (None, there)
            for (key, there), (other, path) in zip(truth, held, strict=True)
        ):
            return
        there, here = dict(truth), dict(held)
        for key in sorted(there.keys() | here.keys()):
            if key not in here:
                self._note(0, key)
            elif key not in there:
                self._note(1, key)
            elif here[key] is not None and here[key] != there[key]:
                self._note(2, key)

    def _note(self, sort: int, key: Key) -> None:
        self.differences += 1
        if len(self._found[sort]) < DRIFT_NAMES_MAX:
            self._found[sort].append(self._keys.parse(key))

    def drift(self, version: int, *, sampled: bool) -> Drift:
        missing, surplus, changed = map(tuple, self._found)
        return Drift(
            version=version,
            checked=self.checked,
            sampled=sampled,
            missing=missing,
            surplus=surplus,
            changed=changed,
            differences=self.differences,
        )
