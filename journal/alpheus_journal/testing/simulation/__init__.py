"""Does a catalog stay right whatever fails? A world for asyncio programs that one seed decides.

loop          virtual time, processes, networks, clocks, audited stores
ids           a fake clock, seeded identities
world         writers and readers of one catalog: one run
clients       how these clients commit and follow
leaseholders  readers and writers with leases
requests      the transactions and reads that they send
disasters     kills, pauses, wrong clocks and hints, storms, expiry
verdict       what must be true afterwards
history       whether a history of concurrent calls is possible
"""
