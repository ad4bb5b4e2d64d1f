"""What every test file that has a Spark session is marked with."""

from __future__ import annotations

import pytest

SPARK_MARKS = [
    # PySpark's own, at every session and worker.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
