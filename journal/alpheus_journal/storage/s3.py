"""A store below a prefix of a bucket on S3, or on a server that speaks the protocol of S3 (STORAGE.md, "S3").

`create` is one PUT with `If-None-Match: *`, sent once. S3 answers 200 when the object is durable and visible to every
later request, so nothing is staged. Failures that leave a write in doubt become OutcomeUnknown: a timeout, a reset, any
5xx, and 409, which a racing writer causes and which does not tell which writer won.

All other calls may be repeated, because reads change nothing, and writing the same bytes twice to a fresh name or a
hint does no harm. Such calls are repeated, with growing pauses, until `deadline` seconds have passed.

The module is long because the URL of a store stands beside what its options do; a module more would crowd the room.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
from botocore.exceptions import ClientError

from alpheus_journal.errors import AlpheusError, Denied, InvalidInput, NotFound, OutcomeUnknown, Unavailable
from alpheus_journal.storage.interface import (
    FILE_SIZE_BYTES_MAX,
    ObjectInfo,
    OpenUpload,
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
    split_items,
)
from alpheus_journal.storage.object_url import is_endpoint
from alpheus_journal.storage.s3_client import Bucket, Request, S3Client, is_not_offered
from alpheus_journal.storage.suitability import SCRATCH_FOLDER, prove_once
from alpheus_journal.urls import SECRET_NAMES, has_bare_option, redact_host, redact_url

_A = TypeVar("_A")
_B = TypeVar("_B")

SINGLE_PUT_SIZE_MAX = 5 << 30
"""The limit of S3. A larger object takes several requests, which cannot share one condition."""
MULTIPART_FROM = 16 << 20
PART_SIZE = 8 << 20
PARTS_MAX = 10_000
KEY_SIZE_BYTES_MAX = 1024
DELETE_BATCH = 1000
"""The limit of S3."""
DELETES_AT_ONCE = 4
"""Concurrent DeleteObjects. S3 counts each file, and takes some thousands of deletions a second below a prefix."""
PAUSE_MIN_SECONDS = 0.05
PAUSE_MAX_SECONDS = 3.0
READ_SIZE = 1 << 20
_NOT_IN_XML = re.compile("[\ufffe\uffff]")
"""Characters that a path may hold and no XML document. The control characters are refused in every path."""
ABORT_SECONDS = 5.0
_NO_UPLOADS_HINT = "let a lifecycle rule of the bucket end incomplete uploads"


class S3Url(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL `s3://bucket/prefix?option=value`. `prefix` has no slash at either end."""

    bucket: Bucket
    prefix: str
    deadline: float
    self_test: bool

    @classmethod
    def parse(cls, url: str) -> S3Url:
        """Parse a URL. Raises InvalidInput (`bad_url`), which names an unknown or wrong option but never repeats a
        value that may be a secret."""
        parts = urlsplit(url)
        _refuse_secrets(parts)
        options = _parse_options(parts.query)
        prefix = unquote(parts.path).strip("/")
        if parts.fragment or (prefix and not is_path(prefix)):
            raise InvalidInput(
                f"{redact_url(url)!r}: the prefix is not a path",
                kind="bad_url",
                hint="join names by single slashes; no name is . or .., and # and ? in a name are %23 and %3F",
            )
        endpoint = _parse_endpoint(options.get("endpoint_url", ""))
        style = options.get("path_style", "true" if endpoint else "")
        return cls(
            bucket=Bucket(
                name=_bucket_name(parts.netloc),
                endpoint_url=endpoint,
                region=_parse_matching("region", options.get("region", ""), "[a-z0-9-]{0,40}"),
                profile=options.get("profile", ""),
                anonymous=_parse_flag("anonymous", options.get("anonymous", "false")),
                path_style=_parse_flag("path_style", style) if style else None,
                connect_timeout=_parse_number("connect_timeout", options, 5, 0.1, 60),
                read_timeout=_parse_number("read_timeout", options, 15, 0.1, 300),
                max_connections=int(_parse_number("max_connections", options, 32, 1, 1000)),
                kms_key_id=_parse_key_id(options.get("kms_key_id", "")),
            ),
            prefix=prefix,
            deadline=_parse_number("deadline", options, 30, 0, 600),
            self_test=_parse_flag("self_test", options.get("self_test", "true")),
        )

    def text(self) -> str:
        """Return the URL with its options in a fixed order, without options that have their default value."""
        default = S3Url.parse(f"s3://{self.bucket.name}")
        mine = msgspec.structs.asdict(self.bucket) | msgspec.structs.asdict(self)
        usual = msgspec.structs.asdict(default.bucket) | msgspec.structs.asdict(default)
        if self.bucket.endpoint_url:
            usual["path_style"] = True
        options = {name: _option_text(mine[name]) for name in _OPTIONS if mine.get(name) != usual.get(name)}
        query = urlencode(options, quote_via=quote, safe=":/[]")
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket.name}{path}" + (f"?{query}" if query else "")


