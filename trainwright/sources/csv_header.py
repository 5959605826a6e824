"""The first line of a CSV file: the names of its columns."""

import codecs
import csv
import re

from trainwright.errors import InputError
from trainwright.sources.csv_faults import SEVERAL_LINES, undecodable
from trainwright.sources.formats import File
from trainwright.sources.texts import open_text

_MOST = 1 << 20
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?")


def read_header(file: File) -> list[str]:
    """Return the names of the columns.

    Raises:
        InputError: There is none, it is no header, a name is empty or there twice, or the columns are not
            parted by commas.
    """
    line = _first_line(file)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise undecodable(file, error.start, line) from None
    if text.count('"') % 2:
        raise InputError(f"line 1: {SEVERAL_LINES}", where=file.uri)
    names = _split(text, file.uri)
    _require_commas(names, file.uri)
    _require_names(names, file.uri)
    return names


def _split(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise InputError(f"line 1 is no header: {error}", where=where) from None


def _first_line(file: File) -> bytes:
    """Return the first line that is not empty, without its end and without a mark of its byte order."""
    try:
        with open_text(file, "CSV file") as stream:
            head = b""
            while len(head) < _MOST and (more := stream.read(1 << 16)):
                head += more
                if re.search(rb"[^\r\n][\r\n]", head):
                    break
    except OSError as error:
        raise InputError(f"the CSV file cannot be read: {error!s:.300}", where=file.uri) from None
    line = re.split(rb"[\r\n]", head.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n"), maxsplit=1)[0]
    if not line.strip():
        raise InputError("the CSV file has no header: it holds nothing but empty lines", where=file.uri)
    if len(line) >= _MOST:
        raise InputError(f"the first line is longer than {_MOST:,} bytes: no header", where=file.uri)
    return line


def _require_commas(names: list[str], where: str) -> None:
    for separator, name in _SEPARATORS.items():
        if len(names) == 1 and separator in names[0]:
            raise InputError(
                f"its columns are parted by {name}, not commas: {names[0]!r:.80}",
                where=where,
                hint="Write the file with commas, or as Parquet.",
            )


def _require_names(names: list[str], where: str) -> None:
    """Refuse a first row of values. Names that are empty, or there twice, are told with their places."""
    if values := [name for name in names if _DATE.fullmatch(name.strip())]:
        _refuse_values(values, where)
    if all(_NUMBER.fullmatch(name.strip()) for name in names):
        _refuse_values(names, where)
    if unnamed := [place for place, name in enumerate(names, 1) if not name.strip()]:
        raise InputError(
            f"columns have no name: {', '.join(map(str, unnamed))} of {len(names)}",
            where=where,
            hint="Name them; pandas writes its index without a name unless it is told index=False.",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(str(place) for place, name in enumerate(names, 1) if name in twice)
        raise InputError(
            f"columns {twice} appear twice, at {places} of {len(names)}",
            where=where,
            hint="Rename or leave out one of each where the file is written.",
        )


def _refuse_values(values: list[str], where: str) -> None:
    raise InputError(
        f"the header is missing: the first line holds values, such as {', '.join(map(repr, values[:3]))}",
        where=where,
        hint="Write the names of the columns as the first line.",
    )
