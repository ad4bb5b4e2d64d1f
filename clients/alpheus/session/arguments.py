"""Arguments of callers: parse names, versions, limits and texts into the journal's values, or refuse them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar, cast

from alpheus.models import EPOCH, NamespaceName, PipelineName, TableName, ViewName
from alpheus_journal import format as fmt
from alpheus_journal.clock import parse_span
from alpheus_journal.errors import InvalidInput
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Back, Tag, Timestamp
from alpheus_journal.urls import has_scheme, redact_input

T = TypeVar("T")

Name = str | tuple[str, str] | TableName | ViewName
"""`"namespace.name"`, which is split at the last dot; `("namespace", "name")`; or a result of `list_tables` or
`list_views`, of which only the name counts."""

NamespaceText = str | NamespaceName
"""A namespace by its name, or a result of `list_namespaces`."""

PipelineText = str | PipelineName
"""A pipeline by its name, or a result of `list_pipelines`."""

AnyName = str | tuple[str, ...] | NamespaceName | TableName | ViewName
"""A namespace (text without a dot, or a 1-tuple), a table or view, or a result of the listings."""

Span = str | timedelta | float
TXN_TTL_DEFAULT = timedelta(milliseconds=fmt.TXN_TTL_MILLIS_DEFAULT)
"""A time span: a text such as "7d", "12h" or "1d12h", a timedelta, or a number of seconds."""

When = int | datetime | str | None
"""A version: None or "latest" (the head), a number, a decimal text, an aware datetime, an RFC 3339 text with a zone, or
the name of a tag. A negative number counts from the head: -1 is the head, -2 the version before it."""


def parse_name(kind: Kind, name: Name) -> ObjectName:
    """Parse the name of a table or view. Raises InvalidInput (`bad_name`), also for text without a dot."""
    if isinstance(name, TableName if kind is Kind.TABLE else ViewName):
        return ObjectName(kind, name.namespace, name.name)
    if isinstance(name, tuple | list) and len(name) == 2 and all(isinstance(part, str) for part in name):
        return ObjectName(kind, name[0], name[1])
    if isinstance(name, str) and not has_scheme(name):
        namespace, dot, last = name.rpartition(".")
        if dot and namespace and last:
            return ObjectName(kind, namespace, last)
    raise InvalidInput(
        f"{redact_input(name)[:120]!r} names no {kind.label}",
        kind="bad_name",
        hint="write namespace.name, for example sales.orders",
    )


def any_name(name: AnyName) -> ObjectName:
    """Parse the name of a namespace (text without a dot, or a 1-tuple), or of a table or view ("namespace.name"). A
    view comes back with the kind of a table."""
    if isinstance(name, NamespaceName):
        return fmt.namespace_name(name.name)
    if isinstance(name, ViewName):
        return ObjectName(Kind.TABLE, name.namespace, name.name)
    if isinstance(name, tuple | list) and len(name) == 1 and isinstance(name[0], str):
        return fmt.namespace_name(name[0])
    if isinstance(name, str) and name and "." not in name:
        return fmt.namespace_name(name)
    return parse_name(Kind.TABLE, cast(Name, name))


def namespace_text(name: NamespaceText) -> str:
    """Return the name of a namespace. Raises InvalidInput (`bad_name`) for a value that is not text: a request to a
    daemon would carry bytes as text, and None as an empty text."""
    if isinstance(name, NamespaceName):
        return name.name
    if not isinstance(name, str):
        raise InvalidInput(f"a namespace name must be text, not {type(name).__name__}", kind="bad_name")
    return name


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def parse_when(when: When) -> At:
    """Parse a version reference. Raises InvalidInput (`bad_version`)."""
    if when is None or when == fmt.LATEST:
        return None
    if isinstance(when, bool) or not isinstance(when, int | str | datetime):
        raise InvalidInput(
            f"{redact_input(when)[:120]} names no version", kind="bad_version", hint=_WHEN_HINT
        )
    if isinstance(when, str):
        if fmt.reads_as_number(when):
            when = int(when)
        elif _RFC_3339.fullmatch(when):
            try:
                when = datetime.fromisoformat(when.upper())
            except ValueError as error:
                raise InvalidInput(
                    f"{when!r} is not a time: {error}", kind="bad_version", hint=_WHEN_HINT
                ) from None
        elif fmt.reads_as_time(when):
            raise InvalidInput(
                f"{redact_input(when)[:80]!r} is not an RFC 3339 time with a zone",
                kind="bad_version",
                hint=_WHEN_HINT,
            )
        else:
            return _parse_tag(when)
    if isinstance(when, int):
        if not -fmt.VERSION_MAX_EXCLUSIVE <= when < fmt.VERSION_MAX_EXCLUSIVE:
            raise InvalidInput(f"version {when} is outside -2^32 to 2^32 - 1", kind="bad_version")
        return when if when >= 0 else Back(-when)
    if when.utcoffset() is None:
        raise InvalidInput(
            f"{when.isoformat()} has no zone",
            kind="bad_version",
            hint="pass an aware datetime, for example datetime.now(timezone.utc)",
        )
    return Timestamp(max(0, (when - EPOCH) // timedelta(milliseconds=1)))


def _parse_tag(name: str) -> Tag:
    try:
        if redact_input(name) != name or name.startswith("-"):
            raise InvalidInput("a URL with a secret, or an option")
        return Tag(fmt.check_name(name, fmt.EXTENSION_NAME_SIZE_BYTES, "tag", creating=True))
    except InvalidInput:
        raise InvalidInput(
            f"{redact_input(name)[:120]!r} is neither a version nor the name of a tag",
            kind="bad_version",
            hint=_WHEN_HINT,
        ) from None


_WHEN_HINT = (
    "give a version number (-1 is the newest), a time such as 2026-03-01T12:00:00Z, or the name of a tag"
)


def texts(what: str, values: Mapping[str, str] | None) -> dict[str, str]:
    """Properties as a plain dict. Raises InvalidInput when a key or value is not text."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} must be a mapping of texts to texts, not {type(values).__name__}")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"{what}: {key!r} = {value!r} does not map a text to a text")
    return dict(values)


