"""An upgrade of a catalog's format: it tags the version before it, and is repeated safely."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alpheus
from alpheus.admin.tags import pin_fields


@pytest.mark.parametrize("how", ["direct", "remote"])
def test_an_upgrade_tags_the_version_before(
    how: str, start_daemon: Callable[[str], Any], tmp_path: Path
) -> None:
    alpheus.create(f"file://{tmp_path}/old", format_revision=1).close()
    url = f"file://{tmp_path}/old"
    with alpheus.connect(url if how == "direct" else start_daemon(url).url) as catalog:
        catalog.create_namespace("a")
        plan = catalog.admin.upgrade(dry_run=True)
        assert (plan.before, plan.revision, plan.commit, plan.tag) == (1, 2, None, "before-revision-2")
        assert catalog.version() == 1
        done = catalog.admin.upgrade()
        assert done.commit is not None
        assert done.commit.version == 2
        (tag,) = catalog.tags.list()
        assert (tag.name, tag.version) == ("before-revision-2", 1)
        catalog.drop_namespace("a")
        catalog.admin.expire(older_than=0, keep=1)
        assert [space.name for space in catalog.at(tag.name).list_namespaces()] == ["a"]
        again = catalog.admin.upgrade()
        assert (again.before, again.commit, again.tag) == (2, None, "")


async def test_of_two_upgrades_at_once_one_commits(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/old"
    async with await alpheus.aio.create(url, format_revision=1) as one, await alpheus.aio.connect(url) as two:
        done = await asyncio.gather(one.admin.upgrade(), two.admin.upgrade())
        assert sorted(upgraded.before for upgraded in done) == [1, 2]
        assert len(await one.tags.list()) == 1
        assert await one.version() == 1


async def test_an_upgrade_that_was_killed_is_repeated(tmp_path: Path) -> None:
    """What was pinned before the kill is no tag's, and is collected."""
    url = f"file://{tmp_path}/old"
    async with await alpheus.aio.create(url, format_revision=1) as catalog:
        await pin_fields(catalog._session, 0)  # as far as a killed upgrade came
        done = await catalog.admin.upgrade()
        assert done.commit is not None
        gone = await catalog.admin.collect(minimum_age=0, allow_short=True)
        assert gone.deleted["pin"].files == 1
        assert not (await catalog.admin.check()).findings
