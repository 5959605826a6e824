"""A step says beforehand what will not fit, with both sizes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from trainwright import tables
from trainwright.errors import InputError
from trainwright.evaluate.predictions import read_predictions
from trainwright.tables.capacity import warn_of_disk


def test_a_split_that_does_not_fit_the_memory_is_announced_before_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table({"id": [1, 2], "late": [0, 1], "score": [0.1, 0.9]})
    roles = {"key": "id", "label": "late", "score": "score"}
    snapshot = tables.write_snapshot(tmp_path, {"evaluate": [rows]}, parents={}, roles=roles)
    read_predictions(tmp_path, snapshot, "evaluate", [])
    assert capsys.readouterr().err == ""
    large = replace(snapshot, files=(replace(snapshot.files[0], rows=2**40),))
    with pytest.raises(InputError, match="cached input changed"):
        read_predictions(tmp_path, large, "evaluate", [])
    said = capsys.readouterr().err
    assert said.startswith("warning: the rows that evaluate holds take about 196,608.0 GiB, there are ")
    assert said.endswith(" GiB of memory. Give the step more memory, or judge a smaller evaluation.split.\n")


def test_files_that_do_not_fit_the_disk_are_announced_with_what_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = shutil.disk_usage(tmp_path).free
    warn_of_disk("the files", free // 2, tmp_path / "not" / "there", "Free some.")
    assert capsys.readouterr().err == ""
    warn_of_disk("the files", 2**60, tmp_path / "not" / "there", "Free some.")
    said = capsys.readouterr().err
    assert said.startswith("warning: the files take about 1,073,741,824.0 GiB, there are ")
    assert said.endswith(f" GiB free in {tmp_path}. Free some.\n")
