"""CSV files: read as text in blocks, and converted to types that take every value of the whole file."""

import codecs
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from trainwright.errors import InputError
from trainwright.experiment import CsvFormat
from trainwright.sources.formats import File, open_text
from trainwright.sources.inference import TypeInference, convert
from trainwright.sources.sources import FileSchema
from trainwright.tables import require_distinct

SEVERAL_LINES = (
    "a value goes over several lines: a quote may not be closed, which hides rows; "
    "if the line break is meant, write Parquet"
)
_BLOCK, _PIECE = 8 << 20, 1 << 20
_LONGEST_LINE, _LONGEST_HEADER = 8 << 20, 1 << 20
_ENDS = re.compile(rb"\r\n|\n|\r")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_DECIMAL_COMMA, _DECIMAL_POINT = re.compile(r"[-+]?\d*,\d+"), re.compile(r"[-+]?\d*\.\d+")
_LOOKED_AT = 200
_YEAR_LAST = r"^\s*(?P<first>\d{1,2})[./-](?P<second>\d{1,2})[./-](?P<year>\d{4})\b"
_ISO = {"DMY": r"\3-\2-\1", "MDY": r"\3-\1-\2"}
_PADDED = ((r"^(\d{4})-(\d)-", r"\1-0\2-"), (r"^(\d{4}-\d\d)-(\d)\b", r"\1-0\2"))
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?")


def infer_csv(
    file: File, declared: Mapping[str, pa.DataType], missing: Sequence[str], form: CsvFormat
) -> FileSchema:
    """Read a file once, and infer the narrowest type of each column that takes all its values.

    ``declared`` are types that are not inferred, ``missing`` the texts that mean no value.
    """
    names = read_header(file, form)
    inferred = {name: TypeInference() for name in names if name not in declared}
    rows = 0
    for batch in _read_texts(file, names, missing, form):
        rows += batch.num_rows
        for name, inference in inferred.items():
            inference.add(_with_points(_in_iso(batch.column(name), form), form))
    kinds = {name: inference.kind for name, inference in inferred.items()} | dict(declared)
    codes = (name for name, one in inferred.items() if one.digits and one.kind == pa.string())
    schema = pa.schema([(name, kinds[name]) for name in names if name in kinds])
    return FileSchema(uri=file.uri, schema=schema, guessed=True, digits=frozenset(codes), rows=rows)


