"""What should a catalog, a table, a predicate do? Second implementations, for tests to compare with.

catalog             a catalog as plain values; a store, a clock and journals for tests
random_operations   random operations, most of them possible in a model
reachable           what a catalog reaches, marked without any sharing of work
tables              tables whose files hold small sets of rows, and authors that change them
predicates          the meaning of predicates; random predicates and rows
"""
