"""Failpoints: named places where a test can kill, stop, slow down or fail this process.

Off, a point costs the test of one flag. Armed by the environment of a process,

    ALPHEUS_FAILPOINTS="commit.root_answered=kill;log.slot_get=sleep:200@3"

or by `arm` inside it. Actions: `kill` (SIGKILL to this process), `raise` (an error that no code expects),
`sleep:MILLISECONDS`, `pause` (until released; only inside the process), `count`. `@n`: only at the n-th hit,
otherwise at every hit. Synchronous code says `hit(name)`, coroutines `await reached(name)`, so that a pause or sleep
stops what runs there and not the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator

from alpheus_journal.errors import InvalidInput

VARIABLE = "ALPHEUS_FAILPOINTS"
PAUSE_SECONDS_MAX = 60.0

POINTS: dict[str, str] = {
    # commit/committer.py, commit/publish.py
    "commit.staged": "the next version is encoded (after a lost slot: rebased), nothing of it was sent",
    "commit.root_answered": "the root has its slot and nobody here knows it yet",
    "commit.root_unanswered": "the root was refused, or its reply is lost: the slot has to be looked at",
    "commit.resend": "the same bytes are about to go to the same slot again",
    "commit.slot_lost": "another writer has the slot: the group is about to be judged again",
    "commit.ahead_staged": "a version is encoded on top of one whose root is on its way, nothing of it was sent",
    "commit.ahead_ready": "what it needs before its root is stored; what becomes of the one below is not awaited yet",
    "commit.ahead_won": "the one below is the head: the root of the one staged ahead is about to be sent",
    "commit.ahead_dropped": "the one below was not won, or is not the newest: what was staged ahead is dropped",
    # journal.py
    "journal.ack": "a library writer's commit stands, its caller does not know yet",
    "hint.put": "the hint is about to be written",
    "hint.written": "the hint was written, or its write was given up",
    # log.py
    "log.slot_get": "a root is about to be read",
    # follower.py
    "follower.replay_step": "another writer's version was read and is about to be accepted",
    "follower.accepted": "another writer's version is the head",
    # checkpoint.py
    "checkpoint.listed": "the checkpoints that are there are listed, none is open",
    "checkpoint.opened": "one is whole and of this history, and nothing was made of it yet",
    "checkpoint.put": "a checkpoint is encoded and about to be stored",
    "checkpoint.written": "a checkpoint is stored; memory does not lie on it yet, older ones are all there",
    "checkpoint.drop": "an old checkpoint is about to be deleted",
    # index.py
    "index.listed": "the runs that are there are listed, new ones are not open",
    "index.put": "a run is encoded and about to be stored",
    "index.written": "a run is stored and not open; those that it replaces are all there",
    "index.drop": "a run that nobody needs is about to be deleted",
    # leases.py
    "lease.written": "a lease is stored, its version was not looked at again",
    "lease.renew": "a lease is about to be written anew",
    "lease.release": "a lease is about to be deleted",
    # symbols.py
    "symbols.compact": "a compaction has what it begins with, in a thread of its own",
    "symbols.compacted": "a new base is made, and not in its place",
    # storage/local.py
    "local.write": "a file is about to be written under its staging name",
    "local.fsync": "a staged file is whole and about to be synced",
    "local.node_staged": "a node is written under its staging name",
    "local.definition_staged": "a definition is written under its staging name",
    "local.root_staged": "a root is written under its staging name",
    "local.renamed": "uploads have their names, the folders are not synced",
    "local.link": "all uploads are durable, the root is about to be linked into its slot",
    "local.linked": "the root is in its slot, the folder is not synced",
    "local.folder_fsync": "a folder is about to be synced",
    # alpheus_daemon/serve/writer.py
    "writer.sealed": "a group is sealed, nothing of it was done",
    "writer.stored": "the outcome of a group is known, nobody was answered",
    "writer.ack": "one member is about to be answered",
    # alpheus_daemon/serve/watch.py
    "watch.send": "a message of events is about to be handed to a subscriber",
    "watch.progress": "a message of nothing but progress is about to be handed to a subscriber",
    "watch.demoted": "a subscriber's next event is not in the ring: it comes from the journal",
}
"""Every point, and what is true there."""

_ACTION = re.compile(r"(kill|raise|pause|count|sleep:(\d{1,7}))(?:@([1-9]\d{0,8}))?")


class FailpointError(Exception):
    """What the action `raise` raises: like a bug, no class that anybody handles."""


class Armed:
    """An armed point. `hits` counts, whether or not the action struck."""

    def __init__(self, name: str, action: str, millis: int, at: int) -> None:
        self.name = name
        self.hits = 0
        self._action = action
        self._seconds = millis / 1000
        self._at = at
        self._arrived = threading.Event()
        self._released = threading.Event()

    async def arrived(self) -> None:
        """Return once the action has struck. TimeoutError after a minute."""
        if not await asyncio.to_thread(self._arrived.wait, PAUSE_SECONDS_MAX):
            raise TimeoutError(f"failpoint {self.name} was not reached")

    def release(self) -> None:
        """Let go what is paused here, and what would be."""
        self._released.set()

    def strike(self) -> float | None:
        """Do the action. Seconds to wait; None: until released."""
        self.hits += 1
        if self._at and self.hits != self._at:
            return 0.0
        self._arrived.set()
        match self._action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise FailpointError(f"failpoint {self.name}")
            case "pause":
                return None
        return self._seconds

    def wait_released(self) -> None:
        if not self._released.wait(PAUSE_SECONDS_MAX):
            raise TimeoutError(f"failpoint {self.name} was not released")


_armed: dict[str, Armed] = {}
_active = False


def hit(name: str) -> None:
    """A point in code that may block."""
    if _active and name in _armed:
        seconds = _armed[name].strike()
        if seconds is None:
            _armed[name].wait_released()
        elif seconds:
            time.sleep(seconds)


async def reached(name: str) -> None:
    """A point in a coroutine."""
    if _active and name in _armed:
        seconds = _armed[name].strike()
        if seconds is None:
            await asyncio.to_thread(_armed[name].wait_released)
        elif seconds:
            await asyncio.sleep(seconds)


def arm(name: str, action: str) -> Armed:
    """Arm one point; `action` as in the environment. Raises InvalidInput for what is not known."""
    global _active
    _check(name, POINTS)
    found = _ACTION.fullmatch(action)
    if found is None:
        raise InvalidInput(
            f"{action!r} is no action of the failpoint {name}",
            kind="bad_configuration",
            hint="kill, raise, count, pause or sleep:MILLISECONDS, each with @n for the n-th hit only",
        )
    word, millis, at = found.groups()
    armed = Armed(name, word.partition(":")[0], int(millis or 0), int(at or 0))
    _armed[name] = armed
    _active = True
    return armed


def _check(name: str, points: dict[str, str]) -> None:
    if name not in points:
        raise InvalidInput(
            f"{name[:80]!r} is no failpoint",
            kind="bad_configuration",
            hint=f"the failpoints are {', '.join(sorted(points))}",
        )


def arm_all(text: str) -> None:
    """Arm what the text of the environment variable says: `name=action`, separated by semicolons."""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, action = part.partition("=")
        arm(name.strip(), action.strip())


def disarm() -> None:
    """Disarm all points; what is paused goes on."""
    global _active
    _active = False
    for armed in _armed.values():
        armed.release()
    _armed.clear()


@contextlib.contextmanager
def armed(name: str, action: str) -> Iterator[Armed]:
    """One point armed for the length of a block; all are disarmed at its end."""
    try:
        yield arm(name, action)
    finally:
        disarm()


arm_all(os.environ.get(VARIABLE, ""))
