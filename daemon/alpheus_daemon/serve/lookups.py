"""Load: thousands of lookups in one request, answered with bytes that were made once.

The names of a request stay encoded. The bytes of a name are the key under which its answer is kept, framed as in the
response. So a kept answer costs one dictionary lookup, and the response is one join. Answers are kept for the head
only. Before each use the names that changed since the last use are removed, so that the cache always holds answers of
the head and of no other version. It is cleared when memory is replaced, because that memory may have been wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from google.protobuf.message import DecodeError

from alpheus_daemon.serve.requests import has_own_unknown, parse
from alpheus_daemon.serve.watch import HeadView
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import ObjectName
from alpheus_journal.model.answers import LATEST, At, Latest, Loaded, StoredObject
from alpheus_journal.wire import messages as wire
from alpheus_pb.v1 import service_pb2 as pb

VERSIONS_CAUGHT_UP_MAX = 1_000
"""After more versions than this since the last lookup the cache is cleared instead of brought up to date."""

ENTRY_OVERHEAD_BYTES = 200
"""The memory of a kept answer besides name and frame: two byte strings and a place in the dictionary."""

_ABSENT = pb.LoadResponse(objects=[pb.LoadedObject()]).SerializeToString()


class LoadSource(Protocol):
    """The part of the journal that lookups need."""

    @property
    def head(self) -> HeadView: ...

    async def latest(self, at: Latest = LATEST) -> HeadView: ...

    async def load(self, at: At, names: list[ObjectName]) -> Loaded: ...

    @property
    def memory_generation(self) -> int: ...

    def changed_names(self, version: int) -> Iterable[ObjectName] | None: ...

    def check_history(self) -> None: ...


class LoadCache:
    """Answers LoadRequests. All kept answers take at most `bytes_max`; the oldest are dropped first."""

    def __init__(self, journal: LoadSource, bytes_max: int) -> None:
        self._journal = journal
        self._bytes_max = bytes_max
        self._frames: dict[bytes, bytes] = {}  # by encoded ObjectName, at `_version`
        self._version = -1
        self._memory_turns = -1
        self._bytes = 0
        self._largest = 0  # the largest frame kept since the cache was last cleared
        self._hits = 0
        self._misses = 0
        self._tail = (-1, b"")  # a version, and the end of every response at this version

    # --- numbers for metrics

    @property
    def hits(self) -> int:
        """The names answered from the cache."""
        return self._hits

    @property
    def misses(self) -> int:
        return self._misses

    @property
    def size_bytes(self) -> int:
        """The bytes that kept answers take."""
        return self._bytes

    @property
    def count(self) -> int:
        return len(self._frames)

    # --- answering

    async def answer(self, data: bytes) -> bytes:
        """Return the LoadResponse for a LoadRequest. Raises as `Access.load`, and InvalidInput (`too_large`)."""
        try:
            request = pb.RawLoadRequest.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"the request is not a LoadRequest: {error}") from None
        if has_own_unknown(request, len(data)) or has_own_unknown(request.at, len(data)):
            parse(pb.LoadRequest, data)  # raises an error that names the unknown field
        names = list(request.names)
        if len(names) > wire.NAMES_COUNT_MAX:
            raise InvalidInput(
                f"the request has {len(names)} names; the limit is {wire.NAMES_COUNT_MAX}",
                kind="too_large",
                hint="ask in several requests, at one version",
            )
        at = wire.decode_at(request.at)
        if at is None or isinstance(at, Latest):
            head = await self._journal.latest(at or LATEST)
            return await self._answer_at_head(head.version, names, self._tail_of(head))
        if at == self._journal.head.version:
            self._journal.check_history()
            return await self._answer_at_head(at, names, _version(at))
        loaded = await self._journal.load(at, [_decode_name(name) for name in names])
        return _join([_frame(stored) for stored in loaded.objects], _version(loaded.version))

    async def _answer_at_head(self, version: int, names: list[bytes], tail: bytes) -> bytes:
        """Answer at `version`, which is the head."""
        self._catch_up(version)
        found = list(map(self._frames.get, names))
        try:
            # A search for missing frames, or for their total size, would take as long as the join itself.
            if len(found) * self._largest <= wire.REPLY_BYTES_MAX // 2:
                answer = b"".join([*found, tail])  # type: ignore[list-item]
                self._hits += len(names)
                return answer
        except TypeError:
            pass  # one of the frames is missing
        missing = [name for name, frame in zip(names, found, strict=True) if frame is None]
        made = await self._make_frames(version, missing)
        self._hits += len(names) - len(missing)
        frames = [made[name] if frame is None else frame for name, frame in zip(names, found, strict=True)]
        return _join(frames, tail)

    async def _make_frames(self, version: int, missing: list[bytes]) -> dict[bytes, bytes]:
        """Make the missing frames, and keep them if `version` is still the head afterwards."""
        names = [_decode_name(name) for name in missing]
        loaded = await self._journal.load(version, names)
        self._misses += len(missing)
        made = {}
        for raw, name, stored in zip(missing, names, loaded.objects, strict=True):
            made[raw] = frame = _frame(stored)
            # A name in another encoding than ours would never be removed after a change.
            if self._version == version and raw == _encode_name(name):
                self._keep(raw, frame)
        return made

    def _tail_of(self, head: HeadView) -> bytes:
        if self._tail[0] != head.version:
            tail = pb.LoadResponse(version=head.version, token=head.token).SerializeToString()
            self._tail = (head.version, tail)
        return self._tail[1]

    # --- what is kept

    def _catch_up(self, version: int) -> None:
        """Remove the answers that changed up to `version`, the head; all of them if memory was replaced."""
        if self._memory_turns != self._journal.memory_generation:
            self._forget()
            self._memory_turns = self._journal.memory_generation
        if version == self._version:
            return
        if version - self._version > VERSIONS_CAUGHT_UP_MAX:
            self._forget()
        while self._frames and self._version < version:
            names = self._journal.changed_names(self._version + 1)
            if names is None:
                self._forget()
                break
            for name in names:
                raw = _encode_name(name)
                frame = self._frames.pop(raw, None)
                if frame is not None:
                    self._bytes -= _size(raw, frame)
            self._version += 1
        self._version = version

    def _forget(self) -> None:
        self._frames.clear()
        self._bytes = self._largest = 0

    def _keep(self, raw: bytes, frame: bytes) -> None:
        size = _size(raw, frame)
        if size > self._bytes_max or raw in self._frames:
            return
        self._frames[raw] = frame
        self._largest = max(self._largest, len(frame))
        self._bytes += size
        self._trim()

    def resize(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._trim()

    def _trim(self) -> None:
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._frames))
            self._bytes -= _size(oldest, self._frames.pop(oldest))


def _size(raw: bytes, frame: bytes) -> int:
    # All absent objects share one frame.
    return len(raw) + (len(frame) if frame is not _ABSENT else 0) + ENTRY_OVERHEAD_BYTES


def _encode_name(name: ObjectName) -> bytes:
    return wire.encode_name(name).SerializeToString()


def _decode_name(raw: bytes) -> ObjectName:
    return wire.decode_name(parse(pb.ObjectName, raw))


def _join(frames: list[bytes], tail: bytes) -> bytes:
    size = sum(map(len, frames)) + len(tail)
    if size > wire.REPLY_BYTES_MAX:
        raise InvalidInput(
            f"the definitions of {len(frames)} names take {size} bytes; the limit is {wire.REPLY_BYTES_MAX}",
            kind="too_large",
            hint="ask for fewer names at a time",
        )
    return b"".join([*frames, tail])


def _version(version: int) -> bytes:
    return pb.LoadResponse(version=version).SerializeToString()


def _frame(stored: StoredObject | None) -> bytes:
    """Return the bytes of an object in a response. Serialized responses of single objects concatenate."""
    if stored is None:
        return _ABSENT
    made = pb.LoadedObject(exists=True, path=stored.path, definition=stored.definition)
    return pb.LoadResponse(objects=[made]).SerializeToString()
