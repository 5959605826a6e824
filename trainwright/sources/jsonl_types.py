"""Arrow types of JSON values: how two of them join, and how a type is read."""

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

EXACT = 2**53
"""Up to here every integer is a float, too."""


def united(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type that takes values of both; None if they are of different kinds."""
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    if {one, two} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(two):
        entries = united(one.value_type, two.value_type)
        return None if entries is None else pa.list_(entries)
    if pa.types.is_struct(one) and pa.types.is_struct(two):
        return _united_fields(one, two)
    return None


def _united_fields(one: pa.StructType, two: pa.StructType) -> pa.DataType | None:
    fields = {field.name: field.type for field in one}
    for field in two:
        joined = united(fields.get(field.name, pa.null()), field.type)
        if joined is None:
            return None
        fields[field.name] = joined
    return pa.struct(list(fields.items()))


def settled(kind: pa.DataType) -> pa.DataType:
    """Return a type in which what never holds a value within lists and objects is text.

    Arrow's parser makes arrays of wrong lengths of nulls that have no type in there.
    """
    if pa.types.is_list(kind):
        return pa.list_(_text_for_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_text_for_null(field.type)) for field in kind])
    return kind


def _text_for_null(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_null(kind) else settled(kind)


def without_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in place of times, at any depth."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_times(field.type)) for field in kind])
    return kind


def as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type in which JSON is parsed for a column: times, dates and decimals come as text."""
    exact = pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind)
    return pa.string() if exact else kind


def may_be_inexact(table: pa.Table) -> bool:
    """Tell whether a column of floats, at any depth, has a value so large that an integer loses digits."""
    return any(_is_large(chunk) for column in table.columns for chunk in column.chunks)


def _is_large(array: pa.Array) -> bool:
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.greater_equal(pc.abs(array), float(EXACT)), min_count=0).as_py())
    if pa.types.is_list(array.type):
        return _is_large(array.flatten())
    if pa.types.is_struct(array.type):
        return any(_is_large(field) for field in array.flatten())
    return False
