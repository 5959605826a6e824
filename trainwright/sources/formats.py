"""File formats: detection by name and first bytes, text streams, and Parquet."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet as pq

from trainwright import tables
from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.storage import Access, local_path, open_file
from trainwright.tables import require_distinct

Kind = Literal["parquet", "csv", "jsonl"]

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_MAGIC = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive, such as an .xlsx",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"Obj\x01": "Avro",
    b"ORC": "ORC",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"<!doctype": "an HTML page",
    b"<html": "an HTML page",
    b"<?xml": "XML",
}
_LONGEST = 16


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a source.

    Attributes:
        uri: Its path or URI.
        version: Version of its bytes in a store; empty on a disk.
        kind: Its format.
        codec: How it is compressed as a whole, as Arrow names it; None if it is not.
        access: What may be reached.
    """

    uri: str
    version: str
    kind: Kind
    codec: str | None
    access: Access

    def open(self) -> BinaryIO:
        """Open its bytes, without decompression."""
        return open_file(self.uri, version=self.version, access=self.access)

    def head(self) -> bytes:
        """Return its first bytes."""
        with self.open() as stream:
            return stream.read(_LONGEST)


def file_of(entry: SourceFile, data: Data, access: Access) -> File:
    """Return a file with its format: ``data.format``, or else by its name.

    Raises:
        InputError: Its name says nothing, or it is empty.
    """
    stem, codec = entry.uri.lower(), None
    for suffix, name in _CODECS.items():
        if stem.endswith(suffix):
            stem, codec = stem.removesuffix(suffix), name
    kind = next((kind for suffix, kind in _KINDS.items() if stem.endswith(suffix)), None)
    if data.format in {"parquet", "csv", "jsonl"}:
        kind = data.format
    if kind is None or (kind == "parquet" and codec):
        known = ", ".join(_KINDS)
        raise InputError(
            f"neither a Parquet nor a CSV nor a JSONL file, by its name; known endings are {known}",
            where=entry.uri,
            hint="Say data.format if the name of the file must stay as it is.",
        )
    if not entry.size:
        raise InputError(
            "the file is empty: 0 bytes, not even the names of columns",
            where=entry.uri,
            hint="It may not have been written yet. Remove it, or run again when it is whole.",
        )
    return File(uri=entry.uri, version=entry.version, kind=kind, codec=codec, access=access)


def magic_of(head: bytes) -> str:
    """Return the format that the first bytes of a file are the mark of; empty if unknown."""
    lowered = head.lstrip().lower()
    for mark, name in _MAGIC.items():
        if head.startswith(mark) or (mark.startswith(b"<") and lowered.startswith(mark)):
            return name
    return ""


def reject_other_content(head: bytes, kind: str, where: str) -> None:
    """Reject text that starts like another format.

    Args:
        head: The first bytes, decompressed.
        kind: The expected format, for the error.
        where: The file.

    Raises:
        InputError: They are the mark of another format.
    """
    if found := magic_of(head):
        hint = "Write it as UTF-8." if "UTF-16" in found else "Give the file the name of what it holds."
        raise InputError(f"it is no {kind}: its first bytes {head[:8]!r} say {found}", where=where, hint=hint)


_HEAD = 1 << 16


class TextStream(io.RawIOBase):
    """The bytes of a text file, in order, once.

    Attributes:
        quoted: Whether a double quote was among them.
    """

    def __init__(self, source: pa.NativeFile, file: File, name: str) -> None:
        self.quoted = False
        self._source, self._file, self._seen = source, file, 0
        self._head: bytes = source.read(_HEAD)
        reject_other_content(self._head, name, file.uri)

    def stream(self) -> pa.NativeFile:
        """Return a file for Arrow."""
        return pa.PythonFile(self, mode="r")

    def ends_with_its_first_line(self) -> bool:
        """Tell whether there is only a header."""
        rest = self._head.strip(b"\r\n")
        return len(self._head) < _HEAD and b"\n" not in rest and b"\r" not in rest

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes.

        Raises:
            InputError: A NUL byte is among them.
        """
        if self._head:
            data, self._head = self._head, b""
        else:
            data = self._source.read(size) if size >= 0 else self._source.read()
        if (place := data.find(b"\0")) >= 0:
            raise InputError(
                f"a NUL byte at byte {self._seen + place:,}: the file is binary or damaged",
                where=self._file.uri,
                hint="Write it as UTF-8 text; UTF-16 has a NUL beside every plain letter.",
            )
        self._seen += len(data)
        self.quoted = self.quoted or b'"' in data
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_text(file: File, name: str) -> Iterator[TextStream]:
    """Open a text file, decompressed.

    Args:
        file: The file.
        name: The expected format, for errors.

    Raises:
        InputError: Its first bytes are the mark of something else.
    """
    path = local_path(file.uri)
    raw = str(path) if path else file.open()
    with pa.input_stream(raw, compression=file.codec) as source:
        yield TextStream(source, file, name)


BATCH = 16_384
"""Rows of a batch: a few megabytes."""


def open_parquet(file: File) -> pq.ParquetFile:
    """Open a Parquet file; closing it closes its stream."""
    path = local_path(file.uri)
    return tables.open_parquet(path or file.open())


def read_footer(file: File) -> tuple[pa.Schema, tuple[int, ...]]:
    """Return the columns and the rows of each row group.

    Raises:
        InputError: The footer is missing or broken, or a column has no name or a duplicate one.
    """
    with naming_parquet(file), open_parquet(file) as opened:
        metadata = opened.metadata
        rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        return require_distinct(opened.schema_arrow, file.uri), rows


def read_groups(file: File, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Read row groups ``first`` up to, and without, ``last``, one at a time.

    Raises:
        InputError: The file is broken.
    """
    with naming_parquet(file), open_parquet(file) as opened:
        for index in range(first, opened.num_row_groups if last is None else last):
            yield from opened.iter_batches(BATCH, row_groups=[index])


@contextmanager
def naming_parquet(file: File) -> Iterator[None]:
    """Translate Arrow's errors about a Parquet file into one that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(_parquet_problem(file, str(error)), where=file.uri) from None


def _parquet_problem(file: File, text: str) -> str:
    if "magic bytes not found" not in text and "Parquet file size is" not in text:
        return f"the Parquet file cannot be read: {text:.300}"
    head = file.head()
    if head.startswith(b"PAR1"):
        return "Parquet footer missing: the file is incomplete; it may still be written"
    found = magic_of(head) or "no kind of file that is known here"
    return f"Parquet footer missing: the file is not Parquet; its first bytes {head[:8]!r} say {found}"
