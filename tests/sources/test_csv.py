import contextlib
import csv
import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.reading import opened, read, text
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import Data


def long(path: Path, last: str, first: str = "1", count: int = 600_000) -> Path:
    """A CSV whose odd value comes blocks after the first."""
    rows = f"{first},padding of each row\n" * count
    return text(path, f"a,b\n{rows}{last},end\n")


def test_types_are_found_and_missing_values_are_null(tmp_path: Path) -> None:
    content = (
        "n,x,word,at,none,yes\n1,1.5,NA,2013-01-01T10:00:00Z,,true\n,2,b,2013-01-02T10:00:00+01:00,,FALSE\n"
    )
    table = read(text(tmp_path / "a.csv", content))
    kinds = ["int64", "double", "string", "timestamp[us, tz=UTC]", "null", "bool"]
    assert [str(kind) for kind in table.schema.types] == kinds
    assert table["n"].to_pylist() == [1, None]
    assert table["word"].to_pylist() == [None, "b"]
    assert [str(value) for value in table["at"].to_pylist()] == [
        "2013-01-01 10:00:00+00:00",
        "2013-01-02 09:00:00+00:00",
    ]
    assert table["yes"].to_pylist() == [True, False]


def test_text_means_missing_only_if_it_is_said_to(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "country,n\nNA,1\nDE,\n")
    assert read(path, missing=("",))["country"].to_pylist() == ["NA", "DE"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["007", "8"], "string"),
        (["-01"], "string"),
        (["007.5"], "string"),
        (["0", "-0.5", "0.25"], "double"),
        (["9223372036854775807", "1"], "int64"),
        (["9223372036854775808", "1"], "string"),
        (["1234567890123456789012", "0.5"], "string"),
        (["9007199254740993", "0.5"], "string"),
        (["9007199254740992", "0.5"], "double"),
        (["1e300", "5"], "double"),
        ([" 5", "6 "], "int64"),
        (["2013-01-01", "2013-01-02 03:04:05"], "timestamp[us]"),
        (["2013-02-30"], "string"),
        (["2013-01-01T00:00:00Z", "2013-01-01T00:00:00"], "string"),
        (["true", "1"], "string"),
        (["10:30:00"], "string"),
        (["1_000"], "string"),
        (["+5"], "string"),
    ],
)
def test_value_that_would_not_come_back_as_it_was_written_stays_text(
    tmp_path: Path, values: list[str], kind: str
) -> None:
    """In any order of the rows."""
    for name, rows in (("a", values), ("b", values[::-1])):
        table = read(text(tmp_path / f"{name}.csv", "v,w\n" + "".join(f"{row},x\n" for row in rows)))
        assert str(table.schema.field("v").type) == kind
        if kind == "string":
            assert table["v"].to_pylist() == rows


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [
        ("1", "1.5", "double"),
        ("1", "x y", "string"),
        ("", "7", "int64"),
        ("", "2013-01-01", "date32[day]"),
        ("1", "007", "string"),
    ],
)
def test_late_value_widens_the_type_of_its_column(tmp_path: Path, first: str, last: str, kind: str) -> None:
    table = read(long(tmp_path / "a.csv", last, first))
    assert str(table.schema.field("a").type) == kind
    assert table.num_rows == 600_001
    assert str(table["a"][-1].as_py()) == last
    assert table["a"][0].as_py() == {"double": 1.0, "string": "1"}.get(kind)


def test_late_value_that_arrow_would_call_null_is_text(tmp_path: Path) -> None:
    assert read(long(tmp_path / "a.csv", "#N/A", ""))["a"][-1].as_py() == "#N/A"


@pytest.mark.covers("B35")
@pytest.mark.parametrize(
    ("first", "middle", "last"),
    [
        ("2013-01-01T00:00:00Z", "2013-01-01T00:00:00Z", "2013-01-01T00:00:00"),
        ("2013-01-01T00:00:00", "2013-01-01T00:00:00", "2013-01-01T00:00:00Z"),
        ("2013-01-01T00:00:00", "2013-01-01", "in spring"),
    ],
)
def test_times_that_no_one_type_takes_become_text(tmp_path: Path, first: str, middle: str, last: str) -> None:
    rows = "".join(f"{value},padding of each row\n" * 300_000 for value in (first, middle))
    table = read(text(tmp_path / "a.csv", f"a,b\n{rows}{last},end\n"))
    assert table.schema.field("a").type == pa.string()
    assert table["a"].unique().to_pylist() == list(dict.fromkeys([first, middle, last]))


