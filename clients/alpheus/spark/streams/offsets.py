"""The calls by which Spark asks a stream for its offsets, in each release of Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from alpheus.feed.stream_position import StreamPosition, position_of
from alpheus.spark.streams.options import (
    NO_LIMIT,
    Options,
)
from alpheus.spark.workers.check import Travelling

try:
    from pyspark.sql.streaming import datasource as limits  # PySpark 4.2 and up
except ImportError:  # 4.1 passes no limits, and runs AvailableNow as one batch
    limits = None  # type: ignore[assignment]

SupportsTriggerAvailableNow: type = object if limits is None else limits.SupportsTriggerAvailableNow


class OffsetReader(Travelling, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Answers Spark's calls for offsets. Subclasses find the positions."""

    _options: Options
    _last: StreamPosition | None = None

    def _latest(
        self, start: StreamPosition, max_files: int | None, max_versions: int | None
    ) -> StreamPosition:
        raise NotImplementedError

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return StreamPosition().to_offset()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        if self._options.max_files is None and self._options.max_versions is None:
            return limits.ReadAllAvailable()
        return limits.ReadMaxFiles(self._options.max_files or NO_LIMIT)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch.

        PySpark 4.1 passes neither argument. There a batch begins where the one before it ended, and the first batch
        after a start has no limits, because with AvailableNow, which 4.1 does not announce, there is no second one.
        """
        begin = self._last if start is None else position_of(start)
        if begin is None:
            self._last = self._head()
        elif limits is not None and isinstance(limit, limits.ReadAllAvailable):
            self._last = self._latest(begin, None, None)
        else:
            files = self._options.max_files if limit is None else limit.max_files
            self._last = self._latest(begin, files, self._options.max_versions)
        return self._last.to_offset()

    def _head(self) -> StreamPosition:
        raise NotImplementedError
