"""Files of data with any content: each is read, or rejected with a typed error that names it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.offenders import BYTES, JSON, SHORT, any_text, plain, texts
from tests.sources.reading import read
from trainwright.errors import InternalError, TrainwrightError

ROW = b'{"id": 1, "x": 1.5}\n'
LINES = (
    *(text.encode(errors="surrogatepass") for text in JSON),
    *BYTES,
    b'{"id": 1, "x": ' + b"1" * 5000 + b"}",
    b'{"id": 1, "x": 1' + b"0" * 400 + b"}",
    b'{"id": 1, "x": 1e400}',
    b'{"id": 1, "x": "\\ud800"}',
    b'{"id": 1, "\\ud800": 1}',
    b'{"id": 1, "x": "\\u0000"}',
    b'{"id": 1, "x\\u0000y": 1}',
    b'{"id": 1, "x": "\xff"}',
    b'{"id": 1, "\xff": "x"}',
    b'{"id": 1, "x": ' + b"[" * 100_000 + b"}",
    b'{"id": 1, "x": ' + b"[" * 60 + b"]" * 60 + b"}",
    b'{"id": 1, "x": ' + b'{"a":' * 63 + b"1" + b"}" * 63 + b"}",
    b"null",
    b"1",
    b"[]",
    b"{}",
    b'{"id": 1}{"id": 2}',
    b'{"id": 1, "id": 2}',
    b'{"": 1}',
)


def read_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        table = read(path)
    except TrainwrightError as error:
        code = error.code
    else:
        table.validate(full=True)
        return
    assert code != InternalError.code


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_historic_line_of_jsonl_is_read_or_rejected(line: bytes, tmp_path: Path) -> None:
    read_file(tmp_path / "a.jsonl", line + b"\n")
    read_file(tmp_path / "b.jsonl", ROW + line + b"\n" + ROW)


@SHORT
@given(st.lists(texts | st.dictionaries(any_text(5), plain, max_size=4).map(json.dumps), max_size=4))
def test_lines_of_jsonl_are_read_or_rejected(tmp_path: Path, lines: list[str]) -> None:
    read_file(tmp_path / "a.jsonl", ROW + "\n".join(lines).encode(errors="surrogatepass"))


CELLS = (
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"',
    b'"a',
    b'a"b',
    b"1" * 5000,
    b"1e400",
    b"9223372036854775808",
    b"99999-01-01",
    b"2013-13-41",
    b"0001-01-01 00:00:00-23:59",
    b"9999-12-31 23:59:59.9999999999",
    b"NaN",
    b"-0",
    b"\r",
    b"\xef\xbb\xbf",
    b"\x1b[31m",
    b"x" * 100_000,
    "\u202e".encode(),
)


@pytest.mark.parametrize("cell", CELLS, ids=range(len(CELLS)))
def test_strange_cell_of_csv_is_read_or_rejected(cell: bytes, tmp_path: Path) -> None:
    read_file(tmp_path / "a.csv", b"id,x\n1," + cell + b"\n2,3\n")
    read_file(tmp_path / "b.csv", b"id," + cell + b"\n1,2\n")
    read_file(tmp_path / "c.csv", cell)


@SHORT
@given(st.binary(max_size=60) | any_text(40).map(lambda text: text.encode(errors="surrogatepass")))
def test_csv_of_any_bytes_is_read_or_rejected(tmp_path: Path, content: bytes) -> None:
    read_file(tmp_path / "a.csv", b"id,x\n1,2\n" + content)
    read_file(tmp_path / "b.csv", content)


@SHORT
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_parquet_with_any_bytes_changed_is_read_or_rejected(tmp_path: Path, at: int, junk: bytes) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(50)), "x": [str(number) for number in range(50)]}), path)
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at : at + len(junk)] = junk
    read_file(path, bytes(content))
    read_file(path, bytes(content[:at]))
