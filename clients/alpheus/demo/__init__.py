"""The demonstration that `make run` starts: a year of real flights through a daemon and a Spark pipeline.

    python -m alpheus.demo [--directory DIR] [--months 12] [--calm]

A loader process commits each month's flights and weather in one transaction; the daemon pushes every commit to
a pipeline process, which keeps three tables; both are killed on the way. At the end the tables are compared
with a recomputation by another engine.
"""
