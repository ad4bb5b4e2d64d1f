"""The symbol list for synchronous code."""

from __future__ import annotations

import builtins
from collections.abc import Callable

from alpheus.admin.symbols import AsyncSymbols
from alpheus.models import Symbol, SymbolDrift, SymbolsInfo
from alpheus.session.arguments import When
from alpheus.sync.portal import run


class Symbols:
    """The list of all live objects' names, and its upkeep."""

    def __init__(self, core: Callable[[], AsyncSymbols]) -> None:
        self._core = core

    # -- generated from AsyncSymbols by `python -m alpheus.sync`

    def list(
        self,
        kind: str | None = None,
        namespace: str | None = None,
        prefix: str = "",
        pattern: str = "",
        at: When = None,
        limit: int | None = None,
    ) -> builtins.list[Symbol]:
        """Names in key order, by kind ("table", ...; None: all), namespace (itself and what is in it), and beginning or
        pattern of the full name ("namespace.name"; `*` is any text, `?` one character). All at one version."""
        return run(self._core().list(kind, namespace, prefix, pattern, at, limit))

    def reload(self) -> SymbolsInfo:
        """Make the list anew from the tree of the head, aside, and swap. Readers never see a gap. A daemon, or a
        process with the catalog in memory, makes all of it anew and deletes the checkpoints: it may come from one."""
        return run(self._core().reload())

    def check(self, sample: int | None = None) -> SymbolDrift:
        """Compare what is in memory with the tree: all of it, or `sample` random ranges of keys. Memory that differs is
        left at once, and the tree read instead; a daemon then loads it anew."""
        return run(self._core().check(sample))

    def compact(self) -> SymbolsInfo:
        """Make a new base of the list now, which else happens in the background. Unavailable when that fails."""
        return run(self._core().compact())