_OPTIONS = (
    "endpoint_url", "region", "path_style", "profile", "anonymous", "connect_timeout", "read_timeout", "deadline",
    "max_connections", "self_test", "kms_key_id", "client",
)  # fmt: skip
_EXAMPLE = "give a URL such as s3://bucket/lake?region=eu-central-1"


def open_s3(url: str) -> S3Storage:
    """Open the store behind `s3://bucket/prefix?options` (STORAGE.md lists the options). Sends nothing and reads no
    file."""
    return S3Storage(S3Url.parse(url))


class S3Storage(Storage):
    """One prefix of a bucket (see the module). Several event loops may use a store; each has its own connections."""

    def __init__(
        self,
        place: S3Url,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self.url = place.text()
        self._place = place
        self._bucket = place.bucket.name
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._deadline = place.deadline
        self._at_once = place.bucket.max_connections
        self._encryption = place.bucket.encryption
        self._deletes_singly = False
        self._client = S3Client(place.bucket, now, monotonic)
        self._monotonic = monotonic
        self._sleep = sleep
        self._jitter = jitter or random.Random()

    @property
    def clock_offset_millis(self) -> int | None:
        """The offset by the `Date` of the store's last answer, to a second; None before the first answer."""
        return self._client.clock_offset_millis

    # -- reading

    async def read(self, path: str, *, size_max: int) -> bytes:
        key = self._key(path)
        if key is None:
            raise file_not_there(path, self.url)
        request = Request("read", path)

        async def get() -> bytes:
            async with self._client.attempt(request, size_max) as s3:
                answer = await s3.get_object(Bucket=self._bucket, Key=key)
                with contextlib.closing(answer["Body"]) as body:
                    self._client.check_answer(request, answer)
                    check_size(path, answer.get("ContentLength", 0), size_max)
                    return await _read_body(body, path, size_max)

        return await self._retry(get)

    async def read_part(self, path: str, *, start: int, size: int) -> bytes:
        key = self._key(path)
        if key is None:
            raise file_not_there(path, self.url)
        request = Request("read", path)
        end = start + size

        async def get() -> bytes:
            async with self._client.attempt(request, size) as s3:
                try:
                    answer = await s3.get_object(
                        Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}"
                    )
                except ClientError as error:
                    if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 416:
                        raise
                    return b""  # the file ends before `start`
                with contextlib.closing(answer["Body"]) as body:
                    self._client.check_answer(request, answer)
                    if answer.get("ContentRange"):
                        return await _read_body(body, path, size)
                    # A server that ignores ranges sends the whole file.
                    return (await _read_body(body, path, FILE_SIZE_BYTES_MAX))[start:end]

        return check_part(path, await self._retry(get), size)

    async def read_many(self, paths: list[str], *, size_max: int) -> dict[str, bytes]:
        for path in paths:
            check_path(path)
        found = await each_of(paths, lambda path: self.read(path, size_max=size_max), self._at_once)
        return dict(zip(paths, found, strict=True))

    async def stat(self, path: str) -> ObjectInfo | None:
        key = self._key(path)
        return None if key is None else await self._stat(path, key)

    async def _stat(self, path: str, key: str) -> ObjectInfo | None:
        request = Request("stat", path)

        async def head() -> dict[str, Any]:
            try:
                async with self._client.attempt(request) as s3:
                    answer: dict[str, Any] = await s3.head_object(Bucket=self._bucket, Key=key)
            except (Denied, InvalidInput):
                # The answer to HEAD has no body; only a GET learns the reason of a refusal.
                async with self._client.attempt(request) as s3:
                    (await s3.get_object(Bucket=self._bucket, Key=key))["Body"].close()
                raise
            self._client.check_answer(request, answer, "ContentLength", "LastModified")
            return answer

        try:
            answer = await self._retry(head)
        except NotFound as error:
            if error.kind != "no_file":
                raise
            return None
        return ObjectInfo(
            path, answer["ContentLength"], _millis(answer["LastModified"]), answer.get("ETag", "")
        )

    async def stat_many(self, paths: Sequence[str]) -> dict[str, ObjectInfo | None]:
        for path in paths:
            check_path(path)
        return dict(zip(paths, await each_of(paths, self.stat, self._at_once), strict=True))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        where: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + check_prefix(prefix)}
        request = Request("list")

        async def page() -> dict[str, Any]:
            async with self._client.attempt(request) as s3:
                answer: dict[str, Any] = await s3.list_objects_v2(**where)
            if "IsTruncated" not in answer:
                raise self._client.not_s3_error(request)
            return answer

        while True:
            answer = await self._retry(page)
            for entry in answer.get("Contents", ()):
                path = entry["Key"].removeprefix(self._prefix)
                if is_path(path):
                    yield ObjectInfo(
                        path, entry["Size"], _millis(entry["LastModified"]), entry.get("ETag", "")
                    )
            if not answer["IsTruncated"]:
                return
            token = answer.get("NextContinuationToken")
            if not token or token == where.get("ContinuationToken"):
                raise InvalidInput(
                    f"the listing of {self.url} cannot be continued after its first part",
                    kind="storage_unsuitable",
                    hint="use a server that implements ListObjectsV2",
                )
            where["ContinuationToken"] = token

    # -- writing

    async def create(self, path: str, data: bytes) -> None:
        """Create a file (see `Storage.create`). Raises InvalidInput (`too_large`) for more than 5 GiB, the limit of one
        PUT."""
        await self._create(path, data)

    async def _create(self, path: str, data: bytes) -> str:
        """Create the file and return its tag."""
        key = self._key_to_write(path)
        if len(data) > SINGLE_PUT_SIZE_MAX:
            raise InvalidInput(
                f"{path} takes {len(data)} bytes, {SINGLE_PUT_SIZE_MAX} at most in one request to S3",
                kind="too_large",
                path=path,
            )
        return await self._put_once(Request("create", path, writes=True), key, data, IfNoneMatch="*")

    async def put(self, path: str, data: bytes) -> None:
        key = self._key_to_write(path)
        request = Request("put", path, writes=True)
        if len(data) <= MULTIPART_FROM:

            async def once() -> None:
                await self._put_once(request, key, data)

            await self._retry(once)
        else:
            await self._retry(lambda: self._put_parts(request, key, data))

    async def put_many(self, files: Mapping[str, bytes]) -> None:
        for path in files:
            check_path(path)
        await each_of(files.items(), lambda file: self.put(*file), self._at_once)

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

    async def delete(self, path: str) -> None:
        key = self._key(path)
        if key is None:
            return
        request = Request("delete", path, writes=True)

        async def remove() -> None:
            async with self._client.attempt(request) as s3:
                await s3.delete_object(Bucket=self._bucket, Key=key)

        try:
            await self._retry(remove)
        except NotFound as error:  # Google says so; S3 calls a missing file deleted
            if error.kind != "no_file":
                raise

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Remove files by DeleteObjects, up to DELETE_BATCH files a request. A store that does not know this request
        gets a request for each file."""
        files = {key: path for path in check_paths(paths) if (key := self._key(path)) is not None}
        alone = [path for key, path in files.items() if _NOT_IN_XML.search(key)]
        batches = split_items([key for key in files if not _NOT_IN_XML.search(key)], DELETE_BATCH)
        await each_of(
            batches, lambda batch: self._delete_batch({key: files[key] for key in batch}), DELETES_AT_ONCE
        )
        await each_of(alone, self.delete, self._at_once)

    async def _delete_batch(self, left: dict[str, str]) -> None:
        """Remove the files `left`, given as paths by key. Files that are removed are taken out of `left`."""
        if self._deletes_singly or not await self._retry(lambda: self._delete_together(left)):
            await each_of(list(left.values()), self.delete, self._at_once)

    async def _delete_together(self, left: dict[str, str]) -> bool:
        """Send one DeleteObjects for the files `left`, and take the removed files out of `left`. Return False when the
        store does not know the request."""
        request = Request(f"delete {len(left)} files", writes=True)
        async with self._client.attempt(request, sum(map(len, left))) as s3:
            try:
                answer = await s3.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": key} for key in left], "Quiet": True},
                )
            except ClientError as error:
                if not is_not_offered(error):
                    raise
                self._deletes_singly = True
                return False
        failures: dict[str, AlpheusError] = {}
        for refusal in answer.get("Errors", ()):
            key = str(refusal.get("Key", ""))
            error_of_file = self._client.error_of_file(
                Request("delete", left.get(key, ""), writes=True), refusal
            )
            if error_of_file is not None:
                failures[key] = error_of_file
        # After an error about an unknown name all files are tried again.
        if failures.keys() <= left.keys():
            for key in left.keys() - failures.keys():
                del left[key]
        if failures:
            raise _most_lasting(failures.values())
        return True

    # -- uploads in parts

    async def list_uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """See `Storage.list_uploads`. Where a server refuses the marker of an upload (versitygw does), the listing goes
        on after the key, without further uploads of this key."""
        where: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + check_prefix(prefix)}
        seen = {("", "")}

        async def page() -> dict[str, Any]:
            return await self._list_uploads_page(where)

        while True:
            answer = await self._retry(page)
            for entry in answer.get("Uploads", ()):
                key, upload_id = entry.get("Key", ""), entry.get("UploadId", "")
                path = key.removeprefix(self._prefix)
                # A server that ignores the prefix must not make uploads of other catalogs look like ours.
                if (
                    key.startswith(where["Prefix"])
                    and is_path(path)
                    and upload_id.isprintable()
                    and upload_id
                ):
                    yield OpenUpload(path, upload_id, _initiated_millis(entry.get("Initiated")))
            if not answer["IsTruncated"]:
                return
            key, upload_id = answer.get("NextKeyMarker", ""), answer.get("NextUploadIdMarker", "")
            if not key or (key, upload_id) in seen:
                raise InvalidInput(
                    f"the listing of open uploads of {self.url} cannot be continued after its first part",
                    kind="not_supported",
                    hint=_NO_UPLOADS_HINT,
                )
            seen.add((key, upload_id))
            where.update(KeyMarker=key, UploadIdMarker=upload_id)

    async def _list_uploads_page(self, where: dict[str, Any]) -> dict[str, Any]:
        request = Request("list uploads")
        async with self._client.attempt(request) as s3:
            try:
                answer: dict[str, Any] = await s3.list_multipart_uploads(**where)
            except ClientError as error:
                if not is_not_offered(error):
                    raise
                if not where.pop("UploadIdMarker", ""):
                    raise self._uploads_not_offered(request) from None
                answer = await s3.list_multipart_uploads(**where)
            except ValueError:  # a time that is none
                raise self._uploads_not_offered(request) from None
            except RuntimeError as error:  # botocore says so of a time that is a large number
                if "timezone" not in str(error):
                    raise
                raise self._uploads_not_offered(request) from None
        if "IsTruncated" not in answer:
            raise self._uploads_not_offered(request)
        return answer

    def _uploads_not_offered(self, request: Request) -> InvalidInput:
        return InvalidInput(
            f"{request} in {self._place.bucket}: the server does not know this request",
            kind="not_supported",
            hint=_NO_UPLOADS_HINT,
        )

    async def abort_upload(self, upload: OpenUpload) -> None:
        key = self._key_to_write(upload.path)
        request = Request("abort upload of", upload.path, writes=True)

        async def abort() -> None:
            async with self._client.attempt(request) as s3:
                try:
                    await s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload.upload_id)
                except ClientError as error:
                    if _is_upload_gone(error) or error.response.get("Error", {}).get("Code") == "NoSuchKey":
                        return
                    if is_not_offered(error):
                        raise self._uploads_not_offered(request) from None
                    raise

        await self._retry(abort)

    def uri(self, path: str) -> str:
        """Return `s3://bucket/key`, as Arrow takes it. Hadoop calls the same address `s3a://`."""
        return f"s3://{self._bucket}/{quote(self._prefix + check_path(path))}"

    async def enclosing(self, paths: Sequence[str]) -> str:
        for folder in folders_above(self._place.prefix):
            for path in paths:
                # Credentials limited to this prefix may not look there.
                with contextlib.suppress(Denied):
                    if await self._stat(path, folder + check_path(path)) is not None:
                        return msgspec.structs.replace(self._place, prefix=folder.rstrip("/")).text()
        return ""

    async def prove(self) -> None:
        if self._place.self_test:
            if self._encryption:
                await self._prove_encryption()
            await prove_once(self, self.url)

    async def _prove_encryption(self) -> None:
        """Store and remove a scratch file. Raises InvalidInput (`storage_unsuitable`) when the store did not encrypt
        the file by a key of KMS: a server may ignore the request for encryption."""
        path = f"{SCRATCH_FOLDER}{uuid.uuid4()}/encrypted"
        await self.put(path, b"encrypted")
        try:
            if not await self.read_key_id(path):
                raise InvalidInput(
                    f"{self.url}: the store does not encrypt with the key that kms_key_id names",
                    kind="storage_unsuitable",
                    hint="leave kms_key_id out of the URL, or choose a store that has a key management service",
                )
        finally:
            await self.delete(path)

    async def read_key_id(self, path: str) -> str:
        """Return the key of KMS with which a file is encrypted, as the store names the key; empty for none.

        Raises NotFound for a missing file.
        """
        request = Request("stat", path)

        async def head() -> str:
            async with self._client.attempt(request) as s3:
                answer = await s3.head_object(Bucket=self._bucket, Key=self._key_to_write(path))
            is_by_kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
            return str(answer.get("SSEKMSKeyId", "")) if is_by_kms else ""

        return await self._retry(head)

    async def close(self) -> None:
        await self._client.close()

    async def _put_once(self, request: Request, key: str, data: bytes, **more: str) -> str:
        checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        async with self._client.attempt(request, len(data)) as s3:
            answer = await s3.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=data,
                ChecksumCRC32=checksum,
                **self._encryption,
                **more,
            )
        self._client.check_answer(request, answer)
        return str(answer.get("ETag", ""))

    async def _put_parts(self, request: Request, key: str, data: bytes) -> None:
        """Upload in parts. The last request makes the object appear whole. After a failure the sent parts are
        removed."""
        where = {"Bucket": self._bucket, "Key": key}
        async with self._client.attempt(request) as s3:
            upload = (await s3.create_multipart_upload(**where, **self._encryption))["UploadId"]
        try:
            size = max(PART_SIZE, -(-len(data) // PARTS_MAX))

            is_gone = False

            async def send(number: int) -> dict[str, Any]:
                nonlocal is_gone
                part = data[(number - 1) * size : number * size]
                async with self._client.attempt(request, len(part)) as s3:
                    if is_gone:
                        return {}
                    try:
                        answer = await s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=part)
                    except ClientError as error:
                        if not _is_upload_gone(error):
                            raise
                        is_gone = True  # another try to send the part is of no use
                        return {}
                return {"PartNumber": number, "ETag": answer["ETag"]}

            numbers = range(1, -(-len(data) // size) + 1)
            parts = await each_of(numbers, lambda number: self._retry(lambda: send(number)), self._at_once)
            if is_gone:
                raise Unavailable(
                    f"{request} in {self._place.bucket}: the upload was aborted", path=request.path
                )
            async with self._client.attempt(request) as s3:
                answer = await s3.complete_multipart_upload(
                    **where, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            self._client.check_answer(request, answer)
        except BaseException:
            # Parts that stay cost money until a lifecycle rule removes them. The first error tells more than an
            # error of the removal. After a completion whose answer was lost there is nothing to remove.
            with contextlib.suppress(AlpheusError, TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS), self._client.attempt(request) as s3:
                    await s3.abort_multipart_upload(**where, UploadId=upload)
            raise

    # -- keys, repetition, many at once

    def _key(self, path: str) -> str | None:
        """Return the object's key, or None when the key is too long for any object."""
        key = self._prefix + check_path(path)
        return key if len(key.encode()) <= KEY_SIZE_BYTES_MAX else None

    def _key_to_write(self, path: str) -> str:
        key = self._key(path)
        if key is None:
            raise InvalidInput(
                f"{path} is too long: a key of S3 has at most {KEY_SIZE_BYTES_MAX} bytes", path=path
            )
        return key

    async def _retry(self, attempt: Callable[[], Awaitable[_B]]) -> _B:
        """Repeat `attempt` while it may succeed, until `deadline` seconds have passed. When any attempt of a write may
        have been applied, the final error is OutcomeUnknown, whatever the last failure was."""
        end = self._monotonic() + self._deadline
        pause = PAUSE_MIN_SECONDS
        doubt: OutcomeUnknown | None = None
        while True:
            try:
                return await attempt()
            except OutcomeUnknown as error:
                failure: AlpheusError = error
                doubt = error
            except Unavailable as error:
                failure = doubt or error
            wait = pause * (0.5 + self._jitter.random() / 2)
            if self._monotonic() + wait >= end:
                raise failure
            await self._sleep(wait)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)


