"""What takes old versions and unreferenced files away (FORMAT.md, "Expiry", "Collection").

`expiry` replaces the roots of old versions by tombstones; `kept_history` finds the tables that keep them for longer.
`collection` then deletes the files that nothing reaches: `candidates` holds the files that were listed, and `reach`
takes out what is reached. `table_starts` plans which data files go before the versions that list them. `open_uploads`
aborts uploads in parts that were left open. `store_time` reads the clock that ages go by. Nothing here decides when: a
person or a daemon's maintenance does.
"""
