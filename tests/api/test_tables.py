"""Rows in memory are written to a file that every step reads."""

import subprocess
from array import array
from pathlib import Path

import pytest

import trainwright
from trainwright.api import prediction
from trainwright.api.prediction import write_rows
from trainwright.authoring.environments import python
from trainwright.errors import InputError


def test_arrays_by_name_are_the_data_of_init(tmp_path: Path) -> None:
    rows = {
        "x": array("d", range(200)),
        "colour": ["red", "blue"] * 100,
        "late": array("l", [0, 1, 1, 0] * 50),
    }
    file = trainwright.init(rows, label="late", output=tmp_path, quiet=True)
    assert "source: rows.jsonl" in file.read_text()


def test_data_frame_and_arrow_table_become_parquet(tmp_path: Path) -> None:
    code = (
        "import pandas, pyarrow, pathlib, runpy; "
        f"write_rows = runpy.run_path({prediction.__file__!r})['write_rows']; "
        f"f = pathlib.Path({str(tmp_path)!r}); frame = pandas.DataFrame({{'a': [1, 2]}}); "
        "made = [write_rows(frame, f, 'one'), write_rows(pyarrow.table({'a': [1, 2]}), f, 'two')]; "
        "print([pandas.read_parquet(p).to_dict('list') for p in made])"
    )
    done = subprocess.run([python("feast"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'a': [1, 2]}, {'a': [1, 2]}]\n"


def test_other_objects_and_uneven_columns_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found int"):
        write_rows(3, tmp_path, "rows")
    with pytest.raises(InputError, match="different lengths"):
        write_rows({"a": [1], "b": [1, 2]}, tmp_path, "rows")
