"""Requests to S3, one attempt each, and what their failures mean.

aiobotocore signs, sends and parses; this module decides that nothing is sent twice behind our back, where
blocking work goes, and which failure leaves a write in doubt:

* `total_max_attempts=1` ends botocore's own retries. Two repetitions remain below it, both switched off here:
  aiohttp sends a PUT again when a pooled connection turns out to be closed (it counts PUT as idempotent; with
  `If-None-Match` it is not), and the redirector sends it again to another region.
* Clients are made in a thread, and credentials are refreshed in one: botocore reads files for both.
* An event loop has its own client, made by its first request: sockets belong to a loop.

Errors name bucket and operation. The text of an answer is passed on only when nothing in it looks like a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
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
"""S3 refuses a signature that is older or newer than that."""
RENEW_BEFORE_SECONDS = 15 * 60
RENEW_URGENTLY_SECONDS = 10 * 60
RENEW_AGAIN_SECONDS = 60
"""As botocore has it: from 15 minutes before credentials end it tries to renew them, from 10 it must."""
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

# What botocore raises before the first byte of a request leaves.
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
    """Which bucket, where, and with how much patience. Times are in seconds.

    `endpoint_url`, `region` and `profile` are empty where the usual AWS chain decides; `path_style` is None
    where botocore does.
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

    def __str__(self) -> str:
        return f"bucket {self.name}" + (f" at {self.endpoint_url}" if self.endpoint_url else "")


class Request(msgspec.Struct, frozen=True):
    """What a request is for: its errors name it. `writes`: a lost answer leaves it in doubt."""

    operation: str
    path: str = ""
    writes: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.path}".rstrip()


