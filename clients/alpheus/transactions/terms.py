"""The terms of a transaction: the arguments of `transaction`, checked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from alpheus.session.arguments import check_isolation, refuse_unsupported, texts
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput
from alpheus_journal.model.operations import Writer


class TransactionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a transaction.

    - `id`: empty means that the transaction makes a fresh one.
    - `is_fresh`: the given id was made for this transaction, and no commit carried it yet.
    - `saved`: resume the saved transaction of this id.
    """

    message: str = ""
    properties: dict[str, str] = {}
    id: str = ""
    is_fresh: bool = False
    serializable: bool | None = False
    """None, until the begin: the catalog's default."""
    key: str = ""
    writer: Writer | None = None
    saved: bool = False


def terms_of(
    isolation: str | None,
    message: str,
    properties: Mapping[str, str] | None,
    branch: str,
    key: str | None,
    writer: tuple[str, int] | None,
    id: str | None = None,
) -> TransactionTerms:
    """Check the arguments of `transaction`. Raises InvalidInput."""
    refuse_unsupported(branch=branch)
    if isolation is not None:
        check_isolation(isolation)
    if not isinstance(message, str):
        raise InvalidInput(f"message={message!r} is not text")
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidInput(
            f"key={key!r} is not a text, or is empty",
            hint='give a text such as "nightly_load/2026-03-01"',
        )
    return TransactionTerms(
        message=message,
        properties=texts("properties", properties),
        id="" if id is None else check_id(id),
        serializable=None if isolation is None else isolation == "serializable",
        key=key or "",
        writer=None if writer is None else _writer_of(writer),
    )


def _writer_of(value: object) -> Writer:
    if (
        isinstance(value, tuple | list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
        and not isinstance(value[1], bool)
        and value[0]
        and value[1] >= 0
    ):
        return Writer(name=value[0], sequence=value[1])
    raise InvalidInput(
        f"writer={value!r} is not a pair (name, sequence)",
        hint='give a text and a number from 0 up, for example ("loader", 7)',
    )


def check_id(id: object) -> str:
    """Return a transaction id that a user gave. Raises InvalidInput for a value that is not a version 7 uuid."""
    if not (isinstance(id, str) and fmt.is_uuid(id) and id[14] == "7"):
        raise InvalidInput(
            f"id={id!r} is not a version 7 uuid", hint="write the uuid in lower case, with hyphens"
        )
    return id
