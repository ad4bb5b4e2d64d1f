"""The journal: a catalog as immutable files and a sequence of slots, and everything that keeps it correct.

A daemon and a client without a daemon run this same package. The folders are rooms; daemon/ARCHITECTURE.md draws them,
and each room's docstring says which question it answers. Modules beside the rooms:

    journal      a catalog on storage, opened by this process
    access       the protocol that every way to a catalog implements
    repair       decisions of a person after a store lost versions
    create_catalog    version 0 of a catalog
    rooted_storage    the store of a table whose data files lie outside the catalog's prefix
    errors, format, clock, data_roots, failpoints, mmap_file, urls    the ground: every room may import these
"""
