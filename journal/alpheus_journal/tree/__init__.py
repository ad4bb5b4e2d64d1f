"""How does one version find an object, and what differs between two versions?

    btree    the copy-on-write B-tree: find, scan, apply, diff; pure generators that request nodes by path
    node     one node as one Arrow file, and the checks of hostile bytes
    reader   nodes and definitions of one version, read from storage through caches

Nodes never change and have random names, so a cache by path is never stale.
"""
