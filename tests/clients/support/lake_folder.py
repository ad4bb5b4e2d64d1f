"""The folder of a catalog on a local disk."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest


def folder_of(url: str) -> Path:
    """Return the folder of the catalog at a URL. Skip the test that asks where the catalog is on S3."""
    if not url.startswith("file://"):
        pytest.skip("looks into a folder of this machine")
    return Path(unquote(url.removeprefix("file://")))
