"""How does synchronous code use the asynchronous client?

    portal         an event loop in a thread, and streams read through it
    reads          the reading verbs; generated
    writes         the writing verbs; generated
    scan           scans, and DuckDB's relations
    replica        a replica
    subscription   durable subscriptions
    symbols        the symbol list
    tags           tags

`python -m alpheus.sync` generates `reads` and `writes` from the asynchronous verbs, docstrings included; `--check`
compares. Change a verb there, never here.
"""
