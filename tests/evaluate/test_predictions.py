"""Scores that cannot be judged are refused, with the values that show why."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.evaluate.conftest import FAIR, Step, rows_of
from trainwright.errors import InputError
from trainwright.tables import write_snapshot

Write = Callable[..., Step]


def changed(**columns: Any) -> dict[str, Any]:
    """Good rows, with some columns made by a function of the good ones, or left out where it is None."""
    good = rows_of(FAIR)
    made = good | {name: make(good.get(name)) for name, make in columns.items() if make}
    return {name: values for name, values in made.items() if columns.get(name, True)}


REFUSED = {
    "a score that is not a number": (
        changed(score=lambda score: [math.nan, None, *score[2:]]),
        r"2 of 1,200 scores in 'score' are not numbers",
    ),
    "a logit": (
        changed(score=lambda score: [*score[:-1], 3.5]),
        r"scores in 'score' lie in \[.*, 3.5\]; a score is a probability",
    ),
    "a score that is a text": (changed(score=lambda score: [str(x) for x in score]), "has type string"),
    "one class": (
        changed(late=lambda late: [0] * len(late)),
        r"all 1,200 rows have label 0 in 'late': nothing can be ranked",
    ),
    "no label at all": (
        changed(late=lambda late: pa.nulls(len(late), pa.int64())),
        r"none of the 1,200 rows has a label in 'late'",
    ),
    "a third label": (
        changed(late=lambda late: [2, *late[1:]]),
        r"holds \[2.0\]; a label is 0 or 1",
    ),
    "the same score for all rows": (
        changed(score=lambda score: [0.5] * len(score)),
        r"all 1,200 rows have the same scores \[0.5\]: nothing can be ranked",
    ),
    "a label that is a text": (
        changed(late=lambda late: [str(x) for x in late]),
        "label 'late' has type string",
    ),
    "rows that were scored twice": (
        changed(id=lambda key: [0, *key[:-1]]),
        r"1,200 rows have 1,199 keys in 'id': some were scored twice",
    ),
    "no label column": (changed(late=None), r"no column 'label' \(close: .*\)|no column 'label'"),
    "no score column": (changed(score=None), "no column 'score'"),
}


@pytest.mark.covers("B63")
@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str, written: Write) -> None:
    columns, message = REFUSED[case]
    step = written(columns)
    with pytest.raises(InputError, match=message) as caught:
        step.judge()
    assert caught.value.code == 10
    assert not (step.folder / "verdict").exists()
    assert not (step.folder / "report.html").exists()


@pytest.mark.covers("B64")
def test_a_slice_column_that_is_missing_is_named_with_its_close_matches(written: Write) -> None:
    with pytest.raises(InputError) as caught:
        written(rows_of(FAIR)).judge(slices=["orgin", "carrier"])
    assert "'orgin' (close: origin)" in caught.value.what
    assert "'carrier'" in caught.value.what


def test_a_time_cannot_be_a_slice_column(written: Write) -> None:
    rows = rows_of(FAIR)
    rows["time"] = [datetime(2013, 10, 1, tzinfo=UTC)] * len(rows["id"])
    with pytest.raises(InputError, match=r"column 'time' of type timestamp\[us, tz=UTC\] cannot be cut"):
        written(rows).judge(slices=["time"])


def test_a_split_that_was_not_scored_is_named_with_those_that_were(written: Write) -> None:
    with pytest.raises(InputError, match=r"no split 'holdout'; this snapshot has evaluate \(1,200 rows\)"):
        written(rows_of(FAIR)).judge(split="holdout")


def test_predictions_other_than_those_asked_for_are_refused(written: Write) -> None:
    step = written(rows_of(FAIR))
    write_snapshot(
        step.folder / "predictions",
        {"evaluate": [pa.table(rows_of(FAIR, seed=1))]},
        parents={},
        roles={"key": "id", "label": "late", "score": "score"},
    )
    with pytest.raises(InputError, match="cached input changed"):
        step.judge()


def test_rows_without_a_label_are_left_out_and_counted(written: Write) -> None:
    rows = rows_of(FAIR)
    rows["late"][:100] = [None] * 100
    step = written(rows)
    assert step.judge().confusion == ((680, 70), (92, 258))
    assert "100 of 1,200 rows of the split" in (step.folder / "verdict" / "verdict.json").read_text()


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float64()], ids=str)
def test_a_label_may_be_a_truth_value_or_any_number_that_is_0_or_1(kind: pa.DataType, written: Write) -> None:
    rows = rows_of(FAIR)
    plain = written(rows).judge().metrics
    assert written(rows | {"late": pa.array(rows["late"]).cast(kind)}).judge().metrics == plain
