"""Stores behind the library obstore: `gs://`, `az://`, and `s3://` with `client=obstore`.

`object_url` describes the URLs. The library takes credentials from the environment: `AWS_ACCESS_KEY_ID` and so on, web
identity, container and instance roles; `GOOGLE_APPLICATION_CREDENTIALS`; `AZURE_STORAGE_ACCOUNT_KEY` and so on. It
does not read profiles of the AWS command line.

How the promises of `Storage` are kept (FORMAT.md, "Committing"):

* `create` is one conditional request (`If-None-Match: *`, `x-goog-if-generation-match: 0`). The library's own retries
  are off for every write. The library mistakes a connection that broke after the request for one that was never made,
  sends a conditional write again, and then reports the writer's own file as the file of another writer.
* AlreadyExists means that the store refused the condition (412, and Azure's `BlobAlreadyExists`). Any other 409 is a
  conflict of two requests and does not tell which one won, so it becomes OutcomeUnknown, like 5xx, time-outs and
  broken connections. Unavailable means never connected, or 429. Any other 4xx refuses the request definitely.
* Reads, `put_many`, deletes and single puts are repeated with growing, jittered pauses for `deadline` seconds. A
  `put` below `vn/` is not repeated after an unknown outcome: those files are overwritten, and a late copy of the
  first request would restore old bytes.

An object store acknowledges only durable files.

Limits of obstore: a key below the prefix that is not one of our paths (`a//b`) fails a listing instead of being
skipped. A process that ends within microseconds of its last answer may abort, because threads of the library then
wait for an interpreter that no longer exists (PyO3/pyo3-async-runtimes, issue 40). So a process that used this module
waits `EXIT_SECONDS` for those threads before it ends.

The module is long because the meaning of a failure depends on how the request was sent.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import html
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakKeyDictionary

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, S3Store

from alpheus_journal.clock import Clock, SystemClock
from alpheus_journal.errors import (
    AlpheusError,
    Corrupt,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage.interface import (
    FILE_SIZE_BYTES_MAX,
    ObjectInfo,
    Storage,
    check_part,
    check_path,
    check_paths,
    check_prefix,
    check_size,
    each_of,
    file_not_there,
    folders_above,
    is_path,
    slot_taken,
    split_items,
)
from alpheus_journal.storage.object_url import CREDENTIALS, PLACE_NAMES, Place, bad_url, parse_url
from alpheus_journal.storage.suitability import prove_once

if TYPE_CHECKING:  # names of the library's stubs only
    from obstore.store import ClientConfig, RetryConfig

_T = TypeVar("_T")

MULTIPART_SIZE_MIN = 8 << 20
"""Larger files are uploaded in parts of this size, `PARTS_MAX` concurrently. A file appears when all parts are
stored."""
PARTS_MAX = 4
LIST_BATCH = 1000
DELETE_BATCHES = {"s3": 1000, "az": 256}
"""The number of files that one request removes, by the scheme of a store that has such requests. These are the limits
of the services."""
DELETES_AT_ONCE = 4
KEY_SIZE_BYTES_MAX = 1024
BYTES_PER_SECOND_MIN = 256 << 10
"""A slower transfer of a large file times out."""
RETRY_DELAY_MIN_SECONDS = 0.05
RETRY_DELAY_MAX_SECONDS = 3.0
LIST_RETRIES_MAX = 5
EXIT_SECONDS = 0.05
_REQUEST_SECONDS_MAX = 24 * 3600.0  # the real limit of an attempt depends on its size: see `_limit`

_ALLOW = {
    "s3": "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    "gs": "the role Storage Object User",
    "az": "the role Storage Blob Data Contributor",
}
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
_NOT_OFFERED = {"NotImplemented", "MethodNotAllowed", "InvalidArgument", "InvalidRequest", "MalformedXML"}
"""Codes of an answer by a store that does not know the request to remove many files."""
_BAD_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed"}


def open_object_store(url: str) -> ObjectStorage:
    """Open the store behind a URL (see the module). Blocks for milliseconds and sends nothing.

    Raises InvalidInput (`bad_url`) for unknown options, secrets in the URL, and settings that the library refuses.
    """
    return ObjectStorage(parse_url(url))


class ObjectStorage(Storage):
    """One prefix of a bucket or container (see the module). Several event loops may use a store.

    `clock` waits between attempts; `jitter` returns numbers from 0 to 1.
    """

    def __init__(
        self, place: Place, *, clock: Clock | None = None, jitter: Callable[[], float] = random.random
    ) -> None:
        self._place = place
        self.url = place.url(place.prefix)
        self._top = f"{place.prefix}/" if place.prefix else ""
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self._self_test = place.is_on("self_test", default=True)
        self._at_once = int(place.number("max_connections"))
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._deadline = place.number("deadline")
        self._patience = place.number("connect_timeout") + place.number("read_timeout")
        self._closed = False
        self._deletes_singly = False
        try:
            self._store = _connect(place, retries=0, timeout=_REQUEST_SECONDS_MAX)
            # A listing that breaks on its hundredth page resumes there; repeating a read is always safe.
            self._lister = _connect(place, retries=LIST_RETRIES_MAX, timeout=self._patience)
            self._remover = _connect(place, retries=0, timeout=_REQUEST_SECONDS_MAX, bulk=True)
        except (BaseError, ValueError, OSError) as error:
            raise bad_url(
                self.url, f"obstore refuses these settings: {_first_line(error)}", CREDENTIALS[place.scheme]
            ) from error
        _wait_at_exit()

    # -- reading

    async def read(self, path: str, *, size_max: int) -> bytes:
        key = self._key(path)
        if len(key.encode()) > KEY_SIZE_BYTES_MAX:
            raise file_not_there(path, self.url)

        async def get() -> bytes:
            async with self._limit():
                result = await obstore.get_async(self._store, key)
            size = result.meta["size"]
            check_size(path, size, size_max)
            async with self._limit(size):
                data = bytes(await result.bytes_async())
            if len(data) != size:
                raise Unavailable(f"{path} ended after {len(data)} of {size} bytes", path=path)
            return data

        return await self._retry("read", path, get)

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        key = self._key(path)
        # The library reports nothing reliable about a range outside the file.
        info = await self._stat(path, key)
        if info is None:
            raise file_not_there(path, self.url)
        length = max(0, min(size, info.size - start))

        async def get() -> bytes | None:
            try:
                async with self._limit(length):
                    return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
            except BaseError as error:
                if "non-partial response" in str(error):  # a server that ignores ranges
                    return None
                raise

        data = await self._retry("read", path, get) if length else b""
        if data is None:
            data = (await self.read(path, size_max=FILE_SIZE_BYTES_MAX))[start : start + size]
        return check_part(path, data, size)

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        contents = {check_path(path): b"" for path in paths}

        async def one(path: str) -> None:
            contents[path] = await self.read(path, size_max=size_max)

        await each_of(list(contents), one, self._at_once)
        return contents

    async def stat(self, path: str) -> ObjectInfo | None:
        return await self._stat(path, self._key(path))

    async def _stat(self, path: str, key: str) -> ObjectInfo | None:
        if len(key.encode()) > KEY_SIZE_BYTES_MAX:
            return None

        async def head() -> ObjectInfo | None:
            try:
                async with self._limit():
                    meta = await obstore.head_async(self._store, key)
            except FileNotFoundError:
                return None
            except BaseError as error:
                if _Failure.of(error).status not in (400, 401, 403):
                    raise
                # An answer to HEAD has no body; only a GET learns the reason of a refusal.
                async with self._limit():
                    meta = (await obstore.get_async(self._store, key)).meta
            return _info(path, meta)

        try:
            return await self._retry("look for", path, head)
        except NotFound as error:
            if error.kind != "no_file":
                raise
            return None

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        found: dict[str, ObjectInfo | None] = dict.fromkeys(check_path(path) for path in paths)

        async def one(path: str) -> None:
            found[path] = await self.stat(path)

        await each_of(list(found), one, self._at_once)
        return found

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """List as the interface says: request the folder of `prefix`, and skip files that do not begin with
        `prefix`."""
        folder = self._top + check_prefix(prefix).rpartition("/")[0]
        self._check_open()
        try:
            # Closing this generator drops the stream, which asks for no further page.
            async for batch in obstore.list(self._lister, folder.rstrip("/") or None, chunk_size=LIST_BATCH):
                for meta in batch:
                    # The library strips the slash of the prefix's own folder marker (`lake/`), which is skipped here.
                    if meta["path"].startswith(self._top + prefix):
                        path = meta["path"].removeprefix(self._top)
                        if is_path(path):
                            yield _info(path, meta)
        except (BaseError, OSError, ValueError) as error:
            raise self._error(error, "list", prefix or "files", is_write=False) from error

    # -- writing

    async def create(self, path: str, data: bytes) -> None:
        await self._create(path, data)

    async def _create(self, path: str, data: bytes) -> str:
        """Create the file and return its tag."""
        key = self._key_to_write(path)
        self._check_open()
        async with self._slot():
            try:
                async with self._limit(len(data)):
                    stored = await obstore.put_async(
                        self._store, key, data, mode="create", use_multipart=False
                    )
                return _tag(stored.get("e_tag"), stored.get("version"))
            except (BaseError, OSError, ValueError) as error:
                raise self._error(error, "create", path, is_write=True) from error

    async def put(self, path: str, data: bytes) -> None:
        # A file that is overwritten must not be sent again while an earlier copy may be under way.
        await self._put(path, data, fresh=not path.startswith("vn/"))

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        for path in files:
            check_path(path)
        await each_of(list(files), lambda path: self._put(path, files[path], fresh=True), self._at_once)

    async def publish(self, files: Mapping[str, bytes], slot: str, root: bytes) -> None:
        check_path(slot)
        await super().publish(files, slot, root)

    async def publish_looking(
        self, files: Mapping[str, bytes], slot: str, root: bytes, beside: Sequence[str]
    ) -> dict[str, str | None]:
        check_path(slot)
        await self._put_before(files, slot)
        tag, found = await self._while_looking(self._create(slot, root), beside)
        return found | {slot: tag}

    async def _put(self, path: str, data: bytes, *, fresh: bool) -> None:
        key = self._key_to_write(path)

        async def put() -> None:
            async with self._limit(len(data)):
                await obstore.put_async(
                    self._store,
                    key,
                    data,
                    use_multipart=len(data) > MULTIPART_SIZE_MIN,
                    chunk_size=MULTIPART_SIZE_MIN,
                    max_concurrency=PARTS_MAX,
                )

        await self._retry("write", path, put, is_write=True, repeat_unknown=fresh)

    async def delete(self, path: str) -> None:
        key = self._key(path)
        if len(key.encode()) > KEY_SIZE_BYTES_MAX:
            return

        async def delete() -> None:
            try:
                async with self._limit():
                    await obstore.delete_async(self._store, key)
            except FileNotFoundError as error:
                if self._is_bucket_missing(_Failure.of(error)):
                    raise
            except BaseError as error:
                if _Failure.of(error).code != "KeyTooLongError":
                    raise

        await self._retry("delete", path, delete, is_write=True, repeat_unknown=True)

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Remove files, on S3 and Azure many by one request."""
        checked = check_paths(paths)
        size = DELETE_BATCHES.get(self._place.scheme)
        if size is None:
            await each_of(checked, self.delete, self._at_once)
        else:
            await each_of(split_items(checked, size), self._delete_batch, DELETES_AT_ONCE)

    async def _delete_batch(self, paths: Sequence[str]) -> None:
        """Remove files by one request. When it fails, send a request for each file: the library reports only the first
        failure, and Azure counts a missing file as one."""
        keys = [key for path in paths if len((key := self._key(path)).encode()) <= KEY_SIZE_BYTES_MAX]

        async def delete() -> bool:
            try:
                async with self._limit(sum(map(len, keys))):
                    await obstore.delete_async(self._remover, keys)
            except Exception as error:  # also a panic of the library, about an answer that it does not expect
                failure = _Failure.of(error)
                if failure.status in _PASSING or failure.is_never_connected:
                    raise
                if failure.status in (405, 501) or (failure.status == 400 and failure.code in _NOT_OFFERED):
                    self._deletes_singly = True
                return False
            return True

        is_done = not keys
        if not is_done and not self._deletes_singly:
            what = f"{len(keys)} files"
            is_done = await self._retry("delete", what, delete, is_write=True, repeat_unknown=True)
        if not is_done:
            await each_of(paths, self.delete, self._at_once)

    # -- the rest

    def uri(self, path: str) -> str:
        """Return `s3://` and `gs://` URLs as Arrow takes them (Hadoop calls the former `s3a://`), or an `abfss://` URL,
        which both take."""
        place, key = self._place, quote(self._key(path))
        if place.scheme == "az":
            return f"abfss://{place.bucket}@{place.options['account']}.dfs.core.windows.net/{key}"
        return f"{place.bucket_url}/{key}"

    async def enclosing(self, paths: Sequence[str]) -> str:
        for folder in folders_above(self._place.prefix):
            for path in paths:
                # Credentials limited to this prefix may not look there.
                with contextlib.suppress(Denied):
                    if await self._stat(path, folder + check_path(path)) is not None:
                        return self._place.url(folder.rstrip("/"))
        return ""

    async def prove(self) -> None:
        if self._self_test:
            await prove_once(self, self.url)

    async def close(self) -> None:
        """Refuse later calls with Unavailable. Connections close when the last request has ended."""
        self._closed = True

    def _key(self, path: str) -> str:
        return self._top + check_path(path)

    def _key_to_write(self, path: str) -> str:
        key = self._key(path)
        if len(key.encode()) > KEY_SIZE_BYTES_MAX:
            raise InvalidInput(f"{path} is too long for a key ({KEY_SIZE_BYTES_MAX} bytes)", path=path)
        return key

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.url} was closed", kind="shutting_down")

    def _slot(self) -> asyncio.Semaphore:
        """Return the semaphore of the running event loop. Each loop has at most `max_connections` requests under
        way."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._at_once))

    def _limit(self, size: int = 0) -> asyncio.Timeout:
        """Limit the time of one attempt that transfers `size` bytes. After the TimeoutError a write is in doubt."""
        return asyncio.timeout(self._patience + size / BYTES_PER_SECOND_MIN)

    async def _retry(
        self,
        action: str,
        path: str,
        request: Callable[[], Awaitable[_T]],
        *,
        is_write: bool = False,
        repeat_unknown: bool = False,
    ) -> _T:
        """Send `request`, and send it again after a passing failure until `deadline` seconds have passed.

        When an earlier attempt may have been applied, the final error is OutcomeUnknown, whatever the last failure was.
        """
        self._check_open()
        deadline = self._clock.now_millis() + int(self._deadline * 1000)
        delay = RETRY_DELAY_MIN_SECONDS
        doubt: OutcomeUnknown | None = None
        while True:
            async with self._slot():
                try:
                    return await request()
                except Unavailable as error:
                    failure: AlpheusError = error
                except (BaseError, OSError, ValueError) as error:
                    failure = self._error(error, action, path, is_write=is_write)
                    failure.__cause__ = error
            if isinstance(failure, OutcomeUnknown):
                doubt = failure
            elif not isinstance(failure, Unavailable):
                raise failure
            pause = delay * (0.5 + self._jitter() / 2)
            is_late = self._clock.now_millis() + int(pause * 1000) >= deadline
            if is_late or (doubt is not None and not repeat_unknown):
                raise doubt or failure
            await self._clock.sleep(pause)
            delay = min(delay * 2, RETRY_DELAY_MAX_SECONDS)

    # -- errors

    def _is_bucket_missing(self, failure: _Failure) -> bool:
        return failure.code in ("NoSuchBucket", "ContainerNotFound")

    def _error(self, error: Exception, action: str, path: str, *, is_write: bool) -> AlpheusError:
        """Translate an exception of the library. A write that may have been applied becomes OutcomeUnknown."""
        failure, scheme = _Failure.of(error), self._place.scheme
        what = f"cannot {action} {path} in {self.url}: {failure.detail}"
        if failure.is_foreign(self._place.bucket):
            return Denied(
                f"no credentials for {self.url}: {failure.detail}",
                kind="no_credentials",
                hint=CREDENTIALS[scheme],
                path=path,
            )
        if isinstance(error, AlreadyExistsError):
            if action == "create" and (failure.status != 409 or failure.code == "BlobAlreadyExists"):
                return slot_taken(path)
            return OutcomeUnknown(what, path=path) if is_write else Unavailable(what, path=path)
        if isinstance(error, InvalidPathError):
            return Corrupt(
                f"{self.url} holds a key that this client cannot name: {failure.detail}",
                kind="corrupt_history",
                hint="remove that object" + (", or use client=aiobotocore" if scheme == "s3" else ""),
            )
        if failure.status == 404:
            return self._not_found(failure, action, path, is_write=is_write)
        if failure.code == "KeyTooLongError" and failure.status == 400 and not is_write:
            return file_not_there(path, self.url)
        answer = _refusal(failure, what, path, scheme, is_write=is_write)
        if answer is not None:
            return answer
        if is_write and not failure.is_never_connected:
            return OutcomeUnknown(what, path=path)
        hint = "check endpoint_url and the network" if failure.is_never_connected else ""
        return Unavailable(what, hint=hint, path=path)

    def _not_found(self, failure: _Failure, action: str, path: str, *, is_write: bool) -> NotFound:
        """Build the error for a 404: the file is missing or, when the request names no file, the bucket."""
        if not (is_write or action == "list" or self._is_bucket_missing(failure)):
            return file_not_there(path, self.url)
        name = PLACE_NAMES[self._place.scheme]
        return NotFound(
            f"there is no {name} {self._place.bucket} at {self.url}",
            kind="no_bucket",
            hint=f"create the {name} first, or check its name and endpoint_url",
            path=path,
        )


class _Failure(msgspec.Struct, frozen=True):
    """A library exception, parsed from its text, because the exception carries nothing else.

    The first line of the text is for people, with the status and the body of the answer; the Rust value follows.
    """

    status: int
    """HTTP status, or 0 without an answer."""
    code: str
    """The store's own error code."""
    detail: str
    """One line for people, without the address."""
    address: str
    is_redirect: bool
    is_never_connected: bool

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        text = str(error)
        status = _find(r"non-2xx status code: (\d{3})", text)
        code = _find(r"<Code>([^<]{1,80})</Code>", text)
        message = html.unescape(_find(r"<Message>([^<]{1,300})", text)) or _find(
            r'"message": ?"([^"]{1,300})"', text
        )
        late = "no answer in time" if isinstance(error, TimeoutError) else ""
        words = [late, f"HTTP {status}" if status else "", code, message]
        detail = " ".join(word for word in words if word) or _first_line(error).rpartition(" - ")[2]
        for reason in ("Connection refused", "dns error", "operation timed out", "certificate"):
            if not status and reason.lower() in text.lower() and reason.lower() not in detail.lower():
                detail += f" ({reason})"
        return cls(
            status=int(status or 0),
            code=code,
            detail=" ".join(detail.split()),
            address=_find(r"Error performing [A-Z]+ (\S+) in ", text),
            is_redirect=status.startswith("3") or (not status and "inner: BareRedirect" in text),
            # Only without an answer, because the text of an answer might hold these words.
            is_never_connected=not status and re.search(r"^\s+kind: Connect,$", text, re.M) is not None,
        )

    def is_foreign(self, bucket: str) -> bool:
        """Return whether the failed request went to a service that issues credentials, not to the store."""
        if not self.address or self.address == "REDACTED":
            return False
        parts = urlsplit(self.address)
        return bucket not in unquote(parts.path).split("/") and not parts.netloc.startswith(f"{bucket}.")


