"""The exception tree: a class says what a handler can do, `kind` names the exact cause.

    AlpheusError
    ├── Conflict         run the transaction again from scratch, when `retryable`
    ├── NotFound         the named thing does not exist
    ├── AlreadyExists    the named thing exists
    ├── NotEmpty         the named thing still holds something
    ├── InvalidInput     the caller must change the request
    ├── Expired          that part of the history was deleted; `oldest` says where the history begins
    ├── Unavailable      repeat the same request later; nothing was applied
    ├── Exhausted        a limit was reached; repeat the same request after `retry_after` seconds
    ├── OutcomeUnknown   the request may or may not have been applied; ask for the outcome of `transaction_id`
    ├── Corrupt          stored bytes at `path` break the format
    └── Denied           the caller lacks permission

Kinds are an append-only list (`KINDS`), because they cross the wire and scripts match them. Every error names
the thing that is wrong, and `hint` says what a person can do.
"""

from __future__ import annotations

from typing import Any, ClassVar

from alpheus_journal.urls import redact_urls

KINDS: frozenset[str] = frozenset(
    {
        # Conflict
        "object_changed",
        "namespace_changed",
        "position_moved",
        "already_exists_now",
        "column_ids_moved",
        "metadata_moved",
        "read_changed",
        "subscription_claimed",
        "rows_changed",
        # NotFound
        "no_catalog",
        "no_namespace",
        "no_table",
        "no_view",
        "no_object",
        "no_version",
        "no_file",
        "no_job",
        "no_transaction",
        "no_bucket",
        "no_column",
        "no_subscription",
        "no_tag",
        # AlreadyExists
        "catalog_exists",
        "namespace_exists",
        "table_exists",
        "object_exists",
        "slot_taken",
        "view_exists",
        "subscription_exists",
        "pipeline_exists",
        "tag_exists",
        # NotEmpty
        "namespace_not_empty",
        "directory_not_empty",
        # InvalidInput
        "bad_name",
        "bad_url",
        "bad_argument",
        "bad_schema",
        "bad_data",
        "bad_data_root",
        "bad_version",
        "bad_token",
        "bad_configuration",
        "future_version",
        "id_reused",
        "id_cancelled",
        "too_large",
        "not_native",
        "not_supported",
        "storage_unsuitable",
        "storage_unreachable",
        "two_histories",
        "newer_format",
        "clock_skew",
        "table_replaced",
        "undeclared_output",
        "nested_catalog",
        "object_bound",
        "not_iceberg",
        "sequence_reused",
        "not_replicated",
        "bad_predicate",
        "too_many_predicates",
        "source_changed",
        "other_declaration",
        "upgrade_needed",
        "output_added",
        "minimum_age_short",
        # Expired
        "version_expired",
        "upload_expired",
        "transaction_expired",
        "lease_expired",
        "files_expired",
        # Unavailable
        "storage_unavailable",
        "daemon_unavailable",
        "shutting_down",
        "storage_read_only",
        "replica_behind",
        # Exhausted
        "queue_full",
        "subscriber_too_slow",
        "too_many_subscribers",
        "no_space",
        "too_many_requests",
        "already_running",
        # OutcomeUnknown
        "reply_lost",
        # Corrupt
        "corrupt_node",
        "corrupt_definition",
        "corrupt_action",
        "corrupt_manifest",
        "corrupt_history",
        "corrupt_tree",
        "history_replaced",
        "foreign_write",
        "checkpoint_differs",
        "utf16_order",
        "corrupt_index",
        "state_drift",
        "head_missing",
        # Denied
        "denied",
        "no_credentials",
    }
)


