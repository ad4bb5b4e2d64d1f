"""How does Spark follow a table, and write a stream into one? The Python data source "alpheus".

source    feeds of tables and of the catalog as streams
options   the options of the data source, checked
frames    change sets as DataFrames
sink      tasks leave files; the driver commits each batch once
"""
