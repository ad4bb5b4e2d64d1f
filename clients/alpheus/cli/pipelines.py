"""Commands on pipelines. Only the commands that run a pipeline import Spark."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import click

from alpheus import pipeline as declared
from alpheus.catalog import Catalog
from alpheus.cli.frame import (
    PAIR,
    F,
    Settings,
    VersionsCommand,
    at_option,
    cli,
    mapping,
    pass_settings,
    print_names,
)
from alpheus.cli.spark_sessions import conf_option, open_lake
from alpheus.cli.text import output
from alpheus.pipeline import declarations, positions
from alpheus_journal.errors import NotFound

# --- pipelines -------------------------------------------------------------------------------------


@cli.group(short_help="Run pipelines and inspect their positions.")
def pipeline() -> None:
    """Run pipelines and inspect their positions, which the catalog stores."""


@pipeline.command("list")
@click.option("--prefix", default="", help="Only names that begin with this text.")
@at_option
@pass_settings
def pipeline_list(settings: Settings, prefix: str, at: str | None) -> None:
    """List the pipelines that ever ran, one name per line."""
    with settings.reader(at) as reader:
        found = reader.list_pipelines(prefix)
    print_names(settings, found, [name.name for name in found], "no pipelines")


@pipeline.command("show")
@click.argument("name")
@at_option
@pass_settings
def pipeline_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the jobs of a pipeline.

    For each job: state, position, inputs, outputs, and the error if it is parked.
    """
    with settings.reader(at) as reader:
        found = reader.load_pipeline(name)
    settings.out.document(found, output.pipeline_text(found))


def _import_pipeline(reference: str) -> declared.Pipeline:
    """Import the pipeline that MODULE:OBJECT names. The working directory is searched first."""
    name, colon, attribute = reference.partition(":")
    if not colon or not name or not attribute:
        raise click.UsageError(f"{reference!r} is not MODULE:OBJECT, for example marts.daily:mart.")
    if "/" in name or name.startswith(".") or name.endswith(".py"):
        likely = os.path.splitext(os.path.basename(name.lstrip(".")))[0] or "module"
        raise click.UsageError(
            f"{name!r} names a file, not a module; write {likely}:{attribute} in the folder of the file."
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"There is no module {name!r} here or on Python's path.") from None
        raise click.ClickException(f"importing {name} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, declared.Pipeline):
        raise click.UsageError(f"{name} has no pipeline {attribute!r}.")
    return found


def _find_name(catalog: Catalog, reference: str) -> str:
    """Return the name of a pipeline that is given by its NAME or as MODULE:OBJECT."""
    if ":" in reference:
        try:
            catalog.load_pipeline(reference)
        except NotFound:
            return _import_pipeline(reference).name
    return reference


def _check_jobs(found: declared.Pipeline, jobs: tuple[str, ...]) -> tuple[str, ...] | None:
    """Check, before Spark starts, that the named jobs exist. Return None for all jobs."""
    for name in jobs:
        if name not in found.jobs:
            raise click.UsageError(
                f"Pipeline {found.name} has no job {name!r}; it has {', '.join(found.jobs) or 'none'}."
            )
    return jobs or None


def job_option(command: F) -> F:
    return click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeatable.")(
        command
    )


def param_option(command: F) -> F:
    return click.option(
        "--param",
        "params",
        type=PAIR,
        multiple=True,
        metavar="K=V",
        help="A parameter for the jobs' run.params. Repeatable.",
    )(command)


def adopt_options(command: F) -> F:
    command = click.option(
        "--from-now", is_flag=True, help="Let new outputs of a job receive only what later runs write."
    )(command)
    return click.option("--adopt", is_flag=True, help="Replace the recorded declaration by this one.")(
        command
    )


def _given_flags(adopt: bool, from_now: bool) -> dict[str, Any]:
    """Return the flags that were given as keyword arguments."""
    return {name: True for name, is_given in (("adopt", adopt), ("from_now", from_now)) if is_given}


@pipeline.command("run")
@click.argument("reference", metavar="MODULE:OBJECT")
@click.option(
    "--full-refresh",
    is_flag=True,
    help="Run as if for the first time: empty the outputs and fill them again.",
)
@job_option
@param_option
@adopt_options
@conf_option
@pass_settings
def pipeline_run(
    settings: Settings,
    reference: str,
    full_refresh: bool,
    jobs: tuple[str, ...],
    params: tuple[tuple[str, str], ...],
    adopt: bool,
    from_now: bool,
    conf: tuple[tuple[str, str], ...],
) -> int:
    """Call every job of a pipeline that has work once. Needs Spark.

    A job whose declared tables differ from the recorded ones is not called and is reported as parked.

    Prints one line per job. The exit status is 1 if a job is parked, and 99 if no job had work, so that a scheduler
    can skip the steps that follow.

    \b
    Example
      alpheus pipeline run marts.daily:mart --param day=2026-03-01
    """
    given = mapping(params)
    found = _import_pipeline(reference)
    chosen = _check_jobs(found, jobs)
    with open_lake(settings, found.name, conf) as lake:
        results = found.run(lake, given, full_refresh, chosen, **_given_flags(adopt, from_now))
    states = {result.state for result in results}
    status = (
        output.FAILED
        if "parked" in states
        else output.DONE
        if "committed" in states
        else output.NOTHING_TO_DO
    )
    settings.out.status_if_cut = status
    for result in results:
        settings.out.line(result, output.result_text(result))
    return status


