"""The marks of every test file that has a Spark session."""

from __future__ import annotations

import pytest

SPARK_MARKS = [
    # Warnings of PySpark itself, at every session and worker.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
