"""Write a class archive of Spark: `python tests/spark_class_archive.py FILE` (`make test` does this once).

A JVM that starts Spark loads and verifies ten thousand classes. With an archive (`-XX:SharedArchiveFile`) a session
starts with half the CPU. tests/conftest.py names the archive to every JVM that a test starts. A JVM ignores the archive
of another Java or other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import alpheus
from alpheus.spark import SparkCatalog, session

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "amount": [0.5, 1.5, 2.5]})


def use_classes(folder: Path) -> subprocess.Popen[bytes]:
    """Do once what most tests of Spark do, so that the archive has the classes. Return the JVM's process."""
    spark = session("class archive", settings={"spark.master": "local[2]"})
    spark.sparkContext.setLogLevel("ERROR")
    with alpheus.create((folder / "lake").as_uri()) as catalog:
        catalog.create_namespace("n")
        catalog.create_table("n.t", ROWS)
        lake = SparkCatalog(spark, catalog)
        lake.append("n.t", spark.createDataFrame([(4, "d", 3.5)], "id LONG, name STRING, amount DOUBLE"))
        lake.temp_view("n.t")
        spark.sql("SELECT name, sum(amount), count(*) FROM t WHERE id > 1 GROUP BY name ORDER BY 2").collect()
        spark.sql("SELECT * FROM t a JOIN t b ON a.id = b.id LEFT JOIN t c ON c.name = a.name").collect()
        lake.delete("n.t", "id = 2")
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    jvm: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc
    spark.stop()
    return jvm


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as scratch:
        jvm = use_classes(Path(scratch))
        jvm.communicate()  # closes the standard input, upon which the JVM writes the archive and ends
    new.replace(target)
