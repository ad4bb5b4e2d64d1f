"""Does a stored catalog keep every invariant?

    catalog     the whole check, version by version
    history     slots, links between versions, hints, leases
    trees       the nodes of each version
    contents    definitions, manifest segments and data files that nodes point at
    execution   recorded operations executed again must give the stored bytes
    findings    what a check reports

The diff of two trees says what changed, the recorded actions say why; both must agree.
"""
