"""How does a request become an answer?

    server           the listener, and its orderly end
    service          gRPC to the journal and back, one handler a method
    requests         bytes to messages, whole or not at all
    request_weights  what decoding a request may take, counted on its bytes
    lanes            large requests in threads, the smaller ones first
    calls            how many calls run, and what their requests weigh
    deadlines        ends queued work and writes that wait too long, with one timer each
    writer           group commit: the queue, and the one task that empties it
    commit_stream    CommitMany: the commits of one connection in one stream
    lookups          Load: thousands of names answered with bytes that were made once
    watch            event streams: the hub, its ring of encoded events, the poller

**Group commit.** One task (`Writer.run`) owns the head. It seals a group, hands it to `commit_group`, and answers
its members. While one group is stored the next one gathers; there is no timer. A group takes at most
`group_count_max` members and `group_bytes_max` bytes of requests; a larger member goes alone. The next group is
sealed ahead (`alpheus_journal.commit`) when `group_ahead_count_min` transactions wait or the first has waited
`group_ahead_seconds`. Fewer keep gathering, so that light load is not cut into small versions.

**Fairness.** The queue is one line a source (a connection), and a group takes from the lines in turn. With S
waiting sources, a request behind k of its own source is in the group that takes the S·(k+1)-th request.

**Life of a member.** A queued member is withdrawn, and not applied, when its callers leave or its time is over. A
member in flight continues whether or not a caller waits, and a caller with the same id gets the answer. A member that
comes back unjudged is first in its line again, with its old deadline.

**CommitMany** carries many commits in a message, both ways. Each is queued as if it had come alone. A stream may
have `commit_stream_count_max` and `commit_stream_bytes_max` unanswered; at either bound it is not read, and
HTTP/2's windows hold the peer. When a stream breaks, queued members are withdrawn and those in flight continue; the
client asks again by id. A message says how long its members may wait (`timeout_millis`) and which earlier ones
no caller waits for. A message counts as a running request until its last answer; the stream does not, and ends with
the daemon. The client sends a commit immediately when none is unanswered, and sends commits that come meanwhile
together. A large transaction goes by `Commit`, and so does every transaction if the daemon is too old for streams.

**Releases side by side.** A request means what its sender's release says. So the daemon refuses, by name and before
it does anything, every unknown part of a request: a method (UNIMPLEMENTED), a kind, any field at any depth
(`not_supported`). If ignored, such a field would cost a commit its condition, a read its version, a stream its
filter. In a stream one such commit is refused alone. `GetInfo` takes anything: its answer says which release
answers. Answers are the other way round: clients pass over unknown fields, and what they must not misread takes a
new protocol number (`newer_format`). So a new field of a request needs a daemon upgraded before its clients, and
its default keeps old daemons usable. The check compares sizes after discarding unknown fields, in C: 1.3 µs for a
commit of one operation, which takes 6 µs to decode and 130 µs in all in a group of a hundred. Naming the unknown
field is Python and bounded: it searches 10,000 messages (8 ms), and above 48 KiB of unknown bytes only the size is
named.

**What a request weighs.** Two bytes can stand for a message that takes a hundred in protobuf and more in Python: 4
MB of empty operations took 88 MB. So the parts are counted on the wire before anything is decoded. Limits: 10,000
operations, 10,000 reads and 100,000 properties of a transaction; 10,000 transactions of a message; 400,000 parts of
one operation or read; 1,000 fields of the request itself. Parts and bytes give a weight. `requests_bytes_max`
bounds the weights of all running requests, and one request may weigh 64 times `request_bytes_max`. Up to 16 KiB are
weighed in the event loop (10 µs for a small commit). Larger ones, and decoding what weighs more than 512 KiB, go to
one of two threads: up to 256 KiB, and larger. In each the smallest waiting request is next and every fourth time
the oldest, so a commit of 20 KiB waits for two larger ones at most. More threads would take more turns from the
event loop. Worst cases measured: 4 MB of the shortest columns take 0.14 s to weigh, 4 MB made to be refused 0.25 s.
Nothing of a refused request outlives the refusal: errors forget the frames that they went through.

**Calls** of all methods are counted. Calls above the limit are refused with an error of ours, which says when to retry.
gRPC's own limit is 1,024 calls higher, for other services (health, reflection). A call is counted first and refused
after, so that the end of the daemon waits for refusals, too.

**Load** never decodes a name that it knows: the encoded name is the key of its framed answer, and a response is a
join. Invariant: the kept answers are those of the head and of no other version. Before each use, names that newer
versions changed are removed. After more than 1,000 versions, or beyond the window of events, all names are removed.
Names encoded in another way than ours are answered and not kept.

**Events.** One version is one event, in order, no gap, no duplicate. A subscriber is a cursor, pulled by its own
transport. *Current*: its next message comes from the ring, or is the very bytes that its neighbour got. *Catching
up*: from the window of events, then from storage, into the same ring. *Too slow*: a message not taken within the
write time-out cuts it off, with a resume token. Either way it costs a position and one message, so it delays no
commit and no other subscriber. Subscribers of one filter share a *kind*: an event is encoded once a kind, and once
for all kinds whose filter passes all of it. A message takes what there is, up to `event_batch_count_max` and
`event_batch_bytes_max`, because the cost is per message. A new version wakes 32 subscribers at a time, and encoding
gives way every 8 events. One timer serves all heartbeats and one all write time-outs: a timer a message cost a
tenth of sending it. Pings find vanished hosts within 40 s; gRPC needs `grpc.http2.ping_timeout_ms` for that.

**Rejected.** A lookup stream in both directions: it costs as much a message as a call. A queue of events per
subscriber: memory would grow with subscribers; a slow one now costs reads instead.
"""
