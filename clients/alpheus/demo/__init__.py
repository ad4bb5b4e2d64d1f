"""The demonstration of `make run`: a year of real flights through a daemon and a Spark pipeline.

    python -m alpheus.demo [--directory DIR] [--months 12] [--calm]

A loader process commits each month's flights and weather in one transaction. The daemon pushes every commit to a
pipeline process, which maintains three tables. The daemon and the pipeline process are killed on the way. At the end
the tables are compared with a recomputation by another engine.

    __main__   the steps of the demonstration, and its lines
    data       the flights and their weather
    loader     the process that commits a month at a time
    pipeline   the jobs, and the process that runs them
"""
