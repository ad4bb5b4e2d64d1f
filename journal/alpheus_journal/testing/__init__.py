"""How do authors of drivers and of tests find faults?

    contract        the duties of a storage driver, as a test suite
    faults          stores that fail or yield to other tasks on demand
    filesystem      a file system in memory that knows the possible states after a power cut
    latency         a store whose requests all take the same time
    proxy           a TCP proxy that loses, delays, doubles and forges messages
    models          second implementations that tests compare with: catalogs, tables, predicates
    simulation      a world for asyncio programs that one seed decides, and a catalog's clients in it

A driver's test module inherits the whole suite (pytest with asyncio_mode=auto collects it):

    class TestMine(StorageContract):
        async def make(self) -> Storage:
            return MyStorage(...)

Nothing here imports pytest.
"""

from __future__ import annotations

from alpheus_journal.testing.contract import (
    BAD_PATHS,
    ODD_PATHS,
    SIZE_MAX,
    StorageContract,
    listed,
    raises,
)
from alpheus_journal.testing.faults import (
    FITTING,
    LAWFUL,
    WRITES,
    Call,
    Fault,
    FaultyStorage,
    InterleavedStorage,
    Plan,
    Record,
    no_faults,
    scripted,
    seeded,
)
from alpheus_journal.testing.filesystem import (
    FakeFileSystem,
    Survivor,
    Syscall,
)
from alpheus_journal.testing.models.catalog import (
    Lake,
    Model,
    ModelTable,
    ModelView,
    Past,
    apply_to_model,
    model_of,
    put_rows,
)
from alpheus_journal.testing.models.random_operations import random_operation
from alpheus_journal.testing.proxy import TcpProxy
from alpheus_journal.testing.simulation.history import (
    Called,
    Violation,
    check_linearizable,
    check_witness,
)
from alpheus_journal.testing.simulation.ids import (
    FakeClock,
    SeededIdentities,
)
from alpheus_journal.testing.simulation.loop import (
    Audit,
    LaxStorage,
    Network,
    Process,
    SimulatedClock,
    SimulatedLoop,
    Weather,
)

__all__ = [
    "Audit",
    "BAD_PATHS",
    "Call",
    "Called",
    "FITTING",
    "FakeClock",
    "FakeFileSystem",
    "Fault",
    "FaultyStorage",
    "InterleavedStorage",
    "LAWFUL",
    "Lake",
    "LaxStorage",
    "Model",
    "ModelTable",
    "ModelView",
    "Network",
    "ODD_PATHS",
    "Past",
    "Plan",
    "Process",
    "Record",
    "SIZE_MAX",
    "SeededIdentities",
    "SimulatedClock",
    "SimulatedLoop",
    "StorageContract",
    "Survivor",
    "Syscall",
    "TcpProxy",
    "Violation",
    "WRITES",
    "Weather",
    "apply_to_model",
    "check_linearizable",
    "check_witness",
    "listed",
    "model_of",
    "no_faults",
    "put_rows",
    "raises",
    "random_operation",
    "scripted",
    "seeded",
]
