"""How does a group of transactions become one version?

    committer            `commit_group` from top to bottom: judge, stage, upload, publish, answer
    judge                which transactions make the version
    idempotency          retries: what earlier versions already answer
    executor             one transaction executed on a workspace
    manifest_cache       manifest segments: checked when a transaction brings them, cached when read
    base                 what the version is built on: the durable head, or a staged version
    stage                from members to the bytes of nodes and root
    staged               a version that is ready to be published
    contention           waiting for the turns of other processes
    publish              the root into its slot; settles a lost reply
    saved_transactions   distributed transactions, kept under their id

**One fate.** All members of a version share it. Won. Lost: all are judged again on the version that won. Refused by
the store: all hear it. Unknown: the same bytes go to the same slot until the deadline, then all hear OutcomeUnknown.
A refusal that rests on members which are not published yet waits for the next group: an immediate answer would report
a state that may never exist.

**Size.** While members are executed the bytes of the root are counted. The group ends at the first member that would
not fit into a version file. If the count is wrong, half of the group is left out and the rest is encoded again.

**Staging ahead.** `commit_group` calls `on_publish` when its root is about to be sent. From then on one more group
may be given. It is judged, executed and encoded on top of the *staged* version, which is not durable yet. Where a
store takes files and roots in separate requests, its files are uploaded. Then it waits for the first group:

    won, and its version is the head    the second root is sent; its answers rest on durable versions
    lost, or refused by the store       the second is dropped; its members are judged again, after the first's
    unknown at its deadline             the second is dropped and queued again; the next group settles first

So nothing goes to a slot while the slot before it is open, and no answer leaves before what it rests on. An id or key
in the staged version is not judged before that version is settled; for a writer's sequence that may be in it only
durable versions answer. Files of a dropped version are named by nothing. At most one group is in flight and one
ahead. Measured with requests of 20 ms: ten waiting groups take 11 rounds of requests instead of 20. On a local disk
files and root are one job, so only encoding overlaps: 640 transactions in groups of 64 take 1.39 s instead of 1.53 s.
A lone commit costs two requests: its files together, and its root.

**Turns of processes** (`contention` has the rule). The loser of a slot must read the winner before it can try again;
the winner need not. With requests of 20 ms a process that always had work won every slot, and another got none in 30
s. Nobody can see who lost, so every writer waits by itself before it sends a root. In virtual time, 20 ms a request,
120 s: two writers get 836 and 744 versions, four 348 to 503, and one that commits every five seconds beside one at
full rate waits 4 s at most. A writer alone loses some 8 % of its versions. A writer with requests of 40 ms gets 109
of 1,505 versions beside one of 20 ms, and 4 to 35 of 1,500 beside two. Promised: among processes equally far from the
store none is kept out. Not promised: a share. A wait is five seconds at most. A sole writer and a stopping daemon do
not wait.

**The event loop** is shared with readers. Members are executed 16 operations a turn. Pure work over a transaction of
more than 500 operations, and work over more than 256 KiB of manifest segments (`workspace.Aside`), runs in a thread.
"""
