"""Give empty arrays the offset that they lack. Pure. Spark's workers run this module, too, so it imports pyarrow alone.

An empty array of texts or lists has one offset, 0. Spark 4.1 leaves it out of arrays inside lists that are all NULL or
empty. pyarrow reads it nevertheless: it takes the bytes behind the buffer for an offset, and follows that into other
memory (`nbytes` crashes, seen in pyarrow 26).
"""

from __future__ import annotations

import operator

import pyarrow as pa

_LEAVES = (
    pa.types.is_primitive, pa.types.is_decimal, pa.types.is_string, pa.types.is_binary, pa.types.is_null,
)  # fmt: skip
"""The types of Spark's arrays without arrays inside."""


def mend_empty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return an equal batch in which each empty array, at any depth, has its one offset, 0. Columns of types that Spark
    does not send stay as they are."""
    columns = batch.columns  # new objects at each access
    mended = [
        _mend(column) if pa.types.is_nested(column.type) and _is_of_spark(column.type) else column
        for column in columns
    ]
    if all(map(operator.is_, mended, columns)):
        return batch
    return pa.RecordBatch.from_arrays(mended, schema=batch.schema)


def _is_of_spark(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_of_spark(kind.field(place).type) for place in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_of_spark(kind.key_type) and _is_of_spark(kind.item_type)
    if pa.types.is_list(kind):
        return _is_of_spark(kind.value_type)
    return any(is_kind(kind) for is_kind in _LEAVES)


def _mend(array: pa.Array) -> pa.Array:
    kind = array.type
    if not len(array):
        return pa.nulls(0, kind)
    if pa.types.is_struct(kind):
        children = [array.field(place) for place in range(kind.num_fields)]
        mended = [_mend(child) for child in children]
        if all(map(operator.is_, mended, children)):
            return array
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(mended, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        children = [array.keys, array.items]
        mended = [_mend(child) for child in children]
        inner = pa.StructArray.from_arrays(mended, fields=[kind.key_field, kind.item_field])
    elif pa.types.is_list(kind):
        children = [array.values]
        mended = [inner] = [_mend(array.values)]
    else:
        return array
    if all(map(operator.is_, mended, children)):
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[inner])
