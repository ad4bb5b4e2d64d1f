"""What errors of Spark's jobs tell of the store, as errors of ours.

A task's own requests come from pyarrow, and a scan's from Hadoop's S3A. Either ends as a text in an error of Spark. The
library's own requests raise the same classes (`alpheus_journal.storage.s3_client`).
"""

from __future__ import annotations

import re

from alpheus.spark.files.locations import hadoop_path, is_local
from alpheus.spark.files.task_writer import StoreError
from alpheus_journal.errors import AlpheusError, Denied, InvalidInput, Unavailable
from alpheus_journal.storage import Storage
from alpheus_journal.urls import redact_text

_REASONS = (
    (
        r"ExpiredToken|EXPIRED_TOKEN|(?i:token.{0,20} expired)",
        "denied",
        "renew the credentials of that process",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|bucket is located in|(HTTP status|Status Code:?) 301\b",
        "",
        "give the region of the bucket in the catalog's URL: ?region=NAME",
    ),
    (
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED",
        "",
        "set the clock of that machine right: the store refuses what it signs at a wrong time",
    ),
    (
        r"ACCESS_DENIED|Access ?Denied|Forbidden|PermissionError|Permission denied|(HTTP status|Status Code:?) 403\b",
        "denied",
        "allow that process to read and write below data/ of the catalog's prefix",
    ),
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist",
        "",
        "that process sees no such bucket: compare endpoint and account",
    ),
    (
        r"InvalidAccessKeyId|INVALID_ACCESS_KEY|InvalidToken|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH",
        "denied",
        "renew the credentials of that process where its session may have ended (MinIO answers so), or check its keys",
    ),
    (
        r"(?i:no credentials|unable to load credentials)",
        "",
        "give that process credentials: by its environment, its role, or profile=NAME in the catalog's URL",
    ),
    (
        r"ClassNotFound|NoClassDefFound|NoSuchMethod|No FileSystem for scheme",
        "",
        "start the session with the jars of alpheus.spark.packages(), and no others of hadoop-aws or the AWS SDK",
    ),
    (
        r"No module named|PYTHON_VERSION_MISMATCH",
        "",
        "give the executors the Python of the driver, with pyarrow (PYSPARK_PYTHON, or an archive in spark.archives)",
    ),
    (
        r"AWSBadRequestException",
        "denied",
        "renew the credentials of that process: to HEAD a store refuses an expired token without a reason",
    ),
    (
        r"SlowDown|SLOW_DOWN|(HTTP status|Status Code:?) 503\b",
        "unavailable",
        "the store asks for fewer requests: repeat the write or the read later, or with fewer tasks",
    ),
    (
        r"NETWORK_CONNECTION|Connection refused|Connection reset|ConnectException|ConnectionClosedException"
        r"|SocketTimeout|timed out|UnknownHost|(HTTP status|Status Code:?) 500\b",
        "unavailable",
        "let that process reach the endpoint in the catalog's URL",
    ),
)
"""A pattern of the errors of pyarrow, the AWS SDK and Spark, the kind of the problem, and the hint."""


def find_reason(told: str) -> tuple[str, str]:
    """Return the kind of a problem ("denied", "unavailable" or "") and a hint; both are empty for an unknown reason."""
    return next(((kind, hint) for pattern, kind, hint in _REASONS if re.search(pattern, told)), ("", ""))


def explain(told: str) -> tuple[str, str, str]:
    """Return what an error of Spark, pyarrow or the AWS SDK says: "denied", "unavailable" or "", then the message
    without stack traces and secrets, and a hint."""
    lines = [line.strip() for line in told.splitlines()]
    lines = [line for line in lines if line and not re.match(r"at |File \"|\.\.\. ", line)]
    text = "\n".join(lines)
    kind, hint = find_reason(text)
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    message = raised[-1] if "Traceback" in text and raised else " ".join(lines)
    return kind, redact_text(message)[:500], hint or "read the logs of that process"


def make_error(kind: str, message: str, hint: str) -> AlpheusError:
    """Return the error for a kind of `find_reason`."""
    if kind == "denied":
        return Denied(message, hint=hint)
    if kind == "unavailable":
        return Unavailable(message, kind="storage_unavailable", hint=hint)
    return InvalidInput(message, kind="bad_configuration", hint=hint)


_OF_LOCAL_DISK = re.compile(r"(?:[\w.$]+: )?\S*\bblockmgr-[0-9a-f-]{36}[^\n]*")
"""A text that names a folder of Spark's own blocks and shuffles, to the end of its line."""
_OF_S3A = re.compile(r"org\.apache\.hadoop\.fs\.s3a\.(\w+: [^\n]*)")
_OF_A_TASK = re.compile(rf"\b{StoreError.__name__}: (.*)")


def error_of(storage: Storage, told: str) -> AlpheusError | None:
    """Return the error that the text of an error of Spark stands for; None where neither the store nor a local disk of
    Spark is the cause."""
    found = _OF_A_TASK.search(told)
    if found is not None:
        kind, hint = find_reason(found[1])
        if not hint:
            kind, hint = "unavailable", "repeat the write; nothing of it is visible"
        return make_error(kind, f"a task could not store a file: {redact_text(found[1])[:500]}", hint)
    if (lost := _OF_LOCAL_DISK.search(told)) is not None:
        hint = "give the executors their folders back (spark.local.dir), or restart them; then repeat the write or read"
        return make_error(
            "unavailable", f"Spark lost files on a local disk: {redact_text(lost[0])[:500]}", hint
        )
    if is_local(storage) or hadoop_path(storage, "data", glob=False).removesuffix("data") not in told:
        return None
    kind, hint = find_reason(told)
    if not kind:
        return None
    reason = _OF_S3A.search(told)
    text = _line_of(told, kind) if reason is None else reason[1]
    return make_error(kind, f"Spark could not read a file: {redact_text(text)[:500]}", hint)


def _line_of(told: str, kind: str) -> str:
    """Return the last line that tells a reason of this kind: the error of the SDK, without stack traces."""
    lines = [line.strip() for line in told.splitlines() if not line.lstrip().startswith("at ")]
    found = (line for line in reversed(lines) if find_reason(line)[0] == kind)
    return next(found, told).removeprefix("Caused by: ")
