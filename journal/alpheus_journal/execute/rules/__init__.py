"""What does each operation do? Each module has `RULES`, which `execute.EXECUTE_RULES` joins.

catalog            the catalog and namespaces: properties, repairs, cancelled ids
collection         fences of collections: the cutoff of files, and the starts of tables
tables             create, register, change, drop and restore tables
schema             a table's columns: what a new table may have, and how columns change
rows               append, overwrite and change rows
row_changes        one change of rows: its conflicts, the files it removes, the predicates it adds
views              views, and their binding to the schema of other objects
lifecycle          drop namespaces, rename, undrop
tags               create, replace and drop tags
pipelines          advance a job
subscriptions      durable subscriptions
"""
