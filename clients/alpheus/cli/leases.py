"""Commands on what readers hold."""

from __future__ import annotations

from alpheus.cli import output
from alpheus.cli.frame import Settings, cli, pass_settings


@cli.group(short_help="What readers hold.")
def lease() -> None:
    """Leases: versions that readers go on reading, though they may expire.

    A reader takes one where the storage can be written (catalog.at(..., lease=True), and Spark by itself), renews it
    while it reads, and gives it up. That of a reader that was killed runs out by itself. They lie on the storage, and
    are looked up there, with a daemon, too.
    """


@lease.command("list")
@pass_settings
def lease_list(settings: Settings) -> None:
    """List the leases: the version that each holds, and until when."""
    with settings.catalog() as catalog:
        found = catalog.admin.leases()
    rows = [
        (
            "?" if each.state == "damaged" else each.version,
            each.state,
            output.time_text(each.renewed_at),
            output.time_text(each.runs_out_at),
            each.damage or each.holder,
            each.id,
        )
        for each in found
    ]
    settings.out.document(
        found, output.columns_text(["VERSION", "STATE", "RENEWED", "RUNS OUT", "HOLDER", "ID"], rows)
    )
    if not found:
        settings.out.note("no leases")
