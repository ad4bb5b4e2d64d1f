"""How does a person look after a catalog?

    admin           checks, checkpoints, leases, subscriptions, the symbol list
    symbols         the symbol list: names of all live objects, and its upkeep
    system_tables   the catalog about itself, as Arrow tables
    data_check      data files compared with what their manifests say

What a person does after a loss stands in `alpheus_journal.repair`.
"""
