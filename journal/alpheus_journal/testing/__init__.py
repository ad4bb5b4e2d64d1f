"""For authors of storage drivers and of tests: the contract as a test suite, stores that fail and give way on
demand, a fake clock, seeded identities, and a model of the catalog.

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
from alpheus_journal.testing.model import (
    Lake,
    Model,
    apply_to_model,
    model_of,
    put_rows,
    random_operation,
)

__all__ = [
    "BAD_PATHS",
    "Call",
    "FakeClock",
    "Fault",
    "FaultyStorage",
    "InterleavedStorage",
    "Lake",
    "Model",
    "ODD_PATHS",
    "Plan",
    "Record",
    "SIZE_MAX",
    "SeededIdentities",
    "StorageContract",
    "WRITES",
    "apply_to_model",
    "listed",
    "model_of",
    "no_faults",
    "put_rows",
    "raises",
    "random_operation",
    "scripted",
    "seeded",
]
