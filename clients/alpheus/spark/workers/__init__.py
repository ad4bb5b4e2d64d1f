"""What do Spark's Python workers need besides pyarrow and PySpark, and where do they get it?

    check           whether workers can import it, tried before the first frame of `format("alpheus")`
    task_imports    what each task of this check runs; it travels with the job
    package         one file with all that workers need, for Spark to send (`alpheus spark package`)
    unpack          what that file runs on a worker, before the first import

Tables are read by Spark's own reader, and tasks of writes get their code with the job (`alpheus.spark.files`). Only the
data source "alpheus" runs the library itself in workers: it plans with the catalog's objects, reads files as the
library does, and opens storage. This code has dependencies with parts in C, so it cannot travel with a job.
"""
