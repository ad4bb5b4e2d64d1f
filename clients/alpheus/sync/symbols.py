"""The symbol list for synchronous code."""

from __future__ import annotations

import builtins
from collections.abc import Callable

from alpheus.admin.symbols import AsyncSymbols
from alpheus.models import Symbol, SymbolDrift, SymbolsInfo
from alpheus.session.arguments import When
from alpheus.sync.portal import run


class Symbols:
    """The list of all live objects' names, and its maintenance."""

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
        """Return names in key order, all at one version.

        - `kind`: "table" and so on; None means all kinds.
        - `namespace`: the namespace itself and everything in it.
        - `prefix`, `pattern`: of the full name, "namespace.name". In a pattern `*` stands for any text and `?` for one
          character.
        """
        return run(self._core().list(kind, namespace, prefix, pattern, at, limit))

    def reload(self) -> SymbolsInfo:
        """Rebuild the list from the tree of the head, and replace it in one step: readers never see a gap. A daemon, or
        a process with the catalog in memory, rebuilds its whole memory and deletes the checkpoints, because the memory
        may come from one."""
        return run(self._core().reload())

    def check(self, sample: int | None = None) -> SymbolDrift:
        """Compare the memory with the tree: all of it, or `sample` random ranges of keys. Memory that differs is no
        longer used from that moment on, and reads use the tree. A daemon then reloads its memory."""
        return run(self._core().check(sample))

    def compact(self) -> SymbolsInfo:
        """Merge the list's journal into a new base now, which otherwise happens in the background. Raises Unavailable
        when that fails."""
        return run(self._core().compact())
