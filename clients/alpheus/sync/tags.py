"""Tags for synchronous code."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from alpheus.admin.tags import AsyncTags, Only
from alpheus.models import Commit, Tag
from alpheus.session.arguments import AnyName, When
from alpheus.sync.portal import run


class Tags:
    """The catalog's tags. A tag is a name for a version of the whole catalog. `at="name"` reads that version, wherever
    a version is given."""

    def __init__(self, core: Callable[[], AsyncTags]) -> None:
        self._core = core

    # -- generated from AsyncTags by `python -m alpheus.sync`

    def create(
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
        return run(self._core().create(name, at, retain, message, properties, only, without))

    def replace(
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
        return run(self._core().replace(name, at, retain, message, properties, only, without))

    def rename(self, name: str, new_name: str) -> Commit:
        """Give a tag another name. Raises NotFound (`no_tag`), and AlreadyExists (`tag_exists`)."""
        return run(self._core().rename(name, new_name))

    def delete(self, name: str) -> Commit:
        """Delete a tag. Its version is then kept no longer than other versions are. Raises NotFound (`no_tag`)."""
        return run(self._core().delete(name))

    def load(self, name: str) -> Tag:
        """Return one tag. Raises NotFound (`no_tag`)."""
        return run(self._core().load(name))

    def list(self, prefix: str = "") -> builtins.list[Tag]:
        """Return the tags whose name begins with `prefix`, in order of names, all as of one version."""
        return run(self._core().list(prefix))

    def previous(self, name: str) -> Tag | None:
        """Return the tag of the newest version below the version of this tag; None when there is none. Of several tags
        of that version, it is the one with the last name."""
        return run(self._core().previous(name))

    def next(self, name: str) -> Tag | None:
        """Return the tag of the oldest version above the version of this tag; None when there is none. Of several tags
        of that version, it is the one with the first name."""
        return run(self._core().next(name))
