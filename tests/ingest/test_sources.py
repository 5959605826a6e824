import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.errors import InputError
from trainwright.ingest.sources import Sources

MISSING = ("", "NA")


def read(*paths: Path, missing: Sequence[str] = MISSING) -> pa.Table:
    sources = Sources([str(path) for path in paths], missing)
    return pa.concat_tables([rows for _, _, rows in sources.batches()])


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def long(path: Path, last: str, first: str = "1", count: int = 600_000) -> Path:
    """A CSV whose odd value comes long after the block that Arrow guesses types from."""
    rows = f"{first},padding of each row\n" * count
    return text(path, f"a,b\n{rows}{last},end\n")


def test_csv_types_are_found_and_missing_values_are_null(tmp_path: Path) -> None:
    path = text(
        tmp_path / "a.csv", "n,x,word,at,none\n1,1.5,NA,2013-01-01T10:00:00Z,\n,2,b,2013-01-02T10:00:00Z,\n"
    )
    table = read(path)
    assert [str(kind) for kind in table.schema.types] == [
        "int64",
        "double",
        "string",
        "timestamp[us, tz=UTC]",
        "null",
    ]
    assert table["n"].to_pylist() == [1, None]
    assert table["word"].to_pylist() == [None, "b"]


def test_a_text_means_missing_only_if_it_is_said_to(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "country,n\nNA,1\nDE,\n")
    assert read(path, missing=("",))["country"].to_pylist() == ["NA", "DE"]


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [("1", "1.5", "double"), ("1", "x y", "string"), ("", "7", "int64"), ("", "2013-01-01", "date32[day]")],
)
def test_a_late_value_widens_the_type_of_its_column(tmp_path: Path, first: str, last: str, kind: str) -> None:
    table = read(long(tmp_path / "a.csv", last, first))
    assert str(table.schema.field("a").type) == kind
    assert table.num_rows == 600_001
    assert str(table["a"][-1].as_py()) == last
    assert table["a"][0].as_py() == {"double": 1.0, "string": "1"}.get(kind)


def test_a_late_value_that_arrow_would_call_null_is_text(tmp_path: Path) -> None:
    table = read(long(tmp_path / "a.csv", "#N/A", ""))
    assert table["a"][-1].as_py() == "#N/A"


def test_a_compressed_csv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"n\n1\n2\n"))
    assert read(path)["n"].to_pylist() == [1, 2]


def test_csv_files_whose_guessed_types_differ_get_the_wider_one(tmp_path: Path) -> None:
    table = read(text(tmp_path / "a.csv", "n,m\n1,\n"), text(tmp_path / "b.csv", "m,n\n5,2.5\n"))
    assert table["n"].to_pylist() == [1.0, 2.5]
    assert table["m"].to_pylist() == [None, 5]


def test_rows_are_counted_by_file(tmp_path: Path) -> None:
    one, two = text(tmp_path / "a.csv", "n\n1\n2\n"), text(tmp_path / "b.csv", "n\n3\n")
    seen = [
        (uri, start, rows.num_rows) for uri, start, rows in Sources([str(one), str(two)], MISSING).batches()
    ]
    assert seen == [(str(one), 0, 2), (str(two), 0, 1)]


def test_files_that_differ_name_the_column_and_both_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "m": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1.5], "m": ["a"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"n": [1], "mm": ["a"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="'n' is double, was int64") as caught:
        read(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert caught.value.where == f"{tmp_path}/b.parquet, against {tmp_path}/a.parquet"
    with pytest.raises(InputError, match="no column 'm'; new column 'mm'"):
        read(tmp_path / "a.parquet", tmp_path / "c.parquet")
    with pytest.raises(InputError, match="'n' is string, was int64"):
        read(text(tmp_path / "a.csv", "n\n1\n"), text(tmp_path / "b.csv", "n\nx y\n"))


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path)
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(InputError, match="Parquet footer missing: the file is incomplete") as caught:
        read(path)
    assert caught.value.where == str(path)
    os.truncate(path, 0)
    with pytest.raises(InputError, match="Parquet footer missing"):
        read(path)


def test_a_flipped_bit_in_a_page_with_a_checksum_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"the Parquet file cannot be read: .*CRC") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_a_csv_row_of_another_width_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the CSV file cannot be read: .*Expected 2 columns, got 3"):
        read(text(tmp_path / "a.csv", "a,b\n1,2\n1,2,3\n"))


