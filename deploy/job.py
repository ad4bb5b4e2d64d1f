"""The Spark job of compose.yaml: read the catalog's log through the daemon, and count the commits of each principal.

The job works on the log and not on rows, so Spark needs no jars for the object store.
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
