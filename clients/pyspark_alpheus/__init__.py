"""Lets Spark find the data source "alpheus" without registration.

When a session first looks for a Python data source, Spark imports every top-level module whose name begins with
`pyspark_`, and registers its `DefaultSource`.
"""

from __future__ import annotations

from alpheus.spark.streams.source import AlpheusSource as DefaultSource

__all__ = ["DefaultSource"]
