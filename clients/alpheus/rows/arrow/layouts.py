"""Convert arrays of any Arrow layout to plain layouts. Pure.

Plain layouts are those that every function of Arrow takes: at no depth a dictionary, run-end encoding, view or
extension type. Unions hold values of several types in one column; they are not converted, and no table takes them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from alpheus_journal.tables.columns import is_list

FAILURES = (pa.ArrowException, ValueError, TypeError, IndexError)
"""The errors that Arrow raises for types and values that it cannot take apart, most often an exception of its own."""


def is_plain(kind: pa.DataType) -> bool:
    """Return whether an array of the type has a plain layout at every depth. The answer is not cached, because many
    extension types of users cannot be hashed."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return False
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return False
    if types.is_struct(kind):
        return all(is_plain(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_map(kind):
        return is_plain(kind.key_type) and is_plain(kind.item_type)
    if is_list(kind):
        return (types.is_list(kind) or types.is_large_list(kind)) and is_plain(kind.value_type)
    return True


def plain(array: pa.Array) -> pa.Array:
    """The same values in a plain layout. Raises one of `FAILURES` for what Arrow cannot take apart."""
    kind, types = array.type, pa.types
    if is_plain(kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        return plain(array.values).take(_places_of_runs(array))
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if types.is_struct(kind):
        return _plain_struct(array)
    if types.is_map(kind):
        return _plain_map(array)
    lists = _with_plain_values(array)
    # Arrow's own cast of a list view loses rows.
    return pa.LargeListArray.from_arrays(list_offsets(lists), lists.flatten(), mask=lists.is_null())


def _places_of_runs(array: pa.Array) -> pa.Array:
    """For each row the place of its value in `array.values`. Arrow itself decodes only runs of simple values."""
    places = pa.array(range(len(array.values)), pa.int64())
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, places)
    return pc.run_end_decode(runs.slice(array.offset, len(array)))


def _plain_struct(array: pa.Array) -> pa.Array:
    # `flatten` would leave runs below NULL in place; after the conversion it removes them.
    children = [plain(array.field(index)) for index in range(array.type.num_fields)]
    fields = [
        pa.field(array.type.field(index).name, child.type, metadata=array.type.field(index).metadata)
        for index, child in enumerate(children)
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _with_plain_values(array: pa.Array) -> pa.Array:
    """A list array of the same layout with plain values. Arrow cannot flatten most layouts of values."""
    kind, types, mask = array.type, pa.types, array.is_null()
    if types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(plain(values), kind.list_size, mask=mask)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        made = pa.ListViewArray if types.is_list_view(kind) else pa.LargeListViewArray
        offsets, sizes = (
            pc.add(array.offsets, 0),
            pc.add(array.sizes, 0),
        )  # Arrow takes no slices beside a mask
        return made.from_arrays(offsets, sizes, plain(array.values), mask=mask)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    values = plain(array.values.slice(first, last - first))
    offsets = pc.subtract(array.offsets, array.offsets[0])
    made = pa.ListArray if types.is_list(kind) else pa.LargeListArray
    return made.from_arrays(offsets, values, mask=mask)


def _plain_map(array: pa.Array) -> pa.Array:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    keys = plain(array.keys.slice(first, last - first))
    items = plain(array.items.slice(first, last - first))
    offsets = pc.subtract(array.offsets, array.offsets[0])
    kind = pa.map_(
        pa.field(
            array.type.key_field.name, keys.type, nullable=False, metadata=array.type.key_field.metadata
        ),
        pa.field(array.type.item_field.name, items.type, metadata=array.type.item_field.metadata),
    )
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())


def list_offsets(array: pa.Array) -> pa.Array:
    """64-bit offsets of a list array of any layout over `array.flatten()`, which leaves out values below NULL."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum_checked(lengths)])


def plain_size(array: pa.Array) -> int:
    """The approximate size of `plain(array)` in bytes, which may be large: a short dictionary can stand for a long
    column."""
    kind, types = array.type, pa.types
    if is_plain(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        return int(array.nbytes)
    if isinstance(array, pa.ExtensionArray):
        return plain_size(array.storage)
    if types.is_dictionary(kind):
        return _taken_size(plain(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return _taken_size(plain(array.values), _places_of_runs(array))
    if types.is_struct(kind):
        return sum(plain_size(array.field(index)) for index in range(kind.num_fields))
    if types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(plain_size(side.slice(first, last - first)) for side in (array.keys, array.items))
    return int(plain(array).nbytes)


def _taken_size(values: pa.Array, places: pa.Array) -> int:
    kind, types = values.type, pa.types
    if (
        types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
    ):
        lengths = pc.binary_length(values).cast(pa.int64()).take(places)
        return int(pc.sum(lengths).as_py() or 0) + 8 * len(places)
    return -(-int(values.nbytes) * len(places) // max(1, len(values)))
