"""Values to messages of the service and back, for the daemon and its clients.

This is one of the few places where protobuf and values meet (`alpheus_pb/v1/service.proto`). Encoding takes values of
this package. Decoding takes messages of the other side, which are input: malformed messages raise InvalidInput or
Corrupt, and never another exception. Nothing is decided here.

The module is long because each message's two directions stand together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from alpheus_journal.errors import (
    KINDS,
    AlpheusError,
    Corrupt,
    InvalidInput,
    OutcomeUnknown,
)
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model import action_rows, definition_messages, operation_messages
from alpheus_journal.model import definitions as objects
from alpheus_journal.model.answers import (
    At,
    Back,
    CatalogInfo,
    Change,
    ChangeType,
    CheckSummary,
    Collection,
    Committed,
    Damage,
    Dropped,
    EarlierFiles,
    Event,
    Expiry,
    FileTotals,
    Finding,
    Hold,
    Latest,
    LiveObject,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    Pin,
    Pinned,
    PinObject,
    SavedTransaction,
    SnapshotPart,
    StoredObject,
    Tag,
    Timestamp,
    UploadTotals,
    VersionInfo,
)
from alpheus_journal.model.definition_messages import decode_tag_objects, encode_tag_object, optional_number
from alpheus_journal.model.event_filter import FILTER_TEXTS_MAX, EventFilter
from alpheus_journal.model.expiry_rules import ExpiryRules, check_minimum_age, check_rules
from alpheus_journal.model.operations import Action, Operation, Read, RecordedTransaction, Transaction
from alpheus_journal.wire.errors import TEXT_BYTES_MAX, cut, error_message, error_of_message
from alpheus_pb.v1 import actions_pb2, objects_pb2
from alpheus_pb.v1 import service_pb2 as pb

PROTOCOL_VERSION = 1
"""The version of the service's protocol. A client refuses a daemon with a larger one."""

REPLY_BYTES_MAX = 64 << 20
"""The largest message that a daemon sends. Clients set `grpc.max_receive_message_length` to it."""

NAMES_COUNT_MAX = 10_000
"""The names in one Load request, and in one page of List."""

TRANSACTIONS_COUNT_MAX = 10_000
"""The transactions in one message of CommitMany, and also the withdrawn ids."""

READS_COUNT_MAX = 100_000
"""The reads of one transaction. A root of the default size has room for some thousand."""
ACTIONS_COUNT_MAX = 200_000
"""The actions of one recorded transaction, including reads. An empty action takes two bytes in a message, and hundreds
in memory."""