class S3Client:
    """The requests of one store, from any number of event loops. Connections are made when they are needed."""

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
        """Between which times of the store's clock our steady clock began, by the `Date` of its last answer."""

    @property
    def clock_offset_millis(self) -> int | None:
        """See `Storage`. Our clock may be set meanwhile: the steady one tells how long ago the last answer came. A
        process that was stopped in the middle of a request learns less, and nothing that is wrong."""
        if self._their_start is None:
            return None
        passed = self._monotonic() - self._now()
        low, high = (int((start + passed) * 1000) for start in self._their_start)
        return max(low, min(high, 0))

    @contextlib.asynccontextmanager
    async def attempt(self, request: Request, size: int = 0) -> AsyncIterator[Any]:
        """The aiobotocore client for one attempt, which takes one of the store's connections.

        Whatever fails inside becomes an error of ours: Unavailable when nothing was applied and the same may
        succeed later; OutcomeUnknown when a write may have been applied; NotFound (`no_file`, `no_bucket`),
        AlreadyExists (`slot_taken`), Denied, InvalidInput and Exhausted as their classes say. `size`: bytes that
        go either way, for the time that it may take.
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
        """An answer to a request of that time, by the steady clock. Dates are in whole seconds."""
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
            # The answer may repeat what was sent, signed headers and all: nothing of it is chained.
            raise self._error_of_refusal(request, error) from None
        except Exception as error:
            raise self._error_of_failure(request, error) from None

    def _clean_text(self, text: str) -> str:
        """One short line of a stranger's text; empty when it may hold a secret."""
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
            return Unavailable(f"{about}: the answer was damaged on its way", path=request.path)
        if isinstance(error, ResponseParserError):
            return self.not_s3_error(request)
        reason = getattr(error, "kwargs", {}).get("error", error)
        if isinstance(reason, aiohttp.ClientConnectorCertificateError):
            return InvalidInput(
                f"{about}: the server's certificate is not trusted: {self._clean_text(str(reason.certificate_error))}",
                kind="bad_url",
                hint="check endpoint_url; a private authority's certificates go into AWS_CA_BUNDLE",
            )
        if isinstance(error, boto.SSLError):
            return Unavailable(
                f"{about}: TLS failed: {self._clean_text(str(reason))}",
                hint="is it https there?",
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
        """What comes from the credential chain: nothing of the request was sent."""
        if isinstance(error, _NO_CREDENTIALS):
            return Denied(
                f"{about}: no credentials ({type(error).__name__})",
                kind="no_credentials",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role;"
                " aws sso login renews a session; anonymous=true for a public bucket",
            )
        if isinstance(error, _CREDENTIALS_AWAY):
            return Unavailable(
                f"{about}: credentials could not be had: {self._clean_text(str(error))}",
                hint="the metadata service or credential process of this machine does not answer",
            )
        if isinstance(error, _BAD_SETTINGS):
            return InvalidInput(
                f"{about}: {self._clean_text(str(error))}",
                kind="bad_configuration",
                hint="look at ~/.aws/config, AWS_PROFILE and AWS_DEFAULT_REGION",
            )
        if isinstance(error, RuntimeError) and "refreshed credentials are still expired" in str(error):
            return Denied(
                f"{about}: the credentials have expired, and those that were to replace them, too",
                hint="renew what issues them: aws sso login, the role's session, the credential process",
            )
        return None

    def _doubt_error(self, request: Request, message: str, hint: str = "") -> AlpheusError:
        if request.writes:
            return OutcomeUnknown(
                f"{message}: it may or may not have been applied", hint=hint, path=request.path
            )
        return Unavailable(message, hint=hint, path=request.path)

    def not_s3_error(self, request: Request) -> AlpheusError:
        message = f"{request} in {self.bucket}: the answer is not one of an S3 server"
        hint = "check endpoint_url: another program, or a proxy, answers there"
        if request.writes:
            return OutcomeUnknown(message, hint=hint, path=request.path)
        return InvalidInput(message, kind="bad_url", hint=hint)

    def check_answer(self, request: Request, answer: dict[str, Any], *more: str) -> None:
        """Any web server says 200 to something; S3 gives an ETag with every object, and what `more` names."""
        if not answer.get("ETag") or any(answer.get(name) is None for name in more):
            raise self.not_s3_error(request)

    # -- an answer that refuses

    def _error_of_refusal(self, request: Request, error: boto.ClientError) -> AlpheusError:
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
                hint="check the role, its trust policy and what it is assumed with",
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
            return Unavailable(f"{about}: it was damaged on its way, nothing was applied", path=request.path)
        if code in _FULL or status == 507:
            return Exhausted(about, kind="no_space", hint="free space, or raise the quota", path=request.path)
        if status == 501 or code == "NotImplemented":
            return InvalidInput(
                about,
                kind="storage_unsuitable",
                hint="the store does not know what the request asks, such as If-None-Match: it cannot hold a catalog",
                path=request.path,
            )
        if code in _BUSY or status in (408, 409, 425, 429) or status >= 500:
            return self._doubt_error(request, about)
        if code == "InvalidObjectState":
            return InvalidInput(
                f"{about}: the object was archived",
                kind="storage_unsuitable",
                hint="restore it, and take the catalog out of the bucket's lifecycle rules",
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
        if code in _BELOW_A_FILE and request.writes:
            return InvalidInput(about, hint="no object may lie below another one", path=request.path)
        if code in _NO_SUCH_FILE and request.path and not request.writes:
            return file_not_there(request.path, f"s3://{self.bucket.name}")
        return self.not_s3_error(request) if status == 404 and not request.path else None

    def _region_error(self, code: str, status: int, region: str, about: str) -> AlpheusError | None:
        # A HEAD has no body: of it the header alone tells.
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
                hint="set the clock: signatures hold for 15 minutes",
            )
        if code in _EXPIRED:
            return Denied(
                f"{about}: the credentials have expired", hint="renew them, for example: aws sso login"
            )
        if code in _BAD_KEYS:
            return Denied(
                about, hint="the store does not know this access key, or the secret key is another one"
            )
        if status not in (401, 403, 405):
            return None
        hint = "the credentials lack a permission; STORAGE.md lists those that a catalog needs"
        if not request.writes and request.path:
            hint = (
                "the credentials need s3:GetObject, and s3:ListBucket on the bucket: without the latter S3 answers"
                " 403 for a file that is not there"
            )
        elif request.writes:
            hint = "the credentials need s3:PutObject here; a reader's or a read-only bucket has it not"
        return Denied(about, hint=hint, path=request.path)


class _NoRepetition(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's HTTP session, less aiohttp's second try on a pooled connection that was closed."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        if not hasattr(session, "_retry_connection"):
            raise AssertionError("this aiohttp names its repetition of requests otherwise")
        session._retry_connection = False
        return session


class _Session(AioSession):  # type: ignore[misc]
    """Signs with credentials that the driver renews, in place of botocore, which would do it in the event loop."""

    kept: AioCredentials | None = None

    async def get_credentials(self) -> Any:
        return self.kept


class _Connections:
    """One event loop's client and pool."""

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
        """What the AWS chain found, which may be able to get newer ones than `_kept`."""
        self._kept: AioCredentials | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renew_after = 0.0
        self._keeper: AsyncGenerator[None] | None = None

    @property
    def secrets(self) -> list[str]:
        """What no message may hold."""
        kept = self._kept
        return [] if kept is None else [s for s in (kept.access_key, kept.secret_key, kept.token) if s]

    async def open(self) -> str:
        """Make the client. Returns the region that it signs for."""
        client, self._source, self._kept = await asyncio.to_thread(_run, self._make)
        client.meta.events.register_last("before-parameter-build.s3", _no_redirect)
        client.meta.events.register_last("before-call.s3", _no_expectation)
        client.meta.events.register("before-call.s3", self._sending)
        client.meta.events.register("response-received.s3", self._received)
        self.client = client
        self._keeper = self._close_with_loop()
        await anext(self._keeper)
        return str(client.meta.region_name)

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        """A loop that ends closes its generators, and so the connections of programs that never close a store:
        aiohttp would fill their last screen with complaints."""
        try:
            yield
        finally:
            self._keeper = None
            await self.close()

    async def _make(self) -> tuple[Any, Any, AioCredentials | None]:
        """Runs in a loop of its own: it opens no socket that lives on."""
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
            # The driver brings its own: botocore's would turn a PUT over TLS into chunks with a trailer, which
            # many stores do not know, and whose body is not signed.
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
        """New credentials when the old ones end: in the background while these still hold, else now."""
        needed = getattr(self._source, "refresh_needed", None)
        if needed is None or not needed(RENEW_BEFORE_SECONDS):
            return
        is_urgent = needed(RENEW_URGENTLY_SECONDS)
        if self._renewal is None and (is_urgent or asyncio.get_running_loop().time() >= self._renew_after):
            self._renewal = asyncio.ensure_future(self._renew())
            self._renewal.add_done_callback(lambda task: task.cancelled() or task.exception())
        if is_urgent and self._renewal is not None:
            # It goes on when this request gives up: others wait for it too.
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
    """In a loop of its own, which may block. The coroutine is made there: a call that is cancelled before its thread
    begins leaves none behind."""
    return asyncio.run(call())


@functools.cache
def _loader(data_path: str | None) -> Any:
    """What botocore knows about S3: megabytes of JSON, read once a process."""
    return botocore.loaders.create_loader(data_path)


def _no_redirect(context: dict[str, Any], **_: object) -> None:
    """To the redirector it looks as if this request had been redirected already."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _no_expectation(params: dict[str, Any], **_: object) -> None:
    """`Expect: 100-continue` would cost a round trip before each body, and all of the patience on a server that never
    answers it."""
    params["headers"].pop("Expect", None)


def _may_have_been_sent(error: Exception, reason: object) -> bool:
    """`EndpointConnectionError` stands for a connection that broke, too."""
    return isinstance(error, boto.EndpointConnectionError) and not isinstance(
        reason, aiohttp.ClientConnectorError
    )


def _code(code: object) -> str:
    return code if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9_.]{1,64}", code) else ""
