"""The numbers of the parts that metrics show. Nothing is computed for them that a part does not know anyway."""

from __future__ import annotations

import asyncio

from alpheus_daemon.instrumented import TimedStorage
from alpheus_daemon.maintenance import Maintenance
from alpheus_daemon.retention import Retention
from alpheus_daemon.serve.service import CatalogService
from alpheus_daemon.serve.watch import Hub
from alpheus_daemon.serve.writer import Writer
from alpheus_daemon.tag_upkeep import TagUpkeep
from alpheus_daemon.telemetry.metrics import Metrics
from alpheus_journal.errors import AlpheusError
from alpheus_journal.journal import Journal, software_version
from alpheus_journal.wire.messages import PROTOCOL_VERSION


def register_gauges(
    metrics: Metrics,
    journal: Journal,
    writer: Writer,
    hub: Hub,
    service: CatalogService,
    maintenance: Maintenance,
    tags: TagUpkeep,
    retention: Retention,
) -> None:
    """Register every number that the parts of a daemon know anyway."""
    metrics.gauge(
        "alpheus_protocol_version",
        "The protocol version, by release.",
        lambda: {software_version(): PROTOCOL_VERSION},
        label="release",
    )
    _add_history(metrics, journal)
    _add_memory(metrics, journal, service)
    _add_load(metrics, writer, service)
    _add_subscribers(metrics, journal, hub)
    _add_maintenance(metrics, journal, maintenance)
    _add_retention(metrics, retention)
    metrics.counter("alpheus_tags_made_total", "Tags made by a rule.", lambda: tags.made_count)
    metrics.counter(
        "alpheus_tags_deleted_total",
        "Tags deleted because their time was over, or because a rule keeps no more.",
        lambda: tags.deleted_count,
    )
    if isinstance(journal.storage, TimedStorage):
        outage = journal.storage.outage
        metrics.gauge(
            "alpheus_storage_outage",
            "1 while calls to the storage fail because it is not reachable.",
            lambda: int(outage.is_on),
        )
        metrics.counter(
            "alpheus_storage_outages_total", "Outages of the storage.", lambda: outage.outages_count
        )
        metrics.gauge(
            "alpheus_storage_read_only",
            "1 once a write failed in a way that forbids further writes until a restart.",
            lambda: int(outage.is_read_only),
        )


def _add_history(metrics: Metrics, journal: Journal) -> None:
    follower = journal.follower

    def is_replaced() -> float:
        try:
            journal.check_history()
        except AlpheusError:
            return 1
        return 0

    metrics.gauge("alpheus_head_version", "The newest version known here.", lambda: journal.head.version)
    metrics.gauge(
        "alpheus_history_replaced",
        "1 once the storage was found to be restored to an older state.",
        is_replaced,
    )
    metrics.gauge(
        "alpheus_writes_refused",
        "1 while there are signs of missing versions, so that nothing may be written.",
        lambda: int(journal.doubt is not None),
    )
    metrics.counter(
        "alpheus_versions_accepted_total",
        "Versions that became the head here, by who wrote them (own, foreign).",
        lambda: {
            "own": journal.follower.accepted_count - journal.follower.foreign_count,
            "foreign": journal.follower.foreign_count,
        },
        label="origin",
    )
    metrics.counter(
        "alpheus_head_reads_total",
        "Requests for the head, by answer: a probe of the storage, a shared probe, or none (stale, sole_writer).",
        lambda: {
            "probe": follower.probes.started,
            "shared": follower.probes.shared,
            "stale": follower.probes.stale,
            "sole_writer": follower.probes.sole,
        },
        label="answered_by",
    )


def _add_memory(metrics: Metrics, journal: Journal, service: CatalogService) -> None:
    replay, caches, lookups = journal.replay, journal.follower.reader.caches, service.lookups
    metrics.gauge("alpheus_objects", "Objects of the head in memory.", lambda: replay.objects_count)
    metrics.gauge(
        "alpheus_head_ahead_seconds",
        "How far the head's time is ahead of this machine's clock; 0: not at all, or less than a minute.",
        lambda: journal.head_ahead_millis / 1000,
    )
    metrics.gauge(
        "alpheus_state_missing",
        "1 while the catalog is not in memory although it should be, so that each read goes to the tree.",
        lambda: int(journal.state is None),
    )
    metrics.gauge(
        "alpheus_state_unverified",
        "1 while the catalog in memory came from a checkpoint and is not yet compared with the tree.",
        lambda: int(replay.is_unverified),
    )
    metrics.gauge(
        "alpheus_state_unverified_since_seconds",
        "When the unverified catalog was loaded (epoch); 0: there is none.",
        lambda: replay.unverified_since_millis / 1000,
    )
    metrics.gauge(
        "alpheus_state_overlay_objects",
        "Objects of the head that changed since the flat base was made.",
        lambda: replay.overlay_count,
    )
    metrics.gauge(
        "alpheus_state_base_bytes",
        "Bytes of the flat base, mapped or in memory.",
        lambda: replay.base_size_bytes,
    )
    metrics.gauge(
        "alpheus_symbol_journal_entries",
        "Journal entries of the list of names since it was compacted.",
        lambda: replay.symbol_journal_length,
    )
    metrics.gauge(
        "alpheus_cache_bytes",
        "Bytes in each cache.",
        lambda: {**{name: cache.size for name, cache in caches.items()}, "lookups": lookups.size_bytes},
        label="cache",
    )
    metrics.counter(
        "alpheus_cache_hits_total",
        "Lookups that the cache answered.",
        lambda: {**{name: cache.hits for name, cache in caches.items()}, "lookups": lookups.hits},
        label="cache",
    )
    metrics.counter(
        "alpheus_cache_misses_total",
        "Lookups that the cache did not answer.",
        lambda: {**{name: cache.misses for name, cache in caches.items()}, "lookups": lookups.misses},
        label="cache",
    )