@contextmanager
def _encoding(what: str) -> Iterator[None]:
    """Raise InvalidInput for a value that no message can hold, such as a lone surrogate or a negative number."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{what}: {error}", kind="bad_argument") from None


# --- references ------------------------------------------------------------------------------------


def encode_at(at: At) -> pb.VersionRef:
    with _encoding("the requested version"):
        if at is None:
            return pb.VersionRef()
        if isinstance(at, Timestamp):
            return pb.VersionRef(timestamp_millis=at.millis)
        if isinstance(at, Back):
            return pb.VersionRef(back=at.count)
        if isinstance(at, Tag):
            return pb.VersionRef(tag=at.name)
        if isinstance(at, Pinned):
            return pb.VersionRef(version=at.version, pin=at.pin_path, chosen=at.is_chosen)
        if isinstance(at, Latest):
            return pb.VersionRef(staleness_millis=at.staleness_millis, session_token=at.session_token)
        return pb.VersionRef(version=at)


def decode_at(message: pb.VersionRef) -> At:
    which = message.WhichOneof("ref")
    if which == "version":
        return Pinned(message.version, message.pin, message.chosen) if message.pin else message.version
    if which == "timestamp_millis":
        return Timestamp(message.timestamp_millis)
    if which == "back":
        return Back(message.back)
    if which == "tag":
        return Tag(message.tag)
    staleness = message.staleness_millis if message.HasField("staleness_millis") else None
    if staleness is None and not message.session_token:
        return None
    return Latest(staleness, message.session_token)


_TYPES = {kind: objects_pb2.ObjectType.Name(int(kind)) for kind in Kind}


def encode_name(name: ObjectName) -> pb.ObjectName:
    try:  # without `_encoding`, because this runs for thousands of names
        return pb.ObjectName(type=_TYPES[name.kind], namespace_name=name.namespace, name=name.name)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"an object name: {error}", kind="bad_argument") from None


def decode_kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise InvalidInput(
            f"object type {number} is unknown", kind="not_supported", hint="use a newer release"
        ) from None


def decode_name(message: pb.ObjectName) -> ObjectName:
    return ObjectName(decode_kind(message.type), message.namespace_name, message.name)


def encode_version_info(value: VersionInfo) -> pb.ResolveResponse:
    return pb.ResolveResponse(
        version=value.version,
        created_at_millis=value.created_at_millis,
        token=value.token,
        pin=value.pin_path,
        chosen=value.is_chosen,
        lacking=value.lacking,
    )


def decode_version_info(message: pb.ResolveResponse) -> VersionInfo:
    return VersionInfo(
        version=message.version,
        created_at_millis=message.created_at_millis,
        token=message.token,
        pin_path=message.pin,
        is_chosen=message.chosen,
        lacking=dict(message.lacking),
    )


def encode_pin_request(
    at: At, only: Sequence[PinObject] | None, without: Sequence[PinObject]
) -> pb.CreatePinRequest:
    with _encoding("the objects to tag"):
        return pb.CreatePinRequest(
            at=encode_at(at),
            only=[_encode_pin_object(each) for each in only or ()],
            without=[_encode_pin_object(each) for each in without],
        )


def _encode_pin_object(value: PinObject) -> pb.CreatePinRequest.Object:
    at = None if value.at is None else encode_at(value.at)
    return pb.CreatePinRequest.Object(namespace_name=value.namespace, name=value.name, at=at)


def decode_pin_objects(messages: Iterable[pb.CreatePinRequest.Object]) -> tuple[PinObject, ...]:
    """Raises InvalidInput (`bad_version`) for a reference that means the newest version: None is the pin's version."""
    found = []
    for message in messages:
        at = decode_at(message.at) if message.HasField("at") else None
        if isinstance(at, Pinned | Latest):
            raise InvalidInput("an object to tag is named by a version, time or tag", kind="bad_version")
        found.append(PinObject(message.namespace_name, message.name, at))
    return tuple(found)


def encode_pin(value: Pin) -> pb.CreatePinResponse:
    fields = msgspec.structs.asdict(value)
    fields["chosen"] = [encode_tag_object(each) for each in value.chosen]
    fields["left_out"] = [encode_tag_object(each) for each in value.left_out]
    return pb.CreatePinResponse(**fields)


def decode_pin(message: pb.CreatePinResponse) -> Pin:
    return Pin(
        path=message.path,
        version=message.version,
        commit_id=message.commit_id,
        version_created_at_millis=message.version_created_at_millis,
        object_count=optional_number(message, "object_count"),
        table_count=optional_number(message, "table_count"),
        row_count=optional_number(message, "row_count"),
        chosen=decode_tag_objects(message.chosen),
        left_out=decode_tag_objects(message.left_out),
        lacking=dict(message.lacking),
    )


# --- catalog, objects, names -----------------------------------------------------------------------


def encode_info(value: CatalogInfo) -> pb.GetInfoResponse:
    return pb.GetInfoResponse(
        catalog_id=value.catalog_id,
        storage_url=value.storage_url,
        version_digits=value.version_digits,
        catalog=definition_messages.catalog_message(value.definition),
        version=value.version,
        software_version=value.software_version,
        protocol_version=PROTOCOL_VERSION,
        token=value.token,
        oldest_version=value.oldest_version,
        unverified_since_millis=value.unverified_since_millis,
        head_ahead_millis=value.head_ahead_millis,
    )


def decode_info(message: pb.GetInfoResponse) -> CatalogInfo:
    """Decode the answer of GetInfo. Raises InvalidInput (`newer_format`) if the daemon's protocol is newer."""
    if message.protocol_version > PROTOCOL_VERSION:
        raise InvalidInput(
            f"the daemon (alpheus {cut(message.software_version, 100)}) speaks protocol {message.protocol_version};"
            f" this client knows protocols up to {PROTOCOL_VERSION}",
            kind="newer_format",
            hint="use a client of the daemon's release, or of a newer one",
        )
    definition = definition_messages.decode_definition(
        Kind.CATALOG, message.catalog.SerializeToString(), "the daemon's answer"
    )
    assert isinstance(definition, objects.CatalogDef)
    return CatalogInfo(
        catalog_id=message.catalog_id,
        storage_url=message.storage_url,
        version_digits=message.version_digits,
        definition=definition,
        version=message.version,
        oldest_version=message.oldest_version,
        token=message.token,
        software_version=message.software_version,
        unverified_since_millis=message.unverified_since_millis,
        head_ahead_millis=message.head_ahead_millis,
    )