def _refusal(failure: _Failure, what: str, path: str, scheme: str, *, is_write: bool) -> AlpheusError | None:
    """Build the error for an answer that refuses a request, so that nothing was applied. Return None for any other
    answer."""
    match failure.status:
        case _ if failure.code == "RequestTimeTooSkewed":
            return InvalidInput(
                what, kind="clock_skew", hint="set the clock; signatures are valid for 15 minutes", path=path
            )
        case _ if failure.code in _BAD_KEYS:
            hint = "check the access key and the secret key; the store does not accept this pair"
            return Denied(what, hint=hint, path=path)
        case 401 | 403:
            return Denied(what, hint=f"allow {_ALLOW[scheme]} below the prefix", path=path)
        case 400 if failure.code == "AuthorizationHeaderMalformed":
            return InvalidInput(
                what, kind="bad_url", hint="give the region of the bucket: region=… in the URL", path=path
            )
        case 400 if "Token" in failure.code or "Credential" in failure.code:
            hint = "get new credentials; these have expired or are not valid"
            return Denied(what, hint=hint, path=path)
        case 413:
            return InvalidInput(what, kind="too_large", path=path)
        case 429:
            return Unavailable(what, path=path)
        case 507:
            return Exhausted(what, kind="no_space", hint="free space, or raise the quota", path=path)
        case 501 if is_write:
            return InvalidInput(
                what, kind="storage_unsuitable", hint="choose a store with conditional writes"
            )
    if failure.is_redirect:
        hint = "give the region of the bucket, or the right endpoint_url"
        return InvalidInput(what, kind="bad_url", hint=hint, path=path)
    is_passing = failure.status in (408, 425) or failure.code == "RequestTimeout"
    if 400 <= failure.status < 500 and not is_passing:
        hint = "check the URL; the store refuses this request"
        return InvalidInput(what, kind="bad_url", hint=hint, path=path)
    return None


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _info(path: str, meta: obstore.ObjectMeta) -> ObjectInfo:
    tag = _tag(meta.get("e_tag"), meta.get("version"))
    return ObjectInfo(path, meta["size"], int(meta["last_modified"].timestamp() * 1000), tag)


