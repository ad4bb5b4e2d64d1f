"""For authors of storage drivers and of tests: the contract as a test suite, stores that fail and give way on
demand, a fake clock, seeded identities, a model of the catalog, a simulated world, and checkers of histories.

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
from alpheus_journal.testing.determinism import (
    FakeClock,
    SeededIdentities,
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
from alpheus_journal.testing.history import (
    Called,
    Violation,
    check_linearizable,
    check_witness,
)
from alpheus_journal.testing.model import (
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
from alpheus_journal.testing.simulation import (
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
