"""Failpoints: named places where a test can kill, stop, slow down or fail this process.

A point that is off costs the test of one flag. The environment of a process arms points,

    ALPHEUS_FAILPOINTS="commit.root_answered=kill;log.slot_get=sleep:200@3"

and so does `arm` inside the process. The actions are `kill` (SIGKILL to this process), `raise` (an error that no code
expects), `sleep:MILLISECONDS`, `pause` (until released; only inside the process) and `count`. With `@n` the action
strikes only at the n-th hit, otherwise at every hit. Synchronous code calls `hit(name)` and coroutines
`await reached(name)`, so that a pause or sleep stops the caller and not the event loop.
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
    "commit.staged": "the next version is encoded (after a lost slot: rebased), and nothing of it was sent",
    "commit.root_answered": "the root has its slot, and this process has not used the answer yet",
    "commit.root_unanswered": "the root was refused, or the reply is lost: the slot must be read",
    "commit.resend": "the same bytes are about to be sent to the same slot again",
    "commit.slot_lost": "another writer has the slot: the group is about to be judged again",
    "commit.ahead_staged": "a version is encoded on top of a version that is being published, and nothing was sent",
    "commit.ahead_ready": "everything before the root staged ahead is stored; the version below is not awaited yet",
    "commit.ahead_won": "the version below is the head: the root staged ahead is about to be sent",
    "commit.ahead_dropped": "the version below was lost, or is not the newest: the version staged ahead is dropped",
    # journal.py
    "journal.ack": "the commit of a library writer is durable, and its caller has no answer yet",
    "hint.put": "the hint is about to be written",
    "hint.written": "the hint was written, or its write was given up",
    # log.py
    "log.slot_get": "a root is about to be read",
    # follower.py
    "follower.replay_step": "another writer's version was read and is about to be accepted",
    "follower.accepted": "another writer's version is the head",
    # checkpoint.py
    "checkpoint.listed": "the stored checkpoints are listed, and none is open",
    "checkpoint.opened": "a checkpoint is whole and of this history, and is not loaded yet",
    "checkpoint.put": "a checkpoint is encoded and about to be stored",
    "checkpoint.written": "a checkpoint is stored; memory does not use it yet, and all older ones exist",
    "checkpoint.drop": "an old checkpoint is about to be deleted",
    # index.py
    "index.listed": "the stored runs are listed, and new runs are not open",
    "index.put": "a run is encoded and about to be stored",
    "index.written": "a run is stored and not open; all runs that it replaces exist",
    "index.drop": "a run that is no longer needed is about to be deleted",
    # leases.py
    "lease.written": "a lease is stored, and its version was not read again yet",
    "lease.renew": "a lease is about to be rewritten",
    "lease.release": "a lease is about to be deleted",
    # pins.py
    "pin.nodes": "the nodes of a pin of chosen objects are stored, and the pin is not",
    "pin.written": "a pin is stored, and its version was not read again yet",
    # tags/pinning.py
    "pin.starts": "a pin is stored and its version is kept, and the starts at the head were not read yet",
    # collect/expiry.py
    "expiry.hint_written": "the hint names the new oldest version, and no tombstone was written yet",
    "expiry.tombstone": "the tombstones of some versions are about to be written; those of lower versions are there",
    # collect/collection.py
    "collect.listed": "the candidates are listed, and nothing was marked",
    "collect.planned": "the starts of tables are planned, and nothing was marked",
    "collect.marked_first": "all is marked for the first time, and the starts are not confirmed",
    "collect.confirmed": "the starts are confirmed, and the fence is not committed",
    "collect.fenced": "the fence is committed, and the versions above the ones read before are not marked",
    "collect.marked": "all is marked, and nothing was deleted",
    "collect.aborting": "a batch of open uploads is about to be aborted",
    "collect.deleting": "a batch of files is about to be deleted",
    # symbols.py
    "symbols.compact": "a compaction has its input, in a separate thread",
    "symbols.compacted": "a new base is made, and not in its place yet",
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
    "writer.sealed": "a group is sealed, and its work has not begun",
    "writer.stored": "the outcome of a group is known, and no member was answered",
    "writer.ack": "one member is about to be answered",
    # alpheus_daemon/serve/watch.py
    "watch.send": "a message of events is about to be handed to a subscriber",
    "watch.progress": "a message with only progress is about to be handed to a subscriber",
    "watch.demoted": "a subscriber's next event is not in the ring, so the journal delivers it",
}
"""Every point, and what is true when a process reaches it."""

_ACTION = re.compile(r"(kill|raise|pause|count|sleep:(\d{1,7}))(?:@([1-9]\d{0,8}))?")


class FailpointError(Exception):
    """The error of the action `raise`. No code handles this class, so it acts like a bug."""


class Armed:
    """An armed point. `hits` counts every hit, whether or not the action struck."""

    def __init__(self, name: str, action: str, millis: int, at: int) -> None:
        self.name = name
        self.hits = 0
        self._action = action
        self._seconds = millis / 1000
        self._at = at
        self._arrived = threading.Event()
        self._released = threading.Event()

    async def wait_for_hit(self) -> None:
        """Wait until the action has struck. Raises TimeoutError after a minute."""
        if not await asyncio.to_thread(self._arrived.wait, PAUSE_SECONDS_MAX):
            raise TimeoutError(f"failpoint {self.name} was not reached")

    def release(self) -> None:
        """Resume the code that is paused here, and let later hits pass."""
        self._released.set()

    def strike(self) -> float | None:
        """Do the action. Return the seconds to wait; None means until released."""
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
    """Pass a point in code that may block."""
    if _active and name in _armed:
        seconds = _armed[name].strike()
        if seconds is None:
            _armed[name].wait_released()
        elif seconds:
            time.sleep(seconds)


async def reached(name: str) -> None:
    """Pass a point in a coroutine."""
    if _active and name in _armed:
        seconds = _armed[name].strike()
        if seconds is None:
            await asyncio.to_thread(_armed[name].wait_released)
        elif seconds:
            await asyncio.sleep(seconds)


def arm(name: str, action: str) -> Armed:
    """Arm one point. `action` is written as in the environment. Raises InvalidInput for an unknown point or action."""
    global _active
    _check(name, POINTS)
    found = _ACTION.fullmatch(action)
    if found is None:
        raise InvalidInput(
            f"{action!r} is not an action of the failpoint {name}",
            kind="bad_configuration",
            hint="use kill, raise, count, pause or sleep:MILLISECONDS, each with @n for the n-th hit only",
        )
    word, millis, at = found.groups()
    armed = Armed(name, word.partition(":")[0], int(millis or 0), int(at or 0))
    _armed[name] = armed
    _active = True
    return armed


def _check(name: str, points: dict[str, str]) -> None:
    if name not in points:
        raise InvalidInput(
            f"{name[:80]!r} is not a failpoint",
            kind="bad_configuration",
            hint=f"use one of {', '.join(sorted(points))}",
        )


def arm_all(text: str) -> None:
    """Arm the points in the text of the environment variable: `name=action`, separated by semicolons."""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, action = part.partition("=")
        arm(name.strip(), action.strip())


def disarm() -> None:
    """Disarm all points. Paused code resumes."""
    global _active
    _active = False
    for armed in _armed.values():
        armed.release()
    _armed.clear()


@contextlib.contextmanager
def armed(name: str, action: str) -> Iterator[Armed]:
    """Arm one point for the length of a block, and disarm all points at its end."""
    try:
        yield arm(name, action)
    finally:
        disarm()


arm_all(os.environ.get(VARIABLE, ""))
