"""Requests to S3, one attempt each, and what their failures mean.

aiobotocore signs, sends and parses. This module makes sure that no library sends a request twice, runs blocking work
in threads, and decides which failure leaves a write in doubt:

* `total_max_attempts=1` switches botocore's own retries off. Two repetitions remain below botocore, and both are
  switched off here. aiohttp sends a PUT again when a pooled connection turns out to be closed (aiohttp regards PUT as
  idempotent; with `If-None-Match` it is not). The redirector sends a request again to another region.
* Clients are made in a thread, and credentials are refreshed in one, because botocore reads files for both.
* Each event loop has its own client, made by the loop's first request, because sockets belong to a loop.

Errors name bucket and operation. The text of an answer is passed on only when it holds nothing that looks like a
secret.

The module is long because the meaning of a failure depends on how the request was sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import functools
import hashlib
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import aiohttp
import botocore.exceptions as boto
import botocore.loaders
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.parsers import ResponseParserError

from alpheus_journal.errors import (
    AlpheusError,
    Denied,
    Exhausted,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from alpheus_journal.storage.interface import file_not_there, slot_taken

_T = TypeVar("_T")

CLOCK_SKEW_MILLIS_MAX = 15 * 60 * 1000
"""S3 refuses a signature whose time differs by more."""
RENEW_BEFORE_SECONDS = 15 * 60
RENEW_URGENTLY_SECONDS = 10 * 60
RENEW_AGAIN_SECONDS = 60
"""These are botocore's times: from 15 minutes before credentials expire it tries to renew them, from 10 minutes before
it must."""
_TEXT_MAX = 200
_BYTES_PER_SECOND_MIN = 256 << 10

_SECRET_LIKE = re.compile(
    r"(?i)signature|credential=|authorization|security-token|secret|aws4|[0-9a-f]{40}|A[KS]IA[A-Z0-9]{12}"
)

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_BAD_KEYS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "InvalidTokenId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "XAdminUserNotFound",
}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_DAMAGED = {
    "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody",
}  # fmt: skip
_BUSY = {
    "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestThrottled",
    "RequestLimitExceeded", "BandwidthLimitExceeded", "InternalError", "ServiceUnavailable",
}  # fmt: skip
_FULL = {"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "XMinioAdminBucketQuotaExceeded"}
_BELOW_A_FILE = {
    "ObjectParentIsFile",
    "XMinioParentIsObject",
    "ExistingObjectIsDirectory",
    "XMinioObjectExistsAsDirectory",
}
_NO_SUCH_FILE = {"NoSuchKey", "NoSuchVersion", "NotFound", "404", "KeyTooLongError"} | _BELOW_A_FILE

_SURELY_NO_FILE = _NO_SUCH_FILE - {"NotFound", "404"}
"""The codes that no web server but a store sends."""
_FORBIDDEN = {"AccessDenied", "AllAccessDisabled", "AccountProblem"}
_NOT_OFFERED = {
    "NotImplemented", "MethodNotAllowed", "InvalidArgument", "InvalidRequest", "MalformedXML", "MissingContentMD5",
}  # fmt: skip

_RIGHTS = {
    "list uploads": "s3:ListBucketMultipartUploads on the bucket",
    "abort upload of": "s3:AbortMultipartUpload",
}
"""The permissions that collections need for open uploads, by operation."""

# Errors that botocore raises before the first byte of a request is sent.
_BEFORE_SENDING = (
    boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError,
)  # fmt: skip
_CREDENTIALS_AWAY = (boto.MetadataRetrievalError, boto.CredentialRetrievalError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError, boto.PartialCredentialsError, boto.SSOError, boto.TokenRetrievalError,
    boto.NoAuthTokenError, boto.LoginError, boto.RefreshWithMFAUnsupportedError, boto.UnknownCredentialError,
)  # fmt: skip
_BAD_SETTINGS = (
    boto.ProfileNotFound, boto.ConfigNotFound, boto.ConfigParseError, boto.InvalidConfigError, boto.NoRegionError,
    boto.InvalidRegionError, boto.UnknownRegionError, boto.InvalidProxiesConfigError,
)  # fmt: skip


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, its location, and the limits of requests to it. Times are in seconds.

    `endpoint_url`, `region` and `profile` are empty where the usual AWS chain decides. `path_style` is None where
    botocore decides. `kms_key_id` names the key of AWS KMS with which the store encrypts each object; it is empty where
    the bucket decides.
    """

    name: str
    endpoint_url: str
    region: str
    profile: str
    anonymous: bool
    path_style: bool | None
    connect_timeout: float
    read_timeout: float
    max_connections: int
    kms_key_id: str = ""

    @property
    def encryption(self) -> dict[str, str]:
        """The arguments that ask for encryption, of each request that begins an object."""
        if not self.kms_key_id:
            return {}
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.kms_key_id}

    def __str__(self) -> str:
        return f"bucket {self.name}" + (f" at {self.endpoint_url}" if self.endpoint_url else "")


