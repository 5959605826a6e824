"""A number on the wrong side of its limit is no pass; one that chance explains is no verdict either."""

import pytest

from trainwright.evaluate.rules import (
    headline,
    rule_on_auc,
    rule_on_calibration,
    rule_on_gap,
    worst,
)
from trainwright.evaluate.slices import Cut, Slice
from trainwright.experiment import Evaluation
from trainwright.significance import Estimate, largest_gap


@pytest.mark.parametrize(
    ("low", "value", "high", "decision"),
    [
        (0.71, 0.74, 0.77, "PASS"),
        (0.70, 0.73, 0.76, "INCONCLUSIVE"),
        (0.65, 0.72, 0.79, "INCONCLUSIVE"),
        (0.65, 0.68, 0.701, "INCONCLUSIVE"),
        (0.62, 0.66, 0.70, "FAIL"),
    ],
)
def test_the_area_passes_above_its_limit_fails_below_and_is_undecided_around_it(
    low: float, value: float, high: float, decision: str
) -> None:
    ruling = rule_on_auc(Estimate(value, low, high), (700, 300), 0.7)
    assert ruling.decision == decision
    assert (ruling.not_judged() is not None) == (decision == "INCONCLUSIVE")


@pytest.mark.parametrize("rows", [(1000, 29), (29, 1000)])
def test_an_area_of_fewer_than_thirty_rows_of_a_label_is_no_pass_however_good_it_looks(
    rows: tuple[int, int],
) -> None:
    ruling = rule_on_auc(Estimate(0.95, 0.93, 0.97), rows, 0.7)
    assert ruling.decision == "INCONCLUSIVE"
    assert ruling.reason.endswith("its interval needs 30 of each")
    assert rule_on_auc(Estimate(0.95, 0.93, 0.97), (30, 30), 0.7).decision == "PASS"


def test_an_undecided_area_says_how_many_rows_would_decide() -> None:
    ruling = rule_on_auc(Estimate(0.72, 0.68, 0.76), (700, 300), 0.7)
    assert ruling.reason.endswith("about 4,000 rows like these 1,000 would tell")
    assert "would tell" not in rule_on_auc(Estimate(0.7, 0.68, 0.72), (700, 300), 0.7).reason


def cut(*slices: tuple[str, int, int], column: str = "origin") -> Cut:
    """A cut from names, positives and hits; a slice with fewer than 30 positives is not judged."""
    entries = tuple(
        Slice(name, 2 * positives, positives, hits, hits, None, "few" if positives < 30 else "")
        for name, positives, hits in slices
    )
    judged = [entry for entry in entries if not entry.reason]
    if len(judged) < 2:
        return Cut(column, entries, None)
    gap = largest_gap([entry.hits for entry in judged], [entry.positives for entry in judged])
    return Cut(column, entries, gap)


@pytest.mark.parametrize(
    ("scale", "max_gap", "decision"), [(1000, 0.05, "HOLD"), (40, 0.05, "INCONCLUSIVE"), (40, 0.2, "PASS")]
)
def test_a_gap_is_held_where_it_is_sure_and_undecided_where_it_may_be_chance(
    scale: int, max_gap: float, decision: str
) -> None:
    slices = (("EWR", scale, int(0.8 * scale)), ("LGA", scale, int(0.95 * scale)))
    ruling = rule_on_gap(cut(*slices), Evaluation(max_recall_gap=max_gap))
    assert ruling.decision == decision
    assert ruling.estimate is not None
    assert ruling.estimate.value == pytest.approx(0.15)


def test_the_headline_names_the_slices_at_both_ends_with_the_limit_beside_the_number() -> None:
    ruling = rule_on_gap(cut(("EWR", 1000, 831), ("LGA", 1000, 912)), Evaluation(max_recall_gap=0.04))
    assert ruling.fact == "recall gap over origin 0.081 > 0.040: EWR 0.831, LGA 0.912"


def test_a_slice_named_by_a_number_is_spoken_with_its_column() -> None:
    ruling = rule_on_gap(
        cut(("6", 1000, 100), ("21", 1000, 600), column="hour"), Evaluation(max_recall_gap=0.1)
    )
    assert ruling.fact.endswith("hour 6 0.100, hour 21 0.600")


def test_a_single_judged_slice_is_inconclusive_whatever_the_limit() -> None:
    ruling = rule_on_gap(cut(("EWR", 1000, 900), ("LGA", 29, 1)), Evaluation(max_recall_gap=1))
    assert (ruling.decision, ruling.rule()) == ("INCONCLUSIVE", None)
    assert ruling.reason == "a gap needs 2 slices with at least 30 positives, origin has 1 of 2"


@pytest.mark.parametrize(
    ("low", "value", "decision"), [(0.01, 0.04, "PASS"), (0.04, 0.06, "INCONCLUSIVE"), (0.051, 0.06, "HOLD")]
)
def test_a_calibration_error_is_judged_like_a_gap(low: float, value: float, decision: str) -> None:
    assert rule_on_calibration(Estimate(value, low, 0.1), 0.05).decision == decision


def test_the_worst_rule_decides() -> None:
    assert worst(["PASS", "HOLD", "INCONCLUSIVE"]) == "HOLD"
    assert worst(["PASS", "HOLD", "FAIL", "INCONCLUSIVE"]) == "FAIL"
    assert worst(["PASS", "INCONCLUSIVE"]) == "INCONCLUSIVE"
    assert worst(["PASS"]) == "PASS"


def test_a_pass_shows_the_area_and_the_largest_gap_beside_their_limits() -> None:
    rulings = [
        rule_on_auc(Estimate(0.741, 0.738, 0.744), (21_000, 7_000), 0.7),
        rule_on_gap(cut(("EWR", 100, 80), ("LGA", 100, 82)), Evaluation(max_recall_gap=0.1)),
        rule_on_gap(cut(("AA", 100, 80), ("UA", 100, 84), column="carrier"), Evaluation(max_recall_gap=0.1)),
        rule_on_calibration(Estimate(0.01, 0, 0.02), 0.05),
    ]
    assert headline(rulings) == "AUC 0.741 [0.738, 0.744] > 0.700, recall gap over carrier 0.040 of 0.100"


def test_several_broken_rules_are_counted() -> None:
    rulings = [
        rule_on_auc(Estimate(0.741, 0.738, 0.744), (21_000, 7_000), 0.7),
        rule_on_gap(cut(("EWR", 1000, 831), ("LGA", 1000, 912)), Evaluation(max_recall_gap=0.04)),
        rule_on_calibration(Estimate(0.2, 0.19, 0.21), 0.05),
    ]
    text = "HOLD: recall gap over origin 0.081 > 0.040: EWR 0.831, LGA 0.912, and 1 more"
    assert headline(rulings) == text


def test_a_column_with_a_limit_of_its_own_is_judged_by_that() -> None:
    apart = cut(("6", 1000, 100), ("21", 1000, 600), column="hour")
    limits = {"slices": ("origin", "hour"), "max_recall_gap": 0.1}
    assert rule_on_gap(apart, Evaluation(**limits)).decision == "HOLD"
    assert rule_on_gap(apart, Evaluation(**limits, recall_gaps={"hour": 0.5})).decision == "PASS"
