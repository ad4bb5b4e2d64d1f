"""Commands on pipelines. Spark is imported by those that run one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from alpheus import pipeline as declared
from alpheus.catalog import Catalog
from alpheus.cli import output
from alpheus.cli.frame import (
    PAIR,
    F,
    Settings,
    VersionsCommand,
    at_option,
    cli,
    list_names,
    mapping,
    pass_settings,
)
from alpheus.pipeline import declarations, positions
from alpheus_journal.errors import NotFound

# --- pipelines -------------------------------------------------------------------------------------


@cli.group(short_help="Run pipelines, and see how far they have worked.")
def pipeline() -> None:
    """Run pipelines, and see how far they have worked: their position lies in the catalog."""


@pipeline.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@at_option
@pass_settings
def pipeline_list(settings: Settings, prefix: str, at: str | None) -> None:
    """List the pipelines that ever ran, one name a line."""
    with settings.reader(at) as reader:
        found = reader.list_pipelines(prefix)
    list_names(settings, found, [name.name for name in found], "no pipelines")


@pipeline.command("show")
@click.argument("name")
@at_option
@pass_settings
def pipeline_show(settings: Settings, name: str, at: str | None) -> None:
    """Show the jobs of a pipeline: state, position, inputs, and the error of a parked one."""
    with settings.reader(at) as reader:
        found = reader.load_pipeline(name)
    settings.out.document(found, output.pipeline_text(found))


def _declared_pipeline(reference: str) -> declared.Pipeline:
    """The pipeline that MODULE:OBJECT names. The working directory comes first among the places to look."""
    name, colon, attribute = reference.partition(":")
    if not colon or not name or not attribute:
        raise click.UsageError(f"{reference!r} is no MODULE:OBJECT, for example marts.daily:mart.")
    if "/" in name or name.startswith(".") or name.endswith(".py"):
        likely = os.path.splitext(os.path.basename(name.lstrip(".")))[0] or "module"
        raise click.UsageError(
            f"{name!r} is a file's name, and no module's; write {likely}:{attribute} where the file lies."
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


def _name_of(catalog: Catalog, reference: str) -> str:
    """Of a pipeline that is named by its NAME, or as MODULE:OBJECT."""
    if ":" in reference:
        try:
            catalog.load_pipeline(reference)
        except NotFound:
            return _declared_pipeline(reference).name
    return reference


@contextlib.contextmanager
def _lake(settings: Settings, name: str) -> Iterator[Any]:
    """The catalog with a Spark session of this process. This is all that the command line knows of Spark."""
    try:
        from alpheus.spark import SparkCatalog, session
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"Spark is not installed ({error.name} is missing): pip install 'alpheus[spark]'"
        ) from error
    with settings.catalog() as catalog:
        with output.waiting("starting Spark"):
            spark = session(name)
        try:
            yield SparkCatalog(spark, catalog)
        finally:
            spark.stop()


def _chosen(found: declared.Pipeline, jobs: tuple[str, ...]) -> tuple[str, ...] | None:
    """The jobs that were asked for, before Spark is started for them."""
    for name in jobs:
        if name not in found.jobs:
            raise click.UsageError(
                f"Pipeline {found.name} has no job {name!r}; it has {', '.join(found.jobs) or 'none'}."
            )
    return jobs or None


def job_option(command: F) -> F:
    return click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeat it.")(
        command
    )


def param_option(command: F) -> F:
    return click.option(
        "--param",
        "params",
        type=PAIR,
        multiple=True,
        metavar="K=V",
        help="For the jobs' run.params. Repeat it.",
    )(command)


def adopt_options(command: F) -> F:
    command = click.option(
        "--from-now", is_flag=True, help="Outputs that are new to a job get what comes from now on."
    )(command)
    return click.option(
        "--adopt", is_flag=True, help="This declaration takes the place of the one that is recorded."
    )(command)


def _consents(adopt: bool, from_now: bool) -> dict[str, Any]:
    """As arguments, where they were given."""
    return {name: True for name, is_given in (("adopt", adopt), ("from_now", from_now)) if is_given}


@pipeline.command("run")
@click.argument("reference", metavar="MODULE:OBJECT")
@click.option(
    "--full-refresh", is_flag=True, help="As if for the first time: outputs are emptied and filled."
)
@job_option
@param_option
@adopt_options
@pass_settings
def pipeline_run(
    settings: Settings,
    reference: str,
    full_refresh: bool,
    jobs: tuple[str, ...],
    params: tuple[tuple[str, str], ...],
    adopt: bool,
    from_now: bool,
) -> int:
    """Call every job of a pipeline that has work, once. Needs Spark.

    A job that is declared with other tables than are recorded of it is not called, and told as parked.

    Prints one line a job. Exit status 1 when a job is parked, 99 when none had work, so that a scheduler can
    skip what comes after.

    \b
    Example
      alpheus pipeline run marts.daily:mart --param day=2026-03-01
    """
    given = mapping(params)
    found = _declared_pipeline(reference)
    chosen = _chosen(found, jobs)
    with _lake(settings, found.name) as lake:
        results = found.run(lake, given, full_refresh, chosen, **_consents(adopt, from_now))
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
@pass_settings
def pipeline_serve(
    settings: Settings,
    reference: str,
    jobs: tuple[str, ...],
    params: tuple[tuple[str, str], ...],
    adopt: bool,
    from_now: bool,
) -> None:
    """Call a pipeline's jobs whenever their inputs have something new, until SIGTERM. Needs Spark.

    Prints one line for each call that committed or was parked. SIGTERM lets the call that runs finish, and the exit
    status is 0; a second one abandons it, which loses nothing.
    """
    given = mapping(params)
    found = _declared_pipeline(reference)
    chosen = _chosen(found, jobs)
    with _lake(settings, found.name) as lake:
        found.serve(
            lake,
            given,
            on_result=lambda result: settings.out.line(result, output.result_text(result)),
            jobs=chosen,
            **_consents(adopt, from_now),
        )


# --- looking after one -----------------------------------------------------------------------------


@pipeline.command("status")
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@pass_settings
def pipeline_status(settings: Settings, reference: str) -> int:
    """Tell how far each job is behind its inputs.

    LAG counts the versions since its position that changed an input that gives it work. Of a pipeline by its NAME it
    is not known which inputs do, so all of them count, and jobs that never ran are not known. Exit status 1 when a
    job is parked.

    \b
    Example
      alpheus pipeline status marts.daily:mart
    """
    found = _declared_pipeline(reference) if ":" in reference else None
    with settings.catalog() as catalog:
        listed = found.status(catalog) if found is not None else positions.status(catalog, reference)
    status = output.FAILED if any(each.state == "parked" for each in listed) else output.DONE
    settings.out.status_if_cut = status
    settings.out.document(listed, output.status_text(listed))
    return status


@pipeline.command("resume")
@click.argument("reference", metavar="NAME|MODULE:OBJECT")
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeat it.")
@pass_settings
def pipeline_resume(settings: Settings, reference: str, jobs: tuple[str, ...]) -> int:
    """Unpark a pipeline's jobs: they go on from where they were.

    Exit status 99 when none of them is parked.
    """
    with settings.catalog() as catalog:
        name = _name_of(catalog, reference)
        known = sorted(catalog.load_pipeline(name).jobs)
        for job in jobs:  # before one of the others is resumed
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
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeat it.")
@pass_settings
def pipeline_adopt(settings: Settings, reference: str, jobs: tuple[str, ...]) -> int:
    """Let another declaration of a pipeline's jobs take the place of the one that is recorded.

    Of MODULE:OBJECT that one. Of a NAME the next that runs, whoever comes first. Jobs go on from their positions; an
    output that is new to a job still needs `pipeline run` with --full-refresh or --from-now. Exit status 99 when there
    is nothing to change.

    \b
    Examples
      alpheus pipeline adopt marts.daily:mart
      alpheus pipeline adopt daily_mart --job daily
    """
    with settings.catalog() as catalog:
        name = _name_of(catalog, reference)
        if ":" in reference and name != reference:
            found = _declared_pipeline(reference)
            commit = found.adopt(catalog, _chosen(found, jobs))
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
    "--job", "jobs", type=PAIR, multiple=True, metavar="OLD=NEW", help="Rename this job, too. Repeat it."
)
@pass_settings
def pipeline_rename(settings: Settings, old: str, new: str, jobs: tuple[tuple[str, str], ...]) -> None:
    """Move a pipeline's positions, and those of its jobs, under other names, in one commit.

    For code that calls them otherwise from now on: under a new name a job would begin anew. To rename jobs alone, name
    the pipeline twice.

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
@click.option("--job", "jobs", multiple=True, metavar="NAME", help="Only this job. Repeat it.")
@pass_settings
def pipeline_rewind(settings: Settings, reference: str, to: str, jobs: tuple[str, ...]) -> int:
    """Take a pipeline's outputs and positions back to what they were at a version or time, in one commit.

    A version of -1 is the head, -2 the one before it.

    Outputs are the tables that its jobs wrote since. Refused (exit status 1) when others changed them, too. Jobs come
    back unparked. Exit status 99 when they are there already.

    \b
    Examples
      alpheus pipeline rewind daily_mart 412
      alpheus pipeline rewind daily_mart 2026-03-01T12:00:00Z --job daily
    """
    with settings.catalog() as catalog:
        commit = positions.rewind(catalog, _name_of(catalog, reference), to.strip(), jobs or None)
    if commit is None:
        return output.NOTHING_TO_DO
    settings.out.document(commit, f"rewound in version {commit.version}")
    return output.DONE
