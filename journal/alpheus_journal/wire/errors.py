"""Errors between a daemon and its clients: status codes, and the detail that restores the exception."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from alpheus_journal.errors import (
    CLASSES,
    KINDS,
    AlpheusError,
    Conflict,
    Exhausted,
    Expired,
    OutcomeUnknown,
)
from alpheus_pb.v1 import service_pb2 as pb

ERROR_METADATA_KEY = "alpheus-error-bin"
"""The key of the trailing metadata that holds an ErrorDetail."""

STATUS_CODES: dict[str, str] = {
    "Conflict": "ABORTED",
    "NotFound": "NOT_FOUND",
    "AlreadyExists": "ALREADY_EXISTS",
    "NotEmpty": "FAILED_PRECONDITION",
    "InvalidInput": "INVALID_ARGUMENT",
    "Expired": "OUT_OF_RANGE",
    "Unavailable": "UNAVAILABLE",
    "Exhausted": "RESOURCE_EXHAUSTED",
    "OutcomeUnknown": "UNKNOWN",
    "Corrupt": "DATA_LOSS",
    "Denied": "PERMISSION_DENIED",
    "AlpheusError": "INTERNAL",
}
"""The only table from error class to gRPC status code."""

# Proxies may refuse metadata above 8 KiB. Names alone can take 2 KiB, twice in a message.
TEXT_BYTES_MAX = {"message": 2000, "hint": 600, "path": 600, "mine": 600, "theirs": 600, "principal": 300}


def class_name(error: AlpheusError) -> str:
    """Return the name of the class of `CLASSES` that an error belongs to."""
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in CLASSES)


def grpc_status_code_name(error: AlpheusError) -> str:
    """Return the name of the gRPC status code for an error ("NOT_FOUND")."""
    return STATUS_CODES[class_name(error)]


def cut(text: str, size_max: int) -> str:
    """Cut `text` to `size_max` bytes of UTF-8 with an ellipsis. Lone surrogates become `?`."""
    data = text.encode("utf-8", "replace")
    if len(data) > size_max:
        data = data[: size_max - 3]
        return data.decode("utf-8", "ignore") + "…"
    return data.decode()


def error_detail(error: AlpheusError) -> bytes:
    """Return the serialized ErrorDetail of an error, with texts cut to fit into metadata."""
    return error_message(error).SerializeToString()


def error_message(error: AlpheusError) -> pb.ErrorDetail:
    """Return the ErrorDetail of an error; see `error_detail`."""
    message = pb.ErrorDetail(
        error=class_name(error),
        kind=error.kind,
        message=cut(error.message, TEXT_BYTES_MAX["message"]),
        hint=cut(error.hint, TEXT_BYTES_MAX["hint"]),
        path=cut(error.path, TEXT_BYTES_MAX["path"]),
    )
    if error.version is not None and error.version >= 0:
        message.version = error.version
    if isinstance(error, Expired) and error.oldest is not None:
        message.oldest_version = error.oldest
    if isinstance(error, Exhausted):
        if error.retry_after is not None:
            message.retry_after_millis = min(max(0, round(error.retry_after * 1000)), (1 << 32) - 1)
        message.resume_token = error.resume_token
    if isinstance(error, Conflict):
        message.retryable = error.retryable
        message.mine = cut(error.mine, TEXT_BYTES_MAX["mine"])
        message.theirs = cut(error.theirs, TEXT_BYTES_MAX["theirs"])
        message.principal = cut(error.principal, TEXT_BYTES_MAX["principal"])
        message.committed_at_millis = min(max(0, error.committed_at_millis), (1 << 64) - 1)
    if isinstance(error, Conflict | OutcomeUnknown):
        message.transaction_id = error.transaction_id
    return message


def error_of_detail(data: bytes) -> AlpheusError:
    """Restore the error of an ErrorDetail.

    A class that this release does not know, and malformed bytes, become OutcomeUnknown, the only class that promises
    nothing. An unknown kind is kept.
    """
    try:
        message = pb.ErrorDetail.FromString(data)
    except DecodeError:
        return OutcomeUnknown(
            "the error that the daemon sent cannot be read", hint="use a newer release of the client"
        )
    return error_of_message(message)


def error_of_message(message: pb.ErrorDetail) -> AlpheusError:
    """Restore the error of an ErrorDetail; see `error_of_detail`."""
    cls = CLASSES.get(message.error, OutcomeUnknown)
    if cls is AlpheusError:
        cls = OutcomeUnknown
    extra: dict[str, Any] = {}
    if issubclass(cls, Expired) and message.HasField("oldest_version"):
        extra["oldest"] = message.oldest_version
    if issubclass(cls, Exhausted):
        if message.HasField("retry_after_millis"):
            extra["retry_after"] = message.retry_after_millis / 1000
        extra["resume_token"] = message.resume_token
    if issubclass(cls, Conflict):
        extra |= {
            "mine": message.mine,
            "theirs": message.theirs,
            "principal": message.principal,
            "committed_at_millis": message.committed_at_millis,
            "retryable": message.retryable,
        }
    if issubclass(cls, Conflict | OutcomeUnknown):
        extra["transaction_id"] = message.transaction_id
    error = cls(
        message.message,
        kind=message.kind if message.kind in KINDS else "",
        hint=message.hint,
        path=message.path,
        version=message.version if message.HasField("version") else None,
        **extra,
    )
    if message.kind:
        error.kind = message.kind
    return error