async def _read_body(body: Any, path: str, size_max: int) -> bytes:
    """Read the whole body of an answer. Raise Corrupt as soon as the body is larger than `size_max`."""
    chunks = []
    size = 0
    while chunk := await body.read(READ_SIZE):
        chunks.append(chunk)
        size += len(chunk)
        check_size(path, size, size_max)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _most_lasting(failures: Iterable[AlpheusError]) -> AlpheusError:
    """Return the failure that decides what happens next: one that repetition does not cure, or one in doubt."""
    return min(
        failures,
        key=lambda error: (isinstance(error, Unavailable | OutcomeUnknown), isinstance(error, Unavailable)),
    )


def _is_upload_gone(error: ClientError) -> bool:
    return bool(error.response.get("Error", {}).get("Code") == "NoSuchUpload")


def _millis(moment: Any) -> int:
    return int(moment.timestamp() * 1000)


def _initiated_millis(moment: Any) -> int | None:
    """Return a time in epoch milliseconds, and None where it is missing. Servers that do not know it send year 1."""
    try:
        millis = _millis(moment)
    except (AttributeError, OverflowError, ValueError):
        return None
    return millis if millis > 0 else None


# -- options of the URL


def _refuse_secrets(parts: SplitResult) -> None:
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    found = "an access key" if "@" in parts.netloc else ""
    found = found or next((f"the option {name[:40]}" for name in names if SECRET_NAMES.search(name)), "")
    if found:
        raise InvalidInput(
            f"the URL of an S3 store holds {found}, but URLs are stored, logged and shown",
            kind="bad_url",
            hint="give credentials in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), in ~/.aws or by a machine role",
        )


