"""Spark over a catalog: scans by Spark's own Parquet reader, transactional writes, streams, pipelines.

    from alpheus.spark import SparkCatalog
    lake = SparkCatalog(spark, alpheus.connect("grpc://127.0.0.1:7480"))
    lake.append("sales.orders", df)

    catalog        SparkCatalog: what users call; nothing below imports it
    spark_session  `session`: a session in this process
    tables         how are a table's rows read and written by Spark?
    files          how does Spark read and write exactly the files that a catalog lists?
    streams        how do Spark's own streams and data sources read and write a catalog?
    workers        what do Spark's Python workers need, and where do they get it?
    job_run        the run that a pipeline's job is called with
    job_trial      the same for a test, without catalog or storage
    java           the Java that Spark is started with
    jars           the jars that Spark needs for storage: what `packages` returns

PySpark is imported when the first name of those that need it is taken from here, so that `alpheus.spark.java` and
`packages` can be used before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpheus.spark.catalog import SparkCatalog, doctor
    from alpheus.spark.files.probe import Problem, Report, Worker
    from alpheus.spark.jars import Jar, Packages, packages
    from alpheus.spark.spark_session import session
    from alpheus.spark.tables.reader import PinnedReader
    from alpheus.spark.tables.transaction import SparkTransaction

__all__ = [
    "Jar",
    "Packages",
    "PinnedReader",
    "Problem",
    "Report",
    "SparkCatalog",
    "SparkTransaction",
    "Worker",
    "doctor",
    "packages",
    "session",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Jar", "Packages", "packages"):
        from alpheus.spark import jars

        return getattr(jars, name)
    if name in ("Problem", "Report", "Worker"):
        from alpheus.spark.files import probe

        return getattr(probe, name)
    if name == "session":
        from alpheus.spark import spark_session

        return spark_session.session
    from alpheus.spark import catalog

    return getattr(catalog, name)
