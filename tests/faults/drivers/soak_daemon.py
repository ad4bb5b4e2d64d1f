"""The daemon of a soak. It remembers few versions, so that its memory is soon full and later growth is a leak.

    python tests/faults/drivers/soak_daemon.py WINDOW_VERSIONS LEAK_BYTES [arguments of alpheus-daemon]

WINDOW_VERSIONS bounds its window of events, the undo data of its symbol list, and the slots that its storage has seen.

LEAK_BYTES are leaked for each version, to test that the soak finds a leak. The value is 0 otherwise.
"""

from __future__ import annotations

import sys
from typing import Any

from alpheus_daemon.main import main
from alpheus_journal.replay import follower, symbols
from alpheus_journal.storage import local

_lost: list[bytearray] = []


def leak(size_bytes: int) -> None:
    """Leak `size_bytes` for each version that a follower accepts from now on."""
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