def _parse_options(query: str) -> dict[str, str]:
    if has_bare_option(query):
        raise InvalidInput("an option of an S3 URL has no value", kind="bad_url", hint="write name=value")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS or name in options:
            raise InvalidInput(
                f"the option {name[:40]!r} of an S3 URL is "
                + ("given twice" if name in options else "unknown"),
                kind="bad_url",
                hint=f"use each option once: {', '.join(_OPTIONS)}",
            )
        options[name] = value
    if options.get("client", "aiobotocore") != "aiobotocore":
        raise _bad_option("client", "aiobotocore or obstore")
    return options


def _bad_option(option: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"the option {option} of an S3 URL must be {wanted}", kind="bad_url")


def _bucket_name(name: str) -> str:
    if name.endswith("--x-s3"):
        raise InvalidInput(
            f"{name} is a directory bucket, which can list files only by folder",
            kind="not_supported",
            hint="use a general purpose bucket",
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", name):
        raise InvalidInput(f"{redact_host(name)[:80]!r} is not a bucket name", kind="bad_url", hint=_EXAMPLE)
    return name


def _parse_endpoint(url: str) -> str:
    if not url:
        return ""
    if "@" in url:
        raise _bad_option("endpoint_url", "without user and password")
    if not is_endpoint(url) or urlsplit(url).path.strip("/"):
        raise _bad_option("endpoint_url", "http://host:port or https://host")
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _parse_matching(option: str, value: str, pattern: str) -> str:
    if not re.fullmatch(pattern, value):
        raise _bad_option(option, "a name such as eu-central-1")
    return value


def _parse_key_id(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9:/_.+=@-]{0,2048}", value):
        raise _bad_option("kms_key_id", "a key id, an alias (alias/name) or an ARN")
    return value


def _parse_flag(option: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise _bad_option(option, "true or false")
    return value == "true"


def _parse_number(
    option: str, options: Mapping[str, str], default: float, least: float, most: float
) -> float:
    text = options.get(option)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) or not least <= float(text) <= most:
        raise _bad_option(option, f"a number from {least} to {most}")
    return float(text)


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
