"""The client program of PyIceberg's SqlCatalog over SQLite, which runs in .cache/peers. See bench_peers.py."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from measured import Window, answer_commands
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

NAMESPACES = 4
SCHEMA = Schema(
    NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", StringType(), required=False)
)


def open_catalog(directory: str) -> SqlCatalog:
    catalog = SqlCatalog("peer", uri=f"sqlite:///{directory}/catalog.db", warehouse=Path(directory).as_uri())
    for number in range(NAMESPACES):
        catalog.create_namespace_if_not_exists(f"n{number}")
    return catalog


def handle(command: dict[str, Any]) -> dict[str, Any]:
    catalogs = [open_catalog(command["address"]) for _ in range(command["clients"])]  # one for each thread
    if command["operation"] == "exists":
        for index, catalog in enumerate(catalogs):
            catalog.create_table(f"n0.{command['tag']}_{index}", SCHEMA)
    window = Window(command["seconds"])
    failures: list[BaseException] = []

    def client(index: int) -> None:
        catalog, number = catalogs[index], 0
        try:
            while window.is_open:
                started = time.perf_counter()
                if command["operation"] == "create":
                    catalog.create_table(f"n{number % NAMESPACES}.{command['tag']}_{index}_{number}", SCHEMA)
                else:
                    assert catalog.table_exists(f"n0.{command['tag']}_{index}")
                window.done(started)
                number += 1
        except Exception as failure:  # the main thread reports it
            failures.append(failure)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(command["clients"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for catalog in catalogs:
        catalog.engine.dispose()
    if failures:  # a failed client stops, so the figure is of the remaining clients
        print(
            f"SqlCatalog: {len(failures)} of {command['clients']} clients failed: {failures[0]!r}", flush=True
        )
    return {**window.result(), "failed": len(failures)}


if __name__ == "__main__":
    raise SystemExit(answer_commands(handle))
