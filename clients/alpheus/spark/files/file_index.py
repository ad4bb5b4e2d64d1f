"""Frames over files on an object store, without asking the store: paths and sizes come from the catalog.

Spark's usual way asks the store for each path, with a listing and a HEAD request, and passes over a missing path. Here
Spark's own file index gets the files from a cache of listings that this module fills, one for each frame. The cache
that a session's frames share would not do: it may be off, and it drops entries.

The classes are internal to Spark. A release of Spark that moves them fails with an error that says so. Spark Connect
has no JVM in this process, so there Spark asks the store for each path itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from alpheus.spark.files.locations import is_connect
from alpheus_journal.errors import InvalidInput

_BLOCK_SIZE_BYTES = 64 << 20
_NO_LIMIT = 1 << 50


def read_listed(
    spark: SparkSession, files: Sequence[tuple[str, int]], schema: t.StructType, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of Parquet files, given as Hadoop paths (decoded, no patterns) with sizes in bytes.

    Nothing is read before the frame runs. The frame is a bare relation: the caller must put a projection above it.
    Raises InvalidInput (`not_supported`) where this Spark lacks the classes.
    """
    if is_connect(spark):
        return spark.read.options(**options).schema(schema).parquet(*(path for path, _ in files))
    try:
        return _relation(spark, files, schema, options)
    except Py4JJavaError:
        raise  # of the store or its settings
    except (Py4JError, TypeError) as error:
        raise InvalidInput(
            f"Spark {spark_version} does not take a list of files: {str(error)[:300]}",
            kind="not_supported",
            hint="use PySpark 4.1 to 4.3 for catalogs on object storage",
        ) from error


def _relation(
    spark: SparkSession, files: Sequence[tuple[str, int]], schema: t.StructType, options: Mapping[str, str]
) -> DataFrame:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    sources = jvm.org.apache.spark.sql.execution.datasources
    none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    java_schema = session.parseDataType(schema.json())
    # Each name that Py4J looks up is a call, so nothing is looked up in the loop.
    split = jvm.java.util.regex.Pattern.compile("\0").split
    paths = list(
        jvm.org.apache.hadoop.util.StringUtils.stringToPath(split("\0".join(path for path, _ in files)))
    )
    status, new_array = jvm.org.apache.hadoop.fs.FileStatus, jvm.java.lang.reflect.Array.newInstance
    kind = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
    cache = sources.SharedInMemoryCache(_NO_LIMIT, -1).createForNewClient()
    for path, (_, size) in zip(paths, files, strict=True):
        leaves = new_array(kind, 1)
        leaves[0] = status(size, False, 1, _BLOCK_SIZE_BYTES, 0, path)
        cache.putLeafFiles(path, leaves)
    roots = jvm.scala.jdk.javaapi.CollectionConverters.asScala(paths).toSeq()
    empty = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    index = sources.InMemoryFileIndex(session, roots, empty, none, cache, none, none)
    if index.allFiles().size() != len(files) or index.sizeInBytes() != sum(size for _, size in files):
        raise InvalidInput("Spark lists other files than the catalog does", kind="not_supported")
    relation = sources.HadoopFsRelation(
        index,
        jvm.org.apache.spark.sql.types.StructType(),
        java_schema,
        none,
        sources.parquet.ParquetFileFormat(),
        _scala_map(jvm, options),
        session,
    )
    plan = getattr(sources, "LogicalRelation$").__getattr__("MODULE$").apply(relation, False)
    frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
    return DataFrame(frame, spark)


def _scala_map(jvm: Any, values: Mapping[str, str]) -> Any:
    java = jvm.java.util.HashMap()
    for key, value in values.items():
        java.put(key, value)
    return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java)
