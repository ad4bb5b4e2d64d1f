"""Commands on durable subscriptions."""

from __future__ import annotations

import click

from alpheus.cli.frame import Settings, cli, filter_options, pass_settings
from alpheus.cli.text import output

# --- subscriptions ---------------------------------------------------------------------------------


@cli.group(short_help="Manage consumers of events with a stored position.")
def subscription() -> None:
    """Manage durable subscriptions: consumers of events whose position the catalog stores. Python programs consume
    them (catalog.subscribe); these commands create, show and reset them.

    \b
    Examples
      alpheus subscription create mail --name 'sales.*' --action TABLE_INSERT --after latest
      alpheus subscription show mail
      alpheus subscription reset mail --after 120
    """


@subscription.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@pass_settings
def subscription_list(settings: Settings, prefix: str) -> None:
    """List the subscriptions with positions and consumers."""
    with settings.catalog() as catalog:
        found = catalog.admin.subscriptions.list(prefix)
    rows = [
        (each.name, "none" if each.position is None else each.position, each.epoch, each.holder or "nobody")
        for each in found
    ]
    settings.out.document(found, output.columns_text(["NAME", "POSITION", "EPOCH", "HOLDER"], rows))
    if not found:
        settings.out.note("no subscriptions")


@subscription.command("show")
@click.argument("name")
@pass_settings
def subscription_show(settings: Settings, name: str) -> None:
    """Show a subscription: its filter, its position and its consumer."""
    with settings.catalog() as catalog:
        found = catalog.admin.subscriptions.load(name)
    settings.out.document(found, output.subscription_text(found))


@subscription.command("create")
@click.argument("name")
@filter_options
@click.option(
    "--details", is_flag=True, help="Deliver events with the definitions before and after each change."
)
@click.option(
    "--after",
    metavar="V|TOKEN|latest",
    help="Begin after this version or token (default: at the oldest version).",
)
@click.option(
    "--lease",
    type=float,
    metavar="SECONDS",
    help="Replace a consumer that gives no sign of life for this long (default 30).",
)
@pass_settings
def subscription_create(
    settings: Settings, name: str, namespaces: tuple[str, ...], names: tuple[str, ...], kinds: tuple[str, ...],
    actions: tuple[str, ...], details: bool, after: str | None, lease: float | None,
) -> None:  # fmt: skip
    """Create a subscription without a consumer. Its filter cannot be changed later."""
    with settings.catalog() as catalog:
        commit = catalog.admin.subscriptions.create(
            name, namespaces, names, kinds, actions, details, after, lease
        )
    settings.out.document(commit, f"created subscription {name} in version {commit.version}")


@subscription.command("reset")
@click.argument("name")
@click.option(
    "--after",
    metavar="V|TOKEN|latest",
    help="Continue after this version or token (default: at the oldest version).",
)
@pass_settings
def subscription_reset(settings: Settings, name: str, after: str | None) -> None:
    """Move a subscription to another position. Its consumer ends, and the next consumer begins at that position."""
    with settings.catalog() as catalog:
        commit = catalog.admin.subscriptions.reset(name, after)
    settings.out.document(commit, f"reset subscription {name} in version {commit.version}")


@subscription.command("delete")
@click.argument("name")
@pass_settings
def subscription_delete(settings: Settings, name: str) -> None:
    """Delete a subscription. Its consumers end."""
    with settings.catalog() as catalog:
        commit = catalog.admin.subscriptions.delete(name)
    settings.out.document(commit, f"deleted subscription {name} in version {commit.version}")