class AlpheusError(Exception):
    """Base of every error that this product raises on purpose.

    `message` names the thing that is wrong; `kind` is one of `KINDS`; `hint` says what a person can do. `path` is a
    path below the catalog prefix and `version` a catalog version, where they apply. Possible secrets in the URLs of a
    message are hidden. Hints hold only examples and are shown unchanged.
    """

    default_kind: ClassVar[str] = ""

    def __init__(
        self, message: str, *, kind: str = "", hint: str = "", path: str = "", version: int | None = None
    ) -> None:
        message = redact_urls(message)
        super().__init__(message)
        self.message = message
        self.kind = kind or self.default_kind
        self.hint = hint
        self.path = path
        self.version = version
        if self.kind not in KINDS:
            raise AssertionError(f"unknown error kind {self.kind!r}")

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[AlpheusError], message: str, state: dict[str, Any]) -> AlpheusError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class Conflict(AlpheusError):
    """Another transaction committed first, and this transaction may no longer mean what its author intended. Nothing of
    this transaction became visible.

    `mine` is the operation or read of this transaction. `theirs` is the committed action ("drop table sales.orders");
    `principal`, `transaction_id`, `version` and `committed_at_millis` (0 when unknown) say who committed it, where and
    when. `retryable` says whether running this transaction again from scratch can succeed.
    """

    default_kind = "object_changed"

    def __init__(
        self, message: str, *, mine: str = "", theirs: str = "", transaction_id: str = "", principal: str = "",
        committed_at_millis: int = 0, retryable: bool = True, kind: str = "", hint: str = "", path: str = "",
        version: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, kind=kind, hint=hint, path=path, version=version)
        self.mine = mine
        self.theirs = theirs
        self.transaction_id = transaction_id
        self.principal = principal
        self.committed_at_millis = committed_at_millis
        self.retryable = retryable


class NotFound(AlpheusError):
    """The named thing does not exist."""

    default_kind = "no_object"


class AlreadyExists(AlpheusError):
    """The named thing exists already."""

    default_kind = "object_exists"


class NotEmpty(AlpheusError):
    """The named thing still holds something and was not changed."""

    default_kind = "namespace_not_empty"


class InvalidInput(AlpheusError):
    """The caller must change the request. Repeating the same request fails again."""

    default_kind = "bad_argument"


class Expired(AlpheusError):
    """The requested part of the history was deleted. `oldest` is the oldest version that is kept, where known."""

    default_kind = "version_expired"

    def __init__(
        self, message: str, *, oldest: int | None = None, kind: str = "", hint: str = "", path: str = "",
        version: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, kind=kind, hint=hint, path=path, version=version)
        self.oldest = oldest


class Unavailable(AlpheusError):
    """A store or a daemon cannot be reached, or does not work now. Nothing was applied; the same request may succeed
    later."""

    default_kind = "storage_unavailable"


class Exhausted(AlpheusError):
    """A limit was reached; nothing was applied. `retry_after` is in seconds, None when waiting does not help.

    `resume_token` says where a subscriber that was cut off resumes (`subscriber_too_slow`), else it is empty.
    """

    default_kind = "queue_full"

    def __init__(
        self, message: str, *, retry_after: float | None = None, resume_token: str = "", kind: str = "",
        hint: str = "", path: str = "", version: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, kind=kind, hint=hint, path=path, version=version)
        self.retry_after = retry_after
        self.resume_token = resume_token


class OutcomeUnknown(AlpheusError):
    """The request may or may not have been applied. `outcome(transaction_id)` answers which, as long as the history is
    kept."""

    default_kind = "reply_lost"

    def __init__(
        self, message: str, *, transaction_id: str = "", kind: str = "", hint: str = "", path: str = "",
        version: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, kind=kind, hint=hint, path=path, version=version)
        self.transaction_id = transaction_id


class Corrupt(AlpheusError):
    """Stored bytes at `path` break the format. None of them was used."""

    default_kind = "corrupt_node"


class Denied(AlpheusError):
    """The principal may not do this."""

    default_kind = "denied"


CLASSES: dict[str, type[AlpheusError]] = {
    cls.__name__: cls
    for cls in (
        AlpheusError, Conflict, NotFound, AlreadyExists, NotEmpty, InvalidInput, Expired, Unavailable,
        Exhausted, OutcomeUnknown, Corrupt, Denied,
    )
}  # fmt: skip