def test_what_is_finer_than_a_microsecond_is_cut_off_and_far_years_stay(tmp_path: Path) -> None:
    table = read(text(tmp_path / "a.csv", "at,n\n2013-01-01 00:00:00.123456789,1\n9999-12-31,2\n"))
    assert [str(value) for value in table["at"].to_pylist()] == [
        "2013-01-01 00:00:00.123456",
        "9999-12-31 00:00:00",
    ]


@pytest.mark.parametrize("suffix", [".csv.gz", ".CSV.GZ"])
def test_compressed_file_of_several_members_is_read(tmp_path: Path, suffix: str) -> None:
    path = text(tmp_path / f"a{suffix}", gzip.compress(b"a,b\n1,x\n") + gzip.compress(b"2,y\n"))
    assert read(path)["a"].to_pylist() == [1, 2]


def test_files_whose_found_types_differ_get_the_wider_one(tmp_path: Path) -> None:
    table = read(text(tmp_path / "a.csv", "n,m\n1,\n"), text(tmp_path / "b.csv", "m,n\n5,2.5\n"))
    assert table["n"].to_pylist() == [1.0, 2.5]
    assert table["m"].to_pylist() == [None, 5]


def test_codes_that_are_numbers_in_one_file_and_not_in_another_are_text_in_both(tmp_path: Path) -> None:
    for names in ("abc", "cba"):
        first, second, third = (tmp_path / names / f"{name}.csv" for name in names)
        files = (
            text(first, "zip,n\n10115,1\n"),
            text(second, "zip,n\n01067,2\n"),
            text(third, "zip,n\n3,3\n"),
        )
        assert read(*files)["zip"].to_pylist() == ["10115", "01067", "3"]


def test_files_of_numbers_and_of_words_are_rejected_with_what_can_be_said(tmp_path: Path) -> None:
    files = text(tmp_path / "a.csv", "n,m\n1,1\n"), text(tmp_path / "b.csv", "n,m\nx y,1\n")
    with pytest.raises(InputError, match="'n' is string, was int64") as caught:
        read(*files)
    assert "data.types" in caught.value.hint
    assert read(*files, types={"n": "string"})["n"].to_pylist() == ["1", "x y"]


def test_declared_types_are_taken(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "zip,price,small,day\n12,1.10,7,2013-01-01\n")
    types = {"zip": "string", "price": "decimal128(6, 2)", "small": "int16", "day": "timestamp[us, tz=UTC]"}
    with pytest.raises(
        InputError, match=r"column 'day' is timestamp.* which does not take '2013-01-01' in row 1"
    ):
        read(path, types=types)
    table = read(path, types=types | {"day": "date32"})
    assert [str(kind) for kind in table.schema.types] == [
        "string",
        "decimal128(6, 2)",
        "int16",
        "date32[day]",
    ]
    assert str(table["price"][0].as_py()) == "1.10"


@pytest.mark.parametrize(
    ("kind", "value"), [("int16", "70000"), ("decimal128(4, 2)", "1.005"), ("int64", "1.5"), ("bool", "yes")]
)
def test_value_that_a_declared_type_does_not_take_is_named_by_its_row(
    tmp_path: Path, kind: str, value: str
) -> None:
    path = text(tmp_path / "a.csv", "n,m\n" + ",x\n" * 999 + f"{value},x\n" + ",x\n" * 99)
    with pytest.raises(InputError, match=f"does not take '{value}' in row 1,000"):
        read(path, types={"n": kind})


def test_types_that_are_not_known_or_of_no_column_are_all_named(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "n,m\n1,2\n")
    with pytest.raises(InputError, match=r"n: 'int46', did you mean int64\?; m: 'decimal128\(99, 2\)'"):
        read(path, types={"n": "int46", "m": "decimal128(99, 2)"})
    with pytest.raises(InputError, match=r"columns that are not there: \['k'\]"):
        read(path, types={"k": "int64"})