def read_csv(file: File, schema: pa.Schema, missing: Sequence[str], form: CsvFormat) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types, a few blocks at a time."""
    start = 0
    for batch in _read_texts(file, read_header(file, form), missing, form):
        columns = []
        for field in schema:
            text = batch.column(field.name)
            if pa.types.is_floating(field.type) or pa.types.is_decimal(field.type):
                text = _with_points(text, form)
            elif pa.types.is_temporal(field.type):
                text = _in_iso(text, form)
            columns.append(convert(text, field.type, field.name, file.uri, start))
        start += batch.num_rows
        yield pa.Table.from_arrays(columns, schema=schema)


def _with_points(text: pa.Array, form: CsvFormat) -> pa.Array:
    """Write decimal commas as points, in values that are numbers as a whole."""
    if form.decimal == ".":
        return text
    return pc.replace_substring_regex(text, r"^(\s*[-+]?[0-9]*),([0-9]+([eE][-+]?[0-9]+)?\s*)$", r"\1.\2")


def _in_iso(text: pa.Array, form: CsvFormat) -> pa.Array:
    """Write dates with the year last, such as 31.12.2023 or 1/2/2024 14:05, with the year first."""
    if form.dates == "YMD":
        return text
    for pattern, replacement in ((_YEAR_LAST, _ISO[form.dates]), *_PADDED):
        text = pc.replace_substring_regex(text, pattern, replacement)
    return text


def infer_date_order(rows: pa.Table) -> tuple[str, str]:
    """Return the order of day, month and year in columns of text, and a column whose order is unclear.

    Dates with points have the day first; with other marks, a number above 12 tells the day.
    """
    orders, unclear = set(), ""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        values = pc.unique(column.drop_null())
        parts = pc.extract_regex(values, _YEAR_LAST)
        if not len(parts) or parts.null_count:
            continue
        day_first = _above_12(parts, "first") or "." in values[0].as_py()
        month_first = _above_12(parts, "second")
        if day_first != month_first:
            orders.add("DMY" if day_first else "MDY")
        elif not day_first:
            unclear = name
    return (orders.pop(), "") if len(orders) == 1 else ("YMD", unclear)


def _above_12(parts: pa.Array, name: str) -> bool:
    numbers = pc.struct_field(parts, name).cast(pa.int64())
    return bool(pc.any(pc.greater(numbers, 12)).as_py())


def infer_format(file: File) -> CsvFormat:
    """Infer the separators from the first lines: the one that parts the header into the most names."""
    lines = [line.decode(errors="replace") for _, _, line in itertools.islice(_lines(file), _LOOKED_AT)]
    head = next((line for line in lines if line.strip()), "")
    delimiter = max((",", *_SEPARATORS), key=lambda mark: len(next(csv.reader([head], delimiter=mark), [])))
    if delimiter == ",":
        return CsvFormat()
    values = {value.strip() for row in csv.reader(lines[1:], delimiter=delimiter) for value in row}
    commas = sum(1 for value in values if _DECIMAL_COMMA.fullmatch(value))
    points = sum(1 for value in values if _DECIMAL_POINT.fullmatch(value))
    return CsvFormat.check({"delimiter": delimiter, "decimal": "," if commas > points else "."}, file.uri)


def _read_texts(
    file: File, names: Sequence[str], missing: Sequence[str], form: CsvFormat
) -> Iterator[pa.RecordBatch]:
    """Read all columns as text, with nulls; every row is one line."""
    texts = dict.fromkeys(names, pa.string())
    with _naming(file, len(names), form), open_text(file, "CSV file") as text:
        if text.ends_with_its_first_line():
            yield pa.RecordBatch.from_pylist([], schema=pa.schema(list(texts.items())))
            return
        reader = arrow_csv.open_csv(
            pa.PythonFile(text, mode="r"),
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK, column_names=names, skip_rows=1),
            parse_options=arrow_csv.ParseOptions(delimiter=form.delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types=texts, null_values=missing, strings_can_be_null=True
            ),
        )
        for batch in reader:
            if text.quoted:
                _require_single_lines(batch, file)
            yield batch


def _require_single_lines(batch: pa.RecordBatch, file: File) -> None:
    """Reject a value over several lines: with an unclosed quote Arrow reads the next rows into it."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        broken = pc.match_substring_regex(column, "[\r\n]")
        if pc.any(broken).as_py():
            line = next((number for number, _, text in _lines(file) if text.count(b'"') % 2), 0)
            value = column.filter(broken)[0].as_py()
            raise InputError(
                f"line {line:,}: {SEVERAL_LINES} (column {field.name!r}: {value!r:.80})", where=file.uri
            )


