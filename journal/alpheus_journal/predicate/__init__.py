"""Which rows does a condition select, and how is it stored?

    terms        the terms of predicates, and functions that make them
    evaluation   predicates as stored bytes, and evaluated on rows
    verdict      what a file's statistics say of a predicate on all its rows
    sql          predicates as SQL text

Other packages import the names from this room.
"""

from alpheus_journal.predicate.evaluation import absent, decode, encode, evaluate, keep, leaf_arrays
from alpheus_journal.predicate.sql import text
from alpheus_journal.predicate.terms import (
    FALSE,
    FLOATS,
    INTEGER_RANGES,
    NAN,
    NULL,
    PREDICATE_DEPTH_MAX,
    PREDICATE_NODES_MAX,
    PREDICATE_SIZE_BYTES_MAX,
    TIMESTAMPS,
    TRUE,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Leaf,
    Not,
    Operator,
    Or,
    Path,
    Predicate,
    StartsWith,
    Value,
    all_of,
    any_of,
    ascending,
    check,
    columns_of,
    compare,
    decode_value,
    encode_value,
    leaf_paths,
    mirrored,
    one_of,
    rebind,
    reference,
    starts_with,
    walk,
)
from alpheus_journal.predicate.verdict import Verdict, explain, judge, judge_of

__all__ = [
    "FALSE", "FLOATS", "INTEGER_RANGES", "NAN", "NULL", "TIMESTAMPS",
    "PREDICATE_DEPTH_MAX", "PREDICATE_NODES_MAX", "PREDICATE_SIZE_BYTES_MAX", "TRUE", "And",
    "Compare", "Constant", "In", "IsNull", "Leaf", "Not", "Operator", "Or", "Path", "Predicate", "StartsWith",
    "Value", "Verdict", "absent", "all_of", "any_of", "ascending", "check", "columns_of", "compare", "decode",
    "decode_value", "encode", "encode_value", "evaluate", "explain", "judge", "judge_of", "keep", "leaf_arrays",
    "leaf_paths", "mirrored", "one_of", "rebind", "reference", "starts_with", "text", "walk",
]  # fmt: skip
