"""How does a client reach one catalog?

    connections     sessions with a daemon, or with storage itself, by URL
    session         one client's way: its calls, tried again, and the newest version that it has seen
    retry           for how long a call is tried again, and the pauses
    arguments       names, versions, limits and texts as people write them
    reads           the reading verbs that catalog, snapshot and transaction share
    pinned_reads    reads of rows at one version
    snapshot        the catalog at one version, with a lease or without
    leases          leases of this client's readers: taken, renewed, given up
    table_starts    tables that lack data files at a version, by their rules of history
    remote          a daemon as an `Access`
    commit_stream   commits of one connection in one stream

**Which version a reader gets.**

    nothing said      a probe that starts after the request: every acknowledged commit is seen; all that wait share it
    `staleness`       no probe while one that found nothing began within the bound: the answer lags by no more
    sole writer       no probe: the daemon knows the head
    session token     with any of these: never older than the token's version, in this history

A client remembers the token of the newest version that it has seen, in answers, in events and by its own commits, and
sends it with every question for the head. So its reads never go back, whichever daemon answers. A token whose version
is another one now means that the history was replaced: `bad_token`. While the storage is away, readers with a
staleness continue within it; all others receive Unavailable.

**Where writes begin.** A transaction begins at the head, found by a probe, because its reads are pinned there. A
single verb that reads nothing (create, set properties, drop, rename) begins at the newest version that the client has
seen, if the client asked for the head or committed within the last `HEAD_KNOWN_SECONDS`. Then the commit is the only
call.

- Its success is the same as after a question for the head: a commit succeeds at the true head alone. Begun earlier,
  it is compared with more versions, so it can only be refused more often. A daemon behind the begin version catches
  up first.
- Its refusal is not reported, because it may rest on the older begin version. The refused transaction will never be
  applied, so the client asks for the head and begins again with a new id. An unknown outcome is not a refusal: the same
  id continues.
- The version is of this history: a call without an answer, or a lost connection, ends the knowledge, and the next
  question for the head carries the token. Answers about the head count as knowledge. Numbered versions, stale reads,
  events and commits found by a retry do not.
"""