@pipeline.command("serve")
@click.argument("reference", metavar="MODULE:OBJECT")
@job_option
@param_option
@adopt_options
@conf_option
@pass_settings
def pipeline_serve(
    settings: Settings,
    reference: str,
    jobs: tuple[str, ...],
    params: tuple[tuple[str, str], ...],
    adopt: bool,
    from_now: bool,
    conf: tuple[tuple[str, str], ...],
) -> None:
    """Call jobs whenever their inputs change. Needs Spark.

    Runs until SIGTERM. Prints one line for each run that committed and each job that was parked. SIGTERM lets the
    current run finish; the exit status is then 0. A second SIGTERM abandons the run; no data is lost.
    """
    given = mapping(params)
    found = _import_pipeline(reference)
    chosen = _check_jobs(found, jobs)
    with open_lake(settings, found.name, conf) as lake:
        found.serve(
            lake,
            given,
            on_result=lambda result: settings.out.line(result, output.result_text(result)),
            jobs=chosen,
            **_given_flags(adopt, from_now),
        )


# --- operating -----------------------------------------------------------------------------


@pipeline.command("status")
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@pass_settings
def pipeline_status(settings: Settings, reference: str) -> int:
    """Show how far each job is behind its inputs.

    LAG is the number of versions since the job's position that changed a triggering input. If the pipeline is given by
    its NAME, changes of all inputs count, and jobs that never ran are not listed. The exit status is 1 if a job is
    parked.

    \b
    Example
      alpheus pipeline status marts.daily:mart
    """
    found = _import_pipeline(reference) if ":" in reference else None
    with settings.catalog() as catalog:
        listed = found.status(catalog) if found is not None else positions.status(catalog, reference)
    status = output.FAILED if any(each.state == "parked" for each in listed) else output.DONE
    settings.out.status_if_cut = status
    settings.out.document(listed, output.status_text(listed))
    return status


@pipeline.command("resume")
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeatable.")
@pass_settings
def pipeline_resume(settings: Settings, reference: str, jobs: tuple[str, ...]) -> int:
    """Unpark a pipeline's jobs.

    The jobs continue at their positions. The exit status is 99 if none of them is parked.
    """
    with settings.catalog() as catalog:
        name = _find_name(catalog, reference)
        known = sorted(catalog.load_pipeline(name).jobs)
        for job in jobs:  # check all jobs before the first is resumed
            if job not in known:
                raise NotFound(
                    f"job {name}.{job} never ran", kind="no_job", hint=f"these did: {', '.join(known)}"
                )
        wanted = jobs or known
        done = [(job, positions.resume(catalog, name, job)) for job in wanted]
    resumed = [(job, commit) for job, commit in done if commit is not None]
    status = output.DONE if resumed else output.NOTHING_TO_DO
    settings.out.status_if_cut = status
    for job, commit in resumed:
        settings.out.line({"job": job, "commit": commit}, f"{job} resumed in version {commit.version}")
    return status


@pipeline.command("adopt")
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeatable.")
@pass_settings
def pipeline_adopt(settings: Settings, reference: str, jobs: tuple[str, ...]) -> int:
    """Replace the recorded declaration of a pipeline's jobs.

    MODULE:OBJECT records that declaration. NAME allows the next run to record its declaration, whichever process comes
    first. Jobs continue at their positions. An output that is new to a job still needs "pipeline run" with
    --full-refresh or --from-now. The exit status is 99 if there is nothing to change.

    \b
    Examples
      alpheus pipeline adopt marts.daily:mart
      alpheus pipeline adopt daily_mart --job daily
    """
    with settings.catalog() as catalog:
        name = _find_name(catalog, reference)
        if ":" in reference and name != reference:
            found = _import_pipeline(reference)
            commit = found.adopt(catalog, _check_jobs(found, jobs))
        else:
            commit = declarations.open_all(catalog, name, jobs or None)
    if commit is None:
        return output.NOTHING_TO_DO
    settings.out.document(commit, f"adopted in version {commit.version}")
    return output.DONE


@pipeline.command("rename")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--job", "jobs", type=PAIR, multiple=True, metavar="OLD=NEW", help="Also rename this job. Repeatable."
)
@pass_settings
def pipeline_rename(settings: Settings, old: str, new: str, jobs: tuple[tuple[str, str], ...]) -> None:
    """Rename a pipeline and its jobs.

    Their positions are renamed too, in one commit. Use this when the names change in the code: under a new name without
    a position, a job would start from the beginning. To rename only jobs, give the pipeline's name twice.

    \b
    Examples
      alpheus pipeline rename daily_mart daily
      alpheus pipeline rename daily daily --job sums=totals
    """
    with settings.catalog() as catalog:
        commit = positions.rename(catalog, old, new, mapping(jobs))
    settings.out.document(commit, f"renamed in version {commit.version}")


@pipeline.command("rewind", cls=VersionsCommand)
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@click.argument("to", metavar="WHEN")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeatable.")
@pass_settings
def pipeline_rewind(settings: Settings, reference: str, to: str, jobs: tuple[str, ...]) -> int:
    """Restore outputs and positions to an older state.

    One commit restores the outputs and positions of a pipeline to what they were at a version, tag or time.

    Version -1 is the head, -2 the version before it.

    Outputs are the tables that the jobs wrote since. The command fails with exit status 1 if others changed these
    tables too. Parked jobs are unparked. The exit status is 99 if there is nothing to restore.

    \b
    Examples
      alpheus pipeline rewind daily_mart 412
      alpheus pipeline rewind daily_mart 2026-03-01T12:00:00Z --job daily
    """
    with settings.catalog() as catalog:
        commit = positions.rewind(catalog, _find_name(catalog, reference), to.strip(), jobs or None)
    if commit is None:
        return output.NOTHING_TO_DO
    settings.out.document(commit, f"rewound in version {commit.version}")
    return output.DONE
