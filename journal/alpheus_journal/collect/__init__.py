"""What takes old versions and unreferenced files away (FORMAT.md, "Expiry", "Collection").

`expiry` replaces the roots of old versions by tombstones. `collection` then deletes the files that nothing reaches:
`reach` finds what is reached. Nothing here decides when: a person or a daemon's maintenance does.
"""
