"""What a file holds, by its name and by its first bytes."""

from dataclasses import dataclass
from typing import BinaryIO, Literal

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.storage import Access, open_file

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
    """One file of a source, and how it is read.

    Attributes:
        uri: Its path or URI.
        version: What pins its bytes in a store; empty on a disk.
        kind: What it holds.
        codec: How it is compressed as a whole, as Arrow names it; None if it is not.
        access: What may be reached.
    """

    uri: str
    version: str
    kind: Kind
    codec: str | None
    access: Access

    def open(self) -> BinaryIO:
        """Open its bytes as they lie, compressed or not."""
        return open_file(self.uri, version=self.version, access=self.access)

    def head(self) -> bytes:
        """Return its first bytes."""
        with self.open() as stream:
            return stream.read(_LONGEST)


def file_of(entry: SourceFile, data: Data, access: Access) -> File:
    """Tell of what kind a file is: by ``data.format``, or else by its name.

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
    """Say what the first bytes of a file are the mark of; empty if of nothing known."""
    lowered = head.lstrip().lower()
    for mark, name in _MAGIC.items():
        if head.startswith(mark) or (mark.startswith(b"<") and lowered.startswith(mark)):
            return name
    return ""


def refuse_other_content(head: bytes, kind: str, where: str) -> None:
    """Refuse text that begins as another kind of file does.

    Args:
        head: The first bytes, decompressed.
        kind: What it should be, for the error.
        where: The file.

    Raises:
        InputError: They are the mark of another kind of file.
    """
    if found := magic_of(head):
        hint = "Write it as UTF-8." if "UTF-16" in found else "Give the file the name of what it holds."
        raise InputError(f"it is no {kind}: its first bytes {head[:8]!r} say {found}", where=where, hint=hint)
