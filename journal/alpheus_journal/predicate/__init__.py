"""Which rows does a condition mean, and what is it stored as?

    terms        what predicates are, and how they are made
    evaluation   stored predicates decoded; on rows, on whole files
    sql          predicates as SQL text

Other packages import this room, which has all of these names.
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
