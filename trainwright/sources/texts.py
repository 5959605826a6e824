"""The text of a file, decompressed, and looked at as it passes by."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.sources.formats import File, refuse_other_content
from trainwright.storage import local_path

_HEAD = 1 << 16


class Text(io.RawIOBase):
    """The bytes of a text file, in order, once.

    Attributes:
        quoted: Whether a double quote has passed by.
    """

    def __init__(self, source: pa.NativeFile, file: File, name: str) -> None:
        self.quoted = False
        self._source, self._file, self._seen = source, file, 0
        self._head: bytes = source.read(_HEAD)
        refuse_other_content(self._head, name, file.uri)

    def stream(self) -> pa.NativeFile:
        """Return what Arrow reads from."""
        return pa.PythonFile(self, mode="r")

    def ends_with_its_first_line(self) -> bool:
        """Tell whether there is a header and nothing else."""
        rest = self._head.strip(b"\r\n")
        return len(self._head) < _HEAD and b"\n" not in rest and b"\r" not in rest

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Give the next bytes.

        Raises:
            InputError: A NUL byte is among them.
        """
        if self._head:
            data, self._head = self._head, b""
        else:
            data = self._source.read(size) if size >= 0 else self._source.read()
        if (place := data.find(b"\0")) >= 0:
            raise InputError(
                f"a NUL byte at byte {self._seen + place:,}: the file is no text, or is damaged",
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
def open_text(file: File, name: str) -> Iterator[Text]:
    """Open a text file, decompressed.

    Args:
        file: The file.
        name: What it should be, for errors.

    Raises:
        InputError: Its first bytes are the mark of something else.
    """
    path = local_path(file.uri)
    raw = str(path) if path else file.open()
    with pa.input_stream(raw, compression=file.codec) as source:
        yield Text(source, file, name)
