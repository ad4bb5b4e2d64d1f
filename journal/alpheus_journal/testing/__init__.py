"""How do authors of drivers and of tests find faults?

    contract        what a storage driver owes, as a test suite
    determinism     a fake clock, seeded identities
    faults          stores that fail, and stores that give way, on demand
    filesystem      a file system in memory that knows what a power cut may leave
    latency         a store whose every request takes the same time
    model           a model of the catalog; catalogs for tests of the journal
    predicates      what predicates mean, written a second time; random predicates and rows
    lakeside        tables whose files hold small sets of rows, and authors that change them
    history         was a history of concurrent calls possible?
    simulation      a world for asyncio programs that one seed decides
    workload        writers and readers of one catalog in that world
    requests        what those clients ask for
    fronts          how they commit and follow
    torment         kills, pauses, wrong clocks and hints, storms, expiry
    verdict         what must be true afterwards
    proxy           a TCP proxy that loses, delays, doubles and forges

A driver's test module inherits the suite whole (pytest with asyncio_mode=auto collects it):

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
    random_operation,
)
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