def _add_load(metrics: Metrics, writer: Writer, service: CatalogService) -> None:
    metrics.gauge("alpheus_requests_running", "Running calls, streams included.", lambda: service.calls.count)
    metrics.gauge(
        "alpheus_requests_running_bytes",
        "Bytes that decoding the requests of running calls may take.",
        lambda: service.calls.bytes,
    )
    metrics.gauge("alpheus_event_loop_tasks", "Tasks of the event loop.", lambda: len(asyncio.all_tasks()))
    metrics.gauge(
        "alpheus_commit_queue_transactions",
        "Transactions that wait for a group.",
        lambda: writer.queue_count,
    )
    metrics.gauge(
        "alpheus_commit_queue_bytes",
        "Bytes of the requests of waiting transactions.",
        lambda: writer.queue_bytes,
    )
    metrics.gauge(
        "alpheus_commit_in_flight_transactions",
        "Transactions in the groups that are being stored.",
        lambda: writer.in_flight_count,
    )


def _add_subscribers(metrics: Metrics, journal: Journal, hub: Hub) -> None:
    metrics.gauge(
        "alpheus_event_window_versions",
        "Versions whose events are in memory, for subscribers and for judging commits.",
        lambda: journal.events_held_count,
    )
    metrics.gauge(
        "alpheus_subscribers",
        "Event streams, by state (current, catching_up).",
        lambda: {"current": hub.current_count, "catching_up": hub.catching_up_count},
        label="state",
    )
    metrics.gauge(
        "alpheus_subscriber_lag_versions",
        "Lag of the subscriber that is farthest behind.",
        lambda: hub.lag_versions_max,
    )
    metrics.gauge(
        "alpheus_event_ring_bytes",
        "Bytes of encoded events kept for all subscribers.",
        lambda: hub.ring_bytes,
    )


def _add_maintenance(metrics: Metrics, journal: Journal, maintenance: Maintenance) -> None:
    replay, index = journal.replay, journal.index
    metrics.counter(
        "alpheus_loads_total",
        "Loads of the head into memory, from a checkpoint or by reading the whole tree.",
        lambda: {"checkpoint": replay.counts.loads_from_checkpoint, "tree": replay.counts.loads_from_tree},
        label="source",
    )
    metrics.counter(
        "alpheus_checkpoints_skipped_total",
        "Checkpoints that could not be used, by reason.",
        lambda: dict(replay.counts.skipped),
        label="reason",
    )
    metrics.counter(
        "alpheus_maintenance_done_total",
        "Successful runs of maintenance jobs.",
        lambda: {job.name: job.done_count for job in maintenance.jobs},
        label="job",
    )
    metrics.counter(
        "alpheus_maintenance_failures_total",
        "Failed attempts of maintenance jobs.",
        lambda: {job.name: job.failures_count for job in maintenance.jobs},
        label="job",
    )
    metrics.counter(
        "alpheus_drifts_total",
        "Times that memory was found to differ from the tree.",
        lambda: maintenance.drifts_count,
    )
    metrics.gauge("alpheus_index_runs", "Stored runs of the index of ids and keys.", lambda: index.runs_count)
    metrics.gauge(
        "alpheus_index_entries",
        "Entries of the index, stored in runs or only in memory.",
        lambda: {"stored": index.entries_count, "memory": index.memory_entries_count},
        label="place",
    )


def _add_retention(metrics: Metrics, retention: Retention) -> None:
    metrics.counter(
        "alpheus_versions_expired_total",
        "Versions that this daemon replaced by tombstones.",
        lambda: retention.expired_count,
    )
    metrics.gauge(
        "alpheus_expiry_oldest_version",
        "The oldest kept version, as the last expiry here left it; 0: none has expired, or no expiry ran here.",
        lambda: retention.oldest_version,
    )
    metrics.gauge(
        "alpheus_expiry_holds",
        "Who held versions back at the last expiry here, by kind; let_go: jobs that had waited for too long.",
        retention.count_holds,
        label="holder",
    )
    metrics.gauge(
        "alpheus_expiry_held_version",
        "The oldest version that anybody held back at the last expiry here; -1: none.",
        lambda: min((hold.version for hold in retention.holds if not hold.let_go), default=-1),
    )
    metrics.counter(
        "alpheus_expiry_let_go_total",
        "Jobs of pipelines that had waited for too long, so that what they need expired.",
        lambda: retention.let_go_count,
    )
    metrics.counter(
        "alpheus_collected_files_total",
        "Files that this daemon deleted because nothing reached them, by kind.",
        lambda: retention.deleted_files,
        label="kind",
    )
    metrics.counter(
        "alpheus_collected_bytes_total",
        "Bytes of these files.",
        lambda: retention.deleted_bytes,
        label="kind",
    )
    metrics.counter(
        "alpheus_collected_uploads_total",
        "Open uploads in parts that this daemon aborted because nobody would end them.",
        lambda: retention.aborted_uploads_count,
    )
    metrics.gauge(
        "alpheus_collection_kept_bytes",
        "Bytes of old files that the last collection here kept, by what reaches them first.",
        lambda: retention.kept_bytes,
        label="kept_by",
    )
    metrics.gauge(
        "alpheus_retention_success_seconds",
        "When the last expiry and the last collection here succeeded (epoch); 0: not since the start.",
        lambda: {what: millis / 1000 for what, millis in retention.succeeded_at_millis.items()},
        label="job",
    )
