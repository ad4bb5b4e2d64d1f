"""What is an execution given, and what does it leave?

    workspace          objects in layers: as they are at one version, and after operations that were executed on it
    context            the transaction around an execution, work for threads, the changes that an operation leaves
    execute_rule       one row an operation class: what executes it, and what it reads
    checks             lookups and checks that many operations share
    dropped_counters   how far the counters of dropped tables got

An operation changes nothing that others see before it has ended: a failing one leaves the workspace as it was.
"""
