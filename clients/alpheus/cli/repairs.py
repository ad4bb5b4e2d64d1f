"""The command that repairs a catalog after its store lost versions, once a person has confirmed it."""

from __future__ import annotations

import asyncio

import click

from alpheus.cli.frame import Settings, cli, confirm, pass_settings
from alpheus.cli.text import output
from alpheus.session.connections import DAEMON_SCHEMES, catalog_url, scheme_of
from alpheus_journal import repair as repairs
from alpheus_journal.clock import claimed_principal
from alpheus_journal.errors import InvalidInput
from alpheus_journal.storage import Storage, open_storage
from alpheus_journal.urls import redact_url


@cli.command(short_help="Repair a catalog that lost versions.")
@click.option("--accept-head", is_flag=True, help="Give up the versions above the newest existing one.")
@click.option("--times", is_flag=True, help="Restart the times of versions where they are in the future.")
@click.option("--dry-run", is_flag=True, help="Show what is wrong and what would be done, without doing it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_settings
def repair(settings: Settings, accept_head: bool, times: bool, dry_run: bool, yes: bool) -> int:
    """Look for lost versions, and repair the catalog. This works on storage: stop the daemons first.

    Writers refuse to write in three cases: a checkpoint, an index or vn/latest names versions above the newest
    existing one; versions are missing below others; or the newest version was not created from the one below it. If
    you have a copy of the missing files, restore them. Otherwise --accept-head gives up the missing versions and
    keeps the newest existing one: it writes a version that records this, deletes the files in checkpoint/ that refer
    to missing versions, and rewrites vn/latest. It names the transactions that the newest version does not contain.

    A writer whose clock was in the future passed its time on to all later versions. --times writes a version from
    which on times follow this machine's clock again, so check that clock first. Versions before the repair keep their
    times; a time then means the newest version of that time.

    The exit status is 1 if something is wrong that these options do not repair, 99 if nothing is wrong.

    \b
    Examples
      alpheus repair --dry-run --catalog file:///lake
      alpheus repair --accept-head --catalog file:///lake
      alpheus repair --times --catalog file:///lake
    """
    url = catalog_url(settings.url)
    if scheme_of(url) in (*DAEMON_SCHEMES, "grpcs"):
        raise InvalidInput(
            f"{output.printable(redact_url(url))} is a daemon; a repair works on the storage",
            kind="bad_url",
            hint="stop the daemons and name the storage; alpheus info shows its URL",
        )
    return asyncio.run(
        _repair(settings, url, repairs.Asked(accept_head=accept_head, times=times), dry_run, yes)
    )


async def _repair(settings: Settings, url: str, asked: repairs.Asked, dry_run: bool, yes: bool) -> int:
    storage = await asyncio.to_thread(open_storage, url)
    try:
        with output.show_waiting("looking"):
            plan = repairs.plan(await repairs.survey(storage), asked)
        if dry_run or not plan.steps:
            return _show(settings, plan, None)
        plan.check()
        await asyncio.to_thread(confirm, settings, "repair", _text(plan, None), yes=yes)
        return await _carry_out(settings, storage, plan)
    finally:
        await storage.close()


async def _carry_out(settings: Settings, storage: Storage, plan: repairs.Plan) -> int:
    with output.show_waiting("repairing"):
        done = await repairs.carry_out(storage, plan, principal=claimed_principal())
    return _show(settings, plan, done)


def _show(settings: Settings, plan: repairs.Plan, done: repairs.Repaired | None) -> int:
    document = {
        "head_version": plan.head_version,
        "problems": plan.problems,
        "steps": plan.steps,
        "done": done is not None,
        "version": None if done is None else done.version,
    }
    settings.out.document(document, _text(plan, done))
    if not plan.problems:
        return output.NOTHING_TO_DO
    return output.FAILED if any(problem.mended_by for problem in plan.problems) else output.DONE


def _text(plan: repairs.Plan, done: repairs.Repaired | None) -> str:
    if not plan.problems:
        return f"nothing to repair: the head is version {plan.head_version}"
    lines = []
    for problem in plan.problems:
        lines.append(f"{problem.kind}: {problem.message}")
        if problem.mended_by:
            lines.append(f"  {problem.mended_by}")
    would = "done" if done is not None else "to do"
    lines += [f"{would}: {step.text}" for step in plan.steps]
    return "\n".join(output.printable(line) for line in lines)
