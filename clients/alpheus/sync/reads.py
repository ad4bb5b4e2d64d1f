"""The reading verbs of the synchronous client: each forwards to the asynchronous one."""

from __future__ import annotations

import abc
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from alpheus.models import Namespace, NamespaceName, Pipeline, PipelineName, Table, TableName, View, ViewName
from alpheus.session.arguments import Name, NamespaceText, PipelineText
from alpheus.session.reads import Reads
from alpheus.sync.portal import run

T = TypeVar("T")


class SyncReads(abc.ABC):
    """The reading verbs; see `alpheus.session.reads.Reads`."""

    @staticmethod
    def _run(coroutine: Coroutine[Any, Any, T]) -> T:
        return run(coroutine)

    @abc.abstractmethod
    def _reads(self) -> Reads: ...

    # -- generated from Reads by `python -m alpheus.sync`

    def properties(self) -> dict[str, str]:
        """The catalog's own properties."""
        return self._run(self._reads().properties())

    def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Names in key order that begin with `prefix`, after (exclusive) `after`, at most `limit`."""
        return self._run(self._reads().list_namespaces(prefix, limit, after))

    def load_namespace(self, name: NamespaceText) -> Namespace:
        """NotFound (`no_namespace`) when it is not there."""
        return self._run(self._reads().load_namespace(name))

    def namespace_exists(self, name: NamespaceText) -> bool:
        return self._run(self._reads().namespace_exists(name))

    def list_tables(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | TableName | None = None,
    ) -> list[TableName]:
        """The tables of a namespace, or of all namespaces (None): names that begin with `prefix`, in key order, at most
        `limit` in all, after (exclusive) `after`: a name, of all namespaces a full one. NotFound (`no_namespace`) when
        the namespace is not there."""
        return self._run(self._reads().list_tables(namespace, prefix, limit, after))

    def load_table(self, name: Name) -> Table:
        """NotFound (`no_table`) when it is not there."""
        return self._run(self._reads().load_table(name))

    def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Many tables in one round trip, all at one version, in the order of their names. NotFound names
        the first that is not there."""
        return self._run(self._reads().load_tables(names))

    def table_exists(self, name: Name) -> bool:
        return self._run(self._reads().table_exists(name))

    def list_views(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | ViewName | None = None,
    ) -> list[ViewName]:
        """As `list_tables`."""
        return self._run(self._reads().list_views(namespace, prefix, limit, after))

    def load_view(self, name: Name) -> View:
        """NotFound (`no_view`) when it is not there."""
        return self._run(self._reads().load_view(name))

    def view_exists(self, name: Name) -> bool:
        return self._run(self._reads().view_exists(name))

    def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """As `list_namespaces`."""
        return self._run(self._reads().list_pipelines(prefix, limit, after))

    def load_pipeline(self, name: PipelineText) -> Pipeline:
        """The positions of a pipeline's jobs. NotFound (`no_object`) when no job of it ever ran."""
        return self._run(self._reads().load_pipeline(name))
