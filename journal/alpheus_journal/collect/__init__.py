"""What takes old versions and unreferenced files away (FORMAT.md, "Expiry", "Collection").

`expiry` replaces the roots of old versions by tombstones. `collection` then deletes the files that nothing reaches:
`candidates` holds the files that were listed, and `reach` takes out what is reached. `open_uploads` does the same for
uploads in parts that were left open. Nothing here decides when: a person or a daemon's maintenance does.
"""
