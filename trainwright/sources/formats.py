"""File formats: detection by name and first bytes, text streams, and Parquet."""

import io
from collections.abc import Iterator, Sequence
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
_HEAD = 1 << 16
_BATCH_ROWS = 16_384


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


def file_of(entry: SourceFile, data: Data, access: Access) -> File:
    """Return a file with its format: ``data.format``, or else by its name."""
    stem, codec = entry.uri.lower(), None
    for suffix, name in _CODECS.items():
        if stem.endswith(suffix):
            stem, codec = stem.removesuffix(suffix), name
    kind = next((kind for suffix, kind in _KINDS.items() if stem.endswith(suffix)), None)
    if data.format in {"parquet", "csv", "jsonl"}:
        kind = data.format
    if kind is None or (kind == "parquet" and codec):
        raise InputError(
            "neither a Parquet nor a CSV nor a JSONL file, by its name; "
            f"known endings are {', '.join(_KINDS)}",
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


def _format_of(head: bytes) -> str:
    """Return the format that the first bytes of a file are the mark of; empty if unknown."""
    lowered = head.lstrip().lower()
    for mark, name in _MAGIC.items():
        if head.startswith(mark) or (mark.startswith(b"<") and lowered.startswith(mark)):
            return name
    return ""


class TextStream(io.RawIOBase):
    """The bytes of a text file, in order, once.

    Attributes:
        quoted: Whether a double quote was among them.
    """

    def __init__(self, source: pa.NativeFile, file: File, name: str) -> None:
        self.quoted = False
        self._source, self._file, self._position = source, file, 0
        self._head: bytes = source.read(_HEAD)
        if found := _format_of(self._head):
            hint = "Write it as UTF-8." if "UTF-16" in found else "Give the file the name of what it holds."
            what = f"it is no {name}: its first bytes {self._head[:8]!r} say {found}"
            raise InputError(what, where=file.uri, hint=hint)

    def ends_with_its_first_line(self) -> bool:
        """Tell whether there is only a header."""
        rest = self._head.strip(b"\r\n")
        return len(self._head) < _HEAD and b"\n" not in rest and b"\r" not in rest

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; reject a NUL byte among them."""
        if self._head:
            data, self._head = self._head, b""
        else:
            data = self._source.read(size) if size >= 0 else self._source.read()
        if (place := data.find(b"\0")) >= 0:
            raise InputError(
                f"a NUL byte at byte {self._position + place:,}: the file is binary or damaged",
                where=self._file.uri,
                hint="Write it as UTF-8 text; UTF-16 has a NUL beside every plain letter.",
            )
        self._position += len(data)
        self.quoted = self.quoted or b'"' in data
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_text(file: File, name: str) -> Iterator[TextStream]:
    """Open a text file, decompressed; ``name`` is the expected format, for errors."""
    path = local_path(file.uri)
    with pa.input_stream(str(path) if path else file.open(), compression=file.codec) as source:
        yield TextStream(source, file, name)


def open_parquet(file: File) -> pq.ParquetFile:
    """Open a Parquet file; closing it closes its stream."""
    return tables.open_parquet(local_path(file.uri) or file.open())


def read_footer(file: File) -> tuple[pa.Schema, tuple[int, ...]]:
    """Return the columns and the rows of each row group."""
    with naming_parquet(file), open_parquet(file) as opened:
        metadata = opened.metadata
        rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        return tables.require_distinct(opened.schema_arrow, file.uri), rows


def read_groups(
    file: File, first: int, last: int | None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read row groups ``first`` up to, and without, ``last``, one at a time; by default all columns."""
    with naming_parquet(file), open_parquet(file) as opened:
        for index in range(first, opened.num_row_groups if last is None else last):
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=[index], columns=columns):
                batch.validate(full=True)  # Arrow does not look whether a text is UTF-8
                yield batch


@contextmanager
def naming_parquet(file: File) -> Iterator[None]:
    """Translate Arrow's errors about a Parquet file into one that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        text = str(error)
        what = f"the Parquet file cannot be read: {text:.300}"
        if "magic bytes not found" in text or "Parquet file size is" in text:
            with file.open() as stream:
                head = stream.read(16)
            found = _format_of(head) or "no kind of file that is known here"
            what = (
                "Parquet footer missing: the file is incomplete; it may still be written"
                if found == "Parquet"
                else "Parquet footer missing: the file is not Parquet; "
                f"its first bytes {head[:8]!r} say {found}"
            )
        raise InputError(what, where=file.uri) from None
