"""Makes Spark know the data source "alpheus" without a registration.

Spark imports every top-level module whose name begins with `pyspark_`, when a session looks for a data source of
Python for the first time, and takes its `DefaultSource`.
"""

from __future__ import annotations

from alpheus.spark.streams.source import AlpheusSource as DefaultSource

__all__ = ["DefaultSource"]
