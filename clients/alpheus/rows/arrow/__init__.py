"""How does Arrow data of any kind become the columns of a table?

    input_data     rows of Python and Arrow data of callers, as batches with a table's columns
    cast           arrays, cast to a table's columns
    layouts        the many layouts of Arrow, as the plain ones; pure
    empty_arrays   empty arrays, with the offset that some writers leave out; pure

Each error names the column that does not fit.
"""