def test_a_csv_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("city\nKöln\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"columns \['city'\] are not UTF-8 text"):
        read(path)


def test_an_empty_csv_and_a_doubled_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Empty CSV file"):
        read(text(tmp_path / "a.csv", ""))
    with pytest.raises(InputError, match=r"columns \['a'\] appear twice"):
        read(text(tmp_path / "b.csv", "a,a\n1,2\n"))


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a Parquet nor a CSV file"):
        read(text(tmp_path / "a.xlsx", "x"))


@pytest.mark.parametrize(
    ("first", "middle", "last"),
    [
        ("2013-01-01T00:00:00Z", "2013-01-01T00:00:00Z", "2013-01-01T00:00:00"),
        ("2013-01-01T00:00:00", "2013-01-01T00:00:00", "2013-01-01T00:00:00Z"),
        ("2013-01-01T00:00:00", "2013-01-01T00:00:00.5", "9999-12-31T00:00:00"),
    ],
)
def test_times_that_no_one_type_takes_become_text(tmp_path: Path, first: str, middle: str, last: str) -> None:
    """The third needs nanoseconds, which do not reach the year 9999."""
    rows = "".join(f"{value},padding of each row\n" * 300_000 for value in (first, middle))
    table = read(text(tmp_path / "a.csv", f"a,b\n{rows}{last},end\n"))
    assert table.schema.field("a").type == pa.string()
    assert table["a"].unique().to_pylist() == list(dict.fromkeys([first, middle, last]))


@pytest.mark.parametrize("closed", ["", '"'])
def test_a_quote_that_is_not_closed_is_an_error_and_hides_no_rows(tmp_path: Path, closed: str) -> None:
    """Arrow reads 2 rows of 4 where a later quote closes it, and 2 where none does."""
    path = text(tmp_path / "a.csv", f'n,word\n1,a\n2,"b\n3,"c{closed}\n4,d\n')
    with pytest.raises(
        InputError, match=r"over several lines.*a quote may not be closed.*'word': 'b\\n3,"
    ) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_a_return_within_a_value_is_a_line_break_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'n,word\r1,"b\r2,c"\r3,d\r')
    with pytest.raises(InputError, match="a value goes over several lines"):
        read(path)


def test_a_value_over_the_edge_of_a_block_is_the_same_error(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "n,word\n" + '1,"a long line\nand another, longer one"\n' * 400_000)
    with pytest.raises(InputError, match="a value goes over several lines"):
        read(path)


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_file_that_commas_do_not_part_says_what_does(tmp_path: Path, separator: str, name: str) -> None:
    path = text(tmp_path / "a.csv", f"a{separator}b\n1{separator}2\n")
    with pytest.raises(InputError, match=f"parted by {name}, not commas"):
        read(path)


def test_a_column_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns have no name: 1, 3 of 3"):
        read(text(tmp_path / "a.csv", ",a, \n0,1,2\n"))


def test_a_compressed_csv_is_read_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "A.CSV.GZ"
    path.write_bytes(gzip.compress(b"a\n1\n") + gzip.compress(b"2\n"))
    assert read(path)["a"].to_pylist() == [1, 2]


def test_a_time_that_microseconds_do_not_reach_is_refused_and_not_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"never": pa.array([2**60], pa.timestamp("ms"))}), path)
    with pytest.raises(
        InputError, match=r"column 'never' is timestamp\[ms\], and cannot be stored"
    ) as caught:
        read(path)
    assert caught.value.where == str(path)
