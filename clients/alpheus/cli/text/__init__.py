"""How do answers become text, and text values?

output         answers as aligned text or as JSON, errors, exit statuses
retention      what an expiry and a collection did, or would do
document       the documents of `alpheus apply`
json_rows      values in JSON, and Arrow data of a table's columns
column_types   column types as users write them
"""
