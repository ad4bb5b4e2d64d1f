"""The reading verbs that catalog, snapshot and transaction share."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import cast

from alpheus.model_conversions import namespace_of, pipeline_of, table_of, view_of
from alpheus.models import Namespace, NamespaceName, Pipeline, PipelineName, Table, TableName, View, ViewName
from alpheus.session.arguments import (
    Name,
    NamespaceText,
    PipelineText,
    check_limit,
    namespace_text,
    parse_name,
    several,
)
from alpheus_journal import format as fmt
from alpheus_journal.errors import InvalidInput, NotFound
from alpheus_journal.format import Kind, ObjectName
from alpheus_journal.model.answers import Loaded, Page, StoredObject
from alpheus_journal.model.definition_messages import decode_definition
from alpheus_journal.model.definitions import (
    CatalogDef,
    Definition,
    NamespaceDef,
    PipelineDef,
    TableDef,
    ViewDef,
)
from alpheus_journal.storage import each_of

NAMESPACES_AT_ONCE = 8


_ABSENT = {
    Kind.NAMESPACE: "no_namespace",
    Kind.TABLE: "no_table",
    Kind.VIEW: "no_view",
    Kind.PIPELINE: "no_object",
}


_LISTED = {Kind.TABLE: "NAMESPACE_SHOW_TABLES", Kind.VIEW: "NAMESPACE_SHOW_VIEWS"}


class Reads(abc.ABC):
    """The reading verbs. Subclasses say which version is read, and which writes are on top."""

    @abc.abstractmethod
    async def _objects(self, names: list[ObjectName]) -> Loaded:
        """Load definitions, all at one version."""

    @abc.abstractmethod
    async def _page(
        self, version: int | None, kind: Kind, *, namespace: str, prefix: str, limit: int, after: str
    ) -> Page:
        """Load one page of names. `version` is that of the page before, or None for the first page."""

    def _note(self, type: str, name: ObjectName, prefix: str = "") -> None:
        """Called for each read. A serializable transaction records it."""
        return

    async def properties(self) -> dict[str, str]:
        """Return the catalog's own properties."""
        self._note("CATALOG_DESCRIBE", fmt.CATALOG)
        _, definition = await self._definition(fmt.CATALOG)
        return cast(CatalogDef, definition).properties

    async def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Return names of namespaces that begin with `prefix`, in key order, at most `limit`. With `after`, return only
        names after it (exclusive)."""
        self._note("CATALOG_SHOW_NAMESPACES", fmt.CATALOG, prefix)
        version, names = await self._names(Kind.NAMESPACE, "", prefix, limit, after)
        return [NamespaceName(name=name, version=version) for name in names]

    async def load_namespace(self, name: NamespaceText) -> Namespace:
        """Return a namespace. Raises NotFound (`no_namespace`) when it does not exist."""
        key = fmt.namespace_name(namespace_text(name))
        self._note("NAMESPACE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return namespace_of(key, cast(NamespaceDef, definition), version)

    async def namespace_exists(self, name: NamespaceText) -> bool:
        """Return whether a namespace exists."""
        key = fmt.namespace_name(namespace_text(name))
        self._note("NAMESPACE_EXISTS", key)
        return await self._exists(key)

    async def list_tables(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | TableName | None = None,
    ) -> list[TableName]:
        """Return the tables of a namespace, or of all namespaces (None), in key order. Raises NotFound (`no_namespace`)
        when the namespace does not exist.

        - `prefix`: only names that begin with it.
        - `limit`: the largest number of tables in all.
        - `after`: only names after this one (exclusive); for all namespaces it must be a full name.
        """
        version, names = await self._full_names(Kind.TABLE, namespace, prefix, limit, after)
        return [TableName(namespace=space, name=name, version=version) for space, name in names]

    async def load_table(self, name: Name) -> Table:
        """Return a table. Raises NotFound (`no_table`) when it does not exist."""
        key = parse_name(Kind.TABLE, name)
        self._note("TABLE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return table_of(key, cast(TableDef, definition), version)

    async def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Return several tables, in the order of `names`, all at one version and in one round trip. Raises NotFound,
        which names the first table that does not exist."""
        if isinstance(names, str):
            names = (names,)
        keys = [parse_name(Kind.TABLE, name) for name in several("names", names)]
        if not keys:
            return []
        for key in keys:
            self._note("TABLE_DESCRIBE", key)
        loaded = await self._objects(keys)
        return [
            table_of(key, cast(TableDef, decode_stored(key, stored, loaded.version)), loaded.version)
            for key, stored in zip(keys, loaded.objects, strict=True)
        ]

    async def table_exists(self, name: Name) -> bool:
        """Return whether a table exists."""
        self._note("TABLE_EXISTS", parse_name(Kind.TABLE, name))
        return await self._exists(parse_name(Kind.TABLE, name))

    async def list_views(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | ViewName | None = None,
    ) -> list[ViewName]:
        """Return the views of a namespace, or of all namespaces (None); see `list_tables` for the arguments."""
        version, names = await self._full_names(Kind.VIEW, namespace, prefix, limit, after)
        return [ViewName(namespace=space, name=name, version=version) for space, name in names]

    async def load_view(self, name: Name) -> View:
        """Return a view. Raises NotFound (`no_view`) when it does not exist."""
        key = parse_name(Kind.VIEW, name)
        self._note("VIEW_DESCRIBE", key)
        version, definition = await self._definition(key)
        return view_of(key, cast(ViewDef, definition), version)

    async def view_exists(self, name: Name) -> bool:
        """Return whether a view exists."""
        self._note("VIEW_EXISTS", parse_name(Kind.VIEW, name))
        return await self._exists(parse_name(Kind.VIEW, name))

    async def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """Return names of pipelines; see `list_namespaces` for the arguments."""
        self._note("CATALOG_SHOW_PIPELINES", fmt.CATALOG, prefix)
        version, names = await self._names(Kind.PIPELINE, "", prefix, limit, after)
        return [PipelineName(name=name, version=version) for name in names]

    async def load_pipeline(self, name: PipelineText) -> Pipeline:
        """Return a pipeline with the positions of its jobs. Raises NotFound (`no_object`) when none of its jobs ever
        ran."""
        key = fmt.pipeline_name(name.name if isinstance(name, PipelineName) else name)
        self._note("PIPELINE_DESCRIBE", key)
        version, definition = await self._definition(key)
        return pipeline_of(key, cast(PipelineDef, definition), version)

    async def _table(self, name: ObjectName) -> TableDef:
        """Return the definition of a native table. Raises InvalidInput (`not_native`) for another table."""
        return (await self._table_at(name))[1]

    async def _table_at(self, name: ObjectName) -> tuple[int, TableDef]:
        """Return the definition of a native table, and the version at which it was read."""
        version, definition = await self._definition(name)
        table = cast(TableDef, definition)
        if not table.native:
            raise InvalidInput(
                f"{name} is an Iceberg table; its rows are read and written through Iceberg",
                kind="not_native",
                hint=f"read its metadata at {table.iceberg_metadata_location}",
            )
        return version, table

    async def _exists(self, name: ObjectName) -> bool:
        loaded = await self._objects([name])
        return loaded.objects[0] is not None

    async def _definition(self, name: ObjectName) -> tuple[int, Definition]:
        loaded = await self._objects([name])
        return loaded.version, decode_stored(name, loaded.objects[0], loaded.version)

    async def _full_names(
        self,
        kind: Kind,
        namespace: NamespaceText | None,
        prefix: str,
        limit: int | None,
        after: str | TableName | ViewName | None,
    ) -> tuple[int, list[tuple[str, str]]]:
        """Return tables or views of one namespace or of all, as pairs (namespace, name), all at one version."""
        check_limit(limit)
        if namespace is None:
            begin = None if after is None else parse_name(kind, after)
            return await self._names_everywhere(kind, prefix, limit, begin)
        space = namespace_text(namespace)
        self._note(_LISTED[kind], fmt.namespace_name(space), prefix)
        last = after.name if isinstance(after, TableName | ViewName) else after
        version, names = await self._names(kind, space, prefix, limit, last)
        return version, [(space, name) for name in names]

    async def _names_everywhere(
        self, kind: Kind, prefix: str, limit: int | None, after: ObjectName | None
    ) -> tuple[int, list[tuple[str, str]]]:
        self._note("CATALOG_SHOW_NAMESPACES", fmt.CATALOG)
        first = after.namespace if after is not None else None
        version, spaces = await self._names(Kind.NAMESPACE, "", "", None, first)

        async def names_in(space: str, most: int | None = None) -> list[tuple[str, str]]:
            self._note(_LISTED[kind], fmt.namespace_name(space), prefix)
            last = after.name if after is not None and space == first else None
            try:
                names = (await self._names(kind, space, prefix, most, last, version))[1]
            except NotFound:
                if space != first:
                    raise
                names = []  # `after` is only a place in the order, so its namespace need not exist
            return [(space, name) for name in names]

        spaces = spaces if first is None else [first, *spaces]
        if limit is None:
            parts = await each_of(spaces, names_in, NAMESPACES_AT_ONCE)
            return version, [name for part in parts for name in part]
        found: list[tuple[str, str]] = []
        for space in spaces:
            found += await names_in(space, limit - len(found))
            if len(found) >= limit:
                break
        return version, found

    async def _names(
        self,
        kind: Kind,
        namespace: str,
        prefix: str,
        limit: int | None,
        after: str | None,
        version: int | None = None,
    ) -> tuple[int, list[str]]:
        """Return all names, or `limit` of them, page by page, all at one version: the given one, if any."""
        check_limit(limit)
        names: list[str] = []
        position = "" if after is None else after
        while True:
            page = await self._page(
                version,
                kind,
                namespace=namespace,
                prefix=prefix,
                limit=0 if limit is None else limit - len(names),
                after=position,
            )
            version = page.version
            names.extend(page.names)
            if not page.more or not page.names or (limit is not None and len(names) >= limit):
                return version, names if limit is None else names[:limit]
            position = page.names[-1]


def decode_stored(name: ObjectName, stored: StoredObject | None, version: int) -> Definition:
    if stored is None:
        raise NotFound(
            f"there is no {name} at version {version}",
            kind=_ABSENT.get(name.kind, "no_object"),
            version=version,
            hint=f"list the {name.kind.label}s to see the names",
        )
    return decode_definition(name.kind, stored.definition, stored.path)
