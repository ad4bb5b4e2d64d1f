"""The loader process: commits flights and weather month by month, each month in one transaction.

python -m alpheus.demo.loader URL MONTHS PAUSE_SECONDS
"""

from __future__ import annotations

import sys
import time

import alpheus
from alpheus.demo import data


def load(url: str, months: int, pause_seconds: float) -> None:
    """Commit one transaction per month. While the daemon is down, the client sends the same transaction again; if its
    id has committed, the daemon answers from the log."""
    flights, weather = data.read("flights"), data.read("weather")
    with alpheus.connect(url, timeout=60) as catalog:
        for month in range(1, months + 1):
            with catalog.transaction(message=f"load 2013-{month:02}", properties={"month": str(month)}) as tx:
                tx.append("ops.flights", data.of_month(flights, month))
                tx.append("ops.weather", data.of_month(weather, month))
            time.sleep(pause_seconds)


def main(arguments: list[str]) -> int:
    url, months, pause = arguments
    load(url, int(months), float(pause))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
