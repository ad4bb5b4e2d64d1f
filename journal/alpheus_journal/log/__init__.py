"""Which versions exist, and which of them holds a given transaction?

    versions        the log: find the head, read a root, take a slot, keep the hints
    version_files   the bytes of a version: action rows and root
    root_rows       rows of a root that readers pass over, for roots without a checksum
    times           times of versions where clocks are wrong
    index           which versions may hold a transaction id or a retry key
    index_runs      the index's files: sorted runs of fingerprints
    witnesses       how a writer notices that its store was put back to an older state
    leases          copies of roots that keep a version readable for a time

**Exactly once.** A transaction's id, its cancellation and its retry key are in the root of its version. So the only
question is which roots to read, and `index` answers it. It knows *parts*, each of which covers a range of versions
without a gap:

    accepted recently    versions since this process opened the catalog; a dict of at most 8,192 entries
    runs in memory       sealed from it, or read by a search; 16 bytes an entry, at most 2^20 entries, the oldest go
    stored runs          written by daemons; mapped, or held in memory below 1 MiB

A search goes from the newest version down. Where a part covers the range, it proposes versions or rules them out.
Stored runs are listed once a search, and only if more than a few roots would have to be read. What is still not
covered is read, 16 roots at a time. A search that may stop at the time in an id reads one root before it fetches a
run, so the outcome of a recent transaction needs no run.

- Only covered or read versions give a "no". A run counts when its bytes are whole, its catalog and last commit id are
  right, and that version's own ids are in it.
- Only a root gives a "yes". A proposal that its root denies is a collision, and costs that read.
- An expired version says nothing, wherever it is proposed.
- Runs are optional. Without them a process reads the uncovered roots once and remembers 2^20 entries. Runs that
  vanish are done without. A run that lacks something is not used again by this process, and is replaced.

`Index.write` covers the uncovered ranges in pieces of at most 20,000 versions or 2^20 entries, four roots at a time,
and works no more than half of the time. A root that cannot be read stays a gap.

**A store that was put back.** A writer rarely looks for others, so `witnesses` looks at what its own work stands on
before anyone hears of a commit: with each version at the two slots below, and once a second (five on object stores)
at past heads. Past heads are kept as an exponential histogram, some thirty for 18 hours. On local disks a look is
three `stat` calls in the job that links the root, through folders that are opened again, so that a swapped folder is
noticed. On object stores two requests travel beside the root's. Members of the version that finds it hear
OutcomeUnknown of kind `history_replaced`: a refusal would invite the same work under a new id, and `repair` may well
keep that root. FORMAT.md, "A store that was put back", has the rules and the bound.
"""
