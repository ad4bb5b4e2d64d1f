"""Mutants that no test can notice, each with its reason: by module, then by `Mutation.key`.

The key contains the line's text. When the line changes, the key no longer matches and the line's mutants count again.
"""

from __future__ import annotations

REASONS: dict[str, dict[str, str]] = {
    "judge": {
        "await self._executor.execute(durable, durable, transaction, 0, base) | off by one | 0 -> 1": (
            "the member that has this index is thrown away: only the error counts"
        ),
    },
    "positions": {
        "while after < until: | comparison flipped | after < until -> after <= until": (
            "at the newest version the log has no event above it, so the loop ends with what it has found"
        ),
    },
    "follower": {
        "raise  # no caller awaits this task | statement dropped | raise -> pass": (
            "nobody awaits a probe: its callers have futures of their own, which are cancelled before"
        ),
    },
    "writer": {
        "other = difference(first, second) | arguments swapped | difference(first, second)"
        " -> difference(second, first)": (
            "two requests differ in the same things, and in the same words, whichever is compared with which"
        ),
    },
}
