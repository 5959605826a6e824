"""A small form of the study behind ``docs/statistics.md``, and the two roads to its numbers compared."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.validate.counted import Column, Rows, compared_in, limits_of, schema_of
from tests.validate.study import (
    FLIGHTS,
    M,
    N,
    all_power,
    false_alarms,
    flights,
    label,
    level,
    power,
    random_table,
    share_power,
)  # fmt: skip
from trainwright.drift.comparison import decide

Judge = Callable[..., Any]
SPLITS, DRAWS, RATE = 40, 60, (0.05,)


def test_clean_random_tables_raise_no_more_alarms_than_asked() -> None:
    """At 5 % of 40 splits: 7 or more have a chance below one in a thousand."""
    found = false_alarms("random", lambda draw: random_table(draw, 3_300), 300, 3_000, SPLITS, 3, RATE)
    assert found.comparisons == 50
    assert found.alarms[0.05] < 7


@pytest.mark.skipif(not FLIGHTS.exists(), reason="the flights are not prepared")
def test_clean_splits_of_the_flights_raise_no_more_alarms_than_asked() -> None:
    rows = flights()
    found = false_alarms("flights", lambda _: rows, 500, 2_000, SPLITS, 4, RATE)
    assert found.alarms[0.05] < 7


@pytest.mark.parametrize("after", [0.2, 0.23, 0.26])
def test_a_shift_of_known_size_is_found_as_often_as_theory_says(after: float) -> None:
    found = power(
        "label",
        lambda draw, now: label(draw, after if now else 0.2, N if now else M),
        lambda tests: share_power(0.2, after, tests),
        DRAWS,
    )
    theory = found.theory if after > 0.2 else level(6)
    assert found.found / DRAWS == pytest.approx(
        theory, abs=3.5 * np.sqrt(0.25 / DRAWS) if 0.1 < theory < 0.9 else 0.1
    )


def test_the_study_covers_a_share_a_number_and_missing_values() -> None:
    entries = list(all_power(1))
    kinds = ("label", "normal", "missing")
    assert [sum(word in entry.name for entry in entries) for word in kinds] == [3, 3, 3]
    # Theory of the shares is in the test above.
    assert 0.05 < entries[3].theory < entries[4].theory < entries[5].theory < 1


def snapshot_rows(rows: Rows) -> pa.Table:
    """The columns of the study as a table of a snapshot."""

    def values(column: Column) -> pa.Array:
        if not column.names:
            return pa.array(column.values, pa.float64(), mask=np.isnan(column.values))
        codes = pa.array(column.values, pa.int64(), mask=column.values < 0)
        return pa.array(column.names, pa.string()).take(codes)

    size = len(next(iter(rows.values())).values)
    keys = pa.array([f"k{n}" for n in range(size)])
    return pa.table({"key": keys} | {name.replace(" ", "_"): values(column) for name, column in rows.items()})


def test_the_whole_road_gives_the_numbers_of_the_fast_one(judge: Judge) -> None:
    """Parquet, TFDV's sketches, gate and verdict; against numpy, over the same rows and the same bins."""
    draw = np.random.default_rng(11)
    rows = random_table(draw, 2_400)
    parts = {"evaluate": slice(0, 400), "train": slice(400, 2_400)}
    cut = {
        name: {key: Column(column.values[part], column.names) for key, column in rows.items()}
        for name, part in parts.items()
    }
    schema = (
        "".join(
            f'feature {{ name: "{name.replace(" ", "_")}" type: {"BYTES" if column.names else "FLOAT"} }}\n'
            for name, column in rows.items()
        )
        + 'feature { name: "key" type: BYTES string_domain { is_categorical: CATEGORICAL_NO } }'
    )
    judged = judge(
        {name: snapshot_rows(part) for name, part in cut.items()}, schema, roles={"key": "key"},
        numeric_threshold=0, categorical_threshold=0, missing_threshold=0, new_values_threshold=0,
        false_alarm_rate=0.05,
    )  # fmt: skip
    baseline = json.loads((judged.folder / "verdict" / "baseline.json").read_text())
    cuts = {name: np.array(baseline["cuts"][name]) for name, column in rows.items() if not column.names}
    sizes = (400, 2_000)
    measured = compared_in(cut["evaluate"], cut["train"], limits_of(rows), schema_of(rows), cuts, sizes)
    fast = {entry.rule.replace(" ", "_"): entry for entry in decide(measured, 0.05)}
    whole = {rule.name: rule for rule in judged.verdict.rules if rule.name in fast}
    assert fast.keys() == whole.keys()
    for name, rule in whole.items():
        assert rule.value == pytest.approx(fast[name].value, abs=1e-12), name
        assert rule.limit == pytest.approx(fast[name].effective, rel=1e-6, abs=1e-9), name
        assert rule.passed is not fast[name].moved
