"""The daemon of a soak: what it remembers of versions is little, so that it is full soon and what grows after that is
a leak.

    python tests/faults/drivers/soak_daemon.py WINDOW_VERSIONS LEAK_BYTES [arguments of alpheus-daemon]

WINDOW_VERSIONS bounds its window of events, what undoes its symbol list, and the slots that its storage has seen.

LEAK_BYTES of each version are never given back: that the soak finds a leak is tried with them; else it is 0.
"""

from __future__ import annotations

import sys
from typing import Any

from alpheus_daemon.main import main
from alpheus_journal.replay import follower, symbols
from alpheus_journal.storage import local

_lost: list[bytearray] = []


def leak(size_bytes: int) -> None:
    """From now on each version that a follower accepts costs so much for ever."""
    accept = follower.Follower.accept

    def leaking(self: follower.Follower, *arguments: Any, **others: Any) -> Any:
        _lost.append(bytearray(b"x" * size_bytes))
        return accept(self, *arguments, **others)

    follower.Follower.accept = leaking  # type: ignore[method-assign]


if __name__ == "__main__":
    follower.WINDOW_VERSIONS_MAX = symbols.HISTORY_MAX = local.SLOTS_SEEN_MAX = int(sys.argv[1])
    if int(sys.argv[2]):
        leak(int(sys.argv[2]))
    raise SystemExit(main(sys.argv[3:]))