@contextmanager
def _naming(file: File, fields: int, form: CsvFormat) -> Iterator[None]:
    """Translate Arrow's errors about a file into one that names the file, the line and the fault."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        what = f"the CSV file cannot be read: {error!s:.300}"
        try:  # slow, but the file is rejected anyway
            for number, offset, line in _lines(file):
                if fault := _fault_of(line, fields, file, offset, form):
                    what = f"line {number:,}: {fault}"
                    break
        except (OSError, EOFError) as broken:
            what = f"the CSV file cannot be read: {broken!s:.300}"
        raise InputError(what, where=file.uri) from None


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
            if len(rest) >= _LONGEST_LINE:
                break
        yield number, offset, rest.rstrip(b"\r\n")


def _fault_of(line: bytes, fields: int, file: File, offset: int, form: CsvFormat) -> str:
    """Return the fault of a line; empty if there is none."""
    text = _decode(line, file, offset)
    if len(line) >= _LONGEST_LINE:
        return f"longer than {_LONGEST_LINE:,} bytes; no row is, so a line break may be missing"
    if text.count('"') % 2:
        return f"{SEVERAL_LINES}: {text!r:.80}"
    try:
        found = len(next(csv.reader([text.removeprefix("\ufeff")], delimiter=form.delimiter), []))
    except csv.Error:
        found = 1
    if text and found != fields:
        return f"expected {fields} fields, got {found}: {text!r:.80}"
    return ""


def _decode(line: bytes, file: File, offset: int) -> str:
    """Decode a line; for bytes that are not UTF-8, raise an error that names the likely encoding."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        offset += error.start
    likely = "UTF-16" if line.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)) else "Windows-1252"
    try:
        shown = line.decode("cp1252")
    except UnicodeDecodeError:
        likely, shown = "Latin-1", line.decode("latin-1")
    raise InputError(
        f"not UTF-8 text from byte {offset:,} on; as {likely} that line says {shown.strip()!r:.80}",
        where=file.uri,
        hint=f"Write the file as UTF-8: iconv -f {likely} -t UTF-8.",
    )


def read_header(file: File, form: CsvFormat) -> list[str]:
    """Return the names of the columns: the fields of the first line that is not empty."""
    try:
        with open_text(file, "CSV file") as stream:
            head = b""
            while len(head) < _LONGEST_HEADER and (more := stream.read(1 << 16)):
                head += more
                if re.search(rb"[^\r\n][\r\n]", head):
                    break
    except OSError as error:
        raise InputError(f"the CSV file cannot be read: {error!s:.300}", where=file.uri) from None
    line = re.split(rb"[\r\n]", head.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n"), maxsplit=1)[0]
    if not line.strip():
        raise InputError("the CSV file has no header: it holds nothing but empty lines", where=file.uri)
    if len(line) >= _LONGEST_HEADER:
        raise InputError(
            f"the first line is longer than {_LONGEST_HEADER:,} bytes: no header", where=file.uri
        )
    text = _decode(line, file, 0)
    if text.count('"') % 2:
        raise InputError(f"line 1: {SEVERAL_LINES}", where=file.uri)
    try:
        names = next(csv.reader([text], delimiter=form.delimiter), [])
    except csv.Error as error:
        raise InputError(f"line 1 is no header: {error}", where=file.uri) from None
    _require_names(names, file.uri, form)
    return names


def _require_names(names: list[str], where: str, form: CsvFormat) -> None:
    """Reject another separator, a first row of values, and empty or duplicate names."""
    for separator, name in {",": "commas", **_SEPARATORS}.items():
        if len(names) == 1 and separator in names[0]:
            raise InputError(
                f"its columns are separated by {name}, not by {form.delimiter!r}: {names[0]!r:.80}",
                where=where,
                hint=f"Set data.csv.delimiter: {json.dumps(separator)}; for decimal commas also "
                'data.csv.decimal: ",".',
            )
    values = [name for name in names if _DATE.fullmatch(name.strip())]
    if all(_NUMBER.fullmatch(name.strip()) for name in names):
        values = names
    if values:
        raise InputError(
            f"the header is missing: the first line holds values, such as {', '.join(map(repr, values[:3]))}",
            where=where,
            hint="Write the names of the columns as the first line.",
        )
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        places = ", ".join(str(place) for place, name in enumerate(names, 1) if name in twice)
        raise InputError(
            f"columns {twice} appear twice, at {places} of {len(names)}",
            where=where,
            hint="Rename or leave out one of each where the file is written.",
        )
    require_distinct(pa.schema([(name, pa.null()) for name in names]), where)
