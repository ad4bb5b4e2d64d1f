"""Spark sessions of commands, and the commands that look at them. Only commands that need Spark import it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from alpheus.catalog import Catalog
from alpheus.cli.frame import PAIR, F, Settings, cli, mapping, pass_settings
from alpheus.cli.text import output


def conf_option(command: F) -> F:
    return click.option(
        "--conf",
        type=PAIR,
        multiple=True,
        metavar="K=V",
        help="A setting of the Spark session, for example spark.master=spark://host:7077. Repeatable.",
    )(command)


@contextlib.contextmanager
def open_session(
    settings: Settings, name: str, conf: tuple[tuple[str, str], ...]
) -> Iterator[tuple[Any, Catalog]]:
    """Open the catalog, and a Spark session of this process for it, while the block runs."""
    given = mapping(conf)
    try:
        from alpheus.spark.spark_session import session
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"Spark is not installed ({error.name} is missing): run pip install 'alpheus[spark]'"
        ) from error
    with settings.catalog() as catalog:
        with output.show_waiting("starting Spark"):
            spark = session(name, settings=given, catalog=catalog.storage().url)
        try:
            yield spark, catalog
        finally:
            spark.stop()


@contextlib.contextmanager
def open_lake(settings: Settings, name: str, conf: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    """Open the catalog with a Spark session of this process, while the block runs."""
    with open_session(settings, name, conf) as (spark, catalog):
        from alpheus.spark import SparkCatalog

        yield SparkCatalog(spark, catalog)


@cli.group(short_help="Look at Spark: what it needs and whether it works.")
def spark() -> None:
    """Look at Spark: what it needs for a catalog, and whether it works."""


@spark.command("doctor")
@conf_option
@pass_settings
def spark_doctor(settings: Settings, conf: tuple[tuple[str, str], ...]) -> int:
    """Start a Spark session, and try whether it can read and write the catalog.

    The driver and a task on each executor try jars, Python, pyarrow, endpoint, credentials and clock, and whether all
    see the same data. Small files are stored below data/selftest/ and removed, which needs the rights of a writer.
    For a catalog on S3, Spark downloads hadoop-aws first, unless its folder of jars or its settings have it.

    The exit status is 1 if something does not work.

    \b
    Examples
      alpheus spark doctor --catalog s3://bucket/lake
      alpheus spark doctor --conf spark.master=spark://host:7077
    """
    with open_session(settings, "doctor", conf) as (session, catalog):
        from alpheus.spark import doctor

        with output.show_waiting("asking the executors"):
            report = doctor(session, catalog)
        settings.out.document(report, str(report))
    return output.FAILED if report.problems else output.DONE


@spark.command("packages")
@click.option(
    "--spark-version", metavar="VERSION", help="For this Spark, for example 4.3 (default: the installed one)."
)
@click.option("--recipe", is_flag=True, help="Print the lines of a Dockerfile instead.")
@pass_settings
def spark_packages(settings: Settings, spark_version: str | None, recipe: bool) -> None:
    """Print the jars that Spark needs for catalogs on S3, as options of spark-submit.

    \b
    Example
      spark-submit $(alpheus spark packages) job.py
    """
    from alpheus.spark import packages

    found = packages(spark_version)
    options = f"--packages {','.join(found.coordinates)} --exclude-packages {','.join(found.excludes)}"
    settings.out.document(found, found.recipe.rstrip() if recipe else options)


@spark.command("package")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@pass_settings
def spark_package(settings: Settings, file: Path | None) -> None:
    """Write a file with all that Spark's Python workers need, and print the setting that sends it to them.

    Workers need it for format("alpheus"): lake.stream, lake.events, and frames and streams that read or write with that
    format. Other reads and writes need nothing but PySpark and pyarrow on workers. The file holds alpheus and its
    dependencies from the environment of this command, without PySpark, pyarrow, pandas and numpy. So it fits workers
    with the same version of Python on the same platform; others refuse it. Nothing is downloaded.

    FILE must end in .zip, and must not exist. Its default is a name in the current folder with the version, the Python
    and the platform.

    \b
    Examples
      alpheus spark package
      spark-submit --py-files alpheus-workers.zip job.py
      alpheus spark doctor --conf "$(alpheus spark package /tmp/alpheus-workers.zip)"
    """
    from alpheus.spark.workers.package import default_name, write_package

    with output.show_waiting("writing the file"):
        found = write_package(file or Path(default_name()))
    settings.out.note(
        f"{output.size_text(found.size_bytes)}: alpheus {found.alpheus} and {len(found.packages) - 1} packages for"
        f" {found.python} on {found.platform}"
    )
    settings.out.document(found, "\n".join(f"{name}={value}" for name, value in found.settings.items()))
