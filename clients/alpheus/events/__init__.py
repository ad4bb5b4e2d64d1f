"""How does a client follow the log?

    events          events that resume by themselves, and recorded transactions
    subscriptions   durable subscriptions as entries of the catalog
    consumer        a consumer of one: waits for its turn, claims, follows, acknowledges
    replica         a copy of the catalog in this process
    replica_index   the objects of one version in memory; pure

**Replica.** A snapshot, then the events after it with their definitions, applied in memory under a lock that readers
of more than one thing take. A read sees one version whole. A name that was read is kept in a dict that is replaced
with the version, so reading it again is one lookup without a lock.

- An event must follow the version in memory, and replace the paths that are in memory. Otherwise, or when the log in
  between has expired, or when the token is refused, a new snapshot is read aside and swapped in whole.
- A broken stream is resumed for ever, with pauses. After a damaged definition, or an event too large for a message,
  the next event comes without definitions and they are loaded one by one. The damaged one raises when it is read.
- The replica ends, and every read raises the reason, when the history was replaced, when the catalog refuses it, when
  it or its catalog is closed, and in a forked child.
- `lag`: the replica asks for the head once a second. When it gets there, it was up to date at the time of asking.
  With `staleness`, reads raise once the lag is larger; without, they continue, and `error` says why the replica
  stands still.
- `namespaces`: the events are filtered where they come from. An object renamed into them is created here; one that
  leaves is dropped. A read of anything else raises `not_replicated`, because an empty answer would be a lie.

Rejected: a dictionary copied for each version. A copy of 100,000 entries takes longer than the events of a busy
second.

**Durable subscriptions** are for consumers without outputs in the catalog: at least once, one consumer at a time.
FORMAT.md, "Subscriptions", has the bytes; `alpheus_journal.wire.positions` has the pure rules. The *holder* is in an
entry of the tree (id, filter, lease, epoch, holder, the epoch's own file `sub/<uuid4>`). The entry changes by commits
alone: of two claims one wins, the other is a conflict. The *position* is in that file. The holder overwrites it with
each acknowledgement, and at least three times a lease. No two clocks are compared: a consumer that stands by watches
the file by its own monotonic clock. It claims when the file has not changed for a lease, when it says `released`, or
when nobody holds the entry.

    stands by    claims (epoch + 1, a new file) when a look that began a lease after the first sees the file unchanged
    claimed      reads the earlier epoch's file once more, begins after the newest position, writes its own file
    active       delivers in order, acknowledges, gives signs of life
    over         sees another epoch, in its stream or before it writes: Conflict (`subscription_claimed`)

1. An epoch has one holder: the log orders claims, and each claim draws a new file. The file tells holders apart, not
   the epoch's number, so an entry that is taken back to an older version harms nothing.
2. A consumer writes a position only if everything below it was delivered from the start of its epoch and
   acknowledged, or is known not to match. Each epoch begins at or below the earlier ones' acknowledgements. So below
   the largest position everything is done.
3. A write that is late, doubled or lost leaves an older position: events come again, none is left out. A holder that
   slept for longer than its lease may deliver until it looks; its acknowledgements are refused, or go to its own
   file, which nobody reads any more.
4. While nothing waits for an acknowledgement, the position follows the log over events that do not match, so that
   expiry need not wait for a filter that seldom matches.

A claim costs a version, an acknowledgement none: consumers never compete with writers for slots. Rejected: positions
in the tree (a version an acknowledgement); leases by wall clock or by modification times (clocks differ, some stores
round to seconds); consumers that keep their own positions (two of them cannot take turns).
"""