def words(what: str, values: str | Iterable[str] | None) -> tuple[str, ...]:
    """The texts of an argument. A single text counts as one text, not as its characters."""
    if values is None:
        return ()
    found = (values,) if isinstance(values, str) else several(what, values)
    for value in found:
        if not isinstance(value, str):
            raise InvalidInput(f"{what}: {value!r} is not text")
    return found


def several(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """The values of an argument. Raises InvalidInput when the argument is not iterable."""
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{what} must be a list, not {type(values).__name__}")
    return tuple(values)


def check_limit(limit: int | None) -> None:
    """Check the limit of a listing. Raises InvalidInput."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(
            f"limit={limit!r} is not a positive number", hint="give a number from 1 up, or None for all"
        )


STALENESS_SECONDS_MAX = 1_000_000.0


def staleness_millis(staleness: float | None) -> int | None:
    """The staleness that `connect` accepts, in milliseconds, rounded down. Raises InvalidInput."""
    if staleness is None:
        return None
    hint = f"give 0 to {STALENESS_SECONDS_MAX:,.0f} seconds, or None"
    if isinstance(staleness, bool) or not isinstance(staleness, int | float):
        raise InvalidInput(f"staleness={staleness!r} is not a number of seconds", hint=hint)
    if not 0 <= staleness <= STALENESS_SECONDS_MAX:
        raise InvalidInput(f"staleness={staleness!r} is out of range", hint=hint)
    return int(staleness * 1000)


def span_millis(argument: str, span: Span) -> int:
    """Return a time span in milliseconds. Raises InvalidInput (`bad_argument`)."""
    hint = f'give {argument}="7d", timedelta(days=7), or a number of seconds'
    found: timedelta | None = None
    if isinstance(span, str):
        found = parse_span(span)
    elif isinstance(span, timedelta):
        found = span
    elif not isinstance(span, bool) and isinstance(span, int | float) and abs(span) < 1e10:
        found = timedelta(seconds=span)
    if found is None:
        raise InvalidInput(f"{argument}={span!r} is not a time span", kind="bad_argument", hint=hint)
    if not 0 <= (millis := found // timedelta(milliseconds=1)) <= fmt.TIME_MILLIS_MAX:
        raise InvalidInput(f"{argument}={span!r} is out of range", kind="bad_argument", hint=hint)
    return millis


def check_isolation(isolation: str) -> str:
    """Raise InvalidInput for anything but "snapshot" and "serializable"."""
    if isolation not in ("snapshot", "serializable"):
        raise InvalidInput(f'isolation={isolation!r} is neither "snapshot" nor "serializable"')
    return isolation


def refuse_unsupported(**given: object) -> None:
    """Refuse arguments that this release does not support. Raises InvalidInput, which names the first such argument.

    Empty values and None count as not given, and so do `branch="main"` and `isolation="snapshot"`.
    """
    defaults = {"branch": "main", "isolation": "snapshot"}
    for argument, value in given.items():
        if value is None or value is False or value == defaults.get(argument):
            continue
        if isinstance(value, list | tuple | dict | str) and not value:
            continue
        raise InvalidInput(
            f"{argument}={value!r} is not supported by this release",
            kind="not_supported",
            hint=f"leave {argument} out",
        )
