"""Spark over a catalog: native Parquet scans of pinned file lists, staged writes, pipelines.

    from alpheus.spark import SparkCatalog
    lake = SparkCatalog(spark, alpheus.connect("grpc://127.0.0.1:7480"))
    lake.append("sales.orders", df)

PySpark is imported with the first name taken from here, so that `alpheus.spark.java` can be used before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpheus.spark.catalog import SparkCatalog, session
    from alpheus.spark.tables.reader import PinnedReader
    from alpheus.spark.tables.transaction import SparkTransaction

__all__ = ["PinnedReader", "SparkCatalog", "SparkTransaction", "session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from alpheus.spark import catalog

    return getattr(catalog, name)