@pytest.mark.covers("B23")
@pytest.mark.parametrize(("row", "got"), [("1,2,3", 3), ("1", 1), ('"1,x",2,3', 3)])
def test_row_of_another_width_is_named_by_its_line(tmp_path: Path, row: str, got: int) -> None:
    path = text(tmp_path / "a.csv", "a,b\n" + f"1,{'x' * 37}\n" * 30_000 + f"\n{row}\n1,2\n")
    with pytest.raises(InputError, match=f"line 30,003: expected 2 fields, got {got}: ") as caught:
        read(path)
    assert caught.value.where == str(path)


@pytest.mark.covers("B25")
def test_bytes_that_are_not_utf8_are_named_with_their_place_and_a_likely_encoding(tmp_path: Path) -> None:
    for name, before in (("a", b"id,city\n"), ("b", b"id,city\n" + b"1,x\n" * 5000), ("c", b"")):
        content = before + "1,Köln\n".encode("latin-1")
        path = text(tmp_path / f"{name}.csv", content)
        with pytest.raises(
            InputError, match=f"not UTF-8 text from byte {content.index(0xF6):,} on"
        ) as caught:
            read(path)
        assert "as Windows-1252 that line says '1,Köln'" in caught.value.what
        assert "iconv" in caught.value.hint


@pytest.mark.covers("B25")
def test_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    table = read(text(tmp_path / "a.csv", b"\xef\xbb\xbfid,n\n1,2\n"))
    assert table.column_names == ["id", "n"]
    assert table["id"].to_pylist() == [1]


@pytest.mark.covers("B25")
def test_utf16_and_a_nul_byte_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="say UTF-16 text"):
        read(text(tmp_path / "a.csv", "a,b\n1,2\n".encode("utf-16")))
    with pytest.raises(InputError, match="a NUL byte at byte 400,006"):
        read(text(tmp_path / "b.csv", b"a,b\n" + b"1,2\n" * 100_000 + b"3,\x00\n"))


@pytest.mark.covers("B26")
@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("1,2.5,3", r"the header is missing: the first line holds values, such as '1', '2\.5', '3'"),
        ("f0,2013-01-01 05:00:00,1", "the header is missing: .* '2013-01-01 05:00:00'"),
        (",a, ", "columns have no name: 1, 3 of 3"),
        ("a,b,a", r"columns \['a'\] appear twice, at 1, 3 of 3"),
        ('a,"b,c', "line 1: a value goes over several lines"),
        ("\n\n", "no header: it holds nothing but empty lines"),
    ],
)
def test_header_that_is_none_is_rejected(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(text(tmp_path / "a.csv", f"{header}\n"))


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
def test_header_alone_is_a_table_without_rows(tmp_path: Path, end: str) -> None:
    source = opened(text(tmp_path / "a.csv", f"a,b{end}"))
    assert source.schema.names == ["a", "b"]
    assert [rows.num_rows for _, _, rows in source.batches(source.parts()[0])] == [0]


@pytest.mark.covers("B23")
@pytest.mark.parametrize("closed", ["", '"'])
def test_quote_that_is_not_closed_is_an_error_and_hides_no_rows(tmp_path: Path, closed: str) -> None:
    """Arrow reads 2 rows of 4 where a later quote closes it, and 2 where none does."""
    path = text(tmp_path / "a.csv", f'n,word\n1,a\n2,"b\n3,"c{closed}\n4,d\n')
    with pytest.raises(
        InputError, match=r"line 3: a value goes over several.*quote may not be closed"
    ) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_return_within_a_value_is_a_line_break_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a value goes over several lines"):
        read(text(tmp_path / "a.csv", b'n,word\r1,"b\r2,c"\r3,d\r'))


def test_value_over_the_edge_of_a_block_is_the_same_error(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "n,word\n" + '1,"a long line\nand another, longer one"\n' * 400_000)
    with pytest.raises(InputError, match="a value goes over several lines"):
        read(path)


@pytest.mark.covers("B24")
@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_file_that_commas_do_not_part_says_what_does(tmp_path: Path, separator: str, name: str) -> None:
    path = text(tmp_path / "a.csv", f"a{separator}b\n1,5{separator}2\n")
    with pytest.raises(InputError, match=f"separated by {name}, not by ','"):
        read(path)
    table = read(path, csv={"delimiter": separator, "decimal": ","})
    assert table.to_pydict() == {"a": [1.5], "b": [2]}


def test_decimal_commas_are_read_in_numbers_and_left_in_text(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "n;t;d\n-0,25;1,5;3,10\n;a;\n1e3;x,y;-,5\n")
    table = read(path, csv={"delimiter": ";", "decimal": ","}, types={"d": "decimal(5, 2)"})
    assert table["n"].to_pylist() == [-0.25, None, 1000.0]
    assert table["t"].to_pylist() == ["1,5", "a", "x,y"]
    assert [str(value) for value in table["d"].to_pylist()] == ["3.10", "None", "-0.50"]


@pytest.mark.parametrize(("order", "first"), [("DMY", "2024-02-01 00:00:00"), ("MDY", "2024-01-02 00:00:00")])
def test_dates_with_the_year_last_are_read_in_the_declared_order(
    tmp_path: Path, order: str, first: str
) -> None:
    path = text(tmp_path / "a.csv", "a,b,c\n01/02/2024,1.2.2024,3.5\n 3/4/2024 09:30,,1\n,9.9.2024 x,\n")
    table = read(path, csv={"dates": order})
    assert [str(value) for value in table["a"].to_pylist()][::2] == [first, "None"]
    assert str(table["a"][1]).endswith("09:30:00")
    assert table["b"].to_pylist() == ["1.2.2024", None, "9.9.2024 x"]
    assert table["c"].to_pylist() == [3.5, 1.0, None]
    declared = read(path, csv={"dates": order}, types={"a": "timestamp[us]", "c": "string"})
    assert str(declared["a"][0]) == first
    assert read(path)["a"].type == "string"


def test_row_of_another_width_is_named_with_another_separator_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3: expected 2 fields, got 1"):
        read(text(tmp_path / "a.csv", "a;b\n1;2\n3,4\n"), csv={"delimiter": ";"})


def test_delimiter_and_decimal_differ() -> None:
    with pytest.raises(InputError, match="both a comma"):
        Data.check({"source": "a", "splits": {"s": {"fraction": 1}}, "csv": {"decimal": ","}}, "test")


@pytest.mark.covers("B20")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1 and more\n", "Parquet"),
        (b"PK\x03\x04 and more\n", "a zip archive, such as an .xlsx"),
        (gzip.compress(b"a,b\n1,2\n"), "gzip"),
        (b"\n<!DOCTYPE html><title>Sign in</title>\n", "an HTML page"),
    ],
)
def test_what_is_no_csv_is_told_by_its_first_bytes(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=f"it is no CSV file: its first bytes .* say {said}"):
        read(text(tmp_path / "a.csv", content))


