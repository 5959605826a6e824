"""Figures against examples by hand, loops and simulation."""

import math

import numpy as np
import pytest

from trainwright.evaluate.metrics import BINS, CURVE_POINTS, calibrate, measure, roc, thin

LABEL = np.array([0, 0, 1, 1])
SCORE = np.array([0.1, 0.4, 0.35, 0.8])


def test_four_rows_by_hand() -> None:
    found = measure(LABEL, SCORE, threshold=0.5)
    assert found.auc.value == 0.75
    assert found.confusion == ((2, 0), (1, 1))
    assert found.accuracy.value == 0.75
    assert found.recall.value == 0.5
    assert found.precision is not None
    assert found.precision.value == 1
    assert found.brier == pytest.approx((0.1**2 + 0.4**2 + 0.65**2 + 0.2**2) / 4)
    assert found.brier_of_base_rate == 0.25
    likelihood = math.log(0.9) + math.log(0.6) + math.log(0.35) + math.log(0.8)
    assert found.log_loss == pytest.approx(-likelihood / 4)


def test_a_score_at_the_threshold_is_a_positive_prediction() -> None:
    assert measure(LABEL, SCORE, threshold=0.8).confusion == ((2, 0), (1, 1))
    assert measure(LABEL, SCORE, threshold=0.81).precision is None


def test_the_roc_curve_has_a_point_for_each_distinct_score() -> None:
    curve = roc(LABEL, SCORE)
    assert curve.false_positive_rate.tolist() == [0, 0, 0.5, 0.5, 1]
    assert curve.true_positive_rate.tolist() == [0, 0.5, 0.5, 1, 1]
    assert curve.threshold.tolist() == [1, 0.8, 0.4, 0.35, 0.1]


def test_tied_scores_are_one_step_of_the_curve() -> None:
    curve = roc(np.array([0, 1, 0, 1]), np.array([0.5, 0.5, 0.5, 0.5]))
    assert curve.false_positive_rate.tolist() == [0, 1]
    assert curve.true_positive_rate.tolist() == [0, 1]


def draw(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are the chances of label 1."""
    random = np.random.default_rng(seed)
    score = random.beta(2, 5, rows)
    return (random.random(rows) < score).astype(np.int64), score


def test_a_thinned_curve_keeps_its_ends_its_area_and_at_most_100_points() -> None:
    label, score = draw(20_000)
    curve = thin(roc(label, score), CURVE_POINTS)
    x, y = curve.false_positive_rate, curve.true_positive_rate
    assert len(x) <= 100
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert np.isfinite(curve.threshold).all()
    assert (np.diff(curve.threshold) < 0).all()
    area = float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))
    assert area == pytest.approx(measure(label, score, threshold=0.5).auc.value, abs=0.001)


def test_the_calibration_error_is_the_mean_distance_over_ten_bins_of_as_many_rows() -> None:
    label, score = draw(5000)
    order = np.argsort(score)
    error = 0.0
    for rows in np.array_split(order, BINS):
        error += len(rows) / 5000 * abs(label[rows].mean() - score[rows].mean())
    found = calibrate(label, score)
    assert found.rows.tolist() == [500] * 10
    assert found.error.value == pytest.approx(error, abs=1e-12)


def test_scores_that_are_twice_too_high_have_the_error_that_they_claim() -> None:
    label, score = draw(200_000)
    error = calibrate(label, np.minimum(1, 2 * score)).error
    assert error.low < np.mean(np.minimum(1, 2 * score) - score) < error.high
    assert error.low > 0.2


def test_well_calibrated_scores_are_never_held_by_chance_more_often_than_5_times_of_100() -> None:
    seen = [calibrate(*draw(800, seed)).error for seed in range(400)]
    assert np.mean([error.value > 0.01 for error in seen]) > 0.9
    assert np.mean([error.low > 0 for error in seen]) <= 0.05


def test_one_score_for_all_rows_is_one_bin() -> None:
    found = calibrate(np.array([0, 1, 0, 0]), np.full(4, 0.4))
    assert found.rows.tolist() == [4]
    assert found.error.value == pytest.approx(0.15)


def test_certain_scores_have_a_finite_loss() -> None:
    found = measure(np.array([0, 1, 1]), np.array([1.0, 0.0, 1.0]), threshold=0.5)
    assert math.isfinite(found.log_loss)
    assert found.log_loss > 20
