import contextlib
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.reading import opened, read, text
from trainwright.errors import InputError, TrainwrightError


def lines(path: Path, *rows: object) -> Path:
    content = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    return text(path, gzip.compress(content.encode()) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz", ".NDJSON"])
def test_objects_become_rows_and_what_is_left_out_is_null(tmp_path: Path, suffix: str) -> None:
    path = lines(
        tmp_path / f"a{suffix}", {"id": 1, "x": 1.5, "yes": True}, {"id": 2, "word": "b", "none": None}, ""
    )
    table = read(path)
    assert table.to_pylist() == [
        {"id": 1, "x": 1.5, "yes": True, "word": None, "none": None},
        {"id": 2, "x": None, "yes": None, "word": "b", "none": None},
    ]
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "bool", "string", "null"]


def test_types_hold_for_the_whole_file_and_not_for_its_first_block_alone(tmp_path: Path) -> None:
    pad = "x" * 1000
    early = [{"n": 1, "at": "2013-01-01", "s": {"a": 1}, "pad": pad}] * 10_000
    late = {"n": 1.5, "at": "2013-01-01 10:00:00", "s": {"b": [1.5]}, "more": True}
    table = read(lines(tmp_path / "a.jsonl", *early, late))
    kinds = [str(table.schema.field(name).type) for name in ("n", "at", "s", "more")]
    assert kinds == ["double", "timestamp[us]", "struct<a: int64, b: list<item: double>>", "bool"]
    assert table.slice(10_000)["s"].to_pylist() == [{"a": None, "b": [1.5]}]
    assert table.num_rows == 10_001


def test_text_that_is_written_as_a_number_stays_text(tmp_path: Path) -> None:
    table = read(lines(tmp_path / "a.jsonl", {"zip": "01067", "n": "5"}, {"zip": "10115", "n": "6"}))
    assert table["zip"].to_pylist() == ["01067", "10115"]
    assert table["n"].to_pylist() == ["5", "6"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2013-01-01", "2013-01-02"], "date32[day]"),
        (["2013-01-01T00:00:00.5Z", "2013-01-01T00:00:00+02:00"], "timestamp[us, tz=UTC]"),
        (["2013-01-01T00:00:00Z", "2013-01-01T00:00:00"], "string"),
        (["2013-01-01", "unknown"], "string"),
        (["unknown", "2013-01-01"], "string"),
    ],
)
def test_text_is_a_time_if_every_value_is(tmp_path: Path, values: list[str], kind: str) -> None:
    rows = [{"at": value, "pad": "x" * 9_000} for value in values for _ in range(1_000)]
    table = read(lines(tmp_path / "a.jsonl", *rows))
    assert str(table.schema.field("at").type) == kind
    if kind == "string":
        assert table["at"].unique().to_pylist() == values


@pytest.mark.covers("B27")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "is a list, not an object"),
        ("7", "is a number, not an object"),
        ("null", "is null, not an object"),
        ('{"id": 1', "is no JSON: Expecting ',' delimiter"),
        ('{"id": 1, "id": 2}', "is no JSON: key 'id' is there twice"),
        ('{"id": "seven"}', "column 'id' is text, 'seven'; .* it is a number"),
        ('{"id": 12345678901234567890}', "column 'id' is double, and loses digits of 12345678901234567890"),
        ('{"id": 1.5, "x": [[9007199254740993]]}', "column 'x' is .*, and loses digits of 9007199254740993"),
        ("[" * 5000, "is nested too deeply: more than 64 levels"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_line_that_is_not_as_it_should_be_is_named(tmp_path: Path, line: str, said: str, before: int) -> None:
    rows = [{"id": 1, "x": [[0.5]], "pad": "x" * 60}] * before
    path = lines(tmp_path / "a.jsonl", *rows, line, {"id": 2, "x": [[0.5]]})
    if before == 0 and "column 'id' is text" in said:
        said = "line 2: column 'id' is a number, 2; in line 1 it is text"
    else:
        said = f"line {before + 1:,}:? ({said})"
    with pytest.raises(InputError, match=said) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_line_of_a_later_block_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    rows = [json.dumps({"id": 1, "pad": "x" * 2000})] * 4500
    for name, line, said in (
        ("a", "null", "is null"),
        ("b", '{"id": "x"}', ": column 'id' is text, 'x'; .* it is a number"),
    ):
        with pytest.raises(InputError, match=f"line 4,501 ?{said}"):
            read(lines(tmp_path / f"{name}.jsonl", *rows, line))


def test_lists_and_objects_of_nothing_get_their_type_from_other_files(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.jsonl", {"n": 1, "x": [None, None], "s": {"a": 1}, "e": []})
    second = lines(tmp_path / "b.jsonl", {"n": 1, "x": [1.5], "s": {"b": "y"}, "e": [None]})
    table = read(first, second)
    assert str(table.schema.field("e").type) == "list<item: string>"
    assert table.to_pylist() == [
        {"n": 1, "x": [None, None], "s": {"a": 1, "b": None}, "e": []},
        {"n": 1, "x": [1.5], "s": {"a": None, "b": "y"}, "e": [None]},
    ]


def test_value_that_a_declared_type_does_not_take_is_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"n": 1, "price": "1.10", "at": "2013-01-01"}, {"n": 2, "price": "x"})
    table = read(path, types={"n": "int8"})
    assert str(table.schema.field("n").type) == "int8"
    with pytest.raises(InputError, match=r"'price' is decimal128\(5, 2\), which does not take 'x' in row 2"):
        read(path, types={"price": "decimal128(5, 2)"})
    with pytest.raises(InputError, match=r"columns that are not there: \['k'\]"):
        read(path, types={"k": "int64"})


def test_files_get_one_schema(tmp_path: Path) -> None:
    files = (
        lines(tmp_path / "a.jsonl", {"n": 1, "m": None}),
        lines(tmp_path / "b.jsonl", {"m": "x", "n": 2.5}),
    )
    assert read(*files).to_pylist() == [{"n": 1.0, "m": None}, {"n": 2.5, "m": "x"}]
    with pytest.raises(InputError, match="no column 'm'"):
        read(files[0], lines(tmp_path / "c.jsonl", {"n": 1}))


def test_line_without_end_and_other_content_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1 is longer than 67,108,864 bytes"):
        read(text(tmp_path / "a.jsonl", b'{"a": "' + b"x" * (70 << 20)))
    with pytest.raises(InputError, match=r"it is no JSONL file: its first bytes .* say Parquet"):
        read(text(tmp_path / "b.jsonl", b"PAR1...."))


def test_file_of_empty_lines_has_no_rows(tmp_path: Path) -> None:
    source = opened(text(tmp_path / "a.jsonl", "\n\n"))
    assert source.schema.names == []
    assert sum(rows.num_rows for _, _, rows in source.batches(source.parts()[0])) == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.covers("A20")
@settings(max_examples=80, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES) | VALUES, min_size=1, max_size=6))
def test_any_json_is_a_table_or_a_typed_error(tmp_path: Path, rows: list[object]) -> None:
    with contextlib.suppress(TrainwrightError):
        table = read(text(tmp_path / "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows)))
        assert table.num_rows == len(rows) or not table.num_columns


@settings(max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1, max_size=100) | st.text('{}[]":,1e\n ab\\', min_size=1).map(str.encode))
def test_any_bytes_are_a_table_or_a_typed_error(tmp_path: Path, content: bytes) -> None:
    with contextlib.suppress(TrainwrightError):
        assert isinstance(read(text(tmp_path / "a.jsonl", content)), pa.Table)