def test_truncated_compressed_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,x\n" % (n * 7919 % 100_003) for n in range(50_000)))
    path = text(tmp_path / "a.csv.gz", whole[: len(whole) // 2])
    with pytest.raises(InputError, match="the CSV file cannot be read: ") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_line_without_end_is_rejected_and_not_kept_in_cache(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", b"a,b\n1," + b"x" * (40 << 20))
    with pytest.raises(InputError, match="line 2: longer than 8,388,608 bytes"):
        read(path)


@pytest.mark.covers("A20")
@settings(max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(min_size=1, max_size=200),
        st.text("ab01.,-:TZ\"'\n\r\t;é ", min_size=1, max_size=200).map(str.encode),
    )
)
def test_any_bytes_are_a_table_or_a_typed_error(tmp_path: Path, content: bytes) -> None:
    path = text(tmp_path / "a.csv", content)
    with contextlib.suppress(TrainwrightError):
        assert read(path).num_columns >= 1


@settings(max_examples=40, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.lists(st.text("ab01.-eZ: ", max_size=8), min_size=3, max_size=3), min_size=1, max_size=20
    )
)
def test_what_stays_text_is_what_was_written(tmp_path: Path, rows: list[list[str]]) -> None:
    """Python's own csv is another way to the values."""
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["x", "y", "z"], *rows])
    table = read(path, missing=("",))
    for place, column in enumerate(table.columns):
        expected = [row[place] or None for row in rows]
        found = column.to_pylist()
        assert [value is None for value in found] == [value is None for value in expected]
        if column.type == pa.string():
            assert found == expected
        elif column.type == pa.int64():
            written = [value.strip() for value in expected if value is not None]
            assert [value for value in found if value is not None] == [int(value) for value in written]
            assert not any(re.match(r"-?0\d", value) for value in written)
