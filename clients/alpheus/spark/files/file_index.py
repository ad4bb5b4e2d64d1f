"""Frames over files on an object store, without asking the store: paths and sizes come from the catalog.

Spark's usual way asks the store for each path, with a listing and a HEAD request, and passes over a missing path. Here
Spark's own file index gets the files from a cache of listings that this module fills, one for each frame. The cache
that a session's frames share would not do: it may be off, and it drops entries.

The classes are internal to Spark. A release of Spark that moves them fails with an error that says so. Spark Connect
has no JVM in this process, so there Spark asks the store for each path itself.
"""

from __future__ import annotations

import hashlib
import re
import struct
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
_STATUSES_AT_ONCE = 50_000


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
            f"Spark {spark_version} does not take a list of files: {_reason_of(error)}",
            kind="not_supported",
            hint="use PySpark 4.1 to 4.3 for catalogs on object storage",
        ) from error


def _reason_of(error: Py4JError | TypeError) -> str:
    """Return what Py4J misses, without the stack of Java that follows."""
    told = str(error)
    missed = re.search(r"py4j\.Py4JException: (.*)", told)
    return (missed[1] if missed else told.partition("\n")[0])[:300]


def _relation(
    spark: SparkSession, files: Sequence[tuple[str, int]], schema: t.StructType, options: Mapping[str, str]
) -> DataFrame:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    sources = jvm.org.apache.spark.sql.execution.datasources
    none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
    java_schema = session.parseDataType(schema.json())
    root = jvm.org.apache.hadoop.fs.Path(_root_of(files))
    cache = sources.SharedInMemoryCache(_NO_LIMIT, -1).createForNewClient()
    cache.putLeafFiles(root, _statuses(jvm, files))
    roots = jvm.scala.jdk.javaapi.CollectionConverters.asScala([root]).toSeq()
    is_flat = _scala_map(jvm, {"recursiveFileLookup": "true"})  # no partitions in the names of folders
    index = sources.InMemoryFileIndex(session, roots, is_flat, none, cache, none, none)
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


def _root_of(files: Sequence[tuple[str, int]]) -> str:
    """Return an address that stands for exactly these files.

    Spark takes two indexes with the same roots for equal, and may then read one in place of the other. `REFRESH TABLE`
    lists the roots anew; Hadoop's file system for http refuses to list, so the frames keep their files.
    """
    digest = hashlib.sha256(repr(sorted(files)).encode()).hexdigest()
    return f"http://files-of-alpheus.invalid/{digest}"


def _statuses(jvm: Any, files: Sequence[tuple[str, int]]) -> Any:
    """Return the Java array of a FileStatus for each file, made by few calls.

    Hadoop reads the array from its own serialized form: a count, then each status as a length and a FileStatusProto.
    """
    kind = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
    statuses = jvm.java.lang.reflect.Array.newInstance(kind, len(files))
    for start in range(0, len(files), _STATUSES_AT_ONCE):
        part = files[start : start + _STATUSES_AT_ONCE]
        data = b"".join((struct.pack(">i", len(part)), *(_encode_status(*file) for file in part)))
        found = jvm.org.apache.hadoop.io.ArrayWritable(kind)
        found.readFields(jvm.java.io.DataInputStream(jvm.java.io.ByteArrayInputStream(data)))
        jvm.java.lang.System.arraycopy(found.get(), 0, statuses, start, len(part))
    return statuses


def _encode_status(path: str, size: int) -> bytes:
    """Return the length and the FileStatusProto (Hadoop's FSProtos.proto) of a file."""
    name = path.encode()
    message = b"".join(
        (
            b"\x08\x02\x12",  # file type: a file; path
            _varint(len(name)),
            name,
            b"\x18",  # length
            _varint(size),
            b"\x50\x01\x58",  # one replica; block size
            _varint(_BLOCK_SIZE_BYTES),
        )
    )
    return struct.pack(">i", len(message)) + message


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _scala_map(jvm: Any, values: Mapping[str, str]) -> Any:
    java = jvm.java.util.HashMap()
    for key, value in values.items():
        java.put(key, value)
    return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java)
