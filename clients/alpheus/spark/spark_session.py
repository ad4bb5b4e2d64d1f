"""`session`: a Spark session in this process, for trials and small pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from alpheus.catalog import Catalog
from alpheus.spark.jars import add_packages
from alpheus.spark.java import use_java


def session(
    name: str = "alpheus",
    cores: int = 2,
    settings: Mapping[str, str] | None = None,
    catalog: Catalog | str | None = None,
) -> SparkSession:
    """Return a Spark session in this process, for trials and small pipelines, with a suitable Java.

    A failed task (a Python worker that died, for example) is retried three times, which Spark's plain local mode does
    not do. A session that already runs is returned unchanged.

    `catalog` is the catalog that the session is for, or the URL of its storage. For a catalog on S3, Spark downloads
    the jars of `packages()` at the start, unless hadoop-aws is among Spark's jars or in its settings.
    """
    use_java()
    given = dict(settings or {})
    url = catalog.storage().url if isinstance(catalog, Catalog) else catalog or ""
    if url.startswith("s3:"):
        given |= add_packages(given)
    chosen = {
        "spark.master": f"local[{cores},4]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    if given.get("spark.master", "local").startswith("local"):
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(cores),
        }
    builder = SparkSession.builder.appName(name)
    for key, value in (chosen | given).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