def _tag(e_tag: str | None, version: str | None) -> str:
    """Join ETag and version. `version` is Google's generation, or the object version in a bucket with versioning."""
    return f"{e_tag or ''}.{version or ''}".removeprefix(".").removesuffix(".")


def _connect(
    place: Place, *, retries: int, timeout: float, bulk: bool = False
) -> S3Store | GCSStore | AzureStore:
    endpoint = place.options.get("endpoint_url", "")
    if place.scheme == "s3":
        endpoint = (
            endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "") or os.environ.get("AWS_ENDPOINT_URL", "")
        )
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=place.number("connect_timeout")),
        "timeout": timedelta(seconds=timeout),
        "allow_http": endpoint.startswith("http://"),
    }
    retry: RetryConfig = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=place.number("deadline")),
    }
    anonymous = place.is_on("anonymous", default=False)
    config: dict[str, Any] = {}
    if place.scheme == "gs":
        if endpoint:
            config["base_url"] = endpoint
        if anonymous:  # the library's option `skip_signature` does not cover writes
            key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
            config["service_account_key"] = json.dumps({**key, "gcs_base_url": endpoint or None})
        return GCSStore(place.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]
    if anonymous:
        config["skip_signature"] = True
    if endpoint:
        config["endpoint"] = endpoint
    if place.scheme == "az":
        config["account_name"] = place.options["account"]
        return AzureStore(place.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]
    # `delete` sends a plain DELETE: each failure has its status then, and any server knows the request.
    config["disable_bulk_delete"] = not bulk
    if region := place.options.get("region"):
        config["region"] = region
    if not place.is_on("path_style", default=True):
        config["virtual_hosted_style_request"] = True
        if endpoint:  # the library expects the bucket in the endpoint
            parts = urlsplit(endpoint)
            config["endpoint"] = f"{parts.scheme}://{place.bucket}.{parts.netloc}{parts.path}"
    return S3Store(place.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]


@functools.cache
def _wait_at_exit() -> None:
    """Register the wait at exit, once for each process (see the module)."""
    atexit.register(time.sleep, EXIT_SECONDS)
