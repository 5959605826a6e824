"""CSV files: read as text in blocks, and converted to types that take every value of the whole file."""

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from trainwright.errors import InputError
from trainwright.sources.formats import File, TextStream, open_text
from trainwright.sources.inference import TypeInference, convert
from trainwright.sources.parts import FileSchema

SEVERAL_LINES = (
    "a value goes over several lines: a quote may not be closed, which hides rows; "
    "if the line break is meant, write Parquet"
)
_PIECE = 1 << 20
_LONGEST = 8 << 20
_ENDS = re.compile(rb"\r\n|\n|\r")


def _find_fault(file: File, fields: int) -> str:
    """Return the fault of the first faulty line; empty if none is found. Slow: for files Arrow rejects."""
    try:
        for number, offset, line in _lines(file):
            if fault := _fault_of(line, fields, file, offset):
                return f"line {number:,}: {fault}"
    except (OSError, EOFError) as error:
        return f"the CSV file cannot be read: {error!s:.300}"
    return ""


def _line_with_open_quote(file: File) -> int:
    """Return the number of the first line in which a quote is opened and not closed; 0 if there is none."""
    return next((number for number, _, line in _lines(file) if line.count(b'"') % 2), 0)


def _undecodable(file: File, offset: int, line: bytes) -> InputError:
    """Return the error for bytes that are not UTF-8."""
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
        raise _undecodable(file, offset + error.start, line) from None
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
    """Yield each line's number, from 1 on, the bytes before it, and its bytes without their end."""
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


_MOST = 1 << 20
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?")


def _read_header(file: File) -> list[str]:
    """Return the names of the columns."""
    line = _first_line(file)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise _undecodable(file, error.start, line) from None
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
                f"its columns are separated by {name}, not commas: {names[0]!r:.80}",
                where=where,
                hint="Write the file with commas, or as Parquet.",
            )


def _require_names(names: list[str], where: str) -> None:
    """Reject a first row of values, and empty or duplicate names."""
    if values := [name for name in names if _DATE.fullmatch(name.strip())]:
        _reject_values(values, where)
    if all(_NUMBER.fullmatch(name.strip()) for name in names):
        _reject_values(names, where)
    if unnamed := [place for place, name in enumerate(names, 1) if not name.strip()]:
        raise InputError(
            f"columns have no name: {', '.join(map(str, unnamed))} of {len(names)}",
            where=where,
            hint="Name them; pandas writes its index without a name unless index=False is set.",
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(str(place) for place, name in enumerate(names, 1) if name in twice)
        raise InputError(
            f"columns {twice} appear twice, at {places} of {len(names)}",
            where=where,
            hint="Rename or leave out one of each where the file is written.",
        )


def _reject_values(values: list[str], where: str) -> None:
    raise InputError(
        f"the header is missing: the first line holds values, such as {', '.join(map(repr, values[:3]))}",
        where=where,
        hint="Write the names of the columns as the first line.",
    )


_BLOCK = 8 << 20


def infer_csv(file: File, declared: Mapping[str, pa.DataType], missing: Sequence[str]) -> FileSchema:
    """Read a file once, and infer the narrowest type of each column that takes all its values.

    Args:
        file: The file.
        declared: Types by column that are not inferred.
        missing: Texts that mean no value.

    Raises:
        InputError: It is not valid; names the line.
    """
    names = _read_header(file)
    finders = {name: TypeInference() for name in names if name not in declared}
    for batch in _read_texts(file, names, missing):
        for name, finder in finders.items():
            finder.add(batch.column(name))
    kinds = {name: finder.kind for name, finder in finders.items()} | dict(declared)
    return FileSchema(
        uri=file.uri,
        schema=pa.schema([(name, kinds[name]) for name in names if name in kinds]),
        guessed=True,
        digits=frozenset(
            name for name, finder in finders.items() if finder.digits and finder.kind == pa.string()
        ),
    )


def read_csv(file: File, schema: pa.Schema, missing: Sequence[str]) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types, a few blocks at a time.

    Raises:
        InputError: It is not valid, or a value is not of its column's type.
    """
    start = 0
    for batch in _read_texts(file, _read_header(file), missing):
        columns = [
            convert(batch.column(field.name), field.type, field.name, file.uri, start) for field in schema
        ]
        start += batch.num_rows
        yield pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class _Options:
    """Options for Arrow: everything as text, nothing skipped but the header."""

    names: list[str]
    missing: list[str]

    def open(self, text: TextStream) -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            text.stream(),
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK, column_names=self.names, skip_rows=1),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self.names, pa.string()),
                null_values=self.missing,
                strings_can_be_null=True,
            ),
        )


def _read_texts(file: File, names: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read all columns as text, with nulls; every row is one line."""
    with _naming(file, len(names)), open_text(file, "CSV file") as text:
        if text.ends_with_its_first_line():
            yield pa.RecordBatch.from_pylist([], schema=pa.schema([(name, pa.string()) for name in names]))
            return
        for batch in _Options(list(names), list(missing)).open(text):
            if text.quoted:
                _require_single_lines(batch, file)
            yield batch


def _require_single_lines(batch: pa.RecordBatch, file: File) -> None:
    """Reject a value over several lines: with an unclosed quote Arrow reads the next rows into it."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        broken = pc.or_(pc.match_substring(column, "\n"), pc.match_substring(column, "\r"))
        if pc.any(broken).as_py():
            line, value = _line_with_open_quote(file), column.filter(broken)[0].as_py()
            raise InputError(
                f"line {line:,}: {SEVERAL_LINES} (column {field.name!r}: {value!r:.80})", where=file.uri
            )


@contextmanager
def _naming(file: File, fields: int) -> Iterator[None]:
    """Translate Arrow's errors about a file into one that names the file, the line and the fault."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        found = _find_fault(file, fields) or f"the CSV file cannot be read: {error!s:.300}"
        raise InputError(found, where=file.uri) from None
