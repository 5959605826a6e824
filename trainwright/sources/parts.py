"""The interface of an opened source: one schema for all files, and parts that are read in order."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.tables import schema_difference

_PIN = re.compile(r"(?P<place>.+)#(?P<kind>[a-z0-9]+)=(?P<value>[0-9a-z]+)")


def pinned(place: str, kind: str, value: str) -> str:
    """Return a location with its pin: ``gs://bucket/table#version=12``."""
    return f"{place}#{kind}={value}"


def unpinned(source: str, kind: str) -> tuple[str, str]:
    """Split a source into its location and the value of its pin, which is empty if it has none."""
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


def change_type(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Change a type, or the innermost types of its lists and objects."""
    if pa.types.is_list(kind):
        return pa.list_(change_type(kind.value_type, change))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(change_type(field.type, change)) for field in kind])
    return change(kind)


_WIDER = {
    frozenset({pa.int64(), pa.float64()}): pa.float64(),
    frozenset({pa.date32(), pa.timestamp("us")}): pa.timestamp("us"),
}


def wider(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type, short of text, that takes the values of two inferred ones; None if there is none."""
    if one == two or pa.types.is_null(one) or pa.types.is_null(two):
        return two if pa.types.is_null(one) else one
    if pa.types.is_list(one) and pa.types.is_list(two):
        entries = wider(one.value_type, two.value_type)
        return None if entries is None else pa.list_(entries)
    if pa.types.is_struct(one) and pa.types.is_struct(two):
        fields = {field.name: field.type for field in one}
        for field in two:
            fields[field.name] = wider(fields.get(field.name, pa.null()), field.type)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return _WIDER.get(frozenset({one, two}))


@dataclass(frozen=True, kw_only=True)
class FileSchema:
    """Columns and size of one file.

    Attributes:
        uri: The file.
        schema: Its columns, in the plain form.
        groups: Rows of each row group of a Parquet file.
        guessed: Whether the types were inferred from values; then wider ones may replace them.
        digits: Text columns whose every value has digits only, such as 007.
        rows: Rows of a text file; those of a Parquet file are in ``groups``.
    """

    uri: str
    schema: pa.Schema
    groups: tuple[int, ...] = ()
    guessed: bool = False
    digits: frozenset[str] = frozenset()
    rows: int = 0


def merge(files: Sequence[FileSchema]) -> pa.Schema:
    """Return the common schema of all files, with the columns in the order of the first."""
    first, *others = files
    merged, digits = first.schema, first.digits
    for other in others:
        digits = digits | other.digits
        if set(other.schema.names) != set(merged.names):
            _reject(first, merged, other)
        for index, field in enumerate(merged):
            kind = _common(field, other, first.guessed, field.name in digits)
            if kind is None:
                _reject(first, merged, other)
            merged = merged.set(index, pa.field(field.name, kind))
    if not first.guessed:
        return merged
    # Arrow's JSON parser makes arrays of wrong lengths of nulls without a type within lists and objects.
    return pa.schema(
        field if pa.types.is_null(field.type) else field.with_type(change_type(field.type, _text_for_null))
        for field in merged
    )


def _text_for_null(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_null(kind) else kind


def _common(field: pa.Field, other: FileSchema, guessed: bool, digits: bool) -> pa.DataType | None:
    """Return the type that takes the values of both files; None if there is none."""
    one, two = field.type, other.schema.field(field.name).type
    if (guessed and other.guessed) or one == two or pa.types.is_null(one) or pa.types.is_null(two):
        codes = digits and {one, two} == {pa.int64(), pa.string()}
        return pa.string() if codes else wider(one, two)
    return None


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
        before: Rows of the files before its own.
    """

    index: int
    uri: str
    first: int = 0
    last: int | None = None
    start: int = 0
    rows: int | None = None
    before: int = 0


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
        """Yield the file's URI, the number of rows of that file before these, and the rows of a part.

        Raises:
            InputError: A file is broken, or holds a value that its column's type does not take.
            TransientError: The store or the database could not be reached, again and again.
        """

    def column(self, part: SourcePart, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of one column of a part, batch by batch."""
        return (rows[name] for _, _, rows in self.batches(part))


def split(files: Sequence[FileSchema], size: int) -> list[SourcePart]:
    """Split files into parts: a Parquet file at the row groups in which ``size`` rows are reached."""
    parts = list[SourcePart]()
    before = 0
    for file in files:
        if not file.groups:
            rows = None if file.guessed else 0
            parts.append(SourcePart(index=len(parts), uri=file.uri, rows=rows, before=before))
        first = start = rows_in_part = 0
        for last, group in enumerate(file.groups, 1):
            rows_in_part += group
            if rows_in_part >= size or last == len(file.groups):
                parts.append(
                    SourcePart(
                        index=len(parts),
                        uri=file.uri,
                        first=first,
                        last=last,
                        start=start,
                        rows=rows_in_part,
                        before=before,
                    )
                )
                first, start, rows_in_part = last, start + rows_in_part, 0
        before += sum(file.groups) + file.rows
    return parts
