"""Two trainings on the same rows differ by their largest difference of a score."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from trainwright.command import run_package
from trainwright.evaluate.predictions import largest_difference
from trainwright.tables import write_snapshot


def write(folder: Path, scores: Sequence[float], ids: Sequence[int] = (1, 2, 3)) -> Path:
    rows = pa.table({"id": ids, "late": [0, 1, 0], "score": scores})
    roles = {"key": "id", "label": "late", "score": "score"}
    write_snapshot(folder, {"evaluate": [rows]}, parents={}, roles=roles)
    return folder


def test_largest_difference_of_a_score_is_returned(tmp_path: Path) -> None:
    first = write(tmp_path / "1", [0.25, 0.5, 0.75])
    second = write(tmp_path / "2", [0.25, 0.5625, 0.625])
    assert largest_difference(first, second) == 0.125
    assert largest_difference(first, first) == 0
    words = ("evaluate", "difference", str(second), str(first))
    assert json.loads(run_package(Path(sys.executable), *words)) == 0.125


@pytest.mark.parametrize("ids", [(1, 2, 4), (2, 1, 3)], ids=["another row", "another order"])
def test_predictions_of_other_rows_differ_infinitely(tmp_path: Path, ids: Sequence[int]) -> None:
    first, second = write(tmp_path / "1", [0.1, 0.2, 0.3]), write(tmp_path / "2", [0.1, 0.2, 0.3], ids)
    assert math.isinf(largest_difference(first, second))
    words = ("evaluate", "difference", str(first), str(second))
    assert json.loads(run_package(Path(sys.executable), *words)) is None
