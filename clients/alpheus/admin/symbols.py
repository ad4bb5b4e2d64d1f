"""The symbol list for users: the names of all live objects, and the maintenance of the list."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from alpheus.models import Checkpoint, Symbol, SymbolDrift, SymbolsInfo, time_of
from alpheus.session.arguments import When, check_limit, parse_when
from alpheus.session.session import Session
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Pinned, Tag
from alpheus_journal.replay import loader as replay
from alpheus_journal.replay import symbols

_KINDS = {kind.label: kind for kind in Kind if kind is not Kind.CATALOG}


def _check_text(what: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{what}={value!r} is not text")
    return value


def _parse_kind(label: object) -> Kind | None:
    if label is None:
        return None
    if not isinstance(label, str) or label not in _KINDS:
        raise InvalidInput(f"there is no kind {label!r}", hint=f"use one of {', '.join(sorted(_KINDS))}")
    return _KINDS[label]


def _symbol(name: ObjectName) -> Symbol:
    if name.kind is Kind.NAMESPACE:
        return Symbol(name.kind.label, "", name.namespace)
    return Symbol(name.kind.label, name.namespace, name.name)


def _symbols(names: Iterable[ObjectName]) -> tuple[Symbol, ...]:
    return tuple(_symbol(name) for name in names)


def _info(value: replay.SymbolsInfo) -> SymbolsInfo:
    return SymbolsInfo(
        version=value.version,
        symbols=value.symbols,
        journal_length=value.journal_length,
        compactions=value.compactions,
        failures=value.failures,
        last_failure=value.last_failure,
    )


async def checkpoint(session: Session, verify: bool) -> Checkpoint:
    value = await session.call("checkpoint", lambda: session.access.checkpoint(verify=bool(verify)))
    return Checkpoint(
        version=value.version,
        path=value.path,
        objects=value.objects,
        size_bytes=value.size_bytes,
        created_at=time_of(value.created_at_millis),
        deleted=value.deleted,
    )


class AsyncSymbols:
    """The list of all live objects' names, and its maintenance."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self,
        kind: str | None = None,
        namespace: str | None = None,
        prefix: str = "",
        pattern: str = "",
        at: When = None,
        limit: int | None = None,
    ) -> builtins.list[Symbol]:
        """Return names in key order, all at one version.

        - `kind`: "table" and so on; None means all kinds.
        - `namespace`: the namespace itself and everything in it.
        - `prefix`, `pattern`: of the full name, "namespace.name". In a pattern `*` stands for any text and `?` for one
          character.
        """
        check_limit(limit)
        query = symbols.SymbolQuery(
            kind=_parse_kind(kind),
            namespace=_check_text("namespace", namespace),
            prefix=_check_text("prefix", prefix),
            pattern=_check_text("pattern", pattern),
            limit=min(limit or symbols.PAGE_SYMBOLS_MAX, symbols.PAGE_SYMBOLS_MAX),
        ).check()
        reference = parse_when(at)
        if isinstance(reference, Tag):
            reference = (await self._session.resolve(reference)).reference
        found: list[Symbol] = []
        while True:
            page = await self._page(reference, query)
            for group in page.groups:
                found += [Symbol(group.kind.label, group.namespace, name) for name in group.names]
            if not page.cursor or (limit is not None and len(found) >= limit):
                return found[:limit]
            # The first answer fixed the version, so that all pages agree.
            reference = reference if isinstance(reference, Pinned) else page.version
            query = query.after(page.cursor)

    async def _page(self, at: At, query: symbols.SymbolQuery) -> symbols.SymbolPage:
        return await self._session.call("list symbols", lambda: self._session.access.symbols(at, query))

    async def reload(self) -> SymbolsInfo:
        """Rebuild the list from the tree of the head, and replace it in one step: readers never see a gap. A daemon, or
        a process with the catalog in memory, rebuilds its whole memory and deletes the checkpoints, because the memory
        may come from one."""
        return _info(
            await self._session.call("reload symbols", lambda: self._session.access.reload_symbols())
        )

    async def check(self, sample: int | None = None) -> SymbolDrift:
        """Compare the memory with the tree: all of it, or `sample` random ranges of keys. Memory that differs is no
        longer used from that moment on, and reads use the tree. A daemon then reloads its memory."""
        check_limit(sample)
        access = self._session.access
        value = await self._session.call("check symbols", lambda: access.check_symbols(sample=sample))
        return SymbolDrift(
            version=value.version,
            checked=value.checked,
            sampled=value.sampled,
            missing=_symbols(value.missing),
            surplus=_symbols(value.surplus),
            changed=_symbols(value.changed),
            differences=value.differences,
        )

    async def compact(self) -> SymbolsInfo:
        """Merge the list's journal into a new base now, which otherwise happens in the background. Raises Unavailable
        when that fails."""
        return _info(
            await self._session.call("compact symbols", lambda: self._session.access.compact_symbols())
        )