def encode_loaded(value: Loaded) -> pb.LoadResponse:
    return pb.LoadResponse(
        version=value.version,
        token=value.token,
        objects=[
            pb.LoadedObject()
            if stored is None
            else pb.LoadedObject(exists=True, path=stored.path, definition=stored.definition)
            for stored in value.objects
        ],
    )


def decode_loaded(message: pb.LoadResponse) -> Loaded:
    return Loaded(
        version=message.version,
        objects=tuple(
            StoredObject(stored.path, stored.definition) if stored.exists else None
            for stored in message.objects
        ),
        token=message.token,
    )


def encode_page(value: Page) -> pb.ListResponse:
    return pb.ListResponse(version=value.version, names=value.names, more=value.more, token=value.token)


def decode_page(message: pb.ListResponse) -> Page:
    return Page(version=message.version, names=tuple(message.names), more=message.more, token=message.token)


def encode_snapshot_request(at: At, namespaces: frozenset[str]) -> pb.SnapshotRequest:
    with _encoding("the namespaces"):
        return pb.SnapshotRequest(at=encode_at(at), namespaces=sorted(namespaces))


def encode_live(value: LiveObject) -> pb.LiveObjectMessage:
    stored = value.stored
    message = pb.LiveObjectMessage(
        object=encode_name(value.name), path=stored.path, definition=stored.definition
    )
    if stored.damage is not None:
        message.damage_kind = stored.damage.kind
        message.damage_message = cut(stored.damage.message, TEXT_BYTES_MAX["message"])
        message.damage_hint = cut(stored.damage.hint, TEXT_BYTES_MAX["hint"])
    return message


def decode_live(message: pb.LiveObjectMessage) -> LiveObject:
    damage = None
    if message.damage_kind:
        kind = message.damage_kind if message.damage_kind in KINDS else "corrupt_definition"
        damage = Damage(kind, message.damage_message, message.damage_hint)
    return LiveObject(decode_name(message.object), StoredObject(message.path, message.definition, damage))


def encode_part(value: SnapshotPart) -> pb.SnapshotResponse:
    return pb.SnapshotResponse(
        version=value.version,
        created_at_millis=value.created_at_millis,
        token=value.token,
        objects=[encode_live(live) for live in value.objects],
    )


def decode_part(message: pb.SnapshotResponse) -> SnapshotPart:
    return SnapshotPart(
        version=message.version,
        created_at_millis=message.created_at_millis,
        token=message.token,
        objects=tuple([decode_live(item) for item in message.objects]),
    )


# --- transactions ----------------------------------------------------------------------------------


def encode_transaction_request(value: Transaction) -> pb.CommitRequest:
    if value.writer is not None and not value.writer.name:
        raise InvalidInput("an idempotent writer needs a name")  # a message cannot express an empty name
    with _encoding(f"transaction {value.id}"):
        return pb.CommitRequest(
            transaction_id=value.id,
            begin_version=value.begin_version,
            isolation=objects_pb2.SERIALIZABLE if value.serializable else objects_pb2.SNAPSHOT,
            principal=value.principal,
            message=value.message,
            properties=value.properties or None,
            operations=[operation_messages.encode_operation(operation) for operation in value.operations],
            reads=[action_rows.read_message(read) for read in value.reads],
            key=value.key,
            writer_name=value.writer.name if value.writer else "",
            writer_sequence=value.writer.sequence if value.writer else 0,
            id_was_given=value.id_was_given,
            lease_path=value.lease_path,
        )


def decode_transaction_request(message: pb.CommitRequest) -> Transaction:
    """Decode a client's transaction, whose principal stays a claim. Raises InvalidInput for an unknown operation."""
    if len(message.reads) > READS_COUNT_MAX:
        raise InvalidInput(
            f"the transaction has {len(message.reads)} reads; the limit is {READS_COUNT_MAX}",
            kind="too_large",
            hint="read whole listings, or use snapshot isolation",
        )
    return decode_transaction_parts(message, message.operations, message.reads)


