"""Which values travel through the catalog, and how is each written as a message?

    definitions           what an object is: catalog, namespace, table, view, pipeline, subscription
    operations            what a client asks for, and what the log records
    answers               the answers of every way to a catalog; tokens and version references
    expiry_rules          when old versions expire, and how old a file must be to be collected
    history_rules         properties by which tables keep history for longer, or data files for less long
    table_starts          the oldest version whose data files of a table are kept
    event_filter          which changes a follower wants
    type_names            the names of column types that people type
    definition_messages   definitions to protobuf and back
    operation_messages    operations to protobuf and back; `CODECS` has one row for each operation
    action_rows           transactions and actions as rows of a root

Values are frozen and independent of storage. Only the last three modules (and the room `wire`) touch protobuf.
Decoding checks everything that later code relies on. Encoding is deterministic, so equal values give equal bytes.
"""
