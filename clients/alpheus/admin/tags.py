"""Tags: names for versions, which stay readable as long as their tag exists."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from alpheus.model_conversions import tag_of
from alpheus.models import EPOCH, Commit, Tag
from alpheus.session.arguments import AnyName, When, any_name, parse_when, texts
from alpheus.session.session import Session
from alpheus_journal import format as fmt
from alpheus_journal.clock import uuid7_millis
from alpheus_journal.errors import AlreadyExists, InvalidInput, NotFound
from alpheus_journal.execute.rules.tags import EXPIRE_AT_MILLIS_MAX
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import At, Latest, Pinned, PinObject
from alpheus_journal.model.definitions import TagDef
from alpheus_journal.model.operations import CreateTag, DropTag, RenameObject, ReplaceTag
from alpheus_journal.tags.reader import decode_tag
from alpheus_journal.workspace.checks import check_tag_name

NAMES_AT_ONCE = 1000


Only = Iterable[AnyName] | Mapping[AnyName, When] | None
"""Names of objects, or a mapping of names to versions; None means all objects."""


async def pin_fields(
    session: Session, at: At, only: Sequence[PinObject] | None = None, without: Sequence[PinObject] = ()
) -> dict[str, Any]:
    """Pin a version, or objects of it. Return the fields of `SetTag` that name it."""
    pin = await session.call(
        "pin a version", lambda: session.access.create_pin(at, only=only, without=without)
    )
    if (only or without) and not (
        pin.chosen or pin.left_out
    ):  # it was asked by a field that it does not know
        raise InvalidInput(
            "the daemon is of an earlier version, which cannot tag chosen objects alone",
            hint="upgrade the daemon",
        )
    return pin.tag_fields


def parse_only(only: Only) -> list[PinObject] | None:
    """Parse the names of `only` and their versions. Raises InvalidInput (`bad_name`, `bad_version`)."""
    if only is None:
        return None
    versions = dict(only) if isinstance(only, Mapping) else {}
    found = [_pin_object("only", name, versions.get(name)) for name in _list_names("only", only)]
    if not found:
        raise InvalidInput("only= is empty", hint="leave only= out to tag all objects")
    return found


def parse_without(without: Iterable[AnyName] | None) -> list[PinObject]:
    """Parse the names of `without`. Raises InvalidInput (`bad_name`)."""
    if isinstance(without, Mapping):
        raise InvalidInput("without= takes names, and no versions")
    return [_pin_object("without", name, None) for name in _list_names("without", without or ())]


def _list_names(what: str, names: Any) -> list[Any]:
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise InvalidInput(
            f"{what}={names!r} is not a list of names", hint=f'give a list, such as {what}=["sales.orders"]'
        )
    return list(names)


def _pin_object(what: str, name: AnyName, version: When) -> PinObject:
    try:
        parsed = any_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error.message}", kind=error.kind, hint=error.hint) from None
    if parsed.kind is not Kind.NAMESPACE and not parsed.name:  # it would pass for all of the namespace
        raise InvalidInput(f"{what}: {name!r} has no name in its namespace", kind="bad_name")
    reference = parse_when(version)
    assert not isinstance(reference, Pinned | Latest)
    return PinObject(parsed.namespace, parsed.name, reference)


class AsyncTags:
    """The catalog's tags. A tag is a name for a version of the whole catalog. `at="name"` reads that version, wherever
    a version is given."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self,
        name: str,
        at: When = None,
        retain: timedelta | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        only: Only = None,
        without: Iterable[AnyName] | None = None,
    ) -> Commit:
        """Give a version a name. From the return of the call on, the version stays readable until the tag is deleted.

        - `at`: a version, a time, or another tag; None means the newest version.
        - `retain`: after this time the tag may be deleted; None means that it stays until somebody deletes it.
        - `only`: the objects that the tag holds: names of namespaces, tables and views ("sales", "sales.orders"), or a
          mapping of names to versions, times or tags, whose state of the object the tag holds. A namespace brings all
          that is in it. None means all objects.
        - `without`: names of objects that the tag leaves out.

        A tag with `only` or `without` shows the chosen objects alone, with their namespaces. What it leaves out is not
        kept by it.

        A name that reads as a number, as a date or as a time is refused (`bad_name`), as are the names `latest` and
        `head`. Raises AlreadyExists (`tag_exists`): of two callers with one name exactly one succeeds. Raises
        InvalidInput (`upgrade_needed`) in a catalog of revision 1, NotFound for a name in `only` or `without` that the
        version lacks, InvalidInput where no object is left, and the errors of `at`.
        """
        key = self._key(name, creating=True)
        check_tag_name(name)
        loaded = await self._session.load(None, [key])
        if loaded.objects[0] is not None:
            raise AlreadyExists(
                f"there is a {key} already", kind="tag_exists", hint="replace the tag, or choose another name"
            )
        fields = await self._fields(name, at, retain, message, properties, only, without)
        operation = CreateTag(tag_id=self._session.identities.uuid4(), **fields)
        return await self._session.commit_operation(operation, loaded.version)

    async def replace(
        self,
        name: str,
        at: When = None,
        retain: timedelta | None = None,
        message: str = "",
        properties: Mapping[str, str] | None = None,
        only: Only = None,
        without: Iterable[AnyName] | None = None,
    ) -> Commit:
        """Give the name to another version. Retention, message, properties and chosen objects are replaced, too; the id
        stays. The arguments are those of `create`. Raises NotFound (`no_tag`)."""
        begin, _ = await self._load(name)
        operation = ReplaceTag(**await self._fields(name, at, retain, message, properties, only, without))
        return await self._session.commit_operation(operation, begin)

    async def rename(self, name: str, new_name: str) -> Commit:
        """Give a tag another name. Raises NotFound (`no_tag`), and AlreadyExists (`tag_exists`)."""
        self._key(new_name, creating=True)
        check_tag_name(new_name)
        begin, _ = await self._load(name)
        operation = RenameObject(kind=Kind.TAG, namespace="", name=name, new_namespace="", new_name=new_name)
        return await self._session.commit_operation(operation, begin)

    async def delete(self, name: str) -> Commit:
        """Delete a tag. Its version is then kept no longer than other versions are. Raises NotFound (`no_tag`)."""
        begin, _ = await self._load(name)
        return await self._session.commit_operation(DropTag(name=name), begin)

    async def load(self, name: str) -> Tag:
        """Return one tag. Raises NotFound (`no_tag`)."""
        _, definition = await self._load(name)
        return tag_of(self._key(name), definition)

    async def list(self, prefix: str = "") -> builtins.list[Tag]:
        """Return the tags whose name begins with `prefix`, in order of names, all as of one version."""
        version = (await self._session.resolve(None)).version
        return [tag_of(key, definition) for key, definition in await tags_at(self._session, version, prefix)]

    async def previous(self, name: str) -> Tag | None:
        """Return the tag of the newest version below the version of this tag; None when there is none. Of several tags
        of that version, it is the one with the last name."""
        mine, others = await self._others(name)
        return max(
            (tag for tag in others if tag.version < mine.version),
            key=lambda tag: (tag.version, tag.name),
            default=None,
        )

    async def next(self, name: str) -> Tag | None:
        """Return the tag of the oldest version above the version of this tag; None when there is none. Of several tags
        of that version, it is the one with the first name."""
        mine, others = await self._others(name)
        return min(
            (tag for tag in others if tag.version > mine.version),
            key=lambda tag: (tag.version, tag.name),
            default=None,
        )

    # -- inside

    async def _others(self, name: str) -> tuple[Tag, builtins.list[Tag]]:
        self._key(name)
        tags = await self.list()
        mine = next((tag for tag in tags if tag.name == name), None)
        if mine is None:
            raise no_tag(name)
        return mine, tags

    def _key(self, name: str, *, creating: bool = False) -> ObjectName:
        return fmt.check_object_name(fmt.tag_name(name), self._session.keys, creating=creating)

    async def _load(self, name: str) -> tuple[int, TagDef]:
        """Return (version, definition) at the head. Raises NotFound (`no_tag`)."""
        key = self._key(name)
        loaded = await self._session.load(None, [key])
        stored = loaded.objects[0]
        if stored is None:
            raise no_tag(name)
        return loaded.version, decode_tag(stored)

    async def _fields(
        self,
        name: str,
        at: When,
        retain: timedelta | None,
        message: str,
        properties: Mapping[str, str] | None,
        only: Only,
        without: Iterable[AnyName] | None,
    ) -> dict[str, Any]:
        """Pin the version, after the other arguments were checked. Return the fields of `SetTag`."""
        expire_at, described = self._expiry(retain), texts("properties", properties)
        reference = parse_when(at)
        chosen, left_out = parse_only(only), parse_without(without)
        return {
            "name": name,
            "expire_at_millis": expire_at,
            "message": message,
            "properties": described,
            **await pin_fields(
                self._session, self._session.recent if reference is None else reference, chosen, left_out
            ),
        }

    def _expiry(self, retain: timedelta | None) -> int:
        """Return the time from which a tag may be deleted, in epoch milliseconds; 0 for never. Raises InvalidInput."""
        if retain is None:
            return 0
        if not isinstance(retain, timedelta):
            raise InvalidInput(
                f"retain={retain!r} is not a timedelta", hint="give timedelta(days=30), or None"
            )
        millis = retain // timedelta(milliseconds=1)
        now = uuid7_millis(self._session.identities.uuid7())
        if not 0 < millis <= EXPIRE_AT_MILLIS_MAX - now:
            last: datetime = EPOCH + timedelta(milliseconds=EXPIRE_AT_MILLIS_MAX)
            raise InvalidInput(
                f"retain={retain} is out of range: it must be positive, and end before {last:%Y-%m-%d}",
                hint="leave retain out to keep the tag until somebody deletes it",
            )
        return now + millis


async def tags_at(session: Session, at: At, prefix: str = "") -> list[tuple[ObjectName, TagDef]]:
    """Return the tags of one version in order of names."""
    found: list[tuple[ObjectName, TagDef]] = []
    after = ""
    while True:
        page = await session.page(at, Kind.TAG, namespace="", prefix=prefix, limit=NAMES_AT_ONCE, after=after)
        keys = [fmt.tag_name(name) for name in page.names]
        loaded = await session.load(at, keys) if keys else None
        for key, stored in zip(keys, loaded.objects if loaded else (), strict=True):
            assert stored is not None
            found.append((key, decode_tag(stored)))
        if not page.more or not page.names:
            return found
        after = page.names[-1]


def no_tag(name: str) -> NotFound:
    return NotFound(f"there is no tag {name}", kind="no_tag", hint="list the tags to see the names")
