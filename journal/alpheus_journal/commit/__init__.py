"""How does a group of transactions become one version?

    committer            `commit_group` from top to bottom: judge, stage, upload, publish, answer
    judge                decides which transactions make the version
    idempotency          idempotent retries: what earlier versions already answer
    executor             executes one transaction on a workspace
    manifest_cache       manifest segments: checks those of transactions, caches those of tables
    base                 the version to build on: the durable head, or a staged version
    stage                encodes the version: nodes and root
    references           what a transaction may newly reference, although files are collected
    staged               a version that is ready to be published
    contention           waits for the turns of other processes
    publish              puts the root into its slot, through `log.witnesses`; settles a lost reply
    saved_transactions   distributed transactions, stored under their id

**One fate.** All members of a version share its fate:

    won                     all are committed
    lost                    all are judged again on the version that won
    refused by the store    all hear the store's error
    unknown                 the same bytes go to the same slot until the deadline, then all hear OutcomeUnknown

A refusal that rests on unpublished members waits for the next group. An immediate answer would report a state that may
never exist.

**Size.** While members are executed the bytes of the root are counted. The group ends at the first member that would
not fit into a version file. If the count is wrong, half of the group is left out and the rest is encoded again.

**Staging ahead.** `commit_group` calls `on_publish` just before it sends its root. From then on one more group may be
given. That group is judged, executed and encoded on top of the *staged* version, which is not durable yet. Where a
store takes files and roots in separate requests, the group's files are uploaded. Then the group waits for the first:

    won, and its version is the head    the second root is sent; its answers rest on durable versions
    lost, or refused by the store       the second is dropped; its members are judged again, after the first's
    unknown at its deadline             the second is dropped and queued again; the next group settles first

So nothing goes to a slot while the slot before it is open, and no answer leaves before the version that it rests on is
durable. A transaction whose id or key is in the staged version is not judged before that version is settled. Where the
staged version may hold a writer's sequence, only durable versions answer. No root names the files of a dropped version.
At most one group is in flight and one ahead. Measured with requests of 20 ms: ten waiting groups take 11 rounds of
requests instead of 20. On a local disk
files and root are one job, so only encoding overlaps: 640 transactions in groups of 64 take 1.39 s instead of 1.53 s.
A lone commit costs two requests: its files together, and its root.

**Turns of processes** (`contention` has the rule). The loser of a slot must read the winner before it can try again;
the winner need not. With requests of 20 ms, a process that always had work won every slot, and another process won
none in 30 s. No process can see who lost, so every writer waits by itself before it sends a root. In virtual time,
with requests of 20 ms, in 120 s: two writers get 836 and 744 versions, four get 348 to 503, and a writer that commits
every five seconds beside a writer at full rate waits 4 s at most. A writer alone loses some 8 % of its versions. A
writer with requests of 40 ms gets 109 of 1,505 versions beside one of 20 ms, and 4 to 35 of 1,500 beside two. The rule
promises that no process is kept out by others equally far from the store. It promises no share. A wait takes five
seconds at most. A sole writer and a stopping daemon do not wait.

**The event loop** is shared with readers. A turn of the loop executes at most 16 operations. Pure work over a
transaction of more than 500 operations, and work over more than 256 KiB of manifest segments
(`workspace.context.Offloaded`), runs in a thread.
"""