def decode_transaction_parts(
    message: pb.CommitRequest,
    operations: Iterable[actions_pb2.Operation],
    reads: Iterable[actions_pb2.ActionDef],
) -> Transaction:
    """Decode a transaction whose operations and reads are not in the message; see `decode_transaction_request`."""
    if message.writer_sequence and not message.writer_name:
        raise InvalidInput(f"the sequence {message.writer_sequence} comes without the name of a writer")
    return Transaction(
        id=message.transaction_id,
        begin_version=message.begin_version,
        operations=tuple([_decode_operation(index, item) for index, item in enumerate(operations)]),
        principal=message.principal,
        message=message.message,
        properties=definition_messages.texts_of(message.properties),
        serializable=message.isolation == objects_pb2.SERIALIZABLE,
        reads=tuple([_decode_read(index, item) for index, item in enumerate(reads)]),
        key=message.key,
        writer=action_rows.writer_of(message.writer_name, message.writer_sequence),
        id_was_given=message.id_was_given,
        lease_path=message.lease_path,
    )


def _decode_operation(index: int, message: actions_pb2.Operation) -> Operation:
    try:
        operation = operation_messages.decode_operation(message)
    except ValueError as error:
        raise InvalidInput(f"operation {index}: {error}", kind="bad_argument") from None
    if operation is None:
        raise InvalidInput(
            f"operation {index} is empty or of an unknown kind",
            kind="not_supported",
            hint="use a newer daemon",
        )
    return operation


def _decode_read(index: int, message: actions_pb2.ActionDef) -> Read:
    if not action_rows.is_read(message):
        raise InvalidInput(f"read {index} is of an unknown type", kind="not_supported")
    try:
        return action_rows.decode_read(message, "a request")
    except Corrupt as error:
        raise InvalidInput(f"read {index}: {error.message}", kind="bad_argument") from error


ROWS_TOLD_MAX = (1 << 63) - 1
"""The most rows or files that an answer can name. Tables hold fewer, but a transaction can drop and undrop many,
repeatedly."""


def encode_committed(value: Committed) -> pb.CommitResponse:
    return pb.CommitResponse(
        version=value.version,
        created_at_millis=value.created_at_millis,
        duplicate=value.duplicate,
        token=value.token,
        rows_added=min(value.rows_added, ROWS_TOLD_MAX),
        rows_removed=min(value.rows_removed, ROWS_TOLD_MAX),
        files_added=min(value.files_added, ROWS_TOLD_MAX),
        transaction_id=value.transaction_id,
    )


def decode_committed(message: pb.CommitResponse, transaction_id: str) -> Committed:
    return Committed(
        version=message.version,
        transaction_id=message.transaction_id or transaction_id,
        created_at_millis=message.created_at_millis,
        token=message.token,
        duplicate=message.duplicate,
        rows_added=message.rows_added,
        rows_removed=message.rows_removed,
        files_added=message.files_added,
    )


def encode_commit_answer(transaction_id: str, answer: Committed | AlpheusError) -> pb.CommitAnswer:
    if isinstance(answer, AlpheusError):
        return pb.CommitAnswer(transaction_id=transaction_id, error=error_message(answer))
    return pb.CommitAnswer(transaction_id=transaction_id, committed=encode_committed(answer))


def decode_commit_answer(message: pb.CommitAnswer) -> Committed | AlpheusError:
    """Decode the answer for `message.transaction_id`. A malformed answer becomes OutcomeUnknown."""
    if message.WhichOneof("answer") == "committed":
        return decode_committed(message.committed, message.transaction_id)
    error = error_of_message(message.error)
    if isinstance(error, OutcomeUnknown) and not error.transaction_id:
        error.transaction_id = message.transaction_id
    return error


_OUTCOME_STATES = {"unknown": pb.UNKNOWN, "committed": pb.COMMITTED, "cancelled": pb.CANCELLED}


def encode_outcome(value: Outcome) -> pb.GetOutcomeResponse:
    message = pb.GetOutcomeResponse(state=_OUTCOME_STATES[value.state], begin_version=value.begin_version)
    if value.commit is not None:
        message.commit.CopyFrom(encode_committed(value.commit))
    return message


