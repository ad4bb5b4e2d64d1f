"""What does a running daemon tell people and machines?

    logs          one JSON object a line, or text at a terminal
    metrics       histograms, counters, readings, and the small HTTP server that shows them
    supervision   systemd's `sd_notify`, and the pulse of the event loop
    tracing       spans to an OTLP collector

What a part knows anyway is read when somebody looks, in the event loop, so that no number is read while it changes.
Latencies are recorded where they happen. The store is measured by a thin `Storage` around the driver
(`alpheus_daemon.instrumented`), which every call passes. The HTTP server takes one request a connection, of 8 KiB,
2 s for its head and 5 s in all, and 32 connections. One more cuts off the connection that has taken longest to send
its request, so slow clients keep nobody from `/healthz`. `sd_notify` is thirty lines instead of a dependency.
"""
