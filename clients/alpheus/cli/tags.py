"""Commands on tags: names for versions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from alpheus.cli.frame import PAIR, SPAN, Settings, cli, mapping, pass_settings
from alpheus.cli.text import output


def parse_only(only: tuple[str, ...]) -> dict[str, str | None] | None:
    """Return the version by name of `--only NAME=WHEN`; None where the option was not given."""
    found: dict[str, str | None] = {}
    for name, _, when in (text.partition("=") for text in only):
        if found.setdefault(name, when or None) != (when or None):
            raise click.UsageError(f"--only names {name} at two versions")
    return found or None


def tag_options(command: Any) -> Any:
    """Add the options that creating and replacing a tag share."""
    for option in (
        click.option(
            "--at", metavar="WHEN", help="The version, time or other tag to name (default: the newest)."
        ),
        click.option(
            "--retain",
            type=SPAN,
            metavar="SPAN",
            help="Let a daemon delete the tag after this time, such as 30d.",
        ),
        click.option(
            "--only",
            multiple=True,
            metavar="NAME[=WHEN]",
            help="Tag only this namespace, table or view, perhaps as of another version, time or tag. Repeatable.",
        ),
        click.option(
            "--without",
            multiple=True,
            metavar="NAME",
            help="Leave this namespace, table or view out. Repeatable.",
        ),
        click.option("--message", "-m", default="", help="The reason for the tag, which the tag keeps."),
        click.option(
            "--property",
            "properties",
            type=PAIR,
            multiple=True,
            metavar="K=V",
            help="A property. Repeatable.",
        ),
    ):
        command = option(command)
    return command


@cli.group(short_help="Manage names for versions.")
def tag() -> None:
    """Manage tags: names for versions of the whole catalog. A tag's name can stand wherever a version is given. What
    its version reaches stays readable until the tag is deleted.

    \b
    Examples
      alpheus tag create release-1 --message "before the migration"
      alpheus table show sales.orders --at release-1
      alpheus tag create audit --at 2026-03-01T00:00:00Z --retain 90d
      alpheus tag create figures --only sales --only stock.items=release-1 --without sales.scratch
    """


@tag.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@pass_settings
def tag_list(settings: Settings, prefix: str) -> None:
    """List the tags with their versions, in order of names, and with what a version had: objects of all kinds, tables,
    and rows in the data files of native tables. A count is unknown where counting would have taken long, and in tags of
    earlier releases.
    """
    with settings.catalog() as catalog:
        found = catalog.tags.list(prefix)
    rows = [
        (
            each.name,
            each.version,
            output.time_text(each.version_created_at),
            output.known_text(each.object_count),
            output.known_text(each.table_count),
            output.known_text(each.row_count),
            "" if each.expires_at is None else output.time_text(each.expires_at),
            each.message,
        )
        for each in found
    ]
    heads = ["NAME", "VERSION", "OF", "OBJECTS", "TABLES", "ROWS", "EXPIRES", "MESSAGE"]
    settings.out.document(found, output.columns_text(heads, rows))
    if not found:
        settings.out.note("no tags")


@tag.command("show")
@click.argument("name")
@pass_settings
def tag_show(settings: Settings, name: str) -> None:
    """Show a tag: its version, who made it, and the tags before and after it."""
    with settings.catalog() as catalog:
        found = catalog.tags.load(name)
        previous, following = catalog.tags.previous(name), catalog.tags.next(name)
    settings.out.document(found, output.tag_text(found, previous, following))


@tag.command("create")
@click.argument("name")
@tag_options
@pass_settings
def tag_create(
    settings: Settings, name: str, at: str | None, retain: timedelta | None, message: str,
    properties: tuple[tuple[str, str], ...], only: tuple[str, ...], without: tuple[str, ...],
) -> None:  # fmt: skip
    """Give a version a name."""
    given = mapping(properties)
    with settings.catalog() as catalog:
        commit = catalog.tags.create(name, at, retain, message, given, parse_only(only), without)
        made = catalog.tags.load(name)
    settings.out.document(commit, f"created tag {name} of version {made.version} in version {commit.version}")


@tag.command("replace")
@click.argument("name")
@tag_options
@pass_settings
def tag_replace(
    settings: Settings, name: str, at: str | None, retain: timedelta | None, message: str,
    properties: tuple[tuple[str, str], ...], only: tuple[str, ...], without: tuple[str, ...],
) -> None:  # fmt: skip
    """Give a tag's name to another version. Message, properties and retention are replaced, too."""
    given = mapping(properties)
    with settings.catalog() as catalog:
        commit = catalog.tags.replace(name, at, retain, message, given, parse_only(only), without)
        made = catalog.tags.load(name)
    settings.out.document(
        commit, f"replaced tag {name}, now of version {made.version}, in version {commit.version}"
    )


@tag.command("rename")
@click.argument("name")
@click.argument("new_name")
@pass_settings
def tag_rename(settings: Settings, name: str, new_name: str) -> None:
    """Give a tag another name."""
    with settings.catalog() as catalog:
        commit = catalog.tags.rename(name, new_name)
    settings.out.document(commit, f"renamed tag {name} to {new_name} in version {commit.version}")


@tag.command("delete")
@click.argument("name")
@pass_settings
def tag_delete(settings: Settings, name: str) -> None:
    """Delete a tag. Its version is then kept no longer than other versions are."""
    with settings.catalog() as catalog:
        commit = catalog.tags.delete(name)
    settings.out.document(commit, f"deleted tag {name} in version {commit.version}")
