"""Intervals against published examples, scipy, brute force and simulation."""

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from tests.significance.references import bootstrap, delong, delong_difference, newcombe
from trainwright.errors import InternalError
from trainwright.significance import (
    holm,
    largest_gap,
    normal_quantile,
    wilson,
)

Z = 1.959963984540054


def test_the_normal_quantile_of_95_percent_is_the_one_in_every_book() -> None:
    assert normal_quantile(0.95) == pytest.approx(Z, abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_examples_of_newcombe_1998(
    successes: int, trials: int, low: float, high: float
) -> None:
    estimate = wilson(successes, trials)
    assert estimate.value == successes / trials
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("trials", [1, 7, 30, 4798])
def test_wilson_agrees_with_scipy(trials: int) -> None:
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        theirs = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        ours = wilson(successes, trials)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        ((56, 48), (70, 80), 0.0524, 0.3339),
        ((9, 3), (10, 10), 0.1705, 0.8090),
        ((6, 2), (7, 7), 0.0582, 0.8062),
        ((5, 0), (56, 29), -0.0381, 0.1926),
        ((10, 0), (10, 10), 0.6075, 1.0),
    ],
)
def test_newcombe_gives_the_examples_of_his_paper(
    successes: tuple[int, int], trials: tuple[int, int], low: float, high: float
) -> None:
    estimate = newcombe(successes, trials)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


def test_the_gap_of_two_groups_is_newcombes_difference() -> None:
    gap = largest_gap([48, 56], [80, 70])
    difference = newcombe((56, 48), (70, 80))
    assert gap == difference


def test_the_gap_of_many_groups_is_found_among_all_their_pairs() -> None:
    successes, trials = [10, 25, 18, 40], [50, 60, 30, 55]
    confidence = 1 - 0.05 / 6
    pairs = [
        newcombe((successes[a], successes[b]), (trials[a], trials[b]), confidence)
        for a, b in itertools.permutations(range(4), 2)
    ]
    gap = largest_gap(successes, trials)
    assert gap.value == pytest.approx(40 / 55 - 10 / 50)
    assert gap.low == pytest.approx(max(pair.low for pair in pairs))
    assert gap.high == pytest.approx(max(pair.high for pair in pairs))


def test_equal_groups_have_no_gap_and_an_interval_that_begins_at_zero() -> None:
    gap = largest_gap([30, 30, 30], [60, 60, 60])
    assert (gap.value, gap.low) == (0, 0)
    assert gap.high > 0.1


def test_sixteen_groups_that_differ_by_nothing_seem_to_differ_but_their_interval_says_so() -> None:
    draw = np.random.default_rng(0)
    trials = [40] * 16
    seen = [largest_gap(draw.binomial(40, 0.5, 16).tolist(), trials) for _ in range(500)]
    assert np.mean([size.value for size in seen]) > 0.2
    assert np.mean([size.low > 0 for size in seen]) <= 0.05


def test_the_gaps_interval_holds_the_true_gap_at_least_95_times_of_100() -> None:
    draw = np.random.default_rng(1)
    truth, trials = np.array([0.4, 0.5, 0.5, 0.62]), [120, 300, 80, 200]
    seen = [largest_gap(draw.binomial(trials, truth).tolist(), trials) for _ in range(1000)]
    assert np.mean([size.low <= 0.22 <= size.high for size in seen]) >= 0.95


def test_a_gap_needs_two_groups_with_trials() -> None:
    for successes, trials in (([1], [2]), ([1, 0], [2, 0])):
        with pytest.raises(InternalError):
            largest_gap(successes, trials)


