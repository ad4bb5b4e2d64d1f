"""How does a person look after a catalog?

    admin           checks, checkpoints, leases, subscriptions, the symbol list
    tags            tags: made, listed, moved, dropped
    retention       expiry of old versions, and collection of files that nothing reaches
    symbols         the symbol list: names of all live objects, and its upkeep
    system_tables   the catalog about itself, as Arrow tables
    data_check      data files compared with what their manifests say

What a person does after a loss stands in `alpheus_journal.repair`.
"""