def decode_outcome(message: pb.GetOutcomeResponse, transaction_id: str) -> Outcome:
    if message.state == pb.COMMITTED:
        commit = decode_committed(message.commit, transaction_id)
        return Outcome(state="committed", commit=commit, begin_version=message.begin_version)
    return Outcome(state="cancelled" if message.state == pb.CANCELLED else "unknown")


# --- events and the log ----------------------------------------------------------------------------

_UNKNOWN_TYPE = "UNKNOWN_"


def _encode_action(action: Action) -> actions_pb2.ActionDef:
    if not action.type.startswith(_UNKNOWN_TYPE):
        return action_rows.action_message(action)
    # The type of a foreign writer's action is passed on as a number.
    message = action_rows.action_message(msgspec.structs.replace(action, type="TRANSACTION"))
    message.type = int(action.type.removeprefix(_UNKNOWN_TYPE))  # type: ignore[assignment]
    return message


def encode_recorded(value: RecordedTransaction) -> pb.RecordedTransaction:
    return pb.RecordedTransaction(
        header=action_rows.header_message(value),
        actions=[
            *(_encode_action(action) for action in value.actions),
            *(action_rows.read_message(read) for read in value.reads),
        ],
    )


def decode_recorded(message: pb.RecordedTransaction) -> RecordedTransaction:
    """Decode a recorded transaction. Raises Corrupt (`corrupt_action`) for a malformed action."""
    if len(message.actions) > ACTIONS_COUNT_MAX:
        raise Corrupt(
            f"one transaction has {len(message.actions)} actions; the limit is {ACTIONS_COUNT_MAX}",
            kind="corrupt_action",
        )
    reads = [action for action in message.actions if action_rows.is_read(action)]
    return action_rows.decode_header(
        message.header,
        tuple(
            action_rows.decode_action(action, "a message")
            for action in message.actions
            if not action_rows.is_read(action)
        ),
        tuple(action_rows.decode_read(read, "a message") for read in reads),
    )


_CHANGE_NUMBERS: dict[str, pb.ChangeType] = {
    "created": pb.CREATED,
    "updated": pb.UPDATED,
    "dropped": pb.DROPPED,
}
_CHANGE_TYPES: dict[int, ChangeType] = {pb.CREATED: "created", pb.UPDATED: "updated", pb.DROPPED: "dropped"}


def encode_change(value: Change) -> pb.ChangeMessage:
    return pb.ChangeMessage(
        object=encode_name(value.name),
        type=_CHANGE_NUMBERS[value.type],
        path_before=value.path_before,
        path_after=value.path_after,
        definition_before=value.definition_before or b"",
        definition_after=value.definition_after or b"",
    )


def decode_change(message: pb.ChangeMessage) -> Change:
    # A stored definition always has an id, so empty bytes mean that there is none.
    if message.type not in _CHANGE_TYPES:
        raise Corrupt(f"change type {message.type} is unknown", kind="corrupt_action")
    return Change(
        name=decode_name(message.object),
        type=_CHANGE_TYPES[message.type],
        path_before=message.path_before,
        path_after=message.path_after,
        definition_before=message.definition_before or None,
        definition_after=message.definition_after or None,
    )


def encode_event(value: Event) -> pb.EventMessage:
    return pb.EventMessage(
        version=value.version,
        created_at_millis=value.created_at_millis,
        token=value.token,
        transactions=[encode_recorded(transaction) for transaction in value.transactions],
        changes=[encode_change(change) for change in value.changes],
    )


