"""The interface of sources, their listing and opening by kind, and the record of where a content was seen.

Kubeflow's cache keys on a step's parameters, and a location is one. So with a store, ``resolve`` passes on
not the location but a folder of the store, whose name depends on the content alone; the locations are
recorded in it.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import canonical, digest_text, read_json
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Data
from trainwright.storage import Access, AlreadyExists
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


FOLDER = "sources"
PINNED = frozenset({"sql", "delta", "iceberg"})
"""Formats whose sources are pinned in their location, and need libraries of their own."""

Inspect = Callable[[Sequence[SourceFile]], None]
"""Check of a source's files before any is read; raises to reject them."""


def list_source(source: str, data: Data, access: Access, inspect: Inspect | None = None) -> Listing:
    """List the content of a source, as cheaply as its kind allows.

    Args:
        source: A path, URI, glob, table or database; a pin of ``resolve`` is respected.
        data: How it is read.
        access: What may be reached.
        inspect: Check of the files; not called for a database, which has none.

    Returns:
        The listing. The ``source`` of a table or a database is pinned: from it the same is listed again.

    Raises:
        InputError: Nothing is there, or it is not of the kind that ``data`` says.
    """
    listing: Listing = _reader(source, data).list_source(source, data, access, inspect)
    return listing


def open_source(listing: Listing, data: Data, access: Access) -> Sources:
    """Open a listing as one table; inferring the types of CSV and JSONL files reads them once.

    Raises:
        InputError: A file is incomplete, not of its kind, or differs from the others in its columns.
    """
    source: Sources = _reader(listing.source, data).open_source(listing, data, access)
    return source


def column_names(listing: Listing, data: Data, access: Access, wanted: Collection[str]) -> list[str]:
    """Return the columns of a listing: of a table's log, a query, or the first of several files.

    Each line of a JSONL file may bring another column: it is read until it has those that are wanted.
    """
    names: list[str] = _reader(listing.source, data).column_names(listing, data, access, wanted)
    return names


def _reader(source: str, data: Data) -> Any:
    """Import the module that reads this kind of source; each needs libraries of its own."""
    try:
        match data.format:
            case "sql":
                from trainwright.sources import sql

                return sql
            case "delta":
                from trainwright.sources import delta

                return delta
            case "iceberg":
                from trainwright.sources import iceberg

                return iceberg
            case _:
                from trainwright.sources import files

                return files
    except ImportError as error:
        raise DependencyError(
            f"a source of format {data.format} needs a package that is not here: {error}",
            where=storage.redacted(source),
            hint=f"Install the extra: pip install 'trainwright[{data.format}]'; in a pipeline, use the image "
            "ingest.",
        ) from None


def note_place(listing: Listing, version: str, data: Data, access: Access) -> str:
    """Record the location of a content in ``data.store``, and return the folder that names the content.

    Without a store, for a table or database (which have a pin), and for a snapshot that only refers to its
    objects (and so needs their location), the source itself is returned. ``version`` is the content digest.
    """
    if data.store is None or data.mode == "reference" or data.format in PINNED:
        return listing.source
    folder = storage.join(data.store, FOLDER, version)
    place = storage.join(folder, f"{digest_text(listing.source)}.json")
    with suppress(AlreadyExists):
        storage.create(place, canonical({"source": listing.source}).encode(), access)
    return folder


def places_of(source: str, version: str, data: Data, access: Access) -> Iterator[str]:
    """Yield the recorded locations of a content, the last first; any other source as it is."""
    if data.store is None or source != storage.join(data.store, FOLDER, version):
        yield source
        return
    notes = storage.list_files(source, (".json",), access)
    for note in sorted(notes, key=lambda entry: entry.written, reverse=True):
        yield read_json(storage.read_bytes(note.uri, access=access), where=note.uri)["source"]


def example_values(column: Any) -> str:
    """Format at most three distinct values of an Arrow column, for an error."""
    values = column.drop_null().slice(0, 1000).to_pylist()
    shown = dict.fromkeys(repr(value) if isinstance(value, str) else str(value) for value in values)
    return ", ".join(itertools.islice(shown, 3)) or "no value"
