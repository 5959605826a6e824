"""The interface of an opened source: one schema for all files, and parts that are read in order."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.tables import schema_difference

_PIN = re.compile(r"(?P<place>.+)#(?P<kind>[a-z0-9]+)=(?P<value>[0-9a-z]+)")


def pinned(place: str, kind: str, value: str) -> str:
    """Return a location with its pin: ``gs://bucket/table#version=12``."""
    return f"{place}#{kind}={value}"


def unpinned(source: str, kind: str) -> tuple[str, str]:
    """Split a source into its location and the value of its pin, which is empty if it has none.

    Raises:
        InputError: It has a pin of another kind.
    """
    found = _PIN.fullmatch(source)
    if not found:
        return source, ""
    if found["kind"] != kind:
        raise InputError(
            f"{source!r:.200} is pinned by {found['kind']}, and not by {kind}",
            where="source",
            hint="Remove the part from '#' on: resolve pins it anew.",
        )
    return found["place"], found["value"]


EXACT = 2**53
"""Up to this every integer is exact as a float."""


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


@dataclass(frozen=True, kw_only=True)
class FileSchema:
    """Columns and size of one file.

    Attributes:
        uri: The file.
        schema: Its columns, in the plain form.
        groups: Rows of each row group of a Parquet file.
        guessed: Whether the types were inferred from values; then wider ones may replace them.
        digits: Text columns whose every value has digits only, such as 007.
    """

    uri: str
    schema: pa.Schema
    groups: tuple[int, ...] = ()
    guessed: bool = False
    digits: frozenset[str] = frozenset()


def merge(files: Sequence[FileSchema]) -> pa.Schema:
    """Return the common schema of all files, with the columns in the order of the first.

    Raises:
        InputError: Files differ; names the first that does, the column and both types.
    """
    first, *others = files
    merged, digits = first.schema, first.digits
    for other in others:
        if set(other.schema.names) != set(merged.names):
            _reject(first, merged, other)
        for index, field in enumerate(merged):
            kind = _common(field, other, first.guessed, digits)
            if kind is None:
                _reject(first, merged, other)
            merged = merged.set(index, pa.field(field.name, kind))
        digits = digits | other.digits
    return pa.schema([field.with_type(settled(field.type)) for field in merged]) if first.guessed else merged


def _common(field: pa.Field, other: FileSchema, guessed: bool, digits: frozenset[str]) -> pa.DataType | None:
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


def _reject(first: FileSchema, expected: pa.Schema, other: FileSchema) -> None:
    hint = "Bring the files to the same columns, or name only those that belong together."
    if other.guessed:
        hint = f"{hint} Types that were found can be said instead: data.types."
    raise InputError(
        f"the files of this source differ: {schema_difference(expected, other.schema)}",
        where=f"{other.uri}, against {first.uri}",
        hint=hint,
    )


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """A part of a source that one worker reads at a time; small, and can be sent to another process.

    Attributes:
        index: Index in the order of the source, from 0.
        uri: Its file; for a database, the URL without user and password.
        first: First row group of a Parquet file.
        last: Row group after its last; None where a part is a whole file or stream.
        start: Rows of the file before it.
        rows: Rows in it by the file's footer; None if unknown before reading.
    """

    index: int
    uri: str
    first: int = 0
    last: int | None = None
    start: int = 0
    rows: int | None = None


class Sources(ABC):
    """A source, opened as one table: read in parts, in order, batch by batch. It can be pickled.

    Attributes:
        schema: The columns and types that every batch has, in the one plain form of
            :func:`trainwright.tables.columns`; columns from the names of folders are the last ones.
    """

    schema: pa.Schema

    @abstractmethod
    def parts(self) -> list[SourcePart]:
        """Return the parts, in the order of the rows; at least one, even if there are no rows."""

    @abstractmethod
    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Read one part.

        Args:
            part: One of :meth:`parts`.

        Yields:
            The file's URI, the number of rows of that file before these, and the rows.

        Raises:
            InputError: A file is broken, or holds a value that its column's type does not take.
            TransientError: The store or the database could not be reached, again and again.
        """


def split_file(found: FileSchema, size: int) -> Iterator[tuple[int, int | None, int, int | None]]:
    """Split a file into parts, a Parquet file at row groups.

    Args:
        found: The file.
        size: Rows of a part; it ends with the row group in which they are reached.

    Yields:
        The first row group, the one after the last, the rows before and the rows in the part.
    """
    if not found.groups:
        yield 0, None, 0, (None if found.guessed else 0)
        return
    first = start = rows = 0
    for index, group in enumerate(found.groups, 1):
        rows += group
        if rows >= size or index == len(found.groups):
            yield first, index, start, rows
            first, start, rows = index, start + rows, 0
