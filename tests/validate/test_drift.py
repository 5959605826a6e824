"""Distances are those of the data, and what yields no distance is said."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.drift.comparison import (
    ColumnComparison,
    Drift,
    SamplePair,
    decide,
    measure_missing,
    measure_unseen,
)
from trainwright.drift.findings import JENSEN_SHANNON, L_INFINITY, Limit
from trainwright.drift.null_distribution import NoChance
from trainwright.significance import holm
from trainwright.tables import write_snapshot
from trainwright.validate.profile import Profiler, own_cuts
from trainwright.validate.schema import kind, parse_schema
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, tfdv
from trainwright.validate.validate import measure

SCHEMA = """
feature { name: "x" type: FLOAT } feature { name: "w" type: BYTES }
feature { name: "c" type: INT int_domain { is_categorical: true } }
"""


@pytest.fixture
def profiles(tmp_path: Path) -> object:
    """Profile two tables, the current one first, as the gate does."""

    def run(
        current: Mapping[str, object], previous: Mapping[str, object], schema: str = SCHEMA
    ) -> SamplePair:
        parsed = parse_schema(schema, where="test")
        tables = {"train": [pa.table(previous)], "evaluate": [pa.table(current)]}
        folder = tmp_path / "snapshot"
        snapshot = write_snapshot(folder, tables, parents={}, roles={})
        numbers = [feature.name for feature in parsed.feature if kind(feature) == "numbers"]
        profiler = Profiler(folder, snapshot, parsed)
        cuts = own_cuts(profiler.statistics("train"), numbers)
        evaluate, train = (
            replace(profiler.profile(split), counts=profiler.counts(split, cuts))
            for split in ("evaluate", "train")
        )
        return SamplePair("previous", evaluate, train, cuts)

    return run


def compare(pair: SamplePair, *limits: Limit, schema: str = SCHEMA) -> Drift:
    return measure(pair, parse_schema(schema, where="test"), limits)


def judged(drift: Drift, level: float = 0.001) -> list[ColumnComparison]:
    return list(decide(drift.measured, level * len(drift.measured)))


def drawn(rows: int, seed: int, shift: float = 0.0) -> pa.Array:
    return pa.array(np.random.default_rng(seed).normal(shift, 1, rows))


X = Limit("x", "numbers", JENSEN_SHANNON, 0.01)
W = Limit("w", "categories", L_INFINITY, 0.05)


def test_tfdv_reports_no_l_infinity_drift_for_numbers_however_far_they_moved() -> None:
    """The trap that ``plan`` refuses: if this fails, TFDV has mended it."""
    near, far = (
        describe(pa.table({"x": drawn(500, 1, shift)}).to_batches(), schema_pb2.Schema()) for shift in (0, 90)
    )
    schema = tfdv.infer_schema(near)
    schema.feature[0].drift_comparator.infinity_norm.threshold = 0.01
    account = tfdv.validate_statistics(far, schema, previous_statistics=near)
    assert account.drift_skew_info[0].drift_measurements[0].value == 0
    assert not account.anomaly_info


def test_the_distance_of_numbers_is_that_of_their_counts_in_the_previous_quantiles(profiles: object) -> None:
    pair = profiles({"x": drawn(4_000, 1, 0.5)}, {"x": drawn(9_000, 2)})
    (found,) = judged(compare(pair, X))
    p, q = (profile.counts["x"] / profile.counts["x"].sum() for profile in (pair.current, pair.reference))
    middle = (p + q) / 2
    expected = sum(np.sum(s[s > 0] * np.log2(s[s > 0] / middle[s > 0])) for s in (p, q)) / 2
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.value == pytest.approx(
        0.0437, abs=0.006
    )  # two normals half a deviation apart, by quadrature
    assert found.moved
    assert found.rows == (4_000, 9_000)


def test_the_distance_of_categories_is_the_largest_change_of_a_share_numbers_included(
    profiles: object,
) -> None:
    pair = profiles(
        {"w": ["a"] * 60 + ["b"] * 40, "c": [1] * 30 + [2] * 70},
        {"w": ["a"] * 45 + ["b"] * 55, "c": [1] * 50 + [2] * 50},
    )
    found = judged(compare(pair, W, Limit("c", "categories", L_INFINITY, 0.05)))
    assert [(entry.column, round(entry.value, 12)) for entry in found] == [("w", 0.15), ("c", 0.2)]


def test_a_distance_that_equals_its_limit_passes(profiles: object) -> None:
    pair = profiles({"w": ["a"] * 7_500 + ["b"] * 2_500}, {"w": ["a"] * 5_000 + ["b"] * 5_000})
    at, below = (
        judged(compare(pair, Limit("w", "categories", L_INFINITY, limit)))[0] for limit in (0.25, 0.2499)
    )
    assert at.value == 0.25
    assert (at.moved, below.moved) == (False, True)


def test_a_distance_just_beyond_its_limit_is_not_written_as_equal_to_it() -> None:
    def written(value: float, digits: int = 3) -> tuple[str, str]:
        return ColumnComparison("x", "Jensen-Shannon", "previous", value, 0.05, NoChance(), (1, 1)).written(
            digits
        )

    assert written(0.2141) == ("0.214", "0.050")
    assert written(0.0501) == ("0.0501", "0.0500")
    assert written(0.05) == ("0.050", "0.050")
    value, limit = written(0.05 + 1e-14)
    assert float(value) > float(limit)


def test_a_distance_that_chance_alone_makes_has_not_moved_at_few_rows_and_has_at_many(
    profiles: object,
) -> None:
    few = judged(
        compare(
            profiles({"w": ["a"] * 11 + ["b"] * 9}, {"w": ["a"] * 10 + ["b"] * 10}),
            Limit("w", "categories", L_INFINITY, 0.01),
        )
    )
    many = judged(
        compare(
            profiles({"w": ["a"] * 110_000 + ["b"] * 90_000}, {"w": ["a", "b"] * 100_000}),
            Limit("w", "categories", L_INFINITY, 0.01),
        )
    )
    assert few[0].value == many[0].value == pytest.approx(0.05)
    assert few[0].limit < few[0].value < few[0].floor
    assert (few[0].moved, many[0].moved) == (False, True)


def test_the_same_share_of_nan_on_both_sides_is_no_drift(profiles: object) -> None:
    """TFDV alone would report the share itself: NaN mass counts as different on both sides."""
    holes = pa.array([float("nan")] * 300 + list(np.linspace(0, 1, 700)))
    pair = profiles({"x": holes}, {"x": holes})
    assert compare(pair, X).measured[0].value == 0
    assert measure_missing(pair, ["x"], threshold=0).measured[0].value == 0


@pytest.mark.parametrize("hole", [None, float("nan")], ids=["null", "nan"])
@pytest.mark.parametrize("shares", [(0.4, 0.1), (1.0, 0.1), (0.0, 0.1)])
def test_missing_values_are_compared_on_their_own_whatever_they_are_written_as(
    profiles: object, hole: float | None, shares: tuple[float, float]
) -> None:
    def column(share: float) -> pa.Array:
        return pa.array([hole] * int(share * 1_000) + [1.0] * int((1 - share) * 1_000), pa.float64())

    pair = profiles({"x": column(shares[0])}, {"x": column(shares[1])})
    (found,) = decide(measure_missing(pair, ["x"], threshold=0.05).measured, 0.001)
    assert found.value == pytest.approx(abs(shares[0] - shares[1]))
    assert found.moved


@pytest.mark.parametrize("empty", [[None] * 50, [float("nan")] * 50], ids=["null", "nan"])
@pytest.mark.parametrize("side", ["current", "previous"])
def test_a_column_without_numbers_on_one_side_is_not_judged(
    profiles: object, empty: list[object], side: str
) -> None:
    """TFDV only writes a line to its log when a histogram is missing."""
    sides = {
        "current": {"x": drawn(50, 1)},
        "previous": {"x": drawn(50, 2)},
    } | {side: {"x": pa.array(empty, pa.float64())}}
    drift = compare(profiles(**sides), X)
    assert drift.measured == ()
    split = {"current": "evaluate", "previous": "train"}[side]
    assert [(entry.name, entry.reason) for entry in drift.not_judged] == [
        ("drift/x", f"no numbers of it in split {split}")
    ]


def test_a_column_of_which_tfdv_says_nothing_is_not_judged(profiles: object) -> None:
    pair = profiles({"x": drawn(50, 1)}, {"x": drawn(50, 2)})
    drift = compare(pair, X, schema='feature { name: "y" type: FLOAT }')
    assert [(entry.name, entry.reason) for entry in drift.not_judged] == [
        ("drift/x", "TFDV gave no number for it")
    ]


def test_categories_that_became_numbers_are_not_judged_where_tfdv_would_report_0(profiles: object) -> None:
    drift = compare(profiles({"w": [1, 2, 3]}, {"w": [4, 5, 6]}, 'feature { name: "w" type: INT }'), W)
    assert drift.measured == ()
    assert drift.not_judged[0].reason == "no values of it in split train"


def test_more_values_than_are_counted_are_not_judged_and_their_number_is_told(profiles: object) -> None:
    words = [f"w{n}" for n in range(12_000)]
    drift = compare(profiles({"w": words}, {"w": words[:500]}), W)
    assert drift.measured == ()
    assert drift.not_judged[0].reason == (
        "about 12,000 distinct values in split evaluate, of which only the 10,000 commonest are counted"
    )


def test_two_thousand_values_of_which_tfdv_alone_would_drop_half_give_the_true_distance(
    profiles: object,
) -> None:
    """The rare half moved onto one value; a histogram of the 1,000 commonest would not see all of it."""
    previous = [f"w{n}" for n in range(2_000)] * 2
    current = [f"w{n}" for n in range(1_000)] * 2 + ["w1999"] * 2_000
    assert compare(profiles({"w": current}, {"w": previous}), W).measured[0].value == pytest.approx(
        0.5 - 1 / 2_000
    )


def test_text_is_not_compared_by_its_values(profiles: object) -> None:
    pair = profiles({"w": ["a"]}, {"w": ["b"]})
    reason = compare(pair, Limit("w", "text", L_INFINITY, 0.1)).not_judged[0].reason
    assert reason == "it is text, as the schema says: its values are not counted"


def test_the_share_of_rows_with_a_value_never_seen_before_is_measured(profiles: object) -> None:
    pair = profiles({"w": ["a"] * 880 + ["new"] * 120}, {"w": ["a"] * 900 + ["b"] * 100})
    drift = measure_unseen(pair, [W, X], threshold=0.05)
    (found,) = judged(drift)
    assert (found.column, found.measure, found.value) == ("w", "new values", 0.12)
    assert found.moved
    assert found.finding().kind == "NEW_VALUES_HIGH"


def test_values_that_are_rare_everywhere_are_new_by_chance_and_no_alarm(profiles: object) -> None:
    """A thousand values of three rows each: many of a small sample are bound to be missing from the other."""
    draw = np.random.default_rng(4)
    words = np.repeat([f"w{n}" for n in range(1_000)], 3)
    draw.shuffle(words)
    (found,) = judged(measure_unseen(profiles({"w": words[:500]}, {"w": words[500:]}), [W], threshold=0.0))
    assert 0 < found.value < found.floor


def test_new_values_that_were_not_counted_are_not_judged(profiles: object) -> None:
    words = [f"w{n}" for n in range(12_000)]
    drift = measure_unseen(profiles({"w": words}, {"w": words[:500]}), [W], threshold=0.05)
    assert [entry.name for entry in drift.not_judged] == ["new/w"]


@dataclass(frozen=True)
class Even:
    """A distance that is even over [0, 1] by chance."""

    def tail(self, value: float) -> float:
        return 1 - value

    def floor(self, level: float) -> float:
        return 1 - level


def measured(values: list[float], limit: float = 0.0) -> list[ColumnComparison]:
    return [
        ColumnComparison(f"c{n}", "x", "previous", value, limit, Even(), (1, 1))
        for n, value in enumerate(values)
    ]


@given(st.lists(st.integers(0, 1_000).map(lambda n: n / 1_000), min_size=1, max_size=12))
def test_what_moves_is_what_holms_adjusted_probabilities_reject(values: list[float]) -> None:
    found = [entry.moved for entry in decide(measured(values), 0.0505)]
    assert found == [adjusted < 0.0505 for adjusted in holm([1 - value for value in values])]


def test_one_column_that_moved_eases_the_floor_of_the_next() -> None:
    first, second, third = decide(measured([0.99, 0.976, 0.5]), 0.05)
    assert [round(entry.floor, 6) for entry in (first, second, third)] == [0.983333, 0.975, 0.95]
    assert [entry.moved for entry in (first, second, third)] == [True, True, False]


def test_what_comes_after_the_first_that_could_be_chance_is_held_to_the_same_level() -> None:
    floors = [round(entry.floor, 6) for entry in decide(measured([0.9, 0.8, 0.1]), 0.05)]
    assert floors == [0.983333] * 3


def test_comparisons_that_chance_cannot_move_take_no_part_of_the_rate() -> None:
    still = [ColumnComparison(f"s{n}", "x", "previous", 0.0, 0.0, NoChance(), (1, 1)) for n in range(9)]
    found = decide([*still, *measured([0.96])], 0.05)
    assert found[-1].moved
    assert not any(entry.moved for entry in found[:-1])


def test_a_distance_beyond_chance_but_within_its_limit_has_not_moved() -> None:
    (found,) = decide(measured([0.999], limit=0.9995), 0.05)
    assert (found.moved, found.effective, round(found.floor, 9)) == (False, 0.9995, 0.95)