def scores(seed: int, rows: int, *, digits: int = 8) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels and scores that rank them a little; few digits make many ties."""
    draw = np.random.default_rng(seed)
    label = (draw.random(rows) < 0.3).astype(np.int64)
    return label, np.round(1 / (1 + np.exp(-draw.normal(label * 0.9, 1))), digits)


def by_hand(label: NDArray[np.int64], score: NDArray[np.float64]) -> tuple[float, float]:
    """The area and its variance from all pairs, as DeLong, DeLong and Clarke-Pearson write them."""
    positive, negative = score[label == 1], score[label == 0]
    wins = [[1.0 if p > n else 0.5 if p == n else 0.0 for n in negative] for p in positive]
    rows = [sum(row) / len(row) for row in wins]
    columns = [sum(column) / len(column) for column in zip(*wins, strict=True)]
    area = sum(rows) / len(rows)
    parts = [sum((x - area) ** 2 for x in side) / (len(side) - 1) / len(side) for side in (rows, columns)]
    return area, sum(parts)


@pytest.mark.parametrize("digits", [8, 1], ids=["distinct", "tied"])
def test_delong_is_what_all_pairs_give_by_hand(digits: int) -> None:
    label, score = scores(2, 300, digits=digits)
    area, variance = by_hand(label, score)
    estimate = delong(label, score)
    assert estimate.value == pytest.approx(area, abs=1e-12)
    middle, half = math.log(area / (1 - area)), Z * variance**0.5 / (area * (1 - area))
    assert estimate.low == pytest.approx(1 / (1 + math.exp(half - middle)), abs=1e-9)
    assert estimate.high == pytest.approx(1 / (1 + math.exp(-half - middle)), abs=1e-9)


def area_of(label: NDArray[np.int64], score: NDArray[np.float64]) -> float:
    """The Mann-Whitney statistic by sorting, without ties."""
    order = np.argsort(score)
    ranks = np.flatnonzero(label[order]) + 1
    count = len(ranks)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * (len(label) - count)))


def test_the_bootstrap_finds_delongs_interval() -> None:
    label, score = scores(3, 2000)
    exact = delong(label, score)
    drawn = bootstrap(area_of, [label, score + np.arange(2000) * 1e-12], strata=label, resamples=800)
    assert drawn.value == pytest.approx(exact.value, abs=1e-9)
    assert (drawn.low, drawn.high) == pytest.approx((exact.low, exact.high), abs=0.004)


def test_delongs_interval_holds_the_true_area_about_95_times_of_100() -> None:
    truth = NormalDist().cdf(0.9 / 2**0.5)
    estimates = [delong(*scores(seed, 400)) for seed in range(600)]
    assert 0.93 <= np.mean([e.low <= truth <= e.high for e in estimates]) <= 0.97


def test_with_thirty_rows_of_each_label_the_interval_of_a_good_area_does_not_begin_too_high() -> None:
    draw, truth = np.random.default_rng(11), 0.9
    shift = NormalDist().inv_cdf(truth) * 2**0.5
    label = np.repeat([0, 1], 30)
    lows = [delong(label, draw.normal(shift * label, 1)).low for _ in range(1000)]
    assert np.mean(np.array(lows) > truth) < 0.035


def test_a_perfect_ranking_of_four_rows_is_not_certainty() -> None:
    estimate = delong(np.array([0, 0, 1, 1]), np.array([0.1, 0.2, 0.8, 0.9]))
    pairs = wilson(2, 2)
    assert (estimate.value, estimate.low, estimate.high) == (1.0, pairs.low, 1.0)
    assert estimate.low < 0.4


def test_one_positive_says_next_to_nothing() -> None:
    estimate = delong(np.array([0, 0, 0, 1]), np.array([0.1, 0.9, 0.2, 0.5]))
    assert estimate.value == pytest.approx(2 / 3)
    assert estimate.high - estimate.low > 0.8


def test_a_paired_comparison_is_narrower_than_its_parts_and_as_wide_as_the_bootstrap_says() -> None:
    label, first = scores(4, 1500)
    second = first + np.random.default_rng(5).normal(0, 0.02, 1500)
    paired = delong_difference(label, first, second)
    alone = delong(label, first)
    drawn = bootstrap(lambda y, a, b: area_of(y, a) - area_of(y, b), [label, first, second], resamples=800)
    assert paired.high - paired.low < (alone.high - alone.low) / 3
    assert (paired.low, paired.high) == pytest.approx((drawn.low, drawn.high), abs=0.001)


def test_the_same_scores_do_not_differ() -> None:
    label, score = scores(6, 200)
    difference = delong_difference(label, score, score)
    assert (difference.value, difference.low, difference.high) == pytest.approx((0, 0, 0), abs=1e-7)


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([], []),
        ([0.2], [0.2]),
    ],
)
def test_holm_adjusts_as_r_does(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


def test_sums_of_weights_may_exceed_their_whole_by_their_rounding() -> None:
    assert wilson(3 * (1 + 1e-15), 3) == wilson(3, 3)
    assert wilson(-1e-16, 3) == wilson(0, 3)


@pytest.mark.parametrize("call", [lambda: wilson(3, 2), lambda: wilson(0, 0), lambda: wilson(-1, 2)])
def test_impossible_counts_are_our_bug(call: Callable[[], object]) -> None:
    with pytest.raises(InternalError):
        call()
