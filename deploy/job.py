"""The Spark job of compose.yaml: reads the catalog's log through the daemon, and counts who committed how much.

It works on the log, not on rows: the Spark side of this release reads and writes rows of catalogs on disks that
driver and executors share, and the catalog of compose.yaml lies on an object store.
"""

from __future__ import annotations

import alpheus
from alpheus.spark import session


def main() -> None:
    with alpheus.connect() as catalog:
        catalog.create_namespace("jobs", exist_ok=True)
        commits = [
            (entry.version, entry.transaction.principal, entry.transaction.message) for entry in catalog.log()
        ]
    spark = session("who-commits")
    try:
        frame = spark.createDataFrame(commits, "version long, principal string, message string")
        frame.groupBy("principal").count().orderBy("principal").show()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
