"""Alpheus: an event-sourced catalog for lakehouses.

    catalog = alpheus.connect("grpc://127.0.0.1:7480")     # a daemon, or storage: "file:///lake"
    with catalog.transaction(message="nightly load") as tx:
        tx.append("sales.orders", rows)
        tx.overwrite("mart.daily", summary)
    for event in catalog.events(after=tx.result.version, follow=True):
        ...

`alpheus.aio` has the same for asyncio. `alpheus.errors` has the exceptions.
"""

from __future__ import annotations

import os

# Set before gRPC is imported. gRPC's fork support is for forked children that continue to use gRPC; ours refuse to.
# While calls are running, this support crashes forked children that would only `exec`: Spark's JVM, and any program
# with a `preexec_fn`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from alpheus import aio, errors
from alpheus.catalog import Admin, Catalog, Snapshot, Transaction, connect, create
from alpheus.models import (
    Action,
    Change,
    Checkpoint,
    CheckReport,
    Collection,
    Commit,
    Dropped,
    EarlierFiles,
    Event,
    Expiry,
    FileTotals,
    Finding,
    Hold,
    Info,
    Job,
    Lease,
    LogEntry,
    Namespace,
    NamespaceName,
    Outcome,
    Pipeline,
    PipelineName,
    SavedTransaction,
    SubscriptionInfo,
    Symbol,
    SymbolDrift,
    SymbolsInfo,
    Table,
    TableName,
    Tag,
    TransactionInfo,
    Upgraded,
    UploadTotals,
    VersionInfo,
    View,
    ViewName,
)
from alpheus.session.leases import Unleased
from alpheus.sync.portal import Iteration
from alpheus.sync.replica import Replica
from alpheus.sync.scan import Scan
from alpheus.sync.subscription import Subscription
from alpheus.transactions.compaction import CompactedFiles, CompactionPlan
from alpheus_journal.journal import software_version

__version__ = software_version()

__all__ = [
    "Action",
    "Admin",
    "Catalog",
    "Change",
    "CheckReport",
    "Checkpoint",
    "Collection",
    "Commit",
    "CompactedFiles",
    "CompactionPlan",
    "Dropped",
    "EarlierFiles",
    "Event",
    "Expiry",
    "FileTotals",
    "Finding",
    "Hold",
    "Info",
    "Iteration",
    "Job",
    "Lease",
    "LogEntry",
    "Namespace",
    "NamespaceName",
    "Outcome",
    "Pipeline",
    "PipelineName",
    "Replica",
    "SavedTransaction",
    "Scan",
    "Snapshot",
    "Subscription",
    "SubscriptionInfo",
    "Symbol",
    "SymbolDrift",
    "SymbolsInfo",
    "Table",
    "TableName",
    "Tag",
    "Transaction",
    "TransactionInfo",
    "Unleased",
    "Upgraded",
    "UploadTotals",
    "VersionInfo",
    "View",
    "ViewName",
    "__version__",
    "aio",
    "connect",
    "create",
    "errors",
]
