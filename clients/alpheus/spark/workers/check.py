"""Try, before the first frame of the data source "alpheus", whether Spark's workers can import what it needs there.

Without this, the first task fails with Spark's stack trace. `SparkCatalog.stream`, `events` and `source_options` ask
the workers. A program that never makes a `SparkCatalog` gives us no session in its own process. There each object that
Spark sends to a worker tells the same when the worker loads it (`Travelling`).
"""

from __future__ import annotations

from typing import Any, SupportsIndex

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from alpheus.spark.files.locations import is_connect
from alpheus.spark.files.probe import application_of, count_tasks
from alpheus.spark.files.store_errors import explain, make_error
from alpheus.spark.workers import task_imports
from alpheus_journal.errors import AlpheusError, InvalidInput
from alpheus_journal.journal import software_version

HINT = (
    'send them the file that "alpheus spark package" writes (spark.submit.pyFiles), or install alpheus with its'
    " dependencies for their Python"
)

cloudpickle.register_pickle_by_value(task_imports)  # type: ignore[no-untyped-call]

_passed: set[tuple[str, str]] = set()
"""The applications that passed, with the Python of their workers."""


def check_workers(spark: SparkSession) -> None:
    """Raise InvalidInput (`bad_configuration`) that names the machine, its Python and what it cannot import.

    The check is one job with a task for each core, once an application and Python. A task imports the library, which
    takes about a second of CPU in a new worker; the worker keeps it for later tasks. Failures are not remembered. An
    executor that starts later is not asked: it then tells the same in its first task (`Travelling`).
    """
    key = (application_of(spark), _python_of(spark))
    if key in _passed:
        return
    count = count_tasks(spark)
    try:
        rows = (
            spark.range(0, count, 1, count)
            .mapInArrow(task_imports.try_imports, task_imports.RESULT)
            .collect()
        )
    except (PySparkException, Py4JError) as error:
        raise _job_failed(str(error)) from error
    own = software_version()
    for row in rows:
        place = f"the Python worker {row.executable} (Python {row.python}) on {row.host}"
        if row.error:
            raise InvalidInput(
                f'{place} cannot import what the data source "alpheus" needs: {row.error}',
                kind="bad_configuration",
                hint=HINT,
            )
        if row.alpheus != own:
            raise InvalidInput(
                f"{place} has alpheus {row.alpheus}, but this process has {own}",
                kind="bad_configuration",
                hint="give workers and driver one version: " + HINT,
            )
    _passed.add(key)


def _job_failed(told: str) -> AlpheusError:
    kind, message, hint = explain(told)
    message = f"Spark's Python workers could not be asked whether they can import alpheus: {message}"
    return make_error(kind, message, hint)


def _python_of(spark: SparkSession) -> str:
    """Return the Python that the session's tasks run; empty with Spark Connect, where the server chooses it."""
    return "" if is_connect(spark) else str(spark.sparkContext.pythonExec)


class Travelling:
    """An object that Spark sends to workers. A worker that cannot import its class says so by name.

    Pickled, it is a function by value that first tries the imports, and the object as bytes.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        data = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return task_imports.load_object, (data, HINT)
