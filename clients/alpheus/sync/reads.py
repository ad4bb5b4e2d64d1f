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
        """Return the catalog's own properties."""
        return self._run(self._reads().properties())

    def list_namespaces(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[NamespaceName]:
        """Return names of namespaces that begin with `prefix`, in key order, at most `limit`. With `after`, return only
        names after it (exclusive)."""
        return self._run(self._reads().list_namespaces(prefix, limit, after))

    def load_namespace(self, name: NamespaceText) -> Namespace:
        """Return a namespace. Raises NotFound (`no_namespace`) when it does not exist."""
        return self._run(self._reads().load_namespace(name))

    def namespace_exists(self, name: NamespaceText) -> bool:
        """Return whether a namespace exists."""
        return self._run(self._reads().namespace_exists(name))

    def list_tables(
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
        return self._run(self._reads().list_tables(namespace, prefix, limit, after))

    def load_table(self, name: Name) -> Table:
        """Return a table. Raises NotFound (`no_table`) when it does not exist."""
        return self._run(self._reads().load_table(name))

    def load_tables(self, names: Iterable[Name]) -> list[Table]:
        """Return several tables, in the order of `names`, all at one version and in one round trip. Raises NotFound,
        which names the first table that does not exist."""
        return self._run(self._reads().load_tables(names))

    def table_exists(self, name: Name) -> bool:
        """Return whether a table exists."""
        return self._run(self._reads().table_exists(name))

    def list_views(
        self,
        namespace: NamespaceText | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: str | ViewName | None = None,
    ) -> list[ViewName]:
        """Return the views of a namespace, or of all namespaces (None); see `list_tables` for the arguments."""
        return self._run(self._reads().list_views(namespace, prefix, limit, after))

    def load_view(self, name: Name) -> View:
        """Return a view. Raises NotFound (`no_view`) when it does not exist."""
        return self._run(self._reads().load_view(name))

    def view_exists(self, name: Name) -> bool:
        """Return whether a view exists."""
        return self._run(self._reads().view_exists(name))

    def list_pipelines(
        self, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[PipelineName]:
        """Return names of pipelines; see `list_namespaces` for the arguments."""
        return self._run(self._reads().list_pipelines(prefix, limit, after))

    def load_pipeline(self, name: PipelineText) -> Pipeline:
        """Return a pipeline with the positions of its jobs. Raises NotFound (`no_object`) when none of its jobs ever
        ran."""
        return self._run(self._reads().load_pipeline(name))