class Request(msgspec.Struct, frozen=True):
    """The purpose of a request, named in its errors. When `writes` is true, a lost answer leaves the request in
    doubt."""

    operation: str
    path: str = ""
    writes: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.path}".rstrip()


class S3Client:
    """The requests of one store, from any number of event loops. Connections are made on first use."""

    def __init__(
        self,
        bucket: Bucket,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bucket = bucket
        self._now = now
        self._monotonic = monotonic
        self._loops: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._region = bucket.region
        self._their_start: tuple[float, float] | None = None
        """The earliest and the latest store time at which our monotonic clock read 0, by the `Date` of the last
        answer."""

    @property
    def clock_offset_millis(self) -> int | None:
        """See `Storage`. The monotonic clock tells how old the last answer is, so setting this machine's clock since
        then does no harm. A process that was stopped during a request gets wider bounds, never wrong bounds."""
        if self._their_start is None:
            return None
        passed = self._monotonic() - self._now()
        low, high = (int((start + passed) * 1000) for start in self._their_start)
        return max(low, min(high, 0))

    @contextlib.asynccontextmanager
    async def attempt(self, request: Request, size: int = 0) -> AsyncIterator[Any]:
        """Give the aiobotocore client for one attempt, which takes one of the store's connections.

        A failure inside the block becomes one of our errors: Unavailable when nothing was applied and a retry may
        succeed later; OutcomeUnknown when a write may have been applied; or NotFound (`no_file`, `no_bucket`),
        AlreadyExists (`slot_taken`), Denied, InvalidInput and Exhausted as their classes say. `size` is the number of
        bytes transferred in either direction; the time limit grows with it.
        """
        connections = await self._connect_here()
        limit = self.bucket.connect_timeout + self.bucket.read_timeout + size / _BYTES_PER_SECOND_MIN
        async with connections.slots:
            with self._translate_errors(request):
                async with asyncio.timeout(limit):
                    await connections.refresh()
                    yield connections.client

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        for loop, connections in list(self._loops.items()):
            self._loops.pop(loop, None)
            if loop is here:
                await connections.close()
            elif loop.is_running():
                future = asyncio.run_coroutine_threadsafe(connections.close(), loop)
                await asyncio.wrap_future(future)

    async def _connect_here(self) -> _Connections:
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            for other in [other for other in self._loops if other.is_closed()]:
                del self._loops[other]
            connections = self._loops[loop] = _Connections(self.bucket, self._monotonic, self._note_date)
        if connections.client is None:
            async with connections.opening:
                if connections.client is None:
                    with self._translate_errors(Request("opening")):
                        self._region = await connections.open()
        return connections

    def _note_date(self, date: str, sent: float) -> None:
        """Note the `Date` of an answer. `sent` is the time of the request by the monotonic clock. Dates are in whole
        seconds."""
        with contextlib.suppress(ValueError):
            theirs = email.utils.parsedate_to_datetime(date).timestamp()
            self._their_start = (theirs - self._monotonic(), theirs + 1 - sent)

    @contextlib.contextmanager
    def _translate_errors(self, request: Request) -> Iterator[None]:
        try:
            yield
        except AlpheusError:
            raise
        except boto.ClientError as error:
            # The answer may repeat the request with its signed headers, so the exception is not chained.
            raise self._error_of_refusal(request, error) from None
        except Exception as error:
            raise self._error_of_failure(request, error) from None

    def _clean_text(self, text: str) -> str:
        """Return one short line of a foreign text, or an empty text when it may hold a secret."""
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        secrets = {secret for connections in self._loops.values() for secret in connections.secrets}
        hidden = _SECRET_LIKE.search(line) or any(secret in line for secret in secrets)
        return "" if hidden else line[:_TEXT_MAX]

    # -- no answer

    def _error_of_failure(self, request: Request, error: Exception) -> AlpheusError:
        about = f"{request} in {self.bucket}"
        about_credentials = self._credentials_error(about, error)
        if about_credentials is not None:
            return about_credentials
        if isinstance(error, boto.FlexibleChecksumError | boto.IncompleteReadError):
            return Unavailable(f"{about}: the answer was damaged in transit", path=request.path)
        if isinstance(error, ResponseParserError):
            return self.not_s3_error(request)
        reason = getattr(error, "kwargs", {}).get("error", error)
        if isinstance(reason, aiohttp.ClientConnectorCertificateError):
            return InvalidInput(
                f"{about}: the server's certificate is not trusted: {self._clean_text(str(reason.certificate_error))}",
                kind="bad_url",
                hint="check endpoint_url; set AWS_CA_BUNDLE to the certificates of a private authority",
            )
        if isinstance(error, boto.SSLError):
            return Unavailable(
                f"{about}: TLS failed: {self._clean_text(str(reason))}",
                hint="check whether the server speaks https",
                path=request.path,
            )
        if isinstance(error, _BEFORE_SENDING) and not _may_have_been_sent(error, reason):
            return Unavailable(
                f"{about}: no connection: {self._clean_text(str(reason)) or type(reason).__name__}",
                hint="check endpoint_url, region and the network",
                path=request.path,
            )
        if isinstance(error, boto.HTTPClientError | boto.ConnectionError | aiohttp.ClientError | OSError):
            what = "timed out" if isinstance(error, TimeoutError | boto.ReadTimeoutError) else "was cut off"
            return self._doubt_error(request, f"{about} {what}")
        raise error

    def _credentials_error(self, about: str, error: Exception) -> AlpheusError | None:
        """Build the error for a failure of the credential chain, when nothing of the request was sent, else return
        None."""
        if isinstance(error, _NO_CREDENTIALS):
            return Denied(
                f"{about}: no credentials ({type(error).__name__})",
                kind="no_credentials",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role;"
                " renew a session with aws sso login; for a public bucket add anonymous=true",
            )
        if isinstance(error, _CREDENTIALS_AWAY):
            return Unavailable(
                f"{about}: no credentials could be fetched: {self._clean_text(str(error))}",
                hint="check the metadata service or the credential process of this machine",
            )
        if isinstance(error, _BAD_SETTINGS):
            return InvalidInput(
                f"{about}: {self._clean_text(str(error))}",
                kind="bad_configuration",
                hint="check ~/.aws/config, AWS_PROFILE and AWS_DEFAULT_REGION",
            )
        if isinstance(error, RuntimeError) and "refreshed credentials are still expired" in str(error):
            return Denied(
                f"{about}: the credentials have expired, and the new credentials have expired too",
                hint="renew their source: aws sso login, the role's session, or the credential process",
            )
        return None

    def _doubt_error(self, request: Request, message: str, hint: str = "") -> AlpheusError:
        if request.writes:
            return OutcomeUnknown(
                f"{message}: the write may or may not have been applied", hint=hint, path=request.path
            )
        return Unavailable(message, hint=hint, path=request.path)

    def not_s3_error(self, request: Request) -> AlpheusError:
        message = f"{request} in {self.bucket}: the answer does not come from an S3 server"
        hint = "check endpoint_url; another program or a proxy answers there"
        if request.writes:
            return OutcomeUnknown(message, hint=hint, path=request.path)
        return InvalidInput(message, kind="bad_url", hint=hint)

    def check_answer(self, request: Request, answer: dict[str, Any], *more: str) -> None:
        """Raise the error of `not_s3_error` unless the answer has an ETag and the fields `more`. Any web server may
        answer 200, but S3 sends an ETag with every object."""
        if not answer.get("ETag") or any(answer.get(name) is None for name in more):
            raise self.not_s3_error(request)

    # -- an answer that refuses

    def error_of_file(self, request: Request, refusal: dict[str, Any]) -> AlpheusError | None:
        """Build the error for a file that a request for several files did not remove: an `Error` of its answer. Return
        None when the file is missing."""
        code = _code(refusal.get("Code"))
        if code in _NO_SUCH_FILE:
            return None
        answer = {
            "Error": {"Code": code, "Message": refusal.get("Message", "")},
            "ResponseMetadata": {"HTTPStatusCode": 403 if code in _FORBIDDEN else 200},
        }
        return self._error_of_refusal(request, boto.ClientError(answer, "DeleteObjects"))

    def _error_of_refusal(self, request: Request, error: boto.ClientError) -> AlpheusError:
        """Build the error for an answer that refuses. An upload that is gone was aborted by a collection, so a `put`
        begins another one."""
        response = error.response
        code = _code(response.get("Error", {}).get("Code"))
        metadata = response.get("ResponseMetadata", {})
        status = int(metadata.get("HTTPStatusCode", 0))
        headers = metadata.get("HTTPHeaders", {})
        if error.operation_name.startswith(
            ("AssumeRole", "GetRoleCredentials", "GetFederation", "CreateToken")
        ):
            return Denied(
                f"{request} in {self.bucket}: {error.operation_name} gave no credentials: {code}",
                kind="no_credentials",
                hint="check the role, its trust policy and the credentials that assume it",
            )
        said = self._clean_text(str(response.get("Error", {}).get("Message", "")))
        about = f"{request} in {self.bucket}: {code or 'refused'} ({status})" + (f", {said}" if said else "")
        region = headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region", "")
        known = (
            self._region_error(code, status, region, about)
            or self._denied_error(request, code, status, about)
            or self._missing_error(request, code, status, about)
        )
        if known is not None:
            return known
        if status == 412 or code == "PreconditionFailed":
            return slot_taken(request.path)
        if code in _DAMAGED:
            return Unavailable(
                f"{about}: the request was damaged in transit, nothing was applied", path=request.path
            )
        if code in _FULL or status == 507:
            return Exhausted(about, kind="no_space", hint="free space, or raise the quota", path=request.path)
        if status == 501 or code == "NotImplemented":
            return InvalidInput(
                about,
                kind="storage_unsuitable",
                hint="use another store; this one does not know the request (such as If-None-Match): it cannot hold a"
                " catalog",
                path=request.path,
            )
        if code in _BUSY or code == "NoSuchUpload" or status in (408, 409, 425, 429) or status >= 500:
            return self._doubt_error(request, about)
        if code == "InvalidObjectState":
            return InvalidInput(
                f"{about}: the object was archived",
                kind="storage_unsuitable",
                hint="restore the object, and exclude the catalog from the bucket's lifecycle rules",
                path=request.path,
            )
        return InvalidInput(about, kind="too_large" if status == 413 else "bad_argument", path=request.path)

    def _missing_error(self, request: Request, code: str, status: int, about: str) -> AlpheusError | None:
        if code == "NoSuchBucket" or (status == 404 and not request.path and code in _NO_SUCH_FILE):
            return NotFound(
                f"there is no {self.bucket}",
                kind="no_bucket",
                hint="create the bucket, or check its name and endpoint_url",
            )
        if request.operation == "delete" and request.path and code in _SURELY_NO_FILE:
            return file_not_there(request.path, f"s3://{self.bucket.name}")
        if code in _BELOW_A_FILE and request.writes:
            return InvalidInput(
                about, hint="remove the object whose key is a folder of this path", path=request.path
            )
        if code in _NO_SUCH_FILE and request.path and not request.writes:
            return file_not_there(request.path, f"s3://{self.bucket.name}")
        return self.not_s3_error(request) if status == 404 and not request.path else None

    def _region_error(self, code: str, status: int, region: str, about: str) -> AlpheusError | None:
        # An answer to HEAD has no body, so only its header tells the region.
        elsewhere = bool(region) and status in (301, 400) and region != self._region
        if code not in _WRONG_REGION and not elsewhere and status not in (301, 302, 307, 308):
            return None
        right = region if re.fullmatch("[a-z0-9-]{1,40}", region) else ""
        return InvalidInput(
            f"{about}: the bucket is in "
            + (f"region {right}" if right else "another region or at another endpoint"),
            kind="bad_url",
            hint=f"add region={right} to the URL" if right else "check region and endpoint_url",
        )

    def _denied_error(self, request: Request, code: str, status: int, about: str) -> AlpheusError | None:
        offset = self.clock_offset_millis or 0
        if code == "RequestTimeTooSkewed" or (status == 403 and abs(offset) > CLOCK_SKEW_MILLIS_MAX):
            apart = f" by {abs(offset) // 1000} s" if offset else ""
            return InvalidInput(
                f"{about}: this machine's clock and the store's differ{apart}",
                kind="clock_skew",
                hint="set the clock; signatures are valid for 15 minutes",
            )
        if code in _EXPIRED:
            return Denied(
                f"{about}: the credentials have expired", hint="renew them, for example: aws sso login"
            )
        if code in _BAD_KEYS:
            return Denied(
                about,
                hint="check the access key and the secret key; the store does not accept this pair. MinIO also answers"
                " so when a session has ended: renew the credentials then",
            )
        if status not in (401, 403, 405):
            return None
        hint = "give the credentials the permissions that STORAGE.md lists"
        if request.operation in _RIGHTS:
            hint = f"allow {_RIGHTS[request.operation]}"
        elif not request.writes and request.path:
            hint = (
                "allow s3:GetObject, and s3:ListBucket on the bucket; without s3:ListBucket S3 answers 403 for a"
                " missing file"
            )
        elif request.writes:
            right = "s3:DeleteObject" if request.operation.startswith("delete") else "s3:PutObject"
            hint = f"allow {right} here; readers and read-only buckets do not have it"
        return Denied(about, hint=hint, path=request.path)


class _NoRepetition(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session without aiohttp's second try after a pooled connection was closed."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        if not hasattr(session, "_retry_connection"):
            raise AssertionError("this version of aiohttp has another name for its repetition of requests")
        session._retry_connection = False
        return session


class _Session(AioSession):  # type: ignore[misc]
    """Signs with credentials that the driver renews. botocore would renew them in the event loop, which blocks."""

    kept: AioCredentials | None = None

    async def get_credentials(self) -> Any:
        return self.kept


class _Connections:
    """The client and the connection pool of one event loop."""

    def __init__(
        self, bucket: Bucket, monotonic: Callable[[], float], note_date: Callable[[str, float], None]
    ) -> None:
        self.client: Any = None
        self.opening = asyncio.Lock()
        self.slots = asyncio.Semaphore(bucket.max_connections)
        self._bucket = bucket
        self._monotonic = monotonic
        self._note_date = note_date
        self._source: Any = None
        """The credentials that the AWS chain found; they may be able to fetch newer ones than `_kept`."""
        self._kept: AioCredentials | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renew_after = 0.0
        self._keeper: AsyncGenerator[None] | None = None

    @property
    def secrets(self) -> list[str]:
        """Texts that no error message may hold."""
        kept = self._kept
        return [] if kept is None else [s for s in (kept.access_key, kept.secret_key, kept.token) if s]

    async def open(self) -> str:
        """Make the client, and return the region for which the client signs."""
        client, self._source, self._kept = await asyncio.to_thread(_run, self._make)
        client.meta.events.register_last("before-parameter-build.s3", _no_redirect)
        client.meta.events.register_last("before-call.s3", _no_expectation)
        client.meta.events.register_last("before-call.s3.DeleteObjects", _sum_by_md5)
        client.meta.events.register("before-parse.s3.DeleteObjects", _check_deletion)
        client.meta.events.register("before-call.s3", self._sending)
        client.meta.events.register("response-received.s3", self._received)
        self.client = client
        self._keeper = self._close_with_loop()
        await anext(self._keeper)
        return str(client.meta.region_name)

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        """Close the connections when the event loop ends, because a loop closes its generators. Otherwise aiohttp would
        print complaints at the end of programs that never close a store."""
        try:
            yield
        finally:
            self._keeper = None
            await self.close()

    async def _make(self) -> tuple[Any, Any, AioCredentials | None]:
        """Make the client in a separate event loop. This opens no socket that outlives the loop."""
        bucket = self._bucket
        chain = AioSession(profile=bucket.profile or None)
        source = None if bucket.anonymous else await chain.get_credentials()
        session = _Session(profile=bucket.profile or None)
        if source is not None:
            frozen = await source.get_frozen_credentials()
            session.kept = AioCredentials(frozen.access_key, frozen.secret_key, frozen.token)
        elif not bucket.anonymous:
            raise boto.NoCredentialsError
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        region = bucket.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
        styles = {None: "auto", True: "path", False: "virtual"}
        config = AioConfig(
            http_session_cls=_NoRepetition,
            signature_version=UNSIGNED if bucket.anonymous else "s3v4",
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=bucket.connect_timeout,
            read_timeout=bucket.read_timeout,
            max_pool_connections=bucket.max_connections,
            # The driver sends its own checksum. botocore's checksum would turn a PUT over TLS into chunks with a
            # trailer, which many stores do not know, and leave the body unsigned.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_supported",
            user_agent_extra="alpheus",
            s3={"addressing_style": styles[bucket.path_style]},
        )
        context = session.create_client(
            "s3", region_name=region or "us-east-1", endpoint_url=bucket.endpoint_url or None, config=config
        )
        return await context.__aenter__(), source, session.kept

    async def refresh(self) -> None:
        """Renew credentials that are about to expire: in the background while they are valid for some time, else
        now."""
        needed = getattr(self._source, "refresh_needed", None)
        if needed is None or not needed(RENEW_BEFORE_SECONDS):
            return
        is_urgent = needed(RENEW_URGENTLY_SECONDS)
        if self._renewal is None and (is_urgent or asyncio.get_running_loop().time() >= self._renew_after):
            self._renewal = asyncio.ensure_future(self._renew())
            self._renewal.add_done_callback(lambda task: task.cancelled() or task.exception())
        if is_urgent and self._renewal is not None:
            # The renewal continues when this request is cancelled, because other requests wait for it too.
            await asyncio.shield(self._renewal)

    async def _renew(self) -> None:
        assert self._kept is not None
        try:
            frozen = await asyncio.to_thread(_run, self._source.get_frozen_credentials)
            self._kept.access_key, self._kept.secret_key = frozen.access_key, frozen.secret_key
            self._kept.token = frozen.token
        finally:
            self._renewal = None
            self._renew_after = asyncio.get_running_loop().time() + RENEW_AGAIN_SECONDS

    async def close(self) -> None:
        client, self.client = self.client, None
        renewal = self._renewal
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        if client is not None:
            await client.__aexit__(None, None, None)
        if self._keeper is not None:
            await self._keeper.aclose()

    def _sending(self, context: dict[str, Any], **_: object) -> None:
        context["alpheus_sent"] = self._monotonic()

    async def _received(
        self, response_dict: dict[str, Any] | None, context: dict[str, Any], **_: object
    ) -> None:
        date = response_dict["headers"].get("date") if response_dict else None
        if date:
            self._note_date(date, context["alpheus_sent"])


def _run(call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine in a separate event loop, which may block. The coroutine is made inside the thread, so that a
    call that is cancelled before its thread begins leaves no coroutine behind."""
    return asyncio.run(call())


@functools.cache
def _loader(data_path: str | None) -> Any:
    """Load botocore's description of S3, megabytes of JSON, once for each process."""
    return botocore.loaders.create_loader(data_path)


def _no_redirect(context: dict[str, Any], **_: object) -> None:
    """Mark the request as redirected already, so that the redirector leaves it alone."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _no_expectation(params: dict[str, Any], **_: object) -> None:
    """Remove `Expect: 100-continue`: it costs a round trip before each body, and the whole time limit on a server that
    never answers it."""
    params["headers"].pop("Expect", None)


def _sum_by_md5(params: dict[str, Any], **_: object) -> None:
    """Send the checksum of a DeleteObjects as `Content-MD5`, which every store takes. S3 demands a checksum; stores of
    other vendors know only this one, and botocore sends another one."""
    for name in ("request_algorithm", "request_algorithm_header"):
        params["context"].get("checksum", {}).pop(name, None)
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _check_deletion(response_dict: dict[str, Any], **_: object) -> None:
    """Refuse an answer of another program. An answer to DeleteObjects that names no error is a success, so an empty
    page must not count as one."""
    if response_dict["status_code"] < 300 and b"DeleteResult" not in response_dict["body"]:
        raise ResponseParserError("this is no answer to DeleteObjects")


def is_not_offered(error: boto.ClientError) -> bool:
    """Return whether a store refused a request (DeleteObjects, or one about open uploads) because it does not know this
    request. Google answers 400 with NotImplemented or InvalidArgument."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = error.response.get("Error", {}).get("Code")
    return status in (405, 501) or (status == 400 and code in _NOT_OFFERED)


def _may_have_been_sent(error: Exception, reason: object) -> bool:
    """Return whether the request may have been sent: `EndpointConnectionError` also stands for a connection that broke
    later."""
    return isinstance(error, boto.EndpointConnectionError) and not isinstance(
        reason, aiohttp.ClientConnectorError
    )


def _code(code: object) -> str:
    return code if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9_.]{1,64}", code) else ""
