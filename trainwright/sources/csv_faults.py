"""Where a CSV file is wrong: a second, slow look at one that Arrow could not read."""

import codecs
import csv
import re
from collections.abc import Iterator

from trainwright.errors import InputError
from trainwright.sources.formats import File
from trainwright.sources.texts import open_text

SEVERAL_LINES = (
    "a value goes over several lines: a quote may not be closed, which hides rows; "
    "if the line break is meant, write Parquet"
)
_PIECE = 1 << 20
_LONGEST = 8 << 20
_ENDS = re.compile(rb"\r\n|\n|\r")


def find_fault(file: File, fields: int) -> str:
    """Say what is wrong with the first line that is not as it should be; empty if none is found.

    Args:
        file: The file.
        fields: Fields that every line should have.

    Raises:
        InputError: It is not UTF-8, or holds a NUL byte.
    """
    try:
        for number, offset, line in _lines(file):
            if fault := _fault_of(line, fields, file, offset):
                return f"line {number:,}: {fault}"
    except (OSError, EOFError) as error:
        return f"the CSV file cannot be read: {error!s:.300}"
    return ""


def line_with_open_quote(file: File) -> int:
    """Return the number of the first line in which a quote is opened and not closed; 0 if there is none."""
    return next((number for number, _, line in _lines(file) if line.count(b'"') % 2), 0)


def undecodable(file: File, offset: int, line: bytes) -> InputError:
    """Return the error for bytes that are not UTF-8.

    Args:
        file: The file.
        offset: Bytes before the first such one.
        line: The line that it is in.
    """
    likely = "UTF-16" if line.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)) else "Windows-1252"
    try:
        shown = line.decode("cp1252")
    except UnicodeDecodeError:
        likely, shown = "Latin-1", line.decode("latin-1")
    return InputError(
        f"not UTF-8 text from byte {offset:,} on; as {likely} that line says {shown.strip()!r:.80}",
        where=file.uri,
        hint=f"Write the file as UTF-8: iconv -f {likely} -t UTF-8.",
    )


def _fault_of(line: bytes, fields: int, file: File, offset: int) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise undecodable(file, offset + error.start, line) from None
    if len(line) >= _LONGEST:
        return f"longer than {_LONGEST:,} bytes; no row is, so a line break may be missing"
    if text.count('"') % 2:
        return f"{SEVERAL_LINES}: {text!r:.80}"
    found = _count(text.removeprefix("\ufeff"))
    if text and found != fields:
        return f"expected {fields} fields, got {found}: {text!r:.80}"
    return ""


def _count(text: str) -> int:
    if '"' not in text:
        return text.count(",") + 1
    try:
        return len(next(csv.reader([text])))
    except csv.Error:
        return 1


def _lines(file: File) -> Iterator[tuple[int, int, bytes]]:
    """Give each line's number, from 1 on, the bytes before it, and its bytes without their end."""
    with open_text(file, "CSV file") as stream:
        number, offset, rest = 1, 0, b""
        while piece := stream.read(_PIECE):
            rest += piece
            place = 0
            for end in _ENDS.finditer(rest, 0, len(rest) - 1):
                if end[0] == b"\r" and rest[end.end() :] == b"\n":
                    break
                yield number, offset + place, rest[place : end.start()]
                number, place = number + 1, end.end()
            rest, offset = rest[place:], offset + place
            if len(rest) >= _LONGEST:
                break
        yield number, offset, rest.rstrip(b"\r\n")