def decode_event(message: pb.EventMessage) -> Event:
    return Event(
        version=message.version,
        created_at_millis=message.created_at_millis,
        token=message.token,
        transactions=tuple(decode_recorded(transaction) for transaction in message.transactions),
        changes=tuple(decode_change(change) for change in message.changes),
    )


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `Access.events`."""

    after: int | str | None = None
    until: int | None = None
    follow: bool = False
    filter: EventFilter = EventFilter()
    details: bool = False


def encode_events_request(query: EventsQuery) -> pb.EventsRequest:
    with _encoding("the range of events"):
        message = pb.EventsRequest(
            follow=query.follow,
            namespaces=sorted(query.filter.namespaces),
            names=sorted(query.filter.names),
            kinds=[objects_pb2.ObjectType.Name(int(kind)) for kind in sorted(query.filter.kinds)],
            details=query.details,
            name_patterns=sorted(query.filter.name_patterns),
            actions=sorted(query.filter.actions),
            also=[encode_name(name) for name in sorted(query.filter.also)],
        )
        if isinstance(query.after, str):
            message.after_token = query.after
        elif query.after is not None:
            message.after_version = query.after
        if query.until is not None:
            message.until_version = query.until
    return message


def decode_events_request(message: pb.EventsRequest) -> EventsQuery:
    """Decode a request for events. Raises InvalidInput for an unknown kind and a too long filter (`too_large`)."""
    after: int | str | None = None
    for what in ("namespaces", "names", "kinds", "name_patterns", "actions", "also"):
        if len(getattr(message, what)) > FILTER_TEXTS_MAX:
            raise InvalidInput(
                f"the filter has {len(getattr(message, what))} {what}; the limit is {FILTER_TEXTS_MAX}",
                kind="too_large",
                hint="ask for whole namespaces, for a pattern, or for everything",
            )
    which = message.WhichOneof("after")
    if which is not None:
        after = message.after_version if which == "after_version" else message.after_token
    return EventsQuery(
        after=after,
        until=message.until_version if message.HasField("until_version") else None,
        follow=message.follow,
        filter=EventFilter(
            namespaces=frozenset(message.namespaces),
            names=frozenset(message.names),
            kinds=frozenset(decode_kind(kind) for kind in message.kinds),
            name_patterns=frozenset(message.name_patterns),
            actions=frozenset(message.actions),
            also=frozenset(decode_name(name) for name in message.also),
        ),
        details=message.details,
    )


def encode_log_entry(value: LogEntry) -> pb.LogResponse:
    return pb.LogResponse(
        version=value.version,
        created_at_millis=value.created_at_millis,
        transaction=encode_recorded(value.transaction),
    )


def decode_log_entry(message: pb.LogResponse) -> LogEntry:
    return LogEntry(
        version=message.version,
        created_at_millis=message.created_at_millis,
        transaction=decode_recorded(message.transaction),
    )


# --- the past, and saved transactions --------------------------------------------------------------


def encode_dropped(value: Dropped) -> pb.DroppedObject:
    return pb.DroppedObject(
        object=encode_name(value.name),
        version=value.version,
        dropped_version=value.dropped_version,
        dropped_at_millis=value.dropped_at_millis,
        transaction_id=value.transaction_id,
        principal=value.principal,
    )


def decode_dropped(message: pb.DroppedObject) -> Dropped:
    return Dropped(
        name=decode_name(message.object),
        version=message.version,
        dropped_version=message.dropped_version,
        dropped_at_millis=message.dropped_at_millis,
        transaction_id=message.transaction_id,
        principal=message.principal,
    )


def encode_saved(value: SavedTransaction) -> pb.SavedTransactionMessage:
    return pb.SavedTransactionMessage(
        transaction=encode_transaction_request(value.transaction),
        began_at_millis=value.began_at_millis,
        expire_at_millis=value.expire_at_millis,
        operation_count=value.operation_count,
        resumable=value.resumable,
        damage=value.damage,
    )


def decode_saved(message: pb.SavedTransactionMessage) -> SavedTransaction:
    return SavedTransaction(
        transaction=decode_transaction_request(message.transaction),
        began_at_millis=message.began_at_millis,
        expire_at_millis=message.expire_at_millis,
        operation_count=message.operation_count,
        resumable=message.resumable,
        damage=message.damage,
    )


# --- expiry and collection -------------------------------------------------------------------------


def encode_expire_request(rules: ExpiryRules, *, dry_run: bool) -> pb.ExpireRequest:
    """Encode a request to expire. Raises InvalidInput for rules that make no sense."""
    check_rules(rules)
    return pb.ExpireRequest(**msgspec.structs.asdict(rules), dry_run=dry_run)


def decode_expire_request(message: pb.ExpireRequest) -> ExpiryRules:
    return ExpiryRules(
        older_than_millis=message.older_than_millis,
        keep_versions=message.keep_versions,
        pipeline_hold_millis=message.pipeline_hold_millis,
    )


def encode_expiry(value: Expiry) -> pb.ExpireResponse:
    return pb.ExpireResponse(
        head=value.head,
        first=value.first,
        wanted=value.wanted,
        oldest=value.oldest,
        expired=value.expired,
        holds=[pb.ExpiryHold(**msgspec.structs.asdict(hold)) for hold in value.holds],
    )


def decode_expiry(message: pb.ExpireResponse) -> Expiry:
    return Expiry(
        head=message.head,
        first=message.first,
        wanted=message.wanted,
        oldest=message.oldest,
        expired=message.expired,
        holds=tuple(
            Hold(kind=hold.kind, name=hold.name, version=hold.version, let_go=hold.let_go)
            for hold in message.holds
        ),
    )


def encode_collect_request(minimum_age_millis: int, *, dry_run: bool) -> pb.CollectRequest:
    """Encode a request to collect. Raises InvalidInput for an age that is no time span."""
    check_minimum_age(minimum_age_millis)
    return pb.CollectRequest(minimum_age_millis=minimum_age_millis, dry_run=dry_run)


def encode_collection(value: Collection) -> pb.CollectResponse:
    return pb.CollectResponse(
        cutoff_millis=max(value.cutoff_millis, 0),
        fence_version=value.fence_version,
        first_version=value.first_version,
        last_version=max(value.last_version, 0),
        unreferenced=_encode_totals(value.unreferenced),
        deleted=_encode_totals(value.deleted),
        kept_by=_encode_totals(value.kept_by),
        young=pb.FileTotals(files=value.young.files, size_bytes=value.young.size_bytes),
        uploads=pb.UploadTotals(**msgspec.structs.asdict(value.uploads)),
        earlier=[
            pb.EarlierFiles(
                table_id=one.table_id,
                table=one.table,
                start_version=one.start,
                files=pb.FileTotals(files=one.files.files, size_bytes=one.files.size_bytes),
            )
            for one in value.earlier
        ],
    )


def decode_collection(message: pb.CollectResponse) -> Collection:
    return Collection(
        cutoff_millis=message.cutoff_millis,
        fence_version=message.fence_version if message.HasField("fence_version") else None,
        first_version=message.first_version,
        last_version=message.last_version,
        unreferenced=_decode_totals(message.unreferenced),
        deleted=_decode_totals(message.deleted),
        kept_by=_decode_totals(message.kept_by),
        young=FileTotals(files=message.young.files, size_bytes=message.young.size_bytes),
        uploads=_decode_uploads(message.uploads),
        earlier=tuple(
            EarlierFiles(
                table_id=one.table_id,
                table=one.table,
                start=one.start_version,
                files=FileTotals(files=one.files.files, size_bytes=one.files.size_bytes),
            )
            for one in message.earlier
        ),
    )


def _decode_uploads(message: pb.UploadTotals) -> UploadTotals:
    return UploadTotals(
        abandoned=message.abandoned,
        aborted=message.aborted,
        kept=message.kept,
        young=message.young,
        skipped=tuple(message.skipped),
    )


def _encode_totals(values: Mapping[str, FileTotals]) -> dict[str, pb.FileTotals]:
    return {key: pb.FileTotals(files=one.files, size_bytes=one.size_bytes) for key, one in values.items()}


def _decode_totals(messages: Mapping[str, pb.FileTotals]) -> dict[str, FileTotals]:
    # Protobuf keeps no order of a map.
    return {
        key: FileTotals(files=one.files, size_bytes=one.size_bytes) for key, one in sorted(messages.items())
    }


# --- check -----------------------------------------------------------------------------------------


def encode_check(value: Finding | CheckSummary) -> pb.CheckResponse:
    if isinstance(value, Finding):
        return pb.CheckResponse(
            kind=value.kind, path=value.path, version=value.version, message=value.message
        )
    return pb.CheckResponse(
        versions_checked=value.versions,
        nodes_checked=value.nodes,
        definitions_checked=value.definitions,
        manifests_checked=value.manifests,
        findings=value.findings,
        given_up=[objects_pb2.VersionRange(first=first, last=last) for first, last in value.given_up],
    )


def decode_check(message: pb.CheckResponse) -> Finding | CheckSummary:
    """Decode a finding, or the summary, which is the message without a kind."""
    if message.kind:
        return Finding(
            kind=message.kind,
            message=message.message,
            path=message.path,
            version=message.version if message.HasField("version") else None,
        )
    return CheckSummary(
        versions=message.versions_checked,
        nodes=message.nodes_checked,
        definitions=message.definitions_checked,
        manifests=message.manifests_checked,
        findings=message.findings,
        given_up=tuple((one.first, one.last) for one in message.given_up),
    )
