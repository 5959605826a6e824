"""The loss of each answer, and the differences between two versions."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.canary.logs import BEGIN, NEW, OLD, write
from trainwright.canary.log import RequestLog, read_log
from trainwright.errors import InputError
from trainwright.experiment import Serving


def log(path: Path, guard: str, **serving: Any) -> RequestLog:
    return read_log(Serving.check({"log": str(path), **serving}, "serving"), [guard], NEW, OLD, None)


def test_block_of_a_traffic_share_ends_when_both_versions_have_answered(tmp_path: Path) -> None:
    versions = [OLD, OLD, NEW, NEW, OLD, NEW, NEW, OLD, OLD]
    errors = [False, True, True, True, False, False, True, True, True]
    found = log(write(tmp_path / "a.parquet", versions, error=errors), "error_rate").compare("error_rate")
    # two of the old and the new one; a new and an old one; two new and an old one; the last is alone
    assert found.differences.tolist() == [1 - 0.5, 1 - 0, 0.5 - 1]
    assert (found.candidate, found.production) == (3 / 4, 3 / 5)


def test_shadow_pairs_answers_of_one_request_in_order_of_the_later_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        [OLD, OLD, NEW, NEW, NEW, OLD, OLD],
        request=["a", "b", "b", "a", "c", "d", "a"],
        score=[0.1, 0.2, 0.5, 0.7, 0.9, 0.3, 0.9],
    )
    found = log(path, "score", shadow=True).compare("score")
    assert found.differences.tolist() == pytest.approx([0.5 - 0.2, 0.7 - 0.1])  # a's repetition is left out


def test_outcomes_count_in_the_order_in_which_they_became_known(tmp_path: Path) -> None:
    known = [BEGIN + timedelta(days=day) for day in (4, 3, 2, 1)]
    path = write(
        tmp_path / "a.parquet",
        [OLD, NEW, OLD, NEW],
        score=[0.0, 0.5, 0.25, 1.0],
        outcome=[1, 1, 1, 1],
        outcome_time=known,
    )
    found = log(path, "brier").compare("brier")
    assert found.differences.tolist() == pytest.approx([0 - 0.75**2, 0.5**2 - 1])


def test_answers_without_an_outcome_do_not_count_yet(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        [OLD, NEW, NEW, OLD],
        prediction=["a", "b", "a", "b"],
        outcome=["a", None, "b", None],
    )
    found = log(path, "zero_one_loss").compare("zero_one_loss")
    assert found.differences.tolist() == [1.0]


def test_brier_score_of_three_classes_is_that_of_the_evaluation(tmp_path: Path) -> None:
    scores = {"score_0": [0.7, 0.2], "score_1": [0.2, 0.5], "score_2": [0.1, 0.3]}
    path = write(tmp_path / "a.parquet", [OLD, NEW], outcome=[0, 2], **scores)
    found = log(path, "brier").compare("brier")
    old, new = 0.3**2 + 0.2**2 + 0.1**2, 0.2**2 + 0.5**2 + 0.7**2
    assert (found.candidate, found.production, found.span) == (pytest.approx(new), pytest.approx(old), 2.0)
    assert found.differences.tolist() == pytest.approx([(new - old) / 2])


def test_absolute_error_is_cut_at_the_bounds_and_slow_answers_at_the_limit(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        [OLD, NEW],
        minutes=[10.0, 700.0],
        outcome=[20.0, 100.0],
        latency_ms=[50, 51],
    )
    more = {"bounds": [0, 500], "columns": {"prediction": "minutes"}, "slow_ms": 50}
    assert log(path, "mae", **more).compare("mae").differences.tolist() == [(400 - 10) / 500]
    assert log(path, "slow_rate", **more).compare("slow_rate").differences.tolist() == [1.0]


def test_text_files_of_each_version_are_one_log_whatever_the_order_of_their_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "time,version,error\n2026-11-01T10:00:02Z,4,1\n2026-11-01T10:00:00Z,4,0\n"
    )
    (tmp_path / "b.csv").write_text(
        "time,version,error\n2026-11-01T10:00:01Z,3,0\n2026-11-01T10:00:03Z,2,1\n"
    )
    found = log(tmp_path / "*.csv", "error_rate")
    assert found.answers == 2
    assert found.table["version"].to_pylist() == [NEW, OLD, NEW]
    assert found.compare("error_rate").differences.tolist() == [0.0]


@pytest.mark.parametrize(
    ("guard", "columns", "text"),
    [
        ("brier", {"score": [0.1, 0.2]}, r"expected columns \['outcome'\]"),
        ("brier", {"score": [0.1, 0.2], "outcome": ["yes", "no"]}, "expected numbers, found string"),
        ("score", {"score": [0.1, 1.5]}, "from 0 to 1, found 1.5"),
        ("error_rate", {"error": [200, 503]}, "from 0 to 1, found 200"),
    ],
)
def test_log_that_does_not_suit_a_guard_is_rejected_with_the_value(
    guard: str, columns: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=text):
        log(write(tmp_path / "a.parquet", [OLD, NEW], **columns), guard).compare(guard)


def test_differences_of_blocks_have_the_mean_of_the_differences_of_rates(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    new = draw.uniform(0, 1, 40_000) < 0.1
    errors = draw.uniform(0, 1, 40_000) < np.where(new, 0.3, 0.1)
    path = write(tmp_path / "a.parquet", [NEW if one else OLD for one in new], error=errors)
    found = log(path, "error_rate").compare("error_rate").differences
    assert found.mean() == pytest.approx(0.2, abs=3 * found.std() / len(found) ** 0.5)
    assert 0.85 * new.sum() < len(found) <= new.sum()
