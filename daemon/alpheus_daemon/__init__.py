"""The daemon: one process that serves a catalog with memory, group commit and push. It owns nothing on storage.

    config         every setting, from flags, environment and one file
    main           wires the parts, runs until a signal
    serve          the service: requests, group commit, event streams
    maintenance    checkpoints, index runs, drift checks, rebuilding memory
    tag_upkeep     tags made and deleted by rules; `tag_rules` is their calendar
    retention      expiry and collection, one at a time, on request and by a schedule
    gauges         which numbers of the parts are shown
    instrumented   a storage and a committer that are timed
    telemetry      logs, metrics, traces, supervision

deploy/OPERATIONS.md is for the person who runs a daemon. Its author must know:

**Settings.** One frozen struct: a flag wins over a variable, over the file, over the default. It is checked as a whole
before anything starts, and again at SIGHUP before anything changes. `config.RELOADABLE` names what a running daemon
can change: each part has a `configure`, and `main.Live` calls it. A test records which settings reach a part.

**The sole writer that is not alone.** `sole_writer` leaves out probing. The follower counts versions of other
writers. After the first such version the daemon logs an error and probes from then on. A lost slot or the next drift
check finds that version. No commit was at risk, because slots decide; reads may have been stale until then.

**Rejected.** Metrics pushed to a collector: a daemon must not depend on one. OpenTelemetry for metrics: ten times
the code for the same text. A thread for `/healthz`, or for pings to a supervisor: both would report life for a dead
event loop. Watching the configuration file: an editor's half-saved file would be read.
"""
