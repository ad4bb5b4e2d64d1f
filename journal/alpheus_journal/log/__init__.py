"""Which versions exist, and which of them holds a given transaction?

    versions        the log: find the head, read a root, keep the hints; `format.version_file` names a slot
    version_bytes   the bytes of a version: action rows and root
    row_checks      checks of rows that readers skip, for roots without a checksum
    times           times of versions where clocks are wrong
    index           which versions may hold a transaction id or a retry key
    index_runs      the index's files: sorted runs of fingerprints
    witnesses       sends a version to its slot, and notices that the store was put back to an older state
    copies          a root without its actions: what leases and pins have in common
    leases          copies of roots that keep a version readable for a time
    pins            copies of roots that tags name: stored and read; collection keeps what they reach

**Exactly once.** A transaction's id, its cancellation and its retry key are in the root of its version. So the only
question is which roots to read, and `index` answers it. The index knows *parts*, each of which covers a range of
versions without a gap:

    accepted recently    versions since this process opened the catalog; a dict of at most 8,192 entries
    runs in memory       sealed from the dict, or read by a search; 16 bytes an entry; at most 2^20 entries, the oldest
                         are dropped
    stored runs          written by daemons; mapped, or held in memory below 1 MiB

A search goes from the newest version down. A part that covers a version proposes it or rules it out. Stored runs are
listed once for each search, and only if more than a few roots would have to be read. Roots of versions that no part
covers are read, 16 concurrently. A search that may stop at the time in an id reads one root before it fetches a run,
so the outcome of a recent transaction needs no run.

- Only covered or read versions give a "no". A run counts when its bytes are whole, its catalog and last commit id are
  correct, and it holds the ids of its last version.
- Only a root gives a "yes". A proposal that its root contradicts is a collision, and costs one read.
- An expired version gives no answer, wherever it is proposed.
- Runs are optional. Without runs a process reads the uncovered roots once and remembers 2^20 entries. A search does
  without runs that vanish. A run that lacks an entry is not used again by this process, and is replaced.

`Index.write` covers the uncovered ranges in pieces of at most 20,000 versions or 2^20 entries, reads four roots
concurrently, and works at most half of the time. A root that cannot be read stays a gap.

**A store that was put back.** A writer rarely looks for versions of other writers. So before any client learns of a
commit, `witnesses` checks what the commit rests on: with each version the two slots below, and once a second (every
five seconds on object stores) past heads. Past heads are kept as an exponential histogram, some thirty for 18 hours.
On local disks a check is three `stat` calls in the job that links the root, through folders that are opened again, so
that a replaced folder is noticed. On object stores two requests run beside the root's request. When a version finds a
replaced store, its members receive OutcomeUnknown of kind `history_replaced`: a refusal would invite the same work
under a new id, although `repair` may keep that root. FORMAT.md, "A store that was put back", has the rules and the
bound.
"""
