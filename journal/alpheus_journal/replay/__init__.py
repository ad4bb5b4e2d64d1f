"""What does this process know of the catalog, and how does it stay right?

    opening          open a catalog: head, definition, signs of lost versions
    evidence         signs, besides the head, of how far the log goes
    follower         the newest version known here, other writers' versions, a window of events
    loader           the catalog into memory and out of it: load, merge, checkpoint, rebuild
    state            the catalog in memory, a fold over versions; pure
    flat             the objects of one version as a sorted table in memory or in a mapped file; pure
    checkpoint       the flat table as a file
    verification     a checkpoint compared with the tree
    symbols          the names of all live objects, at the head and at earlier versions; pure
    snapshot_parts   every object of one version, part by part, for a copy
    history          differences between versions, and dropped objects

**State.** A `State` is a `Flat` of some version and an overlay of the changes since. Invariants: the state equals
the base with the overlay applied, and equals a scan of the tree at `state.version`; every row without a definition is
in the overlay; a base is never changed, only replaced in one step. A lookup halves over every 32nd key, held as
`bytes`, and then searches one slice.

**Into memory** (`Replay.load`): the newest usable checkpoint, and *one* structural diff from its version to the head.
The diff reads each changed node once, however many versions changed it. Where the checkpoint's version has expired
the tree is scanned, and the checkpoint gives definitions by path. Else the tree is scanned. State and symbol list are
put in place together. A damaged definition harms its object alone; a damaged node fails the load.

**Unverified.** A daemon serves a loaded checkpoint immediately, and `verification` compares it with the tree in steps
of `comparison_reads_per_second`. Until the comparison ends, `info` and a metric say so, commits and copies read the
tree, and no checkpoint is written. A library has no background work: it reads the tree until a caller asks for a
checkpoint, which compares first. `Replay.load_certain` reads those definitions that a commit builds on.

**Out of memory.** Past max(10,000, an eighth of the base) changes, the overlay is merged into a new base in a thread.
`checkpoint()` merges, writes a file, maps the file and swaps it in, so that the pages belong to the kernel. A swap
needs the base that the work began with; later changes stay in the overlay. A failed merge leaves everything as it was
and is tried again when the overlay has doubled.

**Symbol list.** The base's key column and a journal of added and removed names. Past `symbol_journal_max` entries
(500, ±10 %) a new base is made in a thread. The last 100,000 entries are kept to undo them: any version since then is
listed from memory, older ones from their trees, with the same answer. `reload` makes state and list again from the
tree and deletes all checkpoints. `check` compares both with the tree: whole, or in random ranges of 64 keys, half of
which begin at a key of memory and half at a leaf of the tree.

**Memory is never the only witness of what is written.** A writer looks up in the tree what its version changes and
what its members read; after a difference nothing is written. An accepted record says what the tree had before. Memory
that differs is dropped immediately (`Replay.invalidate`): members are judged again by the tree, and so is every read,
which is slow and right. Maintenance then rebuilds memory: it loads the tree and deletes all checkpoints, because they
may hold the same mistake. In a library `reload` or the next checkpoint does so. A state that was lost because
versions expired unread (`Replay.lost`) comes back in the same way.

**Failures.** A checkpoint that is damaged, foreign, newer or missing is skipped: the next older one is tried, then the
tree. A mapped file that is truncated in place kills the process by SIGBUS. That is the price of mapping; a copy would
cost the memory that mapping saves.

**Lost versions.** Opening looks at head ± 2^k and at the versions that `checkpoint/` and `vn/latest` name, in one
round of requests. A daemon lists all slots once besides. A disagreement is `Journal.doubt`: reads continue, and every
commit, checkpoint and index run is refused after another look, so that a daemon recovers by itself after `alpheus
repair`. A daemon refuses to start on a head that it cannot read; a library opens past it for older versions.

**A replaced history.** Before another writer's version is taken in, and at least every five seconds while probing,
the follower compares the slot of its head with what it held. An empty slot, or another file in it, ends every read,
commit and stream with `history_replaced` until the process restarts. A sole writer does not look.
"""
