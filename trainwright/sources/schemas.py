"""The one schema of many files."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.sources.jsonl_types import settled, united
from trainwright.tables import schema_difference


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one file was found to hold.

    Attributes:
        uri: The file.
        schema: Its columns, in the plain form.
        groups: Rows of each row group of a Parquet file.
        guessed: Whether the types were found by reading values; then wider ones may take their place.
        digits: Columns of text whose every value is written in digits alone, such as 007.
    """

    uri: str
    schema: pa.Schema
    groups: tuple[int, ...] = ()
    guessed: bool = False
    digits: frozenset[str] = frozenset()


def merge(files: Sequence[Found]) -> pa.Schema:
    """Return the one schema of all files, with the columns in the order of the first.

    Raises:
        InputError: Files differ; names the first that does, the column and both types.
    """
    first, *others = files
    merged, digits = first.schema, first.digits
    for other in others:
        if set(other.schema.names) != set(merged.names):
            _refuse(first, merged, other)
        for index, field in enumerate(merged):
            kind = _common(field, other, first.guessed, digits)
            if kind is None:
                _refuse(first, merged, other)
            merged = merged.set(index, pa.field(field.name, kind))
        digits = digits | other.digits
    return pa.schema([field.with_type(settled(field.type)) for field in merged]) if first.guessed else merged


def _common(field: pa.Field, other: Found, guessed: bool, digits: frozenset[str]) -> pa.DataType | None:
    """Return the type that takes the values of both; None if there is none."""
    one, two = field.type, other.schema.field(field.name).type
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    if not (guessed and other.guessed):
        return None
    if {one, two} == {pa.int64(), pa.string()}:
        return pa.string() if field.name in digits | other.digits else None
    return wider(one, two)


def wider(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type, short of text, that takes the values of two found ones; None if there is none."""
    pair = {one, two}
    if pair == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pair == {pa.date32(), pa.timestamp("us")}:
        return pa.timestamp("us")
    return united(one, two) if one == two or pa.types.is_nested(one) else None


def _refuse(first: Found, expected: pa.Schema, other: Found) -> None:
    hint = "Bring the files to the same columns, or name only those that belong together."
    if other.guessed:
        hint = f"{hint} Types that were found can be said instead: data.types."
    raise InputError(
        f"the files of this source differ: {schema_difference(expected, other.schema)}",
        where=f"{other.uri}, against {first.uri}",
        hint=hint,
    )
