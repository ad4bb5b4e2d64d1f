"""What does a running daemon tell people and machines?

    logs          one JSON object a line, or text at a terminal
    metrics       histograms, counters, gauges, and the small HTTP server that shows them
    supervision   systemd's `sd_notify`, and the pulse of the event loop
    tracing       spans to an OTLP collector

Numbers that a part knows anyway are read in the event loop when a client asks, so that no number is read while it
changes. Latencies are recorded where they happen. A thin `Storage` around the driver
(`alpheus_daemon.instrumented`) times the store, and every call passes through it. The HTTP server takes one request
of 8 KiB on each connection, with 2 s for its head and 5 s in all, and 32 connections. One more connection cuts off
the one that has taken longest to send its request, so slow clients do not block `/healthz`. `sd_notify` is thirty
lines instead of a dependency.
"""
