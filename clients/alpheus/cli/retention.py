"""Commands that let old versions expire, and that delete files which nothing needs."""

from __future__ import annotations

from datetime import timedelta

import click

from alpheus.cli.frame import SPAN, Settings, cli, confirm, pass_settings
from alpheus.cli.text import output
from alpheus.cli.text.retention import collection_text, expiry_text


@cli.command(short_help="Let old versions expire.")
@click.option(
    "--older-than", type=SPAN, default="7d", show_default=True, metavar="SPAN",
    help="Only versions that were replaced by a newer one before this time.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(1), default=100, show_default=True, metavar="N",
    help="The number of newest versions that stay, whatever their age.",
)  # fmt: skip
@click.option(
    "--pipeline-hold", type=SPAN, default="30d", show_default=True, metavar="SPAN",
    help="How long a job of a pipeline holds back versions that it has not read.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_settings
def expire(
    settings: Settings, older_than: timedelta, keep: int, pipeline_hold: timedelta, dry_run: bool, yes: bool
) -> int:
    """Let old versions expire, the lowest first. They can no longer be read, and their events leave the log.

    Versions that tags name stay readable under their tags. Versions that a durable subscription, a job of a pipeline
    or a saved transaction still needs stay in the log. So do versions that a table keeps for longer, by the properties
    history.expire.max-snapshot-age-ms and history.expire.min-snapshots-to-keep of the table or its namespace. Files
    stay until "alpheus collect" deletes them. The exit status is 99 if there is nothing to do.

    \b
    Examples
      alpheus expire --dry-run
      alpheus expire --older-than 30d --keep 1000 --yes
      alpheus table set sales.orders history.expire.max-snapshot-age-ms=7776000000
    """
    with settings.catalog() as catalog:
        with output.show_waiting("looking for old versions"):
            found = catalog.admin.expire(older_than, keep, pipeline_hold, dry_run=True)
        if found.planned and not dry_run:
            confirm(settings, "expiry", expiry_text(found), yes=yes)
            with output.show_waiting("expiring versions"):
                found = catalog.admin.expire(older_than, keep, pipeline_hold)
    settings.out.document(found, expiry_text(found))
    return output.DONE if found.planned else output.NOTHING_TO_DO


@cli.command(short_help="Delete files that nothing needs.")
@click.option(
    "--minimum-age", type=SPAN, default="72h", show_default=True, metavar="SPAN",
    help="Files that are younger stay. It must be longer than the longest write takes.",
)  # fmt: skip
@click.option("--allow-short", is_flag=True, help="Allow a minimum age below an hour, when nobody writes.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_settings
def collect(settings: Settings, minimum_age: timedelta, allow_short: bool, dry_run: bool, yes: bool) -> int:
    """Delete files that no kept version, tag, lease or saved transaction needs: files of expired versions, and files
    of writes that failed. Abort uploads to S3 that writers left open. Data files of tables whose own rules of history
    are short go before the versions that list them.

    Nothing brings deleted files back, except versions of a bucket. The exit status is 99 if there is nothing to do.

    \b
    Examples
      alpheus collect --dry-run
      alpheus collect --minimum-age 7d --yes
    """
    with settings.catalog() as catalog:
        with output.show_waiting("looking for files that nothing needs"):
            found = catalog.admin.collect(minimum_age, dry_run=True, allow_short=allow_short)
        has_work = found.unreferenced_total.files > 0 or found.uploads.abandoned > 0
        if has_work and not dry_run:
            confirm(settings, "collection", collection_text(found), yes=yes)
            with output.show_waiting("deleting files"):
                found = catalog.admin.collect(minimum_age, allow_short=allow_short)
    settings.out.document(found, collection_text(found))
    return output.DONE if has_work else output.NOTHING_TO_DO
